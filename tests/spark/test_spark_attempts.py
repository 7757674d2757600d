"""Test task bodies with failing attempts, called like Spark does: abandoned attempts have no effect."""

from __future__ import annotations

import random
from pathlib import Path

import pyarrow as pa
import pytest
from chance import long_on_spark
from spark_faults.hands import FAILS, Hands
from spark_session import counted
from test_spark import ORDERS, city_flow, orders_of

import ddflow as dd

STORIES = [(seed, 1 + seed % 3, 32 << 20 if seed % 4 == 3 else None) for seed in range(6)]


def story(state: str, seed: int, partitions: int, memory: int | None, seen: dict[str, int]) -> None:
    """Some epochs under all that may happen to attempts; then collected, looked through, and gone on with."""
    chance, flow = random.Random(seed), city_flow()
    hands = Hands(flow, state, partitions, chance, memory=memory)
    with flow.open() as engine:
        for epoch in range(1, 6):
            rows = orders_of(chance.choice([0, 1, 30, 60]), keys=12, seed=seed * 10 + epoch)
            committed, outputs = hands.epoch({"orders": rows})
            step = engine.step({"orders": rows}, time=epoch)
            assert committed.counts == {name: n for name, n in step.verdicts.counts.items() if n}
            for name, table in outputs.items():
                assert counted(table) == counted(step[name]), (epoch, name)
            if epoch == 3:
                assert dd.fsck(state).ok
                dd.gc(state, grace=0, orphans=0)
        for name in flow.outputs:
            assert counted(dd.read(state, name)) == counted(engine.read(name)), name
    for kind, n in hands.seen.items():
        seen[kind] = seen.get(kind, 0) + n
    hands.close()


@long_on_spark
def test_whatever_becomes_of_attempts_each_diff_is_there_once(tmp_path: Path) -> None:
    seen: dict[str, int] = {}
    for seed, partitions, memory in STORIES:
        story(str(tmp_path / str(seed)), seed, partitions, memory, seen)
    assert min(seen[kind] for kind in ("whole", "hit", *FAILS)) > 5, seen


@pytest.mark.soak
def test_whatever_becomes_of_attempts_in_many_stories(tmp_path: Path) -> None:
    for seed in range(100, 400):
        story(str(tmp_path / str(seed)), seed, 1 + seed % 5, 32 << 20 if seed % 4 == 3 else None, {})


def test_a_late_attempt_of_the_first_epoch_wakes_in_the_third(tmp_path: Path) -> None:
    flow = dd.Flow()
    flow.output("o", flow.upserts("orders", ORDERS, dd.Upsert("id", order_by="at")))
    chance = random.Random(1)
    hands = Hands(flow, str(tmp_path / "state"), 1, chance, workers=1)
    wake, hands.wake = hands.wake, lambda: None  # type: ignore[method-assign]
    with flow.open() as engine:
        for epoch in range(1, 9):
            rows = orders_of(20, seed=epoch)
            if epoch == 6:
                asleep = len(hands.late)
                wake()  # and leave parts of the past in the cache
            _, outputs = hands.epoch({"orders": rows})
            assert counted(outputs["o"]) == counted(engine.step({"orders": rows}, time=epoch)["o"])
        assert counted(dd.read(str(tmp_path / "state"), "o")) == counted(engine.read("o"))
    assert asleep > 0 and isinstance(rows, pa.Table)
    wake()
    hands.close()
