"""Compare the plan of a state with the plan that opens it.

Invariant: if `compare_plans` allows a change, the new plan can run on the unchanged state. The results are the same as
if the new plan had built the state. `compare_plans` refuses every other change, and the error states the name, the old
value and the new value. `compare_plans` lists what was added, and the engine builds the additions.

Three cases need care when plans are compared. An option that is missing in the JSON has its default value. A new column
can decide ties, is included where a spec means "all columns", and appears in outputs. A function can change while its
name stays the same, so ddflow compares a digest of its code.
"""

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from itertools import count
from typing import Any, Final

import pyarrow as pa

from ddflow.columns.casts import format_type
from ddflow.columns.schema import to_declared_type
from ddflow.columns.wider import find_widening
from ddflow.errors import CommandFix, DeclareFix, ErrorText, EvolveFix, Option, PlanChanged, shorten
from ddflow.plan.collection import walk_inputs
from ddflow.plan.evolve import build_plan_with_time_type, evolve_plan, find_widening_objections, share_join_arrangements
from ddflow.plan.inputs.bind import list_format_columns
from ddflow.plan.inputs.input import Input, Spec
from ddflow.plan.inputs.spec import Upsert
from ddflow.plan.merge.user_function import is_same_function
from ddflow.plan.plan import Plan
from ddflow.plan.text.codec import (
    describe_plan,
    find_first_difference,
    format_node,
    read_input_specs,
    read_step_time_type,
    rebuild_plan,
)
from ddflow.plan.text.formulas import JsonRecord

FREE: Final = ("lateness",)
"""The options of a spec that users can change after the state was created. A change does not affect stored data."""
MOST = 8
"""Maximum number of differences that a message lists."""


@dataclass(frozen=True)
class PlanChange:
    """The changes from a state's plan to another plan. In a condition, an object without changes is false.

    ``columns``: added columns, by input.  ``types``: the old narrower and the new wider type, by input and column.
    ``inputs`` and ``outputs``: added names.  ``options``: the old and the new value, by input and option.
    """

    columns: dict[str, list[str]] = field(default_factory=dict)
    types: dict[str, dict[str, tuple[pa.DataType, pa.DataType]]] = field(default_factory=dict)
    inputs: list[str] = field(default_factory=list)
    outputs: list[str] = field(default_factory=list)
    options: dict[str, dict[str, tuple[Any, Any]]] = field(default_factory=dict)
    before: Plan | None = field(default=None, compare=False)
    """The plan with the old columns, set only if columns or types changed."""

    def __bool__(self) -> bool:
        return bool(self.columns or self.types or self.inputs or self.outputs or self.options)

    @property
    def requires_rewrite(self) -> bool:
        """Whether a wider type changes the hashes of values, so that the state must be rewritten."""
        return any(find_widening(*pair) == "rewrite" for types in self.types.values() for pair in types.values())

    @property
    def description(self) -> str:
        """The changes as a sentence for messages."""
        return "; ".join(self.parts) or "it is the same plan"

    @property
    def parts(self) -> list[str]:
        """The changes as clauses for a message."""
        parts: list[str] = [
            f"input {name!r} gets the columns {added}, which are null in all existing rows"
            for name, added in self.columns.items()
        ]
        parts += [
            f"column {column!r} of input {name!r} is {now}, but was {was}"
            for name, types in self.types.items()
            for column, (was, now) in types.items()
        ]
        parts += [f"the inputs {self.inputs} are new"] if self.inputs else []
        parts += [f"the outputs {self.outputs} are new"] if self.outputs else []
        return parts + [
            Option(option) + f" of input {name!r} is {now}, but was {was}"
            for name, options in self.options.items()
            for option, (was, now) in options.items()
        ]


def resolve_plan(recorded: Mapping[str, Any], flow: Plan | None, where: str) -> Plan:
    """Rebuild a state's plan or, if ``flow`` is given, check ``flow`` against the state's plan.

    Raises the errors of `compare_plans` and `rebuild_plan`.
    """
    if flow is None:
        return rebuild_plan(recorded, where)
    flow, _ = build_plan_with_time_type(
        add_state_columns(recorded, flow.frozen(), {}, where), read_step_time_type(recorded, where)
    )
    flow = share_join_arrangements(flow, recorded)
    compare_plans(recorded, flow, where)
    return flow


