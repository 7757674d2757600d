"""Test sharing: operators, outputs and readers of one arrangement use a single copy, measured in bytes."""

from __future__ import annotations

import pyarrow as pa

import ddflow as dd
from ddflow.columns.hashing import Secret

SCHEMA = pa.schema({"id": pa.int64(), "city": pa.string()})
ROWS = pa.table({"id": range(20_000), "city": [f"city {i % 97}" for i in range(20_000)]}, SCHEMA)


def bytes_held(outputs: int, readers: int = 0) -> tuple[int, dict[str, int]]:
    """Bytes in memory after one step, with so many outputs and readers over one input."""
    flow = dd.Flow()
    people = flow.upserts("people", SCHEMA, dd.Upsert("id"))
    flow.output("all", people)
    for i in range(outputs):
        flow.output(f"some {i}", people.filter(f"id > {i}").project(["city"]))
    with flow.open(secret=Secret(1, 2)) as engine:
        engine.step({"people": ROWS}, 1)
        held = [engine.reader("people") for _ in range(readers)]
        assert all(reader.read().num_rows == 20_000 for reader in held)
        stats = engine.stats()
        return stats["bytes_resident"], {name: engine.read(name).num_rows for name in flow.outputs}


def test_operators_and_readers_of_one_input_share_its_arrangement() -> None:
    alone, _ = bytes_held(0)
    shared, rows = bytes_held(5, readers=3)
    assert shared == alone
    assert len(rows) == 6 and all(rows.values())


def test_a_count_asked_for_twice_is_held_once() -> None:
    def held(times: int) -> tuple[int, list[list[dict[str, object]]]]:
        flow = dd.Flow()
        people = flow.upserts("people", SCHEMA, dd.Upsert("id"))
        for i in range(times):
            flow.output(f"by city {i}", people.count("city"))
        with flow.open(secret=Secret(1, 2)) as engine:
            engine.step({"people": ROWS}, 1)
            stats = engine.stats()
            assert len(stats["arrangements"]) == 2
            return stats["bytes_resident"], [engine.read(name).sort_by("city").to_pylist() for name in flow.outputs]

    (once, [expected]), (thrice, found) = held(1), held(3)
    assert thrice == once
    assert found == [expected] * 3


def test_counts_that_differ_are_not_shared() -> None:
    flow = dd.Flow()
    people = flow.upserts("people", SCHEMA, dd.Upsert("id"))
    assert people.count("city") is people.count(["city"])
    assert people.count("city") is not people.count("city", name="n")
    assert people.count("city") is not people.count("id")
    assert people.count() is people.count(["id", "city"])
