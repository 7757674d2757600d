"""Horizons: which orders are too old, for keys that are live, for deleted ones and for events.

Invariant: an order is below a horizon as its value is below the greatest order less the time to live; null is below
every horizon, and NaN and the infinities, which are no points in time, never move one. Keys keep words, not values,
some types need a second word for null, subtracting may leave the type, and under versions of cells a key keeps two
orders that count (its row's and its latest delete's), the greater of which is its own. It knows no keys and no steps;
that is ``expiring``.

>>> from ddflow.plan.inputs.bind import bind
>>> from ddflow.plan.merge.expiry import Expiry
>>> from ddflow.plan.inputs.spec import Upsert
>>> spec = Upsert("k", "at", expiry=Expiry(ttl=30, tombstone_ttl=20))
>>> bound = bind("a", pa.schema({"k": pa.int64(), "at": pa.int32()}), spec)
>>> horizons = Horizons(bound, Order(bound))
>>> horizons.greatest = 120
>>> horizons.rows, horizons.tombstones, horizons.below(np.array([[89], [90], [LEAST]]), horizons.rows).tolist()
(90, 100, [True, False, True])
"""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.types as pat

from ddflow.columns.hashing import Ints
from ddflow.kernels.resolve import LIVE, Prior
from ddflow.operators.upsert.ordering import LEAST, Order, column_words, needs_flag, value_of
from ddflow.operators.upsert.orders import MergeOrders
from ddflow.plan.inputs.bind import Bound

Bools = np.ndarray[Any, np.dtype[np.bool_]]
FLOAT = pa.field("order", pa.float64(), nullable=False)
GREATEST = 2**63 - 1
AHEAD = 8
"""All orders are looked at once in so many parts of a time to live."""


class Horizons:
    """Of one input.  ``greatest``: the word of the greatest order of the steps before, None before any."""

    def __init__(self, bound: Bound, order: Order | MergeOrders) -> None:
        assert bound.spec.expiry is not None
        self.ttl, tombstone_ttl = bound.spec.expiry.ttl, bound.spec.expiry.tombstone_ttl
        self.shorter: int | float = min(ttl for ttl in (self.ttl, tombstone_ttl) if ttl is not None)
        self.field = bound.schema.field(bound.spec.order_by[0])
        wide = (
            1 + needs_flag(self.field) if isinstance(order, Order) else int(order.columns[0, 2] - order.columns[0, 1])
        )
        self.flagged, self.floats = wide == 2, pat.is_floating(self.field.type)
        # Under versions of cells: the order of the row, and that of its latest delete.
        self.cells = isinstance(order, MergeOrders) and order.parts > 1
        self.parts = [0, order.width] if self.cells else [0]
        self.greatest: int | None = None

    @property
    def rows(self) -> int | None:
        """The word below which the orders of live keys are forgotten, or None."""
        return None if self.ttl is None or self.greatest is None else self.moved(self.greatest, -self.ttl)

    @property
    def tombstones(self) -> int | None:
        """The word below which those of deleted keys are forgotten, and events come too late; or None."""
        return None if self.greatest is None else self.moved(self.greatest, -self.shorter)

    def ahead(self, horizon: int, ttl: int | float) -> int:
        """Where a horizon will be after a part of its time to live."""
        share = ttl / AHEAD if self.floats else max(int(ttl) // AHEAD, 1)
        return max(self.moved(horizon, share), LEAST + 1)

    def moved(self, word: int, by: int | float) -> int:
        """Return the word of an order that is greater by ``by``, within the range of words."""
        if not self.floats:
            return min(max(word + int(by), LEAST), GREATEST)
        value = value_of([np.array([word])], FLOAT).to_numpy()[0] + by
        return int(column_words(pa.array([value], pa.float64()), FLOAT)[0][0])

    def words(self, events: pa.RecordBatch) -> Ints:
        """int64[n, w]: the orders of events, of one part.  O(n)."""
        return np.stack(column_words(events.column(self.field.name), self.field, self.flagged), axis=1)

    def values(self, order: Ints) -> pa.Array:
        """Convert the orders of keys to values.  O(m)."""
        m, keys = order.shape[0], np.stack([self._key(order, part) for part in self.parts])
        at, own = np.array(self.parts)[np.argmax(keys, axis=0)], np.arange(m)
        words = [np.ascontiguousarray(order[own, at + i]) for i in range(1 + self.flagged)]
        return value_of(words, self.field)

    def keys(self, order: Ints) -> Ints:
        """int64[m]: one word each, by which orders of keys can be sorted; null as the smallest.  O(m)."""
        out = self._key(order, 0)
        for part in self.parts[1:]:
            np.maximum(out, self._key(order, part), out=out)
        return out

    def below(self, order: Ints, horizon: int | None, parts: Sequence[int] | None = None) -> Bools:
        """bool[m]: which orders are below a horizon; null always is, none is where there is no horizon.  O(m)."""
        if horizon is None:
            return np.zeros(order.shape[0], np.bool_)
        out = np.ones(order.shape[0], np.bool_)
        for part in self.parts if parts is None else parts:
            word, null = self._split_nulls(order, part)
            out &= (word < horizon) | null
        return out

    def lapsed_tombstones(self, order: Ints) -> Bools:
        """bool[m]: which deleted keys, by their orders, are forgotten.  O(m)."""
        return self.below(order, self.tombstones)

    def lapsed(self, prior: Prior) -> Bools:
        """bool[g]: which keys hold what is forgotten.  O(g)."""
        live = prior.reference & LIVE != 0
        out: Bools = self.below(prior.order, self.rows) & live
        out |= self.lapsed_tombstones(prior.order) & ~live & (prior.reference != 0)
        return out

    def most(self, own: Ints) -> int | None:
        """Return the word of the greatest order of some events; None if none of them is a point in time."""
        word, aside = self._split_nulls(own, 0)
        if self.floats:
            least, greatest = column_words(pa.array([-math.inf, math.inf]), FLOAT)[0]
            aside = aside | (word <= least) | (word >= greatest)
        word = word[~aside]
        return int(word.max()) if word.size else None

    def _key(self, order: Ints, part: int) -> Ints:
        word, null = self._split_nulls(order, part)
        return np.where(null, LEAST, word)

    def _split_nulls(self, order: Ints, part: int) -> tuple[Ints, Bools]:
        """Of order words int64[m, w]: the words that decide, and which are null, or were never set."""
        word = order[:, part + self.flagged]
        if self.flagged:
            null: Bools = order[:, part] != 1
        elif self.field.nullable or self.cells:
            null = word == LEAST
        else:
            null = np.zeros(word.size, np.bool_)
        return word, null
