"""The protocol of a message format: a batch of messages in, a batch of upserts out, and warnings about what never came.

Guarantees: the same batch gives the same events for the same `MessageTarget`. A message that cannot be read is an
error, or a row in the `BAD` column, as ``on_bad`` says. `MissingColumnFinder` tells the declared columns, and the
table, that no message had. Limits: the first table that a message names is the table of an input, so messages of
another one are bad from then on. A tombstone takes its order, and whether it counts, from its neighbours in the batch.
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
"""The column of events that says which delete."""
BAD: Final = "_bad"
"""The column of events that says what was no event, where such messages are dropped."""
ABSENT: Final = "_absent"
"""The column of events that names the cells that they do not have, where a format may leave some out."""
OWN: Final = (POSITION, ROW, DELETED, ABSENT, BAD)
"""The columns that a format adds."""
BAD_TYPE: Final = pa.struct({"message": pa.binary(), "position": pa.string(), "reason": pa.string()})
OnBad = Literal["stop", "drop"]
_BEYOND: Final = re.compile(r"-?infinity|.* BC|[0-9]{5,}-.*")
"""Moments of Postgres that no timestamp of Arrow has."""
_FRACTION: Final = re.compile(r"[0-9][.eE]")


class MessageTarget(NamedTuple):
    """What a batch of messages is to become.

    ``what``: how messages call the input.  ``columns``: those declared.  ``key``: of the rows.  ``deciding``: further
    columns that events are ordered or stamped by, which deletes need too.  ``ordered``: whether the format's own order
    counts.  ``out``: the columns of events.  ``keyed``: whether an event without its key is none.
    ``table``: that messages were of before, None where none has said.  ``history``: whether rows are versions, so a
    message cannot delete what others hold.

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
    """All keys whose order is below ``order`` are deleted, before the ``row`` of a batch: of `Upserts`, its message."""

    row: int
    order: dict[str, Any]
    place: str | Row


class Upserts(NamedTuple):
    """What a format makes of messages: of each upsert its cells by column, and whether it deletes.

    ``order``: by column, where the format orders.  ``at``: the messages that upserts come from, ascending; None for
    each its own.  ``absent``: by column, which cells are not there.  ``truncates``: the messages that are some.
    ``table``: that they are of, None where that is not asked, or none says it.  ``tables``: see `DecodedEvents`."""

    columns: dict[str, pa.Array]
    deleted: Bools
    order: dict[str, pa.Array]
    at: Ints | None = None
    absent: dict[str, Bools] | None = None
    truncates: tuple[Truncate, ...] = ()
    table: str | None = None
    tables: Mapping[str, int] = MappingProxyType({})


class DecodedEvents(NamedTuple):
    """``rows``: in the columns of `MessageTarget.out`.  ``truncates``: where the batch is cut.  ``at``: the message of
    each row.  ``table``: as of `MessageTarget`, after them.  ``tables``: how many changes are of which, while none of
    the one that was named has come."""

    rows: pa.Table
    truncates: tuple[Truncate, ...]
    at: Ints
    table: str | None = None
    tables: Mapping[str, int] = MappingProxyType({})


class BadMessages:
    """Which messages of a batch cannot be read, and why: the first reason of each counts."""

    def __init__(self, rows: int) -> None:
        self.mask: Bools = np.zeros(rows, np.bool_)
        self.reasons: dict[int, str] = {}
        self.narrow: dict[int, tuple[pa.Field, str]] = {}
        """Of messages with a value that does not fit its column: both."""

    def mark(self, rows: Any, reason: Any) -> None:
        """Mark messages, by number.  ``reason``: a text, or a function of the place among ``rows``."""
        for n, row in enumerate(np.asarray(rows).tolist()):
            if not self.mask[row]:
                self.mask[row] = True
                self.reasons[row] = reason(n) if callable(reason) else reason


