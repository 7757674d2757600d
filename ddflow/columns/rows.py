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

from collections.abc import Container, Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from ddflow.columns.layout import (
    BITS,
    OTHER,
    SMALL,
    WORDS,
    Array,
    Column,
    ColumnBuffers,
    ColumnLayouts,
    find_addresses,
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
    follow_places,
    gather_bits,
    gather_bytes_by_blocks,
    gather_columns,
    gather_offsets,
    gather_offsets_by_blocks,
    plan_block_gather,
)

NEAR = 1 << 12
"""Two rows closer than this number of rows are probably in the same pages of memory."""
DESCRIBED = 64
"""The number of schemas whose columns a pool describes at most."""
MOST_TEXT = 2**31 - 1
"""The maximum number of bytes that 32-bit offsets can address."""
MOVED = 8
"""The approximate time to gather a value, in nanoseconds."""


class Rows:
    """A batch of rows: columns with one chunk each, and the addresses of the buffers.

    ``filled``: columns whose nulls occur only in deletions, which no operator reads, so gathering ignores validity.
    ``addresses``: uint64[columns, 5]. For each column, this array holds the addresses of the validity bitmap (0 without
    nulls), of the values or offsets, and of the bytes, then the bit positions of row 0 in the validity bitmap and in
    boolean values. ``holes``: a bit for each column, set if the column has a validity bitmap. ``held``: the bytes of
    the buffers. ``places``: int32[rows], the position of each row in the columns, or None if row i is at position i.
    The constructor is O(columns).
    """

    __slots__ = ("_columns", "_given", "_table", "addresses", "held", "holes", "places", "schema", "size")
    _columns: list[pa.Array] | None
    _given: Sequence[Column]
    _table: pa.Table | pa.RecordBatch | None
    addresses: Array
    held: int
    holes: int
    places: Array | None
    schema: pa.Schema
    size: int

    def __init__(self, table: pa.Table | pa.RecordBatch, filled: Container[str] = ()) -> None:
        made = Rows.from_columns(column_arrays(table), ColumnLayouts.from_schema(table.schema), table.num_rows, filled)
        for slot in self.__slots__:
            setattr(self, slot, getattr(made, slot))
        self._table = table

    @classmethod
    def from_columns(
        cls,
        columns: Sequence[Column],
        shape: ColumnLayouts,
        size: int,
        filled: Container[str] = (),
        places: Array | None = None,
    ) -> Rows:
        """Make ``size`` rows from columns. Arrow arrays and a table are built on first use."""
        out = object.__new__(cls)
        out._table, out._given, out._columns = None, columns, None
        out.schema, out.size, out.places = shape.schema, size, places
        out.addresses, out.held, holes = find_addresses(columns, shape.ways)
        if holes:
            for i, name in enumerate(shape.names):
                if name in filled:
                    holes &= ~(1 << i)
        out.holes = holes
        if places is not None:
            out.held += places.nbytes
        return out

    @property
    def stored_columns(self) -> list[pa.Array]:
        """The columns as Arrow arrays, in the order of positions."""
        if self._columns is None:
            self._columns = to_arrow_arrays(self._given)
        return self._columns

    @property
    def columns(self) -> list[pa.Array]:
        """The columns as Arrow arrays.  O(rows) for each column, each time, if the rows have places."""
        if self.places is None:
            return self.stored_columns
        return gather_arrays(RowPool(self.schema, [self]), np.arange(self.size), self.schema)

    @property
    def table(self) -> pa.Table | pa.RecordBatch:
        """The rows as a table or record batch.  O(rows) for each column, each time, if the rows have places."""
        if self.places is not None:
            return pa.RecordBatch.from_arrays(self.columns, schema=self.schema)
        if self._table is None:
            self._table = pa.RecordBatch.from_arrays(self.columns, schema=self.schema)
        return self._table

    def __len__(self) -> int:
        return self.size

    @property
    def nbytes(self) -> int:
        """The total size of the Arrow buffers of these rows, in bytes."""
        return int(self.table.nbytes)


