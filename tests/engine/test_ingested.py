"""Test `ingested=`: the column with the time at which a row came.

The laws in `tests/laws` draw the option together with all other options. Here are the types of times, durable states,
tools, inputs of differences, and refusals.
"""

from __future__ import annotations

import datetime as dt
from typing import Any

import pyarrow as pa
import pytest
from messages import raises

import ddflow as dd
from ddflow.errors import ExpressionError, NotReadable, PlanChanged, SchemaMismatch, SpecError
from ddflow.storage.memory import MemoryStore

SCHEMA = {"id": int, "city": str}
SPEC = dd.Upsert(key="id", ingested="came")
DAYS = [dt.date(2026, 11, day) for day in (1, 2, 3)]
HOURS = [dt.datetime(2026, 11, 1, hour) for hour in (7, 8, 9)]


def flow_of(spec: dd.Upsert = SPEC, schema: Any = SCHEMA, **outputs: str) -> dd.Flow:
    """The input and, by name, queries over it."""
    flow = dd.Flow()
    flow.output("people", flow.upserts("people", schema, spec))
    for name, text in outputs.items():
        flow.output(name, flow.sql(text))
    return flow


def told(table: pa.Table) -> list[tuple[Any, ...]]:
    """The updates of a table as tuples, in any order."""
    return sorted((tuple(row.values()) for row in table.to_pylist()), key=repr)


def test_a_row_has_the_time_of_its_step_until_it_changes() -> None:
    with flow_of().open() as engine:
        assert engine.flow.outputs["people"].schema.names == ["id", "city", "came"]
        assert told(engine.step([{"id": 1, "city": "Bern"}, {"id": 2, "city": "Chur"}], 3)["people"]) == [
            (1, "Bern", 3, 3, 1),
            (2, "Chur", 3, 3, 1),
        ]
        step = engine.step([{"id": 1, "city": "Bern"}, {"id": 2, "city": "Sion"}], 5)
        assert told(step["people"]) == [(2, "Chur", 3, 5, -1), (2, "Sion", 5, 5, 1)]
        assert str(step.verdicts) == "applied 1, noop 1"
        assert engine.get("people", id=1) == {"id": 1, "city": "Bern", "came": 3}


@pytest.mark.parametrize("times", [[1, 2, 3], DAYS, HOURS], ids=["numbers", "days", "timestamps"])
@pytest.mark.parametrize("durable", [False, True])
def test_the_column_has_the_type_of_the_times(times: list[Any], durable: bool) -> None:
    text = "select came, count(*) n from people group by came"
    store = MemoryStore()
    flow = flow_of(by_time=text, late="select id from people where came is not null and id > 1")
    options: dict[str, Any] = {"state": store} if durable else {}
    with flow.open(**options) as engine:
        for n, time in enumerate(times):
            step = engine.step([{"id": n, "city": "Bern"}, {"id": 0, "city": "Bern"}], time)
            assert told(step["by_time"]) == [(time, 1, time, 1)]
        assert step["people"].schema.field("came").type == step["people"].schema.field("_time").type
        assert [row["came"] for row in engine.read("people").sort_by("id").to_pylist()] == times
    if not durable:
        return
    with flow.open(store.reopen()) as engine:
        again = engine.step([{"id": 2, "city": "Bern"}, {"id": 0, "city": "Bern"}], times[2], epoch=3)
        assert told(again["people"]) == [(2, "Bern", times[2], times[2], 1)]
        assert [row["came"] for row in engine.read("people").sort_by("id").to_pylist()] == times
        one = times[2] + 1 if isinstance(times[2], int) else times[2] + dt.timedelta(1)
        step = engine.step([{"id": 0, "city": "Chur"}], one)
        assert told(step["by_time"]) == [(times[0], 1, one, -1), (one, 1, one, 1)]


def test_an_expression_that_does_not_fit_the_type_of_the_first_time_refuses_the_step() -> None:
    with flow_of(late="select id from people where came + 1 > 7").open() as engine:
        with raises(ExpressionError):
            engine.step([{"id": 1, "city": "Bern"}], HOURS[0])
        assert told(engine.step([{"id": 1, "city": "Bern"}], 7)["late"]) == [(1, 7, 1)]


