"""Compute aggregates of each group, such as sums and averages, as differences. See `RunningAggregate`.

>>> import pyarrow as pa
>>> from ddflow.operators.updates import narrow_ints, ints
>>> rows = pa.table({"v": ["a", "a", "b"], "n": [1, 2, 3]})
>>> aggregates = [bind_sql_aggregate("total", "sum(n)", rows.schema), bind_sql_aggregate("rows", "count(*)",
...     rows.schema)]
>>> running = RunningAggregate(pa.schema({"v": pa.string()}), aggregates, Secret(1, 2))
>>> out, change = running.compute([Updates(rows, narrow_ints(0, 0, 0), ints(1, 1, 1), ints(5))], 5)
>>> running.apply([change], upper=6, since=5)
>>> out, _ = running.compute([Updates(rows.slice(0, 1), narrow_ints(0), ints(-1), ints(6))], 6)
>>> out.to_table(running.shown, pa.int64()).to_pylist()
[{'v': 'a', 'total': 3, 'rows': 2, '_time': 6, '_diff': -1}, {'v': 'a', 'total': 2, 'rows': 1, '_time': 6, '_diff': 1}]
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple, Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pat

from ddflow.columns.hashing import (
    NONE,
    Ints,
    Narrow,
    RowHasher,
    Secret,
    Words,
    compute_canonical_words,
    has_two_word_identities,
    unpack_validity,
    view_words,
)
from ddflow.columns.layout import Arena, Column, to_arrow_arrays
from ddflow.columns.rows import RowPool, Rows, gather_arrays, gather_buffers, row_values
from ddflow.columns.schema import column_arrays, is_word_type
from ddflow.columns.sorting import SortedRows, sort_by_identity
from ddflow.columns.threads import ALONE, Threads
from ddflow.columns.widening import conform_to_wider_schema
from ddflow.errors import AggregateOverflow
from ddflow.kernels import accumulate as kernels
from ddflow.kernels.resolve import LIVE, Prior
from ddflow.kernels.sort import order_by_rank
from ddflow.operators.aggregates.parts import CountPart, StatePart, UpdatesByCell, ValueOverflow
from ddflow.operators.aggregates.results import ROWS, FoldedAggregate, Key, UserAggregate, bind_sql_aggregate
from ddflow.operators.base import GroupOperator, Hashes, OperatorContext, RunningOperator, as_updates, register_operator
from ddflow.operators.updates import Updates, number_identities
from ddflow.plan.aggregates import AppliedAggregate
from ddflow.plan.collection import Collection
from ddflow.plan.text.formulas import JsonRecord, find_formula_objections
from ddflow.plan.verbs.groups import check_group_columns
from ddflow.trace.arrangement import Arrangement
from ddflow.trace.batch import ArrangementChange, Batch

TALLY: Final = "_rows"
"""The name of the state column that holds the number of a group's rows.

