"""Keep a collection indexed by key, with at most one live row for each key, for one writer and many readers.

An operator calls `look_up_keys` for the keys of a step. After the complete step has succeeded, the operator calls
`apply_changes`. An arrangement has two layers. In memory, an index finds the current version of a key. When the memory
layer exceeds its share of the budget, a merge moves this layer to files, range by range. The index drops the moved
keys. On disk, a look-up searches the runs from the newest to the oldest.

Guarantees: for every t in [since, upper), a read at t gives the collection of the applied changes. ``since`` never
decreases.
Limits: an arrangement does not resolve events, and does not depend on its operator.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from copy import copy
from dataclasses import replace
from functools import partial
from typing import Any

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
from ddflow.trace.batch import END, ArrangementChange, BatchRange, BatchSlots, RowsByGroup, Run
from ddflow.trace.index import Index, IndexWrite
from ddflow.trace.merge import RowForgetting, RunMerge, TombstoneExpiry, pick_versions_by_sorting
from ddflow.trace.spill import find_groups_in_batch, spill_batch
from ddflow.trace.spine import Spine

FEW = 64
"""Up to this number of values, Python finds the greatest value faster than numpy."""
FAN = 4
"""The number of runs of similar size that are merged on disk. A look-up searches each run."""
PIECE = 1 << 19
"""The number of versions that a read at an older time, or a read on disk, processes at once."""


class Arrangement:
    """A collection indexed by key.

    ``schema``: the columns of a version's payload.  ``wide``: whether identities have two words.  ``words``: the number
    of order words of an entry.  ``keeps``: whether the order of a deleted key must be kept.  ``is_searched``: whether
    index and filters find keys; if False, the arrangement is only read.

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

    def __init__(self, schema: pa.Schema, wide: bool, words: int, keeps: bool = False) -> None:
        self.schema, self.keeps, self.words = schema, keeps, words
        self.index = Index(wide, words, keeps)
        self.slots = BatchSlots(schema)
        self.spine, self.on_disk = Spine(keeps=keeps), Spine(FAN, keeps)
        self.since, self.upper, self.latest = NEVER, NEVER, NEVER
        self.keys, self.tombstones_counted, self.written, self._paid_on_disk, self.piece = 0, 0, 0, 0, PIECE
        self.lapse: TombstoneExpiry | None = None
        self.forgetting: RowForgetting | None = None
        self.is_searched = True

    def make_empty(self, schema: pa.Schema | None = None, words: int | None = None) -> Arrangement:
        """Build an empty arrangement with the same kind of identities. ``words``: the new number of order words."""
        words = self.words if words is None else words
        return Arrangement(schema or self.schema, self.index.wide, words, self.keeps)

    def set_threads(self, threads: Threads) -> None:
        """Share the work among threads.  Results do not depend on the number of threads."""
        self.slots.pool.threads = threads
        self.index.set_threads(threads)

    def look_up_keys(self, high: Words, low: Words, starts: Narrow, arena: Arena | None = None) -> Prior:
        """Look up the keys that begin at the positions ``starts`` of the sorted identities.

        ``arena``: allocates the arrays of the result. O(keys) expected in memory, plus O(keys) for each run on disk.
        """
        prior = self.index.look_up_keys(high, low, starts, arena)
        if self.unindexed_parts:
            self._look_up_keys_on_disk(prior, high, low, starts)
        return prior

    @property
    def is_indexed(self) -> bool:
        """Whether the index has all keys, so that `unindexed_parts` is empty."""
        first = self.spine.items[0] if self.spine.items else None
        return not self.on_disk.items and not (isinstance(first, RunMerge) and first.target is not None)

    @property
    def unindexed_parts(self) -> list[list[BatchRange]]:
        """The parts that are not in the index, newest first.

        These parts are the output of a flush in progress, and the runs on disk.
        """
        lower = [item.parts for item in reversed(self.on_disk.items)] if self.on_disk.items else []
        if self.spine.items and isinstance(flush := self.spine.items[0], RunMerge) and flush.target is not None:
            lower.insert(0, flush.output.parts)
        return lower

    def _look_up_keys_on_disk(self, prior: Prior, high: Words, low: Words, starts: Narrow) -> None:
        """Look up the keys that are not in the index in the runs on disk. Add the results to ``prior``."""
        wanted = np.flatnonzero(prior.reference == 0)
        for parts in self.unindexed_parts:
            ids = high.take(starts.take(wanted))
            for part in parts:
                batch = self.slots[part.slot]
                first = int(np.searchsorted(ids, batch.high[part.begin], side="left"))
                last = int(np.searchsorted(ids, batch.high[part.end - 1], side="right"))
                if first == last:
                    continue
                groups, rows = find_groups_in_batch(batch, part.begin, high, low, starts, wanted[first:last])
                live = batch.live.take(rows).astype(np.int64)
                prior.reference[groups] = rows | (OCCUPIED | part.slot << SLOT) | live * LIVE
                prior.value[groups] = batch.value.take(rows)
                if prior.order.shape[1]:
                    prior.order[groups] = batch.order[rows]
            wanted = wanted[prior.reference.take(wanted) == 0]

    def prepare_row_pool(self, events: Rows | None = None) -> RowPool:
        """Return the pool that references point into.

        The pool has all batches, and the rows of the current step in slot 0. The rows of the step stay in slot 0 until
        `apply_changes`, or until the next call with ``events``.
        """
        if events is not None:
            self.slots.pool.set_batch(0, events)
        return self.slots.pool

    def apply_changes(self, changes: Sequence[ArrangementChange], upper: int, since: int) -> None:
        """Apply the changes of a step, in order of identity.

        After the call, times below ``upper`` are complete. O(versions). The new versions pay for merges in memory,
        which this method advances. Merges to files advance in `spill`.
        """
        spine, pool = self.spine, self.slots.pool
        if upper < self.upper:
            advance_frontier(self.upper, upper)
        self.upper, self.since = upper, max(self.since, since)
        paid = entries = 0
        given = list[ArrangementChange]()
        for change in changes:
            batch = change.batch
            if not batch.high.size:
                continue
            given.append(change)
            time = batch.time
            # The method `max` of an array costs as much as a look-up.
            self.latest = max(self.latest, int(time.max()) if time.size > FEW else max(time.tolist()))
            self.keys += change.live_added
            self.tombstones_counted += change.tombstones_added
            paid += batch.high.size
            entries += change.last.size if batch.mapped is None else 0
        self.written += paid
        if pool.rows[0] is not None:
            pool.set_batch(0, None)
        if given:
            # The time range of the new run begins at the end of the previous run.
            before = spine.items or self.on_disk.items
            lower = before[-1].description.upper if before else NEVER
            self.index.reserve_entries(entries)
            described = tuple.__new__(BatchDescription, (lower, upper, NEVER))
            (spine if given[0].batch.mapped is None else self.on_disk).append(Run(described, self._add_batches(given)))
        if self.slots.summed:
            index, needed = None, spine.oldest_size
        else:
            index, needed = self.index, self.index.used if self.lapse is None else self._needed_version_count
        if self.forgetting is not None and self.is_indexed:
            needed = self.forgetting.subtract_rows(needed, self.written, self.slots, self.parts)
        # Like `Spine.has_enough_new_runs`, inlined because most steps need no plan.
        if len(spine.items) - spine.planned >= spine.fan // 8 or spine.fresh * 16 > needed:
            spine.plan_merges(needed, self.is_indexed)
        # Only `spill` continues a flush. If the disk were full, it would be too late here to refuse the step.
        spine.advance_merges(paid, self.slots, index, self.since, self.latest <= self.since, files=False)
        if self.forgetting is not None:
            self.settle_dropped_rows()

    def forget_rows(self, field: pa.Field, find_bound: Callable[[], int | None]) -> None:
        """Let merges drop the rows whose value in a column is below a bound; see `RowForgetting`."""
        self.forgetting = RowForgetting(field, find_bound)
        self.lapse = self.spine.lapse = self.on_disk.lapse = self.forgetting

    def settle_dropped_rows(self) -> None:
        """Subtract the keys that merges have forgotten, without those that have newer versions. O(dropped keys)."""
        for dropped in () if self.forgetting is None else self.forgetting.take_dropped_versions():
            if not dropped.summed:
                dropped = dropped.select_rows(dropped.last_of_keys)
                every = np.arange(dropped.high.size, dtype=np.int32)
                prior = self.look_up_keys(dropped.high, dropped.low, every)
                dropped = dropped.select_rows(prior.reference & (LIVE - 1) & ~OCCUPIED == 0)
            self.keys -= dropped.count_keys()
            self.tombstones_counted -= self.keeps * int((dropped.live == 0).sum())

    @property
    def merged_index(self) -> Index | None:
        """The index that merges in memory update, or None if there is none."""
        return None if self.slots.summed else self.index

    def _add_batches(self, changes: list[ArrangementChange]) -> list[BatchRange]:
        """Assign slots to the batches of some changes, and write the batches in memory to the index."""
        parts: list[BatchRange] = []
        writes: list[IndexWrite] = []
        for batch, value, last, place, built, *_ in changes:
            if self.slots.lasting and batch.mapped is None and batch.value is not value:
                batch = batch.with_value(value)  # for the file that a commit will write
            part = self.slots.add_batch(batch)
            parts.append(part)
            if batch.mapped is None:
                write = place, built, last, batch.high, batch.low, value, batch.live, batch.order, part.slot
                writes.append(tuple.__new__(IndexWrite, write))
        self.index.write(*writes)
        return parts

    def write_change(self, change: ArrangementChange, batch_store: BatchStore) -> ArrangementChange:
        """Write the change of a step to files on disk.  O(versions).  Raises `SpillFull`, `SpillFailed`.

        Call `spill` with a share of 0 before the step.
        """
        assert not self.spine.items, "what is in memory would be newer than what goes to disk"
        if not len(change.batch):
            return change
        self.index.keep_deletions()
        return change._replace(batch=spill_batch(replace(change.batch, value=change.value), batch_store))

    def set_tombstone_expiry(self, of: Callable[[Ints], Any]) -> None:
        """Let merges drop a deletion if ``of`` selects its order words and its key has no older version."""
        self.lapse = self.spine.lapse = self.on_disk.lapse = TombstoneExpiry(of)

    def update_useless_deletions(self, deletions: int, more: bool = False) -> None:
        """Record the approximate number of deletions that merges may drop.  ``more``: add to the recorded number."""
        if self.lapse is not None:
            self.lapse.here = max(deletions + (self.lapse.here if more else 0), 0)

    @property
    def tombstone_count(self) -> int:
        """The number of deleted keys whose order is kept. The number is approximate if deleted keys expire."""
        return max(self.tombstones_counted - (0 if self.lapse is None else self.lapse.gone), 0)

    @property
    def expired_tombstone_count(self) -> int:
        """The approximate number of deleted keys that merges may drop."""
        return 0 if self.lapse is None else min(self.lapse.here, self.tombstone_count)

    @property
    def _needed_version_count(self) -> int:
        """The approximate number of versions that a merge of all runs would leave."""
        return self.keys + self.tombstone_count - self.expired_tombstone_count

    def spill(self, batch_store: BatchStore, share: int, scratch: int = 1 << 26) -> None:
        """Move versions from memory to disk until the rest fits in ``share`` bytes, and advance the merges on disk.

        A flush starts if the memory exceeds three quarters of the share. New versions pay for a flush as for any merge.
        If the memory exceeds the full share, the flush is finished at once. ``scratch``: the bytes that a piece of a
        merge may use in addition to the share. If a write fails with `SpillFull` or `SpillFailed`, no version is lost,
        and only complete pieces have moved.
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
        # Versions that are added during a flush belong to the next flush.
        if not self._is_flushing and self.nbytes * 4 > share * 3 and self.spine.items:
            self.index.keep_deletions()
            self.spine.keeps = True
            self.spine.items[:] = [RunMerge(self.spine.list_merge_inputs(), not self.on_disk.items, target)]
            self._flush(None if self.nbytes > share else paid)
        needed = self._needed_version_count
        if self.forgetting is not None:
            needed = self.forgetting.subtract_rows(needed, self.written, self.slots, self.parts)
        if self.on_disk.has_enough_new_runs(needed):
            self.on_disk.plan_merges(needed, True, target)
        self.on_disk.advance_merges(paid, self.slots, None, self.since, settled)
        if self.forgetting is not None:
            self.settle_dropped_rows()
        self._paid_on_disk = self.written

    @property
    def _is_flushing(self) -> bool:
        item = self.spine.items[0] if self.spine.items else None
        return isinstance(item, RunMerge) and item.target is not None

    def _flush(self, paid: int | None) -> None:
        """Advance a flush in progress, or finish it if ``paid`` is None.

        After a flush, the flushed run is on disk and not indexed.
        """
        if self._is_flushing:
            settled = self.latest <= self.since
            self.spine.advance_merges(paid, self.slots, self.merged_index, self.since, settled, files=True)
            if isinstance(run := self.spine.items[0], Run):
                self.on_disk.append(run)
                del self.spine.items[0]

    def freeze(self) -> Arrangement:
        """Return a copy for a reader in another thread. The copy refers to the same batches and has no index.

        O(runs + columns * batches). The writer must not be inside a method call.
        """
        out = copy(self)
        out.slots, out.spine, out.on_disk = self.slots.freeze(), self.spine.freeze(), self.on_disk.freeze()
        out.is_searched = False
        return out

    def find_group_at(self, high: Words, low: Words, as_of: int | None) -> RowsByGroup:
        """Find the rows of one group that were live at a time, without the index.

        ``high``, ``low``: the words that the identities of the group begin with.  O(runs log rows).
        """
        self.check_readable(as_of, "a read")
        as_of = max(self.latest, self.since) if as_of is None else as_of
        return RowsByGroup(self._find_live_rows(self.find_group_versions(high, low), as_of))

    def find_group_versions(self, high: Words, low: Words) -> list[BatchRange]:
        """Return all versions whose identities begin with the words ``high`` and ``low``.

        Older versions of a key come first.
        """
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
        """Raise `NotReadable` unless ``as_of`` is a time in [since, upper) or None, which means now."""
        if as_of is not None and not self.since <= as_of < max(self.upper, NEVER + 1):
            raise NotReadable(
                f"{what} as of {as_of}",
                f"it can be read from {format_time(self.since)} up to, not including, {format_time(self.upper)}",
                ErrorText("read at a closed time, or open with a larger ", Option("retain")),
            )

    def read(self, as_of: int | None = None, what: str = "a read") -> pa.Table:
        """Return the live rows as of a time, by default the last closed time, in hash order.

        O(keys) for the current rows; O(versions) for an older time. Raises `NotReadable` if the time is outside [since,
        upper), and `CorruptState` if a key has two values at one time.
        """
        tables = list(self.iterate_rows(as_of, what))
        return pa.concat_tables(tables) if tables else self.schema.empty_table()

    def iterate_rows(self, as_of: int | None = None, what: str = "a read") -> Iterator[pa.Table]:
        """Yield the rows of `read`, one range of identities at a time.

        The arrangement must not change during the iteration.
        """
        for references in self.iterate_live_references(as_of, what):
            yield gather_table(self.slots.pool, references, self.schema)

    def iterate_live_references(self, as_of: int | None = None, what: str = "a read") -> Iterator[Ints]:
        """Yield references to the rows of `iterate_rows`, in the order of identities.  O(versions)."""
        self.check_readable(as_of, what)
        if (as_of is None or as_of >= self.latest) and self.is_searched and not self.unindexed_parts:
            yield self.index.list_entries(live=True)[0]
            return
        # A merge may set the times of versions to ``since``. Therefore a version can have a time later than
        # ``self.latest``.
        as_of = max(self.latest, self.since) if as_of is None else as_of
        for parts in self.iterate_version_ranges():
            yield self._find_live_rows(parts, as_of)

    def iterate_live_ranges(self, ends: Iterable[int]) -> Iterator[pa.Table]:
        """Yield the live rows of each range.  O(versions).

        ``ends``: the last identity of each range, by its first word, ascending.
        """
        whole = [Run(BatchDescription(NEVER, NEVER, NEVER), [part]) for part in self.parts]
        for end in ends:
            parts = [part for run in whole for part in run.split_off(self.slots, end)]
            yield gather_table(self.slots.pool, self._find_live_rows(parts, max(self.latest, self.since)), self.schema)

    def iterate_version_ranges(self) -> Iterator[list[BatchRange]]:
        """Yield all versions, one range of identities at a time.  Older versions of a key come first."""
        # Divide whole runs and not their parts. If the last part of a run is its largest part, all earlier parts would
        # become one range.
        whole = [Run(run.description, list(run.parts)) for run in (*self.on_disk.runs, *self.spine.runs)]
        while any(whole):
            left = sum(map(len, whole))
            largest = max(whole, key=len)
            part = largest.parts[0]
            share = max(len(largest) * self.piece // left, 1)
            last = END if left <= self.piece else int(self.slots[part.slot].high[min(part.begin + share, part.end) - 1])
            yield [part for run in whole for part in run.split_off(self.slots, last)]

    def _find_live_rows(self, parts: list[BatchRange], as_of: int) -> Ints:
        """Find the rows of a range that were live at a time. The range may be empty."""
        if not parts:
            return np.empty(0, np.int64)
        picked = pick_versions_by_sorting(self.slots, parts, NEVER, droppable=False)
        early = picked.time <= as_of
        last = early.copy()
        # A version is current at a time if the next version of its key is later.
        last[:-1] &= picked.first_of_keys[1:] | ~early[1:]
        live: Ints = picked.references[last & (picked.live != 0)]
        return live

    @property
    def parts(self) -> list[BatchRange]:
        """All versions of both layers.  Older versions of a key come first."""
        return [*self.on_disk.parts, *self.spine.parts]

    @property
    def partitions(self) -> Sequence[Arrangement]:
        """The arrangements that hold the versions: this one, or the partitions of a `PartitionedArrangement`."""
        return (self,)

    @property
    def nbytes(self) -> int:
        """Bytes of index and batches in memory."""
        return self.index.nbytes + self.slots.resident

    def _check_invariants(self) -> None:
        """Assert the invariants of index and spine, and that index and spine agree."""
        self.index._check_invariants()
        self._check_runs()
        where, alive = {part.slot: part for part in self.spine.parts}, 0
        for word in self.index.list_entries(live=False)[0]:
            slot, row = (int(word) >> SLOT) & ((1 << 20) - 1), int(word) & ((1 << SLOT) - 1)
            alive += bool(int(word) & LIVE)
            if slot:
                # An entry and its version agree on whether the version is live.
                assert slot in where and where[slot].begin <= row < where[slot].end, (slot, row)
                assert bool(self.slots[slot].live[row]) == bool(int(word) & LIVE), (slot, row)
            else:
                assert not int(word) & LIVE and (not self.index.keeps or self.index.tombstones)
        # The stored count of live keys equals the number of rows that a read returns.
        assert self.keys == sum(table.num_rows for table in self.iterate_rows())
        assert self.unindexed_parts or alive == self.keys

    def _check_runs(self) -> None:
        """Assert the invariants of batches and runs."""
        for batch in self.slots.batches:
            batch._check_invariants()
        parts = self.parts
        for spine in (self.spine, self.on_disk):
            spine._check_invariants(self.slots)
        # Each batch belongs to one part, and slot 0 is reserved for the rows of the step.
        assert sorted(part.slot for part in parts) == [i for i, b in enumerate(self.slots.by_slot) if b is not None]
        assert self.slots.resident == sum(b.nbytes for b in self.slots.batches if b.mapped is None)
