"""Pack rows into chunks, and unpack the chunks in another task. A chunk is a binary value that a shuffle can move.

`Partitioner` packs the rows of inputs, and `pack_exchange_sums` packs the rows of exchanges. `ShuffleReader` collects
the chunks of one task, and reads their rows in the order of arrival.

Guarantees: rows keep their order and types, and a chunk stays below the size that Spark can move. With a memory limit
and a scratch folder, a reader spills chunks to disk.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby, pairwise
from typing import Any, Final, NamedTuple, Self, cast

import numpy as np
import pyarrow as pa
import xxhash

from ddflow.columns.hashing import (
    Ints,
    Narrow,
    Secret,
    Words,
    assign_partitions,
    compute_identities,
    compute_value_hashes,
)
from ddflow.columns.layout import offset_width
from ddflow.columns.rows import RowPool, Rows, gather_table
from ddflow.columns.schema import build_updates_schema, compute_decoded_size, empty_table, to_array, to_batch
from ddflow.errors import Misrouted
from ddflow.partitions.messages import MessageSummary, merge_summaries
from ddflow.partitions.stages import Exchange, Stages
from ddflow.storage.closing import Closing
from ddflow.storage.files.arrow_file import restore_types
from ddflow.storage.files.batch_store import BatchStore
from ddflow.storage.folder.scratch import ScratchStore

PACKED: Final = pa.schema(
    [
        ("to", pa.int32()),
        ("what", pa.int32()),
        ("origin", pa.string()),
        ("at", pa.int64()),
        ("rows", pa.int64()),
        ("digest", pa.binary()),
        ("payload", pa.binary()),
    ]
)
"""The schema of the table of chunks that goes through a shuffle.

- ``to``: the number of the receiving partition.
- ``what``: the number of the input, or -1 minus the number of the exchange, or `RECEIPT`. ``what`` is null in a row
  without contents. A row without contents has one purpose: the shuffle starts the task of the partition.
- ``origin``: the origin of the rows, as text that sorts in the order of arrival. If a chunk of an input has no payload,
  ``origin`` has the text of a `MessageSummary`.
- ``at``: the place of the chunk's first row in its origin.
- ``rows``, ``digest``, ``payload``: the number of rows, their digest, and the rows themselves.
"""
RECEIPT: Final = 2**31 - 1
NO_ROWS: Final = bytes(16)
"""The digest of an empty set of rows."""
ARRIVAL: Final = "_arrival"
"""The name of the last column of a chunk, which holds the place of each row in its origin.

