"""Decode wal2json's messages.  A message is a transaction of Postgres (version 1) or a change (version 2).

Column names and values are in parallel lists. A column that an update does not name is an unchanged TOAST value, not a
null. ``oldkeys`` or ``identity`` has the old key of a row, or the complete old row if the replica identity is full. If
an update does not name a column, ddflow takes the value of the column from the old row. Begin, commit and user messages
have no effect.

Events are ordered by ``lsn`` or ``nextlsn`` (option ``include-lsn``), and then by their index in the message. Without
an LSN, events are ordered by the offset.
"""

import json
import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ddflow.columns.schema import is_text
from ddflow.connectors.formats.base import BadMessages, MessageTarget
from ddflow.connectors.formats.cells import CellEncoding, build_json_shape
from ddflow.connectors.formats.envelope import Ints, ParsedMessages, get_cells_at_path, parse_messages
from ddflow.connectors.formats.enveloped import (
    DELETE,
    NOTHING,
    TRUNCATE,
    UNKNOWN,
    UPSERT,
    Enveloped,
    EnvelopeEvents,
    map_operation_codes,
)
from ddflow.connectors.formats.messages import Messages, compute_table_mask
from ddflow.connectors.formats.parse import (
    LOOSE,
    QUOTED,
    TEXT,
    WORDS,
    Bools,
    evaluate_sql,
    evaluate_sql_on_json,
    mark_lossy_numbers,
    mark_maybe_lossy_cells,
    parse_objects,
    quote_sql_literal,
)
from ddflow.connectors.formats.row_columns import ColumnNameLists, parse_sql_type

_CODES: Final = {
    **{"I": UPSERT, "U": UPSERT, "D": DELETE, "T": TRUNCATE, "B": NOTHING, "C": NOTHING, "M": NOTHING},
    **{"insert": UPSERT, "update": UPSERT, "delete": DELETE, "truncate": TRUNCATE, "message": NOTHING},
}
_VALUE: Final = r'[^{}]*"value"\s*:\s*'
_OTHER: Final = r'"columnvalues"|"value"\s*:[^{}]*"name"'
"""Pattern for messages in which a value does not follow its name: version 1, or "value" before "name"."""
_CELL: Final = {"name": TEXT, "value": LOOSE}
_CHANGE: Final = {
    **{"kind": TEXT, "schema": TEXT, "table": TEXT, "columnnames": [TEXT], "columnvalues": [LOOSE]},
    "oldkeys": {"keynames": [TEXT], "keyvalues": [LOOSE]},
}
_SHAPE: Final[dict[str, Any]] = {
    **{"action": TEXT, "schema": TEXT, "table": TEXT, "lsn": TEXT, "columns": [_CELL], "identity": [_CELL]},
    **{"nextlsn": TEXT, "change": [_CHANGE]},
}
_NAMES: Final = tuple(
    f"to_json(json_extract(v, {quote_sql_literal(path)}))::varchar"
    for path in ("$.columns[*].name", "$.change[*].columnnames")
)
"""Expressions for the column names in a message, for version 2 and version 1."""
_COLUMNS: Final = """
    case when json_exists(v, '$.change')
    then to_json(list_distinct(list_transform(json_extract(v, '$.change[*]'), lambda c:
        [c->'$.schema', c->'$.table', c->'$.columnnames', c->'$.columntypes'])))::varchar
    when len(json_extract(v, '$.columns[*].name')) > 0
    then to_json([[v->'$.schema', v->'$.table', to_json(json_extract(v, '$.columns[*].name')),
        to_json(list_transform(json_extract(v, '$.columns[*]'), lambda c: c->'$.type'))]])::varchar end"""
"""Expression for the schema, table, names and types of the columns in a message."""
_LSN: Final = (
    "cast('0x' || split_part(v, '/', 1) as bigint) * 4294967296 + cast('0x' || split_part(v, '/', 2) as bigint)"
)


_PLACE: Final = re.compile("[0-9A-Fa-f]{1,8}/[0-9A-Fa-f]{1,8}")
"""Log position of Postgres."""


class NamedValues(NamedTuple):
    """Flattened lists of names and values.  Each element has the index of its event (``of``), a name and a value."""

    of: Ints
    names: pa.Array
    values: pa.Array

    def get_values(self, name: str, rows: int) -> tuple[pa.Array, Bools]:
        """Return the values of a column as JSON, and mark the events that have the column."""
        at = np.full(rows, -1)
        here = np.flatnonzero(np.asarray(pc.fill_null(pc.equal(self.names, name), False)))
        at[self.of[here]] = here
        there = at >= 0
        if not len(self.values):
            return pa.nulls(rows, pa.string()), there
        return self.values.take(pa.array(np.maximum(at, 0), mask=~there)), there


