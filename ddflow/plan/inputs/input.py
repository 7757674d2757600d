"""Bind the spec of any kind of input to the input's schema, machine and message format.

Guarantees: bindings of upserts and of differences have the same properties, so that callers can treat both in the same
way. The columns of a format never replace declared columns. If a name clashes, the error is `SpecError`.

>>> from ddflow.plan.inputs.spec import Upsert
>>> schema = pa.schema({"id": pa.int64()})
>>> bind_input("log", schema, Differences()).key_schema.names
['id']
>>> bind_input("people", schema, Upsert("id")).key_schema.names
['id']
"""

from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Any, Final

import pyarrow as pa

from ddflow.columns.names import check_column_names, did_you_mean
from ddflow.columns.schema import is_flat_type
from ddflow.connectors.formats.base import ABSENT, BAD, DELETED, Format, build_events_schema
from ddflow.errors import ErrorText, Option, SpecError
from ddflow.plan.collection import Collection, PlanNodes
from ddflow.plan.inputs.bind import BoundUpserts, bind_upserts, check_name_and_spec
from ddflow.plan.inputs.differences import BoundDifferences, Differences, bind_differences
from ddflow.plan.inputs.spec import Tombstone, Upsert, tombstone
from ddflow.plan.merge.bound import BoundMerge, ColumnGroup
from ddflow.plan.merge.machine import Machine
from ddflow.plan.merge.machines import USED, VALUES, BoundMachine
from ddflow.plan.merge.merge import Merge
from ddflow.plan.merge.strategy import last
from ddflow.plan.merge.user_function import AbsentFunction, describe_function
from ddflow.time import INT64

Binding = BoundUpserts | BoundDifferences
Spec = Upsert | Differences
_BIND: Final[dict[type, Any]] = {Upsert: bind_upserts, Differences: bind_differences}


def bind_input(
    name: str,
    schema: pa.Schema,
    spec: Spec,
    machine: Machine | None = None,
    format: Format | None = None,
    times: pa.DataType = INT64,
) -> Binding:
    """Bind a spec to its input's schema, with a machine or a format.  O(columns).

    ``times``: the type of step times, in epoch mode.  Raises `SpecError` or `ExpressionError`.
    """
    given: Any = spec
    made: Binding
    if machine is not None:
        made = bind_machine(name, schema, given, machine)
    else:
        made = _BIND[type(given)](name, schema, given, format)
    return made if spec.holds_back or times == made.time_type else replace(made, time_type=times)


def bind_machine(name: str, schema: pa.Schema, spec: Upsert, given: Machine) -> BoundUpserts:
    """Bind a machine to an input's schema and spec. O(columns).

    Raises `SpecError` if the machine does not fit the schema and the spec.
    """
    what = f"the machine of {name!r}"
    if not isinstance(given, Machine):
        raise SpecError(what, f"{given!r} is not a machine", "pass dd.Machine(...)")
    check_name_and_spec(name, spec)
    unused = [each.name for each in fields(spec) if each.name not in USED and getattr(spec, each.name) != each.default]
    if unused:
        raise SpecError(
            what,
            f"its spec has {', '.join(f'{each}=' for each in unused)}, but the machine makes the rows",
            f"omit them; a machine uses {', '.join(USED)}",
        )
    if spec.tie == "greatest":
        raise SpecError(
            what,
            ErrorText(Option("tie", "greatest"), " compares rows, but the events of a machine are not rows"),
            "use 'last', 'first' or 'error'",
        )
    base = bind_upserts(name, schema, spec)
    if given.on is not None and given.on not in schema.names:
        raise SpecError(
            what, f"on= names {given.on!r}, but there is no such column", did_you_mean(given.on, schema.names)
        )
    if given.on is not None and not is_flat_type(schema.field(given.on).type):
        raise SpecError(what, f"on= names {given.on!r}, which is {schema.field(given.on).type}", "use text or numbers")
    dropped = {spec.time, spec.seq, spec.delete.column if isinstance(spec.delete, Tombstone) else None}
    told = [column for column in schema.names if column not in dropped or column in spec.key]
    machined = BoundMachine(given, name, schema, told)
    check_column_names([*spec.key, *given.schema.names, *([VALUES] if given.several else [])], what)
    row = pa.schema([*(base.row_schema.field(column) for column in spec.key), machined.value_column])
    merging = BoundMerge(
        (ColumnGroup("", tuple(schema.field(column) for column in spec.order_by), ()),),
        (),
        (),
        None,
        False,
        (),
        False,
        machined,
    )
    return replace(base, unstamped_row_schema=row, tracked=[machined.value_column.name], merging=merging)


