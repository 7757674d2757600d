"""Compute the first rows of ordered groups, and their changes at each time of a step.

The stored rows of a group and its rows of the step are merged in order. A row of multiplicity m takes m places, counted
from 0. The window has the places ``offset`` to ``limit`` - 1. The kernel reads rows after the window only if an earlier
row changes.

>>> import numpy as np
>>> one, few = lambda *values: np.array(values, np.int64), lambda *values: np.array(values, np.int32)
>>> ends, held, windows = one(0, 3), one(1, 1, 1), np.empty((3, 3), np.int64)
>>> out = [np.empty(9, np.int32), *(np.empty(9, np.int64) for _ in range(3))]
>>> compute_window_updates(ends, held, one(0, 1), one(0), few(1), one(0), 0, 2, False, windows, *out)
2
>>> out[1][:2].tolist(), out[2][:2].tolist()  # the first row leaves, the third comes
([0, 2], [-1, 1])
"""

from typing import Any

import numpy as np

from ddflow.kernels.arrays import Flags, Ints, Ints2d, Narrow
from ddflow.kernels.compile import kernel
from ddflow.kernels.pointer import load_u64

Number = Any
BEFORE, BEGIN, END = 0, 1, 2
"""Columns with an entry for each row.

The entry of a row has the number of places before the row, and the begin and the end of its window.
"""


@kernel
def _compare_words(one: np.uint64, other: np.uint64, n: np.int64) -> int:
    """Compare the n words at two addresses; return -1, 0 or 1."""
    for w in range(n):
        mine, its = load_u64(one + np.uint64(w << 3)), load_u64(other + np.uint64(w << 3))
        if mine != its:
            return -1 if mine < its else 1
    return 0


@kernel
def merge_top_rows(
    first: Ints,  # int64[g + 1]: where the step's rows of each group begin
    order: np.uint64,  # the address of the words of the step's rows, ``wide`` words for each row
    prior: Ints,  # int64[m]: the multiplicity that each row of the step had before the step
    last: Ints,  # int64[m]: the reference of each row's last version, -1 for no change
    most: Ints,  # int64[g]: the requested number of rows of each group
    begins: Ints,  # int64[g + 1]: where the stored rows of each group begin
    words: np.uint64,  # the address of the words of the stored rows, ``wide`` words for each row
    references: Ints,  # int64[r]: the reference of each stored row
    values: Ints,  # int64[r]: the multiplicity of each stored row
    wide: np.int64,
    tied: np.int64,  # the number of words that decide ties
    merged: Ints,  # int64[m + r]: the reference of each merged row
    held: Ints,  # int64[m + r]: the multiplicity of each merged row
    ties: Flags,  # uint8[m + r]: 1 for each merged row that ties with the previous row
    place: Ints,  # int64[m]: the position of each row of the step, -1 for a row beyond all requested rows
    ends: Ints,  # int64[g + 1]: where the merged rows of each group begin
) -> int:
    """Merge the rows of a step with the first stored rows of groups. Return the number of merged rows. O(m + r).

    The step has m rows, and the kernel merges them with r stored rows. The signature describes the arguments.

    >>> one, word, none = np.array([0, 1]), np.array([[7]], np.uint64), np.empty(0, np.int64)
    >>> out = [np.empty(1, np.int64), np.empty(1, np.int64), np.empty(1, np.uint8), np.empty(1, np.int64), one.copy()]
    >>> at, n = np.uint64(word.ctypes.data), np.int64(1)
    >>> merge_top_rows(one, at, one[:1], one[:1], one[1:], one * 0, at, none, none, n, n, *out)
    1
    """
    written, stride = 0, np.uint64(wide << 3)
    for g in range(first.size - 1):
        ends[g] = written
        at, found, stop, before = first[g], begins[g], begins[g + 1], np.uint64(0)
        whole = stop - found < most[g]
        while at < first[g + 1] or found < stop:
            mine, its = order + np.uint64(at) * stride, words + np.uint64(found) * stride
            way = -1 if found == stop else 1
            if at < first[g + 1] and found < stop:
                way = _compare_words(mine, its, wide)
            behind = found == stop and not whole and _compare_words(mine, its - stride, tied) != 0
            if way < 0 and (last[at] < 0 or behind):
                place[at] = -1
                at += 1
                continue
            here = mine if way <= 0 else its
            ties[written] = np.uint8(before != np.uint64(0) and _compare_words(before, here, tied) == 0)
            before = here
            if way <= 0:
                place[at], merged[written], held[written] = written, last[at], prior[at]
                at += 1
            if way >= 0:
                merged[written], held[written] = references[found], values[found]
                found += 1
            written += 1
    ends[ends.size - 1] = written
    return written


