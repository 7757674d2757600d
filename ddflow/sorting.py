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

from ddflow.identity import Ints, Words
from ddflow.kernels.sort import group_starts, sort_identities


class Sorted(NamedTuple):
    """Rows sorted by identity: the row at each place, the identities, where each key begins (and n at the end)."""

    permutation: Ints
    high: Words
    low: Words
    starts: Ints


def sort(high: Words, low: Words) -> Sorted:
    """Sort rows by identity, stably, and find the groups.  O(n)."""
    n = high.size
    permutation, starts = np.empty(n, np.int64), np.empty(n + 1, np.int64)
    sorted_high, sorted_low = np.empty(n, np.uint64), np.empty(low.size, np.uint64)
    bits = min(max((n - 1).bit_length(), 1), 20) if n else 1
    sort_identities(high, low, np.int64(bits), permutation, sorted_high, sorted_low)
    groups = group_starts(sorted_high, sorted_low, starts)
    return Sorted(permutation, sorted_high, sorted_low, starts[: groups + 1])
