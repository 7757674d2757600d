"""The upsert operator: sealed events in, differences out, against the arrangement of its own output.

Invariant: accumulating what it emitted up to any time gives one row for each live key, the row that won; the
arrangement is that collection, so the state costs nothing beyond the index one would want anyway. The journey: events
are identified and sorted, what their keys hold is looked up, a kernel judges all of them without touching payload, and
only the rows that changed hands are gathered. Nothing may change until the whole step, of all sources, is known to
succeed; so `judge` computes a `Judgement`, and `apply` takes it. (McSherry, "Upserts in differential dataflow";
differential-dataflow's ``arrange_from_upsert``.)

>>> import pyarrow as pa
>>> from ddflow.plan.bind import bind
>>> from ddflow.plan.spec import Upsert
>>> schema = pa.schema({"k": pa.string(), "v": pa.string()})
>>> upsert = RunningUpsert(bind("names", schema, Upsert("k")), Secret(1, 2))
>>> events = pa.record_batch({"k": ["frank"] * 2, "v": ["mcsherry", "zappa"]}, schema)
>>> sealed = Sealed(events, ints(0, 1), ints(0, 1), ints(0, 1))
>>> upsert.judge(sealed, ints(0, 1), since=1).updates(schema).to_table(schema, pa.int64()).column("_diff").to_pylist()
[1, -1, 1]
"""

from __future__ import annotations

from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.types as pat

from ddflow.columns.arena import Arena
from ddflow.columns.hashing import NONE, Flags, Ints, Narrow, Secret, Words, identities, is_wide, validity, value_hashes
from ddflow.columns.rows import Rows, Sources, View, gather, plainly, shown_row, width
from ddflow.columns.schema import is_word
from ddflow.columns.sorting import Sorted, sort
from ddflow.columns.threads import ALONE, Crew
from ddflow.errors import TieRefused
from ddflow.kernels.resolve import (
    ERROR,
    FATE,
    FORGOTTEN,
    LIVE,
    NOBODY,
    NOTHING,
    Events,
    Held,
    Judged,
    Rules,
    judge,
    judged,
)
from ddflow.kernels.spell import emit, marks, spread, tally
from ddflow.operators.base import Hashes, Readable
from ddflow.operators.updates import Updates, ints
from ddflow.operators.upsert.events import Sealed
from ddflow.operators.upsert.expiring import Expiring, Seen
from ddflow.operators.upsert.ordering import Order
from ddflow.operators.upsert.orders import orders
from ddflow.plan.bind import Bound
from ddflow.trace.arrangement import Arrangement, Change
from ddflow.trace.batch import Batch, same

__all__ = ["Judgement", "RunningUpsert", "ints"]


class RunningUpsert(Readable):
    """``bound``: the source's spec and schema.  State: one live row a key, with the order it was won by."""

    def __init__(self, bound: Bound, secret: Secret, crew: Crew = ALONE) -> None:
        self.bound, self.secret, self.crew = bound, secret, crew
        self.order = orders(bound)
        stored = pa.schema([*bound.row_schema, *self.order.hidden])
        self.contents: int | None = None
        """In a step of full contents: the arrival number from which on events stand for keys that are absent."""
        self.wide, self.arena = is_wide(bound.key_schema), Arena()
        self.arrangements = (Arrangement(stored, self.wide, self.order.words, self.order.keeps),)
        self.tracked = bound.tracked
        self.arranged.slots.sources.crew = crew
        expires = bound.spec.expiry is not None
        self.expiring = Expiring(bound, self.order, self.arranged, secret) if expires else None
        # Equal keys of these types are the same bytes, so a retraction may take its key from the event beside it.
        exact = [n for n in bound.spec.key if is_word(bound.key_schema.field(n).type)]
        self.exact = {n for n in exact if not pat.is_floating(bound.key_schema.field(n).type)}

    def identities_of(self, rows: pa.Table | pa.RecordBatch) -> tuple[Words, Words]:
        """Identities of rows.  O(rows)."""
        # A deletion's payload is filler, whose key may be null; what is null there must not be hashed as a null would
        # be, or keys of one word would get two.
        nullable = pa.schema([field.with_nullable(True) for field in self.bound.key_schema])
        schema = nullable if self.wide else self.bound.key_schema
        keys = pa.Table.from_arrays([rows.column(name) for name in schema.names], schema=schema)
        return identities(keys, self.secret, rows.num_rows)

    def rehashed(self, rows: pa.Table | pa.RecordBatch) -> Hashes:
        """See `Readable.rehashed`."""
        return *self.identities_of(rows), value_hashes(rows.select(self.bound.tracked), self.secret)

    def judge(self, sealed: Sealed, times: Ints, since: int, winners: bool = True) -> Judgement:
        """Compute the outcome of sealed events; nothing changes.

        ``times``: the step's distinct times, ascending.  ``since``: what it will be after the step.  ``winners``:
        whether anybody asks for `Judgement.winner_orders`.  O(n) expected.  Raises `TieRefused` under ``tie="error"``.
        """
        if self.bound.merging is not None:
            from ddflow.operators.upsert.merged import Merged

            return Merged(self, sealed, times, since, winners)
        return Judgement(self, sealed, times, since, winners)

    def apply(self, judgement: Judgement, upper: int, since: int) -> None:
        """Take a judgement into the state.  Amortised O(versions)."""
        self.arranged.apply(judgement.changes, upper, since)


