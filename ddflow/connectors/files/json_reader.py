"""Read JSON lines, and JSON files with one array of objects.

msgspec parses each row. A value stays JSON text until the type of its column is known, so numbers keep all their
digits.

>>> import tempfile
>>> from ddflow.connectors.files.kinds import Dialect
>>> from ddflow.connectors.files.places import LocalFile
>>> with tempfile.TemporaryDirectory() as folder:
...     with open(where := f"{folder}/a.jsonl", "w") as out:
...         _ = out.write('{"id": 1, "on": "2024-01-31"}\\n{"id": 2}\\n')
...     file, schema = JsonFile(LocalFile(where), Dialect(), {}), pa.schema({"id": pa.int64(), "on": pa.date32()})
...     print(list(file.columns()), next(file.batches(schema)).to_pylist()[1])
['id', 'on'] {'id': 2, 'on': None}
"""

import codecs
import json
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cached_property
from typing import Any, Final

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ddflow.columns.names import did_you_mean
from ddflow.connectors.files.csv_reader import CONFLICT
from ddflow.connectors.files.guess import SAMPLE
from ddflow.connectors.files.kinds import ARRAY
from ddflow.connectors.files.reader import (
    TextBlock,
    TextColumn,
    TextFile,
    check_column_count,
    suggest_encoding,
    translate_file_errors,
)
from ddflow.errors import DdflowError, DeclareFix, ErrorText, SchemaMismatch, UnreadableInput

DEPTH: Final = 40
"""Maximum depth of brackets, including those of the row.

Arrow files allow 64 levels and Parquet files 100. A list takes two levels.
"""
_STEPS: Final = np.zeros(256, np.int8)
_STEPS[[ord("["), ord("{")]] = 1
_STEPS[[ord("]"), ord("}")]] = -1

Bytes = np.ndarray[Any, np.dtype[np.uint8]]


def compute_bracket_depths(text: bytes, depth: int = 0, quoted: bool = False) -> tuple[Any, Any]:
    """Return two arrays: the bracket depth of each byte of a text (int32), and whether each byte is quoted.

    O(n). ``depth``, ``quoted``: the state before the first byte.  The text must not begin directly after a backslash.

    >>> compute_bracket_depths(b'[{"a]": []}]')[0].tolist()
    [1, 2, 2, 2, 2, 2, 2, 2, 3, 2, 1, 0]
    """
    plain = np.frombuffer(text.replace(b"\\\\", b"  ").replace(b'\\"', b"  "), np.uint8)
    quotes = plain == ord('"')
    inside = (np.cumsum(quotes, dtype=np.int32) + quoted) % 2 == 1
    return depth + np.cumsum(np.where(inside, 0, _STEPS[plain]), dtype=np.int32), inside


class JsonArraySplitter:
    """Converter of one JSON array to lines, with one line for each element.  ``where``: the name of the file in errors.

    >>> elements = JsonArraySplitter("a.json")
    >>> elements.to_lines(b'[{"id": 1,\\n "t": "],["}, {"i') + elements.to_lines(b'd": 2}]\\n') + elements.finish()
    b' {"id": 1,  "t": "],["}\\n {"id": 2}  \\n'
    """

    def __init__(self, where: str) -> None:
        self._where, self._depth, self._quoted, self._rest, self._ended = where, 0, False, b"", False

    def to_lines(self, text: bytes) -> bytes:
        """Convert the next piece of the file to lines.  O(n).  Raises `UnreadableInput` if the file is not an array."""
        text = self._rest + text
        kept = len(text) - len(text.rstrip(b"\\"))  # a trailing backslash waits for the rest of its escape
        text, self._rest = text[: len(text) - kept], text[len(text) - kept :]
        if not text:
            return b""
        depth, inside = compute_bracket_depths(text, self._depth, self._quoted)
        before = np.concatenate(([self._depth], depth[:-1]))
        out = np.frombuffer(text, np.uint8).copy()
        out[(out == 10) | (out == 13)] = 32
        outside = (before == 0) & (out > 32)
        opened = outside & (out == ord("["))
        if outside.sum() > opened.sum() or opened.sum() + self._ended > 1 or depth.min() < 0:
            raise UnreadableInput(
                self._where, "it is not one array of objects", "check that the JSON file is complete: [{...}, {...}]"
            )
        self._ended |= bool(opened.any())
        out[(depth == 1) & ~inside & (out == ord(","))] = 10
        out[opened | ((depth == 0) & (before == 1))] = 32
        self._depth, self._quoted = int(depth[-1]), bool(inside[-1])
        return out.tobytes()

    def finish(self) -> bytes:
        """Return the end of the last line.  Raises `UnreadableInput` if the array is not closed."""
        if self._depth or self._rest or not self._ended:
            raise UnreadableInput(self._where, "its array is not closed", "check that the JSON file is complete")
        return b"\n"


