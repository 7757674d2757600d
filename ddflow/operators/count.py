"""Count the rows of each group, and emit the changes as differences.

When a group's count changes, the step retracts the row with the old count and inserts a row with the new count. A group
whose count is 0 has no row. The arrangement holds one live version for each group: its columns and its count. The count
is the value word of the group's index entry, as in McSherry, "Upserts in differential dataflow", section "Counting".

A retraction takes its group columns from the update that caused the change. The columns of this update are canonically
equal to the stored columns.

Guarantees: the input need not be consolidated, counts can be negative (after ``negate``), and sums are checked for
overflow.
"""

from collections.abc import Sequence
from typing import Any, cast

import numpy as np
import pyarrow as pa

from ddflow.columns.hashing import NONE, Ints, RowHasher, Secret, build_hash_plan, has_two_word_identities
from ddflow.columns.layout import SMALL, Arena, Column, ColumnBuffers, to_arrow_arrays
from ddflow.columns.names import check_column_names, check_columns_exist, parse_column_names
from ddflow.columns.row_views import HeldRows
from ddflow.columns.rows import RowPool, Rows, gather_columns_of_pool
from ddflow.columns.schema import column_arrays
from ddflow.columns.sorting import SortedRows, sort_by_identity
from ddflow.columns.threads import ALONE, Threads
from ddflow.errors import ErrorText, Option, SpecError
from ddflow.kernels import accumulate as kernels
from ddflow.kernels.resolve import LIVE, Prior
from ddflow.kernels.sort import order_by_rank
from ddflow.kernels.step import count_rows
from ddflow.operators.base import (
    GroupOperator,
    Hashes,
    OperatorContext,
    RunningOperator,
    register_operator,
)
from ddflow.operators.updates import INT64, Updates, build_count_overflow, number_identities
from ddflow.plan.collection import Collection, Columns
from ddflow.plan.text.formulas import JsonRecord
from ddflow.trace.arrangement import Arrangement
from ddflow.trace.batch import ArrangementChange, Batch

KINDS: Any = (np.int32, np.int64, np.int64, np.int64)
"""The types of the arrays that `update_group_counts` writes: ranks, rows, multiplicities and row numbers."""


@register_operator
class Count(GroupOperator):
    """The operator of `Collection.count`.  ``by``: the group columns."""

    verb, keeps = "count", True

    def __init__(self, of: Collection, by: str | Sequence[str] | None = None, name: str = "count") -> None:
        self.by = list(of.schema.names if by is None else parse_column_names(by, "count", "by"))
        check_columns_exist(self.by, of.schema.names, "count by")
        if name in self.by:
            raise SpecError(
                "count",
                f"a group column already has the name {name!r}",
                ErrorText("choose another name with ", Option("name")),
            )
        check_column_names([*self.by, name], "count")
        self.name = name
        self.groups = pa.schema([of.schema.field(c) for c in self.by])
        super().__init__(of.flow, pa.schema([*self.groups, pa.field(name, pa.int64(), nullable=False)]), [of], True)
        self.grows = False

    def to_json(self, formulas: Any) -> dict[str, Any]:
        """Write the group columns and the name of the count column as JSON."""
        return {"by": self.by, "name": self.name}

    @classmethod
    def from_json(cls, inputs: Sequence[Collection], record: JsonRecord) -> Collection:
        """See `Collection.from_json`."""
        return inputs[0].count(record.read_texts("by"), name=record.read_text("name"))

    @classmethod
    def format_arguments(cls, record: JsonRecord, inputs: Sequence[str]) -> str:
        """Render the group columns as text, and the name of the count column unless it is the default."""
        named = "" if record.read_text("name") == "count" else f", name={record.read_text('name')!r}"
        return f"by={record.read_texts('by')}{named}"

    def find_read_columns(self, wanted: set[str]) -> list[set[str]]:
        """Return the group columns."""
        return [set(self.by)]

    def find_lookup_columns(self) -> Columns | None:
        """Return the group columns; see `Collection.find_lookup_columns`."""
        return tuple(self.by)

    def open(self, context: OperatorContext) -> RunningOperator:
        """See `Operator.open`."""
        return RunningCount(self.groups, self.name, context.secret, context.threads)


