"""Search a sorted batch for the keys of a step that are in no index.

A batch can be a mapped file that is much larger than any cache, so each step of a binary search would be a cache miss.
Identities are uniform, so the row of a key can be interpolated from a known row. The search interpolates three times,
each time with a prefetch, while it processes earlier keys. From the last estimated row, the search gallops: the
distance doubles with each probe until a probe has passed the key. If the batch has few rows for each key, the search
scans the batch without interpolation.

Guarantees: the search finds the last row of an identity, which is its newest row. The time of a search is logarithmic
in the error of the estimate.
Limits: the search does not check that the batch is sorted, but it never reads outside the batch.
"""

import numpy as np

from ddflow.kernels.arrays import Ints, Narrow, Words
from ddflow.kernels.compile import kernel
from ddflow.kernels.pointer import load_u64, prefetch

FAR, MIDDLE, NEAR = 24, 16, 8
"""Three distances, in keys.

The search estimates the row of a key three times, while it is these numbers of keys before the key.
"""
DENSE = 16
"""If a batch has fewer rows than this for each wanted key, rows and keys are scanned side by side."""
LINE = 8
"""Number of words in a cache line. The first distance of a gallop is half a cache line."""


@kernel
def _is_row_greater(part_high: np.uint64, part_low: np.uint64, row: int, high: np.uint64, low: np.uint64) -> bool:
    """Return whether the identity at a row of the batch is greater than the wanted identity."""
    there = load_u64(part_high + np.uint64(row << 3))
    if there != high or part_low == np.uint64(0):
        return bool(there > high)
    return bool(load_u64(part_low + np.uint64(row << 3)) > low)


@kernel
def _is_row_equal(part_high: np.uint64, part_low: np.uint64, row: int, high: np.uint64, low: np.uint64) -> bool:
    """Return whether the identity at a row of the batch is the wanted identity."""
    if load_u64(part_high + np.uint64(row << 3)) != high:
        return False
    return part_low == np.uint64(0) or bool(load_u64(part_low + np.uint64(row << 3)) == low)


@kernel
def _find_upper_bound(
    part_high: np.uint64, part_low: np.uint64, begin: int, end: int, guess: int, high: np.uint64, low: np.uint64
) -> int:
    """Find the first row of [begin, end) whose identity is greater than the wanted identity, or ``end``.

    The search gallops from ``guess``, a row of that range. O(log of the error of ``guess``).
    """
    stride = LINE // 2
    if _is_row_greater(part_high, part_low, guess, high, low):
        end = guess
        while end - stride >= begin and _is_row_greater(part_high, part_low, end - stride, high, low):
            end -= stride
            stride += stride
        begin = max(begin, end - stride + 1)
    else:
        begin = guess + 1
        while begin + stride <= end and not _is_row_greater(part_high, part_low, begin + stride - 1, high, low):
            begin += stride
            stride += stride
        end = min(end, begin + stride - 1)
    while begin < end:
        middle = (begin + end) >> 1
        if _is_row_greater(part_high, part_low, middle, high, low):
            end = middle
        else:
            begin = middle + 1
    return begin


@kernel
def _interpolate_row(row: int, there: np.uint64, high: np.uint64, slope: float, begin: int, end: int) -> int:
    """Estimate the row of ``high`` in [begin, end).

    The estimate uses a known row, its identity, and the number of rows per unit of identity.
    """
    if high >= there:
        guess = row + int(np.float64(high - there) * slope)
    else:
        guess = row - int(np.float64(there - high) * slope)
    return max(begin, min(end - 1, guess))


@kernel
def _count_groups_below(high: Words, starts: Narrow, wanted: Ints, bound: np.uint64) -> int:
    """Count the wanted groups whose first identity word is less than ``bound``."""
    begin, end = 0, wanted.size
    while begin < end:
        middle = (begin + end) >> 1
        if high[starts[wanted[middle]]] < bound:
            begin = middle + 1
        else:
            end = middle
    return begin


@kernel
def _search_by_scan(
    high: Words,
    low: Words,
    starts: Narrow,
    wanted: Ints,
    part_high: np.uint64,
    part_low: np.uint64,
    begin: int,
    end: int,
    found: Ints,
) -> int:
    """Search as `search_batch` does, for a batch with few rows for each wanted group. O(rows + groups)."""
    hits, row = 0, begin
    for i in range(wanted.size):
        here = starts[wanted[i]]
        this, second = high[here], low[here] if low.size != 0 else np.uint64(0)
        while row < end and not _is_row_greater(part_high, part_low, row, this, second):
            row += 1
        found[i] = -1
        if row > begin and _is_row_equal(part_high, part_low, row - 1, this, second):
            found[i] = row - 1
            hits += 1
    return hits


