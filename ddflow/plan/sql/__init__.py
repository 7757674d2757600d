"""Compile a query in Spark's SQL to a plan. The query reads inputs of a flow and collections.

`QueryReader` parses the text and resolves its names; `lower.py` then lowers the query to verbs of
`ddflow.plan.collection.Collection`. Compiling a query runs nothing.

Guarantees: equal texts over equal tables give equal plans. If a clause is unsupported or cannot be maintained
incrementally, an error states the name and the position of the clause. Each query of a WITH clause is read only once.

>>> import ddflow as dd
>>> flow = dd.Flow()
>>> people = flow.upserts("people", {"id": int, "city": str}, dd.Upsert(key="id"))
>>> flow.sql("select upper(city) town from people where id > 1")
Project(town string)
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from sqlglot import exp

from ddflow.aside import run_on_new_stack
from ddflow.columns.names import did_you_mean
from ddflow.errors import DdflowError, ExpressionError, Option, SpecError
from ddflow.expressions.clock import is_clock
from ddflow.expressions.node import Refusal
from ddflow.expressions.parse import Tree, parse_query
from ddflow.plan.collection import walk_inputs
from ddflow.plan.sql.clauses import (
    CHANGING,
    ClauseReader,
    check_clock_place,
    list_unknown_clauses,
    refuse_unknown_clauses,
    refuse_unsupported_clauses,
)
from ddflow.plan.sql.lower import QueryLowering
from ddflow.plan.sql.query import (
    ASKED,
    COMPARISONS,
    JoinNode,
    QueryScope,
    ResolvedQuery,
    SelectQuery,
    SetQuery,
    TableLeaf,
    ValuesQuery,
    VisibleColumn,
    build_call,
    build_column,
    build_query_error,
    find_matching_name,
    quote_name,
    shorten_tree_sql,
)
from ddflow.plan.sql.relation import find_free_name
from ddflow.plan.verbs.family import find_operator_class

Withs = Mapping[str, ResolvedQuery]
_SETS: Final = {exp.Union: "union", exp.Except: "except", exp.Intersect: "intersect"}
_HOWS: Final = {
    ("", ""): "inner",
    ("", "INNER"): "inner",
    ("", "CROSS"): "inner",
    ("LEFT", ""): "left",
    ("LEFT", "OUTER"): "left",
    ("RIGHT", ""): "right",
    ("RIGHT", "OUTER"): "right",
    ("FULL", ""): "full",
    ("FULL", "OUTER"): "full",
    ("LEFT", "SEMI"): "semi",
    ("", "SEMI"): "semi",
    ("LEFT", "ANTI"): "anti",
    ("", "ANTI"): "anti",
}


class QueryReader(ClauseReader):
    """A reader of queries. ``tables``: the tables that FROM can name.

    ``columns_of``: a function that returns a table's columns.

    >>> reader = QueryReader({"orders": object()}, lambda of: ["id", "city"])
    >>> query = reader.read_sql("select city from orders o where id > 1")
    >>> from ddflow.plan.sql.query import write_tree_sql
    >>> query.columns, [write_tree_sql(each) for each in query.where]
    (['city'], ['`o.id` > 1'])
    >>> reader.read_sql("select city from orders order by id")
    Traceback (most recent call last):
        ...
    ddflow.errors.ExpressionError: flow.sql: ORDER BY without LIMIT at line 1, column 34; ...
    """

    def __init__(self, tables: Mapping[str, Any], columns_of: Callable[[Any], Sequence[str]]) -> None:
        super().__init__()
        self.tables, self.columns_of = tables, columns_of
        self.used: list[Any] = []
        """The tables that the query reads."""
        self._taken: dict[str, int] = {}

    def read_sql(self, sql: str, sorted: bool = False) -> ResolvedQuery:
        """Read the text of a query. ``sorted``: whether an ORDER BY without a LIMIT is allowed.

        Raises `ExpressionError`.
        """
        try:
            tree = parse_query(sql)
        except Refusal as refusal:
            raise ExpressionError(ASKED, refusal.found, refusal.fix) from refusal
        for node in tree.find_all(*CHANGING):
            self._record_function_position(node, sql)
        for node in list(filter(is_clock, tree.walk())):
            check_clock_place(node)
        refuse_unsupported_clauses(tree)
        self.sorted = tree if sorted else None
        return self.read_query(tree, {}, None)

    def _record_function_position(self, node: Tree, sql: str) -> None:
        """Record the position of a function that is called without brackets.

        The parser does not record this position.
        """
        word = re.search(rf"\b{re.escape(type(node).sql_names()[0])}\b", sql, re.IGNORECASE)
        if word is not None and "line" not in node.meta:
            line, begin = sql.count("\n", 0, word.start()) + 1, sql.rfind("\n", 0, word.start()) + 1
            node.meta.update(line=line, col=word.end() - begin, start=word.start(), end=word.end() - 1)

    def read_query(self, tree: Tree, withs: Withs, around: QueryScope | None) -> ResolvedQuery:
        """Read a query or subquery. ``withs``: the queries of all WITH clauses that enclose the query."""
        withs = self._read_with_clause(tree, withs)
        if isinstance(tree, exp.Subquery) and not list_unknown_clauses(tree, {"this", "with_"}):
            inner = tree.this
            if tree is self.sorted:
                self.sorted = inner
            return self.read_query(inner, withs, around)
        if isinstance(tree, exp.Select):
            return self._read_select(tree, withs, around)
        made: ResolvedQuery
        if type(tree) in _SETS:
            made = self._read_set_operation(tree, withs, around)
        elif isinstance(tree, exp.Values):
            made = self._read_values(tree)
        else:
            if not isinstance(tree, exp.Subquery):
                raise build_query_error(
                    tree, f"{type(tree).__name__.upper()} is not a query", "write SELECT, VALUES or WITH"
                )
            refuse_unknown_clauses(tree, {"this", "with_", "order", "limit", "offset"})
            made = self.read_query(tree.this, withs, around)
        return self._add_order_and_limit(tree, made)

    def _read_with_clause(self, tree: Tree, withs: Withs) -> Withs:
        written = tree.args.get("with_")
        if written is None:
            return withs
        if written.args.get("recursive"):
            raise build_query_error(
                written, "WITH RECURSIVE cannot be maintained", "write each step as a separate query"
            )
        made = dict(withs)
        for number, each in enumerate(written.expressions):
            if find_matching_name(each.alias, [one.alias for one in written.expressions[:number]]):
                raise build_query_error(
                    each, f"two queries of WITH are called {each.alias!r}", "use a different name for each"
                )
            made[each.alias] = self._rename_columns(self.read_query(each.this, made, None), each.args.get("alias"))
        return made

    def _rename_columns(self, query: ResolvedQuery, alias: Tree | None) -> ResolvedQuery:
        """Rename the columns of a query to the names in brackets after the alias, as in ``t(a, b)``."""
        names = [each.name for each in alias.args.get("columns") or ()] if alias is not None else []
        if not names:
            return query
        if len(names) != len(query.columns):
            found = f"{len(names)} names for {len(query.columns)} columns"
            raise build_query_error(alias, found, f"name all of {query.columns}")
        leaf = self._build_table_leaf(query, query.columns, "q")
        return SelectQuery(names, set(), [build_column(each) for each in leaf.names.values()], leaf)

    def _build_table_leaf(self, of: Any, columns: Sequence[str], alias: str) -> TableLeaf:
        twice = sorted({each for each in columns if list(columns).count(each) > 1})
        if twice:
            raise ExpressionError(
                ASKED, f"{alias!r} has several columns called {twice}", "use a different alias for each"
            )
        self._taken[alias] = self._taken.get(alias, 0) + 1
        prefix = alias if self._taken[alias] == 1 else f"{alias}_{self._taken[alias]}"
        return TableLeaf(of, {name: f"{prefix}.{name}" for name in columns})

    def _add_order_and_limit(self, tree: Tree, made: ResolvedQuery) -> ResolvedQuery:
        """Add to a resolved query the ORDER BY and LIMIT that follow a set operation or VALUES."""
        if not list_unknown_clauses(tree, {"this", "expression", "distinct", "expressions", "with_", "alias"}):
            return made
        leaf = self._build_table_leaf(made, made.columns, "q")
        out = SelectQuery(
            made.columns, made.outer, [build_column(each) for each in leaf.names.values()], leaf, written=tree
        )
        names = QueryScope(None, self.asking)
        names.add_table("q", leaf.names)
        self.read_order_and_limit(tree, out, names)
        return out

    def _read_set_operation(self, tree: Tree, withs: Withs, around: QueryScope | None) -> ResolvedQuery:
        before, self.in_set = self.in_set, True
        left, right = (self.read_query(each, withs, around) for each in (tree.this, tree.expression))
        self.in_set = before
        op = _SETS[type(tree)]
        if len(left.columns) != len(right.columns):
            found = f"{op.upper()} of {len(left.columns)} and {len(right.columns)} columns"
            raise build_query_error(tree, found, "select the same number of columns on both sides")
        return SetQuery(left.columns, left.outer | right.outer, op, not tree.args.get("distinct"), left, right)

    def _read_values(self, tree: Tree) -> ValuesQuery:
        rows = [list(each.expressions) if isinstance(each, exp.Tuple) else [each] for each in tree.expressions]
        rows = [[self.read_expression(each, QueryScope(None, self.asking), None) for each in row] for row in rows]
        if len({len(row) for row in rows}) != 1 or not rows[0]:
            raise build_query_error(
                tree, "the rows of VALUES are empty or differ in length", "write the same number of values in each row"
            )
        return ValuesQuery([f"col{i + 1}" for i in range(len(rows[0]))], set(), rows)

    def _read_select(self, tree: Tree, withs: Withs, around: QueryScope | None) -> SelectQuery:
        names, source = QueryScope(around, self.asking), None
        if tree.args.get("from_") is not None:
            source, found = self._read_from(tree.args["from_"].this, tree.args.get("joins") or (), withs)
            names.visible, names.aliases = found.visible, found.aliases
        return self.read_select(tree, source, names, withs)

    def _read_from(self, tree: Tree, joins: Sequence[Tree], withs: Withs) -> tuple[TableLeaf | JoinNode, QueryScope]:
        """Read FROM, and collect the names that it declares."""
        source, names = self._read_relation(tree, withs)
        for join in joins:
            source, names = self._read_join(source, names, join, withs)
        return source, names

    def _read_relation(self, tree: Tree, withs: Withs) -> tuple[TableLeaf | JoinNode, QueryScope]:
        alias, names = tree.args.get("alias"), QueryScope(None, self.asking)
        if isinstance(tree, exp.Subquery) and isinstance(tree.this, exp.Table | exp.Subquery) and not alias:
            refuse_unknown_clauses(tree, {"this"})  # ( a join b )
            return self._read_from(tree.this, tree.args.get("joins") or (), withs)
        if isinstance(tree, exp.Table) and isinstance(tree.this, exp.Identifier):
            of, name = self._find_table(tree, withs), tree.alias or tree.name
            columns = of.columns if isinstance(of, ResolvedQuery) else self.columns_of(of)
            inner = tree.args.get("joins") or ()
        elif isinstance(tree, exp.Subquery | exp.Values):
            refuse_unknown_clauses(tree, {"this", "expressions", "alias", "joins"})
            query = tree.this if isinstance(tree, exp.Subquery) else tree
            of, name, inner = self.read_query(query, withs, None), tree.alias, tree.args.get("joins") or ()
            columns = of.columns
        else:
            what = shorten_tree_sql(tree) if isinstance(tree, exp.Table) else tree.key.upper()
            found = f"{what} in FROM is not supported"
            raise build_query_error(tree, found, "name an input, a collection or a query of WITH, or write a subquery")
        if alias is not None and alias.args.get("columns"):
            of = self._rename_columns(of if isinstance(of, ResolvedQuery) else self._select_all(of), alias)
            columns = of.columns
        leaf = self._build_table_leaf(of, list(columns), name or "q")
        names.add_table(name or f"({self._taken['q']})", leaf.names, bool(name))
        source: TableLeaf | JoinNode = leaf
        for join in inner:
            source, names = self._read_join(source, names, join, withs)
        return source, names

    def _select_all(self, of: Any) -> ResolvedQuery:
        """Build ``select * from`` a collection."""
        leaf = self._build_table_leaf(of, list(self.columns_of(of)), "q")
        return SelectQuery(list(leaf.names), set(), [build_column(each) for each in leaf.names.values()], leaf)

    def _find_table(self, tree: Tree, withs: Withs) -> Any:
        found = find_matching_name(tree.name, withs)
        if found is not None:
            return withs[found]
        found = find_matching_name(tree.name, self.tables)
        if found is None:
            remedy = did_you_mean(tree.name, [*withs, *self.tables], "tables")
            raise build_query_error(tree, f"there is no table {tree.name!r}", remedy)
        self.used.append(self.tables[found])
        return self.tables[found]

    def _read_join(
        self, left: TableLeaf | JoinNode, names: QueryScope, tree: Tree, withs: Withs
    ) -> tuple[JoinNode, QueryScope]:
        how = _HOWS.get((tree.side.upper(), tree.kind.upper()))
        asof, matched = tree.method.upper() == "ASOF", tree.args.get("match_condition")
        known = how in ("inner", "left") if asof else matched is None and tree.method.upper() in ("", "NATURAL")
        if how is None or not known:
            words = " ".join(each for each in (tree.method, tree.side, tree.kind, "JOIN") if each)
            words += " with MATCH_CONDITION" if matched is not None else ""
            raise build_query_error(tree, f"{words} is not supported", "write INNER, LEFT, RIGHT, FULL, SEMI or ANTI")
        right, other = self._read_relation(tree.this, withs)
        clash = [each for each in other.aliases if find_matching_name(each, names.aliases)]
        if clash:
            raise build_query_error(
                tree, f"two tables are called {clash[0]!r}", "use a different alias for one of them"
            )
        both, using = names.combine_names(other), [each.name for each in tree.args.get("using") or ()]
        if tree.args.get("using") == []:
            raise build_query_error(tree, "USING names no column", "name at least one column, or write CROSS JOIN")
        if tree.method and not asof:
            using = [
                each.name
                for each in names.visible
                if find_matching_name(each.name, [one.name for one in other.visible])
            ]
        on = [] if tree.args.get("on") is None else self.read_conditions(tree.args["on"], both, withs)
        for index, name in enumerate(using):
            one, two = names.find_column(name, tree), other.find_column(name, tree)
            last = asof and matched is None and index == len(using) - 1
            on.append((exp.GTE if last else exp.EQ)(this=one.tree.copy(), expression=two.tree.copy()))
            both.merge_columns(index, VisibleColumn(None, one.name, _merge_using_columns(how, one, two)), [one, two])
        made = JoinNode(left, right, how, on)
        if asof:
            given = on if matched is None else self.read_conditions(matched, both, withs, "MATCH_CONDITION")
            compared = [each for each in given if isinstance(each, COMPARISONS)]
            if len(compared) != 1 or (matched is not None and len(given) != 1):
                found = f"ASOF JOIN has {len(compared)} comparisons"
                raise build_query_error(tree, found, "write one, as in MATCH_CONDITION (l.t >= r.t)")
            made.at, made.on = compared[0], [each for each in on if each is not compared[0]]
        if how in ("semi", "anti"):
            both.drop_table(other)
        return made, both


def _merge_using_columns(how: str, left: VisibleColumn, right: VisibleColumn) -> Tree:
    """Build the column that USING makes from two columns with the same name."""
    if how == "full":
        return build_call("coalesce", left.tree, right.tree)
    return (right if how == "right" else left).tree.copy()


class PlannedQuery(NamedTuple):
    """A planned query. ``by``: the order of the rows, in the syntax of the verb `top`."""

    of: Any
    by: list[str]
    columns: list[str]
    """The columns of the query.

    Besides the columns of the result, the collection can have columns that only the order needs.
    """


def plan_sql(flow: Any, text: str, collections: Mapping[str, Any]) -> Any:
    """Build the collection of a query.  See `ddflow.plan.plan.Plan.sql`."""
    return _plan_query(flow, text, collections, False).of


def plan_sorted_query(flow: Any, text: str) -> PlannedQuery:
    """Build the collection of a query over inputs, and return the order that ORDER BY gives. A LIMIT is not required.

    Raises the errors of `ddflow.plan.plan.Plan.sql`. Raises `ExpressionError` if SELECT DISTINCT lacks a column that
    ORDER BY needs.
    """
    return _plan_query(flow, text, {}, True)


def _plan_query(flow: Any, text: str, collections: Mapping[str, Any], sorted: bool) -> PlannedQuery:
    if not isinstance(text, str):
        raise ExpressionError(ASKED, f"the query is {text!r:.99}", "pass the query as text")
    for name, each in collections.items():
        if getattr(each, "flow", None) is not flow:
            raise SpecError(
                ASKED,
                Option(name) + f" is {each!r:.99}, which is not a collection of this flow",
                "build it in this flow",
            )
    tables = {**flow.inputs, **collections}

    def build_answer() -> PlannedQuery:
        reader = QueryReader(tables, lambda of: of.schema.names)
        query = reader.read_sql(text, sorted)
        columns, by = list(query.columns), _extract_final_order(query) if sorted else []

        def constant(columns: list[str], rows: list[list[str]]) -> Any:
            return flow.reuse_equal_node(
                find_operator_class("constant")(_list_used_inputs(flow, reader.used), columns, rows)
            )

        return PlannedQuery(QueryLowering(reader.nested, constant).build_collection(query), by, columns)

    nodes = list(flow.nodes)
    try:
        return run_on_new_stack(build_answer)
    except (DdflowError, RecursionError) as error:
        flow.nodes[:] = nodes  # drop the collections of the failed query
        if isinstance(error, DdflowError):
            raise
        remedy = "build collections from its parts, and pass them by name"
        raise ExpressionError(ASKED, "the query is nested too deeply", remedy) from error


def _extract_final_order(query: ResolvedQuery) -> list[str]:
    """Return the order of a query's rows, and add the columns of the order to the query.

    Remove an ORDER BY without a LIMIT.
    """
    if not isinstance(query, SelectQuery):
        return []
    by = list[str]()
    for tree, direction in query.order:
        name = next(
            (name for name, item in zip(query.columns, query.items, strict=True) if item.unnest() == tree), None
        )
        if name is None:
            if query.distinct:
                raise build_query_error(
                    query.written,
                    f"ORDER BY {shorten_tree_sql(tree)} is not in SELECT DISTINCT",
                    "add it to the select list",
                )
            name = find_free_name(shorten_tree_sql(tree), query.columns)
            query.columns.append(name)
            query.items.append(tree.copy())
        by.append(f"{quote_name(name)} {direction}")
    if query.limit is None:
        query.order.clear()
    return by


def _list_used_inputs(flow: Any, used: Iterable[Any]) -> list[Any]:
    """List the inputs that some collections read. If the collections read no input, list all inputs. O(nodes)."""
    found = walk_inputs(used)
    inputs = list(flow.inputs.values())
    if not inputs:
        raise SpecError(
            ASKED, "the flow has no inputs, and VALUES starts with the first event of an input", "add an input first"
        )
    return [each for each in inputs if each in found] or inputs
