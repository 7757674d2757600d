"""Write the output of a run to one file in any format.

The rows go to a hidden temporary file, which gets its final name when it is complete. An interrupted run therefore
leaves no partial file under the final name. If ddflow reads the written JSON again, it gets the values that were
written.

>>> import io
>>> lines = open_writer(out := io.BytesIO(), FileKind(JSON), pa.schema({"id": pa.int64()}))
>>> lines.write(pa.table({"id": [1, None]}))
>>> out.getvalue()
b'{"id":1}\\n{"id":null}\\n'
"""

import contextlib
import json
import os
import weakref
from abc import ABC, abstractmethod
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Final, Self

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as csv
import pyarrow.parquet as pq
import pyarrow.types as pat

from ddflow.columns.schema import is_bytes, is_text, normalize_type
from ddflow.connectors.files.kinds import ARRAY, CSV, JSON, PARQUET, STREAM, TSV, USE, FileKind, find_kind, is_text_kind
from ddflow.connectors.files.reader import ROWS, describe_error
from ddflow.connectors.files.spelling import (
    compute_list_offsets,
    convert_map_to_list,
    is_list_like,
    is_storable_in_text,
    to_csv_type,
)
from ddflow.errors import DdflowError, OutputExists, UnreadableInput, UnwritableOutput, convert_errors
from ddflow.storage.closing import undo_on_failure

_ESCAPES: Final = [("\\", "\\\\"), ('"', '\\"'), ("\n", "\\n"), ("\r", "\\r"), ("\t", "\\t")]
_OTHERS: Final = [(chr(i), f"\\u{i:04x}") for i in range(32) if chr(i) not in "\n\r\t"]
_BEYOND: Final = [("^inf$", "Infinity"), ("^-inf$", "-Infinity"), ("^-?nan$", "NaN")]


def format_json_lines(batch: pa.RecordBatch) -> Any:
    """Format rows as JSON lines, in a UTF-8 buffer that ends with a newline.  O(bytes).

    The text of a batch must stay below 2 GiB, so the writers cut tables into batches of 64 Ki rows.

    >>> table = pa.table({"id": [1, 2], "tags": [["a", 'b"'], None], "p": [{"x": 1.0}, {"x": None}]})
    >>> print(bytes(format_json_lines(table.to_batches()[0])).decode(), end="")
    {"id":1,"tags":["a","b\\""],"p":{"x":1.0}}
    {"id":2,"tags":null,"p":{"x":null}}
    """
    if not batch.num_columns:
        return b"{}\n" * batch.num_rows
    lines = pc.binary_join_element_wise(format_json_objects(batch), "\n", "")
    ends, text = lines.buffers()[1:]
    return text[: memoryview(ends).cast("i")[len(lines)]] if text is not None else b""


def format_json_objects(batch: pa.RecordBatch, strict: bool = False) -> pa.Array:
    """Format each row as a JSON object.  O(bytes).

    ``strict``: write JSON for other readers, with hyphens in a UUID, and NaN and infinities as strings.

    >>> format_json_objects(pa.record_batch({"x": [1.5, float("nan")]}), strict=True).to_pylist()
    ['{"x":1.5}', '{"x":"NaN"}']
    """
    return _format_members(batch.schema.names, batch.columns, batch.num_rows, strict)


def _format_values(column: pa.Array, strict: bool) -> pa.Array:
    """Format each value of a column as JSON text, nulls included."""
    if strict and column.type == pa.uuid():
        column = pa.array([None if each is None else str(each) for each in column.to_pylist()], pa.string())
    if isinstance(column.type, pa.BaseExtensionType):
        column = column.storage
    if column.type != normalize_type(column.type):
        column = column.cast(normalize_type(column.type))
    kind = column.type
    if pat.is_null(kind):
        text = pa.nulls(len(column), pa.string())
    elif pat.is_struct(kind):
        text = _format_structs(column, strict)
    elif is_list_like(kind):
        text = _format_lists(column, strict)
    elif is_text(kind) or is_bytes(kind) or pat.is_temporal(kind) or pat.is_decimal(kind):
        text = _format_strings(column)
    elif pat.is_floating(kind):
        text = _format_floats(column.cast(pa.float32()) if pat.is_float16(kind) else column, strict)
    else:
        text = column.cast(pa.string())
    return text.fill_null("null")


