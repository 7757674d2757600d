"""Declare join, lookup and arrange, and build all kinds of joins from inner joins.

Outer, semi and anti joins are combinations of an inner join, distinct keys, and the rows without a partner. So one join
operator is enough for all kinds of joins.

Guarantees: columns keep their names. If a column name occurs on both sides, the column must be a join key, or the join
raises `SpecError`.

>>> import ddflow as dd
>>> flow = dd.Flow()
>>> orders = flow.upserts("orders", {"id": int, "customer": int}, dd.Upsert(key="id"))
>>> customers = flow.upserts("customers", {"customer": int, "city": str}, dd.Upsert(key="customer"))
>>> orders.join(customers, on="customer")
Join(id int64, customer int64, city string)
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import product
from typing import Any, Final, Generic, Literal, NamedTuple

import pyarrow as pa
import pyarrow.types as pat

from ddflow.columns.names import did_you_mean, parse_column_names
from ddflow.columns.schema import is_word_type, normalize_type
from ddflow.errors import ErrorText, Option, SpecError
from ddflow.plan.verbs.family import Made, VerbFamily, check_same_flow, find_operator_class
from ddflow.plan.verbs.rest_columns import split_rest_columns

KINDS: Final = ("inner", "left", "right", "full", "semi", "anti")


class JoinSides(NamedTuple):
    """Two collections and their join columns, in order.

    ``merged``: the join columns that have one name on both sides.
    """

    left: Any
    right: Any
    on: list[tuple[str, str]]
    merged: list[str]
    shown: tuple[list[str], list[str]]
    """The original columns of each side. All other columns are computed keys."""
    whole: list[int]
    """The sides that show all columns of their collection and need no projection."""

    def list_columns(self) -> list[tuple[str, int, str]]:
        """List the columns of the join as (name, side, name on that side). A merged key is taken from the left side."""
        left = [(name, 0, name) for name in self.shown[0]]
        return [*left, *((name, 1, name) for name in self.shown[1] if name not in self.merged)]


def join_collections(left: Any, right: Any, on: Any, how: str, condition: str | None) -> Any:
    """Join two collections; see `ddflow.plan.verbs.joins.JoinVerbs.join`.

    >>> import ddflow as dd
    >>> flow = dd.Flow()
    >>> orders = flow.upserts("orders", {"id": int, "customer": int}, dd.Upsert(key="id"))
    >>> customers = flow.upserts("customers", {"id": int, "city": str}, dd.Upsert(key="id"))
    >>> orders.join(customers, on={"customer": "id"})
    Traceback (most recent call last):
        ...
    ddflow.errors.SpecError: join: both sides have the columns ['id'], which are not joined; rename them on one \
