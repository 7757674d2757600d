"""Compute and apply the steps of an opened plan, and hold its pending events and its times.

`Dataflow` is the engine's core without calls and commits. `Dataflow.step` runs in epoch mode; `Dataflow.push` and
`Dataflow.advance` run in hold-back mode. A truncate message in a step becomes one delete event for each key that exists
when the message is reached. Guarantees: a step computes all results before it changes any state.

>>> import pyarrow as pa, ddflow as dd
>>> flow = dd.Flow()
>>> _ = flow.output("people", flow.upserts("people", {"id": pa.int64()}, dd.Upsert(key="id")))
>>> dataflow = Dataflow(flow, Graph(flow, Secret(1, 2)), MemoryBudget(None, None))
>>> inflows = dataflow.ingest_inputs({"people": pa.table({"id": [1, 2]})}, time=7)
>>> dataflow.step(inflows, 7)["people"].to_pylist()
[{'id': 1, '_time': 7, '_diff': 1}, {'id': 2, '_time': 7, '_diff': 1}]
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from copy import copy
from functools import cached_property
from types import MappingProxyType
from typing import Any, Final

import numpy as np
import pyarrow as pa

from ddflow.columns.hashing import Ints, Secret
from ddflow.columns.layout import keep_freed_memory
from ddflow.columns.schema import empty_table
from ddflow.columns.threads import ALONE, Threads
from ddflow.connectors.error_location import add_file_to_error, is_path
from ddflow.dataflow.admission import DecodeProgress, InputValidator, Look
from ddflow.dataflow.batcher import Batcher
from ddflow.dataflow.budget import MemoryBudget
from ddflow.dataflow.buffer import UpdateBuffer
from ddflow.dataflow.call_guard import CallGuard
from ddflow.dataflow.graph import ComputedStep, Graph, ReleasedEvents
from ddflow.dataflow.holds import HistoryHolds, RecentSteps
from ddflow.dataflow.inflow import (
    IngestedRows,
    add_to_counts,
    build_truncate_deletes,
    compute_lateness_frontier,
    split_rows,
)
from ddflow.dataflow.result import NAMES, Step, Verdicts, count_resolved_events
from ddflow.dataflow.side_outputs import SideOutputs, build_bad_message_table, build_resolved_verdicts
from ddflow.dataflow.spill import EventRelease, spill_to_fit_budget
from ddflow.dataflow.step import StepComputation
from ddflow.errors import (
    DdflowError,
    ExpressionError,
    NotSingle,
    SpillFailed,
    SpillFull,
    StorageFailed,
    StorageFull,
)
from ddflow.errors.base import replace_error_texts, set_error_input
from ddflow.operators.inputs import ResolvedDifferences
from ddflow.operators.upsert.resolution import Resolved
from ddflow.plan.collection import Collection
from ddflow.plan.plan import Plan
from ddflow.plan.text.codec import compute_node_ids
from ddflow.storage.epochs import AttachedSource
from ddflow.storage.feeding import FeedHistory
from ddflow.time import CLOSED, NEVER, advance_frontier, format_time

NOTHING: Final = np.zeros(len(NAMES), np.int64)
"""A count of zero events for each verdict."""
NO_LOOKS: Final[Mapping[str, Sequence[Look]]] = MappingProxyType({})


class Dataflow:
    """An opened plan with its state and its times.

    ``graph``: the operators. ``lists``: whether verdicts are listed row by row. ``retain``: how many times of history
    stay. ``step``: the class that computes a step. ``frontier``: the least time that may still arrive; `NEVER` before
    the first step, `CLOSED` if no time can arrive. ``last``: the last closed time. ``before``: the last closed time
    before the current call, or `CLOSED` if its step also returns existing rows of new outputs. ``since``: reads at this
    time and later are exact.
    """

    def __init__(
        self,
        flow: Plan,
        graph: Graph,
        budget: MemoryBudget,
        lists: bool = False,
        retain: int = 0,
        threads: Threads = ALONE,
        step: type[StepComputation] = StepComputation,
    ) -> None:
        keep_freed_memory()
        self.flow, self.graph, self.budget, self.threads, self.computation = flow, graph, budget, threads, step
        self.secret, self.lists, self.retain = graph.secret, lists, retain
        self.holds_back, self.time_type = flow.holds_back, flow.time_type
        self.guard, self.holds, self.recent = CallGuard(), HistoryHolds(), RecentSteps()
        self.buffer: UpdateBuffer | None = None
        """The buffer of the last step."""
        self.taken = "open"
        """The value that `CallGuard.state` gets after a step.

        The value is "interrupted" if the call must first be recorded for a commit.
        """
        self.admissions = {name: InputValidator(input.bound) for name, input in flow.inputs.items()}
        self.batchers = {name: Batcher() for name in flow.inputs}
        outputs = {name: node.updates_schema(flow.time_type) for name, node in flow.outputs.items()}
        self.sides = flow.side_outputs()
        none = SideOutputs(self.sides, flow.time_type).build_tables()
        self.nothing = {**{name: empty_table(schema) for name, schema in outputs.items()}, **none}
        self.frontier = self.last = self.since = self.before = NEVER
        self.claimed = CLOSED
        """The least time that readers held when the last step was computed."""
        self.totals: dict[str, int] = {}
        """The number of events for each verdict since the state was created.

        `GONE` counts the events of dropped inputs.
        """
        self.fed: Mapping[str, FeedHistory] = {}
        """For each input, the history of the calls that delivered its rows."""
        self.sources: dict[str, AttachedSource] = {}
        """Maps the name of each attached source to the source and its committed position."""
        self.owed: dict[str, pa.Table] = {}
        """Maps the name of each new output to its existing rows, which the next step returns."""

    @cached_property
    def collection_ids(self) -> dict[Collection, str]:
        """The ids of all collections, computed once. Raises the errors of `compute_node_ids`."""
        return compute_node_ids(self.flow)

    @property
    def pending_count(self) -> int:
        """The number of events whose times have not closed."""
        return sum(map(len, self.batchers.values()))

    def output_schema(self, name: str) -> pa.Schema:
        """Return the schema of an output's table. Raises `KeyError`."""
        return self.nothing[name].schema

    def ingest_inputs(
        self, inputs: Mapping[str, Any], time: int | None, looks: Mapping[str, Sequence[Look]] = NO_LOOKS
    ) -> dict[str, IngestedRows]:
        """Spill state if needed. Then decode, admit and enqueue the rows of each input. O(rows).

        ``time``: the time of the step, in epoch mode. ``looks``: for each input, functions that get all its rows.

        Raises the errors of `InputValidator`, `SpillFull` and `SpillFailed`. Raises `BudgetExceeded` if a row is larger
        than the budget allows. After an error, nothing has changed.
        """
        if self.budget.home is not None:
            spill_to_fit_budget(self.budget, self.graph, self.batchers)
        out = {}
        for name, rows in inputs.items():
            out[name] = self._ingest_input(name, rows, time, looks.get(name, ()))
        return out

    def _ingest_input(self, name: str, rows: Any, time: int | None, looks: Sequence[Look]) -> IngestedRows:
        """Admit the rows of one input."""
        admission, budget = self.admissions[name], self.budget
        batcher = None if time is not None and budget.scratch is None else self.batchers[name]
        inflow = IngestedRows(admission, batcher, DecodeProgress(admission.table), self.frontier, time, budget)
        inflow.listed = [] if self.lists else None
        try:
            if admission.format is None and budget.scratch is None:
                inflow.ingest_rows(rows, looks)
                return inflow
            for portion in split_rows(rows, admission, budget.piece // 2) if budget.can_spill else (rows,):
                for part in admission.decode(portion, inflow.read):
                    if part.truncate is not None:
                        upsert = self.graph.inputs[name].require_keys(f"messages for {name!r}")
                        for deleted in list(build_truncate_deletes(upsert, inflow, part.truncate)):
                            inflow.ingest_rows(deleted)
                    inflow.ingest_rows(part.rows, looks, part.where)
        except DdflowError as error:
            set_error_input(error, name, len(self.admissions) > 1)
            if is_path(rows):
                raise add_file_to_error(rows, error) from None
            raise
        return inflow

    def step(self, inflows: Mapping[str, IngestedRows], time: int) -> Step:
        """Compute and apply a step in epoch mode. The admitted rows have the time ``time``."""
        if self.budget.scratch is None:
            released = {name: ReleasedEvents.from_parts(*inflow.chunks) for name, inflow in inflows.items()}
            return self.apply_step(inflows, self.compute_step(released, time), time + 1, time)
        batchers = {name: inflow.batcher for name, inflow in inflows.items() if inflow.batcher is not None}
        with EventRelease(CLOSED, batchers, self.graph.inputs, self.budget) as released:
            return self.apply_step(inflows, self.compute_step(released, time), time + 1, time)

    def push(self, inflows: Mapping[str, IngestedRows], to: int | None = None) -> Step:
        """Enqueue admitted rows in hold-back mode. Then close the times before ``to`` if ``to`` is after the frontier.

        ``to``: the next frontier. If ``to`` is None, `compute_lateness_frontier` computes the next frontier.
        """
        if to is None:
            to = compute_lateness_frontier(self.admissions, inflows)
        if to > self.frontier:
            return self.advance(inflows, to)
        return self.apply_step(inflows, None, self.frontier, self.last)

    def advance(self, inflows: Mapping[str, IngestedRows], to: int) -> Step:
        """Close the times before ``to``. Raises `TimeWentBack` if ``to`` is below the frontier."""
        if to < self.frontier:
            advance_frontier(self.frontier, to, self.time_type)
        batchers = self.batchers
        if inflows:
            batchers = batchers | {name: each.batcher for name, each in inflows.items() if each.batcher is not None}
        with EventRelease(to, batchers, self.graph.inputs, self.budget) as released:
            last = to - 1
            if to == CLOSED:
                last = max([self.last, *(int(r.times[-1]) for r in released.values() if r.total)])
            try:
                computed = self.compute_step(released, last, max(to - 1, NEVER))
            except (ExpressionError, NotSingle) as error:
                if not any(each.total for each in released.values()):
                    raise
                times = np.unique(np.concatenate([each.times for each in released.values()]))
                raise self._find_earliest_error(batchers, times, error) from None
            return self.apply_step(inflows, computed, to, last)

    def _find_earliest_error(
        self, batchers: Mapping[str, Batcher], times: Ints, error: ExpressionError | NotSingle
    ) -> ExpressionError | NotSingle:
        """Find the earliest time at which an expression fails, and return the error at that time.

        The search computes O(log times) steps. ``times``: the times to close. ``error``: the error of the step that
        closes all these times.
        """
        low, high = 0, times.size - 1
        while low < high:
            middle = (low + high) // 2
            try:
                with EventRelease(int(times[middle]) + 1, batchers, self.graph.inputs, self.budget) as released:
                    self.compute_step(released, int(times[middle]))
                low = middle + 1
            except (ExpressionError, NotSingle) as earlier:
                error, high = earlier, middle
        time = format_time(int(times[low]), self.time_type)
        closing = f"; the times before {time} can be closed: {time} is the greatest frontier that succeeds"
        return replace_error_texts(error, found=error.found + f", at time {time}", fix=error.fix + closing)

    def close(self) -> None:
        """Free all state in memory and remove the spill folder. A second call does nothing."""
        self.guard.state = "closed"
        self.graph, self.batchers = Graph(self.flow, Secret(0, 0)), {}
        self.threads.close()
        self.budget.close()
        self.recent.mark_ended()

    @contextmanager
    def open_read_copy(self, what: str) -> Iterator[Dataflow]:
        """Yield a copy of the dataflow with the state after the last closed step.

        Any thread can read the copy while the original dataflow continues. The method waits for the current step, but
        not for later steps. O(runs). Raises `EngineClosed`.
        """
        try:
            with self.guard.lock_for_read(what):
                out, graph, held = copy(self), self.graph, self.graph.freeze_state()
                out.sources = dict(self.sources)
                out.batchers = {name: each.copy() for name, each in self.batchers.items()}
            with graph.open_read_graph(held) as out.graph:
                yield out
        except MemoryError as error:
            raise error if isinstance(error, DdflowError) else self.guard.build_memory_error(error) from error

    def build_committed_step(self, tables: Mapping[str, pa.Table], counts: Mapping[str, int], frontier: int) -> Step:
        """Make the step of a committed call from the verdicts and the outputs of the call.

        ``tables`` omits empty outputs.
        """
        return Step({**self.nothing, **tables}, Verdicts.of(counts, self.pending_count), frontier)

    def compute_since(self, last: int) -> int:
        """Return the value of ``since`` after the step that closes the time ``last``."""
        since = last - self.retain if last > NEVER + self.retain else NEVER
        self.claimed = self.holds.find_least_time() if self.holds.used else CLOSED
        return max(self.since, min(since, self.claimed))

    def compute_step(self, released: Mapping[str, ReleasedEvents], last: int, until: int | None = None) -> ComputedStep:
        """Compute a step without changing the state. ``last``: the last time with events that the step closes.

        ``until``: the last time that the step closes, if it is another one.
        """
        listed: dict[str, list[pa.Table]] = {}
        budget, since = self.budget, self.compute_since(last)
        sides = SideOutputs(self.sides, self.time_type) if self.sides else None

        def observe(resolved: Resolved | ResolvedDifferences) -> None:
            if sides is not None:
                sides.add(resolved)
            if self.lists:
                listed.setdefault(resolved.bound.name, []).append(build_resolved_verdicts(resolved))

        if self.graph.forgets:
            released = self.graph.add_expiry_deletes(
                released, last, budget.compute_max_rows(64) if budget.can_spill else None
            )
        buffer = self.buffer
        if budget.scratch is not None or buffer is None:
            self.buffer = buffer = UpdateBuffer(budget.scratch, budget.buffered, budget.home)
        looks = observe if self.lists or self.sides else None
        computation = self.computation(self.graph, released, since, buffer, looks)
        computation.until = last if until is None else until
        if computation.many:
            spill_to_fit_budget(budget, self.graph, {}, 0)
        computed = computation.run()
        computed.listed = listed
        if sides is not None:
            computed.outputs |= sides.build_tables()
        return computed

    def update_extents(self) -> None:
        """Pass the least and the greatest value of each watermark's column to the operators."""
        every, horizons = self.admissions, self.graph.horizons
        horizons.set_extents({name: (every[name].least, every[name].greatest) for name in horizons.marks})
        for name, input in self.graph.inputs.items():
            input.horizon = horizons.words.get(name, NEVER)

    def check_budget(self, computed: ComputedStep | None, inflows: Mapping[str, IngestedRows]) -> None:
        """Raise `BudgetExceeded` if the rows would exceed the budget and there is no spill folder."""
        if self.budget.memory is None or self.budget.can_spill:
            return
        more = 0 if computed is None else computed.nbytes
        for name, inflow in inflows.items():
            more += 0 if inflow.batcher is None else inflow.batcher.nbytes - self.batchers[name].nbytes
        self.budget.check_state_size(self.nbytes + more)

    def apply_step(
        self, inflows: Mapping[str, IngestedRows], computed: ComputedStep | None, frontier: int, last: int
    ) -> Step:
        """Apply a computed step. Only `check_budget` can refuse the step, before any change."""
        if self.budget.memory is not None:
            self.check_budget(computed, inflows)
        counts: dict[str, int] = {}
        if computed is not None and computed.counts:
            every = [*computed.counts.values()]
            total = every[0] if len(every) == 1 else sum(every, NOTHING)
            for name, n in zip(NAMES, total.tolist(), strict=True):
                if n:
                    counts[name] = n
        self.guard.state = "interrupted"
        for name, inflow in inflows.items():
            if inflow.counts:
                add_to_counts(counts, inflow.counts)
            if self.holds_back and inflow.batcher is not None:
                self.batchers[name] = inflow.batcher
            admission = self.admissions[name]
            admission.arrived += inflow.rows
            admission.least, admission.table = min(admission.least, inflow.least), inflow.read.table
            admission.greatest = max(admission.greatest, inflow.greatest)
        if self.graph.horizons.marks:
            self.update_extents()
        if computed is not None:
            for batcher in self.batchers.values() if self.holds_back else ():
                batcher.discard(frontier)
            self.graph.apply_computed_step(computed, frontier)
            self.before = CLOSED if self.owed else self.last
            self.frontier, self.last, self.since = frontier, last, computed.since
        if counts:
            add_to_counts(self.totals, counts)
        pending = arrived = 0
        if self.holds_back:
            for batcher in self.batchers.values():
                pending += batcher.pending
        for admission in self.admissions.values():
            arrived += admission.arrived
        assert arrived == count_resolved_events(self.totals) + pending, "events in are not resolved + pending"
        if self.budget.home is not None:
            with suppress(SpillFull, SpillFailed, StorageFull, StorageFailed):
                # A failed spill loses nothing, because the next call spills again before it ingests rows.
                spill_to_fit_budget(self.budget, self.graph, self.batchers)
        tables = {**self.nothing, **(computed.outputs if computed else {})}
        for name, inflow in inflows.items():
            if inflow.bad:
                tables[f"{name}.bad"] = build_bad_message_table(
                    inflow.bad, self._choose_default_time(frontier, last), self.time_type
                )
        for name, owed in self.owed.items():
            tables[name] = pa.concat_tables([owed, tables[name]])
        listed = self._build_verdict_tables(inflows, computed) if self.lists else None
        self.owed, out = {}, Step(tables, Verdicts.of(counts, pending, listed), frontier)
        self.guard.state = self.taken
        return out

    def _choose_default_time(self, frontier: int, last: int) -> int:
        """Return the time for unreadable messages: the last closed time, or in hold-back mode the frontier."""
        if not self.holds_back:
            return last
        return 0 if frontier in (NEVER, CLOSED) else frontier

    def _build_verdict_tables(
        self, inflows: Mapping[str, IngestedRows], computed: ComputedStep | None
    ) -> dict[str, pa.Table]:
        """Build the verdict rows of each input.

        Rows of events that were refused on arrival precede rows of resolved events.
        """
        refused, resolved = (
            {name: inflow.listed for name, inflow in inflows.items()},
            computed.listed if computed else {},
        )
        every = {name: [*(refused.get(name) or ()), *resolved.get(name, ())] for name in self.admissions}
        return {name: pa.concat_tables(tables) for name, tables in every.items() if tables}

    @property
    def nbytes(self) -> int:
        """The memory in bytes that state and pending events take."""
        return self.graph.nbytes + sum(batcher.nbytes for batcher in self.batchers.values())

    def _check_invariants(self) -> None:
        """Assert the invariants of the graph and the batchers."""
        self.graph._check_invariants()
        for batcher in self.batchers.values():
            batcher._check_invariants()
