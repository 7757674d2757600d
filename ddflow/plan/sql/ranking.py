"""``row_number() over (...) <= k``: where the k is, and which column of which query it is about.

Invariant: a condition that says no more than the bound is taken away; one that says more (``= 3``, ``between 2 and 4``)
stays beside the bound, and then the rank is a column.

>>> from ddflow.expressions.parse import parse
>>> ranked([parse("rn < 4").tree, parse("a = 1").tree], "rn")[0], ranked([parse("a = 1").tree], "rn")[0]
(3, None)
"""

from __future__ import annotations

from sqlglot import exp

from ddflow.expressions.parse import Tree
from ddflow.plan.sql.query import Leaf, SelectQuery
from ddflow.plan.sql.trees import text

_FLIPPED = {exp.GTE: exp.LTE, exp.GT: exp.LT, exp.EQ: exp.EQ}


def ranks(query: SelectQuery, index: int) -> bool:
    """Whether a column of a query is a ``row_number`` that needs a bound from outside."""
    item = query.items[index].unnest()
    if isinstance(item, exp.Window):
        return not query.qualify
    below = _below(query, item)
    return below is not None and ranks(*below)


def _below(query: SelectQuery, item: Tree) -> tuple[SelectQuery, int] | None:
    """Return the column of a query in FROM that a column is, if only renames are between."""
    leaf = query.source
    if not query.simple or not isinstance(leaf, Leaf) or not isinstance(leaf.of, SelectQuery):
        return None
    names = list(leaf.names.values())
    if not isinstance(item, exp.Column) or item.name not in names:
        return None
    return leaf.of, names.index(item.name)


def ranked(trees: list[Tree], rank: str) -> tuple[int | None, list[Tree]]:
    """Find the smallest bound of a column, and the other conditions.  ``rank``: its name or text."""
    most, left = None, list[Tree]()
    for tree in trees:
        found = _rank_bound(tree, rank)
        if found is None:
            left.append(tree)
            continue
        k, exact = found
        most = k if most is None else min(most, k)
        if not exact:
            left.append(tree)
    if most is not None and sum(_rank_bound(tree, rank) is not None for tree in trees) > 1:
        left = list(trees)
    return most, left


def _rank_bound(tree: Tree, rank: str) -> tuple[int, bool] | None:
    """Return the k of ``rank <= k``, and whether the condition says no more."""
    if isinstance(tree, exp.Between):
        high = _whole(tree.args["high"])
        return (high, False) if _is(tree.this, rank) and high is not None else None
    kind, one, other = type(tree), tree.args.get("this"), tree.args.get("expression")
    if kind in _FLIPPED and isinstance(other, exp.Expression) and _is(other, rank):
        kind, one, other = _FLIPPED[kind], other, one
    if kind not in (exp.LTE, exp.LT, exp.EQ) or not _is(one, rank):
        return None
    k = _whole(other)
    if k is None:
        return None
    return (k - 1, True) if kind is exp.LT else (k, kind is exp.LTE or k == 1)


def _is(tree: Tree, rank: str) -> bool:
    tree = tree.unnest()
    return bool(tree.name == rank if isinstance(tree, exp.Column) else text(tree) == rank)


def _whole(tree: Tree) -> int | None:
    tree = tree.unnest()
    return int(tree.name) if isinstance(tree, exp.Literal) and tree.name.isdecimal() else None
