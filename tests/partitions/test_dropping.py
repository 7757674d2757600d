"""Test dropping an output: other outputs continue as if it never existed, and state that only it used is deleted.

`test_dropping_inputs` tests kills. The expected result is a state of the smaller plan with the same rows. Plans have
every operator of the registry.
"""

from __future__ import annotations

import sqlite3
from collections import Counter
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from chance import effort, long_test
from every_operator import NARROW, plan
from hypothesis import given, strategies as st
from messages import raises
from parts_by_hand import Hands
from test_evolve import FOREVER, flow_without, plain, rows, same, told

import ddflow as dd
from ddflow.engine.checkpoint import StoredInventory
from ddflow.engine.garbage import list_version_blobs
from ddflow.engine.run.delivery import Delivery
from ddflow.engine.run.kept_epochs import EngineEpochs
from ddflow.errors import Fenced, PlanChanged, SinkRefused, SpecError, StateRefused
from ddflow.partitions.rescale import rescale
from ddflow.plan.text.codec import describe_plan
from ddflow.storage import backlog
from ddflow.storage.folder.local import LocalStore
from ddflow.storage.manifest import Manifest, load_manifest, load_newest_manifest
from ddflow.storage.memory import MemoryStore

NAMES = [*plan(NARROW).outputs]
COLUMNS = {"id": pa.int64(), "city": pa.string()}


def newest_of(store: Any) -> Manifest:
    manifest = load_newest_manifest(store)
    assert manifest is not None
    return manifest


def operators(store: Any) -> set[str]:
    """What a state holds, by operator."""
    every = (StoredInventory.read(store, each) for each in newest_of(store).inventories)
    return {name for each in every for name in each.of.operators}


def people(*outputs: str) -> dd.Flow:
    flow = dd.Flow()
    rows = flow.upserts("people", COLUMNS, dd.Upsert(key="id", stale="side", order_by="city"))
    cities = flow.upserts("cities", COLUMNS, dd.Upsert(key="city"))
    made = {
        "people": rows,
        "by_city": rows.count("city"),
        "towns": cities.project(["city"]),
        "pairs": rows.count(["id", "city"]).join(cities.count(["id", "city"], name="more"), on=["id", "city"]),
        "with_key": rows.count(["id", "city"]),
    }
    for name in outputs or ("people", "by_city", "towns"):
        flow.output(name, made[name])
    return flow


def table(*ids: int) -> pa.Table:
    return pa.table({"id": ids, "city": [f"c{each % 3}" for each in ids]}, pa.schema(COLUMNS))


def some(number: int) -> dict[str, pa.Table]:
    return {"people": table(*range(number, number + 9)), "cities": table(*range(number + 2, number + 8, 2))}


@long_test
@pytest.mark.sampled
@effort(10)
@given(
    st.lists(rows, min_size=2, max_size=5),
    st.sampled_from([1, 2, 3]),
    st.sampled_from([None, "16MB"]),
    st.sampled_from([0, 2, FOREVER]),
    st.sets(st.sampled_from(NAMES), min_size=1, max_size=len(NAMES) - 1),
)
def test_the_other_outputs_go_on_as_if_these_had_never_been(
    log: list[pa.Table], partitions: int, memory: Any, retain: int, names: set[str]
) -> None:
    store, other, last = MemoryStore(), MemoryStore(), len(log) - 1
    given = {"memory": memory, "retain": retain}
    with plan(NARROW).open(store, **given) as engine:
        for time, table in enumerate(log[:-1], 1):
            engine.step({"a": table}, time)
    if partitions > 1:
        rescale(store.reopen(), partitions, memory=memory)
    done = dd.evolve(store.reopen(), drop_outputs=sorted(names), memory=memory)
    assert {*done.outputs} == names and done.epoch == last and done.unused == ()
    assert dd.fsck(store.reopen()).ok and dd.verify(store.reopen(), {"a": log[:-1]}).ok
    smaller = flow_without(plan(NARROW), *names)
    assert newest_of(store).plan == describe_plan(smaller)
    with smaller.open(other, **given) as twin:
        steps = [twin.step({"a": table}, time) for time, table in enumerate(log[:-1], 1)]
        assert operators(store) == operators(other)
        with dd.Snapshot.open(store.reopen()) as snapshot:
            same(snapshot, twin, smaller.outputs)
        if partitions > 1:
            rescale(store.reopen(), 1)
        with smaller.open(store.reopen(), **given) as engine:
            told(engine.step({"a": log[-2]}, last), steps[-1])
            told(engine.step({"a": log[-1]}, last + 1), twin.step({"a": log[-1]}, last + 1))
            same(engine, twin, smaller.outputs)
            engine._check_invariants()
    assert dd.verify(store.reopen(), {"a": log}).ok


