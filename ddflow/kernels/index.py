"""Map each identity to its entry, in a hash table with open addressing, ordered by hash.

The table is divided into shards: ranges of identities, each with its own memory. A shard has the identities with equal
leading bits. A *directory* has a row for each value of the leading bits, with the address of the shard. An entry is a
row of words: first identity word, value hash, reference (0 marks an empty slot), the second identity word if there is
one, then the order words. A *place* is the address of an entry.

Guarantees: an entry is at or after its home slot, in its shard, without an empty slot in between. The last slot of a
shard is empty. Therefore sorted keys read the table from front to back, and threads can write different shards at the
same time. `evict_entries` keeps this order in place.
Limits: a probe that reaches the last slot does not wrap around; the caller makes the shard larger. Entries have neither
column values nor history. The caller keeps the memory of all shards.
"""

from typing import Any

import numpy as np

from ddflow.kernels.arrays import Flags, Ints, Ints2d, Narrow, Words, Words2d
from ddflow.kernels.compile import kernel
from ddflow.kernels.pointer import load_u64, mulhi, prefetch, store_u64

ID, VALUE, REF, LOW = 0, 1, 2, 3
START, HOMES, BITS, OWNER, USED, MOST, END = range(7)
"""The columns of the directory: the address of the shard, the number of its home slots, the number of leading bits that
its identities share, the first row of the directory for this shard, the number of entries and their maximum (only in
this first row), and the address of the last slot."""
BATCH, BATCHES = 40, (1 << 20) - 1
"""The lowest bit and the mask of the batch number in a reference, as in ``kernels.gather``."""
AHEAD = 24
"""Number of keys between the current key and the key that is prefetched.

Keys ascend, but their slots are too far apart for the hardware prefetcher.
"""
ONE, NEXT, WORD = np.uint64(1), np.uint64(64), np.uint64(8)
VALUE_AT, REF_AT, LOW_AT = np.uint64(8 * VALUE), np.uint64(8 * REF), np.uint64(8 * LOW)


def describe_shard(table: Words2d, homes: int, bits: int, owner: int, most: int) -> list[int]:
    """Return the rows of the directory for an empty shard. See `START`.

    >>> describe_shard(np.zeros((4, 3), np.uint64), homes=2, bits=0, owner=0, most=2)[1:6]
    [2, 0, 0, 0, 2]
    """
    start = table.ctypes.data
    return [start, homes, bits, owner, 0, most, start + table.nbytes - table.strides[0]]


@kernel
def _find_home(directory: Words2d, shift: np.uint64, line: np.uint64, high: np.uint64) -> np.uint64:
    """Compute the address of the home slot of an identity. ``line``: the number of bytes of a slot.

    >>> table = np.zeros((10, 3), np.uint64)
    >>> directory = np.array([describe_shard(table, 8, 0, 0, 8)] * 2, np.uint64)
    >>> int(_find_home(directory, np.uint64(63), np.uint64(24), np.uint64(2**63 + 2**62))) - table.ctypes.data
    144
    """
    row = high >> shift
    slot = mulhi(high << directory[row, BITS], directory[row, HOMES])
    return np.uint64(directory[row, START] + slot * line)


@kernel
def _find_entry(entry: np.uint64, line: np.uint64, high: np.uint64, low: np.uint64, wide: bool) -> np.uint64:
    """Find the first slot at or after ``entry`` that is empty or has the identity. Return its address."""
    while load_u64(entry + REF_AT) != np.uint64(0):
        if load_u64(entry) == high and (not wide or load_u64(entry + LOW_AT) == low):
            break
        entry += line
    return entry


@kernel
def _prefetch_slot(home: np.uint64) -> None:
    """Prefetch the cache line of a home slot and the next line, because every second entry needs both lines."""
    prefetch(home)
    prefetch(home + NEXT)


