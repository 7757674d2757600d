"""Verbs that add, subtract and compare multiplicities: distinct, concat, negate.

Invariant: rows are compared whole. What is below zero passes concat and negate, and counts as none elsewhere.

>>> import ddflow as dd
>>> people = dd.Flow().upserts("people", {"id": int, "city": str}, dd.Upsert(key="id"))
>>> people.concat(people.negate())
Concat(id int64, city string)
"""

from __future__ import annotations

from typing import Generic

from ddflow.plan.verb_family import Made, VerbFamily


class SetVerbs(VerbFamily[Made], Generic[Made]):
    """What treats collections as multisets."""

    def distinct(self) -> Made:
        """Each row of positive multiplicity, once.

        Asked for twice, it is one collection, with one arrangement.

        Returns
        -------
        Collection
            Of the same columns.

        Notes
        -----
        O(n) expected, for n updates of a step.  It holds each row.
        """
        return self._then("distinct")

    def concat(self, *others: Made) -> Made:
        """The rows of this and other collections; multiplicities are added.

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
        return self._then("concat", *others)

    def negate(self) -> Made:
        """The same rows with multiplicities negated: ``a.concat(b.negate())`` is a without b.

        Returns
        -------
        Collection
            Of the same columns.

        Notes
        -----
        O(n), for n updates of a step.
        """
        return self._then("negate")
