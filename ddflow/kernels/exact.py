"""Exact sums: integers, decimals and doubles, or their squares, added up without rounding.

A sum is a whole number of its unit: 1, the last digit of the decimal, or 2**-1074 (2**-2148 of squares). It is kept as
digits of 32 bits in two's complement, from the lowest to the highest that are not implied, empty for zero. NaN and
infinities are counted beside, with the sign of their multiplicity.

    state: uint32 header: the place of the lowest digit, and a flag for each count (NEVER, UP, DOWN) | counts | digits

Guarantees: a sum does not depend on the order of additions, and what was added and taken away leaves nothing. While
values lie within 2**120 of each other, a state has 40 bytes or fewer, and 24 with three counts.
"""

from typing import NamedTuple

import numpy as np

from ddflow.kernels.accumulate import GroupTimeCells
from ddflow.kernels.arrays import Flags, Ints, Words
from ddflow.kernels.compile import kernel
from ddflow.kernels.pointer import load_u8, load_u32, load_u64, mul128, prefetch, store_u32, store_u64

INTEGER, FLOAT, DECIMAL = range(3)
"""What is added up: int64, double, decimal of 128 bits."""
NEVER, UP, DOWN = 1 << 16, 1 << 17, 1 << 18
"""Of a header: NaN, infinity and its negative are counted."""
DIGITS, WIDE, WORK = 148, 24, 176
"""Digits of any sum: of 2 * 2098 bits for squares of doubles, and 31 + 63 for how many.  Words for a product.  Words of
scratch: digits, a product, three counts."""
MOST = 4 + 24 + 4 * DIGITS
"""Bytes of any state."""
LOW = np.uint64(0xFFFFFFFF)
ZERO, ONE, HALF, ALL = np.uint64(0), np.uint64(1), np.uint64(32), np.uint64(63)
FRACTION, EXPONENT = np.uint64((1 << 52) - 1), np.uint64(0x7FF)
AHEAD = 24
"""Rows ahead whose values are asked for."""
WORD, DIGIT, FIVE = np.uint64(8), np.uint64(4), np.uint64(5)


class SumAddresses(NamedTuple):
    """Addresses, of what is added up and of scratch.

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
    """How many rows there are, less one."""
    values: np.uint64
    present: np.uint64
    """0 where all are."""
    diffs: np.uint64
    digits: np.uint64
    """int64[DIGITS], of which each may be beyond 32 bits, and below zero."""
    wide: np.uint64
    counts: np.uint64


@kernel
def _add_to_word(at: np.uint64, number: np.uint64, sign: np.uint64) -> None:
    """Add a number to a word, or subtract it where the sign is all ones."""
    store_u64(at, load_u64(at) + (number ^ sign) - sign)


@kernel
def _multiply_digits(wide: np.uint64, word: np.uint64, upper: np.uint64, more: np.uint64, square: bool) -> int:
    """Digits of a magnitude of 128 bits, or of its square, times one of 64 bits; returns how many.

    wide: address of WIDE words, of which the first half is written.
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
    """Read a state; returns its lowest digit's place, and the highest one's."""
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
    """Bring digits within 32 bits; returns the place behind the highest one, and what is above: 0 or -1."""
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
    """Write a state; returns its bytes, and the highest digit's place, from where on nothing is carried.

    Digits are within 32 bits then, but for the highest one, which has the sign.
    """
    digits, low = given.digits, min(low, top + 1)
    end, carry = _carry_digits(digits, low, top)
    top, implied = end - 1, LOW if carry != 0 else ZERO
    while top >= low and load_u64(digits + WORD * np.uint64(top)) == implied:
        # What is implied must not be found there by the next addition.
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
        # The sign is that of the highest digit: one more, where that has another.
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
    """Add up the values of a cell, each times its diff, in 192 bits."""
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
    """Add a magnitude times another to digits, from a bit on; returns the highest digit's place."""
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
    """Add up the values of a cell, or their squares; returns the lowest and the highest digit's place."""
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
    """Add up values, or their squares, each as often as its diff says, on what each group held.

    values: uint64[n] by row, [2 n] of DECIMAL, as they lie in memory.  present: uint8[n], 0 for null; of size 0 where
    none is.  diffs: int64[n] by row, as uint64.  held_ends: int64[g + 1], and held: the address of the states that
    groups had, one after the other.  work: uint64[WORK] of zeros, whose digits are zeros afterwards.  begin: the first
    group that is still to be done; ends[its first cell] is set.  Written: out, the states after each cell, and ends
    int64[c + 1].  Returns the group to begin with when ``out`` has MOST bytes or more for each of its cells, beyond
    those that are written; g when all are done.  O(n + bytes).

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
