"""Decode messages of Maxwell and Canal, which write MySQL's binlog as JSON.

An insert or an update upserts the row in ``data``. A delete deletes the key of the row in ``data``. Maxwell's bootstrap
rows are inserts. The field ``old`` holds only changed values. The formats read ``old`` to find changed keys. DDL
statements are ignored, except Canal's TRUNCATE, which deletes all keys of the table. A message of Canal holds several
rows, with every value as text.

Events are ordered by the position that Maxwell writes if ``output_binlog_position`` is set. Without a position, events
are ordered by the offset of their message. Events of one message keep the order of the rows in the message.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ddflow.connectors.formats.base import BadMessages, MessageTarget
from ddflow.connectors.formats.cells import build_json_shape
from ddflow.connectors.formats.envelope import Ints, ParsedMessages, get_cells_at_path, parse_messages
from ddflow.connectors.formats.enveloped import (
    DELETE,
    NOTHING,
    TOMBSTONE,
    TRUNCATE,
    UNKNOWN,
    UPSERT,
    Enveloped,
    EnvelopeEvents,
    map_operation_codes,
)
from ddflow.connectors.formats.messages import Messages
from ddflow.connectors.formats.parse import TEXT, Bools
from ddflow.connectors.formats.row_columns import ExampleRows, Path, find_example_rows, parse_sql_type

_MAXWELL: Final = {"insert": UPSERT, "update": UPSERT, "bootstrap-insert": UPSERT, "delete": DELETE} | dict.fromkeys(
    [
        "bootstrap-start",
        "bootstrap-complete",
        *(f"table-{what}" for what in ("create", "alter", "drop")),
        *(f"database-{what}" for what in ("create", "alter", "drop")),
    ],
    NOTHING,
)
_CANAL: Final = {"INSERT": UPSERT, "UPDATE": UPSERT, "DELETE": DELETE, "TRUNCATE": TRUNCATE}


@dataclass(frozen=True, repr=False, kw_only=True)
class maxwell(Enveloped):
    """Format of Maxwell's messages, including bootstraps.

    Parameters
    ----------
    table, on_bad
        As in `debezium`; a table is ``"orders"`` or ``"shop.orders"``.

    Raises
    ------
    SpecError
        For an invalid option.

    Notes
    -----
    Events are ordered by ``position`` if Maxwell writes this field (``output_binlog_position``). Without ``position``,
    events are ordered by offset.

    Examples
    --------
    >>> maxwell()
    dd.formats.maxwell()
    """

    kind: ClassVar[str] = "maxwell"
    hidden: ClassVar[str] = "the source did not write it"
    unknown: ClassVar[str] = "it is not a Maxwell event: it lacks a known 'type', or 'data'"

    row_path: ClassVar[Path] = ("data",)

    def sources(self, value: pa.Array) -> dict[str, pa.Array]:
        """Return the table of each message.  See `Enveloped`."""
        return _read_table_names(value)

    def examples(self, values: pa.Array) -> ExampleRows:
        """Return the new rows of changes, and the deleted rows.  See `Format`."""
        return find_example_rows(values, ["$.data"])

    def read(self, messages: Messages, target: MessageTarget, bad: BadMessages) -> EnvelopeEvents:
        """Read the events of messages.  See `Enveloped`."""
        rows = {field.name: build_json_shape(field.type) for field in target.columns}
        old = {name: rows[name] for name in (*target.key, *target.deciding)}
        top = dict.fromkeys(("type", "table", "database", "position"), TEXT)
        inside = parse_messages(messages.value, {**top, "data": rows, "old": old}, messages.exact)
        codes = map_operation_codes(inside.get_cells("type"), _MAXWELL)
        codes[np.asarray(inside.body.is_null()) & ~inside.wrong] = TOMBSTONE
        codes[(codes < NOTHING) & np.asarray(inside.get_cells("data").is_null())] = UNKNOWN
        place = pc.extract_regex(inside.get_cells("position").cast(pa.string()), r"^(?P<file>.*):(?P<pos>[0-9]+)$")
        source = {name: pc.struct_field(place, name) for name in ("file", "pos")}
        source |= {
            "table": inside.get_cells("table"),
            "schema": inside.get_cells("database"),
            "db": inside.get_cells("database"),
        }
        return _fill_old_rows_of_deletes(
            EnvelopeEvents(inside, codes, ("data",), ("old",), source, np.arange(messages.rows)), target
        )


@dataclass(frozen=True, repr=False, kw_only=True)
class canal(Enveloped):
    """Format of Canal's messages in flat JSON, with several rows in each message.

    Parameters
    ----------
    table, on_bad
        As in `maxwell`.

    Raises
    ------
    SpecError
        For an invalid option.

    Examples
    --------
    >>> canal(table="orders")
    dd.formats.canal(table='orders')

    >>> from ddflow.connectors.formats.base import decode_messages, build_events_schema
    >>> format, columns = canal(), pa.schema({"id": pa.int64(), "v": pa.string()})
    >>> target = MessageTarget("'o'", columns, ("id",), (), True, build_events_schema(format, columns, True))
    >>> came = '{"table": "o", "type": "INSERT", "data": [{"id": "1", "v": "x"}, {"id": "2", "v": null}]}'
    >>> came = pa.table({"value": [came], "offset": [5]})
    >>> decode_messages(format, came, target).rows.select(["id", "v", "_row"]).to_pylist()
    [{'id': 1, 'v': 'x', '_row': 0}, {'id': 2, 'v': None, '_row': 1}]
    """

    kind: ClassVar[str] = "canal"
    hidden: ClassVar[str] = "the source did not write it"
    unknown: ClassVar[str] = "it is not a Canal event: it lacks a known 'type', or 'data'"
    row_path: ClassVar[Path] = ("data", 0)

    def sources(self, value: pa.Array) -> dict[str, pa.Array]:
        """Return the table of each message.  See `Enveloped`."""
        return _read_table_names(value)

    def kinds(self, messages: Messages, names: Sequence[str]) -> dict[str, pa.DataType]:
        """Return Arrow types for columns, from the MySQL types in the messages.  See `Format`."""
        out, first = dict[str, pa.DataType](), self.columns(messages)
        for name in names:
            types = json.loads(messages.value[first[name]].as_py()).get("mysqlType")
            out[name] = parse_sql_type(str(types.get(name, ""))) if isinstance(types, dict) else pa.string()
        return out

    def read(self, messages: Messages, target: MessageTarget, bad: BadMessages) -> EnvelopeEvents:
        """Read the events of messages.  See `Enveloped`."""
        rows: dict[str, Any] = {field.name: build_json_shape(field.type) for field in target.columns}
        old = {name: rows[name] for name in (*target.key, *target.deciding)}
        top = dict.fromkeys(("type", "isDdl", "table", "database"), TEXT)
        whole = parse_messages(messages.value, {**top, "data": [rows], "old": [old]}, messages.exact)
        codes = map_operation_codes(whole.get_cells("type"), _CANAL)
        statements = np.asarray(pc.fill_null(pc.equal(whole.get_cells("isDdl").cast(pa.string()), "true"), False))
        codes[(codes != TRUNCATE) & statements] = NOTHING
        codes[np.asarray(whole.body.is_null()) & ~whole.wrong] = TOMBSTONE
        data = whole.get_cells("data")
        counts = np.asarray(pc.fill_null(pc.list_value_length(data), 0)).astype(np.int64)
        codes[(codes < NOTHING) & (counts == 0)] = UNKNOWN
        counts[codes >= NOTHING] = 0
        # A message without rows also becomes an event.
        sizes = np.maximum(counts, 1)
        of = np.repeat(np.arange(messages.rows), sizes)
        place = np.arange(of.size) - np.repeat(np.cumsum(sizes) - sizes, sizes)
        listed = counts[of] > 0
        parts = {name: _take_list_elements(whole.get_cells(name), of, place, listed) for name in ("data", "old")}
        names = [*parts, "table", "database"]
        some = [*parts.values(), *(whole.get_cells(name).take(pa.array(of)) for name in names[2:])]
        inside = ParsedMessages(pa.StructArray.from_arrays(some, names=names), whole.wrong[of], (), whole.json)
        source = {"row": pa.array(place).cast(pa.string()), "table": inside.get_cells("table")}
        source |= dict.fromkeys(("schema", "db"), inside.get_cells("database"))
        return _fill_old_rows_of_deletes(EnvelopeEvents(inside, codes[of], ("data",), ("old",), source, of), target)


def _read_table_names(value: pa.Array) -> dict[str, pa.Array]:
    """Return the table, schema and database of each message."""
    inside = parse_messages(value, dict.fromkeys(("table", "database"), TEXT))
    return {"table": inside.get_cells("table"), **dict.fromkeys(("schema", "db"), inside.get_cells("database"))}


def _take_list_elements(lists: pa.Array, of: Ints, place: Ints, listed: Bools) -> pa.Array:
    """Return one list element for each event; null if the list has no element for the event."""
    if not pa.types.is_list(lists.type):
        return pa.nulls(of.size, pa.struct([]))
    begins = np.asarray(lists.offsets).astype(np.int64)
    sizes = np.diff(begins)
    there = listed & (place < sizes[of]) & np.asarray(lists.is_valid())[of]
    at = np.where(there, begins[of] + place, 0)
    if not len(lists.values):
        return pa.nulls(of.size, lists.type.value_type)
    return lists.values.take(pa.array(at, mask=~there))


def _fill_old_rows_of_deletes(read: EnvelopeEvents, target: MessageTarget) -> EnvelopeEvents:
    """Use the ``data`` of deletes as their old rows, because a delete has no ``old``."""
    deletes = read.codes == DELETE
    if not deletes.any():
        return read
    body = read.inside.body
    data, old = (get_cells_at_path(body, [name]) for name in ("data", "old"))
    names, mask = [*target.key, *target.deciding], pa.array(deletes)
    parts = [pc.if_else(mask, get_cells_at_path(data, [name]), get_cells_at_path(old, [name])) for name in names]
    made = pa.StructArray.from_arrays(parts, names=names)
    every = {field.name: column for field, column in zip(body.type, body.flatten(), strict=True)} | {"old": made}
    inside = read.inside._replace(body=pa.StructArray.from_arrays([*every.values()], names=[*every]))
    return read._replace(inside=inside)
