"""The walk under versions of cells: every cell is compared by the order of the event that set it.

Invariant: a cell holds what the greatest order above the latest delete gave it, the row lives while an event above that
delete was seen; so the outcome does not depend on the order of arrival, but for ties that the rule leaves to it. A
late delete clears the older cells of a row that lives on, a late event fills the older cells of one that has moved on;
and who wins a tie under GREATEST is known by the cells' values only, which are compared here as words. What is kept of
a key: the order of its row, that of its latest delete, that of each cell, side by side.

>>> few, ints = lambda *values: np.array(values, np.int32), lambda *values: np.array(values, np.int64)
>>> taken = Taken(np.empty((3, 2), np.uint8), np.empty(2, np.uint8), np.empty((1, 4), np.int64), np.empty(1, np.uint8),
...               ints(0))
>>> gives, none, short = np.array([[1, 1], [0, 1]], np.uint8), np.empty((2, 0), np.int64), np.empty((2, 0), np.uint8)
>>> walk_cells(Walked(few(0, 1), few(0, 2), few(0, 1)), np.array([[5], [3]]), np.zeros(2, np.uint8),
...            np.zeros(1, np.uint8), np.empty((1, 4), np.int64), gives, ints(0, 0), np.array([[0, 0, 1, 1]]),
...            Rule(LAST, True, True, False, False, False), 1, Values(none, short, none, short),
...            np.empty((4, 6), np.int64), taken)
-1
>>> taken.action.tolist(), taken.running[0].tolist()[2:]  # the older event fills the second cell
([[1, 0], [1, 0], [0, 1]], [5, 3])
"""

from typing import NamedTuple

import numpy as np

from ddflow.kernels.arrays import Flags, Ints
from ddflow.kernels.compile import kernel
from ddflow.kernels.resolve import ERROR, FIRST, GREATEST, LAST, STALE, SUPERSEDED, TIE_LOST
from ddflow.kernels.walk import (
    CLEAR,
    NONE,
    OLDER,
    REFUSED,
    ROW,
    SKIP,
    TAKE,
    TIED,
    Rule,
    Taken,
    Walked,
    _against,
    _inherit,
)

__all__ = ["LAST", "Rule", "Taken", "Values", "Walked", "walk_cells"]

UNSET = -(2**63)
LATEST, EARLIEST, EVERY = 0, 1, 2
"""Which event gives a cell its value: that of the greatest order, of the least one, or all of them do."""


class Values(NamedTuple):
    """The cells' values as words, under GREATEST; else of no columns."""

    word: Ints
    """int64[cells, n], by row."""
    there: Flags
    """uint8[cells, n]: whether it is not null."""
    held: Ints
    """int64[cells, g]: what keys hold."""
    had: Flags
    """uint8[cells, g]."""


@kernel
def _is_unset(words: Ints, at: int, begin: int, end: int) -> bool:
    """Whether an order was never set."""
    left = begin
    while left < end and words[at, left] == UNSET:
        left += 1
    return left == end


@kernel
def _compare_part(scratch: Ints, at: int, part: int, wide: int, base: int, tie: int) -> int:
    """Compare the event in row 2 of scratch with a part of the orders in row ``at``; TAKE if the part is unset."""
    begin = part * wide
    if _is_unset(scratch, at, begin, begin + wide):
        return TAKE
    for w in range(base):
        if scratch[2, w] != scratch[at, begin + w]:
            return TAKE if scratch[2, w] > scratch[at, begin + w] else OLDER
    for w in range(wide):
        scratch[3, w] = scratch[at, begin + w]
    return _against(scratch, 2, scratch, 3, 0, base, wide, tie)


@kernel
def _set_part_order(scratch: Ints, part: int, wide: int) -> None:
    """Set the order of a part to the event's."""
    for w in range(wide):
        scratch[0, part * wide + w] = scratch[2, w]


