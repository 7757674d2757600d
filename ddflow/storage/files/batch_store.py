"""Write the batches of one engine to files, map them, and delete files that no manifest names.

Most batches are merged before any commit, so an unused file is deleted at once unless a manifest may name it. A commit
may happen although its answer was lost, so its files count as named from just before the attempt.

Guarantees: a batch or table that is read back equals the written one, while any reference to it or its columns exists.
A file that a manifest may name is never deleted here. A forked child deletes nothing.
Limits: mapped bytes are not private memory, so the system may reclaim their pages. No descriptor stays open.
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
"""The most bytes of rows that are encoded in memory and then written at once."""


class StoredBlob:
    """A blob of a batch store.

    ``blob``: its name, length and digest, as in a manifest.  ``compressed``: whether its buffers are compressed.
    """

    def __init__(self, batches: BatchStore, blob: Blob, compressed: bool = False) -> None:
        self.blob, self.nbytes, self.compressed = blob, blob.length, compressed
        self._end = weakref.finalize(self, batches.delete_unnamed_blob, blob.name)
        self._end.atexit = False  # the end of a process may leave files, as a crash does; scratch removes itself

    def drop(self) -> None:
        """Delete the blob unless a manifest may name it.

        Arrays that refer to its bytes stay valid. A second call is harmless.
        """
        self._end()


class StoredBatch(StoredBlob):
    """A batch in a blob.

    ``batch``: over the mapped bytes, or over memory if it was compressed.  ``nbytes``: the size of the file.
    """

    def __init__(
        self, batches: BatchStore, blob: Blob, whole: pa.Buffer, batch: pa.RecordBatch, compressed: bool
    ) -> None:
        super().__init__(batches, blob, compressed)
        self.batch, self._whole, self._store = batch, whole, batches.store

    def verify(self) -> None:
        """Compare the mapped bytes with the checksum of the written bytes.  O(bytes).  Raises `CorruptState`."""
        verify_bytes(self._whole, self.blob, self._store.where, self._store.remedy)


class FileVerifier(threading.Thread):
    """A thread that verifies files in the background.

    ``files``: their bytes, and the blobs to compare them with.  ``error``: the first mismatch.
    """

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
    """Return the bytes of a batch's rows.

    For small buffers it returns the bytes of the whole buffers, which Arrow computes faster.

    >>> count_batch_bytes(pa.record_batch({"n": range(3)}).slice(1))
    24
    """
    whole = int(batch.get_total_buffer_size())
    return whole if whole <= SMALL else int(batch.nbytes)


class BatchStore(Closing):
    """A store of batches over a `BlobStore`.

    ``store``: the place of the blobs.  ``compresses``: whether it compresses files that are not read in place.
    ``commits``: the number of attempted commits.  ``lazy``: whether opened files are verified in the background;
    `finish_verification` then raises the error.

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
        """Write a batch of any types to a new blob, and map it.  O(bytes), without a second copy in memory.

        Raises the errors of `BlobStore.put`; no file is left then.
        """
        blob = self._write_blob(_release_memory_per_batch([batch]), batch.schema, False)
        with undo_on_failure(self.delete_unnamed_blob, blob.name):
            whole = self.store.map_blob(blob)
            return StoredBatch(self, blob, whole, _read_trusted_file(whole, batch.schema)[0], False)

    def write_mapped(self, batches: Iterable[pa.RecordBatch], schema: pa.Schema) -> pa.Table:
        """Write a table to a file, batch by batch, map it, and unlink the file at once.  O(bytes).

        The table belongs to the caller, and stays valid after this store is closed. Each batch becomes a chunk.
        ``schema``: of every batch; its dictionaries must not change, since a file holds one per column.  Raises as
        `write` does.
        """
        blob = self._write_blob(_release_memory_per_batch(batches), schema, False)
        try:
            mapped = _read_trusted_file(self.store.map_blob(blob), schema)
        finally:
            self.delete_unnamed_blob(blob.name)
        return pa.Table.from_batches(mapped, schema) if mapped else empty_table(schema)

    def write_unmapped(self, batch: pa.RecordBatch) -> StoredBlob:
        """Write a batch that also stays in memory.  O(bytes).  Raises as `write` does."""
        return StoredBlob(self, self.write_table([batch], batch.schema), self.compresses)

    def write_table(self, batches: Iterable[pa.RecordBatch], schema: pa.Schema) -> Blob:
        """Write a table, batch by batch, to a blob that is not mapped here.  O(bytes).  Raises as `write` does."""
        return self._write_blob(batches, schema, self.compresses)

    def _write_blob(self, batches: Iterable[pa.RecordBatch], schema: pa.Schema, compresses: bool) -> Blob:
        # Arrow writes about twenty pieces a batch; for a small batch, Arrow joins them before Python sees them.
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
        """Map, verify and read a batch that a manifest names, without trust in its author.  O(bytes).

        ``schema``, ``rows``: the expected ones.  ``compressed``: whether its buffers are compressed, for the result.
        Raises `CorruptState`, naming the file.
        """
        self._named[blob.name] = self.commits
        whole = self.store.map_blob(blob, check=not self.lazy)
        if self.lazy:
            self._behind = self._behind or FileVerifier(self.store.where)
            self._behind.files.append((whole, blob))
        what = f"the file {blob.name} of {self.store.where}"
        return StoredBatch(self, blob, whole, read_batch(whole, schema, rows, what), compressed)

    def read_table(self, blob: Blob, schema: pa.Schema, rows: int | None) -> pa.Table:
        """Read a table that `write_table` wrote.  O(bytes).  Raises `CorruptState`, naming the file.

        ``rows``: the expected number of rows, None for any.
        """
        self._named[blob.name] = self.commits
        what = f"the file {blob.name} of {self.store.where}"
        return pa.Table.from_batches(read_batches(self.store.map_blob(blob), schema, rows, what), schema)

    def start_verification(self) -> None:
        """Start to verify the lazily opened files in a thread.  O(1)."""
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
        """Record that the next manifest will name these files.  Amortised O(names).

        A name is kept for 1,000 commits after the last one that named it, even if its file is unused.
        """
        self.commits += 1
        self._named.update(dict.fromkeys(names, self.commits))
        if len(self._named) > self._most:
            self._named = {name: at for name, at in self._named.items() if at + 1000 >= self.commits}
            self._most = max(2 * len(self._named), 1 << 16)

    def delete_unnamed_blob(self, name: str) -> None:
        """Delete a blob unless a manifest may name it.  Never fails: a file that stays is garbage."""
        if name not in self._named and os.getpid() == self._process:
            with suppress(DdflowError):
                self.store.delete(name)


def _release_memory_per_batch(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield the same batches, and release unused memory after each.

    The writer is short of memory, and Arrow's allocator keeps freed pages.
    """
    for batch in batches:
        yield batch
        pa.default_memory_pool().release_unused()


def _read_trusted_file(whole: pa.Buffer, schema: pa.Schema) -> list[pa.RecordBatch]:
    """Read the batches of a file that this process has just written, over its bytes."""
    reader = pa.ipc.open_file(pa.BufferReader(whole))
    return [restore_types(reader.get_batch(i), schema) for i in range(reader.num_record_batches)]
