"""Merge several runs into one, a range of identities at a time, as far as new versions have paid for.

A merge has two ways to find the versions that stay. If all versions are at or before ``since``, the index lists the
live ones in hash order, without a sort. Else `pick_versions_by_sorting` sorts the versions and prunes them.

Guarantees: at any time the remaining inputs and the output hold the versions of the inputs, except those that no read
at or after ``since`` needs. Their ranges are disjoint, so no version is in two. A step never pays for a whole merge,
and memory becomes free during it. The index points into the inputs and is updated with each piece.
Limits: `spine.choose_merge_start` decides when to merge, and `Target` where the output goes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from ddflow.columns.hashing import NONE, Flags, Ints, Words
from ddflow.columns.rows import Rows, gather_buffers
from ddflow.columns.sorting import sort_by_identity, sort_by_words
from ddflow.errors import CorruptState
from ddflow.kernels.merge import prune_versions
from ddflow.kernels.resolve import LIVE
from ddflow.time import NEVER
from ddflow.trace.batch import (
    END,
    Batch,
    BatchRange,
    BatchSlots,
    Run,
    mark_first_of_keys,
    mark_last_of_keys,
    repeat_value,
)
from ddflow.trace.index import Index

Target = Callable[[Batch], Batch]
"""A function that stores output: returns the batch over a mapped file, or unchanged."""


class TombstoneExpiry:
    """A rule for deleted keys that may be forgotten although orders are kept.

    ``of``: maps order words int64[m, w] to bool[m].  ``gone``: the number of keys that merges have dropped.  ``here``:
    the approximate number of such keys that are still held.
    """

    def __init__(self, of: Callable[[Ints], Any]) -> None:
        self.of, self.gone, self.here = of, 0, 0

    def record_dropped_keys(self, keys: int) -> None:
        """Count keys that a merge has dropped."""
        self.gone, self.here = self.gone + keys, max(self.here - keys, 0)


class PickedVersions(NamedTuple):
    """m versions that stay, sorted by identity, then time."""

    references: Ints
    """int64[m]: references to the rows, without flags."""
    places: Ints
    """int64[m]: the entries of the index that point to them, -1 for none."""
    high: Words
    low: Words
    time: Ints
    live: Flags
    value: Words
    order: Ints
    ordered: bool = False

    @property
    def extra_identity_words(self) -> Ints | None:
        """The words of identities beyond two, None if there are none."""
        return self.order if self.ordered else None

    @property
    def first_of_keys(self) -> Any:
        """bool[m]: the versions that are the first of their keys.  O(m)."""
        return mark_first_of_keys(self.high, self.low, self.extra_identity_words)

    @property
    def last_of_keys(self) -> Any:
        """bool[m]: the versions that are the last of their keys.  O(m)."""
        return mark_last_of_keys(self.high, self.low, self.extra_identity_words)

    def drop_rows(self, out: Any) -> PickedVersions:
        """Return the versions without some, by bool[m].  O(m)."""
        return self.select_rows(~out)

    def select_rows(self, rows: Any) -> PickedVersions:
        """Select versions by position or by bool[m].  O(m)."""
        low = self.low[rows] if self.low.size else self.low
        value = self.value[rows] if self.value.size else self.value
        return PickedVersions(
            self.references[rows],
            self.places[rows],
            self.high[rows],
            low,
            self.time[rows],
            self.live[rows],
            value,
            self.order[rows],
            self.ordered,
        )

    def build_batch(self, slots: BatchSlots, values: bool) -> Batch:
        """Copy the versions to a batch in memory.  O(m) a column.

        ``values``: whether the batch must hold the value hashes.
        """
        pool = slots.pool
        rows = Rows.from_columns(gather_buffers(pool, self.references, pool.schema), pool.shape, self.references.size)
        value = self.value if values else NONE
        return Batch(self.high, self.low, self.time, self.live, value, self.order, rows, ordered=self.ordered)


def pick_versions_by_index(
    index: Index, slots: BatchSlots, parts: list[BatchRange], first: int, last: int, time: int, deletions: bool
) -> PickedVersions:
    """Pick the versions of ``parts`` in [first, last] to keep, if all are at or before since.  O(slots of the range).

    ``time``: the new time of all of them, since earlier history is not distinguished.  ``deletions``: whether deletions
    stay.
    """
    references, places = index.list_entries(not deletions, slots.build_slot_mask(parts), first, last)
    high, low, value, order = index.read_entries(places)
    m = references.size
    live = (references & LIVE != 0).astype(np.uint8) if deletions else repeat_value(1, m, np.uint8)
    columns = high, low, repeat_value(time, m, np.int64), live, value, order
    return PickedVersions(references & (LIVE - 1), places, *columns, slots.ordered)


def pick_versions_by_sorting(
    slots: BatchSlots,
    parts: list[BatchRange],
    since: int,
    droppable: bool,
    index: Index | None = None,
) -> PickedVersions:
    """Sort the versions of some runs in one range, ``parts``, and pick those that stay.  O(versions).

    ``droppable``: whether a lone deletion may be dropped.  ``index``: finds the value hashes and the current versions.
    Raises `CorruptState` if a key has two versions of one time.
    """
    cuts = [(slots[part.slot], part) for part in parts]

    def join_column(name: str) -> Any:
        return np.concatenate([getattr(batch, name)[part.begin : part.end] for batch, part in cuts])

    order = join_column("order")
    if slots.ordered:
        by = sort_by_words(join_column("high"), join_column("low"), order)
    else:
        by = sort_by_identity(join_column("high"), join_column("low") if cuts[0][0].low.size else NONE)
    times, live = join_column("time"), join_column("live")
    kept, groups = np.empty(times.size, np.int64), np.empty(times.size, np.int64)
    n = prune_versions(by.permutation, by.starts, times, live, np.int64(since), droppable, kept, groups)
    if n < 0:
        raise CorruptState(
            "a read or a merge",
            f"a key has two values at one time, {times[-1 - n]}",
            "do not use this state; replay the log into a new one",
        )
    kept, groups = kept[:n], groups[:n]
    rows = by.permutation.take(kept)
    references = np.concatenate([part.references for part in parts]).take(rows)
    low = by.low.take(kept) if by.low.size else NONE
    value, places = NONE, np.full(n, -1)
    if index is not None:
        more = order.take(by.permutation, axis=0) if slots.ordered else None
        places = index.find_entry_places(by.high, by.low, by.starts[:-1], references, groups, more)
        value = np.where(places >= 0, index.read_entries(np.maximum(places, 0))[2], np.uint64(0))
    elif all(batch.value.size for batch, _ in cuts):
        value = join_column("value").take(rows)
    columns = by.high.take(kept), low, times.take(rows), live.take(rows), value, order[rows]
    return PickedVersions(references, places, *columns, slots.ordered)


def mark_useless_deletions(picked: PickedVersions, since: int, lapse: TombstoneExpiry) -> Any:
    """Mark expired deletions that hide no older version, as bool[m].  O(m)."""
    alone = picked.first_of_keys & picked.last_of_keys
    out = alone & (picked.live == 0) & (picked.time <= since)
    out[out] &= lapse.of(picked.order[out])
    return out


class RunMerge:
    """A merge in progress.

    ``inputs``: neighbouring runs, oldest first.  ``whole``: whether no older versions exist anywhere.  ``target``:
    where the output goes, None for memory.  ``output``: the run of merged versions.  ``credit``: the number of versions
    that the merge may still process.

    >>> import pyarrow as pa
    >>> from ddflow.time import BatchDescription
    >>> slots, table = BatchSlots(pa.schema({"k": pa.int64()})), pa.table({"k": [1, 2]})
    >>> old, new = (slots.add_batch(Batch.from_lists([4, 9], [time, time], [True, True], table)) for time in (0, 5))
    >>> merge = RunMerge([Run(BatchDescription(0, 5, 0), [old]), Run(BatchDescription(5, 9, 0), [new])], whole=True)
    >>> merge.advance(2, slots, None, since=5, settled=True, keeps=False)  # two of four, of which one stays
    (2, 1)
    >>> merge.remaining_versions, len(merge.output)
    (2, 1)
    """

    def __init__(self, inputs: list[Run], whole: bool, target: Target | None = None) -> None:
        description = inputs[0].description
        for run in inputs[1:]:
            description = description.merge_with(run.description)
        self.inputs, self.whole, self.target, self.first, self.credit = inputs, whole, target, 0, 0
        self.output = Run(description, [])

    def __len__(self) -> int:
        return self.remaining_versions + len(self.output)

    @property
    def remaining_versions(self) -> int:
        """The number of versions still to process."""
        return sum(map(len, self.inputs))

    @property
    def parts(self) -> list[BatchRange]:
        """All versions, merged or not."""
        return [*self.output.parts, *(part for run in self.inputs for part in run.parts)]

    def advance(
        self,
        rows: int,
        slots: BatchSlots,
        index: Index | None,
        since: int,
        settled: bool,
        keeps: bool,
        lapse: TombstoneExpiry | None = None,
    ) -> tuple[int, int]:
        """Merge the next range of about ``rows`` versions; return the numbers of versions processed and copied.

        ``index``: the one that points into the inputs, if any; it drops entries that move to a target.  ``settled``:
        whether all versions anywhere are at or before ``since``.  ``keeps``: whether deletions must stay, unless
        ``lapse`` lets them expire.  O(versions processed).  If the target raises, nothing has changed.
        """
        target = self.target
        last = self._find_chunk_end(rows, slots)
        kept = [list(run.parts) for run in self.inputs]
        parts = [part for run in self.inputs for part in run.split_off(slots, last)]
        try:
            if index is not None and settled and (self.whole or keeps):
                time = min(since, self.output.description.upper - 1)
                picked = pick_versions_by_index(index, slots, parts, self.first, last, time, keeps)
            else:
                picked = pick_versions_by_sorting(slots, parts, since, self.whole and not keeps, index)
            lapsed = picked.places[:0]
            if lapse is not None and self.whole and keeps:
                out = mark_useless_deletions(picked, since, lapse)
                lapsed, picked = picked.places[out], picked.drop_rows(out) if out.any() else picked
            self._verify_files(parts, slots)
            batch = picked.build_batch(slots, target is not None or slots.lasting) if picked.references.size else None
            if target is not None and batch is not None:
                batch = target(batch)
        except BaseException:
            for run, before in zip(self.inputs, kept, strict=True):
                run.parts, run.size = before, sum(part.end - part.begin for part in before)
            raise
        if batch is not None:
            part = slots.add_batch(batch)
            self.output.add(part)
            if index is not None and target is None:
                index.repoint_entries(picked.places, part.references)
        if lapse is not None and lapsed.size:
            if index is not None and target is None:
                index.drop_tombstones(lapsed[lapsed >= 0])
            lapse.record_dropped_keys(lapsed.size if index is None else int((lapsed >= 0).sum()))
        if index is not None and target is not None:
            index.remove_entries(self.first, last, slots.build_slot_mask(parts))
        for part in parts:
            if part.end == len(slots[part.slot]):
                slots.drop_batch(part.slot)
        self.first = last + 1
        if since > self.output.description.since:
            description = self.output.description
            since = min(since, description.upper - 1) if description.upper > NEVER else since
            self.output.description = description._replace(since=max(since, description.since))
        return sum(part.end - part.begin for part in parts), 0 if batch is None else len(batch)

    def _verify_files(self, parts: list[BatchRange], slots: BatchSlots) -> None:
        """Verify the files that this piece releases, so a flipped bit is found and not copied."""
        for part in parts:
            batch = slots[part.slot]
            file = batch.mapped or slots.files.get(part.slot)
            if file is not None and part.end == len(batch):
                file.verify()

    def _find_chunk_end(self, rows: int, slots: BatchSlots) -> int:
        """Find the greatest identity of the next piece of about ``rows`` versions.

        The piece takes its share of the largest input.
        """
        owed = self.remaining_versions
        if owed <= rows + rows // 4:
            return END
        largest = max(self.inputs, key=len)
        part = largest.parts[0]
        at = min(part.begin + max(len(largest) * rows // owed, 1), part.end) - 1
        return int(slots[part.slot].high[at])
