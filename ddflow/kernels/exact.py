"""Add up integers, decimals and doubles, or their squares, exactly and without rounding.

A sum is a whole number of units: of 1, of the last digit of the decimal, or of 2**-1074 (2**-2148 for squares). The sum
is stored as 32-bit digits in two's complement, from the lowest digit to the highest digit that is not implied. Zero has
no digits. NaN and infinities are counted separately. The counts of NaN and infinities can be negative, like
multiplicities.

    state: uint32 header: the place of the lowest digit, and a flag for each count (NEVER, UP, DOWN) | counts | digits

Guarantees: a sum does not depend on the order of additions. After every added value has been subtracted again, the
state is empty. If no value is more than 2**120 times another value, a state has at most 40 bytes, plus 24 bytes if it
has three counts.
"""

from typing import NamedTuple

import numpy as np

from ddflow.kernels.accumulate import GroupTimeCells
from ddflow.kernels.arrays import Flags, Ints, Words
from ddflow.kernels.compile import kernel
from ddflow.kernels.pointer import load_u8, load_u32, load_u64, mul128, prefetch, store_u32, store_u64

INTEGER, FLOAT, DECIMAL = range(3)
"""The kinds of values: int64, double, 128-bit decimal."""
NEVER, UP, DOWN = 1 << 16, 1 << 17, 1 << 18
"""Header flags: the state has a count of NaN, of infinity, or of negative infinity."""
DIGITS, WIDE, WORK = 148, 24, 176
"""Sizes of the scratch memory, in words.

DIGITS: the number of digits of any sum (2 * 2098 bits for squares of doubles, plus 31 + 63 bits for their number).
WIDE: the number of words of a product. WORK: the total number of words, for the digits, a product and three counts.
"""
MOST = 4 + 24 + 4 * DIGITS
"""Maximum size of a state, in bytes."""
LOW = np.uint64(0xFFFFFFFF)
ZERO, ONE, HALF, ALL = np.uint64(0), np.uint64(1), np.uint64(32), np.uint64(63)
FRACTION, EXPONENT = np.uint64((1 << 52) - 1), np.uint64(0x7FF)
AHEAD = 24
"""Number of rows between the current row and the row whose value is prefetched."""
WORD, DIGIT, FIVE = np.uint64(8), np.uint64(4), np.uint64(5)


class SumAddresses(NamedTuple):
    """Addresses of the values to add up and of the scratch memory.

    >>> ints = lambda *v: np.array(v, np.int64)
    >>> ends, out, zero = ints(0, 0, 0), np.empty(2 * MOST, np.uint8), np.uint64(0)
    >>> values, cells = np.array([0.1, 1e9]).view(np.uint64), GroupTimeCells(ints(0, 1), ints(0, 1, 2), ints(0, 1, 2))
    >>> ones, work = np.ones(2, np.uint64), np.zeros(WORK, np.uint64)
    >>> accumulate_sums(cells, values, np.empty(0, np.uint8), ones, FLOAT, False, ints(0, 0, 0), zero, work, 0, ends,
    ...     out)
    2
    >>> int.from_bytes(out[4 : ends[1]], "little") << 32 * int(out[0]) == int(0.1 * 2**60) << 1074 - 60
    True
    """

    rows: np.uint64
    last: int
    """The number of the last row."""
    values: np.uint64
    present: np.uint64
    """0 if no value is null."""
    diffs: np.uint64
    digits: np.uint64
    """int64[DIGITS]. Until `_carry_digits`, a digit can exceed 32 bits or be negative."""
    wide: np.uint64
    counts: np.uint64


@kernel
def _add_to_word(at: np.uint64, number: np.uint64, sign: np.uint64) -> None:
    """Add a number to a word in memory, or subtract the number if all bits of ``sign`` are ones."""
    store_u64(at, load_u64(at) + (number ^ sign) - sign)


