"""Compile SQL expressions to pyarrow.compute calls over Arrow batches. The results equal those of Spark 4.

`compile` takes SQL text, a pyarrow expression or a Python function. SQL follows Spark's ANSI mode with the session time
zone UTC. So three-valued logic, NaN, casts and decimals do not follow the rules of Arrow.

Guarantees: a compiled expression is a pure function of the row. So a value never depends on how rows are divided into
batches. A branch of CASE, AND or OR runs only for the rows that take the branch, so other rows cannot make the branch
fail.
Limits: expressions do not aggregate, join or keep state.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pat

from ddflow.errors import ExpressionError, SpecError, shorten
from ddflow.expressions.evaluate import ArrowRunner, FunctionRunner
from ddflow.expressions.types import BOOL, sql_name

RowFunction: TypeAlias = Callable[[pa.RecordBatch], Any]
Source: TypeAlias = "str | pc.Expression | RowFunction"

__all__ = ["Expression", "RowFunction", "Source", "compile", "refuse_foreign_expression"]
_LIBRARIES: Final = {
    "polars": "an expression of Polars",
    "pyspark": "a Column of PySpark",
}


@dataclass(frozen=True, repr=False, eq=False)
class Expression:
    """A compiled expression.

    Calling the expression with a batch returns an array of ``type`` with one value for each row.
    ``given``: the source.
    ``text``: the source if it is SQL, else None.
    ``columns``: the columns that the expression reads, in order of first mention. None means that the expression can
    read all columns.
    A call costs a few microseconds plus O(rows) for each operation. A call raises ExpressionError, with the first
    failing row, if Spark fails for a row of the batch. Examples of failures are an overflow, a division by zero, or
    text that is not a number. A call raises SchemaMismatch for a batch without a required column.
    """

    text: str | None
    columns: tuple[str, ...] | None
    type: pa.DataType
    what: str
    _run: Callable[[pa.RecordBatch], pa.Array]
    given: Source

    def __call__(self, batch: pa.RecordBatch) -> pa.Array:
        """Compute the values for ``batch``.

        The columns of the batch can be in any order, and the batch can have more columns than the schema.
        """
        return self._run(batch)

    @property
    def fallible(self) -> bool:
        """Whether the expression can fail for a row. For a Python function the answer is always True."""
        return bool(getattr(self._run, "fallible", True))

    @property
    def monotone_column(self) -> str | None:
        """The only column that the expression reads, if the result never decreases while this column grows. O(text).

        None if this is not known.
        """
        from ddflow.expressions.sql import is_monotone  # its parser takes long to import

        if self.text is None or self.columns is None or len(self.columns) != 1:
            return None
        return self.columns[0] if is_monotone(self.text) else None

    def to_json(self) -> str:
        """Return the SQL text. Raises SpecError for functions and pyarrow expressions, which have no SQL text."""
        if self.text is None:
            raise SpecError(f"cannot write {self.what} as JSON", "it is not SQL", "write it as SQL to get a JSON form")
        return self.text

    def __repr__(self) -> str:
        return f"<{self.what}: {shorten(self.text) if self.text else 'a function'} -> {sql_name(self.type)}>"


def compile(expression: Source, schema: pa.Schema, *, boolean: bool = False, what: str = "expression") -> Expression:
    """Compile SQL text, a pyarrow expression or a function over a batch against ``schema``.

    ``boolean``: require a boolean result. ``what``: the name of the expression in messages, such as "filter of 'paid'".
    Raises ExpressionError for invalid or unsupported syntax, unknown columns, and a result that is not boolean. Text
    that exceeds a limit of `ddflow.expressions.parse` or `ddflow.expressions.node` raises ExpressionError. Compilation
    takes O(text) and runs on a separate stack.

    >>> import pyarrow as pa
    >>> batch = pa.record_batch({"status": ["paid", None, "paid"], "amount": [250, 900, 7]})
    >>> paid = compile("status = 'paid' and amount > 100", batch.schema, boolean=True, what="filter of 'paid'")
    >>> paid(batch).to_pylist(), paid.columns
    ([True, None, False], ('status', 'amount'))
    >>> compile("upper(city)", batch.schema)
    Traceback (most recent call last):
        ...
    ddflow.errors.ExpressionError: cannot compile expression upper(city): there is no column 'city'; the columns ...
    """
    asked = f"cannot compile {what}"
    if isinstance(expression, str):
        from ddflow.expressions.sql import compile_sql  # its parser takes long to import

        made, names = compile_sql(expression, schema, boolean, what)
        _check_boolean(made.type, boolean, f"cannot compile {what} {shorten(expression)}")
        return Expression(expression, names, made.type, what, made, expression)
    refuse_foreign_expression(expression, schema, boolean, what)
    run: ArrowRunner | FunctionRunner
    if isinstance(expression, pc.Expression):
        run = ArrowRunner(expression, schema, what)
    elif callable(expression):
        run = FunctionRunner(expression, schema, what)
    else:
        found = f"it is {type(expression).__name__}"
        raise ExpressionError(asked, found, "pass SQL, a pyarrow expression or a function over a RecordBatch")
    _check_boolean(run.type, boolean, asked)
    return Expression(None, None, run.type, what, run, expression)


def refuse_foreign_expression(expression: Any, schema: pa.Schema, boolean: bool, what: str) -> None:
    """Raise ExpressionError for an expression of another library. The error suggests SQL to write instead."""
    library = _LIBRARIES.get(type(expression).__module__.partition(".")[0])
    if library is None:
        return
    text = str(expression)
    named = [name for name in schema.names if re.search(rf"(?<!\w){re.escape(name)}(?!\w)", text)]
    name = next(iter([*named, *schema.names]), "amount")
    kind, quoted = schema.field(name).type if name in schema.names else pa.int64(), name
    if not re.fullmatch(r"[A-Za-z_]\w*", name):
        quoted = f"`{name.replace('`', '``')}`"
    value = "'x'" if pat.is_string(kind) or pat.is_large_string(kind) else "1"
    if not (pat.is_integer(kind) or pat.is_floating(kind) or pat.is_decimal(kind) or value == "'x'"):
        sql = f"{quoted} is not null"
    else:
        sql = f"{quoted} {'=' if value != '1' else '>'} {value}" if boolean else f"coalesce({quoted}, {value})"
    found = f"it is {library}: {shorten(text, 80)}"
    written = f'filter("{sql}")' if boolean else f'project({{"name": "{sql}"}})'
    raise ExpressionError(f"cannot compile {what}", found, f"write SQL: {written}")


def _check_boolean(kind: pa.DataType, boolean: bool, asked: str) -> None:
    if boolean and kind != BOOL:
        raise ExpressionError(asked, f"its result is {sql_name(kind)}, not boolean", "compare it with a value")
