"""Two collections side by side, cut into ranges of identities, so that what is compared stands together.

Invariant: `aligned` gives every row of both sides once, and rows of one key in the same pair, from however many
partitions. Both sides are cut by the identities they hold; a row's own identity is computed again, and a row that
stands where its key does not belong is `CorruptState`, for no look-up would find it. What rows mean is not known here.

>>> import ddflow as dd
>>> flow, secret = dd.Flow(), Secret(1, 2)
>>> input = flow.output("v", flow.upserts("v", {"k": pa.int64(), "v": pa.int64()}, dd.Upsert(key="k")))
>>> def rows_of(keys, values):
...     engine = flow.open(secret=secret)
...     _ = engine.step({"v": pa.table({"k": keys, "v": values})}, time=1)
...     return engine.dataflow.graph.inputs["v"].arranged
>>> one, other = rows_of([1, 2, 3], [1, 2, 3]), rows_of([2, 3, 5], [2, 4, 5])
>>> found = [a.against(b) for a, b in aligned(one, other, input.bound, secret)]
>>> sum(extra.size for extra, *_ in found), sum(missing.size for _, missing, *_ in found)
(1, 1)
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from ddflow.columns.hashing import Ints, RowHashes, Secret, Words, value_hashes
from ddflow.columns.rows import shown_row
from ddflow.errors import CorruptState
from ddflow.plan.binding import Binding
from ddflow.terminal import as_text
from ddflow.trace.arrangement import PIECE, Arrangement
from ddflow.trace.batch import starts

Mask = np.ndarray[Any, np.dtype[np.bool_]]


class Piece(NamedTuple):
    """n rows in the order of identities, each key once."""

    table: pa.Table
    high: Words
    low: Words
    """uint64[n], or of size 0 if one word is enough."""
    value: Words
    """uint64[n]: hashes of what counts in "did it change"."""

    @classmethod
    def of(cls, table: pa.Table, bound: Binding, secret: Secret, begin: int, end: int) -> Piece:
        """Make the piece of an ordered table with identities from ``begin`` to ``end``. O(n).

        Raises `CorruptState` for a row out of order or out of this range.
        """
        high, low = RowHashes(bound.key_schema, secret).of(table)
        after = high[1:] > high[:-1]
        if low.size:
            after |= (high[1:] == high[:-1]) & (low[1:] > low[:-1])
        fits = (high >= np.uint64(begin)) & (high <= np.uint64(end))
        fits[1:] &= after
        if not fits.all():
            raise misplaced(bound.name, table, int(np.flatnonzero(~fits)[0]))
        shown = list(dict.fromkeys([*bound.row_schema.names, *bound.tracked]))
        return cls(table.select(shown), high, low, value_hashes(table.select(bound.tracked), secret))

    def against(self, other: Piece) -> tuple[Ints, Ints, Ints, Ints]:
        """Rows of this alone, rows of the other alone; and the rows of both that have one key, in step.

        Each int64, ascending.  O(n), or O(n log n) for identities of two words.
        """
        n, high = self.high.size, np.concatenate([self.high, other.high])
        low = np.concatenate([self.low, other.low])
        order = np.lexsort((low, high)) if low.size else np.argsort(high, kind="stable")
        same = ~starts(high[order], low[order] if low.size else low)[1:]
        first, second = order[:-1][same], order[1:][same]
        alone = np.ones(order.size, bool)
        alone[first] = alone[second] = False
        left = np.flatnonzero(alone)
        return left[left < n], left[left >= n] - n, first, second - n

    def among(self, keys: set[tuple[int, int]], rows: Ints) -> Mask:
        """Mark the rows whose identity is in a set of (high, low), low 0 if there is none."""
        low = self.low[rows].tolist() if self.low.size else [0] * rows.size
        pairs = zip(self.high[rows].tolist(), low, strict=True)
        return np.fromiter((pair in keys for pair in pairs), bool, rows.size)


def aligned(one: Arrangement, other: Arrangement, bound: Binding, secret: Secret) -> Iterator[tuple[Piece, Piece]]:
    """Both sides, range by range.  ``bound``: tells key and value.  O(n log n).  Raises `CorruptState`, see the header.

    Either may be in several partitions.  They must not change meanwhile.
    """
    parts = [*one.partitions, *other.partitions]
    count = sum(each.keys for each in parts) // PIECE + 1
    ends = [((number + 1) << 64) // count - 1 for number in range(count)]
    begin = 0
    for end, *tables in zip(ends, *(each.within(ends) for each in parts), strict=True):
        pieces = [Piece.of(table, bound, secret, begin, end) for table in tables]
        yield _join_pieces(pieces[: len(one.partitions)]), _join_pieces(pieces[len(one.partitions) :])
        begin = end + 1


def _join_pieces(pieces: list[Piece]) -> Piece:
    words = (np.concatenate(each) for each in zip(*(piece[1:] for piece in pieces), strict=True))
    return Piece(pa.concat_tables([piece.table for piece in pieces]), *words)


def misplaced(name: str, table: pa.Table, row: int) -> CorruptState:
    """Make the error for a row in a place where its key does not belong."""
    shown = as_text(shown_row(table, row))[:200]
    return CorruptState(
        f"the rows of {name!r}",
        f"one stands where its key does not belong: {shown}",
        "do not use this state; replay the log into a new one",
    )
