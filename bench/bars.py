"""The bars: what ddflow must reach on each line, what it reached, its peer in the same run, and whether that is enough.

Invariant: a bar is computed from a stored result and nothing else, and a ratio from two figures of one run. Where a
bar was set as a rate beside a peer's rate (8 M/s where numpy does 1.55), the ratio decides (5.2 times numpy), so that
it holds on any machine; the rate stands beside it. Limits: a figure published for another machine is shown and never
required. The bars of a line stand with the line; here is what they share.

>>> bar = at_least("W1", 9.0, "numpy", 1.5, 5.0)
>>> bar.ours, bar.peer, bar.ratio, bar.met
('9.0 M/s', 'numpy 1.5', 6.0, True)
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from rich.console import Console
from rich.table import Table

HEADINGS = ("line", "ours", "wanted", "peer in the same run", "ratio", "needed", "met")


class Bar(NamedTuple):
    """One bar: figures as text, ``ratio`` and ``needed`` as numbers where there are any."""

    line: str
    ours: str
    wanted: str
    peer: str
    ratio: float | None
    needed: float | None
    met: bool


def at_least(
    line: str, ours: float, peer: str, theirs: float, times: float, wanted: str = "", digits: tuple[int, int] = (1, 1)
) -> Bar:
    """Our rate must be ``times`` that of the peer; ``digits``: of the two rates, as shown."""
    ratio = ours / theirs
    said = f"{ours:.{digits[0]}f} M/s", wanted, f"{peer} {theirs:.{digits[1]}f}"
    return Bar(line, *said, ratio, times, ratio >= times)


def within(line: str, said: str, wanted: str, met: bool, peer: str = "") -> Bar:
    """A figure must keep a limit; no ratio decides."""
    return Bar(line, said, wanted, peer, None, None, met)


def cells(bar: Bar) -> list[str]:
    """A bar as text, for a row of a table."""
    ratio, needed = ("" if number is None else f"{number:.2f}" for number in (bar.ratio, bar.needed))
    return [bar.line, bar.ours, bar.wanted, bar.peer, ratio, needed, "yes" if bar.met else "NO"]


def show(console: Console, bars: Sequence[Bar]) -> None:
    """Print the bars as a table, if there are any."""
    if not bars:
        return
    table = Table(title="What must be reached (where there is a ratio, it decides)", title_justify="left")
    for heading in HEADINGS:
        table.add_column(heading, justify="right" if heading in ("ratio", "needed") else "left")
    for bar in bars:
        table.add_row(*cells(bar), style=None if bar.met else "bold red")
    console.print(table)


def markdown(bars: Sequence[Bar]) -> str:
    """The bars as a Markdown table."""
    lines = [HEADINGS, ["---"] * len(HEADINGS), *map(cells, bars)]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines) + "\n"
