"""Read files of any formats as one source, in batches with the columns of all files.

Guarantees: files are read in the order in which `list_file_locations` returns them. A position contains the name of a
file and the number of rows read from the file. A column is null in the rows of a file that lacks the column.
`ColumnChanges` reports columns that appear or disappear between files. `find_doubtful_guesses` reports columns that are
text only because of a few values, and shows these values.
"""

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from ddflow.columns.declared import to_arrow_type
from ddflow.columns.names import did_you_mean
from ddflow.columns.schema import conform_to_schema, normalize_type
from ddflow.connectors.files.columnar_reader import ArrowFile, ParquetFile
from ddflow.connectors.files.csv_reader import CsvFile, MessageLinesFile, build_missing_column_error
from ddflow.connectors.files.file_path import find_fitting_dialects, suggest_file_path_call, suggest_null_option
from ddflow.connectors.files.guess import ANY, MOMENTS, Possible, guess_type
from ddflow.connectors.files.json_reader import JsonFile
from ddflow.connectors.files.kinds import (
    ARRAY,
    ARROW,
    CSV,
    JSON,
    MESSAGES,
    PARQUET,
    PLAIN,
    STREAM,
    TSV,
    Dialect,
    is_json_kind,
)
from ddflow.connectors.files.places import FileLocation, list_file_locations, warn_of_misordered_files
from ddflow.connectors.files.reader import (
    InputFile,
    RenamedColumnsFile,
    Retype,
    TextBlock,
    TextFile,
    Types,
    describe_error,
    is_empty_file,
    quote_beginning,
    suggest_type_declaration,
)
from ddflow.connectors.files.spelling import cast_parsed_column, is_storable_in_text
from ddflow.errors import DdflowError, DeclareFix, ErrorText, SchemaMismatch, SpecError, UnreadableInput


@dataclass
class ColumnChanges:
    """Columns that appear or disappear from file to file.

    ``new``: the file of each new column.  ``missing``: the files that lack a column of earlier files, by column.
    ``unused``: warnings about declared columns that no file has.

    >>> ColumnChanges(missing={"city": ["b.csv", "c.csv"]}).summary
    "missing 'city' (b.csv and 1 more)"
    """

    new: dict[str, str] = field(default_factory=dict)
    missing: dict[str, list[str]] = field(default_factory=dict)
    unused: list[str] = field(default_factory=list)

    def __bool__(self) -> bool:
        return bool(self.new or self.missing or self.unused)

    @property
    def summary(self) -> str:
        """The changes as one line of text, for messages."""
        new = ", ".join(f"{name!r} ({file})" for name, file in self.new.items())
        missing = ", ".join(
            f"{name!r} ({files[0]}{f' and {len(files) - 1} more' if len(files) > 1 else ''})"
            for name, files in self.missing.items()
        )
        parts = [f"{what} {which}" for what, which in (("new", new), ("missing", missing)) if which]
        return "; ".join([*parts, *self.unused])


_NUMBER: Final = r"^-?(0|[1-9]\d*)(\.\d+)?([eE][+-]?\d+)?$"
FIRST: Final = 1_000
"""Maximum number of values of a column from which ddflow guesses a notation."""
WORD: Final = 20
"""Maximum number of characters in a text that may mean null."""
_CODE: Final = re.compile(r"[+-]?\d+")
_DIGIT: Final = re.compile(r"\d")


def find_doubtful_guesses(guessed: Iterable[str], schema: pa.Schema, readers: Iterable[InputFile]) -> list[ErrorText]:
    """Return warnings about columns that ddflow reads as text only because of a few values.  O(bytes of first rows)."""
    names = [name for name in guessed if pa.types.is_string(schema.field(name).type)]
    files = [each for each in readers if isinstance(each, TextFile)] if names else []
    heads = [(each, head) for each in files if (head := each.first_block()) is not None]
    named = [(each.place.name, each.dialect, head) for each, head in heads]
    return [
        found
        for name in names
        if (found := explain_outlier_value(name, named) or explain_unparsed_format(name, heads)) is not None
    ]


