"""A table written piece by piece, for a result that has no room in memory.

Invariant: the table returned is the user's: it holds every batch written, in order, and never changes, whatever becomes
of the engine, its folder or the next steps. Its columns are mapped from a file of a folder that will be emptied; so
the file loses its name at once, and the disk takes its room back when the table goes. Batches become chunks as they
are; nothing is joined.

>>> import tempfile
>>> with tempfile.TemporaryDirectory() as place:
...     claim = Claim.take(place)
...     writer = TableWriter(claim, pa.schema({"n": pa.int64()}))
...     writer.write(pa.record_batch({"n": [1, 2]}))
...     writer.write(pa.record_batch({"n": [3]}))
...     table = writer.finish()
...     claim.release()
>>> table.column("n").to_pylist(), table.column("n").num_chunks
([1, 2, 3], 2)
"""

from __future__ import annotations

import pyarrow as pa

from ddflow.columns.schema import empty
from ddflow.storage.file_writer import Part
from ddflow.storage.folder_lock import Claim, failure
from ddflow.storage.mapped import mapping, opened, restored


class TableWriter:
    """``schema``: of every batch, whose dictionaries must be the same throughout (a file holds one a column).

    Every method raises `SpillFull` or `SpillFailed` when the disk refuses; nothing is left of the file then.
    """

    def __init__(self, claim: Claim, schema: pa.Schema) -> None:
        self.claim, self.schema, self._part = claim, schema, Part(claim, schema)

    def write(self, batch: pa.RecordBatch) -> None:
        """Append the rows of a batch.  O(bytes), without a copy of them."""
        self._part.write(batch)

    def finish(self) -> pa.Table:
        """The rows so far, mapped; one chunk a batch.  O(bytes), for the checksum.  The writer is spent."""
        written = self._part.finish()
        try:
            reader = opened(mapping(written))
            batches = [restored(reader.get_batch(i), self.schema) for i in range(reader.num_record_batches)]
        except OSError as error:
            raise failure(self.claim.path, error, "map a table", written.size) from None
        finally:
            self.claim.remove(written.name)
        return pa.Table.from_batches(batches, self.schema) if batches else empty(self.schema)

    def abort(self) -> None:
        """Remove what was written; twice is harmless."""
        self._part.abort()