@pytest.mark.parametrize("before", [("people", "by_city", "towns"), ("people", "pairs", "with_key", "by_city")])
@pytest.mark.parametrize("partitions", [1, 2, 5])
def test_a_state_of_many_partitions_goes_on_as_one(partitions: int, before: tuple[str, ...]) -> None:
    """Whatever other stages a plan has without the output; a count for a join is partitioned otherwise without it."""
    gone, chance = before[1], Random(partitions)
    hands = Hands(people(*before), store := MemoryStore(), partitions, chance)
    for number in range(2):
        hands.epoch(some(number))
    hands.close()
    done = dd.evolve(store.reopen(), drop_outputs=gone)
    assert (done.versions > 0) == (partitions > 1 and gone == "pairs")
    assert dd.fsck(store.reopen()).ok
    kept = [each for each in before if each != gone]
    with people(*kept).open() as twin:
        for number in range(2):
            twin.step(some(number), number + 1)
        hands = Hands(people(*kept), store.reopen(), None, chance)
        for number in range(2, 5):
            _, given = hands.epoch(some(number))
            step = twin.step(some(number), number + 1)
            assert {name: plain(each) for name, each in given.items()} == {name: plain(step[name]) for name in kept}
        hands.close()
        with dd.Snapshot.open(store.reopen()) as snapshot:
            same(snapshot, twin, kept)
    assert dd.fsck(store.reopen()).ok


def test_what_only_it_needed_is_freed_and_the_same_output_is_new_again(tmp_path: Path) -> None:
    state = tmp_path / "state"
    with people().open(state, grace=0) as engine:
        for number in range(4):
            engine.step(some(number))
    old = newest_of(LocalStore(state, readonly=True))
    done = dd.evolve(state, drop_outputs=["by_city"])
    store = LocalStore(state, readonly=True)
    before, now = (set(list_version_blobs(store, each)) for each in (old, newest_of(store)))
    assert done.freed == sum(blob.length for blob in before - now) > 0
    assert all("by_city" not in call.outputs for each in newest_of(store).receipts for call in each.calls)
    with people("people", "towns").open(state, grace=0) as engine:
        again = engine.step(some(3), 4)
        assert set(again) == {"people", "towns", "people.stale"} and again["people"].num_rows
        engine.step(some(5))
    dd.gc(state, grace=0, orphans=0)
    left = {path.name for path in (state / "blobs").iterdir()}
    assert not left & {blob.name for blob in before - now}
    with people().open(state) as engine:
        given = engine.step(some(7))["by_city"]
        assert given.num_rows and plain(engine.read("by_city")) == plain(
            engine.read("people").group_by("city").aggregate([("id", "count")]).rename_columns(["city", "count"])
            .append_column("_diff", pa.array([1] * 3))
        )  # fmt: skip


def test_an_input_that_nothing_uses_stays_and_is_named() -> None:
    with people().open(store := MemoryStore()) as engine:
        engine.step(some(1))
    assert dd.evolve(store.reopen(), drop_outputs=["towns"]).unused == ("cities",)
    with people("people", "by_city").open(store.reopen()) as engine:
        assert engine.step(some(2)).verdicts.counts["applied"] > 0
    without = dd.Flow()
    without.output("people", without.upserts("people", COLUMNS, dd.Upsert(key="id", stale="side", order_by="city")))
    with raises(PlanChanged):
        without.open(store.reopen())


