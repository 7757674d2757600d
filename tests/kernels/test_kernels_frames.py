"""Check the kernels of frames beside plain loops: states before and after changes, extremes and distinct values."""

from collections import Counter
from typing import Any

import numpy as np
from hypothesis import given, settings, strategies as st
from test_kernels_differences import NEAR, add_up, lay_out

from ddflow.kernels.frames import (
    RowChanges,
    States,
    count_frame_values,
    find_bound_ranges,
    find_frame_extremes,
    find_session_ranges,
    list_states,
    match_places,
)
from ddflow.kernels.top import StepUpdates, StoredGroups, find_group_ranges

KEY = st.tuples(st.integers(0, 1), st.just(0))
ROW = st.builds(
    lambda key, place, content, diff: (*key, place, content, 0, diff),
    KEY,
    st.integers(0, 9),
    NEAR,
    st.sampled_from([-1, 1, 1, 2]),
)


@given(st.lists(st.lists(ROW, max_size=12), max_size=4), st.sets(st.tuples(KEY, st.integers(0, 9)), max_size=6), NEAR)
@settings(deadline=None, max_examples=200)
def test_ranges_have_the_rows_between_bounds(runs: list[list[Any]], asked: set[Any], reach: int) -> None:
    parts, batches, kept = lay_out(runs, one_time=False)
    places = sorted((*key, place) for key, place in asked)
    high, low = (np.array([place[i] for place in places], np.uint64) for i in (0, 1))
    more = np.array([[place[2], 0] for place in places], np.uint64).reshape(-1, 2)
    bounds = np.array([[max(each[2] - reach, 0), each[2] + reach] for each in places], np.uint64).reshape(-1, 2)
    none = np.zeros(len(places), np.int64)
    groups = sorted({place[:2] for place in places})
    begins = np.array([*(next(i for i, row in enumerate(places) if row[:2] == g) for g in groups), len(places)])
    step = StepUpdates(begins, high, low, more, none, none.astype(np.int32), none)
    ranges = np.empty((len(groups), 2 * parts.shape[0]), np.int64)
    find_group_ranges(step, parts, batches, ranges)
    firsts, found = np.empty(len(places) + 1, np.int64), np.empty((len(places), 2 * parts.shape[0]), np.int64)
    n = find_bound_ranges(step, StoredGroups(parts[:, 0].copy(), ranges, batches), bounds, np.int64(1), firsts, found)
    every = add_up(runs, 10, one_time=False)
    for window in range(n):
        its = places[firsts[window] : firsts[window + 1]]
        sums: Counter[Any] = Counter()
        for p, (slot, *_) in enumerate(parts.tolist()):
            span = slice(found[window, 2 * p], found[window, 2 * p + 1])
            for words, diff in zip(kept[5 * slot + 2][span].tolist(), kept[5 * slot + 4][span].tolist(), strict=True):
                sums[(*its[0][:2], *words)] += diff
        first, last = max(its[0][2] - reach, 0), its[-1][2] + reach
        here = {row[:4]: row[-1] for row in every if row[:2] == its[0][:2] and first <= row[2] <= last}
        assert {row: diff for row, diff in sums.items() if diff} == here
    assert firsts[n] == len(places)


MOMENT = st.sampled_from([(0, 0), *((at, 1) for at in (0, 1, 3, 4, 7, 9, 12, 20)), (2**64 - 2, 1), (2**64 - 1, 1)])
TIMED = st.builds(lambda key, at, diff: (*key, *at, 0, diff), KEY, MOMENT, st.sampled_from([-1, 1, 1, 2]))


@given(
    st.lists(st.lists(TIMED, max_size=12), max_size=4),
    st.sets(st.tuples(KEY, MOMENT), max_size=6),
    st.sampled_from([1, 2, 3, 4, 2**63]),
)
@settings(deadline=None, max_examples=300)
def test_ranges_have_the_sessions_of_the_updates(runs: list[list[Any]], asked: set[Any], gap: int) -> None:
    """Which rows without a timestamp, whose second word is not 1, never join."""
    parts, batches, kept = lay_out(runs, one_time=False)
    places = sorted((*key, *at) for key, at in asked)
    high, low = (np.array([place[i] for place in places], np.uint64) for i in (0, 1))
    more = np.array([place[2:] for place in places], np.uint64).reshape(-1, 2)
    none = np.zeros(len(places), np.int64)
    groups = sorted({place[:2] for place in places})
    begins = np.array([*(next(i for i, row in enumerate(places) if row[:2] == g) for g in groups), len(places)])
    step = StepUpdates(begins, high, low, more, none, none.astype(np.int32), none)
    ranges = np.empty((len(groups), 2 * parts.shape[0]), np.int64)
    find_group_ranges(step, parts, batches, ranges)
    firsts, found = np.empty(len(places) + 1, np.int64), np.empty((len(places), 2 * parts.shape[0]), np.int64)
    n = find_session_ranges(step, StoredGroups(parts[:, 0].copy(), ranges, batches), np.uint64(gap), firsts, found)
    every = [row[:4] for run in runs for row in run] + places
    for window in range(n):
        its, got = places[firsts[window] : firsts[window + 1]], Counter[Any]()
        for p, (slot, *_) in enumerate(parts.tolist()):
            span = slice(found[window, 2 * p], found[window, 2 * p + 1])
            got.update((*its[0][:2], *words) for words in kept[5 * slot + 2][span].tolist())
        if its[0][3] != 1:
            assert len(its) == 1
            session = set(its)
        else:
            near, session = {row for row in every if row[:2] == its[0][:2] and row[3] == 1}, set[Any]()
            ahead = {its[0]}
            while ahead:
                session |= ahead
                ahead = {row for row in near - session if any(abs(row[2] - other[2]) < gap for other in session)}
            assert set(its) == session.intersection(places)
        assert got == Counter(row[:4] for run in runs for row in run if row[:4] in session)
    assert firsts[n] == len(places)


