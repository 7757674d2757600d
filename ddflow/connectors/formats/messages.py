"""Messages as they come: a table with a ``value`` each, and what a broker says of it.

Invariant: nothing of a message is lost or guessed here: text that is no UTF-8 is marked and not mended, and every
message has a name that its reader can go back to: its line in a file, else its offset where it has one, else what it
says itself, else its row.

>>> came = Messages(pa.table({"value": [b'{"id": 1}', b"\\xff"], "offset": [7, 8], "topic": ["t"] * 2}), "'t'", 0)
>>> came.value.to_pylist(), came.broken.tolist(), came.place(1)
(['{"id": 1}', None], [False, True], 'offset 8 of t')
"""

from collections.abc import Callable
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.types as pat

from ddflow.columns.schema import is_text, one_chunk, plain
from ddflow.connectors.formats.parse import Bools
from ddflow.errors import Option, Phrase, Row, SchemaMismatch

VALUE: Final = "value"
COLUMNS: Final = (VALUE, "key", "topic", "partition", "offset", "timestamp")
"""What a batch of messages may have."""
IGNORED: Final = ("headers", "timestampType", "timestamp_type")
"""What it may have besides, because consumers and Spark give it."""
FILE: Final = "file"
LINE: Final = "line"
"""Of messages that were read from files: where each stands, lines from 1 on."""


class Messages:
    """``given``: the table.  ``what``: how messages call the input.  ``first``: the row number of the first one.

    ``value``, ``key``: text or structs; ``broken``: which values are no UTF-8, and null.  ``offset``, ``partition``:
    int64, None where there are none; ``topic``, ``timestamp``: likewise.

    Raises `SchemaMismatch` for other columns, and types that are not those of messages.
    """

    def __init__(self, given: pa.Table, what: str, first: int) -> None:
        self.table, self.what, self.first, self.rows = given, what, first, given.num_rows
        if not given.num_columns and not given.num_rows:  # as [] and {} are
            given = self.table = pa.table({VALUE: pa.nulls(0, pa.string())})
        names = given.column_names
        if VALUE not in names:
            remedy = Phrase(
                f"messages have {', '.join(COLUMNS[:-1])} and {COLUMNS[-1]}; without ", Option("format"), " give rows"
            )
            raise SchemaMismatch(
                f"messages for {what}", f"there is no column {VALUE!r} among {names}", remedy, column=VALUE
            )
        if more := [name for name in names if name not in (*COLUMNS, *IGNORED, FILE, LINE) or names.count(name) > 1]:
            remedy = Phrase(f"give them as {', '.join(COLUMNS)}, and leave others out")
            raise SchemaMismatch(f"messages for {what}", f"the columns {more} are none of messages", remedy)
        there: dict[str, pa.Array] = {name: _column(given, name) for name in COLUMNS if name in names}
        self.raw = there[VALUE]
        self.value, self.broken = self._readable(VALUE, self.raw)
        self.key = self._readable("key", there["key"])[0] if "key" in there else None
        self.offset, self.partition = (self._integers(there, name) for name in ("offset", "partition"))
        topic = there.get("topic")
        self.topic = None if topic is None or pat.is_null(topic.type) else topic
        self.timestamp = there.get("timestamp")
        self.exact: Any = False
        """Which messages are read to the last digit, whatever their columns; as of `objects`."""
        self.own: Callable[[Any], str | None] = lambda value: None
        """As `Format.place`."""

    def _readable(self, name: str, column: pa.Array) -> tuple[pa.Array, Bools]:
        """Convert a column to text, or keep its structs; mark the values that are not UTF-8."""
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
                f"messages for {self.what}", f"{name!r} is {kind}", "give bytes, text, or a struct of its fields"
            )
        try:
            return column.cast(pa.string()), none
        except pa.ArrowInvalid:
            return _utf8(column)

    def _integers(self, there: dict[str, pa.Array], name: str) -> pa.Array | None:
        if name not in there or pat.is_null(there[name].type):
            return None
        if not pat.is_integer(there[name].type):
            found = f"{name!r} is {there[name].type}"
            raise SchemaMismatch(f"messages for {self.what}", found, "give integers, or leave the column out")
        return there[name].cast(pa.int64())

    def place(self, row: int) -> str | Row:
        """Return what an error calls a message: its position, or its row.  O(1)."""
        position = self.position(row)
        return Row(self.first + row) if position.startswith("row ") else position

    def position(self, row: int) -> str:
        """Describe the place of a message: a line, an offset, the format's words, or a row.  O(its bytes)."""
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

    def bytes(self, rows: Any) -> pa.Array:
        """Return the original values of some messages in bytes; structs as Python formats them."""
        some = self.raw.take(pa.array(rows, pa.int64()))
        if pat.is_struct(some.type):
            return pa.array([None if each is None else repr(each).encode() for each in some.to_pylist()], pa.binary())
        return some.cast(pa.binary())


def as_values(given: pa.Table) -> pa.Table:
    """Convert rows to messages with structs of their columns as values.  O(columns), O(rows) in several chunks."""
    columns = [plain(one_chunk(column)) for column in given.columns]
    if not columns:
        return pa.table({VALUE: pa.nulls(0, pa.struct([]))})
    return pa.table({VALUE: pa.StructArray.from_arrays(columns, names=given.column_names)})


def _column(given: pa.Table, name: str) -> pa.Array:
    return plain(one_chunk(given.column(name)))


def _utf8(column: pa.Array) -> tuple[pa.Array, Bools]:
    """Decode bytes to text; invalid UTF-8 becomes null and is marked.  O(bytes)."""
    if len(column) == 1:
        try:
            return column.cast(pa.string()), np.zeros(1, np.bool_)
        except pa.ArrowInvalid:
            return pa.nulls(1, pa.string()), np.ones(1, np.bool_)
    middle, parts, wrong = len(column) // 2, [], []
    for half in (column.slice(0, middle), column.slice(middle)):
        try:
            parts.append(half.cast(pa.string()))
            wrong.append(np.zeros(len(half), np.bool_))
        except pa.ArrowInvalid:
            made, bad = _utf8(half)
            parts.append(made)
            wrong.append(bad)
    return pa.concat_arrays(parts), np.concatenate(wrong)
