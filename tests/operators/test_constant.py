"""Test constants, which exist from an input's first event on, with and without a state; test refusals of `single`."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from messages import raises

import ddflow as dd
from ddflow.errors import NotSingle, SpecError
from ddflow.plan.verbs.family import find_operator_class

ROWS = [(1, "a"), (2, None)]
QUERY = "select col1 as n, col2 as s from values (1, 'a'), (2, null)"


def flow_of(time: str | None = None, query: str | None = QUERY) -> dd.Flow:
    flow = dd.Flow()
    columns = {"id": pa.int64(), "gone": pa.bool_(), **({time: pa.int64()} if time else {})}
    for name in ("one", "other"):
        flow.upserts(
            name, columns, dd.Upsert(key="id", time=time, order_by=time or (), delete=dd.tombstone("gone", True))
        )
    flow.output("kept", flow.inputs["one"])
    if query is not None:
        flow.output("out", flow.sql(query))
    return flow


def held(engine: dd.Engine) -> list[tuple[object, ...]]:
    return sorted((tuple(row.values())[:-1] for row in engine.read("out").to_pylist()), key=str)


def event(id: int = 1, gone: bool = False, **more: int) -> pa.Table:
    return pa.table({"id": [id], "gone": [gone], **{name: [value] for name, value in more.items()}})


@pytest.mark.parametrize("gone", [False, True])
def test_it_begins_with_the_first_event_whatever_its_verdict(gone: bool) -> None:
    with flow_of().open() as engine:
        assert held(engine) == []
        step = engine.step({"one": event().slice(0, 0)}, time=1)
        assert (step["out"].num_rows, held(engine)) == (0, [])
        step = engine.step({"other": event(gone=gone)}, time=2)
        assert step["out"].column("_time").to_pylist() == [2, 2]
        assert held(engine) == ROWS
        assert engine.step({"other": event(gone=not gone)}, time=3)["out"].num_rows == 0
        assert held(engine) == ROWS


def test_events_of_other_inputs_do_not_count() -> None:
    flow = flow_of(query=None)
    flow.output("out", find_operator_class("constant")([flow.inputs["one"]], ["n"], [["7"]]))
    with flow.open() as engine:
        engine.step({"other": event()}, time=1)
        assert held(engine) == []
        engine.step({"one": event(), "other": event(2)}, time=2)
        assert held(engine) == [(7,)]


def test_in_hold_back_mode_it_begins_at_the_time_of_the_event() -> None:
    with flow_of("at").open() as engine:
        engine.push({"one": event(1, at=7), "other": event(2, at=5)})
        assert held(engine) == []
        step = engine.advance_to(10)
        assert step["out"].column("_time").to_pylist() == [5, 5]


def test_a_state_keeps_it_and_a_new_one_on_an_old_state_is_there_at_once(tmp_path: Path) -> None:
    with flow_of().open(tmp_path / "state") as engine:
        engine.step({"one": event()}, time=1)
    with flow_of().open(tmp_path / "state") as engine:
        assert held(engine) == ROWS
        assert engine.step({"one": event(2)}, time=2)["out"].num_rows == 0
    with flow_of(query=None).open(tmp_path / "old") as engine:
        engine.step({"one": event(gone=True)}, time=1)
    with flow_of().open(tmp_path / "old") as engine:
        assert held(engine) == ROWS
        assert engine.step({"one": event(2)}, time=2)["out"].num_rows == 2, "a new output tells what it held"
        assert held(engine) == ROWS


def test_the_step_that_would_make_a_count_two_is_refused_and_changes_nothing() -> None:
    flow = dd.Flow()
    cities = flow.upserts("people", {"id": pa.int64(), "city": pa.string()}, dd.Upsert(key="id")).count("city")
    flow.output("out", cities.single("count", ["city"]))
    with flow.open() as engine:
        engine.step({"people": pa.table({"id": [1, 2], "city": ["Bern", "Basel"]})}, time=1)
        with raises(NotSingle):
            engine.step({"people": pa.table({"id": [3], "city": ["Bern"]})}, time=2)
        engine.step({"people": pa.table({"id": [1, 3], "city": ["Chur", "Bern"]})}, time=2)
        assert held(engine) == [("Basel",), ("Bern",), ("Chur",)]
    with raises(SpecError):
        cities.single("cout")
    with raises(SpecError):
        cities.single("city")
