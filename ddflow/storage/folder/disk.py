"""Wrap the system calls of a local store, and count and hash the bytes that are written to a file.

Guarantees: each method of `Disk` is one file system operation and raises `OSError`, so a test can replace any
operation. A `FileWriter` writes all bytes in order, and computes their size and checksum.

>>> import tempfile
>>> with tempfile.TemporaryDirectory() as place:
...     disk, path = Disk(), os.path.join(place, "a")
...     file = disk.create(path, 0o600)
...     disk.write(file, b"four"), disk.fsync(file), disk.close(file), disk.sync_dir(place)
...     disk.read(path, 10), disk.names(place), oct(disk.status(path).mode)
(4, None, None, None)
(b'four', ['a'], '0o600')
"""

import errno
import os
import resource
import stat
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final, NamedTuple

import pyarrow as pa
import xxhash

NO_ROOM: Final = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
_FLAGS = os.O_NOFOLLOW | os.O_CLOEXEC


class FileStatus(NamedTuple):
    """The status of a path.

    ``kind``: "folder", "file" or "other". ``changed``: the time of its last write, in seconds.
    """

    kind: str
    mode: int
    user: int
    size: int
    changed: float


class Disk:
    """The file system operations of this machine.

    A `Disk` has no state, so all stores of a process may share one. Every method raises `OSError`.
    """

    def resolve_path(self, path: str) -> str:
        """Return a path as an absolute path without symbolic links. O(parts)."""
        return os.path.realpath(path)

    def status(self, path: str, follow: bool = False) -> FileStatus:
        """Return the kind, mode, user, size and time of change of a path. O(1)."""
        found = os.stat(path, follow_symlinks=follow)
        kind = "folder" if stat.S_ISDIR(found.st_mode) else "file" if stat.S_ISREG(found.st_mode) else "other"
        return FileStatus(kind, stat.S_IMODE(found.st_mode), found.st_uid, found.st_size, found.st_mtime)

    def mkdir(self, path: str, mode: int) -> None:
        """Create a folder with exactly this mode. The umask has no effect. O(1)."""
        os.mkdir(path, mode)
        os.chmod(path, mode)

    def names(self, path: str) -> list[str]:
        """List the names in a folder, in any order. O(names)."""
        return os.listdir(path)

    def scan(self, path: str) -> list[tuple[str, int, float]]:
        """List the name, length and time of change of every regular file in a folder, in any order. O(names)."""
        found = []
        with os.scandir(path) as entries:
            for entry in entries:
                with suppress(FileNotFoundError):  # deleted during the scan
                    if entry.is_file(follow_symlinks=False):
                        state = entry.stat(follow_symlinks=False)
                        found.append((entry.name, state.st_size, state.st_mtime))
        return found

    def create(self, path: str, mode: int) -> int:
        """Create a file with exactly this mode, and return its descriptor, open for writing. O(1)."""
        file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | _FLAGS, mode)
        try:
            os.fchmod(file, mode)
        except BaseException:
            os.close(file)
            raise
        return file

    def write(self, file: int, data: Any) -> int:
        """Append bytes, and return the number of bytes written. The system may write fewer bytes than requested.

        O(bytes).
        """
        return os.write(file, data)

    def fsync(self, file: int) -> None:
        """Make the bytes of a file durable, but not its name."""
        os.fsync(file)

    def close(self, file: int) -> None:
        """Close a descriptor. The descriptor is closed even if the call raises an error."""
        os.close(file)

    def link(self, source: str, target: str) -> None:
        """Give a file a second name, as a hard link. O(1). Raises `FileExistsError` if the name is taken."""
        os.link(source, target, follow_symlinks=False)

    def rename(self, source: str, target: str) -> None:
        """Rename a file within its folder, and replace any file that has the new name. O(1)."""
        os.rename(source, target)

    def touch(self, path: str) -> None:
        """Set a file's time of change to now. O(1)."""
        os.utime(path, follow_symlinks=False)

    def unlink(self, path: str) -> None:
        """Remove a name. A process that has mapped the file can still read the bytes. O(1)."""
        os.unlink(path)

    def sync_dir(self, path: str) -> None:
        """Make all changes of the names in a folder durable."""
        folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY | _FLAGS)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)

    def read(self, path: str, most: int) -> bytes:
        """Read the bytes of a file. O(bytes).

        Raises ``EFBIG``, before any read, for a file longer than ``most`` bytes.
        """
        file = os.open(path, os.O_RDONLY | os.O_NONBLOCK | _FLAGS)  # opening a pipe would wait for its writer
        try:
            found = os.fstat(file)
            if not stat.S_ISREG(found.st_mode):
                raise OSError(errno.EINVAL, "not a regular file", path)
            if found.st_size > most:
                raise OSError(errno.EFBIG, os.strerror(errno.EFBIG), path)
            pieces = []
            while piece := os.read(file, min(most, 1 << 24)):
                pieces.append(piece)
            return b"".join(pieces)
        finally:
            os.close(file)

    def map_file(self, path: str) -> pa.Buffer:
        """Map the bytes of a file. O(1).

        No descriptor stays open, so thousands of files may be mapped.
        """
        if self.status(path).kind != "file":
            raise OSError(errno.EINVAL, "not a regular file", path)
        with pa.memory_map(path) as source:
            return source.read_buffer()

    def count_free_bytes(self, path: str) -> int:
        """Return the number of free bytes on the disk. O(1)."""
        found = os.statvfs(path)
        return found.f_bavail * found.f_frsize

    def read_clock(self) -> float:
        """Return the time of the clock that sets `FileStatus.changed`, in seconds."""
        return time.time()


