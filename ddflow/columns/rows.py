"""Rows: Arrow columns with their buffers' addresses, gathered by reference from any number of batches.

Invariant: rows never change; a gathered column owns its memory and holds exactly the values that the references name,
whichever batch each lives in. Every Arrow type must work at the speed that its layout allows. Fixed widths, bits and
byte strings are moved by kernels over addresses; every other type by Arrow's ``take``. Arrays are brought to one chunk
with a plain offset first, so that address and row are all a kernel needs. What a row *means* (its key, its order) is
not known here.

>>> import numpy as np, pyarrow as pa
>>> old, new = (Rows(pa.table({"city": [name], "n": [n]})) for name, n in (("Bern", 1), ("Basel", 2)))
>>> references = np.array([(1 << 40) | 0, 0], np.int64)  # row 0 of batch 1, row 0 of batch 0
>>> gather(RowPool(old.table.schema, [old, new]), references, old.table.schema).to_pylist()
[{'city': 'Basel', 'n': 2}, {'city': 'Bern', 'n': 1}]
"""

from __future__ import annotations

from collections.abc import Callable, Container, Sequence
from functools import cache
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.types as pat

from ddflow.columns.schema import arrays
from ddflow.columns.threads import ALONE
from ddflow.errors import TooLarge
from ddflow.kernels.gather import ROWS, SLOT, SLOTS, gather_bits, gather_bytes, gather_sizes, gather_words

Array = np.ndarray[Any, np.dtype[Any]]
Work = Callable[[int, int], None]
MOVED = 8
"""Nanoseconds that it takes to gather a value, about."""


WORDS, BYTES, BITS, OTHER = range(4)


