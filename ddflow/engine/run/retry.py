"""Trying: what may fail for a while, tried again with growing pauses, until it has failed for too long.

Invariant: a source and a sink wait alike. The log says that something fails, at growing intervals that it still does,
and once that it answers again, a line each, and that an answer lasts. An outage ends with an answer that is kept: a
first copy that begins and fails is one outage, however often. Each pause is twice the one before, up to a few seconds
in the first minutes, so that what is back is soon seen, and up to more later. A pause is no shorter than the attempt
before it, as long as that is in bounds, because nothing else goes on within an attempt. It keeps no clock: the caller
says what time it is, in seconds.

>>> trying = Trying("the sink of 'people'")
>>> trying.failed(SinkFailed("write", "it is away", "wait"), now=0.0)
>>> trying.due(0.01), trying.due(0.06), trying.failing is None
(False, True, False)
>>> trying.failed(SinkFailed("write", "it is away", "wait"), now=1.0, took=3.0)
>>> trying.said(2.0)
'tried again in 5 s: it is away'
>>> trying.give_up(9.0, patience=10.0)
>>> trying.answered(9.5)
>>> trying.due(9.5)
True
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
class LastingCall:
    """A call that may last: what it ``does``, how it is ended, when it ``began``, and after how long it is ``told``."""

    does: str
    cancel: Callable[[], object]
    began: float = field(default_factory=monotonic)
    told: float = field(default_factory=lambda: LASTS)


class Trying:
    """``what``: as the log calls it.  ``failing``: the last error; None where the last attempt did not fail."""

    def __init__(self, what: str) -> None:
        self.what = what
        self.failing: Failure | None = None
        self._reached = self._out = self._cancelled = False
        self._asked: LastingCall | None = None
        self._breaks = list[Callable[[], object]]()
        self._since = self._again = self._pause = self._said = self._silence = 0.0

    def due(self, now: float) -> bool:
        """Whether it is not to wait; never after a cancel."""
        return not self._cancelled and (self.failing is None or now >= self._again)

    def said(self, now: float) -> str:
        """Describe the failure and the time of the next attempt, for a line that may be cut; "" without a failure."""
        failing = self.failing
        return "" if failing is None else f"tried again in {self._wait(now)}: {' '.join(failing.found.split())}"

    def _wait(self, now: float) -> str:
        return f"{ceil(max(self._again - now, 0))} s"

    def failed(self, error: Failure, now: float, took: float = 0.0) -> None:
        """Note a failure of an attempt that began ``now``, and ``took`` so long; ignore a cancelled attempt.

        Raises the error for a rejected login, until one has succeeded.
        """
        if isinstance(error, SourceNotLetIn | SinkNotLetIn) and not self._reached:
            raise error
        self._breaks.clear()
        if self._cancelled:
            return
        if not self._out:
            LOG.warning("%s fails, and is tried again: %s", self.what, _line(error))
            self._since, self._pause, self._out = now, PAUSES[0], True
            self._said, self._silence = now, REMINDERS[0]
        else:
            self._pause = min(2 * self._pause, PAUSES[1 if now - self._since < SOON else 2])
        self.failing, ended = error, now + took
        self._again = ended + max(self._pause, min(took, PAUSES[2]))
        if now - self._said >= self._silence:
            fails, again = now - self._since, self._wait(ended)
            LOG.warning("%s still fails, after %.0f s, tried again in %s: %s", self.what, fails, again, _line(error))
            self._said, self._silence = now, min(2 * self._silence, REMINDERS[1])

    def answered(self, now: float, *, whole: bool = True) -> None:
        """Note that it did not fail.  ``whole``: whether a failure from now on is another outage."""
        if self._out and whole:
            LOG.warning("%s answers again, after %.0f s", self.what, now - self._since)
        self.failing, self._reached, self._out = None, True, self._out and not whole

    def give_up(self, now: float, patience: float | None) -> None:
        """Raise what has failed for longer than ``patience``; None: never."""
        if patience is not None and self.failing is not None and now - self._since >= patience:
            raise self.failing

    @contextmanager
    def lasting(self, does: str, cancel: Callable[[], object] = lambda: None) -> Iterator[None]:
        """Let `cancel` end the request of the block, and `remind` log that it ``does`` so."""
        before, self._asked = self._asked, LastingCall(does, cancel)
        token = BREAKS.set(self._breaks)
        try:
            yield
        finally:
            BREAKS.reset(token)
            self._asked = before

    def remind(self) -> None:
        """Log a request that lasts, if a reminder is due. Call it from another thread."""
        if (asked := self._asked) is not None and (lasted := monotonic() - asked.began) >= asked.told:
            LOG.warning("%s %s for %.0f s", self.what, asked.does, lasted)
            asked.told *= 2

    def cancel(self) -> None:
        """End a request that lasts, if possible, because a run ends.

        Call it from another thread; it does nothing if the request has just ended, or was cancelled.
        """
        if (asked := self._asked) is not None:
            if not self._cancelled:
                LOG.warning("%s lasts, and is cancelled: the run was to end, and the next one goes on", self.what)
            self._cancelled = True
            for each in (*self._breaks, asked.cancel):
                with suppress(Exception):  # as of a connection that is closed by now
                    each()


def _line(error: Exception) -> str:
    """Join an error's text into one line for a log record; drivers answer in several lines."""
    return " ".join(str(error).split())
