"""Run a compiled expression on a batch: check the batch, load its columns, compute, and report failures.

`SqlRunner` runs SQL, `ArrowRunner` a pyarrow expression and `FunctionRunner` a user's function.

Guarantees: the result is an error, or one array of the promised type with one value for each row. The error of a failed
Arrow kernel does not tell which row failed. So `SqlRunner` searches for the first failing row.

>>> import pyarrow as pa
>>> batch = pa.record_batch({"a": [1, 2]})
>>> FunctionRunner(lambda batch: [1, 2], batch.schema, "projection of 'b'")
Traceback (most recent call last):
    ...
ddflow.errors.ExpressionError: cannot compute projection of 'b': the function returned a list for no rows; ...
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ddflow.aside import run_on_new_stack
from ddflow.columns.schema import empty_table, to_array, to_batch
from ddflow.errors import ErrorText, ExpressionError, Row, SchemaMismatch, shorten
from ddflow.expressions.casts import cast_to_working_type
from ddflow.expressions.node import FAILURES, Frame, Node, TextTooLarge, broadcast
from ddflow.expressions.types import sql_name, working_type

_SHOWN = 40  # characters of a value in a message
_SHALLOW = 8  # levels of an expression that run on the caller's stack
_LESS = "pass smaller batches, or produce less text per row"


class SqlRunner:
    """A runner of a node that was compiled from SQL.

    ``fields``: the columns that the expression reads. ``bare``: whether the expression is only a column name.
    ``nested``: the nested levels of the expression; a deep one runs on a separate stack.
    """

    def __init__(self, node: Node, fields: Sequence[pa.Field], bare: bool, nested: int, asked: str) -> None:
        self._node, self._fields, self._bare, self._asked = node, tuple(fields), bare, asked
        self._schema, self._works = pa.schema(fields), all(working_type(field.type) == field.type for field in fields)
        self._deep, self.fallible = nested > _SHALLOW, node.fallible
        self.type: pa.DataType = fields[0].type if bare else node.type

    def __call__(self, batch: pa.RecordBatch) -> pa.Array:
        if batch.schema.equals(self._schema):
            arrays = batch.columns
        else:
            arrays = [self._find_column(batch, field) for field in self._fields]
        if self._bare:
            return arrays[0]
        if batch.num_rows == 0:
            return pa.array([], self.type)
        try:
            frame = Frame(tuple(arrays if self._works else map(cast_to_working_type, arrays)), batch.num_rows)
        except FAILURES as error:
            raise ExpressionError(self._asked, str(error), "pass smaller batches") from error
        return run_on_new_stack(partial(self._run_node, frame)) if self._deep else self._run_node(frame)

    def _run_node(self, frame: Frame) -> pa.Array:
        try:
            value = self._node.evaluate(frame)
            return broadcast(value, frame.rows) if isinstance(value, pa.Scalar) else value
        except pa.ArrowCapacityError as error:
            found = f"its results for {frame.rows:,} rows do not fit a column of a batch ({error})"
            raise ExpressionError(self._asked, found, _LESS) from error
        except FAILURES as error:
            if isinstance(error, TextTooLarge):
                known = error.row is not None and error.rows == frame.rows  # else it counts selected rows only
                place = self._describe_row(frame, error.row) if known and error.row is not None else ErrorText()
                raise ExpressionError(self._asked, str(error) + place, _LESS) from error
            raise self._locate_failure(frame, error) from error

    def _find_column(self, batch: pa.RecordBatch, field: pa.Field) -> pa.Array:
        index = batch.schema.get_field_index(field.name)
        if index < 0 or batch.column(index).type != field.type:
            found = "is missing or duplicate" if index < 0 else f"is {batch.column(index).type}, but was {field.type}"
            raise SchemaMismatch(
                self._asked,
                f"the batch's column {field.name!r} {found}",
                "pass batches of the schema it was compiled for",
                column=field.name,
            )
        return batch.column(index)

    def _locate_failure(self, frame: Frame, error: Exception) -> ExpressionError:
        """Find the first failing row by bisection and return its error.

        The search runs the expression log2(rows) times, which costs O(rows) in total.
        """
        low, high = 0, frame.rows
        while high - low > 1:
            middle = (low + high) // 2
            try:
                self._node.evaluate(frame.slice(low, middle - low))
                low = middle
            except FAILURES:
                high = middle
        try:
            self._node.evaluate(frame.slice(low, 1))
            place = ErrorText()
        except FAILURES as first:
            error, place = first, self._describe_row(frame, low)
        remedy = "filter such rows out first, or guard with try_cast, nullif or CASE"
        found = next((each for each in error.args if isinstance(each, ErrorText)), str(error))
        return ExpressionError(self._asked, found + place, remedy)

    def _describe_row(self, frame: Frame, row: int) -> ErrorText:
        shown = ", ".join(
            f"{field.name} = {_format_value(column, row)[:_SHOWN]}"
            for field, column in zip(self._fields, frame.columns, strict=True)
        )
        return ErrorText(" (", Row(row, after=": " if shown else "", inner=True), f"{shown})")


def _format_value(column: pa.Array, row: int) -> str:
    try:
        return str(column[row])
    except (OverflowError, ValueError):  # Python's calendar ends with the year 9999
        return " ".join(str(column.slice(row, 1)).split())


class ArrowRunner:
    """A runner of a pyarrow expression. The expression runs in Acero with one thread, so that rows keep their order."""

    def __init__(self, expression: pc.Expression, schema: pa.Schema, what: str) -> None:
        self._expression, shown = expression, shorten(str(expression))
        self._asked = f"cannot compute {what} {shown}"
        try:
            self.type: pa.DataType = self._compute(to_batch(empty_table(schema))).type
        except (pa.ArrowException, KeyError) as error:
            names = ", ".join(map(repr, schema.names))
            found = shorten(str(error).partition("\n")[0])
            raise ExpressionError(f"cannot compile {what} {shown}", found, f"the columns are {names}") from error

    def __call__(self, batch: pa.RecordBatch) -> pa.Array:
        try:
            result = self._compute(batch)
        except pa.ArrowException as error:
            raise ExpressionError(
                self._asked, shorten(str(error)), "change the expression, or pass batches of its schema"
            ) from error
        if result.type != self.type:
            raise ExpressionError(
                self._asked,
                f"its result is {result.type}, but was {self.type}",
                "pass batches of the schema it was compiled for",
            )
        return result

    def _compute(self, batch: pa.RecordBatch) -> pa.Array:
        from pyarrow import acero  # imports pyarrow.dataset, which takes long and which SQL does not need

        source = acero.Declaration("table_source", acero.TableSourceNodeOptions(pa.Table.from_batches([batch])))
        project = acero.Declaration("project", acero.ProjectNodeOptions([self._expression], ["result"]))
        return to_array(acero.Declaration.from_sequence([source, project]).to_table(use_threads=False).column(0))


class FunctionRunner:
    """A runner of a user's function. A call with an empty batch determines the type of the results."""

    def __init__(self, function: Callable[[pa.RecordBatch], Any], schema: pa.Schema, what: str) -> None:
        self._function, self._what = function, what
        try:
            result = function(to_batch(empty_table(schema)))
        except Exception as error:
            raise ExpressionError(
                f"cannot compile {what}",
                f"the function raised {type(error).__name__} for a batch without rows: {error}",
                "make it accept a batch without rows: ddflow calls it so to find the result type",
            ) from error
        self.type: pa.DataType = self._check_result(result, 0).type

    def __call__(self, batch: pa.RecordBatch) -> pa.Array:
        result = self._check_result(self._function(batch), batch.num_rows)
        if result.type != self.type:
            raise ExpressionError(
                f"cannot compute {self._what}",
                f"the function returned {sql_name(result.type)}, but {sql_name(self.type)} for a batch without rows",
                "make it return one type, with a cast if necessary",
            )
        return result

    def _check_result(self, result: Any, rows: int) -> pa.Array:
        if isinstance(result, np.ndarray) and result.ndim == 1:
            result = pa.array(result)
        elif isinstance(result, pa.ChunkedArray):
            result = to_array(result)
        elif isinstance(result, pa.Scalar):
            result = broadcast(result, rows)
        if isinstance(result, pa.Array) and len(result) == rows:
            return result
        gave = f"{len(result)} values" if isinstance(result, pa.Array) else f"a {type(result).__name__}"
        raise ExpressionError(
            f"cannot compute {self._what}",
            f"the function returned {gave} for {rows or 'no'} rows",
            "return an Arrow array (or a numpy array) with one value per row",
        )