@dataclass(frozen=True, repr=False, kw_only=True)
class wal2json(Enveloped):
    """Format of wal2json's messages.  A message is a transaction (version 1) or a change (version 2).

    Parameters
    ----------
    table, unavailable, on_bad
        As in `debezium`.  A column that an update does not name is unavailable.

    Raises
    ------
    SpecError
        For an invalid option.

    Notes
    -----
    Events are ordered by ``lsn`` or ``nextlsn`` (option ``include-lsn``).  Without an LSN, events are ordered by
    offset.

    Examples
    --------
    >>> wal2json(unavailable=True)
    dd.formats.wal2json(unavailable=True)

    >>> from ddflow.connectors.formats.base import decode_messages, build_events_schema
    >>> format, columns = wal2json(), pa.schema({"id": pa.int64(), "v": pa.string()})
    >>> target = MessageTarget("'o'", columns, ("id",), (), True, build_events_schema(format, columns, True))
    >>> cells = '[{"name": "id", "value": 1}, {"name": "v", "value": "x"}]'
    >>> two = f'{{"action": "I", "table": "o", "lsn": "0/A", "columns": {cells}}}'
    >>> gone = '{"kind": "delete", "table": "o", "oldkeys": {"keynames": ["id"], "keyvalues": [1]}}'
    >>> one = f'{{"nextlsn": "0/B", "change": [{gone}]}}'
    >>> decode_messages(format, pa.table({"value": [two, one]}), target).rows.to_pylist()[1]
    {'id': 1, 'v': None, '_position': 11, '_row': 0, '_deleted': True}
    """

    unavailable: bool = False

    kind: ClassVar[str] = "wal2json"
    unknown: ClassVar[str] = "it is not a wal2json event: it lacks a known 'action', or 'change'"
    hidden: ClassVar[str] = "the source did not write it"
    keyless: ClassVar[str] = ": the replica identity of its table must include the key"
    usual: ClassVar[CellEncoding] = CellEncoding(decimals="string", binary="hex")

    @property
    def leaves_out(self) -> bool:
        """Whether an unavailable column keeps its stored value."""
        return self.unavailable

    def columns(self, messages: Messages, known: Collection[str] = ()) -> dict[str, int]:
        """Return the columns of the rows, with the names from the messages.  See `Format`."""
        if not is_text(messages.value.type):
            return {}
        value, found, left = messages.value, list[Ints](), np.arange(messages.rows)
        for path in _NAMES:
            names, _ = evaluate_sql_on_json(value if left.size == messages.rows else value.take(pa.array(left)), path)
            found.append(left[ColumnNameLists(names, known).rows])
            left = left[np.asarray(pc.fill_null(pc.equal(names, "[]"), False))]
        rows = np.sort(np.concatenate(found))
        told = self._find_column_types(value.take(pa.array(rows))) if rows.size else {}
        return {name: int(rows[row]) for name, (row, _) in told.items() if name not in known}

    def place(self, value: Any) -> str | None:
        """Describe the log position of a message.  See `Format`."""
        try:
            said = json.loads(value)
            lsn = said.get("lsn") or said.get("nextlsn")
        except (TypeError, ValueError, AttributeError, RecursionError):
            return None
        return f"{lsn} of the log" if isinstance(lsn, str) and _PLACE.fullmatch(lsn) else None

    def kinds(self, messages: Messages, names: Sequence[str]) -> dict[str, pa.DataType]:
        """Return Arrow types for columns, from the Postgres types in the messages.  See `Format`."""
        told = self._find_column_types(messages.value)
        return {name: parse_sql_type(told[name][1]) for name in names}

    def _find_column_types(self, value: pa.Array) -> dict[str, tuple[int, str]]:
        """Map each column to the index of the first message that has the column, and to the type in that message."""
        found = dict[str, tuple[int, str]]()
        texts = evaluate_sql_on_json(value, _COLUMNS)[0]
        for text in pc.unique(texts.drop_null()).to_pylist():
            row = int(pc.index(texts, text).as_py())
            for schema, table, names, types in json.loads(text):
                source = {"table": [table], "schema": [schema], "db": [None]}
                if (
                    self.table is None
                    or compute_table_mask(self.table, {n: pa.array(c, pa.string()) for n, c in source.items()})[0]
                ):
                    for name, kind in zip(names or (), types or [""] * len(names or ()), strict=True):
                        found.setdefault(str(name), (row, str(kind)))
        return found

    def read(self, messages: Messages, target: MessageTarget, bad: BadMessages) -> EnvelopeEvents:
        """Read the events of messages.  See `Enveloped`."""
        value, exact = messages.value, np.broadcast_to(messages.exact, messages.rows)
        whole = parse_messages(value, _SHAPE, exact)
        of, changes = _unnest_changes(whole)
        inner = whole.body.take(pa.array(of))
        one = np.asarray(changes.is_valid())
        names = {"kind": "action", "table": "table", "schema": "schema"}
        told = {
            name: pc.coalesce(get_cells_at_path(changes, [name]), get_cells_at_path(inner, [two]))
            for name, two in names.items()
        }
        codes = map_operation_codes(told["kind"], _CODES)
        empty = np.asarray(pc.fill_null(pc.equal(pc.list_value_length(get_cells_at_path(inner, ["change"])), 0), False))
        codes[empty] = NOTHING
        now, had = _flatten_names_and_values(changes, inner, ("columnnames", "columnvalues"), "columns"), None
        had = _flatten_names_and_values(
            get_cells_at_path(changes, ["oldkeys"]), inner, ("keynames", "keyvalues"), "identity"
        )
        if now is None or had is None:
            codes[codes < NOTHING], now, had = UNKNOWN, now or _NONE, had or _NONE
        after, before, absent = {}, {}, dict[str, Bools]()
        rounded = np.zeros(messages.rows, np.bool_)
        update = np.asarray(pc.is_in(told["kind"], pa.array(["U", "update"])))
        for field in target.columns:
            cells, there = now.get_values(field.name, of.size)
            if (unwritten := ~there & update).any():
                old, known = had.get_values(field.name, of.size)  # it has unwritten values if identity is full
                cells, unwritten = pc.if_else(pa.array(unwritten), old, cells), unwritten & ~known
            if unwritten.any():
                absent[field.name] = unwritten
            after[field.name], _ = parse_objects(cells, build_json_shape(field.type), exact[of])
            rounded |= _mark_rounded_messages(cells, field, of, value, exact)
        if rounded.any():
            messages.exact = exact | rounded
            return self.read(messages, target, bad)
        for name in (*target.key, *target.deciding):
            before[name], _ = parse_objects(
                had.get_values(name, of.size)[0], build_json_shape(target.columns.field(name).type), exact[of]
            )
        parts = [pa.StructArray.from_arrays([*each.values()], names=[*each]) for each in (after, before)]
        inside = ParsedMessages(pa.StructArray.from_arrays(parts, names=["after", "before"]), whole.wrong[of], ())
        place = np.arange(of.size) - np.searchsorted(of, of)
        lsn = pc.coalesce(get_cells_at_path(inner, ["lsn"]), get_cells_at_path(inner, ["nextlsn"]))
        plain = pc.if_else(pc.match_substring_regex(lsn, f"^{_PLACE.pattern}$"), lsn, pa.scalar(None, lsn.type))
        source = {
            "lsn": evaluate_sql(plain, _LSN).cast(pa.string()),
            "row": pa.array(np.where(one, place, 0)).cast(pa.string()),
        }
        source |= {"table": told["table"], "schema": told["schema"], "db": pa.nulls(of.size, pa.string())}
        return EnvelopeEvents(inside, codes, ("after",), ("before",), source, of, absent or None)


