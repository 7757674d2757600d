"""Hold a batch of messages from a broker, and compute the table and the log position of each message.

`Messages` checks and converts the columns of a batch. The functions for tables compare table names, which may lack the
schema or the database. `build_order_columns` converts log positions to integers, so that events of one source have a
total order.

>>> source = {"lsn": pa.array([None, None]), "file": pa.array(["mysql-bin.000007"] * 2), "pos": pa.array(["4", "120"]),
...           "row": pa.array(["0", "3"])}
>>> build_order_columns(source, Messages(pa.table({"value": ["", ""]}), "'t'", 0),
...     np.arange(2))["_position"].to_pylist()
[30064771076, 30064771192]
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pat

from ddflow.columns.names import find_nearest_name
from ddflow.columns.schema import decode_array, is_text, to_array
from ddflow.connectors.formats.cells import convert_by_bisection
from ddflow.connectors.formats.parse import Bools
from ddflow.errors import ErrorText, Option, Row, SchemaMismatch

VALUE: Final = "value"
COLUMNS: Final = (VALUE, "key", "topic", "partition", "offset", "timestamp")
"""Columns of a batch of messages."""
IGNORED: Final = ("headers", "timestampType", "timestamp_type")
"""Columns that ddflow accepts and ignores.  Consumers and Spark add these columns."""
FILE: Final = "file"
LINE: Final = "line"
"""Columns of messages from files: the file and the line, counted from 1."""


class Messages:
    """Batch of messages.

    ``given``: the table of messages.  ``what``: the name of the input in errors.  ``first``: the row number of its
    first message.  ``value``, ``key``: text or structs.  ``broken``: marks values that are not UTF-8 and became null.
    ``offset``, ``partition``: int64, or None without such a column.  ``topic``, ``timestamp``: None without such a
    column.

    Raises `SchemaMismatch` for unknown columns and for invalid types.

    >>> came = Messages(pa.table({"value": [b'{"id": 1}', b"\\xff"], "offset": [7, 8], "topic": ["t"] * 2}), "'t'", 0)
    >>> came.value.to_pylist(), came.broken.tolist(), came.locate_message(1)
    (['{"id": 1}', None], [False, True], 'offset 8 of t')
    """

    def __init__(self, given: pa.Table, what: str, first: int) -> None:
        self.table, self.what, self.first, self.rows = given, what, first, given.num_rows
        if not given.num_columns and not given.num_rows:  # such as tables from [] and {}
            given = self.table = pa.table({VALUE: pa.nulls(0, pa.string())})
        names = given.column_names
        if VALUE not in names:
            remedy = ErrorText(
                f"messages have the columns {', '.join(COLUMNS[:-1])} and {COLUMNS[-1]}; without ",
                Option("format"),
                " pass rows",
            )
            raise SchemaMismatch(
                f"messages for {what}", f"there is no column {VALUE!r}; the columns are {names}", remedy, column=VALUE
            )
        if more := [name for name in names if name not in (*COLUMNS, *IGNORED, FILE, LINE) or names.count(name) > 1]:
            remedy = ErrorText(f"messages have the columns {', '.join(COLUMNS)}; omit all other columns")
            raise SchemaMismatch(f"messages for {what}", f"the columns {more} are unknown or occur twice", remedy)
        there: dict[str, pa.Array] = {name: _flatten_column(given, name) for name in COLUMNS if name in names}
        self.raw = there[VALUE]
        self.value, self.broken = self._convert_to_text(VALUE, self.raw)
        self.key = self._convert_to_text("key", there["key"])[0] if "key" in there else None
        self.offset, self.partition = (self._read_integers(there, name) for name in ("offset", "partition"))
        topic = there.get("topic")
        self.topic = None if topic is None or pat.is_null(topic.type) else topic
        self.timestamp = there.get("timestamp")
        self.exact: Any = False
        """Boolean marks, which are true for messages whose numbers must keep all digits.  See `parse_objects`."""
        self.own: Callable[[Any], str | None] = lambda value: None
        """Function that returns a description of the position in a message.  See `Format.place`."""

    def _convert_to_text(self, name: str, column: pa.Array) -> tuple[pa.Array, Bools]:
        """Convert a column to text, but keep structs unchanged.  Mark the values that are not UTF-8."""
        none = np.zeros(len(column), np.bool_)
        kind = column.type
        if pat.is_struct(kind) or kind == pa.string():
            return column, none
        if is_text(kind) or pat.is_null(kind):
            return column.cast(pa.string()), none
        if not (pat.is_binary(kind) or pat.is_large_binary(kind)):
            if name == "key" and (pat.is_integer(kind) or kind == pa.uuid()):
                return column.cast(pa.string()), none
            raise SchemaMismatch(
                f"messages for {self.what}", f"{name!r} is {kind}", "pass bytes, text, or a struct of its fields"
            )
        made, wrong = convert_by_bisection(column, pa.string(), lambda some: some.cast(pa.string()))
        return made, none if wrong is None else wrong

    def _read_integers(self, there: dict[str, pa.Array], name: str) -> pa.Array | None:
        if name not in there or pat.is_null(there[name].type):
            return None
        if not pat.is_integer(there[name].type):
            found = f"{name!r} is {there[name].type}"
            raise SchemaMismatch(f"messages for {self.what}", found, "pass integers, or omit the column")
        return there[name].cast(pa.int64())

    def locate_message(self, row: int) -> str | Row:
        """Return the name of a message in errors: its position, or else its row number.  O(1)."""
        position = self.describe_position(row)
        return Row(self.first + row) if position.startswith("row ") else position

    def describe_position(self, row: int) -> str:
        """Describe the place of a message by its line, offset, log position or row number.  O(its bytes)."""
        line, file = (self.table.column(n)[row].as_py() if n in self.table.column_names else None for n in (LINE, FILE))
        if line is not None:
            return f"line {line:,}" + ("" if file is None else f" of {file}")
        offset = None if self.offset is None else self.offset[row].as_py()
        if offset is None:
            return self.own(self.value[row].as_py()) or f"row {self.first + row}"
        topic = None if self.topic is None else self.topic[row].as_py()
        partition = None if self.partition is None else self.partition[row].as_py()
        of = topic if partition is None else f"{topic or 'partition '}{'/' if topic else ''}{partition}"
        return f"offset {offset}" + ("" if of is None else f" of {of}")

    def get_original_bytes(self, rows: Any) -> pa.Array:
        """Return the original values of messages as bytes.  The bytes of a struct are its Python representation."""
        some = self.raw.take(pa.array(rows, pa.int64()))
        if pat.is_struct(some.type):
            return pa.array([None if each is None else repr(each).encode() for each in some.to_pylist()], pa.binary())
        return some.cast(pa.binary())


def wrap_rows_as_messages(given: pa.Table) -> pa.Table:
    """Convert rows to messages with structs as values.  O(columns), or O(rows) if columns have several chunks."""
    columns = [decode_array(to_array(column)) for column in given.columns]
    if not columns:
        return pa.table({VALUE: pa.nulls(0, pa.struct([]))})
    return pa.table({VALUE: pa.StructArray.from_arrays(columns, names=given.column_names)})


def _flatten_column(given: pa.Table, name: str) -> pa.Array:
    return decode_array(to_array(given.column(name)))


PARTS: Final = ("table", "schema", "db")
"""Parts of a table name in a message."""
Source = Mapping[str, pa.Array]
"""Table names of messages, with one column for each part in `PARTS`."""


def build_table_names(source: Source) -> pa.Array:
    """Return the full table name of each message; null if the message names no table.  O(n)."""
    table, schema, db = _get_table_name_parts(source)
    db = pc.if_else(pc.fill_null(pc.equal(db, schema), False), None, db)  # in MySQL, database and schema are the same
    return pc.binary_join_element_wise(db, schema, table, pc.if_else(table.is_valid(), ".", None), null_handling="skip")


def match_table_names(one: str | None, other: str) -> str | None:
    """Return the longer of two names for the same table; None if they name different tables.  O(1)."""
    if one is None or other == one or other.endswith(f".{one}"):
        return other
    return one if one.endswith(f".{other}") else None


def resolve_table_name(own: str | None, names: Iterable[str]) -> tuple[str | None, list[str]]:
    """Return the longest name for the table ``own``, and the names that belong to other tables.  O(names).

    >>> resolve_table_name("orders", ["a.orders", "orders", "b.orders"])
    ('a.orders', ['b.orders'])
    >>> source = {"table": ["t", "u"], "schema": ["a", "a"], "db": [None, None]}
    >>> every = {name: pa.array(cells, pa.string()) for name, cells in source.items()}
    >>> build_table_names(every).to_pylist(), compute_table_mask("a.t",
    ...     every).tolist(), compute_ambiguous_table_mask("shop.a.t",
    ...     every).tolist()
    (['a.t', 'a.u'], [True, False], [True, False])
    >>> count_messages_by_table(every, np.array([True, True])), is_table_name("a.t", "shop.a.t")
    ({'a.t': 1, 'a.u': 1}, True)
    >>> find_nearest_table("orderz", ["shop.orders", "shop.us"])
    'shop.orders'
    """
    others = []
    for name in names:
        both = match_table_names(own, name)
        if both is None:
            others.append(name)
        else:
            own = both
    return own, others


def compute_table_mask(name: str, source: Source) -> Bools:
    """Mark the messages of a table.  O(n)."""
    *before, last = name.split(".")
    table, schema, db = _get_table_name_parts(source)
    out = pc.equal(table, last)
    if before:
        out = pc.and_(out, pc.equal(pc.coalesce(schema, db), before[-1]))
    if len(before) > 1:
        out = pc.and_(out, pc.equal(db, before[-2]))
    return np.asarray(pc.fill_null(out, False))


def is_table_name(table: str, name: str) -> bool:
    """Return whether the full ``name`` from a message matches ``table``, which may lack the schema or the database.

    O(1).
    """
    return name == table or name.endswith(f".{table}")


def count_messages_by_table(source: Source, which: Bools) -> dict[str, int]:
    """Count the messages that ``which`` marks, by the full name of their table.  O(n)."""
    coded = build_table_names(source).filter(pa.array(which)).drop_null().dictionary_encode()
    return dict(zip(coded.dictionary.to_pylist(), np.bincount(coded.indices).tolist(), strict=True))


def find_nearest_table(name: str, tables: Iterable[str]) -> str | None:
    """Return the table with the most similar name, or None.

    The comparison ignores parts that only one of the names has.  O(tables).
    """
    parts = name.split(".")
    for count in range(len(parts), 0, -1):
        ends = {".".join(each.split(".")[-count:]): each for each in tables if each.count(".") >= count - 1}
        if (found := find_nearest_name(".".join(parts[-count:]), ends)) is not None:
            return ends[found]
    return None


def compute_ambiguous_table_mask(name: str, source: Source) -> Bools:
    """Mark the messages whose table name has too few parts to tell whether the table is ``name``. O(n)."""
    *before, last = name.split(".")
    table, schema, db = _get_table_name_parts(source)
    lacks = pa.array(np.zeros(len(table), np.bool_))
    if before:
        lacks = pc.and_(table.is_valid(), pc.and_(schema.is_null(), db.is_null()))
    if len(before) > 1:
        lacks = pc.or_(lacks, db.is_null())
    mine = pc.fill_null(pc.equal(table, last), False)
    return np.asarray(pc.or_(table.is_null(), pc.and_(mine, lacks)))


def compute_topic_mask(name: str, messages: Messages) -> Bools:
    """Mark the messages whose topic is named after a table.  O(n).

    The topic is the only place where a tombstone names its table.
    """
    if messages.topic is None:
        return np.zeros(messages.rows, np.bool_)
    own = pc.or_(pc.equal(messages.topic, name), pc.ends_with(messages.topic, f".{name}"))
    return np.asarray(pc.fill_null(own, False))


def _get_table_name_parts(source: Source) -> list[pa.Array]:
    return [source[part].cast(pa.string()) for part in PARTS]


POSITION: Final = "_position"
ROW: Final = "_row"


def build_order_columns(source: dict[str, pa.Array], messages: Messages, of: Any) -> dict[str, pa.Array]:
    """Build the order columns of events.  ``of``: for each event, the index of its message.  O(n)."""
    n = of.size
    source = {name: pa.nulls(n, pa.string()) for name in ("lsn", "file", "pos", "row")} | source
    place = parse_integers(source["lsn"])
    if place.null_count and source["file"].null_count < n:
        number = parse_integers(
            pc.struct_field(pc.extract_regex(source["file"].cast(pa.string()), r"(?P<n>[0-9]+)$"), "n")
        )
        both = pc.add(pc.multiply(number, 1 << 32), parse_integers(source["pos"]))
        place = pc.coalesce(place, both)
    if place.null_count and messages.offset is not None:
        place = pc.coalesce(place, messages.offset.take(pa.array(of)))
    # Events are ordered by the index of their row in the message only if the message has a position.
    row = pc.if_else(pc.is_valid(place), pc.fill_null(parse_integers(source["row"]), 0), 0)
    return {POSITION: place, ROW: row}


def parse_integers(cells: pa.Array) -> pa.Array:
    """Convert texts to integers; invalid texts become null.  O(n)."""
    try:
        return cells.cast(pa.int64())
    except pa.ArrowInvalid:
        plain = pc.match_substring_regex(cells, r"^[0-9]{1,18}$")
        return pc.if_else(plain, cells, pa.scalar(None, cells.type)).cast(pa.int64())


def fill_missing_positions(
    order: dict[str, pa.Array], lacking: Bools, messages: Messages, at: Any
) -> dict[str, pa.Array]:
    """Fill a missing position with the next known position in the same partition, or else with the previous one.

    ``lacking``: marks events to fill.  ``at``: the index of the message of each event.  O(n log n) if positions are
    missing.
    """
    known = np.asarray(order[POSITION].is_valid())
    rows = np.flatnonzero(lacking & ~known)
    if not rows.size or not known.any():
        return order
    n = at.size
    of: Any = np.zeros(n, np.int64)
    if messages.partition is not None:
        of = np.asarray(pc.fill_null(messages.partition, -1))[at]
    by = np.argsort(of, kind="stable")
    there = np.flatnonzero(known[by])
    place = np.empty(n, np.int64)
    place[by] = np.arange(n)
    at = np.searchsorted(there, place[rows])
    after, before = there[np.minimum(at, there.size - 1)], there[np.maximum(at - 1, 0)]
    fits = (at < there.size) & (of[by[after]] == of[rows])
    found = np.where(fits, by[after], by[before])
    fine = of[found] == of[rows]
    which = np.arange(n)
    which[rows[fine]] = found[fine]
    return {name: column.take(pa.array(which)) for name, column in order.items()}
