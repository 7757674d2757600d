"""Test the rows that an operator names as contributing to one of its output rows.

The operator, applied to the named rows and any other rows of its inputs, must give the output row with the same
multiplicity. The law covers every operator of the registry, with its example in ``operator_table``, and all verbs that
are built from these operators.
"""

from __future__ import annotations

from random import Random
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from chance import effort
from hypothesis import given, strategies as st
from operator_table import COLUMNS
from test_operators import EVERY, LAWS, STEPS, Step, flow_of, table
from test_why import above, again, misleads

import ddflow as dd
from ddflow.columns.names import DIFF
from ddflow.columns.row_match import RowMatcher
from ddflow.operators.base import OperatorContext
from ddflow.operators.updates import Updates, consolidate, ints
from ddflow.plan.collection import Collection
from ddflow.plan.verbs.family import load_operators

UNDER = {"input", "constant"}
"""What is made of no rows."""


def test_every_operator_finds_the_rows_that_make_its_rows() -> None:
    assert [
        verb
        for verb, kind in load_operators().items()
        if kind.find_contributing_rows is Collection.find_contributing_rows
    ] == []


def updates(rows: pa.Table) -> Updates:
    """Rows with ``_diff`` as updates of one time."""
    n = rows.num_rows
    return Updates(rows.drop_columns([DIFF]), np.zeros(n, np.int32), rows.column(DIFF).to_numpy(), ints(1))


@pytest.mark.drawn(8)
@LAWS
@effort(0.2)
@given(steps=STEPS, share=st.sampled_from([0, 0, 0.3, 0.7]), more=st.integers(0, 99))
def test_an_operator_makes_a_row_again_of_what_it_names_for_it_and_any_more(
    verb: str, steps: list[Step], share: float, more: int
) -> None:
    flow = flow_of(EVERY[verb])
    with flow.open() as engine:
        graph = engine.dataflow.graph
        once = any(node.as_it_came for node in graph.nodes)  # later steps would change what rows would find now
        for time, step in enumerate(steps[:1] if once else steps, 1):
            engine.step({"rows": table(step)}, time)
        alike, chance = RowMatcher(graph.secret), Random(more)

        def held(node: Collection) -> pa.Table:
            return graph.read_collection(node, None)

        for node in (each for each in graph.nodes if each.verb not in UNDER):
            inputs = [held(of) for of in node.inputs]
            whole, names = held(node), frozenset(node.schema.names)
            for i in range(whole.num_rows):
                wanted = whole.slice(i, 1)
                parts = node.find_contributing_rows(wanted, inputs, alike)
                assert [each.schema.names for each in parts] == [each.schema.names for each in inputs]
                for at, (part, every) in enumerate(zip(parts, inputs, strict=True)):
                    named = alike.mark_matches(every, part, every.schema.names)
                    assert named.sum() == part.num_rows
                    drawn = [bool(there) or chance.random() < share for there in named]
                    parts[at] = every.filter(pa.array(drawn, pa.bool_()))
                opened = tuple(graph.opened[of] for of in node.inputs)
                fresh = node.open(OperatorContext(graph.secret, graph.time_type, names, inputs=opened))
                if node.as_it_came:  # the right is in the state already
                    parts[1] = parts[1].slice(0, 0)
                made = consolidate(fresh.compute_output_rows([updates(each) for each in parts], None), graph.secret)
                again = made.to_table(node.schema, None)
                assert wanted.to_pylist() == alike.select_matches(again, wanted, node.schema.names).to_pylist()


@pytest.mark.drawn(8)
@LAWS
@effort(0.2)
@given(step=STEPS.map(lambda steps: steps[0]))
def test_a_plan_makes_a_row_again_of_what_why_names_for_it(verb: str, step: Step) -> None:
    with flow_of(EVERY[verb]).open() as engine:
        engine.step({"rows": table(step)}, 1)
        whole, graph = engine.read("out"), engine.dataflow.graph
        nodes = above(engine.flow.outputs["out"])
        for row in (whole.slice(i, 1) for i in range(whole.num_rows)):
            told: Any = engine.why("out", {name: row.column(name)[0] for name in whole.schema.names[:-1]})
            assert told.shown.to_pylist() == row.to_pylist()
            made = again(graph, told.rows, nodes)
            misled = made is None or any(
                # What is looked up depends on when rows came, so it is compared at the end alone.
                misleads(made[each], graph.read_collection(each, None)) and not each.as_it_came
                for each in set(nodes)
            )
            given, flow = told.rows["rows"], dd.Flow()
            schema = pa.schema([*list(given.schema)[:-1], pa.field("times", pa.int64())])
            rows = flow.updates("rows", schema, diff="times", keep=True)
            flow.output("out", EVERY[verb].make(rows.project(list(COLUMNS))))
            with flow.open() as fresh:
                fresh.step({"rows": given.rename_columns(schema.names)}, 1)
                assert row.to_pylist()[0] in fresh.read("out").to_pylist() or misled
