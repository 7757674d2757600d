"""Write the rows of a verb to a file, a terminal or a pipe, and report the result of a run.

`open_row_output` chooses the output. `WrittenEpochs` tracks the epochs that were written, and `FullFileHint` detects
full files among upserts.

Guarantees: text from data cannot control the terminal. A run that stops halfway on a state reports the committed epochs
and how to continue.

>>> done = FileRunResult(["a.csv"], 4, 1, 6, 6, {"applied": 3, "noop": 1}, 0.5, "out.parquet")
>>> done.text()
'4 rows of a.csv in 1 epoch: 6 updates to out.parquet in 0.50 s, 8 rows/s; applied 3, noop 1'
"""

import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

import pyarrow as pa

from ddflow.cli.say import say
from ddflow.connectors.files import FileOutput, open_output
from ddflow.connectors.files.kinds import JSON, FileKind
from ddflow.connectors.files.writers import open_writer
from ddflow.engine.epoch_log import KEPT
from ddflow.engine.run.signals import delay_signals
from ddflow.errors import DdflowError, OutputExists, UnwritableOutput
from ddflow.errors.base import replace_error_texts
from ddflow.storage.closing import Closing
from ddflow.terminal import escape_text, format_count, make_console

_HIGH: Final = re.compile(rb"\x7f|\xc2[\x80-\x9f]")
SHOWN: Final = 20
"""Number of rows in a table on a terminal."""


KNOWN, NAMED, LEAST = 0.9, 0.5, 20
"""Limits of the test for full files.

A file counts as full if at least 90 % of its rows have known keys. The file must also have at least half of all known
keys, and at least 20 rows.
"""
STOPS = (DdflowError, KeyboardInterrupt, SystemExit)


@dataclass(frozen=True)
class FileRunResult:
    """The result of a run of ``diff``, ``count`` or ``replace``.

    ``epochs``: the number of epochs; None in hold-back mode. ``written``: the number of rows in the output. With
    ``--net`` the output has only the final counts, so it has fewer rows than there were updates. ``epoch``: the epoch
    of the state after the run. ``pending``: the number of events in the state whose time is not closed yet.
    ``skipped``: the reason for each skipped file.
    """

    inputs: Sequence[str]
    rows: int
    epochs: int | None
    updates: int
    written: int
    verdicts: Mapping[str, int]
    seconds: float
    output: str | None
    epoch: int | None = None
    pending: int = 0
    skipped: Mapping[str, str] = field(default_factory=dict)

    def as_json(self) -> dict[str, Any]:
        """Return the object that ``--json`` prints."""
        return asdict(self) | {"seconds": round(self.seconds, 3)}

    def text(self) -> str:
        """Describe the run on one line, for people."""
        files = self.inputs[0] if len(self.inputs) == 1 else format_count(len(self.inputs), "file")
        mode = "by time" if self.epochs is None else f"in {format_count(self.epochs, 'epoch')}"
        mode += f", now at epoch {self.epoch:,}" if self.epoch is not None else ""
        put = format_count(self.updates, "update")
        put += f", {format_count(self.written, 'count')}" if self.written != self.updates else ""
        where = f" to {self.output}" if self.output else ""
        rate = self.rows / max(self.seconds, 1e-3)
        verdicts = ", ".join(f"{name} {n:,}" for name, n in self.verdicts.items() if n) or "no events"
        verdicts += f", pending {self.pending:,}" if self.pending else ""
        verdicts += f"; skipped {format_count(len(self.skipped), 'bad file')}" if self.skipped else ""
        took = f"{self.seconds:.2f} s, {rate:,.0f} rows/s"
        return f"{format_count(self.rows, 'row')} of {files} {mode}: {put}{where} in {took}; {verdicts}"


class FullFileHint:
    """Detect files of upserts that look like full files, because each file has nearly all keys of the earlier files.

    ``looked``: pass False to turn the detection off.

    >>> looks = FullFileHint()
    >>> for rows, keys in ((100, 100), (101, 103), (99, 104)):
    ...     looks.add_file(rows, keys)
    >>> looks.text("write --full").partition(": ")[0]
    'each file has most keys of the earlier files, but 5 keys are not in the last file'
    >>> looks.add_file(30, 130)
    >>> looks.text("write --full")
    """

    def __init__(self, looked: bool = True) -> None:
        self.files, self.rows, self.keys, self.alike = 0, 0, 0, looked

    def add_file(self, rows: int, keys: int) -> None:
        """Add a file.

        ``rows``: the number of rows in the file. ``keys``: the number of keys in the collection after the file.
        """
        known = rows - (keys - self.keys)
        if rows < LEAST or (self.files and (known < KNOWN * rows or rows < NAMED * self.keys)):
            self.alike = False
        self.files, self.rows, self.keys = self.files + 1, rows, keys

    def text(self, remedy: str) -> str | None:
        """Return a hint for the end of the run, or None if the files do not look like full files."""
        gone = self.keys - self.rows
        if not self.alike or self.files < 2 or gone <= 0:
            return None
        left = f"{gone:,} keys are" if gone > 1 else "1 key is"
        found = f"each file has most keys of the earlier files, but {left} not in the last file"
        these = "these keys are" if gone > 1 else "this key is"
        return f"{found}: if each file holds all rows, so that {these} deleted, {remedy}"


