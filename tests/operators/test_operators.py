"""Test every operator of the registry against all laws, with its row of ``operator_table``.

After every step and at every time within it, its updates add up to its twin's rows. Its JSON makes the same plan, and
it reads only the columns it names. It gives the same on 1, 2 and 7 partitions, reopened between steps, and spilled.
``test_spark_operators`` tests Spark.
"""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from chance import effort
from every_operator import untimed
from hypothesis import given, strategies as st
from operator_table import COLUMNS, MADE, TABLE, Law, Row, Rows
from parts_by_hand import Hands

import ddflow as dd
from ddflow.operators.base import StatelessRunningOperator
from ddflow.operators.updates import Updates, concat, consolidate, ints, narrow_ints
from ddflow.plan.text.codec import describe_plan, rebuild_plan
from ddflow.storage.memory import MemoryStore

Step = list[tuple[int, Row | None]]
"""Upserts of one time: a key, and its row or nothing."""
SCHEMA = pa.schema({"id": pa.int64(), **COLUMNS, "gone": pa.bool_()})
CITIES, TAGS = st.sampled_from(["Bern", "Chur", None]), st.lists(st.sampled_from(["a", "b"]), max_size=2)
ROWS = st.tuples(CITIES, st.sampled_from([0, 1, 2, 3, None]), st.one_of(st.none(), TAGS.map(tuple)))
STEPS = st.lists(
    st.lists(st.tuples(st.integers(0, 5), st.one_of(st.none(), ROWS)), max_size=8, unique_by=lambda pair: pair[0]),
    min_size=1,
    max_size=6,
)
EVERY = {**TABLE, **MADE}
LAWS = pytest.mark.parametrize("verb", sorted(EVERY))


def flow_of(law: Law, holds_back: bool = False) -> dd.Flow:
    """The example on rows that repeat, since their key is projected away."""
    flow = dd.Flow()
    schema = SCHEMA.append(pa.field("at", pa.int64())) if holds_back else SCHEMA
    spec = dd.Upsert(
        "id", delete=dd.tombstone("gone", True), **({"time": "at", "order_by": "at"} if holds_back else {})
    )
    flow.output("out", law.make(flow.upserts("rows", schema, spec).project(list(COLUMNS))))
    return flow


def table(step: Step, time: int | None = None) -> pa.Table:
    """A step's upserts as rows of the input."""
    rows = [
        {"id": key, **dict(zip(COLUMNS, row or (None,) * 3, strict=True)), "gone": row is None} for key, row in step
    ]
    made = pa.Table.from_pylist(rows, schema=SCHEMA)
    return made if time is None else made.append_column("at", pa.array([time] * len(rows), pa.int64()))


def holding(steps: list[Step]) -> list[Rows]:
    """What the input of the example holds after each step."""
    held: dict[int, Row] = {}
    out = []
    for step in steps:
        for key, row in step:
            held.pop(key, None)
            if row is not None:
                held[key] = row
        out.append(Counter(held.values()))
    return out


def plain(value: Any) -> Any:
    return tuple(map(plain, value)) if isinstance(value, list) else value


def summed(updates: pa.Table, into: Rows | None = None) -> Rows:
    """Updates added up: for upserts, what their keys show."""
    out: Rows = Counter() if into is None else Counter(into)
    if "_deleted" in updates.schema.names:
        for *row, _, deleted in zip(*(c.to_pylist() for c in updates.columns), strict=True):
            for other in [other for other in out if other[0] == row[0]]:
                del out[other]
            if not deleted:
                out[tuple(map(plain, row))] = 1
        return out
    for *row, _, diff in zip(*(c.to_pylist() for c in updates.columns), strict=True):
        out[tuple(map(plain, row))] += diff
    return Counter({row: times for row, times in out.items() if times})


def clean(rows: Rows) -> Rows:
    return Counter({row: times for row, times in rows.items() if times})


def test_every_operator_has_a_row() -> None:
    assert set(TABLE) == set(untimed())
    assert not set(MADE) & set(untimed())


@pytest.mark.drawn(8)
@LAWS
@given(steps=STEPS)
@effort(25)
def test_what_it_gives_adds_up_to_what_is_made_from_scratch(verb: str, steps: list[Step]) -> None:
    law, held = EVERY[verb], Counter[Row]()
    with flow_of(law).open(retain=len(steps)) as engine:
        for time, (step, rows) in enumerate(zip(steps, holding(steps), strict=True)):
            held = summed(engine.step({"rows": table(step)}, time)["out"], held)
            assert held == clean(law.scratch(rows))
        for time, rows in enumerate(holding(steps)):
            read = engine.read("out", as_of=time)
            assert summed(read.add_column(read.num_columns - 1, "_time", read.column("_diff"))) == clean(
                law.scratch(rows)
            )


@pytest.mark.drawn(8)
@LAWS
@given(steps=STEPS)
@effort(15)
def test_so_it_does_at_every_time_within_a_step(verb: str, steps: list[Step]) -> None:
    law, held = EVERY[verb], Counter[Row]()
    with flow_of(law, holds_back=True).open() as engine:
        engine.push({"rows": pa.concat_tables([table(step, time) for time, step in enumerate(steps)])})
        out = engine.advance_to(dd.CLOSED)["out"]
    times = out.column("_time").to_numpy()
    for time, rows in enumerate(holding(steps)):
        held = summed(out.filter(pa.array(times == time)), held)
        assert held == clean(law.scratch(rows))


