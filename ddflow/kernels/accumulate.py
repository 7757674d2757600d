"""Add up diffs, to get the net change of each row at each time, and the new counts of groups.

A *cell* holds the updates of one group at one time (`GroupTimeCells`). Cells are ordered by group, then by time, so the
state after a cell is the state before the next cell of its group.

Guarantees: no net diff in a result is 0, and no pair (group, time) occurs twice in a result. Every sum is checked,
because int64 wraps silently. If a sum overflows, the kernel returns the number of its row or cell. Only the sum
at the end of a cell must fit int64, not the sums within the cell.
"""

from typing import NamedTuple

import numpy as np

from ddflow.kernels.arrays import Flags, Ints, Narrow, Words
from ddflow.kernels.compile import kernel
from ddflow.kernels.pointer import prefetch


@kernel
def _sum_overflows(a: int, b: int) -> bool:
    """Return whether a + b overflows int64."""
    total = a + b
    return (a >= 0) == (b >= 0) and (total >= 0) != (a >= 0)


@kernel
def consolidate_diffs(
    permutation: Narrow, starts: Narrow, ranks: Narrow, diffs: Ints, out_rank: Narrow, out_row: Ints, out_diff: Ints
) -> tuple[int, int]:
    """Sum the diffs of rows with equal identity and time, and drop sums of 0. O(n).

    Input:
    - permutation, int32[n]: the rows, sorted by identity, then by time.
    - starts, int32[g + 1]: the place where each identity begins.
    - ranks, int32[n]: the rank of each row's time.
    - diffs, int64[n]: the diff of each row.

    Output:
    - out_rank, int32[n]: the rank of each result's time.
    - out_row, int64[n]: the first of the equal rows of each result.
    - out_diff, int64[n]: the sum of each result.

    Returns two numbers: the number of results, and a row whose sum overflows (-1 if there is no overflow).

    >>> a, b = np.zeros(1, np.int32), np.empty(1, np.int64)
    >>> consolidate_diffs(a, np.array([0, 1], np.int32), a, np.ones(1, np.int64), a.copy(), b, b.copy())
    (1, -1)

    >>> import numpy as np
    >>> one, few = lambda *values: np.array(values, np.int64), lambda *values: np.array(values, np.int32)
    >>> ranks, rows, diffs = np.empty(3, np.int32), np.empty(3, np.int64), np.empty(3, np.int64)
    >>> consolidate_diffs(few(0, 1, 2), few(0, 2, 3), few(0, 0, 0), one(1, -1, 5), ranks, rows, diffs)
    (1, -1)
    >>> rows[0], diffs[0]
    (np.int64(2), np.int64(5))
    """
    written = 0
    for group in range(starts.size - 1):
        begin, stop = starts[group], starts[group + 1]
        while begin < stop:
            first = permutation[begin]
            total, end = 0, begin
            while end < stop and ranks[permutation[end]] == ranks[first]:
                if _sum_overflows(total, diffs[permutation[end]]):
                    return written, first
                total += diffs[permutation[end]]
                end += 1
            if total != 0:
                out_rank[written], out_row[written], out_diff[written] = ranks[first], first, total
                written += 1
            begin = end
    return written, -1


