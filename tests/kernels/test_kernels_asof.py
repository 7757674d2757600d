"""Check the partners of left rows, and the windows of rows near updates, against plain searches."""

from collections import defaultdict
from itertools import pairwise
from typing import Any

import numpy as np
from hypothesis import given, settings, strategies as st
from test_kernels_differences import NEAR, lay_out

from ddflow.kernels.asof import ONES, AsofUpdates, AsofWindows, NearRows, compute_asof_updates, find_asof_windows
from ddflow.kernels.top import StepUpdates, StoredGroups, find_group_ranges

MOMENT = st.sampled_from([0, 1, 2, 3, 4, ONES])
SIDE = st.lists(
    st.tuples(st.integers(0, 5), st.integers(0, 1), st.dictionaries(st.integers(0, 3), st.integers(0, 2))), max_size=8
)


def find_first(rows: list[tuple[int, int]], moment: int, strict: bool) -> int:
    """Return the place of the first present row at or after a moment, or -1. ``rows``: moments and multiplicities."""
    met = (i for i, (at, n) in enumerate(rows) if n > 0 and (at > moment or (at == moment and not strict)))
    return next(met, -1)


def lay_out_side(windows: list[list[Any]]) -> NearRows:
    """Lay out the rows and changes of several windows."""
    rows = [row for window in windows for row in window]
    changes, at = list[Any](), 0
    begins, ends = [0], [0]
    for window in windows:
        its = [(rank, at + i, count) for i, (*_, counts) in enumerate(window) for rank, count in counts.items()]
        changes += sorted(its, key=lambda change: change[0])
        at += len(window)
        begins.append(len(changes))
        ends.append(at)
    moments = np.array([moment for moment, *_ in rows], np.uint64).reshape(-1, 1)
    held = np.array([held for _, held, _ in rows], np.int64)
    columns = [np.array([change[i] for change in changes], np.int64) for i in range(3)]
    told = columns[1], columns[0].astype(np.int32), columns[2]
    return NearRows(np.array(ends), moments, held, np.array(begins), *told)


@given(st.lists(st.tuples(SIDE, SIDE), max_size=3), st.booleans(), st.booleans(), st.sampled_from([0, 500]))
@settings(deadline=None, max_examples=300)
def test_pairs_change_as_partners_do(windows: list[Any], strict: bool, outer: bool, room: int) -> None:
    windows = [tuple(sorted(side, key=lambda row: row[0]) for side in window) for window in windows]
    left, right = (lay_out_side([window[side] for window in windows]) for side in (0, 1))
    out = AsofUpdates(np.empty(room, np.int32), *np.empty((3, room), np.int64))
    n = compute_asof_updates(left, right, strict, outer, out)
    expected, starts = defaultdict[Any, int](int), (0, 0)
    for lefts, rights in windows:
        states = list[dict[Any, int]]()
        for rank in range(-1, 4):
            now = [
                [(m, [held, *(c for at, c in sorted(counts.items()) if at <= rank)][-1]) for m, held, counts in side]
                for side in (lefts, rights)
            ]
            pairs = {i: find_first(now[1], moment, strict) for i, (moment, held) in enumerate(now[0]) if held}
            states.append({(i, j): now[0][i][1] for i, j in pairs.items() if j >= 0 or outer})
        for rank, (before, after) in enumerate(pairwise(states)):
            for i, j in {*before, *after}:
                pair = starts[0] + i, starts[1] + j if j >= 0 else -1
                expected[(rank, *pair)] += after.get((i, j), 0) - before.get((i, j), 0)
        starts = starts[0] + len(lefts), starts[1] + len(rights)
    expected = {pair: diff for pair, diff in expected.items() if diff}
    assert n == len(expected)
    if room:
        assert (
            dict(zip(zip(*(c[:n].tolist() for c in out[:3]), strict=True), out.diff[:n].tolist(), strict=True))
            == expected
        )


STORED = st.builds(
    lambda key, moment, word, diff: (key, 0, moment, word, 0, diff),
    st.integers(0, 1),
    MOMENT,
    NEAR,
    st.sampled_from([-1, 1, 1, 2]),
)
UPDATES = st.lists(st.tuples(st.integers(0, 1), st.just(0), MOMENT, NEAR), max_size=6).map(sorted)


