"""Cast between working types by Spark 4's ANSI rules: CAST, TRY_CAST and implicit casts.

Each pair of types has one conversion function. The function returns null for a value that the target type cannot
represent. TRY_CAST returns this null, but CAST raises an error for it. Unlike Arrow, Spark truncates fractions, rounds
decimals half up, and casts NaN and infinity to null decimals. `digits.py` parses text by Spark's rules. The session's
time zone is UTC.
Limits: compilation refuses pairs of types that ANSI mode refuses. Compilation refuses casts of floats to text, because
the text of a float differs between versions of Java.

>>> import pyarrow as pa
>>> from ddflow.expressions.node import constant
>>> build_cast(constant(pa.scalar(-1.7)), pa.int64()).constant
<pyarrow.Int64Scalar: -1>
>>> build_cast(constant(pa.scalar("x")), pa.int64(), attempt=True).constant
<pyarrow.Int64Scalar: None>
"""

import re
from collections.abc import Callable
from typing import Final, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pat

from ddflow.errors import ErrorText, Option, shorten
from ddflow.expressions.digits import (
    WIDEST,
    decimal_to_double,
    double_to_decimal,
    narrow_integers,
    parse_booleans,
    parse_dates,
    parse_decimal_texts,
    parse_floats,
    parse_integers,
    parse_timestamps,
    rescale_decimals,
)
from ddflow.expressions.node import Node, Refusal, accept_scalars, build_compute_node, null
from ddflow.expressions.types import (
    BINARY,
    BOOL,
    DATE,
    DOUBLE,
    INSTANT,
    INT8,
    INT64,
    NULL,
    STRING,
    UNITS,
    WALL,
    is_decimal,
    is_duration,
    is_float,
    is_integer,
    is_number,
    is_time,
    sql_name,
    to_decimal_type,
    working_type,
)

Convert: TypeAlias = Callable[[pa.Array], pa.Array]

PLAIN_TEXT_SCALE = 6  # with more fraction digits, Arrow writes small decimals as 1.0E-7


def build_cast(node: Node, kind: pa.DataType, attempt: bool = False) -> Node:
    """Cast ``node`` to ``kind`` like CAST, or like TRY_CAST if ``attempt`` is true. O(rows).

    Raises Refusal if a value of the type of ``node`` can never be cast to ``kind``.
    """
    if node.type == kind:
        return node
    if node.type == NULL:
        return null(kind)
    turn, loses = _choose_conversion(node.type, kind)
    if not loses:
        return build_compute_node(accept_scalars(turn), node)
    return build_compute_node(
        accept_scalars(turn if attempt else _fail_on_loss(turn, node.type, kind)), node, fallible=not attempt
    )


def cast_to_working_type(array: pa.Array) -> pa.Array:
    """Cast a column to its working type. O(rows). Raises ArrowInvalid for more than 2 GB of text in a batch."""
    kind = working_type(array.type)
    if array.type == kind:
        return array
    if pat.is_dictionary(array.type):
        return cast_to_working_type(array.dictionary).take(array.indices)
    if pat.is_run_end_encoded(array.type):
        return cast_to_working_type(pc.run_end_decode(array))
    return array.cast(kind)


def cast_to_text(node: Node) -> Node:
    """Cast an argument of a text function to text, like Spark."""
    return build_cast(node, STRING)


_COMMA: Final = re.compile(r"\s*[+-]?\d+,\d+\s*")
_POINT: Final = ErrorText(
    "for a decimal comma set ", Option("decimal", ","), " where the file is read, or cast replace(x, ',', '.')"
)


def _fail_on_loss(turn: Convert, source: pa.DataType, kind: pa.DataType) -> Convert:
    def convert_strictly(array: pa.Array) -> pa.Array:
        result = turn(array)
        if result.null_count == array.null_count:
            return result
        lost: pa.Array = array.filter(pc.and_(array.is_valid(), result.is_null()))
        if is_decimal(kind) and is_float(source):  # as in Spark, infinity and NaN become null decimals
            lost = lost.filter(pc.is_finite(lost))
        if len(lost):
            value = lost[0]
            if source == DATE or is_duration(source):  # Python's date and timedelta have a smaller range
                value = value.cast(pa.int32() if source == DATE else INT64)
            shown = shorten(repr(value.as_py()) if source == STRING else str(value), 100)
            comma = source == STRING and is_number(kind) and _COMMA.fullmatch(value.as_py())
            found = f"the {sql_name(source)} {shown} cannot be cast to {sql_name(kind)}"
            raise pa.ArrowInvalid(ErrorText(found, "; ", _POINT) if comma else found)
        return result

    return convert_strictly


