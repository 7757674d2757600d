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

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import TracebackType
from typing import Any, Literal

import numpy as np
import pyarrow as pa

from ddflow.batcher import Batcher, Sealed
from ddflow.budget import check_budget, parse_size
from ddflow.circuit import Circuit, Stepped
from ddflow.errors import (
    ConcurrentUse,
    EngineClosed,
    NotArrow,
    NotReadable,
    SchemaMismatch,
    SpecError,
    TimeWentBack,
    WrongMode,
)
from ddflow.flow import Flow
from ddflow.frontier import CLOSED, NEVER, advance, shown
from ddflow.identity import Secret
from ddflow.intake import Admitted, Intake
from ddflow.schema import did_you_mean
from ddflow.sides import check_listed, side_outputs, verdict_rows
from ddflow.step import Step
from ddflow.verdicts import Verdicts, counted


class Engine:
    """Runs a flow; `Flow.open` makes it.  Its options are there."""

    def __init__(self, flow: Flow, *, memory: str | int | None, verdicts: Literal["counts", "rows"], retain: int,
                 secret: Secret | None) -> None:  # fmt: skip
        if not flow.sources or not flow.outputs:
            raise SpecError("open a flow", f"it has {len(flow.sources)} sources and {len(flow.outputs)} outputs",
                            "give it at least one of each: flow.upserts(...), flow.output(...)")  # fmt: skip
        if verdicts not in ("counts", "rows"):
            raise SpecError(f"verdicts={verdicts!r}", "that is no choice", "use 'counts' or 'rows'")
        if isinstance(retain, bool) or not isinstance(retain, int) or retain < 0:
            raise SpecError(f"retain={retain!r}", "that is no number of times", "give a whole number, 0 or more")
        self.flow = flow = flow.frozen()
        self.retain, self.lists = retain, verdicts == "rows"
        if self.lists:
            for source in flow.sources.values():
                check_listed(source.bound)
        self.memory = parse_size(memory)
        self.circuit = Circuit(flow, secret or Secret.fresh(), self.lists)
        self.intakes = {name: Intake(source.bound) for name, source in flow.sources.items()}
        self.batchers = {name: Batcher() for name in flow.sources}
        self._frontier, self._last, self._since = NEVER, NEVER, NEVER
        self._totals: dict[str, int] = {}
        self._lock, self._state = threading.Lock(), "open"

    def __enter__(self) -> Engine:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 trace: TracebackType | None) -> None:  # fmt: skip
        self.close()

    def close(self) -> None:
        """Let go of all state; twice is harmless.  Raises `ConcurrentUse` while another thread is in a call."""
        with self._alone("close"):
            self._state = "closed"
            self.circuit, self.batchers = Circuit(self.flow, Secret(0, 0)), {}

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
            admitted = self._admit(inputs, time)
            stepped = self._judge({name: a.sealed for name, a in admitted.items()}, time)
            self._check_budget(stepped.nbytes, self.batchers)
            return self._take(admitted, stepped, time + 1, time, self.batchers)

    def push(self, inputs: Mapping[str, Any]) -> Step:
        """Hold-back mode: take in rows that wait for their times to close; returns what ``lateness=`` closes.

        Bad and late events get their verdicts at once.  O(rows).  Raises `WrongMode` in epoch mode, and what
        `Intake.admit` raises; nothing changes then.
        """
        with self._use("push"):
            self._must_hold_back("push")
            admitted = self._admit(inputs, None)
            batchers = {name: _with(batcher, admitted.get(name)) for name, batcher in self.batchers.items()}
            to = self._lateness_frontier(admitted)
            if to > self._frontier:
                stepped, last = self._sealed(to, batchers)
                return self._take(admitted, stepped, to, last, batchers)
            self._check_budget(0, batchers)
            return self._take(admitted, None, self._frontier, self._last, batchers)

    def advance_to(self, frontier: int) -> Step:
        """Hold-back mode: close the times below ``frontier`` (`CLOSED`: all) and return what became of them.

        O(events released) expected.  Raises `WrongMode` in epoch mode, `TimeWentBack`, `TieRefused`.
        """
        with self._use("advance_to"):
            self._must_hold_back("advance_to")
            to = advance(self._frontier, _int64(f"advance to {frontier!r}", frontier, CLOSED))
            stepped, last = self._sealed(to, self.batchers)
            return self._take({}, stepped, to, last, self.batchers)

    def read(self, name: str, as_of: int | None = None) -> pa.Table:
        """An output or a source as it is, or was at a time not before `since`: its rows, and ``_diff``, consolidated.

        O(rows of the sources it depends on).  Raises `NotReadable` for an unknown name or a time that cannot be read.
        """
        with self._use("read"):
            node = self.flow.outputs.get(name) or self.flow.sources.get(name)
            if node is None:
                known = [*self.flow.outputs, *self.flow.sources]
                raise NotReadable(f"read {name!r}", "that is no output or source", did_you_mean(name, known))
            if as_of is not None:
                as_of = _int64(f"read {name!r} as of {as_of!r}", as_of, CLOSED)
            if as_of is not None and not self._since <= as_of < max(self._frontier, NEVER + 1):
                raise NotReadable(f"read {name!r} as of {as_of}",
                                  f"it can be read from {shown(self._since)} up to, not including, "
                                  f"{shown(self._frontier)}",
                                  "read at a closed time, or open with a larger retain=")  # fmt: skip
            return self.circuit.read(node, as_of)

    def stats(self) -> dict[str, Any]:
        """Figures: frontier, verdicts, and for each arrangement its keys, batches and bytes.  O(arrangements)."""
        arrangements = {
            name: {"keys": a.keys, "batches": len(a.slots.batches), "versions": a.spine.versions,
                   "bytes": a.nbytes, "copied": a.spine.copied}
            for name, a in self.circuit.arrangements.items()
        }  # fmt: skip
        return {
            "frontier": self._frontier, "since": self._since, "verdicts": dict(self.verdicts.counts),
            "pending": self._pending(), "bytes": self._bytes(self.batchers), "arrangements": arrangements,
        }  # fmt: skip

    # Below: what those have in common.

    @contextmanager
    def _alone(self, what: str) -> Iterator[None]:
        if not self._lock.acquire(blocking=False):
            raise ConcurrentUse(what, "another call is using this engine", "give every thread its own, or a lock")
        try:
            yield
        finally:
            self._lock.release()

    @contextmanager
    def _use(self, what: str) -> Iterator[None]:
        with self._alone(what):
            if self._state != "open":
                closed = self._state == "closed"
                why = "it was closed" if closed else "a step was interrupted while it changed the state"
                raise EngineClosed(what, why, "open a new engine")
            yield

    def _must_hold_back(self, what: str) -> None:
        if not self.flow.holds_back:
            raise WrongMode(what, "the flow is in epoch mode: its sources name no time column",
                            "call step(inputs, time=...)")  # fmt: skip

    def _admit(self, inputs: Mapping[str, Any], time: int | None) -> dict[str, Admitted]:
        if not isinstance(inputs, Mapping):
            raise NotArrow(f"inputs from {type(inputs).__name__}", "it does not say which rows are for which source",
                           f"give {{name: rows}}; the sources are {list(self.intakes)}")  # fmt: skip
        for name in inputs:
            if name not in self.intakes:
                raise SchemaMismatch(f"rows for {name!r}", "there is no such source", did_you_mean(name, self.intakes))
        return {name: self.intakes[name].admit(rows, self._frontier, time) for name, rows in inputs.items()}

    def _lateness_frontier(self, admitted: Mapping[str, Admitted]) -> int:
        """Where ``lateness=`` puts the frontier: the least, over the sources, of the greatest time less it."""
        to = CLOSED
        for name, intake in self.intakes.items():
            if intake.bound.spec.lateness is None:
                return NEVER
            new = admitted[name].greatest if name in admitted else NEVER
            seen = max(intake.greatest, new)
            to = min(to, NEVER if seen == NEVER else max(seen - intake.bound.spec.lateness, NEVER))
        return to

    def _sealed(self, to: int, batchers: Mapping[str, Batcher]) -> tuple[Stepped, int]:
        sealed = {name: batcher.peek(to) for name, batcher in batchers.items()}
        seen = max((int(s.times[-1]) for s in sealed.values() if s is not None), default=self._last)
        last = max(self._last, seen) if to == CLOSED else to - 1
        stepped = self._judge(sealed, last)
        self._check_budget(stepped.nbytes - sum(s.nbytes for s in sealed.values() if s is not None), batchers)
        return stepped, last

    def _since_after(self, last: int) -> int:
        return max(self._since, last - self.retain if last > NEVER + self.retain else NEVER)

    def _judge(self, sealed: Mapping[str, Sealed | None], last: int) -> Stepped:
        return self.circuit.judge(sealed, self._since_after(last))

    def _check_budget(self, more: int, batchers: Mapping[str, Batcher]) -> None:
        if self.memory is not None:
            check_budget(self.memory, self._bytes(batchers) + more)

    def _take(self, admitted: Mapping[str, Admitted], stepped: Stepped | None, frontier: int, last: int,
              batchers: dict[str, Batcher]) -> Step:  # fmt: skip
        """Make it so: nothing below can be refused any more."""
        counts: dict[str, int] = {}
        rows: dict[str, list[pa.Table]] = {name: [] for name in self.intakes}
        for name, each in admitted.items():
            _add(counts, each.counts)
            if self.lists:
                rows[name].append(verdict_rows(self.intakes[name].bound, each))
        outputs = {name: node.schema for name, node in self.flow.outputs.items()}
        tables = dict(stepped.outputs) if stepped else {}
        for name, judgement in (stepped.judgements if stepped else {}).items():
            _add(counts, counted(judgement.counts))
            if self.lists:
                rows[name].append(verdict_rows(self.intakes[name].bound, judgement))
        sides = side_outputs(self.flow, stepped.judgements if stepped else {})
        self._state = "interrupted"
        self.batchers = batchers
        for name, each in admitted.items():
            self.intakes[name].arrived += each.rows
            self.intakes[name].greatest = max(self.intakes[name].greatest, each.greatest)
        if stepped is not None:
            for batcher in self.batchers.values():
                batcher.seal(frontier)
            self.circuit.apply(stepped, frontier, self._since_after(last))
            self._frontier, self._last, self._since = frontier, last, self._since_after(last)
        _add(self._totals, counts)
        self._state = "open"
        arrived = sum(intake.arrived for intake in self.intakes.values())
        assert arrived == sum(self._totals.values()) + self._pending(), "events in are not judged + pending"
        listed = {name: pa.concat_tables(parts) for name, parts in rows.items() if parts} if self.lists else None
        return Step(outputs, self.flow.time_type, tables, sides, Verdicts.of(counts, self._pending(), listed), frontier)

    def _pending(self) -> int:
        return sum(map(len, self.batchers.values()))

    def _bytes(self, batchers: Mapping[str, Batcher]) -> int:
        state = sum(a.nbytes for a in self.circuit.arrangements.values())
        return state + sum(batcher.nbytes for batcher in batchers.values())

    def _check(self) -> None:
        """Assert the invariants of everything below."""
        self.circuit._check()
        for batcher in self.batchers.values():
            batcher._check()


def _with(batcher: Batcher, admitted: Admitted | None) -> Batcher:
    """A batcher that also holds what was admitted; the given one is as before."""
    if admitted is None:
        return batcher
    both = Batcher()
    both.runs, both.pending = batcher.runs.copy(), batcher.pending
    both.add(admitted.sealed)
    return both


def _int64(asked: str, time: Any, most: int) -> int:
    """A time or frontier as an int.  Raises `SchemaMismatch` for anything that is none, or is above ``most``."""
    if isinstance(time, bool) or not isinstance(time, int | np.integer) or not NEVER <= time <= most:
        raise SchemaMismatch(asked, "that is no int64 time", f"give an integer, {most} at most, in the time's own unit")
    return int(time)


def _add(counts: dict[str, int], more: Mapping[str, int]) -> None:
    for name, n in more.items():
        counts[name] = counts.get(name, 0) + n
