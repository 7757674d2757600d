"""Show a JSON result as tables on the terminal, as Markdown, and as a picture.

The JSON has every sample and the description of the machine. Tables, bars and pictures are computed only from the JSON,
so you can show stored results again. `results/<bench>.json` is the current result; git keeps older ones. A bar is a
target. Some targets were set as two rates, one of ddflow and one of a peer. For these, the bench tests the ratio of the
rates, which is valid on any machine. Figures published for another machine are never required.

>>> print(table("keys {keys:,} | MB {bytes!M:.1f} | s {s!m}", [{"keys": 10_000, "bytes": 2_500_000, "s": [1, 2, 9]}]))
| keys | MB | s |
| --- | ---: | ---: |
| 10,000 | 2.5 | 2 |
<BLANKLINE>
"""

from __future__ import annotations

import json
import string
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any, NamedTuple

import machine
from rich.console import Console
from rich.table import Table

if TYPE_CHECKING:
    from runner import Bench

Row = dict[str, Any]
RESULTS = machine.ROOT / "bench" / "results"
OURS, THEIRS, ALSO = "#c44e52", "#8c9bb0", "#4c72b0"  # colours in pictures


BARS = "line {line} | ours {ours} | wanted {wanted} | peer in the same run {peer} | ratio {ratio:.2f} | "
BARS += "needed {needed:.2f} | met {met!y}"


class Bar(NamedTuple):
    """A bar.

    The figures of a bar are text. ``ratio`` and ``needed`` are numbers if a ratio decides whether the bar is met.
    """

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
    """Require that our rate is ``times`` the peer's rate in the same run.

    The two rates are printed with ``digits`` decimals.
    """
    ratio = ours / theirs
    said = f"{ours:.{digits[0]}f} M/s", wanted, f"{peer} {theirs:.{digits[1]}f}"
    return Bar(line, *said, ratio, times, ratio >= times)


def within(line: str, said: str, wanted: str, met: bool, peer: str = "") -> Bar:
    """Require that a figure is within a fixed limit, independent of any peer."""
    return Bar(line, said, wanted, peer, None, None, met)


class _Cells(string.Formatter):
    """A formatter of the fields of a row. If a field is None or missing, the result is empty text."""

    def get_value(self, key: Any, args: Any, kwargs: Any) -> Any:
        return kwargs.get(key)

    def format_field(self, value: Any, spec: str) -> str:
        return "" if value is None else str(format(value, spec))

    def convert_field(self, value: Any, conversion: str | None) -> Any:
        """Convert by ``!m`` median, ``!l`` least, ``!g`` greatest of the rounds, ``!M`` bytes as MB, ``!y`` yes/no."""
        ways = {"m": median, "l": min, "g": max, "M": lambda size: size / 1e6, "y": lambda yes: "yes" if yes else "no"}
        return value if conversion is None or value is None else ways[conversion](value)


def read(path: Path) -> list[Row]:
    """Read the results in a file, which contains either one bench or all benches of a suite."""
    found = json.loads(path.read_text())
    return found if isinstance(found, list) else [found]


def columns(spec: str) -> list[tuple[str, str]]:
    """Split ``heading {field} | ...`` into headings and formats."""
    split = (column.strip().partition("{") for column in spec.split("|"))
    return [(heading.strip(), brace + form) for heading, brace, form in split]


def cells(spec: str, row: Row) -> list[str]:
    """Format a row as text cells."""
    return [_Cells().vformat(form, (), row) for _, form in columns(spec)]


def table(spec: str, rows: Iterable[Row]) -> str:
    """Format a Markdown table. The first column is left-aligned, and all further columns are right-aligned."""
    lines = [[heading for heading, _ in columns(spec)], ["---", *["---:"] * spec.count("|")]]
    lines += [cells(spec, row) for row in rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines) + "\n"


def grouped(rows: Iterable[Row], *names: str) -> Iterator[tuple[tuple[Any, ...], list[Row]]]:
    """Group rows by the values of some fields, in order of first occurrence."""
    groups: dict[tuple[Any, ...], list[Row]] = {}
    for row in rows:
        groups.setdefault(tuple(row[name] for name in names), []).append(row)
    yield from groups.items()


def print_table(console: Console, title: str, spec: str, rows: Iterable[Row]) -> None:
    """Print a table of these headings and rows on a terminal."""
    shown = Table(title=title, title_justify="left")
    for place, (heading, _) in enumerate(columns(spec)):
        shown.add_column(heading, justify="right" if place else "left", no_wrap=True)
    for row in rows:
        style = "bold red" if row.get("met") is False else "bold" if row.get("contender") == "ddflow" else None
        shown.add_row(*cells(spec, row), style=style)
    console.print(shown)


def print_bars(console: Console, bars: Sequence[Bar]) -> None:
    """Print the bars, if any."""
    if bars:
        title = "What must be reached (where there is a ratio, it decides)"
        print_table(console, title, BARS, [bar._asdict() for bar in bars])


def show(console: Console, bench: Bench, result: Row) -> None:
    """Print a result: the machine, the tables, the notes and the bars."""
    console.print(machine.line(result["machine"]), style="dim")
    for title, rows in bench.tables(result):
        print_table(console, title, bench.columns, rows)
    for note in bench.notes(result):
        console.print(note, highlight=False, markup=False, soft_wrap=True)
    print_bars(console, list(bench.bars(result)))


def markdown(bench: Bench, result: Row, head: bool = True) -> str:
    """Format a result as Markdown; include the machine only with ``head``."""
    parts = [f"# {bench.name.capitalize()} bench", *([machine.line(result["machine"])] if head else [])]
    for title, rows in bench.tables(result):
        parts += [f"## {title}", table(bench.columns, rows).rstrip()]
    parts += bench.notes(result)
    if reached := [bar._asdict() for bar in bench.bars(result)]:
        parts += ["## Bars", table(BARS, reached).rstrip()]
    return "\n\n".join(parts) + "\n"


def keep(folder: Path, bench: Bench, result: Row, suffix: str = "") -> Path:
    """Write a result as JSON and Markdown, and draw its picture; return the path of the JSON."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{bench.name}{suffix}.json"
    path.write_text(json.dumps(result, indent=1) + "\n")
    path.with_suffix(".md").write_text(markdown(bench, result))
    panels = bench.panels(result)
    if panels:
        draw(panels, path.with_suffix(".png"))
    return path


def draw(panels: Sequence[Callable[[Any], None]], path: Path) -> None:
    """Save panels below each other in one picture. Each function draws its panel on the axes that it gets."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(len(panels), figsize=(9, 3 * len(panels)), squeeze=False, layout="constrained")
    for panel, axis in zip(panels, axes[:, 0], strict=True):
        panel(axis)
        axis.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=110)
    pyplot.close(figure)


def draw_bars(axis: Any, title: str, names: Sequence[str], values: Sequence[float]) -> None:
    """Draw rates as horizontal bars with their figures.

    The first rate is on top, and the bars of ddflow have their own colour.
    """
    colours = [OURS if name.startswith("ddflow") else THEIRS for name in names]
    bars = axis.barh(names[::-1], values[::-1], color=colours[::-1])
    axis.bar_label(bars, labels=[f"{value:.3g}" for value in values[::-1]], padding=3)
    axis.set(title=title, xlabel="million a second (more is better)")
    axis.margins(x=0.1)