@LAWS
def test_its_json_makes_the_same_plan(verb: str) -> None:
    flow = flow_of(EVERY[verb])
    again = rebuild_plan(describe_plan(flow))
    assert describe_plan(again) == describe_plan(flow)
    assert again.outputs["out"].schema == flow.outputs["out"].schema


@pytest.mark.drawn(8)
@LAWS
@given(steps=STEPS, data=st.data())
@effort(10)
def test_it_reads_the_columns_that_it_names_and_no_others(verb: str, steps: list[Step], data: st.DataObject) -> None:
    law = EVERY[verb]
    out = flow_of(law).outputs["out"]
    if law.last:
        return  # nothing stands behind it that could want fewer columns
    wanted = set(data.draw(st.lists(st.sampled_from(out.schema.names), min_size=1, unique=True)))
    for of, read in zip(out.inputs, out.find_read_columns(set(wanted)), strict=True):
        assert read <= set(of.schema.names)
    flow = flow_of(law)
    flow.outputs.clear()
    names = [name for name in out.schema.names if name in wanted]
    flow.output("some", flow.nodes[-1].project(names))
    places, held = [out.schema.names.index(name) for name in names], Counter[Row]()
    with flow.open() as engine:
        for time, (step, rows) in enumerate(zip(steps, holding(steps), strict=True)):
            held = summed(engine.step({"rows": table(step)}, time)["some"], held)
            expected: Rows = Counter()
            for row, times in law.scratch(rows).items():
                expected[tuple(row[place] for place in places)] += times
            assert held == clean(expected)


@pytest.mark.drawn(8)
@LAWS
@given(steps=STEPS, seed=st.integers(0, 99), partitions=st.sampled_from([1, 2, 7]))
@effort(20)
def test_partitions_give_the_same(verb: str, partitions: int, steps: list[Step], seed: int) -> None:
    law, held = EVERY[verb], Counter[Row]()
    hands = Hands(flow_of(law), MemoryStore(), partitions, random.Random(seed))
    for step, rows in zip(steps, holding(steps), strict=True):
        held = summed(hands.epoch({"rows": table(step)})[1]["out"], held)
        assert held == clean(law.scratch(rows))
    hands.close()


@pytest.mark.drawn(8)
@LAWS
@given(steps=STEPS)
@effort(6)
def test_closed_and_opened_it_goes_on(verb: str, steps: list[Step]) -> None:
    law, held, store = EVERY[verb], Counter[Row](), MemoryStore()
    for time, (step, rows) in enumerate(zip(steps, holding(steps), strict=True)):
        with flow_of(law).open(store.reopen()) as engine:
            held = summed(engine.step({"rows": table(step)}, time)["out"], held)
            assert held == clean(law.scratch(rows))
            engine._check_invariants()


@pytest.mark.drawn(8)
@LAWS
@given(steps=STEPS)
@effort(4)
def test_spilled_it_gives_the_same(verb: str, steps: list[Step], tmp_path_factory: pytest.TempPathFactory) -> None:
    law, held, spill = EVERY[verb], Counter[Row](), tmp_path_factory.mktemp("spill")
    with flow_of(law).open(memory="16MB", spill=Path(spill)) as engine:
        engine.dataflow.budget.state = 0  # everything goes to files at once
        for time, (step, rows) in enumerate(zip(steps, holding(steps), strict=True)):
            held = summed(engine.step({"rows": table(step)}, time)["out"], held)
            assert held == clean(law.scratch(rows))


@pytest.mark.drawn(8)
@LAWS
@given(data=st.data())
@effort(20)
def test_without_state_it_is_linear(verb: str, data: st.DataObject) -> None:
    flow = flow_of(EVERY[verb])
    with flow.open() as engine:
        graph = engine.dataflow.graph
        node = engine.flow.outputs["out"]
        running = graph.running[node]
        if not isinstance(running, StatelessRunningOperator):
            assert node.keeps or len(node.inputs) > 1
            return
        columns = node.inputs[0].schema
        made = st.lists(st.tuples(ROWS, st.integers(-2, 2)), max_size=6)
        parts = [updates(data.draw(made), columns) for _ in range(2)]
        none = [updates([], of.schema) for of in node.inputs[1:]]
        both, (one, other) = [concat(parts), *none], ([part, *none] for part in parts)
        apart = concat([running.compute(inputs, 0)[0] for inputs in (one, other)])
        together = running.compute(both, 0)[0]
        found = [
            consolidate(each, engine.dataflow.secret).to_table(node.schema, pa.int64()) for each in (apart, together)
        ]
        assert summed(found[0]) == summed(found[1])


def updates(rows: list[tuple[Row, int]], schema: pa.Schema) -> Updates:
    """Updates of one time, of the columns that the input has."""
    every = [dict(zip(COLUMNS, row, strict=True)) for row, _ in rows]
    table = pa.Table.from_pylist([{name: row.get(name) for name in schema.names} for row in every], schema=schema)
    return Updates(table.combine_chunks(), narrow_ints(*[0] * len(rows)), ints(*[diff for _, diff in rows]), ints(0))
