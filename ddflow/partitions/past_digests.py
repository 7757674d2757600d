"""Digests of an epoch that is given again, by the columns that it was given with.

Invariant: the digest of rows that an epoch was committed of is the same whether they come in the columns of then or of
now; others have another one.  Chunks are packed in the columns of now before anybody knows that their epoch was
committed (a streaming query packs its batches as it was started), so they are unpacked, and rows that lose nothing by
it are brought back to the columns of then (`narrowed`).  Partitions, places and payloads stay as they are.

>>> import ddflow as dd
>>> from ddflow.partitions.partitioner import Partitioner
>>> def chunks(kind, value):
...     flow = dd.Flow()
...     _ = flow.upserts("a", {"id": pa.int64(), "n": kind}, dd.Upsert(key="id"))
...     rows = pa.record_batch({"id": [1], "n": pa.array([value], kind)})
...     return [c for c in Partitioner(flow, "a", 1, Secret(1, 2))([rows], 0)][0], flow.inputs["a"].bound.schema
>>> (then, narrow), (now, wide) = chunks(pa.int32(), 7), chunks(pa.float64(), 7.0)
>>> again = PastDigests((wide,), (narrow,), Secret(1, 2))(now)
>>> now.column("digest") == then.column("digest"), again.column("digest") == then.column("digest")
(False, True)
"""

from dataclasses import dataclass
from itertools import starmap

import numpy as np
import pyarrow as pa

from ddflow.columns.hashing import Secret
from ddflow.columns.schema import one_batch
from ddflow.columns.widening import narrowed
from ddflow.partitions.chunks import PACKED, digests, payload_at, row_hashes, unpack, with_arrival


@dataclass(frozen=True)
class PastDigests:
    """``now``: the columns of each input's chunks, by its number.  ``past``: those it was given with then."""

    now: tuple[pa.Schema, ...]
    past: tuple[pa.Schema, ...]
    secret: Secret

    def __call__(self, chunks: pa.RecordBatch) -> pa.RecordBatch:
        """Replace the digests of chunks by digests over the past columns.  O(rows).  Raises `Misrouted`."""
        chunks = chunks.filter(chunks.column("payload").is_valid())
        payload = chunks.column("payload")
        told = zip(*(chunks.column(name).to_pylist() for name in ("what", "origin", "rows")), strict=True)
        found = starmap(self._digest, ((payload_at(payload, i), *each) for i, each in enumerate(told)))
        at = PACKED.get_field_index("digest")
        return chunks.set_column(at, PACKED.field(at), pa.array(list(found), pa.binary()))

    def _digest(self, payload: pa.Buffer, what: int, origin: str, rows: int) -> bytes:
        batch = unpack(payload, with_arrival(self.now[what], "/" in origin), rows)
        table = pa.Table.from_batches([batch])
        if "/" in origin:
            table = table.select(list(range(table.num_columns - 1)))  # the last says where rows stood
        then = one_batch(narrowed(table, self.past[what]))
        found: bytes = digests(row_hashes(then, self.secret), np.zeros(1, np.int64))[0].as_py()
        return found
