"""Test bad input and bad use: each mistake raises an error with a fix, and leaves the engine unchanged."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from messages import raises
from programs import run_python

import ddflow as dd
from ddflow import errors
from ddflow.errors import BudgetExceeded
from ddflow.storage.memory import MemoryStore

SCHEMA = pa.schema({"id": pa.int64(), "city": pa.string(), "at": pa.int64()})
TIMED = pa.schema({"id": pa.int64(), "city": pa.string(), "t": pa.int64()})


def rows(*triples: tuple[int | None, str | None, int], schema: pa.Schema = SCHEMA) -> pa.Table:
    return pa.table([list(column) for column in zip(*triples, strict=True)] or [[], [], []], schema=schema)


def epochs(schema: Any = SCHEMA, *, opens: dict[str, Any] | None = None, **spec: Any) -> Any:
    """An engine in epoch mode with an input ``s``, its rows and their count by city as outputs."""
    flow = dd.Flow()
    input = flow.upserts("s", schema, dd.Upsert(**{"key": "id"} | spec))
    flow.output("rows", input)
    flow.output("by_city", input.project(["city"]).count())
    return flow.open(**opens or {})


def holding_back(**spec: Any) -> Any:
    return epochs(TIMED, time="t", **spec)


def state_of(engine: Any) -> Any:
    """All that can be seen of an engine."""
    engine._check_invariants()
    reads = {name: sorted(engine.read(name).to_pylist(), key=repr) for name in ("s", "rows", "by_city")}
    return reads, engine.frontier, engine.since, engine.verdicts, engine.stats()


def assert_refused(engine: Any, act: Callable[[], Any], kind: type[Exception], why: str) -> Any:
    """The call raises, with all three parts of a message, and changes nothing."""
    before = state_of(engine)
    with pytest.raises(kind, match=why) as caught:
        act()
    assert state_of(engine) == before
    if isinstance(caught.value, errors.DdflowError):
        assert caught.value.asked and caught.value.found and caught.value.fix
    return caught.value


def test_every_error_is_caught_by_its_name() -> None:
    named = [each for each in vars(errors).values() if isinstance(each, type) and issubclass(each, Exception)]
    assert len(named) > 40
    for each in named:
        assert issubclass(each, dd.DdflowError), each
        assert getattr(dd.errors, each.__name__) is each
        assert each is dd.DdflowError or each.__name__ not in dir(dd)
    with pytest.raises(AttributeError, match=r"write dd\.errors\.NullKey"):
        _ = dd.NullKey  # type: ignore[attr-defined]
    with epochs() as engine, pytest.raises(dd.errors.SchemaMismatch):
        engine.step({"s": pa.table({"other": [1]})}, 0)


BAD_SPECS = [
    (pa.schema([("id", pa.int64()), ("id", pa.string())]), {}, r"\['id'\] occur more than once"),
    (pa.schema([("id", pa.int64()), ("_time", pa.string())]), {}, r"\['_time'\] have names that ddflow reserves"),
    (SCHEMA, {"key": "idd"}, "no column 'idd'; did you mean 'id'"),
    (SCHEMA, {"key": ["id", "x"]}, "key= of 's': there is no column 'x'"),
    (pa.schema({"id": pa.list_(pa.int64())}), {}, "'id' is list.*cannot be hashed as a key"),
    (pa.schema({"id": pa.map_(pa.int8(), pa.int8())}), {}, "'id' is map.*cannot be hashed as a key"),
    (pa.schema({"id": pa.struct({"x": pa.int8()})}), {}, "'id' is struct.*cannot be hashed as a key"),
    (pa.schema({"id": pa.json_()}), {}, "'id' is .*json.*cannot be hashed as a key"),
    (pa.schema({"id": pa.int64(), "at": pa.list_(pa.int8())}), {"order_by": "at"}, "'at' is list.*has no order"),
    (pa.schema({"id": pa.int64(), "n": pa.string()}), {"seq": "n"}, "'n' is string, which is not an integer"),
    (pa.schema({"id": pa.int64(), "t": pa.float64()}), {"time": "t"}, "'t' is double, which is not a time"),
    (pa.schema({"id": pa.int64(), "t": pa.int32()}), {"time": "t"}, "'t' is int32, which is not a time"),
    (SCHEMA, {"delete": dd.tombstone("city")}, "text column, but there is no value"),
    (SCHEMA, {"delete": dd.tombstone("at", "x")}, "'x' is not a value of int64"),
    (SCHEMA, {"delete": dd.tombstone("gone")}, "no column 'gone'"),
    (SCHEMA, {"noop_ignore": ["at"], "value": ["city"]}, r"noop_ignore= names \['at'\], but value= does not"),
    (
        pa.schema({"id": pa.int64(), "at": pa.int64(), "l": pa.list_(pa.int8())}),
        {"order_by": "at", "tie": "greatest"},
        "'l' is list.*has no order",
    ),
    (
        pa.schema({"id": pa.int64(), "at": pa.string(), "_order_at": pa.string()}),
        {"order_by": "at"},
        "column '_order_at', but ddflow",
    ),
    (
        pa.schema({"id": pa.int64(), "at": pa.int64(), "_winner_at": pa.int64()}),
        {"order_by": "at", "stale": "side"},
        "output 's.stale'.*_winner_at",
    ),
    (
        pa.schema({"id": pa.int64(), "at": pa.int64(), "_stale": pa.int64()}),
        {"order_by": "at", "stale": "mark"},
        "output 's.events'.*_stale",
    ),
]


@pytest.mark.parametrize(("schema", "spec", "why"), BAD_SPECS, ids=[why for _, _, why in BAD_SPECS])
def test_a_spec_that_does_not_fit_its_schema_is_refused_where_it_is_written(
    schema: pa.Schema, spec: dict[str, Any], why: str
) -> None:
    with pytest.raises(errors.SpecError, match=why):
        dd.Flow().upserts("s", schema, dd.Upsert(**{"key": "id"} | spec))


@pytest.mark.parametrize(
    ("given", "kind", "why"),
    [
        (
            pa.table({"id": [1], "citty": ["x"]}),
            errors.SchemaMismatch,
            "'citty' that was not declared; did you mean 'city'",
        ),
        (pa.table([[1], [1]], ["id", "id"]), errors.SchemaMismatch, "'id' occurs more than once"),
        (pa.table({"city": ["x"]}), errors.SchemaMismatch, "the column 'id' is missing"),
        (pa.table({"id": ["x"]}), errors.SchemaMismatch, "it is string, but int64 is declared"),
        (pa.table({"id": [1.5]}), errors.SchemaMismatch, r"row 0 holds 1.5 \(double\), which does not fit int64"),
        (pa.table({"id": pa.array([2**63], pa.uint64())}), errors.SchemaMismatch, "does not fit int64"),
        ([pa.record_batch({"id": [1]}), pa.record_batch({"id": ["1"]})], errors.SchemaMismatch, "batch 1 has"),
        (rows((None, "x", 1), (2, "x", 1)), errors.NullKey, r"null in 1 rows, first in row 0, counted from 0; fix"),
        ({"id": 1}, errors.NotArrow, "column 'id' of rows for 's': it is a int; pass a list"),
        ([{"id": 1}, 2], errors.NotArrow, "list does not speak Arrow"),
        (pa.chunked_array([[1]]), errors.NotArrow, "ChunkedArray holds no rows"),
        (None, errors.NotArrow, "NoneType does not speak Arrow"),
    ],
    ids=lambda x: x if isinstance(x, str) else "",
)
def test_rows_that_do_not_fit_are_refused_whole(given: Any, kind: type[Exception], why: str) -> None:
    with epochs(order_by="at") as engine:
        engine.step({"s": rows((1, "Bern", 1), (2, "Bern", 1))}, time=1)
        assert_refused(engine, lambda: engine.step({"s": given}, time=2), kind, why)
        assert engine.step({"s": rows((1, "Basel", 2))}, time=2).verdicts["applied"] == 1


def test_inputs_must_say_which_rows_are_for_which_input() -> None:
    flow = dd.Flow()
    for name in ("s", "t"):
        flow.output(f"rows of {name}", flow.upserts(name, SCHEMA, dd.Upsert(key="id")))
    with flow.open() as engine:
        for given in (rows((1, "x", 1)), [rows((1, "x", 1))], None):
            with raises(errors.NotArrow):
                engine.step(given, time=1)
    with epochs() as engine:
        act = lambda: engine.step({"t": rows((1, "x", 1))}, time=1)  # noqa: E731
        assert_refused(engine, act, errors.SchemaMismatch, r"rows for 't': there is no such input; .*\['s'\]")


@pytest.mark.parametrize("time", [True, 1.0, "1", 2**63 - 1, 2**63, -(2**63) - 1], ids=repr)
def test_a_time_is_an_int64_below_the_closed_frontier(time: Any) -> None:
    with epochs() as engine:
        act = lambda: engine.step({"s": rows((1, "x", 1))}, time=time)  # noqa: E731
        assert_refused(engine, act, errors.SchemaMismatch, "that is not an int64 time; pass an integer")


def test_times_do_not_go_back(tmp_path: Path) -> None:
    with epochs() as engine:
        engine.step({"s": rows((1, "x", 1))}, time=5)
        for time in (5, 4, -1):
            act = lambda time=time: engine.step({"s": rows((1, "y", 1))}, time=time)  # noqa: E731
            assert_refused(engine, act, errors.TimeWentBack, f"cannot step at {time}: the last step was at 5")
    with epochs(opens={"state": str(tmp_path / "state")}) as kept:
        kept.step({"s": rows((1, "x", 1))}, time=20260313)
        with raises(errors.TimeWentBack):
            kept.step({"s": rows((1, "y", 1))}, time=739000)
    with holding_back() as engine:
        engine.advance_to(5)
        assert_refused(engine, lambda: engine.advance_to(4), errors.TimeWentBack, "the frontier is already 5")
        for frontier in (4.5, "9", None, 2**63):
            act = lambda to=frontier: engine.advance_to(to)  # noqa: E731
            assert_refused(engine, act, errors.SchemaMismatch, "not an int64 time")
        engine.advance_to(5)
        engine.advance_to(dd.CLOSED)
        assert_refused(engine, lambda: engine.advance_to(7), errors.TimeWentBack, "already")


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("time", [dd.NEVER, dd.CLOSED - 1])
def test_the_least_and_the_greatest_time_can_be_used(time: int) -> None:
    with epochs() as engine:
        out = engine.step({"s": rows((1, "x", 1))}, time=time)
        assert out["rows"]["_time"].to_pylist() == [time] and engine.read("rows", time).num_rows == 1
    with holding_back() as engine:
        engine.advance_to(dd.NEVER)
        engine.push({"s": rows((1, "x", time), (1, "y", time), schema=TIMED)})
        assert engine.advance_to(dd.CLOSED)["rows"]["_time"].to_pylist() == [time]


def test_an_event_behind_the_frontier_is_refused_with_its_push() -> None:
    with holding_back() as engine:
        engine.push({"s": rows((1, "x", 3), schema=TIMED)})
        engine.advance_to(5)
        late = rows((1, "y", 9), (2, "z", 4), schema=TIMED)
        assert_refused(
            engine,
            lambda: engine.push({"s": late}),
            errors.LateEvent,
            "1 events are behind the frontier 5, first row 1, counted from 0, at time 4; push them before",
        )
        null = pa.table({"id": [1], "t": pa.nulls(1, pa.int64())})
        assert_refused(
            engine,
            lambda: engine.push({"s": null}),
            errors.SchemaMismatch,
            r"'t' is null in 1 rows, first in row 0, counted from 0",
        )
        closed = rows((1, "y", dd.CLOSED), schema=TIMED)
        assert_refused(engine, lambda: engine.push({"s": closed}), errors.SchemaMismatch, "that is the closed frontier")


def test_a_tie_is_refused_where_ties_are_errors_and_the_key_is_named() -> None:
    with epochs(order_by="at", tie="error") as engine:
        engine.step({"s": rows((1, "x", 5))}, time=1)
        for given in (rows((7, "a", 1), (7, "b", 1)), rows((1, "y", 5)), rows((3, "a", 2), (3, "a", 1), (3, "b", 2))):
            key, at = given["id"][0].as_py(), max(given["at"].to_pylist())
            why = re.escape(f"the key {{'id': {key}}} has two events of order {{'at': {at}}} at time 2")
            assert_refused(engine, lambda given=given: engine.step({"s": given}, time=2), errors.TieRefused, why)
        engine.step({"s": rows((1, "y", 4), (1, "z", 4), (1, "z", 6))}, time=2)  # the two stale ones tie for nothing


@pytest.mark.parametrize(
    "build",
    [
        lambda s: s.filter("city ="),
        lambda s: s.filter("town = 'x'"),
        lambda s: s.filter("id + 1"),
        lambda s: s.project({"x": "upper("}),
        lambda s: s.project({"x": "town"}),
    ],
)
def test_an_expression_that_cannot_be_is_refused_where_it_is_written(build: Callable[[Any], Any]) -> None:
    with raises(errors.ExpressionError):
        build(dd.Flow().upserts("s", SCHEMA, dd.Upsert("id")))


@pytest.mark.parametrize(
    "build",
    [
        lambda f, s: s.project(["town"]),
        lambda f, s: s.project([]),
        lambda f, s: s.project(["id", "id"]),
        lambda f, s: s.project({"_diff": "id"}),
        lambda f, s: s.count(by="town"),
        lambda f, s: s.count(by=["id", "id"]),
        lambda f, s: s.count(by="city", name="city"),
        lambda f, s: s.count().count(),
        lambda f, s: s.concat(s.project(["id"])),
        lambda f, s: s.concat(dd.Flow().upserts("s", SCHEMA, dd.Upsert("id"))),
        lambda f, s: f.output("o", dd.Flow().upserts("s", SCHEMA, dd.Upsert("id"))),
        lambda f, s: (f.output("o", s), f.output("o", s)),
        lambda f, s: f.output("s", s.count([], name="n")),
        lambda f, s: (f.output("o", s), f.upserts("o", SCHEMA, dd.Upsert("id"))),
        lambda f, s: f.upserts("s", SCHEMA, dd.Upsert("id")),
        lambda f, s: f.upserts("u", TIMED, dd.Upsert("id", time="t")),
        lambda f, s: (
            f.upserts("m", SCHEMA, dd.Upsert("id", order_by="at", stale="mark")),
            f.output("m.events", s),
        ),
        lambda f, s: (f.output("m.stale", s), f.upserts("m", SCHEMA, dd.Upsert("id", order_by="at", stale="side"))),
    ],
)
def test_a_plan_that_contradicts_itself_is_refused_where_it_is_written(build: Callable[[Any, Any], Any]) -> None:
    flow = dd.Flow()
    with raises(errors.SpecError):
        build(flow, flow.upserts("s", SCHEMA, dd.Upsert("id")))


@pytest.mark.parametrize(
    "options",
    [
        {"memory": "12 bananas"},
        {"memory": 0},
        {"verdicts": "all"},
        {"retain": -1},
        {"retain": 1.5},
    ],
)
def test_an_engine_opens_with_options_that_mean_something(options: dict[str, Any]) -> None:
    with raises(errors.SpecError):
        epochs(opens=options)


def test_a_flow_without_inputs_or_outputs_is_not_opened() -> None:
    flow = dd.Flow()
    with raises(errors.SpecError):
        flow.open()
    flow.upserts("s", SCHEMA, dd.Upsert("id"))
    with raises(errors.SpecError):
        flow.open()


@pytest.mark.parametrize("name", ["seq", "_arrival"])
def test_verdict_rows_need_their_own_column_names(name: str) -> None:
    flow = dd.Flow()
    flow.output("o", flow.upserts("s", {name: pa.int64()}, dd.Upsert(name)))
    with raises(errors.SpecError):
        flow.open(verdicts="rows")
    flow.open().close()


def test_each_mode_says_which_call_it_wants() -> None:
    with epochs() as engine:
        push = lambda: engine.push({"s": rows((1, "x", 1))})  # noqa: E731
        assert_refused(engine, push, errors.WrongMode, r"epoch mode.*; call step\(inputs, time=...\)")
        assert_refused(engine, lambda: engine.advance_to(5), errors.WrongMode, r"call step\(")
    with holding_back() as engine:
        step = lambda: engine.step({"s": rows((1, "x", 1), schema=TIMED)}, time=1)  # noqa: E731
        assert_refused(engine, step, errors.WrongMode, r"hold-back mode.*; call push\(inputs\), then advance_to")


def test_a_closed_engine_says_so() -> None:
    engine = epochs()
    with engine:
        engine.step({"s": rows((1, "x", 1))}, time=1)
    engine.close()
    for act in (lambda: engine.step({}, time=2), lambda: engine.read("rows"), lambda: engine.__enter__().read("s")):
        with raises(errors.EngineClosed):
            act()
    assert engine.verdicts["applied"] == 1


def test_a_second_writer_is_refused_while_the_first_is_in_a_call_and_welcome_after_it() -> None:
    inside, go_on = threading.Event(), threading.Event()

    def slow(batch: pa.RecordBatch) -> pa.Array:
        if threading.current_thread() is not threading.main_thread() and batch.num_rows:
            inside.set()
            assert go_on.wait(120)
        return pa.array([True] * batch.num_rows, pa.bool_())

    flow = dd.Flow()
    flow.output("rows", flow.upserts("s", SCHEMA, dd.Upsert("id")).filter(slow))
    engine = flow.open()
    worker = threading.Thread(target=lambda: engine.step({"s": rows((1, "x", 1))}, time=1))
    worker.start()
    try:
        assert inside.wait(120)
        for act in (lambda: engine.step({}, time=1), engine.compact, engine.close):
            with raises(errors.ConcurrentUse):
                act()
    finally:
        go_on.set()
        worker.join(120)
    assert engine.read("rows").to_pylist() == [{"id": 1, "city": "x", "at": 1, "_diff": 1}]
    engine.close()


FORKED = """
import os, signal, sys, threading
import pyarrow as pa
import ddflow as dd

