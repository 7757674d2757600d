"""Compute which rows of a key are versions, when each version ends, and which rows and versions a change affects.

The rows of a key are in order. Rows of one event are adjacent, deletes first and the greatest row last. The last
present row of an event represents the event. Neighbouring events with equal content are one version, and the first of
these events represents the version. Content 0 is a delete, which ends the previous version and is not a version itself.
``until`` of a row is -2 if the row is not a version, -1 if the version never ends, and otherwise the first row of the
event that ends the version.

>>> import numpy as np
>>> one = lambda *values: np.array(values, np.int64)
>>> ends, held, event, until = one(0, 4), one(1, 1, 1, 1), one(0, 1, 2, 3), np.empty(4, np.int64)
>>> compute_versions(ends, held, event, np.array([5, 5, 7, 0], np.uint64), until)
>>> until.tolist()
[2, -2, 3, -2]
"""

from typing import Any

import numpy as np

from ddflow.kernels.arrays import Ints, Ints2d, Narrow, Words
from ddflow.kernels.compile import kernel
from ddflow.kernels.differences import MORE, _compare_words, _find_row
from ddflow.kernels.pointer import load_u64
from ddflow.kernels.top import StepUpdates, StoredGroups, _open_cursors, _take_row

Number = Any
BACK, AHEAD = 0, 1
"""The two ways from a place to the ends of its window."""
NONE, OPEN = -2, -1
"""Two values of ``until``: the row is not a version, and the version has no end."""


@kernel
def compute_versions(ends: Ints, held: Ints, event: Ints, content: Words, until: Ints) -> None:
    """Compute the versions of keys. O(n).

    Input:
    - ends, int64[g + 1]: where the rows of each key begin.
    - held, int64[n]: the multiplicity of each row.
    - event, int64[n]: the number of each row's event, ascending.
    - content, uint64[n]: the content of each row.

    Output:
    - until, int64[n]: the end of each row's version, as described in the header of this file.

    >>> one = np.zeros(1, np.int64)
    >>> compute_versions(one, one, one, np.zeros(1, np.uint64), one)
    """
    for g in range(ends.size - 1):
        at, stop, run = ends[g], ends[g + 1], np.int64(-1)
        while at < stop:
            head, shown = at, np.int64(-1)
            while at < stop and event[at] == event[head]:
                until[at] = NONE
                if held[at] > 0:
                    shown = at
                at += 1
            if shown < 0 or (run >= 0 and content[shown] == content[run]):
                continue
            if run >= 0:
                until[run] = head
            run = shown if content[shown] != 0 else np.int64(-1)
        if run >= 0:
            until[run] = OPEN


@kernel
def compute_version_updates(
    ends: Ints,
    held: Ints,  # int64[n]: the multiplicity of each row before the step; the kernel updates this array
    event: Ints,
    content: Words,
    until: Ints,  # int64[n]: the end of each row's version before the step; the kernel updates this array
    begins: Ints,  # int64[g + 1]: where the changes of each key begin, in ascending time
    places: Ints,  # int64[c]: the row that each change affects
    ranks: Narrow,  # int32[c]: the rank of each change's time
    counts: Ints,  # int64[c]: the new multiplicity of each changed row
    fresh: Ints,  # int64[n]: scratch memory
    out_rank: Narrow,  # int32[8 * c]: the rank of each update's time
    out_row: Ints,  # int64[8 * c]: the row of each update
    out_until: Ints,  # int64[8 * c]: the end of the version of each update
    out_diff: Ints,  # int64[8 * c]: the diff of each update
) -> int:
    """Compute the changes of versions at each time of a step.

    The signature describes the arguments that `compute_versions` does not have. There are c changes of rows. Updates
    are sorted by key, then by time. Return the number of updates. For each time, read from the version before the first
    change to the first unchanged version after the last change, but at most to the last row that is ever present.

    >>> one, none, out = np.array([0, 1]), np.full(2, -2), [np.empty(8, np.int32), *np.empty((3, 8), np.int64)]
    >>> content, until, held = np.array([5, 7], np.uint64), np.array([-1, -2]), np.array([1, 0])
    >>> told = until, one, one[1:], np.zeros(1, np.int32), one[1:], none
    >>> compute_version_updates(np.array([0, 2]), held, one, content, *told, *out)
    3
    >>> until.tolist()
    [1, -1]
    """
    written = 0
    for g in range(ends.size - 1):
        first, stop, at = ends[g], ends[g + 1], begins[g]
        reach = stop
        while reach > first and held[reach - 1] <= 0:
            reach -= 1
        while at < begins[g + 1]:
            rank, low, high = ranks[at], stop, first
            while at < begins[g + 1] and ranks[at] == rank:
                held[places[at]] = counts[at]
                low, high = min(low, places[at]), max(high, places[at])
                at += 1
            reach, begin = max(reach, high + 1), _find_version_start(event, until, first, low)
            i, run, changed = begin, np.int64(-1), event[high]
            while i < reach:
                head, shown = i, np.int64(-1)
                while i < reach and event[i] == event[head]:
                    fresh[i] = NONE
                    if held[i] > 0:
                        shown = i
                    i += 1
                if shown < 0 or (run >= 0 and content[shown] == content[run]):
                    continue
                if run >= 0:
                    fresh[run] = head
                run = shown if content[shown] != 0 else np.int64(-1)
                # The start of the first unchanged version is an old boundary, so nothing changes after it.
                if event[head] > changed and (run < 0 or until[run] != NONE):
                    i, run = head, np.int64(-1)
                    break
            if run >= 0:
                fresh[run] = OPEN
            for row in range(begin, i):
                if until[row] != fresh[row]:
                    written = _add_update(out_rank, out_row, out_until, out_diff, written, rank, row, until[row], -1)
                    written = _add_update(out_rank, out_row, out_until, out_diff, written, rank, row, fresh[row], 1)
                    until[row] = fresh[row]
    return written


