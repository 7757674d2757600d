"""Evolve the columns of an engine between two calls: add columns to inputs, widen types, and convert the state.

Guarantees: after `evolve`, the engine behaves as if its state had been opened with the evolved plan. If the identity of
a row stays the same, it is not computed again. If types are widened, only the widened columns are read. If a column is
new, all rows are hashed again, because the row hash includes all columns. On durable state, the next commit publishes
the evolved plan. If the process crashes before that commit, the state keeps the old plan. Limits: a change is refused
if it would rewrite state, or if it would change the meaning of an expression or a merge.
"""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from ddflow.columns.schema import empty_table
from ddflow.columns.widening import conform_to_wider_schema
from ddflow.dataflow.admission import InputValidator
from ddflow.dataflow.batcher import Batcher
from ddflow.dataflow.dataflow import Dataflow
from ddflow.dataflow.graph import Graph
from ddflow.dataflow.pending_runs import PendingRun
from ddflow.dataflow.side_outputs import SideOutputs, check_verdict_columns
from ddflow.engine.calls import EngineCalls
from ddflow.operators.base import ReadableNode
from ddflow.plan.compatibility import PlanChange, compare_plans
from ddflow.plan.evolve import Nodes, evolve_plan_to_types, refuse_misspelled_columns
from ddflow.plan.plan import Plan
from ddflow.plan.text.codec import describe_plan
from ddflow.time import NEVER
from ddflow.trace.cast import cast_arrangement_in_place, has_changed_identities, rekey_arrangement

ASKED = "engine.evolve"


def evolve_engine(calls: EngineCalls, given: Any, found: bool = False) -> None:
    """Implement `Engine.evolve`. ``found``: whether the columns come from a source and not from a user.

    >>> import pyarrow as pa, ddflow as dd
    >>> flow = dd.Flow()
    >>> people = flow.upserts("people", {"id": pa.int64(), "n": pa.int32()}, dd.Upsert(key="id"))
    >>> _ = flow.output("people", people)
    >>> with flow.open() as engine:
    ...     _ = engine.step({"people": pa.table({"id": [1], "n": pa.array([5], pa.int32())})}, time=1)
    ...     engine.evolve({"n": pa.int64(), "city": pa.string()})
    ...     engine.step({"people": pa.table({"id": [1], "n": [2**40], "city": ["Bern"]})}, time=2)["people"].to_pylist()
    [{'id': 1, 'n': 5, 'city': None, '_time': 2, '_diff': -1}, {'id': 1, 'n': 1099511627776, 'city': 'Bern', \
'_time': 2, '_diff': 1}]
    """
    dataflow, durable = calls.dataflow, calls.durable
    with dataflow.guard.lock_for_write("evolve"):
        calls.commit_waiting_calls(ASKED)
        plan, nodes = evolve_plan_to_types(dataflow.flow, given, ASKED)
        where = "the engine's plan" if durable is None else durable.log.manifest_log.store.where
        change = compare_plans(describe_plan(dataflow.flow), plan, where)
        if not change:
            return
        if not found:
            refuse_misspelled_columns(plan, change.columns, ASKED)
        for input in plan.inputs.values() if dataflow.lists else ():
            check_verdict_columns(input.bound)
        if durable is not None:
            durable.log.check_storable_columns(plan)
        dataflow.guard.state = "interrupted"
        convert_dataflow(dataflow, plan, nodes, change)
        calls.choose_row_hashes()
        if durable is not None:
            durable.log.evolve_columns(plan, change.columns)
        dataflow.guard.state = "open"


def convert_dataflow(dataflow: Dataflow, plan: Plan, nodes: Nodes, change: PlanChange) -> None:
    """Convert the rows in a dataflow to the columns of the evolved plan. O(changed rows)."""
    old, graph = dataflow.graph, Graph(plan, dataflow.secret, dataflow.graph.winners, dataflow.threads)
    for name, upsert in graph.inputs.items():
        was, added = old.inputs[name], change.columns.get(name, ())
        if name in change.columns or name in change.types:
            hashed = bool(set(added) & set(upsert.tracked or ()))
            if not has_changed_identities(was.identified, upsert.identified):
                cast_arrangement_in_place(
                    was.output_arrangement, upsert.output_arrangement.schema, upsert.hash_rows, hashed
                )
            _convert_pending_events(dataflow, name, upsert.bound.event_schema)
        _move_arrangements(was, upsert, dataflow)
        upsert.unfed = not dataflow.admissions[name].arrived
        if was.expiring is not None:
            was.expiring.bound, upsert.expiring = upsert.bound, was.expiring
        admission, before = InputValidator(upsert.bound), dataflow.admissions[name]
        admission.arrived, admission.greatest, admission.table = before.arrived, before.greatest, before.table
        admission.least = before.least
        admission.unseen.left = [each for each in admission.unseen.left if each in (*before.unseen.left, *added)]
        admission.unseen.table = before.unseen.table
        dataflow.admissions[name] = admission
    for node, running in graph.keeping.items():
        _move_arrangements(next(old.keeping[of] for of, to in nodes.items() if to is node), running, dataflow)
    graph.horizons = old.horizons
    dataflow.flow, dataflow.graph, dataflow.sides = plan, graph, plan.side_outputs()
    dataflow.time_type = plan.time_type
    dataflow.__dict__.pop("collection_ids", None)
    outputs = {name: node.updates_schema(plan.time_type) for name, node in plan.outputs.items()}
    none = SideOutputs(dataflow.sides, plan.time_type).build_tables()
    dataflow.nothing = {**{name: empty_table(schema) for name, schema in outputs.items()}, **none}
    dataflow.owed = {
        name: pa.Table.from_batches([conform_to_wider_schema(table, outputs[name])])
        for name, table in dataflow.owed.items()
    }
    dataflow.update_extents()
    for node, running in graph.keeping.items():
        if not running.arrangements and dataflow.last > NEVER:
            graph.rebuild_state(node, dataflow.last, dataflow.frontier, dataflow.since)


def _move_arrangements(was: ReadableNode, running: ReadableNode, dataflow: Dataflow) -> None:
    """Move the arrangements of an operator to the operator that replaces it in the evolved plan.

    The arrangements are converted to the columns of the new operator.
    """
    for arranged, new in zip(was.arrangements, running.arrangements, strict=True):
        if has_changed_identities(was.identified, running.identified):
            below, home = bool(arranged.unindexed_parts), dataflow.budget.home
            new.slots.lasting = arranged.slots.lasting
            rekey_arrangement(arranged, new, running.hash_rows, not below, home if below else None)
        elif arranged.schema != new.schema:
            cast_arrangement_in_place(arranged, new.schema, running.hash_rows, False)
    if not has_changed_identities(was.identified, running.identified):
        running.arrangements = was.arrangements


def _convert_pending_events(dataflow: Dataflow, name: str, schema: pa.Schema) -> None:
    """Convert pending events to the columns of a schema."""
    out = Batcher()
    for run in dataflow.batchers[name].runs.by_least:
        events = run.events._replace(rows=conform_to_wider_schema(run.events.rows, schema))
        out.runs.add(PendingRun(events, run.begin, run.bytes_resident, run.file, run.final, run.stored))
        out.pending += len(run)
    dataflow.batchers[name] = out
