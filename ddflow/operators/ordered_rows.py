"""Arrange rows with multiplicities by group, sorted within each group.

The arrangement holds each row once, with its multiplicity, positive or negative. The identity of a row consists of a
128-bit hash of its group, the order words, and a 128-bit hash of the row. The hash of the row is absent if the order
words identify the row within its group. Therefore the rows of a group are adjacent and sorted. Type-2 history and
look-ups keep their rows in this way.

Guarantees: rows with a null in a group column form a group, as with any other value. Equal keys have equal words, even
if their columns have other names or integer widths. `RunningOrderedRows.fold_updates` leaves the state unchanged until
the arrangement applies the change.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from ddflow.columns.hashing import Ints, Narrow, RowHasher, Secret, Words
from ddflow.columns.layout import Arena
from ddflow.columns.names import TIMES
from ddflow.columns.order_words import OrderColumn, compute_order_words, count_order_words
from ddflow.columns.rows import RowPool, Rows
from ddflow.columns.schema import column_arrays
from ddflow.columns.sorting import SortedRows, sort_by_words
from ddflow.kernels import accumulate as kernels
from ddflow.kernels.resolve import LIVE, OCCUPIED
from ddflow.kernels.sort import number_groups
from ddflow.operators.base import Hashes, RunningCountedRows, as_updates
from ddflow.operators.row_order import find_order_type
from ddflow.operators.updates import Updates, build_count_overflow
from ddflow.trace.arrangement import Arrangement
from ddflow.trace.batch import ArrangementChange
from ddflow.trace.differences import COUNTED
from ddflow.trace.group_rows import find_group_rows
from ddflow.trace.ordered_index import RowsByGroup

KINDS: Any = (np.int32, np.int64, np.int64, np.int64)
"""The types of the arrays that the fold writes: ranks, rows, multiplicities and row numbers."""


class RowChanges(NamedTuple):
    """The effect of a step on m distinct rows, sorted by identity, with the c changes of their multiplicities."""

    change: ArrangementChange
    """The change to apply."""
    by: SortedRows
    """The groups of the distinct rows, and the position where each identity begins.

    ``permutation``: the numbers of the rows.
    """
    order: Ints
    """int64[m, w]: the identity words after the first two."""
    rows: Ints
    """int64[c]: for each change of a row's multiplicity at a time, one of its updates, ascending in time."""
    ranks: Narrow
    """int32[c]: the ranks of the times."""
    counts: Ints
    """int64[c]: the row's multiplicity after the change, or 0 if the row has disappeared."""
    numbers: Ints
    """int64[c]: the changed row, as a position in ``by``."""
    prior: Ints
    """int64[m]: the rows' multiplicities before the step, by position in ``by``."""
    references: Ints
    """int64[m]: references to the rows that existed before the step."""


