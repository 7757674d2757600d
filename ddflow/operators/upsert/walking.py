"""Walk a step's events: decide which column groups each event changes, and find the cells to fold.

Events are sorted by key and time, and within a (key, time) in the order of the fold. The walk returns the
effect of each event on each column group, and the order words of its key after the event. There are separate kernels
for orders of rows, for orders of column groups and for orders of cells. The results of these kernels must agree. Order
words that are valid for one step only are computed here, together with words for the stored orders.

Cells are gathered from events, from batches of the state, and from a row of nulls. ``merged`` folds the columns.

>>> sorted(LATER)
['first', 'first_non_null']
"""

from functools import cached_property

import numpy as np
import pyarrow as pa

from ddflow.columns.hashing import Flags, Ints, Narrow, unpack_validity
from ddflow.columns.rows import RowPool, Rows, gather_column, row_values
from ddflow.errors import ErrorText, Option, TieRefused
from ddflow.kernels.fold import NOTHING, EventsByKey
from ddflow.kernels.resolve import FORGOTTEN, GREATEST, LAPSED, LAST, LIVE, OCCUPIED
from ddflow.kernels.walk import (
    NONE,
    OF_KEY,
    ROW,
    TOMBSTONE,
    WalkOutcome,
    WalkRules,
    apply_events_by_key,
    walk_single_group,
)
from ddflow.kernels.walk_cells import EARLIEST, EVERY, LATEST, CellValues, walk_cells, walk_latest_cells
from ddflow.operators.upsert.events import KeyedEvents
from ddflow.operators.upsert.folds import PriorCells, compute_rank_words, compute_validity_flags, fold_cells
from ddflow.operators.upsert.orders import MergeOrders
from ddflow.operators.upsert.state import UpsertState
from ddflow.plan.merge.bound import MergedColumn
from ddflow.plan.merge.strategy import ORDER_FREE, last, last_non_null
from ddflow.time import format_time

LATER = {"first": last(), "first_non_null": last_non_null()}
"""Some strategies, each with the strategy that replaces it in the fold if cells have versions.

With versions of cells, the walk sometimes takes an event that is earlier than an event it took before. The cell of the
earlier event must then replace the cell of the later event.
"""


