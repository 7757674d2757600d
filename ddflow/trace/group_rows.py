"""Find the rows of groups in an ordered arrangement, in memory and on disk.

The index and each run on disk are layers. Each layer keeps the rows of a group together. If several layers have an
identity, the newest layer has its current version.

Guarantees: the search gives the same rows as a full read, in the order of identities.

>>> import pyarrow as pa
>>> arranged = Arrangement(pa.schema({"k": pa.int64()}), wide=True, words=1, ordered=True)
>>> find_group_rows(arranged, np.array([5], np.uint64)).begins.tolist()
[0, 0]
"""

from typing import NamedTuple

import numpy as np

from ddflow.columns.hashing import NONE, Ints, Words
from ddflow.columns.names import TIMES
from ddflow.columns.rows import gather_arrays
from ddflow.columns.sorting import sort_by_words
from ddflow.kernels.gather import ROWS, SLOT, SLOTS
from ddflow.kernels.resolve import LIVE, OCCUPIED
from ddflow.trace.arrangement import Arrangement
from ddflow.trace.batch import Batch, mark_first_of_keys, mark_last_of_keys
from ddflow.trace.ordered_index import OrderedIndex, RowsByGroup
from ddflow.trace.spill import find_identity_ranges


class VersionLayer(NamedTuple):
    """The last versions of some identities in one layer, group by group."""

    references: Ints
    values: Ints
    live: Words
    high: Words
    low: Words
    order: Ints
    group: Ints
    """int64[n]: the number of the group of each version, ascending."""


def find_group_rows(
    arranged: Arrangement, high: Words, low: Words = NONE, order: Ints | None = None, words: bool = False
) -> RowsByGroup:
    """Find the live rows of groups by ascending prefixes of identities.

    ``low`` of size 0 and ``order`` None make prefixes shorter.  ``words``: as in `OrderedIndex.find_group_rows`.

    In memory, O(groups log entries + rows). On disk, O(log rows + rows read) for each pair of a group and a run. The
    rows that are read include deletions.
    """
    index = arranged.index
    assert isinstance(index, OrderedIndex)
    if not (arranged.unindexed_parts and high.size):
        return index.find_group_rows(high, low, order, words=words)
    layers = [_read_index_layer(arranged, index.find_group_rows(high, low, order, live=False))]
    for parts in arranged.unindexed_parts:
        for part in reversed(parts):  # the parts of a merge are oldest first
            batch = arranged.slots[part.slot]
            ranges = find_identity_ranges(batch, part.begin, high, low, order)
            layers.append(_read_batch_layer(batch, part.slot, *ranges))
    every = VersionLayer(*(np.concatenate(each) for each in zip(*layers, strict=True)))
    by = sort_by_words(every.high, every.low, every.order)
    newest = by.permutation.take(by.starts[:-1])
    rows = newest[every.live.take(newest) != 0]
    begins = np.concatenate([np.zeros(1, np.int64), np.cumsum(np.bincount(every.group[rows], minlength=high.size))])
    return RowsByGroup(every.references[rows], every.values[rows], begins, every.order[rows])


def find_window_rows(arranged: Arrangement, high: Words, low: Words, order: Ints) -> tuple[RowsByGroup, Ints]:
    """Find the rows of the windows around places, and the window of each place, as `OrderedIndex.find_windows` does.

    If the arrangement has rows on disk, each window is a complete group.
    """
    index = arranged.index
    assert isinstance(index, OrderedIndex)
    if not arranged.unindexed_parts:
        return index.find_windows(high, low, order)
    first = mark_first_of_keys(high, low)
    return find_group_rows(arranged, high[first], low[first], words=True), np.cumsum(first) - 1


def _read_index_layer(arranged: Arrangement, found: RowsByGroup) -> VersionLayer:
    """Return the entries of groups in the index as a layer, including deletions. ``found``: the entries."""
    there = np.flatnonzero((found.references >> SLOT) & SLOTS)
    references, values = found.references[there], found.values[there]
    plain, live = references & ~(OCCUPIED | LIVE), (references & LIVE != 0).astype(np.uint64)
    group = np.repeat(np.arange(found.begins.size - 1), np.diff(found.begins))[there]
    return VersionLayer(plain, values, live, *gather_identities(arranged, plain), group)


def gather_group_rows(arranged: Arrangement, references: Ints) -> RowsByGroup:
    """Gather the words and multiplicities of rows in the order of identities.

    The rows of a group must be complete. O(n + batches).
    """
    high, low, order = gather_identities(arranged, references)
    (times,) = gather_arrays(arranged.slots.pool, references, [arranged.schema.field(TIMES)])
    begins = np.append(np.flatnonzero(mark_first_of_keys(high, low)), references.size)
    return RowsByGroup(references, np.asarray(times), begins, order)


def gather_identities(arranged: Arrangement, references: Ints) -> tuple[Words, Words, Ints]:
    """Gather the identities of rows: the first two words, and further words as int64[n, w].  O(n + batches)."""
    slots, rows = (references >> SLOT) & SLOTS, references & ROWS
    high, low = np.empty(slots.size, np.uint64), np.empty(slots.size, np.uint64)
    order = np.empty((slots.size, arranged.words), np.int64)
    for slot in np.unique(slots).tolist():
        batch, here = arranged.slots[slot], np.flatnonzero(slots == slot)
        high[here], low[here], order[here] = (each[rows[here]] for each in (batch.high, batch.low, batch.order))
    return high, low, order


def _read_batch_layer(batch: Batch, slot: int, first: Ints, last: Ints) -> VersionLayer:
    """Read some ranges of a batch on disk, and keep the last version of each identity."""
    sizes = last - first
    rows = np.repeat(first - np.cumsum(sizes) + sizes, sizes) + np.arange(int(sizes.sum()))
    columns = batch.high[rows], batch.low[rows], batch.order[rows]
    ending = mark_last_of_keys(*columns)
    rows, group = rows[ending], np.repeat(np.arange(sizes.size), sizes)[ending]
    values, live = batch.value[rows].view(np.int64), batch.live[rows].astype(np.uint64)
    high, low, order = (each[ending] for each in columns)
    return VersionLayer(rows | slot << SLOT, values, live, high, low, order, group)
