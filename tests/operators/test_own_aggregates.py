"""Test custom aggregates: compiled, beside sums and extremes, on states, and against their laws."""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

import pyarrow as pa
import pytest
from chance import effort, mid_test
from hypothesis import given, strategies as st
from messages import raises

import ddflow as dd
from ddflow.errors import AggregateFailed, ExpressionError, NotInvariant, PlanChanged, SpecError
from ddflow.plan.text.codec import describe_plan
from ddflow.storage.memory import MemoryStore
from ddflow.testing import aggregate_laws


def add(state: Any, x: Any) -> Any:
    return state[0] + 1, state[1] + x, state[2] + x * x


def retract(state: Any, x: Any) -> Any:
    return state[0] - 1, state[1] - x, state[2] - x * x


def spread(state: Any) -> Any:
    return state[2] / state[0] - (state[1] / state[0]) ** 2 if state[0] > 0 else math.nan


def other(state: Any) -> Any:
    return state[1] / state[0]


SPREAD = dd.Aggregate((0, 0.0, 0.0), add, retract, spread)
COLUMNS = {"g": pa.string(), "x": pa.float64(), "i": pa.int32()}
ROWS = st.tuples(
    st.sampled_from(["a", "b", None]),
    st.one_of(st.none(), st.integers(-20, 20).map(lambda n: n / 4)),
    st.one_of(st.none(), st.integers(-9, 9)),
)
STEPS = st.lists(st.lists(st.tuples(ROWS, st.sampled_from([1, 1, 2, -1, 3])), max_size=6), max_size=4)


def flow_of(mine: Any = SPREAD) -> dd.Flow:
    flow = dd.Flow()
    rows = flow.updates("rows", pa.schema({**COLUMNS, "n": pa.int64()}), diff="n", keep=True)
    flow.output("out", rows.group_by("g").agg(v=mine("x"), n="count(*)", w=mine("i * 2"), s="sum(i)"))
    return flow


def table(step: list[Any]) -> pa.Table:
    rows = [dict(zip(COLUMNS, row, strict=True)) | {"n": n} for row, n in step]
    return pa.Table.from_pylist(rows, pa.schema({**COLUMNS, "n": pa.int64()}))


def plain(value: Any) -> Any:
    return "nan" if isinstance(value, float) and math.isnan(value) else value


def expected(rows: Counter[Any]) -> Counter[Any]:
    out: Counter[Any] = Counter()
    for g in {row[0] for row in rows}:
        its = [(row, n) for row, n in rows.items() if row[0] == g and n]
        found = []
        for values in (
            [(row[1], n) for row, n in its if row[1] is not None],
            [(row[2] * 2, n) for row, n in its if row[2] is not None],
        ):
            state = tuple(sum(n * x**power for x, n in values) for power in range(3))
            found.append(None if state[0] == 0 else plain(spread(state)))
        ints = [(row[2], n) for row, n in its if row[2] is not None]
        total = sum(x * n for x, n in ints) if sum(n for _, n in ints) else None
        many = sum(n for _, n in its)
        if many:
            out[g, found[0], many, found[1], total] += 1
    return out


@mid_test
@given(steps=STEPS)
@effort(40)
def test_results_are_those_of_the_rows_that_are_there(steps: list[list[Any]]) -> None:
    held: Counter[Any] = Counter()
    store = MemoryStore()
    with flow_of().open() as engine:
        for time, step in enumerate(steps):
            for row, n in step:
                held[row] += n
            with flow_of().open(store.reopen()) as again:
                for each in (engine, again):
                    each.step({"rows": table(step)}, time)
                    read = each.read("out").drop_columns(["_diff"]).to_pylist()
                    assert Counter(tuple(map(plain, row.values())) for row in read) == expected(held)
                again._check_invariants()


def test_what_came_and_went_leaves_nothing() -> None:
    with flow_of().open() as engine:
        engine.step({"rows": table([(("a", 0.5, 1), 2), (("a", 1.5, None), -1)])}, 0)
        engine.step({"rows": table([(("a", 0.5, 1), -2), (("a", 1.5, None), 1)])}, 1)
        assert engine.read("out").num_rows == 0
        engine.compact()
        assert engine.dataflow.graph.arrangements["agg 0 by ['g']"].keys == 0