def _format_floats(column: pa.Array, strict: bool) -> pa.Array:
    text = column.cast(pa.string())
    if not pc.all(pc.is_finite(column)).as_py():
        for pattern, written in _BEYOND:
            text = pc.replace_substring_regex(text, pattern, f'"{written}"' if strict else written)
    return pc.replace_substring_regex(text, r"^(-?\d+)$", r"\1.0")


def _format_strings(column: pa.Array) -> pa.Array:
    """Quote and escape text; a duration becomes an unquoted count of its unit."""
    if pat.is_duration(column.type):
        return column.cast(pa.int64()).cast(pa.string())
    escape = is_text(column.type)
    text = to_csv_type(column).cast(pa.string())
    if escape:
        for letter, written in _ESCAPES:
            text = pc.replace_substring(text, letter, written)
        if pc.any(pc.match_substring_regex(text, "[\\x00-\\x1f]")).as_py():
            for letter, written in _OTHERS:
                text = pc.replace_substring(text, letter, written)
    return pc.binary_join_element_wise('"', text, '"', "")


def _format_structs(column: pa.Array, strict: bool) -> pa.Array:
    text = _format_members([field.name for field in column.type], column.flatten(), len(column), strict)
    return pc.if_else(column.is_null(), pa.scalar(None, pa.string()), text) if column.null_count else text


def _format_members(names: list[str], columns: list[pa.Array], rows: int, strict: bool) -> pa.Array:
    parts: list[Any] = []
    for name, column in zip(names, columns, strict=True):
        parts += [("," if parts else "{") + json.dumps(name, ensure_ascii=False) + ":", _format_values(column, strict)]
    return pc.binary_join_element_wise(*parts, "}", "") if parts else pa.array(["{}"] * rows, pa.string())


def _format_lists(column: pa.Array, strict: bool) -> pa.Array:
    column = convert_map_to_list(column)
    null = column.is_null() if column.null_count else None
    texts = pa.ListArray.from_arrays(
        pa.array(compute_list_offsets(column), pa.int32()), _format_values(column.flatten(), strict), mask=null
    )
    return pc.binary_join_element_wise("[", pc.binary_join(texts, ","), "]", "")


GATHERED_ROWS, GATHERED_BYTES = 1 << 20, 64 << 20
"""Maximum number of rows and of bytes in a Parquet row group.  A row group ends at the limit that it reaches first."""


class TableWriter(ABC):
    """Writer that appends tables of one schema to a file; ``close`` completes the format and leaves the file open."""

    @abstractmethod
    def write(self, table: pa.Table) -> None:
        """Append rows.  O(rows)."""

    @abstractmethod
    def close(self) -> None:
        """Write the remaining rows and complete the format."""


class BufferingWriter(TableWriter):
    """Writer of Parquet and Arrow that buffers small tables.  ``out``: Arrow's writer."""

    def __init__(self, out: Any, rows: int, options: dict[str, int]) -> None:
        self._out, self._most, self._options = out, rows, options
        self._waiting: list[pa.Table] = []

    def write(self, table: pa.Table) -> None:
        """Add rows to the buffer, and write the buffer when it is full."""
        if not table.num_rows:
            return
        self._waiting.append(table)
        full = sum(table.num_rows for table in self._waiting) >= self._most
        if full or sum(table.nbytes for table in self._waiting) >= GATHERED_BYTES:
            self._flush()

    def _flush(self) -> None:
        if self._waiting:
            self._out.write_table(pa.concat_tables(self._waiting).combine_chunks(), **self._options)
            self._waiting = []

    def close(self) -> None:
        """Write the buffered rows and the footer."""
        self._flush()
        self._out.close()


