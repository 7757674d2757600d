"""Test that deleting every row of all inputs, then ``compact()``, leaves no rows or groups in any arrangement.

This holds for every operator in the plan. Only tombstones of upserts stay. Sums of floats are exactly 0 in between.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from chance import mid_test, seeded
from operator_table import COLUMNS, MADE, TABLE
from tpch_feed import Feed, files, flow_with, with_gone
from tpch_queries import QUERIES, TYPES

import ddflow as dd

Step = dict[str, pa.Table]
INPUTS = (*TYPES, "upserts")
"""Names of upserts, which keep tombstones."""
LASTING = ("constant",)
"""What a constant holds begins with the first event, and stays."""
OVER_ALL = (6, 11, 14, 15, 17, 19, 22)
"""Queries of an aggregate over all rows: SQL says that it has a row, also of nothing."""


def small() -> dd.Flow:
    """Every operator, and every verb that is made of some."""
    flow = dd.Flow()
    schema = {"id": pa.int64(), **COLUMNS, "gone": pa.bool_()}
    rows = flow.upserts("upserts", schema, dd.Upsert(key="id", delete=dd.tombstone("gone", True)))
    for name, law in (TABLE | MADE).items():
        flow.output(name, law.make(rows.project(list(COLUMNS))))
    return flow


def small_steps() -> Iterator[Step]:
    """Rows that come, change and go, and at last are all deleted."""
    chance = seeded("taken away")
    for step in range(8):
        events = [
            {
                "id": each,
                "city": chance.choice([None, "Bern", *"abcdefgh"]),
                "n": chance.choice([None, -1, 0, 1, 2, 3]),
                "tags": chance.choice([None, [], ["a"], ["a", "b"]]),
                "gone": chance.random() < (0.2 if step < 6 else 0.6 if step < 7 else 1),
            }
            for each in (range(40) if step == 7 else chance.sample(range(40), 25))
        ]
        if step in (0, 7):  # whatever is drawn, these give each operator something
            lone = {"city": "alone", "n": None, "tags": None, "gone": step == 7}
            events += [{"id": 100, **lone}, {"id": 101, **lone, "city": "Bern", "n": 1}]
        schema = pa.schema([("id", pa.int64()), *COLUMNS.items(), ("gone", pa.bool_())])
        yield {"upserts": pa.Table.from_pylist(events, schema)}


def tpch_steps(folder: Path, names: list[str]) -> Iterator[Step]:
    """Some steps of TPC-H, then half of all rows go, then all."""
    feed = Feed(files(folder, 0.01), 4000, names=names)
    yield from feed.steps(3)
    for part in (2, 1):
        out = {}
        for name in names:
            table = feed.tables[name].slice(0, feed.tables[name].num_rows // part)
            out[name] = table.append_column("gone", pa.array([True] * table.num_rows)).cast(with_gone(TYPES[name]))
        yield out


def left(engine: dd.Engine) -> dict[str, tuple[int, int]]:
    """What arrangements hold but those of constants: rows or groups, and versions; of inputs rows alone."""
    figures = engine.stats()["arrangements"]
    found = {
        name: (each["keys"], 0 if name in INPUTS else each["versions"])
        for name, each in figures.items()
        if not name.startswith(LASTING)
    }
    return {name: held for name, held in found.items() if any(held)}


def taken_away(flow: dd.Flow, steps: Iterator[Step], state: Path | None, **options: Any) -> None:
    """Take the steps, on a state each in an engine of its own; then nothing is left."""
    engine, told = flow.open(state, **options), Counter[str]()
    for step in steps:
        for name, updates in engine.step(step).items():
            told[name] += updates.num_rows
        if state is not None:
            engine.close()
            engine = flow.open(state, **options)
    held = engine.stats()["arrangements"]
    engine.compact()
    assert left(engine) == {}
    assert {name: engine.read(name).num_rows for name in flow.outputs} == dict.fromkeys(flow.outputs, 0)
    idle = [name for name, each in held.items() if not each["written"] and state is None]
    assert len(idle) < 0.1 * len(held), f"they held nothing, so they show nothing: {idle}"
    assert [name for name in flow.outputs if not told[name] and name not in LASTING] == [], "they gave nothing"
    engine.close()


def ways(way: str, folder: Path) -> dict[str, Any]:
    """The options of `flow.open`."""
    state = folder / "state" if way == "on a state" else None
    return {"state": state} | {
        "under a budget": {"memory": "16MB", "spill": folder},
        "on threads": {"threads": 2},
    }.get(way, {})


@pytest.mark.drawn(2)
@pytest.mark.parametrize("way", ["in memory", "under a budget", "on a state", "on threads"])
def test_every_operator_ends_with_nothing(way: str, tmp_path: Path) -> None:
    taken_away(small(), small_steps(), **ways(way, tmp_path))


@mid_test
@pytest.mark.drawn(1)
@pytest.mark.parametrize("way", ["in memory", "under a budget"])
def test_queries_of_tpch_end_with_nothing(way: str, tmp_path: Path) -> None:
    flow, names = flow_with([number for number in QUERIES if number not in OVER_ALL], 0.01)
    taken_away(flow, tpch_steps(tmp_path, names), **ways(way, tmp_path))


FLOATS = [0.1, -0.1, 0.2, 1e300, -1e300, 1e-300, 5e-324, 3.0, -7.25, 1.7e308, 1.7e308, math.inf, -math.inf, math.nan]


def test_sums_of_floats_are_exactly_0_when_their_rows_have_gone() -> None:
    flow = dd.Flow()
    rows = flow.updates("rows", {"city": pa.string(), "x": pa.float64(), "n": pa.int64()}, diff="n", keep=True)
    sums = "sum(x)", "avg(x)", "var_pop(x)", "stddev_pop(x)"
    flow.output("out", rows.group_by("city").agg(**{f"a{at}": text for at, text in enumerate(sums)}))
    chance = seeded("sums of floats")
    with flow.open() as engine:
        present = list[tuple[str, float]]()
        anchors = [("Bern", 0.0), ("Basel", 0.0)]
        engine.step({"rows": floats(anchors, 1)})
        for _ in range(10):
            come = [(chance.choice(["Bern", "Basel"]), chance.choice(FLOATS)) for _ in range(50)]
            present += come
            engine.step({"rows": floats(come, 1)})
            chance.shuffle(present)
            gone, present = present[:40], present[40:]
            engine.step({"rows": floats(gone, -1)})
        step = engine.step({"rows": floats(present, -1)})["out"].to_pylist()
        zeros = {(row["city"], *(repr(row[f"a{at}"]) for at in range(4))) for row in step if row["_diff"] > 0}
        assert zeros == {(city, "0.0", "0.0", "0.0", "0.0") for city, _ in anchors}
        engine.step({"rows": floats(anchors, -1)})
        engine.compact()
        assert engine.read("out").num_rows == 0
        assert left(engine) == {}


def floats(rows: list[tuple[str, float]], diff: int) -> pa.Table:
    """The rows, each so many times."""
    cities, numbers = [city for city, _ in rows], [number for _, number in rows]
    return pa.table({"city": cities, "x": pa.array(numbers, pa.float64()), "n": [diff] * len(rows)})