@dataclass(frozen=True, kw_only=True)
class Format:
    """How messages are read: the base of what `ddflow.formats` has.

    Attributes
    ----------
    on_bad : {"stop", "drop"}
        What becomes of a message that cannot be read.
    """

    on_bad: OnBad = field(default="stop")

    kind: ClassVar[str]
    order: ClassVar[Any] = ()
    """The columns that say what orders events, where the user does not."""
    of_rows: ClassVar[bool] = False
    """Whether it is given rows, whose columns say what each does, and no messages."""

    def __post_init__(self) -> None:
        self._check_option_values(on_bad=("stop", "drop"))

    def _check_option_values(self, **options: tuple[str, ...]) -> None:
        """Raise `SpecError` for an option that is none of those there are."""
        for name, known in options.items():
            if (value := getattr(self, name)) not in known:
                raise SpecError(f"dd.formats.{self.kind}", Option(name, value), f"use one of {list(known)}")

    def needs(self) -> None:
        """Raise `MissingExtra` if the library that reads JSON is not installed."""
        import_duckdb()

    @property
    def leaves_out(self) -> bool:
        """Whether an event may leave out single cells, which then keep their stored value."""
        return False

    @property
    def of_tables(self) -> bool:
        """Whether messages may say which table they are of."""
        return False

    @property
    def asked(self) -> str | None:
        """Named table, the only one whose messages count; None if no table was named."""
        return None

    def upserts(self, messages: Messages, target: MessageTarget, bad: BadMessages) -> Upserts:
        """Convert messages to upserts.  O(bytes).  Marks unreadable messages in ``bad``."""
        raise NotImplementedError

    @property
    def row_path(self) -> Path | None:
        """Path of the row in a message; None if it differs between messages."""
        return None

    def columns(self, messages: Messages, known: Collection[str] = ()) -> dict[str, int]:
        """Return the columns of the rows in some messages, without the known ones.  O(bytes).

        The value of each is the first message that has it.
        """
        path = self.row_path
        return {} if path is None else find_row_columns(messages.value, path, known, self.owner(messages.value))

    def place(self, value: Any) -> str | None:
        """Describe the place in a message that has neither offset nor line; None if it has no place."""
        del value
        return None

    def owner(self, value: pa.Array) -> Own | None:
        """Return the test for messages of the named table; None if no table was named.  O(1)."""
        del value
        return None

    def kinds(self, messages: Messages, names: Sequence[str]) -> dict[str, pa.DataType]:
        """Return the types of some of the `columns` that a schema or a value determines.  O(bytes).

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
        """Return example rows from the values of some messages; None if they show none.  O(bytes)."""
        del values
        return None

    def to_json(self) -> dict[str, Any]:
        """Return its kind, and the options that differ from their defaults."""
        out: dict[str, Any] = {"kind": self.kind}
        for each in fields(self):
            value = getattr(self, each.name)
            if value != each.default:
                out[each.name] = value
        return out

    def __repr__(self) -> str:
        """Return the call that makes it."""
        given = {name: value for name, value in self.to_json().items() if name != "kind"}
        return f"dd.formats.{self.kind}({', '.join(f'{name}={value!r}' for name, value in given.items())})"


def build_events_schema(format: Format, columns: Any, ordered: bool = False) -> pa.Schema:
    """Return the columns of events: the declared ones, all null in a delete, and the format's additions."""
    own = [*(format.order if ordered else ()), (DELETED, pa.bool_())]
    own += [(ABSENT, pa.list_(pa.string()))] if format.leaves_out else []
    own += [(BAD, BAD_TYPE)] if format.on_bad == "drop" else []
    return pa.schema([*columns, *own])


def decode_messages(format: Format, given: pa.Table, target: MessageTarget, first: int = 0) -> DecodedEvents:
    """Decode a table of messages to events.  ``first``: the row number of the first.  O(bytes).

    Raises `BadMessage` for an unreadable message, unless the format drops such; `SchemaMismatch` for a table that holds
    no messages.
    """
    messages = wrap_messages(format, given, target.what, first)
    made, bad = _read_upserts(format, messages, target)
    exact = np.broadcast_to(messages.exact, messages.rows)
    if rows := [row for row, (_, cell) in bad.narrow.items() if _FRACTION.search(cell) and not exact[row]]:
        messages.exact = exact | np.isin(np.arange(messages.rows), rows)  # so that they name their own numbers
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
        more = f" ({len(bad.reasons):,} of {messages.rows:,} messages are like that)" if len(bad.reasons) > 1 else ""
        wider, place = _suggest_wider_type(bad, row, target, format, messages), messages.locate_message(row)
        raise BadMessage(
            f"messages for {target.what}",
            ErrorText(format_location("", place, ": "), f"{bad.reasons[row]}{more}"),
            ErrorText(
                "mend the source, or leave it out with ", Option("on_bad", "drop"), "; nothing was taken in", wider
            ),
            offset="" if isinstance(place, Row) else place,
        )
    return _add_bad_message_rows(made, at, messages, bad, target)


