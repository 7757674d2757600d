"""Index an ordered arrangement in memory.

Identities have several words, entries are in the order of identities, and a group is a prefix of identities.
`OrderedIndex` has the methods of `ddflow.trace.index.Index`. In addition, `OrderedIndex.find_group_rows` returns the
rows of groups in order. The order words of batches in this index are the last words of identities.

Guarantees: a place is the position of an entry in a leaf, valid until the next write. A deletion that does not have to
be remembered is removed at once.
"""

from typing import Any, NamedTuple

import numpy as np

from ddflow.columns.hashing import Flags, Ints, Narrow, Words
from ddflow.columns.layout import Arena
from ddflow.kernels.gather import SLOT
from ddflow.kernels.index import REF, read_entries, redirect_entries
from ddflow.kernels.ordered import (
    evict_ordered_entries,
    look_up_ordered_entries,
    read_groups,
    walk_ordered_entries,
    write_ordered_entries,
)
from ddflow.kernels.ordered_tree import LEAF, LEAVES, MOST_LEAVES, USED, IdentityAddresses, Tree, allocate_tree
from ddflow.kernels.ordered_window import read_windows
from ddflow.kernels.resolve import LIVE, OCCUPIED, Prior
from ddflow.trace.index import EVERY, Index, IndexWrite

FEWEST = 8
"""The number of leaves of a new tree."""
MORE = 4
"""The growth factor of the space for leaves.  Unused space takes no memory."""
SPARSE = 4
"""If the leaves have room for this many times the number of entries, the entries are packed and no leaves are added."""
ALL = (1 << 62) - 1
"""A limit that is greater than the number of entries of any group."""


NO_ROWS: Ints = np.empty(0, np.int64)


class RowsByGroup(NamedTuple):
    """The live rows of g groups, in order within each group. A row has a reference without flags and a multiplicity.

    An array other than ``references`` is empty if nothing reads it.
    """

    references: Ints
    values: Ints = NO_ROWS
    begins: Ints = NO_ROWS
    """int64[g + 1]: the position of the first row of each group, and the number of rows."""
    order: Ints = np.empty((0, 0), np.int64)
    """int64[n, w]: the identity words beyond two, if the caller asked for them."""

    def mark_first_rows(self, tied: int) -> tuple[Any, Any]:
        """Mark the first row of each group, and the first of the rows with equal first ``tied`` words, as bool[n]."""
        heads = np.zeros(self.references.size, np.bool_)
        heads[self.begins[:-1]] = True
        words, first = self.order[:, :tied], heads.copy()
        if words.size:
            first[1:] |= (words[1:] != words[:-1]).any(1)
        return heads, first


def to_identity_words(order: Ints) -> Words:
    """Convert order words to identity words, which are contiguous and unsigned."""
    return np.ascontiguousarray(order).view(np.uint64)


