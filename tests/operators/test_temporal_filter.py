"""Test temporal filters beside the twin: bounds, both modes, history, state, and every place without a clock.

Times are microseconds from 0 to `ENDS`, so that the twin can compute each of them.
"""

from __future__ import annotations

import datetime as dt
import re
from collections import Counter
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pytest
from chance import effort
from hypothesis import given, strategies as st
from messages import raises
from model import Twin, collection
from rules import Input
from tight import MEMORY, tighten

import ddflow as dd
from ddflow.errors import ExpressionError, PlanChanged, SchemaMismatch, SpecError, StateRefused
from ddflow.plan.text.codec import describe_plan, rebuild_plan
from ddflow.storage.memory import MemoryStore

ENDS = 70
MOMENT = pa.timestamp("us")
COLUMNS = {"id": pa.int64(), "at": MOMENT, "upto": MOMENT, "n": pa.int64()}
CONDITIONS: dict[str, Any] = {
    "at > now() - interval 5 microseconds": lambda row, now: before(now, row["at"], 5),
    "at <= now()": lambda row, now: row["at"] is not None and row["at"] <= now,
    "at between now() - interval 3 microseconds and now() + interval 2 microseconds": lambda row, now: (
        row["at"] is not None and now - 3 <= row["at"] <= now + 2
    ),
    "now() >= at and n > 0 and current_timestamp < upto": lambda row, now: (
        row["n"] > 0 and None not in (row["at"], row["upto"]) and row["at"] <= now < row["upto"]
    ),
    "upto >= now()": lambda row, now: row["upto"] is not None and row["upto"] >= now,
    "(at < now() + interval 1 microsecond) and upto > now()": lambda row, now: (
        None not in (row["at"], row["upto"]) and row["at"] < now + 1 and row["upto"] > now
    ),
}
ROWS = st.fixed_dictionaries(
    {
        "id": st.integers(0, 3),
        "at": st.none() | st.integers(0, 25),
        "upto": st.none() | st.integers(0, 30),
        "n": st.integers(0, 2),
    }
)
STEPS = st.lists(st.tuples(st.lists(ROWS, max_size=4), st.integers(1, 8)), min_size=1, max_size=7)


def before(now: int, at: int | None, length: int) -> bool:
    return at is not None and at > now - length


def moment(time: int) -> dt.datetime:
    return dt.datetime(1970, 1, 1, tzinfo=dt.UTC) + dt.timedelta(microseconds=time)


def to_table(rows: list[dict[str, Any]], names: list[str]) -> pa.Table:
    kinds = {**COLUMNS, "time": MOMENT}
    return pa.table({name: pa.array([row[name] for row in rows], kinds[name]) for name in names})


def to_updates(table: pa.Table) -> dict[tuple[Any, int], int]:
    plain = [column.cast(pa.int64()).to_pylist() for column in table.columns]
    return {(tuple(row[:-2]), row[-2]): row[-1] for row in zip(*plain, strict=True)}


def to_rows(table: pa.Table) -> Counter[Any]:
    plain = [column.cast(pa.int64()).to_pylist() for column in table.columns]
    return Counter({tuple(row[:-1]): row[-1] for row in zip(*plain, strict=True)})


def build(text: str, holds_back: bool) -> tuple[dd.Flow, Twin]:
    names = [*COLUMNS, "time"] if holds_back else [*COLUMNS]
    spec = dd.Upsert(key="id", time="time" if holds_back else None)
    flow = dd.Flow()
    rows = flow.upserts("rows", {name: COLUMNS.get(name, MOMENT) for name in names}, spec)
    shown = flow.output("shown", rows.filter(text))
    flow.output("counted", shown.count(by="n"))
    twin_input = Input(tuple(names), spec)
    its = collection("rows", twin_input).filter_by_clock(CONDITIONS[text])
    twin = Twin({"rows": twin_input}, {"shown": its, "counted": its.count(["n"])}, ends=ENDS)
    return flow, twin


