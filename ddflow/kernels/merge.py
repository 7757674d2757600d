"""Check the versions of a batch that was read from a file, and select the versions that a merge keeps.

Guarantees: a batch that passes `find_first_invalid_row` is in hash order and has valid flags, so searches, merges and
references stay within its bounds. After `prune_versions`, reads at ``since`` or later give the same rows as before.
Limits: `prune_versions` needs the next version of each key, so a merge must include the newest batches.

>>> import numpy as np
>>> kept, groups = np.empty(2, np.int64), np.empty(2, np.int64)
>>> both, starts, live = np.array([0, 1], np.int32), np.array([0, 2], np.int32), np.ones(2, np.uint8)
>>> prune_versions(both, starts, np.array([1, 2]), live, np.int64(2), False, kept, groups)
1
>>> int(kept[0]), int(groups[0])  # the later of the two versions, of the first key
(1, 0)
"""

import numpy as np

from ddflow.kernels.arrays import Flags, Ints, Narrow, Words
from ddflow.kernels.compile import kernel
from ddflow.kernels.pointer import load_u64


@kernel
def prune_versions(
    permutation: Narrow,
    starts: Narrow,
    times: Ints,
    live: Flags,
    since: np.int64,
    droppable: bool,
    kept: Ints,
    groups: Ints,
) -> int:
    """Write the places of the versions to keep, in the order of identities, then times.

    Return the number of these versions. O(n).

    Input:
    - permutation, int32[n]: the versions, sorted by identity, then by time.
    - starts, int32[g + 1]: the place where each identity begins.
    - times, int64[n]: the time of each version.
    - live, uint8[n]: 0 for each version that is a deletion.
    - since: a merge need not distinguish times before ``since``.
    - droppable: whether the kernel is allowed to drop the only version of a key if it is a deletion. ``droppable`` can
      be true only if the oldest batch takes part in the merge and orders are not kept.

    Output:
    - kept, groups, int64[n]: the place and the key of each kept version.

    If a key has two versions with the same time, the state is corrupt, and the kernel returns -1 - version.

    >>> one, kept = np.zeros(1, np.int32), np.empty(1, np.int64)
    >>> starts, dead = np.array([0, 1], np.int32), np.zeros(1, np.uint8)
    >>> prune_versions(one, starts, np.array([1]), dead, np.int64(2), True, kept, kept.copy())
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


@kernel
def find_first_invalid_row(high: Words, low: Words, more: np.uint64, words: int, time: Ints, live: Flags) -> int:
    """Find the first row that is not greater than the previous row by (identity, time), or that has an invalid flag.

    Return -1 if all rows are valid. O(n).

    - high, uint64[n]: the first identity word of each row.
    - low, uint64[n]: the second identity word of each row. ``low`` has size 0 for one-word identities.
    - more: the address of uint64[n, words], the identity words after the second word.
    - time, int64[n]: the time of each row. ``time`` has size 0 if all rows have the same time.
    - live, uint8[n]: the flag of each row. ``live`` has size 0 if all flags are the same.

    >>> none = np.empty(0, np.uint64)
    >>> find_first_invalid_row(np.array([1, 2], np.uint64), none, np.uint64(0), 0, np.empty(0, np.int64),
    ...             np.array([1, 3], np.uint8))
    1

    >>> import numpy as np
    >>> none = np.empty(0, np.uint64)
    >>> find_first_invalid_row(np.array([2, 2, 1], np.uint64), none, np.uint64(0), 0, np.array([1, 5, 7]), np.ones(3,
    ...     np.uint8))
    2
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
