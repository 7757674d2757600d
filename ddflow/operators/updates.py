"""Represent the updates of a step. An update has a row, the rank of the row's time, and a diff.

Updates are sorted by time. ``times`` holds the distinct times of the step, and a rank is a position in it. All
operators share one list of times, so a rank means the same time in all operators. Until `consolidate` runs, a row can
occur several times, and its diffs can cancel.

An expression may fail only for a row that is present after all changes at a time. If an expression fails, ddflow
evaluates it again on net rows.

>>> import pyarrow as pa
>>> updates = Updates(pa.table({"v": ["a", "a", "b"]}), narrow_ints(0, 0, 1), ints(1, -1, 2), ints(5, 9))
>>> consolidate(updates, Secret(1, 2)).to_table(updates.rows.schema, pa.int64()).to_pylist()
[{'v': 'b', '_time': 9, '_diff': 2}]
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple, TypeVar

import numpy as np
import pyarrow as pa

from ddflow.columns.hashing import Ints, Narrow, RowHasher, Secret, Words, compute_identities
from ddflow.columns.layout import BULK, Arena, make_writable
from ddflow.columns.names import DIFF, TIME
from ddflow.columns.rows import RowPool, Rows, row_values
from ddflow.columns.schema import TABLES, column_arrays, to_array
from ddflow.columns.sorting import SortedRows, sort_by_identity, sort_by_words
from ddflow.columns.threads import Threads
from ddflow.errors import AggregateFailed, CountOverflow, ExpressionError, NegativeMultiplicity, NotSingle
from ddflow.kernels.accumulate import consolidate_diffs, number_groups
from ddflow.kernels.emit import map_ranks_to_times
from ddflow.kernels.sort import order_by_rank

GATHERED: Final = 20
"""The approximate nanoseconds to gather the words, rank and diff of an update."""
INT64, DIFFS = pa.int64(), pa.field(DIFF, pa.int64(), nullable=False)


def ints(*values: int) -> Ints:
    """Build a short int64 array."""
    return np.array(values, np.int64)


def narrow_ints(*values: int) -> Narrow:
    """Build a short int32 array."""
    return np.array(values, np.int32)


class Updates(NamedTuple):
    """The n updates of a step. The header of this file describes the fields."""

    rows: Any
    """A table, or a `ddflow.columns.row_views.RowView`, which gathers a column when it is first read."""
    ranks: Narrow
    """int32[n], ascending."""
    diffs: Ints
    """int64[n]."""
    times: Ints
    """int64[distinct times], ascending."""

    @classmethod
    def from_table(cls, table: pa.Table) -> Updates:
        """Read updates from a table with ``_time`` and ``_diff``. The times may be in any order. O(n log n)."""
        column = to_array(table.column(TIME))
        if column.type != pa.int64():
            column = column.view(pa.int32() if column.type.bit_width == 32 else pa.int64())
        stamps = np.asarray(column).astype(np.int64)
        if (stamps[1:] < stamps[:-1]).any():
            order = np.argsort(stamps, kind="stable")
            table, stamps = table.take(pa.array(order)), stamps[order]
            table = pa.Table.from_arrays([to_array(c) for c in table.columns], schema=table.schema)
        new = np.ones(stamps.size, bool)
        new[1:] = stamps[1:] != stamps[:-1]
        ranks, diffs = np.cumsum(new, dtype=np.int32) - np.int32(1), np.array(to_array(table.column(DIFF)), np.int64)
        return cls(table.drop_columns([TIME, DIFF]), ranks, diffs, stamps[new])

    def to_table(self, schema: pa.Schema, time_type: pa.DataType | None, shown: pa.Schema | None = None) -> pa.Table:
        """Build a table of the rows with ``_time`` and ``_diff``, without a copy of the rows.

        ``_time`` is absent if its type is None. ``shown``: the schema of the returned table, if the caller knows it.
        O(n) for ``_time`` and ``_diff``.
        """
        names = schema.names
        columns: list[Any] = (
            list(map(self.rows.column, names)) if isinstance(self.rows, TABLES) else self.rows.gather_by_name(names)
        )
        if time_type is not None:
            stamps = np.empty(self.ranks.size, np.int64)
            if self.times.size == 1:
                stamps.fill(self.times[0])
            else:
                map_ranks_to_times(make_writable(self.ranks), self.times, stamps)  # memory-mapped ranks are read-only
            values = stamps.astype(np.int32) if time_type.bit_width == 32 else stamps
            columns.append(pa.Array.from_buffers(time_type, values.size, [None, pa.py_buffer(values)], 0))
        columns.append(pa.Array.from_buffers(INT64, self.diffs.size, [None, pa.py_buffer(self.diffs)], 0))
        if shown is None:
            times = [] if time_type is None else [pa.field(TIME, time_type, nullable=False)]
            shown = pa.schema([*schema, *times, DIFFS])
        return pa.Table.from_arrays(columns, schema=shown)

    def slice_rows(self, begin: int, end: int) -> Updates:
        """Slice the updates [begin, end) without a copy. The updates need not be sorted by time."""
        return Updates(self.rows.slice(begin, end - begin), self.ranks[begin:end], self.diffs[begin:end], self.times)

    def take(self, places: Ints) -> Updates:
        """Take the updates at the positions ``places``."""
        return Updates(self.rows.take(pa.array(places)), self.ranks.take(places), self.diffs.take(places), self.times)


class GroupSortedUpdates(NamedTuple):
    """The n updates of a step, sorted by group, then row, then time."""

    high: Words
    low: Words
    """uint64[n]: the two words of the group."""
    more: Ints
    """int64[n, w]: the words of the row. If w is 0, a group has at most one row at each time."""
    places: Ints
    """int64[n]: the position of the update in the step."""
    ranks: Narrow
    diffs: Ints

    @classmethod
    def sort_updates(
        cls, updates: Updates, keys: RowHasher, rows: RowHasher | None = None, arena: Arena | None = None
    ) -> GroupSortedUpdates:
        """Sort updates by the columns of ``keys``, then by the columns of ``rows``.  O(n log n).

        The result is valid until ``arena`` is used again.
        """
        n = updates.diffs.size
        if rows is not None:
            words = rows.compute_identities(column_arrays(updates.rows, rows.names), n)
            return cls.sort_by_words(updates, keys, np.stack(words, axis=1).view(np.int64), arena)
        ids = keys.compute_identities(column_arrays(updates.rows, keys.names), n)
        by = sort_by_identity(*ids, arena, keys.threads)
        return cls.gather(updates, by, np.empty((n, 0), np.int64), keys.threads)

    @classmethod
    def sort_by_words(
        cls, updates: Updates, keys: RowHasher, more: Ints, arena: Arena | None = None
    ) -> GroupSortedUpdates:
        """Sort updates by the columns of ``keys``, then by the words of the row, int64[n, w].  O(n log n)."""
        high, low = keys.compute_identities(column_arrays(updates.rows, keys.names), updates.diffs.size)
        by = sort_by_words(high, low, more, arena, keys.threads)
        return cls.gather(updates, by, more, keys.threads)

    @classmethod
    def gather(cls, updates: Updates, by: SortedRows, more: Ints, threads: Threads) -> GroupSortedUpdates:
        """Gather the sorted updates. ``more``: the words of the rows, in the order of ``updates``. O(n)."""
        places = np.empty(updates.diffs.size, np.int64)
        columns: Any = [np.empty_like(each) for each in (more, updates.ranks, updates.diffs)]
        gathered: list[Any] = [(more, columns[0])]
        for values, out in ((updates.ranks, columns[1]), (updates.diffs, columns[2])):
            if values.size >= BULK and (values == values[0]).all():
                out.fill(values[0])
            else:
                gathered.append((values, out))

        def gather(begin: int, end: int) -> None:
            places[begin:end] = by.permutation[begin:end]
            for values, out in gathered:
                values.take(places[begin:end], 0, out[begin:end], "clip")

        threads.run_spans(places.size, gather, GATHERED)
        return cls(by.high, by.low, columns[0], places, columns[1], columns[2])

    def take(self, kept: Ints) -> GroupSortedUpdates:
        """Take the updates at some positions, which must ascend."""
        columns: Any = [column.take(kept, 0) for column in self]
        return GroupSortedUpdates(*columns)

    def slice(self, begin: int, end: int) -> GroupSortedUpdates:
        """Slice the updates [begin, end) without a copy."""
        columns: Any = [column[begin:end] for column in self]
        return GroupSortedUpdates(*columns)


def build_time_column(times: Ints, kind: pa.DataType) -> pa.Array:
    """Convert int64 times to the type of the time column."""
    values = times.astype(np.int32) if kind.bit_width == 32 else np.ascontiguousarray(times)
    return pa.Array.from_buffers(kind, times.size, [None, pa.py_buffer(values)], 0)


def consolidate(updates: Updates, secret: Secret) -> Updates:
    """Sum the diffs of equal rows at each time and drop sums of 0. Within a time, put retractions first.

    O(n). Raises `CountOverflow` if a sum is outside int64.
    """
    if not updates.diffs.size:
        return updates
    ranks, rows, diffs = compute_net_updates(updates, secret)
    order = sort_retractions_first(ranks, diffs, updates.times.size)
    return Updates(updates.rows.take(pa.array(rows[order])), ranks[order], diffs[order], updates.times)


def compute_net_updates(updates: Updates, secret: Secret) -> tuple[Narrow, Ints, Ints]:
    """Sum the diffs of equal rows at each time.  Return time ranks, row positions and sums, without sums of 0.

    Each row position is the position of one of the updates in the sum.  The updates must be sorted by time.  O(n).
    Raises `CountOverflow` if a sum is outside int64.
    """
    n = updates.diffs.size
    by = sort_by_identity(*compute_identities(updates.rows, secret, n))
    ranks, rows, diffs = np.empty(n, np.int32), np.empty(n, np.int64), np.empty(n, np.int64)
    written, refused = consolidate_diffs(by.permutation, by.starts, updates.ranks, updates.diffs, ranks, rows, diffs)
    if refused >= 0:
        raise build_count_overflow(updates.rows, refused)
    return ranks[:written], rows[:written], diffs[:written]


def sort_retractions_first(ranks: Narrow, diffs: Ints, times: int) -> Ints:
    """Return a stable order by time, with retractions first within a time.  O(n)."""
    order = np.empty(ranks.size, np.int64)
    order_by_rank(ranks, (diffs > 0).astype(np.int64), np.int64(times), order)
    return order


def build_count_overflow(rows: pa.Table | pa.RecordBatch, row: int) -> CountOverflow:
    """Build the error for a sum of diffs that is outside int64. The error names the row."""
    return CountOverflow(
        "sum of diffs",
        f"the sum for {row_values(rows, row)} overflows int64",
        "find the input that multiplies diffs; nothing of this step was kept",
    )


def refuse_negative_counts(counts: Ints, places: Ints, updates: Updates, asked: str) -> None:
    """Raise `NegativeMultiplicity` if a multiplicity after a change is negative.

    ``places``: the position of an update with the row, for each change, which the error names.
    """
    below = np.flatnonzero(counts < 0)
    if below.size:
        at = int(below[0])
        found = f"{row_values(updates.rows, int(places[at]))} has multiplicity {int(counts[at])}"
        raise NegativeMultiplicity(asked, found, "find the input that retracts a row that it never asserted")


def rerank_updates(updates: Updates, times: Ints) -> Updates:
    """Convert the ranks of updates to positions in ``times``, which contains all times of the updates."""
    places = np.searchsorted(times, updates.times).astype(np.int32)
    return updates._replace(ranks=places[updates.ranks] if updates.times.size else narrow_ints(), times=times)


def negate(updates: Updates) -> Updates:
    """Negate every diff, and move the updates that become retractions before the insertions of the same time. O(n).

    Raises `CountOverflow` for the least int64, which has no opposite in int64.
    """
    least = np.flatnonzero(updates.diffs == np.iinfo(np.int64).min)
    if least.size:
        raise build_count_overflow(updates.rows, int(least[0]))
    order = sort_retractions_first(updates.ranks, -updates.diffs, updates.times.size)
    return updates._replace(diffs=-updates.diffs).take(order)


def concat(parts: Sequence[Updates]) -> Updates:
    """Concatenate updates, in the order of their times.  O(n)."""
    ranks = np.concatenate([p.ranks for p in parts])
    times, order = parts[0].times, np.empty(ranks.size, np.int64)
    # A column is nullable if any part allows nulls in this column.
    fields = [f.with_nullable(any(p.rows.schema.field(f.name).nullable for p in parts)) for f in parts[0].rows.schema]
    tables = [pa.Table.from_arrays(p.rows.columns, schema=pa.schema(fields)) for p in parts]
    rows = pa.concat_tables(tables).combine_chunks()
    order_by_rank(ranks, np.empty(0, np.int64), np.int64(times.size), order)
    return Updates(rows, ranks, np.concatenate([p.diffs for p in parts]), times).take(order)


def number_identities(high: Words, low: Words, arena: Arena) -> tuple[Narrow, Ints]:
    """Assign numbers to distinct identities. O(n) expected.

    Return the number of each row, and the first row of each number.
    """
    n = high.size
    bits, empty = max(n.bit_length() + 1, 2), arena.choose_allocator(n)
    table, number, first = empty(1 << bits, np.int32), empty(n, np.int32), empty(n, np.int64)
    m = number_groups(high, low, np.int64(bits), table, number, first)
    return number, first[:m]


def add_step_rows(pool: RowPool, updates: Updates) -> RowPool:
    """Add a step's updates to the pool as batch 0. Missing columns become nulls. O(columns)."""
    columns = complete_columns(updates.rows, pool.schema)
    return pool.with_events(Rows.from_columns(columns, pool.shape, updates.diffs.size))


