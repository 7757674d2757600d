"""Spill a batch to an Arrow file with its rows and a file with its Bloom filter, and read both files in place.

Guarantees: a file is verified when it is mapped. A key that the filter excludes is not in the batch.

>>> import tempfile
>>> from ddflow.storage.folder.scratch import ScratchStore
>>> with tempfile.TemporaryDirectory() as place, BatchStore(ScratchStore(place)) as files:
...     batch = Batch.from_lists([4, 9], [1, 2], [True, True], pa.table({"k": ["a", "b"]}))
...     there = spill_batch(batch, files)
...     there._check_invariants()
...     there.high.tolist(), there.rows.table.to_pylist(), there.mapped is not None
([4, 9], [{'k': 'a'}, {'k': 'b'}], True)
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Annotated, Any, Final, Literal, NamedTuple, Self

import numpy as np
import pyarrow as pa
from msgspec import Meta, Raw

from ddflow.columns.hashing import NONE, Ints, Narrow, Words, view_values
from ddflow.columns.rows import Rows
from ddflow.errors import CorruptState
from ddflow.kernels.bloom import BLOCK, add_identities, count_blocks, find_possible_groups
from ddflow.kernels.search import search_batch
from ddflow.storage.closing import undo_on_failure
from ddflow.storage.fields import Instant, StrictRecord
from ddflow.storage.files.batch_store import BatchStore, StoredBatch
from ddflow.trace.batch import Batch, repeat_value

KINDS: Final[dict[str, Any]] = {
    "high": np.uint64,
    "low": np.uint64,
    "time": np.int64,
    "live": np.uint8,
    "value": np.uint64,
}
"""The columns of a batch outside its payload, in the order of the file, with their types."""
MADE: Final = ("high", "low", "value")
"""The columns that can be computed again from the row of a live version."""
Made = Callable[[pa.Table | pa.RecordBatch], tuple[Words, Words, Words] | tuple[Words, Words, Words, Ints]]
"""A function that computes identities (high, low) and value hashes of rows.

