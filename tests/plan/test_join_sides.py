"""Test join sides that queries share: stored once, on any existing state, with DuckDB's rows."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from messages import raises
from sql_witness import Held, answer, duck, flow_of, rows_of, step

import ddflow as dd
from ddflow.errors import PlanChanged
from ddflow.plan.evolve import share_join_arrangements

QUERIES = {
    "amounts": "select c.city, o.amount from o join c on o.c = c.id",
    "names": "select c.name, o.status, o.id from o left join c on o.c = c.id where o.n > 1 or c.n > 1",
    "days": "select c.name, o.d from o join c on o.c = c.id",
    "sums": "select c.city, sum(o.n) s from o right join c on o.c = c.id group by c.city",
    "twice": "select a.id, b.id other from o a join o b on a.c = b.c and a.n < b.n",
    "keys": "select c.id, t.f from t join c on t.a = c.n",
}


def of(*names: str) -> dd.Flow:
    flow = flow_of()
    for name in names:
        flow.output(name, flow.sql(QUERIES[name]))
    return flow


def sides(plan: Any) -> list[list[str]]:
    """The columns of all arrangements that a plan's outputs need."""
    ahead, found = list(plan.outputs.values()), dict[Any, None]()
    while ahead:
        node = ahead.pop()
        if node not in found:
            found[node] = None
            ahead += node.inputs
    return sorted(node.schema.names for node in found if node.verb == "arrange")


def test_two_queries_over_one_join_hold_its_sides_once() -> None:
    assert sides(share_join_arrangements(of("amounts"))) == [["c", "amount"]]
    assert sides(of("amounts", "days")) == [["c", "amount"], ["c", "d"]]
    assert sides(share_join_arrangements(of("amounts", "days"))) == [["c", "amount", "d"]]
    alone = of("amounts")
    assert share_join_arrangements(alone) is alone
    with of("amounts", "days").open() as engine:
        engine.step({"o": [{"id": i, "c": i % 9, "n": 1, "gone": False} for i in range(300)]}, time=1)
        first, second = [each for each in str(engine.explain()).splitlines() if "arrange" in each]
    assert "2 operators look up rows in it; shared by amounts, days" in first
    assert second.endswith("as above")


def test_functions_of_one_name_are_told_apart_in_memory() -> None:
    flow = dd.Flow()
    left = flow.upserts("left", {"id": int, "n": int}, dd.Upsert(key="id"))
    right = flow.upserts("right", {"id": int, "m": int}, dd.Upsert(key="id"))
    small, large = (lambda rows: pc.less(rows.column("n"), 2)), (lambda rows: pc.greater(rows.column("n"), 1))
    for name, which in {"small": small, "large": large}.items():
        flow.output(name, left.filter(which).join(right, on="id"))
    with flow.open() as engine:
        table = pa.table({"id": [1, 2, 3], "n": [1, 2, 3], "m": [7, 7, 7]})
        step = engine.step({"left": table.select(["id", "n"]), "right": table.select(["id", "m"])})
        assert [row["id"] for row in step["small"].to_pylist()] == [1]
        assert [row["id"] for row in step["large"].sort_by("id").to_pylist()] == [2, 3]


def test_outputs_that_share_sides_have_the_rows_that_duckdb_gives() -> None:
    chance, held, told = (
        random.Random(3),
        Held({name: {} for name in "oct"}),
        {name: Counter[Any]() for name in QUERIES},
    )
    with of(*QUERIES).open() as engine:
        for time in range(5):
            given = engine.step(step(chance, held, 8, int(not time)), time=time)
            for name, query in QUERIES.items():
                told[name].update(rows_of(given[name]))
                wanted = answer(held, duck(query))
                assert rows_of(engine.read(name)) == wanted, name
                assert Counter({row: n for row, n in told[name].items() if n}) == wanted, name


@pytest.mark.parametrize(
    ("opened", "wanted"),
    [
        ([["amounts", "days"]] * 2, [["c", "amount", "d"]]),
        ([["amounts"], ["amounts", "days"], ["days", "amounts"]], [["c", "amount"], ["c", "d"]]),
        ([["amounts", "days"], ["amounts", "days", "names"], ["names", "amounts", "days"]], None),
        ([["names", "amounts"], ["names", "amounts", "sums"]], None),
        ([["amounts"], ["amounts", "days", "names"], [*QUERIES], [*reversed(QUERIES)]], None),
    ],
)
def test_a_state_keeps_the_sides_that_it_has(tmp_path: Path, opened: list[list[str]], wanted: Any) -> None:
    chance, held = random.Random(5), Held({name: {} for name in "oct"})
    before: list[list[str]] = []
    for time, names in enumerate(opened):
        with of(*names).open(tmp_path / "state") as engine:
            engine.step(step(chance, held, 8, int(not time)), time=time)
            for name in names:
                assert rows_of(engine.read(name)) == answer(held, duck(QUERIES[name])), (time, name)
        with dd.Snapshot.open(tmp_path / "state", flow=of(*names)) as snapshot:
            now = sides(snapshot.flow)
        assert all(each in now for each in before), "a side that the state had is another one"
        before = now
    if wanted is not None:
        assert before == wanted


def test_a_query_that_needs_more_columns_on_a_state_is_another_plan(tmp_path: Path) -> None:
    with of("amounts", "days").open(tmp_path / "state") as engine:
        engine.step({"o": [{"id": 1, "c": 2, "gone": False}]}, time=1)
    flow = of("amounts")
    flow.output("days", flow.sql("select c.name, o.status from o join c on o.c = c.id"))
    with raises(PlanChanged):
        flow.open(tmp_path / "state")
