"""Text of a verb for stdout and stderr, and progress on a terminal.

Guarantees: no other file writes text to stdout and stderr. Progress goes to stderr and is wiped away at the end;
without a terminal there is none, so output, messages and logs are the same with and without it.

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
"""Called with what was done since the last call: amounts, of which the first is that of the total."""


def say(text: str = "", err: bool = False, drawn: bool = False) -> None:
    """Print lines; on stderr without secrets.

    ``drawn``: by `ddflow.terminal.make_console`, which made their control sequences.
    """
    text = mask_secrets(text) if err else text
    typer.echo(text if drawn else escape_lines(text), err=err)


def show_progress(total: int | None, hidden: bool = False) -> AbstractContextManager[Tick]:
    """Show the rows read and the updates put out, while the block runs.  ``total``: of rows; None: unknown."""
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
    return "compiling: the first run on a machine takes some ten seconds more" if cold else "reading"
