"""Measure window functions: a change at the end of a large partition, in its middle, and changes of many partitions.

A job with ``place`` "end" changes the last row of one partition; "middle" changes the row that has a tenth of the
partition after it. A job with ``place`` "spread" moves random rows of partitions of a thousand rows to their end. Each
line adds one column to the rows. The line ``top`` is a top of ten (or of one, if spread) over the same order. A job
with ``place`` "users" groups the events of a million users, which are out of order: ``count`` by user, and ``sessions``
by user and session. DuckDB recomputes the query after it has updated its table; only the query is timed. At the end,
DuckDB checks the rows.

>>> for place, rows in (("end", 200), ("middle", 2_000), ("spread", 3_000)):
...     BENCH.measure(line="running", contender="ddflow", place=place, rows=rows, steps=3)["updates"]
2
402
5884
>>> BENCH.measure(line="sessions", contender="ddflow", place="users", rows=2_000, steps=3)["updates"] > 200
True
>>> BENCH.measure(line="rank", contender="duckdb", place="end", rows=200, steps=3)["updates"]
0
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from statistics import median
from typing import Any

import memory
import numpy as np
import ours
import pyarrow as pa
import pyarrow.compute as pc
from report import Bar, Row, within
from runner import Bench, Job

ROWS, SMALL, SPREAD = 1_000_000, 1_000, 100_000
CALLS = {
    "lag": "lag(v)",
    "rows-10": "sum(v) over (rows 10 preceding)",
    "rank": "rank()",
    "running": "sum(v)",
}
SESSION = "session_window(at, '10 minutes')"
USERS = {
    "count": "select user, count(*) n from rows group by user",
    "sessions": f"select user, session_window, count(*) n from rows group by user, {SESSION}",
}
"""The queries over the events of users."""
TIMES_TOP, TIMES_DUCKDB, LAG_OF_TOP, SESSIONS_OF_COUNT, OUTPUT = 3, 100, 0.8, 0.5, 2.0
"""The targets: a step's time as a multiple of a top's, DuckDB's as a multiple of ours, rates, and M updates/s."""


