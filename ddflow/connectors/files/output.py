"""The output of a run: one file, there under its name only when it is whole.

Invariant: a file of the output's name is either the one that was there before, or the complete new one; what was
written before an error is kept only by `keep`, under another name. Tables go to a
hidden file beside it, which is renamed at the end and removed when anything fails. Another program may have put a file
there while this one ran, and is not overwritten unless that was asked for; and small tables are gathered, or a Parquet
file would have a row group for each step. Memory stays bounded by what is gathered.

>>> import tempfile
>>> with tempfile.TemporaryDirectory() as folder:
...     where = Path(folder) / "out.csv"
...     with open_output(where, pa.schema({"id": pa.int64()})) as out:
...         out.write(pa.table({"id": [1]}))
...         there = where.exists()
...     there, where.read_text(), out.written
(False, '"id"\\n1\\n', 1)
"""

import contextlib
import os
import weakref
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Self

import pyarrow as pa

from ddflow.connectors.files.kinds import USE, is_text_kind, kind_of
from ddflow.connectors.files.reading import described
from ddflow.connectors.files.wire import holds
from ddflow.connectors.files.writers import Writer, writer
from ddflow.errors import DdflowError, OutputExists, UnreadableInput, UnwritableOutput
from ddflow.storage.closing import on_failure


class FileOutput:
    """A file in the making; `open_output` makes it, a ``with`` completes it.  ``written``: rows so far."""

    def __init__(self, path: Path, schema: pa.Schema, overwrite: bool) -> None:
        self.path, self.schema, self.overwrite, self.written = path, schema, overwrite, 0
        try:
            self.kind = kind_of(path)
        except UnreadableInput as error:
            raise UnwritableOutput(f"write {path}", error.found, USE) from None
        if path.is_dir():
            raise UnwritableOutput(f"write {path}", "that is a folder", "name a file in it")
        if path.exists() and not overwrite:
            raise self._exists()
        if not path.parent.is_dir():
            raise UnwritableOutput(f"write {path}", f"there is no folder {path.parent}", "make it first")
        for field in schema:
            if is_text_kind(self.kind.name) and not holds(field.type, self.kind.name):
                found = f"a {self.kind.name} file cannot hold {field.name!r}, which is {field.type}"
                raise UnwritableOutput(f"write {path}", found, "write .parquet or .arrow, or leave the column out")
        self._aside = path.with_name(f".{path.name}.{os.urandom(4).hex()}.part")
        self._file: IO[bytes] | None = None
        self._writer: Writer | None = None

    def write(self, table: pa.Table) -> None:
        """Append rows of the output's columns.  O(rows).  Raises `UnwritableOutput`, such as for a full disk."""
        assert self._writer is not None, "an output is written to in its with block"
        with self._describe_errors():
            self._writer.write(table.cast(self.schema))
        self.written += table.num_rows

    def __enter__(self) -> Self:
        # An interrupt may come before the with block has begun; then the object goes, and its file with it.
        weakref.finalize(self, _unlink, self._aside)
        with self._describe_errors(), on_failure(self._remove):
            self._file = open(self._aside, "xb")
            self._writer = writer(self._file, self.kind, self.schema)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if kind is None:
                self._commit()
        finally:
            self._remove()

    def keep(self, mark: str) -> Path:
        """Complete the rows so far in ``mark.NAME``, in the same folder.  Raises like the end of the ``with``."""
        self.path = self.path.with_name(f"{mark}.{self.path.name}")
        self._commit()
        return self.path

    def _commit(self) -> None:
        assert self._writer is not None and self._file is not None
        with self._describe_errors():
            self._writer.close()
            self._writer = None
            self._file.flush()
            os.fsync(self._file.fileno())
            if self.overwrite:
                self._aside.replace(self.path)
                return
            try:
                # A link, unlike a renaming, does not replace a file that has come up meanwhile.
                os.link(self._aside, self.path)
            except FileExistsError:
                raise self._exists() from None
            except OSError:  # a file system without links
                if self.path.exists():
                    raise self._exists() from None
                self._aside.rename(self.path)

    def _remove(self) -> None:
        """Let go of the hidden file, and of a writer that was not closed: it would write when it is collected."""
        with contextlib.suppress(Exception):
            if self._writer is not None:
                self._writer.close()
        self._writer = None
        with contextlib.suppress(OSError):
            if self._file is not None:
                self._file.close()
        _unlink(self._aside)

    def _exists(self) -> OutputExists:
        return OutputExists(
            f"write {self.path}", "it exists already", "choose another name, or overwrite it (--overwrite)"
        )

    @contextlib.contextmanager
    def _describe_errors(self) -> Any:
        try:
            yield
        except DdflowError:
            raise
        except (OSError, pa.ArrowException) as error:
            raise UnwritableOutput(f"write {self.path}", described(error), "mend that, or write elsewhere") from None


def _unlink(path: Path) -> None:
    with contextlib.suppress(OSError):
        path.unlink(missing_ok=True)


def open_output(path: Path | str, schema: pa.Schema, overwrite: bool = False) -> FileOutput:
    """Open an output file of the kind that its extension names, for use in a ``with``.  O(columns).

    Raises `OutputExists` if the file exists, unless ``overwrite``; `UnwritableOutput` for an unknown extension, a
    missing folder, or columns that the kind cannot hold (lists in CSV).  Writes nothing yet.
    """
    return FileOutput(Path(path), schema, overwrite)
