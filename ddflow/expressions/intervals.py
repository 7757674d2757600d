"""Parse interval literals, and add intervals to dates and timestamps.

As in Spark, an interval has either months or microseconds, because months differ in length. A date plus months or whole
days is a date. A date plus hours, minutes or seconds is a timestamp, counted from midnight UTC. Adding months keeps the
day of the month, or takes the last day of a shorter month. For example, 31 January plus one month is 29 February in a
leap year. A result outside the range of its type is an error.

Limits: an interval is a literal. An interval without months can become a duration (see `interval_to_duration`). An
interval of months can only follow ``+`` or ``-``.
"""

import re
from collections.abc import Sequence
from decimal import Decimal
from functools import partial
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ddflow.expressions.arithmetic import arithmetic
from ddflow.expressions.casts import build_cast
from ddflow.expressions.digits import Ints, count_epoch_days
from ddflow.expressions.node import Node, Refusal, accept_scalars, build_compute_node, constant
from ddflow.expressions.types import DATE, DURATION, INSTANT, INT32, INT64, is_duration, is_time, sql_name

Part = tuple[str, str | None, str | None]
"""A part of an interval literal: its text, its unit, and the second unit of a range such as ``day to second``."""

_MONTHS: Final = {"YEAR": 12, "MONTH": 1}
_MICROS: Final = {
    "WEEK": 7 * 86_400_000_000,
    "DAY": 86_400_000_000,
    "HOUR": 3_600_000_000,
    "MINUTE": 60_000_000,
    "SECOND": 1_000_000,
    "MILLISECOND": 1_000,
    "MICROSECOND": 1,
}
_CLOCK: Final = ("DAY", "HOUR", "MINUTE", "SECOND")
_LEAST: Final = {"HOUR": 24, "MINUTE": 60, "SECOND": 60}
_DAY: Final = _MICROS["DAY"]
_REMEDY: Final = "write interval 3 days, interval '2 hours 30 minutes' or interval '1-2' year to month"


class Interval(NamedTuple):
    """An interval of months or microseconds. ``days``: whether the literal has only days and weeks."""

    months: int
    micros: int
    days: bool


def parse_interval(parts: Sequence[Part]) -> Interval:
    """Parse an interval literal. Raises Refusal if the literal mixes months with days, or is not an interval."""
    months = micros = 0
    units = set[str]()
    for text, unit, until in parts:
        for number, name in _parse_unit_range(text, unit, until) if until is not None else _parse_units(text, unit):
            units.add(name)
            if name in _MONTHS:
                months += int(number) * _MONTHS[name]
            else:
                micros += int(number * _MICROS[name])
    if units & set(_MONTHS) and units - set(_MONTHS):
        raise Refusal("an interval mixes months with days or smaller units", "add one interval after the other")
    if abs(months) >= 2**31 or abs(micros) >= 2**63:
        raise Refusal("an interval is too long", "its months must fit 32 bits, its microseconds 64")
    return Interval(months, micros, not months and units <= {"DAY", "WEEK"})


def _parse_units(text: str, unit: str | None) -> list[tuple[Decimal, str]]:
    """Parse a number with a unit, such as ``3``, or a text such as ``1 day 2 hours``."""
    texts = [(text.strip(), unit)] if unit else re.findall(r"([+-]?\s*[0-9.]+)\s+([A-Za-z]+)(?:\s+|$)", text.strip())
    if not unit and re.sub(r"[+-]?\s*[0-9.]+\s+[A-Za-z]+(\s+|$)", "", text.strip()):
        texts = []
    out = []
    for number, name in texts:
        name = name.upper().removesuffix("S")
        fraction = name == "SECOND" and re.fullmatch(r"[+-]?\s*([0-9]+\.?[0-9]{0,9}|\.[0-9]{1,9})", number)
        if name not in {**_MONTHS, **_MICROS} or not (fraction or re.fullmatch(r"[+-]?\s*[0-9]{1,18}", number)):
            raise _build_interval_refusal(f"{number} {name.lower()}")
        out.append((Decimal(number.replace(" ", "")), name))
    if not out:
        raise _build_interval_refusal(repr(text))
    return out


def _parse_unit_range(text: str, first: str | None, last: str) -> list[tuple[Decimal, str]]:
    """Parse ``'1-2' year to month`` and ``'1 02:03:04.5' day to second``."""
    fields: tuple[str, ...] = ("YEAR", "MONTH")
    if (first, last) != fields:
        if first not in _CLOCK or last not in _CLOCK or _CLOCK.index(first) >= _CLOCK.index(last):
            raise _build_interval_refusal(f"{first} to {last}".lower())
        fields = _CLOCK[_CLOCK.index(first) : _CLOCK.index(last) + 1]
    marks = ["-" if name == "MONTH" else " " if name == "HOUR" else ":" for name in fields[1:]]
    shapes = [r"([0-9]{1,9}(?:\.[0-9]{1,9})?)" if name == "SECOND" else "([0-9]{1,9})" for name in fields]
    pattern = "([+-]?)" + shapes[0] + "".join(mark + shape for mark, shape in zip(marks, shapes[1:], strict=True))
    found = re.fullmatch(pattern, text.strip())
    if found is None:
        raise _build_interval_refusal(repr(text))
    numbers = [Decimal(each) for each in found.groups()[1:]]
    if any(number >= _LEAST.get(name, 12) for number, name in zip(numbers[1:], fields[1:], strict=True)):
        raise _build_interval_refusal(repr(text))
    return [(-number if found[1] == "-" else number, name) for number, name in zip(numbers, fields, strict=True)]


