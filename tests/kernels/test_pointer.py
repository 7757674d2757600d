"""Test that loads, stores, copies and products agree compiled, interpreted and as plain Python."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, strategies as st

from ddflow.kernels import pointer
from ddflow.kernels.compile import kernel, list_kernels

pytestmark = pytest.mark.kernels
WIDTHS = (8, 16, 32, 64)
Words = Any
words = st.integers(0, 2**64 - 1)


@kernel
def compiled_loads(address: int, out: Words) -> None:
    """All four loads at one address, into ``out`` (uint64[4])."""
    out[0] = pointer.load_u8(address)
    out[1] = pointer.load_u16(address)
    out[2] = pointer.load_u32(address)
    out[3] = pointer.load_u64(address)


@kernel
def compiled_stores(address: int, value: np.uint64) -> None:
    """All four stores of one value, eight bytes apart."""
    pointer.store_u8(address, value)
    pointer.store_u16(address + 8, value)
    pointer.store_u32(address + 16, value)
    pointer.store_u64(address + 24, value)


@kernel
def compiled_copy(to: int, start: int, size: int) -> None:
    """One copy."""
    pointer.copy_bytes(to, start, size)


@kernel
def compiled_clear(to: int, size: int) -> None:
    """Zeros."""
    pointer.clear_bytes(to, size)


@kernel
def compiled_products(a: np.uint64, b: np.uint64, out: Words) -> None:
    """Low and high word of mul128, then mulhi, into ``out`` (uint64[3])."""
    low, high = pointer.mul128(a, b)
    out[0], out[1], out[2] = low, high, pointer.mulhi(a, b)


def either(run: Callable[..., Any]) -> list[Callable[..., Any]]:
    """The kernel as it runs here, and the Python it is written in."""
    return [run, run.py_func]  # type: ignore[attr-defined]


@given(st.binary(min_size=16, max_size=16), st.integers(0, 8))
def test_loads_read_little_pieces_of_memory_at_any_alignment(content: bytes, offset: int) -> None:
    memory = np.frombuffer(content, dtype=np.uint8).copy()
    expected = [int.from_bytes(content[offset : offset + bits // 8], pointer._ORDER) for bits in WIDTHS]
    for run in either(compiled_loads):
        out = np.zeros(4, dtype=np.uint64)
        run(memory.ctypes.data + offset, out)
        assert out.tolist() == expected


@given(words, st.integers(0, 7))
def test_stores_write_the_low_bytes_and_touch_no_others(value: int, offset: int) -> None:
    expected = bytearray(b"\xaa" * 48)
    for i, bits in enumerate(WIDTHS):
        start = offset + 8 * i
        expected[start : start + bits // 8] = (value & (2**bits - 1)).to_bytes(bits // 8, pointer._ORDER)
    for run in either(compiled_stores):
        memory = np.full(48, 0xAA, dtype=np.uint8)
        run(memory.ctypes.data + offset, np.uint64(value))
        assert memory.tobytes() == bytes(expected)


@given(st.binary(min_size=40, max_size=40), st.integers(0, 20), st.integers(0, 20))
def test_copies_move_exactly_the_bytes_asked_for(content: bytes, start: int, size: int) -> None:
    input = np.frombuffer(content, dtype=np.uint8).copy()
    for run in either(compiled_copy):
        target = np.zeros(40, dtype=np.uint8)
        run(target.ctypes.data + 3, input.ctypes.data + start, size)
        assert target.tobytes() == bytes(3) + content[start : start + size] + bytes(37 - size)


@given(st.integers(0, 20), st.integers(0, 20))
def test_zeros_are_written_exactly_where_they_are_asked_for(start: int, size: int) -> None:
    for run in either(compiled_clear):
        memory = np.full(40, 0xAA, dtype=np.uint8)
        run(memory.ctypes.data + start, size)
        assert memory.tobytes() == b"\xaa" * start + bytes(size) + b"\xaa" * (40 - start - size)


@given(words, words)
def test_products_have_all_their_128_bits(a: int, b: int) -> None:
    for run in either(compiled_products):
        out = np.zeros(3, dtype=np.uint64)
        run(np.uint64(a), np.uint64(b), out)
        assert out.tolist() == [(a * b) & (2**64 - 1), (a * b) >> 64, (a * b) >> 64]


def test_every_kernel_is_listed_once_in_order_of_definition() -> None:
    ours = [one for one in list_kernels() if one.__module__ == __name__]
    assert ours == [compiled_loads, compiled_stores, compiled_copy, compiled_clear, compiled_products]


def test_signed_and_unsigned_addresses_mean_the_same() -> None:
    memory = np.arange(16, dtype=np.uint8)
    for address in (memory.ctypes.data, np.int64(memory.ctypes.data), np.uint64(memory.ctypes.data)):
        out = np.zeros(4, dtype=np.uint64)
        compiled_loads(address, out)
        assert out[0] == 0 and out[3] == memory[:8].view(np.uint64)[0]
