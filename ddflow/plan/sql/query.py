"""Represent a resolved query by its parts, their syntax trees, and the scopes of names.

Guarantees: in a resolved tree, each column is one identifier, the *logical name* of the column, such as ``o.amount``.
Logical names are unique in the query. As in Spark, a name resolves to one tree, or raises an error with the position of
the name and the most similar names. If a subquery names a column of an enclosing query, the name is recorded in
``outer`` of the subquery and of each query between the two. Trees are walked in loops instead of recursion, because a
chain of n ANDs is a tree of depth n.

>>> SetQuery(["a"], set(), "union", True, ValuesQuery(["a"], set(), []), ValuesQuery(["a"], set(), [])).op
'union'
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from typing import Any, Final, NamedTuple

from sqlglot import exp

from ddflow.columns.names import did_you_mean
from ddflow.errors import ExpressionError, shorten
from ddflow.expressions.parse import CALL_SUFFIXES, ExpressionDialect, Tree

ASKED: Final = "flow.sql"
_PLAIN: Final = re.compile(r"[A-Za-z][A-Za-z0-9_]*")
_WORDS: Final = frozenset(ExpressionDialect.Tokenizer.KEYWORDS)


class SubqueryNode(exp.Anonymous):
    """A subquery within an expression.

    The arguments of the node are the subquery's number in the query, and the operands of IN.
    """

    key = "anonymous"

    @classmethod
    def build_placeholder(cls, index: int, operands: Iterable[Tree]) -> SubqueryNode:
        """Build the node of a subquery by its number."""
        return cls(this="subquery", expressions=[build_number(index), *operands])

    @property
    def subquery_number(self) -> int:
        """The number of the subquery."""
        return int(self.expressions[0].name)

    @property
    def operands(self) -> list[Tree]:
        """The operands that IN compares."""
        return list(self.expressions[1:])


COMPARISONS: Final = (exp.GTE, exp.GT, exp.LTE, exp.LT)
"""The comparisons of an ASOF join."""


def build_query_error(tree: Tree, found: str, remedy: str) -> ExpressionError:
    """Build the error for a part of a query, with its position."""
    return ExpressionError(ASKED, f"{found}{describe_place(tree)}", remedy)


def describe_place(tree: Tree) -> str:
    """Describe the position of a part of a query.

    If the part has no known position, describe the nearest parent that has one.
    """
    if tree is None:
        return ""
    found = [node.meta for node in tree.walk() if "line" in node.meta]
    if not found:
        return describe_place(tree.parent)
    first = min(found, key=lambda meta: meta["start"])
    return f" at line {first['line']}, column {first['col'] - (first['end'] - first['start'])}"


def write_tree_sql(tree: Tree) -> str:
    """Write a tree as SQL.

    >>> from ddflow.expressions.parse import parse_expression
    >>> tree = parse_expression("(a = 1 and b > 2) and (c = 3 and d = 4 or e = 5 and c = 3)").tree
    >>> [write_tree_sql(each) for each in split_conjuncts(tree)]
    ['a = 1', 'b > 2', 'c = 3', '(d = 4) OR (e = 5)']
    >>> sorted(find_query_column_names(tree))
    ['a', 'b', 'c', 'd', 'e']
    """
    return str(tree.sql(dialect=ExpressionDialect, normalize_functions=False))


def shorten_tree_sql(tree: Tree) -> str:
    """Write a tree in a short form, for a message or as a column name."""
    return shorten(write_tree_sql(tree).replace("`", ""), 80)


def quote_name(name: str) -> str:
    """Quote a column's name for SQL if it needs quotes."""
    if _PLAIN.fullmatch(name) and name.upper() not in _WORDS:
        return name
    return f"`{name.replace('`', '``')}`"


def build_column(logical: str) -> Tree:
    """Build a column of a resolved tree."""
    return exp.Column(this=exp.Identifier(this=logical, quoted=True))


def build_window_column(call: Tree) -> Tree:
    """Build the column that a call of ``window`` or ``session_window`` adds to the rows of FROM."""
    return build_column(f"{call.name} of {write_tree_sql(call)}")


