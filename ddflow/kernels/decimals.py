"""Add and multiply decimals, which are 128-bit integers in memory.

A sum of two decimals is a sum of two products, because each decimal is first multiplied by a power of ten to get the
scale of the result. So one kernel computes sums, differences and products, in 256 bits. If all factors of a row fit
int64, 128 bits are enough.

>>> left, right, out = (np.array([[n, 0]], np.uint64) for n in (7, 100, 0))
>>> most, none = (np.uint64(2000), np.uint64(0)), np.empty(0, np.uint8)
>>> combine_decimals(left, right, left, right, none, 0, *most, out), out.tolist()
(-1, [[1400, 0]])
"""

import numpy as np

from ddflow.kernels.arrays import Flags, Words, Words2d
from ddflow.kernels.compile import kernel
from ddflow.kernels.exact import ALL, HALF, LOW, ONE, ZERO
from ddflow.kernels.pointer import mul128

BILLION, TEN, HALVES = 9, np.uint64(10), np.uint64(5)
Quad = tuple[np.uint64, np.uint64, np.uint64, np.uint64]


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