class RunningOrderedRows(RunningCountedRows):
    """An operator whose state consists of rows with multiplicities, by group and sorted within each group.

    ``row``: the columns. ``by``: the group columns, possibly none. ``order``: the order within a group. ``whole``:
    whether the order words identify a row within its group.

    >>> from ddflow.operators.updates import narrow_ints, ints
    >>> schema = pa.schema({"city": pa.string(), "id": pa.int64()})
    >>> rows = RunningOrderedRows(schema, ["city"], [OrderColumn("id", False, True)], Secret(1, 2))
    >>> table = pa.table({"city": ["Bern", "Bern"], "id": [7, 3]}, schema=schema)
    >>> folded = rows.fold_updates(Updates(table, narrow_ints(0, 0), ints(1, 2), ints(5)), since=5)
    >>> rows.apply([folded.change], upper=6, since=5)
    >>> rows.look_up_groups(*rows.keys.compute_identities([pa.array(["Bern"])], 1)).values.tolist()
    [2, 1]
    """

    def __init__(
        self, row: pa.Schema, by: Sequence[str], order: Sequence[OrderColumn], secret: Secret, whole: bool = False
    ) -> None:
        self.row, self.by, self.order, self.secret, self.hashed = row, list(by), list(order), secret, not whole
        # The fields are made nullable, so that all keys have two words, and the keys of two collections have the same
        # form.
        loose = pa.schema([field.with_nullable(True) for field in row])
        self.keys = RowHasher(pa.schema([loose.field(name) for name in by]), secret)
        self.whole, self.schema = RowHasher(loose, secret), pa.schema([*row, COUNTED])
        self.ordered = pa.schema([(each.name, find_order_type(row.field(each.name).type)) for each in order])
        words = sum(count_order_words(field.type, field.name) for field in self.ordered) + 2 * self.hashed
        self.arrangements, self.arena = (Arrangement(self.schema, wide=True, words=words, ordered=True),), Arena()
        self.given, self.fields, self.identified = RowPool(row), list(loose), row

    def look_up_groups(self, high: Words, low: Words) -> RowsByGroup:
        """Look up the rows of groups, by ascending identity words; see `ReadableNode.look_up_groups`."""
        return find_group_rows(self.output_arrangement, high, low)

    def look_up_group(self, high: Words, low: Words) -> RowsByGroup:
        """See `ReadableNode.look_up_group`.  O(log entries + rows)."""
        return find_group_rows(self.output_arrangement, high, low)

    def fold_updates(self, updates: Updates, since: int) -> RowChanges:
        """Add the updates of a step to the stored multiplicities.

        The state stays unchanged. O(n log n). Raises `CountOverflow`.
        """
        n, arena, arranged = updates.diffs.size, self.arena, self.output_arrangement
        columns = column_arrays(updates.rows, self.row.names)
        table = pa.Table.from_arrays(columns, schema=pa.schema(self.fields))
        self.given.set_batch(0, Rows.from_columns(columns, self.given.shape, n))
        arena.reset()
        high, low = self.whole.compute_identities(columns, n)
        number, first = number_identities(high, low, arena)
        by, order = self._sort_distinct_rows(table, high, low, first, n)
        prior = arranged.look_up_keys(by.high, by.low, by.starts[:-1], arena, order=order)
        m, empty = first.size, arena.choose_allocator(n)
        counts: Ints = empty(m, np.int64)
        before = np.where(prior.reference & LIVE != 0, prior.value.view(np.int64), 0)
        counts[by.permutation] = before
        since_rank = np.int64(np.searchsorted(updates.times, since, side="right") - 1)
        up, down = [empty(2 * n, kind) for kind in KINDS], [empty(n, kind) for kind in KINDS]
        work: Any = (empty(m, np.int64), empty(n, np.int64), *up, *down, empty(m, np.int64))
        changed, versions, refused = kernels.update_group_counts(
            number, updates.ranks, updates.diffs, counts, since_rank, *work
        )
        if refused >= 0:
            raise build_count_overflow(table, refused)
        place = np.empty(m, np.int64)
        place[by.permutation] = np.arange(m)
        change = self._build_change(updates, by, order, prior, place, [column[:versions] for column in down])
        change = change._replace(live_added=int(np.count_nonzero(counts)) - int(np.count_nonzero(before)))
        ranks, rows, times, diffs = (column[:changed] for column in up)
        # A retraction followed by an insertion is one change of the multiplicity. A retraction alone sets the
        # multiplicity to 0.
        same = np.zeros(changed, bool)
        same[:-1] = (diffs[:-1] < 0) & (diffs[1:] > 0) & (rows[:-1] == rows[1:])
        kept = np.flatnonzero(~same)
        times = np.where(diffs[kept] > 0, times[kept], 0)
        numbers = place[number.take(rows[kept])]
        self.given.set_batch(0, None)
        held = prior.reference & (LIVE - 1) & ~OCCUPIED
        return RowChanges(change, by, order, rows[kept], ranks[kept], times, numbers, before, held)

    def hash_rows(self, rows: pa.Table | pa.RecordBatch) -> Hashes:
        """Return the words of the group, and the multiplicities; see `ReadableNode.hash_rows`.

        If no column is missing, the identity words after the first two are returned as well.
        """
        high, low = self.keys.identify_rows(rows)
        times = np.asarray(rows.column(TIMES).fill_null(0)).view(np.uint64)
        if not set(self.row.names) <= set(rows.schema.names):
            return high, low, times  # a file that was written before the rows got more columns
        return high, low, times, self._compute_identity_words(rows, *self.whole.identify_rows(rows))

    def to_output_rows(self, arranged: pa.Table) -> Updates:
        """Return each row with its multiplicity; see `ReadableNode.to_output_rows`."""
        (times,) = column_arrays(arranged, [TIMES])
        return as_updates(arranged)._replace(diffs=times.to_numpy())

    def _compute_identity_words(self, rows: Any, high: Words, low: Words) -> Ints:
        """Compute the identity words after the first two, as int64[n, w].

        ``high``, ``low``: the two words of the row's own hash.
        """
        ordered = self.ordered
        words = compute_order_words(rows.select(ordered.names).cast(ordered), self.order) if self.order else None
        if not self.hashed and words is not None:
            return words.view(np.int64)
        mine = [high.reshape(-1, 1), low.reshape(-1, 1)]
        return np.hstack(mine if words is None else [words, *mine]).view(np.int64)

    def _sort_distinct_rows(
        self, table: pa.Table, high: Words, low: Words, first: Ints, n: int
    ) -> tuple[SortedRows, Ints]:
        """Sort the distinct rows by identity.  ``high``, ``low``: the last two words of the identities."""
        words = self._compute_identity_words(table, high, low)
        # Sorting by one word first is faster than sorting by several words within groups.
        before = np.argsort(words[:, 0].view(np.uint64).take(first))
        rows = first.take(before)
        groups = [each.take(rows) for each in self.keys.compute_identities(column_arrays(table, self.by), n)]
        words = words.take(rows, 0)
        by = sort_by_words(groups[0], groups[1], words, self.arena)
        words = words.take(by.permutation, 0)
        return by._replace(permutation=before.take(by.permutation).astype(np.int32)), words


def number_identities(high: Words, low: Words, arena: Arena) -> tuple[Narrow, Ints]:
    """Assign numbers to distinct identities. O(n) expected.

    Return the number of each row, and the first row of each number.
    """
    n = high.size
    bits, empty = max(n.bit_length() + 1, 2), arena.choose_allocator(n)
    table, number, first = empty(1 << bits, np.int32), empty(n, np.int32), empty(n, np.int64)
    table[:] = -1
    m = number_groups(high, low, np.int64(bits), table, number, first)
    return number, first[:m]


def add_step_rows(pool: RowPool, updates: Updates) -> RowPool:
    """Add a step's updates to the pool as batch 0. Missing columns become nulls. O(columns)."""
    columns = complete_columns(updates.rows, pool.schema)
    return pool.with_events(Rows.from_columns(columns, pool.shape, updates.diffs.size))


def complete_columns(rows: Any, schema: pa.Schema) -> list[pa.Array]:
    """Return the columns of a schema, with nulls for those that the rows lack. O(columns)."""
    there, n = set(rows.schema.names), rows.num_rows
    return [
        column_arrays(rows, [field.name])[0] if field.name in there else pa.nulls(n, field.type) for field in schema
    ]
