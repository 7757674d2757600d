"""Test short forms of calls: without a time, and with a single unnamed input."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from messages import raises

import ddflow as dd
from ddflow.storage.memory import MemoryStore

SCHEMA = pa.schema({"id": pa.int64(), "city": pa.string()})


def opened(state: Any = None, *names: str, **options: Any) -> dd.Engine:
    flow = dd.Flow()
    for name in names or ("people",):
        flow.output(f"{name}_out", flow.upserts(name, SCHEMA, dd.Upsert(key="id")))
    return flow.open(state, **options)


def rows(*pairs: tuple[int, str]) -> pa.Table:
    ids, cities = zip(*pairs, strict=True)
    return pa.table({"id": ids, "city": cities}, SCHEMA)


def stamped(step: dd.Step, name: str = "people_out") -> list[tuple[int, str, int, int]]:
    return [tuple(row.values()) for row in step[name].to_pylist()]  # type: ignore[misc]


def test_a_step_without_a_time_takes_the_last_one_plus_one() -> None:
    with opened() as engine:
        assert stamped(engine.step({"people": rows((1, "Bern"))})) == [(1, "Bern", 1, 1)]
        assert stamped(engine.step({"people": rows((2, "Basel"))}, 7)) == [(2, "Basel", 7, 1)]
        assert stamped(engine.replace("people", rows((2, "Basel")))) == [(1, "Bern", 8, -1)]
        assert stamped(engine.restate("people", rows((2, "Chur")))) == [(2, "Basel", 9, -1), (2, "Chur", 9, 1)]
    with opened() as engine:
        engine.step({"people": rows((1, "Bern"))}, -5)
        assert stamped(engine.step({"people": rows((1, "Chur"))})) == [(1, "Bern", -4, -1), (1, "Chur", -4, 1)]
    with opened() as engine:
        engine.step(rows((1, "Bern")), dd.CLOSED - 1)
        with raises(dd.errors.SchemaMismatch):
            engine.step(rows((1, "Chur")))


def test_a_call_without_a_time_is_never_given_again_and_one_with_its_epoch_is(tmp_path: Path) -> None:
    state = str(tmp_path / "state")
    with opened(state) as engine:
        first = engine.step(rows((1, "Bern")))
        again = engine.step(rows((1, "Bern")))
        assert engine.epoch == 2 and again.verdicts["noop"] == 1 and again["people_out"].num_rows == 0
    with opened(state) as engine:
        for epoch, step in ((1, first), (2, again)):
            given = engine.step(rows((1, "Bern")), epoch=epoch)
            assert given["people_out"].equals(step["people_out"]) and given.verdicts == step.verdicts
        assert engine.epoch == 2
        with raises(dd.errors.ReplayMismatch):
            engine.step(rows((1, "Chur")), epoch=2)
        third = engine.step(rows((1, "Chur")), epoch=3)
        assert stamped(third) == [(1, "Bern", 3, -1), (1, "Chur", 3, 1)] and engine.epoch == 3
        with pytest.raises(dd.errors.EpochSkipped):
            engine.step(rows((1, "Chur")), epoch=5)


def test_calls_of_one_epoch_are_given_again_at_their_times() -> None:
    store = MemoryStore()
    with opened(store, commit_every=None) as engine:
        steps = [engine.step(rows((1, "Bern"))), engine.step(rows((1, "Chur")), 5), engine.replace(rows((2, "Zug")))]
        engine.flush()
    with opened(store.reopen()) as engine:
        for _ in range(2):
            assert stamped(engine.step(rows((1, "Bern")), epoch=1)) == stamped(steps[0])
            assert stamped(engine.step(rows((1, "Chur")), epoch=1)) == stamped(steps[1])
            again = engine.replace(rows((2, "Zug")), epoch=1)
            assert stamped(again) == stamped(steps[2]) and again.verdicts.absent == 1
        assert engine.epoch == 1 and engine.frontier == 7


def test_rows_alone_do_where_there_is_one_input() -> None:
    given = rows((1, "Bern"), (2, "Zug"))
    for bare in (given, given.to_batches(), given.to_reader(), given.to_batches()[0], given.to_pydict()):
        with opened() as engine:
            assert engine.step(bare).verdicts["applied"] == 2
            assert stamped(engine.replace(rows((1, "Bern")), time=4)) == [(2, "Zug", 4, -1)]
            assert stamped(engine.restate(rows((1, "Zug")))) == [(1, "Bern", 5, -1), (1, "Zug", 5, 1)]
            assert engine.step({}).verdicts.total == 0
    flow = dd.Flow()
    flow.output("out", flow.upserts("people", SCHEMA.append(pa.field("t", pa.int64())), dd.Upsert("id", time="t")))
    with flow.open() as engine:
        engine.push(given.append_column("t", pa.array([1, 2])))
        assert engine.advance_to(9)["out"].num_rows == 2


def test_an_input_that_is_called_as_a_column_is_meant_by_its_name_alone() -> None:
    with opened(None, "id") as engine:
        assert engine.step({"id": rows((1, "Bern"))}).verdicts["applied"] == 1
        assert engine.step({"id": [2], "city": ["Chur"]}).verdicts["applied"] == 1


@pytest.mark.parametrize(
    ("call", "error", "why"),
    [
        (lambda e: e.step({"peple": rows((1, "x"))}), dd.errors.SchemaMismatch, "no such input; did you mean 'people'"),
        (
            lambda e: e.step({"id": [1], "citty": ["x"]}),
            dd.errors.SchemaMismatch,
            "'citty' that was not .* mean 'city'",
        ),
        (lambda e: e.replace("people"), dd.errors.NotArrow, "there are no rows; write replace"),
        (lambda e: e.replace(rows((1, "x")), 3), dd.errors.NotArrow, r"a Table is not the name .*replace\(rows, time="),
        (lambda e: e.restate("id", rows((1, "x"))), dd.errors.SchemaMismatch, "rows for 'id': there is no such input"),
    ],
)
def test_what_is_not_clear_is_refused(call: Any, error: type[Exception], why: str) -> None:
    with opened() as engine:
        with pytest.raises(error, match=why):
            call(engine)
        assert engine.frontier == dd.NEVER
    with (
        opened(None, "one", "two") as engine,
        pytest.raises(dd.errors.NotArrow, match=r"the inputs are \['one', 'two'\]"),
    ):
        engine.replace(rows((1, "x")))
