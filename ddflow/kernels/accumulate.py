"""Add up diffs, to get the net change of each row at each time, and the new counts of groups.

A *cell* holds the updates of one group at one time (`number_cells`). Cells are numbered in the order of their first
updates, so in the order of times. The state after a cell is the state before the next cell of its group.

Guarantees: no net diff in a result is 0, and no pair (group, time) occurs twice in a result. Every sum is checked,
because int64 wraps silently. If a sum overflows, the kernel returns the number of its row. Only the sum at the end of
a cell must fit int64, not the sums within the cell.
"""

import numpy as np

from ddflow.kernels.arrays import Flags, Ints, Narrow, Words, Words2d
from ddflow.kernels.compile import kernel

FIRST = 12
"""The binary logarithm of the number of slots with which `number_groups` begins."""


@kernel
def _sum_overflows(a: int, b: int) -> bool:
    """Return whether a + b overflows int64."""
    total = a + b
    return bool(((a ^ total) & (b ^ total)) < 0)


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
            row = touched[i]
            group = groups[row]
            now, total = held[group], net[group]
            after = now + total
            net[group] = 0
            if _sum_overflows(now, total):
                return updates, versions, row
            # Without a branch, because the processor cannot predict which diffs cancel. The next row overwrites a row
            # that is not counted.
            changes = total != 0
            update_rank[updates], update_row[updates] = rank, row
            update_count[updates], update_diff[updates] = now, -1
            updates += int(changes and now != 0)
            update_rank[updates], update_row[updates] = rank, row
            update_count[updates], update_diff[updates] = after, 1
            updates += int(changes and after != 0)
            held[group] = after
            begins = changes and (last[group] < 0 or rank > since_rank)
            at = versions if begins or not changes else last[group]
            version_rank[at], version_row[at] = rank, row
            version_count[at], version_group[at] = after, group
            last[group] = at if changes else last[group]
            versions += int(begins)
    return updates, versions, -1


@kernel
def number_cells(
    groups: Narrow,
    ranks: Narrow,
    latest: Narrow,
    seen: Narrow,
    held: int,
    cells: Narrow,
    before: Narrow,
    cell_ranks: Narrow,
    cell_groups: Narrow,
    rows: Ints,
) -> int:
    """Assign a cell to each row, and return the number of cells. O(n).

    The states of a step are the ``held`` stored states, followed by the state after each cell. A cell has the place of
    the state after it.

    Input:
    - groups, int32[n]: the group of each row, numbered from 0.
    - ranks, int32[n]: the rank of each row's time, ascending.
    - latest, int32[g]: the place of each group's stored state, -1 for none. The kernel replaces it by the last cell.
    - seen, int32[g]: scratch memory, all -1.

    Output, for n rows and at most n cells:
    - cells: the cell of each row.
    - before: the place of the state before each cell, -1 for none.
    - cell_ranks, cell_groups, rows: the rank, the group and the first row of each cell.

    >>> few = lambda *v: np.array(v, np.int32)
    >>> out = [few(0, 0, 0) for _ in range(4)]
    >>> number_cells(few(0, 1, 0), few(0, 0, 1), few(-1, 0), few(-1, -1), 1, *out, np.zeros(3, np.int64))
    3
    >>> out[0].tolist(), out[1].tolist()
    ([1, 2, 3], [-1, 0, 1])
    """
    found = 0
    for row in range(groups.size):
        group, rank = groups[row], ranks[row]
        # Without a branch, because half of the rows begin a cell and the processor cannot predict which.
        begins, old = seen[group] != rank, latest[group]
        before[found], cell_ranks[found], cell_groups[found], rows[found] = old, rank, group, row
        at = held + found if begins else old
        latest[group], seen[group], cells[row] = at, rank, at
        found += int(begins)
    return found


@kernel
def accumulate_diffs(cells: Narrow, before: Narrow, present: Flags, diffs: Ints, states: Ints) -> bool:
    """Add up the diffs of rows, cell by cell. O(n).

    Input:
    - cells, before: see `number_cells`.
    - present, uint8[n]: 0 for each row to leave out. An array of size 0 includes all rows.
    - diffs, int64[n]: the diff of each row.
    - states, int64[s]: the stored multiplicities, then 0 for each cell, which the kernel replaces by the multiplicity
      after the cell.

    Returns whether a sum wrapped. A sum can wrap twice and be right at the end.

    >>> few, states = np.zeros(1, np.int32), np.array([4, 0])
    >>> accumulate_diffs(few + 1, few, np.empty(0, np.uint8), np.array([3]), states), states.tolist()
    (False, [4, 7])
    """
    held, every, wrapped = states.size - before.size, present.size == 0, np.int64(0)
    for row in range(cells.size):
        if every or present[row] != 0:
            now, diff = states[cells[row]], diffs[row]
            total = now + diff
            wrapped |= (now ^ total) & (diff ^ total)
            states[cells[row]] = total
    for cell in range(before.size):
        if before[cell] >= 0:
            now, diff = states[before[cell]], states[held + cell]
            total = now + diff
            wrapped |= (now ^ total) & (diff ^ total)
            states[held + cell] = total
    return bool(wrapped < 0)


