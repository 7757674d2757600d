"""The walk of cells in its plain case: an order of one column that is never null, the last to arrive wins a tie.

Invariant: it writes what `walk_cells` would (tests/kernels/test_kernels_walk_cells.py holds them together), and exists
for one reason: with a single column nothing is compared in a loop, copied aside or returned as a tuple, which is three
quarters of what the general walk costs. It is the case of nearly every feed, an integer or a timestamp, and of the
figures that are told. Other ties, longer orders, and cells of which every event counts, are not for it.

>>> few, ints = lambda *values: np.array(values, np.int32), lambda *values: np.array(values, np.int64)
>>> taken = Taken(np.empty((3, 2), np.uint8), np.empty(2, np.uint8), np.empty((1, 4), np.int64), np.empty(1, np.uint8),
...               ints(0))
>>> walk_cells_plain(Walked(few(0, 1), few(0, 2), few(0, 1)), np.array([[5], [3]]), np.zeros(2, np.uint8),
...                  np.zeros(1, np.uint8), np.empty((1, 4), np.int64), np.array([[1, 1], [0, 1]], np.uint8), False,
...                  taken)
>>> taken.action.tolist(), taken.running[0].tolist()[2:]  # the older event fills the second cell
([[1, 0], [1, 0], [0, 1]], [5, 3])
"""

import numpy as np

from ddflow.kernels.arrays import Flags, Ints
from ddflow.kernels.compile import kernel
from ddflow.kernels.resolve import STALE, SUPERSEDED
from ddflow.kernels.walk import CLEAR, NONE, ROW, SKIP, TAKE, Taken, Walked

__all__ = ["Taken", "Walked", "walk_cells_plain"]

LEAST = -(2**63)
"""The word of an order that was never set."""


@kernel
def _set_part_order(running: Ints, key_time: int, part: int, wide: int, word: int) -> None:
    """Set the order of a part to an event's: the flag for not null, if there is a word for it, and the word."""
    running[key_time, part * wide] = 1
    running[key_time, part * wide + wide - 1] = word


@kernel
def walk_cells_plain(
    steps: Walked, order: Ints, gone: Flags, status: Flags, prior: Ints, gives: Flags, over: bool, out: Taken
) -> None:
    """Walk all keys under versions of cells, where the latest event gives each cell its value.

    As `walk_cells` takes them, with order: int64[n, v], v 1, or 2 of which the first is 1: not null.  prior: int64[g,
    (2 + cells) * v], of which the last word of each order decides.  O(n * cells), some 10 ns an event and cell.
    """
    permutation, key_times, keys = steps
    action, why, running, live, last = out
    cells, wide = gives.shape[0], order.shape[1]
    at, began = wide - 1, np.empty((2 + cells) * wide, np.int64)
    for key in range(keys.size - 1):
        known = not over and status[key] != NONE
        alive = not over and status[key] == ROW
        first = keys[key]
        for w in range((2 + cells) * wide):
            running[first, w] = prior[key, w] if known else np.int64(LEAST)
        for key_time in range(first, keys[key + 1]):
            for w in range((2 + cells) * wide):
                if key_time > first:
                    running[key_time, w] = running[key_time - 1, w]
                began[w] = running[key_time, w]
            known, lived, best = known or key_time > first, alive, np.int64(-1)
            for place in range(key_times[key_time], key_times[key_time + 1]):
                row = permutation[place]
                word, dead = order[row, at], gone[row] != 0
                action[0, place] = SKIP
                if word < running[key_time, wide + at]:
                    for c in range(cells):
                        action[1 + c, place] = SKIP
                    why[row] = STALE if known and word < began[wide + at] else SUPERSEDED
                    continue
                newer = not alive or word >= running[key_time, at]
                acted = dead or newer
                late = not newer and not (known and lived and word < began[at])
                if dead:
                    _set_part_order(running, key_time, 1, wide, word)
                    action[0, place] = CLEAR if newer else TAKE
                    alive = alive and not newer
                elif newer:
                    _set_part_order(running, key_time, 0, wide, word)
                    alive, action[0, place] = True, TAKE
                for c in range(cells):
                    action[1 + c, place] = SKIP
                    if not dead and gives[c, row] == 0:
                        continue
                    if word >= running[key_time, (2 + c) * wide + at]:
                        _set_part_order(running, key_time, 2 + c, wide, word)
                        action[1 + c, place], acted = CLEAR if dead else TAKE, True
                    elif not dead:
                        late = late or not (known and word < began[(2 + c) * wide + at])
                why[row] = SUPERSEDED if acted or late else STALE
                if acted:
                    best = np.int64(row)
            live[key_time], last[key_time] = np.uint8(alive), best
