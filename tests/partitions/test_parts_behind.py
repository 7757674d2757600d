"""Test the law of lagging parts: any worker with an open part may run the next step, with an engine's results.

A part may be some epochs behind the state, while other workers merged the runs of the state and wrote new runs.
"""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from chance import covering, long_test, mid_test
from hypothesis import given, strategies as st
from messages import raises
from parts_by_hand import Hands
from spark_session import counted
from strategies import events
from test_durable import small_spines
from test_expiry import expiring, rows_of
from test_partitions_law import agree, arrow, shuffled
from tight import tiny

import ddflow as dd
from ddflow.columns.hashing import Secret
from ddflow.errors import CountOverflow, DdflowError
from ddflow.partitions.receipt import PAST
from ddflow.storage.memory import MemoryStore
from ddflow.trace.checkpoint import ReusedBatches


@pytest.fixture
def went(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Merges of two runs from the first event on; which ways were gone to bring an index up to date."""
    small_spines(monkeypatch)
    seen: Counter[str] = Counter()
    redirect, lost = ReusedBatches._redirect_entries, ReusedBatches._find_lost_entries

    def redirected(self: ReusedBatches, *given: Any) -> None:
        seen["a merge's output"] += 1
        redirect(self, *given)

    def found(self: ReusedBatches, *given: Any) -> Any:
        places, gone = lost(self, *given)
        seen["an entry that pointed at what is gone"] += int(gone.sum())
        return places, gone

    monkeypatch.setattr(ReusedBatches, "_redirect_entries", redirected)
    monkeypatch.setattr(ReusedBatches, "_find_lost_entries", found)
    return seen


@long_test
@pytest.mark.drawn(1)
@pytest.mark.sampled
@pytest.mark.parametrize("kind", ["any", "expiring"])
def test_any_copy_of_a_part_may_take_the_next_step(kind: str, went: Counter[str]) -> None:
    @covering(40)
    @given(data=st.data())
    def law(data: st.DataObject) -> None:
        epochs: list[dict[str, Any]] = []
        if kind == "any":
            scenario = data.draw(shuffled())
            for _ in range(data.draw(st.integers(3, 9))):
                inputs = scenario["inputs"].items()
                epochs.append({name: data.draw(events(input, most=5)) for name, input in inputs})
        else:
            scenario = data.draw(expiring())
            epochs += [{"a": data.draw(rows_of(scenario))} for _ in range(data.draw(st.integers(3, 9)))]
        partitions, seed = data.draw(st.sampled_from([1, 1, 2])), data.draw(st.integers(0, 99))
        try:
            with tiny():
                hands = agree(scenario, arrow(scenario, epochs), partitions, seed, data.draw(st.booleans()))
        except DdflowError as error:
            if type(error).__name__ not in ("CountOverflow", "ExpressionError", "SpecError"):
                raise
            return
        went["a part that was behind"] += hands.behind
        hands.close()

    law()
    assert went["a part that was behind"] > 20


@mid_test
@pytest.mark.drawn(1)
@pytest.mark.parametrize("budget", [None, 64 << 20])
@pytest.mark.parametrize("keeps", [True, False])
def test_a_part_that_is_far_behind_catches_up(
    went: Counter[str], budget: int | None, keeps: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Keys that come, change and go again over many epochs, in two copies, one of which sleeps for a while."""
    columns = {"k": pa.int64(), "v": pa.int64(), "gone": pa.bool_(), "t": pa.int64()}
    spec = dd.Upsert("k", delete=dd.tombstone("gone"), order_by="t") if keeps else dd.Upsert("k", delete="gone")
    flow = dd.Flow()
    flow.output("n", flow.upserts("a", columns, spec).count(["v"]))
    random_, numbers = random.Random(5), np.random.default_rng(5)
    hands = Hands(flow, MemoryStore(), 1, random_, secret=Secret(5, 7))
    hands.budgets, hands.copies = [budget], 2
    with flow.open() as engine, tiny():
        for epoch in range(80):
            n = 40
            rows = {
                "k": numbers.integers(0, 900, n),
                "v": numbers.integers(0, 5, n),
                "gone": numbers.random(n) < 0.4,
                "t": np.full(n, epoch),
            }
            # For a while only one of the copies gets to work.
            hands.copies = 2 if epoch % 20 < 5 else 1
            asleep = {key: parts[1:] for key, parts in hands.warm.items()} if hands.copies == 1 else {}
            hands.warm = {key: parts[:1] for key, parts in hands.warm.items()} if asleep else hands.warm
            committed, outputs = hands.epoch({"a": pa.table(rows)})
            for key, parts in asleep.items():
                hands.warm[key] += parts
            step = engine.step({"a": pa.table(rows)}, time=hands.start.time)
            assert counted(outputs["n"]) == counted(step["n"]) and committed.counts == {
                name: n for name, n in step.verdicts.counts.items() if n
            }
    assert hands.behind > 5
    assert budget is not None or min(went["a merge's output"], went["an entry that pointed at what is gone"]) > 20
    hands.close()


def test_a_part_that_is_behind_refuses_a_multiplicity_that_other_parts_made_too_large() -> None:
    flow = dd.Flow()
    a, b = (flow.updates(name, {"k": pa.int64(), name: pa.string(), "n": pa.int64()}, diff="n") for name in "ab")
    flow.output("out", a.join(b, on="k"))
    hands = Hands(flow, MemoryStore(), 1, random.Random(1))
    hands.copies = 1
    large = {"a": pa.table({"k": [1], "a": ["x"], "n": [1 << 60]})}
    hands.epoch(large)
    asleep, hands.warm = hands.warm, {}  # these parts know of one epoch, and other parts run the next ones
    for _ in range(6):
        hands.epoch(large)
    hands.warm = asleep
    with raises(CountOverflow):
        hands.epoch(large)
    assert hands.behind
    hands.close()


def test_the_driver_says_from_which_inventories_a_part_was_made() -> None:
    flow = dd.Flow()
    flow.output("o", flow.upserts("a", {"k": pa.int64()}, dd.Upsert("k")))
    hands = Hands(flow, MemoryStore(), 1, random.Random(1))
    names = [""]
    for epoch in range(PAST + 4):
        hands.epoch({"a": pa.table({"k": [epoch]})})
        start = hands.coordinator.begin()
        assert start.list_past_inventories(0, 0) == tuple(reversed(names[1:]))[:PAST]
        names.append(start.inventory_name(0, 0))
    hands.epoch({})  # which brings nothing
    assert hands.coordinator.begin().list_past_inventories(0, 0) == tuple(reversed(names[1:-1]))[:PAST]
    hands.close()
