"""Keep blobs in a local folder without durability, for steps that do not fit in memory.

Guarantees: a scratch store syncs nothing. When the store closes or the process exits, the files of the store are
removed. After a crash, the next process that locks the folder removes the files. Only one store at a time holds the
lock.
"""

from __future__ import annotations

import fcntl
import os
import re
import stat
import weakref
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, ClassVar, Final, Self

import pyarrow as pa

from ddflow.errors import CorruptState, DdflowError, EngineClosed, SpillFailed, SpillFull, SpillInUse, SpillRefused
from ddflow.storage import address
from ddflow.storage.folder.disk import NO_ROOM, Disk, describe_full_disk
from ddflow.storage.folder.site import ManagedFolder
from ddflow.storage.protocol import NAME, Blob, BlobStore, Content, check_length, missing_file_error, verify_bytes


class BlobFolder(BlobStore):
    """A store of blobs in a folder of the local disk. Each blob is a file that is written once and then mapped.

    The stores of a state's folder and of a scratch folder extend this class. When `put` returns, the file is complete,
    and durable if the folder is durable (`ManagedFolder.durable`). A `put` that fails leaves no file.

    ``site``: the open folder. ``below``: the subfolder of the files. ``first``: the number of the first file.
    """

    pattern: ClassVar[re.Pattern[str]] = NAME

    def __init__(self, site: ManagedFolder, *below: str, first: int = 0) -> None:
        super().__init__(site.path, first)
        self.site, self._folder = site, site.child_path(*below)

    @property
    def disk(self) -> Disk:
        """The disk of the folder."""
        return self.site.disk

    def put(self, ending: str, content: Content) -> Blob:
        """Write a new blob to a new file, as `BlobStore.put` does. O(bytes), without a second copy in memory."""
        name = self._make_blob_name(ending)
        sink = self.site.write_file(f"{self._folder}/{name}", f"write the file {name}", content)
        return Blob(name, sink.size, sink.state.digest())

    def map_blob(self, blob: Blob, check: bool = True) -> pa.Buffer:
        """Map the file of a blob, as `BlobStore.map_blob` does. O(bytes), because the checksum is verified.

        No descriptor stays open.
        """
        with self.site.translate_read_errors(
            f"file {blob.name}", missing_file_error(blob.name, self.where), self.remedy
        ):
            whole = self._map_file(blob.name)
            return (
                verify_bytes(whole, blob, self.where, self.remedy) if check else check_length(whole, blob, self.where)
            )

    def delete(self, name: str) -> None:
        """Unlink a blob. O(1), without a sync, so the file may reappear after a power failure."""
        self._check_writable()
        self.site.unlink(self._blob_path(name), f"delete the file {name}")

    def _map_file(self, name: str) -> pa.Buffer:
        return self.disk.map_file(self._blob_path(name))

    def _blob_path(self, name: str) -> str:
        if not self.pattern.fullmatch(name):  # inline, because a commit checks about twenty names
            raise ValueError(f"{name!r} is not the name of a blob")
        return f"{self._folder}/{name}"


LOCK: Final = "ddflow-spill.lock"
PREFIX: Final = "ddflow-"
"""The prefix of ddflow's files in a scratch folder. The folder may also contain other files."""
OURS: Final = re.compile(rf"{PREFIX}[0-9a-f]{{16}}-[0-9]{{1,12}}\.arrow")
_FLAGS = os.O_NOFOLLOW | os.O_CLOEXEC
_locks: weakref.WeakSet[FolderLock] = weakref.WeakSet()


