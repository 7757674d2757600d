"""Time, frontier, description: what is known of the past and what may still come.

Invariant: a batch with description (lower, upper, since) holds exactly the updates whose time t has ``lower <= t <
upper``; accumulated up to any ``t >= since`` they are right, before it they may have been collapsed. That is the one
equation a batch guarantees, and neighbours in a spine meet: the upper of one is the lower of the next. Three different
numbers are all called "the time so far" in other systems; here *frontier* is what may still appear in the input,
*upper* what is complete, *since* what can still be told apart. Times are int64 and totally ordered; a time before
which nothing was ever closed is ``NEVER``, a frontier past every time ``CLOSED``. Partially ordered times are not
supported (nor does differential-dataflow's upsert operator support them).

>>> advance(3, 7)
7
>>> advance(7, 4)
Traceback (most recent call last):
    ...
ddflow.errors.TimeWentBack: cannot advance to 4: the frontier is already 7; times may not go back
>>> Description(0, 5, 0).meets(Description(5, 9, 3))
True
"""

from __future__ import annotations

import re
from contextlib import suppress
from datetime import date
from numbers import Integral
from typing import Any, Final, NamedTuple

from ddflow.errors import SchemaMismatch, SpecError, TimeWentBack

NEVER: Final = -(2**63)
"""The least time: nothing is closed yet."""
CLOSED: Final = 2**63 - 1
"""The frontier when no time can appear any more; no event may carry it as its time."""


_SECONDS: Final = {"": 1.0, "ms": 0.001, "s": 1.0, "min": 60.0, "h": 3600.0, "d": 86400.0}


class Description(NamedTuple):
    """Which times a batch speaks of (``lower <= t < upper``), and from which on it tells them apart (``since``)."""

    lower: int
    upper: int
    since: int

    def meets(self, later: Description) -> bool:
        """Whether ``later`` goes on exactly where this ends."""
        return self.upper == later.lower

    def joined(self, later: Description) -> Description:
        """The description of both batches merged: from the lower of one to the upper of the other."""
        assert self.meets(later), f"{self} and {later} do not meet"
        return Description(self.lower, later.upper, max(self.since, later.since))


def advance(frontier: int, to: int) -> int:
    """The new frontier.  Raises `TimeWentBack` when ``to`` is below the present one.  O(1)."""
    if to < frontier:
        raise TimeWentBack(f"cannot advance to {to}", f"the frontier is already {frontier}", "times may not go back")
    return to


def shown(time: int) -> str:
    """A frontier or time as a person reads it."""
    return "CLOSED" if time == CLOSED else "the beginning" if time == NEVER else str(time)


def as_int64(asked: str, time: Any, most: int) -> int:
    """A time or frontier as an int.  Raises `SchemaMismatch` for anything that is none, or is above ``most``."""
    if time.__class__ is int and NEVER <= time <= most:
        return time  # as nearly always: what is abstract takes longer to ask
    if isinstance(time, bool) or not isinstance(time, Integral) or not NEVER <= int(time) <= most:
        day = of_day(time)
        raise SchemaMismatch(
            asked, "that is no int64 time", f"give an integer, {most} at most, in the time's own unit{day}"
        )
    return int(time)


def of_day(time: Any) -> str:
    """What to give for a day, where a time is one."""
    with suppress(ValueError):
        day = date.fromisoformat(time) if isinstance(time, str) else time
        if hasattr(day, "toordinal"):
            return f"; of a day, date.toordinal(): here {day.toordinal()}, if your steps' times are such"
    return ""


def seconds(text: str, asked: str) -> float:
    """A span of time in seconds: ``90``, ``50ms``, ``60s``, ``5min``, ``24h``.  Raises `SpecError`, naming ``asked``.

    >>> seconds("90", "--grace"), seconds("24h", "--orphans"), seconds("50ms", "commit_every=")
    (90.0, 86400.0, 0.05)
    """
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([a-z]*)\s*", text)
    if match is None or match[2] not in _SECONDS:
        found = "that is no span of time"
        raise SpecError(f"{asked} {text}", found, "write a number of seconds, or one with ms, s, min, h or d")
    return float(match[1]) * _SECONDS[match[2]]
