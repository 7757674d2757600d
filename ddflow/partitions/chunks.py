"""Packing: rows as they travel through a shuffle, many to one value, and how they become rows again.

Invariant: what is unpacked equals what was packed, in its order and in Arrow's types, and a chunk says by itself what
it is, whom it is for, and where its rows stood before the shuffle; a chunk's digest is a sum over its rows, so that
those of all chunks added up do not depend on how rows were cut or to which partition they went. A shuffle knows no
order and few types, and costs by the row, so rows of one partition travel as one binary value that only the two ends
read; both know the columns (`chunk_schema`), so no chunk repeats them. Bytes that come back may lie at any address,
and are brought to one that kernels can read. It does not choose the partition's rows (``partitioner``), nor keep chunks
(``shuffle_reader``).

>>> rows = pa.record_batch({"n": [10, 11, 12]})
>>> hashes = row_hashes(rows, Secret(1, 2))
>>> chunks = pack(rows, np.array([1, 0, 1], np.int32), hashes, Origin.one("0000000007", 40, 3), what=0)
>>> [(c["to"], c["origin"], c["at"], c["rows"]) for c in chunks.to_pylist()]
[(0, '0000000007', 41, 1), (1, '0000000007', 40, 2)]
>>> unpack(payload_at(chunks.column("payload"), 1), rows.schema, 2).to_pydict()
{'n': [10, 12]}
>>> total = added(*chunks.column("digest").to_pylist())
>>> total == digests(hashes, np.zeros(1, np.int64))[0].as_py()
True
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any, Final, NamedTuple, Self

import numpy as np
import pyarrow as pa
import xxhash

from ddflow.columns.hashing import Ints, Narrow, Secret, Words, identities, partition_of, value_hashes
from ddflow.columns.layout import offset_width
from ddflow.columns.rows import RowPool, Rows, gather
from ddflow.columns.schema import one_batch, one_chunk, plain_size, updates_schema
from ddflow.errors import Misrouted
from ddflow.partitions.stages import Exchange, Stages
from ddflow.storage.arrow_file import restored

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
"""The columns that travel: the partition; the input's number, or -1 less the exchange's, or `RECEIPT`, or null for a
row that only calls its partition; where rows come from, text that sorts as they arrived, and the place of the first
one there; how many; their digest; they themselves.  Of an input without a payload: ``origin`` is the table that its
messages are of."""
RECEIPT: Final = 2**31 - 1
NO_ROWS: Final = bytes(16)
"""The digest of no rows."""
ARRIVAL: Final = "_arrival"
"""The name of the column of places in chunks; it is the last column, so readers use its position, not its name."""


class Origin(NamedTuple):
    """Where each of n rows comes from.  ``names``: that sort in the order of arrival.  ``which``: int64[n], the name of
    each row, or of size 0 for the first.  ``places``: int64[n], its place there.  ``told``: whether chunks carry places
    as a last column."""

    names: Sequence[str]
    which: Ints
    places: Ints
    told: bool

    @classmethod
    def one(cls, name: str, first: int, rows: int) -> Self:
        """Build one origin whose rows follow each other from the place ``first``."""
        return cls([name], np.empty(0, np.int64), np.arange(first, first + rows), False)


def chunk_limits(partitions: int) -> tuple[int, int]:
    """Return how many rows, and how many bytes of them, are packed together at most.  Pure.

    262,144 rows or 8 MB, and with many partitions more: a chunk costs some 0.5 KB and 20 us beside its rows, so each
    should have 512 rows or 16 KB; but no more than 2 million rows or 64 MB, since four copies may be in memory.
    """
    return min(max(1 << 18, partitions << 9), 1 << 21), min(max(8 << 20, partitions << 14), 64 << 20)


def chunk_schema(declared: pa.Schema, columns: Sequence[str] | None) -> pa.Schema:
    """Select the columns of an input's chunks: the ``declared`` ones that exist (None: all), in the declared order."""
    return declared if columns is None else pa.schema([field for field in declared if field.name in columns])


def with_arrival(schema: pa.Schema, told: bool) -> pa.Schema:
    """Append the column of places to the columns of a chunk if the rows carry their places."""
    return schema.append(pa.field(ARRIVAL, pa.int64(), nullable=False)) if told else schema


def sums_schema(exchange: Exchange) -> pa.Schema:
    """Return the columns of sums on their way to an exchange: the columns they meet by, `_time` as int64, `_diff`."""
    return updates_schema(exchange.schema, pa.int64())


