"""Test the law of rescaling: a state split or joined into any number of partitions answers and continues the same.

Scenarios are drawn: all kinds of orders, ties, merging, expiry, waiting events, counts by key and by other columns,
history kept or not, half-done merges, in memory and in files. An engine without rescaling gives the expected results.
Other tests cover figures of single partitions, refusals, races, and kills.
"""

from __future__ import annotations

import gc
import json
import os
import shutil
from collections import Counter
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
import test_expiry
import test_merging_laws
import tight
from chance import covering, effort, mid_test
from doors import FOREVER, EngineDoor, plain
from durable_case import CASES, SMALL, TIGHT
from hypothesis import given, strategies as st
from merging_strategies import scenarios as merging
from messages import raises
from pair import Pair
from proof_case import EPOCH, events, plan
from strategies import shapes
from test_durable import Restarts, small_spines
from test_durable_kill import Deadly, died
from test_laws import quietly
from test_medium import crowds, drawn, everything, figures, readable, stir
from tight import tiny

import ddflow as dd
from ddflow.dataflow import batcher as pending
from ddflow.engine.checkpoint import Inventory, StoredInventory
from ddflow.engine.garbage import collect_file_names
from ddflow.errors import CorruptState, Fenced, MissingReceipts, PlanChanged, SpecError, StateRefused
from ddflow.partitions import rewrite_task as tasks
from ddflow.partitions.receipt import RewriteTaskResult
from ddflow.partitions.rescale import plan_rescale, rescale
from ddflow.partitions.rewrite import Rewrite
from ddflow.partitions.rewrite_task import run_task
from ddflow.storage.files.batch_store import BatchStore
from ddflow.storage.folder.local import LocalStore
from ddflow.storage.manifest import load_newest_manifest
from ddflow.storage.memory import MemoryStore
from ddflow.storage.protocol import Blob
from ddflow.trace.records import MergeRecord

pytestmark = pytest.mark.sampled

NUMBERS = st.sampled_from([2, 3, 4, 7, 17])
BUDGETS = st.sampled_from([None, "16MB"])
TOGETHER: dict[str, Any] = {
    "by_k_and_s": ["count", ["input", "a"], ["s", "k"], "count"],
    "by_s": ["count", ["input", "a"], ["s"], "count"],
    "all": ["count", ["input", "a"], [], "count"],
    "again": ["count", ["count", ["input", "a"], ["s"], "groups"], ["groups", "s"], "count"],
}
"""A count that stands with its keys, and is not by them; one that moves; one of everything; one behind another."""


@st.composite
def together(draw: st.DrawFn) -> Any:
    """A crowd, counted in all ways."""
    scenario, calls = draw(crowds())
    return scenario | {"outputs": TOGETHER}, calls


TRACES = {
    "plain": drawn(),
    "crowds": st.one_of(crowds(), together()),
    "merging": merging().flatmap(
        lambda scenario: st.tuples(st.just(scenario), test_merging_laws.calls(scenario, contents=False))
    ),
}
WAYS = {
    "plain": {"events that wait were moved", "a merge half done was cut"},
    "crowds": {"rows were asked", "events that wait were moved", "a merge half done was cut"},
    "merging": {"events that wait were moved"},
}


