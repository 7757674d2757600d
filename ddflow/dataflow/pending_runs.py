"""Keep the runs of a batcher: pending events in the order of their times, in memory or in files.

A run is never modified. When the first events of a run are released, a new run with the remaining events replaces it.
Both runs share their columns. A spilled run uses the columns of a mapped file. The file is unlinked when no run refers
to it. A slice of the caller's batch keeps the complete batch in memory. So a run is copied if it wastes more than half
of its memory (`PendingRun.is_wasting_memory`). `split_events_by_time` cuts runs by time without joining them, and
`PendingRuns` keeps the number of runs small.

>>> import numpy as np, pyarrow as pa
>>> times = np.array([3, 5, 5])
>>> run = PendingRun.from_events(Events(pa.record_batch({"k": ["a", "b", "c"]}), times, times, np.arange(3)))
>>> rest = run.slice_remainder(run.find_first_event_at(5))
>>> len(rest), rest.least, rest.slice_events(3).rows.column("k").to_pylist()
(2, 5, ['b', 'c'])
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable, Iterator, Sequence
from operator import attrgetter
from typing import Final

import numpy as np
import pyarrow as pa

from ddflow.operators.upsert.events import Events, merge_events
from ddflow.storage.files.batch_store import BatchStore, StoredBatch, StoredBlob

SMALL: Final = 1 << 16
"""For runs of at most this number of bytes, computing an exact size or copying to save memory costs too much."""


class PendingRun:
    """A run of pending events. The positions [begin, n) of ``events`` are pending, with ``begin`` < n.

    ``bytes_resident``: the bytes of memory of the run, 0 if spilled. ``file``: its spill file, or None. ``final``:
    whether later merges skip the run. ``least``, ``greatest``: the times of the first and the last pending event.
    ``size_class``: the size class, or 0 for a run that is never merged. ``stored``: the file to which a commit wrote
    all ``events``.
    """

    __slots__ = ("begin", "bytes_resident", "events", "file", "final", "greatest", "least", "size_class", "stored")

    def __init__(
        self,
        events: Events,
        begin: int,
        bytes_resident: int,
        file: StoredBatch | None,
        final: bool,
        stored: StoredBlob | None = None,
    ) -> None:
        self.events, self.begin, self.bytes_resident, self.file, self.final = events, begin, bytes_resident, file, final
        self.stored = stored or file
        times = events.times
        self.least, self.greatest = int(times[begin]), int(times[-1])
        # inlined `compute_size_class`, because each event of a small step passes here
        self.size_class = 0 if final or bytes_resident >= LARGE else (bytes_resident.bit_length() + 3) // 4

    @classmethod
    def from_events(cls, events: Events, final: bool = False) -> PendingRun:
        """Make a run of one or more events in memory, without a copy. O(columns)."""
        # If the buffers are large, compute the exact size, because the events may be a small slice of a large batch.
        rows, times = events.rows.get_total_buffer_size(), events.times
        bytes_resident = (rows if rows <= SMALL else int(events.rows.nbytes)) + 2 * times.nbytes
        if events.original is not times:
            bytes_resident += times.nbytes
        return cls(events, 0, bytes_resident, None, final)

    @classmethod
    def copy_if_wasteful(cls, events: Events, final: bool = False) -> PendingRun:
        """Make a run of events. Copy the events if they are a small slice of a larger table. O(1), or O(n)."""
        run = cls.from_events(events, final)
        return cls.from_events(events.copy(), final) if run.is_wasting_memory else run

    @classmethod
    def spill_events(cls, batch_store: BatchStore, events: Events) -> PendingRun:
        """Write events to a file, and make a final run that uses that file. O(bytes).

        Raises the errors of the store. After an error, no file is left.
        """
        file = batch_store.write(encode_events(events))
        return cls(decode_events(file.batch, events.original is not events.times), 0, 0, file, True)

    def __len__(self) -> int:
        return int(self.events.times.size) - self.begin

    def find_first_event_at(self, upper: int) -> int:
        """Find the position of the first event whose time is ``upper`` or later. O(log n)."""
        times = self.events.times
        return times.size if self.greatest < upper else int(times.searchsorted(upper))

    def slice_events(self, end: int) -> Events:
        """Return the pending events before position ``end``, without a copy."""
        if not self.begin and end == self.events.times.size:
            return self.events
        return self.events.slice_events(self.begin, end)

    @property
    def pending_events(self) -> Events:
        """All pending events of the run, without a copy."""
        return self.slice_events(self.events.times.size)

    def slice_remainder(self, end: int) -> PendingRun | None:
        """Return a run without the events before position ``end``. Return None if no event is left."""
        if end >= self.events.times.size:
            return None
        return PendingRun(self.events, end, self.bytes_resident, self.file, self.final, self.stored)

    @property
    def pending_bytes(self) -> int:
        """The approximate bytes of the pending events only, without the events that were released."""
        return self.bytes_resident * len(self) // self.events.times.size

    @property
    def is_wasting_memory(self) -> bool:
        """Whether the run keeps more bytes in memory than twice its pending bytes plus `SMALL`. O(columns)."""
        if self.file is not None:
            return False
        alive = int(self.events.rows.get_total_buffer_size()) + self.events.bookkeeping_bytes
        return max(alive, self.bytes_resident) > 2 * self.pending_bytes + SMALL

    def iterate_slices(self, end: int, rows: int) -> Iterator[Events]:
        """Iterate over the pending events before position ``end``, in slices of ``rows`` events, without a copy."""
        for begin in range(self.begin, end, rows):
            yield self.events.slice_events(begin, min(begin + rows, end))


def encode_events(events: Events) -> pa.RecordBatch:
    """Convert events to a batch for a file: times and arrival numbers, then the columns of the events.

    O(columns).
    """
    own = {"_time": events.times, "_arrival": events.arrival}
    if events.original is not events.times:
        own["_original"] = events.original
    columns = [*map(pa.array, own.values()), *events.rows.columns]
    fields = [pa.field(name, pa.int64()) for name in own]
    return pa.RecordBatch.from_arrays(columns, schema=pa.schema([*fields, *events.rows.schema]))


def decode_events(record: pa.RecordBatch, advanced: bool) -> Events:
    """Rebuild events from the record batch of a file, without a copy. O(columns).

    ``advanced``: whether the batch also has a column with the original times of the events.
    """
    own = 2 + advanced
    times, arrival, *original = (column.to_numpy() for column in record.columns[:own])
    schema = pa.schema([record.schema.field(i) for i in range(own, record.num_columns)])
    events = pa.RecordBatch.from_arrays(record.columns[own:], schema=schema)
    return Events(events, times, original[0] if original else times, arrival)


def count_rows_for_bytes(runs: Sequence[PendingRun], size: int) -> int:
    """Return the number of events that take about ``size`` bytes, at least 1. O(runs)."""
    taken = sum(run.bytes_resident if run.file is None else run.file.nbytes for run in runs)
    return max(size * sum(run.events.times.size for run in runs) // max(taken, 1), 1)


def split_events_by_time(runs: Sequence[PendingRun], rows: int) -> Iterator[Events]:
    """Split the events of ``runs`` into chunks of about ``rows`` events. A chunk has at most 3 x ``rows`` events.

    Chunks ascend in time, but events of one time can fill several chunks. If all events of a chunk come from one run,
    the chunk is a slice of this run. The split needs memory for two chunks and for the sampled times: about two for
    each pair of a run and a chunk. O(n log n).
    """
    begins = [run.begin for run in runs]
    for cut in [*_find_cut_times(runs, rows), None]:
        ends = [run.events.times.size if cut is None else max(run.find_first_event_at(cut), run.begin) for run in runs]
        parts = [run.events.slice_events(b, e) for run, b, e in zip(runs, begins, ends, strict=True) if b < e]
        if sum(part.times.size for part in parts) <= 3 * rows:
            if parts:
                yield merge_events(parts)
        else:
            for part in parts:
                for at in range(0, part.times.size, rows):
                    yield part.slice_events(at, min(at + rows, part.times.size))
        begins = ends


def _find_cut_times(runs: Sequence[PendingRun], rows: int) -> list[int]:
    """Return ascending cut times. Unless many events have one time, about ``rows`` events lie between two cuts."""
    # Each sampled time represents `step` events. The sample can miss the last events of each run. Added up over all
    # runs, the sample misses at most half of `rows` events.
    step = max(rows // (2 * len(runs)), 1)
    times = np.sort(np.concatenate([run.events.times[run.begin + step - 1 :: step] for run in runs]))
    every = max(rows // step, 1)
    return [int(time) for time in np.unique(times[every - 1 :: every])]


FAN: Final = 16
"""The number of runs in one size class that are merged into one run."""
LARGE: Final = 8 << 20
"""If runs in memory have at least this many bytes of pending events, a merge makes final chunks."""
CHUNK: Final = 1 << 20
"""The approximate size of a final chunk in bytes."""
LEAST = attrgetter("least")


class PendingRuns:
    """The runs of one batcher, ordered by their least time.

    ``by_least``: the runs. ``bytes_resident``: the bytes of runs in memory. ``mapped``: the bytes of the files of
    spilled runs.

    In each size class, fewer than `FAN` runs wait for a merge, and together they have fewer than `LARGE` bytes. So if n
    events are pushed one by one, they form O(log n) small runs. Merges copy each event once for each size class. A
    merge of `LARGE` bytes or more makes final runs, which are not merged again. A final run is a chunk of events in a
    range of times. A seal releases these chunks one after the other. A copy of a `PendingRuns` shares the runs of the
    original.
    """

    __slots__ = ("by_least", "bytes_resident", "classes", "fresh", "mapped")

    def __init__(self, of: PendingRuns | None = None) -> None:
        self.by_least: list[PendingRun] = [] if of is None else of.by_least.copy()
        self.bytes_resident: int = 0 if of is None else of.bytes_resident
        self.mapped: int = 0 if of is None else of.mapped
        self.classes: dict[int, tuple[int, int]] = {} if of is None else of.classes.copy()
        """For each size class, the number of runs that can still be merged, and their bytes."""
        self.fresh: PendingRun | None = None if of is None else of.fresh
        """The last pushed run, whose events are still in the caller's memory."""

    def copy(self) -> PendingRuns:
        """Copy the collection.

        Later changes to the copy do not affect the original, and later changes to the original do not affect the copy.
        O(runs).
        """
        return PendingRuns(self)

    def push(self, run: PendingRun) -> None:
        """Add a new run whose events are in the caller's memory.

        If the previously pushed run wastes memory or is large, its events are copied.
        """
        fresh, self.fresh = self.fresh, run
        if fresh is not None and (fresh.is_wasting_memory or fresh.bytes_resident >= LARGE):
            self.replace_runs([fresh], copy_events(fresh))
        self.add(run)

    def add(self, run: PendingRun) -> None:
        """Add a run. If the size class of this run now has enough runs or bytes, merge the runs of the class.

        O(log runs), plus amortised O(log n) for each event.
        """
        if self.by_least:
            insort(self.by_least, run, key=LEAST)
        else:
            self.by_least.append(run)
        self._update_totals(run, 1)
        number, bytes_resident = self.classes.get(of := run.size_class, (0, 0))
        if number >= FAN or (number > 1 and bytes_resident >= LARGE):
            self.replace_runs(due := self.list_runs_of_size_class(of), merge_runs(due))

    def list_runs_before(self, upper: int) -> list[PendingRun]:
        """List the runs that have an event with a time before ``upper``. O(log runs + number of listed runs)."""
        every = self.by_least
        if not every or every[-1].least < upper:
            return every.copy()
        return every[: bisect_left(every, upper, key=LEAST)]

    def drop_events_before(self, upper: int) -> int:
        """Drop the events with times before ``upper``, and return the number of dropped events.

        If the rest of a run wastes memory, copy the events of this rest. O(runs that have events to drop).
        """
        every, dropped = self.by_least, 0
        if len(every) == 1 and every[0].greatest < upper:  # the usual case in a small step
            dropped = every[0].events.times.size - every[0].begin
            self.bytes_resident = self.mapped = 0
            self.by_least, self.classes, self.fresh = [], {}, None
            return dropped
        gone = self.list_runs_before(upper)
        del self.by_least[: len(gone)]
        for run in gone:
            self._update_totals(run, -1)
        for run in gone:
            end = run.find_first_event_at(upper)
            dropped += end - run.begin
            rest = run.slice_remainder(end)
            copied = rest is not None and not rest.final and rest.is_wasting_memory
            if run is self.fresh:
                self.fresh = None if copied else rest
            if rest is not None:
                for part in copy_events(rest) if copied else [rest]:
                    self.add(part)
        return dropped

    def replace_runs(self, gone: Iterable[PendingRun], new: Iterable[PendingRun]) -> None:
        """Replace the runs ``gone`` by the runs ``new``, which contain the same events. O(runs)."""
        old = set(map(id, gone))
        for run in self.by_least:
            if id(run) in old:
                self._update_totals(run, -1)
        self.by_least = [run for run in self.by_least if id(run) not in old]
        if id(self.fresh) in old:
            self.fresh = None
        for run in new:
            self.add(run)

    def list_runs_of_size_class(self, number: int) -> list[PendingRun]:
        """List the runs that belong to a size class."""
        return [run for run in self.by_least if run.size_class == number]

    def _update_totals(self, run: PendingRun, sign: int) -> None:
        """Add a run to the totals if ``sign`` is 1, or subtract it if ``sign`` is -1."""
        self.bytes_resident += sign * run.bytes_resident
        if run.file is not None:
            self.mapped += sign * run.file.nbytes
        if of := run.size_class:
            number, bytes_resident = self.classes.get(of, (0, 0))
            self.classes[of] = (number + sign, bytes_resident + sign * run.bytes_resident)

    def _check_invariants(self) -> None:
        """Assert the invariant."""
        # Runs are sorted by their least time, and the totals match the runs.
        assert [run.least for run in self.by_least] == sorted(run.least for run in self.by_least)
        assert self.bytes_resident == sum(run.bytes_resident for run in self.by_least)
        assert self.mapped == sum(run.file.nbytes for run in self.by_least if run.file is not None)
        classes = {of: self.list_runs_of_size_class(of) for of in {run.size_class for run in self.by_least} - {0}}
        counted = {of: (len(runs), sum(run.bytes_resident for run in runs)) for of, runs in classes.items()}
        assert {of: each for of, each in self.classes.items() if each != (0, 0)} == counted
        # No size class has enough runs or bytes for a merge.
        assert all(
            number < FAN and (number == 1 or bytes_resident < LARGE) for number, bytes_resident in counted.values()
        )
        assert self.fresh is None or any(run is self.fresh for run in self.by_least)
        for run in self.by_least:
            times, arrival = run.events.times, run.events.arrival
            # No run is empty. The events of a run are sorted by time, then by arrival.
            assert 0 <= run.begin < times.size
            assert bool(((times[1:] > times[:-1]) | (times[1:] == times[:-1]) & (arrival[1:] > arrival[:-1])).all())
            assert run.events.rows.num_rows == times.size
            # Files are undamaged. Only runs without a file count as memory.
            if run.file is not None:
                run.file.verify()
            assert (run.bytes_resident == 0) == (run.file is not None)


