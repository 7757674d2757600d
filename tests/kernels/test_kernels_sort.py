"""Test that sorts and counting sorts equal Python's stable ``sorted``, for any spread of identities."""

from __future__ import annotations

from itertools import groupby, pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given, strategies as st

from ddflow.columns.layout import Arena
from ddflow.columns.sorting import sort_by_identity, sort_by_words
from ddflow.columns.threads import Threads
from ddflow.kernels.sort import _find_group_starts, order_by_rank, sort_range, sort_within_groups

pytestmark = pytest.mark.kernels
TOP = 2**64 - 1
crowded = st.integers(0, 7).map(lambda i: 0xABCDEF << 40 | i)
identity = st.one_of(st.integers(0, TOP), st.integers(0, 3), st.integers(TOP - 3, TOP), crowded)


def distribution(kind: str, n: int) -> list[int]:
    """n identities of one shape that a careless sort would not survive."""
    many = [i * 0x9E3779B97F4A7C15 & TOP for i in range(n)]
    crowd = [0xABCDEF << 40 | (i * 7919 % 1009) for i in range(n)]
    hot = [5 if i % 3 else many[i] for i in range(n)]
    shapes = {
        "uniform": many,
        "ascending": sorted(many),
        "descending": sorted(many, reverse=True),
        "equal": [7] * n,
        "crowded": crowd,
        "crowded descending": sorted(crowd, reverse=True),
        "hot key": hot,
    }
    return shapes[kind]


SHAPES = ["uniform", "ascending", "descending", "equal", "crowded", "crowded descending", "hot key"]


def words(values: list[int]) -> Any:
    return np.array(values, np.uint64)


def assert_sorted(high: list[int], low: list[int] | None, bits: int, cuts: list[int]) -> None:
    """``cuts``: the identities where the ranges begin that several threads would take."""
    n, given_high, given_low = len(high), words(high), words(low or [])
    permutation, sorted_high = np.full(n, -7, np.int32), np.empty(n, np.uint64)
    sorted_low, begin, keys = np.empty(n if low is not None else 0, np.uint64), 0, list[int]()
    for first, end in pairwise(sorted({0, *cuts, TOP + 1})):
        m = sum(first <= each < end for each in high)
        here, starts = slice(begin, begin + m), np.empty(m + 1, np.int32)
        scratch: Any = [np.full(size, -7, np.int32) for size in (1 << bits, m + 1, m)]
        out: Any = permutation[here], sorted_high[here], sorted_low[here], starts
        ends = np.uint64(first), np.uint64(end - 1)
        groups = sort_range(given_high, given_low, *ends, begin, *scratch, np.empty(m + 1, np.uint64), *out)
        keys += starts[:groups].tolist()
        begin += m
    expected = sorted(range(n), key=lambda i: (high[i], low[i] if low is not None else 0))
    assert permutation.tolist() == expected
    assert sorted_high.tolist() == [high[i] for i in expected]
    assert sorted_low.tolist() == ([low[i] for i in expected] if low is not None else [])
    ids = [(high[i], low[i] if low is not None else 0) for i in expected]
    assert keys == [i for i in range(n) if i == 0 or ids[i] != ids[i - 1]]


cuts = st.lists(identity, max_size=3)


@given(st.lists(identity, max_size=60), st.integers(1, 12), cuts)
def test_one_word_identities_are_sorted_stably_whatever_the_number_of_buckets_and_of_ranges(
    high: list[int], bits: int, cut: list[int]
) -> None:
    assert_sorted(high, None, bits, cut)


@given(
    st.lists(st.tuples(identity, st.one_of(st.integers(0, 2), identity)), min_size=1, max_size=60),
    st.integers(1, 8),
    cuts,
)
def test_two_word_identities_are_sorted_by_both_words(pairs: list[tuple[int, int]], bits: int, cut: list[int]) -> None:
    assert_sorted([high for high, _ in pairs], [low for _, low in pairs], bits, cut)