@kernel
def _find_version_start(event: Ints, until: Ints, first: Number, low: Number) -> Number:
    """Find the last version before the event of a row.

    Return the first row of that version's event, or the first row of the key if there is no such version.
    """
    begin = low
    while begin > first and (event[begin] == event[low] or until[begin] == NONE):
        begin -= 1
    while begin > first and event[begin - 1] == event[begin]:
        begin -= 1
    return begin


@kernel
def _add_update(
    ranks: Narrow,
    rows: Ints,
    untils: Ints,
    diffs: Ints,
    at: Number,
    rank: Number,
    row: Number,
    until: Number,
    diff: int,
) -> Number:
    """Write an update for a version that appears or disappears.

    Return the position of the next update. If ``until`` says that the row is not a version, write nothing.
    """
    if until != NONE:
        ranks[at], rows[at], untils[at], diffs[at] = rank, row, until, diff
        at += 1
    return at


@kernel
def find_windows(
    step: StepUpdates, stored: StoredGroups, tied: np.int64, reach: np.int64, begins: Ints, windows: Ints2d
) -> int:
    """Find the ranges (windows) of stored rows that the updates of a step can affect. Return the number of windows.

    A place is the first ``tied`` words of an update. The word after these words is the content of a row. A class
    consists of all rows of a group that have the same first ``tied`` words. A boundary separates two neighbouring
    classes if each class has a single row and the content words of these two rows differ. The window of a place extends
    from the last boundary before the place to the first boundary after the place, and one class further. If there is no
    boundary with two classes beyond it on one side, the window extends to the end of the group on this side. Places
    without a boundary between them share a window. If ``reach`` is positive, boundaries have no meaning, and a window
    extends to the class of the row ``reach`` rows before and after a place.

    - begins, int64[n + 1]: the first update of each window, and n, which the kernel writes.
    - windows, int64[n, 2 * p]: the first row and the end of each window in each part, which the kernel writes.

    O(places p log rows of a group + p rows of windows).

    >>> words = np.array([[at, 5 if at in (3, 4) else at + 10] for at in range(9)], np.uint64)
    >>> one, place = np.ones(1, np.uint64), words[4:5]
    >>> step = StepUpdates(np.array([0, 1]), one, one, place, np.zeros(1, np.int64), np.zeros(1, np.int32), np.ones(1))
    >>> diffs = np.ones(9, np.int64)
    >>> batch = np.array([[0, 0, words.ctypes.data, 0, 0, diffs.ctypes.data]], np.uint64)
    >>> stored = StoredGroups(np.zeros(1, np.int64), np.array([[0, 9]]), batch)
    >>> begins, windows = np.empty(2, np.int64), np.empty((1, 2), np.int64)
    >>> find_windows(step, stored, 1, 0, begins, windows), begins.tolist(), windows.tolist()
    (1, [0, 1], [[3, 7]])
    """
    starts, more, parts = step.begins, step.more, stored.slots.size
    mine, stride = np.uint64(more.ctypes.data), more.shape[1] << 3
    cursors, words = np.empty((parts, 3), np.int64), np.empty(parts, np.uint64)
    near, written = np.empty((1, 2 * parts), np.int64), 0
    for g in range(starts.size - 1):
        update, follows = starts[g], False
        while update < starts[g + 1]:
            place, begin = mine + np.uint64(update * stride), update
            while update < starts[g + 1] and _compare_words(mine + np.uint64(update * stride), place, 0, tied) == 0:
                update += 1
            following = mine + np.uint64(update * stride) if update < starts[g + 1] else np.uint64(0)
            scratch = near, cursors, words, windows
            if not follows:
                begins[written] = begin
                _find_window_end(stored, g, place, np.uint64(0), tied, reach, more.shape[1], BACK, *scratch, written)
                written += 1
            told = following, tied, reach, more.shape[1]
            follows = _find_window_end(stored, g, place, *told, AHEAD, *scratch, written - 1)
    begins[written] = starts[starts.size - 1]
    return written


