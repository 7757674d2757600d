"""Cast columns without loss, and parse types written as text.

A cast succeeds only if every value has an equal value in the target type. If a cast fails, the caller raises an error
with the first value that does not fit. `parse_type` reads names such as ``decimal(12,2)``, and `format_type` writes
names that `parse_type` reads back.

>>> import pyarrow as pa
>>> cast_exactly(pa.array([1.0, None, 2.0]), pa.int64()).to_pylist(), cast_exactly(pa.array([1.0, 2.5]), pa.int64())
([1, None, 2], None)
>>> find_uncastable_row(pa.array([1.0, 2.5, 3.5]), pa.int64()), suggest_type(pa.float64(), pa.int64())
(1, DataType(double))
"""

import re
from collections.abc import Callable, Iterable
from decimal import MAX_EMAX, MAX_PREC, MIN_EMIN, Context, Decimal
from difflib import get_close_matches
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pat

from ddflow.errors import SpecError

_UNITS: Final = ("s", "ms", "us", "ns")
_BYTES: Final = (pat.is_binary, pat.is_large_binary, pat.is_fixed_size_binary)
_LISTS: Final = (pat.is_list, pat.is_large_list, pat.is_fixed_size_list)
_WHOLE: Final = (pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.decimal128(20))
_FAMILIES: Final[tuple[Callable[[pa.DataType], Any], ...]] = (
    lambda kind: pat.is_integer(kind) or pat.is_floating(kind) or pat.is_decimal(kind),
    lambda kind: pat.is_string(kind) or pat.is_large_string(kind),
    lambda kind: any(test(kind) for test in _BYTES) or kind == pa.uuid(),
    lambda kind: pat.is_date(kind) or (pat.is_timestamp(kind) and kind.tz is None),
    lambda kind: pat.is_timestamp(kind) and kind.tz is not None,
    pat.is_time,
    pat.is_duration,
)


_WIDE: Final = pa.decimal256(76, 38)
_DECIMAL: Final = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]{1,18})?", re.ASCII)
_DIGITS: Final = Context(prec=MAX_PREC, Emin=MIN_EMIN, Emax=MAX_EMAX, traps=[])
_ROOM: Final = {32: 9, 64: 18, 128: 38, 256: 76}
"""For each width of a decimal type in bits: the number of decimal digits that the type holds."""


def parse_decimals(texts: pa.Array, kind: pa.DataType) -> pa.Array:
    """Parse texts as decimals without rounding. O(bytes). Raises `pyarrow.ArrowInvalid` for a text that does not fit.

    Arrow's own cast silently drops bits of numbers that are too large for its integers. Therefore `parse_decimals` uses
    Arrow's cast only for short texts.

    >>> parse_decimals(pa.array(["1.50", "15e-1", "-0"]), pa.decimal128(38, 38 - 2)).to_pylist()[1]
    Decimal('1.500000000000000000000000000000000000')
    >>> pa.array(["-4"]).cast(pa.decimal128(38, 38)).to_pylist()
    [Decimal('-0.59717633079061536536625392568231788544')]
    """
    longest, room = pc.max(pc.binary_length(texts)).as_py() or 0, _ROOM[kind.bit_width]
    letters = np.frombuffer(texts.buffers()[2] or b"", np.uint8) if longest else np.empty(0, np.uint8)
    if not (letters | 32 == ord("e")).any():
        if longest + max(kind.scale, 0) <= room:
            return texts.cast(kind)
        if longest <= 38 <= room and kind.scale <= 38:
            return texts.cast(_WIDE).cast(kind)
    numbers = [None if each is None else _parse_decimal(each, kind) for each in texts.to_pylist()]
    return pa.array(numbers, kind)


