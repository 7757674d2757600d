"""Test the law of `why`: the plan, applied to the rows named for an output's rows, gives these rows again, as often.

The law holds if the computation from the named rows has no intermediate row that the full computation lacks. Filters,
projections, unions, distinct rows, and joins without negative multiplicities preserve this property. A count of half a
group does not preserve it, if another operator depends on the count. A chain of operators on single rows or whole
groups gives exactly the rows. ``test_contributing_rows`` tests each operator with extra input rows, and the law
follows.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa
from chance import effort, mid_test
from doors import EngineDoor, plain, plan
from hypothesis import event, given, strategies as st
from strategies import scenarios
from test_laws import calls, quietly

import ddflow as dd
from ddflow.columns.names import DIFF
from ddflow.dataflow.graph import Graph
from ddflow.engine.lineage.story import Origins
from ddflow.errors import DdflowError
from ddflow.operators.base import OperatorContext
from ddflow.operators.updates import Updates, consolidate, ints
from ddflow.plan.collection import Collection

TIMES = "times"
MOST = 8
"""Calls of an example: with fewer, most examples have no rows to ask about."""
ADDING = {"input", "filter", "project", "concat", "consolidate", "distinct", "join", "arrange"}
"""Of what is there, they hold more where there is more."""
CHAIN = {"input", "filter", "project", "consolidate", "negate", "threshold", "distinct", "arrange"} | {
    "count",
    "agg",
    "ordered_agg",
    "top",
}
"""Of what is wanted of them, they give nothing else, each the one reader of what it reads."""


def rows_of(table: pa.Table) -> Counter[Any]:
    """Rows with their multiplicities."""
    return Counter({tuple(map(repr, row[:-1])): row[-1] for row in plain(table)})


def above(node: Collection) -> list[Collection]:
    """A collection, and what it is made of, once for each operator that reads it."""
    return [node, *(each for of in node.inputs for each in above(of))]


def again(graph: Graph, rows: Mapping[str, pa.Table], nodes: list[Collection]) -> dict[Collection, pa.Table] | None:
    """What the operators make of some rows of the inputs; None where one refuses them."""
    made = dict[Collection, pa.Table]()
    for node in (each for each in graph.plan.nodes if each in nodes):
        if node in graph.names:
            made[node] = rows[graph.names[node]]
            continue
        given = [
            Updates(t.drop_columns([DIFF]), np.zeros(t.num_rows, np.int32), t.column(DIFF).to_numpy(), ints(1))
            for t in (made[of] for of in node.inputs)
        ]
        opened = tuple(graph.opened[of] for of in node.inputs)
        context = OperatorContext(graph.secret, graph.time_type, frozenset(node.schema.names), inputs=opened)
        try:
            made[node] = consolidate(node.open(context).compute_output_rows(given, None), graph.secret).to_table(
                node.schema, None
            )
        except DdflowError:
            return None
    return made


def misleads(made: pa.Table, held: pa.Table) -> bool:
    """Whether a row is there that is not held, or is there more often."""
    there = rows_of(held)
    return any(n * there[row] <= 0 or abs(n) > abs(there[row]) for row, n in rows_of(made).items())


def one_chain(nodes: list[Collection], held: Mapping[Collection, pa.Table]) -> bool:
    """Whether it is one, in which tops rank, skip and cut no row."""
    for top in (node for node in nodes if node.verb == "top"):
        there = rows_of(held[top.inputs[0]])
        shown: Any = top
        if shown.offset or shown.rank_name or any(there[row] != n for row, n in rows_of(held[top]).items()):
            return False
    return {node.verb for node in nodes} <= CHAIN and len(nodes) == len(set(nodes))


@mid_test
@effort(320)
@given(data=st.data())
def test_the_rows_that_are_named_make_the_rows_again(data: st.DataObject) -> None:
    scenario = data.draw(scenarios())
    door = EngineDoor(scenario)
    for call in data.draw(calls(scenario, MOST)):
        quietly(door, call)
    engine, graph = door.engine, door.engine.dataflow.graph
    if engine.frontier < 9:
        quietly(door, ["advance", 9])
    closed = [time for time in range(-3, 12) if engine.since <= time < engine.frontier]
    read = {(name, at): engine.read(name, at) for name in scenario["outputs"] for at in closed[::-1]}
    there = [each for each, table in read.items() if table.num_rows]
    if not there:
        event("nothing there")
        return
    name, as_of = data.draw(st.sampled_from(there))
    whole, node = read[name, as_of], engine.flow.outputs[name]
    row = whole.slice(data.draw(st.integers(0, whole.num_rows - 1)), 1)
    columns = data.draw(st.lists(st.sampled_from(node.schema.names), min_size=1, unique=True))
    asked = {column: row.column(column)[0] for column in columns}
    told = engine.why(name, asked, as_of=as_of)
    assert isinstance(told, Origins)
    places = [node.schema.names.index(column) for column in columns]
    values = [tuple(map(repr, plain(row)[0]))[place] for place in places]

    def such(table: pa.Table) -> Counter[Any]:
        return Counter({r: n for r, n in rows_of(table).items() if [r[place] for place in places] == values})

    assert rows_of(told.shown) == such(whole)
    for input, rows in told.rows.items():
        there = rows_of(engine.read(input, as_of))
        assert all(there[row] == n for row, n in rows_of(rows).items())
    made, fresh = again(graph, told.rows, above(node)), applied(scenario, door, name, told.rows)
    assert (made is None) == (fresh is None)
    held = {each: graph.read_collection(each, as_of) for each in set(above(node))}
    misled = made is None or any(misleads(made[each], held[each]) for each in held)
    verbs = {each.verb for each in held}
    event("misled" if misled else "not misled")
    if made is not None and fresh is not None:
        assert rows_of(made[node]) == rows_of(fresh)
        assert misled or such(fresh) == rows_of(told.shown)
    if one_chain(above(node), held):
        assert fresh is not None and rows_of(fresh) == rows_of(told.shown)
        event("one chain")
    if verbs <= ADDING:
        assert not misled
        event("adding")
    door.close()


@mid_test
@effort(350)
@given(data=st.data())
def test_between_two_times_it_is_what_changed_in_the_rows_named_at_either(data: st.DataObject) -> None:
    """Beside a twin: asked at both times, and of these rows what the inputs changed."""
    scenario = data.draw(scenarios())
    door = EngineDoor(scenario)
    for call in data.draw(calls(scenario, MOST)):
        quietly(door, call)
    engine = door.engine
    if engine.frontier < 9:
        quietly(door, ["advance", 9])
    closed = [time for time in range(-3, 12) if engine.since <= time < engine.frontier]
    moves = [
        (name, at)
        for name in sorted(scenario["outputs"])
        for at in closed[1:]
        if engine.changes(name, at - 1, at).num_rows
    ]
    if not moves:
        event("nothing moved")
        return
    name, at = data.draw(st.sampled_from(moves))
    t1, t2 = (
        data.draw(st.sampled_from(closed[: closed.index(at) + 1])),
        data.draw(st.sampled_from(closed[closed.index(at) :])),
    )
    some, node = engine.changes(name, t1, t2), engine.flow.outputs[name]
    if not some.num_rows:
        some = engine.changes(name, at - 1, at)
    column = data.draw(st.sampled_from(node.schema.names))
    asked = {column: some.slice(data.draw(st.integers(0, some.num_rows - 1)), 1).column(column)[0]}
    told, one, two = (engine.why(name, asked, **how) for how in ({"between": (t1, t2)}, {"as_of": t1}, {"as_of": t2}))
    assert isinstance(told, Origins) and isinstance(one, Origins) and isinstance(two, Origins)

    def less(after: pa.Table, before: pa.Table) -> dict[Any, int]:
        both = Counter(rows_of(after))
        both.subtract(rows_of(before))
        return {row: n for row, n in both.items() if n}

    assert dict(rows_of(told.shown)) == less(two.shown, one.shown)
    for input, rows in told.rows.items():
        named = rows_of(one.rows[input]) | rows_of(two.rows[input])
        there = dict(rows_of(engine.changes(input, t1, t2)))
        assert dict(rows_of(rows)) == {row: n for row, n in there.items() if row in named}
        assert dict(rows_of(rows)).items() <= less(two.rows[input], one.rows[input]).items() | there.items()
    event(f"{sum(each.num_rows for each in told.rows.values()) > 0}")
    door.close()


def applied(scenario: Mapping[str, Any], door: EngineDoor, name: str, rows: Mapping[str, pa.Table]) -> pa.Table | None:
    """What a new engine of the output holds when its inputs are these rows; None where it refuses them."""
    flow, told = dd.Flow(), dict[str, pa.Table]()
    inputs = {
        each: flow.updates(each, pa.schema([*of.schema, pa.field(TIMES, pa.int64())]), diff=TIMES, keep=True)
        for each, of in door.inputs.items()
    }
    flow.output(name, plan(scenario["outputs"][name], inputs, False))
    for each, table in rows.items():
        told[each] = table.rename_columns([*table.schema.names[:-1], TIMES])
    with flow.open() as engine:
        try:
            engine.step(told, 1)
        except DdflowError:
            return None
        return engine.read(name)
