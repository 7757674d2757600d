"""Gather column values by reference from any number of batches, in one call.

A reference is an int64 with three parts: the row in the bits of ``ROWS``, the batch number from bit ``SLOT`` on, and
flags in the highest bits. Kernels get the addresses of the batches' buffers. Output row i is the value at
``references[i]``. The kernels handle types with values of a fixed width, and types with offsets and bytes. For all
other types, ``columns/rows`` uses Arrow. The caller checks bounds.

>>> import numpy as np
>>> a, b = np.array([10, 11]), np.array([20])
>>> addresses, out = np.zeros((1, 5, 2), np.uint64), np.empty(2, np.int64)
>>> addresses[0, 1] = a.ctypes.data, b.ctypes.data
>>> gather_columns(np.array([(1 << SLOT) | 0, 1]), addresses, np.array([[0, 8, out.ctypes.data, 0]], np.uint64), 0)
>>> out.tolist()
[20, 11]
"""

from typing import Any, NamedTuple

import numpy as np

from ddflow.kernels.arrays import Flags, Ints, Narrow, Words, Words2d, Words3d
from ddflow.kernels.compile import kernel
from ddflow.kernels.pointer import (
    copy_bytes,
    load_u8,
    load_u16,
    load_u32,
    load_u64,
    store_u8,
    store_u16,
    store_u32,
    store_u64,
)

SLOT = 40
"""Lowest bit of the batch number in a reference. The bits below it are the row."""
ROWS = (1 << SLOT) - 1
SLOTS = (1 << 20) - 1
MANY = 1 << 20
"""From this number of rows on, scattered byte strings are gathered by blocks, because most reads miss the caches."""


@kernel
def follow_places(references: Ints, places: Words, out: Ints) -> None:
    """Replace the row numbers of batches whose columns are in another order by positions in the columns. O(n).

    Input:
    - references, int64[n]: the rows.
    - places, uint64[batches]: the address of int32[rows], the position of each row of a batch, or 0 if row i of the
      batch is at position i.

    Output:
    - out, int64[n]: the references, without flags.

    >>> places, out = np.array([1, 0], np.int32), np.empty(2, np.int64)
    >>> follow_places(np.array([0, (1 << SLOT) | 5]), np.array([places.ctypes.data, 0], np.uint64), out)
    >>> out.tolist() == [1, (1 << SLOT) | 5]
    True
    """
    for i in range(references.size):
        r = references[i] & ((SLOTS << SLOT) | ROWS)
        base = places[r >> SLOT]
        if base != np.uint64(0):
            r = (r & (SLOTS << SLOT)) | np.int64(load_u32(base + np.uint64((r & ROWS) << 2)))
        out[i] = r


@kernel
def _gather_words(references: Ints, bases: Words, width: np.int64, out: np.uint64) -> None:
    """Copy values of a fixed width. O(n).

    Input:
    - references, int64[n]: the rows to copy.
    - bases, uint64[batches]: the address of each batch's first value.
    - width: the number of bytes per value, a power of two up to 8 or a multiple of 8.

    Output:
    - out: the address of n * width bytes.
    """
    if width == 8:
        for i in range(references.size):
            r = references[i]
            at = bases[(r >> SLOT) & SLOTS] + np.uint64((r & ROWS) << 3)
            store_u64(out + np.uint64(i << 3), load_u64(at))
    elif width == 4:
        for i in range(references.size):
            r = references[i]
            at = bases[(r >> SLOT) & SLOTS] + np.uint64((r & ROWS) << 2)
            store_u32(out + np.uint64(i << 2), load_u32(at))
    elif width == 2:
        for i in range(references.size):
            r = references[i]
            at = bases[(r >> SLOT) & SLOTS] + np.uint64((r & ROWS) << 1)
            store_u16(out + np.uint64(i << 1), load_u16(at))
    elif width == 1:
        for i in range(references.size):
            r = references[i]
            store_u8(out + np.uint64(i), load_u8(bases[(r >> SLOT) & SLOTS] + np.uint64(r & ROWS)))
    else:
        for i in range(references.size):
            r = references[i]
            at = bases[(r >> SLOT) & SLOTS] + np.uint64((r & ROWS) * width)
            copy_bytes(out + np.uint64(i * width), at, np.uint64(width))


