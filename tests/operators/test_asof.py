"""Test ASOF joins beside the twin and DuckDB; their states; and every refusal with its text.

Rows appear, disappear and return on both sides, several times within a step. ``test_operators`` tests the laws of
operators.
"""

from __future__ import annotations

import datetime as dt
from collections import Counter
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pytest
from chance import effort, seeded
from hypothesis import given, strategies as st
from messages import raises
from model import Node, difference
from test_top import possible, put_out, read
from tight import MEMORY, tighten, tiny

import ddflow as dd
from ddflow.errors import CorruptState, NegativeMultiplicity, PlanChanged, SpecError
from ddflow.plan.text.codec import compute_node_id, describe_plan, format_node, rebuild_plan
from ddflow.storage.memory import MemoryStore
from ddflow.tools.verify import recount_groups

LEFT = {"k": pa.int32(), "t": pa.int64(), "v": pa.int64(), "d": pa.int64(), "c": pa.int64()}
RIGHT = {"k": pa.int64(), "s": pa.int64(), "p": pa.string(), "d": pa.int64(), "c": pa.int64()}
KEYS, MOMENTS = st.sampled_from([1, 1, 2, None]), st.sampled_from([0, 1, 2, 3, 4, 2**63 - 1, -(2**63), None])
LONG = "the same first bytes, "
PRICES = st.sampled_from(["a", "b", LONG + "a", LONG + "b", None])
DIFFS = st.sampled_from([1, 1, 2, -1, -2])
LEFTS = st.lists(st.tuples(st.tuples(KEYS, MOMENTS, st.integers(0, 1)), DIFFS), max_size=10)
RIGHTS = st.lists(st.tuples(st.tuples(KEYS, MOMENTS, PRICES), DIFFS), max_size=10)
STEPS = st.lists(st.tuples(LEFTS, RIGHTS), min_size=1, max_size=5)
WAYS, HOW = st.sampled_from([">=", ">", "<=", "<"]), st.sampled_from(["left", "inner"])
ON = st.sampled_from([{"k": "k"}, {"k": "k"}, {}, {"k": "k", "v": "s"}])


def flow_of(on: dict[str, str], way: str, how: str, timed: bool = False) -> dd.Flow:
    flow, at = dd.Flow(), {"time": "c"} if timed else {}
    sides = []
    for name, columns in (("left", LEFT), ("right", RIGHT)):
        columns = {name: kind for name, kind in columns.items() if timed or name != "c"}
        rows = flow.updates(name, columns, diff="d", keep=True, **at)
        sides.append(rows.project([*columns][:3]))
    right = sides[1] if on.get("k") == "k" else sides[1].project({"j": "k", "s": "s", "p": "p"})
    flow.output("out", sides[0].asof(right, on=on, at=f"t {way} s", how=how))
    return flow


def twin(on: dict[str, str], way: str, how: str) -> Any:
    """A function of the rows of both sides."""
    left, right = Node(("k", "t", "v"), lambda s: s["left"]), Node(("k", "s", "p"), lambda s: s["right"])
    right = right if on.get("k") == "k" else Node(("j", "s", "p"), right.of)
    made = left.asof(right, on, f"t {way} s", how)
    return lambda left, right: made.of({"left": left, "right": right})


def table(columns: dict[str, Any], changes: list[tuple[tuple[Any, ...], int]], time: int = 0) -> pa.Table:
    named = [dict(zip(columns, [*row, n, time], strict=True)) for row, n in changes]
    return pa.Table.from_pylist(named, pa.schema(columns))


@effort(150)
@given(STEPS, ON, WAYS, HOW, st.booleans())
def test_each_step_and_each_read_is_the_twins(
    steps: list[Any], on: dict[str, str], way: str, how: str, spills: bool
) -> None:
    rows, held, history = twin(on, way, how), (Counter[Any](), Counter[Any]()), [Counter[Any]()]
    with tiny(), flow_of(on, way, how).open(retain=len(steps), **({"memory": MEMORY} if spills else {})) as engine:
        if spills:
            tighten(engine, 0, 2**40)
        for time, changes in enumerate(steps, 1):
            left, right = map(possible, changes, held)
            given = {"left": table(LEFT, left).drop_columns(["c"]), "right": table(RIGHT, right).drop_columns(["c"])}
            out = engine.step(given, time)
            history.append(rows(*held))
            assert put_out(out["out"]) == difference(history[-2], history[-1], time)
            assert read(engine.read("out")) == history[-1]
        engine._check_invariants()
        for time in range(1, len(steps) + 1):
            assert read(engine.read("out", as_of=time)) == history[time]


