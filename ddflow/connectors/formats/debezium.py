"""Decode Debezium's messages: envelopes with or without Connect's schema, or flattened rows.

Operations: ``c``, ``u`` and ``r`` upsert the row in ``after``. ``d`` deletes the key of the row. ``t`` deletes all keys
of the table. ``m`` is ignored. A tombstone deletes its key. A tombstone directly after a delete of the same key is
ignored.

Events are ordered by the log position of Postgres, or by the binlog file, position and row of MySQL. Events without a
log position are ordered by the offset of their message. A tombstone has no position, so ddflow uses the position of the
next message of the same partition in the batch. If no later message has a position, ddflow uses the last position
before the tombstone.

Only the key columns and the order columns of ``before`` are read.
"""

import base64
import hashlib
import json
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, Final, Literal
from uuid import UUID

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pat

from ddflow.columns.schema import is_text
from ddflow.connectors.formats.base import BadMessages, MessageTarget
from ddflow.connectors.formats.cells import BINARIES, MODES, PRECISE, CellEncoding, build_json_shape
from ddflow.connectors.formats.envelope import Ints, ParsedMessages, parse_messages
from ddflow.connectors.formats.enveloped import (
    DELETE,
    NOTHING,
    SOURCE,
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
from ddflow.connectors.formats.row_columns import ExampleRows, Path, find_example_rows
from ddflow.errors import SpecError

_CODES: Final = {"c": UPSERT, "u": UPSERT, "r": UPSERT, "d": DELETE, "m": NOTHING, "t": TRUNCATE}
_FLAT: Final = tuple(f"__{prefix}{name}" for name in SOURCE for prefix in ("", "source_"))
UNAVAILABLE: Final = "__debezium_unavailable_value"


@dataclass(frozen=True, repr=False, kw_only=True)
class debezium(Enveloped):
    """Format of Debezium's messages, with or without Connect's schema.

    Parameters
    ----------
    table : str, optional
        The table to read from a topic with several tables: ``"orders"``, ``"public.orders"`` or
        ``"shop.public.orders"``.  By default the first message sets the table, and messages of other tables are bad.
        If the name fits tables in several schemas or databases, the first of them in the messages is read, and
        messages of the other tables are bad.
    flattened : bool
        Whether messages are only the row after a change, as ``ExtractNewRecordState`` writes them.
    decimals : {"precise", "string", "double"}
        The connector's ``decimal.handling.mode``, for messages without a schema.
    binary : {"base64", "base64-url-safe", "hex"}
        The connector's ``binary.handling.mode``.
    unavailable : bool
        Whether a value that the source did not write, such as an unchanged TOAST value of Postgres, keeps its stored
        value.  The input then merges by `ddflow.last`.  By default such a message is bad.
    placeholder : str
        The connector's ``unavailable.value.placeholder``.
    on_bad : {"stop", "drop"}
        What to do with an unreadable message: refuse the step, or count the message as bad and write it to the output
        ``<input>.bad``.

    Raises
    ------
    SpecError
        For an invalid option.

    Examples
    --------
    >>> debezium(table="public.orders")
    dd.formats.debezium(table='public.orders')

    >>> from ddflow.connectors.formats.base import MessageTarget, decode_messages, build_events_schema
    >>> format, columns = debezium(), pa.schema({"id": pa.int64(), "v": pa.string()})
    >>> target = MessageTarget("'o'", columns, ("id",), (), True, build_events_schema(format, columns, True))
    >>> created = '{"op": "c", "before": null, "after": {"id": 1, "v": "x"}, "source": {"lsn": 9}}'
    >>> gone = '{"op": "d", "before": {"id": 1}, "after": null, "source": {"lsn": 10}}'
    >>> came = pa.table({"value": [created, gone, None], "key": ['{"id": 1}'] * 3})
    >>> for row in decode_messages(format, came, target).rows.to_pylist():
    ...     print(row)
    {'id': 1, 'v': 'x', '_position': 9, '_row': 0, '_deleted': False}
    {'id': 1, 'v': None, '_position': 10, '_row': 0, '_deleted': True}
    """

    flattened: bool = False
    decimals: Literal["precise", "string", "double"] = PRECISE
    binary: Literal["base64", "base64-url-safe", "hex"] = "base64"
    unavailable: bool = False
    placeholder: str = UNAVAILABLE

    kind: ClassVar[str] = "debezium"
    unknown: ClassVar[str] = "it is not a Debezium event: it lacks a known 'op', or the row in 'after'"
    hidden: ClassVar[str] = "its table's replica identity is not full"
    keyless: ClassVar[str] = ": the replica identity of its table must include the key"

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check_option_values(decimals=MODES, binary=BINARIES)
        if not isinstance(self.placeholder, str) or not self.placeholder:
            found = f"placeholder={self.placeholder!r}"
            raise SpecError("dd.formats.debezium", found, "pass the placeholder text of the connector")

    @property
    def leaves_out(self) -> bool:
        """Whether a column with an unavailable value keeps its stored value."""
        return self.unavailable

    @property
    def usual(self) -> CellEncoding:
        """Encoding of cells in messages without a schema."""
        return CellEncoding(decimals=self.decimals, binary=self.binary)

    def read(self, messages: Messages, target: MessageTarget, bad: BadMessages) -> EnvelopeEvents:
        """Read the events of messages, and mark unavailable values as absent.  See `Enveloped`."""
        made = (
            self._read_flattened_messages(messages, target)
            if self.flattened
            else self._read_envelopes(messages, target)
        )
        absent, inside = dict[str, Bools](), made.inside
        for name in target.columns.names:
            if (here := self._mark_unavailable_cells(inside.get_cells(*made.after, name))).any():
                absent[name] = here
                inside = inside._replace(body=_set_cells_to_null(inside.body, (*made.after, name), here))
        return made._replace(inside=inside, absent=absent or None)

    @property
    def row_path(self) -> Path:
        """Path of the row in a message."""
        return () if self.flattened else ("after",)

    def columns(self, messages: Messages, known: Collection[str] = ()) -> dict[str, int]:
        """Return the columns of the rows, without the ``__`` columns of flattened messages.  See `Format`."""
        found = super().columns(messages, known)
        return {name: row for name, row in found.items() if not (self.flattened and name.startswith("__"))}

    def sources(self, value: pa.Array) -> dict[str, pa.Array]:
        """Return the table of each message.  See `Enveloped`."""
        if self.flattened:
            return self._read_flat_sources(parse_messages(value, dict.fromkeys(_FLAT, TEXT)), SOURCE[4:])
        inside = parse_messages(value, {"source": dict.fromkeys(SOURCE[4:], TEXT)})
        return {name: inside.get_cells("source", name) for name in SOURCE[4:]}

    @staticmethod
    def _read_flat_sources(inside: ParsedMessages, names: Sequence[str]) -> dict[str, pa.Array]:
        """Return the ``source`` fields of flattened messages."""
        return {
            name: pc.coalesce(*(inside.get_cells(f"__{prefix}{name}").cast(pa.string()) for prefix in ("", "source_")))
            for name in names
        }

    def examples(self, values: pa.Array) -> ExampleRows:
        """Return the new rows of changes, and the old rows of deletes.  See `Format`."""
        return (
            find_example_rows(values, ["$"])
            if self.flattened
            else find_example_rows(values, ["$.after", "$.before"], ("after",))
        )

    def _read_envelopes(self, messages: Messages, target: MessageTarget) -> EnvelopeEvents:
        """Read the events of messages with an envelope."""
        rows = self._build_row_shape(target)
        before = {name: rows[name] for name in (*target.key, *target.deciding)}
        source = dict.fromkeys(SOURCE[0 if target.ordered else 4 :], TEXT)
        inside = parse_messages(
            messages.value, {"op": TEXT, "after": rows, "before": before, "source": source}, messages.exact
        )
        codes = _map_operations_to_codes(inside.get_cells("op"), messages.value)
        missing = (codes == UPSERT) & np.asarray(inside.get_cells("after").is_null())
        codes[missing] = UNKNOWN
        found = {name: inside.get_cells("source", name) for name in source}
        fresh = _mark_row_creations(inside.get_cells("op"))
        return EnvelopeEvents(inside, codes, ("after",), ("before",), found, np.arange(messages.rows), fresh=fresh)

    def _build_row_shape(self, target: MessageTarget) -> dict[str, Any]:
        """Return the JSON shape of rows.  The shape allows a placeholder in place of an object or a map."""
        rows = {field.name: build_json_shape(field.type) for field in target.columns}
        return {
            name: shape | {self.placeholder: TEXT} if isinstance(shape, dict) else shape for name, shape in rows.items()
        }

    def _read_flattened_messages(self, messages: Messages, target: MessageTarget) -> EnvelopeEvents:
        """Read the events of flattened messages, with the ``__`` columns of the envelope."""
        rows = self._build_row_shape(target)
        shape = dict.fromkeys([*_FLAT, "__deleted", "__op"], TEXT) | rows
        inside = parse_messages(messages.value, shape, messages.exact)
        codes = np.full(messages.rows, UPSERT)
        operations = inside.get_cells("__op")
        if operations.null_count < messages.rows:
            told = _map_operations_to_codes(operations, messages.value)
            codes = np.where(np.asarray(operations.is_valid()), told, codes)
        codes[np.asarray(pc.fill_null(pc.equal(inside.get_cells("__deleted").cast(pa.string()), "true"), False))] = (
            DELETE
        )
        codes[np.asarray(inside.body.is_null())] = TOMBSTONE
        found = self._read_flat_sources(inside, SOURCE)
        return EnvelopeEvents(
            inside, codes, (), (), found, np.arange(messages.rows), fresh=_mark_row_creations(operations)
        )

    def _mark_unavailable_cells(self, cells: pa.Array) -> Bools:
        """Mark the cells that are placeholders.

        Only cells that are as long as a placeholder are compared with the placeholder.
        """
        here = np.zeros(len(cells), np.bool_)
        if pat.is_list(cells.type):
            self._mark_placeholder_lists(cells, here)
        elif pat.is_struct(cells.type) and cells.type.get_field_index(self.placeholder) >= 0:
            here |= np.asarray(pc.struct_field(cells, self.placeholder).is_valid())
        elif is_text(cells.type) or pat.is_binary(cells.type):
            lengths = pc.binary_length(cells)
            long = pc.is_in(lengths, pa.array({len(each) for each in self._placeholder_texts}, lengths.type))
            if pc.any(long).as_py():
                rows = np.flatnonzero(np.asarray(long))
                here[rows] = np.asarray(
                    pc.is_in(cells.take(pa.array(rows)).cast(pa.binary()), pa.array(self._placeholder_texts))
                )
        return here

    def _mark_placeholder_lists(self, cells: pa.Array, here: Bools) -> None:
        """Mark lists that hold the placeholder, as one text or as one element for each byte of the placeholder."""
        sizes = pc.list_value_length(cells)
        if (single := np.flatnonzero(np.asarray(pc.fill_null(pc.equal(sizes, 1), False)))).size:
            here[single] = self._mark_unavailable_cells(cells.take(pa.array(single)).flatten())
        count = len(self.placeholder.encode())
        if (rows := np.flatnonzero(np.asarray(pc.fill_null(pc.equal(sizes, count), False)))).size:
            values = cells.take(pa.array(rows)).flatten()
            if not (pat.is_nested(values.type) or pat.is_binary(values.type)):
                texts = np.array(pc.ascii_trim(values.cast(pa.string()), '"').to_pylist(), object)
                grid = texts.reshape(rows.size, count)
                here[rows] |= np.any(
                    [(grid == np.array(way, object)).all(axis=1) for way in self._placeholder_lists], axis=0
                )

    @property
    def _placeholder_lists(self) -> list[list[str]]:
        """Forms of the placeholder as a list that has a number, a decimal or true for each byte of the placeholder."""
        signed = np.frombuffer(self.placeholder.encode(), np.int8).tolist()
        coded = [base64.b64encode(bytes([each & 255])).decode() for each in signed]
        objects = [json.dumps({"scale": 0, "value": each}, separators=(",", ":")) for each in coded]
        return [list(map(str, signed)), [f"{each}.0" for each in signed], coded, objects, ["true"] * len(signed)]

    @cached_property
    def _placeholder_texts(self) -> list[bytes]:
        """Forms of the placeholder as text: plain, as encoded bytes, as a UUID, and as JSON lists and objects."""
        raw = self.placeholder.encode()
        uuid = UUID(bytes=hashlib.md5(raw, usedforsecurity=False).digest(), version=3)
        plain = [
            self.placeholder,
            base64.b64encode(raw).decode(),
            base64.urlsafe_b64encode(raw).decode(),
            raw.hex(),
            str(uuid),
        ]
        lists = [[each] for each in plain[:2] + plain[4:]] + [self._placeholder_lists[2]]
        written = [json.dumps(each, separators=(",", ":"), ensure_ascii=False) for each in lists]
        written += [f"[{','.join(self._placeholder_lists[way])}]" for way in (0, 1, 3, 4)]
        pair = {self.placeholder: self.placeholder}
        written += [json.dumps(pair, ensure_ascii=False, separators=(",", between)) for between in (":", ": ")]
        return [each.encode() for each in (*plain, *written)]


def _mark_row_creations(operations: pa.Array) -> Bools:
    """Mark the operations that create a row.

    For a changed key, Debezium writes ``d`` and then ``c``. So if a row with operation ``c`` has an unavailable value,
    the key of the row was changed.
    """
    return np.asarray(pc.fill_null(pc.is_in(operations.cast(pa.string()), pa.array(["c", "r"])), False))


def _map_operations_to_codes(operations: pa.Array, value: pa.Array) -> Ints:
    """Map operations to codes; a message without a value is a tombstone."""
    codes = map_operation_codes(operations, _CODES)
    none = np.asarray(value.is_null())
    if is_text(value.type) and (codes == UNKNOWN).any():
        rows = np.flatnonzero((codes == UNKNOWN) & ~none)
        text = pc.utf8_trim_whitespace(value.take(pa.array(rows)))
        none = none.copy()
        none[rows] = np.asarray(pc.or_(pc.equal(text, "null"), pc.match_substring_regex(text, _NULL)))
    codes[none] = TOMBSTONE
    return codes


_NULL: Final = r'^\{\s*"schema"\s*:\s*null\s*,\s*"payload"\s*:\s*null\s*\}$'


def _set_cells_to_null(cells: pa.Array, path: Sequence[str], here: Bools) -> pa.Array:
    """Set the marked cells to null.  ``path`` names the nested struct fields that lead to the cells."""
    if not path:
        return pc.if_else(pa.array(here), pa.scalar(None, cells.type), cells)
    pairs = zip(cells.type, cells.flatten(), strict=True)
    parts = [_set_cells_to_null(part, path[1:], here) if field.name == path[0] else part for field, part in pairs]
    return pa.StructArray.from_arrays(parts, fields=list(cells.type), mask=cells.is_null())
