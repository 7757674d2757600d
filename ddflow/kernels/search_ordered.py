"""Searching a batch for identities of several words, or for groups: prefixes of them.

Invariant: what is found is [begin, end) of the rows whose first words are those that are looked for. Both ascend, so a
search begins where the one before ended, and gallops.

>>> words, none = np.array([1, 5, 5, 9], np.uint64), np.empty((0, 0), np.uint64)
>>> rows, keys = Identities.of(words, words[:0], none), Identities.of(words[1:2], words[:0], none)
>>> first, last = np.empty(1, np.int64), np.empty(1, np.int64)
>>> search_ordered(keys, np.zeros(1, np.int64), rows, 0, 4, first, last)
>>> first.tolist(), last.tolist()
([1], [3])
"""

import numpy as np

from ddflow.kernels.arrays import Ints
from ddflow.kernels.compile import kernel
from ddflow.kernels.ordered_tree import Identities, Number
from ddflow.kernels.pointer import load_u64


@kernel
def _stands(keys: Identities, key: Number, rows: Identities, row: Number) -> int:
    """-1, 0 or 1: how a row stands to a key, by as many words as the key has."""
    mine, other = load_u64(rows.high + np.uint64(row << 3)), load_u64(keys.high + np.uint64(key << 3))
    if mine != other:
        return -1 if mine < other else 1
    if keys.low == np.uint64(0):
        return 0
    mine, other = load_u64(rows.low + np.uint64(row << 3)), load_u64(keys.low + np.uint64(key << 3))
    if mine != other:
        return -1 if mine < other else 1
    for w in range(keys.words):
        mine = load_u64(rows.more + np.uint64((row * rows.words + w) << 3))
        other = load_u64(keys.more + np.uint64((key * keys.words + w) << 3))
        if mine != other:
            return -1 if mine < other else 1
    return 0


@kernel
def search_ordered(
    keys: Identities, wanted: Ints, rows: Identities, begin: Number, end: Number, first: Ints, last: Ints
) -> None:
    """Find where the rows of some keys stand in a part.

    wanted: int64[m], which of the keys, ascending words; these may have fewer words than rows.  begin, end: the part.
    Written: first, last: int64[m], the rows [first, last) of each.  O(m log rows).

    >>> words, few = np.empty(0, np.uint64), np.empty(0, np.int64)
    >>> none = Identities.of(words, words, words.reshape(0, 0))
    >>> search_ordered(none, few, none, 0, 0, few, few)
    """
    at = begin
    for i in range(wanted.size):
        for upper in range(2):
            step, low_end = np.int64(1), at
            while low_end + step <= end:
                order = _stands(keys, wanted[i], rows, low_end + step - 1)
                if order > 0 or (order == 0 and upper == 0):
                    break
                low_end += step
                step += step
            stop = min(low_end + step - 1, end)
            at = low_end
            while at < stop:
                middle = (at + stop) >> 1
                order = _stands(keys, wanted[i], rows, middle)
                if order > 0 or (order == 0 and upper == 0):
                    stop = middle
                else:
                    at = middle + 1
            if upper == 0:
                first[i] = at
            else:
                last[i] = at