@kernel
def mark_changes(before: Narrow, words: Words2d, present: Flags, changed: Flags) -> None:
    """Mark the cells that change a result. O(c).

    - before: see `number_cells`.
    - words, uint64[s, k]: the result at each place.
    - present, uint8[s]: 0 for each null; of size 0 if there are no nulls.
    - changed, uint8[c]: the kernel writes 1 for each cell that changes the result, and leaves the other elements.

    >>> changed = np.zeros(1, np.uint8)
    >>> mark_changes(np.zeros(1, np.int32), np.array([[1], [2]], np.uint64), np.empty(0, np.uint8), changed)
    >>> changed.tolist()
    [1]
    """
    held, every = words.shape[0] - before.size, present.size == 0
    for cell in range(before.size):
        old, new = before[cell], held + cell
        if old < 0 or changed[cell] != 0:
            continue
        if not every and present[old] != present[new]:
            changed[cell] = 1
        elif every or present[new] != 0:
            for k in range(words.shape[1]):
                if words[old, k] != words[new, k]:
                    changed[cell] = 1


@kernel
def list_changes(before: Narrow, there: Flags, changed: Flags, cells: Ints, places: Ints, diffs: Ints) -> int:
    """List the rows that each cell removes and adds. O(c).

    Input:
    - before: see `number_cells`.
    - there, uint8[s]: 0 for each place without a row.
    - changed, uint8[c]: 0 for each cell that leaves the row of its group unchanged.

    Output, where each array has the size 2 c:
    - cells, places, diffs: the number of the cell, the place and the diff of each listed row.

    Returns the number of listed rows.

    >>> out = [np.zeros(2, np.int64) for _ in range(3)]
    >>> list_changes(np.zeros(1, np.int32), np.ones(2, np.uint8), np.ones(1, np.uint8), *out)
    2
    >>> out[1].tolist(), out[2].tolist()
    ([0, 1], [-1, 1])
    """
    made, held = 0, there.size - before.size
    for cell in range(before.size):
        old, new = before[cell], held + cell
        leaves, enters = old >= 0 and there[old] != 0, there[new] != 0
        if leaves and enters and changed[cell] == 0:
            continue
        if leaves:
            cells[made], places[made], diffs[made] = cell, old, -1
            made += 1
        if enters:
            cells[made], places[made], diffs[made] = cell, new, 1
            made += 1
    return made


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


@kernel
def number_groups(high: Words, low: Words, bits: np.int64, table: Narrow, groups: Narrow, first: Ints) -> int:
    """Assign a number to each group of equal identities, and return the number of groups. O(n) expected.

    - high, low, uint64[n]: the identity of each row (low has size 0 for one-word identities).
    - table, int32[2**bits]: scratch memory, larger than n. The kernel uses a small part first, because few groups then
      stay in the processor's cache.
    - groups, int32[n]: the group number of each row, which the kernel writes.
    - first, int64: the first row of each group, which the kernel writes. The array must have space for all groups.

    >>> number_groups(np.zeros(1, np.uint64), np.empty(0, np.uint64), np.int64(1), np.empty(2, np.int32),
    ...       np.empty(1, np.int32), np.empty(1, np.int64))
    1

    >>> import numpy as np
    >>> high, none = np.array([9, 2**63, 9], np.uint64), np.empty(0, np.uint64)
    >>> groups, first = np.empty(3, np.int32), np.empty(3, np.int64)
    >>> (number_groups(high, none, np.int64(3), np.empty(8, np.int32), groups, first), groups.tolist(),
    ... first[:2].tolist())
    (2, [0, 1, 0], [0, 1])
    """
    used = min(bits, np.int64(FIRST))
    shift, mask = np.uint64(64 - used), (np.int64(1) << used) - 1
    table[: mask + 1] = -1
    found = 0
    for i in range(high.size):
        if found > mask >> 1 and used < bits:
            used = min(used + 2, bits)
            shift, mask = np.uint64(64 - used), (np.int64(1) << used) - 1
            table[: mask + 1] = -1
            for number in range(found):
                slot = np.int64(high[first[number]] >> shift)
                while table[slot] >= 0:
                    slot = (slot + 1) & mask
                table[slot] = number
        slot = np.int64(high[i] >> shift)
        while True:
            number = table[slot]
            if number < 0:
                table[slot], groups[i], first[found] = found, found, i
                found += 1
                break
            row = first[number]
            if high[row] == high[i] and (low.size == 0 or low[row] == low[i]):
                groups[i] = number
                break
            slot = (slot + 1) & mask
    return found
