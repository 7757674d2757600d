"""Measure aggregates, extremes, tops and joins.

Compare them with a base line, and with engines that recompute the result.

Each line runs in its own process, and its updates must add up to the rows that numpy finds. Lines over W1 start empty,
like the bench `upsert`, and are compared with the line ``count``. Joins start with all orders and customers loaded, and
are compared with the line ``upsert`` over W1. Recomputing peers update their tables before the clock starts. Checks
between steps are not timed. Limits: ddflow has one thread, and recomputing peers have two threads.

>>> sample = BENCH.measure("revenue", "ddflow", keys=200, rows=400, step=100)
>>> sample["rows"], sample["checksum"] == BENCH.expected("revenue", keys=200, rows=400, step=100)
(100, True)
>>> BENCH.measure("top-1", "ddflow", keys=200, rows=400, step=100)["rows"]
400
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from statistics import median
from typing import TYPE_CHECKING, Any

import memory
import operators_pathway
import ours
import pyarrow as pa
from operators_peers import CONTENDERS, THREADS
from operators_work import (
    CUSTOMERS,
    LEFT,
    ORDERS,
    WARM,
    Size,
    Tables,
    changes,
    contents,
    events,
    grouped,
    joined,
    loaded as load,
    revenue,
)
from report import Bar, Row, at_least, within
from runner import Bench, Job

if TYPE_CHECKING:
    import ddflow as dd

W1, JOIN, MANY = Size(1_000_000, 10_000_000, 100_000), Size(1_000_000, 2_300_000, 100_000), 10_000_000
LARGE = Size(8_000_000, 1_200_000, 100_000)
SHARES = {
    line: Size(1_000_000, 13 * step, step)
    for line, step in {"revenue-1": 10_000, "revenue": 100_000, "revenue-50": 500_000}.items()
}
"""The sizes of the lines whose steps change a share of a million orders and their customers."""
BUDGET, BUDGET_BYTES = "128MB", 128_000_000
PIECE = 500_000
"""The number of orders in one load step, if the load is not timed."""
# For each line, the targets: a share of the base line's rate, and a multiple of a peer's rate.
PARTS = {"aggregates": 0.75, "extremes": 0.5, "top-10": 0.5, "top-1": 0.5, "floats": 0.6, "join": 0.18}
TIMES = {("revenue-few", "duckdb"): 30.0, ("revenue-few", "polars"): 1.0, ("revenue", "pathway"): 1.0}
OF_MEMORY, OVER_BUDGET = 0.3, 10
SAID = {
    "upsert": "W1, rows (key, val)",
    "count": "project(val).count()",
    "aggregates": "group_by(val % 1000).agg(sum, avg, count) of keys",
    "extremes": "group_by(val % 1000).agg(min, max) of keys",
    "floats": "group_by(val % 1000).agg(sum) of key / 7",
    "top-10": "top(10, by=key) of each val, with 950 keys for each val",
    "top-1": "top(1, by=key) of each val",
    "join": "1 M orders with the city of 100 k customers; a tenth of the events are customers",
    "join-epochs": "the same, each step an epoch",
    "join-large": "the same with 8 M orders; the load is timed too",
    "revenue": "the same; count and sum by city; 10 % of the rows a step",
    "revenue-1": "the same with 1 % of the rows a step",
    "revenue-50": "the same with 50 % of the rows a step",
    "revenue-few": "the same on 10 M orders, 1 k events a step",
}


class Operators(Bench):
    """The bench that runs every line with ddflow. Some lines also have recomputing peers."""

    name = "operators"
    about = "Operators: aggregates, tops and joins beside a count, an upsert, and engines that recompute."
    sampled = ("seconds", "cpu_seconds", "step_ms", "peak_mb")
    quick = ({}, {"keys": "20000", "rows": "100000", "step": "10000"})
    columns = (
        "line {line} | contender {contender} | budget {budget} | M/s {m_per_s:.3f} | x base {over_base:.2f} | "
        "M/s of CPU {cpu_m_per_s:.3f} | the same {cpu_over_base:.2f} | ms a step {step_ms!m:,.2f} | "
        "seconds {median_seconds:.2f} | min-max {seconds!l:.2f}-{seconds!g:.2f} | peak MB {peak_mb!m:,.0f} | "
        "held MB {held!M:,.0f}"
    )

    def jobs(self) -> list[Job]:
        def job(line: str, contender: str, size: Size, threads: int = 1, rounds: int = 3, **more: str | None) -> Job:
            return Job({"line": line, "contender": contender, **size._asdict(), **more}, threads, rounds)

        few = Size(MANY, 33_000, 1000)
        jobs = [job(line, "ddflow", W1) for line in LEFT]
        jobs += [job(line, "ddflow", JOIN) for line in ("join", "join-epochs")]
        for contender in CONTENDERS:
            threads = 1 if contender == "ddflow" else THREADS
            jobs += [job(line, contender, size, threads) for line, size in SHARES.items()]
            if not contender.endswith("-upkeep"):  # a step of polars-upkeep takes three seconds
                jobs.append(job("revenue-few", contender, few, threads, 1))
        if operators_pathway.INTERPRETER:
            jobs.append(job("revenue", "pathway", SHARES["revenue"], THREADS, 1))
        return jobs + [job("join-large", "ddflow", LARGE, 1, 1, budget=budget) for budget in (None, BUDGET)]

    def measure(self, line: str, contender: str, budget: str | None = None, **size: int) -> dict[str, Any]:
        """Warm up, take the steps, and add up the results."""
        of = Size(**size)
        pa.set_cpu_count(1 if contender == "ddflow" else THREADS)
        if contender == "ddflow":
            ours.warm()
        nothing = {"cpu_seconds": 0.0, "step_ms": None, "peak_mb": 0.0}
        if contender == "pathway":
            return nothing | operators_pathway.measured(of)
        return (_upserts if line in LEFT else _orders)(line, contender, of, budget)

    def question(self, job: Job) -> dict[str, Any]:
        return {name: value for name, value in job.what.items() if name not in ("contender", "budget")}

    def expected(self, line: str, **size: int) -> Any:
        """Return the checksum of the final rows."""
        of = Size(**size)
        left = grouped(line, of) if line in LEFT else revenue(of) if line.startswith("revenue") else joined(of)
        return contents([left])

    def row(self, job: Job, samples: Sequence[dict[str, Any]]) -> Row:
        row = super().row(job, samples)
        cpu = median(row["cpu_seconds"])
        about = {"budget": None, "cpu_m_per_s": row["rows"] / cpu / 1e6 if cpu else None}
        return about | row

    def compared(self, rows: list[Row]) -> list[Row]:
        """Add ``over_base``: the ratio of the rate to the base line's rate in this run.

        Add the same ratio by CPU time.
        """
        mine = {row["line"]: row for row in rows if row["contender"] == "ddflow" and row["budget"] is None}
        for row in rows:
            base = mine.get(base_of(row))
            for rate, name in (("m_per_s", "over_base"), ("cpu_m_per_s", "cpu_over_base")):
                row[name] = None if base is None or not row[rate] else row[rate] / base[rate]
        return rows

    def tables(self, result: Row) -> Iterator[tuple[str, Sequence[Row]]]:
        """Yield a table of the lines over W1 and a table of all other lines."""
        for over, title in ((True, "Over W1, from nothing"), (False, "Orders and customers")):
            if found := [row for row in result["results"] if (row["line"] in LEFT) is over]:
                yield title, found

    def notes(self, result: Row) -> list[str]:
        """Describe the lines."""
        lines = dict.fromkeys(row["line"] for row in result["results"])
        said = "; ".join(f"*{line}* is {SAID[line]}" for line in lines)
        return [f"{said}."]

    def bars(self, result: Row) -> Iterator[Bar]:
        """Yield the bars (targets).

        The bars require a share of the base line's rate, or a multiple of a peer's rate.
        """
        rows = {(row["line"], row["contender"], row["budget"]): row for row in result["results"]}
        for line, part in PARTS.items():
            row = rows.get((line, "ddflow", None))
            base = None if row is None else rows.get((base_of(row), "ddflow", None))
            if row is not None and base is not None:
                yield at_least(line, row["m_per_s"], base["line"], base["m_per_s"], part, digits=(2, 2))
        for (line, peer), times in TIMES.items():
            row, other = rows.get((line, "ddflow", None)), rows.get((line, peer, None))
            if row is not None and other is not None:
                yield at_least(line, row["m_per_s"], peer, other["m_per_s"], times, digits=(3, 4))
        held, spilled = (rows.get(("join-large", "ddflow", budget)) for budget in (None, BUDGET))
        if held is not None and spilled is not None:
            rates = spilled["m_per_s"], "in memory", held["m_per_s"]
            yield at_least(f"join-large within {BUDGET}", *rates, OF_MEMORY, digits=(3, 3))
            least = OVER_BUDGET * BUDGET_BYTES
            said, wanted = f"{held['held'] / 1e6:,.0f} MB in memory", f"{OVER_BUDGET} times {BUDGET}"
            yield within("join-large: what is held", said, wanted, held["held"] >= least)


def base_of(row: Row) -> str:
    """Return the line with which a row is compared, or an empty text."""
    if row["contender"] != "ddflow":
        return row["line"]
    if row["budget"] is not None:
        return "join-large"
    return {"join": "upsert", "join-epochs": "upsert"}.get(row["line"], "count" if row["line"] in LEFT else "")


def plan(line: str, schema: pa.Schema) -> dd.Flow:
    """Return the flow of a line over W1."""
    flow = ours.plan(schema, "count" if line == "count" else "upsert")
    del flow.outputs["out"]
    rows: Any = flow.inputs["events"]
    keys = rows.project({"g": "val % 1000", "key": "key"})
    if line == "count":
        rows = rows.project(["val"]).count()
    elif line == "aggregates":
        rows = keys.group_by("g").agg(s="sum(key)", a="avg(key)", n="count(*)")
    elif line == "extremes":
        rows = keys.group_by("g").agg(lo="min(key)", hi="max(key)")
    elif line == "floats":
        rows = rows.project({"g": "val % 1000", "x": "cast(key as double) / 7"}).group_by("g").agg(s="sum(x)")
    elif line.startswith("top"):
        rows = rows.top(int(line.removeprefix("top-")), by="key", partition_by="val")
    flow.output("out", rows)
    return flow


class Clock:
    """A clock that measures calls made through `timed`.

    The clock adds up wall and CPU seconds, and keeps the milliseconds of each call.
    """

    def __init__(self) -> None:
        self.wall, self.cpu, self.each = 0.0, 0.0, list[float]()

    def timed(self, call: Callable[[], Any], counts: bool = True) -> Any:
        """Time a call and return its result."""
        wall, cpu = time.perf_counter(), time.process_time()
        out = call()
        if counts:
            self.wall, self.cpu = self.wall + time.perf_counter() - wall, self.cpu + time.process_time() - cpu
            self.each.append((time.perf_counter() - wall) * 1e3)
        return out

    def sample(self, rows: int, checksum: str) -> dict[str, Any]:
        """Return the figures of a run."""
        figures = {"rows": rows, "seconds": self.wall, "cpu_seconds": self.cpu, "checksum": checksum}
        return {**figures, "step_ms": median(self.each)}


def _upserts(line: str, contender: str, of: Size, budget: str | None) -> dict[str, Any]:
    """Run W1 in steps twice, each time from an empty state.

    The first run gives the memory, and the second run gives the time.
    """
    table = events(of)
    memory.settled()
    before = memory.pages().private
    with memory.Watch() as watch:
        _upserted(line, table, of)
    memory.settled()
    return {**_upserted(line, table, of), "peak_mb": (watch.peak.private - before) / 2**20}


def _upserted(line: str, table: pa.Table, of: Size) -> dict[str, Any]:
    clock, total = Clock(), 0
    with plan(line, table.schema).open(threads=1) as engine:
        steps = ours.in_steps(engine, table, of.step)
        while (out := clock.timed(lambda: next(steps, None))) is not None:
            total += int(contents([out]), 16)
        ours.check_verdicts(engine, of.rows)
        held = engine.stats()["bytes_resident"]
    return {**clock.sample(of.rows, f"{total % 2**64:016x}"), "held": held}


def _orders(line: str, contender: str, of: Size, budget: str | None) -> dict[str, Any]:
    """Load orders and customers, then run the steps. If the load is not timed, the first steps are not timed either."""
    whole, clock, counted = load(of), Clock(), line == "join-large"
    memory.settled()
    before, rows = memory.pages().private, 0
    pieces = [whole] if line == "join" else _pieces(whole, of.step if counted else PIECE)
    steps = chain(pieces, (changes(of, each) for each in range(of.steps)))
    with memory.Watch() as watch:
        runner = CONTENDERS[contender](line, of, budget)
        for number, tables in enumerate(steps, 1 - len(pieces)):
            runner.ready(tables)
            counts = counted or number > min(WARM, of.steps - 1)
            runner.take(clock.timed(lambda tables=tables, number=number: runner.step(tables, number), counts))
            rows += counts * sum(table.num_rows for table in tables.values())
    answer, peak = runner.answer(), watch.peak.private - before
    return {**clock.sample(rows, answer), "peak_mb": peak / 2**20, "held": runner.bytes()}


def _pieces(tables: Tables, step: int) -> list[Tables]:
    """Split the load into steps.

    The first step has all customers and some orders, and later steps have the other orders.
    """
    orders = [tables[ORDERS].slice(begin, step) for begin in range(0, tables[ORDERS].num_rows, step)]
    nothing = tables[CUSTOMERS].slice(0, 0)
    return [{ORDERS: each, CUSTOMERS: nothing if place else tables[CUSTOMERS]} for place, each in enumerate(orders)]


BENCH = Operators()
