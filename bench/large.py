"""Measure contenders whose state on disk is ten times the memory budget: ddflow, RocksDB and DuckDB.

Every update is checked.

All contenders take the same upserts, steps and budget. At each mark, the updates must have the same count and checksum
as the reference. Slow peers take only a prefix (``--events``). So rates are compared over the *late window*, the last
fifth of the prefix. A peer may exceed its budget or its time, but ddflow must not. Making pieces and checking updates
is not timed. The memory of a contender is the growth of its private bytes since the moment before its first step.
Mapped and shared bytes are in a separate column. Limits: each contender has two cores.

>>> sample = BENCH.measure("tinyl", "duckdb", 20_000, 60_000, "128MB")
>>> sample["marks"][-1] == list(reference(LARGE["tinyl"], 60_000, 10_000)[0][-1]), sample["late_events"]
(True, 20000)
>>> [said_step(step) for step in (0, 100_000, 1_000_000)]
['in one step', 'in steps of 100 k', 'in steps of 1 M']
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import product
from typing import Any

import memory
import ours
import pyarrow as pa
import report
from peers_large import Duck, Rocks
from pieces import KNOWN, LARGE, Large, Marks, pieces, reference, schema
from report import Bar, Row, at_least, within
from runner import Bench, Job

PREFIX = {"w1l": 20_000_000, "w3l": 10_000_000}  # upserts that all contenders process; other workloads run in full
STEPS = (100_000, 1_000_000, 0)
LATE = 5  # the late window is the last of this many equal parts
OVER_BUDGET = 1.15  # maximum private memory beyond that of an idle engine, in multiples of the budget
NEEDS = {"rocksdict": 3.0, "rocksdict-mapped": 1.0, "duckdb": 1.0}  # required multiple of a peer's late rate


class Feed:
    """The upserts [start, stop) in pieces. The time to make the pieces is measured, so that callers can subtract it."""

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
    """The contender ddflow, with a memory budget and a spill folder.

    If a step consists of several pieces, ddflow gets the pieces as one reader.
    """

    def __init__(self, given: pa.Schema, memory: str, folder: str, epoch: bool = False) -> None:
        self._epoch, self._events = epoch, 0
        self._schema = given.remove(given.get_field_index("time")) if epoch else given
        self._engine = ours.plan(self._schema, "upsert").open(memory=memory, spill=folder, threads=1)

    def take(self, events: Feed, frontier: int | None) -> pa.Table:
        import ddflow as dd

        self._events += events.rows
        batches = (batch.select(self._schema.names) for batch in events)
        rows = pa.RecordBatchReader.from_batches(self._schema, batches)
        if self._epoch:
            return self._engine.step({"events": rows}, time=0)["out"]
        self._engine.push({"events": rows})
        return self._engine.advance_to(dd.CLOSED if frontier is None else frontier)["out"]

    def stats(self) -> dict[str, Any]:
        """Check that every upsert has its verdict, and return the figures of ddflow."""
        ours.check_verdicts(self._engine, self._events)
        stats = self._engine.stats()
        wanted = ("keys", "batches", "bytes_resident", "bytes_mapped", "bytes_pending", "write_amplification")
        return {name: stats[name] for name in wanted}

    def close(self) -> None:
        self._engine.close()


class Theirs:
    """A peer, which gets one table for each step."""

    def __init__(self, kind: Callable[..., Any], given: pa.Schema, memory: str, folder: str, **options: Any) -> None:
        self._peer = kind(folder, budget(memory), given, **options)

    def take(self, events: Feed, frontier: int | None) -> pa.Table:
        return self._peer.take(pa.Table.from_batches(list(events), events.schema))

    def stats(self) -> dict[str, Any]:
        """Return no figures."""
        return {}

    def close(self) -> None:
        self._peer.close()


# Constructors by name. `take` runs a step and returns the updates before a frontier. Later steps have only times from
# this frontier on. If the frontier is None, the input ends with this step. `stats` returns the contender's figures.
CONTENDERS: dict[str, Callable[..., Any]] = {
    "ddflow": Ours,
    "ddflow-epoch": lambda *where: Ours(*where, epoch=True),
    "rocksdict": lambda *where: Theirs(Rocks, *where),
    "rocksdict-mapped": lambda *where: Theirs(Rocks, *where, mapped=True),
    "duckdb": lambda *where: Theirs(Duck, *where),
}


def budget(size: str) -> int:
    """Return the bytes of a size like ``128MB``, parsed as ddflow does."""
    from ddflow.dataflow.budget import parse_size

    return parse_size(size) or 0


def said_step(step: int) -> str:
    """Format the size of a step for a table."""
    if step == 0:
        return "in one step"
    return f"in steps of {step // 10**6} M" if step % 10**6 == 0 else f"in steps of {step // 1000} k"


class LargeState(Bench):
    """The bench that runs every contender in steps of 100 k and 1 M.

    ddflow also runs in one single step, in both modes.
    """

    name = "large"
    about = "State on disk: ten times the budget, ddflow beside RocksDB and DuckDB."
    figures = ("cpu_seconds",)
    quick = ({"workload": "tinyl,tinyl3"}, {})
    columns = (
        "contender {contender} | M upserts {m_events:g} | M/s {m_per_s:.3f} | late M/s {late_m_per_s:.3f} | "
        "CPU s {cpu_seconds:.1f} | private MB {private_over_idle!M:,.0f} | mapped MB {mapped_over_idle!M:,.0f} | "
        "disk MB {disk!M:,.0f} | write ampl. {write_amplification:.2f}"
    )

    def jobs(self) -> list[Job]:
        jobs = []
        for name, shape in LARGE.items():
            named, prefix = () if name in PREFIX else ("workload",), PREFIX.get(name, shape.n)
            for step, contender in product(STEPS, CONTENDERS):
                mine = contender.startswith("ddflow")
                # In addition, ddflow must process all events in a single step, in both modes, although the events are
                # far larger than the budget.
                sizes = [None] if mine and (step == 0 or prefix < shape.n) else []
                sizes = [prefix, *sizes] if step else sizes
                if step == 0 or contender != "ddflow-epoch":
                    where = {"workload": name, "contender": contender, "step": min(step, shape.piece * 10)}
                    whats = ({**where, "events": events, "memory": "128MB"} for events in sizes)
                    jobs += [Job(what, 2, may_fail=not mine, named=named) for what in whats]
        return jobs

    def measure(self, workload: str, contender: str, step: int, events: int | None, memory: str) -> dict[str, Any]:
        """Warm up, open the contender and watch its memory.

        Run each step, check its updates and drop them. ``events=None`` takes all events.
        """
        shape = LARGE[workload]
        if step % shape.piece:
            raise ValueError(f"a step of {step} does not fit the pieces of {workload}; use a multiple of {shape.piece}")
        events = events or shape.n
        with tempfile.TemporaryDirectory(prefix="ddflow-bench-") as folder:
            where = (schema(LARGE[workload]), memory, folder)
            _warm(workload, contender, memory)
            return _measured(shape, CONTENDERS[contender](*where), step or events, events, folder)

    def question(self, job: Job) -> dict[str, Any]:
        return {"workload": job.what["workload"], "events": _events(job)}

    def expected(self, workload: str, events: int) -> Any:
        """Return the marks that every contender must reach, and the answer if all events form one epoch."""
        marks, epoch = reference(LARGE[workload], events, _every(LARGE[workload]))
        known = KNOWN.get((workload, events))
        if known is not None and tuple(marks[-1][1:]) != tuple(known):
            raise AssertionError(f"the generated input differs: {marks[-1][1:]}, expected {known}")
        return [[list(mark) for mark in marks], list(epoch)]

    def wrong(self, job: Job, sample: dict[str, Any], expected: Any) -> str | None:
        """Compare every mark with that of the reference. If all events formed one epoch, compare the live rows."""
        (marks, epoch), last = expected, sample["marks"][-1]
        if last[0] != _events(job):
            return f"it took {last[0]:,} of {_events(job):,} upserts"
        if job.what["contender"] == "ddflow-epoch":
            return None if last[1:] == epoch else f"gave {last[1:]}, expected {epoch}"
        known = {mark[0]: mark for mark in marks}
        for mark in sample["marks"]:
            if mark != known[mark[0]]:
                return f"after {mark[0]:,} upserts gave {mark[1:]}, expected {known[mark[0]][1:]}"
        return None

    def row(self, job: Job, samples: Sequence[dict[str, Any]]) -> Row:
        row = {**job.what, "events": _events(job), "steps": said_step(job.what["step"]), "failed": None, **samples[0]}
        if row["failed"] is None:
            row["m_events"] = row["events"] / 1e6
            row["write_amplification"] = row["stats"].get("write_amplification")
            row["m_per_s"] = row["events"] / row["seconds"] / 1e6
            row["late_m_per_s"] = row["late_events"] / row["late_seconds"] / 1e6
            row["private_over_idle"] = row["peak"][0] - row["idle"][0]
            row["mapped_over_idle"] = sum(row["peak"][1:]) - sum(row["idle"][1:])
        return row

    def tables(self, result: Row) -> Iterator[tuple[str, Sequence[Row]]]:
        """Yield a table per workload and step."""
        done = [row for row in result["results"] if row["failed"] is None]
        for (workload, steps, size), rows in report.grouped(done, "workload", "steps", "memory"):
            yield f"{workload} {steps}, {size}", rows

    def notes(self, result: Row) -> list[str]:
        """List the failed contenders and the reasons."""
        failed = [row for row in result["results"] if row["failed"] is not None]
        return [f"{row['contender']} {row['workload']} {row['steps']} failed: {row['failed']}" for row in failed]

    def bars(self, result: Row) -> Iterator[Bar]:
        """Yield the bars (targets).

        The bars limit private memory, and require a ratio between ddflow's late rate and each peer's late rate on the
        same upserts.
        """
        rows = [row for row in result["results"] if row["failed"] is None]
        asked = ("workload", "steps", "events")
        for mine in (row for row in rows if row["contender"].startswith("ddflow")):
            title = f"{mine['workload']} {mine['steps']}"
            for peer, times in NEEDS.items():
                for row in rows:
                    if row["contender"] == peer and all(row[name] == mine[name] for name in asked):
                        rates = mine["late_m_per_s"], peer, row["late_m_per_s"]
                        yield at_least(title, *rates, times, digits=(2, 3))
            over, most = mine["private_over_idle"], OVER_BUDGET * budget(mine["memory"])
            said = f"{over / 1e6:.0f} MB; mapped {mine['mapped_over_idle'] / 1e6:,.0f}"
            line = f"{title}, private memory, {mine['contender']}, {mine['events'] / 1e6:g} M"
            yield within(line, said, f"{most / 1e6:.0f} MB", over <= most)


def _events(job: Job) -> int:
    return job.what["events"] or LARGE[job.what["workload"]].n


def _every(shape: Large) -> int:
    """Return the number of upserts between two marks."""
    return max(shape.piece, shape.n // 50)


def _warm(workload: str, contender: str, memory: str) -> None:
    """Compile or load the contender's code, and then let it process one small piece whose answer is checked."""
    if contender.startswith("ddflow"):
        ours.warm()
    shape = LARGE[workload]
    with tempfile.TemporaryDirectory() as folder:
        state = CONTENDERS[contender](schema(shape), memory, folder)
        Marks(1).add([state.take(Feed(shape, 0, 10_000), None)], 1)
        state.close()


