"""Aggregates as they are written: their names, and the parts of a call.

Invariant: a text is one call of an aggregate, with FILTER, DISTINCT, ORDER BY and IGNORE NULLS where the syntax has
them; anything else is refused. An argument under a FILTER is null where the condition is not true, because aggregates
skip nulls; so it is not computed for those rows. What an aggregate does is not known here.

>>> call = written_aggregate("total", "SUM(a * b) filter (where c > 1)")
>>> call.function, call.arguments
('sum', ['CASE WHEN c > 1 THEN a * b END'])
>>> written_aggregate("n", "median(a)")
Traceback (most recent call last):
    ...
ddflow.errors.ExpressionError: agg n='median(a)': there is no aggregate 'median'; there are array_agg, avg, ...
"""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches
from typing import Any, Final, NamedTuple

from ddflow.errors import ExpressionError, cut
from ddflow.plan.verb_names import ALIKE

NAMES: Final = frozenset(
    (
        *("array_agg", "avg", "bool_and", "bool_or", "count", "first", "last", "max", "min"),
        *("stddev_pop", "stddev_samp", "sum", "var_pop", "var_samp"),
    )
)
"""The aggregates that there are."""
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
"""Other names of theirs."""


class OrderedBy(NamedTuple):
    """A part of ORDER BY."""

    text: str
    descending: bool
    nulls_first: bool


class AggregateCall(NamedTuple):
    """A parsed call of an aggregate.  ``arguments``: SQL; empty for ``count(*)`` without a FILTER."""

    name: str
    text: str
    function: str
    arguments: list[str]
    distinct: bool
    order: list[OrderedBy]
    ignores_nulls: bool
    where: str
    """The condition of a FILTER, "" for none."""

    @property
    def counts_rows(self) -> bool:
        """Whether it is ``count(*)``."""
        return self.function == "count" and not (self.arguments or self.ignores_nulls)

    def refused(self, found: str, remedy: str) -> ExpressionError:
        """Build the error for an invalid call."""
        return ExpressionError(f"agg {self.name}={cut(self.text)!r}", found, remedy)


def written_aggregate(name: str, text: Any, columns: Iterable[str] = ()) -> AggregateCall:
    """Parse the text of an aggregate.  ``columns``: of the aggregated rows.  O(text).  Raises `ExpressionError`."""
    from sqlglot import exp  # which takes long to import

    from ddflow.expressions.node import Refusal
    from ddflow.expressions.parse import parse

    empty = AggregateCall(name, str(text), "", [], False, [], False, "")
    if not isinstance(text, str):
        raise empty.refused(f"it is {type(text).__name__}", "write SQL, as in total='sum(amount)'")
    try:
        parsed = parse(text)
        parsed.check_quoted(columns)
    except Refusal as refusal:
        raise empty.refused(refusal.found, refusal.fix) from refusal
    tree, where, ignores, respects = parsed.tree, None, False, False
    while isinstance(tree, exp.Filter | exp.IgnoreNulls | exp.RespectNulls | exp.Paren):
        ignores, respects = ignores or isinstance(tree, exp.IgnoreNulls), respects or isinstance(tree, exp.RespectNulls)
        where = tree.expression.this if isinstance(tree, exp.Filter) else where
        tree = tree.this
    if not isinstance(tree, exp.Anonymous):
        remedy = "write one aggregate a column, and project what is made of several"
        raise empty.refused("it is no call of an aggregate", remedy)
    function = CALLED.get(tree.name.lower(), tree.name.lower())
    if function not in NAMES:
        near = [f"did you mean {each}? " for each in get_close_matches(function, sorted(NAMES), 1, ALIKE)]
        remedy = f"{''.join(near)}there are {', '.join(sorted(NAMES))}"
        raise empty.refused(f"there is no aggregate {tree.name!r}", remedy)
    given, order, distinct = list(tree.expressions), list[OrderedBy](), False
    if given and isinstance(given[-1], exp.Order):
        ordered = given.pop()
        given.append(ordered.this)
        order = [
            OrderedBy(_sql(each.this), bool(each.args.get("desc")), bool(each.args.get("nulls_first")))
            for each in ordered.expressions
        ]
    if given and isinstance(given[0], exp.Distinct):
        distinct, given = True, list(given[0].expressions)
    if given and isinstance(given[0], exp.IgnoreNulls | exp.RespectNulls):
        ignores, respects = isinstance(given[0], exp.IgnoreNulls), isinstance(given[0], exp.RespectNulls)
        given[0] = given[0].this
    if respects and function not in ("first", "last"):
        raise empty.refused(f"{function} skips nulls", "leave RESPECT NULLS out")
    if function in ("first", "last") and len(given) == 2 and isinstance(given[1], exp.Boolean):
        ignores = ignores or bool(given.pop().this)
    star = len(given) == 1 and isinstance(given[0], exp.Star)
    if star and (function != "count" or distinct):
        raise empty.refused(f"{function} takes no *", "name a column, or write count(*)")
    if len(given) != 1 and not (function == "count" and given):
        raise empty.refused(f"{function} of {len(given)} arguments", f"write {function}(column)")
    arguments = [] if star else [_sql(each) for each in given]
    condition = "" if where is None else _sql(where)
    if condition:
        arguments = [f"CASE WHEN {condition} THEN {each} END" for each in arguments or ["true"]]
    return AggregateCall(name, text, function, arguments, distinct, order, ignores, condition)


def _sql(tree: Any) -> str:
    from ddflow.expressions.parse import DdflowSpark

    return str(tree.sql(dialect=DdflowSpark, normalize_functions=False))