def _choose_conversion(source: pa.DataType, kind: pa.DataType) -> tuple[Convert, bool]:
    """Return a conversion between two types, and whether the conversion can turn a value into null."""
    found: tuple[Convert, bool] | None = None
    if source == STRING:
        found = _choose_text_parser(kind)
    elif kind == STRING:
        found = _choose_text_format(source)
    elif source == BOOL or kind == BOOL:
        found = _choose_boolean_cast(source, kind)
    elif is_number(source) and is_number(kind):
        found = _choose_number_cast(source, kind)
    elif is_duration(source) and is_duration(kind):
        found = (lambda array: _convert_duration_unit(array, kind)), True
    elif source == pa.list_(NULL) and pat.is_list(kind):
        found = (lambda array: array.cast(kind)), False
    elif source == DATE or is_time(source) or is_time(kind):
        found = _choose_time_cast(source, kind)
    if found is None:
        remedy = "compare or combine values of one type" + (", or cast to a decimal first" if is_float(source) else "")
        if is_duration(source):
            remedy = "use extract(epoch from x) for the seconds of a duration, as a double"
        if is_duration(kind):
            remedy = "use n * interval 1 second for a duration of n seconds"
        raise Refusal(f"{sql_name(source)} cannot be cast to {sql_name(kind)}", remedy)
    return found


def _choose_text_parser(kind: pa.DataType) -> tuple[Convert, bool] | None:
    if is_integer(kind):
        return lambda array: parse_integers(array, kind), True
    if is_float(kind):
        return lambda array: parse_floats(array, kind), True
    if is_decimal(kind):
        return lambda array: parse_decimal_texts(array, kind.precision, kind.scale), True
    if is_time(kind):
        return lambda array: parse_timestamps(array, kind), True
    others: dict[pa.DataType, tuple[Convert, bool]] = {
        BOOL: (parse_booleans, True),
        DATE: (parse_dates, True),
        BINARY: (lambda array: array.cast(BINARY), False),
    }
    return others.get(kind)


def _choose_text_format(source: pa.DataType) -> tuple[Convert, bool] | None:
    if is_time(source):
        return _format_times, False
    plain = is_decimal(source) and source.scale <= PLAIN_TEXT_SCALE
    if plain or is_integer(source) or source in (BOOL, DATE, BINARY):
        return lambda array: array.cast(STRING), False
    return None


def _format_times(array: pa.Array) -> pa.Array:
    """Format timestamps as yyyy-mm-dd hh:mm:ss. If the seconds have a fraction, append it without trailing zeros."""
    text = array.cast(pa.timestamp(array.type.unit)).cast(STRING)
    return pc.replace_substring_regex(text, r"^(.{19}(?:\.[0-9]*[1-9])?)\.?0*$", r"\1")


def _choose_boolean_cast(source: pa.DataType, kind: pa.DataType) -> tuple[Convert, bool] | None:
    if is_number(source):
        zero = pa.scalar(0, source)
        return lambda array: pc.not_equal(array, zero), False
    if is_decimal(kind):
        return lambda array: rescale_decimals(
            array.cast(INT8).cast(pa.decimal128(3, 0)), kind.precision, kind.scale
        ), True
    if is_number(kind):
        return lambda array: array.cast(INT8).cast(kind), False
    return None


def _choose_number_cast(source: pa.DataType, kind: pa.DataType) -> tuple[Convert, bool]:
    if is_decimal(kind):
        return _choose_decimal_cast(source, kind)
    if is_decimal(source):
        if is_float(kind):
            return lambda array: decimal_to_double(array, kind), False
        return lambda array: _truncate_decimals(array, kind), True
    if is_float(kind):
        return lambda array: array.cast(kind, safe=False), False
    if is_integer(source):
        return lambda array: narrow_integers(array, kind), source.bit_width > kind.bit_width
    return lambda array: _truncate_doubles(array, kind), True


def _choose_decimal_cast(source: pa.DataType, kind: pa.DataType) -> tuple[Convert, bool]:
    if is_float(source):
        return lambda array: double_to_decimal(array, kind.precision, kind.scale), True
    exact = to_decimal_type(source)
    loses = exact.precision - exact.scale > kind.precision - kind.scale or exact.scale > kind.scale
    if is_decimal(source):
        return lambda array: rescale_decimals(array, kind.precision, kind.scale), loses
    return lambda array: rescale_decimals(array.cast(exact), kind.precision, kind.scale), loses


