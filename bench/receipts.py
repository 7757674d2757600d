#!/usr/bin/env python3
"""The receipts bench: what the driver does of an epoch, begin and finish, from ten partitions to a thousand.

Invariant: the receipts are those of real parts that took real rows and wrote real files, on both levels of a plan that
counts behind a projection; after each commit the state is read, and must hold what was given. The parts run here one
after the other, and only `Coordinator.begin` and `Coordinator.finish` are timed, which look whether every file is
there, by name and length; what is in them is compared when somebody opens them.

>>> row = run(3, 2)
>>> row["partitions"], row["receipts"], row["files"] > 6, row["finish_ms"][0] > 0
(3, 6, True, True)
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

import child
import numpy as np
import pyarrow as pa
import report
from rich.console import Console

import ddflow as dd

SIZES = (10, 100, 1000)
ROWS = 20  # of each partition, in each epoch
HEADINGS = ("partitions", "receipts", "files", "begin ms", "finish ms", "min-max", "state's files")


def run(partitions: int, epochs: int) -> dict[str, Any]:
    """Commit ``epochs`` epochs of a state of so many partitions, and time the driver's part of all but the first."""
    from ddflow.partitions.commit import Coordinator
    from ddflow.partitions.stage_step import Part
    from ddflow.storage.opening import open_store
    from ddflow.tools.warmup import warm

    warm(None)
    folder, rng = tempfile.mkdtemp(prefix="ddflow-bench-"), np.random.default_rng(partitions)
    flow, state = _flow(), os.path.join(folder, "state")
    begins, finishes, files = list[float](), list[float](), 0
    try:
        coordinator = Coordinator.open(flow, open_store(state, create=True), partitions=partitions)
        parts = dict[tuple[int, int], Part]()
        given = dict[int, int]()
        for _ in range(epochs):
            rows = _rows(partitions * ROWS, rng)
            given |= dict(zip(rows.column("key").to_pylist(), rows.column("val").to_pylist(), strict=True))
            start = time.perf_counter()
            base = coordinator.begin()
            begins.append(time.perf_counter() - start)
            receipts = _epoch(coordinator.cut, base, parts, rows)
            start = time.perf_counter()
            coordinator.finish(base, receipts)
            finishes.append(time.perf_counter() - start)
            files = sum(1 + len(receipt.added) + len(receipt.outputs) for receipt in receipts)
        for part in parts.values():
            part.close()
        coordinator.close()
        held = dd.read(state, "rows")
        if dict(zip(held.column("key").to_pylist(), held.column("val").to_pylist(), strict=True)) != given:
            raise AssertionError("the state holds other rows than were given")
        there = len(os.listdir(os.path.join(state, "blobs")))
    finally:
        shutil.rmtree(folder)
    return {
        "partitions": partitions,
        "epochs": epochs,
        "receipts": 2 * partitions,
        "files": files,
        "begin_ms": [each * 1e3 for each in begins[1:]],
        "finish_ms": [each * 1e3 for each in finishes[1:]],
        "files_there": there,
    }


def _flow() -> dd.Flow:
    flow = dd.Flow()
    rows = flow.upserts("rows", {"key": pa.int64(), "val": pa.int64()}, dd.Upsert(key="key"))
    flow.output("rows", rows)
    flow.output("counts", rows.project(["val"]).count())
    return flow


def _rows(n: int, rng: Any) -> pa.Table:
    return pa.table({"key": rng.choice(10 * n, n, replace=False), "val": rng.integers(0, n, n)})


def _epoch(cut: Any, base: Any, parts: dict[tuple[int, int], Any], rows: pa.Table) -> list[Any]:
    """All tasks of an epoch, one after the other; their receipts."""
    from ddflow.partitions.stage_step import Part

    receipts, came = [], dict[int, list[pa.Table]]()
    for level in range(cut.levels):
        met = {each.number: each for each in cut.meetings if each.level == level}
        shares = _shares(rows, ["key"], base) if level == 0 else [None] * base.partitions
        sums = {number: _shares(pa.concat_tables(came[number]), each.by, base) for number, each in met.items()}
        for number in range(base.partitions):
            part = parts.setdefault((level, number), None) or Part(cut, base, level, number)
            parts[level, number] = part
            inputs = {} if shares[number] is None else {"rows": shares[number]}
            counts = {name: table.num_rows for name, table in inputs.items()}
            digests = {name: f"{table.num_rows:032x}" for name, table in inputs.items()}
            done = part.step(base, inputs, {n: each[number] for n, each in sums.items()}, counts, digests)
            receipts.append(done.receipt)
            for meeting, table in done.sums.items():
                came.setdefault(meeting, []).append(table)
    return receipts


def _shares(table: pa.Table, by: Sequence[str], base: Any) -> list[pa.Table]:
    """A table cut into partitions."""
    from ddflow.columns.hashing import Secret, identities, partition_of

    high, _ = identities(table.select(list(by)), Secret(*base.secret), table.num_rows)
    to = partition_of(high, base.partitions)
    edges = np.searchsorted(np.sort(to), np.arange(base.partitions + 1))
    ordered = table.take(pa.array(np.argsort(to, kind="stable")))
    return [ordered.slice(edges[n], edges[n + 1] - edges[n]) for n in range(base.partitions)]


def _cells(row: dict[str, Any]) -> list[str]:
    finish = row["finish_ms"]
    return [
        f"{row['partitions']:,}",
        f"{row['receipts']:,}",
        f"{row['files']:,}",
        f"{median(row['begin_ms']):.1f}",
        f"{median(finish):.1f}",
        f"{min(finish):.1f}-{max(finish):.1f}",
        f"{row['files_there']:,}",
    ]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the bench; returns the exit code."""
    line = argparse.ArgumentParser(prog="bench/receipts.py", description=(__doc__ or "").splitlines()[0])
    line.add_argument("--partitions", nargs="+", type=int, metavar="N", help="only so many (default: 10, 100 and 1000)")
    line.add_argument(
        "--epochs", type=int, default=8, metavar="N", help="epochs, of which all but one count (default: 8)"
    )
    line.add_argument("--out", type=Path, default=child.ROOT / "bench" / "results", metavar="DIR")
    line.add_argument("--no-save", action="store_true", help="write no files")
    options = line.parse_args(arguments)
    out, about = Console(), report.machine(child.ROOT)
    out.width = max(out.width, 100)
    rows = [
        child.ask(__file__, {"partitions": partitions, "epochs": options.epochs})
        for partitions in options.partitions or SIZES
    ]
    title = "What the driver does of an epoch: begin, and finish with all receipts"
    report.print_table(out, title, HEADINGS, map(_cells, rows))
    if not options.no_save:
        text = f"# Receipts bench\n\n{report.machine_line(about)}\n\n## {title}\n\n"
        text += report.table(HEADINGS, map(_cells, rows))
        result = {"bench": "receipts", "machine": about, "results": rows}
        path = report.keep(options.out, result, text, "-partial" if options.partitions else "")
        out.print(f"written: {path}, .md beside it", soft_wrap=True, highlight=False)
    return 0


if __name__ == "__main__":
    if child.is_child(sys.argv[1:]):
        child.answer(sys.argv[1:], run)
    else:
        sys.exit(main())
