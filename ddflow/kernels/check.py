"""Checking a batch that was read from a file: what kernels take for granted, looked at once.

Invariant: a batch that passes is in hash order, and says of every version that it is live or not; so no search, merge
or reference made from it can leave its bounds. A checksum tells that the bytes are those that were written, not that
ddflow wrote them. It takes as long as reading the columns.

>>> import numpy as np
>>> none = np.empty(0, np.uint64)
>>> first_wrong(np.array([2, 2, 1], np.uint64), none, np.uint64(0), 0, np.array([1, 5, 7]), np.ones(3, np.uint8))
2
"""

import numpy as np

from ddflow.kernels.arrays import Flags, Ints, Words
from ddflow.kernels.compile import kernel
from ddflow.kernels.pointer import load_u64


@kernel
def first_wrong(high: Words, low: Words, more: np.uint64, words: int, time: Ints, live: Flags) -> int:
    """Find the first row that is not above the previous one by (identity, time), or has no valid flag; -1 for none.

    high: uint64[n].  low: uint64[n], or of size 0 where one word is enough.  more: the address of uint64[n, words], the
    words of identities beyond two.  time: int64[n], or of size 0 where all
    rows have one.  live: uint8[n], or of size 0 where all are the same.  O(n).

    >>> none = np.empty(0, np.uint64)
    >>> first_wrong(np.array([1, 2], np.uint64), none, np.uint64(0), 0, np.empty(0, np.int64),
    ...             np.array([1, 3], np.uint8))
    1
    """
    wide, timed, told = low.size != 0, time.size != 0, live.size != 0
    for i in range(high.size):
        if told and live[i] > 1:
            return i
        if i == 0 or high[i] > high[i - 1]:
            continue
        if high[i] < high[i - 1] or (wide and low[i] < low[i - 1]):
            return i
        if wide and low[i] > low[i - 1]:
            continue
        above, w = False, 0
        while w < words and not above:
            here = load_u64(more + np.uint64((i * words + w) << 3))
            before = load_u64(more + np.uint64(((i - 1) * words + w) << 3))
            if here < before:
                return i
            above, w = bool(here > before), w + 1
        if not above and not (timed and time[i] > time[i - 1]):
            return i
    return -1