@pytest.mark.parametrize("kind", [pa.int64(), pa.date32(), pa.timestamp("ms")], ids=str)
def test_in_hold_back_mode_a_row_has_the_time_at_which_its_event_counts(kind: pa.DataType) -> None:
    spec = dd.Upsert(key="id", time="t", late="advance", ingested="came")
    schema = pa.schema({"id": pa.int64(), "city": pa.string(), "t": kind})

    def at(n: int) -> Any:
        return pa.array([n], pa.int32() if kind == pa.date32() else pa.int64()).cast(kind)[0].as_py()

    def rows(*given: tuple[int, str, int]) -> pa.Table:
        return pa.Table.from_pylist([{"id": i, "city": c, "t": at(t)} for i, c, t in given], schema)

    with flow_of(spec, schema).open() as engine:
        engine.push(rows((2, "Chur", 8), (1, "Bern", 4), (1, "Bern", 5)))
        assert told(engine.advance_to(7)["people"]) == [(1, "Bern", at(4), at(4), 1)]
        engine.push(rows((3, "Sion", 2)))  # late, so it counts at the frontier
        found = engine.advance_to(9)["people"]
        assert told(found) == [(2, "Chur", at(8), at(8), 1), (3, "Sion", at(7), at(7), 1)]
        assert found.schema.field("came").type == kind


MERGES: dict[str, dict[str, Any]] = {
    "by column": {"merge": dd.Merge({"n": dd.sum()})},
    "by group": {"groups": {"n": ["city"]}},
    "by cell": {"versions": "cell", "order_by": "n"},
    "the first row": {"merge": "first_row"},
}


@pytest.mark.parametrize("how", MERGES)
def test_a_merged_row_has_the_time_of_the_event_that_changed_it(how: str) -> None:
    spec = dd.Upsert(key="id", ingested="came", **MERGES[how])
    with flow_of(spec, {"id": int, "city": str, "n": int}).open() as engine:
        engine.step([{"id": 1, "city": "Bern", "n": 3}], 1)
        engine.step([{"id": 1, "city": None, "n": None}], 2)
        assert engine.get("people", id=1) == {"id": 1, "city": "Bern", "n": 3, "came": 1}
        engine.step([{"id": 1, "city": "Chur", "n": 4}], 3)
        now = engine.get("people", id=1)
        assert now is not None and now["came"] == (1 if how == "the first row" else 3)


def test_a_function_that_merges_rows_does_not_get_the_column() -> None:
    seen = set[str]()

    def keep(held: pa.Table, given: pa.Table) -> pa.Table:
        seen.update(given.schema.names)
        return given

    spec = dd.Upsert(key="id", ingested="came", merge=dd.Merge(function=keep))
    with flow_of(spec).open() as engine:
        for time, city in enumerate(["Bern", "Bern", "Chur"]):
            engine.step([{"id": 1, "city": city}], time)
        assert engine.get("people", id=1) == {"id": 1, "city": "Chur", "came": 2}
    assert seen == {"id", "city"}


def test_full_contents_and_corrections_keep_the_times_of_rows_that_stay() -> None:
    spec = dd.Upsert(key="id", order_by="n", ingested="came")
    with flow_of(spec, {"id": int, "n": int}).open() as engine:
        engine.step([{"id": 1, "n": 1}, {"id": 2, "n": 1}, {"id": 3, "n": 1}], 1)
        step = engine.replace("people", [{"id": 1, "n": 1}, {"id": 2, "n": 2}], time=2)
        assert told(step["people"]) == [(2, 1, 1, 2, -1), (2, 2, 2, 2, 1), (3, 1, 1, 2, -1)]
        step = engine.restate("people", [{"id": 1, "n": 1}, {"id": 2, "n": 1}, {"id": 2, "n": 3}], time=3)
        assert told(step["people"]) == [(2, 2, 2, 3, -1), (2, 3, 3, 3, 1)]
        with raises(ExpressionError):
            engine.replace("people", [{"id": 1, "n": 1}], time=4, scope="came > 1")


