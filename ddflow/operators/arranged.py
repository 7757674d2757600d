"""Arrange a collection by some of its columns for joins, and pass its updates on unchanged.

Requests for the same columns of a collection share one node, so the rows are stored once. The output equals the input
row for row. Multiplicities can be negative, unless the verb that requested the arrangement forbids negative
multiplicities.

>>> import ddflow as dd
>>> orders = dd.Flow().upserts("orders", {"id": int, "city": str}, dd.Upsert(key="id"))
>>> orders.arrange("city"), orders.arrange(["city"]) is orders.arrange("city")
(Arrange(id int64, city string), True)
"""

from collections.abc import Sequence
from operator import itemgetter
from typing import Any, Final, cast

import numpy as np
import pyarrow as pa

from ddflow.columns.hashing import NONE, Ints, RowHasher, Secret, Words
from ddflow.columns.layout import BULK, Arena
from ddflow.columns.names import TIMES, check_column_names, check_columns_exist, parse_column_names
from ddflow.columns.row_views import HeldRows
from ddflow.columns.rows import RowPool, Rows, gather_columns_of_pool
from ddflow.columns.schema import column_arrays
from ddflow.columns.sorting import Spans, sum_groups
from ddflow.columns.threads import Threads
from ddflow.kernels.differences import SummedRows, net_differences
from ddflow.kernels.join import GroupRows, PriorRows, SortedUpdates, list_group_rows
from ddflow.operators.base import (
    Hashes,
    OperatorContext,
    RowPreservingOperator,
    RunningOperator,
    as_updates,
    register_operator,
)
from ddflow.operators.updates import (
    GroupSortedUpdates,
    Updates,
    build_count_overflow,
    complete_columns,
    refuse_negative_counts,
)
from ddflow.plan.collection import Collection, Columns, refuse_forgetting_inputs
from ddflow.plan.text.formulas import JsonRecord
from ddflow.trace.batch import (
    ArrangementChange,
    RowsByGroup,
    make_difference_change,
    mark_first_of_keys,
    repeat_value,
    to_identity_words,
)
from ddflow.trace.differences import DifferenceArrangement, sum_absolutes

NETTED: Final = 15
"""The approximate nanoseconds to add up the diffs of equal rows, for each update."""
LARGE: Final = 2.0**62
"""If the absolute diffs of an arrangement add up to less than this, no multiplicity overflows int64."""


@register_operator
class Arrange(RowPreservingOperator):
    """The operator of `Collection.arrange`. ``by``: the columns of the arrangement.

    ``refuses``: the verb that forbids negative multiplicities, or "" if none does.
    """

    verb, keeps = "arrange", True

    def __init__(self, of: Collection, by: str | Sequence[str], refuses: str = "") -> None:
        self.by, self.refuses = parse_column_names(by, self.verb, "by"), refuses
        check_columns_exist(self.by, of.schema.names, f"arrange({list(self.by)})")
        check_column_names(self.by, self.verb)
        check_column_names([*of.schema.names, TIMES], self.verb)
        refuse_forgetting_inputs(f"arrange({list(self.by)})", "the state would keep these rows forever", of)
        super().__init__(of.flow, of.schema, [of], of.consolidated)
        self.unique, self.positive = of.unique, of.positive or bool(refuses)

    def to_json(self, formulas: Any) -> dict[str, Any]:
        """Write the columns, and the verb that forbids negative multiplicities, as JSON."""
        return {"by": list(self.by), "refuses": self.refuses}

    @classmethod
    def from_json(cls, inputs: Sequence[Collection], record: JsonRecord) -> Collection:
        """See `Collection.from_json`."""
        return inputs[0]._apply_verb(cls.verb, record.read_texts("by"), record.read_text("refuses"))

    @classmethod
    def format_arguments(cls, record: JsonRecord, inputs: Sequence[str]) -> str:
        """Render the columns as text."""
        return f"by={record.read_texts('by')}"

    def exchange(self) -> list[Columns | None]:
        """Return the columns of the arrangement."""
        return [self.by]

    def find_pushdown_columns(self, at: int) -> dict[str, str]:
        """Return all columns, because the output rows are the input rows; see `Collection.find_pushdown_columns`."""
        return {name: name for name in self.schema.names}

    def find_lookup_columns(self) -> Columns | None:
        """See `Collection.find_lookup_columns`."""
        return self.by

    def unique_by(self) -> list[Columns]:
        """Return the keys of the input; see `Collection.unique_by`."""
        return self.inputs[0].unique_by()

    def open(self, context: OperatorContext) -> RunningOperator:
        """See `Operator.open`."""
        return RunningArrange(self, context)


