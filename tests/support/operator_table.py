"""Define a table with an example of each operator of the registry, for the laws of operators.

An entry has an example on a collection of `COLUMNS`, with repeated rows. The entry also has the twin of the example,
which is a function. The function computes the rows of the output from the rows of the input, all with multiplicities.
``test_operators`` checks all laws on each entry, and fails for an operator without an entry.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import aggregate_rules as rules
import pyarrow as pa
from model import Node
from window_rules import Call

import ddflow as dd
from ddflow.plan.verbs.family import find_operator_class

Row = tuple[Any, ...]
Rows = Counter[Row]
COLUMNS = {"city": pa.string(), "n": pa.int64(), "tags": pa.list_(pa.string())}
"""Columns of the input. A row is a tuple of the columns' values; a list within a row is a tuple, too."""


class Law(NamedTuple):
    """The example of an operator. ``make`` builds it, and ``scratch`` computes its rows from the rows of the input."""

    make: Callable[[dd.Collection], dd.Collection]
    scratch: Callable[[Rows], Rows]
    last: bool = False
    """True if no other operator can follow this operator."""


def each(function: Callable[[Row], list[Row]]) -> Callable[[Rows], Rows]:
    """Return the twin of an operator that processes each row by itself."""

    def scratch(rows: Rows) -> Rows:
        out: Rows = Counter()
        for row, times in rows.items():
            for made in function(row):
                out[made] += times
        return out

    return scratch


def groups(rows: Rows) -> Rows:
    """Count the rows of each city."""
    found: Counter[Any] = Counter()
    for (city, *_), times in rows.items():
        found[city] += times
    return Counter({(city, n): 1 for city, n in found.items() if n})


def aggregates(rows: Rows) -> Rows:
    """Compute some aggregates of each city's numbers."""
    found: dict[Any, list[tuple[Any, int]]] = {}
    for (city, n, _), times in rows.items():
        found.setdefault(city, []).append((n, times))
    out: Rows = Counter()
    for city, numbers in found.items():
        few = [(n > 1, times) for n, times in numbers if n is not None and n < 3]
        spread = rules.spread(numbers, root=True)
        made = rules.total(numbers), rules.average(numbers), spread, rules.truth(few, every=False)
        out[(city, sum(times for _, times in numbers), *made)] += 1
    return Counter({row: times for row, times in out.items() if row[1]})


def ends(rows: Rows) -> Rows:
    """Compute ordered aggregates of each city's numbers."""
    found: dict[Any, list[tuple[Any, Any, int]]] = {}
    for (city, n, tags), times in rows.items():
        found.setdefault(city, []).append((n, tags, times))
    out: Rows = Counter()
    for city, its in found.items():
        numbers, many = [(n, times) for n, _, times in its], sum(times for _, _, times in its)
        listed = rules.in_order([((), n, times) for n, _, times in its], [], True)
        odd = [((None if n is None else n % 2,), n, times) for n, _, times in its]
        first = rules.in_order(odd, [(True, False)], True)
        made = rules.extreme(numbers, False), rules.extreme(numbers, True), tuple(listed), (first or [None])[0]
        out[(city, *made, rules.distinct(numbers), many)] += 1
    return Counter({row: times for row, times in out.items() if row[-1]})


def cities(c: dd.Collection) -> list[dd.Collection]:
    """Return two collections of cities.

    The first collection has the cities of all rows, minus twice the cities of rows with ``n > 1``. The second
    collection has the cities of rows with ``n < 3``.
    """
    many = c.filter("n > 1").project(["city"]).negate()
    return [c.project(["city"]).concat(many, many), c.filter("n < 3").project(["city"])]


def by_city(function: Callable[[int, int], int]) -> Callable[[Rows], Rows]:
    """Return the twin of an operator on `cities`.

    The given function computes the result from the two multiplicities of a city.
    """

    def scratch(rows: Rows) -> Rows:
        left, right = Counter[Any](), Counter[Any]()
        for (city, n, _), times in rows.items():
            left[city] += times if n is None or n <= 1 else -times
            right[city] += times if n is not None and n < 3 else 0
        return Counter({(city,): function(left[city], right[city]) for city in {*left, *right}})

    return scratch