side: ...
    >>> cities = customers.project({"customer": "id", "city": "city"})
    >>> join_collections(orders, cities, "customer", "left", None).schema.names
    ['id', 'customer', 'city']
    """
    if how not in KINDS:
        raise SpecError(
            "join", ErrorText(Option("how"), f" is {how!r:.99}"), f"use one of {', '.join(map(repr, KINDS))}"
        )
    check_same_flow("join", left, right)
    sides = _sort_keys(prepare_sides(left, right, parse_key_pairs(on, "join"), "join"))
    if how != "inner":
        sides = sides._replace(
            left=_refuse_negative_counts(sides.left, [one for one, _ in sides.on], how),
            right=_refuse_negative_counts(sides.right, [other for _, other in sides.on], how),
        )
    if how in ("semi", "anti"):
        found = _keep_matched_rows(sides, 0, _join_inner(sides, condition) if condition is not None else None)
        return select_columns(found if how == "semi" else _remove_matched_rows(sides.left, found), sides.shown[0])
    pairs = _join_inner(sides, condition)
    outer = {"left": [0], "right": [1], "full": [0, 1]}.get(how)
    if outer is None:
        return pairs
    made = pairs.concat(*(_pad_unmatched_rows(sides, side, pairs, condition) for side in outer))
    made.proven = None if how == "full" else _find_identifying_columns(sides, 0 if how == "left" else 1)
    return made


def look_up_rows(left: Any, right: Any, on: Any, how: str) -> Any:
    """Look up rows; see `ddflow.plan.verbs.joins.JoinVerbs.lookup`."""
    if how not in ("left", "inner"):
        raise SpecError("lookup", ErrorText(Option("how"), f" is {how!r:.99}"), "use 'left' or 'inner'")
    check_same_flow("lookup", left, right)
    sides = _sort_keys(prepare_sides(left, right, parse_key_pairs(on, "lookup"), "lookup"))
    columns = sides.list_columns()
    theirs = [name for name, side, _ in columns if side == 1]
    keys = [other for _, other in sides.on]
    other, others = _find_or_make_arrangement(sides.right, keys, theirs)
    meets = [(one, others[its]) for one, its in sides.on]
    shown: dict[str, str] | None = {name: others[name] for name in theirs}
    if 1 in sides.whole and [*other.schema.names] == [*right.schema.names] and all(a == b for a, b in others.items()):
        shown = None
    made = sides.left._apply_verb("lookup", other, meets, shown, sides.merged, how)
    return select_columns(made, [name for name, _, _ in columns])


def parse_key_pairs(on: Any, asked: str) -> list[tuple[str, str]]:
    """Parse the keys into pairs of a left key and a right key. Raises `SpecError`."""
    if isinstance(on, Mapping):
        names = parse_column_names([*on, *on.values()], asked, "on")
        return list(zip(names[: len(on)], names[len(on) :], strict=True))
    names = parse_column_names(on, asked, "on")
    return list(zip(names, names, strict=True))


def prepare_sides(
    left: Any, right: Any, keys: Sequence[tuple[str, str]], asked: str, more: Sequence[tuple[str, str]] = ()
) -> JoinSides:
    """For each key, add a column to both sides, so that the two columns have comparable types.

    ``more``: further pairs of columns, whose types the caller checks. Raises `SpecError`, `ExpressionError`.
    """
    pairs, shown = [*keys, *more], (list(left.schema.names), list(right.schema.names))
    merged = [one for one, other in pairs if one == other and one in shown[0] and one in shown[1]]
    both = [name for name in shown[1] if name in shown[0] and name not in merged]
    if both:
        example = ", ".join(f"{name!r}: {f'{name}_2' if name in both else name!r}" for name in shown[1][:4])
        found = f"both sides have the columns {both}, which are not joined"
        raise SpecError(asked, found, f"rename them on one side: right.project({{{example}, ...}})")
    left, ones = _add_key_columns(left, [one for one, _ in pairs], right, [other for _, other in pairs], asked)
    right, others = _add_key_columns(right, [other for _, other in pairs], left, ones, asked)
    on = list(zip(ones, others, strict=True))
    for (one, other), (was, its) in zip(on, keys, strict=False):
        a, b = left.schema.field(one).type, right.schema.field(other).type
        if not is_comparable(a, b):
            found = f"{was!r} is {a} and {its!r} is {b}, which do not compare without loss"
            raise SpecError(asked, found, f"cast one: on={{{was!r}: 'cast({its} as ...)'}}")
    whole = [
        side
        for side, (of, names) in enumerate(zip((left, right), shown, strict=True))
        if _has_exactly_columns(of, names)
    ]
    return JoinSides(left, right, on, merged, shown, whole)


def _sort_keys(sides: JoinSides) -> JoinSides:
    """If a side is indexed by exactly the join columns, use the column order of that index."""
    for at, side in ((1, sides.right), (0, sides.left)):
        of, sources = follow_renames(side, side.schema.names)
        found_by = of.find_lookup_columns()
        if found_by is not None and sorted(found_by) == sorted(sources[pair[at]] for pair in sides.on):
            return sides._replace(on=sorted(sides.on, key=lambda pair: found_by.index(sources[pair[at]])))
    return sides


def _has_exactly_columns(side: Any, shown: Sequence[str]) -> bool:
    return follow_renames(side, shown)[0] is side and list(side.schema.names) == list(shown)


def _add_key_columns(
    side: Any, keys: Sequence[str], other: Any, its: Sequence[str], asked: str
) -> tuple[Any, list[str]]:
    """For each key, add to one side a column with the values of the key, cast to the common type.

    Return the names of the columns.
    """
    columns, names = {name: name for name in side.schema.names}, list[str]()
    for key, partner in zip(keys, its, strict=True):
        text = key
        if key in side.schema.names and partner in other.schema.names:
            kind, its_kind = side.schema.field(key).type, other.schema.field(partner).type
            common = _find_common_decimal(kind, its_kind) or _find_common_timestamp(kind, its_kind)
            text = key if common in (None, kind) else f"cast(`{key.replace('`', '``')}` as {_write_type_sql(common)})"
        if text in side.schema.names and text not in names:
            names.append(text)
            continue
        if text == key and text not in side.schema.names and key.replace("_", "a").isalnum():
            raise SpecError(asked, f"there is no column {key!r}", did_you_mean(key, side.schema.names), column=key)
        name, n = f"key {len(names) + 1}", len(names) + 1
        while name in columns:
            name, n = f"key {n + 1}", n + 1
        columns[name] = text
        names.append(name)
    return (side if len(columns) == len(side.schema.names) else side.project(columns)), names


def _write_type_sql(kind: pa.DataType) -> str:
    if pat.is_decimal(kind):
        return f"decimal({kind.precision}, {kind.scale})"
    return "timestamp" if kind.tz else "timestamp_ntz"


def _find_common_timestamp(one: pa.DataType, other: pa.DataType) -> pa.DataType | None:
    """If one of two types is a timestamp, return a timestamp type to which both types can be cast without loss.

    Return None if no such type exists. SQL has no timestamps of nanoseconds. Comparing a date with an instant needs a
    time zone.
    """
    if one == other or not (pat.is_timestamp(one) or pat.is_timestamp(other)):
        return None
    units, zones = set[str](), set[bool]()
    for kind in (one, other):
        if not (pat.is_timestamp(kind) or pat.is_date32(kind)):
            return None
        units.add(kind.unit if pat.is_timestamp(kind) else "s")
        zones.add(pat.is_timestamp(kind) and kind.tz is not None)
    return None if "ns" in units or len(zones) > 1 else pa.timestamp("us", "UTC" if zones == {True} else None)


def _find_common_decimal(one: pa.DataType, other: pa.DataType) -> pa.DataType | None:
    """If one of two types is a decimal, return a decimal type to which values of both types can be cast without loss.

    Return None if no such type exists.
    """
    digits = {8: 3, 16: 5, 32: 10, 64: 20}
    if not (pat.is_decimal(one) or pat.is_decimal(other)):
        return None
    sizes = list[tuple[int, int]]()
    for kind in (one, other):
        if pat.is_integer(kind):
            sizes.append((digits[kind.bit_width], 0))
        elif pat.is_decimal(kind):
            sizes.append((kind.precision - kind.scale, kind.scale))
        else:
            return None
    whole, scale = max(each for each, _ in sizes), max(each for _, each in sizes)
    return pa.decimal128(whole + scale, scale) if whole + scale <= 38 else None


def is_comparable(one: pa.DataType, other: pa.DataType) -> bool:
    """Tell whether equal values of two types are stored as equal 64-bit words.

    The result is true for equal types, and for numbers of the same kind with different widths.
    """
    one, other = normalize_type(one), normalize_type(other)
    texts = pat.is_string, pat.is_large_string
    if one == other or (any(f(one) for f in texts) and any(f(other) for f in texts)):
        return True
    if not (is_word_type(one) and is_word_type(other)):
        return False
    if pat.is_floating(one) or pat.is_floating(other):
        return pat.is_floating(one) and pat.is_floating(other)
    if not (pat.is_integer(one) and pat.is_integer(other)):
        return False
    unsigned = pat.is_unsigned_integer(one), pat.is_unsigned_integer(other)
    return all(unsigned) or not (pat.is_uint64(one) or pat.is_uint64(other))


def follow_renames(side: Any, names: Iterable[str]) -> tuple[Any, dict[str, str]]:
    """Skip projections that only rename columns.

    Return the collection below these projections, and the names of the columns in that collection.
    """
    sources = {name: name for name in names}
    while (renamed := side.renames()) is not None:
        side, sources = side.inputs[0], {name: renamed[of] for name, of in sources.items()}
    return side, sources


def _find_or_make_arrangement(side: Any, by: Sequence[str], columns: Sequence[str]) -> tuple[Any, dict[str, str]]:
    """Find or build a collection that has ``columns`` and is indexed by ``by``.

    Return the collection, and the names of the columns in the collection.
    """
    of, sources = follow_renames(side, {*by, *columns} or side.schema.names[:1])
    wanted = [sources[name] for name in by]
    if len(set(wanted)) < len(wanted):  # one column is joined with two columns, and has two names here
        return side.arrange(by), {name: name for name in sources}
    if of.find_lookup_columns() == tuple(wanted):
        return of, sources
    grows = of is side and of.grows and len(sources) == len(of.schema.names)
    for node in of.flow.nodes:
        if node.verb == "arrange" and node.grows >= grows:
            under, names = follow_renames(node.inputs[0], node.schema.names)
            here = {source: name for name, source in reversed(names.items())}
            if under is of and set(sources.values()) <= set(here) and [names[n] for n in node.by] == wanted:
                return node, {name: here[source] for name, source in sources.items()}
    read = [name for name in of.schema.names if name in sources.values()]
    if len(read) < len(of.schema.names) or (of is not side and of.grows):
        of = of.project(read)
    return of.arrange(wanted), sources


def _join_inner(sides: JoinSides, condition: str | None) -> Any:
    """Pair the rows of both sides and keep the pairs that meet the condition."""
    made = build_inner_join(sides.left, sides.right, sides.on, sides.list_columns(), sides.whole)
    return made if condition is None else made.filter(condition)


def build_inner_join(
    left: Any,
    right: Any,
    on: Sequence[tuple[str, str]],
    columns: Sequence[tuple[str, int, str]],
    whole: Sequence[int] = (),
    nulls: bool = False,
) -> Any:
    """Build the inner join of two collections. ``columns``: the columns of the join as (name, side, name on that side).

    ``whole``, ``nulls``: see `ddflow.operators.join.Join`.
    """
    both = []
    for side, of in enumerate((left, right)):
        keys, read = [pair[side] for pair in on], [name for _, at, name in columns if at == side]
        both.append(_find_or_make_arrangement(of, keys, read))
    (one, ones), (other, others) = both
    at = ones, others
    meets = [(ones[a], others[b]) for a, b in on]
    return find_operator_class("join")(
        one, other, meets, [(name, side, at[side][of]) for name, side, of in columns], whole, nulls
    )


def _keep_matched_rows(sides: JoinSides, side: int, pairs: Any) -> Any:
    """Keep the rows of a side that have a partner.

    ``pairs``: the pairs that meet the condition, or None without a condition.
    """
    of, names = (sides.left, sides.right)[side], list(sides.shown[side])
    if pairs is None:
        partner = (sides.right, sides.left)[side]
        keys, theirs = zip(*((pair[side], pair[1 - side]) for pair in sides.on), strict=True) if sides.on else ((), ())
        under, sources = follow_renames(partner, theirs)
        if not (partner.unique and under.find_lookup_columns() == tuple(sources[name] for name in theirs)):
            partner = (
                partner.project(list(dict.fromkeys(theirs))).distinct()
                if theirs
                else partner.project({"any": "true"}).distinct()
            )
        return _copy_proven_properties(
            of,
            build_inner_join(
                of,
                partner,
                list(zip(keys, theirs, strict=True)),
                _list_left_columns(of),
                _list_unprojected_sides(of, 0),
            ),
        )
    if (of.unique or of.unique_by()) and names == list(of.schema.names):
        columns = split_rest_columns(pairs, dict(zip(names, names, strict=True)), [names] if of.grows else [])
        return _copy_proven_properties(of, pairs._apply_verb("project", *columns).distinct())
    found = pairs.project(names).distinct()
    return _copy_proven_properties(
        of,
        build_inner_join(
            of,
            found,
            [(name, name) for name in names],
            _list_left_columns(of),
            _list_unprojected_sides(of, 0),
            nulls=True,
        ),
    )


def _list_left_columns(of: Any) -> list[tuple[str, int, str]]:
    return [(name, 0, name) for name in of.schema.names]


def _list_unprojected_sides(of: Any, side: int) -> list[int]:
    return [side] if of.renames() is None else []


def _remove_matched_rows(of: Any, matched: Any) -> Any:
    """Remove from a collection the rows that have a match."""
    return _copy_proven_properties(of, of.concat(matched.negate()))


def _copy_proven_properties(of: Any, made: Any) -> Any:
    """Copy the proven properties of a collection to a collection that has only some of the first collection's rows."""
    made.unique, made.positive, made.proven = of.unique, of.positive, of.identified_by()
    return made


