"""Run the peers that keep state on disk within a budget: RocksDB through rocksdict, and DuckDB on a file.

The peers keep the contract of `peers`, step by step. The peers use no log and no sync, because ddflow's spill is not
durable either. Each peer has the fastest settings we found; bench/README.md names slower settings.

>>> import tempfile
>>> events = pa.table({"key": [1, 1, 1], "val": [5, 6, None], "time": [0, 0, 1]})
>>> for peer in (Rocks, Duck):
...     with tempfile.TemporaryDirectory() as folder, closing(peer(folder, 2**27, events.schema)) as state:
...         tables = [state.take(events.slice(0, 2)), state.take(events.slice(2))]
...         print([tuple(row.values()) for table in tables for row in table.to_pylist()])
[(1, 6, 0, 1), (1, 6, 1, -1)]
[(1, 6, 0, 1), (1, 6, 1, -1)]
"""

from __future__ import annotations

from contextlib import closing
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from peers import Columns, by_key, columns_of, heads, in_arrival_order
from peers_sql import connect, one_step
from workloads import whole

__all__ = ["Duck", "Rocks", "closing"]
ABSENT = -1  # a missing value; values and codes are never negative


class Rocks:
    """RocksDB in raw mode.

    Half of ``memory`` is for memtables and half for the block cache; with ``mapped``, all of it is for memtables.

    With one Python call for each event, the bench would measure Python. So each step makes one sorted multi-get and one
    write batch. With ``mapped``, RocksDB reads its blocks from mapped files, as ddflow does with its batches. Indexes
    and filters take about 1.4 bytes for each key, which do not count towards the budget. When indexes and filters were
    inside the budget, they evicted each other from the cache, which was slower.
    """

    def __init__(self, folder: str, memory: int, schema: pa.Schema, mapped: bool = False) -> None:
        import rocksdict

        options, blocks = rocksdict.Options(raw_mode=True), rocksdict.BlockBasedOptions()
        blocks.set_bloom_filter(10, False)
        blocks.set_block_cache(rocksdict.Cache(0 if mapped else memory // 2))
        options.set_block_based_table_factory(blocks)
        options.set_allow_mmap_reads(mapped)
        options.set_max_write_buffer_number(2)
        options.set_write_buffer_size(memory // 2 if mapped else memory // 4)
        options.set_compression_type(rocksdict.DBCompressionType.none())
        options.increase_parallelism(2)
        self._db: Any = rocksdict.Rdict(folder, options)
        without_log: Any = rocksdict.WriteOptions()
        without_log.disable_wal = True
        self._db.set_write_options(without_log)
        self._batch, self._texts = rocksdict.WriteBatch, not pa.types.is_integer(schema.field("key").type)

    def take(self, events: pa.Table) -> pa.Table:
        """Return the updates of a step and update the state.  O(n log n), plus the work of RocksDB."""
        columns = columns_of(events)
        order = by_key(columns.key)
        ends = np.append((heads(columns.key[order]) | heads(columns.time[order]))[1:], True)
        rows = order[ends]  # the winners, by key and then by arrival
        head = heads(columns.key[rows])
        names = _names(columns.key[rows[head]], columns.keys)
        held = self._db.get(names)
        columns, old = self._with_old(columns, events, held)
        new = np.where(columns.live, columns.val, ABSENT)[rows]
        before = np.roll(new, 1)
        before[head] = old
        last = np.append(head[1:], True)
        self._write(names, new[last], old, columns.vals)
        changed = before != new
        (updates,) = in_arrival_order(columns, rows, before, changed & (before >= 0), changed & (new >= 0))
        return updates

    def _with_old(self, columns: Columns, events: pa.Table, held: list[bytes | None]) -> tuple[Columns, Any]:
        """Return the columns and the stored values, with the same dictionary code for equal texts."""
        if not self._texts:
            absent = np.int64(ABSENT).tobytes()
            return columns, np.frombuffer(b"".join([absent if one is None else one for one in held]), np.int64)
        val = whole(events["val"])
        coded = pc.dictionary_encode(pa.concat_arrays([val, pc.cast(pa.array(held, pa.binary()), val.type)]))
        codes = pc.fill_null(pc.cast(coded.indices, pa.int64()), ABSENT).to_numpy()
        return columns._replace(val=codes[: len(val)], vals=coded.dictionary), codes[len(val) :]

    def _write(self, names: list[bytes], new: Any, old: Any, words: pa.Array | None) -> None:
        """Write the new values of the keys that changed."""
        batch = self._batch(raw_mode=True)
        put, gone = np.flatnonzero((new != old) & (new >= 0)), np.flatnonzero((new < 0) & (old >= 0))
        values = _values(new[put], words)
        for place, value in zip(put.tolist(), values, strict=True):
            batch.put(names[place], value)
        for place in gone.tolist():
            batch.delete(names[place])
        self._db.write(batch)

    def close(self) -> None:
        """Close the database."""
        self._db.close()


def _names(keys: Any, words: pa.Array | None) -> list[bytes]:
    """Return keys as bytes that sort like the keys."""
    return keys.astype(">i8").view("V8").tolist() if words is None else _texts(keys, words)


def _values(values: Any, words: pa.Array | None) -> list[bytes]:
    return values.view("V8").tolist() if words is None else _texts(values, words)


def _texts(codes: Any, words: pa.Array) -> list[bytes]:
    every = pc.cast(words, pa.binary()).to_pylist()
    return [every[code] for code in codes.tolist()]


class Duck:
    """DuckDB with its state table in a file, two threads, and ``memory`` as its limit. The table has no key index.

    A primary key was no faster in steps of 100 k over 18 million keys, and ran out of memory in steps of a million.
    """

    def __init__(self, folder: str, memory: int, schema: pa.Schema) -> None:
        self._connection = connect(2, f"{folder}/state.duckdb")
        name = "bigint" if pa.types.is_integer(schema.field("key").type) else "varchar"
        for statement in (
            f"set memory_limit = '{memory} bytes'",
            f"set temp_directory = '{folder}/scratch'",
            f"create table state (key {name}, val {name})",
        ):
            self._connection.execute(statement)

    def take(self, events: pa.Table) -> pa.Table:
        """Return the updates of a step and update the state. O(state) time, because DuckDB scans the state."""
        return one_step(self._connection, events)

    def close(self) -> None:
        """Close the database."""
        self._connection.close()
