"""Groups of the ordered index from their ends: the entries of a group, the last one first.

Invariant: what is written is what `ddflow.kernels.ordered.group_ordered` would write, each group turned round. Leaves
are linked forwards only; the leaf before one is found by the directory.

>>> import numpy as np
>>> from ddflow.kernels.ordered import write_ordered
>>> from ddflow.kernels.ordered_tree import empty_tree
>>> arrays = empty_tree(4, 4)
>>> tree, words, none = Tree.of(arrays), np.array([5, 5, 9], np.uint64), np.empty((3, 0), np.uint64)
>>> low, live, last = np.array([1, 2, 0], np.uint64), np.ones(3, np.uint8), np.arange(3)
>>> keys, row = Identities.of(words, low, none), np.int64(1 << 61)
>>> write_ordered(tree, keys, low, live, last, 0, row, np.int64(1 << 60), False)
3
>>> references, values, begins = np.empty(4, np.int64), np.empty(4, np.uint64), np.empty(2, np.int64)
>>> group = Identities.of(words, low[:0], none)
>>> group_back(tree, group, np.array([9]), 0, np.uint64(1 << 60), references, values, begins, none)
2
>>> values[:2].tolist()
[2, 1]
"""

from typing import Any

import numpy as np

from ddflow.kernels.arrays import Ints, Words
from ddflow.kernels.compile import kernel
from ddflow.kernels.index import LOW, REF, VALUE
from ddflow.kernels.ordered import _ties
from ddflow.kernels.ordered_tree import (
    LEAF,
    TOPS,
    Identities,
    Number,
    Tree,
    _compare,
    _descend,
    _get,
    _leaf_at,
    _word,
)


@kernel
def _behind(tree: Tree, leaf: Number, keys: Identities, row: Number) -> Any:
    """How many entries of a leaf are before the words of a row, or begin with them."""
    begin, end = np.int64(0), _get(tree.size, leaf)
    while begin < end:
        middle = (begin + end) >> 1
        if _compare(tree, leaf * LEAF + middle, keys, row) <= 0:
            begin = middle + 1
        else:
            end = middle
    return begin


@kernel
def group_back(
    tree: Tree,
    keys: Identities,
    most: Ints,
    tied: Number,
    mask: np.uint64,
    references: Ints,
    values: Words,
    begins: Ints,
    words: Words,
) -> int:
    """Write the entries of groups, each from its end, up to ``most`` of a group and those that tie with its last one.

    Arguments, what is written and returned: as of `ddflow.kernels.ordered.group_ordered`.  O(g log entries + entries
    walked).

    >>> from ddflow.kernels.ordered_tree import empty_tree
    >>> arrays, one, none = empty_tree(4, 4), np.ones(1, np.uint64), np.empty((1, 0), np.uint64)
    >>> keys, out = Identities.of(one, one[:0], none), (np.empty(0, np.int64), one[:0], np.empty(2, np.int64), none)
    >>> group_back(Tree.of(arrays), keys, np.array([9]), 0, one[0], *out)
    0
    """
    found, tops = 0, _get(tree.counters, TOPS)
    at: Any
    c: Any
    for g in range(begins.size - 1):
        begins[g] = found
        if tops == 0:
            continue
        at, c = _descend(tree, keys, g, False)
        leaf = _leaf_at(tree, at, c)
        spot, some, going, before = _behind(tree, leaf, keys, g), np.int64(0), True, np.int64(0)
        while going:
            while spot > 0:
                here = leaf * LEAF + spot - 1
                if _compare(tree, here, keys, g) != 0 or (some >= most[g] and not _ties(tree, before, here, tied)):
                    going = False
                    break
                if _word(tree, here, REF) & mask != np.uint64(0):
                    if found < references.size:
                        references[found], values[found] = np.int64(_word(tree, here, REF)), _word(tree, here, VALUE)
                        if words.size != 0:
                            for w in range(words.shape[1]):
                                words[found, w] = _word(tree, here, LOW + 1 + w)
                    found += 1
                    some += 1
                    before = here
                spot -= 1
            if c > 0:
                c -= 1
            elif at > 0:
                at -= 1
                c = _get(tree.fill, _get(tree.top, at)) - 1
            else:
                going = False
            leaf = _leaf_at(tree, at, c)
            spot = _get(tree.size, leaf) if going else np.int64(0)
    begins[begins.size - 1] = found
    return found
