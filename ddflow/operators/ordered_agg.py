"""Compute first, last, extreme and list aggregates of each group, as differences.

A group has an output row while it has input rows. The state holds the rows of each group in a given order, with their
multiplicities. A step reads one or two rows from an end of a group. If updates change these rows, the step reads more
rows from the same end. Therefore, when an extreme is retracted, a step finds the next row in O(log rows). A list
aggregate reads the whole group.

Results ignore rows whose column ``skips`` is null. Each group has at most one such row, because
`ddflow.plan.verbs.groups` builds the input in this way.
"""

from collections.abc import Iterator, Sequence
from typing import Any, Final, NamedTuple, Self

import numpy as np
import pyarrow as pa

from ddflow.columns.hashing import Flags, Ints, RowHasher, Words
from ddflow.columns.names import TIMES, check_column_names
from ddflow.columns.row_views import gather_or_slice
from ddflow.columns.rows import RowPool, gather_column
from ddflow.columns.schema import column_arrays
from ddflow.errors import TooLarge
from ddflow.kernels.accumulate import list_differences
from ddflow.kernels.top import list_first_rows
from ddflow.operators.base import GroupOperator, OperatorContext, RunningOperator, as_updates, register_operator
from ddflow.operators.ordered_groups import ALL, FirstRows, RunningOrderedGroups, StepGroups
from ddflow.operators.row_order import RowOrder, find_reordered_columns, format_order_columns, parse_order_columns
from ddflow.operators.updates import GroupSortedUpdates, Updates, add_step_rows
from ddflow.plan.collection import Collection, refuse_forgetting_inputs
from ddflow.plan.text.formulas import JsonRecord
from ddflow.trace.arrangement import Arrangement
from ddflow.trace.batch import ArrangementChange, RowsByGroup

WAYS: Final = ("first", "last", "all")
"""The kinds of results: the value of a group's first row, the value of its last row, or the list of all its values."""
MOST_VALUES: Final = 2**31 - 1
"""The maximum number of values in all lists of one step."""


@register_operator
class OrderedAgg(GroupOperator):
    """The operator for aggregates that depend on the order of a group's rows.

    ``by``: the group columns. ``order``: the order, in the form of `Collection.top`. ``results``: the name, the kind
    (see `WAYS`) and the column of each result. ``skips``: the column whose null makes results ignore a row; "" for
    none.
    """

    verb, keeps = "ordered_agg", True

    def __init__(
        self, of: Collection, by: Sequence[str], order: Sequence[str], results: Sequence[Sequence[str]], skips: str
    ) -> None:
        self.by, self.order, self.skips = tuple(by), parse_order_columns(order, of.schema, "agg"), skips
        self.results = [(str(name), str(way), str(column)) for name, way, column in results]
        refuse_forgetting_inputs("agg", "the state would keep these rows forever", of)
        fields = [of.schema.field(name) for name in self.by]
        check_column_names([*of.schema.names, TIMES], "agg")
        check_column_names([*self.by, *(name for name, _, _ in self.results)], "agg")
        for name, way, column in self.results:
            kind = of.schema.field(column).type
            fields.append(pa.field(name, pa.list_(kind) if way == "all" else kind, nullable=way != "all"))
        super().__init__(of.flow, pa.schema(fields), [of], True)
        self.grows = False

    def to_json(self, formulas: Any) -> dict[str, Any]:
        """Write the groups, the order, the results and the ignored column as JSON."""
        results = [list(each) for each in self.results]
        return {"by": list(self.by), "order": format_order_columns(self.order), "results": results, "skips": self.skips}

    @classmethod
    def from_json(cls, inputs: Sequence[Collection], record: JsonRecord) -> Collection:
        """Build the operator from the group columns, the order, the results and ``skips`` of a JSON record."""
        results = record.read_list("results")
        return inputs[0]._apply_verb(
            cls.verb, record.read_texts("by"), record.read_texts("order"), results, record.read_text("skips")
        )

    def find_widening_obstacles(self, narrow: Self) -> Iterator[str]:
        """Require that the wider types sort the rows in the same order; see `Collection.find_widening_obstacles`."""
        for name, kind in find_reordered_columns(self.inputs[0].schema, narrow.inputs[0].schema):
            if name not in self.by:
                yield f"agg(...) compares its column {name!r}, whose values sort differently as {kind}"

    @classmethod
    def format_arguments(cls, record: JsonRecord, inputs: Sequence[str]) -> str:
        """Render the groups, the order, and the results as text."""
        told = [f"by={record.read_texts('by')}", f"order={record.read_texts('order')}"]
        return ", ".join([*told, *(f"{name}={way} {column}" for name, way, column in record.read_list("results"))])

    def open(self, context: OperatorContext) -> RunningOperator:
        """See `Operator.open`."""
        return RunningOrderedAgg(self, context)