def best(rows: Rows) -> Rows:
    """Return the second and third row of each city, by ``n``."""
    left: Rows = Counter()
    for (city, n, _), times in rows.items():
        left[city, n] += times
    out: Rows = Counter()
    for city in {city for city, _ in left}:
        its = [row for row, times in left.items() for _ in range(times) if row[0] == city]
        out.update(sorted(its, key=lambda row: (row[1] is None, -(row[1] or 0)))[1:3])
    return out


CALLS = {"place": Call("row_number"), "before": Call("lag", "n"), "total": Call("sum", "n")}


def window_results(rows: Rows) -> Rows:
    """Return the rows of each city in the order of ``n``, with the results of `CALLS`."""
    left: Rows = Counter()
    for (city, n, _), times in rows.items():
        left[city, n] += times
    node = Node(("city", "n"), lambda state: state["rows"]).over(["city"], ["n"], CALLS)
    return node.of({"rows": Counter({row: times for row, times in left.items() if times})})


def history(rows: Rows) -> Rows:
    """Return the versions of each city.

    The numbers of a city form runs, some with tags and some without tags; the number 2 ends a run.
    """
    events: dict[Any, dict[int, set[bool]]] = {}
    for (city, n, tags), times in rows.items():
        if n is not None and times:
            events.setdefault(city, {}).setdefault(n, set()).add(tags is None)
    out: Rows = Counter()
    for city, its in events.items():
        begun: tuple[int, bool] | None = None
        for n in sorted(its):
            bare = max(its[n])
            if begun is not None and (n == 2 or bare != begun[1]):
                out[city, *begun, begun[0], n] += 1
                begun = None
            begun = (n, bare) if begun is None and n != 2 else begun
        if begun is not None:
            out[city, *begun, begun[0], None] += 1
    return out


def never(c: dd.Collection) -> dd.Collection:
    """Return the difference of a constant and the same constant, which is empty."""
    made = find_operator_class("constant")([*c.inputs, c][:1], ["n"], [["1"], ["2"]])
    return made.concat(made.negate())  # type: ignore[no-any-return]


def pairs(
    left: Callable[[Row], Row | None], right: Callable[[Row], Row | None], how: str = "inner", keys: int = 1
) -> Callable[[Rows], Rows]:
    """Return the twin of a join on the first value. Two functions make the two collections from the same rows.

    ``how``: as in `Collection.join`, without a condition.  Keys appear once.
    """

    def scratch(rows: Rows) -> Rows:
        sides = [Counter[Row](), Counter[Row]()]
        for row, times in rows.items():
            for side, made in zip(sides, (left(row), right(row)), strict=True):
                if made is not None:
                    side[made] += times
        out: Rows = Counter()
        partners = [{row[:keys] for row, times in side.items() if times and None not in row[:keys]} for side in sides]
        for one, n in sides[0].items():
            if how in ("semi", "anti"):
                out[one] += n if (one[:keys] in partners[1]) == (how == "semi") else 0
            elif how in ("left", "full") and one[:keys] not in partners[1]:
                out[(*one, None)] += n
            for other, m in sides[1].items() if how not in ("semi", "anti") else ():
                if one[:keys] == other[:keys] and None not in one[:keys]:
                    out[(*one, *other[keys:])] += n * m
        for other, m in sides[1].items() if how in ("right", "full") else ():
            if other[:keys] not in partners[0]:
                out[(*other[:keys], None, *other[keys:])] += m
        return out

    return scratch


def halves(c: dd.Collection) -> tuple[dd.Collection, dd.Collection]:
    """Return two collections by city.

    The left collection has each ``n`` below 3, and the right collection has each ``m`` that is not null.
    """
    return c.filter("n < 3").project(["city", "n"]), c.filter("n is not null").project({"city": "city", "m": "n"})


def half(row: Row) -> Row | None:
    """Return the left row of `halves`, or None."""
    return None if row[1] is None or row[1] >= 3 else row[:2]


def other_half(row: Row) -> Row | None:
    """Return the right row of `halves`, or None."""
    return None if row[1] is None else row[:2]