def compare_plans(old: Mapping[str, Any], flow: Plan, where: str, *, rewriting: bool = False) -> PlanChange:
    """List the changes from a state's plan to ``flow``.  O(plans).

    ``old``: the description of the state's plan.  ``where``: the name of the state in messages.  ``rewriting``: whether
    to allow new types that require a rewrite of the state. Raises `PlanChanged`, which lists all forbidden changes.
    Raises `CorruptState` if ``old`` is invalid, and `SpecError` if ``flow`` cannot be described.

    >>> import pyarrow as pa
    >>> from ddflow.plan.text.codec import describe_plan
    >>> def plan(order_by, **more):
    ...     flow = Plan()
    ...     columns = {"id": pa.int64(), "at": pa.int64(), "rev": pa.int64()} | more
    ...     flow.output("out", flow.upserts("orders", columns, Upsert(key="id", order_by=order_by)))
    ...     return flow
    >>> compare_plans(describe_plan(plan("at")), plan("at", city=pa.string()), "state/orders").description
    "input 'orders' gets the columns ['city'], which are null in all existing rows"
    >>> compare_plans(describe_plan(plan("at")), plan("rev"), "state/orders")
    Traceback (most recent call last):
        ...
    ddflow.errors.PlanChanged: open state/orders with this plan: order_by= of input 'orders' is ['rev'], \
but was ['at']; open it with the plan that created it, or create a new state: from a log with dd.migrate, else by a \
new run
    """
    new, refused, change = describe_plan(flow), list[str](), PlanChange()
    before = read_input_specs(old, where)
    for name, (schema, spec) in before.items():
        input = flow.inputs.get(name)
        if input is None:
            refused.append(f"input {name!r} is not in the plan, but the state has it")
            continue
        refused += _compare_options(name, spec, input.spec, change)
        refused += _compare_machines(name, *(each["inputs"][name].get("machine") for each in (old, new)))
        refused += _compare_formats(name, *(each["inputs"][name].get("format") for each in (old, new)))
        refused += _compare_columns(name, schema, input, change)
    change.inputs.extend(name for name in flow.inputs if name not in before)
    record = JsonRecord(old, f"the plan of {where}")
    refused += _compare_outputs(old, new, where, change)
    refused += _compare_formulas(record.read_record("formulas"), new)
    if (change.types or change.columns) and not refused:
        narrow = {name: schema for name, (schema, _) in before.items()}
        plan, nodes = evolve_plan(flow, narrow, only=set(flow.outputs) - set(change.outputs))
        refused += find_widening_objections(plan, flow, {old: new for new, old in nodes.items()})
        change = replace(change, before=plan)
    remedy = ErrorText(
        *("open it with the plan that created it, or create a new state: from a log with ", CommandFix("migrate")),
        ", else by a new run",
    )
    if missing := _list_missing_columns(before, flow):
        stays = "because a state never drops a column (docs/guides/schema-changes.md, A column that goes)"
        remedy = ErrorText("declare the columns that the state has, ", missing, f", {stays}; or ", remedy)
    lost = [name for name in record.read_record("outputs").list_field_names() if name not in flow.outputs]
    altered = [
        name for name, made in new["outputs"].items() if record.read_record("outputs").given.get(name, made) != made
    ]
    if altered and len(refused) == len(altered) + len(lost) and _has_all_input_rows(flow, altered):
        remedy = _suggest_new_outputs(altered, flow, where) + "; or " + remedy
    without = [name for name in before if name not in flow.inputs]
    if lost or without:
        drop = EvolveFix(state=where, drop_outputs=lost, drop_inputs=without)
        remedy = ErrorText(f"to remove {[*lost, *without]}, first run ", drop, "; or ", remedy)
    if not refused and change.requires_rewrite and not rewriting:
        refused, remedy = change.parts, _suggest_rewrite(change, where, len(flow.inputs) > 1)
    if refused:
        more = f", and {len(refused) - MOST} more" if len(refused) > MOST else ""
        asked = f"evolve {where}" if rewriting else f"open {where} with this plan"
        raise PlanChanged(asked, ErrorText.join_texts(", and ", refused[:MOST]) + more, remedy)
    return change


def adopt_wide_offset_types(old: Mapping[str, Any], flow: Plan, where: str) -> Plan:
    """Copy column types with 64-bit offsets, such as ``large_string``, from the state to the columns of ``flow``.

    ``large_string`` counts as the same type as ``string``.
    """
    schemas = dict[str, pa.Schema]()
    for name, (there, _) in read_input_specs(old, where).items():
        if name in flow.inputs:
            mine = flow.inputs[name].bound.schema
            known = {field.name: field.type for field in there if field.type != to_declared_type(field.type)}
            wide = [f.name for f in mine if f.name in known and f.type == to_declared_type(known[f.name])]
            if wide:
                schemas[name] = pa.schema([f.with_type(known[f.name]) if f.name in wide else f for f in mine])
    return evolve_plan(flow, schemas)[0] if schemas else flow


