"""Searching a hash-ordered batch for the keys of a step, where no index says which row is theirs.

Invariant: what is found is the *last* row of the identity, the newest version that the batch has of the key. The batch
may be mapped and far larger than any cache, so a binary search would miss at every one of its 25 steps. Identities are
uniform, so where a key stands can be computed: from a row that is known, k rows away, to within some sqrt(k) rows. The
wanted keys are sorted, so the last one found is such a row. Each key is guessed three times while those before it have
their turns, each guess from what stands at the one before, and the machine is asked for the place in between, so that
many misses are under way at once. From the last guess, nearly always on the right cache line or the next, the search
gallops: with many versions of a key, or identities that are not uniform at all, it is logarithmic in how wrong the
guess was.

Where the batch has but few rows for each wanted key, guessing is no use; then both are walked side by side, as when
merging.  Columns come as addresses, so that resident and mapped (read-only) ones are one compiled form; the caller
holds the memory and owns the bounds.  It does not verify that the batch is sorted: from one that is not it finds
less, but reads no memory that is not the batch's.

>>> import numpy as np
>>> batch, none = np.array([2, 5, 5, 9], np.uint64), np.empty(0, np.uint64)
>>> found = np.empty(3, np.int64)
>>> search(np.array([1, 5, 9], np.uint64), none, np.arange(3), np.arange(3), np.uint64(batch.ctypes.data), np.uint64(0),
...        np.int64(4), np.int64(0), found), found.tolist()
(2, [-1, 2, 3])
"""

import numpy as np

from ddflow.kernels.arrays import Ints, Narrow, Words
from ddflow.kernels.compile import kernel
from ddflow.kernels.pointer import load_u64, prefetch

FAR, MIDDLE, NEAR = 24, 16, 8
"""How many keys ahead of its turn a key's place is guessed, and guessed again from what stands at the last guess."""
DENSE = 16
"""Rows for each wanted key, below which both are walked side by side."""
LINE = 8
"""Words in a cache line; a gallop begins with half of one."""


@kernel
def _beyond(part_high: np.uint64, part_low: np.uint64, row: int, high: np.uint64, low: np.uint64) -> bool:
    """Whether the identity at a row of the batch is greater than the wanted one."""
    there = load_u64(part_high + np.uint64(row << 3))
    if there != high or part_low == np.uint64(0):
        return bool(there > high)
    return bool(load_u64(part_low + np.uint64(row << 3)) > low)


@kernel
def _is_at(part_high: np.uint64, part_low: np.uint64, row: int, high: np.uint64, low: np.uint64) -> bool:
    """Whether the identity at a row of the batch is the wanted one."""
    if load_u64(part_high + np.uint64(row << 3)) != high:
        return False
    return part_low == np.uint64(0) or bool(load_u64(part_low + np.uint64(row << 3)) == low)


@kernel
def _end(
    part_high: np.uint64, part_low: np.uint64, begin: int, end: int, guess: int, high: np.uint64, low: np.uint64
) -> int:
    """Find the first row of [begin, end) whose identity is greater than the wanted one, or ``end``.

    Gallops from the guess, a row of that range; O(log of how far it is off).
    """
    stride = LINE // 2
    if _beyond(part_high, part_low, guess, high, low):
        end = guess
        while end - stride >= begin and _beyond(part_high, part_low, end - stride, high, low):
            end -= stride
            stride += stride
        begin = max(begin, end - stride + 1)
    else:
        begin = guess + 1
        while begin + stride <= end and not _beyond(part_high, part_low, begin + stride - 1, high, low):
            begin += stride
            stride += stride
        end = min(end, begin + stride - 1)
    while begin < end:
        middle = (begin + end) >> 1
        if _beyond(part_high, part_low, middle, high, low):
            end = middle
        else:
            begin = middle + 1
    return begin


@kernel
def _guess(row: int, there: np.uint64, high: np.uint64, slope: float, begin: int, end: int) -> int:
    """Where in [begin, end) ``high`` stands, by a row, what stands there, and how many rows a unit of identity is."""
    if high >= there:
        guess = row + int(np.float64(high - there) * slope)
    else:
        guess = row - int(np.float64(there - high) * slope)
    return max(begin, min(end - 1, guess))


