"""Concatenate collections, like UNION ALL, and add the multiplicities of equal rows."""

import pyarrow as pa

from ddflow.operators.base import (
    OperatorContext,
    RowPreservingOperator,
    RunningOperator,
    StatelessRunningOperator,
    register_operator,
)
from ddflow.operators.updates import Updates, concat
from ddflow.plan.collection import Collection
from ddflow.plan.verbs.rows import check_compatible_sides


@register_operator
class Concat(RowPreservingOperator):
    """The operator of `Collection.concat`."""

    verb = "concat"

    def __init__(self, *parts: Collection) -> None:
        first = parts[0]
        check_compatible_sides("concat", parts)
        fields = [f.with_nullable(any(p.schema.field(f.name).nullable for p in parts)) for f in first.schema]
        super().__init__(first.flow, pa.schema(fields), parts, False)

    def open(self, context: OperatorContext) -> RunningOperator:
        """See `Operator.open`."""
        return StatelessRunningOperator(self._concat_inputs)

    def _concat_inputs(self, *inputs: Updates) -> Updates:
        """Concatenate the updates of the inputs. The columns of the inputs can differ in nullability."""
        some = [each for each in inputs if each.diffs.size] or inputs[:1]
        if len(some) > 1:
            return concat(some)
        columns = [some[0].rows.column(name) for name in self.schema.names]
        return some[0]._replace(rows=pa.Table.from_arrays(columns, schema=self.schema))
