"""Test that a state with many partitions and stages reads, proves and maintains like a single engine's state.

The partitioned state is written without Spark (``parts_by_hand``); some partitions get no rows for several epochs.
``test_laws`` compares the single engine with the twin.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import merging_strategies
import pyarrow as pa
import pytest
from chance import effort, mid_test
from hypothesis import given, note, strategies as st
from messages import raises
from msgspec import structs
from parts_by_hand import Hands
from proof_case import EPOCH, HELD, SCHEMA, WIDE, events, plan
from spark_session import counted
from strategies import events as rows_of
from test_expiry import expiring, rows_of as expiring_rows
from test_partitions_law import arrow, flow_of, shuffled
from test_proof_cli import as_json, run

import ddflow as dd
from ddflow.columns.hashing import Secret
from ddflow.engine.garbage import gc
from ddflow.engine.snapshot import Snapshot
from ddflow.errors import CorruptState, DdflowError, NotReadable, StateRefused
from ddflow.storage.manifest import Manifest, load_newest_manifest
from ddflow.storage.memory import MemoryStore
from ddflow.storage.opening import open_store
from ddflow.tools.export import open_contents
from ddflow.tools.rollback import rollback

SECRET = Secret(11, 12)
LATE = replace(HELD, lateness=20, late="drop")
SPECS = {"epochs": EPOCH, "held back": LATE, "wide": WIDE, "expiring": replace(EPOCH, expiry=dd.Expiry(ttl=30))}


def pair(
    flow: dd.Flow,
    engines: dd.Flow,
    epochs: list[dict[str, pa.Table]],
    partitions: int,
    close: bool = False,
    retain: int = 0,
    seed: int = 1,
    store: Any = None,
) -> tuple[Any, MemoryStore]:
    """A state of so many partitions, and that of an engine (whose flow has no lateness) given the same."""
    cut, whole = MemoryStore() if store is None else store, MemoryStore()
    hands = Hands(flow, cut, partitions, random.Random(seed), secret=SECRET, retain=retain)
    with engines.open(whole, secret=SECRET, retain=retain) as engine:
        for inputs in [*epochs, None] if close and flow.holds_back else epochs:
            start = hands.coordinator.begin(close=inputs is None)
            hands.epoch(inputs or {}, close=inputs is None)
            if not flow.holds_back:
                engine.step(inputs or {}, time=start.time)
                continue
            engine.push(inputs or {})
            if start.to > engine.frontier:
                engine.advance_to(start.to)
    hands.close()
    return cut.reopen() if isinstance(cut, MemoryStore) else cut, whole.reopen()


def case(kind: str, partitions: int, steps: int = 7, seed: int = 3, **options: Any) -> tuple[Any, MemoryStore]:
    """That of `proof_case`: orders, their counts by city, those of Bern."""
    spec = SPECS[kind]
    given_ = [{"orders": table} for table in events(seed, steps)]
    return pair(plan(spec), plan(replace(spec, lateness=None)), given_, partitions, **options)


def alike(cut: Any, whole: Any, flow: dd.Flow | None = None) -> None:
    """Assert that two states are read alike: at every time, and whatever is asked."""
    with Snapshot.open(cut, flow=flow) as one, Snapshot.open(whole, flow=flow) as other:
        # Where no partition was brought anything, nothing was compacted either.
        assert (one.frontier, one.last) == (other.frontier, other.last) and one.since <= other.since
        assert one.verdicts.counts == other.verdicts.counts and one.verdicts.pending == other.verdicts.pending
        names = [*one.flow.outputs, *one.flow.inputs]
        times: list[int | None] = [None]
        if one.last > dd.NEVER:
            times += range(max(other.since, other.last - 12), min(one.last + 1, dd.CLOSED))
        for name in names:
            for time in times:
                assert counted(one.read(name, time)) == counted(other.read(name, time)), (name, time)
            if len(times) > 2:
                ends = times[1], times[-1]
                assert counted(one.changes(name, *ends)) == counted(other.changes(name, *ends)), name
            assert exported(one, name) == exported(other, name), name
            told = [scd2(each, name) for each in (one, other)]
            assert told[0] == told[1] or one.since < other.since, name
        for name in one.dataflow.graph.arrangements:
            figures = [each.stats()["arrangements"][name]["keys"] for each in (one, other)]
            assert figures[0] == figures[1] == one.dataflow.graph.arrangements[name].keys
        for name, upsert in one.dataflow.graph.inputs.items():
            assert one.dataflow.admissions[name].arrived == other.dataflow.admissions[name].arrived
            assert one.dataflow.admissions[name].greatest == other.dataflow.admissions[name].greatest
            if upsert.expiring is not None and (beside := other.dataflow.graph.inputs[name].expiring) is not None:
                assert upsert.expiring.horizons.greatest == beside.horizons.greatest
        assert one.stats()["pending"] == other.stats()["pending"]
        one.dataflow.graph._check_invariants()


def exported(snapshot: Snapshot, name: str) -> Any:
    schema, tables = open_contents(snapshot, name)
    return counted(pa.concat_tables([schema.empty_table(), *tables]))


def scd2(snapshot: Snapshot, name: str) -> Any:
    """The versions of a collection, in any order; None where it has no key."""
    try:
        return counted(snapshot.scd2(name, "valid_from_", "valid_to_", "current_"))
    except NotReadable:
        return None


@pytest.mark.drawn(5)
@pytest.mark.parametrize("kind", SPECS)
@pytest.mark.parametrize("partitions", [1, 2, 5])
def test_what_was_cut_is_read_as_if_it_were_one(kind: str, partitions: int) -> None:
    cut, whole = case(kind, partitions, retain=0 if kind == "expiring" else 4)
    manifest = load_newest_manifest(cut)
    assert manifest is not None and (manifest.partitions, len(manifest.inventories)) == (partitions, 2 * partitions)
    alike(cut, whole)
    assert dd.read(cut, "by_city").num_rows == dd.read(whole, "by_city").num_rows > 1


@mid_test
@effort(60)
@given(data=st.data())
def test_of_any_plan_too(data: st.DataObject) -> None:
    kind = data.draw(st.sampled_from(["any", "any", "merging", "expiring"]))
    if kind == "any":
        scenario = data.draw(shuffled())
        given_ = [
            {name: data.draw(rows_of(input, most=8)) for name, input in scenario["inputs"].items()}
            for _ in range(data.draw(st.integers(1, 3)))
        ]
    else:
        draw, rows = {
            "merging": (merging_strategies.scenarios(tie="last", null_key="drop"), merging_strategies.events),
            "expiring": (expiring(), expiring_rows),
        }[kind]
        scenario = data.draw(draw)
        of = scenario["inputs"]["a"] if kind == "merging" else scenario
        given_ = [{"a": data.draw(rows(of, most=6))} for _ in range(data.draw(st.integers(1, 3)))]
    retain = 0 if kind == "expiring" else data.draw(st.sampled_from([0, 3]))
    try:
        cut, whole = pair(
            flow_of(scenario),
            flow_of(scenario, lateness=False),
            arrow(scenario, given_),
            data.draw(st.sampled_from([1, 2, 4])),
            data.draw(st.booleans()),
            retain,
        )
    except DdflowError as error:  # both sides say so; see test_partitions_law
        note(str(error))
        return
    alike(cut, whole, flow_of(scenario))
    assert dd.fsck(cut, flow=flow_of(scenario)).ok, str(dd.fsck(cut, flow=flow_of(scenario)))


@pytest.mark.drawn(2)
@pytest.mark.parametrize("kind", SPECS)
def test_why_and_verify_find_every_key_wherever_it_is(kind: str) -> None:
    cut, whole = case(kind, 3, retain=0 if kind == "expiring" else 4)
    log = events(3, 7)
    for number in range(9):
        key = (number, "Bern") if kind == "wide" else number
        stories = []
        for state in (cut, whole):
            with Snapshot.open(state) as snapshot:
                story = snapshot.why("orders", key, log)
            table = story.table
            stories.append((story.row, counted(table.drop_columns(["seq"])), story.settled))
        assert stories[0] == stories[1], (str(number), stories)
    with Snapshot.open(cut) as one, Snapshot.open(whole) as other:
        for row in one.read("by_city").to_pylist():
            asked = {"city": row["city"]}
            told: Any = one.why("by_city", asked)
            assert told.to_dict() == other.why("by_city", asked).to_dict()
            assert (
                told.shown.to_pylist() == [row] and sum(told.rows["orders"].column("_diff").to_pylist()) == row["count"]
            )
    found = dd.verify(cut, {"orders": log})
    assert found.inputs["orders"].ok and found.inputs["orders"].rows == dd.read(cut, "orders").num_rows
    assert list(found.operators.values()) == [0]
    short = dd.verify(cut, {"orders": log[:3]})
    assert kind == "held back" or not short.inputs["orders"].ok


def test_a_local_engine_goes_on_with_the_levels_of_one_partition_and_spark_with_what_it_wrote() -> None:
    log = events(8, 12)
    for kind in ("epochs", "expiring"):
        cut, whole = pair(plan(SPECS[kind]), plan(SPECS[kind]), [{"orders": t} for t in log[:4]], 1)
        for state in (cut, whole):
            with plan(SPECS[kind]).open(state) as engine:
                for table in log[4:8]:
                    engine.step({"orders": table}, time=engine.last + 1)
                engine.compact()
        alike(cut, whole)
        manifest = load_newest_manifest(cut)
        assert manifest is not None and len(manifest.inventories) == 1
        greatest = max(t["at"].to_numpy().max() for t in log[:8])
        assert set(manifest.horizons) == ({"orders"} if kind == "expiring" else set())
        hands = Hands(plan(SPECS[kind]), cut.reopen(), None, random.Random(2))
        assert kind == "epochs" or hands.coordinator.begin().horizons["orders"] == greatest
        with plan(SPECS[kind]).open(whole.reopen()) as engine:
            for table in log[8:]:
                start = hands.coordinator.begin()
                hands.epoch({"orders": table})
                engine.step({"orders": table}, time=start.time)
        hands.close()
        alike(cut.reopen(), whole.reopen())


def test_a_new_count_of_what_is_in_many_partitions_is_read() -> None:
    cut, whole = case("epochs", 4)
    flow = plan(EPOCH)
    flow.output("by at", flow.inputs["orders"].project(["at"]).count())
    alike(cut, whole, flow)


def test_an_engine_has_one_partition_and_says_so() -> None:
    cut, _ = case("epochs", 3)
    with raises(StateRefused):
        plan(EPOCH).open(cut)
    assert dd.read(cut, "orders").num_rows


def test_old_versions_are_kept_collected_and_gone_back_to() -> None:
    cut, _ = case("epochs", 3, steps=6)
    _, before = case("epochs", 1, steps=4)
    kept = len(cut.shared.blobs)
    assert gc(cut.reopen(), grace=0, orphans=0).files > 0 and len(cut.shared.blobs) < kept
    cut, _ = case("epochs", 3, steps=6)
    done = rollback(cut.reopen(), 4)
    assert done.manifest.epoch == 4 and done.manifest.partitions == 3 and len(done.manifest.inventories) == 6
    alike(cut.reopen(), before)
    assert dd.fsck(cut.reopen()).ok
    hands = Hands(plan(EPOCH), cut.reopen(), None, random.Random(2))
    hands.epoch({"orders": events(3, 6)[4]})
    hands.close()
    assert dd.fsck(cut.reopen()).ok and load_newest_manifest(cut).epoch == 5  # type: ignore[union-attr]


def test_migration_reads_an_old_state_of_many_partitions() -> None:
    cut, _ = case("epochs", 3)
    calls = [{"orders": table} for table in events(3, 7)]
    done = dd.migrate(cut, new := MemoryStore(), plan(EPOCH), calls)
    assert {name: table.num_rows for name, table in done.tables.items()} == dict.fromkeys(done.tables, 0)
    assert load_newest_manifest(new).partitions == 1  # type: ignore[union-attr]


def lie(store: MemoryStore, tell: Callable[[Manifest, list[Any]], Any]) -> MemoryStore:
    """Publish the newest version again with other inventories, whose checksums are right."""
    manifest = load_newest_manifest(store)
    assert manifest is not None
    given_ = [json.loads(store.map_blob(part).to_pybytes()) for part in manifest.inventories]
    given_ = tell(manifest, given_) or given_
    writer = store.reopen()
    parts = [writer.put("json", lambda sink, each=each: sink.write(json.dumps(each).encode())) for each in given_]
    new = structs.replace(manifest, number=manifest.number + 1, nonce=writer.nonce, inventories=tuple(parts))
    assert writer.publish(new.number, new.encode())
    return writer


def _swapped(manifest: Manifest, given_: list[Any]) -> None:
    given_[0], given_[1] = given_[1], given_[0]


def _lost(manifest: Manifest, given_: list[Any]) -> None:
    name = next(iter(given_[4]["operators"]))
    del given_[4]["operators"][name]


def _doubled(manifest: Manifest, given_: list[Any]) -> None:
    given_[4]["inputs"] = given_[1]["inputs"]


def _unknown(manifest: Manifest, given_: list[Any]) -> None:
    for each in given_[3:]:
        each["operators"]["none of ours"] = next(iter(each["operators"].values()))


def _fewer(manifest: Manifest, given_: list[Any]) -> None:
    given_[2]["totals"] = {}


LIES = {
    "swapped": (_swapped, "a key of partition 1", "partition 0 of 3"),
    "lost": (_lost, "inventories", "must be in all 3 of one stage"),
    "doubled": (_doubled, "inventories", "must be in all 3 of one stage"),
    "unknown": (_unknown, "it has the operators", "none of ours"),
    "fewer": (_fewer, "events were ingested", "were resolved"),
}


@pytest.mark.parametrize("name", LIES)
def test_inventories_that_do_not_fit_together_are_found(name: str) -> None:
    cut, _ = case("epochs", 3)
    tell, *words = LIES[name]
    cut = lie(cut, tell)
    report = dd.fsck(cut)
    assert any(all(word in problem.found for word in words) for problem in report.problems), str(report)
    if name != "unknown":
        with raises(CorruptState):
            dd.read(cut, "orders")


def test_a_pending_event_in_another_partition_is_found() -> None:
    cut, _ = case("held back", 3)

    def misplaced(manifest: Manifest, given_: list[Any]) -> None:
        one, other = given_[0]["inputs"]["orders"], given_[1]["inputs"]["orders"]
        one["runs"], other["runs"] = other["runs"], one["runs"]

    report = dd.fsck(lie(cut, misplaced))
    assert any("a pending event of partition 1 is in partition 0 of 3" in each.found for each in report.problems)


def test_each_byte_of_each_inventory_is_looked_at() -> None:
    cut, _ = case("epochs", 3)
    manifest = load_newest_manifest(cut)
    assert manifest is not None
    for part in manifest.inventories:
        data, put = cut.shared.blobs[part.name]
        cut.shared.blobs[part.name] = data[:-1] + b" ", put
        report = dd.fsck(cut)
        assert [each.file for each in report.problems] == [f"blobs/{part.name}"], str(report)
        cut.shared.blobs[part.name] = data, put
    assert dd.fsck(cut).ok


@pytest.fixture
def folder(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A state of 4 partitions in a folder, the working directory's ``state``."""
    monkeypatch.chdir(tmp_path)
    case("epochs", 4, store=open_store(str(tmp_path / "state")))
    yield "state"


