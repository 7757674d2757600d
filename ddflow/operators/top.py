"""Emit the first k rows of each group, in a given order, as differences.

A row of multiplicity m takes m places in its group. The multiplicity of a row in the output is the number of its places
in [``offset``, ``offset + k``), which can be less than m. If rows tie, their remaining columns decide the order
(`row_order`), so the output depends on the rows alone. The state holds every row, arranged by group and order, with its
multiplicity. The output is not stored.

Cost: a step reads only groups that have updates, and only their first ``offset + k`` rows. A step reads later
rows only if updates change some of the first rows, or if rows have equal order words.
"""

from collections.abc import Iterator, Sequence
from copy import copy
from typing import Any, Final, Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ddflow.columns.hashing import Ints, Words
from ddflow.columns.names import (
    DIFF,
    TIMES,
    check_column_name,
    check_column_names,
    check_columns_exist,
    parse_column_names,
)
from ddflow.columns.row_match import RowMatcher
from ddflow.columns.row_views import gather_or_slice
from ddflow.columns.rows import RowPool, gather_arrays
from ddflow.columns.schema import to_array
from ddflow.errors import Option, SpecError
from ddflow.kernels.top import compute_window_updates
from ddflow.operators.base import Operator, OperatorContext, RunningOperator, as_updates, register_operator
from ddflow.operators.ordered_groups import RunningOrderedGroups
from ddflow.operators.row_order import RowOrder, find_reordered_columns, format_order_columns, parse_order_columns
from ddflow.operators.updates import GroupSortedUpdates, Updates, add_step_rows, ints, sort_retractions_first
from ddflow.plan.collection import Collection, Columns, refuse_forgetting_inputs
from ddflow.plan.text.formulas import JsonRecord
from ddflow.trace.arrangement import Arrangement
from ddflow.trace.batch import ArrangementChange, RowsByGroup

MOST: Final = 10_000
"""The maximum of k."""
FARTHEST: Final = 2**31
"""The upper limit of offsets, exclusive."""


