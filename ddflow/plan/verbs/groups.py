"""Declare the verbs of groups and keys: count, agg, top, versions, to_upserts, single.

`agg` splits its aggregates into parts and joins the parts by group: one part for aggregates computed by addition, one
for each order of rows, and one for each count of distinct values. Every part has all groups. Two equal parts are one
collection with one arrangement.

Guarantees: a group exists while the sum of the multiplicities of its rows is not zero.

>>> import ddflow as dd
>>> people = dd.Flow().upserts("people", {"id": int, "city": str}, dd.Upsert(key="id"))
>>> people.count("city")
Count(city string, count int64)
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, Generic, Literal, NamedTuple, Never

from ddflow.columns.names import check_column_names, check_columns_exist, parse_column_names
from ddflow.columns.schema import is_flat_type, normalize_type
from ddflow.errors import SpecError
from ddflow.expressions import compile as compile_expression
from ddflow.plan.aggregates import AggregateCall, AppliedAggregate, parse_aggregate
from ddflow.plan.inputs.spec import Tombstone
from ddflow.plan.verbs.family import ForeignVerbHints, Made, VerbFamily
from ddflow.plan.verbs.joins import build_inner_join
from ddflow.plan.verbs.rows import Formula

ENDS: Final = {"min": "first", "max": "last", "first": "first", "last": "last", "array_agg": "all"}
"""For each ordered aggregate: whether it returns the first row, the last row, or all rows of a group."""


class OrderedPartColumns(NamedTuple):
    """The columns and the order of an ordered part.

    ``columns``: the name and the SQL of each column that is not a group column.
    """

    columns: tuple[tuple[str, str], ...]
    order: tuple[str, ...]
    skips: str


def check_group_columns(of: Any, by: Any, names: Iterable[str]) -> list[str]:
    """Parse the group columns, and check that no result has the name of a group column. Raises `SpecError`."""
    groups, names = list(parse_column_names(by, "agg", "group_by")), list(names)
    check_columns_exist(groups, of.schema.names, "group_by")
    if taken := [name for name in names if name in groups]:
        raise SpecError("agg", f"a group column is already called {taken[0]!r}", "choose another name")
    if not names:
        raise SpecError("agg", "no aggregate is given", "write one, as in total='sum(amount)'")
    if of.forgetting:
        found = f"the inputs {sorted(of.forgetting)} forget rows without a retraction: they would be added again"
        raise SpecError("agg", found, "omit on_expire='forget' in their specs")
    check_column_names([*groups, *names], "agg")
    return groups


def aggregate_rows(of: Any, by: Sequence[str], texts: Mapping[str, Any]) -> Any:
    """Aggregate the rows; see `ddflow.plan.verbs.groups.Grouping.agg`.

    >>> import ddflow as dd
    >>> flow = dd.Flow()
    >>> orders = flow.upserts("orders", {"id": int, "city": str, "n": int}, dd.Upsert(key="id"))
    >>> aggregate_rows(orders, ["city"], {"least": "min(n)", "most": "max(n)"})
    OrderedAgg(city string, least int64, most int64)
    >>> aggregate_rows(orders, ["city"], {"least": "min(n)", "n": "sum(n)"}).schema.names
    ['city', 'least', 'n']
    """
    own = {name for name, given in texts.items() if isinstance(given, AppliedAggregate)}
    calls = {name: parse_aggregate(name, text, of.schema.names) for name, text in texts.items() if name not in own}
    folding = [name for name in texts if name in own or _is_foldable(calls[name])]
    if len(folding) == len(texts):
        return of._apply_verb("agg", by, texts)
    groups = check_group_columns(of, by, texts)
    parts = [(of.group_by(*groups).agg(**{name: texts[name] for name in folding}), folding)] if folding else []
    ordered = dict[OrderedPartColumns, list[tuple[str, str, str]]]()
    for name, call in calls.items():
        if call.function in ENDS:
            part, value = _build_ordered_part(of, groups, call)
            ordered.setdefault(part, []).append((name, ENDS[call.function], value))
        elif name not in folding:
            parts.append((_count_distinct(of, groups, name, call), [name]))
    for part, results in ordered.items():
        rows = _project_columns(of, groups, part.columns)
        made = rows._apply_verb("ordered_agg", groups, part.order, results, part.skips)
        parts.append((made, [name for name, _, _ in results]))
    return _join_group_parts(parts, groups, list(texts))


def _is_foldable(call: AggregateCall) -> bool:
    return call.function not in ENDS and not (call.function == "count" and call.distinct)


def _build_ordered_part(of: Any, groups: Sequence[str], call: AggregateCall) -> tuple[OrderedPartColumns, str]:
    """Build the columns and the order of an ordered aggregate, and return them with the name of the value's column.

    Raises `ExpressionError`.
    """
    by_value = call.function in ("min", "max")
    if call.distinct and not by_value:
        raise call.build_error(f"{call.function} does not accept DISTINCT", "omit it")
    if call.order and by_value:
        raise call.build_error(f"{call.function} does not accept ORDER BY", "omit it")
    if call.function in ("first", "last") and not call.order:
        raise call.build_error("it does not say which row is first", f"write {call.function}(x order by y)")
    (argument,) = call.arguments
    value, among = (_find_free_name(name, groups) for name in ("value", "among"))
    columns = {value: argument}
    whole = not (call.ignores_nulls or call.where or call.function not in ("first", "last"))
    skips = "" if whole else value
    counts = f"({argument}) IS NOT NULL"
    if call.where and call.function in ("first", "last") and not call.ignores_nulls:
        skips, counts = among, f"({call.where})"
        columns[among] = f"CASE WHEN {counts} THEN true END"
    ways = list[str]()
    for i, each in enumerate(call.order):
        name = value if each.text == argument else _find_free_name(f"order {i + 1}", groups)
        if name != value:
            columns[name] = each.text if whole else f"CASE WHEN {counts} THEN {each.text} END"
        ways.append(_write_order_direction(name, each.descending, each.nulls_first))
    if not call.order:
        ways.append(_write_order_direction(value, False, False))
    for name, text in columns.items():
        kind = compile_expression(text, of.schema, what=f"{call.function} of {call.name!r}").type
        if any(way.startswith(f"`{name}`") for way in ways) and not is_flat_type(normalize_type(kind)):
            raise call.build_error(
                f"{text} is {kind}, which has no order", "use numbers, text, binary, dates, decimals"
            )
    rest = [pair for pair in columns.items() if pair[0] != value]
    return OrderedPartColumns((*rest, (value, argument)), tuple(ways), skips), value


def _write_order_direction(name: str, descending: bool, nulls_first: bool) -> str:
    return f"`{name}` {'desc' if descending else 'asc'} nulls {'first' if nulls_first else 'last'}"


def _count_distinct(of: Any, groups: Sequence[str], name: str, call: AggregateCall) -> Any:
    """Build the collection that counts the distinct non-null values."""
    if call.order or call.ignores_nulls:
        raise call.build_error(f"count does not accept {'ORDER BY' if call.order else 'IGNORE NULLS'}", "omit it")
    columns = list[tuple[str, str]]()
    tests = " AND ".join(f"({each}) IS NOT NULL" for each in call.arguments)
    for i, each in enumerate(dict.fromkeys(call.arguments)):
        compile_expression(each, of.schema, what=f"count of {name!r}")
        text = each if len(call.arguments) == 1 else f"CASE WHEN {tests} THEN {each} END"
        columns.append((_find_free_name(f"value {i + 1}", groups), text))
    rows = _project_columns(of, groups, columns)
    if not rows.positive:
        rows = rows._apply_verb("arrange", groups, f"agg {name}=count(distinct ...)")
    return rows.distinct()._apply_verb("agg", groups, {name: f"count(`{columns[0][0]}`)"})


def _find_free_name(name: str, groups: Sequence[str]) -> str:
    """Append underscores to a name until no group column has the name."""
    while name in groups:
        name += "_"
    return name


def _project_columns(of: Any, groups: Sequence[str], columns: Iterable[tuple[str, str]]) -> Any:
    return of.project({name: name for name in groups} | dict(columns))


def _join_group_parts(parts: Sequence[tuple[Any, list[str]]], groups: list[str], names: list[str]) -> Any:
    """Join all parts by their groups. Each part has every group."""
    made, shown = parts[0]
    for part, more in parts[1:]:
        columns = [(name, 0, name) for name in (*groups, *shown)] + [(name, 1, name) for name in more]
        made, shown = (
            made.flow.reuse_equal_node(build_inner_join(made, part, [(g, g) for g in groups], columns, (), nulls=True)),
            [*shown, *more],
        )
    if shown != names:
        made = made.project([*groups, *names])
    if len(parts) > 1:
        made = made.consolidate()
        made.unique = made.positive = True
    return made


class Grouping(ForeignVerbHints, Generic[Made]):
    """Rows grouped by some columns. `agg` turns the grouped rows into a collection.

    Parameters
    ----------
    of : Collection
        The rows.
    by : sequence of str
        The group columns.
    """

    _shown = "a grouping"
    _instead = dict.fromkeys(("count", "len", "size"), "agg(n='count(*)'), or count(columns) of the collection") | {
        name: f"agg({name}='{sql}')"
        for name, sql in {
            **{each: f"{each}(amount)" for each in ("sum", "min", "max", "avg", "first", "last")},
            "mean": "avg(amount)",
            "n_unique": "count(distinct amount)",
            "nunique": "count(distinct amount)",
        }.items()
    }

    def __init__(self, of: Any, by: Sequence[str]) -> None:
        if wrong := [each for each in by if not isinstance(each, str)]:
            found = f"{wrong[0]!r:.200} is not the name of a column"
            raise SpecError("group_by", found, "pass the names one by one, as in group_by('city', 'year')")
        self._of, self._by = of, list(by)

    def agg(self, *unnamed: Never, **aggregates: str | AppliedAggregate) -> Made:
        """Aggregate the rows of each group.

        A group exists while the sum of the multiplicities of its rows is not zero. Aggregates ignore nulls. If all
        values are null, counts are 0 and other aggregates are null. Equal calls return the same collection, with one
        arrangement.

        Parameters
        ----------
        **aggregates : str or AppliedAggregate
            SQL by column of the result: ``count(*)``, ``count(x)``, ``count(distinct x)``; ``sum``, ``avg``, ``min``,
            ``max``, ``var_pop``, ``var_samp``, ``stddev_pop``, ``stddev_samp``, ``bool_and``, ``bool_or`` of an
            expression; ``first(x order by y)``, ``last(x order by y)``, ``array_agg(x)``.  Each accepts
            ``filter (where ...)``; the last three accept ``ignore nulls``.  Or a `ddflow.Aggregate` of an expression.

        Returns
        -------
        Collection
            A collection with the group columns and the aggregates.

        Raises
        ------
        SpecError
            If a column is missing, a name is taken, or rows of an input expire without a retraction.
        ExpressionError
            If the text is not an aggregate, or an argument does not compile or has a wrong type.

        Notes
        -----
        O(n) expected, for n updates of a step, plus O(changed groups).  The state stores a row for each group.  A step
        raises `AggregateOverflow` if a sum overflows its type. ``min``, ``max``, ``first`` and ``last`` cost O(log
        rows) an update. ``array_agg`` costs O(rows) for each changed group. The state stores each distinct row for
        distinct counts, and for aggregates that depend on an order. A step raises `NegativeMultiplicity` if a stored
        row has a negative multiplicity.

        Examples
        --------
        >>> import ddflow as dd
        >>> flow = dd.Flow()
        >>> orders = flow.upserts("orders", {"id": int, "city": str, "amount": int}, dd.Upsert(key="id"))
        >>> _ = flow.output("by_city", orders.group_by("city").agg(n="count(*)", revenue="sum(amount)"))
        >>> with flow.open() as engine:
        ...     rows = {"id": [1, 2], "city": ["Bern", "Bern"], "amount": [5, 7]}
        ...     engine.step({"orders": rows}, time=0)["by_city"].to_pylist()
        [{'city': 'Bern', 'n': 2, 'revenue': 12, '_time': 0, '_diff': 1}]
        """
        if unnamed:
            given: tuple[Any, ...] = unnamed
            written, name = given[0] if isinstance(given[0], str) else "count(*)", "n"
            if of := re.fullmatch(r"(.*\S)\s+as\s+(\w+)", written, re.IGNORECASE | re.DOTALL):
                written, name = of.groups()
            raise SpecError("agg", f"{given[0]!r:.200} has no name", f"name each column, as in agg({name}={written!r})")
        if len(aggregates) == 1:
            ((name, text),) = aggregates.items()
            if not isinstance(text, AppliedAggregate) and parse_aggregate(name, text).is_count_star:
                counted: Made = self._of.count(self._by, name=name)
                return counted
        made: Made = aggregate_rows(self._of, self._by, aggregates)
        return made


class GroupVerbs(VerbFamily[Made], Generic[Made]):
    """Verbs that group rows by some columns."""

    def count(self, by: str | Sequence[str] | None = None, *more: str, name: str = "count") -> Made:
        """Count the rows of each group.  The result omits groups with a count of zero.

        Equal calls return the same collection, with one arrangement.

        Parameters
        ----------
        by : str or sequence of str, optional
            The group columns.  By default all; ``[]`` counts all rows.
        *more : str
            More group columns: ``count("city", "kind")``.
        name : str
            The name of the count's column, an int64.

        Returns
        -------
        Collection
            A collection with the group columns and the count.

        Raises
        ------
        SpecError
            If a column is missing, or a group column is called ``name``.

        Notes
        -----
        O(n) expected, for n updates of a step.  The state stores a row for each group.
        """
        if more:
            by = [*([by] if isinstance(by, str) else by or ()), *more]
        return self._apply_verb("count", by, name)

    def group_by(self, *columns: str) -> Grouping[Made]:
        """Group the rows by some columns, for `Grouping.agg`.

        Parameters
        ----------
        *columns : str
            The group columns; null is a group.  Without columns, all rows are one group.

        Returns
        -------
        Grouping
            The grouped rows; not a collection.

        Raises
        ------
        SpecError
            If an argument is not a name.
        """
        return Grouping(self, columns)

    def agg(self, *unnamed: Never, **aggregates: str | AppliedAggregate) -> Made:
        """Aggregate all rows as one group.  An empty collection gives an empty result.

        Parameters
        ----------
        **aggregates : str
            The same as in `Grouping.agg`.

        Returns
        -------
        Collection
            A collection with the aggregates.

        Raises
        ------
        SpecError, ExpressionError
            The same errors as in `Grouping.agg`.
        """
        return self.group_by().agg(*unnamed, **aggregates)

    def top(
        self,
        k: int,
        by: str | Sequence[str],
        partition_by: str | Sequence[str] = (),
        offset: int = 0,
        rank_name: str | None = None,
    ) -> Made:
        """Keep the first k rows of each group, in an order.

        A row with multiplicity m takes m places. If fewer than m places remain, the row has a multiplicity below m in
        the result.

        Parameters
        ----------
        k : int
            The maximum number of rows of a group, 1 to 10,000.
        by : str or sequence of str
            The order, as in ``["amount desc", "at"]``: a column, then ``asc`` or ``desc``, then ``nulls first`` or
            ``nulls last``.  The default is ascending; nulls come first if ascending and last if descending.  The other
            columns break ties, in their order, ascending.
        partition_by : str or sequence of str
            The group columns, possibly empty: bare names, without backticks.
        offset : int
            The number of rows to skip at the start of each group.
        rank_name : str, optional
            The name of a column for the place of a row in its group, an int64 from 1 on.  A row of multiplicity m then
            becomes m rows.

        Returns
        -------
        Collection
            A collection with the same columns, and the rank if it has a name.

        Raises
        ------
        SpecError
            If a column is missing, the order is invalid, a type has no order, or a number is out of range.

        Notes
        -----
        O(log rows) an update, plus O(k + offset) for each group that a step touches. The state stores each row. If
        ``rank_name`` is given, one change can move all later ranks, which takes up to 2k updates.
        """
        return self._apply_verb("top", k, by, partition_by, offset, rank_name)

    def over(self, partition_by: str | Sequence[str] = (), order_by: str | Sequence[str] = (), **calls: str) -> Made:
        """Add columns with the results of window functions.

        Parameters
        ----------
        partition_by : str or sequence of str
            The columns of the partition, possibly none: bare names, without backticks.
        order_by : str or sequence of str
            The order in a partition, as in `top`.
        **calls : str
            For each new column, a call of a window function in SQL, as in ``place="row_number()"``,
            ``before="lag(n)"`` or ``total="sum(n) over (rows between 2 preceding and current row)"``. The functions are
            row_number, rank, dense_rank, percent_rank, cume_dist, ntile, lag, lead, first_value, last_value, nth_value,
            session_window, and the aggregates of `agg`. OVER holds only the frame. Without a frame, aggregates include
            all rows up to the last peer of the row if there is an order, and otherwise all rows of the partition.

        Returns
        -------
        Collection
            A collection with the same columns and the new ones. A row of multiplicity m becomes m rows.

        Raises
        ------
        SpecError, ExpressionError
            If a column is missing, a type has no order, or a call or its frame is invalid.

        Notes
        -----
        For n rows of a partition, an update costs O(log n) and the rows whose frame changed. Rank functions and frames
        that begin at the start of the partition also read up to 1,000 rows before the update, and ``session_window``
        reads the sessions of the update. Other functions whose frame is not bounded read the whole partition. ROWS
        frames and ``row_number`` break ties by the remaining columns, in their order, ascending.

        Examples
        --------
        >>> import ddflow as dd
        >>> flow = dd.Flow()
        >>> sales = flow.upserts("sales", {"id": int, "city": str, "n": int}, dd.Upsert(key="id"))
        >>> sales.over("city", "id", place="row_number()", mean="avg(n) over (rows 2 preceding)")
        Over(id int64, city string, n int64, place int64, mean double)
        """
        return self._apply_verb("over", partition_by, order_by, calls)

    def versions(
        self,
        key: str | Sequence[str],
        order_by: str | Sequence[str],
        delete: Tombstone | Formula | None = None,
        ignore: str | Sequence[str] = (),
        valid_from: str = "valid_from",
        valid_to: str = "valid_to",
    ) -> Made:
        """Build a type-2 history.

        Each row is a version of its key, and is valid from its own order to the order of the key's next row. A late row
        is inserted at its place in the order, which changes the ends of neighbouring versions. A retraction removes a
        version. Consecutive rows that differ only in ``order_by`` and ``ignore`` are one version. If a version consists
        of several rows, the result shows the earliest row. If several rows have the same key and the same order, only
        the greatest row is shown.

        Parameters
        ----------
        key : str or sequence of str
            The columns that identify a history; null is a key.
        order_by : str or sequence of str
            The columns that order the versions of a key, null first.  Text and binary may only be the last column.
        delete : Tombstone, str, pyarrow.compute.Expression or callable, optional
            The rows that end the previous version without starting another: a `ddflow.tombstone`, whose column the
            result leaves out, or a condition as in `filter`.  Among rows with one key and order they rank lowest.
        ignore : str or sequence of str
            Columns to ignore when comparing neighbours.
        valid_from, valid_to : str
            The names of two new columns: the order of a version, and the order of the row that ended it, or null.  With
            several order columns, the new columns hold the first of them.

        Returns
        -------
        Collection
            A collection with the same columns and the two new ones.  ``key`` and order identify a row.

        Raises
        ------
        SpecError
            If a column is missing, the type of an order column has no order, or a name is taken.  Also if the input has
            one row for each key, or its rows expire without a retraction.
        ExpressionError
            If ``delete`` is invalid.

        Notes
        -----
        O(log rows) an update, plus O(r log r), where r is the number of rows around the updated row, up to the second
        version after that row. If some rows of the key are on disk, r is the number of all rows of the key. The state
        stores each row. A step raises `NegativeMultiplicity` if a row has a negative multiplicity.
        """
        return self._apply_verb("versions", key, order_by, delete, ignore, valid_from, valid_to)

    def to_upserts(self, key: str | Sequence[str], on_conflict: Literal["error", "greatest", "all"] = "error") -> Made:
        """Convert the updates to upserts for an output, like `ddflow.ToUpserts`.

        No verb can be applied to the result.

        Parameters
        ----------
        key, on_conflict
            The same as in `ddflow.ToUpserts`.

        Returns
        -------
        Collection
            A collection of upserts: the row's columns, ``_time`` and ``_deleted``.

        Raises
        ------
        SpecError, SchemaMismatch
            If a column is missing, rows of an input expire without a retraction, or `ddflow.ToUpserts` refuses a type
            or a name.

        Notes
        -----
        The cost is the same as for `ddflow.ToUpserts`. The state stores each row.
        """
        return self._apply_verb("to_upserts", key, on_conflict)

    def single(self, count: str, keys: Sequence[str] = ()) -> Made:
        """Refuse a step after which the count of a row is above one, for example in a scalar subquery.

        Parameters
        ----------
        count : str
            The column of counts; the result leaves it out.
        keys : sequence of str
            The columns to name in the error.

        Returns
        -------
        Collection
            A collection with the other columns.

        Raises
        ------
        SpecError
            If a column is missing, or the column of counts has no integers.

        Notes
        -----
        O(n), for n updates of a step. The error is `NotSingle`.
        """
        return self._apply_verb("single", count, keys)
