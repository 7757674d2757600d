"""A run: events that wait, in the order of their times; resident, or spilled to a file.

Invariant: a run never changes. Taking its first events makes another run over the same columns. The columns of a
spilled run are those of a mapped file, which is unlinked when no run refers to it. Rows come as slices of the caller's
batches, and a slice keeps the whole batch alive. So the bytes of a run that ddflow made are counted until its last
event goes, and a run that keeps more than twice its own bytes alive (`PendingRun.wasteful`) is copied. A run does not
know of other runs.

>>> import numpy as np, pyarrow as pa
>>> times = np.array([3, 5, 5])
>>> run = PendingRun.resident(Events(pa.record_batch({"k": ["a", "b", "c"]}), times, times, np.arange(3)))
>>> rest = run.after(run.place(5))
>>> len(rest), rest.least, rest.cut(3).rows.column("k").to_pylist()
(2, 5, ['b', 'c'])
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import pyarrow as pa

from ddflow.operators.upsert.events import Events
from ddflow.storage.files.batch_store import BatchStore, StoredBatch, StoredBlob

SMALL: Final = 1 << 16
"""Bytes that are not worth a closer look: to count them exactly, or to copy them."""


class PendingRun:
    """A run of pending events: [begin, n) of ``events``; ``begin`` < n.

    ``bytes_resident``: bytes of memory it holds, 0 when spilled. ``file``: its spill file. ``final``: whether later
    merges skip it. ``least``, ``greatest``: the times of the first and the last pending event. ``stored``: the file
    that a commit wrote all of ``events`` to.
    """

    __slots__ = ("begin", "bytes_resident", "events", "file", "final", "greatest", "least", "stored")

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
        self.least, self.greatest = int(events.times[begin]), int(events.times[-1])

    @classmethod
    def resident(cls, events: Events, final: bool = False) -> PendingRun:
        """Events in memory, at least one, referred to and not copied.  O(columns)."""
        # A few bytes too many are soon found; a few rows of a large batch must be told from all of it.
        rows = int(events.rows.get_total_buffer_size())
        bytes_resident = (rows if rows <= SMALL else int(events.rows.nbytes)) + events.kept
        return cls(events, 0, bytes_resident, None, final)

    @classmethod
    def own(cls, events: Events, final: bool = False) -> PendingRun:
        """Hold events in separate memory: copy them if they are a slice of a larger table. O(1), or O(n)."""
        run = cls.resident(events, final)
        return cls.resident(events.copied(), final) if run.wasteful else run

    @classmethod
    def spilled(cls, batch_store: BatchStore, events: Events) -> PendingRun:
        """Events written to a file, which is final.  O(bytes).  Raises what the place does; no file is left then."""
        file = batch_store.write(filed(events))
        return cls(unfiled(file.batch, events.original is not events.times), 0, 0, file, True)

    def __len__(self) -> int:
        return int(self.events.times.size) - self.begin

    def place(self, upper: int) -> int:
        """Find the first event at ``upper`` or later. O(log n)."""
        times = self.events.times
        return times.size if self.greatest < upper else int(times.searchsorted(upper))

    def cut(self, end: int) -> Events:
        """Slice the waiting events before place ``end``, without a copy."""
        if not self.begin and end == self.events.times.size:
            return self.events
        return self.events.cut(self.begin, end)

    @property
    def waiting(self) -> Events:
        """All its events, without a copy."""
        return self.cut(self.events.times.size)

    def after(self, end: int) -> PendingRun | None:
        """Return the run without the events before place ``end``; None if no event is left."""
        if end >= self.events.times.size:
            return None
        return PendingRun(self.events, end, self.bytes_resident, self.file, self.final, self.stored)

    @property
    def size(self) -> int:
        """Bytes of the pending events, about, if they were in separate memory."""
        return self.bytes_resident * len(self) // self.events.times.size

    @property
    def wasteful(self) -> bool:
        """Whether it keeps more than twice its bytes of memory alive, not counting a few.  O(columns)."""
        if self.file is not None:
            return False
        alive = int(self.events.rows.get_total_buffer_size()) + self.events.kept
        return max(alive, self.bytes_resident) > 2 * self.size + SMALL

    def pieces(self, end: int, rows: int) -> Iterator[Events]:
        """Iterate over slices of ``rows`` events before place ``end``, without a copy."""
        for begin in range(self.begin, end, rows):
            yield self.events.cut(begin, min(begin + rows, end))


def filed(events: Events) -> pa.RecordBatch:
    """Events as the columns of a file: their bookkeeping, then their own.  O(columns)."""
    own = {"_time": events.times, "_arrival": events.arrival}
    if events.original is not events.times:
        own["_original"] = events.original
    columns = [*map(pa.array, own.values()), *events.rows.columns]
    fields = [pa.field(name, pa.int64()) for name in own]
    return pa.RecordBatch.from_arrays(columns, schema=pa.schema([*fields, *events.rows.schema]))


def unfiled(record: pa.RecordBatch, advanced: bool) -> Events:
    """Rebuild the events of a file's record over the same memory.

    ``advanced``: whether it has their original times. O(columns).
    """
    own = 2 + advanced
    times, arrival, *original = (column.to_numpy() for column in record.columns[:own])
    schema = pa.schema([record.schema.field(i) for i in range(own, record.num_columns)])
    events = pa.RecordBatch.from_arrays(record.columns[own:], schema=schema)
    return Events(events, times, original[0] if original else times, arrival)
