"""Define functions of dates and timestamps: parts, truncation, day counts, `date_format`, and time zones.

Guarantees: instants are in UTC, as in a Spark session with time zone UTC. Weeks begin on Monday, but ``dayofweek``
counts from Sunday. Functions of the current time are refused, because a row must always give the same result.
Limits: the rules of time zones come from the computer's time zone database. So all computers that open one state should
have the same database.

>>> import pyarrow as pa
>>> from ddflow.expressions.node import constant
>>> FUNCTIONS["dayofweek"].call([constant(pa.scalar("2024-03-03"))]).constant
<pyarrow.Int32Scalar: 1>
>>> FUNCTIONS["date_add"].call([constant(pa.scalar("2024-02-28")), constant(pa.scalar(2, INT32))]).constant
<pyarrow.Date32Scalar: datetime.date(2024, 3, 1)>
"""

import datetime as dt
import re
from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from typing import Any, Final
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ddflow.expressions.arithmetic import FIELDS, days_between, extract_duration_part, shift_days
from ddflow.expressions.casts import build_cast, cast_to_text, to_wall_clock
from ddflow.expressions.functions.table import (
    FUNCTIONS,
    Take,
    build_text_reader,
    cast_argument_to_date,
    cast_argument_to_timestamp,
    keep_argument,
    register_row_function,
    sql_function,
)
from ddflow.expressions.logic import read_text_literal
from ddflow.expressions.node import Compute, Node, Refusal, accept_scalars, build_compute_node, check_text_size
from ddflow.expressions.types import (
    DATE,
    INSTANT,
    INT32,
    INT64,
    NULL,
    STRING,
    WALL,
    is_duration,
    is_integer,
    is_time,
    sql_name,
)


def _extract_part(kernel: Callable[..., pa.Array], values: pa.Array) -> pa.Array:
    return kernel(values).cast(INT32)


def _extract_clock_part(kernel: Compute, values: pa.Array) -> pa.Array:
    return _extract_part(kernel, to_wall_clock(values))


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
    register_row_function(accept_scalars(partial(_extract_part, _kernel)), *_names, takes=[cast_argument_to_date])
for _kernel, _name in ((pc.hour, "hour"), (pc.minute, "minute"), (pc.second, "second")):
    register_row_function(
        accept_scalars(partial(_extract_clock_part, _kernel)), _name, takes=[cast_argument_to_timestamp]
    )

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
            raise Refusal(found, f"the fields are {', '.join(FIELDS).lower()} (all its seconds)")
        return extract_duration_part(field.upper(), node)
    name = _EXTRACTED.get(field.upper())
    if name is None:
        raise Refusal(
            f"extract({field.lower()} from ...) is not supported",
            f"the fields are {', '.join(_EXTRACTED).lower()}; for whole seconds use second(...)",
        )
    return FUNCTIONS[name].call([node])


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


def _build_unit_reader(*allowed: str) -> Take:
    """Build a reader that converts a literal such as 'mon' to the canonical name of the unit."""

    def take(node: Node, name: str) -> str | None:
        text = read_text_literal(node, f"the unit of {name}")
        unit = None if text is None else _UNITS.get(text.lower())
        if text is not None and unit not in allowed:
            raise Refusal(f"{text!r} is not a unit of {name}", f"the units are {', '.join(sorted(allowed))}")
        return unit

    return take


@sql_function(
    "date_trunc", takes=[_build_unit_reader(*set(_UNITS.values())), cast_argument_to_timestamp], of_null=INSTANT
)
def date_trunc(unit: str, node: Node) -> Node:
    """Truncate a timestamp to the start of its year, day or another unit."""
    compute = accept_scalars(lambda values: pc.floor_temporal(to_wall_clock(values), unit=unit).cast(INSTANT))
    return build_compute_node(compute, build_cast(node, INSTANT))


@sql_function(
    "trunc", takes=[cast_argument_to_date, _build_unit_reader("year", "quarter", "month", "week")], of_null=DATE
)
def trunc(node: Node, unit: str) -> Node:
    """Truncate a date to the first day of its year, quarter, month or week."""
    return build_compute_node(lambda values: pc.floor_temporal(values, unit=unit), node)


@sql_function("to_date", takes=[keep_argument])
def to_date(node: Node) -> Node:
    return build_cast(node if node.type == DATE or is_time(node.type) else cast_to_text(node), DATE)


@sql_function("datediff", "date_diff", takes=[cast_argument_to_date, cast_argument_to_date])
def datediff(end: Node, start: Node) -> Node:
    """Count the days from start to end."""
    return days_between(end, start)


