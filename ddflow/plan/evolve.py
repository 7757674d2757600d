"""Change a plan that has a state: widen or add input columns, share join arrangements, record columns of past epochs.

Guarantees: if `find_widening_objections` finds nothing, every collection of the wider plan has the rows of the narrower
plan, cast to the new types, and ddflow can cast the stored state. The types of keys, orders and times never change,
because they decide which event wins. To read or compare an epoch, ddflow uses the columns that the plan had when the
epoch was ingested.
"""

from __future__ import annotations

import base64
import binascii
from collections import defaultdict
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.types as pat

from ddflow.columns.declared import to_arrow_schema
from ddflow.columns.names import did_you_mean, find_nearest_name
from ddflow.columns.schema import is_text, normalize_type, to_declared_type
from ddflow.columns.wider import find_widening, keeps_order, list_changed_types
from ddflow.errors import (
    CommandFix,
    CorruptState,
    ErrorText,
    ExpressionError,
    InputTypesFix,
    PlanChanged,
    SpecError,
    shorten,
)
from ddflow.plan.collection import Collection, walk_inputs
from ddflow.plan.inputs.bind import BoundUpserts
from ddflow.plan.inputs.input import Binding, Input, bind_input
from ddflow.plan.inputs.spec import Tombstone
from ddflow.plan.merge.strategy import Strategy, last_non_null
from ddflow.plan.plan import Plan
from ddflow.plan.text.codec import compute_node_ids
from ddflow.plan.text.formulas import find_formula_objections
from ddflow.storage.epochs import PastColumns
from ddflow.storage.fields import RESTORE_REMEDY

Nodes = dict[Collection, Collection]
"""A map from the collections of a plan to the corresponding collections of the evolved plan."""


def parse_column_types(plan: Plan, given: Any, asked: str) -> dict[str, dict[str, pa.DataType]]:
    """Parse the requested column types of each input.

    ``given``: the columns of the only input, or ``{input: columns}``. The columns of an input are given as a schema, an
    object with a schema, or ``{column: type}``. A type is an Arrow type or its text. O(columns). Raises `SpecError`,
    `NotArrow`.
    """
    if isinstance(given, Mapping) and given and all(map(_is_schema_like, given.values())):
        if unknown := [name for name in given if name not in plan.inputs]:
            raise SpecError(
                asked,
                f"there is no input {unknown[0]!r}",
                did_you_mean(str(unknown[0]), plan.inputs, "inputs"),
                input=unknown[0],
            )
        return {name: _map_column_types(columns, f"{asked} of {name!r}") for name, columns in given.items()}
    if len(plan.inputs) != 1:
        found = f"the plan has the inputs {list(plan.inputs)}"
        raise SpecError(asked, found, "name the input: " + InputTypesFix(next(iter(plan.inputs))))
    return {next(iter(plan.inputs)): _map_column_types(given, asked)}


def _is_schema_like(given: Any) -> bool:
    return isinstance(given, Mapping | pa.Schema) or hasattr(given, "schema")


def _map_column_types(given: Any, asked: str) -> dict[str, pa.DataType]:
    schema = to_arrow_schema(given, asked)
    return dict(zip(schema.names, schema.types, strict=True))


def evolve_plan_to_types(plan: Plan, given: Any, asked: str) -> tuple[Plan, Nodes]:
    """Build the plan with the requested column types, and map each old collection to the corresponding new collection.

    O(nodes). Raises `SpecError` if a column cannot be widened to the requested type, and `PlanChanged` if the plan does
    not fit the types.
    """
    types = parse_column_types(plan, given, asked)
    schemas = {name: widen_schema(plan.inputs[name].bound, of, asked) for name, of in types.items()}
    try:
        return evolve_plan(plan, schemas)
    except (SpecError, ExpressionError) as error:
        remedy = ErrorText(
            *(error.fix, "; do this in a new output and then remove the old output (docs/guides/schema-changes.md, A "),
            *("column that goes), or in a new state, created from a log with ", CommandFix("migrate")),
        )
        raise PlanChanged(asked, f"{error.asked}: {error.found}", remedy) from None


