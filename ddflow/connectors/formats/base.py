"""Define the protocol of message formats, and decode a batch of messages to a batch of upserts.

`decode_messages` calls a `Format` and checks its upserts. `MissingColumnFinder` warns if no message has a declared
column, or if no message belongs to the table that the format names.

Guarantees: the same batch and the same `MessageTarget` give the same events. An unreadable message raises `BadMessage`
or becomes a row with the `BAD` column, according to ``on_bad``.

Limits: the first table that a message names becomes the table of the input. From then on, messages of other tables are
bad. A tombstone takes its position from a neighbouring message of its batch. A tombstone directly after the delete of
its key is ignored, but only if both messages are in the same batch.
"""

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from types import MappingProxyType
from typing import Any, ClassVar, Final, Literal, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.types as pat

from ddflow.columns.casts import format_type
from ddflow.columns.names import did_you_mean
from ddflow.columns.wider import find_type_for_value, find_widening
from ddflow.connectors.formats.messages import (
    POSITION,
    ROW,
    Messages,
    find_nearest_table,
    is_table_name,
    wrap_rows_as_messages,
)
from ddflow.connectors.formats.parse import Bools, import_duckdb
from ddflow.connectors.formats.row_columns import (
    ExampleRows,
    Own,
    Path,
    filter_messages_with_values,
    find_fields_at_path,
    find_row_columns,
    guess_column_types,
)
from ddflow.errors import BadMessage, ErrorText, Option, Row, SpecError, WidenFix, format_location

Ints = np.ndarray[Any, np.dtype[np.int64]]
DELETED: Final = "_deleted"
"""Column of events that marks deletes."""
BAD: Final = "_bad"
"""Column of events with the description of an unreadable message, if the format drops unreadable messages."""
ABSENT: Final = "_absent"
"""Column of events that lists the columns without a value, if the format can omit values."""
OWN: Final = (POSITION, ROW, DELETED, ABSENT, BAD)
"""Columns that a format adds to events."""
BAD_TYPE: Final = pa.struct({"message": pa.binary(), "position": pa.string(), "reason": pa.string()})
OnBad = Literal["stop", "drop"]
_BEYOND: Final = re.compile(r"-?infinity|.* BC|[0-9]{5,}-.*")
"""Timestamps of Postgres that Arrow cannot hold."""
_FRACTION: Final = re.compile(r"[0-9][.eE]")


class MessageTarget(NamedTuple):
    """Description of the events to decode from a batch of messages.

    ``what``: the name of the input in errors.  ``columns``: the declared columns.  ``key``: the key columns.
    ``deciding``: columns besides the key that hold the order or the time of events; deletes need values in them too.
    ``ordered``: whether events have the order columns of the format.  ``out``: the schema of events.  ``keyed``:
    whether an event with a null key is bad.  ``table``: the table of earlier messages, None if no message named one.
    ``history``: whether rows are versions, so that a message cannot delete versions from other messages.

    >>> class Lines(Format):
    ...     '''Every message is the value of a row without a key.'''
    ...     kind = "lines"
    ...     def upserts(self, messages, target, bad):
    ...         return Upserts({"line": messages.value}, np.zeros(messages.rows, np.bool_), {})
    >>> out = build_events_schema(Lines(), [("line", pa.string())])
    >>> target = MessageTarget("'log'", pa.schema({"line": pa.string()}), ("line",), (), False, out)
    >>> decode_messages(Lines(), pa.table({"value": ["a", "b"]}), target).rows.to_pylist()
    [{'line': 'a', '_deleted': False}, {'line': 'b', '_deleted': False}]
    """

    what: str
    columns: pa.Schema
    key: tuple[str, ...]
    deciding: tuple[str, ...]
    ordered: bool
    out: pa.Schema
    keyed: bool = False
    table: str | None = None
    history: bool = False


class Truncate(NamedTuple):
    """Delete of all keys whose order is below ``order``.

    ``row``: the index of the first event after the truncate; in `Upserts`, the index of its message.  ``place``: the
    position of the message, for errors.
    """

    row: int
    order: dict[str, Any]
    place: str | Row


