"""Files of any kinds as one source: a stream of batches of one schema.

Invariant: every batch has exactly the source's columns, in its order and types, whichever file it came from.  The
columns are the first file's; one that a later file lacks is null there, one that it adds, or has in a type that would
lose something, is refused before the first row is read (in JSON lines: where it is read).  Types do not depend on which
file comes first: they are declared, those of files that have types, those of the files that came before, or guessed
from the heads of all files.  Files of a run are written by different programs on different days, and the one that
differs is the one whose rows would be wrong.  What a row means is not known here.

>>> import tempfile
>>> with tempfile.TemporaryDirectory() as folder:
...     for name, text in (("1.csv", "id,city\\n1,Bern\\n"), ("2.csv", "city,id\\nBasel,2\\n")):
...         _ = (Path(folder) / name).write_text(text)
...     orders = open_files([folder], types={"id": "int32"})
...     read = [(batch.to_pylist(), position) for batch, position in orders.batches()]
...     [rows for rows, _ in read]
...     [batch.to_pylist() for batch, _ in orders.batches(after=read[1][1])]
[[{'id': 1, 'city': 'Bern'}], [], [{'id': 2, 'city': 'Basel'}], []]
[[{'id': 2, 'city': 'Basel'}], []]
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa

from ddflow.columns.names import did_you_mean
from ddflow.columns.schema import conform, normal_type
from ddflow.connectors.files.guess import ANY, Possible, guess
from ddflow.connectors.files.kinds import ARROW, CSV, JSON, PARQUET, STREAM, kind_of, listed
from ddflow.connectors.files.read_columnar import ArrowFile, ParquetFile
from ddflow.connectors.files.read_csv import CsvFile
from ddflow.connectors.files.read_json import JsonFile
from ddflow.connectors.files.reading import File, Types, check_there, described
from ddflow.connectors.files.types import parse_type
from ddflow.connectors.files.wire import restored
from ddflow.errors import SchemaMismatch, SpecError, UnreadableInput

_READERS: Mapping[str, type[File]] = {
    PARQUET: ParquetFile,
    CSV: CsvFile,
    JSON: JsonFile,
    ARROW: ArrowFile,
    STREAM: ArrowFile,
}


class FilePosition(NamedTuple):
    """How far files were read: ``rows`` of a ``file``, and whether that is ``finished``."""

    file: Path
    rows: int = 0
    finished: bool = False


class FilesSource:
    """A `Source` of files with one schema; `open_files` makes it.

    ``files``: in the order they are read.  ``rows``: how many there are in all, where the files can tell without being
    read.
    """

    def __init__(
        self, files: Sequence[Path], declared: Types, required: Iterable[str], known: pa.Schema | None = None
    ) -> None:
        self.files = list(files)
        self._declared = declared
        readers = [_READERS[kind_of(file).name](file) for file in self.files]
        for file in self.files:
            check_there(file)
        first = readers[0]
        there = first.columns()
        for name in declared:
            if there is not None and name not in there:
                raise SpecError(
                    f"a type for {name!r}", f"there is no such column in {first.path}", did_you_mean(name, there)
                )
        here = self._settled(readers, {} if known is None else dict(zip(known.names, known.types, strict=True)))
        self.schema = here if known is None else merged(known, here)
        if not len(self.schema):
            raise UnreadableInput(str(first.path), "it has no columns", "give a file with columns first")
        for reader in readers:
            self._check(reader, required)
        counts = [reader.rows() for reader in readers]
        self.rows = None if None in counts else sum(filter(None, counts))
        self._readers = dict(zip(self.files, readers, strict=True))

    def _settled(self, readers: Sequence[File], known: Types) -> pa.Schema:
        """The first file's columns, in types that do not depend on which file that is: declared, or those of a file
        that has types, or those ``known``, or guessed from the heads of all files."""
        self._of: dict[str, Path] = {}
        types = dict(known)
        for reader in readers:
            for name, kind in (reader.columns() or {}).items():
                if kind is not None and self._of.setdefault(name, reader.path) == reader.path:
                    types[name] = normal_type(kind)
        types |= self._declared
        heads = [reader.head(types) for reader in readers]
        return pa.schema([(name, types.get(name) or self._guessed(name, heads)) for name in heads[0]])

    def _guessed(self, name: str, heads: Sequence[Mapping[str, Possible]]) -> pa.DataType:
        told = [(file, head[name]) for file, head in zip(self.files, heads, strict=True) if head.get(name, ANY) != ANY]
        if (kind := guess(head for _, head in told)) is not None:
            return kind
        first, other = told[0], next(each for each in told if guess([told[0][1], each[1]]) is None)
        raise SchemaMismatch(
            f"{other[0]}, column {name!r}",
            f"it is like {guess([other[1]])}, in {first[0]} like {guess([first[1]])}",
            _one_type(name),
        )

    def batches(self, after: FilePosition | None = None) -> Iterator[tuple[pa.RecordBatch, FilePosition]]:
        """The rows of the files, one after the other; behind the last of each a batch without rows, which finishes it.

        As in `Source`.  O(rows); memory for a few batches (of Parquet: for a row group of each column).  Rows before
        ``after`` in its file are read and left out.
        """
        after = after or FilePosition(self.files[0])
        if after.file not in self.files:
            found = f"it is none of {len(self.files)} files, the first of which is {self.files[0]}"
            raise UnreadableInput(str(after.file), found, "give it again, in its place")
        for file in self.files[self.files.index(after.file) + after.finished :]:
            rows, taken = 0, after.rows if file == after.file else 0
            for batch in self._rows(file):
                rows += batch.num_rows
                if rows > taken:
                    yield batch.slice(max(taken - (rows - batch.num_rows), 0)), FilePosition(file, rows)
            yield pa.RecordBatch.from_pylist([], self.schema), FilePosition(file, rows, finished=True)

    def place(self, position: FilePosition) -> str:
        """The file, and the row that is next, where that is not the first."""
        return f"{position.file}, from row {position.rows:,}" if position.rows else str(position.file)

    def close(self) -> None:
        """Let go of what was kept of the files' heads.  Twice is harmless."""
        self._readers.clear()

    def _rows(self, file: Path) -> Iterator[pa.RecordBatch]:
        for batch in self._readers[file].batches(self.schema, self._declared):
            if batch.num_rows:
                table = self._cast(file, pa.Table.from_batches([batch]))
                yield from conform(table, self.schema, str(file)).to_batches()

    def _check(self, reader: File, required: Iterable[str]) -> None:
        """Raises `SchemaMismatch` if what is known of a file's columns does not fit the schema."""
        columns = reader.columns()
        if columns is None:
            return
        for name in required:
            if name not in columns:
                raise SchemaMismatch(
                    str(reader.path),
                    f"the column {name!r} is missing, which every file must have",
                    did_you_mean(name, columns),
                )
        for name, kind in columns.items():
            place = self.schema.get_field_index(name)
            if place < 0:
                raise SchemaMismatch(
                    str(reader.path),
                    f"it has a column {name!r}, which {self.files[0]} has not",
                    "leave it out, or begin with a file that has all columns",
                )
            if kind is not None:
                self._check_type(reader.path, self.schema.field(place), kind)

    def _check_type(self, path: Path, field: pa.Field, kind: pa.DataType) -> None:
        name, empty = field.name, pa.table({field.name: pa.array([], kind)})
        try:
            conform(self._cast(path, empty), pa.schema([field]), str(path))
        except SchemaMismatch:
            meant = "declared is" if name in self._declared else f"in {self._of[name]} it is"
            raise SchemaMismatch(
                f"{path}, column {name!r}", f"it is {kind}, {meant} {field.type}", _one_type(name)
            ) from None

    def _cast(self, path: Path, table: pa.Table) -> pa.Table:
        """The table with declared columns in their types: what was asked for may be more than is safe unasked."""
        for name in self._declared:
            place, kind = table.schema.get_field_index(name), self._declared[name]
            if place >= 0 and table.schema.field(place).type != kind:
                try:
                    column = pa.chunked_array([restored(chunk, kind) for chunk in table.column(place).chunks], kind)
                except (pa.ArrowException, ValueError) as error:
                    raise SchemaMismatch(
                        f"{path}, column {name!r}",
                        described(error),
                        f"{table.schema.field(place).type} cannot be {kind}: declare another type, or mend the file",
                    ) from None
                table = table.set_column(place, name, column)
        return table


