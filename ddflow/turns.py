"""Turns: one call of an engine at a time, and none after its end.

Invariant: between `use` and the end of its ``with`` no other thread is in a call; an engine that was closed, or whose
step was interrupted while it changed the state, lets nobody in again.  Why that is not trivial: a step of one event
takes so little that a context manager made by a generator would be a tenth of it, so the turn is its own context
manager.

>>> turns = Turns()
>>> with turns.use("step"):
...     turns.use("read")
Traceback (most recent call last):
    ...
ddflow.errors.ConcurrentUse: read: another call is using this engine; give every thread its own, or a lock
"""

from __future__ import annotations

import threading

from ddflow.errors import ConcurrentUse, EngineClosed


class Turns:
    """``state``: "open", "closed" or "interrupted"."""

    def __init__(self) -> None:
        self._lock, self.state = threading.Lock(), "open"

    def alone(self, what: str) -> Turns:
        """The turn, taken, whatever the state.  Raises `ConcurrentUse`."""
        if not self._lock.acquire(blocking=False):
            raise ConcurrentUse(what, "another call is using this engine", "give every thread its own, or a lock")
        return self

    def use(self, what: str) -> Turns:
        """The turn, taken, of an open engine.  Raises `ConcurrentUse`, `EngineClosed`."""
        self.alone(what)
        if self.state != "open":
            self._lock.release()
            why = "it was closed" if self.state == "closed" else "a step was interrupted while it changed the state"
            raise EngineClosed(what, why, "open a new engine")
        return self

    def __enter__(self) -> None:
        """It was taken already."""

    def __exit__(self, *_: object) -> None:
        self._lock.release()
