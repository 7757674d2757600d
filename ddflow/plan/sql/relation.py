"""Represent collections with logical column names, and apply verbs to these collections.

Guarantees: a query computes equal parts once, as one collection. A column keeps its name, unless both sides of a join
have a column of that name. Equal aggregates are one column. After a grouping, trees are rewritten to read the columns
of groups and aggregates. Over no rows, a count is zero, a list is empty, and other aggregates are null.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from typing import Any, NamedTuple

import pyarrow as pa
from sqlglot import exp

from ddflow.errors import ExpressionError, SpecError
from ddflow.expressions import compile as compile_expression
from ddflow.expressions.functions.time_windows import SESSION, WINDOW
from ddflow.expressions.parse import Tree, strip_call_suffixes
from ddflow.expressions.types import common_type, is_integer, sql_name, working_type
from ddflow.plan.sql.query import (
    SelectQuery,
    build_call,
    build_cast,
    build_column,
    build_number,
    build_query_error,
    build_window_column,
    find_query_column_names,
    is_window_call,
    join_with_and,
    quote_name,
    replace_nodes,
    shorten_tree_sql,
    write_tree_sql,
)
from ddflow.plan.verbs.asof import join_nearest_rows
from ddflow.plan.verbs.rest_columns import split_rest_columns

KeyPair = tuple[Tree, Tree]
"""A join key: a tree over the left side, and a tree over the right side. The values of both must be equal."""


class ProjectedColumn(NamedTuple):
    """A column of a projection, with a logical name, a preferred name and a tree."""

    logical: str
    name: str
    tree: Tree


class Relation:
    """A collection with logical names. ``of``: the collection. ``names``: maps logical names to the columns in use.

    ``solid``: the logical names of columns known to be never null.

    >>> import ddflow as dd
    >>> from ddflow.plan.sql.query import build_column
    >>> orders = dd.Flow().upserts("orders", {"id": int, "n": int}, dd.Upsert(key="id"))
    >>> rows = Relation(orders, {"o.id": "id", "o.n": "n"})
    >>> n, total = build_column("o.n"), exp.Add(this=build_column("o.n"), expression=build_column("o.id"))
    >>> rows.write_sql(total), str(rows.find_tree_type(n))
    ('n + id', 'int64')
    >>> from ddflow.plan.sql.query import build_number
    >>> steps = QueryVerbs()
    >>> above = exp.GT(this=n, expression=build_number(1))
    >>> one, other = (steps.filter_rows(rows, [above]) for _ in range(2))
    >>> one.of is other.of
    True
    """

    def __init__(self, of: Any, names: dict[str, str], solid: Set[str] = frozenset()) -> None:
        self.of, self.names, self.solid = of, names, solid

    @classmethod
    def of_collection(cls, of: Any, names: Mapping[str, str]) -> Relation:
        """Build the relation of a collection in FROM. ``names``: the logical name of each column."""
        solid = {names[each] for each in of.find_never_null_columns() if each in names}
        return cls(of, {logical: name for name, logical in names.items()}, solid)

    def is_nullable(self, tree: Tree) -> bool:
        """Tell whether a tree can be null. The answer is also True if ddflow cannot know."""
        return not (isinstance(tree, exp.Literal) or (isinstance(tree, exp.Column) and tree.name in self.solid))

    def find_column_name(self, tree: Tree) -> str:
        """Find the column that has a logical name. Raises `ExpressionError` if the relation lacks it."""
        if tree.name not in self.names:
            found = f"the column {tree.name!r} is neither in GROUP BY nor in an aggregate"
            raise build_query_error(tree, found, "add it to GROUP BY, or write min(...) or max(...)")
        return self.names[tree.name]

    def write_call_sql(self, tree: Tree) -> str:
        """Write a call as SQL over the collection, for a verb that reads calls."""

        def name_column(node: Tree) -> Tree | None:
            if not isinstance(node, exp.Column):
                return None
            name = self.find_column_name(node)
            return exp.Column(this=exp.Identifier(this=name, quoted=quote_name(name) != name))

        return write_tree_sql(replace_nodes(tree, name_column))

    def write_sql(self, tree: Tree) -> str:
        """Write a tree as SQL over the collection, for a verb that reads names of columns and expressions."""
        told = self.write_call_sql(tree)
        # The brackets are needed for SQL such as 0. Without brackets, a verb would read 0 as a column with the name 0.
        return f"({told})" if not isinstance(tree, exp.Column) and told in self.of.schema.names else told

    def can_fail(self, tree: Tree) -> bool:
        """Tell whether a tree can fail for a row."""
        try:
            return compile_expression(self.write_sql(tree), self.of.schema, what=f"{shorten_tree_sql(tree)}").fallible
        except ExpressionError:
            return False  # the compilation of the query raises a better message

    def find_tree_type(self, tree: Tree) -> pa.DataType:
        """Return the type of a tree over the collection."""
        if isinstance(tree, exp.Column):
            schema: pa.Schema = self.of.schema
            return schema.field(self.find_column_name(tree)).type
        return compile_expression(self.write_sql(tree), self.of.schema, what=f"{shorten_tree_sql(tree)}").type


class QueryVerbs:
    """The verbs of a query, with a cache so that equal calls return one collection.

    ``stars``: the logical names of all columns of a table. If a projection has all columns of a table, the projection
    passes on columns that are added to the table later.
    ``passed``: the logical names that a star selects.
    """

    def __init__(self) -> None:
        self.stars: list[frozenset[str]] = []
        self.passed: set[str] = set()
        self._made: dict[Any, Any] = {}
        self._numbers = 0

    def make_unique_name(self, name: str) -> str:
        """Build a new logical name, unique in the query."""
        self._numbers += 1
        return f"{name} {self._numbers}"

    def make_collection_once(self, of: Any, told: Any, make: Callable[[], Any]) -> Any:
        """Build a collection, or return it from the cache.

        ``told``: the cache key, which identifies the verb and its arguments.
        """
        key = (id(of), *told)
        if key not in self._made:
            self._made[key] = of, make()  # keep ``of`` alive, so that no other object gets its id
        return self._made[key][1]

    def filter_rows(self, rows: Relation, trees: Sequence[Tree]) -> Relation:
        """Keep the rows that meet all conditions."""
        if not trees:
            return rows
        condition = rows.write_sql(join_with_and(trees))
        of = self.make_collection_once(rows.of, ("filter", condition), lambda: rows.of.filter(condition))
        return Relation(of, rows.names, rows.solid)

    def _project_once(self, of: Any, columns: Mapping[str, str], groups: Sequence[Sequence[str]]) -> Any:
        """Project to columns, with a cache. ``groups``: the columns that each star selects."""
        given, rests = split_rest_columns(of, columns, groups) if groups else (columns, ())
        return self.make_collection_once(
            of, ("project", *given.items(), *rests), lambda: of._apply_verb("project", given, rests)
        )

    def _list_star_columns(self, names: Mapping[str, str], order: Iterable[str]) -> list[list[str]]:
        """For each star, list its columns if ``names`` contains all of them.

        ``names``: maps logical names to columns.
        ``order``: the order of the columns.
        """
        whole = [{names[each] for each in star} for star in self.stars if star <= names.keys()]
        return [[name for name in order if name in star] for star in whole]

    def project_rows(
        self,
        rows: Relation,
        columns: Sequence[ProjectedColumn],
        stars: Sequence[Sequence[str]] = (),
        passes: bool = False,
    ) -> Relation:
        """Project to the given columns, in the given order.

        ``stars``: the logical names of all columns of a table.
        ``passes``: whether an unchanged selection of all columns also passes columns added later.
        """
        names, made, solid = dict[str, str](), dict[str, str](), set[str]()
        for each in columns:
            if each.logical not in names:
                names[each.logical] = find_free_name(each.name, made)
                made[names[each.logical]] = rows.write_sql(each.tree)
                solid |= set() if rows.is_nullable(each.tree) else {each.logical}
        same = [quote_name(name) for name in made] == list(made.values()) and list(made) == rows.of.schema.names
        if same and (passes or not rows.of.grows):
            return Relation(rows.of, names, solid)
        return Relation(
            self._project_once(rows.of, made, [[names[each] for each in star] for star in stars]), names, solid
        )

    def add_windows(self, rows: Relation, call: Tree) -> Relation:
        """Add the column of a call of ``window``. If windows hop, make a row for each window of a row."""
        made = ProjectedColumn(build_window_column(call).name, WINDOW, call)
        kept = [ProjectedColumn(each, name, build_column(each)) for each, name in rows.names.items()]
        rows = self.project_rows(rows, [made, *kept])
        of = rows.of
        if pa.types.is_list(of.schema.field(WINDOW).type):
            of = self.make_collection_once(of, ("unnest", WINDOW), lambda: rows.of.unnest(WINDOW))
        return Relation(of, rows.names, rows.solid | {made.logical})

    def add_sessions(self, rows: Relation, call: Tree, groups: Sequence[Tree], used: Set[str]) -> Relation:
        """Add the column of a call of ``session_window``, and keep the columns that are used.

        ``groups``: the other groups; the rows of each group have their own sessions.
        """
        at, gap = call.expressions
        if pa.types.is_date(kind := working_type(rows.find_tree_type(at))) or pa.types.is_string(kind):
            at = build_cast(at, "timestamp")
        at = exp.Paren(this=at.copy()) if at in groups else at  # a second column, because no order is a partition
        kept = [ProjectedColumn(each, name, build_column(each)) for each, name in rows.names.items() if each in used]
        parts = [ProjectedColumn(f"part {i}", shorten_tree_sql(each), each) for i, each in enumerate([*groups, at])]
        rows = self.project_distinct(rows, [*kept, *parts])
        *partition, time = (rows.names[each.logical] for each in parts)
        name, made = find_free_name(SESSION, rows.of.schema.names), build_window_column(call).name
        told = rows.write_call_sql(build_call(SESSION, build_column(parts[-1].logical), gap))
        try:
            of = self.add_results(rows, list(dict.fromkeys(partition)), [quote_name(time)], {name: told})
        except (ExpressionError, SpecError) as error:
            raise build_query_error(call, f"{shorten_tree_sql(call)}: {error.found}", str(error.fix)) from error
        return Relation(of, {**rows.names, made: name}, rows.solid | {made})

    def add_results(
        self, rows: Relation, partition: Sequence[str], order: Sequence[str], calls: Mapping[str, str]
    ) -> Any:
        """Add the results of window functions of one partition and order.  ``calls``: by the names of their columns."""
        told = ("over", *partition, None, *order, None, *calls.items())
        return self.make_collection_once(rows.of, told, lambda: rows.of._apply_verb("over", partition, order, calls))

    def project_distinct(self, rows: Relation, columns: Sequence[ProjectedColumn]) -> Relation:
        """Project to columns. Columns with equal trees become one."""
        known = {write_tree_sql(each.tree): each for each in reversed(columns)}
        made = self.project_rows(rows, [each for each in columns if known[write_tree_sql(each.tree)] is each])
        names = {each.logical: made.names[known[write_tree_sql(each.tree)].logical] for each in columns}
        return Relation(made.of, names, made.solid)

    def drop_unused_columns(self, rows: Relation, used: Iterable[str]) -> Relation:
        """Drop the columns that no later step reads. Columns that a table gets later are dropped too."""
        wanted = set(used)
        kept = {logical: name for logical, name in rows.names.items() if logical in wanted}
        columns = [name for name in rows.of.schema.names if name in kept.values()]
        passed = {name for logical, name in kept.items() if logical in self.passed}
        same = len(columns) == len(rows.of.schema.names) and (passed.issuperset(columns) or not rows.of.grows)
        if same or not columns:
            return rows
        shown = dict(zip(columns, columns, strict=True))
        return Relation(self._project_once(rows.of, shown, self._list_star_columns(kept, columns)), kept, rows.solid)

    def distinct_rows(self, rows: Relation) -> Relation:
        """Keep each row once."""
        return Relation(self.make_collection_once(rows.of, ("distinct",), rows.of.distinct), rows.names, rows.solid)

    def keep_first_rows(
        self,
        rows: Relation,
        k: int,
        by: Sequence[tuple[str, str]],
        partition: Sequence[str],
        offset: int = 0,
        rank: str | None = None,
    ) -> Relation:
        """Keep the first k rows of each partition. ``by``: the order, as logical names with directions."""
        order = [f"{quote_name(rows.names[each])} {direction}" for each, direction in by]
        order = order or [f"{quote_name(rows.of.schema.names[0])} asc nulls first"]
        of = self.make_collection_once(
            rows.of,
            ("top", k, *order, None, *partition, None, offset, rank),
            lambda: rows.of.top(k, by=order, partition_by=list(partition), offset=offset, rank_name=rank),
        )
        return Relation(of, rows.names, rows.solid)

    def join_rows(
        self,
        left: Relation,
        right: Relation,
        keys: Sequence[KeyPair],
        how: str,
        condition: Sequence[Tree] = (),
        used: set[str] | None = None,
    ) -> Relation:
        """Join two relations. ``used``: the logical names that later steps read.

        By default, later steps read all names.
        """
        keys, condition = list(keys), list(condition)
        read = find_query_column_names(*(each for pair in keys for each in pair), *condition)
        wanted = read | (set(left.names) | set(right.names) if used is None else used)
        left = left if is_arranged_by(left, [one for one, _ in keys]) else self.drop_unused_columns(left, wanted)
        if how in ("semi", "anti"):
            right = self.drop_unused_columns(right, read)
        elif not is_arranged_by(right, [other for _, other in keys]):
            right = self.drop_unused_columns(right, wanted)
        shared = set() if how == "full" else self._find_shared_key_columns(left, right, keys, how, used)
        left, right = self._rename_equal_columns(left, right, keys, shared, wanted)
        keys.sort(
            key=lambda pair: (
                _write_key_sql(left, pair[0]) not in shared
                or _write_key_sql(left, pair[0]) != _write_key_sql(right, pair[1])
            )
        )
        on, rest = self._build_join_keys(left, right, keys)
        names = {**right.names, **left.names}
        met = None
        if condition or rest:
            met = Relation(left.of, names).write_sql(join_with_and([*rest, *condition]))
        of = self.make_collection_once(
            left.of,
            ("join", id(right.of), how, met, *on.items()),
            lambda: left.of.join(right.of, on=on or [], how=how, condition=met),
        )
        if how in ("semi", "anti"):
            return Relation(of, left.names, left.solid)
        solid = {"inner": left.solid | right.solid, "left": left.solid, "right": right.solid}.get(how, frozenset())
        return Relation(of, names, solid)

    def join_nearest_rows(
        self,
        left: Relation,
        right: Relation,
        keys: Sequence[KeyPair],
        moments: KeyPair,
        way: str,
        how: str,
        used: set[str],
    ) -> Relation:
        """Join each row to the nearest row. ``moments``, ``way``: the moments of both sides, and their comparison."""
        read = find_query_column_names(*(each for pair in (*keys, moments) for each in pair))
        wanted = read | used | set(right.names)
        left, right = self.drop_unused_columns(left, wanted), self.drop_unused_columns(right, right.names)
        shared = self._find_shared_key_columns(left, right, keys, how, used)
        left, right = self._rename_equal_columns(left, right, keys, shared, wanted)
        cast = (_cast_key_pair(left, one, right, other) for one, other in (*keys, moments))
        (*on, at), names = ((_write_key_sql(left, a), _write_key_sql(right, b)) for a, b in cast), left.names
        try:
            of = self.make_collection_once(
                left.of,
                ("asof", id(right.of), how, way, *on, at),
                lambda: join_nearest_rows(left.of, right.of, on, (at[0], way, at[1]), how),
            )
        except SpecError:
            kinds = f"{sql_name(left.find_tree_type(moments[0]))} with {sql_name(right.find_tree_type(moments[1]))}"
            raise build_query_error(moments[0], f"ASOF JOIN compares {kinds}", "compare times or numbers") from None
        return Relation(of, {**right.names, **names}, left.solid | (right.solid if how == "inner" else set()))

    def _find_shared_key_columns(
        self, left: Relation, right: Relation, keys: Sequence[KeyPair], how: str, used: set[str] | None
    ) -> set[str]:
        """Return the key columns that have equal names and types on both sides.

        The join has each such column only once. In a left or right join, the key column of the optional side can be
        null. So in these joins the two columns become one only if no later step reads the column of the optional side.
        """
        out = set()
        for one, other in keys:
            if not (isinstance(one, exp.Column) and isinstance(other, exp.Column)):
                continue
            name = left.find_column_name(one)
            lost = {"left": other, "right": one}.get(how)
            known = lost is None or (used is not None and lost.name not in used)
            if (
                name == right.find_column_name(other)
                and left.find_tree_type(one) == right.find_tree_type(other)
                and known
            ):
                out.add(name)
        return out

    def _rename_equal_columns(
        self, left: Relation, right: Relation, keys: Sequence[KeyPair], shared: set[str], wanted: set[str]
    ) -> tuple[Relation, Relation]:
        """On one side, rename the columns whose names are taken, except ``shared`` names, and drop unwanted columns."""
        taken = {name for name in left.of.schema.names if name in right.of.schema.names} - shared
        if not taken:
            return left, right
        if is_arranged_by(right, [other for _, other in keys]) and not is_arranged_by(left, [one for one, _ in keys]):
            return self._rename_columns(left, taken, shared, right, wanted), right
        return left, self._rename_columns(right, taken, shared, left, wanted)

    def _rename_columns(
        self, rows: Relation, taken: set[str], shared: set[str], other: Relation, wanted: set[str]
    ) -> Relation:
        kept = {each: name for each, name in rows.names.items() if each in wanted} or rows.names
        logical = {name: each for each, name in reversed(kept.items())}
        order = [name for name in rows.of.schema.names if name in logical]
        # Rename all columns of a star, because a column that is added to the table later can have a taken name.
        renamed = taken.union(*self._list_star_columns(kept, order)) - shared
        columns, names = dict[str, str](), dict[str, str]()
        for name in order:
            new = find_free_name(logical[name], {**columns, **dict.fromkeys(other.of.schema.names)})
            names[name] = new if name in renamed else name
            columns[names[name]] = quote_name(name)
        known = {each: names[name] for each, name in kept.items()}
        return Relation(
            self._project_once(rows.of, columns, self._list_star_columns(known, columns)), known, rows.solid
        )

    def _build_join_keys(
        self, left: Relation, right: Relation, keys: Sequence[KeyPair]
    ) -> tuple[dict[str, str], list[Tree]]:
        """Map left keys to right keys, both cast to common types.

        If a left key occurs twice, its second pair becomes a condition.
        """
        on, rest = dict[str, str](), list[Tree]()
        for one, other in keys:
            a, b = _cast_key_pair(left, one, right, other)
            first, second = _write_key_sql(left, a), _write_key_sql(right, b)
            if first in on:
                rest += [] if on[first] == second else [exp.EQ(this=one.copy(), expression=other.copy())]
            else:
                on[first] = second
        return on, rest


def _write_key_sql(rows: Relation, tree: Tree) -> str:
    return rows.find_column_name(tree) if isinstance(tree, exp.Column) else rows.write_sql(tree)


def _cast_key_pair(left: Relation, one: Tree, right: Relation, other: Tree) -> KeyPair:
    """Cast both keys by Spark's rules if the types of the keys differ."""
    kinds = [working_type(left.find_tree_type(one)), working_type(right.find_tree_type(other))]
    if kinds[0] == kinds[1] or all(map(is_integer, kinds)):
        return one, other
    kind = common_type(kinds)
    if kind is None:
        sides = f"{shorten_tree_sql(one)} = {shorten_tree_sql(other)}"
        found = f"{sides} compares {sql_name(kinds[0])} with {sql_name(kinds[1])}"
        raise build_query_error(one, found, "cast one of them")
    return cast_if_needed(one, kinds[0], kind), cast_if_needed(other, kinds[1], kind)


