"""Distinct: each row of positive multiplicity, once.

Invariant: what is kept is the multiplicity of each row, as a count by all columns keeps it. A row that goes and comes
back within a step is no change, and one whose multiplicity is negative is not there.

>>> from ddflow.operators.updates import few, ints
>>> schema = pa.schema({"v": pa.string()})
>>> distinct = RunningDistinct(schema, Secret(1, 2))
>>> updates = Updates(pa.table({"v": ["a", "a", "b"]}), few(0, 0, 0), ints(1, 1, -1), ints(5))
>>> out, change = distinct.compute([updates], 5)
>>> distinct.apply([change], upper=6, since=5)
>>> out.to_table(schema, None).to_pylist()
[{'v': 'a', '_diff': 1}]
>>> out, _ = distinct.compute([Updates(pa.table({"v": ["a"]}), few(0), ints(-1), ints(6))], 6)
>>> out.diffs.size
0
"""

from collections.abc import Sequence
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ddflow.columns.hashing import Secret
from ddflow.operators.base import Context, Operator, Running, register
from ddflow.operators.count import RunningCount
from ddflow.operators.updates import Updates, consolidated
from ddflow.plan.collection import Collection, Columns
from ddflow.trace.change import Change

TIMES: Final = "_times"
"""The column of multiplicities, beside the row's."""


@register
class Distinct(Operator):
    """See `Collection.distinct`."""

    verb, keeps = "distinct", True

    def __init__(self, of: Collection) -> None:
        super().__init__(of.flow, of.schema, [of], True)

    def exchange(self) -> list[Columns | None]:
        """Equal rows."""
        return [tuple(self.schema.names)]

    def open(self, context: Context) -> Running:
        """See `Operator.open`."""
        return RunningDistinct(self.schema, context.secret)


class RunningDistinct(RunningCount):
    """``schema``: of the rows.  State: the multiplicity of each row, positive or not."""

    def __init__(self, schema: pa.Schema, secret: Secret) -> None:
        super().__init__(schema, TIMES, secret)
        self.tracked = None

    def compute(self, inputs: Sequence[Updates], since: int) -> tuple[Updates, Change]:
        """See `Running.compute`.  O(updates).  Raises `CountOverflow`."""
        counted, change = super().compute(inputs, since)
        there = counted.picked(np.flatnonzero(counted.rows.column(TIMES).to_numpy() > 0))
        return consolidated(there._replace(rows=there.rows.select(self.groups.names)), self.secret), change

    def rows(self, arranged: pa.Table) -> pa.Table:
        """Those of positive multiplicity."""
        return arranged.filter(pc.greater(arranged.column(TIMES), 0))