def cast_to_floats(cells: pa.Array, kind: pa.DataType) -> pa.Array:
    """Cast texts or numbers to the nearest floats. O(n). Raises `pyarrow.ArrowInvalid` if a number overflows.

    >>> cast_to_floats(pa.array(["1e300", "inf"]), pa.float64()).to_pylist()
    [1e+300, inf]
    """
    made = cells.cast(kind, safe=not pat.is_floating(cells.type))
    endless = cells.filter(pc.is_inf(made)).cast(pa.string())
    if pc.all(pc.match_substring_regex(endless, "(?i)inf")).as_py() is False:
        raise pa.ArrowInvalid(f"a number overflows {kind}")
    return made


def _parse_decimal(text: str, kind: pa.DataType) -> Decimal:
    """Parse a number and drop its trailing zeros, which Arrow's own conversion would keep."""
    if _DECIMAL.fullmatch(text) and (number := _DIGITS.create_decimal(text).normalize(_DIGITS)).is_finite():
        fits = int(number.as_tuple().exponent) >= -kind.scale and number.adjusted() < kind.precision - kind.scale
        if fits or not number:
            return number
    raise pa.ArrowInvalid(f"{text[:99]!r} is not a valid {kind}")


def may_cast(source: pa.DataType, target: pa.DataType) -> bool:
    """Return whether values of one type can equal values of another type.

    Both types must be normal types (`normalize_type`).
    """
    if source == target or pat.is_null(source):
        return True
    if any(test(source) and test(target) for test in _FAMILIES):
        return True
    if pat.is_struct(source) and pat.is_struct(target):
        there = {field.name: field.type for field in target}
        return len(there) == target.num_fields and all(
            field.name in there and may_cast(field.type, there[field.name]) for field in source
        )
    if pat.is_map(source) and pat.is_map(target):
        return may_cast(source.key_type, target.key_type) and may_cast(source.item_type, target.item_type)
    lists = any(test(source) for test in _LISTS) and any(test(target) for test in _LISTS)
    return lists and may_cast(source.value_type, target.value_type)


def cast_exactly(array: pa.Array, kind: pa.DataType) -> pa.Array | None:
    """Cast to another type. Return None if a value has no equal value in the other type.

    O(values). Both types must be normal types (`normalize_type`).
    """
    if array.type == kind:
        return array
    if pat.is_null(array.type):
        return pa.nulls(len(array), kind)
    if not may_cast(array.type, kind):
        return None
    try:
        return _cast_nested(array, kind) if pat.is_nested(kind) else _cast_flat(array, kind)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        return None


def find_uncastable_row(array: pa.Array, kind: pa.DataType) -> int:
    """Find the first row with a value that the type ``kind`` cannot represent exactly. O(values).

    Return the number of rows if the type can represent every value.
    """
    low, high = 0, len(array)  # all rows before ``low`` fit; at least one row before ``high`` does not fit
    if cast_exactly(array, kind) is not None:
        return high
    while high - low > 1:
        middle = (low + high) // 2
        if cast_exactly(array.slice(low, middle - low), kind) is None:
            high = middle
        else:
            low = middle
    return low


def suggest_type(source: pa.DataType, target: pa.DataType) -> pa.DataType:
    """Choose a type that can hold all values of two given types. Messages suggest this type.

    Return ``source`` if no such type is known.
    """
    if pat.is_integer(source) and pat.is_integer(target):
        wide = max(kind.bit_width * (1 + pat.is_unsigned_integer(kind)) for kind in (source, target))
        return next((kind for kind in _WHOLE if kind.bit_width >= wide), _WHOLE[-1])
    if pat.is_decimal(target) and (pat.is_decimal(source) or pat.is_integer(source)):
        whole, scale = (source.precision - source.scale, source.scale) if pat.is_decimal(source) else (20, 0)
        scale = max(scale, target.scale)
        digits = max(whole, target.precision - target.scale) + scale
        return pa.decimal128(digits, scale) if digits <= 38 else pa.decimal256(min(digits, 76), scale)
    if pat.is_integer(source) and pat.is_floating(target):
        return pa.decimal128(38, 0) if target == pa.float64() else pa.float64()
    if pat.is_timestamp(source) and pat.is_timestamp(target) and source.unit != target.unit:
        unit = max(source.unit, target.unit, key=_UNITS.index)
        return source if unit == target.unit else pa.timestamp(unit, target.tz)
    return source