def _measured(shape: Large, state: Any, step: int, events: int, folder: str) -> dict[str, Any]:
    """Run every step. Return the seconds, the bytes, and the count and checksum of the updates at every mark."""
    marks, pace = Marks(_every(shape)), [[0.0, 0.0]]
    seconds = late = cpu = 0.0
    window = max(step, events // LATE // step * step)
    memory.settled()
    idle = memory.pages()
    with memory.Watch() as watch:
        for start in range(0, events, step):
            stop = min(start + step, events)
            feed = Feed(shape, start, stop)
            wall_at, cpu_at = time.perf_counter(), time.process_time()
            updates = state.take(feed, None if stop == events else stop // shape.per_time)
            took = time.perf_counter() - wall_at - feed.wall
            seconds, cpu = seconds + took, cpu + time.process_time() - cpu_at - feed.cpu
            late += took if start >= events - window else 0
            if stop - pace[-1][0] >= events / 100:
                pace.append([stop, seconds])
            marks.add([updates], stop - start)
            del updates
    stats, disk = state.stats(), memory.on_disk(folder)
    state.close()
    if not marks.seen or marks.seen[-1] != marks.mark:
        marks.seen.append(marks.mark)
    return {
        "seconds": seconds,
        "late_seconds": late,  # of the last `late_events`
        "cpu_seconds": cpu,
        "late_events": window,
        "marks": [list(mark) for mark in marks.seen],
        "pace": pace,  # events and seconds so far, at about a hundred points of the run
        "idle": list(idle),  # private, mapped, shared bytes before the first step
        "peak": list(watch.peak),  # the maximum of private, mapped and shared bytes
        "disk": disk,
        "stats": stats,
    }


BENCH = LargeState()
