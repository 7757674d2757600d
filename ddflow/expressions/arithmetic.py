"""Compute arithmetic on numbers, dates and durations. Result types and errors follow Spark's ANSI mode.

Guarantees: overflow and division by zero are errors. Decimals have Spark's precision. A duration cannot contain months.
The difference of two dates is a whole number of days. Quotients of durations round half away from zero.
Limits: a float times a duration is computed as a double, so the result is exact to 53 bits. Durations cannot be cast to
text.

>>> import pyarrow as pa
>>> from ddflow.expressions.node import constant
>>> arithmetic("/", constant(pa.scalar(1)), constant(pa.scalar(4))).constant
<pyarrow.DoubleScalar: 0.25>
>>> arithmetic("%", constant(pa.scalar(-7)), constant(pa.scalar(3))).constant
<pyarrow.Int64Scalar: -1>
"""

from collections.abc import Callable
from decimal import ROUND_DOWN, Decimal, localcontext
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pat

from ddflow.columns.hashing import ALL_VALID, unpack_validity, view_words
from ddflow.errors import shorten
from ddflow.expressions.casts import build_cast
from ddflow.expressions.digits import WIDEST, compute_with_numpy, rescale_decimals
from ddflow.expressions.node import Compute, Datum, Node, Refusal, accept_scalars, build_compute_node, constant, null
from ddflow.expressions.types import (
    DATE,
    DOUBLE,
    INSTANT,
    INT32,
    INT64,
    MOST_DIGITS,
    NULL,
    STRING,
    UNITS,
    bounded_decimal,
    common_type,
    is_decimal,
    is_duration,
    is_integer,
    is_number,
    is_time,
    sql_name,
    to_decimal_type,
)
from ddflow.kernels.exact_results import combine_decimals

_ADDED: Final[dict[str, Compute]] = {"+": pc.add_checked, "-": pc.subtract_checked}
_PARTS: Final = {"DAY": (86_400, None), "HOUR": (3_600, 24), "MINUTE": (60, 60)}
"""For each part of a duration: its length in seconds, and how many times it fits into the next larger part."""
FIELDS: Final = (*_PARTS, "EPOCH")
WORD: Final = 2**64 - 1


def duration_arithmetic(sign: str, left: Node, right: Node) -> Node | None:
    """Compute arithmetic with durations, or subtract two timestamps. Return None for other types. O(rows).

    >>> import datetime
    >>> from ddflow.expressions.node import constant
    >>> noon, midnight = (constant(pa.scalar(datetime.datetime(2024, 1, 3, hour))) for hour in (12, 0))
    >>> duration_arithmetic("-", noon, midnight).constant
    <pyarrow.DurationScalar: datetime.timedelta(seconds=43200)>
    >>> extract_duration_part("EPOCH", duration_arithmetic("-", noon, midnight)).constant
    <pyarrow.DoubleScalar: 43200.0>
    """
    if sign == "-" and _is_date_or_timestamp(left) and _is_date_or_timestamp(right):
        return days_between(left, right) if left.type == right.type == DATE else _subtract_timestamps(left, right)
    if sign == "+" and is_duration(left.type) and _is_date_or_timestamp(right):
        return _shift_timestamp(sign, right, left)
    if sign in _ADDED and is_duration(right.type) and _is_date_or_timestamp(left):
        return _shift_timestamp(sign, left, right)
    if sign == "*" and is_duration(right.type):
        left, right = right, left
    if sign in ("*", "/") and is_duration(left.type):
        return _scale_duration(sign, left, right)
    kind = common_type([left.type, right.type])
    if sign in _ADDED and kind is not None and is_duration(kind):
        return build_compute_node(_ADDED[sign], build_cast(left, kind), build_cast(right, kind), fallible=True)
    return None


def days_between(end: Node, start: Node) -> Node:
    """Count the days from one date to another."""

    def compute(last: pa.Array, first: pa.Array) -> pa.Array:
        return pc.subtract_checked(last.cast(INT32), first.cast(INT32))

    return build_compute_node(compute, end, start, fallible=True)


