"""Sum the diffs of equal rows at each time, and drop sums of 0."""

from functools import partial

from ddflow.operators.base import (
    OperatorContext,
    RowPreservingOperator,
    RunningOperator,
    StatelessRunningOperator,
    register_operator,
)
from ddflow.operators.updates import consolidate
from ddflow.plan.collection import Collection, Columns


@register_operator
class Consolidate(RowPreservingOperator):
    """The operator of `Collection.consolidate`."""

    verb, transparent = "consolidate", True

    def __init__(self, of: Collection) -> None:
        super().__init__(of.flow, of.schema, [of], True)

    def exchange(self) -> list[Columns | None]:
        """Return all columns, so that equal rows go to the same partition."""
        return [tuple(self.schema.names)]

    def unique_by(self) -> list[Columns]:
        """Return the keys of the input; see `Collection.unique_by`."""
        return self.inputs[0].unique_by()

    def open(self, context: OperatorContext) -> RunningOperator:
        """See `Operator.open`."""
        return StatelessRunningOperator(partial(consolidate, secret=context.secret))
