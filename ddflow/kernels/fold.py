"""Fold the events of each key onto its stored cell: choose a cell, add numbers, or collect a list.

The walk (``walk``) selects the events to fold and their order. Folds keep the order of events, so sums of floats have
the same bits however events are divided into steps. Each addition is checked: a sum outside its column's bounds is an
error, even if later additions would undo it. Collecting a list never takes quadratic time. Kernels do not read payload.

>>> import numpy as np
>>> few, ints, flags = (lambda *v, t=t: np.array(v, t) for t in (np.int32, np.int64, np.uint8))
>>> walked = EventsByKey(few(1, 0, 2), few(0, 2, 3), few(0, 2))  # one key: rows 1 and 0 at one time, then row 2
>>> out = ints(0, 0)
>>> choose_cells(walked, flags(TAKE, TAKE, SKIP), flags(), ints(5, 7, 9), ints(-1), flags(0), ints(0), GREATEST, out)
>>> out.tolist()
[1, 1]
"""

from typing import NamedTuple

import numpy as np

from ddflow.kernels.arrays import Flags, Floats, Ints, Narrow, Words, Words2d
from ddflow.kernels.compile import kernel
from ddflow.kernels.pointer import prefetch

SKIP, TAKE, CLEAR, BLANK = 0, 1, 2, 3
"""The effects of an event on a cell: do nothing, fold the event, reset the cell as in a new row, or set it to null.

BLANK differs from CLEAR only for `FIRST`: after BLANK, the first value is null, and the cell stays null.
"""
LAST, FIRST, GREATEST, LEAST = 0, 1, 2, 3
AHEAD = 16
"""Number of places between the current place and the place whose words are prefetched.

Rows are in arrival order, so without prefetches, cache misses would cost more than the rest of the loop.
"""
NOTHING = -1
"""A value in place of a reference, which means that there is no cell."""


class EventsByKey(NamedTuple):
    """The events to fold, sorted by key, then in the order of the fold."""

    permutation: Narrow
    """int32[p]: the row of the event at each place."""
    key_times: Narrow
    """int32[m + 1]: the place where each (key, time) begins. Times ascend within a key."""
    keys: Narrow
    """int32[g + 1]: the first (key, time) of each key."""


