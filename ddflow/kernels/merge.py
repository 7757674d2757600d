"""Merging batches: of the versions of each key, sorted together, which are worth keeping.

Invariant: what is left reads the same at every time from ``since`` on. A version goes when its key has a later one at
or before ``since``; a lone deletion that hides nothing older goes too, where its order need not be kept. The rule
needs the next version of the key, so it holds only where the newest batches take part. Payload is gathered afterwards,
by what is kept; nothing is changed here.

>>> import numpy as np
>>> kept, groups = np.empty(2, np.int64), np.empty(2, np.int64)
>>> both, starts, live = np.array([0, 1], np.int32), np.array([0, 2], np.int32), np.ones(2, np.uint8)
>>> prune(both, starts, np.array([1, 2]), live, np.int64(2), False, kept, groups)
1
>>> int(kept[0]), int(groups[0])  # the later of the two versions, of the first key
(1, 0)
"""

import numpy as np

from ddflow.kernels.arrays import Flags, Ints, Narrow
from ddflow.kernels.compile import kernel


@kernel
def prune(
    permutation: Narrow,
    starts: Narrow,
    times: Ints,
    live: Flags,
    since: np.int64,
    droppable: bool,
    kept: Ints,
    groups: Ints,
) -> int:
    """Write the places of the versions that stay, in the order of identities, then times; return how many.

    permutation: int32[n], versions sorted by identity, within one by time.  starts: int32[g + 1], places.  times:
    int64[n], live: uint8[n], by version.  since: times before it need not be told apart.  droppable: whether a lone
    deletion may go (the oldest batch takes part, and orders need not be kept).  kept, groups: int64[n], written: the
    place of each, and which key it is of.  Returns -1 - version instead where a key has two versions of one time: the
    state is corrupt.  O(n).

    >>> one, kept = np.zeros(1, np.int32), np.empty(1, np.int64)
    >>> starts, dead = np.array([0, 1], np.int32), np.zeros(1, np.uint8)
    >>> prune(one, starts, np.array([1]), dead, np.int64(2), True, kept, kept.copy())
    0
    """
    written = 0
    for group in range(starts.size - 1):
        first, stop = written, starts[group + 1]
        for place in range(starts[group], stop):
            if place + 1 < stop and times[permutation[place + 1]] == times[permutation[place]]:
                return int(-1 - permutation[place])
            if place + 1 < stop and times[permutation[place + 1]] <= since:
                continue
            kept[written], groups[written] = place, group
            written += 1
        alone = permutation[kept[first]] if droppable and written == first + 1 else -1
        if alone >= 0 and live[alone] == 0 and times[alone] <= since:
            written = first
    return written
