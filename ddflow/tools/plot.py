"""Plots of what a flow did: ``dd.plot``.

Invariant: a plot shows figures that a step or a state gave, sums them by time at most, and changes nothing. What comes
is above the line, what goes below it. Needs the extra ``plot``; each function draws on the axes given, or on new ones,
and gives them back.

>>> import matplotlib
>>> matplotlib.use("Agg")
>>> updates = pa.table({"city": ["Bern", "Bern", "Zug"], "_time": [1, 2, 2], "_diff": [1, -1, 1]})
>>> axes = changes(updates)
>>> [int(bar.get_height()) for bar in axes.containers[0]], [int(bar.get_height()) for bar in axes.containers[1]]
([1, 1], [0, -1])
"""

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ddflow.columns.names import DIFF, TIME
from ddflow.columns.schema import one_chunk
from ddflow.connectors.frames import to_table
from ddflow.dataflow.result import Step
from ddflow.dataflow.verdicts import SHOWN, Verdicts
from ddflow.errors import MissingExtra, SchemaMismatch, SpecError
from ddflow.metrics import CallMetrics

if TYPE_CHECKING:
    from matplotlib.axes import Axes

CAME: Final = "#3fae5a"
WENT: Final = "#d9534f"
MOST: Final = 200
"""Bars of a plot; of more times, neighbours are added up."""
COLOURS: Final = dict(
    zip(SHOWN, ("#3fae5a", "#9ccc65", "#b0bec5", "#e8912d", "#8d6e63", "#c0504d", "#7b1fa2", "#4c8dff"), strict=True)
)
"""By verdict."""


def changes(updates: Any, *, title: str | None = None, ax: "Axes | None" = None) -> "Axes":
    """Rows that came and went, by time: a bar above the line and one below it.

    Parameters
    ----------
    updates : table or list of tables
        Updates with ``_time`` and ``_diff``: an output of a step, or that of several; any frame.
    title : str, optional
        Above the plot.
    ax : matplotlib.axes.Axes, optional
        Where to draw.  By default on new axes.

    Returns
    -------
    matplotlib.axes.Axes
        With two containers of bars: what came, what went.

    Raises
    ------
    SchemaMismatch
        For rows without ``_time`` or ``_diff``.
    SpecError
        For a step, which has the updates of each output.
    MissingExtra
        Where matplotlib is not installed.

    Notes
    -----
    O(n log n), for n updates.
    """
    if isinstance(updates, Step) or (isinstance(updates, list) and any(isinstance(each, Step) for each in updates)):
        found = "a step has the updates of each output"
        raise SpecError("plot changes", found, "give those of one: step['by_city'], or a list of these")
    if isinstance(updates, list) and updates and all(isinstance(each, pa.Table) for each in updates):
        updates = pa.concat_tables(updates)
    table = to_table(updates, "a plot", pa.schema([]))
    for name in (TIME, DIFF):
        if name not in table.schema.names:
            remedy = "give the updates of an output: step['by_city'], or those of several steps in a list"
            raise SchemaMismatch("plot changes", f"there is no column {name!r} among {table.schema.names}", remedy)
    axes = _axes(ax)
    times, diffs = one_chunk(table.column(TIME)), np.asarray(table.column(DIFF))
    distinct = times.unique()
    distinct = distinct.take(pc.sort_indices(distinct))
    together = -(-len(distinct) // MOST) or 1
    at = np.asarray(pc.index_in(times, distinct)) // together
    came, went = (np.zeros(-(-len(distinct) // together), np.int64) for _ in range(2))
    np.add.at(came, at[diffs > 0], diffs[diffs > 0])
    np.add.at(went, at[diffs < 0], diffs[diffs < 0])
    places = np.arange(came.size)
    axes.bar(places, came, color=CAME, label="came")
    axes.bar(places, went, color=WENT, label="went")
    labels = [str(each) for each in distinct.to_pylist()[::together]]
    _labelled(axes, labels, "time", "rows", title)
    return cast("Axes", axes)


def verdicts(of: Any, *, title: str | None = None, ax: "Axes | None" = None) -> "Axes":
    """What became of events: a bar a call, stacked by verdict.

    Parameters
    ----------
    of : Verdicts, Step, CallMetrics, or an iterable of these
        ``engine.verdicts``, a step, or a list of what ``metrics=`` was given.
    title, ax
        As of `changes`.

    Returns
    -------
    matplotlib.axes.Axes
        With a container of bars for each verdict that occurs.

    Raises
    ------
    SpecError
        For anything else.
    MissingExtra
        Where matplotlib is not installed.
    """
    given = list(of) if isinstance(of, Iterable) and not isinstance(of, Step | CallMetrics) else [of]
    counts = [_counts(each) for each in given]
    axes, places, below = _axes(ax), np.arange(len(counts)), np.zeros(len(counts), np.int64)
    for name in SHOWN:
        heights = np.array([each.get(name, 0) for each in counts], np.int64)
        if heights.any():
            axes.bar(places, heights, bottom=below, color=COLOURS[name], label=name)
            below += heights
    _labelled(axes, [_called(each, n) for n, each in enumerate(given)], "call", "events", title)
    return cast("Axes", axes)


def _counts(of: Any) -> Mapping[str, int]:
    if isinstance(of, CallMetrics):
        return of.verdicts
    of = of.verdicts if isinstance(of, Step) else of
    if not isinstance(of, Verdicts):
        found = f"a {type(of).__name__} has no verdicts"
        raise SpecError("plot verdicts", found, "give engine.verdicts, steps, or what metrics= was given")
    return of.counts


def _called(of: Any, number: int) -> str:
    return str(of.time) if isinstance(of, CallMetrics) and of.time else str(number + 1)


def _axes(ax: Any) -> Any:
    if ax is not None:
        return ax
    try:
        from matplotlib import pyplot
    except ImportError as error:
        raise MissingExtra("draw a plot", str(error), "pip install 'ddflow[plot]'") from None
    return pyplot.subplots(figsize=(8, 3), layout="constrained")[1]


def _labelled(axes: Any, labels: list[str], under: str, beside: str, title: str | None) -> None:
    every = max(len(labels) // 12, 1)
    axes.set_xticks(range(0, len(labels), every), labels[::every])
    axes.set_xlabel(under)
    axes.set_ylabel(beside)
    axes.axhline(0, color="gray", linewidth=0.8)
    axes.spines[["top", "right"]].set_visible(False)
    if axes.get_legend_handles_labels()[0]:
        axes.legend(frameon=False, loc="upper left", bbox_to_anchor=(1, 1))
    if title is not None:
        axes.set_title(title)
