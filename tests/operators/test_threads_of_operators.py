"""Test that operators give the same rows in the same order with one thread and with several, in memory and spilled."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import tight

import ddflow as dd
from ddflow.columns.hashing import Secret
from ddflow.columns.threads import Threads

WAYS = ["memory", "spilled", "durable"]


def flow_of() -> dd.Flow:
    flow = dd.Flow()
    orders = flow.upserts("orders", {"id": int, "of": int, "note": str, "n": int}, dd.Upsert("id", delete="n is null"))
    people = flow.upserts("people", {"of": int, "city": str}, dd.Upsert("of", delete="city is null"))
    rows = orders.join(people, on="of")
    flow.output("joined", rows)
    flow.output("repeated", orders.project(["of", "n"]).join(rows.project(["of", "city"]), on="of"))
    flow.output("padded", orders.project(["of", "note"]).join(people.project(["of", "city"]), on="of", how="left"))
    flow.output("sums", rows.group_by("city").agg(n="count(*)", s="sum(n)", a="avg(n)", least="min(n)"))
    flow.output("counted", rows.project(["note"]).count())
    flow.output("best", orders.top(3, by="n desc", partition_by="of"))
    flow.output("notes", orders.project(["note"]).distinct().to_upserts("note"))
    return flow


def steps_of(seed: int) -> list[dict[str, pa.Table]]:
    """Steps that each change many orders of few people, so that groups are large, and some are empty."""
    chance, out = np.random.default_rng(seed), []
    for n in (700, 400, 3, 500, 300):
        note = pa.array([f"note {i}" for i in chance.integers(0, 40, n)])
        orders = {
            "id": chance.integers(0, 500, n),
            "of": pa.array(chance.integers(0, 90, n), mask=chance.random(n) < 0.1),
        }
        orders |= {"note": note, "n": pa.array(chance.integers(-9, 9, n), mask=chance.random(n) < 0.2)}
        m = n // 4
        city = pa.array([f"city {i}" for i in chance.integers(0, 12, m)], mask=chance.random(m) < 0.2)
        out.append({"orders": pa.table(orders), "people": pa.table({"of": chance.integers(0, 90, m), "city": city})})
    return out


def run(seed: int, threads: int, way: str, place: Path) -> list[Any]:
    """Return the updates of all steps and the final rows, each in the order in which ddflow returned them."""
    options: dict[str, Any] = {"memory": "16MB", "spill": place / "spill"} if way == "spilled" else {}
    (place / "spill").mkdir(parents=True)
    state, out = [place / "state"] if way == "durable" else [], list[Any]()
    engine = flow_of().open(*state, secret=Secret(5, 6), threads=threads, **options)
    for number, inputs in enumerate(steps_of(seed)):
        step = engine.step(inputs, time=number)
        out += [(name, step[name]) for name in engine.flow.outputs]
        if way == "spilled":
            tight.spill(engine, 300 * (number % 3))
        if way == "durable" and number == 2:
            engine.close()
            engine = flow_of().open(*state, threads=threads)
        engine._check_invariants()
    out += [(name, engine.read(name)) for name in engine.flow.outputs]
    engine.close()
    return out


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("seed", [1, 2])
def test_the_rows_and_their_order_do_not_depend_on_the_number_of_threads(
    seed: int, way: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = {1: run(seed, 1, way, tmp_path / "1")}
    monkeypatch.setattr(Threads, "waking", 1)
    for threads in (2, 3):
        for (name, one), (_, other) in zip(found[1], run(seed, threads, way, tmp_path / str(threads)), strict=True):
            assert one.equals(other), name
