"""Describe a plan as JSON, with an id for each collection, and rebuild a plan from JSON.

The id of a collection is a hash of all operators from which the collection is computed, and of the names of the inputs.
Stored state names its collection by this id. The columns and specs of inputs can change while a state exists, so ids do
not depend on the columns and specs.

Guarantees: equal plans have equal descriptions. `rebuild_plan` checks every part of a stored description. The result is
a flow with the same description, or an error.

Limits: only SQL formulas can be rebuilt. For formulas that are not SQL, the JSON contains no code. ddflow never
executes a part of the JSON.
"""

import base64
import binascii
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from graphlib import CycleError, TopologicalSorter
from typing import Any, Final

import pyarrow as pa
from msgspec import UNSET, UnsetType, defstruct

from ddflow.columns.casts import parse_type
from ddflow.columns.schema import is_time_type
from ddflow.connectors.formats.base import Format
from ddflow.errors import CorruptState, DdflowError, SpecError, shorten
from ddflow.plan.collection import Collection, walk_inputs
from ddflow.plan.inputs.bind import BoundUpserts
from ddflow.plan.inputs.differences import Differences
from ddflow.plan.inputs.input import (
    Binding,
    Input,
    Spec,
    bind_input,
    format_from_json as format_of_json,
    format_to_json as format_json,
)
from ddflow.plan.inputs.spec import Upsert
from ddflow.plan.merge.machine import Machine
from ddflow.plan.merge.merge import Merge
from ddflow.plan.merge.user_function import AbsentFunction
from ddflow.plan.plan import Plan
from ddflow.plan.text.formulas import Formulas, JsonRecord, digest_json
from ddflow.plan.verbs.family import find_operator_class, load_operators
from ddflow.storage.fields import Natural, convert_record
from ddflow.time import INT64

DIFFERENCES: Final = "differences"
"""The ``kind`` of an input of differences. An input of upserts has no ``kind``."""


def describe_plan(flow: Plan) -> dict[str, Any]:
    """Describe the plan as JSON.

    The keys of the JSON are ``inputs`` and ``outputs``, by name, ``collections``, by id, and ``formulas``, with
    digests. If step times are dates or timestamps, the key ``times`` has their type. O(nodes). Raises `SpecError` if
    two different functions have one name.

    >>> import pyarrow as pa
    >>> from ddflow.plan.inputs.spec import Upsert
    >>> flow = Plan()
    >>> people = flow.upserts("people", {"id": pa.int64(), "city": pa.string()}, Upsert(key="id"))
    >>> by_city = flow.output("by_city", people.filter("id > 0").project(["city"]).count())
    >>> description = describe_plan(flow)
    >>> description["outputs"] == {"by_city": compute_node_id(by_city)}
    True
    >>> format_node(description, compute_node_id(by_city), "this plan")
    "people.filter('id > 0').project(['city']).count(by=['city'])"
    """
    made = PlanRecord([*flow.outputs.values()])
    return {
        "inputs": {
            name: {
                "schema": base64.b64encode(input.bound.schema.serialize().to_pybytes()).decode(),
                "columns": list_columns(input.bound.schema),
                "spec": json.loads(input.spec.to_json()),
            }
            | _describe_input_kind(input.bound)
            for name, input in flow.inputs.items()
        },
        "collections": made.nodes,
        "outputs": {name: made.ids[node] for name, node in flow.outputs.items()},
        "formulas": made.formulas.digests,
    } | ({} if flow.holds_back or flow.time_type == INT64 else {"times": str(flow.time_type)})


def _describe_input_kind(bound: Binding) -> dict[str, Any]:
    """Describe the kind of an input: differences, a format, or a machine with the columns of the machine's state."""
    format = {} if bound.format is None else {"format": format_json(bound.format)}
    if not isinstance(bound, BoundUpserts):
        return {"kind": DIFFERENCES, **format}
    if format:
        return format
    if bound.merging is None or bound.merging.machine is None:
        return {}
    machine = bound.merging.machine.machine
    return {
        "machine": machine.to_json() | {"state": list_columns(machine.schema)},
        "state": base64.b64encode(machine.schema.serialize().to_pybytes()).decode(),
    }


