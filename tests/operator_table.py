"""The table of laws: for each operator of the registry, how a plan gets one, and what it gives, from scratch.

A row is an example of the operator on a collection of `COLUMNS` whose rows may be there several times, and its twin: a
function from the rows that the input holds, with multiplicities, to those that the output holds. ``test_operators``
holds every row to all laws; an operator of the registry that has none fails there.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import pyarrow as pa

import ddflow as dd
from ddflow.plan.registry import operator

Row = tuple[Any, ...]
Rows = Counter[Row]
COLUMNS = {"city": pa.string(), "n": pa.int64(), "tags": pa.list_(pa.string())}
"""Of the input: rows are tuples of these, lists as tuples."""


class Law(NamedTuple):
    """``make``: an example on a collection.  ``scratch``: what it holds when its input holds some rows."""

    make: Callable[[dd.Collection], dd.Collection]
    scratch: Callable[[Rows], Rows]
    local: bool = False
    """Whether it cannot be cut over partitions."""


def each(function: Callable[[Row], list[Row]]) -> Callable[[Rows], Rows]:
    """The twin of an operator that looks at one row at a time."""

    def scratch(rows: Rows) -> Rows:
        out: Rows = Counter()
        for row, times in rows.items():
            for made in function(row):
                out[made] += times
        return out

    return scratch


def groups(rows: Rows) -> Rows:
    """How many rows each city has."""
    found: Counter[Any] = Counter()
    for (city, *_), times in rows.items():
        found[city] += times
    return Counter({(city, n): 1 for city, n in found.items() if n})


def never(c: dd.Collection) -> dd.Collection:
    """A constant, and nothing of it."""
    made = operator("constant")([c.inputs[0]], ["n"], [["1"], ["2"]])
    return made.concat(made.negate())  # type: ignore[no-any-return]


TABLE: Mapping[str, Law] = {
    "filter": Law(lambda c: c.filter("n > 1"), each(lambda row: [row] if row[1] is not None and row[1] > 1 else [])),
    "project": Law(
        lambda c: c.project({"c": "city", "m": "n * 2"}),
        each(lambda row: [(row[0], None if row[1] is None else row[1] * 2)]),
    ),
    "negate": Law(lambda c: c.negate(), lambda rows: Counter({row: -times for row, times in rows.items()})),
    "concat": Law(
        lambda c: c.concat(c.filter("n > 1"), c.negate()),
        each(lambda row: [row] if row[1] is not None and row[1] > 1 else []),
    ),
    "consolidate": Law(lambda c: c.project(["city"]).consolidate(), each(lambda row: [row[:1]])),
    "unnest": Law(lambda c: c.unnest("tags"), each(lambda row: [(*row[:2], tag) for tag in row[2] or ()])),
    "count": Law(lambda c: c.count("city"), groups),
    "distinct": Law(
        lambda c: c.project(["city"]).distinct(),
        lambda rows: Counter({(city,): 1 for city, *_ in rows}),
    ),
    "to_upserts": Law(lambda c: c.count("city").to_upserts("city"), groups, local=True),
    # It holds rows from the first event on, of which the rows that are held do not tell: see test_constant.
    "constant": Law(lambda c: never(c), lambda rows: Counter(), local=True),
    "single": Law(lambda c: c.project({"city": "city", "one": "1"}).single("one"), each(lambda row: [row[:1]])),
}