def lay_out_step(runs: list[list[Any]], updates: list[Any], keys: list[int]) -> tuple[Any, ...]:
    parts, batches, kept = lay_out(runs, one_time=False)
    n, more = len(updates), np.array([row[2:] for row in updates], np.uint64).reshape(-1, 2)
    begins = np.array([*(sum(row[0] < key for row in updates) for key in keys), n])
    high, low = np.array(keys, np.uint64), np.zeros(len(keys), np.uint64)
    none = np.zeros(n, np.int64)
    step = StepUpdates(begins, none.view(np.uint64), none.view(np.uint64), more, none, none.astype(np.int32), none)
    ranges = np.empty((len(keys), 2 * parts.shape[0]), np.int64)
    asked = step._replace(begins=np.arange(len(keys) + 1), high=high, low=low)
    find_group_ranges(asked, parts, batches, ranges)
    return step, StoredGroups(parts[:, 0].copy(), ranges, batches), parts, kept


def list_window(kept: Any, parts: Any, ranges: Any) -> dict[Any, int]:
    """Return the rows of a window, with their multiplicities."""
    found = defaultdict[Any, int](int)
    for p, (slot, *_) in enumerate(parts.tolist()):
        span = slice(ranges[2 * p], ranges[2 * p + 1])
        for words, diff in zip(kept[5 * slot + 2][span].tolist(), kept[5 * slot + 4][span].tolist(), strict=True):
            found[tuple(words)] += diff
    return found


@given(
    *[st.lists(st.lists(STORED, max_size=12), max_size=3)] * 2,
    UPDATES,
    UPDATES,
    st.booleans(),
    st.integers(1, 2),
    st.booleans(),
)
@settings(deadline=None, max_examples=300)
def test_windows_have_all_rows_whose_partner_can_change(
    lefts: list[Any], rights: list[Any], left: list[Any], right: list[Any], strict: bool, tied: int, blank: bool
) -> None:
    keys = sorted({row[0] for row in (*left, *right)})
    step, held, parts, kept = lay_out_step(lefts, left, keys)
    other, stored, others, theirs = lay_out_step(rights, right, keys)
    out = AsofWindows.allocate(len(left) + len(right), parts.shape[0], others.shape[0])
    blanks = np.full(len(keys), blank, np.uint8)
    nulls = np.full(1, ONES, np.uint64)
    n = find_asof_windows(step, held, other, stored, blanks, nulls, np.int64(tied), strict, out)
    assert out.left[n] == len(left) and out.right[n] == len(right)
    seen = defaultdict[Any, set[Any]](set)
    for w in range(n):
        mine, its = left[out.left[w] : out.left[w + 1]], right[out.right[w] : out.right[w + 1]]
        (key,) = {row[0] for row in (*mine, *its)}
        rows, partners = list_window(kept, parts, out.lefts[w]), list_window(theirs, others, out.rights[w])
        every = add_up_group(rights, key)
        assert all(partners[row[2:]] == every.get(row[2:], 0) for row in its)
        for row in {*rows, *(row[2:] for row in mine)}:
            assert rows[row] == add_up_group(lefts, key).get(row, 0)
            assert row not in seen[key]
            seen[key].add(row)
            # Whatever the updates do, the first row that stays, and all rows before it or equal to it, are there.
            met = sorted(each for each in {*every, *(r[2:] for r in right if r[0] == key)} if each[0] != ONES)
            met = [each for each in met if each[0] > row[0] or (each[0] == row[0] and not strict)]
            stays = [e for e in met if every.get(e, 0) > 0 and (key, 0, *e) not in right]
            wanted = [e for e in met if not stays or e[:tied] <= stays[0][:tied]]
            for each in () if blank or row[0] == ONES else wanted:
                assert partners[each] == every.get(each, 0)
                assert (key, 0, *each) not in right or (key, 0, *each) in its
    for key in keys:
        every = add_up_group(rights, key)
        for row, count in add_up_group(lefts, key).items():
            if count > 0 and row not in seen[key] and row[0] != ONES and not blank:
                met = sorted({*every, *(r[2:] for r in right if r[0] == key)})
                met = [e for e in met if e[0] != ONES and (e[0] > row[0] or (e[0] == row[0] and not strict))]
                present = next((e for e in met if every.get(e, 0) > 0), None)
                assert not any((key, 0, *e) in right for e in met if present is None or e[:tied] <= present[:tied])


def add_up_group(runs: list[list[Any]], key: int) -> dict[Any, int]:
    """Return the rows of a group with their multiplicities, including 0."""
    found = defaultdict[Any, int](int)
    for high, _, moment, word, _, diff in (row for run in runs for row in run):
        if high == key:
            found[moment, word] += diff
    return dict(found)