@mid_test
def test_it_stands_beside_extremes_and_is_asked_for_twice_and_held_once() -> None:
    flow = flow_of()
    rows = flow.inputs["rows"]
    assert rows.group_by("g").agg(v=SPREAD("x")) is rows.group_by("g").agg(v=SPREAD("x"))
    assert rows.agg(v=SPREAD("x")) is not rows.agg(v=SPREAD("i"))
    same = dd.Aggregate(SPREAD.zero, add, retract, spread)
    assert rows.agg(v=SPREAD("x")) is rows.agg(v=same("x"))
    flow.output("both", rows.group_by("g").agg(hi="max(x)", v=SPREAD("x")))
    assert describe_plan(flow) == describe_plan(flow)
    assert "test_own_aggregates.spread('x')" in dd.Flow.explain(flow)
    with flow.open() as engine:
        out = engine.step({"rows": table([(("a", 0.5, 1), 1), (("a", 1.5, None), 1)])}, 0)["both"]
        assert out.drop_columns(["_time"]).to_pylist() == [{"g": "a", "hi": 1.5, "v": 0.25, "_diff": 1}]


def test_other_functions_on_a_state_are_refused_by_name() -> None:
    store = MemoryStore()
    with flow_of().open(store.reopen()) as engine:
        engine.step({"rows": table([(("a", 0.5, 1), 1)])}, 0)
    with raises(PlanChanged):
        flow_of(dd.Aggregate(SPREAD.zero, add, retract, other)).open(store.reopen())

    def result(state: Any) -> Any:
        return state[0] + 1.0

    result.__qualname__, result.__module__ = spread.__qualname__, spread.__module__
    with pytest.raises(PlanChanged):
        flow_of(dd.Aggregate(SPREAD.zero, add, retract, result)).open(store.reopen())
    with pytest.raises(PlanChanged):
        flow_of(dd.Aggregate((0, 1.0, 0.0), add, retract, spread)).open(store.reopen())
    with raises(SpecError):
        dd.evolve(store.reopen(), {"i": pa.float64()})


def test_a_function_that_raises_refuses_the_step() -> None:
    def result(state: Any) -> Any:
        if state[0] > 1:
            raise ValueError("too many")
        return 1.0

    rows = [(("a", 0.5, 1), 1)]
    with flow_of(dd.Aggregate(SPREAD.zero, add, retract, result)).open() as engine:
        engine.step({"rows": table(rows)}, 0)
        before = engine.read("out")
        with raises(AggregateFailed):
            engine.step({"rows": table(rows)}, 1)
        assert engine.read("out").equals(before)
        engine._check_invariants()


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (((), add, retract, spread), r"zero= is \(\)"),
        (([0], add, retract, spread), r"zero= is \[0\]"),
        (((True,), add, retract, spread), r"zero= is \(True,\)"),
        (((0,), add, 7, spread), "retract= is 7; pass a function"),
        (((0,), add, retract, spread, str), "type= is"),
    ],
)
def test_what_is_no_aggregate_is_refused(given: Any, words: str) -> None:
    with pytest.raises(SpecError, match=words):
        dd.Aggregate(*given)


@pytest.mark.parametrize(
    ("given", "sql", "words"),
    [
        ((SPREAD.zero, lambda s, x: (s[0] + x, s[1], s[2]), retract, spread), "x", "add returns .*float64, float64"),
        ((SPREAD.zero, lambda s, x: s[0], retract, spread), "x", "add returns int64, but a state is"),
        ((SPREAD.zero, add, retract, lambda s: s[1], int), "x", "result returns float64"),
        ((SPREAD.zero, add, retract, lambda s: s), "x", "result returns Tuple"),
        ((SPREAD.zero, add, retract, lambda s: s.nothing), "x", "numba cannot compile result"),
        ((SPREAD.zero, add, retract, spread), "g", "its argument is string, not a number"),
        ((SPREAD.zero, add, retract, spread), "nothing", "there is no column 'nothing'"),
    ],
)
def test_what_does_not_fit_is_refused_by_name(given: Any, sql: str, words: str) -> None:
    rows = flow_of().inputs["rows"]
    with pytest.raises(ExpressionError, match=words):
        rows.agg(v=dd.Aggregate(*given)(sql))
    with pytest.raises(SpecError, match="it is called with 7"):
        SPREAD(7)  # type: ignore[arg-type]


def test_its_laws_are_tried() -> None:
    assert aggregate_laws(SPREAD) == 100
    greatest = dd.Aggregate((0,), lambda s, x: (max(s[0], x),), lambda s, x: s, lambda s: s[0], type=int)
    with raises(NotInvariant):
        aggregate_laws(greatest)
    latest = dd.Aggregate((0,), lambda s, x: (s[0] * 2 + x,), lambda s, x: ((s[0] - x) // 2,), lambda s: s[0])
    with pytest.raises(NotInvariant):
        aggregate_laws(latest)
    with raises(NotInvariant):
        aggregate_laws(SPREAD, [0.1, 0.2, 1e300])
    with raises(SpecError):
        aggregate_laws(SPREAD, [1])
    short = dd.Aggregate((0, 0), lambda s, x: (s[0],), lambda s, x: s, lambda s: s[0])
    with raises(NotInvariant):
        aggregate_laws(short)
