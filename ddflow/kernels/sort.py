"""Sort rows by identity.

A counting sort by the leading bits distributes rows over buckets. The rows within each bucket are then sorted.
Identities are uniform, so a bucket has about one row. If a key has many rows, the bucket of the key is large. A large
bucket is sorted by merging its ascending sequences. `sort_within_groups` then sorts by the other words of identities.

Guarantees: the sort is stable, so events of one key keep their order of arrival.
Limits: the kernels read only identities and numbers, never keys, times or other columns.
"""

from typing import Any

import numpy as np

from ddflow.kernels.arrays import Ints, Narrow, Words, Words2d
from ddflow.kernels.compile import kernel
from ddflow.kernels.pointer import load_u64

CROWD = 24
"""A bucket with more rows than this is sorted by merging, and a smaller bucket by insertion."""


DIRECT = 17
"""Up to this number of leading bits, rows are distributed over all buckets at once.

With more buckets, most writes would miss the caches, so rows are distributed twice, by half of the bits each time.
"""


@kernel
def _is_identity_greater(high: Words, low: Words, i: int, j: int) -> bool:
    """Return whether identity i is greater than identity j."""
    if high[i] != high[j]:
        return bool(high[i] > high[j])
    return low.size != 0 and bool(low[i] > low[j])


@kernel
def _merge_runs(high: Words, low: Words, permutation: Narrow, begin: int, end: int) -> None:
    """Sort the bucket [begin, end) by merging its ascending sequences in pairs.

    O(m log sequences) time, O(m) scratch.
    """
    m = end - begin
    bounds = np.empty(m + 1, np.int64)
    runs = 1
    bounds[0] = 0
    for i in range(1, m):
        if _is_identity_greater(high, low, begin + i - 1, begin + i):
            bounds[runs] = i
            runs += 1
    bounds[runs] = m
    has_low = low.size != 0
    h, p = np.empty(m, np.uint64), np.empty(m, np.int32)
    w = np.empty(m if has_low else 0, np.uint64)
    while runs > 1:
        for i in range(m):
            h[i], p[i] = high[begin + i], permutation[begin + i]
            if has_low:
                w[i] = low[begin + i]
        merged = 0
        for r in range(0, runs, 2):
            i, middle = bounds[r], bounds[r + 1]
            j, stop = middle, bounds[min(r + 2, runs)]
            out = begin + i
            while i < middle or j < stop:
                if j >= stop or (i < middle and not _is_identity_greater(h, w, i, j)):
                    take = i
                    i += 1
                else:
                    take = j
                    j += 1
                high[out], permutation[out] = h[take], p[take]
                if has_low:
                    low[out] = w[take]
                out += 1
            merged += 1
            bounds[merged] = stop
        runs = merged


@kernel
def _insertion_sort(high: Words, low: Words, permutation: Narrow, begin: int, end: int) -> None:
    """Sort a small bucket [begin, end) by insertion."""
    for i in range(begin + 1, end):
        if not _is_identity_greater(high, low, i - 1, i):
            continue
        x, row = high[i], permutation[i]
        y = low[i] if low.size != 0 else np.uint64(0)
        j = i
        while j > begin and (high[j - 1] > x or (high[j - 1] == x and low.size != 0 and low[j - 1] > y)):
            high[j], permutation[j] = high[j - 1], permutation[j - 1]
            if low.size != 0:
                low[j] = low[j - 1]
            j -= 1
        high[j], permutation[j] = x, row
        if low.size != 0:
            low[j] = y


@kernel
def _count_buckets(high: Words, bits: np.int64, counts: Narrow) -> None:
    """Count identities by their leading bits. O(n + 2**bits).

    - high, uint64[n]: the first words of the identities.
    - counts, int32[2**bits]: the number of identities in each bucket, which the kernel writes.

    >>> counts = np.empty(2, np.int32)
    >>> _count_buckets(np.array([1, 2**63, 2], np.uint64), np.int64(1), counts)
    >>> counts.tolist()
    [2, 1]

    >>> import numpy as np
    >>> high, none = np.array([3, 1, 3, 2], np.uint64) << np.uint64(62), np.empty(0, np.uint64)
    >>> at, permutation, ids = np.empty(4, np.int32), np.empty(4, np.int32), np.empty(4, np.uint64)
    >>> _count_buckets(high, np.int64(2), at)
    >>> _compute_bucket_starts(at)
    >>> _fill_buckets(high, none, np.int64(2), at, permutation, ids, none)
    >>> _sort_buckets(at, permutation, ids, none)
    >>> permutation.tolist()
    [1, 3, 0, 2]
    """
    shift = np.uint64(64 - bits)
    counts[:] = 0
    for i in range(high.size):
        counts[np.int64(high[i] >> shift)] += 1


