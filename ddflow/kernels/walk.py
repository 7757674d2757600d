"""Walk the events of each key in order.

For each event, decide whether to fold the event, to ignore it, or to clear the key's cells. `apply_events_by_key`
handles orders of column groups and deletes of groups. `walk_single_group` has the same results for rows with one order
and no groups, and takes a fraction of the time.

Guarantees: each event is compared with its key's current order, in the given sequence, so the result does not depend on
how events are divided into steps. Every event gets an action for each column group, or the reason why it has no action.
The walk writes the order of the key after each time.
Limits: the walk does not read cells, which only ``fold`` reads. ``walk_cells`` handles versions of single cells.
"""

from typing import NamedTuple

import numpy as np

from ddflow.kernels.arrays import Flags, Flags2d, Ints, Ints2d
from ddflow.kernels.compile import kernel
from ddflow.kernels.fold import BLANK, CLEAR, SKIP, TAKE, EventsByKey
from ddflow.kernels.resolve import ERROR, FIRST, LAST, STALE, SUPERSEDED, TIE_LOST

OLDER, TIED, REFUSED = 2, 3, 4
"""Results of `_compare_orders` besides TAKE."""
NONE, TOMBSTONE, ROW = 0, 1, 2
"""The state of a key: nothing, a tombstone, or a row."""
OF_KEY = 2
"""A mark for a delete of the complete key, even if other deletes apply to column groups.

A delete of a complete key is generated if full contents do not have the key.
"""


class WalkRules(NamedTuple):
    """The rules of a spec that the walk needs."""

    tie: int
    """LAST, FIRST, GREATEST or ERROR."""
    keeps: bool
    """Whether a key keeps its order from one time to the next, and after a delete."""
    ordered: bool
    """Whether the row has its own order, possibly the order of arrival.

    If the row has no order, the orders of its column groups decide.
    """
    by_group: bool
    """Whether a delete applies to column groups and not to the whole row.

    A delete with the mark `OF_KEY` is an exception.
    """
    over: bool
    """Whether stored orders are ignored, as for full contents."""
    inherits: bool
    """Whether an order column of an event can be null. A null column inherits the current value."""


class WalkOutcome(NamedTuple):
    """The output arrays of `apply_events_by_key`.

    >>> few, ints = lambda *values: np.array(values, np.int32), lambda *values: np.array(values, np.int64)
    >>> rule = WalkRules(LAST, True, True, False, False, False)
    >>> taken = WalkOutcome(np.empty((1, 3), np.uint8), np.empty(3, np.uint8), np.empty((1, 1), np.int64),
    ...               np.empty(1, np.uint8), ints(0))
    >>> steps = EventsByKey(few(0, 1, 2), few(0, 3), few(0, 1))
    >>> spans, fields = np.array([[0, 1, 1]]), np.array([[0, 0, 1, 1]])
    >>> apply_events_by_key(steps, np.array([[5], [3], [5]]), np.zeros(3, np.uint8), np.zeros(1, np.uint8),
    ...             np.empty((1, 1), np.int64), spans, fields, rule, np.empty((4, 1), np.int64), taken)
    -1
    >>> taken.action.tolist(), taken.running.tolist(), taken.last.tolist()  # 5, then 3 is older, then 5 on top
    ([[1, 0, 1]], [[5]], [2])
    """

    action: Flags2d
    """uint8[groups, n], by place."""
    why: Flags
    """uint8[n], by row: the verdict of an event that acts on no group, and SUPERSEDED for an event that acts on a
    group."""
    running: Ints2d
    """int64[m, w]: the key's order words after each of its times."""
    live: Flags
    """uint8[m]: whether the key has a row after each of its times."""
    last: Ints
    """int64[m]: the last row that acted at the (key, time), or -1."""


@kernel
def _compare_orders(order: Ints, row: int, other: Ints, at: int, begin: int, base: int, end: int, tie: int) -> int:
    """Compare an event's order words [begin, end) with the current order words.

    Return TAKE, OLDER, TIED or REFUSED. Words before ``base`` are compared before tie rules apply.

    >>> _compare_orders(np.array([[4, 1]]), 0, np.array([[4, 2]]), 0, 0, 1, 2, LAST) == OLDER
    True
    """
    for w in range(begin, base):
        if order[row, w] != other[at, w]:
            return TAKE if order[row, w] > other[at, w] else OLDER
    if tie == ERROR:
        return REFUSED
    for w in range(base, end):
        if order[row, w] != other[at, w]:
            if order[row, w] > other[at, w]:
                return TAKE
            return OLDER if tie == LAST else TIED
    return TIED if tie == FIRST else TAKE


