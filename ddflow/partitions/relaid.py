"""Inventories of a state as another plan's stages have them, which shares operators with the plan before.

Invariant: what an operator holds stays under its id, which says how it is made, in the files where it lies; only the
inventories say on which stage it is. Where the other plan partitions an operator otherwise, rows must move, and this
says so. It writes nothing.

>>> import ddflow as dd
>>> from ddflow.partitions.stages import cut
>>> from ddflow.storage.sheets import Text
>>> flow = dd.Flow()
>>> _ = flow.output("people", flow.upserts("people", {"id": int}, dd.Upsert(key="id")))
>>> old = Inventory({}, {"of another plan": OperatorRecord([])}, {"applied": 7})
>>> made = relaid(cut(flow), 0, [StoredInventory("a file", old, Text(b"", ()))])
>>> made.operators, made.totals
({}, {'applied': 7})
"""

from collections.abc import Mapping, Sequence

from ddflow.dataflow.inflow import add
from ddflow.dataflow.verdicts import GONE
from ddflow.engine.checkpoint import InputRecord, Inventory, OperatorRecord, StoredInventory
from ddflow.partitions.stages import Stages, placed
from ddflow.plan.codec import node_ids
from ddflow.plan.collection import Collection
from ddflow.plan.plan import Plan

NOTHING = Inventory({}, {}, {})


def relaid(stages: Stages, stage: int, old: Sequence[StoredInventory], new: Inventory = NOTHING) -> Inventory:
    """Build the inventory of one partition on a stage, from its inventories on all stages.  O(files).

    ``new``: the records of inputs and operators that these lack.  Events of inputs that the plan lacks are
    counted as `GONE`."""
    ids, totals = node_ids(stages.flow), dict[str, int]()
    wanted = {ids[node] for node in stages.keeping(stage)}
    operators: dict[str, OperatorRecord] = {**new.operators}
    for each in old:
        operators |= each.of.operators
    operators = {name: found for name, found in operators.items() if name in wanted}
    if stage:
        return Inventory({}, operators, {})
    inputs: dict[str, InputRecord] = {**new.inputs}
    for each in old:
        inputs |= each.of.inputs
        add(totals, each.of.totals)
    if gone := sum(_count_resolved(found) for name, found in inputs.items() if name not in stages.flow.inputs):
        add(totals, {GONE: gone})
    inputs = {name: found for name, found in inputs.items() if name in stages.flow.inputs}
    return Inventory(inputs, operators, totals)


def moved(before: Plan, now: Plan, nodes: Mapping[Collection, Collection]) -> bool:
    """Return whether two plans put rows of some operator into different partitions.  O(nodes).

    ``nodes``: by collection of the first, the same one of the second."""
    was, places = placed(before), placed(now)
    return any(was[old].by != places[new].by for old, new in nodes.items() if new.keeps)


def _count_resolved(record: InputRecord) -> int:
    """Count the events of an input that have a verdict."""
    return record.arrived - sum(run.rows - run.begin for run in record.runs)
