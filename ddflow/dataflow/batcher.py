"""Hold the pending events of one input until their times close, in memory or in files.

`Batcher.add` takes events in any order of times. `Batcher.seal` releases all events below a time, ordered by time and
then by arrival. The engine first peeks at the events to release and computes the step. The engine releases the events
only when the step is certain to succeed.

Guarantees: each event is released once, by the first `seal` with a bound above the event's time. A `seal` costs
O(released events), even if the pending events exceed memory. `checkpoint_batcher` writes each run once.
`restore_batcher` makes a batcher that releases the same events.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, cast

import pyarrow as pa

from ddflow.dataflow.pending_runs import (
    LARGE,
    PendingRun,
    PendingRuns,
    choose_runs_to_spill,
    count_rows_for_bytes,
    decode_events,
    encode_events,
    split_events_by_time,
)
from ddflow.errors import CorruptState, shorten
from ddflow.operators.upsert.events import Events, merge_events
from ddflow.storage.fields import RESTORE_REMEDY, Natural, Positive, StrictRecord
from ddflow.storage.files.batch_store import BatchStore
from ddflow.storage.protocol import Blob

PIECE: Final = 1 << 16
"""The maximum number of events in a piece of `Batcher.peek_in_chunks`."""


class Batcher:
    """The pending events of one input. ``len(batcher)`` is the number of events.

    A batcher neither resolves events nor reads their columns.

    >>> import numpy as np
    >>> import pyarrow as pa
    >>> batcher, times = Batcher(), np.array([5, 3])
    >>> batcher.add(Events(pa.record_batch({"k": ["late", "early"]}), times, times, np.array([0, 1])))
    >>> batcher.seal(4).rows.to_pylist(), len(batcher)
    ([{'k': 'early'}], 1)
    """

    def __init__(self, runs: PendingRuns | None = None, pending: int = 0) -> None:
        self.runs, self.pending = PendingRuns() if runs is None else runs, pending
        self._peeked: tuple[int, Events | None] | None = None
        """The result of the last `peek`, or None if the batcher was changed after this `peek`."""

    def __len__(self) -> int:
        return self.pending

    @property
    def nbytes(self) -> int:
        """Bytes of memory that pending events hold. O(1)."""
        return self.runs.bytes_resident

    @property
    def mapped_bytes(self) -> int:
        """Bytes of the files that hold spilled events. O(1)."""
        return self.runs.mapped

    def add(self, run: Events) -> None:
        """Add the events of one push, sorted by arrival or by time.

        The batcher references the rows and does not copy them. O(n log n) if times are out of order, else O(n). Later
        merges cost amortised O(log pending) for each event.
        """
        if run.times.size:
            self._peeked = None
            self.runs.push(PendingRun.from_events(run.sort_by_time()))
            self.pending += run.times.size

    def copy(self) -> Batcher:
        """Copy the batcher. The copy and the original share the runs. O(runs)."""
        return Batcher(self.runs.copy(), self.pending)

    def copy_with_events(self, run: Events) -> Batcher:
        """Copy the batcher, and add events to the copy. The copy shares the runs of the original.

        ``run``: events that are sorted by time. `copy_with_events` costs O(runs) more than `add`.
        """
        both = Batcher(self.runs.copy(), self.pending + run.times.size)
        if run.times.size:
            both.runs.push(PendingRun.from_events(run))
        return both

    def peek(self, upper: int) -> Events | None:
        """Return the events that `seal` would release, but do not release them.

        Return None if there are no events to release. O(n log n), where n is the number of returned events. The result
        is cached for a `seal` with the same ``upper``. A call of any other method clears the cache.
        """
        if self._peeked is None or self._peeked[0] != upper:
            runs, events = self.runs.list_runs_before(upper), cast("Events | None", None)
            if len(runs) == 1:
                events = runs[0].slice_events(runs[0].find_first_event_at(upper))
            else:
                parts = [run.slice_events(run.find_first_event_at(upper)) for run in runs]
                events = merge_events(parts) if parts else None
            self._peeked = (upper, events)
        return self._peeked[1]

    def seal(self, upper: int) -> Events | None:
        """Release the events at times below ``upper``; return None if there are none.

        O(n log n) for n released events; O(runs) after a `peek` with the same ``upper``.
        """
        events = self.peek(upper)
        self._peeked = None
        if events is not None:
            self.runs.drop_events_before(upper)
            self.pending -= events.times.size
        return events

    def peek_in_chunks(self, upper: int) -> tuple[int, Iterator[Events]]:
        """Count the events that `seal` would release, and return them in pieces, because all of them can exceed memory.

        A piece has at most 65,536 events and about 8 MB. A piece shares the columns of its run. Each piece is ordered
        by time, but the times of different pieces overlap. The method releases nothing, and the pieces stay valid when
        the batcher changes. O(runs that have events to release), plus O(1) for each piece.
        """
        parts = [(run, run.find_first_event_at(upper)) for run in self.runs.list_runs_before(upper)]
        pieces = (
            piece
            for run, end in parts
            for piece in run.iterate_slices(end, min(PIECE, count_rows_for_bytes([run], LARGE)))
        )
        return sum(end - run.begin for run, end in parts), pieces

    def discard(self, upper: int) -> int:
        """Drop the events that `peek_in_chunks` would yield, and return the number of dropped events.

        O(runs that have events to drop).
        """
        self._peeked = None
        number = self.runs.drop_events_before(upper)
        self.pending -= number
        return number

    def spill(self, batch_store: BatchStore, at_most: int, chunk: int = LARGE) -> None:
        """Write runs to files until at most ``at_most`` bytes are in memory, and map the files. O(bytes written).

        Runs with the latest times are written first. The runs are joined and then split by time into files of about
        ``chunk`` bytes. A file has at most 8 MB. While the method writes, it needs about as much memory as the total
        size of a few files. A file is unlinked when its last event is released and no object refers to the file. Raises
        `SpillFull`, `SpillFailed`. After an error, the batcher is unchanged, and no file is left.
        """
        self._peeked = None
        chunk = min(chunk, LARGE)
        if not (chosen := choose_runs_to_spill(self.runs, at_most, chunk)):
            return
        written: list[PendingRun] = []
        try:
            for events in split_events_by_time(chosen, count_rows_for_bytes(chosen, chunk)):
                written.append(PendingRun.spill_events(batch_store, events))
                del events  # free memory before the next chunk
        except BaseException:
            for run in written:
                assert run.file is not None
                run.file.drop()
            raise
        self.runs.replace_runs(chosen, written)

    def _check_invariants(self) -> None:
        """Assert the invariant."""
        self.runs._check_invariants()
        # The runs contain all pending events.
        assert self.pending == sum(map(len, self.runs.by_least))


class PendingRunRecord(StrictRecord, frozen=True):
    """The record of a run of pending events, as an inventory stores it.

    ``rows``: the number of rows in the file. ``begin``: the first row that is still pending. ``advanced``: whether late
    events were moved to later times. ``final``: whether later merges skip the run. ``columns``: the columns of the
    events.
    """

    file: Blob
    rows: Positive
    begin: Natural
    advanced: bool
    final: bool
    columns: list[str]
    compressed: bool

    def __post_init__(self) -> None:
        if self.begin >= self.rows:
            raise ValueError(f"it begins at row {self.begin:,} of {self.rows:,}")


def checkpoint_batcher(batcher: Batcher, batch_store: BatchStore) -> list[PendingRunRecord]:
    """Write the runs that have no file yet, and return the records of all runs. O(bytes written + runs).

    Raises `StorageFull`, `StorageFailed`. After an error, the batcher is unchanged.
    """
    out = []
    for run in batcher.runs.by_least:
        run.stored = stored = run.stored or batch_store.write_unmapped(encode_events(run.events))
        advanced, columns = run.events.original is not run.events.times, run.events.rows.schema.names
        rows = int(run.events.times.size)
        out.append(PendingRunRecord(stored.blob, rows, int(run.begin), advanced, run.final, columns, stored.compressed))
    return out


def restore_batcher(
    records: list[PendingRunRecord],
    what: str,
    schema: pa.Schema,
    batch_store: BatchStore,
    spilled: bool,
    home: BatchStore | None = None,
    held: Batcher | None = None,
) -> Batcher:
    """Restore a batcher from the run records of an inventory, and verify every file. O(bytes).

    ``what``: the place of the records, for messages. ``schema``: the columns of the events. ``spilled``: whether runs
    count as files, and not as memory. ``home``: the store for uncompressed copies of compressed files, because only
    uncompressed files can be mapped. If ``home`` is None, the events of compressed files stay in memory. ``held``: a
    batcher that was restored from an earlier inventory, and whose runs are not read again. Raises `CorruptState`, and
    the errors of ``home``.
    """
    batcher, runs = Batcher(), [] if held is None else held.runs.by_least
    known = {run.stored.blob: run for run in runs if run.stored and spilled == (run.file is not None)}
    for each in records:
        if (run := known.get(each.file)) is not None and not run.is_wasting_memory:
            run = PendingRun(run.events, each.begin, run.bytes_resident, run.file, each.final, run.stored)
            batcher.runs.add(run)
            batcher.pending += len(run)
            continue
        run = _restore_run(each, schema, batch_store, spilled, what)
        if home is not None and each.compressed:
            run = PendingRun.spill_events(home, run.pending_events)
        batcher.runs.add(run)
        batcher.pending += len(run)
    return batcher


def _restore_run(
    record: PendingRunRecord, schema: pa.Schema, batch_store: BatchStore, spilled: bool, what: str
) -> PendingRun:
    names, rows = record.columns, record.rows
    if not set(names) <= set(schema.names):
        raise CorruptState(
            what, f"its file has the columns {shorten(str(names))}, but the plan lacks some of them", RESTORE_REMEDY
        )
    own = ["_time", "_arrival", *(["_original"] if record.advanced else [])]
    fields = [*(pa.field(name, pa.int64()) for name in own), *(schema.field(name) for name in names)]
    kept = batch_store.open_batch(record.file, pa.schema(fields), rows, record.compressed)
    if any(column.null_count for column in kept.batch.columns[: len(own)]):
        raise CorruptState(what, f"a time of {record.file.name} is null", RESTORE_REMEDY)
    events = decode_events(kept.batch, record.advanced)
    if not bool((events.times[1:] >= events.times[:-1]).all()):
        raise CorruptState(what, f"the times of {record.file.name} are not in order", RESTORE_REMEDY)
    if names != schema.names:
        columns = [events.rows.column(f.name) if f.name in names else pa.nulls(rows, f.type) for f in schema]
        events = events._replace(rows=pa.RecordBatch.from_arrays(columns, schema=schema))
    if spilled:
        return PendingRun(events, record.begin, 0, kept, True)
    return PendingRun(
        events, record.begin, int(events.rows.nbytes) + events.bookkeeping_bytes, None, record.final, kept
    )
