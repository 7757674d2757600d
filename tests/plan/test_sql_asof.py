"""Test ASOF joins in SQL: both spellings beside DuckDB and beside the verb, and every refusal with its text."""

from __future__ import annotations

from typing import Any

import duckdb
import pyarrow as pa
import pytest
from chance import effort
from hypothesis import given, strategies as st
from messages import raises

import ddflow as dd
from ddflow.errors import ExpressionError, NegativeMultiplicity

TABLES = {"l": {"k": int, "t": int, "v": int}, "r": {"k": int, "t": int, "a": int, "p": str}}
PAIRS = [
    # The query, and the query of DuckDB with the same result.
    (
        "select l.k, l.t, r.t at, p from l asof join r match_condition (l.t >= r.t) on l.k = r.k",
        "select l.k, l.t, r.t, p from l asof join r on l.k = r.k and l.t >= r.t",
    ),
    (
        "select l.*, r.t at, a, p from l left asof join r match_condition (l.t < r.t) on l.k = r.k where v > 0",
        "select l.*, r.t, a, p from l asof left join r on l.k = r.k and l.t < r.t where v > 0",
    ),
    (
        "select v, p from l left outer asof join r match_condition (r.t <= l.t) using (k) where p is null or p > 'a'",
        "select v, p from l asof left join r on l.k = r.k and r.t <= l.t where p is null or p > 'a'",
    ),
    ("select v, r.t, p from l asof join r on l.k = r.k and l.t > r.t", None),
    ("select k, t, v, p from l asof left join r using (k, t)", None),
    (
        "select l.k, q.t from l inner asof join (select t from r) q match_condition (l.t <= q.t)",
        "select l.k, q.t from l asof join (select t from r) q on l.t <= q.t",
    ),
    ("select l.v, p from l asof join r on l.k + 1 = r.k and l.t + 1 >= r.t * 2", None),
    (
        "select x.k, count(*) n from l asof join r on l.k = r.k and l.t >= r.t join l x on x.v = r.k + r.t group by 1",
        None,
    ),
    ("select v, q.p from l asof join (select k, t, p from r where a > 0) q on l.k = q.k and l.t >= q.t", None),
    (
        "select x.v, y.v w from l x asof join l y match_condition (x.t > y.t) on x.k = y.k",
        "select x.v, y.v from l x asof join l y on x.k = y.k and x.t > y.t",
    ),
]
NEAR = st.integers(0, 3)
LEFTS = st.lists(st.tuples(st.one_of(st.none(), NEAR), st.one_of(st.none(), NEAR), NEAR), max_size=6)
RIGHTS = st.lists(st.tuples(NEAR, NEAR, NEAR, st.sampled_from("abc")), max_size=6, unique_by=lambda row: row[:2])


def columns(rows: list[Any], of: dict[str, Any]) -> dict[str, list[Any]]:
    return {name: [row[at] for row in rows] for at, name in enumerate(of)}


def flow_of(*queries: str) -> dd.Flow:
    flow = dd.Flow()
    for name, kinds in TABLES.items():
        flow.upserts(name, {"i": int, **kinds}, dd.Upsert("i", delete="i < 0"))
    for at, query in enumerate(queries):
        flow.output(f"o{at}", flow.sql(query))
    return flow


@effort(25)
@given(LEFTS, RIGHTS, LEFTS, RIGHTS)
def test_each_query_beside_duckdb(left: list[Any], right: list[Any], left_2: list[Any], right_2: list[Any]) -> None:
    """The second rows replace the first ones; a right row that is in both moves to another key of the input."""
    flow = dd.Flow()
    for name, kinds in TABLES.items():
        flow.upserts(f"{name}_", {"i": int, **kinds}, dd.Upsert("i"))
    views = {name: flow.inputs[f"{name}_"].project([*kinds]) for name, kinds in TABLES.items()}
    for at, (query, _) in enumerate(PAIRS):
        flow.output(f"o{at}", flow.sql(query, **views))
    with flow.open() as engine, duckdb.connect() as witness:
        witness.execute("create table l (k bigint, t bigint, v bigint)")
        witness.execute("create table r (k bigint, t bigint, a bigint, p text)")
        for rows in ((left, right), (left_2, right_2)):
            for (name, kinds), its in zip(TABLES.items(), rows, strict=True):
                table = columns(its, kinds) | {"i": list(range(len(its)))}
                engine.replace(f"{name}_", table, allow_empty=True)
                witness.execute(f"delete from {name}")
                if its:
                    marks = ", ".join("?" * len(kinds))
                    witness.executemany(f"insert into {name} values ({marks})", its)
            for at, (query, other) in enumerate(PAIRS):
                found = engine.read(f"o{at}").to_pylist()
                mine = sorted((tuple(row.values())[:-1] for row in found for _ in range(row["_diff"])), key=repr)
                assert mine == sorted(witness.execute(other or query).fetchall(), key=repr), query


