"""The runs of one batcher, by their least time: few that overlap, however many pushes there were.

Invariant: a seal does not touch a run that releases nothing, and nothing is counted anew. Of one size class fewer than
``FAN`` runs wait to be merged, and fewer than ``LARGE`` bytes; so n events pushed one by one leave O(log n) small runs.
Events that were merged to ``LARGE`` bytes are *final*: they are cut by time into chunks, with each time in one chunk. A
seal consumes them one after the other, and their memory goes with them. A push may have one event or a million. Merging
each push into one sorted whole would cost O(n) a push; merging none would cost every seal a visit to each; one large
run would keep all its memory until its last event goes. An event is copied once a class, O(n log n) in all, and no
merge is of more than 2 x ``LARGE`` bytes. A copy of a `Runs` shares them.

>>> import numpy as np, pyarrow as pa
>>> from ddflow.operators.upsert.events import Events
>>> runs = Runs()
>>> for i in range(1000):
...     n = np.array([1000 - i])
...     runs.push(PendingRun.resident(Events(pa.record_batch({"n": n}), n, n, np.array([i]))))
>>> len(runs.by_least) < 3 * FAN, runs.by_least[0].least
(True, 1)
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable, Sequence
from operator import attrgetter
from typing import Final

from ddflow.dataflow.batcher.chunks import chunks, rows_of
from ddflow.dataflow.batcher.run import PendingRun
from ddflow.operators.upsert.events import joined

FAN: Final = 16
"""Runs of one size class that are merged into one."""
LARGE: Final = 8 << 20
"""The size in bytes from which runs are final."""
CHUNK: Final = 1 << 20
"""Bytes of the pieces that it is then cut into."""
LEAST = attrgetter("least")


class Runs:
    """``by_least``: the runs.  ``bytes_resident``: bytes of the resident ones.  ``mapped``: bytes of the files of the
    others."""

    __slots__ = ("by_least", "bytes_resident", "classes", "fresh", "mapped")

    def __init__(self) -> None:
        self.by_least: list[PendingRun] = []
        self.bytes_resident = self.mapped = 0
        self.classes: dict[int, tuple[int, int]] = {}
        """The number and the bytes of the runs to merge, by class."""
        self.fresh: PendingRun | None = None
        """The last pushed run, in the caller's memory."""

    def copy(self) -> Runs:
        """Copy the collection; later changes of one do not affect the other. O(runs)."""
        out = Runs()
        out.by_least, out.classes = self.by_least.copy(), self.classes.copy()
        out.bytes_resident, out.mapped, out.fresh = self.bytes_resident, self.mapped, self.fresh
        return out

    def push(self, run: PendingRun) -> None:
        """Add a new run in the caller's memory; copy the events of the run before if it wastes memory or is large."""
        fresh, self.fresh = self.fresh, run
        if fresh is not None and (fresh.wasteful or fresh.bytes_resident >= LARGE):
            self.swap([fresh], kept(fresh))
        self.add(run)

    def add(self, run: PendingRun) -> None:
        """Put a run in, and merge its class when that is due.  O(log runs), and O(log n) amortised for each event."""
        insort(self.by_least, run, key=LEAST)
        self._count(run, 1)
        number, bytes_resident = self.classes.get(of := class_of(run), (0, 0))
        if number >= FAN or (number > 1 and bytes_resident >= LARGE):
            self.swap(due := self.of_class(of), merged(due))

    def below(self, upper: int) -> list[PendingRun]:
        """List the runs that have an event before ``upper``. O(log runs + those)."""
        return self.by_least[: bisect_left(self.by_least, upper, key=LEAST)]

    def advance(self, upper: int) -> None:
        """Take the events before ``upper`` out.  O(runs that have one); what is left of a run may be copied."""
        gone = self.below(upper)
        del self.by_least[: len(gone)]
        for run in gone:
            self._count(run, -1)
        for run in gone:
            rest = run.after(run.place(upper))
            copied = rest is not None and not rest.final and rest.wasteful
            if run is self.fresh:
                self.fresh = None if copied else rest
            if rest is not None:
                for part in kept(rest) if copied else [rest]:
                    self.add(part)

    def swap(self, gone: Iterable[PendingRun], new: Iterable[PendingRun]) -> None:
        """Replace some runs by others with the same events.  O(runs)."""
        old = set(map(id, gone))
        for run in self.by_least:
            if id(run) in old:
                self._count(run, -1)
        self.by_least = [run for run in self.by_least if id(run) not in old]
        if id(self.fresh) in old:
            self.fresh = None
        for run in new:
            self.add(run)

    def of_class(self, number: int) -> list[PendingRun]:
        """List the runs of a size class."""
        return [run for run in self.by_least if class_of(run) == number]

    def _count(self, run: PendingRun, sign: int) -> None:
        """Count a run in, or out."""
        self.bytes_resident += sign * run.bytes_resident
        self.mapped += sign * (run.file.nbytes if run.file is not None else 0)
        if of := class_of(run):
            number, bytes_resident = self.classes.get(of, (0, 0))
            self.classes[of] = (number + sign, bytes_resident + sign * run.bytes_resident)

    def _check(self) -> None:
        """Assert the invariant."""
        # By least time, and the totals are those of the runs.
        assert [run.least for run in self.by_least] == sorted(run.least for run in self.by_least)
        assert self.bytes_resident == sum(run.bytes_resident for run in self.by_least)
        assert self.mapped == sum(run.file.nbytes for run in self.by_least if run.file is not None)
        classes = {of: self.of_class(of) for of in set(map(class_of, self.by_least)) - {0}}
        counted = {of: (len(runs), sum(run.bytes_resident for run in runs)) for of, runs in classes.items()}
        assert {of: each for of, each in self.classes.items() if each != (0, 0)} == counted
        # Few of a class.
        assert all(
            number < FAN and (number == 1 or bytes_resident < LARGE) for number, bytes_resident in counted.values()
        )
        assert self.fresh is None or any(run is self.fresh for run in self.by_least)
        for run in self.by_least:
            times, arrival = run.events.times, run.events.arrival
            # No run is empty; each is in the order of times, then of arrival.
            assert 0 <= run.begin < times.size
            assert bool(((times[1:] > times[:-1]) | (times[1:] == times[:-1]) & (arrival[1:] > arrival[:-1])).all())
            assert run.events.rows.num_rows == times.size
            # A file is as it was written; memory is counted where there is none.
            if run.file is not None:
                run.file.verify()
            assert (run.bytes_resident == 0) == (run.file is not None)


