"""A query to a plan: Spark's SQL over the inputs of a flow and over collections.

Invariant: equal texts over equal tables give equal plans, whoever reads them and when. ``trees``, ``query``, ``names``,
``clauses`` and ``reader`` say what a text means; ``relation``, ``groups``, ``ranking``, ``tops``, ``tables``,
``subqueries`` and ``lower`` make verbs of `ddflow.plan.collection.Collection` of it. Each knows only those before it.
Nothing here runs.

>>> import ddflow as dd
>>> flow = dd.Flow()
>>> people = flow.upserts("people", {"id": int, "city": str}, dd.Upsert(key="id"))
>>> flow.sql("select upper(city) town from people where id > 1")
Project(town string)
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from ddflow.aside import aside
from ddflow.errors import DdflowError, ExpressionError, Option, SpecError
from ddflow.plan.registry import operator
from ddflow.plan.sql.lower import QueryLowering
from ddflow.plan.sql.query import ReadQuery, SelectQuery
from ddflow.plan.sql.reader import QueryReader
from ddflow.plan.sql.relation import fresh
from ddflow.plan.sql.trees import ASKED, quoted, refused, shown

__all__ = ["Answer", "answered", "planned"]


class Answer(NamedTuple):
    """A query whose rows are read once.  ``by``: their order, in the form of `top`."""

    of: Any
    by: list[str]
    columns: list[str]
    """Those of the query; the collection has others behind them where the order asks for more."""


def planned(flow: Any, text: str, collections: Mapping[str, Any]) -> Any:
    """Build the collection of a query.  See `ddflow.plan.plan.Plan.sql`."""
    return _plan_query(flow, text, collections, False).of


def answered(flow: Any, text: str) -> Answer:
    """Build the collection of a query over inputs, and the order of its ORDER BY, which needs no LIMIT here.

    Raises the errors of `ddflow.plan.plan.Plan.sql`; `ExpressionError` if SELECT DISTINCT lacks a column of the order.
    """
    return _plan_query(flow, text, {}, True)


def _plan_query(flow: Any, text: str, collections: Mapping[str, Any], sorted: bool) -> Answer:
    if not isinstance(text, str):
        raise ExpressionError(ASKED, f"it is given {text!r:.99}", "give a query as text")
    for name, each in collections.items():
        if getattr(each, "flow", None) is not flow:
            raise SpecError(
                ASKED, Option(name) + f" is {each!r:.99}, no collection of this flow", "build it in this flow"
            )
    tables = {**flow.inputs, **collections}

    def made() -> Answer:
        reader = QueryReader(tables, lambda of: of.schema.names)
        query = reader.read(text, sorted)
        columns, by = list(query.columns), _shown_order(query) if sorted else []

        def constant(columns: list[str], rows: list[list[str]]) -> Any:
            return flow.known(operator("constant")(_inputs(flow, reader.used), columns, rows))

        return Answer(QueryLowering(reader.nested, constant).named(query), by, columns)

    nodes = list(flow.nodes)
    try:
        return aside(made)
    except (DdflowError, RecursionError) as error:
        flow.nodes[:] = nodes  # what was begun is of no use
        if isinstance(error, DdflowError):
            raise
        remedy = "make collections of its parts, and pass them by name"
        raise ExpressionError(ASKED, "the query is nested too deeply", remedy) from error


def _shown_order(query: ReadQuery) -> list[str]:
    """Return the order of a query's rows, and add its missing columns.  Clear an order without LIMIT."""
    if not isinstance(query, SelectQuery):
        return []
    by = list[str]()
    for tree, direction in query.order:
        name = next(
            (name for name, item in zip(query.columns, query.items, strict=True) if item.unnest() == tree), None
        )
        if name is None:
            if query.distinct:
                raise refused(query.written, f"ORDER BY {shown(tree)} is not in SELECT DISTINCT", "select it")
            name = fresh(shown(tree), query.columns)
            query.columns.append(name)
            query.items.append(tree.copy())
        by.append(f"{quoted(name)} {direction}")
    if query.limit is None:
        query.order.clear()
    return by


def _inputs(flow: Any, used: Iterable[Any]) -> list[Any]:
    """List the inputs of some collections; all inputs if there are none.  O(nodes)."""
    found, ahead = set[Any](), list(used)
    while ahead:
        each = ahead.pop()
        if each not in found:
            found.add(each)
            ahead += each.inputs
    inputs = list(flow.inputs.values())
    if not inputs:
        raise SpecError(ASKED, "the flow has no inputs, whose first event VALUES begins with", "add one before")
    return [each for each in inputs if each in found] or inputs