def _list_missing_columns(before: Mapping[str, tuple[pa.Schema, Spec]], flow: Plan) -> ErrorText:
    """Return declarations for the columns that exist in a state but not in the plan."""
    parts = []
    for name, (schema, _) in before.items():
        mine = flow.inputs[name].bound.schema.names if name in flow.inputs else schema.names
        if types := {field.name: format_type(field.type) for field in schema if field.name not in mine}:
            parts.append(ErrorText(DeclareFix(types), f" of {name!r}"))
    return ErrorText.join_texts(" and ", parts)


def add_state_columns(old: Mapping[str, Any], flow: Plan, added: Mapping[str, Collection[str]], where: str) -> Plan:
    """Put the columns of ``flow`` into the order of a state, and add the state's columns that need no declaration.

    ``added``: columns discovered in the sources, by input.  New columns come last.  O(plans).
    """
    schemas = dict[str, pa.Schema]()
    for name, (there, _) in read_input_specs(old, where).items():
        if name not in flow.inputs:
            continue
        bound = flow.inputs[name].bound
        given = {*added.get(name, ()), *list_format_columns(bound.format)}
        known = {field.name: field for field in bound.schema}
        fields = [known.pop(f.name, f) for f in there if f.name in known or f.name in given]
        schemas[name] = pa.schema([*fields, *known.values()])
    schemas = {name: schema for name, schema in schemas.items() if schema != flow.inputs[name].bound.schema}
    return evolve_plan(flow, schemas)[0] if schemas else flow


def _suggest_rewrite(change: PlanChange, where: str, several: bool) -> ErrorText:
    """Return the commands that rewrite a state. ``several``: whether the state has several inputs."""
    commands = [
        EvolveFix({column: format_type(now) for column, (_, now) in types.items()}, name if several else "", where)
        for name, types in change.types.items()
    ]
    return ErrorText("opening never rewrites a state: rewrite it first with ", ErrorText.join_texts(" and ", commands))


def warn_of_new_columns(change: PlanChange, flow: Plan) -> Iterator[str]:
    """Warn of new columns that are read from messages, because a misspelled name gives a column of nulls. O(columns).

    Inputs that take rows need no warning, because these inputs refuse rows with an unknown column.
    """
    for name, added in change.columns.items():
        for column in added if flow.inputs[name].bound.format is not None else ():
            yield (
                f"the column {column!r} of input {name!r} is new in this state, and permanent from the next commit on; "
                "an existing row has null there until its next event"
            )


def _has_all_input_rows(flow: Plan, outputs: Sequence[str]) -> bool:
    """Tell whether a state stores all input rows from which some outputs are computed. O(nodes)."""
    return all(
        each.bound is None or each.bound.has_stored_rows
        for each in walk_inputs([flow.outputs[name] for name in outputs])
    )


def _suggest_new_outputs(altered: Sequence[str], flow: Plan, where: str) -> ErrorText:
    """Explain how to deploy a changed query.  ``altered``: the changed outputs."""
    names = {name: next(n for n in (f"{name}_{i}" for i in count(2)) if n not in flow.outputs) for name in altered}
    return ErrorText(
        f"keep {[*altered]} unchanged, and add the changed queries as new outputs, {[*names.values()]}, which ddflow "
        "fills from the state; move the sinks; then remove the old outputs with ",
        EvolveFix(state=where, drop_outputs=altered),
        " (docs/guides/deploy-a-changed-query.md)",
    )


def _compare_options(name: str, old: Spec, new: Spec, change: PlanChange) -> Iterator[str]:
    """Yield the forbidden changes of a spec, and put the allowed changes into ``change``."""
    if type(old) is not type(new):
        kinds = ["upserts" if isinstance(each, Upsert) else "differences" for each in (new, old)]
        yield f"input {name!r} is of {kinds[0]}, but was of {kinds[1]}"
        return
    was, now = (json.loads(spec.to_json()) for spec in (old, new))
    for option in fields(old):
        # Compare the options as text, so that NaN equals NaN. A missing option has its default value.
        a, b = (json.dumps(spec.get(option.name)) for spec in (was, now))
        if a == b or (option.name == "merge" and _is_same_merge(was.get("merge"), now.get("merge"))):
            continue
        first, second = (_find_option_value(spec, option.name) for spec in (old, new))
        # Without a time column, only a watermark gives late= a meaning.
        added = option.name == "watermark" and old.watermark is None
        if option.name in FREE or added or (option.name == "late" and old.time is None):
            change.options.setdefault(name, {})[option.name] = (first, second)
        elif repr(first) == repr(second):  # the repr of a function is its name
            yield (
                Option(option.name)
                + f" of input {name!r} is {second!r}, but the state was created with another function of that name"
            )
        else:
            yield Option(option.name) + f" of input {name!r} is {shorten(repr(second))}, but was {shorten(repr(first))}"


def _is_same_merge(was: Any, now: Any) -> bool:
    """Tell whether two merges are the same function. The names and the digests must be equal."""
    both = all(isinstance(each, dict) and "function" in each for each in (was, now))
    return both and is_same_function(was, now) and was.get("scalar") == now.get("scalar")


