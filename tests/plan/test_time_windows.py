"""Test windows of time in queries and expressions beside Python, which recomputes them, DuckDB and Spark."""

from __future__ import annotations

import datetime as dt
from collections import Counter
from typing import Any

import duckdb
import pyarrow as pa
import pytest
from chance import seeded
from messages import raises

import ddflow as dd
from ddflow.errors import ExpressionError

EPOCH = dt.datetime(1970, 1, 1)
WALL = pa.timestamp("us")
ROWS = {"id": int, "at": WALL, "v": int, "gone": bool}
LENGTHS = [
    (600, 600, 0),
    (600, 300, 0),
    (600, 300, 60),
    (700, 300, -200),
    (3600, 3600, 1800),
    (1, 1, 0),
    (86_400, 7_000, 5),
]


def windows_of(at: dt.datetime | None, length: int, slide: int, start: int) -> list[tuple[dt.datetime, dt.datetime]]:
    """All windows [start, end) that contain a time, found by trying every start of a window near it."""
    if at is None:
        return []
    near = (at - EPOCH) // dt.timedelta(seconds=1) // slide
    begins = [EPOCH + dt.timedelta(seconds=n * slide + start) for n in range(near - length // slide - 2, near + 3)]
    found = [(begin, begin + dt.timedelta(seconds=length)) for begin in begins]
    return [each for each in found if each[0] <= at < each[1]]


def flow_of() -> dd.Flow:
    flow = dd.Flow()
    flow.upserts("rows", ROWS, dd.Upsert(key="id", delete=dd.tombstone("gone", True)))
    return flow


def events(*rows: tuple[Any, ...]) -> pa.Table:
    columns = list(zip(*rows, strict=True))
    return pa.table({"id": columns[0], "at": pa.array(columns[1], WALL), "v": columns[2], "gone": columns[3]})


def drawn_steps(what: str) -> list[list[tuple[Any, ...]]]:
    """Steps of upserts and deletes, with times around the epoch and around bounds of windows, and null times."""
    chance = seeded(what)
    times = [
        None,
        *(EPOCH + dt.timedelta(seconds=each) for each in (-601, -600, -1, 0, 59, 60, 299, 300, 599, 600, 7000)),
    ]
    times += [EPOCH + dt.timedelta(days=19_782, microseconds=chance.randrange(10**10)) for _ in range(5)]
    return [
        [(key, chance.choice(times), chance.randrange(3), chance.random() < 0.2) for key in chance.sample(range(9), 4)]
        for _ in range(6)
    ]


@pytest.mark.drawn(7)
@pytest.mark.parametrize("lengths", LENGTHS, ids=str)
def test_windows_hold_the_rows_that_python_finds_after_every_step(lengths: tuple[int, int, int]) -> None:
    given = ", ".join(f"'{each} seconds'" for each in lengths)
    flow = flow_of()
    counted = f"select window.start, window.end, v, count(*) n from rows group by window(at, {given}), v"
    flow.output("counted", flow.sql(counted))
    flow.output("listed", flow.sql(f"select id, window(at, {given}) w from rows"))
    held = dict[int, tuple[dt.datetime | None, int]]()
    with flow.open() as engine:
        for number, step in enumerate(drawn_steps(str(lengths))):
            engine.step({"rows": events(*step)}, time=number)
            for key, at, v, gone in step:
                held.pop(key, None)
                held |= {} if gone else {key: (at, v)}
            found = [(key, each, v) for key, (at, v) in held.items() for each in windows_of(at, *lengths)]
            rows = engine.read("counted").to_pylist()
            assert {(r["start"], r["end"], r["v"]): r["n"] for r in rows} == Counter((*w, v) for _, w, v in found)
            rows = engine.read("listed").to_pylist()
            assert Counter((r["id"], (r["w"]["start"], r["w"]["end"])) for r in rows) == Counter(x[:2] for x in found)


def test_windows_that_tumble_begin_where_duckdb_begins_them() -> None:
    flow, rows = flow_of(), events(*(row for step in drawn_steps("duckdb") for row in step if not row[3]))
    flow.output("out", flow.sql("select at, window(at, interval 7 minutes).start s from rows where at is not null"))
    with flow.open() as engine, duckdb.connect() as connection:
        engine.step({"rows": rows}, time=0)
        found = engine.read("out")
        connection.register("found", found)
        bucket = "time_bucket(interval '7 minutes', \"at\", timestamp '1970-01-01')"
        assert found.num_rows > 3
        assert connection.execute(f"select * from found where s <> {bucket}").fetchall() == []


NAMED = {
    "select window from rows group by window(at, '10 minutes')": ["window"],
    "select window(at, '10 minutes') from rows": ["window"],
    "select window.end e, max(v) from rows group by 2 - 1, window(at, '5 minutes')": ["e", "max(v)"],
    "select *, window(at, '1 day') day from rows": ["id", "at", "v", "day"],
    "select count(distinct window(at, '10 minutes', '5 minutes')) c from rows": ["c"],
    "select w.start, window_time(w) t from (select window(at, '9 hours') w from rows)": ["start", "t"],
    "select window from (select 1 as window from rows)": ["window"],
    "select id from rows where window(at, '1 hour').start < at order by window(at, '1 hour').start limit 1": ["id"],
}


@pytest.mark.parametrize("query", NAMED)
def test_a_query_names_its_window(query: str) -> None:
    flow = flow_of()
    assert flow.sql(query).schema.names == NAMED[query]


def test_a_window_next_to_a_column_of_that_name_keeps_both() -> None:
    flow = dd.Flow()
    flow.upserts("rows", {"id": int, "at": WALL, "window": str}, dd.Upsert(key="id"))
    flow.output("out", flow.sql("select r.window, window(at, '2 hours', '1 hour') as hours from rows r"))
    with flow.open() as engine:
        engine.step({"rows": pa.table({"id": [1], "at": pa.array([EPOCH], WALL), "window": ["text"]})}, time=0)
        found = engine.read("out").to_pylist()
    assert sorted(row["hours"]["start"].hour for row in found) == [0, 23] and {r["window"] for r in found} == {"text"}


def test_verbs_read_windows_that_tumble_as_structs_and_windows_that_hop_as_lists() -> None:
    flow = flow_of()
    rows = flow.sql("select * from rows")
    flow.output("one", rows.project({"id": "id", "w": "window(at, '10 minutes')"}))
    flow.output("all", rows.project({"id": "id", "w": "window(at, '10 minutes', '4 minutes')"}).unnest("w"))
    with flow.open() as engine:
        engine.step({"rows": events((1, EPOCH, 0, False), (2, None, 0, False))}, time=0)
        one = {row["id"]: row["w"] for row in engine.read("one").to_pylist()}
        assert one == {1: {"start": EPOCH, "end": EPOCH + dt.timedelta(minutes=10)}, 2: None}
        assert engine.read("all").schema.names[:2] == ["id", "window"]
        assert engine.read("all").num_rows == len(windows_of(EPOCH, 600, 240, 0)) == 3


BAD = [
    "window(at, '1 month')",
    "window(at, '10 minutes', '11 minutes')",
    "window(at, '10 minutes', '5 minutes', '5 minutes')",
    "window(at, '0 seconds')",
    "window(at, 'soon')",
    "window(at, v)",
    "window(at, 3)",
    "window()",
    "window(at)",
    "window(v, '1 day')",
    "window(at, '365 days', '1 second')",
    "window_time(at)",
    "window(at, '1 day'), window(at, '2 days') w",
]


@pytest.mark.parametrize("call", BAD)
def test_what_is_no_window_is_refused_with_what_to_write(call: str) -> None:
    with raises(ExpressionError):
        flow_of().sql(f"select {call} from rows")


def test_a_window_beyond_the_last_timestamp_refuses_the_step_and_keeps_the_state() -> None:
    flow, nanos = dd.Flow(), pa.timestamp("ns")
    rows = flow.upserts("rows", {"id": int, "at": nanos}, dd.Upsert(key="id"))
    flow.output("out", flow.sql("select window(at, '10 minutes') from rows", rows=rows))
    with flow.open() as engine:
        with raises(ExpressionError):
            engine.step({"rows": pa.table({"id": [1], "at": pa.array([2**63 - 1]).cast(nanos)})}, time=0)
        engine.step({"rows": pa.table({"id": [1], "at": pa.array([0]).cast(nanos)})}, time=0)
        assert engine.read("out").num_rows == 1


@pytest.mark.spark
def test_windows_are_those_of_spark(spark: Any) -> None:
    rows = [row for step in drawn_steps("spark") for row in step if not row[3]]
    rows = [(number, *row[1:]) for number, row in enumerate(rows)]
    frame = spark.createDataFrame(rows, "id long, at timestamp_ntz, v long, gone boolean")
    frame.createOrReplaceTempView("windowed")
    for lengths in LENGTHS:
        given = ", ".join(f"'{each} seconds'" for each in lengths)
        query = f"select window.start, window.end, v, count(*) n from {{}} group by window(at, {given}), v"
        flow = flow_of()
        flow.output("out", flow.sql(query.format("rows")))
        with flow.open() as engine:
            engine.step({"rows": events(*rows)}, time=0)
            found = Counter(tuple(row.values())[:4] for row in engine.read("out").to_pylist())
        assert found == Counter(tuple(row) for row in spark.sql(query.format("windowed")).collect()), lengths
