"""The shuffle reader: what a shuffle brings to one task, chunks in any order, given back as rows in the order of their
arrival.

Invariant: what is read is every row that was taken, once, by origin and by its place there, whatever order the chunks
came in and wherever they lie meanwhile; a chunk for another partition is refused. A step must see its rows in order,
and the shuffle ends only with its last chunk, so all are held until then, in less memory than they need: whenever what
is in memory passes an eighth of the budget, it goes to a scratch file, and is read where it lies. Rows that were read
twice over the same stretch of a Kafka partition interleave, and are merged a stretch at a time. What is not for this
stage passes through. It resolves nothing, and knows rows only by their columns (``chunks``).

>>> import ddflow as dd
>>> from ddflow.columns.hashing import Secret
>>> from ddflow.partitions.stages import cut
>>> from ddflow.partitions.partitioner import Partitioner
>>> flow = dd.Flow()
>>> orders = flow.upserts("orders", {"id": pa.int64(), "city": pa.string()}, dd.Upsert(key="id"))
>>> _ = flow.output("orders", orders)
>>> route = Partitioner(flow, "orders", 1, Secret(1, 2), chunk_rows=2)
>>> chunks = list(route([pa.record_batch({"id": [3, 1, 2], "city": ["Bern", "Basel", "Chur"]})], origin=0))
>>> with ShuffleReader(cut(flow), stage=0, number=0) as shuffle:
...     for chunk in reversed(chunks):
...         shuffle.take(chunk)
...     shuffle.rows, shuffle.input("orders").read_all().column("id").to_pylist()
({'orders': 3}, [3, 1, 2])
"""

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from typing import Final, NamedTuple, cast

import numpy as np
import pyarrow as pa

from ddflow.columns.hashing import Ints
from ddflow.columns.schema import empty
from ddflow.errors import Misrouted
from ddflow.partitions.chunks import (
    NO_ROWS,
    PACKED,
    RECEIPT,
    added,
    chunk_schema,
    payload_at,
    sums_schema,
    unpack,
    with_arrival,
)
from ddflow.partitions.said import Said, joined
from ddflow.partitions.stages import Stages
from ddflow.storage.batch_store import BatchStore
from ddflow.storage.closing import Closing
from ddflow.storage.scratch import ScratchStore

SHARE: Final = 8
"""The part of the budget that chunks may take in memory: one of so many."""
_SCRATCH: Final = pa.schema([("payload", pa.large_binary())])


class Chunk(NamedTuple):
    """The values of a row of `PACKED`.  ``place``: of its payload, the number of the array that came and its row
    there."""

    origin: str
    at: int
    rows: int
    digest: bytes
    place: tuple[int, int]

    @property
    def told(self) -> bool:
        """Whether the rows carry their places: origins of Kafka have a slash, origins of tasks are numbers."""
        return "/" in self.origin


