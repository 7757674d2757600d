"""Measure speed in memory: compare ddflow with a dict loop, numpy, DuckDB and Polars on the same upserts.

The timing begins with an Arrow table in memory and ends with Arrow tables in memory. Imports, compilation, loading and
checks are not timed. A job runs twice at full size, because on a virtual machine the first access to a memory page is
slower. The first run gives the memory: the peak of the resident bytes less the resident bytes before the run. The
memory figure includes the updates (``output_mb``). The second run gives the time. Both runs must give the known count
and checksum. If a contender promises ordered updates, the bench checks the order.

Limits: every contender holds everything in memory.

>>> sample = BENCH.measure("tiny", "dict", "upsert")
>>> sample["updates"], sample["in_order"], BENCH.wrong(Job({"contender": "dict", "line": "upsert"}), sample, None)
(27874, True, None)
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import product
from typing import Any, NamedTuple

import memory
import ours
import pyarrow as pa
import report
import workloads
from contenders import CONTENDERS
from report import Bar, Row, at_least
from runner import Bench, Job

WARM_ROWS = 50_000
BASE = "numpy"  # the contender that every rate is compared with
WORKLOADS = ("w1s", "w1", "w1z", "w3", "wide")
ON_ZIPF = {"ddflow", "limit", "limit-plain", BASE}  # contenders on w1z, unless --only names others
NUMPY_THEN = 1.55  # numpy's rate, in million upserts a second, when the rates below were set


class Need(NamedTuple):
    """A target: ``line`` must be ``times`` as fast as ``peer``.

    ``line`` and ``peer`` are a (workload, line, contender) each, from the same run.
    """

    line: str
    ours: tuple[str, str, str]
    peer: tuple[str, str, str]
    times: float
    rate: float | None = None


W1, NUMPY = ("w1", "upsert", "ddflow"), ("w1", "upsert", "numpy")
NEEDS = (
    Need("W1 upsert", W1, NUMPY, 5.0, 8.0),
    Need("W1 upsert", W1, ("w1", "upsert", "limit"), 0.6, 8.0),
    Need("W1z upsert (Zipf)", ("w1z", "upsert", "ddflow"), W1, 1.0),
    Need("W1 -> count", ("w1", "count", "ddflow"), NUMPY, 5.0 / NUMPY_THEN, 5.0),
    Need("W1 -> filter -> count", ("w1", "filter+count", "ddflow"), NUMPY, 6.5 / NUMPY_THEN, 6.5),
    Need("W3 upsert (strings)", ("w3", "upsert", "ddflow"), ("w3", "upsert", "duckdb-2t"), 3.0 / 1.5, 3.0),
    Need("W3 upsert (strings)", ("w3", "upsert", "ddflow"), NUMPY, 3.0 / NUMPY_THEN, 3.0),
    Need("W1 on two threads", ("w1", "upsert", "ddflow-2t"), W1, 1.6),
    Need("wide rows", ("wide", "upsert", "ddflow"), ("wide", "upsert", "duckdb-wide-1t"), 5.0, 1.0),
    Need("backfill, hold-back", ("w1", "backfill", "ddflow"), W1, 1.0),
    Need("backfill, one epoch", ("w1", "epoch", "ddflow"), W1, 1.0),
)


def in_order(tables: Iterable[pa.Table]) -> bool:
    """Return True if ``_time`` never decreases over consecutive tables."""
    before = None
    for table in tables:
        times = table["_time"].to_numpy()
        if len(times):
            if (before is not None and times[0] < before) or (times[1:] < times[:-1]).any():
                return False
            before = times[-1]
    return True


class Upsert(Bench):
    """The bench that runs every contender on all workloads and lines that it supports."""

    name = "upsert"
    about = "Speed in memory: ddflow and its peers on the same upserts, every answer checked."
    sampled = ("seconds", "cpu_seconds", "first_seconds", "peak_mb")
    rate = "m_upserts_per_s"
    quick = ({"workload": "w1s,w3s"}, {})
    columns = (
        "contender {contender} | threads {threads} | ordered {ordered!y} | seconds {median_seconds:.3f} | "
        "min-max {seconds!l:.2f}-{seconds!g:.2f} | M upserts/s {m_upserts_per_s:.2f} | × numpy {over_base:.2f} | "
        "CPU s {cpu_seconds!m:.2f} | peak MB {peak_mb!m:,.0f}"
    )

    def jobs(self) -> list[Job]:
        """Return the jobs.

        Peers run the line ``upsert``, ddflow runs all lines, and the dict loop runs all lines of w1s. Other jobs run if
        they are named.
        """
        jobs = []
        for name, contender in product(workloads.SHAPES, CONTENDERS.values()):
            for line in workloads.lines(name):
                asked = {
                    "workload": name not in WORKLOADS,
                    "line": line != "upsert" and name not in ("w1s", "w1", "w1z"),
                    "contender": (line != "upsert" and contender.name != "ddflow" and name != "w1s")
                    or (name == "w1z" and contender.name not in ON_ZIPF),
                }
                if contender.takes(name, line):
                    what = {"workload": name, "contender": contender.name, "line": line}
                    named = tuple(field for field, must in asked.items() if must)
                    jobs.append(Job(what, contender.threads, 5 if name == "w1s" else 3, named=named))
        return sorted(jobs, key=lambda job: (list(workloads.SHAPES).index(job.what["workload"]), job.what["line"]))

    def measure(self, workload: str, contender: str, line: str) -> dict[str, Any]:
        """Load the workload and warm up.

        Run once for the memory and once for the time, and check the answers of both runs.
        """
        chosen = CONTENDERS[contender]
        pa.set_cpu_count(chosen.threads)
        events = workloads.load(workload)
        if contender.startswith("ddflow"):
            ours.warm()
        chosen(events.slice(0, WARM_ROWS), line)
        before = memory.settled()
        memory.forget_peak()
        first, _, tables = _timed(chosen, events, line)
        peak = memory.peak() - before
        answer = _answer(tables)
        del tables
        memory.settled()
        seconds, cpu_seconds, tables = _timed(chosen, events, line)
        if _answer(tables) != answer:
            raise AssertionError(f"the same run gave {answer} and then {_answer(tables)}")
        return {
            "threads": chosen.threads,
            "ordered": chosen.ordered,
            "seconds": seconds,
            "cpu_seconds": cpu_seconds,
            "first_seconds": first,
            "peak_mb": peak / 2**20,
            "output_mb": sum(table.nbytes for table in tables) / 2**20,
            "rows": events.num_rows,
            **answer,
        }

    def question(self, job: Job) -> dict[str, Any]:
        return {"workload": job.what["workload"]}

    def expected(self, workload: str) -> dict[str, Any]:
        """Return a workload's known answers by line; raise AssertionError if the input has another fingerprint."""
        found, known = workloads.fingerprint(workloads.load(workload)), workloads.KNOWN[workload, "input"].checksum
        if found != known:
            remedy = f"delete {workloads.folder()} and try again"
            raise AssertionError(f"{workload}: the input has fingerprint {found}, expected {known}; {remedy}")
        return {line: workloads.answer(workload, line) for line in workloads.lines(workload)}

    def wrong(self, job: Job, sample: dict[str, Any], expected: Any) -> str | None:
        """Compare count and checksum with the known answer. Check also the order, if the contender promises it."""
        if expected is not None:
            known = workloads.Answer(*expected[job.what["line"]])
            found = workloads.Answer(sample["updates"], sample["checksum"])
            if found != known:
                gave = f"{found.updates:,} updates with checksum {found.checksum}"
                return f"{gave}, expected {known.updates:,} with {known.checksum}"
        if CONTENDERS[job.what["contender"]].ordered and not sample["in_order"]:
            return "the updates are not ordered by _time"
        return None

    def compared(self, rows: list[Row]) -> list[Row]:
        """Add ``over_base``: the speed relative to the base on the same line, or None if there is no base."""
        bases = {(row["workload"], row["line"]): row for row in rows if row["contender"] == BASE}
        for row in rows:
            base = bases.get((row["workload"], row["line"]))
            row["over_base"] = None if base is None else base["median_seconds"] / row["median_seconds"]
        return rows

    def tables(self, result: Row) -> Iterator[tuple[str, Sequence[Row]]]:
        """Yield a table per workload and line, with the fastest contender first."""
        for (workload, line), rows in report.grouped(result["results"], "workload", "line"):
            first = rows[0]
            size = f"{first['rows']:,} upserts, {first['updates']:,} updates of {first['output_mb']:,.0f} MB"
            rows.sort(key=lambda row: -row[self.rate])
            yield f"{workload}, {line}: {size}; medians of {len(first['seconds'])}", rows

    def bars(self, result: Row) -> Iterator[Bar]:
        """Yield the bars. The bars require a ratio of our rate to a peer's rate in the same run."""
        rates = {(row["workload"], row["line"], row["contender"]): row[self.rate] for row in result["results"]}
        for need in NEEDS:
            if need.ours in rates and need.peer in rates:
                wanted = "" if need.rate is None else f"{need.rate:.1f} M/s"
                of = need.peer[2] if need.peer[:2] == need.ours[:2] else " ".join(need.peer)
                yield at_least(need.line, rates[need.ours], of, rates[need.peer], need.times, wanted)

    def panels(self, result: Row) -> list[Callable[[Any], None]]:
        """Draw the rates of the line ``upsert`` as bars, with one panel for each workload."""
        shown = [(title, rows) for title, rows in self.tables(result) if rows[0]["line"] == "upsert"]
        return [
            partial(
                report.draw_bars,
                title=title,
                names=[row["contender"] for row in rows],
                values=[row[self.rate] for row in rows],
            )
            for title, rows in shown
        ]


def _timed(chosen: Any, events: pa.Table, line: str) -> tuple[float, float, list[pa.Table]]:
    wall, cpu = time.perf_counter(), time.process_time()
    tables = chosen(events, line)
    return time.perf_counter() - wall, time.process_time() - cpu, tables


def _answer(tables: list[pa.Table]) -> dict[str, Any]:
    """Return the number of updates, the checksum, and whether the updates are in order."""
    return {**workloads.summed(tables)._asdict(), "in_order": in_order(tables)}


BENCH = Upsert()