@kernel
def _compute_bucket_starts(counts: Narrow) -> None:
    """Convert the number of rows in each bucket to the position where the bucket begins. O(buckets).

    - counts, int32[buckets]: the counts, which the kernel replaces by positions.

    >>> counts = np.array([2, 1, 4], np.int32)
    >>> _compute_bucket_starts(counts)
    >>> counts.tolist()
    [0, 2, 3]
    """
    total = 0
    for bucket in range(counts.size):
        count = counts[bucket]
        counts[bucket] = total
        total += count


@kernel
def _fill_buckets(
    high: Words,
    low: Words,
    bits: np.int64,
    at: Narrow,
    permutation: Narrow,
    sorted_high: Words,
    sorted_low: Words,
) -> None:
    """Distribute rows over the buckets. Rows of one bucket keep their order. O(n).

    Input:
    - high, low, uint64[n]: the identities (low has size 0 for one-word identities).
    - at, int32[2**bits]: where each bucket begins. The kernel replaces this by where it ends.

    Output:
    - permutation, int32: the row at each place.
    - sorted_high, sorted_low, uint64: the identity at each place.

    >>> at, out = np.array([0, 1], np.int32), np.empty(2, np.int32)
    >>> ids, none = np.empty(2, np.uint64), np.empty(0, np.uint64)
    >>> _fill_buckets(np.array([2**63, 7], np.uint64), none, np.int64(1), at, out, ids, none)
    >>> out.tolist(), at.tolist()
    ([1, 0], [1, 2])
    """
    shift = np.uint64(64 - bits)
    for i in range(high.size):
        bucket = np.int64(high[i] >> shift)
        to = np.int64(at[bucket])
        at[bucket] = to + 1
        permutation[to], sorted_high[to] = i, high[i]
        if low.size != 0:
            sorted_low[to] = low[i]


@kernel
def _sort_buckets(ends: Narrow, permutation: Narrow, sorted_high: Words, sorted_low: Words) -> None:
    """Sort the rows of each bucket by identity, stably and in place.

    The run time is O(n) for uniform identities. The worst case is O(n log n), with scratch memory for the largest
    bucket.

    - ends, int32[buckets]: where each bucket ends.
    - permutation, int32[n]: the row at each place, which the kernel updates.
    - sorted_high, sorted_low, uint64[n]: the identity at each place, which the kernel updates.

    >>> out, ids = np.array([0, 1], np.int32), np.array([9, 4], np.uint64)
    >>> _sort_buckets(np.array([2], np.int32), out, ids, np.empty(0, np.uint64))
    >>> out.tolist(), ids.tolist()
    ([1, 0], [4, 9])
    """
    first: Any = np.int64(0)
    crowded = False
    for bucket in range(ends.size):
        crowded |= ends[bucket] - (ends[bucket - 1] if bucket > 0 else 0) > CROWD
    if not crowded:
        # Buckets ascend, so one insertion pass over all buckets sorts the rows of each bucket. The processor
        # mispredicts a branch only where two rows are in the wrong order.
        last: Any = np.int64(ends[ends.size - 1])
        _insertion_sort(sorted_high, sorted_low, permutation, first, last)
        return
    for bucket in range(ends.size):
        end: Any = np.int64(ends[bucket])
        if end - first > CROWD:
            _merge_runs(sorted_high, sorted_low, permutation, first, end)
        elif end - first > 1:
            _insertion_sort(sorted_high, sorted_low, permutation, first, end)
        first = end


@kernel
def _refine_buckets(
    coarse: Narrow, bits: np.int64, ends: Narrow, permutation: Narrow, sorted_high: Words, sorted_low: Words
) -> None:
    """Distribute the rows of each bucket over smaller buckets, stably. O(n + smaller buckets).

    - coarse, int32[buckets]: where each bucket ends.
    - bits: the number of leading bits that are equal in a smaller bucket.
    - ends, int32[2**bits]: where each smaller bucket ends, which the kernel writes.
    """
    most, first, size = np.int64(0), np.int64(0), ends.size // coarse.size
    shift, mask = np.uint64(64 - bits), np.uint64(size - 1)
    for bucket in range(coarse.size):
        most, first = max(most, np.int64(coarse[bucket]) - first), np.int64(coarse[bucket])
    rows, high, low = np.empty(most, np.int32), np.empty(most, np.uint64), np.empty(most, np.uint64)
    first = np.int64(0)
    for bucket in range(coarse.size):
        n, at = np.int64(coarse[bucket]) - first, ends[bucket * size : (bucket + 1) * size]
        at[:] = 0
        for i in range(n):
            word = sorted_high[first + i]
            rows[i], high[i] = permutation[first + i], word
            if sorted_low.size != 0:
                low[i] = sorted_low[first + i]
            at[np.int64((word >> shift) & mask)] += 1
        total = first
        for j in range(size):
            count = at[j]
            at[j] = total
            total += count
        for i in range(n):
            b = np.int64((high[i] >> shift) & mask)
            to = np.int64(at[b])
            at[b] = to + 1
            permutation[to], sorted_high[to] = rows[i], high[i]
            if sorted_low.size != 0:
                sorted_low[to] = low[i]
        first = np.int64(coarse[bucket])


