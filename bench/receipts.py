"""Measure the driver's part of an epoch, `begin` and `finish`, with 10 to 1,000 partitions.

The receipts come from real tasks, which process real rows and write real files. The plan counts after a projection, so
it has two stages. The tasks run one after the other; only `EpochDriver.begin` and `EpochDriver.finish` are timed. After
the last commit the state must hold the input rows.

Limits: `finish` checks only the name and the length of each file. The content is checked later, when a task opens the
file.

>>> row = BENCH.measure(3, 2)
>>> row["receipts"], row["files"] > 6, row["finish_ms"][0] > 0
(6, True, True)
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Iterator, Sequence
from statistics import median
from typing import Any

import numpy as np
import ours
import pyarrow as pa
from report import Bar, Row, within
from runner import Bench, Job

SIZES = (10, 100, 1000)
ROWS = 20  # rows for each partition and epoch
BAR_OF, BAR_MS = 1000, 1000  # milliseconds allowed to commit the receipts of so many partitions


class Receipts(Bench):
    """The bench, with one job for each number of partitions."""

    name = "receipts"
    about = "Receipts: the part of the driver in an epoch: begin, and finish with all receipts."
    figures = ("finish_ms",)
    quick = ({"partitions": "10,100"}, {})
    columns = (
        "partitions {partitions:,} | receipts {receipts:,} | files {files:,} | begin ms {begin_ms!m:.1f} | "
        "finish ms {finish_ms!m:.1f} | min-max {finish_ms!l:.1f}-{finish_ms!g:.1f} | state's files {files_there:,}"
    )

    def jobs(self) -> list[Job]:
        return [Job({"partitions": partitions, "epochs": 8}) for partitions in SIZES]

    def measure(self, partitions: int, epochs: int) -> dict[str, Any]:
        """Commit ``epochs`` epochs. Time the driver's part of every epoch after the first."""
        import ddflow as dd
        from ddflow.partitions.commit import DriverOptions, EpochDriver
        from ddflow.partitions.step import StagePartition
        from ddflow.storage.opening import open_store

        ours.warm()
        rng = np.random.default_rng(partitions)
        begins, finishes, files = list[float](), list[float](), 0
        with tempfile.TemporaryDirectory(prefix="ddflow-bench-") as folder:
            state = os.path.join(folder, "state")
            coordinator = EpochDriver.open(flow(), open_store(state, create=True), DriverOptions(partitions=partitions))
            parts, given = dict[tuple[int, int], StagePartition](), dict[int, int]()
            for _ in range(epochs):
                rows = rows_of(partitions * ROWS, rng)
                given |= dict(zip(rows["key"].to_pylist(), rows["val"].to_pylist(), strict=True))
                began = time.perf_counter()
                start = coordinator.begin()
                begins.append((time.perf_counter() - began) * 1e3)
                receipts = epoch_of(coordinator.cut, start, parts, rows)
                began = time.perf_counter()
                coordinator.finish(start, receipts)
                finishes.append((time.perf_counter() - began) * 1e3)
                files = sum(1 + len(receipt.added) + len(receipt.outputs) for receipt in receipts)
            for part in parts.values():
                part.close()
            coordinator.close()
            held = dd.read(state, "rows")
            if dict(zip(held["key"].to_pylist(), held["val"].to_pylist(), strict=True)) != given:
                raise AssertionError("the state holds rows that differ from the input")
            there = len(os.listdir(os.path.join(state, "blobs")))
        return {
            "receipts": 2 * partitions,
            "files": files,
            "begin_ms": begins[1:],
            "finish_ms": finishes[1:],
            "files_there": there,
        }

    def bars(self, result: Row) -> Iterator[Bar]:
        """Yield the bar: milliseconds to commit the receipts of a thousand partitions."""
        for row in result["results"]:
            if row["partitions"] == BAR_OF:
                took = median(row["finish_ms"])
                line = f"a commit of {row['receipts']:,} receipts, {row['files']:,} files"
                yield within(line, f"{took:.0f} ms", f"{BAR_MS:,} ms", took <= BAR_MS)


def flow() -> Any:
    import ddflow as dd

    flow = dd.Flow()
    rows = flow.upserts("rows", {"key": pa.int64(), "val": pa.int64()}, dd.Upsert(key="key"))
    flow.output("rows", rows)
    flow.output("counts", rows.project(["val"]).count())
    return flow


def rows_of(n: int, rng: Any) -> pa.Table:
    return pa.table({"key": rng.choice(10 * n, n, replace=False), "val": rng.integers(0, n, n)})


def epoch_of(cut: Any, start: Any, parts: dict[tuple[int, int], Any], rows: pa.Table) -> list[Any]:
    """Run all tasks of an epoch one after the other; return their receipts."""
    from ddflow.partitions.step import StagePartition

    receipts, came = [], dict[int, list[pa.Table]]()
    for stage in range(cut.stages):
        met = {each.number: each for each in cut.exchanges if each.stage == stage}
        shares = _by_partition(rows, ["key"], start) if stage == 0 else [None] * start.partitions
        sums = {number: _by_partition(pa.concat_tables(came[number]), each.by, start) for number, each in met.items()}
        for number in range(start.partitions):
            part = parts.setdefault((stage, number), None) or StagePartition(cut, start, stage, number)
            parts[stage, number] = part
            inputs = {} if shares[number] is None else {"rows": shares[number]}
            counts = {name: table.num_rows for name, table in inputs.items()}
            digests = {name: f"{table.num_rows:032x}" for name, table in inputs.items()}
            done = part.step(start, inputs, {n: each[number] for n, each in sums.items()}, counts, digests)
            receipts.append(done.receipt)
            for meeting, table in done.sums.items():
                came.setdefault(meeting, []).append(table)
    return receipts


def _by_partition(table: pa.Table, by: Sequence[str], start: Any) -> list[pa.Table]:
    from ddflow.columns.hashing import Secret, assign_partitions, compute_identities

    high, _ = compute_identities(table.select(list(by)), Secret(*start.secret), table.num_rows)
    to = assign_partitions(high, start.partitions)
    edges = np.searchsorted(np.sort(to), np.arange(start.partitions + 1))
    ordered = table.take(pa.array(np.argsort(to, kind="stable")))
    return [ordered.slice(edges[n], edges[n + 1] - edges[n]) for n in range(start.partitions)]


BENCH = Receipts()
