"""Find the nearest right row of each left row, and its changes at each time of a step.

The rows of both sides are sorted by group, then by the words of a moment, for example a time. The partner of a left row
is the first right row of its group that is present and whose moment equals or follows the left row's moment. If the
join is strict, the partner's moment must follow. A null moment has words of ones only, and no partner.

A window is a range of the left rows of a group, with the right rows that can be partners of these rows in the step.

>>> import numpy as np
>>> one = lambda *values: np.array(values, np.int64)
>>> moments, ranks = np.array([[3]], np.uint64), np.zeros(1, np.int32)
>>> left = NearRows(one(0, 1), moments, one(2), one(0, 0), one(), ranks[:0], one())
>>> right = NearRows(one(0, 1), moments, one(0), one(0, 1), one(0), ranks, one(1))
>>> out = AsofUpdates(np.empty(2, np.int32), *np.empty((3, 2), np.int64))
>>> compute_asof_updates(left, right, False, False, out), out.right[:1].tolist(), out.diff[:1].tolist()
(1, [0], [2])
"""

from typing import Any, NamedTuple, Self

import numpy as np

from ddflow.kernels.arrays import Flags, Ints, Ints2d, Narrow, Words, Words2d
from ddflow.kernels.compile import kernel
from ddflow.kernels.differences import MORE, _compare_words, _find_row
from ddflow.kernels.top import StepUpdates, StoredGroups, _open_cursors, _take_row

Number = Any
ONES = (1 << 64) - 1
BEGIN, END = 0, 1
"""The two bounds of a window in a part."""


class AsofWindows(NamedTuple):
    """The windows of a step: w windows of n updates, in p parts of the left side and q parts of the right side."""

    left: Ints
    right: Ints
    """int64[w + 1]: where the updates of each window begin, on each side."""
    lefts: Ints2d
    rights: Ints2d
    """int64[w, 2 * p] and int64[w, 2 * q]: the first row and the end of each window in each part."""

    @classmethod
    def allocate(cls, n: int, p: int, q: int) -> Self:
        """Allocate space for the windows of n updates."""
        begins = np.empty((2, n + 1), np.int64)
        return cls(begins[0], begins[1], np.empty((n, 2 * p), np.int64), np.empty((n, 2 * q), np.int64))


class NearRows(NamedTuple):
    """The n rows of one side in w windows, and the c changes of these rows."""

    ends: Ints
    """int64[w + 1]: where the rows of each window begin."""
    moments: Words2d
    """uint64[n, t]: the words of each row's moment."""
    held: Ints
    """int64[n]: the multiplicity of each row before the step, which the kernel updates."""
    begins: Ints
    """int64[w + 1]: where the changes of each window begin, in ascending time."""
    places: Ints
    """int64[c]: the row that each change affects."""
    ranks: Narrow
    """int32[c]: the rank of each change's time."""
    counts: Ints
    """int64[c]: the new multiplicity of each changed row."""


class AsofUpdates(NamedTuple):
    """The updates that `compute_asof_updates` writes."""

    rank: Narrow
    left: Ints
    right: Ints
    """int64[room]: the positions of both rows. The position -1 means that the left row has no partner."""
    diff: Ints


@kernel
def _find_present_row(
    stored: StoredGroups, cursors: Ints2d, words: Words, count: Number, flip: np.uint64, wide: Number
) -> np.uint64:
    """Move the cursors to the next row whose multiplicity is positive. Return the address of its words, or 0."""
    way = 1 if flip == np.uint64(0) else -1
    while count > 0:
        least = _find_next_row(stored, cursors, words, count, wide, way)
        count, total, _, _ = _take_row(stored.batches, cursors, words, count, least, wide, flip)
        if total > 0:
            return least
    return np.uint64(0)


@kernel
def _find_next_row(
    stored: StoredGroups, cursors: Ints2d, words: Words, count: Number, wide: Number, way: Number
) -> np.uint64:
    """Return the address of the words of the first row at the cursors, or of the last row if ``way`` is -1."""
    least, word = np.uint64(0), np.uint64(0)
    for i in range(count):
        other = stored.batches[cursors[i, 0], MORE] + np.uint64((cursors[i, 1] * wide) << 3)
        if least == np.uint64(0) or words[i] < word:
            least, word = other, words[i]
        elif words[i] == word and _compare_words(other, least, 0, wide) * way < 0:
            least = other
    return least


@kernel
def _write_bound(
    stored: StoredGroups,
    g: Number,
    wide: Number,
    place: np.uint64,  # the address of words, or 0 for the begin or the end of the group
    n: Number,
    least: Number,
    out: Ints2d,
    at: Number,
    side: Number,
) -> None:
    """Write one bound of a window: in each part, the first row whose n words compare with at least ``least``."""
    slots, ranges, batches = stored
    for p in range(slots.size):
        row = ranges[g, 2 * p + side]
        if place != np.uint64(0):
            row = _find_row(batches[slots[p], MORE], wide, ranges[g, 2 * p], ranges[g, 2 * p + 1], place, n, least)
        out[at, 2 * p + side] = row