class Judgement:
    """The outcome of one step's events of one source, and what to make of it."""

    def __init__(self, upsert: RunningUpsert, sealed: Sealed, times: Ints, since: int, winners: bool) -> None:
        self.upsert, self.sealed, self.times = upsert, sealed, times
        self.arena = upsert.arena
        self.arena.reset()
        # What is at or before since is not told apart, so one time will do for all versions; merges say the same.
        self.settled = bool(times.size) and int(times[-1]) <= since
        self._identify()
        self._weigh(since)
        n, order = self.value.size, upsert.order
        kept = Arena.of(n * (9 + 8 * upsert.wide + 8 * (not self.settled)) + 2048)
        self.out: Judged = judged(
            n,
            self.held.reference.size,
            upsert.wide,
            winners,
            self.arena.empty,
            kept.empty,
            not self.settled,
            bool(order.words or order.hidden),
        )
        self._leave_out()
        self.work = Events(
            self.permutation, self.by.starts, self.by.high, self.by.low, self.mark, times, self.words, self.value
        )
        self._resolve()
        self._spell()

    def _identify(self) -> None:
        """Sort the events by key, look up what their keys hold, and which of them delete."""
        upsert, events, bound = self.upsert, self.sealed.events, self.upsert.bound
        keys = pa.RecordBatch.from_arrays([events.column(n) for n in bound.spec.key], schema=bound.key_schema)
        self.by: Sorted = sort(*identities(keys, upsert.secret), self.arena, upsert.crew)
        self.gone: Flags = bound.deletes(events)
        full = upsert.contents
        own = NOBODY if full is None else full
        none: Ints = np.empty(0, np.int64)
        self.absent = none if own == NOBODY and upsert.expiring is None else np.flatnonzero(self.sealed.arrival >= own)
        """The events that nobody gave: each deletes a key that full contents do not name, or that is forgotten."""
        self.gone[self.absent] = 1
        self.held: Held = upsert.arranged.seek(self.by.high, self.by.low, self.by.starts[:-1], self.arena)
        self.built = upsert.arranged.index.built
        self.mark: Narrow = self.arena.empty(self.sealed.times.size, np.int32)
        marks(plainly(self.sealed.times), self.times, self.gone, self.mark)
        self.left, self.seen = none, Seen()
        """The events that decide nothing: their keys are forgotten, and they come too late."""
        if upsert.expiring is not None:
            self.seen, self.left = upsert.expiring.look(self)

    def _leave_out(self) -> None:
        """Give the events that decide nothing their verdict."""
        self.out.fate[self.left] = FORGOTTEN << FATE
        if self.out.winner.size:
            self.out.winner[self.left] = NOTHING

    def _weigh(self, since: int) -> None:
        """What is compared: value hashes, order words, in which order, by which rules."""
        upsert, order, events = self.upsert, self.upsert.order, self.sealed.events
        assert isinstance(order, Order)
        self.value = value_hashes(events.select(upsert.bound.tracked), upsert.secret)
        self.words = order.of(events, self.sealed.original, self.gone)
        if order.ranks:
            self._rank(order)
        self.rules = Rules(
            order.base,
            order.tie,
            order.ties,
            order.keeps,
            since,
            upsert.contents is not None,
            upsert.expiring is not None and upsert.expiring.forgets,
        )
        self.permutation = self._by_order() if order.tie == ERROR else self.by.permutation

    def _resolve(self) -> None:
        """Judge the keys, in spans of them where there are several threads; each writes versions of its own."""
        starts, held, out = self.by.starts, self.held, self.out
        lists = out.winner.size != 0

        def resolve(begin: int, end: int) -> tuple[int, int, int, int, int]:
            at, to = int(starts[begin]), int(starts[end])
            work = self.work._replace(starts=starts[begin : end + 1])
            return judge(work, held.span(begin, end), self.rules, out.span(at, to, begin, end))

        self.spans = ALONE.spans(starts.size - 1) if lists else self.upsert.crew.spans(starts.size - 1)
        self.resolved = self.upsert.crew.each(resolve, self.spans)
        for _, _, refused, _, _ in self.resolved:
            if refused >= 0:
                self._refuse_tie(refused)

    def _spell(self) -> None:
        """Count the verdicts and write the updates: by which event, which row, the diff, the rank of the time."""
        crew, arena, fate, mark = self.upsert.crew, self.arena, self.out.fate, self.mark
        n = sum(updates for updates, *_ in self.resolved)
        spelled: Any = (arena.empty(n, np.int64), np.empty(n, np.int64), arena.empty(n, np.int32))
        spans = crew.spans(fate.size)
        ends = [0, n]
        if len(spans) > 1:
            ends = np.cumsum([0, *crew.each(lambda a, b: tally(fate[a:b], mark[a:b]), spans)]).tolist()
        self.spelling = [(a, b, ends[i], ends[i + 1]) for i, (a, b) in enumerate(spans)]
        at = {a: (begin, end) for a, _, begin, end in self.spelling}

        def spell(a: int, b: int) -> Ints:
            begin, end = at[a]
            counts = np.zeros(8, np.int64)
            sources, diffs, ranks = (column[begin:end] for column in spelled)
            emit(fate[a:b], mark[a:b], np.int64(a), sources, diffs, ranks, counts)
            return counts

        self.counts: Ints = sum(crew.each(spell, spans), np.zeros(8, np.int64))
        self.counts -= self._nobodys()
        self.spelled = spelled

    def _nobodys(self) -> Ints:
        """int64[8]: the events that nobody gave, by verdict."""
        return np.bincount((self.out.fate[self.absent] >> FATE) & 7, minlength=8)

    def near(self, name: str) -> pa.Array | None:
        """A column of the updates from the events that caused them, where these hold the very same values.

        None where they need not, or for a type of another width than 64 bits.  O(events).
        """
        column = self.rows.column(name) if name in self.upsert.exact else None
        if column is None or width(column.type) != 8 or column.null_count:
            return None
        out = np.empty(self.spelled[0].size, np.uint64)
        start = column.buffers()[1].address + 8 * column.offset
        fate, mark, at = self.out.fate, self.mark, {a: (begin, end) for a, _, begin, end in self.spelling}
        self.upsert.crew.each(
            lambda a, b: spread(fate[a:b], mark[a:b], np.uint64(start + 8 * a), out[slice(*at[a])]),
            [(a, b) for a, b, _, _ in self.spelling],
        )
        return pa.Array.from_buffers(column.type, out.size, [None, pa.py_buffer(out)], 0)

    @property
    def rows(self) -> pa.RecordBatch:
        """The full rows that were judged: those of the events."""
        return self.sealed.events

    @property
    def verdict(self) -> Flags:
        """uint8[n]: the verdict of each event.  O(n)."""
        return ((self.out.fate >> FATE) & 7).astype(np.uint8)

    @property
    def given(self) -> Ints:
        """int64[m]: the events that somebody gave.  O(n)."""
        return np.delete(np.arange(self.sealed.times.size), self.absent)

    @cached_property
    def payload(self) -> Rows:
        """The events' rows as the arrangement stores them."""
        events, order = self.sealed.events, self.upsert.order
        assert isinstance(order, Order)
        columns = [events.column(n) for n in self.upsert.bound.row_schema.names]
        columns += [events.column(f.name) for f in order.fields] if order.hidden else []
        batch = pa.RecordBatch.from_arrays(columns, schema=self.upsert.arranged.schema)
        # A retraction may take its key from the deletion, so there a null is looked at.
        others = [i for i, f in enumerate(batch.schema) if f.name not in self.upsert.exact]
        return Rows(batch, [batch.schema.field(i).name for i in others if self._filled(columns[i])])

    def _filled(self, column: pa.Array) -> bool:
        """Whether only deletions are null in a column, which nobody will look at."""
        return bool(column.null_count) and bool((self.gone | validity(column)).all())

    @cached_property
    def sources(self) -> Sources:
        """What the updates' rows are gathered from."""
        return self.upsert.arranged.sources(self.payload)

    def updates(self, schema: pa.Schema) -> Updates:
        """The differences, in the order of their times; a column is gathered when somebody reads it.  O(updates)."""
        sources, diffs, ranks = self.spelled
        return Updates(View(self.sources, sources, schema, self.near), ranks, diffs, self.times)

    @cached_property
    def changes(self) -> list[Change]:
        """What the state must take in, by ascending identities.  O(versions)."""
        return [
            self._change(begin, end, *done[1::2], done[4])
            for (begin, end), done in zip(self.spans, self.resolved, strict=True)
        ]

    def _change(self, begin: int, end: int, versions: int, born: int, buried: int) -> Change:
        """What a span of keys brings."""
        at = int(self.by.starts[begin])
        out = self.out.span(at, at + versions, begin, end)
        order, schema = self.upsert.order, self.upsert.bound.row_schema
        table = gather(self.sources, out.row, schema)
        for field in order.hidden:
            table = table.append_column(field, self._hidden(field.name).take(pa.array(out.event)))
        words = self.words[out.event] if order.words else np.empty((versions, 0), np.int64)
        high, low, live = out.high, out.low, out.live
        time = same(int(self.times[-1]), versions, np.int64) if self.settled else out.time
        if versions < self.out.high.size // 2 // len(self.spans):
            # Else the room of those that are not there would be kept with them.
            high, low, live = high.copy(), low.copy(), live.copy()
            time = time if self.settled else time.copy()
        batch = Batch(high, low, time, live, NONE, words, Rows(table))
        return Change(batch, out.value, out.last, self.held.place[begin:end], self.built, born, buried)

    def _hidden(self, name: str) -> pa.Array:
        """A column of the judged rows that is kept beside the payload."""
        return self.rows.column(name[7:])

    def winner_orders(self, rows: Ints) -> list[pa.Array]:
        """For each of some rows, the order columns' values that its key holds after that time; null for none.

        O(rows + keys) a column.
        """
        order, winner, events = self.upsert.order, self.out.winner[rows], self.sealed.events
        assert isinstance(order, Order)
        groups = np.unique(-1 - winner[(winner < 0) & (winner != NOTHING)])
        held = self._held_rows(groups) if order.hidden and groups.size else None
        if groups.size:
            values = order.values(self.held.order[groups], held)
        place = np.where(winner >= 0, winner, events.num_rows + np.searchsorted(groups, -1 - winner))
        place = pa.array(place, mask=winner == NOTHING)
        out = []
        for i, field in enumerate(order.fields):
            parts = [events.column(field.name)]
            if groups.size:
                old = values[i]
                parts.append(old.combine_chunks() if isinstance(old, pa.ChunkedArray) else old)
            out.append(pa.concat_arrays(parts).take(place))
        return out

    def _held_rows(self, groups: Ints) -> pa.Table:
        arranged = self.upsert.arranged
        return gather(arranged.sources(), self.held.reference[groups], arranged.schema)

    def _rank(self, order: Order) -> None:
        """Rank what has no word of its own, among the events and what their keys hold."""
        held = self.held
        groups = np.flatnonzero(held.reference != 0) if order.keeps else np.empty(0, np.int64)
        old = held.order[groups] if order.keeps else np.empty((0, order.width), np.int64)
        rows = self._held_rows(groups) if groups.size else None
        lives = (held.reference[groups] & LIVE != 0).astype(np.uint8)
        order.rank(self.sealed.events, self.gone, self.words, rows, lives, old, self.upsert.secret)
        if groups.size:
            held.order[groups] = old

    def _by_order(self) -> Narrow:
        """The permutation with each key and time's events in the order of their base words: ties stand side by side."""
        groups = np.repeat(np.arange(self.by.starts.size - 1), np.diff(self.by.starts))
        at = self.by.permutation
        base = [self.words[at, w] for w in range(self.rules.base)]
        return at[np.lexsort((*reversed(base), self.mark[at] >> 1, groups))]

    def _refuse_tie(self, row: int) -> None:
        spec, events = self.upsert.bound.spec, self.sealed.events
        key, order = (shown_row(events.select(list(names)), row) for names in (spec.key, spec.order_by))
        raise TieRefused(
            f"a step of {self.upsert.bound.name!r}",
            f"the key {key} has two events of order {order} at time {self.sealed.times[row]}",
            "mend the feed, or choose tie='last', 'first' or 'greatest'; nothing was changed",
        )
