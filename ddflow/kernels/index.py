"""Map each identity to its entry, in a hash table with open addressing, ordered by hash.

The table is divided into shards: equal ranges of slots for equal ranges of identities. An entry is a row of words:
first identity word, value hash, reference (0 marks an empty slot), the second identity word if there is one, then the
order words.

Guarantees: an entry is at or after its home slot, in the same shard, without an empty slot in between. Therefore sorted
keys read the table from front to back, and threads can write different shards at the same time. `evict_entries`
preserves this in place.
Limits: probes do not wrap around. If a probe leaves its shard, the kernel returns that, and the caller rebuilds the
table. Entries have neither column values nor history.
"""

from typing import Any

import numpy as np

from ddflow.kernels.arrays import Flags, Ints, Ints2d, Narrow, Words, Words2d
from ddflow.kernels.compile import kernel
from ddflow.kernels.pointer import mulhi, prefetch

ID, VALUE, REF, LOW = 0, 1, 2, 3
BATCH, BATCHES = 40, (1 << 20) - 1
"""Lowest bit and mask of the batch number in a reference, as in ``kernels.gather``."""
AHEAD = 24
"""Number of keys between the current key and the prefetched one.

Keys ascend, but are too far apart for the hardware prefetcher.
"""
ONE, NEXT = np.uint64(1), np.uint64(64)


@kernel
def _compute_home_slot(high: np.uint64, capacity: np.uint64, shards: np.uint64, slots: np.uint64) -> np.int64:
    """Compute the home slot of an identity.

    capacity: the number of home slots in a shard. slots: the number of slots of a shard, including spare slots.

    >>> int(_compute_home_slot(np.uint64(2**63 + 2**62), np.uint64(8), np.uint64(2),
    ...     np.uint64(10)))  # half of shard 2
    14
    """
    if shards == ONE:
        return np.int64(mulhi(high, capacity))
    return np.int64(mulhi(high, shards) * slots + mulhi(high * shards, capacity))


@kernel
def _find_slot(
    table: Words, slot: np.int64, high: np.uint64, low: np.uint64, wide: bool, shards: np.uint64, slots: np.uint64
) -> np.int64:
    """Find the first slot from ``slot`` on that holds the identity or is empty.

    Return -1 after the identity's shard.
    """
    while slot < table.shape[0]:
        if table[slot, REF] == np.uint64(0):
            # An entry never belongs to another shard; only an empty slot can.
            return slot if shards == ONE or slot < np.int64((mulhi(high, shards) + ONE) * slots) else np.int64(-1)
        if table[slot, ID] == high and (not wide or table[slot, LOW] == low):
            return slot
        slot += 1
    return np.int64(-1)


@kernel
def _prefetch_slot(home: np.uint64) -> None:
    """Prefetch the cache line of a home slot and the next line, because every second entry extends into the next."""
    prefetch(home)
    prefetch(home + NEXT)


@kernel
def look_up_keys(
    table: Words2d,
    capacity: np.uint64,
    shards: np.uint64,
    high: Words,
    low: Words,
    starts: Narrow,
    place: Ints,
    reference: Ints,
    value: Words,
    order: Ints2d,
) -> None:
    """Look up the entry of each group of events. O(g) expected.

    Input:
    - table: uint64[slots, width], in ``shards`` of ``capacity`` homes each.
    - high, low: uint64[n], sorted (low of size 0 for one-word identities).
    - starts: int32[g], the row of ``high`` where each group begins.

    Output:
    - place: int64[g], the slot of the key, or the empty slot for it, or -1 past its shard.
    - reference: int64[g], 0 for an absent key. value: uint64[g]. order: int64[g, w].

    >>> place, nothing = np.empty(1, np.int64), np.empty(0, np.uint64)
    >>> look_up_keys(np.zeros((2, 3), np.uint64), ONE, ONE, np.ones(1, np.uint64), nothing, np.zeros(1, np.int32),
    ...      place, np.empty(1, np.int64), np.empty(1, np.uint64), np.empty((1, 0), np.int64))
    >>> int(place[0])
    0

    >>> import numpy as np
    >>> table = np.zeros((8 + 4, 3), np.uint64)
    >>> high, none, order = np.array([5, 2**63], np.uint64), np.empty(0, np.uint64), np.empty((2, 0), np.int64)
    >>> both, value, live = np.array([0, 1]), np.array([7, 8], np.uint64), np.ones(2, np.uint8)
    >>> write_entries(table, np.uint64(8), ONE, np.array([-1, -1]), both, high, none, value, live, order, 1, 0, 0)
    2
    >>> place, reference, value = np.empty(2, np.int64), np.empty(2, np.int64), np.empty(2, np.uint64)
    >>> look_up_keys(table, np.uint64(8), ONE, high, none, both.astype(np.int32), place, reference, value, order)
    >>> place.tolist(), reference.tolist()
    ([0, 4], [1, 2])
    """
    wide = low.size != 0
    first = LOW + 1 if wide else LOW
    base, line = np.uint64(table.ctypes.data), np.uint64(8 * table.shape[1])
    slots = np.uint64(table.shape[0]) // shards
    for g in range(place.size):
        if g + AHEAD < place.size:
            _prefetch_slot(
                base + np.uint64(_compute_home_slot(high[starts[g + AHEAD]], capacity, shards, slots)) * line
            )
        row = starts[g]
        slot = _compute_home_slot(high[row], capacity, shards, slots)
        slot = _find_slot(table, slot, high[row], low[row] if wide else np.uint64(0), wide, shards, slots)
        place[g] = slot
        if slot < 0 or table[slot, REF] == np.uint64(0):
            reference[g], value[g] = 0, np.uint64(0)
            for w in range(order.shape[1]):
                order[g, w] = 0
            continue
        reference[g], value[g] = np.int64(table[slot, REF]), table[slot, VALUE]
        for w in range(order.shape[1]):
            order[g, w] = np.int64(table[slot, first + w])


