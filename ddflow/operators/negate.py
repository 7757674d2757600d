"""Negate the multiplicities of rows."""

from ddflow.operators.base import (
    OperatorContext,
    RowPreservingOperator,
    RunningOperator,
    StatelessRunningOperator,
    register_operator,
)
from ddflow.operators.updates import negate
from ddflow.plan.collection import Collection


@register_operator
class Negate(RowPreservingOperator):
    """The operator of `Collection.negate`."""

    verb = "negate"

    def __init__(self, of: Collection) -> None:
        super().__init__(of.flow, of.schema, [of], of.consolidated)
        self.unique = self.positive = False

    def find_read_columns(self, wanted: set[str]) -> list[set[str]]:
        """Return the wanted columns."""
        return [wanted]

    def open(self, context: OperatorContext) -> RunningOperator:
        """See `Operator.open`."""
        return StatelessRunningOperator(negate)
