"""Rewrite subqueries in expressions to joins.

Invariant: a subquery never turns one row of the outer query into several rows. Correlated equalities become the keys of
a join:

- EXISTS and IN as conditions become semi and anti joins. Outside of conditions EXISTS and IN become left joins, with a
  column that flags a match.
- NOT IN is true if no row matches, except in two cases: the subquery contains a null, or the outer value is null and
  the subquery has rows.
- An aggregate without groups is grouped by the keys, then left-joined. For an outer row without a match, counts are
  zero.
- Any other scalar subquery must have at most one row for each key. `Collection.single` refuses a second row.

For correlations that are not equalities, the subquery is computed for the distinct outer values, which are called its
*domain*. The result of the subquery is joined to the outer rows on the outer values.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import pyarrow as pa
from sqlglot import exp

from ddflow.expressions.parse import Tree
from ddflow.expressions.types import sql_name, working_type
from ddflow.plan.sql.clauses import Subquery
from ddflow.plan.sql.query import (
    ResolvedQuery,
    SelectQuery,
    SubqueryNode,
    ValuesQuery,
    add_brackets,
    build_call,
    build_cast,
    build_column,
    build_number,
    build_query_error,
    find_query_column_names,
    join_with_and,
    join_with_or,
    quote_name,
    replace_nodes,
    shorten_tree_sql,
)
from ddflow.plan.sql.relation import KeyPair, ProjectedColumn, QueryVerbs, Relation, find_free_name
from ddflow.plan.sql.tables import FromLowering

_REJECTS: Final = (exp.EQ, exp.NEQ, exp.LT, exp.LTE, exp.GT, exp.GTE)
_PASSES: Final = (
    *(*_REJECTS, exp.Add, exp.Sub, exp.Mul, exp.Div, exp.Neg, exp.Paren),
    *(exp.Column, exp.Identifier, exp.Literal, SubqueryNode),
)
"""The kinds of expressions that are null if any part is null."""


class CorrelationColumns(NamedTuple):
    """The additional columns that a subquery returns, for the join with the outer query.

    ``columns``: logical names with their trees within the subquery.  ``where``: its conditions that are not keys.
    ``domain``: a table of distinct outer values to join with the tables of FROM.
    """

    columns: Sequence[tuple[str, Tree]] = ()
    where: list[Tree] | None = None
    domain: Relation | None = None


class JoinableRows(NamedTuple):
    """A subquery that is ready to join. ``keys``: pairs of outer and inner trees.

    ``condition``: conditions on both sides.
    """

    rows: Relation
    keys: list[KeyPair]
    condition: list[Tree]


class SubqueryLowering:
    """A compiler of subqueries. ``lower`` lowers queries, and ``tables`` finds equalities."""

    def __init__(self, lower: Any, steps: QueryVerbs, tables: FromLowering) -> None:
        self.lower, self.steps, self.tables = lower, steps, tables

    def filter_by_condition(self, rows: Relation, tree: Tree) -> Relation:
        """Keep the rows that meet a condition, which can contain subqueries."""
        tree = tree.unnest()
        inner = tree.this.unnest() if isinstance(tree, exp.Not) else tree
        if isinstance(inner, SubqueryNode):
            asked = self.lower.find_subquery(inner)
            if asked.kind != "scalar" and not _is_single_row_query(asked.query):
                anti = isinstance(tree, exp.Not)
                return self._lower_condition(rows, inner, asked, anti)
        rows, tree = self.join_subquery_columns(
            rows, tree, rejects=isinstance(tree, _REJECTS) and _propagates_nulls(tree)
        )
        return self.steps.filter_rows(rows, [tree])

    def join_subquery_columns(self, rows: Relation, tree: Tree, rejects: bool = False) -> tuple[Relation, Tree]:
        """For each subquery of a tree, join a column to the rows. Rewrite the tree to read these columns.

        ``rejects``: whether the caller drops rows with a null result, so that inner joins suffice.
        """
        made: dict[int, Tree] = {}
        for each in list(tree.find_all(SubqueryNode)):
            asked = self.lower.find_subquery(each)
            if asked.kind == "scalar":
                rows, value = self._lower_scalar(rows, asked, rejects)
            elif _is_single_row_query(asked.query):
                rows, value = self._lower_single_row(rows, each, asked)
            else:
                rows, value = self._lower_predicate_to_value(rows, each, asked)
            made[each.subquery_number] = exp.Paren(this=value)
        return rows, replace_nodes(
            tree, lambda node: made[node.subquery_number] if isinstance(node, SubqueryNode) else None
        )

    # Subqueries in conditions become semi and anti joins.

    def _lower_condition(self, rows: Relation, nested: Tree, asked: Subquery, anti: bool) -> Relation:
        """Lower EXISTS, IN, NOT EXISTS or NOT IN, if used as a condition."""
        rows, operands = self._lower_operands(rows, nested)
        met = self._lower_with_join_keys(rows, asked, plain=True)
        other, pairs = self._build_in_keys(met.rows, operands)
        out = self.steps.join_rows(rows, other, [*met.keys, *pairs], "anti" if anti else "semi", met.condition)
        if not anti or asked.kind == "exists":
            return out
        if len(operands) > 1:
            raise build_query_error(
                asked.written, "NOT IN of several columns", "write NOT EXISTS with conditions for nulls"
            )
        operand, value = operands[0], build_column("0")
        if met.rows.is_nullable(value):
            unknown = self.steps.filter_rows(met.rows, [_build_is_null(value)])
            out = self.steps.join_rows(out, self._drop_duplicate_matches(unknown, met), met.keys, "anti", met.condition)
        if rows.is_nullable(operand):
            condition = [*met.condition, _build_is_null(operand)]
            out = self.steps.join_rows(out, self._drop_duplicate_matches(met.rows, met), met.keys, "anti", condition)
        return out

    def _drop_duplicate_matches(self, rows: Relation, met: JoinableRows) -> Relation:
        """Keep one row for each combination of values in the columns that the join reads."""
        read = find_query_column_names(*(other for _, other in met.keys), *met.condition) & set(rows.names)
        if not read:
            return self.steps.distinct_rows(
                self.steps.project_rows(rows, [ProjectedColumn("any", "any", build_number(1))])
            )
        return self.steps.distinct_rows(self.steps.drop_unused_columns(rows, read))

    def _lower_operands(self, rows: Relation, nested: Tree) -> tuple[Relation, list[Tree]]:
        operands = list[Tree]()
        for each in nested.operands:
            rows, made = self.join_subquery_columns(rows, each)
            operands.append(made.unnest())
        return rows, operands

    def _build_in_keys(self, rows: Relation, operands: Sequence[Tree]) -> tuple[Relation, list[KeyPair]]:
        """Return the rows that IN can match, and the key pairs.

        For a constant operand, filter the rows instead of returning a key pair.
        """
        pairs = [(each, build_column(str(index))) for index, each in enumerate(operands)]
        fixed = [
            exp.EQ(this=add_brackets(one.copy()), expression=other)
            for one, other in pairs
            if not find_query_column_names(one)
        ]
        return self.steps.filter_rows(rows, fixed), [pair for pair in pairs if find_query_column_names(pair[0])]

    # EXISTS and IN outside of conditions become joins with a match flag.

    def _lower_predicate_to_value(self, rows: Relation, nested: Tree, asked: Subquery) -> tuple[Relation, Tree]:
        """Lower EXISTS or IN, if used as a value."""
        rows, operands = self._lower_operands(rows, nested)
        met = self._lower_with_join_keys(rows, asked)
        if asked.kind == "exists":
            rows, found = self._join_match_flag(rows, met.rows, met.keys)
            return rows, found
        if len(operands) > 1:
            raise build_query_error(asked.written, "IN of several columns within an expression", "write EXISTS")
        operand, value = operands[0], build_column("0")
        other, pairs = self._build_in_keys(met.rows, operands)
        rows, found = self._join_match_flag(rows, other, [*met.keys, *pairs])
        rows, some = self._join_match_flag(rows, met.rows, met.keys)
        unknown = self.steps.filter_rows(met.rows, [_build_is_null(value)])
        rows, nulls = self._join_match_flag(rows, unknown, met.keys)
        either = join_with_or([nulls, join_with_and([some, _build_is_null(operand)])])
        return rows, _build_case([(found, exp.true()), (either, exp.null())], exp.false())

    def _join_match_flag(self, rows: Relation, other: Relation, keys: Sequence[KeyPair]) -> tuple[Relation, Tree]:
        """Join a match flag to the rows. Return the joined rows, and a condition that is true for rows with a match."""
        mark = self.steps.make_unique_name("mark")
        columns = [
            ProjectedColumn(self.steps.make_unique_name("key"), shorten_tree_sql(each), each) for _, each in keys
        ]
        made = self.steps.project_rows(other, [*columns, ProjectedColumn(mark, "met", exp.true())])
        pairs = [(one, build_column(each.logical)) for (one, _), each in zip(keys, columns, strict=True)]
        rows = self.steps.join_rows(rows, self.steps.distinct_rows(made), pairs, "left", used={*rows.names, mark})
        return rows, exp.Paren(this=exp.Not(this=_build_is_null(build_column(mark))))

    # A scalar subquery becomes a join that adds the value.

    def _lower_scalar(self, rows: Relation, asked: Subquery, rejects: bool) -> tuple[Relation, Tree]:
        query = asked.query
        if isinstance(query, SelectQuery) and query.is_single_row:
            return self._lower_aggregate(rows, query, query.items[0], rejects)
        met = self._lower_with_join_keys(rows, asked)
        keys = [
            ProjectedColumn(
                self.steps.make_unique_name("key"), met.rows.names.get(each.name, shorten_tree_sql(each)), each
            )
            for _, each in met.keys
        ]
        value = ProjectedColumn(self.steps.make_unique_name("value"), asked.query.columns[0], build_column("0"))
        known = [exp.Not(this=_build_is_null(each.tree)) for each in keys if met.rows.is_nullable(each.tree)]
        one = self.steps.project_rows(self.steps.filter_rows(met.rows, known), [*keys, value])
        count = self.steps.make_unique_name("rows")
        counted = self._count_rows(one, [one.names[each.logical] for each in keys], value, count)
        pairs = [(outer, build_column(each.logical)) for (outer, _), each in zip(met.keys, keys, strict=True)]
        told = [one.name if isinstance(one, exp.Column) else other.name for one, other in pairs]
        used = {*rows.names, *told, value.logical, count}
        made = self.steps.join_rows(rows, counted, pairs, "inner" if rejects else "left", used=used)
        return self._refuse_multiple_matches(made, count, [made.names[each] for each in told]), build_column(
            value.logical
        )

    def _count_rows(self, rows: Relation, by: list[str], value: ProjectedColumn, count: str) -> Relation:
        """For each key, compute a value and the number of rows."""
        name, counts = rows.names[value.logical], find_free_name("rows", rows.of.schema.names)
        told = {name: f"max({quote_name(name)})", counts: "count(*)"}

        of = self.steps.make_collection_once(
            rows.of,
            ("counted", *by, None, name),
            lambda: (rows.of.group_by(*by) if by else rows.of).agg(**told),
        )
        return Relation(of, {**rows.names, count: counts})

    def _refuse_multiple_matches(self, rows: Relation, count: str, keys: list[str]) -> Relation:
        """Refuse a step that leaves a row with several matches in a scalar subquery."""
        name = rows.names[count]
        of = self.steps.make_collection_once(rows.of, ("single", name, *keys), lambda: rows.of.single(name, keys))
        return Relation(of, {each: its for each, its in rows.names.items() if each != count}, rows.solid)

    def _lower_single_row(self, rows: Relation, nested: Tree, asked: Subquery) -> tuple[Relation, Tree]:
        """Lower EXISTS or IN for a subquery that has one row, or has no row because of its HAVING."""
        query = asked.query
        assert isinstance(query, SelectQuery)
        rows, operands = self._lower_operands(rows, nested)
        if asked.kind == "exists":
            rows, there = self._lower_aggregate(rows, query, exp.true(), False)
            return rows, exp.Not(this=_build_is_null(there))
        if query.having or len(operands) > 1:
            raise build_query_error(
                asked.written, "IN of several columns, or of an aggregate with HAVING", "compare with = instead"
            )
        rows, value = self._lower_aggregate(rows, query, query.items[0], False)
        return rows, exp.EQ(this=add_brackets(operands[0].copy()), expression=exp.Paren(this=value))

    def _lower_aggregate(self, rows: Relation, query: SelectQuery, item: Tree, rejects: bool) -> tuple[Relation, Tree]:
        """Compute a value of an aggregate query without groups."""
        carry, outers = self._find_correlation_columns(rows, query)
        keys = [
            ProjectedColumn(self.steps.make_unique_name("key"), shorten_tree_sql(tree), tree)
            for _, tree in carry.columns
        ]
        found = self.lower.aggregate_without_groups(query, carry, keys)
        pairs = [(outer, build_column(each.logical)) for outer, each in zip(outers, keys, strict=True)]
        pairs = self.make_pairs_null_safe(rows, pairs) if carry.domain is not None else pairs
        value, having = (
            found.rewrite_tree(item, empty=True),
            [found.rewrite_tree(each, empty=True) for each in query.having],
        )
        # Without a match all aggregates except counts are null. If the tree contains a count, the tree rewritten for no
        # rows differs from the tree rewritten for a match.
        null = found.rewrite_tree(item) == value and _propagates_nulls(value) and value.find(exp.Column) is not None
        inner = rejects and null and not having
        used = {*rows.names, *find_query_column_names(value, *having)}
        rows = self.steps.join_rows(rows, found.rows, pairs, "inner" if inner else "left", used=used)
        rows, value = self.join_subquery_columns(
            rows, _build_case([(join_with_and(having), value)], exp.null()) if having else value
        )
        return rows, value

    # Equalities with columns of the outer query become join keys.

    def _lower_with_join_keys(self, rows: Relation, asked: Subquery, plain: bool = False) -> JoinableRows:
        """Lower a subquery, and return its join keys. ``plain``: whether conditions are allowed to read both sides."""
        query = asked.query
        if not query.outer:
            return JoinableRows(self.lower.lower_query(query, exists=asked.kind == "exists"), [], [])
        if plain and isinstance(query, SelectQuery) and query.is_row_by_row and not query.offset:
            split = self._split_where(query)
            late = [] if asked.kind == "exists" else query.items
            if split is not None and not self.lower.list_query_column_names(*late) & query.outer:
                keys, own, both = split
                above = [
                    each for each in own if query.source is not None and self.tables.can_fail(each, [query.source])
                ]
                own, both = [each for each in own if each not in above], [*both, *above]
                read = [build_column(each) for each in sorted(find_query_column_names(*both) - query.outer)]
                inner = [(self.steps.make_unique_name("key"), each) for _, each in keys]
                further = [(each.name, each) for each in read]
                carry = CorrelationColumns([*inner, *further], own)
                made = self.lower.lower_query(query, carry, exists=asked.kind == "exists")
                pairs = [(outer, build_column(name)) for (outer, _), (name, _) in zip(keys, inner, strict=True)]
                return JoinableRows(made, pairs, both)
        carry, outers = self._find_correlation_columns(rows, query)
        made = self.lower.lower_query(query, carry, exists=asked.kind == "exists")
        pairs = [(outer, build_column(name)) for outer, (name, _) in zip(outers, carry.columns, strict=True)]
        return JoinableRows(made, self.make_pairs_null_safe(rows, pairs) if carry.domain is not None else pairs, [])

    def _split_where(self, query: SelectQuery) -> tuple[list[KeyPair], list[Tree], list[Tree]] | None:
        """Split the conditions of a subquery.

        The results are equalities with the outer query, conditions on the subquery alone, and other conditions on both
        queries. Returns None if a nested subquery reads columns of the outer query.
        """
        keys, own, both = list[KeyPair](), list[Tree](), list[Tree]()
        inner = query.source.query_column_names() if query.source is not None else set[str]()
        for each in query.where:
            asks = self.lower.list_query_column_names(each) & query.outer
            pair = self.tables.find_key_pair(each, query.outer, inner)
            if pair is not None:
                keys.append(pair)
            elif not asks:
                own.append(each)
            elif each.find(SubqueryNode) is None:
                both.append(each)
            else:
                return None
        return keys, own, both

    def _find_correlation_columns(self, rows: Relation, query: ResolvedQuery) -> tuple[CorrelationColumns, list[Tree]]:
        """Return the additional columns of a subquery, each with the equal tree of the outer query."""
        if not query.outer:
            return CorrelationColumns(), []
        select = query if isinstance(query, SelectQuery) and (query.is_single_row or query.groups != []) else None
        if (
            select is not None
            and not self.lower.list_query_column_names(*select.list_trees_after_where()) & query.outer
        ):
            split = self._split_where(select)
            if split is not None and not split[2]:
                keys, own, _ = split
                return CorrelationColumns([(self.steps.make_unique_name("key"), each) for _, each in keys], own), [
                    one for one, _ in keys
                ]
        assert not isinstance(query, ValuesQuery), "VALUES reads no outer columns"
        outer = sorted(query.outer)
        made = self.steps.project_rows(rows, [ProjectedColumn(each, each, build_column(each)) for each in outer])
        domain = self.steps.distinct_rows(made)
        return CorrelationColumns([(each, build_column(each)) for each in outer], None, domain), [
            build_column(each) for each in outer
        ]

    @staticmethod
    def make_pairs_null_safe(rows: Relation, pairs: Sequence[KeyPair]) -> list[KeyPair]:
        """Extend the pairs of join keys so that the join treats two nulls as equal.

        >>> import ddflow as dd
        >>> people = dd.Flow().upserts("people", {"id": int, "n": int}, dd.Upsert(key="id"))
        >>> rows = Relation.of_collection(people, {"id": "p.id", "n": "p.n"})
        >>> len(SubqueryLowering.make_pairs_null_safe(rows, [(build_column("p.id"), build_column("k"))]))
        1
        >>> len(SubqueryLowering.make_pairs_null_safe(rows, [(build_column("p.n"), build_column("k"))]))
        2
        """
        out = list[KeyPair]()
        for outer, inner in pairs:
            if not rows.is_nullable(outer):
                out.append((outer, inner))
                continue
            other = _build_default_value(rows.find_tree_type(outer))
            out.append((build_call("coalesce", outer, other), build_call("coalesce", inner, other)))
            out.append((_build_is_null(outer), _build_is_null(inner)))
        return out


def _propagates_nulls(tree: Tree) -> bool:
    """Tell whether a tree is always null if any of its parts is null."""
    return all(isinstance(each, _PASSES) for each in tree.walk())


def _is_single_row_query(query: ResolvedQuery) -> bool:
    return isinstance(query, SelectQuery) and query.is_single_row


def _build_default_value(kind: pa.DataType) -> Tree:
    """Build an arbitrary constant of a type."""
    if pa.types.is_string(kind) or pa.types.is_large_string(kind) or kind == pa.string_view():
        return exp.Literal(this="", is_string=True)
    if pa.types.is_boolean(kind):
        return exp.false()
    if pa.types.is_date(kind) or pa.types.is_timestamp(kind):
        name = "date" if pa.types.is_date(kind) else "timestamp" if kind.tz else "timestamp_ntz"
        return build_cast(exp.Literal(this="1970-01-01", is_string=True), name)
    return build_cast(build_number(0), sql_name(working_type(kind)))


def _build_is_null(tree: Tree) -> Tree:
    return exp.Paren(this=exp.Is(this=add_brackets(tree.copy()), expression=exp.null()))


def _build_case(branches: Sequence[tuple[Tree, Tree]], default: Tree) -> Tree:
    ifs = [exp.If(this=test.copy(), true=value.copy()) for test, value in branches]
    return exp.Case(ifs=ifs, default=default)
