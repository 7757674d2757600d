"""Count: how many rows each group has, as differences.

Invariant: at each time at which a group's count changes, the old count leaves (if it was not zero) and the new one
enters (if it is not zero); a group at zero leaves.  The arrangement holds one live (group, count) a group, so it is an
upsert arrangement like any other, and its entry's value word is the count itself.  Counts may be negative, after
``negate``.  Why that is not trivial: input need not be consolidated, sums are checked for overflow, and the group
columns of a retraction are taken from the update that caused it: equal to the stored ones by canonical equality.
(McSherry, "Upserts in differential dataflow", Counting.)

>>> import pyarrow as pa
>>> count = Count(pa.schema({"v": pa.string()}), "count", Secret(1, 2))
>>> out, change = count.judge(Updates(pa.table({"v": ["a", "a", "b"]}), few(0, 0, 0), ints(1, 1, 1), ints(5)), 5)
>>> count.apply(change, upper=6, since=5)
>>> out, _ = count.judge(Updates(pa.table({"v": ["a"]}), few(0), ints(-1), ints(6)), 6)
>>> out.to_table(count.schema, pa.int64()).to_pylist()
[{'v': 'a', 'count': 2, '_time': 6, '_diff': -1}, {'v': 'a', 'count': 1, '_time': 6, '_diff': 1}]
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from ddflow.arena import Arena
from ddflow.arrange.arrangement import Arrangement, Change
from ddflow.arrange.batch import Batch
from ddflow.identity import NONE, Ints, Secret, identities, is_wide
from ddflow.kernels import accumulate as kernels
from ddflow.kernels.resolve import LIVE
from ddflow.kernels.sort import order_by_rank
from ddflow.operators.updates import Updates, few, ints, overflow
from ddflow.rows import Rows
from ddflow.sorting import sort

__all__ = ["Count", "few", "ints"]


class Count:
    """``groups``: the group columns, possibly none.  ``name``: of the count's column.  State: one row a group."""

    def __init__(self, groups: pa.Schema, name: str, secret: Secret) -> None:
        self.groups, self.name, self.secret = groups, name, secret
        self.schema = pa.schema([*groups, pa.field(name, pa.int64(), nullable=False)])
        self.arranged, self.arena = Arrangement(self.schema, is_wide(groups), 0), Arena()

    def judge(self, updates: Updates, since: int) -> tuple[Updates, Change]:
        """The updates of the counts, and the change to apply.  ``since``: what it will be after the step.

        O(updates).  Raises `CountOverflow`, with nothing changed.
        """
        # Not cast: the types agree, only what may be null does not; and Arrow's cast breaks lists of nulls.
        groups = pa.Table.from_arrays([updates.rows.column(f.name) for f in self.groups], schema=self.groups)
        n = updates.diffs.size
        self.arena.reset()
        by = sort(*identities(groups, self.secret, n), self.arena)
        held = self.arranged.seek(by.high, by.low, by.starts[:-1], self.arena)
        before = np.where(held.reference & LIVE != 0, held.value.view(np.int64), 0)
        since_rank = int(np.searchsorted(updates.times, since, side="right")) - 1
        up, down = self._room(3, 2 * n), self._room(2, n)
        last = self.arena.empty(before.size, np.int64)
        changed, versions, refused = kernels.count(by.permutation, by.starts, updates.ranks, updates.diffs, before,
                                                   np.int64(since_rank), up[0], up[1], up[2], up[3],
                                                   down[0], down[1], down[2], last)  # fmt: skip
        if refused >= 0:
            raise overflow(groups, refused)
        order = np.empty(changed, np.int64)
        order_by_rank(up[0][:changed], np.empty(0, np.int64), np.int64(updates.times.size), order)
        ranks, rows, counts, diffs = (column.take(order) for column in up)
        out = Updates(self._rows(groups, rows, counts), ranks, diffs, updates.times)
        ranks, rows, counts = (column[:versions] for column in down)
        moved = np.flatnonzero(last >= 0)
        first = np.zeros(versions, np.int64)
        first[last[moved]] = 1
        at = by.starts[moved.take(np.cumsum(first) - first)]
        live = (counts != 0).astype(np.uint8)
        born = int(live.take(last.take(moved)).sum()) - int(np.count_nonzero(before.take(moved)))
        batch = Batch(by.high.take(at), by.low.take(at) if by.low.size else by.low, updates.times.take(ranks), live,
                      NONE, np.empty((versions, 0), np.int64), Rows(self._rows(groups, rows, counts)))  # fmt: skip
        change = Change(batch, counts.view(np.uint64), last, held.place, self.arranged.index.built, born, 0)
        return out, change

    def apply(self, change: Change, upper: int, since: int) -> None:
        """Take the change into the state.  Amortised O(groups changed)."""
        self.arranged.apply([change], upper, since)

    def _room(self, wide: int, n: int) -> list[Any]:
        """Scratch: ranks, and ``wide`` columns of int64."""
        return [self.arena.empty(n, np.int32), *(self.arena.empty(n, np.int64) for _ in range(wide))]

    def _rows(self, groups: pa.Table, rows: Ints, counts: Ints) -> pa.Table:
        taken = groups.take(pa.array(rows)).columns if len(self.groups) else []
        return pa.Table.from_arrays([*taken, pa.array(counts.copy())], schema=self.schema)