@pytest.mark.parametrize("kind", SHAPES)
@pytest.mark.parametrize("wide", [False, True])
def test_a_bucket_too_large_for_insertion_is_sorted_too(kind: str, wide: bool) -> None:
    high = distribution(kind, 150)
    assert_sorted(high, [i * 31 % 5 for i in range(150)] if wide else None, 1, [])
    assert_sorted(high, [9 - i % 3 for i in range(150)] if wide else None, 8, [TOP // 3, TOP // 2])


@given(st.lists(st.tuples(identity, st.integers(0, 1)), max_size=30), st.booleans())
def test_groups_begin_where_the_identity_changes(pairs: list[tuple[int, int]], wide: bool) -> None:
    pairs.sort()
    starts = np.empty(len(pairs) + 1, np.int32)
    low = words([low for _, low in pairs] if wide else [])
    if wide and not pairs:
        return
    groups = _find_group_starts(words([high for high, _ in pairs]), low, starts)
    sizes = [len(list(rows)) for _, rows in groupby(pairs, key=lambda pair: pair if wide else pair[0])]
    assert starts[: groups + 1].tolist() == [sum(sizes[:i]) for i in range(len(sizes) + 1)]


@pytest.mark.parametrize("kind", SHAPES)
@pytest.mark.parametrize("wide", [False, True])
def test_the_shell_sorts_and_groups_any_number_of_rows_in_memory_that_was_used_before(kind: str, wide: bool) -> None:
    arena = Arena()
    for n in (200, 0, 1, 2, 3, 200, 150):
        high = distribution(kind, n)
        low = [i * 31 % 3 for i in range(n)] if wide else [0] * n
        arena.reset()
        arena.block[:] = 0xAA
        by = sort_by_identity(words(high), words(low if wide else []), arena)
        expected = sorted(range(n), key=lambda i: (high[i], low[i]))
        assert by.permutation.tolist() == expected
        assert by.high.tolist() == [high[i] for i in expected]
        assert by.low.tolist() == [low[i] for i in expected if wide]
        found = [(high[by.permutation[start]], low[by.permutation[start]]) for start in by.starts[:-1]]
        assert found == sorted(set(zip(high, low, strict=True))) and by.starts[-1] == n


def test_the_result_of_a_sort_without_an_arena_is_the_callers() -> None:
    first = sort_by_identity(words([9, 4, 9]), words([]))
    sort_by_identity(words([1, 2, 3]), words([]))
    assert (first.permutation.tolist(), first.starts.tolist()) == ([1, 0, 2], [0, 1, 3])


@given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 1)), max_size=40), st.booleans())
def test_order_by_rank_is_a_stable_sort_by_rank_then_flag(rows: list[tuple[int, int]], flagged: bool) -> None:
    out = np.empty(len(rows), np.int64)
    second = np.array([flag for _, flag in rows] if flagged else [], np.int64)
    order_by_rank(np.array([rank for rank, _ in rows], np.int32), second, np.int64(5), out)
    assert out.tolist() == sorted(range(len(rows)), key=lambda i: (rows[i][0], rows[i][1] if flagged else 0))


def test_two_threads_sort_as_one_does() -> None:
    high = words(distribution("hot key", 40_000))
    with Threads(2) as threads:
        threads.waking = 1
        found = sort_by_identity(high, words([]), threads=threads)
        more = np.arange(40_000).reshape(-1, 1) * 7919 % 40_009 % 50
        ordered = sort_by_words(high, words([]), more, threads=threads)
    assert all(np.array_equal(a, b) for a, b in zip(found, sort_by_identity(high, words([])), strict=True))
    assert all(np.array_equal(a, b) for a, b in zip(ordered, sort_by_words(high, words([]), more), strict=True))


@pytest.mark.parametrize("kind", SHAPES)
@pytest.mark.parametrize("bits", [18, 19])
def test_rows_that_are_distributed_twice_are_sorted_stably(kind: str, bits: int) -> None:
    high = distribution(kind, 150)
    for low in (None, [i * 31 % 5 for i in range(150)]):
        assert_sorted(high, low, bits, [TOP // 3])


def test_a_sort_of_groups_leaves_the_memory_of_other_threads_alone() -> None:
    more, scratch = words([i * 7919 % 101 for i in range(200)]).reshape(-1, 1), np.full(200, -7, np.int32)
    permutation, starts = np.arange(200, dtype=np.int32), np.empty(101, np.int32)
    sort_within_groups(permutation, np.array([100, 200], np.int32), more, scratch, starts)
    assert more[permutation[100:], 0].tolist() == sorted(more[100:, 0].tolist())
    assert set(scratch[:100].tolist()) == {-7}
