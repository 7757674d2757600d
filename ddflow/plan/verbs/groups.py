"""Verbs that look at rows by group or by key, and the parts that an agg is computed in.

Guarantees: a group is there while the multiplicities of its rows do not add up to zero. An agg has a part for the
aggregates that add up, one for each order of rows, and one for each count of distinct values. Every part has all
groups.
A part that is used twice is one collection, with one arrangement.

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
"""What each is, in an order of rows."""


class OrderedPartColumns(NamedTuple):
    """Columns and order of an ordered part: its columns beside the groups, by name, and its order."""

    columns: tuple[tuple[str, str], ...]
    order: tuple[str, ...]
    skips: str


def check_group_columns(of: Any, by: Any, names: Iterable[str]) -> list[str]:
    """Return the group columns, checked against the names of the results.  Raises `SpecError`."""
    groups, names = list(parse_column_names(by, "agg", "group_by")), list(names)
    check_columns_exist(groups, of.schema.names, "group_by")
    if taken := [name for name in names if name in groups]:
        raise SpecError("agg", f"a group column is called {taken[0]!r} already", "choose another name")
    if not names:
        raise SpecError("agg", "no aggregate is named", "write one, as in total='sum(amount)'")
    if of.forgetting:
        found = f"the inputs {sorted(of.forgetting)} forget rows without a retraction: they would be added again"
        raise SpecError("agg", found, "leave on_expire='forget' out there")
    check_column_names([*groups, *names], "agg")
    return groups


def aggregate_rows(of: Any, by: Sequence[str], texts: Mapping[str, Any]) -> Any:
    """Aggregate the rows: see `ddflow.plan.verbs.groups.Grouping.agg`.

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
    """Build the columns and the order of an ordered aggregate, and name its value column.  Raises `ExpressionError`."""
    by_value = call.function in ("min", "max")
    if call.distinct and not by_value:
        raise call.build_error(f"{call.function} takes no DISTINCT", "leave it out")
    if call.order and by_value:
        raise call.build_error(f"{call.function} takes no ORDER BY", "leave it out")
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
    """Count the distinct values, leaving out nulls."""
    if call.order or call.ignores_nulls:
        raise call.build_error(f"count takes no {'ORDER BY' if call.order else 'IGNORE NULLS'}", "leave it out")
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
    """Return a name that no group column has."""
    while name in groups:
        name += "_"
    return name


def _project_columns(of: Any, groups: Sequence[str], columns: Iterable[tuple[str, str]]) -> Any:
    return of.project({name: name for name in groups} | dict(columns))