@effort(300)
@given(text=st.sampled_from([*CONDITIONS]), small=st.booleans(), steps=STEPS)
def test_steps_equal_the_twin(text: str, small: bool, steps: list[Any]) -> None:
    flow, twin = build(text, holds_back=False)
    store, time, options = MemoryStore(), 0, {"memory": MEMORY} if small else {}
    with flow.open(store, retain=ENDS, **options) as engine:
        tighten(engine) if small else None
        for rows, later in steps:
            time += later
            made, expected = (
                engine.step({"rows": to_table(rows, [*COLUMNS])}, time=moment(time)),
                twin.step({"rows": rows}, time),
            )
            for name in ("shown", "counted"):
                assert to_updates(made[name]) == expected.updates[name]
                assert to_rows(engine.read(name)) == twin.read(name)
            engine.dataflow._check_invariants()
        for as_of in range(1, time + 1):
            assert to_rows(engine.read("shown", as_of=moment(as_of))) == twin.read("shown", as_of)
            assert to_rows(engine.read("counted", as_of=moment(as_of))) == twin.read("counted", as_of)
    with flow.open(store.reopen()) as engine:
        assert to_rows(engine.read("shown")) == twin.read("shown")
        made, expected = engine.step({}, time=moment(ENDS - 1)), twin.step({}, ENDS - 1)
        assert to_updates(made["shown"]) == expected.updates["shown"]
        assert not engine.dataflow.graph.has_due_updates(2**62)


@effort(300)
@given(text=st.sampled_from([*CONDITIONS]), steps=STEPS, whole=st.booleans())
def test_exact_bounds_in_hold_back_mode(text: str, steps: list[Any], whole: bool) -> None:
    flow, twin = build(text, holds_back=True)
    frontier = 0
    with flow.open(retain=ENDS) as engine:
        for n, (rows, later) in enumerate(steps):
            timed = [row | {"time": frontier + i} for i, row in enumerate(rows)]
            engine.push({"rows": to_table(timed, [*COLUMNS, "time"])})
            twin.push({"rows": timed})
            frontier += later + len(rows)
            if whole and n < len(steps) - 1:
                continue
            frontier = min(frontier, ENDS)
            made, expected = engine.advance_to(frontier), twin.advance_to(frontier)
            for name in ("shown", "counted"):
                assert to_updates(made[name]) == expected.updates[name]
        for as_of in range(frontier):
            assert to_rows(engine.read("shown", as_of=as_of)) == twin.read("shown", as_of)
        made, expected = engine.advance_to(dd.CLOSED), twin.advance_to(ENDS)
        assert to_updates(made["counted"]) == expected.updates["counted"]


def run_steps(text: str, steps: list[Any], by: int = 0) -> tuple[list[dict[tuple[Any, int], int]], Counter[Any]]:
    """Return the updates of each step and the last rows, with all times later ``by`` a number of microseconds."""
    made, time, kinds = [], by, [*COLUMNS]
    with build(text, holds_back=False)[0].open() as engine:
        for rows, later in steps:
            time += later
            moved = [
                {k: v + by if k in ("at", "upto") and v is not None else v for k, v in row.items()} for row in rows
            ]
            made.append(to_updates(engine.step({"rows": to_table(moved, kinds)}, time=moment(time))["shown"]))
        return made, to_rows(engine.read("shown"))


@effort(100)
@given(text=st.sampled_from([*CONDITIONS]), steps=STEPS, by=st.integers(1, 10**12))
def test_later_times_give_later_updates(text: str, steps: list[Any], by: int) -> None:
    def move(row: tuple[Any, ...]) -> tuple[Any, ...]:
        return (row[0], *(None if each is None else each + by for each in row[1:3]), row[3])

    made, _ = run_steps(text, steps)
    later, _ = run_steps(text, steps, by)
    assert later == [{(move(row), time + by): n for (row, time), n in step.items()} for step in made]


@effort(100)
@given(text=st.sampled_from([*CONDITIONS]), steps=STEPS)
def test_splits_into_steps_give_the_same_last_rows(text: str, steps: list[Any]) -> None:
    whole = [([row for rows, _ in steps for row in rows], sum(later for _, later in steps))]
    assert run_steps(text, steps)[1] == run_steps(text, whole)[1]


