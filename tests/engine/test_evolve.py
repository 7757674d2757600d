"""Columns that change: an engine that evolves between calls, or a state that is rewritten, goes on as one whose log was
given in the new columns from the beginning, at all times that can be read.

The twin is an engine of the evolved plan, fed with the rows cast.  Plans have every operator of the registry.
"""

from __future__ import annotations

import datetime as dt
from collections import Counter
from typing import Any

import pyarrow as pa
from chance import effort
from hypothesis import given
from hypothesis import strategies as st
from operator_table import TABLE

import ddflow as dd
from ddflow.columns.widening import filled
from ddflow.plan.registry import operators
from ddflow.storage.memory import MemoryStore

NARROW: dict[str, Any] = {"city": pa.string(), "n": pa.int32(), "tags": pa.list_(pa.string()), "day": pa.date32()}
"""Of the input, beside its key: those of the operator table, one narrower, and a date."""
READ: dict[str, Any] = {"city": pa.large_string(), "n": pa.int64(), "tags": NARROW["tags"], "day": pa.date32()}
REWRITES = {
    "a double and a timestamp": {"n": pa.float64(), "day": pa.timestamp("us")},
    "a decimal and text": {"n": pa.decimal128(12, 2), "day": pa.string()},
    "a wider integer, and a new column": {"n": pa.int64(), "day": pa.timestamp("us", "UTC"), "new": pa.string()},
}
DAYS = [None, dt.date(1969, 12, 31), dt.date(2024, 2, 29)]
FOREVER = 1 << 40
MORE: dict[str, Any] = {
    "filtered": lambda c: c.filter("n is not null and n > 1"),
    "by_n": lambda c: c.count(["n", "day"]),
    "again": lambda c: c.count("n", name="groups").count("groups"),
    "all": lambda c: c.distinct(),
    "chosen": lambda c: c.project({"m": "coalesce(n, 0)", "b": "n in (1, 2) or day is null"}).distinct(),
    "with_key": lambda c: c.count(["id", "n"]),
}
"""Beside the operator table: what is made of columns that change."""


def plan(columns: dict[str, Any], partitioned: bool = False, spec: dict[str, Any] | None = None) -> dd.Flow:
    """A plan with every operator; ``partitioned``: that has a place in partitions."""
    flow = dd.Flow()
    rows = flow.upserts("a", {"id": pa.int64()} | columns, dd.Upsert(**({"key": "id"} | (spec or {}))))
    flow.output("rows", rows)
    for name, law in TABLE.items():
        # What it multiplies is another expression over another type: see the test of what is refused.
        if not (law.local and partitioned):
            flow.output(name, law.make(rows))
    for name, make in MORE.items():
        flow.output(name, make(rows))
    return flow


def schema(columns: dict[str, Any]) -> pa.Schema:
    return pa.schema({"id": pa.int64()} | columns)


def cast(table: pa.Table, columns: dict[str, Any]) -> pa.Table:
    return pa.Table.from_batches([filled(table, schema(columns))])


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
    flow = plan(NARROW)
    assert set(operators()) <= {node.verb for node in flow.nodes}


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
                engine._check()
                same(engine, twin, twin.flow.outputs)
            step = engine.step({"a": table}, time)
            other = twin.step({"a": cast(table, columns)}, time)
            if at and at <= time:
                told(step, other)
                again = engine.step({"a": table}, time) if durable else step
                told(again, step)
        engine._check()
        if not at or at > len(log):
            engine.evolve({"a": schema(columns)})
        same(engine, twin, twin.flow.outputs)
        if not durable:
            return
        # What no commit has published is not there after a crash.
        crashed = dd.Snapshot.open(store.writer())
        assert (crashed.flow.inputs["a"].bound.schema == schema(columns)) == (1 <= at <= len(log))
        engine.step({}, len(log) + 1)
        told(engine.step({"a": log[-1]}, len(log)), twin_step(columns, log, retain))
    assert dd.fsck(store.writer()).ok and dd.verify(store.writer(), {"a": log}).ok
    with plan(columns).open(store.writer(), **given) as engine:
        same(engine, twin_of(columns, log, retain), columns and plan(columns).outputs)
        engine._check()


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