def explain_unparsed_format(name: str, heads: Iterable[tuple[TextFile, TextBlock]]) -> ErrorText | None:
    """Return an explanation if a text column may hold numbers or dates in another notation, else None.  O(`FIRST`)."""
    there = ((file, head, head.columns[name]) for file, head in heads if name in head.columns)
    first = next((each for each in there if each[2].texts.null_count < len(each[2].texts)), None)
    if first is None:
        return None
    file, head, column = first
    texts, dialect = column.texts.drop_null().slice(0, FIRST).to_pylist(), file.dialect
    if column.quoted is None:
        texts, dialect = _drop_null_placeholder(texts, dialect)
    for kind in (pa.float64(), *MOMENTS) if column.quoted is None else MOMENTS:
        if ways := find_fitting_dialects(dialect, texts, kind):
            row = pc.index(column.texts, texts[0]).as_py()
            shown = f"{quote_beginning(texts[0])} ({file.place.name}, {head.where(row)})"
            calls = [suggest_file_path_call(file.place.name, each, file.dialect) for each in ways]
            return ErrorText(
                f"{name!r} is text, because of {shown}: pass ",
                ErrorText.join_texts(" or ", calls),
                ", or declare ",
                DeclareFix({name: "string"}),
            )
    return None


def _drop_null_placeholder(texts: list[str], dialect: Dialect) -> tuple[list[str], Dialect]:
    """Drop the only text without a digit if it is rare, and return a dialect that reads this text as null."""
    words = {each for each in texts if len(each) <= WORD and _DIGIT.search(each) is None}
    some = [each for each in texts if each not in words]
    if len(words) != 1 or 2 * len(some) <= len(texts):
        return texts, dialect
    return some, dialect._replace(nulls=(*dialect.nulls, *words))


def explain_outlier_value(name: str, heads: Iterable[tuple[str, Dialect, TextBlock]]) -> ErrorText | None:
    """Return an explanation if a column that ddflow reads as text may hold numbers, else None.  O(bytes of the heads).

    ``heads``: the name, the dialect and the first rows of each file that has the column.

    >>> from ddflow.connectors.files.kinds import PLAIN
    >>> from ddflow.connectors.files.reader import TextBlock, TextColumn
    >>> head = TextBlock({"n": TextColumn(pa.array(["1", "2.5", "n/a", None]))}, lambda row: f"row {row + 2}")
    >>> explain_outlier_value("n", [("a.csv", PLAIN, head)])
    "'n' is text, because 'n/a' (a.csv, row 4) is not a number; 2 of its first 3 values are: fix it, pass \
    dd.FilePath('a.csv', null='n/a') if it means null, or declare {'n': 'string'} if it is right"
    >>> explain_outlier_value("n", [("a.csv", PLAIN, TextBlock({"n": TextColumn(pa.array(["1", "2", "007"]))}, str))])
    """
    numbers, values, first, shown, nulls, null = 0, 0, "", "", True, ErrorText()
    for file, dialect, head in heads:
        if (column := head.columns.get(name)) is None:
            continue
        fits = pc.match_substring_regex(column.texts, _NUMBER)
        if column.quoted is not None:
            nulls = False  # null= only works for CSV
            fits = pc.and_(fits, pc.invert(pc.fill_null(column.quoted, False)))
        numbers += pc.sum(fits).as_py() or 0
        values += len(fits) - fits.null_count
        row = pc.index(fits, False).as_py()
        if row >= 0 and not first:
            first, shown = (
                str(column.texts[row]),
                f"{quote_beginning(str(column.texts[row]))} ({file}, {head.where(row)})",
            )
            null = suggest_null_option(file, dialect, first)
    if not first or 2 * numbers <= values or _CODE.fullmatch(first):
        return None
    null = null + ", " if nulls and len(first) <= WORD else ErrorText()
    found = f"{name!r} is text, because {shown} is not a number; {numbers:,} of its first {values:,} values are"
    return ErrorText(f"{found}: fix it, ", null, "or declare ", DeclareFix({name: "string"}), " if it is right")


