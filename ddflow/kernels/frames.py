"""List the rows of partitions before and after each change, and find extremes and distinct values of frames.

Window functions are computed from *places*: a row of multiplicity m has m places, in the order of its partition. The
places of one partition at one time form a *state*. For each time of a step at which a partition changes, there is a
pair of states: before and after the changes. A frame is a range of places, and the frames of successive places of a
state never move back.

>>> import numpy as np
>>> one, few = lambda *values: np.array(values, np.int64), lambda *values: np.array(values, np.int32)
>>> out = States(one(0, 0, 0), one(0, 0, 0), few(0), one(0))
>>> list_states(one(0, 2), one(1, 0), one(0, 1), RowChanges(one(0, 1), one(1), few(0), one(1)), -1, one(0, 0, 0), out)
1
>>> out.row.tolist(), out.starts.tolist()  # the first state has row 0, the second state has the rows 0 and 1
([0, 0, 1], [0, 1, 3])
"""

from typing import Any, NamedTuple

import numpy as np

from ddflow.kernels.arrays import Ints, Ints2d, Narrow, Words, Words2d
from ddflow.kernels.compile import kernel
from ddflow.kernels.differences import MORE, _compare_words, _find_row, _load_word
from ddflow.kernels.top import StepUpdates, StoredGroups

Number = Any
PRESENT = 1
"""The second order word of a timestamp. That of a null differs."""


class RowChanges(NamedTuple):
    """The c changes of multiplicities of the rows of w windows, sorted by window, then time."""

    begins: Ints
    """int64[w + 1]: where the changes of each window begin."""
    place: Ints
    """int64[c]: the row that changes."""
    rank: Narrow
    """int32[c]: the rank of the time."""
    after: Ints
    """int64[c]: the multiplicity after the change."""


class States(NamedTuple):
    """The states of s / 2 pairs, with e places."""

    row: Ints
    """int64[room]: the row of each place."""
    starts: Ints
    """int64[s + 1]: where each state begins."""
    rank: Narrow
    """int32[s / 2]: the rank of the time of each pair."""
    window: Ints
    """int64[s / 2]: the window of each pair."""


@kernel
def find_bound_ranges(
    step: StepUpdates, stored: StoredGroups, bounds: Words2d, tied: np.int64, begins: Ints, ranges: Ints2d
) -> int:
    """Find the stored rows between two bounds for each update, and combine ranges that meet. Return their number.

    - bounds, uint64[n, 2 * tied]: the first words of the least and of the greatest row for each update. The bounds of
      successive updates of a group ascend.
    - begins, int64[n + 1], and ranges, int64[n, 2 * p]: for each range, its first update, and its rows in each part.

    O(n p log rows of a group).

    >>> words, diffs, one = np.arange(9, dtype=np.uint64), np.ones(9, np.int64), np.zeros(1, np.int64)
    >>> place = np.array([[5]], np.uint64)
    >>> step = StepUpdates(np.array([0, 1]), place[0], place[0], place, one, np.zeros(1, np.int32), one + 1)
    >>> batch = np.array([[0, 0, words.ctypes.data, 0, 0, diffs.ctypes.data]], np.uint64)
    >>> stored, bounds = StoredGroups(one, np.array([[0, 9]]), batch), np.array([[2, 6]], np.uint64)
    >>> begins, ranges = np.empty(2, np.int64), np.empty((1, 2), np.int64)
    >>> find_bound_ranges(step, stored, bounds, 1, begins, ranges), ranges.tolist()
    (1, [[2, 7]])
    """
    starts, wide, written = step.begins, step.more.shape[1], 0
    slots, groups, batches = stored
    mine, stride, side = np.uint64(bounds.ctypes.data), tied << 4, np.uint64(tied << 3)
    for g in range(starts.size - 1):
        update = starts[g]
        while update < starts[g + 1]:
            begins[written] = update
            low = mine + np.uint64(update * stride)
            high = low + side
            update += 1
            while update < starts[g + 1] and _compare_words(mine + np.uint64(update * stride), high, 0, tied) <= 0:
                high = mine + np.uint64(update * stride) + side
                update += 1
            for p in range(slots.size):
                base, first, stop = batches[slots[p], MORE], groups[g, 2 * p], groups[g, 2 * p + 1]
                ranges[written, 2 * p] = _find_row(base, wide, first, stop, low, tied, 0)
                ranges[written, 2 * p + 1] = _find_row(base, wide, first, stop, high, tied, 1)
            written += 1
    begins[written] = starts[starts.size - 1]
    return written


