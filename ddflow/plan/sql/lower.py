"""Lower a resolved query to verbs of collections, including limits and ranks.

Guarantees: the plan of a query uses only verbs that are also available in Python. LIMIT becomes `top`.

>>> import ddflow as dd
>>> people = dd.Flow().upserts("people", {"id": int, "n": int}, dd.Upsert(key="id"))
>>> leaf = TableLeaf(people, {"id": "p.id", "n": "p.n"})
>>> QueryLowering([], None).build_collection(SelectQuery(["m"], set(), [build_column("p.n")], leaf))
Project(m int64)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import pyarrow as pa
from sqlglot import exp

from ddflow.errors import ExpressionError
from ddflow.expressions import compile as compile_expression
from ddflow.expressions.functions.time_windows import SESSION
from ddflow.expressions.parse import Tree
from ddflow.expressions.types import common_type, sql_name, working_type
from ddflow.plan.sql.clauses import Subquery, find_aggregates
from ddflow.plan.sql.query import (
    ASKED,
    ResolvedQuery,
    SelectQuery,
    SetQuery,
    SubqueryNode,
    TableLeaf,
    ValuesQuery,
    build_column,
    build_number,
    build_query_error,
    build_window_column,
    find_query_column_names,
    shorten_tree_sql,
    write_tree_sql,
)
from ddflow.plan.sql.relation import (
    GroupedRows,
    ProjectedColumn,
    QueryVerbs,
    Relation,
    cast_if_needed,
    group_rows,
)
from ddflow.plan.sql.subqueries import CorrelationColumns, SubqueryLowering
from ddflow.plan.sql.tables import FromLowering
from ddflow.plan.sql.windows import Bounds, WindowedRows

_NOTHING: Final = CorrelationColumns()


class QueryLowering:
    """A compiler of queries. ``nested``: the subqueries.

    ``constant``: a function that builds a collection from columns and rows.
    """

    def __init__(self, nested: Sequence[Subquery], constant: Callable[[list[str], list[list[str]]], Any]) -> None:
        self._nested, self._constant = nested, constant
        self.steps = QueryVerbs()
        self._tables = FromLowering(self, self.steps)
        self._subqueries = SubqueryLowering(self, self.steps, self._tables)
        self._lowered: dict[Any, Relation] = {}

    def build_collection(self, query: ResolvedQuery) -> Any:
        """Build the collection of a query. The columns have the names that the query gives."""
        twice = sorted({each for each in query.columns if query.columns.count(each) > 1})
        if twice:
            raise ExpressionError(ASKED, f"several columns are called {twice}", "use a different alias for each")
        rows = self.lower_query(query)
        made = [ProjectedColumn(name, name, build_column(str(index))) for index, name in enumerate(query.columns)]
        return self.steps.project_rows(rows, made, passes=True).of

    def find_subquery(self, nested: Tree) -> Subquery:
        """Return the subquery of a `SubqueryNode` node."""
        place: int = nested.subquery_number
        return self._nested[place]

    def list_query_column_names(self, *trees: Tree) -> set[str]:
        """List the logical names that some trees and their subqueries read."""
        nested = (self.find_subquery(each).query.outer for tree in trees for each in tree.find_all(SubqueryNode))
        return find_query_column_names(*trees).union(*nested)

    def filter_by_condition(self, rows: Relation, tree: Tree) -> Relation:
        """Keep the rows that meet a condition."""
        return (
            self._subqueries.filter_by_condition(rows, tree)
            if tree.find(SubqueryNode)
            else self.steps.filter_rows(rows, [tree])
        )

    def build_one_row(self) -> Relation:
        """Build a relation of one row."""
        return Relation(self.steps.make_collection_once(self, ("unit",), lambda: self._constant(["one"], [["1"]])), {})

    def lower_query(
        self,
        query: ResolvedQuery,
        carry: CorrelationColumns = _NOTHING,
        bounds: Bounds | None = None,
        exists: bool = False,
    ) -> Relation:
        """Lower a query. ``exists``: whether the caller only checks if the query has rows."""
        if carry is not _NOTHING:
            return self._lower_uncached_query(query, carry, bounds or {}, exists)
        key = query, tuple(sorted((bounds or {}).items())), exists
        if key not in self._lowered:
            self._lowered[key] = self._lower_uncached_query(query, carry, bounds or {}, exists)
        return self._lowered[key]

    def _lower_uncached_query(
        self, query: ResolvedQuery, carry: CorrelationColumns, bounds: Bounds, exists: bool
    ) -> Relation:
        if isinstance(query, SelectQuery):
            return self._lower_select(query, carry, bounds, exists)
        if isinstance(query, SetQuery):
            return self._lower_set_operation(query, carry)
        assert isinstance(query, ValuesQuery)
        rows = self._lower_values(query)
        return rows if carry.domain is None else self.steps.join_rows(carry.domain, rows, [], "inner")

    # Lowering of SELECT.

    def _lower_select(self, query: SelectQuery, carry: CorrelationColumns, bounds: Bounds, exists: bool) -> Relation:
        extra = [ProjectedColumn(name, shorten_tree_sql(each), each) for name, each in carry.columns]
        self.steps.passed |= find_query_column_names(*(query.items[place] for place in query.starred))
        if query.is_open_to_new_columns:
            self.steps.stars += [frozenset(query.items[place].name for place in star) for star in query.stars]
        order = [name for each in query.list_tables() for name in each.names.values()]
        if query.groups == []:
            rows, over = self._lower_ungrouped_aggregate(query, carry, extra)
        else:
            late = [] if exists and query.is_row_by_row else query.list_trees_after_where()
            used = self.list_query_column_names(*late, *(each.tree for each in extra))
            rows = self._lower_from(query, carry, bounds, used | self._tables.find_tie_columns(query))
            found = GroupedRows(rows, {}) if query.groups is None else self._group_rows(rows, query, extra)
            rows, over = found.rows, found.rewrite_tree
            order = order if query.groups is None else list(rows.names)
            for each in query.having:
                rows = self.filter_by_condition(rows, over(each))
        extra = [each._replace(tree=over(each.tree)) for each in extra]
        if exists and query.is_row_by_row:
            return self.steps.project_rows(rows, extra or [ProjectedColumn("any", "any", build_number(1))])
        columns = list[ProjectedColumn]()
        for index, (name, item) in enumerate(zip(query.columns, query.items, strict=True)):
            rows, tree = self._subqueries.join_subquery_columns(rows, over(item))
            columns.append(ProjectedColumn(str(index), name, tree))
        qualify, orders = list[Tree](), list[tuple[Tree, str]]()
        for each in query.qualify:
            rows, tree = self._subqueries.join_subquery_columns(rows, over(each))
            qualify.append(tree)
        for ordering in query.order:
            rows, tree = self._subqueries.join_subquery_columns(rows, over(ordering.tree))
            orders.append((tree, ordering.way))
        windowed = WindowedRows(self.steps, query, columns, extra, qualify, orders)
        rows, replace_windows = windowed.compute_rows(rows, order, bounds)
        columns = [each._replace(tree=replace_windows(each.tree)) for each in columns]
        orders = [(replace_windows(tree), way) for tree, way in orders]
        return self._lower_select_list(query, rows, columns, extra, orders)

    def _lower_from(self, query: SelectQuery, carry: CorrelationColumns, bounds: Bounds, used: set[str]) -> Relation:
        """Lower FROM and WHERE, and find the windows of time of each row."""
        where = list(query.where if carry.where is None else carry.where)
        if query.window is not None:
            where += [
                exp.Not(this=exp.Is(this=each, expression=exp.Null())) for each in query.window.copy().expressions[:1]
            ]
            used = used | find_query_column_names(query.window)
        for index, (k, _) in bounds.items():
            if not isinstance(query.items[index].unnest(), exp.Window):
                where.append(exp.LTE(this=query.items[index].copy(), expression=build_number(k)))
        extra = [] if carry.domain is None else [TableLeaf(carry.domain, {each: each for each in carry.domain.names})]
        rows = self._tables.lower_from(query.source, extra, where, used)
        if query.window is None:
            return rows
        if query.window.name != SESSION:
            return self.steps.add_windows(rows, query.window)
        groups = [each for each in query.groups or () if each != build_window_column(query.window)]
        return self.steps.add_sessions(rows, query.window, [*groups, *(tree for _, tree in carry.columns)], used)

    def _lower_select_list(
        self,
        query: SelectQuery,
        rows: Relation,
        columns: Sequence[ProjectedColumn],
        extra: Sequence[ProjectedColumn],
        orders: Sequence[tuple[Tree, str]],
    ) -> Relation:
        """Lower the select list, DISTINCT, ORDER BY and LIMIT."""
        by, hidden = list[tuple[str, str]](), list[ProjectedColumn]()
        for tree, direction in orders:
            found = next((each.logical for each in columns if each.tree == tree), None)
            if found is None:
                if query.distinct:
                    raise build_query_error(
                        query.written,
                        f"ORDER BY {shorten_tree_sql(tree)} is not in SELECT DISTINCT",
                        "add it to the select list",
                    )
                hidden.append(ProjectedColumn(f"order {len(hidden)}", shorten_tree_sql(tree), tree))
                found = hidden[-1].logical
            by.append((found, direction))
        stars = [[str(place) for place in star] for star in query.stars] if query.is_open_to_new_columns else []
        rows = self.steps.project_rows(rows, [*columns, *extra, *hidden], stars, len(query.starred) == len(columns))
        if query.distinct:
            rows = self.steps.distinct_rows(rows)
        if query.limit is not None:
            rows = self.steps.keep_first_rows(
                rows, query.limit, by, [rows.names[each.logical] for each in extra], query.offset
            )
        return self.steps.drop_unused_columns(rows, {each.logical for each in [*columns, *extra]}) if hidden else rows

    # Lowering of groups.

    def aggregate_without_groups(
        self, query: SelectQuery, carry: CorrelationColumns, keys: Sequence[ProjectedColumn]
    ) -> GroupedRows:
        """Aggregate a query without GROUP BY, with one result row for each value of ``keys`` that occurs in a row."""
        used = self.list_query_column_names(*query.list_trees_after_where(), *(each.tree for each in keys))
        found = self._group_rows(self._lower_from(query, carry, {}, used), query, keys)
        if carry.domain is None:
            return found
        # If the subquery has no rows, columns of the outer query keep their values. So columns of the outer query are
        # not read from the group.
        outer = {write_tree_sql(build_column(name)) for name in carry.domain.names}
        return found._replace(known={told: each for told, each in found.known.items() if told not in outer})

    def _group_rows(self, rows: Relation, query: SelectQuery, keys: Sequence[ProjectedColumn]) -> GroupedRows:
        """Compute the subqueries within aggregates, then group the rows."""
        found = {
            write_tree_sql(each): each for tree in query.list_trees_after_where() for each in find_aggregates(tree)
        }
        for told, each in found.items():
            rows, found[told] = self._subqueries.join_subquery_columns(rows, each)
        return group_rows(self.steps, rows, query, keys, found)

    def _lower_ungrouped_aggregate(
        self, query: SelectQuery, carry: CorrelationColumns, extra: Sequence[ProjectedColumn]
    ) -> tuple[Relation, Callable[[Tree], Tree]]:
        """Aggregate without groups. The result has one row.

        If the subquery has a domain, the result has one row for each row of the domain.
        """
        outer = self.build_one_row() if carry.domain is None else carry.domain
        keys = [each._replace(logical=f"own {each.logical}") for each in extra]
        found = self.aggregate_without_groups(query, carry, keys)
        pairs = [(one.tree, build_column(each.logical)) for one, each in zip(extra, keys, strict=True)]
        rows = self.steps.join_rows(outer, found.rows, self._subqueries.make_pairs_null_safe(outer, pairs), "left")

        def over(tree: Tree) -> Tree:
            return tree if tree in [each.tree for each in extra] else found.rewrite_tree(tree, empty=True)

        for each in query.having:
            rows = self.filter_by_condition(rows, over(each))
        return rows, over

    # A compiler of set operations and of VALUES.

    def _lower_set_operation(self, query: SetQuery, carry: CorrelationColumns) -> Relation:
        """Combine both sides. The result has the column names of the left side and the common types of both sides."""
        sides = [self.lower_query(each, carry) for each in (query.left, query.right)]
        logical = [*(str(index) for index in range(len(query.columns))), *(name for name, _ in carry.columns)]
        made: list[list[ProjectedColumn]] = [[], []]
        for each in logical:
            kinds = [working_type(side.of.schema.field(side.names[each]).type) for side in sides]
            kind = common_type(kinds)
            if kind is None:
                found = f"{query.op.upper()} of {sql_name(kinds[0])} and {sql_name(kinds[1])}"
                raise ExpressionError(ASKED, found, "cast one of them")
            for columns, given in zip(made, kinds, strict=True):
                columns.append(
                    ProjectedColumn(each, sides[0].names[each], cast_if_needed(build_column(each), given, kind))
                )
        left, right = (self.steps.project_rows(*each, passes=True) for each in zip(sides, made, strict=True))
        verb = {"union": "union", "except": "except_", "intersect": "intersect"}[query.op]
        of = self.steps.make_collection_once(
            left.of, (verb, id(right.of), query.all), lambda: getattr(left.of, verb)(right.of, all=query.all)
        )
        return Relation(of, left.names)

    def _lower_values(self, query: ValuesQuery) -> Relation:
        """Build rows of constants. Each column has the common type of its values."""
        one, columns = pa.schema({"one": pa.int32()}), list[list[str]]()
        for trees in zip(*query.rows, strict=True):
            kinds = [compile_expression(write_tree_sql(each), one, what=shorten_tree_sql(each)).type for each in trees]
            kind = common_type(kinds)
            if kind is None:
                found = f"VALUES of {', '.join(map(sql_name, kinds))}"
                raise build_query_error(trees[0], found, "cast them to one type")
            columns.append(
                [write_tree_sql(cast_if_needed(tree, each, kind)) for tree, each in zip(trees, kinds, strict=True)]
            )
        rows, names = [list(row) for row in zip(*columns, strict=True)], list(query.columns)
        if _has_equal_rows(rows):  # a constant has each row once
            names, rows = [*names, "row"], [[*row, str(index)] for index, row in enumerate(rows)]
        return Relation(self._constant(names, rows), {str(i): name for i, name in enumerate(query.columns)})


def _has_equal_rows(rows: Sequence[Sequence[str]]) -> bool:
    """Tell whether two rows of constants can be equal. Constants with different SQL texts can be equal. O(rows)."""
    one, found = pa.record_batch({"one": [1]}), set[tuple[str, ...]]()
    for row in rows:
        values = [compile_expression(cell, one.schema, what="a value")(one)[0] for cell in row]
        if any(pa.types.is_floating(each.type) or pa.types.is_nested(each.type) for each in values):
            return len(rows) > 1  # zero and minus zero are equal
        found.add(tuple(map(str, values)))
    return len(found) < len(rows)
