"""Test custom mergers: compared with the twin and with each other, every way to fail, plans, and states."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from chance import effort
from doors import SECRET
from hypothesis import given, strategies as st
from messages import raises
from pair import Pair

import ddflow as dd
from ddflow.errors import CorruptState, MergerFailed, PlanChanged, SpecError
from ddflow.plan.text.codec import describe_plan, rebuild_plan
from ddflow.storage.memory import MemoryStore

COLUMNS = {
    "k": "int64",
    "at": "int64",
    "by": "string",
    "seq": "int64",
    "t": "int64",
    "gone": "bool",
    "n": "int64",
    "s": "string",
    "tags": "list<int64>",
}
SPECS: list[dict[str, Any]] = [
    {},
    {"order_by": ["at"]},
    {"order_by": ["by"]},
    {"order_by": ["at", "by"], "tie": "first"},
    {"order_by": ["at"], "seq": "seq"},
    {"order_by": ["at"], "value": ["n", "s", "tags"]},
    {"order_by": ["at"], "noop_ignore": ["s"]},
    {"order_by": ["at"], "derive": [["n2", "n * 2"]]},
    {"time": "t"},
    {"time": "t", "order_by": ["at", "by"]},
    {"time": "t", "late": "advance", "order_by": ["by"]},
    {"time": "t", "noop_ignore": ["s"]},
]


def small(draw: st.DrawFn, values: list[Any]) -> Any:
    return draw(st.sampled_from(values))


@st.composite
def stories(draw: st.DrawFn) -> tuple[dict[str, Any], list[list[list[Any]]]]:
    """A scenario with a merger, and calls of it."""
    spec = draw(st.sampled_from(SPECS)) | {"key": ["k"], "merge": {"function": draw(st.sampled_from(MERGED))}}
    if draw(st.booleans()):
        spec = spec | {"delete": {"tombstone": "gone"}}
    columns = dict(COLUMNS) | ({"n2": "int64"} if "derive" in spec else {})
    calls, seq = [], 0
    for _ in range(draw(st.integers(1, 4))):
        rows = []
        for _ in range(draw(st.integers(0, 6))):
            seq += 1
            at = small(draw, [None, 1, 2, 3])
            rows.append(
                [
                    small(draw, [1, 1, 2]),
                    at,
                    small(draw, [None, "a", "b"]),
                    seq,
                    small(draw, [0, 1, 2]),
                    small(draw, [False, False, True]),
                    small(draw, [None, 1, 2]),
                    small(draw, [None, "inc", "set", "reset"]),
                    small(draw, [None, [1], [2, 3]]),
                    *([None] if "n2" in columns else []),
                ]
            )
        calls.append(rows)
    scenario = {"inputs": {"a": {"columns": columns, "spec": spec}}, "outputs": {"out": ["input", "a"]}}
    return scenario, calls


MERGED = ["inc or reset", "longer", "in part"]


@given(stories())
@effort(150)
def test_every_call_gives_what_the_twin_gives(story: tuple[dict[str, Any], list[list[list[Any]]]]) -> None:
    scenario, calls = story
    pair = Pair(scenario)
    for time, rows in enumerate(calls):
        if "time" in scenario["inputs"]["a"]["spec"]:
            late = scenario["inputs"]["a"]["spec"].get("late") == "advance"
            pair.push({"a": [[*row[:4], row[4] if late else row[4] + 10 * time, *row[5:]] for row in rows]})
            pair.advance_to(10 * time + (2 if time % 2 else 10))
        else:
            pair.step({"a": rows}, time)


def set_scalar(held: Any, given: Any, out: Any) -> None:
    if given.s_is == 1 and not given.n_null and not held.n_null:
        out.n = held.n + given.n
    elif given.s_is == 2:
        out.n_null = True


def set_columns(held: pa.RecordBatch, given: pa.RecordBatch) -> pa.RecordBatch:
    """The same as `set_scalar`, for whole columns."""
    last = [pc.coalesce(given[name], held[name]) for name in given.schema.names]
    out = dict(zip(given.schema.names, last, strict=True))
    adds = pc.and_(
        pc.fill_null(pc.equal(given["s_is"], 1), False), pc.and_(pc.is_valid(given["n"]), pc.is_valid(held["n"]))
    )
    out["n"] = pc.if_else(adds, pc.add(given["n"], held["n"]), out["n"])
    out["n"] = pc.if_else(pc.fill_null(pc.equal(given["s_is"], 2), False), pa.scalar(None, pa.int32()), out["n"])
    return pa.RecordBatch.from_arrays(list(out.values()), schema=given.schema)


SCALARS = pa.schema(
    {
        "k": pa.int64(),
        "at": pa.timestamp("us"),
        "s_is": pa.int8(),
        "n": pa.int32(),
        "b": pa.bool_(),
        "x": pa.float32(),
        "name": pa.string(),
        "gone": pa.bool_(),
    }
)


def scalars(*rows: tuple[Any, ...]) -> pa.Table:
    columns = list(zip(*rows, strict=True)) if rows else [[]] * len(SCALARS)
    return pa.table([pa.array(c, f.type) for c, f in zip(columns, SCALARS, strict=True)], schema=SCALARS)


@st.composite
def tables(draw: st.DrawFn) -> list[pa.Table]:
    one = st.tuples(
        st.sampled_from([1, 1, 2]),
        st.sampled_from([None, 1, 2]),
        st.sampled_from([None, 1, 1, 2]),
        st.sampled_from([None, 1, 5]),
        st.sampled_from([None, True, False]),
        st.sampled_from([None, 0.5, float("nan")]),
        st.sampled_from([None, "a", "b"]),
        st.sampled_from([False, False, True]),
    )
    return [scalars(*rows) for rows in draw(st.lists(st.lists(one, max_size=6), max_size=4))]


def run(spec: dd.Upsert, tables: list[pa.Table], store: Any = None) -> list[list[dict[str, Any]]]:
    """What each step put out, rows in an order of their own; on a state with a restart after each."""
    flow = dd.Flow()
    flow.output("out", flow.upserts("a", SCALARS, spec))
    found = []
    engine = flow.open(store, secret=SECRET)
    for time, table in enumerate(tables):
        out = engine.step({"a": table}, time)["out"]
        found.append(sorted(out.to_pylist(), key=repr))
        if store is not None:
            engine.close()
            store = store.reopen()
            engine = flow.open(store, secret=SECRET)
    engine.close()
    return found


@given(tables(), st.sampled_from([(), ("at",)]))
@effort(60)
def test_a_scalar_merger_is_the_merger_of_columns_that_means_the_same(tables: list[pa.Table], by: Any) -> None:
    spec = {"key": "k", "order_by": by, "delete": dd.tombstone("gone")}
    one = run(dd.Upsert(**spec, merge=dd.Merge(function=set_scalar, scalar=True)), tables)
    other = run(dd.Upsert(**spec, merge=dd.Merge(function=set_columns)), tables, MemoryStore())
    assert repr(one) == repr(other)


def test_a_hot_key_costs_calls_and_the_others_do_not_stand_in_them() -> None:
    sizes = []

    def seen(held: pa.RecordBatch, given: pa.RecordBatch) -> pa.RecordBatch:
        sizes.append(given.num_rows)
        return given

    flow = dd.Flow()
    flow.output(
        "out", flow.upserts("a", {"k": pa.int64(), "n": pa.int64()}, dd.Upsert("k", merge=dd.Merge(function=seen)))
    )
    with flow.open() as engine:
        out = engine.step({"a": pa.table({"k": [7] * 5 + [1, 2, 3, 3], "n": list(range(9))})}, 0)["out"]
    assert sizes == [2, 1, 1, 1]
    assert sorted((r["k"], r["n"]) for r in out.to_pylist()) == [(1, 5), (2, 6), (3, 8), (7, 4)]


def divides(held: Any, given: Any) -> Any:
    raise ZeroDivisionError("of course")


def nulls(held: Any, given: Any) -> Any:
    return given.set_column(1, "n", pa.nulls(given.num_rows, pa.int64()))


FAILING: dict[str, tuple[Callable[..., Any], str]] = {
    "raises": (divides, "raised ZeroDivisionError: of course"),
    "no batch": (lambda held, given: given.to_pylist(), "returned a list"),
    "rows": (lambda held, given: given.slice(1), "returned 0 rows for 1"),
    "columns": (lambda held, given: given.select(["k"]), r"returned the columns \['k'\]"),
    "types": (lambda held, given: given.set_column(1, "n", pa.array([0.5])), "'n' cannot become|float|double"),
    "nulls": (nulls, "null"),
    "key": (lambda held, given: given.set_column(0, "k", pa.array([9])), r"\{'k': 9\} instead of \{'k': 1\}"),
}


@pytest.mark.parametrize("name", FAILING)
def test_a_merger_that_fails_is_named_and_nothing_changes(name: str) -> None:
    function, words = FAILING[name]
    schema = pa.schema([pa.field("k", pa.int64()), pa.field("n", pa.int64(), nullable=False)])
    flow = dd.Flow()
    flow.output("out", flow.upserts("a", schema, dd.Upsert("k", merge=dd.Merge(function=function))))
    with flow.open() as engine:
        engine.step({"a": pa.table({"k": [1], "n": [1]}, schema=schema)}, 0)
        before = engine.read("out")
        with pytest.raises(MergerFailed, match=words):
            engine.step({"a": pa.table({"k": [1], "n": [2]}, schema=schema)}, 1)
        assert engine.read("out").equals(before)


def moves(held: Any, given: Any, out: Any) -> None:
    out.k = 5


def hides(held: Any, given: Any, out: Any) -> None:
    given.k = out.k = 5


def empties(held: Any, given: Any, out: Any) -> None:
    out.n_null = True


def throws(held: Any, given: Any, out: Any) -> None:
    raise ValueError("not so")


@pytest.mark.drawn(2)
@pytest.mark.parametrize(
    "function",
    [
        moves,
        empties,
        hides,
        throws,
    ],
)
def test_a_scalar_merger_that_fails_is_named(function: Any) -> None:
    schema = pa.schema([pa.field("k", pa.int64()), pa.field("n", pa.int64(), nullable=False)])
    flow = dd.Flow()
    flow.output("out", flow.upserts("a", schema, dd.Upsert("k", merge=dd.Merge(function=function, scalar=True))))
    with flow.open() as engine, raises(MergerFailed):
        engine.step({"a": pa.table({"k": [1, 1], "n": [1, 2]}, schema=schema)}, 0)


def unset(held: Any, given: Any, out: Any) -> None:
    out.nowhere = held.n


def unread(held: Any, given: Any, out: Any) -> None:
    if given.n > 5:
        out.n = given.name


def uncompiled(held: Any, given: Any, out: Any) -> None:
    out.n = given.n.as_py()


UNKNOWN = [
    unset,
    unread,
    uncompiled,
]


@pytest.mark.parametrize("function", UNKNOWN)
def test_a_scalar_merger_of_unknown_fields_is_refused_when_the_flow_is_built(function: Any) -> None:
    with raises(SpecError):
        flow_of(function, scalar=True)


def as_given(held: Any, given: Any, out: Any) -> None:
    """What stands under nulls, too."""
    out.n, out.n_null = held.n + given.n, False


def test_what_stands_under_a_null_in_the_input_is_seen_by_no_merger() -> None:
    values, mask = np.array([7, 1000, 1000, 5], np.int64), np.array([False, True, True, False])
    # With a mask Arrow takes the buffer as it is.
    given = pa.Array.from_buffers(pa.int64(), 4, [pa.array(~mask).buffers()[1], pa.py_buffer(values)])
    flow = dd.Flow()
    schema = {"k": pa.int64(), "n": pa.int64()}
    spec = dd.Upsert("k", merge=dd.Merge(function=as_given, scalar=True))
    flow.output("out", flow.upserts("a", schema, spec))
    with flow.open() as engine:
        engine.step({"a": pa.table({"k": [1, 1, 2, 2], "n": given})}, 0)
        assert sorted(row["n"] for row in engine.read("out").to_pylist()) == [5, 7]


def flow_of(function: Any, scalar: bool = False) -> dd.Flow:
    flow = dd.Flow()
    flow.output("out", flow.upserts("a", SCALARS, dd.Upsert("k", merge=dd.Merge(function=function, scalar=scalar))))
    return flow


def test_a_plan_names_its_merger_and_needs_it() -> None:
    assert describe_plan(flow_of(set_columns)) == describe_plan(flow_of(set_columns))
    assert describe_plan(flow_of(set_columns)) != describe_plan(flow_of(nulls))
    with raises(SpecError):
        rebuild_plan(describe_plan(flow_of(set_columns)))


@pytest.mark.parametrize(("function", "scalar"), [(set_columns, False), (set_scalar, True)])
def test_a_state_is_whole_with_or_without_its_code(function: Any, scalar: bool, tmp_path: Path) -> None:
    flow = flow_of(function, scalar)
    with flow.open(tmp_path / "state") as engine:
        engine.step({"a": scalars((1, 1, 1, 1, None, None, "a", False))}, 0)
    for known in (None, flow):
        assert not dd.fsck(tmp_path / "state", flow=known).problems


def test_a_state_of_another_merger_is_refused() -> None:
    store = MemoryStore()
    with flow_of(set_columns).open(store) as engine:
        engine.step({"a": scalars((1, 1, 1, 1, None, None, "a", False))}, 0)
    with flow_of(set_columns).open(store.reopen()) as engine:
        assert engine.read("out").num_rows == 1
    for other in (flow_of(nulls), flow_of(set_scalar, True)):
        with raises(PlanChanged):
            other.open(store.reopen())


MERGING: list[dict[str, Any]] = [
    {"merge": dd.Merge({"n": dd.sum(), "s": dd.join_text("; ")}, default=dd.first_non_null())},
    {"groups": {("at", "seq"): ["n"], "by": "s"}, "exclusive": True, "deletes": "group", "delete": "gone"},
    {"order_by": "at", "versions": "cell", "tie": "greatest"},
    {"order_by": "at", "merge": "first_row", "expiry": dd.Expiry(ttl=30)},
    {"merge": dd.Merge(), "derive": {"n": "at * 2", "s": "concat(by, by)"}},
]


@pytest.mark.parametrize("options", MERGING)
def test_a_plan_that_merges_is_read_back_and_one_that_was_changed_is_corrupt(options: dict[str, Any]) -> None:
    names = {name: pa.int64() for name in ("k", "at", "seq", "n")} | {"by": pa.string(), "s": pa.string()}
    flow = dd.Flow()
    flow.output("out", flow.upserts("a", names | {"gone": pa.bool_()}, dd.Upsert("k", **options)))
    written = describe_plan(flow)
    assert describe_plan(rebuild_plan(written)) == written
    for name in written["inputs"]["a"]["spec"]:
        for wrong in (7, [1], {"columns": 3}, {"function": "f"}, [["a"]], None, {"ttl": []}):
            changed = copy.deepcopy(written)
            changed["inputs"]["a"]["spec"][name] = wrong
            with pytest.raises((CorruptState, SpecError)) as caught:
                rebuild_plan(changed)
            assert isinstance(caught.value, CorruptState), (name, wrong)
