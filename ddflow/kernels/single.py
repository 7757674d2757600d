"""The one row that a group holds at a time, of the rows that it held and of how these change in a step.

Invariant: rows are numbered, and equal ones have one number: that of an entry. What a group holds is counted by number,
so what leaves and comes back in another entry cancels. Zero rows, or one that is there once, is an answer; anything
else is refused.

>>> import numpy as np
>>> few, ints = lambda *values: np.array(values, np.int32), lambda *values: np.array(values, np.int64)
>>> out = ints(9, 9)
>>> held, changes = (ints(0, 1), ints(0), ints(1)), (ints(0, 2), few(3, 3), ints(-1, 1), ints(0, 2))
>>> find_single(*held, *changes, ints(0, 2), few(2, 3), np.zeros(3, np.int64), out), out.tolist()
(-1, [0, 2])
"""

import numpy as np

from ddflow.kernels.arrays import Ints, Narrow
from ddflow.kernels.compile import kernel


@kernel
def find_single(
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
    """Find the row that each of some groups holds at each of the asked times.

    begins, change_begins, asked_begins: int64[g + 1], the begins of groups: of rows held, with their numbers and
    multiplicities; of changes, ascending in time, with ranks of times, diffs, numbers; and of asked times, ascending.
    Scratch: counts, zeros by number.  Written: found int64[asked], the number of the row, -1 for none.  Returns the
    first asked time at which there are several rows, or -1.  O(all).

    >>> none, few, begins = np.empty(0, np.int64), np.zeros(1, np.int32), np.array([0, 0])
    >>> found = np.zeros(1, np.int64)
    >>> find_single(begins, none, none, begins, few[:0], none, none, np.array([0, 1]), few, none, found), found[0]
    (-1, np.int64(-1))
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
