"""Read CSV and TSV files in blocks with Arrow's reader, and read files that have one message in each line.

A row with too many or too few cells is an error. In a file of messages, each line is one message. The reader returns
the line unchanged, and a message format parses the line later.

>>> import tempfile
>>> from ddflow.connectors.files.kinds import Dialect
>>> from ddflow.connectors.files.places import LocalFile
>>> with tempfile.TemporaryDirectory() as folder:
...     with open(where := f"{folder}/a.csv", "w") as out:
...         _ = out.write("id;zip\\n1;08001\\n2;\\n")
...     file, schema = CsvFile(LocalFile(where), Dialect(";"), {}), pa.schema({"id": pa.int64(), "zip": pa.string()})
...     print(file.possible_types(["zip"])["zip"], next(file.batches(schema)).to_pylist())
frozenset({DataType(string)}) [{'id': 1, 'zip': '08001'}, {'id': 2, 'zip': None}]
"""

import codecs
import io
import re
import time
import weakref
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import cached_property
from threading import Lock
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as csv

from ddflow.columns.names import did_you_mean
from ddflow.connectors.files.file_path import suggest_delimiter, suggest_file_path_call
from ddflow.connectors.files.guess import SAMPLE
from ddflow.connectors.files.places import MAGIC
from ddflow.connectors.files.reader import (
    InputFile,
    TextBlock,
    TextColumn,
    TextFile,
    check_column_count,
    describe_error,
    find_compression_error,
    quote_beginning,
    suggest_encoding,
    translate_file_errors,
)
from ddflow.errors import DdflowError, ErrorText, SchemaMismatch, UnreadableInput

_SHAPE = re.compile(r"CSV parse error: (?:Row #(?P<row>\d+): )?(?P<what>.*)")
_VALUE = re.compile(r"In CSV column #(?P<column>\d+): (?:Row #(?P<row>\d+): )?(?P<what>.*)")
_SEPARATED = re.compile('"?sep=(.)"?', re.IGNORECASE)
CONFLICT: Final = re.compile(r"(?:^|: )(<{7}|={7}|>{7})(?: |$)")
"""Conflict marker that git writes into a file after a failed merge."""


