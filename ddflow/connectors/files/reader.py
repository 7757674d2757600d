"""Define the interface of input files, and convert the values of text files to typed columns.

Guarantees: every error names the file. If the reader knows the row and the column, the error names them too. A value
that does not fit the type of its column is an error that shows the value; ddflow never replaces such a value with null.

>>> from ddflow.connectors.files.places import LocalFile
>>> with translate_file_errors(LocalFile("orders.parquet")):
...     raise OSError("Corrupt snappy compressed data.")
Traceback (most recent call last):
    ...
ddflow.errors.UnreadableInput: orders.parquet: Corrupt snappy compressed data; check that the Parquet file is complete
"""

import errno
import io
from abc import ABC, abstractmethod
from codecs import BOM_UTF8
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import AbstractContextManager, suppress
from dataclasses import replace
from functools import cached_property
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pj
import pyarrow.types as pat

from ddflow.columns.casts import format_type
from ddflow.columns.names import did_you_mean
from ddflow.columns.schema import is_text
from ddflow.connectors.files.file_path import (
    NO_VALUE,
    suggest_file_path_call,
    suggest_format_options,
    suggest_null_option,
)
from ddflow.connectors.files.guess import (
    ANY,
    LADDER,
    MOMENTS,
    Possible,
    generalize_json_type,
    possible_types,
    widen_type_to_fit,
)
from ddflow.connectors.files.kinds import PLAIN, USUAL, Dialect, ValueFormats, is_text_kind, is_utf8
from ddflow.connectors.files.places import FileLocation
from ddflow.connectors.files.spelling import (
    UnparsableValue,
    cast_parsed_column,
    find_json_reader_type,
    find_max_exact_digits,
    is_list_like,
    is_parsable_as,
    parse_texts_leniently,
    parse_texts_strictly,
)
from ddflow.errors import (
    DdflowError,
    DeclareFix,
    ErrorText,
    EvolveFix,
    Fix,
    SchemaMismatch,
    UnreadableInput,
    convert_errors,
)
from ddflow.errors.base import replace_error_parts
from ddflow.expressions.types import is_number

Types = Mapping[str, pa.DataType]
ROWS = 1 << 16
"""Maximum number of rows of a batch, if the format does not set the size of batches."""


_PACKED = {
    b"PK\x03\x04": ("it is a zip archive, perhaps an Excel workbook", "unpack it, or save it as text"),
    b"\x1f\x8b": ("it is compressed with gzip", "add .gz to its name"),
}
"""Error text and remedy for compressed files, by the first bytes of the file."""
WIDEST = 10_000
"""Maximum number of columns of a file.  Each column has arrays in every batch, so a wide file takes long to read."""


class InputFile(ABC):
    """One input file.  The methods of a file raise only `DdflowError`."""

    def __init__(self, place: FileLocation) -> None:
        self.place = place
        self.plain: InputFile = self
        """The file with the original names of its columns."""

    @abstractmethod
    def columns(self) -> Mapping[str, pa.DataType | None]:
        """Return the columns in order.  Each column has its stored type, or None if the file stores no types.

        For a JSON file, return only the columns that occur at its beginning.
        """

    @property
    def has_all_columns(self) -> bool:
        """Whether `columns` returns every column of the file."""
        return True

    def possible_types(self, names: Collection[str]) -> Mapping[str, Possible]:
        """Return the possible types of some columns, if the file does not store types.  O(`SAMPLE`)."""
        return dict.fromkeys(names, ANY)

    @abstractmethod
    def batches(self, schema: pa.Schema, converted: Collection[str] = ()) -> Iterator[pa.RecordBatch]:
        """Yield the rows in batches.  Text is parsed to the types in ``schema``.  Memory is bounded.

        Text values must match the strict patterns of ``spelling``. In ``converted`` columns, every text that Arrow can
        convert is valid.
        """

    def count_rows(self) -> int | None:
        """Return the number of rows; None if ddflow would have to read the file to count them."""
        return None


