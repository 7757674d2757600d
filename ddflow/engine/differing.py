"""Synced: how a table of a sink differs from the rows that an output holds, counted for people.

Invariant: what is counted are rows of the table: one is deleted, or is changed where its key goes on, and a row is
added where its key is new to the table. A log, such as a changelog, only gets rows.

>>> updates = pa.table({"id": [2, 2, 3, 4], "n": [9, 2, 3, 4], "_time": [1] * 4, "_diff": [-1, 1, 1, -1]})
>>> made = TableChanges(updates.select(["id"]), updates.slice(1, 2), 4)
>>> found = told(made, updates, ("id",), Secret(1, 2))
>>> found[:3], found.keys.to_pylist()
((1, 1, 1), [{'id': 4}, {'id': 2}])
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from ddflow.columns.hashing import Secret
from ddflow.columns.names import DIFF
from ddflow.connectors.attached import TableChanges
from ddflow.connectors.modes import among


class Synced(NamedTuple):
    """Counts of the table's rows that `Engine.sync` wrote, or would write."""

    deleted: int
    """That went."""
    changed: int
    """That got other values beside their key."""
    added: int
    """That are new."""
    keys: pa.Table | None = None
    """The keys of deleted rows, then of changed rows; None if rows are only added."""


def told(made: TableChanges, both: pa.Table, key: Sequence[str] | None, secret: Secret) -> Synced:
    """Count the differences that ``made`` writes. O(rows of both).

    ``both``: as updates, the table's rows to delete and the rows to insert.
    """
    if made.gone is None:
        return Synced(0, 0, made.rows.num_rows)
    diffs, keys = np.array(both.column(DIFF), np.int64), both.select(list(key or ()))
    theirs, ours = (keys.filter(pa.array(sign)) for sign in (diffs < 0, diffs > 0))
    stays = among(theirs, ours, secret) if key else np.full(theirs.num_rows, ours.num_rows > 0)
    known = among(ours, theirs, secret) if key else np.full(ours.num_rows, theirs.num_rows > 0)
    changed, gone = int(np.count_nonzero(known)), int(-diffs[diffs < 0].sum())
    listed = pa.concat_tables([theirs.filter(pa.array(~stays)), ours.filter(pa.array(known))])
    return Synced(gone - changed, changed, ours.num_rows - changed, listed)
