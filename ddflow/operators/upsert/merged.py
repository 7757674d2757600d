"""Resolve partial rows: fold the events of a step into full rows, and then resolve the full rows.

`MergedRows` walks the events, folds each column, gathers the cells, computes derived columns, and resolves. The cells
of one row can come from several events of the step and from any batch of the state.

Guarantees: for each key and time with events, the fold makes one full row or one deletion, which always replaces the
stored row. After the fold, merged rows are handled like full rows. A merged row that equals the stored row is a no-op.
A merged row that is not a no-op gives one net change, which retracts the stored row. The last event that was folded at
a time gets the verdict of the merged row.
"""

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ddflow.columns.hashing import Flags, Ints, Words, unpack_validity
from ddflow.columns.rows import Rows
from ddflow.columns.sorting import SortedRows
from ddflow.errors import ExpressionError
from ddflow.expressions import Expression
from ddflow.kernels import walk_cells
from ddflow.kernels.fold import CLEAR, LAST as LATEST, NOTHING, SKIP, TAKE, choose_cells
from ddflow.kernels.gather import SLOT
from ddflow.kernels.resolve import LAST, OUTCOME, Outcomes, Rules
from ddflow.kernels.walk import NONE, ROW
from ddflow.operators.upsert import user_functions
from ddflow.operators.upsert.events import KeyedEvents
from ddflow.operators.upsert.state import UpsertState
from ddflow.operators.upsert.walking import WalkedEvents