@kernel
def _write_row(stored: StoredGroups, g: Number, wide: Number, place: np.uint64, out: Ints2d, at: Number) -> None:
    """Write the bounds of a window of a single row."""
    for side in (BEGIN, END):
        _write_bound(stored, g, wide, place, wide, side, out, at, side)


@kernel
def _find_words(step: StepUpdates, update: Number) -> np.uint64:
    """Return the address of the words of an update."""
    return np.uint64(step.more.ctypes.data) + np.uint64((update * step.more.shape[1]) << 3)


@kernel
def _skip_updates(
    step: StepUpdates, update: Number, stop: Number, place: np.uint64, n: Number, least: Number
) -> Number:
    """Skip the updates whose n words compare with less than ``least``. Return the first other update, or ``stop``."""
    while update < stop and _compare_words(_find_words(step, update), place, 0, n) < least:
        update += 1
    return update


@kernel
def _find_boundary(
    stored: StoredGroups, g: Number, place: np.uint64, tied: Number, wide: Number, scratch: Any
) -> np.uint64:
    """Find the last present row before the rows that tie with a place. Return the address of its words, or 0."""
    near, cursors, words = scratch
    flip = ~np.uint64(0)
    _write_bound(stored, g, wide, np.uint64(0), 0, 0, near, 0, BEGIN)
    _write_bound(stored, g, wide, place, tied, 0, near, 0, END)
    count = _open_cursors(StoredGroups(stored.slots, near, stored.batches), 0, flip, wide, cursors, words)
    return np.uint64(_find_present_row(stored, cursors, words, count, flip, wide))


@kernel
def _find_window_end(
    stored: StoredGroups,
    g: Number,
    step: StepUpdates,
    update: Number,
    stop: Number,  # the end of the updates that the window can contain
    tied: Number,
    scratch: Any,
    out: Ints2d,
    at: Number,
) -> Number:
    """Write the end of a window of right rows whose begin is known. Return the first update after the window.

    The window ends after the first row that is present and has no update, and after the rows that tie with this row.
    """
    near, cursors, words = scratch
    wide = step.more.shape[1]
    for p in range(stored.slots.size):
        near[0, 2 * p], near[0, 2 * p + 1] = out[at, 2 * p], stored.ranges[g, 2 * p + 1]
    count = _open_cursors(StoredGroups(stored.slots, near, stored.batches), 0, np.uint64(0), wide, cursors, words)
    last = np.uint64(0)
    while count > 0 or update < stop:
        least = _find_next_row(stored, cursors, words, count, wide, 1)
        if update < stop:
            own = _find_words(step, update)
            if least == np.uint64(0) or _compare_words(own, least, 0, wide) < 0:
                least = own
        if last != np.uint64(0) and _compare_words(last, least, 0, tied) != 0:
            break
        count, total, _, _ = _take_row(stored.batches, cursors, words, count, least, wide, np.uint64(0))
        begin, update = update, _skip_updates(step, update, stop, least, wide, 1)
        if total > 0 and update == begin and last == np.uint64(0):
            last = least
    _write_bound(stored, g, wide, last, tied, 1, out, at, END)
    return update


@kernel
def _write_lone_updates(
    stored: StoredGroups, g: Number, right: StepUpdates, v: Number, u: Number, out: AsofWindows, written: Number
) -> Number:
    """Write a window for each right row that cannot be a partner, from update ``v`` on. Return the next window."""
    while v < right.begins[g + 1]:
        row = _find_words(right, v)
        out.left[written], out.right[written] = u, v
        _write_row(stored, g, right.more.shape[1], row, out.rights, written)
        _clear_window(out.lefts, written)
        written += 1
        v = _skip_updates(right, v, right.begins[g + 1], row, right.more.shape[1], 1)
    return written


