"""Guard the calls of an engine: one writer at a time, readers between calls, and no call after the end.

A second writer gets an error at once. A reader, and a thread of the engine, waits for the current call at most, and a
call waits for them. A reader holds the lock only while it collects references. An engine that was closed, or
interrupted while it changed the state, accepts no more calls. A forked child cannot call: it has no threads, and a lock
held at the fork is never released.

>>> turns = CallGuard()
>>> with turns.lock_for_write("step"):
...     turns.lock_for_write("replace")
Traceback (most recent call last):
    ...
ddflow.errors.ConcurrentUse: replace: another call writes to this engine; give every thread its own, or a lock
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import TracebackType
from typing import Final, cast

from ddflow.errors import ConcurrentUse, DdflowError, EngineClosed, ErrorText, Option, OutOfMemory

WHY: Final = {
    "closed": "it was closed",
    "interrupted": "a step was interrupted while it changed the state",
    "failed": "a commit failed, so what the state holds now is known when it is opened again",
}

FOREIGN: Final = suppress(RuntimeError)
"""Suppresses the error for releasing another thread's lock, in a forked child. Made once, because each step uses it."""


class CallGuard:
    """The locks and the state of an engine's calls. It is its own context manager, which is faster than a generator.

    ``state``: "open", or a key of `WHY`. ``commit``: a block that ends the engine if it fails. ``failure``: the reason.
    ``untold``: the error of a background thread, until a call raises it.
    """

    def __init__(self) -> None:
        # Writers never wait for each other. All threads wait for `_turn`, and hold `_gate` meanwhile, so a writer with
        # one call after the other does not overtake a waiting reader.
        self._calls, self._turn, self._gate = threading.Lock(), threading.RLock(), threading.RLock()
        self._runs, self._runner, self._owner = threading.Lock(), 0, 0
        self._process, self.state = os.getpid(), "open"
        self.commit = CommitErrorHandler(self)
        self.failure = self.untold = cast("BaseException | None", None)

    @property
    def is_owner_process(self) -> bool:
        """Whether this process opened the engine; False in a forked child."""
        return os.getpid() == self._process

    def lock_in_any_state(self, what: str) -> CallGuard:
        """Take the writer's lock in any state of the engine. Raises `ConcurrentUse`."""
        return self._acquire_writer_locks(what, self.is_owner_process)

    def _acquire_writer_locks(self, what: str, here: bool) -> CallGuard:
        if self._runner and self._runner != threading.get_ident():
            raise ConcurrentUse(what, "a run on another thread writes to this engine", "end that first: engine.stop()")
        if not self._calls.acquire(blocking=False):
            raise ConcurrentUse(what, "another call writes to this engine", "give every thread its own, or a lock")
        try:
            self._wait_for_lock(here)
        except BaseException:
            self._release_writer_locks()
            raise
        return self

    def _wait_for_lock(self, here: bool = True) -> None:
        """Wait for the lock; in a forked child take it only if it is free, because its holder may not exist there."""
        if not here:
            self._turn.acquire(blocking=False)
            return
        with self._gate:
            self._turn.acquire()
            self._owner = threading.get_ident()

    @contextmanager
    def lock_for_background(self) -> Iterator[bool]:
        """Take the lock for a thread of the engine; yield whether the engine is open. ``untold`` keeps an error."""
        try:
            with self.lock_for_read("commit", closed=True):
                yield self.state == "open"
        except BaseException as error:
            self.untold = error

    @contextmanager
    def lock_for_read(self, what: str, *, closed: bool = False, nests: bool = True) -> Iterator[None]:
        """Take the lock for a reader while it collects references. Raises `EngineClosed`, unless ``closed``.

        A callback within a call of the same thread sees the state before that call. Raises `ConcurrentUse` there if
        ``nests`` is False, or while the call changes the state, when a signal's handler may run.
        """
        self._check_process(what)
        nested = self._owner == threading.get_ident()
        if nested and (self.state == "interrupted" or not nests):
            raise ConcurrentUse(what, "a call of this thread is at work", "do it when that has returned")
        if not nested:
            self._wait_for_lock()
        try:
            if not closed:
                self._check_open(what)
            yield
        finally:
            if not nested:
                self._release_lock()

    @contextmanager
    def lock_for_run(self) -> Iterator[None]:
        """Let no other thread write until the block ends. Raises `ConcurrentUse`, `EngineClosed`."""
        if not self._runs.acquire(blocking=False):
            raise ConcurrentUse("run", "another run works on this engine", "end that first: engine.stop()")
        try:
            with self.lock_for_write("run"):
                self._runner = threading.get_ident()
            yield
        finally:
            self._runner = 0
            self._runs.release()

    @contextmanager
    def end_and_prevent_runs(self, what: str, stop: Callable[[], None]) -> Iterator[None]:
        """End the current run with ``stop``, wait for it, and let no other run begin in the block.

        Raises `ConcurrentUse` on the run's own thread.
        """
        if self._runner == threading.get_ident():
            raise ConcurrentUse(what, "its run works on this thread", "call engine.stop() here, and this behind run()")
        if not (taken := self._runs.acquire(blocking=False)):
            stop()
            taken = self._runs.acquire(blocking=self.is_owner_process)
        try:
            yield
        finally:
            if taken:
                self._runs.release()

    def lock_for_write(self, what: str) -> CallGuard:
        """Take the writer's lock of an open engine.

        Raises `ConcurrentUse`, `EngineClosed`; the latter also after a fork.
        """
        if os.getpid() != self._process:
            self._check_process(what)
        self._acquire_writer_locks(what, True)
        if self.state != "open":
            self.untold = None
            self._release_writer_locks()
            self._check_open(what)
        return self

    def _check_process(self, what: str) -> None:
        if not self.is_owner_process:
            raise EngineClosed(
                what,
                f"it was opened by process {self._process}, before this one was forked from it",
                "open it again in this process",
            )

    def _check_open(self, what: str) -> None:
        if self.state != "open":
            committed = "; durable state holds every epoch up to engine.epoch" * (self.state == "interrupted")
            raise EngineClosed(what, WHY[self.state], f"open a new engine{committed}") from self.failure

    def _release_writer_locks(self) -> None:
        self._release_lock()
        self._calls.release()

    def _release_lock(self) -> None:
        if self._owner == threading.get_ident():
            self._owner = 0
        with FOREIGN:
            self._turn.release()

    def __enter__(self) -> None:
        """Do nothing: the lock is taken already."""

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        """Release the lock, and replace a `MemoryError` by `OutOfMemory`."""
        self._release_lock()
        self._calls.release()
        if isinstance(error, MemoryError) and not isinstance(error, DdflowError):
            raise self.build_memory_error(error) from error

    def build_memory_error(self, error: MemoryError) -> OutOfMemory:
        """Make the error for memory that a call could not allocate."""
        whole = "nothing was changed" if self.state == "open" else "the engine goes no further: open a new one"
        found = str(error).strip() or "no more memory could be had"
        return OutOfMemory(
            "a call", found, ErrorText("give it smaller steps, or a budget with ", Option("memory"), f"; {whole}")
        )


class CommitErrorHandler:
    """A block that writes to a store. A failure in it ends the engine, because the store's content is then unknown."""

    def __init__(self, turns: CallGuard) -> None:
        self.guard = turns

    def __enter__(self) -> None:
        """Do nothing."""

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        if error is not None:
            self.guard.state, self.guard.failure = "failed", error
