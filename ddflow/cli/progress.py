"""Progress on a terminal: rows, rows a second, updates; nothing at all where stderr is no terminal.

Invariant: what is shown has been read and put out already; it goes to stderr and is wiped away at the end, so that
output and messages are the same with and without it.

>>> with progress(total=None, hidden=True) as tick:
...     tick(1000, 0)
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import perf_counter

from ddflow.terminal import console

Tick = Callable[[int, int], None]
"""Called with the rows read and the updates put out, since the last call."""


@contextmanager
def progress(total: int | None, hidden: bool = False) -> Iterator[Tick]:
    """Show progress towards ``total`` rows (None: unknown) while the block runs."""
    if hidden or not sys.stderr.isatty():
        yield lambda rows, updates: None
        return
    from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn

    columns = (SpinnerColumn(), BarColumn(), TextColumn("{task.description}"))
    seen, began = [0, 0], perf_counter()
    with Progress(*columns, console=console(stderr=True), transient=True) as bar:
        task = bar.add_task(_beginning(), total=total)

        def tick(rows: int, updates: int) -> None:
            seen[0], seen[1] = seen[0] + rows, seen[1] + updates
            rate = seen[0] / max(perf_counter() - began, 1e-3)
            said = f"{seen[0]:,} rows, {rate:,.0f} rows/s, {seen[1]:,} updates"
            bar.update(task, completed=seen[0], description=said)

        yield tick


def _beginning() -> str:
    from ddflow.kernels.compile import cache_directory

    directory = cache_directory()
    cold = directory is None or not any(directory.glob("*.kernel"))
    return "compiling: the first run on a machine takes some ten seconds more" if cold else "reading"
