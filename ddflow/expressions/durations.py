"""Durations: what lies between two moments, and what sums, products and parts of it are.

Invariant: a duration counts its unit (of literals and differences microseconds) and knows no months, which have no
length. Between dates there are whole days, an int, as DuckDB and Postgres say; where a timestamp is on a side, there is
a duration. Two durations meet in the finer unit. A quotient is rounded half away from zero. What leaves the range of
its type fails, as all ANSI arithmetic does.

Limits: a float beside a duration is a double, so its product is exact to 53 bits. Durations are no text.

>>> import datetime
>>> from ddflow.expressions.node import constant
>>> noon, midnight = (constant(pa.scalar(datetime.datetime(2024, 1, 3, hour))) for hour in (12, 0))
>>> lasting("-", noon, midnight).constant
<pyarrow.DurationScalar: datetime.timedelta(seconds=43200)>
>>> part("EPOCH", lasting("-", noon, midnight)).constant
<pyarrow.DoubleScalar: 43200.0>
"""

from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ddflow.expressions.casts import convert
from ddflow.expressions.node import Compute, Node, apply, null, on_arrays
from ddflow.expressions.types import (
    DATE,
    DOUBLE,
    INSTANT,
    INT32,
    INT64,
    NULL,
    UNITS,
    is_duration,
    is_integer,
    is_number,
    is_time,
    meeting,
)

_ADDED: Final[dict[str, Compute]] = {"+": pc.add_checked, "-": pc.subtract_checked}
_PARTS: Final = {"DAY": (86_400, None), "HOUR": (3_600, 24), "MINUTE": (60, 60)}
"""The seconds of a part, and how many of it make the next one."""
FIELDS: Final = (*_PARTS, "EPOCH")


def lasting(sign: str, left: Node, right: Node) -> Node | None:
    """Compute ``left sign right`` for durations, or the difference of two moments; None for other types.  O(rows)."""
    if sign == "-" and _is_moment(left) and _is_moment(right):
        return days_between(left, right) if left.type == right.type == DATE else _between(left, right)
    if sign == "+" and is_duration(left.type) and _is_moment(right):
        return _move_moment(sign, right, left)
    if sign in _ADDED and is_duration(right.type) and _is_moment(left):
        return _move_moment(sign, left, right)
    if sign == "*" and is_duration(right.type):
        left, right = right, left
    if sign in ("*", "/") and is_duration(left.type):
        return _scale_duration(sign, left, right)
    kind = meeting([left.type, right.type])
    if sign in _ADDED and kind is not None and is_duration(kind):
        return apply(_ADDED[sign], convert(left, kind), convert(right, kind), fallible=True)
    return None


def days_between(end: Node, start: Node) -> Node:
    """Count the days from one date to another."""

    def compute(last: pa.Array, first: pa.Array) -> pa.Array:
        return pc.subtract_checked(last.cast(INT32), first.cast(INT32))

    return apply(compute, end, start, fallible=True)


def part(field: str, node: Node) -> Node:
    """Extract a part of a duration by its name in ``FIELDS``: a signed whole number, or all seconds as a double."""
    second = 1000 ** UNITS.index(node.type.unit)
    if field == "EPOCH":
        return apply(lambda values: pc.divide(values.cast(INT64).cast(DOUBLE, safe=False), float(second)), node)
    seconds, most = _PARTS[field]

    def compute(values: pa.Array) -> pa.Array:
        whole = pc.divide(values.cast(INT64), seconds * second)
        return whole if most is None else pc.subtract(whole, pc.multiply(pc.divide(whole, most), most))

    return apply(compute, node)


def _is_moment(node: Node) -> bool:
    return node.type == DATE or is_time(node.type)


def _between(end: Node, start: Node) -> Node:
    kind = meeting([end.type, start.type])
    assert kind is not None
    return apply(pc.subtract_checked, convert(end, kind), convert(start, kind), fallible=True)


def _move_moment(sign: str, moment: Node, by: Node) -> Node:
    """Add a duration to a timestamp, or to the midnight (UTC) of a date, or subtract it."""
    moment = convert(moment, INSTANT) if moment.type == DATE else moment
    unit = max(moment.type.unit, by.type.unit, key=UNITS.index)
    moment, by = convert(moment, pa.timestamp(unit, moment.type.tz)), convert(by, pa.duration(unit))
    return apply(_ADDED[sign], moment, by, fallible=True)


def _scale_duration(sign: str, duration: Node, number: Node) -> Node | None:
    """Multiply or divide a duration by a number."""
    if number.type == NULL:
        return null(duration.type)
    if not is_number(number.type):
        return None
    if is_integer(number.type):
        compute = pc.multiply_checked if sign == "*" else on_arrays(_quotient)
        return apply(compute, duration, convert(number, INT64), fallible=True)

    def scale_values(values: pa.Array, by: pa.Array) -> pa.Array:
        exact = (pc.multiply if sign == "*" else pc.divide_checked)(values.cast(INT64).cast(DOUBLE, safe=False), by)
        return pc.round(exact, round_mode="half_towards_infinity").cast(INT64).cast(values.type)

    return apply(on_arrays(scale_values), duration, convert(number, DOUBLE), fallible=True)


def _quotient(values: pa.Array, by: pa.Array) -> pa.Array:
    """Divide and round half away from zero, in integers: a double would lose digits."""
    cut = pc.divide_checked(values.cast(INT64), by)
    value, number, whole = (np.asarray(pc.fill_null(each, 1)) for each in (values.cast(INT64), by, cut))
    rest, size = (-np.abs(each) for each in (value - whole * number, number))  # below zero, where all have room
    near = whole + (rest <= size - rest) * np.sign(value) * np.sign(number)
    return pc.if_else(cut.is_valid(), pa.array(near, INT64), pa.scalar(None, INT64)).cast(values.type)