class RenamedColumnsFile(InputFile):
    """A file with renamed columns.  ``names``: the new name of a column by its original name."""

    def __init__(self, of: InputFile, names: Mapping[str, str]) -> None:
        super().__init__(of.place)
        self.plain, self._new = of, dict(names)

    def columns(self) -> Mapping[str, pa.DataType | None]:
        """Return the renamed columns.

        Raises `SchemaMismatch` for unknown names, and if two columns get the same name.
        """
        there, asked = self.plain.columns(), f"{self.place.name}, rename="
        for old, new in self._new.items() if there else ():
            if old not in there and new not in there and self.plain.has_all_columns:
                found = f"there is no column {old!r} to rename to {new!r}"
                raise SchemaMismatch(asked, found, did_you_mean(old, there))
        self._new = {old: new for old, new in self._new.items() if old in there or new not in there}
        names = [self._new.get(name, name) for name in there]
        if twice := sorted({name for name in names if names.count(name) > 1}):
            olds = [name for name in there if self._new.get(name, name) == twice[0]]
            raise SchemaMismatch(asked, f"its columns {olds} would all be named {twice[0]!r}", "choose different names")
        return dict(zip(names, there.values(), strict=True))

    @property
    def has_all_columns(self) -> bool:
        """Whether `columns` returns every column of the file."""
        return self.plain.has_all_columns

    def possible_types(self, names: Collection[str]) -> Mapping[str, Possible]:
        """Return the possible types of renamed columns."""
        found = self.plain.possible_types([self._original_name(name) for name in names])
        return {self._new.get(name, name): each for name, each in found.items()}

    def batches(self, schema: pa.Schema, converted: Collection[str] = ()) -> Iterator[pa.RecordBatch]:
        """Yield the rows with renamed columns.  The fix that an error suggests uses the new name of the column."""
        own = pa.schema([field.with_name(self._original_name(field.name)) for field in schema])
        try:
            for batch in self.plain.batches(own, {self._original_name(name) for name in converted}):
                yield batch.rename_columns([self._new.get(name, name) for name in batch.schema.names])
        except SchemaMismatch as error:
            replace_error_parts(
                error,
                DeclareFix | EvolveFix,
                lambda fix: replace(fix, types={self._new.get(name, name): kind for name, kind in fix.types.items()}),
            )
            raise

    def count_rows(self) -> int | None:
        """Return the number of rows of the file, or None."""
        return self.plain.count_rows()

    def _original_name(self, name: str) -> str:
        return next((old for old, new in self._new.items() if new == name), name)


def translate_file_errors(place: FileLocation, dialect: Dialect | None = None) -> AbstractContextManager[None]:
    """Convert the errors of a ``with`` block to errors about this file.  ``dialect``: the text dialect of the file."""

    def to_ours(error: Exception) -> DdflowError | None:
        if isinstance(error, DdflowError):
            return None
        if isinstance(error, FileNotFoundError):
            return UnreadableInput(
                place.name, "there is no such file", "check the name and the current folder", file=place.name
            )
        remedy: str | ErrorText = f"check that the {place.kind.name} file is complete"
        found = describe_error(error)
        if isinstance(error, UnicodeDecodeError):
            name = (error.encoding if dialect is None else dialect.encoding).upper()  # Python's name may be "charmap"
            found, remedy = f"it is not {name} ({error.reason})", suggest_encoding(place, dialect or PLAIN)
        return find_compression_error(place) or UnreadableInput(place.name, found, remedy, file=place.name)

    return convert_errors((pa.ArrowException, OSError, EOFError, ValueError), to_ours)


def find_compression_error(place: FileLocation) -> UnreadableInput | None:
    """Return an error if a text file is compressed but its extension does not say so, else None.  O(1)."""
    if place.kind.wrapped is not None or not is_text_kind(place.kind.name):
        return None
    try:
        with place.open_head() as stream:
            begin = bytes(stream.read(4))
    except (pa.ArrowException, OSError, DdflowError):
        return None
    return next(
        (UnreadableInput(place.name, *said) for magic, said in _PACKED.items() if begin.startswith(magic)), None
    )


