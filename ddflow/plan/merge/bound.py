"""Bind a merge to a schema: find the strategy of each column, and the order that decides which event counts.

Invariant: each column of the row has one role: key, order, derived, or merged. In the row, an order column contains the
current order value of its group. A merged column is in one group, and its strategy supports its type. Group 0 is the
row itself. With ``versions="cell"`` every merged column is a separate group. This file refuses all invalid specs before
any data arrives.

The row's types can differ from the events' types. For example, ``dd.collect`` makes lists. Some strategies distinguish
a missing column from a null. For a column with such a strategy, each event has a flag that tells whether the event's
batch had the column.
"""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ddflow.columns.hashing import Flags, unpack_booleans, unpack_validity
from ddflow.columns.names import did_you_mean
from ddflow.columns.schema import is_flat_type
from ddflow.errors import ErrorText, Option, SpecError
from ddflow.expressions import Expression, compile as compile_expression
from ddflow.plan.inputs.spec import Tombstone, Upsert
from ddflow.plan.merge.machines import BoundMachine
from ddflow.plan.merge.merge import Function, Merge
from ddflow.plan.merge.strategy import Strategy, first, last, last_non_null
from ddflow.plan.merge.user_function import build_record_type, check_scalar_function, find_function_name

GIVEN = "_given_"
"""Prefix of the names of flag columns. A flag column tells whether the event's batch had a column."""


class MergedColumn(NamedTuple):
    """A merged column."""

    name: str
    strategy: Strategy
    field: pa.Field
    """The column's field in the row."""
    group: int


class ColumnGroup(NamedTuple):
    """A group of columns. One order decides which events count for all columns of the group."""

    name: str
    order: tuple[pa.Field, ...]
    compared: tuple[pa.Field, ...]
    """The columns that ``tie="greatest"`` compares."""


@dataclass(frozen=True)
class BoundMerge:
    """A merge, bound to a schema.

    ``function``: merges whole rows instead of strategies.  ``given``: columns with a flag that says if the batch had
    them.  ``cells``: whether every merged column is a separate group.
    """

    groups: tuple[ColumnGroup, ...]
    columns: tuple[MergedColumn, ...]
    derived: tuple[tuple[pa.Field, Expression], ...]
    function: Function | None
    scalar: bool
    given: tuple[str, ...]
    cells: bool
    machine: BoundMachine | None = None
    """The machine that computes the values of keys, if a machine replaces the strategies and functions."""

    def add_event_columns(
        self, events: pa.RecordBatch, names: list[str], absent: pa.Array | None = None
    ) -> pa.RecordBatch:
        """Add one flag column to the events for each column in ``given``.

        The flag tells whether the batch had the column.

        ``names``: the columns of the batch.  ``absent``: lists of missing columns, one for each event.  O(n).
        """
        lacking = [] if absent is None else absent.flatten().to_pylist()
        rows = np.asarray(pc.list_parent_indices(absent)) if lacking else np.empty(0, np.int64)
        for name in self.given:
            had = np.full(events.num_rows, name in names)
            if name in lacking:
                had[rows[np.array([each == name for each in lacking])]] = False
            here = pa.array(had)
            events = events.append_column(pa.field(GIVEN + name, pa.bool_(), nullable=False), here)
        return events

    def mark_events_with_column(self, events: pa.RecordBatch, name: str) -> Flags:
        """Mark the events whose batch had a column: uint8[n]. For a column without a flag, the array has size 0.

        O(n).
        """
        return unpack_booleans(events.column(GIVEN + name)) if name in self.given else np.empty(0, np.uint8)

    def mark_misordered_events(self, events: pa.RecordBatch) -> Flags:
        """Mark the events that have no order, or orders for more than one group: uint8[n]. O(n) a group."""
        count = np.zeros(events.num_rows, np.uint8)
        for group in self.groups[1:]:
            any_here = np.zeros(events.num_rows, np.uint8)
            for field in group.order:
                present = unpack_validity(events.column(field.name))
                any_here |= present if present.size else np.uint8(1)
            count += any_here
        out: Flags = (count != 1).astype(np.uint8)
        return out


