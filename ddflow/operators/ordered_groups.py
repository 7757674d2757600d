"""Read groups of rows from one end, for operators that compute first rows, extremes and lists.

The rows are kept as differences by group and order (`DifferenceArrangement`). A step sorts its updates and appends them
as a run, and looks up no row. For each group with updates, the step merges the group's first rows in all runs with the
updates, until enough rows are read (`ddflow.kernels.top.collect_first_rows`).

Guarantees: the rows that are found are the first rows of their group before the step or at any of its times. Changes of
later rows cannot affect them. Rows with equal order words are found together, and are compared by value.
"""

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, Self

import numpy as np
import pyarrow as pa

from ddflow.columns.hashing import NONE, Flags, Ints, Words
from ddflow.columns.order_words import compute_order_words
from ddflow.columns.rows import RowPool
from ddflow.columns.schema import column_arrays
from ddflow.columns.threads import Threads
from ddflow.kernels.sort import order_by_rank
from ddflow.kernels.top import FoundRows, StepUpdates, StoredGroups, collect_first_rows, find_group_ranges
from ddflow.operators.arranged import RunningArrange
from ddflow.operators.row_order import RowOrder, find_order_type
from ddflow.operators.updates import GroupSortedUpdates, Updates
from ddflow.plan.collection import Collection
from ddflow.trace.arrangement import Arrangement
from ddflow.trace.batch import RowsByGroup, mark_first_of_keys, to_identity_words
from ddflow.trace.differences import DifferenceArrangement

ALL = (1 << 61) - 1
"""A limit that is greater than the number of rows of any group."""


class FirstRows(NamedTuple):
    """The r rows that were found, group by group, and in order within a group."""

    references: Ints
    held: Ints
    """The multiplicities before the step."""
    ties: Flags
    """uint8[r]: 1 for each row whose order words equal those of the row before."""
    content: Words
    """uint64[r]: the first word of each row after the order words."""
    ends: Ints
    """int64[g + 1]: where each group begins."""
    place: Ints
    """int64[n]: for each update, the position of the row that it changes, or -1 for none; see `FoundRows`."""
    counts: Ints
    """int64[n]: the multiplicity of the row after the update, if ``place`` is not -1."""

    def sort_rows(self, sorting: Ints) -> Self:
        """Sort the rows by a permutation that leaves each row among the rows with equal order words.  O(n + r)."""
        stands = np.empty(sorting.size + 1, np.int64)
        stands[sorting], stands[-1] = np.arange(sorting.size), -1
        return self._replace(
            references=self.references[sorting],
            held=self.held[sorting],
            content=self.content[sorting],
            place=stands[self.place],
        )


class StepGroups(NamedTuple):
    """The g groups of a step with n updates."""

    step: StepUpdates
    stored: StoredGroups
    times: int

    def sort_changes(self, *ends: FirstRows) -> tuple[Ints, Ints]:
        """Select the updates that change a row that was found, sorted by group, then time.  O(n + times).

        Return their positions, and where each group begins, as int64[g + 1].
        """
        near = ends[0].place >= 0
        for end in ends[1:]:
            near |= end.place >= 0
        chosen = np.flatnonzero(near)
        begins = np.searchsorted(chosen, self.step.begins)
        if self.times == 1:
            return chosen, begins
        none, order, again = NONE.view(np.int64), np.empty(chosen.size, np.int64), np.empty(chosen.size, np.int64)
        order_by_rank(self.step.rank[chosen], none, np.int64(self.times), order)
        group = np.repeat(np.arange(begins.size - 1, dtype=np.int32), np.diff(begins))
        order_by_rank(group[order], none, np.int64(begins.size), again)
        return chosen[order[again]], begins