class WrittenEpochs:
    """The epochs of a run whose rows were written.

    ``before``: the state's epoch when the run began. ``epoch``: the last epoch whose rows were written. ``rest``: the
    files after this epoch. ``kept``: if the run stopped, the files that hold the written rows.

    >>> from ddflow.errors import NullKey
    >>> class Half:
    ...     epoch = 3
    >>> with WrittenEpochs(3).explain_stop(Half):
    ...     Half.epoch = 5
    ...     raise NullKey("rows for 'input'", "the key is null", "fix them")
    Traceback (most recent call last):
        ...
    ddflow.errors.NullKey: rows for 'input': the key is null; fix them; epochs 4 to 5 are committed: ...
    """

    def __init__(self, before: int) -> None:
        self.before = self.epoch = before
        self.rest: Sequence[str] = ()
        self.kept: list[str] = []
        self.committed: tuple[int, Sequence[str]] = (before, ())
        """The last committed epoch, and the files that follow it."""
        self.writing = False

    @contextmanager
    def write_epoch(self) -> Iterator[None]:
        """Delay signals while the block writes the rows of an epoch. Then record the epoch as written."""
        with delay_signals():
            self.writing = True
            yield
            self.writing = False
            self.epoch, self.rest = self.committed

    @contextmanager
    def keep_partial_outputs(self, outputs: Iterable[Any]) -> Iterator[None]:
        """If a run stops between two epochs, complete the output files under names other than the requested names."""
        try:
            yield
        except STOPS:
            for each in outputs if self.epoch > self.before and not self.writing else ():
                if isinstance(each, FileOutput) and each.written:
                    with suppress(OutputExists, UnwritableOutput):
                        self.kept.append(str(each.save_partial_file(f"epochs-{self.before + 1}-{self.epoch}")))
            raise

    @contextmanager
    def explain_stop(self, engine: Any) -> Iterator[None]:
        """Report the committed epochs if the run is refused or stopped."""
        try:
            yield
        except STOPS as error:
            if engine.epoch == self.before:
                raise
            more = self._describe_next_run(engine.epoch)
            if isinstance(error, KeyboardInterrupt):
                raise KeyboardInterrupt(more) from None
            if isinstance(error, SystemExit):  # SIGTERM has no message
                say(f"ddflow: terminated; {more}", err=True)
                raise
            raise replace_error_texts(error, fix=error.fix + f"; {more}") from None

    def _describe_next_run(self, epoch: int) -> str:
        """Describe how to continue from the epoch of the state."""
        first = self.before + 1
        done = f"epochs {first} to {epoch} are committed" if epoch > first else f"epoch {first} is committed"
        if self.kept and self.rest and not self.writing:
            of = f"epochs {first} to {self.epoch}" if self.epoch > first else f"epoch {first}"
            there = f"the rows of {of} are in {', '.join(self.kept)}"
            more = f" and {format_count(len(self.rest) - 1, 'more file')}" if len(self.rest) > 1 else ""
            return f"{done}, {there}: continue with {self.rest[0]}{more}, --epoch {self.epoch + 1}, into another file"
        again = max(first, epoch - KEPT + 1)
        gone = "; rows of older epochs are in the state, but cannot be written again" if again > first else ""
        files = "the same files" if again == first else f"the files from the {again - first + 1:,}th on"
        return f"{done}: to write their rows again and continue, pass {files} with --epoch {again}{gone}"


class _JsonStdout:
    """A writer of JSON text to stdout. The writer escapes all control characters, even those that JSON allows."""

    def write(self, text: Any) -> None:
        """Write text."""
        if any(letter in bytes(text) for letter in (b"\x7f", b"\xc2")):
            text = _HIGH.sub(lambda found: b"\\u%04x" % ord(found[0].decode()), bytes(text))
        sys.stdout.buffer.write(text)


class JsonLines(Closing):
    """An output that writes rows as JSON lines to stdout."""

    def __init__(self) -> None:
        self.written = 0

    def write(self, table: pa.Table) -> None:
        """Write rows immediately."""
        open_writer(_JsonStdout(), FileKind(JSON), table.schema).write(table)
        sys.stdout.buffer.flush()
        self.written += table.num_rows

    def close(self) -> None:
        """Do nothing, because rows were written immediately."""


class TablePreview:
    """An output for a terminal. After the last row is written, it shows the first rows as a table on stdout."""

    def __init__(self, schema: pa.Schema) -> None:
        self.written = 0
        self._first = schema.empty_table()

    def write(self, table: pa.Table) -> None:
        """Count rows, and keep the first `SHOWN` rows of the output."""
        missing = SHOWN - self._first.num_rows
        if missing > 0 and table.num_rows:
            self._first = pa.concat_tables([self._first, table.slice(0, missing)])
        self.written += table.num_rows

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self._show_rows()

    def _show_rows(self) -> None:
        from rich.table import Table
        from rich.text import Text

        shown = Table(header_style="bold")
        for column in self._first.schema:
            number = (
                pa.types.is_integer(column.type)
                or pa.types.is_floating(column.type)
                or pa.types.is_decimal(column.type)
            )
            shown.add_column(Text(escape_text(column.name)), justify="right" if number else "left")
        null = Text("null", style="dim")
        for row in self._first.to_pylist():
            shown.add_row(*(null if value is None else Text(escape_text(str(value))) for value in row.values()))
        screen = make_console()
        screen.print(shown)
        if self.written > self._first.num_rows:
            more = self.written - self._first.num_rows
            screen.print(f"... and {more:,} more rows; -o FILE writes all rows, -o - prints them", highlight=False)


RowOutput = FileOutput | JsonLines | TablePreview


def open_row_output(output: str | None, schema: pa.Schema, overwrite: bool) -> RowOutput:
    """Open the output of rows.

    The output is a file, JSON lines on stdout, or by default a table if stdout is a terminal.

    Raises `OutputExists`, `UnwritableOutput`.
    """
    if output is None and sys.stdout.isatty():
        return TablePreview(schema)
    return JsonLines() if output in (None, "-") else open_output(Path(str(output)), schema, overwrite)
