"""The upsert operator: events in, differences out, against the arrangement of its own output.

Guarantees: what it emitted up to any time adds up to one row for each live key, the row that won. Nothing changes until
the whole step, of all inputs, is known to succeed: `resolve` computes a `Resolution`, and `apply` takes it. Rows are
compared by hashes and order words only, so a no-op never touches payload. (McSherry, "Upserts in differential
dataflow"; differential-dataflow's ``arrange_from_upsert``.)
"""

from typing import Any, Self

import numpy as np
import pyarrow as pa

from ddflow.columns.hashing import Flags, Ints, Narrow, validity
from ddflow.columns.rows import Rows, gather, shown_row
from ddflow.errors import DdflowError, Option, Phrase, SpecError, TieRefused
from ddflow.kernels.resolve import ERROR, LAPSED, LIVE, NOTHING, OUTCOME, Outcomes, Rules
from ddflow.operators.upsert.events import Events, Keyed
from ddflow.operators.upsert.merged import MergedRows
from ddflow.operators.upsert.orders import Order
from ddflow.operators.upsert.resolution import Resolution
from ddflow.operators.upsert.state import UpsertState
from ddflow.time import format_time


class FullRows:
    """See `ddflow.operators.upsert.resolution.Weighed`.

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

    def __init__(self, state: UpsertState, keyed: Keyed, since: int) -> None:
        self.state, self.keyed, self.by, self.mark = state, keyed, keyed.by, keyed.mark
        order, events, expiring = state.order, keyed.events, state.expiring
        assert isinstance(order, Order)
        self.order, self.rows = order, events.rows
        tracked = list(map(keyed.columns.__getitem__, state.bound.tracked))
        self.value = state.values.values(tracked, events.times.size)
        self.words = order.of(events.rows, events.original, keyed.gone)
        if order.ranks:
            self._rank(order)
        forgets = expiring is not None and expiring.forgets
        self.rules = Rules(order.base, order.tie, order.ties, order.keeps, since, keyed.full is not None, forgets)
        self.permutation = self._by_order() if order.tie == ERROR else keyed.by.permutation

    def payload(self) -> Rows:
        """See `Weighed.payload`."""
        state, gone = self.state, self.keyed.gone
        columns = list(map(self.keyed.columns.__getitem__, state.given))
        shape = state.arranged.slots.pool.shape
        # A retraction may take its key from the deletion, so there a null is looked at.
        nulls = [
            name
            for name, column in zip(shape.names, columns, strict=True)
            if column.null_count and name not in state.exact and (gone | validity(column)).all()
        ]
        return Rows.of(columns, shape, self.rows.num_rows, nulls)

    def column(self, name: str) -> pa.Array:
        """See `Weighed.column`."""
        return self.keyed.columns[name]

    def hidden(self, name: str) -> pa.Array:
        """See `Weighed.hidden`."""
        return self.rows.column(name[7:])

    def verdicts(self, outcome: Any, counts: Ints) -> tuple[Ints, Flags | None]:
        """See `Weighed.verdicts`."""
        absent = self.keyed.absent
        return counts - np.bincount((outcome[absent] >> OUTCOME) & 7, minlength=8) if absent.size else counts, None

    def winner_orders(self, out: Outcomes, rows: Ints) -> list[pa.Array]:
        """See `Weighed.winner_orders`."""
        order, winner, events = self.order, out.winner[rows], self.rows
        groups = np.unique(-1 - winner[(winner < 0) & (winner != NOTHING)])
        prior = self._prior_rows(groups) if order.hidden and groups.size else None
        if groups.size:
            values = order.values(self.keyed.prior.order[groups], prior)
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

    def _prior_rows(self, groups: Ints) -> pa.Table:
        arranged = self.state.arranged
        return gather(arranged.pool(), self.keyed.prior.reference[groups], arranged.schema)

    def _rank(self, order: Order) -> None:
        """Rank what has no word of its own, among the events and what their keys hold."""
        prior = self.keyed.prior
        # A tombstone below the horizon has no say, and its row may be merged away.
        held = (prior.reference != 0) & (prior.reference & LAPSED == 0)
        groups = np.flatnonzero(held) if order.keeps else np.empty(0, np.int64)
        old = prior.order[groups] if order.keeps else np.empty((0, order.width), np.int64)
        rows = self._prior_rows(groups) if groups.size else None
        lives = (prior.reference[groups] & LIVE != 0).astype(np.uint8)
        order.rank(self.keyed.events.rows, self.keyed.gone, self.words, rows, lives, old, self.state.secret)
        if groups.size:
            prior.order[groups] = old

    def _by_order(self) -> Narrow:
        """Sort the events of each key and time by their base words, so that ties are neighbours."""
        groups = np.repeat(np.arange(self.by.starts.size - 1), np.diff(self.by.starts))
        at = self.by.permutation
        base = [self.words[at, w] for w in range(self.rules.base)]
        return at[np.lexsort((*reversed(base), self.mark[at] >> 1, groups))]

    def tie(self, row: int) -> TieRefused:
        """See `Weighed.tie`."""
        spec, rows = self.state.bound.spec, self.keyed.events.rows
        key, order = (shown_row(rows.select(list(names)), row) for names in (spec.key, spec.order_by))
        time = format_time(int(self.keyed.events.times[row]), self.state.bound.time_type)
        return TieRefused(
            f"a step of {self.state.bound.name!r}",
            f"the key {key} has two events of order {order} at time {time}",
            Phrase("mend the feed, or choose ", Option("tie", "last"), ", 'first' or 'greatest'; nothing was changed"),
            input=self.state.bound.name,
        )


class RunningUpsert(UpsertState):
    """The upsert operator of one input of an opened plan.

    >>> import pyarrow as pa
    >>> from ddflow.columns.hashing import Secret
    >>> from ddflow.operators.updates import ints
    >>> from ddflow.operators.upsert.events import Events
    >>> from ddflow.plan.inputs.bind import bind_upserts
    >>> from ddflow.plan.inputs.spec import Upsert
    >>> schema = pa.schema({"k": pa.string(), "v": pa.string()})
    >>> upsert = RunningUpsert(bind_upserts("names", schema, Upsert("k")), Secret(1, 2))
    >>> events = pa.record_batch({"k": ["frank"] * 2, "v": ["mcsherry", "zappa"]}, schema)
    >>> events = Events(events, ints(0, 1), ints(0, 1), ints(0, 1))
    >>> updates = upsert.resolve(events, ints(0, 1), since=1).updates(schema)
    >>> updates.to_table(schema, pa.int64()).column("_diff").to_pylist()
    [1, -1, 1]
    """

    def keyed_for(self, asked: str, error: type[DdflowError] = SpecError) -> Self:
        """Return this input, because it has keys."""
        return self

    def resolve(self, events: Events, times: Ints, since: int, winners: bool = True) -> Resolution:
        """Compute the outcome of events; nothing changes.

        ``times``: the step's distinct times, ascending.  ``since``: what it will be after the step.  ``winners``:
        whether anybody asks for `Resolution.winner_orders`.  O(n) expected.  Raises `TieRefused` under ``tie="error"``.
        """
        self.arena.reset()
        keyed = self.sort_by_key(events, times, since)
        weigh = FullRows if self.bound.merging is None else MergedRows
        return Resolution(self, keyed, weigh(self, keyed, since), winners)

    def apply(self, resolution: Resolution, upper: int, since: int) -> None:
        """Take a resolution into the state.  Amortised O(versions)."""
        self.arranged.apply(resolution.changes, upper, since)