def _read_upserts(format: Format, messages: Messages, target: MessageTarget) -> tuple[Upserts, BadMessages]:
    bad = BadMessages(messages.rows)
    bad.mark(np.flatnonzero(messages.broken), "it is no UTF-8")
    return format.upserts(messages, target, bad), bad


def _suggest_wider_type(
    bad: BadMessages, row: int, target: MessageTarget, format: Format, messages: Messages
) -> str | WidenFix:
    """Suggest what else to do if a column may have become wider at its source."""
    if row not in bad.narrow:
        return ""
    field, value = bad.narrow[row]
    wide = None if field.name in (*target.key, *target.deciding) else find_type_for_value(field.type, value)
    if wide is None:
        endless = pat.is_timestamp(field.type) and _BEYOND.fullmatch(value)
        return f"; {value} is text only: declare {field.name!r} as str, in a new state" if endless else ""
    if pat.is_decimal(wide):
        alone = Messages(messages.table.slice(row, 1), messages.what, messages.first + row)
        kinds = format.kinds(alone, [field.name]) if field.name in format.columns(alone) else {}
        told = kinds.get(field.name, wide)
        wide = told if pat.is_decimal(told) and find_widening(wide, told) is not None else wide
    return WidenFix({field.name: format_type(wide)})


def wrap_messages(format: Format, given: pa.Table, what: str, first: int = 0) -> Messages:
    """Wrap a table of messages, or of rows that a format reads as messages.  Raises as `Messages`."""
    messages = Messages(wrap_rows_as_messages(given) if format.of_rows else given, what, first)
    messages.own = format.place
    return messages


def _drop_delete_values(made: Upserts, target: MessageTarget, bad: BadMessages) -> Upserts:
    """Reduce deletes to key and order, and mark truncates as bad: no message names the keys that they end."""
    bad.mark([each.row for each in made.truncates], "it is a truncate, which does not say whose versions end")
    if not made.deleted.any():
        return made._replace(truncates=())
    rows, kept = pa.array(np.arange(made.deleted.size), mask=made.deleted), (*target.key, *target.deciding)
    cells = {name: cell if name in kept else cell.take(rows) for name, cell in made.columns.items()}
    return made._replace(columns=cells, truncates=())


