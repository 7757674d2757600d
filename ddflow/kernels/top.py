"""The first rows of groups: how they change, and which rows stand at the head of a group after each time of a step.

The rows of a group stand in order, those that were held beside those of the step. A row of multiplicity m takes m
places. Places count from 0, and are shown from ``offset`` up to, not including, ``limit``.

Guarantees: rows behind the last place shown are read only if a row before them changes.

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
"""Of a row: how many places are before it, and its window."""


@kernel
def _compare_words(one: np.uint64, other: np.uint64, n: np.int64) -> int:
    """-1, 0 or 1: how the n words at one address stand to those at another."""
    for w in range(n):
        mine, its = load_u64(one + np.uint64(w << 3)), load_u64(other + np.uint64(w << 3))
        if mine != its:
            return -1 if mine < its else 1
    return 0


@kernel
def merge_top_rows(
    first: Ints,
    order: np.uint64,
    prior: Ints,
    last: Ints,
    most: Ints,
    begins: Ints,
    words: np.uint64,
    references: Ints,
    values: Ints,
    wide: np.int64,
    tied: np.int64,
    merged: Ints,
    held: Ints,
    ties: Flags,
    place: Ints,
    ends: Ints,
) -> int:
    """Merge the rows of a step into the first ones that groups hold; return how many there are.

    first: int64[g + 1], where the groups of the step's m rows begin.  prior: int64[m], their multiplicities before.
    last: int64[m], references to them, -1 where nothing changed.  most: int64[g], how many rows were asked for.
    begins: int64[g + 1], references, values: int64[r]: what was found.  order, words: the addresses of the words of
    both, ``wide`` a row.  tied: how many of these say whether rows tie.

    Written: merged (references) and held (multiplicities) int64[m + r]; ties: uint8[m + r], 1 where a row ties with the
    one before; place: int64[m], where a row of the step stands, -1 behind all that was asked for; ends: int64[g + 1],
    where groups begin.  O(m + r).

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
    ends: Ints,
    held: Ints,
    begins: Ints,
    places: Ints,
    ranks: Narrow,
    counts: Ints,
    offset: np.int64,
    limit: np.int64,
    ranked: bool,
    windows: Ints2d,
    out_rank: Narrow,
    out_row: Ints,
    out_diff: Ints,
    out_place: Ints,
) -> int:
    """How the windows of rows change at each time of a step.

    ends: int64[g + 1], where the groups of n rows begin.  held: int64[n], multiplicities, changed.  begins: int64[g +
    1], where the c changes of groups begin, each group's ascending in time.  places: int64[c], of the rows that change;
    ranks: int32[c], of times; counts: int64[c], what their multiplicities are from then on.  ranked: whether each place
    is told apart.  windows: int64[n, 3], written: how many places are before a row, and its window, after the step.
    Written: out_*: int[room], a group's ascending in time: the rank, the row, how often it comes or goes, and the place
    where ``ranked``.  Returns how many; beyond the room they are only counted.  O(c + n), and O(limit) a group's time.

    >>> one, none = np.array([0, 0]), np.empty(0, np.int64)
    >>> ranks, windows = np.empty(0, np.int32), np.empty((0, 3), np.int64)
    >>> compute_window_updates(one, none, one, none, ranks, none, 0, 1, False, windows, ranks, none, none, none)
    0
    """
    written = 0
    windows[:] = 0
    for g in range(ends.size - 1):
        # The windows before the step are found at a time that none has: nothing of it comes out.
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
    """Write an update where there is room for it; where the next one goes."""
    if at < ranks.size:
        ranks[at], rows[at], diffs[at], places[at] = rank, row, diff, place
    return at + 1


@kernel
def list_first_rows(
    ends: Ints,
    held: Ints,
    skipped: Flags,
    cells: Ints,
    begins: Ints,
    places: Ints,
    counts: Ints,
    limit: np.int64,
    there: Flags,
    stops: Ints,
    out: Ints,
) -> int:
    """Write the first rows of each state of groups; return how many there are, beyond the room of ``out`` counted only.

    ends: int64[g + 1], where the groups of n rows begin.  held: int64[n], multiplicities before the step, changed.
    skipped: uint8[n].  cells: int64[g + 1], where the c cells of groups begin; begins: int64[c + 1], where the changes
    of each cell begin; places: int64[k], the rows that change, -1 for one that is none of these; counts: int64[k], what
    their multiplicities are from then on.  limit: rows of a state.  Written: there: uint8[g + c], whether a state has
    any row; stops: int64[g + c + 1], where the rows of states begin; out: int64[room], the rows.
    O(n + k + rows written), and for each state the rows at the head of the group that came and went.

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