class Upserts(NamedTuple):
    """Upserts that a format decodes.  ``columns``: the cells of each column.  ``deleted``: marks the deletes.

    ``order``: the order columns, empty if the format sets no order.  ``at``: the index of the message of each upsert,
    ascending; None if every message is one upsert.  ``absent``: for each column, marks the upserts whose message has no
    value for it.  ``truncates``: the truncates among the messages.  ``table``: the table of the messages, None if
    unknown.  ``tables``: see `DecodedEvents`.
    """

    columns: dict[str, pa.Array]
    deleted: Bools
    order: dict[str, pa.Array]
    at: Ints | None = None
    absent: dict[str, Bools] | None = None
    truncates: tuple[Truncate, ...] = ()
    table: str | None = None
    tables: Mapping[str, int] = MappingProxyType({})


class DecodedEvents(NamedTuple):
    """Events decoded from a batch of messages.

    ``rows``: a table with the columns of `MessageTarget.out`.  ``truncates``: the truncates between the rows.
    ``at``: the index of the message of each row.  ``table``: the table of the messages so far.  ``tables``: the number
    of changes of each table, counted only until the first message of the named table.
    """

    rows: pa.Table
    truncates: tuple[Truncate, ...]
    at: Ints
    table: str | None = None
    tables: Mapping[str, int] = MappingProxyType({})


class BadMessages:
    """Unreadable messages of a batch, each with the first reason that was found."""

    def __init__(self, rows: int) -> None:
        self.mask: Bools = np.zeros(rows, np.bool_)
        self.reasons: dict[int, str] = {}
        self.narrow: dict[int, tuple[pa.Field, str]] = {}
        """For each message with a value that does not fit its column: the column and the value, by message index."""

    def mark(self, rows: Any, reason: Any) -> None:
        """Mark messages as bad by index.

        ``reason``: a text, or a function that returns it for an index in ``rows``.
        """
        for n, row in enumerate(np.asarray(rows).tolist()):
            if not self.mask[row]:
                self.mask[row] = True
                self.reasons[row] = reason(n) if callable(reason) else reason


