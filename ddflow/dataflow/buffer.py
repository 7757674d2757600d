"""Store the updates of a step between operators, and merge updates into the output tables.

`UpdateBuffer` keeps updates in memory up to its share of the budget, and in mapped files beyond that. A step that is
computed in pieces yields each output in pieces, and each piece is ordered by time. `UpdateBuffer.merge_to_table` merges
the pieces, one window of times after the other, directly into the file that the caller's table maps. Retractions come
before assertions of the same time. Guarantees: updates that are read back equal the updates that were stored. Limits:
without a scratch store, all updates stay in memory.

>>> from ddflow.operators.updates import narrow_ints, ints
>>> pieces = [Updates(pa.table({"v": [v, v]}), narrow_ints(0, 1), ints(1, -1), ints(5, 9)) for v in (1, 2)]
>>> UpdateBuffer(None, 0).merge_to_table(pieces, pieces[0].rows.schema, pa.int64()).to_pydict()
{'v': [1, 2, 1, 2], '_time': [5, 5, 9, 9], '_diff': [1, 1, -1, -1]}
"""

from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import pyarrow as pa

from ddflow.columns.layout import make_writable
from ddflow.kernels.sort import order_by_rank
from ddflow.operators.updates import Updates
from ddflow.storage.files.batch_store import BatchStore


