"""The rows that stand at the head of groups, before a step and after each of its times.

Invariant: a state of a group is what it holds before the step, or after the changes of one time; a group's states stand
together, in the order of times. Of each, the rows that are there are written from the first on, as often as they are
there, up to a limit; rows that are skipped are not, but a group of nothing else is there.

>>> import numpy as np
>>> one = lambda *values: np.array(values, np.int64)
>>> there, stops, out = np.empty(2, np.uint8), np.empty(3, np.int64), np.empty(4, np.int64)
>>> given = one(0, 3), one(1, 2, 1), np.array([1, 0, 0], np.uint8), one(0, 1), one(0, 1), one(1), one(0)
>>> standing(*given, 1, there, stops, out), there.tolist(), stops.tolist(), out[:2].tolist()
(2, [1, 1], [0, 1, 2], [1, 2])
"""

import numpy as np

from ddflow.kernels.arrays import Flags, Ints
from ddflow.kernels.compile import kernel


@kernel
def standing(
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
    >>> standing(np.zeros(1, np.int64), none, no, np.zeros(1, np.int64), np.zeros(1, np.int64), none, none, 1, no,
    ...          np.empty(1, np.int64), none)
    0
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