def _join_group_parts(parts: Sequence[tuple[Any, list[str]]], groups: list[str], names: list[str]) -> Any:
    """Join all parts by their groups; each part has every group."""
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
    """The rows of a collection by some columns, of which `agg` makes a collection.

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
            found = f"it is given {wrong[0]!r:.200}, which is no name of a column"
            raise SpecError("group_by", found, "give names one by one, as in group_by('city', 'year')")
        self._of, self._by = of, list(by)

    def agg(self, *unnamed: Never, **aggregates: str | AppliedAggregate) -> Made:
        """Aggregate the rows of each group.

        A group is there while the multiplicities of its rows do not add up to zero.  Aggregates skip nulls; of nothing
        but nulls all but counts are null.  Asked for twice, it is one collection, with one arrangement.

        Parameters
        ----------
        **aggregates : str or AppliedAggregate
            By column of the result, SQL: ``count(*)``, ``count(x)``, ``count(distinct x)``, ``sum``, ``avg``, ``min``,
            ``max``, ``var_pop``, ``var_samp``, ``stddev_pop``, ``stddev_samp``, ``bool_and``, ``bool_or`` of an
            expression, ``first(x order by y)``, ``last(x order by y)``, ``array_agg(x)``, each with
            ``filter (where ...)``; the last three take ``ignore nulls``.  Or a `ddflow.Aggregate` of an expression.

        Returns
        -------
        Collection
            Of the group columns and the aggregates.

        Raises
        ------
        SpecError
            For a missing column, a name that is taken, and an input that forgets rows without a retraction.
        ExpressionError
            For what is no aggregate, and an argument that does not compile or is of a wrong type.

        Notes
        -----
        O(n) expected, for n updates of a step, and O(groups that change); of a variance some microseconds each.  It
        holds a row for each group.  A step raises `AggregateOverflow` when a sum leaves its type.  Extremes, first and
        last values take O(log rows) an update, and lists O(rows) for each group that changes; with distinct counts they
        hold the rows that differ, and raise `NegativeMultiplicity` where one is there less than zero times.

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
    """Verbs that bring equal rows of some columns together."""

    def count(self, by: str | Sequence[str] | None = None, *more: str, name: str = "count") -> Made:
        """Count the rows of each group.  A group at zero is not there.

        Asked for twice, it is one collection, with one arrangement.

        Parameters
        ----------
        by : str or sequence of str, optional
            The group columns.  By default all; ``[]`` counts all rows.
        *more : str
            Further ones: ``count("city", "kind")``.
        name : str
            The name of the count's column, an int64.

        Returns
        -------
        Collection
            Of the group columns and the count.

        Raises
        ------
        SpecError
            For a missing column, or one that is called ``name``.

        Notes
        -----
        O(n) expected, for n updates of a step.  It holds a row for each group.
        """
        if more:
            by = [*([by] if isinstance(by, str) else by or ()), *more]
        return self._apply_verb("count", by, name)

    def group_by(self, *columns: str) -> Grouping[Made]:
        """Bring the rows of each group together, for `Grouping.agg`.

        Parameters
        ----------
        *columns : str
            The group columns; null is a group.  None at all is one group.

        Returns
        -------
        Grouping
            Which is no collection.

        Raises
        ------
        SpecError
            For what is no name.
        """
        return Grouping(self, columns)

    def agg(self, *unnamed: Never, **aggregates: str | AppliedAggregate) -> Made:
        """Aggregate all rows: as `Grouping.agg` of one group.  Without rows there is no row.

        Parameters
        ----------
        **aggregates : str
            As of `Grouping.agg`.

        Returns
        -------
        Collection
            Of the aggregates.

        Raises
        ------
        SpecError, ExpressionError
            As of `Grouping.agg`.
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

        A row of multiplicity m takes m places, and may be cut.

        Parameters
        ----------
        k : int
            How many rows a group shows, 1 to 10,000.
        by : str or sequence of str
            The order, as in ``["amount desc", "at"]``: a column, then ``asc`` or ``desc``, then ``nulls first`` or
            ``nulls last``.  The default is ascending; nulls come first if ascending and last if descending.  The other
            columns break ties, in their order, ascending.
        partition_by : str or sequence of str
            The group columns, possibly none: bare names, without backticks.
        offset : int
            How many rows of each group to skip.
        rank_name : str, optional
            The name of a column for the place of a row in its group, an int64 from 1 on.  A row of multiplicity m is
            then m rows.

        Returns
        -------
        Collection
            Of the same columns, and the rank's.

        Raises
        ------
        SpecError
            For a missing column, an invalid order, a type without an order, and a number out of range.

        Notes
        -----
        O(log rows) for an update, and O(k + offset) for each group that a step touches.  It holds each row.  With
        ``rank_name`` one change may move all ranks after it: 2k updates.
        """
        return self._apply_verb("top", k, by, partition_by, offset, rank_name)

    def versions(
        self,
        key: str | Sequence[str],
        order_by: str | Sequence[str],
        delete: Tombstone | Formula | None = None,
        ignore: str | Sequence[str] = (),
        valid_from: str = "valid_from",
        valid_to: str = "valid_to",
    ) -> Made:
        """Make a type-2 history: each row is a version of its key, valid from its order until the next one's.

        A late row takes its place, and the ends of its neighbours move.  A retraction removes the version from history.
        Neighbours that differ only in ``order_by`` and ``ignore`` are one version, shown as the earliest.  If rows
        share a key and an order, the greatest one shows.

        Parameters
        ----------
        key : str or sequence of str
            The columns whose history it is; null is a key.
        order_by : str or sequence of str
            The columns that versions of a key are ordered by, null first.  Text and binary may only be the last one.
        delete : Tombstone, str, pyarrow.compute.Expression or callable, optional
            The rows that end the previous version and give no row: a `ddflow.tombstone`, whose column is not in the
            result, or a condition as in `filter`.  Among rows of one key and order they rank below all others.
        ignore : str or sequence of str
            Columns in which neighbours may differ and be one version.
        valid_from, valid_to : str
            The names of the columns for the order of a version, and for the order of the row that ended it, or null.
            With several order columns, they hold the first.

        Returns
        -------
        Collection
            Of the same columns, and these two.  No two rows have the same ``key`` and order.

        Raises
        ------
        SpecError
            For a missing column, an order column whose type has no order, a name that is taken, an input with one row
            a key, and an input that forgets rows without a retraction.
        ExpressionError
            For a ``delete`` that does not fit.

        Notes
        -----
        O(log rows) for an update, and O(r log r) for the r rows around it, up to the second version after it, or for
        all rows of its key if some are on disk.  It holds each row.  A step raises `NegativeMultiplicity` if a row has
        a multiplicity below zero.
        """
        return self._apply_verb("versions", key, order_by, delete, ignore, valid_from, valid_to)

    def to_upserts(self, key: str | Sequence[str], on_conflict: Literal["error", "greatest", "all"] = "error") -> Made:
        """Convert the updates to upserts, as `ddflow.ToUpserts` does, for an output.  No verb can follow it.

        Parameters
        ----------
        key, on_conflict
            As in `ddflow.ToUpserts`.

        Returns
        -------
        Collection
            Of upserts: the row's columns, ``_time`` and ``_deleted``.

        Raises
        ------
        SpecError, SchemaMismatch
            For a missing column, for an input that forgets rows without a retraction, and for a type or a name that
            `ddflow.ToUpserts` refuses.

        Notes
        -----
        It costs as much as `ddflow.ToUpserts`, and holds each row.
        """
        return self._apply_verb("to_upserts", key, on_conflict)

    def single(self, count: str, keys: Sequence[str] = ()) -> Made:
        """Refuse a step that leaves a row with a count above one, as of a scalar subquery.

        Parameters
        ----------
        count : str
            The column of counts.  It is not in the result.
        keys : sequence of str
            The columns that the error names.

        Returns
        -------
        Collection
            Of the other columns.

        Raises
        ------
        SpecError
            For a missing column, and for one that holds no integers.

        Notes
        -----
        O(n), for n updates of a step, which raises `NotSingle`.
        """
        return self._apply_verb("single", count, keys)
