"""Negate: the same rows with multiplicities negated."""

from collections.abc import Sequence

import pyarrow as pa

from ddflow.columns.alike import Alike
from ddflow.operators.base import Context, Linear, Operator, Running, register
from ddflow.operators.updates import negate
from ddflow.plan.collection import Collection


@register
class Negate(Operator):
    """See `Collection.negate`."""

    verb = "negate"

    def __init__(self, of: Collection) -> None:
        super().__init__(of.flow, of.schema, [of], of.consolidated)
        self.unique = self.positive = False

    def needs(self, wanted: set[str]) -> list[set[str]]:
        """What is wanted."""
        return [wanted]

    def behind(self, wanted: pa.Table, given: Sequence[pa.Table], alike: Alike) -> list[pa.Table]:
        """See `Collection.behind`: the same rows."""
        return [alike.rows(given[0], wanted, self.schema.names)]

    def open(self, context: Context) -> Running:
        """See `Operator.open`."""
        return Linear(negate)
