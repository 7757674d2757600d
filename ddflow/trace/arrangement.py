"""An arrangement: a collection with at most one live row a key, kept indexed by key; one writer, many readers.

Invariant: for every t in [since, upper) a read at t is the collection that the applied changes define; ``since`` never
retreats. An operator uses it in two steps: ``seek`` what the keys of its step hold, and, when the whole step has been
computed and nothing was refused, ``apply`` its changes. State is in two layers. The newer one is in memory, and a
resident index says what is current in it; when it outgrows its share of the budget it is merged into a run of files
on disk, range by range, and the index lets go of those keys; there they are searched. So a key is looked up in the
index, then on disk from the newest run to the oldest. An arrangement does not resolve, and does not know its operator.

>>> import numpy as np, pyarrow as pa
>>> from ddflow.trace.batch import Batch
>>> arranged = Arrangement(pa.schema({"k": pa.int64()}), wide=False, words=0)
>>> zero = np.array([0])
>>> batch = Batch.from_lists([5], [3], [True], pa.table({"k": [1]}))
>>> change = ArrangementChange(batch, np.array([5], np.uint64), zero, zero, 0, live_added=1, tombstones_added=0)
>>> arranged.apply_changes([change], upper=4, since=3)
>>> arranged.read().to_pylist(), arranged.since, arranged.upper, arranged.keys
([{'k': 1}], 3, 4, 1)
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from copy import copy
from dataclasses import replace
from functools import partial
from typing import Any, cast

import numpy as np
import pyarrow as pa

from ddflow.columns.hashing import Ints, Narrow, Words
from ddflow.columns.layout import Arena
from ddflow.columns.rows import RowPool, Rows, gather_table
from ddflow.columns.threads import Threads
from ddflow.errors import ErrorText, NotReadable, Option
from ddflow.kernels.gather import SLOT
from ddflow.kernels.resolve import LIVE, OCCUPIED, Prior
from ddflow.storage.files.batch_store import BatchStore
from ddflow.time import NEVER, BatchDescription, advance_frontier, format_time
from ddflow.trace.batch import END, ArrangementChange, BatchRange, BatchSlots, Run
from ddflow.trace.index import Index, IndexWrite
from ddflow.trace.merge import RunMerge, TombstoneExpiry, pick_versions_by_sorting
from ddflow.trace.ordered_index import OrderedIndex
from ddflow.trace.spill import find_groups_in_batch, spill_batch
from ddflow.trace.spine import Spine

FAN = 4
"""How many runs of about one size are merged on disk: each is one more place to search."""
PIECE = 1 << 19
"""Versions that a read at an older time, or on disk, looks at together."""


class Arrangement:
    """``schema``: the columns of a version's payload.  ``wide``: identities of two words.  ``words``: order words an
    entry.  ``keeps``: whether the order of a deleted key must stay.  ``ordered``: identities have these words beyond
    two, and a group of rows is a prefix of words (`ordered_index`).  ``is_searched``: whether index and filters tell
    where a key is; else it is only read.  ``found``: references to all that is read of it, None: it is read whole."""

    def __init__(self, schema: pa.Schema, wide: bool, words: int, keeps: bool = False, ordered: bool = False) -> None:
        self.schema, self.keeps, self.ordered, self.words = schema, keeps, ordered, words
        self.index: Index = OrderedIndex(words, keeps) if ordered else Index(wide, words, keeps)
        self.slots = BatchSlots(schema, ordered)
        self.spine, self.on_disk = Spine(keeps=keeps), Spine(FAN, keeps)
        self.since, self.upper, self.latest = NEVER, NEVER, NEVER
        self.keys, self.tombstones_counted, self.written, self._paid_on_disk, self.piece = 0, 0, 0, 0, PIECE
        self.lapse: TombstoneExpiry | None = None
        self.is_searched, self.found = True, cast("Ints | None", None)

    def make_empty(self, schema: pa.Schema | None = None, words: int | None = None) -> Arrangement:
        """Build an empty arrangement with the same kind of identities.  ``words``: if they are others."""
        words = self.words if words is None else words
        return Arrangement(schema or self.schema, self.index.wide, words, self.keeps, self.ordered)

    def set_threads(self, threads: Threads) -> None:
        """Let threads share the work; results do not depend on it."""
        self.slots.pool.threads = threads
        self.index.set_threads(threads)

    def look_up_keys(
        self, high: Words, low: Words, starts: Narrow, arena: Arena | None = None, order: Ints | None = None
    ) -> Prior:
        """Look up the keys that begin at ``starts`` of the sorted identities; arrays come from ``arena``.

        ``order``: words of identities beyond two.  O(keys) expected in memory; about 40 ns more for each key and run on
        disk.
        """
        prior = self.index.look_up_keys(high, low, starts, arena, order)
        if self.unindexed_parts:
            self._look_up_keys_on_disk(prior, high, low, starts, order)
        return prior

    @property
    def unindexed_parts(self) -> list[list[BatchRange]]:
        """What is not in the index's care, newest first: runs on disk, and before them one that is on its way."""
        lower = [item.parts for item in reversed(self.on_disk.items)] if self.on_disk.items else []
        if self.spine.items and isinstance(flush := self.spine.items[0], RunMerge) and flush.target is not None:
            lower.insert(0, flush.output.parts)
        return lower

    def _look_up_keys_on_disk(self, prior: Prior, high: Words, low: Words, starts: Narrow, order: Ints | None) -> None:
        """Fill in what is held by the keys that the index does not know."""
        wanted = np.flatnonzero(prior.reference == 0)
        for parts in self.unindexed_parts:
            ids = high.take(starts.take(wanted))
            for part in parts:
                batch = self.slots[part.slot]
                first = int(np.searchsorted(ids, batch.high[part.begin], side="left"))
                last = int(np.searchsorted(ids, batch.high[part.end - 1], side="right"))
                if first == last:
                    continue
                groups, rows = find_groups_in_batch(batch, part.begin, high, low, starts, wanted[first:last], order)
                live = batch.live.take(rows).astype(np.int64)
                prior.reference[groups] = rows | (OCCUPIED | part.slot << SLOT) | live * LIVE
                prior.value[groups] = batch.value.take(rows)
                if prior.order.shape[1]:
                    prior.order[groups] = batch.order[rows]
            wanted = wanted[prior.reference.take(wanted) == 0]

    def prepare_row_pool(self, events: Rows | None = None) -> RowPool:
        """Return the pool that references point into: the batches, and the step's rows at 0.

        The step's rows stay there until `apply` or the next ones.
        """
        if events is not None:
            self.slots.pool.set_batch(0, events)
        return self.slots.pool

    def apply_changes(self, changes: Sequence[ArrangementChange], upper: int, since: int) -> None:
        """Take in the computed changes of a step, by ascending identities; times below ``upper`` are complete now.

        O(versions).  The merging in memory that they pay for is done, what goes to files is `spill`'s.
        """
        # From then on nothing was written yet: the new run's description begins there.
        lower = (self.spine if self.spine.items else self.on_disk).upper
        self.upper, self.since = advance_frontier(self.upper, upper), max(self.since, since)
        changes = [change for change in changes if change.batch.high.size]
        paid = entries = 0
        for change in changes:
            self.latest = max(self.latest, int(change.batch.time.max()))
            self.keys += change.live_added
            self.tombstones_counted += change.tombstones_added
            paid += change.batch.high.size
            entries += change.last.size if change.batch.mapped is None else 0
        self.written += paid
        if self.slots.pool.rows[0] is not None:
            self.slots.pool.set_batch(0, None)
        if changes:
            self.index.reserve_entries(entries)
            run = Run(BatchDescription(lower, upper, NEVER), self._add_batches(changes))
            (self.spine if changes[0].batch.mapped is None else self.on_disk).append(run)
        self.spine.plan_merges(
            self.index.used if self.lapse is None else self._needed_version_count, not self.unindexed_parts
        )
        # A flush goes on in `spill`: the disk may refuse it, and nothing can be refused any more here.
        self.spine.advance_merges(paid, self.slots, self.index, self.since, self.latest <= self.since, files=False)

    def _add_batches(self, changes: list[ArrangementChange]) -> list[BatchRange]:
        """Give the batches of some changes their slots, and the index what is in memory."""
        parts: list[BatchRange] = []
        writes: list[IndexWrite] = []
        for batch, value, last, place, built, *_ in changes:
            if self.slots.lasting and batch.mapped is None:
                batch = replace(batch, value=value)  # for the file that a commit will write
            part = self.slots.add_batch(batch)
            parts.append(part)
            if batch.mapped is None:
                writes.append(
                    IndexWrite(place, built, last, batch.high, batch.low, value, batch.live, batch.order, part.slot)
                )
        self.index.write(*writes)
        return parts

    def write_change(self, change: ArrangementChange, batch_store: BatchStore) -> ArrangementChange:
        """Write the change to files, for disk at once; a `spill` with no share must precede the step.

        O(versions).  Raises `SpillFull`, `SpillFailed`.
        """
        assert not self.spine.items, "what is in memory would be newer than what goes to disk"
        if not len(change.batch):
            return change
        self.index.keep_deletions()
        return change._replace(batch=spill_batch(replace(change.batch, value=change.value), batch_store))

    def set_tombstone_expiry(self, of: Callable[[Ints], Any]) -> None:
        """Let merges drop the deletions that ``of`` tells by their orders, as soon as nothing older is held."""
        self.lapse = self.spine.lapse = self.on_disk.lapse = TombstoneExpiry(of)

    def update_useless_deletions(self, deletions: int, more: bool = False) -> None:
        """Note how many deletions merges may drop, about; ``more``: how many more."""
        if self.lapse is not None:
            self.lapse.here = max(deletions + (self.lapse.here if more else 0), 0)

    @property
    def tombstone_count(self) -> int:
        """How many deleted keys hold an order; about, where some of them lapse."""
        return max(self.tombstones_counted - (0 if self.lapse is None else self.lapse.gone), 0)

    @property
    def expired_tombstone_count(self) -> int:
        """How many of those need not be known any more, about: merges drop them."""
        return 0 if self.lapse is None else min(self.lapse.here, self.tombstone_count)

    @property
    def _needed_version_count(self) -> int:
        """Versions that a merge of all would leave, about."""
        return self.keys + self.tombstone_count - self.expired_tombstone_count

    def spill(self, batch_store: BatchStore, share: int, scratch: int = 1 << 26) -> None:
        """Move what is in memory on disk, as far as ``share`` asks for, and go on with merges there.

        ``share``: bytes that it may take in memory.  ``scratch``: bytes that a piece of a merge may take beside.
        Beyond three quarters of the share a flush begins, which is paid for like any merge; beyond all of it the flush
        is finished.  When a write fails nothing is lost: `SpillFull` and
        `SpillFailed` leave all as it was, but for the pieces that were moved whole.
        """
        if not self.spine.items and not self.on_disk.items:
            return
        width = max(
            (self.slots.resident + self.slots.mapped) // max(self.spine.version_count + self.on_disk.version_count, 1),
            32,
        )
        self.piece = self.spine.most = self.on_disk.most = max(scratch // (4 * width + 128), 4096)
        target = partial(spill_batch, batch_store=batch_store)
        paid = self.written - self._paid_on_disk
        settled = self.latest <= self.since
        self._flush(None if self.nbytes > share else paid)
        # What came in while a flush was under way is another's.
        if not self._is_flushing and self.nbytes * 4 > share * 3 and self.spine.items:
            self.index.keep_deletions()
            self.spine.keeps = True
            self.spine.items[:] = [RunMerge(self.spine.list_merge_inputs(), not self.on_disk.items, target)]
            self._flush(None if self.nbytes > share else paid)
        self.on_disk.plan_merges(self._needed_version_count, True, target)
        self.on_disk.advance_merges(paid, self.slots, None, self.since, settled)
        self._paid_on_disk = self.written

    @property
    def _is_flushing(self) -> bool:
        item = self.spine.items[0] if self.spine.items else None
        return isinstance(item, RunMerge) and item.target is not None

    def _flush(self, paid: int | None) -> None:
        """Go on with a flush that is under way, None: to its end.  Its run is on disk then, and not indexed."""
        if self._is_flushing:
            self.spine.advance_merges(paid, self.slots, self.index, self.since, self.latest <= self.since, files=True)
            if isinstance(run := self.spine.items[0], Run):
                self.on_disk.append(run)
                del self.spine.items[0]

    def freeze(self) -> Arrangement:
        """Return what is held now, for a reader of its own thread: batches by reference, and no index.

        O(runs + columns * batches).  Its writer must not be in a call.
        """
        out = copy(self)
        out.slots, out.spine, out.on_disk = self.slots.freeze(), self.spine.freeze(), self.on_disk.freeze()
        out.is_searched = False
        return out

    def narrow_to_group(self, high: Words, low: Words, found: Ints | None, as_of: int | None) -> Arrangement:
        """Return one that reads only the rows of one group: their identity begins with these words.

        ``found``: references to the live rows now, None where they are to be searched for in all runs.  It is good for
        as long as this one does not change.  O(found), or O(runs log rows).
        """
        out = copy(self)
        if found is None:
            self.check_readable(as_of, "a read")
            found = self._find_live_rows(
                self.find_group_versions(high, low), max(self.latest, self.since) if as_of is None else as_of
            )
        out.found = found
        return out

    def find_group_versions(self, high: Words, low: Words) -> list[BatchRange]:
        """Return all versions whose identity begins with these words, older ones of a key before newer ones."""
        found = list[BatchRange]()
        for slot, begin, end in self.parts:
            batch = self.slots[slot]
            for column, word in ((batch.high, high), (batch.low, low)):
                if column.size and word.size:
                    first, last = (np.searchsorted(column[begin:end], word[0], side=side) for side in ("left", "right"))
                    begin, end = begin + int(first), begin + int(last)
            if end > begin:
                found.append(BatchRange(slot, begin, end))
        return found

    def check_readable(self, as_of: int | None, what: str) -> None:
        """Raise `NotReadable` unless ``as_of`` (None: now) is a time in [since, upper)."""
        if as_of is not None and not self.since <= as_of < max(self.upper, NEVER + 1):
            raise NotReadable(
                f"{what} as of {as_of}",
                f"it can be read from {format_time(self.since)} up to, not including, {format_time(self.upper)}",
                ErrorText("read at a closed time, or open with a larger ", Option("retain")),
            )

    def read(self, as_of: int | None = None, what: str = "a read") -> pa.Table:
        """Return the live rows as of a time, by default the last closed one, in hash order.

        O(keys) now; O(versions) at an older time.  Raises `NotReadable` outside [since, upper), `CorruptState` when a
        key has two values at one time.
        """
        tables = list(self.iterate_rows(as_of, what))
        return pa.concat_tables(tables) if tables else self.schema.empty_table()

    def iterate_rows(self, as_of: int | None = None, what: str = "a read") -> Iterator[pa.Table]:
        """Yield the rows of `read`, range by range of identities; it must not change meanwhile."""
        for references in self.iterate_live_references(as_of, what):
            yield gather_table(self.slots.pool, references, self.schema)

    def iterate_live_references(self, as_of: int | None = None, what: str = "a read") -> Iterator[Ints]:
        """Yield references to the rows of `pieces`, in the order of identities.  O(versions)."""
        self.check_readable(as_of, what)
        if self.found is not None:
            yield self.found
            return
        if (as_of is None or as_of >= self.latest) and self.is_searched and not self.unindexed_parts:
            yield self.index.list_entries(live=True)[0]
            return
        # A merge stamps what it settles with a time up to since, which may be after the latest version's.
        as_of = max(self.latest, self.since) if as_of is None else as_of
        for parts in self.iterate_version_ranges():
            yield self._find_live_rows(parts, as_of)

    def iterate_live_ranges(self, ends: Iterable[int]) -> Iterator[pa.Table]:
        """Yield the live rows of each range.  ``ends``: the last first words of the ranges, ascending.

        O(versions).
        """
        whole = [Run(BatchDescription(NEVER, NEVER, NEVER), [part]) for part in self.parts]
        for end in ends:
            parts = [part for run in whole for part in run.split_off(self.slots, end)]
            yield gather_table(self.slots.pool, self._find_live_rows(parts, max(self.latest, self.since)), self.schema)

    def iterate_version_ranges(self) -> Iterator[list[BatchRange]]:
        """All versions, a range of identities at a time, older ones of a key before newer ones."""
        # Of whole runs: the largest part of one may be its last, and all that is before it would be one range.
        whole = [Run(run.description, list(run.parts)) for run in (*self.on_disk.runs, *self.spine.runs)]
        while any(whole):
            left = sum(map(len, whole))
            largest = max(whole, key=len)
            part = largest.parts[0]
            share = max(len(largest) * self.piece // left, 1)
            last = END if left <= self.piece else int(self.slots[part.slot].high[min(part.begin + share, part.end) - 1])
            yield [part for run in whole for part in run.split_off(self.slots, last)]

    def _find_live_rows(self, parts: list[BatchRange], as_of: int) -> Ints:
        """Find the rows of a range that were live at a time; the range may have no versions."""
        if not parts:
            return np.empty(0, np.int64)
        picked = pick_versions_by_sorting(self.slots, parts, NEVER, droppable=False)
        early = picked.time <= as_of
        last = early.copy()
        # A version is the one in force when the next of its key is not yet.
        last[:-1] &= picked.first_of_keys[1:] | ~early[1:]
        live: Ints = picked.references[last & (picked.live != 0)]
        return live

    @property
    def parts(self) -> list[BatchRange]:
        """All versions, older ones of a key before newer ones."""
        return [*self.on_disk.parts, *self.spine.parts]

    @property
    def partitions(self) -> Sequence[Arrangement]:
        """What holds the versions, each key in one: itself, or those that were joined (``joined``)."""
        return (self,)

    @property
    def nbytes(self) -> int:
        """Bytes of index and batches in memory."""
        return self.index.nbytes + self.slots.resident

    def _check_invariants(self) -> None:
        """Assert the invariants of index and spine, and that they fit each other."""
        self.index._check_invariants()
        for batch in self.slots.batches:
            batch._check_invariants()
        parts = self.parts
        for spine in (self.spine, self.on_disk):
            spine._check_invariants(self.slots)
        # Each batch is of one part, and slot 0 is the step's own.
        assert sorted(part.slot for part in parts) == [i for i, b in enumerate(self.slots.by_slot) if b is not None]
        assert self.slots.resident == sum(b.nbytes for b in self.slots.batches if b.mapped is None)
        where, alive = {part.slot: part for part in self.spine.parts}, 0
        for word in self.index.list_entries(live=False)[0]:
            slot, row = (int(word) >> SLOT) & ((1 << 20) - 1), int(word) & ((1 << SLOT) - 1)
            alive += bool(int(word) & LIVE)
            if slot:
                # An entry points at a version that is live or not as it says.
                assert slot in where and where[slot].begin <= row < where[slot].end, (slot, row)
                assert bool(self.slots[slot].live[row]) == bool(int(word) & LIVE), (slot, row)
            else:
                assert not int(word) & LIVE and (not self.index.keeps or self.index.tombstones)
        # Counted as they came and went, the keys are those that a read finds.
        assert self.keys == sum(table.num_rows for table in self.iterate_rows())
        assert self.unindexed_parts or alive == self.keys
