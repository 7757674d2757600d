"""Map each identity, in memory, to the current version of its key, to the version's value hash and to its order.

Entries are rows of words in an open-addressing table, in hash order. Therefore a sorted step reads the table from front
to back, one cache line for each key. The kernels are in ``kernels.index``. The class `Index` allocates and grows the
table.

Guarantees: the index has an entry for each live key, and for each deleted key whose order is kept. A look-up returns
the value hash and the order, and does not read the payload. Results do not depend on the number of threads.
Limits: the entry of a deleted key whose order is not kept can stay until the table is rebuilt.
"""

from collections.abc import Sequence
from functools import partial
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from ddflow.columns.hashing import Flags, Ints, Narrow, Words
from ddflow.columns.layout import Arena
from ddflow.columns.sorting import RESOLVED
from ddflow.columns.threads import ALONE, Threads
from ddflow.kernels import index as kernels
from ddflow.kernels.gather import SLOT, SLOTS
from ddflow.kernels.index import evict_entries
from ddflow.kernels.resolve import LIVE, OCCUPIED, Prior

SPARE, LEAST, LOAD, CROWDED = 256, 1024, 0.7, 0.85
"""The number of spare slots at the end of a shard, the minimum number of non-spare slots, and two maximum loads.

The maximum load of the table is ``CROWDED`` while a merge removes entries, and ``LOAD`` at other times.
"""
SHARED = 1 << 16
IDENTITIES = 1 << 64
WALKED = 8
"""The approximate time, in nanoseconds, to read one entry in a walk over the table."""
EVERY: Flags = np.empty(0, np.uint8)


class IndexWrite(NamedTuple):
    """The last versions of some keys, in order of identity, for `Index.write`."""

    place: Ints
    """int64[keys]: the places of the keys from `Index.look_up_keys`, or -1 for a key without an entry."""
    built: int
    """The number of the index's table when `Index.look_up_keys` was called.

    If the table was rebuilt since then, the places are searched again.
    """
    last: Ints
    """int64[keys]: the row of each key's last version in the columns below, or -1 for a key without a new version."""
    high: Words
    low: Words
    value: Words
    live: Flags
    order: Ints
    slot: int
    """The slot of the batch of the versions."""


