"""Round and rescale numbers by their decimal digits, and parse text, like Spark.

Guarantees: a number is rounded by the digits of its decimal text, and halves round up, so 2.675 rounds to 2.68. A
decimal with more digits than its precision becomes null. Text that Spark's cast refuses becomes null. The caller may
raise an error for such nulls. Nulls stay null.
Limits: years have four digits. A named time zone (``Europe/Berlin``) is an error.

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

from ddflow.expressions.types import BOOL, DATE, DOUBLE, INT64, MOST_DIGITS, STRING, WALL

WIDEST = 76  # decimal digits of a decimal256
_EXACT = 2.0**52  # doubles from here on have no fraction
_EXACT_POWERS = 22  # powers of ten up to here are exact as doubles
_EXACT_DIGITS = 15  # integers with up to this many digits are exact as doubles


def compute_with_numpy(compute: Callable[..., np.ndarray[Any, Any]], *arrays: pa.Array) -> pa.Array:
    """Run ``compute`` over numpy arrays of the values.

    All arrays have one length. A result is null if any input is null.
    """
    plain = [pc.fill_null(array, 1) if array.null_count else array for array in arrays]
    with np.errstate(all="ignore"):
        values = compute(*(array.to_numpy(zero_copy_only=True) for array in plain))
    result = pa.array(values)
    for array in arrays:
        if array.null_count:
            result = pc.if_else(pc.is_valid(array), result, pa.scalar(None, result.type))
    return result


def round_double(array: pa.Array, places: int) -> pa.Array:
    """Round doubles half up to ``places`` digits after the decimal point.

    A negative number counts digits before the point. O(n). The function compares each value with the midpoint of two
    results, (k + 0.5) / 10^places, computed as a double. If a value has at most 14 digits, and the midpoint has the
    same digits, both are the same double. So the comparison rounds a value of at most 14 digits by its decimal digits.
    A value with more than 14 digits is rounded by its decimal text.
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

    result = compute_with_numpy(compute, array)
    if abs(places) <= _EXACT_POWERS:
        many = pc.fill_null(compute_with_numpy(long, array), False)
        if many.true_count:
            exact = array.filter(many).cast(pa.string()).cast(pa.decimal256(WIDEST, 40))
            exact = pc.round(exact, places, round_mode="half_towards_infinity").cast(pa.string()).cast(DOUBLE)
            result = pc.replace_with_mask(result, many, exact)
    return result


def rescale_decimals(array: pa.Array, precision: int, scale: int) -> pa.Array:
    """Round decimals half up and return decimal(precision, scale). Values that do not fit give null."""
    kind = array.type
    if kind == pa.decimal128(precision, scale):
        return array
    if scale < kind.scale:
        array = _round_half_up(array, scale)
    if array.type.precision - array.type.scale > precision - scale:
        limit = pa.scalar(Decimal(10) ** (precision - scale), array.type)
        array = pc.if_else(pc.less(pc.abs(array), limit), array, pa.scalar(None, array.type))
    return array.cast(pa.decimal128(precision, scale))


def _round_half_up(array: pa.Array, places: int) -> pa.Array:
    """Round decimals half up without a change of scale.

    The result has one more digit than the input, because for example 9.9 becomes 10.0.
    """
    kind = array.type
    more = kind.precision + 1
    wide = pa.decimal128(more, kind.scale) if more <= MOST_DIGITS else pa.decimal256(WIDEST, kind.scale)
    array = array.cast(wide)
    return array if places >= kind.scale else pc.round(array, places, round_mode="half_towards_infinity")


def round_decimal(array: pa.Array, places: int, precision: int, scale: int) -> pa.Array:
    """Round decimals half up to ``places`` digits and return decimal(precision, scale).

    Values that do not fit give null.
    """
    return rescale_decimals(_round_half_up(array, places), precision, scale)


def decimal_to_double(array: pa.Array, kind: pa.DataType = DOUBLE) -> pa.Array:
    """Convert each decimal to the nearest floating-point number."""
    precision, scale = array.type.precision, array.type.scale
    if kind == DOUBLE and precision <= _EXACT_DIGITS:
        # If the bytes of the decimal are read with scale 0, they are an integer with the same digits. Dividing that
        # integer rounds only once.
        buffers, length, start = array.buffers(), len(array), array.offset
        whole = pa.Array.from_buffers(pa.decimal128(precision, 0), length, buffers, offset=start).cast(INT64)
        return pc.divide(whole.cast(DOUBLE), pa.scalar(10.0**scale))
    return array.cast(pa.string()).cast(kind)


def double_to_decimal(array: pa.Array, precision: int, scale: int) -> pa.Array:
    """Convert doubles to decimals by their shortest text, rounded half up. NaN and values that do not fit give null."""
    array = array.cast(DOUBLE)  # Spark widens a float to a double, then rounds the double's digits
    size = pc.abs(array)
    # The bounds keep the text within the 76 digits that the parser accepts. `rescale_decimals` then checks the exact
    # limit.
    inside = pc.less(size, pa.scalar(10.0 ** (precision - scale + 1)))
    array = pc.if_else(inside, array, pa.scalar(None, array.type))
    tiny = pc.less(size, pa.scalar(10.0 ** -(scale + 1)))
    array = pc.if_else(tiny, 0.0, array)
    return rescale_decimals(array.cast(pa.string()).cast(pa.decimal256(WIDEST, scale + 18)), precision, scale)


