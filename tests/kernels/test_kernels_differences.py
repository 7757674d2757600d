"""Check that merges of differences and look-ups of groups give the same rows as a dict that adds up the diffs."""

from collections import Counter
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from ddflow.kernels.differences import SummedRows, collect_group_rows, merge_differences

WORDS = 2
NEAR = st.integers(0, 3)
FAR = st.sampled_from([0, 1, 2**31, 2**62, 2**63, 2**64 - 1])
ROW = st.tuples(FAR | NEAR, NEAR, NEAR, NEAR, st.integers(0, 4), st.sampled_from([-2, -1, 1, 3]))


def lay_out(runs: list[list[Any]], one_time: bool) -> tuple[Any, Any, list[Any]]:
    """Lay out each run as a batch with a row that is not part of it at both ends."""
    kept, table, parts = [], [], []
    for slot, run in enumerate(runs):
        rows = sorted(run)
        rows = [(0,) * 6, *rows, (2**64 - 1,) * 4 + (9, 1)]
        high, low = (np.array([row[i] for row in rows], np.uint64) for i in (0, 1))
        more = np.array([row[2:4] for row in rows], np.uint64)
        time = np.array([7], np.int64) if one_time else np.array([row[4] for row in rows], np.int64)
        diff = np.array([row[5] for row in rows], np.int64)
        kept += [high, low, more, time, diff]
        table.append([each.ctypes.data for each in (high, low, more, time)] + [0 if one_time else 8, diff.ctypes.data])
        parts.append((slot, 1, len(rows) - 1))
    chosen = [part for part in parts if part[2] > part[1]]
    return np.array(chosen, np.int64).reshape(-1, 3), np.array(table, np.uint64).reshape(-1, 6), kept


def add_up(runs: list[list[Any]], since: int, one_time: bool) -> list[Any]:
    found: Counter[Any] = Counter()
    for run in runs:
        for *identity, time, diff in run:
            found[(*identity, max(7 if one_time else time, since))] += diff
    return sorted((*row, diff) for row, diff in found.items() if diff)


@given(st.lists(st.lists(ROW, max_size=12), max_size=5), st.integers(-1, 8), st.booleans())
@settings(deadline=None)
def test_a_merge_adds_up_the_diffs_of_equal_rows(runs: list[list[Any]], since: int, one_time: bool) -> None:
    parts, batches, kept = lay_out(runs, one_time)
    out = SummedRows.allocate(sum(map(len, runs)), WORDS, grouped=False)
    n = merge_differences(parts, batches, np.int64(WORDS), np.int64(since), out)
    assert kept or not n
    rows = zip(out.high[:n], out.low[:n], *out.more[:n].T, out.time[:n], out.diff[:n], strict=True)
    assert [tuple(map(int, row)) for row in rows] == add_up(runs, since, one_time)


@given(st.lists(st.lists(ROW, max_size=12), max_size=5), st.sets(st.tuples(FAR | NEAR, NEAR), max_size=8))
@settings(deadline=None)
def test_the_rows_of_groups_are_the_rows_of_all_runs(runs: list[list[Any]], groups: set[tuple[int, int]]) -> None:
    parts, batches, kept = lay_out(runs, one_time=False)
    wanted = sorted(groups)
    high, low = (np.array([group[i] for group in wanted], np.uint64) for i in (0, 1))
    out, begins = SummedRows.allocate(60, WORDS, grouped=True), np.empty(len(wanted) + 1, np.int64)
    n = collect_group_rows(high, low, parts, batches, np.int64(WORDS), out, begins)
    every = add_up(runs, 10, one_time=False)
    expected = [row for group in wanted for row in every if row[:2] == group]
    found = zip(np.repeat(high, np.diff(begins)), np.repeat(low, np.diff(begins)), *out.more[:n].T, strict=True)
    assert [tuple(map(int, row)) for row in found] == [row[:4] for row in expected] and (kept or not n)
    assert out.diff[:n].tolist() == [row[-1] for row in expected]
    # A reference points at a row with the same identity.
    for reference, more in zip(out.reference[:n].tolist(), out.more[:n].tolist(), strict=True):
        assert kept[5 * (reference >> 40) + 2][reference & ((1 << 40) - 1)].tolist() == more


@pytest.mark.parametrize("spread", [1, 2**40])
@pytest.mark.parametrize("asked", [3, 2_000])
def test_a_search_finds_each_group_of_a_large_run(spread: int, asked: int) -> None:
    """Words of a narrow range, and few and many groups, take different ways through the search."""
    rng = np.random.default_rng(4)
    high = np.unique(rng.integers(0, 20_000, 9_000).astype(np.uint64) * np.uint64(spread))
    low, time, diff = np.zeros(high.size, np.uint64), np.zeros(1, np.int64), np.arange(1, high.size + 1)
    more = np.zeros((high.size, 1), np.uint64)
    batch = [each.ctypes.data for each in (high, low, more, time)] + [0, diff.ctypes.data]
    words = np.sort(
        np.concatenate([high[:: high.size // asked or 1], high[1::7] + np.uint64(1), [high[-1] + np.uint64(9)]])
    )
    words = np.unique(words)
    out, begins = SummedRows.allocate(high.size, 1, grouped=True), np.empty(words.size + 1, np.int64)
    parts = np.array([[0, 0, high.size]])
    collect_group_rows(
        words, np.zeros(words.size, np.uint64), parts, np.array([batch], np.uint64), np.int64(1), out, begins
    )
    there = np.isin(words, high)
    assert np.diff(begins).tolist() == there.astype(int).tolist()
    assert out.diff[: begins[-1]].tolist() == (np.searchsorted(high, words[there]) + 1).tolist()


def test_output_without_room_is_counted() -> None:
    parts, batches, kept = lay_out([[(5, 0, 1, 0, 3, 1), (5, 0, 2, 0, 3, 1)]], one_time=False)
    begins, one = np.empty(2, np.int64), np.array([5], np.uint64)
    out = SummedRows.allocate(1, WORDS, grouped=True)
    found = collect_group_rows(one, np.zeros(1, np.uint64), parts, batches, np.int64(WORDS), out, begins)
    assert (found, out.more[0].tolist(), len(kept)) == (2, [1, 0], 5)
