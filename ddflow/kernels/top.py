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

from typing import Any, NamedTuple

import numpy as np

from ddflow.kernels.arrays import Flags, Ints, Ints2d, Narrow, Words, Words2d
from ddflow.kernels.compile import kernel
from ddflow.kernels.differences import DIFF, HIGH, LOW, MORE, _compare_words, _find_group, _load_word
from ddflow.kernels.gather import SLOT
from ddflow.kernels.pointer import load_u64

Number = Any
BEFORE, BEGIN, END = 0, 1, 2
"""Columns with an entry for each row.

The entry of a row has the number of places before the row, and the begin and the end of its window.
"""


class StepUpdates(NamedTuple):
    """The n updates of a step, sorted by group, then row, then time, in g groups."""

    begins: Ints
    """int64[g + 1]: where the updates of each group begin."""
    high: Words
    low: Words
    """uint64[n]: the words of the group."""
    more: Words2d
    """uint64[n, w]: the words of the row."""
    reference: Ints
    rank: Narrow
    diff: Ints


class StoredGroups(NamedTuple):
    """The stored rows of the groups of a step, in p parts."""

    slots: Ints
    """int64[p]: the slot of each part."""
    ranges: Ints2d
    """int64[g, 2 * p]: the first row and the end of each group in each part."""
    batches: Words2d
    """uint64[slots, FIELDS]: the addresses of the columns of each batch."""


class FoundRows(NamedTuple):
    """Rows that `collect_first_rows` writes: r rows in g groups, in order within a group."""

    reference: Ints
    held: Ints
    """int64[room]: the multiplicity of each row before the step."""
    ties: Flags
    """uint8[room]: 1 for each row that ties with the previous row."""
    ends: Ints
    """int64[g + 1]: where the rows of each group begin."""
    place: Ints
    """int64[n]: for the last update of a row at a time, the position of this row; -1 for all other updates, and for
    updates that do not change a row, or whose row is after the rows that were read."""
    now: Ints
    """int64[n]: the multiplicity of the row after the update, if ``place`` is not -1."""
    content: Words
    """uint64[room]: the first word of each row after the words that decide ties, if rows have more words."""
    passed: Ints
    """int64[1]: the number of stored differences that were read in vain, because they cancel each other."""


@kernel
def find_group_ranges(step: StepUpdates, parts: Ints2d, batches: Words2d, out: Ints2d) -> None:
    """Find the rows of the groups of a step in each part.  O(g p log rows of a group) expected.

    - parts, int64[p, 3]: the slot, the first row and the end of each part.
    - batches, uint64[slots, FIELDS]: the addresses of the columns of each batch.
    - out, int64[g, 2 * p]: the first row and the end of the group in each part, which the kernel writes.

    >>> word, one = np.array([7], np.uint64), np.array([0, 1])
    >>> step = StepUpdates(one, word, word, word.reshape(1, 1), one[:1], np.zeros(1, np.int32), one[1:])
    >>> batch, out = np.full((1, 6), word.ctypes.data, np.uint64), np.empty((1, 2), np.int64)
    >>> find_group_ranges(step, np.array([[0, 0, 1]]), batch, out), out.tolist()
    (None, [[0, 1]])
    """
    begins, highs, lows = step.begins, step.high, step.low
    at = parts[:, 1].copy()
    for g in range(begins.size - 1):
        high, low = highs[begins[g]], lows[begins[g]]
        for p in range(parts.shape[0]):
            slot = parts[p, 0]
            first, stop = _find_group(batches[slot, HIGH], batches[slot, LOW], at[p], parts[p, 2], high, low)
            at[p], out[g, 2 * p], out[g, 2 * p + 1] = stop, first, stop


@kernel
def _open_cursors(stored: StoredGroups, g: Number, flip: np.uint64, wide: Number, cursors: Ints2d, words: Words) -> int:
    """Set a cursor to the next row of a group in each part that has rows of the group. Return their number.

    - cursors, int64[p, 3]: the slot, the next row and the number of remaining rows.
    - words, uint64[p]: the first word of the next row, inverted if the group is read from its end.
    """
    slots, ranges, batches = stored
    count = 0
    for p in range(slots.size):
        first, stop = ranges[g, 2 * p], ranges[g, 2 * p + 1]
        if first < stop:
            row = first if flip == np.uint64(0) else stop - 1
            cursors[count, 0], cursors[count, 1], cursors[count, 2] = slots[p], row, stop - first
            words[count] = load_u64(batches[slots[p], MORE] + np.uint64((row * wide) << 3)) ^ flip
            count += 1
    return count


