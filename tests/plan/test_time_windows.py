"""Test windows of time and sessions in queries beside Python, which recomputes them, DuckDB and Spark."""

from __future__ import annotations

import datetime as dt
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pytest
from chance import seeded
from messages import raises
from tight import MEMORY, tighten, tiny

import ddflow as dd
from ddflow.errors import ExpressionError, NegativeMultiplicity
from ddflow.storage.memory import MemoryStore

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


GAPS = [1, 60, 300, 301, 7000]
SESSIONS = "select v, session_window.start s, session_window.end e, count(*) n, min(id) i from rows group by v, "


def sessions_of(times: Iterable[dt.datetime | None], gap: int) -> dict[dt.datetime, tuple[dt.datetime, dt.datetime]]:
    """The session of each time: those less than a gap apart."""
    out, length = dict[dt.datetime, tuple[dt.datetime, dt.datetime]](), dt.timedelta(seconds=gap)
    chain: list[dt.datetime] = []
    for at in sorted(each for each in times if each is not None):
        chain = [*chain, at] if chain and at - chain[-1] < length else [at]
        out |= dict.fromkeys(chain, (chain[0], at + length))
    return out


@pytest.mark.drawn(6)
@pytest.mark.parametrize("medium", ["memory", "files", "reopened"])
@pytest.mark.parametrize("gap", GAPS)
def test_sessions_hold_the_rows_that_python_finds_after_every_step(gap: int, medium: str, tmp_path: Path) -> None:
    """Whatever comes late, moves or goes; and the differences add up to the rows."""
    store, call = MemoryStore(), f"session_window(at, '{gap} seconds')"

    def flow() -> dd.Flow:
        made = flow_of()
        made.output("of_v", made.sql(SESSIONS + call))
        made.output("every", made.sql(f"select {call} w, count(*) n from rows group by {call}"))
        return made

    options = {"memory": MEMORY, "spill": tmp_path} if medium == "files" else {}
    held, added = dict[int, tuple[dt.datetime | None, int]](), Counter[Any]()
    with tiny():
        engine = flow().open(store.reopen() if medium == "reopened" else None, **options)
        for number, step in enumerate(drawn_steps(f"sessions {gap} {medium}") * 2):
            if medium == "reopened" and number % 3 == 2:
                engine.close()
                engine = flow().open(store.reopen())
            if medium == "files":
                tighten(engine, 0, 2**40)
            for row in engine.step({"rows": events(*step)}, time=number)["of_v"].to_pylist():
                added[tuple(row.values())[:5]] += row["_diff"]
            for key, at, v, gone in step:
                held.pop(key, None)
                held |= {} if gone else {key: (at, v)}
            expected = set()
            for v in range(3):
                rows = {key: at for key, (at, its) in held.items() if its == v and at is not None}
                for ends in set((found := sessions_of(rows.values(), gap)).values()):
                    its = [key for key, at in rows.items() if found[at] == ends]
                    expected.add((v, *ends, len(its), min(its)))
            assert {tuple(row.values())[:5] for row in engine.read("of_v").to_pylist()} == expected
            assert Counter(expected) == +added
            alone = sessions_of((at for at, _ in held.values()), gap)
            counts = Counter(alone[at] for at, _ in held.values() if at is not None)
            assert {tuple(row["w"].values()): row["n"] for row in engine.read("every").to_pylist()} == counts
        engine._check_invariants()
        engine.close()


def test_a_row_joins_two_sessions_and_leaves_two() -> None:
    flow = flow_of()
    flow.output(
        "out", flow.sql("select session_window.start s, count(*) n from rows group by session_window(at, '10 seconds')")
    )

    def step(key: int, second: int | None, gone: bool = False) -> list[tuple[Any, ...]]:
        at = None if second is None else EPOCH + dt.timedelta(seconds=second)
        rows = engine.step({"rows": events((key, at, 0, gone))})["out"].to_pylist()
        return sorted(((row["s"] - EPOCH).seconds, row["n"], row["_diff"]) for row in rows)

    with flow.open() as engine:
        assert step(1, 0) == [(0, 1, 1)]
        assert step(2, 10) == [(10, 1, 1)]
        assert step(3, 5) == [(0, 1, -1), (0, 3, 1), (10, 1, -1)]
        assert step(3, 5) == []
        assert step(4, 100) == [(100, 1, 1)]
        assert step(2, 14) == []
        assert step(2, 15) == [(0, 2, 1), (0, 3, -1), (15, 1, 1)]
        assert step(3, 0, gone=True) == [(0, 1, 1), (0, 2, -1)]
        assert step(4, None) == [(100, 1, -1)]


