"""Evicting: the index gives up the entries that point into some batches, and those are searched instead.

Invariant: afterwards, as before, an entry stands at or after its home slot with no empty slot between, so `index.seek`
and `index.write` work on; all other entries are still there, nearer to their homes or where they were. An emptied slot
is a hole that cuts off entries beyond it from their homes, so those must move back; no second table is wanted, since
eviction happens when memory has run out.

It is done in place, in one walk.  Proof.  Let all slots before ``s`` be done: for each entry in them, no slot from its
home to it is empty.  Of an entry at ``s`` that stays, the home is at or before ``s``; it goes to the first empty slot
at or after its home, which is ``s`` itself at the latest, since its own place may be counted as empty: so nothing not
yet looked at is overwritten, and from its home to it no slot is empty.  Later only slots at or after ``s + 1`` are
emptied, and it lies before those: it stays right.  So all that is done is right when the walk ends.  It may begin at
the home of the least identity evicted: no evicted entry stands before that, and the slots there are not changed.  It
may end at the first slot that was empty from the start, at or after the home of the greatest one: the homes of all
entries beyond lie beyond too.  And holes before such an empty slot can be forgotten: no home beyond reaches them.

The caller does it a range of identities at a time, so that no step pays for the whole table.  Nothing shrinks here: a
smaller table is `index.rebuild`'s.

>>> import numpy as np
>>> table = np.zeros((4, 3), np.uint64)
>>> table[:2] = [[1, 7, (1 << SLOT) | 5], [2, 8, 6]]  # both at home in slot 0; one in batch 1, the other in batch 0
>>> evict(table, np.uint64(2), np.uint64(1), np.uint64(0), np.uint64(0), np.array([0, 1], np.uint8)), table.tolist()[:2]
(1, [[2, 8, 6], [0, 0, 0]])
"""

import numpy as np

from ddflow.kernels.arrays import Flags, Words
from ddflow.kernels.compile import kernel
from ddflow.kernels.gather import SLOT, SLOTS
from ddflow.kernels.index import ID, REF, _home


@kernel
def evict(table: Words, capacity: np.uint64, shards: np.uint64, begin: np.uint64, end: np.uint64, gone: Flags) -> int:
    """Remove the entries of a range of identities that point into certain batches; return how many there were.

    table: uint64[slots, width], the entries of `index` (of one word or two), changed.  capacity, shards: as it was
    written with.  begin, end: the first word of the identities is at or after ``begin`` and before ``end``; an ``end``
    of 0 is 2**64, so (0, 0) is all of them.  gone: uint8[batch slots], 1 for those whose entries go; every reference's
    batch slot is one of them.  No scratch.  O(slots in the range) and the cluster after it; where identities crowd, no
    more than it costs to look each of them up.

    >>> table = np.array([[5, 0, 1]], np.uint64)
    >>> evict(table, np.uint64(1), np.uint64(1), np.uint64(6), np.uint64(0), np.ones(1, np.uint8))
    0
    >>> evict(table, np.uint64(1), np.uint64(1), np.uint64(5), np.uint64(6), np.ones(1, np.uint8)), table.tolist()
    (1, [[0, 0, 0]])
    """
    last = end - np.uint64(1)  # wraps to the greatest
    if begin > last:
        return 0
    removed = 0
    slots = np.uint64(table.shape[0]) // shards
    slot, stop = _home(begin, capacity, shards, slots), _home(last, capacity, shards, slots)
    free = slot  # from the homes that may still come up to it, no slot is empty
    while slot < table.shape[0]:
        if table[slot, REF] == np.uint64(0):
            if slot >= stop:
                break
            free = slot + 1
        elif begin <= table[slot, ID] <= last and gone[np.int64(table[slot, REF] >> np.uint64(SLOT)) & SLOTS] != 0:
            for w in range(table.shape[1]):
                table[slot, w] = np.uint64(0)
            removed += 1
        else:
            to = max(free, _home(table[slot, ID], capacity, shards, slots))
            while to < slot and table[to, REF] != np.uint64(0):
                to += 1
            if to < slot:
                for w in range(table.shape[1]):
                    table[to, w] = table[slot, w]
                    table[slot, w] = np.uint64(0)
            while free <= slot and table[free, REF] != np.uint64(0):
                free += 1
        slot += 1
    return removed