The state columns of the parts have numbers as names.
"""


@register_operator
class Agg(GroupOperator):
    """The operator of `Collection.agg`.

    ``by``: the group columns. ``aggregates``: the aggregates, in the order of the result columns.
    """

    verb, keeps = "agg", True

    def __init__(self, of: Collection, by: Sequence[str], texts: Mapping[str, Any]) -> None:
        self.by = check_group_columns(of, by, texts)
        self.aggregates = [_bind_aggregate(name, given, of.schema) for name, given in texts.items()]
        self.groups = pa.schema([of.schema.field(c) for c in self.by])
        super().__init__(of.flow, build_result_schema(self.groups, self.aggregates), [of], True)
        self.grows = False

    def to_json(self, formulas: Any) -> dict[str, Any]:
        """Write the groups and the aggregates as JSON."""
        aggregates = [{"name": e.call.name, "sql": e.call.text} | e.to_json_entries(formulas) for e in self.aggregates]
        return {"by": self.by, "aggregates": aggregates}

    def rebuild_with_inputs(self, inputs: Sequence[Collection]) -> Collection:
        """See `Collection.rebuild_with_inputs`."""
        return inputs[0].group_by(*self.by).agg(**{each.call.name: each.given for each in self.aggregates})

    @classmethod
    def from_json(cls, inputs: Sequence[Collection], record: JsonRecord) -> Collection:
        """See `Collection.from_json`."""
        texts = {each.read_text("name"): each.read_text("sql") for each in record.read_records("aggregates")}
        return inputs[0].group_by(*record.read_texts("by")).agg(**texts)

    def find_widening_obstacles(self, narrow: Self) -> Iterator[str]:
        """Require that parts and results stay the same on the wider types; see `Collection.find_widening_obstacles`."""
        for mine, its in zip(self.aggregates, narrow.aggregates, strict=True):
            yield from mine.list_incompatibilities(its)
            for expression in mine.arguments.values():
                schemas = narrow.inputs[0].schema, self.inputs[0].schema
                kind = its.arguments[expression.text or ""].type
                yield from find_formula_objections(expression, *schemas, kind)

    @classmethod
    def format_arguments(cls, record: JsonRecord, inputs: Sequence[str]) -> str:
        """Render the groups and the aggregates as text."""
        texts = [f"{each.read_text('name')}={_render_aggregate(each)}" for each in record.read_records("aggregates")]
        return ", ".join([f"by={record.read_texts('by')}", *texts])

    def find_read_columns(self, wanted: set[str]) -> list[set[str]]:
        """Return the group columns and the columns of the aggregates' arguments."""
        read = set(self.by)
        for aggregate in self.aggregates:
            for each in aggregate.arguments.values():
                read |= set(self.inputs[0].schema.names if each.columns is None else each.columns)
        return [read]

    def open(self, context: OperatorContext) -> RunningOperator:
        """See `Operator.open`."""
        return RunningAggregate(self.groups, self.aggregates, context.secret, context.threads)


def _bind_aggregate(name: str, given: Any, schema: pa.Schema) -> FoldedAggregate:
    """Bind an aggregate of a plan to the input's columns. The aggregate is SQL text or a user's definition."""
    own = isinstance(given, AppliedAggregate)
    return UserAggregate(name, given, schema) if own else bind_sql_aggregate(name, given, schema)


def _render_aggregate(record: JsonRecord) -> str:
    sql = repr(record.read_text("sql"))
    return f"{record.read_text('python')}({sql})" if "python" in record else sql


def build_result_schema(groups: pa.Schema, aggregates: Sequence[FoldedAggregate]) -> pa.Schema:
    """Return the schema of the group and result columns."""
    return pa.schema([*groups, *(pa.field(e.call.name, e.type, nullable=e.nullable) for e in aggregates)])


class GroupedUpdates(NamedTuple):
    """The updates of a step, divided by group. Each group is divided into cells, one cell for each of its times."""

    updates: Updates
    by: SortedRows
    prior: Prior
    place: Narrow
    """int32[m]: the position of each group in ``by``."""
    folding: UpdatesByCell
    ranks: Narrow
    """int32[c]: the time ranks of the cells, ascending."""
    of: Narrow
    """int32[c]: the group of each cell."""
    rows: Ints
    """int64[c]: the first row of each cell."""


