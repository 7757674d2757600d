"""How `Engine.run` runs: its options, checked in one place before anything is opened.

Invariant: each mistake is an error that names the option.

>>> RunOptions(interval="50ms", until="10min").every
0.05
>>> RunOptions(interval="soon")
Traceback (most recent call last):
    ...
ddflow.errors.SpecError: interval= soon: that is no span of time; write a number of seconds, or one with ms, s, min, ...
"""

import datetime
from dataclasses import dataclass
from time import time
from typing import Any, Final, Literal

import pyarrow as pa
import pyarrow.types as pat

from ddflow.dataflow.budget import parse_size
from ddflow.engine.replace import most_absent
from ddflow.errors import Option, SpecError
from ddflow.time import seconds

EPOCHS: Final = 10_000
"""Epochs that may wait for a sink."""


@dataclass(frozen=True)
class RunOptions:
    """See `Engine.run`."""

    interval: str = "1s"
    rows: int | None = None
    until: Any = None
    lateness: Any = None
    idle: str | None = None
    sink_backlog: str | int = "1GB"
    give_up_after: str | None = "10min"
    room: str | int = "64MB"
    evolve: Literal["add", "stop"] = "add"
    max_absent: int | str | None = None

    def __post_init__(self) -> None:
        if self.max_absent is not None:
            most_absent(self.max_absent, 0)
        _ = self.every, self.ends(), self.left_out, self.patience, self.most, self.bytes
        if self.rows is not None and (isinstance(self.rows, bool) or not isinstance(self.rows, int) or self.rows < 1):
            raise SpecError(Option("rows", self.rows), "that is no number of rows", "give a whole number, 1 or more")
        if self.evolve not in ("add", "stop"):
            remedy = "use 'add', to take columns that are new, or 'stop'"
            raise SpecError(f"evolve={self.evolve!r}", "that is no way to take columns", remedy)

    @property
    def every(self) -> float:
        """Seconds of an epoch."""
        return seconds(str(self.interval), "interval=")

    def ends(self) -> float | None:
        """Seconds from now to the end; None for no time."""
        if self.until is None:
            return None
        if isinstance(self.until, datetime.datetime):
            return max(self.until.timestamp() - time(), 0.0)
        return seconds(str(self.until), "until=")

    @property
    def left_out(self) -> float | None:
        """Seconds after which a silent source is left out."""
        return None if self.idle is None else seconds(self.idle, "idle=")

    @property
    def patience(self) -> float | None:
        """Seconds of retries after a failure; None: no limit."""
        return None if self.give_up_after is None else seconds(self.give_up_after, "give_up_after=")

    @property
    def most(self) -> int:
        """Bytes of updates that may wait for a sink."""
        return parse_size(self.sink_backlog, "sink_backlog=") or 0

    @property
    def bytes(self) -> int:
        """Bytes of rows in an epoch, about."""
        return parse_size(self.room, "room=") or 0

    def behind(self, kind: pa.DataType) -> int | None:
        """``lateness`` in the unit of a type of time.  Raises `SpecError`."""
        if self.lateness is None or (isinstance(self.lateness, int) and not isinstance(self.lateness, bool)):
            return self.lateness
        if not isinstance(self.lateness, str) or not (pat.is_timestamp(kind) or pat.is_date(kind)):
            raise SpecError(Option("lateness", self.lateness), f"times are {kind}", "give a whole number in their unit")
        units = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}
        a_second = units[kind.unit] if pat.is_timestamp(kind) else 1 / 86400 if pat.is_date32(kind) else 1000
        return round(seconds(self.lateness, "lateness=") * a_second)