class RunningArrange(RunningOperator):
    """A running arrange.  State: the differences of the rows, by group.

    >>> from ddflow.columns.hashing import Secret
    >>> from ddflow.plan.plan import Plan
    >>> from ddflow.plan.inputs.spec import Upsert
    >>> from ddflow.operators.updates import ints, narrow_ints
    >>> people = Plan().upserts("people", {"id": pa.int64(), "city": pa.string()}, Upsert(key="id"))
    >>> rows = people.arrange("city").open(OperatorContext(Secret(1, 2), pa.int64(), frozenset()))
    >>> table = pa.table({"id": [7, 3], "city": ["Bern", "Bern"]}, schema=people.schema)
    >>> _, change = rows.compute([Updates(table, narrow_ints(0, 0), ints(1, 2), ints(5))], since=5)
    >>> rows.apply([change], upper=6, since=5)
    >>> sorted(rows.look_up_groups(*rows.keys.compute_identities([pa.array(["Bern"])], 1)).values.tolist())
    [1, 2]
    """

    def __init__(self, node: Arrange, context: OperatorContext) -> None:
        self.set_up_rows(node.schema, node.by, 2, context.secret, context.threads)
        self.refuses = "" if node.inputs[0].positive else node.refuses

    def set_up_rows(self, row: pa.Schema, by: Sequence[str], words: int, secret: Secret, threads: Threads) -> None:
        """Set the columns and the group columns.  ``words``: the number of words that identify a row in its group."""
        # The fields are made nullable, so that all keys have two words, and the keys of two collections have the same
        # form.
        self.fields = [field.with_nullable(True) for field in row]
        loose = pa.schema(self.fields)
        self.keys = RowHasher(pa.schema([loose.field(name) for name in by]), secret, threads)
        self.whole = RowHasher(loose, secret, threads)
        self.arrangements: tuple[Any, ...] = (DifferenceArrangement(row, words),)
        self.output_arrangement.set_threads(threads)
        self.given, self.identified, self.arena = RowPool(row), row, Arena()
        self.given.threads = threads
        self.gathered = list(map(self.given.describe_column, self.fields))
        self.grouped = cast("tuple[Updates, GroupSortedUpdates] | None", None)

    def compute(self, inputs: Sequence[Updates], since: int) -> tuple[Updates, ArrangementChange]:
        """See `RunningOperator.compute`.  O(n log n).  Raises `CountOverflow`, `NegativeMultiplicity`."""
        updates, arranged = inputs[0], self.output_arrangement
        by = self.group_updates(updates, self.keys)
        self._check_sums(by, updates)
        times = np.maximum(updates.times, min(since, int(updates.times[-1]))) if updates.times.size else updates.times
        high, low, words, places, _, diffs = by
        stamps, n = times.take(by.ranks), diffs.size
        # If the rows of a large step are distinct, they are already the run.
        if n < BULK or not (mark_first_of_keys(high, low, words).all() and diffs.all()):
            given: Any = high, low, to_identity_words(words), stamps, diffs, places
            out = SummedRows.allocate(n, words.shape[1], grouped=False)

            def net(spans: Spans, out: SummedRows) -> int:
                ((begin, end),) = spans
                mine: Any = *(column[begin:end] for column in given), out
                return net_differences(*mine)

            n = sum_groups([high], self.keys.threads, NETTED, net, out)
            places, diffs, words, high, low, stamps = map(itemgetter(slice(n)), cast(Any, out))
        if n and stamps[0] == stamps[-1] and (stamps == stamps[0]).all():
            stamps = repeat_value(int(stamps[0]), n, np.int64)
        columns = column_arrays(updates.rows, self.whole.names)
        self.given.set_batch(0, Rows.from_columns(columns, self.given.shape, updates.diffs.size))
        buffers = gather_columns_of_pool(self.given, places, self.gathered)
        self.given.set_batch(0, None)
        rows = Rows.from_columns(buffers, arranged.slots.pool.shape, n)
        return updates, make_difference_change(high, low, stamps, diffs, words.view(np.int64), rows)

    def group_updates(self, updates: Updates, keys: RowHasher) -> GroupSortedUpdates:
        """Sort the updates by group and row; see `ReadableNode.group_updates`. The joins of a step share the result."""
        if self.grouped is None or self.grouped[0] is not updates:
            self.arena.reset()
            rows = updates.rows
            if not set(self.whole.names).issubset(rows.schema.names):
                # A join of a later stage gets only the columns that it reads.
                rows = HeldRows(complete_columns(rows, self.identified), self.identified)
            words = self.compute_row_words(rows)
            arena = self.arena if updates.diffs.size < BULK else None  # a run can keep the memory of a large step
            self.grouped = updates, GroupSortedUpdates.sort_by_words(updates, self.keys, words, arena)
        return self.grouped[1]

    def apply(self, changes: Sequence[Any], upper: int, since: int) -> None:
        """See `RunningOperator.apply`."""
        super().apply(changes, upper, since)
        self.grouped = None

    def look_up_groups(self, high: Words, low: Words) -> RowsByGroup:
        """Look up the rows of groups; see `ReadableNode.look_up_groups`."""
        arranged: Any = self.output_arrangement
        found: RowsByGroup = arranged.find_group_rows(high, low)
        return found

    def look_up_group(self, high: Words, low: Words) -> RowsByGroup:
        """See `ReadableNode.look_up_group`.  O(runs log rows)."""
        return self.look_up_groups(high, low)

    def compute_group(self, arranged: Any, found: RowsByGroup) -> Updates:
        """See `ReadableNode.compute_group`."""
        return self.to_output_rows(arranged.gather_rows(found))

    def hash_rows(self, rows: pa.Table | pa.RecordBatch) -> Hashes:
        """Return the words of identities, without a hash of the row; see `ReadableNode.hash_rows`."""
        high, low = self.keys.identify_rows(rows)
        if not set(self.whole.names) <= set(rows.schema.names):
            return high, low, NONE  # a file that was written before the rows got more columns
        return high, low, NONE, self.compute_row_words(rows)

    def compute_row_words(self, rows: Any) -> Ints:
        """Compute the words that identify rows in their groups, as int64[n, w]."""
        return np.stack(self.whole.identify_rows(rows), axis=1).view(np.int64)

    def to_output_rows(self, arranged: pa.Table) -> Updates:
        """Return each row with its multiplicity; see `ReadableNode.to_output_rows`."""
        (times,) = column_arrays(arranged, [TIMES])
        return as_updates(arranged)._replace(diffs=times.to_numpy())

    def _check_sums(self, by: GroupSortedUpdates, updates: Updates) -> None:
        """Raise an error if a multiplicity overflows int64, or is negative although the verb forbids negative ones.

        O(n), and a look-up of the rows if the verb forbids negative multiplicities or if a sum could overflow.
        """
        arranged = cast(Any, self.output_arrangement)
        bound = arranged.bound + sum_absolutes(by.diffs)
        if bound < LARGE and not self.refuses:
            return
        begins = np.append(np.flatnonzero(mark_first_of_keys(by.high, by.low)), by.high.size)
        first = np.flatnonzero(mark_first_of_keys(by.high, by.low, by.more))
        sums = arranged.sum_rows(by.high.take(first), by.low.take(first), by.more.take(first, 0))
        there = first[sums != 0]
        starts = np.searchsorted(there, begins)
        rows = list_rows(by, begins, RowsByGroup(there, sums[sums != 0], starts, by.more.take(there, 0)))
        counts = np.repeat(rows.before, np.diff(rows.changes))
        of = np.repeat(rows.reference, np.diff(rows.changes))
        before = np.repeat(np.append(0, np.cumsum(rows.diff))[rows.changes[:-1]], np.diff(rows.changes))
        counts = counts + np.cumsum(rows.diff) - before
        if bound >= LARGE and (row := _find_overflow(rows)) >= 0:
            raise build_count_overflow(updates.rows, int(rows.reference[row]))
        if self.refuses:
            refuse_negative_counts(counts, of, updates, self.refuses)


