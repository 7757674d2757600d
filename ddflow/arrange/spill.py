"""Spilling: a batch's columns written to a file and read where they lie, with a filter that says what is not there.

Invariant: the batch that comes back equals the one given, column for column; only where the bytes live has changed, and
what all rows share still takes none.  Why that is not trivial: such a batch is searched, not indexed.  Identities are
uniform, so a look-up interpolates, three cache lines a key; and a split-block Bloom filter, ten bits a key in a mapped
file of its own, keeps most keys that are not there from touching it.  It does not decide what is spilled, or when.

>>> import tempfile
>>> with tempfile.TemporaryDirectory() as place, Folder.open(place) as folder:
...     batch = Batch.of([4, 9], [1, 2], [True, True], pa.table({"k": ["a", "b"]}))
...     there = spilled(batch, folder)
...     there._check()
...     there.high.tolist(), there.rows.table.to_pylist(), there.mapped is not None
([4, 9], [{'k': 'a'}, {'k': 'b'}], True)
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from ddflow.arrange.batch import Batch
from ddflow.identity import Ints, Narrow, Words
from ddflow.kernels.bloom import BLOCK, blocks_for, fill, sift
from ddflow.kernels.search import search
from ddflow.rows import Rows, plainly
from ddflow.store.folder import Folder
from ddflow.store.mapped import Mapped


class Sieve(NamedTuple):
    """Which identities of a batch's range may be in it."""

    base: np.uint64
    shift: np.uint64
    words: Words

    @classmethod
    def over(cls, high: Words, low: Words) -> Sieve:
        """Of sorted identities.  O(n)."""
        base, reach = int(high[0]), int(high[-1]) - int(high[0])
        shift = 64 - max(reach.bit_length(), 1)
        # Part of the shifted range may be empty: as many more blocks keep ten bits for each key.
        blocks = -(-blocks_for(high.size) * 2**64 // ((reach + 1) << shift))
        words = np.zeros(BLOCK * blocks, np.uint64)
        fill(high, low, np.uint64(base), np.uint64(shift), words)
        return cls(np.uint64(base), np.uint64(shift), words)


class Files:
    """The files of one batch: its columns, and its sieve."""

    def __init__(self, columns: Mapped, words: Mapped, sieve: Sieve) -> None:
        self._files = (columns, words)
        self.sieve, self.nbytes = sieve, columns.nbytes + words.nbytes

    def drop(self) -> None:
        """Unlink them; what refers to their bytes stays valid."""
        for file in self._files:
            file.drop()

    def verify(self) -> None:
        """Compare the bytes with their checksums.  O(bytes).  Raises `CorruptState`."""
        for file in self._files:
            file.verify()


def spilled(batch: Batch, folder: Folder) -> Batch:
    """The same batch in files.  O(bytes).  Raises `SpillFull`, `SpillFailed`; no file is left then."""
    own: dict[str, Any] = {
        "high": batch.high,
        "low": batch.low,
        "time": batch.time,
        "live": batch.live,
        "value": batch.value,
    }
    kept = {name: column for name, column in own.items() if column.size and all(column.strides)}
    arrays = [pa.array(column) for column in kept.values()]
    width = batch.order.shape[1]
    if width:
        arrays.append(pa.FixedSizeListArray.from_arrays(pa.array(batch.order.reshape(-1)), width))
    payload = batch.rows.table
    fields = [pa.field("", array.type) for array in arrays]
    arrays += batch.rows.columns
    columns = folder.write(pa.RecordBatch.from_arrays(arrays, schema=pa.schema([*fields, *payload.schema])))
    try:
        sieve = Sieve.over(batch.high, batch.low)
        words = folder.write(pa.RecordBatch.from_arrays([pa.array(sieve.words)], ["words"]))
    except BaseException:
        columns.drop()
        raise
    there = columns.batch
    mine = {name: _numbers(there.column(i), own[name].dtype) for i, name in enumerate(kept)}
    order = batch.order
    if width:
        order = _numbers(there.column(len(kept)).values, np.dtype(np.int64)).reshape(-1, width)
    rows = pa.RecordBatch.from_arrays(there.columns[len(fields) :], schema=payload.schema)
    sieve = sieve._replace(words=_numbers(words.batch.column(0), np.dtype(np.uint64)))
    return Batch(**(own | mine), order=order, rows=Rows(rows), mapped=Files(columns, words, sieve))


def _numbers(column: pa.Array, kind: Any) -> Any:
    """A column's values where they lie."""
    return plainly(np.frombuffer(column.buffers()[1], kind, len(column), column.offset * kind.itemsize))


def find(batch: Batch, begin: int, high: Words, low: Words, starts: Narrow, wanted: Ints) -> tuple[Ints, Ints]:
    """Which of the ``wanted`` groups have versions among a spilled batch's rows from ``begin`` on, and their last ones.

    ``high``, ``low``, ``starts``: sorted identities and where each group begins.  ``wanted``: int64[m], ascending, in
    the batch's range.  Both int64[found].  O(m) expected.
    """
    sieve = batch.mapped.sieve
    maybe = np.empty(wanted.size, np.int64)
    n = sift(high, low, starts, wanted, sieve.base, sieve.shift, sieve.words, maybe)
    maybe = maybe[:n]
    row = np.empty(n, np.int64)
    second = np.uint64(batch.low.ctypes.data if low.size else 0)
    search(high, low, starts, maybe, np.uint64(batch.high.ctypes.data), second, np.int64(len(batch)), np.int64(begin),
           row)  # fmt: skip
    there = row >= 0
    return maybe[there], row[there]
