"""Blobs in a folder of the local disk: each a file, written once, mapped where it lies.

Invariant: a file is whole, has the bytes that its blob says, and is durable where the folder is (`Site.durable`), when
`put` returns; one that fails leaves no file. Both stores on a disk are such a folder: a state's, whose manifests name
the files, and a scratch folder, whose files nobody needs once its engine is gone. It does not know which files are
needed.

>>> import tempfile
>>> from ddflow.storage.folder.scratch import ScratchStore
>>> with tempfile.TemporaryDirectory() as folder:
...     blobs: BlobFolder = ScratchStore(folder)
...     blob = blobs.put("arrow", lambda sink: sink.write(b"four"))
...     blobs.map(blob).to_pybytes(), blobs.delete(blob.name), blobs.close()
(b'four', None, None)
"""

import re
from typing import ClassVar

import pyarrow as pa

from ddflow.storage.folder.disk import Disk
from ddflow.storage.folder.site import Site
from ddflow.storage.protocol import NAME, Blob, Blobs, Write, lost, sized, verified


class BlobFolder(Blobs):
    """``site``: the folder, open, and what refusals are called there.  ``below``: where in it the files are.

    ``first``: the number of the first file.
    """

    pattern: ClassVar[re.Pattern[str]] = NAME

    def __init__(self, site: Site, *below: str, first: int = 0) -> None:
        super().__init__(site.path, first)
        self.site, self._folder = site, site.below(*below)

    @property
    def disk(self) -> Disk:
        """The disk that it is on."""
        return self.site.disk

    def put(self, ending: str, write: Write) -> Blob:
        """Write a new blob to a new file.  O(bytes); no second copy of them.  See `Blobs.put`."""
        name = self._new_name(ending)
        sink = self.site.written(self._blob(name), f"write the file {name}", write)
        return Blob(name, sink.size, sink.state.digest())

    def map(self, blob: Blob, check: bool = True) -> pa.Buffer:
        """Map the file of a blob.  O(bytes), for the checksum; no descriptor stays open.  See `Blobs.map`."""
        with self.site.reading(f"file {blob.name}", lost(blob.name, self.where), self.remedy):
            whole = self._mapping(blob.name)
            return verified(whole, blob, self.where, self.remedy) if check else sized(whole, blob, self.where)

    def delete(self, name: str) -> None:
        """Unlink a blob.  O(1); not synced, so it may be back after a power failure."""
        self._must_write()
        self.site.unlink(self._blob(name), f"delete the file {name}")

    def _mapping(self, name: str) -> pa.Buffer:
        return self.disk.map(self._blob(name))

    def _blob(self, name: str) -> str:
        if not self.pattern.fullmatch(name):
            raise ValueError(f"{name!r} is no name of a blob")
        return f"{self._folder}/{name}"
