"""Verbs that bring the rows of two collections together: join, lookup, and arrange, which keeps one side ready for it.

Invariant: whatever the kind of a join, it is made of inner joins, so there is one operator that pairs rows.

>>> import ddflow as dd
>>> flow = dd.Flow()
>>> orders = flow.upserts("orders", {"id": int, "customer": int}, dd.Upsert(key="id"))
>>> customers = flow.upserts("customers", {"customer": int, "city": str}, dd.Upsert(key="customer"))
>>> orders.join(customers, on="customer")
Join(id int64, customer int64, city string)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Generic, Literal

from ddflow.plan.joining import joined, looked_up
from ddflow.plan.verb_family import Made, VerbFamily

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
        """Pair rows of two collections that agree in some columns.  Multiplicities multiply.

        Columns are the left's, then the right's.  Keys of one name on both sides are one column.  Null meets nothing.

        Parameters
        ----------
        right : Collection
            The other side, of the same flow; it may be this collection, with columns renamed.
        on : str, sequence of str, or mapping of str to str
            The columns that agree: of one name on both sides, or ``{left: right}``.  Either may be an SQL expression;
            what it gives is kept with the rows, and is not a column of the result.  ``[]`` pairs all rows with all.
        how : {"inner", "left", "right", "full", "semi", "anti"}
            "left", "right" and "full" keep rows of that side, or of both, that have no partner, with nulls beside.
            "semi" keeps rows of the left that have a partner, "anti" those that have none, as often as they are there.
        condition : str, optional
            SQL over the columns of both sides that pairs must meet, too: for rows without such a partner the kinds
            above do the same as for rows without any.

        Returns
        -------
        Collection
            Of the columns of both sides; of the left's for "semi" and "anti".

        Raises
        ------
        SpecError
            For a missing column, another flow, types of keys that do not compare, a name on both sides that is no key,
            and an input that forgets rows without a retraction.
        ExpressionError
            For an expression that does not fit.

        Notes
        -----
        O(n + p) and a look-up a key, for n updates and p pairs of a step, however many rows have the key.  It holds
        the rows of both sides, arranged by the columns; an input of upserts that is joined by its key is looked up
        where it is, and a collection that is joined several times by the same columns is held once.  A step raises
        `NegativeMultiplicity` where rows of kinds other than "inner" are there less than zero times.

        Examples
        --------
        >>> import ddflow as dd
        >>> flow = dd.Flow()
        >>> people = flow.upserts("people", {"id": int, "boss": int}, dd.Upsert(key="id"))
        >>> people.join(people.project({"boss": "id", "grand": "boss"}), on="boss")
        Join(id int64, boss int64, grand int64)
        """
        made: Made = joined(self, right, on, how, condition)
        return made

    def lookup(
        self, right: Made, on: str | Sequence[str] | Mapping[str, str], how: Literal["left", "inner"] = "left"
    ) -> Made:
        """Put beside each row what another collection holds of its key when the row comes; that stays as it is.

        Columns are the left's, then the right's.  Keys of one name on both sides are one column.  Null finds nothing.
        What is held is as of the row's time, with all changes of the right at or below it.  Later changes of the right
        do not touch what was found, and a retraction takes back the row that was given.  Equal rows share what the
        first of them found, until none is left.

        Parameters
        ----------
        right : Collection
            The other side, of the same flow, with at most one row a key.
        on : str, sequence of str, or mapping of str to str
            As of `join`.
        how : {"left", "inner"}
            Whether rows that find nothing are there, with nulls beside, or not.

        Returns
        -------
        Collection
            Of the columns of both sides.

        Raises
        ------
        SpecError, ExpressionError
            As of `join`.

        Notes
        -----
        O(n log n) and a look-up a key of rows that come, for n updates of a step.  It holds each row of the left with
        what it found; the right is held as for a join.  A step raises `NotUnique` where a row finds several, and
        `NegativeMultiplicity` where a row of the left is there less than zero times.  On a state that has had steps, a
        new one looks up as of now.
        """
        made: Made = looked_up(self, right, on, how)
        return made

    def arrange(self, by: str | Sequence[str]) -> Made:
        """Keep the rows arranged by some columns, for joins to look up.  The rows stay as they are.

        A join arranges its sides itself; this says where, such as before a projection that two joins have between.

        Parameters
        ----------
        by : str or sequence of str
            The columns.

        Returns
        -------
        Collection
            Of the same rows.  Asked for twice, it is one collection, with one arrangement.

        Raises
        ------
        SpecError
            For a missing column, and for an input that forgets rows without a retraction.

        Notes
        -----
        O(n log n), for n updates of a step.  It holds each row.
        """
        return self._then("arrange", by)

    def _looked_up(self, right: Made, on: Any, shown: Any, without: Sequence[str], how: str) -> Made:
        """Look rows up in an arrangement."""
        return self._then("lookup", right, on, shown, without, how)

    def _refusing(self, by: Sequence[Any], asked: str) -> Made:
        """Refuse rows with a multiplicity below zero.  ``asked``: the verb, for the error."""
        return self._then("arrange", by, asked)