@register_operator
class Top(Operator):
    """The operator of `Collection.top`."""

    verb, keeps = "top", True

    def __init__(
        self,
        of: Collection,
        k: int,
        by: str | Sequence[str],
        partition_by: str | Sequence[str] = (),
        offset: int = 0,
        rank_name: str | None = None,
    ) -> None:
        asked = self.verb
        self.k, self.offset, self.rank_name = (
            _check_row_count(k, "k", 1, MOST),
            _check_row_count(offset, "offset", 0, FARTHEST - 1),
            rank_name,
        )
        self.by, self.partition_by = (
            parse_order_columns(by, of.schema, asked),
            parse_column_names(partition_by, asked, "partition_by"),
        )
        check_columns_exist(self.partition_by, of.schema.names, asked, "partition_by")
        refuse_forgetting_inputs(asked, "the state would keep these rows forever", of)
        ranks = []
        if rank_name is not None:
            ranks = [pa.field(check_column_name(rank_name, asked, "rank_name"), pa.int64(), nullable=False)]
        check_column_names([*of.schema.names, *(each.name for each in ranks), TIMES], asked)
        super().__init__(of.flow, pa.schema([*of.schema, *ranks]), [of], True)
        self.unique, self.positive = of.unique or bool(ranks), True

    def to_json(self, formulas: Any) -> dict[str, Any]:
        """Write all options and, if there is a rank column, its name as JSON."""
        told = {
            "k": self.k,
            "by": format_order_columns(self.by),
            "partition_by": list(self.partition_by),
            "offset": self.offset,
        }
        return told | ({} if self.rank_name is None else {"rank_name": self.rank_name})

    @classmethod
    def from_json(cls, inputs: Sequence[Collection], record: JsonRecord) -> Collection:
        """See `Collection.from_json`."""
        rank = record.read_text("rank_name") if "rank_name" in record else None
        groups, offset = record.read_texts("partition_by"), record.read_integer("offset")
        return inputs[0].top(record.read_integer("k"), record.read_texts("by"), groups, offset, rank)

    def find_widening_obstacles(self, narrow: Self) -> Iterator[str]:
        """Require that the wider types sort the rows in the same order; see `Collection.find_widening_obstacles`."""
        for name, kind in find_reordered_columns(self.inputs[0].schema, narrow.inputs[0].schema):
            if name not in self.partition_by:
                yield f"top(...) compares its column {name!r}, whose values sort differently as {kind}"

    @classmethod
    def format_arguments(cls, record: JsonRecord, inputs: Sequence[str]) -> str:
        """Render as text the options that differ from their defaults."""
        told = [str(record.read_integer("k")), f"by={record.read_texts('by')}"]
        told += [f"partition_by={groups}"] if (groups := record.read_texts("partition_by")) else []
        told += [f"offset={offset}"] if (offset := record.read_integer("offset")) else []
        told += [f"rank_name={record.read_text('rank_name')!r}"] if "rank_name" in record else []
        return ", ".join(told)

    def exchange(self) -> list[Columns | None]:
        """Return the group columns."""
        return [self.partition_by]

    def unique_by(self) -> list[Columns]:
        """Return the keys of the input, the group columns if k is 1, and the group columns with the rank column.

        See `Collection.unique_by`.
        """
        found = self.inputs[0].unique_by()
        if self.k == 1:
            found = [*found, self.partition_by]
        if self.rank_name is not None:
            found = [*found, (*self.partition_by, self.rank_name)]
        return list(dict.fromkeys(found))

    def is_selection(self) -> bool:
        """Return True; see `Collection.is_selection`."""
        return True

    def find_never_null_columns(self) -> frozenset[str]:
        """Return the never-null columns of the input; see `Collection.find_never_null_columns`."""
        return super().find_never_null_columns() | (self.inputs[0].find_never_null_columns() & {*self.schema.names})

    def find_contributing_rows(self, wanted: pa.Table, given: Sequence[pa.Table], alike: RowMatcher) -> list[pa.Table]:
        """Return the wanted rows and, if the result needs places, all rows before them.

        See `Collection.find_contributing_rows`.
        """
        same = alike.select_matches(given[0], wanted, self.inputs[0].schema.names)
        cut = pc.sum(same.column(DIFF)) != pc.sum(wanted.column(DIFF))
        return [self._select_preceding_rows(given[0], wanted, alike) if self.rank_name or self.offset or cut else same]

    def _select_preceding_rows(self, rows: pa.Table, wanted: pa.Table, alike: RowMatcher) -> pa.Table:
        """Select the rows of the wanted groups, up to the last wanted row of each group. O(rows)."""
        every = copy(self)
        every.k, every.offset, every.rank_name = self.k + self.offset, 0, self.rank_name or TIMES
        mine = alike.select_matches(rows, wanted, self.partition_by)
        n, names = mine.num_rows, self.inputs[0].schema.names
        context = OperatorContext(alike.secret, self.time_type, frozenset([*names, every.rank_name]))
        given = Updates(mine.drop_columns([DIFF]), np.zeros(n, np.int32), mine.column(DIFF).to_numpy(), ints(0))
        ranked = RunningTop(every, context).compute([given], 0)[0].rows
        ranks = np.asarray(to_array(ranked.column(every.rank_name)))
        asked = np.flatnonzero(alike.mark_matches(ranked, wanted, self.schema.names))
        (group,) = alike.assign_row_numbers((ranked, self.partition_by))
        last = np.zeros(group.max(initial=0) + 1, np.int64)
        np.maximum.at(last, group[asked], ranks[asked])
        kept = ranked.take(pa.array(np.flatnonzero(ranks <= last[group])))
        return alike.select_matches(rows, kept, names)

    def open(self, context: OperatorContext) -> RunningOperator:
        """See `Operator.open`."""
        return RunningTop(self, context)


def _check_row_count(value: Any, name: str, least: int, most: int) -> int:
    """Check that ``k`` or ``offset`` is a whole number in its range. Raises `SpecError`."""
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        raise SpecError("top", Option(name) + f" is {value!r:.99}", f"use a whole number from {least:,} to {most:,}")
    return value