@kernel
def find_asof_windows(
    left: StepUpdates,
    held: StoredGroups,  # the stored left rows
    right: StepUpdates,
    stored: StoredGroups,  # the stored right rows
    blank: Flags,  # uint8[g]: 1 for each group whose key has a null, so that no row has a partner
    nulls: Words,  # uint64[t]: the words of a null moment
    tied: np.int64,  # the number of words that decide ties of right rows
    strict: bool,
    out: AsofWindows,
) -> int:
    """Find the windows that contain all updates of a step and all rows whose partner can change.

    Return the number of windows. The sides have the same groups in the same order.

    Let a boundary be the last present row before some updated right rows. The partners of the left rows between the
    boundary and the last of these updates can change. They find a partner at the latest at the first present row after
    the updates. A left update elsewhere has a window of its own. O(updates p log rows of a group + rows passed).

    >>> few, one = np.zeros(1, np.int32), lambda *values: np.array(values, np.int64)
    >>> word, none = np.array([[7]], np.uint64), np.empty((0, 1), np.uint64)
    >>> parts = StoredGroups(one(), np.empty((1, 0), np.int64), np.empty((0, 6), np.uint64))
    >>> left = StepUpdates(one(0, 1), word[0], word[0], word, one(0), few, one(1))
    >>> right = StepUpdates(one(0, 0), none[:, 0], none[:, 0], none, one(), few[:0], one())
    >>> out = AsofWindows.allocate(1, 0, 0)
    >>> nulls, blank = np.full(1, ONES, np.uint64), np.zeros(1, np.uint8)
    >>> find_asof_windows(left, parts, right, parts, blank, nulls, 1, False, out), out.left.tolist()
    (1, [0, 1])
    """
    wide, other, q = left.more.shape[1], right.more.shape[1], stored.slots.size
    null, moment, edge, written = np.uint64(nulls.ctypes.data), nulls.size, 0 if strict else 1, 0
    scratch = np.empty((1, 2 * q), np.int64), np.empty((q, 3), np.int64), np.empty(q, np.uint64)
    known = StoredGroups(stored.slots, stored.ranges.copy(), stored.batches)
    for g in range(blank.size):
        _write_bound(stored, g, other, null, moment, 0, known.ranges, g, END)
        u, v, stop = left.begins[g], right.begins[g], right.begins[g + 1]
        while stop > v and _compare_words(_find_words(right, stop - 1), null, 0, moment) == 0:
            stop -= 1
        stop = v if blank[g] != 0 else stop
        while u < left.begins[g + 1] or v < stop:
            boundary = (
                _find_boundary(known, g, _find_words(right, v), tied, other, scratch) if v < stop else np.uint64(0)
            )
            while u < left.begins[g + 1]:
                row = _find_words(left, u)
                if v < stop and (boundary == np.uint64(0) or _compare_words(row, boundary, 0, moment) >= edge):
                    break
                out.left[written], out.right[written] = u, v
                _write_row(held, g, wide, row, out.lefts, written)
                if blank[g] != 0 or _compare_words(row, null, 0, moment) == 0:
                    _clear_window(out.rights, written)
                else:
                    _write_bound(known, g, other, row, moment, 1 - edge, out.rights, written, BEGIN)
                    _find_window_end(known, g, right, v, v, tied, scratch, out.rights, written)
                written += 1
                u = _skip_updates(left, u, left.begins[g + 1], row, wide, 1)
            if v < stop:
                out.left[written], out.right[written] = u, v
                _write_bound(known, g, other, boundary, tied, 1, out.rights, written, BEGIN)
                v = _find_window_end(known, g, right, v, stop, tied, scratch, out.rights, written)
                last = _find_words(right, v - 1)
                _write_bound(held, g, wide, boundary, moment, edge, out.lefts, written, BEGIN)
                _write_bound(held, g, wide, last, moment, edge, out.lefts, written, END)
                written += 1
                u = _skip_updates(left, u, left.begins[g + 1], last, moment, edge)
        written = _write_lone_updates(stored, g, right, v, u, out, written)
    out.left[written], out.right[written] = left.more.shape[0], right.more.shape[0]
    return written


@kernel
def _clear_window(out: Ints2d, at: Number) -> None:
    """Let a window contain no rows."""
    for p in range(out.shape[1]):
        out[at, p] = 0


@kernel
def _find_row_at_or_after(held: Ints, at: Number, last: Number) -> Number:
    """Find the first present row in [at, last]. Return -1 if there is none."""
    while at <= last and held[at] <= 0:
        at += 1
    return at if at <= last else np.int64(-1)


@kernel
def _shrink_bounds(held: Ints, low: Number, high: Number) -> tuple[Number, Number]:
    """Shrink [low, high] to the first and the last present row."""
    while low <= high and held[low] <= 0:
        low += 1
    while low <= high and held[high] <= 0:
        high -= 1
    return low, high


@kernel
def _find_first_partners(
    left: NearRows, right: NearRows, w: Number, strict: bool, starts: Ints, below: Ints, partners: Ints
) -> None:
    """Find the partners of a window before the step.

    - starts: for each left row, the first right row whose moment allows it to be a partner.
    - below: for each right row, the end of the left rows for which its moment allows it to be a partner.
    """
    row, end, words = right.ends[w], right.ends[w + 1], left.moments.shape[1]
    least = 1 if strict else 0
    for i in range(left.ends[w], left.ends[w + 1]):
        while row < end:
            order, t = 0, 0
            while order == 0 and t < words:
                if right.moments[row, t] != left.moments[i, t]:
                    order = 1 if right.moments[row, t] > left.moments[i, t] else -1
                t += 1
            if order >= least:
                break
            row += 1
        starts[i] = row
    at, near = left.ends[w], np.int64(-1)
    for j in range(right.ends[w], end):
        while at < left.ends[w + 1] and starts[at] <= j:
            at += 1
        below[j] = at
    row = end
    for i in range(left.ends[w + 1] - 1, left.ends[w] - 1, -1):
        while row > starts[i]:
            row -= 1
            if right.held[row] > 0:
                near = row
        partners[i] = near