def _cast_flat(array: pa.Array, kind: pa.DataType) -> pa.Array | None:
    source = array.type
    if pat.is_floating(kind) and not pat.is_decimal(source):
        return _check_round_trip(array, array.cast(kind, safe=False))
    if pat.is_integer(source) and pat.is_decimal(kind):
        return array.cast(pa.decimal128(20)).cast(kind)
    if pat.is_floating(source) and pat.is_decimal(kind):
        return _check_round_trip(array, array.cast(kind)) if _has_decimal_scale(array, kind.scale) else None
    if pat.is_decimal(source) and pat.is_floating(kind):
        made = array.cast(kind)
        return _check_round_trip(array, made) if _has_decimal_scale(made, source.scale) else None
    if pat.is_decimal(source) and pat.is_integer(kind):
        return array.cast(pa.decimal256(76, source.scale)).cast(kind)
    if source == pa.uuid() or kind == pa.uuid():
        return array.cast(pa.binary(16)).cast(kind)
    made = array.cast(kind)
    return _check_round_trip(array, made) if pat.is_temporal(kind) else made


def _check_round_trip(array: pa.Array, made: pa.Array) -> pa.Array | None:
    """Cast ``made`` back to the type of ``array``.

    Return ``made`` if this gives ``array`` again, else None. NaN equals NaN.
    """
    back = made.cast(array.type)
    if back.equals(array):
        return made
    if not pat.is_floating(array.type):
        return None
    one, other = (np.asarray(each.fill_null(0)) for each in (array, back))
    return made if bool(np.array_equal(one, other, equal_nan=True)) else None


def _has_decimal_scale(array: pa.Array, scale: int) -> bool:
    """Return False if it is certain that some float equals no decimal with ``scale`` fraction digits.

    A float that equals a decimal with ``scale`` fraction digits is a multiple of 2^-scale, because 10^scale is a
    multiple of 2^scale.
    """
    values = np.asarray(array.drop_null(), np.float64)
    scaled = np.ldexp(values, max(scale, 0))
    return bool(np.all(np.isfinite(values) & (~np.isfinite(scaled) | (scaled == np.floor(scaled)))))


def _cast_nested(array: pa.Array, kind: pa.DataType) -> pa.Array | None:
    gone, n = array.is_null(), len(array)
    if pat.is_struct(kind):
        there = dict(zip((field.name for field in array.type), array.flatten(), strict=True))
        children: list[Any] = [_cast_child(there.get(field.name, pa.nulls(n)), field, gone) for field in kind]
        if any(child is None for child in children):
            return None
        return pa.StructArray.from_arrays(children, fields=list(kind), mask=gone)
    if pat.is_map(kind):
        keys, items = cast_exactly(array.keys, kind.key_type), cast_exactly(array.items, kind.item_type)
        if keys is None or items is None:
            return None
        offsets = pa.array(np.asarray(array.offsets))  # a copy, because Arrow refuses a mask for sliced offsets
        return pa.MapArray.from_arrays(offsets, keys, items, type=kind, mask=gone)
    values = _cast_child(array.flatten(), kind.value_field)
    if values is None:
        return None
    ends = np.concatenate([[0], np.cumsum(np.asarray(pc.fill_null(pc.list_value_length(array), 0)))])
    return build_list_array(kind, ends, values, gone)


def build_list_array(kind: pa.DataType, ends: Any, values: pa.Array, gone: pa.Array) -> pa.Array:
    """Build lists of any kind, or maps, from the elements in ``values``. O(lists).

    ``ends``: the begin of the first list, then the end of each list. ``gone``: the mask of null lists.
    """
    wide = pat.is_large_list(kind) or pat.is_fixed_size_list(kind)
    offsets = pa.array(ends, pa.int64() if wide else pa.int32())
    if pat.is_map(kind):
        keys, items = values.flatten()
        return pa.MapArray.from_arrays(offsets, keys, items, type=kind, mask=gone)
    if pat.is_fixed_size_list(kind):
        return pa.LargeListArray.from_arrays(offsets, values, mask=gone).cast(kind)
    return (pa.LargeListArray if wide else pa.ListArray).from_arrays(offsets, values, type=kind, mask=gone)