@kernel
def update_group_counts(
    groups: Narrow,  # int32[n]: the group of each row, numbered from 0 without a gap
    ranks: Narrow,  # int32[n]: the rank of each row's time, ascending
    diffs: Ints,  # int64[n]: the diff of each row
    held: Ints,  # int64[g]: the count of each group, 0 for a new group; the kernel replaces old counts by new ones
    since_rank: np.int64,  # the versions of a group up to this rank are merged into one version
    net: Ints,  # int64[g]: scratch memory
    touched: Ints,  # int64[n]: scratch memory
    update_rank: Narrow,  # int32[2 n]: the rank of each update's time
    update_row: Ints,  # int64[2 n]: a row of the group of each update
    update_count: Ints,  # int64[2 n]: the count that each update inserts or retracts
    update_diff: Ints,  # int64[2 n]: the diff of each update
    version_rank: Narrow,  # int32[n]: the rank of each version's time
    version_row: Ints,  # int64[n]: a row of the group of each version
    version_count: Ints,  # int64[n]: the count in each version
    version_group: Ints,  # int64[n]: the group of each version
    last: Ints,  # int64[g]: the last version of each group, -1 for a group without a new version
) -> tuple[int, int, int]:
    """Add diffs to the counts of groups; for each changed count, retract the old count and insert the new one. O(n).

    The signature describes the arguments. The kernel writes the updates in the order of times. For each group, it
    writes the versions in the order of times. Returns the number of updates, the number of versions, and a row whose
    sum overflows (-1 if there is no overflow).

    >>> a, e = np.zeros(1, np.int32), lambda kind=np.int64: np.empty(2, kind)
    >>> out = e(), e(), e(np.int32), e(), e(), e(), e(np.int32), e(), e(), e(), e()
    >>> update_group_counts(a, a, np.array([1]), np.array([4]), -1, *out)
    (2, 1, -1)
    """
    updates = versions = begin = 0
    last[:], net[:] = -1, 0
    while begin < groups.size:
        rank, end, some = ranks[begin], begin, 0
        while end < groups.size and ranks[end] == rank:
            group = groups[end]
            # A group whose diffs cancelled is possibly listed twice, but it is processed only once. A branch to list
            # each group once costs more.
            touched[some] = end
            some += int(net[group] == 0)
            if _sum_overflows(net[group], diffs[end]):
                return updates, versions, end
            net[group] += diffs[end]
            end += 1
        begin = end
        for i in range(some):
            row, group = touched[i], groups[touched[i]]
            now, total = held[group], net[group]
            net[group] = 0
            if total == 0:
                continue
            if _sum_overflows(now, total):
                return updates, versions, row
            if now != 0:
                update_rank[updates], update_row[updates] = rank, row
                update_count[updates], update_diff[updates] = now, -1
                updates += 1
            now += total
            if now != 0:
                update_rank[updates], update_row[updates] = rank, row
                update_count[updates], update_diff[updates] = now, 1
                updates += 1
            held[group] = now
            if last[group] < 0 or rank > since_rank:
                last[group] = versions
                versions += 1
            at = last[group]
            version_rank[at], version_row[at] = rank, row
            version_count[at], version_group[at] = now, group
    return updates, versions, -1


AHEAD = 24
"""Number of rows between the current row and the row whose data is prefetched."""


class GroupTimeCells(NamedTuple):
    """The c cells of g groups; a cell has the updates of one group at one time."""

    rows: Ints
    """int64[n]: the updates, sorted by group, then time."""
    starts: Ints
    """int64[c + 1]: the place of each cell's first update."""
    firsts: Ints
    """int64[g + 1]: the first cell of each group."""


@kernel
def find_group_times(rows: Ints, groups: Narrow, ranks: Narrow, starts: Ints, cell_ranks: Narrow, firsts: Ints) -> int:
    """Find the cells of the given rows. O(n).

    Every group must have at least one row.

    Input:
    - rows, int64[n]: the rows, sorted by group, then by rank.
    - groups, int32[n]: the group of each row, numbered from 0 without a gap.
    - ranks, int32[n]: the rank of each row's time.

    Output:
    - starts, int64[c + 1]: the place where each cell begins.
    - cell_ranks, int32[c]: the rank of each cell's time.
    - firsts, int64[g + 1]: the first cell of each group.

    Returns c, the number of cells, which is at most n.

    >>> find_group_times(np.zeros(1, np.int64), np.zeros(1, np.int32), np.zeros(1, np.int32), np.zeros(2, np.int64),
    ...       np.zeros(1, np.int32), np.zeros(2, np.int64))
    1

    >>> import numpy as np
    >>> few, ints = (lambda *v, t=t: np.array(v, t) for t in (np.int32, np.int64))
    >>> rows, starts, ranks, firsts = ints(0, 2, 1), ints(0, 0, 0, 0), few(0, 0, 0), ints(0, 0, 0)
    >>> find_group_times(rows, few(0, 1, 0), few(0, 0, 1), starts, ranks, firsts)
    3
    >>> starts.tolist(), ranks.tolist(), firsts.tolist()
    ([0, 1, 2, 3], [0, 1, 0], [0, 2, 3])
    """
    found, group, rank, last = 0, -1, -1, rows.size - 1
    at_groups, at_ranks = np.uint64(groups.ctypes.data), np.uint64(ranks.ctypes.data)
    for place in range(rows.size):
        row, ahead = rows[place], np.uint64(rows[min(place + AHEAD, last)]) << np.uint64(2)
        prefetch(at_groups + ahead)
        prefetch(at_ranks + ahead)
        if groups[row] != group or ranks[row] != rank:
            if groups[row] != group:
                group = groups[row]
                firsts[group] = found
            rank = ranks[row]
            starts[found], cell_ranks[found] = place, rank
            found += 1
    starts[found], firsts[group + 1] = rows.size, found
    return found