_NONE: Final = NamedValues(np.empty(0, np.int64), pa.array([], pa.string()), pa.array([], pa.string()))


def _mark_rounded_messages(cells: pa.Array, field: pa.Field, of: Ints, value: pa.Array, exact: Bools) -> Bools:
    """Mark the messages with a number that may have lost required digits, except messages already parsed exactly.

    ``of``: the index of the message of each cell.
    """
    kind = build_json_shape(field.type)
    out: Bools = np.zeros(len(value), np.bool_)
    if kind in (QUOTED, WORDS):
        rows = np.setdiff1d(of[mark_maybe_lossy_cells(cells, kind, kind)], np.flatnonzero(exact))
        out[rows] = mark_lossy_numbers(value.take(pa.array(rows)), kind, [field.name], _VALUE, _OTHER)
    return out


def _unnest_changes(whole: ParsedMessages) -> tuple[Ints, pa.Array]:
    """Return for each event the index of its message, and its element of ``change`` (null in version 2)."""
    lists = whole.get_cells("change")
    sizes = np.maximum(np.asarray(pc.fill_null(pc.list_value_length(lists), 1)).astype(np.int64), 1)
    of = np.repeat(np.arange(sizes.size), sizes)
    begins = np.asarray(lists.offsets)[:-1].astype(np.int64)
    place = np.arange(of.size) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    there = np.asarray(pc.fill_null(pc.greater(pc.list_value_length(lists), 0), False))[of]
    if not len(lists.values):
        return of, pa.nulls(of.size, lists.type.value_type)
    return of, lists.values.take(pa.array(np.where(there, begins[of] + place, 0), mask=~there))


def _flatten_names_and_values(changes: pa.Array, inner: pa.Array, one: tuple[str, str], two: str) -> NamedValues | None:
    """Flatten the names and values of messages of both versions.

    Return None if a message has more names than values, or more values than names.
    """
    names, values = (get_cells_at_path(changes, [name]) for name in one)
    if not pc.equal(pc.list_value_length(names), pc.list_value_length(values)).fill_null(True).to_numpy(False).all():
        return None
    cells = get_cells_at_path(inner, [two])
    parts = [(names, names.flatten(), values.flatten()), (cells, *(pc.struct_field(cells.flatten(), n) for n in _CELL))]
    of = [np.asarray(pc.list_parent_indices(lists)).astype(np.int64) for lists, _, _ in parts]
    every = (pa.concat_arrays([part[n].cast(pa.string()) for part in parts]) for n in (1, 2))
    return NamedValues(np.concatenate(of), *every)
