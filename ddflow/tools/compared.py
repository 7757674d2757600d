"""Two collections side by side: tables in the order of identities, cut so that what is compared stands together.

Invariant: `in_order` gives the rows of an input in that order, from however many partitions; `aligned` gives every row
of both sides once, and rows of one key in the same pair. The sides come in pieces of their own sizes, either may be at
its end, and a piece is only worth anything if its rows really are in order, so that is looked at: a row that stands
where its key does not belong is `CorruptState`, for no look-up would find it. What rows mean is not known here.

>>> from ddflow.plan.bind import bind
>>> from ddflow.plan.spec import Upsert
>>> bound, secret = bind("v", pa.schema({"k": pa.int64(), "v": pa.int64()}), Upsert(key="k")), Secret(1, 2)
>>> def piece(*rows):
...     table = pa.table({"k": [k for k, _ in rows], "v": [v for _, v in rows]})
...     return table.take(pa.array(np.argsort(RowHashes(table.select(["k"]).schema, secret).of(table)[0])))
>>> one, other = piece((1, 1), (2, 2), (3, 3)), piece((2, 2), (3, 4), (5, 5))
>>> found = [a.against(b) for a, b in aligned(iter([one]), iter([other]), bound, secret)]
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
from ddflow.plan.bind import Bound
from ddflow.terminal import as_text
from ddflow.trace.arrangement import PIECE, Arrangement

Mask = np.ndarray[Any, np.dtype[np.bool_]]


class Piece(NamedTuple):
    """n rows in the order of identities, each key once."""

    table: pa.Table
    high: Words
    low: Words
    """uint64[n], or of size 0 where one word is enough."""
    value: Words
    """uint64[n]: hashes of what counts in "did it change"."""

    @classmethod
    def of(cls, table: pa.Table, bound: Bound, secret: Secret) -> Piece:
        """Of a table, in order.  O(n).  Raises `CorruptState` where it is not."""
        high, low = RowHashes(bound.key_schema, secret).of(table)
        after = high[1:] > high[:-1]
        if low.size:
            after |= (high[1:] == high[:-1]) & (low[1:] > low[:-1])
        if not bool(after.all()):
            raise misplaced(bound.name, table, int(np.flatnonzero(~after)[0]) + 1)
        return cls(table, high, low, value_hashes(table.select(bound.tracked), secret))

    def cut(self, begin: int, end: int) -> Piece:
        """The rows [begin, end), without a copy."""
        low = self.low[begin:end] if self.low.size else self.low
        return Piece(self.table.slice(begin, end - begin), self.high[begin:end], low, self.value[begin:end])

    def until(self, last: int) -> int:
        """How many rows have an identity up to ``last`` (its first word).  O(log n)."""
        return int(np.searchsorted(self.high, np.uint64(last), side="right"))

    def against(self, other: Piece) -> tuple[Ints, Ints, Ints, Ints]:
        """Rows of this alone, rows of the other alone; and the rows of both that have one key, in step.

        Each int64, ascending.  O(n), or O(n log n) for identities of two words.
        """
        n, high = self.high.size, np.concatenate([self.high, other.high])
        if self.low.size or other.low.size:
            low = np.concatenate([self.low, other.low])
            order = np.lexsort((low, high))
        else:
            low, order = np.zeros(high.size, np.uint64), np.argsort(high, kind="stable")
        same = high[order[1:]] == high[order[:-1]]
        same &= low[order[1:]] == low[order[:-1]]
        first, second = order[:-1][same], order[1:][same]
        alone = np.ones(order.size, bool)
        alone[first] = alone[second] = False
        left = np.flatnonzero(alone)
        return left[left < n], left[left >= n] - n, first, second - n

    def among(self, keys: set[tuple[int, int]], rows: Ints) -> Mask:
        """Which of some rows have their identity in a set of (high, low), low 0 where there is none."""
        low = self.low[rows].tolist() if self.low.size else [0] * rows.size
        pairs = zip(self.high[rows].tolist(), low, strict=True)
        return np.fromiter((pair in keys for pair in pairs), bool, rows.size)


def in_order(arranged: Arrangement, bound: Bound, secret: Secret) -> Iterator[pa.Table]:
    """The rows of an input, table by table in the order of identities, however many partitions they are in.

    O(rows), and O(n log n) for those of several partitions.  Raises `CorruptState` where they are not in order there.
    """
    if len(arranged.partitions) == 1:
        yield from arranged.pieces()
        return
    count = sum(each.keys for each in arranged.partitions) // PIECE + 1
    ends = [((number + 1) << 64) // count - 1 for number in range(count)]
    for tables in zip(*(each.within(ends) for each in arranged.partitions), strict=True):
        pieces = [Piece.of(table, bound, secret) for table in tables]
        high, low = (np.concatenate(words) for words in zip(*((p.high, p.low) for p in pieces), strict=True))
        order = np.lexsort((low, high)) if low.size else np.argsort(high, kind="stable")
        yield pa.concat_tables(tables).take(pa.array(order))


def aligned(
    one: Iterator[pa.Table], other: Iterator[pa.Table], bound: Bound, secret: Secret
) -> Iterator[tuple[Piece, Piece]]:
    """Both sides, range by range.  ``bound``: tells key and value.  O(rows).  Raises `CorruptState`, see the header."""
    sides, nothing = (_Side(one, bound, secret), _Side(other, bound, secret)), bound.row_schema.empty_table()
    empty = Piece.of(nothing, bound, secret)
    while True:
        pieces = [side.piece() for side in sides]
        if pieces[0] is None and pieces[1] is None:
            return
        last = min(int(piece.high[-1]) for piece in pieces if piece is not None)
        first, second = (empty if side.rest is None else side.take(last) for side in sides)
        yield first, second


class _Side:
    """``rest``: what was read and not yet taken."""

    def __init__(self, tables: Iterator[pa.Table], bound: Bound, secret: Secret) -> None:
        self.tables, self.bound, self.secret = tables, bound, secret
        self.rest: Piece | None = None
        self.before = -1

    def piece(self) -> Piece | None:
        """What comes next; None at the end."""
        while self.rest is None or not self.rest.high.size:
            table = next(self.tables, None)
            if table is None:
                self.rest = None
                return None
            self.rest = Piece.of(table, self.bound, self.secret)
            if self.rest.high.size and int(self.rest.high[0]) <= self.before:
                raise misplaced(self.bound.name, table, 0)
        return self.rest

    def take(self, last: int) -> Piece:
        """The rows up to an identity."""
        assert self.rest is not None
        end = self.rest.until(last)
        out, self.rest = self.rest.cut(0, end), self.rest.cut(end, self.rest.high.size)
        self.before = last
        return out


def misplaced(name: str, table: pa.Table, row: int) -> CorruptState:
    """The error for a row that stands where its key does not belong."""
    shown = as_text(shown_row(table, row))[:200]
    return CorruptState(
        f"the rows of {name!r}",
        f"one stands where its key does not belong: {shown}",
        "do not use this state; replay the log into a new one",
    )
