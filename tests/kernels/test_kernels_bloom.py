"""Test Bloom filters: every added key passes, and few other keys pass."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from chance import long_test
from hypothesis import given, strategies as st

from ddflow.kernels.bloom import BITS, add_identities, count_blocks, find_possible_groups

pytestmark = pytest.mark.kernels
TOP = 2**64 - 1
Key = tuple[int, int]
Range = tuple[np.uint64, np.uint64]
"""Of identities: the least, and how far the distance from it is shifted up."""
ALL: Range = np.uint64(0), np.uint64(0)
# Uniform ones, the ends, and crowds that share their leading or their lowest bits.
highs = st.one_of(
    st.integers(0, TOP),
    st.sampled_from([0, 1, TOP - 1, TOP]),
    st.integers(0, 9).map(lambda i: (1 << 62) + i),
    st.integers(0, 9).map(lambda i: i << 56),
)
lows = st.one_of(st.integers(0, 1), st.integers(0, TOP))
MOST = 0.02
"""About 1.3 % pass by mistake; of some thousands, not twice as many."""


def columns(keys: list[Key], wide: bool) -> tuple[Any, Any]:
    high = np.array([high for high, _ in keys], np.uint64)
    return high, np.array([low for _, low in keys] if wide else [], np.uint64)


def uniform(n: int, seed: int) -> Any:
    return np.random.default_rng(seed).integers(0, TOP, n, np.uint64, endpoint=True)


def filled(high: Any, low: Any, blocks: int, range_: Range = ALL) -> Any:
    words = np.zeros(4 * blocks, np.uint64)
    add_identities(high, low, *range_, words)
    return words


def passed(high: Any, low: Any, words: Any, range_: Range = ALL) -> int:
    every = np.arange(high.size)
    return find_possible_groups(high, low, every.astype(np.int32), every, *range_, words, np.empty(high.size, np.int64))


def reaching(keys: list[Key], below: int, shorter: int) -> Range:
    """A range of identities that holds all the keys, and may be larger."""
    least, most = (max(0, keys[0][0] - below), keys[-1][0]) if keys else (0, 0)
    return np.uint64(least), np.uint64(max(0, 64 - max((most - least).bit_length(), 1) - shorter))


@given(st.lists(st.tuples(highs, lows), max_size=30), st.booleans(), st.integers(1, 5), st.data())
def test_all_that_was_filled_in_passes_in_order_and_only_what_is_wanted_is_asked(
    keys: list[Key], wide: bool, blocks: int, data: st.DataObject
) -> None:
    keys = sorted(keys)
    high, low = columns(keys, wide)
    range_ = reaching(keys, data.draw(st.integers(0, 9)), data.draw(st.integers(0, 64)))
    words = filled(high, low, blocks, range_)
    starts = np.array(sorted(data.draw(st.sets(st.sampled_from(range(len(keys))))) if keys else []), np.int32)
    wanted = np.array([group for group in range(starts.size) if data.draw(st.booleans())], np.int64)
    out = np.full(wanted.size, -7, np.int64)
    assert find_possible_groups(high, low, starts, wanted, *range_, words, out) == wanted.size
    assert out.tolist() == wanted.tolist()


@given(st.lists(st.tuples(highs, lows), max_size=20), st.booleans(), st.integers(1, 4), st.integers(0, 20))
def test_a_filter_filled_in_pieces_is_the_same_in_any_order(keys: list[Key], wide: bool, blocks: int, at: int) -> None:
    pieces = filled(*columns(keys[at:], wide), blocks)
    add_identities(*columns(keys[:at], wide), *ALL, pieces)
    assert pieces.tolist() == filled(*columns(sorted(keys) * 2, wide), blocks).tolist()


@given(st.lists(st.tuples(highs, lows), min_size=1, max_size=20), st.booleans())
def test_nothing_passes_an_empty_filter_and_all_pass_a_full_one(keys: list[Key], wide: bool) -> None:
    high, low = columns(sorted(keys), wide)
    assert passed(high, low, np.zeros(8, np.uint64)) == 0
    assert passed(high, low, np.full(8, TOP, np.uint64)) == len(keys)


@pytest.mark.parametrize("n", [1000, 4000])
@pytest.mark.parametrize("wide", [False, True])
def test_few_others_pass(n: int, wide: bool) -> None:
    none = np.empty(0, np.uint64)
    held, others = uniform(n, 1), uniform(4000, 2)
    words = filled(held, uniform(n, 3) if wide else none, count_blocks(n))
    assert 0 < passed(others, uniform(4000, 4) if wide else none, words) < MOST * 4000


@long_test
@pytest.mark.parametrize("width", [64, 50, 47])
@pytest.mark.parametrize("percent", [100, 51])
def test_few_others_pass_in_a_narrow_range_of_identities_too(width: int, percent: int) -> None:
    n, base, none = 4000, np.uint64((1 << 63) if width < 64 else 0), np.empty(0, np.uint64)
    reach = np.uint64(((1 << width) - 1) * percent // 100)
    held, others = (np.sort(base + uniform(n, seed) % reach) for seed in (1, 2))
    others = np.setdiff1d(others, held)
    # As many more blocks as the shifted range is larger than what the identities reach.
    words = filled(held, none, count_blocks(n) * 100 // percent + 1, (base, np.uint64(64 - width)))
    assert passed(held, none, words, (base, np.uint64(64 - width))) == n
    assert passed(others, none, words, (base, np.uint64(64 - width))) < MOST * n


def test_identities_that_differ_in_their_second_word_only_are_told_apart() -> None:
    high = uniform(4000, 5)
    words = filled(high, np.zeros(4000, np.uint64), count_blocks(4000))
    assert passed(high, np.ones(4000, np.uint64), words) < MOST * 4000
    assert passed(high, uniform(4000, 6), words) < MOST * 4000


def test_a_group_is_asked_for_by_the_row_that_begins_it() -> None:
    high, none = np.array([1, 1, TOP - 1, TOP], np.uint64), np.empty(0, np.uint64)
    words, starts, out = filled(high[2:].copy(), none, 2), np.array([0, 2, 3], np.int32), np.full(3, -7, np.int64)
    assert find_possible_groups(high, none, starts, np.array([0, 1, 2]), *ALL, words, out) == 2
    assert out[:2].tolist() == [1, 2]
    assert find_possible_groups(high, none, starts, np.array([0, 2]), *ALL, words, out) == 1
    assert out[0] == 2


def test_what_passes_may_be_written_over_what_was_wanted() -> None:
    none, high = np.empty(0, np.uint64), np.sort(uniform(2000, 7))
    words, every = filled(high[::2].copy(), none, count_blocks(1000)), np.arange(2000)
    apart, starts = np.empty(2000, np.int64), every.astype(np.int32)
    n = find_possible_groups(high, none, starts, every, *ALL, words, apart)
    assert find_possible_groups(high, none, starts, every, *ALL, words, every) == n
    assert every[:n].tolist() == apart[:n].tolist()
    assert set(range(0, 2000, 2)) <= set(every[:n].tolist())


def test_a_filter_takes_ten_bits_a_key_and_one_block_at_least() -> None:
    assert [count_blocks(n) for n in (0, 1, 25, 26, 20_000_000)] == [1, 1, 1, 2, 781_250]
    assert all(256 * count_blocks(n) - BITS * n in range(256) for n in range(26, 999))
