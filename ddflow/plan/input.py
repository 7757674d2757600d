"""Inputs: what a plan reads from.

>>> from ddflow.plan.plan import Plan
>>> Plan().updates("log", {"city": str}).spec.keep
False
"""

from typing import Any

from ddflow.plan.binding import Binding, Spec
from ddflow.plan.collection import Collection, Nodes


class Input(Collection):
    """What a plan reads from: upserts, or differences.  ``bound``: its spec joined with its schema."""

    verb = "input"
    bound: Binding

    def __init__(self, flow: Nodes, bound: Binding) -> None:
        super().__init__(flow, bound.row_schema, (), bound.unique)
        self.unique = self.positive = bound.unique
        self.grows = True
        self.keeps = bound.kept  # type: ignore[misc]
        self.bound, self.time_type = bound, bound.time_type
        if bound.spec.expiry is not None and bound.spec.expiry.forgets:
            self.forgetting = frozenset([bound.name])

    @property
    def name(self) -> str:
        """What rows are given under."""
        return self.bound.name

    @property
    def spec(self) -> Spec:
        """Who wins, what deletes, what changes; or how often rows count."""
        return self.bound.spec

    def found_by(self) -> tuple[str, ...] | None:
        """See `Collection.found_by`: the key, of upserts."""
        return tuple(self.bound.key_schema.names) if self.unique else None

    def unique_by(self) -> list[tuple[str, ...]]:
        """See `Collection.unique_by`: the key, of upserts."""
        key = self.found_by()
        return [] if key is None else [key]

    def solid(self) -> frozenset[str]:
        """See `Collection.solid`: keys, too, that are not kept where they are null."""
        return super().solid() | {field.name for field in self.bound.key_schema if not field.nullable}

    def to_json(self, formulas: Any) -> dict[str, Any]:
        """Write its name; columns and spec are stored separately, because they may change."""
        return {"name": self.name}
