"""Verbs that look at rows by group or by key: count, to_upserts, single.

Invariant: a group is there while the multiplicities of its rows do not add up to zero.

>>> import ddflow as dd
>>> people = dd.Flow().upserts("people", {"id": int, "city": str}, dd.Upsert(key="id"))
>>> people.count("city")
Count(city string, count int64)
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Generic, Literal

from ddflow.plan.verb_family import Made, VerbFamily


class GroupVerbs(VerbFamily[Made], Generic[Made]):
    """What brings equal rows of some columns together."""

    def count(self, by: str | Sequence[str] | None = None, name: str = "count") -> Made:
        """Count the rows of each group.  A group at zero is not there.

        Asked for twice, it is one collection, with one arrangement.

        Parameters
        ----------
        by : str or sequence of str, optional
            The group columns.  By default all; ``[]`` counts all rows.
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
        return self._then("count", by, name)

    def to_upserts(self, key: str | Sequence[str], on_conflict: Literal["error", "greatest", "all"] = "error") -> Made:
        """What `ddflow.ToUpserts` makes of its updates, for an output.  Nothing further can be made of it.

        Parameters
        ----------
        key, on_conflict
            As of `ddflow.ToUpserts`.

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
        The cost is that of `ddflow.ToUpserts`, which holds each row.
        """
        return self._then("to_upserts", key, on_conflict)

    def single(self, count: str, keys: Sequence[str] = ()) -> Made:
        """Refuse a step after which a row's count is above one, as the rows of a scalar subquery are.

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
        return self._then("single", count, keys)
