"""Test inputs of differences beside a twin in dicts, in every mode of a flow, and every refusal with its text."""

from __future__ import annotations

import json
import random
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from chance import effort
from hypothesis import given, strategies as st
from messages import raises
from model import Collection, Feed, Node, difference, without_zeros
from parts_by_hand import Hands
from tight import tighten

import ddflow as dd
from ddflow.errors import CountOverflow, ExpressionError, LateEvent, NotReadable, PlanChanged, SchemaMismatch, SpecError
from ddflow.partitions.rescale import rescale
from ddflow.plan.text.codec import describe_plan, rebuild_plan
from ddflow.storage.memory import MemoryStore

SCHEMA = pa.schema({"city": pa.string(), "n": pa.int64(), "d": pa.int32(), "at": pa.int64()})
ROW = st.tuples(st.sampled_from(["Bern", "Basel", None]), st.sampled_from([0, 1, None]), st.integers(-2, 2))
STEPS = st.lists(st.lists(ROW, max_size=7), min_size=1, max_size=5)
Rows = list[dict[str, Any]]


def rows_of(step: list[tuple[Any, ...]]) -> Rows:
    return [dict(zip(SCHEMA.names, (*row, *[None] * (4 - len(row))), strict=True)) for row in step]


def table(rows: Rows, schema: pa.Schema = SCHEMA) -> pa.Table:
    return pa.Table.from_pylist(rows, schema)


def outputs(log: Any) -> dict[str, Any]:
    """Of an engine's collection, or of the twin's."""
    cities = log.project(["city"])
    return {
        "same": log,
        "cities": cities,
        "by_city": cities.count(),
        "once": log.distinct(),
        "more": cities.except_(cities.negate().concat(cities), all=True),
    }


def flow_of(**how: Any) -> dd.Flow:
    flow = dd.Flow()
    schema = SCHEMA if "time" in how else SCHEMA.remove(3)
    for name, made in outputs(flow.updates("log", schema, "d", **how)).items():
        flow.output(name, made)
    return flow


def twin_of(**how: Any) -> Feed:
    return Feed(("city", "n"), lambda row: row["d"], how.get("time"), how.get("late", "error"))


def summed(updates: pa.Table, into: Collection | None = None) -> Counter[Any]:
    """(row, time) of an output, with its diffs; none twice."""
    out: Counter[Any] = Counter(into or {})
    for *row, time, diff in zip(*(column.to_pylist() for column in updates.columns), strict=True):
        assert diff and (tuple(row), time) not in out
        out[tuple(row), time] = diff
    return out


def held(read: pa.Table) -> Collection:
    return Counter({tuple(row): diff for *row, diff in zip(*(c.to_pylist() for c in read.columns), strict=True)})


NODES = outputs(Node(("city", "n"), lambda state: state["log"]))


def expected(before: Collection, after: Collection, time: int) -> dict[str, Any]:
    return {name: difference(node.of({"log": before}), node.of({"log": after}), time) for name, node in NODES.items()}


@pytest.mark.parametrize("keep", [False, True])
@pytest.mark.parametrize("way", ["memory", "durable", "spilled", "budget"])
@given(steps=STEPS)
@effort(15)
def test_epochs_beside_the_twin(way: str, keep: bool, steps: Any, tmp_path_factory: pytest.TempPathFactory) -> None:
    flow, twin, store = flow_of(keep=keep), twin_of(), MemoryStore()
    options: dict[str, Any] = {"retain": len(steps)}
    if way in ("spilled", "budget"):
        options |= {"memory": "16MB"}
    if way == "spilled":
        options |= {"spill": Path(tmp_path_factory.mktemp("spill"))}
    engine = flow.open(*([store] if way in ("durable", "budget") else []), **options)
    history: list[Collection] = []
    for time, step in enumerate(steps):
        if "memory" in options:
            tighten(engine)
        out = engine.step({"log": table(rows_of(step), SCHEMA.remove(3))}, time)
        before = Counter(twin.held)
        twin.step(rows_of(step), time)
        history.append(Counter(twin.held))
        for name, updates in expected(before, twin.held, time).items():
            assert summed(out[name]) == updates, name
        assert out.verdicts.counts.get("applied", 0) == len(step) == sum(out.verdicts.counts.values())
        engine._check_invariants()
        if way in ("durable", "budget"):
            engine.close()
            engine = flow_of(keep=keep).open(store.reopen(), **options)
    for name, node in NODES.items():
        if name in ("same", "cities") and not keep:
            with pytest.raises(NotReadable, match=r"rows of the inputs \['log'\], which are not kept; pass keep=True"):
                engine.read(name)
            continue
        for time, rows in enumerate(history):
            assert held(engine.read(name, as_of=time)) == without_zeros(node.of({"log": rows}))
    if keep:
        assert held(engine.read("log")) == twin.held
        for time in range(1, len(history)):
            assert held(engine.changes("log", time - 1, time)) == {
                row: n for (row, _), n in difference(history[time - 1], history[time], time).items()
            }
    engine.close()


