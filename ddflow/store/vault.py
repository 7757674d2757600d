"""The vault of one engine: batches that go into a store, and are read where they lie.

Invariant: a file that a manifest of ours named, or may have named, is never deleted from here; one that none did is
deleted as soon as nobody needs it.  Why that is not trivial: most batches are merged into others before they are ever
committed, and would otherwise be garbage for a collector to find; but a commit whose answer was lost may have happened,
so files count as named from just before it is tried.  A forked child deletes nothing: its parent goes on.

>>> from ddflow.store.memory import MemoryStore
>>> vault = Vault(MemoryStore())
>>> kept = vault.write(pa.record_batch({"n": [1, 2]}))
>>> len(vault.store.list()), vault.table(kept.blob, pa.schema({"n": pa.int64()}), 2).to_pylist()
(1, [{'n': 1}, {'n': 2}])
>>> kept.drop()  # a manifest may name it by now, since it was asked for by its name
>>> other = vault.write(pa.record_batch({"n": [3]}))
>>> other.drop()
>>> len(vault.store.list()), other.batch.column(0).to_pylist()
(1, [3])
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Iterable
from contextlib import suppress
from typing import Any

import pyarrow as pa

from ddflow.errors import DdflowError
from ddflow.store.arrow_file import read_batches
from ddflow.store.blob import Blob, Store, verified
from ddflow.store.mapped import opened, restored


class Kept:
    """A batch in a blob.  ``batch``: over the mapped bytes.  ``blob``: as a manifest names it."""

    def __init__(self, vault: Vault, blob: Blob, whole: pa.Buffer, batch: pa.RecordBatch) -> None:
        self.blob, self.batch, self.nbytes = blob, batch, blob.length
        self._whole, self._where = whole, vault.store.where
        self._end = weakref.finalize(self, vault.forget, blob.name)
        self._end.atexit = False  # what a crash would leave, an end may leave

    def verify(self) -> None:
        """Compare the mapped bytes with the checksum of those written.  O(bytes).  Raises `CorruptState`."""
        verified(self._whole, self.blob, self._where)

    def drop(self) -> None:
        """Delete the blob unless a manifest may name it.  Arrays that refer to it stay valid; twice is harmless."""
        self._end()


class Vault:
    """``store``: where blobs go.  ``named``: the names that a manifest may hold."""

    def __init__(self, store: Store) -> None:
        self.store, self.named = store, set[str]()
        self._process = os.getpid()

    def write(self, batch: pa.RecordBatch) -> Kept:
        """Write a batch of any types to a blob of its own, and map it.  O(bytes); no second copy in memory.

        Raises `StorageFull` and `StorageFailed`; nothing is left then.
        """

        def arrow(sink: Any) -> None:
            with pa.ipc.new_file(sink, batch.schema) as writer:
                writer.write_batch(batch)

        blob = self.store.put("arrow", arrow)
        # Whoever writes may be short of memory, and Arrow's allocator keeps what columns before this one gave back.
        pa.default_memory_pool().release_unused()
        whole = self.store.map(blob)
        return Kept(self, blob, whole, restored(opened(whole).get_batch(0), batch.schema))

    def put(self, batches: Iterable[pa.RecordBatch], schema: pa.Schema) -> Blob:
        """Write a table, batch by batch, to a blob that is not read here.  O(bytes).  Raises as `write` does."""

        def arrow(sink: Any) -> None:
            with pa.ipc.new_file(sink, schema) as writer:
                for batch in batches:
                    writer.write_batch(batch)

        return self.store.put("arrow", arrow)

    def open(self, blob: Blob, schema: pa.Schema, rows: int) -> Kept:
        """A batch that a manifest names: mapped, verified, and read with suspicion.  O(bytes).

        ``schema``, ``rows``: what it must have.  Raises `CorruptState`, naming the file.
        """
        self.named.add(blob.name)
        whole = self.store.map(blob)
        what = f"the file {blob.name} of {self.store.where}"
        return Kept(self, blob, whole, read_batches(whole, schema, rows, what)[0])

    def table(self, blob: Blob, schema: pa.Schema, rows: int) -> pa.Table:
        """A table that `put` wrote.  O(bytes).  Raises `CorruptState`, naming the file."""
        self.named.add(blob.name)
        what = f"the file {blob.name} of {self.store.where}"
        return pa.Table.from_batches(read_batches(self.store.map(blob), schema, rows, what), schema)

    def forget(self, name: str) -> None:
        """Delete a blob that no manifest names.  Never fails: what stays is garbage."""
        if name not in self.named and os.getpid() == self._process:
            with suppress(DdflowError):
                self.store.delete(name)
