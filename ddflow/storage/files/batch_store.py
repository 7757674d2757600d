"""The batch store of one engine: batches that go into files, and are read where they lie.

Invariant: a batch or a table that comes back equals the one given, for as long as anybody refers to it or to one of its
columns; where the files are, in a state or in scratch, is the store's below. A file that a manifest of ours named, or
may have named, is never deleted from here; one that none did is deleted as soon as nobody needs it. Most batches are
merged into others before they are ever committed, and would otherwise be garbage for a collector to find; but a commit
whose answer was lost may have happened, so files count as named from just before it is tried. A forked child deletes
nothing: its parent goes on. Mapped bytes are not private memory: the system takes their pages back at will, and no
descriptor stays open.

>>> from ddflow.storage.memory import MemoryStore
>>> batches = BatchStore(MemoryStore())
>>> kept = batches.write(pa.record_batch({"n": [1, 2]}))
>>> len(batches.store.list_blobs()), batches.read_table(kept.blob, pa.schema({"n": pa.int64()}), 2).to_pylist()
(1, [{'n': 1}, {'n': 2}])
>>> kept.drop()  # a manifest may name it by now, since it was asked for by its name
>>> other = batches.write(pa.record_batch({"n": [3]}))
>>> other.drop()
>>> len(batches.store.list_blobs()), other.batch.column(0).to_pylist()
(1, [3])
"""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import Final, cast

import pyarrow as pa

from ddflow.columns.schema import empty_table
from ddflow.errors import CorruptState, DdflowError
from ddflow.storage.closing import Closing, undo_on_failure
from ddflow.storage.files.arrow_file import open_file_writer, read_batch, read_batches, restore_types
from ddflow.storage.folder.disk import FileWriter
from ddflow.storage.protocol import Blob, BlobStore, verify_bytes

SMALL: Final = 1 << 16
"""Bytes of a file that is put together in memory before it is written."""


class StoredBlob:
    """A blob of a batch store's.  ``blob``: as a manifest names it.  ``compressed``: whether its buffers are."""

    def __init__(self, batches: BatchStore, blob: Blob, compressed: bool = False) -> None:
        self.blob, self.nbytes, self.compressed = blob, blob.length, compressed
        self._end = weakref.finalize(self, batches.delete_unnamed_blob, blob.name)
        self._end.atexit = False  # what a crash would leave, an end may leave; scratch removes itself

    def drop(self) -> None:
        """Delete the blob unless a manifest may name it.  Arrays that refer to it stay valid; twice is harmless."""
        self._end()


class StoredBatch(StoredBlob):
    """A batch in a blob.  ``batch``: over the mapped bytes, or over memory where it was compressed.  ``nbytes``: of the
    file."""

    def __init__(
        self, batches: BatchStore, blob: Blob, whole: pa.Buffer, batch: pa.RecordBatch, compressed: bool
    ) -> None:
        super().__init__(batches, blob, compressed)
        self.batch, self._whole, self._store = batch, whole, batches.store

    def verify(self) -> None:
        """Compare the mapped bytes with the checksum of those written.  O(bytes).  Raises `CorruptState`."""
        verify_bytes(self._whole, self.blob, self._store.where, self._store.remedy)


class FileVerifier(threading.Thread):
    """Verifies files while the caller goes on.  ``files``: their bytes, and what they must be.  ``error``: of the first
    that is not."""

    def __init__(self, where: str) -> None:
        super().__init__(name="ddflow verify", daemon=True)
        self.where, self.error = where, cast(CorruptState | None, None)
        self.files: list[tuple[pa.Buffer, Blob]] = []

    def run(self) -> None:
        """Compare all files, one after the other.  O(bytes)."""
        try:
            for whole, blob in self.files:
                verify_bytes(whole, blob, self.where)
        except CorruptState as error:
            self.error = error


def count_batch_bytes(batch: pa.RecordBatch) -> int:
    """Return the bytes of a batch's rows; if its buffers are small, the bytes of those, which Arrow tells in a fiftieth
    of the time.

    >>> count_batch_bytes(pa.record_batch({"n": range(3)}).slice(1))
    24
    """
    whole = int(batch.get_total_buffer_size())
    return whole if whole <= SMALL else int(batch.nbytes)