@kernel
def gather_bits(references: Ints, bases: Words, firsts: Ints, out: Flags) -> int:
    """Copy bits (booleans or validity), and return the number of bits that are 0. O(n).

    Input:
    - references, int64[n]: the rows to copy.
    - bases, uint64[batches]: the address of each bitmap, 0 for a bitmap of ones.
    - firsts, int64[batches]: the bit number of row 0 in each bitmap.

    Output:
    - out, uint8[(n + 7) // 8]: the copied bits, followed by zeros.

    >>> source, out = np.array([0b0110], np.uint8), np.empty(1, np.uint8)
    >>> gather_bits(np.array([1, 0, 2]), np.array([source.ctypes.data], np.uint64), np.zeros(1, np.int64), out), out[0]
    (1, np.uint8(5))
    """
    zeros = 0
    for start in range(0, references.size, 8):
        packed = np.uint64(0)
        for j in range(min(8, references.size - start)):
            r = references[start + j]
            batch = (r >> SLOT) & SLOTS
            bit = np.uint64(1)
            if bases[batch] != np.uint64(0):
                at = firsts[batch] + (r & ROWS)
                bit = (load_u8(bases[batch] + np.uint64(at >> 3)) >> np.uint64(at & 7)) & np.uint64(1)
            if bit == np.uint64(0):
                zeros += 1
            packed |= bit << np.uint64(j)
        out[start >> 3] = packed
    return zeros


@kernel
def gather_offsets(references: Ints, bases: Words, wide: np.int64, ends: Ints) -> int:
    """Write where each byte string ends in the output, from the offset buffers. Return the total size. O(n).

    Input:
    - references, int64[n]: the rows to copy.
    - bases, uint64[batches]: the address of row 0's offset in each batch.
    - wide: 8 for 64-bit offsets, 4 for 32-bit offsets.

    Output:
    - ends, int64[n + 1]: where each byte string ends.

    >>> offsets, ends = np.array([0, 2, 5], np.int32), np.empty(2, np.int64)
    >>> gather_offsets(np.array([1]), np.array([offsets.ctypes.data], np.uint64), np.int64(4), ends)
    3
    """
    total = np.int64(0)
    ends[0] = 0
    for i in range(references.size):
        r = references[i]
        base = bases[(r >> SLOT) & SLOTS]
        if wide == 8:
            at = base + np.uint64((r & ROWS) << 3)
            total += np.int64(load_u64(at + np.uint64(8)) - load_u64(at))
        else:
            at = base + np.uint64((r & ROWS) << 2)
            total += np.int64(load_u32(at + np.uint64(4)) - load_u32(at))
        ends[i + 1] = total
    return int(total)


@kernel
def _gather_bytes(references: Ints, bases: Words, data: Words, wide: np.int64, ends: np.uint64, out: np.uint64) -> None:
    """Copy the byte strings whose ends `gather_offsets` wrote. O(n + bytes).

    Input:
    - references, bases, wide: the same as for `gather_offsets`.
    - data, uint64[batches]: the address of each batch's bytes.
    - ends: the address of int64[n + 1], where each byte string ends.

    Output:
    - out: the address of ends[n] bytes.
    """
    for i in range(references.size):
        r = references[i]
        batch = (r >> SLOT) & SLOTS
        if wide == 8:
            begin = load_u64(bases[batch] + np.uint64((r & ROWS) << 3))
        else:
            begin = load_u32(bases[batch] + np.uint64((r & ROWS) << 2))
        first = load_u64(ends + np.uint64(i << 3))
        _copy_text(out + first, data[batch] + begin, load_u64(ends + np.uint64((i + 1) << 3)) - first)