def _one_type(name: str) -> str:
    return f"declare one type for all files (--types {name}=type), or convert this one"


def open_files(
    paths: Sequence[Path | str],
    types: Mapping[str, str | pa.DataType] | None = None,
    required: Iterable[str] = (),
    known: pa.Schema | None = None,
) -> FilesSource:
    """Files and folders as one source of one schema.

    ``types``: of columns, where the files' own or guessed ones will not do; as text (``"decimal(12,2)"``) or as
    Arrow types.  In JSON lines they may name columns that only occur later on.  ``required``: columns that no file may
    lack.  ``known``: the columns of files that came before these; where it has a column, no type is guessed.  O(files),
    and 2 MiB of each that has no types.  Raises `UnreadableInput`, `SchemaMismatch`, `SpecError` for types.
    """
    declared = {name: parse_type(kind) if isinstance(kind, str) else kind for name, kind in (types or {}).items()}
    return FilesSource(listed(paths), declared, list(required), known)


def merged(known: pa.Schema, here: pa.Schema) -> pa.Schema:
    """The columns that are known, in their order, then those that files add; with the files' types where they differ.

    A column that the files lack is left out when it may not be null.

    >>> known = pa.schema({"id": pa.int64(), "city": pa.string()})
    >>> merged(known, pa.schema({"tag": pa.string(), "id": pa.int64()})).names
    ['id', 'city', 'tag']
    """
    fields = []
    for field in known:
        if field.name in here.names:
            other = here.field(field.name)
            fields.append(field if other.type == field.type else other)
        elif field.nullable:
            fields.append(field)
    return pa.schema([*fields, *(field for field in here if field.name not in known.names)])
