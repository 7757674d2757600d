"""When calls become an epoch: each with its own commit, after a span of time, or when somebody asks.

Invariant: under a span, a call is committed no later than that after the first call of its epoch, whether or not
another one comes: by the next call, or else by a thread, which takes its turn like a call. Where its commit fails the
engine goes no further, whoever waits gets the error, and if nobody does, `Engine.close` raises it. Nobody waits for a
commit that will not come. Nothing runs while nothing waits: the thread begins with the first call of an epoch and ends
with its commit.

>>> [CommitTimer(every, CallGuard(), epoch=0).span for every in ("call", "50ms", None)]
[0.0, 0.05, None]
"""

import threading
from collections.abc import Callable
from time import monotonic
from typing import Final

from ddflow.dataflow.call_guard import WHY, CallGuard
from ddflow.errors import EngineClosed, SpecError
from ddflow.time import seconds

CALL: Final = "call"
"""Every call is an epoch."""


class CommitTimer:
    """The clock of group commits.

    ``span``: seconds that a call may wait for its commit, 0 for none, None if only the caller commits. ``guard``: of
    the engine's calls. ``epoch``: the last that was committed.
    """

    def __init__(self, every: str | None, guard: CallGuard, epoch: int) -> None:
        self.span = None if every is None else 0.0 if every == CALL else seconds(every, "commit_every=")
        self.epoch, self._guard, self._changed = epoch, guard, threading.Condition()
        self._timer: threading.Timer | None = None
        self._began, self._ended = 0.0, False

    def due(self, commit: Callable[[], int]) -> bool:
        """Whether a call that was made must be committed now; where not, ``commit`` is called when its span ends."""
        if not self.span:
            return self.span is not None
        now = monotonic()
        if self._timer is None:
            self._began = now
            self._timer = threading.Timer(self.span, self._fire, (commit,))
            self._timer.name, self._timer.daemon = "ddflow-commit", True
            self._timer.start()
        return now - self._began >= self.span

    def settle(self, epoch: int, ended: bool = False) -> None:
        """Wake the threads that wait for an epoch, because it is committed; ``ended``: because it will never be."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        with self._changed:
            self.epoch, self._ended = epoch, self._ended or ended
            self._changed.notify_all()

    def _fire(self, commit: Callable[[], int]) -> None:
        with self._guard.own() as is_open:
            if self._timer is threading.current_thread():
                if is_open:
                    commit()
                else:
                    self.settle(self.epoch, ended=True)

    def wait(self, epoch: int, timeout: float | None) -> int:
        """Wait until an epoch is committed and return its number.

        Raises the error of its commit, `SpecError` and `TimeoutError`.
        """
        if self.span is None and timeout is None and self.epoch < epoch and not self._ended:
            found = "this engine commits when it is asked to"
            raise SpecError("wait for a commit", found, "call flush(), or open with commit_every='50ms'")
        with self._changed:
            done = self._changed.wait_for(lambda: self.epoch >= epoch or self._ended, timeout)
        if self.epoch >= epoch:
            return epoch
        if not done:
            raise TimeoutError(f"epoch {epoch} was not committed within {timeout:g} s")
        self._guard.untold = None
        if self._guard.failure is not None:
            raise self._guard.failure
        raise EngineClosed(f"wait for epoch {epoch}", WHY[self._guard.state], "open the state again, and give it again")
