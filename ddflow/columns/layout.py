"""Describe the memory layout of columns: the types that kernels move, their buffers, and scratch memory for a step.

`column_layout` tells kernels how to copy a value of a type. `ColumnBuffers` holds the buffers of a column until an
Arrow array is needed. `Arena` reuses one block of memory for the scratch arrays of each step.

Limits: each step reuses the memory of the previous step, so an array from an arena must not be used after the step that
allocated it.

>>> column_layout(pa.int32()) == (WORDS, 4), column_layout(pa.string()) == (BYTES, 4)
(True, True)
>>> ColumnLayouts.from_schema(pa.schema({"flag": pa.bool_()})).ways == [(BITS, 0)]
True
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import cache
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.types as pat

Array = np.ndarray[Any, np.dtype[Any]]
WORDS, BYTES, BITS, OTHER = range(4)


@cache
def column_layout(kind: pa.DataType) -> tuple[int, int]:
    """Return how kernels copy values of a type, as a code and a number of bytes.

    If the code is `WORDS`, the number is the width of a value. If the code is `BYTES`, the number is the width of an
    offset. If the code is `OTHER`, Arrow copies the values, and no kernel does.
    """
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


def fixed_width(kind: pa.DataType) -> int:
    """Return the bytes per value of a fixed-width type that kernels copy, or 0 for any other type."""
    how, wide = column_layout(kind)
    return wide if how == WORDS else 0


def offset_width(kind: pa.DataType) -> int:
    """Return the bytes per offset of a text or binary type, or 0 for any other type."""
    how, wide = column_layout(kind)
    return wide if how == BYTES else 0


def buffer_address(buffer: pa.Buffer | None) -> int:
    """Return the address of a buffer, or 0 if the buffer is None."""
    return 0 if buffer is None else int(buffer.address)


class _WritableMemory:
    """An owner of memory that numpy can view as a writable array."""

    def __init__(self, array: Array) -> None:
        self.owner = array
        self.__array_interface__ = {**array.__array_interface__, "data": (array.ctypes.data, False)}


def make_writable(array: Array) -> Array:
    """Make a writable array over the same memory. Callers must not write to the array. O(1).

    Without this function, numba would compile kernels a second time, for read-only arrays.
    """
    return array if array.flags.writeable else np.asarray(_WritableMemory(array))


class ColumnLayouts(NamedTuple):
    """The columns of a schema. ``ways`` holds the result of `column_layout` for each column."""

    schema: pa.Schema
    names: list[str]
    ways: list[tuple[int, int]]

    @classmethod
    def from_schema(cls, schema: pa.Schema) -> ColumnLayouts:
        """Find the layouts of a schema's columns. O(columns)."""
        return cls(schema, schema.names, [column_layout(field.type) for field in schema])


class ColumnBuffers(NamedTuple):
    """The parts of an Arrow array: its type, size, buffers and number of nulls."""

    kind: pa.DataType
    size: int
    buffers: list[pa.Buffer | None]
    null_count: int


Column = pa.Array | ColumnBuffers


def find_addresses(columns: Iterable[Column], ways: Sequence[tuple[int, int]]) -> tuple[Array, int, int]:
    """Find the addresses of the buffers of columns, as in `ddflow.columns.rows.Rows`. O(columns).

    Return the addresses, the bytes of the buffers, and a bit for each column, set if the column has nulls. ``ways``:
    the layout of each column.
    """
    addresses = np.zeros((len(ways), 5), np.uint64)
    held = holes = 0
    for i, column in enumerate(columns):
        how, wide = ways[i]
        start = 0
        if isinstance(column, ColumnBuffers):
            _, _, buffers, nulls = column
        else:
            buffers, start, nulls = column.buffers(), column.offset, column.null_count
        for buffer in buffers:
            if buffer is not None:
                held += buffer.size
        if nulls:
            addresses[i, 0], addresses[i, 3] = buffer_address(buffers[0]), start
            holes |= 1 << i
        if how == BITS:
            addresses[i, 4] = start
        if how != OTHER and buffers[1] is not None:
            addresses[i, 1] = buffers[1].address + start * wide
        if how == BYTES and buffers[2] is not None:
            addresses[i, 2] = buffers[2].address
    return addresses, held, holes


def to_arrow_arrays(columns: Iterable[Column]) -> list[pa.Array]:
    """Convert columns to Arrow arrays. O(columns)."""
    return [pa.Array.from_buffers(*each) if isinstance(each, ColumnBuffers) else each for each in columns]


SMALL = 256
"""An array with fewer elements than this is not placed in the block of an arena."""
BULK = 1 << 16
"""From this number of rows on, it pays to find out first whether rows need to be copied or moved."""
STAGGER = 5 * 64
"""Bytes between arrays of an arena: an odd number of cache lines, so that arrays begin in different cache sets."""


@cache
def keep_freed_memory() -> None:
    """Make the C library keep freed memory, because fresh memory costs a page fault per 4 KB.

    The function runs once per process. glibc maps a new block for each allocation above a threshold, and returns free
    memory to the system if the free memory exceeds twice the threshold. When a mapped block is freed, glibc raises the
    threshold to the size of the block. To raise the threshold, this function allocates and frees a large block.
    """
    np.empty(16 << 20, np.uint8)


class Arena:
    """Scratch memory for one step at a time.

    ``block``: the memory, which grows to the size that the largest step needed.

    >>> arena = Arena()
    >>> a, b = arena.empty(100, np.int64), arena.empty((10, 2), np.uint8)
    >>> a[:], b[:] = 1, 2
    >>> int(a.sum()), int(b.sum())
    (100, 40)
    """

    def __init__(self) -> None:
        self.block: np.ndarray[Any, np.dtype[np.uint8]] = np.empty(0, np.uint8)
        self.used = 0

    @classmethod
    def with_capacity(cls, nbytes: int) -> Arena:
        """Make an arena of ``nbytes`` bytes, for arrays that are all released together. O(1)."""
        arena = cls()
        arena.used = nbytes
        arena.reset()
        return arena

    def reset(self) -> None:
        """Make all memory of the arena free again. All earlier arrays become invalid.

        If the last step needed more memory than the block has, the block grows.
        """
        if self.used > self.block.size:
            size = self.used + self.used // 8
            room = np.empty(size + 64, np.uint8)
            begin = -room.ctypes.data % 64
            self.block = room[begin : begin + size]
        self.used = 0

    def choose_allocator(self, n: int) -> Callable[..., Any]:
        """Return a function that allocates arrays of about ``n`` elements:

        `empty`, or ``numpy.empty`` for short arrays.
        """
        return np.empty if n < SMALL else self.empty

    def empty(self, shape: int | tuple[int, ...], dtype: Any) -> Any:
        """Allocate a contiguous array of unspecified content.

        An array from the block is aligned to a cache line. O(1).
        """
        if shape.__class__ is int and shape < SMALL:
            return np.empty(shape, dtype)
        kind = np.dtype(dtype)
        n = shape if isinstance(shape, int) else int(np.prod(shape))
        begin = -(-self.used // 64) * 64 + STAGGER
        self.used = begin + n * kind.itemsize
        if self.used > self.block.size:
            return np.empty(shape, kind)
        return self.block[begin : self.used].view(kind).reshape(shape)

    @property
    def nbytes(self) -> int:
        """The size of the block in bytes."""
        return int(self.block.nbytes)
