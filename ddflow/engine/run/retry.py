"""Retry a source or a sink that fails, with backoff, until it has failed for too long.

Each pause is twice the one before, up to `PAUSES`. A pause is at least as long as the attempt before it, within these
bounds, because an attempt blocks everything else. The log reports the first failure, reminders at growing intervals,
and the recovery.

Guarantees: an outage ends with an answer that is kept. A first copy that begins and fails is one outage, however often.
Limits: the caller gives the time, in seconds.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from math import ceil
from time import monotonic
from typing import Final

from ddflow.connectors.api import BREAKS, SinkNotLetIn, SourceNotLetIn
from ddflow.errors import SinkFailed, SourceFailed
from ddflow.metrics import LOG

PAUSES: Final = (0.05, 5.0, 30.0)
"""Seconds before the second attempt, and the longest pauses before and after `SOON`."""
SOON: Final = 300.0
"""The seconds of an outage with short pauses."""
Failure = SourceFailed | SinkFailed | SourceNotLetIn | SinkNotLetIn
REMINDERS: Final = (5.0, 60.0)
"""The seconds before the log repeats a failure, and the longest interval between repetitions."""
LASTS: Final = 30.0
"""The seconds before the log reports a call that takes long. Each report doubles the interval."""


@dataclass
class WatchedCall:
    """A call that may take long.

    ``does``: its description for the log. ``cancel``: ends it. ``began``: its start. ``reminds``: the seconds before
    the log reports it.
    """

    does: str
    cancel: Callable[[], object]
    began: float = field(default_factory=monotonic)
    reminds: float = field(default_factory=lambda: LASTS)


@dataclass
class Outage:
    """Failed attempts in a row, the first at ``since``.

    ``pause``: the shortest wait before the next attempt. ``again``: when that is due. ``logged``: when the log reported
    it last. ``silence``: the seconds before the next report.
    """

    since: float
    logged: float
    pause: float = PAUSES[0]
    again: float = 0.0
    silence: float = REMINDERS[0]


class Retry:
    """The retries of a source or a sink.

    ``what``: its name in the log. ``failing``: the last error; None if the last attempt did not fail.

    >>> retry = Retry("the sink of 'people'")
    >>> retry.record_failure(SinkFailed("write", "it is away", "wait"), now=0.0)
    >>> retry.is_due(0.01), retry.is_due(0.06), retry.failing is None, retry.describe_failure(0.0)
    (False, True, False, 'tried again in 1 s: it is away')
    """

    def __init__(self, what: str) -> None:
        self.what = what
        self.failing: Failure | None = None
        self._outage: Outage | None = None
        self._reached = self._cancelled = False
        self._call: WatchedCall | None = None
        self._breaks = list[Callable[[], object]]()

    def is_due(self, now: float) -> bool:
        """Whether an attempt may begin; never after a cancel."""
        waits = self.failing is not None and self._outage is not None and now < self._outage.again
        return not self._cancelled and not waits

    def describe_failure(self, now: float) -> str:
        """Describe the failure and the next attempt, for a line that may be cut; "" without a failure."""
        if self.failing is None or self._outage is None:
            return ""
        return f"tried again in {_format_wait(self._outage, now)}: {' '.join(self.failing.found.split())}"

    def record_failure(self, error: Failure, now: float, took: float = 0.0) -> None:
        """Record a failure of an attempt that began at ``now`` and took ``took`` seconds; ignore a cancelled attempt.

        Raises the error for a rejected login, until a login has succeeded.
        """
        if isinstance(error, SourceNotLetIn | SinkNotLetIn) and not self._reached:
            raise error
        self._breaks.clear()
        if self._cancelled:
            return
        outage, self.failing = self._outage, error
        line = " ".join(str(error).split())  # drivers answer in several lines
        if outage is None:
            LOG.warning("%s fails, and is tried again: %s", self.what, line)
            outage = self._outage = Outage(now, now)
        else:
            outage.pause = min(2 * outage.pause, PAUSES[1 if now - outage.since < SOON else 2])
        outage.again = now + took + max(outage.pause, min(took, PAUSES[2]))
        if now - outage.logged >= outage.silence:
            fails, again = now - outage.since, _format_wait(outage, now + took)
            LOG.warning("%s still fails, after %.0f s, tried again in %s: %s", self.what, fails, again, line)
            outage.logged, outage.silence = now, min(2 * outage.silence, REMINDERS[1])

    def record_success(self, now: float, *, whole: bool = True) -> None:
        """Record a success. ``whole``: whether a failure from now on is another outage."""
        self.failing, self._reached = None, True
        if self._outage is not None and whole:
            LOG.warning("%s answers again, after %.0f s", self.what, now - self._outage.since)
            self._outage = None

    def give_up_if_overdue(self, now: float, patience: float | None) -> None:
        """Raise an error that has lasted longer than ``patience``; None: never."""
        outage = self._outage
        if patience is not None and self.failing is not None and outage is not None and now - outage.since >= patience:
            raise self.failing

    @contextmanager
    def watch_call(self, does: str, cancel: Callable[[], object] = lambda: None) -> Iterator[None]:
        """Let `cancel_call` end the call of the block, and `log_long_call` log that it ``does`` so."""
        before, self._call = self._call, WatchedCall(does, cancel)
        token = BREAKS.set(self._breaks)
        try:
            yield
        finally:
            BREAKS.reset(token)
            self._call = before

    def log_long_call(self) -> None:
        """Log a call that takes long, if a reminder is due. Call it from another thread."""
        if (call := self._call) is not None and (lasted := monotonic() - call.began) >= call.reminds:
            LOG.warning("%s %s for %.0f s", self.what, call.does, lasted)
            call.reminds *= 2

    def cancel_call(self) -> None:
        """End a call that takes long, if possible, because a run ends.

        Call it from another thread. It does nothing if the call has just ended or was cancelled.
        """
        if (call := self._call) is not None:
            if not self._cancelled:
                LOG.warning("%s lasts, and is cancelled: the run was to end, and the next one goes on", self.what)
            self._cancelled = True
            for each in (*self._breaks, call.cancel):
                with suppress(Exception):  # the connection may be closed by now
                    each()


def _format_wait(outage: Outage, now: float) -> str:
    return f"{ceil(max(outage.again - now, 0))} s"
