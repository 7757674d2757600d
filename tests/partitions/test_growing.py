"""Test new outputs and inputs on a partitioned state: the next epoch gives the same rows as a single engine.

The expected result comes from one engine with a separate state, opened with the same plans at the same times. Plans
have joins, counts, tops, aggregates and constants before and after the change, so that operators move between stages
and partitions. Tasks run in this process (``parts_by_hand``); ``test_spark_state`` runs one such plan on Spark.
"""

from __future__ import annotations

import random
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from chance import effort, long_test
from every_operator import NARROW, plan
from hypothesis import event, given, note, strategies as st
from messages import raises
from parts_by_hand import Hands
from spark_session import counted
from test_dropping import newest_of, people, some
from test_evolve import flow_without
from test_partitions_joins import NAMES, compare, epochs, flow_of

import ddflow as dd
from ddflow.engine.run.delivery import Delivery
from ddflow.errors import MissingReceipts, PlanChanged, ReplayMismatch
from ddflow.partitions import driver_epochs
from ddflow.partitions.driver_epochs import DriverEpochs, sync_state
from ddflow.partitions.receipt import gather_receipts
from ddflow.storage.memory import MemoryStore


def hands_of(flow: dd.Flow, store: Any, partitions: int | None = None, seed: int = 7) -> Hands:
    hands = Hands(flow, store, partitions, random.Random(seed))
    hands.budgets = [None, None, 64 << 20]
    return hands


def check(hands: Hands, engine: dd.Engine) -> None:
    """The state is in order, and holds what the engine does."""
    store = hands.store.reopen()  # type: ignore[attr-defined]
    for name in hands.cut.flow.outputs:
        assert counted(dd.read(store, name)) == counted(engine.read(name)), name
    report = dd.fsck(store)
    assert report.ok, str(report)
    hands.close()


@long_test
@effort(40)
@given(st.data(), st.lists(st.sampled_from(NAMES), min_size=2, max_size=5, unique=True), st.booleans())
def test_new_outputs_are_given_as_one_engine_gives_them(data: st.DataObject, names: list[str], time: bool) -> None:
    few, number = names[: data.draw(st.integers(1, len(names) - 1))], data.draw(st.sampled_from([1, 2, 3]))
    hands, twin = hands_of(flow_of(few, time), MemoryStore(), number, data.draw(st.integers(0, 99))), MemoryStore()
    with flow_of(few, time, lateness=False).open(twin) as engine:
        for inputs in data.draw(epochs(time)):
            compare(hands, engine, inputs)
    hands.close()
    hands = hands_of(flow_of(names, time), hands.store.reopen())  # type: ignore[attr-defined]
    note(str(hands.cut))
    with flow_of(names, time, lateness=False).open(twin.reopen()) as engine:
        for inputs in data.draw(epochs(time)):
            compare(hands, engine, inputs)
        check(hands, engine)
    event(f"{hands.cut.stages} stages")


def rows(first: int, last: int) -> pa.Table:
    """Rows of the plan with every operator."""
    given = [
        {"id": n, "city": [None, "Bern", "Chur"][n % 3], "n": [None, 1, 2, 3][n % 4], "tags": [["a", "b"], None][n % 2]}
        for n in range(first, last)
    ]
    return pa.Table.from_pylist(given, pa.schema({"id": pa.int64()} | NARROW))


@long_test
def test_every_operator_may_be_new() -> None:
    few = flow_without(plan(NARROW), *[name for name in plan(NARROW).outputs if name not in ("rows", "by_n", "join")])
    hands, twin = hands_of(few, MemoryStore(), 3), MemoryStore()
    with few.open(twin) as engine:
        compare(hands, engine, {"a": rows(0, 30)})
    hands.close()
    hands = hands_of(plan(NARROW), hands.store.reopen())  # type: ignore[attr-defined]
    with plan(NARROW).open(twin.reopen()) as engine:
        compare(hands, engine, {})
        compare(hands, engine, {"a": rows(20, 40)})
        check(hands, engine)


@pytest.mark.parametrize("partitions", [1, 4])
def test_what_the_new_plan_partitions_otherwise_moves_and_a_new_input_is_empty(partitions: int) -> None:
    def flow(*names: str, more: bool = False) -> dd.Flow:
        made = people(*names)
        if more:
            made.output("logged", made.updates("log", {"id": int}).count("id"))
        return made

    hands, twin = hands_of(flow("with_key"), MemoryStore(), partitions), MemoryStore()
    with flow("with_key").open(twin) as engine:
        for number in range(2):
            compare(hands, engine, some(number))
    hands.close()
    hands = hands_of(flow("with_key", "pairs", more=True), hands.store.reopen())  # type: ignore[attr-defined]
    assert hands.coordinator.growing is not None
    assert hands.coordinator.growing.target.moves == (partitions > 1)
    with flow("with_key", "pairs", more=True).open(twin.reopen()) as engine:
        for number in range(2, 4):
            compare(hands, engine, some(number) | {"log": pa.table({"id": [number, 7]})})
        check(hands, engine)


