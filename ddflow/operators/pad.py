"""Pad: rows of one collection, and nulls in the place of another's columns, for outer joins.

>>> import ddflow as dd
>>> flow = dd.Flow()
>>> orders = flow.upserts("orders", {"id": int}, dd.Upsert(key="id"))
>>> customers = flow.upserts("customers", {"name": str}, dd.Upsert(key="name"))
>>> Pad(orders, customers, [("id", 0, "id"), ("name", 1, "name")])
Pad(id int64, name string)
"""

from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from ddflow.operators.base import Context, Linear, Operator, Running, register
from ddflow.operators.updates import Updates
from ddflow.plan.collection import Collection
from ddflow.plan.record import Record


@register
class Pad(Operator):
    """``of``: whose rows.  ``like``: whose columns are null.  ``columns``: (name, 0 or 1, name there) of each."""

    verb = "pad"

    def __init__(self, of: Collection, like: Collection, columns: Sequence[Sequence[Any]]) -> None:
        self.columns = [(str(name), int(side), str(there)) for name, side, there in columns]
        sides = of, like
        fields = [sides[side].schema.field(there).with_name(name) for name, side, there in self.columns]
        fields = [
            f.with_nullable(f.nullable or side == 1) for f, (_, side, _) in zip(fields, self.columns, strict=True)
        ]
        super().__init__(of.flow, pa.schema(fields), sides, False)
        whole = set(of.schema.names) <= {there for _, side, there in self.columns if side == 0}
        self.unique, self.positive = of.unique and whole, of.positive

    def to_json(self, formulas: Any) -> dict[str, Any]:
        """The columns."""
        return {"columns": [list(each) for each in self.columns]}

    @classmethod
    def from_json(cls, inputs: Sequence[Collection], record: Record) -> Collection:
        """See `Collection.from_json`."""
        of, like = inputs
        return cls(of, like, record.list("columns"))

    @classmethod
    def text(cls, record: Record, inputs: Sequence[str]) -> str:
        """The columns that are null."""
        return str([name for name, side, _ in record.list("columns") if side == 1])

    def needs(self, wanted: set[str]) -> list[set[str]]:
        """Of the rows, what is wanted; of the other, nothing."""
        return [{there for name, side, there in self.columns if side == 0 and name in wanted}, set()]

    def carried(self, by: tuple[str, ...] | None) -> tuple[str, ...] | None:
        """See `Collection.carried`."""
        names = {there: name for name, side, there in reversed(self.columns) if side == 0}
        return tuple(names[c] for c in by) if by is not None and set(by) <= set(names) else None

    def open(self, context: Context) -> Running:
        """See `Operator.open`."""
        wanted = [i for i, field in enumerate(self.schema) if field.name in context.wanted]
        return Padding(self, wanted)


class Padding(Linear):
    """``wanted``: the columns that are read in a step; a read makes all."""

    def __init__(self, node: Pad, wanted: Sequence[int]) -> None:
        super().__init__(lambda of, _: self._padded(of, wanted))
        self.node = node

    def read(self, inputs: Sequence[Updates], as_of: int | None) -> Updates:
        """See `Running.read`."""
        return self._padded(inputs[0], range(len(self.node.schema)))

    def _padded(self, of: Updates, which: Sequence[int]) -> Updates:
        """The rows with nulls beside.  O(n)."""
        n, fields = of.diffs.size, [self.node.schema.field(i) for i in which]
        told = [self.node.columns[i] for i in which]
        columns = [
            pa.nulls(n, field.type) if side == 1 else of.rows.column(there)
            for field, (_, side, there) in zip(fields, told, strict=True)
        ]
        return of._replace(rows=pa.Table.from_arrays(columns, schema=pa.schema(fields)))