Readers find this column by its position, not by its name.
"""


class RowOrigins(NamedTuple):
    """The origin of each row, such as a Kafka partition, and the place of the row in its origin.

    - ``names``: names of origins, which sort in the order of arrival.
    - ``which``: int64[n], the index of each row's origin in ``names``, or empty if all rows have the first origin.
    - ``places``: int64[n], the place of each row in its origin.
    - ``has_arrival_column``: whether chunks carry the places as a last column.

    >>> rows = pa.record_batch({"n": [10, 11, 12]})
    >>> hashes = hash_rows(rows, Secret(1, 2))
    >>> chunks = pack_chunks(rows, np.array([1, 0, 1], np.int32), hashes, RowOrigins.of_range("0000000007", 40, 3),
    ...     what=0)
    >>> [(c["to"], c["origin"], c["at"], c["rows"]) for c in chunks.to_pylist()]
    [(0, '0000000007', 41, 1), (1, '0000000007', 40, 2)]
    >>> unpack_chunk(slice_binary_value(chunks.column("payload"), 1), rows.schema, 2).to_pydict()
    {'n': [10, 12]}
    >>> total = add_digests(*chunks.column("digest").to_pylist())
    >>> total == compute_digests(hashes, np.zeros(1, np.int64))[0].as_py()
    True
    """

    names: Sequence[str]
    which: Ints
    places: Ints
    has_arrival_column: bool

    @classmethod
    def of_range(cls, name: str, first: int, rows: int) -> Self:
        """Build the origin of consecutive rows. The first row has the place ``first``."""
        return cls([name], np.empty(0, np.int64), np.arange(first, first + rows), False)


class ChunkLimits(NamedTuple):
    """The maximal number of rows, and of bytes, in a batch that is packed at once."""

    rows: int
    bytes: int


def choose_chunk_limits(partitions: int) -> ChunkLimits:
    """Choose how many rows and bytes to pack at once for a number of partitions. Pure.

    The limits are 262,144 rows or 8 MB for few partitions. Each chunk has a fixed cost. Therefore the limits are
    larger for many partitions: then each chunk has 512 rows or 16 KB. The maximum is 2 million rows or 64 MB, because
    four copies of the rows may be in memory.
    """
    return ChunkLimits(min(max(1 << 18, partitions << 9), 1 << 21), min(max(8 << 20, partitions << 14), 64 << 20))


def select_chunk_schema(declared: pa.Schema, columns: Sequence[str] | None) -> pa.Schema:
    """Select the columns of an input's chunks, in declared order.

    ``declared``: the declared columns. ``columns``: the names of the columns to select; None for all.
    """
    return declared if columns is None else pa.schema([field for field in declared if field.name in columns])


def add_arrival_column(schema: pa.Schema, has_places: bool) -> pa.Schema:
    """Append the column of places to the columns of a chunk if ``has_places``."""
    return schema.append(pa.field(ARRIVAL, pa.int64(), nullable=False)) if has_places else schema


def exchange_sums_schema(exchange: Exchange) -> pa.Schema:
    """Return the schema of rows that go to an exchange: the carried columns, `_time` as int64, and `_diff`."""
    return build_updates_schema(exchange.schema, pa.int64())


def hash_rows(rows: pa.RecordBatch, secret: Secret) -> Words:
    """Hash each row with a secret and the names of its columns, as uint64[n]. O(n)."""
    names = "".join(f"{len(name)} {name}" for name in rows.schema.names).encode()
    return compute_value_hashes(rows, Secret(secret.k0 ^ xxhash.xxh3_64_intdigest(names), secret.k1))


def compute_digests(hashes: Words, starts: Ints) -> pa.Array:
    """Compute a digest of 16 bytes for each group of row hashes. O(n).

    A digest holds the sum of the hashes and the sum of their squares, modulo 2**64. ``starts``: int64[k], ascending,
    the position of the first row of each group.
    """
    sums = np.stack([np.add.reduceat(hashes, starts), np.add.reduceat(hashes * hashes, starts)], axis=1)
    ends = np.arange(0, 16 * starts.size + 1, 16, dtype=np.int32)
    data = np.ascontiguousarray(sums.astype("<u8"))
    return pa.Array.from_buffers(pa.binary(), starts.size, [None, pa.py_buffer(ends), pa.py_buffer(data)])


def add_digests(*each: bytes) -> bytes:
    """Add digests. The order of the added digests does not matter, and adding `NO_ROWS` changes nothing. O(digests)."""
    first = sum(int.from_bytes(digest[:8], "little") for digest in each)
    second = sum(int.from_bytes(digest[8:], "little") for digest in each)
    return (first % 2**64).to_bytes(8, "little") + (second % 2**64).to_bytes(8, "little")


def pack_chunks(rows: pa.RecordBatch, to: Narrow, hashes: Words, origin: RowOrigins, what: int) -> pa.RecordBatch:
    """Pack rows into chunks, one for each pair of partition and origin. The result has the columns `PACKED`.

    ``to``: int32[n], the partition of each row. ``hashes``: uint64[n], the hash of each row. Chunks are sorted by
    partition and origin. Rows keep their order within a chunk, unless chunks carry places: then the rows are sorted by
    place. O(n), and a fixed cost for each chunk. Without rows, the result has no chunks.
    """
    n, several = rows.num_rows, len(origin.names)
    group: Any = to if several == 1 else to.astype(np.int64) * several + origin.which
    order, starts = sort_by_group(group)
    if origin.has_arrival_column and n:
        behind = np.diff(origin.places[order]) < 0
        behind[starts[1:] - 1] = False
        if behind.any():
            order = np.lexsort((origin.places, group))
    schema, first = add_arrival_column(rows.schema, origin.has_arrival_column), order[starts]
    table = gather_table(RowPool(rows.schema, [Rows(rows)]), order, rows.schema)
    columns = [*map(to_array, table.columns), *([pa.array(origin.places[order])] if origin.has_arrival_column else [])]
    payload = _serialize_slices(pa.RecordBatch.from_arrays(columns, schema=schema), [*starts.tolist(), n])
    names = np.zeros(starts.size, np.int64) if several == 1 else origin.which[first]
    return pa.RecordBatch.from_arrays(
        [
            pa.array(to[first]),
            pa.array(np.full(starts.size, what, np.int32)),
            pa.array([origin.names[i] for i in names.tolist()], pa.string()),
            pa.array(origin.places[first]),
            pa.array(np.diff(starts, append=n)),
            compute_digests(hashes[order], starts) if n else pa.nulls(0, pa.binary()),
            payload,
        ],
        schema=PACKED,
    )


def sort_by_group(group: Any) -> tuple[Ints, Ints]:
    """Sort rows by group with a stable sort. Return the order, and the first position of each group."""
    if group.size and int(group.max()) < 1 << 16:
        group = group.astype(np.uint16)  # a stable sort of 16-bit integers is a radix sort
    order = np.argsort(group, kind="stable")
    ordered = group[order]
    return order, np.flatnonzero(np.concatenate([[True], ordered[1:] != ordered[:-1]])) if group.size else order


def _serialize_slices(rows: pa.RecordBatch, ends: Sequence[int]) -> pa.Array:
    """Write slices of rows as binary values. Each binary value is one Arrow message, without the schema.

    All messages share one buffer, in the order of the slices. The length of a message is a multiple of 8 bytes.
    """
    sink = pa.BufferOutputStream()
    at = np.empty(len(ends), np.int32)
    with pa.ipc.new_stream(sink, rows.schema, options=_OPTIONS) as writer:
        writer.write_batch(rows.slice(0, 0))  # writes the schema first
        for i, (begin, end) in enumerate(pairwise(ends)):
            at[i] = sink.tell()
            writer.write_batch(rows.slice(begin, end - begin))
        at[-1] = sink.tell()
    return pa.Array.from_buffers(pa.binary(), at.size - 1, [None, pa.py_buffer(at), sink.getvalue()])


_OPTIONS: Final = pa.ipc.IpcWriteOptions(metadata_version=pa.ipc.MetadataVersion.V5, use_legacy_format=False)


def slice_binary_value(column: pa.Array, row: int) -> pa.Buffer:
    """Slice the bytes of one binary value without a copy. Arrow's own scalars would copy the bytes. O(1)."""
    wide = offset_width(column.type)
    begin, end = np.frombuffer(column.buffers()[1], f"i{wide}", 2, (column.offset + row) * wide).tolist()
    data: pa.Buffer = column.buffers()[2]
    return data.slice(begin, end - begin)