@kernel
def _copy_text(to: np.uint64, at: np.uint64, size: np.uint64) -> None:
    """Copy a few bytes. The last words overlap, so that no byte beyond the end is read or written."""
    if size >= np.uint64(8):
        if size > np.uint64(64):
            copy_bytes(to, at, size)
            return
        end = size - np.uint64(8)
        done = np.uint64(0)
        while done < end:
            store_u64(to + done, load_u64(at + done))
            done += np.uint64(8)
        store_u64(to + end, load_u64(at + end))
    elif size >= np.uint64(4):
        end = size - np.uint64(4)
        last = load_u32(at + end)
        store_u32(to, load_u32(at))
        store_u32(to + end, last)
    elif size >= np.uint64(2):
        end = size - np.uint64(2)
        other = load_u16(at + end)
        store_u16(to, load_u16(at))
        store_u16(to + end, other)
    elif size != np.uint64(0):
        store_u8(to, load_u8(at))


class BlockOrder(NamedTuple):
    """The order in which n scattered byte strings are gathered by blocks of rows.

    A block of the source and a block of the output fit into the processor's cache. The rows are first copied, source
    block by source block, to temporary memory, where each output block has its part, and then to their places.
    """

    reference: Ints
    """int64[n]: the references, source block by source block."""
    to: Narrow
    """int32[n]: the position of each of these rows in temporary memory."""
    place: Narrow
    """int32[n]: for each position in temporary memory, the place of the row in the output."""
    bits: Any
    """The binary logarithm of the number of rows in a block."""


@kernel
def plan_block_gather(references: Ints, first: Ints, ends: Ints, order: BlockOrder) -> None:
    """Write the order of rows to gather by blocks. O(n).

    Input:
    - references, int64[n]: the rows to copy.
    - first, int64[batches]: the number of the first source block of each batch.
    - ends, int64[source blocks + 1]: zeros, which the kernel uses as scratch.

    Output:
    - order: the order.

    >>> order = BlockOrder(np.empty(3, np.int64), np.empty(3, np.int32), np.empty(3, np.int32), np.int64(1))
    >>> plan_block_gather(np.array([3, 0, 2]), np.zeros(1, np.int64), np.zeros(3, np.int64), order)
    >>> order.reference.tolist(), order.to.tolist(), order.place.tolist()
    ([0, 3, 2], [0, 1, 2], [1, 0, 2])
    """
    sorted_references, to, place, bits = order
    n = references.size
    for i in range(n):
        r = references[i]
        ends[first[(r >> SLOT) & SLOTS] + ((r & ROWS) >> bits) + 1] += 1
    for b in range(1, ends.size):
        ends[b] += ends[b - 1]
    for i in range(n):
        r = references[i]
        block = first[(r >> SLOT) & SLOTS] + ((r & ROWS) >> bits)
        at = ends[block]
        ends[block] = at + 1
        sorted_references[at], to[at] = r, i
    last = np.arange((n >> bits) + 1) << bits
    for i in range(n):
        at = np.int64(to[i])
        block = at >> bits
        to[i] = last[block]
        place[last[block]] = at
        last[block] += 1


@kernel
def gather_offsets_by_blocks(order: BlockOrder, bases: Words, wide: np.int64, sizes: Narrow, ends: Ints) -> int:
    """Write where each byte string ends in the output, as `gather_offsets` does. Return the total size. O(n).

    - sizes, int32[n]: scratch memory. A byte string has less than 2 GiB.

    >>> offsets, ends = np.array([0, 2, 5], np.int32), np.empty(2, np.int64)
    >>> one = np.zeros(1, np.int32)
    >>> order = BlockOrder(np.array([1]), one, one, np.int64(1))
    >>> gather_offsets_by_blocks(order, np.array([offsets.ctypes.data], np.uint64), np.int64(4), one.copy(), ends)
    3
    """
    references, to, place, _ = order
    for i in range(references.size):
        r = references[i]
        base = bases[(r >> SLOT) & SLOTS]
        if wide == 8:
            at = base + np.uint64((r & ROWS) << 3)
            sizes[to[i]] = np.int64(load_u64(at + np.uint64(8)) - load_u64(at))
        else:
            at = base + np.uint64((r & ROWS) << 2)
            sizes[to[i]] = np.int64(load_u32(at + np.uint64(4)) - load_u32(at))
    for i in range(references.size):
        ends[np.int64(place[i]) + 1] = sizes[i]
    ends[0] = 0
    for i in range(1, ends.size):
        ends[i] += ends[i - 1]
    return int(ends[ends.size - 1])


