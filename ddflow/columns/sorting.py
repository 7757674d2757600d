"""Sort rows by identity.

Every operation that groups rows by key (resolve, count, consolidate and merge) begins with the sort of this module.

`sort_by_identity` calls the kernels of ``kernels/sort`` over ranges of identities, one per thread.
Guarantees: rows with the same identity are adjacent and keep their order of arrival, so callers need no sort by time.

>>> by = sort_by_identity(np.array([9, 4, 9], np.uint64), np.empty(0, np.uint64))
>>> by.permutation.tolist(), by.starts.tolist()
([1, 0, 2], [0, 1, 3])
"""

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any, NamedTuple, cast

import numpy as np

from ddflow.columns.hashing import Ints, Narrow, Words
from ddflow.columns.layout import Arena
from ddflow.columns.threads import ALONE, Threads
from ddflow.kernels.differences import SummedRows, close_gaps
from ddflow.kernels.sort import sort_range, sort_rows, sort_within_groups

SORTED, RESOLVED, ORDERED = 10, 25, 60
"""The approximate nanoseconds to sort a row, to look up or resolve a key, and to sort the rows of a group."""
Spans = tuple[tuple[int, int], ...]
"""The begin and the end of a range of identities in each of several lists."""


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


def sort_by_words(
    high: Words, low: Words, order: Ints, arena: Arena | None = None, threads: Threads = ALONE
) -> SortedRows:
    """Sort rows by identities of more than two words.

    ``order``: int64[n, w], the further words, unsigned. O(n log n).
    """
    by = sort_by_identity(high, low, arena, threads)
    more, scratch = np.ascontiguousarray(order).view(np.uint64), np.empty(high.size, np.int32)

    def sort_groups(begin: int, end: int) -> Narrow:
        starts = np.empty(int(by.starts[end] - by.starts[begin]) + 1, np.int32)
        found = sort_within_groups(by.permutation, by.starts[begin : end + 1], more, scratch, starts)
        return starts[: found + (end == by.starts.size - 1)]

    found = threads.run_spans(by.starts.size - 1, sort_groups, ORDERED)
    return by._replace(starts=found[0] if len(found) == 1 else np.concatenate(found))


def cut_groups(highs: Sequence[Words], threads: Threads, cost: float) -> list[Spans]:
    """Cut sorted lists of identities into ranges of whole groups, at most one range per thread.

    ``highs``: the first identity word of each row of each list.  ``cost``: nanoseconds per row.  O(lists log n).

    >>> with Threads(2) as threads:
    ...     cut_groups([np.array([2, 5, 5, 9], np.uint64), np.array([5, 7], np.uint64)], threads, cost=1e6)
    [((0, 1), (0, 0)), ((1, 4), (0, 2))]
    """
    sizes = [each.size for each in highs]
    spans = threads.cut_spans(sum(sizes), cost)
    if len(spans) == 1:
        return [tuple([(0, size) for size in sizes])]
    largest = max(highs, key=len)
    bounds = largest.take([largest.size * i // len(spans) for i in range(1, len(spans))])
    cuts = [pairwise([0, *np.searchsorted(each, bounds).tolist(), each.size]) for each in highs]
    return list(zip(*cuts, strict=True))


def sum_groups(
    highs: Sequence[Words], threads: Threads, cost: float, work: Callable[[Spans, SummedRows], int], out: SummedRows
) -> int:
    """Run ``work(spans, part of out)`` for each range of `cut_groups`, and return the total number of written rows.

    ``out``: room for all rows.  ``work`` writes the rows of its range, and returns their number.
    """
    ranges = cut_groups(highs, threads, cost)
    if len(ranges) == 1:
        return work(ranges[0], out)
    begins, columns = [sum(begin for begin, _ in each) for each in ranges], cast("tuple[Any, ...]", out)
    parts = [SummedRows(*(column[begin:] for column in columns)) for begin in begins]
    counts = threads.run_in_parallel(work, list(zip(ranges, parts, strict=True)))
    return close_gaps(np.array(begins), np.array(counts), out)
