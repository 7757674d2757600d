"""The upsert operator: sealed events in, differences out, against the arrangement of its own output.

Invariant: accumulating what it emitted up to any time gives one row for each live key, the row that won; the
arrangement is that collection, so the state costs nothing beyond the index one would want anyway.  The journey: events
are identified and sorted, what their keys hold is looked up, a kernel judges all of them without touching payload, and
only the rows that changed hands are gathered.  Why that is not trivial: nothing may change until the whole step, of
all sources, is known to succeed; so `judge` computes a `Judgement`, and `apply` takes it.
(McSherry, "Upserts in differential dataflow"; differential-dataflow's ``arrange_from_upsert``.)

>>> import pyarrow as pa
>>> from ddflow.binding import bind
>>> from ddflow.spec import Upsert as Spec
>>> schema = pa.schema({"k": pa.string(), "v": pa.string()})
>>> upsert = Upsert(bind("names", schema, Spec("k")), Secret(1, 2))
>>> events = pa.record_batch({"k": ["frank"] * 2, "v": ["mcsherry", "zappa"]}, schema)
>>> sealed = Sealed(events, ints(0, 1), ints(0, 1), ints(0, 1))
>>> upsert.judge(sealed, ints(0, 1), since=1).updates(schema).to_table(schema, pa.int64()).column("_diff").to_pylist()
[1, -1, 1]
"""

from __future__ import annotations

from functools import cached_property

import numpy as np
import pyarrow as pa

from ddflow.arrange.arrangement import Arrangement, Change
from ddflow.batcher import Sealed
from ddflow.binding import Bound
from ddflow.errors import TieRefused
from ddflow.identity import Flags, Ints, Secret, identities, is_wide, value_hashes
from ddflow.kernels.resolve import ERROR, LIVE, NOTHING, Events, Held, Judged, Rules, judge, judged
from ddflow.kernels.sort import order_updates
from ddflow.operators.updates import Updates, ints, time_ranks
from ddflow.order import Order
from ddflow.rows import Rows, gather, shown_row
from ddflow.sorting import Sorted, sort

__all__ = ["Judgement", "Upsert", "ints"]


class Upsert:
    """``bound``: the source's spec and schema.  State: one live row a key, with the order it was won by."""

    def __init__(self, bound: Bound, secret: Secret) -> None:
        self.bound, self.secret, self.order = bound, secret, Order(bound)
        stored = pa.schema([*bound.row_schema, *self.order.hidden])
        self.arranged = Arrangement(stored, is_wide(bound.key_schema), self.order.words, self.order.keeps)

    def judge(self, sealed: Sealed, times: Ints, since: int, winners: bool = True) -> Judgement:
        """Compute the outcome of sealed events; nothing changes.

        ``times``: the step's distinct times, ascending.  ``since``: what it will be after the step.  ``winners``:
        whether anybody asks for `Judgement.winner_orders`.  O(n) expected.  Raises `TieRefused` under ``tie="error"``.
        """
        return Judgement(self, sealed, times, since, winners)

    def apply(self, judgement: Judgement, upper: int, since: int) -> None:
        """Take a judgement into the state.  Amortised O(versions)."""
        self.arranged.apply(judgement.change, upper, since)


