"""Test dropping an input: the rest continues as if it never existed, and state that only it used is deleted.

A kill leaves the state either with the input or without it; the same holds for an output. The expected result is a
state of the smaller plan with the rows of the other inputs. Plans have every operator of the registry.
"""

from __future__ import annotations

import os
import shutil
from collections import Counter
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pytest
from chance import SOAK, effort, long_test, seeded
from every_operator import NARROW, plan
from hypothesis import given, strategies as st
from messages import raises
from parts_by_hand import Hands
from test_dropping import COLUMNS, newest_of, operators, people, some, table
from test_durable_kill import Deadly, died
from test_evolve import FOREVER, plain, rows, same, told

import ddflow as dd
from ddflow.engine.checkpoint import StoredInventory
from ddflow.engine.garbage import list_version_blobs
from ddflow.errors import PlanChanged, ReplayMismatch, SpecError
from ddflow.partitions.evolve import _drop_sources
from ddflow.partitions.rescale import rescale
from ddflow.plan.text.codec import describe_plan
from ddflow.storage import backlog
from ddflow.storage.epochs import AttachedSource
from ddflow.storage.folder.local import LocalStore
from ddflow.storage.memory import MemoryStore

OTHERS = {
    "others": lambda a, b: b,
    "per city": lambda a, b: b.count("city"),
    "both": lambda a, b: a.join(b.project({"town": "id", "city": "city"}), on="city", how="left"),
    "either": lambda a, b: a.project(["id", "city"]).concat(b).distinct(),
    "looked": lambda a, b: a.project(["id", "city"]).lookup(b.project({"id": "id", "town": "city"}), on="id"),
}


def wider() -> dd.Flow:
    """The plan of every operator, and outputs that another input is in."""
    flow = plan(NARROW)
    b = flow.upserts("b", COLUMNS, dd.Upsert(key="id", order_by="city", stale="side"))
    for name, make in OTHERS.items():
        flow.output(name, make(flow.inputs["a"], b))
    return flow


def alone(*outputs: str) -> dd.Flow:
    """The plan of ``people`` without the other input."""
    flow = dd.Flow()
    rows = flow.upserts("people", COLUMNS, dd.Upsert(key="id", stale="side", order_by="city"))
    made = {"people": rows, "by_city": rows.count("city"), "with_key": rows.count(["id", "city"])}
    for name in outputs or ("people", "by_city"):
        flow.output(name, made[name])
    return flow


cities = st.lists(st.integers(1, 6), max_size=5).map(lambda ids: table(*ids))


@long_test
@pytest.mark.sampled
@effort(10)
@given(
    st.lists(st.tuples(rows, cities), min_size=2, max_size=5),
    st.sampled_from([1, 2, 3]),
    st.sampled_from([None, "16MB"]),
    st.sampled_from([0, 2, FOREVER]),
    st.booleans(),
)
def test_the_rest_goes_on_as_if_it_had_never_been(
    log: list[tuple[pa.Table, pa.Table]], partitions: int, memory: Any, retain: int, forget: bool
) -> None:
    store, other, last = MemoryStore(), MemoryStore(), len(log)
    given = {"memory": memory, "retain": retain}
    with wider().open(store, **given) as engine:
        for time, (a, b) in enumerate(log, 1):
            engine.step({"a": a, "b": b}, time)
        engine.step({"a": log[0][0]}, last + 1)
    if partitions > 1:
        rescale(store.reopen(), partitions, memory=memory)
    done = dd.evolve(store.reopen(), drop_outputs=list(OTHERS), drop_inputs=["b"], memory=memory)
    assert (done.outputs, done.inputs, done.unused, done.epoch) == (tuple(OTHERS), ("b",), (), last + 1)
    fed = [*(a for a, _ in log), log[0][0]]
    assert dd.fsck(store.reopen()).ok and dd.verify(store.reopen(), {"a": fed}).ok
    assert newest_of(store).plan == describe_plan(plan(NARROW))
    with plan(NARROW).open(other, **given) as twin:
        steps = [twin.step({"a": a}, time) for time, a in enumerate(fed, 1)]
        assert operators(store) == operators(other)
        with dd.Snapshot.open(store.reopen()) as snapshot:
            same(snapshot, twin, plan(NARROW).outputs)
        if partitions > 1:
            rescale(store.reopen(), 1)
        with plan(NARROW).open(store.reopen(), **given) as engine:
            told(engine.step({"a": fed[-1]}, last + 1), steps[-1])
            if forget:
                engine.compact(forget=True)
                twin.compact(forget=True)
            told(engine.step({"a": log[-1][0]}, last + 2), twin.step({"a": log[-1][0]}, last + 2))
            same(engine, twin, plan(NARROW).outputs)
            engine._check_invariants()
    assert dd.fsck(store.reopen()).ok and dd.verify(store.reopen(), {"a": [*fed, log[-1][0]]}).ok