@effort(100)
@given(text=st.sampled_from([*CONDITIONS]), steps=STEPS)
def test_reads_equal_duckdb(text: str, steps: list[Any]) -> None:
    time, held = 0, dict[int, dict[str, Any]]()
    with build(text, holds_back=False)[0].open() as engine, duckdb.connect() as witness:
        for rows, later in steps:
            time += later
            held |= {row["id"]: row for row in rows}
            engine.step({"rows": to_table(rows, [*COLUMNS])}, time=moment(time))
            witness.register("rows", to_table([*held.values()], [*COLUMNS]))
            asked = re.sub(r"\bat\b", '"at"', text)
            asked = re.sub(r"now\(\)|current_timestamp", f"make_timestamp({time})", asked)
            found = witness.sql(f"select * from rows where {asked}").to_arrow_table()
            assert to_rows(engine.read("shown")) == to_rows(found.append_column("n", pa.repeat(1, found.num_rows)))


@effort(100)
@given(text=st.sampled_from([*CONDITIONS]), delay=st.integers(0, 3), later=st.lists(st.integers(1, 5), max_size=8))
def test_a_watermark_forgets_no_row_that_waits(text: str, delay: int, later: list[int]) -> None:
    made = []
    for watermark in ({"at": f"{delay} microseconds"}, None):
        flow = dd.Flow()
        rows = flow.updates("rows", {name: COLUMNS[name] for name in ("id", "at", "upto", "n")}, watermark=watermark)
        flow.output("counted", rows.filter(text).count(by=["at", "n"]))
        out, time = list[Any](), 0
        with flow.open() as engine:
            for i, more in enumerate(later):
                time += more
                given = [{"id": i, "at": time, "upto": time + 2 * i, "n": i % 2 + 1}]
                out.append(to_updates(engine.step({"rows": to_table(given, [*COLUMNS])}, time=moment(time))["counted"]))
                engine.compact()
            out += [to_updates(engine.step({}, time=moment(t))["counted"]) for t in (time + 3, time + 20)]
        made.append(out)
    assert made[0] == made[1]


def times_of(flow: dd.Flow, rows: Any, *times: Any) -> list[list[int]]:
    """Return the diffs of each step at some times. The rows come at the first one."""
    with flow.open() as engine:
        return [
            engine.step(rows if n == 0 else {}, time=time)["shown"]["_diff"].to_pylist() for n, time in enumerate(times)
        ]


@pytest.mark.parametrize(
    ("condition", "last", "first_after"),
    [
        ("at + interval 1 month > now()", "2024-02-29 11:59:59.999999+00:00", "2024-02-29 12:00:00+00:00"),
        ("now() <= at", "2024-01-31 12:00:00+00:00", "2024-01-31 12:00:00.000001+00:00"),
        ("current_date <= at", "2024-01-31 23:59:59.999999+00:00", "2024-02-01 00:00:00+00:00"),
        ("cast(at as date) >= current_date", "2024-01-31 23:59:59+00:00", "2024-02-01 00:00:00+00:00"),
        ("current_date < at", "2024-01-31 23:59:59.999999+00:00", "2024-02-01 00:00:00+00:00"),
        ("now() < cast(at as date) + interval 2 days", "2024-02-01 23:59:59+00:00", "2024-02-02 00:00:00+00:00"),
        ("now() < '2024-02-01 10:00:00'", "2024-02-01 09:59:59+00:00", "2024-02-01 10:00:00+00:00"),
        ("now() - interval 1 hour - interval 2 minutes < at", "2024-01-31 13:01:59+00:00", "2024-01-31 13:02:00+00:00"),
    ],
)
def test_rows_leave_at_the_first_time_without_them(condition: str, last: str, first_after: str) -> None:
    for kind in (pa.timestamp("us"), pa.timestamp("s"), pa.timestamp("ns", "UTC")):
        flow = dd.Flow()
        rows = flow.updates("rows", {"at": kind})
        flow.output("shown", rows.filter(condition))
        given = pa.table({"at": pa.array([1706702400]).cast(pa.timestamp("s")).cast(pa.timestamp("us")).cast(kind)})
        assert times_of(flow, given, "2024-01-31 00:00:00+00:00", last, first_after) == [[1], [], [-1]]


