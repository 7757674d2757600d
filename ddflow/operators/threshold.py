"""Replace each row's multiplicity n with ``f(n)``.

If the multiplicity of a row changes from a to b, the operator emits the row with diff ``f(b) - f(a)``.
An arrangement stores the multiplicity of each row, as for a count that is grouped by all columns. ``f(0)`` must be 0,
so that absent rows stay absent.

>>> import pyarrow as pa
>>> from ddflow.operators.updates import narrow_ints, ints
>>> import pyarrow.compute as pc
>>> schema = pa.schema({"v": pa.string()})
>>> twice = RunningThreshold(schema, lambda batch: pc.min_element_wise(batch["n"], 2), Secret(1, 2))
>>> out, _ = twice.compute([Updates(pa.table({"v": ["a", "b"]}), narrow_ints(0, 0), ints(1, 3), ints(5))], 5)
>>> out.to_table(out.rows.schema, None).to_pylist()
[{'v': 'a', '_diff': 1}, {'v': 'b', '_diff': 2}]
"""

from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.types as pat

from ddflow.columns.hashing import Ints, Secret
from ddflow.columns.names import TIMES, check_column_names
from ddflow.columns.schema import column_arrays
from ddflow.errors import ExpressionError
from ddflow.expressions import Expression, compile as compile_expression
from ddflow.operators.base import OperatorContext, RowPreservingOperator, RunningOperator, register_operator
from ddflow.operators.count import RunningCount
from ddflow.operators.updates import Updates, build_count_overflow, consolidate
from ddflow.plan.collection import Collection, Columns, refuse_forgetting_inputs
from ddflow.plan.text.formulas import JsonRecord, write_formula
from ddflow.plan.verbs.rows import POSITIVE, Formula
from ddflow.trace.batch import ArrangementChange

GIVEN: Final = pa.schema([pa.field("n", pa.int64(), nullable=False)])
"""The schema of the table that the function reads."""
LEAST: Final = np.iinfo(np.int64).min


@register_operator
class Threshold(RowPreservingOperator):
    """The operator of `Collection.threshold`. ``formula``: the function, compiled over `GIVEN`."""

    verb, keeps = "threshold", True

    def __init__(self, of: Collection, formula: Formula) -> None:
        self.formula = _compile_threshold(formula)
        refuse_forgetting_inputs(self.verb, "a row that comes back would be counted twice", of)
        check_column_names([*of.schema.names, TIMES], self.verb)
        super().__init__(of.flow, of.schema, [of], True)
        self.unique = False
        self.positive = self.formula.text == POSITIVE

    def to_json(self, formulas: Any) -> dict[str, Any]:
        """Write the function as JSON."""
        return {"formula": formulas.describe_formula(self.formula)}

    @classmethod
    def from_json(cls, inputs: Sequence[Collection], record: JsonRecord) -> Collection:
        """See `Collection.from_json`."""
        return inputs[0].threshold(record.read_record("formula").read_text("sql"))

    def rebuild_with_inputs(self, inputs: Sequence[Collection]) -> Collection:
        """See `Collection.rebuild_with_inputs`."""
        return inputs[0].threshold(self.formula.given)

    @classmethod
    def format_arguments(cls, record: JsonRecord, inputs: Sequence[str]) -> str:
        """Render the function as text."""
        return write_formula(record.read_record("formula"))

    def exchange(self) -> list[Columns | None]:
        """Return all columns, so that equal rows go to the same partition."""
        return [tuple(self.schema.names)]

    def open(self, context: OperatorContext) -> RunningOperator:
        """See `Operator.open`."""
        return RunningThreshold(self.schema, self.formula, context.secret)


