"""Wider types: which type a column may change to, so that no value is lost and none meets another.

Invariant: it is pure on types. A *read* widening keeps identities and hashes, because an integer is hashed as 64 bits
and a float as a double; it is made where a file is read. Any other is a *rewrite*, and may still meet a value that the
wider type does not hold (``widening``). Floats and times are never text, because their text is no contract.

>>> widening(pa.int32(), pa.int64()), widening(pa.int32(), pa.float64()), widening(pa.int64(), pa.int32())
('read', 'rewrite', None)
"""

import re
from collections.abc import Collection, Mapping
from decimal import Decimal, InvalidOperation
from typing import Final, Literal

import pyarrow as pa
import pyarrow.types as pat

from ddflow.columns.type_text import spelled_type

Widening = Literal["read", "rewrite"]
UNITS: Final = ("s", "ms", "us", "ns")


def widening(old: pa.DataType, new: pa.DataType) -> Widening | None:
    """How a column of one type becomes one of another: None where it may not, also where both are the same.  O(type).

    ``"rewrite"`` may still meet a value that does not fit: see `widened`.
    """
    if old == new:
        return None
    if _keeps_hashes(old, new):
        return "read"
    if pat.is_integer(old):
        return "rewrite" if pat.is_float64(new) or pat.is_decimal(new) or _is_text(new) else None
    if pat.is_decimal(old):
        return "rewrite" if _is_text(new) or _holds(old, new) else None
    if pat.is_date(old):
        midnight = pat.is_timestamp(new) and new.tz in (None, "UTC")
        return "rewrite" if midnight or _is_text(new) else None
    if pat.is_timestamp(old):
        return "rewrite" if pat.is_timestamp(new) and old.tz == new.tz and _finer(old, new) else None
    if pat.is_duration(old):
        return "rewrite" if pat.is_duration(new) and _finer(old, new) else None
    if pat.is_time(old):
        return "rewrite" if _is_text(new) or (pat.is_time(new) and _finer(old, new)) else None
    if pat.is_boolean(old) or old == pa.uuid():
        return "rewrite" if _is_text(new) else None
    return _nested(old, new)


def _keeps_hashes(old: pa.DataType, new: pa.DataType) -> bool:
    if pat.is_integer(old) and pat.is_integer(new):
        signs = pat.is_unsigned_integer(old), pat.is_unsigned_integer(new)
        return old.bit_width < new.bit_width and signs != (False, True)
    if pat.is_floating(old) and pat.is_floating(new):
        return bool(old.bit_width < new.bit_width)
    return (old, new) in ((pa.string(), pa.large_string()), (pa.binary(), pa.large_binary()))


def _holds(old: pa.DataType, new: pa.DataType) -> bool:
    whole = (kind.precision - kind.scale for kind in (old, new)) if pat.is_decimal(new) else (1, 0)
    least, most = whole
    return bool(least <= most and old.scale <= new.scale)


def _finer(old: pa.DataType, new: pa.DataType) -> bool:
    return UNITS.index(old.unit) < UNITS.index(new.unit)


def _nested(old: pa.DataType, new: pa.DataType) -> Widening | None:
    """That of lists and structs, part by part."""
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
            each = widening(one.type, other.type)
            if each is None:
                return None
            found = "rewrite" if "rewrite" in (each, found) else each
    return found


def keeps_order(old: pa.DataType, new: pa.DataType) -> bool:
    """Whether values of a type have the same order in one that they are widened to.  O(type)."""
    if pat.is_nested(old):
        return all(keeps_order(old.field(i).type, new.field(i).type) for i in range(old.num_fields))
    return _is_text(old) or not _is_text(new)


def differing(old: pa.Schema, new: pa.Schema) -> list[str]:
    """The columns of both whose types differ.  O(columns)."""
    return [f.name for f in old if f.name in new.names and new.field(f.name).type != f.type]


ANEW: Final = "; a state cannot change it to that: make a new one"
_NAME: Final = re.compile(r"'((?:[^'\\]|\\.)*)': ")
_GIVEN: Final = r"(?:(\{[^{}]*\})|\{('[^{}]*'|\"[^{}]*\"): (\{[^{}]*\})\})"
"""Types by column, or those of one input by its name."""
_REWRITING: Final = re.compile(rf"dd\.evolve\(STATE, {_GIVEN}\)")
_CALL: Final = re.compile(r"(engine\.evolve\(|dd\.evolve\(STATE, )(\{[^{}]*\})\)")

