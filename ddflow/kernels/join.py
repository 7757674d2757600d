"""Join updates with the rows of their group: write all pairs, or find the one row that a group has at each time.

Guarantees: the diff of a pair is the product of both multiplicities, and its time is the later of both times. A product
that overflows int64 is reported and not written. The kernel reports a group that has several rows at one time.
Limits: the caller numbers the groups and the rows, and must give equal rows the same number.

>>> import numpy as np
>>> few, ints = lambda *values: np.array(values, np.int32), lambda *values: np.array(values, np.int64)
>>> out = np.empty(2, np.int32), ints(0, 0), ints(0, 0), ints(0, 0)
>>> pair_updates(few(0), few(3), ints(-1), ints(0, 2), ints(70, 71), ints(1, 5), few(), *out)
-1
>>> [column.tolist() for column in out]
[[3, 3], [0, 0], [70, 71], [-1, -5]]
"""

from typing import Any

import numpy as np

from ddflow.kernels.arrays import Ints, Narrow
from ddflow.kernels.compile import kernel

HALF = 1 << 31


@kernel
def _product_overflows(a: int, b: int) -> bool:
    """Return whether a * b overflows int64; b is not 0."""
    most = np.uint64(1 << 63) if (a < 0) != (b < 0) else np.uint64((1 << 63) - 1)
    return bool(_compute_magnitude(a) > most // _compute_magnitude(b))


@kernel
def _compute_magnitude(a: int) -> Any:
    """Compute the absolute value of ``a`` as uint64."""
    size: Any = np.uint64(a) if a >= 0 else ~np.uint64(a) + np.uint64(1)
    return size


@kernel
def pair_updates(
    number: Narrow,
    ranks: Narrow,
    diffs: Ints,
    begins: Ints,
    references: Ints,
    times: Ints,
    theirs: Narrow,
    out_rank: Narrow,
    out_mine: Ints,
    out_theirs: Ints,
    out_diff: Ints,
) -> int:
    """Write all pairs of updates and rows of their groups, in the order of the updates. O(n + pairs).

    Input:
    - number, int32[n]: the group of each update.
    - ranks, int32[n]: the rank of each update's time.
    - diffs, int64[n]: the diff of each update.
    - begins, int64[g + 1]: where the rows of each group begin.
    - references, int64[r]: the rows.
    - times, int64[r]: the multiplicities of the rows.
    - theirs, int32[r]: the rank of each row's time. ``theirs`` has size 0 for rows that were stored before the step.

    Output, with one element for each pair:
    - out_rank: the later of both ranks.
    - out_mine: the update.
    - out_theirs: the reference of the row.
    - out_diff: the product of the update's diff and the row's multiplicity.

    Returns an update whose product overflows int64, or -1 if no product overflows.

    >>> import numpy as np
    >>> few, ints = lambda *values: np.array(values, np.int32), lambda *values: np.array(values, np.int64)
    >>> out = few(0), ints(0), ints(0), ints(0)
    >>> pair_updates(few(0), few(0), ints(1 << 62), ints(0, 1), ints(0), ints(2), few(0), *out)
    0
    """
    at = 0
    for i in range(number.size):
        group, diff = number[i], diffs[i]
        for j in range(begins[group], begins[group + 1]):
            some = times[j]
            product = diff * some
            if not (-HALF < diff < HALF and -HALF < some < HALF) and _product_overflows(diff, some):
                return i
            rank = ranks[i]
            if theirs.size != 0 and theirs[j] > rank:
                rank = theirs[j]
            out_rank[at], out_mine[at], out_theirs[at], out_diff[at] = rank, i, references[j], product
            at += 1
    return -1


@kernel
def find_group_row_at_times(
    begins: Ints,
    numbers: Ints,
    values: Ints,
    change_begins: Ints,
    change_ranks: Narrow,
    diffs: Ints,
    change_numbers: Ints,
    asked_begins: Ints,
    asked_ranks: Narrow,
    counts: Ints,
    found: Ints,
) -> int:
    """Find the row that each group has at each of the requested times. O(size of all arrays).

    Input, as three lists that are sorted by group:
    - begins, int64[g + 1]: where the stored rows of each group begin. Each row has a number and a multiplicity.
    - change_begins, int64[g + 1]: where the changes of each group begin, in ascending time. Each change has the rank of
      its time, a diff and the number of a row.
    - asked_begins, int64[g + 1]: where the requested times of each group begin, ascending.

    Scratch:
    - counts: a zero for each row number.

    Output:
    - found, int64[asked]: the number of the row at each requested time, -1 if there is no row.

    Returns the position of the first requested time at which a group has several rows, or -1.

    >>> none, few, begins = np.empty(0, np.int64), np.zeros(1, np.int32), np.array([0, 0])
    >>> found = np.zeros(1, np.int64)
    >>> find_group_row_at_times(begins, none, none, begins, few[:0], none, none, np.array([0, 1]), few, none,
    ...     found), found[0]
    (-1, np.int64(-1))

    >>> import numpy as np
    >>> few, ints = lambda *values: np.array(values, np.int32), lambda *values: np.array(values, np.int64)
    >>> out = ints(9, 9)
    >>> held, changes = (ints(0, 1), ints(0), ints(1)), (ints(0, 2), few(3, 3), ints(-1, 1), ints(0, 2))
    >>> find_group_row_at_times(*held, *changes, ints(0, 2), few(2, 3), np.zeros(3, np.int64), out), out.tolist()
    (-1, [0, 2])
    """
    for g in range(begins.size - 1):
        rows, total, at = 0, np.int64(0), change_begins[g]
        for i in range(begins[g], begins[g + 1]):
            counts[numbers[i]] = values[i]
            rows, total = rows + 1, total + numbers[i]
        for j in range(asked_begins[g], asked_begins[g + 1]):
            while at < change_begins[g + 1] and change_ranks[at] <= asked_ranks[j]:
                number, before = change_numbers[at], counts[change_numbers[at]]
                counts[number] = before + diffs[at]
                change = int(counts[number] != 0) - int(before != 0)
                rows, total = rows + change, total + change * number
                at += 1
            if rows > 1 or (rows == 1 and counts[total] != 1):
                return j
            found[j] = total if rows == 1 else -1
    return -1
