"""Walk the events of each key, for rows whose cells have versions.

An event is compared with each cell by the order of the event that set the cell. A key stores the order of its row, of
its latest delete, and of each cell. A cell has the value of the event with the greatest order after the latest delete.
The row is live if the key had an event after its latest delete. `walk_latest_cells` has the same results if the order
is one column without nulls and the last event to arrive wins ties.

Guarantees: the result does not depend on the order of arrival, except for ties that the rule decides by arrival.
"""

from typing import NamedTuple

import numpy as np

from ddflow.kernels.arrays import Flags, Flags2d, Ints, Ints2d
from ddflow.kernels.compile import kernel
from ddflow.kernels.fold import CLEAR, SKIP, TAKE, EventsByKey
from ddflow.kernels.resolve import ERROR, FIRST, GREATEST, STALE, SUPERSEDED, TIE_LOST
from ddflow.kernels.walk import NONE, OLDER, REFUSED, ROW, TIED, WalkOutcome, WalkRules, _compare_orders, _inherit_order

UNSET = -(2**63)
"""The word of an order that was never set."""
LATEST, EARLIEST, EVERY = 0, 1, 2
"""The events that give a cell its value: the event with the greatest order, with the least order, or every event.
"""


class CellValues(NamedTuple):
    """The values of cells as words. The array has no columns unless the tie rule is GREATEST.

    >>> few, ints = lambda *values: np.array(values, np.int32), lambda *values: np.array(values, np.int64)
    >>> taken = WalkOutcome(np.empty((3, 2), np.uint8), np.empty(2, np.uint8), np.empty((1, 4), np.int64),
    ...               np.empty(1, np.uint8), ints(0))
    >>> gives, none = np.array([[1, 1], [0, 1]], np.uint8), np.empty((2, 0), np.int64)
    >>> short = np.empty((2, 0), np.uint8)
    >>> walk_cells(EventsByKey(few(0, 1), few(0, 2), few(0, 1)), np.array([[5], [3]]), np.zeros(2, np.uint8),
    ...            np.zeros(1, np.uint8), np.empty((1, 4), np.int64), gives, ints(0, 0), np.array([[0, 0, 1, 1]]),
    ...            WalkRules(0, True, True, False, False, False), 1, CellValues(none, short, none, short),
    ...            np.empty((4, 6), np.int64), taken)
    -1
    >>> taken.action.tolist(), taken.running[0].tolist()[2:]  # the older event fills the second cell
    ([[1, 0], [1, 0], [0, 1]], [5, 3])
    """

    word: Ints2d
    """int64[cells, n], by row."""
    there: Flags2d
    """uint8[cells, n]: 1 if the value is not null."""
    held: Ints2d
    """int64[cells, g]: the stored values of keys."""
    had: Flags2d
    """uint8[cells, g]: 1 if the stored value is not null."""


@kernel
def _is_unset(words: Ints, at: int, begin: int, end: int) -> bool:
    """Return whether the order of a part has never been set."""
    left = begin
    while left < end and words[at, left] == UNSET:
        left += 1
    return left == end


@kernel
def _compare_part_order(scratch: Ints, at: int, part: int, wide: int, base: int, tie: int) -> int:
    """Compare the event in row 2 of scratch with the order of one part in row ``at``.

    Return TAKE if that order is unset.
    """
    begin = part * wide
    if _is_unset(scratch, at, begin, begin + wide):
        return TAKE
    for w in range(base):
        if scratch[2, w] != scratch[at, begin + w]:
            return TAKE if scratch[2, w] > scratch[at, begin + w] else OLDER
    for w in range(wide):
        scratch[3, w] = scratch[at, begin + w]
    return _compare_orders(scratch, 2, scratch, 3, 0, base, wide, tie)


@kernel
def _set_part_order(scratch: Ints, part: int, wide: int) -> None:
    """Set the order of a part to the event's order."""
    for w in range(wide):
        scratch[0, part * wide + w] = scratch[2, w]


@kernel
def _is_greater_value(values: CellValues, cell: int, row: int, current: int, key: int) -> bool:
    """Return whether the event's value is greater than the value of the cell.

    ``current``: the row that set the cell, -1 for the stored value, or -2 for no value.
    """
    if values.there[cell, row] == 0:
        return False
    if current == -2 or (current == -1 and values.had[cell, key] == 0):
        return True
    if current == -1:
        return bool(values.word[cell, row] > values.held[cell, key])
    return bool(values.there[cell, current] == 0 or values.word[cell, row] > values.word[cell, current])


@kernel
def _compare_earliest_order(scratch: Ints, at: int, part: int, wide: int, base: int, tie: int) -> int:
    """Compare like `_compare_part_order`, but let the least order win.

    Return TAKE if the event is before the event that set the part, and OLDER if it is after the event that set the
    part.
    """
    begin = part * wide
    if _is_unset(scratch, at, begin, begin + wide):
        return TAKE
    for w in range(wide):
        if w == base and tie == ERROR:
            return REFUSED
        if scratch[2, w] != scratch[at, begin + w]:
            # For ties, FIRST stores the complement of the sequence.
            before = scratch[2, w] < scratch[at, begin + w]
            return TAKE if before != (w >= base and tie == FIRST) else OLDER
    if tie == ERROR:
        return REFUSED
    return TAKE if tie == GREATEST else TIED


