"""Test shares of a state: together they equal one read, and each row is in its key's share."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from chance import effort
from doors import to_arrow
from hypothesis import event, given, strategies as st
from messages import raises
from msgspec.structs import replace
from parts_by_hand import Hands
from spark_session import counted
from strategies import events
from test_partitions_law import flow_of, shuffled
from test_spark import city_flow, orders_of

import ddflow as dd
from ddflow.engine.snapshot import Snapshot, find_version
from ddflow.errors import (
    CorruptState,
    CountOverflow,
    ExpressionError,
    PlanChanged,
    SnapshotExpired,
    SpecError,
    StateRefused,
)
from ddflow.partitions.driver_epochs import (
    Partitioning,
    PartitionReader,
    find_partitioning,
    find_partitions_of_values,
    read_contents,
    read_updates,
)
from ddflow.partitions.epoch_start import StateVersion
from ddflow.plan.compatibility import resolve_plan
from ddflow.storage.folder.local import LocalStore
from ddflow.storage.memory import MemoryStore


def shares_of(store: Any, flow: dd.Flow, name: str) -> list[pa.Table]:
    """What the shares hold, one after the other; of a collection that is read whole, that."""
    manifest, how = find_version(store), find_partitioning(flow, name)
    if how is None or manifest.partitions == 1:
        return [read_contents(Snapshot(store, manifest, flow), name)]
    return [
        read_contents(PartitionReader(store, manifest, flow, how.stage, n), name) for n in range(manifest.partitions)
    ]


@effort(30)
@given(st.data(), st.integers(2, 4), st.integers(0, 99))
def test_shares_together_are_what_one_read_gives(data: st.DataObject, partitions: int, seed: int) -> None:
    scenario = data.draw(shuffled())
    inputs = scenario["inputs"]
    flow, store = flow_of(scenario), MemoryStore()
    event("hold-back" if flow.holds_back else "epoch mode")
    try:
        hands = Hands(flow, store, partitions, random.Random(seed))
        for _ in range(data.draw(st.integers(1, 2))):
            drawn = {name: data.draw(events(input, most=10)) for name, input in inputs.items()}
            hands.epoch({name: to_arrow(inputs[name]["columns"], rows) for name, rows in drawn.items()})
        if flow.holds_back:
            hands.epoch({}, close=True)
    except (CountOverflow, ExpressionError, SpecError) as error:
        event(type(error).__name__)
        return
    flow = resolve_plan(find_version(store).plan, flow, "the state")  # whose joins may share their sides
    for name in (*flow.outputs, *flow.inputs):
        expected = read_contents(Snapshot(store, find_version(store), flow), name)
        tables, how = shares_of(store, flow, name), find_partitioning(flow, name)
        assert counted(pa.concat_tables(tables)) == counted(expected), name
        assert counted(expected.drop(["_time"])) == counted(dd.read(store, name, flow=flow)), name
        for number, table in enumerate(tables if how is not None else ()):
            by = (how.by if how is not None else None) or ()
            for row in range(min(table.num_rows, 3)):
                values = {column: [table.column(column)[row]] for column in by}
                there = find_partitions_of_values(by, values, find_version(store))
                event("a share without a key" if there is None else "a share")
                assert there is None or there == [number], name
    hands.close()


def test_what_is_shared_and_what_is_not() -> None:
    flow = city_flow()
    flow.output("none", flow.inputs["orders"].project(["city"]))
    flow.output("together", flow.outputs["diff"].consolidate())
    found = {name: find_partitioning(flow, name) for name in (*flow.outputs, *flow.inputs)}
    assert found["orders"] == Partitioning(0, ("id",)) == found["paid"]
    assert found["by_city"] == Partitioning(1, ("city",))
    assert found["sizes"] == Partitioning(2, ("count",)) and found["all"] == Partitioning(1, ())
    assert found["diff"] is found["none"] is found["together"] is None
    back = dd.Flow()
    back.output("out", back.upserts("a", {"id": pa.int64()}, dd.Upsert("id")).to_upserts("id"))
    assert find_partitioning(back, "out") == Partitioning(0, ("id",))


def test_a_key_is_looked_for_in_its_partition_only() -> None:
    flow = dd.Flow()
    rows = flow.upserts("a", {"a": pa.int64(), "b": pa.string(), "n": pa.int64()}, dd.Upsert(["b", "a"]))
    flow.output("rows", rows.project({"n": "n", "a": "a", "c": "b"}))
    store = MemoryStore()
    hands = Hands(flow, store, 16, random.Random(1))
    hands.epoch({"a": pa.table({"a": [*range(50)], "b": [f"b{n}" for n in range(50)], "n": [7] * 50})})
    tables, manifest = shares_of(store, flow, "rows"), find_version(store)
    how = find_partitioning(flow, "rows")
    assert how == Partitioning(0, ("c", "a")) and sum(table.num_rows > 0 for table in tables) > 8
    for a in range(50):
        values = {"a": [pa.scalar(a)], "c": [pa.scalar(f"b{a}")], "n": [pa.scalar(7)]}
        numbers = find_partitions_of_values(("c", "a"), values, manifest)
        assert numbers is not None and len(numbers) == 1 and a in tables[numbers[0]].column("a").to_pylist()
    two = {"a": [pa.scalar(1), pa.scalar(2)], "c": [pa.scalar("b1")]}
    assert len(find_partitions_of_values(("c", "a"), two, manifest) or ()) in (1, 2)
    assert find_partitions_of_values(("c", "a"), {"a": [pa.scalar(1)]}, manifest) is None
    assert find_partitions_of_values((), {}, manifest) is None
    assert find_partitions_of_values(("c", "a"), {"a": [], "c": [pa.scalar("b1")]}, manifest) == []
    many = {"a": [pa.scalar(n) for n in range(40)], "c": [pa.scalar(str(n)) for n in range(40)]}
    assert find_partitions_of_values(("c", "a"), many, manifest) is None
    hands.close()


def test_times_and_changes_by_shares() -> None:
    flow, store = city_flow(), MemoryStore()
    hands = Hands(flow, store, 3, random.Random(2), retain=9)
    with flow.open(retain=9) as engine:
        for epoch in (1, 2, 3):
            rows = orders_of(60, seed=epoch)
            hands.epoch({"orders": rows})
            engine.step({"orders": rows}, epoch)
        manifest = find_version(store)
        for name in ("paid", "by_city", "orders"):
            how = find_partitioning(flow, name)
            assert how is not None
            shares = [PartitionReader(store, manifest, flow, how.stage, n) for n in range(3)]
            then = pa.concat_tables([read_contents(share, name, as_of=1) for share in shares])
            assert set(then.column("_time").to_pylist()) <= {1}
            assert counted(then.drop(["_time"])) == counted(engine.read(name, as_of=1))
            came = pa.concat_tables([read_contents(share, name, as_of=3, after=1) for share in shares])
            assert set(came.column("_time").to_pylist()) <= {3}
            assert counted(came.drop(["_time"])) == counted(engine.changes(name, 1, 3))
    hands.close()


def test_a_version_is_what_it_says_or_an_error(tmp_path: Path) -> None:
    flow = dd.Flow()
    flow.output("out", flow.upserts("a", {"id": pa.int64()}, dd.Upsert("id")))
    place = str(tmp_path / "state")
    with flow.open(place, grace=0) as engine:
        engine.step({"a": pa.table({"id": [1]})}, 1)
        store = LocalStore(place, create=False, readonly=True)
        version = StateVersion.of_manifest(store, find_version(store), "owner")
        assert read_updates(version, None, "out", None).to_pylist() == [{"id": 1, "_time": 1, "_diff": 1}]
        with raises(StateRefused):
            read_updates(version._replace(digest="0" * 32), None, "out", None)
        with raises(StateRefused):
            read_updates(version._replace(number=9), None, "out", None)
        with raises(StateRefused):
            read_updates(version._replace(store=str(tmp_path / "other")), None, "out", None)
        for time in range(2, 80):
            engine.step({"a": pa.table({"id": [time]})}, time)
        with raises(SnapshotExpired):
            read_updates(version, None, "out", None)
        other = dd.Flow()
        other.output("out", other.upserts("b", {"id": pa.int64()}, dd.Upsert("id")))
        with pytest.raises(PlanChanged):
            resolve_plan(find_version(store).plan, other, place)
        store.close()


def test_upserts_come_as_those_and_have_no_changes() -> None:
    flow = dd.Flow()
    people = flow.upserts("people", {"id": pa.int64(), "city": pa.string()}, dd.Upsert("id"))
    flow.output("out", people.to_upserts("id"))
    store = MemoryStore()
    with flow.open(store) as engine:
        engine.step({"people": pa.table({"id": [1, 2], "city": ["Bern", "Chur"]})}, 5)
    reading = Snapshot(store, find_version(store), flow)
    table = read_contents(reading, "out")
    assert table.schema == flow.outputs["out"].updates_schema(flow.time_type)
    assert sorted(row["id"] for row in table.to_pylist()) == [1, 2]
    with raises(SpecError):
        read_contents(reading, "out", after=5)


def test_a_share_with_what_is_not_its_own_is_damage() -> None:
    flow, store = city_flow(), MemoryStore()
    hands = Hands(flow, store, 2, random.Random(3))
    hands.epoch({"orders": orders_of(50)})
    manifest = find_version(store)
    with raises(CorruptState):
        PartitionReader(store, manifest, flow, 1, -1)  # the other stage's
    swapped = manifest.inventories[1::-1] + manifest.inventories[2:]
    with raises(CorruptState):
        PartitionReader(store, replace(manifest, inventories=swapped), flow, 0, 0)
    hands.close()


@pytest.mark.parametrize(
    ("kind", "ends"),
    [(pa.timestamp("ms"), (-62_135_596_800_000, 253_402_300_799_999)), (pa.date32(), (-719_162, 2_932_896))],
    ids=["timestamp", "date"],
)
def test_keys_at_the_ends_of_the_calendar_are_found_and_told(kind: pa.DataType, ends: tuple[int, int]) -> None:
    flow, store = dd.Flow(), MemoryStore()
    flow.output("rows", flow.upserts("a", {"at": kind, "n": pa.int64()}, dd.Upsert("at")))
    hands = Hands(flow, store, 4, random.Random(1))
    words = [ends[0], 5, ends[1]]
    at = pa.array(words, pa.int64() if kind.bit_width == 64 else pa.int32()).view(kind)
    hands.epoch({"a": pa.table({"at": at, "n": [1, 2, 3]})})
    tables, manifest = shares_of(store, flow, "rows"), find_version(store)
    for row in range(3):
        (number,) = find_partitions_of_values(("at",), {"at": [at[row]]}, manifest) or ()
        assert at[row] in list(tables[number].column("at"))
        with dd.Snapshot.open(store) as snapshot:
            assert snapshot.why("a", words[row]).row is not None
    hands.close()