def below(rows: Rows) -> Rows:
    """Return the left collection of `halves`.

    Each row is joined with the rows of the right collection that have a greater value, or with null if there are none.
    """
    every = pairs(half, other_half)(rows)
    out = Counter({row: times for row, times in every.items() if row[1] < row[2]})
    lone = Counter[Row]()
    for row, times in rows.items():
        lone[row[:2]] += times if half(row) is not None else 0
    met = {row[:2] for row, times in out.items() if times}
    return out + Counter({(*row, None): times for row, times in lone.items() if row not in met})


def counted(rows: Rows) -> Rows:
    """Return the left collection of `halves`; each row also contains the number of rows with the same city."""
    found = dict(groups(rows).keys())
    out: Rows = Counter()
    for row, times in rows.items():
        if half(row) is not None and row[0] is not None and row[0] in found:
            out[(*row[:2], found[row[0]])] += times
    return out


def nearest(way: str, how: str) -> Callable[[Rows], Rows]:
    """Return the twin of an ASOF join of `halves`: the greatest smaller or the smallest greater number of the city."""

    def scratch(rows: Rows) -> Rows:
        out: Rows = Counter()
        for row, times in rows.items():
            if half(row) is not None:
                its = [m for city, m, _ in rows if city == row[0] is not None and m is not None and m != row[1]]
                found = [m for m in its if (m < row[1]) == (way == ">")]
                if found or how == "left":
                    out[(*row[:2], (max if way == ">" else min)(found, default=None))] += times
        return out

    return scratch


def same_key(c: dd.Collection) -> dd.Collection:
    """Join an input with itself by its key."""
    (rows,) = c.inputs
    mine, other = rows.project(["id", "city"]), rows.project({"of": "id", "n": "n"})
    return mine.join(other, on={"id": "of"}).project(["city", "n"])


TABLE: Mapping[str, Law] = {
    "filter": Law(lambda c: c.filter("n > 1"), each(lambda row: [row] if row[1] is not None and row[1] > 1 else [])),
    "project": Law(
        lambda c: c.project({"c": "city", "m": "n * 2"}),
        each(lambda row: [(row[0], None if row[1] is None else row[1] * 2)]),
    ),
    "negate": Law(lambda c: c.negate(), lambda rows: Counter({row: -times for row, times in rows.items()})),
    "concat": Law(
        lambda c: c.concat(c.filter("n > 1"), c.negate()),
        each(lambda row: [row] if row[1] is not None and row[1] > 1 else []),
    ),
    "consolidate": Law(lambda c: c.project(["city"]).consolidate(), each(lambda row: [row[:1]])),
    "unnest": Law(lambda c: c.unnest("tags"), each(lambda row: [(*row[:2], tag) for tag in row[2] or ()])),
    "count": Law(lambda c: c.count("city"), groups),
    "agg": Law(
        lambda c: c.group_by("city").agg(
            rows="count(*)", s="sum(n)", mean="avg(n)", sd="stddev_pop(n)", tagged="bool_or(n > 1) filter (where n < 3)"
        ),
        aggregates,
    ),
    "ordered_agg": Law(
        lambda c: c.group_by("city").agg(lo="min(n)", hi="max(n)", a="array_agg(n)"),
        lambda rows: Counter(row[:4] for row in ends(rows)),
    ),
    "distinct": Law(
        lambda c: c.project(["city"]).distinct(),
        lambda rows: Counter({(city,): 1 for city, *_ in rows}),
    ),
    "threshold": Law(
        lambda c: cities(c)[0].threshold("case when n < 0 then n * n when n >= 2 then n - 1 else 0 end"),
        by_city(lambda a, b: a * a if a < 0 else max(a - 1, 0)),
    ),
    "top": Law(lambda c: c.project(["city", "n"]).top(2, ["n desc"], ["city"], offset=1), best),
    "over": Law(
        lambda c: c.project(["city", "n"]).over("city", "n", **{name: call.sql for name, call in CALLS.items()}),
        window_results,
    ),
    "versions": Law(
        lambda c: (
            c.filter("n is not null")
            .project({"city": "city", "n": "n", "bare": "tags is null"})
            .versions("city", "n", delete="n = 2")
        ),
        history,
    ),
    "to_upserts": Law(lambda c: c.count("city").to_upserts("city"), groups, last=True),
    # The rows of a constant exist from the first event on, so the rows of the input do not determine them. See
    # test_constant.
    "constant": Law(lambda c: never(c), lambda rows: Counter()),
    "arrange": Law(lambda c: c.arrange("city"), each(lambda row: [row])),
    "arrange_in_order": Law(
        lambda c: c.project(["city", "n"])._apply_verb("arrange_in_order", ["city"], "n desc", True),
        each(lambda row: [row[:2]]),
    ),
    "asof": Law(lambda c: halves(c)[0].asof(halves(c)[1], on="city", at="n > m"), nearest(">", "inner")),
    "join": Law(lambda c: halves(c)[0].join(halves(c)[1], on="city"), pairs(half, other_half)),
    "lookup": Law(
        lambda c: c.project(["city", "n"]).lookup(
            c.project({"city": "city", "size": "length(city)"}).distinct(), "city"
        ),
        each(lambda row: [(*row[:2], None if row[0] is None else len(row[0]))]),
    ),
    "pad": Law(lambda c: halves(c)[0].join(halves(c)[1], on="city", how="left"), pairs(half, other_half, "left")),
    "single": Law(lambda c: c.project({"city": "city", "one": "1"}).single("one"), each(lambda row: [row[:1]])),
}

