"""Test window functions beside the twin and DuckDB: frames, ties, multiplicities, marks and every refusal.

The twin computes each result from all rows of the partition. Large partitions are compared with DuckDB. Some tests set
the distance of marks and the number of places in memory to small numbers.
"""

from __future__ import annotations

import datetime as dt
from collections import Counter
from decimal import Decimal
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pytest
from chance import effort, seeded
from hypothesis import given, strategies as st
from messages import raises
from model import Node, difference
from rules import canonical
from tight import MEMORY, tighten, tiny
from window_rules import NUMBERS, Call

import ddflow as dd
from ddflow.errors import AggregateOverflow, ExpressionError, NegativeMultiplicity, SpecError, TooLarge
from ddflow.operators.window import marks, running
from ddflow.plan.text.codec import compute_node_id, describe_plan, format_node, rebuild_plan
from ddflow.storage.memory import MemoryStore

COLUMNS = {
    **{"city": pa.string(), "n": pa.int64(), "note": pa.string(), "x": pa.decimal128(5, 1)},
    "at": pa.timestamp("us"),
}
PREFIX = "the same fifteen bytes"
ROWS = st.tuples(
    st.sampled_from(["Bern", "Bern", "Chur", None]),
    st.sampled_from([0, 1, 2, 5, 9, -(2**63), 2**63 - 1, None]),
    st.sampled_from(["", "b", PREFIX + " a", PREFIX + " b", None]),
    st.sampled_from([Decimal("0.5"), Decimal("7.0"), None]),
    st.one_of(
        st.none(),
        st.sampled_from([0, 1, 5, 6, 9, 12, 20, 21, 26]).map(lambda each: dt.datetime(1970, 1, 1, second=each)),
    ),
)
CHANGES = st.lists(st.tuples(ROWS, st.sampled_from([1, 1, 1, 2, 3, -1, -1, -2])), max_size=10)
WAYS = st.sampled_from(["", " desc", " nulls last", " desc nulls first"])
ORDERS = st.one_of(
    WAYS.map(lambda way: ["n" + way]),
    WAYS.map(lambda way: ["note" + way]),
    WAYS.map(lambda way: ["note" + way, "n"]),
    st.just(["x", "city"]),
    st.sampled_from([["at"], ["at nulls last"], ["at", "note"], ["at", "n desc"]]),
)
ROWS_FRAMES = st.tuples(st.sampled_from([None, -3, -1, 0, 1]), st.sampled_from([None, -2, 0, 1, 2])).filter(
    lambda each: None in each or each[0] <= each[1]
)
FRAMES = st.one_of(
    st.none(),
    ROWS_FRAMES.map(lambda each: ("rows", *each)),
    st.sampled_from([("range", None, None), ("range", 0, 0), ("range", 0, None), ("range", None, 0)]),
)
RANGES = st.tuples(st.sampled_from([None, -4, -1, 0, 1]), st.sampled_from([None, -2, 0, 1, 3])).filter(
    lambda each: None in each or each[0] <= each[1]
)
VALUES = st.sampled_from(["city", "note", "x"])
SESSIONS = st.builds(Call, st.just("session_window"), st.just("at"), st.sampled_from([1, 5_000_000, 5_000_001, 10**7]))


def calls(frames: Any) -> Any:
    return st.one_of(
        st.builds(Call, st.sampled_from(NUMBERS), number=st.integers(1, 3)),
        st.builds(Call, st.sampled_from(["lag", "lead"]), VALUES, st.integers(1, 2), ignores=st.booleans()),
        st.builds(Call, st.sampled_from(["first_value", "last_value"]), VALUES, frame=frames, ignores=st.booleans()),
        st.builds(Call, st.just("nth_value"), VALUES, st.integers(1, 3), frames, st.booleans()),
        st.builds(Call, st.sampled_from(["count", "min", "max", "array_agg"]), VALUES, frame=frames),
        st.builds(Call, st.just("count"), frame=frames),
        st.builds(Call, st.just("sum"), st.just("x"), frame=frames),
    )