@effort(150)
@given(STEPS, ON, WAYS, HOW, st.integers(0, 4))
def test_so_it_is_at_every_time_of_one_step(steps: list[Any], on: dict[str, str], way: str, how: str, cut: int) -> None:
    rows, held, before = twin(on, way, how), (Counter[Any](), Counter[Any]()), Counter[Any]()
    expected, found = dict[Any, int](), dict[Any, int]()
    with flow_of(on, way, how, timed=True).open() as engine:
        for time, changes in enumerate(steps):
            left, right = map(possible, changes, held)
            engine.push({"left": table(LEFT, left, time), "right": table(RIGHT, right, time)})
            now = rows(*held)
            expected |= difference(before, now, time)
            before = now
            if time == cut:
                found = put_out(engine.advance_to(time + 1)["out"])
        last = engine.advance_to(dd.CLOSED)["out"]
        assert found | put_out(last) == expected
        assert read(engine.read("out")) == before
    signs = [(at, n > 0) for at, n in zip(last["_time"].to_pylist(), last["_diff"].to_pylist(), strict=True)]
    assert signs == sorted(signs)


MOMENT_TYPES: list[tuple[pa.DataType, Any]] = [
    (pa.int8(), int),
    (pa.uint64(), lambda n: n + 2**63),
    (pa.float64(), lambda n: [float("-inf"), -0.0, 1.5, 2.5, float("inf")][n]),
    (pa.decimal128(38, 2), lambda n: n * 10**30),
    (pa.date32(), lambda n: dt.date(1969, 12, 30) + dt.timedelta(n)),
    (pa.timestamp("us", "UTC"), lambda n: dt.datetime(1969, 12, 31, tzinfo=dt.UTC) + dt.timedelta(hours=n * 12)),
]


@pytest.mark.drawn(1)
@pytest.mark.parametrize("medium", ["memory", "files", "reopened"])
@pytest.mark.parametrize("way", [">=", ">", "<=", "<"])
def test_many_rows_beside_duckdb(medium: str, way: str, tmp_path: Path) -> None:
    """Trades and prices are inserted, corrected and deleted; no two prices of a name have one moment."""
    draw, store = seeded("asof", medium, way), MemoryStore()

    def flow() -> dd.Flow:
        made, gone = dd.Flow(), {"delete": dd.tombstone("gone")}
        left = made.upserts("trades", {"id": int, "k": str, "t": int, "gone": bool}, dd.Upsert("id", **gone))
        columns = {"k": str, "s": int, "price": float, "gone": bool}
        right = made.upserts("prices", columns, dd.Upsert(["k", "s"], **gone))
        made.output("out", left.asof(right, on="k", at=f"t {way} s", how="left"))
        return made

    options = {"memory": MEMORY, "spill": tmp_path} if medium == "files" else {}
    engine = flow().open(store.reopen() if medium == "reopened" else None, retain=3, **options)
    added, history = Counter[Any](), list[Any]()
    with duckdb.connect() as witness:
        witness.execute("create table trades (id bigint primary key, k text, t bigint, gone boolean)")
        witness.execute("create table prices (k text, s bigint, price double, gone boolean, primary key (k, s))")
        for time in range(6):
            if medium == "reopened" and time:
                engine.close()
                engine = flow().open(store.reopen(), retain=3)
            if medium == "files":
                tighten(engine, 0, 2**40)
            names, moments = range(1 + 40 * (time % 2)), range(300)
            trades = {i: (f"n{draw.choice(names)}", draw.choice(moments)) for i in draw.sample(range(300), 120)}
            prices = {(f"n{draw.choice(names)}", draw.choice(moments)): draw.random() for _ in range(60)}
            rows = [(id, *row, draw.random() < 0.2) for id, row in trades.items()]
            others = [(*key, price, draw.random() < 0.3) for key, price in prices.items()]
            witness.executemany("insert or replace into trades values (?, ?, ?, ?)", rows)
            witness.executemany("insert or replace into prices values (?, ?, ?, ?)", others)
            given = {
                "trades": dict(zip(["id", "k", "t", "gone"], map(list, zip(*rows, strict=True)), strict=True)),
                "prices": dict(zip(["k", "s", "price", "gone"], map(list, zip(*others, strict=True)), strict=True)),
            }
            out = engine.step(given, time)["out"]
            for *row, _, diff in zip(*(c.to_pylist() for c in out.columns), strict=True):
                added[tuple(row)] += diff
            found = witness.execute(
                "select l.id, l.k, t, s, price from (from trades where not gone) l "
                f"asof left join (from prices where not gone) r on l.k = r.k and l.t {way} r.s"
            )
            history.append(Counter(found.fetchall()))
            assert history[-1] == Counter({row: n for row, n in added.items() if n})
            assert history[-1] == read(engine.read("out"))
            for back in range(1, min(time, 3) + 1):
                assert history[-1 - back] == read(engine.read("out", as_of=time - back))
    engine._check_invariants()
    engine.close()
    if medium == "reopened":
        assert dd.fsck(store.reopen()).ok
        with dd.Snapshot.open(store) as snapshot:
            assert set(dict(recount_groups(snapshot)).values()) <= {0}
        assert read(dd.read(store, "out")) == history[-1]


