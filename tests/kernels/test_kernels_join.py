"""Check that the pairs of a join are the changes of the products of multiplicities, at each time of a step."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from ddflow.kernels.join import (
    GroupRows,
    Pairs,
    PriorRows,
    SortedUpdates,
    count_pairs,
    list_group_rows,
    match_groups,
    pair_rows,
    sort_pairs,
)

TIMES = 4
HELD, CHANGES = (
    st.integers(-1, 2),
    st.lists(st.tuples(st.integers(0, TIMES - 1), st.sampled_from([-1, 1, 2])), max_size=3),
)
SIDE = st.dictionaries(st.integers(0, 4), st.tuples(HELD, CHANGES), max_size=4)
"""The rows of a group: a number, the multiplicity before the step, and the changes in the step."""


def ints(values: Any) -> Any:
    return np.array(list(values), np.int64)


def list_side(groups: list[dict[int, Any]], base: int) -> GroupRows:
    """List the rows of groups. A held row has the reference ``base + number``, an update ``1000 + base + number``."""
    updates = [
        (g, n, *change)
        for g, side in enumerate(groups)
        for n, (_, rows) in sorted(side.items())
        for change in sorted(rows)
    ]
    held = [(g, n, count) for g, side in enumerate(groups) for n, (count, _) in sorted(side.items()) if count]
    begins, held_begins = (
        np.searchsorted([row[0] for row in rows], np.arange(len(groups) + 1)) for rows in (updates, held)
    )
    words, held_words = (np.array([row[1] for row in rows], np.uint64).reshape(-1, 1) for rows in (updates, held))
    ranks, diffs = np.array([row[2] for row in updates], np.int32), ints(row[3] for row in updates)
    given = SortedUpdates(begins.astype(np.int64), words, ints(1000 + base + row[1] for row in updates), ranks, diffs)
    old = PriorRows(
        held_begins.astype(np.int64), held_words, ints(base + row[1] for row in held), ints(row[2] for row in held)
    )
    return list_rows(given, old)


def list_rows(updates: SortedUpdates, held: PriorRows) -> GroupRows:
    n, m = updates.diff.size, held.reference.size
    rooms = (updates.begins.size, n + m + 1, n + m + 1, n + m + 1)
    out = GroupRows(*(np.empty(room, np.int64) for room in rooms), np.empty(n, np.int32), np.empty(n, np.int64))
    e = list_group_rows(updates, held, out)
    return out._replace(reference=out.reference[:e], before=out.before[:e], changes=out.changes[: e + 1])


def pair(left: GroupRows, right: GroupRows) -> list[Any] | None:
    room = count_pairs(left, right)
    found, out = (Pairs(np.empty(room, np.int32), *(np.empty(room, np.int64) for _ in range(3))) for _ in range(2))
    counts = np.zeros(2 * TIMES, np.int64)
    n = pair_rows(left, right, found, counts, np.empty(max(right.reference.size, 2), np.int64))
    if n < 0:
        return None
    out = Pairs(*(column[:n] for column in out))
    parts = [Pairs(*(column[a:b] for column in found)) for a, b in ((0, n // 3), (n // 3, n))]
    first = parts[0].rank * 2 + (parts[0].diff > 0)
    begin = np.bincount(first, minlength=counts.size).astype(np.int64)
    for i, part in enumerate(parts):
        sort_pairs(part, np.stack([begin, counts - begin]), i, out)
    return list(zip(*(column.tolist() for column in out), strict=True))


@given(st.lists(st.tuples(SIDE, SIDE), max_size=3))
@settings(deadline=None)
def test_the_updates_are_the_changes_of_products(groups: list[tuple[Any, Any]]) -> None:
    expected = []
    for one, other in groups:
        for a, (m, changes) in one.items():
            for b, (n, others) in other.items():
                before = m * n
                for time in range(TIMES):
                    m += sum(diff for rank, diff in changes if rank == time)
                    n += sum(diff for rank, diff in others if rank == time)
                    if m * n != before:
                        expected.append((time, a, b, m * n - before))
                    before = m * n
                m, n = one[a][0], other[b][0]
    found = pair(list_side([each[0] for each in groups], 0), list_side([each[1] for each in groups], 0))
    assert found is not None
    assert [(rank, diff > 0) for rank, _, _, diff in found] == sorted((rank, diff > 0) for rank, _, _, diff in found)
    assert sorted((rank, left % 1000, right % 1000, diff) for rank, left, right, diff in found) == sorted(expected)


def test_a_key_has_one_row_at_each_time() -> None:
    """A retraction is of the row that the key has: the row before the step, then the row of the last addition."""
    none = np.empty((5, 0), np.uint64)
    ranks, diffs = np.array([0, 0, 2, 2, 3], np.int32), ints([1, -1, -1, 1, -1])
    updates = SortedUpdates(ints([0, 5]), none, ints([11, 10, 11, 12, 12]), ranks, diffs)
    rows = list_rows(updates, PriorRows(ints([0, 1]), none[:1], ints([70]), ints([1])))
    assert rows.reference.tolist() == [10, 11, 12] and rows.before.tolist() == [1, 0, 0]
    changes = [
        (rows.rank[a:b].tolist(), rows.diff[a:b].tolist()) for a, b in zip(rows.changes, rows.changes[1:], strict=False)
    ]
    assert changes == [([0], [-1]), ([0, 2], [1, -1]), ([2, 3], [1, -1])]
    missing = list_rows(updates, PriorRows(ints([0, 0]), none[:0], ints([]), ints([])))
    assert (missing.reference.tolist(), missing.before.tolist()) == ([10, 11, 12], [0, 0, 0])


@pytest.mark.parametrize(
    ("one", "change", "other", "change_of_other", "found"),
    [
        (0, 2**62, 2, 0, None),
        (0, 2**62, 1, 0, [2**62]),
        (0, -(2**62), 2, 0, [-(2**63)]),
        (2**62, 2**61, 1, 1, None),
        (2**40, 2**40, 2**20, 2**20, [2**62 - 2**60]),
        (2**62, -(2**62), 1, 1, [-(2**62)]),
        (-(2**62), 2**63 - 1, 1, 1, None),
    ],
)
def test_a_diff_that_overflows_is_refused(one: int, change: int, other: int, change_of_other: int, found: Any) -> None:
    sides = [
        list_side([{0: (count, [(1, diff)] if diff else [])}], 0)
        for count, diff in ((one, change), (other, change_of_other))
    ]
    made = pair(*sides)
    assert (None if made is None else [row[3] for row in made]) == found


@given(
    st.lists(st.tuples(st.integers(0, 3), st.integers(0, 1))), st.lists(st.tuples(st.integers(0, 3), st.integers(0, 1)))
)
def test_groups_of_two_lists_are_matched(one: list[tuple[int, int]], other: list[tuple[int, int]]) -> None:
    lists = [sorted(one), sorted(other)]
    words = [np.array([row[i] for row in rows], np.uint64) for rows in lists for i in (0, 1)]
    n = len(one) + len(other)
    begins, others, first = np.empty(n + 1, np.int64), np.empty(n + 1, np.int64), np.empty(n, np.int64)
    g = match_groups(*words, begins, others, first)
    groups = sorted({*one, *other})
    assert g == len(groups)
    for rows, at in zip(lists, (begins, others), strict=True):
        assert [rows[at[i] : at[i + 1]] for i in range(g)] == [
            [row for row in rows if row == group] for group in groups
        ]
    assert [(lists[0] + lists[1])[i] for i in first[:g]] == groups
