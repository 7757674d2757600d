"""Read a flatbuffer, such as the metadata of an Arrow file, and check all bounds before Arrow reads the file.

Offsets in a flatbuffer may point anywhere, also backwards, and two offsets may point to the same place. Therefore no
function of this module follows all offsets of a tree. The caller must know the shape of the tree.

Guarantees: every read stays within the given bytes, or raises `MalformedMetadata`.
Limits: this module reads tables, vectors and texts, without a schema. Only texts and vectors of numbers are copied.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

import numpy as np


class MalformedMetadata(ValueError):
    """An error for metadata that violates its format. The code that reads the file adds the file's name to it."""


class FlatTable:
    """A flatbuffer table, at position ``at`` of the bytes ``data``.

    Methods raise `MalformedMetadata`, and are O(1) unless their docstring says otherwise.

    >>> data = memoryview(bytes([10, 0, 0, 0, 6, 0, 5, 0, 4, 0, 6, 0, 0, 0, 9]))  # a table of one field, a byte
    >>> read_root_table(data).read_number(0, "B"), read_root_table(data).read_number(1, "q", 7)
    (9, 7)
    >>> read_root_table(data).read_number(0, "q")
    Traceback (most recent call last):
        ...
    ddflow.storage.files.flatbuffer.MalformedMetadata: 8 bytes at 14 of 15
    """

    __slots__ = ("_fields", "_vtable", "at", "data")

    def __init__(self, data: memoryview, at: int) -> None:
        self.data, self.at = data, at
        self._vtable = at - _unpack_number(data, at, "i")
        size = _unpack_number(data, self._vtable, "H")
        if size < 4 or self._vtable + size > len(data):
            raise MalformedMetadata(f"a vtable of {size} bytes at {self._vtable} of {len(data)}")
        self._fields = size // 2 - 2

    def field_position(self, slot: int) -> int:
        """Return the position of a field in the bytes, or 0 if the field is absent."""
        if slot >= self._fields:
            return 0
        offset = _unpack_number(self.data, self._vtable + 4 + 2 * slot, "H")
        return self.at + offset if offset else 0

    def read_number(self, slot: int, kind: str, default: int = 0) -> int:
        """Read a number field. ``kind``: the format of the number in the module ``struct``."""
        at = self.field_position(slot)
        return _unpack_number(self.data, at, kind) if at else default

    def read_table(self, slot: int) -> FlatTable | None:
        """Read a field that is a table. Return None if the field is absent."""
        at = self.field_position(slot)
        return FlatTable(self.data, self._follow_offset(at)) if at else None

    def read_text(self, slot: int) -> bytes:
        """Read a text field. An absent field gives an empty text. O(bytes)."""
        begin, count = self._find_vector(slot, 1)
        return bytes(self.data[begin : begin + count])

    def read_numbers(self, slot: int, kind: type[np.int32] | type[np.int64], each: int = 1) -> list[int]:
        """Read a vector of numbers, or of structs with ``each`` numbers of one width, as a flat list. O(numbers)."""
        begin, count = self._find_vector(slot, each * np.dtype(kind).itemsize)
        return [int(n) for n in np.frombuffer(self.data, kind, each * count, begin).tolist()] if count else []

    def count_tables(self, slot: int) -> int:
        """Count the tables of a vector."""
        return self._find_vector(slot, 4)[1]

    def read_tables(self, slot: int) -> Iterator[FlatTable]:
        """Yield the tables of a vector. O(tables)."""
        begin, count = self._find_vector(slot, 4)
        for i in range(count):
            yield FlatTable(self.data, self._follow_offset(begin + 4 * i))

    def _follow_offset(self, at: int) -> int:
        return at + _unpack_number(self.data, at, "I")

    def _find_vector(self, slot: int, wide: int) -> tuple[int, int]:
        """Check the bounds of a vector. Return the position of the vector's first item, and the number of items."""
        at = self.field_position(slot)
        if not at:
            return 0, 0
        begin = self._follow_offset(at)
        count = _unpack_number(self.data, begin, "I")
        if begin + 4 + count * wide > len(self.data):
            raise MalformedMetadata(f"a vector of {count} times {wide} bytes at {begin} of {len(self.data)}")
        return begin + 4, count


def read_root_table(data: memoryview) -> FlatTable:
    """Return the root table of a flatbuffer."""
    return FlatTable(data, _unpack_number(data, 0, "I"))


def _unpack_number(data: memoryview, at: int, kind: str) -> int:
    wide = struct.calcsize(f"<{kind}")
    if at < 0 or at + wide > len(data):
        raise MalformedMetadata(f"{wide} bytes at {at} of {len(data)}")
    return int(struct.unpack_from(f"<{kind}", data, at)[0])