def build_number(value: int) -> Tree:
    """Build a literal."""
    return exp.Literal(this=str(value), is_string=False)


def build_call(name: str, *arguments: Tree) -> Tree:
    """Build a call of a function."""
    return exp.Anonymous(this=name, expressions=[each.copy() for each in arguments])


def build_cast(tree: Tree, kind: str) -> Tree:
    """Build a cast to an SQL type."""
    return exp.Cast(this=tree.copy(), to=exp.DataType.build(kind, dialect="spark"))


def write_order_direction(ordered: Tree) -> str:
    """Write the direction of an ORDER BY item, as in ``desc nulls last``."""
    direction = "desc" if ordered.args.get("desc") else "asc"
    return f"{direction} nulls {'first' if ordered.args.get('nulls_first') else 'last'}"


def is_window_call(node: Tree) -> bool:
    """Tell whether a node is the function before OVER, with or without its FILTER and IGNORE NULLS."""
    while isinstance(node.parent, CALL_SUFFIXES) and node.arg_key == "this":
        node = node.parent
    return isinstance(node.parent, exp.Window) and node.arg_key == "this"


def find_query_column_names(*trees: Tree) -> set[str]:
    """Return the logical names of the columns that trees read. Columns in subqueries are not included."""
    return {node.name for tree in trees for node in tree.dfs() if isinstance(node, exp.Column)}


def replace_nodes(tree: Tree, change: Callable[[Tree], Tree | None]) -> Tree:
    """Copy a tree, and replace each node by the result of ``change`` unless the result is None.

    The nodes of a result are not visited.
    """
    holder = exp.Paren(this=tree.copy())
    ahead = [holder.this]
    while ahead:
        node = ahead.pop()
        made = change(node)
        if made is None:
            ahead += list(node.iter_expressions())
        elif made is not node:
            node.replace(made)
    return holder.this


def split_conjuncts(tree: Tree | None) -> list[Tree]:
    """Split a condition at its ANDs. For each OR, factor out the conditions that all operands have in common.

    O(tree).
    """
    parts = [] if tree is None else _flatten_operands(tree, exp.And)
    return [
        each for part in parts for each in (_factor_common_conditions(part) if isinstance(part, exp.Or) else [part])
    ]


def _flatten_operands(tree: Tree, kind: Any) -> list[Tree]:
    """List the operands of nested ANDs or ORs, from left to right."""
    out, ahead = list[Tree](), [tree]
    while ahead:
        node = ahead.pop().unnest()
        if isinstance(node, kind):
            ahead += [node.expression, node.this]
        else:
            out.append(node)
    return out


def _factor_common_conditions(tree: Tree) -> list[Tree]:
    """Rewrite ``(a and b) or (a and c)`` as ``a and (b or c)``, and return the list of ``a`` and ``b or c``."""
    parts = [
        {write_tree_sql(each): each for each in split_conjuncts(branch)} for branch in _flatten_operands(tree, exp.Or)
    ]
    common = [key for key in parts[0] if all(key in part for part in parts[1:])]
    if not common:
        return [tree]
    rests = [[part[key] for key in part if key not in common] for part in parts]
    out = [parts[0][key] for key in common]
    if all(rests):
        out.append(join_with_or([join_with_and(rest) for rest in rests]))
    return out


def join_with_and(trees: Iterable[Tree]) -> Tree:
    """Combine conditions with AND."""
    return _join_conditions(exp.And, trees)


def join_with_or(trees: Iterable[Tree]) -> Tree:
    """Combine conditions with OR."""
    return _join_conditions(exp.Or, trees)


def _join_conditions(kind: Any, trees: Iterable[Tree]) -> Tree:
    parts = [each.copy() for each in trees]
    if len(parts) > 1:
        parts = [add_brackets(each) for each in parts]
    return reduce(lambda left, right: kind(this=left, expression=right), parts)


def add_brackets(tree: Tree) -> Tree:
    """Put a tree in parentheses, unless the tree can be an operand without parentheses."""
    whole = isinstance(tree, exp.Column | exp.Literal | exp.Paren | exp.Anonymous | exp.Window)
    return tree if whole else exp.Paren(this=tree)


