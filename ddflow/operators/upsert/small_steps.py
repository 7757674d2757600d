"""Resolve the events of a small step with one call of a kernel.

`SmallSteps` resolves steps of few events of an input whose events replace rows, without expiry. `Resolved` resolves all
other steps. Both use the same kernels and give the same results. See docs/decisions/012-small-steps.md.

>>> from ddflow.columns.hashing import Secret
>>> from ddflow.operators.updates import ints
>>> from ddflow.operators.upsert.upsert import RunningUpsert
>>> from ddflow.plan.inputs.bind import bind_upserts
>>> from ddflow.plan.inputs.spec import Upsert
>>> schema = pa.schema({"k": pa.int64(), "v": pa.string()})
>>> events = pa.record_batch({"k": [7, 8, 7], "v": ["a", "b", "c"]}, schema=schema)
>>> events = Events(events, ints(0, 0, 0), ints(0, 0, 0), ints(0, 1, 2))
>>> rows = RunningUpsert(bind_upserts("r", schema, Upsert("k")), Secret(1, 2))
>>> resolved = rows.small.resolve(rows, events, ints(0), since=0)
>>> resolved.updates(schema).to_table(schema, None).to_pylist()
[{'k': 8, 'v': 'b', '_diff': 1}, {'k': 7, 'v': 'c', '_diff': 1}]
"""

from typing import Any, cast

import numpy as np
import pyarrow as pa

from ddflow.columns.hashing import NONE, Ints, build_hash_plan, unpack_validity
from ddflow.columns.layout import SMALL, make_writable
from ddflow.columns.row_views import RowView
from ddflow.columns.rows import Rows, gather_columns_of_pool
from ddflow.kernels.resolve import ERROR
from ddflow.kernels.step import resolve_rows
from ddflow.operators.updates import Updates
from ddflow.operators.upsert.events import Events, ExpiryChange
from ddflow.operators.upsert.orders import Order
from ddflow.operators.upsert.state import UpsertState
from ddflow.plan.inputs.spec import Tombstone
from ddflow.trace.batch import ArrangementChange, Batch