@dataclass(frozen=True, kw_only=True)
class Format:
    """Base of all formats in `ddflow.formats`.

    Attributes
    ----------
    on_bad : {"stop", "drop"}
        What to do with an unreadable message: refuse the step, or report the message as bad.
    """

    on_bad: OnBad = field(default="stop")

    kind: ClassVar[str]
    order: ClassVar[Any] = ()
    """Order columns that the format adds, if the user declares no order."""
    of_rows: ClassVar[bool] = False
    """Whether the format takes rows with an operation column instead of messages."""

    def __post_init__(self) -> None:
        self._check_option_values(on_bad=("stop", "drop"))

    def _check_option_values(self, **options: tuple[str, ...]) -> None:
        """Raise `SpecError` for an option with an unknown value."""
        for name, known in options.items():
            if (value := getattr(self, name)) not in known:
                raise SpecError(f"dd.formats.{self.kind}", Option(name, value), f"use one of {list(known)}")

    def needs(self) -> None:
        """Raise `MissingExtra` if the library that reads JSON is not installed."""
        import_duckdb()

    @property
    def leaves_out(self) -> bool:
        """Whether an event can omit cells.  An omitted cell keeps its stored value."""
        return False

    @property
    def of_tables(self) -> bool:
        """Whether messages can name their table."""
        return False

    @property
    def asked(self) -> str | None:
        """Table that the options name, or None.  The format ignores messages of other tables."""
        return None

    def upserts(self, messages: Messages, target: MessageTarget, bad: BadMessages) -> Upserts:
        """Convert messages to upserts.  O(bytes).  The method marks unreadable messages in ``bad``."""
        raise NotImplementedError

    @property
    def row_path(self) -> Path | None:
        """Path of the row in a message; None if the path differs between messages."""
        return None

    def columns(self, messages: Messages, known: Collection[str] = ()) -> dict[str, int]:
        """Return the columns of the rows in messages, except the columns in ``known``.  O(bytes).

        The result maps each column to the index of the first message that has it.
        """
        path = self.row_path
        return {} if path is None else find_row_columns(messages.value, path, known, self.owner(messages.value))

    def place(self, value: Any) -> str | None:
        """Describe the log position that a message contains; None if it contains no position."""
        del value
        return None

    def owner(self, value: pa.Array) -> Own | None:
        """Return a function that marks messages of the table in the options; None if the options name no table.

        O(1).
        """
        del value
        return None

    def kinds(self, messages: Messages, names: Sequence[str]) -> dict[str, pa.DataType]:
        """Return the types of the named columns, if a schema or a value determines them.  O(bytes).

        Raises `SchemaMismatch` if the values of a column have no type in common.
        """
        value, path = messages.value, self.row_path or ()
        if pat.is_struct(value.type):
            return {f.name: f.type for f in find_fields_at_path(value.type, path) if f.name in names}
        value = filter_messages_with_values(value, path, names)
        if len(value) and (own := self.owner(value)) is not None:
            value = value.filter(pa.array(own(np.arange(len(value)))))
        if not len(value):
            return {}
        found = self.examples(value.drop_null())
        if found is None:
            return {}
        return guess_column_types(found.rows, [each for each in names if each not in found.types], messages.what) | {
            name: kind for name, kind in found.types.items() if name in names
        }

    def examples(self, values: pa.Array) -> ExampleRows | None:
        """Return example rows from the values of messages; None if the format supports no examples.  O(bytes)."""
        del values
        return None

    def to_json(self) -> dict[str, Any]:
        """Return the kind, and the options that differ from their defaults."""
        out: dict[str, Any] = {"kind": self.kind}
        for each in fields(self):
            value = getattr(self, each.name)
            if value != each.default:
                out[each.name] = value
        return out

    def __repr__(self) -> str:
        """Return the call that creates the format."""
        given = {name: value for name, value in self.to_json().items() if name != "kind"}
        return f"dd.formats.{self.kind}({', '.join(f'{name}={value!r}' for name, value in given.items())})"


def build_events_schema(format: Format, columns: Any, ordered: bool = False) -> pa.Schema:
    """Return the schema of events: the declared columns, and the columns that the format adds."""
    own = [*(format.order if ordered else ()), (DELETED, pa.bool_())]
    own += [(ABSENT, pa.list_(pa.string()))] if format.leaves_out else []
    own += [(BAD, BAD_TYPE)] if format.on_bad == "drop" else []
    return pa.schema([*columns, *own])


def decode_messages(format: Format, given: pa.Table, target: MessageTarget, first: int = 0) -> DecodedEvents:
    """Decode a table of messages to events.  ``first``: the row number of the first message.  O(bytes).

    Raises `BadMessage` for an unreadable message, unless the format drops unreadable messages.  Raises `SchemaMismatch`
    if the table lacks the columns of messages.
    """
    messages = wrap_messages(format, given, target.what, first)
    made, bad = _read_upserts(format, messages, target)
    exact = np.broadcast_to(messages.exact, messages.rows)
    if rows := [row for row, (_, cell) in bad.narrow.items() if _FRACTION.search(cell) and not exact[row]]:
        messages.exact = exact | np.isin(np.arange(messages.rows), rows)  # parse exactly, for exact numbers in errors
        made, bad = _read_upserts(format, messages, target)
    if target.history:
        made = _drop_delete_values(made, target, bad)
    at: Ints = np.arange(messages.rows) if made.at is None else made.at
    if target.keyed and format.on_bad == "drop":
        for name in target.key:
            bad.mark(at[np.flatnonzero(np.asarray(made.columns[name].is_null()))], f"its key {name!r} is null")
    table = made.table or target.table
    if not bad.reasons:
        return DecodedEvents(
            _build_events_table(made, at, target), _renumber_truncates(made.truncates, at), at, table, made.tables
        )
    if format.on_bad == "stop":
        row = min(bad.reasons)
        more = f" ({len(bad.reasons):,} of {messages.rows:,} messages are bad)" if len(bad.reasons) > 1 else ""
        wider, place = _suggest_wider_type(bad, row, target, format, messages), messages.locate_message(row)
        raise BadMessage(
            f"messages for {target.what}",
            ErrorText(format_location("", place, ": "), f"{bad.reasons[row]}{more}"),
            ErrorText(
                "fix the source, or skip bad messages with ",
                Option("on_bad", "drop"),
                ", which needs a new state; nothing was ingested",
                wider,
            ),
            offset="" if isinstance(place, Row) else place,
        )
    return _add_bad_message_rows(made, at, messages, bad, target)