class FolderLock:
    """The lock of a scratch folder. The constructor takes the lock, and removes the files that a crash left.

    ``path``: the absolute path of the folder. ``whole``: whether `release` also removes the folder.

    O(files). Raises `SpillRefused`, `SpillInUse`, `SpillFull` or `SpillFailed`. The folder is unchanged after these
    errors.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as place:
    ...     lock = FolderLock(place)
    ...     os.listdir(place)
    ...     lock.release()
    ...     os.listdir(place)
    ['ddflow-spill.lock']
    []
    """

    def __init__(self, given: Any, whole: bool = False) -> None:
        address.require_folder(given, "spill to", SpillRefused)
        self.whole, self.held = whole, False
        try:
            found = os.stat(os.fsdecode(given))
            if not stat.S_ISDIR(found.st_mode):
                raise NotADirectoryError
        except (OSError, TypeError, ValueError) as error:
            raise _folder_error(given, error) from None
        self.path = os.path.realpath(os.fsdecode(given))
        self._name = os.path.join(self.path, LOCK)
        _check_folder(self.path, found)
        try:
            self._file = self._open_lock_file()
            self.held = True
            _locks.add(self)
            self._remove_files()
        except OSError as error:
            self.release()
            if isinstance(error, DdflowError):
                raise
            if error.errno in NO_ROOM:
                raise build_spill_failure(self.path, "open an engine", error, 1) from None
            raise _folder_error(self.path, error) from None

    def check_held(self) -> None:
        """Raise `EngineClosed` if the lock was released."""
        if not self.held:
            raise EngineClosed(f"spill to {self.path}", "the folder was closed", "open a new engine")

    def release(self) -> None:
        """Remove ddflow's files from the folder, then the lock. A second call is harmless.

        Errors are ignored, because the next process that locks the folder removes remaining files.
        """
        if not self.held:
            return
        self.held = False
        with suppress(OSError):
            self._remove_files()
        self._unlock(self._file)
        if self.whole:
            with suppress(OSError):
                os.rmdir(self.path)

    def release_in_child(self) -> None:
        """Release the lock in a forked child process. The folder is unchanged, because the parent process uses it."""
        if self.held:
            self.held = False
            os.close(self._file)

    def _open_lock_file(self) -> int:
        """Open the lock file, lock it, and return its descriptor. Raises `SpillInUse`.

        The call writes the process number to the file. The write also tests the disk, because permissions do not show
        that a file system is read-only or full.
        """
        while True:
            file = os.open(self._name, os.O_RDWR | os.O_CREAT | _FLAGS, 0o600)
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                # The previous holder may have unlinked the lock file after this process opened it and before it was
                # locked.
                if self._is_current_lock_file(file):
                    os.ftruncate(file, 0)
                    os.write(file, f"{os.getpid()}\n".encode())
                    return file
            except BlockingIOError:
                holder = os.pread(file, 20, 0).decode("ascii", "replace").strip() or "unknown"
                os.close(file)
                raise SpillInUse(
                    f"spill to {self.path}",
                    f"an engine of process {holder} holds it",
                    "close that engine, or use a separate folder for this one",
                ) from None
            except BaseException:
                self._unlock(file)
                raise
            os.close(file)

    def _unlock(self, file: int) -> None:
        """Remove the lock file while it is locked, then close it, which releases the lock."""
        with suppress(OSError):
            if self._is_current_lock_file(file):
                os.unlink(self._name)
        os.close(file)

    def _is_current_lock_file(self, file: int) -> bool:
        try:
            return os.path.samestat(os.fstat(file), os.stat(self._name, follow_symlinks=False))
        except FileNotFoundError:
            return False

    def _remove_files(self) -> None:
        """Remove all regular files whose names match `OURS`."""
        with os.scandir(self.path) as entries:
            for entry in entries:
                if OURS.fullmatch(entry.name) and entry.is_file(follow_symlinks=False):
                    os.unlink(entry.path)


def _check_folder(path: str, state: os.stat_result) -> None:
    """Check that the folder belongs to this user, and that only this user can write to it. Raises `SpillRefused`."""
    mode, own = stat.S_IMODE(state.st_mode), "use a folder that belongs to you"
    if state.st_uid != os.geteuid():
        raise SpillRefused(f"spill to {path}", f"it belongs to user {state.st_uid}, not to {os.geteuid()}", own)
    if mode & stat.S_IWOTH:
        raise SpillRefused(
            f"spill to {path}",
            f"its mode is {mode:o}, so any user may write to it",
            f"{own}, created with mkdir -m 700",
        )
    # Check the mode too: the superuser can write to a folder even if its mode forbids writing.
    if not mode & stat.S_IWUSR or not os.access(path, os.R_OK | os.W_OK | os.X_OK):
        raise SpillRefused(
            f"spill to {path}", f"it is read-only (mode {mode:o})", "make it writable, or use another folder"
        )