class RunningTop(RunningOrderedGroups):
    """A running top.  State: all input rows, by group and order.

    >>> from ddflow.columns.hashing import Secret
    >>> from ddflow.plan.plan import Plan
    >>> from ddflow.plan.inputs.spec import Upsert
    >>> from ddflow.operators.updates import narrow_ints, ints
    >>> plan = Plan()
    >>> sales = plan.upserts("sales", {"id": pa.int64(), "city": pa.string(), "n": pa.int64()}, Upsert(key="id"))
    >>> best = sales.top(1, by=["n desc"], partition_by=["city"])
    >>> top = best.open(OperatorContext(Secret(1, 2), pa.int64(), frozenset(["city", "n"])))
    >>> rows = pa.table({"id": [1, 2, 3], "city": ["Bern", "Bern", "Chur"], "n": [5, 7, 1]}, schema=sales.schema)
    >>> out, change = top.compute([Updates(rows, narrow_ints(0, 0, 0), ints(1, 1, 1), ints(5))], 5)
    >>> top.apply([change], upper=6, since=5)
    >>> out, _ = top.compute([Updates(rows.slice(1, 1), narrow_ints(0), ints(-1), ints(6))], 6)
    >>> out.rows.to_pylist(), out.diffs.tolist()
    ([{'city': 'Bern', 'n': 7}, {'city': 'Bern', 'n': 5}], [-1, 1])
    """

    def __init__(self, node: Top, context: OperatorContext) -> None:
        row, self.rank_name = node.inputs[0].schema, node.rank_name
        self.offset, self.limit = np.int64(node.offset), np.int64(node.offset + node.k)
        ways = RowOrder(row, node.partition_by, node.by, context.secret)
        super().__init__(node.inputs[0], node.partition_by, ways, node.verb, context.threads)
        self.wanted = pa.schema([field for field in row if field.name in context.wanted])

    def compute(self, inputs: Sequence[Updates], since: int) -> tuple[Updates, ArrangementChange]:
        """See `RunningOperator.compute`. Raises `NegativeMultiplicity`, `CountOverflow`.

        O(u log u + g (runs + p)) for u updates in g groups and p = ``offset + k``, if each group has few times. Each
        further time at which a group's first rows change adds O(p).
        """
        updates, change = super().compute(inputs, since)
        return self._compute_updates(self.group_updates(updates, self.keys), updates), change

    def _compute_updates(self, by: GroupSortedUpdates, updates: Updates) -> Updates:
        """Compute the updates of the output."""
        groups, times = self._find_groups(by, updates), updates.times
        pool = add_step_rows(self.output_arrangement.slots.pool, updates)
        found = self._find_first_rows(groups, pool, int(self.limit), places=True)
        chosen, begins = groups.sort_changes(found)
        told = begins, found.place[chosen], by.ranks[chosen], found.counts[chosen]
        windows, room = np.empty((found.held.size, 3), np.int64), 4 * chosen.size + 64
        while True:
            out: Any = [np.empty(room, np.int32), *(np.empty(room, np.int64) for _ in range(3))]
            limits = self.offset, self.limit, self.rank_name is not None
            n = compute_window_updates(found.ends, found.held.copy(), *told, *limits, windows, *out)
            if n <= room:
                break
            room = n
        ranks, rows, diffs, places = (each[:n] for each in out)
        order = sort_retractions_first(ranks, diffs, times.size)
        shown = self._gather_output(pool, found.references[rows[order]], self.wanted, places[order])
        return Updates(shown, ranks[order], diffs[order], times)

    def look_up_group(self, high: Words, low: Words) -> RowsByGroup:
        """Look up the rows on the first places; see `ReadableNode.look_up_group`.

        O(runs log rows + ``offset + k``), and the rows that tie with the last place.
        """
        found = self._look_up_first_rows(high, low, int(self.limit), places=True)
        return RowsByGroup(found.references, found.held, found.ends)

    def _compute_group_output(self, arranged: Arrangement, found: RowsByGroup) -> Updates:
        """See `RunningOrderedGroups._compute_group_output`.

        Only the visible rows and rows that tie with a visible row are gathered.
        """
        pool, references = arranged.slots.pool, found.references
        held, before = np.minimum(found.values, self.limit), np.zeros(1, np.int64)
        if references.size > 1:
            heads, first = found.mark_first_rows(self.ways.tied)
            if found.order.size:
                # Keep or drop rows with equal order words together, because `sort_ties` can move any of these rows to
                # the front.
                kept = np.flatnonzero(_count_places_before(held, heads)[first][np.cumsum(first) - 1] < self.limit)
                references, held, heads = references[kept], held[kept], heads[kept]
                if (places := self.ways.sort_ties(pool, references, (~first[kept]).astype(np.uint8))) is not None:
                    references, held = references[places], held[places]
            before = _count_places_before(held, heads)
        begin = np.maximum(before, self.offset)
        shown = np.maximum(np.minimum(before + held, self.limit) - begin, 0)
        if self.rank_name is None:
            some = np.flatnonzero(shown)
            return as_updates(gather_or_slice(pool, references[some], self.row))._replace(diffs=shown[some])
        rows = np.repeat(np.arange(shown.size), shown)
        places = begin[rows] + np.arange(rows.size) - (np.cumsum(shown) - shown)[rows]
        return as_updates(self._gather_output(pool, references[rows], self.row, places))

    def _gather_output(self, pool: RowPool, references: Ints, row: pa.Schema, places: Ints) -> pa.Table:
        """Gather the output rows. ``row``: the wanted columns. ``places``: the place of each row, counted from 0."""
        columns = gather_arrays(pool, references, row)
        if self.rank_name is None:
            return pa.Table.from_arrays(columns, schema=row)
        rank = pa.field(self.rank_name, pa.int64(), nullable=False)
        return pa.Table.from_arrays([*columns, pa.array(places + 1)], schema=row.append(rank))


def _count_places_before(held: Ints, heads: Any) -> Ints:
    """Count the places before each row.  ``heads``: bool[n], true at the first row of a group."""
    ends = np.cumsum(held)
    before: Ints = ends - held
    before -= before[heads][np.cumsum(heads) - 1]
    return before
