"""Add results of window functions to the rows of partitions, as differences.

The output is the input's rows with a column for each call. A step emits exactly the rows whose results changed. The
state holds every row by partition and order, with its multiplicity (`ordered_groups`). The output is not stored.

The package `ddflow.operators.window` parses the calls and computes the results.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Self

import pyarrow as pa

from ddflow.columns.names import TIMES, check_column_name, check_column_names, check_columns_exist, parse_column_names
from ddflow.columns.order_words import OrderColumn
from ddflow.columns.row_match import RowMatcher
from ddflow.errors import SpecError
from ddflow.operators.base import Operator, OperatorContext, RunningOperator, register_operator
from ddflow.operators.row_order import find_reordered_columns, format_order_columns, parse_order_columns
from ddflow.operators.window.calls import FoldCall, PickCall, SessionCall, WindowCall
from ddflow.operators.window.frames import RangeOrder, Reach
from ddflow.operators.window.parse import parse_call
from ddflow.operators.window.running import RunningOver
from ddflow.plan.collection import Collection, Columns, refuse_forgetting_inputs
from ddflow.plan.text.formulas import JsonRecord, find_formula_objections


@register_operator
class Over(Operator):
    """The operator of `Collection.over`.

    >>> import ddflow as dd
    >>> flow = dd.Flow()
    >>> sales = flow.upserts("sales", {"id": int, "n": int}, dd.Upsert(key="id"))
    >>> _ = flow.output("totals", sales.over(order_by="id", total="sum(n)"))
    >>> with flow.open() as engine:
    ...     _ = engine.step({"sales": {"id": [1, 2, 3], "n": [5, 9, 7]}}, time=1)
    ...     engine.step({"sales": {"id": [3], "n": [8]}}, time=2)["totals"].to_pylist()
    [{'id': 3, 'n': 7, 'total': 21, '_time': 2, '_diff': -1}, {'id': 3, 'n': 8, 'total': 22, '_time': 2, '_diff': 1}]
    """

    verb, keeps, orders_partitions = "over", True, True

    def __init__(
        self, of: Collection, partition_by: str | Sequence[str], order_by: str | Sequence[str], texts: Mapping[str, Any]
    ) -> None:
        asked, row = self.verb, of.schema
        self.partition_by = parse_column_names(partition_by, asked, "partition_by")
        self.order_by = parse_order_columns(order_by, row, asked)
        check_columns_exist(self.partition_by, row.names, asked, "partition_by")
        refuse_forgetting_inputs(asked, "the state would keep these rows forever", of)
        if not texts:
            raise SpecError(asked, "no function is given", "write one, as in place='row_number()'")
        self.order = order = [each for each in self.order_by if each.name not in self.partition_by]
        self.calls = [
            parse_call(check_column_name(name, asked, name), text, row, self.order_by) for name, text in texts.items()
        ]
        for each in self.calls:
            if isinstance(each, SessionCall) and [way[:2] for way in order[:1]] != [(each.column, False)]:
                found = f"its rows are not in the order of {each.column!r}"
                raise each.refuse(found, f"pass order_by={each.column!r}")
        shown = [*row, *(pa.field(each.name, each.type, nullable=each.nullable) for each in self.calls)]
        check_column_names([*(field.name for field in shown), TIMES], asked)
        self.range = _bind_ranges(self.calls, order, row)
        super().__init__(of.flow, pa.schema(shown), [of], of.unique)
        self.unique, self.positive = of.unique, True

    def to_json(self, formulas: Any) -> dict[str, Any]:
        """Write the partition, the order and the calls as JSON."""
        calls = [{"name": each.name, "sql": each.text} for each in self.calls]
        return {
            "partition_by": list(self.partition_by),
            "order_by": format_order_columns(self.order_by),
            "calls": calls,
        }

    @classmethod
    def from_json(cls, inputs: Sequence[Collection], record: JsonRecord) -> Collection:
        """See `Collection.from_json`."""
        texts = {each.read_text("name"): each.read_text("sql") for each in record.read_records("calls")}
        return inputs[0]._apply_verb(cls.verb, record.read_texts("partition_by"), record.read_texts("order_by"), texts)

    def find_widening_obstacles(self, narrow: Self) -> Iterator[str]:
        """Require that order and results stay the same on the wider types; see `Collection.find_widening_obstacles`."""
        wide, was = self.inputs[0].schema, narrow.inputs[0].schema
        for name, kind in find_reordered_columns(wide, was):
            if name not in self.partition_by:
                yield f"over(...) compares its column {name!r}, whose values sort differently as {kind}"
        for mine, its in zip(self.calls, narrow.calls, strict=True):
            yield from mine.list_incompatibilities(its)
            for text, expression in mine.arguments.items():
                yield from find_formula_objections(expression, was, wide, its.arguments[text].type)

    @classmethod
    def format_arguments(cls, record: JsonRecord, inputs: Sequence[str]) -> str:
        """Render the partition, the order and the calls as text."""
        told = [f"partition_by={by}"] if (by := record.read_texts("partition_by")) else []
        told += [f"order_by={order}"] if (order := record.read_texts("order_by")) else []
        told += [f"{each.read_text('name')}={each.read_text('sql')!r}" for each in record.read_records("calls")]
        return ", ".join(told)

    def exchange(self) -> list[Columns | None]:
        """Return the columns of the partition."""
        return [self.partition_by]

    def unique_by(self) -> list[Columns]:
        """Return the keys of the input, and the partition with each row number; see `Collection.unique_by`."""
        numbers = [each.name for each in self.calls if each.text.strip().lower() == "row_number()"]
        return [*self.inputs[0].unique_by(), *((*self.partition_by, name) for name in numbers)]

    def find_never_null_columns(self) -> frozenset[str]:
        """Return the never-null columns of the input; see `Collection.find_never_null_columns`."""
        return super().find_never_null_columns() | self.inputs[0].find_never_null_columns()

    def find_contributing_rows(self, wanted: pa.Table, given: Sequence[pa.Table], alike: RowMatcher) -> list[pa.Table]:
        """Return all rows of the wanted partitions; see `Collection.find_contributing_rows`."""
        return [alike.select_matches(given[0], wanted, self.partition_by)]

    def open(self, context: OperatorContext) -> RunningOperator:
        """See `Operator.open`."""
        return RunningOver(self, context)


def _bind_ranges(calls: Sequence[WindowCall], order: Sequence[OrderColumn], row: pa.Schema) -> RangeOrder | None:
    """Bind the bounds of frames with a distance in the order column. Set the reach of these calls."""
    ranged = [each for each in calls if each.frame.by_value]
    if not ranged:
        return None
    if len(order) != 1:
        found = f"it has {len(order)} order columns, but a distance in RANGE needs one"
        raise ranged[0].refuse(found, "order by one number, date or timestamp, or use ROWS")
    bounds = [bound for each in ranged for bound in each.frame[1:] if bound.distance]
    bound = RangeOrder(ranged[0].name, order[0], bounds, row)
    for each in ranged:
        measured = bound.measure_reach(each.frame)
        each.reach = measured if not (each.reach.whole or measured.whole) else Reach(whole=True)
        if measured.tail and not (isinstance(each, FoldCall) or (isinstance(each, PickCall) and each.running)):
            each.reach = Reach(whole=True)
    return bound