@kernel
def _find_window_end(
    stored: StoredGroups,
    g: Number,
    place: np.uint64,  # the address of the words of the place
    following: np.uint64,  # the address of the words of the next place in the group, or 0
    tied: Number,
    reach: np.int64,
    wide: Number,
    side: Number,  # `BACK` or `AHEAD`
    near: Ints2d,  # int64[1, 2 * p]: scratch memory, as ``cursors`` and ``words``
    cursors: Ints2d,
    words: Words,
    windows: Ints2d,
    window: Number,
) -> bool:
    """Write the begin or the end of a window. Return whether the next place comes before a boundary."""
    slots, ranges, batches = stored
    flip, way = ~np.uint64(0) if side == BACK else np.uint64(0), 1 if side == AHEAD else -1
    for p in range(slots.size):
        near[0, 2 * p], near[0, 2 * p + 1] = ranges[g, 2 * p], ranges[g, 2 * p + 1]
        row = _find_row(batches[slots[p], MORE], wide, ranges[g, 2 * p], ranges[g, 2 * p + 1], place, tied, side)
        near[0, 2 * p + 1 - side] = row
        windows[window, 2 * p + side] = ranges[g, 2 * p + side]
    count = _open_cursors(StoredGroups(slots, near, batches), 0, flip, wide, cursors, words)
    single, before, many, passed = np.uint64(0), np.uint64(0), 0, np.int64(0)
    while count > 0:
        least, word = np.uint64(0), np.uint64(0)
        for i in range(count):
            other = batches[cursors[i, 0], MORE] + np.uint64((cursors[i, 1] * wide) << 3)
            if least == np.uint64(0) or words[i] < word:
                least, word = other, words[i]
            elif words[i] == word and _compare_words(other, least, 0, wide) * way < 0:
                least = other
        count, total, _, _ = _take_row(batches, cursors, words, count, least, wide, flip)
        if total == 0:
            continue
        if following != np.uint64(0) and _compare_words(least, following, 0, tied) >= 0:
            return True
        passed += total
        if reach > 0 and passed < reach:
            continue
        if reach > 0:
            _write_window_end(stored, g, least, tied, wide, side, side, windows, window)
            return False
        if before == np.uint64(0) or _compare_words(before, least, 0, tied) != 0:
            content = np.uint64(tied << 3)
            if single != np.uint64(0) and many == 1 and load_u64(single + content) != load_u64(before + content):
                _write_window_end(stored, g, single if side == BACK else least, tied, wide, 0, side, windows, window)
                return False
            single, many = before if many == 1 else np.uint64(0), 0
        before, many = least, many + 1
    return bool(following != np.uint64(0))


@kernel
def _write_window_end(
    stored: StoredGroups,
    g: Number,
    place: np.uint64,
    tied: Number,
    wide: Number,
    least: Number,  # see `_find_row`
    side: Number,
    windows: Ints2d,
    window: Number,
) -> None:
    """Write the begin or the end of a window in each part: the first row from a place on, or after the place."""
    slots, ranges, batches = stored
    for p in range(slots.size):
        first, stop = ranges[g, 2 * p], ranges[g, 2 * p + 1]
        windows[window, 2 * p + side] = _find_row(batches[slots[p], MORE], wide, first, stop, place, tied, least)
