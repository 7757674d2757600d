"""What every input file can be asked, and how its failures are worded.

Invariant: whatever goes wrong while a file is read (missing rights, truncation, damage, a value that does not parse)
becomes `UnreadableInput` or `SchemaMismatch` naming the file, never an error of a library. Arrow, gzip and the system
each raise their own, and an error raised inside a reader that Arrow drives must come out as itself. A file is asked
for little without being read (`columns`, `rows`), so that all files of a run can be checked before the first row is
taken.

>>> with reading(Path("orders.parquet"), "Parquet"):
...     raise OSError("Corrupt snappy compressed data.")
Traceback (most recent call last):
    ...
ddflow.errors.UnreadableInput: orders.parquet: Corrupt snappy compressed data; is it a whole Parquet file?
"""

import errno
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa

from ddflow.connectors.files.guess import ANY, Possible
from ddflow.connectors.files.kinds import Kind, kind_of
from ddflow.errors import DdflowError, SchemaMismatch, UnreadableInput

Types = Mapping[str, pa.DataType]
ROWS = 1 << 16
"""At most so many rows in a batch, where the format leaves the choice to its reader."""


WIDEST = 10_000
"""At most so many columns: each has its own arrays in every batch, so wide tables take time by the column."""


class File(ABC):
    """One input file.  Everything it raises is a `DdflowError`."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @property
    def kind(self) -> Kind:
        """What its name says it is."""
        return kind_of(self.path)

    @abstractmethod
    def columns(self) -> Mapping[str, pa.DataType | None] | None:
        """Its columns by name, with their types where it has types; None where only its rows could tell."""

    def head(self, types: Types) -> Mapping[str, Possible]:
        """Its columns in their order, with what those could be that are not in ``types``.  O(`SAMPLE`)."""
        return dict.fromkeys(self.columns() or (), ANY)

    @abstractmethod
    def batches(self, schema: pa.Schema, converted: Collection[str] = ()) -> Iterator[pa.RecordBatch]:
        """Its rows: columns as it has them, parsed as ``schema`` says where it has no types.  Bounded memory.

        Values of text are those that ``spelling`` takes; in ``converted`` columns whatever Arrow can convert.
        """

    def rows(self) -> int | None:
        """How many rows it has, where that can be told without reading them."""
        return None


@contextmanager
def reading(path: Path, kind: str) -> Iterator[None]:
    """Word whatever is raised inside as an error about this file."""
    try:
        yield
    except DdflowError:
        raise
    except FileNotFoundError:
        raise UnreadableInput(str(path), "there is no such file", "check the name and where you are") from None
    except UnicodeDecodeError as error:
        raise UnreadableInput(str(path), f"it is not UTF-8 ({error.reason})", f"is it a {kind} file?") from None
    except (pa.ArrowException, OSError, EOFError, ValueError) as error:
        raise UnreadableInput(str(path), described(error), f"is it a whole {kind} file?") from None


def described(error: BaseException) -> str:
    """The first line of a library's message, without its last dot."""
    code = getattr(error, "errno", None)
    if code in (errno.EACCES, errno.EPERM):
        return "it may not be read"
    text = str(error).strip().splitlines()
    return text[0].rstrip(". ") if text else type(error).__name__


def misspelled(where: str, name: str, text: str, kind: pa.DataType) -> SchemaMismatch:
    """The error of a value that is not spelled as its column's type is, which nobody declared."""
    remedy = (
        f"mend it, or declare the type: --types {name}=string keeps what is written, --types {name}={kind} converts it"
    )
    return SchemaMismatch(where, f"{brief(text)} is not how a value of type {kind} is written", remedy)


def brief(text: str) -> str:
    """The beginning of a text, in quotes."""
    return repr(text) if len(text) <= 40 else repr(text[:40]) + "..."


def check_width(path: Path, columns: int) -> None:
    """Raises `UnreadableInput` for a file of more columns than ``WIDEST``."""
    if columns > WIDEST:
        raise UnreadableInput(
            str(path), f"it has {columns:,} columns, more than {WIDEST:,}", "make rows of them: a name and a value each"
        )


def check_there(path: Path) -> None:
    """Raises `UnreadableInput` for a file of no bytes, and for a pipe: files are opened more than once."""
    with reading(path, kind_of(path).name):
        size = path.stat().st_size
        if not path.is_file():
            raise UnreadableInput(str(path), "it is no regular file", "write what it gives to a file first")
        if not size:
            raise UnreadableInput(str(path), "it is empty (0 bytes)", "leave it out, or write it again")


def unwrapped(path: Path, kind: Kind) -> pa.NativeFile:
    """The bytes of a text file, unwrapped.  To be closed by who reads them himself, and not where Arrow does.

    Arrow reads ahead in a thread of its own, which may be in the middle of it when its reader is let go of.  Were the
    file closed under it, it would take a block from whatever file got the descriptor's number next.  Left alone, the
    file closes when that thread has let go of it, too.
    """
    return pa.input_stream(str(path), compression="gzip" if kind.gzipped else None)
