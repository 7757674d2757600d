"""The spill folder of one engine: batches and tables go in, and are read where they lie.

Invariant: at most one engine uses a folder, and nothing of it stays there: after `close`, after the last reference is
gone, at exit; after a crash, the next `open` removes it.  A write that fails leaves no file and changes nothing, so the
engine's state stays as it was.  It knows batches, not what they mean, and it keeps no secrets: files are readable by
this user only (0600), and spilled rows are on the disk in the clear.

>>> import tempfile
>>> with tempfile.TemporaryDirectory() as place, Folder.open(place) as folder:
...     spilled = folder.write(pa.record_batch({"city": ["Bern", "Basel"]}))
...     spilled.verify()
...     spilled.batch.to_pylist()
[{'city': 'Bern'}, {'city': 'Basel'}]
"""

from __future__ import annotations

import os
import weakref
from types import TracebackType

import pyarrow as pa

from ddflow.storage.file_writer import Part
from ddflow.storage.folder_lock import Claim
from ddflow.storage.mapped import Mapped
from ddflow.storage.table import TableWriter


class Folder:
    """An open spill folder; `open` makes it.  ``path``: absolute.  Several threads may write at once."""

    def __init__(self, claim: Claim) -> None:
        self._claim = claim
        self._end = weakref.finalize(self, claim.release)

    @classmethod
    def open(cls, path: str | os.PathLike[str]) -> Folder:
        """Claim a folder that exists and is this user's own, and remove what a crashed engine left there.  O(files).

        Raises `SpillRefused` when it is missing, no folder, someone else's, writable by all or read-only;
        `SpillInUse` when another engine has it; `SpillFull` when its disk takes not even a byte.
        """
        return cls(Claim.take(path))

    def __enter__(self) -> Folder:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def path(self) -> str:
        """Where it is."""
        return self._claim.path

    def write(self, batch: pa.RecordBatch) -> Mapped:
        """Write a batch of any types to a file of its own, and map it.  O(bytes); no second copy in memory.

        Raises `SpillFull` or `SpillFailed` when the disk refuses, `EngineClosed` after `close`; no file is left then.
        """
        part = Part(self._claim, batch.schema)
        part.write(batch)
        return Mapped(self._claim, part.finish(), batch.schema)

    def writer(self, schema: pa.Schema) -> TableWriter:
        """A writer of one table, batch by batch; raises what `write` does."""
        return TableWriter(self._claim, schema)

    def close(self) -> None:
        """Remove every file, let go of the folder; twice is harmless.  Mapped batches and tables stay readable."""
        self._end()