WIDENED: Final = "if the column became wider at its source: "
_BECOMES: Final = re.compile(rf"; in a state the column becomes that by .*dd\.evolve\(STATE, {_GIVEN}\)")


def becomes(field: pa.Field, kind: pa.DataType, input: str = "", fixed: bool = False) -> str:
    """How a column is widened to a type, for the remedy of an error.  ``fixed``: whether it decides, as a key does.

    >>> becomes(pa.field("c", pa.int32()), pa.float64())
    "; in a state the column becomes that by dd.evolve(STATE, {'c': 'double'})"
    >>> becomes(pa.field("c", pa.float64()), pa.string())
    '; a state cannot change it to that: make a new one'
    """
    how = None if fixed else widening(field.type, kind)
    if how is None:
        return ANEW
    types = {field.name: spelled_type(kind)}
    taken = f"engine.evolve({ {input: types} if input else types }), or " if how == "read" else ""
    return f"; in a state the column becomes that by {taken}{rewriting(types)}"


def rewriting(types: Mapping[str, str], state: str | None = None, input: str = "") -> str:
    """The call that has columns of a state widened.  ``state``: where it is known.  ``input``: where it has several.

    >>> rewriting({"c": "double"})
    "dd.evolve(STATE, {'c': 'double'})"
    """
    return f"dd.evolve({'STATE' if state is None else repr(state)}, { ({input: types} if input else types) })"


def of_input(text: str, input: str) -> str:
    """A text in which calls of ``evolve`` stand, with the input that their columns are of.

    >>> of_input(rewriting({"c": "double"}), "orders"), of_input(rewriting({"c": "double"}, input="orders"), "orders")
    ("dd.evolve(STATE, {'orders': {'c': 'double'}})", "dd.evolve(STATE, {'orders': {'c': 'double'}})")
    """
    return _CALL.sub(lambda call: f"{call[1]}{{{input!r}: {call[2]}}})", text)


def located(text: str, state: str, input: str = "", fixed: Collection[str] = ()) -> str:
    """A text in which `rewriting` stands, for a state that is known.  ``input``: where the state has several.
    ``fixed``: the columns that decide, which never change.

    >>> located(rewriting({"c": "double"}), "my state", "orders")
    "dd.evolve('my state', {'orders': {'c': 'double'}})"
    >>> located(rewriting({"c": "double"}), "my state", fixed=["c"])
    "{'c': 'double'} in a new state, because a column that decides never changes"
    >>> located(rewriting({"c": "double"}, input="orders"), "my state", "orders", fixed=["orders"])
    "dd.evolve('my state', {'orders': {'c': 'double'}})"
    """

    def said(call: re.Match[str]) -> str:
        types, of = call[1] or call[3], call[2]
        if set(_NAME.findall(types)) & set(fixed):
            return f"{types} in a new state, because a column that decides never changes"
        return f"dd.evolve({state!r}, {f'{{{of}: {types}}}' if of else types})"

    return _REWRITING.sub(said, of_input(text, input) if input else text)


def rewritten(name: str, was: pa.DataType, to: pa.DataType) -> str:
    """What to write to declare another type of a column that a state has.

    >>> rewritten("c", pa.float64(), pa.string())
    "{'c': 'string'}, in a new state"
    """
    types = {name: spelled_type(to)}
    return f"{types}, in a new state" if widening(was, to) is None else rewriting(types)


def without_state(text: str) -> str:
    """A text in which `rewriting` stands, for a state with nothing in it, which takes a flow that changed.

    >>> without_state("declare double" + becomes(pa.field("c", pa.int32()), pa.float64()))
    'declare double'
    >>> without_state(f"{WIDENED}{rewriting({'c': 'double'})}")
    "declare the type that fits: {'c': 'double'}"
    """
    text = _BECOMES.sub("", text).replace(WIDENED, "declare the type that fits: ")
    return _REWRITING.sub(lambda call: call[1] or call[3], text)


def holding(kind: pa.DataType, value: str) -> pa.DataType | None:
    """The type that a column is widened to for a value, which is written as in JSON; None where it may not be.

    >>> holding(pa.int32(), "3000000000"), holding(pa.int32(), "1.5"), holding(pa.decimal128(4, 2), "123.5")
    (DataType(int64), DataType(double), Decimal128Type(decimal128(5, 2)))
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
    return None if widening(kind, wide) is None else wide


def _is_text(kind: pa.DataType) -> bool:
    return bool(pat.is_string(kind) or pat.is_large_string(kind))