@kernel
def _find_group_starts(sorted_high: Words, sorted_low: Words, starts: Narrow) -> int:
    """Write where each group of equal identities begins, and then ``n``. Return the number of groups. O(n).

    Input:
    - sorted_high, sorted_low, uint64[n]: the sorted identities.

    Output:
    - starts, int32[n + 1]: the place where each group begins, and then ``n``. The kernel leaves later elements
      unchanged.

    >>> starts = np.empty(4, np.int32)
    >>> _find_group_starts(np.array([5, 5, 7], np.uint64), np.empty(0, np.uint64), starts), starts[:3].tolist()
    (2, [0, 2, 3])
    """
    groups = 0
    for i in range(sorted_high.size):
        if (
            i == 0
            or sorted_high[i] != sorted_high[i - 1]
            or (sorted_low.size != 0 and sorted_low[i] != sorted_low[i - 1])
        ):
            starts[groups] = i
            groups += 1
    starts[groups] = sorted_high.size
    return groups


@kernel
def sort_rows(
    high: Words,
    low: Words,
    bits: int,
    at: Narrow,
    permutation: Narrow,
    sorted_high: Words,
    sorted_low: Words,
    starts: Narrow,
) -> int:
    """Sort rows by identity, stably. This kernel does all steps of the sort. Return the number of keys.

    O(n + 2**bits).

    - high, low, uint64[n]: the identities (low has size 0 for one-word identities).
    - at, int32[2**bits]: scratch memory.
    - permutation, int32[n]: the row at each place, which the kernel writes.
    - sorted_high, sorted_low, uint64: the identity at each place, which the kernel writes.
    - starts, int32[n + 1]: the place where each key begins, as in `_find_group_starts`.

    >>> ids, none = np.array([9, 4], np.uint64), np.empty(0, np.uint64)
    >>> at, out, starts = np.empty(2, np.int32), np.empty(2, np.int32), np.empty(3, np.int32)
    >>> sort_rows(ids, none, 1, at, out, np.empty(2, np.uint64), none, starts), out.tolist()
    (2, [1, 0])
    """
    size = np.int64(bits)
    few = size if size <= DIRECT else size // 2
    coarse = at if size <= DIRECT else np.empty(1 << few, np.int32)
    _count_buckets(high, few, coarse)
    _compute_bucket_starts(coarse)
    _fill_buckets(high, low, few, coarse, permutation, sorted_high, sorted_low)
    if few < size:
        _refine_buckets(coarse, size, at, permutation, sorted_high, sorted_low)
    _sort_buckets(at, permutation, sorted_high, sorted_low)
    return _find_group_starts(sorted_high, sorted_low, starts)


