"""GROUP BY and aggregates, and what a tree says over the groups.

Invariant: a tree over groups is made of the columns of groups and of aggregates; what is neither is refused when it is
asked for. An aggregate that is written twice is one column. If no row was met, a count is zero, a list empty, and
all else null.

>>> from ddflow.expressions.parse import parse
>>> found = Grouped(Relation(None, {}), {"count(*)": column("n"), "sum(x)": column("s")})
>>> tree = parse("sum(x) / count(*)").tree
>>> text(found.over(tree)), text(found.over(tree, empty=True))
('`s` / `n`', '`s` / coalesce(`n`, 0)')
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from sqlglot import exp

from ddflow.expressions.parse import Tree
from ddflow.plan.sql.query import SelectQuery
from ddflow.plan.sql.relation import Made, Relation, Steps, fresh
from ddflow.plan.sql.trees import call, column, names_of, number, replaced, shown, text


class Grouped(NamedTuple):
    """Grouped rows.  ``known``: the columns of groups and aggregates, by the text of their expressions."""

    rows: Relation
    known: dict[str, Tree]

    def over(self, tree: Tree, empty: bool = False) -> Tree:
        """Rewrite a tree over the groups.  ``empty``: whether there may be no row, so that a count is zero."""

        def change(node: Tree) -> Tree | None:
            found = self.known.get(text(node)) if self.known else None
            if found is None:
                return None
            none = _of_nothing(node) if empty else None
            return found.copy() if none is None else call("coalesce", found, none)

        return replaced(tree, change)


def grouped(
    steps: Steps, rows: Relation, query: SelectQuery, keys: Sequence[Made], found: Mapping[str, Tree]
) -> Grouped:
    """Group some rows.  ``keys``: further group columns.  ``found``: aggregates, by their text."""
    trees = {text(each): each for each in query.groups or ()}
    names = {text(item): name for item, name in zip(query.items, query.columns, strict=True)}
    logicals = {told: each.name if isinstance(each, exp.Column) else steps.number(told) for told, each in trees.items()}
    groups = [Made(logicals[told], _column_name(rows, each, names), each) for told, each in trees.items()]
    groups += [each for each in keys if each.logical not in {group.logical for group in groups}]
    known = {told: column(each) for told, each in logicals.items()}
    for each in keys:
        known.setdefault(text(each.tree), column(each.logical))
    if not all(isinstance(each.tree, exp.Column) for each in groups) or keys:
        read = names_of(*found.values())
        rest = [Made(each, rows.names[each], column(each)) for each in sorted(read) if each in rows.names]
        rows = steps.projected(rows, [*groups, *rest])
    by = [rows.names[each.logical] for each in groups]
    if not groups and not found:  # HAVING over constants
        rows = steps.projected(rows, [Made("any", "any", number(1))])
    if not found:
        return Grouped(steps.distinct(steps.narrowed(rows, {each.logical for each in groups})), known)
    made, told = dict[str, str](), dict[str, str]()
    for key, each in found.items():
        name = fresh(names.get(key, shown(each)), [*by, *told])
        logical = steps.number(key)
        made[logical], told[name], known[key] = name, rows.sql(each), column(logical)
    of = steps.then(
        rows.of, ("agg", *by, None, *told.items()), lambda: (rows.of.group_by(*by) if by else rows.of).agg(**told)
    )
    all_names = {each.logical: rows.names[each.logical] for each in groups} | made
    return Grouped(Relation(of, all_names, rows.solid & {each.logical for each in groups}), known)


def _column_name(rows: Relation, tree: Tree, names: dict[str, str]) -> str:
    return rows.name(tree) if isinstance(tree, exp.Column) else names.get(text(tree), shown(tree))


def _of_nothing(node: Tree) -> Tree | None:
    """Return the value of an aggregate over no rows; None if it is null."""
    while isinstance(node, exp.Filter | exp.IgnoreNulls | exp.RespectNulls):
        node = node.this
    return {"count": number(0), "array_agg": call("array")}.get(node.name if isinstance(node, exp.Anonymous) else "")