@kernel
def _search_by_interpolation(
    high: Words,
    low: Words,
    starts: Narrow,
    wanted: Ints,
    part_high: np.uint64,
    part_low: np.uint64,
    begin: int,
    end: int,
    found: Ints,
) -> int:
    """Search as `search_batch` does, for a batch with many rows for each wanted group.

    ``found`` holds an estimated position for each group until the search reaches it.
    """
    first, last = load_u64(part_high + np.uint64(begin << 3)), load_u64(part_high + np.uint64((end - 1) << 3))
    slope = np.float64(end - begin) / np.float64(last - first) if last > first else 0.0
    half = np.uint64(4 * LINE)
    hits, row, there, n = 0, begin, first, wanted.size
    for turn in range(-FAR, n):
        i = turn + FAR
        if i < n:
            found[i] = _interpolate_row(row, there, high[starts[wanted[i]]], slope, begin, end)
            prefetch(part_high + np.uint64(found[i] << 3))
        i = turn + MIDDLE
        if 0 <= i < n:
            seen = load_u64(part_high + np.uint64(found[i] << 3))
            found[i] = _interpolate_row(found[i], seen, high[starts[wanted[i]]], slope, begin, end)
            prefetch(part_high + np.uint64(found[i] << 3))
        i = turn + NEAR
        if 0 <= i < n:
            seen = load_u64(part_high + np.uint64(found[i] << 3))
            found[i] = _interpolate_row(found[i], seen, high[starts[wanted[i]]], slope, begin, end)
            # The key is usually in this cache line or in a neighbouring line.
            prefetch(part_high + np.uint64(found[i] << 3) - half)
            prefetch(part_high + np.uint64(found[i] << 3) + half)
            if part_low != np.uint64(0):
                prefetch(part_low + np.uint64(found[i] << 3))
        if turn < 0:
            continue
        here = starts[wanted[turn]]
        there, second = high[here], low[here] if low.size != 0 else np.uint64(0)
        least = max(begin, row - 1)  # not ``row``, which may be the end, because a gallop must begin at a row
        row = _find_upper_bound(part_high, part_low, least, end, max(least, found[turn]), there, second)
        found[turn] = -1
        if row > begin and _is_row_equal(part_high, part_low, row - 1, there, second):
            found[turn] = row - 1
            hits += 1
    return hits


@kernel
def search_batch(
    high: Words,
    low: Words,
    starts: Narrow,
    wanted: Ints,
    part_high: np.uint64,
    part_low: np.uint64,
    n: np.int64,
    begin: np.int64,
    found: Ints,
) -> int:
    """Write the last row of each wanted group in a range of a batch, or -1 if the group has no row there.

    Return the number of groups found. O(m) expected, O(m log n) at worst.

    Input:
    - high, low, uint64[k]: the sorted identities of the step (low has size 0 for one-word identities).
    - starts, int32[g]: the row of ``high`` where each group begins.
    - wanted, int64[m]: the ascending numbers of the wanted groups.
    - part_high, part_low: the addresses of uint64[n], the words of the batch's identities. The identities are sorted
      and may be repeated (part_low is 0 for one-word identities).
    - begin: the first row of the range to search.

    Output:
    - found, int64[m]: the last row of each wanted group in [begin, n), or -1.

    >>> words, one, found, nowhere = np.zeros(1, np.uint64), np.array([0]), np.empty(1, np.int64), np.uint64(0)
    >>> search_batch(words, words[:0], one, one, nowhere, nowhere, np.int64(0), np.int64(0), found), found.tolist()
    (0, [-1])

    >>> batch, none = np.array([2, 5, 5, 9], np.uint64), np.empty(0, np.uint64)
    >>> found = np.empty(3, np.int64)
    >>> search_batch(np.array([1, 5, 9], np.uint64), none, np.arange(3), np.arange(3), np.uint64(batch.ctypes.data),
    ...        np.uint64(0), np.int64(4), np.int64(0), found), found.tolist()
    (2, [-1, 2, 3])
    """
    if begin >= n:
        found[:] = -1
        return 0
    second = part_low if low.size != 0 else np.uint64(0)
    last = load_u64(part_high + np.uint64((n - 1) << 3))
    i = _count_groups_below(high, starts, wanted, load_u64(part_high + np.uint64(begin << 3)))
    j = (
        wanted.size
        if last == np.uint64(0xFFFFFFFFFFFFFFFF)
        else _count_groups_below(high, starts, wanted, last + np.uint64(1))
    )
    found[:i], found[j:] = -1, -1
    if n - begin < DENSE * (j - i):
        return _search_by_scan(high, low, starts, wanted[i:j], part_high, second, int(begin), int(n), found[i:j])
    return _search_by_interpolation(high, low, starts, wanted[i:j], part_high, second, int(begin), int(n), found[i:j])
