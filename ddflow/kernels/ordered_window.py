"""Read the ranges (windows) of the ordered index that a change can affect.

A class consists of all entries of a group that have the same order words. The word after the order words is the content
word. A boundary separates two neighbouring classes if each class has a single entry and the content words of these two
entries differ. The window of a place extends from the last boundary before the place to the first boundary after the
place. If there is no boundary on one side, the window extends to the end of the group on this side. Overlapping windows
are combined into one window.

Guarantees: the kernels of this file read no columns.
"""

import numpy as np

from ddflow.kernels.arrays import Ints, Words, Words2d
from ddflow.kernels.compile import kernel
from ddflow.kernels.index import ID, LOW, REF, VALUE
from ddflow.kernels.ordered_tree import (
    LEAF,
    TOPS,
    IdentityAddresses,
    Number,
    Tree,
    _compare_entry,
    _descend_to_leaf,
    _find_lower_bound,
    _load_entry_word,
    _load_int64,
    _load_leaf,
)
from ddflow.kernels.pointer import load_u64


@kernel
def read_windows(
    tree: Tree,
    keys: IdentityAddresses,  # the ascending places
    tied: Number,  # the number of words after the first two words that define a class
    mask: np.uint64,  # the kernel writes an entry if its reference has any of these bits
    segments: Ints,  # int64[places]: the window of each place
    begins: Ints,  # int64[places + 1]: where each window begins; unused elements repeat the end of the last window
    references: Ints,  # int64[room]: the reference of each written entry
    values: Words,  # uint64[room]: the value hash of each written entry
    words: Words2d,  # uint64[room, w]: the words of each written entry after the first two words
) -> int:
    """Write the entries in the windows of ascending places. A place is a prefix of an identity.

    The signature describes the arguments. Returns the number of entries. If there are more than ``room`` entries, only
    the first ``room`` entries are written. O(places log entries + entries of windows).

    >>> from ddflow.kernels.ordered_tree import allocate_tree
    >>> arrays, one = allocate_tree(4, 5), np.ones(1, np.uint64)
    >>> keys, told = IdentityAddresses.from_arrays(one, one, one.reshape(1, 1)), np.empty((0, 1), np.uint64)
    >>> out = np.empty(1, np.int64), np.empty(2, np.int64), np.empty(0, np.int64), one[:0], told
    >>> read_windows(Tree.from_arrays(arrays), keys, np.int64(1), one[0], *out)
    0
    """
    found, windows, runs_on, leaf, spot = 0, 0, False, np.int64(0), np.int64(0)
    for p in range(segments.size):
        if not runs_on:
            begins[windows] = found
            windows += 1
            if _load_int64(tree.counters, TOPS) > 0:
                leaf, spot = _find_window_begin(tree, keys, p, tied, mask)
        segments[p] = windows - 1
        follows = p + 1 < segments.size and _is_same_group(keys, p, p + 1)
        ended, before, single, many = False, np.int64(0), np.int64(0), np.int64(0)
        while leaf > 0 and not ended:
            while spot < _load_int64(tree.size, leaf):
                here = leaf * LEAF + spot
                behind = _compare_entry(tree, here, keys, p) > 0
                if behind and not _is_in_group(tree, here, keys, p):
                    ended = True
                    break
                if _load_entry_word(tree, here, REF) & mask != np.uint64(0):
                    if behind and (before == 0 or not _is_tie(tree, before, here, tied)):
                        if _is_boundary(tree, single, before, many, tied):
                            follows, ended = False, True
                            break
                        single, many = before if many == 1 else np.int64(0), np.int64(0)
                    if follows and _compare_entry(tree, here, keys, p + 1) >= 0:
                        ended = True
                        break
                    if behind:
                        before, many = here, many + 1
                    if found < references.size:
                        references[found], values[found] = (
                            np.int64(_load_entry_word(tree, here, REF)),
                            _load_entry_word(tree, here, VALUE),
                        )
                        for w in range(words.shape[1]):
                            words[found, w] = _load_entry_word(tree, here, LOW + 1 + w)
                    found += 1
                spot += 1
            if not ended:
                leaf, spot = _load_int64(tree.follows, leaf), np.int64(0)
        runs_on = follows
    for window in range(windows, begins.size):
        begins[window] = found
    return found


