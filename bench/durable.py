#!/usr/bin/env python3
"""The durable bench: what a commit costs as the state grows from 10^5 keys to 10^7, and what it takes to open it again.

Invariant: at every size all keys are loaded and committed first; then epochs of 10 k events on random keys are stepped
and committed one by one, and only the commits are told of, apart from the steps. Every answer is checked: the state
that is opened again must hold the same rows. A commit writes the step's versions and what merges wrote since the last
one, so there must be epochs enough for merges to come round; the mean counts, the median is told beside it. A commit
waits for the disk, whose syncs take as long as they like on a shared machine; so processor time stands beside wall
time, and the bare cost of syncing as many files of as many bytes, with nothing in them, too.

>>> row = run(5_000, 3)
>>> row["keys"], row["epochs"], row["commit_ms"] > 0, row["reopen_seconds"] > 0
(5000, 3, True, True)
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import mean, median
from typing import Any

import child
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import report
from rich.console import Console

import ddflow as dd

SIZES = (10**5, 10**6, 10**7)
STEP, LOADED = 10_000, 100_000
HEADINGS = (
    "keys",
    "epochs",
    "step ms",
    "commit ms, mean",
    "median",
    "longest",
    "CPU ms",
    "written MB",
    "bare ms",
    "files",
    "reopen s",
    "CPU s",
    "first step ms",
)


def run(keys: int, epochs: int) -> dict[str, Any]:
    """Load ``keys`` keys, commit ``epochs`` epochs, open the state again; AssertionError when it holds other rows."""
    from ddflow.tools.warmup import warm

    warm(None)
    rng, folder = np.random.default_rng(keys), tempfile.mkdtemp(prefix="ddflow-bench-")
    flow = dd.Flow()
    flow.output("out", flow.upserts("events", _table(np.zeros(1, np.int64), rng).schema, dd.Upsert(key="key")))
    state = os.path.join(folder, "state")
    steps, commits, cpus, at = list[float](), list[float](), list[float](), 0
    try:
        with flow.open(state, autocommit=False) as engine:
            everyone = rng.permutation(keys)
            for start in range(0, keys, LOADED):
                engine.step({"events": _table(everyone[start : start + LOADED], rng)}, at := at + 1)
            engine.commit()
            before = _bytes(state)
            for _ in range(epochs):
                table = _table(rng.integers(0, keys, STEP), rng)
                begun = time.perf_counter()
                engine.step({"events": table}, at := at + 1)
                stepped, cpu = time.perf_counter(), time.process_time()
                engine.commit()
                commits.append(time.perf_counter() - stepped)
                cpus.append(time.process_time() - cpu)
                steps.append(stepped - begun)
            written = (_bytes(state) - before) / epochs
            answer, files = _sums(engine.read("out")), len(os.listdir(os.path.join(state, "blobs")))
        begun, cpu = time.perf_counter(), time.process_time()
        with flow.open(state) as engine:
            reopened, opened_cpu = time.perf_counter() - begun, time.process_time() - cpu
            begun = time.perf_counter()
            engine.step({}, at := at + 1)
            engine.step({"events": _table(rng.integers(0, keys, 10), rng)}, at := at + 1)
            first = time.perf_counter() - begun
        if _sums(dd.read(state, "out", epoch=epochs + 1)) != answer:
            raise AssertionError("the state that was opened again holds other rows")
        bare = _bare(folder, int(written))
    finally:
        shutil.rmtree(folder)
    return {
        "keys": keys,
        "epochs": epochs,
        "step_ms": median(steps) * 1e3,
        "commit_ms": mean(commits) * 1e3,
        "commit_median_ms": median(commits) * 1e3,
        "commit_longest_ms": max(commits) * 1e3,
        "commit_cpu_ms": mean(cpus) * 1e3,
        "bytes_per_commit": written,
        "bare_ms": bare * 1e3,
        "files": files,
        "reopen_seconds": reopened,
        "reopen_cpu_seconds": opened_cpu,
        "first_step_ms": first * 1e3,
    }


def _table(key: Any, rng: Any) -> pa.Table:
    return pa.table({"key": key, "a": rng.integers(0, 2**40, len(key)), "b": rng.integers(0, 2**40, len(key))})


def _sums(rows: pa.Table) -> tuple[int, ...]:
    return (rows.num_rows, *(pc.sum(rows.column(name)).as_py() for name in ("key", "a", "b")))


def _bytes(state: str) -> int:
    return sum(entry.stat().st_size for entry in os.scandir(os.path.join(state, "blobs")))


def _bare(folder: str, size: int) -> float:
    """Seconds to write as many bytes as a commit does in as many files, and to sync them and their folders."""
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


def _cells(row: dict[str, Any]) -> list[str]:
    times = ("step_ms", "commit_ms", "commit_median_ms", "commit_longest_ms", "commit_cpu_ms")
    return [
        f"{row['keys']:,}",
        f"{row['epochs']:,}",
        *(f"{row[name]:.1f}" for name in times),
        f"{row['bytes_per_commit'] / 1e6:.2f}",
        f"{row['bare_ms']:.1f}",
        f"{row['files']:,}",
        f"{row['reopen_seconds']:.2f}",
        f"{row['reopen_cpu_seconds']:.2f}",
        f"{row['first_step_ms']:.1f}",
    ]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the bench; returns the exit code."""
    line = argparse.ArgumentParser(prog="bench/durable.py", description=(__doc__ or "").splitlines()[0])
    line.add_argument("--keys", nargs="+", type=int, metavar="N", help="only these sizes (default: 10^5 to 10^7)")
    line.add_argument("--epochs", type=int, default=200, metavar="N", help="commits that are counted (default: 200)")
    line.add_argument("--out", type=Path, default=child.ROOT / "bench" / "results", metavar="DIR")
    line.add_argument("--no-save", action="store_true", help="write no files")
    options = line.parse_args(arguments)
    out, about = Console(), report.machine(child.ROOT)
    out.width = max(out.width, 140)
    rows = [child.ask(__file__, {"keys": keys, "epochs": options.epochs}) for keys in options.keys or SIZES]
    least, most = (pick(row["commit_cpu_ms"] for row in rows) for pick in (min, max))
    title = f"Commits of {STEP:,} events, and opening again"
    report.print_table(out, title, HEADINGS, map(_cells, rows))
    flat = f"largest to smallest, in processor time: {most / least:.2f} (2 is allowed)"
    out.print(flat, highlight=False)
    if not options.no_save:
        text = f"# Durable bench\n\n{report.machine_line(about)}\n\n## {title}\n\n"
        text += report.table(HEADINGS, map(_cells, rows)) + f"\n{flat}\n"
        result = {"bench": "durable", "machine": about, "results": rows}
        path = report.keep(options.out, json.loads(json.dumps(result)), text, "-partial" if options.keys else "")
        out.print(f"written: {path}, .md beside it", soft_wrap=True, highlight=False)
    return 0


if __name__ == "__main__":
    if child.is_child(sys.argv[1:]):
        child.answer(sys.argv[1:], run)
    else:
        sys.exit(main())