@kernel
def _multiply_digits(wide: np.uint64, word: np.uint64, upper: np.uint64, more: np.uint64, square: bool) -> int:
    """Multiply a 128-bit magnitude, or its square, by a 64-bit magnitude. Return the number of digits of the product.

    wide: the address of WIDE words; the first half receives the digits.
    """
    size = 4 if upper != ZERO else 2
    given = wide + WORD * np.uint64(12)
    for i in range(12):
        store_u64(wide + WORD * np.uint64(i), ZERO)
    for i in range(4):
        part = word if i < 2 else upper
        store_u64(given + WORD * np.uint64(i), part >> HALF if i % 2 else part & LOW)
    factors, times = given, size
    for turn in range(2):
        if turn == 0 and not square:
            continue
        if turn == 1:
            if square:
                size *= 2
                for i in range(size):
                    store_u64(given + WORD * np.uint64(i), load_u64(wide + WORD * np.uint64(i)))
                    store_u64(wide + WORD * np.uint64(i), ZERO)
            times, factors = 2, given + WORD * np.uint64(8)
            store_u64(factors, more & LOW)
            store_u64(factors + WORD, more >> HALF)
        for i in range(size):
            carry, digit = ZERO, load_u64(given + WORD * np.uint64(i))
            for j in range(times):
                to = wide + WORD * np.uint64(i + j)
                now = digit * load_u64(factors + WORD * np.uint64(j)) + load_u64(to) + carry
                store_u64(to, now & LOW)
                carry = now >> HALF
            store_u64(wide + WORD * np.uint64(i + times), carry)
    return size + 2


@kernel
def _load_state(at: np.uint64, size: int, given: SumAddresses) -> tuple[int, int]:
    """Load a state into the scratch memory. Return the places of the state's lowest and highest digits."""
    for i in range(3):
        store_u64(given.counts + WORD * np.uint64(i), ZERO)
    if size == 0:
        return DIGITS, -1
    header, end = load_u32(at), at + np.uint64(size)
    at += DIGIT
    for i in range(3):
        if header & np.uint64(NEVER << i) != ZERO:
            store_u64(given.counts + WORD * np.uint64(i), load_u64(at))
            at += WORD
    place = header & np.uint64(0xFFFF)
    top = place + ((end - at) >> np.uint64(2))
    while at < end:
        digit = load_u32(at)
        at += DIGIT
        if at == end:
            digit |= (ZERO - (digit >> np.uint64(31))) << HALF
        store_u64(given.digits + WORD * place, digit)
        place += ONE
    return int(header & np.uint64(0xFFFF)), int(top) - 1


@kernel
def _carry_digits(digits: np.uint64, low: int, top: int) -> tuple[int, int]:
    """Carry until each digit has 32 bits. Return the place after the highest digit, and the last carry (0 or -1)."""
    carry, place = np.int64(0), low
    while place <= top or (carry != 0 and carry != -1):
        at = digits + WORD * np.uint64(place)
        now = np.int64(load_u64(at)) + carry
        store_u64(at, np.uint64(now) & LOW)
        carry = now >> np.int64(32)
        place += 1
    return place, int(carry)


@kernel
def _store_state(at: np.uint64, given: SumAddresses, low: int, top: int) -> tuple[int, int]:
    """Write a state.

    Return the size of the state in bytes, and the place of its highest digit. No carry is left above this place. After
    the carries, every digit has 32 bits, except the highest digit, which holds the sign of the sum.
    """
    digits, low = given.digits, min(low, top + 1)
    end, carry = _carry_digits(digits, low, top)
    top, implied = end - 1, LOW if carry != 0 else ZERO
    while top >= low and load_u64(digits + WORD * np.uint64(top)) == implied:
        # If the highest digit is implied, it is not stored, and the next addition must not read it.
        store_u64(digits + WORD * np.uint64(top), ZERO)
        top -= 1
    first = low
    while first <= top and load_u64(digits + WORD * np.uint64(first)) == ZERO:
        first += 1
    header, to = ZERO, at + DIGIT
    for i in range(3):
        count = load_u64(given.counts + WORD * np.uint64(i))
        if count != ZERO:
            header |= np.uint64(NEVER << i)
            store_u64(to, count)
            to += WORD
    if first <= top or carry != 0:
        header |= np.uint64(first)
        for i in range(first, top + 1):
            store_u32(to, load_u64(digits + WORD * np.uint64(i)))
            to += DIGIT
        # Add a digit if the highest digit does not have the sign of the sum.
        if first > top or load_u64(digits + WORD * np.uint64(top)) >> np.uint64(31) != implied & ONE:
            store_u32(to, implied)
            to += DIGIT
    if header == ZERO and to == at + DIGIT:
        return 0, top
    store_u32(at, header)
    if carry != 0:
        top += 1
        store_u64(digits + WORD * np.uint64(top), ZERO - ONE)
    return int(to - at), top