def list_rows(by: GroupSortedUpdates, begins: Ints, held: RowsByGroup) -> GroupRows:
    """List the rows of groups with their multiplicities before the step and their changes.  O(updates + held rows).

    ``begins``: int64[g + 1], where each group begins in ``by``.  ``held``: the rows of the same groups.
    """
    n, m = by.diffs.size, held.references.size
    reference, before, to = np.empty((3, n + m + 1), np.int64)
    starts, ranks, diffs = np.empty(begins.size, np.int64), np.empty(n, np.int32), np.empty(n, np.int64)
    out = GroupRows(starts, reference, before, to, ranks, diffs)
    updates = SortedUpdates(begins, to_identity_words(by.more), by.places, by.ranks, by.diffs)
    more = to_identity_words(held.order) if by.more.shape[1] else np.empty((0, 0), np.uint64)
    e = list_group_rows(updates, PriorRows(held.begins, more, held.references, held.values), out)
    c = int(out.changes[e])
    return GroupRows(out.begins, out.reference[:e], out.before[:e], out.changes[: e + 1], out.rank[:c], out.diff[:c])


def _find_overflow(rows: GroupRows) -> int:
    """Return the first row whose multiplicity leaves int64, or -1.  O(changes)."""
    changes, diffs = rows.changes.tolist(), rows.diff.tolist()
    for row, count in enumerate(rows.before.tolist()):
        for diff in diffs[changes[row] : changes[row + 1]]:
            count += diff
            if not -(2**63) <= count < 2**63:
                return row
    return -1