def _find_identifying_columns(sides: JoinSides, outer: int) -> tuple[str, ...] | None:
    """Return the columns that identify the rows of an outer join, or None.

    If each row of the outer side has at most one partner, the identifying columns of the outer side are enough. If a
    row can have several partners, the identifying columns of both sides are needed. A row without a partner never has
    the same key as a pair.
    """
    mine, other = ((sides.left, sides.right)[side].unique_by() for side in (outer, 1 - outer))
    names = {(at, of): name for name, at, of in sides.list_columns()} | {(1, name): name for name in sides.merged}
    met = {pair[1 - outer] for pair in sides.on}
    alone = any(met.issuperset(key) for key in other)
    for one, rest in product(mine, [()] if alone else other):
        shown = [names.get(each) for each in [*((outer, name) for name in one), *((1 - outer, name) for name in rest)]]
        if None not in shown:
            return tuple(dict.fromkeys(map(str, shown)))
    return None


def _pad_unmatched_rows(sides: JoinSides, side: int, pairs: Any, condition: str | None) -> Any:
    """Keep the rows of a side that have no partner. The columns of the other side are null in the result."""
    both = [sides.left, sides.right]
    both[side] = _remove_matched_rows(both[side], _keep_matched_rows(sides, side, None if condition is None else pairs))
    return find_operator_class("pad")(*both, side, sides.list_columns(), sides.merged if side else [], sides.whole)


