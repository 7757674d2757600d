"""Read the window functions of a query, and add their results to its rows.

A window function is a call with OVER. The query reads it after its groups, and before QUALIFY, DISTINCT and LIMIT.

Guarantees: calls with equal PARTITION BY and ORDER BY become one `over`, with one arrangement. An aggregate without
ORDER BY shares the arrangement of an equal partition with ORDER BY. A ``row_number()`` alone becomes a `top`, which is
cheaper, if QUALIFY or the outer query gives a bound. The columns of the input, in their order, decide between peers.

>>> from ddflow.expressions.parse import parse_query
>>> query = parse_query("select sum(n) over (w order by id) from o window w as (partition by city)")
>>> expand_named_windows(query)
>>> write_tree_sql(query.expressions[0])
'sum(n) OVER (PARTITION BY city ORDER BY id)'
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

from sqlglot import exp

from ddflow.columns.names import did_you_mean
from ddflow.errors import ExpressionError
from ddflow.expressions.parse import Tree, strip_call_suffixes
from ddflow.plan.aggregates import NAMES
from ddflow.plan.sql.query import (
    SelectQuery,
    TableLeaf,
    build_call,
    build_column,
    build_number,
    build_query_error,
    find_matching_name,
    quote_name,
    replace_nodes,
    shorten_tree_sql,
    write_order_direction,
    write_tree_sql,
)
from ddflow.plan.sql.relation import ProjectedColumn, QueryVerbs, Relation, find_free_name

Bounds = Mapping[int, tuple[int, bool]]
"""For each rank column: the upper bound of the rank, and whether the query reads the column."""
_PARTS: Final = ("partition_by", "order", "spec")
_OPTIONS: Final = ("self", "partition_by", "order_by")
"""The parameters of the verb `over`. No result can have one of these names."""
_UNORDERED: Final = NAMES - {"array_agg", "first", "last"}
"""The aggregates whose results do not depend on the order of the rows."""
_EQUAL_FOR_PEERS: Final = {*_UNORDERED, "rank", "dense_rank", "percent_rank", "cume_dist"}
"""The functions whose results do not depend on the order of peers, unless a frame counts rows."""


# Reading of window functions.


def expand_named_windows(select: Tree) -> None:
    """Write the parts of named windows into the calls of a SELECT that use them.  Raises `ExpressionError`."""
    named = dict[str, Tree]()
    for each in select.args.get("windows") or ():
        if find_matching_name(each.name, named) is not None:
            raise build_query_error(each, f"two windows are called {each.name!r}", "use a different name for each")
        _expand_window(each, named)
        named[each.name] = each
    for each in list_clause_nodes(select):
        if isinstance(each, exp.Window):
            _expand_window(each, named)


def list_clause_nodes(select: Tree) -> Iterator[Tree]:
    """List the nodes of the clauses that are computed after WHERE, without those of subqueries."""
    clauses = [*select.expressions, *filter(None, map(select.args.get, ("group", "having", "qualify", "order")))]
    for clause in clauses:
        yield from clause.walk(prune=lambda node: isinstance(node, exp.Select | exp.Subquery))


def _expand_window(window: Tree, named: Mapping[str, Tree]) -> None:
    """Copy the parts of the window that an OVER names."""
    if window.args.get("alias") is None:
        return
    name = window.args["alias"].name
    found = find_matching_name(name, named)
    if found is None:
        remedy = did_you_mean(name, named, "windows") if named else f"add WINDOW {name} AS (...) to the query"
        raise build_query_error(window, f"there is no window {name!r}", remedy)
    base, own = named[found].args, {each for each in _PARTS if window.args.get(each)}
    if "partition_by" in own or ("order" in own and base.get("order")) or (own and base.get("spec")):
        remedy = "write all clauses of the window in OVER"
        raise build_query_error(window, f"OVER repeats or changes a clause of the window {name!r}", remedy)
    for each in _PARTS:
        if each not in own and base.get(each):
            part = base[each]
            window.set(each, [one.copy() for one in part] if isinstance(part, list) else part.copy())
    window.set("alias", None)


def check_window(window: Tree) -> None:
    """Refuse a window function within another one, and frames of GROUPS.  Raises `ExpressionError`."""
    frame = window.args.get("spec")
    if frame is not None and frame.args["kind"].upper() == "GROUPS":
        raise build_query_error(window, f"{shorten_tree_sql(window)} has a frame of GROUPS", "use ROWS or RANGE")
    if len(list(window.find_all(exp.Window))) > 1:
        found = f"{shorten_tree_sql(window)} has a window function within a window function"
        raise build_query_error(window, found, "compute the inner one in a subquery in FROM")


def replace_default(node: Tree) -> Tree | None:
    """Rewrite ``lag(x, k, d)`` and ``lead(x, k, d)`` without d, the value for a row without such a neighbour.

    >>> from ddflow.expressions.parse import parse_expression
    >>> write_tree_sql(replace_default(parse_expression("lag(n, 2, 0) over (order by id)").tree))
    'if(lag(TRUE, 2) OVER (ORDER BY id) IS NULL, 0, lag(n, 2) OVER (ORDER BY id))'
    """
    call = strip_call_suffixes(node.this) if isinstance(node, exp.Window) else node
    if call is node or call.name not in ("lag", "lead") or len(call.expressions) != 3:
        return None
    value, distance, default = call.expressions
    plain = node.copy()
    strip_call_suffixes(plain.this).set("expressions", [value.copy(), distance.copy()])
    if isinstance(node.this, exp.IgnoreNulls) or isinstance(value, exp.IgnoreNulls):
        return build_call("coalesce", plain, default)
    there = plain.copy()
    strip_call_suffixes(there.this).set("expressions", [exp.true(), distance.copy()])
    return build_call("if", exp.Is(this=there, expression=exp.null()), default, plain)


# Bounds of ranks.


def is_row_number(window: Tree) -> bool:
    """Tell whether a window function is a valid ``row_number``, whose first ranks a `top` can compute."""
    call = window.this
    plain = isinstance(call, exp.Anonymous) and call.name == "row_number" and not call.expressions
    return plain and window.args.get("order") is not None and window.args.get("spec") is None


def is_unbounded_rank(query: SelectQuery, index: int) -> bool:
    """Tell whether a column of a query is a ``row_number`` that becomes a `top` if the outer query gives a bound."""
    item = query.items[index].unnest()
    if isinstance(item, exp.Window):
        alone = len(query.list_windows()) == 1 and not query.qualify and query.limit is None
        return alone and is_row_number(item)
    below = _find_source_column(query, item)
    return below is not None and is_unbounded_rank(*below)


def _find_source_column(query: SelectQuery, item: Tree) -> tuple[SelectQuery, int] | None:
    """Trace a SELECT item back to a column of a subquery in FROM.

    Return None if the item is computed and not only renamed.
    """
    leaf = query.source
    if not query.is_row_by_row or not isinstance(leaf, TableLeaf) or not isinstance(leaf.of, SelectQuery):
        return None
    names = list(leaf.names.values())
    if not isinstance(item, exp.Column) or item.name not in names:
        return None
    return leaf.of, names.index(item.name)


_FLIPPED = {exp.GTE: exp.LTE, exp.GT: exp.LT, exp.EQ: exp.EQ}


def split_rank_bound(trees: list[Tree], rank: str) -> tuple[int | None, list[Tree]]:
    """Find the smallest bound of a rank, and the remaining conditions.

    ``rank``: the name of the rank column, or its SQL.

    >>> from ddflow.expressions.parse import parse_expression
    >>> below, other = parse_expression("rn < 4").tree, parse_expression("a = 1").tree
    >>> split_rank_bound([below, other], "rn")[0], split_rank_bound([other], "rn")[0]
    (3, None)
    """
    found = [(_parse_rank_bound(tree, rank), tree) for tree in trees]
    bounds = [bound for bound, _ in found if bound is not None]
    left = trees if len(bounds) > 1 else [tree for bound, tree in found if bound is None or not bound[1]]
    return min((k for k, _ in bounds), default=None), list(left)


def _parse_rank_bound(tree: Tree, rank: str) -> tuple[int, bool] | None:
    """Return the k of ``rank <= k``, and whether the bound replaces the complete condition."""
    if isinstance(tree, exp.Between):
        high = _parse_integer(tree.args["high"])
        return (high, False) if _is_rank(tree.this, rank) and high is not None else None
    kind, one, other = type(tree), tree.args.get("this"), tree.args.get("expression")
    if kind in _FLIPPED and isinstance(other, exp.Expression) and _is_rank(other, rank):
        kind, one, other = _FLIPPED[kind], other, one
    if kind not in (exp.LTE, exp.LT, exp.EQ) or not _is_rank(one, rank):
        return None
    k = _parse_integer(other)
    if k is None:
        return None
    return (k - 1, True) if kind is exp.LT else (k, kind is exp.LTE or k == 1)


def _is_rank(tree: Tree, rank: str) -> bool:
    tree = tree.unnest()
    return bool(tree.name == rank if isinstance(tree, exp.Column) else write_tree_sql(tree) == rank)


def _parse_integer(tree: Tree) -> int | None:
    tree = tree.unnest()
    return int(tree.name) if isinstance(tree, exp.Literal) and tree.name.isdecimal() else None


# Lowering of window functions.


class CallsOfWindow(NamedTuple):
    """Calls that share a partition and an order. ``orders``: each with its direction. ``calls``: by SQL text."""

    parts: list[ProjectedColumn]
    orders: list[tuple[ProjectedColumn, str]]
    calls: dict[str, Tree]


class WindowedRows:
    """The rows of a query, with the results of its window functions.

    ``columns``: the select list.  ``extra``: other columns of the result.  ``qualify``: the conditions of QUALIFY.
    ``orders``: the items of ORDER BY.

    >>> import ddflow as dd
    >>> people = dd.Flow().upserts("people", {"id": int, "n": int}, dd.Upsert(key="id"))
    >>> query = SelectQuery(["id"], set(), [build_column("p.id")])
    >>> windowed = WindowedRows(QueryVerbs(), query, [], [], [], [])
    >>> rows, replace_windows = windowed.compute_rows(Relation(people, {"p.id": "id"}), ["p.id"], {})
    >>> rows.of is people, write_tree_sql(replace_windows(build_column("p.id")))
    (True, '`p.id`')
    """

    def __init__(
        self,
        steps: QueryVerbs,
        query: SelectQuery,
        columns: list[ProjectedColumn],
        extra: Sequence[ProjectedColumn],
        qualify: Sequence[Tree],
        orders: Sequence[tuple[Tree, str]],
    ) -> None:
        self.steps, self.query, self.columns, self.extra = steps, query, columns, extra
        self.qualify, self.orders = list(qualify), orders

    def compute_rows(
        self, rows: Relation, order: Sequence[str], bounds: Bounds
    ) -> tuple[Relation, Callable[[Tree], Tree]]:
        """Add the results of the window functions, and keep the rows that pass QUALIFY and ``bounds``.

        Return the rows, and a function that replaces window functions by their columns.
        ``order``: the columns of the input, by which rows are ordered that are peers.
        """
        trees = [*(each.tree for each in self.columns), *self.qualify, *(tree for tree, _ in self.orders)]
        windows = {write_tree_sql(each): each for tree in trees for each in tree.find_all(exp.Window)}
        if not windows:
            if self.qualify:
                found = f"QUALIFY {shorten_tree_sql(self.qualify[0])} has no window"
                raise build_query_error(self.query.written, found, "write WHERE, or HAVING")
            return rows, lambda tree: tree
        k, left = self._find_bound(windows, bounds)
        unasked = {i for i, (_, used) in bounds.items() if not used}
        self.columns[:] = [each for i, each in enumerate(self.columns) if i not in unasked]
        read = [*(each.tree for each in self.columns), *left, *(tree for tree, _ in self.orders)]
        groups = _group_calls(windows)
        order = [each for each in order if each in rows.names]
        ties = list_tie_columns(windows.values(), rows, order, [each.tree for each in self.extra])
        rows = self._project_rows(rows, groups, read, order, ties)
        if k is None:
            known = dict[str, str]()
            for group in groups:
                rows, made = self._add_results(rows, group)
                known |= made
        else:
            asked = any(part for tree in read for part in tree.find_all(exp.Window))
            rows, known = self._keep_first_rows(rows, groups[0], k, asked), dict.fromkeys(windows, "rank")

        def replace_window(node: Tree) -> Tree | None:
            return build_column(known[write_tree_sql(node)]) if isinstance(node, exp.Window) else None

        left = [replace_nodes(each, replace_window) for each in left]
        return self.steps.filter_rows(rows, left), lambda tree: replace_nodes(tree, replace_window)

    def _find_bound(self, windows: Mapping[str, Tree], bounds: Bounds) -> tuple[int | None, list[Tree]]:
        """Find the bound of the only window function, and the remaining conditions of QUALIFY."""
        (told, window), *others = windows.items()
        if others or not is_row_number(window):
            return None, self.qualify
        k, left = split_rank_bound(self.qualify, told)
        for index, (most, _) in bounds.items():
            if write_tree_sql(self.columns[index].tree.unnest()) == told:
                k = most if k is None else min(k, most)
        if k is not None and k < 1:
            raise build_query_error(window, f"the bound of {shorten_tree_sql(window)} is {k}", "ranks begin with 1")
        return k, left

    def _project_rows(
        self,
        rows: Relation,
        groups: Sequence[CallsOfWindow],
        read: Sequence[Tree],
        order: Sequence[str],
        ties: Sequence[str],
    ) -> Relation:
        """Project to the columns of ties, those that later steps read, and those of partitions and orders.

        Columns of the input keep their order, because the order of the columns decides between peers.
        """
        asking = [replace_nodes(each, _drop_over) for each in [*read, *(each.tree for each in self.extra)]]
        found = {each: build_column(each) for each in ties}
        found |= {node.name: node for tree in asking for node in tree.find_all(exp.Column)}
        kept = [ProjectedColumn(each, rows.find_column_name(found[each]), build_column(each)) for each in sorted(found)]
        kept.sort(key=lambda each: order.index(each.logical) if each.logical in order else len(order))
        parts = [each._replace(logical=f"of {each.logical}") for each in self.extra]
        for group in groups:
            parts += [*group.parts, *(each for each, _ in group.orders)]
        every = [*kept, *parts] or [ProjectedColumn("any", "any", build_number(1))]
        return self.steps.project_distinct(rows, every)

    def _list_partition_columns(self, rows: Relation, group: CallsOfWindow) -> list[str]:
        logical = [*(each.logical for each in group.parts), *(f"of {each.logical}" for each in self.extra)]
        return list(dict.fromkeys(rows.names[each] for each in logical))

    def _keep_first_rows(self, rows: Relation, group: CallsOfWindow, k: int, asked: bool) -> Relation:
        """Keep the first k rows of each partition. ``asked``: whether to add a column with the rank of each row."""
        rank = find_free_name("row_number", rows.of.schema.names) if asked else None
        by = [(each.logical, direction) for each, direction in group.orders]
        made = self.steps.keep_first_rows(rows, k, by, self._list_partition_columns(rows, group), rank=rank)
        return made if rank is None else Relation(made.of, {**made.names, "rank": rank}, made.solid)

    def _add_results(self, rows: Relation, group: CallsOfWindow) -> tuple[Relation, dict[str, str]]:
        """Add the results of some calls. Return the rows, and the logical name of each result by the call's text."""
        partition = self._list_partition_columns(rows, group)
        order = [f"{quote_name(rows.names[each.logical])} {direction}" for each, direction in group.orders]
        names = {write_tree_sql(each.tree): each.name for each in self.columns}
        known, made, calls = dict[str, str](), dict[str, str](), dict[str, str]()
        for told, window in group.calls.items():
            name = find_free_name(names.get(told, shorten_tree_sql(window)), [*rows.of.schema.names, *calls, *_OPTIONS])
            known[told] = self.steps.make_unique_name("window")
            frame = window.args.get("spec")
            call = window.this if frame is None else exp.Window(this=window.this.copy(), spec=frame.copy())
            made[known[told]], calls[name] = name, rows.write_call_sql(call)
        try:
            of = self.steps.add_results(rows, partition, order, calls)
        except ExpressionError:
            for (name, call), window in zip(calls.items(), group.calls.values(), strict=True):
                try:
                    self.steps.add_results(rows, partition, order, {name: call})
                except ExpressionError as error:
                    found = f"{shorten_tree_sql(window)}: {error.found}"
                    raise build_query_error(window, found, str(error.fix)) from error
            raise
        solid = {logical for logical, name in made.items() if not of.schema.field(name).nullable}
        return Relation(of, {**rows.names, **made}, rows.solid | solid), known


