"""Let a projection pass all columns of a part of its input, even columns that are added later.

A part is, for example, one side of a join. Invariant: ddflow uses the plan, never the name of a column, to find the
part that the column comes from. So a projection of one side of a join does not pass a new column of the other side. The
JSON of a `RestColumns` lists the columns that are not passed. So the ids of collections stay the same if a column is
added to an input. A column that is added later is omitted if another column already has the same name.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from ddflow.plan.text.formulas import JsonRecord

Path = tuple[int, ...]
"""The path from a collection to a part.

The path lists, for each operator with several inputs, the position of the input through which the path leads.
"""


class RestColumns(NamedTuple):
    """All columns of a part, except the columns ``without``.

    ``at``: the number of named columns before the passed columns.  ``path``: the path to the part.  ``without``: the
    columns not passed.  ``begin``: the prefix of their names in the input.  ``now``: the prefix that replaces it.
    """

    at: int
    path: Path
    without: tuple[str, ...]
    begin: str = ""
    now: str = ""

    def to_json(self) -> dict[str, Any]:
        """Write the columns as JSON for `read_rest_columns`."""
        return self._asdict() | {"path": [*self.path], "without": [*self.without]}

    def map_passed_columns(self, ways: Mapping[str, set[Path]]) -> dict[str, str]:
        """Map the new name of each passed column to the column's name in the input.

        ``ways``: see `find_column_origins`.
        """
        mine = [name for name in ways if _has_path_prefix(self.path, ways[name]) and name not in self.without]
        return {self.now + name[len(self.begin) :]: name for name in mine if name.startswith(self.begin)}


def find_column_origins(of: Any) -> dict[str, set[Path]]:
    """Map each column to the paths that lead to its origins.

    A column can have several origins if several columns of the inputs are equal. O(nodes x columns).
    """
    known: dict[Any, dict[str, set[Path]]] = {}
    ahead = [of]
    while ahead:
        node = ahead[-1]
        # The inputs of a concatenation have the same columns.
        sides = [*enumerate(node.inputs)] if len(node.inputs) < 2 or node.exchange()[0] is not None else []
        sides = sides or [*enumerate(node.inputs[:1])]
        if missing := [each for _, each in sides if each not in known]:
            ahead += missing
            continue
        ahead.pop()
        made: dict[str, set[Path]] = {name: set() for name in node.schema.names}
        for at, each in sides:
            step = (at,) if len(sides) > 1 else ()
            for its, name in node.find_pushdown_columns(at).items():
                if name in made:
                    made[name] |= {(*step, *way) for way in known[each].get(its, ())}
        known[node] = {name: ways or {()} for name, ways in made.items()}
    return known[of]


def split_rest_columns(
    of: Any, columns: Mapping[str, str], groups: Sequence[Sequence[str]]
) -> tuple[dict[str, str], tuple[RestColumns, ...]]:
    """Split the columns of a projection into named columns and a `RestColumns` for each group. O(nodes x columns).

    ``groups``: names of columns. A group consists of all columns of one part that the projection shows. If the columns
    of a group come from several parts, these columns are treated as named columns.

    >>> import ddflow as dd
    >>> flow = dd.Flow()
    >>> orders = flow.upserts("orders", {"id": int, "shop": int}, dd.Upsert(key="id"))
    >>> shops = flow.upserts("shops", {"shop": int, "city": str}, dd.Upsert(key="shop"))
    >>> pairs = orders.join(shops, on="shop")
    >>> given, rests = split_rest_columns(pairs, {"id": "id", "shop": "shop", "town": "city"}, [["id", "shop"]])
    >>> given, rests
    ({'town': 'city'}, (RestColumns(at=0, path=(0,), without=(), begin='', now=''),))
    >>> list(expand_rest_columns(pairs, given, rests))
    ['id', 'shop', 'town']
    """
    ways, places, given, rests = (
        find_column_origins(of),
        {n: i for i, n in enumerate(of.schema.names)},
        dict(columns),
        list[Any](),
    )
    for group in groups:
        sources = [_unquote_column(columns[name]) for name in group]
        path = _find_smallest_common_path([ways.get(each, {()}) for each in sources])
        if path is None:
            continue
        begin, now = next((found for found in map(_find_differing_prefixes, sources, group) if any(found)), ("", ""))
        run = list[str]()
        for name, source in zip(reversed(group), reversed(sources), strict=True):
            alike = source.startswith(begin) and now + source[len(begin) :] == name
            if not alike or name not in given or (run and places[run[0]] < places[source]):
                break
            run.insert(0, source)
            del given[name]
        without = [name for name in places if _has_path_prefix(path, ways[name]) and name not in run]
        rests.append((group[-1], path, tuple(without), begin, now))
    order = list(columns)
    made = [RestColumns(sum(order.index(name) <= order.index(last) for name in given), *rest) for last, *rest in rests]
    return given, tuple(sorted(made, key=lambda each: each.at))


def expand_rest_columns(of: Any, given: Mapping[str, Any], rests: Sequence[RestColumns]) -> dict[str, Any]:
    """Map each column of a projection to its source. The result keeps the order of the columns. O(nodes x columns)."""
    ways, out, named = find_column_origins(of) if rests else {}, dict[str, Any](), [*given.items()]
    for at in range(len(named) + 1):
        for rest in rests:
            if rest.at == at:
                shown = rest.map_passed_columns(ways).items()
                out |= {name: source for name, source in shown if name not in out and name not in given}
        out |= dict(named[at : at + 1])
    return out


def read_rest_columns(record: JsonRecord) -> tuple[RestColumns, ...]:
    """Read the rest columns of a stored projection.  Raises `CorruptState`."""
    made = list[RestColumns]()
    for each in record.read_records("rests") if "rests" in record else []:
        path = JsonRecord({str(step): way for step, way in enumerate(each.read_list("path"))}, each.what)
        way, without = tuple(map(path.read_integer, path.list_field_names())), tuple(each.read_texts("without"))
        made.append(RestColumns(each.read_integer("at"), way, without, each.read_text("begin"), each.read_text("now")))
    return tuple(made)


def _unquote_column(formula: str) -> str:
    return formula[1:-1].replace("``", "`") if formula.startswith("`") and formula.endswith("`") else formula


def _find_differing_prefixes(source: str, name: str) -> tuple[str, str]:
    """Return the prefixes in which two names differ. At least one prefix is empty.

    If the difference is no prefix, both are empty.
    """
    if source.endswith(name):
        return source[: len(source) - len(name)], ""
    return "", name[: len(name) - len(source)] if name.endswith(source) else ""


def _has_path_prefix(path: Path, ways: set[Path]) -> bool:
    return any(way[: len(path)] == path for way in ways)


def _find_smallest_common_path(ways: Sequence[set[Path]]) -> Path | None:
    """Find the smallest part that contains all columns. Return None if there are several smallest parts."""
    for length in range(max(map(len, ways[0])), -1, -1):
        found = {way[:length] for way in ways[0] if len(way) >= length}
        found = {path for path in found if all(_has_path_prefix(path, each) for each in ways)}
        if found:
            return found.pop() if len(found) == 1 else None
    return None
