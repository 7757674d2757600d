"""Functions of dates and timestamps: their parts, truncation, days between and days on.

Invariant: every instant is taken in UTC, which stands for Spark's session time zone, whatever zone its column has;
parts are ints. A part of a zoned timestamp asks a kernel for a database of zones that a slim machine lacks, so
instants are read as wall-clock time of UTC first; weeks begin on Monday, but ``dayofweek`` counts from Sunday.
The current time is refused: a row must always give the same result.

>>> import pyarrow as pa
>>> from ddflow.expressions.node import constant
>>> TABLE.entries["dayofweek"].call([constant(pa.scalar("2024-03-03"))]).constant
<pyarrow.Int32Scalar: 1>
>>> TABLE.entries["date_add"].call([constant(pa.scalar("2024-02-28")), constant(pa.scalar(2, INT32))]).constant
<pyarrow.Date32Scalar: datetime.date(2024, 3, 1)>
"""

from collections.abc import Callable
from functools import partial

import pyarrow as pa
import pyarrow.compute as pc

from ddflow.expressions.arithmetic import shift_days
from ddflow.expressions.casts import as_text, convert, wall
from ddflow.expressions.compare import literal_text
from ddflow.expressions.durations import FIELDS, days_between, part
from ddflow.expressions.node import Compute, Node, Refusal, apply, on_arrays
from ddflow.expressions.table import Table, Take, date, moment, same
from ddflow.expressions.types import (
    DATE,
    INSTANT,
    INT32,
    INT64,
    NULL,
    STRING,
    is_duration,
    is_integer,
    is_time,
    sql_name,
)

TABLE = Table()


def _part(kernel: Callable[..., pa.Array], values: pa.Array) -> pa.Array:
    return kernel(values).cast(INT32)


def _clock_part(kernel: Compute, values: pa.Array) -> pa.Array:
    return _part(kernel, wall(values))


_DATE_PARTS: dict[Compute, tuple[str, ...]] = {
    pc.year: ("year",),
    pc.quarter: ("quarter",),
    pc.month: ("month",),
    pc.day: ("day", "dayofmonth"),
    pc.day_of_year: ("dayofyear",),
    pc.iso_week: ("weekofyear",),
    pc.day_of_week: ("weekday",),
    partial(pc.day_of_week, count_from_zero=False, week_start=7): ("dayofweek",),
}
for _kernel, _names in _DATE_PARTS.items():
    TABLE.row(on_arrays(partial(_part, _kernel)), *_names, takes=[date])
for _kernel, _name in ((pc.hour, "hour"), (pc.minute, "minute"), (pc.second, "second")):
    TABLE.row(on_arrays(partial(_clock_part, _kernel)), _name, takes=[moment])

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
    """Compute EXTRACT(field FROM node). Raises Refusal for an unsupported field."""
    if is_duration(node.type):
        if field.upper() not in FIELDS:
            found = f"extract({field.lower()} from a duration) is not supported"
            raise Refusal(found, f"fields are {', '.join(FIELDS).lower()}, which is its seconds")
        return part(field.upper(), node)
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


def _unit(*allowed: str) -> Take:
    """Build a reader of the literal of a unit, which gives the unit's one name."""

    def take(node: Node, name: str) -> str | None:
        text = literal_text(node, f"the unit of {name}")
        unit = None if text is None else _UNITS.get(text.lower())
        if text is not None and unit not in allowed:
            raise Refusal(f"{text!r} is no unit of {name}", f"units are {', '.join(sorted(allowed))}")
        return unit

    return take


@TABLE.function("date_trunc", takes=[_unit(*set(_UNITS.values())), moment], of_null=INSTANT)
def date_trunc(unit: str, node: Node) -> Node:
    """Truncate a timestamp to the start of its unit, as a timestamp."""
    compute = on_arrays(lambda values: pc.floor_temporal(wall(values), unit=unit).cast(INSTANT))
    return apply(compute, convert(node, INSTANT))


@TABLE.function("trunc", takes=[date, _unit("year", "quarter", "month", "week")], of_null=DATE)
def trunc(node: Node, unit: str) -> Node:
    """Truncate a date to the first day of its year, quarter, month or week."""
    return apply(lambda values: pc.floor_temporal(values, unit=unit), node)


@TABLE.function("to_date", takes=[same])
def to_date(node: Node) -> Node:
    return convert(node if node.type == DATE or is_time(node.type) else as_text(node), DATE)


@TABLE.function("datediff", "date_diff", takes=[date, date])
def datediff(end: Node, start: Node) -> Node:
    """Count the days from start to end."""
    return days_between(end, start)


def _days(node: Node, name: str) -> Node:
    if node.type == INT64 or not (is_integer(node.type) or node.type in (STRING, NULL)):
        raise Refusal(f"{name} takes an int of days, and this is {sql_name(node.type)}", "cast to int first")
    return node


TABLE.function("to_timestamp", takes=[moment])(lambda node: convert(node, INSTANT))
TABLE.function("date_add", "dateadd", takes=[date, _days])(partial(shift_days, sign="+"))
TABLE.function("date_sub", takes=[date, _days])(partial(shift_days, sign="-"))