class MergedRows(WalkedEvents):
    """The rows that are folded from a step's events; see `ddflow.operators.upsert.resolution.FullRows`.

    >>> import pyarrow as pa
    >>> from ddflow.operators.upsert.events import Events
    >>> from ddflow.plan.inputs.bind import bind_upserts
    >>> from ddflow.columns.hashing import Secret
    >>> from ddflow.plan.merge.merge import Merge
    >>> from ddflow.plan.merge.strategy import sum
    >>> from ddflow.operators.updates import ints
    >>> from ddflow.operators.upsert.upsert import RunningUpsert
    >>> from ddflow.plan.inputs.spec import Upsert as Spec
    >>> schema = pa.schema({"k": pa.int64(), "n": pa.int64(), "city": pa.string()})
    >>> upsert = RunningUpsert(bind_upserts("visits", schema, Spec("k", merge=Merge({"n": sum()}))), Secret(1, 2))
    >>> events = pa.record_batch({"k": [1, 1], "n": [1, 2], "city": ["Bern", None]}, schema)
    >>> merged = upsert.resolve(Events(events, ints(0, 0), ints(0, 0), ints(0, 1)), ints(0), since=0)
    >>> merged.updates(schema).to_table(schema, None).to_pylist(), merged.verdict.tolist()
    ([{'k': 1, 'n': 3, 'city': 'Bern', '_diff': 1}], [5, 7])
    """

    def __init__(self, state: UpsertState, keyed: KeyedEvents, since: int) -> None:
        """Fold the events. After the fold, ``by``, ``mark``, ``words`` and ``value`` describe the merged rows."""
        super().__init__(state, keyed)
        self._fold_rows()
        while self.times.size > 1 and not self.upsert.bound.spec.compares_all and self._skip_no_ops():
            self._fold_rows()
        self._replace_events()
        expiring = self.upsert.expiring
        self.rules = Rules(0, LAST, False, self.order.keeps, since, True, expiring is not None and expiring.forgets)

    def _fold_rows(self) -> None:
        """Fold all columns, and combine them into rows."""
        arranged, merging, spec = self.upsert.output_arrangement, self.merging, self.upsert.bound.spec
        first = self.steps.permutation.take(self.steps.key_times[:-1]).astype(np.int64)
        columns: dict[str, pa.Array] = {}
        for field in arranged.schema:
            if field.name in spec.key or field.name == spec.ingested:  # all events of a key and time have one stamp
                columns[field.name] = self._gather_column(first, field)
        columns |= self._compute_order_columns()
        folded = user_functions.compute_merged_columns(self) if merging.function is not None else None
        if merging.machine is not None:
            columns |= {
                name: self._gather_column(each, merging.machine.value_column)
                for name, each in user_functions.run_state_machine(self).items()
            }
        for column in merging.columns:
            made = self.fold_column(column) if folded is None else folded[column.name]
            columns[column.name] = self._gather_column(made, column.field)
        row = self.upsert.bound.row_schema
        for field, _ in merging.derived:
            columns[field.name] = pa.nulls(first.size, field.type)
        for field, expression in merging.derived:
            batch = pa.RecordBatch.from_arrays([columns[name] for name in row.names], schema=row)
            columns[field.name] = cast_derived_column(self._compute_derived_column(expression, batch), field)
        self.made = pa.RecordBatch.from_arrays(
            [columns[name] for name in arranged.schema.names], schema=arranged.schema
        )
        self.value = self.upsert.values.compute_value_hashes(
            self.made.select(self.upsert.bound.tracked).columns, self.made.num_rows
        )

    def _compute_derived_column(self, expression: Expression, batch: pa.RecordBatch) -> pa.Array:
        """Compute an expression over the merged rows. An expression cannot fail for the row of a deleted key."""
        try:
            return expression(batch)
        except ExpressionError:
            live = self.taken.live[self.places] != 0
        values: pa.Array = expression(batch.filter(pa.array(live)))
        return values.take(pa.array(np.cumsum(live) - 1, mask=~live))

    def _skip_no_ops(self) -> bool:
        """For each key, ignore the events of the first time at which its row is a no-op.

        Return whether events of any key were ignored. If events were ignored, the events of the key's next timestamp
        are applied to the stored row. A row is a no-op even if it differs in untracked columns.
        """
        steps, m = self.steps, self.places.size
        shown: Words = np.empty(m, np.uint64)
        shown[self.places] = self.value
        live, first = self.taken.live != 0, steps.keys[:-1]
        before, lived = np.empty(m, np.uint64), np.empty(m, np.bool_)
        before[1:], lived[1:] = shown[:-1], live[:-1]
        before[first], lived[first] = self.prior.value, self.status == ROW
        same = live & lived & (shown == before) & (self.taken.last >= 0)
        same[steps.keys[1:] - 1] = False  # a key's last time has no successor
        key = np.repeat(np.arange(first.size), np.diff(steps.keys))
        same &= np.maximum.reduceat(self.action != SKIP, steps.key_times[:-1], axis=1).any(axis=0)
        gone = np.flatnonzero(same)
        gone = gone[np.unique(key[gone], return_index=True)[1]]
        skipped = np.zeros(m, np.bool_)
        skipped[gone] = True
        self.action = np.where(np.repeat(skipped, np.diff(steps.key_times)), np.uint8(SKIP), self.action)
        return bool(gone.size)

    def _compute_order_columns(self) -> dict[str, pa.Array]:
        """Compute the order columns of the row, and the hidden order columns."""
        out: dict[str, pa.Array] = {}
        places, row = pa.array(self.places), self.upsert.bound.row_schema
        kept = {name: (each, part) for each in self.order.ranks for part, (_, name) in enumerate(each.hidden)}
        for name, (each, part) in kept.items():
            field = each.field.with_name(name).with_nullable(True)
            set_by = self._find_order_setters(each.group, part, name)
            if self.merging.cells and self.events.rows.column(each.field.name).null_count:
                out[name] = self._inherit_orders(set_by[self.places], each.field, field)
            else:
                out[name] = self._gather_column(set_by, field)
        for number, group in enumerate(self.merging.groups if not self.merging.cells else self.merging.groups[:1]):
            for field in group.order:
                if field.name not in row.names:
                    continue
                if self.upsert.bound.spec.merge == "first_row":
                    out[field.name] = user_functions.build_first_order_column(self, field)
                    continue
                made = self.order.build_order_column(field.name, self.taken.running)
                if made is None:
                    name = f"_order_{field.name}"
                    found = out.get(name)
                    made = (
                        found
                        if found is not None
                        else self._gather_column(self._find_order_setters(number, 0, field.name), field)
                    )
                    out[field.name] = made.cast(field.type)
                else:
                    out[field.name] = made.take(places)
        return out

    def _inherit_orders(self, made: Ints, given: pa.Field, kept: pa.Field) -> pa.Array:
        """Gather the orders of cells by reference. An event without an order inherits the key's order."""
        ours = (made >= 0) & (made < 1 << SLOT)
        mine = user_functions.fill_orders_from_prior(self, given).take(pa.array(np.where(ours, made, 0)))
        return pc.if_else(pa.array(ours), mine, self.gather_cells(np.where(ours, NOTHING, made), kept))

    def _find_order_setters(self, group: int, part: int, name: str) -> Ints:
        """Find the rows that set the order of a column group.

        With versions of cells, find the rows that set one part of the order. ``name``: the order column.
        """
        action = self.taken.action[group if not self.merging.cells else max(part - 1, 0)]
        if self.merging.cells and part < 2:
            gone = self.gone.take(self.steps.permutation) != 0
            action = np.where(gone if part == 1 else ~gone, action, SKIP)
        if not self.merging.cells and group:
            action = self._mark_order_setters(group)
        follows = np.where(action != SKIP, TAKE, SKIP).astype(np.uint8)
        if self.merging.cells and part > 1 and self._list_value_rules_by_column()[part - 2] != walk_cells.LATEST:
            follows[action == CLEAR] = CLEAR  # if the first event or every event counts, a delete clears the order
        every = bool(group) or self.merging.cells or name.startswith("_tie_")
        counts = (
            np.empty(0, np.uint8) if every else unpack_validity(self.events.rows.column(self.find_event_column(name)))
        )
        held = (
            self.compute_prior_references()
            if name in self.upsert.output_arrangement.schema.names and self.order.keeps
            else None
        )
        cells = np.where(self.status != NONE, held, NOTHING) if held is not None and not self.over else None
        start, walked = cells, self.steps
        if not self.order.keeps:  # orders are not stored from one time to the next
            walked = self.steps._replace(keys=np.arange(self.places.size + 1, dtype=np.int32))
        if start is None:
            start = np.full(walked.keys.size - 1, NOTHING)
        out, none = np.empty(self.places.size, np.int64), np.empty(0, np.int64)
        choose_cells(walked, follows, counts, none, start, np.ones(start.size, np.uint8), none, LATEST, out)
        return out

    def _mark_order_setters(self, group: int) -> Flags:
        """Return uint8[n], by place: TAKE for an event that sets the order of the group at the end of a time."""
        steps, span = self.steps, slice(int(self.order.spans[group, 0]), int(self.order.spans[group, 2]))
        runs = np.repeat(self.taken.running[:, span], np.diff(steps.key_times), axis=0)
        return np.where((self.own[steps.permutation, span] == runs).all(axis=1), TAKE, SKIP)

    def _gather_column(self, made: Ints | pa.Array, field: pa.Field) -> pa.Array:
        """Gather a column of the merged rows, sorted by time."""
        if isinstance(made, np.ndarray):
            return self.gather_cells(made[self.places], field)
        return made if self.times.size < 2 else made.take(pa.array(self.places))

    def _replace_events(self) -> None:
        """Replace the events by the merged rows."""
        steps, m = self.steps, self.places.size
        at = self.keyed.by.starts[:-1]
        counts = np.diff(steps.keys)
        high = np.repeat(self.keyed.by.high.take(at), counts)
        low = np.repeat(self.keyed.by.low.take(at), counts) if self.keyed.by.low.size else self.keyed.by.low
        self.permutation = np.empty(m, np.int32)
        self.permutation[self.places] = np.arange(m, dtype=np.int32)
        first = steps.permutation.take(steps.key_times[:-1])[self.places]
        self.mark = (self.keyed.mark.take(first) | 1) - self.taken.live[self.places].astype(np.int32)
        self.by = SortedRows(self.permutation, high, low, steps.keys)
        words = self.taken.running[self.places] if self.order.words else np.empty((m, 0), np.int64)
        self.words = np.ascontiguousarray(words)

    def column(self, name: str) -> pa.Array:
        """See `FullRows.column`."""
        return self.made.column(name)

    def payload(self) -> Rows:
        """See `FullRows.payload`."""
        return Rows(self.made)

    def hidden_column(self, name: str) -> pa.Array:
        """See `FullRows.hidden_column`."""
        return self.made.column(name)

    def count_verdicts(self, outcome: Any, counts: Ints) -> tuple[Ints, Flags | None]:
        """Return int64[8], the number of events with each verdict, and the verdict of each event.

        The last event that was folded at a time gets the verdict of the row.
        """
        verdict, last = self.taken.why, self.taken.last[self.places]
        acted = last >= 0
        verdict[last[acted]] = ((outcome[acted] >> OUTCOME) & 7).astype(np.uint8)
        own = np.bincount(verdict, minlength=8).astype(np.int64)
        return own - np.bincount(verdict[self.keyed.absent], minlength=8), verdict

    def winner_orders(self, out: Outcomes, rows: Ints) -> list[pa.Array]:
        """Return the ``order_by`` values that the keys of given events have after the times of these events.

        O(events).
        """
        steps, m = self.steps, self.places.size
        key_time = np.full(self.events.times.size, -1)
        key_time[steps.permutation] = np.repeat(np.arange(m), np.diff(steps.key_times))
        stands: Ints = np.empty(m, np.int64)
        stands[self.places] = np.arange(m)
        none = key_time[rows] < 0
        at = pa.array(key_time[rows], mask=none)
        stood = pa.array(stands[key_time[rows]] if m else key_time[rows], mask=none)
        made_, running, live = [], self.taken.running, self.taken.live != 0
        if self.merging.cells:  # a deleted key has the order of its latest delete; it follows the row's order
            wide = self.order.event_word_count
            running = np.where(live[:, None], running[:, :wide], running[:, wide : 2 * wide])
        for field in self.merging.groups[0].order:
            made = self.order.build_order_column(field.name, running)
            if made is not None:
                made_.append(made.take(at))
                continue
            name = f"_order_{field.name}"
            if self.merging.cells:
                of_delete = next(each.hidden[1][1] for each in self.order.ranks if each.field.name == field.name)
                either = pa.array(live[self.places]), self.made.column(name), self.made.column(of_delete)
                made_.append(pc.if_else(*either).take(stood))
                continue
            if name not in self.made.schema.names:  # orders are not stored from one time to the next
                set_by = self._find_order_setters(0, 0, field.name)
                given = self.events.rows.column(field.name)
                made_.append(given.take(pa.array(set_by, mask=set_by == NOTHING)).take(at))
                continue
            made_.append(self.made.column(name).take(stood))
        return made_


def cast_derived_column(values: pa.Array, field: pa.Field) -> pa.Array:
    """Cast the result of an expression to the type of its column."""
    return values if values.type == field.type else values.cast(field.type)