def list_columns(schema: pa.Schema) -> list[list[Any]]:
    """List the name, the type and the nullability of each column, for people who read the JSON and for fingerprints."""
    return [[field.name, str(field.type), field.nullable] for field in schema]


def compute_node_ids(flow: Plan, written: bool = True) -> dict[Collection, str]:
    """Return the ids of all collections that outputs depend on.  O(nodes).  Equal collections have one id.

    ``written``: see `Formulas`. If ``described`` is true, the function raises the errors of `describe_plan`.
    """
    return PlanRecord([*flow.outputs.values()], written).ids


def compute_node_id(collection: Collection) -> str:
    """Return the id of a collection as 32 hex digits. O(nodes). Raises the errors of `describe_plan`."""
    return PlanRecord([collection]).ids[collection]


def fingerprint_plan(description: Mapping[str, Any]) -> str:
    """Return 32 hex digits that are equal for equal descriptions. The formatting of the JSON does not matter.

    O(description).
    """
    bare = {
        name: {k: v for k, v in input.items() if k not in ("schema", "state")}
        for name, input in description["inputs"].items()
    }
    return digest_json({**description, "inputs": bare})


class PlanRecord:
    """The JSON of some collections and of all collections upstream. ``ids``: the id of each collection.

    ``nodes``: the JSON for each id.
    """

    def __init__(self, roots: Sequence[Collection], written: bool = True) -> None:
        self.ids: dict[Collection, str] = {}
        self.nodes: dict[str, dict[str, Any]] = {}
        self.formulas = Formulas(written)
        needed = walk_inputs(roots)
        for flow in {node.flow: None for node in roots}:
            for node in flow.nodes:  # inputs precede the collections built from them
                if node in needed:
                    self._add_node(node)

    def _add_node(self, node: Collection) -> None:
        of = [self.ids[each] for each in node.inputs]
        if node.transparent:
            self.ids[node] = of[0]
            return
        made = {"op": node.verb, "of": of} | node.to_json(self.formulas)
        self.ids[node] = digest_json(made)
        # A proven key is not part of the id, but is valid for all collections with the id.
        proven = self.nodes.get(self.ids[node], {}).get("proven") if node.proven is None else list(node.proven)
        self.nodes[self.ids[node]] = made if proven is None else made | {"proven": proven}


def format_node(description: Mapping[str, Any], collection: str, where: str) -> str:
    """Write a collection as calls of verbs. Long or deep calls are cut.

    ``where``: the place of the collection's JSON; error messages contain this text. O(description). Raises
    `CorruptState` if the id is unknown, or if `describe_plan` did not write the description.
    """
    return _write_collection(JsonRecord(description, f"the plan of {where}").read_record("collections"), collection, 6)


def find_first_difference(
    old: Mapping[str, Any], was: str, new: Mapping[str, Any], now: str, where: str
) -> tuple[str, str]:
    """Find two corresponding operators in which two collections differ.

    The search follows the first inputs that differ. O(nodes). ``old``, ``new``: the descriptions of ``was`` and
    ``now``.  Raises the errors of `format_node`.
    """
    nodes = [JsonRecord(each, f"the plan of {where}").read_record("collections") for each in (old, new)]
    while True:
        a, b = (each.read_record(name) for each, name in zip(nodes, (was, now), strict=True))
        differing = [pair for pair in zip(a.read_texts("of"), b.read_texts("of"), strict=False) if pair[0] != pair[1]]
        if (
            a.read_text("op") != b.read_text("op")
            or len(a.read_texts("of")) != len(b.read_texts("of"))
            or not differing
        ):
            return was, now
        was, now = differing[0]


