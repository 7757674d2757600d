"""Show a run of the demo on the terminal: changes by extension, checks, and times.

All figures are counted from the updates. So "added" + "edited" is the number of assertions, and "edited" + "removed" is
the number of retractions. An edit is two updates of one key at one time. Control characters in paths are escaped. This
file checks nothing, and does not affect the exit code.

>>> import pyarrow as pa
>>> activity = Activity()
>>> activity.add(pa.table({"extension": [".c", ".c", ".h"], "path": ["a.c", "a.c", "b.h"], "_time": [2, 2, 2],
...                        "_diff": [-1, 1, 1]}))
>>> activity.groups[".c"], activity.groups[".h"]
(Moves(added=0, edited=1, removed=0), Moves(added=1, edited=0, removed=0))
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from time import perf_counter
from typing import Final

import pyarrow as pa
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text
from tally import EXAMPLES, Checks

from ddflow import terminal

SHOWN: Final = 15
"""Number of extensions that get their own line."""


@dataclass
class Moves:
    """The numbers of added, edited and removed files of an extension."""

    added: int = 0
    edited: int = 0
    removed: int = 0

    def add(self, other: Moves) -> None:
        """Add the numbers of ``other`` to these numbers."""
        self.added += other.added
        self.edited += other.edited
        self.removed += other.removed

    @property
    def assertions(self) -> int:
        """The number of updates with a positive diff."""
        return self.added + self.edited

    @property
    def retractions(self) -> int:
        """The number of updates with a negative diff."""
        return self.edited + self.removed


class Activity:
    """The `Moves` of each extension, summed slice by slice. O(extensions) memory."""

    def __init__(self) -> None:
        self.groups: dict[str, Moves] = {}

    def add(self, updates: pa.Table) -> None:
        """Count the added, edited and removed files in the updates of complete times. O(n)."""
        each = updates.group_by(["extension", "path", "_time"]).aggregate([("_diff", "min"), ("_diff", "max")])
        kinds = each.group_by(["extension", "_diff_min", "_diff_max"]).aggregate([("path", "count")])
        for row in kinds.to_pylist():
            kind = "added" if row["_diff_min"] > 0 else "removed" if row["_diff_max"] < 0 else "edited"
            self.groups.setdefault(row["extension"], Moves()).add(Moves(**{kind: row["path_count"]}))


class Clock(dict[str, float]):
    """The seconds of each part of the run, in the order of their first use.

    >>> clock = Clock()
    >>> with clock("reading"):
    ...     pass
    >>> list(clock), clock["reading"] >= 0
    (['reading'], True)
    """

    @contextmanager
    def __call__(self, part: str) -> Iterator[None]:
        """Add the duration of the block to ``part``."""
        begun = perf_counter()
        try:
            yield
        finally:
            self[part] = self.get(part, 0.0) + perf_counter() - begun


def printable(name: object, width: int = 40) -> Text:
    r"""Make a name from a repository safe for a terminal.

    Escape control characters, ignore markup, and cut characters from the middle of a long name.

    >>> printable("\x1b[1m[red]").plain, printable("x" * 99).plain
    ('\\x1b[1m[red]', 'xxxxxxxxxxxxxxxxxx...xxxxxxxxxxxxxxxxxx')
    """
    text = terminal.escape_text(str(name))
    half = (width - 3) // 2
    return Text(text if len(text) <= width else f"{text[:half]}...{text[-half:]}")


def _table(title: str) -> Table:
    return Table(title=title, title_justify="left", box=SIMPLE_HEAD, pad_edge=False, collapse_padding=True)


def show_activity(console: Console, activity: Activity, now: Mapping[str, int]) -> None:
    """Print the table of extensions, with the number of files now and the changes.

    The extension with the most changes comes first.
    """
    table = _table("files by extension, and how they changed")
    table.add_column("extension", no_wrap=True)
    names = ("now", "added", "edited", "removed", "assertions", "retractions", "updates")
    for name in names:
        table.add_column(name, justify="right")

    def row(label: object, count: int, moves: Moves, style: str | None = None) -> None:
        numbers = (count, moves.added, moves.edited, moves.removed, moves.assertions, moves.retractions)
        updates = moves.assertions + moves.retractions
        table.add_row(printable(label), *(f"{number:,}" for number in (*numbers, updates)), style=style)

    groups = activity.groups
    order = sorted(groups, key=lambda name: (-groups[name].assertions - groups[name].retractions, name))
    for name in order[:SHOWN]:
        row(name, now.get(name, 0), groups[name])
    rest, total = Moves(), Moves()
    for place, name in enumerate(order):
        total.add(groups[name])
        if place >= SHOWN:
            rest.add(groups[name])
    if len(order) > SHOWN:
        row(f"{len(order) - SHOWN:,} others", sum(now.get(name, 0) for name in order[SHOWN:]), rest, "dim")
    table.add_section()
    row("all", sum(now.values()), total, "bold")
    console.print(table)


def show_checks(console: Console, checks: Checks) -> None:
    """Print the table of checks, one line for each kind, and then the first rows that failed."""
    table = _table("checks")
    for name, side in (("what", "left"), ("asked", "right"), ("held", "right"), ("", "left")):
        table.add_column(name, justify=side)  # type: ignore[arg-type]
    for what, tally in checks.items():
        good = tally.held == tally.asked
        mark = Text("ok", "green") if good else Text(f"{tally.asked - tally.held:,} failed", "bold red")
        table.add_row(Text(what), f"{tally.asked:,}", f"{tally.held:,}", mark)
    console.print(table)
    for what, tally in checks.items():
        for failure in tally.failures[:EXAMPLES]:
            console.print(Text.assemble((f"failed: {what}: ", "red"), failure), soft_wrap=True)


def show_clock(console: Console, clock: Clock, events: int, updates: int) -> None:
    """Print the table of parts and their seconds.

    Then print how many upserts and updates the engine processed per second.
    """
    table = _table("time")
    table.add_column("part")
    table.add_column("seconds", justify="right")
    for part, seconds in clock.items():
        table.add_row(part, f"{seconds:,.2f}")
    console.print(table)
    engine = clock.get(ENGINE, 0.0)
    if engine:
        rates = f"{events / engine:,.0f} upserts/s, {updates / engine:,.0f} updates/s"
        console.print(f"{events:,} upserts gave {updates:,} updates; the plan alone, in process, processes {rates}")


ENGINE: Final = "the plan, in process"
"""The name of the part that measures only the engine."""
