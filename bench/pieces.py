"""Generate large workloads piece by piece; a complete workload never exists, not even on disk.

Piece ``i`` has its own random generator, so prefixes are reproducible. A *mark* is the count and the checksum of all
updates after n upserts.

>>> shape = LARGE["tinyl"]
>>> batch = piece(shape, 1)
>>> batch.num_rows, batch["time"][0].as_py(), sum(b.num_rows for b in pieces(shape, 0, 25_000))
(10000, 10, 25000)
>>> marks = Marks(every=10_000)
>>> for events in pieces(shape, 0, 20_000):
...     marks.add([pa.table({"key": [1], "val": [2], "_time": [3], "_diff": [1]})], events.num_rows)
>>> [mark.updates for mark in marks.seen]
[1, 2]
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from workloads import Answer, checksum, columns

CHECKED = 65_536  # rows of updates in one check, so that checks take little memory


class Large(NamedTuple):
    """A workload of ``n`` upserts over ``keys`` keys, in pieces of ``piece`` rows.

    All other parameters are as in `workloads.Shape`.
    """

    n: int
    keys: int
    strings: bool = False
    piece: int = 100_000
    deletes: float = 0.05
    values: int = 1000
    per_time: int = 1000
    seed: int = 3


class Mark(NamedTuple):
    """The count and checksum of all updates after the first ``events`` upserts."""

    events: int
    updates: int
    checksum: str


LARGE = {
    "w1l": Large(50_000_000, 20_000_000),
    "w3l": Large(10_000_000, 5_000_000, strings=True),
    "tinyl": Large(60_000, 24_000, piece=10_000),
    "tinyl3": Large(60_000, 24_000, strings=True, piece=10_000),
}

# The known marks after some numbers of upserts; `reference` must find the same marks.
KNOWN = {
    ("w1l", 20_000_000): Answer(25_975_231, "fbf77ff292e847d7"),
    ("w1l", 50_000_000): Answer(77_499_281, "2e9a38e47099916a"),
    ("w3l", 10_000_000): Answer(14_881_279, "8e527617025c1e08"),
    ("tinyl", 60_000): Answer(90_794, "5602200aff9b2055"),
    ("tinyl3", 60_000): Answer(90_794, "5602200aff9b2055"),
}


class Marks:
    """A running sum of updates.

    After every ``every`` upserts, the sum records a `Mark`. O(updates), little memory.
    """

    def __init__(self, every: int) -> None:
        self.every, self.seen = every, list[Mark]()
        self._events = self._updates = self._sum = 0

    def add(self, tables: Iterable[pa.Table], events: int) -> None:
        """Add the updates of the next ``events`` upserts."""
        for table in tables:
            self._updates += table.num_rows
            self._sum = (self._sum + checksum([table], CHECKED)) % 2**64
        self._events += events
        if self._events % self.every == 0:
            self.seen.append(self.mark)

    @property
    def mark(self) -> Mark:
        """The mark of all updates so far."""
        return Mark(self._events, self._updates, f"{self._sum:016x}")


def piece(shape: Large, number: int) -> pa.RecordBatch:
    """Return piece ``number``, counted from 0."""
    key, val, gone = _numbers(shape, number)
    time = np.arange(number * shape.piece, (number + 1) * shape.piece) // shape.per_time
    return pa.record_batch([*columns(key, val, gone, shape.strings), time], names=["key", "val", "time"])


def schema(shape: Large) -> pa.Schema:
    """Return the schema of the pieces."""
    return piece(shape._replace(piece=1), 0).schema


def pieces(shape: Large, start: int, stop: int) -> Iterator[pa.RecordBatch]:
    """Yield upserts [start, stop) in pieces.  ``start`` must be the beginning of a piece."""
    for number in _covering(shape, start, stop):
        batch = piece(shape, number)
        yield batch.slice(0, stop - number * shape.piece)


def _numbers(shape: Large, number: int) -> tuple[Any, Any, Any]:
    rng = np.random.default_rng((shape.seed, shape.n, number))
    key, val = rng.integers(0, shape.keys, shape.piece), rng.integers(0, shape.values, shape.piece)
    return key, val, rng.random(shape.piece) < shape.deletes


def reference(shape: Large, events: int, every: int) -> tuple[list[Mark], Answer]:
    """Return the marks of the first ``events`` upserts.

    Return also the answer of a run that takes all upserts as one epoch at time 0: the live rows.

    This function does not use any contender. Keys are small integers, so one flat array has the value of each key, with
    ``-1`` for no value.
    """
    state: Any = np.full(shape.keys, -1, np.int16 if shape.values < 2**15 else np.int64)
    marks = Marks(every)
    for start in range(0, events, every):
        chunk = [_numbers(shape, number) for number in _covering(shape, start, min(start + every, events))]
        key, val, gone = (np.concatenate(parts)[: events - start] for parts in zip(*chunk, strict=True))
        val = np.where(gone, -1, val)
        time = (start + np.arange(len(key))) // shape.per_time
        marks.add([updates(state, key, val, time)], len(key))
    if events % every:
        marks.seen.append(marks.mark)
    live = np.flatnonzero(state >= 0)
    one_epoch = Marks(every)
    for part in np.array_split(live, max(1, len(live) // CHECKED)):
        one_epoch.add([_table(part, state[part], np.zeros_like(part), 1)], 0)
    return marks.seen, Answer(one_epoch.mark.updates, one_epoch.mark.checksum)


def _covering(shape: Large, start: int, stop: int) -> range:
    return range(start // shape.piece, -(-stop // shape.piece))


def updates(state: Any, key: Any, val: Any, time: Any) -> pa.Table:
    """Return the updates of the upserts, and write the new values to ``state`` (val[key]).

    The upserts are in order of arrival, and the value -1 deletes a key.
    """
    order = np.argsort(key, kind="stable")
    key, val, time = key[order], val[order], time[order]
    same = key[1:] == key[:-1]
    last = np.append(~same | (time[1:] != time[:-1]), True)  # last of its (key, time)
    key, val, time = key[last], val[last], time[last]
    first = np.insert(key[1:] != key[:-1], 0, True)
    old = np.where(first, state[key], np.roll(val, 1))
    final = np.append(first[1:], True)
    state[key[final]] = val[final]
    out, into = (old >= 0) & (old != val), (val >= 0) & (old != val)
    retracted = _table(key[out], old[out], time[out], -1)
    return pa.concat_tables([retracted, _table(key[into], val[into], time[into], 1)])


def _table(key: Any, val: Any, time: Any, diff: int) -> pa.Table:
    parts = [key, val.astype(np.int64), time, np.full(len(key), diff)]
    return pa.table(parts, names=["key", "val", "_time", "_diff"])
