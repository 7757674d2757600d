"""Find or create a folder for ddflow's files (a state, outputs or a cache), and check it before use.

Guarantees: a state is never created in a folder with other files. Before its first commit, a writer tests that the file
system creates names exclusively, and syncs the folder of manifests.

>>> import tempfile
>>> with tempfile.TemporaryDirectory() as above:
...     site = ManagedFolder(Disk(), os.path.join(above, "all", "orders"), "owner", "the state")
...     site.create_folder()
...     sink = site.write_file(site.child_path("a"), "write a", b"four")
...     site.disk.sync_dir(site.path)
...     site.check_folder(site.path), site.disk.read(site.child_path("a"), 10), sink.size
(None, b'four', 4)
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from types import TracebackType
from typing import Any, Final

from ddflow.errors import CorruptState, DdflowError, StateRefused, StorageFailed, StorageFull
from ddflow.storage.folder.disk import NO_ROOM, Disk, FileWriter, describe_full_disk
from ddflow.storage.protocol import Content

TEMPORARY: Final = re.compile(r"\.[0-9a-f]{16}-[0-9]{1,12}\.part")
HOUR: Final = 3600.0
"""The seconds after which a temporary file counts as abandoned.

Normally a temporary file exists only while a manifest is written.
"""
NOT_OURS: Final = {
    errno.EACCES,
    errno.EPERM,
    errno.EROFS,
    errno.ENOTDIR,
    errno.ELOOP,
    errno.ENAMETOOLONG,
    errno.EINVAL,
    errno.ENOTSUP,
}
"""Error codes of the disk which mean that ddflow cannot use a folder."""
_NO_FILE = {errno.EINVAL, errno.ELOOP, errno.EISDIR, errno.ENXIO, errno.EFBIG}


class DiskErrorTranslator:
    """A context manager that converts errors of the disk to errors of ddflow.

    Each commit uses about twenty of these context managers, and a class is faster than a generator.
    """

    __slots__ = ("opening", "site", "what")

    def __init__(self, site: ManagedFolder, what: str, opening: bool) -> None:
        self.site, self.what, self.opening = site, what, opening

    def __enter__(self) -> None:
        """Enter the block."""

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        if not isinstance(error, OSError) or isinstance(error, DdflowError):
            return
        if self.opening and error.errno in NOT_OURS:
            why = f"it cannot be used ({error.strerror}: {error.filename})"
            raise self.site.build_refusal(why, "use a folder that you may read and write") from None
        raise self.site.build_failure(self.what, error) from None


class ManagedFolder:
    """A folder in which ddflow stores files.

    ``path``: the absolute path. ``trust``: "owner", or "group" if other users may write to it. ``what``: the use of the
    folder, for messages. ``durable``: whether files are synced.
    """

    def __init__(self, disk: Disk, path: Any, trust: str, what: str, durable: bool = True) -> None:
        self.disk, self.trust, self.what, self.durable = disk, trust, what, durable
        try:
            self.path = os.path.abspath(os.fsdecode(path))
            if "\0" in self.path:
                raise ValueError("embedded null byte")
        except (TypeError, ValueError) as error:
            raise StateRefused(f"open {what} {path!r}", f"that is not a path ({error})", "pass a folder") from None
        if trust not in ("owner", "group"):
            raise self.build_refusal(f"trust is {trust!r}", "pass 'owner' or 'group'")
        self.folder_mode, self.file_mode = (0o770, 0o660) if trust == "group" else (0o700, 0o600)

    def child_path(self, *names: str) -> str:
        """Return the path of a name in the folder."""
        return "/".join((self.path, *names))

    def build_refusal(self, found: str, remedy: str) -> StateRefused:
        """Build the error for a folder that cannot be opened."""
        return StateRefused(f"open {self.what} {self.path}", found, remedy)

    def translate_disk_errors(self, what: str, opening: bool = False) -> DiskErrorTranslator:
        """Return a context manager that converts errors of the disk to errors of ddflow.

        Other errors are raised unchanged.
        """
        return DiskErrorTranslator(self, what, opening)

    def build_failure(self, what: str, error: OSError, wanted: int = 0) -> DdflowError:
        """Build the error for an operation that the disk refused.

        ``what``: the operation, for the message. ``wanted``: the bytes that the operation needs.
        """
        asked = f"{what}, in {self.what} {self.path}"
        if error.errno not in NO_ROOM:
            why = error.strerror or str(error)
            return StorageFailed(asked, f"the disk says {why!r}", "fix the disk, and open the state again")
        found, remedy = describe_full_disk(error, lambda: self.disk.count_free_bytes(self.path))
        return StorageFull(asked, found, f"{remedy}, and open the state again")

    @contextmanager
    def translate_read_errors(self, what: str, missing: CorruptState, remedy: str) -> Iterator[None]:
        """Convert errors of the disk while a file is read.

        Raises `CorruptState` if the path is missing or not a file, `StorageFailed` if the disk fails.
        """
        with self.translate_disk_errors(f"read {what}"):
            try:
                yield
            except FileNotFoundError:
                raise missing from None
            except OSError as error:
                if error.errno not in _NO_FILE:
                    raise
                raise CorruptState(
                    f"the {what} of {self.path}",
                    f"it cannot be read ({error.strerror})",
                    f"ddflow did not write it; {remedy}",
                ) from None

    def write_file(self, path: str, what: str, content: Content) -> FileWriter:
        """Write a new file, sync its bytes but not its name, and return the `FileWriter`.

        ``content``: as for `BlobStore.put`. After an error no file is left. O(bytes), and a sync if the folder is
        ``durable``. Raises the errors of `build_failure` and of ``content``.
        """
        try:
            file = self.disk.create(path, self.file_mode)
        except OSError as error:
            raise self.build_failure(what, error) from None
        sink = FileWriter(partial(self.disk.write, file))
        try:
            try:
                content(sink) if callable(content) else sink.write(content)
                sink.finish()
            except BaseException:
                if sink.failure is None:
                    raise
            if sink.failure is not None:  # even if Arrow replaced or swallowed the error
                # The traceback of the error refers to Arrow's writer, which refers to the sink. Python cannot collect
                # this cycle of references.
                failure, sink.failure = sink.failure, None
                raise self.build_failure(what, failure, max(sink.wanted, sink.size)) from None
            try:
                if self.durable:
                    self.disk.fsync(file)
                file, done = -1, file
                self.disk.close(done)
            except OSError as error:
                raise self.build_failure(what, error) from None
        except BaseException:
            if file >= 0:
                with contextlib.suppress(OSError):
                    self.disk.close(file)
            self.try_unlink(path)
            raise
        return sink

    def unlink(self, path: str, what: str) -> None:
        """Unlink a file, or do nothing if it is missing. O(1)."""
        try:
            self.disk.unlink(path)
        except FileNotFoundError:
            return
        except OSError as error:
            raise self.build_failure(what, error) from None

    def try_unlink(self, path: str) -> None:
        """Unlink a file that is no longer needed. Errors are ignored, because a remaining file is only garbage."""
        with contextlib.suppress(OSError):
            self.disk.unlink(path)

    def remove_stale_temporaries(self, folder: str) -> None:
        """Remove the temporary files that ended writers have left. O(names). Never fails."""
        with contextlib.suppress(OSError):
            if any(TEMPORARY.fullmatch(name) for name in self.disk.names(folder)):
                for name, _, changed in self.disk.scan(folder):
                    if TEMPORARY.fullmatch(name) and self.disk.read_clock() - changed > HOUR:
                        self.disk.unlink(f"{folder}/{name}")

    def create_folder(self) -> None:
        """Create the folder and its missing parents. Only the names of the parents are durable afterwards.

        Each folder is synced before the next folder is created. O(parts). Raises `OSError`.
        """
        missing, path = list[str](), self.path
        while not self.is_existing_path(path):
            missing.append(path)
            path = os.path.dirname(path)
        for path in reversed(missing):
            self.sync_parent_folder(os.path.dirname(path))  # its creator may have crashed before its sync
            with contextlib.suppress(FileExistsError):
                self.disk.mkdir(path, self.folder_mode)

    def is_existing_path(self, path: str) -> bool:
        """Return whether a path exists. O(1)."""
        try:
            self.disk.status(path)
        except FileNotFoundError:
            return False
        return True

    def sync_parent_folder(self, path: str) -> None:
        """Sync the parent folder if possible. The parent may belong to another user or another disk."""
        try:
            self.disk.sync_dir(os.path.dirname(path))
        except OSError as error:
            if error.errno not in NOT_OURS:
                raise

    def check_folder(self, path: str) -> None:
        """Check that ``path`` is a folder of this user, and that other users cannot write to it. Raises `StateRefused`.

        O(1).
        """
        found = self.disk.status(path)
        if found.kind != "folder":
            raise self.build_refusal(f"{path} is not a folder, or it is a link to a folder", "use a real folder")
        own = "use a folder that belongs to you, or trust='group' if all who can write to it may change the state"
        if self.trust == "owner" and found.user != os.geteuid():
            raise self.build_refusal(f"{path} belongs to user {found.user}, not to {os.geteuid()}", own)
        if self.trust == "owner" and found.mode & 0o022:
            raise self.build_refusal(
                f"the mode of {path} is {found.mode:o}, so other users may change it", f"run chmod go-w on it, {own}"
            )


INSIDE: Final = ("blobs", "marks", "manifests")


class StateFolder(ManagedFolder):
    """The folder of a state.

    ``path``: the path, without symbolic links after `open_folder`. ``trust``: "owner", or "group" if other users may
    write to the folder.

    >>> import os, tempfile
    >>> with tempfile.TemporaryDirectory() as above:
    ...     place = StateFolder(Disk(), os.path.join(above, "orders"), "owner")
    ...     place.open_folder(create=True, readonly=False)
    ...     sorted(os.listdir(place.path))
    ['blobs', 'manifests', 'marks']
    """

    def __init__(self, disk: Disk, path: Any, trust: str) -> None:
        super().__init__(disk, path, trust, "the state")

    def open_folder(self, create: bool, readonly: bool) -> None:
        """Check the folder, and create its missing parts if ``create`` is True.

        O(names), and a few syncs for a new folder.

        Raises `StateRefused` if the folder has no state or cannot be trusted, `StorageFull`, `StorageFailed`.
        """
        with self.translate_disk_errors("open it", opening=True):
            self.path = self.disk.resolve_path(self.path)
            if not self.is_existing_path(self.path):
                self._refuse_missing_state(create and not readonly)
                self.create_folder()
            self.check_folder(self.path)
            names = self.disk.names(self.path)
            if "manifests" not in names:
                self._refuse_missing_state(create and not readonly)
                self._refuse_nonempty_folder(names)
            for name in names:
                if name in (*INSIDE, "spill"):
                    self.check_folder(self.child_path(name))
            if not readonly:
                self._create_subfolders(names)

    def prove_exclusive_publish(self, nonce: str) -> None:
        """Test that only one of two writers can publish.

        Links two files to one name, and checks that the second link fails. O(1). Syncs the folder of manifests, so
        earlier manifests are durable even if their writer crashed before its sync. Raises `StateRefused` if the test of
        exclusive publishing fails, `StorageFull`, `StorageFailed`.
        """
        folder = self.child_path("manifests")
        first, second, target = (f"{folder}/.{nonce}-{i}.part" for i in range(3))
        remedy = "use a folder on a local file system, or another kind of store"
        try:
            with self.translate_disk_errors("prove that one writer wins", opening=True):
                for path in (first, second):
                    self.disk.close(self.disk.create(path, self.file_mode))
                try:
                    self.disk.link(first, target)
                    with contextlib.suppress(FileExistsError):
                        self.disk.link(second, target)
                        raise self.build_refusal("its file system lets two writers publish under one name", remedy)
                except OSError as error:
                    if isinstance(error, DdflowError) or error.errno in (*NO_ROOM, errno.EIO):
                        raise
                    raise self.build_refusal(f"its file system cannot link files ({error.strerror})", remedy) from None
        finally:
            for path in (first, second, target):
                with contextlib.suppress(OSError):
                    self.disk.unlink(path)
        with self.translate_disk_errors("sync its manifests"):
            self.disk.sync_dir(folder)

    def _refuse_missing_state(self, wanted: bool) -> None:
        if not wanted:
            raise self.build_refusal("there is no state", "use the folder of a state, or create the state first")

    def _refuse_nonempty_folder(self, names: list[str]) -> None:
        """Check that the folder is empty, or has only files from a creation that crashed. Raises `StateRefused`."""
        full = [name for name in names if name not in INSIDE or self.disk.names(self.child_path(name))]
        if full and "manifests" not in self.disk.names(self.path):  # unless another writer has just created the state
            raise self.build_refusal(
                f"there is no state, and it is not empty ({', '.join(sorted(full)[:3])})",
                "use an empty folder, or one that does not exist yet",
            )

    def _create_subfolders(self, names: list[str]) -> None:
        """Create the subfolders. The folder of manifests comes last, because a folder with this subfolder is a state.

        While the state has no manifest, each writer syncs the folder, because the process that created the folder may
        have crashed before its sync.
        """
        missing = [name for name in INSIDE if name not in names]
        for name in missing:
            with contextlib.suppress(FileExistsError):
                self.disk.mkdir(self.child_path(name), self.folder_mode)
        if missing or all(name.startswith(".") for name in self.disk.names(self.child_path("manifests"))):
            self.disk.sync_dir(self.path)
            self.sync_parent_folder(self.path)
