"""Test lookups beside the twin and DuckDB's ASOF join; their state and sharing; and every refusal with its text.

Rows appear, disappear and return, several times within a step. ``test_operators`` tests the laws of operators.
"""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pytest
from chance import effort, seeded
from hypothesis import given, strategies as st
from messages import raises
from model import LookedUp, difference
from rules import Refused
from test_top import possible, put_out, read
from tight import MEMORY, tighten, tiny

import ddflow as dd
from ddflow.errors import CorruptState, NegativeMultiplicity, NotUnique
from ddflow.plan.text.codec import compute_node_id, describe_plan, format_node, rebuild_plan
from ddflow.storage.memory import MemoryStore
from ddflow.tools.verify import recount_groups

LEFT = {"k": pa.int32(), "v": pa.int64(), "d": pa.int64(), "t": pa.int64()}
RIGHT = {"k": pa.int64(), "name": pa.string(), "d": pa.int64(), "t": pa.int64()}
KEYS, NAMES = st.sampled_from([1, 2, 3, None]), st.sampled_from(["a", "b", None])
COMES = st.lists(st.tuples(st.tuples(KEYS, st.integers(0, 2)), st.sampled_from([1, 1, 2, -1, -2])), max_size=8)
NAMED = st.lists(st.tuples(st.integers(1, 3), st.one_of(NAMES, st.just("gone"))), max_size=4, unique_by=lambda r: r[0])
ROWS = st.lists(st.tuples(st.tuples(KEYS, NAMES), st.sampled_from([1, 1, -1, -1])), max_size=4)
STEPS = st.lists(st.tuples(COMES, NAMED), min_size=1, max_size=5)
HOW = st.sampled_from(["left", "inner"])


def flow_of(how: str, keyed: bool = True, timed: bool = False) -> dd.Flow:
    """The right: upserts by the key, or differences of which a key may have several rows."""
    flow, at = dd.Flow(), {"time": "t"} if timed else {}
    columns = {name: kind for name, kind in LEFT.items() if timed or name != "t"}
    left = flow.updates("left", columns, diff="d", keep=True, **at).project(["k", "v"])
    columns = {name: kind for name, kind in RIGHT.items() if timed or name != "t"}
    if keyed:
        spec = dd.Upsert("k", delete="name = 'gone'", value=["name"], **at)
        right = flow.upserts("right", columns, spec)
    else:
        right = flow.updates("right", columns, diff="d", keep=True, **at).project(["k", "name"])
    flow.output("out", left.lookup(right, on="k", how=how))
    return flow


def table(columns: dict[str, Any], changes: list[tuple[tuple[Any, ...], int]], time: int = 0) -> pa.Table:
    named = [dict(zip(columns, [*row, n, time], strict=True)) for row, n in changes]
    return pa.Table.from_pylist(named, pa.schema(columns))


def untimed(made: pa.Table) -> pa.Table:
    return made.drop_columns(["t"])


def twin(how: str) -> LookedUp:
    return LookedUp((lambda row: row[:1], lambda row: row[:1]), lambda row: row[1:], how == "inner", (None,))


def renamed(changes: list[tuple[int, Any]], held: dict[int, Any]) -> Counter[Any]:
    """What the right holds after some upserts."""
    for key, name in changes:
        held.pop(key, None)
        if name != "gone":
            held[key] = name
    return Counter(held.items())


@effort(120)
@given(STEPS, HOW, st.booleans())
def test_each_step_and_each_read_is_the_twins(steps: list[Any], how: str, spills: bool) -> None:
    expected, held, names, history = twin(how), Counter[Any](), dict[int, Any](), [Counter[Any]()]
    with tiny(), flow_of(how).open(retain=len(steps), **({"memory": MEMORY} if spills else {})) as engine:
        if spills:
            tighten(engine, 0, 2**40)
        for time, (comes, named) in enumerate(steps, 1):
            rows = {"left": table(LEFT, possible(comes, held)), "right": table(RIGHT, [(row, 0) for row in named])}
            out = engine.step({name: untimed(made) for name, made in rows.items()}, time)
            history.append(expected.at(Counter(held), renamed(named, names)))
            assert put_out(out["out"]) == difference(history[-2], history[-1], time)
            assert read(engine.read("out")) == history[-1]
        engine._check_invariants()
        for time in range(1, len(steps) + 1):
            assert read(engine.read("out", as_of=time)) == history[time]


