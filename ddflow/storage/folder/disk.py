"""The disk: the few system calls that a local store is made of, and the sink that counts and hashes bytes on their way.

Guarantees: each method is one system call with its error typed, so tests can replace any of them.

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
    """The status of a path.  ``kind``: "folder", "file" or "other".  ``changed``: the time of its last write, in
    seconds."""

    kind: str
    mode: int
    user: int
    size: int
    changed: float


class Disk:
    """The real one.  It has no state: all stores of a process may share one.  Every method raises `OSError`."""

    def resolve_path(self, path: str) -> str:
        """Return a path as an absolute path without symbolic links.  O(parts)."""
        return os.path.realpath(path)

    def status(self, path: str, follow: bool = False) -> FileStatus:
        """Return the kind, mode, user, size and time of change of a path.  O(1)."""
        found = os.stat(path, follow_symlinks=follow)
        kind = "folder" if stat.S_ISDIR(found.st_mode) else "file" if stat.S_ISREG(found.st_mode) else "other"
        return FileStatus(kind, stat.S_IMODE(found.st_mode), found.st_uid, found.st_size, found.st_mtime)

    def mkdir(self, path: str, mode: int) -> None:
        """Create a folder with exactly this mode, whatever the umask.  O(1)."""
        os.mkdir(path, mode)
        os.chmod(path, mode)

    def names(self, path: str) -> list[str]:
        """List the names in a folder, in no order.  O(names)."""
        return os.listdir(path)

    def scan(self, path: str) -> list[tuple[str, int, float]]:
        """List name, length and time of change of every regular file in a folder, in no order.  O(names)."""
        found = []
        with os.scandir(path) as entries:
            for entry in entries:
                with suppress(FileNotFoundError):  # deleted while we looked
                    if entry.is_file(follow_symlinks=False):
                        state = entry.stat(follow_symlinks=False)
                        found.append((entry.name, state.st_size, state.st_mtime))
        return found

    def create(self, path: str, mode: int) -> int:
        """Create a file with exactly this mode, and return its descriptor, open for writing.  O(1)."""
        file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | _FLAGS, mode)
        try:
            os.fchmod(file, mode)
        except BaseException:
            os.close(file)
            raise
        return file

    def write(self, file: int, data: Any) -> int:
        """Append bytes, and return how many the system took, which may be fewer.  O(bytes)."""
        return os.write(file, data)

    def fsync(self, file: int) -> None:
        """Make the bytes of a file durable; not its name."""
        os.fsync(file)

    def close(self, file: int) -> None:
        """Close a descriptor, which is gone then even if this raises."""
        os.close(file)

    def link(self, source: str, target: str) -> None:
        """Give a file a second name; raises `FileExistsError` when that is taken.  O(1)."""
        os.link(source, target, follow_symlinks=False)

    def rename(self, source: str, target: str) -> None:
        """Rename a file within its folder, and replace any file of the new name.  O(1)."""
        os.rename(source, target)

    def touch(self, path: str) -> None:
        """Let a file count as changed now.  O(1)."""
        os.utime(path, follow_symlinks=False)

    def unlink(self, path: str) -> None:
        """Take a name away; a process that has mapped the file keeps its bytes.  O(1)."""
        os.unlink(path)

    def sync_dir(self, path: str) -> None:
        """Make the names in a folder durable, both new and removed ones."""
        folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY | _FLAGS)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)

    def read(self, path: str, most: int) -> bytes:
        """Read the bytes of a file; raises ``EFBIG`` before it reads one that is longer than ``most``.  O(bytes)."""
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
        """Map the bytes of a file; no descriptor stays open, so thousands may be mapped.  O(1)."""
        if self.status(path).kind != "file":
            raise OSError(errno.EINVAL, "not a regular file", path)
        with pa.memory_map(path) as source:
            return source.read_buffer()

    def count_free_bytes(self, path: str) -> int:
        """Return how many bytes are free.  O(1)."""
        found = os.statvfs(path)
        return found.f_bavail * found.f_frsize

    def read_clock(self) -> float:
        """Return the time of the clock that sets `FileStatus.changed`, in seconds."""
        return time.time()


def describe_full_disk(error: OSError, free: Callable[[], int]) -> tuple[str, str]:
    """Describe a disk without room (`NO_ROOM`): the problem found, and the remedy.  ``free``: returns its free bytes.
    O(1)."""
    why = f"the disk says {error.strerror or str(error)!r}"
    if error.errno == errno.EFBIG:
        most = resource.getrlimit(resource.RLIMIT_FSIZE)[0]
        if most == resource.RLIM_INFINITY:
            return f"{why}: its file system takes no file as large", "give a folder on another one"
        found = f"{why}: this process may write files of {most:,} bytes at most"
        return found, "raise the limit (ulimit -f, RLIMIT_FSIZE)"
    try:
        return f"{why}, {free():,} bytes are free", "free space"
    except OSError as other:
        return f"{why}, its free bytes cannot be told ({other.strerror})", "free space"


SLICE: Final = 1 << 20
"""Bytes that are hashed, then written, before the next are looked at."""
CRUMBS: Final = 1 << 16
"""Bytes that wait to be written together."""


class FileWriter:
    """``take``: writes the beginning of a piece, and says how many bytes that was; may raise `OSError`.

    ``size``: bytes so far.  ``wanted``: how many there will be at least, where the writer says so, for messages.
    ``failure``: the last error of ``take``.

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
        """Write all of a buffer, however often the system takes only a part of it."""
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
        """Write the bytes that wait.  Twice is harmless."""
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
        """Return the number of bytes so far."""
        return self.size

    def flush(self) -> None:
        """Do nothing: `finish` writes the bytes that wait."""

    def close(self) -> None:
        """Do nothing: the caller closes the file."""
