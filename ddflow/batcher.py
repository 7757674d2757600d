"""The batcher: events of one hold-back source that wait, by time, until the frontier passes them.

Invariant: an event put in comes out of exactly one ``seal``, the first whose upper is above its time; what comes out is
in the order of times and, within a time, of arrival.  Why that is not trivial: pushes arrive in any order of times,
most of them nearly sorted, and sealing must cost what is released, not what waits.  Each push is one run, sorted by
time once; the runs are kept by their least pending time, so a seal touches only runs that release something, and takes
a prefix of each.  It does not judge events, nor look at their columns.

>>> import pyarrow as pa
>>> batcher, events = Batcher(), pa.record_batch({"k": ["late", "early"]})
>>> batcher.add(Sealed(events, np.array([5, 3]), np.array([5, 3]), np.array([0, 1])))
>>> batcher.seal(4).events.to_pylist(), len(batcher)
([{'k': 'early'}], 1)
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pyarrow as pa
from sortedcontainers import SortedKeyList

from ddflow.identity import Ints


class Sealed(NamedTuple):
    """n events of one source, in the order of their times."""

    events: pa.RecordBatch
    times: Ints
    """int64[n]: the time each is stamped with."""
    original: Ints
    """int64[n]: its own time, by which it is judged; less than the stamp for an advanced one."""
    arrival: Ints
    """int64[n]: its number among all events of the source."""

    @property
    def nbytes(self) -> int:
        """Bytes of rows and bookkeeping."""
        return int(self.events.nbytes) + self.times.nbytes + self.original.nbytes + self.arrival.nbytes

    def cut(self, begin: int, end: int) -> Sealed:
        """The events [begin, end), without a copy."""
        return Sealed(self.events.slice(begin, end - begin), self.times[begin:end], self.original[begin:end],
                      self.arrival[begin:end])  # fmt: skip

    def in_order(self) -> Sealed:
        """The same events sorted by time, arrival kept within a time.  O(n), or O(n log n) when they were not."""
        if self.times.size < 2 or bool((self.times[1:] >= self.times[:-1]).all()):
            return self
        order = np.argsort(self.times, kind="stable")
        return Sealed(self.events.take(pa.array(order)), self.times[order], self.original[order], self.arrival[order])


def joined(parts: list[Sealed]) -> Sealed:
    """Several runs as one, in the order of times, then of arrival."""
    parts = sorted(parts, key=lambda part: int(part.arrival[0]))
    if len(parts) == 1:
        return parts[0]
    events = pa.concat_batches([part.events for part in parts])
    columns = (np.concatenate([getattr(p, name) for p in parts]) for name in ("times", "original", "arrival"))
    both = Sealed(events, *columns)
    if (both.arrival[1:] < both.arrival[:-1]).any():
        # Runs were cut, so their arrivals interleave; time alone would not restore it.
        order = np.lexsort((both.arrival, both.times))
        return Sealed(events.take(pa.array(order)), both.times[order], both.original[order], both.arrival[order])
    return both.in_order()


def _least(run: Sealed) -> int:
    return int(run.times[0])


class Batcher:
    """Pending events; ``len`` is how many."""

    def __init__(self) -> None:
        self.runs: SortedKeyList = SortedKeyList(key=_least)
        self.pending = 0

    def __len__(self) -> int:
        return self.pending

    def add(self, run: Sealed) -> None:
        """Take in the events of one push.  O(n log n) where times are out of order, else O(n)."""
        if run.times.size:
            self.runs.add(run.in_order())
            self.pending += run.times.size

    def seal(self, upper: int) -> Sealed | None:
        """Release the events at times below ``upper``, or None.  O(released log released + runs that release)."""
        parts, rest = [], []
        while self.runs and _least(self.runs[0]) < upper:
            run = self.runs.pop(0)
            cut = int(np.searchsorted(run.times, upper, side="left"))
            parts.append(run.cut(0, cut))
            if cut < run.times.size:
                rest.append(run.cut(cut, run.times.size))
            self.pending -= cut
        self.runs.update(rest)
        return joined(parts) if parts else None

    def peek(self, upper: int) -> Sealed | None:
        """What ``seal`` would release, which stays.  The step seals for good once nothing can be refused any more."""
        parts = []
        for run in self.runs:
            if _least(run) >= upper:
                break
            parts.append(run.cut(0, int(np.searchsorted(run.times, upper, side="left"))))
        return joined(parts) if parts else None

    @property
    def nbytes(self) -> int:
        """Bytes of pending events."""
        return sum(run.nbytes for run in self.runs)

    def _check(self) -> None:
        """Assert the invariant."""
        # Pending is what the runs hold, and no run is empty.
        assert self.pending == sum(run.times.size for run in self.runs)
        assert all(run.times.size for run in self.runs)
        # Each run is in the order of times.
        assert all(bool((run.times[1:] >= run.times[:-1]).all()) for run in self.runs)