def cast_if_needed(tree: Tree, kind: pa.DataType, wanted: pa.DataType) -> Tree:
    """Cast a tree to a type, unless the tree already has that type."""
    return tree if kind == wanted else build_cast(tree, sql_name(wanted))


def is_arranged_by(rows: Relation, keys: Sequence[Tree]) -> bool:
    """Tell whether a relation is an input keyed by these columns."""
    spec = getattr(rows.of, "spec", None)
    if spec is None or not all(isinstance(each, exp.Column) for each in keys):
        return False
    return sorted(map(rows.find_column_name, keys)) == sorted(spec.key)


def find_free_name(name: str, taken: Iterable[str]) -> str:
    """Return the name, with a number added if the name is taken."""
    found, n, known = name, 1, set(taken)
    while found in known:
        n += 1
        found = f"{name} {n}"
    return found


class GroupedRows(NamedTuple):
    """Grouped rows. ``known``: maps the text of each group or aggregate expression to its column.

    >>> from ddflow.expressions.parse import parse_expression
    >>> found = GroupedRows(Relation(None, {}), {"count(*)": build_column("n"), "sum(x)": build_column("s")})
    >>> tree = parse_expression("sum(x) / count(*)").tree
    >>> write_tree_sql(found.rewrite_tree(tree)), write_tree_sql(found.rewrite_tree(tree, empty=True))
    ('`s` / `n`', '`s` / coalesce(`n`, 0)')
    """

    rows: Relation
    known: dict[str, Tree]

    def rewrite_tree(self, tree: Tree, empty: bool = False) -> Tree:
        """Rewrite a tree to read the columns of the groups.

        ``empty``: whether a group may have no rows, so that its counts must be zero.
        """

        def replace_known(node: Tree) -> Tree | None:
            found = self.known.get(write_tree_sql(node)) if self.known else None
            # The SQL of an ORDER BY item can equal the SQL of its expression.
            if found is None or isinstance(node, exp.Ordered) or is_window_call(node):
                return None
            none = _find_empty_aggregate_value(node) if empty else None
            return found.copy() if none is None else build_call("coalesce", found, none)

        return replace_nodes(tree, replace_known)