def unpack_chunk(payload: pa.Buffer, schema: pa.Schema, rows: int) -> pa.RecordBatch:
    """Read the rows of a chunk from its bytes, without a copy if the address is a multiple of 8. O(columns).

    ``schema``: the columns of the rows. Raises `Misrouted` if the bytes do not hold exactly the given columns and the
    given number of rows.
    """
    if payload.address % 8:
        payload = pa.py_buffer(np.frombuffer(memoryview(payload), np.uint8).copy())
    try:
        batch = pa.ipc.read_record_batch(payload, schema)
    except (pa.ArrowInvalid, OSError) as error:
        raise _chunk_error(str(error).splitlines()[0], rows, schema) from None
    if batch.num_rows != rows:
        raise _chunk_error(f"it has {batch.num_rows:,} rows", rows, schema)
    return restore_types(batch, schema)


def _chunk_error(found: str, rows: int, schema: pa.Schema) -> Misrouted:
    return Misrouted(
        f"a chunk of {rows:,} rows with the columns {schema.names}",
        found,
        "run it again, with one version of ddflow on all machines; nothing was committed",
    )


def pack_exchange_sums(
    tables: Mapping[int, pa.Table], cut: Stages, partitions: int, secret: Secret
) -> Iterator[pa.RecordBatch]:
    """Pack the rows for exchanges into chunks within `choose_chunk_limits`. O(n).

    ``tables``: the rows by number of the exchange, with the columns of `exchange_sums_schema`. The partition of a row
    depends on its values in the columns ``by`` of the exchange.
    """
    for number, table in sorted(tables.items()):
        names = list(cut.exchanges[number].by)
        for part in slice_rows(table, *choose_chunk_limits(partitions)):
            rows = to_batch(part.combine_chunks())
            high, _ = compute_identities(rows.select(names), secret, rows.num_rows)
            origin = RowOrigins.of_range("", 0, rows.num_rows)
            yield pack_chunks(rows, assign_partitions(high, partitions), hash_rows(rows, secret), origin, -1 - number)