_NUMBER = r"^[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?"
_SPECIAL = r"(?i)^([+-]?(inf|infinity)|nan)$"
_DAY = r"^\+?(?P<y>[0-9]{4})(?:-(?P<mo>[0-9]{1,2})(?:-(?P<d>[0-9]{1,2})"
_CLOCK = r"[ T](?P<h>[0-9]{1,2})(?::(?P<mi>[0-9]{1,2})(?::(?P<s>[0-9]{1,2})(?:\.(?P<f>[0-9]*))?)?)?"
_ZONE = r" ?(?:Z|UTC|GMT|(?P<sign>[+-])(?P<zh>[0-9]{1,2})(?::?(?P<zm>[0-9]{2}))?)"
_PLAIN_TIME = r"^[0-9]{4}-[0-9]{2}-[0-9]{2}([ T][0-9]{2}:[0-9]{2}:[0-9]{2}(\.[0-9]{1,6})?)?$"
_REGION = r"[A-Za-z]/[A-Za-z]"

Ints = np.ndarray[Any, np.dtype[np.int64]]


def _keep_matching_texts(array: pa.Array, pattern: str) -> pa.Array:
    """Keep the texts that match a pattern, and replace all other texts by null."""
    return pc.if_else(pc.match_substring_regex(array, pattern), array, pa.scalar(None, STRING))


def _is_all_true(mask: pa.Array) -> bool:
    """Return True if no value is false."""
    return bool(pc.all(mask, min_count=0).as_py())


def narrow_integers(array: pa.Array, kind: pa.DataType) -> pa.Array:
    """Cast integers to a narrower type. A value that does not fit gives null."""
    try:
        return array.cast(kind)
    except pa.ArrowInvalid:
        limits = np.iinfo(kind.to_pandas_dtype())
        low, high = (pa.scalar(int(limit), array.type) for limit in (limits.min, limits.max))
        inside = pc.and_(pc.greater_equal(array, low), pc.less_equal(array, high))
        return pc.if_else(inside, array, pa.scalar(None, array.type)).cast(kind)


def parse_integers(array: pa.Array, kind: pa.DataType) -> pa.Array:
    """Parse integers. Blanks and a sign are allowed before the digits.

    >>> import pyarrow as pa
    >>> parse_integers(pa.array([" +7 ", "0x10", "1.5", None]), pa.int32()).to_pylist()
    [7, None, None, None]
    >>> parse_dates(pa.array(["2024-2-29", "2023-02-29", "2024"])).to_pylist()
    [datetime.date(2024, 2, 29), None, datetime.date(2024, 1, 1)]
    """
    text = pc.ascii_trim_whitespace(array)
    if _is_all_true(pc.match_substring_regex(text, r"^[+-]?[0-9]{1,18}$")):
        return narrow_integers(pc.utf8_ltrim(text, characters="+").cast(INT64), kind)
    text = _keep_matching_texts(text, r"^[+-]?[0-9]+$")
    text = pc.replace_substring_regex(text, r"^([+-]?)0+([0-9])", r"\1\2")
    whole = _keep_matching_texts(text, r"^[+-]?[0-9]{1,19}$").cast(pa.decimal128(19, 0))
    low, high = (pa.scalar(limit, pa.decimal128(19, 0)) for limit in (-(2**63), 2**63 - 1))
    inside = pc.and_(pc.greater_equal(whole, low), pc.less_equal(whole, high))
    return narrow_integers(pc.if_else(inside, whole, pa.scalar(None, whole.type)).cast(INT64), kind)


def parse_floats(array: pa.Array, kind: pa.DataType) -> pa.Array:
    """Parse floats in Java's syntax, including the suffixes d and f.

    Accept inf, infinity and nan in upper or lower case.
    """
    text = pc.ascii_trim_whitespace(array)
    number = pc.utf8_rtrim(_keep_matching_texts(text, _NUMBER + "[dDfF]?$"), characters="dDfF")
    return pc.utf8_ltrim(pc.coalesce(number, _keep_matching_texts(text, _SPECIAL)), characters="+").cast(kind)


def parse_decimal_texts(array: pa.Array, precision: int, scale: int) -> pa.Array:
    """Parse numbers as decimals, rounded half up to ``scale`` digits. Texts that are not numbers give null."""
    text = _keep_matching_texts(pc.ascii_trim_whitespace(array), _NUMBER + "$")
    size = pc.abs(pc.utf8_ltrim(text, characters="+").cast(DOUBLE))
    inside = pc.less(size, pa.scalar(10.0 ** (precision - scale + 1)))
    text = pc.if_else(inside, text, pa.scalar(None, STRING))
    text = pc.if_else(pc.less(size, pa.scalar(10.0 ** -(scale + 1))), "0", text)  # the parser takes fewer digits
    return rescale_decimals(text.cast(pa.decimal256(WIDEST, WIDEST - (precision - scale) - 1)), precision, scale)