For differences, the function returns the identity words beyond two as a further result. The results for
deletions are not used.
"""
MOST_WORDS: Final = 1 << 10
"""The maximum number of order words of a version."""


class FileLayout(StrictRecord, frozen=True):
    """The columns of a batch's file.

    ``own``: the columns of `KINDS` in the file.  ``time``, ``live``: the value that all versions share, or None if the
    file has the column.  ``words``: the number of order words of a version.  ``compressed``: whether the identities and
    hashes of live versions are zero in the file, and are computed again from the rows of these versions.
    """

    own: tuple[Literal["high", "low", "time", "live", "value"], ...]
    time: Instant | None
    live: Annotated[int, Meta(ge=0, le=1)] | None
    words: Annotated[int, Meta(ge=0, le=MOST_WORDS)]
    compressed: bool

    def __post_init__(self) -> None:
        own = self.own
        if (
            own != tuple(filter(own.__contains__, KINDS))
            or "high" not in own
            or ("time" in own) == (self.time is not None)
            or ("live" in own) == (self.live is not None)
        ):
            raise ValueError(f"a file cannot have the columns {own} with time {self.time} and live {self.live}")

    def build_schema(self, payload: pa.Schema) -> pa.Schema:
        """Return the schema of the file.

        ``payload``: the schema of the payload. The columns of the payload come last.
        """
        fields = [pa.field(f"_{name}", pa.from_numpy_dtype(KINDS[name])) for name in self.own]
        if self.words:
            fields.append(pa.field("_order", pa.list_(pa.int64(), self.words)))
        return pa.schema([*fields, *payload])


def encode_batch(
    batch: Batch, compressed: bool = False, schemas: dict[Any, tuple[pa.Schema, pa.Schema]] | None = None
) -> tuple[pa.RecordBatch, FileLayout]:
    """Return the columns to write and the layout of the file.

    O(columns), because nothing is copied; O(n) if ``compressed``. ``schemas``: the schemas of earlier files, for reuse.

    >>> batch = Batch.from_lists([4, 9], [1, 2], [True, True], pa.table({"k": ["a", "b"]}))
    >>> record, layout = encode_batch(batch)
    >>> record.schema.names, layout.own, layout.words
    (['_high', '_time', '_live', 'k'], ('high', 'time', 'live'), 0)
    >>> decode_batch(record, layout).rows.table.to_pylist()
    [{'k': 'a'}, {'k': 'b'}]
    """
    kept = {name: column for name in KINDS if (column := getattr(batch, name)).size and all(column.strides)}
    time = None if "time" in kept else int(batch.time[0])
    live = None if "live" in kept else int(batch.live[0])
    if compressed:
        made = MADE[:-1] if batch.summed else MADE
        kept |= {name: np.where(batch.live != 0, np.uint64(0), kept[name]) for name in made if name in kept}
    own: Any = tuple(kept)
    layout = FileLayout(own, time, live, batch.order.shape[1], compressed)
    arrays = list(map(pa.array, kept.values()))
    if layout.words:
        arrays.append(pa.FixedSizeListArray.from_arrays(pa.array(batch.order.reshape(-1)), layout.words))
    arrays += batch.rows.columns
    schemas, payload = {} if schemas is None else schemas, batch.rows.schema
    key = id(payload), own, layout.words
    if key not in schemas:
        schemas[key] = payload, layout.build_schema(payload)  # with the payload, so that no other schema gets its id
    return pa.RecordBatch.from_arrays(arrays, schema=schemas[key][1]), layout


def decode_batch(record: pa.RecordBatch, layout: FileLayout, mapped: Any = None) -> Batch:
    """Build the batch over the memory of a file's record batch.  O(columns).

    Call `fill_hashes` on the batch of a compressed file.  ``mapped``: the file for `Batch.mapped`.
    """
    n, schema = record.num_rows, record.schema
    own = {name: view_values(record.column(i), np.dtype(KINDS[name])) for i, name in enumerate(layout.own)}
    at = len(own)
    order = np.empty((n, 0), np.int64)
    if layout.words:
        order = view_values(record.column(at).values, np.dtype(np.int64)).reshape(-1, layout.words)[:n]
    payload = pa.schema([schema.field(i) for i in range(at + bool(layout.words), len(schema))])
    rows = pa.RecordBatch.from_arrays(record.columns[at + bool(layout.words) :], schema=payload)
    time = own["time"] if layout.time is None else repeat_value(layout.time, n, np.int64)
    live = own["live"] if layout.live is None else repeat_value(layout.live, n, np.uint8)
    low, value = own.get("low", NONE), own.get("value", NONE)
    return Batch(own["high"], low, time, live, value, order, Rows(rows), mapped)


def fill_hashes(batch: Batch, made: Sequence[Words]) -> Batch:
    """Fill in the identities and hashes of a compressed batch's live rows. ``made`` has these values. O(n)."""
    live = batch.live != 0
    high, low, value = (
        np.where(live, each, was) if each.size else was
        for each, was in zip(made[:3], (batch.high, batch.low, batch.value), strict=True)
    )
    return replace(batch, high=high, low=low, value=value)


WORDS: Final = "words"
"""The name of the only column in the file of a Bloom filter."""