def slice_rows(rows: Any, most_rows: int, most_bytes: int) -> Iterator[Any]:
    """Cut a table or batch into slices, each with at most ``most_rows`` rows and ``most_bytes`` bytes.  O(slices).

    Each slice has at least one row, even if the row exceeds the limit of bytes.
    """
    size = compute_decoded_size(rows) if rows.num_rows > 1 else 0
    if rows.num_rows <= most_rows and size <= most_bytes:
        if rows.num_rows:
            yield rows
        return
    step = max(min(most_rows, rows.num_rows * most_bytes // max(size, 1), rows.num_rows - 1), 1)
    for begin in range(0, rows.num_rows, step):
        yield from slice_rows(rows.slice(begin, step), most_rows, most_bytes)


def pack_message_summaries(said: Mapping[int, str], what: int) -> pa.RecordBatch:
    """Pack the message summaries of an input, made by one task, as chunks without rows. O(partitions)."""
    n = len(said)
    columns = [[*said], [what] * n, [*said.values()], [0] * n, [0] * n, [NO_ROWS] * n, [None] * n]
    return pa.RecordBatch.from_arrays(
        [pa.array(c, f.type) for c, f in zip(columns, PACKED, strict=True)], schema=PACKED
    )


def pack_receipts(receipts: Iterable[bytes], to: int) -> pa.RecordBatch:
    """Pack receipts, one row for each receipt. The task of partition `to` passes the receipts on to the driver."""
    held_back = list(receipts)
    n = len(held_back)
    columns = [[to] * n, [RECEIPT] * n, [""] * n, [0] * n, [0] * n, [NO_ROWS] * n, held_back]
    return pa.RecordBatch.from_arrays(
        [pa.array(c, f.type) for c, f in zip(columns, PACKED, strict=True)], schema=PACKED
    )


SHARE: Final = 8
"""The divisor for the memory of chunks: chunks may take an eighth of a task's memory."""
_SCRATCH: Final = pa.schema([("payload", pa.large_binary())])


class Chunk(NamedTuple):
    """One row of a table of chunks. ``place``: the index of the array with the payload, and the row in that array."""

    origin: str
    at: int
    rows: int
    digest: bytes
    place: tuple[int, int]

    @property
    def has_arrival_column(self) -> bool:
        """Whether the rows carry their places. Only rows from Kafka carry places, and their origins contain a slash."""
        return "/" in self.origin


class ShuffleReader(Closing):
    """The reader of all chunks that the shuffle sends to one task.

    - ``stage``, ``number``: the stage and the partition of the task.
    - ``memory``: the bytes that the task may use, None for no limit.
    - ``scratch``: a folder for chunks that exceed the reader's part of the memory. Several readers may share the
      folder. Without a scratch folder, all chunks stay in memory.
    - ``columns``: by input, the declared columns that its rows have, the same as for its `Partitioner`; all by default.
    - ``rows``, ``digests``: the counts and digests of received rows (32 hex digits), by input, without empty inputs.
    - ``receipts``: the receipts of earlier tasks to pass on.
    - ``said``: the message summaries, by input.

    >>> import ddflow as dd
    >>> from ddflow.columns.hashing import Secret
    >>> from ddflow.partitions.stages import cut_stages
    >>> from ddflow.partitions.partitioner import Partitioner
    >>> flow = dd.Flow()
    >>> orders = flow.upserts("orders", {"id": pa.int64(), "city": pa.string()}, dd.Upsert(key="id"))
    >>> _ = flow.output("orders", orders)
    >>> route = Partitioner(flow, "orders", 1, Secret(1, 2), limits=ChunkLimits(2, 8 << 20))
    >>> chunks = list(route([pa.record_batch({"id": [3, 1, 2], "city": ["Bern", "Basel", "Chur"]})], origin=0))
    >>> with ShuffleReader(cut_stages(flow), stage=0, number=0) as shuffle:
    ...     for chunk in reversed(chunks):
    ...         shuffle.add_chunks(chunk)
    ...     shuffle.rows, shuffle.read_input("orders").read_all().column("id").to_pylist()
    ({'orders': 3}, [3, 1, 2])
    """

    def __init__(
        self,
        cut: Stages,
        stage: int,
        number: int,
        memory: int | None = None,
        scratch: str | None = None,
        columns: Mapping[str, Sequence[str]] | None = None,
    ) -> None:
        self.cut, self.stage, self.number = cut, stage, number
        self.most = None if memory is None or scratch is None else memory // SHARE
        self.names = list(cut.flow.inputs)
        self.schemas = {
            name: select_chunk_schema(input.bound.schema, (columns or {}).get(name))
            for name, input in cut.flow.inputs.items()
        }
        self.rows, self.said = dict[str, int](), dict[str, MessageSummary]()
        self.receipts: list[bytes] = []
        self.bytes_resident = self.spilled = 0
        self._digests: dict[str, bytes] = {}
        self._chunks: dict[int, list[Chunk]] = {}
        self._payloads: list[pa.Array] = []
        self._mapped = 0  # the number of spilled payloads, which come first
        self._where, self._scratch = scratch, cast(BatchStore | None, None)

    @property
    def digests(self) -> dict[str, str]:
        """Digest of the received rows, by input: 32 hex digits."""
        return {name: digest.hex() for name, digest in self._digests.items()}

    def add_chunks(self, batch: pa.RecordBatch) -> None:
        """Add chunks with the columns `PACKED`. O(chunks), and O(bytes) if memory runs out.

        Raises `Misrouted` for a chunk of another task, `BadMessage` if an input has messages of several tables,
        `SpillFull` and `SpillFailed`.
        """
        if not batch.num_rows:
            return
        # The columns of the table of chunks are short, so Python objects are cheaper here than calls of Arrow's
        # functions.
        to, what, origin, at, rows, digest = (batch.column(i).to_pylist() for i in range(6))
        payload = batch.column(6)
        here = [i for i, given in enumerate(payload.is_valid().to_pylist()) if given and what[i] is not None]
        self._check_destination(to, {what[i] for i in here})
        if payload.null_count:
            given = payload.is_valid().to_pylist()
            self._merge_message_summaries(
                [(what[i], origin[i]) for i in range(len(to)) if not given[i] and what[i] is not None]
            )
        self._payloads.append(payload)
        self.bytes_resident += batch.nbytes
        if self.most is not None and self.bytes_resident > self.most:
            self._spill_payloads()
        for i in here:
            number = what[i]
            if number == RECEIPT:
                self.receipts.append(payload[i].as_py())
                continue
            place = len(self._payloads) - 1, i
            self._chunks.setdefault(number, []).append(Chunk(origin[i], at[i], rows[i], digest[i], place))
            if number >= 0:
                name = self.names[number]
                self.rows[name] = self.rows.get(name, 0) + rows[i]
                self._digests[name] = add_digests(self._digests.get(name, NO_ROWS), digest[i])

    def _merge_message_summaries(self, said: list[tuple[int, str]]) -> None:
        """Merge the received message summaries by input. Raises `BadMessage` for messages of two tables."""
        for number, text in said:
            name = self.names[number]
            self.said[name] = merge_summaries(name, self.said.get(name), MessageSummary.from_text(text))

    def _check_destination(self, to: list[int], what: set[int]) -> None:
        """Check that chunks are for this task. Raises `Misrouted` if a chunk is for another task."""
        asked, remedy = (
            f"partition {self.number} of stage {self.stage}",
            "leave the shuffle to ddflow, and run the job again",
        )
        for other in {*to} - {self.number}:
            raise Misrouted(asked, f"it received rows for partition {other}", remedy)
        for number in what - {RECEIPT}:
            known = number < len(self.names) if number >= 0 else -1 - number < len(self.cut.exchanges)
            if not known or (self.stage if number >= 0 else self.cut.exchanges[-1 - number].stage < self.stage):
                kind = f"rows of input {number}" if number >= 0 else f"sums {-1 - number}"
                raise Misrouted(asked, f"it received {kind}, which are not for it", remedy)

    def read_input(self, name: str) -> pa.RecordBatchReader | None:
        """Read the rows of an input in the order of arrival: by origin, then by place. Return None if no rows came.

        The reader holds one chunk in memory at a time. You can read an input several times. O(rows), and O(n log n) for
        chunks with overlapping places. Raises `Misrouted` for a chunk with unexpected contents.
        """
        schema, chunks = self.schemas[name], self._chunks.get(self.names.index(name))
        return (
            pa.RecordBatchReader.from_batches(schema, self._read_in_arrival_order(chunks, schema)) if chunks else None
        )

    def read_exchange_sums(self, number: int) -> pa.Table:
        """Read the rows that an exchange received, with the columns of `exchange_sums_schema`. O(chunks).

        Raises `Misrouted`.
        """
        schema, chunks = exchange_sums_schema(self.cut.exchanges[number]), self._chunks.get(-1 - number, [])
        batches = [self._unpack_chunk(chunk, schema) for chunk in sorted(chunks, key=_arrival_sort_key)]
        return pa.Table.from_batches(batches, schema) if batches else empty_table(schema)

    @property
    def later_stage_chunks(self) -> Iterator[pa.RecordBatch]:
        """Yield, unchanged, the received chunks for later stages.

        Each batch is one chunk, with the columns `PACKED`.
        """
        for number, chunks in self._chunks.items():
            if number < 0 and self.cut.exchanges[-1 - number].stage > self.stage:
                for chunk in chunks:
                    payload = memoryview(self._slice_payload(chunk))
                    row = (self.number, number, chunk.origin, chunk.at, chunk.rows, chunk.digest, payload)
                    columns = [pa.array([value], f.type) for value, f in zip(row, PACKED, strict=True)]
                    yield pa.RecordBatch.from_arrays(columns, schema=PACKED)

    def close(self) -> None:
        """Delete the scratch folder. A second call has no effect, and tables that were read stay valid."""
        self._chunks.clear()
        self._payloads.clear()
        if self._scratch is not None:
            self._scratch.store.close()

    def _spill_payloads(self) -> None:
        """Move the payloads in memory to a file. O(bytes)."""
        if self._scratch is None:
            assert self._where is not None
            self._scratch = BatchStore(ScratchStore.create_below(self._where))
        payloads = (each.cast(pa.large_binary()) for each in self._payloads[self._mapped :])
        batches = (pa.RecordBatch.from_arrays([each], schema=_SCRATCH) for each in payloads)
        self._payloads[self._mapped :] = self._scratch.write_mapped(batches, _SCRATCH).column(0).chunks
        self._mapped, self.bytes_resident, self.spilled = len(self._payloads), 0, self.spilled + self.bytes_resident

    def _slice_payload(self, chunk: Chunk) -> pa.Buffer:
        """Slice the payload of a chunk, without a copy."""
        batch, row = chunk.place
        return slice_binary_value(self._payloads[batch], row)

    def _unpack_chunk(self, chunk: Chunk, schema: pa.Schema) -> pa.RecordBatch:
        return unpack_chunk(self._slice_payload(chunk), schema, chunk.rows)

    def _read_in_arrival_order(self, chunks: list[Chunk], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        for of, group in groupby(
            sorted(chunks, key=_arrival_sort_key), key=lambda chunk: (chunk.has_arrival_column, chunk.origin)
        ):
            if not of[0]:
                yield from (self._unpack_chunk(chunk, schema) for chunk in group)
                continue
            stretch: list[pa.RecordBatch] = []
            last = 0
            for chunk in group:
                batch = self._unpack_chunk(chunk, add_arrival_column(schema, True))
                if stretch and chunk.at > last:
                    yield from _merge_overlapping_chunks(stretch, schema)
                    stretch = []
                last = max(last, int(_arrival_column(batch)[-1])) if stretch else int(_arrival_column(batch)[-1])
                stretch.append(batch)
            yield from _merge_overlapping_chunks(stretch, schema)


def _arrival_sort_key(chunk: Chunk) -> tuple[str, int, int, bytes]:
    """Return the sort key of a chunk: origin, place, row count and digest.

    Row count and digest break ties, so the order does not depend on the shuffle.
    """
    return chunk.origin, chunk.at, chunk.rows, chunk.digest


def _arrival_column(batch: pa.RecordBatch) -> Ints:
    return np.asarray(batch.column(batch.num_columns - 1))


def _merge_overlapping_chunks(batches: Sequence[pa.RecordBatch], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Merge chunks with overlapping places into rows sorted by place. Each chunk is sorted already.

    The function cuts all chunks at the same places and joins the pieces between two cuts. The joined pieces have about
    as many rows as one chunk, so few rows are in memory at a time.
    """
    places = [_arrival_column(batch) for batch in batches]
    most = max(each.size for each in places)
    # Each sampled place represents ``step`` rows. The number of rows that no sample represents is at most half a chunk.
    step = max(most // (2 * len(batches)), 1)
    taken = np.sort(np.concatenate([each[step - 1 :: step] for each in places]))
    every = max(most // step, 1)
    cuts = np.unique(taken[every - 1 :: every])
    begins = [0] * len(batches)
    for end in [*cuts.tolist(), None] if len(batches) > 1 else [None]:
        ends = [p.size if end is None else int(np.searchsorted(p, end, side="right")) for p in places]
        parts = [b.slice(i, j - i) for b, i, j in zip(batches, begins, ends, strict=True) if i < j]
        begins = ends
        if parts:
            # If there is only one chunk, its rows are sorted already.
            joined = parts[0] if len(parts) == 1 else _sort_by_arrival(parts)
            yield pa.RecordBatch.from_arrays(joined.columns[:-1], schema=schema)


def _sort_by_arrival(parts: Sequence[pa.RecordBatch]) -> pa.RecordBatch:
    whole = pa.concat_batches(parts)
    return whole.take(pa.array(np.argsort(_arrival_column(whole), kind="stable")))
