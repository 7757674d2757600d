"""Test changing columns under aggregates: sums continue exactly in the wider column's unit.

The results equal those of an engine with the new columns from the start. A change with different rounding or inexact
sums is refused.
"""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
from chance import effort, mid_test
from hypothesis import given, strategies as st
from messages import raises
from test_evolve import FOREVER, one, same, told

import ddflow as dd
from ddflow.columns.widening import conform_to_wider_schema
from ddflow.errors import PlanChanged, SchemaMismatch
from ddflow.operators.aggregates.parts import ExactSumPart, UpdatesByCell, build_sum_part
from ddflow.partitions.rescale import rescale
from ddflow.storage.memory import MemoryStore

WIDER: dict[str, tuple[pa.DataType, pa.DataType]] = {
    "an integer as a double": (pa.int16(), pa.float64()),
    "64 bits as a double": (pa.int64(), pa.float64()),
    "an unsigned integer as a double": (pa.uint32(), pa.float64()),
    "an integer as a decimal": (pa.int16(), pa.decimal128(9, 2)),
    "64 bits as a decimal": (pa.int64(), pa.decimal128(30, 7)),
    "a decimal of more digits": (pa.decimal128(9, 1), pa.decimal128(14, 4)),
    "a decimal of more whole digits": (pa.decimal128(9, 1), pa.decimal128(20, 1)),
    "a wider integer": (pa.int8(), pa.int64()),
    "a wider float": (pa.float32(), pa.float64()),
}
NUMBERS = st.one_of(st.integers(-100, 100), st.sampled_from([2**14, -(2**15) + 1, 3 << 9]))


def values(kind: pa.DataType, drawn: list[int | None]) -> pa.Array:
    """Numbers of a type made of small ones, some of them large in it."""
    if pa.types.is_decimal(kind):
        return pa.array([None if n is None else Decimal(n) / 10 for n in drawn], kind)
    if pa.types.is_floating(kind):
        return pa.array([None if n is None else n / 8 for n in drawn], kind)
    if kind == pa.int64():
        return pa.array([None if n is None else n << 33 for n in drawn], kind)
    least = {pa.int8(): 8, pa.int16(): 16}.get(kind)
    numbers = [None if n is None else abs(n) << 9 if least is None else n % 2**least - 2 ** (least - 1) for n in drawn]
    return pa.array(numbers, kind)


def states(kind: pa.DataType, square: bool, column: pa.Array, diffs: list[int]) -> pa.Array:
    """What an exact part keeps of all of it, as of one group."""
    cells, before = np.zeros(len(diffs), np.int32), np.full(min(len(diffs), 1), -1, np.int32)
    folding, part = UpdatesByCell(cells, before, np.array(diffs, np.int64), 0), part_of(kind, square)
    return part.fold_updates(folding, pa.array([], part.kind), column)


def part_of(kind: pa.DataType, square: bool) -> Any:
    return ExactSumPart(kind, square) if square else build_sum_part(kind)


@effort(60)
@given(st.sampled_from(list(WIDER)), st.booleans(), st.lists(st.tuples(NUMBERS, st.sampled_from([-(2**40), -1, 1, 3]))))
def test_a_state_in_another_unit_is_the_one_that_the_wider_values_make(
    what: str, square: bool, drawn: list[tuple[int, int]]
) -> None:
    narrow, wide = WIDER[what]
    numbers, diffs = values(narrow, [n for n, _ in drawn]), [diff for _, diff in drawn]
    was = states(narrow, square, numbers, diffs)
    (wider,) = conform_to_wider_schema(pa.table({"n": numbers}), pa.schema({"n": wide})).columns
    assert part_of(wide, square).widen_states(was, part_of(narrow, square)).equals(states(wide, square, wider, diffs))


def aggregates(narrow: pa.DataType, wide: pa.DataType) -> dict[str, str]:
    """All that may stay."""
    made = {name: f"{name}(n)" for name in ("sum", "var_pop", "stddev_samp", "min", "max", "array_agg")}
    made |= {"rows": "count(*)", "there": "count(n)", "kinds": "count(distinct n)", "f": "first(n order by id desc)"}
    if (narrow, wide) != (pa.int64(), pa.float64()):
        made |= {"a": "sum(n) filter (where g = 'a')", "most": "var_pop(n) filter (where n > 1)"}
    rounds = pa.types.is_decimal(wide) and getattr(narrow, "scale", None) != wide.scale
    return made if rounds else made | {"avg": "avg(n)"}


rows = st.lists(st.tuples(st.integers(1, 4), st.sampled_from(["a", "b", None]), st.none() | NUMBERS), max_size=5)