@cache
def layout(kind: pa.DataType) -> tuple[int, int]:
    """How a type is moved: WORDS and bytes a value, BYTES and bytes an offset, BITS, or OTHER (by Arrow)."""
    if pat.is_string(kind) or pat.is_binary(kind):
        return BYTES, 4
    if pat.is_large_string(kind) or pat.is_large_binary(kind):
        return BYTES, 8
    if pat.is_boolean(kind):
        return BITS, 0
    if pat.is_nested(kind) or pat.is_dictionary(kind) or isinstance(kind, pa.BaseExtensionType):
        return OTHER, 0
    try:
        bits = kind.bit_width
    except ValueError:
        return OTHER, 0
    return (WORDS, bits // 8) if bits in (8, 16, 32) or (bits and bits % 64 == 0) else (OTHER, 0)


def width(kind: pa.DataType) -> int:
    """Bytes a value of a fixed-width type that kernels move, else 0."""
    how, wide = layout(kind)
    return wide if how == WORDS else 0


def offset_width(kind: pa.DataType) -> int:
    """Bytes an offset of a byte-string type, else 0."""
    how, wide = layout(kind)
    return wide if how == BYTES else 0


def address(buffer: pa.Buffer | None) -> int:
    """Where a buffer begins, 0 for none."""
    return 0 if buffer is None else int(buffer.address)


class _Memory:
    """Memory as numpy imports it, and whose it is."""

    def __init__(self, array: Array) -> None:
        self.owner = array
        self.__array_interface__ = {**array.__array_interface__, "data": (array.ctypes.data, False)}


def plainly(array: Array) -> Array:
    """The same memory as an array that kernels take for any other: numba would compile them anew for a read-only one.

    It is not to be written to.  O(1).
    """
    return array if array.flags.writeable else np.asarray(_Memory(array))


class Moved(NamedTuple):
    """Columns, and how a value of each is moved (`layout`): chosen once for all rows that have them."""

    schema: pa.Schema
    names: list[str]
    layouts: list[tuple[int, int]]

    @classmethod
    def of(cls, schema: pa.Schema) -> Moved:
        """The columns of a schema.  O(columns)."""
        return cls(schema, schema.names, [layout(field.type) for field in schema])


class Rows:
    """Columns of one chunk each, and where their buffers are.

    ``filled``: columns whose nulls nobody will look at (only deletions have them), so that what is gathered from them
    needs no validity.  ``addresses``: uint64[columns, 3]: validity bitmap (0 when no value is null), values or offsets,
    bytes; ``firsts``: int64[columns, 2]: the bit numbers of row 0 in validity and in boolean values.  ``holes``: a bit
    for each column that has a validity bitmap.  O(columns) to make.
    """

    __slots__ = ("_table", "addresses", "columns", "firsts", "holes", "schema", "size")

    def __init__(self, table: pa.Table | pa.RecordBatch, filled: Container[str] = ()) -> None:
        self._table: pa.Table | pa.RecordBatch | None = table
        columns = table.columns if isinstance(table, pa.RecordBatch) else arrays(table)
        self._lay(columns, Moved.of(table.schema), table.num_rows, filled)

    @classmethod
    def of(cls, columns: list[pa.Array], moved: Moved, size: int, filled: Container[str] = ()) -> Rows:
        """So many rows of some columns; a table of them is made when somebody asks for it."""
        out = object.__new__(cls)
        out._table = None
        out._lay(columns, moved, size, filled)
        return out

    def _lay(self, columns: list[pa.Array], moved: Moved, size: int, filled: Container[str]) -> None:
        self.columns, self.schema, self.size, self.holes = columns, moved.schema, size, 0
        self.addresses, self.firsts = np.zeros((len(columns), 3), np.uint64), np.zeros((len(columns), 2), np.int64)
        for i, (column, name, (how, wide)) in enumerate(zip(columns, moved.names, moved.layouts, strict=True)):
            buffers, start = column.buffers(), column.offset
            if column.null_count and name not in filled:
                self.addresses[i, 0], self.firsts[i, 0] = address(buffers[0]), start
                self.holes |= 1 << i
            if how == BITS:
                self.firsts[i, 1] = start
            if how != OTHER and buffers[1] is not None:
                self.addresses[i, 1] = buffers[1].address + start * wide
            if how == BYTES and buffers[2] is not None:
                self.addresses[i, 2] = buffers[2].address

    @property
    def table(self) -> pa.Table | pa.RecordBatch:
        """The rows."""
        if self._table is None:
            self._table = pa.RecordBatch.from_arrays(self.columns, schema=self.schema)
        return self._table

    def __len__(self) -> int:
        return self.size

    @property
    def nbytes(self) -> int:
        """Bytes of Arrow buffers that these rows refer to."""
        return int(self.table.nbytes)


class RowPool:
    """What references point into: rows by batch number, and their addresses by column, as the kernels want them.

    ``schema``: the columns, the same for all.  Room for batches grows; a number that was dropped may be used again.
    ``holes``: a bit for each column that has, or had, a null anywhere.
    """

    def __init__(self, schema: pa.Schema, rows: Sequence[Rows | None] = ()) -> None:
        self.schema, self.moved = schema, Moved.of(schema)
        self.at = {name: i for i, name in enumerate(schema.names)}
        self.rows: list[Rows | None] = []
        self.threads, self.holes = ALONE, 0
        self.addresses = np.zeros((len(schema), 3, 16), np.uint64)
        self.firsts = np.zeros((len(schema), 2, 16), np.int64)
        for i, each in enumerate(rows):
            self.put(i, each)

    def put(self, number: int, rows: Rows | None) -> None:
        """Make ``number`` stand for some rows, or for none.  O(columns), amortised."""
        while len(self.rows) <= number:
            self.rows.append(None)
        while number >= self.addresses.shape[2]:
            self.addresses = np.concatenate([self.addresses, np.zeros_like(self.addresses)], axis=2)
            self.firsts = np.concatenate([self.firsts, np.zeros_like(self.firsts)], axis=2)
        self.rows[number] = rows
        self.addresses[:, :, number] = 0 if rows is None else rows.addresses
        self.firsts[:, :, number] = 0 if rows is None else rows.firsts
        self.holes |= 0 if rows is None else rows.holes

    def beside(self, events: Rows) -> RowPool:
        """These, as they are now, with the rows of a step as number 0.  O(columns * batches)."""
        out = object.__new__(RowPool)
        out.schema, out.moved, out.at, out.threads = self.schema, self.moved, self.at, self.threads
        out.rows, out.holes = [events, *self.rows[1:]], self.holes | events.holes
        out.addresses, out.firsts = self.addresses.copy(), self.firsts.copy()
        out.addresses[:, :, 0], out.firsts[:, :, 0] = events.addresses, events.firsts
        return out


class View:
    """Rows named by reference; a column is gathered when somebody asks for it, and then kept.

    ``references``: int64[n], as `gather` takes them.  ``near``: gives a column otherwise where that is cheaper, else
    None.  It has the methods of a table that operators use.
    """

    def __init__(
        self,
        pool: RowPool,
        references: Array,
        schema: pa.Schema,
        near: Callable[[str], pa.Array | None] | None = None,
    ) -> None:
        self.pool, self.references, self.schema, self.near = pool, references, schema, near
        self._made: dict[str, pa.Array] = {}

    @property
    def num_rows(self) -> int:
        """How many."""
        return int(self.references.size)

    @property
    def column_names(self) -> list[str]:
        """The names of the columns."""
        return list(self.schema.names)

    @property
    def columns(self) -> list[pa.Array]:
        """All columns.  O(n) each, once."""
        made, near = self._made, self.near
        missing = [name for name in self.schema.names if name not in made]
        if near is not None:
            made |= {name: column for name in missing if (column := near(name)) is not None}
            missing = [name for name in missing if name not in made]
        if missing:
            columns = gathered(self.pool, self.references, pa.schema(map(self.schema.field, missing)))
            made |= zip(missing, columns, strict=True)
        return [made[name] for name in self.schema.names]

    def column(self, name: str) -> pa.Array:
        """One column.  O(n), once."""
        made = self._made.get(name)
        if made is None:
            made = self.near(name) if self.near is not None else None
            if made is None:
                made = gather_column(self.pool, self.references, self.schema.field(name))
            self._made[name] = made
        return made

    def take(self, places: pa.Array) -> View:
        """The rows at some places: nothing is gathered for it but what was before.  O(places)."""
        out = View(self.pool, self.references.take(np.asarray(places)), self.schema)
        out._made = {name: column.take(places) for name, column in self._made.items()}
        return out

    def slice(self, begin: int, size: int) -> View:
        """The rows [begin, begin + size)."""
        return self.take(pa.array(np.arange(begin, begin + size)))

    def select(self, names: Sequence[str]) -> pa.Table:
        """Some columns as a table."""
        return pa.table([self.column(n) for n in names], schema=pa.schema([self.schema.field(n) for n in names]))


def gather(pool: RowPool, references: Array, schema: pa.Schema) -> pa.Table:
    """The rows that ``references`` name, in their order.

    ``references``: int64[n], batch number and row packed as in ``kernels.gather``; flags above are ignored.
    ``schema``: the columns wanted.  Raises `TooLarge` when a 32-bit text column would pass 2 GiB.  O(n) a column.
    """
    return pa.Table.from_arrays(gathered(pool, references, schema), schema=schema)


def gathered(pool: RowPool, references: Array, schema: pa.Schema) -> list[pa.Array]:
    """The columns of `gather`."""
    if len(schema) == 1:
        return [gather_column(pool, references, schema.field(0))]
    made = [_laid_out(pool, references, field) for field in schema]
    works = [work for _, work in made if work is not None]

    def span(begin: int, end: int) -> None:
        for work in works:
            work(begin, end)

    pool.threads.over(references.size, span, MOVED * len(works))
    return [column for column, _ in made]


def gather_column(pool: RowPool, references: Array, field: pa.Field) -> pa.Array:
    """One column of `gather`."""
    column, work = _laid_out(pool, references, field)
    if work is not None:
        pool.threads.over(references.size, work, MOVED)
    return column


def _laid_out(pool: RowPool, references: Array, field: pa.Field) -> tuple[pa.Array, Work | None]:
    """One column of `gather`, and what writes its values for a span of the references where they are not yet there."""
    kind, n, at = field.type, references.size, pool.at[field.name]
    how, wide = layout(kind)
    if how == OTHER:
        return _take(pool.rows, references, at, kind), None
    # Arrays of numpy are from the system's heap, which keeps what steps before it gave back.
    bases, firsts = pool.addresses[at], pool.firsts[at]
    validity, nulls = None, 0
    work: Work | None = None
    if field.nullable and pool.holes >> at & 1 and bases[0].any():
        bits = np.empty((n + 7) // 8, np.uint8)
        nulls = gather_bits(references, bases[0], firsts[0], bits)
        validity = pa.py_buffer(bits)
    if how == BITS:
        values = np.empty((n + 7) // 8, np.uint8)
        gather_bits(references, bases[1], firsts[1], values)
        buffers = [validity, pa.py_buffer(values)]
    elif how == WORDS:
        moved = pa.py_buffer(np.empty(n * wide, np.uint8))
        start, size, first = moved.address, np.int64(wide), bases[1]
        buffers = [validity, moved]

        def work(a: int, b: int) -> None:
            gather_words(references[a:b], first, size, np.uint64(start + a * wide))
    else:
        ends, moved = _sized(references, bases[1], wide, field.name)
        to, size, first, data = np.uint64(moved.address), np.int64(wide), bases[1], bases[2]
        buffers = [validity, pa.py_buffer(ends if wide == 8 else ends.astype(np.int32)), moved]

        def work(a: int, b: int) -> None:
            gather_bytes(references[a:b], first, data, size, ends[a : b + 1], to)

    return pa.Array.from_buffers(kind, n, buffers, nulls), work


def _sized(references: Array, bases: Array, wide: int, name: str) -> tuple[Array, pa.Buffer]:
    """Where gathered byte strings end, int64[n + 1], and room for their bytes."""
    ends = np.empty(references.size + 1, np.int64)
    total = gather_sizes(references, bases, np.int64(wide), ends)
    if wide == 4 and total > 2**31 - 1:
        raise TooLarge(
            f"column {name!r} of one output",
            f"its text takes {total:,} bytes, 32-bit offsets reach 2 GiB",
            "take smaller steps, or declare the column large_string",
        )
    return ends, pa.py_buffer(np.empty(total, np.uint8))


def _take(pool: Sequence[Rows | None], references: Array, at: int, kind: pa.DataType) -> pa.Array:
    """Any other type, by Arrow: each batch's rows taken together, then put in order."""
    batch, rows = (references >> SLOT) & SLOTS, references & ROWS
    counts = np.bincount(batch)
    numbers = np.flatnonzero(counts)
    if not numbers.size:
        return pa.nulls(0, kind)
    # Of 16 bits where they fit: then a stable sort is one by digits.
    order = np.argsort(batch.astype(np.uint16 if counts.size <= 1 << 16 else np.uint32), kind="stable")
    by, ends = rows[order], np.cumsum(counts[numbers])
    parts = []
    for number, begin, end in zip(numbers.tolist(), [0, *ends[:-1]], ends, strict=True):
        rows_of = pool[number]
        assert rows_of is not None, f"a reference points at batch {number}, which is gone"
        if numbers.size == 1:
            return rows_of.columns[at].take(pa.array(rows))
        parts.append(rows_of.columns[at].take(pa.array(by[begin:end])))
    place = np.empty(order.size, np.int64)
    place[order] = np.arange(order.size)
    return pa.concat_arrays(parts).take(pa.array(place))


def shown_row(rows: pa.Table | pa.RecordBatch, row: int) -> dict[str, Any]:
    """One row for an error's message: Python values, and the bare number of a time that Python has no value for."""
    out: dict[str, Any] = {}
    for name in rows.schema.names:
        scalar = rows.column(name)[row]
        try:
            out[name] = scalar.as_py()
        except (OverflowError, ValueError):
            out[name] = getattr(scalar, "value", f"a {scalar.type}")
    return out
