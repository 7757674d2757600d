"""What everything that is written to a disk goes through: a sink that counts and hashes the bytes on their way.

Invariant: `FileWriter.size` and `FileWriter.state` are those of the bytes that were taken, in their order, however few
of them the system takes at once. Whoever writes to it (Arrow, Parquet, a download) hands over its buffers one by one.
They go on in slices, so no second copy is made, and a slice is hashed while it is in the processor's cache. Small
pieces wait for each other, because Arrow writes twenty of them a batch; so `finish` is due when all is written. The
code between may change or lose the disk's error, so `failure` keeps it.

>>> pieces = []
>>> sink = FileWriter(lambda piece: pieces.append(bytes(piece)) or len(piece))
>>> sink.write(b"four"), sink.write(pa.py_buffer(b"more")), sink.finish()
(4, 4, None)
>>> pieces, sink.size, sink.state.digest() == xxhash.xxh3_128(b"fourmore").digest()
([b'fourmore'], 8, True)
"""

from collections.abc import Callable
from typing import Final

import pyarrow as pa
import xxhash

SLICE: Final = 1 << 20
"""Bytes that are hashed, then written, before the next are looked at."""
CRUMBS: Final = 1 << 16
"""Bytes that wait to be written together."""


class FileWriter:
    """``take``: writes the beginning of a piece, and says how many bytes that was; may raise `OSError`.

    ``size``: bytes so far.  ``wanted``: how many there will be at least, where the writer says so, for messages.
    ``failure``: the last error of ``take``.
    """

    closed = False

    def __init__(self, take: Callable[[memoryview], int]) -> None:
        self.size, self.wanted, self.state = 0, 0, xxhash.xxh3_128()
        self.failure: OSError | None = None
        self._take, self._crumbs = take, bytearray()

    def write(self, data: bytes | bytearray | memoryview | pa.Buffer) -> int:
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
        """Write the bytes that wait.  Twice is harmless."""
        if self._crumbs:
            crumbs, self._crumbs = self._crumbs, bytearray()
            with memoryview(crumbs) as whole:
                self._all(whole)

    def _all(self, piece: memoryview) -> None:
        self.state.update(piece)
        done = 0
        try:
            while done < piece.nbytes:
                done += self._take(piece[done:])
        except OSError as error:
            self.failure = error
            raise

    def tell(self) -> int:
        """Return the number of bytes so far."""
        return self.size

    def flush(self) -> None:
        """Do nothing: `finish` writes the bytes that wait."""

    def close(self) -> None:
        """Do nothing: the caller closes the file."""
