"""The resident index of an arrangement: identity -> where its current version is, its value's hash, its order.

Invariant: there is an entry for exactly the keys whose current version must be known: live ones, and deleted ones whose
order is kept.  (Deleted ones whose order is not kept may linger until the table is rebuilt.)  A lookup answers "what
does this key hold, and by which order" without touching payload.  Why that is not trivial: entries are wide rows of
words in hash order, so a sorted step walks them front to back, one cache line a key; growth copies front to back too.
The kernels are in ``kernels.index``; this is the shell that makes room.

>>> import numpy as np
>>> index = Index(wide=False, words=0)
>>> high, none = np.array([1, 2**63], np.uint64), np.empty(0, np.uint64)
>>> index.write(high, none, high, np.array([1 << 62, 1 << 62]), np.empty((2, 0), np.int64))
>>> index.seek(high, none, np.array([1])).reference.tolist() == [1 << 62], len(index)
(True, 2)
"""

from __future__ import annotations

import numpy as np

from ddflow.identity import Ints, Words
from ddflow.kernels import index as kernels
from ddflow.kernels.resolve import LIVE, OCCUPIED, Held

SPARE, LEAST, LOAD = 256, 1024, 0.7


class Index:
    """``wide``: identities are two words.  ``words``: order words an entry."""

    def __init__(self, wide: bool, words: int, keeps: bool = True) -> None:
        self.wide, self.words, self.keeps = wide, words, keeps
        self.width = 3 + wide + words
        self.capacity, self.spare, self.used = LEAST, SPARE, 0
        self.table: Words = np.zeros((self.capacity + self.spare, self.width), np.uint64)

    def __len__(self) -> int:
        return self.used

    @property
    def nbytes(self) -> int:
        """Bytes of the table, free slots included."""
        return int(self.table.nbytes)

    def seek(self, high: Words, low: Words, starts: Ints) -> Held:
        """What the keys at ``starts`` of the sorted identities hold.  O(keys) expected."""
        n = starts.size
        held = Held(np.empty(n, np.int64), np.empty(n, np.uint64), np.empty((n, self.words), np.int64))
        kernels.seek(self.table, np.uint64(self.capacity), high, low, starts, np.empty(n, np.int64), *held)
        return held

    def write(self, high: Words, low: Words, value: Words, reference: Ints, order: Ints) -> None:
        """Put or replace the entries of distinct identities, in hash order.  O(keys) expected, amortised growth."""
        self._make_room(high.size)
        while True:
            added = kernels.write(self.table, np.uint64(self.capacity), high, low, value, reference, order)
            if added >= 0:
                self.used += added
                return
            self.spare *= 2
            self._rebuild(self.capacity)

    def redirect(self, places: Ints, references: Ints) -> None:
        """Point the entries at ``places`` (-1: none) to where their rows have moved, their flags unchanged."""
        kernels.redirect(self.table, places, references, np.uint64(OCCUPIED | LIVE))

    def places(self, high: Words, low: Words, starts: Ints) -> Ints:
        """int64[keys]: the slots of the keys at ``starts`` of the sorted identities, -1 for absent ones."""
        n = starts.size
        place = np.empty(n, np.int64)
        held = Held(np.empty(n, np.int64), np.empty(n, np.uint64), np.empty((n, 0), np.int64))
        kernels.seek(self.table, np.uint64(self.capacity), high, low, starts, place, *held)
        return place

    def references(self, places: Ints) -> Ints:
        """int64[m]: what the entries at ``places`` point at, without flags; -1 for place -1."""
        found = self.table[places, kernels.REF].astype(np.int64) & ~(OCCUPIED | LIVE)
        return np.where(places >= 0, found, -1)

    def walk(self, live: bool) -> tuple[Ints, Ints]:
        """The references and places of all entries, or of the live ones, in the order of identities.  O(capacity)."""
        references, places = np.empty(self.used, np.int64), np.empty(self.used, np.int64)
        mask = np.uint64(OCCUPIED | LIVE if live else OCCUPIED)
        n = kernels.walk(self.table, self.wide, mask, references, places)
        return references[:n], places[:n]

    def _make_room(self, more: int) -> None:
        need = int((self.used + more) / LOAD)
        if need > self.capacity:
            self._rebuild(max(need, self.capacity + self.capacity // 2))

    def _rebuild(self, capacity: int) -> None:
        """Into another table, without the deleted keys whose order need not be kept.

        There is room by count; where it runs out all the same, identities crowd the end, and more spare slots help
        where more capacity would not.
        """
        keep = np.uint64(OCCUPIED if self.keeps else LIVE)
        while True:
            table = np.zeros((capacity + self.spare, self.width), np.uint64)
            used = kernels.rebuild(self.table, table, np.uint64(capacity), self.wide, keep)
            if used >= 0:
                self.table, self.capacity, self.used = table, capacity, used
                return
            self.spare *= 2

    def _check(self) -> None:
        """Assert the invariant of the table."""
        taken = self.table[:, kernels.REF] != 0
        # The count is the number of taken slots.
        assert int(taken.sum()) == self.used, (int(taken.sum()), self.used)
        ids = self.table[taken]
        columns = [kernels.ID, kernels.LOW] if self.wide else [kernels.ID]
        # No identity has two entries.
        assert len(np.unique(ids[:, columns], axis=0)) == self.used
        # Each entry stands at or after its home, with no hole between.
        for slot in np.flatnonzero(taken):
            home = (int(self.table[slot, kernels.ID]) * self.capacity) >> 64
            assert home <= slot and taken[home : slot + 1].all(), (home, slot)
