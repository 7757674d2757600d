"""What every input file can be asked, and how its failures are worded.

Invariant: whatever goes wrong while a file is read (missing rights, truncation, damage, a value that does not parse)
becomes `UnreadableInput` or `SchemaMismatch` naming the file, never an error of a library. Arrow, gzip and the system
each raise their own, and an error raised inside a reader that Arrow drives must come out as itself. A file is asked
for little without being read (`columns`, `rows`), so that all files of a run can be checked before the first row is
taken.

>>> from ddflow.connectors.files.places import Local
>>> with reading(Local("orders.parquet")):
...     raise OSError("Corrupt snappy compressed data.")
Traceback (most recent call last):
    ...
ddflow.errors.UnreadableInput: orders.parquet: Corrupt snappy compressed data; is it a whole Parquet file?
"""

import errno
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace

import pyarrow as pa

from ddflow.columns.names import did_you_mean
from ddflow.connectors.files.file_path import written
from ddflow.connectors.files.guess import ANY, Possible
from ddflow.connectors.files.kinds import PLAIN, Dialect, is_text_kind, is_utf8
from ddflow.connectors.files.places import Place
from ddflow.errors import DdflowError, Declare, Evolve, Phrase, SchemaMismatch, UnreadableInput

Types = Mapping[str, pa.DataType]
ROWS = 1 << 16
"""At most so many rows in a batch, where the format leaves the choice to its reader."""


_PACKED = {
    b"PK\x03\x04": ("it is a zip archive, as workbooks are, too", "unpack it, or save it as text"),
    b"\x1f\x8b": ("it is packed by gzip", "end its name with .gz"),
}
"""By its first bytes, what packed a file, and what to do."""
WIDEST = 10_000
"""At most so many columns: each has its own arrays in every batch, so wide tables take time by the column."""


class File(ABC):
    """One input file.  Everything it raises is a `DdflowError`."""

    def __init__(self, place: Place) -> None:
        self.place = place
        self.plain: File = self
        """The file with the names that it has itself."""

    @abstractmethod
    def columns(self) -> Mapping[str, pa.DataType | None]:
        """Return its columns in order, with their types if it stores types.  JSON has the columns of its beginning."""

    @property
    def is_whole(self) -> bool:
        """Whether `columns` are all that it has."""
        return True

    def head(self, names: Collection[str]) -> Mapping[str, Possible]:
        """Return the possible types of some columns, if the file does not store types.  O(`SAMPLE`)."""
        return dict.fromkeys(names, ANY)

    @abstractmethod
    def batches(self, schema: pa.Schema, converted: Collection[str] = ()) -> Iterator[pa.RecordBatch]:
        """Yield its rows in its columns; text is parsed as ``schema`` says.  Bounded memory.

        Values of text must match ``spelling``; in ``converted`` columns, all that Arrow can convert are valid.
        """

    def rows(self) -> int | None:
        """Return the number of rows if it is known without a read, else None."""
        return None