def _read_upserts(format: Format, messages: Messages, target: MessageTarget) -> tuple[Upserts, BadMessages]:
    bad = BadMessages(messages.rows)
    bad.mark(np.flatnonzero(messages.broken), "it is not valid UTF-8")
    return format.upserts(messages, target, bad), bad


def _suggest_wider_type(
    bad: BadMessages, row: int, target: MessageTarget, format: Format, messages: Messages
) -> str | WidenFix:
    """Suggest a wider type if a value shows that the column's type became wider in the source."""
    if row not in bad.narrow:
        return ""
    field, value = bad.narrow[row]
    wide = None if field.name in (*target.key, *target.deciding) else find_type_for_value(field.type, value)
    if wide is None:
        endless = pat.is_timestamp(field.type) and _BEYOND.fullmatch(value)
        return f"; only text can hold {value}: declare {field.name!r} as str, in a new state" if endless else ""
    if pat.is_decimal(wide):
        alone = Messages(messages.table.slice(row, 1), messages.what, messages.first + row)
        kinds = format.kinds(alone, [field.name]) if field.name in format.columns(alone) else {}
        told = kinds.get(field.name, wide)
        wide = told if pat.is_decimal(told) and find_widening(wide, told) is not None else wide
    return WidenFix({field.name: format_type(wide)})


def wrap_messages(format: Format, given: pa.Table, what: str, first: int = 0) -> Messages:
    """Convert a table of messages, or of rows if the format takes rows, to `Messages`.

    Raises the errors of `Messages`.
    """
    messages = Messages(wrap_rows_as_messages(given) if format.of_rows else given, what, first)
    messages.own = format.place
    return messages


def _drop_delete_values(made: Upserts, target: MessageTarget, bad: BadMessages) -> Upserts:
    """Set all columns of deletes to null except the key and order columns, and mark truncates as bad.

    A truncate ends the versions of keys that it does not name.
    """
    bad.mark([each.row for each in made.truncates], "it is a truncate, which does not name the keys whose versions end")
    if not made.deleted.any():
        return made._replace(truncates=())
    rows, kept = pa.array(np.arange(made.deleted.size), mask=made.deleted), (*target.key, *target.deciding)
    cells = {name: cell if name in kept else cell.take(rows) for name, cell in made.columns.items()}
    return made._replace(columns=cells, truncates=())


def refuse_truncates(made: DecodedEvents, what: str) -> DecodedEvents:
    """Return the events unchanged, or raise `BadMessage` if one of the events is a truncate."""
    for each in made.truncates:
        remedy = "pass this batch to a step of an engine; nothing was ingested"
        raise BadMessage(
            f"messages for {what}",
            format_location("", each.place, ": ") + "it is a truncate, which also deletes keys outside this batch",
            remedy,
        )
    return made


def _build_events_table(made: Upserts, at: Ints, target: MessageTarget) -> pa.Table:
    columns = {**made.columns, **made.order, DELETED: pa.array(made.deleted)}
    if ABSENT in target.out.names:
        columns[ABSENT] = _list_absent_columns(made.absent or {}, at.size)
    if BAD in target.out.names:
        columns[BAD] = pa.nulls(at.size, BAD_TYPE)
    return pa.Table.from_arrays([columns[name] for name in target.out.names], schema=target.out)


