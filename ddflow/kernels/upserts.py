"""Turn diffs back into upserts. The result has, after each time, the greatest row of each key, or all rows of each key.

A *candidate* of a key is a stored row, or a row that an update inserts or retracts. The candidates of a key are
adjacent and numbered in ascending order of their rows. Stored rows are in *cells*, an int64[m, 4] with four columns.
NEXT is the next cell of the key or of the free list, or -1 if there is none. COUNT is the multiplicity, or 0 for a free
cell. HASH is the hash of the values without the key. REF is the location of the row.

Guarantees: the diffs of one time are summed before they are applied, so a row that is both retracted and inserted at
one time is not treated as absent. A hidden row reappears when the greater row is retracted. No loop reads all
candidates of a key for each update.
"""

import numpy as np

from ddflow.kernels.arrays import Ints, Ints2d, Narrow
from ddflow.kernels.compile import kernel

NEXT, COUNT, HASH, REF = 0, 1, 2, 3
GONE = -1
"""A value in place of the number of a candidate, which means that the key has no visible row."""
SEVERAL, ABSENT, OVERFLOW = 1, 2, 3
"""Reasons why a step fails: a key has several rows, a retracted row is absent, or a sum overflows int64."""
FEW = 24
"""A hash table is used to find equal rows if a key has more candidates and updates than this."""


@kernel
def _sum_overflows(a: int, b: int) -> bool:
    """Return whether a + b overflows int64."""
    total = a + b
    return (a >= 0) == (b >= 0) and (total >= 0) != (a >= 0)


@kernel
def count_chained_cells(cells: Ints2d, heads: Ints) -> int:
    """Count the cells of the chains that begin at ``heads``. O(cells of these chains).

    - heads, int64[g]: the first cell of each chain, -1 for an empty chain.

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
    permutation: Narrow,  # int32[n]: the updates, sorted by key
    starts: Narrow,  # int32[g + 1]: the place where each key begins
    hashes: Ints,  # int64[n]: the hash of each update's row
    cells: Ints2d,  # the stored rows
    heads: Ints,  # int64[g]: the first cell of each key, -1 for a key without a cell
    first: Ints,  # int64[g + 1]: where the candidates of each key begin
    cell: Ints,  # the cell of each candidate, -1 for a new candidate
    row: Ints,  # the first update of each candidate, -1 for a stored row
    count: Ints,  # the multiplicity of each candidate, 0 for a new candidate
    hashed: Ints,  # the hash of each candidate
    candidate: Narrow,  # int32[n]: the candidate of the update at each place
) -> None:
    """List the candidates of each key, stored rows first, and assign each update to its candidate.

    The signature describes the arguments. The arrays from ``cell`` to ``hashed`` have an element for each candidate.
    The size of these arrays is n plus the number of stored rows.
    O(n + stored rows) expected, with scratch memory for the largest key.

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
    """Sum the diffs in the range [begin, end), which has one key and one time. Then apply the sums to the counts.

    net: all 0, and 0 again afterwards unless the step is refused. entered: output, the candidates that appear.
    Returns five numbers: how many candidates appeared, how many candidates disappeared, whether a count changed, the
    reason for a failure (0 for none), and the place of the failure.
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
    """Push a candidate on the max-heap, and return the new size of the heap."""
    at = size
    while at > 0 and heap[(at - 1) // 2] < c:
        heap[at] = heap[(at - 1) // 2]
        at = (at - 1) // 2
    heap[at] = c
    return size + 1


@kernel
def _pop_greatest(heap: Ints, size: int) -> int:
    """Remove the greatest candidate from the heap, and return the new size of the heap."""
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
    permutation: Narrow,  # int32[n]: the updates, sorted by key, then by time
    starts: Narrow,  # int32[g + 1]: the place where each key begins
    ranks: Narrow,  # int32[n]: the rank of each update's time
    diffs: Ints,  # int64[n]: the diff of each update
    candidate: Narrow,  # int32[n]: the candidate of the update at each place
    first: Ints,  # int64[g + 1]: where the candidates of each key begin; the candidates of a key ascend
    unique: bool,  # whether the kernel refuses a key with several rows
    count: Ints,  # int64[m]: the multiplicity of each candidate, which the kernel updates
    net: Ints,  # int64[m]: scratch memory, all 0
    heap: Ints,  # int64[m + n]: scratch memory
    entered: Narrow,  # int32[n]: scratch memory
    out_row: Ints,  # int64[n]: for each change, the first update of the key at that time
    out_shown: Ints,  # int64[n]: for each change, the candidate that the key shows, or `GONE`
) -> tuple[int, int, int, int]:
    """Find the times at which the greatest candidate of a key changes or disappears.

    The signature describes the arguments. Returns four numbers: the number of changes, the reason for a failure (0 if
    there is no failure), and the key and the place of the failure whose row is first. After a failure, ``count`` has
    the multiplicities of the failed key at the time of the failure. O((n + m) log of the candidates of a key).

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
    """Write the new rows of each key into the cells. O(m).

    Input:
    - first, int64[g + 1]: where the candidates of each key begin.
    - cell, count, hashed, int64[m]: the cell, the multiplicity and the hash of each candidate.
    - refs, int64[m]: the row reference of each new candidate.
    - free: the first free cell, or -1.
    - used: the number of cells that are taken or free.

    Output:
    - cells: the cells, which the kernel updates. The array must have space for all new candidates with a count.
    - heads, int64[g]: the first cell of each key.

    Returns the new value of ``free``, the new value of ``used``, and the change in the number of stored rows.

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
    """Sort the first n values in place with a heap. O(n log n). numba's own sort takes a second to compile."""
    for size in range(n + n // 2 - 1, -1, -1):  # build the heap, then remove its greatest value in each round
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
    """Merge m ascending values into n ascending values, starting at the end.

    The array has space for n + m values. O(n + m).
    """
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
    live: Narrow,  # int32[m]: scratch memory
    entered: Narrow,
    out_row: Ints,
    out_size: Ints,  # int64[n]: the number of candidates in each list, 0 for a key without rows
    listed: Ints,  # int64[room]: the ascending candidates of the lists, as far as there is space
    counted: Ints,  # int64[room]: the multiplicity of each listed candidate
) -> tuple[int, int, int, int, int]:
    """List all rows of a key after each time at which they change.

    The signature describes the arguments that `find_changes_of_greatest` does not have. Returns the number of lists,
    the space that the lists need, and the failure, encoded as `find_changes_of_greatest` encodes it. O(n + m) plus, for
    each list, its length and the logarithm of the length.

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
