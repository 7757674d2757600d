"""Plot the updates and verdicts of a flow: ``dd.plot``.

A plot shows the figures of steps or of a state. Each bar is a sum over one time, or over several adjacent times. Added
rows are above the zero line, removed rows below it. Each function draws on the given axes, or on new axes, and returns
the axes. This module requires the extra ``plot``.

>>> import matplotlib
>>> matplotlib.use("Agg")
>>> updates = pa.table({"city": ["Bern", "Bern", "Zug"], "_time": [1, 2, 2], "_diff": [1, -1, 1]})
>>> axes = changes(updates)
>>> [int(bar.get_height()) for bar in axes.containers[0]], [int(bar.get_height()) for bar in axes.containers[1]]
([1, 1], [0, -1])
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ddflow.columns.names import DIFF, TIME, did_you_mean, parse_column_names
from ddflow.columns.schema import to_array
from ddflow.connectors.to_arrow import to_table
from ddflow.dataflow.result import PRINTED, Step, Verdicts
from ddflow.errors import ErrorText, Option, SchemaMismatch, SpecError, import_extra
from ddflow.metrics import CallMetrics
from ddflow.time import INT64, format_time

if TYPE_CHECKING:
    from matplotlib.axes import Axes

CAME: Final = "#3fae5a"
WENT: Final = "#d9534f"
CHANGED: Final = "#4c8dff"
NOOP: Final = "noop"
ABSENT: Final = "absent"
MOST: Final = 200
"""Largest number of bars in a plot; with more times, a bar sums adjacent times."""
COLOURS: Final = dict(
    zip(
        (*PRINTED, ABSENT),
        ("#3fae5a", "#9ccc65", "#b0bec5", "#e8912d", "#8d6e63", "#c0504d", "#7b1fa2", "#4c8dff", "#455a64"),
        strict=True,
    )
)
"""Colour of each verdict."""


def changes(
    updates: Any,
    *,
    key: str | Sequence[str] = (),
    title: str | None = None,
    ax: "Axes | None" = None,
) -> "Axes":
    """Plot added and removed rows, or added, changed and removed keys, by time.

    Parameters
    ----------
    updates : table or list of tables
        Updates with ``_diff``: an output of one step, the outputs of several steps in a list, or any frame.  The result
        of `Engine.changes` has no ``_time``, so it is one bar.
    key : str or sequence of str
        The columns that identify a row.  With a key, a row removed and added at one time counts as a changed key.
    title : str, optional
        The title of the plot.
    ax : matplotlib.axes.Axes, optional
        The axes to draw on.  By default new axes.

    Returns
    -------
    matplotlib.axes.Axes
        The axes, with two containers of bars: added and removed rows.  With a key there are three: added, changed and
        removed keys.

    Raises
    ------
    SchemaMismatch
        For rows without ``_diff``, or without a column of the key.
    SpecError
        For a whole step: pass the updates of one output.
    MissingExtra
        If matplotlib is not installed.

    Notes
    -----
    O(n log n), for n updates.
    """
    keys = parse_column_names(key, "plot changes", "key")
    table = _combine_updates(updates, keys)
    axes = _get_axes(ax)
    times, diffs = to_array(table.column(TIME)), np.asarray(table.column(DIFF))
    distinct = times.unique()
    distinct = distinct.take(pc.sort_indices(distinct))
    together = -(-len(distinct) // MOST) or 1
    at = np.asarray(pc.index_in(times, distinct)) // together
    bars = _build_key_bars(table, keys, distinct, together) if keys else {}
    if not keys:
        bars = {"came": (CAME, at[diffs > 0], diffs[diffs > 0]), "went": (WENT, at[diffs < 0], diffs[diffs < 0])}
    heights = np.zeros((len(bars), -(-len(distinct) // together)), np.int64)
    below = np.zeros(heights.shape[1], np.int64)
    for height, (label, (colour, places, counts)) in zip(heights, bars.items(), strict=True):
        np.add.at(height, places, counts)
        up = bool((height >= 0).all())
        axes.bar(np.arange(height.size), height, bottom=below if up else 0, color=colour, label=label)
        below += height if up else 0
    _label_axes(axes, [str(each) for each in distinct.to_pylist()[::together]], "time", title)
    axes.set_ylabel("keys" if keys else "rows")
    return cast("Axes", axes)


def _combine_updates(updates: Any, keys: Sequence[str]) -> pa.Table:
    """Combine updates into one table with times.  Raises like `changes`."""
    if isinstance(updates, Step) or (isinstance(updates, list) and any(isinstance(each, Step) for each in updates)):
        found = "a step has the updates of all outputs"
        raise SpecError("plot changes", found, "pass the updates of one output: step['by_city'], or a list of them")
    if isinstance(updates, list) and updates and all(isinstance(each, pa.Table) for each in updates):
        updates = pa.concat_tables(updates)
    table = to_table(updates, "a plot", pa.schema([]))
    for name in (DIFF, *keys):
        if name not in table.schema.names:
            remedy = "pass the updates of an output: step['by_city'], or a list of them, one for each step"
            if name in keys:
                remedy = did_you_mean(name, table.schema.names)
            raise SchemaMismatch(
                "plot changes", f"there is no column {name!r} in {table.schema.names}", remedy, column=name
            )
    if TIME in table.schema.names:
        return table
    return table.append_column(TIME, pa.array(["net"] * table.num_rows, pa.string()))


def _build_key_bars(table: pa.Table, keys: Sequence[str], distinct: Any, together: int) -> dict[str, Any]:
    """Return three groups of keys: added, changed and removed.

    A group consists of a colour, and for each key the number of a bar and a height of 1 or -1.
    """
    diffs = table.column(DIFF)
    signs = {"came": pc.greater(diffs, 0), "went": pc.less(diffs, 0)}
    both = pa.table({TIME: table.column(TIME), **{f"key {i}": table.column(k) for i, k in enumerate(keys)}, **signs})
    groups = both.group_by(both.column_names[: 1 + len(keys)]).aggregate([("came", "any"), ("went", "any")])
    at = np.asarray(pc.index_in(to_array(groups.column(TIME)), distinct)) // together
    came, went = (groups.column(name).to_numpy() for name in ("came_any", "went_any"))
    kinds = {
        "added": (CAME, came & ~went, 1),
        "changed": (CHANGED, came & went, 1),
        "removed": (WENT, went & ~came, -1),
    }
    return {kind: (colour, at[which], np.full(int(which.sum()), n)) for kind, (colour, which, n) in kinds.items()}


def verdicts(of: Any, *, noop: bool = False, title: str | None = None, ax: "Axes | None" = None) -> "Axes":
    """Plot the verdicts of events, and the keys that full contents deleted. Each call is one bar, stacked by verdict.

    Parameters
    ----------
    of : Verdicts, Step, CallMetrics, or an iterable of these
        ``engine.verdicts``, a step, or a list of the records passed to ``metrics=``.
    noop : bool
        Whether to draw events that changed nothing.  They are often the majority and would hide the others.  Without
        them, the legend shows their number.
    title, ax
        See `changes`.

    Returns
    -------
    matplotlib.axes.Axes
        The axes, with a container of bars for each drawn verdict.

    Raises
    ------
    SpecError
        For any other type of ``of``.
    MissingExtra
        If matplotlib is not installed.
    """
    given = list(of) if isinstance(of, Iterable) and not isinstance(of, Step | CallMetrics) else [of]
    counts = [_count_verdicts(each) for each in given]
    axes, places, below = _get_axes(ax), np.arange(len(counts)), np.zeros(len(counts), np.int64)
    for name, colour in COLOURS.items():
        heights = np.array([each.get(name, 0) for each in counts], np.int64)
        if heights.any() and (noop or name != NOOP):
            axes.bar(places, heights, bottom=below, color=colour, label=name)
            below += heights
    hidden = 0 if noop else sum(each.get(NOOP, 0) for each in counts)
    note = f"and {hidden:,} noop" if hidden else None
    _label_axes(axes, [_label_call(each, n) for n, each in enumerate(given)], "call", title, note)
    axes.set_ylabel("events")
    return cast("Axes", axes)


def _count_verdicts(of: Any) -> Mapping[str, int]:
    if isinstance(of, CallMetrics):
        return of.verdicts
    of = of.verdicts if isinstance(of, Step) else of
    if not isinstance(of, Verdicts):
        found = f"a {type(of).__name__} has no verdicts"
        raise SpecError(
            "plot verdicts", found, ErrorText("pass engine.verdicts, steps, or the records of ", Option("metrics"))
        )
    return {**of.counts, ABSENT: of.absent}


def _label_call(of: Any, number: int) -> str:
    """Return the label of a call.

    The label is the number of the call if times are int64, and otherwise the time of the call.
    """
    if isinstance(of, CallMetrics) and (of.at or of.time):
        return of.at or str(of.time)
    if isinstance(of, Step):
        kinds = {table.schema.field(TIME).type for table in of.values() if TIME in table.schema.names}
        if kinds and (kind := kinds.pop()) != INT64:
            return format_time(of.frontier - 1, kind)
    return str(number + 1)


def _get_axes(ax: Any) -> Any:
    if ax is not None:
        return ax
    return import_extra("draw a plot", "plot", "matplotlib.pyplot").subplots(figsize=(8, 3), layout="constrained")[1]


def _label_axes(axes: Any, labels: list[str], under: str, title: str | None, note: str | None = None) -> None:
    """Label the axes. ``note`` is the last line of the legend, which is drawn even if it has no other entries."""
    every = max(len(labels) // 12, -(-len(labels) * max(map(len, labels), default=0) // 60), 1)  # avoids overlaps
    axes.set_xticks(range(0, len(labels), every), labels[::every])
    axes.set_xlabel(under)
    axes.axhline(0, color="gray", linewidth=0.8)
    axes.spines[["top", "right"]].set_visible(False)
    handles, names = axes.get_legend_handles_labels()
    if note is not None:
        handles, names = [*handles, axes.plot([], [], " ")[0]], [*names, note]
    if handles:
        axes.legend(handles, names, frameon=False, loc="upper left", bbox_to_anchor=(1, 1))
    if title is not None:
        axes.set_title(title)
