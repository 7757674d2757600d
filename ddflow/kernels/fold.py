"""Choosing cells: fold the events of each key over the cell that it holds, where the result is one of those cells.

Invariant: a key's cell after each of its times is named by a reference, an event's row or what was held, and what it
names was neither skipped nor cleared since. Most strategies differ only in when a given cell takes the place of the one
that is there, so one loop does for all of them and for every type, and sees flags and order words, never payload; and
whether a cell is *there* is another question than whether it is null. Which events are folded, and in which order, the
walk has decided before.

>>> import numpy as np
>>> few, ints, flags = (lambda *v, t=t: np.array(v, t) for t in (np.int32, np.int64, np.uint8))
>>> walked = Walked(few(1, 0, 2), few(0, 2, 3), few(0, 2))  # one key: rows 1 and 0 at one time, then row 2
>>> out = ints(0, 0)
>>> choose(walked, flags(TAKE, TAKE, SKIP), flags(), ints(5, 7, 9), ints(-1), flags(0), ints(0), GREATEST, out)
>>> out.tolist()
[1, 1]
"""

from typing import NamedTuple

import numpy as np

from ddflow.kernels.arrays import Flags, Ints, Narrow
from ddflow.kernels.compile import kernel
from ddflow.kernels.pointer import prefetch

SKIP, TAKE, CLEAR, BLANK = 0, 1, 2, 3
"""What an event does to a cell: nothing; it is folded; it brings the cell back to nothing, as in a new row; or the cell
becomes null in a row that is there, which only `FIRST` tells from `CLEAR`: null is the first then, and stays."""
LAST, FIRST, GREATEST, LEAST = 0, 1, 2, 3
AHEAD = 16
"""How many places ahead the words of events are asked for: rows lie as they came, each wait would cost more than all
else."""
NOTHING = -1
"""Instead of a reference: no cell."""


class Walked(NamedTuple):
    """Which events are folded, key by key, in the order of the fold."""

    permutation: Narrow
    """int32[p]: the event's row at each place, keys one after the other."""
    key_times: Narrow
    """int32[m + 1]: the place where each (key, time) begins; those of a key ascend in time."""
    keys: Narrow
    """int32[g + 1]: the first (key, time) of each key."""


@kernel
def choose(
    walked: Walked,
    action: Flags,
    counts: Flags,
    words: Ints,
    references: Ints,
    had: Flags,
    held: Ints,
    rule: int,
    out: Ints,
) -> None:
    """Say which cell each key shows after each of its times.

    walked: see the fields.  action: uint8[p], by place.  counts: uint8[n], by row, whether its cell takes part; of size
    0: all do.  words: int64[n], by row, the order of the cells; held: int64[g], of the held ones; both of size 0 but
    for GREATEST and LEAST.  references: int64[g], the held cell or NOTHING; had: uint8[g], whether it is there (LAST
    does not look).  rule: LAST, FIRST, GREATEST or LEAST.  Written: out int64[m], a row, the held reference or NOTHING.
    O(p + m), some 5 ns an event, 12 where words are compared.

    >>> few, ints, flags = (lambda *v, t=t: np.array(v, t) for t in (np.int32, np.int64, np.uint8))
    >>> out, none = ints(0, 0), ints()
    >>> walked, action = Walked(few(0, 1), few(0, 1, 2), few(0, 1, 2)), flags(TAKE, CLEAR)
    >>> choose(walked, action, flags(0, 1), none, ints(1 << 40, 2 << 40), flags(1, 1), none, LAST, out), out.tolist()
    (None, [1099511627776, -1])
    """
    permutation, key_times, keys = walked
    every, compared, sign = counts.size == 0, rule >= GREATEST, 1 if rule == GREATEST else -1
    at_words, last = np.uint64(words.ctypes.data), permutation.size - 1
    for group in range(keys.size - 1):
        current, there = references[group], rule == LAST or had[group] != 0
        best = np.int64(0)
        if not there:
            current = NOTHING
        elif compared:
            best = held[group]
        for key_time in range(keys[group], keys[group + 1]):
            for place in range(key_times[key_time], key_times[key_time + 1]):
                what = action[place]
                if compared:
                    prefetch(at_words + (np.uint64(permutation[min(place + AHEAD, last)]) << np.uint64(3)))
                if what == TAKE:
                    row = permutation[place]
                    if every or counts[row] != 0:
                        if compared:
                            word = words[row]
                            if not there or (word > best if sign > 0 else word < best):
                                current, best = row, word
                        elif rule == LAST or not there:
                            current = row
                        there = True
                elif what >= CLEAR:
                    current, there = NOTHING, what == BLANK and rule == FIRST
            out[key_time] = current