def extract_duration_part(field: str, node: Node) -> Node:
    """Extract a part of a duration as a signed integer.

    The part "EPOCH" is the total number of seconds, as a double.
    """
    second = 1000 ** UNITS.index(node.type.unit)
    if field == "EPOCH":
        return build_compute_node(accept_scalars(lambda values: _divide_to_double(values.cast(INT64), second)), node)
    seconds, most = _PARTS[field]

    def compute(values: pa.Array) -> pa.Array:
        whole = pc.divide(values.cast(INT64), seconds * second)
        return whole if most is None else pc.subtract(whole, pc.multiply(pc.divide(whole, most), most))

    return build_compute_node(compute, node)


def _divide_to_double(values: pa.Array, by: int) -> pa.Array:
    """Divide int64 values by a number below 2**53.

    Each result is the double that is nearest to the exact quotient. O(n).

    >>> _divide_to_double(pa.array([9_999_999_999_999_999, None, -(2**63)]), 10**6).to_pylist()
    [9999999999.999998, None, -9223372036854.775]
    """
    out = pc.divide(values.cast(DOUBLE, safe=False), float(by))
    # Beyond 2**53 the conversion to a double rounds, and the division rounds a second time. Python rounds only once.
    large = pc.greater(pc.max_element_wise(values, pc.negate(values)), 2**53).fill_null(False)
    if not pc.any(large).as_py():
        return out
    return pc.replace_with_mask(out, large, pa.array([each / by for each in values.filter(large).to_pylist()], DOUBLE))


def _is_date_or_timestamp(node: Node) -> bool:
    return node.type == DATE or is_time(node.type)


def _subtract_timestamps(end: Node, start: Node) -> Node:
    kind = common_type([end.type, start.type])
    assert kind is not None
    return build_compute_node(pc.subtract_checked, build_cast(end, kind), build_cast(start, kind), fallible=True)


def _shift_timestamp(sign: str, moment: Node, by: Node) -> Node:
    """Add a duration to a timestamp, or subtract a duration from a timestamp.

    A date is treated as a timestamp at midnight UTC.
    """
    moment = build_cast(moment, INSTANT) if moment.type == DATE else moment
    unit = max(moment.type.unit, by.type.unit, key=UNITS.index)
    moment, by = build_cast(moment, pa.timestamp(unit, moment.type.tz)), build_cast(by, pa.duration(unit))
    return build_compute_node(_ADDED[sign], moment, by, fallible=True)


def _scale_duration(sign: str, duration: Node, number: Node) -> Node | None:
    """Multiply or divide a duration by a number."""
    if number.type == NULL:
        return null(duration.type)
    if not is_number(number.type):
        return None
    if is_integer(number.type):
        compute = pc.multiply_checked if sign == "*" else accept_scalars(_divide_rounded)
        return build_compute_node(compute, duration, build_cast(number, INT64), fallible=True)

    def scale_values(values: pa.Array, by: pa.Array) -> pa.Array:
        exact = (pc.multiply if sign == "*" else pc.divide_checked)(values.cast(INT64).cast(DOUBLE, safe=False), by)
        return pc.round(exact, round_mode="half_towards_infinity").cast(INT64).cast(values.type)

    return build_compute_node(accept_scalars(scale_values), duration, build_cast(number, DOUBLE), fallible=True)


def _divide_rounded(values: pa.Array, by: pa.Array) -> pa.Array:
    """Divide integers and round half away from zero.

    The function uses no doubles, because a double would lose digits.
    """
    cut = pc.divide_checked(values.cast(INT64), by)
    value, number, whole = (np.asarray(pc.fill_null(each, 1)) for each in (values.cast(INT64), by, cut))
    rest, size = (-np.abs(each) for each in (value - whole * number, number))  # negative, since -2**63 has no opposite
    near = whole + (rest <= size - rest) * np.sign(value) * np.sign(number)
    return pc.if_else(cut.is_valid(), pa.array(near, INT64), pa.scalar(None, INT64)).cast(values.type)


_CHECKED: dict[str, Compute] = {"+": pc.add_checked, "-": pc.subtract_checked, "*": pc.multiply_checked}