def refuse_misspelled_columns(plan: Plan, added: Mapping[str, Container[str]], asked: str) -> None:
    """Raise `SpecError` if the name of a new column is probably misspelled, because a similar name exists.

    ``plan``: the plan with the new columns.  ``added``: their names, by input.  O(columns of these inputs).
    """
    for name, columns in added.items():
        names = plan.inputs[name].bound.schema.names
        known = [each for each in names if each not in columns]
        for column in names:
            if column in columns and find_nearest_name(column, known) is not None:
                raise SpecError(
                    f"{asked}: column {column!r} of input {name!r}",
                    "there is no such column, and a new column is permanent",
                    f"{did_you_mean(column, known)}; to add a column of such a similar name, declare it in the flow "
                    "that opens the state",
                    column=column,
                    input=name,
                )


def widen_schema(bound: Binding, types: Mapping[str, pa.DataType], asked: str) -> pa.Schema:
    """Widen an input's columns, and append new columns, which can be null.

    Other columns stay.  O(columns).  Raises `SpecError` if a column cannot be widened to its type.

    >>> from ddflow.plan.inputs.spec import Upsert
    >>> plan = Plan()
    >>> people = plan.upserts("people", {"id": pa.int64(), "n": pa.int32()}, Upsert(key="id"))
    >>> _ = plan.output("many", people.filter("n > 9"))
    >>> _ = plan.output("by_n", people.count("n"))
    >>> schema = widen_schema(people.bound, {"n": pa.int64(), "city": pa.string()}, "people")
    >>> wide, nodes = evolve_plan(plan, {"people": schema})
    >>> wide.outputs
    {'many': Filter(id int64, n int64, city string), 'by_n': Count(n int64, count int64)}
    >>> list(find_widening_objections(plan, wide, nodes))
    []
    """
    fields = []
    for field in bound.schema:
        kind = normalize_type(types.get(field.name, field.type))
        kind = field.type if kind == to_declared_type(field.type) else kind
        if kind != field.type and find_widening(field.type, kind) is None:
            raise SpecError(
                f"{asked}: column {field.name!r} as {kind}",
                f"it is {field.type}, which cannot be widened to {kind}",
                ErrorText(
                    *("use a wider type (docs/semantics.md, Columns that change); for any other type, create a new "),
                    *("state from a log with ", CommandFix("migrate")),
                ),
                column=field.name,
            )
        fields.append(field.with_type(kind))
    added = [pa.field(name, normalize_type(kind)) for name, kind in types.items() if name not in bound.schema.names]
    return pa.schema([*fields, *added])


def evolve_plan(
    plan: Plan,
    schemas: Mapping[str, pa.Schema],
    only: Container[str] | None = None,
    times: pa.DataType | None = None,
    sides: Mapping[Collection, tuple[Collection, Sequence[str]]] | None = None,
) -> tuple[Plan, Nodes]:
    """Rebuild a plan on inputs with other columns, and map each old collection to the corresponding new collection.

    ``only``: the outputs to build, by default all.  ``times``: the type of times, by default unchanged.  ``sides``: the
    collection and column names to arrange, for each arrangement with other columns. O(nodes). Raises any error that
    building a plan raises.
    """
    out, made = Plan(), Nodes()
    out.clock = plan.clock
    wanted = walk_inputs(node for name, node in plan.outputs.items() if only is None or name in only)
    inputs: dict[Collection, Input] = {each: each for each in plan.inputs.values()}
    for node in plan.nodes:
        if node in inputs and (only is None or inputs[node].name in schemas):
            made[node] = out._add_input(_bind_changed_input(inputs[node].bound, schemas, times))
        elif node in wanted:
            given = [made[each] for each in node.inputs]
            if sides is not None and node in sides:
                of, names = made[sides[node][0]], list(sides[node][1])
                given = [of if names == of.schema.names else of.project(names)]
            made[node] = node.rebuild_with_inputs(given)
            made[node].proven = made[node].proven if node.proven is None else node.proven
    for name, node in plan.outputs.items():
        if node in wanted and (only is None or name in only):
            out.output(name, made[node])
    return out, made


def build_plan_with_time_type(plan: Plan, kind: pa.DataType) -> tuple[Plan, Nodes]:
    """Rebuild an epoch-mode plan with step times of type ``kind``, and map each collection to its copy. O(nodes).

    Raises `PlanChanged` if the plan has a clock of another type.
    """
    if plan.holds_back or plan.time_type == kind:
        return plan, {node: node for node in plan.nodes}
    if plan.clock is not None:
        found = f"the clock of the flow is {plan.clock}, but the times of the state's steps are {kind}"
        raise PlanChanged("open a flow with a clock", found, "open it on a new state, and feed it the log again")
    return evolve_plan(plan, {}, times=kind)