@kernel
def compute_window_updates(
    ends: Ints,  # int64[g + 1]: where the rows of each group begin
    held: Ints,  # int64[n]: the multiplicity of each row before the step, which the kernel updates
    begins: Ints,  # int64[g + 1]: where the changes of each group begin, in ascending time
    places: Ints,  # int64[c]: the row that each change affects
    ranks: Narrow,  # int32[c]: the rank of each change's time
    counts: Ints,  # int64[c]: the new multiplicity of each changed row
    offset: np.int64,
    limit: np.int64,
    ranked: bool,  # whether each place is a separate row
    windows: Ints2d,  # int64[n, 3]: the number of places before each row, and the row's window after the step
    out_rank: Narrow,  # int32[room]: the rank of each update's time
    out_row: Ints,  # int64[room]: the row of each update
    out_diff: Ints,  # int64[room]: the diff of each update
    out_place: Ints,  # int64[room]: the place of each update, if ``ranked`` is set
) -> int:
    """Compute how each row's window changes at each time of a step. O(c + n), and O(limit) per group and time.

    The signature describes the arguments: there are n rows and c changes of rows. Updates are sorted by group, then by
    time. Returns the number of updates. Updates that do not fit in the arrays are counted but not written.

    >>> one, none = np.array([0, 0]), np.empty(0, np.int64)
    >>> ranks, windows = np.empty(0, np.int32), np.empty((0, 3), np.int64)
    >>> compute_window_updates(one, none, one, none, ranks, none, 0, 1, False, windows, ranks, none, none, none)
    0
    """
    written = 0
    windows[:] = 0
    for g in range(ends.size - 1):
        # For rank -1, the kernel computes the windows before the step and emits no updates.
        first, stop, at, rank = ends[g], ends[g + 1], begins[g], np.int32(-1)
        edge = least = first
        while True:
            before, row, reach = windows[least, BEFORE] if first < least < stop else np.int64(0), least, np.int64(-1)
            while row < stop and (before < limit or row < edge):
                begin, end, after = np.int64(0), np.int64(0), before + min(held[row], limit - before)
                if after > max(before, offset):
                    begin, end = max(before, offset), after
                was, ended = windows[row, BEGIN], windows[row, END]
                windows[row, BEFORE], windows[row, BEGIN], windows[row, END] = before, begin, end
                before = after
                if rank >= 0 and not ranked and ended - was != end - begin:
                    diff = (end - begin) - (ended - was)
                    written = _add_update(out_rank, out_row, out_diff, out_place, written, rank, row, diff, begin)
                elif rank >= 0 and ranked:
                    for place in range(was, ended):
                        if not begin <= place < end:
                            written = _add_update(out_rank, out_row, out_diff, out_place, written, rank, row, -1, place)
                    for place in range(begin, end):
                        if not was <= place < ended:
                            written = _add_update(out_rank, out_row, out_diff, out_place, written, rank, row, 1, place)
                row += 1
                if reach < 0 and before >= limit:
                    reach = row
            full, edge, least = reach >= 0, reach if reach >= 0 else row, stop
            while at < begins[g + 1] and least == stop:
                rank = ranks[at]
                while at < begins[g + 1] and ranks[at] == rank:
                    held[places[at]] = counts[at]
                    least = min(least, places[at])
                    at += 1
                if full and least >= edge:
                    least = stop
            if least == stop:
                break
    return written


@kernel
def _add_update(
    ranks: Narrow,
    rows: Ints,
    diffs: Ints,
    places: Ints,
    at: Number,
    rank: Number,
    row: Number,
    diff: Number,
    place: Number,
) -> Number:
    """Write an update if there is space for it. Return the position of the next update."""
    if at < ranks.size:
        ranks[at], rows[at], diffs[at], places[at] = rank, row, diff, place
    return at + 1


@kernel
def list_first_rows(
    ends: Ints,  # int64[g + 1]: where the rows of each group begin
    held: Ints,  # int64[n]: the multiplicity of each row before the step, which the kernel updates
    skipped: Flags,  # uint8[n]: 1 for each row to leave out
    cells: Ints,  # int64[g + 1]: where the cells of each group begin
    begins: Ints,  # int64[c + 1]: where the changes of each cell begin
    places: Ints,  # int64[k]: the row that each change affects, -1 for a row that is not among the n rows
    counts: Ints,  # int64[k]: the new multiplicity of each changed row
    limit: np.int64,  # the maximum number of listed rows of a state
    there: Flags,  # uint8[g + c]: 1 for each state that has any row
    stops: Ints,  # int64[g + c + 1]: where the listed rows of each state begin
    out: Ints,  # int64[room]: the listed rows
) -> int:
    """List the first rows of each state of each group. Return the number of these rows.

    Rows that do not fit in ``out`` are counted but not written. The signature describes the arguments: there are n
    rows, c cells and k changes. O(n + k + rows written), plus, for each state, the number of added and removed rows
    that precede its listed rows.

    >>> none, no = np.empty(0, np.int64), np.empty(0, np.uint8)
    >>> list_first_rows(np.zeros(1, np.int64), none, no, np.zeros(1, np.int64), np.zeros(1, np.int64), none, none, 1,
    ...     no,
    ...          np.empty(1, np.int64), none)
    0

    >>> one = lambda *values: np.array(values, np.int64)
    >>> there, stops, out = np.empty(2, np.uint8), np.empty(3, np.int64), np.empty(4, np.int64)
    >>> given = one(0, 3), one(1, 2, 1), np.array([1, 0, 0], np.uint8), one(0, 1), one(0, 1), one(1), one(0)
    >>> list_first_rows(*given, 1, there, stops, out), there.tolist(), stops.tolist(), out[:2].tolist()
    (2, [1, 1], [0, 1, 2], [1, 2])
    """
    written, state = 0, 0
    stops[0] = 0
    for g in range(ends.size - 1):
        least, stop, cell = ends[g], ends[g + 1], cells[g]
        while True:
            while least < stop and held[least] <= 0:
                least += 1
            there[state] = np.uint8(least < stop)
            row, some = least, np.int64(0)
            while row < stop and some < limit:
                if held[row] > 0 and skipped[row] == 0:
                    n = min(held[row], limit - some)
                    if n <= out.size - written:
                        for at in range(written, written + n):
                            out[at] = row
                    written += n
                    some += n
                row += 1
            state += 1
            stops[state] = written
            if cell == cells[g + 1]:
                break
            for i in range(begins[cell], begins[cell + 1]):
                at = places[i]
                if at >= 0:
                    held[at] = counts[i]
                    least = min(least, at)
            cell += 1
    return int(written)
