"""Test the law of partitions: any number of them, with warm, cold or repeated tasks, equals a single engine.

This holds for every epoch's output and for the state. Plans, specs and events are drawn; ``test_laws`` compares the
single engine with the twin. Tasks run in this process (``parts_by_hand``); ``test_spark_stream`` runs them on Spark.
"""

from __future__ import annotations

import random
from typing import Any

import merging_strategies
import pyarrow as pa
from chance import effort
from doors import plan, schema_of, spec_of, to_arrow
from hypothesis import event, given, note, strategies as st
from parts_by_hand import Hands
from spark_session import counted
from strategies import events, row_of, scenarios, some
from test_expiry import expiring, rows_of

import ddflow as dd
from ddflow.columns.hashing import Secret
from ddflow.errors import DdflowError
from ddflow.storage.memory import MemoryStore

Inputs = dict[str, pa.Table]


def flow_of(scenario: dict[str, Any], lateness: bool = True) -> dd.Flow:
    """The flow of a scenario.  ``lateness``: whether its inputs say how late events may be."""
    flow, inputs = dd.Flow(), {}
    for name, input in scenario["inputs"].items():
        spec = {k: v for k, v in input["spec"].items() if lateness or k != "lateness"}
        inputs[name] = flow.upserts(name, schema_of(input["columns"]), spec_of(spec))
    for name, expression in scenario["outputs"].items():
        flow.output(name, plan(expression, inputs, False))
    return flow


@st.composite
def shuffled(draw: st.DrawFn, **fixed: Any) -> dict[str, Any]:
    """A scenario that nothing refuses, with rows that meet again: a projection, a count, a count of the count."""
    ties, nulls, late = ["last", "last", "first", "greatest"], ["drop", "keep"], ["drop", "advance"]
    fixed |= {"tie": draw(st.sampled_from(ties)), "null_key": draw(st.sampled_from(nulls))}
    scenario = draw(scenarios(late=draw(st.sampled_from(late)), **fixed))
    name, input = next(iter(scenario["inputs"].items()))
    columns = [column for column in row_of(input["columns"], input["spec"]) if column != "l"]
    count = ["count", ["input", name], draw(some(columns)), "how many"]
    more = {
        "some": ["project", ["input", name], draw(some(columns, 1))],
        "count": count,
        "counts": ["count", count, ["how many"], "count"],
    }
    return scenario | {"outputs": scenario["outputs"] | more}


def agree(scenario: dict[str, Any], epochs: list[Inputs], partitions: int, seed: int, close: bool) -> Hands:
    """Go through the epochs by hand, and with one engine, and compare what they give."""
    flow = flow_of(scenario)
    hands = Hands(flow, MemoryStore(), partitions, random.Random(seed), secret=Secret(seed, 7))
    hands.budgets = [None, None, 64 << 20]
    note(f"{hands.cut}\n{partitions} partitions, seed {seed}")
    holds_back = flow.holds_back
    with flow_of(scenario, lateness=False).open() as engine:
        for inputs in [*epochs, None] if holds_back and close else epochs:
            committed, outputs = hands.epoch(inputs or {}, close=inputs is None)
            if not holds_back:
                steps = [engine.step(inputs or {}, time=hands.start.time)]
            else:
                steps = [engine.push(inputs or {})]
                steps += [engine.advance_to(hands.start.to)] if hands.start.to > engine.frontier else []
            counts: dict[str, int] = {}
            for step in steps:
                for verdict, n in step.verdicts.counts.items():
                    counts[verdict] = counts.get(verdict, 0) + n
            assert {k: n for k, n in committed.counts.items() if n} == {k: n for k, n in counts.items() if n}
            for name in flow.outputs:
                expected = pa.concat_tables([step[name] for step in steps])
                assert counted(outputs[name]) == counted(expected), name
            assert committed.frontier == engine.frontier
    event(f"{hands.cut.stages} stages")
    event("a warm part was gone on with" if hands.hits else "all parts were opened anew")
    return hands


def arrow(scenario: dict[str, Any], epochs: list[dict[str, list[Any]]]) -> list[Inputs]:
    """Epochs of plain rows as tables."""
    inputs = scenario["inputs"]
    return [{name: to_arrow(inputs[name]["columns"], rows) for name, rows in each.items()} for each in epochs]


@effort(80)
@given(data=st.data())
def test_any_number_of_partitions_gives_what_one_engine_gives(data: st.DataObject) -> None:
    scenario = data.draw(shuffled())
    given_ = [
        {name: data.draw(events(input, most=10)) for name, input in scenario["inputs"].items()}
        for _ in range(data.draw(st.integers(1, 4)))
    ]
    partitions, seed = data.draw(st.sampled_from([1, 3, 8])), data.draw(st.integers(0, 99))
    try:
        agree(scenario, arrow(scenario, given_), partitions, seed, data.draw(st.booleans())).close()
    except DdflowError as error:
        event(type(error).__name__)
        if type(error).__name__ not in ("CountOverflow", "ExpressionError", "SpecError"):
            raise


@effort(60)
@given(data=st.data())
def test_merging_inputs_too(data: st.DataObject) -> None:
    scenario = data.draw(merging_strategies.scenarios(tie="last", null_key="drop"))
    input = scenario["inputs"]["a"]
    given_ = [{"a": data.draw(merging_strategies.events(input, most=8))} for _ in range(data.draw(st.integers(1, 4)))]
    try:
        agree(scenario, arrow(scenario, given_), data.draw(st.sampled_from([1, 3])), 5, data.draw(st.booleans()))
    except DdflowError as error:  # a sum that leaves its type, a list that outgrows its limit; both sides say so
        event(type(error).__name__)


@effort(60)
@given(data=st.data())
def test_the_horizon_is_that_of_all_partitions(data: st.DataObject) -> None:
    scenario = data.draw(expiring())
    given_ = [{"a": data.draw(rows_of(scenario))} for _ in range(data.draw(st.integers(2, 5)))]
    agree(scenario, arrow(scenario, given_), data.draw(st.sampled_from([1, 3, 8])), 5, False).close()