def row_hashes(rows: pa.RecordBatch, secret: Secret) -> Words:
    """Hash each row with a key and the names of its columns, as uint64[n].  O(n); 11 ns a row of four numbers."""
    names = "".join(f"{len(name)} {name}" for name in rows.schema.names).encode()
    return value_hashes(rows, Secret(secret.k0 ^ xxhash.xxh3_64_intdigest(names), secret.k1))


def digests(hashes: Words, starts: Ints) -> pa.Array:
    """Compute the digest of each group of hashes: the sums of the hashes and of their squares, modulo 2**64; 16 bytes.

    ``starts``: int64[k], ascending, the first row of each group.  O(n).
    """
    sums = np.stack([np.add.reduceat(hashes, starts), np.add.reduceat(hashes * hashes, starts)], axis=1)
    ends = np.arange(0, 16 * starts.size + 1, 16, dtype=np.int32)
    data = np.ascontiguousarray(sums.astype("<u8"))
    return pa.Array.from_buffers(pa.binary(), starts.size, [None, pa.py_buffer(ends), pa.py_buffer(data)])


def added(*each: bytes) -> bytes:
    """Add digests up, in any order; `NO_ROWS` adds nothing.  O(digests)."""
    first = sum(int.from_bytes(digest[:8], "little") for digest in each)
    second = sum(int.from_bytes(digest[8:], "little") for digest in each)
    return (first % 2**64).to_bytes(8, "little") + (second % 2**64).to_bytes(8, "little")


def pack(rows: pa.RecordBatch, to: Narrow, hashes: Words, origin: Origin, what: int) -> pa.RecordBatch:
    """Pack rows into chunks, one for each partition and origin, with the columns `PACKED`; by partition, then by
    origin.

    ``to``: int32[n], ``hashes``: uint64[n].  Rows keep their order within a chunk; those with places told come in the
    order of their places.  O(n) and some 15 us a chunk; no rows are no chunks.
    """
    n, several = rows.num_rows, len(origin.names)
    group: Any = to if several == 1 else to.astype(np.int64) * several + origin.which
    order, starts = _sort_by_group(group)
    if origin.told and n:
        behind = np.diff(origin.places[order]) < 0
        behind[starts[1:] - 1] = False
        if behind.any():
            order = np.lexsort((origin.places, group))
    schema, first = with_arrival(rows.schema, origin.told), order[starts]
    table = gather(RowPool(rows.schema, [Rows(rows)]), order, rows.schema)
    columns = [*map(one_chunk, table.columns), *([pa.array(origin.places[order])] if origin.told else [])]
    payload = _serialize_slices(pa.RecordBatch.from_arrays(columns, schema=schema), [*starts.tolist(), n])
    names = np.zeros(starts.size, np.int64) if several == 1 else origin.which[first]
    return pa.RecordBatch.from_arrays(
        [
            pa.array(to[first]),
            pa.array(np.full(starts.size, what, np.int32)),
            pa.array([origin.names[i] for i in names.tolist()], pa.string()),
            pa.array(origin.places[first]),
            pa.array(np.diff(starts, append=n)),
            digests(hashes[order], starts) if n else pa.nulls(0, pa.binary()),
            payload,
        ],
        schema=PACKED,
    )


def _sort_by_group(group: Any) -> tuple[Ints, Ints]:
    """Sort rows by group, in a stable order; return the order and the first position of each group."""
    if group.size and int(group.max()) < 1 << 16:
        group = group.astype(np.uint16)  # then a stable sort is one by digits
    order = np.argsort(group, kind="stable")
    ordered = group[order]
    return order, np.flatnonzero(np.concatenate([[True], ordered[1:] != ordered[:-1]])) if group.size else order


def _serialize_slices(rows: pa.RecordBatch, ends: Sequence[int]) -> pa.Array:
    """Write slices of rows as binary values: an Arrow message each, without their schema.  All go into one buffer, in
    order; a message is a multiple of 8 bytes."""
    sink = pa.BufferOutputStream()
    at = np.empty(len(ends), np.int32)
    with pa.ipc.new_stream(sink, rows.schema, options=_OPTIONS) as writer:
        writer.write_batch(rows.slice(0, 0))  # the schema comes with the first
        for i, (begin, end) in enumerate(pairwise(ends)):
            at[i] = sink.tell()
            writer.write_batch(rows.slice(begin, end - begin))
        at[-1] = sink.tell()
    return pa.Array.from_buffers(pa.binary(), at.size - 1, [None, pa.py_buffer(at), sink.getvalue()])


