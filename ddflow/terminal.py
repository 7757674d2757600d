r"""Escape control characters in terminal output, and format tables, rows and numbers for people.

Values, names of files and outputs, and messages of other programs may contain control characters. The functions here
replace a control character by printable text such as ``\x1b``. Therefore a text cannot move the cursor, hide lines, or
set a window's title. `make_console` escapes only texts, because Rich itself writes control sequences for styles and
progress bars.

>>> escape_text("a\x1b[2Jb\nc"), escape_lines("a\x9b2J\nb")
('a\\x1b[2Jb\\nc', 'a\\x9b2J\nb')
>>> import io
>>> terminal = make_console(file=io.StringIO(), force_terminal=True, color_system=None)
>>> terminal.print("\x1b]0;title")
>>> terminal.file.getvalue()
'\\x1b]0;title\n'
"""

from __future__ import annotations

import logging
import shutil
import sys
import unicodedata
import warnings
from collections.abc import Callable, Iterator, Mapping
from html import escape
from time import monotonic
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console
    from rich.segment import Segment


def escape_text(text: str) -> str:
    """Escape the control characters of a text, including line ends."""
    return text if text.isprintable() else "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)


def escape_lines(text: str) -> str:
    """Escape the control characters of a text, but not line ends."""
    return "\n".join(map(escape_text, text.split("\n")))


def format_count(number: int, what: str) -> str:
    """Format a number with a noun, as in ``1 row`` and ``2,000 rows``."""
    return f"{number:,} {what}{'' if number == 1 else 's'}"


def format_size(size: int) -> str:
    """Format a number of bytes for a person: ``177.6 KB``."""
    value = float(size)
    for unit in ("B", "KB", "MB", "GB"):
        if value < 1000:
            return f"{value:,.0f} {unit}" if unit == "B" else f"{value:,.1f} {unit}"
        value /= 1000
    return f"{value:,.1f} TB"


def make_console(**settings: Any) -> Console:
    """Make a Rich console that escapes control characters in all its output."""
    from rich.console import Console
    from rich.segment import Segment

    class EscapingConsole(Console):
        """A console that escapes each text after Rich has computed the layout."""

        def render(self, renderable: Any, options: Any = None) -> Iterator[Segment]:
            """Yield the segments of text that show an object."""
            for text, style, control in super().render(renderable, options):
                yield Segment(text if control else escape_lines(text), style, control)

    return EscapingConsole(**settings)


def escape_logs(hide: Callable[[str], str] = str) -> None:
    """Escape control characters in warnings, and in logs that have no other formatter.

    Only programs should call this function, not libraries.

    ``hide``: a function that removes secrets from a text, because other libraries may log secrets.
    """

    class EscapingFormatter(logging.Formatter):
        def format(self, record: logging.LogRecord) -> str:
            return escape_lines(hide(super().format(record)))

    if logging.lastResort is not None:
        logging.lastResort.setFormatter(EscapingFormatter())
    plain = warnings.formatwarning
    warnings.formatwarning = lambda *given, **named: escape_lines(hide(plain(*given, **named)))


def format_row(row: Mapping[str, Any] | None) -> str:
    """Format a row for a person: ``(id=7, city='Bern', at=2024-01-01 08:00:00)``."""
    if row is None:
        return "no row"
    shown = {
        name: repr(v) if isinstance(v, str | bytes) else "null" if v is None else str(v) for name, v in row.items()
    }
    return f"({', '.join(f'{name}={text}' for name, text in shown.items())})"


def text_table(first: str, table: list[list[str]], rest: list[str]) -> str:
    """Format a table for a terminal, with lines of text around it. All columns except the first are numbers.

    O(cells of the table). Pure.

    >>> print(text_table("two kinds", [["kind", "rows"], ["a", "7"], ["日本", "1,200"]], ["1,207 in all"]))
    two kinds
    kind   rows
    a         7
    日本  1,200
    1,207 in all
    """
    widths = [max(map(_count_cells, column)) for column in zip(*table, strict=True)]
    lines = []
    for name, *figures in table:
        numbers = (figure.rjust(width) for figure, width in zip(figures, widths[1:], strict=True))
        lines.append("  ".join([name + " " * (widths[0] - _count_cells(name)), *numbers]))
    return "\n".join([first, *lines, *rest])


def html_table(first: str, table: list[list[str]], rest: list[str]) -> str:
    """Render a table for a notebook, with lines of text before and after the table. O(cells of the table). Pure."""
    # Only the first column needs a style, because notebooks align cells to the right by default.
    left = ' style="text-align: left"'

    def row(tag: str, texts: list[str]) -> str:
        each = "".join(f"<{tag}{left if i == 0 else ''}>{escape(text)}</{tag}>" for i, text in enumerate(texts))
        return f"<tr>{each}</tr>"

    head, *body = table
    rows = "".join(row("td", each) for each in body)
    top, *below = (f"<div>{escape(line)}</div>" for line in (first, *rest))
    return f"{top}<table><thead>{row('th', head)}</thead><tbody>{rows}</tbody></table>{''.join(below)}"


def html_text(text: str) -> str:
    """Render a text of several lines for a notebook and keep its line ends. O(text). Pure."""
    return f"<pre>{escape(escape_lines(text))}</pre>"


def _count_cells(text: str) -> int:
    """Count the terminal cells of a text: two for a wide character, none for a combining accent."""
    return sum(0 if unicodedata.combining(c) else 1 + (unicodedata.east_asian_width(c) in "WF") for c in text)


EVERY = 0.2
"""The minimal time between two updates of a `StatusLine`, in seconds."""


class StatusLine:
    """A status line on the terminal (stderr). The line is rewritten at most every `EVERY` seconds.

    ``shows``: whether to show the line. If stderr is not a terminal, the line is never shown.
    """

    def __init__(self, shows: bool) -> None:
        self.shows, self._next = shows and sys.stderr.isatty(), 0.0

    @property
    def is_due(self) -> bool:
        """Whether `EVERY` seconds have passed since the last update."""
        return self.shows and monotonic() >= self._next

    def show(self, text: str) -> None:
        """Show a text instead of the last text. The text is cut to the width of the terminal."""
        self._next = monotonic() + EVERY
        width = shutil.get_terminal_size().columns - 1
        sys.stderr.write(f"\r\x1b[K{escape_text(text)[:width]}")
        sys.stderr.flush()

    def close(self) -> None:
        """Write a line end if a text was shown."""
        if self._next:
            sys.stderr.write("\n")