@pytest.mark.parametrize(("kind", "value"), MOMENT_TYPES, ids=lambda each: str(each).split(" at ")[0])
def test_moments_of_each_type(kind: pa.DataType, value: Any) -> None:
    flow = dd.Flow()
    left, right = flow.updates("left", {"t": kind}), flow.updates("right", {"s": kind, "p": int})
    flow.output("out", left.asof(right, on=[], at="t > s", how="left"))
    moments = [value(n) for n in (0, 2, 4)]
    with flow.open() as engine:
        given = {"left": pa.table({"t": pa.array([*moments, None], kind)})}
        given["right"] = pa.table({"s": pa.array([*moments[:2], None], kind), "p": [0, 2, 9]})
        out = engine.step(given)["out"].sort_by("t")
    assert out["p"].to_pylist() == [None, 0, 2, None]


def feeds(flow: dd.Flow) -> tuple[dd.Collection, dd.Collection]:
    left = flow.updates("left", {"k": int, "t": int, "n": int}, diff="n", keep=True)
    return left, flow.updates("right", {"k": int, "t": int, "p": str, "n": int}, diff="n", keep=True)


def test_keys_and_moments_may_be_computed_and_share_their_names() -> None:
    flow = dd.Flow()
    left, right = feeds(flow)
    out = left.asof(right, on="k", at="t >= t")
    assert out is left.asof(right, on={"k": "k"}, at=" t>=`t` ", how="inner")
    assert out.schema.names == ["k", "t", "p"]
    other = right.project({"j": "k", "s": "cast(t as int)", "p": "p"})
    computed = left.asof(other, on={"k % 10": "j"}, at="t - 1 > s + 1", how="left")
    assert computed.schema.names == ["k", "t", "j", "s", "p"]
    flow.output("out", out)
    flow.output("computed", computed)
    with flow.open() as engine:
        step = {"left": {"k": [11, 1], "t": [5, 5], "n": [1, 1]}}
        engine.step(step | {"right": {"k": [1, 1], "t": [2, 4], "p": ["a", "b"], "n": [1, 1]}})
        assert read(engine.read("out")) == {(1, 5, "b"): 1}
        assert read(engine.read("computed")) == {(11, 5, 1, 2, "a"): 1, (1, 5, 1, 2, "a"): 1}
        assert engine.get is not None
        # Two partners with equal values: nothing changes.
        assert engine.step({"right": {"k": [1], "t": [5], "p": ["b"], "n": [1]}})["out"].num_rows == 0


