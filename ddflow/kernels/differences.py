"""Merge sorted parts of differences, which adds up equal rows, and collect the rows of groups.

A part is a range of rows of a batch. Rows are sorted by identity, then time. The first two words of an identity are the
group, and further words identify the row within its group. Each row has a diff.

Guarantees: the result is sorted, has an identity at most once at each time, and has no sum of 0.
Limits: sums wrap. The caller checks that no sum overflows int64.

>>> import numpy as np
>>> high, more, diffs = np.array([5, 5], np.uint64), np.array([1, 2], np.uint64), np.array([3, -4])
>>> batch = [each.ctypes.data for each in (high, high, more, diffs)] + [8, diffs.ctypes.data]
>>> out = SummedRows.allocate(2, 1, grouped=True)
>>> parts, batches, begins = np.array([[0, 0, 2]]), np.array([batch], np.uint64), np.empty(2, np.int64)
>>> collect_group_rows(high[:1], high[:1], np.empty((1, 0), np.uint64), parts, batches, 1, out, begins)
2
>>> out.reference.tolist(), out.diff.tolist()
([0, 1], [3, -4])
"""

from typing import Any, NamedTuple, Self

import numpy as np

from ddflow.kernels.arrays import Ints, Ints2d, Words, Words2d
from ddflow.kernels.compile import kernel
from ddflow.kernels.gather import SLOT
from ddflow.kernels.pointer import load_u64

HIGH, LOW, MORE, TIME, STRIDE, DIFF = range(6)
"""Columns of a table of batches: addresses of columns, and at `STRIDE` the number of bytes from a time to the next."""
FIELDS = 6
WORD, HEAD = 3, 4
"""Columns of scratch memory with the next row of each range, beside the two words of the group and the address of the
other words: the first of these words. `HEAD` is the number of columns."""
CLOSE = 16
"""The number of rows that a search reads before it estimates where the group is."""
ALWAYS = (1 << 63) - 1
Number = Any


class SummedRows(NamedTuple):
    """The rows of a result.  For rows of groups, ``high``, ``low`` and ``time`` have size 0."""

    reference: Ints
    diff: Ints
    more: Words2d
    high: Words
    low: Words
    time: Ints

    @classmethod
    def allocate(cls, room: int, words: int, grouped: bool) -> Self:
        """Allocate space for ``room`` rows.  ``words``: the number of words beyond two."""
        n, more = 0 if grouped else room, np.empty((room, words), np.uint64)
        beside = np.empty(n, np.uint64), np.empty(n, np.uint64), np.empty(n, np.int64)
        return cls(np.empty(room, np.int64), np.empty(room, np.int64), more, *beside)


@kernel
def _load_word(base: np.uint64, row: Number) -> np.uint64:
    """Load a word of a column."""
    return load_u64(base + np.uint64(row << 3))


@kernel
def _load_time(batches: Words2d, slot: Number, row: Number) -> Any:
    """Load the time of a row."""
    return np.int64(load_u64(batches[slot, TIME] + np.uint64(row) * batches[slot, STRIDE]))


@kernel
def _compare_words(one: np.uint64, other: np.uint64, first: Number, n: Number) -> int:
    """Compare the words from ``first`` to n - 1 at two addresses. Return -1, 0 or 1."""
    for w in range(first, n):
        a, b = load_u64(one + np.uint64(w << 3)), load_u64(other + np.uint64(w << 3))
        if a != b:
            return -1 if a < b else 1
    return 0


@kernel
def _take_least_group(
    ranges: Ints2d, count: Number, heads: Words2d, batches: Words2d, words: Number
) -> tuple[Number, np.uint64, np.uint64]:
    """Move the ranges that begin with the least group to the front.

    Return their number, and the words of the group.
    """
    high, low = heads[0, HIGH], heads[0, LOW]
    for i in range(1, count):
        if heads[i, HIGH] < high or (heads[i, HIGH] == high and heads[i, LOW] < low):
            high, low = heads[i, HIGH], heads[i, LOW]
    size = 0
    for i in range(count):
        if heads[i, HIGH] == high and heads[i, LOW] == low:
            for field in range(3):
                ranges[size, field], ranges[i, field] = ranges[i, field], ranges[size, field]
            for field in range(2):
                heads[size, field], heads[i, field] = heads[i, field], heads[size, field]
            heads[size, MORE] = batches[ranges[size, 0], MORE] + np.uint64((ranges[size, 1] * words) << 3)
            heads[size, WORD] = load_u64(heads[size, MORE]) if words > 0 else np.uint64(0)
            size += 1
    return size, high, low


