"""Check that the rows near updates are those between two boundaries, which a plain search finds."""

from collections import Counter
from typing import Any

import numpy as np
from hypothesis import given, settings, strategies as st
from test_kernels_differences import NEAR, add_up, lay_out

from ddflow.kernels.top import StepUpdates, StoredGroups, find_group_ranges
from ddflow.kernels.versions import find_windows

KEY = st.tuples(st.integers(0, 1), st.just(0))
ROW = st.builds(
    lambda key, place, content, diff: (*key, place, content, 0, diff),
    KEY,
    st.integers(0, 9),
    NEAR,
    st.sampled_from([-1, 1, 1, 1, 2]),
)


def find_windows_plainly(rows: list[Any], places: list[int]) -> list[tuple[list[int], int, int]]:
    """Return the places of each window, the first class and the last class, for the rows of one group."""
    classes: dict[int, list[int]] = {}
    for row in rows:
        classes.setdefault(row[2], []).append(row[3])
    order, found = sorted(classes), list[Any]()

    def is_boundary(one: int, other: int) -> bool:
        return len(classes[one]) == len(classes[other]) == 1 and classes[one] != classes[other]

    for place in places:
        before, after = [at for at in order if at < place][::-1], [at for at in order if at > place]
        first = next(
            (one for one, other, _ in zip(before, before[1:], before[2:], strict=False) if is_boundary(one, other)), -1
        )
        ends = [each for each in zip(after, after[1:], after[2:], strict=False) if is_boundary(*each[:2])]
        last = ends[0][1] if ends else 99
        if found and not any(beyond < place for *_, beyond in found[-1][3]):
            found[-1][0].append(place)
            found[-1][2:] = [last, ends]
        else:
            found.append([[place], first, last, ends])
    return [(its, first, last) for its, first, last, _ in found]


@given(st.lists(st.lists(ROW, max_size=12), max_size=4), st.sets(st.tuples(KEY, st.integers(0, 9)), max_size=6))
@settings(deadline=None, max_examples=300)
def test_windows_reach_from_boundary_to_boundary(runs: list[list[Any]], asked: set[Any]) -> None:
    parts, batches, kept = lay_out(runs, one_time=False)
    places = sorted((*key, place) for key, place in asked)
    high, low = (np.array([place[i] for place in places], np.uint64) for i in (0, 1))
    more = np.array([[place[2], 0] for place in places], np.uint64).reshape(-1, 2)
    none = np.zeros(len(places), np.int64)
    groups = sorted({place[:2] for place in places})
    begins = np.array([*(next(i for i, row in enumerate(places) if row[:2] == g) for g in groups), len(places)])
    step = StepUpdates(begins, high, low, more, none, none.astype(np.int32), none)
    ranges = np.empty((len(groups), 2 * parts.shape[0]), np.int64)
    find_group_ranges(step, parts, batches, ranges)
    firsts, windows = np.empty(len(places) + 1, np.int64), np.empty((len(places), 2 * parts.shape[0]), np.int64)
    n = find_windows(step, StoredGroups(parts[:, 0].copy(), ranges, batches), np.int64(1), np.int64(0), firsts, windows)
    every, window = add_up(runs, 10, one_time=False), 0
    for group in groups:
        rows = [row for row in every if row[:2] == group]
        for its, first, last in find_windows_plainly(rows, [row[2] for row in places if row[:2] == group]):
            assert [row[2] for row in places[firsts[window] : firsts[window + 1]]] == its
            found: Counter[Any] = Counter()
            for p, (slot, *_) in enumerate(parts.tolist()):
                span = slice(windows[window, 2 * p], windows[window, 2 * p + 1])
                for words, diff in zip(
                    kept[5 * slot + 2][span].tolist(), kept[5 * slot + 4][span].tolist(), strict=True
                ):
                    found[(*group, *words)] += diff
            here = {row[:4]: row[-1] for row in rows if first <= row[2] <= last}
            assert {row: diff for row, diff in found.items() if diff} == here
            window += 1
    assert window == n