def build_spill_failure(path: str, what: str, error: OSError, wanted: int) -> DdflowError:
    """Build the error for a write that the disk refused. ``wanted``: the number of bytes of the write."""
    asked, why = f"{what} in the spill folder {path}", f"the disk says {error.strerror or str(error)!r}"
    after = "and call again; nothing was changed, and the earlier state stays readable"
    if error.errno not in NO_ROOM:
        return SpillFailed(asked, why, f"fix the disk or its folder {after}")
    found, remedy = describe_full_disk(error, lambda: Disk().count_free_bytes(path))
    return SpillFull(asked, f"{wanted:,} bytes were needed, {found}", f"{remedy} {after}")


def _folder_error(given: Any, error: Exception) -> SpillRefused:
    """Build the error for a folder that cannot be opened or written."""
    asked = f"spill to {given!r}" if not isinstance(given, str) else f"spill to {given}"
    if isinstance(error, FileNotFoundError):
        return SpillRefused(asked, "there is no such folder", "create it first, with mkdir -m 700")
    if isinstance(error, NotADirectoryError):
        return SpillRefused(asked, "it is not a folder", "use a folder")
    why = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return SpillRefused(asked, f"it cannot be used ({why})", "use a folder that you may read and write")


def _release_locks_after_fork() -> None:
    for lock in list(_locks):
        lock.release_in_child()


os.register_at_fork(after_in_child=_release_locks_after_fork)


TRIES: Final = 5
_FOLDER = re.compile(r"[0-9a-f]{16}")
_DISK = Disk()


class ScratchStore(BlobFolder):
    """A scratch store in an existing folder of this user.

    ``path``: the folder. ``whole``: whether `close` also removes the folder.

    Several threads may write at once. The constructor is O(files that a crash left). Raises `SpillRefused` if the path
    is missing or not a folder, or if the folder is another user's, writable by all or read-only. Raises `SpillInUse` if
    another store holds the lock, and `SpillFull` if the disk cannot store one byte. `put` raises `SpillFull`,
    `SpillFailed`, and `EngineClosed` after `close`.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as place:
    ...     store = ScratchStore(place)
    ...     blob = store.put("arrow", b"four")
    ...     store.map_blob(blob).to_pybytes(), len(os.listdir(place))
    ...     store.close()
    ...     os.listdir(place)
    (b'four', 2)
    []
    """

    pattern, prefix = OURS, PREFIX
    remedy = "fix the disk or the memory, and replay the log into a new state"

    def __init__(self, path: Any, whole: bool = False) -> None:
        self._lock = FolderLock(path, whole)
        self._end = weakref.finalize(self, self._lock.release)
        super().__init__(_ScratchFolder(_DISK, self._lock.path, "owner", "the spill folder", durable=False))

    @classmethod
    def create_below(cls, spill: str) -> Self:
        """Open a store in a new private folder below ``spill``. `close` removes the folder. O(1).

        Also raises `OSError`.
        """
        for left in reversed(range(TRIES)):
            path = os.path.join(spill, os.urandom(8).hex())
            _DISK.mkdir(path, 0o700)
            try:
                return cls(path, whole=True)
            except (SpillInUse, SpillRefused):  # another process has just removed the folder as stale
                if not left:
                    raise
        raise AssertionError

    def close(self) -> None:
        """Remove every file of the store. Later calls of `put` fail. Blobs that are mapped already stay readable.

        A second call is harmless.
        """
        self._end()

    def _check_writable(self) -> None:
        self._lock.check_held()


def remove_stale_folders(spill: str) -> None:
    """Remove the scratch folders of stores that have ended. O(files).

    A folder that cannot be removed is skipped, and a later call tries to remove it again.
    """
    for name in os.listdir(spill):
        if _FOLDER.fullmatch(name):
            with suppress(OSError):  # a store holds the lock, or the folder is another user's
                FolderLock(os.path.join(spill, name), whole=True).release()


class _ScratchFolder(ManagedFolder):
    """A scratch folder. Errors of a scratch folder do not affect the state, so a failed call may be repeated."""

    def build_failure(self, what: str, error: OSError, wanted: int = 0) -> DdflowError:
        return build_spill_failure(self.path, what, error, wanted)

    @contextmanager
    def translate_read_errors(self, what: str, missing: CorruptState, remedy: str) -> Iterator[None]:
        with self.translate_disk_errors(f"map the {what}"):
            yield