class OrderedIndex(Index):
    """An ordered index.

    ``words``: the number of identity words beyond two.  ``keeps``: whether deletions have entries.

    >>> index = OrderedIndex(words=1)
    >>> high, low, more = np.array([1, 1], np.uint64), np.array([5, 7], np.uint64), np.array([[0], [2]])
    >>> both, value = np.array([0, 1]), np.array([3, 4], np.uint64)
    >>> index.reserve_entries(2)
    >>> index.write(IndexWrite(both, 0, both, high, low, value, np.ones(2, np.uint8), more, slot=3))
    >>> found = index.find_group_rows(high[:1], low[:0])
    >>> found.values.tolist(), found.begins.tolist(), len(index)
    ([3, 4], [0, 2], 2)
    """

    def __init__(self, words: int, keeps: bool = False) -> None:
        self.words, self.wide, self.keeps = words, True, keeps
        self.built, self.tombstones = 0, False
        self._set_arrays(allocate_tree(FEWEST, 4 + words))

    def _set_arrays(self, arrays: list[Words]) -> None:
        self.arrays, self.tree, self.table = arrays, Tree.from_arrays(arrays), arrays[0]

    @property
    def used(self) -> int:  # type: ignore[override]
        """The number of entries."""
        return int(self.arrays[-1][USED])

    @property
    def nbytes(self) -> int:
        """Bytes of the tree, including free places in leaves, but not the unused space for more leaves."""
        table, *others = self.arrays
        return (int(others[-1][LEAVES]) + 1) * LEAF * table.strides[0] + sum(each.nbytes for each in others)

    def set_threads(self, threads: object) -> None:
        """Do nothing, because an ordered index always uses one thread."""

    def look_up_keys(
        self, high: Words, low: Words, starts: Narrow, arena: Arena | None = None, order: Ints | None = None
    ) -> Prior:
        """Look up the keys that begin at the positions ``starts`` of the sorted identities.  O(keys log entries).

        ``order``: the identity words beyond two.
        """
        assert order is not None
        n, empty, more = starts.size, (arena or Arena()).choose_allocator(starts.size), to_identity_words(order)
        prior = Prior(empty(n, np.int64), empty(n, np.int64), empty(n, np.uint64), np.empty((n, 0), np.int64))
        look_up_ordered_entries(
            self.tree, IdentityAddresses.from_arrays(high, low, more), starts, prior.place, prior.reference, prior.value
        )
        return prior

    def find_group_rows(
        self,
        high: Words,
        low: Words,
        order: Ints | None = None,
        most: int = ALL,
        live: bool = True,
        words: bool = False,
    ) -> RowsByGroup:
        """Find the first rows of groups by ascending prefixes. The rows are in order within each group.

        ``low`` of size 0 and ``order`` None make prefixes shorter.  ``most``: the maximum number of rows of each group.
        ``live``: whether to skip deletions; if False, references keep their flags.  ``words``: whether to return the
        words beyond two. O(g log n + rows), for g groups and n entries.
        """
        begins, more = np.empty(high.size + 1, np.int64), np.empty((high.size, 0), np.uint64)
        keys = IdentityAddresses.from_arrays(high, low, more if order is None else (more := to_identity_words(order)))
        mask, room = np.uint64(LIVE if live else OCCUPIED), 2 * high.size + 16
        each = np.full(high.size, most)
        while True:
            references, values = np.empty(room, np.int64), np.empty(room, np.uint64)
            beyond = np.empty((room if words else 0, self.words), np.uint64)
            n = read_groups(self.tree, keys, each, mask, references, values, begins, beyond)
            if n <= room:
                break
            room = n
        references = references[:n] & (LIVE - 1) if live else references[:n]
        return RowsByGroup(references, values[:n].view(np.int64), begins, beyond[:n].view(np.int64))

    def find_windows(self, high: Words, low: Words, order: Ints) -> tuple[RowsByGroup, Ints]:
        """Find the rows of the windows around some places, and the window of each place.

        The places are ascending identity prefixes. A window is the range of rows that a change at a place can affect.
        The word after the words of ``order`` is the content of a row. Neighbours with equal content count as one row;
        `ddflow.kernels.ordered_window` describes this. O(places log entries + rows).
        """
        keys, room = IdentityAddresses.from_arrays(high, low, more := to_identity_words(order)), 8 * high.size + 16
        segments, begins = np.empty(high.size, np.int64), np.empty(high.size + 1, np.int64)
        told = np.int64(more.shape[1]), np.uint64(LIVE), segments, begins
        while True:
            references, values = np.empty(room, np.int64), np.empty(room, np.uint64)
            words = np.empty((room, self.words), np.uint64)
            n = read_windows(self.tree, keys, *told, references, values, words)
            if n <= room:
                break
            room = n
        begins = begins[: int(segments[-1]) + 2] if segments.size else begins
        found = references[:n] & (LIVE - 1)
        return RowsByGroup(found, values[:n].view(np.int64), begins, words[:n].view(np.int64)), segments

    def write(self, *writes: IndexWrite) -> None:
        """Write the last version of each key, as `Index.write` does.  O(keys log entries)."""
        for _, _, last, high, low, value, live, order, slot in writes:
            begin, more = 0, to_identity_words(order)
            while begin < last.size:
                tag = OCCUPIED | slot << SLOT
                keys = IdentityAddresses.from_arrays(high, low, more)
                begin = write_ordered_entries(self.tree, keys, value, live, last, begin, tag, LIVE, self.keeps)
                if begin < last.size:
                    self._add_leaves()
        self.built += 1

    def reserve_entries(self, more: int) -> None:
        """Do nothing, because `write` adds leaves when they are needed."""

    def _add_leaves(self) -> None:
        """Allocate space for more leaves. If the leaves are nearly empty, pack their entries.  O(entries)."""
        leaves = int(self.arrays[-1][MOST_LEAVES])
        if self.used * SPARSE < leaves * LEAF:
            self._pack_entries(leaves)
            return
        bigger = allocate_tree(MORE * leaves, 4 + self.words)
        for old, new in zip(self.arrays[:-1], bigger[:-1], strict=True):
            new[: old.shape[0]] = old
        bigger[-1][:MOST_LEAVES] = self.arrays[-1][:MOST_LEAVES]
        self._set_arrays(bigger)

    def _pack_entries(self, leaves: int) -> None:
        """Copy all entries with a reference into a new tree that has room for ``leaves`` leaves."""
        references, places = self.list_entries(live=False)
        there = references & ~(OCCUPIED | LIVE) != 0
        references, (high, low, value, order) = references[there], self.read_entries(places[there])
        self._set_arrays(allocate_tree(leaves, 4 + self.words))
        n, keys, live = (
            references.size,
            IdentityAddresses.from_arrays(high, low, to_identity_words(order)),
            np.ones(references.size, np.uint8),
        )
        assert (
            write_ordered_entries(
                self.tree, keys, value, live, np.arange(n), 0, np.int64(OCCUPIED), np.int64(LIVE), True
            )
            == n
        )
        self.table[self.list_entries(live=False)[1], REF] = references.view(np.uint64)
        self.tombstones, self.built = False, self.built + 1

    def repoint_entries(self, places: Ints, references: Ints) -> None:
        """Set the references of entries to new references, as `Index.repoint_entries` does."""
        redirect_entries(self.table, places, references, np.uint64(OCCUPIED | LIVE))

    def remove_entries(self, first: int, last: int, members: Flags) -> None:
        """Remove entries of a range, as `Index.remove_entries` does.  O(entries of the range)."""
        evict_ordered_entries(self.tree, np.array([first, last], np.uint64), members)
        self.built += 1

    def list_entries(
        self, live: bool, members: Flags = EVERY, first: int = 0, last: int = 2**64 - 1
    ) -> tuple[Ints, Ints]:
        """Return references and places of a range, as `Index.list_entries` does.  O(entries of the range)."""
        mask, room = np.uint64(OCCUPIED | LIVE if live else OCCUPIED), self.used
        references, places = np.empty(room, np.int64), np.empty(room, np.int64)
        n = walk_ordered_entries(self.tree, np.array([first, last], np.uint64), mask, members, references, places)
        return references[:n], places[:n]

    def read_entries(self, places: Ints) -> tuple[Words, Words, Words, Ints]:
        """Return the columns of entries, as `Index.read_entries` does."""
        m = places.size
        out = (np.empty(m, np.uint64), np.empty(m, np.uint64), np.empty(m, np.uint64))
        order = np.empty((m, self.words), np.int64)
        read_entries(self.table, places, *out, order)
        return *out, order

    def keep_deletions(self) -> None:
        """Keep the entries of deleted keys from now on, as `Index.keep_deletions` does."""
        self.keeps = True

    def _check_invariants(self) -> None:
        """Assert the invariant of the tree."""
        references, places = self.list_entries(live=False)
        # The count is the number of entries.
        assert references.size == self.used, (references.size, self.used)
        high, low, _, order = self.read_entries(places)
        columns = [high, low, *to_identity_words(order).T]
        less, equal = np.zeros(max(self.used - 1, 0), bool), np.ones(max(self.used - 1, 0), bool)
        for column in columns:
            less |= equal & (column[:-1] < column[1:])
            equal &= column[:-1] == column[1:]
        # Entries ascend, and no identity has two entries.
        assert less.all()
        # A look-up of an identity finds the place of its entry.
        found = self.look_up_keys(high, low, np.arange(high.size, dtype=np.int32), order=order)
        assert (found.place == places).all()
        assert int(self.arrays[-1][LEAVES]) <= int(self.arrays[-1][MOST_LEAVES])
