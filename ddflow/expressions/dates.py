"""Functions of dates and timestamps: their parts, truncation, days between and days on.

Invariant: every instant is taken in UTC, which stands for Spark's session time zone, whatever zone its column has;
parts are ints. A part of a zoned timestamp asks a kernel for a database of zones that a slim machine lacks, so
instants are read as wall-clock time of UTC first; weeks begin on Monday, but ``dayofweek`` counts from Sunday.
Intervals are refused, and so is the current time: a row must always give the same result.

>>> import pyarrow as pa
>>> from ddflow.expressions.node import constant
>>> TABLE.entries["dayofweek"].call([constant(pa.scalar("2024-03-03"))]).constant
<pyarrow.Int32Scalar: 1>
>>> TABLE.entries["date_add"].call([constant(pa.scalar("2024-02-28")), constant(pa.scalar(2, INT32))]).constant
<pyarrow.Date32Scalar: datetime.date(2024, 3, 1)>
"""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa
import pyarrow.compute as pc

from ddflow.expressions.arithmetic import shift_days
from ddflow.expressions.casts import as_text, convert, wall
from ddflow.expressions.compare import literal_text
from ddflow.expressions.node import Compute, Node, Refusal, apply, null, on_arrays
from ddflow.expressions.table import Table
from ddflow.expressions.types import DATE, INSTANT, INT32, INT64, NULL, STRING, is_integer, is_time, sql_name

TABLE = Table()


def _date(node: Node, name: str) -> Node:
    if node.type not in (DATE, STRING, NULL) and not is_time(node.type):
        raise Refusal(f"{name} takes a date, and this is {sql_name(node.type)}", "cast to date first")
    return convert(node, DATE)


def _time(node: Node, name: str) -> Node:
    if node.type not in (DATE, STRING, NULL) and not is_time(node.type):
        raise Refusal(f"{name} takes a timestamp, and this is {sql_name(node.type)}", "cast to timestamp first")
    return node if is_time(node.type) else convert(node, INSTANT)


def _date_part(kernel: Compute, *names: str) -> None:
    def build(node: Node) -> Node:
        return apply(on_arrays(lambda values: kernel(values).cast(INT32)), _date(node, names[0]))

    TABLE.function(*names, arguments=(1, 1))(build)


def _time_part(kernel: Compute, name: str) -> None:
    def build(node: Node) -> Node:
        return apply(on_arrays(lambda values: kernel(wall(values)).cast(INT32)), _time(node, name))

    TABLE.function(name, arguments=(1, 1))(build)


_date_part(pc.year, "year")
_date_part(pc.quarter, "quarter")
_date_part(pc.month, "month")
_date_part(pc.day, "day", "dayofmonth")
_date_part(pc.day_of_year, "dayofyear")
_date_part(pc.iso_week, "weekofyear")
_date_part(lambda days: pc.day_of_week(days), "weekday")
_date_part(lambda days: pc.day_of_week(days, count_from_zero=False, week_start=7), "dayofweek")
_time_part(pc.hour, "hour")
_time_part(pc.minute, "minute")
_time_part(pc.second, "second")

_EXTRACTED = {
    "YEAR": "year",
    "QUARTER": "quarter",
    "MONTH": "month",
    "WEEK": "weekofyear",
    "DAY": "day",
    "DAYOFWEEK": "dayofweek",
    "DOW": "dayofweek",
    "DOY": "dayofyear",
    "HOUR": "hour",
    "MINUTE": "minute",
}


def extract(field: str, node: Node) -> Node:
    """EXTRACT(field FROM node). Raises Refusal for a field that is not an int."""
    name = _EXTRACTED.get(field.upper())
    if name is None:
        raise Refusal(
            f"extract({field.lower()} from ...) is not supported",
            f"fields are {', '.join(_EXTRACTED).lower()}; for whole seconds there is second(...)",
        )
    return TABLE.entries[name].call([node])


_UNITS = {
    **dict.fromkeys(("year", "yyyy", "yy"), "year"),
    "quarter": "quarter",
    **dict.fromkeys(("month", "mon", "mm"), "month"),
    "week": "week",
    **dict.fromkeys(("day", "dd"), "day"),
    "hour": "hour",
    "minute": "minute",
    "second": "second",
    "millisecond": "millisecond",
    "microsecond": "microsecond",
}
_DATE_UNITS = ("year", "quarter", "month", "week")


def _unit(node: Node, name: str, allowed: Callable[[str], bool]) -> str | None:
    text = literal_text(node, f"the unit of {name}")
    if text is None:
        return None
    unit = _UNITS.get(text.lower())
    if unit is None or not allowed(unit):
        known = ", ".join(sorted({each for each in _UNITS.values() if allowed(each)}))
        raise Refusal(f"{text!r} is no unit of {name}", f"units are {known}")
    return unit


@TABLE.function("date_trunc", arguments=(2, 2))
def date_trunc(unit: Node, node: Node) -> Node:
    """The start of the unit that a timestamp lies in, as a timestamp."""
    name = _unit(unit, "date_trunc", lambda _: True)
    node = convert(_time(node, "date_trunc"), INSTANT)
    if name is None:
        return null(INSTANT)
    return apply(on_arrays(lambda values: pc.floor_temporal(wall(values), unit=name).cast(INSTANT)), node)


@TABLE.function("trunc", arguments=(2, 2))
def trunc(node: Node, unit: Node) -> Node:
    """The first day of the year, quarter, month or week that a date lies in."""
    name = _unit(unit, "trunc", lambda each: each in _DATE_UNITS)
    node = _date(node, "trunc")
    return null(DATE) if name is None else apply(lambda values: pc.floor_temporal(values, unit=name), node)


@TABLE.function("to_date", arguments=(1, 1))
def to_date(node: Node) -> Node:
    return convert(node if node.type == DATE or is_time(node.type) else as_text(node), DATE)


@TABLE.function("to_timestamp", arguments=(1, 1))
def to_timestamp(node: Node) -> Node:
    return convert(_time(node, "to_timestamp"), INSTANT)


@TABLE.function("datediff", "date_diff", arguments=(2, 2))
def datediff(end: Node, start: Node) -> Node:
    """Days from start to end."""

    def compute(last: pa.Array, first: pa.Array) -> pa.Array:
        return pc.subtract_checked(last.cast(INT32), first.cast(INT32))

    return apply(compute, _date(end, "datediff"), _date(start, "datediff"), fallible=True)


def _shift(name: str, sign: str) -> Callable[[Node, Node], Node]:
    def build(node: Node, days: Node) -> Node:
        if days.type == INT64 or not (is_integer(days.type) or days.type in (STRING, NULL)):
            raise Refusal(f"{name} takes an int of days, and this is {sql_name(days.type)}", "cast to int first")
        return shift_days(_date(node, name), days, sign)

    return build


TABLE.function("date_add", "dateadd", arguments=(2, 2))(_shift("date_add", "+"))
TABLE.function("date_sub", arguments=(2, 2))(_shift("date_sub", "-"))