@dataclass(eq=False)
class ResolvedQuery:
    """A resolved query. ``columns``: the names of the result columns."""

    columns: list[str]
    outer: set[str]


class Ordering(NamedTuple):
    """An item of ORDER BY. ``way``: the direction, for example ``desc nulls last``."""

    tree: Tree
    way: str


@dataclass(eq=False)
class TableLeaf:
    """A table in FROM. ``of``: a collection or a query. ``names``: the logical name of each column."""

    of: Any
    names: dict[str, str]

    def query_column_names(self) -> set[str]:
        """Return the logical names of the table."""
        return set(self.names.values())

    def list_tables(self) -> list[TableLeaf]:
        """Return the table itself; see `JoinNode.list_tables`."""
        return [self]


@dataclass(eq=False)
class JoinNode:
    """A join in FROM.  ``on``: its conditions.  ``at``: the comparison of an ASOF join."""

    left: TableLeaf | JoinNode
    right: TableLeaf | JoinNode
    how: str
    on: list[Tree]
    at: Any = None

    def query_column_names(self) -> set[str]:
        """Return the logical names of the join's result."""
        return set[str]().union(*(each.query_column_names() for each in self.list_tables()))

    def list_tables(self) -> list[TableLeaf]:
        """List the tables whose columns are in the join's result, in the order of FROM."""
        return [*self.left.list_tables(), *(() if self.how in ("semi", "anti") else self.right.list_tables())]


@dataclass(eq=False)
class SelectQuery(ResolvedQuery):
    """A SELECT.

    ``items``: the trees of ``columns``.  ``groups``: None without grouping.  ``written``: the parsed tree, for
    messages.  ``stars``: for each table under a star, the positions of its columns in ``items``; columns that the table
    gets later are added to them.  ``starred``: the positions of the columns of all stars.
    """

    items: list[Tree]
    source: TableLeaf | JoinNode | None = None
    where: list[Tree] = field(default_factory=list)
    groups: list[Tree] | None = None
    having: list[Tree] = field(default_factory=list)
    qualify: list[Tree] = field(default_factory=list)
    distinct: bool = False
    order: list[Ordering] = field(default_factory=list)
    limit: int | None = None
    offset: int = 0
    written: Tree = None
    stars: list[range] = field(default_factory=list)
    starred: set[int] = field(default_factory=set)
    window: Tree = None
    """The call of ``window`` or ``session_window``, or None. Other trees read the column that it adds to the rows."""

    @property
    def is_open_to_new_columns(self) -> bool:
        """Whether the result includes columns that are added to a table later.

        The answer is False for a query with groups, LIMIT, window functions or windows of time.
        """
        return self.groups is None and self.window is None and self.limit is None and not self.list_windows()

    def list_trees_after_where(self) -> list[Tree]:
        """List the trees that are computed after WHERE."""
        return [
            *self.items,
            *(self.groups or ()),
            *self.having,
            *self.qualify,
            *(each.tree for each in self.order),
        ]

    def list_tables(self) -> list[TableLeaf]:
        """List the tables of FROM that later clauses can read; see `JoinNode.list_tables`."""
        return [] if self.source is None else self.source.list_tables()

    def list_windows(self) -> dict[str, Tree]:
        """List the distinct window functions by their SQL texts."""
        trees = self.list_trees_after_where()
        return {write_tree_sql(each): each for tree in trees for each in tree.find_all(exp.Window)}

    @property
    def is_row_by_row(self) -> bool:
        """Whether each result row is computed from one row of FROM."""
        whole = self.distinct or self.limit is not None or self.qualify or self.list_windows()
        return self.groups is None and not whole

    @property
    def is_single_row(self) -> bool:
        """Whether the query aggregates without groups, so that its result has one row.

        The answer is False for a query with window functions.
        """
        return self.groups == [] and not self.qualify and not self.offset and not self.list_windows()


