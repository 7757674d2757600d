"""Subqueries in expressions, rewritten to joins.

Invariant: a row of the outer query stays one row. What a subquery asks of the outer query becomes the keys of a join:

- EXISTS and IN as conditions are semi and anti joins; elsewhere left joins with a mark that says whether a row was met.
- NOT IN knows nulls: no row is met, none of the subquery's is null, and where the outer value is null there is no row.
- An aggregate without groups has one row: grouped by the keys, joined from the left, its counts zero where nothing was.
- Another scalar subquery has one row a key at most: `Collection.single` refuses more.

Where a subquery asks more of the outer query than equalities in its WHERE, it is computed for the distinct values that
the outer query has (its *domain*), and joined on these, a null being equal to a null.

>>> import ddflow as dd
>>> people = dd.Flow().upserts("people", {"id": int, "n": int}, dd.Upsert(key="id"))
>>> rows = Relation.of_collection(people, {"id": "p.id", "n": "p.n"})
>>> len(Subqueries.null_safe(rows, [(column("p.id"), column("k"))]))
1
>>> len(Subqueries.null_safe(rows, [(column("p.n"), column("k"))]))
2
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import pyarrow as pa
from sqlglot import exp

from ddflow.expressions.parse import Tree
from ddflow.expressions.types import sql_name, working
from ddflow.plan.sql.clauses import AskedQuery
from ddflow.plan.sql.query import (
    Nested,
    ReadQuery,
    SelectQuery,
    ValuesQuery,
    add_brackets,
    all_of,
    any_of,
    call,
    cast,
    column,
    names_of,
    number,
    query_error,
    quote_name,
    replace_nodes,
    show_tree,
)
from ddflow.plan.sql.relation import Made, Pair, Relation, Steps, fresh
from ddflow.plan.sql.tables import Tables

_REJECTS: Final = (exp.EQ, exp.NEQ, exp.LT, exp.LTE, exp.GT, exp.GTE)
_PASSES: Final = (
    *(*_REJECTS, exp.Add, exp.Sub, exp.Mul, exp.Div, exp.Neg, exp.Paren),
    *(exp.Column, exp.Identifier, exp.Literal, Nested),
)
"""What is null where a part of it is."""


class Carry(NamedTuple):
    """The columns that a subquery returns beside its own, for the join with the outer query.

    ``columns``: logical names with their trees within the subquery.  ``where``: its conditions that are not keys.
    ``domain``: a table to join with those of FROM.
    """

    columns: Sequence[tuple[str, Tree]] = ()
    where: list[Tree] | None = None
    domain: Relation | None = None


class Met(NamedTuple):
    """A subquery ready to be joined.  ``keys``: pairs of outer and inner trees.  ``condition``: more, of both."""

    rows: Relation
    keys: list[Pair]
    condition: list[Tree]


class Subqueries:
    """A compiler of subqueries.  ``lower``: lowers queries.  ``tables``: finds equalities."""

    def __init__(self, lower: Any, steps: Steps, tables: Tables) -> None:
        self.lower, self.steps, self.tables = lower, steps, tables

    def where(self, rows: Relation, tree: Tree) -> Relation:
        """Keep the rows for which a condition with subqueries is true."""
        tree = tree.unnest()
        inner = tree.this.unnest() if isinstance(tree, exp.Not) else tree
        if isinstance(inner, Nested):
            asked = self.lower.find_subquery(inner)
            if asked.kind != "scalar" and not _single(asked.query):
                anti = isinstance(tree, exp.Not)
                return self._filtering(rows, inner, asked, anti)
        rows, tree = self.attach_columns(rows, tree, rejects=self._rejects(tree))
        return self.steps.filter_rows(rows, [tree])

    def _rejects(self, tree: Tree) -> bool:
        """Whether a condition is never true where one of its subqueries is null."""
        return isinstance(tree, _REJECTS) and _passes(tree)

    def attach_columns(self, rows: Relation, tree: Tree, rejects: bool = False) -> tuple[Relation, Tree]:
        """Join columns for the subqueries of a tree to the rows, and rewrite the tree over them."""
        made: dict[int, Tree] = {}
        for each in list(tree.find_all(Nested)):
            asked = self.lower.find_subquery(each)
            if asked.kind == "scalar":
                rows, value = self._scalar(rows, asked, rejects)
            elif _single(asked.query):
                rows, value = self._of_one(rows, each, asked)
            else:
                rows, value = self._lower_as_value(rows, each, asked)
            made[each.subquery_number] = exp.Paren(this=value)
        return rows, replace_nodes(tree, lambda node: made[node.subquery_number] if isinstance(node, Nested) else None)

    # Conditions: semi and anti joins.

    def _filtering(self, rows: Relation, nested: Tree, asked: AskedQuery, anti: bool) -> Relation:
        """Lower EXISTS and IN as conditions, or their negation."""
        rows, operands = self._operands(rows, nested)
        met = self._prepare_join(rows, asked, plain=True)
        other, pairs = self._match_constants(met.rows, operands)
        out = self.steps.join_rows(rows, other, [*met.keys, *pairs], "anti" if anti else "semi", met.condition)
        if not anti or asked.kind == "exists":
            return out
        if len(operands) > 1:
            raise query_error(asked.written, "NOT IN of several columns", "write NOT EXISTS, saying what null means")
        operand, value = operands[0], column("0")
        if met.rows.nullable(value):
            unknown = self.steps.filter_rows(met.rows, [_null(value)])
            out = self.steps.join_rows(out, self._few(unknown, met), met.keys, "anti", met.condition)
        if rows.nullable(operand):
            condition = [*met.condition, _null(operand)]
            out = self.steps.join_rows(out, self._few(met.rows, met), met.keys, "anti", condition)
        return out

    def _few(self, rows: Relation, met: Met) -> Relation:
        """Keep one of many rows that the join meets alike."""
        read = names_of(*(other for _, other in met.keys), *met.condition) & set(rows.names)
        if not read:
            return self.steps.distinct(self.steps.project_rows(rows, [Made("any", "any", number(1))]))
        return self.steps.distinct(self.steps.drop_unused(rows, read))

    def _operands(self, rows: Relation, nested: Tree) -> tuple[Relation, list[Tree]]:
        operands = list[Tree]()
        for each in nested.operands:
            rows, made = self.attach_columns(rows, each)
            operands.append(made.unnest())
        return rows, operands

    def _match_constants(self, rows: Relation, operands: Sequence[Tree]) -> tuple[Relation, list[Pair]]:
        """Return the rows that IN may find, and its pairs.  A constant is no key: it filters the rows before."""
        pairs = [(each, column(str(index))) for index, each in enumerate(operands)]
        fixed = [exp.EQ(this=add_brackets(one.copy()), expression=other) for one, other in pairs if not names_of(one)]
        return self.steps.filter_rows(rows, fixed), [pair for pair in pairs if names_of(pair[0])]

    # Elsewhere: marks.

    def _lower_as_value(self, rows: Relation, nested: Tree, asked: AskedQuery) -> tuple[Relation, Tree]:
        """Lower EXISTS and IN as values."""
        rows, operands = self._operands(rows, nested)
        met = self._prepare_join(rows, asked)
        if asked.kind == "exists":
            rows, found = self._mark(rows, met.rows, met.keys)
            return rows, found
        if len(operands) > 1:
            raise query_error(asked.written, "IN of several columns within an expression", "write EXISTS")
        operand, value = operands[0], column("0")
        other, pairs = self._match_constants(met.rows, operands)
        rows, found = self._mark(rows, other, [*met.keys, *pairs])
        rows, some = self._mark(rows, met.rows, met.keys)
        unknown = self.steps.filter_rows(met.rows, [_null(value)])
        rows, nulls = self._mark(rows, unknown, met.keys)
        either = any_of([nulls, all_of([some, _null(operand)])])
        return rows, _case([(found, exp.true()), (either, exp.null())], exp.false())

    def _mark(self, rows: Relation, other: Relation, keys: Sequence[Pair]) -> tuple[Relation, Tree]:
        """Join a mark to the rows; return them and a condition that is true if a row of the other side was met."""
        mark = self.steps.number("mark")
        columns = [Made(self.steps.number("key"), show_tree(each), each) for _, each in keys]
        made = self.steps.project_rows(other, [*columns, Made(mark, "met", exp.true())])
        pairs = [(one, column(each.logical)) for (one, _), each in zip(keys, columns, strict=True)]
        rows = self.steps.join_rows(rows, self.steps.distinct(made), pairs, "left", used={*rows.names, mark})
        return rows, exp.Paren(this=exp.Not(this=_null(column(mark))))

    # Values.

    def _scalar(self, rows: Relation, asked: AskedQuery, rejects: bool) -> tuple[Relation, Tree]:
        query = asked.query
        if isinstance(query, SelectQuery) and query.single:
            return self._aggregate(rows, query, query.items[0], rejects)
        met = self._prepare_join(rows, asked)
        keys = [
            Made(self.steps.number("key"), met.rows.names.get(each.name, show_tree(each)), each) for _, each in met.keys
        ]
        value = Made(self.steps.number("value"), asked.query.columns[0], column("0"))
        known = [exp.Not(this=_null(each.tree)) for each in keys if met.rows.nullable(each.tree)]
        one = self.steps.project_rows(self.steps.filter_rows(met.rows, known), [*keys, value])
        count = self.steps.number("rows")
        counted = self._count_rows(one, [one.names[each.logical] for each in keys], value, count)
        pairs = [(outer, column(each.logical)) for (outer, _), each in zip(met.keys, keys, strict=True)]
        told = [one.name if isinstance(one, exp.Column) else other.name for one, other in pairs]
        used = {*rows.names, *told, value.logical, count}
        made = self.steps.join_rows(rows, counted, pairs, "inner" if rejects else "left", used=used)
        return self._refuse_several(made, count, [made.names[each] for each in told]), column(value.logical)

    def _count_rows(self, rows: Relation, by: list[str], value: Made, count: str) -> Relation:
        """Compute a value for each key, and how many rows the key has."""
        name, counts = rows.names[value.logical], fresh("rows", rows.of.schema.names)
        told = {name: f"max({quote_name(name)})", counts: "count(*)"}

        def make() -> Any:
            return (rows.of.group_by(*by) if by else rows.of).agg(**told)

        return Relation(self.steps.then(rows.of, ("counted", *by, None, name), make), {**rows.names, count: counts})

    def _refuse_several(self, rows: Relation, count: str, keys: list[str]) -> Relation:
        """Refuse a step after which a row meets several rows of a subquery."""
        name = rows.names[count]
        of = self.steps.then(rows.of, ("single", name, *keys), lambda: rows.of.single(name, keys))
        return Relation(of, {each: its for each, its in rows.names.items() if each != count}, rows.solid)

    def _of_one(self, rows: Relation, nested: Tree, asked: AskedQuery) -> tuple[Relation, Tree]:
        """Lower EXISTS and IN of a query with one row, or none because of its HAVING."""
        query = asked.query
        assert isinstance(query, SelectQuery)
        rows, operands = self._operands(rows, nested)
        if asked.kind == "exists":
            rows, there = self._aggregate(rows, query, exp.true(), False)
            return rows, exp.Not(this=_null(there))
        if query.having or len(operands) > 1:
            raise query_error(asked.written, "IN of an aggregate under HAVING, or of several", "compare with = instead")
        rows, value = self._aggregate(rows, query, query.items[0], False)
        return rows, exp.EQ(this=add_brackets(operands[0].copy()), expression=exp.Paren(this=value))

    def _aggregate(self, rows: Relation, query: SelectQuery, item: Tree, rejects: bool) -> tuple[Relation, Tree]:
        """Compute a value of an aggregate without groups."""
        carry, outers = self._carry_columns(rows, query)
        keys = [Made(self.steps.number("key"), show_tree(tree), tree) for _, tree in carry.columns]
        found = self.lower.whole(query, carry, keys)
        pairs = [(outer, column(each.logical)) for outer, each in zip(outers, keys, strict=True)]
        pairs = self.null_safe(rows, pairs) if carry.domain is not None else pairs
        value, having = found.over(item, empty=True), [found.over(each, empty=True) for each in query.having]
        # Where no row was met all aggregates are null; but for counts, which make the value another one than without.
        null = found.over(item) == value and _passes(value) and value.find(exp.Column) is not None
        inner = rejects and null and not having
        used = {*rows.names, *names_of(value, *having)}
        rows = self.steps.join_rows(rows, found.rows, pairs, "inner" if inner else "left", used=used)
        rows, value = self.attach_columns(rows, _case([(all_of(having), value)], exp.null()) if having else value)
        return rows, value

    # What is asked of the outer query, as keys.

    def _prepare_join(self, rows: Relation, asked: AskedQuery, plain: bool = False) -> Met:
        """Lower a subquery with its join keys.  ``plain``: whether conditions of both sides are allowed."""
        query = asked.query
        if not query.outer:
            return Met(self.lower.query(query, exists=asked.kind == "exists"), [], [])
        if plain and isinstance(query, SelectQuery) and query.simple and not query.offset:
            split = self._split_where(query)
            late = [] if asked.kind == "exists" else query.items
            if split is not None and not self.lower.refs(*late) & query.outer:
                keys, own, both = split
                above = [
                    each for each in own if query.source is not None and self.tables.can_fail(each, [query.source])
                ]
                own, both = [each for each in own if each not in above], [*both, *above]
                read = [column(each) for each in sorted(names_of(*both) - query.outer)]
                inner = [(self.steps.number("key"), each) for _, each in keys]
                further = [(each.name, each) for each in read]
                carry = Carry([*inner, *further], own)
                made = self.lower.query(query, carry, exists=asked.kind == "exists")
                pairs = [(outer, column(name)) for (outer, _), (name, _) in zip(keys, inner, strict=True)]
                return Met(made, pairs, both)
        carry, outers = self._carry_columns(rows, query)
        made = self.lower.query(query, carry, exists=asked.kind == "exists")
        pairs = [(outer, column(name)) for outer, (name, _) in zip(outers, carry.columns, strict=True)]
        return Met(made, self.null_safe(rows, pairs) if carry.domain is not None else pairs, [])

    def _split_where(self, query: SelectQuery) -> tuple[list[Pair], list[Tree], list[Tree]] | None:
        """Split conditions into equalities with the outer query, conditions of its own, and other conditions of both.

        Returns None if a nested query asks for the outer query.
        """
        keys, own, both = list[Pair](), list[Tree](), list[Tree]()
        inner = query.source.logical() if query.source is not None else set[str]()
        for each in query.where:
            asks = self.lower.refs(each) & query.outer
            pair = self.tables.pair(each, query.outer, inner)
            if pair is not None:
                keys.append(pair)
            elif not asks:
                own.append(each)
            elif each.find(Nested) is None:
                both.append(each)
            else:
                return None
        return keys, own, both

    def _carry_columns(self, rows: Relation, query: ReadQuery) -> tuple[Carry, list[Tree]]:
        """Return the columns that a subquery carries, and the outer query's tree that equals each."""
        if not query.outer:
            return Carry(), []
        select = query if isinstance(query, SelectQuery) and (query.single or query.groups != []) else None
        if select is not None and not self.lower.refs(*select.late()) & query.outer:
            split = self._split_where(select)
            if split is not None and not split[2]:
                keys, own, _ = split
                return Carry([(self.steps.number("key"), each) for _, each in keys], own), [one for one, _ in keys]
        if isinstance(query, ValuesQuery):
            raise AssertionError("VALUES asks for nothing")
        outer = sorted(query.outer)
        made = self.steps.project_rows(rows, [Made(each, each, column(each)) for each in outer])
        domain = self.steps.distinct(made)
        return Carry([(each, column(each)) for each in outer], None, domain), [column(each) for each in outer]

    @staticmethod
    def null_safe(rows: Relation, pairs: Sequence[Pair]) -> list[Pair]:
        """Extend pairs so that a null equals a null."""
        out = list[Pair]()
        for outer, inner in pairs:
            if not rows.nullable(outer):
                out.append((outer, inner))
                continue
            other = _some(rows.type(outer))
            out.append((call("coalesce", outer, other), call("coalesce", inner, other)))
            out.append((_null(outer), _null(inner)))
        return out


def _passes(tree: Tree) -> bool:
    """Whether a tree is null where a part of it is."""
    return all(isinstance(each, _PASSES) for each in tree.walk())


def _single(query: ReadQuery) -> bool:
    return isinstance(query, SelectQuery) and query.single


def _some(kind: pa.DataType) -> Tree:
    """Return some value of a type."""
    if pa.types.is_string(kind) or pa.types.is_large_string(kind) or kind == pa.string_view():
        return exp.Literal(this="", is_string=True)
    if pa.types.is_boolean(kind):
        return exp.false()
    if pa.types.is_date(kind) or pa.types.is_timestamp(kind):
        name = "date" if pa.types.is_date(kind) else "timestamp" if kind.tz else "timestamp_ntz"
        return cast(exp.Literal(this="1970-01-01", is_string=True), name)
    return cast(number(0), sql_name(working(kind)))


def _null(tree: Tree) -> Tree:
    return exp.Paren(this=exp.Is(this=add_brackets(tree.copy()), expression=exp.null()))


def _case(branches: Sequence[tuple[Tree, Tree]], default: Tree) -> Tree:
    ifs = [exp.If(this=test.copy(), true=value.copy()) for test, value in branches]
    return exp.Case(ifs=ifs, default=default)
