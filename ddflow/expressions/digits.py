"""Rounding and rescaling as Spark does it: half up on the decimal digits that are written, not on the binary value.

Invariant: ``round_double(2.675, 2)`` is 2.68, since 2.675 is what is written, though the double lies below it; and a
decimal that does not fit its precision becomes null, for the caller to accept or refuse. Multiplying by a power of ten
rounds already, and Arrow's own casts between decimals and doubles are off by a last bit in one case of four. Functions
take arrays and give arrays; nulls stay null; nothing fails here.

>>> import pyarrow as pa
>>> round_double(pa.array([2.675, -2.5, 1.005, None]), 2).to_pylist()
[2.68, -2.5, 1.01, None]
>>> decimal_to_double(pa.array(["0.3"]).cast(pa.decimal128(10, 2))).to_pylist()
[0.3]
"""

from collections.abc import Callable
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ddflow.expressions.types import DOUBLE, INT64, MOST_DIGITS

WIDEST = 76  # digits of a decimal256
_EXACT = 2.0**52  # from here on a double has no fraction
_EXACT_POWERS = 22  # powers of ten up to here are exact as doubles
_EXACT_DIGITS = 15  # integers of so many digits are exact as doubles


def with_numpy(compute: Callable[..., np.ndarray[Any, Any]], *arrays: pa.Array) -> pa.Array:
    """Run ``compute`` over the values of primitive arrays of one length; null if any of them is null. Two passes."""
    plain = [pc.fill_null(array, 1) if array.null_count else array for array in arrays]
    with np.errstate(all="ignore"):
        values = compute(*(array.to_numpy(zero_copy_only=True) for array in plain))
    result = pa.array(values)
    for array in arrays:
        if array.null_count:
            result = pc.if_else(pc.is_valid(array), result, pa.scalar(None, result.type))
    return result


def round_double(array: pa.Array, places: int) -> pa.Array:
    """Round doubles half up to ``places`` digits after the point (before it if negative). O(n).

    The candidate tie (k + 0.5) / 10^places is itself rounded to a double, and a value that is written as the tie is
    that very double: so comparing with it decides as comparing the written digits would, up to 14 digits.  Values of
    which more digits stay are rounded in their text.
    """
    places = max(-300, min(places, 300))
    power = 10.0 ** abs(places)

    def compute(values: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        size = np.abs(values)
        scaled = size * power if places >= 0 else size / power
        whole = np.floor(scaled)
        tie = (whole + 0.5) / power if places >= 0 else (whole + 0.5) * power
        whole += size >= tie
        rounded = whole / power if places >= 0 else whole * power
        keep = ~(scaled < _EXACT) if places >= 0 else ~np.isfinite(values)  # no digits to lose, infinite, or NaN
        return np.where(keep, values, np.copysign(rounded, values) + 0.0)

    def long(values: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        size = np.abs(values) * (power if places >= 0 else 1.0)
        found: np.ndarray[Any, Any] = (size >= 1e14) & (size < (1e17 if places >= 0 else 1e30))
        return found

    result = with_numpy(compute, array)
    if abs(places) <= _EXACT_POWERS:
        many = pc.fill_null(with_numpy(long, array), False)
        if many.true_count:
            exact = array.filter(many).cast(pa.string()).cast(pa.decimal256(WIDEST, 40))
            exact = pc.round(exact, places, round_mode="half_towards_infinity").cast(pa.string()).cast(DOUBLE)
            result = pc.replace_with_mask(result, many, exact)
    return result


def fit(array: pa.Array, precision: int, scale: int) -> pa.Array:
    """Round decimals half up to ``scale``, as decimal(precision, scale); null if they do not fit."""
    kind = array.type
    if kind == pa.decimal128(precision, scale):
        return array
    if scale < kind.scale:
        array = _round(array, scale)
    if array.type.precision - array.type.scale > precision - scale:
        limit = pa.scalar(Decimal(10) ** (precision - scale), array.type)
        array = pc.if_else(pc.less(pc.abs(array), limit), array, pa.scalar(None, array.type))
    return array.cast(pa.decimal128(precision, scale))


def _round(array: pa.Array, places: int) -> pa.Array:
    """Round half up in the same scale, with one more digit, because 9.9 becomes 10.0."""
    kind = array.type
    more = kind.precision + 1
    wide = pa.decimal128(more, kind.scale) if more <= MOST_DIGITS else pa.decimal256(WIDEST, kind.scale)
    array = array.cast(wide)
    return array if places >= kind.scale else pc.round(array, places, round_mode="half_towards_infinity")


def round_decimal(array: pa.Array, places: int, precision: int, scale: int) -> pa.Array:
    """Round decimals half up to ``places``, as decimal(precision, scale); null if they do not fit."""
    return fit(_round(array, places), precision, scale)


def decimal_to_double(array: pa.Array, kind: pa.DataType = DOUBLE) -> pa.Array:
    """Convert each decimal to the nearest floating-point number."""
    precision, scale = array.type.precision, array.type.scale
    if kind == DOUBLE and precision <= _EXACT_DIGITS:
        # The same bytes read with scale 0 are the digits as an integer; one exact division then rounds once.
        buffers, length, start = array.buffers(), len(array), array.offset
        whole = pa.Array.from_buffers(pa.decimal128(precision, 0), length, buffers, offset=start).cast(INT64)
        return pc.divide(whole.cast(DOUBLE), pa.scalar(10.0**scale))
    return array.cast(pa.string()).cast(kind)


def double_to_decimal(array: pa.Array, precision: int, scale: int) -> pa.Array:
    """Round a double's shortest text half up to a decimal; null if it does not fit, is infinite or NaN."""
    array = array.cast(DOUBLE)  # Spark widens a float first, and so rounds the digits of the double
    size = pc.abs(array)
    # What is bounded here is for the parser's sake, which takes 76 digits; `fit` then draws the exact line.
    inside = pc.less(size, pa.scalar(10.0 ** (precision - scale + 1)))
    array = pc.if_else(inside, array, pa.scalar(None, array.type))
    tiny = pc.less(size, pa.scalar(10.0 ** -(scale + 1)))
    array = pc.if_else(tiny, 0.0, array)
    return fit(array.cast(pa.string()).cast(pa.decimal256(WIDEST, scale + 18)), precision, scale)
