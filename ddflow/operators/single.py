"""Check that a scalar subquery has at most one row for each key, and drop its count column.

If a row's count exceeds 1 after all changes at a time, the step fails, as it does if an expression fails.
Queries apply this operator after the join with the outer rows.

>>> from ddflow.operators.updates import narrow_ints, ints
>>> rows = pa.table({"city": ["Bern", "Basel"], "rows": [1, 2]})
>>> drop_counts(Updates(rows.slice(0, 1), narrow_ints(0), ints(1), ints(3)), "rows").rows.column_names
['city']
>>> drop_counts(Updates(rows, narrow_ints(0, 0), ints(1, 1), ints(3)), "rows", ["city"])
Traceback (most recent call last):
    ...
ddflow.errors.NotSingle: a scalar subquery: it has 2 rows where city = Basel; add a condition, or an aggregate such ...
"""

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pat

from ddflow.columns.names import check_column_name, check_columns_exist
from ddflow.columns.rows import row_values
from ddflow.columns.schema import column_arrays
from ddflow.errors import NotSingle, SpecError
from ddflow.operators.base import (
    OperatorContext,
    RowPreservingOperator,
    RunningOperator,
    StatelessRunningOperator,
    register_operator,
)
from ddflow.operators.updates import Updates
from ddflow.plan.collection import Collection, Columns, rename_equal_column_sets
from ddflow.plan.text.formulas import JsonRecord


@register_operator
class Single(RowPreservingOperator):
    """The operator of `Collection.single`. ``counts``: the count column. ``keys``: the columns that identify the row in
    error messages.
    """

    verb = "single"

    def __init__(self, of: Collection, count: str, keys: Sequence[str]) -> None:
        self.counts, self.keys = check_column_name(count, "single", "count"), list(keys)
        check_columns_exist([self.counts, *self.keys], of.schema.names, "single")
        if not pat.is_integer(of.schema.field(self.counts).type) or len(of.schema) < 2:
            found = f"{self.counts!r} is {of.schema.field(self.counts).type}, in a row of {len(of.schema)} columns"
            raise SpecError("single", found, "name an integer column of counts, and select at least one other column")
        fields = [field for field in of.schema if field.name != self.counts]
        super().__init__(of.flow, pa.schema(fields), [of], of.consolidated)
        self.fallible = (self.counts,)
        self.equal = rename_equal_column_sets(of.equal, {name: name for name in self.schema.names})

    def to_json(self, formulas: Any) -> dict[str, Any]:
        """Write the count column and the keys as JSON."""
        return {"count": self.counts, "keys": self.keys}

    @classmethod
    def from_json(cls, inputs: Sequence[Collection], record: JsonRecord) -> Collection:
        """See `Collection.from_json`."""
        return inputs[0].single(record.read_text("count"), record.read_texts("keys"))

    @classmethod
    def format_arguments(cls, record: JsonRecord, inputs: Sequence[str]) -> str:
        """Render the count column and the keys as text."""
        return f"{record.read_text('count')!r}, {record.read_texts('keys')}"

    def find_read_columns(self, wanted: set[str]) -> list[set[str]]:
        """Return the wanted columns, the count column and the keys."""
        return [{*wanted, self.counts, *self.keys}]

    def map_input_columns(self, by: Columns | None) -> Columns | None:
        """Return all columns except the count column; see `Collection.map_input_columns`."""
        return None if by is not None and self.counts in by else by

    def unique_by(self) -> list[Columns]:
        """Return the keys of the input that do not contain the count column; see `Collection.unique_by`."""
        return [each for each in self.inputs[0].unique_by() if self.counts not in each]

    def open(self, context: OperatorContext) -> RunningOperator:
        """See `Operator.open`."""
        return StatelessRunningOperator(partial(drop_counts, count=self.counts, keys=self.keys))


def drop_counts(updates: Updates, count: str, keys: Sequence[str] = ()) -> Updates:
    """Drop the count column.  O(n).  Raises `NotSingle` for the first key with several rows."""
    counts = np.asarray(pc.fill_null(column_arrays(updates.rows, [count])[0], 0))
    several = np.flatnonzero(counts > 1)
    if several.size:
        row = row_values(updates.rows, int(several[0]))
        where = ", ".join(f"{name} = {row[name]}" for name in keys)
        found = f"it has {row[count]} rows{' where ' if where else ''}{where}"
        raise NotSingle("a scalar subquery", found, "add a condition, or an aggregate such as max(...)")
    return updates._replace(rows=updates.rows.select([name for name in updates.rows.schema.names if name != count]))
