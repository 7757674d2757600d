"""Map each identity to its entry, in a hash table with open addressing, ordered by hash.

The table is divided into shards: equal ranges of slots for equal ranges of identities. An entry is a row of words:
first identity word, value hash, reference (0 marks an empty slot), the second identity word if there is one, then the
order words.

Guarantees: an entry is at or after its home slot, in the same shard, without an empty slot in between. Therefore sorted
keys read the table from front to back, and threads can write different shards at the same time. `evict_entries` keeps
this order in place.
Limits: probes do not wrap around. If a probe reaches the end of its shard, the kernel returns a special value, and the
caller rebuilds the table. Entries have neither column values nor history.
"""

from typing import Any

import numpy as np

from ddflow.kernels.arrays import Flags, Ints, Ints2d, Narrow, Words, Words2d
from ddflow.kernels.compile import kernel
from ddflow.kernels.pointer import mulhi, prefetch

ID, VALUE, REF, LOW = 0, 1, 2, 3
BATCH, BATCHES = 40, (1 << 20) - 1
"""The lowest bit and the mask of the batch number in a reference, as in ``kernels.gather``."""
AHEAD = 24
"""Number of keys between the current key and the key that is prefetched.

Keys ascend, but their slots are too far apart for the hardware prefetcher.
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
    """Find the first slot at or after ``slot`` that is empty or has the identity.

    Return -1 if the search goes past the end of the identity's shard.
    """
    while slot < table.shape[0]:
        if table[slot, REF] == np.uint64(0):
            # An entry with the wanted identity is always in its shard, but the first empty slot can be in the next
            # shard.
            return slot if shards == ONE or slot < np.int64((mulhi(high, shards) + ONE) * slots) else np.int64(-1)
        if table[slot, ID] == high and (not wide or table[slot, LOW] == low):
            return slot
        slot += 1
    return np.int64(-1)


@kernel
def _prefetch_slot(home: np.uint64) -> None:
    """Prefetch the cache line of a home slot and the next line, because every second entry needs both lines."""
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
    - table, uint64[slots, width]: the hash table, in ``shards`` shards of ``capacity`` homes each.
    - high, low, uint64[n]: the sorted identities (low has size 0 for one-word identities).
    - starts, int32[g]: the row of ``high`` where each group begins.

    Output:
    - place, int64[g]: the slot of the key, or else the empty slot for it. -1 stands for a slot past the key's shard.
    - reference, int64[g]: the reference of the key, 0 for an absent key.
    - value, uint64[g]: the value hash of the key.
    - order, int64[g, w]: the order words of the key.

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
    """Write the last version of each key to the key's entry. O(g).

    Return the number of new keys, or -1 if a shard is full. If the result is -1, the caller makes a larger table and
    writes all entries again. The table is then the same as without the failure. The caller reserves space.

    - place, int64[g]: the slots from `look_up_keys`, in the order of identities. -1 starts the search at the home slot.
    - last, int64[g]: the last version of each key, -1 for a key without a version.
    - high, low, value, uint64[m]: the identity and the value hash of each version.
    - live, uint8[m]: 0 for each version that is a deletion.
    - order, int64[m, w]: the order words of each version.
    - tag, flag: The reference of a live version is ``tag`` + version with ``flag``.
    - tombstone: the reference of each deletion. If ``tombstone`` is 0, the reference is ``tag`` + version.
    - table, uint64[slots, width]: the hash table, which the kernel writes.

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
    """Copy the entries of some shards to a table that may be divided into shards differently. O(slots).

    Return the number of copied entries, or -1 if a shard is full. The kernel reads the old table and writes the new
    table from front to back.

    Input:
    - old, uint64[slots, width]: the old table, in ``parts`` shards of ``held`` homes each.
    - first, last: the range of first identity words.
    - keep: a mask of reference bits. The kernel copies an entry if its reference has any bit of the mask.

    Output:
    - table, uint64[other slots, width]: the new table, in ``shards`` shards of ``capacity`` homes each. The slots from
      the home of ``first`` to the home of ``last`` must be empty.

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
    """Update the references of entries whose rows have moved to a different batch or position. O(m).

    The flags of the entries stay.

    Input:
    - places, int64[m]: the slot of each row's entry, -1 for a row without an entry.
    - references, int64[m]: the new reference of each row.
    - flags: the mask of the reference bits that stay.

    Output:
    - table, uint64[slots, width]: the hash table.

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
    """Write the references and the slots of the entries in a range of identities. The order is that of the identities.

    O(slots of the range): the table is almost in that order, because entries are usually near their homes.

    Input:
    - table, uint64[slots, width]: the hash table.
    - mask: the bits that every listed reference must have.
    - members, uint8[batch slots]: 1 for each wanted batch. If ``members`` has size 0, all batches are wanted.
    - first, last: the least and the greatest first identity word.

    Output:
    - references, places, int64[room]: the reference and the slot of each entry.

    Returns the number of entries, or -1 if there are more than ``room`` entries.

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
        # Write every slot, and count only the wanted slots. Half the slots are empty, so the processor would often
        # mispredict a branch here.
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
    """Copy the words of the entries at ``places``. O(m).

    Input:
    - table, uint64[slots, width]: the hash table.
    - places, int64[m]: the slots of the entries. No element is negative.

    Output:
    - high, value, uint64[m]: the first identity word and the value hash of each entry.
    - low, uint64[m] or size 0: the second identity word of each entry.
    - order, int64[m, w]: the order words of each entry.

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
    """Remove the entries that refer to given batches and are in a given range of identities. Return their number.

    An emptied slot would separate later entries from their homes, so one pass moves these entries back within the
    table. Proof by induction: assume that no slot before ``s`` is empty between an entry and its home. An entry at
    ``s`` that is not removed moves to the first empty slot at or after its home, which is at most ``s``. Therefore no
    unread slot is overwritten. The pass starts at the home of the least evicted identity. The pass ends at or after the
    home of the greatest evicted identity, at the first slot that was empty before the pass. Entries after the slot
    where the pass ends have their homes after this slot, so earlier holes do not affect these entries.

    The run time is O(slots in the range and in the cluster after it). If many identities share few slots, the cost is
    at most one look-up of each entry. The kernel takes no scratch memory.

    - table, uint64[slots, width]: the table that the kernel changes, for identities of one or two words.
    - capacity, shards: the values with which the table was written.
    - begin, end: the range of first words, without ``end``. An ``end`` of 0 stands for 2**64, so (0, 0) is the range of
      all words.
    - gone, uint8[batch slots]: 1 for each evicted batch. The array has an element for the batch of every reference.

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
