"""Showing: where a state's outputs go, and that what is committed of them is seen.

Invariant: what the receipts of a manifest name is shown, durably, before a later manifest is published, which may name
it no more: by whoever opens the state, also one that writes outputs elsewhere or to no folder at all; so a hidden file
that no version names was never committed.  A state's folder may be another one than before: what is told again is
looked for in both, and what lies only in the one before is told no more once a manifest names the new one.

>>> import tempfile
>>> from ddflow.storage.memory import MemoryStore
>>> with tempfile.TemporaryDirectory() as place:
...     outputs = Outputs.open(place, MemoryStore(), None, "owner")
...     outputs.path == os.path.realpath(place), os.listdir(place)
(True, [])
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pyarrow as pa

from ddflow.storage.epochs import Epoch
from ddflow.storage.manifest import Manifest
from ddflow.storage.outputs import OutputFolder, disk_of
from ddflow.storage.protocol import Blob, Store

PARQUET = ".parquet"


class Outputs:
    """``folder``: where outputs go, None for the state itself.  ``before``: where the newest manifest says they went,
    where that is another folder."""

    def __init__(self, folder: OutputFolder | None, before: OutputFolder | None) -> None:
        self.folder, self.before = folder, before

    @classmethod
    def open(cls, given: str | os.PathLike[str] | None, store: Store, manifest: Manifest | None, trust: str) -> Outputs:
        """Look at what was given for a state; nothing is made.  ``manifest``: its newest, None for a new one.  O(1).

        Raises as `OutputFolder.look` does.
        """
        disk, folder, before = disk_of(store), None, None
        if given is not None:
            folder = OutputFolder(given, store.nonce, trust, disk)
            folder.look(None if manifest is None else manifest.id)
        if manifest is not None and manifest.folder not in (None, folder and folder.path):
            before = OutputFolder(str(manifest.folder), store.nonce, trust, disk)
        return cls(folder, before)

    @property
    def path(self) -> str | None:
        """Where outputs go."""
        return None if self.folder is None else self.folder.path

    def check(self, schemas: Mapping[str, pa.Schema]) -> None:
        """Raise `SpecError` for an output whose rows the folder cannot take.  O(columns)."""
        for name, schema in schemas.items():
            if self.folder is not None:
                self.folder.check(name, schema)

    def claim(self, manifest: Manifest, store: Store, names: Iterable[str]) -> None:
        """Take the folder for a state's, before anything is put there.  O(outputs).  As `OutputFolder.claim`."""
        if self.folder is not None:
            self.folder.claim(manifest.id, store.where, names)

    def show(self, receipts: Iterable[Epoch]) -> None:
        """Let the files of committed epochs be seen; durable after `sync`.  O(files).  Raises `StorageFailed`."""
        for epoch, name, blob in named(receipts):
            for folder in (self.folder, self.before):
                if folder is not None:
                    folder.show(name, epoch, blob)

    def sync(self) -> None:
        """Make the names of all files durable.  Raises `StorageFull`, `StorageFailed`."""
        for folder in (self.folder, self.before):
            if folder is not None:
                folder.sync()

    def kept(self, receipts: Sequence[Epoch]) -> tuple[Epoch, ...]:
        """The epochs that can be told again from the folder that the next manifest names.  O(their files)."""
        folder = self.folder
        if folder is None or self.before is None:
            return tuple(receipts)
        gone = {epoch for epoch, name, blob in named(receipts) if not folder.has(name, epoch, blob)}
        return tuple(each for each in receipts if each.epoch not in gone)

    def read(self, name: str, epoch: int, blob: Blob, schema: pa.Schema) -> Any:
        """The rows of a file, of whichever folder has it.  O(bytes).  Raises `CorruptState`."""
        folders = [each for each in (self.folder, self.before) if each is not None]
        found = next((each for each in folders if each.has(name, epoch, blob)), folders[-1])
        return found.read(name, epoch, blob, schema)


def named(receipts: Iterable[Epoch]) -> Iterable[tuple[int, str, Blob]]:
    """Epoch, output and name of every file of receipts that is in a folder of outputs.  O(files)."""
    for receipt in receipts:
        for call in receipt.calls:
            for name, output in call.outputs.items():
                yield from ((receipt.epoch, name, blob) for blob in output.blobs if blob.name.endswith(PARQUET))
