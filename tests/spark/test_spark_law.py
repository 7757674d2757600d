"""Test the Spark law: a plan on Spark, with any number of partitions, gives the rows of the local engine.

Inputs, specs, plans and events are drawn (``strategies``), cut into random partitions, and run. A Spark job costs about
a second, so it has few examples. Many more run without Spark (``stages_by_hand``): the same stages and tasks, with
shuffles as lists in this process that deliver chunks in the worst order.
"""

from __future__ import annotations

from typing import Any

import merging_strategies
import pyarrow as pa
import pytest
from chance import effort, mid_on_spark
from doors import plan, schema_of, spec_of, to_arrow
from hypothesis import given, note, strategies as st
from pyspark.sql import SparkSession
from spark_session import assert_same, counted, frame_of, locally
from stages_by_hand import by_hand
from strategies import events, row_of, scenarios, some, splits

import ddflow as dd
import spark_bridge
from ddflow.errors import DdflowError
from ddflow.partitions.stages import cut_stages
from spark_bridge.types import from_spark_types, make_nullable

pytestmark = pytest.mark.together("spark")

Parts = dict[str, list[pa.Table]]
"""The events of each input, by partition."""
Case = tuple[dict[str, Any], dict[str, list[list[Any]]], int]
"""A scenario, the rows of each input by partition, and how many partitions to run on."""


@st.composite
def cases(draw: st.DrawFn) -> Case:
    """A scenario that nothing refuses, each input's events cut into partitions, and how many partitions to run on."""
    ties, nulls = ["last", "last", "first", "greatest"], ["drop", "keep"]
    scenario = draw(scenarios(tie=draw(st.sampled_from(ties)), null_key=draw(st.sampled_from(nulls))))
    parts = {}
    for name, input in scenario["inputs"].items():
        parts[name] = draw(splits(draw(events(input, most=30, least=draw(st.sampled_from([0, 12, 24]))))))
    return scenario, parts, draw(st.sampled_from([1, 3, 8]))


@st.composite
def shuffled_more(draw: st.DrawFn) -> Case:
    """A case with some columns of an input, a count by some, and a count of that count, whatever else it has."""
    scenario, parts, partitions = draw(cases())
    name, input = next(iter(scenario["inputs"].items()))
    columns = [column for column in row_of(input["columns"], input["spec"]) if column != "l"]
    count = ["count", ["input", name], draw(some(columns)), "how many"]
    more = {
        "some": ["project", ["input", name], draw(some(columns, 1))],
        "count": count,
        "counts": ["count", count, ["how many"], "count"],
    }
    return scenario | {"outputs": scenario["outputs"] | more}, parts, partitions


def opened(case: Case) -> tuple[dd.Flow, Parts, dict[str, pa.Table]]:
    """The flow of a case, its input by partition, and what the local engine makes of it."""
    scenario, parts, _ = case
    flow, inputs = dd.Flow(), {}
    for name, input in scenario["inputs"].items():
        inputs[name] = flow.upserts(name, schema_of(input["columns"]), spec_of(input["spec"]))
    for name, expression in scenario["outputs"].items():
        flow.output(name, plan(expression, inputs, False))
    note(str(cut_stages(flow)))
    given_ = {name: [to_arrow(scenario["inputs"][name]["columns"], rows) for rows in parts[name]] for name in parts}
    return flow, given_, locally(flow, {name: pa.concat_tables(tables) for name, tables in given_.items()})


@mid_on_spark
@effort(120)
@given(case=shuffled_more())
def test_stages_by_hand_give_what_the_local_engine_gives(case: Case) -> None:
    flow, given_, expected = opened(case)
    found = by_hand(flow, given_, case[2])
    assert list(found) == list(expected)
    for name, table in expected.items():
        assert counted(from_spark_types(found[name], make_nullable(table.schema), name)) == counted(table), name


@st.composite
def merging_cases(draw: st.DrawFn) -> Case:
    """A scenario of one input that merges, its events cut into partitions, and how many partitions to run on."""
    fixed = {"tie": draw(st.sampled_from(["last", "last", "first", "greatest"])), "null_key": "drop"}
    scenario = draw(merging_strategies.scenarios(**fixed))
    rows = draw(merging_strategies.events(scenario["inputs"]["a"], most=24))
    return scenario, {"a": draw(splits(rows))}, draw(st.sampled_from([1, 3, 8]))


@effort(100)
@given(case=merging_cases())
def test_stages_by_hand_merge_as_the_local_engine_does(case: Case) -> None:
    try:
        flow, given_, expected = opened(case)
    except DdflowError:  # a sum that leaves its type, a list that outgrows its limit
        return
    found = by_hand(flow, given_, case[2])
    for name, table in expected.items():
        assert counted(from_spark_types(found[name], make_nullable(table.schema), name)) == counted(table), name


@mid_on_spark
@effort(10)
@given(case=cases())
def test_a_plan_on_spark_gives_what_the_local_engine_gives(spark: SparkSession, case: Case) -> None:
    flow, given_, expected = opened(case)
    frames = {name: frame_of(spark, *tables) for name, tables in given_.items()}
    assert_same(spark_bridge.run(flow, frames, partitions=case[2]), expected)