PUSHED = st.lists(st.lists(st.tuples(ROW, st.integers(0, 9)), max_size=7), min_size=1, max_size=5)


@pytest.mark.parametrize("late", ["drop", "advance"])
@pytest.mark.parametrize("way", ["memory", "durable", "spilled"])
@given(pushes=PUSHED, keep=st.booleans())
@effort(15)
def test_hold_back_beside_the_twin(
    late: str, way: str, pushes: Any, keep: bool, tmp_path_factory: pytest.TempPathFactory
) -> None:
    how: dict[str, Any] = {"time": "at", "late": late, "lateness": 3, "keep": keep}
    flow, twin, store = flow_of(**how), twin_of(**how), MemoryStore()
    spill = {"memory": "16MB", "spill": Path(tmp_path_factory.mktemp("spill"))} if way == "spilled" else {}
    engine = flow.open(*([store] if way == "durable" else []), **spill)
    verdicts: Counter[str] = Counter()
    got: dict[str, Counter[Any]] = {name: Counter() for name in NODES}
    wanted: dict[str, dict[Any, int]] = {name: {} for name in NODES}
    for push in [*pushes, None]:
        if way == "spilled":
            tighten(engine)
        if push is None:
            out, closed = engine.advance_to(dd.CLOSED), twin.advance(dd.CLOSED)
        else:
            rows = rows_of([(*row, at) for row, at in push])
            out = engine.push({"log": table(rows)})
            twin.take(rows)
            closed = twin.advance(max(twin.frontier, twin.greatest - 3 if twin.greatest is not None else twin.frontier))
        for time, before, after in closed:
            for name, updates in expected(before, after, time).items():
                wanted[name] |= updates
        for name in NODES:
            got[name] = summed(out[name], got[name])
        verdicts.update(out.verdicts.counts)
        engine._check_invariants()
        if way == "durable":
            engine.close()
            engine = flow_of(**how).open(store.reopen())
    assert {name: dict(rows) for name, rows in got.items()} == wanted
    assert +verdicts == +twin.verdicts
    if keep:
        assert held(engine.read("log")) == twin.held
    engine.close()


@pytest.mark.drawn(2)
@pytest.mark.parametrize("partitions", [1, 2, 7])
@given(steps=STEPS, keep=st.booleans(), seed=st.integers(0, 99))
@effort(5)
def test_partitions_beside_the_twin(partitions: int, steps: Any, keep: bool, seed: int) -> None:
    twin, store = twin_of(), MemoryStore()
    hands = Hands(flow_of(keep=keep), store, partitions, random.Random(seed))
    for step in steps:
        before = Counter(twin.held)
        out = hands.epoch({"log": table(rows_of(step), SCHEMA.remove(3))})[1]
        twin.step(rows_of(step), hands.start.time)
        for name, updates in expected(before, twin.held, hands.start.time).items():
            assert summed(out[name]) == updates, name
    hands.close()
    rescale(store.reopen(), 3 if partitions != 3 else 2)
    assert dd.fsck(store).ok
    rescale(store.reopen(), 1)
    with flow_of(keep=keep).open(store.reopen()) as engine:
        assert held(engine.read("once")) == without_zeros(NODES["once"].of({"log": twin.held}))
        if keep:
            assert held(engine.read("log")) == twin.held


