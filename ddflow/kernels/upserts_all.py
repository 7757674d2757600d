"""Diffs back to upserts, all rows of a key: the lists that keys hold after each time.

Invariant: as in ``upserts``, whose candidates these are; a list is ascending in them, and is written as far as there is
room, so that a caller who learns how much room it takes calls again.

>>> few, ints = lambda *values: np.array(values, np.int32), lambda *values: np.array(values, np.int64)
>>> listed = ints(9)
>>> list_all(few(0), few(0, 1), few(0), ints(1), few(0), ints(0, 1), ints(0), ints(0), few(0), few(0), ints(0), ints(0),
...          listed, ints(0))
(1, 1, 0, 0, 0)
"""

import numpy as np

from ddflow.kernels.arrays import Ints, Narrow
from ddflow.kernels.compile import kernel
from ddflow.kernels.upserts import _apply

__all__ = ["list_all", "np"]


@kernel
def _sort(values: Narrow, n: int) -> None:
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
def _merge(values: Narrow, n: int, others: Narrow, m: int) -> None:
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
def list_all(
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

    As `settle`, but for: live: int32[m], scratch.  out_size: int64[n], written: how many candidates each list has, 0
    where the key is gone.  listed, counted: int64[room], written as far as there is room: the candidates of the lists,
    ascending, and their counts.  Returns how many lists, how much room they need, and the refusal as `settle` does.
    O(n + m, and for each list its length and the logarithm of that).

    >>> few, ints = lambda *values: np.array(values, np.int32), lambda *values: np.array(values, np.int64)
    >>> listed = ints(9, 9)
    >>> list_all(few(0), few(0, 1), few(0), ints(2), few(1), ints(0, 2), ints(1, 0), ints(0, 0), few(0, 0), few(0),
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
            came, left, changed, refused, place = _apply(permutation, begin, end, diffs, candidate, net, count, entered)
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
                _sort(entered, came)
                _merge(live, size, entered, came)
                size += came
            if changed:
                for i in range(size if needed + size <= listed.size else 0):
                    listed[needed + i], counted[needed + i] = live[i], count[live[i]]
                out_row[written], out_size[written] = permutation[begin], size
                written += 1
                needed += size
            begin = end
    return written, needed, why, where, worst