def test_equal_moments_are_decided_by_all_columns_of_the_table() -> None:
    """Also by columns that the query does not read."""
    flow = flow_of("select v, p from l asof join r on l.k = r.k and l.t >= r.t")
    with flow.open() as engine:
        right = {"i": [1, 2, 3], "k": [1, 1, 1], "t": [4, 4, 3], "a": [2, 1, 0], "p": ["x", "y", "z"]}
        engine.step({"l": {"i": [1], "k": [1], "t": [5], "v": [7]}, "r": right})
        assert engine.read("o0").to_pylist() == [{"v": 7, "p": "x", "_diff": 1}]
        engine.step({"r": {"i": [1], "k": [1], "t": [4], "a": [2], "p": ["w"]}})
        assert engine.read("o0").to_pylist() == [{"v": 7, "p": "w", "_diff": 1}]


def test_both_spellings_give_one_plan() -> None:
    spark = "select v, p, r.t from l left asof join r match_condition (l.t >= r.t) on l.k = r.k"
    flow = flow_of(
        spark, "select v, p, r.t from l asof left join r on l.k = r.k and r.t <= l.t", f"{spark} where v > 1"
    )
    assert flow.outputs["o0"] is flow.outputs["o1"]
    for line in (
        "asof(on={'k': 'r.k'}, at='t >= r.t', how='left')    rows are looked up by [k] and [r.k]",
        "arrange_in_order(by=['k'], order='`t` desc nulls last')    rows move to their [k]; kept by [k]",
        "filter('v > 1')",
    ):
        assert line in str(flow.explain())


def test_a_column_may_be_called_match_condition() -> None:
    flow = flow_of("select q.k, match_condition from (select k, t match_condition from l) q")
    assert flow.outputs["o0"].schema.names == ["k", "match_condition"]


@pytest.mark.parametrize(
    "join",
    [
        "l asof join r match_condition (l.t >= r.t and l.v >= r.a) on l.k = r.k",
        "l asof join r match_condition (l.t = r.t) on l.k = r.k",
        "l asof join r on l.k = r.k and l.t >= r.t and l.v <= r.a",
        "l asof join r on l.k = r.k",
        "l asof join r",
        "l asof join r match_condition (l.t >= l.v) on l.k = r.k",
        "l asof join r match_condition (l.t >= r.t) on l.k = r.k and r.a = 1",
        "l asof join r match_condition (l.t >= r.t) on l.k = r.k and l.v > r.a",
        "l asof join lists match_condition (l.t >= lists.d) on l.k = lists.k",
        "l asof join r match_condition (cast(l.t as string) >= r.p) on l.k = r.k",
        "l asof join lists match_condition (l.t >= lists.k) on l.k = lists.d",
        "l asof join r match_condition (l.t >= (select max(t) from r)) on l.k = r.k",
        "l asof right join r on l.k = r.k and l.t >= r.t",
        "l full asof join r match_condition (l.t >= r.t)",
        "l join r match_condition (l.t >= r.t) on l.k = r.k",
        "l asof join r match_condition l.t >= r.t",
        "l asof join lists match_condition (l.k = lists.k)",
        "lists x asof join lists y match_condition (x.s >= y.s)",
    ],
)
def test_refusals(join: str) -> None:
    flow = dd.Flow()
    for name, kinds in TABLES.items():
        flow.updates(name, kinds)
    flow.updates("lists", {"k": int, "s": pa.list_(pa.int64()), "d": pa.date32()})
    with raises(ExpressionError):
        flow.sql(f"select 1 one from {join}")


def test_below_zero_is_refused() -> None:
    flow = dd.Flow()
    for name, kinds in TABLES.items():
        flow.updates(name, {**kinds, "n": int}, diff="n")
    flow.output("out", flow.sql("select v, p from l asof join r using (k, t)"))
    with flow.open() as engine, raises(NegativeMultiplicity):
        engine.step({"r": {"k": [1], "t": [1], "a": [1], "p": ["x"], "n": [-1]}})