def _group_calls(windows: Mapping[str, Tree]) -> list[CallsOfWindow]:
    """Group window functions by PARTITION BY and ORDER BY."""
    groups = dict[Any, CallsOfWindow]()
    for told, window in windows.items():
        parts = {write_tree_sql(each): each for each in window.args.get("partition_by") or ()}
        order = window.args.get("order")
        orders = [] if order is None else [(each.this, write_order_direction(each)) for each in order.expressions]
        key = frozenset(parts), tuple((write_tree_sql(each), direction) for each, direction in orders)
        if key not in groups:
            n = len(groups)
            groups[key] = CallsOfWindow(
                [ProjectedColumn(f"part {n} {i}", shorten_tree_sql(x), x) for i, x in enumerate(parts.values())],
                [(ProjectedColumn(f"by {n} {i}", shorten_tree_sql(x), x), way) for i, (x, way) in enumerate(orders)],
                {},
            )
        groups[key].calls[told] = window
    for key in [each for each in groups if not each[1] and all(map(_has_free_order, groups[each].calls.values()))]:
        ordered = next((each for each in groups if each[1] and each[0] == key[0]), None)
        if ordered is not None:
            groups[ordered].calls.update((told, _set_whole_frame(x)) for told, x in groups.pop(key).calls.items())
    # The results of partitions without an order change most often, so no other window function should read them.
    return sorted(groups.values(), key=lambda each: not each.orders)


