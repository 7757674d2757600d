"""A query that was read: every name resolved, nothing computed yet.

Invariant: the trees in it have logical names (`ddflow.plan.sql.trees`) and no subquery but `Nested`, whose query stands
in ``nested`` of the reader. ``outer`` are the logical names of enclosing queries that it or what is in it asks for.

>>> SetQuery(["a"], set(), "union", True, ValuesQuery(["a"], set(), []), ValuesQuery(["a"], set(), [])).op
'union'
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

from sqlglot import exp

from ddflow.expressions.parse import Tree
from ddflow.plan.sql.trees import names_of


@dataclass(eq=False)
class ReadQuery:
    """A resolved query.  ``columns``: the names of its result."""

    columns: list[str]
    outer: set[str]


class Ordering(NamedTuple):
    """A part of ORDER BY.  ``way``: the words after a column."""

    tree: Tree
    way: str


@dataclass(eq=False)
class Leaf:
    """A table in FROM.  ``of``: a collection or a query.  ``names``: its columns, each with its logical name."""

    of: Any
    names: dict[str, str]

    def logical(self) -> set[str]:
        """Return its logical names."""
        return set(self.names.values())


@dataclass(eq=False)
class Joining:
    """A join in FROM.  ``on``: its conditions."""

    left: Leaf | Joining
    right: Leaf | Joining
    how: str
    on: list[Tree]

    def logical(self) -> set[str]:
        """Return the logical names that it offers."""
        return self.left.logical() | (set() if self.how in ("semi", "anti") else self.right.logical())


@dataclass(eq=False)
class SelectQuery(ReadQuery):
    """A SELECT.  ``items``: the trees of ``columns``.  ``groups``: None without grouping.  ``written``: for messages.
    ``stars``: the places in ``items`` of all columns of a table, to which its future columns are added.
    ``starred``: the places of any star.
    """

    items: list[Tree]
    source: Leaf | Joining | None = None
    where: list[Tree] = field(default_factory=list)
    groups: list[Tree] | None = None
    having: list[Tree] = field(default_factory=list)
    qualify: list[Tree] = field(default_factory=list)
    distinct: bool = False
    order: list[Ordering] = field(default_factory=list)
    limit: int | None = None
    offset: int = 0
    written: Tree = None
    stars: list[range] = field(default_factory=list)
    starred: set[int] = field(default_factory=set)

    @property
    def open(self) -> bool:
        """Whether future columns of a table may enter its result, which changes neither groups nor a top."""
        return self.groups is None and self.limit is None and not any(each.find(exp.Window) for each in self.late())

    def late(self) -> list[Tree]:
        """List the trees that are computed after WHERE."""
        return [
            *self.items,
            *(self.groups or ()),
            *self.having,
            *self.qualify,
            *(each.tree for each in self.order),
        ]

    @property
    def simple(self) -> bool:
        """Whether each of its rows comes from one row of its source."""
        return self.groups is None and not self.distinct and self.limit is None and not self.qualify

    @property
    def single(self) -> bool:
        """Whether it is an aggregate without groups, which has one row."""
        return self.groups == [] and not self.qualify and not self.offset

    def reads(self) -> set[str]:
        """Return the logical names in its trees, except those of FROM."""
        return names_of(*self.where, *self.late())


@dataclass(eq=False)
class SetQuery(ReadQuery):
    """A set operation.  ``op``: union, except or intersect."""

    op: str
    all: bool
    left: ReadQuery
    right: ReadQuery


@dataclass(eq=False)
class ValuesQuery(ReadQuery):
    """A VALUES.  ``rows``: of trees without columns."""

    rows: list[list[Tree]]
