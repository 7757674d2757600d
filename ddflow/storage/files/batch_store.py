"""Write the batches of one engine to files, map them, and delete files that no manifest names.

Most batches are merged before any commit. Therefore an unused file is deleted at once, unless a manifest might name it.
A commit may succeed although its answer is lost. Therefore all files of a commit count as named by a manifest even
before the commit is attempted.

Guarantees: while a reference to a written batch or table exists, reading it gives the same batch or table. The batch
store never deletes a file that a manifest may name. A forked child process deletes nothing. Mapped files keep no
descriptor open.
Limits: mapped bytes are not private memory of the process. The operating system may drop mapped pages and read them
again later.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import Any, Final, cast

import pyarrow as pa

from ddflow.columns.schema import empty_table
from ddflow.errors import CorruptState, DdflowError
from ddflow.storage.closing import Closing, undo_on_failure
from ddflow.storage.files.arrow_file import open_file_writer, read_batch, read_batches, restore_types
from ddflow.storage.protocol import Blob, BlobStore, verify_bytes

SMALL: Final = 1 << 16
"""Rows in buffers of at most this number of bytes are encoded in memory and then written by one call."""


class StoredBlob:
    """A blob that a batch store has written or opened.

    ``blob``: its name, length and digest, as in a manifest. ``compressed``: whether its buffers are compressed.
    """

    def __init__(self, batches: BatchStore, blob: Blob, compressed: bool = False) -> None:
        self.blob, self.nbytes, self.compressed = blob, blob.length, compressed
        self._end = weakref.finalize(self, batches.delete_unnamed_blob, blob.name)
        self._end.atexit = False  # a process may leave files at exit, as a crash does; scratch stores remove theirs

    def drop(self) -> None:
        """Delete the blob, unless a manifest might name it.

        Arrays that refer to its bytes stay valid. A second call is harmless.
        """
        self._end()


class StoredBatch(StoredBlob):
    """A batch that is stored in a blob.

    ``batch``: the batch, which refers to the mapped bytes, or to memory if the file is compressed. ``nbytes``: the size
    of the file.
    """

    def __init__(
        self, batches: BatchStore, blob: Blob, whole: pa.Buffer, batch: pa.RecordBatch, compressed: bool
    ) -> None:
        super().__init__(batches, blob, compressed)
        self.batch, self._whole, self._store = batch, whole, batches.store

    def verify(self) -> None:
        """Check that the mapped bytes still have the checksum that they had when they were written. O(bytes).

        Raises `CorruptState`.
        """
        verify_bytes(self._whole, self.blob, self._store.where, self._store.remedy)


class FileVerifier(threading.Thread):
    """A thread that verifies files in the background.

    ``files``: the bytes of each file, and the blob to compare them with. ``error``: the error for the first mismatch.
    """

    def __init__(self, where: str) -> None:
        super().__init__(name="ddflow verify", daemon=True)
        self.where, self.error = where, cast(CorruptState | None, None)
        self.files: list[tuple[pa.Buffer, Blob]] = []

    def run(self) -> None:
        """Verify the checksums of all files, one file after the other. O(bytes)."""
        try:
            for whole, blob in self.files:
                verify_bytes(whole, blob, self.where)
        except CorruptState as error:
            self.error = error


class BatchStore(Closing):
    """A store of batches. Each batch is a blob of a `BlobStore`.

    ``store``: the store of the blobs. ``compresses``: whether files that are not read in place are compressed.
    ``commits``: the number of attempted commits. ``lazy``: whether opened files are verified in the background, so that
    `finish_verification` raises the error.

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
        """Write a batch of any types to a new blob, and map the blob. O(bytes), without a second copy in memory.

        Raises the errors of `BlobStore.put`; after an error no file is left.
        """
        blob = self._write_blob(_release_memory_per_batch([batch]), batch.schema, False)
        with undo_on_failure(self.delete_unnamed_blob, blob.name):
            whole = self.store.map_blob(blob)
            return StoredBatch(self, blob, whole, _read_trusted_file(whole, batch.schema)[0], False)

    def write_mapped(self, batches: Iterable[pa.RecordBatch], schema: pa.Schema) -> pa.Table:
        """Write a table to a file, batch by batch. Map the file, and unlink it at once. O(bytes).

        The table stays valid after this store is closed. Each batch becomes a chunk of the table. ``schema``: the
        schema of every batch. Batches must share their dictionaries, because a file holds one dictionary per column.
        Raises the errors of `write`.
        """
        blob = self._write_blob(_release_memory_per_batch(batches), schema, False)
        try:
            mapped = _read_trusted_file(self.store.map_blob(blob), schema)
        finally:
            self.delete_unnamed_blob(blob.name)
        return pa.Table.from_batches(mapped, schema) if mapped else empty_table(schema)

    def write_unmapped(self, batch: pa.RecordBatch) -> StoredBlob:
        """Write a batch to a blob, but do not map the blob. The caller keeps the batch in memory. O(bytes).

        Raises the errors of `write`.
        """
        return StoredBlob(self, self._write_blob([batch], batch.schema, self.compresses), self.compresses)

    def write_table(self, batches: Iterable[pa.RecordBatch], schema: pa.Schema) -> Blob:
        """Write a table, batch by batch, to a blob that is not mapped. O(bytes). Raises the errors of `write`."""
        return self._write_blob(batches, schema, self.compresses)

    def _write_blob(self, batches: Iterable[pa.RecordBatch], schema: pa.Schema, compresses: bool) -> Blob:
        # Arrow writes a batch in about twenty pieces. For a small batch, let Arrow join the pieces first, so that
        # Python is called only once.
        small = isinstance(batches, list) and sum(map(pa.RecordBatch.get_total_buffer_size, batches)) <= SMALL

        buffered = pa.BufferOutputStream() if small else None

        def encode(sink: Any) -> None:
            with open_file_writer(sink, schema, compresses) as writer:
                for batch in batches:
                    if sink is not buffered:
                        sink.wanted += int(batch.nbytes)
                    writer.write_batch(batch)

        if buffered is None:
            return self.store.put("arrow", encode)
        encode(buffered)
        return self.store.put("arrow", buffered.getvalue())

    def open_batch(self, blob: Blob, schema: pa.Schema, rows: int, compressed: bool = False) -> StoredBatch:
        """Map, verify and read a batch that a manifest names.

        The code assumes that an attacker may have written the file. O(bytes).

        ``schema``, ``rows``: the expected schema and number of rows. ``compressed``: whether its buffers are
        compressed, for the result. Raises `CorruptState` with the name of the file.
        """
        self._named[blob.name] = self.commits
        whole = self.store.map_blob(blob, check=not self.lazy)
        if self.lazy:
            self._behind = self._behind or FileVerifier(self.store.where)
            self._behind.files.append((whole, blob))
        what = f"the file {blob.name} of {self.store.where}"
        return StoredBatch(self, blob, whole, read_batch(whole, schema, rows, what), compressed)

    def read_table(self, blob: Blob, schema: pa.Schema, rows: int | None) -> pa.Table:
        """Read a table that `write_table` wrote. O(bytes). Raises `CorruptState` with the name of the file.

        ``rows``: the expected number of rows, None for any.
        """
        self._named[blob.name] = self.commits
        what = f"the file {blob.name} of {self.store.where}"
        return pa.Table.from_batches(read_batches(self.store.map_blob(blob), schema, rows, what), schema)

    def start_verification(self) -> None:
        """Start to verify the lazily opened files in a thread. O(1)."""
        self.lazy = False
        if self._behind is not None:
            self._behind.start()

    def finish_verification(self) -> None:
        """Wait until all opened files are verified. Raises `CorruptState` with the name of the file."""
        if self._behind is not None:
            self._behind.join()
            if self._behind.error is not None:
                raise self._behind.error
            self._behind = None

    def register_manifest_files(self, names: Iterable[str]) -> None:
        """Record that the next manifest will name these files. Amortised O(names).

        A name stays registered for 1,000 commits after its last registration, even if the file is unused.
        """
        self.commits += 1
        self._named.update(dict.fromkeys(names, self.commits))
        if len(self._named) > self._most:
            self._named = {name: at for name, at in self._named.items() if at + 1000 >= self.commits}
            self._most = max(2 * len(self._named), 1 << 16)

    def delete_unnamed_blob(self, name: str) -> None:
        """Delete a blob, unless a manifest might name it.

        Errors are ignored, because a remaining file is only garbage.
        """
        if name not in self._named and os.getpid() == self._process:
            with suppress(DdflowError):
                self.store.delete(name)


def _release_memory_per_batch(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield the given batches, and release unused memory after each batch.

    Rows are written to disk when memory is scarce, but Arrow's allocator keeps freed pages unless told to release them.
    """
    for batch in batches:
        yield batch
        pa.default_memory_pool().release_unused()


def _read_trusted_file(whole: pa.Buffer, schema: pa.Schema) -> list[pa.RecordBatch]:
    """Read the batches of a file that this process has just written.

    The batches refer to the bytes of the file, and are not checked.
    """
    reader = pa.ipc.open_file(pa.BufferReader(whole))
    return [restore_types(reader.get_batch(i), schema) for i in range(reader.num_record_batches)]
