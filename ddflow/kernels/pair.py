"""Pairing: each update of one side of a join with each row of its group on the other.

Invariant: multiplicities multiply, and a product that leaves int64 is not written but told. A pair is there from the
later of its two times on. Which rows are of one group the caller knows, who has numbered them.

>>> import numpy as np
>>> few, ints = lambda *values: np.array(values, np.int32), lambda *values: np.array(values, np.int64)
>>> out = np.empty(2, np.int32), ints(0, 0), ints(0, 0), ints(0, 0)
>>> pair(few(0), few(3), ints(-1), ints(0, 2), ints(70, 71), ints(1, 5), few(), *out)
-1
>>> [column.tolist() for column in out]
[[3, 3], [0, 0], [70, 71], [-1, -5]]
"""

import numpy as np

from ddflow.kernels.arrays import Ints, Narrow
from ddflow.kernels.compile import kernel

HALF = 1 << 31


@kernel
def _leaves(a: int, b: int) -> bool:
    """Whether a * b leaves int64; b is not 0."""
    most = np.uint64(1 << 63) if (a < 0) != (b < 0) else np.uint64((1 << 63) - 1)
    return _size(a) > most // _size(b)


@kernel
def _size(a: int) -> int:
    """uint64: how far a is from 0."""
    size: int = np.uint64(a) if a >= 0 else ~np.uint64(a) + np.uint64(1)
    return size


@kernel
def pair(
    number: Narrow,
    ranks: Narrow,
    diffs: Ints,
    begins: Ints,
    references: Ints,
    times: Ints,
    theirs: Narrow,
    out_rank: Narrow,
    out_mine: Ints,
    out_theirs: Ints,
    out_diff: Ints,
) -> int:
    """Write the pairs of some updates and the rows of their groups, in the order of the updates.

    number: int32[n], the group of each update.  ranks: int32[n], of their times; diffs: int64[n].  begins:
    int64[g + 1], where the rows of each group begin; references: int64[r], what the rows are called; times: int64[r],
    how often they are there; theirs: int32[r], the ranks of their times, of size 0 for rows that were there before.
    Written, for each pair: out_rank, the later of the ranks; out_mine, the update; out_theirs, the reference; out_diff,
    the product.
    Returns an update whose product with a row leaves int64, or -1.  O(n + pairs).

    >>> import numpy as np
    >>> few, ints = lambda *values: np.array(values, np.int32), lambda *values: np.array(values, np.int64)
    >>> out = few(0), ints(0), ints(0), ints(0)
    >>> pair(few(0), few(0), ints(1 << 62), ints(0, 1), ints(0), ints(2), few(0), *out)
    0
    """
    at = 0
    for i in range(number.size):
        group, diff = number[i], diffs[i]
        for j in range(begins[group], begins[group + 1]):
            some = times[j]
            product = diff * some
            if not (-HALF < diff < HALF and -HALF < some < HALF) and _leaves(diff, some):
                return i
            rank = ranks[i]
            if theirs.size != 0 and theirs[j] > rank:
                rank = theirs[j]
            out_rank[at], out_mine[at], out_theirs[at], out_diff[at] = rank, i, references[j], product
            at += 1
    return -1