def test_the_change_feed_of_a_table() -> None:
    flow = dd.Flow()
    feed = {"id": int, "_change_type": str, "_commit_version": int, "_commit_timestamp": pa.timestamp("us")}
    log = flow.output("log", flow.updates("log", feed, dd.delta_cdf, time="_commit_version", keep=True))
    assert log.schema.names == ["id"]
    named = dd.Flow().updates("log", feed, dd.delta_cdf, value=["id", "_commit_version"])
    assert named.schema.names == ["id", "_commit_version"]
    assert "diff={'feed': 'delta_cdf'}, time='_commit_version', keep=True" in flow.explain()
    with flow.open() as engine:
        kinds = ["insert", "update_preimage", "update_postimage", "delete"]
        engine.push({"id": [1, 1, 2, 2], "_change_type": kinds, "_commit_version": [1, 2, 2, 3]})
        out = engine.advance_to(dd.CLOSED)["log"]
        with pytest.raises(LateEvent):
            engine.push({"id": [1], "_change_type": ["insert"], "_commit_version": [1]})
    assert sorted(out.to_pylist(), key=lambda row: (row["_time"], row["_diff"])) == [
        {"id": 1, "_time": 1, "_diff": 1},
        {"id": 1, "_time": 2, "_diff": -1},
        {"id": 2, "_time": 2, "_diff": 1},
        {"id": 2, "_time": 3, "_diff": -1},
    ]
    other = dd.Flow()
    other.output("log", other.updates("log", {"id": int, "_change_type": str}, dd.delta_cdf))
    with (
        other.open() as engine,
        raises(SchemaMismatch),
    ):
        engine.step({"id": [1, 2], "_change_type": ["insert", "truncate"]})


def test_without_a_diff_every_row_counts_once_and_nulls_are_refused_or_dropped() -> None:
    flow = dd.Flow()
    flow.output("log", flow.updates("log", {"v": str}))
    with flow.open() as engine:
        assert dict(summed(engine.step({"v": ["a", None, "a"]})["log"])) == {(("a",), 1): 2, ((None,), 1): 1}
    rows = {"city": ["a", "b", "c"], "n": [1, 2, 3], "d": [1, None, 0]}
    with flow_of().open() as engine:
        with raises(SchemaMismatch):
            engine.step(rows, 1)
        assert sum(engine.verdicts.counts.values()) == 0
    with flow_of(null_key="drop").open(verdicts="rows") as engine:
        step = engine.step(rows, 1)
        assert step.verdicts.counts["bad"] == 1 and step.verdicts.counts["applied"] == 2
        told = step.verdicts.rows["log"].to_pylist()
        assert [(row["_arrival"], row["city"], row["verdict"]) for row in told] == [
            (1, "b", "bad"),
            (0, "a", "applied"),
            (2, "c", "applied"),
        ]
        assert step["same"].num_rows == 1


def test_both_kinds_of_inputs_stand_in_one_flow() -> None:
    flow = dd.Flow()
    people = flow.upserts("people", {"city": str, "id": int}, dd.Upsert("id")).project(["city"])
    log = flow.updates("log", {"city": str, "d": int}, "d * 2")
    flow.output("more", people.except_(log.project(["city"]), all=True))
    with flow.open() as engine:
        engine.step({"people": {"id": [1, 2, 3], "city": ["Bern"] * 3}, "log": {"city": ["Bern"], "d": [1]}}, 1)
        assert engine.read("more").to_pylist() == [{"city": "Bern", "_diff": 1}]
        assert "log" not in engine.stats()["arrangements"]
    with raises(SpecError):
        flow.updates("timed", {"at": int, "v": int}, time="at")


def test_what_is_not_kept_is_gone_for_new_outputs() -> None:
    store = MemoryStore()
    with flow_of().open(store) as engine:
        engine.step({"log": table(rows_of([("Bern", 1, 2)]), SCHEMA.remove(3))}, 1)
    for make in (lambda log: log.filter("n > 0"), lambda log: log.project(["n"]).count()):
        flow = flow_of()
        flow.output("new", make(flow.inputs["log"]))
        with raises(PlanChanged):
            flow.open(store.reopen())
    flow = flow_of()
    flow.output("of_kept", flow.outputs["by_city"].filter("count > 0"))
    flow.output("fresh", flow.updates("other", {"v": str}).count())
    with flow.open(store.reopen()) as engine:  # an input that is new has held nothing
        assert engine.step({"other": {"v": ["a"]}}, 2)["fresh"].num_rows == 1
    with raises(PlanChanged):
        flow_of(keep=True).open(store.reopen())
    upserted = dd.Flow()
    upserted.output("same", upserted.upserts("log", SCHEMA.remove(3), dd.Upsert("city")))
    with raises(PlanChanged):
        upserted.open(store.reopen())


def test_a_new_output_over_what_is_kept_is_told_what_there_is() -> None:
    store = MemoryStore()
    with flow_of(keep=True).open(store) as engine:
        engine.step({"log": table(rows_of([("Bern", 1, 2), ("Basel", 0, -1)]), SCHEMA.remove(3))}, 1)
    flow = flow_of(keep=True)
    flow.output("new", flow.inputs["log"].filter("n > 0"))
    with flow.open(store.reopen()) as engine:
        assert engine.step({}, 2)["new"].to_pylist() == [{"city": "Bern", "n": 1, "_time": 1, "_diff": 2}]