class RunningCount(RunningOperator):
    """A running count.  State: one row for each group.

    ``groups``: the group columns, possibly none.  ``name``: the name of the count column.

    >>> import pyarrow as pa
    >>> from ddflow.operators.updates import narrow_ints, ints
    >>> count = RunningCount(pa.schema({"v": pa.string()}), "count", Secret(1, 2))
    >>> out, change = count.compute([Updates(pa.table({"v": ["a", "a", "b"]}), narrow_ints(0, 0, 0), ints(1, 1, 1),
    ...     ints(5))], 5)
    >>> count.apply([change], upper=6, since=5)
    >>> out, _ = count.compute([Updates(pa.table({"v": ["a"]}), narrow_ints(0), ints(-1), ints(6))], 6)
    >>> out.to_table(count.schema, pa.int64()).to_pylist()
    [{'v': 'a', 'count': 2, '_time': 6, '_diff': -1}, {'v': 'a', 'count': 1, '_time': 6, '_diff': 1}]
    """

    def __init__(self, groups: pa.Schema, name: str, secret: Secret, threads: Threads = ALONE) -> None:
        self.groups, self.name, self.secret = groups, name, secret
        self.schema = pa.schema([*groups, pa.field(name, pa.int64(), nullable=False)])
        self.arrangements, self.arena = (Arrangement(self.schema, has_two_word_identities(groups), 0),), Arena()
        self.arrangements[0].set_threads(threads)
        self.tracked, self.keys, self.identified = [name], RowHasher(groups, secret, threads), groups
        self.hashing = build_hash_plan(groups, groups.names)
        self.given = RowPool(groups)
        self.given.threads = threads
        self.gathered = [self.given.describe_column(field.with_nullable(True)) for field in groups]
        self.room, self.room_rows, self.bits = cast("tuple[Any, ...]", ()), -1, 0
        """Scratch memory of a small step, its number of rows, and the bits for its sort."""

    def compute(self, inputs: Sequence[Updates], since: int) -> tuple[Updates, ArrangementChange]:
        """See `RunningOperator.compute`.  O(updates).  Raises `CountOverflow`."""
        updates, n, arena, arranged = inputs[0], inputs[0].diffs.size, self.arena, self.arrangements[0]
        # Do not call Arrow's cast, which breaks lists of nulls. A cast is not needed, because the types differ at most
        # in nullability.
        groups = column_arrays(updates.rows, self.given.shape.names)
        rows = Rows.from_columns(groups, self.given.shape, n)
        self.given.set_batch(0, rows)
        if n < SMALL and self.hashing is not None and arranged.is_indexed:
            return self._count_few_rows(updates, rows, since)
        arena.reset()
        empty = arena.choose_allocator(n)
        high, low = self.keys.compute_identities(groups, n)
        number, first = number_identities(high, low, arena)
        ids = high.take(first), low.take(first) if low.size else low
        by = sort_by_identity(*ids, arena, self.keys.threads)
        prior = arranged.look_up_keys(by.high, by.low, by.starts[:-1], arena)
        m = first.size
        counts: Ints = empty(m, np.int64)
        counts[by.permutation] = np.where(prior.reference & LIVE != 0, prior.value.view(np.int64), 0)
        lived = int(np.count_nonzero(counts))
        since_rank = np.int64(np.searchsorted(updates.times, since, side="right") - 1)
        up, down = [empty(2 * n, kind) for kind in KINDS], [empty(n, kind) for kind in KINDS]
        scratch, last = (empty(m, np.int64), empty(n, np.int64)), empty(m, np.int64)
        given = updates.ranks, updates.diffs, counts, since_rank
        work: Any = (*given, *scratch, *up, *down, last)
        changed, versions, refused = kernels.update_group_counts(number, *work)
        if refused >= 0:
            raise build_count_overflow(pa.RecordBatch.from_arrays(groups, schema=self.groups), refused)
        ranks, rows, values, diffs = [column[:changed] for column in up]
        made = pa.Table.from_arrays(to_arrow_arrays(self._lay_out_columns(rows, values)), schema=self.schema)
        out = Updates(made, ranks, diffs.copy(), updates.times)
        place = empty(m, np.int32)
        place[by.permutation] = np.arange(m, dtype=np.int32)
        change = self._build_change(updates, by, prior, place, [column[:versions] for column in down])
        self.given.set_batch(0, None)
        return out, change._replace(live_added=int(np.count_nonzero(counts)) - lived)

    def _count_few_rows(self, updates: Updates, groups: Rows, since: int) -> tuple[Updates, ArrangementChange]:
        """Do the work of `compute` for a small step, in one call of a kernel."""
        _, ranks, diffs, times = updates
        n, arranged = diffs.size, self.arrangements[0]
        if self.room_rows != n:
            bits = max((n - 1).bit_length(), 1)
            sizes = (6 * n + 1 + (1 << bits), np.int32), (5 * n, np.uint64), (13 * n, np.int64)
            self.room = tuple(np.empty(*size) for size in sizes)
            self.room_rows, self.bits = n, bits
        narrow, _, long = self.room
        made = np.empty(2 * n, np.int64), np.empty(2 * n, np.int64)
        ids, seconds, stamps = np.empty(n, np.uint64), np.empty(n * self.keys.wide, np.uint64), np.empty(n, np.int64)
        live, values = np.empty(n, np.uint8), np.empty(n, np.int64)
        given: Any = groups.addresses, self.hashing, *self.keys.secret, ranks, diffs, times, since, self.bits
        work: Any = *self.room, *made, ids, seconds, stamps, live, values
        changed, m, refused, g, grown = count_rows(*arranged.index.probe, *given, *work)
        if refused >= 0:
            raise build_count_overflow(groups.table, refused)
        counts = made[0][:changed]
        shown = self._lay_out_columns(long[:changed], counts)
        for i, column in enumerate(shown):
            if column.__class__ is ColumnBuffers:
                shown[i] = pa.Array.from_buffers(*column)
        out = HeldRows(cast("list[pa.Array]", shown), self.schema)
        stored = self._lay_out_columns(long[2 * n : 2 * n + m], values[:m])
        rows = Rows.from_columns(stored, arranged.slots.pool.shape, m)
        if m < n:
            ids, stamps, live, values = ids[:m], stamps[:m], live[:m], values[:m]
            seconds = seconds[:m] if seconds.size else seconds
        batch = Batch(ids, seconds, stamps, live, NONE, np.empty((m, 0), np.int64), rows)
        last, place = long[3 * n : 3 * n + g], long[4 * n : 4 * n + g]
        self.given.set_batch(0, None)
        change = batch, values.view(np.uint64), last, place, arranged.index.built, grown, 0
        return (
            tuple.__new__(Updates, (out, narrow[:changed], made[1][:changed], times)),
            tuple.__new__(ArrangementChange, change),
        )

    def _build_change(
        self, updates: Updates, by: SortedRows, prior: Prior, place: Ints, versions: list[Any]
    ) -> ArrangementChange:
        """Build the versions, sorted by identity and then time, and mark the last version of each identity.

        ``place``: the position in ``by`` to which each number belongs.
        """
        ranks, rows, values, numbers = versions
        at = place.take(numbers).astype(np.int32, copy=False)
        sorting = np.empty(at.size, np.int64)
        order_by_rank(at, np.empty(0, np.int64), np.int64(place.size), sorting)
        at, values = at.take(sorting), values.take(sorting)
        last = np.full(place.size, -1)
        last[at] = np.arange(at.size)
        batch = Batch(
            by.high.take(at),
            by.low.take(at) if by.low.size else by.low,
            updates.times.take(ranks.take(sorting)),
            (values != 0).astype(np.uint8),
            NONE,
            np.empty((at.size, 0), np.int64),
            Rows.from_columns(
                self._lay_out_columns(rows.take(sorting), values), self.arrangements[0].slots.pool.shape, at.size
            ),
        )
        return ArrangementChange(
            batch, values.view(np.uint64), last, prior.place, self.arrangements[0].index.built, 0, 0
        )

    def _lay_out_columns(self, rows: Ints, counts: Ints) -> list[Column]:
        """Gather the rows of the step at the positions ``rows``, and append their numbers as a column."""
        columns = gather_columns_of_pool(self.given, rows, self.gathered)
        buffers = [None, pa.py_buffer(counts.copy())]
        columns.append(tuple.__new__(ColumnBuffers, (INT64, counts.size, buffers, 0)))
        return columns

    def hash_rows(self, rows: pa.Table | pa.RecordBatch) -> Hashes:
        """See `RunningOperator.hash_rows`.  The hash is the count itself."""
        return *self.keys.identify_rows(rows), np.asarray(rows.column(self.name).fill_null(0)).view(np.uint64)