@kernel
def compute_asof_updates(left: NearRows, right: NearRows, strict: bool, outer: bool, out: AsofUpdates) -> int:
    """Compute how the pairs of left rows and their partners change at each time of a step.

    Return the number of updates. Updates that do not fit in ``out`` are counted but not written. Updates are sorted by
    window, then by time. ``outer``: whether to emit left rows without a partner. O(rows + changes + updates), plus the
    number of absent rows between present rows for each change of a right row.

    >>> none, ranks, moments = np.empty(0, np.int64), np.empty(0, np.int32), np.empty((0, 1), np.uint64)
    >>> rows = NearRows(np.zeros(1, np.int64), moments, none, np.zeros(1, np.int64), none, ranks, none)
    >>> compute_asof_updates(rows, rows, True, True, AsofUpdates(ranks, none, none, none))
    0
    """
    n, written = left.held.size, 0
    starts, below, partners = np.empty(n, np.int64), np.empty(right.held.size, np.int64), np.empty(n, np.int64)
    touched, marked, was = np.empty(n, np.int64), np.zeros(n, np.uint8), np.empty((n, 2), np.int64)
    for w in range(left.ends.size - 1):
        _find_first_partners(left, right, w, strict, starts, below, partners)
        first, a, b = right.ends[w], left.begins[w], right.begins[w]
        low, high = _shrink_bounds(right.held, first, right.ends[w + 1] - 1)
        least, most = _shrink_bounds(left.held, left.ends[w], left.ends[w + 1] - 1)
        while a < left.begins[w + 1] or b < right.begins[w + 1]:
            rank, count = np.int32(2147483647), 0
            if a < left.begins[w + 1]:
                rank = left.ranks[a]
            if b < right.begins[w + 1]:
                rank = min(rank, right.ranks[b])
            while b < right.begins[w + 1] and right.ranks[b] == rank:
                j, present = right.places[b], right.held[right.places[b]] > 0
                right.held[j] = right.counts[b]
                b += 1
                if (right.held[j] > 0) == present:
                    continue
                to, before = j, j - 1
                if present:
                    low, high = _shrink_bounds(right.held, low, high)
                    to = _find_row_at_or_after(right.held, j + 1, high)
                else:
                    low, high = min(low, j), max(high, j)
                while before >= low and right.held[before] <= 0:
                    before -= 1
                before = before if before >= low else first - 1
                i = min(below[j] - 1, most)
                while i >= least and starts[i] > before:
                    if left.held[i] > 0:
                        count = _mark_row(touched, marked, was, count, i, partners[i], left.held[i])
                        partners[i] = to
                    i -= 1
            while a < left.begins[w + 1] and left.ranks[a] == rank:
                i = left.places[a]
                if left.held[i] <= 0:
                    partners[i] = _find_row_at_or_after(right.held, max(starts[i], low), high)
                count = _mark_row(touched, marked, was, count, i, partners[i], left.held[i])
                left.held[i] = left.counts[a]
                least, most = min(least, i), max(most, i)
                a += 1
            least, most = _shrink_bounds(left.held, least, most)
            for at in range(count):
                i = touched[at]
                marked[i], more = 0, left.held[i]
                if partners[i] == was[i, 0]:
                    more -= was[i, 1]
                else:
                    written = _add_update(out, written, rank, i, was[i, 0], -was[i, 1], outer)
                written = _add_update(out, written, rank, i, partners[i], more, outer)
    return written


@kernel
def _mark_row(
    touched: Ints, marked: Flags, was: Ints2d, count: Number, row: Number, partner: Number, held: Number
) -> Number:
    """Record the partner and the multiplicity of a left row, unless they are recorded. Return the number of records."""
    if marked[row] != 0:
        return count
    touched[count], marked[row], was[row, 0], was[row, 1] = row, 1, partner, held
    return count + 1


@kernel
def _add_update(
    out: AsofUpdates, at: Number, rank: Number, row: Number, partner: Number, diff: Number, outer: bool
) -> Number:
    """Write an update, unless it is empty. Return the position of the next update."""
    if diff == 0 or (partner < 0 and not outer):
        return at
    if at < out.rank.size:
        out.rank[at], out.left[at], out.right[at], out.diff[at] = rank, row, partner, diff
    return at + 1
