"""Too many events to be resolved together: sorted on disk into ranges of identities, and resolved range by range.

Invariant: all events of a key are in one range, in the order of times, then of arrival; ranges ascend. So resolving
them one after the other gives what resolving all at once would, and the changes of a step are ascending too. No more
than one piece of the input and one range are ever in memory. Each piece is brought into the order of ranges, stably,
and written once; a range is then a slice of each, read where it lies. (An external distribution sort: identities are
uniform, so ranges are of one size.)

>>> import tempfile, numpy as np
>>> from ddflow.columns.hashing import Secret
>>> from ddflow.operators.upsert.events import Events
>>> events = pa.record_batch({"k": pa.array(range(100), pa.int64())})
>>> times = np.zeros(100, np.int64)
>>> from ddflow.storage.folder.scratch import ScratchStore
>>> with tempfile.TemporaryDirectory() as place, BatchStore(ScratchStore(place)) as scratch:
...     ranges = Ranges(RowHashes(events.schema, Secret(1, 2)), scratch, 4)
...     ranges.add(Events(events, times, times, np.arange(100)))
...     sizes = [part.times.size for part in ranges]
>>> len(sizes), sum(sizes)
(4, 100)
"""

from collections.abc import Iterator

import numpy as np
import pyarrow as pa

from ddflow.columns.hashing import Ints, RowHashes
from ddflow.operators.upsert.events import Events, joined
from ddflow.storage.files.batch_store import BatchStore, StoredBatch


class Ranges:
    """``keys``: hashes the key columns.  ``count``: how many ranges, a power of two."""

    def __init__(self, keys: RowHashes, scratch: BatchStore, count: int) -> None:
        self.keys, self.scratch = keys, scratch
        self.bits = count.bit_length() - 1
        self.pieces: list[tuple[StoredBatch, Ints]] = []

    def add(self, events: Events) -> None:
        """Write some events in the order of ranges.  O(n).  Raises `SpillFull`, `SpillFailed`."""
        rows, (high, _) = events.rows, self.keys.of(events.rows)
        # Shifted by all 64 bits a word would stay as it is.
        at = (high >> np.uint64(63) >> np.uint64(1) if not self.bits else high >> np.uint64(64 - self.bits)).astype(
            np.uint16
        )
        order = np.argsort(at, kind="stable")
        ends = np.concatenate([[0], np.cumsum(np.bincount(at, minlength=1 << self.bits))])
        numbers = [events.times, events.original, events.arrival]
        arrays = [pa.array(np.ascontiguousarray(column)) for column in numbers]
        fields = [pa.field(f"_{i}", pa.int64(), nullable=False) for i in range(3)]
        batch = pa.RecordBatch.from_arrays([*rows.columns, *arrays], schema=pa.schema([*rows.schema, *fields]))
        self.pieces.append((self.scratch.write(batch.take(pa.array(order))), ends))

    def __iter__(self) -> Iterator[Events]:
        for number in range(1 << self.bits):
            parts = [
                _part(piece.batch, int(ends[number]), int(ends[number + 1]))
                for piece, ends in self.pieces
                if ends[number] < ends[number + 1]
            ]
            if parts:
                yield joined(parts)

    def close(self) -> None:
        """Remove the files."""
        for piece, _ in self.pieces:
            piece.drop()
        self.pieces.clear()


def _part(batch: pa.RecordBatch, begin: int, end: int) -> Events:
    part = batch.slice(begin, end - begin)
    width = batch.num_columns - 3
    events = pa.RecordBatch.from_arrays(part.columns[:width], schema=pa.schema(list(batch.schema)[:width]))
    return Events(events, *(part.column(width + i).to_numpy() for i in range(3)))