class Judgement:
    """The outcome of one step's events of one source, and what to make of it."""

    def __init__(self, upsert: Upsert, sealed: Sealed, times: Ints, since: int, winners: bool) -> None:
        self.upsert, self.sealed, self.times = upsert, sealed, times
        bound, order, events = upsert.bound, upsert.order, sealed.events
        keys = pa.RecordBatch.from_arrays([events.column(n) for n in bound.spec.key], schema=bound.key_schema)
        self.by: Sorted = sort(*identities(keys, upsert.secret))
        self.gone: Flags = bound.deletes(events)
        self.value = value_hashes(events.select(bound.tracked), upsert.secret)
        self.held: Held = upsert.arranged.seek(self.by.high, self.by.low, self.by.starts[:-1])
        self.words = order.of(events, sealed.original, self.gone)
        if order.ranks:
            self._rank()
        self.ranks = time_ranks(sealed.times, times)
        self.rules = Rules(order.base, order.tie, order.ties, order.keeps,
                           int(np.searchsorted(times, since, side="right")) - 1)  # fmt: skip
        self.out: Judged = judged(sealed.times.size, self.held.reference.size, winners)
        permutation = self._by_order() if order.tie == ERROR else self.by.permutation
        ranks = self.ranks if times.size > 1 else np.empty(0, np.int64)
        work = Events(permutation, self.by.starts, ranks, self.words, self.gone, self.value)
        self.updated, self.versions, refused = judge(work, self.held, self.rules, self.out)
        if refused >= 0:
            self._refuse_tie(refused)

    @cached_property
    def payload(self) -> Rows:
        """The events' rows as the arrangement stores them."""
        events, order = self.sealed.events, self.upsert.order
        columns = [events.column(n) for n in self.upsert.bound.row_schema.names]
        columns += [events.column(f.name) for f in order.fields] if order.hidden else []
        return Rows(pa.RecordBatch.from_arrays(columns, schema=self.upsert.arranged.schema))

    def updates(self, schema: pa.Schema) -> Updates:
        """The differences, in the order of their times; only ``schema``'s columns are gathered.  O(updates)."""
        out, n = self.out, self.updated
        ranks, sources, diffs = np.empty(n, np.int64), np.empty(n, np.int64), np.empty(n, np.int64)
        order_updates(out.update_rank[:n], out.update_source[:n], np.int64(self.times.size), ranks, sources, diffs)
        rows = gather(self.upsert.arranged.sources(self.payload), sources, schema)
        return Updates(rows, ranks, diffs, self.times)

    @cached_property
    def change(self) -> Change:
        """What the state must take in.  O(versions)."""
        out, n, by = self.out, self.versions, self.by
        events, key = out.version_event[:n], out.version_place[:n]
        arranged, order = self.upsert.arranged, self.upsert.order
        table = gather(arranged.sources(self.payload), out.version_row[:n], self.upsert.bound.row_schema)
        for field in order.hidden:
            table = table.append_column(field, self.sealed.events.column(field.name[7:]).take(pa.array(events)))
        return Change(
            by.high[key], by.low[key] if by.low.size else by.low,
            self.sealed.times[events], np.uint8(1) - self.gone[events],
            self.value[events], self.words[events] if order.words else np.empty((n, 0), np.int64), table,
            out.last[out.last >= 0],
        )  # fmt: skip

    def winner_orders(self, rows: Ints) -> list[pa.Array]:
        """For each of some rows, the order columns' values that its key holds after that time; null for none.

        O(rows + keys) a column.
        """
        winner, events = self.out.winner[rows], self.sealed.events
        groups = np.unique(-1 - winner[(winner < 0) & (winner != NOTHING)])
        held = self._held_rows(groups) if self.upsert.order.hidden and groups.size else None
        if groups.size:
            values = self.upsert.order.values(self.held.order[groups], held)
        place = np.where(winner >= 0, winner, events.num_rows + np.searchsorted(groups, -1 - winner))
        place = pa.array(place, mask=winner == NOTHING)
        out = []
        for i, field in enumerate(self.upsert.order.fields):
            parts = [events.column(field.name)]
            if groups.size:
                old = values[i]
                parts.append(old.combine_chunks() if isinstance(old, pa.ChunkedArray) else old)
            out.append(pa.concat_arrays(parts).take(place))
        return out

    def _held_rows(self, groups: Ints) -> pa.Table:
        arranged = self.upsert.arranged
        return gather(arranged.sources(), self.held.reference[groups], arranged.schema)

    def _rank(self) -> None:
        """Rank what has no word of its own, among the events and what their keys hold."""
        order, held = self.upsert.order, self.held
        groups = np.flatnonzero(held.reference != 0) if order.keeps else np.empty(0, np.int64)
        old = held.order[groups] if order.keeps else np.empty((0, order.width), np.int64)
        rows = self._held_rows(groups) if groups.size else None
        lives = (held.reference[groups] & LIVE != 0).astype(np.uint8)
        order.rank(self.sealed.events, self.gone, self.words, rows, lives, old, self.upsert.secret)
        if groups.size:
            held.order[groups] = old

    def _by_order(self) -> Ints:
        """The permutation with each key and time's events in the order of their base words: ties stand side by side."""
        groups = np.repeat(np.arange(self.by.starts.size - 1), np.diff(self.by.starts))
        at = self.by.permutation
        base = [self.words[at, w] for w in range(self.rules.base)]
        return at[np.lexsort((*reversed(base), self.ranks[at], groups))]

    def _refuse_tie(self, row: int) -> None:
        spec, events = self.upsert.bound.spec, self.sealed.events
        key, order = (shown_row(events.select(list(names)), row) for names in (spec.key, spec.order_by))
        raise TieRefused(f"a step of {self.upsert.bound.name!r}",
                         f"the key {key} has two events of order {order} at time {self.sealed.times[row]}",
                         "mend the feed, or choose tie='last', 'first' or 'greatest'; nothing was changed")  # fmt: skip
