"""Test changes of columns: an evolved engine or state equals one that had the new columns from the start.

This holds at all readable times. The twin is an engine of the evolved plan that gets the rows cast. Plans have every
operator of the registry.
"""

from __future__ import annotations

import datetime as dt
from collections import Counter
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from chance import effort, long_test
from every_operator import NARROW, cast, missing, plan, schema
from hypothesis import given, strategies as st
from messages import raises

import ddflow as dd
from ddflow.columns.widening import InexactValue, conform_to_wider_schema
from ddflow.columns.wider import find_widening
from ddflow.errors import Fenced, PlanChanged, ReplayMismatch, SchemaMismatch, SpecError
from ddflow.partitions.evolve import ColumnEvolution
from ddflow.partitions.rescale import rescale
from ddflow.partitions.rewrite import Rewrite
from ddflow.partitions.rewrite_task import run_task
from ddflow.storage.memory import MemoryStore

READ: dict[str, Any] = {"city": pa.large_string(), "n": pa.int64(), "tags": NARROW["tags"], "day": pa.date32()}
REWRITES = {
    "a double and a timestamp": {"n": pa.float64(), "day": pa.timestamp("us")},
    "a decimal and text": {"n": pa.decimal128(12, 2), "day": pa.string()},
    "a wider integer, and a new column": {"n": pa.int64(), "day": pa.timestamp("us", "UTC"), "new": pa.string()},
}
DAYS = [None, dt.date(1969, 12, 31), dt.date(2024, 2, 29)]
FOREVER = 1 << 40

rows = st.lists(
    st.fixed_dictionaries(
        {
            "id": st.integers(1, 5),
            "city": st.sampled_from([None, "Bern", "Basel"]),
            "n": st.sampled_from([None, -1, 1, 2, 3]),
            "tags": st.sampled_from([None, [], ["a", None]]),
            "day": st.sampled_from(DAYS),
        }
    ),
    max_size=6,
).map(lambda given: pa.Table.from_pylist(given, schema(NARROW)))


def plain(table: pa.Table) -> Counter[Any]:
    """Rows as they are, types and all."""
    return Counter(repr(row) for row in table.to_pylist())


def same(one: Any, other: Any, names: Any) -> None:
    """Assert that two that can be read hold the same, in the same columns, at all times that both can be read at."""
    for name in names:
        for time in range(max(one.since, other.since, 0), one.last + 1):
            a, b = one.read(name, time), other.read(name, time)
            assert a.schema == b.schema and plain(a) == plain(b), (name, time)


def told(step: dd.Step, other: dd.Step) -> None:
    assert {name: plain(table) for name, table in step.items()} == {name: plain(t) for name, t in other.items()}
    assert {name: table.schema for name, table in step.items()} == {name: t.schema for name, t in other.items()}
    assert step.verdicts.counts == other.verdicts.counts


def test_every_operator_is_in_the_plan() -> None:
    assert not missing(plan(NARROW))


@long_test
@effort(20)
@given(
    st.lists(rows, min_size=2, max_size=5),
    st.integers(0, 5),
    st.booleans(),
    st.sampled_from([None, "16MB"]),
    st.sampled_from([0, 2, FOREVER]),
    st.sampled_from([READ, READ | {"new": pa.int8()}, NARROW | {"new": pa.int8()}]),
)
def test_an_engine_that_evolves_goes_on_as_one_of_the_new_columns(
    log: list[pa.Table], at: int, durable: bool, memory: Any, retain: int, columns: dict[str, Any]
) -> None:
    store = MemoryStore()
    given = {"memory": memory, "retain": retain}
    with (
        plan(NARROW).open(store if durable else None, **given) as engine,
        plan(columns).open(retain=retain) as twin,
    ):
        for time, table in enumerate(log, 1):
            if time == at:
                engine.evolve(schema(columns))
                engine._check_invariants()
                same(engine, twin, twin.flow.outputs)
            step = engine.step({"a": table}, time)
            other = twin.step({"a": cast(table, columns)}, time)
            if at and at <= time:
                told(step, other)
                again = engine.step({"a": table}, time) if durable else step
                told(again, step)
        engine._check_invariants()
        if not at or at > len(log):
            engine.evolve({"a": schema(columns)})
        same(engine, twin, twin.flow.outputs)
        if not durable:
            return
        # What no commit has published is not there after a crash.
        crashed = dd.Snapshot.open(store.reopen())
        assert (crashed.flow.inputs["a"].bound.schema == schema(columns)) == (1 <= at <= len(log))
        engine.step({}, len(log) + 1)
        told(engine.step({"a": log[-1]}, len(log)), twin_step(columns, log, retain))
    assert dd.fsck(store.reopen()).ok and dd.verify(store.reopen(), {"a": log}).ok
    with plan(columns).open(store.reopen(), **given) as engine:
        same(engine, twin_of(columns, log, retain), columns and plan(columns).outputs)
        engine._check_invariants()