@effort(80)
@given(STEPS, HOW, st.integers(0, 4))
def test_so_it_is_at_every_time_of_one_step(steps: list[Any], how: str, cut: int) -> None:
    expected, held, names, found, before = twin(how), Counter[Any](), dict[int, Any](), dict[Any, int](), Counter[Any]()
    told = dict[Any, int]()
    with flow_of(how, timed=True).open() as engine:
        for time, (comes, named) in enumerate(steps):
            rows = {
                "left": table(LEFT, possible(comes, held), time),
                "right": table(RIGHT, [(row, 0) for row in named], time),
            }
            engine.push(rows)
            now = expected.at(Counter(held), renamed(named, names))
            found |= difference(before, now, time)
            before = now
            if time == cut:
                told = put_out(engine.advance_to(time + 1)["out"])
        last = engine.advance_to(dd.CLOSED)["out"]
        assert told | put_out(last) == found
        assert read(engine.read("out")) == before
    signs = [(at, n > 0) for at, n in zip(last["_time"].to_pylist(), last["_diff"].to_pylist(), strict=True)]
    assert signs == sorted(signs)


@effort(100)
@given(st.lists(st.tuples(COMES, ROWS), min_size=1, max_size=5), HOW, st.booleans())
def test_where_a_key_has_several_rows_a_step_that_finds_them_is_refused(
    steps: list[Any], how: str, timed: bool
) -> None:
    """And one that does not is not."""
    expected, left, right, before = twin(how), Counter[Any](), Counter[Any](), Counter[Any]()
    with flow_of(how, keyed=False, timed=timed).open() as engine:
        for time, (comes, rows) in enumerate(steps, 1):
            held = Counter(left), Counter(right)
            given = {"left": table(LEFT, possible(comes, held[0]), time)}
            given["right"] = table(RIGHT, possible(rows, held[1]), time)
            try:
                now = expected.at(Counter(held[0]), Counter(held[1]))
            except Refused:
                with pytest.raises(NotUnique, match=r"finds several rows of its key \['k'\]"):
                    step(engine, given, time, timed)
                assert read(engine.read("out")) == before
                if timed:
                    return  # the rows wait, and are refused again
                continue
            assert put_out(step(engine, given, time, timed)) == difference(before, now, time)
            (left, right), before = held, now
        engine._check_invariants()


def step(engine: dd.Engine, given: dict[str, pa.Table], time: int, timed: bool) -> pa.Table:
    if not timed:
        return engine.step({name: untimed(made) for name, made in given.items()}, time)["out"]
    engine.push(given)
    return engine.advance_to(time + 1)["out"]