@register_operator
class Distinct(Threshold):
    """The operator of `Collection.distinct`."""

    verb = "distinct"

    def __init__(self, of: Collection) -> None:
        super().__init__(of, _mark_positive_counts)
        self.unique = self.positive = True

    def unique_by(self) -> list[Columns]:
        """Return the keys of the input, or all columns if the input has no keys; see `Collection.unique_by`."""
        return super().unique_by() or self.inputs[0].unique_by() or [tuple(self.schema.names)]

    def to_json(self, formulas: Any) -> dict[str, Any]:
        """Write no options, because the function is always the same."""
        return {}

    @classmethod
    def from_json(cls, inputs: Sequence[Collection], record: JsonRecord) -> Collection:
        """See `Collection.from_json`."""
        return inputs[0].distinct()

    def rebuild_with_inputs(self, inputs: Sequence[Collection]) -> Collection:
        """See `Collection.rebuild_with_inputs`."""
        return inputs[0].distinct()

    @classmethod
    def format_arguments(cls, record: JsonRecord, inputs: Sequence[str]) -> str:
        """Render no arguments."""
        return ""


def _mark_positive_counts(batch: pa.RecordBatch) -> Ints:
    """Return 1 for positive multiplicities, and 0 for others."""
    once: Ints = np.clip(batch.column("n").to_numpy(), 0, 1)
    return once


def _compile_threshold(formula: Formula) -> Expression:
    """Compile the function. Raises `ExpressionError` if a result is not an integer or ``f(0)`` is not 0."""
    made = compile_expression(formula, GIVEN, what="threshold")
    if not pat.is_integer(made.type):
        raise ExpressionError(
            "cannot compile threshold", f"its result is {made.type}", "return an integer, as in 'least(n, 3)'"
        )
    nothing = made(pa.RecordBatch.from_arrays([pa.array([0], pa.int64())], schema=GIVEN))[0].as_py()
    if nothing != 0:
        found = f"for n = 0, an absent row, it returns {nothing}"
        raise ExpressionError("cannot compile threshold", found, "return 0 there, as in 'case when n = 0 then 0 ...'")
    return made


class RunningThreshold(RunningCount):
    """A running threshold. State: the multiplicity of each row, positive or negative.

    ``schema``: the schema of the rows. ``formula``: a function over `GIVEN`.
    """

    def __init__(self, schema: pa.Schema, formula: Callable[[pa.RecordBatch], Any], secret: Secret) -> None:
        super().__init__(schema, TIMES, secret)
        self.formula, self.tracked = formula, None

    def compute(self, inputs: Sequence[Updates], since: int) -> tuple[Updates, ArrangementChange]:
        """See `RunningOperator.compute`. O(updates). Raises `CountOverflow`, and any error that the function raises."""
        counted, change = super().compute(inputs, since)
        times = self._apply_threshold(counted.rows)
        if (beyond := np.flatnonzero(times == LEAST)).size:  # the least int64 has no opposite in int64
            raise build_count_overflow(counted.rows, int(beyond[0]))
        there = counted._replace(diffs=counted.diffs * times).take(np.flatnonzero(times))
        return consolidate(there._replace(rows=there.rows.select(self.groups.names)), self.secret), change

    def to_output_rows(self, arranged: pa.Table) -> Updates:
        """Return each row with the result of the function; see `ReadableNode.to_output_rows`."""
        times = self._apply_threshold(arranged)
        return super().to_output_rows(arranged)._replace(diffs=times).take(np.flatnonzero(times))

    def _apply_threshold(self, rows: pa.Table) -> Ints:
        """Apply the function to the multiplicities of ``rows``."""
        (times,) = column_arrays(rows, [TIMES])
        made = self.formula(pa.RecordBatch.from_arrays([times], schema=GIVEN))
        if made.null_count:
            n = times[int(np.flatnonzero(made.is_null())[0])]
            remedy = "return a number for every n, for example with coalesce"
            raise ExpressionError("threshold", f"for n = {n} it is null", remedy)
        try:
            return np.asarray(made.cast(pa.int64()))
        except pa.ArrowInvalid as error:
            raise ExpressionError("threshold", f"its result overflows int64 ({error})", "return an int64") from None
