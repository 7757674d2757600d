"""Resolve the events of one input in a step, and build its updates.

A pass over hashes and order words finds the verdict of each row and the versions of each key. The pass reads no
columns, only hashes and order words. Updates are in the order of rows. The columns of updates and of the change are
gathered when they are first read.

Guarantees: resolution leaves the state unchanged. `RunningUpsert.apply` applies the changes later.
"""

from operator import itemgetter
from typing import Any

import numpy as np
import pyarrow as pa

from ddflow.columns.hashing import NONE, Flags, Ints, Narrow, unpack_validity
from ddflow.columns.layout import BULK, SMALL, Arena, Column, ColumnBuffers, fixed_width
from ddflow.columns.row_views import RowView
from ddflow.columns.rows import RowPool, Rows, gather_columns_of_pool, gather_table, row_values
from ddflow.columns.sorting import cut_shards
from ddflow.columns.threads import ALONE
from ddflow.errors import ErrorText, Option, TieRefused
from ddflow.kernels.emit import count_updates, emit_updates as emit_updates, emit_values
from ddflow.kernels.gather import SLOT
from ddflow.kernels.identity import unmix_words
from ddflow.kernels.resolve import (
    ERROR,
    LAPSED,
    LIVE,
    NOTHING,
    OUTCOME,
    Outcomes,
    Rules,
    SortedEvents,
    allocate_outcomes,
    resolve_keys,
)
from ddflow.operators.updates import Updates
from ddflow.operators.upsert.events import ExpiryChange, KeyedEvents
from ddflow.operators.upsert.merged import MergedRows
from ddflow.operators.upsert.orders import Order
from ddflow.operators.upsert.state import UpsertState
from ddflow.time import format_time
from ddflow.trace.batch import ArrangementChange, Batch, repeat_value

ALL: Flags = np.empty(0, np.uint8)
EMITTED = 4
"""The estimated time to write the updates of one event, in nanoseconds."""
Spans = list[tuple[int, int]]