@kernel
def _add_integers(given: SumAddresses, begin: int, end: int) -> None:
    """Add up the values of a cell, each multiplied by its diff, in 192 bits."""
    low = high = top = ZERO
    for place in range(begin, end):
        row = load_u64(given.rows + WORD * np.uint64(place))
        ahead = WORD * load_u64(given.rows + WORD * np.uint64(min(place + AHEAD, given.last)))
        prefetch(given.values + ahead)
        prefetch(given.diffs + ahead)
        if given.present == ZERO or load_u8(given.present + row) != ZERO:
            value, diff = load_u64(given.values + WORD * row), load_u64(given.diffs + WORD * row)
            word, upper = mul128(value, diff)
            upper -= (value & (ZERO - (diff >> ALL))) + (diff & (ZERO - (value >> ALL)))
            low += word
            carry = np.uint64(low < word)
            high += carry
            carry = np.uint64(high < carry)
            high += upper
            top += carry + np.uint64(high < upper) + (ZERO - (upper >> ALL))
    at = given.digits
    for i in range(6):
        part = low if i < 2 else high if i < 4 else top
        digit = part >> HALF if i % 2 else part & LOW
        if i == 5:
            digit |= (ZERO - (digit >> np.uint64(31))) << HALF
        store_u64(at, load_u64(at) + digit)
        at += WORD


@kernel
def _add_product(
    given: SumAddresses, number: np.uint64, upper: np.uint64, more: np.uint64, bit: np.uint64, sign: np.uint64
) -> int:
    """Add the product of two magnitudes to the digits. Return the place of the highest digit.

    The product's lowest bit is at the given bit.
    """
    at, shift = given.digits + WORD * (bit >> FIVE), bit & np.uint64(31)
    if more == ONE and upper == ZERO and number >> np.uint64(53) == ZERO:
        over = (number >> ONE) >> (ALL - shift)
        number <<= shift
        _add_to_word(at, number & LOW, sign)
        _add_to_word(at + WORD, number >> HALF, sign)
        _add_to_word(at + np.uint64(16), over, sign)
        return int(bit >> FIVE) + 2
    size = _multiply_digits(given.wide, number, upper, more, False) if more != ZERO else 10
    over = ZERO
    for i in range(size + 1):
        now = (load_u64(given.wide + WORD * np.uint64(i)) << shift) | over
        _add_to_word(at + WORD * np.uint64(i), now & LOW, sign)
        over = now >> HALF
    return int(bit >> FIVE) + size


@kernel
def _add_values(
    given: SumAddresses, begin: int, end: int, kind: int, square: bool, low: int, top: int
) -> tuple[int, int]:
    """Add up the values of a cell, or their squares. Return the places of the lowest and highest digits of the sum."""
    for place in range(begin, end):
        row = load_u64(given.rows + WORD * np.uint64(place))
        ahead = WORD * load_u64(given.rows + WORD * np.uint64(min(place + AHEAD, given.last)))
        prefetch(given.values + ahead)
        prefetch(given.diffs + ahead)
        if given.present != ZERO and load_u8(given.present + row) == ZERO:
            continue
        diff, bit = load_u64(given.diffs + WORD * row), ZERO
        sign = ZERO - (diff >> ALL)
        more = (diff ^ sign) - sign
        at = given.values + (row << np.uint64(4) if kind == DECIMAL else row << np.uint64(3))
        word, upper = load_u64(at), ZERO
        if kind == FLOAT:
            exponent = word >> np.uint64(52) & EXPONENT
            if exponent == EXPONENT:
                which = 0 if word & FRACTION != ZERO else 1 if word >> ALL == ZERO or square else 2
                _add_to_word(given.counts + WORD * np.uint64(which), diff, ZERO)
                continue
            below = ZERO - (word >> ALL)
            word &= FRACTION
            if exponent != ZERO:
                word |= FRACTION + ONE
                bit = exponent - ONE
        else:
            upper = load_u64(at + WORD) if kind == DECIMAL else ZERO - (word >> ALL)
            below = ZERO - (upper >> ALL)
            word = (word ^ below) - below
            upper = (upper ^ below) + (below & np.uint64(word == ZERO))
        if word == ZERO and upper == ZERO:
            continue
        if square:
            bit <<= ONE
            _multiply_digits(given.wide, word, upper, more, True)
            more = ZERO
        else:
            sign ^= below
        low = min(low, int(bit >> FIVE))
        top = max(top, _add_product(given, word, upper, more, bit, sign))
    return low, top