class Windows(Bench):
    """The bench, with one job for each place, line and contender."""

    name = "windows"
    about = "Window functions: one changed row of a large partition, and many changed rows of small ones."
    figures = ("median_ms",)
    quick = ({"contender": "ddflow"}, {"rows": "50000", "steps": "5"})
    columns = (
        "place {place} | line {line} | contender {contender} | ms a step {median_ms:,.3f} | CPU ms {cpu_ms:,.3f} | "
        "updates a step {updates:,.0f} | M updates/s {m_updates_per_s:.2f} | peak MB {peak_mb:,.0f}"
    )

    def jobs(self) -> list[Job]:
        steps = {"end": 100, "middle": 20, "spread": 8, "users": 8}
        lines = [(place, line) for place in steps for line in (USERS if place == "users" else ("top", *CALLS))]
        mine = [Job({"line": line, "contender": "ddflow", "place": place}, rounds=3) for place, line in lines]
        peers = [Job({"line": line, "contender": "duckdb", "place": "end"}, 2) for line in CALLS]
        return [
            job._replace(what={**job.what, "rows": ROWS, "steps": steps[str(job.what["place"])]})
            for job in [*mine, *peers]
        ]

    def measure(self, line: str, contender: str, place: str, rows: int, steps: int) -> dict[str, Any]:
        """Load the rows and time the steps; raise AssertionError if the rows at the end are wrong."""
        tables = list(_make_steps(place, rows, steps))
        if contender == "duckdb":
            return _time_duckdb(line, tables)
        ours.warm()
        memory.settled()
        before = memory.pages().private
        wall, cpu, updates = [], [], []
        with memory.Watch() as watch, _plan(line, place).open(threads=1) as engine:
            for number, table in enumerate(tables):
                begun, spent = time.perf_counter(), time.process_time()
                out = engine.step({"rows": table})["out"]
                if number > 1:  # the load, and the first step after it
                    wall.append((time.perf_counter() - begun) * 1e3)
                    cpu.append((time.process_time() - spent) * 1e3)
                    updates.append(out.num_rows)
                del out
            found = engine.read("out")
        if line != "top":
            (_check_users if place == "users" else _check)(line, tables, found)
        return _make_sample(wall, cpu, median(updates)) | {"peak_mb": (watch.peak.private - before) / 2**20}

    def row(self, job: Job, samples: Any) -> Row:
        """Build a row from the median of the rounds."""
        best = sorted(samples, key=lambda each: each["median_ms"])[len(samples) // 2]
        return {**job.what, **best}

    def bars(self, result: Row) -> Iterator[Bar]:
        """Yield the bars (targets)."""
        rows = {(row["place"], row["line"], row["contender"]): row for row in result["results"]}
        for (place, line, contender), row in rows.items():
            count = rows.get(("users", "count", "ddflow"))
            if (place, line) == ("users", "sessions") and count is not None:
                part = count["median_ms"] / row["median_ms"]
                said, wanted = f"{part:.2f} of a count's rate", f"{SESSIONS_OF_COUNT} of it"
                yield within("sessions, 10^6 users, out of order", said, wanted, part >= SESSIONS_OF_COUNT)
            top, peer = rows.get((place, "top", "ddflow")), rows.get((place, line, "duckdb"))
            if contender != "ddflow" or line == "top" or top is None:
                continue
            mine, its = row["median_ms"], top["median_ms"]
            if place == "end":
                met = mine <= TIMES_TOP * its
                yield within(f"{line} at the end", f"{mine:.2f} ms", f"{TIMES_TOP} x a top's {its:.2f} ms", met)
                if peer is not None:
                    times = peer["median_ms"] / mine
                    yield within(f"{line} beside DuckDB", f"{times:.0f} x", f"{TIMES_DUCKDB} x", times >= TIMES_DUCKDB)
            elif line == "lag" and place == "spread":
                part = its / mine
                yield within("lag, spread", f"{part:.2f} of a top's rate", f"{LAG_OF_TOP} of it", part >= LAG_OF_TOP)
            elif line in ("rank", "running") and row["updates"] > SMALL:
                met = row["m_updates_per_s"] >= OUTPUT
                said = f"{row['m_updates_per_s']:.2f} M updates/s"
                yield within(f"{line}, {place}", said, f"{OUTPUT:.0f} M updates/s", met)


def _make_steps(place: str, rows: int, steps: int) -> Iterator[pa.Table]:
    """Make the table of the load, then the table of each step."""
    chance, now = np.random.default_rng(11), rows
    if place == "users":
        for number in range(steps + 2):
            size = max(rows // (ROWS // SPREAD), 1) if number else rows
            # Each step is a minute later, and its events are up to ten minutes late.
            at = (number + chance.uniform(0, 10, size)) * 60e6
            user, v = chance.integers(0, rows, size), chance.integers(0, 1000, size)
            yield pa.table({"user": user, "at": pa.array(at.astype(np.int64), pa.timestamp("us")), "v": v})
        return
    ids = np.arange(rows)
    spread = place == "spread"
    for number in range(steps + 2):
        if number:
            size = max(rows // (ROWS // SPREAD), 1) if spread else 1
            ids = chance.integers(0, rows, size) if spread else np.array([rows - 1 - rows // 10 * (place == "middle")])
        at = now + np.arange(ids.size) if spread else ids
        now += ids.size
        groups = ids % max(rows // SMALL, 1) if spread else np.zeros(ids.size, np.int64)
        yield pa.table({"id": ids, "g": groups, "pos": at, "v": chance.integers(0, 1000, ids.size)})


def _plan(line: str, place: str) -> Any:
    import ddflow as dd

    flow = dd.Flow()
    if place == "users":
        flow.updates("rows", {"user": int, "at": pa.timestamp("us"), "v": int})
        flow.output("out", flow.sql(USERS[line]))
        return flow
    rows = flow.upserts("rows", {"id": int, "g": int, "pos": int, "v": int}, dd.Upsert(key="id"))
    if line == "top":
        made = rows.top(1 if place == "spread" else 10, by="pos desc", partition_by="g")
    else:
        made = rows.over("g", "pos", x=CALLS[line])
    flow.output("out", made)
    return flow


def _write_query(line: str) -> str:
    call, _, frame = CALLS[line].partition(" over (")
    return f"select id, {call} over (partition by g order by pos {frame or ')'} as x from held"


def _hold(tables: list[pa.Table]) -> dict[str, Any]:
    """Return the columns of the rows after all steps."""
    last = {name: tables[0].column(name).to_numpy().copy() for name in tables[0].column_names}
    for table in tables[1:]:
        for name, column in last.items():
            column[table.column("id").to_numpy()] = table.column(name).to_numpy()
    return last


def _check(line: str, tables: list[pa.Table], found: pa.Table) -> None:
    """Compare the rows of an output with DuckDB's."""
    import duckdb

    held = pa.table(_hold(tables))  # noqa: F841 (the query reads it)
    expected = duckdb.sql(_write_query(line) + " order by id").to_arrow_table()
    mine = found.sort_by("id")
    assert mine.num_rows == expected.num_rows
    for name in ("id", "x"):
        given = mine.column(name).cast(pa.float64()), expected.column(name).cast(pa.float64())
        assert given[0].to_pylist() == given[1].to_pylist()


def _check_users(line: str, tables: list[pa.Table], found: pa.Table) -> None:
    """Compare the groups of users with DuckDB's."""
    import duckdb

    held = pa.concat_tables(tables)
    query = USERS["count"]
    if line == "sessions":
        window = '(partition by user order by "at")'
        far = f'select *, "at" - lag("at") over {window} >= interval 10 minutes far from held'
        query = f"select *, count(*) filter (far) over {window} session from ({far})"
        query = f'select user, min("at"), count(*) n from ({query}) group by user, session'
    duckdb.register("rows", held)
    expected = duckdb.sql(query.replace("from held", "from rows") + " order by all").to_arrow_table()
    if line == "sessions":
        starts = pc.struct_field(found["session_window"], "start")
        found = found.set_column(1, "session_window", starts)
    mine = found.select(found.column_names[: expected.num_columns])
    mine = mine.sort_by([(name, "ascending") for name in mine.column_names])
    assert mine.num_rows == expected.num_rows
    for one, other in zip(mine.columns, expected.columns, strict=True):
        assert one.cast(pa.int64()).equals(other.cast(one.type).cast(pa.int64()))


def _time_duckdb(line: str, tables: list[pa.Table]) -> dict[str, Any]:
    """Time the query over a table of the current rows."""
    import duckdb

    wall, cpu = [], []
    with duckdb.connect() as connection, memory.Watch() as watch:
        connection.execute("set threads = 1")
        connection.register("rows", tables[0])
        connection.execute("create table held as from rows")
        for number, table in enumerate(tables[1:6]):
            connection.register("change", table)
            connection.execute("delete from held where id in (select id from change)")
            connection.execute("insert into held from change")
            begun, spent = time.perf_counter(), time.process_time()
            connection.sql(_write_query(line)).to_arrow_table()
            if number:
                wall.append((time.perf_counter() - begun) * 1e3)
                cpu.append((time.process_time() - spent) * 1e3)
    return _make_sample(wall, cpu, 0) | {"peak_mb": watch.peak.private / 2**20}


def _make_sample(wall: list[float], cpu: list[float], updates: float) -> dict[str, Any]:
    taken = {"median_ms": median(wall), "cpu_ms": median(cpu), "updates": updates}
    return taken | {"m_updates_per_s": updates / median(wall) / 1e3}


BENCH = Windows()
