"""Test that sorts and counting sorts equal Python's stable ``sorted``, for any spread of identities."""

from __future__ import annotations

from itertools import groupby, pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given, strategies as st

from ddflow.columns.layout import Arena
from ddflow.columns.sorting import sort_by_identity
from ddflow.columns.threads import Threads
from ddflow.kernels.sort import (
    compute_bucket_starts,
    count_buckets,
    fill_buckets,
    find_group_starts,
    order_by_rank,
    sort_buckets,
)

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


def assert_sorted(high: list[int], low: list[int] | None, bits: int, rows: list[int], buckets: list[int]) -> None:
    """``rows``, ``buckets``: where the spans begin that several threads would take."""
    n, spans = len(high), list(pairwise(sorted({0, *rows, len(high)}))) or [(0, 0)]
    given_high, given_low = words(high), words(low or [])
    permutation, sorted_high = np.full(n, -7, np.int32), np.empty(n, np.uint64)
    sorted_low = np.empty(n if low is not None else 0, np.uint64)
    at = np.full((len(spans), 1 << bits), -7, np.int32)
    for span, (begin, end) in enumerate(spans):
        count_buckets(given_high[begin:end], np.int64(bits), at[span])
    compute_bucket_starts(at)
    for span, (begin, end) in enumerate(spans):
        second = given_low[begin:end] if given_low.size else given_low
        fill_buckets(
            given_high[begin:end],
            second,
            np.int64(begin),
            np.int64(bits),
            at[span],
            permutation,
            sorted_high,
            sorted_low,
        )
    for begin, end in pairwise(sorted({0, *buckets, 1 << bits})):
        sort_buckets(at[-1], np.int64(begin), np.int64(end), permutation, sorted_high, sorted_low)
    expected = sorted(range(n), key=lambda i: (high[i], low[i] if low is not None else 0))
    assert permutation.tolist() == expected
    assert sorted_high.tolist() == [high[i] for i in expected]
    assert sorted_low.tolist() == ([low[i] for i in expected] if low is not None else [])


cuts = st.lists(st.integers(0, 60), max_size=3)


@given(st.lists(identity, max_size=60), st.integers(1, 12), cuts, cuts)
def test_one_word_identities_are_sorted_stably_whatever_the_number_of_buckets_and_of_spans(
    high: list[int], bits: int, rows: list[int], buckets: list[int]
) -> None:
    assert_sorted(high, None, bits, [min(row, len(high)) for row in rows], [min(b, 1 << bits) for b in buckets])


@given(
    st.lists(st.tuples(identity, st.one_of(st.integers(0, 2), identity)), min_size=1, max_size=60),
    st.integers(1, 8),
    cuts,
)
def test_two_word_identities_are_sorted_by_both_words(pairs: list[tuple[int, int]], bits: int, rows: list[int]) -> None:
    cut = [min(row, len(pairs)) for row in rows]
    assert_sorted([high for high, _ in pairs], [low for _, low in pairs], bits, cut, [])


@pytest.mark.parametrize("kind", SHAPES)
@pytest.mark.parametrize("wide", [False, True])
def test_a_bucket_too_large_for_insertion_is_sorted_too(kind: str, wide: bool) -> None:
    high = distribution(kind, 150)
    assert_sorted(high, [i * 31 % 5 for i in range(150)] if wide else None, 1, [], [])
    assert_sorted(high, [9 - i % 3 for i in range(150)] if wide else None, 8, [75], [100, 200])


@given(st.lists(st.tuples(identity, st.integers(0, 1)), max_size=30), st.booleans())
def test_groups_begin_where_the_identity_changes(pairs: list[tuple[int, int]], wide: bool) -> None:
    pairs.sort()
    starts = np.empty(len(pairs) + 1, np.int32)
    low = words([low for _, low in pairs] if wide else [])
    if wide and not pairs:
        return
    groups = find_group_starts(words([high for high, _ in pairs]), low, starts)
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
    assert all(np.array_equal(a, b) for a, b in zip(found, sort_by_identity(high, words([])), strict=True))