class PooledColumn(NamedTuple):
    """A column of a pool, with the facts that gathering needs: `column_layout` and the name, type and nullability."""

    at: int
    how: int
    wide: int
    nullable: bool
    kind: pa.DataType
    name: str


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
        self.addresses, self.places = np.zeros((len(schema), 5, 16), np.uint64), np.zeros(16, np.uint64)
        self.placed = False
        """Whether a batch has or had rows with places."""
        self._described: dict[int, tuple[Iterable[pa.Field], dict[str, PooledColumn]]] = {}
        for i, each in enumerate(rows):
            self.set_batch(i, each)

    def set_batch(self, number: int, rows: Rows | None) -> None:
        """Set the rows of the batch with this number, or drop the batch if ``rows`` is None. O(columns), amortised."""
        while len(self.rows) <= number:
            self.rows.append(None)
        while number >= self.addresses.shape[2]:
            self.addresses = np.concatenate([self.addresses, np.zeros_like(self.addresses)], axis=2)
            self.places = np.concatenate([self.places, np.zeros_like(self.places)])
        self.rows[number] = rows
        if self.placed:
            self.places[number] = 0
        if rows is None:
            self.addresses[:, :, number] = 0
        else:
            self.addresses[:, :, number] = rows.addresses
            self.holes |= rows.holes
            if rows.places is not None:
                self.placed, self.places[number] = True, rows.places.ctypes.data

    def describe_columns(self, schema: Iterable[pa.Field]) -> dict[str, PooledColumn]:
        """Describe the columns of the pool that ``schema`` names, by name. O(columns) for each schema, once."""
        known = self._described.get(id(schema))
        if known is None:
            if len(self._described) > DESCRIBED:
                self._described.clear()
            # A view can have columns that the pool lacks, if no operator reads them.
            known = schema, {field.name: self.describe_column(field) for field in schema if field.name in self.at}
            self._described[id(schema)] = known  # with the schema, so that no other schema gets its id
        return known[1]

    def describe_column(self, field: pa.Field) -> PooledColumn:
        """Describe one column of the pool."""
        at = self.at[field.name]
        return PooledColumn(at, *self.shape.ways[at], field.nullable, field.type, field.name)

    def copy(self) -> RowPool:
        """Copy the pool. Batches that are set later do not appear in the copy. O(columns * batches)."""
        out = object.__new__(RowPool)  # the copy module would slow down small steps
        out.__dict__.update(
            self.__dict__, rows=self.rows.copy(), addresses=self.addresses.copy(), places=self.places.copy()
        )
        return out

    def find_positions(self, references: Array) -> Array:
        """Return the references, without flags, with positions in columns in place of row numbers. O(n)."""
        if not self.placed:
            return references
        out = np.empty(references.size, np.int64)
        follow_places(references, self.places, out)
        return out

    def with_events(self, events: Rows) -> RowPool:
        """Copy the pool, with the rows of a step as batch 0. O(columns * batches)."""
        out = self.copy()
        out.set_batch(0, events)
        return out


def gather_table(pool: RowPool, references: Array, schema: pa.Schema) -> pa.Table:
    """Gather the rows at ``references``, in their order.

    ``references``: int64[n], batch number and row packed as in ``kernels.gather``; higher flag bits are ignored.
    ``schema``: the columns to gather. Raises `TooLarge` if a 32-bit text column would exceed 2 GiB. O(n) per column.
    """
    return pa.Table.from_arrays(gather_arrays(pool, references, schema), schema=schema)


def gather_arrays(pool: RowPool, references: Array, fields: Iterable[pa.Field]) -> list[pa.Array]:
    """Gather rows of the columns in ``fields``, like `gather_table`, but return arrays instead of a table."""
    return to_arrow_arrays(gather_buffers(pool, references, fields))


def gather_column(pool: RowPool, references: Array, field: pa.Field) -> pa.Array:
    """Gather rows of one column, like `gather_table`, but return an array."""
    return gather_arrays(pool, references, [field])[0]