def arithmetic(sign: str, left: Node, right: Node) -> Node:
    """Compute ``left sign right``.

    ``sign`` is + - * / % div or pmod. O(rows). Raises Refusal if the types do not support it.
    """
    if (found := duration_arithmetic(sign, left, right)) is not None:
        return found
    if DATE in (left.type, right.type) and sign in "+-":
        return _shift_date(sign, left, right)
    kind = common_type([left.type, right.type])
    if kind == NULL:
        kind = DOUBLE
    if kind is None or not is_number(kind) or left.type == right.type == STRING:
        raise Refusal(
            f"{sql_name(left.type)} {sign} {sql_name(right.type)} is not defined",
            _suggest_duration_remedy(left, right)
            or _suggest_text_remedy(left, right)
            or "cast to numbers first; for dates use date_add, date_sub or datediff",
        )
    if is_decimal(kind):
        return _decimal_arithmetic(sign, _convert_to_decimal(left, kind), _convert_to_decimal(right, kind))
    if sign == "div":
        if not is_integer(kind):
            raise Refusal("div takes integers and decimals, not floats", "use / and floor, or cast to bigint")
        return build_compute_node(pc.divide_checked, build_cast(left, INT64), build_cast(right, INT64), fallible=True)
    if sign == "/":
        return build_compute_node(pc.divide_checked, build_cast(left, DOUBLE), build_cast(right, DOUBLE), fallible=True)
    left, right = build_cast(left, kind), build_cast(right, kind)
    if sign in ("%", "pmod"):
        return build_compute_node(
            accept_scalars(_remainder if sign == "%" else _positive_remainder), left, right, fallible=True
        )
    return build_compute_node(_CHECKED[sign], left, right, fallible=is_integer(kind))


def negate_number(node: Node) -> Node:
    """Negate a number. Text is cast to double first."""
    node = build_cast(node, DOUBLE) if node.type in (STRING, NULL) else node
    if is_duration(node.type):
        return build_compute_node(pc.negate_checked, node, fallible=True)
    if not is_number(node.type):
        raise Refusal(f"- of {sql_name(node.type)} is not defined", "cast to a number first")
    return build_compute_node(pc.negate_checked, node, fallible=is_integer(node.type))


def shift_days(date: Node, days: Node, sign: str) -> Node:
    """Add days to a date (``sign`` +), or subtract days (``sign`` -)."""
    compute = _CHECKED[sign]
    return build_compute_node(
        lambda day, count: compute(day.cast(INT32), count).cast(DATE), date, build_cast(days, INT32), fallible=True
    )


def _suggest_duration_remedy(left: Node, right: Node) -> str | None:
    """Suggest a remedy if one operand is a duration and the type of the other operand does not fit."""
    if not (is_duration(left.type) or is_duration(right.type)):
        return None
    return "use extract(epoch from x) for the seconds of a duration, n * interval 1 second for a duration of n seconds"


def _suggest_text_remedy(left: Node, right: Node) -> str | None:
    """Suggest a remedy if one operand is a text and the other operand is a timestamp."""
    if STRING not in (left.type, right.type) or not (pat.is_timestamp(left.type) or pat.is_timestamp(right.type)):
        return None
    return "cast the text to timestamp, or declare its column so (--types); a column without values is read as text"


def _shift_date(sign: str, left: Node, right: Node) -> Node:
    date, days = (right, left) if right.type == DATE and sign == "+" else (left, right)
    if date.type != DATE or not (is_integer(days.type) and days.type != INT64):
        raise Refusal(
            f"{sql_name(left.type)} {sign} {sql_name(right.type)} is not defined",
            "add an int of days to a date (for a bigint: int(n)); for the days between dates use datediff(end, start)",
        )
    return shift_days(date, days, sign)


def _check_divisor(divisor: pa.Array, dividend: pa.Array) -> None:
    """Raise an error if a value is divided by zero. Null divided by zero is null."""
    zero = pc.and_(pc.equal(divisor, pa.scalar(0, divisor.type)), pc.is_valid(dividend))
    if pc.any(zero).as_py():
        raise pa.ArrowInvalid("remainder by zero")


def _remainder(left: pa.Array, right: pa.Array) -> pa.Array:
    _check_divisor(right, left)
    return compute_with_numpy(np.fmod, left, right)