def suggest_encoding(place: FileLocation, dialect: Dialect) -> ErrorText:
    """Suggest a remedy for text that is invalid in the given encoding."""
    if not is_utf8(dialect.encoding):
        return ErrorText("pass its encoding, or write it in UTF-8")
    given = suggest_file_path_call(place.name, dialect._replace(encoding="cp1252"))
    return ErrorText("pass its encoding (", given, "), or write it in UTF-8")


def describe_error(error: BaseException) -> str:
    """Return the first line of a library's error message, without the final period."""
    code = getattr(error, "errno", None)
    if code in (errno.EACCES, errno.EPERM):
        return "permission is denied"
    text = str(error).strip().splitlines()
    return text[0].rstrip(". ") if text else type(error).__name__


def quote_beginning(text: str) -> str:
    """Quote a text, cut to 40 characters."""
    return repr(text) if len(text) <= 40 else repr(text[:40]) + "..."


def check_column_count(place: FileLocation, columns: int) -> None:
    """Raise `UnreadableInput` for a file with more columns than ``WIDEST``."""
    if columns > WIDEST:
        found = f"it has {columns:,} columns, more than {WIDEST:,}"
        raise UnreadableInput(
            place.name, found, "turn the columns into rows, each with a name and a value", file=place.name
        )


def is_empty_file(place: FileLocation) -> bool:
    """Return whether a file has no bytes."""
    with translate_file_errors(place):
        return place.size() == 0


UNQUOTED = (pat.is_integer, pat.is_floating, pat.is_boolean, pat.is_duration)


class TextColumn(NamedTuple):
    """The values of a column as texts, with nulls.

    ``quoted``: for JSON, marks strings; None for CSV.  ``nested``: marks lists and objects of JSON; None without any.
    ``forms``: the notation of numbers and dates.

    >>> column = TextColumn(pa.array(["1.10", "x", None]), pa.array([False, True, None]))
    >>> column.convert(pa.string()).to_pylist(), column.possible_types() == {pa.string()}
    (['1.10', 'x', None], True)
    """

    texts: pa.Array
    quoted: pa.Array | None = None
    nested: pa.Array | None = None
    forms: ValueFormats = USUAL

    def possible_types(self) -> Possible:
        """Return the types that fit all texts; Arrow infers the type of lists and objects.  O(n)."""
        if self.nested is not None:
            whole = pc.all(pc.or_kleene(self.nested, pc.is_null(self.texts))).as_py()
            return (
                frozenset([generalize_json_type(_parse_json(self.texts, None).type, null=pa.null())])
                if whole
                else frozenset()
            )
        if self.quoted is None or self.texts.null_count == len(self.texts):
            return possible_types(self.texts, forms=self.forms)
        if pc.all(self.quoted).as_py():
            return possible_types(self.texts, (*MOMENTS, pa.string()), forms=self.forms)
        return (
            frozenset([pa.string()])
            if pc.any(self.quoted).as_py()
            else possible_types(self.texts, LADDER, shortest=True)
        )

    def convert(self, kind: pa.DataType, convert: bool = False) -> pa.Array:
        """Convert the values to a type.  Raises `UnparsableValue`.  O(n).

        ``convert``: whether every text that Arrow can convert is valid, not only texts of the strict patterns.
        """
        structured = pat.is_struct(kind) or is_list_like(kind)
        # A JSON string may look like an object, or like null.
        others = self.quoted if structured else self.nested
        if others is not None and (row := pc.index(others, True).as_py()) >= 0:
            raise UnparsableValue(row)
        if structured:
            return self._parse_nested(kind)
        if is_text(kind) or convert:
            return parse_texts_leniently(self.texts, kind, self.forms)
        if self.quoted is not None and not pat.is_decimal(kind):
            unquoted = any(is_one(kind) for is_one in UNQUOTED)
            if (row := pc.index(self.quoted, unquoted).as_py()) >= 0:
                raise UnparsableValue(row)
        return parse_texts_strictly(self.texts, kind, self.quoted is not None, self.forms)

    def _parse_nested(self, kind: pa.DataType) -> pa.Array:
        """Parse lists or objects.

        O(n) even if rows are invalid, because a binary search finds the first invalid row.
        """
        try:
            _check_digit_count(self.texts, find_max_exact_digits(kind))
            return cast_parsed_column(_parse_json(self.texts, find_json_reader_type(kind)), kind)
        except (pa.ArrowException, ValueError):
            n = len(self.texts)
            if n == 1:
                raise UnparsableValue(0) from None
        half = n // 2
        for begin, size in ((0, half), (half, n - half)):
            try:
                TextColumn(self.texts.slice(begin, size))._parse_nested(kind)
            except UnparsableValue as error:
                raise UnparsableValue(begin + error.row) from None
        raise ValueError(f"values are not valid {kind}")

    def format_value(self, row: int) -> str:
        """Format a value for messages."""
        text = self.texts[row].as_py()
        if self.quoted is None:
            return quote_beginning(text)
        shown = f'"{text}"' if self.quoted[row].as_py() else text
        return shown if len(shown) <= 40 else f"{shown[:40]}..."


