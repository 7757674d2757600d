"""Looking at a dataflow: its plan with figures, its sizes and verdicts, and how it shows itself in a notebook.

Invariant: nothing is computed anew and no row is read; the figures are those that steps left. An engine and a snapshot
show themselves alike.

>>> import ddflow as dd
>>> flow = dd.Flow()
>>> _ = flow.output("people", flow.upserts("people", {"id": int}, dd.Upsert(key="id")))
>>> with flow.open() as engine:
...     _ = engine.step({"people": {"id": [7]}})
...     engine.stats()["keys"], engine.explain(format="svg")[:4], "1 row" in engine._repr_html_()
(1, '<svg', True)
"""

from ddflow.dataflow.dataflow import Dataflow
from ddflow.dataflow.verdicts import Verdicts
from ddflow.engine.plan_figures import plan_figures
from ddflow.engine.stats import Arranged, Stats
from ddflow.plan.explain import Explained
from ddflow.plan.explaining import Explaining
from ddflow.plan.picture import Picture, html, shown_as
from ddflow.plan.plan import Plan


class Looking(Explaining):
    """Views of an engine or a snapshot on itself."""

    def __init__(self, dataflow: Dataflow) -> None:
        self.dataflow = dataflow

    @property
    def flow(self) -> Plan:
        """The plan."""
        return self.dataflow.flow

    @property
    def frontier(self) -> int:
        """The least time that may still come, an int64: `NEVER` before the first step, `CLOSED` when none can."""
        return self.dataflow.frontier

    @property
    def since(self) -> int:
        """The least time, an int64, at which reads are exact."""
        return self.dataflow.since

    @property
    def verdicts(self) -> Verdicts:
        """Counts of all events by verdict since the state began, a `Verdicts`."""
        return Verdicts.of(self.dataflow.totals, self.dataflow.pending)

    def _render_plan(self, name: str | None, format: str) -> Explained | Picture:
        with self.dataflow.guard.look("explain"):
            return shown_as(self.flow, name, format, plan_figures(self.dataflow.graph))

    def stats(self) -> Stats:
        """Return the current figures: keys, batches, bytes by place, merges owed, verdicts.

        Returns
        -------
        Stats
            A mapping, which prints as a table.

        Notes
        -----
        O(arrangements and their runs).
        """
        with self.dataflow.guard.look("stats", closed=True):
            held = self.dataflow.graph.arrangements
            return Stats(
                frontier=self.frontier,
                since=self.since,
                arrangements={name: Arranged.of(arranged) for name, arranged in held.items()},
                pending=self.dataflow.pending,
                bytes_pending=sum(b.nbytes for b in self.dataflow.batchers.values()),
                verdicts=self.verdicts.counts,
                budget=self.dataflow.budget.memory,
                bytes_pending_mapped=sum(b.mapped for b in self.dataflow.batchers.values()),
                time_type=self.dataflow.time_type,
                pinned=self.dataflow.recent.size(self.dataflow.holds.least())
                + sum(each.slots.bytes_pinned for arranged in held.values() for each in arranged.partitions),
            )

    def _repr_html_(self) -> str:
        """Render the plan with its figures and the sizes for a notebook; after `close` only the plan."""
        if self.dataflow.guard.state != "open":
            return html(self.flow)
        with self.dataflow.guard.look("show"):
            figures = plan_figures(self.dataflow.graph)
        return html(self.flow, figures) + self.stats()._repr_html_()
