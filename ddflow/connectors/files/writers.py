"""Writers: tables into an open file, one class a format.

Invariant: rows come out in the order of the tables, and what a reader of ``ddflow.connectors.files`` reads back, as its
own type, is what was written.  Parquet and Arrow gather small tables to batches of a good size; CSV and JSON lines
write at once, so that they serve a pipe as well.  CSV: a header, text in quotes, an empty field for null.  JSON: see
``json_text``. Whether a format can hold the columns has been checked (`Output`); nothing is renamed, removed or
synced here.

>>> import io
>>> lines = writer(out := io.BytesIO(), Kind(JSON), pa.schema({"id": pa.int64()}))
>>> lines.write(pa.table({"id": [1, None]}))
>>> out.getvalue()
b'{"id":1}\\n{"id":null}\\n'
"""

from abc import ABC, abstractmethod
from typing import IO, Any

import pyarrow as pa
import pyarrow.csv as pc
import pyarrow.parquet as pq

from ddflow.connectors.files.json_text import json_lines
from ddflow.connectors.files.kinds import ARRAY, CSV, JSON, PARQUET, STREAM, TSV, Kind
from ddflow.connectors.files.reading import ROWS
from ddflow.connectors.files.wire import plain

GATHERED_ROWS, GATHERED_BYTES = 1 << 20, 64 << 20
"""As much is gathered for one row group of Parquet, whichever is reached first."""


class Writer(ABC):
    """Appends tables of one schema to a file; ``close`` completes the format, not the file."""

    @abstractmethod
    def write(self, table: pa.Table) -> None:
        """Append rows.  O(rows)."""

    @abstractmethod
    def close(self) -> None:
        """Write what is left."""


class Gathering(Writer):
    """Parquet or Arrow: tables are gathered before they are handed on.  ``out``: Arrow's own writer."""

    def __init__(self, out: Any, rows: int, options: dict[str, int]) -> None:
        self._out, self._most, self._options = out, rows, options
        self._waiting: list[pa.Table] = []

    def write(self, table: pa.Table) -> None:
        """Append rows, at once or with later ones."""
        if not table.num_rows:
            return
        self._waiting.append(table)
        full = sum(table.num_rows for table in self._waiting) >= self._most
        if full or sum(table.nbytes for table in self._waiting) >= GATHERED_BYTES:
            self._hand_on()

    def _hand_on(self) -> None:
        if self._waiting:
            self._out.write_table(pa.concat_tables(self._waiting).combine_chunks(), **self._options)
            self._waiting = []

    def close(self) -> None:
        """Hand on the rest and write the footer."""
        self._hand_on()
        self._out.close()


class Csv(Writer):
    """CSV or TSV with a header."""

    def __init__(self, file: Any, schema: pa.Schema, delimiter: str) -> None:
        self._schema = pa.schema([(field.name, plain(pa.array([], field.type)).type) for field in schema])
        self._out = pc.CSVWriter(file, self._schema, write_options=pc.WriteOptions(delimiter=delimiter))

    def write(self, table: pa.Table) -> None:
        """Append rows."""
        for batch in table.to_batches(ROWS):
            self._out.write_batch(pa.RecordBatch.from_arrays([plain(c) for c in batch.columns], schema=self._schema))

    def close(self) -> None:
        """Complete the text that Arrow holds."""
        self._out.close()


class Lines(Writer):
    """JSON lines."""

    def __init__(self, file: Any) -> None:
        self._file = file

    def write(self, table: pa.Table) -> None:
        """Append rows."""
        for batch in table.to_batches(ROWS):
            self._file.write(json_lines(batch))

    def close(self) -> None:
        """Do nothing: all lines are written."""


class Elements(Lines):
    """JSON: one array of objects, a line each."""

    def __init__(self, file: Any) -> None:
        super().__init__(file)
        self._next = b"[\n"

    def write(self, table: pa.Table) -> None:
        """Append rows."""
        for batch in table.to_batches(ROWS):
            if batch.num_rows:
                self._file.write(self._next + bytes(json_lines(batch))[:-1].replace(b"\n", b",\n"))
                self._next = b",\n"

    def close(self) -> None:
        """Close the array."""
        self._file.write(b"\n]\n" if self._next == b",\n" else b"[]\n")


class Wrapped(Writer):
    """Another writer, through gzip or zstd."""

    def __init__(self, file: Any, kind: Kind, schema: pa.Schema) -> None:
        self._stream = pa.CompressedOutputStream(pa.PythonFile(_Open(file), mode="w"), str(kind.wrapped))
        self._inner = writer(self._stream, kind._replace(wrapped=None), schema)

    def write(self, table: pa.Table) -> None:
        """Append rows."""
        self._inner.write(table)

    def close(self) -> None:
        """Complete the format, then the compression."""
        self._inner.close()
        self._stream.close()


class _Open:
    """File that its writer does not close."""

    closed = False

    def __init__(self, file: Any) -> None:
        self.write, self.flush = file.write, file.flush

    def close(self) -> None:
        """Do nothing."""


def writer(file: IO[bytes] | Any, kind: Kind, schema: pa.Schema) -> Writer:
    """Return the writer for a kind of file.  O(1)."""
    if kind.wrapped is not None:
        return Wrapped(file, kind, schema)
    if kind.name in (CSV, TSV):
        return Csv(file, schema, kind.delimiter)
    if kind.name == ARRAY:
        return Elements(file)
    if kind.name == JSON:
        return Lines(file)
    if kind.name == PARQUET:
        return Gathering(pq.ParquetWriter(file, schema, compression="zstd"), GATHERED_ROWS, {})
    new = pa.ipc.new_stream if kind.name == STREAM else pa.ipc.new_file
    return Gathering(new(file, schema), ROWS, {"max_chunksize": ROWS})
