"""Test joins: every kind beside DuckDB on two inputs, sharing, the cost of a skewed key, and every refusal.

``test_operators`` tests the laws of operators. Here both sides change at once, with inputs of upserts and of
differences, and DuckDB is the independent witness for SQL's ON.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pytest
from chance import effort
from doors import is_temporal
from hypothesis import given, strategies as st
from messages import raises

import ddflow as dd
from ddflow.plan.text.codec import describe_plan, rebuild_plan

KINDS = ("inner", "left", "right", "full", "semi", "anti")
LEFT = {"id": pa.int64(), "k": pa.int32(), "city": pa.string()}
RIGHT = {"of": pa.int64(), "place": pa.string(), "m": pa.float64()}
KEYS, CITIES = st.one_of(st.none(), st.integers(-1, 2)), st.sampled_from(["Bern", "Basel", None])
LEFTS = st.lists(st.tuples(st.integers(0, 5), KEYS, CITIES, st.booleans()), max_size=8, unique_by=lambda row: row[0])
RIGHTS = st.lists(
    st.tuples(st.integers(-1, 2), CITIES, st.sampled_from([0.5, 1.5, None]), st.booleans()),
    max_size=4,
    unique_by=lambda row: row[0],
)
STEPS = st.lists(st.tuples(LEFTS, RIGHTS), min_size=1, max_size=5)
Rows = Counter[tuple[Any, ...]]


def two(time: bool = False) -> tuple[dd.Flow, dd.Collection, dd.Collection]:
    """A left with a key of its own, and a right whose key the left names."""
    flow = dd.Flow()
    more = {"gone": pa.bool_(), **({"at": pa.int64()} if time else {})}

    def spec(key: str) -> dd.Upsert:
        options: dict[str, Any] = {"time": "at", "order_by": "at"} if time else {}
        return dd.Upsert(key, delete=dd.tombstone("gone", True), **options)

    return flow, flow.upserts("a", LEFT | more, spec("id")), flow.upserts("b", RIGHT | more, spec("of"))


def tables(step: tuple[list[Any], list[Any]], time: int | None = None) -> dict[str, pa.Table]:
    out = {}
    for name, columns, rows in (("a", LEFT, step[0]), ("b", RIGHT, step[1])):
        schema = pa.schema({**columns, "gone": pa.bool_()})
        table = pa.Table.from_pylist([dict(zip(schema.names, row, strict=True)) for row in rows], schema)
        out[name] = table if time is None else table.append_column("at", pa.array([time] * len(rows), pa.int64()))
    return out


def added(updates: pa.Table, into: Rows) -> Rows:
    for *row, _, diff in zip(*(c.to_pylist() for c in updates.columns), strict=True):
        into[tuple(row)] += diff
    return Counter({row: times for row, times in into.items() if times})


def rows_of(read: pa.Table) -> Rows:
    return Counter({tuple(row): n for *row, n in zip(*(c.to_pylist() for c in read.columns), strict=True)})


ON: dict[str, tuple[Any, str | None, str]] = {
    "key": ({"k": "of"}, None, "a.k = b.of"),
    "other": ({"city": "place"}, None, "a.city = b.place"),
    "both": ({"city": "place", "k": "of"}, None, "a.city = b.place and a.k = b.of"),
    "computed": ({"k + 1": "of"}, None, "a.k + 1 = b.of"),
    "condition": ({"k": "of"}, "m > 1 or city = place", "a.k = b.of and (b.m > 1 or a.city = b.place)"),
    "all": ([], "m > k", "b.m > a.k"),
}


@pytest.mark.drawn(3)
@pytest.mark.parametrize("on", ON)
@pytest.mark.parametrize("budget", [False, True], ids=["memory", "spilled"])
@given(steps=STEPS)
@effort(12)
def test_every_kind_means_what_it_means_in_duckdb(
    on: str, budget: bool, steps: list[Any], tmp_path_factory: pytest.TempPathFactory
) -> None:
    keys, condition, sql = ON[on]
    flow, a, b = two()
    for how in KINDS:
        flow.output(how, a.join(b, on=keys, how=how, condition=condition))
    told: dict[str, Rows] = {how: Counter() for how in KINDS}
    options = {"memory": "16MB", "spill": Path(tmp_path_factory.mktemp("spill"))} if budget else {}
    with flow.open(**options) as engine, duckdb.connect() as witness:  # type: ignore[arg-type]
        if budget:
            engine.dataflow.budget.state = 0  # everything goes to files at once
        for time, step in enumerate(steps):
            out = engine.step(tables(step), time)
            for name, columns in (("a", LEFT), ("b", RIGHT)):
                witness.register(name, engine.read(name).select(list(columns)))
            for how in KINDS:
                told[how] = added(out[how], told[how])
                there = "a.*" if how in ("semi", "anti") else "*"
                said = witness.execute(f"select {there} from a {how} join b on {sql}").fetchall()
                assert told[how] == Counter(said) == rows_of(engine.read(how)), how


@given(steps=STEPS, cut=st.integers(0, 5))
@effort(25)
def test_several_times_in_a_step_are_as_steps_of_one_time(steps: list[Any], cut: int) -> None:
    out: list[Rows] = []
    for ends in (sorted({min(cut, len(steps)), len(steps)}), range(1, len(steps) + 1)):
        flow, a, b = two(time=True)
        for how in KINDS:
            flow.output(how, a.join(b, on={"k": "of"}, how=how).count())
        found: Rows = Counter()
        with flow.open() as engine:
            for time, step in enumerate(steps):
                engine.push(tables(step, time))
                if time + 1 in ends:
                    made = engine.advance_to(time + 1)
                    for how in KINDS:
                        for row in zip(*(c.to_pylist() for c in made[how].columns), strict=True):
                            found[how, *row] += 1
        out.append(found)
    assert out[0] == out[1]


@effort(100)
@given(STEPS)
def test_a_key_that_is_not_shown_is_told_by_the_one_that_is(steps: Any) -> None:
    flow, a, b = two(time=True)
    pairs = a.join(b, on={"k": "of"}).filter("id > 0")
    shown = {
        "one": (["id", "k", "city", "place", "m"], True),
        "other": (["id", "of", "city", "place", "m"], True),
        "none": (["id", "city", "place", "m"], False),
        "less": (["id", "k", "place"], False),
    }
    for name, (columns, whole) in shown.items():
        made = pairs.project(columns)
        assert made.consolidated == whole, name
        flow.output(name, made)
    with flow.open() as engine:
        for time, step in enumerate(steps):
            engine.push(tables(step, time))
        for name, table in engine.advance_to(len(steps)).items():
            rows = [tuple(row[:-1]) for row in zip(*(c.to_pylist() for c in table.columns), strict=True)]
            assert len(set(rows)) == len(rows), name


@given(
    st.lists(
        st.lists(st.tuples(st.booleans(), KEYS, st.sampled_from("xy"), st.integers(-2, 2)), max_size=6),
        min_size=1,
        max_size=4,
    )
)
@effort(40)
def test_multiplicities_multiply_whatever_their_sign(steps: list[Any]) -> None:
    flow = dd.Flow()
    a, b = (
        flow.updates(name, {"k": pa.int64(), v: pa.string(), "n": pa.int64()}, diff="n", keep=keep)
        for name, v, keep in (("a", "v", True), ("b", "w", False))
    )
    flow.output("out", a.join(b, on="k"))
    held: list[Rows] = [Counter(), Counter()]
    told: Rows = Counter()
    with flow.open(retain=len(steps)) as engine:
        for time, step in enumerate(steps):
            given = {}
            for side, name, v in ((False, "a", "v"), (True, "b", "w")):
                rows = [{"k": k, v: x, "n": n} for at, k, x, n in step if at == side]
                for row in rows:
                    held[side][row["k"], row[v]] += row["n"]
                given[name] = pa.Table.from_pylist(rows, pa.schema({"k": pa.int64(), v: pa.string(), "n": pa.int64()}))
            told = added(engine.step(given, time)["out"], told)
            expected: Rows = Counter()
            for (k, x), n in held[0].items():
                for (other, y), m in held[1].items():
                    if k is not None and k == other and n * m:
                        expected[k, x, y] += n * m
            assert told == expected == rows_of(engine.read("out"))


def arranged(flow: dd.Flow) -> list[str]:
    with flow.open() as engine:
        return sorted(name for name in engine.stats()["arrangements"] if name not in flow.inputs)


def test_what_is_arranged_is_arranged_once() -> None:
    flow, a, b = two()
    flow.output("one", a.join(b, on={"k": "of"}))
    assert arranged(flow) == ["arrange 0 by ['k']"]  # the right is looked up where it is
    other = b.project({"number": "of", "name": "place"})
    flow.output("two", a.join(other, on={"k": "number"}))
    flow.output("three", a.project({"id": "id", "k": "k"}).join(b, on={"k": "of"}, how="left"))
    assert arranged(flow) == ["arrange 0 by ['k']"]
    same = a.join(a.project({"k": "k", "other": "id"}), on="k")
    flow.output("pairs", same)
    assert arranged(flow) == ["arrange 0 by ['k']"]
    flow.output("by city", a.join(a.count("city"), on="city"))
    assert arranged(flow) == ["arrange 0 by ['k']", "arrange 1 by ['city']", "count 0 by ['city']"]
    assert a.arrange("city") is a.arrange(["city"]) and a.arrange("city") is not a.arrange("k")
    again = rebuild_plan(describe_plan(flow))
    assert describe_plan(again) == describe_plan(flow)


def test_a_skewed_key_costs_its_output_and_no_more() -> None:
    flow, a, b = two()
    flow.output("out", a.join(b, on={"k": "of"}).project(["id", "place"]))
    n = 20_000
    with flow.open() as engine:
        rows = {"id": range(n), "k": pa.array([1] * n, pa.int32()), "city": ["x"] * n, "gone": [False] * n}
        b = {"of": [1, 2], "place": ["p", "q"], "m": [1.0, 2.0], "gone": [False] * 2}
        assert engine.step({"a": pa.table(rows), "b": pa.table(b)}, 0)["out"].num_rows == n
        moved = {"id": [n], "k": pa.array([2], pa.int32()), "city": ["y"], "gone": [False]}
        assert engine.step({"a": pa.table(moved)}, 1)["out"].to_pylist() == [
            {"id": n, "place": "q", "_time": 1, "_diff": 1}
        ]


def test_a_column_that_meets_two_is_compared_with_both() -> None:
    flow, a, b = two()
    flow.output("out", a.join(b, on={"id": "of", "k": "of"}))
    flow.output("turned", b.join(a.project({"id": "id", "k": "k"}), on={"of": "id", "of + 0": "k"}))
    with flow.open() as engine:
        rows = [(1, 1, "x", False), (2, 1, "y", False)], [(1, "p", 0.5, False), (2, "q", 0.5, False)]
        out = engine.step(tables(rows), 0)
    assert [row["id"] for row in out["out"].to_pylist()] == [1]
    assert [row["of"] for row in out["turned"].to_pylist()] == [1]


def test_equally_named_keys_are_one_column() -> None:
    flow = dd.Flow()
    a = flow.upserts("a", {"id": pa.int64(), "x": pa.string()}, dd.Upsert("id"))
    b = flow.upserts("b", {"id": pa.int64(), "y": pa.string()}, dd.Upsert("id"))
    for how in KINDS:
        flow.output(how, a.join(b, on="id", how=how))
    with flow.open() as engine:
        assert not [name for name in engine.stats()["arrangements"] if name.startswith("arrange")]
        out = engine.step({"a": {"id": [1, 2], "x": ["a", "b"]}, "b": {"id": [2, 3], "y": ["c", "d"]}}, 0)
    assert {how: sorted(map(str, rows_of(out[how].drop_columns(["_time"])))) for how in KINDS} == {
        "inner": ["(2, 'b', 'c')"],
        "left": ["(1, 'a', None)", "(2, 'b', 'c')"],
        "right": ["(2, 'b', 'c')", "(3, None, 'd')"],
        "full": ["(1, 'a', None)", "(2, 'b', 'c')", "(3, None, 'd')"],
        "semi": ["(2, 'b')"],
        "anti": ["(1, 'a')"],
    }


@pytest.mark.parametrize(
    ("left", "right", "fits"),
    [
        ("int8", "int64", True),
        ("uint32", "int64", True),
        ("uint64", "int64", False),
        ("float32", "float64", True),
        ("int64", "float64", False),
        ("string", "large_string", True),
        ("string", "int64", False),
        ("timestamp[us]", "timestamp[ms]", True),
        ("timestamp[s]", "date32", True),
        ("timestamp[ms, UTC]", "timestamp[us, UTC]", True),
        ("timestamp[us, UTC]", "timestamp[us]", False),
        ("timestamp[ns]", "timestamp[us]", False),
        ("timestamp[us, UTC]", "date32", False),
        ("bool", "int8", False),
        ("decimal128(10, 2)", "decimal128(12, 4)", True),
        ("decimal128(10, 2)", "int32", True),
        ("decimal128(38, 30)", "int64", False),
    ],
)
def test_keys_compare_in_a_type_that_holds_both(left: str, right: str, fits: bool) -> None:
    kinds = [
        pa.decimal128(*map(int, kind[11:-1].split(",")))
        if kind[:3] == "dec"
        else pa.timestamp(kind[10:12], "UTC")
        if "UTC" in kind
        else pa.type_for_alias(kind)
        for kind in (left, right)
    ]
    flow = dd.Flow()
    a, b = (
        flow.upserts(name, {key: pa.int64(), column: kind}, dd.Upsert(key))
        for name, key, column, kind in (("a", "i", "x", kinds[0]), ("b", "j", "y", kinds[1]))
    )
    if not fits:
        with raises(dd.errors.SpecError):
            a.join(b, on={"x": "y"})
        return
    flow.output("out", a.join(b, on={"x": "y"}).project(["i", "j"]))
    days = pa.array([1, 2], pa.date32())
    ones = [(days if is_temporal(kind) else pa.array(["1", "2"])).cast(kind) for kind in kinds]
    with flow.open() as engine:
        made = engine.step(
            {"a": pa.table([[5, 6], ones[0]], names=["i", "x"]), "b": pa.table([[7, 8], ones[1]], names=["j", "y"])}, 0
        )
    assert sorted((row["i"], row["j"]) for row in made["out"].to_pylist()) == [(5, 7), (6, 8)]


def test_what_cannot_be_joined_is_refused_with_what_to_write() -> None:
    flow, a, b = two()
    with raises(dd.errors.SpecError):
        a.join(b, on={"kk": "of"})
    with raises(dd.errors.SpecError):
        a.join(a.project(["city", "k"]), on="k")
    with raises(dd.errors.SpecError):
        a.join(two()[2], on={"k": "of"})
    with raises(dd.errors.SpecError):
        a.join(b, on={"k": "of"}, how="outer")
    with raises(dd.errors.ExpressionError):
        a.join(b, on={"k": "of"}, condition="nowhere > 1")
    with raises(dd.errors.SpecError):
        a.arrange("cite")
    forgetting = dd.Flow().upserts(
        "f", {"k": int, "at": int}, dd.Upsert("k", order_by="at", expiry=dd.Expiry(ttl=5, on_expire="forget"))
    )
    with raises(dd.errors.SpecError):
        forgetting.join(forgetting.project({"k": "k", "then": "at"}), on="k")
    assert list(flow.outputs) == []


@pytest.mark.parametrize("how", [how for how in KINDS if how != "inner"])
def test_less_than_no_row_has_no_partner(how: str) -> None:
    flow = dd.Flow()
    a, b = (flow.updates(name, {"k": int, name: str, "n": int}, diff="n") for name in "ab")
    flow.output("out", a.join(b, on="k", how=how))  # type: ignore[arg-type]
    with flow.open() as engine:
        engine.step({"a": {"k": [1], "a": ["x"], "n": [1]}, "b": {"k": [1], "b": ["y"], "n": [1]}}, 0)
        before = engine.read("out")
        for side in "ab":
            with raises(dd.errors.NegativeMultiplicity):
                engine.step({side: {"k": [1], side: ["x" if side == "a" else "y"], "n": [-2]}}, 1)
        assert engine.read("out").equals(before)


def test_a_product_that_leaves_int64_is_refused_and_names_the_row() -> None:
    flow = dd.Flow()
    a, b = (flow.updates(name, {"k": int, name: str, "n": int}, diff="n") for name in "ab")
    flow.output("out", a.join(b, on="k"))
    with flow.open() as engine:
        engine.step({"a": {"k": [1], "a": ["x"], "n": [1 << 40]}}, 0)
        with raises(dd.errors.CountOverflow):
            engine.step({"b": {"k": [1], "b": ["y"], "n": [1 << 40]}}, 1)
        assert engine.step({"b": {"k": [1], "b": ["y"], "n": [1 << 20]}}, 1)["out"].column("_diff").to_pylist() == [
            1 << 60
        ]