def describe_full_disk(error: OSError, free: Callable[[], int]) -> tuple[str, str]:
    """Describe a disk error whose code is in `NO_ROOM`. Return the problem and the remedy. O(1).

    ``free``: a function that returns the free bytes of the disk.
    """
    why = f"the disk says {error.strerror or str(error)!r}"
    if error.errno == errno.EFBIG:
        most = resource.getrlimit(resource.RLIMIT_FSIZE)[0]
        if most == resource.RLIM_INFINITY:
            return f"{why}: its file system allows no file of this size", "use a folder on another file system"
        found = f"{why}: this process may write files of {most:,} bytes at most"
        return found, "raise the limit (ulimit -f, RLIMIT_FSIZE)"
    try:
        return f"{why}, {free():,} bytes are free", "free space"
    except OSError as other:
        return f"{why}, its free bytes are unknown ({other.strerror})", "free space"


SLICE: Final = 1 << 20
"""The number of bytes that are hashed and written in one step."""
CRUMBS: Final = 1 << 16
"""The maximum number of bytes that are buffered and then written together."""


class FileWriter:
    """A sink that buffers, counts and hashes the bytes of a file.

    ``take``: a function that writes the beginning of a piece and returns the number of bytes written; it may raise
    `OSError`. ``size``: the number of bytes so far. ``wanted``: the least number of bytes that the caller expects, for
    messages. ``failure``: the last error of ``take``.

    >>> pieces = []
    >>> sink = FileWriter(lambda piece: pieces.append(bytes(piece)) or len(piece))
    >>> sink.write(b"four"), sink.write(pa.py_buffer(b"more")), sink.finish()
    (4, 4, None)
    >>> pieces, sink.size, sink.state.digest() == xxhash.xxh3_128(b"fourmore").digest()
    ([b'fourmore'], 8, True)
    """

    closed = False

    def __init__(self, take: Callable[[memoryview], int]) -> None:
        self.size, self.wanted, self.state = 0, 0, xxhash.xxh3_128()
        self.failure: OSError | None = None
        self._take, self._crumbs = take, bytearray()

    def write(self, data: bytes | bytearray | memoryview | pa.Buffer) -> int:
        """Write all bytes of a buffer, with as many calls of ``take`` as necessary."""
        with memoryview(data) as view, view.cast("B") as whole:
            if len(self._crumbs) + whole.nbytes <= CRUMBS:
                self._crumbs += whole
            else:
                self.finish()
                for begin in range(0, whole.nbytes, SLICE):
                    self._write_all(whole[begin : begin + SLICE])
            self.size += whole.nbytes
            return whole.nbytes

    def finish(self) -> None:
        """Write the buffered bytes. A second call is harmless."""
        if self._crumbs:
            crumbs, self._crumbs = self._crumbs, bytearray()
            with memoryview(crumbs) as whole:
                self._write_all(whole)

    def _write_all(self, piece: memoryview) -> None:
        self.state.update(piece)
        done = 0
        try:
            while done < piece.nbytes:
                done += self._take(piece[done:])
        except OSError as error:
            self.failure = error
            raise

    def tell(self) -> int:
        """Return the number of bytes that were passed to `write` so far."""
        return self.size

    def flush(self) -> None:
        """Do nothing, because `finish` writes the buffered bytes."""

    def close(self) -> None:
        """Do nothing, because the caller closes the file."""