class Index:
    """An index over identities.

    ``wide``: whether identities have two words.  ``words``: the number of order words of an entry.  ``keeps``: whether
    deleted keys have entries.

    >>> index, none = Index(wide=False, words=0), np.empty(0, np.uint64)
    >>> high, both = np.array([1, 2**63], np.uint64), np.array([0, 1])
    >>> index.reserve_entries(2)
    >>> columns = high, none, high, np.ones(2, np.uint8), np.empty((2, 0), np.int64)
    >>> index.write(IndexWrite(np.array([-1, -1]), index.built, both, *columns, slot=3))
    >>> prior = index.look_up_keys(high, none, both)
    >>> (prior.reference & ~(OCCUPIED | LIVE)).tolist() == [3 << 40, (3 << 40) + 1], len(index)
    (True, 2)
    """

    shared = SHARED
    """A table with at least this many slots has one shard for each thread."""

    def __init__(self, wide: bool, words: int, keeps: bool = True) -> None:
        self.wide, self.words, self.keeps = wide, words, keeps
        self.set_threads(ALONE)
        self.width, self.shards = 3 + wide + words, 1
        self.capacity, self.spare, self.used, self.built = LEAST, SPARE, 0, 0
        self.tombstones, self.parted = False, 0
        self.table: Words = np.zeros((self.capacity + self.spare, self.width), np.uint64)
        self._cut = np.uint64(LEAST), np.uint64(1)
        self.probe = self.table, *self._cut
        """The first arguments of the kernels that search the table."""

    def set_threads(self, threads: Threads) -> None:
        """Share the work among threads.  Results do not depend on the number of threads."""
        self.threads, self.least = threads, threads.compute_min_rows_to_split(RESOLVED)

    def __len__(self) -> int:
        return self.used

    @property
    def nbytes(self) -> int:
        """Bytes of the table, including free slots."""
        return int(self.table.nbytes)

    def look_up_keys(self, high: Words, low: Words, starts: Narrow, arena: Arena | None = None) -> Prior:
        """Look up the keys that begin at the positions ``starts`` of the sorted identities.  O(keys) expected."""
        n, arena = starts.size, arena or Arena()
        empty = arena.choose_allocator(n)
        prior = Prior(empty(n, np.int64), empty(n, np.int64), empty(n, np.uint64), empty((n, self.words), np.int64))

        if n < self.least:
            kernels.look_up_keys(
                self.table, *self._cut, high, low, starts, prior.place, prior.reference, prior.value, prior.order
            )
            return prior

        def seek(begin: int, end: int) -> None:
            place, reference, value, order = prior.slice_keys(begin, end)
            kernels.look_up_keys(self.table, *self._cut, high, low, starts[begin:end], place, reference, value, order)

        self.threads.run_spans(n, seek, RESOLVED)
        return prior

    def write(self, *writes: IndexWrite) -> None:
        """Write the last version of each key to the key's entry. O(keys) expected.

        Call `reserve_entries` first. No key may be in more than one write. Writes to different shards run in parallel.
        """
        if len(writes) == 1 and (new := self._write_versions(writes[0])) >= 0:
            self.used += new
            return
        apart = self.shards > 1 and len(writes) > 1 and self._is_one_write_per_shard(writes)
        while True:
            added = (
                self.threads.run_in_parallel(self._write_versions, [*zip(writes)])
                if apart
                else list(map(self._write_versions, writes))
            )
            if min(added, default=0) >= 0:
                self.used += sum(added)
                return
            self.spare *= 2
            self._rebuild(self.capacity * self.shards)

    def _write_versions(self, write: IndexWrite) -> int:
        """Apply one write, and return the number of new keys, or -1 if a shard is full."""
        place, built, last, high, low, value, live, order, slot = write
        # A deletion that does not have to be remembered gets no reference, so merges may drop the deletion's version.
        tag, tombstone = np.int64(OCCUPIED | slot << SLOT), np.int64(0 if self.keeps else OCCUPIED)
        here = place if built == self.built else np.full(last.size, -1)
        return int(
            kernels.write_entries(
                self.table, *self._cut, here, last, high, low, value, live, order, tag, np.int64(LIVE), tombstone
            )
        )

    def _is_one_write_per_shard(self, writes: Sequence[IndexWrite]) -> bool:
        """Return whether no two writes go to the same shard. The writes must be in order of identity."""
        some = [each.high for each in writes if each.high.size]
        ends = [(int(high[0]) * self.shards >> 64, int(high[-1]) * self.shards >> 64) for high in some]
        return all(one[1] < other[0] for one, other in pairwise(ends))

    def repoint_entries(self, places: Ints, references: Ints) -> None:
        """Set the references of the entries at ``places`` to new references.

        The flags stay. A place of -1 is ignored.
        """
        flags = np.uint64(OCCUPIED | LIVE)
        self.threads.run_spans(
            places.size, lambda a, b: kernels.redirect_entries(self.table, places[a:b], references[a:b], flags), WALKED
        )

    def drop_tombstones(self, places: Ints) -> None:
        """Clear the references of the deleted keys at ``places``.

        The next rebuild of the table removes the entries of these keys.
        """
        kernels.redirect_entries(self.table, places, np.zeros(places.size, np.int64), np.uint64(OCCUPIED))
        self.tombstones = self.tombstones or bool(places.size)

    def remove_entries(self, first: int, last: int, members: Flags) -> None:
        """Remove the entries of a range of identities that point into the batches of ``members``.

        O(table slots of the range). ``members``: uint8[batch slots], 1 for the slots of these batches.
        """
        end = np.uint64((last + 1) & (2**64 - 1))
        gone = evict_entries(self.table, *self._cut, np.uint64(first), end, members)
        self.used -= gone
        # Until the last range is removed, the entries after the range stay as crowded as before.
        self.parted = self.parted + gone if end else 0
        self.built += 1

    def find_entry_places(self, high: Words, low: Words, starts: Narrow, references: Ints, groups: Ints) -> Ints:
        """Find the places of the entries that point at ``references``, as int64[m].

        If no entry points at a reference, the place is -1. ``references``: int64[m], without flags. ``groups``:
        int64[m], the key of each reference, as a position in ``starts``.
        """
        prior = self.look_up_keys(high, low, starts)
        now = (prior.reference & ~(OCCUPIED | LIVE))[groups]
        there = (now == references) & (prior.reference[groups] != 0)
        return np.where(there, prior.place[groups], -1)

    def list_entries(
        self, live: bool, members: Flags = EVERY, first: int = 0, last: int = 2**64 - 1
    ) -> tuple[Ints, Ints]:
        """Return the references and places of the entries of a range, in hash order.  O(table slots of the range).

        ``live``: whether to return only the entries of live keys.  ``members``: uint8[batch slots], to return only the
        entries that point into batches marked with 1; empty to return all.
        """
        mask = np.uint64(OCCUPIED | LIVE if live else OCCUPIED)
        count = len(self.threads.cut_spans((self.used * (last - first + 1)) >> 64, WALKED))
        cuts = [first + (last - first + 1) * i // count for i in range(count + 1)]
        found = self.threads.run_in_parallel(
            self._list_range_entries, [(mask, members, a, b - 1) for a, b in pairwise(cuts)]
        )
        if count == 1:
            return found[0]
        return np.concatenate([one[0] for one in found]), np.concatenate([one[1] for one in found])

    def _list_range_entries(self, mask: np.uint64, members: Flags, first: int, last: int) -> tuple[Ints, Ints]:
        """Return the references and places of the entries from ``first`` to ``last``, in one thread."""
        room = min(self.used, ((last - first) * self.table.shape[0] >> 64) + 2 * self.spare) + 2
        while True:
            references, places = np.empty(room, np.int64), np.empty(room, np.int64)
            ends = np.uint64(first), np.uint64(last)
            n = kernels.walk_entries(self.table, *self._cut, self.wide, mask, members, *ends, references, places)
            if n >= 0:
                return references[:n], places[:n]
            room = self.used + 2

    def read_entries(self, places: Ints) -> tuple[Words, Words, Words, Ints]:
        """Return the identities (high, low), value hashes and orders of the entries at ``places``.  O(places)."""
        m = places.size
        out = (
            np.empty(m, np.uint64),
            np.empty(m if self.wide else 0, np.uint64),
            np.empty(m, np.uint64),
            np.empty((m, self.words), np.int64),
        )

        def span(begin: int, end: int) -> None:
            here = slice(begin, end)
            kernels.read_entries(self.table, places[here], out[0][here], out[1][here], out[2][here], out[3][here])

        self.threads.run_spans(m, span, WALKED)
        return out

    def keep_deletions(self) -> None:
        """Keep the entries of deleted keys from now on, because older versions can be on disk.  O(capacity), once."""
        if not self.keeps or self.tombstones:
            self._rebuild(self.capacity * self.shards)
            self.keeps = True

    def reserve_entries(self, more: int) -> None:
        """Make room for ``more`` keys before they are written.

        Some of these keys can already have entries. Amortised O(keys). Call this method once for several ascending
        writes. Without this call, the table would grow for the first write alone. The keys of this write would fill
        only the lower half of the table, where each key takes a long search.
        """
        held = self.capacity * self.shards
        if self.used + self.parted + more <= LOAD * held:
            return
        need = self._count_slots(self.used, more)
        if need > held:
            if self.tombstones or not self.keeps:
                # Reuse the slots of dropped deletions, so that a table that gets only new keys does not grow forever.
                need = self._count_slots(int((self.table[:, kernels.REF] & self._needed_entry_bits != 0).sum()), more)
            few = need <= held // 2
            self._rebuild(held if few else max(need, held + held // 2))

    def _count_slots(self, used: int, more: int) -> int:
        """Return the number of slots that ``used`` entries and ``more`` keys need."""
        return max(int((used + more) / LOAD), int((used + self.parted + more) / CROWDED))

    @property
    def _needed_entry_bits(self) -> np.uint64:
        """A mask of reference bits. An entry is needed if its reference has any bit of the mask."""
        return np.uint64(LIVE | (SLOTS << SLOT if self.keeps else 0))

    def _rebuild(self, homes: int) -> None:
        """Copy the table to a new table, without the deleted keys whose order need not be kept.

        The capacity is large enough for the number of entries. If a shard becomes full, many identities are near the
        end of the shard. If a shard is full, more spare slots help, but more capacity would not help.
        """
        keep, shards = self._needed_entry_bits, self.threads.size if homes >= self.shared else 1
        capacity, bounds = -(-homes // shards), [-(-IDENTITIES * i // shards) for i in range(shards + 1)]
        while True:
            # New memory is already zero, so np.zeros does not have to write to the memory.
            table = np.zeros((shards * (capacity + self.spare), self.width), np.uint64)
            cut = *self._cut, table, np.uint64(capacity), np.uint64(shards)
            ends = [(np.uint64(first), np.uint64(end - 1)) for first, end in pairwise(bounds)]
            rebuild = partial(kernels.copy_entries, self.table, *cut)
            used = self.threads.run_in_parallel(rebuild, [(*each, self.wide, keep) for each in ends])
            if min(used) >= 0:
                self.table, self.capacity, self.shards, self.used = table, capacity, shards, sum(used)
                self._cut = cut[-2:]
                self.probe = table, *self._cut
                self.built += 1
                self.tombstones = False
                return
            self.spare *= 2

    def _check_invariants(self) -> None:
        """Assert the invariant of the table."""
        taken = self.table[:, kernels.REF] != 0
        # The count is the number of taken slots.
        assert int(taken.sum()) == self.used, (int(taken.sum()), self.used)
        ids = self.table[taken]
        columns = [kernels.ID, kernels.LOW] if self.wide else [kernels.ID]
        # No identity has two entries.
        assert len(np.unique(ids[:, columns], axis=0)) == self.used
        # Each entry is at or after its home slot in its shard, with no empty slot between the two.
        slots = self.table.shape[0] // self.shards
        for slot in np.flatnonzero(taken):
            shard, rest = divmod(int(self.table[slot, kernels.ID]) * self.shards, IDENTITIES)
            home = shard * slots + (rest * self.capacity >> 64)
            assert home <= slot < (shard + 1) * slots and taken[home : slot + 1].all(), (home, slot)


class NoIndex(Index):
    """The index of an arrangement whose rows are found by a search. The index has no entries."""

    def __init__(self, words: int) -> None:
        self.wide, self.words, self.keeps, self.used, self.built = True, words, False, 0, 0
        self.table = np.empty((0, 3), np.uint64)

    def set_threads(self, threads: Threads) -> None:
        """Do nothing."""

    def reserve_entries(self, more: int) -> None:
        """Do nothing."""

    def write(self, *writes: IndexWrite) -> None:
        """Do nothing."""

    def keep_deletions(self) -> None:
        """Do nothing, because there are no deletions."""

    def list_entries(
        self, live: bool, members: Flags = EVERY, first: int = 0, last: int = 2**64 - 1
    ) -> tuple[Ints, Ints]:
        """Return no entries."""
        return np.empty(0, np.int64), np.empty(0, np.int64)

    def _check_invariants(self) -> None:
        """Do nothing."""