def _compare_machines(name: str, was: Any, now: Any) -> Iterator[str]:
    """Yield the forbidden changes of an input's machine."""
    transitions: list[Any] = [each.get("transition") if isinstance(each, dict) else None for each in (was, now)]
    if all(isinstance(each, dict) for each in transitions) and is_same_function(*transitions):
        was, now = (each | {"transition": None} for each in (was, now))
    if json.dumps(was, sort_keys=True) != json.dumps(now, sort_keys=True):
        yield f"the machine of input {name!r} is {shorten(json.dumps(now))}, but was {shorten(json.dumps(was))}"


def _compare_formats(name: str, was: Any, now: Any) -> Iterator[str]:
    """Yield the forbidden changes of an input's format."""
    functions: list[Any] = [each.get("function") if isinstance(each, dict) else None for each in (was, now)]
    if all(isinstance(each, dict) for each in functions) and is_same_function(*functions):
        return
    if json.dumps(was, sort_keys=True) != json.dumps(now, sort_keys=True):
        yield Option("format") + f" of input {name!r} is {shorten(json.dumps(now))}, but was {shorten(json.dumps(was))}"


def _find_option_value(spec: Spec, option: str) -> Any:
    """Return an option in the form in which users write the option."""
    value = getattr(spec, option)
    if option == "groups":
        return {of[0] if len(of) == 1 else of: list(columns) for of, columns in spec.grouped}
    if option in ("derive", "watermark"):
        return value if value is None else dict(value)
    return list(value) if isinstance(value, tuple) else value


def _compare_columns(name: str, old: pa.Schema, input: Input, change: PlanChange) -> Iterator[str]:
    """Yield the forbidden changes of a schema, and put the allowed changes into ``change``."""
    new, of = input.bound.schema, f"of input {name!r}"
    for was in old:
        if was.name not in new.names:
            yield f"column {was.name!r} {of} is missing, but was {was.type}"
            continue
        now = new.field(was.name)
        if not now.type.equals(was.type):
            if find_widening(was.type, now.type) is None:
                yield f"column {was.name!r} {of} is {now.type}, but was {was.type}"
            change.types.setdefault(name, {})[was.name] = was.type, now.type
        if now.nullable != was.nullable:
            is_now, had_been = ("nullable" if each.nullable else "not null" for each in (now, was))
            yield f"column {was.name!r} {of} is {is_now}, but was {had_been}"
    order = [column for column in new.names if column in old.names]
    if sorted(order) == sorted(old.names) and order != old.names:
        yield f"the columns {of} are in the order {order}, but were in the order {old.names}"
    added = [column for column in new if column.name not in old.names]
    for column in added:
        if not column.nullable:
            yield f"column {column.name!r} {of} is new and declared not null, but the rows of the state lack it"
        if input.spec.versions == "cell" and column.name in input.bound.row_schema.names:
            yield (
                f"column {column.name!r} {of} is new, but versions='cell' keeps an order for each cell, and the rows "
                "of the state have no order for it"
            )
        if input.spec.tie == "greatest" and column.name in input.bound.tracked:
            yield (
                f"column {column.name!r} {of} is new, but tie='greatest' compares all columns of a row, so earlier "
                "ties might have another winner with it"
            )
    if added:
        change.columns[name] = [column.name for column in added]


def _compare_outputs(old: Mapping[str, Any], new: Mapping[str, Any], where: str, change: PlanChange) -> Iterator[str]:
    """Yield the forbidden changes of outputs, and put the allowed changes into ``change``."""
    before, now = JsonRecord(old, f"the plan of {where}").read_record("outputs"), new["outputs"]
    for name in before.list_field_names():
        was = before.read_text(name)
        if name not in now:
            yield f"output {name!r} is not in the plan, but was {format_node(old, was, where)}"
        elif now[name] != was:
            first, second = find_first_difference(old, was, new, now[name], where)
            a, b = format_node(new, second, "this plan"), format_node(old, first, where)
            a, b = (a, b) if a != b else (f"{a} ({second})", f"{b} ({first})")
            made = " built from" * ((first, second) != (was, now[name]))
            yield f"output {name!r} is{made} {a}, but was{made} {b}"
    change.outputs.extend(name for name in now if name not in before)


def _compare_formulas(before: JsonRecord, new: Mapping[str, Any]) -> Iterator[str]:
    """Yield the functions and pyarrow expressions whose name is unchanged but whose digest changed."""
    for name in before.list_field_names():
        was, now = before.read_texts(name), new["formulas"].get(name)
        if now is not None and was[:1] == now[:1] and was != now:
            yield f"the formula {shorten(name.partition(' ')[2])} has changed, but its name has not"