def list_tie_columns(
    windows: Iterable[Tree], rows: Relation, columns: Sequence[str], fixed: Sequence[Tree] = (), optional: bool = False
) -> list[str]:
    """List the first of the ``columns`` that can decide between peers.

    If the partition, the order and the columns so far contain a key of the rows, later columns cannot decide.
    ``fixed``: more columns of the partitions.  ``optional``: whether a row can also be all null, as after a full join.

    >>> import ddflow as dd
    >>> from ddflow.expressions.parse import parse_query
    >>> table = dd.Flow().upserts("t", {"a": int, "k": int, "b": int}, dd.Upsert(key="k"))
    >>> rows = Relation(table, {"a": "a", "k": "k", "b": "b"})
    >>> for order in ("b", "k"):
    ...     (item,) = parse_query(f"select row_number() over (order by {order}) from t").expressions
    ...     list_tie_columns([item], rows, ["a", "k", "b"])
    ['a', 'k']
    []
    """
    solid = rows.of.find_never_null_columns()
    out, keys = list[str](), [key for key in rows.of.unique_by() if not optional or solid.issuperset(key)]
    for window in filter(needs_peer_order, windows):
        order = window.args.get("order")
        by = [*(window.args.get("partition_by") or ()), *(() if order is None else (x.this for x in order.expressions))]
        known = {rows.names.get(each.name) for each in [*by, *fixed] if isinstance(each, exp.Column)}
        count = 0
        while count < len(columns) and not any(known.issuperset(key) for key in keys):
            known.add(rows.names[columns[count]])
            count += 1
        out = max(out, list(columns[:count]), key=len)
    return out


