"""Test that small steps, whose cost is Python code, compute nothing again that is known when a plan opens."""

from __future__ import annotations

import sys
from pathlib import Path
from types import FrameType
from typing import Any

import pyarrow as pa
import pytest
from messages import raises

import ddflow as dd

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), ("city", pa.string()), ("amount", pa.int64())])
HOME = str(Path(dd.__file__).parent)


def opened(*state: str) -> dd.Engine:
    flow = dd.Flow()
    rows = flow.upserts("orders", SCHEMA, dd.Upsert(key="id"))
    flow.output("n", rows.filter("amount > 1").project(["city"]).count())
    return flow.open(*state)


def rows(*ids: int) -> pa.Table:
    return pa.table({"id": ids, "city": ["Zug"] * len(ids), "amount": ids}, SCHEMA)


def calls_of_a_step(engine: dd.Engine) -> int:
    """How many functions of ddflow the 20th step of two rows calls."""
    seen = 0

    def look(frame: FrameType, event: str, _: Any) -> None:
        nonlocal seen
        seen += event == "call" and frame.f_code.co_filename.startswith(HOME)

    with engine:
        for time in range(1, 20):
            engine.step({"orders": rows(1, time + 1)}, time)
        last, before = rows(1, 21), sys.getprofile()
        sys.setprofile(look)
        try:
            engine.step({"orders": last}, 20)
        finally:
            sys.setprofile(before)
    return seen


def test_two_rows_make_few_python_calls(tmp_path: Path) -> None:
    assert 50 < calls_of_a_step(opened()) <= 280
    assert 100 < calls_of_a_step(opened(str(tmp_path / "state"))) <= 590


def test_rows_of_the_declared_schema_are_taken_as_they_lie_and_wait_nowhere() -> None:
    table = rows(1, 2, 3)
    with opened() as engine:
        events = engine.dataflow.admissions["orders"].build_event_batch(table)
        for name in SCHEMA.names:
            there, here = table.column(name).chunk(0).buffers(), events.column(name).buffers()
            assert [b and b.address for b in there] == [b and b.address for b in here]
        inflow = engine.dataflow.ingest_inputs({"orders": table}, 1)["orders"]
        assert inflow.batcher is None and [chunk.times.tolist() for chunk in inflow.chunks] == [[1, 1, 1]]


@pytest.mark.parametrize("cut", [[2, 1], [0, 3], [3]])
def test_rows_mean_the_same_however_they_come(cut: list[int]) -> None:
    whole, begins = rows(1, 2, 3), [sum(cut[:i]) for i in range(len(cut))]
    parts = pa.concat_tables([whole.slice(begin, size) for begin, size in zip(begins, cut, strict=True)])
    named = parts.replace_schema_metadata({"who": "somebody else"})
    turned = parts.select(["amount", "id", "city"])
    for given in (
        parts,
        named,
        turned,
        parts.to_reader(),
        parts.to_batches(),
        parts.cast(pa.schema(list(whole.schema))),
    ):
        with opened() as engine:
            step = engine.step({"orders": given}, 1)
            assert step["n"].to_pylist() == [{"city": "Zug", "count": 2, "_time": 1, "_diff": 1}]
            assert engine.read("orders").select(SCHEMA.names).sort_by("id").equals(whole)


def test_a_null_is_refused_where_none_was_declared_though_the_schema_is_the_same() -> None:
    table = pa.Table.from_arrays([pa.array([1, None]), pa.array(["a", "b"]), pa.array([1, 2])], schema=SCHEMA)
    with opened() as engine:
        with raises(dd.errors.SchemaMismatch):
            engine.step({"orders": table}, 1)
        assert engine.step({"orders": rows(1)}, 1).verdicts["applied"] == 1


def test_columns_that_rows_lack_are_warned_of_once() -> None:
    partial = rows(1, 2).drop_columns(["city"])
    with opened() as engine:
        with pytest.warns(UserWarning, match="rows for .orders.: they lack the columns") as said:
            for time in range(1, 4):
                engine.step(partial, time)
            engine.step(rows(1), 4)
            engine.step(partial.drop_columns(["amount"]), 5)
        assert [str(each.message).count("'amount'") for each in said] == [0, 1]
        assert {each.filename for each in said} == {__file__}
