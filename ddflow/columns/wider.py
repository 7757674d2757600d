"""Decide to which types a column can change so that no value is lost and different values stay different.

A *read* widening keeps all identities and hashes, so values can be converted when a file is read. For example, every
integer is hashed as 64 bits, and every float as a double. A widening that changes identities or hashes is a *rewrite*
of the state, and fails if a value does not fit the new type (``widening``). Floats, timestamps and durations never
become text, because their text is not stable. No function of this file reads values.

>>> find_widening(pa.int32(), pa.int64()), find_widening(pa.int32(), pa.float64())
('read', 'rewrite')
>>> find_widening(pa.int64(), pa.int32()) is None
True
"""

from decimal import Decimal, InvalidOperation
from typing import Final, Literal

import pyarrow as pa
import pyarrow.types as pat

from ddflow.columns.casts import format_type
from ddflow.errors import EvolveFix, WidenFix

Widening = Literal["read", "rewrite"]
UNITS: Final = ("s", "ms", "us", "ns")


def find_widening(old: pa.DataType, new: pa.DataType) -> Widening | None:
    """Return the kind of widening from one type to another.

    Return None for equal types and for a widening that is not allowed. O(type). A ``"rewrite"`` fails if a value does
    not fit the new type: see `widen_column`.
    """
    if old == new:
        return None
    if _keeps_hashes(old, new):
        return "read"
    if pat.is_integer(old):
        return "rewrite" if pat.is_float64(new) or pat.is_decimal(new) or _is_text(new) else None
    if pat.is_decimal(old):
        return "rewrite" if _is_text(new) or _is_wider_decimal(old, new) else None
    if pat.is_date(old):
        midnight = pat.is_timestamp(new) and new.tz in (None, "UTC")
        return "rewrite" if midnight or _is_text(new) else None
    if pat.is_timestamp(old):
        return "rewrite" if pat.is_timestamp(new) and old.tz == new.tz and _has_finer_unit(old, new) else None
    if pat.is_duration(old):
        return "rewrite" if pat.is_duration(new) and _has_finer_unit(old, new) else None
    if pat.is_time(old):
        return "rewrite" if _is_text(new) or (pat.is_time(new) and _has_finer_unit(old, new)) else None
    if pat.is_boolean(old) or old == pa.uuid():
        return "rewrite" if _is_text(new) else None
    return _find_nested_widening(old, new)


def _keeps_hashes(old: pa.DataType, new: pa.DataType) -> bool:
    if pat.is_integer(old) and pat.is_integer(new):
        signs = pat.is_unsigned_integer(old), pat.is_unsigned_integer(new)
        return old.bit_width < new.bit_width and signs != (False, True)
    if pat.is_floating(old) and pat.is_floating(new):
        return bool(old.bit_width < new.bit_width)
    return (old, new) in ((pa.string(), pa.large_string()), (pa.binary(), pa.large_binary()))


def _is_wider_decimal(old: pa.DataType, new: pa.DataType) -> bool:
    whole = (kind.precision - kind.scale for kind in (old, new)) if pat.is_decimal(new) else (1, 0)
    least, most = whole
    return bool(least <= most and old.scale <= new.scale)


def _has_finer_unit(old: pa.DataType, new: pa.DataType) -> bool:
    return UNITS.index(old.unit) < UNITS.index(new.unit)


def _find_nested_widening(old: pa.DataType, new: pa.DataType) -> Widening | None:
    """Find the widening of lists and structs from the widenings of their parts."""
    if old.id != new.id or not (pat.is_list(old) or pat.is_large_list(old) or pat.is_struct(old)):
        return None
    parts = [[kind.field(i) for i in range(kind.num_fields)] for kind in (old, new)]
    if len(parts[0]) != len(parts[1]):
        return None
    found: Widening | None = None
    for one, other in zip(*parts, strict=True):
        if pat.is_struct(old) and one.name != other.name:
            return None
        if one.type != other.type:
            each = find_widening(one.type, other.type)
            if each is None:
                return None
            found = "rewrite" if "rewrite" in (each, found) else each
    return found


def keeps_order(old: pa.DataType, new: pa.DataType) -> bool:
    """Return whether a widening from ``old`` to ``new`` keeps the order of values. O(type)."""
    if pat.is_nested(old):
        return all(keeps_order(old.field(i).type, new.field(i).type) for i in range(old.num_fields))
    return _is_text(old) or not _is_text(new)


def list_changed_types(old: pa.Schema, new: pa.Schema) -> list[str]:
    """List the columns that both schemas have with different types. O(columns)."""
    return [f.name for f in old if f.name in new.names and new.field(f.name).type != f.type]


def suggest_widening(field: pa.Field, kind: pa.DataType, input: str = "", fixed: bool = False) -> WidenFix:
    """Suggest how to change the type of a state's column. The suggestion is appended to a remedy that names the type.

    ``fixed``: whether the type of the column can never change, for example because the column is a key.

    >>> str(suggest_widening(pa.field("c", pa.int32()), pa.float64()))
    "; to change the column in a state, use dd.evolve(STATE, {'c': 'double'})"
    >>> str(suggest_widening(pa.field("c", pa.float64()), pa.string()))
    '; a state cannot change the column to that type; create a new state'
    """
    how = None if fixed else find_widening(field.type, kind)
    types = {} if how is None else {field.name: format_type(kind)}
    return WidenFix(types, input, declared=True, reads=how == "read")


def suggest_evolve_call(name: str, was: pa.DataType, to: pa.DataType) -> EvolveFix:
    """Suggest the call that gives a column of a state another type.

    >>> str(suggest_evolve_call("c", pa.int32(), pa.float64())), str(suggest_evolve_call("c", pa.float64(),
    ...     pa.string()))
    ("dd.evolve(STATE, {'c': 'double'})", "{'c': 'string'}, in a new state")
    """
    return EvolveFix({name: format_type(to)}, moves=find_widening(was, to) is None)


def find_type_for_value(kind: pa.DataType, value: str) -> pa.DataType | None:
    """Find a type that can hold a value, and to which a column can be widened. Return None if there is no such type.

    ``value``: the value as written in JSON.

    >>> find_type_for_value(pa.int32(), "3000000000"), find_type_for_value(pa.int32(), "1.5")
    (DataType(int64), DataType(double))
    >>> find_type_for_value(pa.decimal128(4, 2), "123.5")
    Decimal128Type(decimal128(5, 2))
    """
    wide = pa.string()
    try:
        _, digits, exponent = (number := Decimal(value)).as_tuple()
    except InvalidOperation:
        exponent = "n"
    if isinstance(exponent, int):
        if pat.is_decimal(kind):
            scale = max(kind.scale, -exponent)
            precision = max(kind.precision - kind.scale, len(digits) + exponent) + scale
            wide = pa.decimal128(precision, scale) if precision <= 38 else wide
        elif number != number.to_integral_value():
            wide = pa.float64()
        else:
            wide = pa.int64() if -(2**63) <= number < 2**63 else pa.decimal128(38, 0)
    return None if find_widening(kind, wide) is None else wide


def _is_text(kind: pa.DataType) -> bool:
    return bool(pat.is_string(kind) or pat.is_large_string(kind))