class BatchStore(Closing):
    """``store``: where blobs go.  ``compresses``: what is not read where it lies.  ``commits``: how many were tried.
    ``lazy``: whether files that are opened are verified behind the caller's back, and `settle` tells what came of it.
    """

    def __init__(self, store: BlobStore, compresses: bool = False) -> None:
        self.store, self.compresses, self.commits = store, compresses, 0
        self._named: dict[str, int] = {}
        self._most = 1 << 16
        self.lazy = False
        self._behind: FileVerifier | None = None
        self._process = os.getpid()

    def close(self) -> None:
        """Close the store."""
        self.store.close()

    def write(self, batch: pa.RecordBatch) -> StoredBatch:
        """Write a batch of any types to a new blob, and map it.  O(bytes); no second copy in memory.

        Raises what `BlobStore.put` does; nothing is left then.
        """
        blob = self._write_blob(_release_memory_per_batch([batch]), batch.schema, False)
        with undo_on_failure(self.delete_unnamed_blob, blob.name):
            whole = self.store.map_blob(blob)
            return StoredBatch(self, blob, whole, _read_trusted_file(whole, batch.schema)[0], False)

    def write_mapped(self, batches: Iterable[pa.RecordBatch], schema: pa.Schema) -> pa.Table:
        """Write a table to a file, batch by batch, and map it; the file loses its name at once.  O(bytes).

        The table belongs to the caller, and stays valid after this store is closed.  A batch is a chunk.
        ``schema``: of every batch, whose dictionaries must be the same throughout (a file holds one a column).  Raises
        as `write` does.
        """
        blob = self._write_blob(_release_memory_per_batch(batches), schema, False)
        try:
            mapped = _read_trusted_file(self.store.map_blob(blob), schema)
        finally:
            self.delete_unnamed_blob(blob.name)
        return pa.Table.from_batches(mapped, schema) if mapped else empty_table(schema)

    def write_unmapped(self, batch: pa.RecordBatch) -> StoredBlob:
        """Write a batch that stays in memory, too.  O(bytes).  Raises as `write` does."""
        return StoredBlob(self, self.write_table([batch], batch.schema), self.compresses)

    def write_table(self, batches: Iterable[pa.RecordBatch], schema: pa.Schema) -> Blob:
        """Write a table, batch by batch, to a blob that is not read here.  O(bytes).  Raises as `write` does."""
        return self._write_blob(batches, schema, self.compresses)

    def _write_blob(self, batches: Iterable[pa.RecordBatch], schema: pa.Schema, compresses: bool) -> Blob:
        # Arrow writes twenty pieces a batch; of a small one they are put together where that costs no Python.
        small = isinstance(batches, list) and sum(map(count_batch_bytes, batches)) <= SMALL

        def arrow(sink: FileWriter) -> None:
            buffered = pa.BufferOutputStream() if small else None
            with open_file_writer(sink if buffered is None else buffered, schema, compresses) as writer:
                for batch in batches:
                    sink.wanted += count_batch_bytes(batch)
                    writer.write_batch(batch)
            if buffered is not None:
                sink.write(buffered.getvalue())

        return self.store.put("arrow", arrow)

    def open_batch(self, blob: Blob, schema: pa.Schema, rows: int, compressed: bool = False) -> StoredBatch:
        """Map a batch that a manifest names, verify it, and read it with suspicion.  O(bytes).

        ``schema``, ``rows``: the expected ones.  ``compressed``: whether its buffers are, which it remembers.  Raises
        `CorruptState`, naming the file.
        """
        self._named[blob.name] = self.commits
        whole = self.store.map_blob(blob, check=not self.lazy)
        if self.lazy:
            self._behind = self._behind or FileVerifier(self.store.where)
            self._behind.files.append((whole, blob))
        what = f"the file {blob.name} of {self.store.where}"
        return StoredBatch(self, blob, whole, read_batch(whole, schema, rows, what), compressed)

    def read_table(self, blob: Blob, schema: pa.Schema, rows: int | None) -> pa.Table:
        """Read a table that `put` wrote, with ``rows`` rows, or any number if None.  O(bytes).  Raises `CorruptState`,
        naming the file."""
        self._named[blob.name] = self.commits
        what = f"the file {blob.name} of {self.store.where}"
        return pa.Table.from_batches(read_batches(self.store.map_blob(blob), schema, rows, what), schema)

    def start_verification(self) -> None:
        """Begin to verify, in a thread, the files that were opened lazily.  O(1)."""
        self.lazy = False
        if self._behind is not None:
            self._behind.start()

    def finish_verification(self) -> None:
        """Wait until all opened files are verified.  Raises `CorruptState`, naming the file."""
        if self._behind is not None:
            self._behind.join()
            if self._behind.error is not None:
                raise self._behind.error
            self._behind = None

    def register_manifest_files(self, names: Iterable[str]) -> None:
        """Note that a manifest that is about to be published names these.  Amortised O(names).

        Names are kept for 1,000 commits after the last that named them, even if their files are not in use.
        """
        self.commits += 1
        self._named.update(dict.fromkeys(names, self.commits))
        if len(self._named) > self._most:
            self._named = {name: at for name, at in self._named.items() if at + 1000 >= self.commits}
            self._most = max(2 * len(self._named), 1 << 16)

    def delete_unnamed_blob(self, name: str) -> None:
        """Delete a blob that no manifest names.  Never fails: what stays is garbage."""
        if name not in self._named and os.getpid() == self._process:
            with suppress(DdflowError):
                self.store.delete(name)


def _release_memory_per_batch(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield the same batches, and release memory after each.  The writer is short of memory, and Arrow's allocator
    keeps freed pages."""
    for batch in batches:
        yield batch
        pa.default_memory_pool().release_unused()


def _read_trusted_file(whole: pa.Buffer, schema: pa.Schema) -> list[pa.RecordBatch]:
    """Read the batches of a file that this process has just written, over its bytes."""
    reader = pa.ipc.open_file(pa.BufferReader(whole))
    return [restore_types(reader.get_batch(i), schema) for i in range(reader.num_record_batches)]
