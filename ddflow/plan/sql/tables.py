"""Lower FROM and WHERE: choose the order of joins, push conditions down, and find the bounds of ranks.

Guarantees: the result equals the product of all tables, filtered by all conditions. A condition is applied as soon as
all its columns are available, except that a condition that can fail for a row is applied after the joins. Inner joins
follow the order of FROM, except that a table is joined only when an equality connects the table to the joined tables.
``row_number() <= k`` becomes the bound of a rank. If the bound does not replace the complete condition, the condition
stays as a filter.

>>> import ddflow as dd
>>> flow = dd.Flow()
>>> _ = flow.upserts("people", {"id": int, "n": int}, dd.Upsert(key="id"))
>>> flow.sql("select * from (select id, n from people) p where p.n > 1 and id < 3").predicate.text
'(n > 1) AND (id < 3)'
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import pyarrow as pa
from sqlglot import exp

from ddflow.errors import ExpressionError
from ddflow.expressions.parse import Tree
from ddflow.plan.sql.query import (
    JoinNode,
    ResolvedQuery,
    SelectQuery,
    SubqueryNode,
    TableLeaf,
    build_query_error,
    replace_nodes,
)
from ddflow.plan.sql.relation import KeyPair, QueryVerbs, Relation
from ddflow.plan.sql.windows import is_unbounded_rank, list_tie_columns, needs_peer_order, split_rank_bound

_KEEPS: Final = {"left": "left", "semi": "left", "anti": "left", "right": "right"}
"""For each kind of join: the side whose conditions can be applied before the join."""


class FromLowering:
    """A compiler of FROM and WHERE. ``lower`` lowers queries and subqueries."""

    def __init__(self, lower: Any, steps: QueryVerbs) -> None:
        self.lower, self.steps = lower, steps

    def lower_from(
        self, source: TableLeaf | JoinNode | None, extra: Sequence[TableLeaf], where: list[Tree], used: set[str]
    ) -> Relation:
        """Lower FROM and WHERE. ``extra``: tables to join first. ``used``: the logical names that later steps read."""
        parts: list[TableLeaf | JoinNode] = list(extra)
        pool = list(where)
        if source is not None:
            found, on = _flatten_joins(source)
            parts, pool = [*parts, *found], [*on, *pool]
        guarded = next((place for place, each in enumerate(pool) if self._is_correlated(each)), len(pool))
        late = [each for each in pool[guarded:] if self._is_correlated(each) or self.can_fail(each, parts)]
        pool = [each for each in pool if each not in late]
        if parts:
            made = self._join_from_parts(parts, pool, used | self.lower.list_query_column_names(*late))
        else:
            made = self.steps.filter_rows(self.lower.build_one_row(), pool)
        for each in late:
            made = self.lower.filter_by_condition(made, each)
        return made

    def _is_correlated(self, tree: Tree) -> bool:
        """Tell whether a condition has a correlated subquery."""
        return any(self.lower.find_subquery(each).query.outer for each in tree.find_all(SubqueryNode))

    def _join_from_parts(self, parts: Sequence[TableLeaf | JoinNode], pool: list[Tree], used: set[str]) -> Relation:
        last, ahead = list[Tree](), list[Relation]()
        if len(parts) > 1 or isinstance(parts[0], JoinNode):
            last = [each for each in pool if self.can_fail(each, parts)]
            pool = [each for each in pool if each not in last]
        used = used | self.lower.list_query_column_names(*last)
        for part in parts:
            own = [each for each in pool if self._reads_only_names(each, part.query_column_names())]
            pool = [each for each in pool if each not in own]
            needed = used | self.lower.list_query_column_names(*pool)
            ahead.append(self._lower_from_part(part, own, needed))
        made = ahead.pop(0)
        while ahead:
            met = [i for some in (pool, last) for i, each in enumerate(ahead) if self._find_key_pairs(made, each, some)]
            other = ahead.pop(met[0] if met else 0)
            keys = self._find_key_pairs(made, other, pool) or self._find_key_pairs(made, other, last)
            last = [each for each in last if not any(each is found for _, found in keys)]
            pool = [each for each in pool if not any(each is found for _, found in keys)]
            needed = used | self.lower.list_query_column_names(*pool)
            made = self.steps.join_rows(made, other, [pair for pair, _ in keys], "inner", used=needed)
            ready = [each for each in pool if self.lower.list_query_column_names(each) <= set(made.names)]
            pool = [each for each in pool if each not in ready]
            made = self._filter_rows(made, ready)
        return self.steps.drop_unused_columns(self._filter_rows(made, [*pool, *last]), used)

    def can_fail(self, tree: Tree, parts: Sequence[TableLeaf | JoinNode]) -> bool:
        """Tell whether a condition on some tables can fail for a row."""
        read = self.lower.list_query_column_names(tree)
        fields = [field for part in parts if read & part.query_column_names() for field in self._list_fields(part)]
        every = [tree, *(operand for each in tree.find_all(SubqueryNode) for operand in each.operands)]
        rows = Relation(pa.schema(fields).empty_table(), {field.name: field.name for field in fields})
        bare = (
            replace_nodes(each, lambda node: exp.null() if isinstance(node, SubqueryNode) else None) for each in every
        )
        return any(map(rows.can_fail, bare))

    def find_tie_columns(self, query: SelectQuery) -> set[str]:
        """Find the columns of FROM that can decide between rows that are peers in the query's window functions."""
        windows, out = list(filter(needs_peer_order, query.list_windows().values())), set[str]()
        if windows and query.groups is None:
            for each in query.list_tables():
                rows = self._lower_whole_table(each)
                names = list(each.names.values())
                out.update(names if rows is None else list_tie_columns(windows, rows, names, optional=True))
        return out

    def _list_fields(self, part: TableLeaf | JoinNode) -> list[pa.Field]:
        """List the columns of tables by their logical names."""
        if isinstance(part, JoinNode):
            return [*self._list_fields(part.left), *self._list_fields(part.right)]
        rows = self._lower_whole_table(part)
        if rows is None:
            return []
        return [rows.of.schema.field(name).with_name(logical) for logical, name in rows.names.items()]

    def _lower_whole_table(self, leaf: TableLeaf) -> Relation | None:
        """Lower a table without conditions. Return None for a query that needs one."""
        if not isinstance(leaf.of, ResolvedQuery):
            return leaf.of if isinstance(leaf.of, Relation) else Relation.of_collection(leaf.of, leaf.names)
        try:
            made = self.lower.lower_query(leaf.of)
        except ExpressionError:  # a rank without a bound; a condition will set it
            return None
        return Relation(made.of, {leaf.names[name]: made.names[str(i)] for i, name in enumerate(leaf.of.columns)})

    def _reads_only_names(self, tree: Tree, names: set[str]) -> bool:
        """Tell whether a condition reads at least one of the given names and no other names."""
        found = self.lower.list_query_column_names(tree)
        return bool(found) and found <= names

    def _filter_rows(self, rows: Relation, trees: Sequence[Tree]) -> Relation:
        nested = next((place for place, each in enumerate(trees) if each.find(SubqueryNode) is not None), len(trees))
        ahead = [
            *trees[:nested],
            *(each for each in trees[nested:] if not each.find(SubqueryNode) and not rows.can_fail(each)),
        ]
        rows = self.steps.filter_rows(rows, ahead)
        for each in trees[nested:]:
            if each not in ahead:
                rows = self.lower.filter_by_condition(rows, each)
        return rows

    def _find_key_pairs(self, left: Relation, right: Relation, pool: Sequence[Tree]) -> list[tuple[KeyPair, Tree]]:
        """List the equalities between two relations. Each equality comes with the condition that states it."""
        found = ((self.find_key_pair(each, set(left.names), set(right.names)), each) for each in pool)
        return [(pair, each) for pair, each in found if pair is not None]

    def find_key_pair(self, tree: Tree, left: set[str], right: set[str]) -> KeyPair | None:
        """Return both sides of an equality between left and right names. Return None for any other condition."""
        if not isinstance(tree, exp.EQ) or tree.find(SubqueryNode) is not None:
            return None
        one, other = tree.this.unnest(), tree.expression.unnest()
        first, second = self.lower.list_query_column_names(one), self.lower.list_query_column_names(other)
        if first and second and first <= left and second <= right:
            return one, other
        if first and second and first <= right and second <= left:
            return other, one
        return None

    def _lower_from_part(self, part: TableLeaf | JoinNode, own: list[Tree], used: set[str]) -> Relation:
        if isinstance(part, TableLeaf):
            return self._lower_table(part, own, used)
        if part.at is not None:
            return self._lower_asof_join(part, own, used)
        keeps = _KEEPS.get(part.how)
        kept = part.left if keeps == "left" else part.right
        low = [each for each in own if keeps and self._reads_only_names(each, kept.query_column_names())]
        high = [each for each in own if each not in low]
        other = {"left": part.right, "right": part.left}.get(keeps or "")
        below = [
            each for each in part.on if other is not None and self._reads_only_names(each, other.query_column_names())
        ]
        inside = [each for each in below if not self.can_fail(each, [part])]
        on = [each for each in part.on if each not in inside]
        pairs = [
            (self.find_key_pair(each, part.left.query_column_names(), part.right.query_column_names()), each)
            for each in on
        ]
        safe = [each for pair, each in pairs if pair is not None and not self.can_fail(each, [part])]
        keys = [pair for pair, each in pairs if pair is not None and (not safe or each in safe)]
        rest = [each for pair, each in pairs if pair not in keys]
        needed = used | self.lower.list_query_column_names(*high)
        below = needed | self.lower.list_query_column_names(*on)
        first = low if keeps == "left" else inside
        second = inside if keeps == "left" else low
        left, right = self._lower_join_side(part.left, first, below), self._lower_join_side(part.right, second, below)
        return self._filter_rows(self.steps.join_rows(left, right, keys, part.how, rest, needed), high)

    def _lower_asof_join(self, part: JoinNode, own: list[Tree], used: set[str]) -> Relation:
        """Lower an ASOF join. All right columns are needed, because they decide between equal moments."""
        at, sides = part.at, (part.left.query_column_names(), part.right.query_column_names())
        low = [each for each in own if self._reads_only_names(each, sides[0])]
        high = [each for each in own if each not in low]
        pairs: list[Any] = [self.find_key_pair(each, *sides) for each in part.on]
        moments = self.find_key_pair(exp.EQ(this=at.this, expression=at.expression), *sides)
        if None in pairs or moments is None:
            wrong = at if moments is None else part.on[pairs.index(None)]
            found = "a condition of ASOF JOIN does not compare the left with the right"
            raise build_query_error(wrong, found, "equate columns of both tables, and compare one moment of each")
        needed = used | self.lower.list_query_column_names(*high, *part.on, at)
        left = self._lower_join_side(part.left, low, needed)
        right = self._lower_join_side(part.right, [], needed | sides[1])
        way = {exp.GTE: ">=", exp.GT: ">", exp.LTE: "<=", exp.LT: "<"}[type(at)]
        if moments[0] is not at.this.unnest():
            way = way.translate(str.maketrans("<>", "><"))
        return self._filter_rows(self.steps.join_nearest_rows(left, right, pairs, moments, way, part.how, needed), high)

    def _lower_join_side(self, part: TableLeaf | JoinNode, own: list[Tree], used: set[str]) -> Relation:
        parts, on = _flatten_joins(part)
        return self._join_from_parts(parts, [*on, *own], used)

    def _lower_table(self, leaf: TableLeaf, own: list[Tree], used: set[str]) -> Relation:
        if isinstance(leaf.of, Relation):
            return self._filter_rows(leaf.of, own)
        if not isinstance(leaf.of, ResolvedQuery):
            return self._filter_rows(Relation.of_collection(leaf.of, leaf.names), own)
        query, bounds = leaf.of, {}
        for index, name in enumerate(query.columns):
            logical = leaf.names[name]
            if isinstance(query, SelectQuery) and is_unbounded_rank(query, index):
                bound, own = split_rank_bound(own, logical)
                if bound is not None:
                    bounds[index] = bound, logical in used | self.lower.list_query_column_names(*own)
        made = self.lower.lower_query(query, bounds=bounds)
        known = {str(index): leaf.names[name] for index, name in enumerate(query.columns)}
        names = {known[each]: name for each, name in made.names.items()}
        return self._filter_rows(Relation(made.of, names, {known[each] for each in made.solid if each in known}), own)


def _flatten_joins(source: TableLeaf | JoinNode) -> tuple[list[TableLeaf | JoinNode], list[Tree]]:
    """Flatten nested inner joins into their parts and conditions."""
    parts, on, ahead = list[TableLeaf | JoinNode](), list[Tree](), [source]
    while ahead:
        each = ahead.pop()
        if isinstance(each, JoinNode) and each.how == "inner" and each.at is None:
            on = [*each.on, *on]
            ahead += [each.right, each.left]
        else:
            parts.append(each)
    return parts, on
