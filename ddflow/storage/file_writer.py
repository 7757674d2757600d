"""A part: a file being written, as an uncompressed Arrow IPC file, hashed on its way.

Invariant: it either gets its final name with every byte of every batch in it, or leaves no file. A write may be short,
or fail half way (a full disk), in the middle of Arrow's own code; what was written so far then goes, and the caller
learns how much room was wanted and how much there was. Arrow hands over its buffers one by one and they go to the
descriptor in slices, so no second copy of a batch is ever made; the xxh3-128 of the bytes is computed from the same
slices, while they are in the processor's cache. Nothing is synced: spilled bytes need not survive. Buffers begin at
multiples of 8 bytes.

>>> import tempfile
>>> with tempfile.TemporaryDirectory() as place:
...     claim = Claim.take(place)
...     part = Part(claim, pa.schema({"n": pa.int64()}))
...     part.write(pa.record_batch({"n": [1, 2]}))
...     written = part.finish()
...     os.path.getsize(written.path) == written.size, len(written.digest)
...     claim.release()
(True, 16)
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, Final, NamedTuple

import pyarrow as pa
import xxhash

from ddflow.storage.folder_lock import Claim, failure

SLICE: Final = 1 << 20
"""Bytes that are hashed, then written, before the next are looked at."""
CRUMBS: Final = 1 << 16
"""Bytes that wait to be written together."""


class Written(NamedTuple):
    """A whole file: what it is called, where it is, its bytes, and their xxh3-128."""

    name: str
    path: str
    size: int
    digest: bytes


class Sink:
    """What Arrow writes to: a descriptor, with a count and a hash of what went through.

    Arrow writes twenty crumbs a batch, so small pieces wait for each other; `finish` is due when all is written.
    """

    closed = False

    def __init__(self, file: int) -> None:
        self.file, self.size, self.state = file, 0, xxhash.xxh3_128()
        self._crumbs = bytearray()

    def write(self, data: Any) -> int:
        """Write all of a buffer, however often the system takes only a part of it."""
        with memoryview(data) as view, view.cast("B") as whole:
            if len(self._crumbs) + whole.nbytes <= CRUMBS:
                self._crumbs += whole
            else:
                self.finish()
                for begin in range(0, whole.nbytes, SLICE):
                    self._all(whole[begin : begin + SLICE])
            self.size += whole.nbytes
            return whole.nbytes

    def finish(self) -> None:
        """Write what waits.  Twice is harmless."""
        if self._crumbs:
            crumbs, self._crumbs = self._crumbs, bytearray()
            with memoryview(crumbs) as whole:
                self._all(whole)

    def _all(self, piece: memoryview) -> None:
        self.state.update(piece)
        done = 0
        while done < piece.nbytes:
            done += self._take(piece[done:])

    def _take(self, piece: memoryview) -> int:
        """Bytes of a piece that the system took."""
        return os.write(self.file, piece)

    def tell(self) -> int:
        """Bytes so far."""
        return self.size

    def flush(self) -> None:
        """What waits may wait: the caller finishes."""

    def close(self) -> None:
        """The descriptor is the part's."""


class Part:
    """``schema``: of every batch.  Open until `finish` or `abort`, or until nobody holds it, which aborts.

    Raises `SpillFull`, `SpillFailed`, `EngineClosed`; no file is left then, here and in every method.
    """

    def __init__(self, claim: Claim, schema: pa.Schema) -> None:
        self.claim, self.name = claim, claim.new_name()
        self._wanted = 0
        try:
            self._file = claim.create(self.name)
        except OSError as error:
            claim.remove(self.name)
            raise failure(claim.path, error, "write a file", 0) from None
        self._end = weakref.finalize(self, _abandon, claim, self.name, self._file)
        self._sink = Sink(self._file)
        with self._guarded():
            self._arrow = pa.ipc.new_file(self._sink, schema)

    def write(self, batch: pa.RecordBatch) -> None:
        """Append a batch.  O(bytes), without a copy of them.  Raises `pyarrow.ArrowInvalid` for another schema."""
        self._wanted += int(batch.nbytes)
        with self._guarded():
            self._arrow.write_batch(batch)
        # Whoever writes is short of memory, and Arrow's allocator keeps what columns before this one gave back.
        pa.default_memory_pool().release_unused()

    def finish(self) -> Written:
        """Complete the file and give it its name."""
        with self._guarded():
            self._arrow.close()
            self._sink.finish()
            path = self.claim.publish(self.name)
        self._end.detach()
        os.close(self._file)
        return Written(self.name, path, self._sink.size, self._sink.state.digest())

    def abort(self) -> None:
        """Remove what was written; twice is harmless."""
        self._end()

    @contextmanager
    def _guarded(self) -> Iterator[None]:
        """Whatever goes wrong inside leaves no file; what the disk refused gets its error."""
        try:
            yield
        except OSError as error:
            self.abort()
            raise failure(self.claim.path, error, "write a file", max(self._wanted, self._sink.size)) from None
        except BaseException:
            self.abort()
            raise


def _abandon(claim: Claim, name: str, file: int) -> None:
    claim.remove(name)
    with suppress(OSError):
        os.close(file)
