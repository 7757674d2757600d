"""Provide constant rows, such as VALUES in a query, from the time of the first input event.

The first step that has events inserts the rows, with the earliest time of these events. An event counts even if its
input rejects it. Before the rows are inserted, the collection is empty. The rows are never removed. A query uses
constant rows for VALUES, and for the single row of an aggregate without groups.

The operator reads only the times of events, not their rows. On several partitions, each partition reports its
event times, and one partition holds the rows.

Limits: the rows must be distinct.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from ddflow.columns.hashing import Secret
from ddflow.columns.names import TIMES
from ddflow.columns.row_match import RowMatcher
from ddflow.expressions import compile as compile_expression
from ddflow.operators.base import Operator, OperatorContext, RunningOperator, register_operator
from ddflow.operators.count import RunningCount
from ddflow.operators.updates import Updates
from ddflow.plan.collection import Collection, Columns
from ddflow.plan.text.formulas import JsonRecord
from ddflow.trace.batch import ArrangementChange


@register_operator
class Constant(Operator):
    """An operator with constant rows.

    ``rows``: for each row, a list of SQL expressions that read no columns. All values of a column have one type.
    ``inputs``: the inputs whose first event makes the rows appear.
    """

    verb, keeps, of_events = "constant", True, True

    def __init__(self, inputs: Sequence[Collection], columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
        self.columns, self.rows = list(columns), [list(row) for row in rows]
        one = pa.record_batch({"one": [1]})
        cells = [[compile_expression(cell, one.schema, what="a value")(one) for cell in row] for row in self.rows]
        arrays = [pa.concat_arrays(column) for column in zip(*cells, strict=True)]
        self.table = pa.table(arrays, names=self.columns)
        super().__init__(inputs[0].flow, self.table.schema, inputs, True)

    def to_json(self, formulas: Any) -> dict[str, Any]:
        """Write the columns and the rows as JSON."""
        return {"columns": self.columns, "rows": [{"cells": row} for row in self.rows]}

    @classmethod
    def from_json(cls, inputs: Sequence[Collection], record: JsonRecord) -> Collection:
        """See `Collection.from_json`."""
        return cls(
            inputs, record.read_texts("columns"), [each.read_texts("cells") for each in record.read_records("rows")]
        )

    @classmethod
    def format_arguments(cls, record: JsonRecord, inputs: Sequence[str]) -> str:
        """Render the rows as text."""
        return ", ".join(f"({', '.join(each.read_texts('cells'))})" for each in record.read_records("rows"))

    def find_read_columns(self, wanted: set[str]) -> list[set[str]]:
        """Return no columns, because the operator reads only the times of events."""
        return [set[str]() for _ in self.inputs]

    def exchange(self) -> list[Columns | None]:
        """Send all events to one partition."""
        return [() for _ in self.inputs]

    def unique_by(self) -> list[Columns]:
        """Return the empty key if there is at most one row; see `Collection.unique_by`."""
        return [()] if self.table.num_rows < 2 else super().unique_by()

    def find_contributing_rows(self, wanted: pa.Table, given: Sequence[pa.Table], alike: RowMatcher) -> list[pa.Table]:
        """Return no rows, because the plan itself holds the values; see `Collection.find_contributing_rows`."""
        return [each.slice(0, 0) for each in given]

    def open(self, context: OperatorContext) -> RunningOperator:
        """See `Operator.open`."""
        return RunningConstant(self.table, context.secret)


class RunningConstant(RunningCount):
    """A running constant. ``table``: the rows. State: the rows of ``table``, after they are inserted.

    >>> from ddflow.columns.hashing import Secret
    >>> from ddflow.operators.updates import narrow_ints, ints
    >>> constant = RunningConstant(pa.table({"n": [1, 2]}), Secret(1, 2))
    >>> out, change = constant.compute([Updates(pa.table({}), narrow_ints(), ints(), ints(4, 5))], 5)
    >>> out.diffs.size
    0
    >>> out, change = constant.compute([Updates(pa.table({}), narrow_ints(1), ints(1), ints(4, 5))], 5)
    >>> constant.apply([change], upper=6, since=5)
    >>> out.to_table(constant.groups, pa.int64()).to_pylist()
    [{'n': 1, '_time': 5, '_diff': 1}, {'n': 2, '_time': 5, '_diff': 1}]
    >>> constant.compute([Updates(pa.table({}), narrow_ints(0), ints(1), ints(6))], 6)[0].diffs.size
    0
    """

    def __init__(self, table: pa.Table, secret: Secret) -> None:
        super().__init__(table.schema, TIMES, secret)
        self.table, self.tracked = table, None

    def compute(self, inputs: Sequence[Updates], since: int) -> tuple[Updates, ArrangementChange]:
        """See `RunningOperator.compute`.

        ``inputs``: one update for each time that has an event. O(rows) once, then O(1).
        """
        ranks = [each.ranks.min() for each in inputs if each.ranks.size]
        n = self.table.num_rows if ranks and not self.output_arrangement.keys else 0
        given = np.full(n, min(ranks, default=0), np.int32), np.ones(n, np.int64)
        counted, change = super().compute([Updates(self.table.slice(0, n), *given, inputs[0].times)], since)
        return counted._replace(rows=counted.rows.select(self.groups.names)), change
