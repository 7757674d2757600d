"""Compute one step without changing state. Events become updates, and updates pass through the operators.

A step is computed in pieces if it would exceed its share of memory. A piece has all events whose identities are in one
range. A stateless operator processes each piece separately. Keyed operators, such as a count, and consolidations must
get equal rows of all pieces together. So the step regroups the updates of all pieces by ranges of identities. All
pieces use the same scratch memory. So the update buffer copies all data that must outlive a piece. Each node is
computed once, even if several other nodes read it.

Guarantees: the result does not depend on the number of pieces.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from operator import itemgetter
from time import perf_counter_ns
from typing import Any, Final

import numpy as np
import pyarrow as pa

from ddflow.columns.hashing import Ints, compute_identities
from ddflow.columns.names import DIFF
from ddflow.dataflow.buffer import UpdateBuffer
from ddflow.dataflow.graph import ComputedStep, Graph, ReleasedEvents
from ddflow.operators.inputs import ResolvedDifferences
from ddflow.operators.updates import FAILURES, Updates, concat, consolidate, ints, narrow_ints, rerank_updates
from ddflow.operators.upsert.events import ExpiryChange
from ddflow.operators.upsert.resolution import Resolved
from ddflow.plan.collection import Collection
from ddflow.time import NEVER
from ddflow.trace.arrangement import Arrangement
from ddflow.trace.batch import ArrangementChange

Observe = Callable[[Resolved | ResolvedDifferences], None]
NO_COLUMNS: Final = pa.table({})
GATHERED = 1 << 18
"""If a step can spill, a keyed operator computes its updates in groups of about this many updates."""


class StepComputation:
    """The computation of one step over a graph.

    ``graph``: the operators. ``released``: the events, by input. ``since``: the value of ``since`` after the step.
    ``buffer``: the buffer of the updates of a large step. ``observe``: a function that is called once with the resolved
    events of each piece.

    >>> import pyarrow as pa
    >>> from ddflow.plan.plan import Plan
    >>> from ddflow.columns.hashing import Secret
    >>> from ddflow.plan.inputs.spec import Upsert
    >>> flow = Plan()
    >>> v = flow.upserts("v", {"k": pa.int64()}, Upsert(key="k"))
    >>> _ = flow.output("n", v.count([]))
    >>> from ddflow.operators.upsert.events import Events
    >>> events = pa.record_batch({"k": [1, 2]}, schema=v.schema)
    >>> events = Events(events, np.zeros(2, np.int64), np.zeros(2, np.int64), np.arange(2))
    >>> computation = StepComputation(Graph(flow, Secret(1, 2)), {"v": ReleasedEvents.from_parts(events)}, 0,
    ...     UpdateBuffer(None, 0))
    >>> computation.run().outputs["n"].to_pylist()
    [{'count': 2, '_time': 0, '_diff': 1}]
    """

    def __init__(
        self,
        graph: Graph,
        released: Mapping[str, ReleasedEvents],
        since: int,
        buffer: UpdateBuffer,
        observe: Observe | None = None,
    ) -> None:
        self.graph, self.since, self.buffer, self.observe = graph, since, buffer, observe
        self.until = NEVER
        """The last time that the step closes."""
        self.released: dict[str, ReleasedEvents] = {}
        self.many, self.clock = False, perf_counter_ns()
        times: list[Ints] = []
        for name, each in released.items():
            if each.total:
                self.released[name] = each
                self.many = self.many or not isinstance(each.pieces, list)
                times.append(each.times)
        self.times = times[0] if len(times) == 1 else np.unique(np.concatenate([ints(), *times])) if times else ints()
        self.done: dict[Collection, list[Updates]] = {}
        self.deferred: dict[Collection, list[Updates]] = {}
        """For each operator, the input pieces for which an expression failed.

        Failed pieces are computed again when all pieces have arrived.
        """
        self.out = ComputedStep(since)
        self.nodes, self.exchange, self.kept = graph.nodes, graph.exchange, graph.whole

    def run(self) -> ComputedStep:
        """Compute the whole step. O(events and updates).

        Raises the errors of operators before any state changes.
        """
        for node in self.nodes:
            if node in self.exchange:
                self._compute_operator(node)
            elif (name := self.graph.names.get(node)) is not None and name in self.released:
                self._resolve_input(name, node)
            if self.deferred:
                self._compute_deferred_operators()
        # Also resolve the inputs that no operator reads.
        for name in self.released:
            if name not in self.out.changes:
                self._resolve_input(name, self.graph.plan.inputs[name])
        for name, node in self.list_outputs():
            pieces = self._list_updates(node) if node.consolidated else self._consolidate_output(node)
            self.out.outputs[name] = self._build_output(node, pieces)
            self._add_elapsed_time(node)
        return self.out

    def _add_elapsed_time(self, node: Collection) -> None:
        """Add the time since the previous call of this method to the total time of a node."""
        now, spent = perf_counter_ns(), self.graph.spent
        spent[node] = spent.get(node, 0) + now - self.clock
        self.clock = now

    def list_outputs(self) -> Iterable[tuple[str, Collection]]:
        """List the outputs of the step with their names."""
        return self.graph.plan.outputs.items()

    def receive_updates(self, node: Collection, by: Sequence[str] | None) -> list[Updates]:
        """Return the updates of a node for a keyed operator or an output.

        ``by``: the columns to group by; None for all columns.
        """
        del by
        return self.done.get(node) or self._list_updates(node)

    def _resolve_input(self, name: str, node: Collection) -> None:
        input, counts = self.graph.inputs[name], None
        changes: list[ArrangementChange] = []
        self.out.changes[name] = changes
        wanted = self.graph.needed.get(node)
        for events in self.released[name].pieces:
            resolved = input.resolve(events, self.times, self.since, self.graph.winners)
            counts = resolved.counts if counts is None else counts + resolved.counts
            if input.expiring is not None:
                self.out.expiry[name] = resolved.expiry.plus(self.out.expiry.get(name, ExpiryChange()))
            if self.observe is not None:
                self.observe(resolved)
            if wanted is not None:
                self._propagate_updates(node, resolved.updates(wanted))
            if self.many:
                changes += [self._spill_change_if_needed(input.output_arrangement, each) for each in resolved.changes]
            else:
                changes += resolved.changes
        assert counts is not None, "a step has released an input without events"
        self.out.counts[name] = counts

    def _spill_change_if_needed(self, arranged: Arrangement, change: ArrangementChange) -> ArrangementChange:
        """Write a change of a large step to files, if there is a store for changes."""
        if self.buffer.home is None:
            return change
        return arranged.write_change(change, self.buffer.home)

    def _build_output(self, node: Collection, pieces: Sequence[Updates]) -> pa.Table:
        """Combine the pieces of an output into a single table."""
        shown, time_type = self.graph.shown[node], self.graph.time_type
        if shown.names[-1] == DIFF:
            return self.buffer.merge_to_table(pieces, node.schema, time_type, shown)
        return self.buffer.merge_to_table(pieces, pieces[0].rows.schema, time_type).select(shown.names)

    def _compute_operator(self, node: Collection) -> None:
        """Run an operator on all pieces of its inputs.

        If the operator needs equal rows together, equal rows of different pieces are computed together.
        """
        running, changes = self.graph.running[node], self.out.kept.setdefault(node, [])
        for given in self._group_input_updates(node):
            inputs = given
            if node.reads_clock:
                inputs = [*given, Updates(NO_COLUMNS, narrow_ints(), ints(), ints(self.until))]
            try:
                updates, change = running.compute(inputs, self.since)
            except FAILURES:
                updates, change = self._retry_on_net_updates(node, inputs)
            if node.reads_clock and updates.times is not self.times:
                updates = self._list_more_times(updates)
            self._propagate_updates(node, updates)
            if node.reads_clock and change is not None and any(each.fallible for each in self.graph.followers[node]):
                self._check_waiting_rows(node, consolidate(running.select_waiting_rows(inputs), self.graph.secret))
            if change is not None:
                changes.append(running.store_change(change, self._spill_change_if_needed) if self.many else change)

    def _list_more_times(self, updates: Updates) -> Updates:
        """Add the times of updates to the times of the step.  O(updates of the step).

        Return the updates with ranks among all times.
        """
        self.times = np.union1d(self.times, updates.times)
        for pieces in (*self.done.values(), *self.deferred.values()):
            pieces[:] = [rerank_updates(each, self.times) for each in pieces]
        return rerank_updates(updates, self.times)

    def _check_waiting_rows(self, node: Collection, waiting: Updates) -> None:
        """Compute the operators that read single rows for rows that wait, so that a failing row is refused at once."""
        made = {node: waiting.take(np.flatnonzero(waiting.diffs > 0))}
        for each in self.graph.followers[node]:
            if each.inputs[0] in made:
                made[each] = self.graph.running[each].compute([made[each.inputs[0]]], self.since)[0]

    def _retry_on_net_updates(self, node: Collection, inputs: Sequence[Updates]) -> tuple[Updates, Any]:
        """Compute an operator again after an expression failed. The second attempt uses net updates.

        Raises the error of the second attempt.
        """
        net = [consolidate(each, self.graph.secret) for each in inputs]
        return self.graph.running[node].compute(net, self.since)

    def _compute_deferred_operators(self) -> None:
        """Compute the deferred operators whose input pieces have all arrived."""
        for node in self.nodes:
            if node in self.deferred:
                for (each,) in self._group_equal_rows([self.deferred.pop(node)], [None]):
                    self._propagate_updates(node, self._retry_on_net_updates(node, [each])[0])

    def _group_input_updates(self, node: Collection) -> Iterable[Sequence[Updates]]:
        """Yield groups of updates. A group has one part for each input.

        If equal rows must be in one group, the pieces are regrouped.
        """
        if node.of_events:
            return [[self.build_updates_at_time(each) for each in node.inputs]]
        by = self.graph.exchanged[node]
        equal = by[0] is not None
        every = list(map(self.receive_updates, node.inputs, by) if equal else map(self._list_updates, node.inputs))
        if {*map(len, every)} == {1}:
            return [list(map(itemgetter(0), every))]
        if equal:
            return self._group_equal_rows(every, by)
        none = [pieces[0].slice_rows(0, 0) for pieces in every]
        return ([*none[:i], piece, *none[i + 1 :]] for i, pieces in enumerate(every) for piece in pieces)

    def build_updates_at_time(self, node: Collection) -> Updates:
        """Make one update without columns for each time at which an input has events."""
        released = self.released.get(self.graph.names[node])
        ranks = np.searchsorted(self.times, ints() if released is None else released.times).astype(np.int32)
        return Updates(pa.table({}), ranks, np.ones(ranks.size, np.int64), self.times)

    def _propagate_updates(self, node: Collection, updates: Updates) -> None:
        """Pass a piece of a node's updates to the operators that read it.

        If a node needs all pieces together, the piece is kept for this node.
        """
        fresh: dict[Collection, Updates] = {node: updates}
        self._add_elapsed_time(node)
        spent = self.graph.spent
        for each in self.graph.followers[node]:
            if each.inputs[0] in fresh:
                given = [fresh[each.inputs[0]]]
                try:
                    fresh[each] = self.graph.running[each].compute(given, self.since)[0]
                except FAILURES:
                    if self.many and not each.inputs[0].consolidated:
                        self.deferred.setdefault(each, []).append(self.buffer.store_copy(given[0]))
                        continue
                    fresh[each] = self._retry_on_net_updates(each, given)[0]
                clock, self.clock = self.clock, perf_counter_ns()  # as `_add_elapsed_time` does
                spent[each] = spent.get(each, 0) + self.clock - clock
        for each, made in fresh.items():
            if each in self.kept:
                self.done.setdefault(each, []).append(self.buffer.store_copy(made) if self.many else made)

    def _list_updates(self, node: Collection) -> list[Updates]:
        """Return all pieces of a node's updates. If there are none, return one empty piece."""
        found = self.done.get(node)
        if found:
            return found
        return [Updates(self.graph.nothing[node], narrow_ints(), ints(), self.times)]

    def _consolidate_output(self, node: Collection) -> list[Updates]:
        pieces, out = self.receive_updates(node, None), []
        for (each,) in self._group_equal_rows([pieces], [None]):
            made = consolidate(each, self.graph.secret)
            out.append(self.buffer.store_copy(made) if self.many else made)
        return out

    def _group_equal_rows(
        self, inputs: Sequence[Sequence[Updates]], by: Sequence[Sequence[str] | None]
    ) -> Iterable[Sequence[Updates]]:
        """Regroup the pieces of each input so that equal rows are in one group.

        ``by``: for each input, the columns by which rows are equal; None: all columns. Each group covers one range of
        identities, and the ranges ascend from group to group.
        """
        if {*map(len, inputs)} == {1}:
            return [list(map(itemgetter(0), inputs))]
        return self._group_by_hash_range(inputs, by)

    def _group_by_hash_range(
        self, inputs: Sequence[Sequence[Updates]], by: Sequence[Sequence[str] | None]
    ) -> Iterator[Sequence[Updates]]:
        """Do the work of `_group_equal_rows` for several pieces or inputs."""
        total = sum(piece.diffs.size for pieces in inputs for piece in pieces)
        bits = (total // GATHERED).bit_length() if self.buffer.scratch is not None else 0
        every = [
            [self._sort_by_hash_range(piece, columns, bits) for piece in pieces]
            for pieces, columns in zip(inputs, by, strict=True)
        ]
        for number in range(1 << bits):
            yield [
                concat([piece.slice_rows(int(ends[number]), int(ends[number + 1])) for piece, ends in ranged])
                for ranged in every
            ]

    def _sort_by_hash_range(self, piece: Updates, by: Sequence[str] | None, bits: int) -> tuple[Updates, Ints]:
        """Sort a piece by ranges of identities. The identities are computed from the columns ``by``.

        Return the sorted piece and the end position of each range.
        """
        if not bits:
            return piece, ints(0, piece.diffs.size)
        names = piece.rows.schema.names if by is None else by
        high, _ = compute_identities(piece.rows.select(list(names)), self.graph.secret, piece.diffs.size)
        at = (high >> np.uint64(64 - bits)).astype(np.uint16)
        ends = np.concatenate([ints(0), np.cumsum(np.bincount(at, minlength=1 << bits))])
        return self.buffer.store_copy(piece.take(np.argsort(at, kind="stable"))), ends
