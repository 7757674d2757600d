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
from typing import Any

from ddflow.aside import aside
from ddflow.errors import DdflowError, ExpressionError, SpecError
from ddflow.plan.registry import operator
from ddflow.plan.sql.lower import QueryLowering
from ddflow.plan.sql.reader import QueryReader
from ddflow.plan.sql.trees import ASKED

__all__ = ["planned"]


def planned(flow: Any, text: str, collections: Mapping[str, Any]) -> Any:
    """The collection of a query.  See `ddflow.plan.plan.Plan.sql`."""
    if not isinstance(text, str):
        raise ExpressionError(ASKED, f"it is given {text!r:.99}", "give a query as text")
    for name, each in collections.items():
        if getattr(each, "flow", None) is not flow:
            raise SpecError(ASKED, f"{name}= is {each!r:.99}, no collection of this flow", "build it in this flow")
    tables = {**flow.inputs, **collections}

    def made() -> Any:
        reader = QueryReader(tables, lambda of: of.schema.names)
        query = reader.read(text)

        def constant(columns: list[str], rows: list[list[str]]) -> Any:
            return flow.known(operator("constant")(_inputs(flow, reader.used), columns, rows))

        return QueryLowering(reader.nested, constant).named(query)

    nodes = list(flow.nodes)
    try:
        return aside(made)
    except (DdflowError, RecursionError) as error:
        flow.nodes[:] = nodes  # what was begun is of no use
        if isinstance(error, DdflowError):
            raise
        remedy = "make collections of its parts, and pass them by name"
        raise ExpressionError(ASKED, "the query is nested too deeply", remedy) from error


def _inputs(flow: Any, used: Iterable[Any]) -> list[Any]:
    """The inputs that some collections are made of; all where there are none.  O(nodes)."""
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
