"""Test that a call happens completely or not at all, and never changes its results later.

`laws/test_machine` and `laws/test_laws` cover refusals by specs (ties, null keys, late events). This file covers errors
within a step: an expression that fails, a count outside int64, and a caller that keeps old tables.
"""

from __future__ import annotations

import pytest
from doors import EngineDoor, schema_of, to_arrow
from rules import Refused

import ddflow as dd
from ddflow.errors import CountOverflow


def test_a_step_whose_expression_fails_is_refused_whole() -> None:
    input = {"columns": {"k": "int64", "n": "int64"}, "spec": {"key": ["k"]}}
    plan = ["count", ["project", ["input", "a"], {"c": "n + 1"}], None, "count"]
    door = EngineDoor({"inputs": {"a": input}, "outputs": {"out": plan}})
    door.step({"a": [[1, 1]]}, 1)
    with pytest.raises(Refused, match="ExpressionError"):
        door.step({"a": [[2, 2], [3, 2**63 - 1]]}, 2)
    assert door.read("a") == {(1, 1): 1}
    assert door.read("out") == {(2, 1): 1}
    assert door.totals() == {"applied": 1}
    assert door.step({"a": [[2, 2]]}, 2).updates == {"out": {((3, 1), 2): 1}}


def test_a_step_whose_count_overflows_is_refused_whole() -> None:
    flow = dd.Flow()
    input = flow.upserts("a", schema_of({"k": "int64"}), dd.Upsert("k"))
    doubled = input.project({"all": "k is not null"})
    for _ in range(62):
        doubled = doubled.concat(doubled).consolidate()
    flow.output("out", doubled.count())
    with flow.open() as engine:
        assert engine.step({"a": to_arrow({"k": "int64"}, [[1]])}, time=1)["out"].to_pylist() == [
            {"all": True, "count": 2**62, "_time": 1, "_diff": 1}
        ]
        with pytest.raises(CountOverflow):
            engine.step({"a": to_arrow({"k": "int64"}, [[2]])}, time=2)
        assert engine.read("a").to_pylist() == [{"k": 1, "_diff": 1}]
        assert engine.verdicts.counts["applied"] == 1


def test_an_engine_is_not_moved_by_what_the_caller_does_with_its_tables() -> None:
    columns = {"k": "int64", "v": "string"}
    flow = dd.Flow()
    made = flow.upserts("a", schema_of(columns), dd.Upsert("k"))
    flow.output("vs", made.project(["v"]).count())
    with flow.open() as engine:
        first = engine.step({"a": to_arrow(columns, [[1, "x"], [2, "x"]])}, time=1)["vs"]
        before = first.to_pylist()
        for time in range(2, 30):
            engine.step({"a": to_arrow(columns, [[i, f"{time}"] for i in range(50)])}, time=time)
        assert first.to_pylist() == before