@dataclass(eq=False)
class SetQuery(ResolvedQuery):
    """A set operation.  ``op``: union, except or intersect."""

    op: str
    all: bool
    left: ResolvedQuery
    right: ResolvedQuery


@dataclass(eq=False)
class ValuesQuery(ResolvedQuery):
    """A VALUES clause. ``rows``: for each row, a list of constant trees."""

    rows: list[list[Tree]]


class VisibleColumn(NamedTuple):
    """A column to which ``*``, or a name without a table, can refer."""

    alias: str | None
    name: str
    tree: Tree


class QueryScope:
    """The scope of a query: the names that the query can use.

    ``around``: the scope of the enclosing query.  ``outer``: the logical names that the query reads from enclosing
    queries.  ``hidden``: the scope of an outer query that is not available here, as in a FROM or a WITH.

    >>> from ddflow.expressions.parse import parse_expression
    >>> names = QueryScope(None)
    >>> names.add_table("o", {"id": "o.id", "city": "o.city"})
    >>> city, id = (parse_expression(each).tree for each in ("O.City", "id"))
    >>> names.resolve_column(city).name, QueryScope(names).resolve_column(id).name
    ('o.city', 'o.id')
    >>> names.resolve_column(parse_expression("o.cty").tree)
    Traceback (most recent call last):
        ...
    ddflow.errors.ExpressionError: flow.sql: there is no column 'o.cty' at line 1, column 1; did you mean 'city'? ...
    """

    def __init__(self, around: QueryScope | None, hidden: QueryScope | None = None) -> None:
        self.around, self.hidden = around, hidden
        self.visible: list[VisibleColumn] = []
        self.aliases: dict[str, dict[str, str]] = {}
        self.lateral: dict[str, Callable[[], Tree]] = {}
        """Columns of the select list.

        An expression may use the name of such a column if no column of a table has the name.
        """
        self.outer: set[str] = set()
        self.window: Tree = None
        """The query's call of the function ``window`` or ``session_window``, or None."""

    def add_table(self, alias: str, names: dict[str, str], named: bool = True) -> None:
        """Add a table, with the logical names of its columns.

        ``named``: whether the query can use the name of the table.
        """
        if named:
            self.aliases[alias] = names
        self.visible += [VisibleColumn(alias, name, build_column(logical)) for name, logical in names.items()]

    def combine_names(self, other: QueryScope) -> QueryScope:
        """Return a scope that has the names of this scope and the names of ``other``."""
        made = QueryScope(self.around, self.hidden)
        made.visible = [*self.visible, *other.visible]
        made.aliases = {**self.aliases, **other.aliases}
        return made

    def merge_columns(self, index: int, made: VisibleColumn, sides: Sequence[VisibleColumn]) -> None:
        """Merge two columns into one, for USING. ``index``: the position of the merged column.

        Keys come before all other columns.
        """
        self.visible = [each for each in self.visible if not any(each is side for side in sides)]
        self.visible.insert(index, made)

    def drop_table(self, other: QueryScope) -> None:
        """Remove the tables and columns of another scope."""
        self.aliases = {alias: names for alias, names in self.aliases.items() if alias not in other.aliases}
        self.visible = [each for each in self.visible if not any(each is gone for gone in other.visible)]

    def find_column(self, name: str, written: Tree) -> VisibleColumn:
        """Find the column that a name without a table refers to. Raises `ExpressionError`."""
        found = _find_visible_columns(name, self.visible)
        if len(found) != 1:
            raise self.build_name_error(name, found, written)
        return found[0]

    def resolve_column(self, tree: Tree, first: Mapping[str, Callable[[], Tree]] | None = None) -> Tree:
        """Resolve a column to its tree. ``first``: names that take precedence over columns.

        Raises `ExpressionError`.
        """
        parts = [part.name for part in tree.parts]
        early = find_matching_name(parts[0], first or {}) if len(parts) == 1 else None
        if first and early is not None:
            return first[early]()
        for look in (
            (_find_qualified_column, _find_unqualified_column) if len(parts) > 1 else (_find_unqualified_column,)
        ):
            here: QueryScope | None = self
            between = list[QueryScope]()
            while here is not None:
                found = look(here, parts, tree)
                if found is not None:
                    for each in between:
                        each.outer |= find_query_column_names(found[0])
                    made = _add_field_access(*found)
                    made.meta.update(tree.parts[0].meta)
                    return made
                between.append(here)
                here = here.around
        late = find_matching_name(parts[0], self.lateral)
        if late is not None:
            return _add_field_access(self.lateral[late](), parts[1:])
        if self._is_hidden_column(parts):
            hidden = f"{'.'.join(parts)!r} is a column of an outer query, which FROM, ON and WITH cannot read"
            raise build_query_error(tree, hidden, "read it in the WHERE or the select list of the subquery itself")
        raise self.build_name_error(".".join(parts), [], tree)

    def _is_hidden_column(self, parts: Sequence[str]) -> bool:
        """Tell whether a name refers to a column of an outer query that this query is not allowed to use."""
        here, beyond = self, False
        while (around := here.around or here.hidden) is not None:
            here, beyond = around, beyond or here.around is None
            found = len(parts) > 1 and _find_qualified_column(here, parts, None)
            if beyond and (found or _find_visible_columns(parts[0], here.visible)):
                return True
        return False

    def build_name_error(self, name: str, found: Sequence[VisibleColumn], written: Tree) -> Exception:
        """Build the error for an unknown or ambiguous name."""
        if found:
            could = ", ".join(f"{each.alias}.{each.name}" for each in found)
            return build_query_error(
                written, f"the column {name!r} could be any of {could}", "write the table's name before it"
            )
        known = list(dict.fromkeys(each.name for each in self.visible))
        remedy = did_you_mean(name.rpartition(".")[2], known)
        if any(part.args.get("quoted") for part in written.find_all(exp.Identifier)):
            remedy = f"{remedy}; double quotes enclose names: write '{name}' if it is a text"
        return build_query_error(written, f"there is no column {name!r}", remedy)

    def list_star_columns(self, written: Tree, alias: str | None = None) -> list[VisibleColumn]:
        """List the columns of ``*`` or ``alias.*``."""
        if alias is None:
            return list(self.visible)
        found = find_matching_name(alias, self.aliases)
        if found is None:
            raise build_query_error(
                written, f"there is no table {alias!r}", did_you_mean(alias, self.aliases, "tables")
            )
        return [VisibleColumn(found, name, build_column(logical)) for name, logical in self.aliases[found].items()]


