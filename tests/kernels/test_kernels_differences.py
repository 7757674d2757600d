"""Check that merges of differences and reads of groups give the same rows as a dict that adds up the diffs."""

from collections import Counter
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from ddflow.kernels.differences import SummedRows, close_gaps, collect_group_rows, merge_differences, net_differences
from ddflow.kernels.top import FoundRows, StepUpdates, StoredGroups, collect_first_rows, find_group_ranges

WORDS = 2
NONE = np.empty((0, 0), np.uint64)
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


@given(
    st.lists(st.lists(ROW, max_size=12), max_size=5),
    st.sets(st.tuples(FAR | NEAR, NEAR, NEAR, NEAR), max_size=12),
    st.integers(2, 4),
)
@settings(deadline=None)
def test_the_rows_of_groups_are_the_rows_of_all_runs(
    runs: list[list[Any]], groups: set[tuple[int, ...]], words: int
) -> None:
    """The groups have the first two words of identities in common, or more words."""
    parts, batches, kept = lay_out(runs, one_time=False)
    wanted = sorted({group[:words] for group in groups})
    high, low = (np.array([group[i] for group in wanted], np.uint64) for i in (0, 1))
    beyond = np.array([group[2:] for group in wanted], np.uint64).reshape(len(wanted), words - 2)
    out, begins = SummedRows.allocate(60, WORDS, grouped=True), np.empty(len(wanted) + 1, np.int64)
    n = collect_group_rows(high, low, beyond, parts, batches, np.int64(WORDS), out, begins)
    every = add_up(runs, 10, one_time=False)
    expected = [row for group in wanted for row in every if row[:words] == group]
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
        words, np.zeros(words.size, np.uint64), NONE, parts, np.array([batch], np.uint64), np.int64(1), out, begins
    )
    there = np.isin(words, high)
    assert np.diff(begins).tolist() == there.astype(int).tolist()
    assert out.diff[: begins[-1]].tolist() == (np.searchsorted(high, words[there]) + 1).tolist()


def test_output_without_room_is_counted() -> None:
    parts, batches, kept = lay_out([[(5, 0, 1, 0, 3, 1), (5, 0, 2, 0, 3, 1)]], one_time=False)
    begins, one = np.empty(2, np.int64), np.array([5], np.uint64)
    out = SummedRows.allocate(1, WORDS, grouped=True)
    found = collect_group_rows(one, np.zeros(1, np.uint64), NONE, parts, batches, np.int64(WORDS), out, begins)
    assert (found, out.more[0].tolist(), len(kept)) == (2, [1, 0], 5)


@given(st.lists(ROW, max_size=20))
@settings(deadline=None)
def test_net_differences_are_the_sums_of_equal_rows_and_times(run: list[Any]) -> None:
    rows = sorted(run)
    columns = [np.array([row[i] for row in rows], np.uint64) for i in range(4)]
    time, diff = (np.array([row[i] for row in rows], np.int64) for i in (4, 5))
    out = SummedRows.allocate(len(rows), WORDS, grouped=False)
    more = np.stack(columns[2:], axis=1)
    n = net_differences(columns[0], columns[1], more, time, diff, np.arange(len(rows)), out)
    found = zip(out.high[:n], out.low[:n], *out.more[:n].T, out.time[:n], out.diff[:n], strict=True)
    assert [tuple(map(int, row)) for row in found] == add_up([run], -1, one_time=False)
    assert [rows[at][:5] for at in out.reference[:n]] == [row[:5] for row in add_up([run], -1, one_time=False)]


