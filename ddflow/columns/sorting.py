"""Sort rows by identity.

Every operation that groups rows by key (resolve, count, consolidate and merge) begins with the sort of this module.

`sort_by_identity` calls the kernels of ``kernels/sort`` over ranges of identities, one per thread.
Guarantees: rows with the same identity are adjacent and keep their order of arrival, so callers need no sort by time.

>>> by = sort_by_identity(np.array([9, 4, 9], np.uint64), np.empty(0, np.uint64))
>>> by.permutation.tolist(), by.starts.tolist()
([1, 0, 2], [0, 1, 3])
"""

from itertools import pairwise
from typing import NamedTuple

import numpy as np

from ddflow.columns.hashing import Ints, Narrow, Words
from ddflow.columns.layout import Arena
from ddflow.columns.threads import ALONE, Threads
from ddflow.kernels.sort import sort_range, sort_rows, sort_within_groups

SORTED, RESOLVED = 10, 25
"""The approximate nanoseconds to sort a row, and those to look up or resolve a key."""


class SortedRows(NamedTuple):
    """Rows sorted by identity: the original row numbers, the identities, and the position where each key starts.

    The last start position is n, the number of rows. Row numbers are int32, so one sort takes at most 2**31 rows.
    """

    permutation: Narrow
    high: Words
    low: Words
    starts: Narrow


def cut_shards(by: SortedRows, threads: Threads) -> list[tuple[int, int]]:
    """Cut the keys into equal ranges of identities, one range per thread.

    If there are few keys, they form a single range. O(log n).
    """
    keys = by.starts.size - 1
    if threads.size == 1 or len(threads.cut_spans(keys, RESOLVED)) < threads.size:
        return [(0, keys)]
    bounds = np.array([-(-(i << 64) // threads.size) for i in range(1, threads.size)], np.uint64)
    cuts = np.searchsorted(by.starts, np.searchsorted(by.high, bounds)).tolist()
    return list(pairwise([0, *cuts, keys]))


def sort_by_identity(high: Words, low: Words, arena: Arena | None = None, threads: Threads = ALONE) -> SortedRows:
    """Sort rows by identity with a stable sort, and find the groups of equal keys. O(n).

    ``arena``: the memory for the result.
    """
    n, arena = high.size, arena or Arena()
    bits = min(max((n - 1).bit_length(), 1), 22) if n else 1
    empty = arena.choose_allocator(n)
    permutation, starts = empty(n, np.int32), empty(n + 1, np.int32)
    ids, seconds = empty(n, np.uint64), empty(low.size, np.uint64)
    spans = threads.cut_spans(n, SORTED)
    if len(spans) == 1:
        at = empty(1 << bits, np.int32)
        groups = sort_rows(high, low, bits, at, permutation, ids, seconds, starts)
        return SortedRows(permutation, ids, seconds, starts[: groups + 1])
    # Each thread sorts the rows of a range of identities, so that no two threads write to the same cache lines.
    bounds = [-(-(i << 64) // len(spans)) for i in range(len(spans) + 1)]
    ranges = [(np.uint64(first), np.uint64(end - 1)) for first, end in pairwise(bounds)]
    ends = [0, *(int(np.count_nonzero(high < first)) for first, _ in ranges[1:]), n]
    work, parts = [], []
    for each, (begin, end) in zip(ranges, pairwise(ends), strict=True):
        m = end - begin
        size = min(max((m - 1).bit_length(), 1), 22) if m else 1
        scratch = empty(1 << size, np.int32), empty(m + 1, np.int32), empty(m, np.int32), empty(m + 1, np.uint64)
        parts.append(empty(m + 1, np.int32))
        out = permutation[begin:end], ids[begin:end], seconds[begin:end], parts[-1]
        work.append((high, low, *each, begin, *scratch, *out))
    groups = 0
    for part, found in zip(parts, threads.run_in_parallel(sort_range, work), strict=True):
        starts[groups : groups + found] = part[:found]
        groups += found
    starts[groups] = n
    return SortedRows(permutation, ids, seconds, starts[: groups + 1])


def sort_by_words(high: Words, low: Words, order: Ints, arena: Arena | None = None) -> SortedRows:
    """Sort rows by identities of more than two words.

    ``order``: int64[n, w], the further words, unsigned. O(n log n).
    """
    by = sort_by_identity(high, low, arena)
    more, starts = np.ascontiguousarray(order).view(np.uint64), np.empty(high.size + 1, np.int32)
    n = sort_within_groups(by.permutation, by.starts, more, np.empty(high.size, np.int32), starts)
    return by._replace(starts=starts[: n + 1])
