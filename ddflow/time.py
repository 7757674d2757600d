"""Represent times and frontiers, and convert times to and from Python values and texts.

The *frontier* is the least time that may still appear in the input. Updates before *upper* are complete. A read is
exact if its time is *since* or later. Times are int64 and totally ordered, from ``NEVER`` to ``CLOSED``. A date or
timestamp is stored as an int64 that counts the units of the type, but ddflow accepts and prints it as a date or
timestamp.

Guarantees: a batch with description (lower, upper, since) holds exactly the updates with ``lower <= t < upper``. Times
before ``since`` may have been merged into one time. The upper of a batch is the lower of the next batch in its spine.
Limits: times must be totally ordered, as in the upsert operator of differential-dataflow.
"""

from __future__ import annotations

import re
from contextlib import suppress
from datetime import date, datetime
from numbers import Integral
from time import time_ns
from typing import Any, Final, NamedTuple, TypeAlias

import pyarrow as pa

from ddflow.errors import SchemaMismatch, SpecError, TimeWentBack

NEVER: Final = -(2**63)
"""The least time. If the frontier has this value, no time is closed yet."""
CLOSED: Final = 2**63 - 1
"""The frontier after all times are closed. No event may have this time."""
Time: TypeAlias = int | date | str
"""A time as a caller passes it: an int, or a date, a timestamp or a text if times are dates or timestamps.
"""


INT64: Final = pa.int64()
_DAY: Final = re.compile(r"\d{4}-\d\d-\d\d")
_SECONDS: Final = {"": 1.0, "ms": 0.001, "s": 1.0, "min": 60.0, "h": 3600.0, "d": 86400.0}
_NANOSECONDS: Final = {"s": 10**9, "ms": 10**6, "us": 10**3, "ns": 1}


class BatchDescription(NamedTuple):
    """The range of times in a batch (``lower <= t < upper``), and the first time that it distinguishes (``since``).

    >>> BatchDescription(0, 5, 0).is_followed_by(BatchDescription(5, 9, 3))
    True
    """

    lower: int
    upper: int
    since: int

    def is_followed_by(self, later: BatchDescription) -> bool:
        """Return whether ``later`` begins exactly at the end of this batch."""
        return self.upper == later.lower

    def merge_with(self, later: BatchDescription) -> BatchDescription:
        """Describe the merge of this batch and the next batch ``later``.

        The merged batch ends at the upper of ``later``.
        """
        assert self.is_followed_by(later), f"{self} and {later} do not meet"
        return BatchDescription(self.lower, later.upper, max(self.since, later.since))


def advance_frontier(frontier: int, to: int, kind: pa.DataType = INT64) -> int:
    """Advance a frontier to ``to``, and return it. Raises `TimeWentBack` if ``to`` is before the present frontier.

    O(1). ``kind``: the type of times.

    >>> advance_frontier(3, 7)
    7
    >>> advance_frontier(7, 4)
    Traceback (most recent call last):
        ...
    ddflow.errors.TimeWentBack: cannot advance to 4: the frontier is already 7; times may not go back
    """
    if to < frontier:
        found = f"the frontier is already {format_time(frontier, kind)}"
        raise TimeWentBack(f"cannot advance to {format_time(to, kind)}", found, "times may not go back")
    return to


def format_time(time: int, kind: pa.DataType = INT64) -> str:
    """Format a frontier or time for a person. ``kind``: the type of times.

    A time that Python cannot represent is shown as a number.

    >>> format_time(19725, pa.date32()), time_to_int64("read", date(2024, 1, 3), CLOSED, pa.date32())
    ('2024-01-03', 19725)
    """
    if time in (CLOSED, NEVER):
        return "CLOSED" if time == CLOSED else "the beginning"
    if kind == INT64:
        return str(time)
    with suppress(OverflowError, ValueError):
        return str(_build_time_scalar(time, kind).as_py())
    return str(time)


def _build_time_scalar(time: int, kind: pa.DataType) -> pa.Scalar:
    return pa.scalar(time, pa.int32() if kind.bit_width == 32 else INT64).cast(kind)


def format_time_argument(time: Any, kind: pa.DataType = INT64) -> str:
    """Format a time that a user passed, for a message. ``kind``: the type of times.

    An invalid value is shown as its ``repr``.
    """
    if isinstance(time, Integral) and not isinstance(time, bool) and NEVER <= int(time) <= CLOSED:
        return format_time(int(time), kind)
    return str(time) if isinstance(time, date) else repr(time)