class FullRows:
    """The full rows of events, with their order words and hashes. `MergedRows` has the same members for folded rows.

    ``words``: int64[n, words], order words. ``value``: uint64[n], hashes of the columns that decide whether a row
    changed.

    >>> from ddflow.columns.hashing import Secret
    >>> from ddflow.operators.updates import ints
    >>> from ddflow.operators.upsert.events import Events
    >>> from ddflow.plan.inputs.bind import bind_upserts
    >>> from ddflow.plan.inputs.spec import Upsert
    >>> schema = pa.schema({"k": pa.int64(), "v": pa.string()})
    >>> state = UpsertState(bind_upserts("rows", schema, Upsert("k")), Secret(1, 2))
    >>> events = pa.record_batch({"k": [7, 8, 7], "v": ["a", "b", "c"]}, schema=schema)
    >>> keyed = state.sort_by_key(Events(events, ints(0, 0, 0), ints(0, 0, 0), ints(0, 1, 2)), ints(0), since=0)
    >>> full = FullRows(state, keyed, since=0)
    >>> full.value[0] == full.value[1], full.rows.num_rows
    (np.False_, 3)
    """

    def __init__(self, state: UpsertState, keyed: KeyedEvents, since: int) -> None:
        self.state, self.keyed, self.by, self.mark = state, keyed, keyed.by, keyed.mark
        order, events, expiring = state.order, keyed.events, state.expiring
        assert isinstance(order, Order)
        self.order, self.rows = order, events.rows
        tracked = list(map(keyed.columns.__getitem__, state.bound.tracked))
        self.value = state.values.compute_value_hashes(tracked, events.times.size)
        self.words = order.compute_words(events.rows, events.original, keyed.gone)
        if order.ranks:
            self._rank_orders(order)
        forgets = expiring is not None and expiring.forgets
        self.rules = Rules(order.base, order.tie, order.ties, order.keeps, since, keyed.full is not None, forgets)
        self.permutation = self._sort_by_base_words() if order.tie == ERROR else keyed.by.permutation

    def payload(self) -> Rows:
        """Return the full rows in the form in which the arrangement stores them."""
        state, gone, given = self.state, self.keyed.gone, self.keyed.columns
        columns = [given[name] for name in state.given]
        shape = state.arrangements[0].slots.pool.shape
        # Ignore nulls that only deletions have, but not in exact key columns, because a retraction may take its key
        # from an exact key column.
        nulls = [
            name
            for name, column in zip(shape.names, columns, strict=True)
            if column.null_count and name not in state.exact and (gone | unpack_validity(column)).all()
        ]
        return Rows.from_columns(columns, shape, self.rows.num_rows, nulls)

    def column(self, name: str) -> pa.Array:
        """Return a column of the full rows."""
        return self.keyed.columns[name]

    def hidden_column(self, name: str) -> pa.Array:
        """Return a hidden column, which is stored with the row."""
        return self.rows.column(name[7:])

    def count_verdicts(self, outcome: Any, counts: Ints) -> tuple[Ints, Flags | None]:
        """Return int64[8], the number of events with each verdict, and the verdict of each event.

        The verdicts are None if each row is an event.
        """
        absent = self.keyed.absent
        return counts - np.bincount((outcome[absent] >> OUTCOME) & 7, minlength=8) if absent.size else counts, None

    def winner_orders(self, out: Outcomes, rows: Ints) -> list[pa.Array]:
        """Return the order columns of the keys of given events after the events' times; null without an order."""
        order, winner, events = self.order, out.winner[rows], self.rows
        groups = np.unique(-1 - winner[(winner < 0) & (winner != NOTHING)])
        prior = self._gather_prior_rows(groups) if order.hidden and groups.size else None
        if groups.size:
            values = order.decode_orders(self.keyed.prior.order[groups], prior)
        at = np.where(winner >= 0, winner, events.num_rows + np.searchsorted(groups, -1 - winner))
        place = pa.array(at, mask=winner == NOTHING)
        made = []
        for i, field in enumerate(order.fields):
            parts = [events.column(field.name)]
            if groups.size:
                old = values[i]
                parts.append(old.combine_chunks() if isinstance(old, pa.ChunkedArray) else old)
            made.append(pa.concat_arrays(parts).take(place))
        return made

    def _gather_prior_rows(self, groups: Ints) -> pa.Table:
        arranged = self.state.output_arrangement
        return gather_table(arranged.prepare_row_pool(), self.keyed.prior.reference[groups], arranged.schema)

    def _rank_orders(self, order: Order) -> None:
        """Compute the order words that are ranks among the events and the stored state of their keys."""
        prior = self.keyed.prior
        # Ignore expired tombstones, because a merge has possibly removed their rows.
        held = (prior.reference != 0) & (prior.reference & LAPSED == 0)
        groups = np.flatnonzero(held) if order.keeps else np.empty(0, np.int64)
        old = prior.order[groups] if order.keeps else np.empty((0, order.event_word_count), np.int64)
        rows = self._gather_prior_rows(groups) if groups.size else None
        lives = (prior.reference[groups] & LIVE != 0).astype(np.uint8)
        order.write_ranked_words(
            self.keyed.events.rows, self.keyed.gone, self.words, rows, lives, old, self.state.secret
        )
        if groups.size:
            prior.order[groups] = old

    def _sort_by_base_words(self) -> Narrow:
        """Sort the events of each key and time by their base words, so that ties are neighbours."""
        groups = np.repeat(np.arange(self.by.starts.size - 1), np.diff(self.by.starts))
        at = self.by.permutation
        base = [self.words[at, w] for w in range(self.rules.base)]
        return at[np.lexsort((*reversed(base), self.mark[at] >> 1, groups))]

    def build_tie_error(self, row: int) -> TieRefused:
        """Build the error for a tie that ``tie="error"`` refuses."""
        spec, rows = self.state.bound.spec, self.keyed.events.rows
        key, order = (row_values(rows.select(list(names)), row) for names in (spec.key, spec.order_by))
        time = format_time(int(self.keyed.events.times[row]), self.state.bound.time_type)
        return TieRefused(
            f"a step of {self.state.bound.name!r}",
            f"the key {key} has two events of order {order} at time {time}",
            ErrorText(
                "fix the feed, or choose ", Option("tie", "last"), ", 'first' or 'greatest'; nothing was changed"
            ),
            input=self.state.bound.name,
        )