def twin_of(columns: dict[str, Any], log: list[pa.Table], retain: int) -> dd.Engine:
    twin = plan(columns).open(retain=retain)
    for time, table in enumerate(log, 1):
        twin.step({"a": cast(table, columns)}, time)
    twin.step({}, len(log) + 1)
    return twin


def twin_step(columns: dict[str, Any], log: list[pa.Table], retain: int) -> dd.Step:
    """What the last step of a log gives."""
    with plan(columns).open(retain=retain) as twin:
        steps = [twin.step({"a": cast(table, columns)}, time) for time, table in enumerate(log, 1)]
    return steps[-1]


def rewritable(what: str) -> Callable[[dict[str, Any]], dd.Flow]:
    """The plan without what multiplies, and without means that would be rounded otherwise: they are others then."""
    others = ["project", *(["agg"] if pa.types.is_decimal(REWRITES[what]["n"]) else [])]
    return lambda columns: flow_without(plan(columns), *others)


def flow_without(flow: dd.Flow, *names: str) -> dd.Flow:
    for name in names:
        del flow.outputs[name]
    return flow


@long_test
@effort(24)
@given(
    st.lists(rows, min_size=2, max_size=5),
    st.sampled_from([1, 2, 3]),
    st.sampled_from([None, "16MB"]),
    st.sampled_from([0, 2, FOREVER]),
    st.sampled_from(list(REWRITES)),
)
def test_a_state_that_was_rewritten_goes_on_as_one_of_the_new_columns(
    log: list[pa.Table], partitions: int, memory: Any, retain: int, what: str
) -> None:
    columns, make = NARROW | REWRITES[what], rewritable(what)
    store, last = MemoryStore(), len(log) - 1
    with make(NARROW).open(store, memory=memory, retain=retain) as engine:
        for time, table in enumerate(log[:-1], 1):
            before = engine.step({"a": table}, time)
    if partitions > 1:
        rescale(store.reopen(), partitions, memory=memory)
    epoch = dd.inspect(store.reopen())["epoch"]
    done = dd.evolve(store.reopen(), schema(columns), memory=memory)
    assert done.epoch == epoch and set(done.columns["a"]) == set(REWRITES[what])
    assert dd.evolve(store.reopen(), schema(columns)).columns == {}  # and a second time there is nothing to do
    assert dd.fsck(store.reopen()).ok and dd.verify(store.reopen(), {"a": log[:-1]}).ok
    with make(columns).open(retain=retain) as twin:
        steps = [twin.step({"a": cast(table, columns)}, time) for time, table in enumerate(log[:-1], 1)]
        with dd.Snapshot.open(store.reopen()) as snapshot:
            same(snapshot, twin, twin.flow.outputs)
        if partitions > 1:
            rescale(store.reopen(), 1)
        with make(columns).open(store.reopen(), memory=memory, retain=retain) as engine:
            for given_again in (log[-2], cast(log[-2], columns)):  # as it was given, and in the new columns
                again = engine.step({"a": given_again}, last)
                assert {n: plain(t) for n, t in again.items()} == {n: plain(t) for n, t in steps[-1].items()}
                assert again.verdicts.counts == before.verdicts.counts
            other = pa.concat_tables([log[-2], pa.table({"id": [9]})], promote_options="default")
            with pytest.raises(ReplayMismatch):
                engine.step({"a": other}, last)
            told(
                engine.step({"a": cast(log[-1], columns)}, last + 1), twin.step({"a": cast(log[-1], columns)}, last + 1)
            )
            same(engine, twin, twin.flow.outputs)
            engine._check_invariants()
    assert dd.verify(store.reopen(), {"a": log}).ok