def test_what_cannot_be_is_refused_and_changes_nothing(tmp_path: Path) -> None:
    state = tmp_path / "my state"
    with pytest.raises(StateRefused):
        dd.evolve(state, drop_outputs=["people"])
    with people().open(state) as engine:
        engine.step(some(1))
    before = sorted(state.rglob("*"))
    for names, found in (
        ("poeple", "there is no output 'poeple'; did you mean 'people'?"),
        (["people", "by_city", "towns"], "it has no other output"),
        ("people.stale", "is a side output of the input 'people'"),
    ):
        with pytest.raises(SpecError, match=found.replace("?", r"\?")):
            dd.evolve(state, drop_outputs=names)
    with raises(SpecError):
        dd.evolve(state, {"people": {"city": "large_string"}}, drop_outputs=["people"])
    with raises(SpecError):
        dd.evolve(state, drop_outputs=[])
    with raises(PlanChanged):
        dd.evolve(state, drop_outputs=["people"], flow=people("people", "by_city", "towns", "with_key"))
    assert sorted(state.rglob("*")) == before
    call = rf"dd\.evolve\('{state}', drop_outputs=\['people', 'by_city'\]\)"
    with pytest.raises(PlanChanged, match=r"output 'by_city' is not in the plan.*first run " + call):
        people("towns").open(state)


def test_a_state_that_waits_for_its_first_epoch_and_a_writer_that_is_there() -> None:
    with people().open(store := MemoryStore()) as engine:
        assert dd.evolve(store.reopen(), drop_outputs="by_city").epoch == 0
        with pytest.raises(Fenced):
            engine.step(some(1))
    with people("people", "towns").open(store.reopen()) as engine:
        engine.step(some(1))
        blobs = {entry.name for entry in store.list_blobs()}

        class Late(MemoryStore):
            """Somebody commits just before we publish."""

        late = store.reopen()
        real = late.publish

        def publish(number: int, data: bytes) -> bool:
            engine.step(some(2))
            return real(number, data)

        late.publish = publish  # type: ignore[method-assign]
        with pytest.raises(Fenced):
            dd.evolve(late, drop_outputs="towns")
        assert engine.epoch == 2 and blobs < {entry.name for entry in store.list_blobs()}
    named = {blob.name for n in store.list_manifests() for blob in list_version_blobs(store, load_manifest(store, n))}
    assert {entry.name for entry in store.list_blobs()} == named


def test_an_output_with_a_sink_is_detached_first_and_others_keep_what_waits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backlog, "FAN", 2)
    state, names = tmp_path / "state", ("people", "by_city")
    sinks = {name: dd.sinks.sqlite(tmp_path / f"{name}.db", "t") for name in names}
    with people().open(state, grace=0) as engine:
        engine.run({}, sinks)
        for number in range(20):
            engine.step(some(number))
    assert newest_of(LocalStore(state, readonly=True)).backlog[0].level > 1
    with raises(SpecError):
        dd.evolve(state, drop_outputs=["by_city"])
    with people().open(state, grace=0) as engine:
        engine.detach("by_city")
    dd.evolve(state, drop_outputs=["by_city"])
    assert dd.fsck(state).ok
    store = LocalStore(state, readonly=True)
    kept = [*backlog.Backlog(store).list_receipts(newest_of(store).backlog), *newest_of(store).receipts]
    assert [each.epoch for each in kept] == list(range(1, 21)) and all(each.digest for each in kept)
    assert {name for each in kept for call in each.calls for name in call.outputs} <= {
        "people",
        "towns",
        "people.stale",
    }
    with people("people", "towns").open(state, grace=0) as engine:
        assert engine.run({}, {"people": sinks["people"]}).sinks == {"people": 20}
        rows = {tuple(row.values()) for row in engine.read("people").drop_columns(["_diff"]).to_pylist()}
        engine.step(some(30))

    with sqlite3.connect(tmp_path / "people.db") as connection:
        assert {*connection.execute("select id, city from t")} == rows
    assert dd.fsck(state).ok


