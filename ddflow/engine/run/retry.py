"""Retry a failing source or sink with growing pauses, until it has failed for too long.

Each pause is twice as long as the previous pause, within the limits of `PAUSES`. Within the limits of `PAUSES`, a pause
is at least as long as the attempt before it, because an attempt blocks all other sources and sinks. The log reports the
first failure, then reminders at growing intervals, and finally the recovery.

Guarantees: an outage ends only when an attempt succeeds and its result is kept. So if a first copy begins and fails
many times, all its failures are one outage. Limits: the caller passes the current time in seconds.
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
"""In seconds: the pause before the second attempt, the longest pause until `SOON`, and the longest pause after it."""
SOON: Final = 300.0
"""The number of seconds after the first failure during which pauses are short."""
Failure = SourceFailed | SinkFailed | SourceNotLetIn | SinkNotLetIn
REMINDERS: Final = (5.0, 60.0)
"""In seconds: the time before the log repeats a failure, and the longest time between repetitions."""
LASTS: Final = 30.0
"""The number of seconds after which the log reports a slow call.

After each report, the time until the next report is doubled.
"""


@dataclass
class WatchedCall:
    """A call that may take a long time.

    ``does``: the description of the call for the log. ``cancel``: the function that ends the call. ``began``: the start
    of the call. ``reminds``: the seconds before the log reports the call.
    """

    does: str
    cancel: Callable[[], object]
    began: float = field(default_factory=monotonic)
    reminds: float = field(default_factory=lambda: LASTS)


@dataclass
class Outage:
    """A series of failed attempts without a success. ``since``: the time of the first failure.

    ``pause``: the shortest wait before the next attempt. ``again``: when the next attempt is due. ``logged``: when the
    log last reported the outage. ``silence``: the seconds from that report to the next report.
    """

    since: float
    logged: float
    pause: float = PAUSES[0]
    again: float = 0.0
    silence: float = REMINDERS[0]


class Retry:
    """Decides when to retry a source or a sink.

    ``what``: the name of the source or sink in the log. ``failing``: the last error; None if the last attempt did not
    fail.

    >>> retry = Retry("the sink of 'people'")
    >>> retry.record_failure(SinkFailed("write", "it is away", "wait"), now=0.0)
    >>> retry.is_due(0.01), retry.is_due(0.06), retry.failing is None, retry.describe_failure(0.0)
    (False, True, False, 'retry in 1 s: it is away')
    """

    def __init__(self, what: str) -> None:
        self.what = what
        self.failing: Failure | None = None
        self._outage: Outage | None = None
        self._reached = self._cancelled = False
        self._call: WatchedCall | None = None
        self._breaks = list[Callable[[], object]]()

    def is_due(self, now: float) -> bool:
        """Return whether a new attempt may begin now. After a call was cancelled, no attempt may begin."""
        waits = self.failing is not None and self._outage is not None and now < self._outage.again
        return not self._cancelled and not waits

    def describe_failure(self, now: float) -> str:
        """Describe the failure and the next attempt in one line. Return an empty text if there is no failure.

        The caller may cut off the end of the text.
        """
        if self.failing is None or self._outage is None:
            return ""
        return f"retry in {_format_wait(self._outage, now)}: {' '.join(self.failing.found.split())}"

    def record_failure(self, error: Failure, now: float, took: float = 0.0) -> None:
        """Record that an attempt failed. The attempt began at ``now`` and took ``took`` seconds.

        If the attempt was cancelled, do nothing. If a login was rejected and no earlier login succeeded, raises
        ``error``.
        """
        if isinstance(error, SourceNotLetIn | SinkNotLetIn) and not self._reached:
            raise error
        self._breaks.clear()
        if self._cancelled:
            return
        outage, self.failing = self._outage, error
        line = " ".join(str(error).split())  # errors of drivers have several lines
        if outage is None:
            LOG.warning("%s fails, and ddflow retries it: %s", self.what, line)
            outage = self._outage = Outage(now, now)
        else:
            outage.pause = min(2 * outage.pause, PAUSES[1 if now - outage.since < SOON else 2])
        outage.again = now + took + max(outage.pause, min(took, PAUSES[2]))
        if now - outage.logged >= outage.silence:
            fails, again = now - outage.since, _format_wait(outage, now + took)
            LOG.warning("%s still fails after %.0f s, retry in %s: %s", self.what, fails, again, line)
            outage.logged, outage.silence = now, min(2 * outage.silence, REMINDERS[1])

    def record_success(self, now: float, *, whole: bool = True) -> None:
        """Record that an attempt succeeded. ``whole``: whether the success ends the current outage."""
        self.failing, self._reached = None, True
        if self._outage is not None and whole:
            LOG.warning("%s answers again after %.0f s", self.what, now - self._outage.since)
            self._outage = None

    def give_up_if_overdue(self, now: float, patience: float | None) -> None:
        """Raise the last error if the outage has lasted ``patience`` seconds or longer.

        If ``patience`` is None, never raise an error.
        """
        outage = self._outage
        if patience is not None and self.failing is not None and outage is not None and now - outage.since >= patience:
            raise self.failing

    @contextmanager
    def watch_call(self, does: str, cancel: Callable[[], object] = lambda: None) -> Iterator[None]:
        """Watch the call that the block makes, so that `cancel_call` can end it and `log_long_call` can log it."""
        before, self._call = self._call, WatchedCall(does, cancel)
        token = BREAKS.set(self._breaks)
        try:
            yield
        finally:
            BREAKS.reset(token)
            self._call = before

    def log_long_call(self) -> None:
        """Log that the watched call is slow, if enough time has passed.

        Call `log_long_call` from a thread other than the thread of the watched call.
        """
        if (call := self._call) is not None and (lasted := monotonic() - call.began) >= call.reminds:
            LOG.warning("%s %s for %.0f s", self.what, call.does, lasted)
            call.reminds *= 2

    def cancel_call(self) -> None:
        """Cancel the watched call if possible, because the run must end.

        Call this method from another thread. The method does nothing if the call has just ended or was already
        cancelled.
        """
        if (call := self._call) is not None:
            if not self._cancelled:
                LOG.warning(
                    "%s takes too long and is cancelled, because the run ends; the next run continues", self.what
                )
            self._cancelled = True
            for each in (*self._breaks, call.cancel):
                with suppress(Exception):  # the connection may be closed by now
                    each()


def _format_wait(outage: Outage, now: float) -> str:
    return f"{ceil(max(outage.again - now, 0))} s"