def gather_buffers(pool: RowPool, references: Array, fields: Iterable[pa.Field]) -> list[Column]:
    """Gather rows of the columns in ``fields``, like `gather_table`, but return columns for `Rows.from_columns`."""
    return gather_columns_of_pool(pool, references, [pool.describe_column(field) for field in fields])


def gather_columns_of_pool(pool: RowPool, references: Array, wanted: Iterable[PooledColumn]) -> list[Column]:
    """Gather rows of the columns ``wanted``, like `gather_buffers`."""
    columns: list[Column] = []
    plan: list[tuple[int, int, int, int]] = []
    read: list[pa.Buffer] = []
    n, addresses, holes, order = references.size, pool.addresses, pool.holes, None
    references = pool.find_positions(references)
    for at, how, wide, nullable, kind, name in wanted:
        # numpy allocates from the system's heap, which keeps memory freed by earlier steps.
        validity, nulls = None, 0
        if how == OTHER:
            columns.append(_take_by_arrow(pool.rows, references, at, kind))
            continue
        if nullable and holes >> at & 1 and (bases := addresses[at])[0].any():
            bits = np.empty((n + 7) // 8, np.uint8)
            nulls = gather_bits(references, bases[0], bases[3].view(np.int64), bits)
            validity = pa.py_buffer(bits)
        if how == WORDS:
            moved = pa.py_buffer(np.empty(n * wide, np.uint8))
            plan.append((at, wide, moved.address, 0))
            buffers = [validity, moved]
        elif how == BITS:
            values = np.empty((n + 7) // 8, np.uint8)
            gather_bits(references, addresses[at, 1], addresses[at, 4].view(np.int64), values)
            buffers = [validity, pa.py_buffer(values)]
        else:
            ends = np.empty(n + 1, np.int64)
            if order is None and n >= MANY and _are_scattered(references):
                order = _plan_block_gather(pool.rows, references)
            bases = addresses[at]
            if order is None:
                size = gather_offsets(references, bases[1], np.int64(wide), ends)
            else:
                size = gather_offsets_by_blocks(order, bases[1], np.int64(wide), np.empty(n, np.int32), ends)
            if wide == 4 and size > MOST_TEXT:
                raise _build_text_error(size, name)
            moved = pa.py_buffer(np.empty(size, np.uint8))
            if order is None:
                read.append(pa.py_buffer(ends))
                plan.append((at, wide, moved.address, read[-1].address))
            else:
                scratch = np.empty(size, np.uint8)
                places = np.uint64(scratch.ctypes.data), np.uint64(moved.address)
                gather_bytes_by_blocks(order, bases[1], bases[2], np.int64(wide), ends, *places)
            buffers = [validity, pa.py_buffer(ends if wide == 8 else ends.astype(np.int32)), moved]
        columns.append(tuple.__new__(ColumnBuffers, (kind, n, buffers, nulls)))
    if plan:
        todo = np.array(plan, np.uint64)
        if n < SMALL:
            gather_columns(references, addresses, todo, 0)
        else:
            pool.threads.run_spans(
                n, lambda begin, end: gather_columns(references[begin:end], addresses, todo, begin), MOVED * len(plan)
            )
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


def _build_text_error(total: int, name: str) -> TooLarge:
    """Build the error for a gathered text or binary column whose bytes 32-bit offsets cannot address."""
    return TooLarge(
        f"column {name!r} of one output",
        f"its text takes {total:,} bytes, but 32-bit offsets reach 2 GiB",
        "use smaller steps, or declare the column large_string",
        column=name,
    )


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
            return rows_of.stored_columns[at].take(pa.array(rows))
        parts.append(rows_of.stored_columns[at].take(pa.array(by[begin:end])))
    place = np.empty(order.size, np.int64)
    place[order] = np.arange(order.size)
    return pa.concat_arrays(parts).take(pa.array(place))


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