def test_an_expired_row_is_retracted_with_its_time() -> None:
    spec = dd.Upsert(key="id", order_by="n", ingested="came", expiry=dd.Expiry(ttl=10))
    with flow_of(spec, {"id": int, "n": int}).open() as engine:
        engine.step([{"id": 1, "n": 1}], 1)
        engine.step([{"id": 2, "n": 50}], 2)
        assert told(engine.step({}, 3)["people"]) == [(1, 1, 1, 3, -1)]


def test_messages_have_the_time_of_their_step() -> None:
    flow = dd.Flow()
    people = flow.upserts("people", SCHEMA, SPEC, format=dd.formats.debezium())
    flow.output("people", people)
    history = flow.updates("history", SCHEMA, key="id", format=dd.formats.debezium(), ingested="came")
    flow.output("times", history.count(by=["came"]))

    def message(op: str, id: int, city: str, lsn: int) -> dict[str, str]:
        row = f'{{"id": {id}, "city": "{city}"}}'
        return {"value": f'{{"op": "{op}", "before": {row}, "after": {row}, "source": {{"lsn": {lsn}}}}}'}

    with flow.open() as engine:
        given = [message("c", 1, "Bern", 1), message("c", 2, "Chur", 2)]
        engine.step({"people": given, "history": given}, 1)
        later = [message("d", 1, "Bern", 3), message("u", 2, "Chur", 4)]
        step = engine.step({"people": later, "history": later[1:]}, 2)
        assert told(step["people"]) == [(1, "Bern", 1, 2, -1)]
        assert told(engine.read("times")) == [(1, 2, 1), (2, 1, 1)]


@pytest.mark.parametrize("keep", [False, True])
@pytest.mark.parametrize("time", [None, "t"])
def test_rows_of_differences_have_the_time_at_which_they_came(keep: bool, time: str | None) -> None:
    flow = dd.Flow()
    log = flow.updates("log", {"city": str, "t": int}, time=time, keep=keep, ingested="came", value=["city"])
    flow.output("log", log)
    flow.output("by_time", log.count(by=["came"], name="n"))
    rows = [[{"city": "Bern", "t": t}, {"city": "Bern", "t": t}, {"city": "Chur", "t": t}] for t in (1, 2)]
    with flow.open(verdicts="rows") as engine:
        found = []
        for at, each in enumerate(rows, 1):
            if time is not None:
                engine.push({"log": each})
            found += told((engine.step({"log": each}, at) if time is None else engine.advance_to(at + 1))["log"])
        assert found == [("Bern", t, t, 2) if c else ("Chur", t, t, 1) for t in (1, 2) for c in (1, 0)]
        assert told(engine.read("by_time")) == [(1, 3, 1), (2, 3, 1)]
        if keep:
            assert told(engine.read("log")) == sorted(row[:2] + row[3:] for row in found)


def test_late_rows_of_differences_are_listed_and_dropped() -> None:
    flow = dd.Flow()
    flow.output("log", flow.updates("log", {"city": str, "t": int}, time="t", late="drop", ingested="came"))
    with flow.open(verdicts="rows") as engine:
        engine.push([{"city": "Bern", "t": 5}])
        assert told(engine.advance_to(6)["log"]) == [("Bern", 5, 5, 1)]
        assert str(engine.push([{"city": "Bern", "t": 4}]).verdicts) == "late 1"


def test_a_new_column_of_the_input_comes_before_the_times() -> None:
    store = MemoryStore()
    with flow_of().open(store) as engine:
        engine.step([{"id": 1, "city": "Bern"}, {"id": 2, "city": "Chur"}], 1)
        engine.evolve({"n": pa.int64()})
        step = engine.step([{"id": 1, "city": "Bern", "n": 7}], 2)
        assert told(step["people"]) == [(1, "Bern", 7, 2, 2, 1), (1, "Bern", None, 1, 2, -1)]
        with raises(PlanChanged):
            engine.evolve({"came": pa.int64()})
    with flow_of(schema=SCHEMA | {"n": int}).open(store.reopen()) as engine:
        assert told(engine.read("people")) == [(1, "Bern", 7, 2, 1), (2, "Chur", None, 1, 1)]
        with raises(SchemaMismatch):
            engine.step(pa.table({"id": [1], "city": ["Bern"], "n": [7], "came": [9]}), 3)