@kernel
def _find_least_range(ranges: Ints2d, count: Number, heads: Words2d, batches: Words2d, words: Number) -> Number:
    """Find the range of a group whose next row is the least by its other words, then time."""
    best, least = np.int64(0), heads[0, WORD]
    for i in range(1, count):
        if heads[i, WORD] > least:
            continue
        order = -1
        if heads[i, WORD] == least:
            order = _compare_words(heads[i, MORE], heads[best, MORE], 1, words)
            if order == 0:
                mine = _load_time(batches, ranges[i, 0], ranges[i, 1])
                order = -1 if mine < _load_time(batches, ranges[best, 0], ranges[best, 1]) else 1
        if order < 0:
            best, least = np.int64(i), heads[i, WORD]
    return best


@kernel
def _merge_ranges(
    ranges: Ints2d,
    count: Number,
    heads: Words2d,
    batches: Words2d,
    words: Number,
    since: Number,
    to: Number,
    out: SummedRows,
) -> Number:
    """Merge ranges of rows and write the sums from position ``to`` on. Return the next position.

    - ranges, int64[count, 3]: the slot, the first row and the end of each range. The kernel uses this as scratch.
    - heads, uint64[count, HEAD]: scratch memory.
    """
    reference, diffs, more, highs, lows, times = out
    room, whole, stride = reference.size, highs.size != 0, np.uint64(words << 3)
    for i in range(count):
        slot, at = ranges[i, 0], ranges[i, 1]
        heads[i, HIGH], heads[i, LOW] = _load_word(batches[slot, HIGH], at), _load_word(batches[slot, LOW], at)
    while count > 0:
        size, high, low = _take_least_group(ranges, count, heads, batches, words)
        slot, row, total, time = np.int64(-1), np.int64(0), np.int64(0), np.int64(0)
        active, address, word = size, np.uint64(0), np.uint64(0)
        while True:
            best, same = np.int64(0), 1
            here, at, when, diff = np.int64(-1), np.int64(0), np.int64(0), np.int64(0)
            if active > 0:
                best = _find_least_range(ranges, active, heads, batches, words)
                here, at = ranges[best, 0], ranges[best, 1]
                when = max(_load_time(batches, here, at), since)
                diff = np.int64(_load_word(batches[here, DIFF], at))
                if slot >= 0 and heads[best, WORD] == word and when == time:
                    same = _compare_words(heads[best, MORE], address, 1, words)
            if same == 0:
                total += diff
            else:
                if total != 0:
                    if to < room:
                        reference[to], diffs[to] = (slot << SLOT) | row, total
                        for w in range(words):
                            more[to, w] = load_u64(address + np.uint64(w << 3))
                        if whole:
                            highs[to], lows[to], times[to] = high, low, time
                    to += 1
                if active == 0:
                    break
                slot, row, total, time, word, address = here, at, diff, when, heads[best, WORD], heads[best, MORE]
            at += 1
            ranges[best, 1] = at
            if at < ranges[best, 2]:
                heads[best, HIGH] = _load_word(batches[here, HIGH], at)
                heads[best, LOW] = _load_word(batches[here, LOW], at)
                if heads[best, HIGH] == high and heads[best, LOW] == low:
                    heads[best, MORE] += stride
                    heads[best, WORD] = load_u64(heads[best, MORE]) if words > 0 else np.uint64(0)
                    continue
            active -= 1
            for field in range(3):
                ranges[best, field], ranges[active, field] = ranges[active, field], ranges[best, field]
            for field in range(HEAD):
                heads[best, field], heads[active, field] = heads[active, field], heads[best, field]
        for i in range(size - 1, -1, -1):
            if ranges[i, 1] == ranges[i, 2]:
                count -= 1
                for field in range(3):
                    ranges[i, field] = ranges[count, field]
                heads[i, HIGH], heads[i, LOW] = heads[count, HIGH], heads[count, LOW]
    return to


