"""Make a row for each element of a list column.

A row whose list has n elements makes n rows, each with the row's multiplicity. The list column is replaced by the
element or, for a list of structs, by the fields of the struct. An empty or null list makes no rows. If elements of one
row are equal, their multiplicities are added. The operator is linear: the result for a + b is the result for a plus the
result for b. If a list changes, its unchanged elements are retracted and inserted. Consolidation of the output cancels
these updates.

>>> from ddflow.operators.updates import narrow_ints, ints
>>> updates = Updates(pa.table({"id": [7], "tag": [["a", "b"]]}), narrow_ints(0), ints(1), ints(3))
>>> unnest_rows(updates, pa.schema({"id": pa.int64(), "tag": pa.string()}), "tag").rows.to_pylist()
[{'id': 7, 'tag': 'a'}, {'id': 7, 'tag': 'b'}]
"""

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pat

from ddflow.columns.names import DIFF, check_column_names, check_columns_exist
from ddflow.columns.row_match import RowMatcher
from ddflow.columns.schema import column_arrays
from ddflow.errors import SpecError
from ddflow.operators.base import (
    Operator,
    OperatorContext,
    RunningOperator,
    StatelessRunningOperator,
    register_operator,
)
from ddflow.operators.updates import Updates, ints
from ddflow.plan.collection import Collection, Columns, WatermarkStep
from ddflow.plan.text.formulas import JsonRecord


@register_operator
class Unnest(Operator):
    """The operator of `Collection.unnest`.  ``column``: the list column.  Raises `SpecError`."""

    verb = "unnest"

    def __init__(self, of: Collection, column: str) -> None:
        check_columns_exist([column], of.schema.names, "unnest")
        kind = of.schema.field(column).type
        if not (pat.is_list(kind) or pat.is_large_list(kind)):
            raise SpecError("unnest", f"{column!r} is {kind}", "name a column of lists")
        element = kind.value_type
        made = (
            [pa.field(column, element)]
            if not pat.is_struct(element)
            else [field.with_nullable(True) for field in element]
        )
        self.column = column
        fields = [part for field in of.schema for part in (made if field.name == column else [field])]
        check_column_names([field.name for field in fields], f"unnest({column!r})")
        super().__init__(of.flow, pa.schema(fields), [of], False)

    def to_json(self, formulas: Any) -> dict[str, Any]:
        """Write the column as JSON."""
        return {"column": self.column}

    @classmethod
    def from_json(cls, inputs: Sequence[Collection], record: JsonRecord) -> Collection:
        """See `Collection.from_json`."""
        return inputs[0].unnest(record.read_text("column"))

    @classmethod
    def format_arguments(cls, record: JsonRecord, inputs: Sequence[str]) -> str:
        """Render the column as text."""
        return repr(record.read_text("column"))

    def map_input_columns(self, by: Columns | None) -> Columns | None:
        """See `Collection.map_input_columns`."""
        return by if self.column not in (by or ()) else None

    def map_watermark_columns(self, at: int) -> dict[str, tuple[str, WatermarkStep | None]]:
        """Return the other columns, and the elements of an ascending list; see `Collection.map_watermark_columns`."""
        made = [field.name for field in self.schema if field.name not in self.inputs[0].schema.names]
        elements: dict[str, tuple[str, WatermarkStep | None]] = {
            name: (self.column, partial(_find_first_element, name=name)) for name in made or [self.column]
        }
        return (super().map_watermark_columns(at) or {}) | elements

    def find_contributing_rows(self, wanted: pa.Table, given: Sequence[pa.Table], alike: RowMatcher) -> list[pa.Table]:
        """Return the rows whose lists contain the wanted elements; see `Collection.find_contributing_rows`."""
        n, place = given[0].num_rows, "_place"
        rows = given[0].drop_columns([DIFF]).append_column(place, pa.array(np.arange(n)))
        every = Updates(rows, np.zeros(n, np.int32), np.ones(n, np.int64), ints(0))
        made = unnest_rows(every, self.schema.append(pa.field(place, pa.int64())), self.column).rows
        found = np.asarray(alike.select_matches(made, wanted, self.schema.names).column(place))
        return [given[0].take(pa.array(np.unique(found)))]

    def open(self, context: OperatorContext) -> RunningOperator:
        """See `Operator.open`."""
        return StatelessRunningOperator(partial(unnest_rows, schema=self.schema, column=self.column))


def _find_first_element(lists: pa.Array, name: str) -> pa.Array:
    """Return the first element of the only list, or its field ``name``."""
    elements: pa.Array = lists.flatten().slice(0, 1)
    return elements.field(name) if pat.is_struct(elements.type) else elements


def unnest_rows(updates: Updates, schema: pa.Schema, column: str) -> Updates:
    """Make a row for each element of a list column, with the columns of ``schema``. O(elements) for each column."""
    (lists,) = column_arrays(updates.rows, [column])
    sizes = np.asarray(pc.fill_null(pc.list_value_length(lists), 0))
    parent, elements = np.repeat(np.arange(updates.diffs.size), sizes), lists.flatten()
    made = (
        dict(zip([f.name for f in elements.type], elements.flatten(), strict=True))
        if pa.types.is_struct(elements.type)
        else {column: elements}
    )
    others = updates.rows.select([name for name in schema.names if name not in made]).take(pa.array(parent))
    columns = [made[name] if name in made else others.column(name) for name in schema.names]
    return Updates(
        pa.Table.from_arrays(columns, schema=schema),
        updates.ranks.take(parent),
        updates.diffs.take(parent),
        updates.times,
    )