Row = dict[str, msgspec.Raw]
_DECODER: Final = msgspec.json.Decoder(Row)
_ENCODER: Final = msgspec.json.Encoder()
_TEXTS: Final = msgspec.json.Decoder(list[str])
_BARE: Final = re.compile(rb'"(?:[^"\\]|\\.)*"|-?Infinity|NaN')
_STAND_INS: Final = {b"NaN": b"90e99999999991", b"Infinity": b"90e99999999992", b"-Infinity": b"-90e99999999992"}
"""Improbable numbers that replace NaN and the infinities, because JSON cannot express these values."""
_FAULTS: Final = (msgspec.MsgspecError, RecursionError, UnicodeDecodeError)


class JsonFile(TextFile):
    """A JSON lines file, or a JSON file with one array.

    Each error names the line. Values nested deeper than `DEPTH` are refused before they are parsed, so hostile input
    cannot exhaust the stack.
    """

    def columns(self) -> Mapping[str, None]:
        """Return the names in the first rows, in order of first appearance."""
        block = self.first_block()
        names = dict.fromkeys(() if block is None else block.columns)
        check_column_count(self.place, len(names))
        return names

    @cached_property
    def has_all_columns(self) -> bool:
        """Whether the first `SAMPLE` bytes are the whole file."""
        with translate_file_errors(self.place, self.dialect), self.open_text(head=True) as stream:
            return len(_read_sample(stream)) < SAMPLE

    def blocks(self, names: Collection[str] | None = None) -> Iterator[TextBlock]:
        """Yield the rows in blocks.

        ``names``: the columns to read; None to read all columns, of the beginning only.
        """
        line = 0
        for text in self._read_lines(head=names is None):
            with translate_file_errors(self.place, self.dialect):
                rows, given = self._parse_rows(text, line)
                block = _LineBlock(self, given, line, given is not text)
                yield TextBlock(block.build_columns(rows, names), block.describe_line)
            line += text.count(b"\n")

    def _read_lines(self, head: bool) -> Iterator[bytes]:
        """Yield blocks of whole lines."""
        stream, elements, rest, done, last = self.open_text(head), None, b"", 0, False
        with translate_file_errors(self.place):
            while not last:
                chunk = _read_sample(stream)
                last = len(chunk) < SAMPLE
                if elements is None and not done and not rest:
                    chunk = chunk.removeprefix(codecs.BOM_UTF8)
                    if self.place.kind.name == ARRAY and chunk.lstrip()[:1] not in (b"{", b""):
                        elements = JsonArraySplitter(self.place.name)
                rest += chunk if elements is None else elements.to_lines(chunk)
                if last:
                    rest += b"\n" if elements is None else elements.finish()
                first, end = rest.find(b"\n"), rest.rfind(b"\n") + 1
                if first > SAMPLE or len(rest) - end > SAMPLE:
                    number = done + 1 + (0 if first > SAMPLE else rest.count(b"\n"))
                    raise self.build_line_error(number, f"it is longer than {SAMPLE:,} bytes")
                if end:
                    yield rest[:end]
                done, rest = done + rest.count(b"\n"), rest[end:]

    def _parse_rows(self, text: bytes, line: int) -> tuple[list[Row], bytes]:
        """Parse the objects in the lines that are not blank; return the objects and the parsed text."""
        for given in _yield_with_nan_stand_ins(text):
            with suppress(*_FAULTS):
                rows = _DECODER.decode_lines(given)
                if len(rows) == text.count(b"\n") or len(rows) == sum(map(bool, map(bytes.strip, text.split(b"\n")))):
                    return rows, given
        raise self._build_row_error(text, line)

    def _build_row_error(self, text: bytes, line: int) -> DdflowError:
        """Build the error for the first line that is not an object."""
        for number, one in enumerate(text.split(b"\n"), line + 1):
            try:
                rows = _DECODER.decode_lines([*_yield_with_nan_stand_ins(one)][-1])
                if len(rows) == bool(one.strip()):
                    continue
                return self.build_line_error(number, "it holds more than one object")
            except RecursionError:
                return self.build_line_error(number, _DEEP)
            except UnicodeDecodeError as error:
                return self.build_line_error(
                    number,
                    f"it is not {error.encoding.upper()} ({error.reason})",
                    suggest_encoding(self.place, self.dialect),
                )
            except msgspec.ValidationError:
                return self.build_line_error(number, f"it is a {type(json.loads(one)).__name__}, not an object")
            except msgspec.DecodeError as error:
                if CONFLICT.match(one.decode(errors="replace")):
                    found = "it has git's conflict markers (<<<<<<<)"
                    return self.build_line_error(number, found, "resolve the conflict, or skip the file")
                return self.build_line_error(
                    number, f"it is not valid JSON ({str(error).removeprefix('JSON is malformed: ')})"
                )
        return self.build_line_error(line + 1, "it does not hold one object per line")

    def build_line_error(self, number: int, found: str, remedy: str = "") -> UnreadableInput:
        """Build the error for a line."""
        remedy = (
            remedy or f"fix it, or check that the {self.place.kind.name} file is complete, with one object for each row"
        )
        return UnreadableInput(f"{self.place.name}, {self.describe_element(number)}", found, remedy)

    def describe_element(self, number: int) -> str:
        """Return the name of a row for messages, such as "line 7"; in an array, "element 7"."""
        return f"{'element' if self.place.kind.name == ARRAY else 'line'} {number:,}"

    def check_members(self, number: int, row: Sequence[tuple[str, Any]], names: Collection[str]) -> None:
        """Raise an error if an object has an unknown or a duplicate member."""
        seen = set[str]()
        where = f"{self.place.name}, {self.describe_element(number)}"
        for name, _ in row:
            if name in seen:
                raise UnreadableInput(where, f"the member {name!r} occurs twice", "name each member once")
            seen.add(name)
            if name not in names:
                found = f"the column {name!r} occurs at the beginning of no file"
                remedy = ErrorText("declare it: ", DeclareFix({name: "string"}), f"; {did_you_mean(name, names)}")
                raise SchemaMismatch(where, found, remedy)


