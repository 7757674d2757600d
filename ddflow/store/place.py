"""The folder of a state: found or made, looked at before it is trusted, and put to the proof.

Invariant: once `enter` returns, the folder and those in it are there, durable, folders and not links, and nobody writes
to them but who was to be trusted.  Why that is not trivial: a process may have been killed half way through making it,
or between publishing and syncing, and what the next one reads there and builds on has to be as durable as its own; a
folder that is somebody else's work must not be littered; and a file system may take a link onto a name that is taken,
or know no links, upon which two writers would both win.  It does not know what is stored.

>>> import tempfile
>>> with tempfile.TemporaryDirectory() as above:
...     place = Place(Disk(), os.path.join(above, "orders"), "owner")
...     place.enter(create=True, readonly=False)
...     sorted(os.listdir(place.path))
['blobs', 'manifests', 'marks']
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

from ddflow.errors import DdflowError, StateRefused, StorageFailed, StorageFull
from ddflow.store.claim import NO_ROOM
from ddflow.store.disk import Disk

INSIDE: Final = ("blobs", "marks", "manifests")
TEMPORARY: Final = re.compile(r"\.[0-9a-f]{16}-[0-9]{1,12}\.part")
HOUR: Final = 3600.0
"""Seconds after which a temporary file is nobody's: it lives for as long as it takes to write one manifest."""

_NOT_OURS = {errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.ELOOP, errno.ENAMETOOLONG, errno.EINVAL,
             errno.ENOTSUP}  # fmt: skip


