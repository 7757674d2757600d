"""Gather rows from any number of batches. A reference is the number of a batch and the number of a row.

Rows never change. A gathered column owns its memory, and holds the referenced values and nothing else. Kernels copy
fixed-width values, bits and byte strings, and Arrow's ``take`` copies every other type. Each column has one chunk, so a
value is located by the address of the chunk's buffer and the row number. This module does not know the keys or orders
of rows.

>>> import numpy as np, pyarrow as pa
>>> old, new = (Rows(pa.table({"city": [name], "n": [n]})) for name, n in (("Bern", 1), ("Basel", 2)))
>>> references = np.array([(1 << 40) | 0, 0], np.int64)  # row 0 of batch 1, row 0 of batch 0
>>> gather_table(RowPool(old.table.schema, [old, new]), references, old.table.schema).to_pylist()
[{'city': 'Basel', 'n': 2}, {'city': 'Bern', 'n': 1}]
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from ddflow.columns.layout import (
    BITS,
    BYTES,
    OTHER,
    WORDS,
    Array,
    Column,
    ColumnBuffers,
    ColumnLayouts,
    buffer_address,
    to_arrow_arrays,
)
from ddflow.columns.schema import column_arrays, to_batch
from ddflow.columns.threads import ALONE
from ddflow.errors import TooLarge
from ddflow.kernels.gather import (
    MANY,
    ROWS,
    SLOT,
    SLOTS,
    BlockOrder,
    gather_bits,
    gather_bytes_by_blocks,
    gather_columns,
    gather_offsets,
    gather_offsets_by_blocks,
    plan_block_gather,
)

NEAR = 1 << 12
"""Two rows closer than this number of rows are probably in the same pages of memory."""
MOVED = 8
"""The approximate time to gather a value, in nanoseconds."""


class Rows:
    """A batch of rows: columns with one chunk each, and the addresses of the buffers.

    ``filled``: columns whose nulls occur only in deletions, which no operator reads, so gathering ignores validity.
    ``addresses``: uint64[columns, 5]. For each column, this array holds the addresses of the validity bitmap (0 without
    nulls), of the values or offsets, and of the bytes, then the bit positions of row 0 in the validity bitmap and in
    boolean values. ``holes``: a bit for each column, set if the column has a validity bitmap. ``held``: the bytes of
    the buffers. The constructor is O(columns).
    """

    __slots__ = ("_columns", "_given", "_table", "addresses", "held", "holes", "schema", "size")

    def __init__(self, table: pa.Table | pa.RecordBatch, filled: Container[str] = ()) -> None:
        self._table: pa.Table | pa.RecordBatch | None = table
        columns = table.columns if isinstance(table, pa.RecordBatch) else column_arrays(table)
        self._set_columns(columns, ColumnLayouts.from_schema(table.schema), table.num_rows, filled)

    @classmethod
    def from_columns(
        cls, columns: Sequence[Column], shape: ColumnLayouts, size: int, filled: Container[str] = ()
    ) -> Rows:
        """Make ``size`` rows from columns. Arrow arrays and a table are built on first use."""
        out = object.__new__(cls)
        out._table = None
        out._set_columns(columns, shape, size, filled)
        return out

    def _set_columns(self, columns: Sequence[Column], shape: ColumnLayouts, size: int, filled: Container[str]) -> None:
        self._given = columns
        self._columns: list[pa.Array] | None = None
        self.schema, self.size, self.holes, self.held = shape.schema, size, 0, 0
        self.addresses = np.zeros((len(columns), 5), np.uint64)
        for i, (column, name, (how, wide)) in enumerate(zip(columns, shape.names, shape.ways, strict=True)):
            buffers, start = (
                (column.buffers, 0) if isinstance(column, ColumnBuffers) else (column.buffers(), column.offset)
            )
            for buffer in buffers:
                self.held += 0 if buffer is None else buffer.size
            if column.null_count and name not in filled:
                self.addresses[i, 0], self.addresses[i, 3] = buffer_address(buffers[0]), start
                self.holes |= 1 << i
            if how == BITS:
                self.addresses[i, 4] = start
            if how != OTHER and buffers[1] is not None:
                self.addresses[i, 1] = buffers[1].address + start * wide
            if how == BYTES and buffers[2] is not None:
                self.addresses[i, 2] = buffers[2].address

    @property
    def columns(self) -> list[pa.Array]:
        """The columns as Arrow arrays."""
        if self._columns is None:
            self._columns = to_arrow_arrays(self._given)
        return self._columns

    @property
    def table(self) -> pa.Table | pa.RecordBatch:
        """The rows as a table or record batch."""
        if self._table is None:
            self._table = pa.RecordBatch.from_arrays(self.columns, schema=self.schema)
        return self._table

    def __len__(self) -> int:
        return self.size

    @property
    def nbytes(self) -> int:
        """The total size of the Arrow buffers of these rows, in bytes."""
        return int(self.table.nbytes)


class RowPool:
    """A pool of batches, to which references point by batch number. Kernels get the addresses of the buffers.

    ``schema``: the columns, the same for all batches. The pool grows, and the number of a dropped batch may be used
    again. ``holes``: a bit for each column, set if the column has or had a null in any batch.
    """

    def __init__(self, schema: pa.Schema, rows: Sequence[Rows | None] = ()) -> None:
        self.schema, self.shape = schema, ColumnLayouts.from_schema(schema)
        self.at = {name: i for i, name in enumerate(schema.names)}
        self.rows: list[Rows | None] = []
        self.threads, self.holes = ALONE, 0
        self.addresses = np.zeros((len(schema), 5, 16), np.uint64)
        for i, each in enumerate(rows):
            self.set_batch(i, each)

    def set_batch(self, number: int, rows: Rows | None) -> None:
        """Set the rows of the batch with this number, or drop the batch if ``rows`` is None. O(columns), amortised."""
        while len(self.rows) <= number:
            self.rows.append(None)
        while number >= self.addresses.shape[2]:
            self.addresses = np.concatenate([self.addresses, np.zeros_like(self.addresses)], axis=2)
        self.rows[number] = rows
        if rows is None:
            self.addresses[:, :, number] = 0
        else:
            self.addresses[:, :, number] = rows.addresses
            self.holes |= rows.holes

    def copy(self) -> RowPool:
        """Copy the pool. Batches that are set later do not appear in the copy. O(columns * batches)."""
        out = object.__new__(RowPool)  # the copy module would slow down small steps
        out.__dict__.update(self.__dict__, rows=self.rows.copy(), addresses=self.addresses.copy())
        return out

    def with_events(self, events: Rows) -> RowPool:
        """Copy the pool, with the rows of a step as batch 0. O(columns * batches)."""
        out = self.copy()
        out.set_batch(0, events)
        return out


class RowView:
    """A view of referenced rows of a pool. A column is gathered on first use, then cached.

    ``references``: int64[n], as for `gather_table`. ``near``: a function that returns a column by name from a cheaper
    source, or None. The view has those methods of a table that operators call.
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
        """Number of rows."""
        return int(self.references.size)

    @property
    def column_names(self) -> list[str]:
        """The names of the columns."""
        return list(self.schema.names)

    @property
    def columns(self) -> list[pa.Array]:
        """All columns. O(n) each, once."""
        return self.gather_by_name(self.schema.names)

    def column(self, name: str) -> pa.Array:
        """Gather one column. O(n), once."""
        return self.gather_by_name([name])[0]

    def gather_by_name(self, names: Sequence[str]) -> list[pa.Array]:
        """Gather the named columns. O(n) each, once."""
        made, near = self._made, self.near
        missing: list[pa.Field] = []
        for name in names:
            if name not in made:
                column = None if near is None else near(name)
                if column is None:
                    missing.append(self.schema.field(name))
                else:
                    made[name] = column
        if missing:
            for field, each in zip(missing, gather_buffers(self.pool, self.references, missing), strict=True):
                made[field.name] = pa.Array.from_buffers(*each) if isinstance(each, ColumnBuffers) else each
        return [made[name] for name in names]

    def take(self, places: pa.Array) -> RowView:
        """Take the rows at ``places``.

        Columns that are already gathered are taken at once. All other columns are gathered on first use. O(places).
        """
        out = RowView(self.pool, self.references.take(np.asarray(places)), self.schema)
        out._made = {name: column.take(places) for name, column in self._made.items()}
        return out

    def slice(self, begin: int, size: int) -> RowView:
        """Slice ``size`` rows, starting at row ``begin``."""
        return self.take(pa.array(np.arange(begin, begin + size)))

    def select(self, names: Sequence[str]) -> pa.Table:
        """Build a table of the named columns."""
        return pa.table(self.gather_by_name(names), schema=pa.schema([self.schema.field(n) for n in names]))