@kernel
def _greater(values: Values, cell: int, row: int, current: int, key: int) -> bool:
    """Whether the event's value is greater than that of the cell: set by row ``current``, held (-1), or none (-2)."""
    if values.there[cell, row] == 0:
        return False
    if current == -2 or (current == -1 and values.had[cell, key] == 0):
        return True
    if current == -1:
        return bool(values.word[cell, row] > values.held[cell, key])
    return bool(values.there[cell, current] == 0 or values.word[cell, row] > values.word[cell, current])


@kernel
def _earlier(scratch: Ints, at: int, part: int, wide: int, base: int, tie: int) -> int:
    """As `compared`, where the least order wins: TAKE for an event before the part's, OLDER for one after it."""
    begin = part * wide
    if _is_unset(scratch, at, begin, begin + wide):
        return TAKE
    for w in range(wide):
        if w == base and tie == ERROR:
            return REFUSED
        if scratch[2, w] != scratch[at, begin + w]:
            # Among ties FIRST keeps the complement of the sequence.
            before = scratch[2, w] < scratch[at, begin + w]
            return TAKE if before != (w >= base and tie == FIRST) else OLDER
    if tie == ERROR:
        return REFUSED
    return TAKE if tie == GREATEST else TIED


@kernel
def _fill(
    deletes: bool,
    row: int,
    place: int,
    gives: Flags,
    kinds: Ints,
    base: int,
    tie: int,
    known: bool,
    wide: int,
    values: Values,
    setter: Ints,
    key: int,
    scratch: Ints,
    action: Flags,
) -> tuple[bool, bool, bool, bool]:
    """Let an event fill, or clear, the cells that its order gives it.

    The arrays are those of `walk_cells`.  Returns whether it did for one; whether one went to another event of the
    step; whether one lost a tie; whether one is refused under ERROR.
    """
    filled = passed = lost = refused = False
    for c in range(gives.shape[0]):
        if not deletes and gives[c, row] == 0:
            continue
        part, kind, cell = 2 + c, kinds[c], TAKE
        if kind == EARLIEST:
            cell = _earlier(scratch, 0, part, wide, base, tie)
        elif kind == LATEST or deletes:
            cell = _compare_part(scratch, 0, part, wide, base, tie)
        refused = refused or cell == REFUSED
        if (
            tie == GREATEST
            and kind != EVERY
            and cell == TAKE
            and _same_base(scratch, part, wide, base, True)
            and (deletes or not _greater(values, c, row, setter[c], key))
        ):
            cell = TIED
        if cell == TAKE:
            _set_part_order(scratch, part, wide)
            if deletes and kind != LATEST:  # what is cleared has no first event, and no sum, any more
                for w in range(part * wide, part * wide + wide):
                    scratch[0, w] = UNSET
            filled = True
            action[1 + c, place] = CLEAR if deletes else TAKE
            setter[c] = -2 if deletes else row
        elif cell == OLDER and not deletes:
            if kind == EARLIEST:
                before = known and _earlier(scratch, 1, part, wide, base, tie) == OLDER
            else:
                before = known and _compare_part(scratch, 1, part, wide, base, tie) == OLDER
            passed = passed or not before
        lost = lost or cell == TIED
    return filled, passed, lost, refused


@kernel
def _begin(scratch: Ints, prior: Ints, key: int, known: bool, alive: bool, words: int) -> None:
    """Copy a key's orders to row 0 of scratch, and mark its cells in row 1: -1 if the row lives, else -2."""
    for w in range(words):
        scratch[0, w] = prior[key, w] if known else UNSET
    for c in range(words, scratch.shape[1]):
        scratch[1, c] = -1 if alive else -2


@kernel
def _copy(scratch: Ints, target: Ints, at: int, words: int) -> None:
    """Row 0 of scratch into a row of another."""
    for w in range(words):
        target[at, w] = scratch[0, w]