@kernel
def gather_bytes_by_blocks(
    order: BlockOrder, bases: Words, data: Words, wide: np.int64, ends: Ints, temporary: np.uint64, out: np.uint64
) -> None:
    """Copy byte strings, as `gather_columns` does. O(n + bytes).

    - bases, data, uint64[batches]: the addresses of each batch's first offset, and of its bytes.
    - wide: 8 for 64-bit offsets, 4 for 32-bit offsets.
    - ends, int64[n + 1]: the output of `gather_offsets_by_blocks`.
    - temporary, out: the addresses of ends[n] bytes each.

    >>> text, offsets, one = np.frombuffer(b"abc", np.uint8), np.array([0, 1, 3], np.int32), np.zeros(1, np.int32)
    >>> order, out, scratch = BlockOrder(np.array([1]), one, one, np.int64(1)), np.empty(2, np.uint8), np.empty(1)
    >>> places = (np.array([each.ctypes.data], np.uint64) for each in (offsets, text))
    >>> target = np.uint64(out.ctypes.data)
    >>> gather_bytes_by_blocks(order, *places, np.int64(4), np.array([0, 2]), np.uint64(scratch.ctypes.data), target)
    >>> out.tobytes()
    b'bc'
    """
    references, to, place, bits = order
    n = references.size
    last = ends[np.minimum(np.arange((n >> bits) + 1) << bits, n)].copy()
    for i in range(n):
        r = references[i]
        batch = (r >> SLOT) & SLOTS
        if wide == 8:
            at = bases[batch] + np.uint64((r & ROWS) << 3)
            begin, end = load_u64(at), load_u64(at + np.uint64(8))
        else:
            at = bases[batch] + np.uint64((r & ROWS) << 2)
            begin, end = load_u32(at), load_u32(at + np.uint64(4))
        block = np.int64(to[i]) >> bits
        _copy_text(temporary + np.uint64(last[block]), data[batch] + begin, end - begin)
        last[block] += np.int64(end - begin)
    done = np.int64(0)
    for i in range(n):
        first = ends[place[i]]
        size = ends[np.int64(place[i]) + 1] - first
        _copy_text(out + np.uint64(first), temporary + np.uint64(done), np.uint64(size))
        done += size


@kernel
def gather_columns(references: Ints, addresses: Words3d, plan: Words2d, begin: int) -> None:
    """Copy the values of several columns. O(n) for each column.

    - references, int64[n]: the slice from ``begin`` on of all references.
    - addresses, uint64[columns, 5, batches]: [c, 1] holds the address of each batch's first value or offset, and [c, 2]
      the address of its bytes.
    - plan, uint64[m, 4]: the column, the number of bytes per value or offset, the output address for all references,
      and the address of the ends from `gather_offsets` (0 for fixed widths).

    >>> source, out = np.array([7, 8, 9]), np.empty(2, np.int64)
    >>> addresses, plan = np.zeros((1, 5, 1), np.uint64), np.array([[0, 8, out.ctypes.data, 0]], np.uint64)
    >>> addresses[0, 1, 0] = source.ctypes.data
    >>> gather_columns(np.array([2, 0]), addresses, plan, 0)
    >>> out.tolist()
    [9, 7]
    """
    for i in range(plan.shape[0]):
        at, wide, out, ends = np.int64(plan[i, 0]), np.int64(plan[i, 1]), plan[i, 2], plan[i, 3]
        if ends == np.uint64(0):
            _gather_words(references, addresses[at, 1], wide, out + np.uint64(begin * wide))
        else:
            first = ends + np.uint64(begin << 3)
            _gather_bytes(references, addresses[at, 1], addresses[at, 2], wide, first, out)
