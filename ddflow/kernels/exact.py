"""Exact sums: integers, decimals and doubles, or their squares, added up without rounding.

Invariant: a sum is a whole number of its unit: 1, the last digit of the decimal, or 2**-1074 (2**-2148 of squares), of
which every double is a multiple. So it does not depend on the order of additions, and what was added and taken away
leaves nothing. It is kept as its digits of 32 bits in two's complement, from the lowest to the highest that are not
implied: empty for zero. NaN and infinities are counted beside, with the sign of their multiplicity.

    state: uint32 header: the place of the lowest digit, and a flag for each count (NEVER, UP, DOWN) | counts | digits

While values lie within 2**120 of each other their sum has 9 digits or fewer: 40 bytes, and 24 with three counts.

>>> import numpy as np
>>> ints = lambda *v: np.array(v, np.int64)
>>> ends, out, zero = ints(0, 0, 0), np.empty(2 * MOST, np.uint8), np.uint64(0)
>>> values, cells = np.array([0.1, 1e9]).view(np.uint64), Cells(ints(0, 1), ints(0, 1, 2), ints(0, 1, 2))
>>> work = np.zeros(DIGITS, np.int64), np.zeros(WIDE, np.uint64), ints(0, 0, 0)
>>> add_up(cells, values, np.empty(0, np.uint8), ints(1, 1), FLOAT, False, ints(0, 0, 0), zero, work, 0, ends, out)
2
>>> int.from_bytes(out[4 : ends[1]], "little") << 32 * int(out[0]) == int(0.1 * 2**60) << 1074 - 60
True
"""

import numpy as np

from ddflow.kernels.arrays import Flags, Ints, Words
from ddflow.kernels.cells import Cells
from ddflow.kernels.compile import kernel
from ddflow.kernels.pointer import load_u32, load_u64, mul128, store_u32, store_u64

INTEGER, FLOAT, DECIMAL = range(3)
"""What is added up: int64, double, decimal of 128 bits."""
NEVER, UP, DOWN = 1 << 16, 1 << 17, 1 << 18
"""Of a header: NaN, infinity and its negative are counted."""
DIGITS, WIDE = 148, 24
"""Digits of any sum: of 2 * 2098 bits for squares of doubles, and 31 + 63 for how many; and of any product."""
MOST = 4 + 24 + 4 * DIGITS
"""Bytes of any state."""
LOW = np.uint64(0xFFFFFFFF)
ZERO, ONE, HALF, ALL = np.uint64(0), np.uint64(1), np.uint64(32), np.uint64(63)
FRACTION, EXPONENT = np.uint64((1 << 52) - 1), np.uint64(0x7FF)


@kernel
def _product(wide: Words, word: np.uint64, upper: np.uint64, more: np.uint64, square: bool) -> int:
    """Digits of a magnitude of 128 bits, or of its square, times one of 64 bits; returns how many.

    wide: uint64[WIDE], the first half is written.
    """
    size = 4 if upper != ZERO else 2
    wide[:12] = ZERO
    wide[12], wide[13], wide[14], wide[15] = word & LOW, word >> HALF, upper & LOW, upper >> HALF
    if square:
        for i in range(size):
            carry = ZERO
            for j in range(size):
                now = wide[12 + i] * wide[12 + j] + wide[i + j] + carry
                wide[i + j], carry = now & LOW, now >> HALF
            wide[i + size] = carry
        size *= 2
        if more == ONE:
            return size
        wide[12:20] = wide[:8]
        wide[:8] = ZERO
    for i in range(size):
        carry = ZERO
        for j in range(2):
            now = wide[12 + i] * (more & LOW if j == 0 else more >> HALF) + wide[i + j] + carry
            wide[i + j], carry = now & LOW, now >> HALF
        wide[i + 2] = carry
    return size + 2


