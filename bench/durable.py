"""Measure commits and reopening as the state grows from 10^5 to 10^7 keys.

Each job loads and commits all keys. Then the job runs epochs of 10 k events on random keys. The step and the commit of
each epoch are timed separately. A commit writes the versions of its step and of all merges since the previous commit.
Some commits are larger because of merges. So the epochs must cover full merge cycles, and the table has both mean and
median. Sync times vary on a shared machine, so the table also has CPU time, and the time to sync the same number of
bytes in plain files. The reopened state must hold the same rows.

Limits: the bench uses one local disk and one engine.

>>> row = BENCH.measure(5_000, 3)
>>> row["commit_ms"] > 0, row["reopen_seconds"] > 0
(True, True)
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Iterator
from statistics import mean, median
from typing import Any

import numpy as np
import ours
import pyarrow as pa
import pyarrow.compute as pc
from report import Bar, Row, within
from runner import Bench, Job

SIZES = (10**5, 10**6, 10**7)
STEP = 10_000
GROWS = 2.0  # maximum ratio of a commit's CPU time between the largest and the smallest state


class Commits(Bench):
    """The bench, with one job for each number of keys."""

    name = "durable"
    about = f"Durability: commits of {STEP:,} events, and reopening."
    figures = ("commit_median_ms", "commit_cpu_ms")
    quick = ({"keys": "100000"}, {"epochs": "20"})
    columns = (
        "keys {keys:,} | epochs {epochs:,} | step ms {step_ms:.1f} | commit ms, mean {commit_ms:.1f} | "
        "median {commit_median_ms:.1f} | longest {commit_longest_ms:.1f} | CPU ms {commit_cpu_ms:.1f} | "
        "written MB {bytes_per_commit!M:.2f} | bare ms {bare_ms:.1f} | files {files:,} | "
        "reopen s {reopen_seconds:.2f} | CPU s {reopen_cpu_seconds:.2f} | first step ms {first_step_ms:.1f}"
    )

    def jobs(self) -> list[Job]:
        return [Job({"keys": keys, "epochs": 200}) for keys in SIZES]

    def measure(self, keys: int, epochs: int) -> dict[str, Any]:
        """Load, commit ``epochs`` epochs and reopen; raise AssertionError if the reopened state has other rows."""
        import ddflow as dd

        ours.warm()
        rng, flow = np.random.default_rng(keys), dd.Flow()
        flow.output("out", flow.upserts("events", _table(np.zeros(1, np.int64), rng).schema, dd.Upsert(key="key")))
        steps, commits, cpus, at = list[float](), list[float](), list[float](), 0
        with tempfile.TemporaryDirectory(prefix="ddflow-bench-") as folder:
            state = os.path.join(folder, "state")
            with flow.open(state, commit_every=None) as engine:
                everyone = rng.permutation(keys)
                for start in range(0, keys, ours.STEP):
                    engine.step({"events": _table(everyone[start : start + ours.STEP], rng)}, at := at + 1)
                engine.flush()
                before = _bytes(state)
                for _ in range(epochs):
                    table = _table(rng.integers(0, keys, STEP), rng)
                    begun = time.perf_counter()
                    engine.step({"events": table}, at := at + 1)
                    stepped, cpu = time.perf_counter(), time.process_time()
                    engine.flush()
                    commits.append(time.perf_counter() - stepped)
                    cpus.append(time.process_time() - cpu)
                    steps.append(stepped - begun)
                written = (_bytes(state) - before) / epochs
                answer, files = _sums(engine.read("out")), len(os.listdir(os.path.join(state, "blobs")))
            begun, cpu = time.perf_counter(), time.process_time()
            with flow.open(state) as engine:
                reopened, reopened_cpu = time.perf_counter() - begun, time.process_time() - cpu
                begun = time.perf_counter()
                engine.step({}, at := at + 1)
                engine.step({"events": _table(rng.integers(0, keys, 10), rng)}, at := at + 1)
                first = time.perf_counter() - begun
            if _sums(dd.read(state, "out", epoch=epochs + 1)) != answer:
                raise AssertionError("the reopened state has different rows")
            bare = _bare(folder, int(written))
        return {
            "step_ms": median(steps) * 1e3,
            "commit_ms": mean(commits) * 1e3,
            "commit_median_ms": median(commits) * 1e3,
            "commit_longest_ms": max(commits) * 1e3,
            "commit_cpu_ms": mean(cpus) * 1e3,
            "bytes_per_commit": written,
            "bare_ms": bare * 1e3,
            "files": files,
            "reopen_seconds": reopened,
            "reopen_cpu_seconds": reopened_cpu,
            "first_step_ms": first * 1e3,
        }

    def bars(self, result: Row) -> Iterator[Bar]:
        """Yield the bar (target).

        The bar limits the CPU time of a commit on the largest state, as a multiple of the CPU time on the smallest
        state.
        """
        rows = sorted(result["results"], key=lambda row: row["keys"])
        if len(rows) > 1:
            took = [row["commit_cpu_ms"] for row in rows]
            grown, line = max(took) / min(took), f"a commit's CPU, {rows[0]['keys']:,} to {rows[-1]['keys']:,} keys"
            said = f"{grown:.2f} times ({min(took):.1f} to {max(took):.1f} ms)"
            yield within(line, said, f"{GROWS:.2f} times", grown <= GROWS)


def _table(key: Any, rng: Any) -> pa.Table:
    return pa.table({"key": key, "a": rng.integers(0, 2**40, len(key)), "b": rng.integers(0, 2**40, len(key))})


def _sums(rows: pa.Table) -> tuple[int, ...]:
    return (rows.num_rows, *(pc.sum(rows.column(name)).as_py() for name in ("key", "a", "b")))


def _bytes(state: str) -> int:
    return sum(entry.stat().st_size for entry in os.scandir(os.path.join(state, "blobs")))


def _bare(folder: str, size: int) -> float:
    """Return the seconds to write a commit's bytes to the same number of plain files and to sync them."""
    took = []
    for i in range(30):
        data, begun = os.urandom(max(size // 3, 1)), time.perf_counter()
        for j in range(4):  # versions, updates, inventory, manifest
            file = os.open(os.path.join(folder, f"bare-{i}-{j}"), os.O_WRONLY | os.O_CREAT)
            os.write(file, data if j < 3 else data[:8192])
            os.fsync(file)
            os.close(file)
        for _ in range(2):
            place = os.open(folder, os.O_RDONLY)
            os.fsync(place)
            os.close(place)
        took.append(time.perf_counter() - begun)
    return mean(took)


BENCH = Commits()