_OPTIONS: Final = pa.ipc.IpcWriteOptions(metadata_version=pa.ipc.MetadataVersion.V5, use_legacy_format=False)


def payload_at(column: pa.Array, row: int) -> pa.Buffer:
    """Slice the bytes of one binary value out of a column, without a copy, which Arrow's scalars would make.  O(1)."""
    wide = offset_width(column.type)
    begin, end = np.frombuffer(column.buffers()[1], f"i{wide}", 2, (column.offset + row) * wide).tolist()
    data: pa.Buffer = column.buffers()[2]
    return data.slice(begin, end - begin)


def unpack(payload: pa.Buffer, schema: pa.Schema, rows: int) -> pa.RecordBatch:
    """Read the rows of a chunk over its bytes; copies bytes that do not begin at a multiple of 8.

    ``schema``: their columns.  O(columns).  Raises `Misrouted` if they are not ``rows`` rows of those columns.
    """
    if payload.address % 8:
        payload = pa.py_buffer(np.frombuffer(memoryview(payload), np.uint8).copy())
    try:
        batch = pa.ipc.read_record_batch(payload, schema)
    except (pa.ArrowInvalid, OSError) as error:
        raise _odd(str(error).splitlines()[0], rows, schema) from None
    if batch.num_rows != rows:
        raise _odd(f"it has {batch.num_rows:,} rows", rows, schema)
    return restored(batch, schema)


def _odd(found: str, rows: int, schema: pa.Schema) -> Misrouted:
    return Misrouted(
        f"a chunk of {rows:,} rows with the columns {schema.names}",
        found,
        "run it again, with one version of ddflow on all machines; nothing was committed",
    )


def packed_sums(
    tables: Mapping[int, pa.Table], cut: Stages, partitions: int, secret: Secret
) -> Iterator[pa.RecordBatch]:
    """Pack sums into chunks.  ``tables``: by number of their exchange, the columns of `sums_schema`.

    A sum goes to the partition of its exchange's columns.  O(n), in chunks within `chunk_limits`.
    """
    for number, table in sorted(tables.items()):
        names = list(cut.exchanges[number].by)
        for part in sliced(table, *chunk_limits(partitions)):
            rows = one_batch(part.combine_chunks())
            high, _ = identities(rows.select(names), secret, rows.num_rows)
            origin = Origin.one("", 0, rows.num_rows)
            yield pack(rows, partition_of(high, partitions), row_hashes(rows, secret), origin, -1 - number)


def sliced(rows: Any, most_rows: int, most_bytes: int) -> Iterator[Any]:
    """Slice a table or batch by limits of rows and bytes; each slice has at least one row.  O(slices)."""
    size = plain_size(rows) if rows.num_rows > 1 else 0
    if rows.num_rows <= most_rows and size <= most_bytes:
        if rows.num_rows:
            yield rows
        return
    step = max(min(most_rows, rows.num_rows * most_bytes // max(size, 1), rows.num_rows - 1), 1)
    for begin in range(0, rows.num_rows, step):
        yield from sliced(rows.slice(begin, step), most_rows, most_bytes)


def packed_said(said: Mapping[int, str], what: int) -> pa.RecordBatch:
    """Pack what a task tells partitions about the messages of an input, without rows.  O(partitions)."""
    n = len(said)
    columns = [[*said], [what] * n, [*said.values()], [0] * n, [0] * n, [NO_ROWS] * n, [None] * n]
    return pa.RecordBatch.from_arrays(
        [pa.array(c, f.type) for c, f in zip(columns, PACKED, strict=True)], schema=PACKED
    )


def packed_receipts(receipts: Iterable[bytes], to: int) -> pa.RecordBatch:
    """Pack receipts on their way to the driver: one row each, which partition `to` passes on."""
    held_back = list(receipts)
    n = len(held_back)
    columns = [[to] * n, [RECEIPT] * n, [""] * n, [0] * n, [0] * n, [NO_ROWS] * n, held_back]
    return pa.RecordBatch.from_arrays(
        [pa.array(c, f.type) for c, f in zip(columns, PACKED, strict=True)], schema=PACKED
    )