_TEXTS: Mapping[str, type[TextFile]] = {CSV: CsvFile, TSV: CsvFile, JSON: JsonFile, ARRAY: JsonFile}
_COLUMNAR: Mapping[str, type[InputFile]] = {PARQUET: ParquetFile, ARROW: ArrowFile, STREAM: ArrowFile}
_OTHERS: Mapping[str, type[InputFile]] = {**_COLUMNAR, MESSAGES.name: MessageLinesFile}


class FilePosition(NamedTuple):
    """Progress in files: the number of ``rows`` taken from a ``file``, and whether the file is ``finished``."""

    file: str
    rows: int = 0
    finished: bool = False


@dataclass(frozen=True, kw_only=True)
class FileOptions:
    """Options for reading files, other than columns and types.

    Parameters
    ----------
    dialect
        The text dialect of the files, and their format if it overrides the extensions.
    strict
        Whether new and missing columns are errors.
    empty
        Whether an empty file counts as a file without columns and rows.  Otherwise it is an error.
    skip
        Function that is called with the name and the error of an unreadable file.  ddflow then skips the file.  With
        None, an unreadable file is an error.
    retype
        Function that builds the fix that declares another type for a known column.
    converts
        Known columns with declared types.  In them, any text that Arrow can convert is valid.  The types of other known
        columns were guessed.
    """

    dialect: Dialect = PLAIN
    strict: bool = False
    empty: bool = False
    skip: Callable[[str, DdflowError], None] | None = None
    retype: Retype = suggest_type_declaration
    converts: Collection[str] = ()


AS_USUAL: Final = FileOptions()


