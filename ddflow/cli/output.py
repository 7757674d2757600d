"""The output of a verb: the result of a run, tables of rows, and rows on a pipe.

Guarantees: text from data cannot act on the terminal.

>>> done = Done(["a.csv"], 4, 1, 6, 6, {"applied": 3, "noop": 1}, 0.5, "out.parquet")
>>> done.text()
'4 rows of a.csv in 1 epoch: 6 updates to out.parquet in 0.50 s, 8 rows/s; applied 3, noop 1'
"""

import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from types import TracebackType
from typing import Any, Final, Self

import pyarrow as pa

from ddflow.storage.closing import Closing
from ddflow.terminal import console, counted, printable

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