def test_inspect_tells_how_partitions_differ(folder: str) -> None:
    found = dd.inspect(folder)
    assert (found["partitions"], found["stages"], len(found["parts"])) == (4, 2, 8)
    keys = dd.read(folder, "orders").num_rows, dd.read(folder, "by_city").num_rows
    assert [sum(each["keys"] for each in found["parts"] if each["stage"] == n) for n in (0, 1)] == list(keys)
    assert (found["inputs"]["orders"]["keys"], *(each["keys"] for each in found["operators"].values())) == keys
    assert sum(found["verdicts"].values()) == found["inputs"]["orders"]["arrived"] == 84
    shown = run("inspect", folder)
    assert "4, in 2 stages" in shown and "median" in shown and "largest, number" in shown
    assert as_json("inspect", folder)["parts"] == found["parts"]


def test_the_verbs_read_it_and_those_that_write_say_what_to_do(folder: str) -> None:
    pa_rows = pa.concat_tables(events(3, 7)).cast(SCHEMA)
    with pa.OSFile("log.arrow", "wb") as sink, pa.ipc.new_file(sink, SCHEMA) as writer:
        writer.write_table(pa_rows)
    assert "no problems" in run("fsck", folder)
    assert "agrees with its log" in run("verify", folder, "log.arrow", "--input", "orders")
    assert "holds" in run("why", folder, "3", "--input", "orders")
    counted = dd.read(folder, "by_city").column("count").to_pylist()
    assert len(as_json("why", folder, "by_city", f"count={counted[0]}")["shown"]) == counted.count(counted[0])
    run("export", folder, "by_city", "-o", "out.csv")
    assert "rescale" in run("gc", folder, "--forget", code=1)
    run("gc", folder)
