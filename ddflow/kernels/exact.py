"""Add up integers, decimals and doubles, or their squares, exactly and without rounding.

A sum is a whole number of units: of 1, of the last digit of the decimal, or of 2**-1074 (2**-2148 for squares). The sum
of integers or decimals is an integer of three or four words (`accumulate_words`). All other sums are stored as 32-bit
digits in two's complement, from the lowest digit to the highest digit that is not implied. Zero has no digits. NaN and
infinities are counted separately. The counts of NaN and infinities can be negative, like multiplicities.

    state: uint32 header: the place of the lowest digit, and a flag for each count (NEVER, UP, DOWN) | counts | digits

Guarantees: a sum does not depend on the order of additions. After every added value has been subtracted again, the
state is empty. If no value is more than 2**120 times another value, a state has at most 40 bytes, plus 24 bytes if it
has three counts.
"""

from typing import NamedTuple

import numpy as np

from ddflow.kernels.arrays import Flags, Ints, Narrow, Words, Words2d
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


class RowsByCell(NamedTuple):
    """The rows of each of c cells; see `accumulate.number_cells`."""

    rows: Ints
    """int64[n]: the rows, sorted by cell."""
    starts: Ints
    """int64[c + 1]: the place of each cell's first row."""


class SumAddresses(NamedTuple):
    """Addresses of the values to add up and of the scratch memory.

    >>> ints = lambda *v: np.array(v, np.int64)
    >>> ends, out, before = ints(0, 0, 0), np.empty(2 * MOST, np.uint8), np.array([-1, -1], np.int32)
    >>> values, cells = np.array([0.1, 1e9]).view(np.uint64), RowsByCell(ints(0, 1), ints(0, 1, 2))
    >>> ones, work = np.ones(2, np.uint64), np.zeros(WORK, np.uint64)
    >>> accumulate_sums(cells, before, values, np.empty(0, np.uint8), ones, FLOAT, False, work, 0, ends, out)
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
def _store_state(at: np.uint64, given: SumAddresses, low: int, top: int) -> int:
    """Write a state, and return its size in bytes. The digits are zeros again after the call."""
    digits, low = given.digits, min(low, top + 1)
    end, carry = _carry_digits(digits, low, top)
    top, implied = end - 1, LOW if carry != 0 else ZERO
    while top >= low and load_u64(digits + WORD * np.uint64(top)) == implied:
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
    for i in range(low, end):
        store_u64(digits + WORD * np.uint64(i), ZERO)
    if header == ZERO and to == at + DIGIT:
        return 0
    store_u32(at, header)
    return int(to - at)


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
    cells: RowsByCell,
    before: Narrow,
    values: Words,
    present: Flags,
    diffs: Words,
    kind: int,
    square: bool,
    work: Words,
    begin: int,
    ends: Ints,
    out: Flags,
) -> int:
    """Add values, or their squares, multiplied by their diffs, to the sum of each group. O(n + bytes).

    - before: see `number_cells`.
    - values, uint64[n]: the value of each row as in memory; [2 n] for DECIMAL.
    - present, uint8[n]: 0 for each null. ``present`` has size 0 if no value is null.
    - diffs, int64[n]: the diff of each row, viewed as uint64.
    - work, uint64[WORK]: scratch memory, zeros before and after the call.
    - begin: the first cell to process.
    - ends, int64[s + 1]: where each state ends in ``out``.
    - out: the stored states, which the caller has written, followed by the states after the cells. The next cell needs
      MOST free bytes.

    Returns c if all cells are processed. If the free space is too small, returns the cell to continue with.

    >>> ints = lambda *v: np.array(v, np.int64)
    >>> ends, out, work = ints(0, 0), np.empty(MOST, np.uint8), np.zeros(WORK, np.uint64)
    >>> accumulate_sums(RowsByCell(ints(0), ints(0, 1)), np.array([-1], np.int32), np.array([3], np.uint64),
    ...     np.empty(0, np.uint8), np.array([5], np.uint64), INTEGER, True, work, 0, ends, out), out[4]
    (1, np.uint8(45))
    """
    starts, scratch = cells.starts, np.uint64(work.ctypes.data)
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
    held, base = ends.size - 1 - before.size, np.uint64(out.ctypes.data)
    for cell in range(begin, before.size):
        used, old = ends[held + cell], before[cell]
        if used + MOST > out.size:
            return cell
        at, size = (ends[old], ends[old + 1] - ends[old]) if old >= 0 else (np.int64(0), np.int64(0))
        low, top = _load_state(base + np.uint64(at), int(size), given)
        low, top = _add_values(given, starts[cell], starts[cell + 1], kind, square, low, top)
        ends[held + cell + 1] = used + _store_state(base + np.uint64(used), given, low, top)
    return before.size


@kernel
def _add_words(
    states: Words2d, at: int, low: np.uint64, middle: np.uint64, high: np.uint64, top: np.uint64, width: int
) -> None:
    """Add an integer of ``width`` words, 3 or 4, to a state."""
    total = states[at, 0] + low
    states[at, 0], carry = total, np.uint64(total < low)
    middle += carry
    carry = np.uint64(middle < carry)
    total = states[at, 1] + middle
    states[at, 1], carry = total, carry + np.uint64(total < middle)
    high += carry
    carry = np.uint64(high < carry)
    total = states[at, 2] + high
    states[at, 2] = total
    if width == 4:
        states[at, 3] += top + carry + np.uint64(total < high)


@kernel
def accumulate_words(
    cells: Narrow, before: Narrow, values: Words, present: Flags, diffs: Words, wide: bool, states: Words2d
) -> None:
    """Add integers, multiplied by their diffs, to the sum of each group. O(n).

    - cells, before: see `number_cells`.
    - values: the value of each row, int64[n] viewed as uint64, or 128-bit integers, uint64[2 n], if ``wide``.
    - present, diffs: as for `accumulate_sums`.
    - states, uint64[s, w]: the stored sums, of 3 or 4 words, then 0 for each cell, which the kernel replaces
      by the sum after the cell.

    >>> few, five, states = np.zeros(1, np.int32), np.array([5], np.uint64), np.zeros((2, 3), np.uint64)
    >>> states[0, 0] = 4
    >>> accumulate_words(few + 1, few, five, np.empty(0, np.uint8), five, False, states), states[1].tolist()
    (None, [29, 0, 0])
    """
    every, held, width = present.size == 0, states.shape[0] - before.size, states.shape[1]
    for row in range(cells.size):
        if not every and present[row] == 0:
            continue
        # Multiply without signs. A negative factor is then worth the other factor too much, one factor's width higher.
        diff, low = diffs[row], values[2 * row] if wide else values[row]
        high = values[2 * row + 1] if wide else ZERO - (low >> ALL)
        word, upper = mul128(low, diff)
        more, top = mul128(high, diff)
        upper += more
        top += np.uint64(upper < more)
        below = ZERO - (diff >> ALL)
        part = low & below
        top -= (high & below) + (diff & (ZERO - (high >> ALL))) + np.uint64(upper < part)
        upper -= part
        _add_words(states, int(cells[row]), word, upper, top, ZERO - (top >> ALL), width)
    for cell in range(before.size):
        old = before[cell]
        if old >= 0:
            last = states[old, 3] if width == 4 else ZERO
            _add_words(states, held + cell, states[old, 0], states[old, 1], states[old, 2], last, width)