def test_times_that_shift_shift_their_sessions() -> None:
    steps, gap = drawn_steps("shifted"), 300
    found = []
    for shift in (dt.timedelta(0), dt.timedelta(days=-3, seconds=7)):
        flow = flow_of()
        flow.output("out", flow.sql(f"{SESSIONS} session_window(at, '{gap} seconds')"))
        with flow.open() as engine:
            for step in steps:
                moved = [(key, at and at + shift, v, gone) for key, at, v, gone in step]
                engine.step({"rows": events(*moved)})
            rows = engine.read("out").to_pylist()
        found.append({(row["v"], row["s"] - shift, row["e"] - shift, row["n"], row["i"]) for row in rows})
    assert found[0] == found[1] and found[0]


def test_sessions_are_those_of_duckdb() -> None:
    """Of many rows of few users, in a query with a join, conditions before and after the groups, and all clauses."""
    flow, chance = flow_of(), seeded("sessions of duckdb")
    flow.upserts("users", {"v": int, "name": str}, dd.Upsert(key="v"))
    named = (
        "with named as (select r.*, u.name from {} r join users u on r.v = u.v where id % 7 <> 0 and r.at is not null)"
    )
    shown = 'count(*) n, max("at") - min("at") > interval 1 hour long from'
    query = f"""{named.format("rows")} select upper(name) user, session_window w, window_time(session_window) t, {shown}
        named group by session_window(at, interval 5 minutes), upper(name) having count(*) > 1"""
    flow.output("out", flow.sql(query))
    window = '(partition by upper(name) order by "at")'
    expected = f"""{named.format("held")},
        far as (select *, "at" - lag("at") over {window} >= interval 5 minutes as far from named),
        numbered as (select *, count(*) filter (far) over {window} as session from far),
        ended as (
          select *, max("at") over (partition by upper(name), session) + interval 5 minutes as stop from numbered
        )
        select upper(name), min("at"), stop, stop - interval 1 microsecond, {shown}
        ended group by upper(name), session, stop having count(*) > 1"""
    users = pa.table({"v": range(5), "name": ["ann", "bob", "Ann", "Eve", None]})
    held = dict[int, Any]()
    with flow.open() as engine, duckdb.connect() as witness:
        engine.step({"users": users})
        witness.register("users", users)
        for _ in range(4):
            keys = chance.sample(range(3000), 900)
            step = [
                (
                    key,
                    EPOCH + dt.timedelta(seconds=chance.randrange(200_000)),
                    chance.randrange(5),
                    chance.random() < 0.2,
                )
                for key in keys
            ]
            engine.step({"rows": events(*step)})
            held |= {row[0]: row for row in step}
            witness.register("held", events(*(row for row in held.values() if not row[3])))
            rows = engine.read("out").to_pylist()
            found = Counter((r["user"], *r["w"].values(), r["t"], r["n"], r["long"]) for r in rows)
            assert found == Counter(witness.execute(expected).fetchall()) and len(found) > 20


def test_sessions_within_other_queries() -> None:
    """Of an outer row, of dates and texts, of sessions, and of each time."""
    flow, call = flow_of(), "session_window(at, '1 minute')"
    alone = f"exists (select 1 from rows b where b.v = a.v group by {call} having count(*) > {{}})"
    latest = "row_number() over (partition by v order by session_window.start desc) = 1"
    of_v = f"(select v, {call} w from rows group by v, {call})"
    queries = {
        "outer": f"count(*) m from rows a where {alone.format(0)}",
        "nobody": f"count(*) m from rows a where {alone.format(1)}",
        "text": "count(*) m from (select cast(at as string) t from rows) group by session_window(t, '1 minute')",
        "date": "count(*) m from (select cast(at as date) d from rows) group by session_window(d, '2 days')",
        "again": f"count(*) m from {of_v} group by session_window(w.start, '1 hour')",
        "each": f"at, {call} w, count(*) m from rows group by {call}, at",
        "ranked": f"v, count(*) m from rows group by v, {call} qualify {latest}",
        "latest": f"{call} w, count(*) m from rows group by all order by w.start desc limit 1",
    }
    for name, query in queries.items():
        flow.output(name, flow.sql(f"select {query}"))
    times = [
        None if each is None else EPOCH + dt.timedelta(seconds=each) for each in (0, 30, 80, 200, 259, 86_400, None)
    ]
    with flow.open() as engine:
        for n, at in enumerate(times):
            engine.step({"rows": events((n, at, n % 2, False))})
        found = {name: sorted(row["m"] for row in engine.read(name).to_pylist()) for name in queries}
        each = {row["at"]: row["w"] for row in engine.read("each").to_pylist()}
    assert (found["outer"], found["nobody"], found["text"], found["date"]) == ([7], [0], [1, 2, 3], [6])
    assert (found["again"], found["each"], found["ranked"], found["latest"]) == ([1, 5], [1] * 6, [1, 1], [1])
    assert each == {at: {"start": at, "end": at + dt.timedelta(minutes=1)} for at in times if at is not None}