def test_a_folder_of_outputs_shows_what_was_committed(tmp_path: Path) -> None:
    state, folder = tmp_path / "state", tmp_path / "out"
    with people().open(state, outputs=folder) as engine:
        for number in range(3):
            engine.step(some(number))
    shown = sorted(folder.rglob("*.parquet"))
    dd.evolve(state, drop_outputs=["by_city"])
    assert sorted(folder.rglob("*.parquet")) == shown and any("by_city" in str(path) for path in shown)
    with people("people", "towns").open(state, outputs=folder) as engine:
        engine.step(some(2), 3)
        engine.step(some(4))
    assert dd.fsck(state).ok

    with raises(StateRefused):
        people().open(state, outputs=folder)
    [old] = folder.glob("by_city-*")
    old.rename(tmp_path / "old")
    with people().open(state, outputs=folder) as engine:
        engine.step(some(5))
        rows = [row for path in sorted(old.glob("*.parquet")) for row in pq.read_table(path).to_pylist()]
        assert net(rows) == net(engine.read("by_city").to_pylist())


def net(rows: list[dict[str, Any]]) -> dict[Any, int]:
    """How often each row of `by_city` is there, by its updates."""
    out = Counter[Any]()
    for row in rows:
        out[row["city"], row["count"]] += row["_diff"]
    return {row: many for row, many in out.items() if many}


@pytest.mark.parametrize("mode", ["upsert", "updates"])
@pytest.mark.parametrize("kind", ["delta", "sqlite"])
def test_an_output_that_is_added_again_is_not_written_on_top_of_the_one_that_was(
    kind: str, mode: Any, tmp_path: Path
) -> None:
    """Not from a step, and not where `sync` is called ahead of the step that gives it; also where nothing differs."""
    state, place = tmp_path / "state", tmp_path / "table"
    sinks = {"by_city": dd.sinks.delta(place, mode=mode) if kind == "delta" else dd.sinks.sqlite(place, "t", mode=mode)}

    def there() -> dict[Any, int]:
        with people().open(state) as engine:
            table = Delivery(EngineEpochs(engine.calls, "a test"), "by_city", sinks["by_city"]).table.read()
            return net([{"_diff": 1, **row} for row in table.to_pylist()])

    def dropped() -> None:
        with people().open(state) as engine:
            engine.detach("by_city")
        dd.evolve(state, drop_outputs="by_city")

    with people().open(state) as engine:
        engine.run({}, sinks)
        for number in range(3):
            engine.step(some(number))
        engine.run({}, sinks)
    dropped()
    with people("people", "towns").open(state) as engine:
        engine.step(some(20))
    for ahead in (False, True):
        with people().open(state) as engine:
            if not ahead:
                engine.step(some(40))
            for _ in range(1 + ahead):
                with raises(SinkRefused):
                    engine.run({}, sinks)
            engine.sync(sinks)
            engine.step(some(60))
            engine.run({}, sinks)
            right = net(engine.read("by_city").to_pylist())
        assert there() == right
        dropped()
    with people().open(state) as engine:
        engine.step({})
        with pytest.raises(SinkRefused):
            engine.run({}, sinks)
        assert not sum(engine.sync(sinks)["by_city"][:3])
        engine.run({}, sinks)
    assert there() == right


def test_functions_of_ones_own_come_with_the_flow() -> None:
    def flow(*more: str) -> dd.Flow:
        made = dd.Flow()
        rows = made.output("rows", made.upserts("people", COLUMNS, dd.Upsert(key="id")))
        made.output("long", rows.filter(lambda batch: pa.compute.greater(batch["id"], 3)))
        if more:
            made.output("by_city", rows.count("city"))
        return made

    with flow("by_city").open(store := MemoryStore()) as engine:
        engine.step({"people": table(1, 2, 9)})
    with pytest.raises(Exception, match="flow="):
        dd.evolve(store.reopen(), drop_outputs=["by_city"])
    assert dd.evolve(store.reopen(), drop_outputs=["by_city"], flow=flow("by_city")).outputs == ("by_city",)
    with flow().open(store.reopen()) as engine:
        assert engine.step({"people": table(7)})["long"].num_rows == 1