@kernel
def accumulate_diffs(cells: GroupTimeCells, present: Flags, diffs: Ints, held: Ints, out: Ints) -> int:
    """Add up the diffs of rows, cell by cell. O(n).

    Input:
    - cells: the rows of each cell.
    - present, uint8[n]: 0 for each row to leave out. An array of size 0 includes all rows.
    - diffs, int64[n]: the diff of each row.
    - held, int64[g]: the multiplicity of each group before its first cell.

    Output:
    - out, int64[c]: the multiplicity after each cell.

    Returns the first cell with a sum outside int64, or -1 if all sums fit.

    >>> one, few = np.zeros(1, np.int64), np.arange(2)
    >>> accumulate_diffs(GroupTimeCells(one, few, few), np.empty(0, np.uint8), one + 3, one + 4, one), one.tolist()
    (-1, [7])
    """
    rows, starts, firsts = cells
    every, at_diffs, last = present.size == 0, np.uint64(diffs.ctypes.data), rows.size - 1
    for group in range(firsts.size - 1):
        now = held[group]
        for cell in range(firsts[group], firsts[group + 1]):
            beyond = 0
            for place in range(starts[cell], starts[cell + 1]):
                row = rows[place]
                prefetch(at_diffs + (np.uint64(rows[min(place + AHEAD, last)]) << np.uint64(3)))
                if every or present[row] != 0:
                    diff = diffs[row]
                    total = now + diff
                    if ((now ^ total) & (diff ^ total)) < 0:
                        beyond += 1 if diff > 0 else -1
                    now = total
            if beyond != 0:
                return cell
            out[cell] = now
    return -1


@kernel
def list_differences(
    before: Ints,
    there: Flags,
    hashes: Words,
    ranks: Narrow,
    ends: Ints,
    cells: Ints,
    places: Ints,
    out_ranks: Narrow,
    diffs: Ints,
) -> int:
    """List the rows that each cell removes and adds, sorted by time, with retractions before additions. O(c).

    Input:
    - before, int64[c]: the place of the row before each cell, -1 if there is no row.
    - there, uint8[s]: 0 for each place without a row. The last c elements belong to the rows after the c cells.
    - hashes, uint64[s]: the hash of the row at each place.
    - ranks, int32[c]: the rank of each cell's time.

    Scratch:
    - ends: an array with one element more than there are ranks.

    Output, where each array has the size 2 c:
    - cells, places, out_ranks, diffs: the cell, the place, the rank and the diff of each listed row.

    Returns the number of listed rows.

    >>> few, ints = (lambda *v, t=t: np.array(v, t) for t in (np.int32, np.int64))
    >>> places, diffs, made = ints(0, 0), ints(0, 0), (ints(0, 0), few(0, 0))
    >>> list_differences(ints(0), np.ones(2, np.uint8), np.arange(2, dtype=np.uint64), few(0), ints(0, 0), made[0],
    ...                  places, made[1], diffs), places.tolist(), diffs.tolist()
    (2, [0, 1], [-1, 1])
    """
    first = there.size - before.size
    ends[:] = 0
    for turn in range(2):
        for cell in range(before.size):
            old, new, rank = before[cell], first + cell, ranks[cell]
            leaves, enters = old >= 0 and there[old] != 0, there[new] != 0
            if leaves and enters and hashes[old] == hashes[new]:
                continue
            if turn == 0:
                ends[rank + 1] += np.int64(leaves) + np.int64(enters)
                continue
            at = ends[rank]
            if leaves:
                cells[at], places[at], out_ranks[at], diffs[at] = cell, old, rank, -1
                at += 1
            if enters:
                cells[at], places[at], out_ranks[at], diffs[at] = cell, new, rank, 1
                at += 1
            ends[rank] = at
        if turn == 0:
            for rank in range(1, ends.size):
                ends[rank] += ends[rank - 1]
    return int(ends[max(ends.size - 2, 0)])