class Place:
    """``path``: of the folder, absolute once entered.  ``trust``: "owner", or "group" where others may write too."""

    def __init__(self, disk: Disk, path: Any, trust: str) -> None:
        try:
            self.path = os.path.abspath(os.fsdecode(path))
            if "\0" in self.path:
                raise ValueError("embedded null byte")
        except (TypeError, ValueError) as error:
            raise StateRefused(f"open the state {path!r}", f"that is no path ({error})", "give a folder") from None
        if trust not in ("owner", "group"):
            raise StateRefused(f"open the state {self.path}", f"trust is {trust!r}", "give 'owner' or 'group'")
        self.disk, self.trust = disk, trust
        self.folder_mode, self.file_mode = (0o770, 0o660) if trust == "group" else (0o700, 0o600)

    def enter(self, create: bool, readonly: bool) -> None:
        """Make what is missing of the folder if ``create``, and check it.  O(its names); a few syncs when it is new.

        Raises `StateRefused` when there is no state or it is not to be trusted, `StorageFull`, `StorageFailed`.
        """
        with self.guarded("open it", opening=True):
            self.path = self.disk.real(self.path)
            if not self._is_there(self.path):
                self._must_be_wanted(create and not readonly)
                self._make()
            self._look(self.path)
            names = self.disk.names(self.path)
            if "manifests" not in names:
                self._must_be_wanted(create and not readonly)
                self._must_be_empty(names)
            for name in names:
                if name in (*INSIDE, "spill"):
                    self._look(self.below(name))
            if not readonly:
                self._furnish(names)

    def below(self, *names: str) -> str:
        """The path of something in it."""
        return "/".join((self.path, *names))

    def refused(self, found: str, remedy: str) -> StateRefused:
        """The refusal to open it."""
        return StateRefused(f"open the state {self.path}", found, remedy)

    @contextmanager
    def guarded(self, what: str, opening: bool = False) -> Iterator[None]:
        """Whatever the disk refuses inside gets its error; others are as they are."""
        try:
            yield
        except DdflowError:
            raise
        except OSError as error:
            if opening and error.errno in _NOT_OURS:
                why = f"it cannot be used ({error.strerror}: {error.filename})"
                raise self.refused(why, "give a folder that you may read and write") from None
            raise self.failure(what, error) from None

    def failure(self, what: str, error: OSError) -> DdflowError:
        """What to raise when the disk refuses ``what``."""
        asked, why = f"{what}, in the state {self.path}", error.strerror or str(error)
        if error.errno not in NO_ROOM:
            return StorageFailed(asked, f"the disk says {why!r}", "mend it, and open the state again")
        try:
            free = f"{self.disk.free(self.path):,} bytes are free"
        except OSError as other:
            free = f"its free bytes cannot be told ({other.strerror})"
        return StorageFull(asked, f"the disk says {why!r}, {free}", "free space, and open the state again")

    def prove(self, nonce: str) -> None:
        """Publish twice under one name, which must fail, so that of two writers only one can win.  O(1).

        What was published before is durable afterwards, even if who did it died before his sync.
        Raises `StateRefused` where it cannot be done, `StorageFull`, `StorageFailed`.
        """
        folder = self.below("manifests")
        first, second, target = (f"{folder}/.{nonce}-{i}.part" for i in range(3))
        remedy = "give a folder on a local file system, or another kind of store"
        try:
            with self.guarded("prove that one writer wins", opening=True):
                for path in (first, second):
                    self.disk.close(self.disk.create(path, self.file_mode))
                try:
                    self.disk.link(first, target)
                    with contextlib.suppress(FileExistsError):
                        self.disk.link(second, target)
                        raise self.refused("its file system lets two writers publish under one name", remedy)
                except OSError as error:
                    if isinstance(error, DdflowError) or error.errno in (*NO_ROOM, errno.EIO):
                        raise
                    raise self.refused(f"its file system cannot link files ({error.strerror})", remedy) from None
        finally:
            for path in (first, second, target):
                with contextlib.suppress(OSError):
                    self.disk.unlink(path)
        with self.guarded("sync its manifests"):
            self.disk.sync_dir(folder)

    def sweep(self) -> None:
        """Remove temporary files of writers that are gone.  Never fails; O(names)."""
        folder = self.below("manifests")
        with contextlib.suppress(OSError):
            if any(TEMPORARY.fullmatch(name) for name in self.disk.names(folder)):
                for name, _, changed in self.disk.scan(folder):
                    if TEMPORARY.fullmatch(name) and self.disk.now() - changed > HOUR:
                        self.disk.unlink(f"{folder}/{name}")

    def _must_be_wanted(self, wanted: bool) -> None:
        if not wanted:
            raise self.refused("there is no state", "give the folder of one, or create it first")

    def _must_be_empty(self, names: list[str]) -> None:
        """Raise `StateRefused` unless there is nothing here, or what somebody left who died while making it."""
        full = [name for name in names if name not in INSIDE or self.disk.names(self.below(name))]
        if full and "manifests" not in self.disk.names(self.path):  # unless another has just made it
            raise self.refused(f"there is no state, and it is not empty ({', '.join(sorted(full)[:3])})",
                               "give an empty folder, or one that is not there yet")  # fmt: skip

    def _make(self) -> None:
        """Make the folder and those above it that are missing, each durable before the next; not the last."""
        missing, path = [], self.path
        while not self._is_there(path):
            missing.append(path)
            path = os.path.dirname(path)
        for path in reversed(missing):
            self._sync_above(os.path.dirname(path))  # whoever made that one may have died before he did
            with contextlib.suppress(FileExistsError):
                self.disk.mkdir(path, self.folder_mode)

    def _is_there(self, path: str) -> bool:
        try:
            self.disk.status(path)
        except FileNotFoundError:
            return False
        return True

    def _furnish(self, names: list[str]) -> None:
        """Make the folders inside, that of the manifests last, so that nobody takes it for a state before.

        All is synced by everybody until there is a manifest, as whoever made it may have died before he did.
        """
        missing = [name for name in INSIDE if name not in names]
        for name in missing:
            with contextlib.suppress(FileExistsError):
                self.disk.mkdir(self.below(name), self.folder_mode)
        if missing or all(name.startswith(".") for name in self.disk.names(self.below("manifests"))):
            self.disk.sync_dir(self.path)
            self._sync_above(self.path)

    def _sync_above(self, path: str) -> None:
        """Sync the folder that holds this one, where that can be done: it may be another's, on another disk."""
        try:
            self.disk.sync_dir(os.path.dirname(path))
        except OSError as error:
            if error.errno not in _NOT_OURS:
                raise

    def _look(self, path: str) -> None:
        """Raise `StateRefused` unless this is a folder, of this user, that nobody else can write to."""
        found = self.disk.status(path)
        if found.kind != "folder":
            raise self.refused(f"{path} is no folder, or a link to one", "give a folder of its own")
        own = "give a folder of your own, or trust='group' if those who can write there may change the state"
        if self.trust == "owner" and found.user != os.geteuid():
            raise self.refused(f"{path} belongs to user {found.user}, not to {os.geteuid()}", own)
        if self.trust == "owner" and found.mode & 0o022:
            raise self.refused(f"the mode of {path} is {found.mode:o}, so others may change it", f"chmod go-w, {own}")