def _write_collection(nodes: JsonRecord, collection: str, depth: int) -> str:
    node = nodes.read_record(collection)
    if not depth:
        return "..."
    verb, inputs = node.read_text("op"), [_write_collection(nodes, of, depth - 1) for of in node.read_texts("of")[:3]]
    if verb == Input.verb:
        return shorten(node.read_text("name"))
    try:
        what = find_operator_class(verb).format_arguments(node, inputs[1:])
    except KeyError:
        raise CorruptState(node.what, f"its operator is {verb!r}", "restore it from a backup") from None
    return shorten(f"{inputs[0] if inputs else '...'}.{verb}({what})")


_UNFIT = (DdflowError, pa.ArrowException, ValueError, TypeError, KeyError, OverflowError)
"""The errors that can occur when a plan is built from invalid parts."""

_TOMBSTONE: Any = defstruct("_TOMBSTONE", [("tombstone", str), ("value", bool | int | float | str | None, None)])
_KINDS: dict[str, Any] = {
    **dict.fromkeys(("key", "order_by", "noop_ignore", "value", "track"), list[str]),
    **dict.fromkeys(
        ("tie", "seq", "time", "late", "stale", "null_key", "where", "deletes", "versions", "ingested", "ahead"), str
    ),
    "lateness": Natural,
    "delete": str | _TOMBSTONE,
    "groups": list[tuple[Any, Any]],
    "derive": list[tuple[Any, Any]],
    "merge": str | dict[str, Any],
    "expiry": dict[str, Any],
    "watermark": dict[str, str | int],
    "exclusive": bool,
}
_SPEC: Any = defstruct(
    "_SPEC", [(name, kind | UnsetType, UNSET) for name, kind in _KINDS.items()], forbid_unknown_fields=True
)
"""The types of a spec's fields. The constructor of the spec checks the values of the fields."""
_FEED: Any = defstruct("_FEED", [("feed", str)], forbid_unknown_fields=True)
_DIFFERENCES: Any = defstruct(
    "_DIFFERENCES",
    [
        ("diff", str | _FEED | UnsetType, UNSET),
        ("time", str | UnsetType, UNSET),
        ("keep", bool | UnsetType, UNSET),
        ("late", str | UnsetType, UNSET),
        ("lateness", Natural | UnsetType, UNSET),
        ("null_key", str | UnsetType, UNSET),
        ("value", list[str] | UnsetType, UNSET),
        ("key", list[str] | UnsetType, UNSET),
        ("ingested", str | UnsetType, UNSET),
        ("watermark", dict[str, str | int] | UnsetType, UNSET),
        ("ahead", str | UnsetType, UNSET),
    ],
    forbid_unknown_fields=True,
)


def read_input_specs(description: Mapping[str, Any], where: str) -> dict[str, tuple[pa.Schema, Spec]]:
    """Read the schema and the spec of each input.

    ``where``: the owner of the description; error messages contain this text. O(description).  Raises `CorruptState` if
    `describe_plan` did not write the description.
    """
    given = JsonRecord(description, f"the plan of {where}").read_records_by_name("inputs")
    return {
        name: (_read_schema(record, "schema", record.read_list("columns")), _read_spec(record))
        for name, record in given.items()
    }


def read_bindings(description: Mapping[str, Any], where: str) -> dict[str, Binding]:
    """Bind the inputs. The code of their functions is not needed. For costs and errors, see `read_input_specs`."""
    given = JsonRecord(description, f"the plan of {where}").read_records_by_name("inputs")
    times = read_step_time_type(description, where)
    return {
        name: bind_input(name, schema, spec, _read_machine(given[name]), _read_format(given[name]), times)
        for name, (schema, spec) in read_input_specs(description, where).items()
    }


def read_step_time_type(description: Mapping[str, Any], where: str) -> pa.DataType:
    """Read the type of step times.  Raises the errors of `read_input_specs`."""
    whole = JsonRecord(description, f"the plan of {where}")
    try:
        kind = parse_type(whole.read_text("times")) if "times" in whole else INT64
    except SpecError as error:
        raise _make_corrupt_plan_error(whole.what, str(error)) from None
    if not is_time_type(kind):
        raise _make_corrupt_plan_error(whole.what, f"its times are {kind}")
    return kind