class CsvWriter(TableWriter):
    """Writer of CSV or TSV with a header."""

    def __init__(self, file: Any, schema: pa.Schema, delimiter: str) -> None:
        self._schema = pa.schema([(field.name, to_csv_type(pa.array([], field.type)).type) for field in schema])
        self._out = csv.CSVWriter(file, self._schema, write_options=csv.WriteOptions(delimiter=delimiter))

    def write(self, table: pa.Table) -> None:
        """Append rows."""
        for batch in table.to_batches(ROWS):
            self._out.write_batch(
                pa.RecordBatch.from_arrays([to_csv_type(c) for c in batch.columns], schema=self._schema)
            )

    def close(self) -> None:
        """Close Arrow's writer, so that it writes its buffered text."""
        self._out.close()


class JsonLinesWriter(TableWriter):
    """Writer of JSON lines."""

    def __init__(self, file: Any) -> None:
        self._file = file

    def write(self, table: pa.Table) -> None:
        """Append rows."""
        for batch in table.to_batches(ROWS):
            self._file.write(format_json_lines(batch))

    def close(self) -> None:
        """Do nothing, because `write` has written all lines."""


class JsonArrayWriter(JsonLinesWriter):
    """Writer of one JSON array, with one object in each line."""

    def __init__(self, file: Any) -> None:
        super().__init__(file)
        self._next = b"[\n"

    def write(self, table: pa.Table) -> None:
        """Append rows."""
        for batch in table.to_batches(ROWS):
            if batch.num_rows:
                self._file.write(self._next + bytes(format_json_lines(batch))[:-1].replace(b"\n", b",\n"))
                self._next = b",\n"

    def close(self) -> None:
        """Close the array."""
        self._file.write(b"\n]\n" if self._next == b",\n" else b"[]\n")


class CompressedWriter(TableWriter):
    """Wrapper that compresses the output of another writer with gzip or zstd."""

    def __init__(self, file: Any, kind: FileKind, schema: pa.Schema) -> None:
        self._stream = pa.CompressedOutputStream(pa.PythonFile(_CloseIgnoringFile(file), mode="w"), str(kind.wrapped))
        self._inner = open_writer(self._stream, kind._replace(wrapped=None), schema)

    def write(self, table: pa.Table) -> None:
        """Append rows."""
        self._inner.write(table)

    def close(self) -> None:
        """Write the end of the format, then the end of the compressed stream."""
        self._inner.close()
        self._stream.close()


class _CloseIgnoringFile:
    """File object that writes to a file, but does not close the file."""

    closed = False

    def __init__(self, file: Any) -> None:
        self.write, self.flush = file.write, file.flush

    def close(self) -> None:
        """Do nothing, because the owner of the file closes it."""


def open_writer(file: IO[bytes] | Any, kind: FileKind, schema: pa.Schema) -> TableWriter:
    """Return the writer for a kind of file.  O(1)."""
    if kind.wrapped is not None:
        return CompressedWriter(file, kind, schema)
    if kind.name in (CSV, TSV):
        return CsvWriter(file, schema, kind.delimiter)
    if kind.name == ARRAY:
        return JsonArrayWriter(file)
    if kind.name == JSON:
        return JsonLinesWriter(file)
    if kind.name == PARQUET:
        return BufferingWriter(pq.ParquetWriter(file, schema, compression="zstd"), GATHERED_ROWS, {})
    new = pa.ipc.new_stream if kind.name == STREAM else pa.ipc.new_file
    return BufferingWriter(new(file, schema), ROWS, {"max_chunksize": ROWS})


