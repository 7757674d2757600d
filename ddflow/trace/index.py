"""The resident index of an arrangement: identity -> where its current version is, its value's hash, its order.

Invariant: there is an entry for exactly the keys whose current version must be known: live keys, and deleted ones whose
order is kept. (Other deleted keys may linger until the table is rebuilt.) A lookup says what a key holds, and by which
order, without touching payload. Entries are wide rows of words in hash order, so a sorted step walks them front to
back, one cache line a key. Growth copies front to back too. The kernels are in ``kernels.index``; this is the shell
that makes room.

>>> index, none = Index(wide=False, words=0), np.empty(0, np.uint64)
>>> high, both = np.array([1, 2**63], np.uint64), np.array([0, 1])
>>> index.room(2)
>>> index.write(np.array([-1, -1]), index.built, both, high, none, high, np.ones(2, np.uint8), np.empty((2, 0)), slot=3)
>>> prior = index.seek(high, none, both)
>>> (prior.reference & ~(OCCUPIED | LIVE)).tolist() == [3 << 40, (3 << 40) + 1], len(index)
(True, 2)
"""

import numpy as np

from ddflow.columns.arena import Arena
from ddflow.columns.hashing import Flags, Ints, Narrow, Words
from ddflow.columns.threads import ALONE, Threads
from ddflow.kernels import index as kernels
from ddflow.kernels.evict import evict
from ddflow.kernels.gather import SLOT, SLOTS
from ddflow.kernels.resolve import LIVE, OCCUPIED, Prior

SPARE, LEAST, LOAD, CROWDED = 256, 1024, 0.7, 0.85
"""Spare slots at the end, the fewest others, how full they are made, how full some may be while the rest are let go."""
EVERY: Flags = np.empty(0, np.uint8)


