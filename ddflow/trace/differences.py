"""Keep a collection as differences: sorted runs of rows by group, whose diffs are added up by merges and reads.

A `DifferenceArrangement` holds rows with multiplicities. A step appends the changes of multiplicities as a run, without
a look-up of stored rows. A merge adds up the changes of equal rows. A look-up of groups searches all runs, so there are
few of them. The first two words of an identity are the group, and the other words identify a row in its group.

Guarantees: for every t in [since, upper), a read at t gives the rows whose diffs with times up to t do not add up to 0.
Limits: a row's multiplicity is unknown until the row is read. The operator checks that no sum overflows int64.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

import numpy as np
import pyarrow as pa

from ddflow.columns.hashing import Ints, Words
from ddflow.columns.names import TIMES
from ddflow.columns.rows import gather_table
from ddflow.kernels.differences import SummedRows, collect_group_rows
from ddflow.trace.arrangement import Arrangement
from ddflow.trace.batch import NO_ROWS, ArrangementChange, BatchRange, BatchSlots, RowsByGroup, to_identity_words
from ddflow.trace.index import NoIndex
from ddflow.trace.merge import PickedVersions, sum_differences
from ddflow.trace.spine import Spine

FAN, TAIL = 4, 1 << 10
"""The number of runs of similar size that are merged into one, and the number of rows from which this counts.