flow = dd.Flow()
flow.output("out", flow.upserts("s", {"id": pa.int64()}, dd.Upsert("id")))
state = (sys.argv[1],) if sys.argv[1] else ()
engine = flow.open(*state, threads=int(sys.argv[2]), retain=9)
engine.step({"s": pa.table({"id": range(50_000)})}, 1)
reader = engine.reader("out")
calls = [
    lambda: engine.read("out"), lambda: engine.changes("out", 0, 1), reader.read, reader.changes_to, reader.advance_to,
    lambda: engine.step({}, 2), lambda: engine.scd2("s"), lambda: engine.why("s", 1), lambda: engine.reader("out"),
]
if state:
    snapshot = dd.Snapshot.open(*state)
    calls += [lambda: snapshot.read("out"), engine.flush, lambda: engine.replace("s", pa.table({"id": [1]}), time=3)]
inside = engine.dataflow.guard.lock_for_write("a call of another thread")  # the child lacks its thread: no end
if not os.fork():
    signal.alarm(60)
    for call in calls:
        try:
            call()
        except dd.DdflowError as error:
            assert type(error).__name__ == "EngineClosed", repr(error)
            assert f"process {os.getppid()} opened it, before this process was forked" in str(error), error
        else:
            os._exit(1)
    os._exit(7)