@kernel
def _inherit_order(order: Ints, row: int, fields: Ints, running: Ints, at: int, out: Ints, to: int) -> None:
    """Copy an event's order words to row ``to`` of ``out``, and fill nulls in the row's order from the current words.

    In a column of one word, a null is stored as LEAST. In a column of two words, a null has 0 in the first word.

    - fields, int64[f, 4]: for each order column, the group, the column's first word, the word after the column's last
      word, and whether the column may be null.
    - at: the row of the current words in ``running``, -1 if there are no current words.
    """
    for w in range(order.shape[1]):
        out[to, w] = order[row, w]
    if at < 0:
        return
    for f in range(fields.shape[0]):
        begin, end = fields[f, 1], fields[f, 2]
        if fields[f, 0] == 0 and _is_null(order, row, begin, end, fields[f, 3]):
            for w in range(begin, end):
                out[to, w] = running[at, w]


@kernel
def _is_null(order: Ints, row: int, begin: int, end: int, nullable: int) -> bool:
    """Return whether the words [begin, end) of one order column mean null."""
    if nullable == 0:
        return False
    return bool(order[row, begin] == (0 if end - begin == 2 else -(2**63)))


@kernel
def _has_group_order(order: Ints, row: int, fields: Ints, group: int) -> bool:
    """Return whether an event gives a group an order: at least one order column is not null."""
    for f in range(fields.shape[0]):
        if fields[f, 0] == group and not _is_null(order, row, fields[f, 1], fields[f, 2], fields[f, 3]):
            return True
    return False


@kernel
def _is_older_than_prior(scratch: Ints, spans: Ints, group: int, known: bool, tie: int) -> bool:
    """Return whether an event is older than the order that its key had at the start of the step."""
    if not known:
        return False
    return bool(
        _compare_orders(scratch, 2, scratch, 1, spans[group, 0], spans[group, 1], spans[group, 2], tie) == OLDER
    )


@kernel
def _compare_with_groups(
    place: int, spans: Ints, fields: Ints, known: bool, tie: int, scratch: Ints, action: Flags
) -> tuple[bool, bool, bool, bool]:
    """Compare the order of an event with the order that each column group has so far.

    Group 0, which stands for the row, is left out. The event is in row 2 of the scratch memory. Write the result for
    each group to row 3 of the scratch memory, or -1 if there is no result. The result for group 0 is REFUSED if a tie
    is an error.

    Return four flags: whether the event gives a group an order; whether a group takes the event; whether a group
    refuses the event because of a tie; and whether another event of the step gave a group a newer order.
    """
    given = taken = tied = late = False
    codes = scratch[3]
    codes[0] = 0
    for g in range(1, spans.shape[0]):
        codes[g] = -1
        action[g, place] = SKIP
        if _has_group_order(scratch, 2, fields, g):
            code = _compare_orders(scratch, 2, scratch, 0, spans[g, 0], spans[g, 1], spans[g, 2], tie)
            if code == REFUSED:
                codes[0] = REFUSED
            codes[g], given, taken, tied = code, True, taken or code == TAKE, tied or code == TIED
            late = late or (code == OLDER and not _is_older_than_prior(scratch, spans, g, known, tie))
    return given, taken, tied, late


@kernel
def _apply_to_groups(
    place: int, deletes: bool, by_group: bool, alive: bool, accepted: bool, spans: Ints, scratch: Ints, action: Flags
) -> bool:
    """Write the action of an event for each column group.  Return whether any group takes the event.

    The order of each group that takes the event is raised.
    """
    codes, acted = scratch[3], False
    action[0, place] = SKIP
    if (deletes and not by_group and not accepted) or (not deletes and not alive and not accepted):
        return acted
    for g in range(1, spans.shape[0]):
        if codes[g] == TAKE:
            action[g, place], acted = TAKE if not deletes else BLANK if alive else CLEAR, True
            _set_group_order(scratch, spans, g)
        elif not deletes and not alive:
            action[g, place] = BLANK  # the row begins with this event, which has no value for this group
        if deletes and not by_group:
            action[g, place] = CLEAR
    if accepted and not (deletes and by_group):
        action[0, place], acted = CLEAR if deletes else TAKE, True
        _set_group_order(scratch, spans, 0)
    return acted