def test_verbs_of_keys_are_refused() -> None:
    store = MemoryStore()
    with flow_of(keep=True).open(store) as engine:
        rows = table(rows_of([("Bern", 1, 2)]), SCHEMA.remove(3))
        engine.step(rows, 1)
        for verb in (engine.replace, engine.restate):
            with raises(SpecError):
                verb("log", rows, 2)
        with raises(NotReadable):
            engine.why("log", "Bern")
        with raises(NotReadable):
            engine.scd2("log")
        engine.step(rows, 2)
        engine.compact(forget=True)
    assert dd.fsck(store).ok


@pytest.mark.parametrize("timed", [False, True])
def test_what_is_kept_is_compared_with_the_log(timed: bool) -> None:
    store, how = MemoryStore(), {"time": "at", "null_key": "drop"} if timed else {}
    given = [("Bern", 1, 2, 1), ("Basel", 0, -1, 2), ("Basel", 0, 1, 8), ("Chur", 0, 1, 9)][: 4 if timed else 2]
    log = table(rows_of(given))
    log = log if timed else log.drop_columns(["at"])
    with flow_of(keep=True, **how).open(store) as engine:
        engine.push(log) if timed else engine.step(log, 1)
        if timed:
            engine.advance_to(5)
    found = dd.verify(store, {"log": log})
    assert found.ok and found.inputs["log"].rows == 2 and not any(found.operators.values())
    found = dd.verify(store, {"log": log.slice(1)})
    assert not found.ok and found.inputs["log"].extra == 1
    found = dd.verify(store, {"log": pa.concat_tables([log, log.slice(0, 1)])})
    assert (
        "different (city='Bern', n=1): the state has (city='Bern', n=1, _times=2), the log" in found.inputs["log"].text
    )
    other = MemoryStore()
    with flow_of().open(other) as engine:
        engine.step(table(rows_of(given[:1])).drop_columns(["at"]), 1)
    with raises(NotReadable):
        dd.verify(other, {"log": log})


def test_columns_are_added_and_become_wider() -> None:
    store = MemoryStore()
    narrow = pa.schema({"city": pa.string(), "n": pa.int32()})
    for keep in (False, True):
        store, flow = MemoryStore(), dd.Flow()
        flow.output("n", flow.updates("log", narrow, keep=keep).count("n"))
        with flow.open(store) as engine:
            engine.step({"city": ["Bern"], "n": [1]}, 1)
            engine.evolve({"n": pa.int64(), "more": pa.string()})
            engine.step({"city": ["Bern", "Bern"], "n": [1, 1], "more": [None, "x"]}, 2)
            engine._check_invariants()
            there = held(engine.read("log")) if keep else None
        again = dd.Flow()
        wide = {"city": str, "n": int, "more": str, "last": int}
        again.output("n", again.updates("log", wide, keep=keep).count("n"))
        with again.open(store.reopen()) as engine:
            assert held(engine.read("n")) == {(1, 3): 1}
            engine.step({"city": ["Bern"], "n": [1], "more": [None], "last": [None]}, 3)
            engine._check_invariants()
            if keep:
                assert there == {("Bern", 1, None): 2, ("Bern", 1, "x"): 1}
                assert held(engine.read("log")) == {("Bern", 1, None, None): 3, ("Bern", 1, "x", None): 1}


@pytest.mark.parametrize("partitions", [1, 3])
@pytest.mark.parametrize("more", [{}, {"more": pa.string()}])
@pytest.mark.parametrize("timed", [False, True])
def test_a_state_is_rewritten_with_wider_columns(partitions: int, more: dict[str, Any], timed: bool) -> None:
    """Rows are told apart by all columns, so they move to other partitions, and those that wait do, too."""

    def flow(columns: dict[str, Any]) -> dd.Flow:
        flow, how = dd.Flow(), {"time": "at"} if timed else {}
        log = flow.updates("log", {"city": str, **columns, **({"at": int} if timed else {})}, keep=True, **how)
        flow.output("by_city", log.count("city"))
        flow.output("once", log.distinct())
        return flow

    store, wide = MemoryStore(), {"n": pa.float64(), **more}
    cities = [f"city {i % 20}" for i in range(60)]
    rows = {"city": cities, "n": list(range(0, 120, 2)), **({"at": [i % 9 for i in range(60)]} if timed else {})}
    with flow({"n": pa.int32()}).open(store) as engine:
        engine.push({"log": rows}) if timed else engine.step({"log": rows}, 1)
        if timed:
            engine.advance_to(4)
    if partitions > 1:
        rescale(store.reopen(), partitions)
        if more:
            with raises(PlanChanged):
                Hands(flow({"n": pa.int32(), **more}), store.reopen(), partitions, random.Random(1))
    dd.evolve(store.reopen(), flow=flow(wide))
    assert dd.fsck(store).ok
    rescale(store.reopen(), 2)
    assert dd.fsck(store).ok
    rescale(store.reopen(), 1)
    with flow(wide).open(store.reopen()) as engine:
        engine._check_invariants()
        if timed:
            engine.advance_to(dd.CLOSED)
        read = engine.read("log").select(["city", "n", "_diff"])
        assert held(read) == Counter({(city, float(n)): 1 for city, n in zip(cities, rows["n"], strict=True)})
        assert held(engine.read("by_city")) == {(f"city {i}", 3): 1 for i in range(20)}
        assert engine.read("once").num_rows == 60


