"""Show the first rows of an output live in a notebook or a terminal. The view is drawn again after each step.

Guarantees: a row is marked as new if the previous frame had no row with equal values. The view is drawn after the
commit of a call, so it shows only complete steps. Drawing takes at most a tenth of the total time. An error during
drawing is logged and has no other effect. Limits: drawing a frame costs O(rows of the output).
"""

import importlib
import sys
from collections.abc import Iterator
from html import escape
from time import monotonic
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ddflow.columns.hashing import Secret, compute_value_hashes
from ddflow.columns.names import DIFF, did_you_mean
from ddflow.columns.schema import to_array
from ddflow.dataflow.dataflow import Dataflow
from ddflow.dataflow.result import format_values
from ddflow.engine.read.history import check_readable_time
from ddflow.errors import ErrorText, Option, SpecError
from ddflow.metrics import CallMetrics
from ddflow.time import NEVER, format_time


class LiveFrame(NamedTuple):
    """A single drawing of a live view.

    ``shown``: the first rows. ``new``: for each shown row, whether it is new. ``total``: the number of rows of the
    output. ``came``, ``went``: the numbers of rows added and removed since the previous frame.
    """

    shown: pa.Table
    new: list[bool]
    total: int
    came: int
    went: int

    def format_rows(self) -> Iterator[tuple[str, ...]]:
        """Format the values of each shown row."""
        return zip(*(format_values(column, self.shown.num_rows) for column in self.shown.columns), strict=True)


class LiveRows:
    """The first rows of an output, sorted by a column, with marks for rows that the previous frame lacked.

    ``name``: the output. ``by``: a column, optionally with ``desc`` after it; None for the first column. ``most``: the
    number of rows to show.

    >>> live = LiveRows("by_city", by="n desc", most=2)
    >>> first = live.build_next_frame(pa.table({"city": ["Bern", "Zug", "Chur"], "n": [3, 1, 2], "_diff": [1, 1, 1]}))
    >>> list(first.format_rows()), first.total
    ([('Bern', '3'), ('Chur', '2')], 3)
    >>> second = live.build_next_frame(pa.table({"city": ["Bern", "Zug", "Chur"], "n": [3, 4, 2], "_diff": [1, 1, 1]}))
    >>> list(second.format_rows()), second.new, second.came, second.went
    ([('Zug', '4'), ('Bern', '3')], [True, False], 1, 1)
    """

    def __init__(self, name: str, by: str | None = None, most: int = 10) -> None:
        if isinstance(most, bool) or not isinstance(most, int) or most < 1:
            raise SpecError(
                ErrorText(f"watch {name!r} with ", Option("rows", most)),
                "that is not a number of rows",
                "pass 1 or more",
            )
        self.name, self.by, self.most = name, by, most
        self._secret = Secret.fresh()
        self._before: np.ndarray[tuple[int], np.dtype[np.uint64]] | None = None

    def find_sort_column(self, names: list[str]) -> tuple[str, str] | None:
        """Return the column by which the rows are sorted, and the sort direction.

        Raises `SpecError` if the column is unknown.
        """
        if self.by is None:
            return (names[0], "ascending") if names else None
        column, _, way = self.by.rpartition(" ")
        if self.by in names or way.lower() not in ("asc", "desc"):
            column, way = self.by, "asc"
        if column not in names:
            remedy = did_you_mean(column, names)
            raise SpecError(f"watch {self.name!r} by {self.by!r}", "there is no such column", remedy)
        return column, "descending" if way.lower() == "desc" else "ascending"

    def build_next_frame(self, held: pa.Table) -> LiveFrame:
        """Compare a table from `Engine.read` with the previous table, and choose the first rows. O(rows)."""
        names = [name for name in held.schema.names if name != DIFF]
        rows = held.select(names).combine_chunks()
        hashes = np.asarray(compute_value_hashes(rows, self._secret)) if rows.num_rows else np.zeros(0, np.uint64)
        new = np.zeros(rows.num_rows, bool) if self._before is None else ~np.isin(hashes, self._before)
        went = 0 if self._before is None else int((~np.isin(self._before, hashes)).sum())
        self._before = hashes
        order, first = self.find_sort_column(names), np.arange(min(self.most, rows.num_rows))
        if order is not None and rows.num_rows:
            try:
                column = pa.table({"by": to_array(rows.column(order[0]))})
                first = np.asarray(pc.sort_indices(column, [("by", order[1])]))[: self.most]
            except pa.ArrowNotImplementedError:  # a type without an order
                pass
        shown = rows.take(pa.array(first))
        total = int(np.abs(np.asarray(held.column(DIFF))).sum())
        return LiveFrame(shown, new[first].tolist(), total, int(new.sum()), went)