@kernel
def apply_events_by_key(
    steps: EventsByKey,
    order: Ints2d,
    gone: Flags,
    status: Flags,
    prior: Ints2d,
    spans: Ints2d,
    fields: Ints2d,
    rule: WalkRules,
    scratch: Ints2d,
    out: WalkOutcome,
) -> int:
    """Walk the events of all keys. Return a row whose tie is an error under ERROR, or -1. O(n * groups).

    - steps, rule: the events and the rules, see the fields of these types.
    - fields: the order columns, see `_inherit_order`.
    - order, int64[n, w]: the order words of each row.
    - gone, uint8[n]: 1 or OF_KEY for each delete.
    - status, uint8[g]: NONE, TOMBSTONE or ROW for each key.
    - prior, int64[g, w]: the stored order words of each key. If w is 0, no order is stored.
    - spans, int64[groups, 3]: each group's first word, the begin of the group's tie words, and the end of the group.
    - scratch, int64[4, max(w, groups)]: scratch memory.
    - out: the arrays that the kernel writes.
    """
    permutation, key_times, keys = steps
    tie, keeps, ordered, by_group, over, inherits = rule
    action, why, running, live, last = out
    words = order.shape[1]
    # Rows of ``scratch``: 0 is the current order, 1 the stored order, 2 the event, and 3 the codes of groups.
    for key in range(keys.size - 1):
        known = keeps and not over and status[key] != NONE
        alive = not over and status[key] == ROW
        for w in range(words):
            scratch[0, w] = prior[key, w] if known else -(2**63)
        if not known:
            _clear_orders(scratch, spans, fields)
        for key_time in range(keys[key], keys[key + 1]):
            known = keeps and (known or key_time > keys[key])
            some = known and not (by_group and _is_row_order_unset(scratch, spans))
            for w in range(words):
                scratch[1, w] = scratch[0, w]
            best = -1
            for place in range(key_times[key_time], key_times[key_time + 1]):
                row = permutation[place]
                _inherit_order(order, row, fields, scratch, 0 if inherits and some else -1, scratch, 2)
                given, taken, tied, late = _compare_with_groups(place, spans, fields, known, tie, scratch, action)
                if tie == ERROR and scratch[3, 0] == REFUSED:
                    return int(row)
                accepted = taken or not given
                if ordered:
                    code = TAKE
                    if some:
                        code = _compare_orders(scratch, 2, scratch, 0, spans[0, 0], spans[0, 1], spans[0, 2], tie)
                    if code == REFUSED:
                        return int(row)
                    accepted, tied = code == TAKE, tied or code == TIED
                    late = late or (code == OLDER and not _is_older_than_prior(scratch, spans, 0, known, tie))
                of_group = by_group and gone[row] != OF_KEY
                acted = _apply_to_groups(place, gone[row] != 0, of_group, alive, accepted, spans, scratch, action)
                if accepted and acted and not (of_group and gone[row] != 0):
                    alive, some = gone[row] == 0, True
                why[row] = SUPERSEDED if acted or late else TIE_LOST if tied else STALE
                if acted:
                    best = row
            for w in range(words):
                running[key_time, w] = scratch[0, w]
            live[key_time], last[key_time] = np.uint8(alive), best
    return -1


@kernel
def _clear_orders(scratch: Ints, spans: Ints, fields: Ints) -> None:
    """For groups without an order, set the current and stored words of every column to null."""
    for w in range(scratch.shape[1]):
        scratch[0, w] = scratch[1, w] = -(2**63)
    for f in range(fields.shape[0]):
        begin, end = fields[f, 1], fields[f, 2]
        if fields[f, 0] != 0 and end - begin == 2:
            scratch[0, begin] = scratch[1, begin] = 0


@kernel
def _is_row_order_unset(scratch: Ints, spans: Ints) -> bool:
    """Return whether the row has never had an order."""
    w = spans[0, 0]
    while w < spans[0, 2] and scratch[0, w] == -(2**63):
        w += 1
    return bool(w == spans[0, 2])


@kernel
def _set_group_order(scratch: Ints, spans: Ints, group: int) -> None:
    """Set the current order of a group to the event's order."""
    for w in range(spans[group, 0], spans[group, 2]):
        scratch[0, w] = scratch[2, w]


@kernel
def _compare_order_words(event: Ints, other: Ints, base: int, tie: int) -> int:
    """Compare the order words of an event with other order words, like `_compare_orders`.

    Tie rules apply only if the first ``base`` words are equal.

    >>> _compare_order_words(np.array([4, 1]), np.array([4, 2]), 1, LAST) == OLDER
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
def walk_single_group(
    steps: EventsByKey,
    order: Ints2d,
    gone: Flags,
    status: Flags,
    prior: Ints2d,
    base: int,
    fields: Ints2d,
    rule: WalkRules,
    out: WalkOutcome,
) -> int:
    """Walk the events of all keys whose rows have one order.

    Tie rules apply if both orders begin with the same ``base`` words. For the rest, see `apply_events_by_key`. O(n).

    >>> few, ints = lambda *values: np.array(values, np.int32), lambda *values: np.array(values, np.int64)
    >>> taken = WalkOutcome(np.empty((1, 3), np.uint8), np.empty(3, np.uint8), np.empty((1, 1), np.int64),
    ...               np.empty(1, np.uint8), ints(0))
    >>> steps = EventsByKey(few(0, 1, 2), few(0, 3), few(0, 1))
    >>> walk_single_group(steps, np.array([[5], [3], [5]]), np.zeros(3, np.uint8), np.zeros(1, np.uint8), np.empty((1,
    ...     1),
    ...     np.int64),
    ...          1, np.array([[0, 0, 1, 1]]), WalkRules(LAST, True, True, False, False, False), taken)
    -1
    >>> taken.action.tolist(), taken.running.tolist(), taken.last.tolist()
    ([[1, 0, 1]], [[5]], [2])
    """
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
                code = _compare_order_words(event, now, base, tie) if some else TAKE
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
                late = code == OLDER and not (known and _compare_order_words(event, began, base, tie) == OLDER)
                why[row] = SUPERSEDED if late else TIE_LOST if code == TIED else STALE
            for w in range(words):
                running[key_time, w] = now[w]
            live[key_time], last[key_time] = np.uint8(alive), best
    return -1
