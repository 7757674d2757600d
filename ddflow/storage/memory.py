"""Keep a state in memory, for tests and examples. When the process ends, the state is lost.

Guarantees: all stores with the same `SharedStoreData` see the same blobs and manifests, and each number is published
once. As in any store, a mapped blob stays readable after its deletion, a failed `put` leaves nothing, and each opened
store has its own nonce.
Limits: nothing is durable, so a test with this store proves nothing about durability. Only one thread at a time may use
the store.

>>> one = MemoryStore()
>>> other = one.reopen()
>>> one.publish(0, b"by one"), other.publish(0, b"by the other"), other.read_manifest(0)
(True, False, b'by one')
>>> one.map_blob(other.put("arrow", b"four")).to_pybytes()
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
    Content,
    Store,
    check_blob_name,
    check_length,
    missing_file_error,
    verify_bytes,
)


class SharedStoreData:
    """The data that several stores in memory share: blobs, the time of each `put`, manifests and the greatest mark."""

    def __init__(self) -> None:
        self.blobs: dict[str, tuple[bytes, float]] = {}
        self.manifests: dict[int, bytes] = {}
        self.marked = -1


class MemoryStore(Store):
    """A store in memory. It accepts no changes after `close`. ``shared``: the data of the store, by default empty."""

    def __init__(self, shared: SharedStoreData | None = None) -> None:
        super().__init__("memory")
        self.shared = shared or SharedStoreData()

    def reopen(self) -> MemoryStore:
        """Open the same state again, with another nonce. O(1)."""
        return MemoryStore(self.shared)

    def put(self, ending: str, content: Content) -> Blob:
        """Write a new blob, as `BlobStore.put` does. O(bytes)."""
        name = check_blob_name(self._make_blob_name(ending))
        whole = io.BytesIO()
        sink = FileWriter(whole.write)
        content(sink) if callable(content) else sink.write(content)
        sink.finish()
        self.shared.blobs[name] = whole.getvalue(), time.time()
        return Blob(name, sink.size, sink.state.digest())

    def fsync_blob_names(self) -> None:
        """Check that the store is open. In memory there is nothing to sync."""
        self._check_writable()

    def map_blob(self, blob: Blob, check: bool = True) -> pa.Buffer:
        """Return the bytes of a blob, as `BlobStore.map_blob` does. O(bytes), for the checksum."""
        if blob.name not in self.shared.blobs:
            raise missing_file_error(blob.name, self.where)
        whole = pa.py_buffer(self.shared.blobs[blob.name][0])
        return verify_bytes(whole, blob, self.where) if check else check_length(whole, blob, self.where)

    def list_blobs(self) -> list[BlobEntry]:
        """List all blobs. O(blobs)."""
        now = time.time()
        return [BlobEntry(name, len(data), max(0.0, now - put)) for name, (data, put) in self.shared.blobs.items()]

    def find_blob_sizes(self, names: list[str]) -> dict[str, int]:
        """Return the lengths of blobs, as `Store.find_blob_sizes` does. O(names)."""
        there = self.shared.blobs
        return {name: len(there[name][0]) for name in names if name in there}

    def delete(self, name: str) -> None:
        """Delete a blob. O(1)."""
        self._check_writable()
        self.shared.blobs.pop(name, None)

    def list_manifests(self, after: int = -1) -> list[int]:
        """List the numbers of all manifests after ``after``, ascending. O(manifests)."""
        return sorted(number for number in self.shared.manifests if number > after)

    def read_manifest(self, number: int) -> bytes:
        """Return the bytes of a manifest, as `Store.read_manifest` does. O(1)."""
        if number not in self.shared.manifests:
            raise CorruptState(
                f"manifest {number} of {self.where}",
                "it is missing",
                "open the state again, or restore it from a backup",
            )
        return self.shared.manifests[number]

    def publish(self, number: int, data: bytes) -> bool:
        """Publish a manifest if its number is free, as `Store.publish` does. O(1)."""
        self._check_writable()
        return self.shared.manifests.setdefault(number, data) is data

    def delete_manifest(self, number: int) -> None:
        """Delete a manifest. O(1)."""
        self._check_writable()
        self.shared.manifests.pop(number, None)

    def mark_published(self, number: int) -> None:
        """Mark a number as published, and keep only the greatest mark. O(1)."""
        self._check_writable()
        self.shared.marked = max(self.shared.marked, number)

    def find_last_published(self) -> int:
        """Return the greatest marked number, or -1 if no number is marked. O(1)."""
        return self.shared.marked

    def open_scratch_store(self) -> ScratchStore:
        """Open a scratch store in a new temporary folder of the system."""
        self._check_writable()
        return ScratchStore(tempfile.mkdtemp(prefix="ddflow-"), whole=True)