@pytest.mark.parametrize("partitions", [1, 2, 5])
def test_a_state_of_many_partitions_goes_on_as_one(partitions: int) -> None:
    every, chance = ("people", "pairs", "with_key", "by_city"), Random(partitions)
    hands = Hands(people(*every), store := MemoryStore(), partitions, chance)
    for number in range(2):
        hands.epoch(some(number))
    hands.close()
    done = dd.evolve(store.reopen(), drop_outputs="pairs", drop_inputs="cities")
    assert (done.versions > 0) == (partitions > 1) and done.inputs == ("cities",)
    assert dd.fsck(store.reopen()).ok
    kept = [each for each in every if each != "pairs"]

    with alone(*kept).open() as twin:
        for number in range(2):
            twin.step({"people": some(number)["people"]}, number + 1)
        hands = Hands(alone(*kept), store.reopen(), None, chance)
        for number in range(2, 5):
            given = {"people": some(number)["people"]}
            _, out = hands.epoch(given)
            step = twin.step(given, number + 1)
            assert {name: plain(each) for name, each in out.items()} == {name: plain(step[name]) for name in kept}
        hands.close()
        with dd.Snapshot.open(store.reopen()) as snapshot:
            same(snapshot, twin, kept)
    rescale(store.reopen(), 3)
    assert dd.fsck(store.reopen()).ok


def test_nothing_is_left_of_it_and_the_same_input_is_new_again(tmp_path: Path) -> None:
    state = tmp_path / "state"
    with people().open(state, grace=0) as engine:
        for number in range(4):
            engine.step(some(number))
        before = engine.verdicts.counts
    old = newest_of(LocalStore(state, readonly=True))
    done = dd.evolve(state, drop_outputs=["towns"], drop_inputs=["cities"])
    store = LocalStore(state, readonly=True)
    was, now = (set(list_version_blobs(store, each)) for each in (old, newest_of(store)))
    assert done.freed == sum(blob.length for blob in was - now) > 0
    assert "cities" not in newest_of(store).encode().decode().replace('"note":"dropped cities, towns"', "")
    with alone().open(state, grace=0) as engine:
        assert engine.verdicts.counts == before  # what became of its events stays counted
        with pytest.raises(ReplayMismatch):
            engine.step({"people": some(3)["people"]}, 4)
        engine.step({"people": some(5)["people"]})
        engine._check_invariants()
    dd.gc(state, grace=0, orphans=0)
    assert not {path.name for path in (state / "blobs").iterdir()} & {blob.name for blob in was - now}
    with people().open(state) as engine:
        assert engine.read("cities").num_rows == 0
        assert plain(engine.step(some(7))["towns"]) == plain(
            some(7)["cities"]
            .select(["city"])
            .append_column("_time", pa.array([6] * 3))
            .append_column("_diff", pa.array([1] * 3))
        )
    assert dd.fsck(state).ok


