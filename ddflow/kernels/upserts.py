"""Turn diffs back into upserts: the row, or all rows, that each key has after each time.

A *candidate* is a row that a key held or that an update touches; the candidates of a key stand together, numbered so
that a greater number is a greater row. The rows held are *cells*: int64[m, 4] of NEXT (the next cell of its key or of
the free ones, -1: none), COUNT (its multiplicity, 0 for a free one), HASH (of its values beside the key), REF (where
its row is).

Guarantees: the diffs of one time are netted before they are applied, so a row that leaves and comes back was never
gone. A hidden row shows again when the greater one goes. No loop looks at all candidates for each update.
"""

import numpy as np

from ddflow.kernels.arrays import Ints, Ints2d, Narrow
from ddflow.kernels.compile import kernel

NEXT, COUNT, HASH, REF = 0, 1, 2, 3
GONE = -1
"""The candidate of a key that shows nothing."""
SEVERAL, ABSENT, OVERFLOW = 1, 2, 3
"""Why a step is refused: a key holds several rows, a row is retracted that is not there, a sum leaves int64."""
FEW = 24
"""Candidates and updates of a key above which rows are looked up in a table."""


@kernel
def _sum_overflows(a: int, b: int) -> bool:
    """Whether a + b leaves int64."""
    total = a + b
    return (a >= 0) == (b >= 0) and (total >= 0) != (a >= 0)


@kernel
def count_chained_cells(cells: Ints2d, heads: Ints) -> int:
    """How many cells the chains that begin at ``heads`` (int64[g], -1: none) have in all.  O(cells of them).

    >>> count_chained_cells(np.array([[1, 1, 0, 0], [-1, 1, 0, 0]]), np.array([0, -1]))
    2
    """
    total = 0
    for g in range(heads.size):
        at = heads[g]
        while at >= 0:
            total += 1
            at = cells[at, NEXT]
    return total


@kernel
def list_candidates(
    permutation: Narrow,
    starts: Narrow,
    hashes: Ints,
    cells: Ints2d,
    heads: Ints,
    first: Ints,
    cell: Ints,
    row: Ints,
    count: Ints,
    hashed: Ints,
    candidate: Narrow,
) -> None:
    """List each key's candidates, the held ones first, and say which one each update is of.

    permutation: int32[n], rows sorted by key.  starts: int32[g + 1], places.  hashes: int64[n], by row.  cells; heads:
    int64[g], the first cell of each key or -1.  Written: first int64[g + 1], where each key's candidates begin; of each
    (room for the held rows and n): cell and count (-1 and 0 for a new one), row (of its first update; -1 for a held
    one), hashed; candidate int32[n], by place.  O(n + held) expected; scratch of the largest key.

    >>> few, ints = lambda *values: np.array(values, np.int32), lambda *values: np.array(values, np.int64)
    >>> held, at = np.array([[-1, 3, 8, 0]]), few(0, 0)
    >>> first, cell, row, count, hashed = ints(0, 0), ints(9, 9, 9), ints(9, 9, 9), ints(9, 9, 9), ints(9, 9, 9)
    >>> list_candidates(few(1, 0), few(0, 2), ints(8, 7), held, ints(0), first, cell, row, count, hashed, at)
    >>> at.tolist(), cell.tolist(), row.tolist(), count.tolist()
    ([1, 0], [0, -1, 9], [-1, 1, 9], [3, 0, 9])
    """
    made, table = 0, np.empty(0, np.int64)
    for g in range(heads.size):
        opened, at = made, heads[g]
        first[g] = opened
        while at >= 0:
            cell[made], row[made], count[made], hashed[made] = at, -1, cells[at, COUNT], cells[at, HASH]
            made += 1
            at = cells[at, NEXT]
        begin, end = starts[g], starts[g + 1]
        size = made - opened + end - begin
        slots = 0
        if size > FEW:
            slots = 1
            while slots < 2 * size:
                slots *= 2
            table = np.full(slots, -1, np.int64)
            for c in range(opened, made):
                slot = hashed[c] & (slots - 1)
                while table[slot] >= 0:
                    slot = (slot + 1) & (slots - 1)
                table[slot] = c
        for place in range(begin, end):
            value = hashes[permutation[place]]
            if slots > 0:
                slot = value & (slots - 1)
                while table[slot] >= 0 and hashed[table[slot]] != value:
                    slot = (slot + 1) & (slots - 1)
                found = table[slot] if table[slot] >= 0 else made
                table[slot] = found
            else:
                found = opened
                while found < made and hashed[found] != value:
                    found += 1
            if found == made:
                cell[made], row[made], count[made], hashed[made] = -1, permutation[place], 0, value
                made += 1
            candidate[place] = found
    first[heads.size] = made


