"""Consolidate: the same collection, the diffs of equal rows of a time added up, and zeros dropped."""

from collections.abc import Sequence
from functools import partial

import pyarrow as pa

from ddflow.columns.alike import Alike
from ddflow.operators.base import Context, Linear, Operator, Running, register
from ddflow.operators.updates import consolidated
from ddflow.plan.collection import Collection, Columns


@register
class Consolidate(Operator):
    """See `Collection.consolidate`."""

    verb, transparent = "consolidate", True

    def __init__(self, of: Collection) -> None:
        super().__init__(of.flow, of.schema, [of], True)

    def exchange(self) -> list[Columns | None]:
        """Equal rows."""
        return [tuple(self.schema.names)]

    def unique_by(self) -> list[Columns]:
        """See `Collection.unique_by`: those of its input."""
        return self.inputs[0].unique_by()

    def behind(self, wanted: pa.Table, given: Sequence[pa.Table], alike: Alike) -> list[pa.Table]:
        """See `Collection.behind`: the same rows."""
        return [alike.rows(given[0], wanted, self.schema.names)]

    def open(self, context: Context) -> Running:
        """See `Operator.open`."""
        return Linear(partial(consolidated, secret=context.secret))