@kernel
def merge_differences(parts: Ints2d, batches: Words2d, words: np.int64, since: np.int64, out: SummedRows) -> int:
    """Merge all rows of some parts. Return the number of written rows. O(n parts).

    Input:
    - parts, int64[p, 3]: the slot, the first row and the end of each part, which is not empty.
    - batches, uint64[slots, FIELDS]: the addresses of the columns of each batch.
    - words: the number of identity words beyond two.
    - since: an earlier time counts as this time.

    Output:
    - out: the rows, with room for all rows of the parts.

    >>> high, more, diffs = np.array([5, 5], np.uint64), np.array([1, 1], np.uint64), np.array([3, 4])
    >>> batch = [each.ctypes.data for each in (high, high, more, diffs)] + [8, diffs.ctypes.data]
    >>> out, every = SummedRows.allocate(2, 1, grouped=False), np.array([[0, 0, 2]])
    >>> merge_differences(every, np.array([batch], np.uint64), 1, 9, out), out.diff[:1].tolist(), out.time[:1].tolist()
    (1, [7], [9])
    """
    n, heads = parts.shape[0], np.empty((parts.shape[0], HEAD), np.uint64)
    return int(_merge_ranges(parts.copy(), n, heads, batches, words, since, np.int64(0), out))


@kernel
def net_differences(
    high: Words, low: Words, more: Words2d, times: Ints, diffs: Ints, places: Ints, out: SummedRows
) -> int:
    """Add up the diffs of equal rows and times, and leave out sums of 0. Return the number of written rows. O(n).

    Input, sorted by identity, then time:
    - high, low, uint64[n], and more, uint64[n, w]: the identity of each row.
    - times, diffs, places, int64[n]: the time, the diff and the reference of each row.

    Output:
    - out: the rows, with room for n rows.

    >>> one, two = np.array([5, 5], np.uint64), np.array([3, 3])
    >>> out = SummedRows.allocate(2, 1, grouped=False)
    >>> net_differences(one, one, one.reshape(2, 1), two, two, two, out), out.diff[:1].tolist()
    (1, [6])
    """
    reference, summed, others, highs, lows, stamps = out
    to, words = -1, more.shape[1]
    for i in range(high.size):
        same = i > 0 and times[i] == times[i - 1] and high[i] == high[i - 1] and low[i] == low[i - 1]
        w = 0
        while same and w < words:
            same = more[i, w] == more[i - 1, w]
            w += 1
        if same:
            summed[to] += diffs[i]
            continue
        if to < 0 or summed[to] != 0:
            to += 1
        highs[to], lows[to], stamps[to], summed[to], reference[to] = high[i], low[i], times[i], diffs[i], places[i]
        for w in range(words):
            others[to, w] = more[i, w]
    return to + 1 if to < 0 or summed[to] != 0 else to


@kernel
def close_gaps(begins: Ints, counts: Ints, out: SummedRows) -> int:
    """Move the rows of several ranges together, and return their number. O(rows).

    - begins, counts, int64[r]: the first row and the number of rows of each range. The first range begins at 0.

    >>> out = SummedRows.allocate(4, 0, grouped=False)
    >>> out.diff[:] = [5, 6, 7, 8]
    >>> close_gaps(np.array([0, 2]), np.array([1, 2]), out), out.diff[:3].tolist()
    (3, [5, 7, 8])
    """
    reference, diffs, more, highs, lows, times = out
    to, words = counts[0], more.shape[1]
    for r in range(1, begins.size):
        for row in range(begins[r], begins[r] + counts[r]):
            reference[to], diffs[to], times[to] = reference[row], diffs[row], times[row]
            highs[to], lows[to] = highs[row], lows[row]
            for w in range(words):
                more[to, w] = more[row, w]
            to += 1
    return int(to)


@kernel
def _find_first_row(base: np.uint64, begin: Number, end: Number, word: np.uint64) -> Number:
    """Find the first row in [begin, end) whose word is at least ``word``. Return ``end`` if there is none.

    The rows are close to ``begin`` or the words are spread evenly, for a search in O(1) expected.
    """
    step = np.int64(1)
    while step <= CLOSE:
        if begin + step > end or _load_word(base, begin + step - 1) >= word:
            end = min(end, begin + step - 1)
            break
        begin += step
        step += step
    while end - begin > CLOSE:
        least, most = _load_word(base, begin), _load_word(base, end - 1)
        if word <= least:
            return begin
        if word > most:
            return end
        guess = begin + np.int64(np.float64(word - least) / np.float64(most - least) * np.float64(end - 1 - begin))
        margin = np.int64(np.sqrt(np.float64(end - begin))) + 1
        before, after, size = max(guess - margin, begin), min(guess + margin, end - 1), end - begin
        if _load_word(base, before) >= word:
            end = before
        elif _load_word(base, after) < word:
            begin = after + 1
        else:
            begin, end = before + 1, after + 1 if after + 1 < end else end
        if end - begin > size >> 1:
            middle = (begin + end) >> 1
            if _load_word(base, middle) < word:
                begin = middle + 1
            else:
                end = middle
    while begin < end:
        middle = (begin + end) >> 1
        if _load_word(base, middle) < word:
            begin = middle + 1
        else:
            end = middle
    return begin


