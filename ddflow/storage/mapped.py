"""A mapped batch: a record batch whose columns are the bytes of a file.

Invariant: `Mapped.batch` equals the batch that was written, for as long as anybody refers to it or to one of its
columns. Arrow trusts the offsets it finds in a file, and one flipped bit can crash the process, so size and checksum
are compared before a byte is parsed; and a file is unlinked as soon as its `Mapped` is dropped, while arrays that
outlive it still read it: the mapping keeps the bytes, the name is gone. No descriptor stays open, so thousands may
live at once. Mapped bytes are not private memory: the system takes their pages back at will.

>>> import os, tempfile
>>> from ddflow.storage.file_writer import Part
>>> with tempfile.TemporaryDirectory() as place:
...     claim = Claim.take(place)
...     part = Part(claim, pa.schema({"n": pa.int64()}))
...     part.write(pa.record_batch({"n": [1, 2]}))
...     mapped = Mapped(claim, part.finish(), pa.schema({"n": pa.int64()}))
...     column = mapped.batch.column(0)
...     mapped.drop()
...     column.to_pylist(), sorted(os.listdir(place))
...     claim.release()
([1, 2], ['ddflow-spill.lock'])
"""

from __future__ import annotations

import weakref

import pyarrow as pa
import xxhash

from ddflow.errors import CorruptState
from ddflow.storage.file_writer import Written
from ddflow.storage.folder_lock import Claim, failure


class Mapped:
    """``batch``: zero copy over the mapping.  ``nbytes``: of the file.  ``path``: where it is, to be named in errors.

    ``written``: a file of one batch, which is unlinked by `drop`, or when nobody refers to this object any more.
    ``schema``: what the batch had.  O(bytes), for the checksum.  Raises `SpillFailed` when it cannot be mapped,
    `CorruptState` when it is not what was written; the file is unlinked then.
    """

    def __init__(self, claim: Claim, written: Written, schema: pa.Schema) -> None:
        self.path, self.nbytes = written.path, written.size
        self._written = written
        self._end = weakref.finalize(self, claim.remove, written.name)
        try:
            self._whole = mapping(written)
            self.batch = restored(opened(self._whole).get_batch(0), schema)
        except OSError as error:
            self.drop()
            raise failure(claim.path, error, "map a file", self.nbytes) from None
        except BaseException:
            self.drop()
            raise

    def verify(self) -> None:
        """Compare the mapped bytes with the checksum of those written.  O(bytes).  Raises `CorruptState`."""
        check(self._whole, self._written)

    def drop(self) -> None:
        """Unlink the file now.  Arrays that refer to it stay valid; twice is harmless."""
        self._end()


def mapping(written: Written) -> pa.Buffer:
    """The bytes of a file, mapped and verified.  No descriptor stays open.  Raises `CorruptState`, `OSError`."""
    with pa.memory_map(written.path) as source:
        whole = source.read_buffer()
    check(whole, written)
    return whole


def check(whole: pa.Buffer, written: Written) -> None:
    """Raise `CorruptState` unless these are the bytes that were written."""
    found = xxhash.xxh3_128(whole).digest()
    if whole.size != written.size or found != written.digest:
        raise CorruptState(
            f"the spilled file {written.path}",
            f"{whole.size:,} bytes with checksum {found.hex()} were read, {written.size:,} with "
            f"{written.digest.hex()} were written",
            "the disk or memory changed them: mend it and replay the log into a new state",
        )


def opened(whole: pa.Buffer) -> pa.ipc.RecordBatchFileReader:
    """The batches of verified bytes, which they refer to."""
    return pa.ipc.open_file(pa.BufferReader(whole))


def restored(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """A batch read with the types it was written with: Arrow forgets extension types that nobody registered."""
    if batch.schema.equals(schema, check_metadata=True):
        return batch
    columns = [c if c.type.equals(f.type) else c.view(f.type) for c, f in zip(batch.columns, schema, strict=True)]
    return pa.RecordBatch.from_arrays(columns, schema=schema)