def _positive_remainder(left: pa.Array, right: pa.Array) -> pa.Array:
    def compute(a: np.ndarray[Any, Any], n: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        rest = np.fmod(a, n)
        wrapped: np.ndarray[Any, Any] = np.where(rest < 0, np.fmod(rest + n, n), rest)
        return wrapped

    _check_divisor(right, left)
    return compute_with_numpy(compute, left, right)


def _convert_to_decimal(node: Node, kind: pa.DataType) -> Node:
    """Convert an operand of decimal arithmetic to a decimal.

    An integer literal becomes a decimal with as many digits as the literal.
    """
    if node.literal and is_integer(node.type) and node.constant is not None:
        return build_cast(node, pa.decimal128(len(str(abs(node.constant.as_py()))), 0))
    return build_cast(node, kind if node.type == NULL else to_decimal_type(node.type))


def _decimal_arithmetic(sign: str, left: Node, right: Node) -> Node:
    if sign in "+-*":
        return _combine_decimals(sign, left, right)
    result, compute = _DECIMALS[sign](left.type, right.type)
    if left.constant is not None and not left.constant.is_valid:
        return null(result)

    def exact(a: pa.Array, b: pa.Array) -> pa.Array:
        value = compute(a, b)
        fitted = rescale_decimals(value, result.precision, result.scale)
        if fitted.null_count > value.null_count:
            raise _build_overflow(result)
        return fitted

    node = build_compute_node(accept_scalars(exact), left, right, fallible=True)
    return build_cast(node, INT64) if sign == "div" else node


def _build_overflow(kind: pa.DataType) -> pa.ArrowInvalid:
    return pa.ArrowInvalid(f"overflow: a result does not fit {sql_name(kind)}")


Plan = tuple[pa.DataType, Compute]


def _combine_decimals(sign: str, left: Node, right: Node) -> Node:
    """Add, subtract or multiply decimals, in one pass over the rows."""
    a, b = left.type, right.type
    if sign == "*":
        scale, precision = a.scale + b.scale, a.precision + b.precision + 1
        _check_digit_count(precision, sign, a, b)
        powers = []
    else:
        scale = max(a.scale, b.scale)
        precision = max(a.precision - a.scale, b.precision - b.scale) + scale + 1
        powers = [10 ** (scale - a.scale), 10 ** (scale - b.scale) * (1 if sign == "+" else -1)]
    result = bounded_decimal(precision, scale)
    by = [np.array([[each & WORD, each >> 64 & WORD]], np.uint64) for each in powers]
    most = 10**result.precision - 1
    bounds = np.uint64(most & WORD), np.uint64(most >> 64)

    def compute(x: Datum, y: Datum) -> Datum:
        rows = [len(each) for each in (x, y) if not isinstance(each, pa.Scalar)]
        if any(isinstance(each, pa.Scalar) and not each.is_valid for each in (x, y)):
            return pa.scalar(None, result)
        n, present = rows[0] if rows else 1, ALL_VALID
        arrays = [pa.array([each.as_py()], each.type) if isinstance(each, pa.Scalar) else each for each in (x, y)]
        for each in arrays:
            if each.null_count:
                mine = unpack_validity(each)
                present = mine & present if present.size else mine
        (one, other), words = (view_words(each, 2) for each in arrays), np.empty((n, 2), np.uint64)
        factors = (one, by[0], other, by[1]) if by else (one, other, np.empty((0, 2), np.uint64), one)
        work: Any = (*factors, present, scale - result.scale, *bounds, words)
        if combine_decimals(*work) >= 0:
            raise _build_overflow(result)
        valid = pa.py_buffer(np.packbits(present, bitorder="little")) if present.size else None
        out = pa.Array.from_buffers(result, n, [valid, pa.py_buffer(words)])
        return out if rows else out[0]

    return build_compute_node(compute, left, right, fallible=True)


def _plan_quotient(a: pa.DataType, b: pa.DataType) -> Plan:
    scale = max(6, a.scale + b.precision + 1)
    result = bounded_decimal(a.precision - a.scale + b.scale + scale, scale)
    return result, _divide(a, b, result.scale + 1)


def _plan_whole_quotient(a: pa.DataType, b: pa.DataType) -> Plan:
    whole = max(a.precision - a.scale + b.scale, 1)
    divide = _divide(a, b, 0)
    return bounded_decimal(whole, 0), lambda x, y: pc.trunc(divide(x, y))


def _plan_remainder(positive: bool) -> Callable[[pa.DataType, pa.DataType], Plan]:
    def plan(a: pa.DataType, b: pa.DataType) -> Plan:
        scale, whole = max(a.scale, b.scale), a.precision - a.scale
        divide = _divide(a, b, 0)
        _check_digit_count(max(whole + b.scale + b.precision, whole + scale) + 1, "%", a, b)
        count, taken = pa.decimal256(whole + b.scale, 0), pa.decimal256(whole + b.scale, b.scale)
        rest_type = pa.decimal256(whole + scale, scale)

        def compute(x: pa.Array, y: pa.Array) -> Datum:
            _check_divisor(y, x)
            quotient = pc.trunc(divide(x, y)).cast(count)
            rest = pc.subtract(_widen_decimals(x), pc.multiply(quotient, _widen_decimals(y)).cast(taken)).cast(
                rest_type
            )
            if positive:
                wraps = pc.and_(pc.less(rest, pa.scalar(0, rest_type)), pc.greater(y, pa.scalar(0, y.type)))
                rest = pc.if_else(
                    wraps, pc.add(rest, _widen_decimals(y)), rest.cast(pc.add(rest, _widen_decimals(y)).type)
                )
            return rest

        return bounded_decimal(min(whole, b.precision - b.scale) + scale, scale), compute

    return plan


def _divide(a: pa.DataType, b: pa.DataType, scale: int) -> Compute:
    """Divide, and truncate the quotient to at least ``scale`` fraction digits, so that a later rounding is exact."""
    lift = max(0, scale - (a.scale + b.precision - b.scale + 1))
    digits = a.precision - a.scale + b.scale + max(scale, a.scale + b.precision - b.scale + 1, 4)
    if digits > WIDEST:
        return lambda x, y: _divide_by_value(x, y, scale)
    make = pa.decimal128 if digits <= MOST_DIGITS else pa.decimal256
    dividend, divisor = make(a.precision + lift, a.scale + lift), make(b.precision, b.scale)
    return lambda x, y: pc.divide_checked(x.cast(dividend), y.cast(divisor))


def _divide_by_value(x: pa.Array, y: pa.Array, scale: int) -> pa.Array:
    """Divide like `_divide`, but for quotients with more than 76 digits. Each division takes microseconds."""
    out: list[Decimal | None] = []
    with localcontext(prec=4 * WIDEST):
        for one, other in zip(x.to_pylist(), y.to_pylist(), strict=True):
            if one is None or other is None:
                out.append(None)
                continue
            if not other:
                raise pa.ArrowInvalid("divide by zero")
            out.append((one / other).quantize(Decimal(1).scaleb(-scale), ROUND_DOWN))
    return pa.array(out, pa.decimal256(WIDEST, scale))


def _check_digit_count(digits: int, sign: str, a: pa.DataType, b: pa.DataType) -> None:
    if digits > WIDEST:
        raise Refusal(
            f"{sql_name(a)} {sign} {sql_name(b)} needs more than {WIDEST} digits",
            "cast to decimals of fewer digits first",
        )


def _widen_decimals(values: Datum) -> Datum:
    return values.cast(pa.decimal256(values.type.precision, values.type.scale))


_DECIMALS: dict[str, Callable[[pa.DataType, pa.DataType], Plan]] = {
    "/": _plan_quotient,
    "div": _plan_whole_quotient,
    "%": _plan_remainder(positive=False),
    "pmod": _plan_remainder(positive=True),
}


def parse_number(text: str) -> Node:
    """Parse a number literal.

    A number with an exponent is a double. For a number without an exponent, the digits determine whether the type is
    int, bigint or decimal.

    >>> parse_number("1.50").type, parse_number("3000000000").type
    (Decimal128Type(decimal128(3, 2)), DataType(int64))
    """
    if "e" in text.lower():
        return constant(pa.scalar(float(text)), literal=True)
    whole, _, fraction = text.removeprefix("-").partition(".")
    whole = whole.lstrip("0")
    if len(whole) <= MOST_DIGITS and "." not in text:
        value = int(whole or "0") * (-1 if text.startswith("-") else 1)
        for kind in (INT32, INT64):
            if -(2 ** (kind.bit_width - 1)) <= value < 2 ** (kind.bit_width - 1):
                return constant(pa.scalar(value, kind), literal=True)
    scale = len(fraction)
    precision = max(len(whole) + scale, 1)
    if precision > MOST_DIGITS:
        raise Refusal(f"the number {shorten(text)} has more than 38 digits", "write it as a double, with an exponent")
    return constant(pa.scalar(text).cast(pa.decimal128(precision, scale)), literal=True)