@given(
    st.lists(st.lists(st.tuples(st.integers(0, 3), st.booleans()), min_size=1, max_size=8), max_size=4),
    st.data(),
    st.sampled_from([-1, 0, 1, 3]),
    st.sampled_from([1, 5, 100]),
)
@settings(deadline=None, max_examples=300)
def test_states_are_the_places_before_and_after(windows: list[Any], data: Any, reach: int, room: int) -> None:
    """Also if only some of the pairs fit, and at least the places within reach of a change."""
    held = np.array([count for rows in windows for count, _ in rows], np.int64)
    event = np.cumsum([new for rows in windows for _, new in rows]) if windows else np.zeros(0, np.int64)
    ends = np.cumsum([0, *map(len, windows)])
    changes, begins, expected = list[Any](), [0], list[Any]()
    for w, rows in enumerate(windows):
        counts = [count for count, _ in rows]
        for rank in range(data.draw(st.integers(0, 3))):
            before = counts.copy()
            for row in sorted(data.draw(st.sets(st.integers(0, len(rows) - 1), min_size=1, max_size=3))):
                counts[row] = data.draw(st.integers(0, 3))
                changes.append((ends[w] + row, rank, counts[row]))
            expected.append((w, rank, before, counts.copy()))
        begins.append(len(changes))
    place, ranks, after = (np.array([each[i] for each in changes], np.int64) for i in range(3))
    given, at, made = RowChanges(np.array(begins), place, ranks.astype(np.int32), after), np.array([0, 0, 0]), 0
    while True:
        out = States(np.empty(room, np.int64), np.empty(9, np.int64), np.empty(4, np.int32), np.empty(4, np.int64))
        pairs = list_states(ends, held, event, given, reach, at, out)
        for pair in range(pairs):
            w, rank, *states = expected[made]
            assert (out.window[pair], out.rank[pair]) == (w, rank)
            found = [out.row[out.starts[2 * pair + i] : out.starts[2 * pair + i + 1]] - ends[w] for i in (0, 1)]
            whole = [[row for row, count in enumerate(counts) for _ in range(count)] for counts in states]
            changed = [row - ends[w] for row, r, _ in changes[begins[w] : begins[w + 1]] if r == rank]
            for one, every in zip(found, whole, strict=True):
                low, high = (min(changed), max(changed)) if reach >= 0 else (0, 99)
                assert {row for row in every if low <= row <= high} <= set(one.tolist())
                assert one.tolist() == [row for row in every if row in set(one.tolist())]
            made += 1
        if not at[2]:
            break
        room = max(room, int(at[2]))
    assert made == len(expected)


@given(st.lists(st.lists(st.integers(-1, 3), max_size=7), max_size=4), st.integers(-3, 2), st.integers(0, 3))
@settings(deadline=None, max_examples=300)
def test_extremes_and_distinct_values_of_frames(states: list[list[int]], first: int, size: int) -> None:
    values = np.array([each for state in states for each in state], np.int64)
    begin, end, start = list[int](), list[int](), 0
    for state in states:
        for i in range(len(state)):
            begin.append(start + min(max(i + first, 0), len(state)))
            end.append(max(start + min(max(i + first + size, 0), len(state)), begin[-1]))
        start += len(state)
    frames = np.array(begin, np.int64), np.array(end, np.int64)
    least, distinct = np.empty(values.size, np.int64), np.empty(values.size, np.int64)
    find_frame_extremes(values, *frames, least)
    count_frame_values(values, *frames, np.int64(4), distinct)
    for i in range(values.size):
        there = [j for j in range(begin[i], end[i]) if values[j] >= 0]
        assert distinct[i] == len({int(values[j]) for j in there})
        assert (least[i] < 0) == (not there)
        if there:
            assert least[i] in there and values[least[i]] == min(values[j] for j in there)


@given(st.lists(st.tuples(st.lists(st.integers(0, 4)), st.lists(st.integers(0, 4))), max_size=3))
@settings(deadline=None, max_examples=200)
def test_matches_pair_equal_rows(states: list[tuple[list[int], list[int]]]) -> None:
    flat = [sorted(side) for both in states for side in both]
    row, starts = np.array([each for side in flat for each in side], np.int64), np.cumsum([0, *map(len, flat)])
    before, after, pair = np.empty(row.size, np.int64), np.empty(row.size, np.int64), np.empty(row.size, np.int32)
    m = match_places(row, starts, before, after, pair)
    for p in range(len(states)):
        mine = [(i, j) for i, j, at in zip(before[:m], after[:m], pair[:m], strict=True) if at == p]
        assert [i for i, _ in mine if i >= 0] == list(range(starts[2 * p], starts[2 * p + 1]))
        assert [j for _, j in mine if j >= 0] == list(range(starts[2 * p + 1], starts[2 * p + 2]))
        assert all(row[i] == row[j] for i, j in mine if i >= 0 <= j)
        both = Counter(flat[2 * p]) & Counter(flat[2 * p + 1])
        assert sum(i >= 0 <= j for i, j in mine) == sum(both.values())
