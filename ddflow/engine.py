"""The engine: a plan, opened.  Steps in, differences and verdicts out; the collections can be read at any time.

Invariant: a call either happens whole or not at all.  Everything is computed before anything changes, so a refused step
(a null key, a tie, an overflow) leaves the engine as it was, and events in = judged + pending holds after every call.
Why that is not trivial: a step touches several sources and several operators with state.  A step that is interrupted
while it takes its changes in cannot be undone in memory; the engine then refuses to go on.  One thread at a time.
On durable state calls become epochs, published whole (``durable``).

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
from contextlib import AbstractContextManager, suppress
from functools import partial
from types import TracebackType
from typing import Any, NamedTuple

import pyarrow as pa

from ddflow.batcher import Batcher
from ddflow.budget import Budget, parse_size
from ddflow.circuit import Circuit
from ddflow.computation import Released, Stepped
from ddflow.crew import Crew
from ddflow.custody.compact import Compacting
from ddflow.digests import Digest, combined
from ddflow.durable import Asked, Durable
from ddflow.errors import (
    SpecError,
    SpillFailed,
    SpillFull,
    StorageFailed,
    StorageFull,
    TimeWentBack,
    WrongMode,
)
from ddflow.flow import Flow
from ddflow.frontier import CLOSED, NEVER, advance, shown
from ddflow.identity import Secret
from ddflow.inflow import Inflow, add, check_names, flowing, lateness_frontier
from ddflow.intake import Intake
from ddflow.operators.upsert import Judgement
from ddflow.options import Options
from ddflow.reader import Holds
from ddflow.reading import Reading, as_int64
from ddflow.replacing import Replacing
from ddflow.schema import empty
from ddflow.shelf import Shelf
from ddflow.sides import Sides, check_listed, verdict_rows
from ddflow.spilling import make_room, released
from ddflow.step import Step
from ddflow.turns import Turns
from ddflow.verdicts import Verdicts, counted


class Judged(NamedTuple):
    """A step that was computed, and is not taken in yet."""

    stepped: Stepped
    sides: dict[str, pa.Table]
    rows: dict[str, list[pa.Table]]
    """By source, verdict rows, when they are asked for."""


class Engine(Compacting, Replacing, Reading):
    """Runs a flow; `Flow.open` makes it.  Its options are there, what can be read of it is in `Reading`."""

    def __init__(self, flow: Flow, options: Options) -> None:
        if not flow.sources or not flow.outputs:
            raise SpecError("open a flow", f"it has {len(flow.sources)} sources and {len(flow.outputs)} outputs",
                            "give it at least one of each: flow.upserts(...), flow.output(...)")  # fmt: skip
        self.flow = flow = flow.frozen()
        self.retain, self.lists = options.retain, options.verdicts == "rows"
        if self.lists:
            for source in flow.sources.values():
                check_listed(source.bound)
        self.turns, self.holds, self.crew = Turns(), Holds(), Crew(options.threads)
        self.durable = Durable.open(flow, options) if options.state is not None else None
        secret = options.secret or Secret.fresh()
        self.secret = secret if self.durable is None else self.durable.secret
        self.circuit = Circuit(flow, self.secret, self.lists, self.crew)
        self.intakes = {name: Intake(source.bound) for name, source in flow.sources.items()}
        self.batchers = {name: Batcher() for name in flow.sources}
        outputs = {name: node.updates_schema(flow.time_type) for name, node in flow.outputs.items()}
        self._nothing = {**{name: empty(schema) for name, schema in outputs.items()}, **Sides(flow).tables()}
        self.totals = {}
        self._owed: dict[str, pa.Table] = {}
        memory = parse_size(options.memory)
        try:
            spill = options.spill
            if spill is None and memory is not None and self.durable is not None:
                spill = self.durable.ledger.store.scratch()
            self.budget = Budget(memory, spill)
            if self.durable is not None:
                self.budget.home = self.durable.vault if self.budget.spills else None
                self._owed = self.durable.recover(self)
        except BaseException:
            if self.durable is not None:
                self.durable.close()
            raise

    def __enter__(self) -> Engine:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 trace: TracebackType | None) -> None:  # fmt: skip
        self.close()

    def close(self) -> None:
        """Let go of all state in memory; what was not committed is gone.  Twice is harmless.

        Raises `ConcurrentUse` while another thread is in a call.
        """
        with self.turns.alone("close"):
            self.turns.state = "closed"
            self.circuit, self.batchers = Circuit(self.flow, Secret(0, 0)), {}
            self.crew.close()
            if self.budget.folder is not None:
                self.budget.folder.close()
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
                raise WrongMode("step", "the flow is in hold-back mode: its sources name a time column",
                                "call push(inputs), then advance_to(frontier)")  # fmt: skip
            time = as_int64(f"step at time {time!r}", time, CLOSED - 1)
            asked = Asked("step", time)
            if (again := self._replayed(asked, epoch, inputs)) is not None:
                return again
            if time < self.frontier:
                raise TimeWentBack(f"cannot step at {time}", f"the last step was at {shown(self.last)}",
                                   "give every step a greater time")  # fmt: skip
            inflows, digest = self._admit(inputs, time, asked)
            with self._released(CLOSED, {name: inflow.batcher for name, inflow in inflows.items()}) as given:
                return self._done(asked, digest, self._take(inflows, self._judge(given, time), time + 1, time))

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
                return self._done(asked, digest, self._sealed(inflows, to))
            self._check_budget(None, inflows)
            return self._done(asked, digest, self._take(inflows, None, self.frontier, self.last))

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
            return self._done(asked, combined(asked.kind, to, {}), self._sealed({}, to))

    def commit(self) -> int:
        """Publish what was done since the last commit as one epoch, state and outputs together; its number.

        Where ``autocommit`` is on, every call did that already.  O(what changed).  Raises `Fenced` when another writer
        has committed, `StorageFull` and `StorageFailed`: it did not happen; `OutcomeUnknown`: it may have.  After any
        of them the engine goes no further: open the state again.  Raises `SpecError` where state is not durable.
        """
        with self.turns.use("commit"):
            if self.durable is None:
                raise SpecError("commit", "this engine's state is in memory", "open the flow with a state: "
                                "flow.open('state/orders')")  # fmt: skip
            with self.turns.commit:
                return self.durable.commit(self)

    # Below: what those have in common.

    def _replayed(self, asked: Asked, epoch: int | None, inputs: Mapping[str, Any]) -> Step | None:
        if self.durable is not None:
            return self.durable.replayed(asked, epoch, inputs, self)
        if epoch is not None:
            raise SpecError(f"{asked} of epoch {epoch}", "this engine's state is in memory and has no epochs",
                            "leave epoch= out, or open the flow with a state")  # fmt: skip
        return None

    def _done(self, asked: Asked, digest: str, step: Step) -> Step:
        """A call that was taken in, committed where that is asked for."""
        if self.durable is not None:
            with self.turns.commit:
                self.durable.record(asked, digest, step)
                if self.durable.autocommit:
                    self.durable.commit(self)
        return step

    def told(self, tables: Mapping[str, pa.Table], counts: Mapping[str, int], frontier: int) -> Step:
        """The step of a call that was committed: its outputs that are not empty, its verdicts."""
        return Step({**self._nothing, **tables}, Verdicts.of(counts, self._pending()), frontier)

    def output_schema(self, name: str) -> pa.Schema:
        """The columns of an output's table.  Raises `KeyError`."""
        return self._nothing[name].schema

    def _must_hold_back(self, what: str) -> None:
        if not self.flow.holds_back:
            raise WrongMode(what, "the flow is in epoch mode: its sources name no time column",
                            "call step(inputs, time=...)")  # fmt: skip

    def _admit(self, inputs: Mapping[str, Any], time: int | None, asked: Asked) -> tuple[dict[str, Inflow], str]:
        check_names(inputs, self.intakes)
        make_room(self.budget, self.circuit, self.batchers)
        out, digests = {}, dict[str, Digest]()
        for name, rows in inputs.items():
            intake, look = self.intakes[name], None
            listed = partial(verdict_rows, intake.bound) if self.lists else None
            if self.durable is not None:
                digests[name] = Digest(self.secret, name)
                look = digests[name].update
            out[name] = flowing(rows, intake, self.batchers[name], self.frontier, time, self.budget, listed, look)
        return out, combined(asked.kind, asked.time, digests) if self.durable is not None else ""

    def _sealed(self, inflows: Mapping[str, Inflow], to: int) -> Step:
        """Close the times before ``to``."""
        batchers = {name: inflows[name].batcher if name in inflows else b for name, b in self.batchers.items()}
        with self._released(to, batchers) as given:
            seen = max((int(r.times[-1]) for r in given.values() if r.total), default=self.last)
            last = max(self.last, seen) if to == CLOSED else to - 1
            return self._take(inflows, self._judge(given, last), to, last)

    def _released(self, to: int, batchers: Mapping[str, Batcher]) -> AbstractContextManager[dict[str, Released]]:
        keys = {name: intake.bound.key_schema for name, intake in self.intakes.items()}
        return released(to, batchers, keys, self.secret, self.budget)

    def _since_after(self, last: int) -> int:
        since = last - self.retain if last > NEVER + self.retain else NEVER
        return max(self.since, min(since, self.holds.least()))

    def _judge(self, given: Mapping[str, Released], last: int) -> Judged:
        rows: dict[str, list[pa.Table]] = {}
        sides = Sides(self.flow)

        def observe(judgement: Judgement) -> None:
            bound = judgement.upsert.bound
            sides.add(judgement)
            if self.lists:
                rows.setdefault(bound.name, []).append(verdict_rows(bound, judgement))

        given = self.circuit.expiring(given, last, self.budget.rows(64) if self.budget.spills else None)
        if any(not isinstance(each.pieces, list) for each in given.values() if each.total):
            make_room(self.budget, self.circuit, {}, 0)
        shelf = Shelf(self.budget.folder, self.budget.shelf, self.budget.home)
        stepped = self.circuit.judge(given, self._since_after(last), shelf, observe)
        return Judged(stepped, sides.tables(), rows)

    def _check_budget(self, judged: Judged | None, inflows: Mapping[str, Inflow]) -> None:
        if self.budget.memory is None or self.budget.spills:
            return
        more = sum(inflow.batcher.nbytes - self.batchers[name].nbytes for name, inflow in inflows.items())
        if judged is not None:
            more += judged.stepped.nbytes
            if not self.flow.holds_back:
                more = judged.stepped.nbytes
        self.budget.check(self._bytes() + more)

    def _take(self, inflows: Mapping[str, Inflow], judged: Judged | None, frontier: int, last: int) -> Step:
        """Make it so: nothing below can be refused any more but by the budget, which is looked at first."""
        self._check_budget(judged, inflows)
        counts: dict[str, int] = {}
        rows: dict[str, list[pa.Table]] = {name: [*inflow.listed] for name, inflow in inflows.items()}
        for inflow in inflows.values():
            add(counts, inflow.counts)
        for codes in judged.stepped.counts.values() if judged else ():
            add(counts, counted(codes))
        for name, more in (judged.rows if judged else {}).items():
            rows.setdefault(name, []).extend(more)
        self.turns.state = "interrupted"
        for name, inflow in inflows.items():
            if self.flow.holds_back:
                self.batchers[name] = inflow.batcher
            self.intakes[name].arrived += inflow.rows
            self.intakes[name].greatest = max(self.intakes[name].greatest, inflow.greatest)
        if judged is not None:
            for batcher in self.batchers.values():
                batcher.discard(frontier)
            since = self._since_after(last)
            self.circuit.apply(judged.stepped, frontier, since)
            self.frontier, self.last, self.since = frontier, last, since
        add(self.totals, counts)
        arrived = sum(intake.arrived for intake in self.intakes.values())
        assert arrived == sum(self.totals.values()) + self._pending(), "events in are not judged + pending"
        with suppress(SpillFull, SpillFailed, StorageFull, StorageFailed):
            make_room(
                self.budget, self.circuit, self.batchers
            )  # and if there is none: the next call asks again, before it takes anything in
        listed = None
        if self.lists:
            listed = {name: pa.concat_tables(rows.get(name, [])) for name in self.intakes if rows.get(name)}
        tables = {**self._nothing, **judged.stepped.outputs, **judged.sides} if judged else dict(self._nothing)
        for name, owed in self._owed.items():
            tables[name] = pa.concat_tables([owed, tables[name]])
        self._owed, out = {}, Step(tables, Verdicts.of(counts, self._pending(), listed), frontier)
        self.turns.state = "open"
        return out

    def _bytes(self) -> int:
        return self.circuit.nbytes + sum(batcher.nbytes for batcher in self.batchers.values())

    def _check(self) -> None:
        """Assert the invariants of everything below."""
        self.circuit._check()
        for batcher in self.batchers.values():
            batcher._check()
