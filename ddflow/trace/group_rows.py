"""Find the rows of groups in an ordered arrangement, in memory and on disk.

The index and each run on disk are layers. Each layer keeps the rows of a group together. A search reads the first few
rows of each layer. If several layers have an identity, the newest layer has its current version. If a layer was read
only in part, it can have rows that were not read. The search keeps the last identity that it read from each such
layer, and the result ends before the least of these identities. If the result is too short, the search reads more rows.

Guarantees: the search gives the same rows as a full read, in the order of identities.

>>> import pyarrow as pa
>>> arranged = Arrangement(pa.schema({"k": pa.int64()}), wide=True, words=1, ordered=True)
>>> find_group_rows(arranged, np.array([5], np.uint64)).begins.tolist()
[0, 0]
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from ddflow.columns.hashing import NONE, Ints, Words
from ddflow.columns.names import TIMES
from ddflow.columns.rows import gather_arrays
from ddflow.columns.sorting import sort_by_words
from ddflow.kernels.gather import ROWS, SLOT, SLOTS
from ddflow.kernels.resolve import LIVE, OCCUPIED
from ddflow.trace.arrangement import Arrangement
from ddflow.trace.batch import Batch, mark_first_of_keys, mark_last_of_keys
from ddflow.trace.ordered_index import ALL, OrderedIndex, RowsByGroup
from ddflow.trace.spill import find_identity_ranges

AHEAD = 16
"""The number of extra rows that a search reads from each layer, because some rows can be deleted."""
MORE = 4
"""The growth factor of the number of rows that each round of a search reads."""


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
    left: Any
    """bool[g]: whether the layer has unread rows of each group."""


def find_group_rows(
    arranged: Arrangement,
    high: Words,
    low: Words = NONE,
    order: Ints | None = None,
    most: int | Ints = ALL,
    tied: int | None = None,
    words: bool = False,
    back: bool = False,
) -> RowsByGroup:
    """Find the live rows of groups by ascending prefixes of identities, at most ``most`` rows of each group.

    ``low`` of size 0 and ``order`` None make prefixes shorter.  ``most``, ``tied``, ``words``, ``back``: as in
    `OrderedIndex.find_group_rows`.

    In memory, O(groups log entries + rows). On disk, O(log rows + rows read) for each pair of a group and a run. The
    rows that are read include the deletions before the wanted rows.
    """
    index = arranged.index
    assert isinstance(index, OrderedIndex)
    if not (arranged.unindexed_parts and high.size):
        return index.find_group_rows(high, low, order, most, tied=tied, words=words, back=back)
    parts = [
        part for parts in arranged.unindexed_parts for part in reversed(parts)
    ]  # the parts of a merge are oldest first
    ranges = [find_identity_ranges(arranged.slots[part.slot], part.begin, high, low, order) for part in parts]
    limits = np.full(high.size, most) if isinstance(most, int) else most
    room, of, found = np.minimum(limits, ALL // MORE) + AHEAD, np.arange(high.size), list[tuple[Ints, ...]]()
    while of.size:
        prefix = high[of], low[of] if low.size else low, None if order is None else order[of]
        layers = [
            _read_index_layer(arranged, index.find_group_rows(*prefix, room[of], live=False, back=back), room[of])
        ]
        for part, (first, last) in zip(parts, ranges, strict=True):
            layers.append(_read_batch_layer(arranged.slots[part.slot], part.slot, first[of], last[of], room[of], back))
        every = VersionLayer(*(np.concatenate(each) for each in zip(*layers, strict=True)))
        newest = _find_newest_versions(every, layers, back)
        kept = _keep_first_rows(every, newest, limits[of], index.words if tied is None else tied)
        sizes, there = (np.bincount(every.group[rows], minlength=of.size) for rows in (kept, newest))
        done = (sizes < there) | ~np.any([layer.left for layer in layers], axis=0)
        rows = kept[done[every.group[kept]]]
        found.append((of[every.group[rows]], every.references[rows], every.values[rows], every.order[rows]))
        room, of = np.minimum(room, ALL // MORE) * MORE, of[~done]
    group, references, values, beyond = (np.concatenate(each) for each in zip(*found, strict=True))
    begins = np.concatenate([np.zeros(1, np.int64), np.cumsum(np.bincount(group, minlength=high.size))])
    by = np.argsort(group, kind="stable")
    return RowsByGroup(references[by], values[by], begins, beyond[by])


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


def _read_index_layer(arranged: Arrangement, found: RowsByGroup, room: Ints) -> VersionLayer:
    """Return the entries of groups in the index as a layer, including deletions. ``found``: the entries."""
    sizes = np.diff(found.begins)
    there = np.flatnonzero((found.references >> SLOT) & SLOTS)
    references, values = found.references[there], found.values[there]
    plain, live = references & ~(OCCUPIED | LIVE), (references & LIVE != 0).astype(np.uint64)
    group = np.repeat(np.arange(sizes.size), sizes)[there]
    return VersionLayer(plain, values, live, *gather_identities(arranged, plain), group, sizes >= room)


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


def _read_batch_layer(batch: Batch, slot: int, first: Ints, last: Ints, room: Ints, back: bool) -> VersionLayer:
    """Read the first rows of some ranges of a batch on disk, and keep the last version of each identity.

    ``back``: read the last rows of the ranges, backwards.
    """
    sizes = np.minimum(last - first, room)
    begin = last - sizes if back else first
    rows = np.repeat(begin - np.cumsum(sizes) + sizes, sizes) + np.arange(int(sizes.sum()))
    columns = batch.high[rows], batch.low[rows], batch.order[rows]
    ending = mark_last_of_keys(*columns)
    rows, group = rows[ending], np.repeat(np.arange(sizes.size), sizes)[ending]
    if back:
        turned = _reverse_group_rows(group)
        rows, ending = rows[turned], np.flatnonzero(ending)[turned]
    values, live = batch.value[rows].view(np.int64), batch.live[rows].astype(np.uint64)
    high, low, order = (each[ending] for each in columns)
    return VersionLayer(rows | slot << SLOT, values, live, high, low, order, group, last - first > room)


def _find_newest_versions(every: VersionLayer, layers: Sequence[VersionLayer], back: bool) -> Ints:
    """Find the newest version of each identity across layers, in order, without deletions.

    If a layer has unread rows of a group, a newer version can be among these rows. Therefore the result ends before the
    last version that was read from a layer with further rows. ``back``: whether groups are read from their ends.
    """
    by = sort_by_words(every.high, every.low, every.order)
    number, bound, begin = np.empty(every.group.size, np.int64), np.full(layers[0].left.size, every.group.size), 0
    number[by.permutation] = np.repeat(np.arange(by.starts.size - 1), np.diff(by.starts))
    if back:
        number = by.starts.size - 2 - number
    for layer in layers:
        groups = np.flatnonzero(layer.left)
        last = np.searchsorted(layer.group, groups, side="right") - 1
        told = np.append(number[begin : begin + layer.group.size], -1)
        there = np.append(layer.group, -1)[last] == groups
        bound[groups] = np.minimum(bound[groups], np.where(there, told[last], -1))
        begin += layer.group.size
    newest = by.permutation.take(by.starts[:-1])
    keep = (every.live.take(newest) != 0) & (number[newest] < bound[every.group[newest]])
    rows: Ints = newest[keep]
    return rows[_reverse_group_rows(every.group[rows])] if back else rows


def _reverse_group_rows(group: Ints) -> Ints:
    """Return the positions that reverse the rows within each group. ``group`` must ascend."""
    turned: Ints = group.size - 1 - np.argsort(group[::-1], kind="stable")
    return turned


def _keep_first_rows(every: VersionLayer, rows: Ints, most: Ints, tied: int) -> Ints:
    """Keep at most ``most`` rows of each group, and the rows that tie with the last of these rows.

    Rows tie if their first ``tied`` words beyond two are equal.
    """
    group = every.group[rows]
    heads = np.append(True, np.diff(group) != 0)[: rows.size]
    classes = heads | (mark_first_of_keys(every.high[rows], every.low[rows], every.order[rows, :tied]) != 0)
    place = np.arange(rows.size) - np.maximum.accumulate(np.where(heads, np.arange(rows.size), 0))
    # A row stays if the first row of its tie is among the first ``most`` rows of the group.
    first: Ints = rows[place[np.flatnonzero(classes)[np.cumsum(classes) - 1]] < most[group]]
    return first
