"""Read the files of a command line, one after the other, for an engine.

In epoch mode a step is one file, so a bad file is refused completely. In hold-back mode a file is read to its end
before its first row is ingested (`read_files_ahead`). While the file is read, up to `IN_MEMORY` bytes of its rows are
kept in memory, and all further rows in a temporary file. Standard input is ingested as it arrives, because it may never
end.

Guarantees: batches keep the order of the file. An error of the engine keeps its class. If a step fails, the error
message names the place in the file where this step began.
"""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from tempfile import SpooledTemporaryFile
from typing import Final, NamedTuple

import pyarrow as pa

from ddflow.cli.arguments import VerbOptions
from ddflow.cli.plan import FORMATS, KCAT, parse_column_names, parse_format
from ddflow.cli.say import Tick, say
from ddflow.cli.words import format_for_shell
from ddflow.columns.wider import suggest_evolve_call
from ddflow.connectors.files import FileOptions, FilePosition, MultiFileReader
from ddflow.connectors.files.kinds import MESSAGES, Dialect, FileKind, find_kind_by_extension
from ddflow.connectors.files.places import STDIN
from ddflow.connectors.files.reader import suggest_type_declaration
from ddflow.errors import (
    BadMessage,
    DdflowError,
    DuplicateKeys,
    EmptyContents,
    ErrorText,
    Fix,
    NullKey,
    OutOfScope,
    SchemaMismatch,
    SpecError,
    TieRefused,
    UnreadableInput,
)
from ddflow.errors.base import replace_error_texts, set_error_row_names
from ddflow.storage.address import mask_address

BAD: Final = (
    UnreadableInput,
    SchemaMismatch,
    BadMessage,
    NullKey,
    TieRefused,
    DuplicateKeys,
    OutOfScope,
    EmptyContents,
)
"""Errors of a file that leave the engine unchanged."""
IN_MEMORY: Final = 64 << 20
"""The maximum number of bytes of a file's rows that are kept in memory. More rows go to a temporary file."""


class SkippedFiles(dict[str, str]):
    """The files that a run has skipped, each with the reason. If ``allowed`` is False, a bad file is an error.

    ``rows``: the number of rows read from files that were not skipped.
    """

    def __init__(self, allowed: bool) -> None:
        super().__init__()
        self.allowed, self.rows = allowed, 0

    def add_file(self, file: str, error: DdflowError) -> None:
        """Record a skipped file, and report it on stderr."""
        self[file] = format_for_shell(error.message)
        say(f"skipped {self[file] if self[file].startswith(file) else f'{file}: {self[file]}'}", err=True)

    @contextmanager
    def skip_file_on_error(self, file: str) -> Iterator[None]:
        """Skip a file whose rows are refused inside the block."""
        before = self.rows
        try:
            yield
        except BAD as error:
            if not self.allowed:
                raise
            self.rows = before
            self.add_file(file, error)

    def check_files_remain(self, files: Sequence[str]) -> None:
        """Raise `UnreadableInput` if no file is left."""
        if self and not set(files) - self.keys():
            raise UnreadableInput("the files", f"all {len(self)} are bad and were skipped", "fix at least one")


def build_file_options(ask: VerbOptions) -> FileOptions:
    """Build the options of the files of a command line. Raises `SpecError`."""
    nulls, dates, kind = tuple(ask.null or ()), tuple(ask.dates or ()), parse_file_kind(ask.format)
    return FileOptions(dialect=Dialect(ask.delimiter, nulls, ask.encoding, ask.decimal, dates, ask.thousands, kind))


def parse_file_kind(format: str | None) -> FileKind | None:
    """Parse ``--format``, which sets the kind of all files. Raises `SpecError`."""
    if format is None:
        return None
    try:
        return MESSAGES if parse_format(format) is not None else find_kind_by_extension(format)
    except SpecError as error:
        words = ", ".join([*FORMATS, f"{KCAT}..."])
        raise replace_error_texts(error, fix=error.fix + f"; or a message format: {words}") from None