@kernel
def _take_row(
    batches: Words2d, cursors: Ints2d, words: Words, count: int, least: np.uint64, wide: int, flip: np.uint64
) -> tuple[Number, Number, Number, Number]:
    """Move the cursors past a row whose words are at ``least``.

    Return the number of cursors that have more rows, the sum of the row's diffs, its reference, or -1 if no cursor is
    at the row, and the number of differences.
    """
    total, reference, passed, i = np.int64(0), np.int64(-1), np.int64(0), 0
    way, word = np.int64(1) if flip == np.uint64(0) else np.int64(-1), load_u64(least) ^ flip
    while i < count:
        slot, row = cursors[i, 0], cursors[i, 1]
        at = batches[slot, MORE] + np.uint64((row * wide) << 3)
        if words[i] != word or _compare_words(at, least, 0, wide) != 0:
            i += 1
            continue
        total, reference, passed = (
            total + np.int64(_load_word(batches[slot, DIFF], row)),
            (slot << SLOT) | row,
            passed + 1,
        )
        cursors[i, 1], cursors[i, 2] = row + way, cursors[i, 2] - 1
        if cursors[i, 2] > 0:
            words[i] = load_u64(batches[slot, MORE] + np.uint64(((row + way) * wide) << 3)) ^ flip
        else:
            count -= 1
            words[i] = words[count]
            for field in range(3):
                cursors[i, field] = cursors[count, field]
    return count, total, reference, passed


@kernel
def collect_first_rows(
    step: StepUpdates,
    stored: StoredGroups,
    most: np.int64,  # the requested number of places or rows of each group
    places: bool,  # whether ``most`` counts places, so that a row of multiplicity m counts m times
    tied: np.int64,  # the number of words that decide ties
    back: bool,  # whether to read each group from its end
    out: FoundRows,
) -> int:
    """Collect the first rows of the groups of a step. Return the number of rows.

    The kernel merges the stored rows and the updates of a group, until the group has enough rows before the step and at
    each of its times. Rows that tie with the last of these rows are also collected. Rows that do not fit in ``out`` are
    counted but not written. O(n + (g + rows read) p).

    >>> few, word, one = np.zeros(1, np.int32), np.array([[7]], np.uint64), lambda *values: np.array(values)
    >>> none = StoredGroups(np.empty(0, np.int64), np.empty((1, 0), np.int64), np.empty((0, 6), np.uint64))
    >>> step = StepUpdates(one(0, 1), word[0], word[0], word, one(4), few, one(2))
    >>> out = FoundRows(one(0), one(0), np.empty(1, np.uint8), one(0, 0), one(0), one(0), word[0], one(0))
    >>> collect_first_rows(step, none, 1, True, 1, False, out), out.reference.tolist(), out.now.tolist()
    (1, [4], [2])
    """
    begins, _, _, more, references, ranks, diffs = step
    batches, wide, written, skipped = stored.batches, more.shape[1], np.int64(0), np.int64(0)
    mine, flip, way = np.uint64(more.ctypes.data), np.uint64(0), np.int64(1)
    if back:
        flip, way = ~flip, -way
    cursors, words = np.empty((stored.slots.size, 3), np.int64), np.empty(stored.slots.size, np.uint64)
    out.place[:] = -1
    for g in range(begins.size - 1):
        out.ends[g] = written
        update, some = begins[g + 1] - 1 if back else begins[g], begins[g + 1] - begins[g]
        count = _open_cursors(stored, g, flip, wide, cursors, words)
        filled, before = np.int64(0), np.uint64(0)
        while count > 0 or some > 0:
            least = mine + np.uint64((update * wide) << 3) if some > 0 else np.uint64(0)
            word = load_u64(least) ^ flip if some > 0 else np.uint64(0)
            for i in range(count):
                if least == np.uint64(0) or words[i] <= word:
                    other = batches[cursors[i, 0], MORE] + np.uint64((cursors[i, 1] * wide) << 3)
                    if least == np.uint64(0) or words[i] < word or _compare_words(other, least, 0, wide) * way < 0:
                        word, least = words[i], other
            tie = before != np.uint64(0) and _compare_words(before, least, 0, tied) == 0
            if filled >= most and not tie:
                break
            count, total, reference, passed = _take_row(batches, cursors, words, count, least, wide, flip)
            first, now, fewest, changed = update, total, total, False
            while some > 0 and _compare_words(mine + np.uint64((update * wide) << 3), least, 0, wide) == 0:
                update, some = update + way, some - 1
            low, stop = (update + 1, first + 1) if back else (first, update)
            j = low
            while j < stop:
                diff, rank = np.int64(0), ranks[j]
                while j < stop and ranks[j] == rank:
                    diff, j = diff + diffs[j], j + 1
                if diff != 0:
                    now, changed = now + diff, True
                    out.place[j - 1], out.now[j - 1], fewest = written, now, min(fewest, now)
            if total == 0 and not changed:
                skipped += passed
                continue
            if written < out.reference.size:
                out.reference[written] = reference if reference >= 0 else references[low]
                out.held[written], out.ties[written] = total, np.uint8(tie)
                if tied < wide:
                    out.content[written] = load_u64(least + np.uint64(tied << 3))
            written, before = written + 1, least
            filled += min(max(fewest, np.int64(0)), most if places else np.int64(1))
    out.ends[begins.size - 1], out.passed[0] = written, skipped
    return int(written)


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
