"""Run window functions: read the rows that a step can affect, and compare their results before and after the step.

A step reads the rows near its updates if all frames are bounded, the rows after its updates if frames begin at the
start of the partition, the sessions of its updates, and otherwise whole partitions. It computes the results of these
rows before and after the changes at each time of the step. Results that lack rows outside of the window lack them
before and after, so they do not differ.
"""

from collections.abc import Iterator, Sequence
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa

from ddflow.columns.hashing import Ints, Narrow, RowHasher, Words
from ddflow.columns.order_words import count_order_words
from ddflow.columns.rows import RowPool, gather_arrays, gather_table
from ddflow.errors import TooLarge
from ddflow.kernels.frames import (
    RowChanges,
    States,
    find_bound_ranges,
    find_session_ranges,
    list_states,
    match_places,
)
from ddflow.kernels.gather import SLOT
from ddflow.kernels.versions import find_windows
from ddflow.operators.aggregates.parts import StatePart, UpdatesByCell
from ddflow.operators.base import OperatorContext, as_updates
from ddflow.operators.ordered_groups import ALL, FirstRows, RunningOrderedGroups, StepGroups
from ddflow.operators.row_order import RowOrder, find_order_type
from ddflow.operators.updates import (
    GroupSortedUpdates,
    Updates,
    add_step_rows,
    refuse_negative_counts,
    sort_retractions_first,
)
from ddflow.operators.window.calls import Arguments, FoldCall, PickCall, SessionCall
from ddflow.operators.window.frames import Reach
from ddflow.operators.window.marks import STRIDE, Mark, Marks
from ddflow.operators.window.places import MOST_LISTED, Places, Prefix, build_empty_prefix
from ddflow.trace.arrangement import Arrangement
from ddflow.trace.batch import NO_ROWS, ArrangementChange, RowsByGroup, mark_first_of_keys, to_identity_words

VERB: Final = "over"
MOST_PLACES: Final = 1 << 31
"""The limit of the places of a partition before and after a change."""


def _check_place_count(places: float) -> int:
    """Check that the places of a partition fit in memory. A negative number has overflowed.  Raises `TooLarge`."""
    if not 0 <= places < MOST_PLACES:
        found = f"a partition has more than {MOST_PLACES:,} rows, counted by multiplicity"
        raise TooLarge(VERB, found, "use smaller partitions, or apply distinct() first")
    return int(places)


def _allocate_states(places: int, pairs: int) -> States:
    """Allocate the memory of states."""
    row, starts, windows = (np.empty(n, np.int64) for n in (places, 2 * pairs + 1, pairs))
    return States(row, starts, np.empty(pairs, np.int32), windows)


class WindowRows(NamedTuple):
    """The r rows of some windows, in order."""

    references: Ints
    event: Ints
    """int64[r]: the number of each row's event, ascending."""
    ties: Any
    """bool[r]: whether the order words of a row equal those of the row before."""