@kernel
def write_entries(
    table: Words2d,
    capacity: np.uint64,
    shards: np.uint64,
    place: Ints,
    last: Ints,
    high: Words,
    low: Words,
    value: Words,
    live: Flags,
    order: Ints2d,
    tag: np.int64,
    flag: np.int64,
    tombstone: np.int64,
) -> int:
    """Write the last version of each key to the key's entry. Return the number of new keys, or -1 if a shard is full.

    Input: place int64[g], from `look_up_keys` in the order of identities (-1: start at the home slot). last int64[g],
    the version of each key or -1. By version: high, low, value uint64[m]; live uint8[m]; order int64[m, w]. A reference
    is ``tag`` + version, with ``flag`` for a live one; a deletion gets ``tombstone`` instead unless that is 0.
    Output: table uint64[slots, width]. The caller reserves space. After -1, the caller rebuilds a larger table and
    writes all entries again, which gives the same result. O(g).

    >>> one, words = np.zeros(1, np.int64), np.ones(1, np.uint64)
    >>> write_entries(np.zeros((4, 3), np.uint64), np.uint64(2), ONE, one, one, words, words[:0], words, np.ones(1,
    ...     np.uint8),
    ...       np.empty((1, 0), np.int64), 8, 16, 0)
    1
    """
    wide = low.size != 0
    first = LOW + 1 if wide else LOW
    added = 0
    base, line = np.uint64(table.ctypes.data), np.uint64(8 * table.shape[1])
    slots = np.uint64(table.shape[0]) // shards
    for g in range(last.size):
        if g + AHEAD < last.size:
            ahead = place[g + AHEAD]
            if ahead < 0:
                ahead = _compute_home_slot(high[max(last[g + AHEAD], 0)], capacity, shards, slots)
            _prefetch_slot(base + np.uint64(ahead) * line)
        i = last[g]
        if i < 0:
            continue
        slot = place[g] if place[g] >= 0 else _compute_home_slot(high[i], capacity, shards, slots)
        slot = _find_slot(table, slot, high[i], low[i] if wide else np.uint64(0), wide, shards, slots)
        if slot < 0:
            return -1
        if table[slot, REF] == np.uint64(0):
            added += 1
            table[slot, ID] = high[i]
            if wide:
                table[slot, LOW] = low[i]
        table[slot, VALUE] = value[i]
        reference = (tag + i) | (flag if live[i] != 0 else 0)
        table[slot, REF] = np.uint64(reference if live[i] != 0 or tombstone == 0 else tombstone)
        for w in range(order.shape[1]):
            table[slot, first + w] = np.uint64(order[i, w])
    return added