MADE: Mapping[str, Law] = {
    "agg of all rows": Law(
        lambda c: c.agg(n="count(n)", s="sum(n)", v="var_samp(n)"),
        lambda rows: Counter(
            [
                (rules.counted(numbers), rules.total(numbers), rules.spread(numbers, sample=True))
                for numbers in [[(n, times) for (_, n, _), times in rows.items()]]
                if sum(rows.values())
            ]
        ),
    ),
    "aggregates in an order beside sums": Law(
        lambda c: c.group_by("city").agg(
            lo="min(n)",
            hi="max(n)",
            a="array_agg(n)",
            f="first(n order by n % 2 desc) ignore nulls",
            kinds="count(distinct n)",
            rows="count(*)",
        ),
        ends,
    ),
    "union": Law(
        lambda c: cities(c)[0].union(*cities(c)),
        by_city(lambda a, b: int(a > 0 or b > 0)),
    ),
    "union all": Law(
        lambda c: cities(c)[0].union(*cities(c), all=True),
        by_city(lambda a, b: 2 * max(a, 0) + b),
    ),
    "except": Law(lambda c: cities(c)[0].except_(cities(c)[1]), by_city(lambda a, b: int(a > 0 and not b))),
    "except all": Law(
        lambda c: cities(c)[1].except_(cities(c)[0], all=True),
        by_city(lambda a, b: max(b - max(a, 0), 0)),
    ),
    "intersect": Law(
        lambda c: cities(c)[0].intersect(cities(c)[1], c.filter("n is not null").project(["city"])),
        by_city(lambda a, b: int(a > 0 and b > 0)),
    ),
    "intersect all": Law(
        lambda c: cities(c)[0].intersect(cities(c)[1], all=True),
        by_city(lambda a, b: min(max(a, 0), b)),
    ),
    **{
        f"{how} join": Law(
            lambda c, how=how: halves(c)[0].join(halves(c)[1], on="city", how=how),  # type: ignore[misc]
            pairs(half, other_half, how),
        )
        for how in ("right", "full", "semi", "anti")
    },
    "join by two keys": Law(
        lambda c: halves(c)[0].join(halves(c)[1], on={"city": "city", "n": "m"}),
        pairs(half, lambda row: None if row[1] is None else (*row[:2], row[1]), keys=2),
    ),
    "join on a condition": Law(
        lambda c: halves(c)[0].join(halves(c)[1], on="city", how="left", condition="n < m"), below
    ),
    "join of a count": Law(lambda c: halves(c)[0].join(c.count("city"), on="city"), counted),
    "inner lookup": Law(
        lambda c: c.project(["city", "n"]).lookup(
            c.project({"town": "lower(city)", "size": "length(city)"}).distinct().filter("town = 'bern'"),
            {"lower(city)": "town"},
            how="inner",
        ),
        each(lambda row: [(*row[:2], "bern", 4)] if row[0] == "Bern" else []),
    ),
    "left asof": Law(lambda c: halves(c)[0].asof(halves(c)[1], "city", "n < m", "left"), nearest("<", "left")),
    "join by a key": Law(same_key, each(lambda row: [row[:2]])),
}
"""Verbs that consist of other operators. All laws also apply to these verbs."""