@kernel
def _apply_to_cells(
    deletes: bool,
    row: int,
    place: int,
    gives: Flags,
    kinds: Ints,
    base: int,
    tie: int,
    known: bool,
    wide: int,
    values: CellValues,
    setter: Ints,
    key: int,
    scratch: Ints,
    action: Flags,
) -> tuple[bool, bool, bool, bool]:
    """Fill or clear the cells that the event's order allows it to change.

    The arrays are those of `walk_cells`. Return four flags: whether the event changed a cell; whether another event of
    the step has set a cell that this event has a value for; whether the event lost a tie; and whether a tie of the
    event is an error under ERROR.
    """
    filled = passed = lost = refused = False
    for c in range(gives.shape[0]):
        if not deletes and gives[c, row] == 0:
            continue
        part, kind, cell = 2 + c, kinds[c], TAKE
        if kind == EARLIEST:
            cell = _compare_earliest_order(scratch, 0, part, wide, base, tie)
        elif kind == LATEST or deletes:
            cell = _compare_part_order(scratch, 0, part, wide, base, tie)
        refused = refused or cell == REFUSED
        if (
            tie == GREATEST
            and kind != EVERY
            and cell == TAKE
            and _is_base_tie(scratch, part, wide, base, True)
            and (deletes or not _is_greater_value(values, c, row, setter[c], key))
        ):
            cell = TIED
        if cell == TAKE:
            _set_part_order(scratch, part, wide)
            if deletes and kind != LATEST:  # a cleared cell has no first event and no sum
                for w in range(part * wide, part * wide + wide):
                    scratch[0, w] = UNSET
            filled = True
            action[1 + c, place] = CLEAR if deletes else TAKE
            setter[c] = -2 if deletes else row
        elif cell == OLDER and not deletes:
            if kind == EARLIEST:
                before = known and _compare_earliest_order(scratch, 1, part, wide, base, tie) == OLDER
            else:
                before = known and _compare_part_order(scratch, 1, part, wide, base, tie) == OLDER
            passed = passed or not before
        lost = lost or cell == TIED
    return filled, passed, lost, refused


@kernel
def _load_key_orders(scratch: Ints, prior: Ints, key: int, known: bool, alive: bool, words: int) -> None:
    """Copy the orders of a key to row 0 of scratch.

    Mark the key's cells in row 1: with -1 if the key has a row, and otherwise with -2.
    """
    for w in range(words):
        scratch[0, w] = prior[key, w] if known else UNSET
    for c in range(words, scratch.shape[1]):
        scratch[1, c] = -1 if alive else -2


@kernel
def _copy_orders(scratch: Ints, target: Ints, at: int, words: int) -> None:
    """Copy row 0 of scratch to a row of a different array."""
    for w in range(words):
        target[at, w] = scratch[0, w]


@kernel
def _compare_row_order(scratch: Ints, deletes: bool, alive: bool, wide: int, base: int, tie: int) -> int:
    """Compare the event with the order of the live row. Under GREATEST, a delete loses a tie."""
    code = _compare_part_order(scratch, 0, 0, wide, base, tie) if alive else TAKE
    if code == TAKE and deletes and tie == GREATEST and _is_base_tie(scratch, 0, wide, base, alive):
        return TIED
    return code


@kernel
def walk_cells(
    steps: EventsByKey,
    order: Ints2d,  # int64[n, v]: the order words of each row
    gone: Flags,
    status: Flags,
    prior: Ints2d,  # int64[g, (2 + cells) * v]: the stored order words of each key
    gives: Flags2d,  # uint8[cells, n]: 1 for each cell and row whose event gives the cell a value
    kinds: Ints,  # int64[cells]: LATEST, EARLIEST or EVERY for each cell
    fields: Ints2d,
    rule: WalkRules,
    base: int,  # the kernel compares this number of words before it applies tie rules
    values: CellValues,
    scratch: Ints2d,  # int64[4, (2 + cells) * v + cells]: scratch memory
    out: WalkOutcome,
) -> int:
    """Walk the events of all keys, for rows whose cells have versions.

    The signature describes the arguments that `apply_events_by_key` does not have. Returns a row whose tie is an error
    under ERROR, or -1. O(n * cells).
    """
    permutation, key_times, keys = steps
    tie, _, _, _, over, inherits = rule
    action, why, running, live, last = out
    cells, wide = gives.shape[0], order.shape[1]
    words = (2 + cells) * wide
    # The rest of row 1 has, for each cell, the row that set it, -1 for the stored value, or -2 if there is no value.
    setter = scratch[1, words:]
    action[:] = SKIP
    for key in range(keys.size - 1):
        known, alive = not over and status[key] != NONE, not over and status[key] == ROW
        _load_key_orders(scratch, prior, key, known, alive, words)
        for key_time in range(keys[key], keys[key + 1]):
            known, lived, best = known or key_time > keys[key], alive, -1
            _copy_orders(scratch, scratch, 1, words)
            for place in range(key_times[key_time], key_times[key_time + 1]):
                row = permutation[place]
                deletes = gone[row] != 0
                _inherit_order(order, row, fields, scratch, 0 if inherits and alive else -1, scratch, 2)
                code = _compare_part_order(scratch, 0, 1, wide, base, tie)
                if code == REFUSED:
                    return int(row)
                late = code == OLDER and not (known and _compare_part_order(scratch, 1, 1, wide, base, tie) == OLDER)
                tied, acted = code == TIED, False
                if code == TAKE:
                    to_row = _compare_row_order(scratch, deletes, alive, wide, base, tie)
                    if to_row == REFUSED:
                        return int(row)
                    was = known and lived and _compare_part_order(scratch, 1, 0, wide, base, tie) == OLDER
                    if deletes:
                        _set_part_order(scratch, 1, wide)
                        acted, action[0, place] = True, TAKE
                        if to_row == TAKE:
                            alive, action[0, place] = False, CLEAR
                    elif to_row == TAKE:
                        _set_part_order(scratch, 0, wide)
                        alive, acted, action[0, place] = True, True, TAKE
                    filled, passed, lost, refused = _apply_to_cells(
                        deletes, row, place, gives, kinds, base, tie, known, wide, values, setter, key, scratch, action
                    )
                    if refused:
                        return int(row)
                    acted, tied = acted or filled, lost or to_row == TIED
                    late = passed or (to_row == OLDER and not was)
                why[row] = SUPERSEDED if acted or late else TIE_LOST if tied else STALE
                best = row if acted else best
            _copy_orders(scratch, running, key_time, words)
            live[key_time], last[key_time] = np.uint8(alive), best
    return -1


