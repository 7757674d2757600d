"""Families of verbs: the methods that make one collection of another, a family a file.

Invariant: a verb is a method of three lines. It looks up its operator's class in the registry, so a family knows no
operator. `ddflow.plan.collection.Collection` has all families.
"""

from typing import Any, Generic, TypeVar

from ddflow.plan.registry import operator

Made = TypeVar("Made")
"""What a verb gives: a collection."""


class VerbFamily(Generic[Made]):
    """``flow``: knows the collections there are, and gives one that keeps the same state for a new one."""

    flow: Any

    def _then(self, verb: str, *told: Any) -> Made:
        made: Made = self.flow.known(operator(verb)(self, *told))
        return made
