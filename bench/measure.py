"""One measurement: a contender, a workload and a line, in a fresh process of its own, timed and checked.

Invariant: what is timed is Arrow in memory to Arrow in memory and nothing else; imports, compilation, loading and the
check stand outside.  Why that is not trivial: a process that has already run a contender gives the next one its
allocator's warm pages, and its peak memory; hence one process each.  In it the job runs twice at full size: memory is
that of the first run, its highest resident memory less what was resident before, so it contains the updates themselves
(``output_mb`` says how many); time is that of the second, because on a virtual machine the first pays the host for
memory, more or less by chance.

Run as a program this *is* the child: it takes a job as JSON and prints a sample as JSON.

>>> job = Job("tiny", "dict", "upsert")
>>> Job(**json.loads(json.dumps(job._asdict()))) == job
True
>>> environment(2)["POLARS_MAX_THREADS"], environment(2)["OMP_NUM_THREADS"]
('2', '2')
"""

from __future__ import annotations

import gc
import json
import os
import resource
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import workloads
from contenders import CONTENDERS

ROOT = Path(__file__).resolve().parent.parent
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


class Broken(RuntimeError):
    """A contender did not finish; the message is what it said."""


def environment(threads: int) -> dict[str, str]:
    """The variables that hold every library to ``threads`` threads (they are read when it is imported), and ours first.

    The checkout the bench stands in comes first on the path, so that no other ddflow is measured by mistake.
    """
    names = ("POLARS_MAX_THREADS", "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS")
    path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    return {**os.environ, **dict.fromkeys(names, str(threads)), "PYTHONPATH": path}


def measure(job: Job) -> Sample:
    """Run ``job`` in a fresh process; Broken when that fails."""
    command = [sys.executable, str(Path(__file__).resolve()), json.dumps(job._asdict())]
    threads = CONTENDERS[job.contender].threads
    try:
        done = subprocess.run(command, capture_output=True, text=True, env=environment(threads), timeout=TIMEOUT)
    except subprocess.TimeoutExpired as late:
        raise Broken(f"no answer within {TIMEOUT} s") from late
    if done.returncode:
        raise Broken(done.stderr.strip() or f"exit code {done.returncode}")
    return Sample(**json.loads(done.stdout.splitlines()[-1]))


def run(job: Job) -> Sample:
    """Run ``job`` in this process: load, warm up, run for the memory, run for the time, check both."""
    contender = CONTENDERS[job.contender]
    pa.set_cpu_count(contender.threads)
    events = workloads.load(job.workload)
    _warm(job)
    before = _settled()
    _forget_peak()
    first, _, tables = _timed(job, events)
    peak = _peak() - before
    answer = _answer(tables)
    del tables
    _settled()
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


def _settled() -> int:
    """Give back what nobody holds any more; returns the resident bytes that are left."""
    gc.collect()
    pa.default_memory_pool().release_unused()
    return _resident()


def _warm(job: Job) -> None:
    """Compile or load what the contender compiles, and run it once over a few rows."""
    if job.contender == "ddflow":
        from ddflow.warmup import warm

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


def _status(field: str) -> int | None:
    """A size in bytes out of Linux's account of this process, None on other systems."""
    try:
        text = Path("/proc/self/status").read_text()
    except OSError:
        return None
    return next(int(line.split()[1]) * 1024 for line in text.splitlines() if line.startswith(field + ":"))


def _resident() -> int:
    now = _status("VmRSS")
    return _highest() if now is None else now


def _peak() -> int:
    # getrusage would also count what the parent held when it forked this process, so it is the second choice.
    high = _status("VmHWM")
    return _highest() if high is None else high


def _highest() -> int:
    high = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return high if sys.platform == "darwin" else high * 1024


def _forget_peak() -> None:
    """Let the peak start from now; where the system cannot do that, loading the input is part of it."""
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        return


def main(arguments: list[str]) -> None:
    """The child: a job as JSON in, a sample as JSON out."""
    fields: dict[str, Any] = json.loads(arguments[0])
    print(json.dumps(run(Job(**fields))._asdict()))


if __name__ == "__main__":
    main(sys.argv[1:])