@kernel
def find_session_ranges(step: StepUpdates, stored: StoredGroups, gap: np.uint64, begins: Ints, ranges: Ints2d) -> int:
    """Find the stored rows of the sessions that the updates of a step can change. Return the number of ranges.

    The first two words of a row are those of its timestamp. A session is a chain of rows of a group, stored or of the
    step, whose neighbours are less than a gap apart. All updates of a session share a range. A row without a timestamp
    is in no session; the range of its updates has no other row.

    - begins, int64[n + 1], and ranges, int64[n, 2 * p]: as in `find_bound_ranges`.

    O((n + s) p log rows of a group), if sessions have the length of s gaps in total.

    >>> words, diffs, one = np.ones((9, 2), np.uint64), np.ones(9, np.int64), np.zeros(1, np.int64)
    >>> words[:, 0] = [0, 1, 7, 9, 10, 14, 16, 21, 30]
    >>> place = np.array([[12, 1]], np.uint64)
    >>> step = StepUpdates(np.array([0, 1]), place[0], place[0], place, one, np.zeros(1, np.int32), one + 1)
    >>> batch = np.array([[0, 0, words.ctypes.data, 0, 0, diffs.ctypes.data]], np.uint64)
    >>> stored, begins = StoredGroups(one, np.array([[0, 9]]), batch), np.empty(2, np.int64)
    >>> ranges = np.empty((1, 2), np.int64)
    >>> find_session_ranges(step, stored, 5, begins, ranges), ranges.tolist()
    (1, [[2, 7]])
    """
    starts, more, wide, written = step.begins, step.more, step.more.shape[1], 0
    mine, stride, bound = np.uint64(more.ctypes.data), wide << 3, np.empty(2, np.uint64)
    bound[1] = PRESENT
    for g in range(starts.size - 1):
        update = starts[g]
        while update < starts[g + 1]:
            place, first = mine + np.uint64(update * stride), update
            begins[written] = update
            while update < starts[g + 1] and _compare_words(mine + np.uint64(update * stride), place, 0, wide) == 0:
                update += 1
            if more[first, 1] != PRESENT:
                _search_ranges(stored, g, place, wide, wide, ranges, written)
                written += 1
                continue
            bound[0] = more[first, 0]
            _search_ranges(stored, g, np.uint64(bound.ctypes.data), 2, wide, ranges, written)
            edge = bound[0]
            while True:
                bound[0] = edge - min(edge, gap - np.uint64(1))
                least = min(edge, _extend_ranges(stored, g, bound, wide, 0, ranges, written))
                if least == edge:
                    break
                edge = least
            edge = more[first, 0]
            while True:
                bound[0] = edge + min(~edge, gap - np.uint64(1))
                most = max(edge, _extend_ranges(stored, g, bound, wide, 1, ranges, written))
                while update < starts[g + 1] and more[update, 1] == PRESENT and more[update, 0] <= bound[0]:
                    most = max(most, more[update, 0])
                    update += 1
                if most == edge:
                    break
                edge = most
            written += 1
    begins[written] = starts[starts.size - 1]
    return written


@kernel
def _search_ranges(
    stored: StoredGroups, g: Number, place: np.uint64, n: Number, wide: Number, ranges: Ints2d, written: Number
) -> None:
    """Write the range of the rows whose first n words are at ``place``."""
    slots, groups, batches = stored
    for p in range(slots.size):
        base, first, stop = batches[slots[p], MORE], groups[g, 2 * p], groups[g, 2 * p + 1]
        if first < stop:
            first = _find_row(base, wide, first, stop, place, n, 0)
            stop = _find_row(base, wide, first, stop, place, n, 1)
        ranges[written, 2 * p], ranges[written, 2 * p + 1] = first, stop


