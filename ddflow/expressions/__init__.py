"""Compile SQL expressions to pyarrow.compute calls over Arrow batches, with the results of Spark 4.

`compile` takes SQL text, a pyarrow expression or a Python function. SQL follows Spark's ANSI mode with the session time
zone UTC: three-valued logic, NaN, casts and decimals differ from Arrow's.

Guarantees: a compiled expression is a pure function of the row, so the division of rows into batches never changes a
value. A branch of CASE, AND or OR that a row does not take cannot fail for it.
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
    """A compiled expression: call it with a batch to get an array of ``type`` with one value per row.

    ``given``: the source. ``text``: the source if it is SQL, else None. ``columns``: the columns it reads, in order of
    first mention; None if it may read all. A call costs a few microseconds plus O(rows) for each operation. It raises
    ExpressionError with the first failing row if Spark would fail too (overflow, division by zero, text that is no
    number). It raises SchemaMismatch for a batch without a required column.
    """

    text: str | None
    columns: tuple[str, ...] | None
    type: pa.DataType
    what: str
    _run: Callable[[pa.RecordBatch], pa.Array]
    given: Source

    def __call__(self, batch: pa.RecordBatch) -> pa.Array:
        """Compute the values for ``batch``. Its columns may be in any order, and it may have more than the schema."""
        return self._run(batch)

    @property
    def fallible(self) -> bool:
        """Whether it may fail for a row; a function always may."""
        return bool(getattr(self._run, "fallible", True))

    def to_json(self) -> str:
        """Return the SQL text. Raises SpecError for functions and pyarrow expressions, which have none."""
        if self.text is None:
            raise SpecError(f"cannot write {self.what} as JSON", "it is not SQL", "give it as SQL to have a JSON form")
        return self.text

    def __repr__(self) -> str:
        return f"<{self.what}: {shorten(self.text) if self.text else 'a function'} -> {sql_name(self.type)}>"


def compile(expression: Source, schema: pa.Schema, *, boolean: bool = False, what: str = "expression") -> Expression:
    """Compile SQL text, a pyarrow expression or a function over a batch against ``schema``.

    ``boolean``: require a boolean result. ``what``: the place in messages, such as "filter of 'paid'". Raises
    ExpressionError for invalid or unsupported syntax, unknown columns, a result that is not boolean, and text beyond a
    limit of `ddflow.expressions.parse` or `ddflow.expressions.node`. O(text), on a separate stack.

    >>> import pyarrow as pa
    >>> batch = pa.record_batch({"status": ["paid", None, "paid"], "amount": [250, 900, 7]})
    >>> paid = compile("status = 'paid' and amount > 100", batch.schema, boolean=True, what="filter of 'paid'")
    >>> paid(batch).to_pylist(), paid.columns
    ([True, None, False], ('status', 'amount'))
    >>> compile("upper(city)", batch.schema)
    Traceback (most recent call last):
        ...
    ddflow.errors.ExpressionError: cannot compile expression upper(city): there is no column 'city'; columns are ...
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
        raise ExpressionError(asked, found, "give SQL, a pyarrow expression or a function over a RecordBatch")
    _check_boolean(run.type, boolean, asked)
    return Expression(None, None, run.type, what, run, expression)


def refuse_foreign_expression(expression: Any, schema: pa.Schema, boolean: bool, what: str) -> None:
    """Raise ExpressionError for an expression of another library, with SQL over its columns as the remedy."""
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
        raise ExpressionError(asked, f"its result is {sql_name(kind)}, not boolean", "compare it with something")
