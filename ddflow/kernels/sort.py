"""Sorting by identity: one counting sort by leading bits, then a short sort inside each bucket.

Invariant: the result is stable, so events of one key keep the order in which they came, and nothing above ever needs
to sort by time or arrival again.  Why that is not trivial: identities are uniform, so a bucket holds about one event
and the second sort is nearly free, until a feed has a hot key; then one bucket holds a fifth of all events, and an
insertion sort there would be quadratic.  Large buckets are merged from their natural runs instead, which costs nothing
for a bucket of one key.  It does not look at keys, times or payload.

>>> import numpy as np
>>> high, none = np.array([3, 1, 3, 2], np.uint64) << np.uint64(62), np.empty(0, np.uint64)
>>> permutation, sorted_high = np.empty(4, np.int32), np.empty(4, np.uint64)
>>> sort_identities(high, none, np.int64(2), np.zeros(5, np.int32), permutation, sorted_high, none)
>>> permutation.tolist()
[1, 3, 0, 2]
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ddflow.kernels.compile import kernel

Words = np.ndarray[Any, np.dtype[np.uint64]]
Rows = np.ndarray[Any, np.dtype[np.int64]]
Narrow = np.ndarray[Any, np.dtype[np.int32]]


@kernel
def _after(high: Words, low: Words, i: int, j: int) -> bool:
    """Whether identity i is greater than identity j."""
    if high[i] != high[j]:
        return bool(high[i] > high[j])
    return low.size != 0 and bool(low[i] > low[j])


@kernel
def _merge_runs(high: Words, low: Words, permutation: Narrow, begin: int, end: int) -> None:
    """Sort the bucket [begin, end) by merging its natural runs pairwise; O(m log runs) time, O(m) scratch."""
    m = end - begin
    bounds = np.empty(m + 1, np.int64)
    runs = 1
    bounds[0] = 0
    for i in range(1, m):
        if _after(high, low, begin + i - 1, begin + i):
            bounds[runs] = i
            runs += 1
    bounds[runs] = m
    has_low = low.size != 0
    h, p = np.empty(m, np.uint64), np.empty(m, np.int32)
    w = np.empty(m if has_low else 0, np.uint64)
    while runs > 1:
        h[:] = high[begin:end]
        p[:] = permutation[begin:end]
        if has_low:
            w[:] = low[begin:end]
        merged = 0
        for r in range(0, runs, 2):
            i, middle = bounds[r], bounds[r + 1]
            j, stop = middle, bounds[min(r + 2, runs)]
            out = begin + i
            while i < middle or j < stop:
                if j >= stop or (i < middle and not _after(h, w, i, j)):
                    take = i
                    i += 1
                else:
                    take = j
                    j += 1
                high[out], permutation[out] = h[take], p[take]
                if has_low:
                    low[out] = w[take]
                out += 1
            merged += 1
            bounds[merged] = stop
        runs = merged


@kernel
def _insert(high: Words, low: Words, permutation: Narrow, begin: int, end: int) -> None:
    """Sort the bucket [begin, end) by insertion; for small buckets."""
    for i in range(begin + 1, end):
        if not _after(high, low, i - 1, i):
            continue
        x, row = high[i], permutation[i]
        y = low[i] if low.size != 0 else np.uint64(0)
        j = i
        while j > begin and (high[j - 1] > x or (high[j - 1] == x and low.size != 0 and low[j - 1] > y)):
            high[j], permutation[j] = high[j - 1], permutation[j - 1]
            if low.size != 0:
                low[j] = low[j - 1]
            j -= 1
        high[j], permutation[j] = x, row
        if low.size != 0:
            low[j] = y


@kernel
def sort_identities(
    high: Words, low: Words, bits: np.int64, ends: Narrow, permutation: Narrow, sorted_high: Words, sorted_low: Words
) -> None:
    """Sort rows by identity, stably.

    high, low: uint64[n] as given (low of size 0 for one-word identities).  bits: how many leading bits make a bucket,
    about log2(n).  ends: int32[2**bits + 1], zero, scratch.  permutation: int32[n], written: the row at each place.
    sorted_high, sorted_low: uint64[n], written.  O(n) for uniform identities, O(n log n) and scratch of the largest
    bucket at worst.

    >>> none = np.empty(0, np.uint64)
    >>> out, ids = np.empty(2, np.int32), np.empty(2, np.uint64)
    >>> sort_identities(np.array([9, 4], np.uint64), none, np.int64(1), np.zeros(3, np.int32), out, ids, none)
    >>> ids.tolist()
    [4, 9]
    """
    n = high.size
    shift = np.uint64(64 - bits)
    for i in range(n):
        ends[np.int64(high[i] >> shift) + 1] += 1
    for b in range(1, ends.size):
        ends[b] += ends[b - 1]
    for i in range(n):
        bucket = np.int64(high[i] >> shift)
        to = ends[bucket]
        ends[bucket] = to + 1
        permutation[to], sorted_high[to] = i, high[i]
        if low.size != 0:
            sorted_low[to] = low[i]
    begin = 0
    for b in range(ends.size - 1):
        end = ends[b]
        if end - begin > 24:
            _merge_runs(sorted_high, sorted_low, permutation, begin, end)
        elif end - begin > 1:
            _insert(sorted_high, sorted_low, permutation, begin, end)
        begin = end


@kernel
def group_starts(sorted_high: Words, sorted_low: Words, starts: Narrow) -> int:
    """Write where each run of equal identities starts, and ``n`` after the last; return how many runs there are.

    sorted_high, sorted_low: uint64[n], sorted.  starts: int32[n + 1], written up to the count.  O(n).

    >>> starts = np.empty(4, np.int32)
    >>> group_starts(np.array([5, 5, 7], np.uint64), np.empty(0, np.uint64), starts), starts[:3].tolist()
    (2, [0, 2, 3])
    """
    groups = 0
    for i in range(sorted_high.size):
        if (
            i == 0
            or sorted_high[i] != sorted_high[i - 1]
            or (sorted_low.size != 0 and sorted_low[i] != sorted_low[i - 1])
        ):
            starts[groups] = i
            groups += 1
    starts[groups] = sorted_high.size
    return groups


@kernel
def order_by_rank(ranks: Narrow, second: Rows, size: np.int64, out: Rows) -> None:
    """Write the stable order of rows by (rank, second) for small ranks: a counting sort.

    ranks: int32[n] in [0, size).  second: int64[n] of 0 and 1, or of size 0 to sort by rank alone.  out: int64[n],
    written: the row at each place.  O(n + size).

    >>> out = np.empty(3, np.int64)
    >>> order_by_rank(np.array([1, 0, 1], np.int32), np.array([1, 0, 0]), np.int64(2), out)
    >>> out.tolist()
    [1, 2, 0]
    """
    ends = np.zeros(2 * size + 1, np.int64)
    for i in range(ranks.size):
        ends[2 * ranks[i] + (second[i] if second.size != 0 else 0) + 1] += 1
    for b in range(1, ends.size):
        ends[b] += ends[b - 1]
    for i in range(ranks.size):
        b = 2 * ranks[i] + (second[i] if second.size != 0 else 0)
        out[ends[b]] = i
        ends[b] += 1
