"""Families of verbs: the methods that make one collection of another, a family a file.

Invariant: a verb is a method of three lines. It looks up its operator's class in the registry, so a family knows no
operator. `ddflow.plan.collection.Collection` has all families.
"""

from typing import Any, Generic, TypeVar

from ddflow.plan.registry import operator

Made = TypeVar("Made")
"""What a verb gives: a collection."""


class VerbFamily(Generic[Made]):
    """A base of verbs.  ``flow``: knows all collections, and returns an equal one in place of a new one."""

    flow: Any

    def _then(self, verb: str, *told: Any) -> Made:
        made: Made = self.flow.known(operator(verb)(self, *told))
        return made
