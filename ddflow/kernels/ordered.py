"""Read and write the ordered index, a B+-tree in arrays, whose keys are identities of several words.

Leaves have ascending entries, are never empty, and are linked in order. Leaves are children of nodes (up to ``FAN`` in
each), and the nodes form one ascending list. Each node, and the list of nodes, stores the first word of each child. An
entry is a row of words as in ``index``: the first identity word, the value, the reference, and then the identity words
after the first.

Guarantees: all entries of a group are adjacent, because they have the same first words. Keys ascend, so consecutive
look-ups often use the same leaf. ``ordered_tree`` creates and removes leaves.
"""

import numpy as np

from ddflow.kernels.arrays import Flags, Ints, Narrow, Words, Words2d
from ddflow.kernels.compile import kernel
from ddflow.kernels.index import BATCH, BATCHES, ID, LOW, REF, VALUE
from ddflow.kernels.ordered_tree import (
    LEAF,
    TOPS,
    USED,
    IdentityAddresses,
    Number,
    Tree,
    _add_to_counter,
    _compare_entry,
    _copy_entries,
    _create_first_leaf,
    _descend_to_leaf,
    _find_lower_bound,
    _has_room,
    _insert_entry,
    _load_entry_word,
    _load_int64,
    _load_leaf,
    _remove_entry,
    _split_leaf,
    _store_int64,
    _update_directory,
)
from ddflow.kernels.pointer import load_u64, prefetch, store_u64

AHEAD = 8
"""Number of rows whose leaves are prefetched together. This number must be a power of 2."""


@kernel
def look_up_ordered_entries(
    tree: Tree, keys: IdentityAddresses, starts: Narrow, place: Ints, reference: Ints, value: Words
) -> None:
    """Look up entries by all their words. O(g log entries).

    Input:
    - keys: the ascending identities.
    - starts, int32[g]: the row of each wanted identity in ``keys``.

    Output:
    - place, int64[g]: the place of each entry, -1 for an absent key.
    - reference, int64[g]: the reference of each entry, 0 for an absent key.
    - value, uint64[g]: the value hash of each entry.

    >>> from ddflow.kernels.ordered_tree import allocate_tree
    >>> arrays, one, place = allocate_tree(4, 4), np.ones(1, np.uint64), np.empty(1, np.int64)
    >>> keys = IdentityAddresses.from_arrays(one, one, np.empty((1, 0), np.uint64))
    >>> look_up_ordered_entries(Tree.from_arrays(arrays), keys, np.zeros(1, np.int32), place, np.empty(1, np.int64),
    ...     one.copy())
    >>> place.tolist()
    [-1]
    """
    leaf, dense, none = np.int64(0), _is_dense(tree, starts.size), _load_int64(tree.counters, TOPS) == 0
    for g in range(starts.size):
        row = np.int64(starts[g])
        if not (dense or none) and g & (AHEAD - 1) == 0:
            for i in range(g, min(g + AHEAD, starts.size)):
                place[i] = _find_leaf(tree, keys, np.int64(starts[i]))
        found = place[g]
        place[g], reference[g], value[g] = -1, 0, np.uint64(0)
        if none:
            continue
        leaf = _advance_to_leaf(tree, leaf, keys, row, False, True) if dense else found
        spot = _find_lower_bound(tree, leaf, keys, row)
        here = leaf * LEAF + spot
        if spot < _load_int64(tree.size, leaf) and _compare_entry(tree, here, keys, row) == 0:
            place[g], reference[g], value[g] = (
                here,
                np.int64(_load_entry_word(tree, here, REF)),
                _load_entry_word(tree, here, VALUE),
            )


