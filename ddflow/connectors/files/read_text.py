"""Text files, whatever their format: columns of texts, made values here.

Invariant: a format's reader gives every value as the text that stands in the file, to the last digit, so that what a
text means is decided in one place, by the type of its column: a type that nobody declared holds values only as it is
spelled (``spelling``), one that was declared whatever Arrow converts.  A value that does not fit is an error that names
its file, its place there and its column, and the very words to declare a type that fits.

Of JSON a text was quoted or not: numbers and booleans are not, the rest is; decimals may be.  Lists and objects are one
text here, parsed by Arrow as one type.  Under a text type every scalar is its text.

>>> column = TextColumn(pa.array(["1.10", "x", None]), pa.array([False, True, None]))
>>> column.typed(pa.string()).to_pylist(), column.possible() == {pa.string()}
(['1.10', 'x', None], True)
"""

import io
from abc import abstractmethod
from codecs import BOM_UTF8
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import suppress
from functools import cached_property
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pj
import pyarrow.types as pat

from ddflow.columns.schema import is_text
from ddflow.columns.type_text import spelled_type
from ddflow.connectors.files.file_path import NO_VALUE, as_null, reformed
from ddflow.connectors.files.forms import USUAL, Forms
from ddflow.connectors.files.guess import ANY, LADDER, MOMENTS, Possible, fitting, possible, settled
from ddflow.connectors.files.kinds import Dialect, is_utf8
from ddflow.connectors.files.places import Place
from ddflow.connectors.files.reading import File, brief, reading
from ddflow.connectors.files.spelling import Misspelled, converted, fits, values
from ddflow.connectors.files.wire import digits_within, is_listed, restored, wire
from ddflow.errors import Declare, Fix, Phrase, SchemaMismatch
from ddflow.expressions.types import is_number

UNQUOTED = (pat.is_integer, pat.is_floating, pat.is_boolean, pat.is_duration)


class TextColumn(NamedTuple):
    """The values of a column, as texts; null is null.  ``quoted``, ``nested``: of JSON, which are in quotes, and which
    are lists or objects; None elsewhere, and where none is.  ``forms``: of its numbers and dates."""

    texts: pa.Array
    quoted: pa.Array | None = None
    nested: pa.Array | None = None
    forms: Forms = USUAL

    def possible(self) -> Possible:
        """Return the types that fit all texts; Arrow infers the types of lists and objects.  O(n)."""
        if self.nested is not None:
            whole = pc.all(pc.or_kleene(self.nested, pc.is_null(self.texts))).as_py()
            return frozenset([settled(_parse_json(self.texts, None).type, null=pa.null())]) if whole else frozenset()
        if self.quoted is None or self.texts.null_count == len(self.texts):
            return possible(self.texts, forms=self.forms)
        if pc.all(self.quoted).as_py():
            return possible(self.texts, (*MOMENTS, pa.string()), forms=self.forms)
        return frozenset([pa.string()]) if pc.any(self.quoted).as_py() else possible(self.texts, LADDER, shortest=True)

    def typed(self, kind: pa.DataType, convert: bool = False) -> pa.Array:
        """Convert the values to a type; ``convert``: by Arrow's rules too.  O(n).  Raises `Misspelled`."""
        structured = pat.is_struct(kind) or is_listed(kind)
        # A text may look like an object, or like null.
        others = self.quoted if structured else self.nested
        if others is not None and (row := pc.index(others, True).as_py()) >= 0:
            raise Misspelled(row)
        if structured:
            return self._parse_nested(kind)
        if is_text(kind) or convert:
            return converted(self.texts, kind, self.forms)
        if self.quoted is not None and not pat.is_decimal(kind):
            unquoted = any(is_one(kind) for is_one in UNQUOTED)
            if (row := pc.index(self.quoted, unquoted).as_py()) >= 0:
                raise Misspelled(row)
        return values(self.texts, kind, self.quoted is not None, self.forms)

    def _parse_nested(self, kind: pa.DataType) -> pa.Array:
        """Parse lists or objects.  O(n), also if a row is refused: a binary search finds the first such row."""
        try:
            _check_digits(self.texts, digits_within(kind))
            return restored(_parse_json(self.texts, wire(kind)), kind)
        except (pa.ArrowException, ValueError):
            n = len(self.texts)
            if n == 1:
                raise Misspelled(0) from None
        half = n // 2
        for begin, size in ((0, half), (half, n - half)):
            try:
                TextColumn(self.texts.slice(begin, size))._parse_nested(kind)
            except Misspelled as error:
                raise Misspelled(begin + error.row) from None
        raise ValueError(f"values are no {kind}")

    def shown(self, row: int) -> str:
        """Format a value for messages."""
        text = self.texts[row].as_py()
        if self.quoted is None:
            return brief(text)
        shown = f'"{text}"' if self.quoted[row].as_py() else text
        return shown if len(shown) <= 40 else f"{shown[:40]}..."


def _check_digits(texts: pa.Array, most: int) -> None:
    """Raise `ValueError` for JSON texts with a number of more digits, or so many with an exponent."""
    if (pc.max(pc.binary_length(texts)).as_py() or 0) > most - 9 > 0:
        long = rf"[0-9.]{{{most + 1}}}|[0-9.]{{{most - 9}}}[eE]|[eE][+-]?[0-9]{{2}}"
        if pc.any(pc.match_substring_regex(texts, long)).as_py():
            raise ValueError("a number has too many digits")