def _cast_child(array: pa.Array, field: pa.Field, gone: pa.Array | None = None) -> pa.Array | None:
    """Cast a child of a nested column. Return None for a value that does not fit, or for a forbidden null.

    A null below a null parent is allowed.
    """
    if not field.nullable and array.null_count:
        present = array if gone is None else array.filter(pc.invert(gone))
        if present.null_count:
            return None
    return cast_exactly(array, field.type)


_SQL: Final = {
    "boolean": pa.bool_(),
    "tinyint": pa.int8(),
    "byte": pa.int8(),
    "smallint": pa.int16(),
    "short": pa.int16(),
    "int": pa.int32(),
    "integer": pa.int32(),
    "bigint": pa.int64(),
    "long": pa.int64(),
    "real": pa.float32(),
    "text": pa.string(),
    "varchar": pa.string(),
    "date": pa.date32(),
    "time": pa.time64("us"),
    "bytes": pa.binary(),
    "timestamp": pa.timestamp("us"),
    "timestamp_ntz": pa.timestamp("us"),
    "timestamptz": pa.timestamp("us", "UTC"),
    "timestamp_tz": pa.timestamp("us", "UTC"),
    "timestamp_ltz": pa.timestamp("us", "UTC"),
    "decimal": pa.decimal128(38, 0),
    "date32[day]": pa.date32(),
    "date64[ms]": pa.date64(),
    "halffloat": pa.float16(),
}
_ARROW: Final = (
    "bool",
    "int8",
    "int16",
    "int32",
    "int64",
    "uint8",
    "uint16",
    "uint32",
    "uint64",
    "float16",
    "float32",
    "float64",
    "float",
    "double",
    "string",
    "large_string",
    "binary",
    "large_binary",
    "date32",
    "date64",
    *(f"{kind}[{unit}]" for kind in ("timestamp", "duration") for unit in ("s", "ms", "us", "ns")),
    "time32[s]",
    "time32[ms]",
    "time64[us]",
    "time64[ns]",
)
_DECIMAL_TEXT = re.compile(r"(?:decimal|numeric|decimal(128|256))\(\s*(\d+)\s*(?:,\s*(-?\d+)\s*)?\)")
_ZONED = re.compile(r"timestamp\[(s|ms|us|ns),\s*(?:tz=)?([\w/+:-]+)\]")
_FIXED_LIST = re.compile(r"fixed_size_list<(.*)>\[(\d+)\]")
_FIXED = re.compile(r"fixed_size_binary\[(\d+)\]")


def parse_type(text: str) -> pa.DataType:
    """Parse the name of a type. Raises `SpecError` with the nearest name. O(length).

    >>> parse_type("bigint"), parse_type("decimal(12, 2)"), parse_type("timestamp[ms, tz=Europe/Zurich]")
    (DataType(int64), Decimal128Type(decimal128(12, 2)), TimestampType(timestamp[ms, tz=Europe/Zurich]))
    >>> parse_type("timestamp_ltz") == parse_type("timestamptz")
    True
    >>> parse_type("list<struct<at: date, tags: list<string>>>")
    ListType(list<item: struct<at: date32[day], tags: list<item: string>>>)
    >>> parse_types(["id=int64,total=decimal(12,2)"])["total"]
    Decimal128Type(decimal128(12, 2))
    """
    given = text.strip()
    lower = given.lower()
    if lower in _SQL:
        return _SQL[lower]
    if lower in _ARROW:
        return pa.type_for_alias(lower)
    try:
        return _parse_parametric_type(given, lower)
    except SpecError:
        raise
    except (pa.ArrowInvalid, ValueError) as error:
        raise SpecError(f"type {text!r}", str(error), "use numbers that the type allows") from None


