"""Text for stdout and stderr: tables of rows, messages of verbs, and progress on a terminal.

Guarantees: only this file writes to stdout and stderr. Text from data cannot act on the terminal. Without a terminal
there is no progress line, so logs stay clean.

>>> done = Done(["a.csv"], 4, 1, 6, 6, {"applied": 3, "noop": 1}, 0.5, "out.parquet")
>>> done.text()
'4 rows of a.csv in 1 epoch: 6 updates to out.parquet in 0.50 s, 8 rows/s; applied 3, noop 1'
"""

import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import asdict, dataclass, field
from operator import add
from time import perf_counter
from types import TracebackType
from typing import Any, Final, Self

import pyarrow as pa
import typer

from ddflow.errors import mask_secrets
from ddflow.storage.closing import Closing
from ddflow.terminal import console, counted, lines, printable

_HIGH: Final = re.compile(rb"\x7f|\xc2[\x80-\x9f]")
SHOWN: Final = 20
"""How many rows a table on a terminal has."""


@dataclass(frozen=True)
class Done:
    """The result of a run.  ``epochs``: None in hold-back mode.  ``written``: rows in the output; fewer than the
    updates with ``--net``, where they are the final counts.  ``epoch``: of the state after it.  ``pending``: events
    that wait there for their time.  ``skipped``: files that were left out, each with the reason."""

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
        files = self.inputs[0] if len(self.inputs) == 1 else counted(len(self.inputs), "file")
        mode = "by time" if self.epochs is None else f"in {counted(self.epochs, 'epoch')}"
        mode += f", now at epoch {self.epoch:,}" if self.epoch is not None else ""
        put = counted(self.updates, "update")
        put += f", {counted(self.written, 'count')}" if self.written != self.updates else ""
        where = f" to {self.output}" if self.output else ""
        rate = self.rows / max(self.seconds, 1e-3)
        verdicts = ", ".join(f"{name} {n:,}" for name, n in self.verdicts.items() if n) or "no events"
        verdicts += f", pending {self.pending:,}" if self.pending else ""
        verdicts += f"; skipped {counted(len(self.skipped), 'bad file')}" if self.skipped else ""
        took = f"{self.seconds:.2f} s, {rate:,.0f} rows/s"
        return f"{counted(self.rows, 'row')} of {files} {mode}: {put}{where} in {took}; {verdicts}"


class _Stdout:
    """JSON text on stdout, with the control characters escaped that JSON lets pass; the values stay the same."""

    def write(self, text: Any) -> None:
        """Write text."""
        if any(letter in bytes(text) for letter in (b"\x7f", b"\xc2")):
            text = _HIGH.sub(lambda found: b"\\u%04x" % ord(found[0].decode()), bytes(text))
        sys.stdout.buffer.write(text)


class Piped(Closing):
    """Rows as JSON lines on stdout."""

    def __init__(self) -> None:
        self.written = 0

    def write(self, table: pa.Table) -> None:
        """Write rows at once."""
        from ddflow.connectors.files.kinds import JSON, Kind
        from ddflow.connectors.files.writers import writer

        writer(_Stdout(), Kind(JSON), table.schema).write(table)
        sys.stdout.buffer.flush()
        self.written += table.num_rows

    def close(self) -> None:
        """Do nothing: rows went out at once."""


class Preview:
    """The first rows as a table on stdout, when all have been seen."""

    def __init__(self, schema: pa.Schema) -> None:
        self.written = 0
        self._first = schema.empty_table()

    def write(self, table: pa.Table) -> None:
        """Add rows; keep the first ones."""
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
            self._show()

    def _show(self) -> None:
        from rich.table import Table
        from rich.text import Text

        shown = Table(header_style="bold")
        for column in self._first.schema:
            number = (
                pa.types.is_integer(column.type)
                or pa.types.is_floating(column.type)
                or pa.types.is_decimal(column.type)
            )
            shown.add_column(Text(printable(column.name)), justify="right" if number else "left")
        null = Text("null", style="dim")
        for row in self._first.to_pylist():
            shown.add_row(*(null if value is None else Text(printable(str(value))) for value in row.values()))
        screen = console()
        screen.print(shown)
        if self.written > self._first.num_rows:
            more = self.written - self._first.num_rows
            screen.print(f"... and {more:,} more; -o FILE writes all, -o - prints them", highlight=False)


Tick = Callable[..., None]
"""Called with what was done since the last call: amounts, of which the first is that of the total."""


def progress(total: int | None, hidden: bool = False) -> AbstractContextManager[Tick]:
    """Show the rows read and the updates put out, while the block runs.  ``total``: of rows; None: unknown.

    >>> with progress(total=None, hidden=True) as tick:
    ...     tick(1000, 0)
    """
    return _show_bar(
        _beginning, total, lambda rate, rows, updates: f"{rows:,} rows, {rate:,} rows/s, {updates:,} updates", hidden
    )


def rows(amount: int) -> str:
    """Format a number of rows."""
    return f"{amount:,} rows"


def watching(
    doing: str, total: int | None = None, unit: Callable[[int], str] = rows, hidden: bool = False
) -> AbstractContextManager[Tick]:
    """Show how much was read, while the block runs.  ``unit``: how an amount is written."""
    return _show_bar(lambda: doing, total, lambda rate, read: f"{doing}: {unit(read)}, {unit(rate)}/s", hidden)


@contextmanager
def _show_bar(
    begin: Callable[[], str], total: int | None, text: Callable[..., str], hidden: bool = False
) -> Iterator[Tick]:
    """Show a bar while the block runs.  ``begin``: its first text.  ``text``: makes the next ones from the rate and the
    amounts so far."""
    if hidden or not sys.stderr.isatty():
        yield lambda *more: None
        return
    from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn

    # A name in it is no markup.
    columns = (SpinnerColumn(), BarColumn(), TextColumn("{task.description}", markup=False))
    done, began = [0, 0], perf_counter()
    with Progress(*columns, console=console(stderr=True), transient=True) as bar:
        task = bar.add_task(begin(), total=total)

        def tick(*more: int) -> None:
            done[:] = map(add, done[: len(more)], more)
            rate = int(done[0] / max(perf_counter() - began, 1e-3))
            bar.update(task, completed=done[0], description=text(rate, *done))

        yield tick


def _beginning() -> str:
    from ddflow.kernels.compile import cache_directory

    directory = cache_directory()
    cold = directory is None or not any(directory.glob("*.kernel"))
    return "compiling: the first run on a machine takes some ten seconds more" if cold else "reading"


def say(text: str = "", err: bool = False, drawn: bool = False) -> None:
    """Print lines; on stderr without secrets.

    ``drawn``: by `ddflow.terminal.console`, which made their control sequences.

    >>> say("a\\x1b[2Jb")
    a\\x1b[2Jb
    """
    text = mask_secrets(text) if err else text
    typer.echo(text if drawn else lines(text), err=err)
