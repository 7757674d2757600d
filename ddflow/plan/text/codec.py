"""A plan written down: a flow as JSON, with an id for each of its collections.

Invariant: equal plans have equal descriptions, whoever built them, in which order, in which process; a collection's id
is a hash of how it is made down to its inputs' names, so what is kept under it finds its place again. Columns and
specs of inputs are not in ids, since an input may get another column; nor is ``consolidate``, which changes no
collection and comes and goes with such a column; and a plan is a graph, whose tree may be too large to write.
``rebuild`` makes the plan again; ``compatibility`` says what may change between two.

>>> import pyarrow as pa
>>> from ddflow.plan.inputs.spec import Upsert
>>> flow = Plan()
>>> people = flow.upserts("people", {"id": pa.int64(), "city": pa.string()}, Upsert(key="id"))
>>> by_city = flow.output("by_city", people.filter("id > 0").project(["city"]).count())
>>> description = describe(flow)
>>> description["outputs"] == {"by_city": node_id(by_city)}
True
>>> shown(description, node_id(by_city), "this plan")
"people.filter('id > 0').project(['city']).count(by=['city'])"
"""

import base64
import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

import pyarrow as pa

from ddflow.errors import CorruptState, cut
from ddflow.plan.collection import Collection, walk_inputs
from ddflow.plan.inputs.bind import Bound
from ddflow.plan.inputs.binding import Binding
from ddflow.plan.inputs.binding import to_json as format_json
from ddflow.plan.inputs.input import Input
from ddflow.plan.plan import Plan
from ddflow.plan.registry import operator
from ddflow.plan.text.formulas import Formulas, Record, digest
from ddflow.time import INT64

DIFFERENCES: Final = "differences"
"""The kind of an input of differences; one of upserts names none."""


def describe(flow: Plan) -> dict[str, Any]:
    """Describe the plan as JSON: ``inputs`` and ``outputs`` by name, ``collections`` by id, digests of ``formulas``.

    The key ``times`` has the type of step times if they are days or moments.
    O(nodes).  Raises `SpecError` if the names of two functions do not tell them apart.
    """
    made = PlanRecord([*flow.outputs.values()])
    return {
        "inputs": {
            name: {
                "schema": base64.b64encode(input.bound.schema.serialize().to_pybytes()).decode(),
                "columns": columns(input.bound.schema),
                "spec": json.loads(input.spec.to_json()),
            }
            | _kind(input.bound)
            for name, input in flow.inputs.items()
        },
        "collections": made.nodes,
        "outputs": {name: made.ids[node] for name, node in flow.outputs.items()},
        "formulas": made.formulas.digests,
    } | ({} if flow.holds_back or flow.time_type == INT64 else {"times": str(flow.time_type)})


def _kind(bound: Binding) -> dict[str, Any]:
    """Describe an input's kind: differences, its format, or its machine with the columns of the state."""
    format = {} if bound.format is None else {"format": format_json(bound.format)}
    if not isinstance(bound, Bound):
        return {"kind": DIFFERENCES, **format}
    if format:
        return format
    if bound.merging is None or bound.merging.machine is None:
        return {}
    machine = bound.merging.machine.machine
    return {
        "machine": machine.to_json() | {"state": columns(machine.schema)},
        "state": base64.b64encode(machine.schema.serialize().to_pybytes()).decode(),
    }


def columns(schema: pa.Schema) -> list[list[Any]]:
    """List name, type and nullability of each column, for people and for fingerprints."""
    return [[field.name, str(field.type), field.nullable] for field in schema]


def node_ids(flow: Plan, written: bool = True) -> dict[Collection, str]:
    """Return the ids of all collections that outputs depend on.  O(nodes).  Equal collections have one id.

    ``written``: as in `Formulas`.  If true, it raises the errors of `describe`.
    """
    return PlanRecord([*flow.outputs.values()], written).ids


def node_id(collection: Collection) -> str:
    """Return 32 hex digits that identify how a collection is made.  O(nodes).  Raises the errors of `describe`."""
    return PlanRecord([collection]).ids[collection]


def fingerprint(description: Mapping[str, Any]) -> str:
    """Return 32 hex digits that are equal for equal descriptions, however serialised.  O(description)."""
    bare = {
        name: {k: v for k, v in input.items() if k not in ("schema", "state")}
        for name, input in description["inputs"].items()
    }
    return digest({**description, "inputs": bare})


class PlanRecord:
    """Some collections and their inputs at any depth, as JSON: ``ids`` by collection, ``nodes`` by id."""

    def __init__(self, roots: Sequence[Collection], written: bool = True) -> None:
        self.ids: dict[Collection, str] = {}
        self.nodes: dict[str, dict[str, Any]] = {}
        self.formulas = Formulas(written)
        needed = walk_inputs(roots)
        for flow in {node.flow: None for node in roots}:
            for node in flow.nodes:  # a collection stands behind what it is made of
                if node in needed:
                    self._write(node)

    def _write(self, node: Collection) -> None:
        of = [self.ids[each] for each in node.inputs]
        if node.transparent:
            self.ids[node] = of[0]
            return
        made = {"op": node.verb, "of": of} | node.to_json(self.formulas)
        self.ids[node] = digest(made)
        # What is proven of one is true of all that are made alike, and no part of how they are made.
        proven = self.nodes.get(self.ids[node], {}).get("proven") if node.proven is None else list(node.proven)
        self.nodes[self.ids[node]] = made if proven is None else made | {"proven": proven}


def shown(description: Mapping[str, Any], collection: str, where: str) -> str:
    """Write a collection as calls of verbs, cut if it is long or deep.  ``where``: for messages.  O(description).

    Raises `CorruptState` for an unknown id, and for a description that `describe` did not write.
    """
    return _write_collection(Record(description, f"the plan of {where}").record("collections"), collection, 6)


def apart(old: Mapping[str, Any], was: str, new: Mapping[str, Any], now: str, where: str) -> tuple[str, str]:
    """Find the first inputs in which two collections differ.  O(nodes).

    ``old``, ``new``: their descriptions.  Raises the errors of `shown`.
    """
    nodes = [Record(each, f"the plan of {where}").record("collections") for each in (old, new)]
    while True:
        a, b = (each.record(name) for each, name in zip(nodes, (was, now), strict=True))
        differing = [pair for pair in zip(a.texts("of"), b.texts("of"), strict=False) if pair[0] != pair[1]]
        if a.text("op") != b.text("op") or len(a.texts("of")) != len(b.texts("of")) or not differing:
            return was, now
        was, now = differing[0]


def _write_collection(nodes: Record, collection: str, depth: int) -> str:
    node = nodes.record(collection)
    if not depth:
        return "..."
    verb, inputs = node.text("op"), [_write_collection(nodes, of, depth - 1) for of in node.texts("of")[:3]]
    if verb == Input.verb:
        return cut(node.text("name"))
    try:
        what = operator(verb).text(node, inputs[1:])
    except KeyError:
        raise CorruptState(node.what, f"its operator is {verb!r}", "restore it from a copy") from None
    return cut(f"{inputs[0] if inputs else '...'}.{verb}({what})")