class Index:
    """``wide``: identities are two words.  ``words``: order words an entry."""

    def __init__(self, wide: bool, words: int, keeps: bool = True) -> None:
        self.wide, self.words, self.keeps = wide, words, keeps
        self.width = 3 + wide + words
        self.capacity, self.spare, self.used, self.built = LEAST, SPARE, 0, 0
        self.tombstones, self.parted = False, 0
        self.table: Words = np.zeros((self.capacity + self.spare, self.width), np.uint64)

    def __len__(self) -> int:
        return self.used

    @property
    def nbytes(self) -> int:
        """Bytes of the table, free slots included."""
        return int(self.table.nbytes)

    def seek(
        self, high: Words, low: Words, starts: Narrow, arena: Arena | None = None, threads: Threads = ALONE
    ) -> Prior:
        """What the keys at ``starts`` of the sorted identities hold.  O(keys) expected."""
        n, arena = starts.size, arena or Arena()
        empty = arena.room(n)
        prior = Prior(empty(n, np.int64), empty(n, np.int64), empty(n, np.uint64), empty((n, self.words), np.int64))

        def seek(begin: int, end: int) -> None:
            span = prior.span(begin, end)
            kernels.seek(self.table, np.uint64(self.capacity), high, low, starts[begin:end], *span)

        threads.over(n, seek)
        return prior

    def write(
        self,
        place: Ints,
        built: int,
        last: Ints,
        high: Words,
        low: Words,
        value: Words,
        live: Flags,
        order: Ints,
        slot: int,
    ) -> None:
        """Put the last version of each key, replacing what it held.

        ``place``: int64[keys], where `seek` found the keys, when ``built`` was the number of this table (else they are
        looked for again).  ``last``: int64[keys], versions, -1 for none; the columns are by version.  ``slot``: of the
        batch that they are in.  `room` was made before.  O(keys) expected.
        """
        # A deletion that nobody need be told of points at nothing, so that merges may drop its version.
        tag, tombstone = np.int64(OCCUPIED | slot << SLOT), np.int64(0 if self.keeps else OCCUPIED)
        while True:
            here = place if built == self.built else np.full(last.size, -1)
            added = kernels.write(
                self.table,
                np.uint64(self.capacity),
                here,
                last,
                high,
                low,
                value,
                live,
                order,
                tag,
                np.int64(LIVE),
                tombstone,
            )
            if added >= 0:
                self.used += added
                return
            self.spare *= 2
            self._rebuild(self.capacity)

    def redirect(self, places: Ints, references: Ints) -> None:
        """Point the entries at ``places`` (-1: none) to where their rows have moved, their flags unchanged."""
        kernels.redirect(self.table, places, references, np.uint64(OCCUPIED | LIVE))

    def drop_tombstones(self, places: Ints) -> None:
        """Let the entries at ``places``, of deleted keys, point at nothing; they go when the table is rebuilt."""
        kernels.redirect(self.table, places, np.zeros(places.size, np.int64), np.uint64(OCCUPIED))
        self.tombstones = self.tombstones or bool(places.size)

    def evict(self, first: int, last: int, members: Flags) -> None:
        """Take out the entries of a range of identities that point into some batches.  O(slots of the range)."""
        end = np.uint64((last + 1) & (2**64 - 1))
        gone = evict(self.table, np.uint64(self.capacity), np.uint64(first), end, members)
        self.used -= gone
        # Behind the range entries stand as close as before, until all that are to go are gone.
        self.parted = self.parted + gone if end else 0
        self.built += 1

    def places(self, high: Words, low: Words, starts: Narrow, references: Ints, groups: Ints) -> Ints:
        """int64[m]: the slots of the entries that point at ``references`` (without flags), -1 where they do not.

        ``groups``: int64[m], of which of the keys at ``starts`` each reference is.
        """
        prior = self.seek(high, low, starts)
        now = (prior.reference & ~(OCCUPIED | LIVE))[groups]
        there = (now == references) & (prior.reference[groups] != 0)
        return np.where(there, prior.place[groups], -1)

    def walk(self, live: bool, members: Flags = EVERY, first: int = 0, last: int = 2**64 - 1) -> tuple[Ints, Ints]:
        """The references and places of all entries, or the live ones, of a range, in the order of identities.

        ``members``: only those that point into these batches.  O(slots of the range).
        """
        room = min(self.used, ((last - first) * self.table.shape[0] >> 64) + 2 * self.spare) + 2
        while True:
            references, places = np.empty(room, np.int64), np.empty(room, np.int64)
            mask = np.uint64(OCCUPIED | LIVE if live else OCCUPIED)
            n = kernels.walk(
                self.table,
                np.uint64(self.capacity),
                self.wide,
                mask,
                members,
                np.uint64(first),
                np.uint64(last),
                references,
                places,
            )
            if n >= 0:
                return references[:n], places[:n]
            room = self.used + 2

    def entries(self, places: Ints) -> tuple[Words, Words, Words, Ints]:
        """The identities (high, low), value hashes and orders of the entries at ``places``.  O(places)."""
        m = places.size
        out = (
            np.empty(m, np.uint64),
            np.empty(m if self.wide else 0, np.uint64),
            np.empty(m, np.uint64),
            np.empty((m, self.words), np.int64),
        )
        kernels.entries(self.table, places, *out)
        return out

    def keep_deletions(self) -> None:
        """From now on a deleted key keeps its entry: what lies on disk may still hold it.  O(capacity), once."""
        if not self.keeps or self.tombstones:
            self._rebuild(self.capacity)
            self.keeps = True

    def room(self, more: int) -> None:
        """Make room for so many keys, known or not, before they are written.

        Once for all that ascends, however many writes it takes: the first of two would else fill the lower half of a
        table that was made for it alone, and each of its keys would be looked for through all of those before it.
        Amortised O(keys).
        """
        need = self._slots(self.used, more)
        if need > self.capacity:
            if self.tombstones or not self.keeps:
                # What is let go now leaves room: else a table of ever new keys would grow for ever.
                need = self._slots(int((self.table[:, kernels.REF] & self._kept != 0).sum()), more)
            few = need <= self.capacity // 2
            self._rebuild(self.capacity if few else max(need, self.capacity + self.capacity // 2))

    def _slots(self, used: int, more: int) -> int:
        """How many slots so many entries and keys need."""
        return max(int((used + more) / LOAD), int((used + self.parted + more) / CROWDED))

    @property
    def _kept(self) -> np.uint64:
        """Bits of which a reference has one, unless it is of a deleted key that need not be known."""
        return np.uint64(LIVE | (SLOTS << SLOT if self.keeps else 0))

    def _rebuild(self, capacity: int) -> None:
        """Into another table, without the deleted keys whose order need not be kept.

        There is room by count; where it runs out all the same, identities crowd the end, and more spare slots help
        where more capacity would not.
        """
        keep = self._kept
        while True:
            table = np.empty((capacity + self.spare, self.width), np.uint64)
            table.fill(0)
            used = kernels.rebuild(self.table, table, np.uint64(capacity), self.wide, keep)
            if used >= 0:
                self.table, self.capacity, self.used = table, capacity, used
                self.built += 1
                self.tombstones = False
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