def refuse_truncates(made: DecodedEvents, what: str) -> DecodedEvents:
    """Return the events unchanged if no truncate is among them.  Raises `BadMessage` for one."""
    for each in made.truncates:
        remedy = "take this batch with an engine's step; nothing was taken in"
        raise BadMessage(
            f"messages for {what}",
            format_location("", each.place, ": ") + "it is a truncate, of what others hold",
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
    """Add a row for each unreadable message, at its place among the others."""
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
    """Renumber truncates: the row of each becomes the first row after its message."""
    return tuple(each._replace(row=int(np.searchsorted(at, each.row))) for each in truncates)


def _list_absent_columns(cells: dict[str, Bools], rows: int) -> pa.Array:
    """List the names of the absent cells by row; null if none is absent."""
    counts, names = np.zeros(rows, np.int64), list(cells)
    for each in cells.values():
        counts += each
    ends = np.concatenate([[0], np.cumsum(counts)]).astype(np.int32)
    grid = np.array([cells[name] for name in names]).reshape(len(names), rows)
    _, which = np.nonzero(grid.T)
    values = pa.array(names, pa.string()).take(pa.array(which))
    return pa.ListArray.from_arrays(pa.array(ends), values, mask=pa.array(counts == 0))


SAMPLE: Final = 256
"""In how many messages of a batch undeclared columns are looked for."""
SHOWN: Final = 10
"""How many tables are named at most."""


class MissingColumnFinder:
    """``left``: the columns that are neither found nor told.  ``names``: those that messages had instead, so far.
    ``table``: that was named, while it is neither found nor told; ``tables``: how many changes were of each.

    >>> from ddflow.connectors.formats.base import MessageTarget, decode_messages, build_events_schema
    >>> from ddflow.connectors.formats.plain import plain_json
    >>> format, columns = plain_json(), pa.schema({"id": pa.int64(), "amounts": pa.float64()})
    >>> target = MessageTarget("'t'", columns, ("id",), (), False, build_events_schema(format, columns))
    >>> came, unseen = pa.table({"value": ['{"id": 1, "amount": 2.5}']}), MissingColumnFinder(columns.names)
    >>> unseen.search_messages(format, came, decode_messages(format, came, target), "'t'")
    >>> unseen.pop_warnings()
    ["none so far has the declared column 'amounts', which is null: did you mean 'amount'? there are ['id', 'amount']"]
    >>> unseen.pop_warnings()
    []
    >>> find_undeclared_columns(format, came, decode_messages(format, came, target), ["id", "amounts"], "'t'")
    ['amount']
    >>> unseen = MissingColumnFinder([], "order")
    >>> unseen.note_worker_findings([], [], {"shop.orders": 5, "shop.people": 1})
    >>> unseen.pop_warnings()
    ["none so far is of the table 'order', so no row came: did you mean 'shop.orders'? 6 are of \
    ['shop.orders', 'shop.people']"]
    """

    def __init__(self, columns: Iterable[str], table: str | None = None) -> None:
        self.left, self.table = list(columns), table
        self.names, self.tables = dict[str, None](), dict[str, int]()

    def search_messages(self, format: Format, given: pa.Table, made: DecodedEvents, what: str) -> None:
        """Look for the missing columns and table in some messages and their events.

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
        """Note what other workers found.

        ``had``: columns in messages.  ``names``: other columns there.  ``tables``: changes by table.  ``table``: the
        one found.
        """
        self._search_table(table, tables)
        gone = set(had)
        self.left = [name for name in self.left if name not in gone]
        self.names |= dict.fromkeys(names)

    def _search_table(self, table: str | None, tables: Mapping[str, int]) -> None:
        """Look for the table.  Both are as of `DecodedEvents`; ``tables`` has it if its changes are bad, too."""
        if self.table is None:
            return
        for name, count in tables.items():
            self.tables[name] = self.tables.get(name, 0) + count
        if table is not None or any(is_table_name(self.table, name) for name in tables):
            self.table = None

    @property
    def is_searching(self) -> bool:
        """Whether anything is left to be looked for."""
        return bool(self.left) or self.table is not None

    def pop_warnings(self) -> list[str]:
        """Return warnings about columns and a table that no message had, once.  O(columns), O(tables)."""
        said = self.list_warnings(self.left)
        if said:
            self.left = []
        if self.table is not None and self.tables:
            said, self.table = [_describe_other_tables(self.table, self.tables), *said], None
        return said

    def list_warnings(self, columns: Iterable[str]) -> list[str]:
        """Return warnings about the columns, among some, that no message had.  O(columns)."""
        return [
            f"none so far has the declared column {name!r}, which is null: {did_you_mean(name, self.names)}"
            for name in columns
            if self.names and name in self.left
        ]


def _describe_other_tables(table: str, tables: Mapping[str, int]) -> str:
    """Describe a table without changes, though other tables have some."""
    found, changes = find_nearest_table(table, tables), sum(tables.values())
    meant = "" if found is None else f"did you mean {found!r}? "
    more = f" and {len(tables) - SHOWN:,} more" if len(tables) > SHOWN else ""
    others = f"{changes:,} {'is' if changes == 1 else 'are'} of {[*tables][:SHOWN]}{more}"
    return f"none so far is of the table {table!r}, so no row came: {meant}{others}"


def find_undeclared_columns(
    format: Format, given: pa.Table, made: DecodedEvents, known: Collection[str], what: str
) -> list[str]:
    """Return the unknown columns in a sample of some messages.  O(messages + bytes of the sample).

    The last message with a row is one of the sample.
    """
    rows = np.unique(made.at[_mark_non_deletes(made.rows, BAD)])
    if not rows.size:
        return []
    some = rows[np.unique(np.linspace(0, rows.size - 1, min(SAMPLE, rows.size)).astype(np.int64))]
    return list(format.columns(wrap_messages(format, given.take(pa.array(some)), what), known))


def _mark_non_deletes(rows: pa.Table, *marks: str) -> Bools:
    """Mark the events with a row, and without some marks."""
    says = ~np.asarray(rows.column(DELETED).fill_null(True))
    for mark in marks:
        if mark in rows.column_names:
            says &= np.asarray(rows.column(mark).is_null())
    return says