class Renamed(File):
    """A file with other names of columns than it has itself.  ``names``: its own, each with the new one."""

    def __init__(self, of: File, names: Mapping[str, str]) -> None:
        super().__init__(of.place)
        self.plain, self._new = of, dict(names)

    def columns(self) -> Mapping[str, pa.DataType | None]:
        """Return the renamed columns.  Raises `SchemaMismatch` for unknown names, and for two that become one."""
        there, asked = self.plain.columns(), f"{self.place.name}, rename="
        for old, new in self._new.items() if there else ():
            if old not in there and new not in there and self.plain.is_whole:
                found = f"there is no column {old!r}, which would be {new!r}"
                raise SchemaMismatch(asked, found, did_you_mean(old, there))
        self._new = {old: new for old, new in self._new.items() if old in there or new not in there}
        names = [self._new.get(name, name) for name in there]
        if twice := sorted({name for name in names if names.count(name) > 1}):
            olds = [name for name in there if self._new.get(name, name) == twice[0]]
            raise SchemaMismatch(asked, f"its columns {olds} would all be {twice[0]!r}", "give each a name of its own")
        return dict(zip(names, there.values(), strict=True))

    @property
    def is_whole(self) -> bool:
        """As the file."""
        return self.plain.is_whole

    def head(self, names: Collection[str]) -> Mapping[str, Possible]:
        """Return the possible types of renamed columns."""
        found = self.plain.head([self._own(name) for name in names])
        return {self._new.get(name, name): each for name, each in found.items()}

    def batches(self, schema: pa.Schema, converted: Collection[str] = ()) -> Iterator[pa.RecordBatch]:
        """Yield the rows in renamed columns.  An error of a column says what to declare by its new name."""
        own = pa.schema([field.with_name(self._own(field.name)) for field in schema])
        try:
            for batch in self.plain.batches(own, {self._own(name) for name in converted}):
                yield batch.rename_columns([self._new.get(name, name) for name in batch.schema.names])
        except SchemaMismatch as error:
            error.map(
                Declare | Evolve,
                lambda fix: replace(fix, types={self._new.get(name, name): kind for name, kind in fix.types.items()}),
            )
            raise

    def rows(self) -> int | None:
        """Return the rows of the file."""
        return self.plain.rows()

    def _own(self, name: str) -> str:
        return next((old for old, new in self._new.items() if new == name), name)


@contextmanager
def reading(place: Place, dialect: Dialect | None = None) -> Iterator[None]:
    """Convert errors of the block to errors about this file.  ``dialect``: of its text."""
    try:
        yield
    except DdflowError:
        raise
    except FileNotFoundError:
        raise UnreadableInput(
            place.name, "there is no such file", "check the name and where you are", file=place.name
        ) from None
    except UnicodeDecodeError as error:
        name = (error.encoding if dialect is None else dialect.encoding).upper()  # Python's of many is charmap
        raise packed(place) or UnreadableInput(
            place.name, f"it is not {name} ({error.reason})", encoded(place, dialect or PLAIN), file=place.name
        ) from None
    except (pa.ArrowException, OSError, EOFError, ValueError) as error:
        worded = UnreadableInput(
            place.name, described(error), f"is it a whole {place.kind.name} file?", file=place.name
        )
        raise packed(place) or worded from None


def packed(place: Place) -> UnreadableInput | None:
    """Return an error if text is compressed and its name does not say so; None for other files.  O(1)."""
    if place.kind.wrapped is not None or not is_text_kind(place.kind.name):
        return None
    try:
        with place.head() as stream:
            begin = bytes(stream.read(4))
    except (pa.ArrowException, OSError, DdflowError):
        return None
    return next(
        (UnreadableInput(place.name, *said) for magic, said in _PACKED.items() if begin.startswith(magic)), None
    )


def encoded(place: Place, dialect: Dialect) -> Phrase:
    """Suggest a remedy for text that is not in the given encoding."""
    if not is_utf8(dialect.encoding):
        return Phrase("give the encoding that it is in, or write it in UTF-8")
    given = written(place.name, dialect._replace(encoding="cp1252"))
    return Phrase("name its encoding (", given, "), or write it in UTF-8")


def described(error: BaseException) -> str:
    """Return the first line of a library's message, without its last dot."""
    code = getattr(error, "errno", None)
    if code in (errno.EACCES, errno.EPERM):
        return "it may not be read"
    text = str(error).strip().splitlines()
    return text[0].rstrip(". ") if text else type(error).__name__


def brief(text: str) -> str:
    """Quote the beginning of a text."""
    return repr(text) if len(text) <= 40 else repr(text[:40]) + "..."


def check_width(place: Place, columns: int) -> None:
    """Raise `UnreadableInput` for a file with more columns than ``WIDEST``."""
    if columns > WIDEST:
        found = f"it has {columns:,} columns, more than {WIDEST:,}"
        raise UnreadableInput(place.name, found, "make rows of them: a name and a value each", file=place.name)


def is_empty(place: Place) -> bool:
    """Return whether a file has no bytes."""
    with reading(place):
        return place.size() == 0