def _bind_changed_input(bound: Binding, schemas: Mapping[str, pa.Schema], times: pa.DataType | None) -> Binding:
    schema = schemas.get(bound.name, bound.schema)
    machine = None if bound.merging is None else bound.merging.machine
    kind = bound.time_type if times is None else times
    made = bind_input(bound.name, schema, bound.spec, None if machine is None else machine.machine, bound.format, kind)
    return replace(made, guessed=bound.guessed | ({*schema.names} - {*bound.schema.names}))


def find_widening_objections(old: Plan, new: Plan, nodes: Nodes) -> Iterator[str]:
    """Yield reasons why the wider plan can compute other rows than the narrower plan. O(nodes + expressions).

    ``nodes``: maps collections of the narrower plan to collections of the wider one.
    """
    for name in old.inputs.keys() & new.inputs.keys():
        if nodes.get(old.inputs[name]) is new.inputs[name]:
            yield from _find_input_objections(old.inputs[name].bound, new.inputs[name].bound)
    for narrow, wide in nodes.items():
        if narrow.inputs:
            yield from (f"{shorten(repr(wide), 80)}: {why}" for why in wide.find_widening_obstacles(narrow))


def _find_input_objections(old: Binding, new: Binding) -> Iterator[str]:
    """Yield objections to wider types of an input's columns."""
    changed, spec, of = list_changed_types(old.schema, new.schema), new.spec, f"of input {new.name!r}"
    for name in changed:
        was, now = old.schema.field(name).type, new.schema.field(name).type
        for option in (option for option, names in new.fixed_type_columns_by_option.items() if name in names):
            decides = f"it decides between events ({option}), so its type never changes"
            yield f"column {name!r} {of} is {now}, but was {was}; {decides}"
    if changed and old.merging is not None and old.merging.machine is not None:
        yield f"the machine {of} reads {changed}, and may behave differently with the new types"
    for option, expression in new.formulas.items():
        yield from (f"{option}= {of}: {why}" for why in find_formula_objections(expression, old.schema, new.schema))
    if not (isinstance(old, BoundUpserts) and isinstance(new, BoundUpserts)):
        return
    if isinstance(spec.delete, Tombstone) and spec.delete.column in changed:
        yield from _find_tombstone_objections(old, new, of)
    yield from _find_merge_objections(old, new, of)


def _find_tombstone_objections(old: BoundUpserts, new: BoundUpserts, of: str) -> Iterator[str]:
    """Yield an objection if the new types would change which values of the tombstone column delete a row."""
    assert isinstance(new.spec.delete, Tombstone)
    column = new.spec.delete.column
    kinds = old.schema.field(column).type, new.schema.field(column).type
    if old.tombstone is not None and new.tombstone is not None:
        same = not is_text(kinds[1]) and old.tombstone.cast(kinds[1]).equals(new.tombstone)
    else:
        same = not pat.is_boolean(kinds[0])
    if not same and not is_text(kinds[0]):
        yield f"{new.spec.delete!r} {of} may delete other rows, because {column!r} is {kinds[1]} but was {kinds[0]}"


def _find_merge_objections(old: BoundUpserts, new: BoundUpserts, of: str) -> Iterator[str]:
    """Yield an objection for each part of a merge that would compute other results with the new types."""
    if new.merging is None or old.merging is None:
        return
    changed = set(list_changed_types(old.row_schema, new.row_schema))
    if new.merging.function is not None and changed:
        yield f"merge= {of} is a function that reads {sorted(changed)} and may behave differently with the new types"
    for column in new.merging.columns:
        there = old.schema if column.name in old.schema.names else new.schema
        was, now = there.field(column.name).type, new.schema.field(column.name).type
        if was != now and new.merging.function is None and not _can_continue_fold(column.strategy, was, now):
            yield f"{column.strategy!r} of {column.name!r} {of} would compute other results with {now} than with {was}"
    for field, expression in new.merging.derived:
        if field.name not in old.row_schema.names:
            continue
        gave = next(each.type for known, each in old.merging.derived if known.name == field.name)
        kept = old.row_schema.field(field.name).type
        if field.name in changed and (
            expression.type != field.type or (gave != kept and not find_widening(gave, kept))
        ):
            yield f"derive= of {field.name!r} {of} gives {gave}, stored as {kept}, but the column is {field.type}"
        rows = old.row_schema, new.row_schema
        yield from (
            f"derive= of {field.name!r} {of}: {why}" for why in find_formula_objections(expression, *rows, gave)
        )