class RowSlice(RowView):
    """A view of one row. Its columns are slices of the columns of the row's batch, so nothing is copied.

    The view keeps the memory of the batch. It stays valid when the pool changes.

    >>> pool = RowPool(pa.schema({"n": pa.int64()}), [Rows(pa.table({"n": [7, 8]}))])
    >>> RowSlice(pool, np.array([1]), pool.schema).to_dict(["n"])
    {'n': 8}
    """

    def __init__(self, pool: RowPool, references: Array, schema: pa.Schema) -> None:
        super().__init__(pool, references, schema)
        reference = int(references[0])
        rows = pool.rows[reference >> SLOT & SLOTS]
        assert rows is not None, f"reference {reference} points at a batch that is gone"
        self._batch, self._row, self._at = rows.columns, reference & ROWS, pool.at

    def gather_by_name(self, names: Sequence[str]) -> list[pa.Array]:
        """Slice the named columns. O(1) each."""
        return [self._batch[self._at[name]].slice(self._row, 1) for name in names]

    def take(self, places: pa.Array) -> Any:
        """Copy the row as often as ``places`` has its place. O(places) for each column."""
        return self.select(self.schema.names).take(places)

    def to_dict(self, names: Iterable[str]) -> dict[str, Any]:
        """Convert the named columns to Python values, by name."""
        return {name: self._batch[self._at[name]][self._row].as_py() for name in names}


