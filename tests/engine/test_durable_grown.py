"""Test plans that have grown: additions exist from then on, and earlier epochs can still be repeated."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import ddflow as dd


def plan(*more: str, output: bool = False) -> dd.Flow:
    flow = dd.Flow()
    columns = {"id": pa.int64(), "city": pa.string()} | {name: pa.string() for name in more}
    people = flow.upserts("people", columns, dd.Upsert(key="id"))
    flow.output("people", people)
    if output:
        flow.output("by_city", people.project(["city"]).count())
        flow.output("in_bern", people.filter("city = 'Bern'").project(["id"]))
    return flow


def rows(**columns: list[Any]) -> dict[str, pa.Table]:
    return {"people": pa.table(columns)}


FIRST = rows(id=[1, 2], city=["Bern", None])


@pytest.mark.parametrize("memory", [None, "16MB"])
@pytest.mark.parametrize("outputs", [None, "out"])
def test_a_column_more_is_null_in_all_rows_there_are(tmp_path: Path, memory: str | None, outputs: str | None) -> None:
    given: Any = {"memory": memory, "outputs": outputs and tmp_path / outputs}
    with plan().open(tmp_path / "state", **given) as engine:
        told = engine.step(FIRST, 1)
    with plan("tag").open(tmp_path / "state", **given) as engine:
        again = engine.step(FIRST, 1)  # rows without the column: the digest is of what was given then
        assert again["people"].drop_columns("tag").equals(told["people"])
        assert again["people"].column("tag").null_count == 2
        assert engine.read("people").column("tag").null_count == 2
        # The same rows once more change nothing, and null is what they had.
        assert engine.step(rows(id=[1, 2], city=["Bern", None], tag=[None, None]), 2)["people"].num_rows == 0
        out = engine.step(rows(id=[1], city=["Bern"], tag=["x"]), 3)["people"].to_pylist()
        assert [(row["tag"], row["_diff"]) for row in out] == [(None, -1), ("x", 1)]
        engine._check_invariants()
    with plan("tag").open(tmp_path / "state", **given) as engine:
        assert engine.step(rows(id=[1], city=["Bern"], tag=["x"]), 3)["people"].to_pylist() == out
        assert engine.step(FIRST, 1, epoch=1)["people"].equals(again["people"])
        assert sorted(map(str, engine.read("people").column("tag").to_pylist())) == ["None", "x"]


def test_outputs_more_give_all_they_hold_with_the_next_call(tmp_path: Path) -> None:
    with plan().open(tmp_path / "state") as engine:
        engine.step(FIRST, 1)
    with plan(output=True).open(tmp_path / "state") as engine:
        step = engine.step(rows(id=[2], city=["Bern"]), 2)
        counts = [(row["city"], row["count"], row["_time"], row["_diff"]) for row in step["by_city"].to_pylist()]
        assert sorted(map(str, counts)) == sorted(
            map(str, [("Bern", 1, 1, 1), (None, 1, 1, 1), (None, 1, 2, -1), ("Bern", 1, 2, -1), ("Bern", 2, 2, 1)])
        )
        assert [(r["id"], r["_time"]) for r in step["in_bern"].to_pylist()] == [(1, 1), (2, 2)]
    with plan(output=True).open(tmp_path / "state") as engine:
        assert engine.step({}, 3)["by_city"].num_rows == 0
        assert engine.read("by_city").to_pylist() == [{"city": "Bern", "count": 2, "_diff": 1}]


def test_a_folder_of_outputs_that_is_another_one_still_tells_the_epochs_before(tmp_path: Path) -> None:
    with plan().open(tmp_path / "state", outputs=tmp_path / "a") as engine:
        told = engine.step(FIRST, 1)
    for other in (tmp_path / "b", None):
        with plan().open(tmp_path / "state", outputs=other) as engine:
            assert engine.step(FIRST, 1)["people"].equals(told["people"])
    assert len(list((tmp_path / "a").glob("*/*.parquet"))) == 1