@st.composite
def tolds(draw: Any) -> dict[str, Any]:
    order = draw(ORDERS)
    by_number = order[0].split()[0] == "n"
    frames = st.one_of(FRAMES, RANGES.map(lambda each: ("range", *each))) if by_number else FRAMES
    drawn = st.one_of(SESSIONS, SESSIONS, calls(frames)) if order[0].split()[0] == "at" else calls(frames)
    named = {f"f{i}": call for i, call in enumerate(draw(st.lists(drawn, min_size=1, max_size=3)))}
    return {"partition_by": draw(st.sampled_from([["city"], ["city"], []])), "order_by": order, "calls": named}


@pytest.fixture(params=[(1, 1), (2, 7), (512, 1 << 20)])
def sizes(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """The distance of marks, and the number of places that are computed together."""
    for module in (running, marks):
        monkeypatch.setattr(module, "STRIDE", request.param[0])
    monkeypatch.setattr(running, "MOST_LISTED", request.param[1])


def add_output(flow: dd.Flow, rows: Any, told: dict[str, Any]) -> None:
    texts = {name: call.sql for name, call in told["calls"].items()}
    flow.output("out", rows.over(told["partition_by"], told["order_by"], **texts))


def table(changes: list[Any], **more: Any) -> pa.Table:
    named = [dict(zip([*COLUMNS, "d"], [*row, n], strict=True)) | more for row, n in changes]
    return pa.Table.from_pylist(named, pa.schema({**COLUMNS, "d": pa.int64(), **dict.fromkeys(more, pa.int64())}))


def possible(changes: list[Any], held: Counter[Any]) -> list[Any]:
    """The changes without those that would take away more than there is."""
    out = []
    for row, n in changes:
        if held[row] + n >= 0:
            held[row] += n
            out.append((row, n))
    for row in [row for row, n in held.items() if not n]:
        del held[row]
    return out


def twin(told: dict[str, Any], held: Counter[Any]) -> Counter[Any]:
    return Node(tuple(COLUMNS), lambda state: state["rows"]).over(**told).of({"rows": Counter(held)})


def read(found: pa.Table) -> Counter[Any]:
    out: Counter[Any] = Counter()
    for *row, n in zip(*(column.to_pylist() for column in found.columns), strict=True):
        out[tuple(map(canonical, row))] += n
    return out


def put_out(found: pa.Table) -> dict[Any, int]:
    rows = [[canonical(each) for each in row.values()] for row in found.to_pylist()]
    made = {(tuple(row[:-2]), row[-2]): row[-1] for row in rows}
    assert len(made) == len(rows)
    return made


@pytest.mark.usefixtures("sizes")
@effort(100)
@given(st.lists(CHANGES, min_size=1, max_size=5), tolds(), st.booleans())
def test_each_step_and_each_read_is_the_twins(steps: list[Any], told: dict[str, Any], spills: bool) -> None:
    flow = dd.Flow()
    add_output(flow, flow.updates("rows", {**COLUMNS, "d": pa.int64()}, diff="d", keep=True), told)
    held, history = Counter[Any](), [Counter[Any]()]
    with tiny(), flow.open(retain=len(steps), **({"memory": MEMORY} if spills else {})) as engine:
        if spills:
            tighten(engine, 0, 2**40)
        for time, changes in enumerate(steps, 1):
            out = engine.step({"rows": table(possible(changes, held))}, time)
            history.append(twin(told, held))
            assert put_out(out["out"]) == difference(history[-2], history[-1], time)
            assert read(engine.read("out")) == history[-1]
        engine._check_invariants()
        for time in range(1, len(steps) + 1):
            assert read(engine.read("out", as_of=time)) == history[time]


@pytest.mark.usefixtures("sizes")
@effort(60)
@given(st.lists(CHANGES, min_size=2, max_size=6), tolds(), st.integers(0, 3))
def test_so_it_is_at_every_time_of_one_step(steps: list[Any], told: dict[str, Any], before: int) -> None:
    flow = dd.Flow()
    columns = {**COLUMNS, "d": pa.int64(), "t": pa.int64()}
    add_output(flow, flow.updates("rows", columns, diff="d", time="t"), told)
    held, expected, last, found = Counter[Any](), dict[Any, int](), Counter[Any](), list[pa.Table]()
    with flow.open() as engine:
        for time, changes in enumerate(steps):
            engine.push({"rows": table(possible(changes, held), t=time)})
            now = twin(told, held)
            expected |= difference(last, now, time)
            last = now
            if time < before:
                found.append(engine.advance_to(time + 1)["out"])
        found.append(engine.advance_to(dd.CLOSED)["out"])
    assert put_out(pa.concat_tables(found)) == expected


CASES = {
    "n": "row_number()",
    "before": "lag(v, 2)",
    "near": "sum(v) over (rows between 2 preceding and 3 following)",
    "dense": "dense_rank()",
    "total": "avg(v) over (rows unbounded preceding)",
    "value": "max(v) over (range between 3 preceding and 1 preceding)",
    "wide": "count(distinct v) over (range between 2 preceding and unbounded following)",
}


@pytest.mark.drawn(3)
@pytest.mark.parametrize("medium", ["memory", "files", "reopened"])
@pytest.mark.parametrize("name", list(CASES))
def test_large_partitions_beside_duckdb(
    medium: str, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (running, marks):
        monkeypatch.setattr(module, "STRIDE", 16)
    draw, store = seeded("over", medium, name), MemoryStore()
    columns = {"id": pa.int64(), "g": pa.int64(), "pos": pa.int64(), "v": pa.int64(), "gone": pa.bool_()}

    def flow() -> dd.Flow:
        made = dd.Flow()
        rows = made.upserts("rows", columns, dd.Upsert("id", delete=dd.tombstone("gone")))
        made.output("out", rows.over("g", "pos", f=CASES[name]))
        return made

    options = {"memory": MEMORY, "spill": tmp_path} if medium == "files" else {}
    engine = flow().open(store.reopen() if medium == "reopened" else None, **options)
    held: dict[int, Any] = {}
    added = Counter[Any]()
    call, _, frame = CASES[name].partition(" over (")
    order = "pos nulls first" if "range" in frame or call == "dense_rank()" else "pos nulls first, id, v"
    sql = f"select id, g, pos, v, {call} over (partition by g order by {order} {frame or ')'} from held"
    with duckdb.connect() as witness:
        for time in range(7):
            if medium == "reopened" and time > 3:
                engine.close()
                engine = flow().open(store.reopen())
            if medium == "files":
                tighten(engine, 0, 2**40)
            # Most changes are near the end of the order; the last steps also change its start.
            for key in draw.sample(range(600), 600) if not time else [draw.randrange(500, 620) for _ in range(9)]:
                held[key] = (key, key % 3, draw.choice([key, key // 8, None]), draw.randrange(9), draw.random() < 0.1)
            if time > 4:
                held[time] = (time, time % 3, draw.randrange(9), 5, False)
            rows = [dict(zip(columns, row, strict=True)) for row in held.values()]
            out = engine.step({"rows": pa.Table.from_pylist(rows, pa.schema(columns))}, time)["out"]
            for *row, _, diff in zip(*(c.to_pylist() for c in out.columns), strict=True):
                added[tuple(row)] += diff
            witness.register(
                "held", pa.Table.from_pylist([each for each in rows if not each["gone"]], pa.schema(columns))
            )
            expected = Counter(witness.execute(sql).fetchall())
            assert expected == Counter({row: n for row, n in added.items() if n})
            assert expected == read(engine.read("out"))
    engine._check_invariants()
    engine.close()


def test_a_step_at_the_end_reads_few_rows() -> None:
    """However many rows the partition has, and also for rows that later steps have moved."""
    flow = dd.Flow()
    rows = flow.upserts("rows", {"id": int, "at": int, "v": int}, dd.Upsert("id"))
    named = {"last": "lag(v)", "near": "sum(v) over (rows 9 preceding)", "value": "sum(v) over (range 9 preceding)"}
    for name, text in {**named, "rank": "rank()", "total": "sum(v)"}.items():
        flow.output(name, rows.over(order_by="at", f=text))
    looked: list[int] = []
    collect = running.RunningOver._collect_rows
    with pytest.MonkeyPatch.context() as patch, flow.open() as engine:

        def watch(self: running.RunningOver, *told: Any, **more: Any) -> Any:
            found = collect(self, *told, **more)
            looked.append(found.references.size)
            return found

        patch.setattr(running.RunningOver, "_collect_rows", watch)
        n = pa.array(range(20_000))
        engine.step({"rows": pa.table({"id": n, "at": n, "v": n})}, 0)
        for time, (key, most) in enumerate([(19_999, 20_002), (19_990, 600), (20_500, 600), (20_501, 600)], 1):
            looked.clear()
            engine.step({"rows": pa.table({"id": [key], "at": [key], "v": [-time]})}, time)
            assert len(looked) == 5 and max(looked) <= most and sorted(looked)[2] <= 45


def test_a_step_reads_the_sessions_that_it_changes() -> None:
    """However long the partition is, and also for a row that joins two sessions."""
    flow = dd.Flow()
    rows = flow.upserts("rows", {"id": int, "at": pa.timestamp("s")}, dd.Upsert("id"))
    flow.output("out", rows.over(order_by="at", s="session_window(at, '5 seconds')"))
    looked: list[int] = []
    collect = running.RunningOver._collect_rows
    with pytest.MonkeyPatch.context() as patch, flow.open() as engine:

        def watch(self: running.RunningOver, *told: Any, **more: Any) -> Any:
            found = collect(self, *told, **more)
            looked.append(found.references.size)
            return found

        patch.setattr(running.RunningOver, "_collect_rows", watch)
        n = np.arange(20_000)
        at = n + n // 10 * 4  # ten rows a session, and sessions five seconds apart
        engine.step({"rows": pa.table({"id": n, "at": pa.array(at, pa.timestamp("s"))})}, 0)
        changes = [
            (20_000, 72_000, 1),
            (10_005, None, 11),
            (10_004, 14_007, 12),
            (30_000, 11, 21),
            (30_000, 71_000, 22),
        ]
        for time, (key, moved, most) in enumerate(changes, 1):
            looked.clear()
            engine.step({"rows": pa.table({"id": [key], "at": pa.array([moved], pa.timestamp("s"))})}, time)
            assert max(looked) <= most


def test_sessions_merge_split_and_shift() -> None:
    flow = dd.Flow()
    rows = flow.upserts(
        "rows", {"id": int, "at": pa.timestamp("us"), "gone": bool}, dd.Upsert("id", delete=dd.tombstone("gone"))
    )
    flow.output("out", rows.over(order_by="at", s="session_window(at, interval 10 seconds)"))
    with flow.open() as engine:
        for base in (0, 10**12, -(10**12)):
            for key, second, gone, expected in [
                (1, 0, False, {1: (0, 10)}),
                (2, 10, False, {1: (0, 10), 2: (10, 20)}),
                (3, 9, False, {1: (0, 20), 2: (0, 20), 3: (0, 20)}),
                (3, 19, False, {1: (0, 10), 2: (10, 29), 3: (10, 29)}),
                (1, None, False, {1: None, 2: (10, 29), 3: (10, 29)}),
                (2, 0, True, {1: None, 3: (19, 29)}),
                (3, 0, True, {1: None}),
                (1, 0, True, {}),
            ]:
                at = pa.array([None if second is None else base + second * 10**6], pa.timestamp("us"))
                engine.step({"rows": pa.table({"id": [key], "at": at, "gone": [gone]})})
                found = engine.read("out")
                ends = {
                    row["id"]: row["s"] and tuple((int(each.value) - base) // 10**6 for each in shown.values())
                    for row, shown in zip(found.to_pylist(), found["s"], strict=True)
                }
                assert ends == expected


def test_sessions_of_each_unit_and_of_a_multiplicity() -> None:
    for unit, gap, expected in [
        ("s", "1500 milliseconds", [(0, 3_500_000)] * 3 + [(4_000_000, 5_500_000)]),
        ("ms", "1500 microseconds", [(0, 3_500)] * 3 + [(4_000, 5_500)]),
        ("us", "2 microseconds", [(0, 4)] * 3 + [(4, 6)]),
        ("ns", "1 microsecond", [(0, 1_004)] * 4),
    ]:
        flow = dd.Flow()
        rows = flow.updates("rows", {"at": pa.timestamp(unit, "UTC"), "d": int}, diff="d")
        flow.output("out", rows.over(order_by="at", s=f"session_window(at, '{gap}')"))
        with flow.open() as engine:
            engine.step({"rows": pa.table({"at": pa.array([0, 1, 2, 4], rows.schema[0].type), "d": [1, 2, 1, 3]})})
            found = engine.read("out").sort_by("at")
            assert found["_diff"].to_pylist() == [1, 2, 1, 3] and found.schema.field("s").type[0].type.tz == "UTC"
            got = [tuple(int(each.value) for each in row.values()) for row in found["s"]]
            assert got == expected


def test_intervals_and_dates_in_range() -> None:
    flow = dd.Flow()
    columns = {"id": int, "day": pa.date32(), "at": pa.timestamp("us", "UTC"), "v": int}
    rows = flow.upserts("rows", columns, dd.Upsert("id"))
    flow.output("day", rows.over(order_by="day", f="sum(v) over (range interval 2 day preceding)"))
    flow.output("hour", rows.over(order_by="at desc", f="sum(v) over (range interval 1 hour preceding)"))
    flow.output("month", rows.over(order_by="day", f="count(*) over (range interval 1 month preceding)"))
    base = dt.datetime(2024, 1, 31, tzinfo=dt.UTC)
    times = [base + dt.timedelta(hours=each) for each in (0, 1, 2, 40, 41, 24 * 29)]
    with flow.open() as engine:
        for i, at in enumerate(times):
            engine.step({"rows": pa.table({"id": [i], "day": [at.date()], "at": [at], "v": [10**i]}, rows.schema)})
        found = {name: {row["id"]: row["f"] for row in engine.read(name).to_pylist()} for name in flow.outputs}
    assert found["day"] == {0: 111, 1: 111, 2: 111, 3: 11111, 4: 11111, 5: 100000}
    assert found["hour"] == {0: 11, 1: 110, 2: 100, 3: 11000, 4: 10000, 5: 100000}
    assert found["month"] == {0: 3, 1: 3, 2: 3, 3: 5, 4: 5, 5: 6}


REFUSED = {
    "row_number() over (rows 1 preceding)": ExpressionError,
    "lag(n, n)": ExpressionError,
    "lag(n) filter (where n > 1)": ExpressionError,
    "ntile(0)": ExpressionError,
    "rank(n)": ExpressionError,
    "nth_value(n)": ExpressionError,
    "first_value()": ExpressionError,
    "medium(n)": ExpressionError,
    "n + 1": ExpressionError,
    "sum(note)": ExpressionError,
    "max(l)": SpecError,
    "sum(n) over (partition by city)": ExpressionError,
    "sum(n) over (rows between 1 following and 1 preceding)": ExpressionError,
    "sum(n) over (rows between 1 preceding and 2 preceding)": ExpressionError,
    "sum(n) over (rows 1 following)": ExpressionError,
    "sum(n) over (rows between unbounded following and current row)": ExpressionError,
    "sum(n) over (rows 1.5 preceding)": ExpressionError,
    "sum(n) over (rows -1 preceding)": ExpressionError,
    "sum(n) over (rows n preceding)": ExpressionError,
    "sum(n) over (rows 1 preceding exclude ties)": ExpressionError,
    "sum(n) over (range interval 1 day preceding)": ExpressionError,
    "session_window(at, '10 minutes') over (rows 1 preceding)": ExpressionError,
    "session_window(at, '10 minutes') filter (where n > 1)": ExpressionError,
    "session_window(at)": ExpressionError,
    "session_window(at, '0 seconds')": ExpressionError,
    "session_window(at, '-1 seconds')": ExpressionError,
    "session_window(at, null)": ExpressionError,
    "session_window(at, 'soon')": ExpressionError,
    "session_window(at, 10)": ExpressionError,
    "session_window(at, n)": ExpressionError,
    "session_window(at, interval 1 month)": ExpressionError,
    "session_window(at + interval 1 day, '1 day')": ExpressionError,
    "session_window(at, '1 day')": ExpressionError,
    "session_window(n, '1 day')": ExpressionError,
    "session_window(m, '1 day')": ExpressionError,
    "array_agg(n order by n)": ExpressionError,
    "sum(distinct n)": ExpressionError,
}


@pytest.mark.parametrize("text", list(REFUSED))
def test_refusals(text: str) -> None:
    flow = dd.Flow()
    columns = {"city": str, "n": int, "note": str, "l": pa.list_(pa.int64()), "at": dt.datetime}
    rows = flow.updates("rows", columns)
    with raises(REFUSED[text]):
        rows.over("city", "n", f=text)


def test_refusals_of_orders_and_names() -> None:
    flow = dd.Flow()
    rows = flow.updates("rows", {"city": str, "n": int, "l": pa.list_(pa.int64()), "at": dt.datetime})
    for kind, told, named in [
        (ExpressionError, ("city",), {"f": "rank()"}),
        (ExpressionError, ("city", ["n", "city"]), {"f": 7}),
        (ExpressionError, ("city", "at desc"), {"f": "session_window(at, '1 day')"}),
        (ExpressionError, ("city", ["n", "at"]), {"f": "session_window(at, '1 day')"}),
        (ExpressionError, ("at", ["at", "n"]), {"f": "session_window(at, '1 day')"}),
        (ExpressionError, ("at", []), {"f": "session_window(at, '1 day')"}),
        (ExpressionError, ("", ["n", "city"]), {"f": "sum(n) over (range 1 preceding)"}),
        (ExpressionError, ("", "city"), {"f": "sum(n) over (range 1 preceding)"}),
        (SpecError, ("city", "n"), {}),
        (SpecError, ("town", "n"), {"f": "rank()"}),
        (SpecError, ("city", "l"), {"f": "rank()"}),
        (SpecError, ("city", "n"), {"n": "rank()"}),
    ]:
        with raises(kind):
            rows.over(*([] if part == "" else part for part in told), **named)


def test_faults_of_a_step_change_nothing() -> None:
    flow = dd.Flow()
    columns = {"city": str, "n": int, "d": int}
    rows = flow.updates("rows", columns, diff="d")
    flow.output("total", rows.over("city", "n", f="sum(n)"))
    flow.output("listed", rows.over("city", "n", f="array_agg(n) over (rows 20000 preceding)"))

    def step(n: int, d: int) -> Any:
        return engine.step({"rows": pa.table({"city": ["Bern"], "n": [n], "d": [d]})})

    with flow.open() as engine:
        step(5, 2)
        with raises(NegativeMultiplicity):
            step(5, -3)
        with raises(AggregateOverflow):
            step(2**63 - 1, 1)
        with raises(TooLarge):
            step(1, 10_001)
        with raises(TooLarge):
            step(1, 2**62)
        assert [row["f"] for row in engine.read("total").to_pylist()] == [10]
        assert step(6, 1)["total"].to_pylist()[0]["f"] == 16
        engine._check_invariants()


def test_a_session_beyond_the_last_timestamp_changes_nothing() -> None:
    flow = dd.Flow()
    columns = {"at": pa.timestamp("ns"), "d": int}
    flow.output("out", flow.updates("rows", columns, diff="d").over(order_by="at", s="session_window(at, '10 days')"))

    def step(at: int, d: int = 1) -> Any:
        return engine.step({"rows": pa.table({"at": pa.array([at], pa.timestamp("ns")), "d": [d]})})

    with flow.open() as engine:
        step(0)
        with raises(ExpressionError):
            step(2**63 - 10 * 86_400 * 10**9)
        assert step(2**63 - 1 - 10 * 86_400 * 10**9)["out"].num_rows == 1
        with raises(NegativeMultiplicity):
            step(5, -1)
        assert step(1)["out"].num_rows == 3 and step(-(2**63))["out"].num_rows == 1
        engine._check_invariants()


def test_two_of_the_same_are_one_and_their_json_makes_them_again() -> None:
    flow = dd.Flow()
    rows = flow.updates("rows", {"city": str, "n": int})
    made = rows.over("city", "n desc", f="lag(n)", g="sum(n) over (rows 1 preceding)")
    assert rows.over(["city"], ["`n` desc nulls last"], f="lag(n)", g="sum(n) over (rows 1 preceding)") is made
    flow.output("out", made)
    again = rebuild_plan(describe_plan(flow))
    assert describe_plan(again) == describe_plan(flow)
    said = format_node(describe_plan(flow), compute_node_id(made), "this plan")
    assert said == (
        "rows.over(partition_by=['city'], order_by=['`n` desc nulls last'], f='lag(n)', "
        "g='sum(n) over (rows 1 preceding)')"
    )