class CsvFile(TextFile):
    """A CSV or TSV file, whose dialect sets the delimiter and the texts for null."""

    @property
    def _delimiter(self) -> str:
        return self.dialect.delimiter or self.place.kind.delimiter

    def columns(self) -> Mapping[str, None]:
        """Return the names in the header."""
        return self._header

    @cached_property
    def _header(self) -> dict[str, None]:
        with self._open_reader([], head=True) as bytes:
            names = list(bytes.reader.schema.names)
        check_column_count(self.place, len(names))
        self._check_header(names)
        twice = sorted(name for name, times in Counter(names).items() if times > 1)
        if twice:
            remedy = "name each column once" + (
                "; if its first line is a title, delete the line" if "" in twice else ""
            )
            raise UnreadableInput(
                self.place.name, f"the columns {twice} occur more than once", remedy, file=self.place.name
            )
        self._refuse_conflict_markers(pa.array(names[:1]), -1)
        return dict.fromkeys(names)

    def guess_delimiter(self) -> str | None:
        """Return the likely delimiter if the header is a single column with an undeclared delimiter in its name."""
        name = next(iter(self._header))
        return next((each for each in ";\t|," if each in name), None) if len(self._header) == 1 else None

    def blocks(self, names: Collection[str] | None = None) -> Iterator[TextBlock]:
        """Yield the rows in blocks.  ``names``: the columns of the header; None to read only the beginning."""
        own, row = list(self._header), 0
        with self._open_reader(own, head=names is None) as bytes:
            last = None
            for batch in bytes.reader:
                columns = {
                    name: TextColumn(column, forms=self.dialect.value_formats)
                    for name, column in zip(own, batch.columns, strict=True)
                }
                if len(own) == 1:
                    self._refuse_conflict_markers(batch.column(0), row)
                yield TextBlock(columns, lambda n, before=row: _describe_row(before + n + 2))  # type: ignore[misc]
                row, last = row + batch.num_rows, batch if batch.num_rows else last
            opened = (
                None
                if last is None or names is None
                else bytes.find_unclosed_quote(last.column(-1)[-1].as_py(), self._delimiter)
            )
        if opened is not None:
            raise UnreadableInput(
                f"{self.place.name}, line {opened:,}",
                "a quote opened there is never closed",
                "fix it, or check that the CSV file is complete",
            )

    @contextmanager
    def _open_reader(self, names: list[str], head: bool) -> Iterator["_TailTrackingStream"]:
        """Open a reader that yields batches of text columns, and translate its errors."""
        options = (
            csv.ReadOptions(use_threads=False, block_size=SAMPLE),
            csv.ParseOptions(newlines_in_values=True, delimiter=self._delimiter),
            csv.ConvertOptions(
                column_types=dict.fromkeys(names, pa.string()),
                null_values=["", *self.dialect.nulls],
                strings_can_be_null=True,
                quoted_strings_can_be_null=False,
            ),
        )
        with translate_file_errors(self.place, self.dialect):
            bytes = _TailTrackingStream(self.open_text(head))
            try:
                bytes.open_reader(*options)
                yield bytes
            except pa.ArrowInvalid as error:
                raise self._build_error(describe_error(error), names) from None
            finally:
                bytes.close_reader()

    def _build_error(self, message: str, names: list[str]) -> DdflowError:
        where, shape, value = self.place.name, _SHAPE.fullmatch(message), _VALUE.fullmatch(message)
        if (error := find_compression_error(self.place)) is not None:
            return error
        if value is not None and "UTF8" in value["what"]:
            place = f"{where}, {_describe_row(value['row'])}, column {names[int(value['column'])]!r}"
            return UnreadableInput(
                place, f"it is not {self.dialect.encoding.upper()}", suggest_encoding(self.place, self.dialect)
            )
        if shape is not None:
            if CONFLICT.search(shape["what"]):
                return _build_merge_conflict_error(f"{where}, {_describe_row(shape['row'])}" if shape["row"] else where)
            if self.open_text(head=True).read(2) in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE):
                given = suggest_file_path_call(where, self.dialect._replace(encoding="utf-16"))
                return UnreadableInput(where, "it begins with the byte order mark of UTF-16", ErrorText("pass ", given))
            if self.open_text(head=True).read(8) == b"<<<<<<< ":
                return _build_merge_conflict_error(f"{where}, {_describe_row(1)}")
            said = f"{_describe_row(shape['row'])}: " if shape["row"] else ""
            remedy = ErrorText("fix the row, or check that the CSV file is complete")
            header = self.open_text(head=True).read(SAMPLE).partition(b"\n")[0].decode("utf-8-sig", "replace")
            if (error := self._find_sep_line_error(header)) is not None:
                return error
            between = next((each for each in ";\t|" if each in header and self._delimiter not in header), None)
            if between is not None and header.replace("\t", "").rstrip("\r").isprintable():
                remedy = suggest_delimiter(where, self.dialect, between)
            elif shape["what"].startswith("Expected 1 columns") and between is None:
                remedy = ErrorText(
                    f"if the first line, {quote_beginning(header.rstrip())}, is a title, delete it; else fix the row"
                )
            return UnreadableInput(where, said + shape["what"], remedy)
        if "straddl" in message:
            message = f"a row is longer than {SAMPLE:,} bytes, perhaps because a quote is not closed"
        return UnreadableInput(where, message, "check that the CSV file is complete")

    def _check_header(self, names: list[str]) -> None:
        """Refuse a first line that has compressed data or ``sep=`` instead of column names."""
        if not names[0].isprintable() and (error := find_compression_error(self.place)) is not None:
            raise error
        if (error := self._find_sep_line_error(self._delimiter.join(names))) is not None:
            raise error

    def _find_sep_line_error(self, header: str) -> UnreadableInput | None:
        """Return an error if the first line is ``sep=;``, which only Excel reads."""
        if (found := _SEPARATED.fullmatch(header.rstrip("\r\n"))) is None:
            return None
        remedy = ErrorText("delete that line")
        if found[1] != self._delimiter:
            remedy += ErrorText(
                ", and pass ", suggest_file_path_call(self.place.name, self.dialect._replace(delimiter=found[1]))
            )
        return UnreadableInput(
            self.place.name, f"its first line is {found[0]!r}, which only Excel reads", remedy, file=self.place.name
        )

    def _refuse_conflict_markers(self, texts: pa.Array, before: int) -> None:
        """Refuse git's conflict markers in the only column of a file, or in the first name of its header."""
        marks = pc.match_substring_regex(texts, "^(<{7}|={7}|>{7})( |$)")
        if (row := pc.index(marks, True).as_py()) >= 0:
            raise _build_merge_conflict_error(f"{self.place.name}, {_describe_row(before + row + 2)}")


