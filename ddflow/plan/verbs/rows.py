"""Declare the verbs of single rows and of multisets.

Row verbs: filter, project, unnest. Set verbs: distinct, threshold, concat, negate, union, except_, intersect.

Guarantees: set verbs compare whole rows. ``concat`` and ``negate`` pass negative multiplicities on. Set verbs except
``concat`` and ``negate`` treat a negative multiplicity as zero. A ``threshold`` is added only if multiplicities can be
negative or above one. So most set verbs store each row once.

>>> import ddflow as dd
>>> people = dd.Flow().upserts("people", {"id": int, "city": str}, dd.Upsert(key="id"))
>>> people.project({"name": "city"})
Project(name string)
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import reduce
from typing import Any, Final, Generic, cast

from ddflow.columns.names import did_you_mean
from ddflow.errors import SpecError
from ddflow.expressions.functions.table import CLOCK
from ddflow.plan.verbs.family import Made, VerbFamily, check_same_flow

Formula = Any
"""An SQL string, a ``pyarrow.compute.Expression``, or a function that takes a record batch and returns an array."""


_CLOCK: Final = re.compile(rf"\b({'|'.join(CLOCK)})\b", re.IGNORECASE)
"""Whether the text of a condition may name the clock."""


class RowVerbs(VerbFamily[Made], Generic[Made]):
    """Verbs that compute each result row from one row."""

    def filter(self, predicate: Formula) -> Made:
        """Keep the rows that make ``predicate`` true. Rows for which ``predicate`` is null are dropped.

        Parameters
        ----------
        predicate : str, pyarrow.compute.Expression or callable
            SQL, a pyarrow expression, or a function from a record batch to an array of booleans.  SQL may compare the
            time of the step, as in ``"at > now() - interval 1 hour"``; rows then come and go as time passes.

        Returns
        -------
        Collection
            A collection with the same columns.

        Raises
        ------
        ExpressionError
            If it does not parse, names a missing column, or is not boolean.

        Notes
        -----
        O(n), for n updates of a step.  With ``now()``, O(n log n) for n updates and n rows that come or go; the state
        stores each row that will come or go.

        Examples
        --------
        >>> import ddflow as dd
        >>> flow = dd.Flow()
        >>> visits = flow.upserts("visits", {"id": int, "at": "timestamp"}, dd.Upsert(key="id"))
        >>> _ = flow.output("recent", visits.filter("at > now() - interval 1 hour"))
        >>> import datetime as dt
        >>> with flow.open() as engine:
        ...     rows = {"id": [1], "at": [dt.datetime(2026, 11, 29, 12)]}
        ...     _ = engine.step(rows, time="2026-11-29 12:30+00:00")
        ...     engine.step({}, time="2026-11-29 13:00+00:00")["recent"].column("_diff").to_pylist()
        [-1]
        """
        if not (isinstance(predicate, str) and _CLOCK.search(predicate)):
            return self._apply_verb("filter", predicate)
        from ddflow.expressions.clock import split_temporal_conditions  # its parser takes long to import

        plain, timed = split_temporal_conditions(predicate)
        rows = self if plain is None else cast("RowVerbs[Made]", self._apply_verb("filter", plain))
        return rows._apply_verb("temporal_filter", timed) if timed else cast("Made", rows)

    def project(self, columns: str | Sequence[str] | Mapping[str, Formula]) -> Made:
        """Map the rows to other columns.  Multiplicities stay.

        Parameters
        ----------
        columns : str, sequence of str, or mapping of str to formula
            Names of columns, or ``{name: formula}``, with formulas as in `filter`, of any type.

        Returns
        -------
        Collection
            A collection with these columns.

        Raises
        ------
        SpecError
            If a column is missing or named twice, or none is named.
        ExpressionError
            If a formula is invalid.

        Notes
        -----
        O(n), for n updates of a step.
        """
        return self._apply_verb("project", columns)

    def unnest(self, column: str) -> Made:
        """Make a row for each element of a column of lists.

        Parameters
        ----------
        column : str
            The column of lists.  The element replaces the list; if it is a struct, its fields replace the list.

        Returns
        -------
        Collection
            A collection with a row for each element.  Null and empty lists give no rows.

        Raises
        ------
        SpecError
            If the column is missing or has no lists, or the name of a field is taken.

        Notes
        -----
        O(e), for e elements of a step.
        """
        return self._apply_verb("unnest", column)


POSITIVE: Final = "greatest(n, 0)"
"""The formula for `threshold` that replaces negative multiplicities by zero."""


class SetVerbs(VerbFamily[Made], Generic[Made]):
    """Verbs that treat collections as multisets: rows with counts.

    >>> import ddflow as dd
    >>> people = dd.Flow().upserts("people", {"id": int, "city": str}, dd.Upsert(key="id"))
    >>> people.concat(people.negate())
    Concat(id int64, city string)
    """

    def distinct(self) -> Made:
        """Keep each row of positive multiplicity once, like `threshold` with the formula 1.

        Equal calls return the same collection, with one arrangement.

        Returns
        -------
        Collection
            A collection with the same columns.

        Raises
        ------
        SpecError
            If rows of an input expire without a retraction.

        Notes
        -----
        O(n) expected, for n updates of a step.  The state stores each row.
        """
        return self._apply_verb("distinct")

    def threshold(self, formula: Formula) -> Made:
        """Replace the multiplicity of each row by a function of the multiplicity.

        Equal calls return the same collection, with one arrangement.

        Parameters
        ----------
        formula : str, pyarrow.compute.Expression or callable
            SQL over ``n``, the multiplicity, as in ``"least(n, 3)"``; or a pyarrow expression; or a function from a
            record batch with the column ``n`` to an array.  It must return integers, and 0 for 0.

        Returns
        -------
        Collection
            A collection with the same columns.

        Raises
        ------
        ExpressionError
            If it does not parse, names another column, or does not return integers, or 0 for 0.  A step raises it if
            the formula returns null.
        SpecError
            If rows of an input expire without a retraction.

        Notes
        -----
        O(n) expected, for n updates of a step.  The state stores each row.

        Examples
        --------
        >>> import ddflow as dd
        >>> flow = dd.Flow()
        >>> people = flow.upserts("people", {"id": int, "city": str}, dd.Upsert(key="id"))
        >>> _ = flow.output("often", people.project("city").threshold("case when n >= 2 then 1 else 0 end"))
        >>> with flow.open() as engine:
        ...     engine.step({"id": [1, 2, 3], "city": ["Bern", "Basel", "Bern"]}, time=0)["often"].to_pylist()
        [{'city': 'Bern', '_time': 0, '_diff': 1}]
        """
        return self._apply_verb("threshold", formula)

    def concat(self, *others: Made) -> Made:
        """Combine the rows of this collection and of other collections, and add the multiplicities of equal rows.

        Parameters
        ----------
        *others : Collection
            Collections of the same flow, with the same columns.

        Returns
        -------
        Collection
            A collection with the same columns.

        Raises
        ------
        SpecError
            If a collection is of another flow, or its columns differ.

        Notes
        -----
        O(n), for n updates of a step.
        """
        return self._apply_verb("concat", *others)

    def negate(self) -> Made:
        """Negate the multiplicity of each row. For example, ``a.concat(b.negate())`` is a without b.

        Returns
        -------
        Collection
            A collection with the same columns.

        Notes
        -----
        O(n), for n updates of a step.
        """
        return self._apply_verb("negate")

    def union(self, *others: Made, all: bool = False) -> Made:
        """Combine the rows of this collection and of others.

        Parameters
        ----------
        *others : Collection
            Collections of the same flow, with the same columns.
        all : bool
            Whether to add multiplicities; negative ones count as zero.  By default the result has each row once.

        Returns
        -------
        Collection
            A collection with the same columns.

        Raises
        ------
        SpecError
            If a collection is of another flow, its columns differ, or rows of an input expire without a retraction.

        Notes
        -----
        O(n) expected, for n updates of a step. The state stores each row. With ``all``, the state stores only the rows
        of collections whose multiplicities can be negative. Multiplicities can be negative after `negate`, or if the
        rows come from `Plan.updates`.
        """
        first, *rest = _prepare_operands("union", [self, *others], at_least=False)
        added: Any = first.concat(*rest) if rest else first
        made: Made = added if all else _make_rows_unique(added)
        return made

    def except_(self, *others: Made, all: bool = False) -> Made:
        """Keep the rows of this collection that are in none of the collections ``others``.

        Parameters
        ----------
        *others : Collection
            One or more collections of the same flow, with the same columns.
        all : bool
            Whether to subtract multiplicities: the result has a row ``max(0, a - b)`` times.  By default the result has
            each row once.

        Returns
        -------
        Collection
            A collection with the same columns.

        Raises
        ------
        SpecError
            If `union` would raise it, or there is no other collection.

        Notes
        -----
        O(n) expected, for n updates of a step. The state stores each row of all collections. The rows of a collection
        are stored a second time if multiplicities can be negative. Without ``all``, the rows are stored a second time
        if multiplicities can differ from one.
        """
        sides = _prepare_operands("except_", [self, *others], once=not all)
        made: Made = _subtract_rows(sides[0], sides[1:])
        return made

    def intersect(self, *others: Made, all: bool = False) -> Made:
        """Keep the rows that occur in all collections.

        Parameters
        ----------
        *others : Collection
            One or more collections of the same flow, with the same columns.
        all : bool
            Whether a row keeps its smallest multiplicity.  By default the result has each row once.

        Returns
        -------
        Collection
            A collection with the same columns.

        Raises
        ------
        SpecError
            The same errors as in `except_`.

        Notes
        -----
        The costs are the same as in `except_`.
        """
        sides = _prepare_operands("intersect", [self, *others], once=not all)
        if all:
            made: Made = reduce(lambda a, b: a.concat(_subtract_rows(a, [b]).negate()), sides)
            return made
        first, *rest = sides
        every: Made = first.concat(*rest).threshold(f"case when n = {len(sides)} then 1 else 0 end")
        return every


def check_compatible_sides(verb: str, sides: Sequence[Any]) -> None:
    """Refuse collections of different flows or with different columns.  Raises `SpecError`."""
    first = sides[0]
    columns = {field.name: field.type for field in first.schema}
    for side in sides[1:]:
        check_same_flow(verb, first, side)
        other = {field.name: field.type for field in side.schema}
        if list(other.items()) == list(columns.items()):
            continue
        lost = [name for name in columns if name not in other]
        found, remedy = f"the columns differ: {first!r} and {side!r}", f"project both to {list(columns)}"
        if lost:
            remedy += f"; the second has no {lost[0]!r}: {did_you_mean(lost[0], other)}"
        elif wrong := [name for name in columns if other[name] != columns[name]]:
            remedy += f"; {wrong[0]!r} is {columns[wrong[0]]} in the first and {other[wrong[0]]} in the second: cast it"
        raise SpecError(verb, found, remedy)


def _prepare_operands(verb: str, sides: Sequence[Any], once: bool = False, at_least: bool = True) -> list[Any]:
    """Prepare the operands: remove negative multiplicities, or, if ``once`` is true, keep each row once."""
    if at_least and len(sides) < 2:
        raise SpecError(verb, "there is no other collection", f"write a.{verb}(b)")
    check_compatible_sides(verb, sides)
    return [_make_rows_unique(side) if once else side if side.positive else side.threshold(POSITIVE) for side in sides]


def _make_rows_unique(side: Any) -> Any:
    return side if side.unique else side.distinct()


def _subtract_rows(first: Any, others: Sequence[Any]) -> Any:
    """Compute ``max(0, first - others)`` for the multiplicities.

    The multiplicities of the operands must not be negative.
    """
    return first.concat(*(each.negate() for each in others)).threshold(POSITIVE)
