"""Test aggregates beside exact fractions: at every time of every step, in any split, with negative rows."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from decimal import Decimal
from functools import cache
from pathlib import Path
from typing import Any

import aggregate_rules as rules
import duckdb
import pyarrow as pa
import pytest
from chance import effort
from hypothesis import example, given, strategies as st
from messages import raises
from model import Twin, collection
from rules import Input, canonical

import ddflow as dd
from ddflow.errors import AggregateOverflow, ExpressionError, PlanChanged, SpecError
from ddflow.plan.text.codec import describe_plan, rebuild_plan
from ddflow.storage.memory import MemoryStore

COLUMNS = {
    "g": pa.string(),
    "i": pa.int64(),
    "x": pa.float64(),
    "d": pa.decimal128(20, 4),
    "b": pa.bool_(),
    "at": pa.int64(),
    "n": pa.int64(),
}
AGGREGATES = {
    "rows": "count(*)",
    "c": "count(x)",
    "some": "count(*) filter (where i > 0)",
    "both": "count(i, x)",
    "si": "sum(i)",
    "ai": "avg(i)",
    "vi": "var_samp(i)",
    "sx": "sum(x)",
    "ax": "mean(x)",
    "vx": "var_pop(x)",
    "tx": "stddev(x)",
    "px": "sum(x) filter (where b)",
    "sd": "sum(d)",
    "ad": "avg(d)",
    "td": "stddev_pop(d)",
    "every": "bool_and(b)",
    "any": "bool_or(b)",
    "twice": "sum(i * 2)",
}
FLOATS = st.one_of(
    st.sampled_from([0.0, -0.0, 0.1, 1e16, -1e16, 5e-324, 1.7e308, math.inf, -math.inf, math.nan]),
    st.floats(-1e6, 1e6),
    st.floats(),
)
ROWS = st.tuples(
    st.sampled_from(["a", "b", None]),
    st.one_of(st.none(), st.integers(-9, 9), st.integers(-(2**40), 2**40)),
    st.one_of(st.none(), FLOATS),
    st.one_of(st.none(), st.integers(-(10**17), 10**17).map(lambda n: Decimal(n).scaleb(-4))),
    st.sampled_from([None, True, False]),
)
EVENTS = st.lists(st.tuples(ROWS, st.integers(0, 3), st.sampled_from([1, 1, 1, -1, 2, -3])), max_size=14)
"""Rows, times, and how often."""
LARGEST = [(("b", None, value, None, None), 0, 1) for value in (1.7e308, -8.423220123072925e307)]
"""Rows with a standard deviation just beyond the largest double, so infinity is the nearest double."""
Row = tuple[Any, ...]


def flow_of(by: list[str], time: bool = True, aggregates: dict[str, str] = AGGREGATES) -> dd.Flow:
    return made_flow(tuple(by), time, tuple(aggregates.items()))


@cache  # compiling SQL takes longer than the steps
def made_flow(by: tuple[str, ...], time: bool, aggregates: tuple[tuple[str, str], ...]) -> dd.Flow:
    flow = dd.Flow()
    rows = flow.updates("rows", pa.schema(COLUMNS), diff="n", time="at" if time else None, keep=True)
    flow.output("out", rows.group_by(*by).agg(**dict(aggregates)))
    return flow


def table(events: list[tuple[Row, int, int]]) -> pa.Table:
    return pa.Table.from_pylist(
        [dict(zip(COLUMNS, (*row, time, n), strict=True)) for row, time, n in events], pa.schema(COLUMNS)
    )


def plain(value: Any) -> Any:
    return "nan" if isinstance(value, float) and math.isnan(value) else value


def expected(events: list[tuple[Row, int, int]], by: list[str]) -> Counter[Row]:
    """What all groups of some rows give, from scratch."""
    groups: dict[Row, list[tuple[dict[str, Any], int]]] = defaultdict(list)
    for row, _, n in events:
        named = dict(zip(COLUMNS, row, strict=False))
        groups[tuple(named[name] for name in by)].append((named, n))
    out: Counter[Row] = Counter()
    for group, rows in groups.items():
        if sum(n for _, n in rows) == 0:
            continue
        i, x, d, b = ([(row[name], n) for row, n in rows] for name in ("i", "x", "d", "b"))
        found = (
            sum(n for _, n in rows),
            rules.counted(x),
            sum(n for row, n in rows if row["i"] is not None and row["i"] > 0),
            sum(n for row, n in rows if row["i"] is not None and row["x"] is not None),
            rules.total(i),
            rules.average(i),
            rules.spread(i, sample=True),
            rules.total(x),
            rules.average(x),
            rules.spread(x),
            rules.spread(x, sample=True, root=True),
            rules.total([(row["x"], n) for row, n in rows if row["b"] is True]),
            rules.total(d),
            rules.average(d, digits=8),
            rules.spread(d, root=True),
            rules.truth(b, every=True),
            rules.truth(b, every=False),
            rules.total([(None if value is None else value * 2, n) for value, n in i]),
        )
        out[(*group, *map(plain, found))] += 1
    return out


def added(updates: pa.Table, into: Counter[Row]) -> None:
    rows = updates.drop_columns([name for name in ("_time",) if name in updates.column_names])
    for *row, diff in zip(*(column.to_pylist() for column in rows.columns), strict=True):
        into[tuple(map(plain, row))] += diff
        if not into[tuple(map(plain, row))]:
            del into[tuple(map(plain, row))]


@pytest.mark.parametrize("by", [["g"], ["b"], []])
@given(events=EVENTS, cuts=st.sets(st.integers(0, 4)))
@example(events=LARGEST, cuts=set())
@effort(60)
def test_results_are_those_of_the_rows_that_are_there(
    by: list[str], events: list[tuple[Row, int, int]], cuts: set[int]
) -> None:
    held: Counter[Row] = Counter()
    with flow_of(by).open(retain=9) as engine:
        engine.push({"rows": table(events)})
        updates = [engine.advance_to(cut)["out"] for cut in [*sorted(cuts), dd.CLOSED]]
        for time in range(4):
            for part in updates:
                mine = [each == time for each in part.column("_time").to_pylist()]
                added(part.filter(pa.array(mine, pa.bool_())), held)
            want = expected([each for each in events if each[1] <= time], by)
            assert held == want
            if engine.last is not None and engine.last >= time >= engine.since:
                read: Counter[Row] = Counter()
                added(engine.read("out", as_of=time), read)
                assert read == want
        for part in updates:
            rows = Counter(
                (time, *map(plain, row))
                for time, *row in zip(
                    part.column("_time").to_pylist(),
                    *(part.column(c).to_pylist() for c in part.column_names[:-2]),
                    strict=True,
                )
            )
            assert set(rows.values()) <= {1}
        engine._check_invariants()


@given(events=EVENTS)
@effort(25)
def test_what_came_and_went_leaves_nothing(events: list[tuple[Row, int, int]]) -> None:
    with flow_of(["g"], time=False).open() as engine:
        for time, (row, _, n) in enumerate(events):
            engine.step({"rows": table([(row, 0, n)])}, time)
        out = engine.step({"rows": table([(row, 0, -n) for row, _, n in reversed(events)])}, 99)["out"]
        assert -1 not in [n for n in out.column("_diff").to_pylist() if n > 0]
        assert engine.read("out").num_rows == 0
        engine.compact()
        assert engine.dataflow.graph.arrangements["agg 0 by ['g']"].keys == 0
        engine._check_invariants()


@given(steps=st.lists(EVENTS, min_size=1, max_size=4))
@effort(20)
def test_a_state_that_is_opened_again_or_spilled_goes_on(
    steps: list[list[tuple[Row, int, int]]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    store, spill, events = MemoryStore(), tmp_path_factory.mktemp("spill"), list[tuple[Row, int, int]]()
    with flow_of(["g"], time=False).open(memory="16MB", spill=Path(spill)) as tight:
        tight.dataflow.budget.state = 0
        for time, step in enumerate(steps):
            events += step
            with flow_of(["g"], time=False).open(store.reopen()) as engine:
                for each in (engine, tight):
                    each.step({"rows": table(step)}, time)
                    read: Counter[Row] = Counter()
                    added(each.read("out"), read)
                    assert read == expected(events, ["g"])
                engine._check_invariants()


@given(st.lists(st.floats(allow_nan=False, allow_infinity=False), min_size=1, max_size=30), st.integers(0, 29))
@effort(60)
def test_a_float_sum_is_that_of_fsum_over_the_rows_that_are_there(values: list[float], gone: int) -> None:
    rows = [(("a", None, value, None, None), 0, 1) for value in values]
    left = values[gone:]
    with flow_of([], time=False, aggregates={"s": "sum(x)", "a": "avg(x)"}).open() as engine:
        engine.step({"rows": table(rows)}, 0)
        engine.step({"rows": table([(row, time, -1) for row, time, _ in rows[:gone]])}, 1)
        read = engine.read("out").to_pylist()
    if not left:
        assert read == []
        return
    try:
        found = math.fsum(left)
    except OverflowError:
        return  # of a partial sum: the test above has fractions
    assert read[0]["s"] == found
    assert found == 0 or math.isclose(read[0]["a"], found / len(left), rel_tol=1e-15)


@given(
    st.lists(st.tuples(st.integers(0, 6), st.one_of(st.none(), st.integers(-99, 99)), st.floats(-9, 9)), max_size=30)
)
@effort(30)
def test_duckdb_says_the_same(rows: list[tuple[int, int | None, float]]) -> None:
    texts = {
        "s": "sum(i)",
        "a": "avg(i)",
        "d": "stddev_samp(x)",
        "v": "var_pop(x)",
        "n": "count(i)",
        "every": "bool_and(i > 0)",
        "few": "sum(x) filter (where i > 0)",
    }
    flow = dd.Flow()
    schema = pa.schema({"id": pa.int64(), "i": pa.int64(), "x": pa.float64()})
    made = flow.upserts("rows", schema, dd.Upsert("id")).project({"g": "id % 3", "i": "i", "x": "x"})
    flow.output("out", made.group_by("g").agg(**texts))
    held = {id: (id % 3, i, x) for id, i, x in rows}
    with flow.open() as engine, duckdb.connect() as witness:
        for time in range(2):
            part = rows[: len(rows) // 2] if time == 0 else rows
            engine.step(
                {"rows": pa.Table.from_pylist([dict(zip(schema.names, row, strict=True)) for row in part], schema)},
                time,
            )
        rest = pa.table(list(zip(*held.values(), strict=True)) or [[], [], []], names=["g", "i", "x"])
        witness.register("held", rest.cast(pa.schema({"g": pa.int64(), "i": pa.int64(), "x": pa.float64()})))
        sql = f"select g, {', '.join(texts.values())} from held group by g"
        found = {row[0]: row[1:] for row in witness.execute(sql).fetchall()}
        mine = {row["g"]: tuple(row[name] for name in texts) for row in engine.read("out").to_pylist()}
    assert set(found) == set(mine)
    for group, values in mine.items():
        for one, other in zip(values, found[group], strict=True):
            assert one == other or math.isclose(one, other, rel_tol=1e-6, abs_tol=1e-6), (group, values, found[group])


@pytest.mark.parametrize(
    ("text", "column", "values"),
    [
        ("sum(i)", "i", [2**63 - 1, 1]),
        ("sum(i)", "i", [-(2**63), -1]),
        ("sum(cast(d as decimal(38,4)) * 1000000000000)", "d", [Decimal(10**15)] * 99),
    ],
)
def test_a_value_that_leaves_its_type_refuses_the_step(text: str, column: str, values: list[Any]) -> None:
    def row(value: Any) -> Row:
        return tuple({**dict.fromkeys(COLUMNS), "g": "Bern", column: value}[name] for name in list(COLUMNS)[:5])

    with flow_of(["g"], time=False, aggregates={"total": text, "rows": "count(*)"}).open() as engine:
        engine.step({"rows": table([(row(values[0]), 0, 1)])}, 1)
        before = engine.read("out")
        with raises(AggregateOverflow):
            engine.step({"rows": table([(row(value), 0, 1 << 20) for value in values[1:]])}, 2)
        assert engine.read("out").equals(before)
        # Within a step, sums may leave it and come back.
        both = [(row(values[1]), 0, 1 << 20), (row(values[1]), 0, -(1 << 20))]
        engine.step({"rows": table(both)}, 2)
        assert engine.read("out").equals(before)
        engine._check_invariants()


def test_an_average_needs_no_sum_that_fits() -> None:
    rows = [(("a", 2**63 - 1, None, None, None), 0, 3), (("a", 2**63 - 3, None, None, None), 0, 1)]
    with flow_of(["g"], time=False, aggregates={"a": "avg(i)", "v": "var_pop(i)"}).open() as engine:
        engine.step({"rows": table(rows)}, 1)
        assert engine.read("out").to_pylist() == [{"g": "a", "a": 2.0**63, "v": 0.75, "_diff": 1}]
        engine.step({"rows": table([(row, time, 2**40) for row, time, _ in rows])}, 2)
        assert engine.read("out").to_pylist()[0]["a"] == 2.0**63


def test_a_group_of_no_rows_is_not_shown_and_what_left_before_it_came_is_known() -> None:
    one, other = (("a", n, None, None, None) for n in (5, 7))
    with flow_of(["g"], time=False, aggregates={"s": "sum(i)", "rows": "count(*)"}).open() as engine:
        out = engine.step({"rows": table([(one, 0, 1), (other, 0, -1)])}, 1)["out"]
        assert out.num_rows == engine.read("out").num_rows == 0
        engine.step({"rows": table([(other, 0, 1)])}, 2)
        assert engine.read("out").to_pylist() == [{"g": "a", "s": 5, "rows": 1, "_diff": 1}]


def test_infinities_and_nan_leave_again() -> None:
    def row(value: float) -> Row:
        return ("a", None, value, None, None)

    seen = []
    with flow_of(["g"], time=False, aggregates={"s": "sum(x)", "v": "var_pop(x)"}).open() as engine:
        for time, (value, n) in enumerate(
            [(0.5, 1), (math.inf, 1), (-math.inf, 1), (math.inf, -1), (math.nan, 1), (-math.inf, -1), (math.nan, -1)]
        ):
            engine.step({"rows": table([(row(value), 0, n)])}, time)
            seen.append(engine.read("out").to_pylist()[0]["s"])
    assert str(seen) == "[0.5, inf, nan, -inf, nan, nan, 0.5]"


def test_a_state_has_64_bytes_or_fewer_within_two_to_the_60() -> None:
    values = [math.ldexp(1.9, power) for power in range(-60, 61)] * 50
    with flow_of(["g"], time=False, aggregates={"s": "sum(x)"}).open() as engine:
        engine.step({"rows": table([(("a", None, value, None, None), 0, 1) for value in values])}, 1)
        arranged = engine.dataflow.graph.arrangements["agg 0 by ['g']"].read()
        assert max(len(state) for state in arranged.column("_2").to_pylist()) <= 64
        assert engine.read("out").to_pylist()[0]["s"] == math.fsum(values)


def test_it_is_asked_for_twice_and_held_once_and_count_is_its_short_form() -> None:
    flow = flow_of(["g"], aggregates={"rows": "count(*)"})
    rows = flow.inputs["rows"]
    assert rows.group_by("g").agg(rows="count(*)") is rows.count("g", name="rows") is flow.outputs["out"]
    assert rows.group_by("g").agg(s="sum(i)") is rows.group_by("g").agg(s="sum(i)")
    assert rows.agg(s="sum(i)") is rows.group_by().agg(s="sum(i)")
    assert str(rows.group_by("g").agg(**{k: AGGREGATES[k] for k in ("si", "ai", "sd", "ad")})) == (
        "Agg(g string, si int64, ai double, sd decimal128(30, 4), ad decimal128(24, 8))"
    )
    flow = flow_of(["g"])
    assert describe_plan(rebuild_plan(describe_plan(flow))) == describe_plan(flow)
    assert "agg(by=['g'], rows='count(*)', c='count(x)'" in dd.Flow.explain(flow)


@pytest.mark.parametrize(
    "text",
    [
        "median(i)",
        "sum(g)",
        "bool_and(i)",
        "sum(nothing)",
        "sum(i) + 1",
        "sum(i) over (partition by g)",
        "sum(distinct i)",
        "sum(i order by x)",
        "sum(i, x)",
        "sum(*)",
        "sum(i",
        "sum(i) filter (where i)",
        7,
    ],
)
def test_what_is_no_aggregate_is_refused_by_name(text: Any) -> None:
    with raises(ExpressionError):
        flow_of(["g"], aggregates={"t": text})


def test_names_and_columns_are_checked() -> None:
    rows = flow_of(["g"]).inputs["rows"]
    with raises(SpecError):
        rows.group_by("gg").agg(n="sum(i)")
    with raises(SpecError):
        rows.group_by("g").agg(g="sum(i)")
    with raises(SpecError):
        rows.group_by("g").agg()
    with pytest.raises(SpecError):
        rows.group_by("g").agg(_diff="sum(i)")
    flow = dd.Flow()
    spec = dd.Upsert("id", order_by="i", expiry=dd.Expiry(ttl=3, on_expire="forget"))
    forgets = flow.upserts("rows", {"id": int, "i": int}, spec)
    with raises(SpecError):
        forgets.agg(s="sum(i)")
    assert forgets.agg(n="count(*)").verb == "count"


def kinds(n: pa.DataType, g: pa.DataType | None = None) -> dd.Flow:
    flow = dd.Flow()
    rows = flow.upserts("rows", pa.schema({"id": pa.int64(), "g": g or pa.string(), "n": n}), dd.Upsert("id"))
    flow.output("out", rows.group_by("g").agg(s="sum(n)", a="avg(n)", c="count(n)"))
    return flow


def test_wider_columns_go_on_and_other_kinds_are_refused_by_name() -> None:
    store, small = MemoryStore(), pa.int32()
    with kinds(small).open(store.reopen()) as engine:
        engine.step({"rows": pa.table({"id": [1, 2], "g": ["a", "a"], "n": pa.array([1, 2], small)})}, 1)
        engine.evolve({"rows": pa.schema({"id": pa.int64(), "g": pa.large_string(), "n": pa.int64()})})
        engine.step({"rows": pa.table({"id": [2], "g": ["a"], "n": [2**40]})}, 2)
        assert engine.read("out").to_pylist() == [{"g": "a", "s": 2**40 + 1, "a": 2.0**39 + 0.5, "c": 2, "_diff": 1}]
    with raises(PlanChanged):
        dd.evolve(store.reopen(), {"n": pa.decimal128(22, 2)})
    with raises(PlanChanged):
        dd.evolve(store.reopen(), {"n": pa.string()})
    dd.evolve(store.reopen(), {"n": pa.float64()})
    with kinds(pa.float64(), pa.large_string()).open(store.reopen()) as engine:
        engine.step({"rows": pa.table({"id": [1], "g": ["a"], "n": [0.5]})}, 3)
        assert engine.read("out").to_pylist() == [
            {"g": "a", "s": 2.0**40 + 0.5, "a": 2.0**39 + 0.25, "c": 2, "_diff": 1}
        ]


def of_time(unit: str, **aggregates: str) -> dd.Flow:
    flow = dd.Flow()
    rows = flow.upserts("rows", pa.schema({"id": pa.int64(), "d": pa.duration(unit)}), dd.Upsert("id"))
    flow.output("out", rows.agg(**aggregates))
    return flow


def test_durations_are_summed_and_averaged() -> None:
    with of_time("us", s="sum(d)", a="avg(d)").open() as engine:
        for given, total, average in (
            ([1, 4, None], 5, 3),  # a half goes away from zero
            ([-1, -4, None], -5, -3),
            ([None, 2**60, None], 2**60, 2**60),
            ([2**62, 2**62 - 1, -1], 2**63 - 2, (2**63 - 2 + 1) // 3),
            ([None, None, None], None, None),
        ):
            engine.step({"rows": pa.table({"id": range(3), "d": pa.array(given, pa.duration("us"))})})
            out = engine.read("out")
            assert [out.column(name).cast(pa.int64()).to_pylist() for name in "sa"] == [[total], [average]]
            assert out.schema.field("s").type == out.schema.field("a").type == pa.duration("us")
        given = pa.array([2**62] * 2, pa.duration("us"))
        with pytest.raises(AggregateOverflow):
            engine.step({"rows": pa.table({"id": range(2), "d": given})})
    with raises(ExpressionError):
        of_time("us", v="stddev_pop(d)")


def test_durations_in_a_finer_unit_go_on() -> None:
    store = MemoryStore()
    with of_time("s", s="sum(d)").open(store.reopen()) as engine:
        engine.step({"rows": pa.table({"id": [1, 2], "d": pa.array([1, 2], pa.duration("s"))})})
    dd.evolve(store.reopen(), {"d": pa.duration("ms")})
    with of_time("ms", s="sum(d)").open(store.reopen()) as engine:
        engine.step({"rows": pa.table({"id": [2], "d": pa.array([5], pa.duration("ms"))})})
        assert engine.read("out").column("s").cast(pa.int64()).to_pylist() == [1005]
    store = MemoryStore()
    with of_time("s", a="avg(d)").open(store.reopen()) as engine:
        engine.step({"rows": pa.table({"id": [1], "d": pa.array([1], pa.duration("s"))})})
    with raises(PlanChanged):
        dd.evolve(store.reopen(), {"d": pa.duration("ms")})


def rows_with(column: str, rows: list[tuple[dict[str, Any], int]]) -> list[tuple[Any, int]]:
    return [(row[column], n) for row, n in rows]


@given(steps=st.lists(st.lists(st.tuples(st.integers(0, 5), st.integers(-3, 3), st.floats()), max_size=6), max_size=4))
@effort(40)
def test_upserts_give_what_the_twin_gives(steps: list[list[tuple[int, int, float]]]) -> None:
    spec, names = dd.Upsert("id"), ("id", "g", "x")
    flow = dd.Flow()
    rows = flow.upserts("rows", pa.schema({"id": pa.int64(), "g": pa.int64(), "x": pa.float64()}), spec)
    flow.output("out", rows.group_by("g").agg(n="count(*)", s="sum(x)", a="avg(id)"))
    input = Input(names, spec)
    node = collection("rows", input).agg(
        ["g"],
        n=lambda rows: sum(n for _, n in rows),
        s=lambda rows: rules.total(rows_with("x", rows)),
        a=lambda rows: rules.average(rows_with("id", rows)),
    )
    twin = Twin({"rows": input}, {"out": node})
    with flow.open() as engine:
        for time, step in enumerate(steps):
            events = [dict(zip(names, row, strict=True)) for row in step]
            out = engine.step({"rows": pa.Table.from_pylist(events, rows.schema)}, time)["out"]
            found = Counter[Any]()
            for *row, _, diff in zip(*(column.to_pylist() for column in out.columns), strict=True):
                found[tuple(map(canonical, row)), time] += diff
            assert found == twin.step({"rows": events}, time).updates["out"]