LONGEST_WAIT: Final = 5
"""Maximum seconds to wait for a thread of Arrow, which usually needs a fraction of a second."""


class _CloseIgnoringStream:
    """File object for Arrow.  The thread that drops the last reference to the file needs the interpreter."""

    closed = False

    def __init__(self, read: Callable[[int], bytes]) -> None:
        self.read = read

    def close(self) -> None:
        """Do nothing; `FileLocation.open` explains why."""


class _TailTrackingStream:
    """Stream that passes a file to Arrow, and keeps the last bytes of the file to find an unclosed quote.

    No block ends with a carriage return. If a block ended with a carriage return, Arrow would treat a line feed at the
    start of the next block as the end of a line, even within quotes. If a file has only a header, Arrow needs a line
    feed after the header, so the stream adds this line feed.
    """

    reader: Any = None
    """Reader that yields batches of text columns; None before `open_reader`."""

    def __init__(self, stream: pa.NativeFile) -> None:
        self._stream, self._held = stream, b""
        self._pieces, self._kept, self._lines = list[bytes](), 0, 0
        self._lock, self._stopped = Lock(), False
        self._file: Callable[[], _CloseIgnoringStream | None] = lambda: None

    def open_reader(self, *options: Any) -> None:
        """Open the reader.

        Arrow copies the bytes into its own memory, so Arrow's threads never free Python objects.
        """
        file = _CloseIgnoringStream(self.read)
        self._file = weakref.ref(file)
        stream = pa.BufferedInputStream(pa.PythonFile(file, mode="r"), 1)  # type: ignore[attr-defined]
        try:
            self.reader = csv.open_csv(stream, *options)
        finally:
            del file, stream  # or an error's traceback keeps them, and `close_reader` waits in vain

    def read(self, size: int) -> bytes:
        """Read the next ``size`` bytes or fewer.  At the end of the file, return no bytes."""
        with self._lock:
            return b"" if self._stopped else self._read_next_bytes(size)

    def close_reader(self) -> None:
        """Wait until the read-ahead thread drops the file.

        If the process did not wait for the thread, the process could hang or abort at exit.
        """
        with self._lock:
            self._stopped = True
        with suppress(Exception):  # errors in blocks that were not read
            deque(self.reader or (), 0)
        self.reader, ends = None, time.monotonic() + LONGEST_WAIT
        while self._file() is not None and time.monotonic() < ends:
            time.sleep(0.0005)

    def _read_next_bytes(self, size: int) -> bytes:
        more = self._stream.read(size - len(self._held))
        piece, self._held = self._held + more, b""
        if more.endswith(b"\r") and len(piece) > 1:
            piece, self._held = piece[:-1], b"\r"
        self._lines += piece.count(b"\n")
        self._pieces.append(piece)
        self._kept += len(piece)
        while self._kept - len(self._pieces[0]) > 3 * SAMPLE:  # room for the longest value with all quotes doubled
            self._kept -= len(self._pieces.pop(0))
        if 0 < self._kept == len(piece) < size and not re.search(b"[\r\n]", piece):  # this may be only a header
            self._held = self._stream.read(1)
            return piece if self._held else piece + b"\n"
        return piece

    def find_unclosed_quote(self, value: str | None, delimiter: str) -> int | None:
        """Return the line where an unclosed quote begins; None if all quotes are closed.

        ``value``: the file's last value.
        """
        if value is None:
            return None
        inner, end = value.replace('"', '""').encode(), b"".join(self._pieces)
        if end.rstrip(b"\r\n").endswith(b'"' + inner + b'"') or not end.endswith(b'"' + inner):
            return None
        before = end[: len(end) - len(inner) - 1]
        opens = not before or before.endswith((delimiter.encode(), b"\n", b"\r"))
        return self._lines - inner.count(b"\n") + 1 if opens else None


