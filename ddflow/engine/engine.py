"""The engine: a plan, opened.  Steps in, differences and verdicts out; the collections can be read at any time.

Invariant: a call either happens whole or not at all. Everything is computed before anything changes, so a refused step
(a null key, a tie, an overflow) leaves the engine as it was, and events in = judged + pending holds after every call.
A step touches several sources and several operators with state. A step that is interrupted while it takes its changes
in cannot be undone in memory; the engine then refuses to go on. One thread at a time. On durable state calls become
epochs, published whole (``durable``).

>>> import pyarrow as pa, ddflow as dd
>>> flow = dd.Flow()
>>> people = flow.upserts("people", {"id": pa.int64(), "city": pa.string()}, dd.Upsert(key="id"))
>>> _ = flow.output("by_city", people.project(["city"]).count())
>>> with flow.open() as engine:
...     out = engine.step({"people": pa.table({"id": [1, 2], "city": ["Bern", "Bern"]})}, time=1)
...     print(out["by_city"].to_pylist(), out.verdicts)
[{'city': 'Bern', 'count': 2, '_time': 1, '_diff': 1}] applied 2
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import TracebackType
from typing import Any

import pyarrow as pa

from ddflow.columns.hashing import Secret
from ddflow.columns.threads import Crew
from ddflow.dataflow.budget import Budget, parse_size
from ddflow.dataflow.graph import Circuit
from ddflow.dataflow.inflow import Inflow, check_names, lateness_frontier
from ddflow.dataflow.result import Step
from ddflow.dataflow.side_outputs import check_listed
from ddflow.dataflow.verdicts import Verdicts
from ddflow.engine.commits import Asked, Durable
from ddflow.engine.compact import Compacting
from ddflow.engine.digests import Digest, combined
from ddflow.engine.reads import as_int64
from ddflow.engine.replace import Replacing
from ddflow.engine.stepping import Stepping
from ddflow.errors import (
    SpecError,
    TimeWentBack,
    WrongMode,
)
from ddflow.plan.flow import Flow
from ddflow.plan.options import Options
from ddflow.storage.feeding import EVENTS, Way, fed_by
from ddflow.time import CLOSED, advance, shown


class Engine(Compacting, Replacing, Stepping):
    """Runs a flow; `Flow.open` makes it.  Its options are there, what can be read of it is in `Reading`."""

    def __init__(self, flow: Flow, options: Options) -> None:
        if not flow.sources or not flow.outputs:
            raise SpecError(
                "open a flow",
                f"it has {len(flow.sources)} sources and {len(flow.outputs)} outputs",
                "give it at least one of each: flow.upserts(...), flow.output(...)",
            )
        flow = flow.frozen()
        if options.verdicts == "rows":
            for source in flow.sources.values():
                check_listed(source.bound)
        self.durable = Durable.open(flow, options) if options.state is not None else None
        secret = (options.secret or Secret.fresh()) if self.durable is None else self.durable.secret
        lists, crew, memory = options.verdicts == "rows", Crew(options.threads), parse_size(options.memory)
        try:
            budget = Budget(memory, options.spill, None if self.durable is None else self.durable.ledger.store)
            super().__init__(flow, Circuit(flow, secret, lists, crew), budget, lists, options.retain, crew)
            if self.durable is not None:
                self.budget.home = self.durable.vault if self.budget.spills else None
                self._owed = self.durable.recover(self)
        except BaseException:
            if self.durable is not None:
                self.durable.close()
            raise

    def __enter__(self) -> Engine:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Let go of all state in memory; what was not committed is gone.  Twice is harmless.

        Raises `ConcurrentUse` while another thread is in a call.
        """
        with self.turns.alone("close"):
            self.turns.state = "closed"
            self.circuit, self.batchers = Circuit(self.flow, Secret(0, 0)), {}
            self.crew.close()
            self.budget.close()
            if self.durable is not None:
                self.durable.close()

    @property
    def epoch(self) -> int:
        """The last epoch that was committed; 0 before the first, and where state is not durable."""
        return 0 if self.durable is None else self.durable.epoch

    def step(self, inputs: Mapping[str, Any], time: int, *, epoch: int | None = None) -> Step:
        """Epoch mode: take in rows of any sources as one epoch, stamped ``time``, above that of the last step.

        ``inputs``: by source, anything that speaks Arrow.  ``epoch``: its number, on durable state, where an epoch that
        was committed returns what it returned; so does a committed ``time``.  O(rows) expected.  Raises `WrongMode` in
        hold-back mode, `TimeWentBack`, what `Intake.admit` raises; nothing changes then.  On durable state also
        `ReplayMismatch`, `EpochSkipped`, and what `commit` raises.
        """
        with self.turns.use("step"):
            if self.flow.holds_back:
                raise WrongMode(
                    "step",
                    "the flow is in hold-back mode: its sources name a time column",
                    "call push(inputs), then advance_to(frontier)",
                )
            time = as_int64(f"step at time {time!r}", time, CLOSED - 1)
            asked = Asked("step", time)
            if (again := self._replayed(asked, epoch, inputs)) is not None:
                return again
            if time < self.frontier:
                raise TimeWentBack(
                    f"cannot step at {time}",
                    f"the last step was at {shown(self.last)}",
                    "give every step a greater time",
                )
            inflows, digest = self._admit(inputs, time, asked)
            with self._released(CLOSED, {name: inflow.batcher for name, inflow in inflows.items()}) as given:
                return self._done(asked, digest, self._take(inflows, self._judge(given, time), time + 1, time), inputs)

    def push(self, inputs: Mapping[str, Any], *, epoch: int | None = None) -> Step:
        """Hold-back mode: take in rows that wait for their times to close; returns what ``lateness=`` closes.

        Bad and late events get their verdicts at once.  ``epoch``: as in `step`.  O(rows).  Raises `WrongMode` in epoch
        mode, and what `step` raises.
        """
        with self.turns.use("push"):
            self._must_hold_back("push")
            asked = Asked("push", 0)
            if (again := self._replayed(asked, epoch, inputs)) is not None:
                return again
            inflows, digest = self._admit(inputs, None, asked)
            to = lateness_frontier(self.intakes, inflows)
            if to > self.frontier:
                return self._done(asked, digest, self._sealed(inflows, to), inputs)
            self._check_budget(None, inflows)
            return self._done(asked, digest, self._take(inflows, None, self.frontier, self.last), inputs)

    def advance_to(self, frontier: int, *, epoch: int | None = None) -> Step:
        """Hold-back mode: close the times below ``frontier`` (`CLOSED`: all) and return what became of them.

        ``epoch``: as in `step`.  O(events released) expected.  Raises `WrongMode` in epoch mode, `TimeWentBack`,
        `TieRefused`, and what `step` raises on durable state.
        """
        with self.turns.use("advance_to"):
            self._must_hold_back("advance_to")
            to = as_int64(f"advance to {frontier!r}", frontier, CLOSED)
            asked = Asked("advance_to", to)
            if (again := self._replayed(asked, epoch, {})) is not None:
                return again
            advance(self.frontier, to)
            return self._done(asked, combined(asked.kind, to, {}), self._sealed({}, to), ())

    def commit(self) -> int:
        """Publish what was done since the last commit as one epoch, state and outputs together; its number.

        Where ``autocommit`` is on, every call did that already.  O(what changed).  Raises `Fenced` when another writer
        has committed, `StorageFull` and `StorageFailed`: it did not happen; `OutcomeUnknown`: it may have.  After any
        of them the engine goes no further: open the state again.  Raises `SpecError` where state is not durable.
        """
        with self.turns.use("commit"):
            if self.durable is None:
                raise SpecError(
                    "commit",
                    "this engine's state is in memory",
                    "open the flow with a state: flow.open('state/orders')",
                )
            with self.turns.commit:
                return self.durable.commit(self)

    # Below: what those have in common.

    def _replayed(self, asked: Asked, epoch: int | None, inputs: Mapping[str, Any]) -> Step | None:
        if self.durable is not None:
            return self.durable.replayed(asked, epoch, inputs, self)
        if epoch is not None:
            raise SpecError(
                f"{asked} of epoch {epoch}",
                "this engine's state is in memory and has no epochs",
                "leave epoch= out, or open the flow with a state",
            )
        return None

    def _done(self, asked: Asked, digest: str, step: Step, sources: Iterable[str], way: Way = EVENTS) -> Step:
        """A call that was taken in and fed some ``sources``, committed where that is asked for."""
        self.fed = fed_by(self.fed, sources, way, self.epoch + 1)
        if self.durable is not None:
            with self.turns.commit:
                self.durable.record(asked, digest, step)
                if self.durable.autocommit:
                    self.durable.commit(self)
        return step

    def told(self, tables: Mapping[str, pa.Table], counts: Mapping[str, int], frontier: int) -> Step:
        """The step of a call that was committed: its outputs that are not empty, its verdicts."""
        return Step({**self._nothing, **tables}, Verdicts.of(counts, self._pending()), frontier)

    def _must_hold_back(self, what: str) -> None:
        if not self.flow.holds_back:
            raise WrongMode(
                what, "the flow is in epoch mode: its sources name no time column", "call step(inputs, time=...)"
            )

    def _admit(self, inputs: Mapping[str, Any], time: int | None, asked: Asked) -> tuple[dict[str, Inflow], str]:
        check_names(inputs, self.intakes)
        digests = {name: Digest(self.secret, name) for name in inputs} if self.durable is not None else {}
        inflows = self._admitted(inputs, time, {name: digest.update for name, digest in digests.items()})
        return inflows, combined(asked.kind, asked.time, digests) if self.durable is not None else ""