@kernel
def _apply_net_diffs(
    permutation: Narrow, begin: int, end: int, diffs: Ints, candidate: Narrow, net: Ints, count: Ints, entered: Narrow
) -> tuple[int, int, bool, int, int]:
    """Net the run [begin, end) of one key and time, then apply it to the counts.

    net: all 0, and so again afterwards unless it is refused.  entered: written, the candidates that were not there.
    Returns how many entered, how many left, whether anything changed, why it is refused or 0, and the place of that.
    """
    for place in range(begin, end):
        c, diff = candidate[place], diffs[permutation[place]]
        if _sum_overflows(net[c], diff):
            return 0, 0, False, OVERFLOW, place
        net[c] += diff
    came, left, changed = 0, 0, False
    for place in range(begin, end):
        c = candidate[place]
        change, was = net[c], count[c]
        if change == 0:
            continue
        net[c] = 0
        if _sum_overflows(was, change):
            return came, left, changed, OVERFLOW, place
        count[c] = was + change
        if count[c] < 0:
            return came, left, changed, ABSENT, place
        changed = True
        if was == 0:
            entered[came] = c
            came += 1
        elif count[c] == 0:
            left += 1
    return came, left, changed, 0, -1


@kernel
def _push_candidate(heap: Ints, size: int, c: int) -> int:
    """Put a candidate into the heap, whose greatest is first; returns the new size."""
    at = size
    while at > 0 and heap[(at - 1) // 2] < c:
        heap[at] = heap[(at - 1) // 2]
        at = (at - 1) // 2
    heap[at] = c
    return size + 1


@kernel
def _pop_greatest(heap: Ints, size: int) -> int:
    """Take the greatest out of the heap; returns the new size."""
    size -= 1
    c, at = heap[size], 0
    while 2 * at + 1 < size:
        child = 2 * at + 1
        if child + 1 < size and heap[child + 1] > heap[child]:
            child += 1
        if heap[child] <= c:
            break
        heap[at] = heap[child]
        at = child
    heap[at] = c
    return size


@kernel
def find_changes_of_greatest(
    permutation: Narrow,
    starts: Narrow,
    ranks: Narrow,
    diffs: Ints,
    candidate: Narrow,
    first: Ints,
    unique: bool,
    count: Ints,
    net: Ints,
    heap: Ints,
    entered: Narrow,
    out_row: Ints,
    out_shown: Ints,
) -> tuple[int, int, int, int]:
    """Say at which times the greatest candidate that a key holds becomes another one, or none.

    permutation: int32[n], rows sorted by key, within one by time.  starts: int32[g + 1], places.  ranks: int32[n], of
    times, diffs: int64[n], by row.  candidate: int32[n], by place.  first: int64[g + 1]; a key's candidates are in
    ascending order.  unique: refuse a key with several rows.  count: int64[m], changed to what is held afterwards.
    Scratch: net int64[m], all 0; heap int64[m + n]; entered int32[n].  Written: out_row int64[n], the first update of
    the key at the time; out_shown int64[n], the candidate or `GONE`.  Returns how many, why the step is refused or 0,
    and the key and the place of the refusal that came first by row; that key's counts are those of that time then.
    O((n + m) log of the candidates of a key).

    >>> few, ints = lambda *values: np.array(values, np.int32), lambda *values: np.array(values, np.int64)
    >>> find_changes_of_greatest(few(0), few(0, 1), few(0), ints(-1), few(0), ints(0, 1), False, ints(0), ints(0),
    ...     ints(0,
    ...     0), few(0),
    ...        ints(0), ints(0))
    (0, 2, 0, 0)
    """
    written, why, where, worst = 0, 0, 0, 0
    for g in range(starts.size - 1):
        size = alive = 0
        for c in range(first[g + 1] - 1, first[g] - 1, -1):
            if count[c] > 0:
                heap[size] = c
                size += 1
                alive += 1
        shown = heap[0] if size > 0 else GONE
        begin, stop = starts[g], starts[g + 1]
        while begin < stop:
            rank, end = ranks[permutation[begin]], begin
            while end < stop and ranks[permutation[end]] == rank:
                end += 1
            came, left, _, refused, place = _apply_net_diffs(
                permutation, begin, end, diffs, candidate, net, count, entered
            )
            alive += came - left
            if refused == 0 and unique:
                for i in range(begin, end):
                    if count[candidate[i]] > 1 or (alive > 1 and count[candidate[i]] > 0):
                        refused, place = SEVERAL, i
            if refused != 0:
                if why == 0 or permutation[place] < permutation[worst]:
                    why, where, worst = refused, g, place
                break
            for i in range(came):
                size = _push_candidate(heap, size, entered[i])
            while size > 0 and count[heap[0]] == 0:
                size = _pop_greatest(heap, size)
            now = heap[0] if size > 0 else GONE
            if now != shown:
                out_row[written], out_shown[written] = permutation[begin], now
                written += 1
                shown = now
            begin = end
    return written, why, where, worst


@kernel
def write_cells(
    first: Ints, cell: Ints, count: Ints, hashed: Ints, refs: Ints, cells: Ints2d, free: int, used: int, heads: Ints
) -> tuple[int, int, int]:
    """Write what each key holds now into the cells.

    first: int64[g + 1].  cell, count, hashed: int64[m], of the candidates; refs: int64[m], of the new ones.  cells:
    changed; free: the first free one, or -1; used: how many are taken or free.  heads: int64[g], written.  Returns the
    new free, used, and how many rows more are held.  O(m).  There must be room for all new candidates with a count.

    >>> one, cells = np.ones(1, np.int64), np.zeros((2, 4), np.int64)
    >>> heads = one.copy()
    >>> (write_cells(np.array([0, 1]), -one, one, 7 * one, 5 * one, cells, -1, 0, heads), heads.tolist(),
    ... cells[0].tolist())
    ((-1, 1, 1), [0], [-1, 1, 7, 5])
    """
    more = 0
    for g in range(heads.size):
        head = -1
        for c in range(first[g + 1] - 1, first[g] - 1, -1):
            at = cell[c]
            if count[c] > 0:
                if at < 0:
                    more += 1
                    if free >= 0:
                        at = free
                        free = cells[at, NEXT]
                    else:
                        at = used
                        used += 1
                    cells[at, HASH], cells[at, REF] = hashed[c], refs[c]
                cells[at, COUNT], cells[at, NEXT] = count[c], head
                head = at
            elif at >= 0:
                more -= 1
                cells[at, COUNT], cells[at, NEXT] = 0, free
                free = at
        heads[g] = head
    return free, used, more


@kernel
def _heap_sort(values: Narrow, n: int) -> None:
    """Sort the first n values in their place, by a heap: numba's own sort takes a second to compile.  O(n log n)."""
    for size in range(n + n // 2 - 1, -1, -1):  # the first n // 2 rounds make the heap, each other one takes its top
        root, stop = size - n, n
        if root < 0:
            root, stop = 0, size
            values[0], values[size] = values[size], values[0]
        while 2 * root + 1 < stop:
            child = 2 * root + 1
            if child + 1 < stop and values[child + 1] > values[child]:
                child += 1
            if values[root] >= values[child]:
                break
            values[root], values[child] = values[child], values[root]
            root = child


@kernel
def _merge_sorted(values: Narrow, n: int, others: Narrow, m: int) -> None:
    """Merge m ascending values into n that are ascending, from behind; there is room for n + m.  O(n + m)."""
    i, j = n - 1, m - 1
    for at in range(n + m - 1, -1, -1):
        if j < 0 or (i >= 0 and values[i] > others[j]):
            values[at] = values[i]
            i -= 1
        else:
            values[at] = others[j]
            j -= 1


@kernel
def list_rows_per_time(
    permutation: Narrow,
    starts: Narrow,
    ranks: Narrow,
    diffs: Ints,
    candidate: Narrow,
    first: Ints,
    count: Ints,
    net: Ints,
    live: Narrow,
    entered: Narrow,
    out_row: Ints,
    out_size: Ints,
    listed: Ints,
    counted: Ints,
) -> tuple[int, int, int, int, int]:
    """List all that a key holds after each time at which it changed.

    As `find_changes_of_greatest`, but for: live: int32[m], scratch.  out_size: int64[n], written: how many candidates
    each list has, 0 where the key is gone.  listed, counted: int64[room], written as far as there is room: the
    candidates of the lists, ascending, and their counts.  Returns how many lists, how much room they need, and the
    refusal as `find_changes_of_greatest` does. O(n + m, and for each list its length and the logarithm of that).

    >>> few, ints = lambda *values: np.array(values, np.int32), lambda *values: np.array(values, np.int64)
    >>> listed = ints(9, 9)
    >>> list_rows_per_time(few(0), few(0, 1), few(0), ints(2), few(1), ints(0, 2), ints(1, 0), ints(0, 0), few(0, 0),
    ...     few(0),
    ...          ints(0), ints(0), listed, ints(0, 0)), listed.tolist()
    ((1, 2, 0, 0, 0), [0, 1])
    """
    written, needed, why, where, worst = 0, 0, 0, 0, 0
    for g in range(starts.size - 1):
        size = 0
        for c in range(first[g], first[g + 1]):
            if count[c] > 0:
                live[size] = c
                size += 1
        begin, stop = starts[g], starts[g + 1]
        while begin < stop:
            rank, end = ranks[permutation[begin]], begin
            while end < stop and ranks[permutation[end]] == rank:
                end += 1
            came, left, changed, refused, place = _apply_net_diffs(
                permutation, begin, end, diffs, candidate, net, count, entered
            )
            if refused != 0:
                if why == 0 or permutation[place] < permutation[worst]:
                    why, where, worst = refused, g, place
                break
            if left > 0:
                stay = 0
                for i in range(size):
                    if count[live[i]] > 0:
                        live[stay] = live[i]
                        stay += 1
                size = stay
            if came > 0:
                _heap_sort(entered, came)
                _merge_sorted(live, size, entered, came)
                size += came
            if changed:
                for i in range(size if needed + size <= listed.size else 0):
                    listed[needed + i], counted[needed + i] = live[i], count[live[i]]
                out_row[written], out_size[written] = permutation[begin], size
                written += 1
                needed += size
            begin = end
    return written, needed, why, where, worst