class UpdateBuffer:
    """A store for the updates of a step, in memory or in files.

    ``scratch``: the store for files, None without a budget. ``share``: the most bytes to keep in memory. ``home``: the
    store for changes of state.
    """

    def __init__(self, scratch: BatchStore | None, share: int, home: BatchStore | None = None) -> None:
        self.scratch, self.share, self.bytes_resident, self.home = scratch, share, 0, home

    def store_copy(self, updates: Updates) -> Updates:
        """Copy updates to memory or a file of the buffer, because the caller may overwrite the given arrays. O(n)."""
        rows = updates.rows.select(updates.rows.schema.names)
        own = Updates(rows, updates.ranks.copy(), updates.diffs, updates.times)
        size = rows.nbytes + own.ranks.nbytes + own.diffs.nbytes
        if self.scratch is None or self.bytes_resident + size <= self.share:
            self.bytes_resident += size
            return own
        schema = pa.schema([*rows.schema, pa.field("", pa.int32()), pa.field("", pa.int64())])
        columns = [*rows.combine_chunks().columns, pa.array(own.ranks), pa.array(own.diffs)]
        there = self.scratch.write_mapped(pa.Table.from_arrays(columns, schema=schema).to_batches(), schema)
        width = len(rows.schema)
        kept = pa.Table.from_arrays(there.columns[:width], schema=rows.schema)
        ranks, diffs = (make_writable(there.column(width + i).to_numpy()) for i in range(2))  # maps are read-only
        return Updates(kept, ranks, diffs, updates.times)

    def merge_to_table(
        self,
        pieces: Sequence[Updates],
        schema: pa.Schema,
        time_type: pa.DataType | None,
        shown: pa.Schema | None = None,
    ) -> pa.Table:
        """Merge the pieces into one table that is ordered by time and has the columns of `Updates.to_table`. O(n)."""
        if len(pieces) == 1:
            return pieces[0].to_table(schema, time_type, shown)
        return self.concat_tables(self._merge_by_window(pieces, schema, time_type))

    def concat_tables(self, tables: Iterable[pa.Table]) -> pa.Table:
        """Concatenate tables in memory, or in a mapped file if they exceed the buffer's share of memory."""
        read: list[pa.Table] = []
        rest, size = iter(tables), 0
        for table in rest:
            read.append(table)
            size += table.nbytes
            if self.scratch is not None and len(read) > 1 and size > self.share:
                return self.scratch.write_mapped(_drain_batches(read, rest), table.schema)
        return pa.concat_tables(read)

    def _merge_by_window(
        self, pieces: Sequence[Updates], schema: pa.Schema, time_type: pa.DataType | None
    ) -> Iterable[pa.Table]:
        """Yield the merged output, one window of times after the other."""
        counts = np.zeros(max(pieces[0].times.size, 1), np.int64)
        for piece in pieces:
            counts += np.bincount(piece.ranks, minlength=counts.size)
        total = int(counts.sum())
        if not total:
            yield pieces[0].to_table(schema, time_type)
            return
        size = sum(piece.rows.nbytes for piece in pieces) // max(total, 1) + 16
        most = max(self.share // 2 // size, 1024) if self.scratch is not None else max(total, 1)
        ends = np.cumsum(counts)
        begin = 0
        while begin < counts.size:
            done = int(ends[begin - 1]) if begin else 0
            end = max(int(np.searchsorted(ends, done + most, side="right")), begin + 1)
            edges = np.array(
                [begin, end], np.int32
            )  # int32 like the ranks, because `searchsorted` would convert the ranks to another type
            cuts = [(piece, *piece.ranks.searchsorted(edges).tolist()) for piece in pieces]
            window = self._merge_window([cut for cut in cuts if cut[1] < cut[2]], begin, end, schema, time_type)
            yield from coalesce_tables(window, most)
            begin = end

    def _merge_window(
        self,
        cuts: Sequence[tuple[Updates, int, int]],
        begin: int,
        end: int,
        schema: pa.Schema,
        time_type: pa.DataType | None,
    ) -> Iterable[pa.Table]:
        """Yield the merged updates whose ranks are in [begin, end)."""
        parts = [_slice_updates(*each) for each in cuts]
        if end == begin + 1:
            # A single time needs no sort. Each piece either begins with all its retractions, or has all updates of each
            # of its keys.
            firsts = [int(np.count_nonzero(part.diffs < 0)) for part in parts]
            if all((part.diffs[:first] < 0).all() for part, first in zip(parts, firsts, strict=True)):
                minus = [_slice_updates(each, 0, first) for each, first in zip(parts, firsts, strict=True)]
                plus = [_slice_updates(each, first, each.diffs.size) for each, first in zip(parts, firsts, strict=True)]
                parts = [each for each in (*minus, *plus) if each.diffs.size]
            yield from (part.to_table(schema, time_type) for part in parts)
        elif parts:
            ranks = np.concatenate([part.ranks for part in parts])
            order = np.empty(ranks.size, np.int64)
            diffs = np.concatenate([part.diffs for part in parts])
            order_by_rank(ranks - np.int32(begin), (diffs > 0).astype(np.int64), np.int64(end - begin), order)
            rows = pa.concat_tables([part.rows for part in parts]).combine_chunks()
            whole = Updates(rows, ranks, diffs, parts[0].times)
            yield whole.take(order).to_table(schema, time_type)


def _slice_updates(updates: Updates, begin: int, end: int) -> Updates:
    """Return the slice [begin, end) of the updates."""
    rows = updates.rows.slice(begin, end - begin)
    return Updates(rows, updates.ranks[begin:end], updates.diffs[begin:end], updates.times)


def _drain_batches(read: list[pa.Table], rest: Iterator[pa.Table]) -> Iterator[pa.RecordBatch]:
    """Yield the batches of all tables. Release each table of ``read`` after all its batches were yielded."""
    while read:
        yield from read.pop(0).to_batches()
    for table in rest:
        yield from table.to_batches()


def coalesce_tables(tables: Iterable[pa.Table], rows: int) -> Iterator[pa.Table]:
    """Join small tables into larger tables that have one chunk each.

    Each table except the last has at least ``rows`` rows. An operation on a table of thousands of chunks would be slow.
    """
    read: list[pa.Table] = []
    for table in tables:
        read.append(table)
        if sum(part.num_rows for part in read) >= rows:
            yield pa.concat_tables(read).combine_chunks()
            read = []
    if read:
        yield pa.concat_tables(read).combine_chunks()
