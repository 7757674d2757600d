"""A flow: a plan that can be opened.

>>> import pyarrow as pa
>>> from ddflow.plan.inputs.spec import Upsert
>>> flow = Flow()
>>> people = flow.upserts("people", {"id": pa.int64(), "city": pa.string()}, Upsert(key="id"))
>>> _ = flow.output("by_city", people.project(["city"]).count())
>>> with flow.open() as engine:
...     print(engine.step({"people": pa.table({"id": [1], "city": ["Bern"]})}, time=1))
Step(by_city: 1 updates; applied 1)
"""

from __future__ import annotations

from ddflow.engine.engine import Engine
from ddflow.plan.options import EngineOptions, expand_options
from ddflow.plan.plan import Plan
from ddflow.plan.text.explain import Explained, Explaining, Picture, render_html, render_plan
from ddflow.plan.verbs.family import NamesElsewhere


class Flow(Plan, Explaining, NamesElsewhere):
    """A plan under construction, and `open`, which runs it.

    Attributes
    ----------
    inputs : dict of str to Input
        By name.
    outputs : dict of str to Collection
        By name.
    """

    _shown = "a flow"
    _instead = {
        name: f"with flow.open() as engine: engine.{name}(...)"
        for name in ("step", "push", "run", "read", "replace", "evolve", "why", "watch", "stats")
    } | {"source": "upserts(name, schema, spec)", "input": "upserts(name, schema, spec)", "sink": "output(name, rows)"}

    @classmethod
    def of(cls, plan: Plan) -> Flow:
        """Make a flow of a plan, such as one that was read back, so that you can open it.

        Parameters
        ----------
        plan : Plan
            The plan.  What you add to the flow later does not change it.

        Returns
        -------
        Flow
            With the same collections.

        Notes
        -----
        O(nodes of the plan).
        """
        flow = cls()
        flow.nodes, flow.inputs, flow.outputs = list(plan.nodes), dict(plan.inputs), dict(plan.outputs)
        return flow

    def _render_plan(self, name: str | None, format: str) -> Explained | Picture:
        return render_plan(self, name, format)

    def _repr_html_(self) -> str:
        """Render the plan for a notebook."""
        return render_html(self)

    @expand_options(EngineOptions)
    def open(self, options: EngineOptions) -> Engine:
        """Make an engine that runs this plan.  Use it in a ``with``."""
        return Engine(self, options)