def test_sessions_refuse_a_negative_multiplicity() -> None:
    flow = dd.Flow()
    flow.updates("rows", {"at": WALL, "d": int}, diff="d")
    flow.output("out", flow.sql("select count(*) n from rows group by session_window(at, '1 second')"))
    with flow.open() as engine:
        with raises(NegativeMultiplicity):
            engine.step({"rows": pa.table({"at": pa.array([EPOCH], WALL), "d": [-1]})})
        engine.step({"rows": pa.table({"at": pa.array([EPOCH], WALL), "d": [3]})})
        assert engine.read("out").to_pylist()[0]["n"] == 3


NAMED = {
    "select v, session_window(at, '10 minutes') as w, count(*), session_window.start from rows group by v, "
    "session_window(at, '10 minutes')": ["v", "w", "count(*)", "start"],
    "select session_window from rows group by SESSION_WINDOW(at, interval 10 minutes)": ["session_window"],
    "select session_window(at, '1 day') from rows group by 1": ["session_window"],
    "select session_window(at, '1 day') w from rows group by w": ["w"],
    "select max(v) from rows group by session_window(at, '1 day') having session_window.start > max(at)": ["max(v)"],
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
    "session_window(at, '1 day')",
    "count(session_window(at, '1 day'))",
    "distinct session_window(at, '1 day').start",
    "id from rows where session_window(at, '1 day').start < at",
    "r.id from rows r join rows s on session_window(s.at, '1 day').start < r.at",
    "session_window.start from rows group by session_window(at, '1 day').start",
    "v from rows group by session_window(at)",
    "v from rows group by session_window()",
    "count(*) from rows group by session_window(at, '0 days')",
    "count(*) from rows group by session_window(at, '1 month')",
    "count(*) from rows group by session_window(at, v)",
    "count(*) from rows group by session_window(v, '1 day')",
    "count(*) from rows group by session_window(v > 1, '1 day')",
    "count(*) from rows group by session_window(at, '1 day'), window(at, '1 day')",
    "count(*) from rows group by session_window(at, '1 day'), session_window(at, '2 days')",
    "count(*) from rows group by session_window(session_window(at, '1 day').start, '2 days')",
    "session_window(at, '1 day') over (partition by v order by at) from rows group by v",
    "session_window from rows",
    "v, session_window(at, '1 day') w from rows group by v",
]


@pytest.mark.parametrize("call", BAD)
def test_what_is_no_window_is_refused_with_what_to_write(call: str) -> None:
    with raises(ExpressionError):
        flow_of().sql(f"select {call}" + " from rows" * (" from rows" not in call))


def test_verbs_refuse_sessions_of_a_single_row() -> None:
    flow = flow_of()
    with raises(ExpressionError):
        flow.sql("select * from rows").project({"w": "session_window(at, '1 day')"})


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


@pytest.mark.spark
def test_sessions_are_those_of_spark(spark: Any) -> None:
    """Spark lets a row join the session that ends at its time, so its gap is a microsecond less."""
    rows = [row for step in drawn_steps("sessions of spark") for row in step if not row[3]]
    rows = [(number, *row[1:]) for number, row in enumerate(rows)]
    frame = spark.createDataFrame(rows, "id long, at timestamp_ntz, v long, gone boolean")
    frame.createOrReplaceTempView("sessions")
    for gap in GAPS:
        micros = gap * 10**6
        flow = flow_of()
        flow.output("out", flow.sql(f"{SESSIONS} session_window(at, '{micros} microseconds')"))
        with flow.open() as engine:
            engine.step({"rows": events(*rows)}, time=0)
            found = {tuple(row.values())[:5] for row in engine.read("out").to_pylist()}
        query = f"{SESSIONS} session_window(at, '{micros - 1} microseconds')".replace("from rows", "from sessions")
        spark_rows = [tuple(row) for row in spark.sql(query).collect()]
        assert found == {(v, s, e + dt.timedelta(microseconds=1), n, i) for v, s, e, n, i in spark_rows}, gap