def format_type(kind: pa.DataType) -> str:
    """Format a type as a short text that `parse_type` reads. O(1).

    >>> format_type(pa.timestamp("us", "UTC")), format_type(pa.decimal128(38, 2)), format_type(pa.int64())
    ('timestamptz', 'decimal(38,2)', 'int64')
    """
    if pa.types.is_decimal(kind):
        return f"decimal({kind.precision},{kind.scale})"
    own = str(kind)
    return own if own in _ARROW and "[" not in own else next((n for n, each in _SQL.items() if each == kind), own)


def _parse_parametric_type(given: str, lower: str) -> pa.DataType:
    if match := _DECIMAL_TEXT.fullmatch(lower):
        digits, scale = int(match[2]), int(match[3] or 0)
        return pa.decimal256(digits, scale) if match[1] == "256" or digits > 38 else pa.decimal128(digits, scale)
    if (match := _ZONED.fullmatch(given)) is not None:
        return pa.timestamp(match[1], match[2])
    if match := _FIXED.fullmatch(lower):
        return pa.binary(int(match[1]))
    if (match := _FIXED_LIST.fullmatch(given)) is not None:
        return pa.list_(parse_type(_strip_field_name(match[1])), int(match[2]))
    name, _, rest = given.partition("<")
    if rest.endswith(">"):
        inner = _split_at_commas(rest[:-1])
        match name.strip().lower():
            case "list" | "array" if len(inner) == 1:
                return pa.list_(parse_type(_strip_field_name(inner[0])))
            case "large_list" if len(inner) == 1:
                return pa.large_list(parse_type(_strip_field_name(inner[0])))
            case "map" if len(inner) == 2:
                return pa.map_(parse_type(inner[0]), parse_type(inner[1]))
            case "struct" if inner:
                return pa.struct([pa.field(column, kind) for column, kind in map(_parse_field, inner)])
    near = get_close_matches(lower, [*_SQL, *_ARROW, "decimal(12,2)", "list<...>", "struct<...>", "map<...>"], 1)
    raise SpecError(
        f"type {given!r}",
        "there is no such type",
        f"did you mean {near[0]!r}?"
        if near
        else f"use one of {', '.join(_ARROW[:15])}, date, timestamp, decimal(12,2), ...",
    )


def _strip_field_name(text: str) -> str:
    """Strip the name ``item`` from ``list<item: string>``.

    Arrow always writes a field name for lists, but the name has no meaning.
    """
    return text.split(":", 1)[1] if re.match(r"\s*\w+\s*:", text) else text


def _parse_field(text: str) -> tuple[str, pa.DataType]:
    name, colon, kind = text.partition(":")
    if not colon:
        raise SpecError(f"struct field {text.strip()!r}", "it has no type", "write name: type")
    return name.strip(), parse_type(kind)


def _split_at_commas(text: str) -> list[str]:
    """Split a text at the commas that are outside brackets.

    >>> _split_at_commas("a=decimal(3,1),b=list<int>")
    ['a=decimal(3,1)', 'b=list<int>']
    """
    parts, depth, start = [], 0, 0
    for at, letter in enumerate(text):
        depth += (letter in "(<[") - (letter in ")>]")
        if letter == "," and depth == 0:
            parts.append(text[start:at])
            start = at + 1
    return [part for part in [*parts, text[start:]] if part.strip()]


def parse_types(texts: Iterable[str]) -> dict[str, pa.DataType]:
    """Parse texts such as ``a=int,b=text`` into a dict of types by column. Raises `SpecError`."""
    out: dict[str, pa.DataType] = {}
    for part in (part for text in texts for part in _split_at_commas(text)):
        column, equals, kind = part.partition("=")
        column = column.strip()
        if not equals or not column:
            raise SpecError(
                f"types {part.strip()!r}",
                "it is not column=type",
                "write a column and a type, for example amount=double",
            )
        if column in out:
            raise SpecError(
                f"types {part.strip()!r}", f"{column!r} has the type {out[column]} already", "name each column once"
            )
        out[column] = parse_type(kind)
    return out