@given(st.lists(ROW, max_size=20), st.lists(st.integers(0, 5), min_size=1, max_size=4))
@settings(deadline=None)
def test_closed_gaps_leave_the_rows_of_all_ranges(rows: list[Any], gaps: list[int]) -> None:
    cuts = [len(rows) * i // len(gaps) for i in range(len(gaps) + 1)]
    out, begins, to = SummedRows.allocate(len(rows) + sum(gaps), WORDS, grouped=False), [], 0
    for begin, end, gap in zip(cuts[:-1], cuts[1:], gaps, strict=True):
        begins.append(to)
        for high, low, one, other, time, diff in rows[begin:end]:
            out.high[to], out.low[to], out.more[to], out.time[to] = high, low, (one, other), time
            out.diff[to], out.reference[to] = diff, to
            to += 1
        to += gap
    assert close_gaps(np.array(begins), np.diff(cuts), out) == len(rows)
    found = zip(out.high, out.low, *out.more.T, out.time, out.diff, strict=True)
    assert [tuple(map(int, row)) for row in found][: len(rows)] == rows


@given(
    st.lists(st.lists(ROW, max_size=15), max_size=4),
    st.lists(st.tuples(NEAR, NEAR, NEAR, NEAR, st.integers(0, 2), st.sampled_from([-2, -1, 1, 3])), max_size=8),
    st.integers(1, 4),
    st.booleans(),
    st.integers(0, 2),
    st.booleans(),
)
@settings(deadline=None, max_examples=300)
def test_the_first_rows_of_groups_are_enough_at_each_time(
    runs: list[list[Any]], updates: list[Any], most: int, places: bool, tied: int, back: bool
) -> None:
    parts, batches, kept = lay_out(runs, one_time=False)
    updates = sorted(updates)
    columns = [np.array([row[i] for row in updates], np.uint64) for i in range(4)]
    groups = sorted({row[:2] for row in updates})
    begins = np.array([*(next(i for i, row in enumerate(updates) if row[:2] == g) for g in groups), len(updates)])
    ranks, diffs = np.array([row[4] for row in updates], np.int32), np.array([row[5] for row in updates], np.int64)
    step = StepUpdates(begins, *columns[:2], np.stack(columns[2:], axis=1), -1 - np.arange(len(updates)), ranks, diffs)
    ranges = np.empty((len(groups), 2 * parts.shape[0]), np.int64)
    find_group_ranges(step, parts, batches, ranges)
    ints = [np.empty(size, np.int64) for size in (80, 80, len(groups) + 1, len(updates), len(updates), 1)]
    content = np.empty(80, np.uint64)
    out = FoundRows(ints[0], ints[1], np.empty(80, np.uint8), *ints[2:-1], content, ints[-1])
    stored = StoredGroups(parts[:, 0].copy(), ranges, batches)
    n = collect_first_rows(step, stored, np.int64(most), places, np.int64(tied), back, out)
    held, at = {row[:4]: row[-1] for row in add_up(runs, 10, one_time=False)}, 0
    changes: dict[Any, dict[int, int]] = {}
    for row in updates:
        times = changes.setdefault(row[:4], {})
        times[row[4]] = times.get(row[4], 0) + row[5]
    for g, group in enumerate(groups):
        assert out.ends[g] == at
        filled, before = 0, None
        for row in sorted({row for row in [*held, *changes] if row[:2] == group}, reverse=back):
            total = now = fewest = held.get(row, 0)
            after = {}
            for rank, diff in sorted(changes.get(row, {}).items()):
                now += diff
                fewest = min(fewest, now)
                after |= {rank: now} if diff else {}
            tie = before is not None and before[2 : 2 + tied] == row[2 : 2 + tied]
            if filled >= most and not tie:
                assert not (out.place[[i for i, each in enumerate(updates) if each[:4] == row]] >= 0).any()
            elif total or after:
                assert (out.held[at], out.ties[at]) == (total, tie)
                assert tied == WORDS or out.content[at] == row[2 + tied]
                its = [i for i, each in enumerate(updates) if each[:4] == row and out.place[i] == at]
                assert {int(ranks[i]): int(out.now[i]) for i in its} == after
                reference = int(out.reference[at])
                if reference >= 0:
                    assert tuple(kept[5 * (reference >> 40) + 2][reference & ((1 << 40) - 1)].tolist()) == row[2:4]
                else:
                    assert updates[-1 - reference][:4] == row
                at, before, filled = at + 1, row, filled + min(max(fewest, 0), most if places else 1)
    assert n == at