@kernel
def _load(at: np.uint64, size: int, digits: Ints, counts: Ints) -> tuple[int, int]:
    """Read a state; returns its lowest digit's place, and the highest one's."""
    counts[:] = 0
    if size == 0:
        return DIGITS, -1
    header, end = load_u32(at), at + np.uint64(size)
    at += np.uint64(4)
    for i in range(3):
        if header & np.uint64(NEVER << i) != ZERO:
            counts[i] = np.int64(load_u64(at))
            at += np.uint64(8)
    low = top = np.int64(header & np.uint64(0xFFFF))
    while at < end:
        digits[top] = np.int64(load_u32(at))
        at += np.uint64(4)
        top += 1
    if top > low and digits[top - 1] >= 1 << 31:
        digits[top - 1] -= 1 << 32
    return low, top - 1


@kernel
def _store(at: np.uint64, digits: Ints, counts: Ints, low: int, top: int) -> tuple[int, int]:
    """Write a state; returns its bytes, and the highest digit's place, from where on nothing was carried.

    Digits come out within 32 bits each, but for the highest one, which has the sign.
    """
    carry = np.int64(0)
    low = place = min(low, top + 1)
    while place <= top or (carry != 0 and carry != -1):
        now = digits[place] + carry
        digits[place], carry = now & 0xFFFFFFFF, now >> 32
        place += 1
    top, implied = place - 1, carry & 0xFFFFFFFF
    while top >= low and digits[top] == implied:
        top -= 1
    first = low
    while first <= top and digits[first] == 0:
        first += 1
    header, to = np.int64(0), at + np.uint64(4)
    for i in range(3):
        if counts[i] != 0:
            header |= NEVER << i
            store_u64(to, np.uint64(counts[i]))
            to += np.uint64(8)
    if top >= first or carry != 0:
        # The sign is that of the highest digit: one more, where that has another.
        sign = top < first or digits[top] >> 31 != -carry
        first = min(first, top + 1)
        header |= first
        for i in range(first, top + 1):
            store_u32(to, np.uint64(digits[i]))
            to += np.uint64(4)
        if sign:
            store_u32(to, np.uint64(implied))
            to += np.uint64(4)
    if to == at + np.uint64(4) and header == 0:
        return 0, top
    store_u32(at, np.uint64(header))
    if carry != 0:
        # Digits above are implied, and must not be found there by the next addition.
        for i in range(top + 1, place):
            digits[i] = 0
        digits[top + 1] = -1
        top += 1
    return np.int64(to - at), top