class RunningOrderedGroups(RunningArrange):
    """An operator that stores input rows by group and order, and computes the output of a group from its rows.

    ``of``: the input. ``by``: the group columns. ``ways``: the order. ``asked``: the name of the operator in errors.

    >>> import ddflow as dd
    >>> flow = dd.Flow()
    >>> sales = flow.upserts("sales", {"id": int, "n": int}, dd.Upsert(key="id"))
    >>> _ = flow.output("best", sales.top(1, by="n desc"))
    >>> with flow.open() as engine:
    ...     _ = engine.step({"sales": {"id": [1, 2, 3], "n": [5, 9, 7]}}, time=1)
    ...     engine.step({"sales": {"id": [2], "n": [6]}}, time=2)["best"].to_pylist()
    [{'id': 2, 'n': 9, '_time': 2, '_diff': -1}, {'id': 3, 'n': 7, '_time': 2, '_diff': 1}]
    """

    def __init__(self, of: Collection, by: Sequence[str], ways: RowOrder, asked: str, threads: Threads) -> None:
        self.row, self.by, self.ways = of.schema, list(by), ways
        kinds = [(each.name, find_order_type(of.schema.field(each.name).type)) for each in ways.words]
        self.ordered = pa.schema(kinds)
        self.set_up_rows(of.schema, by, ways.tied + 2 * (not ways.is_total_order), ways.secret, threads)
        self.refuses = "" if of.positive else asked

    def compute_row_words(self, rows: Any) -> Ints:
        """Compute the order words and, if they do not identify a row in its group, two words of the row."""
        names = self.ordered.names
        columns = pa.Table.from_arrays(column_arrays(rows, names), names).cast(self.ordered) if names else None
        words = [] if columns is None else [compute_order_words(columns, self.ways.words).view(np.int64)]
        if not self.ways.is_total_order:
            words.append(super().compute_row_words(rows))
        return words[0] if len(words) == 1 else np.hstack(words)

    def iterate_rows(self, as_of: int | None) -> Iterator[Updates]:
        """See `ReadableNode.iterate_rows`.  O(stored rows)."""
        for arranged in self.output_arrangement.partitions:
            assert isinstance(arranged, DifferenceArrangement)
            for picked in arranged.iterate_sums(as_of):
                if n := picked.references.size:
                    begins = np.append(np.flatnonzero(mark_first_of_keys(picked.high, picked.low)), n)
                    found = RowsByGroup(picked.references, picked.value.view(np.int64), begins, picked.order)
                    yield self._compute_group_output(arranged, found)

    def compute_group(self, arranged: Arrangement, found: RowsByGroup) -> Updates:
        """See `ReadableNode.compute_group`."""
        return self._compute_group_output(arranged, found)

    @abstractmethod
    def _compute_group_output(self, arranged: Arrangement, found: RowsByGroup) -> Updates:
        """Compute the output of groups from their rows.

        ``found`` has all rows that `look_up_group` finds, or more. If it has no identity words, its rows are in order,
        including rows with equal words.
        """

    def _look_up_first_rows(
        self, high: Words, low: Words, most: int, places: bool = False, back: bool = False
    ) -> FirstRows:
        """Look up the first rows of one group; see `_find_first_rows`."""
        none = NONE.view(np.int64)
        step = np.zeros(2, np.int64), high, low, np.empty((0, self.output_arrangement.words), np.uint64), none
        groups = self._find_stored_groups(StepUpdates(*step, np.empty(0, np.int32), none), 1)
        return self._find_first_rows(groups, self.output_arrangement.slots.pool, most, places, back)

    def _find_groups(self, by: GroupSortedUpdates, updates: Updates) -> StepGroups:
        """Find the groups of a step in the runs.  O(n + groups runs log rows of a group) expected."""
        first = np.append(np.flatnonzero(mark_first_of_keys(by.high, by.low)), by.high.size)
        step = StepUpdates(first, by.high, by.low, to_identity_words(by.more), by.places, by.ranks, by.diffs)
        return self._find_stored_groups(step, updates.times.size)

    def _find_stored_groups(self, step: StepUpdates, times: int) -> StepGroups:
        arranged = self.output_arrangement
        parts, addresses = np.array(arranged.parts, np.int64).reshape(-1, 3), arranged.slots.addresses
        ranges = np.empty((step.begins.size - 1, 2 * parts.shape[0]), np.int64)
        find_group_ranges(step, parts, addresses, ranges)
        return StepGroups(step, StoredGroups(parts[:, 0].copy(), ranges, addresses), times)

    def _find_first_rows(
        self, groups: StepGroups, pool: RowPool, most: int, places: bool = False, back: bool = False
    ) -> FirstRows:
        """Find the rows that are among the first rows of their group before the step or at any of its times.

        ``pool``: the pool that the references point into. ``most``: the number of rows, or of places. ``back``: find
        the last rows of each group. O(n + groups runs + rows read).
        """
        found = self._collect_rows(groups, most, places, back)
        sorting = self._sort_ties(pool, found.references, found.ties, back)
        return found if sorting is None else found.sort_rows(sorting)

    def _collect_rows(self, groups: StepGroups, most: int, places: bool = False, back: bool = False) -> FirstRows:
        """Find rows as `_find_first_rows` does. Rows with equal order words are in any order."""
        step, stored, _ = groups
        n, size = step.diff.size, step.begins.size
        place, counts, ends, passed = (np.empty(m, np.int64) for m in (n, n, size, 1))
        asked, room = (np.int64(most), places, np.int64(self.ways.tied), back), 2 * min(most, 64) * size + 64
        if most == ALL:
            room = int((stored.ranges[:, 1::2] - stored.ranges[:, ::2]).sum()) + n
        while True:
            references, held = np.empty(room, np.int64), np.empty(room, np.int64)
            ties, content = np.empty(room, np.uint8), np.empty(room, np.uint64)
            out = FoundRows(references, held, ties, ends, place, counts, content, passed)
            m = collect_first_rows(step, stored, *asked, out)
            if m <= room:
                break
            room = m
        arranged: Any = self.output_arrangement
        arranged.record_cancelled_reads(int(passed[0]))
        return FirstRows(references[:m], held[:m], ties[:m], content[:m], ends, place, counts)

    def _sort_ties(self, pool: RowPool, references: Ints, ties: Flags, back: bool) -> Ints | None:
        """See `RowOrder.sort_ties`.  ``back``: whether the rows of each group are in descending order."""
        if not back:
            return self.ways.sort_ties(pool, references, ties)
        n = references.size
        places = self.ways.sort_ties(pool, references[::-1], np.append(ties[1:], np.uint8(0))[::-1])
        return None if places is None else n - 1 - places[::-1]
