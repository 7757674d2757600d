"""One measurement: a contender, a workload and a line, in a fresh process of its own, timed and checked.

Invariant: what is timed is Arrow in memory to Arrow in memory and nothing else; imports, compilation, loading and the
check stand outside. On a virtual machine the first to touch a page pays the host for it, more or less by chance, so
the job runs twice at full size. Memory is that of the first run, its highest resident memory less what was resident
before, so it contains the updates themselves (``output_mb`` says how many); time is that of the second. Run as a
program this is the child.

>>> job = Job("tiny", "dict", "upsert")
>>> sample = run(job)
>>> sample.updates, sample.in_order
(27874, True)
"""

from __future__ import annotations

import sys
import time
from typing import NamedTuple

import child
import memory
import pyarrow as pa
import workloads
from contenders import CONTENDERS

WARM_ROWS = 50_000
TIMEOUT = 3600  # seconds; a contender that takes longer is stuck


class Job(NamedTuple):
    """What to measure."""

    workload: str
    contender: str
    line: str


class Sample(NamedTuple):
    """What a job gave: wall and processor time in seconds, memory in MB of 2**20 bytes."""

    seconds: float
    cpu_seconds: float
    first_seconds: float  # of the run before, at full size, which is where the memory was measured
    peak_mb: float
    output_mb: float
    rows: int
    updates: int
    checksum: str
    in_order: bool


def measure(job: Job) -> Sample:
    """Run ``job`` in a fresh process; `child.Broken` when that fails."""
    return Sample(**child.ask(__file__, job._asdict(), CONTENDERS[job.contender].threads, TIMEOUT))


def run(job: Job) -> Sample:
    """Run ``job`` in this process: load, warm up, run for the memory, run for the time, check both."""
    contender = CONTENDERS[job.contender]
    pa.set_cpu_count(contender.threads)
    events = workloads.load(job.workload)
    _warm(job)
    before = memory.settled()
    memory.forget_peak()
    first, _, tables = _timed(job, events)
    peak = memory.peak() - before
    answer = _answer(tables)
    del tables
    memory.settled()
    seconds, cpu_seconds, tables = _timed(job, events)
    if _answer(tables) != answer:
        raise AssertionError(f"the same run gave {answer} and then {_answer(tables)}")
    output = sum(table.nbytes for table in tables)
    return Sample(seconds, cpu_seconds, first, peak / 2**20, output / 2**20, events.num_rows, *answer)


def _timed(job: Job, events: pa.Table) -> tuple[float, float, list[pa.Table]]:
    wall, cpu = time.perf_counter(), time.process_time()
    tables = CONTENDERS[job.contender](events, job.line)
    return time.perf_counter() - wall, time.process_time() - cpu, tables


def _answer(tables: list[pa.Table]) -> tuple[int, str, bool]:
    """Number of updates, checksum, and whether they are in order."""
    return sum(table.num_rows for table in tables), f"{workloads.checksum(tables):016x}", _in_order(tables)


def _warm(job: Job) -> None:
    """Compile or load what the contender compiles, and run it once over a few rows."""
    if job.contender.startswith("ddflow"):
        from ddflow.tools.warmup import warm

        warm(None)
    CONTENDERS[job.contender](workloads.load(job.workload).slice(0, WARM_ROWS), job.line)


def _in_order(tables: list[pa.Table]) -> bool:
    """Whether ``_time`` never decreases over the tables, one after the other."""
    before = None
    for table in tables:
        times = table["_time"].to_numpy()
        if len(times):
            if (before is not None and times[0] < before) or (times[1:] < times[:-1]).any():
                return False
            before = times[-1]
    return True


if __name__ == "__main__":
    child.answer(sys.argv[1:], lambda **job: run(Job(**job))._asdict())
