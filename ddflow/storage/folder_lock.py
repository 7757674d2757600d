"""A claim: one engine's hold on a folder, and the names of the files it has there.

Invariant: at any moment at most one claim holds a folder, and every file named by our pattern in it belongs to that
claim; so what else carries such a name when a claim begins was left by a crash, and is removed. The lock file goes
when its holder does, and a second engine may have opened it just before, so a lock counts only on the file that still
has the name. A forked child inherits the descriptor and would keep the lock, or delete its parent's files when it
exits: it lets go of both at once. Names are made here, of random bits and a number; nothing a user wrote becomes a
path. A claim does not know what files hold.

>>> import tempfile
>>> with tempfile.TemporaryDirectory() as place:
...     claim = Claim.take(place)
...     name = claim.new_name()
...     claim.release()
...     os.listdir(place)
[]
"""

from __future__ import annotations

import contextlib
import fcntl
import itertools
import os
import re
import stat
import weakref
from typing import Any

from ddflow.errors import DdflowError, EngineClosed, SpillFailed, SpillFull, SpillInUse, SpillRefused
from ddflow.storage import address
from ddflow.storage.disk import NO_ROOM, Disk, no_room

LOCK = "ddflow-spill.lock"
_OURS = re.compile(r"ddflow-[0-9a-f]{16}-[0-9]+\.(?:arrow|part)")
_FLAGS = os.O_NOFOLLOW | os.O_CLOEXEC
_claims: weakref.WeakSet[Claim] = weakref.WeakSet()