@kernel
def accumulate_sums(
    cells: GroupTimeCells,
    values: Words,
    present: Flags,
    diffs: Words,
    kind: int,
    square: bool,
    held_ends: Ints,
    held: np.uint64,
    work: Words,
    begin: int,
    ends: Ints,
    out: Flags,
) -> int:
    """Add values, or their squares, multiplied by their diffs, to the sum of each group. O(n + bytes).

    - values, uint64[n]: the value of each row as in memory; [2 n] for DECIMAL.
    - present, uint8[n]: 0 for each null. ``present`` has size 0 if no value is null.
    - diffs, int64[n]: the diff of each row, viewed as uint64.
    - held: the address of the groups' old states, which are stored one after the other.
    - held_ends, int64[g + 1]: where each old state ends.
    - begin: the first group to process; the caller has set the element of ``ends`` for the first cell of this group.
    - work, uint64[WORK]: scratch memory, zeros before the call. The digits in ``work`` are zeros again after the call.
    - ends, int64[c + 1]: where the state after each cell ends in ``out``.
    - out: the states after each cell. The next group needs MOST free bytes for each of its cells.

    Returns g if all groups are processed. If the free space is too small, returns the group to continue with.

    >>> ints = lambda *v: np.array(v, np.int64)
    >>> ends, out, work = ints(0, 0), np.empty(MOST, np.uint8), np.zeros(WORK, np.uint64)
    >>> accumulate_sums(GroupTimeCells(ints(0), ints(0, 1), ints(0, 1)), np.array([3], np.uint64), np.empty(0,
    ...     np.uint8),
    ...        np.array([5], np.uint64), INTEGER, True, ints(0, 0), np.uint64(0), work, 0, ends, out), out[4]
    (1, np.uint8(45))
    """
    starts, firsts, scratch = cells.starts, cells.firsts, np.uint64(work.ctypes.data)
    given = SumAddresses(
        np.uint64(cells.rows.ctypes.data),
        cells.rows.size - 1,
        np.uint64(values.ctypes.data),
        np.uint64(present.ctypes.data) if present.size else ZERO,
        np.uint64(diffs.ctypes.data),
        scratch,
        scratch + WORD * np.uint64(DIGITS),
        scratch + WORD * np.uint64(DIGITS + WIDE),
    )
    base, used = np.uint64(out.ctypes.data), ends[firsts[begin]]
    for group in range(begin, firsts.size - 1):
        if used + MOST * (firsts[group + 1] - firsts[group]) > out.size:
            return group
        low, top = _load_state(held + np.uint64(held_ends[group]), held_ends[group + 1] - held_ends[group], given)
        least = low
        for cell in range(firsts[group], firsts[group + 1]):
            if kind == INTEGER and not square:
                _add_integers(given, starts[cell], starts[cell + 1])
                low, top = 0, max(top, 5)
            else:
                low, top = _add_values(given, starts[cell], starts[cell + 1], kind, square, low, top)
            least = min(least, low)
            size, top = _store_state(base + np.uint64(used), given, low, top)
            used += size
            ends[cell + 1] = used
        for i in range(least, top + 1):
            work[i] = ZERO
    return firsts.size - 1
