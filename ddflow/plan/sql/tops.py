"""LIMIT and ``row_number() <= k``: both are the first rows of each part, in some order.

Invariant: what ties by the order is ordered by the select list, whose columns come first. The rank is a column only
where something asks for it.

>>> import ddflow as dd
>>> people = dd.Flow().upserts("people", {"id": int, "n": int}, dd.Upsert(key="id"))
>>> query = SelectQuery(["id"], set(), [column("p.id")])
>>> rows, swap = RankedRows(Steps(), query, [], [], [], []).rows(Relation(people, {"p.id": "id"}), {})
>>> rows.of is people, text(swap(column("p.id")))
(True, '`p.id`')
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from sqlglot import exp

from ddflow.expressions.parse import Tree
from ddflow.plan.sql.clauses import way
from ddflow.plan.sql.query import SelectQuery
from ddflow.plan.sql.ranking import ranked
from ddflow.plan.sql.relation import Made, Relation, Steps, fresh
from ddflow.plan.sql.trees import column, names_of, quoted, refused, replaced, shown, text

Bounds = Mapping[int, tuple[int, bool]]
"""For columns that are ranks: up to which, and whether they are asked for."""


def top(
    steps: Steps,
    rows: Relation,
    k: int,
    by: Sequence[tuple[str, str]],
    partition: Sequence[str],
    offset: int = 0,
    rank: str | None = None,
) -> Relation:
    """Keep the first k rows of each part.  ``by``: logical names, each with its way."""
    order = [f"{quoted(rows.names[each])} {direction}" for each, direction in by]
    order = order or [f"{quoted(rows.of.schema.names[0])} asc nulls first"]
    told = ("top", k, *order, None, *partition, None, offset, rank)

    def make() -> Any:
        return rows.of.top(k, by=order, partition_by=list(partition), offset=offset, rank_name=rank)

    return Relation(steps.then(rows.of, told, make), rows.names, rows.solid)


class RankedRows:
    """The rows of a query up to a rank.

    ``columns``: of its select list; ``extra``: others that it gives; ``qualify``, ``orders``: its conditions and order.
    """

    def __init__(
        self,
        steps: Steps,
        query: SelectQuery,
        columns: list[Made],
        extra: Sequence[Made],
        qualify: Sequence[Tree],
        orders: Sequence[tuple[Tree, str]],
    ) -> None:
        self.steps, self.query, self.columns, self.extra = steps, query, columns, extra
        self.qualify, self.orders = list(qualify), orders

    def rows(self, rows: Relation, bounds: Bounds) -> tuple[Relation, Callable[[Tree], Tree]]:
        """Keep the rows up to the rank; return them and a function that replaces the window by the rank's column."""
        trees = [*(each.tree for each in self.columns), *self.qualify, *(tree for tree, _ in self.orders)]
        windows = {text(each): each for tree in trees for each in tree.find_all(exp.Window)}
        if not windows:
            if self.qualify:
                found = f"QUALIFY {shown(self.qualify[0])} has no window"
                raise refused(self.query.written, found, "write WHERE, or HAVING")
            return rows, lambda tree: tree
        (told, window), *others = windows.items()
        k, left = ranked(self.qualify, told)
        for index, (most, _) in bounds.items():
            if text(self.columns[index].tree.unnest()) == told:
                k = most if k is None else min(k, most)
        if k is None or others:
            found = f"{shown(window)} {'beside another window' if others else 'without a bound'}"
            remedy = "write it in a subquery, and row_number <= k in the WHERE around it, or in QUALIFY"
            raise refused(self.query.written if others else window, found, remedy)
        if k < 1:
            raise refused(window, f"the bound of {shown(window)} is {k}", "ranks begin with 1")
        unasked = {i for i, (_, used) in bounds.items() if not used}
        self.columns[:] = [each for i, each in enumerate(self.columns) if i not in unasked]
        read = [*(each.tree for each in self.columns), *left, *(tree for tree, _ in self.orders)]
        asked = any(text(part) == told for tree in read for part in tree.find_all(exp.Window))
        rows = self._first(rows, window, k, read, asked)

        def swap(tree: Tree) -> Tree:
            return replaced(tree, lambda node: column("rank") if text(node) == told else None)

        return self.steps.filtered(rows, [swap(each) for each in left]), swap

    def _first(self, rows: Relation, window: Tree, k: int, read: Sequence[Tree], asked: bool) -> Relation:
        """Keep the first k rows of each partition; ``asked``: with their rank."""
        given = window.args.get("order")
        if given is None or window.args.get("spec") is not None:
            remedy = "write row_number() over (partition by ... order by ...)"
            raise refused(window, f"{shown(window)} has no ORDER BY, or a frame", remedy)
        listed = [each for each in [*self.columns, *self.extra] if isinstance(each.tree, exp.Column)]
        parts = [Made(f"part {i}", shown(each), each) for i, each in enumerate(window.args.get("partition_by") or ())]
        parts += [each._replace(logical=f"of {each.logical}") for each in self.extra]
        orders = [Made(f"by {i}", shown(each.this), each.this) for i, each in enumerate(given.expressions)]
        asking = [part for tree in read for part in [tree, *(each.tree for each in self.extra)]]
        others = sorted(names_of(*(_without(each, text(window)) for each in asking)))
        kept = [Made(each, rows.name(column(each)), column(each)) for each in others]
        order = [each.tree.name for each in listed]
        kept.sort(key=lambda each: order.index(each.logical) if each.logical in order else len(order))
        known = {text(each.tree): each for each in reversed([*kept, *parts, *orders])}
        made = self.steps.projected(rows, [each for each in [*kept, *parts, *orders] if known[text(each.tree)] is each])
        names = {each.logical: made.names[known[text(each.tree)].logical] for each in [*kept, *parts, *orders]}
        made = Relation(made.of, names, made.solid)
        rank = fresh("row_number", made.of.schema.names) if asked else None
        by = [(each.logical, way(order)) for each, order in zip(orders, given.expressions, strict=True)]
        made = top(self.steps, made, k, by, [names[each.logical] for each in parts], rank=rank)
        return made if rank is None else Relation(made.of, {**made.names, "rank": rank}, made.solid)


def _without(tree: Tree, told: str) -> Tree:
    """Replace the window in a tree by null, so that only columns outside it count."""
    return replaced(tree, lambda node: exp.null() if text(node) == told else None)
