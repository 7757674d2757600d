"""Merging batches: walk several hash-ordered batches at once and name the versions that are worth keeping.

Invariant: what is left reads the same at every time from ``since`` on.  A version goes when its key has a later one at
or before ``since``; a deletion that nothing older hides goes too, where its order need not be kept.  Why that is not
trivial: the later version may be in a batch that takes no part; the index knows the current version of each key, so
it is asked (front to back, in the same order).  Only references come out; payload is gathered afterwards, and nothing
is changed here.

>>> import numpy as np
>>> address = lambda array: np.uint64(array.ctypes.data)
>>> ids, times, live = np.array([4, 4], np.uint64), np.array([1, 2]), np.ones(2, np.uint8)
>>> batches = Batches(*(np.array([address(a)]) for a in (ids, ids, times, live)), np.array([2]), np.array([1]))
>>> references, places, none = np.empty(2, np.int64), np.empty(2, np.int64), np.zeros((1, 3), np.uint64)
>>> merge(batches, False, none, np.uint64(1), Policy(2, True, False), references, places)
1
>>> int(references[0]) & 0xFF  # the later of the two versions
1
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from ddflow.kernels.compile import kernel
from ddflow.kernels.gather import ROWS, SLOT, SLOTS
from ddflow.kernels.pointer import load_u8, load_u64, mulhi

Words = np.ndarray[Any, np.dtype[np.uint64]]
Rows = np.ndarray[Any, np.dtype[np.int64]]


class Batches(NamedTuple):
    """The batches to merge, oldest first; each field has one element a batch."""

    high: Words
    """uint64[k]: address of the identities."""
    low: Words
    """uint64[k]: address of their second words (of anything when identities are one word)."""
    time: Words
    """uint64[k]: address of the times."""
    live: Words
    """uint64[k]: address of the live flags."""
    size: Rows
    """int64[k]: how many versions."""
    slot: Rows
    """int64[k]: the number that references know the batch by."""


class Policy(NamedTuple):
    """What may go."""

    since: int
    """Times before it need not be told apart."""
    oldest: bool
    """Whether the oldest batch of all takes part."""
    keeps: bool
    """Whether a deletion must stay for its order."""


@kernel
def _least(batches: Batches, wide: bool, at: Rows) -> int:
    """The batch whose next version has the least identity, the oldest of equals; -1 when all are done."""
    best = -1
    high = low = np.uint64(0)
    for b in range(at.size):
        if at[b] >= batches.size[b]:
            continue
        h = load_u64(batches.high[b] + np.uint64(at[b] << 3))
        w = load_u64(batches.low[b] + np.uint64(at[b] << 3)) if wide else np.uint64(0)
        if best < 0 or h < high or (h == high and w < low):
            best, high, low = b, h, w
    return best


@kernel
def _place(table: Words, capacity: np.uint64, high: np.uint64, low: np.uint64, wide: bool) -> int:
    """The slot of the identity in the index, or -1."""
    slot = np.int64(mulhi(high, capacity))
    while slot < table.shape[0] and table[slot, 2] != np.uint64(0):
        if table[slot, 0] == high and (not wide or table[slot, 3] == low):
            return slot
        slot += 1
    return -1


@kernel
def _flush(batches: Batches, policy: Policy, references: Rows, group: int, end: int, current: int) -> int:
    """Drop from the versions [group, end) of one key those that may go; return the new end.

    ``current``: the place among them that the index points at, or -1 when it is elsewhere.
    """
    kept = group
    for i in range(group, end):
        r = references[i]
        if i + 1 < end:
            b = (references[i + 1] >> SLOT) & SLOTS
            for j in range(batches.slot.size):
                if batches.slot[j] == b:
                    b = j
                    break
            later = np.int64(load_u64(batches.time[b] + np.uint64((references[i + 1] & ROWS) << 3)))
            if later <= policy.since:
                continue
        references[kept] = r
        kept += 1
    if kept == group + 1 and policy.oldest and not policy.keeps and end - 1 == current:
        r = references[group]
        for j in range(batches.slot.size):
            if batches.slot[j] == (r >> SLOT) & SLOTS:
                gone = load_u8(batches.live[j] + np.uint64(r & ROWS)) == np.uint64(0)
                time = np.int64(load_u64(batches.time[j] + np.uint64((r & ROWS) << 3)))
                if gone and time <= policy.since:
                    return group
    return kept


@kernel
def merge(
    batches: Batches, wide: bool, table: Words, capacity: np.uint64, policy: Policy, references: Rows, places: Rows
) -> int:
    """Write references to the versions that stay, in hash order; return how many.

    batches: read.  wide: whether identities are two words.  table, capacity: the index, read.  references: int64[sum of
    sizes], written.  places: int64[the same], written: the slot that must be redirected to the version, or -1 where
    the index does not point at it.  O(k n) for k batches of n versions together.

    >>> none = np.empty(0, np.uint64)
    >>> merge(Batches(none, none, none, none, np.empty(0, np.int64), np.empty(0, np.int64)), False,
    ...       np.zeros((1, 3), np.uint64), np.uint64(1), Policy(0, True, False), np.empty(0, np.int64),
    ...       np.empty(0, np.int64))
    0
    """
    at = np.zeros(batches.size.size, np.int64)
    written = group = 0
    high = low = np.uint64(0)
    place, current, first = -1, -1, True
    while True:
        b = _least(batches, wide, at)
        if b >= 0:
            h = load_u64(batches.high[b] + np.uint64(at[b] << 3))
            w = load_u64(batches.low[b] + np.uint64(at[b] << 3)) if wide else np.uint64(0)
        if not first and (b < 0 or h != high or w != low):
            pointed = references[current] if current >= 0 else -1
            end = _flush(batches, policy, references, group, written, current)
            for i in range(group, end):
                places[i] = place if references[i] == pointed else -1
            written = group = end
        if b < 0:
            return written
        if first or h != high or w != low:
            high, low, current, first = h, w, -1, False
            place = _place(table, capacity, high, low, wide)
        references[written] = (batches.slot[b] << SLOT) | at[b]
        if place >= 0 and np.int64(table[place, 2]) & ((1 << 60) - 1) == references[written]:
            current = written
        written += 1
        at[b] += 1
