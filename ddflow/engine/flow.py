"""A flow: a plan that can be opened.

>>> import pyarrow as pa
>>> from ddflow.plan.spec import Upsert
>>> flow = Flow()
>>> people = flow.upserts("people", {"id": pa.int64(), "city": pa.string()}, Upsert(key="id"))
>>> _ = flow.output("by_city", people.project(["city"]).count())
>>> with flow.open() as engine:
...     print(engine.step({"people": pa.table({"id": [1], "city": ["Bern"]})}, time=1))
Step(by_city: 1 updates; applied 1)
"""

from __future__ import annotations

from os import PathLike
from typing import Literal

from ddflow.columns.hashing import Secret
from ddflow.engine.engine import Engine
from ddflow.plan.collection import Plan
from ddflow.plan.options import Options
from ddflow.storage.protocol import Store


class Flow(Plan):
    """A plan under construction, and `open`, which runs it.  ``sources`` and ``outputs``: by name."""

    @classmethod
    def of(cls, plan: Plan) -> Flow:
        """A plan, such as one that was read back, as a flow: to be opened.  O(nodes)."""
        flow = cls()
        flow.nodes, flow.sources, flow.outputs = list(plan.nodes), dict(plan.sources), dict(plan.outputs)
        return flow

    def open(
        self,
        state: str | PathLike[str] | Store | None = None,
        *,
        memory: str | int | None = None,
        spill: str | PathLike[str] | None = None,
        verdicts: Literal["counts", "rows"] = "counts",
        retain: int = 0,
        threads: int = 1,
        secret: Secret | None = None,
        outputs: str | PathLike[str] | None = None,
        autocommit: bool = True,
        trust: Literal["owner", "group"] = "owner",
        grace: float = 60.0,
        verify: Literal["open", "lazy"] = "open",
    ) -> Engine:
        """An engine that runs this plan; use it in a ``with``.

        ``state``: a folder, or ``s3://bucket/prefix``, that the state lives in and is continued from; without one it is
        in memory and gone with the engine.  ``memory``: a budget such as ``"512MB"``.  ``spill``: a folder of this
        engine's own for what does not fit in it (a state brings its own); without one, a step whose state would pass
        the budget is refused.  ``verdicts``: "rows" also lists every event with its verdict.  ``retain``: how many
        times of history reads may go back.  ``threads``: how many share the kernels of a step; results do not depend
        on it.  ``secret``: for identities; a fresh one by default, a state's own where there is one.

        For a state: ``outputs``: a folder, of this state alone, in which each epoch's updates appear as Parquet once it
        is committed; else they are kept in the state for as long as an epoch may be given again.  ``autocommit``:
        whether every call is an epoch, or `Engine.commit` makes one.  ``trust``: "group" accepts a folder of another
        user, or that others can write to.  ``grace``: seconds that a version outlives its successor, for readers.
        ``verify``: "lazy" compares the checksums of files in the background, before the first commit, instead of
        before all else.

        Raises `SpecError` for a flow without sources or outputs, `SpillRefused` and `SpillInUse` for the spill folder;
        `StateRefused`, `PlanChanged`, `CorruptState`, `StorageFailed` for the state.
        """
        return Engine(
            self,
            Options(memory, spill, verdicts, retain, threads, secret, state, outputs, autocommit, trust, grace, verify),
        )