A look-up searches each run. Runs with fewer rows together stay in the processor's cache.
"""
COUNTED: Final = pa.field(TIMES, pa.int64(), nullable=False)
"""The column of the multiplicities of rows."""


def sum_absolutes(diffs: Ints) -> float:
    """Add up absolute values.

    >>> sum_absolutes(np.array([3, -(2**63)]))
    9.223372036854776e+18
    """
    return float(np.abs(diffs, dtype=np.float64).sum())


class DifferenceArrangement(Arrangement):
    """A collection of rows with multiplicities, by group.

    ``schema``: the columns of the rows.  ``words``: the number of identity words beyond the two words of the group.

    >>> from ddflow.columns.rows import Rows
    >>> from ddflow.trace.batch import Batch, make_difference_change
    >>> arranged = DifferenceArrangement(pa.schema({"k": pa.int64()}), words=1)
    >>> for diff in (2, -1):
    ...     ids, more = np.array([5], np.uint64), np.array([[7]])
    ...     rows = Rows(pa.table({"k": [1]}))
    ...     change = make_difference_change(ids, ids, np.array([3]), np.array([diff]), more, rows)
    ...     arranged.apply_changes([change], upper=4, since=3)
    >>> arranged.read().to_pylist(), arranged.find_group_rows(ids, ids).values.tolist()
    ([{'k': 1, '_times': 1}], [1])
    """

    def __init__(self, schema: pa.Schema, words: int) -> None:
        super().__init__(schema, wide=True, words=words)
        self.index = NoIndex(words)
        self.slots = BatchSlots(schema, summed=True)
        self.spine = Spine(FAN, tail=TAIL)
        self.room = 4.0
        self._bound, self._bounded = 0.0, self.upper
        """The last `bound`, and the value of ``upper`` for which it holds. A restore changes ``upper``."""

    def make_empty(self, schema: pa.Schema | None = None, words: int | None = None) -> Arrangement:
        """Build an empty arrangement of the same kind; see `Arrangement.make_empty`."""
        return DifferenceArrangement(schema or self.schema, self.words if words is None else words)

    @property
    def bound(self) -> float:
        """The sum of the absolute diffs, or more: no multiplicity exceeds it. O(1), or O(rows) after a restore."""
        if self._bounded != self.upper:
            stored = (self.slots[slot].value[begin:end] for slot, begin, end in self.parts)
            self._bound, self._bounded = sum(sum_absolutes(each.view(np.int64)) for each in stored), self.upper
        return self._bound

    def apply_changes(self, changes: Sequence[ArrangementChange], upper: int, since: int) -> None:
        """See `Arrangement.apply_changes`."""
        bound = self.bound + sum(sum_absolutes(each.value.view(np.int64)) for each in changes)
        super().apply_changes(changes, upper, since)
        self._bound, self._bounded = bound, self.upper

    def find_group_rows(self, high: Words, low: Words, more: Ints | None = None) -> RowsByGroup:
        """Find the rows of groups by ascending identity words, in the order of identities within each group.

        ``more``: further words that the rows begin with, as int64[g, w].  O(groups runs + rows) expected, or O(groups
        runs log rows of a group) with further words.
        """
        parts, begins = np.array(self.parts, np.int64).reshape(-1, 3), np.empty(high.size + 1, np.int64)
        asked = high, low, np.empty((0, 0), np.uint64) if more is None else to_identity_words(more)
        room = int(self.room * high.size) + 16
        while True:
            out = SummedRows.allocate(room, self.words, grouped=True)
            n = collect_group_rows(*asked, parts, self.slots.addresses, np.int64(self.words), out, begins)
            if n <= room:
                break
            room = n
        self.room = max(1.25 * n / max(high.size, 1), 1.0)
        return RowsByGroup(out.reference[:n], out.diff[:n], begins, out.more[:n].view(np.int64))

    def sum_rows(self, high: Words, low: Words, more: Ints) -> Ints:
        """Return the multiplicities of rows by ascending identities.  O(rows runs log rows of a group) expected."""
        found, sums = self.find_group_rows(high, low, more), np.zeros(high.size, np.int64)
        sums[np.diff(found.begins) > 0] = found.values
        return sums

    def record_cancelled_reads(self, differences: int) -> None:
        """Record the number of cancelled differences that a read passed; see `Spine.record_cancelled_reads`."""
        self.spine.record_cancelled_reads(differences)
        self.on_disk.record_cancelled_reads(differences)

    def find_group_at(self, high: Words, low: Words, as_of: int | None) -> RowsByGroup:
        """Find the rows of one group at a time; see `Arrangement.find_group_at`."""
        self.check_readable(as_of, "a read")
        if not (parts := self.find_group_versions(high, low)):
            return RowsByGroup(NO_ROWS)
        picked = self.sum_parts(parts, as_of)
        whole = np.array([0, picked.references.size])
        return RowsByGroup(picked.references, picked.value.view(np.int64), whole, picked.order)

    def iterate_rows(self, as_of: int | None = None, what: str = "a read") -> Iterator[pa.Table]:
        """Yield the rows of `read`, with their multiplicities as the column `TIMES`, one range at a time."""
        for picked in self.iterate_sums(as_of, what):
            yield self.gather_rows(RowsByGroup(picked.references, picked.value.view(np.int64)))

    def iterate_sums(self, as_of: int | None = None, what: str = "a read") -> Iterator[PickedVersions]:
        """Yield the rows of `read` in the order of identities. Their values are multiplicities. O(differences)."""
        self.check_readable(as_of, what)
        for parts in self.iterate_version_ranges():
            if parts:
                yield self.sum_parts(parts, as_of)

    def gather_rows(self, found: RowsByGroup) -> pa.Table:
        """Gather rows, with their multiplicities as the column `TIMES`.  O(n) for each column."""
        rows = gather_table(self.slots.pool, found.references, self.schema)
        return rows.append_column(COUNTED, pa.array(found.values))

    def sum_parts(self, parts: list[BatchRange], as_of: int | None) -> PickedVersions:
        """Add up the diffs of the rows of a range at a time.  O(differences)."""
        time = max(self.latest, self.since) if as_of is None else as_of
        picked = sum_differences(self.slots, parts, time)
        return picked if (early := picked.time <= time).all() else picked.select_rows(early)

    @property
    def _needed_version_count(self) -> int:
        """The size of the oldest run on disk, because few rows of a merged run are garbage."""
        return self.on_disk.oldest_size

    def _check_invariants(self) -> None:
        """Assert the invariants of the runs, and that the stored count is the sum of all diffs."""
        self._check_runs()
        assert self.keys == sum(int(np.sum(table.column(TIMES))) for table in self.iterate_rows())