class Resolved:
    """The resolved events of one input in a step: verdicts, the versions of keys, and m updates.

    ``out``: the outcome of each row. ``spans``: the ranges of keys that were resolved separately. ``done``: for each
    span, the numbers of updates and of versions, the row that caused an error (or -1), and the growth in live keys and
    in tombstones. ``about``, ``diffs``, ``ranks``: the row, the diff and the time rank of each update. ``parts``:
    ranges of rows, and of their updates. ``counts``: int64[8], the number of events by verdict.

    >>> from ddflow.columns.hashing import Secret
    >>> from ddflow.operators.updates import ints
    >>> from ddflow.operators.upsert.events import Events
    >>> from ddflow.plan.inputs.bind import bind_upserts
    >>> from ddflow.plan.inputs.spec import Upsert
    >>> schema = pa.schema({"k": pa.int64(), "v": pa.string()})
    >>> state = UpsertState(bind_upserts("rows", schema, Upsert("k")), Secret(1, 2))
    >>> events = pa.record_batch({"k": [7, 8, 7], "v": ["a", "b", "c"]}, schema=schema)
    >>> keyed = state.sort_by_key(Events(events, ints(0, 0, 0), ints(0, 0, 0), ints(0, 1, 2)), ints(0), since=0)
    >>> resolved = Resolved(state, keyed, FullRows(state, keyed, 0), winners=False)
    >>> resolved.updates(schema).to_table(schema, None).to_pylist()
    [{'k': 8, 'v': 'b', '_diff': 1}, {'k': 7, 'v': 'c', '_diff': 1}]
    """

    def __init__(self, state: UpsertState, keyed: KeyedEvents, rows: FullRows | MergedRows, winners: bool) -> None:
        """Resolve events. O(n). Raises `TieRefused`.

        ``rows``: the full rows to resolve. ``winners``: whether a caller needs `winner_orders`.
        """
        self.upsert, self.bound, self.keyed, self.rows = state, state.bound, keyed, rows
        self._pool: RowPool | None = None
        self._changes: list[ArrangementChange] | None = None
        self.out, self.spans, self.done = self._resolve_keys(winners)
        self.about, self.diffs, self.ranks, self.parts, counts = self._emit_updates()
        self.counts, self._verdict = rows.count_verdicts(self.out.outcome, counts)

    def _resolve_keys(self, winners: bool) -> tuple[Outcomes, Spans, list[tuple[int, int, int, int, int]]]:
        """Resolve the keys, divided into spans for several threads. Each span writes its own range of versions."""
        state, keyed, rows, prior = self.upsert, self.keyed, self.rows, self.keyed.prior
        n, order = rows.value.size, state.order
        kept = (
            np.empty
            if n < SMALL
            else Arena.with_capacity(n * (9 + 8 * state.wide + 8 * (not keyed.settled)) + 2048).empty
        )
        keeps = bool(order.words or order.hidden)
        room = state.arena.choose_allocator(n), kept
        out = allocate_outcomes(n, prior.reference.size, state.wide, winners, *room, not keyed.settled, keeps)
        if keyed.left.size and rows.by is keyed.by:
            out.outcome[keyed.left] = keyed.left_verdict << OUTCOME
            if out.winner.size:
                out.winner[keyed.left] = NOTHING
        by, starts = rows.by, rows.by.starts
        work = SortedEvents(rows.permutation, starts, by.high, by.low, rows.mark, keyed.times, rows.words, rows.value)

        def span(begin: int, end: int) -> tuple[int, int, int, int, int]:
            at, to = int(starts[begin]), int(starts[end])
            mine = work._replace(starts=starts[begin : end + 1])
            return resolve_keys(mine, prior.slice_keys(begin, end), rows.rules, out.slice_versions(at, to, begin, end))

        threads = ALONE if out.winner.size else state.threads
        spans = cut_shards(by, threads)
        done = threads.run_in_parallel(span, spans) if len(spans) > 1 else [resolve_keys(work, prior, rows.rules, out)]
        for _, _, refused, _, _ in done:
            if refused >= 0:
                raise rows.build_tie_error(refused)
        return out, spans, done

    def _emit_updates(self) -> tuple[Any, Ints, Narrow, list[tuple[int, int, int, int]], Ints]:
        """Count the rows by verdict, and build the updates. O(n)."""
        threads, arena, outcome, mark = self.upsert.threads, self.upsert.arena, self.out.outcome, self.rows.mark
        n = sum(map(itemgetter(0), self.done))
        empty = arena.choose_allocator(n)
        about, diffs, ranks = empty(n, np.int64), np.empty(n, np.int64), empty(n, np.int32)
        spans, parts = threads.cut_spans(outcome.size, EMITTED), [(0, outcome.size, 0, n)]
        if len(spans) > 1:
            ends = np.cumsum([0, *(count_updates(outcome[a:b], mark[a:b]) for a, b in spans)]).tolist()
            parts = [(a, b, ends[i], ends[i + 1]) for i, (a, b) in enumerate(spans)]

        counts = np.zeros((len(parts), 8), np.int64)
        out = [(about[c:d], diffs[c:d], ranks[c:d], counts[i]) for i, (_, _, c, d) in enumerate(parts)]
        threads.run_in_parallel(
            emit_updates, [(outcome[a:b], mark[a:b], a, *out[i]) for i, (a, b, _, _) in enumerate(parts)]
        )
        return about, diffs, ranks, parts, counts.sum(0) if len(parts) > 1 else counts[0]

    @property
    def events(self) -> Any:
        """The events of the step."""
        return self.keyed.events

    @property
    def expiry(self) -> ExpiryChange:
        """The change of the input's expiry."""
        return self.keyed.expiry

    @property
    def verdict(self) -> Flags:
        """uint8[n]: the verdict of each event.  O(n)."""
        if self._verdict is not None:
            return self._verdict
        return ((self.out.outcome >> OUTCOME) & 7).astype(np.uint8)

    @property
    def received_positions(self) -> Ints:
        """int64[m]: the positions of the received events, which excludes generated events. O(n)."""
        return np.delete(np.arange(self.events.times.size), self.keyed.absent)

    def winner_orders(self, rows: Ints) -> list[pa.Array]:
        """Return the order columns of the keys of given events after the events' times; null without an order.

        O(rows + keys) for each column.
        """
        return self.rows.winner_orders(self.out, rows)

    def column_from_events(self, name: str) -> pa.Array | None:
        """Build a column of the updates from the events that caused them, if both have exactly the same values.

        Return None if the values possibly differ, or the type is not 64 bits wide. O(events).
        """
        state, hashes = self.upsert, NONE
        if not (name in state.exact or self._can_unhash_column(name)):
            return None
        column = self.rows.column(name)
        if name not in state.exact:
            hashes = self.rows.value
        elif fixed_width(column.type) != 8 or column.null_count:
            return None
        out = np.empty(self.diffs.size, np.uint64)
        start = column.buffers()[1].address + 8 * column.offset
        outcome, mark = self.out.outcome, self.rows.mark
        given = [
            (outcome[a:b], mark[a:b], np.uint64(start + 8 * a), hashes[a:b], *state.secret.words, out[begin:end])
            for a, b, begin, end in self.parts
        ]
        state.threads.run_in_parallel(emit_values, given)
        return pa.Array.from_buffers(column.type, out.size, [None, pa.py_buffer(out)], 0)

    def _can_unhash_column(self, name: str) -> bool:
        """Return whether the values of a column can be computed from row hashes.

        The values can be computed only for a column without nulls, because a null has a hash like any value.
        """
        return name == self.upsert.hashed and not self.pool.holes >> self.pool.at[name] & 1

    @property
    def pool(self) -> RowPool:
        """The pool that the references of updates point into."""
        if self._pool is None:
            self._pool = self.upsert.arrangements[0].prepare_row_pool(self.rows.payload())
        return self._pool

    def updates(self, schema: pa.Schema) -> Updates:
        """Return the differences, sorted by time. A column is gathered on its first read. O(updates)."""
        # If there are few values, they are gathered together with the other columns, in one kernel.
        near = None if self.diffs.size < SMALL else self.column_from_events
        rows = RowView(self.pool, self.about, schema, near)
        return tuple.__new__(Updates, (rows, self.ranks, self.diffs, self.keyed.times))

    @property
    def changes(self) -> list[ArrangementChange]:
        """The changes to apply to the state, in ascending order of identities. O(versions), once."""
        if self._changes is None:
            work = [(*span, done[1], done[3], done[4]) for span, done in zip(self.spans, self.done, strict=True)]
            if len(work) == 1:
                self._changes = [self._build_change(*work[0])]
            else:
                self._changes = self.upsert.threads.run_in_parallel(self._build_change, work)
        return self._changes

    def _build_stored_columns(self, out: Outcomes) -> list[Column]:
        """Build the rows of versions.

        A column with a reversible hash is computed from its hashes. Other columns are gathered by reference.
        """
        state, words = self.upsert, dict[str, Column]()
        described = self.pool.describe_columns(state.stored)
        if out.row.size < SMALL:
            return gather_columns_of_pool(self.pool, out.row, described.values())
        if state.identity is not None or state.hashed is not None:
            for name, hashes, keep in ((state.identity, out.high, ALL), (state.hashed, out.value, out.live)):
                if name is not None and (name == state.identity or self._can_unhash_column(name)):
                    values = np.empty(hashes.size, np.uint64)
                    unmix_words(hashes, keep, *state.secret.words, values)
                    kind = self.pool.schema.field(name).type
                    words[name] = ColumnBuffers(kind, hashes.size, [None, pa.py_buffer(values)], 0)
        others = [column for name, column in described.items() if name not in words]
        rest = iter(gather_columns_of_pool(self.pool, out.row, others))
        return [words[name] if name in words else next(rest) for name in described]

    def _holds_only_events(self, out: Outcomes) -> bool:
        """Return whether each version has the row of an event, and no commit will write the versions to a file."""
        return not self.upsert.arrangements[0].slots.lasting and bool(((out.row >> SLOT) == 0).all())

    def _store_rows_of_events(self, out: Outcomes) -> Rows:
        """Copy the rows of versions in the order of the events, with the place of each version. O(events)."""
        kept = np.zeros(int(out.row.max()) + 1, np.bool_)
        kept[out.row] = True
        place = np.cumsum(kept, dtype=np.int32) - np.int32(1)
        columns = gather_columns_of_pool(
            self.pool, np.flatnonzero(kept), self.pool.describe_columns(self.upsert.stored).values()
        )
        return Rows.from_columns(columns, self.pool.shape, out.row.size, places=place[out.row])

    def _build_change(
        self, begin: int, end: int, versions: int, live_added: int, tombstones_added: int
    ) -> ArrangementChange:
        """Build the change of a span of keys."""
        at = int(self.rows.by.starts[begin])
        whole = len(self.spans) == 1 and versions == self.out.high.size
        out = self.out if whole else self.out.slice_versions(at, at + versions, begin, end)
        order = self.upsert.order
        if versions >= BULK and not order.hidden and self._holds_only_events(out):
            rows = self._store_rows_of_events(out)
        else:
            columns = self._build_stored_columns(out)
            for field in order.hidden:
                columns.append(self.rows.hidden_column(field.name).take(pa.array(out.event)))
            rows = Rows.from_columns(columns, self.pool.shape, versions)
        words = self.rows.words[out.event] if order.words else np.empty((versions, 0), np.int64)
        high, low, live = out.high, out.low, out.live
        time = out.time
        if self.keyed.settled:
            time = repeat_value(int(self.keyed.times[-1]), versions, np.int64)
        if versions < self.out.high.size // 2 // len(self.spans):
            # Copy the rows, because a slice would keep the whole array in memory.
            high, low, live = high.copy(), low.copy(), live.copy()
            time = time if self.keyed.settled else time.copy()
        batch = Batch(high, low, time, live, NONE, words, rows)
        keyed = self.keyed
        place = keyed.prior.place[begin:end]
        change = batch, out.value, out.last, place, keyed.built, live_added, tombstones_added
        return tuple.__new__(ArrangementChange, change)
