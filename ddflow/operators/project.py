"""Map rows to other columns, by name or by expression.

Each output row keeps the multiplicity of its input row. If output rows become equal, later operators add their
multiplicities.

>>> import pyarrow.compute as pc
>>> from ddflow.operators.updates import narrow_ints, ints
>>> updates = Updates(pa.table({"v": [1, 2]}), narrow_ints(0, 1), ints(1, 1), ints(3, 4))
>>> made = project_rows(updates, pa.schema({"w": pa.int64()}), [lambda batch: pc.add(batch["v"], 1)])
>>> made.rows.column("w").to_pylist()
[2, 3]
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Self

import numpy as np
import pyarrow as pa

from ddflow.columns.names import DIFF, check_column_names, did_you_mean, parse_column_names
from ddflow.columns.row_match import RowMatcher
from ddflow.columns.row_views import HeldRows
from ddflow.columns.schema import column_arrays, to_batch
from ddflow.errors import ExpressionError, SpecError
from ddflow.expressions import Expression, compile as compile_expression, refuse_foreign_expression
from ddflow.operators.base import (
    Operator,
    OperatorContext,
    RunningOperator,
    StatelessRunningOperator,
    as_updates,
    register_operator,
)
from ddflow.operators.updates import Updates
from ddflow.plan.collection import Collection, Columns, WatermarkStep, rename_equal_column_sets
from ddflow.plan.text.formulas import JsonRecord, find_formula_objections, write_formula
from ddflow.plan.verbs.rest_columns import RestColumns, expand_rest_columns, read_rest_columns
from ddflow.plan.verbs.rows import Formula


@register_operator
class Project(Operator):
    """The operator of `Collection.project`.

    ``columns``: for each column of the schema, the name of an input column or a compiled expression. ``rests``: the
    input columns that are passed on without being named, see `ddflow.plan.verbs.rest_columns`.
    """

    verb = "project"

    def __init__(
        self, of: Collection, columns: str | Sequence[str] | Mapping[str, Formula], rests: Sequence[RestColumns] = ()
    ) -> None:
        self.columns: list[str | Expression] = []
        fields = []
        for each in columns if isinstance(columns, list | tuple) else [columns]:
            refuse_foreign_expression(each, of.schema, False, "project")
        names = list(columns) if isinstance(columns, Mapping) else parse_column_names(columns, "project", "columns")
        if not names and not rests:
            raise SpecError("project", "no column is named", "name at least one column; count(by=[]) counts all rows")
        check_column_names(names, "project")
        self.named, self.rests = names, tuple(rests)
        named = columns if isinstance(columns, Mapping) else dict(zip(names, names, strict=True))
        for name, formula in expand_rest_columns(of, named, rests).items():
            if isinstance(formula, str) and formula in of.schema.names:
                self.columns.append(formula)
                fields.append(of.schema.field(formula).with_name(name))
            elif isinstance(columns, Mapping):
                expression = compile_expression(formula, of.schema, what=f"column {name!r} of project")
                self.columns.append(expression)
                fields.append(pa.field(name, expression.type))
            else:
                raise SpecError(
                    "project", f"there is no column {name!r}", did_you_mean(name, of.schema.names), column=name
                )
        schema = pa.schema(fields)
        kept = {c: field.name for c, field in zip(self.columns, schema, strict=True) if isinstance(c, str)}
        super().__init__(of.flow, schema, [of], of.consolidated and of.told_by(kept))
        failing = [each for each in self.columns if not isinstance(each, str) and each.fallible]
        self.fallible = tuple(dict.fromkeys(name for each in failing for name in each.columns or of.schema.names))
        self.equal, self.grows = rename_equal_column_sets(of.equal, kept), bool(rests)

    def to_json(self, formulas: Any) -> dict[str, Any]:
        """Write the columns as JSON."""
        columns = dict(zip(self.schema.names, self.columns, strict=True))
        written = [
            {"name": name}
            | ({"column": column} if isinstance(column := columns[name], str) else formulas.describe_formula(column))
            for name in self.named
        ]
        return {"columns": written} | ({"rests": [each.to_json() for each in self.rests]} if self.rests else {})

    @classmethod
    def from_json(cls, inputs: Sequence[Collection], record: JsonRecord) -> Collection:
        """See `Collection.from_json`."""
        columns = {
            c.read_text("name"): c.read_text("column" if "column" in c else "sql")
            for c in record.read_records("columns")
        }
        return inputs[0]._apply_verb(cls.verb, columns, read_rest_columns(record))

    def rebuild_with_inputs(self, inputs: Sequence[Collection]) -> Collection:
        """See `Collection.rebuild_with_inputs`."""
        known = dict(zip(self.schema.names, self.columns, strict=True))
        columns = {name: each if isinstance(each := known[name], str) else each.given for name in self.named}
        return inputs[0]._apply_verb(self.verb, columns, self.rests)

    def find_widening_obstacles(self, narrow: Self) -> Iterator[str]:
        """Require that expressions give the same values, possibly in wider types.

        See `Collection.find_widening_obstacles`.
        """
        for column, field in zip(self.columns, self.schema, strict=True):
            if not isinstance(column, str):
                schemas = narrow.inputs[0].schema, self.inputs[0].schema
                yield from find_formula_objections(column, *schemas, narrow.schema.field(field.name).type)

    @classmethod
    def format_arguments(cls, record: JsonRecord, inputs: Sequence[str]) -> str:
        """Render the columns as text."""
        columns = {each.read_text("name"): write_formula(each) for each in record.read_records("columns")}
        plain = all(repr(name) == formula for name, formula in columns.items())
        shown = [formula if plain else f"{name!r}: {formula}" for name, formula in columns.items()]
        for rest in reversed(read_rest_columns(record)):
            shown.insert(rest.at, "*" + (f" without {[*rest.without]}" if rest.without else ""))
        return f"[{', '.join(shown)}]" if plain else f"{{{', '.join(shown)}}}"

    def find_read_columns(self, wanted: set[str]) -> list[set[str]]:
        """Return the input columns that the wanted columns depend on."""
        out = set[str]()
        for field, column in zip(self.schema, self.columns, strict=True):
            if field.name in wanted:
                read = (column,) if isinstance(column, str) else column.columns
                out |= set(self.inputs[0].schema.names if read is None else read)
        return [out]

    def map_input_columns(self, by: Columns | None) -> Columns | None:
        """See `Collection.map_input_columns`."""
        names: dict[str, str] = {}
        for field, column in zip(self.schema, self.columns, strict=True):
            if isinstance(column, str):
                names.setdefault(column, field.name)
        return tuple(names[c] for c in by) if by is not None and set(by) <= set(names) else None

    def map_watermark_columns(self, at: int) -> dict[str, tuple[str, WatermarkStep | None]]:
        """Return named columns and monotone expressions; see `Collection.map_watermark_columns`."""
        out: dict[str, tuple[str, WatermarkStep | None]] = {}
        for field, column in zip(self.schema, self.columns, strict=True):
            if isinstance(column, str):
                out[field.name] = column, None
            elif (of := column.monotone_column) is not None:
                out[field.name] = of, partial(_compute_value, column, of)
        return out

    def renames(self) -> dict[str, str] | None:
        """See `Collection.renames`."""
        if self.rests:  # otherwise a join on the input would show only the named columns
            return None
        names = {field.name: c for field, c in zip(self.schema, self.columns, strict=True) if isinstance(c, str)}
        return names if len(names) == len(self.columns) else None

    def unique_by(self) -> list[Columns]:
        """Return the keys of the input whose columns this operator keeps; see `Collection.unique_by`."""
        carried = map(self.map_input_columns, self.inputs[0].unique_by())
        return [each for each in carried if each is not None]

    def find_contributing_rows(self, wanted: pa.Table, given: Sequence[pa.Table], alike: RowMatcher) -> list[pa.Table]:
        """Return the input rows that are mapped to the wanted rows; see `Collection.find_contributing_rows`."""
        columns = [each if isinstance(each, str) else partial(_compute_or_null, each) for each in self.columns]
        made = project_rows(as_updates(given[0].drop_columns([DIFF])), self.schema, columns)
        return [given[0].take(pa.array(np.flatnonzero(alike.mark_matches(made.rows, wanted, self.schema.names))))]

    def open(self, context: OperatorContext) -> RunningOperator:
        """See `Operator.open`."""
        return RunningProject(self, context.wanted)


class RunningProject(StatelessRunningOperator):
    """A running projection. A step computes only the wanted columns; a read computes all columns.

    If no step needs an expression and the expression fails in a read, its value is null.
    """

    def __init__(self, node: Project, wanted: frozenset[str]) -> None:
        here = [i for i, field in enumerate(node.schema) if field.name in wanted]
        schema, columns = pa.schema([node.schema.field(i) for i in here]), [node.columns[i] for i in here]
        super().__init__(partial(project_rows, schema=schema, columns=columns))
        self.node, self.wanted = node, wanted

    def compute_output_rows(self, inputs: Sequence[Updates], as_of: int | None) -> Updates:
        """See `RunningOperator.compute_output_rows`."""
        columns = [
            each if isinstance(each, str) or field.name in self.wanted else partial(_compute_or_null, each)
            for each, field in zip(self.node.columns, self.node.schema, strict=True)
        ]
        return project_rows(inputs[0], self.node.schema, columns)


def _compute_value(expression: Expression, column: str, value: pa.Array) -> pa.Array:
    """Compute an expression of one column."""
    return expression(pa.record_batch([value], [column]))


def _compute_or_null(expression: Expression, batch: pa.RecordBatch) -> pa.Array:
    """Compute an expression that no step needs. If the expression fails, return nulls."""
    try:
        return expression(batch)
    except ExpressionError:
        return pa.nulls(batch.num_rows, expression.type)


def project_rows(
    updates: Updates, schema: pa.Schema, columns: Sequence[str | Callable[[pa.RecordBatch], pa.Array]]
) -> Updates:
    """Map the rows to the columns of ``schema``.

    Each column is the name of an input column, or an expression. O(n) for an expression, O(1) for a name.
    """
    names = [column for column in columns if isinstance(column, str)]
    out = column_arrays(updates.rows, names)
    if len(names) < len(columns):
        batch, known = to_batch(updates.rows), iter(out)
        out = [column(batch) if callable(column) else next(known) for column in columns]
    return Updates(HeldRows(out, schema), updates.ranks, updates.diffs, updates.times)