@kernel
def add_up(
    cells: Cells,
    values: Words,
    present: Flags,
    diffs: Words,
    kind: int,
    square: bool,
    held_ends: Ints,
    held: np.uint64,
    work: tuple[Ints, Words, Ints],
    begin: int,
    ends: Ints,
    out: Flags,
) -> int:
    """Add up values, or their squares, each as often as its diff says, on what each group held.

    values: uint64[n] by row, [2 n] of DECIMAL, as they lie in memory.  present: uint8[n], 0 for null; of size 0 where
    none is.  diffs: int64[n] by row, as uint64.  held_ends: int64[g + 1], and held: the address of the states that
    groups had, one after the other.  work: int64[DIGITS] of zeros, which they are afterwards; uint64[WIDE]; int64[3].
    begin: the first group that is still to be done; ends[its first cell] is set.  Written: out, the states after each
    cell, and ends int64[c + 1].  Returns the group to begin with when ``out`` has at least MOST bytes for each of its
    cells, beyond those that are written; g when all are done.  O(n + bytes).

    >>> ints = lambda *v: np.array(v, np.int64)
    >>> ends, out, work = ints(0, 0), np.empty(MOST, np.uint8), (np.zeros(DIGITS, np.int64), np.zeros(WIDE, np.uint64))
    >>> one = Cells(ints(0), ints(0, 1), ints(0, 1))
    >>> add_up(one, np.array([3], np.uint64), np.empty(0, np.uint8), np.array([5], np.uint64), INTEGER, True,
    ...        ints(0, 0), np.uint64(0), (*work, ints(0, 0, 0)), 0, ends, out), out[4]
    (1, np.uint8(45))
    """
    rows, starts, firsts = cells
    digits, wide, counts = work
    every, base, used = present.size == 0, np.uint64(out.ctypes.data), ends[firsts[begin]]
    for group in range(begin, firsts.size - 1):
        if used + MOST * (firsts[group + 1] - firsts[group]) > out.size:
            return group
        size = held_ends[group + 1] - held_ends[group]
        low, top = _load(held + np.uint64(held_ends[group]), size, digits, counts)
        least = low
        for cell in range(firsts[group], firsts[group + 1]):
            sum_low = sum_high = sum_top = ZERO
            for place in range(starts[cell], starts[cell + 1]):
                row = rows[place]
                if not every and present[row] == 0:
                    continue
                diff = diffs[row]
                if kind == INTEGER and not square:
                    value = values[row]
                    word, upper = mul128(value, diff)
                    upper -= (value & (ZERO - (diff >> ALL))) + (diff & (ZERO - (value >> ALL)))
                    sum_low += word
                    carry = np.uint64(sum_low < word)
                    sum_high += carry
                    carry = np.uint64(sum_high < carry)
                    sum_high += upper
                    sum_top += carry + np.uint64(sum_high < upper) + (ZERO - (upper >> ALL))
                    continue
                negative, bit = diff >> ALL, ZERO
                more = ZERO - diff if negative != ZERO else diff
                word, upper = values[row << 1 if kind == DECIMAL else row], ZERO
                if kind == FLOAT:
                    exponent = word >> np.uint64(52) & EXPONENT
                    if exponent == EXPONENT:
                        which = 0 if word & FRACTION != ZERO else 1 if word >> ALL == ZERO or square else 2
                        counts[which] += np.int64(diff)
                        continue
                    negative ^= word >> ALL
                    word &= FRACTION
                    if exponent != ZERO:
                        word |= np.uint64(1 << 52)
                        bit = exponent - ONE
                else:
                    upper = values[(row << 1) + 1] if kind == DECIMAL else ZERO - (word >> ALL)
                    if upper >> ALL != ZERO:
                        negative ^= ONE
                        word, upper = ZERO - word, ~upper + np.uint64(word == ZERO)
                if square:
                    negative, bit = diff >> ALL, bit << ONE
                if word == ZERO and upper == ZERO:
                    continue
                sign = np.int64(1) - np.int64(negative << ONE)
                at, shift = np.int64(bit >> np.uint64(5)), bit & np.uint64(31)
                low = min(low, at)
                if kind == FLOAT and not square and more == ONE:
                    over = (word >> ONE) >> (ALL - shift)
                    word <<= shift
                    digits[at] += sign * np.int64(word & LOW)
                    digits[at + 1] += sign * np.int64(word >> HALF)
                    digits[at + 2] += sign * np.int64(over)
                    top = max(top, at + 2)
                else:
                    size = _product(wide, word, upper, more, square)
                    over = ZERO
                    for i in range(size + 1):
                        now = (wide[i] << shift) | over
                        digits[at + i] += sign * np.int64(now & LOW)
                        over = now >> HALF
                    top = max(top, at + size)
            if kind == INTEGER and not square:
                digits[0] += np.int64(sum_low & LOW)
                digits[1] += np.int64(sum_low >> HALF)
                digits[2] += np.int64(sum_high & LOW)
                digits[3] += np.int64(sum_high >> HALF)
                digits[4] += np.int64(sum_top & LOW)
                digits[5] += np.int64(sum_top) >> 32
                low, top = 0, max(top, 5)
            least = min(least, low)
            size, top = _store(base + np.uint64(used), digits, counts, low, top)
            used += size
            ends[cell + 1] = used
        for i in range(least, top + 1):
            digits[i] = 0
    return firsts.size - 1
