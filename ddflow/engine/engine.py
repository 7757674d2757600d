"""The engine: a plan, opened.  Steps in, differences and verdicts out; the collections can be read at any time.

Invariant: a call either happens whole or not at all. Everything is computed before anything changes, so a refused step
(a null key, a tie, an overflow) leaves the engine as it was, and events in = judged + pending holds after every call.
A step touches several inputs and several operators with state. A step that is interrupted while it takes its changes
in cannot be undone in memory; the engine then refuses to go on. One thread at a time. On durable state calls become
epochs, published whole (``commits``).

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

from collections.abc import Mapping
from typing import Any

import pyarrow as pa

from ddflow.columns.hashing import Secret
from ddflow.columns.threads import Threads
from ddflow.dataflow.budget import Budget, parse_size
from ddflow.dataflow.dataflow import Dataflow
from ddflow.dataflow.graph import Graph
from ddflow.dataflow.inflow import lateness_frontier
from ddflow.dataflow.result import Step
from ddflow.dataflow.side_outputs import check_listed
from ddflow.engine.calls import Calls
from ddflow.engine.commits import Asked, Commits
from ddflow.engine.compact import compact
from ddflow.engine.digests import combined
from ddflow.engine.reads import Reading
from ddflow.engine.replace import replace
from ddflow.errors import SpecError, TimeWentBack
from ddflow.plan.collection import Plan
from ddflow.plan.options import EngineOptions
from ddflow.storage.closing import Closing
from ddflow.time import CLOSED, advance, as_int64, shown


class Engine(Reading, Closing):
    """Runs a flow; `Flow.open` makes it.  Its options are there, what can be read of it is in `Reading`."""

    def __init__(self, flow: Plan, options: EngineOptions) -> None:
        if not flow.inputs or not flow.outputs:
            raise SpecError(
                "open a flow",
                f"it has {len(flow.inputs)} inputs and {len(flow.outputs)} outputs",
                "give it at least one of each: flow.upserts(...), flow.output(...)",
            )
        flow = flow.frozen()
        if options.verdicts == "rows":
            for input in flow.inputs.values():
                check_listed(input.bound)
        self.durable = Commits.open(flow, options) if options.state is not None else None
        try:
            super().__init__(_dataflow(flow, options, self.durable))
            if self.durable is not None:
                self.dataflow.owed = self.durable.recover(self.dataflow)
        except BaseException:
            if self.durable is not None:
                self.durable.close()
            raise
        self.calls = Calls(self.dataflow, self.durable)

    def close(self) -> None:
        """Let go of all state in memory; what was not committed is gone.  Twice is harmless.

        Raises `ConcurrentUse` while another thread is in a call.
        """
        with self.dataflow.guard.alone("close"):
            self.dataflow.close()
            if self.durable is not None:
                self.durable.close()

    @property
    def epoch(self) -> int:
        """The last epoch that was committed; 0 before the first, and where state is not durable."""
        return self.calls.epoch

    def output_schema(self, name: str) -> pa.Schema:
        """The columns of an output's table.  Raises `KeyError`."""
        return self.dataflow.output_schema(name)

    def step(self, inputs: Mapping[str, Any], time: int, *, epoch: int | None = None) -> Step:
        """Epoch mode: take in rows of any inputs as one epoch, stamped ``time``, above that of the last step.

        ``inputs``: by input, anything that speaks Arrow.  ``epoch``: its number, on durable state, where an epoch that
        was committed returns what it returned; so does a committed ``time``.  O(rows) expected.  Raises `WrongMode` in
        hold-back mode, `TimeWentBack`, what `Admission.admit` raises; nothing changes then.  On durable state also
        `ReplayMismatch`, `EpochSkipped`, and what `commit` raises.
        """
        dataflow, calls = self.dataflow, self.calls
        with dataflow.guard.use("step"):
            calls.check_mode("step", holds_back=False)
            time = as_int64(f"step at time {time!r}", time, CLOSED - 1)
            asked = Asked("step", time)
            if (again := calls.replayed(asked, epoch, inputs)) is not None:
                return again
            if time < dataflow.frontier:
                raise TimeWentBack(
                    f"cannot step at {time}",
                    f"the last step was at {shown(dataflow.last)}",
                    "give every step a greater time",
                )
            inflows, digest = calls.admit(inputs, time, asked)
            return calls.done(asked, digest, dataflow.step(inflows, time), inputs)

    def push(self, inputs: Mapping[str, Any], *, epoch: int | None = None) -> Step:
        """Hold-back mode: take in rows that wait for their times to close; returns what ``lateness=`` closes.

        Bad and late events get their verdicts at once.  ``epoch``: as in `step`.  O(rows).  Raises `WrongMode` in epoch
        mode, and what `step` raises.
        """
        dataflow, calls = self.dataflow, self.calls
        with dataflow.guard.use("push"):
            calls.check_mode("push", holds_back=True)
            asked = Asked("push", 0)
            if (again := calls.replayed(asked, epoch, inputs)) is not None:
                return again
            inflows, digest = calls.admit(inputs, None, asked)
            step = dataflow.push(inflows, lateness_frontier(dataflow.intakes, inflows))
            return calls.done(asked, digest, step, inputs)

    def advance_to(self, frontier: int, *, epoch: int | None = None) -> Step:
        """Hold-back mode: close the times below ``frontier`` (`CLOSED`: all) and return what became of them.

        ``epoch``: as in `step`.  O(events released) expected.  Raises `WrongMode` in epoch mode, `TimeWentBack`,
        `TieRefused`, and what `step` raises on durable state.
        """
        dataflow, calls = self.dataflow, self.calls
        with dataflow.guard.use("advance_to"):
            calls.check_mode("advance_to", holds_back=True)
            to = as_int64(f"advance to {frontier!r}", frontier, CLOSED)
            asked = Asked("advance_to", to)
            if (again := calls.replayed(asked, epoch, {})) is not None:
                return again
            advance(dataflow.frontier, to)
            return calls.done(asked, combined(asked.kind, to, {}), dataflow.advance({}, to), ())

    def commit(self) -> int:
        """Publish what was done since the last commit as one epoch, state and outputs together; its number.

        Where ``autocommit`` is on, every call did that already.  O(what changed).  Raises `Fenced` when another writer
        has committed, `StorageFull` and `StorageFailed`: it did not happen; `OutcomeUnknown`: it may have.  After any
        of them the engine goes no further: open the state again.  Raises `SpecError` where state is not durable.
        """
        with self.dataflow.guard.use("commit"):
            if self.durable is None:
                raise SpecError(
                    "commit",
                    "this engine's state is in memory",
                    "open the flow with a state: flow.open('state/orders')",
                )
            with self.dataflow.guard.commit:
                return self.durable.commit(self.dataflow)

    def replace(
        self, name: str, table: Any, time: int, scope: str | None = None, *, order: Any = None, epoch: int | None = None
    ) -> Step:
        """Epoch mode: ``table`` is all that the input ``name`` holds from ``time`` on; returns the differences.

        ``scope``: SQL over the row's columns: only rows for which it is true are replaced, and all of ``table`` must be
        within it.  Its rows win over whatever order is held.  Keys that are live in the scope and not in the table
        are deleted, counted as ``verdicts.absent``; their tombstones take ``order`` (by column of ``order_by`` and
        ``seq``, or the value of the only one), else the greatest in the table.  ``table``: anything that speaks
        Arrow; a reader is read as it goes, 8 or 16 bytes a row stay.  ``epoch``: as in `Engine.step`.  O(rows +
        keys held).

        Raises `DuplicateKeys`, `OutOfScope`, `ExpressionError` for a scope that does not fit, `SpecError` for such an
        order or none where it is needed, and what `Engine.step` raises; nothing changes then.
        """
        return replace(self.calls, "replace", name, table, time, scope, order, epoch)

    def restate(self, name: str, events: Any, time: int, *, order: Any = None, epoch: int | None = None) -> Step:
        """Epoch mode: the input ``name`` becomes what ``events``, its corrected history, fold to from nothing.

        What comes out, stamped ``time``, compensates for the difference.  The events are judged among themselves, and
        their winners' orders are those that keys hold from then on.  Keys that no event names are deleted as in
        `replace`, with ``order``, else the greatest among the events.  O(events + keys held).  Raises what `replace`
        raises, without `DuplicateKeys` and `OutOfScope`.
        """
        return replace(self.calls, "restate", name, events, time, None, order, epoch)

    def compact(self, forget: bool = False) -> None:
        """Merge all state into one run each, and publish it as another version of the same epoch.

        ``forget``: history up to the last closed time goes as well, and every byte of rows that are deleted; the epochs
        before can then not be given again, nor earlier versions be read.  O(state).  Raises `SpecError` while there are
        calls that are not committed, new outputs whose contents were not given yet, or, with ``forget``, readers of
        earlier times; nothing was changed then.  Raises what `Engine.commit` raises.
        """
        compact(self.calls, forget)

    def _check(self) -> None:
        """Assert the invariants of everything below."""
        self.dataflow._check()


def _dataflow(flow: Plan, options: EngineOptions, durable: Commits | None) -> Dataflow:
    """A new dataflow, with nothing in it."""
    lists, crew, memory = options.verdicts == "rows", Threads(options.threads), parse_size(options.memory)
    secret = (options.secret or Secret.fresh()) if durable is None else durable.secret
    budget = Budget(memory, options.spill, None if durable is None else durable.log.ledger.store)
    if durable is not None and budget.spills:
        budget.home = durable.batch_store
    return Dataflow(flow, Graph(flow, secret, lists, crew), budget, lists, options.retain, crew)
