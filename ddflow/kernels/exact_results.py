"""Convert exact sums to 128-bit integers, or divide exact sums and round each quotient once.

A quotient is the double nearest to the exact value, with ties to even. A quotient beyond the largest double becomes
infinity. A quotient is computed from the four highest digits of a sum, divided by less than 2**32, so it has at least
65 bits. Therefore the only fact that matters about the lower digits is whether all of them are zero.

>>> import numpy as np
>>> state = np.array([0, 1], np.uint32).view(np.uint8)
>>> out, ends = np.empty(1), np.array([0, 8])
>>> write_quotients(ends, np.uint64(state.ctypes.data), np.array([3]), 0, out), float(out[0]) == 1 / 3
(-1, True)
"""

import numpy as np

from ddflow.kernels.arrays import Flags, Floats, Ints, Words2d
from ddflow.kernels.compile import kernel
from ddflow.kernels.exact import ALL, HALF, LOW, NEVER, ONE, UP, ZERO
from ddflow.kernels.pointer import load_u32, load_u64

LEAST, INFINITE = -1074, np.uint64(0x7FF << 52)


@kernel
def _count_bits(word: np.uint64) -> int:
    """Count the bits of a word, not counting leading zeros."""
    found = 0
    for step in (32, 16, 8, 4, 2, 1):
        if word >> np.uint64(step) != ZERO:
            word >>= np.uint64(step)
            found += step
    return found + int(word)


@kernel
def _round_to_double(high: np.uint64, low: np.uint64, more: bool, unit: int) -> np.uint64:
    """Round (high, low) * 2**unit to the nearest double and return its bits.

    ``more``: whether nonzero bits were cut off.
    """
    width = 64 + _count_bits(high) if high != ZERO else _count_bits(low)
    drop = max(width - 53, LEAST - unit)
    if drop > 128 or width == 0:
        return ZERO
    if drop <= 0:
        kept, beyond, tie = low << np.uint64(-drop), False, False
    elif drop <= 64:
        part, half = low & (~ZERO >> np.uint64(64 - drop)), ONE << np.uint64(drop - 1)
        kept = (low >> np.uint64(drop) if drop < 64 else ZERO) | (high << np.uint64(64 - drop) if drop < 64 else high)
        beyond, tie = bool(part > half), bool(part == half)
    else:
        part, half = high & (~ZERO >> np.uint64(128 - drop)), ONE << np.uint64(drop - 65)
        kept = high >> np.uint64(drop - 64) if drop < 128 else ZERO
        tie = bool(part == half and low == ZERO)
        beyond = bool(part >= half) and not tie
    if beyond or (tie and (more or kept & ONE != ZERO)):
        kept += ONE
    exponent = unit + drop - LEAST
    if exponent > 2046:
        return INFINITE
    return min((np.uint64(exponent) << np.uint64(52)) + kept, INFINITE)


@kernel
def write_quotients(ends: Ints, states: np.uint64, counts: Ints, unit: int, out: Floats) -> int:
    """Divide sums by counts. O(bytes).

    - ends, int64[m + 1]: where each state ends.
    - states: the address of states of `kernels.exact`, which are stored one after the other and have the unit 2**unit.
    - counts, int64[m]: the count of each sum. If a count is 0, the quotient is 0.
    - out, float64[m]: the kernel writes the quotients to this array.

    Returns the last place whose count has a magnitude of 2**32 or more, or -1 if there is no such place. For every
    count of at least this magnitude, the kernel writes 0 as the quotient.

    >>> ends, out = np.zeros(2, np.int64), np.ones(1)
    >>> write_quotients(ends, np.uint64(0), np.ones(1, np.int64), 0, out), out[0]
    (-1, np.float64(0.0))
    """
    bits, wide = out.view(np.uint64), -1
    for i in range(counts.size):
        at, end, count = states + np.uint64(ends[i]), states + np.uint64(ends[i + 1]), counts[i]
        bits[i] = ZERO
        if at == end or count == 0:
            continue
        negative, by = count < 0, np.uint64(-count) if count < 0 else np.uint64(count)
        header = load_u32(at)
        at += np.uint64(4)
        if header & np.uint64(7 * NEVER) != ZERO:
            never, ups, downs = header & np.uint64(NEVER) != ZERO, False, False
            if never:
                at += np.uint64(8)
            for which in range(2):
                if header & np.uint64(UP << which) != ZERO:
                    up = (load_u64(at) >> ALL == ZERO) == (which == 0)
                    ups, downs = ups or up, downs or not up
                    at += np.uint64(8)
            if never or (ups and downs):
                bits[i] = INFINITE | (ONE << np.uint64(51))
            else:
                bits[i] = INFINITE | (np.uint64(downs != negative) << ALL)
            continue
        if by >> HALF != ZERO:
            wide = i
            continue
        # Read the digits from the highest to the lowest. If the sum is negative, negate it digit by digit.
        place = end - np.uint64(4)
        below = load_u32(place) >> np.uint64(31) != ZERO
        negative ^= below
        flip = LOW if below else ZERO
        lowest = at
        while load_u32(lowest) == ZERO:
            lowest += np.uint64(4)
        high = low = rest = ZERO
        some, position = 0, np.int64(header & np.uint64(0xFFFF)) + np.int64((end - at) >> np.uint64(2))
        while some < 4:
            digit = ZERO
            if place >= at:
                digit = load_u32(place) ^ flip
                if below and place <= lowest:
                    digit = (digit + ONE) & LOW
            place -= np.uint64(4)
            position -= 1
            if some > 0 or digit != ZERO or position < 0:
                some += 1
                rest = (rest << HALF) | digit
                high, low = (high << HALF) | (low >> HALF), (low << HALF) | (rest // by)
                rest %= by
        more = bool(rest != ZERO or place >= lowest)
        bits[i] = _round_to_double(high, low, more, 32 * int(position) + unit) | (np.uint64(negative) << ALL)
    return wide


@kernel
def write_integers(ends: Ints, states: np.uint64, out: Words2d, fits: Flags) -> None:
    """Convert sums to 128-bit integers in two's complement. O(bytes).

    Input:
    - ends, states: the same as for `write_quotients`.

    Output:
    - out, uint64[m, 2]: the low word and the high word of each integer.
    - fits, uint8[m]: 0 for each sum of more than 128 bits.

    >>> out = np.empty((1, 2), np.uint64)
    >>> write_integers(np.zeros(2, np.int64), np.uint64(0), out, np.empty(1, np.uint8)), out.tolist()
    (None, [[0, 0]])
    """
    for i in range(fits.size):
        at, end = states + np.uint64(ends[i]), states + np.uint64(ends[i + 1])
        low = high = ZERO
        fits[i] = 1
        if at < end:
            place = np.int64(load_u32(at) & np.uint64(0xFFFF))
            at += np.uint64(4)
            implied = ZERO - (load_u32(end - np.uint64(4)) >> np.uint64(31))
            while at < end or place < 4:
                digit = load_u32(at) if at < end else implied & LOW
                if place < 2:
                    low |= digit << np.uint64(32 * place)
                elif place < 4:
                    high |= digit << np.uint64(32 * place - 64)
                elif digit != implied & LOW:
                    fits[i] = 0
                at += np.uint64(4)
                place += 1
            if (high >> ALL) != implied & ONE:
                fits[i] = 0
        out[i, 0], out[i, 1] = low, high