def test_waiting_events_and_kept_orders_are_cast() -> None:
    spec = {"time": "at", "order_by": "rev", "late": "advance", "delete": dd.tombstone("op", 1)}
    narrow = {"at": pa.int64(), "rev": pa.string(), "op": pa.int8(), "n": pa.int32()}
    wide = narrow | {"op": pa.int64(), "n": pa.decimal128(12, 1)}
    events = [[1, 5, "b", 0, 1], [1, 9, "c", 0, 7], [2, 6, "a", 0, 2], [2, 12, "d", 1, 4], [3, 3, "a", 0, 3]]
    names = ["id", *narrow]
    table = pa.Table.from_pylist([dict(zip(names, row, strict=True)) for row in events], schema(narrow))

    def flow(columns: dict[str, Any]) -> dd.Flow:
        out = dd.Flow()
        people = out.upserts("a", {"id": pa.int64()} | columns, dd.Upsert(key="id", **spec))
        out.output("rows", people)
        out.output("by_n", people.count("n"))
        return out

    store = MemoryStore()
    with flow(narrow).open(store, retain=FOREVER) as engine, flow(wide).open(retain=FOREVER) as twin:
        for each in (engine, twin):
            each.push({"a": table if each is engine else cast(table, wide)})
            each.advance_to(8)
    assert dd.evolve(store.reopen(), {"op": pa.int64(), "n": "decimal(12,1)"}).pending == 2
    with flow(wide).open(store.reopen(), retain=FOREVER) as engine, flow(wide).open(retain=FOREVER) as twin:
        twin.push({"a": cast(table, wide)})
        twin.advance_to(8)
        late = pa.table({"id": [3, 1], "at": [2, 4], "rev": ["z", "a"], "op": [0, 0], "n": [Decimal("0.5"), None]})
        for each in (engine, twin):
            each.push({"a": late})
        told(engine.advance_to(20), twin.advance_to(20))
        same(engine, twin, ["rows", "by_n"])


MERGED: dict[str, tuple[Any, Any, Any]] = {
    "sum": (dd.sum(), pa.int32(), pa.float64()),
    "sum of decimals": (dd.sum(), pa.int32(), pa.decimal128(12, 2)),
    "max": (dd.max(), pa.date32(), pa.timestamp("us")),
    "collect": (dd.collect(), pa.int32(), pa.string()),
    "last": (dd.last(), pa.bool_(), pa.string()),
    "first": (dd.first_non_null(), pa.int64(), pa.decimal128(21, 0)),
}


@pytest.mark.parametrize("what", MERGED)
def test_a_merge_goes_on_where_it_was(what: str) -> None:
    strategy, narrow, wide = MERGED[what]
    cells: list[Any] = [1, 2, None, 3, 1]
    if pa.types.is_date(narrow):
        cells = [None if cell is None else dt.date(2024, 1, cell) for cell in cells]
    if pa.types.is_boolean(narrow):
        cells = [None if cell is None else cell > 1 for cell in cells]
    log = [
        pa.table({"id": [1, 2], "n": pa.array(cells[:2], narrow)}),
        pa.table({"id": [1, 1], "n": pa.array(cells[2:4], narrow)}),
    ]

    def flow(kind: pa.DataType) -> dd.Flow:
        out = dd.Flow()
        spec = dd.Upsert(key="id", merge=dd.Merge({"n": strategy}))
        merged = out.output("rows", out.upserts("a", {"id": pa.int64(), "n": kind}, spec))
        out.output("by_n", merged.count("n"))
        return out

    def wider(table: pa.Table) -> pa.Table:
        return pa.Table.from_batches([conform_to_wider_schema(table, pa.schema({"id": pa.int64(), "n": wide}))])

    store = MemoryStore()
    with flow(narrow).open(store) as engine:
        engine.step({"a": log[0]}, 1)
    dd.evolve(store.reopen(), {"n": wide})
    with flow(wide).open(store.reopen()) as engine, flow(wide).open() as twin:
        twin.step({"a": wider(log[0])}, 1)
        told(engine.step({"a": wider(log[1])}, 2), twin.step({"a": wider(log[1])}, 2))
    assert dd.verify(store.reopen(), {"a": log}).ok


def one(spec: dict[str, Any], make: Any = None, kind: Any = None, **more: Any) -> dd.Flow:
    """A plan of one input, whose column ``n`` is an int32, or another."""
    out = dd.Flow()
    columns = {"id": pa.int64(), "n": kind or pa.int32(), "at": pa.int32()} | more
    rows = out.upserts("a", columns, dd.Upsert(**({"key": "id"} | spec)))
    out.output("out", rows if make is None else make(rows))
    return out


