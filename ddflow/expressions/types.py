"""Define the types of expressions, and the common type of operands, by the ANSI rules of Spark 4.

Guarantees: every compiled node has a working type. So no kernel gets a dictionary, a view, a large string, an unsigned
integer or a time zone other than UTC. Common types are the same as in Spark: bigint for a string and an integer, double
for a float and an integer. A date that is combined with an instant becomes the instant at midnight UTC. `casts.py`
converts the values.

>>> import pyarrow as pa
>>> working_type(pa.dictionary(pa.int32(), pa.large_string())), working_type(pa.uint16())
(DataType(string), DataType(int32))
>>> sql_name(common_type([pa.int32(), pa.string()])), sql_name(common_type([pa.int64(), pa.decimal128(10, 2)]))
('bigint', 'decimal(22,2)')
>>> common_type([pa.bool_(), pa.int32()]) is None
True
"""

from collections.abc import Sequence

import pyarrow as pa
import pyarrow.types as pat

NULL, BOOL, STRING, BINARY, DATE = pa.null(), pa.bool_(), pa.string(), pa.binary(), pa.date32()
INT8, INT16, INT32, INT64 = pa.int8(), pa.int16(), pa.int32(), pa.int64()
FLOAT, DOUBLE = pa.float32(), pa.float64()
INSTANT, WALL = pa.timestamp("us", "UTC"), pa.timestamp("us")
DURATION = pa.duration("us")
UNITS = ("s", "ms", "us", "ns")

MOST_DIGITS = 38
INTEGERS = (INT8, INT16, INT32, INT64)
DIGITS = {INT8: 3, INT16: 5, INT32: 10, INT64: 20}
_UNSIGNED = {pa.uint8(): INT16, pa.uint16(): INT32, pa.uint32(): INT64, pa.uint64(): pa.decimal128(20, 0)}
_NAMES = {
    NULL: "void",
    BOOL: "boolean",
    STRING: "string",
    BINARY: "binary",
    DATE: "date",
    INT8: "tinyint",
    INT16: "smallint",
    INT32: "int",
    INT64: "bigint",
    FLOAT: "float",
    DOUBLE: "double",
    INSTANT: "timestamp",
    WALL: "timestamp_ntz",
}


def working_type(kind: pa.DataType) -> pa.DataType:
    """Return the working type for values of ``kind``, which can be ``kind`` itself. O(1)."""
    if pat.is_dictionary(kind) or pat.is_run_end_encoded(kind):
        return working_type(kind.value_type)
    if pat.is_large_string(kind) or kind == pa.string_view():
        return STRING
    if pat.is_large_binary(kind) or pat.is_fixed_size_binary(kind) or kind == pa.binary_view():
        return BINARY
    if pat.is_date64(kind):
        return DATE
    if pat.is_float16(kind):
        return FLOAT
    if pat.is_decimal(kind) and kind.bit_width != 128 and kind.precision <= MOST_DIGITS:
        return pa.decimal128(kind.precision, kind.scale)
    if pat.is_timestamp(kind):
        return pa.timestamp("ns" if kind.unit == "ns" else "us", "UTC" if kind.tz else None)
    return _UNSIGNED.get(kind, kind)


def sql_name(kind: pa.DataType) -> str:
    """Return Spark's name of a type, or Arrow's name if Spark has no such type."""
    if pat.is_decimal(kind):
        return f"decimal({kind.precision},{kind.scale})"
    return _NAMES.get(kind, str(kind))


def is_integer(kind: pa.DataType) -> bool:
    return kind in INTEGERS


def is_float(kind: pa.DataType) -> bool:
    return kind in (FLOAT, DOUBLE)


def is_decimal(kind: pa.DataType) -> bool:
    return bool(pat.is_decimal128(kind))


def is_number(kind: pa.DataType) -> bool:
    return is_integer(kind) or is_float(kind) or is_decimal(kind)


def is_time(kind: pa.DataType) -> bool:
    return bool(pat.is_timestamp(kind))


def is_duration(kind: pa.DataType) -> bool:
    return bool(pat.is_duration(kind))


def to_decimal_type(kind: pa.DataType) -> pa.DataType:
    """Return the decimal type that holds every value of an integer or decimal type."""
    return kind if is_decimal(kind) else pa.decimal128(DIGITS[kind], 0)


def bounded_decimal(precision: int, scale: int) -> pa.DataType:
    """Build Spark's decimal type with the given numbers of digits.

    Above 38 digits the function drops fraction digits down to six, like Spark's ``adjustPrecisionScale``.
    """
    if precision <= MOST_DIGITS:
        return pa.decimal128(precision, scale)
    return pa.decimal128(MOST_DIGITS, max(MOST_DIGITS - (precision - scale), min(scale, 6)))


def wider_decimal(left: pa.DataType, right: pa.DataType) -> pa.DataType:
    """Return a decimal type that holds all digits before the decimal point of both types.

    If the type would need more than 38 digits, fraction digits are dropped.
    """
    scale = max(left.scale, right.scale)
    whole = max(left.precision - left.scale, right.precision - right.scale)
    return pa.decimal128(min(whole + scale, MOST_DIGITS), min(scale, MOST_DIGITS - whole))


def common_type(kinds: Sequence[pa.DataType]) -> pa.DataType | None:
    """Return the common type of working types, for comparisons and choices. Return None if no such type exists. O(n).

    The result is Spark's least common type in ANSI mode. Like Spark, the function combines strings before other types.
    """
    found: pa.DataType | None = NULL
    for kind in sorted(kinds, key=lambda kind: kind != STRING):
        found = None if found is None else _common_type_of_two(found, kind)
    return found


def _common_type_of_two(left: pa.DataType, right: pa.DataType) -> pa.DataType | None:
    if left == right or right == NULL:
        return left
    if left == NULL:
        return right
    if pat.is_list(left) and right == pa.list_(NULL):
        return left
    if pat.is_list(right) and left == pa.list_(NULL):
        return right
    if STRING in (left, right):
        return _common_type_with_string(right if left == STRING else left)
    if is_number(left) and is_number(right):
        return _common_number_type(left, right)
    return _common_time_type(left, right)


def _common_type_with_string(other: pa.DataType) -> pa.DataType | None:
    if is_integer(other):
        return INT64
    if is_number(other):
        return DOUBLE
    return other if other in (BOOL, BINARY, DATE) or is_time(other) else None


def _common_number_type(left: pa.DataType, right: pa.DataType) -> pa.DataType:
    if is_float(left) or is_float(right):
        return DOUBLE
    if is_decimal(left) or is_decimal(right):
        return wider_decimal(to_decimal_type(left), to_decimal_type(right))
    return max(left, right, key=INTEGERS.index)


def _common_time_type(left: pa.DataType, right: pa.DataType) -> pa.DataType | None:
    if DATE in (left, right):
        other = right if left == DATE else left
        return other if is_time(other) else None
    if is_duration(left) and is_duration(right):
        return max(left, right, key=lambda kind: UNITS.index(kind.unit))
    if is_time(left) and is_time(right):
        return pa.timestamp("ns" if "ns" in (left.unit, right.unit) else "us", left.tz or right.tz)
    return None