def _add_bad_message_rows(
    made: Upserts, at: Ints, messages: Messages, bad: BadMessages, target: MessageTarget
) -> DecodedEvents:
    """Add a row for each unreadable message, in the order of the messages."""
    good = np.flatnonzero(~bad.mask[at])
    rows = np.array(sorted(bad.reasons), np.int64)
    told = {
        "message": messages.get_original_bytes(rows),
        "position": pa.array([messages.describe_position(int(row)) for row in rows], pa.string()),
        "reason": pa.array([bad.reasons[int(row)] for row in rows], pa.string()),
    }
    marks = pa.StructArray.from_arrays(list(told.values()), fields=list(BAD_TYPE))
    nulls = [marks if field.name == BAD else pa.nulls(rows.size, field.type) for field in target.out]
    table = pa.concat_tables(
        [_build_events_table(made, at, target).take(pa.array(good)), pa.Table.from_arrays(nulls, schema=target.out)]
    )
    every = np.concatenate([at[good], rows])
    order = np.argsort(every, kind="stable")
    cuts = _renumber_truncates(made.truncates, every[order])
    return DecodedEvents(table.take(pa.array(order)), cuts, every[order], made.table or target.table, made.tables)


def _renumber_truncates(truncates: tuple[Truncate, ...], at: Ints) -> tuple[Truncate, ...]:
    """Set ``row`` of each truncate to the index of the first event after the message of the truncate."""
    return tuple(each._replace(row=int(np.searchsorted(at, each.row))) for each in truncates)


def _list_absent_columns(cells: dict[str, Bools], rows: int) -> pa.Array:
    """List the absent columns of each row; null if no column is absent."""
    counts, names = np.zeros(rows, np.int64), list(cells)
    for each in cells.values():
        counts += each
    ends = np.concatenate([[0], np.cumsum(counts)]).astype(np.int32)
    grid = np.array([cells[name] for name in names]).reshape(len(names), rows)
    _, which = np.nonzero(grid.T)
    values = pa.array(names, pa.string()).take(pa.array(which))
    return pa.ListArray.from_arrays(pa.array(ends), values, mask=pa.array(counts == 0))


SAMPLE: Final = 256
"""Maximum number of messages of a batch that are searched for undeclared columns."""
SHOWN: Final = 10
"""Maximum number of tables that a warning names."""


