"""Test `Engine.replace` and `Engine.restate` against the twin: full contents in, differences out, and refusals.

Without the twin, tests also assert that a replace holds exactly the given rows. A state, a budget and another cut of
the rows change nothing.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from chance import effort
from conditions import CONDITIONS, columns_in
from hypothesis import given, strategies as st
from messages import raises
from pair import Pair
from strategies import VALUES, events, row_of, scenarios, shapes

import ddflow as dd
from ddflow import errors
from ddflow.engine.full_contents import find_greatest_row
from ddflow.storage.memory import MemoryStore

TIGHT = [None, {"share": 0, "rows": 3}, {"share": 700, "rows": 2**40}]
SCHEMA = pa.schema({"id": pa.int64(), "region": pa.string(), "v": pa.int64(), "at": pa.int64()})
SPEC = dd.Upsert(key="id", order_by="at")


@effort(150)
@given(st.data(), shapes(), st.sampled_from(TIGHT))
def test_full_contents_and_restatements_equal_the_twin(data: st.DataObject, shape: Any, medium: Any) -> None:
    scenario = data.draw(scenarios(holds_back=False))
    pair = Pair(scenario, shape, medium=medium)
    name, input = next(iter(scenario["inputs"].items()))
    spec, columns = input["spec"], input["columns"]
    row = row_of(columns, spec)
    scopes = [sql for sql in CONDITIONS if columns_in(sql) <= set(row) and columns_in(sql) <= {"n", "s", "f", "b"}]
    keys = [list(columns).index(each) for each in spec["key"]]
    for time in range(data.draw(st.integers(2, 5))):
        rows, verb = data.draw(events(input)), data.draw(st.sampled_from(["step", "replace", "replace", "restate"]))
        if verb == "step" or time == 0:
            pair.step({name: rows}, time)
            continue
        scope = data.draw(st.sampled_from([None, None, *scopes])) if verb == "replace" else None
        order = None
        ordered = [*spec.get("order_by", []), *([spec["seq"]] if "seq" in spec else [])]
        if ordered and (not rows or data.draw(st.booleans())):
            order = {each: data.draw(st.sampled_from([None, *VALUES[columns[each]]])) for each in ordered}
        if verb == "replace" and data.draw(st.integers(0, 5)):
            rows = list({repr([each[i] for i in keys]).replace("-0.0", "0.0"): each for each in rows}.values())
            if scope is not None and data.draw(st.booleans()):
                rows = [e for e in rows if CONDITIONS[scope](dict(zip(columns, e, strict=True))) is True]
        act = {"name": name, "rows": rows, "time": time, "scope": scope, "order": order, "once": verb == "replace"}
        pair.calls.append([verb, act])
        pair._both(lambda door, act=act: door.replace(**act))
    pair.close()


def table(*rows: tuple[Any, ...]) -> pa.Table:
    return (
        pa.table(
            [pa.array(column, f.type) for column, f in zip(zip(*rows, strict=True), SCHEMA, strict=True)], schema=SCHEMA
        )
        if rows
        else SCHEMA.empty_table()
    )


FIRST = table((1, "EU", 10, 5), (2, "EU", 20, 5), (3, "US", 30, 5), (4, "US", 40, 9))


def flow(spec: dd.Upsert = SPEC) -> dd.Flow:
    out = dd.Flow()
    rows = out.upserts("rows", SCHEMA, spec)
    out.output("rows", rows)
    out.output("n", rows.count(["region"]))
    return out


def changed(step: dd.Step, name: str = "rows") -> set[tuple[Any, ...]]:
    return {tuple(row.values()) for row in step[name].drop_columns(["_time"]).to_pylist()}


def held(engine: dd.Engine) -> list[tuple[Any, ...]]:
    return sorted(tuple(row.values())[:4] for row in engine.read("rows").to_pylist())


def test_only_the_differences_come_out_and_absent_keys_go() -> None:
    with flow().open() as engine:
        engine.step({"rows": FIRST}, 1)
        # Older than what is held, and it wins all the same.
        out = engine.replace("rows", table((1, "EU", 10, 1), (2, "EU", 21, 1), (5, "EU", 50, 1)), 2)
        assert changed(out) == {
            (1, "EU", 10, 5, -1),
            (1, "EU", 10, 1, 1),
            (2, "EU", 20, 5, -1),
            (2, "EU", 21, 1, 1),
            (3, "US", 30, 5, -1),
            (4, "US", 40, 9, -1),
            (5, "EU", 50, 1, 1),
        }
        assert changed(out, "n") == {("EU", 2, -1), ("EU", 3, 1), ("US", 2, -1)}
        assert (out.verdicts.counts["applied"], out.verdicts.absent, out.verdicts.resolved) == (3, 2, 3)
        assert engine.verdicts.resolved == 7
        engine._check_invariants()


def test_in_a_scope_nothing_else_is_touched() -> None:
    with flow().open() as engine:
        engine.step({"rows": FIRST}, 1)
        out = engine.replace("rows", table((2, "EU", 20, 5)), 2, "region = 'EU'")
        assert changed(out) == {(1, "EU", 10, 5, -1)}
        assert held(engine) == [(2, "EU", 20, 5), (3, "US", 30, 5), (4, "US", 40, 9)]
        assert out.verdicts.counts["noop"] == out.verdicts.absent == 1


def test_tombstones_take_the_order_given_else_the_greatest_of_the_table() -> None:
    late = table((1, "EU", 11, 7))
    for order, comes_back in ((None, True), (8, False), ({"at": 6}, True)):
        with flow().open() as engine:
            engine.step({"rows": FIRST}, 1)
            engine.replace("rows", table((2, "EU", 20, 3), (3, "EU", 1, 6)), 2, order=order)
            assert bool(changed(engine.step({"rows": late}, 3))) == comes_back, order
    for at, comes_back in ((5, False), (6, True)):
        with flow().open() as engine:
            engine.step({"rows": FIRST}, 1)
            engine.replace("rows", table((2, "EU", 20, 3), (3, "EU", 1, 6), (4, "EU", 1, 4)), 2)
            assert bool(changed(engine.step({"rows": table((1, "EU", 11, at))}, 3))) == comes_back
    with flow().open() as engine:
        engine.step({"rows": FIRST}, 1)
        with raises(errors.SpecError):
            engine.replace("rows", table(), 2, allow_empty=True)
        assert engine.replace("rows", table(), 2, order=9, allow_empty=True).verdicts.absent == 4
        assert held(engine) == []


def test_a_winners_own_order_stays_with_it() -> None:
    with flow().open() as engine:
        engine.step({"rows": FIRST}, 1)
        engine.replace("rows", table((1, "EU", 10, 2)), 2)
        assert engine.step({"rows": table((1, "EU", 0, 1))}, 3).verdicts.counts["stale"] == 1
        assert engine.step({"rows": table((1, "EU", 0, 3))}, 4).verdicts.counts["applied"] == 1


def test_restating_gives_what_the_corrected_log_folds_to() -> None:
    log = table((1, "EU", 1, 1), (1, "EU", 3, 3), (1, "EU", 2, 2), (3, "US", 30, 5))
    with flow().open() as engine:
        engine.step({"rows": FIRST}, 1)
        out = engine.restate("rows", log, 2)
        assert held(engine) == sorted(tuple(r.values()) for r in dd.merge_on_read(log, SPEC).to_pylist())
        assert changed(out) == {(1, "EU", 10, 5, -1), (1, "EU", 3, 3, 1), (2, "EU", 20, 5, -1), (4, "US", 40, 9, -1)}
        counts = out.verdicts.counts
        assert (counts["applied"], counts["noop"], counts["superseded"], out.verdicts.absent) == (1, 1, 2, 2)
        assert engine.step({"rows": table((1, "EU", 9, 2))}, 3).verdicts.counts["stale"] == 1


def test_what_nobody_gave_is_in_no_list_of_events() -> None:
    spec = dd.Upsert(key="id", order_by="at", stale="mark")
    with flow(spec).open(verdicts="rows") as engine:
        engine.step({"rows": FIRST}, 1)
        out = engine.replace("rows", table((2, "EU", 21, 5)), 2)
        assert out.verdicts.rows is not None
        assert out.verdicts.rows["rows"].select(["seq", "id", "verdict"]).to_pylist() == [
            {"seq": 4, "id": 2, "verdict": "applied"}
        ]
        assert out["rows.events"].num_rows == 1
        assert out.verdicts.absent == 3
        again = engine.step({"rows": table((9, "EU", 0, 9))}, 3)
        assert again.verdicts.rows is not None
        assert again.verdicts.rows["rows"]["seq"].to_pylist() == [5]


REFUSED: dict[str, tuple[type[errors.DdflowError], str, dict[str, Any]]] = {
    "a key twice": (
        errors.DuplicateKeys,
        r"1 keys have more than one row, first \[{'id': 7}\]",
        {"table": table((7, "EU", 1, 1), (8, "EU", 1, 1), (7, "US", 2, 2))},
    ),
    "a row outside": (
        errors.OutOfScope,
        r"1 rows .* first \[{'id': 3}\]",
        {"scope": "region = 'EU'", "table": FIRST[1:3]},
    ),
    "a scope without columns": (errors.ExpressionError, "regio", {"scope": "regio = 'EU'"}),
    "an order of another type": (errors.SpecError, "pass values of", {"order": "late"}),
    "an order of other columns": (errors.SpecError, "pass a value for each", {"order": {"by": 5}}),
    "no such input": (errors.SchemaMismatch, "there is no such input", {"name": "row"}),
    "a time that went back": (errors.TimeWentBack, "cannot replace at 1", {"time": 1}),
    "a null key": (errors.NullKey, "null", {"table": table((None, "EU", 1, 1))}),
}


ORDERS: list[tuple[list[Any], pa.DataType, int]] = [
    ([3, None, 7, 5], pa.int64(), 2),
    ([None, None], pa.int64(), 0),
    ([1.0, float("nan"), 9.0], pa.float64(), 1),
    ([-(2**63), None], pa.int64(), 0),
    (["a", None, "b", ""], pa.string(), 2),
    ([2**64 - 1, 5], pa.uint64(), 0),
]


@pytest.mark.parametrize(("values", "kind", "row"), ORDERS)
def test_the_greatest_of_some_rows(values: list[Any], kind: pa.DataType, row: int) -> None:
    column = pa.array(values, kind)
    assert find_greatest_row(pa.record_batch({"a": column})) == row
    # The second column decides where the first does not.
    assert find_greatest_row(pa.record_batch({"a": pa.nulls(len(values), pa.int64()), "b": column})) == row


@pytest.mark.parametrize("why", REFUSED)
def test_what_is_refused_changes_nothing(why: str) -> None:
    error, message, given = REFUSED[why]
    with flow().open() as engine:
        engine.step({"rows": FIRST}, 1)
        before = held(engine)
        with pytest.raises(error, match=message):
            engine.replace(**{"name": "rows", "table": FIRST, "time": 2} | given)
        assert held(engine) == before
        assert engine.replace("rows", FIRST, 2).verdicts.counts["noop"] == 4
        assert engine.verdicts.resolved == 8


def test_orderless_and_held_back_inputs() -> None:
    with flow(dd.Upsert(key="id")).open() as engine:
        engine.step({"rows": FIRST}, 1)
        with raises(errors.SpecError):
            engine.replace("rows", FIRST, 2, order=4)
        assert engine.replace("rows", table(), 2, allow_empty=True).verdicts.absent == 4
    with flow(dd.Upsert(key="id", time="at")).open() as engine, raises(errors.WrongMode):
        engine.replace("rows", FIRST, 1)


def test_columns_that_do_not_count_and_rows_that_delete() -> None:
    spec = dd.Upsert(key="id", noop_ignore=["at"], delete="v < 0")
    with flow(spec).open() as engine:
        engine.step({"rows": FIRST}, 1)
        out = engine.replace("rows", table((1, "EU", 10, 99), (2, "EU", -1, 0), (3, "US", 30, 5)), 2)
        assert changed(out) == {(2, "EU", 20, 5, -1), (4, "US", 40, 9, -1)}
        assert (out.verdicts.counts["noop"], out.verdicts.counts["applied"], out.verdicts.absent) == (2, 1, 1)


def test_a_null_key_that_is_kept_is_not_the_key_of_value_zero() -> None:
    with flow(dd.Upsert(key="id", null_key="keep")).open() as engine:
        engine.step({"rows": table((0, "EU", 1, 1), (None, "EU", 2, 2))}, 1)
        assert changed(engine.replace("rows", table((None, "EU", 2, 2)), 2)) == {(0, "EU", 1, 1, -1)}


@pytest.mark.parametrize("memory", [None, "16MB"])
def test_an_epoch_of_full_contents_is_given_again(tmp_path: Path, memory: str | None) -> None:
    place, second = tmp_path / "state", table((1, "EU", 10, 5), (6, "US", 60, 6))
    with flow().open(place, memory=memory) as engine:
        engine.step({"rows": FIRST}, 1)
        out = engine.replace("rows", second, 2, "region in ('EU', 'US')")
        log = engine.restate("rows", FIRST, 3)
    with flow().open(place, memory=memory) as engine:
        assert held(engine) == sorted(tuple(row.values()) for row in FIRST.to_pylist())
        again = engine.replace("rows", second, 2, "region in ('EU', 'US')", epoch=2)
        assert (again["rows"], again["n"], again.verdicts) == (out["rows"], out["n"], out.verdicts)
        assert engine.replace("rows", second, 2, "region in ('EU', 'US')")["rows"] == out["rows"]
        assert engine.restate("rows", FIRST.to_batches()[0], 3)["n"] == log["n"]
        for other in ({"scope": "region = 'EU'"}, {"order": 7}, {"table": FIRST}):
            with pytest.raises(errors.ReplayMismatch):
                engine.replace(
                    **{"name": "rows", "table": second, "time": 2, "epoch": 2, "scope": "region in ('EU', 'US')"}
                    | other
                )
        assert engine.epoch == 3
        assert engine.replace("rows", FIRST, 4).verdicts.counts["noop"] == 4
        assert engine.epoch == 4


def test_a_state_larger_than_its_budget_is_replaced(tmp_path: Path) -> None:
    n = 60_000
    wide = pa.table({"id": range(n), "region": ["EU"] * n, "v": range(n), "at": [1] * n}, schema=SCHEMA)
    with flow().open(memory="16MB", spill=tmp_path) as engine:
        engine.step({"rows": wide}, 1)
        reader = pa.RecordBatchReader.from_batches(SCHEMA, wide[: n // 2].to_batches(max_chunksize=1000))
        out = engine.replace("rows", reader, 2)
        assert (out["rows"].num_rows, out.verdicts.absent, out.verdicts.counts["noop"]) == (n // 2, n // 2, n // 2)
        assert engine.read("n").to_pylist() == [{"region": "EU", "count": n // 2, "_diff": 1}]


def test_contents_that_are_the_same_write_nothing() -> None:
    store = MemoryStore()
    with flow().open(store) as engine:
        engine.step({"rows": FIRST}, 1)
        engine.replace("rows", FIRST, 2)
        assert engine.dataflow.graph.inputs["rows"].output_arrangement.spine.version_count == 4


@pytest.mark.parametrize("durable", [False, True])
def test_full_contents_of_several_inputs_are_one_step_at_one_time(durable: bool, tmp_path: Path) -> None:
    flow, states = dd.Flow(), [str(tmp_path / "state")] if durable else []
    for name in ("a", "b"):
        flow.upserts(name, {"id": int, "n": int}, dd.Upsert(key="id"))
    flow.output("sums", flow.sql("select a.id, a.n + b.n s from a join b on a.id = b.id"))
    with flow.open(*states) as engine:
        first = {"a": {"id": [1, 2], "n": [1, 2]}, "b": {"id": [1, 2], "n": [10, 20]}}
        engine.replace(first, time=20261101)
        out = engine.replace({"a": {"id": [1], "n": [5]}, "b": {"id": [1], "n": [50]}}, time=20261102)
        assert sorted((row["s"], row["_time"], row["_diff"]) for row in out["sums"].to_pylist()) == [
            (11, 20261102, -1),
            (22, 20261102, -1),
            (55, 20261102, 1),
        ]
        assert out.verdicts.absent == 2
        for refused, error, found in (
            ({"a": {"id": [1, 1], "n": [1, 1]}, "b": first["b"]}, errors.DuplicateKeys, "replace of 'a' at time"),
            ({"a": {"id": [7], "n": [7]}, "b": {"id": [], "n": []}}, errors.EmptyContents, "replace of 'b' at time"),
        ):
            with pytest.raises(error, match=found):
                engine.replace(refused)
        with raises(errors.SpecError):
            engine.replace(first, scope="id = 1")
        with raises(errors.DdflowError):
            engine.replace("b", first["b"], time=20261102)
        assert engine.read("sums").to_pylist() == [{"id": 1, "s": 55, "_diff": 1}]
        if durable:
            assert engine.replace(first, time=20261101)["sums"].num_rows == 2 and engine.epoch == 2
    with flow.open() as engine:
        assert engine.replace({"a": {"id": [1], "n": [1]}}).verdicts["applied"] == 1


def test_full_contents_without_rows_delete_all_keys_only_where_that_is_allowed(tmp_path: Path) -> None:
    flow = dd.Flow()
    flow.output("rows", flow.upserts("rows", {"id": int, "city": str}, dd.Upsert(key="id")))
    (cut := tmp_path / "cut.csv").write_text("id,city\n")
    with flow.open() as engine:
        assert engine.replace(cut).verdicts.absent == 0  # nothing is lost
        engine.replace({"id": [1, 2], "city": ["Bern", "Chur"]})
        for empty in (cut, {"id": [], "city": []}):
            with raises(errors.EmptyContents):
                engine.replace(empty)
        assert engine.read("rows").num_rows == 2
        assert engine.replace("rows", cut, scope="city = 'Zug'").verdicts.absent == 0
        assert engine.replace(cut, allow_empty=True).verdicts.absent == 2


def test_a_history_without_events_deletes_all_keys_only_where_that_is_allowed() -> None:
    flow, none = dd.Flow(), {"id": [], "city": []}
    flow.output("rows", flow.upserts("rows", {"id": int, "city": str}, dd.Upsert(key="id")))
    with flow.open(store := MemoryStore()) as engine:
        assert engine.restate(none).verdicts.absent == 0
        engine.restate({"id": [1, 1], "city": ["Bern", "Chur"]})
        with raises(errors.EmptyContents):
            engine.restate(none)
        assert engine.read("rows").num_rows == 1
        assert engine.restate(none, allow_empty=True).verdicts.absent == 1
    log = [dd.Restated({"id": [1], "city": ["Chur"]}), dd.Restated(none)]
    assert dd.verify(store, {"rows": [dd.Restated(none), *log]}).ok  # a log is folded as it was fed


def test_full_contents_that_lack_too_many_keys_or_a_column_do_not_pass_without_a_word() -> None:
    flow = dd.Flow()
    flow.output("places", flow.upserts("places", {"id": int, "city": str, "n": int}, dd.Upsert(key="id")))
    with flow.open() as engine:
        rows = pa.table({"id": [1, 2, 3, 4], "city": ["a", "a", "b", "b"], "n": [1, 2, 3, 4]})
        engine.replace(rows)
        for most, scope in ((2, None), ("50%", None), ("49%", "city = 'a'")):
            with raises(dd.errors.TooManyAbsent):
                engine.replace("places", rows.slice(0, 1), scope=scope, max_absent=most)
        for wrong in ("101%", "many", -1, True):
            with raises(dd.errors.SpecError):
                engine.replace(rows, max_absent=wrong)
        assert engine.read("places").num_rows == 4 and engine.last == 1
        assert engine.replace(rows.slice(0, 2), max_absent="50%").verdicts.absent == 2
        with pytest.warns(UserWarning, match=r"it lacks the columns \['n'\], which are null in all its rows"):
            engine.replace(rows.slice(0, 2).drop_columns(["n"]))
        assert engine.read("places")["n"].to_pylist() == [None, None]
