"""Sorting rows by identities of several words, which are sorted by the first word already.

Invariant: rows of one identity stand in the order in which they came. A first word is that of a group, so it may be
that of many rows: these are sorted by merging runs that double, stably.

>>> permutation, starts = np.array([2, 0, 1], np.int32), np.empty(4, np.int32)
>>> low, none = np.array([7, 5, 7], np.uint64), np.empty((3, 0), np.uint64)
>>> sort_ordered(permutation, np.array([0, 3], np.int32), low, none, permutation.copy(), starts)
2
>>> permutation.tolist(), starts[:3].tolist()
([1, 2, 0], [0, 1, 3])
"""

from typing import Any

import numpy as np

from ddflow.kernels.arrays import Narrow, Words
from ddflow.kernels.compile import kernel


@kernel
def _order(low: Words, more: Words, one: int, other: int) -> int:
    """-1, 0 or 1: how the words of one row stand to those of another."""
    if low[one] != low[other]:
        return -1 if low[one] < low[other] else 1
    for w in range(more.shape[1]):
        if more[one, w] != more[other, w]:
            return -1 if more[one, w] < more[other, w] else 1
    return 0


@kernel
def sort_ordered(permutation: Narrow, groups: Narrow, low: Words, more: Words, scratch: Narrow, starts: Narrow) -> int:
    """Sort the rows of each group by their other words; return how many identities there are.

    permutation: int32[n], rows sorted by first word, changed.  groups: int32[g + 1], places where first words begin.
    low: uint64[n], more: uint64[n, w], by row.  scratch: int32[n].  starts: int32[n + 1], written: places where
    identities begin, and n.  O(n log n).

    >>> one, none = np.zeros(1, np.int32), np.empty((1, 0), np.uint64)
    >>> sort_ordered(one, np.array([0, 1], np.int32), np.ones(1, np.uint64), none, one.copy(), np.empty(2, np.int32))
    1
    """
    found = 0
    for g in range(groups.size - 1):
        begin, end = np.int64(groups[g]), np.int64(groups[g + 1])
        wide = 1
        while wide < end - begin:
            for left in range(begin, end - wide, 2 * wide):
                middle: Any = left + wide
                stop: Any = min(left + 2 * wide, end)
                if _order(low, more, permutation[middle - 1], permutation[middle]) <= 0:
                    continue
                for i in range(left, middle):
                    scratch[i] = permutation[i]
                i, j, to = left, middle, left
                while i < middle:
                    if j < stop and _order(low, more, permutation[j], scratch[i]) < 0:
                        permutation[to] = permutation[j]
                        j += 1
                    else:
                        permutation[to] = scratch[i]
                        i += 1
                    to += 1
            wide *= 2
        for place in range(begin, end):
            if place == begin or _order(low, more, permutation[place - 1], permutation[place]) != 0:
                starts[found] = place
                found += 1
    starts[found] = permutation.size
    return found