def _can_continue_fold(strategy: Strategy, old: pa.DataType, new: pa.DataType) -> bool:
    """Tell whether casting the stored cell has the same result as merging all earlier cells in the new type."""
    if strategy.name in ("max", "min"):
        return keeps_order(old, new)
    if strategy.name == "sum":
        # The stored sum of integers is exact. The stored sum of floats was rounded to the narrower type.
        return not pat.is_floating(old) and not (pat.is_floating(new) and old.bit_width == 64)
    if strategy.name == "fields":
        parts, default = dict(strategy.parts or ()), strategy.default or last_non_null()
        pairs = ((old.field(i), new.field(i)) for i in range(old.num_fields))
        return all(a.type == b.type or _can_continue_fold(parts.get(a.name, default), a.type, b.type) for a, b in pairs)
    return True


def share_join_arrangements(plan: Plan, recorded: Mapping[str, Any] | None = None) -> Plan:
    """Replace arrangements of joins that have the same collection and key by one arrangement.

    If there are none, return the same plan.

    O(nodes). ``recorded``: the description of the state to open with the plan.

    >>> import ddflow as dd
    >>> flow = dd.Flow()
    >>> _ = flow.upserts("o", {"id": int, "c": int, "n": int, "m": int}, dd.Upsert(key="id"))
    >>> _ = flow.upserts("c", {"id": int, "city": str}, dd.Upsert(key="id"))
    >>> _ = flow.output("one", flow.sql("select city, n from o join c on o.c = c.id"))
    >>> _ = flow.output("two", flow.sql("select city, m from o join c on o.c = c.id"))
    >>> [node.schema.names for node in flow.nodes if node.verb == "arrange"]
    [['c', 'n'], ['c', 'm']]
    >>> [node.schema.names for node in share_join_arrangements(flow).nodes if node.verb == "arrange"]
    [['c', 'n', 'm']]
    """
    if not any(find_arranged_collection(node) is not None for node in plan.nodes):
        return plan
    ids, held = (
        compute_node_ids(plan, written=False),
        {} if recorded is None else dict(_find_stored_arrangements(plan, recorded)),
    )
    groups, wider = defaultdict[Any, list[Any]](list), dict[Collection, list[str]]()
    free = _find_extensible_arrangements(plan)
    for node in plan.nodes:
        if node in ids and (under := find_arranged_collection(node)) is not None:
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
        wider |= {
            each: [name for name in find_arranged_collection(each).schema.names if name in union] for each in rest
        }
    sides = {
        node: (find_arranged_collection(node), names) for node, names in wider.items() if names != node.schema.names
    }
    return evolve_plan(plan, {}, sides=sides)[0] if sides else plan


def find_arranged_collection(node: Collection) -> Any:
    """Return the collection that an arrangement stores, before any renaming.

    Return None if ``node`` is not an arrangement.
    """
    if node.verb != "arrange":
        return None
    below = node.inputs[0]
    names = below.renames()
    return below.inputs[0] if names is not None and all(name == of for name, of in names.items()) else below


def _find_extensible_arrangements(plan: Plan) -> set[Collection]:
    """Return the arrangements that only joins read.

    Joins select columns by name, so additional columns in such an arrangement do no harm.
    """
    needed, out = walk_inputs(plan.outputs.values()), set[Collection]()
    bound = set(plan.outputs.values())
    for node in needed:
        whole: Sequence[int] = getattr(node, "whole", ())
        bound |= {each for at, each in enumerate(node.inputs) if node.verb != "join" or at in whole}
        out |= {node} if find_arranged_collection(node) is not None else set()
    return out - bound


