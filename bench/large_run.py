"""One measurement of a large workload: a contender takes its upserts in steps, inside a budget, in a fresh process.

Invariant: only what the contender does is timed; making a piece and checking updates stand outside, even where pieces
are made while the contender is reading them. Updates are checked and dropped after each step. Memory is watched all
the while, and what the bench itself takes must not show: a piece is some megabytes and is gone before the next, and
updates are looked at 64 k rows at a time. Memory is told as private bytes over those of the idle contender, opened
with the same arguments, and mapped and shared bytes beside it. As a program: the child.

>>> with tempfile.TemporaryDirectory() as folder:
...     sample = run(LargeJob("tinyl", "duckdb", 20_000, 60_000, "128MB", folder))
>>> sample.marks[-1] == list(reference(LARGE["tinyl"], 60_000, 10_000)[0][-1]), sample.late_events
(True, 20000)
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, Protocol

import child
import memory
import ours
import pyarrow as pa
from peers_large import Duck, Rocks
from pieces import LARGE, Large, Marks, pieces, reference, schema

LATE = 5  # the late window is the last one of so many parts


class LargeJob(NamedTuple):
    """What to measure: ``step`` upserts at a time of the first ``events``; a step of 0 takes all at once.

    ``memory``: the budget.  ``folder``: an empty folder for what the contender keeps on disk.
    """

    workload: str
    contender: str
    step: int
    events: int
    memory: str
    folder: str


class LargeSample(NamedTuple):
    """What a job gave: seconds, bytes, and for each mark what the updates came to so far."""

    seconds: float
    late_seconds: float  # of those, for the last `late_events`
    cpu_seconds: float
    late_events: int
    marks: list[list[Any]]
    pace: list[list[float]]  # events so far, seconds so far, about a hundred times
    idle: list[int]  # private, mapped, shared: before the first step
    peak: list[int]  # the same, the most of each
    disk: int  # bytes of files at the end
    stats: dict[str, Any]


class State(Protocol):
    """A contender, opened."""

    def take(self, events: Feed, frontier: int | None) -> list[pa.Table]:
        """The updates of a step; ``frontier``: no time below it comes any more, None when none comes at all."""

    def stats(self) -> dict[str, Any]:
        """What it says of itself."""

    def close(self) -> None:
        """Let go of everything."""


class Feed:
    """Upserts [start, stop) in pieces; counts the time that making them takes, so that it can be left out."""

    def __init__(self, shape: Large, start: int, stop: int) -> None:
        self.rows, self.schema = stop - start, schema(shape)
        self.wall = self.cpu = 0.0
        self._pieces = pieces(shape, start, stop)

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        while True:
            wall, cpu = time.perf_counter(), time.thread_time()
            batch = next(self._pieces, None)
            self.wall += time.perf_counter() - wall
            self.cpu += time.thread_time() - cpu
            if batch is None:
                return
            yield batch


class Ours:
    """ddflow with a budget and a spill folder; several pieces are handed over as a reader, which it may stream."""

    def __init__(self, job: LargeJob, epoch: bool = False) -> None:
        given = schema(LARGE[job.workload])
        self._epoch, self._events = epoch, 0
        self._schema = given.remove(given.get_field_index("time")) if epoch else given
        self._engine = ours.opened(ours.plan(self._schema, "upsert"), memory=job.memory, spill=job.folder)

    def take(self, events: Feed, frontier: int | None) -> list[pa.Table]:
        """See `State`."""
        import ddflow as dd

        self._events += events.rows
        rows = pa.RecordBatchReader.from_batches(self._schema, (self._picked(batch) for batch in events))
        if self._epoch:
            return [self._engine.step({"events": rows}, time=0)["out"]]
        self._engine.push({"events": rows})
        return [self._engine.advance_to(dd.CLOSED if frontier is None else frontier)["out"]]

    def _picked(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        return batch.select(self._schema.names)

    def stats(self) -> dict[str, Any]:
        """Its figures, when every upsert has its verdict."""
        ours.check_verdicts(self._engine, self._events)
        stats = self._engine.stats()
        wanted = ("keys", "batches", "bytes_resident", "bytes_mapped", "bytes_pending", "write_amplification")
        return {name: stats[name] for name in wanted}

    def close(self) -> None:
        """Close the engine."""
        self._engine.close()


class Theirs:
    """A peer that takes a table a step."""

    def __init__(self, job: LargeJob, kind: Callable[..., Any], **options: Any) -> None:
        self._peer = kind(job.folder, budget(job.memory), schema(LARGE[job.workload]), **options)

    def take(self, events: Feed, frontier: int | None) -> list[pa.Table]:
        """See `State`."""
        return [self._peer.take(pa.Table.from_batches(list(events), events.schema))]

    def stats(self) -> dict[str, Any]:
        """Nothing."""
        return {}

    def close(self) -> None:
        """Close the peer."""
        self._peer.close()


CONTENDERS: dict[str, Callable[[LargeJob], State]] = {
    "ddflow": Ours,
    "ddflow-epoch": lambda job: Ours(job, epoch=True),
    "rocksdict": lambda job: Theirs(job, Rocks),
    "rocksdict-mapped": lambda job: Theirs(job, Rocks, mapped=True),
    "duckdb": lambda job: Theirs(job, Duck),
}


def budget(size: str) -> int:
    """Bytes of a size like ``128MB``, read as ddflow reads it."""
    from ddflow.dataflow.budget import parse_size

    return parse_size(size) or 0


def every(shape: Large) -> int:
    """How many upserts lie between two marks."""
    return max(shape.piece, shape.n // 50)


def run(job: LargeJob) -> LargeSample:
    """Run ``job`` in this process: warm up, open, watch the memory, take every step, check and drop its updates."""
    shape = LARGE[job.workload]
    step = job.step or job.events
    _warm(job)
    state = CONTENDERS[job.contender](job)
    marks, pace = Marks(every(shape)), [[0.0, 0.0]]
    seconds = late = cpu = 0.0
    window = max(step, job.events // LATE // step * step)
    memory.settled()
    idle = memory.pages()
    with memory.Watch() as watch:
        for start in range(0, job.events, step):
            stop = min(start + step, job.events)
            feed = Feed(shape, start, stop)
            wall_at, cpu_at = time.perf_counter(), time.process_time()
            tables = state.take(feed, None if stop == job.events else stop // shape.per_time)
            took = time.perf_counter() - wall_at - feed.wall
            seconds, cpu = seconds + took, cpu + time.process_time() - cpu_at - feed.cpu
            late += took if start >= job.events - window else 0
            if stop - pace[-1][0] >= job.events / 100:
                pace.append([stop, seconds])
            marks.add(tables, stop - start)
            del tables
    said, disk = state.stats(), memory.on_disk(job.folder)
    state.close()
    if not marks.seen or marks.seen[-1] != marks.mark:
        marks.seen.append(marks.mark)
    seen = [list(mark) for mark in marks.seen]
    return LargeSample(seconds, late, cpu, window, seen, pace, list(idle), list(watch.peak), disk, said)


def _warm(job: LargeJob) -> None:
    """Compile or load what the contender compiles, and have one small piece made, taken and checked."""
    if job.contender.startswith("ddflow"):
        from ddflow.tools.warmup import warm

        warm(None)
    shape = LARGE[job.workload]
    with tempfile.TemporaryDirectory() as folder:
        state = CONTENDERS[job.contender](job._replace(folder=folder))
        Marks(1).add(state.take(Feed(shape, 0, 10_000), None), 1)
        state.close()


def answer(workload: str, events: int) -> list[Any]:
    """The marks that every contender must give, and the answer for one epoch."""
    marks, epoch = reference(LARGE[workload], events, every(LARGE[workload]))
    return [[list(mark) for mark in marks], list(epoch)]


if __name__ == "__main__":
    questions: dict[str, Callable[..., Any]] = {"answer": answer, "run": lambda **job: run(LargeJob(**job))._asdict()}
    child.answer(sys.argv[1:], lambda what, **fields: questions[what](**fields))
