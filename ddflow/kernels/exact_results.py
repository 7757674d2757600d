"""Compute exact results: sums as integers, quotients that are rounded once, and sums and products of decimals.

A quotient is the double nearest to the exact value, with ties to even. A quotient beyond the largest double becomes
infinity. A quotient is computed from the four highest digits of a sum, divided by less than 2**32, so it has at least
65 bits. Therefore the only fact that matters about the lower digits is whether all of them are zero.

A decimal is a 128-bit integer in memory. A sum of two decimals is a sum of two products, because each decimal is first
multiplied by a power of ten to get the scale of the result. So one kernel computes sums, differences and products.

>>> import numpy as np
>>> state = np.array([0, 1], np.uint32).view(np.uint8)
>>> out, ends = np.empty(1), np.array([0, 8])
>>> write_quotients(ends, np.uint64(state.ctypes.data), np.array([3]), 0, out), float(out[0]) == 1 / 3
(-1, True)
"""

import numpy as np

from ddflow.kernels.arrays import Flags, Floats, Ints, Words, Words2d
from ddflow.kernels.compile import kernel
from ddflow.kernels.exact import ALL, HALF, LOW, NEVER, ONE, UP, ZERO
from ddflow.kernels.pointer import load_u32, load_u64, mul128

LEAST, INFINITE = -1074, np.uint64(0x7FF << 52)
EXACT, LIMIT = np.uint64(53), 1 << 53
"""Integers below 2**53 are exact as doubles, so the processor rounds their quotient correctly."""
BILLION, TEN, HALVES = 9, np.uint64(10), np.uint64(5)
Quad = tuple[np.uint64, np.uint64, np.uint64, np.uint64]


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
def _divide_digits(at: np.uint64, end: np.uint64, position: int, by: np.uint64, negative: bool, unit: int) -> np.uint64:
    """Divide a sum that is not 0, and return the bits of the quotient.

    at, end: the addresses of the 32-bit digits. position: the place after the highest digit. by: less than 2**32.
    """
    # Read the digits from the highest to the lowest. If the sum is negative, negate it digit by digit.
    place = end - np.uint64(4)
    below = load_u32(place) >> np.uint64(31) != ZERO
    negative ^= below
    flip = LOW if below else ZERO
    lowest = at
    while load_u32(lowest) == ZERO:
        lowest += np.uint64(4)
    high = low = rest = ZERO
    some = 0
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
            high = (high << HALF) | (low >> HALF)
            if by == ONE:
                low = (low << HALF) | digit
            else:
                rest = (rest << HALF) | digit
                low = (low << HALF) | (rest // by)
                rest %= by
    more = bool(rest != ZERO or place >= lowest)
    return _round_to_double(high, low, more, 32 * position + unit) | (np.uint64(negative) << ALL)


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
        place = int(header & np.uint64(0xFFFF)) + int((end - at) >> np.uint64(2))
        bits[i] = _divide_digits(at, end, place, by, negative, unit)
    return wide


@kernel
def divide_words(states: Words2d, counts: Ints, out: Floats) -> int:
    """Divide sums of `exact.accumulate_words` by counts, and round each quotient once. O(s).

    - states, uint64[s, w]: the sums.
    - counts, out: see `write_quotients`.

    Returns the same as `write_quotients`.

    >>> out = np.ones(1)
    >>> divide_words(np.array([[7, 0, 0]], np.uint64), np.array([2]), out), out.tolist()
    (-1, [3.5])
    """
    wide, width, bits = -1, states.shape[1], out.view(np.uint64)
    base, size = np.uint64(states.ctypes.data), np.uint64(8 * width)
    for i in range(counts.size):
        count, at, some, more = counts[i], base + np.uint64(i) * size, states[i, 0], ZERO
        sign = ZERO - (some >> ALL)
        for k in range(1, width):
            more |= states[i, k] ^ sign
        bits[i] = ZERO
        if count == 0 or (some | more) == ZERO:
            continue
        if more == ZERO and (some ^ sign) >> EXACT == ZERO and -LIMIT < count < LIMIT:
            out[i] = np.float64(np.int64(some)) / np.float64(count)
            continue
        negative, by = count < 0, np.uint64(-count) if count < 0 else np.uint64(count)
        if by >> HALF != ZERO:
            wide = i
            continue
        bits[i] = _divide_digits(at, at + size, 2 * width, by, negative, 0)
    return wide


@kernel
def write_integers(
    states: Words2d, wanted: Flags, most_low: np.uint64, most_high: np.uint64, slack: np.uint64, out: Words2d
) -> int:
    """Convert sums of `exact.accumulate_words` to integers of one or two words. O(s).

    Input:
    - states, uint64[s, w]: the sums.
    - wanted, uint8[s]: 0 for each sum that may be outside the bounds.
    - most_low, most_high: the words of the greatest integer.
    - slack: 1 if the least integer is the opposite of the greatest, or 0 if it is one less.

    Output:
    - out, uint64[s, k]: the integers, with 0 for each sum outside the bounds.

    Returns the first wanted sum outside the bounds, or -1 if there is none.

    >>> out = np.empty((2, 1), np.uint64)
    >>> word, sums = np.uint64(7), np.array([[7, 0, 0], [8, 0, 0]], np.uint64)
    >>> write_integers(sums, np.ones(2, np.uint8), word, np.uint64(0), np.uint64(0), out), out.tolist()
    (1, [[7], [0]])
    """
    beyond, width = -1, states.shape[1]
    for i in range(wanted.size):
        sign, over = ZERO - (states[i, width - 1] >> ALL), False
        for k in range(2, width):
            over |= states[i, k] != sign
        low, high = states[i, 0] ^ sign, states[i, 1] ^ sign
        if sign != ZERO:
            # The magnitude of a negative number is one more than its complement.
            low += slack
            high += np.uint64(low < slack)
        if over or high > most_high or (high == most_high and low > most_low):
            if wanted[i] != 0 and beyond < 0:
                beyond = i
            out[i, :] = ZERO
            continue
        out[i, 0] = states[i, 0]
        if out.shape[1] == 2:
            out[i, 1] = states[i, 1]
    return beyond


@kernel
def write_rounded_quotients(
    states: Words2d,
    counts: Ints,
    times: np.uint64,
    wanted: Flags,
    most_low: np.uint64,
    most_high: np.uint64,
    out: Words2d,
) -> int:
    """Multiply sums by ``times``, divide them by counts, and round halves away from zero. O(s).

    - states, wanted, most_low, most_high, out: see `write_integers`; the least integer is the opposite of the greatest.
    - counts, int64[s]: the count of each sum. The quotient for a count of 0 is 0.

    Returns the first wanted quotient outside the bounds, or -1 if there is none.

    >>> out, ten, zero = np.empty((1, 2), np.uint64), np.uint64(10), np.uint64(0)
    >>> state = np.array([[7, 0, 0, 0]], np.uint64)
    >>> write_rounded_quotients(state, np.array([4]), ten, np.ones(1, np.uint8), np.uint64(99), zero, out), out.tolist()
    (-1, [[18, 0]])
    """
    beyond, width = -1, states.shape[1]
    work = np.empty(width + 1, np.uint64)
    for i in range(wanted.size):
        out[i, :] = ZERO
        if counts[i] == 0:
            continue
        count, sign, carry, top = counts[i], ZERO - (states[i, width - 1] >> ALL), ZERO, 0
        by, add = np.uint64(-count) if count < 0 else np.uint64(count), sign & ONE
        for k in range(width + 1):
            word = (states[i, k] ^ sign) + add if k < width else ZERO
            add &= np.uint64(word == ZERO)
            low, high = mul128(word, times)
            low += carry
            carry = high + np.uint64(low < carry)
            work[k] = low
            if low != ZERO:
                top = k
        # Divide by digits of 32 bits, or bit by bit if the count has more than 32 bits.
        step = HALF if by >> HALF == ZERO else ONE
        rest = low = high = over = ZERO
        for k in range(top, -1, -1):
            word = work[k]
            for _ in range(np.int64(64) // np.int64(step)):
                rest = (rest << step) | (word >> (np.uint64(64) - step))
                word <<= step
                over |= high >> (np.uint64(64) - step)
                high, low = (high << step) | (low >> (np.uint64(64) - step)), (low << step) | (rest // by)
                rest %= by
        if rest >= by - rest:
            low += ONE
            high += np.uint64(low == ZERO)
        if over != ZERO or high > most_high or (high == most_high and low > most_low):
            if wanted[i] != 0 and beyond < 0:
                beyond = i
            continue
        if (sign != ZERO) != (count < 0):
            low = ZERO - low
            high = ~high + np.uint64(low == ZERO)
        out[i, 0] = low
        if out.shape[1] == 2:
            out[i, 1] = high
    return beyond


@kernel
def _fits_word(low: np.uint64, high: np.uint64) -> bool:
    """Return whether an integer of 128 bits fits int64."""
    return bool(high == ZERO - (low >> ALL))


@kernel
def _multiply_words(one: np.uint64, other: np.uint64) -> tuple[np.uint64, np.uint64]:
    """Multiply two int64 and return the low and the high word."""
    low, high = mul128(one, other)
    return low, high - ((other & (ZERO - (one >> ALL))) + (one & (ZERO - (other >> ALL))))


@kernel
def _multiply(low: np.uint64, high: np.uint64, by_low: np.uint64, by_high: np.uint64) -> Quad:
    """Multiply two integers of 128 bits. Return the product in 256 bits, from the low word to the high word."""
    below, by_below = ZERO - (high >> ALL), ZERO - (by_high >> ALL)
    first, second = mul128(low, by_low)
    one, one_over = mul128(low, by_high)
    two, two_over = mul128(high, by_low)
    third, fourth = mul128(high, by_high)
    second += one
    carry = np.uint64(second < one)
    second += two
    carry += np.uint64(second < two)
    for part in (carry, one_over, two_over):
        third += part
        fourth += np.uint64(third < part)
    # A negative factor was read as 2**128 too much.
    for part, part_over in ((by_low & below, by_high & below), (low & by_below, high & by_below)):
        fourth -= part_over + np.uint64(third < part)
        third -= part
    return first, second, third, fourth


@kernel
def _add(one: Quad, other: Quad) -> Quad:
    """Add two integers of 256 bits."""
    low = one[0] + other[0]
    carry = np.uint64(low < other[0])
    high = one[1] + carry
    carry = np.uint64(high < carry)
    high += other[1]
    carry += np.uint64(high < other[1])
    more = one[2] + carry
    carry = np.uint64(more < carry)
    more += other[2]
    return low, high, more, one[3] + other[3] + carry + np.uint64(more < other[2])


@kernel
def _negate_if(sign: np.uint64, of: Quad) -> Quad:
    """Negate an integer of 256 bits if all bits of ``sign`` are ones."""
    carry = sign & ONE
    low = (of[0] ^ sign) + carry
    carry &= np.uint64(low == ZERO)
    high = (of[1] ^ sign) + carry
    carry &= np.uint64(high == ZERO)
    more = (of[2] ^ sign) + carry
    return low, high, more, (of[3] ^ sign) + (carry & np.uint64(more == ZERO))


@kernel
def _divide_rounded(work: Words, drop: int) -> None:
    """Divide an unsigned integer of four words by 10**drop, and round half up. ``drop`` is at least 1."""
    left = drop - 1
    while left >= 0:
        # The last digit is divided alone. It alone decides how to round.
        by = TEN if left == 0 else ONE
        for _ in range(min(left, BILLION)):
            by *= TEN
        if left == 0:
            carry = HALVES
            for k in range(4):
                work[k] += carry
                carry = np.uint64(work[k] < carry)
        rest = ZERO
        for k in range(3, -1, -1):
            upper = (rest << HALF) | (work[k] >> HALF)
            lower = ((upper % by) << HALF) | (work[k] & LOW)
            work[k] = ((upper // by) << HALF) | (lower // by)
            rest = lower % by
        left = left - BILLION if left > BILLION else 0 if left > 0 else -1


@kernel
def combine_decimals(
    left: Words2d,
    left_by: Words2d,
    right: Words2d,
    right_by: Words2d,
    present: Flags,
    drop: int,
    most_low: np.uint64,
    most_high: np.uint64,
    out: Words2d,
) -> int:
    """Compute left * left_by + right * right_by, without the last ``drop`` digits, and round half away from zero. O(n).

    Input:
    - left, left_by, right, right_by, uint64[n, 2]: 128-bit integers; of size 1 for one integer for all rows. If
      ``right`` has size 0, the result is left * left_by.
    - present, uint8[n]: 0 for each null; of size 0 if there are no nulls.
    - most_low, most_high: the words of the greatest result. The least result is its opposite.

    Output:
    - out, uint64[n, 2]: the results, with 0 for each null.

    Returns the first row whose result does not fit, or -1 if all results fit.

    >>> minus, out = np.full((1, 2), 2**64 - 1, np.uint64), np.empty((1, 2), np.uint64)
    >>> three, ten = np.array([[3, 0]], np.uint64), np.array([[10, 0]], np.uint64)
    >>> none, most = np.empty(0, np.uint8), (np.uint64(99), np.uint64(0))
    >>> combine_decimals(three, ten, ten, minus, none, 0, *most, out), out.tolist()
    (-1, [[20, 0]])
    >>> combine_decimals(three, three, ten, three, none, 1, *most, out), out.tolist()
    (-1, [[4, 0]])
    """
    every, added, work = present.size == 0, right.shape[0] > 0, np.empty(4, np.uint64)
    one, two, three, four = left.shape[0] > 1, left_by.shape[0] > 1, right.shape[0] > 1, right_by.shape[0] > 1
    for row in range(out.shape[0]):
        if not every and present[row] == 0:
            out[row, 0] = out[row, 1] = ZERO
            continue
        i, j = row if one else 0, row if two else 0
        low, high, by_low, by_high = left[i, 0], left[i, 1], left_by[j, 0], left_by[j, 1]
        small = _fits_word(low, high) and _fits_word(by_low, by_high)
        i, j = row if three else 0, row if four else 0
        if added:
            other, other_high, other_by, other_by_high = right[i, 0], right[i, 1], right_by[j, 0], right_by[j, 1]
            small = small and _fits_word(other, other_high) and _fits_word(other_by, other_by_high)
        if small:
            low, high = _multiply_words(low, by_low)
            if added:
                other, other_high = _multiply_words(other, other_by)
                low += other
                high += other_high + np.uint64(low < other)
            more = top = ZERO - (high >> ALL)
        else:
            given = _multiply(low, high, by_low, by_high)
            if added:
                given = _add(given, _multiply(other, other_high, other_by, other_by_high))
            low, high, more, top = given
        sign = ZERO - (top >> ALL)
        low, high, more, top = _negate_if(sign, (low, high, more, top))
        if drop > 0:
            work[0], work[1], work[2], work[3] = low, high, more, top
            _divide_rounded(work, drop)
            low, high, more, top = work[0], work[1], work[2], work[3]
        if (more | top) != ZERO or high > most_high or (high == most_high and low > most_low):
            return row
        low = (low ^ sign) + (sign & ONE)
        out[row, 0], out[row, 1] = low, (high ^ sign) + ((sign & ONE) & np.uint64(low == ZERO))
    return -1