class GroupCells(NamedTuple):
    """The changes of g groups in a step.

    Each group is divided into cells, one cell for each of its times. All groups together have c cells.
    """

    cells: Ints
    """int64[g + 1]: where each group begins among the cells."""
    begins: Ints
    """int64[c + 1]: where each cell begins among the changes."""
    numbers: Ints
    """The number of the row that each change affects. ``counts`` has the multiplicity of this row after the change."""
    counts: Ints

    @property
    def state_order(self) -> Ints:
        """int64[g + c]: the position of each state by group and time. The states before the step come first."""
        groups = self.cells.size - 1
        of = np.repeat(np.arange(groups), np.diff(self.cells))
        return np.concatenate([self.cells[:-1] + np.arange(groups), np.arange(of.size) + of + 1])


class RunningOrderedAgg(RunningOrderedGroups):
    """A running ordered aggregate.  State: all input rows, by group and order.

    >>> from ddflow.columns.hashing import Secret
    >>> from ddflow.operators.updates import narrow_ints, ints
    >>> from ddflow.plan.plan import Plan
    >>> from ddflow.plan.inputs.spec import Upsert
    >>> sales = Plan().upserts("sales", {"id": pa.int64(), "city": pa.string(), "n": pa.int64()}, Upsert(key="id"))
    >>> node = OrderedAgg(sales.project(["city", "n"]), ["city"], ["n nulls last"], [("most", "last", "n")], "n")
    >>> running = node.open(OperatorContext(Secret(1, 2), pa.int64(), frozenset()))
    >>> rows = pa.table({"city": ["Bern", "Bern", "Chur"], "n": [5, 7, 1]})
    >>> out, change = running.compute([Updates(rows, narrow_ints(0, 0, 0), ints(1, 1, 1), ints(5))], 5)
    >>> running.apply([change], upper=6, since=5)
    >>> out, _ = running.compute([Updates(rows.slice(1, 1), narrow_ints(0), ints(-1), ints(6))], 6)
    >>> out.rows.to_pylist(), out.diffs.tolist()
    ([{'city': 'Bern', 'most': 7}, {'city': 'Bern', 'most': 5}], [-1, 1])
    """

    def __init__(self, node: OrderedAgg, context: OperatorContext) -> None:
        row, names = node.inputs[0].schema, ", ".join(name for name, _, _ in node.results)
        ways = RowOrder(row, node.by, node.order, context.secret)
        super().__init__(node.inputs[0], node.by, ways, f"agg of {names}", context.threads)
        self.made, self.skips, self.results = node.schema, node.skips, node.results
        self.ends, self.groups = {way for _, way, _ in self.results}, pa.schema([row.field(name) for name in node.by])
        self.read = {name: pa.schema([row.field(name).with_nullable(True)]) for name in row.names}
        self.hashes = RowHasher(pa.schema([*node.schema][len(node.by) :]), context.secret)

    def compute(self, inputs: Sequence[Updates], since: int) -> tuple[Updates, ArrangementChange]:
        """See `RunningOperator.compute`. Raises `NegativeMultiplicity`, `CountOverflow`.

        O(u log u + g runs) for u updates in g groups. With lists, each changed group costs O(rows of the group) for
        each of its times.
        """
        updates, change = super().compute(inputs, since)
        return self._compute_updates(self.group_updates(updates, self.keys), updates), change

    def _compute_updates(self, by: GroupSortedUpdates, updates: Updates) -> Updates:
        """Compute the updates of the output."""
        groups, pool = self._find_groups(by, updates), add_step_rows(self.output_arrangement.slots.pool, updates)
        ends = {way: self._find_result_rows(way, groups, pool) for way in self.ends}
        # The rows that were not read cannot change a result.
        order, starts = groups.sort_changes(*ends.values())
        counts, group = np.zeros(order.size, np.int64), np.repeat(np.arange(starts.size - 1), np.diff(starts))
        for end in ends.values():
            np.copyto(counts, end.counts[order], where=end.place[order] >= 0)
        ranks = by.ranks[order]
        begun = np.ones(order.size, bool)
        begun[1:] = (group[1:] != group[:-1]) | (ranks[1:] != ranks[:-1])
        heads = np.flatnonzero(begun)
        cells = np.searchsorted(group[heads], np.arange(starts.size))
        changes = GroupCells(cells, np.append(heads, order.size), order, counts)
        there, results = self._compute_results(ends, changes, pool)
        before = np.arange(heads.size) + starts.size - 2
        some = cells[:-1] < cells[1:]
        before[cells[:-1][some]] = np.flatnonzero(some)
        n = 2 * heads.size
        at, places, diffs, out_ranks = *(np.empty(n, np.int64) for _ in range(3)), np.empty(n, np.int32)
        scratch = np.empty(updates.times.size + 1, np.int64)
        given = (
            before,
            there,
            self.hashes.compute_value_hashes(results, there.size),
            ranks[heads].astype(np.int32),
            scratch,
        )
        n = list_differences(*given, at, places, out_ranks, diffs)
        rows, taken = pa.array(by.places[order[heads[at[:n]]]]), pa.array(places[:n])
        columns = [each.take(rows) for each in column_arrays(updates.rows, self.by)]
        table = pa.Table.from_arrays([*columns, *(each.take(taken) for each in results)], schema=self.made)
        return Updates(table, out_ranks[:n], diffs[:n], updates.times)

    def _find_result_rows(self, way: str, groups: StepGroups, pool: RowPool) -> FirstRows:
        """Find the rows of the groups that a result of kind ``way`` can depend on."""
        few = 2 if self.skips else 1
        return self._find_first_rows(groups, pool, few if way != "all" else ALL, back=way == "last")

    def _compute_results(
        self, ends: dict[str, FirstRows], changes: GroupCells, pool: RowPool
    ) -> tuple[Flags, list[pa.Array]]:
        """Mark the states that have rows, and compute the results of all states.

        The states before the step come first.
        """
        order, made = changes.state_order, dict[str, tuple[Ints, Ints]]()
        there, stops = np.empty(order.size, np.uint8), np.empty(order.size + 1, np.int64)
        for way, end in ends.items():
            references = end.references
            skipped = np.zeros(references.size, np.uint8)
            if self.skips:
                skipped[:] = np.asarray(gather_column(pool, references, self.row.field(self.skips)).is_null())
            places, limit = end.place[changes.numbers], np.int64(ALL if way == "all" else 1)
            room = order.size if way != "all" else 2 * references.size + 64
            while True:
                out = np.empty(room, np.int64)
                told = changes.cells, changes.begins, places, changes.counts
                n = list_first_rows(end.ends, end.held.copy(), skipped, *told, limit, there, stops, out)
                if n <= room:
                    break
                _check_list_size(n)
                room = n
            made[way] = references[out[:n]], stops.copy()
        columns = []
        for _, way, column in self.results:
            references, stops = made[way]
            values = gather_column(pool, references, self.row.field(column).with_nullable(True))
            if way == "all":
                field = pa.field("item", values.type)
                lists = pa.ListArray.from_arrays(pa.array(stops, pa.int32()), values, pa.list_(field))
                columns.append(lists.take(pa.array(order)))
            else:
                begins, none = stops[order], stops[order] == stops[order + 1]
                columns.append(values.take(pa.array(begins, mask=none)))
        return there[order], columns

    def look_up_group(self, high: Words, low: Words) -> RowsByGroup:
        """Look up the rows at the ends of the group; see `ReadableNode.look_up_group`.

        O(runs log rows + rows that tie), or O(rows) for a list.
        """
        if "all" in self.ends:
            return super().look_up_group(high, low)
        few = 2 if self.skips else 1
        ends = [self._look_up_first_rows(high, low, few, back=way == "last") for way in sorted(self.ends)]
        # The rows from the end are in descending order. A row can be at both ends.
        if "last" in self.ends:
            ends[-1] = ends[-1]._replace(references=ends[-1].references[::-1], held=ends[-1].held[::-1])
        more = ~np.isin(ends[-1].references, ends[0].references) if len(ends) > 1 else slice(0)
        references = np.concatenate([ends[0].references, ends[-1].references[more]])
        held = np.concatenate([ends[0].held, ends[-1].held[more]])
        return RowsByGroup(references, held, np.array([0, references.size]))

    def _compute_group_output(self, arranged: Arrangement, found: RowsByGroup) -> Updates:
        """See `RunningOrderedGroups._compute_group_output`."""
        pool, references, held = arranged.slots.pool, found.references, found.values
        if found.order.size:
            _, first = found.mark_first_rows(self.ways.tied)
            if (places := self.ways.sort_ties(pool, references, (~first).astype(np.uint8))) is not None:
                references, held = references[places], held[places]

        def gather(rows: Ints, schema: pa.Schema) -> list[pa.Array]:
            return column_arrays(gather_or_slice(pool, references[rows], schema), schema.names)

        kept = np.arange(references.size)
        if self.skips and (skipping := gather(kept, self.read[self.skips])[0]).null_count:
            kept = np.flatnonzero(~np.asarray(skipping.is_null()))
        ends = np.searchsorted(kept, found.begins)
        none, columns = ends[:-1] == ends[1:], gather(found.begins[:-1], self.groups)
        for _, way, column in self.results:
            if way == "all":
                _check_list_size(int(held[kept].sum()))
                rows = np.repeat(kept, held[kept])
                values, stops = gather(rows, self.read[column])[0], np.searchsorted(rows, found.begins)
                kind = pa.list_(pa.field("item", values.type))
                columns.append(pa.ListArray.from_arrays(pa.array(stops, pa.int32()), values, kind))
            else:
                at = (ends[:-1] if way == "first" else ends[1:] - 1)[~none]
                (values,) = gather(kept[at], self.read[column])
                lacks = np.count_nonzero(none) != 0
                columns.append(values.take(pa.array(np.cumsum(~none) - 1, mask=none)) if lacks else values)
        return as_updates(pa.Table.from_arrays(columns, schema=self.made))


def _check_list_size(n: int) -> None:
    """Check that a list column can hold ``n`` values. Raises `TooLarge`."""
    if n > MOST_VALUES:
        found = f"the lists of this step have {n:,} values, but a list column holds at most {MOST_VALUES:,}"
        raise TooLarge("array_agg", found, "use smaller steps, or smaller groups")