@kernel
def _less(high: Words, starts: Narrow, wanted: Ints, bound: np.uint64) -> int:
    """How many of the wanted groups have an identity whose first word is less than ``bound``."""
    begin, end = 0, wanted.size
    while begin < end:
        middle = (begin + end) >> 1
        if high[starts[wanted[middle]]] < bound:
            begin = middle + 1
        else:
            end = middle
    return begin


@kernel
def _walk(
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
    """`search` among few rows for each wanted group: O(rows + groups)."""
    hits, row = 0, begin
    for i in range(wanted.size):
        here = starts[wanted[i]]
        this, second = high[here], low[here] if low.size != 0 else np.uint64(0)
        while row < end and not _beyond(part_high, part_low, row, this, second):
            row += 1
        found[i] = -1
        if row > begin and _is_at(part_high, part_low, row - 1, this, second):
            found[i] = row - 1
            hits += 1
    return hits


@kernel
def _leap(
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
    """`search` among many rows for each wanted group; until its turn, ``found`` holds the guess."""
    first, last = load_u64(part_high + np.uint64(begin << 3)), load_u64(part_high + np.uint64((end - 1) << 3))
    slope = np.float64(end - begin) / np.float64(last - first) if last > first else 0.0
    half = np.uint64(4 * LINE)
    hits, row, there, n = 0, begin, first, wanted.size
    for turn in range(-FAR, n):
        i = turn + FAR
        if i < n:
            found[i] = _guess(row, there, high[starts[wanted[i]]], slope, begin, end)
            prefetch(part_high + np.uint64(found[i] << 3))
        i = turn + MIDDLE
        if 0 <= i < n:
            seen = load_u64(part_high + np.uint64(found[i] << 3))
            found[i] = _guess(found[i], seen, high[starts[wanted[i]]], slope, begin, end)
            prefetch(part_high + np.uint64(found[i] << 3))
        i = turn + NEAR
        if 0 <= i < n:
            seen = load_u64(part_high + np.uint64(found[i] << 3))
            found[i] = _guess(found[i], seen, high[starts[wanted[i]]], slope, begin, end)
            # Half a line off to either side: it may well be on the next line, rarely further.
            prefetch(part_high + np.uint64(found[i] << 3) - half)
            prefetch(part_high + np.uint64(found[i] << 3) + half)
            if part_low != np.uint64(0):
                prefetch(part_low + np.uint64(found[i] << 3))
        if turn < 0:
            continue
        here = starts[wanted[turn]]
        there, second = high[here], low[here] if low.size != 0 else np.uint64(0)
        least = max(begin, row - 1)  # not ``row``, which may be the end: the gallop begins on a row
        row = _end(part_high, part_low, least, end, max(least, found[turn]), there, second)
        found[turn] = -1
        if row > begin and _is_at(part_high, part_low, row - 1, there, second):
            found[turn] = row - 1
            hits += 1
    return hits


@kernel
def search(
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
    """Write the last row of each wanted group in a part of a batch, -1 where it has none; return how many have one.

    high, low: uint64[k], sorted (low of size 0 for one-word identities).  starts: int32[g], the row in ``high`` that
    begins each group.  wanted: int64[m], ascending numbers of groups.  part_high, part_low: addresses of uint64[n],
    sorted by (high, low), an identity once or more (part_low 0 for one-word identities); any slice of all identities.
    begin: only rows of the part at or after it count.  found: int64[m], written: rows in [begin, n), or -1.  O(m)
    expected, 30 to 45 ns a group in a large part, 10 to 20 in one of few rows for each; O(m log n) at worst.

    >>> words, one, found, nowhere = np.zeros(1, np.uint64), np.array([0]), np.empty(1, np.int64), np.uint64(0)
    >>> search(words, words[:0], one, one, nowhere, nowhere, np.int64(0), np.int64(0), found), found.tolist()
    (0, [-1])
    """
    if begin >= n:
        found[:] = -1
        return 0
    second = part_low if low.size != 0 else np.uint64(0)
    last = load_u64(part_high + np.uint64((n - 1) << 3))
    i = _less(high, starts, wanted, load_u64(part_high + np.uint64(begin << 3)))
    j = wanted.size if last == np.uint64(0xFFFFFFFFFFFFFFFF) else _less(high, starts, wanted, last + np.uint64(1))
    found[:i], found[j:] = -1, -1
    if n - begin < DENSE * (j - i):
        return _walk(high, low, starts, wanted[i:j], part_high, second, int(begin), int(n), found[i:j])
    return _leap(high, low, starts, wanted[i:j], part_high, second, int(begin), int(n), found[i:j])
