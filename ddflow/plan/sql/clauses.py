"""Read the clauses of a SELECT: the select list, conditions, groups and order, with all expressions.

Guarantees: a name resolves to one column, or raises an error that lists similar names.

>>> from ddflow.expressions.parse import parse_expression
>>> names, read = QueryScope(None), ClauseReader().read_expression
>>> names.add_table("o", {"n": "o.n"})
>>> write_tree_sql(read(parse_expression("Round(n) + 1").tree, names, None))
'round(`o.n`) + 1'
>>> read(parse_expression("n + rand()").tree, names, None)
Traceback (most recent call last):
    ...
ddflow.errors.ExpressionError: flow.sql: rand differs from call to call at line 1, column 5; ...
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import groupby
from typing import Any, Final, NamedTuple

from sqlglot import exp

from ddflow.expressions.clock import is_clock, stands_in_condition
from ddflow.expressions.functions.catalog import find_function
from ddflow.expressions.functions.table import CLOCK_REMEDY
from ddflow.expressions.functions.time_windows import SESSION, WINDOW
from ddflow.expressions.node import Refusal
from ddflow.expressions.parse import Tree, strip_call_suffixes
from ddflow.plan.aggregates import CALLED, NAMES
from ddflow.plan.sql.query import (
    JoinNode,
    Ordering,
    QueryScope,
    ResolvedQuery,
    SelectQuery,
    SubqueryNode,
    TableLeaf,
    add_brackets,
    build_call,
    build_number,
    build_query_error,
    build_window_column,
    find_query_column_names,
    is_window_call,
    replace_nodes,
    shorten_tree_sql,
    split_conjuncts,
    write_order_direction,
    write_tree_sql,
)
from ddflow.plan.sql.windows import check_window, expand_named_windows, list_clause_nodes, replace_default

Aliases = Mapping[str, Callable[[], Tree]]
CHANGING: Final = tuple(
    getattr(exp, name)
    for name in ("CurrentDate", "CurrentTimestamp", "CurrentTime", "CurrentUser", "Rand", "Uuid")
    if hasattr(exp, name)
)
_SET: Final = {"this", "expression", "distinct", "with_", "order", "limit", "offset"}
_READ: Final[dict[Any, set[str]]] = {
    exp.Select: {
        *("with_", "expressions", "distinct", "from_", "joins", "where"),
        *("group", "having", "windows", "qualify", "order", "limit", "offset"),
    },
    **dict.fromkeys((exp.Union, exp.Except, exp.Intersect), _SET),
    exp.Subquery: {"this", "alias", "with_", "joins", "order", "limit", "offset"},
    exp.Values: {"expressions", "alias", "order", "limit", "offset", "joins"},
    exp.With: {"expressions", "recursive"},
    exp.CTE: {"this", "alias"},
    exp.From: {"this"},
    exp.Table: {"this", "alias", "joins"},
    exp.TableAlias: {"this", "columns"},
    exp.Join: {"this", "side", "kind", "method", "on", "using", "match_condition"},
    exp.Group: {"expressions", "all"},
    exp.Distinct: {"expressions", "on"},
    exp.Order: {"expressions"},
    exp.Ordered: {"this", "desc", "nulls_first"},
    exp.Limit: {"expression", "limit_options"},
    exp.Fetch: {"direction", "count", "limit_options"},
    exp.LimitOptions: {"rows"},
    exp.Offset: {"expression"},
    exp.Window: {"this", "partition_by", "order", "spec", "alias", "over"},
    exp.WindowSpec: {"kind", "start", "start_side", "end", "end_side"},
}
"""The supported clauses of each kind of node. `refuse_unsupported_clauses` refuses all clauses that are not listed."""
_LISTED: Final = "docs/sql.md lists what is supported"
_WORDS: Final = {
    "laterals": "LATERAL VIEW",
    "sample": "TABLESAMPLE",
    "pivots": "PIVOT",
    "grouping_sets": "GROUPING SETS",
    "limit.expressions": "LIMIT BY",
    "with_fill": "WITH FILL",
    "db": "a table with a database before its name",
}


class Subquery(NamedTuple):
    """A subquery within an expression.  ``kind``: scalar, exists or in."""

    kind: str
    query: ResolvedQuery
    written: Tree


def check_clock_place(node: Tree) -> None:
    """Raise `ExpressionError` unless a condition compares the clock ``node``."""
    if not stands_in_condition(node):
        raise build_query_error(
            node, f"{shorten_tree_sql(node)} is the clock, which is no value of a row", CLOCK_REMEDY
        )


def is_aggregate(node: Tree) -> bool:
    """Tell whether a node is a call of an aggregate."""
    return isinstance(node, exp.Anonymous) and node.name in NAMES


def find_aggregates(tree: Tree) -> list[Tree]:
    """List the aggregates of a resolved tree, each with its FILTER. The calls of window functions are none."""
    out, ahead = list[Tree](), [tree]
    while ahead:
        node = ahead.pop()
        if is_aggregate(strip_call_suffixes(node)) and not is_window_call(node):
            out.append(node)
        else:
            ahead += list(node.iter_expressions())
    return out


class ClauseReader:
    """A reader of clauses.

    ``nested``: the subqueries read so far, by the number in `SubqueryNode`.  ``sorted``: the query that may have ORDER
    BY without LIMIT, or None.
    """

    def __init__(self) -> None:
        self.nested: list[Subquery] = []
        self.sorted: Tree | None = None
        self.asking: QueryScope | None = None
        """The names of the query that contains the current subquery."""
        self.in_set = False
        """Whether the query is one side of a set operation.

        If True, a star does not include columns that are added to a table later.
        """

    def read_query(self, tree: Tree, withs: Any, around: QueryScope | None) -> ResolvedQuery:
        """Read a query; see `QueryReader`."""
        raise NotImplementedError

    def read_expression(
        self, tree: Tree, names: QueryScope, withs: Any, first: Aliases | None = None, before: bool = False
    ) -> Tree:
        """Resolve the names of an expression.

        ``first``: names that, outside of aggregates, take precedence over columns. ``before``: whether the expression
        is computed before rows get their windows of time.
        """

        def resolve_node(node: Tree) -> Tree | None:
            if isinstance(node, exp.Column):
                if isinstance(node.this, exp.Star):
                    raise build_query_error(node, f"{shorten_tree_sql(node)} names several columns", "name one column")
                return names.resolve_column(node, first if first and not _is_inside_aggregate(node) else {})
            if _is_window(node) and not before:
                return self._read_window(node, names, withs)
            if isinstance(node, exp.Anonymous) and not _is_exists(node):
                self._check_function(node)
            return self._resolve_subquery(node, names, withs, first)

        out = replace_nodes(tree, resolve_node)
        windows = list(out.find_all(exp.Window))
        for each in windows:
            check_window(each)
            self._check_distinct(each.this)
        for each in find_aggregates(out):
            self._check_distinct(each)
            if any(is_aggregate(part) for part in each.walk() if part is not each and part is not each.this):
                raise build_query_error(
                    tree, f"{shorten_tree_sql(tree)} has an aggregate within an aggregate", "use a subquery in FROM"
                )
            if each.find(exp.Window) is not None:
                found = f"{shorten_tree_sql(each)} aggregates a window function"
                raise build_query_error(each, found, "compute the window function in a subquery in FROM")
            if find_query_column_names(each) and find_query_column_names(each) <= names.outer:
                found = f"{shorten_tree_sql(each)} aggregates columns of the outer query"
                raise build_query_error(
                    each, found, "compute it in a subquery in FROM of the outer query, and use its column here"
                )
        return replace_nodes(out, replace_default) if windows else out

    def _read_window(self, tree: Tree, names: QueryScope, withs: Any) -> Tree:
        """Read a call of ``window`` or ``session_window``, and return the column that it adds to the rows of FROM."""
        given = [self.read_expression(each, names, withs, before=True) for each in tree.expressions]
        call = build_call(tree.name.lower(), *given)
        if names.window is not None and names.window != call:
            found = f"{shorten_tree_sql(tree)} next to {shorten_tree_sql(names.window)}"
            raise build_query_error(tree, found, "use one window of time in a query, and the other in a subquery")
        names.window = call
        return build_window_column(call)

    def _declare_window(self, tree: Tree, names: QueryScope, withs: Any) -> None:
        """Let the clauses of a SELECT use the name of a function of windows if one of them calls it."""
        for node in filter(_is_window, list_clause_nodes(tree)):
            names.lateral[node.name.lower()] = _make_tree_copier(self.read_expression(node, names, withs))

    def _resolve_subquery(self, node: Tree, names: QueryScope, withs: Any, first: Aliases | None) -> Tree | None:
        """Read a subquery as a `SubqueryNode`; return None for any other node.  Raises `ExpressionError`."""
        if isinstance(node, CHANGING) and not is_clock(node):
            remedy = "use a column or a literal instead"
            raise build_query_error(node, f"{shorten_tree_sql(node)} differs from call to call", remedy)
        if isinstance(node, exp.Any | exp.All):
            raise build_query_error(
                node, f"{shorten_tree_sql(node)} is not supported", "compare with (select max(...)) or min, or use IN"
            )
        if isinstance(node, exp.Exists) or _is_exists(node):
            return self._read_subquery(
                "exists", node.expressions[0] if _is_exists(node) else node.this, [], names, withs
            )
        if isinstance(node, exp.In) and node.args.get("query") is not None:
            operands = node.this.unnest()
            given = operands.expressions if isinstance(operands, exp.Tuple) else [node.this]
            read = [self.read_expression(each, names, withs, first) for each in given]
            if any(each.find(exp.Window) for each in read):
                found = f"{shorten_tree_sql(node.this)} is a window function, compared with a subquery"
                raise build_query_error(node.this, found, "compute the window function in a subquery in FROM")
            return self._read_subquery("in", node.args["query"], read, names, withs)
        if isinstance(node, exp.Subquery | exp.Select):
            return self._read_subquery("scalar", node, [], names, withs)
        return None

    def _read_subquery(self, kind: str, tree: Tree, operands: list[Tree], names: QueryScope, withs: Any) -> Tree:
        asking, self.asking = self.asking, names
        query = self.read_query(tree, withs or {}, names)
        self.asking = asking
        if kind != "exists" and len(query.columns) != max(len(operands), 1):
            found = f"a subquery of {len(query.columns)} columns instead of {max(len(operands), 1)}"
            raise build_query_error(tree, found, "select that many columns")
        self.nested.append(Subquery(kind, query, tree))
        return SubqueryNode.build_placeholder(len(self.nested) - 1, operands)

    def _check_function(self, node: Tree) -> None:
        """Refuse unknown functions, and functions that cannot be maintained incrementally.

        Write the name in lower case.
        """
        name = CALLED.get(node.name.lower(), node.name.lower())
        node.set("this", name)
        if name in NAMES or is_window_call(node) or is_clock(node):
            return
        try:
            find_function(name)
        except Refusal as refusal:
            raise build_query_error(node, refusal.found, refusal.fix) from None

    def _check_distinct(self, tree: Tree) -> None:
        for each in tree.find_all(exp.Distinct):
            if each.parent.name != "count":
                raise build_query_error(
                    tree, f"{shorten_tree_sql(tree)} is not supported", "aggregate a subquery of SELECT DISTINCT"
                )

    def read_conditions(self, tree: Tree, names: QueryScope, withs: Any, what: str = "ON") -> list[Tree]:
        """Read the conditions of a WHERE or an ON."""
        read = self.read_expression(tree, names, withs, before=True)
        if find_aggregates(read) or list(read.find_all(exp.Window)):
            raise build_query_error(tree, f"{what} has an aggregate or a window", "write HAVING, or QUALIFY")
        return split_conjuncts(read)

    def read_select(
        self, tree: Tree, source: TableLeaf | JoinNode | None, names: QueryScope, withs: Any
    ) -> SelectQuery:
        """Read a SELECT, except its FROM."""
        if tree.args.get("distinct") is not None and tree.args["distinct"].args.get("on") is not None:
            raise build_query_error(tree, "DISTINCT ON is not supported", "write row_number() over (...) = 1")
        if not tree.expressions:
            raise build_query_error(tree, "SELECT names no column", "name at least one column, or *")
        out = SelectQuery([], names.outer, [], source, written=tree)
        args = tree.args
        if args.get("where") is not None:
            out.where = self.read_conditions(args["where"].this, names, withs, "WHERE")
        expand_named_windows(tree)
        self._declare_window(tree, names, withs)
        for each in tree.expressions:
            self._read_select_item(each, out, names, withs)
        out.distinct = args.get("distinct") is not None
        if args.get("group") is not None:
            out.groups = self._read_groups(args["group"], out, names, withs)
        first = {name: _make_tree_copier(item) for name, item in zip(out.columns, out.items, strict=True)}
        if args.get("having") is not None:
            out.having = split_conjuncts(self.read_expression(args["having"].this, names, withs, first))
            if any(each.find(exp.Window) for each in out.having):
                raise build_query_error(args["having"], "HAVING has a window function", "write QUALIFY")
        if args.get("qualify") is not None:
            out.qualify = split_conjuncts(self.read_expression(args["qualify"].this, names, withs))
        self.read_order_and_limit(tree, out, names, withs)
        if out.groups is None and (
            args.get("having") is not None or any(map(find_aggregates, out.list_trees_after_where()))
        ):
            out.groups = []
        out.window = names.window
        if out.window is not None and out.window.name == SESSION:
            self._check_session(tree, out)
        return out

    def _check_session(self, tree: Tree, out: SelectQuery) -> None:
        """Refuse sessions that are no group.  Raises `ExpressionError`."""
        (call, *_) = filter(_is_window, list_clause_nodes(tree))
        if (count := len(out.window.expressions)) != 2:
            found = f"{shorten_tree_sql(call)} has {count} arguments"
            raise build_query_error(call, found, f"write {SESSION}(at, '10 minutes')")
        if build_window_column(out.window) not in (out.groups or ()):
            remedy = f"add {shorten_tree_sql(call)} to GROUP BY, with the columns that each have their own sessions"
            raise build_query_error(call, f"{shorten_tree_sql(call)} is not in GROUP BY", remedy)

    def _read_select_item(self, tree: Tree, out: SelectQuery, names: QueryScope, withs: Any) -> None:
        """Add an item of the select list to the query."""
        star = tree if isinstance(tree, exp.Star) else tree.this if isinstance(tree, exp.Column) else None
        if isinstance(star, exp.Star):
            if any(star.args.values()):
                raise build_query_error(tree, f"{shorten_tree_sql(tree)} is not supported", "name the columns")
            found = names.list_star_columns(tree, None if star is tree else tree.table)
            if not found:
                raise build_query_error(tree, "there is no table for *", "add FROM")
            out.starred |= {*range(len(out.items), len(out.items) + len(found))}
            for alias, each in groupby(found, key=lambda each: each.alias):
                begin, some = len(out.items), list(each)
                out.columns += [one.name for one in some]
                out.items += [one.tree.copy() for one in some]
                if alias is not None and names.around is None and not self.in_set:
                    out.stars.append(range(begin, len(out.items)))
            return
        called = tree.name.lower() if _is_window(tree) else write_tree_sql(tree)
        name = str(tree.output_name) if isinstance(tree, exp.Alias | exp.Column) else called
        item = self.read_expression(tree.this if isinstance(tree, exp.Alias) else tree, names, withs)
        names.lateral.setdefault(name, _make_tree_copier(item))
        out.columns.append(name)
        out.items.append(item)

    def _read_groups(self, tree: Tree, out: SelectQuery, names: QueryScope, withs: Any) -> list[Tree]:
        """Read the groups of GROUP BY.

        A group is an expression, or the name or position of a column of the select list.
        """
        if tree.args.get("all"):
            return [each for each in out.items if not find_aggregates(each) and each.find(exp.Window) is None]
        groups = list[Tree]()
        for each in tree.expressions:
            if isinstance(each, exp.Rollup | exp.Cube | exp.GroupingSets):
                raise build_query_error(
                    each, f"{shorten_tree_sql(each)} is not supported", "write a query for each set, with UNION ALL"
                )
            made = self._find_item_by_number(each, out)
            groups.append((self.read_expression(each, names, withs) if made is None else made).unnest())
            if find_aggregates(groups[-1]) or list(groups[-1].find_all(SubqueryNode, exp.Window)):
                found = f"GROUP BY {shorten_tree_sql(each)} has an aggregate, a window function or a subquery"
                raise build_query_error(each, found, "compute it in a subquery in FROM")
        return groups

    def _find_item_by_number(self, tree: Tree, out: SelectQuery) -> Tree | None:
        """Return the column of the select list at position ``tree``. Return None if ``tree`` is not a number."""
        if not isinstance(tree, exp.Literal) or tree.is_string:
            return None
        if not tree.name.isdecimal() or not 1 <= int(tree.name) <= len(out.items):
            raise build_query_error(
                tree, f"there is no column {tree.name} of {len(out.items)}", "count the columns from 1"
            )
        return out.items[int(tree.name) - 1].copy()

    def read_order_and_limit(self, tree: Tree, out: SelectQuery, names: QueryScope, withs: Any = None) -> None:
        """Read ORDER BY, LIMIT and OFFSET."""
        order, limit, offset = (tree.args.get(each) for each in ("order", "limit", "offset"))
        if order is not None and limit is None and tree is not self.sorted:
            remedy = (
                "a collection and its differences have no order: add LIMIT for a top, or sort the rows that you read"
            )
            shell = "ddflow sql without --diff prints its answer in the order of the last ORDER BY"
            raise build_query_error(order, "ORDER BY without LIMIT", f"{remedy}; {shell}")
        if offset is not None and limit is None:
            raise build_query_error(offset, "OFFSET without LIMIT", "add LIMIT")
        first = {name: _make_tree_copier(item) for name, item in zip(out.columns, out.items, strict=True)}
        for each in order.expressions if order is not None else ():
            if isinstance(each.this, exp.Var):
                raise build_query_error(each, f"ORDER BY {each.this.name} is not supported", _LISTED)
            made = self._find_item_by_number(each.this, out)
            if made is None:
                made = self.read_expression(each.this, names, withs, first)
            out.order.append(Ordering(made.unnest(), write_order_direction(each)))
        out.limit = None if limit is None else _parse_count(limit, 1)
        out.offset = 0 if offset is None else _parse_count(offset, 0)


def _parse_count(tree: Tree, least: int) -> int:
    value = tree.args.get("count") or build_number(1) if isinstance(tree, exp.Fetch) else tree.expression
    whole = isinstance(value, exp.Literal) and not value.is_string and value.name.isdecimal()
    if not whole or int(value.name) < least:
        raise build_query_error(
            tree, f"{tree.key.upper()} {shorten_tree_sql(value)}", f"write a whole number, {least} or more"
        )
    return int(value.name)


def _is_exists(node: Tree) -> bool:
    """Tell whether a function call is really EXISTS.

    The parser reads EXISTS of VALUES, or of a query in brackets, as a call.
    """
    named = isinstance(node, exp.Anonymous) and node.name.lower() == "exists" and len(node.expressions) == 1
    return named and isinstance(node.expressions[0], exp.Values | exp.Subquery)


def _is_window(node: Tree) -> bool:
    return isinstance(node, exp.Anonymous) and node.name.lower() in (WINDOW, SESSION)


def _make_tree_copier(tree: Tree) -> Callable[[], Tree]:
    return lambda: add_brackets(tree.copy())


def _is_inside_aggregate(node: Tree) -> bool:
    while node is not None:
        if isinstance(node, exp.Anonymous) and CALLED.get(node.name.lower(), node.name.lower()) in NAMES:
            return True
        node = node.parent
    return False


def list_unknown_clauses(tree: Tree, known: set[str]) -> list[str]:
    """List the clauses of a node that are not in ``known``."""
    return [key for key, value in tree.args.items() if key not in known and value not in (None, False, [])]


def refuse_unsupported_clauses(tree: Tree) -> None:
    """Raise `ExpressionError` if any part of a query has an unsupported clause.  O(tree)."""
    for node in tree.walk():
        if type(node) in _READ:
            refuse_unknown_clauses(node, _READ[type(node)])


def refuse_unknown_clauses(tree: Tree, known: set[str]) -> None:
    """Raise `ExpressionError` for a clause that is not in ``known``."""
    for key in list_unknown_clauses(tree, known):
        value = tree.args[key]
        where = value[0] if isinstance(value, list) else value
        word = _WORDS.get(f"{tree.key}.{key}") or _WORDS.get(key, key.strip("_").replace("_", " ").upper())
        raise build_query_error(
            where if isinstance(where, exp.Expression) else tree, f"{word} is not supported", _LISTED
        )