def needs_peer_order(window: Tree) -> bool:
    """Tell whether the results of a window function depend on the order of peers.

    >>> from ddflow.expressions.parse import parse_query
    >>> whole = "rows between unbounded preceding and unbounded following"
    >>> calls = ["row_number()", "rank()", "first(n)", "sum(n)"], ["", "range 1 preceding", "rows 1 preceding", whole]
    >>> texts = [f"{f} over (order by n)" for f in calls[0]] + [f"sum(n) over (order by n {f})" for f in calls[1]]
    >>> [needs_peer_order(each) for each in parse_query(f"select {', '.join(texts)} from t").expressions]
    [True, False, True, False, False, False, True, False]
    """
    frame = window.args.get("spec")
    if strip_call_suffixes(window.this).name not in _EQUAL_FOR_PEERS:
        return True
    counts = frame is not None and frame.args["kind"].upper() == "ROWS"
    return counts and not frame.args["start"] == frame.args["end"] == "UNBOUNDED"


def _has_free_order(window: Tree) -> bool:
    """Tell whether any order of the rows gives the same result."""
    return window.args.get("spec") is None and strip_call_suffixes(window.this).name in _UNORDERED


def _set_whole_frame(window: Tree) -> Tree:
    """Give a window function without an order the frame that it has by default, so that it can get an order."""
    made, ends = window.copy(), {"start_side": "preceding", "end_side": "following"}
    made.set("spec", exp.WindowSpec(kind="rows", start="UNBOUNDED", end="UNBOUNDED", **ends))
    return made


def _drop_over(node: Tree) -> Tree | None:
    """Replace a window function by its call, to ignore the columns of OVER."""
    return node.this.copy() if isinstance(node, exp.Window) else None
