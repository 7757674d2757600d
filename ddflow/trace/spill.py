"""Spilling: a batch's columns written to a file and read where they lie, with a filter that says what is not there.

Invariant: the batch that comes back equals the one given, column for column; only where the bytes live has changed, and
what all rows share still takes none. Such a batch is searched, not indexed. Identities are uniform, so a look-up
interpolates, three cache lines a key. A split-block Bloom filter, ten bits a key in a mapped file of its own, keeps
most keys that are not there from touching the batch. It does not decide what is spilled, or when.

>>> import tempfile
>>> from ddflow.storage.folder.scratch import ScratchStore
>>> with tempfile.TemporaryDirectory() as place, BatchStore(ScratchStore(place)) as files:
...     batch = Batch.of([4, 9], [1, 2], [True, True], pa.table({"k": ["a", "b"]}))
...     there = spilled(batch, files)
...     there._check()
...     there.high.tolist(), there.rows.table.to_pylist(), there.mapped is not None
([4, 9], [{'k': 'a'}, {'k': 'b'}], True)
"""

from dataclasses import replace
from typing import Final, NamedTuple, Self

import numpy as np
import pyarrow as pa
from msgspec import Raw

from ddflow.columns.hashing import Ints, Narrow, Words, view
from ddflow.errors import CorruptState
from ddflow.kernels.bloom import BLOCK, blocks_for, fill, sift
from ddflow.kernels.ordered_tree import Identities
from ddflow.kernels.search import search
from ddflow.kernels.search_ordered import search_ordered
from ddflow.storage.closing import on_failure
from ddflow.storage.files.batch_store import BatchStore, StoredBatch
from ddflow.trace.batch import Batch
from ddflow.trace.batch_file import Layout, filed, unfiled

WORDS: Final = "words"
"""The column of a filter's file."""


class BloomFilter(NamedTuple):
    """Which identities of a batch's range may be in it."""

    base: np.uint64
    shift: np.uint64
    words: Words

    @classmethod
    def over(cls, high: Words, low: Words) -> Self:
        """Of sorted identities.  O(n)."""
        base, shift, size = cls.room(int(high[0]), int(high[-1]), high.size)
        words = np.zeros(size, np.uint64)
        fill(high, low, base, shift, words)
        return cls(base, shift, words)

    @classmethod
    def of(cls, batch: Batch, words: pa.RecordBatch) -> Self:
        """Build the filter over a batch's identities from its words.  Raises `CorruptState` if they do not match."""
        over = cls.room(int(batch.high[0]), int(batch.high[-1]), len(batch))
        column = words.column(0)
        if len(column) != over[2]:
            found = f"it has {len(column)} words, not {over[2]}"
            raise CorruptState("the Bloom filter of a batch", found, "replay the log")
        return cls(over[0], over[1], view(column, np.dtype(np.uint64)))

    @staticmethod
    def room(first: int, last: int, n: int) -> tuple[np.uint64, np.uint64, int]:
        """Compute base, shift, and the number of words, for n identities from ``first`` to ``last``."""
        reach = last - first
        shift = 64 - max(reach.bit_length(), 1)
        # Part of the shifted range may be empty: as many more blocks keep ten bits for each key.
        blocks = -(-blocks_for(n) * 2**64 // ((reach + 1) << shift))
        return np.uint64(first), np.uint64(shift), BLOCK * blocks


class BatchFiles:
    """The files of one batch: its columns, and its filter.

    ``layout``: what the columns are.  ``names``: the payload's.  ``record``: what an inventory says of it.
    """

    def __init__(self, columns: StoredBatch, layout: Layout, words: StoredBatch, bloom: BloomFilter) -> None:
        self.columns, self.layout, self.words, self.bloom = columns, layout, words, bloom
        self.nbytes = columns.nbytes + words.nbytes
        self.record: Raw | None = None
        self.names = columns.batch.schema.names[len(layout.own) + bool(layout.words) :]

    def drop(self) -> None:
        """Let them go; what refers to their bytes stays valid."""
        self.columns.drop()
        self.words.drop()

    def verify(self) -> None:
        """Compare the bytes with their checksums.  O(bytes).  Raises `CorruptState`."""
        self.columns.verify()
        self.words.verify()


def spilled(batch: Batch, batch_store: BatchStore) -> Batch:
    """Write the batch to files.  O(bytes).  Raises the errors of the store; no file is left then."""
    record, layout = filed(batch)
    columns = batch_store.write(record)
    with on_failure(columns.drop):
        return filtered(columns, layout, batch_store)


def filtered(columns: StoredBatch, layout: Layout, batch_store: BatchStore) -> Batch:
    """Add a Bloom filter, in another file, to a batch in a file.  O(n).  Raises the errors of the store."""
    batch = unfiled(columns.batch, layout)
    words = batch_store.write(
        pa.RecordBatch.from_arrays([pa.array(BloomFilter.over(batch.high, batch.low).words)], [WORDS])
    )
    return replace(batch, mapped=BatchFiles(columns, layout, words, BloomFilter.of(batch, words.batch)))


def find(
    batch: Batch, begin: int, high: Words, low: Words, starts: Narrow, wanted: Ints, order: Ints | None = None
) -> tuple[Ints, Ints]:
    """Which of the ``wanted`` groups have versions among a spilled batch's rows from ``begin`` on, and their last ones.

    ``high``, ``low``, ``starts``: sorted identities and where each group begins; ``order``: their words beyond two.
    ``wanted``: int64[m], ascending, in the batch's range.  Both int64[found].  O(m) expected; O(m log n)
    with ``order``.
    """
    bloom = batch.mapped.bloom
    maybe = np.empty(wanted.size, np.int64)
    n = sift(high, low, starts, wanted, bloom.base, bloom.shift, bloom.words, maybe)
    maybe = maybe[:n]
    if order is not None:
        first, last = located(batch, begin, high, low, order, starts.take(maybe).astype(np.int64))
        there = last > first
        return maybe[there], last[there] - 1
    row = np.empty(n, np.int64)
    second = np.uint64(batch.low.ctypes.data if low.size else 0)
    search(
        high, low, starts, maybe, np.uint64(batch.high.ctypes.data), second, np.int64(len(batch)), np.int64(begin), row
    )
    there = row >= 0
    return maybe[there], row[there]


def located(
    batch: Batch, begin: int, high: Words, low: Words, order: Ints | None, keys: Ints | None = None
) -> tuple[Ints, Ints]:
    """Where the rows of some identities, or prefixes of them, stand among a batch's rows from ``begin`` on.

    ``keys``: rows of these, None for all.  Both int64[m], [first, last).  O(m log n).
    """
    keys = np.arange(high.size) if keys is None else keys
    more = np.empty((high.size, 0), np.int64) if order is None else np.ascontiguousarray(order)
    theirs = np.ascontiguousarray(batch.order)
    first, last = np.empty(keys.size, np.int64), np.empty(keys.size, np.int64)
    sought, rows = Identities.of(high, low, more), Identities.of(batch.high, batch.low, theirs)
    search_ordered(sought, keys, rows, np.int64(begin), np.int64(len(batch)), first, last)
    return first, last
