"""A scratch store: blobs in a local folder that need not survive, for what has no room in memory.

Invariant: one store at a time uses a folder (`FolderLock`), and nothing of it stays: its files are gone after `close`,
when nobody refers to it, and at exit; after a crash, the next store that opens the folder removes them. It is a local
store without manifests that never syncs. A write that fails leaves no file and changes nothing, so an engine stays as
it was. A forked child can neither write nor remove. Files are readable by this user only (0600), and what they hold is
in the clear.

A state has scratch folders of its own, each locked by the store that made it. `sweep` removes those whose owners are
gone. It may lock a new folder in the moment before its owner does; the owner then makes another.

    spill/00112233aabbccdd/ddflow-spill.lock      spill/00112233aabbccdd/ddflow-8899aabbccddeeff-0.arrow

>>> import tempfile
>>> with tempfile.TemporaryDirectory() as place:
...     store = ScratchStore(place)
...     blob = store.put("arrow", lambda sink: sink.write(b"four"))
...     store.map(blob).to_pybytes(), len(os.listdir(place))
...     store.close()
...     os.listdir(place)
(b'four', 2)
[]
"""

import os
import re
import weakref
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, Final, Self

from ddflow.errors import CorruptState, DdflowError, SpillInUse, SpillRefused
from ddflow.storage.blob_folder import BlobFolder
from ddflow.storage.disk import Disk
from ddflow.storage.folder_lock import OURS, PREFIX, FolderLock, failure
from ddflow.storage.site import Site

TRIES: Final = 5
_FOLDER = re.compile(r"[0-9a-f]{16}")
_DISK = Disk()


class ScratchStore(BlobFolder):
    """``path``: a folder that exists and is this user's own.  ``whole``: whether it is removed with its files.

    Several threads may write at once.  O(files that a crash left).  Raises `SpillRefused` when the folder is missing,
    no folder, someone else's, writable by all or read-only; `SpillInUse` when another store has it; `SpillFull` when
    its disk takes not even a byte.  `put` raises `SpillFull`, `SpillFailed`, and `EngineClosed` after `close`.
    """

    pattern, prefix = OURS, PREFIX
    remedy = "mend the disk or the memory, and replay the log into a new state"

    def __init__(self, path: Any, whole: bool = False) -> None:
        self._lock = FolderLock(path, whole)
        self._end = weakref.finalize(self, self._lock.release)
        super().__init__(_ScratchSite(_DISK, self._lock.path, "owner", "the spill folder", durable=False))

    @classmethod
    def within(cls, spill: str) -> Self:
        """Open a store in a new private folder below ``spill``, which goes with it.  O(1).  Raises `OSError` too."""
        for left in reversed(range(TRIES)):
            path = os.path.join(spill, os.urandom(8).hex())
            _DISK.mkdir(path, 0o700)
            try:
                return cls(path, whole=True)
            except (SpillInUse, SpillRefused):  # a sweeper was quicker
                if not left:
                    raise
        raise AssertionError

    def close(self) -> None:
        """Remove every file; nothing can be put any more.  Mapped bytes stay readable.  Twice is harmless."""
        self._end()

    def _must_write(self) -> None:
        self._lock.must_hold()


def sweep(spill: str) -> None:
    """Remove the scratch folders of stores that are gone.  Never fails: a later call tries again.  O(files)."""
    for name in os.listdir(spill):
        if _FOLDER.fullmatch(name):
            with suppress(OSError):  # held by a store that is open, or another user's
                FolderLock(os.path.join(spill, name), whole=True).release()


class _ScratchSite(Site):
    """A folder that the state does not depend on, so that a call may be repeated."""

    def failure(self, what: str, error: OSError, wanted: int = 0) -> DdflowError:
        return failure(self.path, what, error, wanted)

    @contextmanager
    def reading(self, what: str, missing: CorruptState, remedy: str) -> Iterator[None]:
        with self.guarded(f"map the {what}"):
            yield
