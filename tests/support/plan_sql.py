"""Translate drawn plans to SQL, so that another engine can check the results. Tables have a multiplicity column ``_n``.

Every collection becomes a query that returns its columns and ``_n``, with distinct rows and nonzero ``_n``. Each verb
becomes plain SQL. A join multiplies ``_n``, a set operation compares both sides, and a top sums ``_n`` over the rows
that precede a row. Times are integers (see ``doors.plain``), because DuckDB lacks some of Arrow's types.

>>> text, columns = query(["negate", ["filter", ["input", "a"], "n > 1"]], {"a": ["k", "n"]})
>>> duckdb.sql(text.replace('from "a"', 'from (select 1 k, 2 n, 1 _n)')).fetchall(), columns
([(1, 2, -1)], ['k', 'n'])
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import duckdb  # noqa: F401 of the doctest
from model import ordering
from window_rules import Call

Query = tuple[str, list[str]]
"""The SQL text of a query, and the columns of the query without ``_n``."""
SETS = {
    ("union", False): "_a > 0 or _b > 0",
    ("union", True): "_a + _b",
    ("except_", False): "_a > 0 and _b = 0",
    ("except_", True): "greatest(_a - _b, 0)",
    ("intersect", False): "_a > 0 and _b > 0",
    ("intersect", True): "least(_a, _b)",
}
KINDS = {"inner": "join", "left": "left join", "right": "right join", "full": "full join"}


def total(column: str, where: str = "true") -> str:
    """Return SQL for the sum of the values that are not null. The sum of no values is null."""
    there = f"filter (where {column} is not null and {where})"
    exact = f"sum({column} * _n) {there}"
    if column == "f":  # two NaNs that cancel each other give no NaN
        nans = "coalesce(sum(_n) filter (where isnan(f)), 0) <> 0"
        exact = f"case when {nans} then 'nan'::double else coalesce(sum(f * _n) filter (where not isnan(f)), 0) end"
    return f"case when sum(_n) {there} <> 0 then {exact} end"


AGGREGATES = {
    "count(*)": "sum(_n)",
    "count(s)": "coalesce(sum(_n) filter (where s is not null), 0)",
    "sum(n)": total("n"),
    "avg(n)": f"({total('n')})::double / sum(_n) filter (where n is not null)",
    "sum(f)": total("f"),
    "sum(n) filter (where b)": total("n", "b"),
    "sum(d)": total("d"),
    "min(n)": "min(n)",
    "max(f)": "max(f)",
    "max(s) filter (where b)": "max(s) filter (where b)",
    "count(distinct n)": "count(distinct n)",
    "bool_or(b)": """case when sum(_n) filter (where b) > 0 then true
                          when sum(_n) filter (where not b) > 0 then false end""",
}


def query(expression: Sequence[Any], inputs: Mapping[str, list[str]]) -> Query:
    """Return the query of an output's nested list.  ``inputs``: the columns of the inputs' tables."""
    verb, *rest = expression
    if verb == "input":
        return f'(select {_list(inputs[rest[0]])} from "{rest[0]}")', inputs[rest[0]]
    below, columns = query(rest[0], inputs)
    all_of = f"select {_list(columns)} from {below}"
    match verb, rest[1:]:
        case "consolidate", _:
            return below, columns
        case "negate", _:
            return f"(select * replace (-_n as _n) from {below})", columns
        case "filter", [condition]:
            return f"({all_of} where {condition})", columns
        case "project", [chosen]:
            named = chosen if isinstance(chosen, Mapping) else {name: _name(name) for name in chosen}
            said = ", ".join(f"{sql} as {_name(name)}" for name, sql in named.items())
            return added(f"select {said}, _n from {below}", list(named))
        case "count", [by, name]:
            by = columns if by is None else by
            groups, _ = added(f"select {_list(by)} from {below}", by)
            return f"(select * exclude (_n), _n as {_name(name)}, 1 as _n from {groups})", [*by, name]
        case "concat", others:
            parts = [f"select {_list(columns)} from {query(each, inputs)[0]}" for each in others]
            return added(" union all ".join([all_of, *parts]), columns)
        case "distinct", _:
            return f"(select * replace (1 as _n) from {below} where _n > 0)", columns
        case "threshold", [function]:
            made = re.sub(r"\bn\b", "_n", function)
            return f"(select * from (select * replace ({made} as _n) from {below}) where _n <> 0)", columns
        case "set", [other, kind, every]:
            return f"({_set(below, query(other, inputs)[0], columns, SETS[kind, every])})", columns
        case "top", [k, by, of, offset, rank]:
            return _top(below, columns, k, by, of, offset, rank)
        case "over", [by, order, calls]:
            return _over(below, columns, by, order, calls)
        case "sessions", [by, at, gap]:
            return _sessions(below, columns, by, _name(at), gap)
        case "versions", [key, order, delete, ignore, start, stop]:
            return _versions(below, columns, key, order, delete, ignore, start, stop)
        case "join", [other, on, how, condition]:
            return _join((below, columns), query(other, inputs), on, how, condition)
        case "asof", [other, on, at, how]:
            return _asof((below, columns), query(other, inputs), on, at, how)
        case "agg", [by, chosen]:
            said = [f"{AGGREGATES[text]} as {_name(name)}" for name, text in chosen.items()]
            groups = ", ".join([*map(_name, by), *said])
            return f"(select {groups}, 1 as _n from {below} group by all having sum(_n) <> 0)", [*by, *chosen]
    raise NotImplementedError(verb)


def added(select: str, columns: list[str]) -> Query:
    """Return a query for the selected rows. Each row occurs once, with the sum of its ``_n``."""
    of = ", ".join([*map(_name, columns), "sum(_n) as _n"])
    return f"(select {of} from ({select}) group by all having sum(_n) <> 0)", columns


def _set(left: str, right: str, columns: list[str], function: str) -> str:
    sides = [f"select {_list(columns)}, {n} from {side}" for side, n in ((left, "_n as _a, 0 as _b"), (right, "0, _n"))]
    of = ", ".join(map(_name, columns))
    sums = "greatest(sum(_a), 0) as _a, greatest(sum(_b), 0) as _b"
    both = f"select {of}, {sums} from ({' union all '.join(sides)}) group by all"
    return f"select {of}, cast({function} as bigint) as _n from ({both}) where cast({function} as bigint) <> 0"


def _asof(left: Query, right: Query, on: Mapping[str, str], at: str, how: str) -> Query:
    """Return the query of an ASOF join. The first rows of equal moments come first in the order of all columns."""
    mine, way, its = at.split()
    alone = [name for name in right[1] if name not in left[1]]
    meets = " and ".join(
        [*(f"l.{_name(a)} = r.{_name(b)}" for a, b in on.items()), f"l.{_name(mine)} {way} r.{_name(its)}"]
    )
    ways = [f"{_name(its)} {'desc' if '>' in way else 'asc'}", *(f"{_name(name)} nulls first" for name in right[1])]
    nearest = f"select * from {right[0]} r where {meets} order by {', '.join(f'r.{each}' for each in ways)} limit 1"
    shown = ", ".join(
        [*(f"l.{_name(name)}" for name in left[1]), *(f"r.{_name(name)}" for name in alone), "l._n as _n"]
    )
    made = f"select {shown} from {left[0]} l {how} join lateral ({nearest}) r on true"
    return f"({made})", [*left[1], *alone]


def _top(below: str, columns: list[str], k: int, by: list[str], of: list[str], offset: int, rank: str | None) -> Query:
    ways = [ordering(text) for text in by]
    ways += [(name, False, True) for name in columns if name not in [each[0] for each in ways]]
    order = ", ".join(
        f"{_name(name)} {'desc' if descending else 'asc'} nulls {'first' if first else 'last'}"
        for name, descending, first in ways
    )
    groups = f"partition by {', '.join(map(_name, of))}" if of else ""
    over = f"sum(_n) over ({groups} order by {order} rows unbounded preceding)" if order else "_n"
    placed = f"select *, {over} as _last from {below}"
    first, last = f"greatest(_last - _n, {offset})", f"least(_last, {offset + k})"
    shown = ", ".join(map(_name, columns))
    shown += ", " * bool(columns)
    if rank is None:
        return f"(select {shown}{last} - {first} as _n from ({placed}) where {last} > {first})", columns
    places = f"unnest(range(cast({first} as bigint) + 1, cast({last} as bigint) + 1))"
    return f"(select {shown}{places} as {_name(rank)}, 1 as _n from ({placed}))", [*columns, rank]


def _over(below: str, columns: list[str], by: list[str], order: list[str], calls: Mapping[str, list[Any]]) -> Query:
    """Return the query of window functions. Each row occurs as often as its multiplicity."""
    ways = [ordering(text) for text in order]
    ties = [(name, False, True) for name in columns if name not in [each[0] for each in ways]]
    said = []
    for name, told in calls.items():
        call = Call(told[0], told[1] and _name(told[1]), *told[2:3], frame=tuple(told[3]) if told[3:] else None)
        text, _, frame = call.sql.partition(" over (")
        every = ways if call.function in ("rank", "dense_rank", "min") else [*ways, *ties]
        sorts = ", ".join(
            f"{_name(each)} {'desc' if descending else 'asc'} nulls {'first' if first else 'last'}"
            for each, descending, first in every
        )
        groups = f"partition by {', '.join(map(_name, by))} " if by else ""
        said.append(f"{text} over ({groups}order by {sorts} {frame.removesuffix(')')}) as {_name(name)}")
    rows = f"(select {', '.join(map(_name, columns))}, unnest(range(cast(_n as bigint))) from {below})"
    return added(f"select {', '.join([*map(_name, columns), *said])}, 1 as _n from {rows}", [*columns, *calls])


def _sessions(below: str, columns: list[str], by: list[str], at: str, gap: int) -> Query:
    """Return the query of sessions: a row begins one if the row before is a gap or more away.  Times are numbers."""
    groups = f"partition by {', '.join([*map(_name, by), f'{at} is null'])}"
    far = f"{at} - lag({at}) over ({groups} order by {at}) >= {gap}"
    begun = f"select *, coalesce({far}, true) as _begins from {below}"
    numbered = f"select *, count(*) filter (where _begins) over ({groups} order by {at}) as _session from ({begun})"
    ends = f"min({at}) over (s) as session_start, max({at}) over (s) + {gap} as session_end"
    made = f"select {_list(columns)}, {ends} from ({numbered}) window s as ({groups}, _session)"
    ends = "session_start, session_end"
    return f"(select {', '.join(map(_name, columns))}, {ends}, _n from ({made}))", [*columns, *ends.split(", ")]


def _versions(
    below: str, columns: list[str], key: list[str], order: str, delete: str | None, ignore: list[str], *names: str
) -> Query:
    groups, at = f"partition by {', '.join(map(_name, key))}" if key else "", _name(order)
    within = f"{groups or 'partition by'} {', ' if key else ''}{at}"
    greatest = ", ".join(f"{_name(name)} desc nulls last" for name in columns)
    rows = f"select *, ({delete or 'false'}) is true as _gone from {below}"
    rows = f"select * from ({rows}) qualify row_number() over ({within} order by _gone, {greatest}) = 1"
    window = f"over ({groups} order by {at} nulls first)"
    changes = ["lag(_gone) " + window + " is distinct from false"]
    counting = [_name(name) for name in columns if name not in (*key, *ignore, order)]
    changes += [f"lag({name}) {window} is distinct from {name}" for name in counting]
    edges = f"select * from (select *, _gone or {' or '.join(changes)} as _edge from ({rows})) where _edge"
    ends = f"select * exclude (_n, _edge), {at} as {_name(names[0])}, lead({at}) {window} as {_name(names[1])}"
    told = [*columns, *names]
    return f"(select {', '.join(map(_name, told))}, 1 as _n from ({ends} from ({edges})) where not _gone)", told


def _join(left: Query, right: Query, on: Mapping[str, str], how: str, condition: str | None) -> Query:
    (below, columns), (other, there) = left, right
    hidden = ", ".join(f"{_name(name)} as _r{i}" for i, name in enumerate(there)) + ", " * bool(there)
    sides = f"(select *, _n as _l from {below}) {{}} (select {hidden}_n as _r from {other}) on "
    tests = [f"{_name(a)} = _r{there.index(b)}" for a, b in on.items()] + [f"({condition})"] * bool(condition)
    sides += " and ".join(tests) or "true"
    if how in ("semi", "anti"):
        return f"(select {_list(columns)} from {sides.format(how + ' join')})", columns
    told = [f"coalesce({_name(a)}, _r{there.index(a)}) as {_name(a)}" if on.get(a) == a else _name(a) for a in columns]
    alone = [name for name in there if on.get(name) != name]
    told += [f"_r{there.index(name)} as {_name(name)}" for name in alone]
    told.append("coalesce(_l, 1) * coalesce(_r, 1) as _n")
    # An outer join fills rows from both sides with nulls. Such rows could be equal, if no column told the sides apart.
    return added(f"select {', '.join(told)} from {sides.format(KINDS[how])}", [*columns, *alone])


def _name(column: str) -> str:
    return f'"{column}"'


def _list(columns: Sequence[str]) -> str:
    return ", ".join([*map(_name, columns), "_n"])
