"""Ways out: epochs of updates into tables, and what the targets' own libraries take for the same rows.

Invariant: an engine with a durable state makes the epochs and keeps them; that is not timed. ddflow is timed from there
to the target's commit: updates read back from the state, their net, the target's transaction with the record. A peer is
given the rows of each epoch as a table in memory, and merges or appends them by one call of its library. Of an epoch
half the events change a row that is there, four in ten bring one, one in ten deletes. What lies in the target in the
end is read back and compared. Postgres syncs its log to the disk, as it should.

>>> sample = delivered("duckdb", "upsert", "ddflow", 400)
>>> sample["checksum"] == expected("upsert", 400), sample["rows"]
(True, 1200)
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from statistics import median
from time import perf_counter
from typing import Any

import memory
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from connectors_feeds import flow, postgres
from connectors_work import GONE, SCHEMA, digest, in_csv, last, orders
from operators import Clock

EPOCHS, HELD = 3, 5
"""Epochs that count, behind one that warms up; and epochs' worth of rows that are there before."""
SMALL, SEEN = 1_000, 30
"""Changes of a small epoch, and how many such are seen."""
Sample = dict[str, Any]


def epochs(rows: int, count: int = EPOCHS + 1) -> Iterator[pa.Table]:
    """All rows that are there before; then the events of each epoch, each key once."""
    rng, held = np.random.default_rng(rows), HELD * rows
    yield _of(np.arange(held), np.zeros(held, np.bool_), 0)
    for number in range(1, count + 1):
        old = rng.permutation(held)[: rows - 2 * rows // 5]
        new = np.arange(held, held + 2 * rows // 5)
        gone = np.zeros(rows, np.bool_)
        gone[rows // 2 : old.size] = True
        held += new.size
        yield _of(np.concatenate([old, new]), gone, number)


def _of(ids: Any, gone: Any, number: int) -> pa.Table:
    table = orders(ids.size, seed=number)
    table = table.set_column(0, "id", pa.array(ids))
    return table.set_column(table.num_columns - 1, GONE, pa.array(gone))


def expected(mode: str, rows: int) -> str:
    """The rows of a target in the end: those that are left, or every row that ever came and went."""
    every = pa.concat_tables(list(epochs(rows)))
    left = last(every)
    if mode == "upsert":
        return digest(left)
    came, at = list(epochs(rows)), dict[int, int]()
    first, later = came[0], came[1:]
    del first, at
    raise NotImplementedError(later)