def _truncate_decimals(array: pa.Array, kind: pa.DataType) -> pa.Array:
    """Drop the fractions of decimals and convert to integers. A value that does not fit gives null."""
    cut = pc.trunc(array.cast(pa.decimal256(WIDEST, array.type.scale)))
    limits = np.iinfo(kind.to_pandas_dtype())
    low, high = (pa.scalar(int(limit), pa.decimal256(WIDEST, array.type.scale)) for limit in (limits.min, limits.max))
    inside = pc.and_(pc.greater_equal(cut, low), pc.less_equal(cut, high))
    return pc.if_else(inside, cut, pa.scalar(None, cut.type)).cast(pa.decimal256(WIDEST, 0)).cast(kind)


def _truncate_doubles(array: pa.Array, kind: pa.DataType) -> pa.Array:
    """Drop the fractions of doubles and convert to integers. NaN and values that do not fit give null."""
    cut = pc.trunc(array.cast(DOUBLE))
    bound = 2.0 ** (kind.bit_width - 1)
    inside = pc.and_(pc.greater_equal(cut, -bound), pc.less(cut, bound))
    return pc.if_else(inside, cut, pa.scalar(None, DOUBLE)).cast(kind)


def _choose_time_cast(source: pa.DataType, kind: pa.DataType) -> tuple[Convert, bool] | None:
    if source == DATE:
        return (lambda array: _nullify_out_of_range(array, 86_400, kind).cast(kind), True) if is_time(kind) else None
    if is_integer(source) and is_time(kind) and kind.tz:
        return lambda array: _nullify_out_of_range(array.cast(INT64), 1, kind).cast(pa.timestamp("s")).cast(kind), True
    if is_float(source) and is_time(kind) and kind.tz:
        return (
            lambda array: _truncate_doubles(pc.multiply(array.cast(DOUBLE), 1e6), INT64).cast(INSTANT).cast(kind),
            True,
        )
    if not is_time(source):
        return None
    if kind == DATE:
        return lambda array: to_wall_clock(array).cast(DATE), False
    if is_time(kind):
        # Drop the digits below a microsecond from wall-clock times. To round times with a zone, Arrow needs a time zone
        # database.
        if kind.unit == "us":
            return lambda array: to_wall_clock(array).cast(kind), False
        return lambda array: _nullify_out_of_range(array, 1 / 1000 ** UNITS.index(source.unit), kind).cast(kind), True
    if is_integer(kind) and source.tz:
        return lambda array: narrow_integers(_to_epoch_seconds(array), kind), kind != INT64
    return None


def _nullify_out_of_range(array: pa.Array, seconds: float, kind: pa.DataType) -> pa.Array:
    """Set values to null if the timestamp type ``kind`` cannot represent them.

    ``seconds``: the length of a unit. O(rows).
    """
    most = (2**63 - 1) // max(round(seconds * 1000 ** UNITS.index(kind.unit)), 1)
    numbers = array.cast(pa.int32()).cast(INT64) if array.type == DATE else array.cast(INT64)
    inside = pc.and_(pc.less_equal(numbers, most), pc.greater_equal(numbers, -most))
    return array if pc.all(inside).as_py() is not False else pc.if_else(inside, array, pa.scalar(None, array.type))


def _convert_duration_unit(array: pa.Array, kind: pa.DataType) -> pa.Array:
    """Convert durations to another unit and truncate fractions. A duration that does not fit gives null."""
    finer = UNITS.index(kind.unit) - UNITS.index(array.type.unit)
    factor, values = 1000 ** abs(finer), array.cast(INT64)
    if finer < 0:
        return pc.divide(values, factor).cast(kind)
    inside = pc.less_equal(pc.abs(values), (2**63 - 1) // factor)
    return pc.multiply(pc.if_else(inside, values, pa.scalar(None, INT64)), factor).cast(kind)


def to_wall_clock(array: pa.Array) -> pa.Array:
    """Convert timestamps to wall-clock time in UTC, rounded down to microseconds."""
    plain = array.cast(pa.timestamp(array.type.unit))
    return plain if plain.type == WALL else pc.floor_temporal(plain, unit="microsecond").cast(WALL)


def _to_epoch_seconds(array: pa.Array) -> pa.Array:
    return pc.floor_temporal(to_wall_clock(array), unit="second").cast(pa.timestamp("s")).cast(INT64)