def read_time_type(description: Mapping[str, Any], where: str) -> pa.DataType:
    """Read the type of times.  For costs and errors, see `read_input_specs`."""
    return next((bound.time_type for bound in read_bindings(description, where).values()), pa.int64())


def _read_schema(record: JsonRecord, name: str, beside: list[Any]) -> pa.Schema:
    """Read a schema from Arrow's bytes and check it against the list of columns."""
    text = record.read_text(name)
    try:
        schema = pa.ipc.read_schema(pa.py_buffer(base64.b64decode(text, validate=True)))
        found = list_columns(schema)
    except (binascii.Error, OSError, *_UNFIT) as error:
        raise _make_corrupt_plan_error(record.what, f"its {name} is not valid ({error})") from None
    if found != beside:
        raise _make_corrupt_plan_error(
            record.what, f"its {name} has the columns {found}, but the list of columns is {beside}"
        )
    return schema


def _read_spec(input: JsonRecord) -> Spec:
    """Read the spec of an input of upserts or of differences."""
    record = input.read_record("spec")
    if "kind" not in input:
        return _read_upsert(record)
    if input.read_text("kind") != DIFFERENCES or "machine" in input:
        raise _make_corrupt_plan_error(
            input.what, f"its kind is {input.read_text('kind')!r}, with {sorted(input.given)}"
        )
    convert_record(record.given, _DIFFERENCES, record.what)
    try:
        return Differences.from_json(json.dumps(record.given))
    except DdflowError as error:
        raise _make_corrupt_plan_error(record.what, str(error)) from None


def _read_upsert(record: JsonRecord) -> Upsert:
    convert_record(record.given, _SPEC, record.what)
    merge: Any = record.given.get("merge")
    known = not (isinstance(merge, dict) and "function" in merge)
    try:
        if known:
            return Upsert.from_json(json.dumps(record.given))
        # "first_row" must pass the same checks as a function, because a function and "first_row" both merge whole rows.
        spec = Upsert.from_json(json.dumps(record.given | {"merge": "first_row"}))
        return replace(spec, merge=Merge(function=AbsentFunction.of_json(merge), scalar=merge.get("scalar", False)))
    except (DdflowError, TypeError, AttributeError) as error:
        raise _make_corrupt_plan_error(record.what, str(error)) from None


