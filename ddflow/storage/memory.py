"""Keep a state in memory, for tests and examples; it ends with the process.

Guarantees: all stores over one `SharedStoreData` see the same blobs and manifests, and each number is published once. A
mapped blob survives its deletion, a failed `put` leaves nothing, and each opener has its own nonce, like in any store.
Limits: it proves nothing about durability, and serves one thread at a time.

>>> one = MemoryStore()
>>> other = one.reopen()
>>> one.publish(0, b"by one"), other.publish(0, b"by the other"), other.read_manifest(0)
(True, False, b'by one')
>>> one.map_blob(other.put("arrow", lambda sink: sink.write(b"four"))).to_pybytes()
b'four'
"""

from __future__ import annotations

import io
import tempfile
import time

import pyarrow as pa

from ddflow.errors import CorruptState
from ddflow.storage.folder.disk import FileWriter
from ddflow.storage.folder.scratch import ScratchStore
from ddflow.storage.protocol import (
    Blob,
    BlobEntry,
    Store,
    Write,
    check_blob_name,
    check_length,
    missing_file_error,
    verify_bytes,
)


class SharedStoreData:
    """The data that stores in memory share: blobs with the time of their `put`, manifests and the greatest mark."""

    def __init__(self) -> None:
        self.blobs: dict[str, tuple[bytes, float]] = {}
        self.manifests: dict[int, bytes] = {}
        self.marked = -1


class MemoryStore(Store):
    """A store in memory; after `close` it accepts no changes.  ``shared``: its data, new by default."""

    def __init__(self, shared: SharedStoreData | None = None) -> None:
        super().__init__("memory")
        self.shared = shared or SharedStoreData()

    def reopen(self) -> MemoryStore:
        """Open the same state once more.  O(1)."""
        return MemoryStore(self.shared)

    def put(self, ending: str, write: Write) -> Blob:
        """Write a new blob, as `BlobStore.put` does.  O(bytes)."""
        name = check_blob_name(self._make_blob_name(ending))
        whole = io.BytesIO()
        sink = FileWriter(whole.write)
        write(sink)
        sink.finish()
        self.shared.blobs[name] = whole.getvalue(), time.time()
        return Blob(name, sink.size, sink.state.digest())

    def fsync_blob_names(self) -> None:
        """Check that the store is open; nothing is durable in memory."""
        self._check_writable()

    def map_blob(self, blob: Blob, check: bool = True) -> pa.Buffer:
        """Return the bytes of a blob, as `BlobStore.map_blob` does.  O(bytes), for the checksum."""
        if blob.name not in self.shared.blobs:
            raise missing_file_error(blob.name, self.where)
        whole = pa.py_buffer(self.shared.blobs[blob.name][0])
        return verify_bytes(whole, blob, self.where) if check else check_length(whole, blob, self.where)

    def list_blobs(self) -> list[BlobEntry]:
        """List all blobs.  O(blobs)."""
        now = time.time()
        return [BlobEntry(name, len(data), max(0.0, now - put)) for name, (data, put) in self.shared.blobs.items()]

    def find_blob_sizes(self, names: list[str]) -> dict[str, int]:
        """Return lengths as `Store.find_blob_sizes` does.  O(names)."""
        there = self.shared.blobs
        return {name: len(there[name][0]) for name in names if name in there}

    def delete(self, name: str) -> None:
        """Delete a blob.  O(1)."""
        self._check_writable()
        self.shared.blobs.pop(name, None)

    def list_manifests(self) -> list[int]:
        """List the numbers of all manifests, ascending.  O(manifests)."""
        return sorted(self.shared.manifests)

    def read_manifest(self, number: int) -> bytes:
        """Return the bytes of a manifest, as `Store.read_manifest` does.  O(1)."""
        if number not in self.shared.manifests:
            raise CorruptState(
                f"manifest {number} of {self.where}", "it is missing", "open the state again, or restore it from a copy"
            )
        return self.shared.manifests[number]

    def publish(self, number: int, data: bytes) -> bool:
        """Publish a manifest if its number is free, as `Store.publish` does.  O(1)."""
        self._check_writable()
        return self.shared.manifests.setdefault(number, data) is data

    def delete_manifest(self, number: int) -> None:
        """Delete a manifest.  O(1)."""
        self._check_writable()
        self.shared.manifests.pop(number, None)

    def mark_published(self, number: int) -> None:
        """Keep the greatest number.  O(1)."""
        self._check_writable()
        self.shared.marked = max(self.shared.marked, number)

    def find_last_published(self) -> int:
        """Return the greatest marked number, or -1.  O(1)."""
        return self.shared.marked

    def open_scratch_store(self) -> ScratchStore:
        """Open a scratch store in a new temporary folder of the system."""
        self._check_writable()
        return ScratchStore(tempfile.mkdtemp(prefix="ddflow-"), whole=True)