@kernel
def copy_entries(
    old: Words2d,
    held: np.uint64,
    parts: np.uint64,
    table: Words2d,
    capacity: np.uint64,
    shards: np.uint64,
    first: np.uint64,
    last: np.uint64,
    wide: bool,
    keep: np.uint64,
) -> int:
    """Copy the entries of some shards to a table that may have other shards. Return their number, or -1 if a shard is
    full.

    Input: old uint64[slots, width], in ``parts`` of ``held`` homes each. first, last: the range of first identity
    words. keep: a mask of reference bits; an entry is copied if it has any of them.
    Output: table uint64[other slots, width], in ``shards`` of ``capacity`` homes, empty from the home of ``first`` to
    the home of ``last``. O(slots); both tables are read or written from front to back.

    >>> old = np.array([[1, 0, 9]], np.uint64)
    >>> copy_entries(old, ONE, ONE, np.zeros((4, 3), np.uint64), np.uint64(2), ONE, ONE, ~ONE, False, ONE)
    1
    """
    copied = 0
    olds, slots = np.uint64(old.shape[0]) // parts, np.uint64(table.shape[0]) // shards
    stop = _compute_home_slot(last, held, parts, olds)
    for i in range(_compute_home_slot(first, held, parts, olds), old.shape[0]):
        if old[i, REF] == np.uint64(0) and i >= stop:
            break
        if old[i, REF] & keep == np.uint64(0) or old[i, ID] < first or old[i, ID] > last:
            continue
        slot = _compute_home_slot(old[i, ID], capacity, shards, slots)
        slot = _find_slot(table, slot, old[i, ID], old[i, LOW] if wide else np.uint64(0), wide, shards, slots)
        if slot < 0:
            return -1
        for w in range(old.shape[1]):
            table[slot, w] = old[i, w]
        copied += 1
    return copied


@kernel
def redirect_entries(table: Words2d, places: Ints, references: Ints, flags: np.uint64) -> None:
    """Update the references of entries whose rows moved. Their flags stay.

    Input: places int64[m], -1 for a row without an entry. references int64[m]. flags: the mask of bits to keep.
    Output: table uint64[slots, width]. O(m).

    >>> table = np.full((1, 3), 12, np.uint64)
    >>> redirect_entries(table, np.array([0, -1]), np.array([5, 6]), np.uint64(8))
    >>> int(table[0, 2])
    13
    """
    for i in range(places.size):
        if places[i] >= 0:
            table[places[i], REF] = (table[places[i], REF] & flags) | np.uint64(references[i])


@kernel
def walk_entries(
    table: Words2d,
    capacity: np.uint64,
    shards: np.uint64,
    wide: bool,
    mask: np.uint64,
    members: Flags,
    first: np.uint64,
    last: np.uint64,
    references: Ints,
    places: Ints,
) -> int:
    """Write the references and slots of the entries in a range of identities, in the order of identities.

    Input: table uint64[slots, width]. mask: bits that a reference must all have. members uint8[batch slots], 1 for a
    wanted batch; size 0 for all. first, last: the least and the greatest first identity word.
    Output: references, places int64[room].
    Returns the number of entries, or -1 if they exceed the room. O(slots of the range): the table is almost in that
    order, because entries are usually near their homes.

    >>> references, places = np.empty(3, np.int64), np.empty(3, np.int64)
    >>> table = np.array([[9, 0, 1], [4, 0, 1]], np.uint64)
    >>> walk_entries(table, ONE, ONE, False, ONE, np.empty(0, np.uint8), np.uint64(0), np.uint64(9),
    ...      references, places), places[:2].tolist()
    (2, [1, 0])
    """
    found: Any = 0
    room = references.size
    slots = np.uint64(table.shape[0]) // shards
    end = _compute_home_slot(last, capacity, shards, slots)
    every, greatest = members.size == 0, np.uint64(0)
    slot: Any
    for slot in range(_compute_home_slot(first, capacity, shards, slots), table.shape[0]):
        word, identity = table[slot, REF], table[slot, ID]
        if word == np.uint64(0) and slot >= end:
            break
        if found == room:
            return -1
        # Write every slot, and count only the wanted ones: half the slots are empty, so the processor would mispredict
        # a branch.
        references[found], places[found] = np.int64(word), slot
        wanted = (word & mask == mask) & (identity >= first) & (identity <= last)
        if not every:
            wanted &= members[np.int64(word >> np.uint64(BATCH)) & BATCHES] != 0
        if wanted and found > 0 and (identity < greatest or (wide and identity == greatest)):
            at = found
            while at > 0 and _has_greater_identity(table, wide, places[at - 1], slot):
                references[at], places[at] = references[at - 1], places[at - 1]
                at -= 1
            references[at], places[at] = np.int64(word), slot
        greatest = max(greatest, identity) if wanted else greatest
        found += np.int64(wanted)
    return int(found)