def test_equal_joins_share_their_arrangements_and_explain_says_so() -> None:
    flow = dd.Flow()
    left, right = feeds(flow)
    flow.output("out", left.asof(right, on="k", at="t >= t"))
    flow.output("padded", left.asof(right, on="k", at="t >= t", how="left"))
    flow.output("every", left.asof(right.project({"s": "t", "q": "p"}), on=[], at="t < s"))
    assert [node.verb for node in flow.nodes].count("arrange_in_order") == 4
    text = str(flow.explain())
    assert "asof(on={'k': 'k'}, at='t >= t', how='inner')    rows are looked up by [k] and [k]" in text
    assert "rows are looked up in one partition" in text
    with flow.open() as engine:
        engine.step({"left": {"k": [1], "t": [5], "n": [2]}, "right": {"k": [1], "t": [4], "p": ["a"], "n": [3]}})
        assert read(engine.read("out")) == read(engine.read("padded")) == {(1, 5, "a"): 2}
        held = [name for name in engine.stats()["arrangements"] if name.startswith("arrange_in_order")]
        assert len(held) == 4


def test_why_names_the_row_and_its_partner() -> None:
    flow = dd.Flow()
    left, right = feeds(flow)
    flow.output("out", left.asof(right, on="k", at="t >= t", how="left"))
    with flow.open() as engine:
        rows = {"left": {"k": [1, 1, 2], "t": [5, 9, 5], "n": [1, 1, 1]}}
        engine.step(rows | {"right": {"k": [1, 1, 1], "t": [3, 4, 8], "p": ["a", "a", "a"], "n": [1, 2, 1]}})
        graph = engine.dataflow.graph
        node = flow.outputs["out"]
        node = node if node.verb == "asof" else node.inputs[0]
        from ddflow.columns.row_match import RowMatcher

        given = [graph.read_collection(of, None) for of in node.inputs]
        wanted = pa.table({"k": [1], "t": [5], "p": ["a"], "_diff": [1]})
        found = node.find_contributing_rows(wanted, given, RowMatcher(graph.secret))
        assert [read(each) for each in found] == [{(1, 5): 1}, {(1, 4, "a"): 2}]


@pytest.mark.parametrize("side", ["left", "right"])
def test_below_zero_at_the_end_of_a_time_is_refused(side: str) -> None:
    flow = dd.Flow()
    left, right = feeds(flow)
    flow.output("out", left.asof(right, on="k", at="t >= t"))
    one: dict[str, list[Any]] = {"k": [7, 7], "t": [5, None]} | ({"p": ["a", "a"]} if side == "right" else {})
    with flow.open() as engine:
        for at in (0, 1):
            alone = {name: values[at : at + 1] for name, values in one.items()}
            with raises(NegativeMultiplicity):
                engine.step({side: alone | {"n": [-1]}})
            none = {name: [None] if name == "k" else values for name, values in alone.items()}
            with raises(NegativeMultiplicity):
                engine.step({side: none | {"n": [-1]}})
        with raises(NegativeMultiplicity):
            engine.step({side: one | {"n": [-1, 1]}})
        engine.step({side: {name: values[:1] * 2 for name, values in one.items()} | {"n": [-1, 2]}})
        with raises(NegativeMultiplicity):
            engine.step({side: {name: values[:1] for name, values in one.items()} | {"n": [-2]}})


def test_a_new_one_on_an_old_state_is_computed_from_its_rows() -> None:
    store, flow = MemoryStore(), dd.Flow()
    left, right = feeds(flow)
    flow.output("all", left)
    flow.output("others", right)
    with flow.open(store.reopen()) as engine:
        engine.step({"left": {"k": [7], "t": [5], "n": [2]}, "right": {"k": [7], "t": [5], "p": ["a"], "n": [1]}})
    flow.output("out", left.asof(right, on="k", at="t >= t"))
    with flow.open(store.reopen()) as engine:
        assert read(engine.read("out")) == {(7, 5, "a"): 2}
        engine.step({})
        out = engine.step({"right": {"k": [7], "t": [5], "p": ["A"], "n": [1]}})["out"]
        assert sorted((row["p"], row["_diff"]) for row in out.to_pylist()) == [("A", 2), ("a", -2)]
    assert dd.fsck(store.reopen()).ok


