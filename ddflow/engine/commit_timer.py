"""When calls become an epoch: each with its own commit, after a span of time, or when somebody asks.

Invariant: under a span, a call is committed no later than that after the first call of its epoch, whether or not
another one comes: by the next call, or else by a thread, which takes its turn like a call.  Where its commit fails the
engine goes no further, and whoever waits gets the error.  Nothing runs while nothing waits: the thread begins with the
first call of an epoch and ends with its commit.

>>> [CommitTimer(every, CallGuard(), lambda: 0).span for every in ("call", "50ms", None)]
[0.0, 0.05, None]
"""

import threading
from collections.abc import Callable
from time import monotonic
from typing import Final

from ddflow.dataflow.call_guard import CallGuard
from ddflow.errors import EngineClosed, SpecError
from ddflow.time import seconds

CALL: Final = "call"
"""Every call is an epoch."""


class CommitTimer:
    """``span``: seconds that a call may wait for its commit, 0 for none, None where nobody commits unasked.

    ``guard``: of the engine's calls.  ``epoch``: gives the number of the last that was committed.
    """

    def __init__(self, every: str | None, guard: CallGuard, epoch: Callable[[], int]) -> None:
        self.span = None if every is None else 0.0 if every == CALL else seconds(every, "commit_every=")
        self._guard, self._epoch, self._changed = guard, epoch, threading.Condition()
        self._timer: threading.Timer | None = None
        self._began, self._ended = 0.0, False

    def due(self, commit: Callable[[], int]) -> bool:
        """Whether the time of an epoch is over at its next call; else ``commit`` is called when it is."""
        if not self.span:
            return False
        now = monotonic()
        if self._timer is None:
            self._began = now
            self._timer = threading.Timer(self.span, self._fire, (commit,))
            self._timer.name, self._timer.daemon = "ddflow-commit", True
            self._timer.start()
        return now - self._began >= self.span

    def settle(self) -> None:
        """Note that nothing waits any more."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
            with self._changed:
                self._changed.notify_all()

    def end(self) -> None:
        """Let go of whoever waits: there will be no commit."""
        self._ended = True
        if self._timer is not None:
            self._timer.cancel()
        with self._changed:
            self._changed.notify_all()

    def _fire(self, commit: Callable[[], int]) -> None:
        with self._guard.own() as is_open:
            if is_open and self._timer is threading.current_thread():
                try:
                    commit()
                except BaseException:  # it is the guard's now, for the next call
                    self.end()

    def wait(self, epoch: int, timeout: float | None) -> int:
        """The number of an epoch, once it is committed.  Raises what its commit raised, `SpecError`, `TimeoutError`."""
        with self._changed:
            if self.span is None and self._epoch() < epoch and timeout is None:
                found = "this engine commits when it is asked to"
                raise SpecError("wait for a commit", found, "call flush(), or open with commit_every='50ms'")
            done = self._changed.wait_for(lambda: self._epoch() >= epoch or self._ended, timeout)
        if self._epoch() >= epoch:
            return epoch
        if not done:
            raise TimeoutError(f"epoch {epoch} was not committed within {timeout:g} s")
        if self._guard.failure is not None:
            raise self._guard.failure
        raise EngineClosed(f"wait for epoch {epoch}", "the engine was closed", "flush() before you close it")