def group_rows(
    steps: QueryVerbs, rows: Relation, query: SelectQuery, keys: Sequence[ProjectedColumn], found: Mapping[str, Tree]
) -> GroupedRows:
    """Group and aggregate rows. ``keys``: group columns besides those of GROUP BY.

    ``found``: maps SQL texts to aggregates.
    """
    trees = {write_tree_sql(each): each for each in query.groups or ()}
    names = {write_tree_sql(item): name for item, name in zip(query.items, query.columns, strict=True)}
    logicals = {
        told: each.name if isinstance(each, exp.Column) else steps.make_unique_name(told)
        for told, each in trees.items()
    }
    groups = [
        ProjectedColumn(logicals[told], _name_group_column(rows, each, names), each) for told, each in trees.items()
    ]
    groups += [each for each in keys if each.logical not in {group.logical for group in groups}]
    known = {told: build_column(each) for told, each in logicals.items()}
    for each in keys:
        known.setdefault(write_tree_sql(each.tree), build_column(each.logical))
    if not all(isinstance(each.tree, exp.Column) for each in groups) or keys:
        read = find_query_column_names(*found.values())
        rest = [
            ProjectedColumn(each, rows.names[each], build_column(each)) for each in sorted(read) if each in rows.names
        ]
        rows = steps.project_rows(rows, [*groups, *rest])
    by = [rows.names[each.logical] for each in groups]
    if not groups and not found:  # for HAVING over constants
        rows = steps.project_rows(rows, [ProjectedColumn("any", "any", build_number(1))])
    if not found:
        return GroupedRows(
            steps.distinct_rows(steps.drop_unused_columns(rows, {each.logical for each in groups})), known
        )
    made, told = dict[str, str](), dict[str, str]()
    for key, each in found.items():
        # No keyword argument of a method can be called self.
        name = find_free_name(names.get(key, shorten_tree_sql(each)), [*by, *told, "self"])
        logical = steps.make_unique_name(key)
        made[logical], told[name], known[key] = name, rows.write_call_sql(each), build_column(logical)
    of = steps.make_collection_once(
        rows.of, ("agg", *by, None, *told.items()), lambda: (rows.of.group_by(*by) if by else rows.of).agg(**told)
    )
    all_names = {each.logical: rows.names[each.logical] for each in groups} | made
    return GroupedRows(Relation(of, all_names, rows.solid & {each.logical for each in groups}), known)


def _name_group_column(rows: Relation, tree: Tree, names: dict[str, str]) -> str:
    return (
        rows.find_column_name(tree)
        if isinstance(tree, exp.Column)
        else names.get(write_tree_sql(tree), shorten_tree_sql(tree))
    )


def _find_empty_aggregate_value(node: Tree) -> Tree | None:
    """Return the value of an aggregate over no rows. The result None means null."""
    of = strip_call_suffixes(node)
    return {"count": build_number(0), "array_agg": build_call("array")}.get(
        of.name if isinstance(of, exp.Anonymous) else ""
    )