class MissingColumnFinder:
    """Finder of declared columns that no message has had so far, and of a table that no message has named so far.

    ``left``: the declared columns that no message has had and no warning has named.  ``names``: the columns that
    messages have had, for suggestions.  ``table``: the named table, None after it was found or a warning named it.
    ``tables``: the number of changes of each table.

    >>> from ddflow.connectors.formats.base import MessageTarget, decode_messages, build_events_schema
    >>> from ddflow.connectors.formats.plain import plain_json
    >>> format, columns = plain_json(), pa.schema({"id": pa.int64(), "amounts": pa.float64()})
    >>> target = MessageTarget("'t'", columns, ("id",), (), False, build_events_schema(format, columns))
    >>> came, unseen = pa.table({"value": ['{"id": 1, "amount": 2.5}']}), MissingColumnFinder(columns.names)
    >>> unseen.search_messages(format, came, decode_messages(format, came, target), "'t'")
    >>> unseen.pop_warnings()
    ["no message so far has the declared column 'amounts', so it is null: did you mean 'amount'? \
    the columns are ['id', 'amount']"]
    >>> unseen.pop_warnings()
    []
    >>> find_undeclared_columns(format, came, decode_messages(format, came, target), ["id", "amounts"], "'t'")
    ['amount']
    >>> unseen = MissingColumnFinder([], "order")
    >>> unseen.note_worker_findings([], [], {"shop.orders": 5, "shop.people": 1})
    >>> unseen.pop_warnings()
    ["no message so far is of the table 'order', so no row came: did you mean 'shop.orders'? 6 changes are of \
    ['shop.orders', 'shop.people']"]
    """

    def __init__(self, columns: Iterable[str], table: str | None = None) -> None:
        self.left, self.table = list(columns), table
        self.names, self.tables = dict[str, None](), dict[str, int]()

    def search_messages(self, format: Format, given: pa.Table, made: DecodedEvents, what: str) -> None:
        """Search messages and their events for the missing columns and the missing table.

        O(missing columns); O(bytes) if a missing column is null in all rows.
        """
        if self.table is not None:
            self._search_table(made.table, made.tables)
        rows = made.rows
        self.left = [name for name in self.left if rows.column(name).null_count == rows.num_rows]
        if not self.left or not rows.num_rows:
            return
        says = _mark_non_deletes(rows, BAD, ABSENT)
        if not says.any():
            return
        some = given if says.all() else given.take(pa.array(np.unique(made.at[says])))
        names = format.columns(wrap_messages(format, some, what))
        self.left = [name for name in self.left if name not in names]
        self.names |= dict.fromkeys(names)

    def note_worker_findings(
        self, had: Iterable[str], names: Iterable[str], tables: Mapping[str, int], table: str | None = None
    ) -> None:
        """Record the findings of other workers.

        ``had``: declared columns that messages had.  ``names``: other columns in messages.  ``tables``: the number of
        changes by table.  ``table``: the named table, if a worker found it.
        """
        self._search_table(table, tables)
        gone = set(had)
        self.left = [name for name in self.left if name not in gone]
        self.names |= dict.fromkeys(names)

    def _search_table(self, table: str | None, tables: Mapping[str, int]) -> None:
        """Record the tables of messages, and whether the named table is among them.

        ``table``, ``tables``: as in `DecodedEvents`.  ``tables`` also counts bad changes.
        """
        if self.table is None:
            return
        for name, count in tables.items():
            self.tables[name] = self.tables.get(name, 0) + count
        if table is not None or any(is_table_name(self.table, name) for name in tables):
            self.table = None

    @property
    def is_searching(self) -> bool:
        """Whether a column or the table is still missing."""
        return bool(self.left) or self.table is not None

    def pop_warnings(self) -> list[str]:
        """Return the new warnings about missing columns and a missing table.  O(columns + tables)."""
        said = self.list_warnings(self.left)
        if said:
            self.left = []
        if self.table is not None and self.tables:
            said, self.table = [_describe_other_tables(self.table, self.tables), *said], None
        return said

    def list_warnings(self, columns: Iterable[str]) -> list[str]:
        """Return a warning for each column in ``columns`` that no message has had.  O(columns)."""
        return [
            f"no message so far has the declared column {name!r}, so it is null: {did_you_mean(name, self.names)}"
            for name in columns
            if self.names and name in self.left
        ]


def _describe_other_tables(table: str, tables: Mapping[str, int]) -> str:
    """Build the warning that the named table has no changes, although other tables have changes."""
    found, changes = find_nearest_table(table, tables), sum(tables.values())
    meant = "" if found is None else f"did you mean {found!r}? "
    more = f" and {len(tables) - SHOWN:,} more" if len(tables) > SHOWN else ""
    others = f"{changes:,} {'change is' if changes == 1 else 'changes are'} of {[*tables][:SHOWN]}{more}"
    return f"no message so far is of the table {table!r}, so no row came: {meant}{others}"


def find_undeclared_columns(
    format: Format, given: pa.Table, made: DecodedEvents, known: Collection[str], what: str
) -> list[str]:
    """Return the unknown columns in a sample of messages.  O(messages + bytes of the sample).

    The sample includes the last message with a row.
    """
    rows = np.unique(made.at[_mark_non_deletes(made.rows, BAD)])
    if not rows.size:
        return []
    some = rows[np.unique(np.linspace(0, rows.size - 1, min(SAMPLE, rows.size)).astype(np.int64))]
    return list(format.columns(wrap_messages(format, given.take(pa.array(some)), what), known))


def _mark_non_deletes(rows: pa.Table, *marks: str) -> Bools:
    """Mark the events that are not deletes and have null in all columns of ``marks``."""
    says = ~np.asarray(rows.column(DELETED).fill_null(True))
    for mark in marks:
        if mark in rows.column_names:
            says &= np.asarray(rows.column(mark).is_null())
    return says