def test_finer_values_round_up_to_the_times() -> None:
    for condition, expected in [("now() < at", 2), ("now() <= at", 2), ("now() > at", 2), ("now() >= at", 2)]:
        flow = dd.Flow()
        rows = flow.updates("rows", {"at": pa.timestamp("us"), "t": pa.timestamp("s")}, time="t")
        flow.output("shown", rows.filter(condition))
        with flow.open() as engine:
            engine.push({"at": pa.array([1_500_000], pa.timestamp("us")), "t": pa.array([0], pa.timestamp("s"))})
            made = engine.advance_to(9)["shown"]
        assert made["_time"].cast(pa.int64()).to_pylist()[-1] == expected


def test_a_clock_of_dates() -> None:
    flow = dd.Flow(clock="date")
    rows = flow.updates("rows", {"day": pa.date32()})
    flow.output("shown", flow.sql("select day from rows where day >= current_date - interval 1 day"))
    given = {"day": [dt.date(2026, 11, 28), None]}
    assert times_of(flow, given, dt.date(2026, 11, 28), dt.date(2026, 11, 29), dt.date(2026, 11, 30)) == [[1], [], [-1]]
    with raises(ExpressionError):
        rows.filter("day > now()")


def test_a_row_that_is_over_is_neither_emitted_nor_kept() -> None:
    flow, _ = build("now() >= at and n > 0 and current_timestamp < upto", holds_back=False)
    with flow.open() as engine:
        past = [{"id": i, "at": 1, "upto": 5, "n": 1} for i in range(9)]
        never = [{"id": 10 + i, "at": 20, "upto": 20 - i, "n": 1} for i in range(9)]
        assert not engine.step({"rows": to_table(past + never, [*COLUMNS])}, time=moment(9))["shown"].num_rows
        (waiting,) = (each for name, each in engine.dataflow.graph.arrangements.items() if "temporal" in name)
        assert waiting.keys == 0 and not engine.dataflow.graph.has_due_updates(2**62)


def test_a_row_that_changes_before_its_end_has_no_update_at_its_end() -> None:
    flow = dd.Flow()
    rows = flow.upserts("rows", {"id": int, "n": int, "time": MOMENT, "upto": MOMENT}, dd.Upsert(key="id", time="time"))
    flow.output("shown", rows.filter("now() < upto"))
    with flow.open() as engine:
        columns = {"id": [1, 1], "n": [3, 4], "time": pa.array([1, 2], MOMENT), "upto": pa.array([5, 7], MOMENT)}
        engine.push({"rows": columns})
        made = engine.advance_to(9)["shown"]
        assert made["_time"].cast(pa.int64()).to_pylist() == [1, 2, 2, 7]
        assert list(zip(made["n"].to_pylist(), made["_diff"].to_pylist(), strict=True)) == [
            (3, 1),
            (3, -1),
            (4, 1),
            (4, -1),
        ]


def test_bounds_beyond_all_times() -> None:
    flow = dd.Flow()
    nanos = pa.timestamp("ns")
    rows = flow.updates("rows", {"day": pa.date32(), "t": nanos}, time="t")
    flow.output("shown", rows.filter("day > now()"))
    with flow.open() as engine:
        engine.push({"day": [dt.date(9999, 1, 1), dt.date(1, 1, 1), None], "t": pa.array([5, 5, 5], nanos)})
        assert engine.advance_to(9)["shown"]["day"].to_pylist() == [dt.date(9999, 1, 1)]
        assert engine.advance_to(dd.CLOSED)["shown"].num_rows == 0


def test_an_expression_fails_when_its_row_is_accepted() -> None:
    flow = dd.Flow()
    rows = flow.upserts("rows", {"id": int, "at": MOMENT, "n": int}, dd.Upsert(key="id"))
    flow.output("shown", rows.filter("at <= now()").project({"id": "id", "share": "10 div n"}))
    with flow.open() as engine:
        good = {"id": [1], "at": [moment(5).replace(tzinfo=None)], "n": [1]}
        with raises(ExpressionError):
            engine.step(good | {"n": [0]}, time=moment(1))
        engine.step(good, time=moment(2))
        assert to_updates(engine.step({}, time=moment(7))["shown"]) == {((1, 10), 7): 1}