def test_its_waiting_events_and_its_side_outputs_go() -> None:
    def flow(*inputs: str) -> dd.Flow:
        made = dd.Flow()
        for name in inputs:
            spec = dd.Upsert(key="id", time="at", late="drop", lateness=3)
            columns = {"id": pa.int64(), "at": pa.int64()}
            made.output(f"{name} rows", made.upserts(name, columns, spec, format=dd.formats.plain_json(on_bad="drop")))
        return made

    def given(*rows: tuple[int, int]) -> dict[str, list[Any]]:
        return {"value": [f'{{"id": {id}, "at": {at}}}'.encode() for id, at in rows] + [b"{"]}

    with flow("a", "b").open(store := MemoryStore()) as engine:
        engine.push({"a": given((1, 1), (2, 9)), "b": given((1, 3), (2, 8), (3, 9))})
        engine.push({"a": given((3, 12)), "b": given((4, 14), (5, 2))})
        assert engine.frontier == 9 and engine.verdicts.pending
    rescale(store.reopen(), 2)
    done = dd.evolve(store.reopen(), drop_outputs="b rows", drop_inputs="b")
    assert done.inputs == ("b",) and dd.fsck(store.reopen()).ok
    manifest = newest_of(store)
    assert {*manifest.greatest} == {*manifest.fed} == {"a"}
    assert {name for each in manifest.receipts for call in each.calls for name in call.outputs} == {"a rows", "a.bad"}
    rescale(store.reopen(), 1)
    with flow("a").open(store.reopen()) as engine:
        engine._check_invariants()
        assert engine.frontier == 9 and engine.verdicts.pending == 2
        engine.push({"a": given((9, 20))})
        assert engine.frontier == 17 and engine.verdicts.pending == 1
        engine._check_invariants()
    assert dd.fsck(store.reopen()).ok


def test_the_horizon_of_its_keys_goes() -> None:
    def flow(*inputs: str) -> dd.Flow:
        made = dd.Flow()
        for name in inputs:
            spec = dd.Upsert(key="id", order_by="at", expiry=dd.Expiry(ttl=4))
            made.output(f"{name} rows", made.upserts(name, {"id": int, "at": int}, spec))
        return made

    def given(*ats: int) -> dict[str, list[int]]:
        return {"id": [*range(len(ats))], "at": [*ats]}

    hands = Hands(flow("a", "b"), store := MemoryStore(), 2, Random(0))
    for at in (3, 20):
        hands.epoch({name: pa.table(given(at, at + 1)) for name in ("a", "b")})
    hands.close()
    assert {*newest_of(store).horizons} == {"a", "b"}
    dd.evolve(store.reopen(), drop_outputs="b rows", drop_inputs="b")
    assert newest_of(store).horizons == {"a": 21} and dd.fsck(store.reopen()).ok
    rescale(store.reopen(), 1)
    with flow("a").open(store.reopen()) as engine, flow("a").open() as twin:
        for at in (3, 20):
            twin.step({"a": given(at, at + 1)})
        assert plain(engine.step({"a": given(0, 40)})["a rows"].drop_columns(["_time"])) == plain(
            twin.step({"a": given(0, 40)})["a rows"].drop_columns(["_time"])
        )


def test_where_its_source_stands_goes_and_a_shared_one_stays(tmp_path: Path) -> None:
    state, sources = tmp_path / "state", {}
    for name in ("people", "cities"):
        (tmp_path / f"{name}.csv").write_text("id,city\n1,Bern\n2,Chur\n")
        sources[name] = dd.sources.files(f"{tmp_path}/{name}.csv")
    with people().open(state) as engine:
        engine.run(sources)
    position = newest_of(LocalStore(state, readonly=True)).sources["people"]
    dd.evolve(state, drop_outputs="towns", drop_inputs="cities")
    assert newest_of(LocalStore(state, readonly=True)).sources == {"people": position}
    with alone().open(state) as engine:
        assert engine.run({"people": sources["people"]}).epochs == 0
    shared = {"people": ("note",), "cities": ()}
    given = {
        "shop": AttachedSource("kafka", "k", 7, shared),
        "cities": AttachedSource("kafka", "k", 7, shared),
        "quiet": AttachedSource("kafka", "k", None, {}),
        "towns": AttachedSource("kafka", "k", 7, {"cities": ()}),
    }
    kept = AttachedSource("kafka", "k", 7, {"people": ("note",)})
    assert _drop_sources(given, ["cities"]) == {"shop": kept, "cities": kept, "quiet": given["quiet"]}