@kernel
def _to_row(scratch: Ints, deletes: bool, alive: bool, wide: int, base: int, tie: int) -> int:
    """Compare the event with the order of the live row: a delete loses a tie under GREATEST."""
    code = _compare_part(scratch, 0, 0, wide, base, tie) if alive else TAKE
    if code == TAKE and deletes and tie == GREATEST and _same_base(scratch, 0, wide, base, alive):
        return TIED
    return code


@kernel
def walk_cells(
    steps: Walked,
    order: Ints,
    gone: Flags,
    status: Flags,
    prior: Ints,
    gives: Flags,
    kinds: Ints,
    fields: Ints,
    rule: Rule,
    base: int,
    values: Values,
    scratch: Ints,
    out: Taken,
) -> int:
    """Walk all keys.

    steps, gone, status, fields, rule, out: as `walk_groups` takes them.  order: int64[n, v], by row, of which
    ``base`` words decide before ties.  prior: int64[g, (2 + cells) * v].  gives: uint8[cells, n]: whether an event
    gives a cell a value; kinds: int64[cells], LATEST, EARLIEST or EVERY.  scratch: int64[4, (2 + cells) * v + cells].
    Returns a row that is refused under ERROR, or -1.  O(n * cells).
    """
    permutation, key_times, keys = steps
    tie, _, _, _, over, inherits = rule
    action, why, running, live, last = out
    cells, wide = gives.shape[0], order.shape[1]
    words = (2 + cells) * wide
    # Behind row 1 of scratch stands which row set each cell: -1 for what was held, -2 for none.
    setter = scratch[1, words:]
    action[:] = SKIP
    for key in range(keys.size - 1):
        known, alive = not over and status[key] != NONE, not over and status[key] == ROW
        _begin(scratch, prior, key, known, alive, words)
        for key_time in range(keys[key], keys[key + 1]):
            known, lived, best = known or key_time > keys[key], alive, -1
            _copy(scratch, scratch, 1, words)
            for place in range(key_times[key_time], key_times[key_time + 1]):
                row = permutation[place]
                deletes = gone[row] != 0
                _inherit(order, row, fields, scratch, 0 if inherits and alive else -1, scratch, 2)
                code = _compare_part(scratch, 0, 1, wide, base, tie)
                if code == REFUSED:
                    return int(row)
                late = code == OLDER and not (known and _compare_part(scratch, 1, 1, wide, base, tie) == OLDER)
                tied, acted = code == TIED, False
                if code == TAKE:
                    to_row = _to_row(scratch, deletes, alive, wide, base, tie)
                    if to_row == REFUSED:
                        return int(row)
                    was = known and lived and _compare_part(scratch, 1, 0, wide, base, tie) == OLDER
                    if deletes:
                        _set_part_order(scratch, 1, wide)
                        acted, action[0, place] = True, TAKE
                        if to_row == TAKE:
                            alive, action[0, place] = False, CLEAR
                    elif to_row == TAKE:
                        _set_part_order(scratch, 0, wide)
                        alive, acted, action[0, place] = True, True, TAKE
                    filled, passed, lost, refused = _fill(
                        deletes, row, place, gives, kinds, base, tie, known, wide, values, setter, key, scratch, action
                    )
                    if refused:
                        return int(row)
                    acted, tied = acted or filled, lost or to_row == TIED
                    late = passed or (to_row == OLDER and not was)
                why[row] = SUPERSEDED if acted or late else TIE_LOST if tied else STALE
                best = row if acted else best
            _copy(scratch, running, key_time, words)
            live[key_time], last[key_time] = np.uint8(alive), best
    return -1


@kernel
def _same_base(scratch: Ints, part: int, wide: int, base: int, there: bool) -> bool:
    """Whether the event in row 2 ties with a part of the running orders that was set."""
    begin = part * wide
    if not there or _is_unset(scratch, 0, begin, begin + wide):
        return False
    w = 0
    while w < base and scratch[2, w] == scratch[0, begin + w]:
        w += 1
    return w == base
