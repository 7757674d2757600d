"""Follow files that arrive in a folder or a bucket, as COPY, Firehose and Debezium Server deliver them.

Guarantees: the rows of a file are ingested once. The position records finished files by name, size and write time.
ddflow therefore reads a late file whatever its name is, and raises `SourceChanged` for a file that changed after it was
read. A position contains no deleted files. New files are read in the order of their names, and a large file may take
several epochs.

A local file is read if its write time, or the last change that ddflow saw, is at least ``settle`` seconds ago. Objects
in a bucket are read as soon as they are listed. Without ``follow``, only the files of the first listing are read.

A ``full`` file replaces all rows of its input in one epoch. A ``full`` file is refused if it has no rows, or if a file
with a later name was read before it. Each pattern has its own dialect.
"""

import shlex
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from math import inf
from time import monotonic, time
from typing import Any, ClassVar, NamedTuple, TypedDict

import numpy as np
import pyarrow as pa

from ddflow.columns.wider import suggest_evolve_call
from ddflow.connectors.api import BatchStart, OpenSource, Polled, Source, UndeclaredColumn
from ddflow.connectors.files.csv_reader import drop_blank_lines, read_line_blocks
from ddflow.connectors.files.kinds import PLAIN, Dialect, find_kind
from ddflow.connectors.files.places import warn_of_misordered_names
from ddflow.connectors.files.source import FileOptions, FilePosition, MultiFileReader
from ddflow.connectors.formats.base import DELETED
from ddflow.connectors.formats.routes import Others, check_table_routing, group_batches_by_input
from ddflow.connectors.landing.listing import FileListing, FileStamp, build_listing
from ddflow.errors import ErrorText, Option, SourceChanged, SpecError, UnreadableInput


class LandingPosition(TypedDict):
    """Position in the files of a source.

    ``done``: size and write time of finished files by name.  ``at``: name, size, write time and number of read rows of
    the current file, or None.  ``before``: the rows of all finished files, so that offsets of messages ascend over
    files.  File names are relative to the folder of the first pattern, so you may move the folder.
    """

    done: dict[str, tuple[int, int]]
    at: tuple[str, int, int, int] | None
    before: int


class FileRows(NamedTuple):
    """Consecutive rows of a file.

    ``after``: the number of rows of the file up to the last of these rows.  ``spot``: the position of the first of
    these rows; None for messages, which have columns for their position.
    """

    rows: pa.RecordBatch
    after: int
    spot: BatchStart | None = None


@dataclass(frozen=True)
class LandingSource(Source):
    """Source of arriving files.  `dd.sources.files` creates such a source and describes the options.

    >>> import pathlib, tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = (pathlib.Path(folder) / "1.csv").write_text("id,city\\n1,Bern\\n")
    ...     opened = LandingSource(((f"{folder}/*.csv", PLAIN),)).open({"people": pa.schema({"id": pa.int64()})}, None)
    ...     taken = opened.poll(1 << 20)
    ...     [batch.to_pylist() for batch in taken.rows["people"]], list(taken.position["done"]), opened.ended
    ([[{'id': 1}]], ['1.csv'], True)
    """

    patterns: tuple[tuple[str, Dialect], ...]
    follow: bool = False
    settle: float = 1.0
    lines: bool = False
    tables: Mapping[str, str] | None = None
    others: Others = "error"
    full: bool = False
    kind: ClassVar[str] = "files"
    unit: ClassVar[str] = "files"
    positions: ClassVar[Any] = LandingPosition

    def __post_init__(self) -> None:
        check_table_routing(self.tables, self.others, "dd.sources.files")
        if self.tables is not None and not self.lines:
            found = "tables= is for messages, but these are files of rows"
            raise SpecError(
                "dd.sources.files", found, ErrorText("pass ", Option("lines", True), ", or use a source for each input")
            )
        if self.lines and any(dialect != PLAIN for _, dialect in self.patterns):
            found = ErrorText(Option("lines", True), " is for messages in UTF-8, which need no dd.FilePath")
            raise SpecError(
                "dd.sources.files", found, ErrorText("pass only the pattern, or omit ", Option("lines", True))
            )
        if self.full and self.lines:
            remedy = "omit one of the two"
            raise SpecError(
                "dd.sources.files",
                ErrorText(Option("lines", True), " is for messages, which are not full contents"),
                remedy,
            )
        if not self.patterns:
            raise SpecError("dd.sources.files", "there is no pattern", "pass one or more")
        places = {each.target.partition("://")[2].partition("/")[0] for each, _ in self.listings}
        if len(places) > 1:
            found = f"the patterns {self.target} name several places"
            raise SpecError("dd.sources.files", found, "use a separate input for this machine and for each bucket")

    @property
    def listings(self) -> list[tuple[FileListing, Dialect]]:
        """Listing and dialect of each pattern."""
        return [(build_listing(pattern), dialect) for pattern, dialect in self.patterns]

    @property
    def target(self) -> str:
        """Patterns of the source, for messages."""
        return ", ".join(each.target for each, _ in self.listings)

    @classmethod
    def said(cls, position: Any) -> str:
        """Describe a position: the last finished file, the number of files, and the row in an unfinished file."""
        done, at = position["done"], position["at"]
        parts = [f"{max(done)} ({len(done):,} files)" if len(done) > 1 else max(done)] if done else []
        return ", and ".join([*parts, *([f"row {at[3]:,} of {at[0]}"] if at else [])]) or "no file"

    def inputs(self, name: str) -> Sequence[str]:
        """Return the inputs that the source feeds: the inputs of its tables, or its only input."""
        return (name,) if self.tables is None else tuple(dict.fromkeys(self.tables.values()))

    def needs(self) -> None:
        """Import the libraries for the folder or the bucket of the source."""
        self.listings[0][0].needs()

    def open(self, inputs: Mapping[str, pa.Schema], position: Any) -> "LandingReader":
        """Open a reader after a position."""
        name, schema = next(iter(inputs.items()))
        return LandingReader(self, name, schema, position)


