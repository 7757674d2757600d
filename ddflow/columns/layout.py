"""How columns lie in memory: the types that kernels move, their buffers, and the arena for the scratch of a step.

Guarantees: an arena hands out memory that the step before used, so nothing carved from it outlives its step.

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


def fixed_width(kind: pa.DataType) -> int:
    """Bytes a value of a fixed-width type that kernels move, else 0."""
    how, wide = column_layout(kind)
    return wide if how == WORDS else 0


def offset_width(kind: pa.DataType) -> int:
    """Bytes an offset of a byte-string type, else 0."""
    how, wide = column_layout(kind)
    return wide if how == BYTES else 0


def buffer_address(buffer: pa.Buffer | None) -> int:
    """Where a buffer begins, 0 for none."""
    return 0 if buffer is None else int(buffer.address)


class _WritableMemory:
    """Memory as numpy imports it, and whose it is."""

    def __init__(self, array: Array) -> None:
        self.owner = array
        self.__array_interface__ = {**array.__array_interface__, "data": (array.ctypes.data, False)}


def make_writable(array: Array) -> Array:
    """Make a writable array over the same memory, since numba would compile kernels again for a read-only one.

    Callers must not write to it.  O(1).
    """
    return array if array.flags.writeable else np.asarray(_WritableMemory(array))


class ColumnLayouts(NamedTuple):
    """Columns, and how a value of each is moved (`column_layout`): chosen once for all rows that have them."""

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
    """Columns as Arrow has them.  O(columns)."""
    return [pa.Array.from_buffers(*each) if isinstance(each, ColumnBuffers) else each for each in columns]


SMALL = 256
"""Shorter arrays are not worth carving."""
STAGGER = 5 * 64
"""Bytes between arrays: an odd number of cache lines, so that neighbours begin in different sets of the cache."""


@cache
def keep_freed_memory() -> None:
    """Let the C library keep what steps free, once a process: fresh memory costs a page fault for each 4 KB.

    glibc maps a block anew for each allocation above a threshold, and gives back what is free above twice as much. It
    raises the threshold to the size of the largest mapped block that was freed, which this one will be.
    """
    np.empty(16 << 20, np.uint8)


class Arena:
    """``block``: the memory; it grows to what the largest step carved.

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
        """One with so many bytes to carve from, for arrays that live as long as each other.  O(1)."""
        arena = cls()
        arena.used = nbytes
        arena.reset()
        return arena

    def reset(self) -> None:
        """Begin anew: arrays carved before are void.  One block from now on, where several were needed."""
        if self.used > self.block.size:
            size = self.used + self.used // 8
            room = np.empty(size + 64, np.uint8)
            begin = -room.ctypes.data % 64
            self.block = room[begin : begin + size]
        self.used = 0

    def choose_allocator(self, n: int) -> Callable[..., Any]:
        """Return a function that makes arrays of about ``n``: `empty`, or numpy's if they are too short to carve."""
        return np.empty if n < SMALL else self.empty

    def empty(self, shape: int | tuple[int, ...], dtype: Any) -> Any:
        """Carve a contiguous array of unspecified content; one from the block is aligned to a cache line.  O(1)."""
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