@kernel
def _find_window_begin(
    tree: Tree, keys: IdentityAddresses, p: Number, tied: Number, mask: np.uint64
) -> tuple[Number, Number]:
    """Find the leaf and the position in the leaf where the window of a place begins.

    >>> from ddflow.kernels.ordered import write_ordered_entries
    >>> from ddflow.kernels.ordered_tree import allocate_tree
    >>> arrays, n = allocate_tree(4, 6), 9
    >>> words = np.array([[at, 5 if at in (3, 4) else at + 10] for at in range(n)], np.uint64)
    >>> tree, same, some = Tree.from_arrays(arrays), np.ones(n, np.uint64), np.arange(n)
    >>> keys, live, row = IdentityAddresses.from_arrays(same, same, words), np.ones(n, np.uint8), np.int64(1 << 61)
    >>> write_ordered_entries(tree, keys, same, live, some, 0, row, np.int64(1 << 60), False)
    9
    >>> place, out = IdentityAddresses.from_arrays(same, same, words[4:, :1].copy()), [np.empty(9, np.int64),
    ...     same.copy()]
    >>> segments, begins, told = np.empty(1, np.int64), np.empty(2, np.int64), np.empty((9, 2), np.uint64)
    >>> read_windows(tree, place, np.int64(1), np.uint64(1 << 60), segments, begins, *out, told)
    4
    >>> told[:4, 0].tolist()
    [3, 4, 5, 6]
    """
    at, c = _descend_to_leaf(tree, keys, p, True)
    leaf = _load_leaf(tree, at, c)
    spot = _find_lower_bound(tree, leaf, keys, p)
    start = last = leaf * LEAF + spot
    before, single, many = np.int64(0), np.int64(0), np.int64(0)
    while True:
        if spot == 0:
            if at == 0 and c == 0:
                break
            if c > 0:
                c -= 1
            else:
                at -= 1
                c = _load_int64(tree.fill, _load_int64(tree.top, at)) - 1
            leaf = _load_leaf(tree, at, c)
            spot = _load_int64(tree.size, leaf)
        spot -= 1
        here = leaf * LEAF + spot
        if not _is_in_group(tree, here, keys, p):
            break
        if _load_entry_word(tree, here, REF) & mask == np.uint64(0):
            continue
        if before == 0 or not _is_tie(tree, before, here, tied):
            if _is_boundary(tree, single, before, many, tied):
                return last // LEAF, last % LEAF
            single, many, last = before if many == 1 else np.int64(0), np.int64(0), start
        before, many, start = here, many + 1, here
    if _is_boundary(tree, single, before, many, tied):
        start = last
    return start // LEAF, start % LEAF


@kernel
def _is_tie(tree: Tree, before: Number, here: Number, tied: Number) -> bool:
    """Return whether two entries of a group tie.

    Entries tie if the first ``tied`` words after their first two words are equal. Entry 0 ties with no entry.
    """
    if before == 0 or _load_entry_word(tree, before, LOW) != _load_entry_word(tree, here, LOW):
        return False
    same = True
    for w in range(tied):
        same = same and _load_entry_word(tree, before, LOW + 1 + w) == _load_entry_word(tree, here, LOW + 1 + w)
    return same


@kernel
def _is_boundary(tree: Tree, single: Number, before: Number, many: Number, tied: Number) -> bool:
    """Return whether a boundary separates a class with one entry from the next class, which has ``many`` entries."""
    if single == 0 or many != 1:
        return False
    return bool(_load_entry_word(tree, single, LOW + 1 + tied) != _load_entry_word(tree, before, LOW + 1 + tied))


@kernel
def _is_in_group(tree: Tree, here: Number, keys: IdentityAddresses, p: Number) -> bool:
    """Return whether an entry belongs to the same group as a place."""
    if _load_entry_word(tree, here, ID) != load_u64(keys.high + np.uint64(p << 3)):
        return False
    return bool(_load_entry_word(tree, here, LOW) == load_u64(keys.low + np.uint64(p << 3)))


@kernel
def _is_same_group(keys: IdentityAddresses, one: Number, other: Number) -> bool:
    """Return whether two places belong to the same group."""
    if load_u64(keys.high + np.uint64(one << 3)) != load_u64(keys.high + np.uint64(other << 3)):
        return False
    return bool(load_u64(keys.low + np.uint64(one << 3)) == load_u64(keys.low + np.uint64(other << 3)))
