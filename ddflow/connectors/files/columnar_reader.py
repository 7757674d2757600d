"""Read Parquet and Arrow files, which store their own types, one batch at a time.

Guarantees: every batch is validated in full, because Arrow does not check the offsets in a file and later code relies
on these offsets. A file in Arrow's stream format must end with the end mark of that format. Arrow itself reads a
truncated or zero-filled stream as a shorter stream and reports no error.

Limits: Arrow files are read, not memory-mapped, because a mapped file that shrinks kills the process. ``.arrow`` and
``.feather`` files may have Arrow's file format or stream format; the first bytes show which.
"""

from abc import abstractmethod
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from functools import cached_property
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq

from ddflow.connectors.files.places import LocalFile
from ddflow.connectors.files.reader import ROWS, InputFile, check_column_count, translate_file_errors
from ddflow.errors import UnreadableInput

BUFFER = 1 << 20
"""Bytes to fetch at a time for each column."""
_FILE, _END = b"ARROW1", b"\xff\xff\xff\xff\0\0\0\0"


class ColumnarFile(InputFile):
    """A file that stores the types of its columns."""

    @property
    @abstractmethod
    def stored_schema(self) -> pa.Schema:
        """The stored schema."""

    def columns(self) -> Mapping[str, pa.DataType | None]:
        """Return the stored types by name."""
        check_column_count(self.place, len(self.stored_schema))
        return {field.name: field.type for field in self.stored_schema}


class ParquetFile(ColumnarFile):
    """A Parquet file.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     pq.write_table(pa.table({"id": [1, 2]}), where := f"{folder}/a.parquet")
    ...     file = ParquetFile(LocalFile(where))
    ...     file.count_rows(), [batch.num_rows for batch in file.batches(file.stored_schema)]
    (2, [2])
    """

    @cached_property
    def _metadata(self) -> tuple[pq.FileMetaData, pa.Schema]:
        with translate_file_errors(self.place), self.place.open() as bytes, pq.ParquetFile(bytes) as file:
            return file.metadata, _check_utf8_names(file.schema_arrow)

    @property
    def stored_schema(self) -> pa.Schema:
        """The schema that the file's footer contains."""
        return self._metadata[1]

    def count_rows(self) -> int:
        """Return the number of rows from the footer."""
        return int(self._metadata[0].num_rows)

    def batches(self, schema: pa.Schema, converted: Collection[str] = ()) -> Iterator[pa.RecordBatch]:
        """Yield the rows by row group, without Arrow's default prefetch of the whole file.

        Only the calling thread reads a Python file object. If a thread of Arrow held a Python file object at exit, the
        process might abort.
        """
        with (
            translate_file_errors(self.place),
            self.place.open() as bytes,
            pq.ParquetFile(bytes, pre_buffer=False, buffer_size=BUFFER) as file,
        ):
            for batch in file.iter_batches(batch_size=ROWS, use_threads=not isinstance(bytes, pa.PythonFile)):
                batch.validate(full=True)
                yield batch


class ArrowFile(ColumnarFile):
    """An Arrow IPC file, in the file or the stream format."""

    @contextmanager
    def _open_reader(self) -> Iterator[tuple[pa.NativeFile, Any]]:
        with translate_file_errors(self.place), self.place.open() as file:
            yield file, pa.ipc.open_stream(file) if self._is_stream else pa.ipc.open_file(file)

    @cached_property
    def _is_stream(self) -> bool:
        with translate_file_errors(self.place), self.place.open() as file:
            return file.read(len(_FILE)) != _FILE

    @cached_property
    def stored_schema(self) -> pa.Schema:
        """The stored schema."""
        with self._open_reader() as (_, reader):
            return _check_utf8_names(reader.schema)

    def count_rows(self) -> int | None:
        """Add up the row counts in the batch headers of a local file; return None for a stream or a remote file."""
        with translate_file_errors(self.place):
            local = isinstance(self.place, LocalFile) and not self._is_stream
            return int(ds.dataset(self.place.name, format="ipc").count_rows()) if local else None

    def batches(self, schema: pa.Schema, converted: Collection[str] = ()) -> Iterator[pa.RecordBatch]:
        """Yield the stored batches, validated and sliced to at most `ROWS` rows."""
        with self._open_reader() as (file, reader):
            for batch in reader if self._is_stream else map(reader.get_batch, range(reader.num_record_batches)):
                batch.validate(full=True)
                yield from (batch.slice(start, ROWS) for start in range(0, batch.num_rows, ROWS))
            if self._is_stream:
                self._check_end_mark(file)

    def _check_end_mark(self, file: pa.NativeFile) -> None:
        end, size = file.tell(), file.size()
        file.seek(max(end - 8, 0))
        if end != size or file.read(8) != _END:
            found = f"it has no end mark, or ends at byte {end:,} of {size:,}"
            raise UnreadableInput(
                self.place.name,
                found,
                "write it again, and close the writer: it is truncated or damaged",
                file=self.place.name,
            )


def _check_utf8_names(schema: pa.Schema) -> pa.Schema:
    """Return the schema, or raise an error if a name is not valid UTF-8; the caller translates this error."""
    fields = list(schema)
    while fields:
        field = fields.pop()
        field.name.encode()
        fields += [field.type.field(i) for i in range(field.type.num_fields)]
    return schema