REFUSED: dict[str, tuple[dd.Flow, dict[str, Any], str]] = {
    "a key": (
        one({}),
        {"id": pa.string()},
        r"column 'id' of input 'a' is string, but was int64; it decides between events \(key\)",
    ),
    "an order": (one({"order_by": "at"}), {"at": pa.float64()}, r"'at' .* it decides between events \(order_by\)"),
    "a tie": (
        one({"order_by": "at", "tie": "greatest"}),
        {"n": pa.float64()},
        r"it decides between events \(tie='greatest'\)",
    ),
    "where": (one({"where": "n / 2 > 1"}), {"n": pa.float64()}, r"where= of input 'a': 'n / 2 > 1' reads \['n'\]"),
    "a filter": (one({}, lambda c: c.filter("abs(n) > 1")), {"n": pa.float64()}, r"'abs\(n\) > 1' reads \['n'\]"),
    "a formula": (one({}, lambda c: c.project({"m": "n / 2"})), {"n": pa.float64()}, r"'n / 2' reads \['n'\]"),
    "a mean": (
        one({}, lambda c: c.agg(s="avg(n)")),
        {"n": pa.decimal128(12, 2)},
        r"'avg\(n\)' was double, but would become decimal128\(16, 6\)",
    ),
    "a mean of more digits": (
        one({}, lambda c: c.agg(s="avg(n)"), kind=pa.decimal128(9, 1)),
        {"n": pa.decimal128(12, 2)},
        r"'avg\(n\)' was rounded to 5 digits after the point, but would be rounded to 6",
    ),
    "a sum of less room": (
        one({}, lambda c: c.agg(s="sum(n)"), kind=pa.decimal128(28, 0)),
        {"n": pa.decimal128(38, 10)},
        r"'sum\(n\)' was decimal128\(38, 0\), but would become decimal128\(38, 10\)",
    ),
    "text as text": (
        one({}, lambda c: c.project({"m": "cast(n as string)"})),
        {"n": pa.float64()},
        r"'m' of project cast\(n as string\): double cannot be cast to string",
    ),
    "the greatest row": (
        one({}, lambda c: c.project(["n", "at"]).to_upserts("at", on_conflict="greatest")),
        {"n": pa.string()},
        "on_conflict='greatest' compares its column 'n'",
    ),
    "the greatest cell": (
        one({"merge": dd.Merge({"n": dd.max()})}),
        {"n": pa.string()},
        r"dd.max\(\) of 'n' of input 'a' would compute other results with string than with int32",
    ),
    "a sum of halves": (
        one({"merge": dd.Merge({"n": dd.sum()})}, kind=pa.float32()),
        {"n": pa.float64()},
        r"dd.sum\(\) of 'n' of input 'a' would compute other results",
    ),
    "a column with an order of its own": (
        one({"order_by": "at", "versions": "cell", "merge": dd.Merge()}),
        {"new": pa.string()},
        "column 'new' of input 'a' is new, but versions='cell' keeps an order for each cell",
    ),
    "a tombstone": (
        one({"delete": dd.tombstone("gone", 0.1)}, gone=pa.float32()),
        {"gone": pa.float64()},
        r"may delete other rows, because 'gone' is double but was float",
    ),
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_would_mean_something_else_is_refused_by_name(what: str) -> None:
    flow, types, found = REFUSED[what]
    store = MemoryStore()
    flow.open(store).close()
    with pytest.raises(PlanChanged, match=found):
        dd.evolve(store.reopen(), types)


@pytest.mark.parametrize("durable", [False, True])
@pytest.mark.parametrize("keep", [False, True])
def test_upserts_of_an_input_that_is_not_kept_evolve_with_what_they_hold(keep: bool, durable: bool) -> None:
    flow = dd.Flow()
    log = flow.updates("log", {"id": pa.int64(), "n": pa.int16()}, keep=keep)
    flow.output("shown", log.to_upserts("id"))
    kind = pa.int64()
    with flow.open(MemoryStore() if durable else None) as engine:
        engine.evolve({"n": pa.int32()})
        engine.step({"log": pa.table({"id": [1], "n": pa.array([5], pa.int32())})}, time=1)
        engine.evolve({"n": kind})
        step = engine.step({"log": pa.table({"id": [2], "n": pa.array([7], kind)})}, time=2)
        assert step["shown"].to_pylist() == [{"id": 2, "n": 7, "_time": 2, "_deleted": False}]
        assert step["shown"].schema.field("n").type == kind


@pytest.mark.parametrize("first", ["orders", "customers"])
@pytest.mark.parametrize("how", ["inner", "left", "right", "full", "semi", "anti", "lookup", "asof"])
def test_joins_show_the_columns_that_their_sides_get(how: Any, first: str, tmp_path: Any) -> None:
    """Also of a side of which there was nothing to show."""
    wide = {"orders": {"id": int, "customer": int, "note": str}, "customers": {"customer": int, "city": str}}
    narrow = {"orders": {"id": int, "customer": int}, "customers": {"customer": int}}

    def flow(columns: dict[str, dict[str, Any]]) -> dd.Flow:
        flow = dd.Flow()
        orders = flow.upserts("orders", columns["orders"], dd.Upsert("id"))
        customers = flow.upserts("customers", columns["customers"], dd.Upsert("customer"))
        by: dict[str, Any] = {"on": "customer"}
        if how == "asof":
            flow.output("out", orders.asof(customers, on=[], at="customer >= customer"))
        else:
            made = orders.lookup(customers, **by) if how == "lookup" else orders.join(customers, how=how, **by)
            flow.output("out", made)
        return flow

    def rows(name: str, *given: tuple[Any, ...]) -> pa.Table:
        given = tuple(each + (None,) * (len(wide[name]) - len(each)) for each in given)
        return pa.table([pa.array(each) for each in zip(*given, strict=True)], list(wide[name]))

    before = {"orders": rows("orders", (1, 7), (5, 9)), "customers": rows("customers", (7,), (8,))}
    after = {"orders": rows("orders", (2, 7, "new")), "customers": rows("customers", (7, "Bern"), (9, "Basel"))}
    with flow(narrow).open(tmp_path) as engine, flow(wide).open() as twin:
        engine.step({name: table.select(list(narrow[name])) for name, table in before.items()}, time=1)
        for name in sorted(wide, reverse=first == "orders"):
            engine.evolve({name: wide[name]})
        twin.step(before, time=1)
        told(engine.step(after, time=2), twin.step(after, time=2))
        same(engine, twin, ["out"])
        engine.close()
        with flow(wide).open(tmp_path) as again:
            assert plain(again.read("out")) == plain(twin.read("out"))


def test_a_function_is_not_seen_through() -> None:
    flow, store = (
        one({}, lambda c: c.filter(lambda batch: pa.array([True] * batch.num_rows, pa.bool_()))),
        MemoryStore(),
    )
    with flow.open(store) as engine:
        with raises(PlanChanged):
            engine.evolve({"n": pa.int64()})
        engine.evolve({"new": pa.int64()})  # which it does not know of


def test_types_that_are_not_wider_and_values_that_do_not_fit_are_refused() -> None:
    store = MemoryStore()
    with one({}, kind=pa.int64()).open(store) as engine:
        engine.step({"a": pa.table({"id": [1], "n": [2**53 + 1]})}, 1)
        with raises(SpecError):
            engine.evolve({"n": pa.int8()})
        with raises(PlanChanged):
            engine.evolve({"n": pa.float64()})
    before = store.reopen().list_manifests()
    for kind in ("double", "decimal(12,2)"):
        with raises(SchemaMismatch):
            dd.evolve(store.reopen(), {"n": kind})
    assert store.reopen().list_manifests() == before and dd.fsck(store.reopen()).ok
    dd.evolve(store.reopen(), {"n": "decimal(20,0)"})
    with raises(PlanChanged):
        wide = dd.Flow()
        columns = {"id": pa.int64(), "n": pa.decimal128(20, 0), "at": pa.float64()}
        wide.output("out", wide.upserts("a", columns, dd.Upsert(key="id")))
        wide.open(store.reopen())


def test_an_error_names_the_type_that_a_value_fits_and_how_it_is_had() -> None:
    with one({}).open() as engine:
        for given_ in (
            pa.array([1.5]),
            pa.array(["x"]),
            pa.array([2**40]),
        ):
            with raises(SchemaMismatch):
                engine.step({"a": pa.table({"id": [1], "n": given_})}, 1)
        with raises(SchemaMismatch):
            engine.step({"a": pa.table({"id": [1], "new": [1]})}, 1)
        engine.evolve({"n": "int64", "new": "string"})
        engine.step({"a": pa.table({"id": [1], "n": [2**40], "new": ["x"]})}, 1)


def test_a_column_that_decides_or_becomes_no_text_is_not_to_be_evolved() -> None:
    flow = dd.Flow()
    columns = {"id": pa.int64(), "ver": pa.int64(), "x": pa.float64()}
    flow.output("rows", flow.upserts("a", columns, dd.Upsert(key="id", order_by="ver")))
    with flow.open() as engine:
        for row in ({"id": 1, "ver": "v"}, {"id": 1, "ver": 1.5}, {"id": 1, "ver": 1, "x": "k.A."}, {"id": "x"}):
            with raises(SchemaMismatch):
                engine.step([{"ver": 1} | row], 1)


def test_the_command_for_a_wider_column_names_its_input_where_there_are_several() -> None:
    def flow(kind: pa.DataType) -> dd.Flow:
        made = dd.Flow()
        for name, of in (("one", kind), ("two", pa.int32())):
            made.output(f"{name}s", made.upserts(name, {"id": pa.int64(), "n": of}, dd.Upsert(key="id")))
        return made

    store = MemoryStore()
    with flow(pa.int32()).open(store) as engine:
        engine.step({"one": pa.table({"id": [1]})}, 1)
    with raises(PlanChanged):
        flow(pa.float64()).open(store)


def test_two_inputs_are_told_apart_and_uncommitted_calls_are_committed_first() -> None:
    flow = dd.Flow()
    for name in ("one", "two"):
        flow.output(f"{name}s", flow.upserts(name, {"id": pa.int64(), "n": pa.int8()}, dd.Upsert(key="id")))
    with flow.open(MemoryStore(), commit_every=None) as engine:
        with raises(SpecError):
            engine.evolve({"n": pa.int64()})
        engine.step({"one": pa.table({"id": [1]})}, 1)
        with raises(SpecError):
            engine.evolve({"two": {"n": pa.int64()}})
        engine.flush()
        engine.evolve({"two": {"n": pa.int64()}})
        assert [engine.flow.inputs[name].schema.field("n").type for name in ("one", "two")] == [pa.int8(), pa.int64()]


def test_a_commit_meanwhile_wins_and_a_task_may_run_twice() -> None:
    store = MemoryStore()
    with one({}).open(store) as engine:
        engine.step({"a": pa.table({"id": [1], "n": pa.array([3], pa.int32())})}, 1)
    for meanwhile in (False, True):
        evolution = ColumnEvolution({"n": "double"}, None)
        with Rewrite.open(store.reopen(), evolution.plan_new_state) as rewrite:
            rewrite.made = [run_task(rewrite.start, *each) for _ in range(2) for each in rewrite.tasks]
            if not meanwhile:
                continue
            with one({}).open(store.reopen()) as engine:
                engine.step({"a": pa.table({"id": [2]})}, 2)
            with pytest.raises(Fenced):
                rewrite.finish()
    assert dd.read(store.reopen(), "out").schema.field("n").type == pa.int32()
    assert dd.read(store.reopen(), "out").num_rows == 2


def test_each_type_is_widened_without_losing_or_mixing_values() -> None:
    values = {
        pa.int8(): [-128, 0, 127],
        pa.uint32(): [0, 2**32 - 1],
        pa.int64(): [-(2**53), 2**60, None],
        pa.decimal128(20, 9): [Decimal("0.000000001"), Decimal("-7")],
        pa.bool_(): [True, False],
        pa.date32(): DAYS,
        pa.timestamp("s"): [dt.datetime(1969, 1, 1), dt.datetime(2024, 1, 1)],
        pa.time32("ms"): [dt.time(1, 2, 3), dt.time(0)],
        pa.float32(): [0.5, float("inf")],
        pa.string(): ["", "x"],
        pa.list_(pa.int16()): [[1, None], [], None],
    }
    targets = [*values, pa.float64(), pa.decimal128(30, 9), pa.timestamp("us"), pa.timestamp("ns", "UTC")]
    targets += [pa.large_string(), pa.int32(), pa.uint64(), pa.time64("us"), pa.list_(pa.float64())]
    pairs = [(old, new) for old in values for new in targets if find_widening(old, new) is not None]
    assert len(pairs) > 30
    for old, new in pairs:
        column = pa.array(values[old], old)
        for part in (column, column.slice(1)):
            try:
                batch = conform_to_wider_schema(pa.table({"c": part}), pa.schema({"c": new}))
            except InexactValue:
                assert (old, new) == (pa.int64(), pa.decimal128(20, 9))  # of 64 bits only some fit
                continue
            assert batch.schema.field("c").type == new
            assert len(set(map(repr, batch.column(0).to_pylist()))) == len(set(map(repr, part.to_pylist())))
            assert batch.column(0).null_count == part.null_count
