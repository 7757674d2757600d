"""Test thresholds and set verbs beside DuckDB, with their sharing, and every refusal with its text.

``test_operators`` and ``test_laws`` test the laws. Here DuckDB is the independent witness for SQL's UNION, EXCEPT and
INTERSECT.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pytest
from chance import effort
from hypothesis import given, strategies as st
from messages import raises

import ddflow as dd
from ddflow.plan.text.codec import describe_plan, rebuild_plan

COLUMNS = {"id": pa.int64(), "city": pa.string(), "n": pa.int64()}
ROW = st.tuples(st.sampled_from(["Bern", "Basel", None]), st.sampled_from([0, 1, None]))
EVENTS = st.lists(st.tuples(st.integers(0, 6), ROW), max_size=8)
VERBS = {"union": "union", "except_": "except", "intersect": "intersect"}


def two() -> tuple[dd.Flow, list[dd.Collection]]:
    """Two collections whose rows may be there several times."""
    flow = dd.Flow()
    return flow, [flow.upserts(name, COLUMNS, dd.Upsert("id")).project(["city", "n"]) for name in "ab"]


def table(events: list[tuple[int, tuple[Any, ...]]]) -> pa.Table:
    return pa.Table.from_pylist([{"id": k, "city": c, "n": n} for k, (c, n) in events], pa.schema(COLUMNS))


@effort(40)
@given(st.lists(st.tuples(EVENTS, EVENTS), min_size=1, max_size=4))
def test_they_mean_what_they_mean_in_duckdb(steps: list[tuple[Any, Any]]) -> None:
    flow, (a, b) = two()
    for verb in VERBS:
        for every in (False, True):
            flow.output(f"{verb} {every}", getattr(a, verb)(b, all=every))
    added: dict[str, Counter[Any]] = {name: Counter() for name in flow.outputs}
    with flow.open() as engine, duckdb.connect() as witness:
        for time, (of_a, of_b) in enumerate(steps):
            step = engine.step({"a": table(of_a), "b": table(of_b)}, time)
            held = {name: engine.read(name).select(list(COLUMNS)) for name in "ab"}
            for name, rows in held.items():
                witness.register(name, rows)
            for verb, word in VERBS.items():
                for every in (False, True):
                    sql = f"select city, n from a {word} {'all' if every else ''} select city, n from b"
                    name = f"{verb} {every}"
                    for city, n, _, diff in zip(*(c.to_pylist() for c in step[name].columns), strict=True):
                        added[name][city, n] += diff
                    found = Counter({row: times for row, times in added[name].items() if times})
                    assert found == Counter(witness.execute(sql).fetchall()), name


def test_what_is_below_zero_is_none_at_every_time_of_a_step() -> None:
    flow = dd.Flow()
    spec = dd.Upsert("id", time="at", delete=dd.tombstone("gone"))
    rows = flow.upserts("rows", {"id": int, "v": str, "at": int, "gone": bool}, spec).project(["v"])
    none, less = rows.concat(rows.negate(), rows.negate()), rows.negate()
    flow.output("union", less.union(none, all=True))
    flow.output("without", rows.except_(less, all=True))
    flow.output("negative", less.threshold("least(n, 0)"))
    with flow.open() as engine:
        engine.push({"rows": {"id": [1, 2, 1], "v": ["x"] * 3, "at": [1, 2, 3], "gone": [False, False, True]}})
        out = engine.advance_to(dd.CLOSED)
    assert out["union"].num_rows == 0
    assert out["without"].to_pylist() == [
        {"v": "x", "_time": time, "_diff": diff} for time, diff in ((1, 1), (2, 1), (3, -1))
    ]
    assert out["negative"].column("_diff").to_pylist() == [-1, -1, 1]


def test_rows_that_cannot_be_negative_are_held_once() -> None:
    flow, (a, b) = two()
    flow.output("union", a.union(b))
    flow.output("again", a.union(b))
    flow.output("without", a.except_(b, all=True))
    flow.output("both", a.intersect(b, all=True))
    with flow.open() as engine:
        kept = [name for name in engine.stats()["arrangements"] if name not in "ab"]
    assert len(kept) == 2  # what says the same is one collection; "both" stands on "without"
    flow, (a, _) = two()
    assert a.distinct() is a.distinct()
    assert a.threshold("least(n, 2)") is a.threshold("least(n, 2)")
    once = a.distinct()
    assert once.union() is once and once.positive and once.unique
    assert not once.negate().positive and a.negate().union(all=True).positive


def test_a_threshold_may_be_a_function_which_no_state_can_hold() -> None:
    def capped(batch: pa.RecordBatch) -> Any:
        return np.minimum(batch.column("n").to_numpy(), 2)

    flow, (a, _) = two()
    flow.output("some", a.threshold(capped))
    with flow.open() as engine:
        engine.step({"a": table([(k, ("Bern", 0)) for k in range(5)])}, 1)
        assert engine.read("some").to_pylist() == [{"city": "Bern", "n": 0, "_diff": 2}]
    with raises(dd.errors.SpecError):
        rebuild_plan(describe_plan(flow))
    assert "threshold('least(n, 2)')" in dd.Flow.explain(flow_of("least(n, 2)"))
    again = rebuild_plan(describe_plan(flow_of("least(n, 2)")))
    assert describe_plan(again) == describe_plan(flow_of("least(n, 2)"))


def flow_of(formula: Any) -> dd.Flow:
    flow, (a, _) = two()
    flow.output("out", a.threshold(formula))
    return flow


@pytest.mark.parametrize(
    "formula",
    [
        "n + 1",
        "nullif(n, 0)",
        "n / 2",
        "m",
        lambda batch: ["a"],
        7,
    ],
)
def test_a_threshold_gives_integers_and_none_for_none(formula: Any) -> None:
    with raises(dd.errors.ExpressionError):
        flow_of(formula)


def test_a_threshold_that_gives_null_refuses_the_step_whole() -> None:
    with flow_of("case when n < 2 then n end").open() as engine:
        engine.step({"a": table([(1, ("Bern", 0))])}, 1)
        with raises(dd.errors.ExpressionError):
            engine.step({"a": table([(2, ("Bern", 0))])}, 2)
        assert engine.read("out").to_pylist() == [{"city": "Bern", "n": 0, "_diff": 1}]
        engine.step({"a": table([(2, ("Basel", 0))])}, 2)
        engine._check_invariants()


@pytest.mark.parametrize("formula", ["n * 9223372036854775807", "case n when 1 then -9223372036854775808 else 0 end"])
def test_multiplicities_that_leave_int64_refuse_the_step(formula: str) -> None:
    with flow_of(formula).open() as engine:
        events = [(1, ("Bern", 0)), (2, ("Bern", 0))]
        with pytest.raises((dd.errors.CountOverflow, dd.errors.ExpressionError)):
            engine.step({"a": table(events if "*" in formula else events[:1])}, 1)
        assert engine.read("out").num_rows == engine.read("a").num_rows == 0


@pytest.mark.parametrize("verb", ["union", "except_", "intersect", "concat"])
def test_collections_that_do_not_fit_are_refused(verb: str) -> None:
    _, (a, b) = two()
    call = getattr(a, verb)
    with raises(dd.errors.SpecError):
        call(b.project({"City": "city", "n": "n"}))
    with raises(dd.errors.SpecError):
        call(b.project({"city": "city", "n": "cast(n as string)"}))
    with raises(dd.errors.SpecError):
        call(two()[1][0])
    with raises(dd.errors.SpecError):
        call("b")
    if verb in ("except_", "intersect"):
        with raises(dd.errors.SpecError):
            call()


def test_rows_that_are_forgotten_without_a_word_have_no_threshold() -> None:
    flow = dd.Flow()
    spec = dd.Upsert("id", order_by="n", expiry=dd.Expiry(ttl=3, on_expire="forget"))
    rows = flow.upserts("rows", COLUMNS, spec)
    for make in (lambda c: c.project(["city"]).distinct(), lambda c: c.threshold("n"), lambda c: c.except_(c)):
        with raises(dd.errors.SpecError):
            make(rows)
