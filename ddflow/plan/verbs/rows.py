"""Verbs of rows and of multisets: filter, project, unnest; distinct, threshold, concat, negate, union, except_,
intersect.

Guarantees: rows are compared whole. A multiplicity below zero passes concat and negate, and counts as zero elsewhere. A
threshold is put only where multiplicities may be below zero, or above one, so most verbs of sets hold the rows once.

>>> import ddflow as dd
>>> people = dd.Flow().upserts("people", {"id": int, "city": str}, dd.Upsert(key="id"))
>>> people.project({"name": "city"})
Project(name string)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import reduce
from typing import Any, Final, Generic

from ddflow.columns.names import did_you_mean
from ddflow.errors import SpecError
from ddflow.plan.verbs.family import Made, VerbFamily, check_same_flow

Formula = Any
"""An SQL string, a ``pyarrow.compute.Expression``, or a function from a record batch to an array."""


class RowVerbs(VerbFamily[Made], Generic[Made]):
    """Verbs that make rows from single rows."""

    def filter(self, predicate: Formula) -> Made:
        """Keep the rows for which ``predicate`` is true.  Null is not true.

        Parameters
        ----------
        predicate : str, pyarrow.compute.Expression or callable
            SQL, a pyarrow expression, or a function from a record batch to an array of booleans.

        Returns
        -------
        Collection
            Of the same columns.

        Raises
        ------
        ExpressionError
            If it does not parse, names a missing column, or is not boolean.

        Notes
        -----
        O(n), for n updates of a step.
        """
        return self._apply_verb("filter", predicate)

    def project(self, columns: str | Sequence[str] | Mapping[str, Formula]) -> Made:
        """Map the rows to other columns.  Multiplicities stay.

        Parameters
        ----------
        columns : str, sequence of str, or mapping of str to formula
            Names of columns, or ``{name: formula}``, with formulas as in `filter`, of any type.

        Returns
        -------
        Collection
            Of these columns.

        Raises
        ------
        SpecError
            For a missing column, a column named twice, or none at all.
        ExpressionError
            For a formula that does not fit.

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
            The column of lists.  The element stands in its place; of a struct, its fields do.

        Returns
        -------
        Collection
            Null and empty lists give no rows.

        Raises
        ------
        SpecError
            For a missing column, one that holds no lists, or a field's name that is taken.

        Notes
        -----
        O(e), for e elements of a step.
        """
        return self._apply_verb("unnest", column)


POSITIVE: Final = "greatest(n, 0)"
"""The threshold below which nothing counts."""


class SetVerbs(VerbFamily[Made], Generic[Made]):
    """Verbs that treat collections as multisets.

    >>> import ddflow as dd
    >>> people = dd.Flow().upserts("people", {"id": int, "city": str}, dd.Upsert(key="id"))
    >>> people.concat(people.negate())
    Concat(id int64, city string)
    """

    def distinct(self) -> Made:
        """Keep each row of positive multiplicity, once: a `threshold` of 1.

        Asked for twice, it is one collection, with one arrangement.

        Returns
        -------
        Collection
            Of the same columns.

        Raises
        ------
        SpecError
            For an input that forgets rows without a retraction.

        Notes
        -----
        O(n) expected, for n updates of a step.  It holds each row.
        """
        return self._apply_verb("distinct")

    def threshold(self, formula: Formula) -> Made:
        """Give each row another multiplicity: a function of the one it has.

        Asked for twice, it is one collection, with one arrangement.

        Parameters
        ----------
        formula : str, pyarrow.compute.Expression or callable
            SQL over ``n``, the multiplicity, as in ``"least(n, 3)"``; or a pyarrow expression, or a function from a
            record batch with the column ``n`` to an array.  It gives integers, and 0 for 0.

        Returns
        -------
        Collection
            Of the same columns.

        Raises
        ------
        ExpressionError
            If it does not parse, names another column, gives no integers, or not 0 for 0.  In a step: for a null.
        SpecError
            For an input that forgets rows without a retraction.

        Notes
        -----
        O(n) expected, for n updates of a step.  It holds each row.

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
        """Combine the rows of this and other collections; multiplicities are added.

        Parameters
        ----------
        *others : Collection
            Of the same flow, with the same columns.

        Returns
        -------
        Collection
            Of the same columns.

        Raises
        ------
        SpecError
            If one is of another flow, or its columns differ.

        Notes
        -----
        O(n), for n updates of a step.
        """
        return self._apply_verb("concat", *others)

    def negate(self) -> Made:
        """Negate the multiplicities of the rows: ``a.concat(b.negate())`` is a without b.

        Returns
        -------
        Collection
            Of the same columns.

        Notes
        -----
        O(n), for n updates of a step.
        """
        return self._apply_verb("negate")

    def union(self, *others: Made, all: bool = False) -> Made:
        """Combine the rows that are in this collection or in another one.

        Parameters
        ----------
        *others : Collection
            Of the same flow, with the same columns.
        all : bool
            Whether multiplicities are added, those below zero as none.  By default each row is there once.

        Returns
        -------
        Collection
            Of the same columns.

        Raises
        ------
        SpecError
            If one is of another flow, its columns differ, or an input forgets rows without a retraction.

        Notes
        -----
        O(n) expected, for n updates of a step.  It holds each row; with ``all`` only the rows of collections whose
        multiplicities may be below zero, after `negate` or from `Plan.updates`.
        """
        first, *rest = _prepare_operands("union", [self, *others], at_least=False)
        added: Any = first.concat(*rest) if rest else first
        made: Made = added if all else _make_rows_unique(added)
        return made

    def except_(self, *others: Made, all: bool = False) -> Made:
        """Keep the rows of this collection that are not in another one.

        Parameters
        ----------
        *others : Collection
            As in `union`; one at least.
        all : bool
            Whether multiplicities are subtracted: a row is there ``max(0, a - b)`` times.  By default each row of this
            collection that is in no other one is there once.

        Returns
        -------
        Collection
            Of the same columns.

        Raises
        ------
        SpecError
            As in `union`, or if no other collection is given.

        Notes
        -----
        O(n) expected, for n updates of a step.  It holds each row of all collections, and once more the rows of those
        whose multiplicities may be below zero, or without ``all`` may be other than one.
        """
        sides = _prepare_operands("except_", [self, *others], once=not all)
        made: Made = _subtract_rows(sides[0], sides[1:])
        return made

    def intersect(self, *others: Made, all: bool = False) -> Made:
        """Keep the rows that are in this collection and in all others.

        Parameters
        ----------
        *others : Collection
            As in `union`; one at least.
        all : bool
            Whether a row keeps its smallest multiplicity.  By default it is there once.

        Returns
        -------
        Collection
            Of the same columns.

        Raises
        ------
        SpecError
            As in `except_`.

        Notes
        -----
        As in `except_`.
        """
        sides = _prepare_operands("intersect", [self, *others], once=not all)
        if all:
            made: Made = reduce(lambda a, b: a.concat(_subtract_rows(a, [b]).negate()), sides)
            return made
        first, *rest = sides
        every: Made = first.concat(*rest).threshold(f"case when n = {len(sides)} then 1 else 0 end")
        return every


def check_compatible_sides(verb: str, sides: Sequence[Any]) -> None:
    """Refuse collections of several flows, or of other columns than the first has.  Raises `SpecError`."""
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
            remedy += f"; {wrong[0]!r} is {columns[wrong[0]]} in one and {other[wrong[0]]} in the other: cast it"
        raise SpecError(verb, found, remedy)


def _prepare_operands(verb: str, sides: Sequence[Any], once: bool = False, at_least: bool = True) -> list[Any]:
    """Prepare the operands: no multiplicity below zero, or with ``once`` each row once."""
    if at_least and len(sides) < 2:
        raise SpecError(verb, "no other collection is given", f"write a.{verb}(b)")
    check_compatible_sides(verb, sides)
    return [_make_rows_unique(side) if once else side if side.positive else side.threshold(POSITIVE) for side in sides]


def _make_rows_unique(side: Any) -> Any:
    return side if side.unique else side.distinct()


def _subtract_rows(first: Any, others: Sequence[Any]) -> Any:
    """Compute ``max(0, first - others)``, if no multiplicity is below zero."""
    return first.concat(*(each.negate() for each in others)).threshold(POSITIVE)