status = os.wait()[1]
with inside:
    pass
assert engine.read("out").num_rows == 50_000 and engine.step({}, 2) is not None
engine.close()
sys.exit(os.waitstatus_to_exitcode(status) != 7)
"""


@pytest.mark.drawn(2)
@pytest.mark.parametrize("threads", ["1", "2"])
@pytest.mark.parametrize("durable", [False, True])
def test_a_forked_child_is_told_so_by_every_call_and_its_parent_goes_on(
    threads: str, durable: bool, tmp_path: Path
) -> None:
    state = str(tmp_path / "s") if durable else ""
    done = run_python(FORKED, state, threads)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("raised", [KeyboardInterrupt, MemoryError, ValueError])
@pytest.mark.parametrize("holds_back", [False, True])
def test_a_call_that_fails_while_it_computes_changes_nothing(raised: type[BaseException], holds_back: bool) -> None:
    failing = [False]

    def moody(batch: pa.RecordBatch) -> pa.Array:
        if failing[0]:
            raise raised("no")
        return pa.array([True] * batch.num_rows, pa.bool_())

    flow, schema = dd.Flow(), TIMED if holds_back else SCHEMA
    input = flow.upserts("s", schema, dd.Upsert("id", **{"time": "t", "lateness": 0} if holds_back else {}))
    flow.output("rows", input.filter(moody))
    flow.output("by_city", input.project(["city"]).count())
    with flow.open() as engine:
        take = (
            (lambda at: engine.push({"s": rows((at, "x", at), schema=schema)}))
            if holds_back
            else (lambda at: engine.step({"s": rows((at, "x", at))}, time=at))
        )
        take(1)
        take(2)
        before = state_of(engine)
        failing[0] = True
        with pytest.raises(raised):
            take(3)
        failing[0] = False
        assert state_of(engine) == before
        take(3)
        assert len(engine.read("rows")) == (2 if holds_back else 3)


def test_an_engine_that_was_interrupted_while_it_changed_its_state_goes_no_further(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    engine = epochs()
    engine.step({"s": rows((1, "x", 1))}, time=1)

    def interrupted(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(engine.dataflow.graph, "apply_computed_step", interrupted)
    with pytest.raises(KeyboardInterrupt):
        engine.step({"s": rows((1, "y", 1))}, time=2)
    for act in (lambda: engine.step({}, time=3), lambda: engine.read("rows")):
        with raises(errors.EngineClosed):
            act()
    engine.close()


def test_a_step_that_would_outgrow_the_budget_is_refused_and_a_smaller_one_taken() -> None:
    with epochs(opens={"memory": "200KB"}) as engine:
        engine.step({"s": rows((1, "x", 1))}, time=1)
        large = rows(*((i, "a city of some length", 1) for i in range(3000)))
        assert_refused(
            engine,
            lambda: engine.step({"s": large}, time=2),
            BudgetExceeded,
            "the state would take .* KB, but the budget is 200.0 KB; open with a larger memory=",
        )
        engine.step({"s": rows((2, "x", 1))}, time=2)
    with epochs(opens={"memory": "2MB"}) as engine:
        assert engine.step({"s": large}, time=2).verdicts["applied"] == 3000


def test_events_that_wait_count_against_the_budget_and_are_not_counted_twice_when_they_are_released() -> None:
    flow = dd.Flow()
    flow.output("rows", flow.upserts("s", TIMED, dd.Upsert("id", time="t")))
    waiting = rows(*((i, "a city of some length", i) for i in range(2000)), schema=TIMED)
    with flow.open(memory="110KB") as engine:
        with pytest.raises(BudgetExceeded):
            engine.push({"s": waiting})
        assert engine.verdicts.total == 0 and engine.stats()["pending"] == 0
        engine.push({"s": waiting.slice(0, 100)})
    with flow.open(memory="400KB") as engine:
        engine.push({"s": waiting})
        assert engine.advance_to(dd.CLOSED).verdicts["applied"] == 2000


def doubled(collection: Any, times: int) -> Any:
    for _ in range(times):
        collection = collection.concat(collection).consolidate()
    return collection


def test_a_sum_of_diffs_that_leaves_int64_is_refused_and_named() -> None:
    flow = dd.Flow()
    input = flow.upserts("s", SCHEMA, dd.Upsert("id"))
    flow.output("rows", input)
    flow.output("by_city", doubled(input.filter("at > 0").project(["city"]), 63))
    with flow.open() as engine:
        engine.step({"s": rows((1, "x", 0))}, time=1)
        act = lambda: engine.step({"s": rows((2, "y", 1))}, time=2)  # noqa: E731
        assert_refused(engine, act, errors.CountOverflow, "the sum for {'city': 'y'} overflows int64")


@pytest.mark.parametrize("step_by_step", [False, True])
def test_a_count_that_leaves_int64_is_refused_and_named(step_by_step: bool) -> None:
    flow = dd.Flow()
    input = flow.upserts("s", SCHEMA, dd.Upsert("id"))
    flow.output("rows", input)
    many = doubled(input, 62)
    flow.output("by_city", many.project(["city"]).count())
    with flow.open() as engine:
        engine.step({"s": rows((1, "x", 1), (2, "y", 1))}, time=1)
        assert {row["count"] for row in engine.read("by_city").to_pylist()} == {2**62}
        more = rows((3, "x", 1)) if step_by_step else rows((1, "z", 1), (3, "z", 1))
        assert_refused(engine, lambda: engine.step({"s": more}, time=2), errors.CountOverflow, "overflows int64")
        out = engine.step({"s": rows((1, None, 1))}, time=2)
        assert sorted(out["by_city"]["count"].to_pylist()) == [2**62, 2**62]


def test_the_least_int64_is_a_diff_that_cannot_be_negated() -> None:
    flow = dd.Flow()
    least = doubled(flow.upserts("s", {"id": pa.int64()}, dd.Upsert("id")).negate(), 63)
    flow.output("least", least)
    with flow.open() as engine:
        assert engine.step({"s": pa.table({"id": [1]})}, time=1)["least"]["_diff"].to_pylist() == [-(2**63)]
        assert engine.read("least").to_pylist() == [{"id": 1, "_diff": -(2**63)}]
    flow.output("most", least.negate())
    with flow.open() as engine, raises(errors.CountOverflow):
        engine.step({"s": pa.table({"id": [1]})}, time=1)


def test_reads_name_what_they_ask_for() -> None:
    with epochs() as engine:
        assert engine.read("rows").num_rows == 0
        engine.step({"s": rows((1, "x", 1))}, time=1)
        engine.step({"s": rows((1, "y", 1))}, time=5)
        for name, as_of, why in [
            ("row", None, "no such output or input; did you mean 'rows'"),
            ("rows", 4, "from 5 up to"),
            ("rows", 6, "not including, 6"),
            ("by_city", 1, "a larger retain="),
        ]:
            act = lambda name=name, as_of=as_of: engine.read(name, as_of)  # noqa: E731
            assert_refused(engine, act, errors.NotReadable, why)
        assert engine.read("rows", 5).num_rows == 1


@pytest.mark.parametrize(("stale", "name"), [("mark", "s.events"), ("side", "s.stale")])
def test_an_output_that_stale_adds_is_no_collection_and_a_read_of_it_says_where_its_rows_are(
    stale: Any, name: str
) -> None:
    flow, store = dd.Flow(), MemoryStore()
    schema = {"id": pa.int64(), "at": pa.int64()}
    input = flow.upserts("s", schema, dd.Upsert("id", order_by="at", stale=stale))
    flow.output("rows", input)
    flow.output("by_city", input.count(by=[]))
    why = (
        rf"^read '{name}': stale='{stale}' of the input 's' adds it: it lists events, but a state holds rows; "
        rf"write it to a sink in mode 'changelog'; or "
        rf"get its rows from each step, as step\['{name}'\], from the files of outputs=, .* name 's'$"
    )
    with flow.open(store) as engine:
        step = engine.step({"s": pa.table({"id": [1, 1], "at": [5, 4]})}, time=1)
        assert step[name].num_rows == (2 if stale == "mark" else 0)
        for act in (
            lambda: engine.read(name),
            lambda: engine.changes(name, 0, 1),
            lambda: engine.reader(name),
            lambda: engine.scd2(name),
            lambda: engine.read(name, 1),
        ):
            assert_refused(engine, act, errors.NotReadable, why)
        assert_refused(engine, lambda: engine.read("s.evens"), errors.NotReadable, "no such output or input")
    with pytest.raises(errors.NotReadable, match=why):
        dd.read(store.reopen(), name)
    with raises(errors.NotReadable):
        dd.migrate(store.reopen(), MemoryStore(), flow, [{"s": pa.table({"id": [1], "at": [5]})}], name)


def test_what_is_added_to_a_flow_later_is_in_the_engines_that_are_opened_later() -> None:
    flow = dd.Flow()
    input = flow.upserts("s", SCHEMA, dd.Upsert("id"))
    flow.output("rows", input)
    with flow.open() as early:
        flow.output("all", input.count(by=[]))
        assert list(early.step({"s": rows((1, "x", 1))}, time=1)) == ["rows"]
        with flow.open() as later:
            assert list(later.step({"s": rows((1, "x", 1))}, time=1)) == ["rows", "all"]
