"""Test that `get` gives the row that a read gives, for groups with ties and nulls, in memory, spilled and in files."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import ddflow as dd
from ddflow.dataflow.spill import spill_to_fit_budget

SCHEMA = {"id": pa.int64(), "g": pa.string(), "v": pa.float64(), "n": pa.int32()}
KEYS: dict[str, list[list[str]]] = {
    "top": [["id"]],
    "names": [["id"]],
    "ranked": [["id"], ["g", "place"]],
    "later": [["id"]],
    "first": [["g"]],
    "best": [["id"], []],
    "ends": [["g"]],
    "most": [["g"]],
    "least": [["g"]],
    "lists": [["g"]],
    "both": [["g"]],
}


def plan() -> dd.Flow:
    flow = dd.Flow()
    rows = flow.upserts("rows", SCHEMA, dd.Upsert(key="id"))
    top = rows.top(3, by=["n desc"], partition_by="g")
    flow.output("top", top)
    flow.output("names", top.project(["id", "n"]))
    flow.output("ranked", rows.top(4, by="v", partition_by="g", rank_name="place"))
    flow.output("later", rows.top(2, by="v", partition_by="g", offset=2))
    flow.output("first", rows.top(1, by="n", partition_by="g"))
    flow.output("best", rows.filter("n > 0").top(1, by="n desc"))
    flow.output("ends", rows.group_by("g").agg(a="min(n)", b="max(n)"))
    flow.output("most", rows.group_by("g").agg(b="max(v)"))
    flow.output("least", rows.group_by("g").agg(b="min(v)"))
    flow.output("lists", rows.project(["g", "n"]).group_by("g").agg(all="array_agg(n)"))
    flow.output("both", rows.group_by("g").agg(s="sum(n)", a="avg(v)", b="max(n)"))
    return flow


def check(reading: Any, as_of: int | None = None) -> None:
    for name, keys in KEYS.items():
        rows = reading.read(name, as_of).drop_columns(["_diff"]).to_pylist()
        assert rows, name
        for key in keys:
            by = {tuple(row[column] for column in key): row for row in rows}
            asked = [*by, *((id,) for id in range(60) if key == ["id"]), *([("Nowhere",)] if key == ["g"] else [])]
            for values in asked:
                found = reading.get_as_of(name, dict(zip(key, values, strict=True)), as_of)
                assert repr(found) == repr(by.get(values)), (name, key, values, as_of)  # NaN is not equal to NaN


@pytest.mark.parametrize("how", ["memory", "spilled", "durable"])
def test_get_gives_the_row_of_a_read(how: str, tmp_path: Path) -> None:
    rng = random.Random(5)
    options: dict[str, Any] = {"memory": "16MB", "spill": tmp_path} if how == "spilled" else {}
    place = [tmp_path / "state"] if how == "durable" else []
    with plan().open(*place, retain=3, **options) as engine:
        for time in range(1, 6):
            ids = rng.sample(range(60), 25)
            columns = {
                "id": ids,
                "g": [rng.choice(["a", "b", "c", None]) for _ in ids],
                "v": [rng.choice([0.5, -1.0, float("nan"), None]) for _ in ids],
                "n": pa.array([rng.choice([1, 2, 3, None]) for _ in ids], pa.int32()),
            }
            engine.step({"rows": pa.table(columns)}, time)
            if how == "spilled" and time == 3:
                with engine.dataflow.guard.lock_for_write("spill"):
                    spill_to_fit_budget(engine.dataflow.budget, engine.dataflow.graph, {}, share=0)
        for as_of in (None, 3, 4, 5):
            check(engine, as_of)
        assert all(lookup.is_possible for lookup in engine.dataflow.graph.lookups.values())
    if place:
        with plan().open(*place) as engine:
            check(engine)
        with dd.Snapshot.open(place[0]) as snapshot:
            check(snapshot)


def test_a_top_of_a_large_group_reads_only_its_first_rows() -> None:
    flow = dd.Flow()
    rows = flow.upserts("rows", {"id": int, "v": int}, dd.Upsert(key="id"))
    flow.output("top", rows.top(2, by="v desc"))
    flow.output("ends", rows.group_by().agg(least="min(v)", most="max(v)"))
    with flow.open() as engine:
        engine.step({"rows": {"id": list(range(5000)), "v": list(range(5000))}})
        for name, node in flow.outputs.items():
            running: Any = engine.dataflow.graph.opened[node]
            high, low = running.keys.compute_identities([], 1)
            assert running.look_up_group(high, low).references.size <= 4, name
        assert engine.get("top", id=4999) == {"id": 4999, "v": 4999} and engine.get("top", id=7) is None
        assert engine.get("ends") == {"least": 0, "most": 4999}