class MultiFileReader:
    """Reader of several files as one source, which can start after a position.  `open_files` creates the reader.

    ``files``: the names in reading order.  ``rows``: the total of rows, None if a file must be read to count them.
    ``changes``: the columns that appear or disappear.  ``blank``: the columns without a value to guess a type from.
    """

    def __init__(
        self,
        places: Sequence[FileLocation],
        declared: Types,
        required: Sequence[str] = (),
        known: pa.Schema | None = None,
        how: FileOptions = AS_USUAL,
    ) -> None:
        self._declared, self._known, self._how, self._required = declared, known, how, required
        self._readers: list[InputFile] = []
        self._there: list[Mapping[str, pa.DataType | None]] = []
        self.changes = ColumnChanges()
        for place in places:
            try:
                self._add_file(place)
            except (UnreadableInput, SchemaMismatch) as error:
                if how.skip is None:
                    raise
                how.skip(place.name, error)
        self.files = [reader.place.name for reader in self._readers]
        self._of_file = dict(zip(self.files, self._pair_readers_with_columns(), strict=True))
        self.schema = self._unify_schemas()
        if not len(self.schema) and not (how.skip and not self.files):
            raise UnreadableInput([*self.files, "an input"][0], "it has no columns", "pass a file with columns first")
        if how.strict and self.changes:
            remedy = "fix the files, or omit --strict-columns to accept them as they are"
            raise SchemaMismatch("the columns of the files", self.changes.summary, remedy)
        counts = [reader.count_rows() for reader in self._readers]
        self.rows = None if None in counts else sum(filter(None, counts))

    def _add_file(self, place: FileLocation) -> None:
        """Add a reader for a file, and check its columns."""
        if is_empty_file(place):
            if not self._how.empty:
                raise UnreadableInput(
                    place.name, "it is empty (0 bytes)", "skip it, or write it again", file=place.name
                )
            self._readers.append(EmptyFile(place))
            self._there.append({})
            return
        name = place.kind.name
        reader: InputFile = _OTHERS[name](place) if name in _OTHERS else self._open_text_file(place)
        if (rename := self._how.dialect.rename) and name != MESSAGES.name:
            reader = RenamedColumnsFile(reader, dict(rename))
        there = reader.columns()
        for column in self._required if there else ():
            if column not in there and reader.has_all_columns:
                raise build_missing_column_error(reader, column, there)
        for column, kind in self._declared.items():
            if column in there and isinstance(reader.plain, TextFile) and not is_storable_in_text(kind, name):
                remedy = (
                    "declare another type"
                    if is_json_kind(name)
                    else "use Parquet, Arrow or JSON lines for nested values"
                )
                raise SpecError(f"type {kind} for {column!r}", f"a field of {place.name} cannot hold it", remedy)
        self._readers.append(reader)
        self._there.append(there)

    def _open_text_file(self, place: FileLocation) -> TextFile:
        retype = dict.fromkeys(self._known.names if self._known is not None else (), self._how.retype)
        return _TEXTS[place.kind.name](place, self._how.dialect, retype)

    def _unify_schemas(self) -> pa.Schema:
        """Return all columns, with guessed types that do not depend on the order of the files."""
        known: Types = {} if self._known is None else dict(zip(self._known.names, self._known.types, strict=True))
        columns = dict.fromkeys([*known, *(name for there in self._there for name in there)])
        self._note_column_changes(known)
        for name in self._declared:
            if name not in columns and not all(reader.has_all_columns for reader in self._readers):
                columns[name] = None
            elif name not in columns:
                self.changes.unused.append(f"no file has the declared column {name!r}: {did_you_mean(name, columns)}")
        self._of: dict[str, str] = {}
        types: dict[str, pa.DataType] = {}
        for reader, there in zip(self._readers, self._there, strict=True):
            for name, kind in there.items():
                if kind is not None and self._of.setdefault(name, reader.place.name) == reader.place.name:
                    types[name] = normalize_type(kind)
        types |= {**known, **self._declared}
        self._of = {name: file for name, file in self._of.items() if name not in known}
        untold = [name for name in columns if name not in types]
        heads = [
            reader.possible_types([name for name in untold if name in there])
            for reader, there in self._pair_readers_with_columns()
        ]
        self.blank = {name for name in untold if all(head.get(name, ANY) == ANY for head in heads)}
        schema = pa.schema([(name, types.get(name) or self._guess_type(name, heads)) for name in columns])
        self.doubts = find_doubtful_guesses(
            untold, schema, self._readers
        )  # columns that are text because of a few values
        schema = pa.schema([self._known.field(f.name).with_type(f.type) if f.name in known else f for f in schema])  # type: ignore[union-attr]
        for reader, there in self._pair_readers_with_columns():
            for name, kind in there.items():
                self._check_column_type(reader, schema.field(name), kind)
        return schema

    def _pair_readers_with_columns(self) -> Iterator[tuple[InputFile, Mapping[str, pa.DataType | None]]]:
        return zip(self._readers, self._there, strict=True)

    def _note_column_changes(self, known: Iterable[str]) -> None:
        """Record the columns that appear or disappear from file to file."""
        seen = dict.fromkeys(known or (self._there[0] if self._there else ()))
        for reader, there in self._pair_readers_with_columns():
            for name in there:
                if name not in seen:
                    self.changes.new[name] = reader.place.name
            for name in seen if reader.has_all_columns and there else ():
                if name not in there:
                    self.changes.missing.setdefault(name, []).append(reader.place.name)
            seen |= dict.fromkeys(there)

    def _guess_type(self, name: str, heads: Sequence[Mapping[str, Possible]]) -> pa.DataType:
        told = [(file, head[name]) for file, head in zip(self.files, heads, strict=True) if head.get(name, ANY) != ANY]
        if (kind := guess_type(head for _, head in told)) is not None:
            return kind
        first = next((each for each in told if not each[1]), told[0])
        if not first[1]:
            raise SchemaMismatch(
                f"{first[0]}, column {name!r}",
                "it has lists or objects, and also other values",
                _suggest_common_type(name),
                column=name,
            )
        other = next(each for each in told if guess_type([first[1], each[1]]) is None)
        raise SchemaMismatch(
            f"{other[0]}, column {name!r}",
            f"it looks like {guess_type([other[1]])}, but in {first[0]} like {guess_type([first[1]])}",
            _suggest_common_type(name),
            column=name,
        )

    def columns(self, file: str) -> pa.Schema:
        """Return the columns of a file.

        Return all columns if the file is empty, or if only its beginning was checked.
        """
        reader, there = self._of_file[file]
        some = there and reader.has_all_columns
        return pa.schema([f for f in self.schema if f.name in there]) if some else self.schema

    def batches(self, after: FilePosition | None = None) -> Iterator[tuple[pa.RecordBatch, FilePosition]]:
        """Yield the rows of the files in order, and after each file an empty batch that marks its end.

        Each batch is paired with the position after the batch.  O(rows).  Memory holds a few batches, or one row group
        of a Parquet file.  The rows of a file up to ``after`` are read again and dropped.
        """
        after = after or FilePosition(self.files[0])
        if after.file not in self.files:
            found = f"it is not one of the {len(self.files)} files, which begin with {self.files[0]}"
            raise UnreadableInput(after.file, found, "pass it again, in its old place")
        for reader in self._readers[self.files.index(after.file) + after.finished :]:
            file = reader.place.name
            rows, taken = 0, after.rows if file == after.file else 0
            for batch in self._read_rows(reader):
                rows += batch.num_rows
                if rows > taken:
                    yield batch.slice(max(taken - (rows - batch.num_rows), 0)), FilePosition(file, rows)
            yield pa.RecordBatch.from_pylist([], self.schema), FilePosition(file, rows, finished=True)

    def read_first_messages(self) -> pa.Array:
        """Return the first messages of each message file.  O(files); reads 2 MiB of each file."""
        return pa.concat_arrays(
            [each.read_first_messages() for each in self._readers if isinstance(each, MessageLinesFile)]
        )

    def describe_position(self, position: FilePosition) -> str:
        """Describe a position: the file, and the number of rows read from the file unless this number is 0."""
        return f"{position.file}, from row {position.rows:,}" if position.rows else position.file

    def describe_row(self, position: FilePosition, row: int) -> str:
        """Return the name of the row at index ``row`` after a position.  Row numbers start at 1; a header is row 1."""
        return f"row {self.find_next_row_number(position) + row:,}"

    def find_next_row_number(self, position: FilePosition) -> int:
        """Return the number of the next row in its file.  Row numbers start at 1; a header is row 1."""
        return position.rows + 1 + isinstance(self._of_file[position.file][0].plain, CsvFile)

    def close(self) -> None:
        """Release the resources of the files.  A second call is harmless."""
        for reader in self._readers:
            reader.place.close()

    def _read_rows(self, reader: InputFile) -> Iterator[pa.RecordBatch]:
        for batch in reader.batches(self.columns(reader.place.name), {*self._declared, *self._how.converts}):
            if batch.num_rows:
                table = self._cast_declared_columns(reader.place.name, pa.Table.from_batches([batch]))
                yield from conform_to_schema(table, self.schema, reader.place.name).to_batches()

    def _check_column_type(self, reader: InputFile, column: pa.Field, kind: pa.DataType | None) -> None:
        """Raise `SchemaMismatch` if a column has an unexpected type, or if the file's format cannot hold the type."""
        name, file = column.name, reader.place.name
        if kind is None:
            if not is_storable_in_text(column.type, reader.place.kind.name):
                found = f"a {reader.place.kind.name} file cannot hold {column.type}"
                raise SchemaMismatch(f"{file}, column {name!r}", found, "use Parquet, Arrow or JSON lines", column=name)
            return
        with suppress(SchemaMismatch):
            conform_to_schema(
                self._cast_declared_columns(file, pa.table({name: pa.array([], kind)})), pa.schema([column]), file
            )
            return
        words, meant = _suggest_common_type(name), f"{column.type} is declared"
        if name in self._of and name not in self._declared:
            meant = f"in {self._of[name]} it is {column.type}"
        elif name not in self._declared:
            meant = f"in the state it is {column.type}"
            words = ErrorText("widen it: ", self._how.retype(name, column.type, kind), "; or convert this file")
        raise SchemaMismatch(f"{file}, column {name!r}", f"it is {kind}, but {meant}", words, column=name)

    def _cast_declared_columns(self, file: str, table: pa.Table) -> pa.Table:
        """Cast declared columns to their types, including casts that would be unsafe without a declaration."""
        for name in self._declared:
            place, kind = table.schema.get_field_index(name), self._declared[name]
            if place >= 0 and table.schema.field(place).type != kind:
                try:
                    column = pa.chunked_array(
                        [cast_parsed_column(chunk, kind) for chunk in table.column(place).chunks], kind
                    )
                except (pa.ArrowException, ValueError) as error:
                    raise SchemaMismatch(
                        f"{file}, column {name!r}",
                        describe_error(error),
                        f"{table.schema.field(place).type} cannot become {kind}: declare another type, or fix the file",
                        column=name,
                    ) from None
                table = table.set_column(place, name, column)
        return table


