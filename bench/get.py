"""Measure the look-up of one row: `Engine.get` on a million keys or groups, and DuckDB on a table with an index.

Each job reads one output of a plan with a million keys, each of which is a group of its own. Keys are random, and a
look-up is timed by the processor time of its thread, because other programs can stop the thread. DuckDB looks up the
same key in a table with the rows of the output and a primary key, by a prepared statement. Each answer is checked.

>>> sample = BENCH.measure(line="count", state="memory", keys=2_000, gets=20)
>>> len(sample["us"]), sample["median_us"] <= sample["p99_us"]
(20, True)
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import ours
import pyarrow as pa
from report import Bar, Row, within
from runner import Bench, Job

KEYS, GETS, STEP, WANTED_US = 1_000_000, 2_000, 250_000, 50
LINES = {
    "input": ("id", lambda rows: rows),
    "project": ("id", lambda rows: rows.project(["id", "name"])),
    "filter": ("id", lambda rows: rows.filter("v >= 0")),
    "count": ("g", lambda rows: rows.count("g")),
    "sum": ("g", lambda rows: rows.group_by("g").agg(s="sum(v)", n="count(*)")),
    "max": ("g", lambda rows: rows.group_by("g").agg(m="max(v)")),
    "top": ("g", lambda rows: rows.top(1, by="v", partition_by="g")),
}
"""For each line, the column of the look-up and the output."""


class Get(Bench):
    """The bench, with one job for each line and kind of state, and DuckDB on the rows of the input."""

    name = "get"
    about = "Look-ups: one row by its key or group, of a million, by processor time."
    figures = ("median_us", "p99_us")
    quick = ({}, {"keys": "50000", "gets": "200"})
    columns = "line {line} | state {state} | median us {median_us:,.1f} | p99 us {p99_us:,.1f}"

    def jobs(self) -> list[Job]:
        ours_ = [Job({"line": line, "state": where}) for where in ("memory", "durable") for line in LINES]
        return [
            Job({**job.what, "keys": KEYS, "gets": GETS}) for job in [*ours_, Job({"line": "input", "state": "duckdb"})]
        ]

    def measure(self, line: str, state: str, keys: int, gets: int) -> dict[str, Any]:
        """Load the keys and time the look-ups; raise AssertionError if an answer is wrong."""
        import ddflow as dd

        by, output = LINES[line]
        wanted = np.random.default_rng(7).integers(0, keys, gets + 50).tolist()
        if state == "duckdb":
            return _summarize(_time_duckdb(keys, wanted))
        ours.warm()
        flow = dd.Flow()
        flow.output("out", output(flow.upserts("rows", _make_rows(0, 0).schema, dd.Upsert(key="id"))))
        micros = []
        with TemporaryDirectory() as place, flow.open(*([place + "/state"] if state == "durable" else [])) as engine:
            for begin in range(0, keys, STEP):
                engine.step({"rows": _make_rows(begin, min(begin + STEP, keys))})
            for key in wanted:
                begun = time.thread_time_ns()
                row = engine.get("out", **{by: key})
                micros.append((time.thread_time_ns() - begun) / 1000)
                assert row is not None and row[by] == key, (key, row)
        return _summarize(micros)

    def bars(self, result: Row) -> Iterator[Bar]:
        """Yield the bars (targets): median latencies in microseconds."""
        peer = next((f"DuckDB {row['median_us']:,.0f} us" for row in result["results"] if row["state"] == "duckdb"), "")
        for row in result["results"]:
            if row["state"] != "duckdb":
                said, met = f"{row['median_us']:,.1f} us; p99 {row['p99_us']:,.1f}", row["median_us"] <= WANTED_US
                yield within(f"get, {row['line']}, {row['state']}", said, f"{WANTED_US} us", met, peer)


def _make_rows(begin: int, end: int) -> pa.Table:
    """Make rows whose ids range from ``begin`` to ``end``."""
    ids = np.arange(begin, end)
    return pa.table(
        {"id": ids, "name": pa.array([f"n{each}" for each in ids.tolist()], pa.string()), "g": ids, "v": ids * 0.5}
    )


def _time_duckdb(keys: int, wanted: list[int]) -> list[float]:
    """Time look-ups in a DuckDB table with a primary key, in microseconds."""
    import duckdb

    micros, rows = [], _make_rows(0, keys)
    with duckdb.connect(config={"threads": 1}) as connection:
        connection.register("given", rows)
        connection.execute("create table rows (id bigint primary key, name varchar, g bigint, v double)")
        connection.execute("insert into rows select * from given")
        for key in wanted:
            begun = time.thread_time_ns()
            row = connection.execute("select * from rows where id = ?", [key]).fetchone()
            micros.append((time.thread_time_ns() - begun) / 1000)
            assert row is not None and row[0] == key, (key, row)
    return micros


def _summarize(micros: list[float]) -> dict[str, Any]:
    """Summarize the times, without the first 50, which prepare the look-up."""
    warm = micros[50:]
    found = {"median_us": median(warm), "p99_us": float(np.percentile(warm, 99))}
    return {**found, "us": [round(each, 1) for each in warm]}


BENCH = Get()