class LandingReader(OpenSource):
    """Reader of the source ``of``, for the input ``name`` with a ``schema``."""

    def __init__(self, of: LandingSource, name: str, schema: pa.Schema, position: Any) -> None:
        self.of, self.name, self.schema = of, name, schema
        position = position or {"done": {}, "at": None, "before": 0}
        self._before: int = position["before"]
        self.done = {file: FileStamp(*stamp) for file, stamp in position["done"].items()}
        self._at: tuple[str, FileStamp, int] | None = None
        if position["at"] is not None:
            file, size, mtime, rows = position["at"]
            self._at = file, FileStamp(size, mtime), 0 if of.full else rows
        written = [stamp.mtime for stamp in (*self.done.values(), *(self._at[1:2] if self._at else ()))]
        self.reached = max(written) / 1e9 if written else None
        self._reading: Iterator[FileRows] | None = None
        self._beside: dict[str, UndeclaredColumn] = {}
        self._seen: dict[str, tuple[FileStamp, float]] = {}
        self._ready: list[str] = []
        self._looked, self._first = -inf, True
        self._landings, self._there = of.listings, of.listings[0][0]
        self._written: dict[str, Dialect] = {}
        """Dialects of the listed files."""
        self._guessed: Collection[str] = ()

    @property
    def ended(self) -> bool:
        """Whether the reader has read all files of its first listing.  The value is always False with ``follow``."""
        return not self.of.follow and not self._first and self._at is None and not self._ready

    def lag(self) -> int | None:
        """Count the files that are still unread; None before the first listing."""
        return None if self._first else len(self._ready) + (self._at is not None)

    def poll(self, room: int) -> Polled | None:
        """Return batches of up to about ``room`` bytes, from one or more files."""
        if self._at is None and not self._ready and not self.ended:
            self._find_new_files()
        if self.of.full:
            return self._read_full_file() if self._open_next_file() else None
        pieces, size = list[FileRows](), 0
        beside = None
        while size < room and self._open_next_file():
            if pieces and beside is not None and self._beside.keys() != beside.keys():
                break  # the next file has other undeclared columns
            beside, piece = self._beside, self._read_next_rows()
            if piece is not None and piece.rows.num_rows:
                pieces.append(piece)
                size += piece.rows.nbytes
        if not pieces:
            return None
        batches = [piece.rows for piece in pieces]
        rows = group_batches_by_input(batches, self.name, self.of.tables, self.of.others, f"read {self.of.target}")
        if self.of.lines:
            return Polled(rows, self._build_position())
        return Polled(
            rows,
            self._build_position(),
            beside={self.name: beside or {}},
            spots={self.name: _list_batch_starts(pieces)},
        )

    def _read_full_file(self) -> Polled:
        """Read a whole file as the new contents of the input.  All rows of the file are in memory at once."""
        assert self._at is not None
        path, pieces = self._format_file_name(self._at[0]), list[FileRows]()
        while self._at is not None:
            piece = self._read_next_rows()
            if piece is not None:
                pieces.append(piece)
        if not pieces:
            remedy = "move the file away; to delete all keys, call engine.replace"
            raise UnreadableInput(path, "it has no rows, so every key would be deleted", remedy)
        rows, beside, spots = (
            [piece.rows for piece in pieces],
            {self.name: self._beside},
            {self.name: _list_batch_starts(pieces)},
        )
        return Polled({self.name: rows}, self._build_position(), frozenset([self.name]), beside, spots)

    def close(self) -> None:
        """Stop reading the current file."""
        self._reading = None

    def _build_position(self) -> dict[str, Any]:
        at = None if self._at is None else [self._at[0], *self._at[1], self._at[2]]
        return {"done": {file: list(stamp) for file, stamp in self.done.items()}, "at": at, "before": self._before}

    def _open_next_file(self) -> bool:
        """Open the next file unless one is open.  Return whether a file is open."""
        while self._at is None and self._ready:
            file = self._ready.pop(0)
            with suppress(FileNotFoundError):  # the file was deleted before its first row was read
                self._at = file, self._there.read_file_stamp(file), 0
                self.reached = self._at[1].mtime / 1e9
        if self._at is not None and self._reading is None:
            self._check_file_unchanged(*self._at[:2])
            self._reading = self._read_rows(*self._at)
        return self._at is not None

    def _read_next_rows(self) -> FileRows | None:
        """Return the next rows of the current file.  After the last row, finish the file and return None."""
        assert self._at is not None and self._reading is not None
        file, stamp, rows = self._at
        self._check_file_unchanged(file, stamp)
        for piece in self._reading:
            self._at = file, stamp, piece.after
            return piece
        self._check_file_unchanged(file, stamp)
        self._before += rows
        self.done[file], self._at, self._reading = stamp, None, None
        return None

    def _read_rows(self, file: str, stamp: FileStamp, rows: int) -> Iterator[FileRows]:
        """Read a file without its first ``rows`` rows, and record the undeclared columns of the file."""
        self._beside = {}
        if self.of.lines:
            read = _read_message_lines(
                lambda: self._there.open_stream(file, stamp), self._format_file_name(file), rows, self._before
            )
            if DELETED in self.schema.names:
                return read
            # Without a message format, lines are rows, and rows have no columns for their place in a file.
            return (piece._replace(rows=piece.rows.select(["value", "offset"])) for piece in read)
        if not stamp.size:
            return iter(())
        if file not in self._written and file not in self._list_files():
            found, remedy = f"it was read up to row {rows:,}, but no pattern matches it", "pass its pattern again"
            raise SourceChanged(f"read {self._format_file_name(file)}", found, remedy)
        dialect, declared = self._written[file], {*self.schema.names} - {*self._guessed}
        place = self._there.build_file_location(file, stamp, dialect.kind)
        how = FileOptions(dialect=dialect, empty=True, retype=suggest_evolve_call, converts=declared)
        source = MultiFileReader([place], {}, [], self.schema, how)
        there = source.columns(place.name)
        self._beside = {
            field.name: UndeclaredColumn(None if field.name in source.blank else field.type, file)
            for field in there
            if field.name not in self.schema.names
        }
        return _read_file_columns(source, [name for name in self.schema.names if name in there.names], place.name, rows)

    def _find_new_files(self) -> None:
        """Find the complete files that are not read yet.  Raises `SourceChanged` if a finished file changed."""
        if monotonic() - self._looked < self._there.every:
            return
        self._looked, now, there = monotonic(), time(), self._list_files()
        for file, stamp in there.items():
            if not self.of.lines:
                find_kind(self._format_file_name(file), self._written[file].kind)
            if file in self.done and self.done[file] != stamp:
                raise self._build_changed_file_error(file, self.done[file], stamp, done=True)
        self.done = {file: stamp for file, stamp in self.done.items() if file in there}
        warn_of_misordered_names(new := sorted(there.keys() - self.done.keys(), key=self._format_file_name))
        last = max(self.done, key=self._format_file_name, default=None) if self.of.full and new else None
        for file in new:
            if last is not None and self._format_file_name(file) < self._format_file_name(last):
                found = f"full files are read in the order of names, but {last!r} was read before it"
                remedy = "move it away, because newer contents were read; or give it a later name"
                raise SourceChanged(f"read {self._format_file_name(file)}", found, remedy)
            stamp = there[file]
            seen, since = self._seen.get(file, (None, now))
            if seen != stamp:
                since = now
            self._seen[file] = stamp, since
            if self._there.settled or not self.of.follow or max(now - since, now - stamp.mtime / 1e9) >= self.of.settle:
                self._ready.append(file)
                del self._seen[file]
        self._seen = {file: each for file, each in self._seen.items() if file in there}
        self._first = False

    def _list_files(self) -> dict[str, FileStamp]:
        """List the files by name.  A file that matches several patterns belongs to the first pattern."""
        there, self._written = dict[str, FileStamp](), {}
        for each, dialect in reversed(self._landings):
            found = {self._there.relative_name(each, file): stamp for file, stamp in each.list_files().items()}
            there |= found
            self._written |= dict.fromkeys(found, dialect)
        return there

    def note_guesses(self, columns: Mapping[str, Collection[str]]) -> None:
        """Record the columns with guessed types.  See `OpenSource.note_guesses`."""
        self._guessed = columns[self.name]

    def _format_file_name(self, file: str) -> str:
        """Return the full name of a file, for messages and for the order of files."""
        return self._there.build_file_location(file, FileStamp(0, 0)).name

    def _check_file_unchanged(self, file: str, stamp: FileStamp) -> None:
        try:
            now = self._there.read_file_stamp(file)
        except FileNotFoundError:
            found, remedy = "it was deleted while it was read", "restore it unchanged"
            raise SourceChanged(f"read {self._format_file_name(file)}", found, remedy) from None
        if now != stamp:
            raise self._build_changed_file_error(file, stamp, now)

    def _build_changed_file_error(self, file: str, was: FileStamp, now: FileStamp, done: bool = False) -> SourceChanged:
        found = f"it had {was.size:,} bytes when it was read and has {now.size:,} now, and its write time differs"
        remedy = "restore its old contents, and write new contents to another file"
        if done:
            remedy += "; or move it away, because it was read"
        if was.size == now.size and "://" not in self._format_file_name(file):
            seconds, rest = divmod(was.mtime, 10**9)
            remedy += (
                f"; if only its time differs: touch -d @{seconds}.{rest:09} {shlex.quote(self._format_file_name(file))}"
            )
        return SourceChanged(f"read {self._format_file_name(file)}", found, remedy)


