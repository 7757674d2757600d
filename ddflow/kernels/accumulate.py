"""Accumulating diffs: the net change of each row at each time, and the running count of each group.

Invariant: nothing with a net diff of 0 comes out, and no (group, time) comes out twice. Counts are int64 and numba
wraps silently, so every sum is checked and the row that would overflow is returned; and a count's own output is a
difference too: the old count leaves at the time at which the new one enters. What equal rows are, the shell knows.

>>> import numpy as np
>>> one, few = lambda *values: np.array(values, np.int64), lambda *values: np.array(values, np.int32)
>>> ranks, rows, diffs = np.empty(3, np.int32), np.empty(3, np.int64), np.empty(3, np.int64)
>>> net(few(0, 1, 2), few(0, 2, 3), few(0, 0, 0), one(1, -1, 5), ranks, rows, diffs)
(1, -1)
>>> rows[0], diffs[0]
(np.int64(2), np.int64(5))
"""

import numpy as np

from ddflow.kernels.arrays import Ints, Narrow
from ddflow.kernels.compile import kernel


@kernel
def _overflows(a: int, b: int) -> bool:
    """Whether a + b leaves int64."""
    total = a + b
    return (a >= 0) == (b >= 0) and (total >= 0) != (a >= 0)


@kernel
def net(
    permutation: Narrow, starts: Narrow, ranks: Narrow, diffs: Ints, out_rank: Narrow, out_row: Ints, out_diff: Ints
) -> tuple[int, int]:
    """Sum the diffs of equal (identity, time) and drop zeros: consolidation.

    permutation: int32[n], rows sorted by identity, within one by time.  starts: int32[g + 1], places.  ranks: int32[n],
    of times, by row.  diffs: int64[n], by row.  Written: out_rank, out_row (the first row of the equal ones), out_diff,
    each int64[n].  Returns how many, and a row whose sum overflows or -1.  O(n).

    >>> a, b = np.zeros(1, np.int32), np.empty(1, np.int64)
    >>> net(a, np.array([0, 1], np.int32), a, np.ones(1, np.int64), a.copy(), b, b.copy())
    (1, -1)
    """
    written = 0
    for group in range(starts.size - 1):
        begin, stop = starts[group], starts[group + 1]
        while begin < stop:
            first = permutation[begin]
            total, end = 0, begin
            while end < stop and ranks[permutation[end]] == ranks[first]:
                if _overflows(total, diffs[permutation[end]]):
                    return written, first
                total += diffs[permutation[end]]
                end += 1
            if total != 0:
                out_rank[written], out_row[written], out_diff[written] = ranks[first], first, total
                written += 1
            begin = end
    return written, -1


@kernel
def count(
    groups: Narrow,
    ranks: Narrow,
    diffs: Ints,
    held: Ints,
    since_rank: np.int64,
    net: Ints,
    touched: Ints,
    update_rank: Narrow,
    update_row: Ints,
    update_count: Ints,
    update_diff: Ints,
    version_rank: Narrow,
    version_row: Ints,
    version_count: Ints,
    version_group: Ints,
    last: Ints,
) -> tuple[int, int, int]:
    """Fold diffs over the counts that groups hold; emit the old count's retraction and the new one's assertion.

    groups: int32[n], dense numbers.  ranks: int32[n], ascending.  diffs: int64[n].  held: int64[g], the counts before,
    0 for a new group; changed to those after.  since_rank: the greatest rank whose time need not be kept apart.
    Scratch: net int64[g], touched int64[n].  Written: update_* [2n] in the order of times; version_* [n], of a group
    in the order of times; last int64[g], each group's last version, -1 where nothing changed.  Returns how many
    updates and versions, and a row whose count overflows or -1.  O(n).

    >>> a, e, f = np.zeros(1, np.int32), lambda: np.empty(2, np.int64), lambda: np.empty(2, np.int32)
    >>> count(a, a, np.ones(1, np.int64), np.array([4]), -1, e(), e(), f(), e(), e(), e(), f(), e(), e(), e(), e())
    (2, 1, -1)
    """
    updates = versions = begin = 0
    last[:], net[:] = -1, 0
    while begin < groups.size:
        rank, end, some = ranks[begin], begin, 0
        while end < groups.size and ranks[end] == rank:
            group = groups[end]
            # Not seen at this time, or cancelled so far: then it is there twice, settled once.  A branch costs more.
            touched[some] = end
            some += int(net[group] == 0)
            if _overflows(net[group], diffs[end]):
                return updates, versions, end
            net[group] += diffs[end]
            end += 1
        begin = end
        for i in range(some):
            row = touched[i]
            group = groups[row]
            now, total = held[group], net[group]
            net[group] = 0
            if total == 0:
                continue
            if _overflows(now, total):
                return updates, versions, row
            if now != 0:
                update_rank[updates], update_row[updates] = rank, row
                update_count[updates], update_diff[updates] = now, -1
                updates += 1
            now += total
            if now != 0:
                update_rank[updates], update_row[updates] = rank, row
                update_count[updates], update_diff[updates] = now, 1
                updates += 1
            held[group] = now
            if last[group] < 0 or rank > since_rank:
                last[group] = versions
                versions += 1
            at = last[group]
            version_rank[at], version_row[at] = rank, row
            version_count[at], version_group[at] = now, group
    return updates, versions, -1
