"""Parse aggregate calls such as ``sum(amount)``, and declare user-defined aggregates.

Guarantees: a user-defined aggregate has a function that removes a value from the state of the aggregate. So a
retraction costs the same as an insertion.

>>> call = parse_aggregate("total", "SUM(a * b) filter (where c > 1)")
>>> call.function, call.arguments
('sum', ['CASE WHEN c > 1 THEN a * b END'])
>>> parse_aggregate("n", "median(a)")
Traceback (most recent call last):
    ...
ddflow.errors.ExpressionError: agg n='median(a)': there is no aggregate 'median'; the aggregates are array_agg, avg, ...
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any, Final, NamedTuple

import pyarrow as pa

from ddflow.columns.declared import to_arrow_type
from ddflow.errors import ExpressionError, Option, SpecError, shorten
from ddflow.plan.verbs.family import ALIKE

NAMES: Final = frozenset(
    (
        *("array_agg", "avg", "bool_and", "bool_or", "count", "first", "last", "max", "min"),
        *("stddev_pop", "stddev_samp", "sum", "var_pop", "var_samp"),
    )
)
"""Names of the built-in aggregates."""
CALLED: Final = {
    "mean": "avg",
    "variance": "var_samp",
    "std": "stddev_samp",
    "stddev": "stddev_samp",
    "every": "bool_and",
    "any": "bool_or",
    "some": "bool_or",
    "first_value": "first",
    "last_value": "last",
    "collect_list": "array_agg",
}
"""Aliases of the built-in aggregates."""


class OrderByItem(NamedTuple):
    """An item of ORDER BY."""

    text: str
    descending: bool
    nulls_first: bool


class AggregateCall(NamedTuple):
    """A parsed call of an aggregate. ``arguments``: the SQL of each argument.

    ``count(*)`` without a FILTER has no arguments.
    """

    name: str
    text: str
    function: str
    arguments: list[str]
    distinct: bool
    order: list[OrderByItem]
    ignores_nulls: bool
    where: str
    """The condition of the FILTER clause, or "" if there is no FILTER clause."""

    @property
    def is_count_star(self) -> bool:
        """Whether the call is ``count(*)``."""
        return self.function == "count" and not (self.arguments or self.ignores_nulls)

    def build_error(self, found: str, remedy: str) -> ExpressionError:
        """Build the error for an invalid call."""
        return ExpressionError(f"agg {self.name}={shorten(self.text)!r}", found, remedy)


def parse_aggregate(name: str, text: Any, columns: Iterable[str] = ()) -> AggregateCall:
    """Parse the text of an aggregate. ``columns``: the columns of the rows. O(text). Raises `ExpressionError`."""
    from sqlglot import exp  # imported here because it loads slowly

    from ddflow.expressions.node import Refusal
    from ddflow.expressions.parse import CALL_SUFFIXES, parse_expression

    empty = AggregateCall(name, str(text), "", [], False, [], False, "")
    if not isinstance(text, str):
        raise empty.build_error(f"it is {type(text).__name__}", "write SQL, as in total='sum(amount)'")
    try:
        parsed = parse_expression(text)
        parsed.check_quoted_texts(columns)
    except Refusal as refusal:
        raise empty.build_error(refusal.found, refusal.fix) from refusal
    tree, where, ignores, respects = parsed.tree, None, False, False
    while isinstance(tree, (*CALL_SUFFIXES, exp.Paren)):
        ignores, respects = ignores or isinstance(tree, exp.IgnoreNulls), respects or isinstance(tree, exp.RespectNulls)
        clause = tree.args.get("expression")  # the WHERE of a FILTER
        where, tree = where if clause is None else clause.this, tree.this
    if not isinstance(tree, exp.Anonymous):
        remedy = "write one aggregate for each column, and combine them in a project(...) after it"
        raise empty.build_error("it is not a call of an aggregate", remedy)
    function = CALLED.get(tree.name.lower(), tree.name.lower())
    if function not in NAMES:
        near = [f"did you mean {each}? " for each in get_close_matches(function, sorted(NAMES), 1, ALIKE)]
        remedy = f"{''.join(near)}the aggregates are {', '.join(sorted(NAMES))}"
        raise empty.build_error(f"there is no aggregate {tree.name!r}", remedy)
    given, order, distinct = list(tree.expressions), list[OrderByItem](), False
    if given and isinstance(given[-1], exp.Order):
        ordered = given.pop()
        given.append(ordered.this)
        order = [
            OrderByItem(_write_sql(each.this), bool(each.args.get("desc")), bool(each.args.get("nulls_first")))
            for each in ordered.expressions
        ]
    if given and given[0].key == "distinct":
        distinct, given = True, list(given[0].expressions)
    if given and isinstance(given[0], exp.IgnoreNulls | exp.RespectNulls):
        ignores, respects = isinstance(given[0], exp.IgnoreNulls), isinstance(given[0], exp.RespectNulls)
        given[0] = given[0].this
    if respects and function not in ("first", "last"):
        raise empty.build_error(f"{function} skips nulls", "omit RESPECT NULLS")
    if function in ("first", "last") and len(given) == 2 and isinstance(given[1], exp.Boolean):
        ignores = ignores or bool(given.pop().this)
    star = len(given) == 1 and isinstance(given[0], exp.Star)
    if star and (function != "count" or distinct):
        raise empty.build_error(f"{function} does not accept *", "name a column, or write count(*)")
    if len(given) != 1 and not (function == "count" and given):
        raise empty.build_error(f"{function} has {len(given)} arguments, but takes one", f"write {function}(column)")
    arguments = [] if star else [_write_sql(each) for each in given]
    condition = "" if where is None else _write_sql(where)
    if condition:
        arguments = [f"CASE WHEN {condition} THEN {each} END" for each in arguments or ["true"]]
    return AggregateCall(name, text, function, arguments, distinct, order, ignores, condition)


def _write_sql(tree: Any) -> str:
    from ddflow.expressions.parse import ExpressionDialect

    return str(tree.sql(dialect=ExpressionDialect, normalize_functions=False))


MOST: Final = 16
"""Maximum number of values in the state of a user-defined aggregate."""
TYPES: Final = (pa.int64(), pa.float64(), pa.bool_())
"""Result types of user-defined aggregates."""


@dataclass(frozen=True)
class Aggregate:
    """A user-defined aggregate for `Collection.agg`: ``agg(spread=my_aggregate("amount"))``.

    numba compiles the functions. Nulls are ignored. A value with multiplicity m is added m times. If the multiplicity m
    is negative, the value is retracted -m times. The retraction of a value can arrive before the addition of this
    value.

    Parameters
    ----------
    zero : tuple of int and float
        The state before the first value: 1 to 16 numbers.  An int is stored as an int64, a float as a double.
    add : callable
        A function of a state and a value.  It returns the state with the value, a tuple of the same types.
    retract : callable
        A function of a state and a value.  It returns the state without the value.
    result : callable
        A function of a state.  It returns a number.  If all values are null, it is not called and the result is null.
    type : {float, int, bool}
        The type of the result.  The texts "double", "int64" and "boolean" also work.

    Raises
    ------
    SpecError, NotArrow
        If an argument does not fit its description above.

    Notes
    -----
    Each addition of floats rounds, so after a retraction the state can differ slightly from the exact value. Use
    integers, or floats whose sums are exact. The plan in a state contains the names of the functions and a digest of
    their code. Opening the state with other functions raises `PlanChanged`.

    Examples
    --------
    >>> import ddflow as dd
    >>> def add(state, x):
    ...     return state[0] ^ x, state[1] + 1
    >>> def retract(state, x):
    ...     return state[0] ^ x, state[1] - 1
    >>> def result(state):
    ...     return state[0]
    >>> parity = dd.Aggregate((0, 0), add, retract, result, type=int)
    >>> flow = dd.Flow()
    >>> rows = flow.upserts("rows", {"id": int, "n": int}, dd.Upsert(key="id"))
    >>> _ = flow.output("out", rows.agg(p=parity("n"), rows="count(*)"))
    >>> with flow.open() as engine:
    ...     engine.step({"rows": {"id": [1, 2], "n": [5, 6]}}, time=0)["out"].to_pylist()
    [{'p': 3, 'rows': 2, '_time': 0, '_diff': 1}]

    >>> total = Aggregate((0,), lambda s, x: (s[0] + x,), lambda s, x: (s[0] - x,), lambda s: s[0], type=int)
    >>> total("amount * 2").sql, total.type
    ('amount * 2', DataType(int64))
    >>> Aggregate((0, "a"), None, None, None)
    Traceback (most recent call last):
        ...
    ddflow.errors.SpecError: dd.Aggregate: zero= is (0, 'a'); use a tuple of 1 to 16 integers and floats
    """

    zero: tuple[int | float, ...]
    add: Callable[..., Any]
    retract: Callable[..., Any]
    result: Callable[..., Any]
    type: Any = float

    def __post_init__(self) -> None:
        given = self.zero
        numbers = isinstance(given, tuple) and all(type(each) in (int, float) for each in given)
        if not (numbers and 1 <= len(given) <= MOST):
            found = f"zero= is {shorten(repr(given))}"
            raise SpecError("dd.Aggregate", found, f"use a tuple of 1 to {MOST} integers and floats")
        for name in ("add", "retract", "result"):
            if not callable(getattr(self, name)):
                raise SpecError(
                    "dd.Aggregate", Option(name) + f" is {shorten(repr(getattr(self, name)))}", "pass a function"
                )
        kind = to_arrow_type(self.type, "dd.Aggregate, type=")
        if kind not in TYPES:
            raise SpecError("dd.Aggregate", f"type= is {shorten(repr(kind))}", "use float, int or bool")
        object.__setattr__(self, "type", kind)

    def __call__(self, sql: str) -> AppliedAggregate:
        """Apply the aggregate to an expression, for `Collection.agg`.

        Parameters
        ----------
        sql : str
            The expression to aggregate: SQL of an integer, a float or a boolean.

        Returns
        -------
        AppliedAggregate
            An argument for `Collection.agg`, in place of SQL.
        """
        if not isinstance(sql, str):
            raise SpecError("dd.Aggregate", f"it is called with {shorten(repr(sql))}", "pass SQL, as in mine('amount')")
        return AppliedAggregate(self, sql)

    @property
    def functions(self) -> tuple[Any, Any, Any]:
        """The three functions of the aggregate: add, retract and result."""
        return self.add, self.retract, self.result


class AppliedAggregate(NamedTuple):
    """A user-defined aggregate and its expression."""

    of: Aggregate
    sql: str