class Claim:
    """``path``: of the folder, absolute.  ``directory``: its open descriptor.  `take` makes one."""

    def __init__(self, path: str, directory: int) -> None:
        self.path, self.directory = path, directory
        self.lock = self._locked()
        self.held = True
        self.names: set[str] = set()
        self._nonce, self._numbers = os.urandom(8).hex(), itertools.count()
        _claims.add(self)

    @classmethod
    def take(cls, given: Any) -> Claim:
        """Claim a folder, and remove what a crashed engine left in it.  O(files).

        Raises `SpillRefused`, `SpillInUse`, `SpillFull`, `SpillFailed`; the folder is then as before.
        """
        address.folder(given, "spill to", SpillRefused)
        try:
            directory = os.open(os.fsdecode(given), os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except (OSError, TypeError, ValueError) as error:
            raise _refused(given, error) from None
        path = os.path.realpath(os.fsdecode(given))
        try:
            _check_folder(path, os.fstat(directory))
            claim = cls(path, directory)
        except BaseException as error:
            os.close(directory)
            raise _unless_ours(path, error) from None
        try:
            claim._clear()
        except BaseException as error:
            claim.release()
            raise _unless_ours(path, error) from None
        return claim

    def new_name(self) -> str:
        """A name that no file here has or had, without its ending; ours from now on."""
        self._must_hold()
        name = f"ddflow-{self._nonce}-{next(self._numbers)}"
        self.names.add(name)
        return name

    def create(self, name: str) -> int:
        """The descriptor of the new file that ``name`` is written to, which only this user may read."""
        self._must_hold()
        return os.open(f"{name}.part", os.O_WRONLY | os.O_CREAT | os.O_EXCL | _FLAGS, 0o600, dir_fd=self.directory)

    def publish(self, name: str) -> str:
        """Give a written file its final name; returns the path."""
        self._must_hold()
        os.rename(f"{name}.part", f"{name}.arrow", src_dir_fd=self.directory, dst_dir_fd=self.directory)
        return os.path.join(self.path, f"{name}.arrow")

    def remove(self, name: str) -> None:
        """Unlink a file, written or half written.  Never fails: what stays is removed by the next claim."""
        if self.held and name in self.names:
            self.names.discard(name)
            for ending in ("arrow", "part"):
                with contextlib.suppress(OSError):
                    os.unlink(f"{name}.{ending}", dir_fd=self.directory)

    def release(self) -> None:
        """Remove every file of this claim, and its lock.  Twice is harmless."""
        if not self.held:
            return
        for name in list(self.names):
            self.remove(name)
        self.held = False
        self._unlock(self.lock)
        os.close(self.directory)

    def disown(self) -> None:
        """Let go without touching the folder: what a forked child does, whose parent goes on."""
        if self.held:
            self.held = False
            os.close(self.lock)
            os.close(self.directory)

    def _must_hold(self) -> None:
        """Raise `EngineClosed` once let go of; the descriptors' numbers may be others' by then."""
        if not self.held:
            raise EngineClosed(f"spill to {self.path}", "the folder was closed", "open a new engine")

    def _locked(self) -> int:
        """The descriptor of the lock file, locked.  Raises `SpillInUse`.

        Our process number is written to it, which also tells whether the disk takes anything: permissions do not tell
        of a file system that is read-only or full.
        """
        while True:
            lock = os.open(LOCK, os.O_RDWR | os.O_CREAT | _FLAGS, 0o600, dir_fd=self.directory)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                # Its last holder may have unlinked it between our opening and our locking it.
                if self._is_current(lock):
                    os.ftruncate(lock, 0)
                    os.write(lock, f"{os.getpid()}\n".encode())
                    return lock
            except BlockingIOError:
                holder = os.pread(lock, 20, 0).decode("ascii", "replace").strip() or "unknown"
                os.close(lock)
                raise SpillInUse(
                    f"spill to {self.path}",
                    f"an engine of process {holder} holds it",
                    "close that engine, or give this one a folder of its own",
                ) from None
            except BaseException:
                self._unlock(lock)
                raise
            os.close(lock)

    def _unlock(self, lock: int) -> None:
        """Remove the lock file while it is still locked, then let go of it."""
        with contextlib.suppress(OSError):
            if self._is_current(lock):
                os.unlink(LOCK, dir_fd=self.directory)
        os.close(lock)

    def _is_current(self, lock: int) -> bool:
        try:
            return os.path.samestat(os.fstat(lock), os.stat(LOCK, dir_fd=self.directory, follow_symlinks=False))
        except FileNotFoundError:
            return False

    def _clear(self) -> None:
        """Remove what a crash left: whole and half files of our pattern, nothing else."""
        for name in os.listdir(self.directory):
            if _OURS.fullmatch(name) and stat.S_ISREG(
                os.stat(name, dir_fd=self.directory, follow_symlinks=False).st_mode
            ):
                os.unlink(name, dir_fd=self.directory)


def _check_folder(path: str, state: os.stat_result) -> None:
    """Raise `SpillRefused` unless the folder is this user's, closed to others' writing, and open to ours."""
    mode, own = stat.S_IMODE(state.st_mode), "give a folder of your own"
    if state.st_uid != os.geteuid():
        raise SpillRefused(f"spill to {path}", f"it belongs to user {state.st_uid}, not to {os.geteuid()}", own)
    if mode & stat.S_IWOTH:
        raise SpillRefused(
            f"spill to {path}",
            f"its mode is {mode:o}, so anybody may put files there",
            f"{own}, as mkdir -m 700 makes one",
        )
    # The superuser could write in spite of the mode; it says all the same that nobody should.
    if not mode & stat.S_IWUSR or not os.access(path, os.R_OK | os.W_OK | os.X_OK):
        raise SpillRefused(f"spill to {path}", f"it is read-only (mode {mode:o})", "make it writable, or give another")


def failure(path: str, error: OSError, what: str, wanted: int) -> DdflowError:
    """What to raise when the disk refuses; ``wanted``: bytes."""
    asked, why = f"{what} in the spill folder {path}", f"the disk says {error.strerror or str(error)!r}"
    after = "and call again; nothing was changed, the state before stays readable"
    if error.errno not in NO_ROOM:
        return SpillFailed(asked, why, f"mend the disk or its folder {after}")
    found, remedy = no_room(error, lambda: Disk().free(path))
    return SpillFull(asked, f"{wanted:,} bytes were wanted, {found}", f"{remedy} {after}")


def _unless_ours(path: str, error: BaseException) -> BaseException:
    """What to raise for an error while a claim begins: ours and interrupts as they are."""
    if isinstance(error, DdflowError) or not isinstance(error, OSError):
        return error
    return failure(path, error, "open an engine", 1) if error.errno in NO_ROOM else _refused(path, error)


def _refused(given: Any, error: Exception) -> SpillRefused:
    """The refusal of a folder that cannot be opened, or not written."""
    asked = f"spill to {given!r}" if not isinstance(given, str) else f"spill to {given}"
    if isinstance(error, FileNotFoundError):
        return SpillRefused(asked, "there is no such folder", "create it first, as mkdir -m 700 does")
    if isinstance(error, NotADirectoryError):
        return SpillRefused(asked, "it is no folder", "give a folder")
    why = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return SpillRefused(asked, f"it cannot be used ({why})", "give a folder that you may read and write")


def _after_fork() -> None:
    for claim in list(_claims):
        claim.disown()


os.register_at_fork(after_in_child=_after_fork)
