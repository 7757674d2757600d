"""Grouping: which rows are equal, as dense numbers in the order in which each group first appears.

Invariant: two rows have one number exactly when their identities are equal; numbers count up from 0 without a gap. A
count has few groups and many updates, so rows are not sorted: each is looked up in a table of row numbers that holds no
identity itself, and with few groups stays in the first level of the cache. Groups are numbered, not ordered; whoever
wants them in hash order sorts the groups, not the rows.

>>> import numpy as np
>>> high, none = np.array([9, 2**63, 9], np.uint64), np.empty(0, np.uint64)
>>> groups, first = np.empty(3, np.int32), np.empty(3, np.int64)
>>> group(high, none, np.int64(3), np.full(8, -1, np.int32), groups, first), groups.tolist(), first[:2].tolist()
(2, [0, 1, 0], [0, 1])
"""

import numpy as np

from ddflow.kernels.arrays import Ints, Narrow, Words
from ddflow.kernels.compile import kernel


@kernel
def group(high: Words, low: Words, bits: np.int64, table: Narrow, groups: Narrow, first: Ints) -> int:
    """Assign a number to each group of equal identities, and return the number of groups.

    high, low: uint64[n] (low of size 0 for one-word identities).  table: int32[2**bits], all -1, more than n, scratch.
    Written: groups int32[n], the number of each row's group; first int64[at least as many as groups], the first row of
    each.  O(n) expected.

    >>> group(np.zeros(1, np.uint64), np.empty(0, np.uint64), np.int64(1), np.full(2, -1, np.int32),
    ...       np.empty(1, np.int32), np.empty(1, np.int64))
    1
    """
    shift, mask = np.uint64(64 - bits), table.size - 1
    found = 0
    for i in range(high.size):
        slot = np.int64(high[i] >> shift)
        while True:
            number = table[slot]
            if number < 0:
                table[slot], groups[i], first[found] = found, found, i
                found += 1
                break
            row = first[number]
            if high[row] == high[i] and (low.size == 0 or low[row] == low[i]):
                groups[i] = number
                break
            slot = (slot + 1) & mask
    return found