@pytest.mark.parametrize("times", [[1, 2], HOURS[:2]], ids=["numbers", "timestamps"])
def test_verify_and_why_work_without_the_times_of_steps(times: list[Any]) -> None:
    store, log = MemoryStore(), [pa.table({"id": [1, 2], "city": ["Bern", "Chur"]}), pa.table({"id": [1]})]
    log[1] = log[1].append_column("city", [["Sion"]])
    with flow_of(towns="select city, came from people").open(store, retain=0) as engine:
        for time, rows in zip(times, log, strict=True):
            engine.step({"people": rows}, time)
        story = engine.why("people", 1, log=log)
        assert story.row == {"id": 1, "city": "Sion", "came": times[1]} and "city='Sion'" in str(story)
        origins = engine.why("towns", {"came": times[0]})
        assert told(origins.rows["people"]) == [(2, "Chur", times[0], 1)]
    done = dd.verify(store.reopen(), {"people": log})
    assert done.ok and "the times in 'came' are not compared" in str(done)
    assert dd.merge_on_read(log, SPEC).schema.names == ["id", "city"]


def test_rows_of_differences_are_verified_only_by_a_log_that_has_their_times() -> None:
    rows = [{"city": "Bern", "t": 1}, {"city": "Chur", "t": 2}]
    for time, late in ((None, "error"), ("t", "error"), ("t", "advance")):
        flow, store = dd.Flow(), MemoryStore()
        given: Any = {"late": late} if time else {}
        flow.output("log", flow.updates("log", {"city": str, "t": int}, time=time, keep=True, ingested="came", **given))
        with flow.open(store) as engine:
            if time is None:
                engine.step(rows, 7)
            else:
                engine.push(rows)
                engine.advance_to(9)
        if (time, late) == ("t", "error"):
            assert dd.verify(store.reopen(), {"log": pa.Table.from_pylist(rows)}).ok
        else:
            with raises(NotReadable):
                dd.verify(store.reopen(), {"log": pa.Table.from_pylist(rows)})


def test_a_migrated_state_has_the_times_of_the_replay() -> None:
    old, new, log = MemoryStore(), MemoryStore(), [{"people": [{"id": n, "city": "Bern"}]} for n in (1, 2)]
    with flow_of().open(old) as engine:
        for time, each in ((5, log[0]), (9, log[1])):
            engine.step(each, time)
    done = dd.migrate(old.reopen(), new, flow_of(), log)
    assert told(done.tables["people"]) == [
        (1, "Bern", 1, 10, 1),
        (1, "Bern", 5, 10, -1),
        (2, "Bern", 10, 10, 1),
        (2, "Bern", 9, 10, -1),
    ]


REFUSED: dict[str, Any] = {
    "a name that is taken": "city",
    "a reserved name": "_time",
    "no text": 5,
    "an empty name": "",
}


@pytest.mark.parametrize("what", REFUSED)
def test_a_name_that_cannot_be_is_refused(what: str) -> None:
    with raises(SpecError):
        flow_of(dd.Upsert(key="id", ingested=REFUSED[what]))
    with raises(SpecError):
        dd.Flow().updates("log", SCHEMA, ingested=REFUSED[what])


def test_what_cannot_have_the_column_is_refused_by_name() -> None:
    with raises(SpecError):
        dd.Flow().updates("log", {"city": str, "n": int}, diff="n", ingested="came")
    machine = dd.Machine("state", {("a", "x"): "b"}, on="city", start="a")
    with raises(SpecError):
        dd.Flow().machine("people", SCHEMA, SPEC, machine)