def build_event_schema(schema: pa.Schema, merging: BoundMerge | None) -> pa.Schema:
    """Return the columns of kept events: the input's columns, then the flags that tell which columns a batch had."""
    for name in merging.given if merging is not None else ():
        schema = schema.append(pa.field(GIVEN + name, pa.bool_(), nullable=False))
    return schema


def build_merged_row_schema(schema: pa.Schema, spec: Upsert, row: pa.Schema) -> pa.Schema:
    """Return the row's columns with their types after merging. For example, ``dd.collect`` makes a list type.

    O(columns).
    """
    merge = spec.merge if isinstance(spec.merge, Merge) else Merge()
    named = {*spec.key, *spec.order_by, *(name for of, _ in spec.grouped for name in of), *(n for n, _ in spec.derived)}
    out = []
    for field in row:
        strategy = merge.strategies.get(field.name, merge.default)
        if strategy is not None and strategy.name == "collect" and field.name not in named:
            field = pa.field(field.name, pa.list_(schema.field(field.name).type))
        out.append(field)
    return pa.schema(out)


def bind_merge(name: str, schema: pa.Schema, spec: Upsert, row: pa.Schema) -> BoundMerge | None:
    """Plan how to fold each column. Return None if events are full rows. ``row``: the row's columns. O(columns).

    Raises `SpecError` with the name of the column, and `ExpressionError` for an invalid formula.

    >>> import pyarrow as pa
    >>> from ddflow.plan.inputs.bind import bind_upserts
    >>> from ddflow.plan.merge.merge import Merge
    >>> from ddflow.plan.merge.strategy import collect, sum
    >>> from ddflow.plan.inputs.spec import Upsert
    >>> schema = pa.schema({"id": pa.int64(), "at": pa.int64(), "n": pa.int64(), "tag": pa.string()})
    >>> bound = bind_upserts("visits", schema, Upsert("id", order_by="at", merge=Merge({"n": sum(), "tag": collect()})))
    >>> [(column.name, str(column.strategy)) for column in bound.merging.columns], bound.row_schema.field("tag").type
    ([('n', 'dd.sum()'), ('tag', 'dd.collect()')], ListType(list<item: string>))
    """
    if not spec.merges:
        return None
    merge = spec.merge if isinstance(spec.merge, Merge) else Merge(default=first() if spec.merge else None)
    derived = [column for column, _ in spec.derived]
    _check_column_names(name, schema, spec, merge, row, derived)
    of = {column: number for number, (_, columns) in enumerate(spec.grouped, 1) for column in columns}
    orders = {*spec.order_by, *(column for order, _ in spec.grouped for column in order)}
    columns: list[MergedColumn] = []
    cells = spec.versions == "cell"
    for field in row:
        if field.name in spec.key or field.name in orders or field.name in derived:
            continue
        default = merge.default or (last() if field.name in of else last_non_null())
        strategy = merge.strategies.get(field.name, default)
        group = len(columns) + 1 if cells else of.get(field.name, 0)
        columns.append(MergedColumn(field.name, strategy, field, group))
        if merge.function is None:
            _check_strategy_type(name, schema.field(field.name), strategy)
        if (spec.groups or cells) and not field.nullable:
            raise SpecError(
                f"{'groups=' if spec.groups else 'versions=cell'} of {name!r}",
                f"{field.name!r} is declared not null, but its cell may have no value",
                "declare the column nullable",
            )
    if merge.function is not None and merge.scalar:
        asked = f"the merger {find_function_name(merge.function)} of {name!r}"
        record = np.zeros(
            1, build_record_type(pa.schema([field for field in row if field.name not in derived]), asked)
        )[0]
        check_scalar_function(merge.function, asked, {"held": record, "given": record, "out": record})
    given = tuple(column.name for column in columns if merge.function is None and column.strategy.name == "last")
    return BoundMerge(
        _build_groups(schema, spec, columns, cells),
        tuple(columns),
        _compile_derived_columns(name, spec, row),
        merge.function,
        merge.scalar,
        given,
        cells,
    )