@kernel
def _extend_ranges(
    stored: StoredGroups, g: Number, bound: Words, wide: Number, side: Number, ranges: Ints2d, written: Number
) -> np.uint64:
    """Extend the begin (``side`` 0) or the end (1) of a range up to a bound.

    Return the first word of the last row that was added. If no row was added, return the greatest word for the begin,
    and 0 for the end.
    """
    slots, groups, batches = stored
    place, found = np.uint64(bound.ctypes.data), ~np.uint64(0) if side == 0 else np.uint64(0)
    for p in range(slots.size):
        if groups[g, 2 * p] == groups[g, 2 * p + 1]:
            continue
        base, at, step = batches[slots[p], MORE], ranges[written, 2 * p + side], np.int64(1)
        if side == 0:
            first = groups[g, 2 * p]
            while at - step >= first and _compare_words(base + np.uint64(((at - step) * wide) << 3), place, 0, 2) >= 0:
                step <<= 1
            row = _find_row(base, wide, max(at - step + 1, first), at - (step >> 1), place, 2, 0)
            if row < at:
                found = min(found, _load_word(base, row * wide))
        else:
            stop = groups[g, 2 * p + 1]
            while (
                at + step <= stop and _compare_words(base + np.uint64(((at + step - 1) * wide) << 3), place, 0, 2) <= 0
            ):
                step <<= 1
            row = _find_row(base, wide, at + (step >> 1), min(at + step - 1, stop), place, 2, 1)
            if row > at:
                found = max(found, _load_word(base, (row - 1) * wide))
        ranges[written, 2 * p + side] = row
    return found


@kernel
def list_states(
    ends: Ints,  # int64[w + 1]: where the rows of each window begin
    held: Ints,  # int64[n]: the multiplicity of each row, which the kernel updates
    event: Ints,  # int64[n]: the number of each row's event
    changes: RowChanges,
    reach: np.int64,  # the number of places to list beside the events of the changed rows, or -1 for all
    at: Ints,  # int64[3]: the next window and its next change, which the kernel updates; the places of the next pair
    out: States,
) -> int:
    """List the states of as many pairs as fit. Return the number of pairs.

    If the next pair does not fit, ``at[2]`` is its number of places. If there are no more pairs, it is 0. O(c + e).
    """
    begins, places, ranks, counts = changes
    pairs, written = 0, np.int64(0)
    window, change = at[0], at[1]
    at[2] = 0
    while window < ends.size - 1:
        if change >= begins[window + 1]:
            window += 1
            if window < ends.size - 1:
                change = begins[window]
            continue
        last, low, high = change, places[change], places[change] + 1
        grown = np.int64(0)
        while last < begins[window + 1] and ranks[last] == ranks[change]:
            low, high = min(low, places[last]), max(high, places[last] + 1)
            grown += counts[last] - held[places[last]]
            last += 1
        near, first, stop = np.int64(0), ends[window], ends[window + 1]
        begun = event[low]
        while low > first and (reach < 0 or near < reach or event[low - 1] == event[low]):
            low -= 1
            near += held[low] if event[low] != begun else 0
        near, begun = np.int64(0), event[high - 1]
        while high < stop and (reach < 0 or near < reach or event[high - 1] == event[high]):
            near += held[high] if event[high] != begun else 0
            high += 1
        size = np.int64(0)
        for row in range(low, high):
            size += held[row]
        if pairs == out.rank.size or written + 2 * size + grown > out.row.size:
            at[0], at[1], at[2] = window, change, 2 * size + grown + int(2 * size + grown == 0)
            return pairs
        out.rank[pairs], out.window[pairs] = ranks[change], window
        for side in range(2):
            out.starts[2 * pairs + side] = written
            for row in range(low, high):
                for _ in range(held[row]):
                    out.row[written] = row
                    written += 1
            while side == 0 and change < last:
                held[places[change]] = counts[change]
                change += 1
        pairs += 1
        out.starts[2 * pairs] = written
    at[0], at[1] = window, change
    return pairs