class BloomFilter(NamedTuple):
    """A Bloom filter of the identities of a batch. An identity that the filter excludes is not in the batch."""

    base: np.uint64
    shift: np.uint64
    words: Words

    @classmethod
    def from_identities(cls, high: Words, low: Words) -> Self:
        """Build the filter of sorted identities.  O(n)."""
        base, shift, size = cls.compute_size(int(high[0]), int(high[-1]), high.size)
        words = np.zeros(size, np.uint64)
        add_identities(high, low, base, shift, words)
        return cls(base, shift, words)

    @classmethod
    def from_words(cls, batch: Batch, words: pa.RecordBatch) -> Self:
        """Build the filter of a batch from its stored words. Raises `CorruptState` if the number of words is wrong."""
        over = cls.compute_size(int(batch.high[0]), int(batch.high[-1]), len(batch))
        column = words.column(0)
        if len(column) != over[2]:
            found = f"it has {len(column)} words, not {over[2]}"
            raise CorruptState("the Bloom filter of a batch", found, "replay the log into a new state")
        return cls(over[0], over[1], view_values(column, np.dtype(np.uint64)))

    @staticmethod
    def compute_size(first: int, last: int, n: int) -> tuple[np.uint64, np.uint64, int]:
        """Compute base, shift and the number of words of a filter for n identities from ``first`` to ``last``."""
        reach = last - first
        shift = 64 - max(reach.bit_length(), 1)
        # If a part of the shifted range is unused, the filter needs more blocks to have ten bits for each key.
        blocks = -(-count_blocks(n) * 2**64 // ((reach + 1) << shift))
        return np.uint64(first), np.uint64(shift), BLOCK * blocks


class BatchFiles:
    """The files of one batch: its columns and its Bloom filter.

    ``layout``: the layout of the columns' file.  ``names``: the names of the payload's columns.  ``record``: the JSON
    of the batch's record in an inventory.
    """

    def __init__(self, columns: StoredBatch, layout: FileLayout, words: StoredBatch, bloom: BloomFilter) -> None:
        self.columns, self.layout, self.words, self.bloom = columns, layout, words, bloom
        self.nbytes = columns.nbytes + words.nbytes
        self.record: Raw | None = None
        self.names = columns.batch.schema.names[len(layout.own) + bool(layout.words) :]

    def drop(self) -> None:
        """Drop the files.  Arrays that map the files stay valid."""
        self.columns.drop()
        self.words.drop()

    def verify(self) -> None:
        """Compare the bytes of both files with their checksums.  O(bytes).  Raises `CorruptState`."""
        self.columns.verify()
        self.words.verify()


def spill_batch(batch: Batch, batch_store: BatchStore) -> Batch:
    """Write the batch to files. O(bytes). Raises the errors of the store. After an error, no file is left."""
    record, layout = encode_batch(batch)
    columns = batch_store.write(record)
    with undo_on_failure(columns.drop):
        return add_bloom_filter(columns, layout, batch_store)


def add_bloom_filter(columns: StoredBatch, layout: FileLayout, batch_store: BatchStore) -> Batch:
    """Write a second file with the Bloom filter of a batch that is in a file. O(n). Raises the errors of the store."""
    batch = decode_batch(columns.batch, layout)
    words = batch_store.write(
        pa.RecordBatch.from_arrays([pa.array(BloomFilter.from_identities(batch.high, batch.low).words)], [WORDS])
    )
    return replace(batch, mapped=BatchFiles(columns, layout, words, BloomFilter.from_words(batch, words.batch)))


def find_groups_in_batch(
    batch: Batch, begin: int, high: Words, low: Words, starts: Narrow, wanted: Ints
) -> tuple[Ints, Ints]:
    """Find the ``wanted`` groups that have versions in a spilled batch, and the last row of each found group.

    Rows before ``begin`` are ignored. ``high``, ``low``, ``starts``: sorted identities, and the positions where groups
    begin. ``wanted``: int64[m], ascending numbers of groups within the batch's range. Returns the groups and the
    rows, both as int64[found]. O(m) expected.
    """
    bloom = batch.mapped.bloom
    maybe = np.empty(wanted.size, np.int64)
    n = find_possible_groups(high, low, starts, wanted, bloom.base, bloom.shift, bloom.words, maybe)
    maybe = maybe[:n]
    row = np.empty(n, np.int64)
    second = np.uint64(batch.low.ctypes.data if low.size else 0)
    search_batch(
        high, low, starts, maybe, np.uint64(batch.high.ctypes.data), second, np.int64(len(batch)), np.int64(begin), row
    )
    there = row >= 0
    return maybe[there], row[there]
