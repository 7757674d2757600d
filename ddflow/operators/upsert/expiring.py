"""Expiry at work: which keys a step forgets before it resolves, and which of its events come too late for that.

Invariant: when a step begins, every key whose order is below the horizon (the greatest order of all steps before, less
the time to live) holds nothing, whether the step has events of it or not. The horizon only rises, so a forgotten key
stays forgotten. No step may look at all keys. A deleted key needs no work: a step or a merge that meets its tombstone
compares the tombstone's order. A live key gets a deletion by its own order, so nothing older shows through. To find
such keys, all orders are looked at once in an eighth of the time to live, and the keys that will be due until the next
time are kept aside, sorted. So a key costs a few looks in its life. The deletion is an event that nobody gave; it is
resolved like any other.

>>> import pyarrow as pa, ddflow as dd
>>> flow, spec = dd.Flow(), dd.Upsert(key="id", order_by="at", expiry=dd.Expiry(ttl=30))
>>> _ = flow.output("seen", flow.upserts("seen", {"id": pa.int64(), "at": pa.int64()}, spec))
>>> with flow.open() as engine:
...     _ = engine.step({"seen": pa.table({"id": [1, 2], "at": [80, 120]})}, time=1)
...     engine.step({}, time=2)["seen"].to_pylist()
[{'id': 1, 'at': 80, '_time': 2, '_diff': -1}]
"""

from collections.abc import Iterable, Iterator, Sequence
from weakref import WeakKeyDictionary

import numpy as np
import pyarrow as pa

from ddflow.columns.hashing import NONE, Ints, RowHashes, Words
from ddflow.columns.rows import gathered
from ddflow.columns.sorting import sort
from ddflow.kernels.resolve import LAPSED, LIVE, NOBODY
from ddflow.operators.upsert.events import Events
from ddflow.operators.upsert.horizon import AHEAD, Bools, Horizons
from ddflow.operators.upsert.keyed import Keyed, Seen
from ddflow.operators.upsert.ordering import LEAST, Order
from ddflow.operators.upsert.orders import MergeOrders
from ddflow.plan.inputs.bind import Bound
from ddflow.trace.arrangement import Arrangement
from ddflow.trace.batch import Batch, Change