class ShuffleReader(Closing):
    """``stage``, ``number``: of the task. ``memory``: bytes that the task may take, None for no budget. ``scratch``: a
    folder that several may share, for what exceeds the shuffle reader's part of it; without one all is held in memory.
    ``columns``: by input, the declared columns that its rows have, as its `Partitioner` was told (all, where not said).

    ``rows``, ``digests``: of what came, by input (those that none came for are not in it; 32 hex digits).
    ``receipts``: what came to be passed on.  ``said``: by input, what tasks say of its messages.
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
            name: chunk_schema(input.bound.schema, (columns or {}).get(name)) for name, input in cut.flow.inputs.items()
        }
        self.rows, self.said = dict[str, int](), dict[str, Said]()
        self.receipts: list[bytes] = []
        self.bytes_resident = self.spilled = 0
        self._digests: dict[str, bytes] = {}
        self._chunks: dict[int, list[Chunk]] = {}
        self._payloads: list[pa.Array] = []
        self._mapped = 0  # of those, the first so many
        self._where, self._scratch = scratch, cast(BatchStore | None, None)

    @property
    def digests(self) -> dict[str, str]:
        """The digest of the rows that came, by input: 32 hex digits."""
        return {name: digest.hex() for name, digest in self._digests.items()}

    def take(self, batch: pa.RecordBatch) -> None:
        """Take in some chunks, of the columns `PACKED`.  O(chunks), and O(bytes) if memory runs out.

        Raises `Misrouted` for a chunk of another task, `BadMessage` if tasks read messages of several tables
        for an input, `SpillFull` and `SpillFailed`.
        """
        if not batch.num_rows:
            return
        # A chunk is thousands of rows, so what travels beside them may be Python's; compute kernels cost more to call.
        to, what, origin, at, rows, digest = (batch.column(i).to_pylist() for i in range(6))
        payload = batch.column(6)
        here = [i for i, given in enumerate(payload.is_valid().to_pylist()) if given and what[i] is not None]
        self._check(to, {what[i] for i in here})
        if payload.null_count:
            given = payload.is_valid().to_pylist()
            self._record_messages(
                [(what[i], origin[i]) for i in range(len(to)) if not given[i] and what[i] is not None]
            )
        self._payloads.append(payload)
        self.bytes_resident += batch.nbytes
        if self.most is not None and self.bytes_resident > self.most:
            self._spill()
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
                self._digests[name] = added(self._digests.get(name, NO_ROWS), digest[i])

    def _record_messages(self, said: list[tuple[int, str]]) -> None:
        """Keep what tasks say of messages.  Raises `BadMessage` if these are of two tables."""
        for number, text in said:
            name = self.names[number]
            self.said[name] = joined(name, self.said.get(name), Said.read(text))

    def _check(self, to: list[int], what: set[int]) -> None:
        """Raise `Misrouted` for chunks of another task."""
        asked, remedy = (
            f"partition {self.number} of stage {self.stage}",
            "leave the shuffle to ddflow, and run it again",
        )
        for other in {*to} - {self.number}:
            raise Misrouted(asked, f"rows for partition {other} came to it", remedy)
        for number in what - {RECEIPT}:
            known = number < len(self.names) if number >= 0 else -1 - number < len(self.cut.exchanges)
            if not known or (self.stage if number >= 0 else self.cut.exchanges[-1 - number].stage < self.stage):
                kind = f"rows of input {number}" if number >= 0 else f"sums {-1 - number}"
                raise Misrouted(asked, f"{kind} came to it, which are not for it", remedy)

    def input(self, name: str) -> pa.RecordBatchReader | None:
        """Read the rows of an input in the order of arrival: by origin, then by their places there; None if none came.

        They are read a chunk at a time, and may be read again.  O(rows), and O(n log n) for rows that interleave.
        Raises `Misrouted` for chunks that hold something else.
        """
        schema, chunks = self.schemas[name], self._chunks.get(self.names.index(name))
        return pa.RecordBatchReader.from_batches(schema, self._in_order(chunks, schema)) if chunks else None

    def sums(self, number: int) -> pa.Table:
        """Read the sums of an exchange: the columns of `sums_schema`, in chunks.  O(chunks).

        Raises `Misrouted`.
        """
        schema, chunks = sums_schema(self.cut.exchanges[number]), self._chunks.get(-1 - number, [])
        batches = [self._open(chunk, schema) for chunk in sorted(chunks, key=_arrival_key)]
        return pa.Table.from_batches(batches, schema) if batches else empty(schema)

    @property
    def forwarded(self) -> Iterator[pa.RecordBatch]:
        """Chunks for later stages, one at a time, as they came: the columns `PACKED`."""
        for number, chunks in self._chunks.items():
            if number < 0 and self.cut.exchanges[-1 - number].stage > self.stage:
                for chunk in chunks:
                    payload = memoryview(self._bytes(chunk))
                    row = (self.number, number, chunk.origin, chunk.at, chunk.rows, chunk.digest, payload)
                    columns = [pa.array([value], f.type) for value, f in zip(row, PACKED, strict=True)]
                    yield pa.RecordBatch.from_arrays(columns, schema=PACKED)

    def close(self) -> None:
        """Delete the scratch folder.  Rows read before stay valid; twice is harmless."""
        self._chunks.clear()
        self._payloads.clear()
        if self._scratch is not None:
            self._scratch.store.close()

    def _spill(self) -> None:
        """Move the payloads that are in memory to a file.  O(bytes)."""
        if self._scratch is None:
            assert self._where is not None
            self._scratch = BatchStore(ScratchStore.within(self._where))
        payloads = (each.cast(pa.large_binary()) for each in self._payloads[self._mapped :])
        batches = (pa.RecordBatch.from_arrays([each], schema=_SCRATCH) for each in payloads)
        self._payloads[self._mapped :] = self._scratch.mapped(batches, _SCRATCH).column(0).chunks
        self._mapped, self.bytes_resident, self.spilled = len(self._payloads), 0, self.spilled + self.bytes_resident

    def _bytes(self, chunk: Chunk) -> pa.Buffer:
        """Slice the payload of a chunk, without a copy."""
        batch, row = chunk.place
        return payload_at(self._payloads[batch], row)

    def _open(self, chunk: Chunk, schema: pa.Schema) -> pa.RecordBatch:
        return unpack(self._bytes(chunk), schema, chunk.rows)

    def _in_order(self, chunks: list[Chunk], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        for told, group in groupby(sorted(chunks, key=_arrival_key), key=lambda chunk: (chunk.told, chunk.origin)):
            if not told[0]:
                yield from (self._open(chunk, schema) for chunk in group)
                continue
            stretch: list[pa.RecordBatch] = []
            last = 0
            for chunk in group:
                batch = self._open(chunk, with_arrival(schema, True))
                if stretch and chunk.at > last:
                    yield from _merge_stretch(stretch, schema)
                    stretch = []
                last = max(last, int(_places(batch)[-1])) if stretch else int(_places(batch)[-1])
                stretch.append(batch)
            yield from _merge_stretch(stretch, schema)


def _arrival_key(chunk: Chunk) -> tuple[str, int, int, bytes]:
    """Return the sort key of a chunk.  Its last two values make the order independent of the shuffle if the others
    agree."""
    return chunk.origin, chunk.at, chunk.rows, chunk.digest


def _places(batch: pa.RecordBatch) -> Ints:
    return np.asarray(batch.column(batch.num_columns - 1))


def _merge_stretch(batches: Sequence[pa.RecordBatch], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Merge chunks over the same stretch of places, each ascending, into rows in the order of their places.

    Cuts them at the same places, about one chunk's worth between two cuts, so that little is joined at a time.
    """
    places = [_places(batch) for batch in batches]
    most = max(each.size for each in places)
    # Each place taken stands for so many rows; the last few of a chunk are not counted, at most half of a chunk in all.
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
            # Of one chunk they are in order.
            joined = parts[0] if len(parts) == 1 else _sort_by_place(parts)
            yield pa.RecordBatch.from_arrays(joined.columns[:-1], schema=schema)


def _sort_by_place(parts: Sequence[pa.RecordBatch]) -> pa.RecordBatch:
    whole = pa.concat_batches(parts)
    return whole.take(pa.array(np.argsort(_places(whole), kind="stable")))