@pytest.mark.parametrize(
    "query",
    [
        "select now() from rows",
        "select id from rows where at = now()",
        "select id from rows where at > now() or n > 0",
        "select id from rows where not at > now()",
        "select id from rows where at > date_trunc('day', now())",
        "select count(*) from rows group by current_date",
        "select id from rows where at > now() - interval 1 month",
        "select id from rows where now() > now() - interval 1 day",
        "select id from rows where n > now()",
        "select id from rows where at > now() + upto",
        "select a.id from rows a left join rows b on a.id = b.id and a.at > now()",
    ],
)
def test_places_without_a_clock(query: str) -> None:
    flow = dd.Flow()
    flow.upserts("rows", COLUMNS, dd.Upsert(key="id"))
    with raises(ExpressionError):
        flow.sql(query)


def test_the_clock_in_joins_and_having() -> None:
    flow = dd.Flow()
    rows = flow.upserts("rows", COLUMNS, dd.Upsert(key="id"))
    late = "select a.id, b.n from rows a left join rows b on a.n = b.id and b.at > now() - interval 5 microseconds"
    flow.output("joined", flow.sql(late))
    flow.output(
        "inner", rows.join(rows.project({"other": "id", "its": "at"}), on={"n": "other"}, condition="its <= now()")
    )
    flow.output("grouped", flow.sql("select n, max(at) m from rows group by n having max(at) <= now()"))
    with flow.open() as engine:
        given = [{"id": 1, "at": 3, "upto": None, "n": 1}, {"id": 2, "at": 9, "upto": None, "n": 1}]
        engine.step({"rows": to_table(given, [*COLUMNS])}, time=moment(2))
        for time, joined, inner, grouped in [(4, 1, 2, 0), (8, None, 2, 0), (9, None, 2, 1)]:
            engine.step({}, time=moment(time))
            assert {row["n"] for row in engine.read("joined").to_pylist()} == {joined}
            assert (engine.read("inner").num_rows, engine.read("grouped").num_rows) == (inner, grouped)


def test_steps_need_times_of_the_clock(tmp_path: Path) -> None:
    flow, _ = build("at <= now()", holds_back=False)
    with flow.open() as engine:
        with raises(SchemaMismatch):
            engine.step({})
        with raises(SchemaMismatch):
            engine.step({}, time=1)
        with raises(SchemaMismatch):
            engine.step({}, time=dt.date(2026, 1, 1))
    plain = dd.Flow()
    plain.output("rows", plain.upserts("rows", COLUMNS, dd.Upsert(key="id")))
    with plain.open(tmp_path / "state") as engine:
        engine.step({}, time=4)
    with raises(PlanChanged):
        flow.open(tmp_path / "state")
    with raises(SpecError):
        dd.Flow(clock="hour")  # type: ignore[arg-type]
    numbers = dd.Flow()
    rows = numbers.updates("rows", {"at": MOMENT, "t": int}, time="t")
    with raises(SpecError):
        rows.filter("at > now()")
    came = dd.Flow().updates("rows", {"at": MOMENT}, ingested="came")
    with raises(SpecError):
        came.filter("at > now()")
    stamped = dd.Flow(clock="timestamp").updates("rows", {"at": MOMENT}, ingested="came")
    assert stamped.filter("came > now() - interval 1 day").schema.field("came").type == pa.timestamp("us", "UTC")
    with raises(SpecError):
        dd.Flow(clock="date").updates("rows", {"id": int, "t": pa.date32()}, time="t")


def test_plans_with_a_clock_are_rebuilt_from_json() -> None:
    for clock in ("timestamp", "date"):
        flow = dd.Flow(clock=clock)
        rows = flow.upserts("rows", {"id": int, "day": pa.date32()}, dd.Upsert(key="id"))
        flow.output("shown", rows.filter("id > 1 and day >= current_date"))
        again = rebuild_plan(describe_plan(flow))
        assert describe_plan(again) == describe_plan(flow) and again.clock == flow.clock == again.time_type
        assert "current_date" in str(flow.explain()).lower()