def _build_groups(schema: pa.Schema, spec: Upsert, columns: list[MergedColumn], cells: bool) -> tuple[ColumnGroup, ...]:
    def tie_columns(number: int) -> tuple[pa.Field, ...]:
        if spec.tie != "greatest" or cells:
            return ()
        return tuple(schema.field(c.name) for c in columns if c.group == number and spec.counts(c.name))

    order = tuple(schema.field(column) for column in spec.order_by)
    row = ColumnGroup("", order, tie_columns(0))
    if cells:
        return row, *(ColumnGroup(column.name, order, ()) for column in columns)
    return row, *(
        ColumnGroup(" ".join(of), tuple(map(schema.field, of)), tie_columns(number))
        for number, (of, _) in enumerate(spec.grouped, 1)
    )


def _compile_derived_columns(name: str, spec: Upsert, row: pa.Schema) -> tuple[tuple[pa.Field, Expression], ...]:
    out: list[tuple[pa.Field, Expression]] = []
    for i, (column, text) in enumerate(spec.derived):
        what = f"derive of {column!r} of {name!r}"
        expression = compile_expression(text, row, what=what)
        later = {other for other, _ in spec.derived[i:]}
        if named := sorted(later & set(expression.columns or ())):
            itself = column in named
            raise SpecError(
                what,
                "it reads itself" if itself else f"it reads {named}, which are derived after it",
                "remove the column from its formula" if itself else "derive these columns first",
            )
        out.append((row.field(column), expression))
        try:
            pa.nulls(0, expression.type).cast(row.field(column).type)
        except (pa.ArrowNotImplementedError, pa.ArrowInvalid):
            raise SpecError(
                what,
                f"it returns {expression.type}, but the column is {row.field(column).type}",
                "declare the column with that type, or cast in the formula",
            ) from None
    return tuple(out)


def _check_column_names(
    name: str, schema: pa.Schema, spec: Upsert, merge: Merge, row: pa.Schema, derived: list[str]
) -> None:
    tombstone = spec.delete.column if isinstance(spec.delete, Tombstone) else None
    grouped = [("groups", column) for of, columns in spec.grouped for column in (*of, *columns)]
    for option, column in (*(("merge", c) for c in merge.strategies), *(("derive", c) for c in derived), *grouped):
        if schema.get_field_index(column) < 0:
            raise SpecError(
                Option(option) + f" of {name!r}",
                f"there is no column {column!r}",
                did_you_mean(column, schema.names),
                column=column,
            )
        if column == tombstone:
            raise SpecError(
                Option(option) + f" of {name!r}", f"{column!r} is the column that deletes", "name another column"
            )
        order = option == "groups" and any(column in of for of, _ in spec.grouped)
        if column not in row.names and not order:
            raise SpecError(
                Option(option) + f" of {name!r}",
                f"{column!r} is not in the row",
                f"the columns of the row are {row.names}",
            )
    for of, _ in spec.grouped:
        for column in of:
            if not is_flat_type(schema.field(column).type):
                found = f"{column!r} is {schema.field(column).type}, which has no order"
                raise SpecError(
                    ErrorText(Option("groups"), f" of {name!r}"), found, "use numbers, text, binary, dates, decimals"
                )
    for column in schema.names:
        if column.startswith((GIVEN, "_order_", "_tie_")):
            found = f"there is a column {column!r}, but ddflow uses that name for its own columns"
            raise SpecError(ErrorText(Option("merge"), f" of {name!r}"), found, "rename that column in the input")


def _check_strategy_type(name: str, field: pa.Field, strategy: Strategy) -> None:
    if strategy.supports_type(field.type):
        return
    detail = ""
    if strategy.name == "fields" and pa.types.is_struct(field.type):
        detail = f", which does not fit in the fields {strategy.list_unsupported_fields(field.type)}"
    raise SpecError(
        f"{strategy} of {name!r}",
        f"{field.name!r} is {field.type}{detail}",
        f"use it on {strategy.supported_types_text}",
    )