@pytest.fixture
def went(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Which ways were gone."""
    seen: Counter[str] = Counter()
    Task = tasks._RewriteTask
    said, restored, pending = Task._hash_partition_keys, tasks.restore_arrangement, Task._split_pending_events

    def asked(self: Any, *given: Any) -> Any:
        seen["rows were asked"] += 1
        return said(self, *given)

    def restore(arranged: Any, record: Any, *given: Any, **named: Any) -> None:
        seen["a merge half done was cut"] += sum(isinstance(item, MergeRecord) for item in record.items)
        restored(arranged, record, *given, **named)

    def waiting(self: Any, *given: Any) -> Any:
        resolved, batchers = pending(self, *given)
        seen["events that wait were moved"] += sum(map(len, batchers.values()))
        return resolved, batchers

    monkeypatch.setattr(Task, "_hash_partition_keys", asked)
    monkeypatch.setattr(tasks, "restore_arrangement", restore)
    monkeypatch.setattr(Task, "_split_pending_events", waiting)
    return seen


def there_and_back(data: st.DataObject, store: MemoryStore, flow: Any) -> None:
    """Rescale through some numbers of partitions, and back to one: all reads are the same, and each one's account."""
    before = reads(store, flow)
    for number in [*data.draw(st.lists(NUMBERS, min_size=1, max_size=2)), 1]:
        done = rescale(store.reopen(), number, flow=flow, memory=data.draw(BUDGETS))
        assert done.partitions == number
        accounts(store, flow)
        if number > 1:
            assert reads(store, flow) == before
        if number in (2, 3):
            report = dd.fsck(store.reopen(), flow=flow)
            assert report.ok, str(report)


def reads(state: Any, flow: dd.Flow) -> dict[tuple[str, int | None], Counter[Any]]:
    """What can be read of a state, now and at some times, the first and the last among them."""
    with dd.Snapshot.open(state.reopen() if isinstance(state, MemoryStore) else state, flow=flow) as snapshot:
        names, times = [*flow.inputs, *flow.outputs], readable(SimpleNamespace(engine=snapshot))
        times = [*times[:2], *times[2:-1:6], times[-1]]
        return {(name, time): Counter(plain(snapshot.read(name, time))) for name in names for time in times}


def accounts(store: MemoryStore, flow: dd.Flow) -> None:
    """Assert that in each partition the events that came are resolved, or wait under numbers that were given out."""
    manifest = load_newest_manifest(store.reopen())
    assert manifest is not None
    for blob in manifest.inventories:
        inventory = StoredInventory.read(store, blob).of
        came = sum(each.arrived for each in inventory.inputs.values())
        waiting = 0
        for name, each in inventory.inputs.items():
            schema = flow.inputs[name].bound.event_schema
            batcher = pending.restore_batcher(each.runs, name, schema, BatchStore(store.reopen()), spilled=True)
            given = [number for run in batcher.runs.by_least for number in run.pending_events.arrival.tolist()]
            assert len(set(given)) == len(given) and max(given, default=-1) < each.arrived
            waiting += len(batcher)
        assert came == sum(inventory.totals.values()) + waiting


class Rescales(Restarts):
    """The durable engine of one example, which is rescaled wherever it is closed."""

    def restart(self) -> None:
        """Close, rescale there and back again, open, and give again what was not committed."""
        if not self.again and self.data.draw(st.booleans()):
            self.door.engine.compact()  # which leaves nothing in the payload of a deletion
        self.door.close()
        there_and_back(self.data, self.store.reopen(), self.door.flow)
        super().restart()


@mid_test
@pytest.mark.drawn(2, of="media")
@pytest.mark.parametrize("traces", TRACES)
def test_rescaled_any_number_of_times_it_goes_on_as_if_it_had_not_been(
    monkeypatch: pytest.MonkeyPatch, traces: str, went: Counter[str]
) -> None:
    small_spines(monkeypatch)

    @covering(5 if traces == "crowds" else 10)
    @given(st.data(), TRACES[traces], shapes(), st.sampled_from([None, TIGHT]))
    def law(data: st.DataObject, trace: Any, shape: Any, medium: Any) -> None:
        scenario, played = trace
        options = {"retain": data.draw(st.sampled_from([0, 2, FOREVER])), "verdicts": "counts"}
        with tiny():
            never = EngineDoor(scenario, shape, **options)
            other = Rescales(
                data, scenario, medium, options | {"commit_every": data.draw(st.sampled_from(["call", None]))}
            )
            for call in played:
                other.call(call, quietly(never, call))
                if other.door.engine.dataflow.budget.home is not None:
                    stir(data, other.door)
                else:
                    tight.merge(other.door.engine, data.draw(st.sampled_from([0, 1, 3])), 2)
                if data.draw(st.integers(0, 2)) == 0:
                    other.restart()
                    same(other.door, never)
            other.restart()
            same(other.door, never)
            other.door.close()

    law()
    assert WAYS[traces] - set(went) == set()


def same(one: EngineDoor, other: EngineDoor) -> None:
    """Assert that two engines hold the same, at all times that can be read."""
    one.engine._check_invariants()
    assert figures(one) == figures(other)
    assert everything(one) == everything(other)


@effort(12)
@given(st.data(), st.booleans())
def test_what_was_forgotten_stays_so_in_all_partitions(data: st.DataObject, files: bool) -> None:
    scenario = data.draw(test_expiry.expiring())
    options: dict[str, Any] = {"memory": test_expiry.MEMORY} if files else {}
    pair = Pair(scenario, state=MemoryStore(), retain=0, verdicts=test_expiry.listed(scenario), **options)
    for call in data.draw(test_expiry.calls(scenario)):
        if files:
            tight.tighten(pair.engine.engine, 0, 2)
        test_expiry.played(pair, call)
        if data.draw(st.integers(0, 2)) == 0:
            pair.engine.close()
            there_and_back(data, pair.engine.options["state"], pair.engine.flow)
            pair.engine = pair.engine.restart()
    pair.engine.engine.close()


def test_a_group_that_left_and_came_again_stays_with_its_key_though_nothing_says_what_it_was() -> None:
    flow, columns = dd.Flow(), {"k": pa.int64(), "s": pa.string(), "gone": pa.bool_()}
    a = flow.upserts("a", columns, dd.Upsert("k", delete=dd.tombstone("gone")))
    flow.output("n", a.count(["s", "k"]))
    with flow.open(store := MemoryStore(), retain=1) as engine:
        for time, gone in ((1, False), (2, True), (3, False)):
            engine.step({"a": pa.table({"k": range(50), "s": ["x"] * 50, "gone": [gone] * 50})}, time)
        engine.compact()
    before = reads(store, flow)
    for number in (3, 5):
        rescale(store.reopen(), number)
        assert reads(store, flow) == before
        manifest = load_newest_manifest(store)
        assert manifest is not None and len(manifest.inventories) == number
        for blob in manifest.inventories:
            inventory = json.loads(store.map_blob(blob).to_pybytes())
            ((groups,),) = (each["arrangements"] for each in inventory["operators"].values())
            assert groups["keys"] == inventory["inputs"]["a"]["rows"]["keys"] > 0


def test_what_all_partitions_must_know_of_an_input_is_known_after(tmp_path: Path) -> None:
    flow = dd.Flow()
    for name in "ab":
        flow.output(
            f"all_{name}", flow.upserts(name, {"k": pa.int64(), "t": pa.int64()}, dd.Upsert("k", time="t", lateness=5))
        )
    with flow.open(store := MemoryStore()) as engine:
        engine.push({"a": pa.table({"k": [1, 2], "t": [90, 100]})})
    for number in (4, 1):
        rescale(store.reopen(), number)
        manifest = load_newest_manifest(store)
        assert manifest is not None and manifest.greatest["a"] == 100
    with flow.open(store.reopen()) as engine:
        assert engine.push({"b": pa.table({"k": [1], "t": [500]})}).frontier == 95


@pytest.mark.drawn(1)
@pytest.mark.parametrize("memory", [None, "16MB"])
def test_each_file_is_read_once_whatever_the_numbers(
    memory: str | None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """One to eight, eight to three, three to five, and back to one: of merges half done, history and waiting events."""
    flow = dd.Flow()
    columns = {"k": pa.int64(), "s": pa.string(), "t": pa.int64()}
    a = flow.upserts("a", columns, dd.Upsert("k", time="t"))
    for name, by in {"by_s": ["s"], "by_k": ["k", "s"], "all": []}.items():
        flow.output(name, a.count(by))
    state = tmp_path / "state"
    with flow.open(state, retain=3, memory=memory) as engine:
        for time in range(6):
            keys = range(time * 50, time * 50 + 200)
            rows = {"k": keys, "s": [f"s{(k + time) % 7}" for k in keys], "t": [time + k % 3 for k in keys]}
            engine.push({"a": pa.table(rows)})
            tight.tighten(engine, 1, 2) if memory else tight.merge(engine, 1, 2)
            engine.advance_to(time + 1)
    before = reads(state, flow)
    read: Counter[str] = Counter()
    mapped = LocalStore.map_blob

    def map(self: LocalStore, blob: Blob, check: bool = True) -> pa.Buffer:
        read[blob.name] += 1
        return mapped(self, blob, check)

    monkeypatch.setattr(tasks, "FILE", 50)
    for number in (8, 3, 5, 1):
        store = LocalStore(state, readonly=True)
        manifest = load_newest_manifest(store)
        assert manifest is not None
        held = [file for blob in manifest.inventories for file in held_in(StoredInventory.read(store, blob).of)]
        monkeypatch.setattr(LocalStore, "map_blob", map)
        done = rescale(state, number, memory=memory)
        monkeypatch.setattr(LocalStore, "map_blob", mapped)
        assert done.pending > 0 and done.versions > 500 and len(held) > 4 * manifest.partitions
        # A local engine's inventory is of all stages, and says what all partitions must know.
        once = 1 if manifest.partitions > 1 else 1 + done.stages
        assert {name: n for name, n in read.items() if name.endswith(".json")} == {
            blob.name: once for blob in manifest.inventories
        }
        old = {name: n for name, n in read.items() if name in set(held)}
        assert old == dict.fromkeys(held, 1)
        read.clear()
        assert reads(state, flow) == before


def held_in(inventory: Inventory) -> list[str]:
    """The files that an inventory's versions and events are in."""
    arrangements = [each.rows for each in inventory.inputs.values()]
    arrangements += [each for operator in inventory.operators.values() for each in operator.arrangements]
    waiting = [run.file.name for each in inventory.inputs.values() for run in each.runs]
    return [batch.file.name for each in arrangements for batch in each.batches] + waiting


# Tasks that run elsewhere, and more than once.


def made(place: Path, name: str = "epochs") -> dd.Flow:
    """A state in a folder, of a story to its end but one; its flow."""
    case = CASES[name]
    door = case.open(place)
    for epoch in range(1, len(case.calls)):
        case.go(door, epoch)
    door.close()
    return door.flow


def goes_on(place: Path, name: str = "epochs", partitions: int = 1) -> None:
    """Assert that a state has so many partitions, and is that of the story still; with one partition it goes on."""
    manifest = load_newest_manifest(LocalStore(place, readonly=True))
    assert manifest is not None and manifest.partitions == partitions
    if partitions > 1:
        rescale(place, 1)
    case = CASES[name]
    case.recovered(place, len(case.calls) - 1, len(case.calls) - 1)


@pytest.mark.parametrize("name", CASES)
def test_tasks_may_run_anywhere_and_twice_and_tell_in_bytes(tmp_path: Path, name: str) -> None:
    made(tmp_path / "state", name)
    with Rewrite.open(tmp_path / "state", plan_rescale(5)) as rewrite:
        told = [run_task(rewrite.start, *each).to_json() for each in rewrite.tasks * 2]
        rewrite.made = [RewriteTaskResult.from_json(each, "a task") for each in told]
        done = rewrite.finish()
    assert (done.before, done.partitions, done.epoch) == (1, 5, len(CASES[name].calls) - 1)
    assert done.stages == 2 and len(told) == 4
    goes_on(tmp_path / "state", name, 5)


def test_a_task_that_told_nothing_or_whose_file_is_not_there_stops_it(tmp_path: Path) -> None:
    made(tmp_path / "state")
    with Rewrite.open(tmp_path / "state", plan_rescale(2)) as rewrite:
        some = [run_task(rewrite.start, *each) for each in rewrite.tasks]
        rewrite.made = some[1:]
        with raises(MissingReceipts):
            rewrite.finish()
        lost = some[0].added[0]
        rewrite.store.delete(lost.name)
        rewrite.made = some
        with raises(CorruptState):
            rewrite.finish()
    goes_on(tmp_path / "state")


def test_who_commits_first_wins_and_the_other_is_fenced_and_leaves_nothing(tmp_path: Path) -> None:
    state, case = tmp_path / "state", CASES["epochs"]
    made(state)
    with pytest.raises(Fenced), Rewrite.open(state, plan_rescale(3)) as rewrite:
        rewrite.made = some = [run_task(rewrite.start, *each) for each in rewrite.tasks]
        door = case.open(state)
        case.go(door, len(case.calls))
        rewrite.finish()
    rescale(state, 1)  # which it has: nothing is done, and nobody is fenced
    door.engine.flush()
    rescale(state, 3)
    with pytest.raises(Fenced):
        door.engine.step({}, door.engine.last + 1)
    door.close()
    dd.gc(state, grace=0, orphans=0)
    store = LocalStore(state, readonly=True)
    newest_one = load_newest_manifest(store)
    assert newest_one is not None and newest_one.note == "rescale 1 -> 3"
    old = {blob.name for each in some for blob in each.added}
    assert not old & {entry.name for entry in store.list_blobs()}
    with raises(StateRefused):
        case.open(state)


def test_a_damaged_file_is_named_and_nothing_is_left(tmp_path: Path) -> None:
    state = tmp_path / "state"
    made(state)
    path = max((state / "blobs").rglob("*.arrow"), key=lambda path: path.stat().st_size)
    whole = bytearray(path.read_bytes())
    whole[len(whole) // 2] ^= 1
    os.chmod(path, 0o600)
    path.write_bytes(whole)
    before = {entry.name for entry in LocalStore(state, readonly=True).list_blobs()}
    with pytest.raises(CorruptState, match=path.name):
        rescale(state, 3)
    gc.collect()
    assert {entry.name for entry in LocalStore(state, readonly=True).list_blobs()} == before


def test_what_cannot_be_is_refused(tmp_path: Path) -> None:
    flow = made(tmp_path / "state")
    for number in (0, -1, 65_537, True, 2.0, None):
        with raises(SpecError):
            rescale(tmp_path / "state", number)  # type: ignore[arg-type]
    with raises(SpecError):
        rescale(tmp_path / "state", 2, memory="1MB")
    with raises(StateRefused):
        rescale(MemoryStore(), 2)
    with pytest.raises(StateRefused):
        rescale(tmp_path / "nowhere", 2)
    flow.output("more", flow.inputs["a"].project(["k"]))
    with raises(PlanChanged):
        rescale(tmp_path / "state", 2, flow=flow)


def test_a_state_without_a_commit_has_as_many_as_one_says() -> None:
    flow = dd.Flow()
    flow.output("people", flow.upserts("people", {"id": pa.int64()}, dd.Upsert("id")))
    with flow.open(store := MemoryStore()):
        pass
    assert rescale(store.reopen(), 7).files == 0
    manifest = load_newest_manifest(store.reopen())
    assert manifest is not None and (manifest.partitions, manifest.inventories) == (7, ())


# Killed.


def killed(state: Path, at: int, kind: str) -> bool:
    """A child that rescales, until its ``at``-th call that changes something; whether it was killed there."""

    def work() -> None:
        Deadly(at, kind)
        rescale(state, 2)

    return died(work)


@mid_test
@pytest.mark.drawn(1)
@pytest.mark.parametrize("kind", ["before", "half"])
def test_killed_anywhere_it_has_happened_or_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    monkeypatch.setattr(os, "fsync", lambda file: None)
    case, first = SMALL["held back"], tmp_path / "first"
    door = case.open(first)
    for epoch in range(1, len(case.calls)):
        case.go(door, epoch)
    door.close()
    before, found, at, dead = reads(first, door.flow), Counter[int](), 0, True
    while dead:
        state = tmp_path / str(at)
        shutil.copytree(first, state)
        dead = killed(state, at, kind)
        manifest = load_newest_manifest(LocalStore(state, readonly=True))
        assert manifest is not None
        found[manifest.partitions] += 1
        assert reads(state, door.flow) == before, at
        if at % 5 == 0 or not dead:
            rescale(state, 1)
            case.recovered(state, len(case.calls) - 1, len(case.calls) - 1)
            dd.gc(state, grace=0, orphans=0)
            store = LocalStore(state, readonly=True)
            now = load_newest_manifest(store)
            assert now is not None and collect_file_names(store, now) <= {entry.name for entry in store.list_blobs()}
        at += 1 if kind == "half" else 2
    assert found[1] > 5 and found[2] >= 1


def test_the_horizon_of_a_local_state_is_that_of_the_rescaled_one() -> None:
    store, steps = MemoryStore(), events(3, 4)
    with plan(replace(EPOCH, expiry=dd.Expiry(ttl=30))).open(store) as engine:
        for time, table in enumerate(steps, 1):
            engine.step({"orders": table}, time)
    rescale(store.reopen(), 3)
    manifest = load_newest_manifest(store.reopen())
    assert manifest is not None
    assert manifest.horizons == {"orders": max(table["at"].to_numpy().max() for table in steps)}