def test_a_log_is_given_again_to_a_new_plan() -> None:
    log = [{"log": table(rows_of([("Bern", 1, 2), ("Basel", 0, 1)]), SCHEMA.remove(3))} for _ in range(3)]
    old, new = MemoryStore(), MemoryStore()
    with flow_of().open(old) as engine:
        for step in log:
            engine.step(step)
    done = dd.migrate(old, new, flow_of(keep=True), log)
    assert (
        done.whole == ["same", "cities"] and done.tables["by_city"].num_rows == 0 and done.tables["same"].num_rows == 2
    )
    with flow_of(keep=True).open(new.reopen()) as engine:
        assert held(engine.read("log")) == {("Bern", 1): 6, ("Basel", 0): 3}
    assert set(dd.migrate(new, MemoryStore(), flow_of(), log).tables) == {"by_city", "once", "more"}


def test_multiplicities_that_leave_int64_refuse_the_step_whole() -> None:
    flow = dd.Flow()
    flow.output("v", flow.updates("log", {"v": str, "d": int}, "d", keep=True).filter("v = 'no'"))
    with flow.open() as engine:
        engine.step({"v": ["a"], "d": [2**62]}, 1)
        with raises(CountOverflow):
            engine.step({"v": ["a"], "d": [2**62]}, 2)
        assert held(engine.read("log")) == {("a",): 2**62}
    flow = dd.Flow()
    flow.output("v", flow.updates("log", {"v": str, "d": pa.uint64()}, "d"))
    with flow.open() as engine, raises(SchemaMismatch):
        engine.step(pa.table({"v": ["a"], "d": pa.array([2**63], pa.uint64())}), 1)


@pytest.mark.parametrize(
    "how",
    [
        {"diff": "e"},
        {"diff": "v"},
        {"diff": 7},
        {"diff": ["d"]},
        {"diff": dd.delta_cdf},
        {"time": "x"},
        {"time": "v"},
        {"keep": 1},
        {"late": "drop"},
        {"lateness": 3},
        {"time": "d", "lateness": -1},
        {"time": "d", "late": "never"},
        {"null_key": "keep"},
        {"value": ["w"]},
        {"value": []},
        {"keep": True, "value": ["_times"]},
    ],
)
def test_what_does_not_fit_is_refused_where_it_is_written(how: dict[str, Any]) -> None:
    with raises((SpecError, ExpressionError)):
        dd.Flow().updates("log", {"v": str, "d": int, "_times": int}, **how)


@pytest.mark.parametrize(
    "how", [{}, {"diff": "d"}, {"diff": dd.delta_cdf, "keep": True, "value": ["v"]}, {"time": "d"}]
)
def test_its_json_makes_the_same_plan_and_nothing_else_does(how: dict[str, Any]) -> None:
    flow = dd.Flow()
    flow.output("out", flow.updates("log", {"v": str, "d": int, "_change_type": str}, **how))
    made = json.loads(json.dumps(describe_plan(flow)))
    assert describe_plan(rebuild_plan(made)) == describe_plan(flow)
    for wrong in ({"kind": "odd"}, {"spec": {"diff": {"feed": "odd"}}}, {"spec": {"keep": 1}}, {"spec": {"odd": 1}}):
        with pytest.raises(dd.errors.CorruptState):
            rebuild_plan(made | {"inputs": {"log": made["inputs"]["log"] | wrong}})


def test_an_input_that_was_told_nothing_is_shown_without_an_empty_line() -> None:
    flow = dd.Flow()
    flow.output("log", flow.updates("log", pa.schema([("id", pa.int64())])))
    assert flow.explain().splitlines()[-1].strip() == "id int64"
    assert all(line.strip() for line in flow.explain().splitlines())