def gather_table(pool: RowPool, references: Array, schema: pa.Schema) -> pa.Table:
    """Gather the rows at ``references``, in their order.

    ``references``: int64[n], batch number and row packed as in ``kernels.gather``; higher flag bits are ignored.
    ``schema``: the columns to gather. Raises `TooLarge` if a 32-bit text column would exceed 2 GiB. O(n) per column.
    """
    return pa.Table.from_arrays(gather_arrays(pool, references, schema), schema=schema)


def gather_or_slice(pool: RowPool, references: Array, schema: pa.Schema) -> Any:
    """Gather rows like `gather_table`, but return a single row as a `RowSlice`."""
    return RowSlice(pool, references, schema) if references.size == 1 else gather_table(pool, references, schema)


def gather_arrays(pool: RowPool, references: Array, fields: Iterable[pa.Field]) -> list[pa.Array]:
    """Gather rows of the columns in ``fields``, like `gather_table`, but return arrays instead of a table."""
    return to_arrow_arrays(gather_buffers(pool, references, fields))


def gather_column(pool: RowPool, references: Array, field: pa.Field) -> pa.Array:
    """Gather rows of one column, like `gather_table`, but return an array."""
    return gather_arrays(pool, references, [field])[0]


def gather_buffers(pool: RowPool, references: Array, fields: Iterable[pa.Field]) -> list[Column]:
    """Gather rows of the columns in ``fields``, like `gather_table`, but return columns for `Rows.from_columns`."""
    columns: list[Column] = []
    plan: list[tuple[int, int, int, int]] = []
    read: list[pa.Buffer] = []
    n, addresses, ways, order = references.size, pool.addresses, pool.shape.ways, None
    for field in fields:
        at = pool.at[field.name]
        how, wide = ways[at]
        # numpy allocates from the system's heap, which keeps memory freed by earlier steps.
        bases, validity, nulls = addresses[at], None, 0
        if how == OTHER:
            columns.append(_take_by_arrow(pool.rows, references, at, field.type))
            continue
        if field.nullable and pool.holes >> at & 1 and bases[0].any():
            bits = np.empty((n + 7) // 8, np.uint8)
            nulls = gather_bits(references, bases[0], bases[3].view(np.int64), bits)
            validity = pa.py_buffer(bits)
        if how == WORDS:
            moved = pa.py_buffer(np.empty(n * wide, np.uint8))
            plan.append((at, wide, moved.address, 0))
            buffers = [validity, moved]
        elif how == BITS:
            values = np.empty((n + 7) // 8, np.uint8)
            gather_bits(references, bases[1], bases[4].view(np.int64), values)
            buffers = [validity, pa.py_buffer(values)]
        else:
            ends = np.empty(n + 1, np.int64)
            if order is None and n >= MANY and _are_scattered(references):
                order = _plan_block_gather(pool.rows, references)
            if order is None:
                moved = _allocate_text(gather_offsets(references, bases[1], np.int64(wide), ends), wide, field.name)
                read.append(pa.py_buffer(ends))
                plan.append((at, wide, moved.address, read[-1].address))
            else:
                size = gather_offsets_by_blocks(order, bases[1], np.int64(wide), np.empty(n, np.int32), ends)
                moved, scratch = _allocate_text(size, wide, field.name), np.empty(size, np.uint8)
                places = np.uint64(scratch.ctypes.data), np.uint64(moved.address)
                gather_bytes_by_blocks(order, bases[1], bases[2], np.int64(wide), ends, *places)
            buffers = [validity, pa.py_buffer(ends if wide == 8 else ends.astype(np.int32)), moved]
        columns.append(ColumnBuffers(field.type, n, buffers, nulls))
    if plan:
        todo = np.array(plan, np.uint64)

        def work(begin: int, end: int) -> None:
            gather_columns(references[begin:end], addresses, todo, begin)

        pool.threads.run_spans(n, work, MOVED * len(plan))
    return columns


def _are_scattered(references: Array) -> bool:
    """Return whether most rows are far from the next row, by a sample."""
    some = np.linspace(0, references.size - 2, 512).astype(np.int64)
    return bool((np.abs(references[some + 1] - references[some]) > NEAR).mean() > 0.5)


def _plan_block_gather(batches: Sequence[Rows | None], references: Array) -> BlockOrder:
    """Plan to gather rows by blocks.  Blocks have 32,768 rows, or more if there would be more than 256 blocks."""
    n = references.size
    bits = max(n.bit_length() - 8, 15)
    blocks = [0, *(1 + (0 if each is None else each.size >> bits) for each in batches)]
    first, order = np.cumsum(blocks), np.empty(n, np.int64)
    told = BlockOrder(order, np.empty(n, np.int32), np.empty(n, np.int32), np.int64(bits))
    plan_block_gather(references, first, np.zeros(int(first[-1]) + 1, np.int64), told)
    return told


def _allocate_text(total: int, wide: int, name: str) -> pa.Buffer:
    """Allocate a buffer for the bytes of a gathered text or binary column.

    Raises `TooLarge` if 32-bit offsets cannot address the bytes.
    """
    if wide == 4 and total > 2**31 - 1:
        raise TooLarge(
            f"column {name!r} of one output",
            f"its text takes {total:,} bytes, but 32-bit offsets reach 2 GiB",
            "use smaller steps, or declare the column large_string",
            column=name,
        )
    return pa.py_buffer(np.empty(total, np.uint8))


def _take_by_arrow(pool: Sequence[Rows | None], references: Array, at: int, kind: pa.DataType) -> pa.Array:
    """Gather a column with Arrow's ``take``.

    First take the rows of each batch, then put them in the order of the references.
    """
    batch, rows = (references >> SLOT) & SLOTS, references & ROWS
    counts = np.bincount(batch)
    numbers = np.flatnonzero(counts)
    if not numbers.size:
        return pa.nulls(0, kind)
    # numpy sorts 16-bit integers stably with a radix sort.
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


def make_row_dict(rows: Any, names: Iterable[str]) -> dict[str, Any]:
    """Convert the named columns of the first row of a table or view to Python values, by name."""
    if isinstance(rows, RowSlice):
        return rows.to_dict(names)
    return {name: rows.column(name)[0].as_py() for name in names}


def row_values(rows: pa.Table | pa.RecordBatch, row: int) -> dict[str, Any]:
    """Convert one row to Python values for an error message.

    A date or time that Python cannot represent becomes a number.
    """
    out: dict[str, Any] = {}
    for name in rows.schema.names:
        scalar = rows.column(name)[row]
        try:
            out[name] = scalar.as_py()
        except (OverflowError, ValueError):
            out[name] = getattr(scalar, "value", f"a {scalar.type}")
    return out


Chosen = tuple[str, int, str]
"""A column of a join's result: the name there, the number of the side that it comes from, and the name on that side."""


class PairedRows:
    """The result of a join: rows of two collections side by side. A column is gathered on first use.

    Row i of the result combines row i of both sides. Like `RowView`, the class has those methods of a table that
    operators call.

    ``sides``: views with equal numbers of rows. ``columns``: the columns chosen from the sides.

    >>> import numpy as np, pyarrow as pa
    >>> cities, names = (pa.table({"of": column}) for column in (["Bern", "Basel"], ["Ann", "Bo"]))
    >>> given = (cities, np.array([1, 1])), (names, np.array([0, 1]))
    >>> views = [RowView(RowPool(table.schema, [Rows(table)]), at, table.schema) for table, at in given]
    >>> pairs = PairedRows(views, [("city", 0, "of"), ("name", 1, "of")])
    >>> pairs.take(pa.array([1])).select(["name", "city"]).to_pylist()
    [{'name': 'Bo', 'city': 'Basel'}]
    """

    def __init__(self, sides: Sequence[RowView], columns: Sequence[Chosen]) -> None:
        self.sides, self.given = list(sides), list(columns)
        self.at = {name: (side, of) for name, side, of in columns}
        self.schema = pa.schema([self.sides[side].schema.field(of).with_name(name) for name, side, of in columns])

    @property
    def num_rows(self) -> int:
        """Number of rows."""
        return self.sides[0].num_rows

    @property
    def column_names(self) -> list[str]:
        """The names of the columns."""
        return list(self.schema.names)

    @property
    def columns(self) -> list[pa.Array]:
        """All columns. O(n) each, once."""
        return self.gather_by_name(self.schema.names)

    def column(self, name: str) -> pa.Array:
        """Gather one column. O(n), once."""
        return self.gather_by_name([name])[0]

    def gather_by_name(self, names: Sequence[str]) -> list[pa.Array]:
        """Gather the named columns. O(n) each, once."""
        read = [[of for side, of in map(self.at.__getitem__, names) if side == each] for each in range(len(self.sides))]
        found = [iter(view.gather_by_name(some)) for view, some in zip(self.sides, read, strict=True)]
        return [next(found[self.at[name][0]]) for name in names]

    def take(self, places: pa.Array) -> PairedRows:
        """Take the rows at ``places``.

        Columns that are already gathered are taken at once. All other columns are gathered on first use. O(places).
        """
        return PairedRows([view.take(places) for view in self.sides], self.given)

    def slice(self, begin: int, size: int) -> PairedRows:
        """Slice ``size`` rows, starting at row ``begin``."""
        return self.take(pa.array(np.arange(begin, begin + size)))

    def select(self, names: Sequence[str]) -> pa.Table:
        """Build a table of the named columns."""
        return pa.table(self.gather_by_name(names), schema=pa.schema([self.schema.field(name) for name in names]))


def take_rows(table: pa.Table, rows: Array, size: int = 1 << 16) -> pa.Table:
    """Gather rows of a table by number. A number of -1 gives a row of nulls.

    ``size``: the number of rows to gather from at a time, so that no column is joined to one array. O(table's batches
    + rows log rows).

    >>> take_rows(pa.table({"n": [5, 6, 7]}), np.array([2, -1, 0])).column("n").to_pylist()
    [7, None, 5]
    """
    there = np.flatnonzero(rows >= 0)
    order = there[np.argsort(rows[there])]
    ascending, place = rows[order], np.zeros(rows.size, np.int64)
    place[order] = np.arange(order.size)
    parts = [table.slice(0, 0)]
    for begin in (np.unique(ascending // size) * size).tolist():
        first, end = np.searchsorted(ascending, (begin, begin + size))
        batch = to_batch(table.slice(begin, size)).take(pa.array(ascending[first:end] - begin))
        parts.append(pa.Table.from_batches([batch], table.schema))
    taken = to_batch(pa.concat_tables(parts)).take(pa.array(place, mask=rows < 0))
    return pa.Table.from_batches([taken], table.schema)