@kernel
def _find_group(
    highs: np.uint64, lows: np.uint64, begin: Number, end: Number, high: np.uint64, low: np.uint64
) -> tuple[Number, Number]:
    """Find the rows of a group in the rows [begin, end) of a batch. Return the first row and the end."""
    first = _find_first_row(highs, begin, end, high)
    while first < end and _load_word(highs, first) == high and _load_word(lows, first) < low:
        first += 1
    step, stop = np.int64(1), first
    while (
        stop + step <= end and _load_word(highs, stop + step - 1) == high and _load_word(lows, stop + step - 1) == low
    ):
        stop += step
        step += step
    end = min(end, stop + step - 1)
    while stop < end:
        middle = (stop + end) >> 1
        if _load_word(highs, middle) == high and _load_word(lows, middle) == low:
            stop = middle + 1
        else:
            end = middle
    return first, stop


@kernel
def _find_row(
    mores: np.uint64, wide: Number, begin: Number, end: Number, words: np.uint64, n: Number, least: Number
) -> Number:
    """Find the first row in [begin, end) of a group whose first n words compare to ``words`` with at least ``least``.

    ``least``: 0 to find rows that are equal or greater, 1 to find rows that are greater.  O(log rows).
    """
    while begin < end:
        middle = (begin + end) >> 1
        if _compare_words(mores + np.uint64((middle * wide) << 3), words, 0, n) < least:
            begin = middle + 1
        else:
            end = middle
    return begin


@kernel
def collect_group_rows(
    high: Words,
    low: Words,
    more: Words2d,
    parts: Ints2d,
    batches: Words2d,
    words: np.int64,
    out: SummedRows,
    begins: Ints,
) -> int:
    """Collect the rows of groups, at all times together, in the order of identities. Return the number of rows.

    O(g parts + rows) expected for g groups, or O(g parts log rows of a group) if further words are given.

    Input:
    - high, low, uint64[g], and more, uint64[g, w]: the first words of the wanted rows, ascending. w can be 0.
    - parts, batches, words: as in `merge_differences`.

    Output:
    - out: the rows. If there are more rows than ``out`` has room for, only the first rows are written.
    - begins, int64[g + 1]: where the rows of each group begin.

    >>> none, parts, batches = np.empty(0, np.uint64), np.empty((0, 3), np.int64), np.empty((0, 6), np.uint64)
    >>> out, begins = SummedRows.allocate(0, 1, True), np.empty(1, np.int64)
    >>> collect_group_rows(none, none, none.reshape(0, 0), parts, batches, 1, out, begins)
    0
    """
    n, to, prefix, address = parts.shape[0], np.int64(0), more.shape[1], np.uint64(more.ctypes.data)
    at, ranges, heads = parts[:, 1].copy(), np.empty((n, 3), np.int64), np.empty((n, HEAD), np.uint64)
    for g in range(high.size):
        begins[g], count = to, 0
        for p in range(n):
            slot, end = parts[p, 0], parts[p, 2]
            if at[p] >= end:
                continue
            first, row = _find_group(batches[slot, HIGH], batches[slot, LOW], at[p], end, high[g], low[g])
            if prefix > 0:
                wanted, mores = address + np.uint64((g * prefix) << 3), batches[slot, MORE]
                first = _find_row(mores, words, first, row, wanted, prefix, 0)
                row = _find_row(mores, words, first, row, wanted, prefix, 1)
            at[p] = row
            if row > first:
                ranges[count, 0], ranges[count, 1], ranges[count, 2] = slot, first, row
                count += 1
        if count > 0:
            to = _merge_ranges(ranges, count, heads, batches, words, ALWAYS, to, out)
    begins[high.size] = to
    return int(to)
