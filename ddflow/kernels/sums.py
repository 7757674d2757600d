"""Adding up: fold the events of each key over the number that it holds, checked at each addition.

Invariant: a sum that comes out never left its column's type on the way, and additions happen in the order of the fold
and in no other, so that floats come out the same to the bit however the events are split into steps. Numba wraps
silently, a column's bounds are its own (8 bits, or 10 ** 5 for a decimal), and a sum that comes back into bounds must
be refused all the same, since a step that ended in between would have been. Three loops do for all types: 64 bits, 128
bits, floats; what the words stand for, the shell knows.

>>> import numpy as np
>>> few, ints, flags = (lambda *v, t=t: np.array(v, t) for t in (np.int32, np.int64, np.uint8))
>>> walked, out, there = Walked(few(0, 1), few(0, 2), few(0, 1)), ints(0), flags(0)
>>> add(walked, flags(TAKE, TAKE), flags(), ints(3, 4), flags(1), ints(100), -128, 127, out, there), out.tolist()
((-1, 0, 0), [107])
>>> add(walked, flags(TAKE, TAKE), flags(), ints(27, 1), flags(1), ints(100), -128, 127, out, there)
(0, 1, 127)
"""

import numpy as np

from ddflow.kernels.arrays import Flags, Floats, Ints, Words
from ddflow.kernels.compile import kernel
from ddflow.kernels.fold import AHEAD, CLEAR, TAKE, Walked
from ddflow.kernels.pointer import prefetch


@kernel
def add(
    walked: Walked,
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
    """Add up words of 64 bits that must stay in [low, high].

    walked, action, counts: as `kernels.fold.choose` takes them.  values: int64[n], by row.  had: uint8[g] and held:
    int64[g], what each key holds.  Written, by key and time: out int64[m]; there uint8[m], 0 where there is no sum.
    Returns the group, the row and the sum before of the first addition that leaves the bounds, or -1, 0, 0.  O(p + m).

    >>> few, ints, flags = (lambda *v, t=t: np.array(v, t) for t in (np.int32, np.int64, np.uint8))
    >>> walked, there = Walked(few(0), few(0, 1), few(0, 1)), flags(9)
    >>> add(walked, flags(CLEAR), flags(), ints(3), flags(1), ints(4), 0, 9, ints(0), there)
    (-1, 0, 0)
    >>> there.tolist()
    [0]
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
def add_wide(
    walked: Walked,
    action: Flags,
    counts: Flags,
    values: Words,
    had: Flags,
    held: Words,
    least: Words,
    most: Words,
    out: Words,
    there: Flags,
) -> tuple[int, int]:
    """Add up words of 128 bits, two's complement: unsigned 64-bit integers, and decimals of more than 18 digits.

    As `add`, but for: values uint64[n, 2], held uint64[g, 2], out uint64[m, 2]: the low word, then the high one.
    least, most: uint64[2], the bounds.  Returns the group and the row of the first addition that leaves them, or -1,
    0; the sum before is then in row 0 of out.  O(p + m).

    >>> few, flags = (lambda *v, t=t: np.array(v, t) for t in (np.int32, np.uint8))
    >>> words = lambda *v: np.array(v, np.uint64).reshape(-1, 2)
    >>> most, out = 2**64 - 1, words(0, 0)
    >>> add_wide(Walked(few(0), few(0, 1), few(0, 1)), flags(TAKE), flags(), words(most, 0), flags(1), words(most, 0),
    ...          words(0, 0)[0], words(most, 9)[0], out, flags(0)), out.tolist() == [[most - 1, 1]]
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
                            ranked = above ^ sign  # signed words compare as these do
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
    walked: Walked,
    action: Flags,
    counts: Flags,
    values: Floats,
    had: Flags,
    held: Floats,
    short: bool,
    out: Floats,
    there: Flags,
) -> None:
    """Add up floats, which have infinities and never leave their type.

    As `add`, but for: values float64[n], held float64[g], out float64[m]; short: round to 32 bits after each addition,
    which gives what an addition in 32 bits does.  O(p + m).

    >>> few, flags = (lambda *v, t=t: np.array(v, t) for t in (np.int32, np.uint8))
    >>> one, out, walked = np.ones(1), np.zeros(1), Walked(few(0), few(0, 1), few(0, 1))
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
