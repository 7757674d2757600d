"""FROM and WHERE: which tables are joined in which order, and where each condition stands.

Invariant: the rows are those of the product of all tables under all conditions. A condition stands as low as its
columns are there: on its table, below the joins; on the side of an outer join whose rows it cannot bring back. Inner
joins are made in the order of FROM, but a table waits until an equality connects it, so nothing is multiplied that a
key could join. Subqueries that know nothing of the query around them are conditions like others; those that do come
last, where fewer rows are left.

>>> import ddflow as dd
>>> flow = dd.Flow()
>>> _ = flow.upserts("people", {"id": int, "n": int}, dd.Upsert(key="id"))
>>> flow.sql("select * from (select id, n from people) p where p.n > 1 and id < 3").predicate.text
'(n > 1) AND (id < 3)'
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from sqlglot import exp

from ddflow.expressions.parse import Tree
from ddflow.plan.sql.query import Joining, Leaf, ReadQuery, SelectQuery
from ddflow.plan.sql.ranking import ranked, ranks
from ddflow.plan.sql.relation import Pair, Relation, Steps
from ddflow.plan.sql.trees import Nested

_KEEPS: Final = {"left": "left", "semi": "left", "anti": "left", "right": "right"}
"""The side of a join whose rows are there whatever the other side has."""


class Tables:
    """``lower``: lowers queries and subqueries."""

    def __init__(self, lower: Any, steps: Steps) -> None:
        self.lower, self.steps = lower, steps

    def rows(self, source: Leaf | Joining | None, extra: Sequence[Leaf], where: list[Tree], used: set[str]) -> Relation:
        """What FROM and WHERE give.  ``extra``: tables before the others.  ``used``: the names asked for later."""
        parts: list[Leaf | Joining] = list(extra)
        pool = list(where)
        if source is not None:
            found, on = _flat(source)
            parts, pool = [*parts, *found], [*on, *pool]
        late = [each for each in pool if self._late(each)]
        pool = [each for each in pool if not self._late(each)]
        made = self._assembled(parts, pool, used | self.lower.refs(*late)) if parts else self.lower.unit()
        if not parts:
            made = self.steps.filtered(made, pool)
        for each in late:
            made = self.lower.where(made, each)
        return made

    def _late(self, tree: Tree) -> bool:
        """Whether it has a subquery that knows the query around it."""
        return any(self.lower.asked(each).query.outer for each in tree.find_all(Nested))

    def _assembled(self, parts: Sequence[Leaf | Joining], pool: list[Tree], used: set[str]) -> Relation:
        ahead = list[Relation]()
        for part in parts:
            own = [each for each in pool if self._about(each, part.logical())]
            pool = [each for each in pool if each not in own]
            needed = used | self.lower.refs(*pool)
            ahead.append(self._part(part, own, needed))
        made = ahead.pop(0)
        while ahead:
            place = next((i for i, each in enumerate(ahead) if self._keys(made, each, pool)), 0)
            other = ahead.pop(place)
            keys = self._keys(made, other, pool)
            pool = [each for each in pool if not any(each is found for _, found in keys)]
            needed = used | self.lower.refs(*pool)
            made = self.steps.joined(made, other, [pair for pair, _ in keys], "inner", used=needed)
            ready = [each for each in pool if self.lower.refs(each) <= set(made.names)]
            pool = [each for each in pool if each not in ready]
            made = self._filtered(made, ready)
        return self.steps.narrowed(self._filtered(made, pool), used)

    def _about(self, tree: Tree, names: set[str]) -> bool:
        """Whether a condition asks for some of these names and no others."""
        found = self.lower.refs(tree)
        return bool(found) and found <= names

    def _filtered(self, rows: Relation, trees: Sequence[Tree]) -> Relation:
        plain = [each for each in trees if each.find(Nested) is None]
        rows = self.steps.filtered(rows, plain)
        for each in trees:
            if each.find(Nested) is not None:
                rows = self.lower.where(rows, each)
        return rows

    def _keys(self, left: Relation, right: Relation, pool: Sequence[Tree]) -> list[tuple[Pair, Tree]]:
        """The equalities between two, each with its condition."""
        found = ((self.pair(each, set(left.names), set(right.names)), each) for each in pool)
        return [(pair, each) for pair, each in found if pair is not None]

    def pair(self, tree: Tree, left: set[str], right: set[str]) -> Pair | None:
        """The two sides of an equality between what has these names and what has those; None for another."""
        if not isinstance(tree, exp.EQ) or tree.find(Nested) is not None:
            return None
        one, other = tree.this.unnest(), tree.expression.unnest()
        first, second = self.lower.refs(one), self.lower.refs(other)
        if first and second and first <= left and second <= right:
            return one, other
        if first and second and first <= right and second <= left:
            return other, one
        return None

    def _part(self, part: Leaf | Joining, own: list[Tree], used: set[str]) -> Relation:
        if isinstance(part, Leaf):
            return self._leaf(part, own, used)
        keeps = _KEEPS.get(part.how)
        kept = part.left if keeps == "left" else part.right
        low = [each for each in own if keeps and self._about(each, kept.logical())]
        high = [each for each in own if each not in low]
        other = {"left": part.right, "right": part.left}.get(keeps or "")
        inside = [each for each in part.on if other is not None and self._about(each, other.logical())]
        on = [each for each in part.on if each not in inside]
        pairs = [(self.pair(each, part.left.logical(), part.right.logical()), each) for each in on]
        keys = [pair for pair, _ in pairs if pair is not None]
        rest = [each for pair, each in pairs if pair is None]
        needed = used | self.lower.refs(*high)
        below = needed | self.lower.refs(*on)
        first = low if keeps == "left" else inside
        second = inside if keeps == "left" else low
        left, right = self._side(part.left, first, below), self._side(part.right, second, below)
        return self._filtered(self.steps.joined(left, right, keys, part.how, rest, needed), high)

    def _side(self, part: Leaf | Joining, own: list[Tree], used: set[str]) -> Relation:
        parts, on = _flat(part)
        return self._assembled(parts, [*on, *own], used)

    def _leaf(self, leaf: Leaf, own: list[Tree], used: set[str]) -> Relation:
        if isinstance(leaf.of, Relation):
            return self._filtered(leaf.of, own)
        if not isinstance(leaf.of, ReadQuery):
            return self._filtered(Relation.of_collection(leaf.of, leaf.names), own)
        query, bounds = leaf.of, {}
        for index, name in enumerate(query.columns):
            logical = leaf.names[name]
            if isinstance(query, SelectQuery) and ranks(query, index):
                bound, own = ranked(own, logical)
                if bound is not None:
                    bounds[index] = bound, logical in used | self.lower.refs(*own)
        made = self.lower.query(query, bounds=bounds)
        known = {str(index): leaf.names[name] for index, name in enumerate(query.columns)}
        names = {known[each]: name for each, name in made.names.items()}
        return self._filtered(Relation(made.of, names, {known[each] for each in made.solid if each in known}), own)


def _flat(source: Leaf | Joining) -> tuple[list[Leaf | Joining], list[Tree]]:
    """The parts of inner joins, and their conditions."""
    parts, on, ahead = list[Leaf | Joining](), list[Tree](), [source]
    while ahead:
        each = ahead.pop()
        if isinstance(each, Joining) and each.how == "inner":
            on = [*each.on, *on]
            ahead += [each.right, each.left]
        else:
            parts.append(each)
    return parts, on