def _check_days_argument(node: Node, name: str) -> Node:
    if node.type == INT64 or not (is_integer(node.type) or node.type in (STRING, NULL)):
        raise Refusal(f"{name} takes an int of days, but this is {sql_name(node.type)}", "cast to int first")
    return node


sql_function("to_timestamp", takes=[cast_argument_to_timestamp])(lambda node: build_cast(node, INSTANT))
sql_function("date_add", "dateadd", takes=[cast_argument_to_date, _check_days_argument])(partial(shift_days, sign="+"))
sql_function("date_sub", takes=[cast_argument_to_date, _check_days_argument])(partial(shift_days, sign="-"))


Part = Callable[[pa.Array], pa.Array]
_LONGEST: Final = 12
"""Maximum number of bytes that one part of a pattern formats to.

"September" needs 9 bytes; the remaining bytes are a reserve.
"""
_MONTHS: Final = (
    *("January", "February", "March", "April", "May", "June"),
    *("July", "August", "September", "October", "November", "December"),
)
_DAYS: Final = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")


def _pad_number(part: Part, width: int = 1) -> Part:
    return lambda values: pc.utf8_lpad(part(values).cast(STRING), width, "0")


def _format_name(part: Part, names: Sequence[str]) -> Part:
    return lambda values: pa.array(names).take(part(values))