def find_matching_name(name: str, among: Iterable[str]) -> str | None:
    """Find a name. An exact match wins. Without an exact match, exactly one name must match if case is ignored."""
    known = list(among)
    folded = [each for each in known if each.casefold() == name.casefold()]
    return name if name in known else folded[0] if len(folded) == 1 else None


def _find_qualified_column(here: QueryScope, parts: Sequence[str], _: Tree) -> tuple[Tree, Sequence[str]] | None:
    """Find a column of a named table.

    Return the column, and the names of struct fields that follow the column's name.
    """
    alias = find_matching_name(parts[0], here.aliases)
    name = None if alias is None else find_matching_name(parts[1], here.aliases[alias])
    return None if alias is None or name is None else (build_column(here.aliases[alias][name]), parts[2:])


def _find_unqualified_column(
    here: QueryScope, parts: Sequence[str], written: Tree
) -> tuple[Tree, Sequence[str]] | None:
    """Find a column of any visible table.

    Return the column, and the names of struct fields that follow the column's name.
    """
    found = _find_visible_columns(parts[0], here.visible)
    if len(found) > 1:
        raise here.build_name_error(parts[0], found, written)
    return (found[0].tree.copy(), parts[1:]) if found else None


def _find_visible_columns(name: str, among: Sequence[VisibleColumn]) -> list[VisibleColumn]:
    exact = [each for each in among if each.name == name]
    return exact or [each for each in among if each.name.casefold() == name.casefold()]


def _add_field_access(tree: Tree, fields: Sequence[str]) -> Any:
    for name in fields:
        tree = exp.Dot(this=tree, expression=exp.Identifier(this=name, quoted=True))
    return tree