def complete_columns(rows: Any, schema: pa.Schema) -> list[pa.Array]:
    """Return the columns of a schema, with nulls for those that the rows lack. O(columns)."""
    there, n = set(rows.schema.names), rows.num_rows
    if there.issuperset(schema.names):
        return column_arrays(rows, schema.names)
    return [
        column_arrays(rows, [field.name])[0] if field.name in there else pa.nulls(n, field.type) for field in schema
    ]


Made = TypeVar("Made")
FAILURES: Final = (ExpressionError, NotSingle, AggregateFailed, pa.ArrowException, ArithmeticError)
"""The errors that an expression can raise. A user's function can raise errors of the last two kinds."""


def compute_with_net_retry(
    compute: Callable[[Sequence[Updates]], Made], inputs: Sequence[Updates], secret: Secret
) -> Made:
    """Compute a value from updates. If an expression fails, compute it again from net updates. Raises the error of the
    second attempt.

    >>> import pyarrow.compute as pc
    >>> from ddflow.operators.updates import narrow_ints, ints
    >>> updates = Updates(pa.table({"v": [0, 0, 2]}), narrow_ints(0, 0, 0), ints(1, -1, 1), ints(3))
    >>> def tenth(of):
    ...     return pc.divide_checked(10, of.rows.column("v")).to_pylist()
    >>> compute_with_net_retry(lambda inputs: tenth(inputs[0]), [updates], Secret(1, 2))
    [5]
    """
    try:
        return compute(inputs)
    except FAILURES:
        pass
    return compute([consolidate(each, secret) for each in inputs])


def compute_without_failing_rows(
    compute: Callable[[Updates], Updates], updates: Updates, by: Sequence[str], secret: Secret
) -> tuple[Updates, Ints]:
    """Run a linear operator on the rows that do not make it fail.

    Return the output and the positions of the failing rows. ``by``: the columns whose values decide whether a row
    fails. O(n), plus O(log n) runs of ``compute`` for each combination of values that fails.
    """
    high, low = compute_identities(updates.rows.select(list(by)), secret, updates.diffs.size)
    _, first, number = np.unique(np.stack([high, low]), axis=1, return_index=True, return_inverse=True)
    one_each, fails = updates.take(first), np.zeros(first.size, bool)
    ahead = [(0, first.size)]
    while ahead:
        begin, end = ahead.pop()
        try:
            compute(one_each.slice_rows(begin, end))
        except FAILURES:
            middle = (begin + end) // 2
            if end - begin < 2:
                fails[begin] = True
            else:
                ahead += [(begin, middle), (middle, end)]
    failing = fails[number.ravel()]
    return compute(updates.take(np.flatnonzero(~failing))), np.flatnonzero(failing)
