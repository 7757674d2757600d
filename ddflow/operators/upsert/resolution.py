"""The outcome of one step's events of one input: resolve, emit, and what to make of it.

Invariant: nothing of the state changes here. `resolve` gives each row a verdict and each key its versions, without
touching payload; `emit` writes the updates, in the order of rows; columns are gathered when somebody reads them.

>>> from ddflow.columns.hashing import Secret
>>> from ddflow.operators.updates import ints
>>> from ddflow.operators.upsert.events import Events
>>> from ddflow.operators.upsert.upsert import FullRows
>>> from ddflow.plan.inputs.bind import bind_upserts
>>> from ddflow.plan.inputs.spec import Upsert
>>> schema = pa.schema({"k": pa.int64(), "v": pa.string()})
>>> state = UpsertState(bind_upserts("rows", schema, Upsert("k")), Secret(1, 2))
>>> events = pa.record_batch({"k": [7, 8, 7], "v": ["a", "b", "c"]}, schema=schema)
>>> keyed = state.sort_by_key(Events(events, ints(0, 0, 0), ints(0, 0, 0), ints(0, 1, 2)), ints(0), since=0)
>>> resolution = Resolution(state, keyed, FullRows(state, keyed, 0), winners=False)
>>> resolution.updates(schema).to_table(schema, None).to_pylist()
[{'k': 8, 'v': 'b', '_diff': 1}, {'k': 7, 'v': 'c', '_diff': 1}]
"""

from functools import cached_property
from operator import itemgetter
from typing import Any, NamedTuple, Protocol

import numpy as np
import pyarrow as pa

from ddflow.columns.hashing import NONE, Flags, Ints, Narrow, Words
from ddflow.columns.layout import SMALL, Arena, Column, Laid, width
from ddflow.columns.rows import RowPool, Rows, View, lay_out
from ddflow.columns.sorting import Sorted, shards
from ddflow.columns.threads import ALONE
from ddflow.errors import DdflowError
from ddflow.kernels.emit import emit as emit_updates
from ddflow.kernels.emit import emit_values, tally
from ddflow.kernels.identity import unmix_words
from ddflow.kernels.resolve import (
    FORGOTTEN,
    NOTHING,
    OUTCOME,
    Outcomes,
    Rules,
    SortedEvents,
    allocate_outcomes,
    resolve_keys,
)
from ddflow.operators.updates import Updates
from ddflow.operators.upsert.events import Keyed, Seen
from ddflow.operators.upsert.state import UpsertState
from ddflow.trace.batch import Batch, Change, same

ALL: Flags = np.empty(0, np.uint8)
EMITTED = 4
"""Nanoseconds that the updates of an event take, about."""


class Weighed(Protocol):
    """The full rows that compete, and by what: those of the events, or those that a fold made of them."""

    by: Sorted
    permutation: Narrow
    mark: Narrow
    words: Ints
    """int64[n, words]: order words."""
    value: Words
    """uint64[n]: hashes of what counts in "did it change"."""
    rules: Rules

    def column(self, name: str) -> pa.Array:
        """Return a column of the full rows."""

    def payload(self) -> Rows:
        """Return the full rows as the arrangement stores them."""

    def hidden(self, name: str) -> pa.Array:
        """Return a column that is kept next to the payload."""

    def tie(self, row: int) -> DdflowError:
        """Build the error for a tie that ``tie="error"`` refuses."""

    def verdicts(self, outcome: Any, counts: Ints) -> tuple[Ints, Flags | None]:
        """int64[8] events by verdict, and the verdict of each event; None where the rows are the events."""

    def winner_orders(self, out: Outcomes, rows: Ints) -> list[pa.Array]:
        """For each of some events, the order columns' values that its key holds after that time; null for none."""


class Resolved(NamedTuple):
    """What became of each row, and the versions of each key."""

    out: Outcomes
    spans: list[tuple[int, int]]
    """Of keys: each was resolved on its own."""
    done: list[tuple[int, int, int, int, int]]
    """By span: updates, versions, the row refused (or -1), how many more keys live, how many more tombstones."""


class Emitted(NamedTuple):
    """m updates: by which row, their diffs and the ranks of their times."""

    about: Any
    diffs: Ints
    ranks: Narrow
    parts: list[tuple[int, int, int, int]]
    """Spans of rows, and of the updates that these caused."""
    counts: Ints
    """int64[8]: rows by verdict."""