def rebuild_plan(description: Mapping[str, Any], where: str = "a state") -> Plan:
    """Rebuild the flow of a description, without the ``consolidate`` operators.

    ``where``: where the description is stored; error messages contain this text. O(description). Raises `SpecError` if
    a formula is not SQL, because the description does not contain the code of functions. Raises `CorruptState` if
    `describe_plan` did not write the description.

    >>> import pyarrow as pa
    >>> from ddflow.plan.text.codec import describe_plan
    >>> flow = Plan()
    >>> people = flow.upserts("people", {"id": pa.int64(), "city": pa.string()}, Upsert(key="id"))
    >>> _ = flow.output("by_city", people.project(["city"]).count())
    >>> again = rebuild_plan(describe_plan(flow))
    >>> again.outputs["by_city"], describe_plan(again) == describe_plan(flow)
    (Count(city string, count int64), True)
    """
    whole = JsonRecord(description, f"the plan of {where}")
    nodes = whole.read_records_by_name("collections")
    for each, node in nodes.items():
        if _has_code(node.given):
            raise _make_missing_code_error(
                where, f"{format_node(description, each, where)} has a formula that is not SQL"
            )
    try:
        flow = Plan()
        for name, (schema, spec) in read_input_specs(description, where).items():
            if isinstance(spec.merge, Merge) and isinstance(spec.merge.function, AbsentFunction):
                raise _make_missing_code_error(
                    where, f"{name!r} is merged by {spec.merge.function.name}, whose code is not stored"
                )
            machine = _read_machine(whole.read_record("inputs").read_record(name))
            if machine is not None and isinstance(machine.transition, AbsentFunction):
                raise _make_missing_code_error(
                    where, f"the machine of {name!r} is {machine.transition.name}, whose code is not stored"
                )
            format = _read_format(whole.read_record("inputs").read_record(name))
            if isinstance(getattr(format, "function", None), AbsentFunction):
                raise _make_missing_code_error(where, f"the format of {name!r} is a function whose code is not stored")
            flow._add_input(bind_input(name, schema, spec, machine, format, read_step_time_type(description, where)))
        made: dict[str, Collection] = {}
        for each in TopologicalSorter(
            {name: set(node.read_texts("of")) for name, node in nodes.items()}
        ).static_order():
            made[each] = _build_collection(nodes[each], [made[of] for of in nodes[each].read_texts("of")], flow)
        outputs = whole.read_record("outputs")
        for name in outputs.list_field_names():
            flow.output(name, made[outputs.read_text(name)])
        found = PlanRecord([*made.values()]).ids
    except (CorruptState, _Absent):
        raise
    except (CycleError, *_UNFIT) as error:
        raise _make_corrupt_plan_error(
            whole.what, f"its parts do not fit together ({type(error).__name__}: {error})"
        ) from None
    for each, collection in made.items():
        if found[collection] != each:
            raise _make_corrupt_plan_error(
                whole.what, f"its collection {each} has the id {found[collection]} when it is built"
            )
    return flow


def _read_machine(input: JsonRecord) -> Machine | None:
    """Read the machine of an input, if the input has a machine."""
    if "machine" not in input:
        return None
    given = input.read_record("machine")
    schema = _read_schema(input, "state", given.read_list("state"))
    try:
        return Machine.of_json({k: v for k, v in given.given.items() if k != "state"}, schema)
    except _UNFIT as error:
        raise _make_corrupt_plan_error(given.what, f"it is not valid ({error})") from None


def _read_format(input: JsonRecord) -> Format | None:
    """Read the format of an input, if the input has a format."""
    if "format" not in input:
        return None
    given = input.read_record("format")
    try:
        return format_of_json(given.given)
    except _UNFIT as error:
        raise _make_corrupt_plan_error(given.what, f"it is not valid ({error})") from None


class _Absent(SpecError):
    """An error for a function whose code is missing. The description itself is valid."""


def _make_missing_code_error(where: str, found: str) -> SpecError:
    return _Absent(f"read the plan of {where}", found, "pass the flow itself: flow=")


def _has_code(given: Any) -> bool:
    """Tell whether the JSON of a node contains a formula that is a function or an Arrow expression."""
    if isinstance(given, dict):
        coded = "type" in given and ("python" in given or "arrow" in given)
        return coded or any(map(_has_code, given.values()))
    return isinstance(given, list) and any(map(_has_code, given))


def _build_collection(node: JsonRecord, inputs: list[Collection], flow: Plan) -> Collection:
    verb = node.read_text("op")
    if verb == Input.verb:
        return flow.inputs[node.read_text("name")]
    if verb not in load_operators():
        raise _make_corrupt_plan_error(node.what, f"its operator is {verb!r}")
    if not inputs:
        raise _make_corrupt_plan_error(node.what, f"it is a {verb} without inputs")
    made: Collection = find_operator_class(verb).from_json(inputs, node)
    if "proven" in node:
        made.proven = tuple(node.read_texts("proven"))
        if not set(made.proven) <= set(made.schema.names):
            raise _make_corrupt_plan_error(
                node.what, f"it is identified by {list(made.proven)}, but its columns are {made.schema.names}"
            )
    return made


def _make_corrupt_plan_error(what: str, found: str) -> CorruptState:
    return CorruptState(
        what,
        shorten(found, 500),
        "it is damaged, or this ddflow did not write it; restore it from a backup, or pass the flow itself",
    )
