"""Map each identity, in memory, to the current version of its key, to the version's value hash and to its order.

Entries are rows of words in an open-addressing table, in hash order. Therefore a sorted step reads the table from front
to back, one cache line for each key. The table consists of shards, which grow and split one at a time. The kernels are
in ``kernels.index``. The class `Index` allocates the shards.

Guarantees: the index has an entry for each live key, and for each deleted key whose order is kept. A look-up returns
the value hash and the order, and does not read the payload. Results do not depend on the number of threads.
Limits: the entry of a deleted key whose order is not kept can stay until its shard grows.
"""

from collections.abc import Iterator
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

SPARE, LEAST = 256, 1024
"""The number of spare slots at the end of a shard, and the minimum number of home slots."""
SHARD = 1 << 19
"""A shard that would have more entries is split, so that a step that makes a shard larger copies few entries.

In smaller shards, fewer entries are in huge pages of the processor, so look-ups are slower.
"""
FILL, LOAD, SPREAD = 0.45, 0.6, 0.15
"""The load of a new shard, and its maximum load: ``LOAD`` for the least identities, ``SPREAD`` more for the greatest.

Identities are uniform, so shards with the same maximum load would all grow in the same step.
"""
IDENTITIES = 1 << 64
ADDRESS = np.uint64(0), np.uint64(1)
"""The arguments of kernels for places that are addresses."""
WALKED = 8
"""The approximate time, in nanoseconds, to read one entry in a walk over the table."""
EVERY: Flags = np.empty(0, np.uint8)