class RunningOver(RunningOrderedGroups):
    """Running window functions.  State: all input rows, by partition and order.

    >>> from ddflow.columns.hashing import Secret
    >>> from ddflow.operators.updates import ints, narrow_ints
    >>> from ddflow.plan.inputs.spec import Upsert
    >>> from ddflow.plan.plan import Plan
    >>> sales = Plan().upserts("sales", {"id": pa.int64(), "n": pa.int64()}, Upsert(key="id"))
    >>> over = sales.over(order_by="id", before="lag(n)")
    >>> running = over.open(OperatorContext(Secret(1, 2), pa.int64(), frozenset(["id", "before"])))
    >>> rows = pa.table({"id": [1, 2], "n": [5, 9]}, schema=sales.schema)
    >>> running.compute([Updates(rows, narrow_ints(0, 0), ints(1, 1), ints(5))], 5)[0].rows.to_pylist()
    [{'id': 1, 'before': None}, {'id': 2, 'before': 5}]
    """

    def __init__(self, node: Any, context: OperatorContext) -> None:
        row = node.inputs[0].schema
        most = sum(count_order_words(find_order_type(row.field(each.name).type), each.name) for each in node.order)
        ways = RowOrder(row, node.partition_by, node.order, context.secret, most)
        super().__init__(node.inputs[0], node.partition_by, ways, VERB, context.threads)
        self.secret, self.refuses, self.shown = context.secret, "", node.schema
        self.wanted, self.calls, self.range = context.wanted, node.calls, node.range
        calls = {each.name: each for each in node.calls}
        read = [calls.get(name, name) for name in self.wanted if name not in node.partition_by]
        self.sessions_only = bool(read) and all(isinstance(each, SessionCall) for each in read)
        """Whether the wanted columns are equal in all rows of a session, which then have one update."""
        ordering = {each.name for each in node.order}
        self.inexact = [each.name for each in ways.values if each.name in ordering]
        self.sorts = bool(self.inexact) or any(each.ordered for each in self.calls)
        self.reach = Reach()
        for each in self.calls:
            self.reach = self.reach.combine(each.reach)
        if not (self.ways.tied or self.reach.whole or self.reach.tail):
            self.reach = Reach(whole=True)
        self.arguments: dict[str, Any] = {}
        self.parts: dict[Any, StatePart] = {}
        for each in self.calls:
            self.arguments |= each.arguments
            if isinstance(each, FoldCall) and each.reach.tail:
                self.parts |= each.of.parts
        self.picks = [each for each in self.calls if isinstance(each, PickCall) and each.running]
        self.marks, self.marked = Marks(), (0, 0)

    def compute(self, inputs: Sequence[Updates], since: int) -> tuple[Updates, ArrangementChange]:
        """See `RunningOperator.compute`. Raises `NegativeMultiplicity`, and the errors of the calls.

        O(u runs log rows) for u updates, plus the rows that are read, twice for each time at which they can change.
        """
        updates = inputs[0]
        _, change = super().compute(inputs, since)
        return self._compute_updates(self.group_updates(updates, self.keys), updates), change

    def apply(self, changes: Sequence[Any], upper: int, since: int) -> None:
        """See `RunningOperator.apply`.  Drop the marks after each change."""
        current = self._has_current_marks()
        if current and self.marks.by_group:
            for each in changes:
                batch, tied = each.batch, self.ways.tied
                for i in np.flatnonzero(mark_first_of_keys(batch.high, batch.low)).tolist():
                    group = int(batch.high[i]), int(batch.low[i])
                    if group in self.marks.by_group:
                        self.marks.drop_after(
                            group, tuple(to_identity_words(batch.order[i : i + 1])[0, :tied].tolist())
                        )
        super().apply(changes, upper, since)
        self.marked = (id(self.output_arrangement), self.output_arrangement.upper) if current else self.marked

    def _has_current_marks(self) -> bool:
        """Tell whether the marks describe the current rows.  A restore replaces the rows."""
        return self.marked == (id(self.output_arrangement), self.output_arrangement.upper)

    @property
    def nbytes(self) -> int:
        """See `ReadableNode.nbytes`."""
        return super().nbytes + self.marks.nbytes

    def _compute_updates(self, by: GroupSortedUpdates, updates: Updates) -> Updates:
        """Compute the updates of the output."""
        if not self._has_current_marks():
            self.marks, self.marked = Marks(), (id(self.output_arrangement), self.output_arrangement.upper)
        pool = add_step_rows(self.output_arrangement.slots.pool, updates)
        windows, prefix, picked = self._find_windows(self._find_groups(by, updates))
        found = self._collect_rows(windows, ALL)
        at, rows = self._sort_events(pool, found.references, found.ties != 0)
        found = found.sort_rows(at)
        near, begins = windows.sort_changes(found)
        refuse_negative_counts(found.counts[near], by.places[near], updates, VERB)
        changes = RowChanges(begins, found.place[near], by.ranks[near], found.counts[near])
        # The rows that marks name come after the rows of windows.
        for each in prefix.picked.values():
            each[each >= 0] += at.size
        rows = rows._replace(references=np.concatenate([rows.references, picked]))
        given = self._compute_arguments(pool, rows.references)
        made = list[tuple[Narrow, Ints, Ints, list[pa.Array]]]()
        first = 0
        for states in self._list_states(found, rows.event, changes):
            owners = np.repeat(states.window, 2)
            places = Places(states.row, states.starts, rows.event, prefix.take(owners))
            if self.reach.tail and not self.reach.whole:
                fresh = np.append(True, np.diff(states.window) > 0) & (states.window >= first)
                for pair in np.flatnonzero(fresh & (np.diff(places.starts)[::2] >= 2 * STRIDE)).tolist():
                    at = windows.step.begins[states.window[pair]]
                    group = int(by.high[at]), int(by.low[at])
                    if (chosen := self.marks.choose_places(group, places, 2 * pair, rows.ties)).size:
                        self.marks.add(group, self._build_marks(places, 2 * pair, chosen, rows, given))
                first = int(states.window[-1]) + 1
            made.append(self._compare_states(places, states, given))
        return self._build_updates(pool, found, made, updates.times)

    def _find_windows(self, groups: StepGroups) -> tuple[StepGroups, Prefix, Ints]:
        """Divide the partitions of a step into the ranges of rows that have to be read.

        Return the references of the rows that the prefixes name, too.
        """
        step, stored, times = groups
        n, tied, reach = step.diff.size, self.ways.tied, self.reach
        begins, ranges = np.empty(n + 1, np.int64), np.empty((n, stored.ranges.shape[1]), np.int64)
        prefix, picked = build_empty_prefix(step.begins.size - 1), NO_ROWS
        if reach.near and not (reach.tail or reach.whole):
            m = find_windows(step, stored, np.int64(tied), np.int64(2 * reach.near), begins, ranges)
            prefix = build_empty_prefix(m)
        elif reach.gap and not reach.whole:
            m = find_session_ranges(step, stored, np.uint64(reach.gap), begins, ranges)
            prefix = build_empty_prefix(m)
        else:
            bounds = np.empty((n, 2, tied), np.uint64)
            bounds[:, 0], bounds[:, 1] = 0, np.iinfo(np.uint64).max
            if not reach.whole:
                own, away = step.more[:, :tied], np.uint64(2 * reach.value)
                bounds[:, 0], bounds[:, 0, 1:] = own, own[:, 1:] if not reach.value else 0
                if reach.value:
                    bounds[:, 0, 0] = own[:, 0] - np.minimum(own[:, 0], away)
                if reach.tail:
                    prefix, picked = self._find_prefix(step, bounds)
                else:
                    bounds[:, 1, 0] = own[:, 0] + np.minimum(~own[:, 0], away)
            flat = np.ascontiguousarray(bounds.reshape(n, 2 * tied))
            m = find_bound_ranges(step, stored, flat, np.int64(tied), begins, ranges)
            if prefix.places.size != m:
                prefix = build_empty_prefix(m)
        return (
            StepGroups(step._replace(begins=begins[: m + 1]), stored._replace(ranges=ranges[:m]), times),
            prefix,
            picked,
        )

    def _find_prefix(self, step: Any, bounds: Words) -> tuple[Prefix, Ints]:
        """Find the mark of each partition, and begin its window there.

        Return the references of the rows that the marks name, too.
        """
        at = step.begins[:-1]
        lower = bounds[at, 0].tolist() if self.marks.by_group else []
        bounds[:, 0] = 0
        prefix, marks, groups = build_empty_prefix(at.size), list[Mark](), list[tuple[int, int]]()
        for i, place in enumerate(lower):
            group = int(step.high[at[i]]), int(step.low[at[i]])
            mark = self.marks.find(group, tuple(place), 2 * self.reach.near) if group in self.marks.by_group else None
            if mark is not None:
                bounds[at[i], 0] = mark.at
                prefix.places[i], prefix.events[i], prefix.held[i] = mark.places, mark.events, len(marks)
                marks.append(mark)
                groups.append(group)
        for column, (key, part) in enumerate(self.parts.items()):
            prefix.states[key] = pa.array([each.states[column] for each in marks], part.kind)
        named = {(*group, *row) for group, mark in zip(groups, marks, strict=True) for row in mark.picked if row}
        if not named:
            return prefix, NO_ROWS
        known = {row: i for i, row in enumerate(sorted(named))}
        words = np.array(list(known), np.uint64).reshape(len(known), -1)
        found = self.output_arrangement.find_group_rows(  # type: ignore[attr-defined]
            words[:, 0].copy(), words[:, 1].copy(), np.ascontiguousarray(words[:, 2:]).view(np.int64)
        )
        for column, each in enumerate(self.picks):
            rows = [
                known.get((*group, *(mark.picked[column] or ())), -1) for group, mark in zip(groups, marks, strict=True)
            ]
            prefix.picked[each.name] = np.where(prefix.held >= 0, np.array(rows)[prefix.held], -1)
        return prefix, found.references

    def _sort_events(self, pool: RowPool, references: Ints, ties: Any) -> tuple[Ints, WindowRows]:
        """Sort rows, which are in the order of identities, by their order and then by the other columns.

        ``ties``: bool[n], whether the order words of a row equal those of the row before. Return the permutation too.
        """
        at, begun = np.arange(references.size), ~ties
        begun[:1] = True
        if self.sorts and not self.ways.is_total_order and ties.any():
            number = np.cumsum(begun) - 1
            tied = np.flatnonzero(ties | np.append(ties[1:], False))
            fields = [self.row.field(each.name).with_nullable(True) for each in self.ways.values]
            table = gather_table(pool, references[tied], pa.schema(fields))
            sorting = self.ways.sort_rows(table, number[tied])
            at[tied] = tied[sorting]
            if self.inexact:
                compared = table.select(self.inexact).take(pa.array(sorting))
                high, low = RowHasher(compared.schema, self.secret).identify_rows(compared)
                differs = np.append(True, (high[1:] != high[:-1]) | (low[1:] != low[:-1] if low.size else False))
                begun[tied] |= differs
        return at, WindowRows(references[at], np.cumsum(begun) - 1, ties)

    def _compute_arguments(self, pool: RowPool, references: Ints) -> Arguments:
        """Compute the arguments of the calls for rows."""
        ranged = [self.range.column.name] if self.range is not None else []
        read = {*ranged}.union(*(each.columns or self.row.names for each in self.arguments.values()))
        fields = [field.with_nullable(True) for field in self.row if field.name in read] or self.fields[:1]
        given = pa.RecordBatch.from_arrays(gather_arrays(pool, references, fields), schema=pa.schema(fields))
        values = {text: argument(given) for text, argument in self.arguments.items()}
        return Arguments(values, None if self.range is None else self.range.compute_words(given), self.secret)

    def _list_states(self, found: FirstRows, event: Ints, changes: RowChanges) -> Iterator[States]:
        """List the states of all pairs, some pairs at a time."""
        held, at = found.held.copy(), np.array([0, 0, 0])
        reach = self.reach
        near = np.int64(2 * reach.near if reach.near and not (reach.tail or reach.whole) else -1)
        room, most = min(MOST_LISTED, 4 * held.size + 64), changes.place.size
        out = _allocate_states(0, 0)
        while most:
            pairs = list_states(found.ends, held, event, changes, near, at, out)
            if pairs:
                starts = out.starts[: 2 * pairs + 1].copy()
                yield States(out.row[: starts[-1]], starts, out.rank[:pairs], out.window[:pairs])
            if not at[2]:
                break
            room = max(room, _check_place_count(float(at[2])))
            out = _allocate_states(room, most)

    def _compare_states(
        self, places: Places, states: States, given: Arguments
    ) -> tuple[Narrow, Ints, Ints, list[pa.Array]]:
        """Compare both states of each pair. Return the time rank, the row, the diff and the results of each update."""
        results = [each.compute(places, given, self.range) for each in self.calls if each.name in self.wanted]
        matched: Any = *np.empty((2, places.row.size), np.int64), np.empty(places.row.size, np.int32)
        m = match_places(places.row, places.starts, *matched)
        before, after, pair = (each[:m] for each in matched)
        same = (before >= 0) & (after >= 0)
        for each in results:
            for words in each.words:
                same &= words[before] == words[after]
        left, come = (np.flatnonzero((each >= 0) & ~same) for each in (before, after))
        at, pairs = np.concatenate([before[left], after[come]]), np.concatenate([pair[left], pair[come]])
        diffs = np.ones(at.size, np.int64)
        diffs[: left.size] = -1
        if self.sessions_only and at.size:
            sessions = np.stack([each.at[at] for each in results if each.at is not None])
            first = np.append(0, 1 + np.flatnonzero((sessions[:, 1:] != sessions[:, :-1]).any(axis=0)))
            diffs, at, pairs = np.add.reduceat(diffs, first), at[first], pairs[first]
        return states.rank[pairs], places.row[at], diffs, [each.take(at) for each in results]

    def _build_updates(self, pool: RowPool, found: FirstRows, made: list[Any], times: Ints) -> Updates:
        """Build the updates of the output."""
        shown = [field for field in self.shown if field.name in self.wanted]
        mine = [field for field in shown if field.name in self.row.names]
        if not made:
            none = pa.schema(shown).empty_table()
            return Updates(none, np.empty(0, np.int32), np.empty(0, np.int64), times)
        ranks, rows, diffs = (np.concatenate([each[i] for each in made]) for i in range(3))
        order = sort_retractions_first(ranks, diffs, times.size)
        columns = gather_arrays(pool, found.references[rows[order]], mine)
        for column in zip(*(each[3] for each in made), strict=True):
            values = column[0] if len(column) == 1 else pa.concat_arrays(column)
            columns.append(values.take(pa.array(order)))
        return Updates(pa.Table.from_arrays(columns, schema=pa.schema(shown)), ranks[order], diffs[order], times)

    def _compute_group_output(self, arranged: Arrangement, found: RowsByGroup) -> Updates:
        """See `RunningOrderedGroups._compute_group_output`."""
        pool = arranged.slots.pool
        _, first = found.mark_first_rows(self.ways.tied)
        at, rows = self._sort_events(pool, found.references, ~first)
        held = found.values[at]
        _check_place_count(float(held.sum(dtype=np.float64)))
        starts = np.append(0, np.cumsum(held))[found.begins]
        places = Places(np.repeat(np.arange(held.size), held), starts, rows.event)
        given = self._compute_arguments(pool, rows.references)
        columns = gather_arrays(pool, rows.references[places.row], self.row)
        columns += [each.compute(places, given, self.range).take(places.index) for each in self.calls]
        return as_updates(pa.Table.from_arrays(columns, schema=self.shown))

    def _build_marks(self, places: Places, state: int, at: Ints, rows: WindowRows, given: Arguments) -> list[Mark]:
        """Build marks at some places of a state.  ``at``: the distances of these places from the start of the state.

        O(places before the last mark).
        """
        begin, prefix = places.starts[state], places.prefix
        cells = np.repeat(np.arange(at.size), np.diff(at, prepend=0))
        held = max((len(each) for each in prefix.states.values()), default=0)
        before = np.arange(held - 1, held + at.size - 1, dtype=np.int32)
        before[0] = prefix.held[state]
        folding = UpdatesByCell((cells + held).astype(np.int32), before, np.ones(cells.size, np.int64), held)
        entered, states = pa.array(places.row[begin : begin + cells.size]), []
        for key, part in self.parts.items():
            values = given.values[key[1]].take(entered) if key[1] else None
            states.append(part.fold_updates(folding, prefix.states[key], values).slice(held).to_pylist())
        row = places.row[begin : places.starts[state + 1]]
        mine = Places(row, np.array([0, row.size]), places.event, prefix.take(np.array([state])))
        picked = [each.pick_rows(mine, given.values[each.argument], mine.begin, mine.index)[at] for each in self.picks]
        marks, events = list[Mark](), mine.event_number[at].tolist()
        for i, place in enumerate(at.tolist()):
            told = tuple(each[i] for each in states)
            named = tuple(self._read_words(rows.references[each[i]]) if each[i] >= 0 else None for each in picked)
            first = self._read_words(rows.references[row[place]])[: self.ways.tied]
            marks.append(Mark(first, place + int(prefix.places[state]), events[i] - 1, told, named))
        return marks

    def _read_words(self, reference: int) -> tuple[int, ...]:
        """Read the identity words of a stored row in its partition."""
        batch = self.output_arrangement.slots[int(reference) >> SLOT]
        return tuple(to_identity_words(batch.order[int(reference) & (1 << SLOT) - 1][None])[0].tolist())