def bind_format(name: str, schema: pa.Schema, spec: Any, format: Any) -> BoundUpserts | BoundDifferences:
    """Bind a spec to the declared columns of an input and the columns of its format.  O(columns).

    Raises `SpecError` if machine, schema and spec do not fit together, and `ExpressionError` for an invalid expression.

    >>> from ddflow.connectors.formats import debezium
    >>> from ddflow.plan.inputs.spec import Upsert
    >>> bound = bind_format("orders", pa.schema({"id": pa.int64(), "n": pa.int64()}), Upsert("id"), debezium())
    >>> bound.schema.names, bound.row_schema.names, bound.spec.order_by
    (['id', 'n', '_position', '_row', '_deleted'], ['id', 'n'], ('_position', '_row'))
    >>> format_from_json(format_to_json(bound.format)) == bound.format
    True
    """
    if not isinstance(spec, Differences):
        check_name_and_spec(name, spec)
    if not isinstance(format, Format):
        raise SpecError(
            ErrorText(Option("format"), f" of {name!r}"),
            f"it is {format!r:.99}",
            "use one of dd.formats, such as dd.formats.debezium()",
        )
    own = [*(column for column, _ in format.order), DELETED, ABSENT, BAD]
    if taken := [column for column in schema.names if column in own]:
        raise SpecError(
            ErrorText(Option("format"), f" of {name!r}"),
            f"the format adds columns of the same names: {taken}",
            "rename them",
        )
    folded = [column.casefold() for column in schema.names]
    if alike := sorted({each for each in folded if folded.count(each) > 1}):
        found = f"columns differ only by upper and lower case: {alike}"
        raise SpecError(
            ErrorText(Option("format"), f" of {name!r}"), found, "the reader of JSON ignores case: omit all but one"
        )
    columns = [field.with_nullable(True) for field in schema]
    if isinstance(spec, Differences):
        if format.leaves_out:
            found = "a row of a history has all of its cells, but unavailable=True omits some"
            raise SpecError(
                ErrorText(Option("format"), f" of {name!r}"),
                found,
                "omit it: a message without a cell is then bad",
            )
        return bind_differences(name, build_events_schema(format, columns, bool(format.order)), spec, format)
    if isinstance(spec.delete, Tombstone):
        remedy = f"write it as SQL, as in delete=\"{spec.delete.column} = 'D'\""
        raise SpecError(
            ErrorText(Option("format"), f" of {name!r}"),
            ErrorText(Option("delete"), f" is {spec.delete!r}, but the format deletes too"),
            remedy,
        )
    ordered = bool(format.order) and not (spec.order_by or spec.groups)
    given: dict[str, Any] = {"delete": tombstone(DELETED)}
    if spec.delete is not None:
        given["delete"] = f"{DELETED} or coalesce({spec.delete}, false)"
    if ordered:
        given["order_by"] = [column for column, _ in format.order]
    if format.leaves_out and not spec.merges:
        given["merge"] = Merge(default=last())
    every = build_events_schema(format, columns, ordered)
    return bind_upserts(name, every, replace(spec, **given), format)


def format_to_json(format: Format) -> dict[str, Any]:
    """Write a format as JSON."""
    return {name: describe_function(value) if callable(value) else value for name, value in format.to_json().items()}


def format_from_json(given: Mapping[str, Any]) -> Format:
    """Read the JSON that `format_to_json` writes. Raises `SpecError` if the JSON is invalid."""
    from ddflow.connectors.formats import KINDS

    kind = KINDS.get(str(given.get("kind")))
    if kind is None:
        raise SpecError(
            "a format from JSON", f"its kind is {given.get('kind')!r:.99}", f"the kinds are {sorted(KINDS)}"
        )
    options = {name: value for name, value in given.items() if name != "kind"}
    known = {each.name for each in fields(kind) if each.init}
    for name, value in options.items():
        if name not in known:
            raise SpecError(
                "a format from JSON", f"{name!r:.99} is not one of {sorted(known)}", "pass the result of to_json()"
            )
        if isinstance(value, dict):
            options[name] = format_from_json(value) if "kind" in value else AbsentFunction.of_json(value)
        elif not isinstance(value, str | bool):
            raise SpecError("a format from JSON", f"{name} is {value!r:.99}", "pass the result of to_json()")
    return kind(**options)


class Input(Collection):
    """An input of a plan: upserts, or differences. ``bound``: the spec, bound to the schema of the input.

    >>> from ddflow.plan.plan import Plan
    >>> Plan().updates("log", {"city": str}).spec.keep
    False
    """

    verb = "input"
    bound: Binding

    def __init__(self, flow: PlanNodes, bound: Binding) -> None:
        super().__init__(flow, bound.row_schema, (), bound.unique)
        self.unique = self.positive = bound.unique
        self.grows = True
        self.keeps = bound.has_stored_rows  # type: ignore[misc]
        self.bound, self.time_type = bound, bound.time_type
        if bound.spec.expiry is not None and bound.spec.expiry.forgets:
            self.forgetting = frozenset([bound.name])

    @property
    def name(self) -> str:
        """The name of the input. A step passes rows under this name."""
        return self.bound.name

    @property
    def spec(self) -> Spec:
        """The spec: an `Upsert`, or `Differences`."""
        return self.bound.spec

    def find_lookup_columns(self) -> tuple[str, ...] | None:
        """Return the key of an input of upserts; see `Collection.find_lookup_columns`."""
        return tuple(self.bound.key_schema.names) if self.unique else None

    def unique_by(self) -> list[tuple[str, ...]]:
        """Return the key of an input of upserts; see `Collection.unique_by`."""
        key = self.find_lookup_columns()
        return [] if key is None else [key]

    def find_never_null_columns(self) -> frozenset[str]:
        """Return the never-null columns, including the key columns that refuse nulls."""
        return super().find_never_null_columns() | {field.name for field in self.bound.key_schema if not field.nullable}

    def to_json(self, formulas: Any) -> dict[str, Any]:
        """Write the name.

        The columns and the spec can change while a state exists, so the plan stores them elsewhere.
        """
        return {"name": self.name}