@kernel
def sort_range(
    high: Words,
    low: Words,
    first: np.uint64,
    last: np.uint64,
    begin: int,
    at: Narrow,
    rows: Narrow,
    places: Narrow,
    ids: Words,
    permutation: Narrow,
    sorted_high: Words,
    sorted_low: Words,
    starts: Narrow,
) -> int:
    """Sort the rows whose first identity word is in [first, last], stably. Return the number of their keys.

    The kernel reads all rows, but writes only its own memory, so threads sort different ranges at the same time.
    O(n + m + 2**bits), for m rows in the range.

    Input:
    - high, low, uint64[n]: the identities (low has size 0 for one-word identities).
    - begin: the number of rows with a lesser first word.

    Scratch memory:
    - at, int32[2**bits]; rows, int32[m + 1]; places, int32[m]; ids, uint64[m + 1].

    Output:
    - permutation, int32[m]: the row at each place of the range.
    - sorted_high, sorted_low, uint64[m]: the identity at each place of the range.
    - starts, int32[m + 1]: where each key begins, counted from the first place of all rows.

    >>> high, none = np.array([9, 4, 9, 2], np.uint64), np.empty(0, np.uint64)
    >>> scratch = np.empty(2, np.int32), np.empty(4, np.int32), np.empty(3, np.int32), np.empty(4, np.uint64)
    >>> out, ids, starts = np.empty(3, np.int32), np.empty(3, np.uint64), np.empty(4, np.int32)
    >>> sort_range(high, none, np.uint64(3), np.uint64(9), 1, *scratch, out, ids, none, starts), out.tolist()
    (2, [1, 0, 2])
    >>> ids.tolist(), starts[:2].tolist()
    ([4, 9, 9], [1, 2])
    """
    shift, reach = np.uint64(0), last - first
    while reach < np.uint64(1 << 63) and shift < np.uint64(63):
        reach, shift = reach << np.uint64(1), shift + np.uint64(1)
    m = 0
    for i in range(high.size):
        # Without a branch, because the processor would mispredict it for most rows.
        rows[m], ids[m] = i, (high[i] - first) << shift
        m += (high[i] >= first) & (high[i] <= last)
    seconds = np.empty(m if low.size != 0 else 0, np.uint64)
    for i in range(seconds.size):
        seconds[i] = low[rows[i]]
    bits = 0
    while 1 << bits < at.size:
        bits += 1
    groups = sort_rows(ids[:m], seconds, bits, at, places, sorted_high, sorted_low, starts)
    for i in range(m):
        permutation[i] = rows[places[i]]
        sorted_high[i] = (sorted_high[i] >> shift) + first
    for i in range(groups + 1):
        starts[i] += begin
    return groups


@kernel
def find_range_and_order(words: Ints) -> tuple[int, int, bool]:
    """Find the least and the greatest word, and find out whether the words ascend. O(n).

    - words, int64[n]: the words, at least one.

    >>> find_range_and_order(np.array([4, 9, 2]))
    (2, 9, False)
    """
    least: Any = words[0]
    greatest: Any = words[0]
    ascending = True
    for i in range(1, words.size):
        ascending = ascending and words[i] >= words[i - 1]
        least, greatest = min(least, words[i]), max(greatest, words[i])
    return int(least), int(greatest), bool(ascending)


@kernel
def order_by_rank(ranks: Narrow, second: Ints, size: np.int64, out: Ints) -> None:
    """Write the stable order of rows by (rank, second) with a counting sort, for small ranks. O(n + size).

    Input:
    - ranks, int32[n]: the rank of each row, in [0, size).
    - second, int64[n]: 0 or 1 for each row. If ``second`` has size 0, the kernel sorts by rank alone.

    Output:
    - out, int64[n]: the row at each place.

    >>> out = np.empty(3, np.int64)
    >>> order_by_rank(np.array([1, 0, 1], np.int32), np.array([1, 0, 0]), np.int64(2), out)
    >>> out.tolist()
    [1, 2, 0]
    """
    ends = np.zeros(2 * size + 1, np.int64)
    for i in range(ranks.size):
        ends[2 * ranks[i] + (second[i] if second.size != 0 else 0) + 1] += 1
    for b in range(1, ends.size):
        ends[b] += ends[b - 1]
    for i in range(ranks.size):
        b = 2 * ranks[i] + (second[i] if second.size != 0 else 0)
        out[ends[b]] = i
        ends[b] += 1


@kernel
def _compare_rows(more: np.uint64, words: int, one: Any, other: Any) -> int:
    """Compare the words of two rows of a matrix at an address; return -1, 0 or 1."""
    mine, its = more + np.uint64((one * words) << 3), more + np.uint64((other * words) << 3)
    for w in range(words):
        a, b = load_u64(mine + np.uint64(w << 3)), load_u64(its + np.uint64(w << 3))
        if a != b:
            return -1 if a < b else 1
    return 0


@kernel
def _sort_by_merging(permutation: Narrow, begin: Any, end: Any, more: np.uint64, words: int, scratch: Narrow) -> None:
    """Sort the rows at the places [begin, end) by merging.  O(m log m)."""
    wide = 1
    while wide < end - begin:
        for left in range(begin, end - wide, 2 * wide):
            middle: Any = left + wide
            stop: Any = min(left + 2 * wide, end)
            last, next_ = np.int64(permutation[middle - 1]), np.int64(permutation[middle])
            if _compare_rows(more, words, last, next_) <= 0:
                continue
            for i in range(left, middle):
                scratch[i] = permutation[i]
            i, j, to = left, middle, left
            while i < middle:
                row: Any = np.int64(scratch[i])
                if j < stop and _compare_rows(more, words, np.int64(permutation[j]), row) < 0:
                    permutation[to] = permutation[j]
                    j += 1
                else:
                    permutation[to] = row
                    i += 1
                to += 1
        wide *= 2