def size_class(size: int) -> int:
    """Return the number of a size class, 1 and up: bytes within a factor of ``FAN`` of each other."""
    return (size.bit_length() + 3) // 4


def class_of(run: PendingRun) -> int:
    """Return the size class of a run: resident runs of one class are merged; 0 for none."""
    return 0 if run.final or run.bytes_resident >= LARGE else size_class(run.bytes_resident)


def merged(runs: Sequence[PendingRun]) -> list[PendingRun]:
    """Merge some runs into one run, or into final chunks if they are ``LARGE``. O(n log n)."""
    if sum(run.size for run in runs) < LARGE:
        return [PendingRun.own(joined([run.waiting for run in runs]))]
    return [PendingRun.own(chunk, final=True) for chunk in chunks(runs, rows_of(runs, CHUNK))]


def kept(run: PendingRun) -> list[PendingRun]:
    """Copy the events of a run into memory that nothing else uses. O(n)."""
    return merged([run])


def to_spill(runs: Runs, at_most: int, chunk: int) -> list[PendingRun]:
    """Choose the runs to write so that at most ``at_most`` bytes stay resident. O(runs log runs).

    Final runs go first, those with the latest times before others, as they will wait longest; then the largest. Small
    files of earlier spills, of less than half of ``chunk`` bytes, are written again with them, ``FAN`` of a size class
    at a time. So files never become many, and each event is written once a class.
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
            small.setdefault(size_class(run.file.nbytes), []).append(run)
    return chosen + [run for same in small.values() if len(same) >= FAN for run in same]