class SmallSteps:
    """Resolves the small steps of one input.

    ``fits``: whether the spec and the types of the input allow it. ``room``: the arrays of the last step, which the
    next step with as many events overwrites.
    """

    def __init__(self, state: UpsertState) -> None:
        bound, order, row = state.bound, state.order, state.bound.row_schema
        # Without a reference to the state, because a cycle would keep its memory until the garbage collector runs.
        self.schema, self.secret, self.wide = bound.event_schema, state.secret.words, state.wide
        self.keys = build_hash_plan(bound.key_schema, row.names)
        self.values = build_hash_plan(pa.schema([row.field(name) for name in bound.tracked]), row.names)
        self.fits = False
        if isinstance(order, Order) and not (state.expiring or state.moves or order.ranks) and order.tie != ERROR:
            self.fits = self.keys is not None and self.values is not None
            self.rules = np.array([order.base, order.tie, order.ties, order.keeps, 0, False, False], np.int64)
            self.ordered = order.event_word_count > 0
        deletes = bound.null_deletes
        self.null_place = None if deletes is None or bound.where is not None else self.schema.get_field_index(deletes)
        """The position of the column whose nulls delete keys, if only they delete keys."""
        self.keeps = not (bound.where or bound.condition or deletes or isinstance(bound.spec.delete, Tombstone))
        """Whether no event deletes a key."""
        self.stored = list(state.arrangements[0].slots.pool.describe_columns(row).values())
        self.places = [(name, self.schema.get_field_index(name)) for name in row.names]
        self.rows, self.bits, self.room = -1, 0, cast("tuple[Any, ...]", ())

    def resolve(self, state: UpsertState, events: Events, times: Ints, since: int) -> "ResolvedSmallStep | None":
        """Compute the updates that result from events, as `RunningUpsert.resolve` does.

        Return None if the step is not small, or if the key's state is possibly not in the index.
        """
        batch, stamps, n = events.rows, events.times, events.times.size
        arranged = state.arrangements[0]
        if n >= SMALL or state.contents is not None or not arranged.is_indexed or not batch.schema.equals(self.schema):
            return None
        if self.keeps or (self.null_place is not None and not batch.column(self.null_place).null_count):
            gone = np.zeros(n, np.uint8)
        else:
            gone = state.bound.mark_deletes(batch)
        columns, filled = list[pa.Array](), list[str]()
        for name, at in self.places:
            columns.append(column := batch.column(at))
            # Ignore nulls that only deletions have, but not in exact key columns, because a retraction may take its key
            # from an exact key column.
            if column.null_count and name not in state.exact and (gone | unpack_validity(column)).all():
                filled.append(name)
        pool = arranged.slots.pool
        rows = Rows.from_columns(columns, pool.shape, n, filled)
        pool.set_batch(0, rows)
        settled = bool(times[-1] <= since)
        if self.ordered:
            words = state.order.compute_words(batch, events.original, gone)
        else:
            words = np.empty((n, 0), np.int64)
        if n != self.rows:
            self._allocate_room(n, state.order.words)
        if not stamps.flags.writeable:
            stamps = make_writable(stamps)
        self.rules[4] = since
        made = np.empty(n, np.uint64), np.empty(n * state.wide, np.uint64), np.empty(n * (not settled), np.int64)
        live, value, diffs, counts = (
            np.empty(n, np.uint8),
            np.empty(n, np.uint64),
            np.empty(2 * n, int),
            np.zeros(8, int),
        )
        given: Any = rows.addresses, self.keys, self.values, *self.secret, stamps, times, gone, words
        work: Any = self.rules, self.bits, *self.room, *made, live, value, diffs, counts
        done = resolve_rows(*arranged.index.probe, *given, *work)
        return ResolvedSmallStep(self, state, times, words, settled, done, (*made, live, value, diffs, counts))

    def _allocate_room(self, n: int, order_words: int) -> None:
        """Allocate the scratch memory for ``n`` events."""
        bits = max((n - 1).bit_length(), 1)
        narrow, words = np.empty(5 * n + 1 + (1 << bits), np.int32), np.empty(6 * n, np.uint64)
        self.room = narrow, words, np.empty(8 * n, np.int64), np.empty((n, order_words), np.int64)
        self.rows, self.bits = n, bits


class ResolvedSmallStep:
    """The resolved events of a small step, with those methods of `Resolved` that a step without verdict rows needs."""

    expiry = ExpiryChange()

    def __init__(
        self,
        small: SmallSteps,
        state: UpsertState,
        times: Ints,
        words: Ints,
        settled: bool,
        done: tuple[int, ...],
        written: tuple[Any, ...],
    ) -> None:
        updates, m, _, live_added, tombstones_added, g = done
        *versions, diffs, counts = written
        narrow, _, long, _ = small.room
        self.counts, self.times, self.diffs = counts, times, diffs[:updates]
        self.about, self.ranks = long[:updates], narrow[:updates]
        n = small.rows
        arranged, (high, low, time, live, value) = state.arrangements[0], versions
        self.pool = arranged.slots.pool
        if m < n:
            high, low, time, live, value = high[:m], low[:m], time[:m], live[:m], value[:m]
        if settled:
            time = np.empty(m, np.int64)
            time.fill(times[-1])
        columns = gather_columns_of_pool(self.pool, long[2 * n : 2 * n + m], small.stored)
        rows = Rows.from_columns(columns, self.pool.shape, m)
        if state.order.words:
            words = words[long[3 * n : 3 * n + m]]
        else:
            words = np.empty((m, 0), np.int64)
        batch = Batch(high, low, time, live, NONE, words, rows)
        last, place = long[4 * n : 4 * n + g], long[5 * n : 5 * n + g]
        change = batch, value, last, place, arranged.index.built, live_added, tombstones_added
        self.changes = [tuple.__new__(ArrangementChange, change)] if m else []

    def updates(self, schema: pa.Schema) -> Updates:
        """Return the differences, sorted by time. A column is gathered on its first read. O(updates)."""
        rows = RowView(self.pool, self.about, schema)
        return tuple.__new__(Updates, (rows, self.ranks, self.diffs, self.times))
