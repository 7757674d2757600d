"""Test that gathering copies the referenced values, bits and byte strings, from any batch at any offset."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, strategies as st

from ddflow.kernels.gather import (
    SLOT,
    BlockOrder,
    gather_bits,
    gather_bytes_by_blocks,
    gather_columns,
    gather_offsets,
    gather_offsets_by_blocks,
    plan_block_gather,
)
from ddflow.kernels.resolve import LIVE, OCCUPIED

pytestmark = pytest.mark.kernels
Pick = tuple[int, int]


def address(array: Any) -> np.uint64:
    return np.uint64(array.ctypes.data)


def packed(picks: list[Pick]) -> Any:
    """References, with the flags that an index adds and gathering ignores."""
    flags = [0, OCCUPIED, OCCUPIED | LIVE]
    return np.array([slot << SLOT | row | flags[(slot + row) % 3] for slot, row in picks], np.int64)


def moved(chosen: list[Pick], wide: int, out: Any, values: Any, heaps: Any = 0, ends: Any = None) -> None:
    """Copy the values of a column, which stands behind another, in two spans."""
    addresses = np.zeros((2, 5, max(len(values), 1)), np.uint64)
    addresses[1, 1, : len(values)], addresses[1, 2] = values, heaps
    plan = np.array([[1, wide, address(out), 0 if ends is None else address(ends)]], np.uint64)
    half = len(chosen) // 2
    for begin, end in ((0, half), (half, len(chosen))):
        gather_columns(packed(chosen[begin:end]), addresses, plan, begin)


@st.composite
def picks(draw: st.DrawFn, sizes: list[int]) -> list[Pick]:
    rows = [(slot, row) for slot, size in enumerate(sizes) for row in range(size)]
    return draw(st.lists(st.sampled_from(rows), max_size=20)) if rows else []


@given(st.data(), st.sampled_from([1, 2, 4, 8, 16, 24, 32]))
def test_values_of_every_width_are_copied_whole(data: st.DataObject, width: int) -> None:
    values = st.binary(min_size=width, max_size=width)
    batches = data.draw(st.lists(st.lists(values, min_size=1, max_size=4), min_size=1, max_size=3))
    memory = [np.frombuffer(b"".join(batch), np.uint8).copy() for batch in batches]
    chosen = data.draw(picks([len(batch) for batch in batches]))
    out = np.full(len(chosen) * width + 1, 0xAA, np.uint8)
    moved(chosen, width, out, [address(one) for one in memory])
    assert out.tobytes() == b"".join(batches[slot][row] for slot, row in chosen) + b"\xaa"


@given(st.data())
def test_bits_are_copied_from_any_offset_and_a_missing_bitmap_is_all_ones(data: st.DataObject) -> None:
    bit_lists = data.draw(st.lists(st.lists(st.booleans(), min_size=1, max_size=12), min_size=1, max_size=3))
    firsts = [data.draw(st.integers(0, 9)) for _ in bit_lists]
    missing = [data.draw(st.booleans()) for _ in bit_lists]
    memory = [np.packbits([1, 0] * 8 + [0], bitorder="little") for _ in bit_lists]
    for i, bits in enumerate(bit_lists):
        ahead = [k % 3 == 0 for k in range(firsts[i])]
        memory[i] = np.packbits([*ahead, *bits], bitorder="little")
    chosen = data.draw(picks([len(bits) for bits in bit_lists]))
    expected = [True if missing[slot] else bit_lists[slot][row] for slot, row in chosen]
    out = np.full((len(chosen) + 7) // 8, 0xAA, np.uint8)
    bases = np.array([0 if gone else address(one) for gone, one in zip(missing, memory, strict=True)], np.uint64)
    assert gather_bits(packed(chosen), bases, np.array(firsts, np.int64), out) == expected.count(False)
    assert np.unpackbits(out, bitorder="little").tolist() == expected + [False] * (-len(expected) % 8)


@given(st.data(), st.sampled_from([4, 8]))
def test_byte_strings_are_copied_by_their_offsets(data: st.DataObject, wide: int) -> None:
    texts = st.one_of(st.binary(max_size=9), st.integers(60, 70).map(lambda n: bytes(range(n))))
    batches = data.draw(st.lists(st.lists(texts, min_size=1, max_size=4), min_size=1, max_size=3))
    skips = [data.draw(st.integers(0, 3)) for _ in batches]
    memory = [
        np.frombuffer(b"?" * skip + b"".join(batch) + b"!", np.uint8).copy()
        for skip, batch in zip(skips, batches, strict=True)
    ]
    kind = np.int64 if wide == 8 else np.int32
    offsets = [np.cumsum([skip, *map(len, batch)]).astype(kind) for skip, batch in zip(skips, batches, strict=True)]
    chosen = data.draw(picks([len(batch) for batch in batches]))
    bases = np.array([address(one) for one in offsets], np.uint64)
    ends = np.empty(len(chosen) + 1, np.int64)
    wanted = [batches[slot][row] for slot, row in chosen]
    assert gather_offsets(packed(chosen), bases, np.int64(wide), ends) == sum(map(len, wanted))
    assert ends.tolist() == [sum(map(len, wanted[:i])) for i in range(len(wanted) + 1)]
    out = np.full(ends[-1] + 1, 0xAA, np.uint8)
    heaps = [address(one) for one in memory]
    moved(chosen, wide, out, bases, heaps, ends)
    assert out.tobytes() == b"".join(wanted) + b"\xaa"
    bits, n = data.draw(st.integers(0, 3)), len(chosen)
    first = np.cumsum([0, *(1 + (len(batch) >> bits) for batch in batches)])
    order = BlockOrder(np.empty(n, np.int64), np.empty(n, np.int32), np.empty(n, np.int32), np.int64(bits))
    plan_block_gather(packed(chosen), first, np.zeros(first[-1] + 1, np.int64), order)
    again, out, scratch = np.empty_like(ends), np.full_like(out, 0xAA), np.empty_like(out)
    size = gather_offsets_by_blocks(order, bases, np.int64(wide), np.empty(n, np.int32), again)
    places = np.array(heaps, np.uint64), np.int64(wide), again, address(scratch), address(out)
    gather_bytes_by_blocks(order, bases, *places)
    assert again.tolist() == ends.tolist() and size == ends[-1] and out.tobytes() == b"".join(wanted) + b"\xaa"