def parse_booleans(array: pa.Array) -> pa.Array:
    """Parse booleans. The texts t, true, y, yes and 1 are true, and the texts f, false, n, no and 0 are false.

    Case is ignored. Other texts give null.
    """
    text = pc.utf8_lower(pc.ascii_trim_whitespace(array))
    yes = pc.is_in(text, value_set=pa.array(["t", "true", "y", "yes", "1"]))
    no = pc.is_in(text, value_set=pa.array(["f", "false", "n", "no", "0"]))
    return pc.if_else(pc.or_(yes, no), yes, pa.scalar(None, BOOL))


def count_epoch_days(year: Ints, month: Ints, day: Ints) -> tuple[Ints, Any]:
    """Return the days from 1970-01-01 to each date, and which dates are valid.

    Dates are in the proleptic Gregorian calendar. O(n).
    """
    ends = np.array([0, 31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31])
    known = (month >= 1) & (month <= 12)
    leap = (year % 4 == 0) & ((year % 100 != 0) | (year % 400 == 0))
    last = ends[np.where(known, month, 0)] + (leap & (month == 2))
    shifted = year - (month <= 2)  # years from March end with their leap day
    of_year = (153 * ((month + 9) % 12) + 2) // 5 + day - 1
    days = shifted * 365 + shifted // 4 - shifted // 100 + shifted // 400 + of_year - 719468
    return days, known & (day >= 1) & (day <= last)


def _extract_groups(array: pa.Array, pattern: str) -> tuple[dict[str, pa.Array], pa.Array]:
    """Extract the named groups of ``pattern``, and return which rows match. Rows that do not match give ""."""
    found = pc.extract_regex(array, pattern)
    names = [found.type.field(i).name for i in range(found.type.num_fields)]
    return {name: pc.fill_null(pc.struct_field(found, name), "") for name in names}, found.is_valid()


def _parse_numbers(texts: pa.Array, default: int) -> Ints:
    filled = pc.if_else(pc.equal(texts, ""), str(default), texts)
    values: Ints = filled.cast(INT64).to_numpy(zero_copy_only=True)
    return values


def _build_time_array(values: Ints, ok: Any, matched: pa.Array, kind: pa.DataType, carrier: pa.DataType) -> pa.Array:
    good = pc.and_(matched, pa.array(np.asarray(ok, dtype=np.bool_)))
    return pc.if_else(good, pa.array(values).cast(carrier).cast(kind), pa.scalar(None, kind))


def parse_dates(array: pa.Array) -> pa.Array:
    """Parse dates as yyyy, yyyy-m or yyyy-m-d. A blank or T, followed by any text, can come after the day."""
    try:
        return array.cast(DATE)  # Arrow accepts only yyyy-mm-dd
    except pa.ArrowInvalid:
        text = pc.ascii_trim_whitespace(array)
    parts, matched = _extract_groups(text, r"(?s)" + _DAY + r"(?:[ T].*)?)?)?$")
    days, ok = count_epoch_days(*(_parse_numbers(parts[name], 1) for name in ("y", "mo", "d")))
    return _build_time_array(days, ok, matched, DATE, pa.int32())


def parse_timestamps(array: pa.Array, kind: pa.DataType) -> pa.Array:
    """Parse a date, an optional time and an optional offset from UTC.

    Digits after the sixth fraction digit are dropped. For a type with a zone, the offset is subtracted, so that the
    result is the right instant. For a type without a zone, the offset is ignored.
    """
    if _is_all_true(pc.match_substring_regex(array, _PLAIN_TIME)):
        try:
            return array.cast(WALL).cast(kind)
        except pa.ArrowInvalid:
            pass  # an invalid day or hour
    text = pc.ascii_trim_whitespace(array)
    if pc.any(pc.match_substring_regex(text, _REGION)).as_py():
        raise pa.ArrowInvalid(
            "its time zone is the name of a region: only Z, UTC, GMT and offsets like +02:00 are read"
        )
    parts, matched = _extract_groups(text, _DAY + "(?:" + _CLOCK + "(?:" + _ZONE + ")?)?)?)?$")
    days, ok = count_epoch_days(*(_parse_numbers(parts[name], 1) for name in ("y", "mo", "d")))
    hour, minute, second = (_parse_numbers(parts[name], 0) for name in ("h", "mi", "s"))
    fraction = _parse_numbers(pc.utf8_slice_codeunits(pc.utf8_rpad(parts["f"], 6, padding="0"), 0, 6), 0)
    micros = ((days * 24 + hour) * 60 + minute) * 60_000_000 + second * 1_000_000 + fraction
    ok = ok & (hour < 24) & (minute < 60) & (second < 60)
    ahead = _parse_numbers(parts["zh"], 0) * 60 + _parse_numbers(parts["zm"], 0)
    ok = ok & (ahead <= 18 * 60)
    if kind.tz:
        west = pc.equal(parts["sign"], "-").to_numpy(zero_copy_only=False)
        micros = micros - np.where(west, -ahead, ahead) * 60_000_000
    return _build_time_array(micros, ok, matched, kind, WALL)