@kernel
def look_up_keys(
    directory: Words2d,
    shift: np.uint64,
    line: np.uint64,
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
    - directory, uint64[rows, 7]: the directory of the table.
    - shift: ``high >> shift`` is the row of an identity in the directory. At most 63.
    - line: the number of bytes of an entry.
    - high, low, uint64[n]: the sorted identities (low has size 0 for one-word identities).
    - starts, int32[g]: the row of ``high`` where each group begins.

    Output:
    - place, int64[g]: the address of the key's entry, or else of the empty slot for it.
    - reference, int64[g]: the reference of the key, 0 for an absent key.
    - value, uint64[g]: the value hash of the key.
    - order, int64[g, w]: the order words of the key.

    >>> import numpy as np
    >>> table = np.zeros((8 + 4, 3), np.uint64)
    >>> probe = np.array([describe_shard(table, 8, 0, 0, 8)] * 2, np.uint64), np.uint64(63), np.uint64(24)
    >>> high, none, order = np.array([5, 2**63], np.uint64), np.empty(0, np.uint64), np.empty((2, 0), np.int64)
    >>> both, value, live = np.array([0, 1]), np.array([7, 8], np.uint64), np.ones(2, np.uint8)
    >>> write_entries(*probe, np.array([-1, -1]), both, high, none, value, live, order, 1, 0, 0)
    2
    >>> place, reference, value = np.empty(2, np.int64), np.empty(2, np.int64), np.empty(2, np.uint64)
    >>> look_up_keys(*probe, high, none, both.astype(np.int32), place, reference, value, order)
    >>> (place - table.ctypes.data).tolist(), reference.tolist()
    ([0, 96], [1, 2])
    """
    wide = low.size != 0
    first = WORD * np.uint64(LOW + 1 if wide else LOW)
    for g in range(place.size):
        if g + AHEAD < place.size:
            _prefetch_slot(_find_home(directory, shift, line, high[starts[g + AHEAD]]))
        row = starts[g]
        entry = _find_home(directory, shift, line, high[row])
        entry = _find_entry(entry, line, high[row], low[row] if wide else np.uint64(0), wide)
        place[g], found = np.int64(entry), load_u64(entry + REF_AT)
        if found == np.uint64(0):
            reference[g], value[g] = 0, np.uint64(0)
            for w in range(order.shape[1]):
                order[g, w] = 0
            continue
        reference[g], value[g] = np.int64(found), load_u64(entry + VALUE_AT)
        for w in range(order.shape[1]):
            order[g, w] = np.int64(load_u64(entry + first + WORD * np.uint64(w)))


@kernel
def write_entries(
    directory: Words2d,
    shift: np.uint64,
    line: np.uint64,
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

    Return the number of new keys, or -1 - g if the shard of key g is full and key g has no entry. The caller then makes
    the shard larger, and continues with key g.

    - directory, shift, line: as for `look_up_keys`. The kernel counts the new entries of each shard.
    - place, int64[g]: the places from `look_up_keys`, by identity. -1 starts the search at the home slot.
    - last, int64[g]: the last version of each key, -1 for a key without a version.
    - high, low, value, uint64[m]: the identity and the value hash of each version.
    - live, uint8[m]: 0 for each version that is a deletion.
    - order, int64[m, w]: the order words of each version.
    - tag, flag: The reference of a live version is ``tag`` + version with ``flag``.
    - tombstone: the reference of each deletion. If ``tombstone`` is 0, the reference is ``tag`` + version.

    >>> one, words, table = np.zeros(2, np.int64) - 1, np.ones(1, np.uint64), np.zeros((4, 3), np.uint64)
    >>> directory = np.array([describe_shard(table, 2, 0, 0, most=1)] * 2, np.uint64)
    >>> write_entries(directory, np.uint64(63), np.uint64(24), one, one + 1, words, words[:0], words,
    ...     np.ones(1, np.uint8), np.empty((1, 0), np.int64), 8, 16, 0), int(directory[0, USED])
    (1, 1)
    """
    wide = low.size != 0
    first = WORD * np.uint64(LOW + 1 if wide else LOW)
    added = 0
    for g in range(last.size):
        if g + AHEAD < last.size:
            ahead = np.uint64(place[g + AHEAD])
            if place[g + AHEAD] < 0:
                ahead = _find_home(directory, shift, line, high[max(last[g + AHEAD], 0)])
            _prefetch_slot(ahead)
        i = last[g]
        if i < 0:
            continue
        entry = np.uint64(place[g]) if place[g] >= 0 else _find_home(directory, shift, line, high[i])
        entry = _find_entry(entry, line, high[i], low[i] if wide else np.uint64(0), wide)
        if load_u64(entry + REF_AT) == np.uint64(0):
            owner = directory[high[i] >> shift, OWNER]
            if directory[owner, USED] >= directory[owner, MOST] or entry == directory[owner, END]:
                return -1 - g
            directory[owner, USED] += ONE
            added += 1
            store_u64(entry, high[i])
            if wide:
                store_u64(entry + LOW_AT, low[i])
        store_u64(entry + VALUE_AT, value[i])
        reference = (tag + i) | (flag if live[i] != 0 else 0)
        store_u64(entry + REF_AT, np.uint64(reference if live[i] != 0 or tombstone == 0 else tombstone))
        for w in range(order.shape[1]):
            store_u64(entry + first + WORD * np.uint64(w), np.uint64(order[i, w]))
    return added


@kernel
def copy_entries(
    table: Words2d, keep: np.uint64, wide: bool, directory: Words2d, shift: np.uint64, line: np.uint64
) -> int:
    """Copy the entries of a shard to the shards of a directory. O(slots).

    Return the number of copied entries, or -1 if a shard has no free slot. The kernel reads the old table and writes
    the new shards from front to back, and counts the entries of each shard.

    - table, uint64[slots, width]: the memory of the old shard.
    - keep: a mask of reference bits. The kernel copies an entry if its reference has any bit of the mask.
    - directory, shift, line: as for `look_up_keys`, with new shards that do not have the identities yet.

    >>> old, new = np.array([[1, 0, 9]], np.uint64), np.zeros((4, 3), np.uint64)
    >>> directory = np.array([describe_shard(new, 2, 0, 0, 2)] * 2, np.uint64)
    >>> copy_entries(old, ONE, False, directory, np.uint64(63), np.uint64(24)), new[0].tolist()
    (1, [1, 0, 9])
    """
    copied = 0
    for i in range(table.shape[0]):
        if table[i, REF] & keep == np.uint64(0):
            continue
        high = table[i, ID]
        entry = _find_home(directory, shift, line, high)
        entry = _find_entry(entry, line, high, table[i, LOW] if wide else np.uint64(0), wide)
        owner = directory[high >> shift, OWNER]
        if entry == directory[owner, END]:
            return -1
        for w in range(table.shape[1]):
            store_u64(entry + WORD * np.uint64(w), table[i, w])
        directory[owner, USED] += ONE
        copied += 1
    return copied


@kernel
def redirect_entries(base: np.uint64, line: np.uint64, places: Ints, references: Ints, flags: np.uint64) -> None:
    """Update the references of entries whose rows have moved to a different batch or position. O(m).

    The flags of the entries stay.

    - base, line: the address of place p is ``base + line * p``. Places from `look_up_keys` are addresses.
    - places, int64[m]: the place of each row's entry, -1 for a row without an entry.
    - references, int64[m]: the new reference of each row.
    - flags: the mask of the reference bits that stay.

    >>> table = np.full((1, 3), 12, np.uint64)
    >>> redirect_entries(np.uint64(table.ctypes.data), np.uint64(24), np.array([0, -1]), np.array([5, 6]), np.uint64(8))
    >>> int(table[0, 2])
    13
    """
    for i in range(places.size):
        if places[i] >= 0:
            at = base + line * np.uint64(places[i]) + REF_AT
            store_u64(at, (load_u64(at) & flags) | np.uint64(references[i]))


@kernel
def _compute_home_slot(high: np.uint64, homes: np.uint64, bits: np.uint64) -> np.int64:
    """Compute the home slot of an identity in its shard."""
    return np.int64(mulhi(high << bits, homes))


@kernel
def walk_entries(
    table: Words2d,
    homes: np.uint64,
    bits: np.uint64,
    wide: bool,
    mask: np.uint64,
    members: Flags,
    first: np.uint64,
    last: np.uint64,
    references: Ints,
    places: Ints,
) -> int:
    """Write the references and the places of the entries in a range of identities, in the order of the identities.

    O(slots of the range): the table is almost in that order, because entries are usually near their homes.

    Input:
    - table, uint64[slots, width]: the memory of a shard, with ``homes`` and ``bits`` as in the directory.
    - mask: the bits that every listed reference must have.
    - members, uint8[batch slots]: 1 for each wanted batch. If ``members`` has size 0, all batches are wanted.
    - first, last: the least and the greatest first identity word. Both belong to the shard.

    Output:
    - references, places, int64[room]: the reference and the address of each entry.

    Returns the number of entries, or -1 if there are more than ``room`` entries.

    >>> references, places = np.empty(3, np.int64), np.empty(3, np.int64)
    >>> table = np.array([[9, 0, 1], [4, 0, 1]], np.uint64)
    >>> walk_entries(table, ONE, np.uint64(0), False, ONE, np.empty(0, np.uint8), np.uint64(0), np.uint64(9),
    ...      references, places), (places[:2] - table.ctypes.data).tolist()
    (2, [24, 0])
    """
    found: Any = 0
    room = references.size
    base, line = np.int64(table.ctypes.data), np.int64(8 * table.shape[1])
    end = _compute_home_slot(last, homes, bits)
    every, greatest = members.size == 0, np.uint64(0)
    slot: Any
    for slot in range(_compute_home_slot(first, homes, bits), table.shape[0]):
        word, identity = table[slot, REF], table[slot, ID]
        if word == np.uint64(0) and slot >= end:
            break
        if found == room:
            return -1
        # Write every slot, and count only the wanted slots. Half the slots are empty, so the processor would often
        # mispredict a branch here.
        references[found], places[found] = np.int64(word), base + slot * line
        wanted = (word & mask == mask) & (identity >= first) & (identity <= last)
        if not every:
            wanted &= members[np.int64(word >> np.uint64(BATCH)) & BATCHES] != 0
        if wanted and found > 0 and (identity < greatest or (wide and identity == greatest)):
            at = found
            while at > 0 and _has_greater_identity(table, wide, (places[at - 1] - base) // line, slot):
                references[at], places[at] = references[at - 1], places[at - 1]
                at -= 1
            references[at], places[at] = np.int64(word), base + slot * line
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
def read_entries(
    base: np.uint64, line: np.uint64, places: Ints, high: Words, low: Words, value: Words, order: Ints2d
) -> None:
    """Copy the words of the entries at ``places``. O(m).

    Input:
    - base, line: the address of place p is ``base + line * p``, as for `redirect_entries`.
    - places, int64[m]: the places of the entries. No element is negative.

    Output:
    - high, value, uint64[m]: the first identity word and the value hash of each entry.
    - low, uint64[m] or size 0: the second identity word of each entry.
    - order, int64[m, w]: the order words of each entry.

    >>> high, value, order = np.empty(1, np.uint64), np.empty(1, np.uint64), np.empty((1, 0), np.int64)
    >>> table = np.array([[9, 7, 1]], np.uint64)
    >>> read_entries(np.uint64(table.ctypes.data), np.uint64(24), np.zeros(1, np.int64), high, high[:0], value, order)
    >>> int(high[0]), int(value[0])
    (9, 7)
    """
    wide = low.size != 0
    first = WORD * np.uint64(LOW + 1 if wide else LOW)
    for i in range(places.size):
        entry = base + line * np.uint64(places[i])
        high[i], value[i] = load_u64(entry), load_u64(entry + VALUE_AT)
        if wide:
            low[i] = load_u64(entry + LOW_AT)
        for w in range(order.shape[1]):
            order[i, w] = np.int64(load_u64(entry + first + WORD * np.uint64(w)))


@kernel
def evict_entries(
    table: Words2d, homes: np.uint64, bits: np.uint64, begin: np.uint64, end: np.uint64, gone: Flags
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

    - table, uint64[slots, width]: the memory of a shard, which the kernel changes, for identities of one or two words.
    - homes, bits: as in the directory. The kernel does not change the number of entries in the directory.
    - begin, end: the range of first words, without ``end``. An ``end`` of 0 stands for 2**64, so (0, 0) is the range of
      all words. ``begin`` and ``end - 1`` belong to the shard.
    - gone, uint8[batch slots]: 1 for each evicted batch. The array has an element for the batch of every reference.

    >>> table = np.array([[5, 0, 1]], np.uint64)
    >>> evict_entries(table, np.uint64(1), np.uint64(0), np.uint64(6), np.uint64(0), np.ones(1, np.uint8))
    0
    >>> evict_entries(table, np.uint64(1), np.uint64(0), np.uint64(5), np.uint64(6), np.ones(1,
    ...     np.uint8)), table.tolist()
    (1, [[0, 0, 0]])

    >>> table = np.zeros((4, 3), np.uint64)
    >>> table[:2] = [[1, 7, (1 << BATCH) | 5], [2, 8, 6]]  # both at home in slot 0, in batches 1 and 0
    >>> all_of_it = np.uint64(0), np.uint64(0)
    >>> evict_entries(table, np.uint64(2), np.uint64(0), *all_of_it, np.array([0, 1], np.uint8)), table.tolist()[:2]
    (1, [[2, 8, 6], [0, 0, 0]])
    """
    last = end - np.uint64(1)  # wraps to the greatest word if end is 0
    if begin > last:
        return 0
    removed = 0
    slot, stop = _compute_home_slot(begin, homes, bits), _compute_home_slot(last, homes, bits)
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
            to = max(free, _compute_home_slot(table[slot, ID], homes, bits))
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
