"""Watching an output in a notebook: a table that follows the engine's calls.

Invariant: it is drawn within a call, behind its changes and its commit, so it shows whole steps; drawing takes a tenth
of the time at most, and what goes wrong in it is logged and changes nothing. The last state is drawn when the watch or
the engine is closed, and by whoever shows the watch again. It needs no server; outside of a notebook nothing is drawn.

>>> import ddflow as dd
>>> flow = dd.Flow()
>>> _ = flow.output("by_city", flow.upserts("people", {"id": int, "city": str}, dd.Upsert(key="id")).count("city"))
>>> with flow.open() as engine:
...     watch = engine.watch("by_city", by="count desc")
...     _ = engine.step({"people": {"id": [1, 2], "city": ["Bern", "Bern"]}})
...     "<td>2</td>" in watch._repr_html_()
True
"""

import importlib
import sys
from abc import ABC, abstractmethod
from html import escape
from time import monotonic
from typing import Any, Final

from ddflow.dataflow.dataflow import Dataflow
from ddflow.engine.calls import Calls
from ddflow.engine.history import check_readable
from ddflow.engine.live import LiveLook, LiveRows
from ddflow.metrics import CallMetrics
from ddflow.plan.collection import Collection
from ddflow.time import NEVER, shown

SHARE: Final = 10
"""It waits for so many times the time that it took."""
NEW: Final = ' style="background: rgba(63, 174, 90, 0.25)"'


class Watch:
    """A live table of an output.  `Engine.watch` makes it; it shows itself in a notebook."""

    def __init__(self, dataflow: Dataflow, live: LiveRows, every: float) -> None:
        self._dataflow, self._live, self._every = dataflow, live, every
        self._node = dataflow.flow.outputs.get(live.name) or dataflow.flow.inputs[live.name]
        live.order([field.name for field in self._node.schema])
        self._next, self._html, self._behind = 0.0, "", True
        self._handle = _shown_in_notebook(self)

    def __call__(self, call: CallMetrics) -> None:
        """Draw the rows after a call, unless they were drawn a moment ago."""
        self._behind = True
        if self._handle is not None and monotonic() >= self._next:
            self._handle.update(self)

    def close(self) -> None:
        """Draw the last state. The table no longer changes."""
        if self._behind and self._handle is not None:
            self._handle.update(self)
        self._handle = None

    def _repr_html_(self) -> str:
        """Render the first rows, with new ones tinted; after the engine is closed, the last rendering."""
        if self._behind and self._dataflow.guard.here and self._dataflow.guard.state == "open":
            began = monotonic()
            self._html, self._behind = self._draw_rows(), False
            now = monotonic()
            self._next = now + max(self._every, SHARE * (now - began))
        return self._html

    def _draw_rows(self) -> str:
        if self._dataflow.last == NEVER:
            return f"<div>{escape(self._live.name)}: no time is closed yet</div>"
        with self._dataflow.at_rest("watch") as still:
            check_readable("watch", still.last, still.since, still.frontier)
            look = self._live.look(still.graph.read(self._node, None))
            return html(self._live.name, look, f"at {shown(still.last, still.time_type)}")


def html(name: str, look: LiveLook, when: str) -> str:
    """Render a look for a notebook. Pure."""
    head = "".join(f"<th>{escape(each)}</th>" for each in look.shown.schema.names)
    rows = "".join(
        f"<tr{NEW if new else ''}>{''.join(f'<td>{escape(value)}</td>' for value in row)}</tr>"
        for row, new in zip(look.texts(), look.new, strict=True)
    )
    return (
        f"<div>{escape(name)}, {when}: {look.total:,} rows; {look.came:,} came, {look.went:,} went</div>"
        f"<table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>"
    )


def _shown_in_notebook(watch: Watch) -> Any:
    """Return a handle that redraws a cell's output; None outside a notebook."""
    if "ipykernel" not in sys.modules:
        return None
    shown: Any = importlib.import_module("IPython.display")
    return shown.display(watch, display_id=True)


class Watching(ABC):
    """``calls``: of the engine."""

    calls: Calls

    def watch(self, name: str, *, rows: int = 10, by: str | None = None, every: float = 0.2) -> Watch:
        """Show an output in a notebook, as a table that follows each call, also those of `run`.

        Parameters
        ----------
        name : str
            An output or an input.
        rows : int
            How many rows are shown.
        by : str, optional
            The column that orders them, such as ``"revenue desc"``; by default the first one.
        every : float
            Seconds between two drawings at least; drawing takes a tenth of the time at most.

        Returns
        -------
        Watch
            The table. `Watch.close` ends it, and the engine's `close` too.

        Raises
        ------
        NotReadable
            For an unknown name, and for differences that are not kept.
        SpecError
            For an unknown column.

        Notes
        -----
        O(rows of the output) a drawing.
        """
        self.node(name)
        watch = Watch(self.calls.dataflow, LiveRows(name, by, rows), every)
        self.calls.listeners.append(watch)
        self.calls.before_close.append(watch.close)
        return watch

    @abstractmethod
    def node(self, name: str) -> Collection:
        """See `Reading.node`."""