def _format_hours(*hours: int) -> Part:
    return lambda values: pa.array(hours * (24 // len(hours))).take(pc.hour(values))


def _format_fraction(digits: int) -> Part:
    def part(values: pa.Array) -> pa.Array:
        micros = np.asarray(pc.fill_null(values.cast(INT64), 0)) % 1_000_000
        text = pc.utf8_lpad(pa.array(micros * 1000).cast(STRING), 9, "0")
        return pc.if_else(values.is_valid(), pc.utf8_slice_codeunits(text, 0, digits), pa.scalar(None, STRING))

    return part


def _format_fixed_text(text: str) -> Part:
    return lambda values: pc.if_else(values.is_valid(), pa.scalar(text, STRING), pa.scalar(None, STRING))


def _month_index(values: pa.Array) -> pa.Array:
    return pc.subtract(pc.month(values), 1)


_YEAR: Final = _pad_number(pc.year, 4)
_PARTS: Final[dict[str, Part]] = {
    "y": _pad_number(pc.year),
    "yy": lambda values: pc.utf8_slice_codeunits(_YEAR(values), 2, 4),
    "yyyy": _YEAR,
    **{letter * width: _pad_number(pc.month, width) for letter in "ML" for width in (1, 2)},
    **{letter * 3: _format_name(_month_index, [name[:3] for name in _MONTHS]) for letter in "ML"},
    **{letter * 4: _format_name(_month_index, _MONTHS) for letter in "ML"},
    "d": _pad_number(pc.day),
    "dd": _pad_number(pc.day, 2),
    "D": _pad_number(pc.day_of_year),
    "DDD": _pad_number(pc.day_of_year, 3),
    **dict.fromkeys(("E", "EE", "EEE"), _format_name(pc.day_of_week, [name[:3] for name in _DAYS])),
    "EEEE": _format_name(pc.day_of_week, _DAYS),
    "Q": _pad_number(pc.quarter),
    "QQ": _pad_number(pc.quarter, 2),
    "a": _format_name(pc.hour, ["AM"] * 12 + ["PM"] * 12),
    **{"H" * width: _pad_number(pc.hour, width) for width in (1, 2)},
    **{"h" * width: _pad_number(_format_hours(12, *range(1, 12)), width) for width in (1, 2)},
    **{"K" * width: _pad_number(_format_hours(*range(12)), width) for width in (1, 2)},
    **{"k" * width: _pad_number(_format_hours(24, *range(1, 24)), width) for width in (1, 2)},
    **{"m" * width: _pad_number(pc.minute, width) for width in (1, 2)},
    **{"s" * width: _pad_number(pc.second, width) for width in (1, 2)},
    **{"S" * width: _format_fraction(width) for width in range(1, 10)},
    **dict.fromkeys(("X" * width for width in (1, 2, 3)), _format_fixed_text("Z")),
}


@sql_function("date_format", takes=[cast_argument_to_timestamp, build_text_reader("the pattern of date_format")])
def date_format(node: Node, pattern: str) -> Node:
    """Format a timestamp as text.

    The letters in the pattern have Java's meaning, and the names of months and days are in the locale en-US.

        y yy yyyy   year            H HH   hour 0-23      S to SSSSSSSSS   fraction of a second
        M MM        month           h hh   hour 1-12      E EEEE           Wed, Wednesday
        MMM MMMM    Jan, January    K KK   hour 0-11      D DDD            day of the year
        d dd        day             k kk   hour 1-24      Q QQ             quarter
        a           AM, PM          m mm s ss             X, twice, three times   Z, the zone

    Single quotes enclose text, as in ``'T'``, and two single quotes in a row stand for one quote. Characters that are
    not letters are copied.

    >>> import datetime
    >>> from ddflow.expressions.node import constant
    >>> noon = constant(pa.scalar(datetime.datetime(2024, 2, 29, 12, 5)))
    >>> FUNCTIONS["date_format"].call([noon, constant(pa.scalar("EEE d MMM yyyy, h:mm a"))]).constant
    <pyarrow.StringScalar: 'Thu 29 Feb 2024, 12:05 PM'>
    """
    parts = _compile_pattern(pattern)
    longest = len(pattern.encode()) + _LONGEST * len(parts)

    def compute(values: pa.Array) -> pa.Array:
        check_text_size("date_format", [values], lambda _: float(len(values) * longest))
        least, most = (bound(pc.year(values)).as_py() for bound in (pc.min, pc.max))
        if least is not None and not 0 <= least <= most <= 9999:
            raise pa.ArrowInvalid("date_format supports only years of four digits")
        plain = to_wall_clock(values)
        return pc.binary_join_element_wise(*(part(plain) for part in parts), _format_fixed_text("")(plain), "")

    return build_compute_node(accept_scalars(compute), node, fallible=True)


def _compile_pattern(pattern: str) -> list[Part]:
    """Choose a formatting function for each piece of a pattern. Raises Refusal for unsupported letters."""
    out: list[Part] = []
    for piece in _split_pattern(pattern):
        if piece[0] == "'" and len(piece) > 1:
            out.append(_format_fixed_text("'" if piece == "''" else piece[1:-1].replace("''", "'")))
        elif piece in _PARTS:
            out.append(_PARTS[piece])
        elif (piece[0].isalpha() and piece.isascii()) or piece in ("'", "[", "]", "{", "}", "#"):
            known = ", ".join(sorted(each for each in _PARTS if "S" not in each))
            raise Refusal(
                f"{piece!r} in the pattern of date_format is not supported",
                f"the letters are {known}, S; quote text with ''",
            )
        else:
            out.append(_format_fixed_text(piece))
    return out


def _split_pattern(pattern: str) -> list[str]:
    """Split a pattern into quoted texts, repetitions of one letter such as ``yyyy``, and other characters.

    >>> _split_pattern("yyyy-MM'T'''")
    ['yyyy', '-', 'MM', "'T'''"]
    """
    return [found[0] for found in re.finditer(r"'(?:[^']|'')*'|([A-Za-z])\1*|.", pattern, re.DOTALL)]


_OFFSET: Final = r"UTC|[+-](?:0\d|1[0-7]):[0-5]\d|[+-]18:00"
_NAMES: Final = re.compile(rf"{_OFFSET}|[A-Za-z_]+(?:/[A-Za-z0-9_+-]+)+")
"""A regular expression for zone names that mean the same in Java and in the computer's time zone database."""
_EPOCH: Final = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
_MICROSECOND: Final = dt.timedelta(microseconds=1)
_YEARS: Final = (-62_135_596_800_000_000, 253_402_300_800_000_000)
"""The microseconds since 1970 at the beginnings of the years 1 and 10000."""
_PROBED: Final = [dt.datetime(year, month, 1, tzinfo=dt.UTC) for year in range(1900, 2038) for month in (1, 7)]
_CYCLE: Final = 146_097 * 86_400_000_000
"""Microseconds in 400 years. The calendar, including the weekdays, repeats after 400 years."""


def _read_zone_literal(node: Node, name: str) -> str | None:
    """Read the name of a time zone from a literal. Raises Refusal for an unknown zone."""
    text = read_text_literal(node, f"the zone of {name}")
    if text is None:
        return None
    zone = "UTC" if text in ("Z", "GMT") else text
    try:
        if not _NAMES.fullmatch(zone):
            raise pa.ArrowInvalid("it has another form")
        _find_zone_rules_end(zone)
    except (pa.ArrowInvalid, ZoneInfoNotFoundError):
        remedy = "write an area and a city, or an offset: 'Europe/Zurich', '+02:00', 'UTC'"
        raise Refusal(f"{text!r} is not a time zone that this machine knows", remedy) from None
    return zone


@lru_cache(maxsize=64)
def _find_zone_rules_end(zone: str) -> int:
    """Find the moment up to which Arrow knows the rules of a zone, in microseconds since 1970.

    Raises Arrow's or zoneinfo's errors.
    """
    shown = pc.local_timestamp(pa.array(_PROBED, pa.timestamp("us", zone))).to_pylist()
    if re.fullmatch(_OFFSET, zone):
        return _YEARS[1]
    of = ZoneInfo(zone)
    wrong = [at for at, each in enumerate(_PROBED) if each.astimezone(of).replace(tzinfo=None) != shown[at]]
    last = _PROBED[max(wrong[0] - 2, 0)] if wrong else dt.datetime(2037, 12, 31, tzinfo=dt.UTC)
    return (last - _EPOCH) // _MICROSECOND


def _compute_zone_offsets(times: Any, zone: str, local: bool) -> Any:
    """Compute a zone's offset from UTC at times in microseconds. ``local``: whether the times are local times."""
    of, out = ZoneInfo(zone), list[int]()
    unique, places = np.unique(times, return_inverse=True)
    for each in unique.tolist():
        # From the year 2370 on, the rules repeat every 400 years, so each later year is mapped to a year between 2370
        # and 2769.
        at = _EPOCH + (_CYCLE + each % _CYCLE if each >= 2 * _CYCLE else each) * _MICROSECOND
        moved = at.replace(tzinfo=of).utcoffset() if local else at.astimezone(of).utcoffset()
        assert moved is not None, "a zone has an offset"
        out.append(moved // _MICROSECOND)
    return np.array(out, np.int64)[places]


def _convert_zone_times(
    values: pa.Array, name: str, zone: str, near: Callable[[pa.Array], pa.Array], local: bool
) -> pa.Array:
    """Convert times.

    ``near`` converts the times whose zone rules Arrow knows; `_compute_zone_offsets` converts later times. Raises
    ArrowInvalid for years out of range.
    """
    plain = to_wall_clock(values)
    words = plain.cast(INT64)
    least, most = pc.min(words).as_py(), pc.max(words).as_py()
    if least is None:
        return plain.cast(INSTANT)
    if not _YEARS[0] <= least <= most < _YEARS[1]:
        raise pa.ArrowInvalid(f"{name} supports only the years 1 to 9999")
    made = near(plain)
    given = np.asarray(words.fill_null(0))
    if not (far := np.flatnonzero(given >= _find_zone_rules_end(zone))).size:
        return made
    out = np.array(made.cast(INT64).fill_null(0))
    out[far] = given[far] + (-1 if local else 1) * _compute_zone_offsets(given[far], zone, local)
    return pa.array(out, mask=np.asarray(plain.is_null())).cast(WALL).cast(INSTANT)


@sql_function("from_utc_timestamp", takes=[cast_argument_to_timestamp, _read_zone_literal], of_null=INSTANT)
def from_utc_timestamp(node: Node, zone: str) -> Node:
    """Convert UTC to the local time of the zone. The result is stored as if the local time were UTC.

    >>> import pyarrow as pa
    >>> from ddflow.expressions.node import constant
    >>> late, zone = constant(pa.scalar(dt.datetime(2040, 7, 31, 23))), constant(pa.scalar("Europe/Zurich"))
    >>> FUNCTIONS["from_utc_timestamp"].call([late, zone]).constant.cast(WALL)
    <pyarrow.TimestampScalar: '2040-08-01T01:00:00.000000'>
    """

    def near(plain: pa.Array) -> pa.Array:
        return pc.local_timestamp(plain.cast(INSTANT).cast(pa.timestamp("us", zone))).cast(INSTANT)

    def compute(values: pa.Array) -> pa.Array:
        return _convert_zone_times(values, "from_utc_timestamp", zone, near, False)

    return build_compute_node(accept_scalars(compute), build_cast(node, INSTANT), fallible=True)


@sql_function("to_utc_timestamp", takes=[cast_argument_to_timestamp, _read_zone_literal], of_null=INSTANT)
def to_utc_timestamp(node: Node, zone: str) -> Node:
    """Convert a local time of the zone to UTC. The argument is stored as if the local time were UTC."""

    def near(plain: pa.Array) -> pa.Array:
        before = pc.assume_timezone(plain, zone, ambiguous="earliest", nonexistent="earliest")
        moved = pc.subtract(pc.local_timestamp(before).cast(INT64), before.cast(INT64))
        return pc.subtract(plain.cast(INT64), moved).cast(WALL).cast(INSTANT)

    def compute(values: pa.Array) -> pa.Array:
        return _convert_zone_times(values, "to_utc_timestamp", zone, near, True)

    return build_compute_node(accept_scalars(compute), build_cast(node, INSTANT), fallible=True)