def test_what_cannot_be_is_refused_and_changes_nothing(tmp_path: Path) -> None:
    state = tmp_path / "my state"
    with people().open(state) as engine:
        engine.run({}, {"people.stale": dd.sinks.sqlite(tmp_path / "stale.db", "t", mode="updates")})
        engine.step(some(1))
    before = sorted(state.rglob("*"))
    for outputs, inputs in (
        ([], ["citees"]),
        ([], ["cities"]),
        (["people"], ["people"]),
        ([], ["people", "cities"]),
        (["people.stale"], []),
        (["people", "by_city"], ["people"]),
    ):
        with raises(SpecError):
            dd.evolve(state, drop_outputs=outputs, drop_inputs=inputs)
    with raises(SpecError):
        dd.evolve(state, {"people": {"city": "large_string"}}, drop_inputs="cities")
    assert sorted(state.rglob("*")) == before
    with raises(PlanChanged):
        alone().open(state)


# Killed.


def killed(state: Path, at: int, kind: str, gone: tuple[list[str], list[str]]) -> bool:
    """A child that drops outputs and inputs, until a call of it that changes something; whether it was killed there."""

    def work() -> None:
        Deadly(at, kind)
        dd.evolve(state, drop_outputs=gone[0], drop_inputs=gone[1])

    return died(work)


@pytest.mark.drawn(1)
@pytest.mark.parametrize("kind", ["before", "half"])
@pytest.mark.parametrize("gone", [(["by_city"], []), (["towns"], ["cities"])], ids=["an output", "an input"])
def test_killed_at_any_call_it_has_happened_or_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, gone: tuple[list[str], list[str]]
) -> None:
    monkeypatch.setattr(os, "fsync", lambda file: None)
    monkeypatch.setattr(backlog, "FAN", 2)
    first = tmp_path / "first"
    with people().open(first) as engine:
        engine.run({}, {"people": dd.sinks.sqlite(tmp_path / "people.db", "t")})
        for number in range(14):
            engine.step(some(number))
    rescale(first, 2)
    held = {name: plain(dd.read(first, name)) for name in ("people", "towns", "by_city")}
    smaller = alone("people", "by_city") if gone[1] else people("people", "towns")
    found, number, dead, chance = Counter[tuple[int, int]](), 0, True, seeded(__name__, kind)
    while dead:
        state = tmp_path / str(number)
        shutil.copytree(first, state)
        dead = killed(state, number, kind, gone)
        with dd.Snapshot.open(state) as snapshot:
            outputs, inputs = [*snapshot.flow.outputs], [*snapshot.flow.inputs]
            assert {name: plain(snapshot.read(name)) for name in outputs} == {name: held[name] for name in outputs}
        found[len(outputs), len(inputs)] += 1
        if chance.random() < 0.2 or not dead:
            assert dd.fsck(state).ok
            if len(outputs) == 3:
                dd.evolve(state, drop_outputs=gone[0], drop_inputs=gone[1])
            rescale(state, 1)
            with smaller.open(state, grace=0) as engine:
                if not gone[1]:
                    assert engine.step(some(13), 14)["people"].num_rows  # given again
                given = {name: rows for name, rows in some(20).items() if name in smaller.inputs}
                assert engine.step(given)["people"].num_rows
            dd.gc(state, grace=0, orphans=0)
            assert dd.fsck(state).ok
        shutil.rmtree(state)
        number += 1 if SOAK else chance.randint(1, 3)
    assert {*found} == {(3, 2), (2, 2 - len(gone[1]))} and found[3, 2] > 1


def test_how_many_of_its_events_had_a_verdict_is_kept_and_is_no_verdict() -> None:
    with people().open(store := MemoryStore()) as engine:
        engine.step(some(1))
    dd.evolve(store.reopen(), drop_outputs="towns", drop_inputs="cities")
    (part,) = newest_of(store).inventories
    totals = StoredInventory.read(store, part).of.totals
    assert totals["gone"] == some(1)["cities"].num_rows
    assert dd.inspect(store)["verdicts"]["applied"] == totals["applied"] and "gone" not in dd.inspect(store)["verdicts"]
