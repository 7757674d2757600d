"""Find, fill, split and remove the leaves of the ordered index, a B+-tree in arrays.

Leaves and nodes are numbered from 1. The number 0 means that there is no leaf or node. Arguments are addresses of
words, because numba counts references to an array at each call, and this counting would dominate the run time.

Guarantees: after each function, the tree is consistent. A new leaf is in the directory and in the chain of leaves. A
removed leaf is neither in the directory nor in the chain. The number of a removed leaf may be used again.

>>> arrays = allocate_tree(leaves=2, width=4)
>>> tree = Tree.from_arrays(arrays)
>>> _create_first_leaf(tree, np.uint64(5))
>>> arrays[-1].tolist()[:5]  # the last leaf that was made, none free, the last node, none free, and one in use
[1, 0, 1, 0, 1]
"""

from typing import Any, NamedTuple, Self

import numpy as np

from ddflow.kernels.arrays import Ints, Words
from ddflow.kernels.compile import kernel
from ddflow.kernels.index import ID, LOW
from ddflow.kernels.pointer import copy_bytes, load_u64, store_u64

Number = Any
LEAF, FAN = 64, 64
"""The maximum number of entries in a leaf, and the maximum number of leaves in a node."""
LEAVES, FREE, NODES, SPARE, TOPS, USED, MOST_LEAVES, MOST_NODES = range(8)
"""Positions of the counters.

The first counters are the last leaf that was created, the first free leaf, the last node that was created, and the
first free node. The other counters are the number of nodes in use, the number of entries, and the space for leaves and
for nodes.
"""


class Tree(NamedTuple):
    """The addresses of a tree's arrays, and the size of an entry in bytes. The caller keeps the arrays alive."""

    table: np.uint64
    size: np.uint64
    follows: np.uint64
    child: np.uint64
    least: np.uint64
    fill: np.uint64
    top: np.uint64
    first: np.uint64
    counters: np.uint64
    width: np.uint64

    @classmethod
    def from_arrays(cls, arrays: list[Words]) -> Self:
        """Get the addresses of the arrays that `allocate_tree` returned."""
        words = [each.ctypes.data for each in arrays] + [8 * arrays[0].shape[1]]
        return cls._make(map(np.uint64, words))


class IdentityAddresses(NamedTuple):
    """The addresses of identities: first words, second words or 0, and ``words`` further words for each row."""

    high: np.uint64
    low: np.uint64
    more: np.uint64
    words: Number

    @classmethod
    def from_arrays(cls, high: Words, low: Words, more: Words | Ints) -> Self:
        """Take the addresses of three arrays: uint64[n], uint64[n] or size 0, and w 64-bit words per row.

        The caller keeps these arrays alive.
        """
        second = np.uint64(low.ctypes.data if low.size else 0)
        beyond = np.uint64(more.ctypes.data if more.shape[1] else 0)
        return cls(np.uint64(high.ctypes.data), second, beyond, np.int64(more.shape[1]))


