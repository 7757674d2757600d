"""Describe the memory layout of columns: the types that kernels move, their buffers, and scratch memory for a step.

`column_layout` tells kernels how to copy a value of a type. `ColumnBuffers` is a column before an Arrow array is made
of it. `Arena` reuses one block of memory for the scratch arrays of each step.

Guarantees: an arena hands out the memory of the step before, so an array carved from it must not outlive its step.

>>> column_layout(pa.int32()) == (WORDS, 4), column_layout(pa.string()) == (BYTES, 4)
(True, True)
>>> ColumnLayouts.from_schema(pa.schema({"flag": pa.bool_()})).ways == [(BITS, 0)]
True
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import cache
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.types as pat

Array = np.ndarray[Any, np.dtype[Any]]
WORDS, BYTES, BITS, OTHER = range(4)


@cache
def column_layout(kind: pa.DataType) -> tuple[int, int]:
    """Return how to move a type: WORDS and bytes per value, BYTES and bytes per offset, BITS, or OTHER (moved by
    Arrow).
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
    """Return the bytes per value of a fixed-width type that kernels move, else 0."""
    how, wide = column_layout(kind)
    return wide if how == WORDS else 0


def offset_width(kind: pa.DataType) -> int:
    """Return the bytes per offset of a byte-string type, else 0."""
    how, wide = column_layout(kind)
    return wide if how == BYTES else 0


def buffer_address(buffer: pa.Buffer | None) -> int:
    """Return the address of a buffer, 0 for none."""
    return 0 if buffer is None else int(buffer.address)


class _WritableMemory:
    """Memory with a writable array interface, and its owner."""

    def __init__(self, array: Array) -> None:
        self.owner = array
        self.__array_interface__ = {**array.__array_interface__, "data": (array.ctypes.data, False)}


def make_writable(array: Array) -> Array:
    """Make a writable array over the same memory, since numba would compile kernels again for a read-only one.

    Callers must not write to it. O(1).
    """
    return array if array.flags.writeable else np.asarray(_WritableMemory(array))


class ColumnLayouts(NamedTuple):
    """Columns and their `column_layout`, chosen once for all rows of a schema."""

    schema: pa.Schema
    names: list[str]
    ways: list[tuple[int, int]]

    @classmethod
    def from_schema(cls, schema: pa.Schema) -> ColumnLayouts:
        """Find the layouts of a schema's columns.  O(columns)."""
        return cls(schema, schema.names, [column_layout(field.type) for field in schema])


class ColumnBuffers(NamedTuple):
    """A column as its buffers."""

    kind: pa.DataType
    size: int
    buffers: list[pa.Buffer | None]
    null_count: int


Column = pa.Array | ColumnBuffers


def to_arrow_arrays(columns: Iterable[Column]) -> list[pa.Array]:
    """Convert columns to Arrow arrays. O(columns)."""
    return [pa.Array.from_buffers(*each) if isinstance(each, ColumnBuffers) else each for each in columns]


SMALL = 256
"""Minimal length of arrays to carve from an arena."""
STAGGER = 5 * 64
"""Bytes between arrays: an odd number of cache lines, so that neighbours begin in different sets of the cache."""


@cache
def keep_freed_memory() -> None:
    """Make the C library keep freed memory, once per process: fresh memory costs a page fault per 4 KB.

    glibc maps a new block for each allocation above a threshold, and returns free memory above twice that size. It
    raises the threshold to the size of the largest mapped block that was freed. This call frees such a block.
    """
    np.empty(16 << 20, np.uint8)


class Arena:
    """Scratch memory for one step at a time.

    ``block``: the memory; it grows to the size that the largest step carved.

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
        """Make an arena with so many bytes, for arrays of equal lifetime. O(1)."""
        arena = cls()
        arena.used = nbytes
        arena.reset()
        return arena

    def reset(self) -> None:
        """Reuse the memory: arrays carved before become invalid. A step that needed several blocks gets one from now
        on.
        """
        if self.used > self.block.size:
            size = self.used + self.used // 8
            room = np.empty(size + 64, np.uint8)
            begin = -room.ctypes.data % 64
            self.block = room[begin : begin + size]
        self.used = 0

    def choose_allocator(self, n: int) -> Callable[..., Any]:
        """Return a function that allocates arrays of about ``n``: `empty`, or numpy's if they are too short to
        carve.
        """
        return np.empty if n < SMALL else self.empty

    def empty(self, shape: int | tuple[int, ...], dtype: Any) -> Any:
        """Carve a contiguous array of unspecified content; an array from the block is aligned to a cache line. O(1)."""
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
        """Bytes of the block."""
        return int(self.block.nbytes)
