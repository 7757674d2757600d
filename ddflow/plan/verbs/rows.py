"""Verbs that look at one row at a time: filter, project, unnest.

Invariant: a row of the result comes of one row, so multiplicities are carried over and nothing is held.

>>> import ddflow as dd
>>> people = dd.Flow().upserts("people", {"id": int, "city": str}, dd.Upsert(key="id"))
>>> people.project({"name": "city"})
Project(name string)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Generic

from ddflow.plan.verbs.family import Made, VerbFamily

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
        return self._then("filter", predicate)

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
        return self._then("project", columns)

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
        return self._then("unnest", column)
