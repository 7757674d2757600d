"""Join groups of rows whose multiplicities change, or find the one row that a group has at each time.

Guarantees: the multiplicity of a pair is the product of both multiplicities. A join writes each change of a pair's
multiplicity once. A change that overflows int64 is reported and not written. The kernel reports a group that has
several rows at one time.
Limits: equal rows of a group have the same words, or the same number.

>>> ints = lambda *values: np.array(values, np.int64)
>>> one = GroupRows(ints(0, 1), ints(70), ints(0), ints(0, 1), np.array([3], np.int32), ints(2))
>>> other = GroupRows(ints(0, 1), ints(80), ints(5), ints(0, 0), np.empty(0, np.int32), ints())
>>> pairs = Pairs(np.empty(1, np.int32), ints(0), ints(0), ints(0))
>>> pair_rows(one, other, pairs, np.zeros(8, np.int64), ints(0, 0)), pairs.diff.tolist()
(1, [10])
"""

from typing import Any, NamedTuple

import numpy as np

from ddflow.kernels.arrays import Ints, Ints2d, Narrow, Words, Words2d
from ddflow.kernels.compile import kernel

HALF = 1 << 31


@kernel
def _product_overflows(a: int, b: int) -> bool:
    """Return whether a * b overflows int64; b is not 0."""
    most = np.uint64(1 << 63) if (a < 0) != (b < 0) else np.uint64((1 << 63) - 1)
    return bool(_compute_magnitude(a) > most // _compute_magnitude(b))


@kernel
def _compute_magnitude(a: int) -> Any:
    """Compute the absolute value of ``a`` as uint64."""
    size: Any = np.uint64(a) if a >= 0 else ~np.uint64(a) + np.uint64(1)
    return size


class GroupRows(NamedTuple):
    """The rows of one side of a join: e rows in g groups, with c changes of their multiplicities."""

    begins: Ints
    """int64[g + 1]: where the rows of each group begin."""
    reference: Ints
    """int64[e]: the reference of each row."""
    before: Ints
    """int64[e]: the multiplicity before the step, or 0 if the rows before the step are not needed."""
    changes: Ints
    """int64[e + 1]: where the changes of each row begin."""
    rank: Narrow
    """int32[c]: the rank of each change's time, ascending for each row."""
    diff: Ints
    """int64[c]: the change of the multiplicity."""


class SortedUpdates(NamedTuple):
    """Updates, sorted by group, then row, then time."""

    begins: Ints
    """int64[g + 1]: where the updates of each group begin."""
    more: Words2d
    """uint64[n, w]: the words that identify a row in its group. If w is 0, a group has at most one row at each time."""
    reference: Ints
    rank: Narrow
    diff: Ints


class PriorRows(NamedTuple):
    """Rows before the step, sorted by group, then row."""

    begins: Ints
    """int64[g + 1]: where the rows of each group begin."""
    more: Words2d
    """uint64[n, w]: as in `SortedUpdates`."""
    reference: Ints
    counts: Ints


@kernel
def match_groups(
    high: Words, low: Words, other_high: Words, other_low: Words, begins: Ints, other_begins: Ints, first: Ints
) -> int:
    """Find the groups of two sorted lists of rows. Return the number of groups. O(n + m).

    Input:
    - high, low, uint64[n]: the group of each row of the one list.
    - other_high, other_low, uint64[m]: the group of each row of the other list.

    Output:
    - begins, other_begins, int64[n + m + 1]: where the rows of each group begin in both lists.
    - first, int64[n + m]: a row of each group: i for row i of the one list, and n + i for row i of the other list.

    >>> one, other = np.array([1, 4, 4], np.uint64), np.array([2, 4], np.uint64)
    >>> begins, others, first = (np.zeros(n, np.int64) for n in (6, 6, 5))
    >>> match_groups(one, one, other, other, begins, others, first)
    3
    >>> begins[:4].tolist(), others[:4].tolist(), first[:3].tolist()
    ([0, 1, 1, 3], [0, 0, 1, 2], [0, 3, 1])
    """
    i, j, g, n, m = 0, 0, 0, high.size, other_high.size
    while i < n or j < m:
        begins[g], other_begins[g] = i, j
        mine = i < n and (j == m or high[i] < other_high[j] or (high[i] == other_high[j] and low[i] <= other_low[j]))
        first[g] = i if mine else n + j
        word, second = (high[i], low[i]) if mine else (other_high[j], other_low[j])
        while i < n and high[i] == word and low[i] == second:
            i += 1
        while j < m and other_high[j] == word and other_low[j] == second:
            j += 1
        g += 1
    begins[g], other_begins[g] = n, m
    return g


@kernel
def list_group_rows(updates: SortedUpdates, held: PriorRows, out: GroupRows) -> int:
    """List the distinct rows of each group, with their changes. Return the number of rows. O(size of all arrays).

    A row that is updated and held has the reference of an update. ``out`` needs room for all rows and updates.

    >>> ints, few = lambda *values: np.array(values, np.int64), np.zeros(2, np.int32)
    >>> words = np.array([[7], [8]], np.uint64)
    >>> out = GroupRows(*(np.zeros(3, np.int64) for _ in range(4)), few.copy(), ints(0, 0))
    >>> updates = SortedUpdates(ints(0, 2), words, ints(1, 2), few, ints(5, 6))
    >>> list_group_rows(updates, PriorRows(ints(0, 1), words[1:], ints(9), ints(4)), out)
    2
    >>> out.begins[:2].tolist(), out.reference[:2].tolist(), out.before[:2].tolist(), out.changes.tolist()
    ([0, 2], [1, 2], [0, 4], [0, 1, 2])
    """
    begins, more, references, ranks, diffs = updates
    held_begins, held_more, held_references, counts = held
    out_begins, out_reference, out_before, out_changes, out_rank, out_diff = out
    row, change, words = np.int64(0), np.int64(0), more.shape[1]
    for g in range(begins.size - 1):
        out_begins[g] = row
        i, j, end, stop = begins[g], held_begins[g], begins[g + 1], held_begins[g + 1]
        while words != 0 and (i < end or j < stop):
            order = 1 if i == end else -1
            if i < end and j < stop:
                w = 0
                while w < words and more[i, w] == held_more[j, w]:
                    w += 1
                order = 0 if w == words else (-1 if more[i, w] < held_more[j, w] else 1)
            out_changes[row], out_before[row] = change, np.int64(0)
            if order >= 0:
                out_reference[row], out_before[row] = held_references[j], counts[j]
                j += 1
            if order <= 0:
                out_reference[row], first = references[i], i
                w = words
                while i < end and w == words:
                    if i > first and ranks[i] == ranks[i - 1]:
                        out_diff[change - 1] += diffs[i]
                    else:
                        out_rank[change], out_diff[change] = ranks[i], diffs[i]
                        change += 1
                    i, w = i + 1, 0
                    while i < end and w < words and more[i, w] == more[first, w]:
                        w += 1
            row += 1
        if words != 0:
            continue
        # A group has at most one row at each time, so a retraction is of the row that the group has.
        there = j < stop
        if there:
            out_reference[row], out_before[row], out_changes[row] = held_references[j], counts[j], change
            row += 1
        while i < end:
            to = i
            while to < end and ranks[to] == ranks[i]:
                to += 1
            for sign in range(2):
                for at in range(i, to):
                    if (diffs[at] > 0) != (sign == 1):
                        continue
                    if sign == 1 or not there:
                        out_before[row], out_changes[row] = np.int64(0), change
                        row += 1
                    out_reference[row - 1] = references[at]
                    out_rank[change], out_diff[change] = ranks[at], diffs[at]
                    change, there = change + 1, sign == 1
            i = to
    out_begins[begins.size - 1], out_changes[row] = row, change
    return int(row)


class Pairs(NamedTuple):
    """Updates of pairs: the rank of the time, the references of both rows, and the diff."""

    rank: Narrow
    left: Ints
    right: Ints
    diff: Ints


@kernel
def _multiply_change(m: Any, n: Any, p: Any, q: Any) -> tuple[Any, bool]:
    """Return p * q - m * n, and whether it overflows int64."""
    diff = p * q - m * n
    if -HALF < p < HALF and -HALF < q < HALF and -HALF < m < HALF and -HALF < n < HALF:
        return diff, False
    if q == n:
        return diff, n != 0 and _product_overflows(p - m, n)
    if p == m:
        return diff, _product_overflows(m, q - n)
    if (q != 0 and _product_overflows(p, q)) or (n != 0 and _product_overflows(m, n)):
        return diff, True
    return diff, (p * q >= 0) != (m * n >= 0) and (diff >= 0) != (p * q >= 0)


@kernel
def count_pairs(left: GroupRows, right: GroupRows) -> int:
    """Count the updates of `pair_rows` at most. O(rows).

    >>> ints = lambda *values: np.array(values, np.int64)
    >>> one = GroupRows(ints(0, 1), ints(70), ints(0), ints(0, 1), np.array([3], np.int32), ints(2))
    >>> count_pairs(one, one)
    2
    """
    found = np.int64(0)
    for g in range(left.begins.size - 1):
        a, b, c, d = left.begins[g], left.begins[g + 1], right.begins[g], right.begins[g + 1]
        found += (left.changes[b] - left.changes[a]) * (d - c) + (right.changes[d] - right.changes[c]) * (b - a)
    return int(found)


@kernel
def pair_rows(left: GroupRows, right: GroupRows, out: Pairs, counts: Ints, scratch: Ints) -> int:
    """Write the updates of all pairs of rows, group by group. Return the number of updates. O(rows + pairs + updates).

    A pair of two rows without changes has no updates, and takes no time. A pair has at most one update at each time.

    Input:
    - left, right: the rows of both sides, for the same groups.

    Output:
    - out: the updates, with room for `count_pairs` updates.
    - counts, int64[2 * times]: zeros, to which the kernel adds the numbers of updates; see `sort_pairs`.
    - scratch, int64: room for a number for each right row, and at least 2 numbers. If a diff overflows int64, the
      kernel returns -1, and the first two numbers are the left row and the right row of the pair.

    >>> ints = lambda *values: np.array(values, np.int64)
    >>> one = GroupRows(ints(0, 1), ints(70), ints(0), ints(0, 1), np.array([3], np.int32), ints(2))
    >>> other = GroupRows(ints(0, 1), ints(80), ints(5), ints(0, 0), np.empty(0, np.int32), ints())
    >>> out = Pairs(np.empty(1, np.int32), ints(0), ints(0), ints(0))
    >>> pair_rows(one, other, out, np.zeros(8, np.int64), ints(0, 0)), [column.tolist() for column in out]
    (1, [[3], [70], [80], [10]])
    """
    begins, lefts, before, changes, ranks, diffs = left
    other_begins, rights, other_before, other_changes, other_ranks, other_diffs = right
    out_rank, out_left, out_right, out_diff = out
    at = 0
    for g in range(begins.size - 1):
        first, last, changed = other_begins[g], other_begins[g + 1], 0
        for b in range(first, last):
            if other_changes[b + 1] > other_changes[b]:
                scratch[changed] = b
                changed += 1
        for a in range(begins[g], begins[g + 1]):
            quiet = changes[a + 1] == changes[a]
            for c in range(changed if quiet else last - first):
                b = scratch[c] if quiet else first + c
                i, end, j, stop = changes[a], changes[a + 1], other_changes[b], other_changes[b + 1]
                m, n = before[a], other_before[b]
                while i < end or j < stop:
                    rank = ranks[i] if j == stop or (i < end and ranks[i] <= other_ranks[j]) else other_ranks[j]
                    p, q = m, n
                    if i < end and ranks[i] == rank:
                        p += diffs[i]
                        i += 1
                    if j < stop and other_ranks[j] == rank:
                        q += other_diffs[j]
                        j += 1
                    diff, overflows = _multiply_change(m, n, p, q)
                    if overflows:
                        scratch[0], scratch[1] = a, b
                        return -1
                    m, n = p, q
                    if diff != 0:
                        out_rank[at], out_left[at], out_right[at], out_diff[at] = rank, lefts[a], rights[b], diff
                        counts[2 * rank + (1 if diff > 0 else 0)] += 1
                        at += 1
    return at


@kernel
def sort_pairs(pairs: Pairs, counts: Ints2d, part: int, out: Pairs) -> None:
    """Write one part of all updates to its places in their order by time, with retractions first within a time.

    The order is stable. Threads write different parts at the same time. O(n + parts times).

    - counts, int64[parts, 2 * times]: for each part, the number of retractions and of additions at each time.
    - part: the number of this part.
    - out: room for the updates of all parts.

    >>> ints = lambda *values: np.array(values, np.int64)
    >>> pairs = Pairs(np.array([1, 0, 0], np.int32), ints(7, 8, 9), ints(7, 8, 9), ints(1, 1, -1))
    >>> out = Pairs(*map(np.empty_like, pairs))
    >>> sort_pairs(pairs, ints(1, 1, 0, 1).reshape(1, 4), 0, out), out.left.tolist()
    (None, [9, 8, 7])
    """
    ranks, lefts, rights, diffs = pairs
    out_rank, out_left, out_right, out_diff = out
    ends, total = np.empty(counts.shape[1], np.int64), np.int64(0)
    for b in range(ends.size):
        for p in range(counts.shape[0]):
            if p == part:
                ends[b] = total
            total += counts[p, b]
    for i in range(ranks.size):
        b = 2 * ranks[i] + (1 if diffs[i] > 0 else 0)
        to = ends[b]
        ends[b] = to + 1
        out_rank[to], out_left[to], out_right[to], out_diff[to] = ranks[i], lefts[i], rights[i], diffs[i]


@kernel
def find_group_row_at_times(
    begins: Ints,
    numbers: Ints,
    values: Ints,
    change_begins: Ints,
    change_ranks: Narrow,
    diffs: Ints,
    change_numbers: Ints,
    asked_begins: Ints,
    asked_ranks: Narrow,
    counts: Ints,
    found: Ints,
) -> int:
    """Find the row that each group has at each of the requested times. O(size of all arrays).

    Input, as three lists that are sorted by group:
    - begins, int64[g + 1]: where the stored rows of each group begin. Each row has a number and a multiplicity.
    - change_begins, int64[g + 1]: where the changes of each group begin, in ascending time. Each change has the rank of
      its time, a diff and the number of a row.
    - asked_begins, int64[g + 1]: where the requested times of each group begin, ascending.

    Scratch:
    - counts: a zero for each row number.

    Output:
    - found, int64[asked]: the number of the row at each requested time, -1 if there is no row.

    Returns the position of the first requested time at which a group has several rows, or -1.

    >>> none, few, begins = np.empty(0, np.int64), np.zeros(1, np.int32), np.array([0, 0])
    >>> found = np.zeros(1, np.int64)
    >>> find_group_row_at_times(begins, none, none, begins, few[:0], none, none, np.array([0, 1]), few, none,
    ...     found), found[0]
    (-1, np.int64(-1))

    >>> import numpy as np
    >>> few, ints = lambda *values: np.array(values, np.int32), lambda *values: np.array(values, np.int64)
    >>> out = ints(9, 9)
    >>> held, changes = (ints(0, 1), ints(0), ints(1)), (ints(0, 2), few(3, 3), ints(-1, 1), ints(0, 2))
    >>> find_group_row_at_times(*held, *changes, ints(0, 2), few(2, 3), np.zeros(3, np.int64), out), out.tolist()
    (-1, [0, 2])
    """
    for g in range(begins.size - 1):
        rows, total, at = 0, np.int64(0), change_begins[g]
        for i in range(begins[g], begins[g + 1]):
            counts[numbers[i]] = values[i]
            rows, total = rows + 1, total + numbers[i]
        for j in range(asked_begins[g], asked_begins[g + 1]):
            while at < change_begins[g + 1] and change_ranks[at] <= asked_ranks[j]:
                number, before = change_numbers[at], counts[change_numbers[at]]
                counts[number] = before + diffs[at]
                change = int(counts[number] != 0) - int(before != 0)
                rows, total = rows + change, total + change * number
                at += 1
            if rows > 1 or (rows == 1 and counts[total] != 1):
                return j
            found[j] = total if rows == 1 else -1
    return -1
