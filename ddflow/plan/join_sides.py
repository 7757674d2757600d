"""Share the sides of joins: queries that join one collection by one key look its rows up in one arrangement.

A join arranges a side with the columns that it needs. Another join of the same side by the same key needs others, so
the side would be held twice. `with_shared_sides` gives both one arrangement with the columns of both.

Guarantees: a plan with one join of a side stays as it is. A state's outputs keep the arrangements that it holds,
and new outputs use one of these if it has their columns. Limits: a join that shows all columns of a side is left alone.

>>> import ddflow as dd
>>> flow = dd.Flow()
>>> _ = flow.upserts("o", {"id": int, "c": int, "n": int, "m": int}, dd.Upsert(key="id"))
>>> _ = flow.upserts("c", {"id": int, "city": str}, dd.Upsert(key="id"))
>>> _ = flow.output("one", flow.sql("select city, n from o join c on o.c = c.id"))
>>> _ = flow.output("two", flow.sql("select city, m from o join c on o.c = c.id"))
>>> [node.schema.names for node in flow.nodes if node.verb == "arrange"]
[['c', 'n'], ['c', 'm']]
>>> [node.schema.names for node in with_shared_sides(flow).nodes if node.verb == "arrange"]
[['c', 'n', 'm']]
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ddflow.plan.collection import Collection, walk_inputs
from ddflow.plan.evolve import evolved
from ddflow.plan.plan import Plan
from ddflow.plan.text.codec import node_ids


def with_shared_sides(plan: Plan, recorded: Mapping[str, Any] | None = None) -> Plan:
    """Build the plan whose joins share their sides, or return the same plan if none can.  O(nodes).

    ``recorded``: the description of the state that is opened with it.
    """
    if not any(side_of(node) is not None for node in plan.nodes):
        return plan
    ids, held = node_ids(plan, written=False), {} if recorded is None else dict(_find_held_sides(plan, recorded))
    groups, wider = defaultdict[Any, list[Any]](list), dict[Collection, list[str]]()
    free = _free(plan)
    for node in plan.nodes:
        if node in ids and (under := side_of(node)) is not None:
            groups[ids[under], node.by, node.refuses].append(node)  # type: ignore[attr-defined]
    for nodes in groups.values():
        kept = [held.get(each, each.schema.names) for each in nodes if each in held or each not in free]
        kept.sort(key=lambda names: (len(names), names))
        movable = [each for each in nodes if each in free]
        for node in movable:
            found = [held[node]] if node in held else [each for each in kept if set(node.schema.names) <= set(each)]
            if found:
                wider[node] = found[0]
        rest = [each for each in movable if each not in wider]
        union = set[str]().union(*(each.schema.names for each in rest))
        wider |= {each: [name for name in side_of(each).schema.names if name in union] for each in rest}
    sides = {node: (side_of(node), names) for node, names in wider.items() if names != node.schema.names}
    return evolved(plan, {}, sides=sides)[0] if sides else plan


def side_of(node: Collection) -> Any:
    """Return the collection whose columns an arrangement holds under their own names; None for another collection."""
    if node.verb != "arrange":
        return None
    below = node.inputs[0]
    names = below.renames()
    return below.inputs[0] if names is not None and all(name == of for name, of in names.items()) else below


def _free(plan: Plan) -> set[Collection]:
    """Return the arrangements that may get more columns: only joins read them, and joins show columns by name."""
    needed, out = walk_inputs(plan.outputs.values()), set[Collection]()
    bound = set(plan.outputs.values())
    for node in needed:
        whole: Sequence[int] = getattr(node, "whole", ())
        bound |= {each for at, each in enumerate(node.inputs) if node.verb != "join" or at in whole}
        out |= {node} if side_of(node) is not None else set()
    return out - bound


def _find_held_sides(plan: Plan, recorded: Mapping[str, Any]) -> Iterator[tuple[Collection, list[str]]]:
    """Yield the columns of the arrangements that a state has for a plan's outputs.  O(nodes)."""
    nodes, seen = recorded["collections"], set[tuple[Collection, str]]()
    ahead = [(node, str(recorded["outputs"].get(name))) for name, node in plan.outputs.items()]
    while ahead:
        node, of = ahead.pop()
        while node.transparent:
            node = node.inputs[0]
        if (node, of) in seen or nodes.get(of, {}).get("op") != node.verb:
            continue
        seen.add((node, of))
        inputs, under = [*nodes[of]["of"]], side_of(node)
        if under is None:
            ahead += zip(node.inputs, inputs, strict=False)
            continue
        below, names = nodes.get(inputs[0], {}), under.schema.names
        if below.get("op") == "project" and all(each.get("column") == each["name"] for each in below["columns"]):
            inputs, names = below["of"], [each["name"] for each in below["columns"]]
        if set(node.schema.names) <= set(names) <= set(under.schema.names):
            yield node, names
        ahead.append((under, inputs[0]))
