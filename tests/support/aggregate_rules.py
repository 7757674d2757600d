"""Define the aggregates with exact fractions, over values with multiplicities. Values may be null.

The rules are simple, not fast. A sum over all values is an exact fraction, and only the result is rounded. Square roots
are computed by bisection.

>>> total([(0.1, 1), (0.2, 1), (None, 5)]), average([(1, 2), (4, 1)]), spread([(1, 1), (3, 1)], root=True)
(0.30000000000000004, 2.0, 1.0)
"""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence
from decimal import ROUND_HALF_UP, Context, Decimal
from fractions import Fraction
from typing import Any

Values = Sequence[tuple[Any, int]]
INT64 = 2**63


class Overflow(Exception):
    """The error for a result that does not fit its type."""


def counted(values: Values) -> int:
    """Count the values that are not null."""
    return sum(n for value, n in values if value is not None)


def truth(values: Values, every: bool) -> bool | None:
    """Return whether all values are true, or whether some value is true."""
    true, false = (sum(n for value, n in values if value is which) > 0 for which in (True, False))
    return None if not (true or false) else not false if every else true


def total(values: Values) -> Any:
    """Return the sum. The sum is an integer for integers, a decimal for decimals, and the nearest float for floats."""
    values = [(value, n) for value, n in values if value is not None]
    if counted(values) == 0:
        return None
    if all(isinstance(value, int) for value, _ in values):
        exact = sum(value * n for value, n in values)
        if not -INT64 <= exact < INT64:
            raise Overflow
        return exact
    if all(isinstance(value, Decimal) for value, _ in values):
        return sum((Context(prec=300).multiply(value, n) for value, n in values), Decimal(0))
    return _over(values, 1)


def average(values: Values, digits: int | None = None) -> Any:
    """Return the sum divided by the count. For decimals, the result has ``digits`` places."""
    values = [(value, n) for value, n in values if value is not None]
    count = counted(values)
    if count == 0:
        return None
    if digits is not None:
        exact = sum((Fraction(value) * n for value, n in values), Fraction(0)) / count
        shifted = abs(exact) * 10**digits
        found = (2 * shifted.numerator + shifted.denominator) // (2 * shifted.denominator)
        return Decimal(int(math.copysign(1, exact)) * found).scaleb(-digits, Context(prec=300, rounding=ROUND_HALF_UP))
    return _over(values, count)


def spread(values: Values, sample: bool = False, root: bool = False) -> float | None:
    """Return the variance, or with ``root`` the square root of the variance."""
    values = [(value, n) for value, n in values if value is not None]
    count = counted(values)
    if count == 0 or (sample and count == 1):
        return None
    special: dict[str, int] = {}
    for value, n in values:
        if isinstance(value, float) and not math.isfinite(value):
            special[str(value)] = special.get(str(value), 0) + n
    if any(special.values()):
        return math.nan
    finite = [(Fraction(value), n) for value, n in values if not isinstance(value, float) or math.isfinite(value)]
    sums, squares = sum(value * n for value, n in finite), sum(value * value * n for value, n in finite)
    exact = (count * squares - sums * sums) / Fraction(count * (count - 1 if sample else count))
    return _root(exact) if root else _nearest(exact)


def _over(values: Values, count: int) -> float:
    special: dict[str, int] = {}
    for value, n in values:
        if not math.isfinite(value):
            special[str(value)] = special.get(str(value), 0) + n
    ups, downs = special.get("inf", 0), -special.get("-inf", 0)
    signs = {math.copysign(1, each) for each in (ups, downs) if each}
    if special.get("nan", 0) or len(signs) > 1:
        return math.nan
    if signs:
        return math.inf * signs.pop() * (1 if count > 0 else -1)
    return _nearest(sum((Fraction(value) * n for value, n in values if math.isfinite(value)), Fraction(0)) / count)


def _nearest(exact: Fraction) -> float:
    try:
        return float(exact)
    except OverflowError:
        return math.inf if exact > 0 else -math.inf


def _root(exact: Fraction) -> float:
    if exact < 0:
        return math.nan
    low, high = 0, 0x7FF << 52  # positive doubles sort like their bits
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if Fraction(_float(middle)) ** 2 <= exact else (low, middle)
    above = Fraction(_float(high)) if high < 0x7FF << 52 else Fraction(2) ** 1024  # from the middle on, infinity
    between = (Fraction(_float(low)) + above) / 2
    return _float(high if between**2 < exact or (between**2 == exact and low % 2) else low)


def _float(bits: int) -> float:
    value: float = struct.unpack("<d", struct.pack("<q", bits))[0]
    return value


def _rank(value: Any) -> tuple[int, Any]:
    """Return the sort key of a value that is not null. NaN is the greatest value."""
    return (1, 0) if isinstance(value, float) and math.isnan(value) else (0, value)


def _place(value: Any, descending: bool, nulls_first: bool) -> Any:
    if value is None:
        return (-1 if nulls_first else 1,)
    return 0, _Turned(_rank(value)) if descending else _rank(value)


class _Turned:
    """A wrapper that reverses the order of a sort key."""

    def __init__(self, of: Any) -> None:
        self.of = of

    def __lt__(self, other: _Turned) -> bool:
        return bool(other.of < self.of)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Turned) and self.of == other.of

    def __hash__(self) -> int:
        return hash(self.of)


def in_order(
    rows: Sequence[tuple[Sequence[Any], Any, int]], ways: Sequence[tuple[bool, bool]], ignore_nulls: bool
) -> list[Any]:
    """Return the values sorted by their order, each value as often as it occurs.

    The input is (order, value, multiplicity); equal orders are sorted by value.

    ``ways``: whether an order is descending, and whether its nulls come first.
    """

    def key(row: tuple[Sequence[Any], Any, int]) -> Any:
        order = [_place(value, *way) for value, way in zip(row[0], ways, strict=True)]
        return [*order, _place(row[1], False, True)]

    kept = [row for row in rows if not (ignore_nulls and row[1] is None)]
    return [value for _, value, n in sorted(kept, key=key) for _ in range(n)]


def extreme(values: Values, greatest: bool) -> Any:
    """Return the least or the greatest value. NaN is the greatest value of all."""
    there = in_order([((), value, n) for value, n in values], [], True)
    return None if not there else there[-1 if greatest else 0]


def distinct(values: Values) -> int:
    """Count the distinct values. Nulls, and tuples that contain a null, do not count."""
    some = [value if isinstance(value, tuple) else (value,) for value, n in values if n]
    plain = [tuple("nan" if each != each else each for each in value) for value in some]
    return len({value for value in plain if None not in value})
