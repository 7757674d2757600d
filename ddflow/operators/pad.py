"""Extend rows of one side of an outer join with nulls in the columns of the other side.

>>> import ddflow as dd
>>> flow = dd.Flow()
>>> orders = flow.upserts("orders", {"id": int}, dd.Upsert(key="id"))
>>> customers = flow.upserts("customers", {"name": str}, dd.Upsert(key="name"))
>>> Pad(orders, customers, 1, [("id", 0, "id"), ("name", 1, "name")])
Pad(id int64, name string)
"""

from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from ddflow.columns.row_match import RowMatcher
from ddflow.columns.row_views import Chosen
from ddflow.errors import CorruptState
from ddflow.operators.base import (
    Operator,
    OperatorContext,
    RunningOperator,
    StatelessRunningOperator,
    register_operator,
)
from ddflow.operators.join import columns_from_json, columns_to_json, normalize_columns
from ddflow.operators.updates import Updates
from ddflow.plan.collection import Collection, Columns, WatermarkStep
from ddflow.plan.text.formulas import JsonRecord
from ddflow.storage.fields import RESTORE_REMEDY


@register_operator
class Pad(Operator):
    """An operator that pads the rows of one side of a join with nulls.

    ``side``: the side that has the rows; 0 is left. ``columns``, ``whole``: as in `Join`. ``keys``: the left columns in
    ``columns`` that have the same names on the right. Rows from both sides have the key columns.
    """

    verb = "pad"

    def __init__(
        self,
        left: Collection,
        right: Collection,
        side: int,
        columns: Sequence[Sequence[Any]],
        keys: Sequence[str] = (),
        whole: Sequence[int] = (),
    ) -> None:
        self.side, self.columns, self.keys, self.whole = side, normalize_columns(columns), list(keys), list(whole)
        sides, own = (left, right), self._map_columns()
        fields = [sides[at].schema.field(of).with_name(name) for name, at, of in self.columns]
        fields = [field.with_nullable(field.nullable or field.name not in own) for field in fields]
        super().__init__(left.flow, pa.schema(fields), sides, False)
        mine = sides[side]
        self.unique = mine.unique and set(mine.schema.names) <= set(own.values())
        self.positive, self.grows = mine.positive, any(self.inputs[at].grows for at in self.whole)

    def _map_columns(self) -> dict[str, str]:
        """Map each output column that is not filled with nulls to its name in the rows."""
        mine = {name: of for name, at, of in self.columns if at == self.side}
        return mine | {name: name for name in self.keys}

    def to_json(self, formulas: Any) -> dict[str, Any]:
        """Write the side, the columns and the keys as JSON."""
        columns = columns_to_json(self.columns, self.whole, self.inputs)
        return {"side": str(self.side), "columns": columns, "keys": self.keys, "whole": self.whole}

    @classmethod
    def from_json(cls, inputs: Sequence[Collection], record: JsonRecord) -> Collection:
        """See `Collection.from_json`."""
        left, right = inputs
        if (side := record.read_text("side")) not in ("0", "1"):
            raise CorruptState(record.what, f"its side is {side!r}", RESTORE_REMEDY)
        columns = columns_from_json(record.read_list("columns"), inputs)
        return cls(left, right, int(side), columns, record.read_texts("keys"), record.read_list("whole"))

    def rebuild_with_inputs(self, inputs: Sequence[Collection]) -> Collection:
        """See `Collection.rebuild_with_inputs`."""
        left, right = inputs
        columns: list[Chosen] = columns_from_json(columns_to_json(self.columns, self.whole, self.inputs), inputs)
        return Pad(left, right, self.side, columns, self.keys, self.whole)

    @classmethod
    def format_arguments(cls, record: JsonRecord, inputs: Sequence[str]) -> str:
        """Render the other input and ``side`` as text."""
        return ", ".join([*inputs, f"rows of the {'right' if record.read_text('side') == '1' else 'left'}"])

    def find_read_columns(self, wanted: set[str]) -> list[set[str]]:
        """Return the wanted columns of the side that has the rows, and no columns of the other side."""
        mine = {of for name, of in self._map_columns().items() if name in wanted}
        return [mine if at == self.side else set() for at in (0, 1)]

    def map_input_columns(self, by: Columns | None) -> Columns | None:
        """Return columns of this side; see `Collection.map_input_columns`."""
        names = {of: name for name, of in reversed(self._map_columns().items())}
        return tuple(names[c] for c in by) if by is not None and set(by) <= set(names) else None

    def map_watermark_columns(self, at: int) -> dict[str, tuple[str, WatermarkStep | None]] | None:
        """Return the columns of the side that has the rows; see `Collection.map_watermark_columns`."""
        return {name: (of, None) for name, of in self._map_columns().items()} if at == self.side else None

    def find_contributing_rows(self, wanted: pa.Table, given: Sequence[pa.Table], alike: RowMatcher) -> list[pa.Table]:
        """Return only rows of this side, because padded rows have no match; see `Collection.find_contributing_rows`."""
        return [
            alike.select_matches(each, wanted, {of: name for name, of in self._map_columns().items()})
            if at == self.side
            else each.slice(0, 0)
            for at, each in enumerate(given)
        ]

    def open(self, context: OperatorContext) -> RunningOperator:
        """See `Operator.open`."""
        return RunningPad(self, [field for field in self.schema if field.name in context.wanted])


class RunningPad(StatelessRunningOperator):
    """A running pad. ``wanted``: the columns that a step computes. A read computes all columns."""

    def __init__(self, node: Pad, wanted: Sequence[pa.Field]) -> None:
        super().__init__(lambda *inputs: self._pad_rows(inputs[node.side], wanted))
        self.node, self.own = node, node._map_columns()

    def compute_output_rows(self, inputs: Sequence[Updates], as_of: int | None) -> Updates:
        """See `RunningOperator.compute_output_rows`."""
        return self._pad_rows(inputs[self.node.side], list(self.node.schema))

    def _pad_rows(self, of: Updates, fields: Sequence[pa.Field]) -> Updates:
        """Add the null columns to the rows.  O(n)."""
        n, own = of.diffs.size, self.own
        columns = [of.rows.column(own[f.name]) if f.name in own else pa.nulls(n, f.type) for f in fields]
        return of._replace(rows=pa.Table.from_arrays(columns, schema=pa.schema(fields)))