@pytest.mark.parametrize("name", ["people", "by_city"])
def test_what_is_there_already_may_be_put_out(name: str) -> None:
    def flow(*names: str) -> dd.Flow:
        made = people("people")
        made.output("of by_city", (counts := made.inputs["people"].count("city")).filter("count > 1"))
        made.outputs = {
            each: {"people": made.inputs["people"], "by_city": counts}.get(each, made.outputs["of by_city"])
            for each in names
        }
        return made

    hands, twin = hands_of(flow("of by_city"), MemoryStore(), 3), MemoryStore()
    with flow("of by_city").open(twin) as engine:
        compare(hands, engine, some(0))
    hands.close()
    hands = hands_of(flow("of by_city", name), hands.store.reopen())  # type: ignore[attr-defined]
    with flow("of by_city", name).open(twin.reopen()) as engine:
        compare(hands, engine, some(1))
        check(hands, engine)


def test_nothing_happened_where_it_stops_before_the_epoch_and_a_committed_one_is_given_again() -> None:
    hands = hands_of(people("people"), MemoryStore(), 3)
    hands.epoch(some(0))
    hands.close()
    store: Any = hands.store
    before, held = newest_of(store), counted(dd.read(store.reopen(), "people"))
    for stop in ("after the tasks", "in the epoch"):
        hands = hands_of(people("people", "by_city"), store.reopen())
        hands.grow()
        if stop == "in the epoch":
            start = hands.coordinator.begin()
            with pytest.raises(MissingReceipts):
                hands.coordinator.finish(start, hands.receipts(start, some(1))[:1])
        hands.close()
        assert newest_of(store) == before and counted(dd.read(store.reopen(), "people")) == held
        assert dd.fsck(store.reopen()).ok
    hands = hands_of(people("people", "by_city"), store.reopen())
    hands.grow()
    start = hands.coordinator.begin()
    receipts = hands.receipts(start, some(1))
    digests = gather_receipts(receipts, start.version.digest, hands.cut.stages, 3)[1].digests
    committed = hands.coordinator.finish(start, receipts)
    outputs = hands.outputs(committed)
    with people("people", "by_city").open() as engine:
        steps = [engine.step(some(number), time=number + 1)["by_city"] for number in range(2)]
        assert counted(outputs["by_city"]) == counted(pa.concat_tables(steps))
        check(hands, engine)
    hands = hands_of(people("people", "by_city"), store.reopen())
    assert hands.coordinator.growing is None
    epoch = hands.coordinator.committed(epoch=2)
    assert epoch is not None
    with pytest.raises(ReplayMismatch):
        hands.coordinator.replayed(epoch, committed.rows, dict.fromkeys(digests, "00" * 16))
    again = hands.coordinator.replayed(epoch, committed.rows, digests)
    assert (again.outputs, again.replayed) == (committed.outputs, True)
    hands.close()


def test_rows_that_are_not_kept_cannot_be_counted_anew() -> None:
    def flow(*names: str) -> dd.Flow:
        made = dd.Flow()
        log = made.updates("log", {"id": int})
        for name in names:
            made.output(name, {"all": log, "count": log.count("id")}[name])
        return made

    hands = hands_of(flow("all"), MemoryStore(), 2)
    hands.epoch({"log": pa.table({"id": [1]})})
    hands.close()
    with raises(PlanChanged):
        hands_of(flow("all", "count"), hands.store.reopen())  # type: ignore[attr-defined]


def test_a_sink_of_a_new_output_gets_what_it_held_with_the_next_epoch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hands = hands_of(people("people"), MemoryStore(), 3)
    hands.epoch(some(0))
    hands.close()
    hands = hands_of(people("people", "by_city"), hands.store.reopen())  # type: ignore[attr-defined]
    sink = dd.sinks.sqlite(tmp_path / "out.db", "by_city")
    with raises(PlanChanged):
        sync_state(hands.coordinator, {"by_city": sink}, adopt=False, dry=True)
    epochs = DriverEpochs(hands.coordinator, lambda *given: [])
    with closing(Delivery(epochs, "by_city", sink)) as delivery:
        assert delivery.deliver_waiting_epochs(0.0)
        hands.epoch(some(1))
        assert delivery.deliver_waiting_epochs(0.0)
    with closing(sqlite3.connect(tmp_path / "out.db")) as connection:
        there = sorted(connection.execute("select * from by_city").fetchall())
    assert there == sorted(
        (each["city"], each["count"]) for each in dd.read(hands.store.reopen(), "by_city").to_pylist()
    )  # type: ignore[attr-defined]
    hands.epoch(some(2))
    grown, after = list(epochs.list_epochs())[-2:]
    monkeypatch.setattr(driver_epochs, "LARGE", 0)
    assert epochs.find_partition_splitter(grown, "by_city", ("city",)) is None, (
        "changes of a key are in two files of a partition"
    )
    assert epochs.find_partition_splitter(after, "by_city", ("city",)) is not None
    hands.close()
