"""``from_utc_timestamp`` and ``to_utc_timestamp``: wall-clock time of a zone, such as the day of a place.

Invariant: as Spark's in the session zone UTC. A time that a clock shows twice, when it is put back, is the first one;
one that it leaves out, when it is put forward, is read by the offset before. A zone is a literal, an area and a city or
an offset, and is looked for in the machine's database of zones when an expression is compiled. Arrow's kernels read no
rules of the database that go on for ever, so times behind the last change that they know are asked of ``zoneinfo``.

Limits: a database that is renewed may have other rules, so machines of one state should have the same one.

>>> import pyarrow as pa
>>> from ddflow.expressions.node import constant
>>> late, zone = constant(pa.scalar(dt.datetime(2040, 7, 31, 23))), constant(pa.scalar("Europe/Zurich"))
>>> TABLE.entries["from_utc_timestamp"].call([late, zone]).constant.cast(WALL)
<pyarrow.TimestampScalar: '2040-08-01T01:00:00.000000'>
"""

import datetime as dt
import re
from collections.abc import Callable
from functools import lru_cache
from typing import Any, Final
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ddflow.expressions.casts import convert, wall
from ddflow.expressions.compare import literal_text
from ddflow.expressions.node import Node, Refusal, apply, on_arrays
from ddflow.expressions.table import Table, moment
from ddflow.expressions.types import INSTANT, INT64, WALL

TABLE = Table()
_OFFSET: Final = r"UTC|[+-](?:0\d|1[0-7]):[0-5]\d|[+-]18:00"
_NAMES: Final = re.compile(rf"{_OFFSET}|[A-Za-z_]+(?:/[A-Za-z0-9_+-]+)+")
"""The zones that Java and the database call the same."""
_EPOCH: Final = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
_MICROSECOND: Final = dt.timedelta(microseconds=1)
_YEARS: Final = (-62_135_596_800_000_000, 253_402_300_800_000_000)
"""From the year 1 to 9999, in microseconds."""
_PROBED: Final = [dt.datetime(year, month, 1, tzinfo=dt.UTC) for year in range(1900, 2038) for month in (1, 7)]
_CYCLE: Final = 146_097 * 86_400_000_000
"""400 years, after which days of the week and of the year are the same, in microseconds."""


def _zone(node: Node, name: str) -> str | None:
    """Read the literal of a zone.  Raises Refusal for an unknown zone."""
    text = literal_text(node, f"the zone of {name}")
    if text is None:
        return None
    zone = "UTC" if text in ("Z", "GMT") else text
    try:
        if not _NAMES.fullmatch(zone):
            raise pa.ArrowInvalid("it has another form")
        _end(zone)
    except (pa.ArrowInvalid, ZoneInfoNotFoundError):
        remedy = "write an area and a city, or an offset: 'Europe/Zurich', '+02:00', 'UTC'"
        raise Refusal(f"{text!r} is no zone that this machine knows", remedy) from None
    return zone


@lru_cache(maxsize=64)
def _end(zone: str) -> int:
    """Find the end of the rules that Arrow's kernels know, in microseconds.  Raises their errors for unknown zones."""
    shown = pc.local_timestamp(pa.array(_PROBED, pa.timestamp("us", zone))).to_pylist()
    if re.fullmatch(_OFFSET, zone):
        return _YEARS[1]
    of = ZoneInfo(zone)
    wrong = [at for at, each in enumerate(_PROBED) if each.astimezone(of).replace(tzinfo=None) != shown[at]]
    last = _PROBED[max(wrong[0] - 2, 0)] if wrong else dt.datetime(2037, 12, 31, tzinfo=dt.UTC)
    return (last - _EPOCH) // _MICROSECOND


def _far(times: Any, zone: str, local: bool) -> Any:
    """Compute a zone's offset from UTC at times in microseconds.  ``local``: whether they are times of its clock."""
    of, out = ZoneInfo(zone), list[int]()
    unique, places = np.unique(times, return_inverse=True)
    for each in unique.tolist():
        # The years 2370 to 2769 have the rules of all that come behind them.
        at = _EPOCH + (_CYCLE + each % _CYCLE if each >= 2 * _CYCLE else each) * _MICROSECOND
        moved = at.replace(tzinfo=of).utcoffset() if local else at.astimezone(of).utcoffset()
        assert moved is not None, "a zone has an offset"
        out.append(moved // _MICROSECOND)
    return np.array(out, np.int64)[places]


def _move_times(values: pa.Array, name: str, zone: str, near: Callable[[pa.Array], pa.Array], local: bool) -> pa.Array:
    """Convert times by ``near``, or by `_far` if Arrow knows no rules.  Raises ArrowInvalid for years out of range."""
    plain = wall(values)
    words = plain.cast(INT64)
    least, most = pc.min(words).as_py(), pc.max(words).as_py()
    if least is None:
        return plain.cast(INSTANT)
    if not _YEARS[0] <= least <= most < _YEARS[1]:
        raise pa.ArrowInvalid(f"{name} of a year that is not 1 to 9999")
    made = near(plain)
    given = np.asarray(words.fill_null(0))
    if not (far := np.flatnonzero(given >= _end(zone))).size:
        return made
    out = np.array(made.cast(INT64).fill_null(0))
    out[far] = given[far] + (-1 if local else 1) * _far(given[far], zone, local)
    return pa.array(out, mask=np.asarray(plain.is_null())).cast(WALL).cast(INSTANT)


@TABLE.function("from_utc_timestamp", takes=[moment, _zone], of_null=INSTANT)
def from_utc_timestamp(node: Node, zone: str) -> Node:
    """Convert UTC to the time that a clock of the zone shows, stored as if it were UTC."""

    def near(plain: pa.Array) -> pa.Array:
        return pc.local_timestamp(plain.cast(INSTANT).cast(pa.timestamp("us", zone))).cast(INSTANT)

    def compute(values: pa.Array) -> pa.Array:
        return _move_times(values, "from_utc_timestamp", zone, near, False)

    return apply(on_arrays(compute), convert(node, INSTANT), fallible=True)


@TABLE.function("to_utc_timestamp", takes=[moment, _zone], of_null=INSTANT)
def to_utc_timestamp(node: Node, zone: str) -> Node:
    """Convert a time of the zone's clock, stored as if it were UTC, to its instant."""

    def near(plain: pa.Array) -> pa.Array:
        before = pc.assume_timezone(plain, zone, ambiguous="earliest", nonexistent="earliest")
        moved = pc.subtract(pc.local_timestamp(before).cast(INT64), before.cast(INT64))
        return pc.subtract(plain.cast(INT64), moved).cast(WALL).cast(INSTANT)

    def compute(values: pa.Array) -> pa.Array:
        return _move_times(values, "to_utc_timestamp", zone, near, True)

    return apply(on_arrays(compute), convert(node, INSTANT), fallible=True)
