"""Merge sorted parts of differences, which adds up equal rows, and collect the rows of groups.

A part is a range of rows of a batch. Rows are sorted by identity, then time. The first two words of an identity are the
group, and further words identify the row within its group. Each row has a diff.

Guarantees: the result is sorted, has an identity at most once at each time, and has no sum of 0.
Limits: sums wrap. The caller checks that no sum overflows int64.

>>> import numpy as np
>>> high, more, diffs = np.array([5, 5], np.uint64), np.array([1, 2], np.uint64), np.array([3, -4])
>>> batch = [each.ctypes.data for each in (high, high, more, diffs)] + [8, diffs.ctypes.data]
>>> out = SummedRows.allocate(2, 1, grouped=True)
>>> collect_group_rows(high[:1], high[:1], np.array([[0, 0, 2]]), np.array([batch], np.uint64), 1, out, np.empty(2,
...     np.int64))
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
def _compare_rows(
    low: np.uint64,
    more: np.uint64,
    row: Number,
    other_low: np.uint64,
    other_more: np.uint64,
    there: Number,
    words: Number,
) -> int:
    """Compare the identities of two rows with the same first word. Return -1, 0 or 1.

    The addresses are those of the second words, and of the words beyond two.
    """
    a, b = _load_word(low, row), _load_word(other_low, there)
    w = 0
    while a == b and w < words:
        a, b = _load_word(more, row * words + w), _load_word(other_more, there * words + w)
        w += 1
    return 0 if a == b else (-1 if a < b else 1)


@kernel
def _load_time(times: np.uint64, stride: np.uint64, row: Number) -> Any:
    """Load the time of a row."""
    return np.int64(load_u64(times + np.uint64(row) * stride))


@kernel
def _find_least_range(ranges: Ints2d, count: Number, heads: Words2d, words: Number) -> Number:
    """Find the range whose next row is the least by identity, then time."""
    best: Any = np.int64(0)
    for i in range(1, count):
        if heads[i, HIGH] != heads[best, HIGH]:
            best = i if heads[i, HIGH] < heads[best, HIGH] else best
            continue
        row, there = ranges[i, 1], ranges[best, 1]
        others = heads[best, LOW], heads[best, MORE]
        order = _compare_rows(heads[i, LOW], heads[i, MORE], row, others[0], others[1], there, words)
        if order == 0:
            mine = _load_time(heads[i, TIME], heads[i, STRIDE], row)
            order = -1 if mine < _load_time(heads[best, TIME], heads[best, STRIDE], there) else 1
        best = i if order < 0 else best
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
    - heads, uint64[count, FIELDS]: scratch memory.
    """
    reference, diffs, more, highs, lows, times = out
    for i in range(count):
        for field in range(FIELDS):
            heads[i, field] = batches[ranges[i, 0], field]
        # The first word of the next row replaces the address of the first words.
        heads[i, HIGH] = _load_word(heads[i, HIGH], ranges[i, 1])
    slot, row, total, time = np.int64(-1), np.int64(0), np.int64(0), np.int64(0)
    high, lows_at, more_at = np.uint64(0), np.uint64(0), np.uint64(0)
    while True:
        best, here, at, when = np.int64(0), np.int64(0), np.int64(0), since
        same: Any = np.int64(1)
        if count > 0:
            best = _find_least_range(ranges, count, heads, words)
            here, at = ranges[best, 0], ranges[best, 1]
            when = max(_load_time(heads[best, TIME], heads[best, STRIDE], at), since)
            if slot >= 0 and when == time and heads[best, HIGH] == high:
                same = _compare_rows(heads[best, LOW], heads[best, MORE], at, lows_at, more_at, row, words)
        if same == 0:
            total += np.int64(_load_word(heads[best, DIFF], at))
        else:
            if total != 0:
                if to < reference.size:
                    reference[to], diffs[to] = (slot << SLOT) | row, total
                    for w in range(words):
                        more[to, w] = _load_word(more_at, row * words + w)
                    if highs.size != 0:
                        highs[to], lows[to], times[to] = high, _load_word(lows_at, row), time
                to += 1
            if count == 0:
                return to
            slot, row, total, time = here, at, np.int64(_load_word(heads[best, DIFF], at)), when
            high, lows_at, more_at = heads[best, HIGH], heads[best, LOW], heads[best, MORE]
        ranges[best, 1] = at + 1
        if at + 1 < ranges[best, 2]:
            heads[best, HIGH] = _load_word(batches[here, HIGH], at + 1)
        else:
            count -= 1
            for i in range(3):
                ranges[best, i] = ranges[count, i]
            for field in range(FIELDS):
                heads[best, field] = heads[count, field]


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
    n, heads = parts.shape[0], np.empty((parts.shape[0], FIELDS), np.uint64)
    return int(_merge_ranges(parts.copy(), n, heads, batches, words, since, np.int64(0), out))


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
def collect_group_rows(
    high: Words, low: Words, parts: Ints2d, batches: Words2d, words: np.int64, out: SummedRows, begins: Ints
) -> int:
    """Collect the rows of groups, at all times together, in the order of identities. Return the number of rows.

    O(g parts + rows of the groups) expected for g groups.

    Input:
    - high, low, uint64[g]: the first two words of each group, ascending.
    - parts, batches, words: as in `merge_differences`.

    Output:
    - out: the rows. If there are more rows than ``out`` has room for, only the first rows are written.
    - begins, int64[g + 1]: where the rows of each group begin.

    >>> none, parts, batches = np.empty(0, np.uint64), np.empty((0, 3), np.int64), np.empty((0, 6), np.uint64)
    >>> collect_group_rows(none, none, parts, batches, 1, SummedRows.allocate(0, 1, True), np.empty(1, np.int64))
    0
    """
    n, to = parts.shape[0], np.int64(0)
    at, ranges, heads = parts[:, 1].copy(), np.empty((n, 3), np.int64), np.empty((n, FIELDS), np.uint64)
    for g in range(high.size):
        begins[g], count = to, 0
        for p in range(n):
            slot, end = parts[p, 0], parts[p, 2]
            if at[p] >= end:
                continue
            base = batches[slot, HIGH]
            row = _find_first_row(base, at[p], end, high[g])
            while row < end and _load_word(base, row) == high[g] and _load_word(batches[slot, LOW], row) < low[g]:
                row += 1
            first = row
            while row < end and _load_word(base, row) == high[g] and _load_word(batches[slot, LOW], row) == low[g]:
                row += 1
            at[p] = row
            if row > first:
                ranges[count, 0], ranges[count, 1], ranges[count, 2] = slot, first, row
                count += 1
        if count > 0:
            to = _merge_ranges(ranges, count, heads, batches, words, ALWAYS, to, out)
    begins[high.size] = to
    return int(to)