def allocate_tree(leaves: Number, width: Number) -> list[Words]:
    """Allocate the arrays of an empty tree with space for ``leaves``, in the order of `Tree`'s fields."""
    nodes = max(leaves // (FAN // 2), 1) + 2
    arrays: list[Any] = [np.empty(((leaves + 1) * LEAF, width), np.uint64)]
    sizes = leaves + 1, leaves + 1, (nodes + 1) * FAN, (nodes + 1) * FAN, nodes + 1, nodes + 1, nodes + 1, 8
    arrays += [np.zeros(n, np.uint64) for n in sizes]
    arrays[-1][MOST_LEAVES], arrays[-1][MOST_NODES] = leaves, nodes
    return arrays


@kernel
def _load_int64(base: np.uint64, at: Number) -> Any:
    """Load the number at a position of an array."""
    return np.int64(load_u64(base + np.uint64(at << 3)))


@kernel
def _store_int64(base: np.uint64, at: Number, number: Number) -> None:
    """Store a number at a position of an array."""
    store_u64(base + np.uint64(at << 3), np.uint64(number))


@kernel
def _copy_word(base: np.uint64, to: Number, at: Number) -> None:
    """Copy a word of an array to another position."""
    store_u64(base + np.uint64(to << 3), load_u64(base + np.uint64(at << 3)))


@kernel
def _load_entry_word(tree: Tree, place: Number, word: Number) -> np.uint64:
    """Load a word of an entry."""
    return load_u64(tree.table + np.uint64(place) * tree.width + np.uint64(word << 3))


@kernel
def _copy_entries(tree: Tree, to: Number, place: Number, n: Number) -> None:
    """Copy ``n`` entries to another place."""
    target, at = tree.table + np.uint64(to) * tree.width, tree.table + np.uint64(place) * tree.width
    copy_bytes(target, at, np.uint64(n) * tree.width)


@kernel
def _compare_entry(tree: Tree, place: Number, keys: IdentityAddresses, row: Number) -> int:
    """Compare an entry with the words of a row.

    If the row has fewer words than the entry, compare only as many words as the row has. Return -1, 0 or 1.
    """
    mine, other = _load_entry_word(tree, place, ID), load_u64(keys.high + np.uint64(row << 3))
    if mine != other:
        return -1 if mine < other else 1
    if keys.low == np.uint64(0):
        return 0
    mine, other = _load_entry_word(tree, place, LOW), load_u64(keys.low + np.uint64(row << 3))
    if mine != other:
        return -1 if mine < other else 1
    for w in range(keys.words):
        mine, other = (
            _load_entry_word(tree, place, LOW + 1 + w),
            load_u64(keys.more + np.uint64((row * keys.words + w) << 3)),
        )
        if mine != other:
            return -1 if mine < other else 1
    return 0


@kernel
def _count_words_below(words: np.uint64, n: Number, stride: np.uint64, word: np.uint64) -> Any:
    """Count the ascending words that are less than ``word``.

    The loop has no branches, because the processor could not predict them.
    """
    begin = np.int64(0)
    while n > 0:
        half = (n + 1) >> 1
        begin += half * np.int64(load_u64(words + np.uint64(begin + half - 1) * stride) < word)
        n -= half
    return begin


@kernel
def _find_child(tree: Tree, node: Number, keys: IdentityAddresses, row: Number, strict: bool) -> Any:
    """Find the last child of a node that begins before the words of a row.

    If there is no such child, return the first child. Node 0 is the list of nodes. ``strict``: exclude a child that
    begins with exactly these words.
    """
    words, n = tree.first, _load_int64(tree.counters, TOPS)
    if node > 0:
        words, n = tree.least + np.uint64((node * FAN) << 3), _load_int64(tree.fill, node)
    word = load_u64(keys.high + np.uint64(row << 3))
    found = _count_words_below(words, n, np.uint64(8), word)
    if found < n and load_u64(words + np.uint64(found << 3)) == word:
        while found < n:
            middle = (found + n) >> 1
            leaf = _load_int64(
                tree.child, (node if node > 0 else _load_int64(tree.top, middle)) * FAN + (middle if node > 0 else 0)
            )
            order = _compare_entry(tree, leaf * LEAF, keys, row)
            if order < 0 or (order == 0 and not strict):
                found = middle + 1
            else:
                n = middle
    return max(found - 1, 0)


@kernel
def _descend_to_leaf(tree: Tree, keys: IdentityAddresses, row: Number, strict: bool) -> tuple[Any, Any]:
    """Find the last leaf that begins before the words of a row, or the first leaf if there is no such leaf.

    Return the position of the leaf's node in the list of nodes, and the position of the leaf in the node.
    """
    at = _find_child(tree, np.int64(0), keys, row, strict)
    return at, _find_child(tree, _load_int64(tree.top, at), keys, row, strict)


@kernel
def _load_leaf(tree: Tree, at: Number, c: Number) -> Any:
    """Return a leaf, given the position ``at`` of its node in the list of nodes and its position ``c`` in the node."""
    return _load_int64(tree.child, _load_int64(tree.top, at) * FAN + c)


@kernel
def _find_lower_bound(tree: Tree, leaf: Number, keys: IdentityAddresses, row: Number) -> Any:
    """Count the entries of a leaf that are less than the words of a row."""
    word, base, end = load_u64(keys.high + np.uint64(row << 3)), leaf * LEAF, _load_int64(tree.size, leaf)
    begin = _count_words_below(tree.table + np.uint64(base) * tree.width, end, tree.width, word)
    if begin < end and _load_entry_word(tree, base + begin, ID) == word:
        while begin < end:
            middle = (begin + end) >> 1
            if _compare_entry(tree, base + middle, keys, row) < 0:
                begin = middle + 1
            else:
                end = middle
    return begin


@kernel
def _add_to_counter(tree: Tree, counter: Number, more: Number) -> Any:
    """Add a number to a counter, and return the new value of the counter."""
    now = _load_int64(tree.counters, counter) + more
    _store_int64(tree.counters, counter, now)
    return now


@kernel
def _has_room(tree: Tree) -> Any:
    """Return whether there is space to create a leaf and a node."""
    if (
        _load_int64(tree.counters, LEAVES) == _load_int64(tree.counters, MOST_LEAVES)
        and _load_int64(tree.counters, FREE) == 0
    ):
        return False
    return (
        _load_int64(tree.counters, NODES) < _load_int64(tree.counters, MOST_NODES)
        or _load_int64(tree.counters, SPARE) > 0
    )


@kernel
def _allocate_node_number(tree: Tree, free: Number, made: Number, nexts: np.uint64, stride: Number) -> Any:
    """Return the number of a free leaf or node, or a new number if none is free."""
    number = _load_int64(tree.counters, free)
    if number == 0:
        return _add_to_counter(tree, made, 1)
    _store_int64(tree.counters, free, _load_int64(nexts, number * stride))
    return number


@kernel
def _create_first_leaf(tree: Tree, word: np.uint64) -> None:
    """Create the first leaf of an empty tree."""
    leaf = _allocate_node_number(tree, FREE, LEAVES, tree.follows, 1)
    node = _allocate_node_number(tree, SPARE, NODES, tree.child, FAN)
    _store_int64(tree.size, leaf, 0)
    _store_int64(tree.follows, leaf, 0)
    _store_int64(tree.child, node * FAN, leaf)
    store_u64(tree.least + np.uint64((node * FAN) << 3), word)
    _store_int64(tree.fill, node, 1)
    _store_int64(tree.top, 0, node)
    store_u64(tree.first, word)
    _store_int64(tree.counters, TOPS, 1)


@kernel
def _insert_entry(tree: Tree, leaf: Number, spot: Number, keys: IdentityAddresses, row: Number) -> None:
    """Insert an entry with the words of a row into a leaf that has space."""
    size, here = _load_int64(tree.size, leaf), tree.table + np.uint64(leaf * LEAF + spot) * tree.width
    copy_bytes(here + tree.width, here, np.uint64(size - spot) * tree.width)
    store_u64(here + np.uint64(8 * ID), load_u64(keys.high + np.uint64(row << 3)))
    store_u64(here + np.uint64(8 * LOW), load_u64(keys.low + np.uint64(row << 3)))
    for w in range(keys.words):
        word = load_u64(keys.more + np.uint64((row * keys.words + w) << 3))
        store_u64(here + np.uint64((LOW + 1 + w) << 3), word)
    _store_int64(tree.size, leaf, size + 1)
    _add_to_counter(tree, USED, 1)


@kernel
def _remove_entry(tree: Tree, leaf: Number, spot: Number) -> None:
    """Remove an entry from a leaf."""
    size, here = _load_int64(tree.size, leaf), tree.table + np.uint64(leaf * LEAF + spot) * tree.width
    copy_bytes(here, here + tree.width, np.uint64(size - spot - 1) * tree.width)
    _store_int64(tree.size, leaf, size - 1)
    _add_to_counter(tree, USED, -1)


@kernel
def _split_node(tree: Tree, at: Number, half: Number) -> None:
    """Split a full node: create a node after it, which gets the children from ``half`` on."""
    old, node = _load_int64(tree.top, at), _allocate_node_number(tree, SPARE, NODES, tree.child, FAN)
    for i in range(half, FAN):
        _store_int64(tree.child, node * FAN + i - half, _load_int64(tree.child, old * FAN + i))
        _copy_word(tree.least, node * FAN + i - half, old * FAN + i)
    _store_int64(tree.fill, old, half)
    _store_int64(tree.fill, node, FAN - half)
    for i in range(_load_int64(tree.counters, TOPS), at + 1, -1):
        _store_int64(tree.top, i, _load_int64(tree.top, i - 1))
        _copy_word(tree.first, i, i - 1)
    _store_int64(tree.top, at + 1, node)
    store_u64(tree.first + np.uint64((at + 1) << 3), load_u64(tree.least + np.uint64((node * FAN) << 3)))
    _add_to_counter(tree, TOPS, 1)


@kernel
def _split_leaf(tree: Tree, at: Number, c: Number, ends: bool) -> None:
    """Split a full leaf: move half of its entries, or only the last entry if ``ends``, to a new leaf after it.

    ``ends``: whether the next entry follows all entries of the leaf. With ``ends``, ascending keys fill leaves almost
    completely.
    """
    if _load_int64(tree.fill, _load_int64(tree.top, at)) == FAN:
        half = FAN - 1 if ends and c == FAN - 1 else FAN // 2
        _split_node(tree, at, half)
        if c >= half:
            at, c = at + 1, c - half
    node = _load_int64(tree.top, at)
    leaf, new = _load_int64(tree.child, node * FAN + c), _allocate_node_number(tree, FREE, LEAVES, tree.follows, 1)
    half = LEAF - 1 if ends else LEAF // 2
    _copy_entries(tree, new * LEAF, leaf * LEAF + half, LEAF - half)
    _store_int64(tree.size, leaf, half)
    _store_int64(tree.size, new, LEAF - half)
    _store_int64(tree.follows, new, _load_int64(tree.follows, leaf))
    _store_int64(tree.follows, leaf, new)
    for i in range(_load_int64(tree.fill, node), c + 1, -1):
        _store_int64(tree.child, node * FAN + i, _load_int64(tree.child, node * FAN + i - 1))
        _copy_word(tree.least, node * FAN + i, node * FAN + i - 1)
    _store_int64(tree.child, node * FAN + c + 1, new)
    store_u64(tree.least + np.uint64((node * FAN + c + 1) << 3), _load_entry_word(tree, new * LEAF, ID))
    _store_int64(tree.fill, node, _load_int64(tree.fill, node) + 1)


@kernel
def _update_directory(tree: Tree, at: Number, c: Number) -> None:
    """Write a leaf's first entry to the directory.

    If the leaf is empty, remove the leaf. If this makes the node of the leaf empty, remove the node from the list of
    nodes.
    """
    node = _load_int64(tree.top, at)
    leaf = _load_int64(tree.child, node * FAN + c)
    if _load_int64(tree.size, leaf) > 0:
        store_u64(tree.least + np.uint64((node * FAN + c) << 3), _load_entry_word(tree, leaf * LEAF, ID))
    else:
        _unlink_leaf(tree, at, c)
    if _load_int64(tree.fill, node) > 0:
        store_u64(tree.first + np.uint64(at << 3), load_u64(tree.least + np.uint64((node * FAN) << 3)))
        return
    _store_int64(tree.child, node * FAN, _load_int64(tree.counters, SPARE))
    _store_int64(tree.counters, SPARE, node)
    for i in range(at, _add_to_counter(tree, TOPS, -1)):
        _store_int64(tree.top, i, _load_int64(tree.top, i + 1))
        _copy_word(tree.first, i, i + 1)


@kernel
def _unlink_leaf(tree: Tree, at: Number, c: Number) -> None:
    """Remove a leaf from its node and from the leaf chain."""
    node = _load_int64(tree.top, at)
    leaf = _load_int64(tree.child, node * FAN + c)
    if c > 0:
        _store_int64(tree.follows, _load_int64(tree.child, node * FAN + c - 1), _load_int64(tree.follows, leaf))
    elif at > 0:
        before = _load_int64(tree.top, at - 1)
        last = _load_int64(tree.child, before * FAN + _load_int64(tree.fill, before) - 1)
        _store_int64(tree.follows, last, _load_int64(tree.follows, leaf))
    _store_int64(tree.follows, leaf, _load_int64(tree.counters, FREE))
    _store_int64(tree.counters, FREE, leaf)
    fill = _load_int64(tree.fill, node) - 1
    _store_int64(tree.fill, node, fill)
    for i in range(node * FAN + c, node * FAN + fill):
        _store_int64(tree.child, i, _load_int64(tree.child, i + 1))
        _copy_word(tree.least, i, i + 1)
