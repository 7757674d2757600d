"""Expire keys before a step is resolved, and compute the horizons. A horizon is the order below which keys expire.

Expiry depends only on the order values of events, never on the clock or on how events are divided into steps. An event
older than the horizon gets the verdict `forgotten`.

>>> import pyarrow as pa, ddflow as dd
>>> flow, spec = dd.Flow(), dd.Upsert(key="id", order_by="at", expiry=dd.Expiry(ttl=30))
>>> _ = flow.output("seen", flow.upserts("seen", {"id": pa.int64(), "at": pa.int64()}, spec))
>>> with flow.open() as engine:
...     _ = engine.step({"seen": pa.table({"id": [1, 2], "at": [80, 120]})}, time=1)
...     engine.step({}, time=2)["seen"].to_pylist()
[{'id': 1, 'at': 80, '_time': 2, '_diff': -1}]
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import pyarrow as pa
import pyarrow.types as pat

from ddflow.columns.hashing import NONE, Ints, RowHasher, Words
from ddflow.columns.rows import gather_arrays
from ddflow.columns.sorting import sort_by_identity
from ddflow.kernels.resolve import LAPSED, LIVE, NOBODY, Prior
from ddflow.operators.upsert.events import Events, ExpiryChange, KeyedEvents
from ddflow.operators.upsert.orders import (
    LEAST,
    MergeOrders,
    Order,
    decode_column_words,
    encode_column_words,
    needs_null_flag,
)
from ddflow.plan.inputs.bind import BoundUpserts
from ddflow.trace.arrangement import Arrangement
from ddflow.trace.batch import ArrangementChange, Batch

Bools = np.ndarray[Any, np.dtype[np.bool_]]
FLOAT = pa.field("order", pa.float64(), nullable=False)
GREATEST = 2**63 - 1
AHEAD = 8
"""The number of scans of all orders within one time to live."""


class ExpiryHorizons:
    """The expiry horizons of one input.

    ``greatest``: the word of the greatest order in earlier steps, or None before the first.

    >>> from ddflow.plan.inputs.bind import bind_upserts
    >>> from ddflow.plan.merge.expiry import Expiry
    >>> from ddflow.plan.inputs.spec import Upsert
    >>> spec = Upsert("k", "at", expiry=Expiry(ttl=30, tombstone_ttl=20))
    >>> bound = bind_upserts("a", pa.schema({"k": pa.int64(), "at": pa.int32()}), spec)
    >>> horizons = ExpiryHorizons(bound, Order(bound))
    >>> horizons.greatest = 120
    >>> horizons.row_horizon, horizons.tombstone_horizon, horizons.mark_below_horizon(np.array([[89], [90], [LEAST]]),
    ...     horizons.row_horizon).tolist()
    (90, 100, [True, False, True])
    """

    def __init__(self, bound: BoundUpserts, order: Order | MergeOrders) -> None:
        assert bound.spec.expiry is not None
        self.ttl, tombstone_ttl = bound.spec.expiry.ttl, bound.spec.expiry.tombstone_ttl
        self.shorter: int | float = min(ttl for ttl in (self.ttl, tombstone_ttl) if ttl is not None)
        self.field = bound.schema.field(bound.spec.order_by[0])
        wide = (
            1 + needs_null_flag(self.field)
            if isinstance(order, Order)
            else int(order.columns[0, 2] - order.columns[0, 1])
        )
        self.flagged, self.floats = wide == 2, pat.is_floating(self.field.type)
        # With versions of cells, a key stores two orders: the order of its row and the order of its latest delete.
        self.cells = isinstance(order, MergeOrders) and order.parts > 1
        self.parts = [0, order.event_word_count] if self.cells else [0]
        self.greatest: int | None = None

    @property
    def row_horizon(self) -> int | None:
        """The order word below which live keys expire, or None if live keys never expire."""
        return None if self.ttl is None or self.greatest is None else self.shift_order_word(self.greatest, -self.ttl)

    @property
    def tombstone_horizon(self) -> int | None:
        """The order word below which tombstones expire and events are too old, or None if there is no limit."""
        return None if self.greatest is None else self.shift_order_word(self.greatest, -self.shorter)

    def compute_later_horizon(self, horizon: int, ttl: int | float) -> int:
        """Compute where a horizon will be after 1 / `AHEAD` more of its time to live."""
        share = ttl / AHEAD if self.floats else max(int(ttl) // AHEAD, 1)
        return max(self.shift_order_word(horizon, share), LEAST + 1)

    def shift_order_word(self, word: int, by: int | float) -> int:
        """Return the word of the order that is the sum of a given order and ``by``.

        The result is limited to the range of words.
        """
        if not self.floats:
            return min(max(word + int(by), LEAST), GREATEST)
        value = decode_column_words([np.array([word])], FLOAT).to_numpy()[0] + by
        return int(encode_column_words(pa.array([value], pa.float64()), FLOAT)[0][0])

    def compute_order_words(self, events: pa.RecordBatch) -> Ints:
        """Encode the orders of events as int64[n, w], for one part of the order. O(n)."""
        return np.stack(encode_column_words(events.column(self.field.name), self.field, self.flagged), axis=1)

    def decode_orders(self, order: Ints) -> pa.Array:
        """Convert the orders of keys to values.  O(m)."""
        m, keys = order.shape[0], np.stack([self._compute_sort_key(order, part) for part in self.parts])
        at, own = np.array(self.parts)[np.argmax(keys, axis=0)], np.arange(m)
        words = [np.ascontiguousarray(order[own, at + i]) for i in range(1 + self.flagged)]
        return decode_column_words(words, self.field)

    def compute_sort_keys(self, order: Ints) -> Ints:
        """Return int64[m]: one sortable word for the orders of each key. Null is smallest. O(m)."""
        out = self._compute_sort_key(order, 0)
        for part in self.parts[1:]:
            np.maximum(out, self._compute_sort_key(order, part), out=out)
        return out

    def mark_below_horizon(self, order: Ints, horizon: int | None, parts: Sequence[int] | None = None) -> Bools:
        """Return bool[m], true for orders below a horizon. O(m).

        Null is below any horizon. If there is no horizon, the flags are all false.
        """
        if horizon is None:
            return np.zeros(order.shape[0], np.bool_)
        out = np.ones(order.shape[0], np.bool_)
        for part in self.parts if parts is None else parts:
            word, null = self._split_words_and_nulls(order, part)
            out &= (word < horizon) | null
        return out

    def mark_expired_tombstones(self, order: Ints) -> Bools:
        """Return bool[m], true for tombstones whose orders show that they have expired. O(m)."""
        return self.mark_below_horizon(order, self.tombstone_horizon)

    def mark_expired_keys(self, prior: Prior) -> Bools:
        """Return bool[g], true for keys whose row or tombstone expired. O(g)."""
        live = prior.reference & LIVE != 0
        out: Bools = self.mark_below_horizon(prior.order, self.row_horizon) & live
        out |= self.mark_expired_tombstones(prior.order) & ~live & (prior.reference != 0)
        return out

    def find_greatest_order(self, own: Ints) -> int | None:
        """Return the word of the greatest order among events, ignoring nulls and infinities.

        Return None if no order is left.
        """
        word, aside = self._split_words_and_nulls(own, 0)
        if self.floats:
            least, greatest = encode_column_words(pa.array([-math.inf, math.inf]), FLOAT)[0]
            aside = aside | (word <= least) | (word >= greatest)
        word = word[~aside]
        return int(word.max()) if word.size else None

    def _compute_sort_key(self, order: Ints, part: int) -> Ints:
        word, null = self._split_words_and_nulls(order, part)
        return np.where(null, LEAST, word)

    def _split_words_and_nulls(self, order: Ints, part: int) -> tuple[Ints, Bools]:
        """Return the words of orders that are compared with horizons, and flags for orders that are null or unset."""
        word = order[:, part + self.flagged]
        if self.flagged:
            null: Bools = order[:, part] != 1
        elif self.field.nullable or self.cells:
            null = word == LEAST
        else:
            null = np.zeros(word.size, np.bool_)
        return word, null


class KeyExpiry:
    """The expiry of one input's keys.

    ``horizons``: the horizons of the input. ``forgotten``: the number of live keys that expired since the input was
    opened.
    """

    def __init__(self, bound: BoundUpserts, order: Order | MergeOrders, arranged: Arrangement, keys: RowHasher) -> None:
        assert bound.spec.expiry is not None
        self.bound, self.arranged, self.keys = bound, arranged, keys
        self.horizons = ExpiryHorizons(bound, order)
        self.forgets = bound.spec.expiry.forgets
        self.refuses = bound.spec.expiry.on_forgotten == "refuse"
        self.forgotten = 0
        self.reset_order_scan()
        self._least: WeakKeyDictionary[Batch, int] = WeakKeyDictionary()
        arranged.set_tombstone_expiry(self.horizons.mark_expired_tombstones)

    def reset_order_scan(self) -> None:
        """Discard the collected keys, because the state was replaced. O(1), but the next step scans all orders."""
        self._until: int | None = None
        self._until_tombstones: int | None = None
        self._written = 0
        self._words, self._high, self._low = np.empty(0, np.int64), NONE, NONE
        self._fresh: list[tuple[Ints, Words, Words]] = []

    # Before a step

    def mark_expired_keys(self, high: Words, low: Words) -> Bools:
        """Return bool[n], true for keys whose row or tombstone expired. The keys must ascend. O(n) expected."""
        return self.horizons.mark_expired_keys(
            self.arranged.look_up_keys(high, low, np.arange(high.size, dtype=np.int32))
        )

    def find_due_keys(self) -> tuple[Words, Words]:
        """Find the ascending identities of live keys that expire now.

        The state stays unchanged. O(due keys), amortised.
        """
        rows, tombstones = self.horizons.row_horizon, self.horizons.tombstone_horizon
        if tombstones is None:
            return NONE, NONE
        if _has_horizon_passed(rows, self._until) or (
            _has_horizon_passed(tombstones, self._until_tombstones) and self._is_order_scan_due()
        ):
            self._scan_orders(rows, tombstones)
        n = self._sort_due_keys(rows)
        if not n:
            return NONE, NONE
        by = sort_by_identity(self._high[:n], self._low[:n])
        starts = by.starts[:-1]
        prior = self.arranged.look_up_keys(by.high, by.low, starts)
        now = starts[self.horizons.mark_expired_keys(prior) & (prior.reference & LIVE != 0)]
        return by.high[now], by.low[now] if by.low.size else NONE

    def _is_order_scan_due(self) -> bool:
        """Return whether to count expired tombstones again.

        Expired tombstones are counted again after an eighth of the keys got new versions. The count affects only the
        time at which merges drop tombstones. A scan at each horizon would cost too much, because a time to live can be
        shorter than a step.
        """
        came = self.arranged.written - self._written
        return self._until_tombstones is None or came * AHEAD >= self.arranged.keys

    def _scan_orders(self, rows: int | None, tombstones: int) -> None:
        """Scan all orders to collect the keys that expire soon and to count expired tombstones.  O(versions)."""
        horizons, self._written = self.horizons, self.arranged.written
        most = self._until_tombstones = horizons.compute_later_horizon(tombstones, horizons.shorter)
        if rows is not None and horizons.ttl is not None:
            self._until = horizons.compute_later_horizon(rows, horizons.ttl)
            most = max(most, self._until)
        found, useless = [(self._words[:0], NONE, NONE)], self._count_useless_deletions(tombstones)
        lower = {part.slot for parts in self.arranged.unindexed_parts for part in parts}
        for part in self.arranged.parts:
            batch = self.arranged.slots[part.slot]
            if batch not in self._least:
                self._least[batch] = int(horizons.compute_sort_keys(batch.order).min())
            if self._least[batch] >= most:
                continue
            key, live = (
                horizons.compute_sort_keys(batch.order[part.begin : part.end]),
                batch.live[part.begin : part.end] != 0,
            )
            useless += int((~live & (key < tombstones)).sum()) if part.slot in lower else 0
            if self._until is not None:
                found.append(
                    _take_versions(batch, part.begin + np.flatnonzero(live & (key < self._until)), key, part.begin)
                )
        self.arranged.update_useless_deletions(useless)
        self._words, self._high, self._low, self._fresh = NONE.view(np.int64), NONE, NONE, found

    def _count_useless_deletions(self, tombstones: int) -> int:
        """Count the tombstones in the index that are below the horizon. O(entries)."""
        references, places = self.arranged.index.list_entries(live=False)
        dead = places[(references & LIVE == 0) & (references & (LIVE - 1) != 0)]
        return int((self.horizons.compute_sort_keys(self.arranged.index.read_entries(dead)[3]) < tombstones).sum())

    def _sort_due_keys(self, rows: int | None) -> int:
        """Sort the collected keys by order, and count the keys below the horizon. O(k log k) for k new keys."""
        if self._fresh:
            columns = zip((self._words, self._high, self._low), *self._fresh, strict=True)
            words, high, low = (np.concatenate(parts) for parts in columns)
            order = np.argsort(words, kind="stable")
            self._words, self._high, self._low = words[order], high[order], low[order] if low.size else NONE
            self._fresh = []
        return 0 if rows is None else int(np.searchsorted(self._words, max(rows, LEAST + 1)))

    def add_deletions(
        self, pieces: Iterable[Events], due: tuple[Words, Words], time: int, most: int | None
    ) -> Iterator[Events]:
        """For each key that expires now, add to the step an event that deletes the key.

        ``pieces``: the step's events, divided by ascending ranges of identities. ``most``: the maximum number of these
        deletions in a piece, or None. O(events + due keys).
        """
        high, low = due
        for events in pieces:
            ids, _ = self.keys.identify_rows(events.rows)
            end = int(np.searchsorted(high, ids.max(), side="right")) if most is not None and ids.size else high.size
            yield from self._split_with_deletions(events, ids, (high[:end], low[:end]), time, most)
            high, low = high[end:], low[end:]
        if high.size:
            yield from self._split_with_deletions(None, NONE, (high, low), time, most)

    def _split_with_deletions(
        self, events: Events | None, ids: Words, due: tuple[Words, Words], time: int, most: int | None
    ) -> Iterator[Events]:
        high, low = due
        cuts = np.unique(high[most - 1 : -1 : most]) if most is not None and high.size else NONE
        where, of = np.searchsorted(cuts, high), np.searchsorted(cuts, ids)
        for number in range(cuts.size + 1):
            begin, end = np.searchsorted(where, [number, number + 1])
            forgotten = self._build_deletion_events(high[begin:end], low[begin:end], time) if begin < end else None
            part = events if events is None or not cuts.size else events.take(np.flatnonzero(of == number))
            if part is not None and part.times.size:
                yield part if forgotten is None else _append_events(part, forgotten)
            elif forgotten is not None:
                yield forgotten

    def _build_deletion_events(self, high: Words, low: Words, time: int) -> Events:
        """Build events that delete keys, with the stored orders of the keys. O(n)."""
        n = high.size
        prior = self.arranged.look_up_keys(high, low, np.arange(n, dtype=np.int32))
        names = list(self.bound.spec.key)
        schema = pa.schema([self.bound.row_schema.field(name) for name in names])
        columns = dict(
            zip(names, gather_arrays(self.arranged.prepare_row_pool(), prior.reference, schema), strict=True)
        )
        columns[self.horizons.field.name] = self.horizons.decode_orders(prior.order)
        every = [columns[f.name] if f.name in columns else pa.nulls(n, f.type) for f in self.bound.schema]
        rows = self.bound.add_event_columns(pa.RecordBatch.from_arrays(every, schema=self.bound.schema), [])
        return Events.at_time(rows, time, NOBODY + np.arange(n), self.bound.stamp)

    # In a step

    def drop_forgotten_events(self, keyed: KeyedEvents) -> KeyedEvents:
        """Mark the expired keys, and drop events that are too old. O(events).

        A dropped event has the verdict ``forgotten``. A generated deletion is dropped if the step has received events
        of the same key.
        """
        events, full = keyed.events, keyed.full
        given = events.arrival < NOBODY
        own = self.horizons.compute_order_words(events.rows)
        named = given if full is None else given & (events.arrival < full)
        most, forgotten = self.horizons.find_greatest_order(own[named]), int((~given).sum())
        if self.horizons.greatest is None:
            return keyed._replace(expiry=ExpiryChange(most))
        prior, permutation, starts = keyed.prior, keyed.by.permutation, keyed.by.starts
        lapsed = self.horizons.mark_expired_keys(prior)
        prior.reference[lapsed] |= LAPSED
        late = np.zeros(given.size, np.bool_)
        if self.refuses and full is None:
            late = given & self.horizons.mark_below_horizon(own, self.horizons.tombstone_horizon, [0])
            if late.any():
                group = np.repeat(np.arange(starts.size - 1), np.diff(starts))
                late[permutation] &= (lapsed | (prior.reference == 0))[group]
        if forgotten and permutation.size:
            # If a key has received events in this step, its generated deletion is dropped.
            stands = given & ~late
            some = np.add.reduceat(stands[permutation], starts[:-1]) > 0
            late[permutation] |= ~given[permutation] & np.repeat(some, np.diff(starts))
        if late.any():
            keyed = keyed.filter_events(~late)
        again = keyed.prior.reference & (LAPSED | LIVE) == LAPSED
        expiry = ExpiryChange(most, forgotten, int((~given & ~late).sum()) - int(again.sum()))
        return keyed._replace(expiry=expiry, left=np.flatnonzero(late))

    # After a step

    def record_changes(self, changes: Sequence[ArrangementChange], expiry: ExpiryChange) -> None:
        """Record the changes of a step before they are applied.  O(versions)."""
        n = self._sort_due_keys(self.horizons.row_horizon)
        self._words, self._high, self._low = self._words[n:], self._high[n:], self._low[n:]
        until = LEAST if self._until is None else self._until
        for batch in [change.batch for change in changes if len(change.batch)]:
            key = self.horizons.compute_sort_keys(batch.order)
            at = np.flatnonzero((batch.live != 0) & (key < until))
            if at.size:
                self._fresh.append(_take_versions(batch, at, key, 0))
        self.forgotten += expiry.forgotten
        self.arranged.update_useless_deletions(expiry.useless, more=True)
        if expiry.greatest is not None:
            self.horizons.greatest = max(expiry.greatest, LEAST if (old := self.horizons.greatest) is None else old)


def _has_horizon_passed(horizon: int | None, until: int | None) -> bool:
    return horizon is not None and (until is None or horizon > until)


def _take_versions(batch: Batch, at: Ints, key: Ints, begin: int) -> tuple[Ints, Words, Words]:
    """Take the orders and identities of some versions.

    ``key``: the orders of the versions from position ``begin`` on.
    """
    return key[at - begin], batch.high[at], batch.low[at] if batch.low.size else NONE


def _append_events(events: Events, more: Events) -> Events:
    """Append generated events to the events of a step."""
    rows = pa.concat_batches([events.rows, more.rows])
    times = np.concatenate([events.times, more.times])
    return Events(rows, times, times, np.concatenate([events.arrival, more.arrival]))
