"""CallGuard: one call of an engine at a time, and none after its end.

Invariant: between `use` and the end of its ``with`` no other thread is in a call, nor is a thread of the engine's own:
those wait for a call, and a call for them. An engine that was closed, or whose step was interrupted while it changed
the state, admits no further call. A forked child never makes a call: it has none of the threads, and a lock that was
held at the fork is held for ever. The guard is its own context manager, because one made by a generator would take a
tenth of the time of a step of one event.

>>> turns = CallGuard()
>>> with turns.use("step"):
...     turns.use("read")
Traceback (most recent call last):
    ...
ddflow.errors.ConcurrentUse: read: another call is using this engine; give every thread its own, or a lock
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Final, cast

from ddflow.errors import ConcurrentUse, DdflowError, EngineClosed, OutOfMemory

WHY: Final = {
    "closed": "it was closed",
    "interrupted": "a step was interrupted while it changed the state",
    "failed": "a commit failed, so what the state holds now is known when it is opened again",
}


class CallGuard:
    """``state``: "open", or a key of `WHY`.  ``commit``: whoever fails in it is the last one in; ``failure``: why.

    ``untold``: what a thread of the engine's own raised, until a call has said so.
    """

    def __init__(self) -> None:
        # Calls do not wait for each other. A call waits for a thread of the engine's own, and that thread for the call.
        self._calls, self._turn = threading.Lock(), threading.Lock()
        self._process, self.state = os.getpid(), "open"
        self.commit = Commit(self)
        self.failure = self.untold = cast("BaseException | None", None)

    @property
    def here(self) -> bool:
        """Whether this is the process that opened the engine, and no child that was forked from it."""
        return os.getpid() == self._process

    def alone(self, what: str) -> CallGuard:
        """The turn, taken, whatever the state.  Raises `ConcurrentUse`."""
        return self._take(what, self.here)

    def _take(self, what: str, here: bool) -> CallGuard:
        if not self._calls.acquire(blocking=False):
            raise ConcurrentUse(what, "another call is using this engine", "give every thread its own, or a lock")
        try:
            self._turn.acquire(blocking=here)
        except BaseException:
            self._calls.release()
            raise
        return self

    @contextmanager
    def own(self) -> Iterator[bool]:
        """The turn of a thread of the engine's own; whether the engine is open.  What is raised becomes ``untold``."""
        with self._turn:
            try:
                yield self.state == "open"
            except BaseException as error:
                self.untold = error

    def use(self, what: str) -> CallGuard:
        """The turn, taken, of an open engine.  Raises `ConcurrentUse`, `EngineClosed`, there in a forked child too."""
        if not self.here:
            raise EngineClosed(
                what,
                f"it was opened by process {self._process}, before this one was forked from it",
                "open it again in this process",
            )
        self._take(what, True)
        if self.state != "open":
            self.untold = None
            self._release()
            committed = "; durable state holds every epoch up to engine.epoch" * (self.state == "interrupted")
            raise EngineClosed(what, WHY[self.state], f"open a new engine{committed}") from self.failure
        return self

    def _release(self) -> None:
        if self._turn.locked():
            self._turn.release()
        self._calls.release()

    def __enter__(self) -> None:
        """It was taken already."""

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        """Give the turn back; memory that a call could not have is an error of ours, which says what became of it."""
        self._release()
        if isinstance(error, MemoryError) and not isinstance(error, DdflowError):
            whole = "nothing was changed" if self.state == "open" else "the engine goes no further: open a new one"
            raise OutOfMemory(
                "a call",
                str(error).strip() or "no more memory could be had",
                f"give it smaller steps, or a budget with memory=; {whole}",
            ) from error


class Commit:
    """Around what is written to a store: when it fails, nobody knows what is there until it is opened again."""

    def __init__(self, turns: CallGuard) -> None:
        self.guard = turns

    def __enter__(self) -> None:
        """Nothing to begin."""

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        if error is not None:
            self.guard.state, self.guard.failure = "failed", error