def _check_digit_count(texts: pa.Array, most: int) -> None:
    """Raise `ValueError` if a number in JSON texts has more than ``most`` digits, or many digits and an exponent."""
    if (pc.max(pc.binary_length(texts)).as_py() or 0) > most - 9 > 0:
        long = rf"[0-9.]{{{most + 1}}}|[0-9.]{{{most - 9}}}[eE]|[eE][+-]?[0-9]{{2}}"
        if pc.any(pc.match_substring_regex(texts, long)).as_py():
            raise ValueError("a number has too many digits")


def _parse_json(texts: pa.Array, kind: pa.DataType | None) -> pa.Array:
    """Parse JSON texts as ``kind``.  If ``kind`` is None, Arrow infers the type.  Raises Arrow's errors."""
    lines = pc.binary_join_element_wise('{"":', texts.fill_null("null"), "}\n", "")
    data = "".join(lines.to_pylist()).encode()
    schema = None if kind is None else pa.schema([("", kind)])
    parse = pj.ParseOptions(schema, unexpected_field_behavior="infer" if kind is None else "error")
    found = pj.read_json(io.BytesIO(data), pj.ReadOptions(use_threads=False, block_size=len(data) + 1), parse)
    found.validate(full=True)
    column = found.column(0).combine_chunks()
    return column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column


class TextBlock(NamedTuple):
    """Block of rows: the columns by name, and a function that describes the position of a row in the file."""

    columns: Mapping[str, TextColumn]
    where: Callable[[int], str]


Retype = Callable[[str, pa.DataType, pa.DataType], Fix]
"""Function that takes a column's name, current type and new type, and returns a fix that declares the new type."""


def suggest_type_declaration(name: str, was: pa.DataType, to: pa.DataType) -> Fix:
    """Return the fix for a column without a stored type: a declaration of its type.

    >>> str(suggest_type_declaration("n", pa.int64(), pa.string()))
    "{'n': 'string'}"
    """
    del was
    return DeclareFix({name: format_type(to)})


