"""Guard the calls of an engine: only one writer at a time, readers only between calls, and no call after the end.

A second writer gets an error immediately. A reader or a background thread of the engine waits only until the current
call ends. The next call waits until the waiting readers have had the lock. A reader holds the lock only while it
collects references to the state. An engine accepts no more calls after it was closed, or after it was interrupted while
it changed the state. A forked child process cannot call an engine, because it lacks the engine's threads, and a lock
that was held during the fork is never released.

>>> turns = CallGuard()
>>> with turns.lock_for_write("step"):
...     turns.lock_for_write("replace")
Traceback (most recent call last):
    ...
ddflow.errors.ConcurrentUse: replace: another call writes to this engine; use one engine for each thread, or a lock
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Final, cast

from ddflow.errors import ConcurrentUse, DdflowError, EngineClosed, ErrorText, Option, OutOfMemory

WHY: Final = {
    "closed": "it was closed",
    "interrupted": "a step was interrupted while it changed the state",
    "failed": "a commit failed, so the content of the state is unknown until you open it again",
}


class CallGuard:
    """The locks and the status of an engine's calls.

    The object itself is the context manager, which is faster than one made from a generator. ``state``: "open", or a
    key of `WHY`. ``commit``: a context manager that ends the engine if its block fails. ``failure``: the error that
    ended the engine. ``untold``: the error of a background thread, until a call raises it.
    """

    def __init__(self) -> None:
        # Writers never wait for each other. A thread that waits for `_turn` holds `_gate`. So a writer that makes many
        # calls in a row does not overtake a waiting reader.
        self._calls, self._turn, self._gate = threading.Lock(), threading.RLock(), threading.RLock()
        self._runs, self._runner, self._owner = threading.Lock(), 0, 0
        self._process, self.state = os.getpid(), "open"
        self.commit = CommitErrorHandler(self)
        self.failure = self.untold = cast("BaseException | None", None)

    @property
    def is_owner_process(self) -> bool:
        """Whether this process opened the engine. The value is False in a forked child."""
        return os.getpid() == self._process

    def lock_in_any_state(self, what: str) -> CallGuard:
        """Take the writer's lock, whatever the state of the engine. Raises `ConcurrentUse`."""
        return self.lock_for_write(what, any_state=True)

    def lock_for_write(self, what: str, *, any_state: bool = False) -> CallGuard:
        """Take the writer's lock if the engine is open. ``any_state``: take it whatever the state of the engine.

        Raises `ConcurrentUse`. Raises `EngineClosed` if the engine is closed or this process is a forked child.
        """
        here = os.getpid() == self._process
        if not here and not any_state:
            self._check_process(what)
        me = threading.get_ident()
        if self._runner and self._runner != me:
            raise ConcurrentUse(
                what, "a run on another thread writes to this engine", "end the run first: engine.stop()"
            )
        if not self._calls.acquire(blocking=False):
            raise ConcurrentUse(what, "another call writes to this engine", "use one engine for each thread, or a lock")
        try:
            if not here:  # the thread that holds the turn may not exist in a forked child
                self._turn.acquire(blocking=False)
            else:
                with self._gate:
                    self._turn.acquire()
                    self._owner = me
        except BaseException:
            self._release_writer_locks()
            raise
        if self.state != "open" and not any_state:
            self.untold = None
            self._release_writer_locks()
            self._check_open(what)
        return self

    @contextmanager
    def lock_for_background(self) -> Iterator[bool]:
        """Take the lock for a background thread, and yield whether the engine is open. Store an error in ``untold``."""
        try:
            with self.lock_for_read("commit", closed=True):
                yield self.state == "open"
        except BaseException as error:
            self.untold = error

    @contextmanager
    def lock_for_read(self, what: str, *, closed: bool = False, nests: bool = True) -> Iterator[None]:
        """Take the lock for a reader while it collects references.

        Raises `EngineClosed` if the engine is closed and ``closed`` is False. If a call runs a callback, reads in this
        callback see the state before the call. If a callback calls the method and ``nests`` is False, the method raises
        `ConcurrentUse`. While a call changes the state, the method raises `ConcurrentUse`, because the caller may then
        be a signal handler.
        """
        self._check_process(what)
        nested = self._owner == threading.get_ident()
        if nested and (self.state == "interrupted" or not nests):
            raise ConcurrentUse(what, "another call on this thread is running", "repeat it when that call has returned")
        if not nested:
            with self._gate:
                self._turn.acquire()
                self._owner = threading.get_ident()
        try:
            if not closed:
                self._check_open(what)
            yield
        finally:
            if not nested:
                self._release_lock()

    @contextmanager
    def lock_for_run(self) -> Iterator[None]:
        """Refuse writes from other threads until the block ends. Raises `ConcurrentUse`, `EngineClosed`."""
        if not self._runs.acquire(blocking=False):
            raise ConcurrentUse("run", "another run works on this engine", "end the run first: engine.stop()")
        try:
            with self.lock_for_write("run"):
                self._runner = threading.get_ident()
            yield
        finally:
            self._runner = 0
            self._runs.release()

    @contextmanager
    def end_and_prevent_runs(self, what: str, stop: Callable[[], None]) -> Iterator[None]:
        """End the current run with ``stop``, wait until it has ended, and prevent other runs during the block.

        Raises `ConcurrentUse` if the caller is the thread of the run.
        """
        if self._runner == threading.get_ident():
            raise ConcurrentUse(
                what, "its run works on this thread", f"call engine.stop() here, and {what} after run()"
            )
        if not (taken := self._runs.acquire(blocking=False)):
            stop()
            taken = self._runs.acquire(blocking=self.is_owner_process)
        try:
            yield
        finally:
            if taken:
                self._runs.release()

    def _check_process(self, what: str) -> None:
        if not self.is_owner_process:
            raise EngineClosed(
                what,
                f"process {self._process} opened it, before this process was forked",
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
        try:  # noqa: SIM105, because a context manager costs two calls
            self._turn.release()
        except RuntimeError:  # a forked child releases a lock of another thread
            pass

    def __enter__(self) -> None:
        """Do nothing, because `lock_for_write` has already taken the lock."""

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        """Release the lock, and replace a `MemoryError` by `OutOfMemory`."""
        self._release_lock()
        self._calls.release()
        if error is not None and isinstance(error, MemoryError) and not isinstance(error, DdflowError):
            raise self.build_memory_error(error) from error

    def build_memory_error(self, error: MemoryError) -> OutOfMemory:
        """Make the error for a call that could not allocate memory."""
        whole = "nothing was changed" if self.state == "open" else "the engine cannot continue: open a new one"
        found = str(error).strip() or "no more memory is available"
        return OutOfMemory(
            "a call", found, ErrorText("use smaller steps, or a budget with ", Option("memory"), f"; {whole}")
        )


class CommitErrorHandler:
    """A context manager for writes to a store.

    A failed write ends the engine, because the content of the store is then unknown.
    """

    def __init__(self, turns: CallGuard) -> None:
        self.guard = turns

    def __enter__(self) -> None:
        """Do nothing."""

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        if error is not None:
            self.guard.state, self.guard.failure = "failed", error