@kernel
def choose_cells(
    walked: EventsByKey,
    action: Flags,
    counts: Flags,
    words: Ints,
    references: Ints,
    had: Flags,
    held: Ints,
    rule: int,
    out: Ints,
) -> None:
    """Find the cell that each key has after each of its times. O(p + m).

    Input:
    - walked: the events, see the fields of `EventsByKey`.
    - action, uint8[p]: the effect of the event at each place.
    - counts, uint8[n]: 0 for each row whose cell takes no part. ``counts`` has size 0 if all cells take part.
    - references, int64[g]: the reference to the stored cell of each key, or NOTHING.
    - had, uint8[g]: 1 for each key whose stored cell exists. The kernel does not read this array for LAST.
    - rule: LAST, FIRST, GREATEST or LEAST.
    - words, int64[n]: the order of each row's cell. ``words`` has size 0 for LAST and FIRST.
    - held, int64[g]: the order of each stored cell. ``held`` has size 0 for LAST and FIRST.

    Output:
    - out, int64[m]: a row, the reference of the stored cell, or NOTHING.

    >>> few, ints, flags = (lambda *v, t=t: np.array(v, t) for t in (np.int32, np.int64, np.uint8))
    >>> out, none = ints(0, 0), ints()
    >>> walked, action = EventsByKey(few(0, 1), few(0, 1, 2), few(0, 1, 2)), flags(TAKE, CLEAR)
    >>> (choose_cells(walked, action, flags(0, 1), none, ints(1 << 40, 2 << 40), flags(1, 1), none, LAST, out),
    ... out.tolist())
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


@kernel
def add_int64(
    walked: EventsByKey,
    action: Flags,
    counts: Flags,
    values: Ints,
    had: Flags,
    held: Ints,
    low: int,
    high: int,
    out: Ints,
    there: Flags,
) -> tuple[int, int, int]:
    """Add up 64-bit integers that must stay in [low, high]. O(p + m).

    Input:
    - walked, action, counts: the same as for `choose_cells`.
    - values, int64[n]: the value of each row.
    - had, uint8[g]: 1 for each key that has an old sum.
    - held, int64[g]: the old sum of each key.

    Output:
    - out, int64[m]: the sum of each key after each of its times.
    - there, uint8[m]: 0 for each element of ``out`` that is not a sum.

    Returns the group, the row and the sum before the first addition whose result is outside the bounds. If all results
    are within the bounds, returns -1, 0, 0.

    >>> few, ints, flags = (lambda *v, t=t: np.array(v, t) for t in (np.int32, np.int64, np.uint8))
    >>> walked, there = EventsByKey(few(0), few(0, 1), few(0, 1)), flags(9)
    >>> add_int64(walked, flags(CLEAR), flags(), ints(3), flags(1), ints(4), 0, 9, ints(0), there)
    (-1, 0, 0)
    >>> there.tolist()
    [0]

    >>> import numpy as np
    >>> few, ints, flags = (lambda *v, t=t: np.array(v, t) for t in (np.int32, np.int64, np.uint8))
    >>> walked, out, there = EventsByKey(few(0, 1), few(0, 2), few(0, 1)), ints(0), flags(0)
    >>> (add_int64(walked, flags(TAKE, TAKE), flags(), ints(3, 4), flags(1), ints(100), -128, 127, out, there),
    ... out.tolist())
    ((-1, 0, 0), [107])
    >>> add_int64(walked, flags(TAKE, TAKE), flags(), ints(27, 1), flags(1), ints(100), -128, 127, out, there)
    (0, 1, 127)
    """
    permutation, key_times, keys = walked
    every, at_values, last = counts.size == 0, np.uint64(values.ctypes.data), permutation.size - 1
    for group in range(keys.size - 1):
        now, some = held[group], had[group] != 0
        for key_time in range(keys[group], keys[group + 1]):
            for place in range(key_times[key_time], key_times[key_time + 1]):
                prefetch(at_values + (np.uint64(permutation[min(place + AHEAD, last)]) << np.uint64(3)))
                if action[place] == TAKE:
                    row = permutation[place]
                    if every or counts[row] != 0:
                        value = values[row]
                        if some:
                            total = now + value
                            if ((now ^ total) & (value ^ total)) < 0 or total < low or total > high:
                                return group, int(row), int(now)
                            now = total
                        else:
                            now, some = value, True
                elif action[place] >= CLEAR:
                    some = False
            out[key_time], there[key_time] = now, some
    return -1, 0, 0


@kernel
def add_int128(
    walked: EventsByKey,
    action: Flags,
    counts: Flags,
    values: Words2d,
    had: Flags,
    held: Words2d,
    least: Words,
    most: Words,
    out: Words2d,
    there: Flags,
) -> tuple[int, int]:
    """Add up unsigned 64-bit integers, or decimals of more than 18 digits, as 128-bit integers in two's complement.

    O(p + m). The arguments are those of `add_int64`, except for these arrays of low words and high words:
    - values, uint64[n, 2]: the value of each row.
    - held, uint64[g, 2]: the old sum of each key.
    - least, most, uint64[2]: the bounds.
    - out, uint64[m, 2]: the sum of each key after each of its times.

    Returns the group and the row of the first addition whose result is outside the bounds, or -1, 0. If the result of
    an addition is outside the bounds, row 0 of ``out`` has the sum before this addition.

    >>> few, flags = (lambda *v, t=t: np.array(v, t) for t in (np.int32, np.uint8))
    >>> words = lambda *v: np.array(v, np.uint64).reshape(-1, 2)
    >>> most, out = 2**64 - 1, words(0, 0)
    >>> add_int128(EventsByKey(few(0), few(0, 1), few(0, 1)), flags(TAKE), flags(), words(most, 0), flags(1),
    ...     words(most, 0), words(0, 0)[0], words(most, 9)[0], out, flags(0)), out.tolist() == [[most - 1, 1]]
    ((-1, 0), True)
    """
    permutation, key_times, keys = walked
    every, sign = counts.size == 0, np.uint64(1 << 63)
    at_values, last = np.uint64(values.ctypes.data), permutation.size - 1
    least_low, least_high, most_low, most_high = least[0], least[1] ^ sign, most[0], most[1] ^ sign
    for group in range(keys.size - 1):
        low, high, some = held[group, 0], held[group, 1], had[group] != 0
        for key_time in range(keys[group], keys[group + 1]):
            for place in range(key_times[key_time], key_times[key_time + 1]):
                prefetch(at_values + (np.uint64(permutation[min(place + AHEAD, last)]) << np.uint64(4)))
                if action[place] == TAKE:
                    row = permutation[place]
                    if every or counts[row] != 0:
                        value, upper = values[row, 0], values[row, 1]
                        if some:
                            below = low + value
                            above = high + upper + np.uint64(below < low)
                            ranked = above ^ sign  # flip the sign bit, so that unsigned words sort like the signed ones
                            if (
                                (high ^ above) & (upper ^ above) & sign != 0
                                or ranked < least_high
                                or (ranked == least_high and below < least_low)
                                or ranked > most_high
                                or (ranked == most_high and below > most_low)
                            ):
                                out[0, 0], out[0, 1] = low, high
                                return group, int(row)
                            low, high = below, above
                        else:
                            low, high, some = value, upper, True
                elif action[place] >= CLEAR:
                    some = False
            out[key_time, 0], out[key_time, 1], there[key_time] = low, high, some
    return -1, 0


@kernel
def add_floats(
    walked: EventsByKey,
    action: Flags,
    counts: Flags,
    values: Floats,
    had: Flags,
    held: Floats,
    short: bool,
    out: Floats,
    there: Flags,
) -> None:
    """Add up floats. Sums of floats have no bounds, and can be infinite. O(p + m).

    The arguments are those of `add_int64`, except for:
    - values, float64[n]: the value of each row.
    - held, float64[g]: the old sum of each key.
    - out, float64[m]: the sum of each key after each of its times.
    - short: whether to round to 32 bits after each addition, which gives the same result as an addition in 32 bits.

    >>> few, flags = (lambda *v, t=t: np.array(v, t) for t in (np.int32, np.uint8))
    >>> one, out, walked = np.ones(1), np.zeros(1), EventsByKey(few(0), few(0, 1), few(0, 1))
    >>> add_floats(walked, flags(TAKE), flags(), one, flags(1), one / 3, True, out, flags(0))
    >>> out.tolist() == [float(np.float32(4 / 3))]
    True
    """
    permutation, key_times, keys = walked
    every, at_values, last = counts.size == 0, np.uint64(values.ctypes.data), permutation.size - 1
    for group in range(keys.size - 1):
        now, some = held[group], had[group] != 0
        for key_time in range(keys[group], keys[group + 1]):
            for place in range(key_times[key_time], key_times[key_time + 1]):
                prefetch(at_values + (np.uint64(permutation[min(place + AHEAD, last)]) << np.uint64(3)))
                if action[place] == TAKE:
                    row = permutation[place]
                    if every or counts[row] != 0:
                        now = now + values[row] if some else values[row]
                        if short:
                            now = np.float64(np.float32(now))
                        some = True
                elif action[place] >= CLEAR:
                    some = False
            out[key_time], there[key_time] = now, some


FEW = 24
"""A hash table is used to find equal elements in a stretch with more elements than this."""


@kernel
def collect_list_elements(
    walked: EventsByKey,
    action: Flags,
    counts: Flags,
    rows: int,
    had: Flags,
    parts: Ints,
    stretches: Ints,
    begins: Ints,
    stops: Ints,
) -> tuple[int, int]:
    """List the cells that make up each list. Return the number of parts and the number of stretches. O(p + m).

    Input:
    - walked, action, counts: the same as for `choose_cells`.
    - rows: the number of events.
    - had, uint8[g]: 1 for each key that has a stored list.

    Output:
    - parts, int64[p + g]: a row, or ``rows`` + group for the stored list of a group.
    - stretches, int64[p + g + 1]: where each stretch of parts begins.
    - begins, stops, int64[m]: the range of the parts of each key's list after each time. If there is no list, the range
      is empty.

    >>> few, ints, flags = (lambda *v, t=t: np.array(v, t) for t in (np.int32, np.int64, np.uint8))
    >>> walked = EventsByKey(few(0), few(0, 1), few(0, 1))
    >>> collect_list_elements(walked, flags(CLEAR), flags(), 1, flags(1), ints(0, 0), ints(0, 0, 0), ints(0), ints(0))
    (1, 1)

    >>> import numpy as np
    >>> few, ints, flags = (lambda *v, t=t: np.array(v, t) for t in (np.int32, np.int64, np.uint8))
    >>> walked, parts, stretches = EventsByKey(few(1, 0), few(0, 1, 2), few(0, 2)), ints(0, 0, 0), ints(0, 0, 0, 0)
    >>> begins, stops = ints(0, 0), ints(0, 0)
    >>> collect_list_elements(walked, flags(TAKE, TAKE), flags(), 2, flags(1), parts, stretches, begins, stops)
    (3, 1)
    >>> parts.tolist(), begins.tolist(), stops.tolist()  # the held cell is numbered behind the two rows
    ([2, 1, 0], [0, 0], [2, 3])
    """
    permutation, key_times, keys = walked
    every = counts.size == 0
    made = opened = 0
    for group in range(keys.size - 1):
        start = made
        if had[group] != 0:
            parts[made] = rows + group
            made += 1
        for key_time in range(keys[group], keys[group + 1]):
            for place in range(key_times[key_time], key_times[key_time + 1]):
                if action[place] == TAKE:
                    row = permutation[place]
                    parts[made] = row
                    made += 1 if every or counts[row] != 0 else 0
                elif action[place] >= CLEAR:
                    if made > start:
                        stretches[opened] = start
                        opened += 1
                    start = made
            begins[key_time], stops[key_time] = start, made
        if made > start:
            stretches[opened] = start
            opened += 1
    stretches[opened] = made
    return made, opened


@kernel
def expand_ranges(first: Ints, ends: Ints, out: Ints) -> None:
    """Write the numbers of several ranges, one range after the other. O(r + out).

    Input:
    - first, int64[r]: the first number of each range.
    - ends, int64[r + 1]: 0, and then where the numbers of each range end in ``out``.

    Output:
    - out, int64[ends[r]]: the numbers of all ranges.

    >>> out = np.empty(3, np.int64)
    >>> expand_ranges(np.array([7, 4]), np.array([0, 2, 3]), out), out.tolist()
    (None, [7, 8, 4])
    """
    for i in range(first.size):
        number = first[i]
        for at in range(ends[i], ends[i + 1]):
            out[at] = number
            number += 1


@kernel
def mark_distinct_elements(hashes: Words, elements: Ints, ends: Ints, kept: Flags) -> None:
    """In each stretch, mark the first element of each set of equal elements.

    The run time is O(e) expected. The kernel takes scratch memory for the longest stretch.

    Input:
    - hashes, uint64: the hash of each element.
    - elements, int64[e]: the elements of all stretches.
    - ends, int64[s + 1]: where each stretch begins in ``elements``.

    Output:
    - kept, uint8[e]: 1 for each marked element.

    >>> kept = np.empty(4, np.uint8)
    >>> mark_distinct_elements(np.array([5, 6], np.uint64), np.array([0, 1, 0, 0]), np.array([0, 3, 4]),
    ...     kept), kept.tolist()
    (None, [1, 1, 0, 1])
    """
    few, table = np.empty(FEW, np.uint64), np.empty(0, np.int64)
    for stretch in range(ends.size - 1):
        begin, end = ends[stretch], ends[stretch + 1]
        if end - begin <= FEW:
            size = 0
            for at in range(begin, end):
                value, i = hashes[elements[at]], 0
                while i < size and few[i] != value:
                    i += 1
                kept[at] = i == size
                if i == size:
                    few[size] = value
                    size += 1
            continue
        slots = 1
        while slots < 2 * (end - begin):
            slots *= 2
        if table.size < slots:
            table = np.empty(slots, np.int64)
        table[:slots] = -1
        for at in range(begin, end):
            value = hashes[elements[at]]
            slot = np.int64(value & np.uint64(slots - 1))
            while table[slot] >= 0 and hashes[table[slot]] != value:
                slot = (slot + 1) & (slots - 1)
            kept[at] = table[slot] < 0
            if table[slot] < 0:
                table[slot] = elements[at]