def time_to_int64(asked: str, time: Any, most: int, kind: pa.DataType = INT64) -> int:
    """Convert a time or frontier to an int. Raises `SchemaMismatch` for an invalid value or a time after ``most``.

    ``kind``: the type of times. A date or timestamp may be a Python value or text.
    """
    if time.__class__ is int and NEVER <= time <= most:
        return time  # the usual case; checks of abstract types are slower
    if not isinstance(time, bool) and isinstance(time, Integral) and NEVER <= int(time) <= most:
        return int(time)
    if pa.types.is_integer(kind):
        remedy = f"pass an integer, {most} at most; to use days or timestamps, begin with one in the first step"
        raise SchemaMismatch(asked, "that is not an int64 time", remedy)
    try:
        # pandas represents a day by its midnight.
        return int(pa.scalar(str(time).removesuffix(" 00:00:00")).cast(kind).value)
    except (pa.ArrowException, ValueError):
        remedy = f"pass a time like {format_time(0, kind)}, or an integer in its unit"
        raise SchemaMismatch(asked, f"that is not a time of type {kind}", remedy) from None


def find_time_type(time: Any) -> pa.DataType | None:
    """Return the type of times to which a given time belongs: int64, a date or a timestamp.

    Return None for an invalid value.

    >>> find_time_type(7), find_time_type(date(2026, 11, 26)), find_time_type("2026-11-26 12:00+00:00")
    (DataType(int64), DataType(date32[day]), TimestampType(timestamp[us, tz=UTC]))
    >>> find_time_type("soon")
    """
    if isinstance(time, Integral):
        return None if isinstance(time, bool) else INT64
    with suppress(ValueError, pa.ArrowException):
        if isinstance(time, date):
            return pa.date32() if not isinstance(time, datetime) else pa.scalar(time).type
        if _DAY.match(text := str(time)):
            return pa.date32() if _DAY.fullmatch(text) else pa.scalar(datetime.fromisoformat(text)).type
    return None


def time_to_value(time: int, kind: pa.DataType) -> Time:
    """Convert a time to a Python value: an int, a date or a timestamp.

    >>> time_to_value(19725, pa.date32()), time_to_value(19725, INT64)
    (datetime.date(2024, 1, 3), 19725)
    """
    value: Time = time if kind == INT64 else _build_time_scalar(time, kind).as_py()
    return value


def read_clock(kind: pa.DataType) -> int:
    """Return the present time in UTC, in the unit of ``kind``, a type of dates or timestamps.

    >>> 20_000 < read_clock(pa.date32()) < read_clock(pa.timestamp("s")) < read_clock(pa.timestamp("us", "UTC"))
    True
    """
    return time_ns() // count_nanoseconds(kind)


def count_nanoseconds(kind: pa.DataType) -> int:
    """Return the nanoseconds in a unit of a type of dates or timestamps.

    >>> count_nanoseconds(pa.timestamp("us")), count_nanoseconds(pa.date64())
    (1000, 1000000)
    """
    if pa.types.is_date32(kind):
        return 86_400 * 10**9
    return _NANOSECONDS["ms" if pa.types.is_date64(kind) else kind.unit]


def parse_time(asked: str, text: str, kind: pa.DataType) -> int:
    """Parse a time from the command line: a number, or a date or timestamp as text. Raises `SchemaMismatch`.

    >>> parse_time("--as-of 19725", "19725", pa.date32()), parse_time("--as-of 2024-01-03", "2024-01-03", pa.date32())
    (19725, 19725)
    """
    number = re.fullmatch(r"\s*-?\d+\s*", text)
    return time_to_int64(asked, text.strip() if number is None else int(text), CLOSED, kind)


def parse_seconds(text: str, asked: str) -> float:
    """Parse a duration such as ``90``, ``50ms``, ``60s``, ``5min`` or ``24h``, and return the seconds.

    Raises `SpecError`, whose message begins with ``asked``.

    >>> parse_seconds("90", "--grace"), parse_seconds("24h", "--orphans"), parse_seconds("50ms", "commit_every=")
    (90.0, 86400.0, 0.05)
    """
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([a-z]*)\s*", text)
    if match is None or match[2] not in _SECONDS:
        found = "that is not a duration"
        raise SpecError(f"{asked} {text}", found, "write a number of seconds, or a number with ms, s, min, h or d")
    return float(match[1]) * _SECONDS[match[2]]