def _build_merge_conflict_error(where: str) -> UnreadableInput:
    """Build the error for a file with git's conflict markers."""
    return UnreadableInput(where, "it has git's conflict markers (<<<<<<<)", "resolve the conflict, or skip the file")


def _describe_row(number: str | int) -> str:
    return f"row {int(number):,}"


def build_missing_column_error(reader: InputFile, column: str, there: Iterable[str]) -> SchemaMismatch:
    """Build the error for a file that lacks a required column, perhaps because of a wrong delimiter."""
    if isinstance(reader, CsvFile) and (between := reader.guess_delimiter()) is not None:
        found = f"the header is one column, {next(iter(there))!r}"
        return SchemaMismatch(reader.place.name, found, suggest_delimiter(reader.place.name, reader.dialect, between))
    found, remedy = f"the column {column!r} is missing, but every file must have it", did_you_mean(column, there)
    if isinstance(reader, CsvFile) and any(re.fullmatch(r"-?\d[\d.]*", name) for name in there):
        found += "; its first row is read as the header"
        remedy = f"add a header line; {remedy}"
    return SchemaMismatch(reader.place.name, found, remedy)


VALUE: Final = "value"
LINE: Final = "line"
"""Columns of messages, with the names that `ddflow.connectors.formats.messages` uses."""
Ints = np.ndarray[Any, np.dtype[np.int64]]
BLOCK: Final = 1 << 22


class MessageLinesFile(InputFile):
    """A file with one message in each line."""

    def columns(self) -> Mapping[str, pa.DataType]:
        """Return the columns for the message and its line number."""
        return {VALUE: pa.binary(), LINE: pa.int64()}

    def batches(self, schema: pa.Schema, converted: Collection[str] = ()) -> Iterator[pa.RecordBatch]:
        """Yield the lines that are not blank, with their line numbers, which start at 1."""
        with translate_file_errors(self.place):
            for number, lines in read_line_blocks(self._decompress(self.place.open())):
                values, places = drop_blank_lines(lines)
                yield pa.record_batch({VALUE: values, LINE: pa.array(places + (number + 1))})

    def read_first_messages(self) -> pa.Array:
        """Return the first lines, without the last one if it may be incomplete."""
        with translate_file_errors(self.place), self._decompress(self.place.open_head()) as stream:
            text = stream.read(SAMPLE)
            whole = text[: text.rfind(b"\n") + 1] or text
        return drop_blank_lines(next(read_line_blocks(pa.BufferReader(whole)), (0, pa.array([], pa.binary())))[1])[0]

    def _decompress(self, stream: pa.NativeFile) -> pa.NativeFile:
        """Decompress a stream if the file begins with the magic bytes of gzip or zstd."""
        with self.place.open_head() as head:
            begin = head.read(4)
        wrapped = next((how for magic, how in MAGIC.items() if begin.startswith(magic)), None)
        return stream if wrapped is None else pa.CompressedInputStream(stream, wrapped)


def read_line_blocks(stream: pa.NativeFile) -> Iterator[tuple[int, pa.Array]]:
    """Yield the lines of a stream in blocks, each with the number of its first line.  O(bytes).

    >>> [(first, lines.to_pylist()) for first, lines in read_line_blocks(pa.BufferReader(b'{"id": 1}\\n\\n{"id": 2}'))]
    [(0, [b'{"id": 1}', b'']), (2, [b'{"id": 2}'])]
    """
    rest, number = io.BytesIO(), 0
    while True:
        block = stream.read(BLOCK)
        end = block.rfind(b"\n") + 1
        rest.write(block[:end])
        if end or not block:
            text = rest.getvalue()
            rest = io.BytesIO()
            if text:
                whole = pa.array([text.removesuffix(b"\n")], pa.binary())
                lines = pc.split_pattern(whole, b"\n").values  # type: ignore[attr-defined]
                yield number, lines
                number += len(lines)
        rest.write(block[end:])
        if not block:
            return


def drop_blank_lines(lines: pa.Array) -> tuple[pa.Array, Ints]:
    """Return the lines that are not blank, and their indexes among all lines.  O(bytes)."""
    there = np.flatnonzero(np.asarray(pc.match_substring_regex(lines, r"\S")))
    return lines.take(pa.array(there)), there