def _list_batch_starts(pieces: Sequence[FileRows]) -> list[BatchStart]:
    return [piece.spot for piece in pieces if piece.spot is not None]


def _read_file_columns(source: MultiFileReader, names: list[str], path: str, rows: int) -> Iterator[FileRows]:
    """Read the named columns of a file without its first ``rows`` rows."""
    with closing(source):
        for batch, position in source.batches(FilePosition(path, rows) if rows else None):
            if batch.num_rows:
                before = position._replace(rows=position.rows - batch.num_rows)
                yield FileRows(
                    batch.select(names), position.rows, BatchStart(path, source.find_next_row_number(before))
                )


def _read_message_lines(opened: Callable[[], pa.NativeFile], path: str, rows: int, before: int) -> Iterator[FileRows]:
    """Read lines of a file as messages, without the first ``rows`` lines.  ``before``: a number to add to offsets."""
    try:
        with opened() as file:
            for number, lines in read_line_blocks(file):
                values, places = drop_blank_lines(lines.slice(max(rows - number, 0)))
                after = number + len(lines)
                if len(values):
                    begin = max(rows, number)
                    of = pa.DictionaryArray.from_arrays(pa.array(np.zeros(len(values), np.int8)), pa.array([path]))
                    columns = {"offset": places + (before + begin), "line": places + (begin + 1), "file": of}
                    yield FileRows(pa.record_batch({"value": values, **columns}), after)
    except (OSError, pa.ArrowException) as error:
        raise UnreadableInput(path, str(error), "check the file") from None