def interval_to_duration(interval: Interval) -> Node:
    """Convert an interval to a duration. Raises Refusal for an interval of months."""
    if interval.months:
        raise Refusal("an interval of months has no fixed length", "add it to a date or a timestamp")
    return constant(pa.scalar(interval.micros, INT64).cast(DURATION))


def _build_interval_refusal(what: str) -> Refusal:
    return Refusal(f"{what} is not an interval", _REMEDY)


def shift_by_interval(node: Node, interval: Interval, sign: int) -> Node:
    """Add an interval to a date, timestamp or duration (``sign`` 1), or subtract the interval (``sign`` -1). O(rows).

    Raises Refusal for other types. The node fails if the result is outside the range of its type.

    >>> import datetime
    >>> from ddflow.expressions.node import constant
    >>> january = constant(pa.scalar(datetime.date(2024, 1, 31)))
    >>> shift_by_interval(january, parse_interval([("1", "MONTH", None)]), 1).constant
    <pyarrow.Date32Scalar: datetime.date(2024, 2, 29)>
    >>> parse_interval([("1 day 2 hours", None, None)])
    Interval(months=0, micros=93600000000, days=False)
    """
    if is_duration(node.type):
        return arithmetic("+" if sign > 0 else "-", node, interval_to_duration(interval))
    if node.type != DATE and not is_time(node.type):
        found = f"{sql_name(node.type)} {'+' if sign > 0 else '-'} an interval is not defined"
        raise Refusal(found, "cast to a date or a timestamp first")
    months, micros = sign * interval.months, sign * interval.micros
    if node.type == DATE and interval.months == 0 and interval.days:
        return build_compute_node(accept_scalars(partial(_add_days, days=micros // _DAY)), node, fallible=True)
    if node.type == DATE and micros:
        node = build_cast(node, INSTANT)
    if node.type == DATE:
        return build_compute_node(accept_scalars(partial(_add_months, months=months)), node, fallible=True)
    return build_compute_node(
        accept_scalars(partial(_shift_timestamps, months=months, micros=micros)), node, fallible=True
    )


def _add_days(dates: pa.Array, days: int) -> pa.Array:
    return pc.add_checked(dates.cast(INT32).cast(INT64), pa.scalar(days, INT64)).cast(INT32).cast(DATE)


def _add_months(dates: pa.Array, months: int) -> pa.Array:
    """Add months to dates. The day of the month stays, or becomes the last day of a shorter month."""
    here = pc.fill_null(dates.cast(INT32), 0).cast(DATE)
    year, month, day = (np.asarray(part(here)) for part in (pc.year, pc.month, pc.day))
    days = _shift_civil_months(year, month, day, months)
    if days.size and (days.min() < -(2**31) or days.max() >= 2**31):
        raise pa.ArrowInvalid("a date is outside the range of dates")
    return pc.if_else(dates.is_valid(), pa.array(days.astype(np.int32)).cast(DATE), pa.scalar(None, DATE))


def _shift_civil_months(year: Ints, month: Ints, day: Ints, months: int) -> Ints:
    total = year * 12 + (month - 1) + months
    year, month = total // 12, total % 12 + 1
    first, _ = count_epoch_days(year, month, np.ones_like(day))
    following = total + 1
    end, _ = count_epoch_days(following // 12, following % 12 + 1, np.ones_like(day))
    days: Ints = first + np.minimum(day, end - first) - 1
    return days


def _shift_timestamps(moments: pa.Array, months: int, micros: int) -> pa.Array:
    """Add months to timestamps, then add microseconds."""
    scale = 1000 if moments.type.unit == "ns" else 1
    values = moments.cast(INT64)
    if months:
        wall = np.asarray(pc.fill_null(values, 0))
        days = wall // (_DAY * scale)
        dates = _add_months(pa.array(days.astype(np.int32)).cast(DATE), months)
        length = pc.multiply_checked(dates.cast(INT32).cast(INT64), pa.scalar(_DAY * scale, INT64))
        later = pc.add_checked(length, pa.array(wall - days * (_DAY * scale)))
        values = pc.if_else(values.is_valid(), later, pa.scalar(None, INT64))
    return pc.add_checked(values, pa.scalar(micros * scale, INT64)).cast(moments.type)