@mid_test
@effort(30)
@given(
    st.sampled_from(list(WIDER)),
    st.lists(rows, min_size=2, max_size=4),
    st.sampled_from([1, 3]),
    st.sampled_from([None, "16MB"]),
    st.sampled_from([0, FOREVER]),
)
def test_what_is_added_up_goes_on_in_the_wider_column(
    what: str, log: list[Any], partitions: int, memory: Any, retain: int
) -> None:
    narrow, wide = WIDER[what]

    def flow(kind: pa.DataType) -> dd.Flow:
        out = dd.Flow()
        a = out.upserts("a", {"id": pa.int64(), "g": pa.string(), "n": kind}, dd.Upsert(key="id"))
        by = a.group_by("g").agg(**aggregates(narrow, wide))
        out.output("by_g", by)
        out.output("all", a.agg(s="sum(n)", v="var_samp(n)"))
        out.output("held", a.group_by("g").agg(s="sum(n)", v="var_pop(n)").count(["s", "v"]))
        out.output("of sums", a.group_by("g").agg(s="sum(n)").agg(s="sum(s)", most="max(s)"))
        return out

    def table(given: Any, kind: pa.DataType) -> pa.Table:
        ids, groups, numbers = zip(*given, strict=True) if given else ((), (), ())
        narrower = pa.table({"id": pa.array(ids, pa.int64()), "g": pa.array(groups, pa.string())})
        narrower = narrower.append_column("n", values(narrow, list(numbers)))
        schema = pa.schema({"id": pa.int64(), "g": pa.string(), "n": kind})
        return pa.Table.from_batches([conform_to_wider_schema(narrower, schema)])

    store = MemoryStore()
    with flow(narrow).open(store, memory=memory, retain=retain) as engine:
        for time, given_ in enumerate(log[:-1], 1):
            engine.step({"a": table(given_, narrow)}, time)
    if partitions > 1:
        rescale(store.reopen(), partitions)
    dd.evolve(store.reopen(), {"n": wide}, memory=memory)
    assert dd.fsck(store.reopen()).ok
    if partitions > 1:
        rescale(store.reopen(), 1)
    with flow(wide).open(retain=retain) as twin, flow(wide).open(store.reopen(), retain=retain) as engine:
        for time, given_ in enumerate(log[:-1], 1):
            twin.step({"a": table(given_, wide)}, time)
        same(engine, twin, twin.flow.outputs)
        last = table(log[-1], wide)
        told(engine.step({"a": last}, len(log)), twin.step({"a": last}, len(log)))
        same(engine, twin, twin.flow.outputs)
        engine._check_invariants()
    assert dd.verify(store.reopen(), {"a": [table(given_, narrow) for given_ in log]}).ok


def test_a_sum_that_is_no_double_is_refused_and_is_a_decimal() -> None:
    store = MemoryStore()
    with one({}, lambda c: c.agg(s="sum(n)"), kind=pa.int64()).open(store) as engine:
        engine.step({"a": pa.table({"id": [1, 2], "n": [2**53, 1]})}, 1)
    before = store.reopen().list_manifests()
    with raises(SchemaMismatch):
        dd.evolve(store.reopen(), {"n": pa.float64()})
    assert store.reopen().list_manifests() == before and dd.fsck(store.reopen()).ok
    dd.evolve(store.reopen(), {"n": pa.decimal128(20, 1)})
    assert dd.read(store.reopen(), "out").to_pylist() == [{"s": Decimal("9007199254740993.0"), "_diff": 1}]


def test_sums_of_values_that_are_no_numbers_then_are_refused() -> None:
    store = MemoryStore()
    one({}, lambda c: c.agg(s="sum(n)")).open(store).close()
    with raises(PlanChanged):
        dd.evolve(store.reopen(), {"n": pa.string()})


def test_an_aggregate_of_ones_own_is_refused_by_name() -> None:
    total = dd.Aggregate((0.0,), lambda s, x: (s[0] + x,), lambda s, x: (s[0] - x,), lambda s: s[0])
    flow, store = one({}, lambda c: c.agg(s=total("n"))), MemoryStore()
    flow.open(store).close()
    with raises(PlanChanged):
        dd.evolve(store.reopen(), {"n": pa.float64()}, flow=flow)


def test_an_epoch_that_put_out_what_is_no_double_is_not_told_again() -> None:
    store = MemoryStore()
    with one({}, lambda c: c.agg(s="sum(n)"), kind=pa.int64()).open(store) as engine:
        for time, n in enumerate((2**53 + 1, 1), 1):
            engine.step({"a": pa.table({"id": [1], "n": [n]})}, time)
    dd.evolve(store.reopen(), {"n": pa.float64()})
    with one({}, lambda c: c.agg(s="sum(n)"), kind=pa.float64()).open(store.reopen()) as engine:
        with raises(SchemaMismatch):
            engine.step({"a": pa.table({"id": [1], "n": [1.0]})}, 2)
        assert engine.step({"a": pa.table({"id": [1], "n": [2.0]})}, 3)["out"].column("s").to_pylist() == [1.0, 2.0]


def test_a_mean_of_days_that_would_be_of_durations_is_refused() -> None:
    def plan(kind: str) -> dd.Flow:
        flow = dd.Flow()
        stays = flow.upserts("stays", {"id": int, "begins": "date", "ends": kind}, dd.Upsert(key="id"))
        flow.output("mean", stays.agg(d="avg(ends - begins)"))
        return flow

    store = MemoryStore()
    with plan("date").open(store) as engine:
        engine.step([{"id": 1, "begins": dt.date(2026, 1, 1), "ends": dt.date(2026, 1, 9)}])
    with raises(PlanChanged):
        plan("timestamp").open(store.reopen())