@kernel
def _is_base_tie(scratch: Ints, part: int, wide: int, base: int, there: bool) -> bool:
    """Return whether the event in row 2 ties with a part whose current order is set."""
    begin = part * wide
    if not there or _is_unset(scratch, 0, begin, begin + wide):
        return False
    w = 0
    while w < base and scratch[2, w] == scratch[0, begin + w]:
        w += 1
    return w == base


@kernel
def _write_part_order(running: Ints, key_time: int, part: int, wide: int, word: int) -> None:
    """Set the order of a part to an event's word, and set the flag for "not null" if the order has this flag."""
    running[key_time, part * wide] = 1
    running[key_time, part * wide + wide - 1] = word


@kernel
def walk_latest_cells(
    steps: EventsByKey,
    order: Ints2d,  # int64[n, v]: v is 1, or 2 if the first word is a flag that is 1 for not null
    gone: Flags,
    status: Flags,
    prior: Ints2d,  # int64[g, (2 + cells) * v]: the stored order words of each key; the last word of each order decides
    gives: Flags2d,
    over: bool,
    out: WalkOutcome,
) -> None:
    """Walk the events of all keys, for rows with cell versions, if the latest event gives each cell its value.

    O(n * cells). The arguments are those of `walk_cells`, but an order has one or two words, as the signature says.

    >>> few, ints = lambda *values: np.array(values, np.int32), lambda *values: np.array(values, np.int64)
    >>> byte, wide = lambda *shape: np.zeros(shape, np.uint8), np.empty((1, 4), np.int64)
    >>> taken, gives = WalkOutcome(byte(3, 2), byte(2), wide, byte(1), ints(0)), np.array([[1, 1], [0, 1]], np.uint8)
    >>> steps = EventsByKey(few(0, 1), few(0, 2), few(0, 1))
    >>> walk_latest_cells(steps, np.array([[5], [3]]), byte(2), byte(1), wide, gives, False, taken)
    >>> taken.action.tolist(), taken.running[0].tolist()[2:]  # the older event fills the second cell
    ([[1, 0], [1, 0], [0, 1]], [5, 3])
    """
    permutation, key_times, keys = steps
    action, why, running, live, last = out
    cells, wide = gives.shape[0], order.shape[1]
    at, began = wide - 1, np.empty((2 + cells) * wide, np.int64)
    for key in range(keys.size - 1):
        known, alive = not over and status[key] != NONE, not over and status[key] == ROW
        first = keys[key]
        for w in range((2 + cells) * wide):
            running[first, w] = prior[key, w] if known else np.int64(UNSET)
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
                    _write_part_order(running, key_time, 1, wide, word)
                    action[0, place] = CLEAR if newer else TAKE
                    alive = alive and not newer
                elif newer:
                    _write_part_order(running, key_time, 0, wide, word)
                    alive, action[0, place] = True, TAKE
                for c in range(cells):
                    action[1 + c, place] = SKIP
                    if not dead and gives[c, row] == 0:
                        continue
                    if word >= running[key_time, (2 + c) * wide + at]:
                        _write_part_order(running, key_time, 2 + c, wide, word)
                        action[1 + c, place], acted = CLEAR if dead else TAKE, True
                    elif not dead:
                        late = late or not (known and word < began[(2 + c) * wide + at])
                why[row] = SUPERSEDED if acted or late else STALE
                if acted:
                    best = np.int64(row)
            live[key_time], last[key_time] = np.uint8(alive), best
