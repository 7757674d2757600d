"""The engine: a plan, opened.  Steps in, differences and verdicts out; the collections can be read at any time.

Invariant: a call either happens whole or not at all.  Everything is computed before anything changes, so a refused step
(a null key, a tie, an overflow) leaves the engine as it was, and events in = judged + pending holds after every call.
Why that is not trivial: a step touches several sources and several operators with state.  A step that is interrupted
while it takes its changes in cannot be undone in memory; the engine then refuses to go on.  One thread at a time.

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

import numpy as np
import pyarrow as pa

from ddflow.batcher import Batcher
from ddflow.budget import Budget, parse_size
from ddflow.circuit import Circuit
from ddflow.computation import Released, Stepped
from ddflow.crew import Crew
from ddflow.errors import (
    NotReadable,
    SchemaMismatch,
    SpecError,
    SpillFailed,
    SpillFull,
    TimeWentBack,
    WrongMode,
)
from ddflow.flow import Collection, Flow
from ddflow.frontier import CLOSED, NEVER, advance, shown
from ddflow.history import changes, check_readable
from ddflow.identity import Secret
from ddflow.inflow import Inflow, add, check_names, flowing, lateness_frontier
from ddflow.intake import Intake
from ddflow.operators.upsert import Judgement
from ddflow.options import Options
from ddflow.reader import Holds, Reader
from ddflow.schema import did_you_mean, empty
from ddflow.shelf import Shelf
from ddflow.sides import Sides, check_listed, verdict_rows
from ddflow.spilling import make_room, released
from ddflow.stats import Arranged, Stats
from ddflow.step import Step, updates_schema
from ddflow.turns import Turns
from ddflow.verdicts import Verdicts, counted


class Judged(NamedTuple):
    """A step that was computed, and is not taken in yet."""

    stepped: Stepped
    sides: dict[str, pa.Table]
    rows: dict[str, list[pa.Table]]
    """By source, verdict rows, when they are asked for."""


class Engine:
    """Runs a flow; `Flow.open` makes it.  Its options are there."""

    def __init__(self, flow: Flow, options: Options) -> None:
        if not flow.sources or not flow.outputs:
            raise SpecError("open a flow", f"it has {len(flow.sources)} sources and {len(flow.outputs)} outputs",
                            "give it at least one of each: flow.upserts(...), flow.output(...)")  # fmt: skip
        self.flow = flow = flow.frozen()
        self.retain, self.lists = options.retain, options.verdicts == "rows"
        if self.lists:
            for source in flow.sources.values():
                check_listed(source.bound)
        self.budget = Budget(parse_size(options.memory), options.spill)
        self.secret, self.crew = options.secret or Secret.fresh(), Crew(options.threads)
        self.circuit = Circuit(flow, self.secret, self.lists, self.crew)
        self.intakes = {name: Intake(source.bound) for name, source in flow.sources.items()}
        self.batchers = {name: Batcher() for name in flow.sources}
        self.holds = Holds()
        outputs = {name: updates_schema(node.schema, flow.time_type) for name, node in flow.outputs.items()}
        self._nothing = {**{name: empty(schema) for name, schema in outputs.items()}, **Sides(flow).tables()}
        self._frontier, self._last, self._since = NEVER, NEVER, NEVER
        self._totals: dict[str, int] = {}
        self.turns = Turns()

    def __enter__(self) -> Engine:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 trace: TracebackType | None) -> None:  # fmt: skip
        self.close()

    def close(self) -> None:
        """Let go of all state; twice is harmless.  Raises `ConcurrentUse` while another thread is in a call."""
        with self.turns.alone("close"):
            self.turns.state = "closed"
            self.circuit, self.batchers = Circuit(self.flow, Secret(0, 0)), {}
            self.crew.close()
            if self.budget.folder is not None:
                self.budget.folder.close()

    @property
    def frontier(self) -> int:
        """The least time that may still come: `NEVER` before the first step, `CLOSED` when none can."""
        return self._frontier

    @property
    def since(self) -> int:
        """Reads at this time and later are exact."""
        return self._since

    @property
    def verdicts(self) -> Verdicts:
        """What became of all events since the engine was opened."""
        return Verdicts.of(self._totals, self._pending())

    def step(self, inputs: Mapping[str, Any], time: int) -> Step:
        """Epoch mode: take in rows of any sources as one epoch, stamped ``time``, above that of the last step.

        ``inputs``: by source, anything that speaks Arrow.  O(rows) expected.  Raises `WrongMode` in hold-back mode,
        `TimeWentBack`, and what `Intake.admit` raises; nothing changes then.
        """
        with self._use("step"):
            if self.flow.holds_back:
                raise WrongMode("step", "the flow is in hold-back mode: its sources name a time column",
                                "call push(inputs), then advance_to(frontier)")  # fmt: skip
            time = _int64(f"step at time {time!r}", time, CLOSED - 1)
            if time < self._frontier:
                raise TimeWentBack(f"cannot step at {time}", f"the last step was at {shown(self._last)}",
                                   "give every step a greater time")  # fmt: skip
            inflows = self._admit(inputs, time)
            with self._released(CLOSED, {name: inflow.batcher for name, inflow in inflows.items()}) as given:
                return self._take(inflows, self._judge(given, time), time + 1, time)

    def push(self, inputs: Mapping[str, Any]) -> Step:
        """Hold-back mode: take in rows that wait for their times to close; returns what ``lateness=`` closes.

        Bad and late events get their verdicts at once.  O(rows).  Raises `WrongMode` in epoch mode, and what
        `Intake.admit` raises; nothing changes then.
        """
        with self._use("push"):
            self._must_hold_back("push")
            inflows = self._admit(inputs, None)
            to = lateness_frontier(self.intakes, inflows)
            if to > self._frontier:
                return self._sealed(inflows, to)
            self._check_budget(None, inflows)
            return self._take(inflows, None, self._frontier, self._last)

    def advance_to(self, frontier: int) -> Step:
        """Hold-back mode: close the times below ``frontier`` (`CLOSED`: all) and return what became of them.

        O(events released) expected.  Raises `WrongMode` in epoch mode, `TimeWentBack`, `TieRefused`.
        """
        with self._use("advance_to"):
            self._must_hold_back("advance_to")
            to = advance(self._frontier, _int64(f"advance to {frontier!r}", frontier, CLOSED))
            return self._sealed({}, to)

    def read(self, name: str, as_of: int | None = None) -> pa.Table:
        """An output or a source as it is, or was at a time not before `since`: its rows, and ``_diff``, consolidated.

        O(rows of the sources it depends on).  Raises `NotReadable` for an unknown name or a time that cannot be read.
        """
        with self._use("read"):
            node = self._node(name)
            if as_of is not None:
                as_of = self._closed(f"read {name!r} as of {as_of!r}", as_of)
            return self.circuit.read(node, as_of)

    def changes(self, name: str, t1: int, t2: int) -> pa.Table:
        """The net differences of an output or a source from one time to another: half open, so that what it was as of
        ``t1``, plus these, is what it was as of ``t2``.  Its rows, and ``_diff``, consolidated.

        O(rows of the sources it depends on).  Raises `NotReadable` as `read` does.
        """
        with self._use("changes"):
            node, asked = self._node(name), f"changes of {name!r} from {t1!r} to {t2!r}"
            return changes(self.circuit, node, self._closed(asked, t1), self._closed(asked, t2))

    def reader(self, name: str, at: int | None = None) -> Reader:
        """A reader of an output or a source, which holds ``since`` back at its time while it lives.

        ``at``: that time, by default the last closed one.  O(log readers).  Raises `NotReadable` as `read` does.
        """
        with self._use("reader"):
            self._node(name)
            return Reader(self, name, self._closed(f"a reader of {name!r} at {at!r}", at))

    def stats(self) -> Stats:
        """Figures: keys, batches, bytes by where they are, merges owed, verdicts.  Prints as a table.

        O(arrangements and their runs).
        """
        arrangements = {name: Arranged.of(arranged) for name, arranged in self.circuit.arrangements.items()}
        return Stats(
            frontier=self._frontier, since=self._since, arrangements=arrangements, pending=self._pending(),
            bytes_pending=sum(b.nbytes for b in self.batchers.values()), verdicts=self.verdicts.counts,
            budget=self.budget.memory, bytes_pending_mapped=sum(b.mapped for b in self.batchers.values()),
        )  # fmt: skip

    # Below: what those have in common.

    def _use(self, what: str) -> Turns:
        return self.turns.use(what)

    def _must_hold_back(self, what: str) -> None:
        if not self.flow.holds_back:
            raise WrongMode(what, "the flow is in epoch mode: its sources name no time column",
                            "call step(inputs, time=...)")  # fmt: skip

    def _node(self, name: str) -> Collection:
        node = self.flow.outputs.get(name) or self.flow.sources.get(name)
        if node is None:
            known = [*self.flow.outputs, *self.flow.sources]
            raise NotReadable(f"read {name!r}", "that is no output or source", did_you_mean(name, known))
        return node

    def _closed(self, asked: str, time: Any) -> int:
        """A time that can be read; by default the last closed one."""
        time = max(self._last, self._since) if time is None else _int64(asked, time, CLOSED)
        return check_readable(asked, time, self._since, self._frontier)

    def _admit(self, inputs: Mapping[str, Any], time: int | None) -> dict[str, Inflow]:
        check_names(inputs, self.intakes)
        make_room(self.budget, self.circuit, self.batchers)
        out = {}
        for name, rows in inputs.items():
            intake = self.intakes[name]
            listed = partial(verdict_rows, intake.bound) if self.lists else None
            out[name] = flowing(rows, intake, self.batchers[name], self._frontier, time, self.budget, listed)
        return out

    def _sealed(self, inflows: Mapping[str, Inflow], to: int) -> Step:
        """Close the times before ``to``."""
        batchers = {name: inflows[name].batcher if name in inflows else b for name, b in self.batchers.items()}
        with self._released(to, batchers) as given:
            seen = max((int(r.times[-1]) for r in given.values() if r.total), default=self._last)
            last = max(self._last, seen) if to == CLOSED else to - 1
            return self._take(inflows, self._judge(given, last), to, last)

    def _released(self, to: int, batchers: Mapping[str, Batcher]) -> AbstractContextManager[dict[str, Released]]:
        keys = {name: intake.bound.key_schema for name, intake in self.intakes.items()}
        return released(to, batchers, keys, self.secret, self.budget)

    def _shelf(self) -> Shelf:
        return Shelf(self.budget.folder, self.budget.shelf)

    def _since_after(self, last: int) -> int:
        since = last - self.retain if last > NEVER + self.retain else NEVER
        return max(self._since, min(since, self.holds.least()))

    def _judge(self, given: Mapping[str, Released], last: int) -> Judged:
        rows: dict[str, list[pa.Table]] = {}
        sides = Sides(self.flow)

        def observe(judgement: Judgement) -> None:
            bound = judgement.upsert.bound
            sides.add(judgement)
            if self.lists:
                rows.setdefault(bound.name, []).append(verdict_rows(bound, judgement))

        if any(not isinstance(each.pieces, list) for each in given.values() if each.total):
            make_room(self.budget, self.circuit, {}, 0)
        stepped = self.circuit.judge(given, self._since_after(last), self._shelf(), observe)
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
            self._frontier, self._last, self._since = frontier, last, since
        add(self._totals, counts)
        self.turns.state = "open"
        arrived = sum(intake.arrived for intake in self.intakes.values())
        assert arrived == sum(self._totals.values()) + self._pending(), "events in are not judged + pending"
        with suppress(SpillFull, SpillFailed):
            make_room(
                self.budget, self.circuit, self.batchers
            )  # and if there is none: the next call asks again, before it takes anything in
        listed = None
        if self.lists:
            listed = {name: pa.concat_tables(rows.get(name, [])) for name in self.intakes if rows.get(name)}
        tables = {**self._nothing, **judged.stepped.outputs, **judged.sides} if judged else self._nothing
        return Step(tables, Verdicts.of(counts, self._pending(), listed), frontier)

    def _pending(self) -> int:
        return sum(map(len, self.batchers.values()))

    def _bytes(self) -> int:
        state = sum(a.nbytes for a in self.circuit.arrangements.values())
        return state + sum(batcher.nbytes for batcher in self.batchers.values())

    def _check(self) -> None:
        """Assert the invariants of everything below."""
        self.circuit._check()
        for batcher in self.batchers.values():
            batcher._check()


def _int64(asked: str, time: Any, most: int) -> int:
    """A time or frontier as an int.  Raises `SchemaMismatch` for anything that is none, or is above ``most``."""
    if isinstance(time, bool) or not isinstance(time, int | np.integer) or not NEVER <= time <= most:
        raise SchemaMismatch(asked, "that is no int64 time", f"give an integer, {most} at most, in the time's own unit")
    return int(time)