class Expiring:
    """Of one input.  ``horizons``: what is too old.  ``forgotten``: how many live keys were, since it was opened."""

    def __init__(self, bound: Bound, order: Order | MergeOrders, arranged: Arrangement, keys: RowHashes) -> None:
        assert bound.spec.expiry is not None
        self.bound, self.arranged, self.keys = bound, arranged, keys
        self.horizons = Horizons(bound, order)
        self.forgets = bound.spec.expiry.forgets
        self.refuses = bound.spec.expiry.on_forgotten == "refuse"
        self.forgotten = 0
        self.look_again()
        self._least: WeakKeyDictionary[Batch, int] = WeakKeyDictionary()
        arranged.lapses(self.horizons.lapsed_tombstones)

    def look_again(self) -> None:
        """Put nothing aside any more: what is held has become another.  O(1); the next step looks at all orders."""
        self._until: int | None = None
        self._until_tombstones: int | None = None
        self._written = 0
        self._words, self._high, self._low = np.empty(0, np.int64), NONE, NONE
        self._fresh: list[tuple[Ints, Words, Words]] = []

    # Before a step

    def among(self, high: Words, low: Words) -> Bools:
        """bool[n]: which of some keys, ascending, hold what is forgotten.  O(n) expected."""
        return self.horizons.lapsed(self.arranged.seek(high, low, np.arange(high.size, dtype=np.int32)))

    def due(self) -> tuple[Words, Words]:
        """Find the identities of live keys that expire now, ascending.  O(those), amortised; nothing changes."""
        rows, tombstones = self.horizons.rows, self.horizons.tombstones
        if tombstones is None:
            return NONE, NONE
        if _beyond(rows, self._until) or (_beyond(tombstones, self._until_tombstones) and self._worth()):
            self._survey(rows, tombstones)
        n = self._in_order(rows)
        if not n:
            return NONE, NONE
        by = sort(self._high[:n], self._low[:n])
        starts = by.starts[:-1]
        prior = self.arranged.seek(by.high, by.low, starts)
        now = starts[self.horizons.lapsed(prior) & (prior.reference & LIVE != 0)]
        return by.high[now], by.low[now] if by.low.size else NONE

    def _worth(self) -> bool:
        """Whether deletions of no use are to be counted: where as much came in the meantime as an eighth of the keys.

        Nothing depends on it but when merges drop them, and a time to live may be shorter than a step.
        """
        came = self.arranged.written - self._written
        return self._until_tombstones is None or came * AHEAD >= self.arranged.keys

    def _survey(self, rows: int | None, tombstones: int) -> None:
        """Look at all orders: which keys will be due soon, and how many deletions are of no use.  O(versions)."""
        horizons, self._written = self.horizons, self.arranged.written
        most = self._until_tombstones = horizons.ahead(tombstones, horizons.shorter)
        if rows is not None and horizons.ttl is not None:
            self._until = horizons.ahead(rows, horizons.ttl)
            most = max(most, self._until)
        found, useless = [(self._words[:0], NONE, NONE)], self._useless(tombstones)
        lower = {part.slot for parts in self.arranged.lower for part in parts}
        for part in self.arranged.parts:
            batch = self.arranged.slots[part.slot]
            if batch not in self._least:
                self._least[batch] = int(horizons.keys(batch.order).min())
            if self._least[batch] >= most:
                continue
            key, live = horizons.keys(batch.order[part.begin : part.end]), batch.live[part.begin : part.end] != 0
            useless += int((~live & (key < tombstones)).sum()) if part.slot in lower else 0
            if self._until is not None:
                found.append(
                    _take_versions(batch, part.begin + np.flatnonzero(live & (key < self._until)), key, part.begin)
                )
        self.arranged.useless(useless)
        self._words, self._high, self._low, self._fresh = NONE.view(np.int64), NONE, NONE, found

    def _useless(self, tombstones: int) -> int:
        """How many deleted keys of those that are indexed need not be known any more.  O(entries)."""
        references, places = self.arranged.index.walk(live=False)
        dead = places[(references & LIVE == 0) & (references & (LIVE - 1) != 0)]
        return int((self.horizons.keys(self.arranged.index.entries(dead)[3]) < tombstones).sum())

    def _in_order(self, rows: int | None) -> int:
        """Sort what was put aside by its orders; how many are below the horizon.  O(what is new log of it)."""
        if self._fresh:
            columns = zip((self._words, self._high, self._low), *self._fresh, strict=True)
            words, high, low = (np.concatenate(parts) for parts in columns)
            order = np.argsort(words, kind="stable")
            self._words, self._high, self._low = words[order], high[order], low[order] if low.size else NONE
            self._fresh = []
        return 0 if rows is None else int(np.searchsorted(self._words, max(rows, LEAST + 1)))

    def woven(
        self, pieces: Iterable[Events], due: tuple[Words, Words], time: int, most: int | None
    ) -> Iterator[Events]:
        """Add to the pieces of a step an event for each key that is due, which deletes the key.

        ``pieces``: ranges of identities, ascending.  ``most``: the limit of such events in a piece, None for no limit.
        O(events + keys due).
        """
        high, low = due
        for events in pieces:
            ids, _ = self.keys.of(events.rows)
            end = int(np.searchsorted(high, ids.max(), side="right")) if most is not None and ids.size else high.size
            yield from self._split_up(events, ids, (high[:end], low[:end]), time, most)
            high, low = high[end:], low[end:]
        if high.size:
            yield from self._split_up(None, NONE, (high, low), time, most)

    def _split_up(
        self, events: Events | None, ids: Words, due: tuple[Words, Words], time: int, most: int | None
    ) -> Iterator[Events]:
        high, low = due
        cuts = np.unique(high[most - 1 : -1 : most]) if most is not None and high.size else NONE
        where, of = np.searchsorted(cuts, high), np.searchsorted(cuts, ids)
        for number in range(cuts.size + 1):
            begin, end = np.searchsorted(where, [number, number + 1])
            forgotten = self._deleting(high[begin:end], low[begin:end], time) if begin < end else None
            part = events if events is None or not cuts.size else _take_events(events, np.flatnonzero(of == number))
            if part is not None and part.times.size:
                yield part if forgotten is None else _with(part, forgotten)
            elif forgotten is not None:
                yield forgotten

    def _deleting(self, high: Words, low: Words, time: int) -> Events:
        """Events that delete keys by the very orders that these hold.  O(n)."""
        n = high.size
        prior = self.arranged.seek(high, low, np.arange(n, dtype=np.int32))
        names = list(self.bound.spec.key)
        schema = pa.schema([self.bound.row_schema.field(name) for name in names])
        columns = dict(zip(names, gathered(self.arranged.pool(), prior.reference, schema), strict=True))
        columns[self.horizons.field.name] = self.horizons.values(prior.order)
        every = [columns[f.name] if f.name in columns else pa.nulls(n, f.type) for f in self.bound.schema]
        rows = self.bound.noted(pa.RecordBatch.from_arrays(every, schema=self.bound.schema), [])
        times = np.full(n, time)
        return Events(rows, times, times, NOBODY + np.arange(n))

    # In a step

    def look(self, keyed: Keyed) -> Keyed:
        """Note which keys hold what is forgotten, and leave out the events that come too late.

        Their verdict is ``forgotten``, or they are deletions that nobody gave, of keys that have events.  O(events).
        """
        events, full = keyed.events, keyed.full
        given = events.arrival < NOBODY
        own = self.horizons.words(events.rows)
        named = given if full is None else given & (events.arrival < full)
        most, forgotten = self.horizons.most(own[named]), int((~given).sum())
        if self.horizons.greatest is None:
            return keyed._replace(seen=Seen(most))
        prior, permutation, starts = keyed.prior, keyed.by.permutation, keyed.by.starts
        lapsed = self.horizons.lapsed(prior)
        prior.reference[lapsed] |= LAPSED
        late = np.zeros(given.size, np.bool_)
        if self.refuses and full is None:
            late = given & self.horizons.below(own, self.horizons.tombstones, [0])
            if late.any():
                group = np.repeat(np.arange(starts.size - 1), np.diff(starts))
                late[permutation] &= (lapsed | (prior.reference == 0))[group]
        if forgotten and permutation.size:
            # A key that has events of its own is forgotten by those.
            stands = given & ~late
            some = np.add.reduceat(stands[permutation], starts[:-1]) > 0
            late[permutation] |= ~given[permutation] & np.repeat(some, np.diff(starts))
        if late.any():
            keyed = keyed.without(~late)
        again = keyed.prior.reference & (LAPSED | LIVE) == LAPSED
        seen = Seen(most, forgotten, int((~given & ~late).sum()) - int(again.sum()))
        return keyed._replace(seen=seen, left=np.flatnonzero(late))

    # After a step

    def take(self, changes: Sequence[Change], seen: Seen) -> None:
        """Take in what a step brought, before its changes are applied.  O(versions)."""
        n = self._in_order(self.horizons.rows)
        self._words, self._high, self._low = self._words[n:], self._high[n:], self._low[n:]
        until = LEAST if self._until is None else self._until
        for batch in [change.batch for change in changes if len(change.batch)]:
            key = self.horizons.keys(batch.order)
            at = np.flatnonzero((batch.live != 0) & (key < until))
            if at.size:
                self._fresh.append(_take_versions(batch, at, key, 0))
        self.forgotten += seen.forgotten
        self.arranged.useless(seen.useless, more=True)
        if seen.greatest is not None:
            self.horizons.greatest = max(seen.greatest, LEAST if (old := self.horizons.greatest) is None else old)


def _beyond(horizon: int | None, until: int | None) -> bool:
    return horizon is not None and (until is None or horizon > until)


def _take_versions(batch: Batch, at: Ints, key: Ints, begin: int) -> tuple[Ints, Words, Words]:
    """Take the orders and identities of some versions; ``key``: the orders of the versions from ``begin`` on."""
    return key[at - begin], batch.high[at], batch.low[at] if batch.low.size else NONE


def _take_events(events: Events, rows: Ints) -> Events:
    return Events(events.rows.take(pa.array(rows)), events.times[rows], events.original[rows], events.arrival[rows])


def _with(events: Events, more: Events) -> Events:
    """Events, and behind them those that nobody gave."""
    rows = pa.concat_batches([events.rows, more.rows])
    times = np.concatenate([events.times, more.times])
    return Events(rows, times, times, np.concatenate([events.arrival, more.arrival]))