class FileOutput:
    """Output file that a ``with`` block opens and completes, made by `open_output`.

    ``written``: rows written so far.
    """

    def __init__(self, path: Path, schema: pa.Schema, overwrite: bool) -> None:
        self.path, self.schema, self.overwrite, self.written = path, schema, overwrite, 0
        try:
            self.kind = find_kind(path)
        except UnreadableInput as error:
            raise UnwritableOutput(f"write {path}", error.found, USE) from None
        if path.is_dir():
            raise UnwritableOutput(f"write {path}", "that is a folder", "name a file in it")
        if path.exists() and not overwrite:
            raise self._build_exists_error()
        if not path.parent.is_dir():
            raise UnwritableOutput(f"write {path}", f"there is no folder {path.parent}", "create it first")
        for field in schema:
            if is_text_kind(self.kind.name) and not is_storable_in_text(field.type, self.kind.name):
                found = f"a {self.kind.name} file cannot hold {field.name!r}, which is {field.type}"
                raise UnwritableOutput(f"write {path}", found, "write .parquet or .arrow, or omit the column")
        self._aside = path.with_name(f".{path.name}.{os.urandom(4).hex()}.part")
        self._file: IO[bytes] | None = None
        self._writer: TableWriter | None = None

    def write(self, table: pa.Table) -> None:
        """Append rows of the output's columns.

        O(rows).  Raises `UnwritableOutput`, for example if the disk is full.
        """
        assert self._writer is not None, "an output is written to in its with block"
        with self._translate_errors():
            self._writer.write(table.cast(self.schema))
        self.written += table.num_rows

    def __enter__(self) -> Self:
        # If an interrupt comes before the with block begins, the finalizer removes the file.
        weakref.finalize(self, _unlink, self._aside)
        with self._translate_errors(), undo_on_failure(self._remove_temporary_file):
            self._file = open(self._aside, "xb")
            self._writer = open_writer(self._file, self.kind, self.schema)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if kind is None:
                self._publish_file()
        finally:
            self._remove_temporary_file()

    def save_partial_file(self, mark: str) -> Path:
        """Save the rows written so far to the file ``mark.NAME`` in the same folder.

        Raises the same errors as the end of the ``with`` block.
        """
        self.path = self.path.with_name(f"{mark}.{self.path.name}")
        self._publish_file()
        return self.path

    def _publish_file(self) -> None:
        assert self._writer is not None and self._file is not None
        with self._translate_errors():
            self._writer.close()
            self._writer = None
            self._file.flush()
            os.fsync(self._file.fileno())
            if self.overwrite:
                self._aside.replace(self.path)
                return
            try:
                # A link, unlike a rename, cannot replace a file that appeared meanwhile.
                os.link(self._aside, self.path)
            except FileExistsError:
                raise self._build_exists_error() from None
            except OSError:  # the file system has no links
                if self.path.exists():
                    raise self._build_exists_error() from None
                self._aside.rename(self.path)

    def _remove_temporary_file(self) -> None:
        """Delete the temporary file.

        Close the writer first, because an open writer would write when Python frees it.
        """
        with contextlib.suppress(Exception):
            if self._writer is not None:
                self._writer.close()
        self._writer = None
        with contextlib.suppress(OSError):
            if self._file is not None:
                self._file.close()
        _unlink(self._aside)

    def _build_exists_error(self) -> OutputExists:
        return OutputExists(
            f"write {self.path}", "it exists already", "choose another name, or overwrite it (--overwrite)"
        )

    def _translate_errors(self) -> contextlib.AbstractContextManager[None]:
        def to_ours(error: Exception) -> UnwritableOutput | None:
            if isinstance(error, DdflowError):
                return None
            return UnwritableOutput(f"write {self.path}", describe_error(error), "fix that, or write to another place")

        return convert_errors((OSError, pa.ArrowException), to_ours)


def _unlink(path: Path) -> None:
    with contextlib.suppress(OSError):
        path.unlink(missing_ok=True)


def open_output(path: Path | str, schema: pa.Schema, overwrite: bool = False) -> FileOutput:
    """Return an output file for a ``with`` block.  The extension of the path selects the format.  O(columns).

    Raises `OutputExists` if the file exists and ``overwrite`` is False.  Raises `UnwritableOutput` for an unknown
    extension, a missing folder, or columns that the format cannot hold, such as lists in CSV.  The function itself
    writes nothing.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     where = Path(folder) / "out.csv"
    ...     with open_output(where, pa.schema({"id": pa.int64()})) as out:
    ...         out.write(pa.table({"id": [1]}))
    ...         there = where.exists()
    ...     there, where.read_text(), out.written
    (False, '"id"\\n1\\n', 1)
    """
    return FileOutput(Path(path), schema, overwrite)
