"""The rows at an end of groups: those that were held there, and those of a step, in order.

Invariant: whatever the times of a step do to its rows, as many rows as were asked for are among these, if the group has
them: for each row that the step may take away one more was read. Where words leave the order open, values decide.

>>> from ddflow.columns.hashing import Secret
>>> from ddflow.operators.row_order import ordered_by
>>> from ddflow.operators.updates import Updates, few, ints
>>> import pyarrow as pa
>>> row = pa.schema({"n": pa.int64()})
>>> ways = RowOrder(row, [], ordered_by(["n"], row, "top"), Secret(1, 2))
>>> rows = OrderedRows(row, [], ways.words, Secret(1, 2))
>>> folded = rows.fold(Updates(pa.table({"n": [7, 3]}), few(0, 0), ints(1, 1), ints(5)), since=5)
>>> pool = rows.arranged.pool(folded.change.batch.rows)
>>> found = first_rows(rows, ways, folded, ints(0, 2), pool, 1, back=True)
>>> found.place.tolist(), found.held.tolist()
([1, 0], [0, 0])
"""

from typing import NamedTuple

import numpy as np

from ddflow.columns.hashing import Ints
from ddflow.columns.rows import RowPool
from ddflow.kernels.top import merge_top
from ddflow.operators.ordered_rows import Folded, OrderedRows
from ddflow.operators.row_order import RowOrder


class FirstRows(NamedTuple):
    """n rows, in order: group by group."""

    references: Ints
    held: Ints
    """Multiplicities before the step."""
    ends: Ints
    """int64[g + 1]: where groups begin."""
    place: Ints
    """int64[m]: where the rows of the step stand, -1 for behind all of these."""


def first_rows(
    rows: OrderedRows,
    ways: RowOrder,
    folded: Folded,
    first: Ints,
    pool: RowPool,
    most: int | np.int64,
    back: bool = False,
) -> FirstRows:
    """The rows that are among the first ``most`` of their group at some time of the step, or before it.

    ``first``: where the groups of the step's rows begin.  ``pool``: what references point into.  ``back``: groups are
    read from their ends.  O(m + groups log rows + rows read).
    """
    by, m, turned = folded.by, folded.prior.size, None
    order, heads, prior, last = folded.order, first[:-1], folded.prior, folded.change.last
    lowered = np.add.reduceat(prior > 0, heads, dtype=np.int64) if heads.size else heads
    many = most + lowered
    found = rows.look(by.high[heads], by.low[heads], many, ways.tied, words=True, back=back)
    words = found.order
    if back:  # the words of both turned over, so that they ascend
        turned = np.repeat(heads + first[1:] - 1, np.diff(first)) - np.arange(m)
        order, prior, last, words = ~order.take(turned, 0), prior.take(turned), last.take(turned), ~words
    order, words = np.ascontiguousarray(order), np.ascontiguousarray(words)
    n = m + found.values.size
    merged, held, place = (np.empty(size, np.int64) for size in (n, n, m))
    ties, ends = np.empty(n, np.uint8), np.empty(first.size, np.int64)
    mine = first, np.uint64(order.ctypes.data), prior, last, many
    its = found.begins, np.uint64(words.ctypes.data), found.references, found.values
    n = merge_top(*mine, *its, np.int64(order.shape[1]), np.int64(ways.tied), merged, held, ties, place, ends)
    merged, held, ties = merged[:n], held[:n], ties[:n]
    if turned is None:
        places = ways.settled(pool, merged, ties)
    else:
        place = place.take(turned)
        places = ways.settled(pool, merged[::-1], np.append(ties[1:], np.uint8(0))[::-1])
        places = None if places is None else n - 1 - places[::-1]
    if places is not None:
        merged, held = merged[places], held[places]
        back_at = np.empty(n + 1, np.int64)
        back_at[places], back_at[-1] = np.arange(n), -1
        place = back_at[place]
    return FirstRows(merged, held, ends, place)