def compute_size_class(size: int) -> int:
    """Return the size class of a size in bytes. The lowest class is 1.

    Two sizes in one class differ by a factor below `FAN`.
    """
    return (size.bit_length() + 3) // 4


def merge_runs(runs: Sequence[PendingRun]) -> list[PendingRun]:
    """Merge runs into one run, or into final chunks if the runs have `LARGE` pending bytes or more. O(n log n)."""
    if sum(run.pending_bytes for run in runs) < LARGE:
        return [PendingRun.copy_if_wasteful(merge_events([run.pending_events for run in runs]))]
    return [
        PendingRun.copy_if_wasteful(chunk, final=True)
        for chunk in split_events_by_time(runs, count_rows_for_bytes(runs, CHUNK))
    ]


def copy_events(run: PendingRun) -> list[PendingRun]:
    """Copy the events of a run into new memory. O(n)."""
    return merge_runs([run])


def choose_runs_to_spill(runs: PendingRuns, at_most: int, chunk: int) -> list[PendingRun]:
    """Choose the runs to write to files, so that at most ``at_most`` bytes stay in memory. O(runs log runs).

    Final runs are chosen first. Among final runs, those with the latest times are first, because their events stay
    pending longest. After the final runs, the largest runs are chosen. An earlier spill can leave small files, with
    fewer than half of ``chunk`` bytes. If a size class has `FAN` small files, the runs of these files are chosen in
    addition to runs in memory. So the number of files stays small, and each event is written once for each size class.
    """
    chosen, bytes_resident = [], runs.bytes_resident
    for run in sorted(
        runs.by_least, key=lambda run: (run.final, run.least if run.final else run.bytes_resident), reverse=True
    ):
        if bytes_resident <= at_most:
            break
        if run.file is None:
            chosen.append(run)
            bytes_resident -= run.bytes_resident
    small: dict[int, list[PendingRun]] = {}
    for run in runs.by_least if chosen else ():
        if run.file is not None and run.file.nbytes < chunk // 2:
            small.setdefault(compute_size_class(run.file.nbytes), []).append(run)
    return chosen + [run for same in small.values() if len(same) >= FAN for run in same]
