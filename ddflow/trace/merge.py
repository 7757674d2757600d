"""Merge several runs into one, one range of identities at a time. New versions pay for the work of a merge.

A merge has two ways to find the versions to keep. If all versions are at or before ``since``, the index lists the live
versions in hash order, without a sort. In all other cases
`pick_versions_by_sorting` sorts and prunes the versions.

Guarantees: a merge loses no version that a read at or after ``since`` needs. At no time is a version in both an input
and the output. A step never pays for a complete merge, and memory becomes free while the merge is in progress. The
index points into the inputs of the merge, and is updated with each piece.
Limits: `spine.choose_merge_start` decides when to merge, and a `Target` decides where the output is stored.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from ddflow.columns.hashing import NONE, Flags, Ints, Words
from ddflow.columns.order_words import mark_values_below
from ddflow.columns.rows import Rows, gather_buffers, gather_column
from ddflow.columns.sorting import Spans, sort_by_identity, sum_groups
from ddflow.errors import CorruptState
from ddflow.kernels.differences import SummedRows, merge_differences
from ddflow.kernels.merge import prune_versions
from ddflow.kernels.resolve import LIVE
from ddflow.time import NEVER, BatchDescription
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

AHEAD, LEAST = 8, 2048
"""Rows that merges may drop are counted `AHEAD` times while `LEAST` versions, or more, double."""
MERGED = 40
"""The approximate nanoseconds to merge a difference."""
Target = Callable[[Batch], Batch]
"""A function that stores an output batch. The function returns a batch over a mapped file, or the batch unchanged."""


class PickedVersions(NamedTuple):
    """m versions that a merge keeps, sorted by identity, then time."""

    references: Ints
    """int64[m]: references to the rows, without flags."""
    places: Ints
    """int64[m]: the places of the index entries that point to these versions, -1 for none."""
    high: Words
    low: Words
    time: Ints
    live: Flags
    value: Words
    order: Ints
    summed: bool = False

    @property
    def extra_identity_words(self) -> Ints | None:
        """The identity words after the second word. The value is None if identities have at most two words."""
        return self.order if self.summed else None

    @property
    def first_of_keys(self) -> Any:
        """bool[m]: the versions that are the first of their keys.  O(m)."""
        return mark_first_of_keys(self.high, self.low, self.extra_identity_words)

    @property
    def last_of_keys(self) -> Any:
        """bool[m]: the versions that are the last of their keys.  O(m)."""
        return mark_last_of_keys(self.high, self.low, self.extra_identity_words)

    def count_keys(self) -> int:
        """Count the live keys, or add up the diffs.  O(m)."""
        return int(self.value.view(np.int64).sum() if self.summed else (self.last_of_keys & (self.live != 0)).sum())

    def drop_rows(self, out: Any) -> PickedVersions:
        """Return the versions that ``out``, a bool[m], does not mark. O(m)."""
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
            self.summed,
        )

    def build_batch(self, slots: BatchSlots, values: bool) -> Batch:
        """Copy the versions to a batch in memory.  O(m) for each column.

        ``values``: whether the batch must hold the value hashes.
        """
        pool = slots.pool
        rows = Rows.from_columns(gather_buffers(pool, self.references, pool.schema), pool.shape, self.references.size)
        value = self.value if values or slots.summed else NONE
        columns = self.high, self.low, self.time, self.live, value, self.order
        return Batch(*columns, rows, summed=slots.summed)


class TombstoneExpiry:
    """A rule that selects the deleted keys whose order may be forgotten.

    ``of``: a function that maps order words int64[m, w] to bool[m], true for expired keys.  ``gone``: the number of
    deleted keys that merges have dropped.  ``here``: the approximate number of expired keys that are still held.
    """

    forgets_rows = False

    def __init__(self, of: Callable[[Ints], Any]) -> None:
        self.of, self.gone, self.here = of, 0, 0

    def mark_useless_versions(self, picked: PickedVersions, since: int, slots: BatchSlots) -> Any:
        """Mark, as bool[m], expired deletions whose key has no other version. O(m)."""
        del slots
        alone = picked.first_of_keys & picked.last_of_keys
        out = alone & (picked.live == 0) & (picked.time <= since)
        out[out] &= self.of(picked.order[out])
        return out

    def record_dropped_versions(self, dropped: PickedVersions, indexed: bool) -> None:
        """Update the counts after a merge has dropped versions. ``indexed``: whether an index has current versions."""
        keys = int((dropped.places >= 0).sum()) if indexed else dropped.references.size
        self.gone, self.here = self.gone + keys, max(self.here - keys, 0)


class RowForgetting(TombstoneExpiry):
    """A rule that selects the rows below a watermark, and all versions of their keys.

    ``field``: the column of the watermark, which is part of the identity.  ``find_bound``: returns the word below which
    rows are forgotten, or None.  ``dropped``: the versions that merges have dropped, until the arrangement counts them.
    ``rows_here``: the approximate number of rows that merges may drop.  ``scanned``: the number of versions
    that had been written at the last count.
    """

    forgets_rows = True

    def __init__(self, field: pa.Field, find_bound: Callable[[], int | None]) -> None:
        super().__init__(lambda order: np.zeros(order.shape[0], np.bool_))
        self.field, self.find_bound, self.rows_here, self.scanned = field, find_bound, 0, 0
        self.dropped: list[PickedVersions] = []

    def mark_rows_below(self, references: Ints, slots: BatchSlots) -> Any:
        """Mark the rows that are forgotten, as bool[m]. O(m)."""
        if (bound := self.find_bound()) is None:
            return np.zeros(references.size, np.bool_)
        return mark_values_below(gather_column(slots.pool, references, self.field), bound)

    def subtract_rows(self, needed: int, written: int, slots: BatchSlots, parts: list[BatchRange]) -> int:
        """Subtract the rows that merges may drop from the number of needed versions.

        ``written``: the number of versions written so far. The rows are counted after an eighth of the versions is new.
        O(versions), amortised.
        """
        if (written - self.scanned) * AHEAD >= max(sum([part.end - part.begin for part in parts]), LEAST):
            below = (self.mark_rows_below(part.references, slots) for part in parts)
            self.rows_here, self.scanned = sum(int(np.count_nonzero(each)) for each in below), written
        return max(needed - self.rows_here, 0)

    def take_dropped_versions(self) -> list[PickedVersions]:
        """Return the versions that merges have dropped since the last call."""
        out, self.dropped = self.dropped, []
        return out

    def mark_useless_versions(self, picked: PickedVersions, since: int, slots: BatchSlots) -> Any:
        """Mark the versions below the watermark, whatever their times are; see `TombstoneExpiry`.

        A deletion can hold filler instead of a row, so its key's other versions decide, if there are any.
        """
        below = self.mark_rows_below(picked.references, slots)
        if picked.summed or (picked.live != 0).all():
            return below
        of, live = np.cumsum(picked.first_of_keys) - 1, picked.live != 0
        known, least = np.zeros((2, of[-1] + 1), np.bool_)
        known[of[live]], least[of[live]] = True, below[live]
        return np.where(known[of], least[of], below)

    def record_dropped_versions(self, dropped: PickedVersions, indexed: bool) -> None:
        """See `TombstoneExpiry.record_dropped_versions`."""
        # In memory, a newer deletion without an entry can follow a version that is not current.
        self.dropped.append(dropped.select_rows(dropped.places >= 0) if indexed else dropped)
        self.rows_here = max(self.rows_here - dropped.references.size, 0)


def pick_versions_by_index(
    index: Index, slots: BatchSlots, parts: list[BatchRange], first: int, last: int, time: int, deletions: bool
) -> PickedVersions:
    """Pick the versions to keep from the identities [first, last].

    All versions must be at or before since. O(slots of the range). ``parts``: the versions to pick from. ``time``: the
    new time of all picked versions, because reads cannot distinguish earlier times. ``deletions``: whether to keep
    deletions.
    """
    references, places = index.list_entries(not deletions, slots.build_slot_mask(parts), first, last)
    high, low, value, order = index.read_entries(places)
    m = references.size
    live = (references & LIVE != 0).astype(np.uint8) if deletions else repeat_value(1, m, np.uint8)
    columns = high, low, repeat_value(time, m, np.int64), live, value, order
    return PickedVersions(references & (LIVE - 1), places, *columns)


def pick_versions_by_sorting(
    slots: BatchSlots,
    parts: list[BatchRange],
    since: int,
    droppable: bool,
    index: Index | None = None,
) -> PickedVersions:
    """Sort the versions of one range of identities of several runs, and pick the versions to keep.

    Differences are added up instead; see `sum_differences`.

    ``parts``: these versions. O(versions). ``droppable``: whether to drop a deletion at or before ``since`` if its key
    has no other version. ``index``: the index that has the value hashes and the current versions, if any. Raises
    `CorruptState` if a key has two versions with the same time.
    """
    if slots.summed:
        return sum_differences(slots, parts, since)
    cuts = [(slots[part.slot], part) for part in parts]

    def join_column(name: str) -> Any:
        return np.concatenate([getattr(batch, name)[part.begin : part.end] for batch, part in cuts])

    by = sort_by_identity(join_column("high"), join_column("low") if cuts[0][0].low.size else NONE)
    times, live = join_column("time"), join_column("live")
    kept, groups = np.empty(times.size, np.int64), np.empty(times.size, np.int64)
    n = prune_versions(by.permutation, by.starts, times, live, np.int64(since), droppable, kept, groups)
    if n < 0:
        raise CorruptState(
            "a read or a merge",
            f"a key has two values at one time, {times[-1 - n]}",
            "do not use this state; replay the log into a new state",
        )
    kept, groups = kept[:n], groups[:n]
    rows = by.permutation.take(kept)
    references = np.concatenate([part.references for part in parts]).take(rows)
    low = by.low.take(kept) if by.low.size else NONE
    value, places = NONE, np.full(n, -1)
    if index is not None:
        places = index.find_entry_places(by.high, by.low, by.starts[:-1], references, groups)
        there, value = places >= 0, np.zeros(n, np.uint64)
        value[there] = index.read_entries(places[there])[2]
    elif all(batch.value.size for batch, _ in cuts):
        value = join_column("value").take(rows)
    columns = by.high.take(kept), low, times.take(rows), live.take(rows), value, join_column("order")[rows]
    return PickedVersions(references, places, *columns)


def sum_differences(slots: BatchSlots, parts: list[BatchRange], since: int) -> PickedVersions:
    """Merge differences, and add up the diffs of each identity and time.  The sums become the values.

    Times up to ``since`` count as one time, the least of ``since`` and the latest time of the parts.
    O(differences), for few parts.
    """
    words = slots[parts[0].slot].order.shape[1]
    since = min(since, max(int(slots[part.slot].time[part.begin : part.end].max()) for part in parts))
    out = SummedRows.allocate(sum(part.end - part.begin for part in parts), words, grouped=False)

    def merge_range(spans: Spans, out: SummedRows) -> int:
        cut = [(part.slot, part.begin + a, part.begin + b) for part, (a, b) in zip(parts, spans, strict=True) if a < b]
        cuts = np.array(cut, np.int64).reshape(-1, 3)
        return merge_differences(cuts, slots.addresses, np.int64(words), np.int64(since), out)

    highs = [slots[part.slot].high[part.begin : part.end] for part in parts]
    n = sum_groups(highs, slots.pool.threads, MERGED, merge_range, out)
    time, places, live = out.time[:n], repeat_value(-1, n, np.int64), repeat_value(1, n, np.uint8)
    if n and time[0] == time[-1] and (time == time[0]).all():
        time = repeat_value(int(time[0]), n, np.int64)
    columns = out.high[:n], out.low[:n], time, live, out.diff[:n].view(np.uint64), out.more[:n].view(np.int64)
    return PickedVersions(out.reference[:n], places, *columns, summed=True)


class RunMerge:
    """A merge in progress.

    ``inputs``: neighbouring runs, oldest first.  ``whole``: whether no older run exists in any layer.  ``target``: the
    function that stores the output, None for memory.  ``output``: the run of merged versions.  ``first``: the least
    identity that is not merged yet.  ``credit``: the number of versions that the merge is still allowed to process.

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

    record = None  # the record of a merge changes with each step

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
        """The number of input versions that the merge has not processed."""
        return sum([run.size for run in self.inputs])

    @property
    def description(self) -> BatchDescription:
        """The times of the output."""
        return self.output.description

    @property
    def parts(self) -> list[BatchRange]:
        """All versions of the merge: the output, followed by the remaining inputs."""
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
        """Merge the next range of about ``rows`` versions.

        Return the number of processed versions and the number of copied versions. ``index``: the index that points into
        the inputs, if any; the index drops the entries of versions that move to a target. ``settled``: whether all
        versions of the arrangement are at or before ``since``. ``keeps``: whether deletions must stay, unless ``lapse``
        lets them expire. O(versions processed). If the target raises an error, nothing has changed.
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
            dropped = None
            if lapse is not None and self.whole and (keeps or lapse.forgets_rows):
                out = lapse.mark_useless_versions(picked, since, slots)
                if out.any():
                    dropped, picked = picked.select_rows(out), picked.drop_rows(out)
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
        if lapse is not None and dropped is not None:
            if index is not None and target is None:
                index.drop_tombstones(dropped.places[dropped.places >= 0])
            lapse.record_dropped_versions(dropped, index is not None)
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
            self.output.record = None
        return sum(part.end - part.begin for part in parts), 0 if batch is None else len(batch)

    def _verify_files(self, parts: list[BatchRange], slots: BatchSlots) -> None:
        """Verify each file that ends in this piece, so that a flipped bit is found before the file is dropped."""
        for part in parts:
            batch = slots[part.slot]
            file = batch.mapped or slots.files.get(part.slot)
            if file is not None and part.end == len(batch):
                file.verify()

    def _find_chunk_end(self, rows: int, slots: BatchSlots) -> int:
        """Find the greatest identity of the next piece of about ``rows`` versions.

        The piece has a part of the largest input, in proportion to the input's share of all remaining versions.
        """
        owed = self.remaining_versions
        if owed <= rows + rows // 4:
            return END
        largest = max(self.inputs, key=len)
        part = largest.parts[0]
        at = min(part.begin + max(len(largest) * rows // owed, 1), part.end) - 1
        return int(slots[part.slot].high[at])