def test_wider_moments_are_the_same_and_other_orders_are_refused(tmp_path: Path) -> None:
    def flow(moment: Any, price: Any) -> dd.Flow:
        made = dd.Flow()
        left = made.upserts("left", {"id": int, "t": pa.int64()}, dd.Upsert("id"))
        right = made.upserts("right", {"id": int, "s": moment, "p": price}, dd.Upsert("id"))
        right = right.project(["s", "p"])
        made.output("out", left.asof(right, on=[], at="t >= s"))
        return made

    with flow(pa.int16(), pa.int32()).open(tmp_path) as engine:
        right = {"id": [1, 2, 3], "s": [-5, 5, 5], "p": [1, 10, 9]}
        engine.step({"left": {"id": [1], "t": [7]}, "right": right})
        engine.evolve({"right": {"id": int, "s": pa.int64(), "p": pa.int64()}})
        assert read(engine.read("out")) == {(1, 7, 5, 9): 1}
        engine.step({"left": {"id": [2], "t": [2**40]}, "right": {"id": [4], "s": [2**40], "p": [2**40]}})
        assert read(engine.read("out")) == {(1, 7, 5, 9): 1, (2, 2**40, 2**40, 2**40): 1}
        engine._check_invariants()
        with raises(PlanChanged):
            engine.evolve({"right": {"id": int, "s": pa.int64(), "p": pa.string()}})
    with flow(pa.int64(), pa.int64()).open(tmp_path) as engine:
        engine.step({"right": {"id": [3], "s": [6], "p": [9]}})
        assert read(engine.read("out")) == {(1, 7, 6, 9): 1, (2, 2**40, 2**40, 2**40): 1}
    assert dd.fsck(tmp_path).ok


def test_its_json_makes_the_same() -> None:
    flow = dd.Flow()
    left, right = feeds(flow)
    other = right.project({"j": "k", "s": "t", "p": "p"})
    flow.output("one", left.asof(right, on="k", at="t >= t"))
    out = left.asof(other, on={"k": "j"}, at="t < s", how="left")
    flow.output("two", out)
    again = rebuild_plan(describe_plan(flow))
    assert describe_plan(again) == describe_plan(flow) and again.outputs["two"].schema == out.schema
    said = format_node(describe_plan(flow), compute_node_id(out), "this plan")
    assert "asof(" in said and "at='t < s', how='left'" in said
    assert out.positive and out.consolidated and not flow.outputs["one"].consolidated
    for broken in (7, ["t", "<"], ["t", "=", "s"], ["x", "<", "s"], ["t", "<", "x"]):
        described = describe_plan(flow)
        described["collections"][compute_node_id(out)]["at"] = broken
        with pytest.raises((CorruptState, SpecError)):
            rebuild_plan(described)


def test_refusals() -> None:
    flow = dd.Flow()
    kinds = {"k": int, "t": int, "s": str, "l": pa.list_(pa.int64()), "f": float, "u": pa.uint64()}
    left = flow.updates("left", kinds)
    right = flow.updates("right", {f"r_{name}": kind for name, kind in kinds.items()})
    other = dd.Flow().updates("other", {"k": int, "r_t": int})
    for at in (
        "s >= r_s",
        "l >= r_l",
        "t >= r_f",
        "t >= r_u",
        "t = r_t",
        "t >= r_t > r_k",
        "t",
        7,
        "x >= r_t",
        "r_t <= t",
    ):
        with raises(SpecError):
            left.asof(right, on={"k": "r_k"}, at=at)  # type: ignore[arg-type]
    with raises(SpecError):
        left.asof(right, on={"k": "r_k"}, at="t >= r_t", how="full")  # type: ignore[arg-type]
    with raises(SpecError):
        left.asof(other, on="k", at="t >= r_t")
    with raises(SpecError):
        left.asof(right, on={"k": "r_s"}, at="t >= r_t")
    with raises(SpecError):
        left.asof(right.project({"k": "r_k", "j": "r_k", "r_t": "r_t"}), on={"t": "j"}, at="t >= r_t")
