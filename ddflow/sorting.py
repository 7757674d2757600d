"""Sorting rows by identity: the shell around the one sort there is.

Invariant: rows of one identity stand together, in the order in which they came.  Everything that works by key (judging,
counting, consolidating, merging) begins here, and relies on that stability instead of sorting by time.

>>> by = sort(np.array([9, 4, 9], np.uint64), np.empty(0, np.uint64))
>>> by.permutation.tolist(), by.starts.tolist()
([1, 0, 2], [0, 1, 3])
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ddflow.arena import Arena
from ddflow.identity import Narrow, Words
from ddflow.kernels.sort import group_starts, sort_identities


class Sorted(NamedTuple):
    """Rows sorted by identity: the row at each place, the identities, where each key begins (and n at the end).

    Numbers are int32: no more than 2**31 rows at once.
    """

    permutation: Narrow
    high: Words
    low: Words
    starts: Narrow


def sort(high: Words, low: Words, arena: Arena | None = None) -> Sorted:
    """Sort rows by identity, stably, and find the groups.  ``arena``: where the result is carved from.  O(n)."""
    n, arena = high.size, arena or Arena()
    bits = min(max((n - 1).bit_length(), 1), 20) if n else 1
    permutation, starts = arena.empty(n, np.int32), arena.empty(n + 1, np.int32)
    sorted_high, sorted_low = arena.empty(n, np.uint64), arena.empty(low.size, np.uint64)
    ends = arena.empty((1 << bits) + 1, np.int32)
    ends[:] = 0
    sort_identities(high, low, np.int64(bits), ends, permutation, sorted_high, sorted_low)
    groups = group_starts(sorted_high, sorted_low, starts)
    return Sorted(permutation, sorted_high, sorted_low, starts[: groups + 1])
