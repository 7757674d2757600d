"""Hold the events of one input, sorted by time or by key, with their times and arrival numbers.

ddflow itself generates events for expired keys, and for keys that are missing from full contents. A generated event
deletes its key, and is kept together with the received events.

Guarantees: merged chunks of events are sorted by time, and by arrival within a time.

>>> import pyarrow as pa
>>> late, early = (Events(pa.record_batch({"k": [k]}), *(np.array([n]) for n in (t, t, a)))
...                for k, t, a in (("late", 5, 0), ("early", 3, 1)))
>>> merge_events([late, early]).rows.column("k").to_pylist()
['early', 'late']
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa

from ddflow.columns.hashing import Flags, Ints, Narrow
from ddflow.columns.sorting import SortedRows
from ddflow.kernels.resolve import FORGOTTEN, Prior
from ddflow.operators.updates import build_time_column

FEW: Final = 512
"""With fewer events than this, it is cheaper to sort by two columns than to pack both columns into one."""


class Events(NamedTuple):
    """The n events of one input, sorted by time."""

    rows: pa.RecordBatch
    times: Ints
    """int64[n]: the time at which each event is applied."""
    original: Ints
    """int64[n]: the time that the event itself has, by which it is resolved.

    If an event was advanced to a later time, this is less than its entry in ``times``.

    If no event is advanced, this is the same array as ``times``.
    """
    arrival: Ints
    """int64[n]: the position of each event in the arrival order of the input."""

    @classmethod
    def at_time(cls, rows: pa.RecordBatch, time: int, arrival: Ints, stamp: pa.Field | None) -> Events:
        """Make events that all have one time. ``stamp``: see `add_stamps`. O(n)."""
        times = np.full(arrival.size, time)
        return cls(add_stamps(rows, times, stamp), times, times, arrival)

    @property
    def nbytes(self) -> int:
        """Bytes of the rows, times and arrival numbers of these events, not counting other data in the same buffers.

        O(columns).
        """
        return int(self.rows.nbytes) + self.bookkeeping_bytes

    @property
    def bookkeeping_bytes(self) -> int:
        """Bytes of the times and arrival numbers."""
        return (2 if self.original is self.times else 3) * self.times.nbytes

    def slice_events(self, begin: int, end: int) -> Events:
        """Slice the events [begin, end), without a copy."""
        times = self.times[begin:end]
        original = times if self.original is self.times else self.original[begin:end]
        return Events(self.rows.slice(begin, end - begin), times, original, self.arrival[begin:end])

    def copy(self) -> Events:
        """Copy the events into memory that no other events share. O(n)."""
        times = self.times.copy()
        original = times if self.original is self.times else self.original.copy()
        return Events(pa.concat_batches([self.rows]), times, original, self.arrival.copy())

    def sort_by_time(self) -> Events:
        """Sort the events by time, with arrival order within a time. O(n), or O(n log n) if the events are unsorted."""
        order = argsort_times(self.times)
        return self if order is None else self.take(order)

    def take(self, places: Ints) -> Events:
        """Take the events at the positions ``places``. O(places)."""
        times = self.times[places]
        original = times if self.original is self.times else self.original[places]
        return Events(self.rows.take(pa.array(places)), times, original, self.arrival[places])


def add_stamps(rows: pa.RecordBatch, times: Ints, stamp: pa.Field | None) -> pa.RecordBatch:
    """Add the column of ``ingested=``, which has the times of the events.

    ``stamp``: the column, or None for an input without this option. O(1), because the times are not copied. O(n) for
    dates, which have 32 bits.

    >>> add_stamps(pa.record_batch({"k": [7]}), np.array([3]), pa.field("at", pa.int64())).to_pylist()
    [{'k': 7, 'at': 3}]
    """
    return rows if stamp is None else rows.append_column(stamp, build_time_column(times, stamp.type))


def argsort_times(times: Ints) -> Ints | None:
    """Compute the permutation that sorts ``times`` in a stable way. Return None if the times are sorted. O(n log n)."""
    n = times.size
    if n < 2 or bool((times[1:] >= times[:-1]).all()):
        return None
    least = int(times.min())
    bits = (n - 1).bit_length()
    if n < FEW or (int(times.max()) - least).bit_length() + bits > 63:
        return np.argsort(times, kind="stable")
    packed = times - least
    packed <<= bits
    packed |= np.arange(n)
    packed.sort()
    packed &= (1 << bits) - 1
    return packed


def merge_events(parts: list[Events]) -> Events:
    """Merge chunks of events, each sorted by time and then by arrival, into one. ``parts``: the chunks. O(n log n)."""
    if len(parts) == 1:
        return parts[0]
    parts = sorted(parts, key=lambda part: int(part.arrival[0]))
    rows = pa.concat_batches([part.rows for part in parts])
    times, arrival = (np.concatenate([getattr(part, name) for part in parts]) for name in ("times", "arrival"))
    shared = all(part.original is part.times for part in parts)
    both = Events(rows, times, times if shared else np.concatenate([part.original for part in parts]), arrival)
    order = argsort_times(times)
    if not _is_in_arrival_order(both, order):
        # Within a time, the arrival numbers of different parts can interleave.
        order = np.argsort(arrival)
        if (then := argsort_times(times[order])) is not None:
            order = order[then]
    return both if order is None else both.take(order)


def _is_in_arrival_order(events: Events, order: Ints | None) -> bool:
    """Return whether the events, sorted by time, are in arrival order within each time."""
    times, arrival = (a if order is None else a[order] for a in (events.times, events.arrival))
    return bool(((arrival[1:] > arrival[:-1]) | (times[1:] > times[:-1])).all())


class ExpiryChange(NamedTuple):
    """The change of an input's expiry in a step.

    >>> ExpiryChange(3, 1).plus(ExpiryChange(None, 2))
    ExpiryChange(greatest=3, forgotten=3, useless=0)
    """

    greatest: int | None = None
    """The greatest order among the events, as an order word (an int64), or None if there are no events."""
    forgotten: int = 0
    """The number of live keys that expired."""
    useless: int = 0
    """The increase in the number of tombstones that are no longer needed."""

    def plus(self, other: ExpiryChange) -> ExpiryChange:
        """Combine the changes of two parts of a step."""
        both = [each for each in (self.greatest, other.greatest) if each is not None]
        return ExpiryChange(max(both, default=None), self.forgotten + other.forgotten, self.useless + other.useless)


class KeyedEvents(NamedTuple):
    """n events of g keys, sorted by key, with the stored state of the keys."""

    events: Events
    columns: dict[str, pa.Array]
    """The columns of the events, by name."""
    times: Ints
    """int64: the step's distinct times, ascending."""
    settled: bool
    """Whether all times are at or before ``since``, so that all versions can get the same time."""
    by: SortedRows
    prior: Prior
    """The stored state of the g keys."""
    built: int
    """The number of the index table that was searched for the keys."""
    gone: Flags
    """uint8[n]: 1 for an event that deletes its key."""
    absent: Ints
    """The generated events, which delete absent or expired keys."""
    mark: Narrow
    """int32[n]: twice the rank of the event's time, plus 1 for a delete."""
    full: int | None = None
    """The arrival number of the first event that was generated for an absent key in a step of full contents.

    None in other steps.
    """
    left: Ints = np.empty(0, np.int64)
    """The events that have no effect, because they are late, or too old for keys that are forgotten."""
    left_verdict: int = FORGOTTEN
    expiry: ExpiryChange = ExpiryChange()

    def filter_events(self, stays: np.ndarray[tuple[int, ...], np.dtype[np.bool_]]) -> KeyedEvents:
        """Keep the events that ``stays`` marks, and drop keys that have no event left. O(n)."""
        by, prior = self.by, self.prior
        here = stays[by.permutation]
        counts = np.add.reduceat(here, by.starts[:-1], dtype=np.int64)
        groups = counts > 0
        starts = np.concatenate([[0], np.cumsum(counts[groups])]).astype(np.int32)
        low = by.low[here] if by.low.size else by.low
        kept = Prior(prior.place[groups], prior.reference[groups], prior.value[groups], prior.order[groups])
        return self._replace(by=SortedRows(by.permutation[here], by.high[here], low, starts), prior=kept)