@kernel
def _has_greater_identity(table: Words, wide: bool, one: np.int64, other: np.int64) -> bool:
    """Return whether the identity in slot ``one`` is greater than the identity in slot ``other``."""
    if table[one, ID] != table[other, ID]:
        return bool(table[one, ID] > table[other, ID])
    return wide and bool(table[one, LOW] > table[other, LOW])


@kernel
def read_entries(table: Words2d, places: Ints, high: Words, low: Words, value: Words, order: Ints2d) -> None:
    """Copy the words of the entries at ``places``.

    Input: table uint64[slots, width]. places int64[m], none negative.
    Output: high, value uint64[m]. low uint64[m] or size 0. order int64[m, w]. O(m).

    >>> high, value, order = np.empty(1, np.uint64), np.empty(1, np.uint64), np.empty((1, 0), np.int64)
    >>> read_entries(np.array([[9, 7, 1]], np.uint64), np.zeros(1, np.int64), high, high[:0], value, order)
    >>> int(high[0]), int(value[0])
    (9, 7)
    """
    wide = low.size != 0
    first = LOW + 1 if wide else LOW
    for i in range(places.size):
        slot = places[i]
        high[i], value[i] = table[slot, ID], table[slot, VALUE]
        if wide:
            low[i] = table[slot, LOW]
        for w in range(order.shape[1]):
            order[i, w] = np.int64(table[slot, first + w])


@kernel
def evict_entries(
    table: Words2d, capacity: np.uint64, shards: np.uint64, begin: np.uint64, end: np.uint64, gone: Flags
) -> int:
    """Remove the entries in a range of identities that refer to given batches. Return their number.

    An emptied slot would separate later entries from their homes, so one pass moves these entries back in place. Proof:
    assume no slot before ``s`` is empty between an entry and its home. An entry at ``s`` that stays moves to the first
    empty slot at or after its home, at the latest ``s``, so it overwrites no unread slot. The pass starts at the home
    of the least evicted identity. It ends at the first slot, at or after the home of the greatest evicted identity,
    that was empty from the start: entries after that slot have homes after it, so no earlier hole affects them.

    Input: capacity, shards: as the table was written. begin, end: the range of first words, ``end`` excluded. An end of
    0 is 2**64, so (0, 0) is everything. gone uint8[batch slots], 1 for evicted batches; it covers the batch of every
    reference.
    Output: table uint64[slots, width], for identities of one or two words. No scratch. O(slots in the range and the
    cluster after it), at most the cost of a look-up of each entry if identities crowd.

    >>> table = np.array([[5, 0, 1]], np.uint64)
    >>> evict_entries(table, np.uint64(1), np.uint64(1), np.uint64(6), np.uint64(0), np.ones(1, np.uint8))
    0
    >>> evict_entries(table, np.uint64(1), np.uint64(1), np.uint64(5), np.uint64(6), np.ones(1,
    ...     np.uint8)), table.tolist()
    (1, [[0, 0, 0]])

    >>> table = np.zeros((4, 3), np.uint64)
    >>> table[:2] = [[1, 7, (1 << BATCH) | 5], [2, 8, 6]]  # both at home in slot 0, in batches 1 and 0
    >>> all_of_it = np.uint64(0), np.uint64(0)
    >>> evict_entries(table, np.uint64(2), np.uint64(1), *all_of_it, np.array([0, 1], np.uint8)), table.tolist()[:2]
    (1, [[2, 8, 6], [0, 0, 0]])
    """
    last = end - np.uint64(1)  # wraps to the greatest word if end is 0
    if begin > last:
        return 0
    removed = 0
    slots = np.uint64(table.shape[0]) // shards
    slot, stop = _compute_home_slot(begin, capacity, shards, slots), _compute_home_slot(last, capacity, shards, slots)
    free = slot  # no slot before this one is empty between a remaining entry and its home
    while slot < table.shape[0]:
        if table[slot, REF] == np.uint64(0):
            if slot >= stop:
                break
            free = slot + 1
        elif begin <= table[slot, ID] <= last and gone[np.int64(table[slot, REF] >> np.uint64(BATCH)) & BATCHES] != 0:
            for w in range(table.shape[1]):
                table[slot, w] = np.uint64(0)
            removed += 1
        else:
            to = max(free, _compute_home_slot(table[slot, ID], capacity, shards, slots))
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