SHARE: Final = 10
"""The minimum pause after a drawing, as a multiple of the time that the drawing took."""
NEW: Final = ' style="background: rgba(63, 174, 90, 0.25)"'


class Watch:
    """A live table of an output that displays itself in a notebook. `Engine.watch` makes a `Watch`.

    >>> import ddflow as dd
    >>> flow = dd.Flow()
    >>> _ = flow.output("by_city", flow.upserts("people", {"id": int, "city": str}, dd.Upsert(key="id")).count("city"))
    >>> with flow.open() as engine:
    ...     watch = engine.watch("by_city", by="count desc")
    ...     _ = engine.step({"people": {"id": [1, 2], "city": ["Bern", "Bern"]}})
    ...     "<td>2</td>" in watch._repr_html_()
    True
    """

    def __init__(self, dataflow: Dataflow, live: LiveRows, every: float) -> None:
        self._dataflow, self._live, self._every = dataflow, live, every
        self._node = dataflow.flow.outputs.get(live.name) or dataflow.flow.inputs[live.name]
        live.find_sort_column([field.name for field in self._node.schema])
        self._next, self._html, self._behind = 0.0, "", True
        self._handle = _display_in_notebook(self)

    def __call__(self, call: CallMetrics) -> None:
        """Draw the rows after a call, unless the previous drawing is too recent."""
        self._behind = True
        if self._handle is not None and monotonic() >= self._next:
            self._handle.update(self)

    def close(self) -> None:
        """Draw the table a last time. Later calls do not update it."""
        if self._behind and self._handle is not None:
            self._handle.update(self)
        self._handle = None

    def _repr_html_(self) -> str:
        """Render the first rows as HTML. New rows are tinted. If the engine is closed, return the last rendering."""
        if self._behind and self._dataflow.guard.is_owner_process and self._dataflow.guard.state == "open":
            began = monotonic()
            self._html, self._behind = self._draw_rows(), False
            now = monotonic()
            self._next = now + max(self._every, SHARE * (now - began))
        return self._html

    def _draw_rows(self) -> str:
        if self._dataflow.last == NEVER:
            return f"<div>{escape(self._live.name)}: no time is closed yet</div>"
        with self._dataflow.open_read_copy("watch") as still:
            check_readable_time("watch", still.last, still.since, still.frontier)
            look = self._live.build_next_frame(still.graph.read_collection(self._node, None))
            return render_frame(self._live.name, look, f"at {format_time(still.last, still.time_type)}")


def render_frame(name: str, look: LiveFrame, when: str) -> str:
    """Render a frame as HTML for a notebook."""
    head = "".join(f"<th>{escape(each)}</th>" for each in look.shown.schema.names)
    rows = "".join(
        f"<tr{NEW if new else ''}>{''.join(f'<td>{escape(value)}</td>' for value in row)}</tr>"
        for row, new in zip(look.format_rows(), look.new, strict=True)
    )
    return (
        f"<div>{escape(name)}, {when}: {look.total:,} rows; {look.came:,} added, {look.went:,} removed</div>"
        f"<table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>"
    )


def _display_in_notebook(watch: Watch) -> Any:
    """Return a handle that redraws the output of a notebook cell. Return None outside a notebook."""
    if "ipykernel" not in sys.modules:
        return None
    shown: Any = importlib.import_module("IPython.display")
    return shown.display(watch, display_id=True)