class RunningAggregate(RunningOperator):
    """A running aggregate. State: one row for each group. ``groups``: the group columns, possibly none.

    A group has an output row unless the sum of its rows' multiplicities is zero. When a result changes, the step
    retracts the old row and inserts the new one.

    The payload of a group is its number of rows and the states of its parts (`ddflow.operators.aggregates`). The value
    word is a hash of the payload. If rows that never arrived are retracted, a group can have zero rows and still have a
    state. A group with zero rows and a state is stored but has no output. An aggregation with only ``count(*)`` uses
    the operator `Count`, not this operator.
    """

    def __init__(
        self, groups: pa.Schema, aggregates: Sequence[FoldedAggregate], secret: Secret, threads: Threads = ALONE
    ) -> None:
        self.groups, self.aggregates, self.secret = groups, aggregates, secret
        self.parts: dict[Key, StatePart] = {ROWS: CountPart()}
        self.arguments: dict[str, Any] = {}
        for each in aggregates:
            self.parts |= each.parts
            self.arguments |= each.arguments
        names = [TALLY, *(f"_{i}" for i in range(1, len(self.parts)))]
        kinds = [part.kind for part in self.parts.values()]
        self.state = pa.schema([pa.field(n, kind, nullable=False) for n, kind in zip(names, kinds, strict=True)])
        self.schema, self.shown = pa.schema([*groups, *self.state]), build_result_schema(groups, aggregates)
        self.arrangements = (Arrangement(self.schema, has_two_word_identities(groups), 0),)
        self.output_arrangement.set_threads(threads)
        self.given, self.fields = RowPool(groups), [field.with_nullable(True) for field in groups]
        self.arena, self.keys = Arena(), RowHasher(groups, secret, threads)
        self.values = RowHasher(self.state, secret, threads)
        self.identified, self.made = groups, RowPool(pa.schema([*self.shown][len(groups) :]))
        self.given.threads = self.made.threads = threads

    def compute(self, inputs: Sequence[Updates], since: int) -> tuple[Updates, ArrangementChange]:
        """See `RunningOperator.compute`. O(updates), plus the cost of updating the state of each group and time.

        Raises `AggregateOverflow`, and the errors of the arguments' expressions.
        """
        step = self._group_updates(inputs[0])
        references = step.prior.reference[step.prior.reference & LIVE != 0]
        held = gather_arrays(self.output_arrangement.prepare_row_pool(), references, self.state)
        states = self._fold_parts(step, held)
        out = self._build_updates(step, states)
        return out, self._build_group_changes(step, states, since)

    def _group_updates(self, updates: Updates) -> GroupedUpdates:
        """Group the updates of a step by identity, and divide each group into cells."""
        n, arena = updates.diffs.size, self.arena
        columns = column_arrays(updates.rows, self.groups.names)
        self.given.set_batch(0, Rows.from_columns(columns, self.given.shape, n))
        arena.reset()
        empty = arena.choose_allocator(n)
        high, low = self.keys.compute_identities(columns, n)
        number, first = number_identities(high, low, arena)
        ids = high.take(first), low.take(first) if low.size else low
        by = sort_by_identity(*ids, arena, self.keys.threads)
        prior, m = self.output_arrangement.look_up_keys(by.high, by.low, by.starts[:-1], arena), first.size
        place, latest, seen = empty(m, np.int32), np.full(m, -1, np.int32), np.full(m, -1, np.int32)
        place[by.permutation] = np.arange(m, dtype=np.int32)
        lived = np.flatnonzero(prior.reference & LIVE)
        latest[by.permutation.take(lived)] = np.arange(lived.size, dtype=np.int32)
        cells, before, ranks, of = (empty(n, np.int32) for _ in range(4))
        rows = empty(n, np.int64)
        c = kernels.number_cells(number, updates.ranks, latest, seen, lived.size, cells, before, ranks, of, rows)
        folding = UpdatesByCell(cells, before[:c], updates.diffs, lived.size)
        return GroupedUpdates(updates, by, prior, place, folding, ranks[:c], of[:c], rows[:c])

    def _fold_parts(self, step: GroupedUpdates, held: Sequence[pa.Array]) -> list[pa.Array]:
        """Fold each part.

        Return the states of each part as a column: first the stored states of the groups, then the state after each
        cell.
        """
        rows = step.updates.rows
        read = set[str]().union(*(each.columns or () for each in self.arguments.values()))
        names = [name for name in rows.schema.names if name in read] or rows.schema.names[:1]
        schema = pa.schema([rows.schema.field(name) for name in names])
        given = pa.RecordBatch.from_arrays(column_arrays(rows, names), schema=schema)
        values = {text: argument(given) for text, argument in self.arguments.items()}
        out, folding = list[pa.Array](), step.folding
        for ((_, text), part), before in zip(self.parts.items(), held, strict=True):
            try:
                out.append(part.fold_updates(folding, before, values.get(text)))
            except ValueOverflow as beyond:
                raise self._build_overflow_error(step, beyond.place, text or "count(*)") from None
            folding.counts = out[0]
        return out

    def _compute_results(self, states: Sequence[pa.Array]) -> tuple[Any, list[pa.Array], tuple[int, str] | None]:
        """Mark the states that have rows, and compute their results.

        As a second result, return the position and the text of the first value outside its type, or None if all values
        fit.
        """
        kept = dict(zip(self.parts, states, strict=True))
        there, out = kept[ROWS].to_numpy() != 0, []
        for each in self.aggregates:
            try:
                out.append(each.compute_results([kept[key] for key in each.parts], there))
            except ValueOverflow as beyond:
                return there, [], (beyond.place, f"{each.call.name} = {each.call.text}")
        return there, out, None

    def _build_updates(self, step: GroupedUpdates, states: Sequence[pa.Array]) -> Updates:
        """Compute the updates of the output, in the order of times."""
        there, results, refused = self._compute_results(states)
        if refused is not None:
            raise self._build_overflow_error(step, *refused)
        before, c = step.folding.before, step.folding.before.size
        changed, empty = np.zeros(c, np.uint8), self.arena.choose_allocator(2 * c)
        for each in results:
            words = compute_canonical_words(each)[:, None] if is_word_type(each.type) else view_words(each, 2)
            kernels.mark_changes(before, words, unpack_validity(each), changed)
        cells, places, diffs = (empty(2 * c, np.int64) for _ in range(3))
        made = kernels.list_changes(before, there.view(np.uint8), changed, cells, places, diffs)
        self.made.set_batch(0, Rows.from_columns(results, self.made.shape, there.size))
        columns = [
            *self._gather_groups(step.rows.take(cells[:made])),
            *gather_buffers(self.made, places[:made], self.made.schema),
        ]
        self.made.set_batch(0, None)
        rows = pa.Table.from_arrays(to_arrow_arrays(columns), schema=self.shown)
        return Updates(rows, step.ranks.take(cells[:made]), diffs[:made].copy(), step.updates.times)

    def _gather_groups(self, rows: Ints) -> list[Column]:
        """Gather the group columns of the updates at the positions ``rows``."""
        return gather_buffers(self.given, rows, self.fields)

    def _build_group_changes(self, step: GroupedUpdates, states: Sequence[pa.Array], since: int) -> ArrangementChange:
        """Build the versions to store, in the order of identities and times.

        A cell makes a version if it changes the state.
        """
        by, prior, lived = step.by, step.prior, step.folding.held
        # Of the versions of a group with times up to ``since``, only the last one is needed.
        since_rank = np.searchsorted(step.updates.times, since, side="right") - 1
        earlier = step.folding.before[: np.searchsorted(step.ranks, since_rank, side="right")]
        needed = np.ones(step.ranks.size, bool)
        needed[earlier[earlier >= lived] - lived] = False
        at = np.flatnonzero(needed)
        groups, sorting = step.place.take(step.of.take(at)), np.empty(at.size, np.int64)
        order_by_rank(groups, np.empty(0, np.int64), np.int64(step.place.size), sorting)
        at, groups = at.take(sorting), groups.take(sorting)
        kept = [each.take(pa.array(at + lived)) for each in states]
        hashes, live = self._hash_states(kept), np.zeros(at.size, bool)
        for part, each in zip(self.parts.values(), kept, strict=True):
            live |= part.mark_nonempty(each)
        was, had, first = np.roll(hashes, 1), np.roll(live, 1), groups != np.roll(groups, 1)
        first[:1] = True
        had[first] = prior.reference[groups[first]] & LIVE != 0
        was[first] = prior.value[groups[first]]
        added = int(np.count_nonzero(live[np.roll(first, -1)])) - lived
        differs = np.flatnonzero((live != had) | (live & (was != hashes)))
        if differs.size < at.size:
            at, groups, hashes, live = at[differs], groups[differs], hashes[differs], live[differs]
            kept = [each.take(pa.array(differs)) for each in kept]
        last = np.full(step.place.size, -1)
        last[groups] = np.arange(at.size)
        payload = [*self._gather_groups(step.rows.take(at)), *kept]
        batch = Batch(
            by.high.take(groups),
            by.low.take(groups) if by.low.size else by.low,
            step.updates.times.take(step.ranks.take(at)),
            live.astype(np.uint8),
            NONE,
            np.empty((at.size, 0), np.int64),
            Rows.from_columns(payload, self.output_arrangement.slots.pool.shape, at.size),
        )
        self.given.set_batch(0, None)
        return ArrangementChange(batch, hashes, last, prior.place, self.output_arrangement.index.built, added, 0)

    def _hash_states(self, states: Sequence[pa.Array]) -> Words:
        return self.values.compute_value_hashes(states, len(states[0]))

    def hash_rows(self, rows: pa.Table | pa.RecordBatch) -> Hashes:
        """See `RunningOperator.hash_rows`. The value hash is a hash of the states."""
        return *self.keys.identify_rows(rows), self._hash_states(column_arrays(rows, self.state.names))

    def cast_state_rows(
        self, narrow: Self, rows: pa.Table | pa.RecordBatch, schema: pa.Schema, live: Any
    ) -> pa.RecordBatch:
        """Convert sums to new units without a change of value, and cast results.

        See `RunningOperator.cast_state_rows`.
        """
        # The states of deletions are arbitrary, so they become 0, empty or null.
        mask, states = pa.array(live), list[pa.Array]()
        for each in column_arrays(rows, self.state.names):
            wide = each.type.byte_width if pat.is_fixed_size_binary(each.type) else 0
            none = pa.scalar(bytes(wide) if each.type != pa.int64() else 0, each.type)
            states.append(pc.if_else(mask, each, none))
        shown, was = (pa.schema([*each.shown][len(self.groups) :]) for each in (self, narrow))
        if shown != was:
            there, results, _ = narrow._compute_results(states)
            conform_to_wider_schema(pa.Table.from_arrays(results, schema=was).filter(pa.array(there)), shown)
        parts = zip(self.parts.values(), states, narrow.parts.values(), strict=True)
        states = [part.widen_states(state, its) for part, state, its in parts]
        groups = column_arrays(rows, self.groups.names)
        return conform_to_wider_schema(pa.Table.from_arrays([*groups, *states], names=self.schema.names), schema)

    def to_output_rows(self, arranged: pa.Table) -> Updates:
        """Return the results of the groups that have rows; see `ReadableNode.to_output_rows`."""
        there, results, _ = self._compute_results(column_arrays(arranged, self.state.names))
        columns = [*column_arrays(arranged, self.groups.names), *results]
        made = as_updates(pa.Table.from_arrays(columns, schema=self.shown))
        return made if np.count_nonzero(there) == there.size else made.take(np.flatnonzero(there))

    def _build_overflow_error(self, step: GroupedUpdates, place: int, what: str) -> AggregateOverflow:
        """Build the error for a group whose value after a cell is outside its type. ``place``: the cell's state."""
        row = int(step.rows[place - step.folding.held])
        table = pa.Table.from_arrays(column_arrays(step.updates.rows, self.groups.names), schema=pa.schema(self.fields))
        found = f"{what} overflows its type for the group {row_values(table, row)}"
        return AggregateOverflow("sum", found, "cast its argument to a wider type; nothing of this step was kept")