class IndexWrite(NamedTuple):
    """The last versions of some keys, in order of identity, for `Index.write`."""

    place: Ints
    """int64[keys]: the places of the keys from `Index.look_up_keys`, or -1 for a key without an entry."""
    built: int
    """The number of changes of the shards when `Index.look_up_keys` was called, or 0 if it was not called.

    If a shard has changed since then, the places are searched again.
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

    def __init__(self, wide: bool, words: int, keeps: bool = True) -> None:
        self.wide, self.words, self.keeps = wide, words, keeps
        self.set_threads(ALONE)
        self.width, self.spare, self.used, self.built = 3 + wide + words, SPARE, 0, 1
        self.tombstones, self._bytes = False, 0
        self.tables: dict[int, Words] = {}
        """The memory of each shard, by the shard's first row in the directory."""
        self.directory, self.shift = np.zeros((2, kernels.END + 1), np.uint64), 63
        self._allocate_shards(0, 0, 0, 0)

    def set_threads(self, threads: Threads) -> None:
        """Share the work among threads.  Results do not depend on the number of threads."""
        self.threads, self.least = threads, threads.compute_min_rows_to_split(RESOLVED)

    def __len__(self) -> int:
        return self.used

    @property
    def nbytes(self) -> int:
        """Bytes of the table, including free slots.  O(1)."""
        return self._bytes

    def look_up_keys(self, high: Words, low: Words, starts: Narrow, arena: Arena | None = None) -> Prior:
        """Look up the keys that begin at the positions ``starts`` of the sorted identities.  O(keys) expected."""
        n, arena = starts.size, arena or Arena()
        empty = arena.choose_allocator(n)
        prior = Prior(empty(n, np.int64), empty(n, np.int64), empty(n, np.uint64), empty((n, self.words), np.int64))

        if n < self.least:
            kernels.look_up_keys(*self.probe, high, low, starts, prior.place, prior.reference, prior.value, prior.order)
            return prior

        def seek(begin: int, end: int) -> None:
            place, reference, value, order = prior.slice_keys(begin, end)
            kernels.look_up_keys(*self.probe, high, low, starts[begin:end], place, reference, value, order)

        self.threads.run_spans(n, seek, RESOLVED)
        return prior

    def write(self, *writes: IndexWrite) -> None:
        """Write the last version of each key to the key's entry. O(keys) expected.

        The writes must be in order of identity, and no key may be in more than one write. Writes to different shards
        run in parallel. A shard that is full becomes larger, so a large first write needs `reserve_entries`.
        """
        cuts = [write.last.size for write in writes]
        if len(writes) > 1:
            cuts = [self._find_shared_keys(*pair) for pair in pairwise(writes)] + cuts[-1:]
        self._write_spans([(write, 0, end) for write, end in zip(writes, cuts, strict=True)])
        for write, begin in zip(writes, cuts, strict=True):
            if begin < write.last.size:
                self._write_spans([(write, begin, write.last.size)])

    def _find_shared_keys(self, write: IndexWrite, following: IndexWrite) -> int:
        """Find the first key of a write that is in the first shard of the following write, or the number of keys."""
        if not following.high.size or not write.high.size:
            return 0
        first = self._find_range(int(following.high[0]))[1]
        shared = write.last >= np.searchsorted(write.high, np.uint64(first))
        return int(shared.argmax()) if shared.any() else shared.size

    def _write_spans(self, spans: list[tuple[IndexWrite, int, int]]) -> None:
        """Write the keys from a first to an end position of some writes. No two spans may be in the same shard."""
        while spans:
            added = self.threads.run_in_parallel(self._write_versions, spans)
            left = [
                (write, begin - 1 - new, end) for (write, begin, end), new in zip(spans, added, strict=True) if new < 0
            ]
            for write, begin, _ in left:
                self._make_room(write, begin)
            self.used = int(self.directory[[*self.tables], kernels.USED].sum()) if left else self.used + sum(added)
            spans = left

    def _write_versions(self, write: IndexWrite, begin: int, end: int) -> int:
        """Write the keys of a span, and return the number of new keys, or -1 - n if a shard is full after n keys."""
        place, built, last, high, low, value, live, order, slot = write
        if end - begin < last.size:
            place, last = place[begin:end], last[begin:end]
        # A deletion that does not have to be remembered gets no reference, so merges may drop the deletion's version.
        tag, tombstone = np.int64(OCCUPIED | slot << SLOT), np.int64(0 if self.keeps else OCCUPIED)
        here = place if built == self.built else np.full(last.size, -1)
        return int(
            kernels.write_entries(
                *self.probe, here, last, high, low, value, live, order, tag, np.int64(LIVE), tombstone
            )
        )

    def _make_room(self, write: IndexWrite, begin: int) -> None:
        """Make the shard of the key at ``begin`` large enough for the keys of the write from ``begin`` on."""
        row = int(write.last[begin])
        owner, _, last = self._find_range(int(write.high[row]))
        if self.directory[owner, kernels.USED] < self.directory[owner, kernels.MOST]:
            # Many identities are near the end of the shard. More spare slots help, but more homes would not help.
            self.spare *= 2
        rest = write.last[begin:]
        more = (rest >= row) & (rest < np.searchsorted(write.high, np.uint64(last), side="right"))
        self._rebuild(owner, int(more.sum()))

    def _find_range(self, identity: int) -> tuple[int, int, int]:
        """Return the first row of an identity's shard in the directory, and its least and greatest identity."""
        row = self.directory[identity >> self.shift]
        owner, size = int(row[kernels.OWNER]), 1 << 64 - int(row[kernels.BITS])
        return owner, owner << self.shift, (owner << self.shift) + size - 1

    def _cut_range(self, first: int, last: int) -> Iterator[tuple[int, int, int]]:
        """Cut a range of identities by shards.  Yield the shard's row, and the first and last identity of each part."""
        while first <= last:
            owner, _, end = self._find_range(first)
            yield owner, first, min(end, last)
            first = end + 1

    def _get_table(self, owner: int) -> tuple[Words, np.uint64, np.uint64]:
        """Return the memory, the number of homes and the number of leading bits of a shard."""
        return self.tables[owner], self.directory[owner, kernels.HOMES], self.directory[owner, kernels.BITS]

    def repoint_entries(self, places: Ints, references: Ints) -> None:
        """Set the references of the entries at ``places`` to new references.

        The flags stay. A place of -1 is ignored.
        """
        flags = np.uint64(OCCUPIED | LIVE)
        self.threads.run_spans(
            places.size, lambda a, b: kernels.redirect_entries(*ADDRESS, places[a:b], references[a:b], flags), WALKED
        )

    def drop_tombstones(self, places: Ints) -> None:
        """Clear the references of the deleted keys at ``places``.

        When a shard grows, it loses the entries of these keys.
        """
        kernels.redirect_entries(*ADDRESS, places, np.zeros(places.size, np.int64), np.uint64(OCCUPIED))
        self.tombstones = self.tombstones or bool(places.size)

    def remove_entries(self, first: int, last: int, members: Flags) -> None:
        """Remove the entries of a range of identities that point into the batches of ``members``.

        O(table slots of the range). ``members``: uint8[batch slots], 1 for the slots of these batches.
        """
        for owner, begin, end in self._cut_range(first, last):
            stop = np.uint64((end + 1) & (IDENTITIES - 1))
            gone = evict_entries(*self._get_table(owner), np.uint64(begin), stop, members)
            self.directory[owner, kernels.USED] -= np.uint64(gone)
            self.used -= gone
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
        cuts, n = list(self._cut_range(first, last)), 0
        room = int(self.directory[[owner for owner, _, _ in cuts], kernels.USED].sum()) + 1
        references, places = np.empty(room, np.int64), np.empty(room, np.int64)
        for owner, begin, end in cuts:
            ends = np.uint64(begin), np.uint64(end)
            asked = *self._get_table(owner), self.wide, mask, members, *ends
            n += kernels.walk_entries(*asked, references[n:], places[n:])
        return references[:n], places[:n]

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
            kernels.read_entries(*ADDRESS, places[here], out[0][here], out[1][here], out[2][here], out[3][here])

        self.threads.run_spans(m, span, WALKED)
        return out

    def keep_deletions(self) -> None:
        """Keep the entries of deleted keys from now on, because older versions can be on disk.  O(capacity), once."""
        if not self.keeps or self.tombstones:
            for owner, _, _ in self._cut_range(0, IDENTITIES - 1):
                self._rebuild(owner, 0)
            self.keeps, self.tombstones = True, False

    def reserve_entries(self, more: int) -> None:
        """Make room for many keys before they are written. Some of these keys can already have entries.

        Amortised O(keys). Call this method once for several ascending writes. Without this call, the first write alone
        would make shards larger, whose identities are only those of this write. If ``more`` is less than the number
        of entries, `write` makes shards larger when they are full.
        """
        if more <= self.used:
            return
        for owner, _, _ in self._cut_range(0, IDENTITIES - 1):
            used, most, bits = self.directory[owner, [kernels.USED, kernels.MOST, kernels.BITS]].tolist()
            if used + (more >> bits) > most:
                self._rebuild(owner, more >> bits)

    @property
    def _needed_entry_bits(self) -> np.uint64:
        """A mask of reference bits. An entry is needed if its reference has any bit of the mask."""
        return np.uint64(LIVE | (SLOTS << SLOT if self.keeps else 0))

    def _rebuild(self, owner: int, more: int) -> None:
        """Copy a shard to a new shard with room for ``more`` keys, or to several shards.  O(slots of the shard).

        The new shards do not have the deleted keys whose order need not be kept.
        """
        table, _, bits = self._get_table(owner)
        keep, used = self._needed_entry_bits, int(self.directory[owner, kernels.USED])
        if self.tombstones or not self.keeps:
            # Reuse the slots of dropped deletions, so that a shard that gets only new keys does not grow forever.
            more += int((table[:, kernels.REF] & keep != 0).sum()) - used
        need, parts = used + more, 0
        # If identities are not uniform, splitting does not help, so the directory stays small.
        while need >> parts > SHARD and SHARD << int(bits) + parts < 16 * (self.used + more):
            parts += 1
        while True:
            owner = self._allocate_shards(owner, int(bits), parts, need)
            copied = kernels.copy_entries(table, keep, self.wide, *self.probe)
            if copied >= 0:
                break
            self.spare *= 2
        self.used += copied - used
        self.built += 1

    def _allocate_shards(self, owner: int, bits: int, parts: int, need: int) -> int:
        """Replace a shard by ``2**parts`` empty shards for ``need`` entries.  Return the row of the first new shard."""
        deeper = max(bits + parts - (64 - self.shift), 0)
        if deeper:
            self.directory, self.shift = np.repeat(self.directory, 1 << deeper, axis=0), self.shift - deeper
            self.directory[:, kernels.OWNER] <<= np.uint64(deeper)
            self.tables = {row << deeper: table for row, table in self.tables.items()}
        first, rows = owner << deeper, 1 << 64 - self.shift - bits - parts
        homes = max(int((need >> parts) / FILL), LEAST)
        for row in range(first, first + (rows << parts), rows):
            # New memory is already zero, so np.zeros does not have to write to the memory.
            self.tables[row] = np.zeros((homes + self.spare, self.width), np.uint64)
            most = int(homes * (LOAD + SPREAD * row / len(self.directory)))
            shard = kernels.describe_shard(self.tables[row], homes, bits + parts, row, most)
            self.directory[row : row + rows] = np.array(shard, np.uint64)
        self._bytes = sum(table.nbytes for table in self.tables.values())
        self.probe = self.directory, np.uint64(self.shift), np.uint64(8 * self.width)
        return first

    def _check_invariants(self) -> None:
        """Assert the invariants of the table."""
        columns, ends = [kernels.ID, kernels.LOW] if self.wide else [kernels.ID], list[int]()
        for owner, first, last in self._cut_range(0, IDENTITIES - 1):
            table, homes, bits = self._get_table(owner)
            taken = table[:, kernels.REF] != 0
            # The count is the number of taken slots. The last slot is free.
            assert int(taken.sum()) == self.directory[owner, kernels.USED] and not taken[-1]
            # No identity has two entries.
            assert len(np.unique(table[taken][:, columns], axis=0)) == taken.sum()
            # Each entry is at or after its home slot in its shard, with no empty slot between the two.
            for slot in np.flatnonzero(taken):
                identity = int(table[slot, kernels.ID])
                home = (identity - first) * int(homes) >> 64 - int(bits)
                assert first <= identity <= last and home <= slot and taken[home : slot + 1].all(), (home, slot)
            ends.append(owner)
        assert sorted(self.tables) == ends
        assert self.used == sum(self.directory[owner, kernels.USED] for owner in ends)


class NoIndex(Index):
    """The index of an arrangement whose rows are found by a search. The index has no entries."""

    def __init__(self, words: int) -> None:
        self.wide, self.words, self.keeps, self.used, self.built = True, words, False, 0, 0
        self.tables, self._bytes = {}, 0

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
