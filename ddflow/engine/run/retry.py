"""Retry of a source or a sink that fails for a while, with growing pauses, until it has failed for too long.

Each pause is twice the one before, up to `PAUSES`. A pause is no shorter than the attempt before it, as long as that is
in bounds, because nothing else goes on within an attempt. The log says that something fails, at growing intervals that
it still does, and once that it answers again.

Guarantees: an outage ends with an answer that is kept, so a first copy that begins and fails is one outage, however
often. Limits: the caller says what time it is, in seconds.

>>> retry = Retry("the sink of 'people'")
>>> retry.record_failure(SinkFailed("write", "it is away", "wait"), now=0.0)
>>> retry.is_due(0.01), retry.is_due(0.06), retry.failing is None, retry.describe_failure(0.0)
(False, True, False, 'tried again in 1 s: it is away')
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
"""Seconds before the second attempt, and at most before a later one, before and after `SOON`."""
SOON: Final = 300.0
"""Seconds of failing that are the first."""
Failure = SourceFailed | SinkFailed | SourceNotLetIn | SinkNotLetIn
REMINDERS: Final = (5.0, 60.0)
"""Seconds before the log repeats that it fails, and at most before it does again."""
LASTS: Final = 30.0
"""Seconds before the log says that an answer lasts; it does again whenever that has lasted twice as long."""


@dataclass
class WatchedCall:
    """A call that may last.

    ``does``: for the log.  ``cancel``: ends it.  ``began``: when.  ``reminds``: after how long the log says so.
    """

    does: str
    cancel: Callable[[], object]
    began: float = field(default_factory=monotonic)
    reminds: float = field(default_factory=lambda: LASTS)


@dataclass
class Outage:
    """Attempts that failed one after the other, the first at ``since``.

    ``pause``: the shortest wait for the next one, which is due at ``again``.  ``logged``: when the log said so last;
    ``silence``: before it does again.
    """

    since: float
    logged: float
    pause: float = PAUSES[0]
    again: float = 0.0
    silence: float = REMINDERS[0]


class Retry:
    """``what``: as the log calls it.  ``failing``: the last error; None where the last attempt did not fail."""

    def __init__(self, what: str) -> None:
        self.what = what
        self.failing: Failure | None = None
        self._outage: Outage | None = None
        self._reached = self._cancelled = False
        self._call: WatchedCall | None = None
        self._breaks = list[Callable[[], object]]()

    def is_due(self, now: float) -> bool:
        """Whether it is not to wait; never after a cancel."""
        waits = self.failing is not None and self._outage is not None and now < self._outage.again
        return not self._cancelled and not waits

    def describe_failure(self, now: float) -> str:
        """Describe the failure and the time of the next attempt, for a line that may be cut; "" without a failure."""
        if self.failing is None or self._outage is None:
            return ""
        return f"tried again in {_format_wait(self._outage, now)}: {' '.join(self.failing.found.split())}"

    def record_failure(self, error: Failure, now: float, took: float = 0.0) -> None:
        """Note a failure of an attempt that began ``now``, and ``took`` so long; ignore a cancelled attempt.

        Raises the error for a rejected login, until one has succeeded.
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
        """Note that it did not fail.  ``whole``: whether a failure from now on is another outage."""
        self.failing, self._reached = None, True
        if self._outage is not None and whole:
            LOG.warning("%s answers again, after %.0f s", self.what, now - self._outage.since)
            self._outage = None

    def give_up_if_overdue(self, now: float, patience: float | None) -> None:
        """Raise what has failed for longer than ``patience``; None: never."""
        outage = self._outage
        if patience is not None and self.failing is not None and outage is not None and now - outage.since >= patience:
            raise self.failing

    @contextmanager
    def watch_call(self, does: str, cancel: Callable[[], object] = lambda: None) -> Iterator[None]:
        """Let `cancel` end the call of the block, and `log_long_call` log that it ``does`` so."""
        before, self._call = self._call, WatchedCall(does, cancel)
        token = BREAKS.set(self._breaks)
        try:
            yield
        finally:
            BREAKS.reset(token)
            self._call = before

    def log_long_call(self) -> None:
        """Log a call that lasts, if a reminder is due. Call it from another thread."""
        if (call := self._call) is not None and (lasted := monotonic() - call.began) >= call.reminds:
            LOG.warning("%s %s for %.0f s", self.what, call.does, lasted)
            call.reminds *= 2

    def cancel_call(self) -> None:
        """End a call that lasts, if possible, because a run ends.

        Call it from another thread; it does nothing if the call has just ended, or was cancelled.
        """
        if (call := self._call) is not None:
            if not self._cancelled:
                LOG.warning("%s lasts, and is cancelled: the run was to end, and the next one goes on", self.what)
            self._cancelled = True
            for each in (*self._breaks, call.cancel):
                with suppress(Exception):  # as of a connection that is closed by now
                    each()


def _format_wait(outage: Outage, now: float) -> str:
    return f"{ceil(max(outage.again - now, 0))} s"