def _parse_json(texts: pa.Array, kind: pa.DataType | None) -> pa.Array:
    """Parse JSON texts as the ``kind``, or as the type that Arrow infers.  Raises Arrow's errors."""
    lines = pc.binary_join_element_wise('{"":', texts.fill_null("null"), "}\n", "")
    data = "".join(lines.to_pylist()).encode()
    schema = None if kind is None else pa.schema([("", kind)])
    parse = pj.ParseOptions(schema, unexpected_field_behavior="infer" if kind is None else "error")
    found = pj.read_json(io.BytesIO(data), pj.ReadOptions(use_threads=False, block_size=len(data) + 1), parse)
    found.validate(full=True)
    column = found.column(0).combine_chunks()
    return column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column


class Block(NamedTuple):
    """Rows: their columns by name, and a function that names the place of a row in the file."""

    columns: Mapping[str, TextColumn]
    where: Callable[[int], str]


Retype = Callable[[str, pa.DataType, pa.DataType], Fix]
"""What to write to declare another type of a column: of its name, its type and the other."""


def declare(name: str, was: pa.DataType, to: pa.DataType) -> Fix:
    """Return the fix for a column without a stored type: its declaration.

    >>> str(declare("n", pa.int64(), pa.string()))
    "{'n': 'string'}"
    """
    del was
    return Declare({name: spelled_type(to)})


class TextFile(File):
    """A file of text.  ``dialect``: how it is written.  ``retype``: of columns that have their types already."""

    def __init__(self, place: Place, dialect: Dialect, retype: Mapping[str, Retype]) -> None:
        super().__init__(place)
        self.dialect, self._retype = dialect, retype
        self._head: Block | None = None

    @abstractmethod
    def blocks(self, names: Collection[str] | None = None) -> Iterator[Block]:
        """Yield its rows, some at a time.  ``names``: the known columns; None: find them in the first rows."""

    def looked_at(self) -> Block | None:
        """Return its first rows; None if it has none."""
        if self._head is None:
            self._head = next(self.blocks(), None)
        return self._head

    def head(self, names: Collection[str]) -> Mapping[str, Possible]:
        """Return the possible types of some columns in the first block."""
        block = self.looked_at() if names else None
        with reading(self.place):
            told = {} if block is None else block.columns
            return {name: told[name].possible() if name in told else ANY for name in names}

    def batches(self, schema: pa.Schema, converted: Collection[str] = ()) -> Iterator[pa.RecordBatch]:
        """Yield its rows by block, in the types of ``schema``."""
        self._head = None
        for block in self.blocks(schema.names):
            arrays = []
            for name, column in block.columns.items():
                kind = schema.field(name).type
                try:
                    with reading(self.place):
                        arrays.append(column.typed(kind, name in converted))
                except Misspelled as error:
                    where = f"{self.place.name}, {block.where(error.row)}, column {name!r}"
                    found, remedy = self._misfit(name, column, error.row, kind, name in converted)
                    raise SchemaMismatch(where, found, remedy, file=self.place.name, column=name) from None
            yield pa.RecordBatch.from_arrays(arrays, names=list(block.columns))

    def bytes(self, head: bool = False) -> pa.NativeFile:
        """Open the content, unwrapped, in UTF-8.  ``head``: at least its beginning.  Not closed, see `Place.open`."""
        stream = self.place.head() if head else self.place.open()
        if self.place.kind.wrapped is not None:
            stream = pa.CompressedInputStream(stream, self.place.kind.wrapped)
        if not is_utf8(self.dialect.encoding) and not self._has_utf8_mark:
            stream = pa.transcoding_input_stream(stream, self.dialect.encoding, "utf-8")
        return stream

    @cached_property
    def _has_utf8_mark(self) -> bool:
        """Whether it begins with the mark of UTF-8, which overrides the given encoding."""
        with self.place.head() as stream:
            if self.place.kind.wrapped is not None:
                stream = pa.CompressedInputStream(stream, self.place.kind.wrapped)
            return bytes(stream.read(len(BOM_UTF8))) == BOM_UTF8

    @staticmethod
    def _fitting(column: TextColumn, text: str, kind: pa.DataType) -> pa.DataType:
        """Return a wider type that fits a text and the column's other texts; text if none does."""
        fit = fitting(kind, text, column.forms)
        try:
            column.typed(fit, False)
        except Misspelled:
            return pa.string()
        return fit

    def _misfit(self, name: str, column: TextColumn, row: int, kind: pa.DataType, declared: bool) -> tuple[str, Phrase]:
        """Describe a value that does not fit its column's type, with the remedy."""
        text, shown, dialect = str(column.texts[row]), column.shown(row), self.dialect
        form = Phrase()
        if column.quoted is None or (column.quoted[row].as_py() and not is_number(kind)):
            form = reformed(self.place.name, dialect, text, kind)
        give = Phrase("give ", form, ", ") if form else Phrase()
        if text.lower() in NO_VALUE and column.quoted is None:  # null= is of CSV
            give = as_null(self.place.name, dialect, text) + ", "
        if declared:
            zoned = pat.is_timestamp(kind) and fits(pa.array([text]), pa.timestamp("us", "UTC"), forms=dialect.forms)
            other = pa.timestamp("us", "UTC") if zoned else pa.string()
            fix = self._retype.get(name, declare)(name, kind, other)
            return f"{shown} is no {kind}", Phrase(give, "mend it, or declare another type: ", fix)
        fit = self._fitting(column, text, kind)
        fix = self._retype.get(name, declare)(name, kind, fit)
        remedy = Phrase(give, "mend it, or declare the type that fits: ", fix)
        with suppress(Misspelled):
            converted(column.texts.slice(row, 1), kind, column.forms)
            remedy += Phrase("; declaring ", Declare({name: spelled_type(kind)}), " converts it")
        return f"{shown} is not how a value of type {kind} is written", remedy