@kernel
def match_places(row: Ints, starts: Ints, before: Ints, after: Ints, pair: Narrow) -> int:
    """Match the places of both states of each pair, by row. Return the number of matches.

    - row, starts: the places and states, see `States`.
    - before, after, int64[places]: the places of each match; -1 if the row has no place in one state.
    - pair, int32[places]: the pair of each match.

    >>> places, pair = np.empty((2, 5), np.int64), np.empty(5, np.int32)
    >>> m = match_places(np.array([3, 4, 3, 5, 5]), np.array([0, 2, 5]), *places, pair)
    >>> places[:, :m].tolist()
    [[0, 1, -1, -1], [2, -1, 3, 4]]
    """
    written = 0
    for p in range((starts.size - 1) // 2):
        i, middle, j, end = starts[2 * p], starts[2 * p + 1], starts[2 * p + 1], starts[2 * p + 2]
        while i < middle or j < end:
            left = i < middle and (j >= end or row[i] <= row[j])
            right = j < end and (i >= middle or row[j] <= row[i])
            before[written], after[written] = i if left else -1, j if right else -1
            pair[written] = p
            i, j, written = i + int(left), j + int(right), written + 1
    return written


@kernel
def find_frame_extremes(value: Ints, begin: Ints, end: Ints, out: Ints) -> None:
    """Find the place of the least value in each frame. O(places).

    - value, int64[e]: the value of each place, or a negative number to leave the place out.
    - begin, end, int64[e]: the frame of each place.
    - out, int64[e]: the place with the least value, -1 if there is none.

    >>> out = np.empty(3, np.int64)
    >>> find_frame_extremes(np.array([2, -1, 1]), np.array([0, 0, 1]), np.array([2, 3, 2]), out), out.tolist()
    (None, [0, 2, -1])
    """
    queue = np.empty(value.size, np.int64)  # places whose values ascend, each less than all later values
    head, tail, stop = 0, 0, np.int64(0)
    for i in range(value.size):
        if i == 0 or begin[i] < begin[i - 1] or end[i] < end[i - 1] or begin[i] > stop:
            head, tail, stop = 0, 0, begin[i]
        while stop < end[i]:
            if value[stop] >= 0:
                while tail > head and value[queue[tail - 1]] > value[stop]:
                    tail -= 1
                queue[tail] = stop
                tail += 1
            stop += 1
        while head < tail and queue[head] < begin[i]:
            head += 1
        out[i] = queue[head] if head < tail else -1


@kernel
def count_frame_values(value: Ints, begin: Ints, end: Ints, distinct: np.int64, out: Ints) -> None:
    """Count the distinct values in each frame. O(places + distinct).

    - value, int64[e]: a number below ``distinct`` for each value, or a negative number to leave the place out.
    - begin, end, int64[e]: the frame of each place.
    - out, int64[e]: the number of distinct values.

    >>> out = np.empty(3, np.int64)
    >>> count_frame_values(np.array([1, 0, 1]), np.array([0, 0, 2]), np.array([2, 3, 3]), 2, out), out.tolist()
    (None, [2, 2, 1])
    """
    counts, found = np.zeros(distinct, np.int64), np.int64(0)
    first, stop = np.int64(0), np.int64(0)
    for i in range(value.size):
        # A frame that moves back belongs to another state. The values of the last frame are taken out.
        again = begin[i] < first or end[i] < stop
        to = stop if again else begin[i]
        while first < to and first < stop:
            if value[first] >= 0:
                counts[value[first]] -= 1
                found -= int(counts[value[first]] == 0)
            first += 1
        first = begin[i]
        stop = first if again else max(stop, first)
        while stop < end[i]:
            if value[stop] >= 0:
                found += int(counts[value[stop]] == 0)
                counts[value[stop]] += 1
            stop += 1
        out[i] = found
