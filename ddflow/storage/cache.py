"""A cache of blobs on the local disk: files named by the checksum of what they hold, capped in size.

Invariant: what `Cache.map` gives is the blob that was asked for, whatever happened to its file; a file that is not is
dropped, and counts as missing. Several processes share the folder without a lock, so a file gets its name only when it
is whole, by a rename, and may be unlinked by another at any moment; whoever mapped it keeps its bytes. The least
recently used go first when the files with names pass the cap (a process notices within 1/16 of it what others add);
files that are mapped but unlinked are not counted. Blobs are in the clear: the folder is this user's own, its files
are readable by this user only. It does not know where blobs come from.

>>> import tempfile, xxhash
>>> blob = Blob("00ff00ff00ff00ff-1.arrow", 4, xxhash.xxh3_128(b"wxyz").digest())
>>> with tempfile.TemporaryDirectory() as place:
...     cache = Cache(place, size=1 << 20)
...     before, _ = cache.map(blob), cache.fill(blob, [b"wx", b"yz"], "s3://bucket/orders")
...     before, cache.map(blob).to_pybytes()
(None, b'wxyz')
"""

import os
import re
import stat
import time
from collections.abc import Iterable
from contextlib import suppress
from typing import Final

import pyarrow as pa

from ddflow.errors import CorruptState, StateRefused
from ddflow.storage.closing import on_failure
from ddflow.storage.disk import Disk
from ddflow.storage.file_writer import FileWriter
from ddflow.storage.protocol import Blob, Write, verified
from ddflow.storage.site import Site

SIZE: Final = 1 << 30
"""Bytes that a cache holds by default."""

_WHOLE = re.compile(r"[0-9a-f]{32}")
_PART = re.compile(r"[0-9a-f]{16}\.part")
_ABANDONED = 86_400.0
"""Seconds after which a half written file is taken for a crashed process's."""


class Cache:
    """``path``: its folder, made when it is missing; None: `default_place`.  ``size``: most bytes; 0 keeps nothing.

    Raises `StateRefused` when the folder cannot be made, belongs to somebody else or others may write to it.
    """

    def __init__(self, path: str | os.PathLike[str] | None = None, size: int = SIZE) -> None:
        self.site = Site(Disk(), default_place() if path is None else path, "owner", "the cache", durable=False)
        self.path = self.site.path
        self.size = size
        self._held = self._added = 0
        self._make()
        self._evict()

    def map(self, blob: Blob) -> pa.Buffer | None:
        """Map and verify a blob; return None if it is not here.  O(bytes)."""
        path = os.path.join(self.path, blob.digest.hex())
        try:
            if os.stat(path, follow_symlinks=False).st_size != blob.length:
                raise CorruptState(path, "its length is wrong", "it is fetched again")
            whole = verified(self.site.disk.map(path), blob, self.path)
            os.utime(path)
        except FileNotFoundError:
            return None
        except (OSError, CorruptState):
            with suppress(OSError):
                os.unlink(path)
            return None
        return whole

    def fill(self, blob: Blob, pieces: Iterable[bytes], where: str) -> pa.Buffer:
        """Keep a blob whose pieces come from ``where``, and map it.  O(bytes), a piece at a time in memory.

        No more than its length is ever taken.  Raises `CorruptState` when the pieces are not the blob, and whatever
        they raise; `StorageFull`, `StorageFailed` when the cache's disk refuses.  Nothing is left then.
        """
        what = f"cache {blob.name} of {where}"

        def fetch(sink: FileWriter) -> None:
            for piece in pieces:
                sink.write(memoryview(piece)[: blob.length - sink.size + 1])
                if sink.size > blob.length:
                    break

        path, _ = self.written(what, fetch)
        with on_failure(self.drop, path):
            with self.site.guarded(what):
                whole = verified(self.site.disk.map(path), blob, where)
            self.keep(path, blob)
        return whole

    def written(self, what: str, write: Write) -> tuple[str, FileWriter]:
        """Write a new file that only this user may read; return its path and its writer.  Call `keep` or `drop` on the
        path.

        O(bytes).  Raises as `Site.written` does, for ``what``; nothing is left then.
        """
        self._make()  # Somebody may have cleared the caches, which is their right.
        path = os.path.join(self.path, f"{os.urandom(8).hex()}.part")
        return path, self.site.written(path, what, write)

    def keep(self, path: str, blob: Blob) -> None:
        """Give a file of `written` its name; it holds this blob.  Never fails: what cannot be kept is dropped."""
        if blob.length > self.size:
            return self.drop(path)
        try:
            os.rename(path, os.path.join(self.path, blob.digest.hex()))
        except OSError:
            return self.drop(path)
        self._held, self._added = self._held + blob.length, self._added + blob.length
        if self._held > self.size or self._added > self.size // 16:
            self._evict()

    def drop(self, path: str) -> None:
        """Unlink a file of `written`; twice is harmless."""
        self.site.tidy(path)

    def _make(self) -> None:
        asked = f"cache blobs in {self.path}"
        try:
            os.makedirs(self.path, mode=0o700, exist_ok=True)
            state = os.stat(self.path)
        except OSError as error:
            raise StateRefused(
                asked, f"the folder cannot be made ({error.strerror})", "name another folder for the cache"
            ) from None
        if state.st_uid != os.geteuid():
            raise StateRefused(
                asked,
                f"it belongs to user {state.st_uid}, not to {os.geteuid()}",
                "name a folder of your own for the cache",
            )
        if stat.S_IMODE(state.st_mode) & 0o022:
            raise StateRefused(
                asked,
                f"its mode is {stat.S_IMODE(state.st_mode):o}, so others may put files there",
                "chmod 700 it, or name another folder for the cache",
            )

    def _evict(self) -> None:
        """Unlink the least recently used until the rest fits, and what crashed processes left.  O(files)."""
        files = []
        with suppress(OSError), os.scandir(self.path) as entries:
            for entry in entries:
                with suppress(FileNotFoundError):
                    state = entry.stat(follow_symlinks=False)
                    if _WHOLE.fullmatch(entry.name):
                        files.append((state.st_mtime_ns, state.st_size, entry.path))
                    elif _PART.fullmatch(entry.name) and time.time() - state.st_mtime > _ABANDONED:
                        self.drop(entry.path)
        self._held, self._added = sum(size for _, size, _ in files), 0
        for _, size, path in sorted(files):
            if self._held <= self.size:
                break
            self.drop(path)
            self._held -= size


def default_place() -> str:
    """Return the folder ``ddflow/blobs`` for this user's caches, in ``$XDG_CACHE_HOME`` or ``~/.cache``."""
    given = os.environ.get("XDG_CACHE_HOME", "")
    home = given if os.path.isabs(given) else os.path.join(os.path.expanduser("~"), ".cache")
    return os.path.join(home, "ddflow", "blobs")