def _read_sample(stream: pa.NativeFile) -> bytes:
    """Read the next `SAMPLE` bytes of a stream, or fewer at its end."""
    parts, missing = list[bytes](), SAMPLE
    while missing and (part := stream.read(missing)):
        parts.append(part)
        missing -= len(part)
    return b"".join(parts)


def _yield_with_nan_stand_ins(text: bytes) -> Iterator[bytes]:
    """Yield the unchanged text, then the text with substitutes for NaN and infinities."""
    yield text
    if not any(each in text for each in _STAND_INS.values()):
        yield _BARE.sub(lambda found: _STAND_INS.get(found[0], found[0]), text)


_DEEP: Final = f"brackets are nested more than {DEPTH} deep"


class _LineBlock:
    """Block of lines after the first ``line`` lines of a file.  ``bare``: whether the text has substitutes for NaN."""

    def __init__(self, file: JsonFile, text: bytes, line: int, bare: bool) -> None:
        self._file, self._text, self._line, self._bare = file, text, line, bare

    def describe_line(self, row: int) -> str:
        """Return the name that messages use for the line of an object."""
        return self._file.describe_element(self._line_number(row))

    def _line_number(self, row: int) -> int:
        full = (n for n, one in enumerate(self._text.split(b"\n"), self._line + 1) if one.strip())
        return next(number for place, number in enumerate(full) if place == row)

    def build_columns(self, rows: list[Row], names: Collection[str] | None) -> dict[str, TextColumn]:
        """Build the named columns, or all columns, and count bytes to detect unknown or duplicate members."""
        there = dict.fromkeys(name for row in rows for name in row) if names is None else names
        columns, seen = {}, 0
        for name in there:
            values = [row.get(name) for row in rows]
            data = _ENCODER.encode_lines(values)
            missing = values.count(None)
            # In the text of the block, each value is accompanied by its name, a colon and a comma.
            around = _count_nonblank_bytes(json.dumps(name, ensure_ascii=False).encode()) + 2
            seen += _count_nonblank_bytes(data) - 4 * missing + (len(values) - missing) * around
            columns[name] = self._build_column(data)
        # In the text of the block, each row has two brackets besides its members, and the last member of a row has no
        # comma.
        if seen + 2 * len(rows) - sum(map(bool, rows)) != _count_nonblank_bytes(self._text):
            self._check_all_members(there)
        return columns

    def _check_all_members(self, names: Collection[str]) -> None:
        """Check the members of every object.

        The check may find no mistake, because escapes in a valid name change the number of bytes, too.
        """
        for number, one in enumerate(self._text.split(b"\n"), self._line + 1):
            if one.strip():
                self._file.check_members(number, json.loads(one, object_pairs_hook=list), names)

    def _build_column(self, data: bytes) -> TextColumn:
        """Build a text column from JSON values, one in each line."""
        if self._bare:
            for name, stand_in in sorted(_STAND_INS.items(), key=lambda each: -len(each[1])):
                data = data.replace(stand_in, name)
        letters = np.frombuffer(data, np.uint8)
        ends = np.flatnonzero(letters == 10)
        first = letters[np.concatenate(([0], ends[:-1] + 1))] if len(ends) else letters
        offsets = np.concatenate(([0], ends - np.arange(len(ends)))).astype(np.int32)
        buffers = [None, pa.py_buffer(offsets), pa.py_buffer(data.replace(b"\n", b""))]
        texts = pa.Array.from_buffers(pa.string(), len(ends), buffers)
        null, quoted, nested = first == ord("n"), first == ord('"'), (first == ord("[")) | (first == ord("{"))
        self._check_utf8_and_depth(texts, data, nested)
        texts = pc.if_else(pa.array(null), None, _remove_quotes(texts, quoted))
        among = pa.array(nested) if nested.any() else None
        # JSON numbers have a decimal point and no digit groups.
        forms = self._file.dialect.value_formats._replace(decimal=".", thousands=None)
        return TextColumn(texts, pa.array(quoted, mask=null | nested), among, forms)

    def _check_utf8_and_depth(self, texts: pa.Array, data: bytes, nested: Any) -> None:
        """Raise an error for a value that is not UTF-8 or that is nested too deeply."""
        try:
            texts.validate(full=True)
        except pa.ArrowInvalid:
            for row, one in enumerate(data.split(b"\n")):
                try:
                    one.decode()
                except UnicodeDecodeError as error:
                    found = f"it is not UTF-8 ({error.reason})"
                    raise self._file.build_line_error(
                        self._line_number(row), found, suggest_encoding(self._file.place, self._file.dialect)
                    ) from None
            raise
        if nested.any():
            depth, _ = compute_bracket_depths(data)
            if (deep := np.flatnonzero(depth >= DEPTH)).size:
                raise self._file.build_line_error(self._line_number(data.count(b"\n", 0, int(deep[0]))), _DEEP)


def _remove_quotes(texts: pa.Array, quoted: Any) -> pa.Array:
    """Remove the quotes from quoted texts, and decode their escapes."""
    if not quoted.any():
        return texts
    inner = pc.binary_slice(texts.cast(pa.binary()), 1, -1).cast(pa.string())
    escaped = np.asarray(pc.match_substring(texts, "\\")) & quoted
    if escaped.any():
        written = texts.filter(pa.array(escaped)).to_pylist()
        plain = _TEXTS.decode(("[" + ",".join(written) + "]").encode())
        inner = pc.replace_with_mask(inner, pa.array(escaped), pa.array(plain, pa.string()))
    return inner if quoted.all() else pc.if_else(pa.array(quoted), inner, texts)


def _count_nonblank_bytes(text: bytes) -> int:
    """Count the bytes above 32, which are not blank."""
    return int(np.count_nonzero(np.frombuffer(text, np.uint8) > 32))
