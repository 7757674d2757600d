"""Keep the rows that satisfy a condition.

>>> import pyarrow.compute as pc
>>> from ddflow.operators.updates import narrow_ints, ints
>>> updates = Updates(pa.table({"v": [1, 2]}), narrow_ints(0, 1), ints(1, 1), ints(3, 4))
>>> select_passing_rows(updates, lambda batch: pc.greater(batch["v"], 1), updates.rows.schema).rows.to_pydict()
{'v': [2]}
"""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, Self

import pyarrow as pa

from ddflow.columns.hashing import unpack_booleans
from ddflow.columns.schema import column_arrays
from ddflow.expressions import compile as compile_expression
from ddflow.operators.base import (
    OperatorContext,
    RowPreservingOperator,
    RunningOperator,
    StatelessRunningOperator,
    register_operator,
)
from ddflow.operators.updates import Updates
from ddflow.plan.collection import Collection, Columns
from ddflow.plan.text.formulas import JsonRecord, find_formula_objections, write_formula
from ddflow.plan.verbs.rows import Formula


@register_operator
class Filter(RowPreservingOperator):
    """The operator of `Collection.filter`.  ``predicate``: the compiled condition."""

    verb = "filter"

    def __init__(self, of: Collection, predicate: Formula) -> None:
        self.predicate = compile_expression(predicate, of.schema, boolean=True, what="filter")
        read = self.predicate.columns  # if a row fails, its other columns are not gathered
        # A predicate without columns still needs the number of rows.
        names = of.schema.names if read is None else list(read) or of.schema.names[:1]
        self.read = pa.schema([of.schema.field(name) for name in names])
        super().__init__(of.flow, of.schema, [of], of.consolidated)
        self.equal, self.fallible = of.equal, tuple(self.read.names) if self.predicate.fallible else ()

    def to_json(self, formulas: Any) -> dict[str, Any]:
        """Write the condition as JSON."""
        return {"predicate": formulas.describe_formula(self.predicate)}

    @classmethod
    def from_json(cls, inputs: Sequence[Collection], record: JsonRecord) -> Collection:
        """See `Collection.from_json`."""
        return inputs[0].filter(record.read_record("predicate").read_text("sql"))

    def rebuild_with_inputs(self, inputs: Sequence[Collection]) -> Collection:
        """See `Collection.rebuild_with_inputs`."""
        return inputs[0].filter(self.predicate.given)

    def find_widening_obstacles(self, narrow: Self) -> Iterator[str]:
        """Require that the condition has the same meaning on the wider types.

        See `Collection.find_widening_obstacles`.
        """
        return find_formula_objections(self.predicate, narrow.inputs[0].schema, self.inputs[0].schema)

    @classmethod
    def format_arguments(cls, record: JsonRecord, inputs: Sequence[str]) -> str:
        """Render the condition as text."""
        return write_formula(record.read_record("predicate"))

    def find_read_columns(self, wanted: set[str]) -> list[set[str]]:
        """Return the wanted columns and the columns of the condition."""
        return [wanted | set(self.read.names)]

    def unique_by(self) -> list[Columns]:
        """Return the keys of the input; see `Collection.unique_by`."""
        return self.inputs[0].unique_by()

    def open(self, context: OperatorContext) -> RunningOperator:
        """See `Operator.open`."""
        return StatelessRunningOperator(partial(select_passing_rows, predicate=self.predicate, read=self.read))


def select_passing_rows(updates: Updates, predicate: Callable[[pa.RecordBatch], pa.Array], read: pa.Schema) -> Updates:
    """Select the updates whose rows satisfy the predicate.

    A row for which the predicate is null is not selected. ``read``: the columns that the predicate reads. O(n).
    """
    if not updates.diffs.size:
        return updates
    shown = pa.RecordBatch.from_arrays(column_arrays(updates.rows, read.names), schema=read)
    places = unpack_booleans(predicate(shown)).nonzero()[0]  # `flatnonzero` makes seven calls
    return updates if places.size == updates.diffs.size else updates.take(places)