class TextFile(InputFile):
    """A text file in a ``dialect``.

    ``retype``: for each known column, a function that builds the fix that declares another type.
    """

    def __init__(self, place: FileLocation, dialect: Dialect, retype: Mapping[str, Retype]) -> None:
        super().__init__(place)
        self.dialect, self._retype = dialect, retype
        self._head: TextBlock | None = None

    @abstractmethod
    def blocks(self, names: Collection[str] | None = None) -> Iterator[TextBlock]:
        """Yield the rows in blocks.  ``names``: the known columns; None to find the columns in the first rows."""

    def first_block(self) -> TextBlock | None:
        """Return the first block; None if the file has no rows."""
        if self._head is None:
            self._head = next(self.blocks(), None)
        return self._head

    def possible_types(self, names: Collection[str]) -> Mapping[str, Possible]:
        """Return the possible types of some columns in the first block."""
        block = self.first_block() if names else None
        with translate_file_errors(self.place):
            told = {} if block is None else block.columns
            return {name: told[name].possible_types() if name in told else ANY for name in names}

    def batches(self, schema: pa.Schema, converted: Collection[str] = ()) -> Iterator[pa.RecordBatch]:
        """Yield the rows in blocks, with the types of ``schema``."""
        self._head = None
        for block in self.blocks(schema.names):
            arrays = []
            for name, column in block.columns.items():
                kind = schema.field(name).type
                try:
                    with translate_file_errors(self.place):
                        arrays.append(column.convert(kind, name in converted))
                except UnparsableValue as error:
                    where = f"{self.place.name}, {block.where(error.row)}, column {name!r}"
                    found, remedy = self._explain_type_mismatch(name, column, error.row, kind, name in converted)
                    raise SchemaMismatch(where, found, remedy, file=self.place.name, column=name) from None
            yield pa.RecordBatch.from_arrays(arrays, names=list(block.columns))

    def open_text(self, head: bool = False) -> pa.NativeFile:
        """Open the decompressed text in UTF-8.

        ``head``: whether the beginning of the text is enough.  See `FileLocation.open`.
        """
        stream = self.place.open_head() if head else self.place.open()
        if self.place.kind.wrapped is not None:
            stream = pa.CompressedInputStream(stream, self.place.kind.wrapped)
        if not is_utf8(self.dialect.encoding) and not self._has_utf8_bom:
            stream = pa.transcoding_input_stream(stream, self.dialect.encoding, "utf-8")
        return stream

    @cached_property
    def _has_utf8_bom(self) -> bool:
        """Whether the file begins with the byte order mark of UTF-8, which overrides the given encoding."""
        with self.place.open_head() as stream:
            if self.place.kind.wrapped is not None:
                stream = pa.CompressedInputStream(stream, self.place.kind.wrapped)
            return bytes(stream.read(len(BOM_UTF8))) == BOM_UTF8

    @staticmethod
    def _find_wider_type(column: TextColumn, text: str, kind: pa.DataType) -> pa.DataType:
        """Return a wider type that fits a text and all other texts of the column; string if only string fits."""
        fit = widen_type_to_fit(kind, text, column.forms)
        try:
            column.convert(fit, False)
        except UnparsableValue:
            return pa.string()
        return fit

    def _explain_type_mismatch(
        self, name: str, column: TextColumn, row: int, kind: pa.DataType, declared: bool
    ) -> tuple[str, ErrorText]:
        """Describe a value that does not fit the type of its column, and suggest a remedy."""
        text, shown, dialect = str(column.texts[row]), column.format_value(row), self.dialect
        form = ErrorText()
        if column.quoted is None or (column.quoted[row].as_py() and not is_number(kind)):
            form = suggest_format_options(self.place.name, dialect, text, kind)
        number = is_number(kind) and is_parsable_as(pa.array([text]), pa.float64(), forms=dialect.value_formats)
        # Another notation would silently change a text that already is a number.
        late = ErrorText("; pass ", form, " only if its mark separates thousands") if form and number else ErrorText()
        give = ErrorText("pass ", form, ", ") if form and not number else ErrorText()
        if text.lower() in NO_VALUE and column.quoted is None:  # null= only works for CSV
            give = suggest_null_option(self.place.name, dialect, text) + ", "
        if declared:
            zoned = pat.is_timestamp(kind) and is_parsable_as(
                pa.array([text]), pa.timestamp("us", "UTC"), forms=dialect.value_formats
            )
            other = pa.timestamp("us", "UTC") if zoned else pa.string()
            if number and pat.is_decimal(kind):
                other = self._find_wider_type(column, text, kind)
            fix = self._retype.get(name, suggest_type_declaration)(name, kind, other)
            return f"{shown} is not a valid {kind}", ErrorText(give, "fix it, or declare another type: ", fix, late)
        fit = self._find_wider_type(column, text, kind)
        fix = self._retype.get(name, suggest_type_declaration)(name, kind, fit)
        remedy = ErrorText(give, "fix it, or declare the type that fits: ", fix, late)
        with suppress(UnparsableValue):
            parse_texts_leniently(column.texts.slice(row, 1), kind, column.forms)
            remedy += ErrorText("; declaring ", DeclareFix({name: format_type(kind)}), " converts it")
        return f"{shown} does not fit the guessed type {kind}", remedy
