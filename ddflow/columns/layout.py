"""How columns lie in memory: which types kernels move, and by which buffers.

Invariant: what is said of a type is all that a kernel needs beside addresses. Fixed widths, bits and byte strings are
moved by kernels; every other type is left to Arrow's ``take``. It is asked of a schema once, where a plan is opened.

>>> layout(pa.int32()) == (WORDS, 4), layout(pa.string()) == (BYTES, 4)
(True, True)
>>> Layouts.of(pa.schema({"flag": pa.bool_()})).ways == [(BITS, 0)]
True
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.types as pat

Array = np.ndarray[Any, np.dtype[Any]]
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
    """Make a writable array over the same memory, since numba would compile kernels again for a read-only one.

    Callers must not write to it.  O(1).
    """
    return array if array.flags.writeable else np.asarray(_Memory(array))


class Layouts(NamedTuple):
    """Columns, and how a value of each is moved (`layout`): chosen once for all rows that have them."""

    schema: pa.Schema
    names: list[str]
    ways: list[tuple[int, int]]

    @classmethod
    def of(cls, schema: pa.Schema) -> Layouts:
        """Find the layouts of a schema's columns.  O(columns)."""
        return cls(schema, schema.names, [layout(field.type) for field in schema])


class Laid(NamedTuple):
    """A column as its buffers."""

    kind: pa.DataType
    size: int
    buffers: list[pa.Buffer | None]
    null_count: int


Column = pa.Array | Laid


def arrayed(columns: Iterable[Column]) -> list[pa.Array]:
    """Columns as Arrow has them.  O(columns)."""
    return [pa.Array.from_buffers(*each) if isinstance(each, Laid) else each for each in columns]
