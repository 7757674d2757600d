"""Measure rows that come and go with time: the last hour beside a plain filter, and queries of Nexmark with windows.

The lines ``filter`` and ``last-hour`` run over W1 in hold-back mode, whose times are spread over ten hours. Each row
has its time as a column. All rows satisfy the plain filter, so both lines emit almost the same updates; the rows of the
last hour also leave after an hour. The updates are compared with those that numpy computes.

The lines ``q5``, ``q7``, ``q11`` and ``q12`` are queries of Nexmark, over bids that are drawn as the generator of
Nexmark draws them. Their results are compared with DuckDB's. `FLINK` has figures that were published for another
machine, so they are no bar. The line ``watermark`` counts a stream whose rows are forgotten after 10**6 events.

>>> [BENCH.measure(line, 20_000)["updates"] for line in ("filter", "last-hour", "q5", "q7", "q11", "q12")]
[27906, 29826, 5, 5, 966, 966]
"""

from __future__ import annotations

import datetime as dt
import time
from collections.abc import Iterator
from typing import Any, Final

import numpy as np
import ours
import pyarrow as pa
from report import Bar, Row, at_least, within
from runner import Bench, Job
from workloads import SHAPES, build, load, slices, summed

LAST_HOUR_OF_FILTER: Final = 0.7
"""The target of the rate."""
HOUR, SECOND = 3_600_000_000, 1_000_000
FLINK: Final = {"q5": 22.14, "q7": 12.33, "q11": 39.7, "q12": 75.67}
"""Thousand events a second and core of Flink 1.13, from the README of https://github.com/nexmark/nexmark."""
CONDITIONS = {"filter": "at >= timestamp '1970-01-01'", "last-hour": "at > now() - interval 1 hour"}
PER_SECOND: Final = 10_000
"""The bids in a second of their own time."""

GROWTH: Final = 1.05
"""The target of memory after the first tenth of a stream, as a multiple of the memory in this tenth."""

QUERIES: Final = {
    "q5": """
with counted as (
  select auction, window.start as start, count(*) as num from bid
  group by auction, window(at, '10 seconds', '2 seconds'))
select c.auction, c.start, c.num
from counted c join (select start, max(num) as most from counted group by start) m
  on c.start = m.start and c.num >= m.most""",
    "q7": """
with slotted as (select *, window(at, '10 seconds').start as start from bid)
select b.auction, b.price, b.bidder, b.at
from slotted b join (select start, max(price) as most from slotted group by start) m
  on b.price = m.most and b.start = m.start""",
    "q11": """
select bidder, session_window.start as start, count(*) as num from bid
group by bidder, session_window(at, '10 seconds')""",
    "q12": """
select bidder, window.start as start, count(*) as num from bid group by bidder, window(came, '10 seconds')""",
}
IN_DUCKDB: Final = {
    "q5": """
with counted as (
  select auction, time_bucket(interval 2 seconds, "at") - to_seconds(2 * back) as start, count(*) as num
  from bid, range(5) as b(back) group by all)
select * from counted c qualify num = max(num) over (partition by start)""",
    "q7": """
select auction, price, bidder, "at" from bid
qualify price = max(price) over (partition by time_bucket(interval 10 seconds, "at"))""",
    "q11": """
with far as (
  select *, "at" - lag("at") over (partition by bidder order by "at") >= interval 10 seconds as far from bid),
  numbered as (select *, count(*) filter (far) over (partition by bidder order by "at") as number from far)
select bidder, min("at") as start, count(*) as num from numbered group by bidder, number""",
    "q12": "select bidder, time_bucket(interval 10 seconds, came) as start, count(*) as num from bid group by all",
}


