"""The folder of a state: found or made, looked at before it is trusted, and put to the proof.

Invariant: once `enter` returns, the folder and those in it are there, durable, folders and not links, and nobody writes
to them but who was to be trusted.  A process may have been killed half way through making it, or between publishing
and syncing, and what the next one reads there and builds on has to be as durable as its own; a folder that is somebody
else's work must not be littered; and a file system may take a link onto a name that is taken, or know no links, upon
which two writers would both win.  It does not know what is stored.

>>> import os, tempfile
>>> with tempfile.TemporaryDirectory() as above:
...     place = StateFolder(Disk(), os.path.join(above, "orders"), "owner")
...     place.enter(create=True, readonly=False)
...     sorted(os.listdir(place.path))
['blobs', 'manifests', 'marks']
"""

import contextlib
import errno
from typing import Any, Final

from ddflow.errors import DdflowError
from ddflow.storage.disk import NO_ROOM, Disk
from ddflow.storage.site import Site

INSIDE: Final = ("blobs", "marks", "manifests")


class StateFolder(Site):
    """``path``: of the folder, absolute once entered.  ``trust``: "owner", or "group" where others may write too."""

    def __init__(self, disk: Disk, path: Any, trust: str) -> None:
        super().__init__(disk, path, trust, "the state")

    def enter(self, create: bool, readonly: bool) -> None:
        """Check the folder, and create the missing parts if ``create``.  O(its names); a few syncs when it is new.

        Raises `StateRefused` if there is no state or it cannot be trusted, `StorageFull`, `StorageFailed`.
        """
        with self.guarded("open it", opening=True):
            self.path = self.disk.real(self.path)
            if not self.is_there(self.path):
                self._must_be_wanted(create and not readonly)
                self.make()
            self.look(self.path)
            names = self.disk.names(self.path)
            if "manifests" not in names:
                self._must_be_wanted(create and not readonly)
                self._must_be_empty(names)
            for name in names:
                if name in (*INSIDE, "spill"):
                    self.look(self.below(name))
            if not readonly:
                self._furnish(names)

    def prove(self, nonce: str) -> None:
        """Publish twice under one name, which must fail, so that only one of two writers can win.  O(1).

        Earlier manifests are durable afterwards, even if their writer died before its sync.
        Raises `StateRefused` if it cannot be done, `StorageFull`, `StorageFailed`.
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

    def _must_be_wanted(self, wanted: bool) -> None:
        if not wanted:
            raise self.refused("there is no state", "give the folder of one, or create it first")

    def _must_be_empty(self, names: list[str]) -> None:
        """Raise `StateRefused` unless the folder is empty, or holds what a crash left while it was made."""
        full = [name for name in names if name not in INSIDE or self.disk.names(self.below(name))]
        if full and "manifests" not in self.disk.names(self.path):  # unless another has just made it
            raise self.refused(
                f"there is no state, and it is not empty ({', '.join(sorted(full)[:3])})",
                "give an empty folder, or one that is not there yet",
            )

    def _furnish(self, names: list[str]) -> None:
        """Create the folders inside, and the folder of manifests last: it makes this folder a state.

        Every writer syncs all until there is a manifest, because the one that made it may have died before its sync.
        """
        missing = [name for name in INSIDE if name not in names]
        for name in missing:
            with contextlib.suppress(FileExistsError):
                self.disk.mkdir(self.below(name), self.folder_mode)
        if missing or all(name.startswith(".") for name in self.disk.names(self.below("manifests"))):
            self.disk.sync_dir(self.path)
            self.sync_above(self.path)