def _find_stored_arrangements(plan: Plan, recorded: Mapping[str, Any]) -> Iterator[tuple[Collection, list[str]]]:
    """Yield each arrangement that a state stores for a plan's outputs, with its columns. O(nodes)."""
    nodes, seen = recorded["collections"], set[tuple[Collection, str]]()
    ahead = [(node, str(recorded["outputs"].get(name))) for name, node in plan.outputs.items()]
    while ahead:
        node, of = ahead.pop()
        while node.transparent:
            node = node.inputs[0]
        if (node, of) in seen or nodes.get(of, {}).get("op") != node.verb:
            continue
        seen.add((node, of))
        inputs, under = [*nodes[of]["of"]], find_arranged_collection(node)
        if under is None:
            ahead += zip(node.inputs, inputs, strict=False)
            continue
        below, names = nodes.get(inputs[0], {}), under.schema.names
        if below.get("op") == "project" and all(each.get("column") == each["name"] for each in below["columns"]):
            inputs, names = below["of"], [each["name"] for each in below["columns"]]
        if set(node.schema.names) <= set(names) <= set(under.schema.names):
            yield node, names
        ahead.append((under, inputs[0]))


class PastSchemas(NamedTuple):
    """The columns that inputs and outputs of a plan had up to ``epoch``. ``outputs`` includes side outputs.

    >>> from ddflow.plan.inputs.spec import Upsert
    >>> plan = Plan()
    >>> _ = plan.output("people", plan.upserts("people", {"id": pa.int64()}, Upsert(key="id")))
    >>> past = PastSchemas.from_record(record_past_columns(plan, 7), "an example")
    >>> past.epoch, past.inputs["people"].names, past.outputs["people"].names
    (7, ['id'], ['id', '_time', '_diff'])
    >>> find_past_schemas([past], 7) is past, find_past_schemas([past], 8)
    (True, None)
    """

    epoch: int
    inputs: Mapping[str, pa.Schema]
    outputs: Mapping[str, pa.Schema]

    @classmethod
    def from_record(cls, record: PastColumns, what: str) -> PastSchemas:
        """Decode the past columns of a manifest.

        ``what``: the name of the manifest in errors.  O(columns).  Raises `CorruptState`.
        """
        given = record.inputs, record.outputs
        return cls(record.epoch, *({name: decode_schema(text, what) for name, text in each.items()} for each in given))


def record_past_columns(plan: Plan, epoch: int) -> PastColumns:
    """Record the columns of a plan for a manifest.  O(columns)."""
    names = [*plan.outputs, *plan.side_outputs()]
    outputs = {name: plan.updates_schema(name) for name in names}
    return PastColumns(
        epoch,
        {name: encode_schema(input.bound.schema) for name, input in plan.inputs.items()},
        {name: encode_schema(schema) for name, schema in outputs.items() if schema is not None},
    )


def retain_past_columns(
    known: tuple[PastColumns, ...], before: Plan | None, last: int, oldest: int | None
) -> tuple[PastColumns, ...]:
    """Keep the past columns of the epoch ``oldest`` and later epochs. If ``oldest`` is None, keep nothing. O(columns).

    ``known``: the past columns of the previous version.  ``before``: the plan of that version, if the next version has
    other columns.  ``last``: the epoch of that version.
    """
    if before is not None and [each.epoch for each in known[-1:]] != [last]:
        known = (*known, record_past_columns(before, last))
    return tuple(each for each in known if oldest is not None and oldest <= each.epoch) if known else known


def find_past_schemas(past: Iterable[PastSchemas], epoch: int) -> PastSchemas | None:
    """Find the past columns of an epoch. Return None if the columns have not changed since the epoch.

    ``past``: ascending by epoch.  O(``past``).
    """
    return next((each for each in past if epoch <= each.epoch), None)


def encode_schema(schema: pa.Schema) -> str:
    """Write a schema as text."""
    return base64.b64encode(schema.serialize().to_pybytes()).decode()


def decode_schema(text: str, what: str) -> pa.Schema:
    """Decode a schema from text.  Raises `CorruptState` if the text is invalid."""
    try:
        return pa.ipc.read_schema(pa.py_buffer(base64.b64decode(text, validate=True)))
    except (binascii.Error, OSError, pa.ArrowException, ValueError) as error:
        raise CorruptState(what, f"its past columns are not a schema ({error})", RESTORE_REMEDY) from None
