"""The state of a run on the shell: held by one run at a time, and removed where a run made it and committed nothing.

Invariant: a folder is held by a lock on it, which ends with the process; it is advice for other runs, and what fences
writers is the state's own. Only a folder that was not there before is removed, and only while this run holds it and
nothing is committed in it. States in buckets, and file systems without locks, are left to the fencing.

>>> import tempfile
>>> with tempfile.TemporaryDirectory() as folder, HeldState(folder), HeldState(folder):
...     pass
Traceback (most recent call last):
    ...
ddflow.errors.StateRefused: run on the state ...: another run has it; stop that one, or give this one a state of its own
"""

import os
import shutil
from contextlib import suppress
from types import TracebackType
from typing import Self

from ddflow.errors import DdflowError, StateRefused


class HeldState:
    """``state``: as `Flow.open` takes it.  ``trust``: as there."""

    def __init__(self, state: str, trust: str = "owner") -> None:
        self.state, self.trust = state, trust
        self._lock: int | None = None
        self._made = "://" not in state and not os.path.lexists(state)

    def __enter__(self) -> Self:
        """Hold the state, if it exists.  Raises `StateRefused`."""
        self.hold()
        return self

    def hold(self) -> None:
        """Hold the state, once it exists.  Twice is harmless.  Raises `StateRefused`."""
        import fcntl

        if self._lock is not None or not os.path.isdir(self.state):
            return
        with suppress(PermissionError):  # opening the state says what is wrong
            self._lock = os.open(self.state, os.O_RDONLY)
            try:
                fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                self._release()
                remedy = "stop that one, or give this one a state of its own"
                raise StateRefused(f"run on the state {self.state}", "another run has it", remedy) from None
            except OSError:  # a file system without locks
                self._release()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        """Release the state; after an error, remove it if it is new and no other run holds it."""
        if error is not None and self._made:
            with suppress(StateRefused):
                self.hold()
            if self._lock is not None and not self._has_commits():
                shutil.rmtree(self.state, ignore_errors=True)
        self._release()

    def _has_commits(self) -> bool:
        """Return whether the state has commits, or may have some."""
        from ddflow.storage.manifest import newest
        from ddflow.storage.opening import opened_store

        try:
            with opened_store(self.state, trust=self.trust) as store:
                manifest = newest(store)
        except DdflowError:
            return bool(os.listdir(self.state))
        return manifest is not None and manifest.number > 0

    def _release(self) -> None:
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None