def resolve(state: UpsertState, keyed: Keyed, weighed: Weighed, winners: bool) -> Resolved:
    """Resolve the keys, in spans of them where there are several threads; each writes versions of its own.

    ``winners``: whether anybody asks for `Resolution.winner_orders`.  O(n).  Raises `TieRefused`.
    """
    n, order, prior = weighed.value.size, state.order, keyed.prior
    kept = np.empty if n < SMALL else Arena.of(n * (9 + 8 * state.wide + 8 * (not keyed.settled)) + 2048).empty
    keeps = bool(order.words or order.hidden)
    room = state.arena.room(n), kept
    out = allocate_outcomes(n, prior.reference.size, state.wide, winners, *room, not keyed.settled, keeps)
    if keyed.left.size and weighed.by is keyed.by:
        out.outcome[keyed.left] = FORGOTTEN << OUTCOME
        if out.winner.size:
            out.winner[keyed.left] = NOTHING
    by, starts = weighed.by, weighed.by.starts
    work = SortedEvents(
        weighed.permutation, starts, by.high, by.low, weighed.mark, keyed.times, weighed.words, weighed.value
    )

    def span(begin: int, end: int) -> tuple[int, int, int, int, int]:
        at, to = int(starts[begin]), int(starts[end])
        mine = work._replace(starts=starts[begin : end + 1])
        return resolve_keys(mine, prior.span(begin, end), weighed.rules, out.span(at, to, begin, end))

    threads = ALONE if out.winner.size else state.threads
    spans = shards(by, threads)
    done = threads.each(span, spans) if len(spans) > 1 else [resolve_keys(work, prior, weighed.rules, out)]
    for _, _, refused, _, _ in done:
        if refused >= 0:
            raise weighed.tie(refused)
    return Resolved(out, spans, done)


def emit(state: UpsertState, weighed: Weighed, resolved: Resolved) -> Emitted:
    """Count the verdicts and write the updates: by which row, the diff, the rank of the time.  O(n)."""
    threads, arena, outcome, mark = state.threads, state.arena, resolved.out.outcome, weighed.mark
    n = sum(map(itemgetter(0), resolved.done))
    empty = arena.room(n)
    about, diffs, ranks = empty(n, np.int64), np.empty(n, np.int64), empty(n, np.int32)
    spans, parts = threads.spans(outcome.size, EMITTED), [(0, outcome.size, 0, n)]
    if len(spans) > 1:
        ends = np.cumsum([0, *(tally(outcome[a:b], mark[a:b]) for a, b in spans)]).tolist()
        parts = [(a, b, ends[i], ends[i + 1]) for i, (a, b) in enumerate(spans)]

    counts = np.zeros((len(parts), 8), np.int64)
    out = [(about[c:d], diffs[c:d], ranks[c:d], counts[i]) for i, (_, _, c, d) in enumerate(parts)]
    threads.each(emit_updates, [(outcome[a:b], mark[a:b], a, *out[i]) for i, (a, b, _, _) in enumerate(parts)])
    return Emitted(about, diffs, ranks, parts, counts.sum(0) if len(parts) > 1 else counts[0])