class EmptyFile(InputFile):
    """An empty file, which has no columns and no rows."""

    def columns(self) -> Mapping[str, pa.DataType | None]:
        """Return no columns."""
        return {}

    def batches(self, schema: pa.Schema, converted: Iterable[str] = ()) -> Iterator[pa.RecordBatch]:
        """Yield nothing."""
        return iter(())


def _suggest_common_type(name: str) -> str:
    return ErrorText("declare one type for all files (", DeclareFix({name: "string"}), "), or convert this file")


def open_files(
    paths: Sequence[Path | str],
    types: Mapping[str, Any] | None = None,
    required: Iterable[str] = (),
    known: pa.Schema | None = None,
    how: FileOptions = AS_USUAL,
) -> MultiFileReader:
    """Open files as one source.

    Paths can be files, folders, patterns, ``s3://`` addresses, and ``-`` for standard input.

    ``types``: types by column, as for `to_arrow_type`, that override stored and guessed types. ``types`` can include
    columns that appear only in later files.
    ``required``: columns that every file must have.
    ``known``: the columns of earlier files, which keep their types.

    O(files); reads 2 MiB of each file that stores no types.  Raises `UnreadableInput`, `SchemaMismatch`, and
    `SpecError` for invalid types.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     for name, text in (("1.csv", "id,city\\n1,Bern\\n"), ("2.csv", "tag,id\\nx,2\\n")):
    ...         _ = (Path(folder) / name).write_text(text)
    ...     orders = open_files([folder], types={"id": "int32"})
    ...     read = [(batch.to_pylist(), position) for batch, position in orders.batches()]
    ...     [rows for rows, _ in read], orders.changes.summary.replace(folder, "")
    ...     [batch.to_pylist() for batch, _ in orders.batches(after=read[1][1])]
    ([[{'id': 1, 'city': 'Bern', 'tag': None}], [], [{'id': 2, 'city': None, 'tag': 'x'}], []], \
    "new 'tag' (/2.csv); missing 'city' (/2.csv)")
    [[{'id': 2, 'city': None, 'tag': 'x'}], []]
    """
    declared = {name: to_arrow_type(kind, f"types, column {name!r}") for name, kind in (types or {}).items()}
    how = replace(how, dialect=how.dialect.validate())
    return MultiFileReader(
        warn_of_misordered_files(list_file_locations(paths, how.dialect.kind)), declared, list(required), known, how
    )