def build_run_file_options(ask: VerbOptions, skipped: SkippedFiles) -> FileOptions:
    """Build the options of a run's files; the run can have a state. Raises `SpecError`."""

    def suggest_type(name: str, was: pa.DataType, to: pa.DataType) -> Fix:
        if ask.state is None:
            return suggest_type_declaration(name, was, to)
        # A state cannot change the types of its keys and orders, and cannot change a double to text.
        fixed = {*parse_column_names(ask.key), *parse_column_names(ask.order_by), ask.time, ask.seq}
        fix = suggest_evolve_call(name, was, to)
        return replace(fix, state=mask_address(ask.state), moves=fix.moves or name in fixed)

    return replace(
        build_file_options(ask),
        strict=ask.strict_columns,
        empty=ask.whole and ask.allow_empty,
        skip=skipped.add_file if skipped.allowed else None,
        retype=suggest_type,
    )


def warn_of_text_columns(doubts: Iterable[str]) -> None:
    """Report columns whose guessed type is text only because of a few values."""
    for each in doubts:
        say(format_for_shell(each), err=True)


def read_rows(given: MultiFileReader, file: str, tick: Tick = lambda rows, updates: None) -> Iterator[pa.RecordBatch]:
    """Yield the rows of one file in the columns of the source, and report each batch to ``tick``."""
    own = given.columns(file).names
    for batch, position in given.batches(after=FilePosition(file)):
        if batch.num_rows:
            tick(batch.num_rows, 0)
            yield batch.select(own)
        if position.finished:
            return


class FileBatches(NamedTuple):
    """A readable file and its batches. ``last``: no other file follows."""

    file: str
    batches: Iterator[pa.RecordBatch]
    last: bool


def read_files_ahead(given: MultiFileReader, skipped: SkippedFiles, tick: Tick) -> Iterator[FileBatches]:
    """Read each file to its end, then yield it.

    The error of a bad file is raised only after all earlier files were yielded. O(rows).
    """
    waiting: FileBatches | None = None
    try:
        for file in given.files:
            with skipped.skip_file_on_error(file):
                batches = read_rows(given, file, tick)
                batches = batches if file == STDIN else _spool_batches(given.columns(file), batches)
                if waiting is not None:
                    yield waiting
                waiting = FileBatches(file, batches, False)
    except BAD:
        if waiting is not None:
            yield waiting
        raise
    if waiting is not None:
        yield waiting._replace(last=True)


def _spool_batches(schema: pa.Schema, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Read all batches into a temporary file, and return them."""
    spool = SpooledTemporaryFile(IN_MEMORY, prefix="ddflow-")  # noqa: SIM115 - closed by who reads it
    with pa.ipc.new_stream(spool, schema) as out:
        for batch in batches:
            out.write_batch(batch)

    def read_spool() -> Iterator[pa.RecordBatch]:
        with spool:
            spool.seek(0)
            yield from pa.ipc.open_stream(spool)

    return read_spool()


@contextmanager
def add_error_locations(given: MultiFileReader, at: FilePosition) -> Iterator[None]:
    """Begin the messages of the engine's errors with the file and the place of the rows in it.

    >>> import tempfile
    >>> from pathlib import Path
    >>> from ddflow.connectors.files import open_files
    >>> from ddflow.errors import NullKey
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = (path := Path(folder) / "a.csv").write_text("id\\n7")
    ...     given = open_files([path])
    ...     [batch.to_pylist() for batch in read_rows(given, str(path))]
    ...     try:
    ...         with add_error_locations(given, FilePosition(str(path), 9)):
    ...             raise NullKey("rows for 'input'", "the key ['id'] is null in 1 rows, first [3]", "fix them")
    ...     except NullKey as error:
    ...         error.asked.removeprefix(folder)
    [[{'id': 7}]]
    "/a.csv, from row 9: rows for 'input'"
    """
    try:
        yield
    except DdflowError as error:
        if at.file in error.asked:
            raise
        set_error_row_names(error, partial(given.describe_row, at), at.file)
        raise replace_error_texts(error, asked=ErrorText(f"{given.describe_position(at)}: ", error.asked)) from None
