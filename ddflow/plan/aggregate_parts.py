"""The parts of an agg: aggregates that add up, those of each order of rows, and counts of distinct values; joined.

Invariant: every part has all groups, because a row in which nothing counts is part of its group all the same. Such rows
are all nulls but for their group, so a group has one of them at most, however often. A part that is asked for twice is
one collection, with one arrangement.

>>> import ddflow as dd
>>> flow = dd.Flow()
>>> orders = flow.upserts("orders", {"id": int, "city": str, "n": int}, dd.Upsert(key="id"))
>>> aggregated(orders, ["city"], {"least": "min(n)", "most": "max(n)"})
OrderedAgg(city string, least int64, most int64)
>>> aggregated(orders, ["city"], {"least": "min(n)", "n": "sum(n)"}).schema.names
['city', 'least', 'n']
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from ddflow.columns.names import check_known, check_names, column_names
from ddflow.columns.schema import is_flat, normal_type
from ddflow.errors import SpecError
from ddflow.expressions import compile as compile_expression
from ddflow.plan.aggregates import AggregateCall, AppliedAggregate, written_aggregate
from ddflow.plan.text.formulas import Formulas
from ddflow.plan.verbs.joins import pairs_of

ENDS: Final = {"min": "first", "max": "last", "first": "first", "last": "last", "array_agg": "all"}
"""What each is, in an order of rows."""


class PartColumns(NamedTuple):
    """Columns and order of an ordered part: its columns beside the groups, by name, and its order."""

    columns: tuple[tuple[str, str], ...]
    order: tuple[str, ...]
    skips: str


def checked_groups(of: Any, by: Any, names: Iterable[str]) -> list[str]:
    """Return the group columns, checked against the names of the results.  Raises `SpecError`."""
    groups, names = list(column_names(by, "agg", "group_by")), list(names)
    check_known(groups, of.schema.names, "group_by")
    if taken := [name for name in names if name in groups]:
        raise SpecError("agg", f"a group column is called {taken[0]!r} already", "choose another name")
    if not names:
        raise SpecError("agg", "no aggregate is named", "write one, as in total='sum(amount)'")
    if of.forgetting:
        found = f"the inputs {sorted(of.forgetting)} forget rows without a retraction: they would be added again"
        raise SpecError("agg", found, "leave on_expire='forget' out there")
    check_names([*groups, *names], "agg")
    return groups


def aggregated(of: Any, by: Sequence[str], texts: Mapping[str, Any]) -> Any:
    """Aggregate the rows: see `ddflow.plan.verbs.groups.Grouping.agg`."""
    own = {name for name, given in texts.items() if isinstance(given, AppliedAggregate)}
    calls = {name: written_aggregate(name, text, of.schema.names) for name, text in texts.items() if name not in own}
    folding = [name for name in texts if name in own or _folds(calls[name])]
    if len(folding) == len(texts):
        return of._then("agg", by, texts)
    groups = checked_groups(of, by, texts)
    parts = [(of.group_by(*groups).agg(**{name: texts[name] for name in folding}), folding)] if folding else []
    ordered = dict[PartColumns, list[tuple[str, str, str]]]()
    for name, call in calls.items():
        if call.function in ENDS:
            part, value = _ordered_part(of, groups, call)
            ordered.setdefault(part, []).append((name, ENDS[call.function], value))
        elif name not in folding:
            parts.append((_count_distinct(of, groups, name, call), [name]))
    for part, results in ordered.items():
        rows = _project_columns(of, groups, part.columns)
        made = rows._then("ordered_agg", groups, part.order, results, part.skips)
        parts.append((made, [name for name, _, _ in results]))
    return _join_parts(parts, groups, list(texts))


def _folds(call: AggregateCall) -> bool:
    return call.function not in ENDS and not (call.function == "count" and call.distinct)


def _ordered_part(of: Any, groups: Sequence[str], call: AggregateCall) -> tuple[PartColumns, str]:
    """Build the columns and the order of an ordered aggregate, and name its value column.  Raises `ExpressionError`."""
    by_value = call.function in ("min", "max")
    if call.distinct and not by_value:
        raise call.refused(f"{call.function} takes no DISTINCT", "leave it out")
    if call.order and by_value:
        raise call.refused(f"{call.function} takes no ORDER BY", "leave it out")
    if call.function in ("first", "last") and not call.order:
        raise call.refused("it does not say which row is first", f"write {call.function}(x order by y)")
    (argument,) = call.arguments
    value, among = (_fresh(name, groups) for name in ("value", "among"))
    columns = {value: argument}
    whole = not (call.ignores_nulls or call.where or call.function not in ("first", "last"))
    skips = "" if whole else value
    counts = f"({argument}) IS NOT NULL"
    if call.where and call.function in ("first", "last") and not call.ignores_nulls:
        skips, counts = among, f"({call.where})"
        columns[among] = f"CASE WHEN {counts} THEN true END"
    ways = list[str]()
    for i, each in enumerate(call.order):
        name = value if each.text == argument else _fresh(f"order {i + 1}", groups)
        if name != value:
            columns[name] = each.text if whole else f"CASE WHEN {counts} THEN {each.text} END"
        ways.append(_way(name, each.descending, each.nulls_first))
    if not call.order:
        ways.append(_way(value, False, False))
    for name, text in columns.items():
        kind = compile_expression(text, of.schema, what=f"{call.function} of {call.name!r}").type
        if any(way.startswith(f"`{name}`") for way in ways) and not is_flat(normal_type(kind)):
            raise call.refused(f"{text} is {kind}, which has no order", "use numbers, text, binary, dates, decimals")
    rest = [pair for pair in columns.items() if pair[0] != value]
    return PartColumns((*rest, (value, argument)), tuple(ways), skips), value


def _way(name: str, descending: bool, nulls_first: bool) -> str:
    return f"`{name}` {'desc' if descending else 'asc'} nulls {'first' if nulls_first else 'last'}"


def _count_distinct(of: Any, groups: Sequence[str], name: str, call: AggregateCall) -> Any:
    """Count the distinct values, leaving out nulls."""
    if call.order or call.ignores_nulls:
        raise call.refused(f"count takes no {'ORDER BY' if call.order else 'IGNORE NULLS'}", "leave it out")
    columns = list[tuple[str, str]]()
    tests = " AND ".join(f"({each}) IS NOT NULL" for each in call.arguments)
    for i, each in enumerate(dict.fromkeys(call.arguments)):
        compile_expression(each, of.schema, what=f"count of {name!r}")
        text = each if len(call.arguments) == 1 else f"CASE WHEN {tests} THEN {each} END"
        columns.append((_fresh(f"value {i + 1}", groups), text))
    rows = _project_columns(of, groups, columns)
    if not rows.positive:
        rows = rows._refusing(groups, f"agg {name}=count(distinct ...)")
    return rows.distinct()._then("agg", groups, {name: f"count(`{columns[0][0]}`)"})


def _fresh(name: str, groups: Sequence[str]) -> str:
    """Return a name that no group column has."""
    while name in groups:
        name += "_"
    return name


def _project_columns(of: Any, groups: Sequence[str], columns: Iterable[tuple[str, str]]) -> Any:
    return _find_equal(of.project({name: name for name in groups} | dict(columns)))


def _join_parts(parts: Sequence[tuple[Any, list[str]]], groups: list[str], names: list[str]) -> Any:
    """Join all parts by their groups; each part has every group."""
    made, shown = parts[0]
    for part, more in parts[1:]:
        columns = [(name, 0, name) for name in (*groups, *shown)] + [(name, 1, name) for name in more]
        made, shown = (
            _find_equal(pairs_of(made, part, [(g, g) for g in groups], columns, (), nulls=True)),
            [*shown, *more],
        )
    if shown != names:
        made = _find_equal(made.project([*groups, *names]))
    if len(parts) > 1:
        made = _find_equal(made.consolidate())
        made.unique = made.positive = True
    return made


def _find_equal(made: Any) -> Any:
    """Return the equal collection that the plan already has, or the new one."""
    for node in made.flow.nodes:
        if node is made:
            break
        alike = type(node) is type(made) and node.inputs == made.inputs
        if alike and node.to_json(Formulas()) == made.to_json(Formulas()):
            made.flow.nodes.remove(made)
            return node
    return made
