"""Inputs: what a plan reads from.

>>> from ddflow.plan.plan import Plan
>>> Plan().updates("log", {"city": str}).spec.keep
False
"""

from typing import Any

from ddflow.plan.collection import Collection, Nodes
from ddflow.plan.inputs.binding import Binding, Spec


class Input(Collection):
    """An input of a plan: upserts, or differences.  ``bound``: its spec joined with its schema."""

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
        """The name under which a step takes its rows."""
        return self.bound.name

    @property
    def spec(self) -> Spec:
        """The spec: the rules of upserts, or the multiplicities of rows."""
        return self.bound.spec

    def found_by(self) -> tuple[str, ...] | None:
        """Return the key of upserts: see `Collection.found_by`."""
        return tuple(self.bound.key_schema.names) if self.unique else None

    def unique_by(self) -> list[tuple[str, ...]]:
        """Return the key of upserts: see `Collection.unique_by`."""
        key = self.found_by()
        return [] if key is None else [key]

    def solid(self) -> frozenset[str]:
        """Add key columns whose nulls are not kept: see `Collection.solid`."""
        return super().solid() | {field.name for field in self.bound.key_schema if not field.nullable}

    def to_json(self, formulas: Any) -> dict[str, Any]:
        """Write its name; columns and spec are stored separately, because they may change."""
        return {"name": self.name}