class WalkedEvents:
    """The walked events of a step, before the fold."""

    def __init__(self, state: UpsertState, keyed: KeyedEvents) -> None:
        """Walk the events, but do not fold them."""
        self.upsert, self.keyed = state, keyed
        self.events, self.times, self.prior, self.gone = keyed.events, keyed.times, keyed.prior, keyed.gone
        order, merging = state.order, state.bound.merging
        assert isinstance(order, MergeOrders) and merging is not None
        self.order, self.merging = order, merging
        self.over = keyed.full is not None
        if keyed.absent.size:
            self.gone = keyed.gone.copy()
            self.gone[keyed.absent] = OF_KEY
        prior = self.prior.reference
        nothing = (prior == 0) | (prior & LAPSED != 0)
        self.status = np.where(nothing, NONE, np.where(prior & LIVE != 0, ROW, TOMBSTONE)).astype(np.uint8)
        self.steps = self._sort_events(order)
        self.places = self._sort_groups_by_time()
        live = self.status == (ROW if not self.over else 255)
        self.cells = np.where(live, prior & ~np.int64(OCCUPIED | LIVE), NOTHING)
        self._walk_events()
        self.action = self.taken.action
        """The effects of events that the fold uses: those that the walk found, without ignored events."""

    def _sort_events(self, order: MergeOrders) -> EventsByKey:
        """Sort the events by key and time, in the order of the fold."""
        by, n = self.keyed.by, self.events.times.size
        self.own = order.compute_words(self.events.rows, self.events.original, self.gone)
        if order.ranks:
            order.write_ranked_words(
                self.events.rows, self.gone, self.own, self.gather_hidden_columns(), self.prior.order
            )
        permutation, g = by.permutation, by.starts.size - 1
        if self.times.size < 2:
            key_times, keys = by.starts, np.arange(g + 1, dtype=np.int32)
        else:
            rank = self.keyed.mark.take(permutation) >> 1
            begins = np.ones(n, np.bool_)
            begins[1:] = rank[1:] != rank[:-1]
            begins[by.starts[:-1]] = True
            key_times = np.append(np.flatnonzero(begins), n).astype(np.int32)
            keys = np.searchsorted(key_times, by.starts).astype(np.int32)
        if self.upsert.bound.spec.holds_back and order.base + (order.seq is not None) and key_times.size <= n:
            permutation = self._sort_by_order(order, permutation, key_times)
        return EventsByKey(permutation, key_times, keys)

    def _sort_by_order(self, order: MergeOrders, permutation: Narrow, key_times: Narrow) -> Narrow:
        """Sort the events of each (key, time) by effective order: base words, then sequence, then arrival."""
        at = permutation
        columns = [self.own[at, w] for w in range(order.base)]
        if order.seq is not None:
            word = self.own[at, int(order.spans[0, 2]) - 1]
            columns.append(word if order.tie == LAST else ~word)
        key_time = np.repeat(np.arange(key_times.size - 1), np.diff(key_times))
        return at[np.lexsort((*reversed(columns), key_time))]

    def _sort_groups_by_time(self) -> Ints:
        """Return int64[m]: the (key, time) groups sorted by time, which is the order of the merged rows."""
        rank = self.keyed.mark.take(self.steps.permutation.take(self.steps.key_times[:-1])) >> 1
        return np.argsort(rank, kind="stable") if self.times.size > 1 else np.arange(rank.size)

    def _walk_events(self) -> None:
        """Decide which events are folded or ignored, and compute the order of each key after these events."""
        order, rows, spec = self.order, self.events.rows, self.upsert.bound.spec
        n, m = self.events.times.size, self.steps.key_times.size - 1
        groups, words = len(self.merging.groups), order.event_word_count * order.parts
        places = self.steps.permutation.size
        self.taken = WalkOutcome(
            np.empty((groups, places), np.uint8),
            np.empty(n, np.uint8),
            np.empty((m, words), np.int64),
            np.empty(m, np.uint8),
            np.empty(m, np.int64),
        )
        self.taken.why[self.keyed.left] = FORGOTTEN
        missing, whole_group = order.has_missing_orders(rows), spec.deletes == "group"
        rule = WalkRules(order.tie, order.keeps, order.ordered, whole_group, self.over, missing)
        scratch = np.empty((4, words + groups), np.int64)
        if self.merging.cells and self._has_plain_cells(rule):
            given = self._mark_cell_values()
            walk_latest_cells(
                self.steps, self.own, self.gone, self.status, self.prior.order, given, self.over, self.taken
            )
            return
        if self.merging.cells:
            refused = walk_cells(
                self.steps,
                self.own,
                self.gone,
                self.status,
                self.prior.order,
                self._mark_cell_values(),
                self._list_value_rules_by_column(),
                order.columns,
                rule,
                order.base,
                self._compute_cell_words(),
                scratch,
                self.taken,
            )
        elif groups == 1:
            refused = walk_single_group(
                self.steps,
                self.own,
                self.gone,
                self.status,
                self.prior.order,
                order.base,
                order.columns,
                rule,
                self.taken,
            )
        else:
            refused = apply_events_by_key(
                self.steps,
                self.own,
                self.gone,
                self.status,
                self.prior.order,
                order.spans,
                order.columns,
                rule,
                scratch,
                self.taken,
            )
        if refused >= 0:
            raise self.build_tie_error(refused)

    def _has_plain_cells(self, rule: WalkRules) -> bool:
        """Return whether cells are compared by one column without nulls and only the latest event of a cell counts."""
        columns, width = self.order.columns, self.order.event_word_count
        single = width == 1 or (len(columns) == 1 and width == columns[0, 2] - columns[0, 1])
        return single and rule.tie == LAST and not rule.inherits and not self._list_value_rules_by_column().any()

    def _list_value_rules_by_column(self) -> Ints:
        """Return int64[cells]: for each cell, the rule that selects its events."""
        names = [column.strategy.name for column in self.merging.columns]
        return np.array([EARLIEST if name in LATER else LATEST if name in ORDER_FREE else EVERY for name in names])

    def _mark_cell_values(self) -> Flags:
        """Return uint8[cells, n]: 1 if an event has a value for the cell."""
        rows, out = self.events.rows, np.ones((len(self.merging.columns), self.events.times.size), np.uint8)
        for i, column in enumerate(self.merging.columns):
            had = self.merging.mark_events_with_column(rows, column.name)
            present = (
                had if column.strategy.name in ("last", "first") else compute_validity_flags(rows.column(column.name))
            )
            if present.size:
                out[i] = present
        return out

    def _compute_cell_words(self) -> CellValues:
        """Convert the cells to words if cells decide ties."""
        cells, n, g = len(self.merging.columns), self.events.times.size, self.status.size
        if self.order.tie != GREATEST:
            nothing = np.empty((cells, 0), np.int64), np.empty((cells, 0), np.uint8)
            return CellValues(*nothing, *nothing)
        out = CellValues(
            np.zeros((cells, n), np.int64),
            np.ones((cells, n), np.uint8),
            np.zeros((cells, g), np.int64),
            np.ones((cells, g), np.uint8),
        )
        for i, column in enumerate(self.merging.columns):
            given, held = self.events.rows.column(column.name), self.build_prior_cells(column).gather_values()
            out.word[i], out.held[i] = compute_rank_words(given, held)
            for flags, of in ((out.there[i], given), (out.had[i], held)):
                if of.null_count:
                    flags[:] = unpack_validity(of)
        return out

    def build_prior_cells(self, column: MergedColumn) -> PriorCells:
        """Return the cells of a column that the keys have before the step."""
        return PriorCells(self.cells, lambda: self.gather_cells(self.cells, column.field))

    def fold_column(self, column: MergedColumn) -> Ints | pa.Array:
        """Fold one merged column by key and time. Return references or cells."""
        rows, action = self.events.rows, self.action[column.group]
        strategy = column.strategy if not self.merging.cells else LATER.get(column.strategy.name, column.strategy)
        return fold_cells(
            strategy,
            column.field,
            self.steps,
            action,
            rows.column(column.name),
            self.merging.mark_events_with_column(rows, column.name),
            self.build_prior_cells(column),
            self.upsert.secret,
            self.format_key,
        )

    def find_event_column(self, name: str) -> str:
        """Return the event column whose values a hidden column stores."""
        return next((each.field.name for each in self.order.ranks if name in [n for _, n in each.hidden]), name)

    def compute_prior_references(self) -> Ints:
        """Return references to the stored rows of keys, including tombstones."""
        return self.prior.reference & ~np.int64(OCCUPIED | LIVE)

    def gather_hidden_columns(self) -> pa.Table | None:
        """Gather the hidden columns of all keys, with nulls for keys without state."""
        if not self.order.hidden:
            return None
        references = np.where(self.status != NONE, self.compute_prior_references(), NOTHING)
        return pa.table({f.name: self.gather_cells(references, f) for f in self.order.hidden})

    @cached_property
    def _cell_pool(self) -> tuple[RowPool, int]:
        """The pool of cells, and the number of its last batch.

        The pool has the events as batch 0, the stored batches, and a row of nulls.
        """
        arranged, rows = self.upsert.output_arrangement, self.events.rows
        n, columns = rows.num_rows, []
        for field in arranged.schema:
            name = field.name if field.name in rows.schema.names else self.find_event_column(field.name)
            column = rows.column(name) if name in rows.schema.names else pa.nulls(n, field.type)
            columns.append(column if column.type == field.type else pa.nulls(n, field.type))
        schema = pa.schema([f.with_nullable(True) for f in arranged.schema])
        pool = arranged.prepare_row_pool().with_events(Rows(pa.RecordBatch.from_arrays(columns, schema=schema)))
        none = len(pool.rows)
        pool.set_batch(none, Rows(pa.RecordBatch.from_arrays([pa.nulls(1, f.type) for f in schema], schema=schema)))
        return pool, none

    def gather_cells(self, references: Ints, field: pa.Field) -> pa.Array:
        """Gather cells by reference. NOTHING gives null."""
        pool, none = self._cell_pool
        return gather_column(pool, np.where(references == NOTHING, none << 40, references), field)

    def format_key(self, group: int) -> str:
        """Format a group's key for an error message."""
        row = int(self.steps.permutation[self.steps.key_times[self.steps.keys[group]]])
        return str(row_values(self.events.rows.select(list(self.upsert.bound.spec.key)), row))

    def build_tie_error(self, row: int) -> TieRefused:
        """Build the error for a tie that ``tie="error"`` refuses."""
        bound, rows = self.upsert.bound, self.events.rows
        names = [field.name for group in self.merging.groups for field in group.order]
        key, order = (row_values(rows.select(list(dict.fromkeys(names))), row) for names in (bound.spec.key, names))
        time = format_time(int(self.events.times[row]), bound.time_type)
        return TieRefused(
            f"a step of {bound.name!r}",
            f"the key {key} has a second event of order {order}, at time {time}",
            ErrorText(
                "fix the feed, or choose ", Option("tie", "last"), ", 'first' or 'greatest'; nothing was changed"
            ),
            input=bound.name,
        )