def _refuse_negative_counts(side: Any, by: Sequence[str], how: str) -> Any:
    """If rows of a side can have a negative multiplicity, add an arrangement that raises an error for such rows."""
    return side if side.positive else side._apply_verb("arrange", list(dict.fromkeys(by)), f"a {how} join")


def select_columns(of: Any, names: Sequence[str]) -> Any:
    return of if list(of.schema.names) == list(names) else of.project(list(names))


How = Literal["inner", "left", "right", "full", "semi", "anti"]


class JoinVerbs(VerbFamily[Made], Generic[Made]):
    """Verbs that look up rows of another collection."""

    def join(
        self,
        right: Made,
        on: str | Sequence[str] | Mapping[str, str],
        how: How = "inner",
        condition: str | None = None,
    ) -> Made:
        """Join two collections: pair the rows that have equal values in some columns. Multiplicities multiply.

        The result has the left columns, then the right columns. A key that has the same name on both sides gives one
        column. Null equals nothing, so a null key has no partner.

        Parameters
        ----------
        right : Collection
            The other side, of the same flow.  It may be this collection with renamed columns.
        on : str, sequence of str, or mapping of str to str
            The keys: columns with one name on both sides, or ``{left: right}``.  A key of a mapping may be an SQL
            expression; the state stores its value with the rows, and the result leaves it out.  ``[]`` pairs all rows
            with all rows.
        how : {"inner", "left", "right", "full", "semi", "anti"}
            "left", "right" and "full" also keep the rows without a partner of the named side, or of both, padded with
            nulls.  "semi" keeps the left's rows with a partner and "anti" those without, with their multiplicities.
        condition : str, optional
            SQL over the columns of both sides; only pairs that meet it are partners.

        Returns
        -------
        Collection
            A collection with the columns of both sides; with the left's columns for "semi" and "anti".

        Raises
        ------
        SpecError
            If a column is missing, ``right`` is of another flow, key types do not compare, a name on both sides is not
            a key, or rows of an input expire without a retraction.
        ExpressionError
            If an expression is invalid.

        Notes
        -----
        O(n + p) for n updates and p pairs of a step, plus one index probe for each key. The cost does not depend on how
        many rows have the key. The state stores the rows of both sides, arranged by the keys. If an input of upserts is
        joined by the input's key, the join needs no copy of the input's rows. Several joins of a collection by the same
        columns share one arrangement. If ``how`` is not "inner", a step raises `NegativeMultiplicity` if a row has a
        negative multiplicity.

        Examples
        --------
        >>> import ddflow as dd
        >>> flow = dd.Flow()
        >>> people = flow.upserts("people", {"id": int, "boss": int}, dd.Upsert(key="id"))
        >>> people.join(people.project({"boss": "id", "grand": "boss"}), on="boss")
        Join(id int64, boss int64, grand int64)
        """
        made: Made = join_collections(self, right, on, how, condition)
        return made

    def lookup(
        self, right: Made, on: str | Sequence[str] | Mapping[str, str], how: Literal["left", "inner"] = "left"
    ) -> Made:
        """Extend each row with the row of the same key in another collection, as of the time when the row arrives.

        The result has the left columns, then the right columns. A key that has the same name on both sides gives one
        column. A null key finds nothing. A lookup sees all changes of the right collection up to the time of the row,
        including changes at that time. Later changes of the right collection do not change the result. If a row is
        retracted, the row that was emitted for it is retracted. If several equal rows arrive, all of them get the
        result of the first row, until all of them are retracted.

        Parameters
        ----------
        right : Collection
            The other side, of the same flow, with at most one row for each key.
        on : str, sequence of str, or mapping of str to str
            The same as in `join`.
        how : {"left", "inner"}
            "left" keeps the rows that find nothing, padded with nulls; "inner" drops them.

        Returns
        -------
        Collection
            A collection with the columns of both sides.

        Raises
        ------
        SpecError, ExpressionError
            The same errors as in `join`.

        Notes
        -----
        O(n log n) for n updates of a step, plus one index probe for each key of new rows. The state stores each row of
        the left collection with its result. The right collection is stored as for a join. A step raises `NotUnique` if
        a row of the left collection has several matches in the right collection. A step raises `NegativeMultiplicity`
        if a row of the left collection has a negative multiplicity. If a lookup is added to an existing state, the
        stored rows are looked up in the current rows of the right collection.
        """
        made: Made = look_up_rows(self, right, on, how)
        return made

    def arrange(self, by: str | Sequence[str]) -> Made:
        """Store the rows, indexed by some columns, so that joins can probe the index. The result has the same rows.

        A join arranges both sides itself. Call this method to choose what is arranged, for example the input of a
        projection that two joins share.

        Parameters
        ----------
        by : str or sequence of str
            The columns.

        Returns
        -------
        Collection
            A collection with the same rows.  Equal calls return the same collection, with one arrangement.

        Raises
        ------
        SpecError
            If a column is missing, or rows of an input expire without a retraction.

        Notes
        -----
        O(n log n), for n updates of a step.  The state stores each row.
        """
        return self._apply_verb("arrange", by)