@pytest.mark.drawn(1)
@pytest.mark.parametrize("medium", ["memory", "files", "reopened"])
def test_events_of_many_keys_beside_duckdb(medium: str, tmp_path: Path) -> None:
    """Each row is given what its key was called when it came: an ASOF join of both logs."""
    draw, store = seeded("lookup", medium), MemoryStore()

    def flow() -> dd.Flow:
        made = dd.Flow()
        left = made.upserts("events", {"id": int, "k": str, "gone": bool}, dd.Upsert("id", delete=dd.tombstone("gone")))
        right = made.upserts(
            "names", {"k": str, "name": str, "gone": bool}, dd.Upsert("k", delete=dd.tombstone("gone"))
        )
        made.output("out", left.lookup(right.project({"of": "k", "name": "name"}), on={"k": "of"}))
        return made

    options = {"memory": MEMORY, "spill": tmp_path} if medium == "files" else {}
    engine = flow().open(store.reopen() if medium == "reopened" else None, retain=3, **options)
    added, history = Counter[Any](), list[Any]()
    with duckdb.connect() as witness:
        witness.execute("create table events (id bigint, k text, born int, dies int)")
        witness.execute("create table names (k text, name text, gone boolean, day int)")
        for time in range(8):
            if medium == "reopened" and time:
                engine.close()
                engine = flow().open(store.reopen(), retain=3)
            if medium == "files":
                tighten(engine, 0, 2**40)
            new = [(100 * time + i, f"key {draw.randrange(40)}") for i in range(100)]
            old = draw.sample(range(100 * time), 30) if time else []
            names = {f"key {draw.randrange(40)}": (draw.choice("abc"), draw.random() < 0.3) for _ in range(15)}
            witness.executemany("insert into events values (?, ?, ?, null)", [(*row, time) for row in new])
            witness.executemany(
                "update events set dies = ? where dies is null and id = ?", [(time, id) for id in old or [-1]]
            )
            witness.executemany("insert into names values (?, ?, ?, ?)", [(k, *row, time) for k, row in names.items()])
            events = [*((id, k, False) for id, k in new), *((id, "", True) for id in old)]
            out = engine.step(
                {
                    "events": dict(zip(["id", "k", "gone"], map(list, zip(*events, strict=True)), strict=True)),
                    "names": {
                        "k": list(names),
                        "name": [name for name, _ in names.values()],
                        "gone": [gone for _, gone in names.values()],
                    },
                },
                time,
            )["out"]
            for *row, _, diff in zip(*(c.to_pylist() for c in out.columns), strict=True):
                added[tuple(row)] += diff
            found = witness.execute(
                "select id, e.k, case when gone then null else n.k end, case when gone then null else name end "
                "from events e asof left join names n on e.k = n.k and e.born >= n.day where dies is null"
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


def bids(right: dict[str, Any] | None = None, **options: Any) -> tuple[dd.Flow, dd.Collection, dd.Collection]:
    flow = dd.Flow()
    left = flow.updates("bids", {"auction": int, "price": int, "n": int}, diff="n", keep=True)
    names = flow.upserts("names", right or {"auction": int, "name": str}, dd.Upsert("auction", **options))
    return flow, left, names


def rows_of(**columns: list[Any]) -> dict[str, list[Any]]:
    return columns


def test_what_was_found_stays_and_is_taken_back_as_it_was_given() -> None:
    flow, left, names = bids()
    flow.output("out", left.lookup(names, on="auction"))
    with flow.open() as engine:

        def step(**given: Any) -> list[Any]:
            out = engine.step(given)["out"]
            return sorted((row["name"] or "", row["_diff"]) for row in out.to_pylist())

        assert step(bids=rows_of(auction=[7], price=[5], n=[1])) == [("", 1)]
        assert step(names=rows_of(auction=[7], name=["oz"])) == []
        # One more of the same is given what the first one was.
        assert step(bids=rows_of(auction=[7], price=[5], n=[2])) == [("", 2)]
        assert step(bids=rows_of(auction=[7], price=[6], n=[1])) == [("oz", 1)]
        assert step(names=rows_of(auction=[7], name=["ox"])) == []
        assert step(bids=rows_of(auction=[7, 7], price=[6, 5], n=[-1, -1])) == [("", -1), ("oz", -1)]
        # What left and comes again finds what is there now.
        assert step(bids=rows_of(auction=[7, 7], price=[6, 5], n=[1, -2])) == [("", -2), ("ox", 1)]
        assert read(engine.read("out")) == {(7, 6, "ox"): 1}


def test_the_right_is_looked_up_where_it_is() -> None:
    flow, left, names = bids()
    flow.output("out", left.lookup(names, on="auction"))
    flow.output(
        "cheap", left.filter("price < 9").lookup(names.project({"a": "auction", "name": "name"}), {"auction": "a"})
    )
    flow.output("priced", names.lookup(left.project({"price": "price", "auction": "auction"}), on="auction"))
    assert left.lookup(names, on="auction") is flow.outputs["out"]
    assert "rows are looked up by [auction]; rows move to their [auction]; kept by [auction]" in flow.explain()
    with flow.open() as engine:
        engine.step({"bids": {"auction": [7], "price": [5], "n": [1]}, "names": {"auction": [7], "name": ["oz"]}})
        held = list(engine.stats()["arrangements"])
        assert [name for name in held if name.startswith("arrange")] == ["arrange 0 by ['auction']"]
        assert [name.split(" by")[0] for name in held if name.startswith("lookup")] == [
            "lookup 0",
            "lookup 1",
            "lookup 2",
        ]
        assert read(engine.read("priced")) == {(7, "oz", 5): 1}


def test_keys_may_be_several_of_other_names_and_computed() -> None:
    flow = dd.Flow()
    left = flow.updates("left", {"a": pa.int16(), "b": str, "x": int})
    right = flow.updates("right", {"one": pa.int64(), "b": str, "low": str})
    out = left.lookup(right, on={"a": "one", "b": "b"})
    flow.output("out", out)
    flow.output("computed", left.project(["a", "x"]).lookup(right, on={"a + 1": "one - 1"}, how="inner"))
    flow.output("all", left.project(["x"]).lookup(right.project({"n": "one"}), on=[]))
    assert out.schema.names == ["a", "b", "x", "one", "low"]
    with flow.open() as engine:
        engine.step(
            {
                "left": pa.table({"a": pa.array([1, 5], pa.int16()), "b": ["x", "y"], "x": [10, 20]}),
                "right": {"one": [1], "b": ["x"], "low": ["l"]},
            }
        )
        assert read(engine.read("out")) == {(1, "x", 10, 1, "l"): 1, (5, "y", 20, None, None): 1}
        assert read(engine.read("computed")) == {}
        assert read(engine.read("all")) == {(10, 1): 1, (20, 1): 1}
        engine.step({"left": pa.table({"a": pa.array([-1], pa.int16()), "b": ["x"], "x": [30]})})
        assert read(engine.read("computed")) == {(-1, 30, 1, "x", "l"): 1}


def test_a_late_row_finds_what_is_there_at_the_frontier() -> None:
    flow = dd.Flow()
    left = flow.updates("left", {"k": int, "v": int, "t": int}, time="t", late="advance")
    right = flow.upserts("right", {"k": int, "name": str, "t": int}, dd.Upsert("k", time="t", value=["name"]))
    flow.output("out", left.lookup(right, on="k"))
    with flow.open() as engine:
        engine.push({"right": {"k": [1, 1, 1], "name": ["a", "b", "c"], "t": [0, 10, 20]}})
        engine.push({"left": {"k": [1, 1], "v": [1, 2], "t": [5, 10]}})
        assert [row["name"] for row in engine.advance_to(15)["out"].to_pylist()] == ["a", "b"]
        engine.push({"left": {"k": [1, 1], "v": [3, 4], "t": [5, 20]}})
        assert [(row["v"], row["name"], row["_time"]) for row in engine.advance_to(30)["out"].to_pylist()] == [
            (3, "b", 15),
            (4, "c", 20),
        ]


def test_below_zero_at_the_end_of_a_time_is_refused() -> None:
    flow, left, names = bids()
    flow.output("out", left.lookup(names, on="auction"))
    with flow.open() as engine:
        with raises(NegativeMultiplicity):
            engine.step({"bids": {"auction": [7], "price": [5], "n": [-1]}})
        engine.step({"bids": {"auction": [7, 7], "price": [5, 5], "n": [-1, 2]}})
        assert read(engine.read("out")) == {(7, 5, None): 1}


def test_a_new_one_on_an_old_state_looks_up_as_of_now() -> None:
    store, (flow, left, names) = MemoryStore(), bids()
    flow.output("all", left)
    flow.output("names", names)
    with flow.open(store.reopen()) as engine:
        engine.step({"bids": {"auction": [7], "price": [5], "n": [2]}})
        engine.step({"names": {"auction": [7], "name": ["oz"]}})
        engine.step({"names": {"auction": [7], "name": ["ox"]}})
    flow.output("out", left.lookup(names, on="auction"))
    flow.output("arranged", left.lookup(names.project({"name": "name", "a": "auction + 0"}), on={"auction": "a"}))
    with flow.open(store.reopen()) as engine:
        assert read(engine.read("out")) == {(7, 5, "ox"): 2}
        assert read(engine.read("arranged")) == {(7, 5, "ox", 7): 2}
        out = engine.step({"names": {"auction": [7], "name": ["oy"]}, "bids": {"auction": [7], "price": [6], "n": [1]}})
        assert {row["name"] for row in out["out"].to_pylist() if row["_time"] == engine.last and row["price"] == 6} == {
            "oy"
        }
        assert read(engine.read("out")) == {(7, 5, "ox"): 2, (7, 6, "oy"): 1}


def test_columns_of_the_right_that_are_new_or_wider_are_shown() -> None:
    flow, left, names = bids({"auction": pa.int64(), "size": pa.int32(), "day": pa.date32()})
    flow.output("out", left.lookup(names, on="auction"))
    store = MemoryStore()
    with flow.open(store.reopen()) as engine:
        engine.step({"bids": {"auction": [7], "price": [5], "n": [1]}})
        day = pa.table({"auction": [7], "size": pa.array([1], pa.int32()), "day": pa.array([0], pa.date32())})
        engine.step({"names": day, "bids": {"auction": [7], "price": [6], "n": [1]}})
        engine.evolve({"names": {"size": pa.int64(), "new": pa.string()}})
        engine.step(
            {
                "names": day.set_column(1, "size", pa.array([2**40])).append_column("new", pa.array(["x"])),
                "bids": {"auction": [7], "price": [7], "n": [1]},
            }
        )
        found = {(row["price"], row["size"], row["new"]) for row in engine.read("out").to_pylist()}
        assert found == {(5, None, None), (6, 1, None), (7, 2**40, "x")}
        engine._check_invariants()


def test_its_json_makes_it_again() -> None:
    flow, left, names = bids()
    out = left.lookup(names.project({"a": "auction", "name": "name"}), on={"auction": "a"}, how="inner")
    flow.output("out", out)
    flow.output("two", left.lookup(names.project({"z": "auction", "b": "name", "a": "name"}), on={"auction": "z"}))
    again = rebuild_plan(json.loads(json.dumps(describe_plan(flow), sort_keys=True)))
    assert again.outputs["two"].schema == flow.outputs["two"].schema
    assert describe_plan(again) == describe_plan(flow) and again.outputs["out"].schema == out.schema
    node, _ = [node for node in flow.nodes if node.verb == "lookup"]
    said = format_node(describe_plan(flow), compute_node_id(node), "this plan")
    assert said == "bids.lookup(names, on={'auction': 'auction'}, how='inner')"
    assert out.unique is False and out.positive
    broken = describe_plan(flow)
    broken["collections"][compute_node_id(node)]["how"] = 7
    with raises(CorruptState):
        rebuild_plan(broken)


@pytest.mark.parametrize(
    ("told", "words"),
    [
        ({"on": {"auktion": "a"}}, "lookup: there is no column 'auktion'; did you mean 'auction'"),
        ({"on": {"price": "name"}}, "lookup: 'price' is int64 and 'name' is string, which do not compare without loss"),
        ({"on": {"price": "a"}}, r"lookup: both sides have the columns \['price'\], which are not joined"),
        ({"how": "right"}, "lookup: how= is 'right'; use 'left' or 'inner'"),
        ({"on": 7}, "lookup: on= is 7; pass column names as text"),
    ],
)
def test_what_is_wrong_is_named(told: dict[str, Any], words: str) -> None:
    _, left, names = bids()
    right = names.project({"a": "auction", "name": "name", "price": "1"})
    right = right if "price" in words and "both" in words else right.project(["a", "name"])
    with pytest.raises(dd.errors.SpecError, match=words):
        left.lookup(right, **({"on": {"auction": "a"}} | told))


def test_other_flows_and_rows_that_are_forgotten_are_refused() -> None:
    flow, left, _ = bids()
    with raises(dd.errors.SpecError):
        left.lookup(bids()[2], on="auction")
    spec = dd.Upsert("auction", order_by="at", expiry=dd.Expiry(ttl=3, on_expire="forget"))
    forgets = flow.upserts("more", {"auction": int, "at": int}, spec)
    with raises(dd.errors.SpecError):
        left.lookup(forgets, on="auction")
