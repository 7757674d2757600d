"""Draw the counts of a run over time, with a step line for each of the largest extensions.

A line shows the count of its extension at every time. A new count is drawn from the time of its update on. If the last
update of an extension is a retraction without an assertion, its line goes down to 0, although no update contains a 0.
The picture is written to a file, so no display is needed. The only input is the table of updates.

>>> import pyarrow as pa
>>> updates = pa.table({"extension": [".c", ".c", ".c", ".h", ".h"], "count": [1, 1, 2, 3, 3],
...                     "_time": [1, 4, 4, 2, 5], "_diff": [1, -1, 1, 1, -1]})
>>> levels(updates)
{'.c': ([1, 4], [1, 2]), '.h': ([2, 5], [3, 0])}
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import pyarrow as pa

from ddflow.errors import MissingExtra
from ddflow.terminal import escape_text

LINES: Final = 8
"""Number of extensions with a line; the legend shows the number of extensions without a line."""


def levels(updates: pa.Table) -> dict[str, tuple[list[Any], list[int]]]:
    """For each extension, compute the times of its changes, and its count from each of these times on. O(n log n)."""
    found: dict[str, dict[Any, int]] = {}
    # Within a time, the retraction comes before the assertion, so the assertion gives the count.
    rows = updates.select(["extension", "count", "_time", "_diff"]).sort_by(
        [("_time", "ascending"), ("_diff", "ascending")]
    )
    for batch in rows.to_batches():
        columns = (column.to_pylist() for column in batch.columns)
        for name, count, time, diff in zip(*columns, strict=True):
            found.setdefault(name, {})[time] = count if diff > 0 else 0
    return {name: (list(steps), list(steps.values())) for name, steps in found.items()}


def draw(updates: pa.Table, where: Path, title: str) -> None:
    """Draw the counts over time as PNG: the `LINES` extensions with the greatest count ever.

    Raises `MissingExtra` if matplotlib is missing.
    """
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
        from matplotlib.ticker import MaxNLocator, StrMethodFormatter
    except ImportError as error:
        raise MissingExtra(f"draw {where}", str(error), "pip install 'ddflow[plot]'") from None
    steps = levels(updates)
    largest = sorted(steps, key=lambda name: (-max(steps[name][1]), name))[:LINES]
    seen = [time for times, _ in steps.values() for time in (times[0], times[-1])]
    # Draw each line beyond its last change, so that its last count is visible.
    end = max(seen) + max((max(seen) - min(seen)) / 50, 0.5) if seen else None
    figure = Figure(figsize=(11, 6), dpi=120, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    for number, name in enumerate(largest):
        times, counts = steps[name]
        style = "-" if number < LINES // 2 else "--"
        label = f"{_plain(name[:24])}: {counts[-1]:,} ({max(counts):,})"
        axes.step([*times, end], [*counts, counts[-1]], style, where="post", label=label, linewidth=1.8)
    axes.set(title=f"files by extension\n{_plain(title)}", xlabel="commits along the first parents", ylabel="files")
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
        axis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))
    axes.set_ylim(bottom=0)
    axes.grid(alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)
    besides = f"\n{len(steps) - len(largest)} more not drawn" if len(steps) > len(largest) else ""
    if largest:
        heading = f"extension: now (at most){besides}"
        axes.legend(title=heading, loc="center left", bbox_to_anchor=(1.0, 0.5), frameon=False)
    figure.savefig(where, format="png")


def _plain(text: str) -> str:
    """Escape control characters, and escape the dollar sign, which would start a formula."""
    return escape_text(text).replace("$", r"\$")