class Resolution:
    """The outcome of one step's events of one input.  ``counts``: int64[8], events by verdict."""

    def __init__(self, state: UpsertState, keyed: Keyed, weighed: Weighed, winners: bool) -> None:
        self.upsert, self.bound, self.keyed, self.weighed = state, state.bound, keyed, weighed
        self.resolved = resolve(state, keyed, weighed, winners)
        self.emitted = emit(state, weighed, self.resolved)
        self.counts, self._verdict = weighed.verdicts(self.resolved.out.outcome, self.emitted.counts)

    @property
    def events(self) -> Any:
        """The events."""
        return self.keyed.events

    @property
    def seen(self) -> Seen:
        """What it brings for the next step, where keys expire."""
        return self.keyed.seen

    @property
    def verdict(self) -> Flags:
        """uint8[n]: the verdict of each event.  O(n)."""
        if self._verdict is not None:
            return self._verdict
        return ((self.resolved.out.outcome >> OUTCOME) & 7).astype(np.uint8)

    @property
    def given(self) -> Ints:
        """int64[m]: the events that somebody gave.  O(n)."""
        return np.delete(np.arange(self.events.times.size), self.keyed.absent)

    def winner_orders(self, rows: Ints) -> list[pa.Array]:
        """For each of some events, the order columns' values that its key holds after that time; null for none.

        O(rows + keys) a column.
        """
        return self.weighed.winner_orders(self.resolved.out, rows)

    def near(self, name: str) -> pa.Array | None:
        """Build a column of the updates from the events that caused them, if these hold the very same values.

        None for few updates, if the values may differ, or if the type is not 64 bits wide.  O(events).
        """
        state, hashes = self.upsert, NONE
        # A few are gathered with the other columns, all in one kernel.
        if self.emitted.diffs.size < SMALL or not (name in state.exact or self._unhashes(name)):
            return None
        column = self.weighed.column(name)
        if name not in state.exact:
            hashes = self.weighed.value
        elif width(column.type) != 8 or column.null_count:
            return None
        out = np.empty(self.emitted.diffs.size, np.uint64)
        start = column.buffers()[1].address + 8 * column.offset
        outcome, mark = self.resolved.out.outcome, self.weighed.mark
        parts = self.emitted.parts
        given = [
            (outcome[a:b], mark[a:b], np.uint64(start + 8 * a), hashes[a:b], *state.secret.words, out[begin:end])
            for a, b, begin, end in parts
        ]
        state.threads.each(emit_values, given)
        return pa.Array.from_buffers(column.type, out.size, [None, pa.py_buffer(out)], 0)

    def _unhashes(self, name: str) -> bool:
        """Whether the hashes of rows give a column's values: no row has a null in it, which has a hash as well."""
        return name == self.upsert.hashed and not self.pool.holes >> self.pool.at[name] & 1

    @cached_property
    def pool(self) -> RowPool:
        """What the updates' rows are gathered from."""
        return self.upsert.arranged.pool(self.weighed.payload())

    def updates(self, schema: pa.Schema) -> Updates:
        """Return the differences, in the order of their times; a column is gathered on its first read.  O(updates)."""
        about, diffs, ranks, *_ = self.emitted
        return Updates(View(self.pool, about, schema, self.near), ranks, diffs, self.keyed.times)

    @cached_property
    def changes(self) -> list[Change]:
        """What the state must take in, by ascending identities.  O(versions)."""
        both = zip(self.resolved.spans, self.resolved.done, strict=True)
        return self.upsert.threads.each(self._change, [(*span, *done[1::2], done[4]) for span, done in both])

    def _build_stored_columns(self, out: Outcomes) -> list[Column]:
        """Build the rows of versions: words from their hashes if these can be reversed, the rest by reference."""
        state, words = self.upsert, dict[str, Column]()
        if out.row.size >= SMALL:
            for name, hashes, keep in ((state.identity, out.high, ALL), (state.hashed, out.value, out.live)):
                if name is not None and (name == state.identity or self._unhashes(name)):
                    values = np.empty(hashes.size, np.uint64)
                    unmix_words(hashes, keep, *state.secret.words, values)
                    kind = self.pool.schema.field(name).type
                    words[name] = Laid(kind, hashes.size, [None, pa.py_buffer(values)], 0)
        rest = iter(lay_out(self.pool, out.row, [field for field in state.stored if field.name not in words]))
        return [words[field.name] if field.name in words else next(rest) for field in state.stored]

    def _change(self, begin: int, end: int, versions: int, live_added: int, tombstones_added: int) -> Change:
        """Build the change of a span of keys."""
        at = int(self.weighed.by.starts[begin])
        out, whole = self.resolved.out, len(self.resolved.spans) == 1 and versions == self.resolved.out.high.size
        out = out if whole else out.span(at, at + versions, begin, end)
        order, shape = self.upsert.order, self.pool.shape
        columns = self._build_stored_columns(out)
        for field in order.hidden:
            columns.append(self.weighed.hidden(field.name).take(pa.array(out.event)))
        rows = Rows.of(columns, shape, versions)
        words = self.weighed.words[out.event] if order.words else np.empty((versions, 0), np.int64)
        high, low, live = out.high, out.low, out.live
        time = same(int(self.keyed.times[-1]), versions, np.int64) if self.keyed.settled else out.time
        if versions < self.resolved.out.high.size // 2 // len(self.resolved.spans):
            # Else the room of those that are not there would be kept with them.
            high, low, live = high.copy(), low.copy(), live.copy()
            time = time if self.keyed.settled else time.copy()
        batch = Batch(high, low, time, live, NONE, words, rows)
        return Change(
            batch,
            out.value,
            out.last,
            self.keyed.prior.place[begin:end],
            self.keyed.built,
            live_added,
            tombstones_added,
        )
