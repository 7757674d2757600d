"""Arrange a collection by some of its columns for joins, and pass its updates on unchanged.

Requests for the same columns of a collection share one node, so the rows are stored once. The output equals the input
row for row. Multiplicities can be negative, unless the verb that requested the arrangement forbids negative
multiplicities.

>>> import ddflow as dd
>>> orders = dd.Flow().upserts("orders", {"id": int, "city": str}, dd.Upsert(key="id"))
>>> orders.arrange("city"), orders.arrange(["city"]) is orders.arrange("city")
(Arrange(id int64, city string), True)
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from ddflow.columns.names import TIMES, check_column_names, check_columns_exist, parse_column_names
from ddflow.columns.rows import row_values
from ddflow.errors import NegativeMultiplicity
from ddflow.operators.base import OperatorContext, RowPreservingOperator, RunningOperator, register_operator
from ddflow.operators.ordered_rows import RowChanges, RunningOrderedRows
from ddflow.operators.updates import Updates
from ddflow.plan.collection import Collection, Columns, refuse_forgetting_inputs
from ddflow.plan.text.formulas import JsonRecord
from ddflow.trace.batch import ArrangementChange


@register_operator
class Arrange(RowPreservingOperator):
    """The operator of `Collection.arrange`. ``by``: the columns of the arrangement.

    ``refuses``: the verb that forbids negative multiplicities, or "" if none does.
    """

    verb, keeps = "arrange", True

    def __init__(self, of: Collection, by: str | Sequence[str], refuses: str = "") -> None:
        self.by, self.refuses = parse_column_names(by, self.verb, "by"), refuses
        check_columns_exist(self.by, of.schema.names, f"arrange({list(self.by)})")
        check_column_names(self.by, self.verb)
        check_column_names([*of.schema.names, TIMES], self.verb)
        refuse_forgetting_inputs(f"arrange({list(self.by)})", "the state would keep these rows forever", of)
        super().__init__(of.flow, of.schema, [of], of.consolidated)
        self.unique, self.positive = of.unique, of.positive or bool(refuses)

    def to_json(self, formulas: Any) -> dict[str, Any]:
        """Write the columns, and the verb that forbids negative multiplicities, as JSON."""
        return {"by": list(self.by), "refuses": self.refuses}

    @classmethod
    def from_json(cls, inputs: Sequence[Collection], record: JsonRecord) -> Collection:
        """See `Collection.from_json`."""
        return inputs[0]._apply_verb(cls.verb, record.read_texts("by"), record.read_text("refuses"))

    @classmethod
    def format_arguments(cls, record: JsonRecord, inputs: Sequence[str]) -> str:
        """Render the columns as text."""
        return f"by={record.read_texts('by')}"

    def exchange(self) -> list[Columns | None]:
        """Return the columns of the arrangement."""
        return [self.by]

    def find_pushdown_columns(self, at: int) -> dict[str, str]:
        """Return all columns, because the output rows are the input rows; see `Collection.find_pushdown_columns`."""
        return {name: name for name in self.schema.names}

    def find_lookup_columns(self) -> Columns | None:
        """See `Collection.find_lookup_columns`."""
        return self.by

    def unique_by(self) -> list[Columns]:
        """Return the keys of the input; see `Collection.unique_by`."""
        return self.inputs[0].unique_by()

    def open(self, context: OperatorContext) -> RunningOperator:
        """See `Operator.open`."""
        return RunningArrange(self, context)


class RunningArrange(RunningOrderedRows):
    """A running arrange.  State: each row with its multiplicity."""

    def __init__(self, node: Arrange, context: OperatorContext) -> None:
        super().__init__(node.schema, node.by, [], context.secret)
        self.refuses = "" if node.inputs[0].positive else node.refuses

    def compute(self, inputs: Sequence[Updates], since: int) -> tuple[Updates, ArrangementChange]:
        """See `RunningOperator.compute`.  O(n log n).  Raises `CountOverflow`, `NegativeMultiplicity`."""
        folded = self.fold_updates(inputs[0], since)
        if self.refuses:
            refuse_negative_counts(folded, inputs[0], self.refuses)
        return inputs[0], folded.change


def refuse_negative_counts(folded: RowChanges, updates: Updates, asked: str) -> None:
    """Raise `NegativeMultiplicity` if a row has a negative multiplicity after all changes at a time.

    The error names the row.
    """
    below = np.flatnonzero(folded.counts < 0)
    if below.size:
        at = int(below[0])
        found = f"{row_values(updates.rows, int(folded.rows[at]))} has multiplicity {int(folded.counts[at])}"
        raise NegativeMultiplicity(asked, found, "find the input that retracts a row that it never asserted")
