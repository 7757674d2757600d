"""The digest of a call's rows: whether two calls brought the same.

Invariant: a digest depends on the rows and their order, by canonical equality. It does not depend on how the rows were
cut into batches, nor on what buffers hold where a value is null, because a batch that is read again has other buffers.
A step larger than memory is never there whole, so rows are hashed one by one with the state's secret, and their hashes
are hashed in turn. An input that brought no rows counts as not given.

>>> secret, schema = Secret(1, 2), pa.schema({"k": pa.int64()})
>>> one, two = Digest(secret), Digest(secret)
>>> one.update(pa.record_batch({"k": [1, 2]}, schema))
>>> for k in (1, 2):
...     two.update(pa.record_batch({"k": [k]}, schema))
>>> combined("step", 7, {"a": one}) == combined("step", 7, {"a": two, "b": Digest(secret)})
True
"""

from collections.abc import Mapping
from typing import Any

import pyarrow as pa
import xxhash

from ddflow.columns.hashing import RowHashes, Secret
from ddflow.columns.widening import narrowed
from ddflow.dataflow.admission import Admission, Came
from ddflow.dataflow.inflow import portions

MOST = 1 << 26
"""Bytes that are looked at together."""


class Digest:
    """Of the rows of one input, as they come.  ``hashes``: of their columns, where those are the same for all."""

    def __init__(self, secret: Secret, hashes: RowHashes | None = None) -> None:
        self.secret, self.hashes = secret, hashes
        self.rows, self._state = 0, xxhash.xxh3_128()

    def update(self, events: pa.RecordBatch) -> None:
        """Take in rows.  O(rows)."""
        self.rows += events.num_rows
        hashes = self.hashes or RowHashes(events.schema, self.secret)
        self._state.update(hashes.values(events.columns, events.num_rows).data)

    def digest(self) -> bytes:
        """Sixteen bytes."""
        return self._state.digest()


def combined(kind: str, time: int, digests: Mapping[str, Digest]) -> str:
    """32 hex digits for a call."""
    out = xxhash.xxh3_128(f"{kind} {time}".encode())
    for name, each in sorted(digests.items()):
        if each.rows:
            out.update(f"\n{len(name)} {name} {each.rows} ".encode())
            out.update(each.digest())
    return out.hexdigest()


def digest_of(
    kind: str,
    time: int,
    inputs: Mapping[str, Any],
    admissions: Mapping[str, Admission],
    secret: Secret,
) -> str:
    """Compute the digest of a call without taking its rows in.

    ``admissions``: of the columns that the call was given with; rows may be in wider ones by now, and have new columns
    that are null. O(rows). Raises `NotArrow`, `SchemaMismatch`.
    """
    digests = {name: Digest(secret) for name in inputs}
    for name, given in inputs.items():
        admission = admissions[name]
        schema = admission.bound.schema
        came = Came(admission.table)
        for part in portions(given, repr(name), admission.given, MOST, admission.bound.guessed):
            for rows, *_ in admission.parts(part, came):
                digests[name].update(admission.events(narrowed(rows, schema)))
    return combined(kind, time, digests)