@kernel
def _advance_to_leaf(
    tree: Tree, leaf: Number, keys: IdentityAddresses, row: Number, strict: bool, dense: bool
) -> Number:
    """Find the last leaf whose first entry is before the words of a row.

    If there is no such leaf, return the first leaf. Unless ``strict`` is set, a leaf whose first entry equals the words
    of the row also counts. ``leaf``: the leaf of a previous row, or 0. ``dense``: whether the following leaf will
    probably be needed next.
    """
    for _ in range(2):
        if leaf == 0:
            break
        after = _load_int64(tree.follows, leaf)
        if after == 0:
            return leaf
        order = _compare_entry(tree, after * LEAF, keys, row)
        if order > 0 or (strict and order == 0):
            return leaf
        leaf = after
        _prefetch_next_leaf(tree, leaf, dense)
    at, c = _descend_to_leaf(tree, keys, row, strict)
    leaf = _load_leaf(tree, at, c)
    _prefetch_next_leaf(tree, leaf, dense)
    return leaf


@kernel
def _is_dense(tree: Tree, n: Number) -> Number:
    """Return whether ``n`` ascending rows probably visit most leaves."""
    return n * 2 * LEAF > _load_int64(tree.counters, USED)


@kernel
def _prefetch_next_leaf(tree: Tree, leaf: Number, dense: bool) -> None:
    """Prefetch the entries of the next leaf."""
    if dense:
        at = tree.table + np.uint64(_load_int64(tree.follows, leaf) * LEAF) * tree.width
        for i in range((LEAF * 3 // 4 * np.int64(tree.width)) >> 6):
            prefetch(at + np.uint64(i << 6))


@kernel
def _find_leaf(tree: Tree, keys: IdentityAddresses, row: Number) -> Number:
    """Find the leaf for the words of a row, and prefetch the entries that a search reads first."""
    at, c = _descend_to_leaf(tree, keys, row, False)
    leaf = _load_leaf(tree, at, c)
    entries = tree.table + np.uint64(leaf * LEAF) * tree.width
    for i in range(1, 8):
        prefetch(entries + np.uint64(_load_int64(tree.size, leaf) * i >> 3) * tree.width)
    return leaf


@kernel
def write_ordered_entries(
    tree: Tree,
    keys: IdentityAddresses,
    value: Words,
    live: Flags,
    last: Ints,
    begin: Number,
    tag: Number,
    alive: Number,
    keeps: bool,
) -> int:
    """Write versions into the tree. A version replaces the entry of its identity. O(m log entries).

    - keys: the ascending identities of the versions.
    - value, uint64[n]: the value hash of each version.
    - live, uint8[n]: 0 for each version that is a deletion.
    - last, int64[m]: the ascending versions to write from position ``begin`` on. The kernel skips each -1.
    - tag: the part of the new references without the row.
    - alive: the flag in the reference of a live version.
    - keeps: whether the kernel stores an entry for a deletion. If not, a deletion removes the entry.

    Returns the size of ``last`` or, if the tree is full earlier, the position in ``last`` where the writing stopped.

    >>> from ddflow.kernels.ordered_tree import allocate_tree
    >>> arrays, one, live, last = allocate_tree(4, 4), np.ones(1, np.uint64), np.ones(1, np.uint8), np.zeros(1,
    ...     np.int64)
    >>> keys = IdentityAddresses.from_arrays(one, one, np.empty((1, 0), np.uint64))
    >>> write_ordered_entries(Tree.from_arrays(arrays), keys, one, live, last, 0, np.int64(1 << 61), np.int64(1), True)
    1
    """
    leaf, i, dense = np.int64(0), int(begin), _is_dense(tree, last.size)
    while i < last.size:
        row = last[i]
        empty = _load_int64(tree.counters, TOPS) == 0
        if row < 0 or (empty and live[row] == 0 and not keeps):
            i += 1
            continue
        if not _has_room(tree):
            return i
        if empty:
            _create_first_leaf(tree, load_u64(keys.high + np.uint64(row << 3)))
        leaf = _advance_to_leaf(tree, leaf, keys, row, False, dense)
        spot = _find_lower_bound(tree, leaf, keys, row)
        here, size = leaf * LEAF + spot, _load_int64(tree.size, leaf)
        there = spot < size and _compare_entry(tree, here, keys, row) == 0
        if live[row] == 0 and not keeps:
            if there and spot == 0:
                at, c = _descend_to_leaf(tree, keys, row, False)
                _remove_entry(tree, leaf, spot)
                _update_directory(tree, at, c)
                leaf = np.int64(0)
            elif there:
                _remove_entry(tree, leaf, spot)
        elif not there and size == LEAF:
            at, c = _descend_to_leaf(tree, keys, row, False)
            _split_leaf(tree, at, c, spot == LEAF)
            continue
        else:
            if not there:
                _insert_entry(tree, leaf, spot, keys, row)
                if spot == 0:
                    _update_directory(tree, np.int64(0), np.int64(0))
            word = tree.table + np.uint64(here) * tree.width
            store_u64(word + np.uint64(8 * VALUE), value[row])
            store_u64(word + np.uint64(8 * REF), np.uint64(tag | row | (alive if live[row] != 0 else np.int64(0))))
        i += 1
    return i


@kernel
def read_groups(
    tree: Tree,
    keys: IdentityAddresses,  # the identity words that all entries of a group begin with, for each group
    most: Ints,  # int64[groups]: the wanted number of entries of each group
    mask: np.uint64,  # the kernel writes an entry if its reference has any of these bits
    references: Ints,  # int64[room]: the reference of each written entry
    values: Words,  # uint64[room]: the value hash of each written entry
    begins: Ints,  # int64[groups + 1]: where the written entries of each group begin
    words: Words2d,  # uint64[room, w]: the words of each written entry after the first two words; may have size 0
) -> int:
    """Write the first ``most`` entries of each group, in order.

    The signature describes the arguments. Returns the number of entries. If there are more than ``room`` entries, only
    the first ``room`` entries are written. O(g log entries + entries walked).

    >>> from ddflow.kernels.ordered_tree import allocate_tree
    >>> arrays, one, none = allocate_tree(4, 4), np.ones(1, np.uint64), np.empty((1, 0), np.uint64)
    >>> keys, out = IdentityAddresses.from_arrays(one, one[:0], none), (np.empty(0, np.int64), one[:0], np.empty(2,
    ...     np.int64),
    ...     none)
    >>> read_groups(Tree.from_arrays(arrays), keys, np.array([9]), one[0], *out)
    0

    >>> arrays = allocate_tree(4, 4)
    >>> tree, words, none = Tree.from_arrays(arrays), np.array([5, 5, 9], np.uint64), np.empty((3, 0), np.uint64)
    >>> low, live, last = np.array([1, 2, 0], np.uint64), np.ones(3, np.uint8), np.arange(3)
    >>> keys, row = IdentityAddresses.from_arrays(words, low, none), np.int64(1 << 61)
    >>> write_ordered_entries(tree, keys, words, live, last, 0, row, np.int64(1 << 60), False)
    3
    >>> references, values, begins = np.empty(4, np.int64), np.empty(4, np.uint64), np.empty(2, np.int64)
    >>> group = IdentityAddresses.from_arrays(words, low[:0], none)
    >>> read_groups(tree, group, np.array([9]), np.uint64(1 << 60), references, values, begins, none)
    2
    """
    found, near, dense = 0, np.int64(0), _is_dense(tree, begins.size)
    for g in range(begins.size - 1):
        begins[g] = found
        if _load_int64(tree.counters, TOPS) == 0:
            continue
        near = leaf = _advance_to_leaf(tree, near, keys, g, True, dense)
        spot, some, going = _find_lower_bound(tree, leaf, keys, g), np.int64(0), True
        while leaf > 0 and going:
            size = _load_int64(tree.size, leaf)
            while spot < size:
                here = leaf * LEAF + spot
                if some >= most[g] or _compare_entry(tree, here, keys, g) != 0:
                    going = False
                    break
                if _load_entry_word(tree, here, REF) & mask != np.uint64(0):
                    if found < references.size:
                        references[found], values[found] = (
                            np.int64(_load_entry_word(tree, here, REF)),
                            _load_entry_word(tree, here, VALUE),
                        )
                        if words.size != 0:
                            for w in range(words.shape[1]):
                                words[found, w] = _load_entry_word(tree, here, LOW + 1 + w)
                    found += 1
                    some += 1
                spot += 1
            leaf, spot = _load_int64(tree.follows, leaf), np.int64(0)
    begins[begins.size - 1] = found
    return found


@kernel
def walk_ordered_entries(
    tree: Tree, bounds: Words, mask: np.uint64, members: Flags, references: Ints, places: Ints
) -> int:
    """Write the references and places of the entries in a range, in order. Return the number of these entries.

    O(log entries + entries of the range).

    - bounds, uint64[2]: the least and the greatest first word.
    - mask: the bits that every listed reference must have.
    - members, uint8[batch slots]: 1 for each wanted batch. If ``members`` has size 0, all batches are wanted.
    - references, places, int64: the reference and the place of each entry. Both arrays must have space for all entries.

    >>> from ddflow.kernels.ordered_tree import allocate_tree
    >>> arrays, none = allocate_tree(4, 4), np.empty(0, np.int64)
    >>> walk_ordered_entries(Tree.from_arrays(arrays), np.zeros(2, np.uint64), np.uint64(1), np.empty(0, np.uint8),
    ...     none, none)
    0
    """
    found = 0
    if _load_int64(tree.counters, TOPS) == 0:
        return found
    at, c = _descend_to_leaf(
        tree, IdentityAddresses(np.uint64(bounds.ctypes.data), np.uint64(0), np.uint64(0), np.int64(0)), 0, True
    )
    leaf = _load_leaf(tree, at, c)
    while leaf > 0:
        for here in range(leaf * LEAF, leaf * LEAF + _load_int64(tree.size, leaf)):
            word, high = _load_entry_word(tree, here, REF), _load_entry_word(tree, here, ID)
            if high > bounds[1]:
                return found
            if high < bounds[0] or word & mask != mask:
                continue
            if members.size == 0 or members[np.int64(word >> np.uint64(BATCH)) & BATCHES] != 0:
                references[found], places[found] = np.int64(word), here
                found += 1
        leaf = _load_int64(tree.follows, leaf)
    return found


@kernel
def evict_ordered_entries(tree: Tree, bounds: Words, gone: Flags) -> int:
    """Remove the entries of a range that refer to given batches. Return the number of removed entries.

    O(log entries + entries of the range).

    - bounds, uint64[2]: the least and the greatest first word.
    - gone, uint8[batch slots]: 1 for each evicted batch.

    >>> from ddflow.kernels.ordered_tree import allocate_tree
    >>> arrays = allocate_tree(4, 4)
    >>> evict_ordered_entries(Tree.from_arrays(arrays), np.zeros(2, np.uint64), np.ones(1, np.uint8))
    0
    """
    before = _load_int64(tree.counters, USED)
    if _load_int64(tree.counters, TOPS) == 0:
        return 0
    at, c = _descend_to_leaf(
        tree, IdentityAddresses(np.uint64(bounds.ctypes.data), np.uint64(0), np.uint64(0), np.int64(0)), 0, True
    )
    while at < _load_int64(tree.counters, TOPS):
        leaf = _load_leaf(tree, at, c)
        base, size, kept = leaf * LEAF, _load_int64(tree.size, leaf), np.int64(0)
        if _load_entry_word(tree, base, ID) > bounds[1]:
            break
        for spot in range(size):
            high, word = _load_entry_word(tree, base + spot, ID), _load_entry_word(tree, base + spot, REF)
            within = bounds[0] <= high <= bounds[1]
            if within and gone[np.int64(word >> np.uint64(BATCH)) & BATCHES] != 0:
                continue
            if kept != spot:
                _copy_entries(tree, base + kept, base + spot, 1)
            kept += 1
        _add_to_counter(tree, USED, kept - size)
        _store_int64(tree.size, leaf, kept)
        nodes = _load_int64(tree.counters, TOPS)
        _update_directory(tree, at, c)
        if _load_int64(tree.counters, TOPS) < nodes:
            c = np.int64(0)
            continue
        c += np.int64(kept > 0)
        if c == _load_int64(tree.fill, _load_int64(tree.top, at)):
            at, c = at + 1, np.int64(0)
    return int(before - _load_int64(tree.counters, USED))
