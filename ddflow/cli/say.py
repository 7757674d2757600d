"""Print the text of verbs to stdout and stderr, and show progress on a terminal.

Guarantees: no other file writes text to stdout or stderr. Control characters in text are escaped. Progress goes to
stderr and is erased at the end. Without a terminal no progress is shown, so output, messages and logs are the same.

>>> say("a\\x1b[2Jb")
a\\x1b[2Jb
>>> with show_progress(total=None, hidden=True) as tick:
...     tick(1000, 0)
"""

import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from operator import add
from time import perf_counter

import typer

from ddflow.errors import mask_secrets
from ddflow.terminal import escape_lines, make_console

Tick = Callable[..., None]
"""A function that reports progress: each call passes the amounts since the previous call.

The progress bar adds up the first amount of each call, and shows the sum as a part of the total.
"""


def say(text: str = "", err: bool = False, drawn: bool = False) -> None:
    """Print lines to stdout, or with ``err`` to stderr. On stderr, secrets are masked.

    ``drawn``: True if `ddflow.terminal.make_console` made the text, so that its control sequences stay.
    """
    text = mask_secrets(text) if err else text
    typer.echo(text if drawn else escape_lines(text), err=err)


def show_progress(total: int | None, hidden: bool = False) -> AbstractContextManager[Tick]:
    """Show the rows read and the updates written while the block runs.

    ``total`` is the number of all rows, or None if it is unknown.
    """
    return _show_bar(
        _choose_initial_text,
        total,
        lambda rate, rows, updates: f"{rows:,} rows, {rate:,} rows/s, {updates:,} updates",
        hidden,
    )


def format_rows(amount: int) -> str:
    """Format a number of rows."""
    return f"{amount:,} rows"


def show_amount_progress(
    doing: str, total: int | None = None, unit: Callable[[int], str] = format_rows, hidden: bool = False
) -> AbstractContextManager[Tick]:
    """While the block runs, show the amount that was read so far. ``unit`` is a function that formats an amount."""
    return _show_bar(lambda: doing, total, lambda rate, read: f"{doing}: {unit(read)}, {unit(rate)}/s", hidden)


@contextmanager
def _show_bar(
    begin: Callable[[], str], total: int | None, text: Callable[..., str], hidden: bool = False
) -> Iterator[Tick]:
    """Show a progress bar while the block runs.

    ``begin``: a function that returns the first text. ``text``: a function that returns each later text from the rate
    and the amounts so far.
    """
    if hidden or not sys.stderr.isatty():
        yield lambda *more: None
        return
    from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn

    # A name in the text could look like markup, but must be printed unchanged.
    columns = (SpinnerColumn(), BarColumn(), TextColumn("{task.description}", markup=False))
    done, began = [0, 0], perf_counter()
    with Progress(*columns, console=make_console(stderr=True), transient=True) as bar:
        task = bar.add_task(begin(), total=total)

        def tick(*more: int) -> None:
            done[:] = map(add, done[: len(more)], more)
            rate = int(done[0] / max(perf_counter() - began, 1e-3))
            bar.update(task, completed=done[0], description=text(rate, *done))

        yield tick


def _choose_initial_text() -> str:
    from ddflow.kernels.compile import cache_directory

    directory = cache_directory()
    cold = directory is None or not any(directory.glob("*.kernel"))
    return "compiling: the first run on a machine takes about ten seconds more" if cold else "reading"
