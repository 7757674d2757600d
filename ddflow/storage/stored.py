"""Filing: what the rooms above ask of where batches go; one goes in, and is read where it lies.

Invariant: the batch that comes back equals the one given, for as long as anybody refers to it. A spill folder
(``folder``) is one, whose files are worthless once their engine is gone; a vault (``vault``) is another, whose files
outlive it when a manifest names them. An arrangement that moves what has no room in memory must not know which of the
two it writes to, or every merge would be written twice. Nothing is done here.

>>> import tempfile
>>> from ddflow.storage.spill_folder import Folder
>>> with tempfile.TemporaryDirectory() as path, Folder.open(path) as folder:
...     filing: Filing = folder
...     filing.write(pa.record_batch({"n": [1, 2]})).batch.num_rows
2
"""

from __future__ import annotations

from typing import Protocol

import pyarrow as pa


class Filed(Protocol):
    """A batch in a file.  ``batch``: its columns, without a copy.  ``nbytes``: of the file."""

    batch: pa.RecordBatch
    nbytes: int

    def verify(self) -> None:
        """Compare the bytes with their checksum.  O(bytes).  Raises `CorruptState`."""

    def drop(self) -> None:
        """Let the file go: now, or as soon as no manifest names it.  What refers to its bytes stays valid."""


class Filing(Protocol):
    """Where batches are written to."""

    def write(self, batch: pa.RecordBatch) -> Filed:
        """Write a batch of any types to a file of its own.  O(bytes)."""
