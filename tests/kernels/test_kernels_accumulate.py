"""Test that consolidation and counting give a Counter's results, and name a row instead of overflowing."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest
from hypothesis import given, strategies as st

from ddflow.kernels.accumulate import consolidate_diffs, update_group_counts

pytestmark = pytest.mark.kernels
MOST, LEAST = 2**63 - 1, -(2**63)
small = st.integers(-3, 3)
large = st.sampled_from([MOST, LEAST, MOST - 1, LEAST + 1, 2**62, -(2**62), 1, -1])
Update = tuple[int, int, int]
"""Group, rank of its time, diff."""


def updates_of(diffs: st.SearchStrategy[int]) -> st.SearchStrategy[list[Update]]:
    return st.lists(st.tuples(st.integers(0, 3), st.integers(0, 2), diffs), max_size=16)


def given_to_kernel(updates: list[Update]) -> tuple[list[Update], Any, Any, Any, Any]:
    """Updates in the order of times (as operators pass them), the permutation by group, starts, ranks, diffs."""
    updates = sorted(updates, key=lambda update: update[1])
    by = sorted(range(len(updates)), key=lambda i: updates[i][0])
    starts = [place for place, row in enumerate(by) if place == 0 or updates[row][0] != updates[by[place - 1]][0]]
    ranks, diffs = ([update[i] for update in updates] for i in (1, 2))
    narrow = (np.array(column, np.int32) for column in (by, [*starts, len(by)] if by else [0], ranks))
    return updates, *narrow, np.array(diffs, np.int64)


def room(n: int, columns: int) -> list[Any]:
    """Where a kernel writes: ranks, and columns of 64 bits."""
    return [np.empty(n, np.int32), *(np.empty(n, np.int64) for _ in range(columns))]


def fits(total: int) -> bool:
    return LEAST <= total <= MOST


@given(updates_of(small))
def test_net_is_the_sum_of_equal_rows_at_equal_times_without_zeros(drawn: list[Update]) -> None:
    updates, by, starts, ranks, diffs = given_to_kernel(drawn)
    out = room(len(updates), 2)
    written, refused = consolidate_diffs(by, starts, ranks, diffs, *out)
    assert refused == -1
    expected: Counter[tuple[int, int]] = Counter()
    for group, rank, diff in updates:
        expected[group, rank] += diff
    rows = list(zip(*(column[:written].tolist() for column in out), strict=True))
    found = {(updates[row][0], rank): diff for rank, row, diff in rows}
    assert found == {key: diff for key, diff in expected.items() if diff}
    assert [(updates[row][0], rank) for rank, row, _ in rows] == sorted(found)
    assert all(row == min(i for i, u in enumerate(updates) if u[:2] == updates[row][:2]) for _, row, _ in rows)


@given(updates_of(large))
def test_net_refuses_exactly_when_a_running_sum_leaves_int64(drawn: list[Update]) -> None:
    updates, by, starts, ranks, diffs = given_to_kernel(drawn)
    sums: Counter[tuple[int, int]] = Counter()
    wrong = set()
    for group, rank, diff in updates:
        sums[group, rank] += diff
        if not fits(sums[group, rank]):
            wrong.add((group, rank))
            sums[group, rank] = MOST + 1  # once gone it stays gone
    out = room(len(updates), 2)
    refused = consolidate_diffs(by, starts, ranks, diffs, *out)[1]
    assert updates[refused][:2] in wrong if wrong else refused == -1


def counted(updates: list[Update], held: list[int], since_rank: int) -> tuple[list[Any], list[Any], int]:
    """What the kernel says: updates (rank, group, count, diff), versions (rank, group, count), the refused row."""
    updates, _, _, ranks, diffs = given_to_kernel(updates)
    groups = list(dict.fromkeys(group for group, _, _ in updates))
    n, m = len(updates), len(groups)
    up, down = room(2 * n, 3), room(n, 3)
    numbers = np.array([groups.index(group) for group, _, _ in updates], np.int32)
    net, touched, last = np.full(m, 7), np.full(n, 7), np.full(m, 7)
    now = np.array([held[group] for group in groups], np.int64)
    changed, versions, refused = update_group_counts(
        numbers, ranks, diffs, now, np.int64(since_rank), net, touched, *up, *down, last
    )
    if refused >= 0:
        return [], [], refused
    out = [
        (rank, updates[row][0], held_count, diff)
        for rank, row, held_count, diff in zip(*(c[:changed].tolist() for c in up), strict=True)
    ]
    rows = list(zip(*(column[:versions].tolist() for column in down), strict=True))
    assert [groups[number] for *_, number in rows] == [updates[row][0] for _, row, _, _ in rows]
    kept = [(rank, updates[row][0], value) for rank, row, value, _ in rows]
    for number, (group, at) in enumerate(zip(groups, last.tolist(), strict=True)):
        mine = [i for i, version in enumerate(kept) if version[1] == group]
        assert at == (mine[-1] if mine else -1)
        assert now[number] == held[group] + sum(diff for g, _, diff in updates if g == group)
    return out, kept, -1


@given(updates_of(small), st.lists(small, min_size=4, max_size=4), st.integers(-1, 2))
def test_a_count_leaves_when_the_new_one_enters_and_groups_at_zero_are_gone(
    updates: list[Update], held: list[int], since_rank: int
) -> None:
    found, versions, refused = counted(updates, held, since_rank)
    assert refused == -1
    expected, history, counts = [], {}, list(held)
    for rank in range(3):
        # In the order of times; within one as the groups come.
        for group in dict.fromkeys(group for group, r, _ in updates if r == rank):
            now, total = counts[group], sum(diff for g, r, diff in updates if (g, r) == (group, rank))
            if total:
                expected += [(rank, group, now, -1)] * (now != 0) + [(rank, group, now + total, 1)] * (now + total != 0)
            counts[group] += total
        history |= {(group, rank): counts[group] for group, _, _ in updates}
    assert found == expected
    for (group, rank), now in history.items():
        if rank >= since_rank:
            seen = [version[2] for version in versions if version[1] == group and version[0] <= rank]
            assert (seen[-1] if seen else held[group]) == now
    assert len({version[:2] for version in versions}) == len(versions)
    old = [group for rank, group, _ in versions if rank <= since_rank]
    assert len(old) == len(set(old))  # history before since is not kept apart


@given(updates_of(large), st.lists(large, min_size=4, max_size=4))
def test_a_count_that_would_overflow_is_refused_and_no_other(updates: list[Update], held: list[int]) -> None:
    ordered = sorted(updates, key=lambda update: update[1])
    wrong = set()
    for group in {group for group, _, _ in updates}:
        now = held[group]
        for rank in range(3):
            total = 0
            for diff in (diff for g, r, diff in ordered if (g, r) == (group, rank)):
                total += diff
                if not fits(total):
                    wrong.add(group)
            now += total
            if not fits(now):
                wrong.add(group)
    refused = counted(updates, held, -1)[2]
    assert ordered[refused][0] in wrong if wrong else refused == -1