class Temporal(Bench):
    """The bench, with one job for each line."""

    name = "temporal"
    about = "Rows that come and go with time: the last hour, and queries 5, 7, 11 and 12 of Nexmark."
    sampled = ("seconds", "cpu_seconds")
    quick = ({}, {"events": "200000"})
    columns = (
        "line {line} | rows {rows:,} | updates {updates:,} | seconds {median_seconds:.3f} | "
        "CPU s {cpu_seconds!m:.3f} | k rows/s and core {k_per_cpu_s:,.0f} | Flink 1.13 {flink:,.1f} | "
        "state MB {state_mb:,.1f} | first tenth {first_mb:,.1f}"
    )

    def jobs(self) -> list[Job]:
        """Return the jobs."""
        lines = dict.fromkeys(CONDITIONS, 10_000_000) | dict.fromkeys(QUERIES, 2_000_000)
        jobs = [Job({"line": line, "events": events}, rounds=3) for line, events in lines.items()]
        return [*jobs, Job({"line": "watermark", "events": 100_000_000}, rounds=1)]

    def measure(self, line: str, events: int) -> dict[str, Any]:
        """Time the steps; raise AssertionError if the result is wrong."""
        ours.warm()
        if line == "watermark":
            return _time_stream(events)
        if line in QUERIES:
            bids = draw_bids(events)
            _time_query(line, bids.slice(0, ours.STEP // 2))
            return _time_query(line, bids)
        upserts = spread_times(events)
        _time_condition(line, upserts.slice(0, ours.STEP // 2))
        return _time_condition(line, upserts)

    def row(self, job: Job, samples: Any) -> Row:
        """Add the rate by processor time, and the published one."""
        row = super().row(job, samples)
        row["k_per_cpu_s"] = row["rows"] / float(np.median(row["cpu_seconds"])) / 1e3
        none = {"state_mb": None, "first_mb": None}
        return none | row | {"flink": FLINK.get(job.what["line"])}

    def notes(self, result: Row) -> list[str]:
        """Say what the figures of Flink are."""
        return [
            "Flink 1.13: thousand events a second and core, published in the README of github.com/nexmark/nexmark for "
            "another machine. They include the generator, and count persons and auctions, 8 % of the events."
        ]

    def bars(self, result: Row) -> Iterator[Bar]:
        """Yield the bars of the last hour, and of the memory of a stream."""
        for row in result["results"]:
            if row["state_mb"] is not None:
                grown = row["state_mb"] / row["first_mb"]
                yield within("memory of a stream", f"{grown:.3f} x", f"{GROWTH} x", grown <= GROWTH, "first tenth")
        rates = {row["line"]: row["k_per_cpu_s"] / 1e3 for row in result["results"]}
        if CONDITIONS.keys() <= rates.keys():
            yield at_least("last hour", rates["last-hour"], "filter", rates["filter"], LAST_HOUR_OF_FILTER)


def _time_stream(events: int) -> dict[str, Any]:
    """Time a stream with a watermark, and record the memory of the state in its first tenth and in the rest."""
    import ddflow as dd

    flow = dd.Flow()
    spec = dd.Upsert(["id", "at"], watermark={"at": "1 second"})
    rows = flow.upserts("events", {"id": pa.int64(), "at": pa.timestamp("us"), "n": pa.int64()}, spec)
    flow.output("out", rows.project({"slot": "date_trunc('second', at)", "n": "n"}).count())
    sizes, updates, taken = list[int](), 0, {"seconds": 0.0, "cpu_seconds": 0.0}
    step = max(min(ours.STEP, events // 100), 1)
    with flow.open(threads=1) as engine:
        for begin in range(0, events, step):
            at = np.arange(begin, begin + step)
            table = pa.table({"id": at * 7919 % events, "at": pa.array(at, pa.timestamp("us")), "n": at % 100})
            begun, spent = time.perf_counter(), time.process_time()
            updates += engine.step({"events": table})["out"].num_rows
            taken["seconds"] += time.perf_counter() - begun
            taken["cpu_seconds"] += time.process_time() - spent
            sizes.append(engine.dataflow.nbytes)
        assert engine.dataflow.totals == {"applied": step * len(sizes)}
    first = max(sizes[: len(sizes) // 10])
    mb = {"first_mb": first / 1e6, "state_mb": max(sizes[len(sizes) // 10 :]) / 1e6}
    return {**taken, **mb, "rows": step * len(sizes), "updates": updates}


def spread_times(events: int) -> pa.Table:
    """Return the first upserts of W1, whose times are ten hours together, with a copy of the time in the row."""
    shape: Any = SHAPES["w1"]
    table = load("w1") if events == shape.n else build(shape._replace(n=events, keys=max(events // 10, 1)))
    number = table["time"].to_numpy()
    at = pa.array(number * (10 * HOUR // (int(number[-1]) + 1)), pa.timestamp("us"))
    return table.drop_columns("time").append_column("at", at).append_column("time", at)


def draw_bids(events: int) -> pa.Table:
    """Draw bids as Nexmark does: half are for a hot auction, and three quarters come from a hot bidder.

    The others are for the newest hundred auctions, from the newest thousand persons.
    """
    chance, ids = np.random.default_rng(5), np.arange(events)
    auctions, persons = 1 + ids * 3 // 46, 1 + ids // 46
    auction = np.where(
        chance.random(events) < 0.5, auctions // 100 * 100, np.maximum(auctions - chance.integers(0, 100, events), 0)
    )
    bidder = np.where(
        chance.random(events) < 0.75, persons // 100 * 100, np.maximum(persons - chance.integers(0, 1000, events), 0)
    )
    price = (10 ** chance.uniform(2, 8, events)).astype(np.int64)
    at = pa.array(ids * (SECOND // PER_SECOND), pa.timestamp("us"))
    return pa.table({"auction": auction, "bidder": bidder, "price": price, "at": at})


def _time_condition(line: str, upserts: pa.Table) -> dict[str, Any]:
    """Time a filter behind upserts, and check its updates."""
    import ddflow as dd

    flow = dd.Flow()
    rows = flow.upserts("events", upserts.schema, dd.Upsert(key="key", time="time", delete="val is null"))
    flow.output("out", rows.filter(CONDITIONS[line]))
    with flow.open(threads=1) as engine:
        begun, spent = time.perf_counter(), time.process_time()
        tables = list(ours.in_steps(engine, upserts, min(ours.STEP, -(-upserts.num_rows // 4))))
        taken = {"seconds": time.perf_counter() - begun, "cpu_seconds": time.process_time() - spent}
        ours.check_verdicts(engine, upserts.num_rows)
    found, known = summed(tables), summed([_list_updates(line, upserts)])
    assert found == known, f"{line}: {found}, expected {known}"
    return {**taken, "rows": upserts.num_rows, "updates": found.updates}


def _list_updates(line: str, upserts: pa.Table) -> pa.Table:
    """List the updates of a line. O(n log n)."""
    key, at = (upserts[name].to_numpy().astype(np.int64) for name in ("key", "at"))
    order = np.lexsort((np.arange(key.size), at, key))
    key, at = key[order], at[order]
    same = key[1:] == key[:-1]
    last = np.append(~same | (at[1:] != at[:-1]), True)
    key, at, order = key[last], at[last], order[last]
    never = np.iinfo(np.int64).max
    gone = np.append(np.where(key[1:] == key[:-1], at[1:], never), never)
    if line == "last-hour":
        gone = np.minimum(gone, at + HOUR)
    rows = upserts.select(["key", "val", "at"]).take(order)
    there = rows["val"].is_valid().to_numpy()
    parts = []
    for times, diff, which in ((at, 1, there), (gone, -1, there & (gone < never))):
        part = rows.filter(pa.array(which))
        stamps = pa.array(times[which], pa.timestamp("us"))
        parts.append(part.append_column("_time", stamps).append_column("_diff", pa.array(np.full(len(stamps), diff))))
    return pa.concat_tables(parts)


def _time_query(line: str, bids: pa.Table) -> dict[str, Any]:
    """Time a query of Nexmark in steps, each at a second of its own, and check the rows at the end."""
    import ddflow as dd

    flow = dd.Flow(clock="timestamp")
    flow.updates("bid", bids.schema, ingested="came" if line == "q12" else None)
    flow.output("out", flow.sql(QUERIES[line]))
    updates, taken, begin = 0, {"seconds": 0.0, "cpu_seconds": 0.0}, dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
    step = min(ours.STEP, -(-bids.num_rows // 4))
    came = [begin + dt.timedelta(seconds=3 * number) for number in range(-(-bids.num_rows // step))]
    with flow.open(threads=1) as engine:
        for now, table in zip(came, slices(bids, step), strict=True):
            begun, spent = time.perf_counter(), time.process_time()
            out = engine.step({"bid": table}, time=now)["out"]
            taken["seconds"] += time.perf_counter() - begun
            taken["cpu_seconds"] += time.process_time() - spent
            updates += out.num_rows
        stamps = np.repeat(np.array([each.replace(tzinfo=None) for each in came], "datetime64[us]"), step)
        _check(line, bids.append_column("came", pa.array(stamps[: bids.num_rows])), engine.read("out"))
    return {**taken, "rows": bids.num_rows, "updates": updates}


def _check(line: str, bids: pa.Table, found: pa.Table) -> None:
    """Compare the rows of a query with DuckDB's."""
    import duckdb

    with duckdb.connect() as connection:
        connection.register("bid", bids)
        expected = connection.sql(f"select * from ({IN_DUCKDB[line]}) order by all").to_arrow_table()
    mine = found.drop_columns("_diff")
    mine = mine.sort_by([(name, "ascending") for name in mine.column_names])
    assert mine.num_rows == expected.num_rows
    for one, other in zip(mine.columns, expected.columns, strict=True):
        assert one.cast(pa.int64()).equals(other.cast(one.type).cast(pa.int64()))


BENCH = Temporal()
