"""The walk where a row has one order and no groups: what `walk_groups` says of it, at a fraction of its cost.

Invariant: it writes what `walk_groups` would, for every event; a test compares the two. It has no room of its own for
codes and words but two rows, and an event that is alone with its key, as most are in large steps, must cost little more
than it takes to find it. Groups, their deletes and versions of cells are not for it.

>>> from ddflow.kernels.walk import LAST, Rule, Walked, Taken
>>> few, ints = lambda *values: np.array(values, np.int32), lambda *values: np.array(values, np.int64)
>>> taken = Taken(np.empty((1, 3), np.uint8), np.empty(3, np.uint8), np.empty((1, 1), np.int64), np.empty(1, np.uint8),
...               ints(0))
>>> steps = Walked(few(0, 1, 2), few(0, 3), few(0, 1))
>>> walk_row(steps, np.array([[5], [3], [5]]), np.zeros(3, np.uint8), np.zeros(1, np.uint8), np.empty((1, 1), np.int64),
...          1, np.array([[0, 0, 1, 1]]), Rule(LAST, True, True, False, False, False), taken)
-1
>>> taken.action.tolist(), taken.running.tolist(), taken.last.tolist()
([[1, 0, 1]], [[5]], [2])
"""

import numpy as np

from ddflow.kernels.arrays import Flags, Ints
from ddflow.kernels.compile import kernel
from ddflow.kernels.resolve import ERROR, FIRST, LAST, STALE, SUPERSEDED, TIE_LOST
from ddflow.kernels.walk import CLEAR, NONE, OLDER, REFUSED, ROW, SKIP, TAKE, TIED, Rule, Taken, Walked, _is_null


@kernel
def _set_against(event: Ints, other: Ints, base: int, tie: int) -> int:
    """TAKE, OLDER, TIED or REFUSED, as `walk.against` says, of an event's words and others; base of them decide first.

    >>> _set_against(np.array([4, 1]), np.array([4, 2]), 1, LAST) == OLDER
    True
    """
    for w in range(base):
        if event[w] != other[w]:
            return TAKE if event[w] > other[w] else OLDER
    if tie == ERROR:
        return REFUSED
    for w in range(base, event.size):
        if event[w] != other[w]:
            if event[w] > other[w]:
                return TAKE
            return OLDER if tie == LAST else TIED
    return TIED if tie == FIRST else TAKE


@kernel
def walk_row(
    steps: Walked, order: Ints, gone: Flags, status: Flags, prior: Ints, base: int, fields: Ints, rule: Rule, out: Taken
) -> int:
    """Walk all keys: as `walk_groups`, with one span of words, of which ``base`` decide before ties.  O(n), 15 ns an
    event."""
    permutation, key_times, keys = steps
    tie, keeps, _, _, over, inherits = rule
    action, why, running, live, last = out
    words = order.shape[1]
    now, began, event = np.empty(words, np.int64), np.empty(words, np.int64), np.empty(words, np.int64)
    acts = action[0]
    for key in range(keys.size - 1):
        known = keeps and not over and status[key] != NONE
        alive = not over and status[key] == ROW
        some = known
        for w in range(words):
            now[w] = prior[key, w] if known else -(2**63)
        for key_time in range(keys[key], keys[key + 1]):
            some = some and keeps
            known, best = some, -1
            for w in range(words):
                began[w] = now[w]
            for place in range(key_times[key_time], key_times[key_time + 1]):
                row = permutation[place]
                for w in range(words):
                    event[w] = order[row, w]
                if inherits and some:
                    for f in range(fields.shape[0]):
                        if _is_null(order, row, fields[f, 1], fields[f, 2], fields[f, 3]):
                            for w in range(fields[f, 1], fields[f, 2]):
                                event[w] = now[w]
                code = _set_against(event, now, base, tie) if some else TAKE
                if code == TAKE:
                    for w in range(words):
                        now[w] = event[w]
                    alive, some, best = gone[row] == 0, True, row
                    acts[place] = TAKE if alive else CLEAR
                    why[row] = SUPERSEDED
                    continue
                if code == REFUSED:
                    return int(row)
                acts[place] = SKIP
                late = code == OLDER and not (known and _set_against(event, began, base, tie) == OLDER)
                why[row] = SUPERSEDED if late else TIE_LOST if code == TIED else STALE
            for w in range(words):
                running[key_time, w] = now[w]
            live[key_time], last[key_time] = np.uint8(alive), best
    return -1
