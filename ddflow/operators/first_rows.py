"""The rows at an end of groups: those that were held there, and those of a step, in order.

Invariant: whatever the times of a step do to its rows, as many rows as were asked for are among these, if the group has
them: so many were read that the step does not touch. Where words leave the order open, values decide.

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

from typing import Final, NamedTuple

import numpy as np

from ddflow.columns.hashing import Flags, Ints
from ddflow.columns.rows import RowPool
from ddflow.kernels.top import merge_top
from ddflow.operators.ordered_rows import Folded, OrderedRows
from ddflow.operators.row_order import RowOrder
from ddflow.trace.ordered_index import RowsByGroup

MORE: Final = 4
"""So many times the rows are read where the step touches too many."""


class FirstRows(NamedTuple):
    """n rows, in order: group by group."""

    references: Ints
    held: Ints
    """Multiplicities before the step."""
    ends: Ints
    """int64[g + 1]: where groups begin."""
    place: Ints
    """int64[m]: where the rows of the step stand, -1 for behind all of these."""


class StepRows(NamedTuple):
    """The m rows of a step, by group; see `Folded`."""

    first: Ints
    order: Ints
    prior: Ints
    last: Ints


def first_rows(
    rows: OrderedRows,
    ways: RowOrder,
    folded: Folded,
    first: Ints,
    pool: RowPool,
    most: int | np.int64,
    back: bool = False,
) -> FirstRows:
    """Find the rows that are among the first ``most`` of their group before the step or at one of its times.

    ``first``: where the groups of the step's rows begin.  ``pool``: what references point into.  ``back``: groups are
    read from their ends.  O(m + groups log rows + rows read).
    """
    m, heads, turned = folded.prior.size, first[:-1], None
    step = StepRows(first, folded.order, folded.prior, folded.change.last)
    if back:  # the words turned over, so that they ascend
        turned = np.repeat(heads + first[1:] - 1, np.diff(first)) - np.arange(m)
        step = StepRows(first, *(each.take(turned, 0) for each in step[1:]))
        step = step._replace(order=~step.order)
    touched = np.add.reduceat(step.prior > 0, heads, dtype=np.int64) if m else heads
    many = np.full(heads.size, most, np.int64)
    while True:
        found = rows.look(folded.by.high[heads], folded.by.low[heads], many, ways.tied, words=True, back=back)
        merged, held, ties, place, ends = _merge_step(step, found, many, ways.tied, back)
        mine = np.add.reduceat((place >= 0) & (step.prior > 0), heads, dtype=np.int64) if m else heads
        there = np.diff(found.begins)
        few = (there >= many) & (there - mine < most) & (many < most + touched)
        if not few.any():
            break
        many[few] = np.minimum(MORE * many[few] + mine[few], most + touched[few])
    n = merged.size
    if turned is None:
        places = ways.settled(pool, merged, ties)
    else:
        place = place.take(turned)
        places = ways.settled(pool, merged[::-1], np.append(ties[1:], np.uint8(0))[::-1])
        places = None if places is None else n - 1 - places[::-1]
    if places is not None:
        merged, held = merged[places], held[places]
        stands = np.empty(n + 1, np.int64)
        stands[places], stands[-1] = np.arange(n), -1
        place = stands[place]
    return FirstRows(merged, held, ends, place)


def _merge_step(
    step: StepRows, found: RowsByGroup, many: Ints, tied: int, back: bool
) -> tuple[Ints, Ints, Flags, Ints, Ints]:
    """Merge the rows of the step into the found ones: references, multiplicities, ties, places, ends of groups."""
    order, words = (np.ascontiguousarray(each) for each in (step.order, ~found.order if back else found.order))
    m, n = step.prior.size, step.prior.size + found.values.size
    merged, held, place = (np.empty(size, np.int64) for size in (n, n, m))
    ties, ends = np.empty(n, np.uint8), np.empty(step.first.size, np.int64)
    mine = step.first, np.uint64(order.ctypes.data), step.prior, step.last, many
    its = found.begins, np.uint64(words.ctypes.data), found.references, found.values
    n = merge_top(*mine, *its, np.int64(order.shape[1]), np.int64(tied), merged, held, ties, place, ends)
    return merged[:n], held[:n], ties[:n], place, ends