def test_a_new_temporal_output_over_stored_rows(tmp_path: Path) -> None:
    flow = dd.Flow(clock="timestamp")
    rows = flow.upserts("rows", COLUMNS, dd.Upsert(key="id"))
    flow.output("rows", rows)
    given = [{"id": i, "at": i, "upto": 2 * i, "n": 1} for i in range(20)]
    with flow.open(tmp_path / "state") as engine:
        engine.step({"rows": to_table(given, [*COLUMNS])}, time=moment(6))
    flow.output("shown", rows.filter("at <= now() and now() < upto"))
    with flow.open(tmp_path / "state") as engine:
        first = engine.step({}, time=moment(10))["shown"]
        total = Counter[Any]()
        for (row, _), diff in to_updates(first).items():
            total[row[0]] += diff
        assert {key for key, n in total.items() if n} == {key for key in range(20) if key <= 10 < 2 * key}
        assert {each["id"] for each in engine.read("shown").to_pylist()} == {*range(6, 11)}
        assert engine.get("shown", id=7) is not None and engine.get("shown", id=11) is None


def test_chores_of_a_state_whose_rows_wait(tmp_path: Path) -> None:
    state = tmp_path / "state"
    flow, _ = build("at between now() - interval 3 microseconds and now() + interval 2 microseconds", holds_back=False)
    first = [{"id": i, "at": i, "upto": None, "n": i % 2} for i in range(20)]
    second = [{"id": i, "at": 12, "upto": None, "n": 1} for i in (3, 19, 25)]
    with flow.open(state, retain=ENDS) as engine:
        engine.step({"rows": to_table(first, [*COLUMNS])}, time=moment(5))
        engine.step({"rows": to_table(second, [*COLUMNS])}, time=moment(9))
        shown = [row["id"] for row in engine.read("shown").sort_by("id").to_pylist()]
        assert shown == [6, 7, 8, 9, 10, 11]
        why = engine.why("shown", {"id": 7, "at": moment(7).replace(tzinfo=None), "upto": None, "n": 1})
        assert "is made of 1 row of 'rows'" in str(why)
        engine.compact(forget=True)
    log = pa.concat_tables([to_table(first, [*COLUMNS]), to_table(second, [*COLUMNS])])
    assert dd.verify(state, {"rows": log}).ok and dd.fsck(state).ok
    with dd.Snapshot.open(state) as snapshot:
        assert sorted(row["id"] for row in snapshot.read("shown").to_pylist()) == shown
    with flow.open(state) as engine:
        engine.evolve({"rows": {"note": pa.string()}})
        gone = engine.step({}, time=moment(10))["shown"].to_pylist()
        assert {(row["id"], row["_diff"]) for row in gone} == {(6, -1), (3, 1), (12, 1), (19, 1), (25, 1)}
        assert engine.read("shown").schema.names == [*COLUMNS, "note", "_diff"]


def test_a_state_with_a_clock_is_migrated_with_the_times_of_its_calls(tmp_path: Path) -> None:
    plans = [build(text, holds_back=False)[0] for text in list(CONDITIONS)[:2]]
    log = [{"rows": to_table([{"id": i, "at": 4 * i, "upto": None, "n": 1}], [*COLUMNS])} for i in range(4)]
    times = [moment(5 * i + 1) for i in range(4)]
    with plans[0].open(tmp_path / "old") as engine:
        for time, rows in zip(times, log, strict=True):
            engine.step(rows, time=time)
    with raises(StateRefused):
        dd.migrate(tmp_path / "old", tmp_path / "new", plans[1], log)
    with raises(SpecError):
        dd.migrate(tmp_path / "old", tmp_path / "new", plans[1], log, times=times[:3])
    made = dd.migrate(tmp_path / "old", tmp_path / "new", plans[1], log, times=times)
    assert {(row["id"], row["_diff"]) for row in made.tables["shown"].to_pylist()} == {(0, 1), (1, 1), (2, 1)}
    with plans[1].open(tmp_path / "new") as engine:
        assert engine.dataflow.last == 16 and engine.read("shown").num_rows == 4