@kernel
def _sort_large_group(
    permutation: Narrow,
    begin: Any,
    end: Any,
    more: np.uint64,
    words: int,
    scratch: Narrow,
    ends: Narrow,
    keys: Words,
    given: Words,
) -> None:
    """Sort the rows at the places [begin, end) by buckets of the first word that differs, and then within buckets.

    ``ends``, ``keys`` and ``given``: scratch memory for m numbers each. Only the places [begin, end) of ``scratch`` are
    used, because threads that sort other groups share it.
    """
    size, w, least, span = end - begin, 0, np.uint64(0), np.uint64(0)
    while w < words and span == np.uint64(0):
        least = greatest = load_u64(more + np.uint64((np.int64(permutation[begin]) * words + w) << 3))
        for i in range(size):
            word = load_u64(more + np.uint64((np.int64(permutation[begin + i]) * words + w) << 3))
            given[i], least, greatest = word, min(least, word), max(greatest, word)
        span, w = greatest - least, w + 1
    shift = np.uint64(0)
    while span >> shift >= np.uint64(size):
        shift += np.uint64(1)
    buckets = np.int64(span >> shift) + 1
    ends[:buckets] = 0
    for i in range(size):
        ends[np.int64((given[i] - least) >> shift)] += 1
        scratch[begin + i] = permutation[begin + i]
    place: Any = np.int64(0)
    for b in range(buckets):
        count = np.int64(ends[b])
        ends[b] = place
        place += count
    for i in range(size):
        bucket = np.int64((given[i] - least) >> shift)
        place = np.int64(ends[bucket])
        ends[bucket] = place + 1
        permutation[begin + place], keys[place] = scratch[begin + i], given[i]
    first: Any = np.int64(0)
    for b in range(buckets):
        stop: Any = np.int64(ends[b])
        if stop - first > CROWD:
            _sort_by_merging(permutation, begin + first, begin + stop, more, words, scratch)
        for i in range(first + 1, stop if stop - first <= CROWD else first):
            j: Any = i
            row: Any = np.int64(permutation[begin + i])
            key = keys[i]
            while j > first and (
                keys[j - 1] > key
                or (keys[j - 1] == key and _compare_rows(more, words, np.int64(permutation[begin + j - 1]), row) > 0)
            ):
                permutation[begin + j], keys[j] = permutation[begin + j - 1], keys[j - 1]
                j -= 1
            permutation[begin + j], keys[j] = row, key
        first = stop


@kernel
def sort_within_groups(permutation: Narrow, groups: Narrow, more: Words2d, scratch: Narrow, starts: Narrow) -> int:
    """Sort the rows of each group by the other words of their identities. Return the number of identities.

    O(n) if the words of a group are spread evenly, and O(n log n) in the worst case.

    - permutation, int32[n]: the rows sorted by group. The kernel sorts them further.
    - groups, int32[g + 1]: the place where each group begins.
    - more, uint64[n, w]: the other words of each row.
    - scratch, int32[n]: scratch memory. The kernel uses only the places of the groups.
    - starts, int32[n + 1]: the place where each identity begins, and the end. The kernel writes this array.

    >>> permutation, starts = np.array([2, 0, 1], np.int32), np.empty(4, np.int32)
    >>> words = np.array([[7], [5], [7]], np.uint64)
    >>> sort_within_groups(permutation, np.array([0, 3], np.int32), words, permutation.copy(), starts)
    2
    >>> permutation.tolist(), starts[:3].tolist()
    ([1, 2, 0], [0, 1, 3])
    """
    found, words, most = 0, more.shape[1], np.int64(0)
    # numba counts references to an array at each call of a kernel, but not to an address.
    others = np.uint64(more.ctypes.data)
    for g in range(groups.size - 1):
        most = max(most, np.int64(groups[g + 1]) - np.int64(groups[g]))
    ends, keys, given = np.empty(most, np.int32), np.empty(most, np.uint64), np.empty(most, np.uint64)
    for g in range(groups.size - 1):
        begin, end = np.int64(groups[g]), np.int64(groups[g + 1])
        if end - begin > CROWD:
            _sort_large_group(permutation, begin, end, others, words, scratch, ends, keys, given)
        else:
            _sort_by_merging(permutation, begin, end, others, words, scratch)
        for place in range(begin, end):
            if (
                place == begin
                or _compare_rows(others, words, np.int64(permutation[place - 1]), np.int64(permutation[place])) != 0
            ):
                starts[found] = place
                found += 1
    starts[found] = groups[-1]
    return found
