"""The rows of groups of an ordered arrangement, wherever they live.

Invariant: the rows of a group are those that a read of all would give with its words first, in the order of identities.
In memory the index has them side by side. Where runs lie on disk, each has the rows of a group side by side, and what a
newer layer says of an identity holds. There all rows of a group are looked at, however few are asked for.

>>> import pyarrow as pa
>>> arranged = Arrangement(pa.schema({"k": pa.int64()}), wide=True, words=1, ordered=True)
>>> group_rows(arranged, np.array([5], np.uint64)).begins.tolist()
[0, 0]
"""

from typing import Any, NamedTuple

import numpy as np

from ddflow.columns.hashing import NONE, Ints, Words
from ddflow.columns.sorting import in_order
from ddflow.kernels.gather import ROWS, SLOT, SLOTS
from ddflow.kernels.resolve import LIVE, OCCUPIED
from ddflow.trace.arrangement import Arrangement
from ddflow.trace.batch import Batch, ends, starts
from ddflow.trace.ordered_index import ALL, OrderedIndex, RowsByGroup
from ddflow.trace.spill import located


class Layer(NamedTuple):
    """The last versions of some identities in one layer."""

    references: Ints
    values: Ints
    live: Words
    high: Words
    low: Words
    order: Ints


def group_rows(
    arranged: Arrangement,
    high: Words,
    low: Words = NONE,
    order: Ints | None = None,
    most: int | Ints = ALL,
    tied: int | None = None,
    words: bool = False,
    back: bool = False,
) -> RowsByGroup:
    """The live rows of groups, given by ascending prefixes of identities; at most so many of each.

    ``low`` of size 0, ``order`` None: prefixes are shorter.  ``most``, ``tied``, ``words``, ``back``: as of
    `OrderedIndex.group`.
    O(groups log entries + rows) in memory; on disk, O(log rows) more for each group and run there, and all rows of the
    groups.
    """
    index = arranged.index
    assert isinstance(index, OrderedIndex)
    if not arranged.lower:
        return index.group(high, low, order, most, tied=tied, words=words, back=back)
    found = index.group(high, low, order, live=False)
    layers = [_resident(arranged, found)]
    for parts in arranged.lower:
        for part in reversed(parts):  # inputs of a merge are there oldest first
            batch = arranged.slots[part.slot]
            first, last = located(batch, part.begin, high, low, order)
            sizes = last - first
            rows = np.repeat(first - np.cumsum(sizes) + sizes, sizes) + np.arange(int(sizes.sum()))
            layers.append(_stored(batch, rows, part.slot))
    every = Layer(*(np.concatenate(each) for each in zip(*layers, strict=True)))
    by = in_order(every.high, every.low, every.order)
    newest = by.permutation.take(by.starts[:-1])
    newest = newest[every.live.take(newest) != 0]
    return _cut(every, newest, (high, low, order), most, index.words if tied is None else tied, back)


def _resident(arranged: Arrangement, found: RowsByGroup) -> Layer:
    """What the index holds of the groups, deletions too."""
    there = np.flatnonzero((found.references >> SLOT) & SLOTS)
    references, values = found.references[there], found.values[there]
    plain, live = references & ~(OCCUPIED | LIVE), (references & LIVE != 0).astype(np.uint64)
    return Layer(plain, values, live, *identified(arranged, plain))


def identified(arranged: Arrangement, references: Ints) -> tuple[Words, Words, Ints]:
    """The identities of rows: two words, and the others, int64[n, w].  O(n), and a little for each batch."""
    slots, rows = (references >> SLOT) & SLOTS, references & ROWS
    high, low = np.empty(slots.size, np.uint64), np.empty(slots.size, np.uint64)
    order = np.empty((slots.size, arranged.words), np.int64)
    for slot in np.unique(slots).tolist():
        batch, here = arranged.slots[slot], np.flatnonzero(slots == slot)
        high[here], low[here], order[here] = (each[rows[here]] for each in (batch.high, batch.low, batch.order))
    return high, low, order


def _stored(batch: Batch, rows: Ints, slot: int) -> Layer:
    """The last versions among some rows of a batch on disk."""
    columns = batch.high[rows], batch.low[rows], batch.order[rows]
    last = ends(*columns)
    rows = rows[last]
    values = batch.value[rows].view(np.int64)
    live = batch.live[rows].astype(np.uint64)
    high, low, order = columns
    return Layer(rows | slot << SLOT, values, live, high[last], low[last], order[last])


def _cut(
    every: Layer, rows: Ints, prefix: tuple[Words, Words, Ints | None], most: int | Ints, tied: int, back: bool
) -> RowsByGroup:
    """Rows in the order of identities as groups, at most so many of each and those that tie with the last.

    ``back``: each group from its end."""
    high, low, order = prefix
    groups = [high, *([low] if low.size else []), *([] if order is None else order.view(np.uint64).T)]
    theirs = [every.high[rows], every.low[rows], *every.order.view(np.uint64)[rows].T]
    # Both ascend, so a group is as far on as prefixes have begun.
    first = np.flatnonzero(_starts(theirs[: len(groups)]))
    sizes = np.diff(np.append(first, rows.size))
    at = _places(groups, [each[first] for each in theirs[: len(groups)]])
    place = np.arange(rows.size) - np.repeat(first, sizes)
    if back:
        turned = np.repeat(first + sizes - 1, sizes) - place
        rows, theirs = rows[turned], [each[turned] for each in theirs]
    ends = most if isinstance(most, int) else most[at].repeat(sizes)
    of = np.flatnonzero(begun := _starts(theirs[: max(2 + tied, len(groups))]))
    # The place of the first of those that tie.
    keep = place[of[np.cumsum(begun) - 1]] < ends
    begins = np.zeros(high.size + 1, np.int64)
    begins[at + 1] = np.add.reduceat(keep, first, dtype=np.int64) if first.size else 0
    rows = rows[keep]
    return RowsByGroup(every.references[rows], every.values[rows], np.cumsum(begins), every.order[rows])


def _starts(words: list[Words]) -> Any:
    """bool[n]: where other words begin."""
    return starts(words[0], words[1] if len(words) > 1 else NONE, _beyond(words))


def _beyond(words: list[Words]) -> Ints | None:
    """Words beyond two, by row."""
    return np.stack(words[2:], axis=1).view(np.int64) if len(words) > 2 else None


def _places(groups: list[Words], some: list[Words]) -> Ints:
    """Where in ascending groups some of them stand."""
    every = [np.concatenate([one, other]) for one, other in zip(groups, some, strict=True)]
    n = groups[0].size
    low = every[1] if len(every) > 1 else np.zeros(every[0].size, np.uint64)
    beyond = _beyond(every)
    by = in_order(every[0], low, np.empty((every[0].size, 0), np.int64) if beyond is None else beyond)
    number = np.empty(every[0].size, np.int64)
    number[by.permutation] = np.repeat(np.arange(by.starts.size - 1), np.diff(by.starts))
    return number[n:]
