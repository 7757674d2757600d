"""Searching a batch for identities of several words, or for groups: prefixes of them.

Invariant: what is found is [begin, end) of the rows whose first words are those that are looked for. Both ascend, so a
search begins where the one before ended, and gallops.

>>> words = np.array([1, 5, 5, 9], np.uint64)
>>> here, wanted = np.uint64(words.ctypes.data), words[1:2].copy()
>>> first, last = np.empty(1, np.int64), np.empty(1, np.int64)
>>> key = np.uint64(wanted.ctypes.data), NOWHERE, NOWHERE, 0
>>> search_ordered(*key, np.zeros(1, np.int64), here, here, here, 0, 0, 4, first, last)
>>> first.tolist(), last.tolist()
([1], [3])
"""

import numpy as np

from ddflow.kernels.arrays import Ints
from ddflow.kernels.compile import kernel
from ddflow.kernels.ordered_tree import Number
from ddflow.kernels.pointer import load_u64

NOWHERE = np.uint64(0)


@kernel
def _stands(
    high: np.uint64,
    low: np.uint64,
    more: np.uint64,
    words: Number,
    key: Number,
    part_high: np.uint64,
    part_low: np.uint64,
    part_more: np.uint64,
    wide: Number,
    row: Number,
) -> int:
    """-1, 0 or 1: how a row stands to a key, by as many words as the key has."""
    mine, other = load_u64(part_high + np.uint64(row << 3)), load_u64(high + np.uint64(key << 3))
    if mine != other:
        return -1 if mine < other else 1
    if low == NOWHERE:
        return 0
    mine, other = load_u64(part_low + np.uint64(row << 3)), load_u64(low + np.uint64(key << 3))
    if mine != other:
        return -1 if mine < other else 1
    for w in range(words):
        mine = load_u64(part_more + np.uint64((row * wide + w) << 3))
        other = load_u64(more + np.uint64((key * words + w) << 3))
        if mine != other:
            return -1 if mine < other else 1
    return 0


@kernel
def search_ordered(
    high: np.uint64,
    low: np.uint64,
    more: np.uint64,
    words: Number,
    keys: Ints,
    part_high: np.uint64,
    part_low: np.uint64,
    part_more: np.uint64,
    wide: Number,
    begin: Number,
    end: Number,
    first: Ints,
    last: Ints,
) -> None:
    """Find where the rows of some keys stand in a part.

    high, low, more: addresses of words by key: uint64[n], uint64[n] (0: none), uint64[n, words].  keys: int64[m], rows
    of these, ascending words.  part_high, part_low, part_more: addresses of a batch's words, of which it has ``wide``
    beyond two.  begin, end: its rows.  Written: first, last: int64[m], the rows [first, last) of each.
    O(m log rows).

    >>> search_ordered(NOWHERE, NOWHERE, NOWHERE, 0, np.empty(0, np.int64), NOWHERE, NOWHERE, NOWHERE, 0, 0, 0,
    ...                np.empty(0, np.int64), np.empty(0, np.int64))
    """
    at = begin
    for i in range(keys.size):
        for upper in range(2):
            step, low_end = np.int64(1), at
            while low_end + step <= end:
                order = _stands(
                    high, low, more, words, keys[i], part_high, part_low, part_more, wide, low_end + step - 1
                )
                if order > 0 or (order == 0 and upper == 0):
                    break
                low_end += step
                step += step
            stop = min(low_end + step - 1, end)
            at = low_end
            while at < stop:
                middle = (at + stop) >> 1
                order = _stands(high, low, more, words, keys[i], part_high, part_low, part_more, wide, middle)
                if order > 0 or (order == 0 and upper == 0):
                    stop = middle
                else:
                    at = middle + 1
            if upper == 0:
                first[i] = at
            else:
                last[i] = at
