"""The graph of one stage: the whole plan's operators, of which those of the stage run.

Invariant: what is put out, held and sent on by the tasks of all stages and partitions, added up, is what the whole
graph would put out and hold. A collection may be computed on several stages, on each from what has come so far; a
keyed operator reads what came together through a shuffle, where its input is computed by others; and what is sent on is
summed first, so that one update a row and time leaves a partition. What is opened of a collection of an earlier stage
is there to be looked into: it holds what that stage held, and takes no changes.

>>> import pyarrow as pa, ddflow as dd
>>> from ddflow.partitions.stages import cut
>>> flow = dd.Flow()
>>> people = flow.upserts("people", {"id": pa.int64(), "city": pa.string()}, dd.Upsert("id"))
>>> _ = flow.output("by_city", people.count("city"))
>>> graph = StageGraph(cut(flow), 1, Secret(1, 2))
>>> rows = pa.table({"city": ["Bern", "Bern"], "_time": [7, 7], "_diff": [2, 1]})
>>> graph.came = {0: as_updates(rows, graph.cut.exchanges[0].schema)}
>>> StageComputation(graph, {}, 7, UpdateBuffer(None, 0)).run().outputs["by_city"].to_pylist()
[{'city': 'Bern', 'count': 3, '_time': 7, '_diff': 1}]
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from ddflow.columns.hashing import Ints, Secret
from ddflow.columns.names import DIFF, TIME
from ddflow.columns.threads import ALONE, Threads
from ddflow.dataflow.buffer import UpdateBuffer
from ddflow.dataflow.graph import Graph, Released, Stepped
from ddflow.dataflow.step import Computation, Observe
from ddflow.errors import ExpressionError
from ddflow.operators.netting import set_apart
from ddflow.operators.updates import Updates, consolidated, few, ints
from ddflow.partitions.stages import Exchange, Stages
from ddflow.plan.collection import Collection, Columns


class StageGraph(Graph):
    """``came``: by exchange of this stage, the updates that came together.  ``sent``: by exchange of later ones, those
    that a step sends on."""

    def __init__(self, cut: Stages, stage: int, secret: Secret, threads: Threads = ALONE) -> None:
        super().__init__(cut.flow, secret, winners=False, threads=threads)
        self.cut, self.stage = cut, stage
        self.here = frozenset(cut.flow.nodes[n] for n in cut.active[stage])
        self.keeping = {node: each for node, each in self.keeping.items() if node in self.here}
        if stage:
            self.inputs = {}
        self.lent = cut.lent(stage)
        """The collections whose state this stage looks into, by earlier stage."""
        self.came: dict[int, Updates] = {}
        self.sent: dict[int, pa.Table] = {}


class StageComputation(Computation):
    """One step of a stage; ``sent`` of its graph is what it sends on."""

    def __init__(
        self,
        graph: Graph,
        released: Mapping[str, Released],
        since: int,
        buffer: UpdateBuffer,
        observe: Observe | None = None,
    ) -> None:
        super().__init__(graph, released, since, buffer, observe)
        assert isinstance(graph, StageGraph)
        self.of = graph
        cut, nodes = graph.cut, graph.plan.nodes
        self.nodes = [node for node in self.nodes if node in graph.here]
        self.suspects: dict[Collection, list[Updates]] = {}
        """The rows that an expression failed for here, by operator."""
        self.arrived_suspects: dict[Collection, Updates] = {}
        """The same, of all stages and partitions."""
        self.came: dict[tuple[Collection, Columns, bool], Updates] = {}
        for number, each in graph.came.items():
            met = cut.exchanges[number]
            if met.tests is None:
                self.came[nodes[met.of], met.by, met.events] = each
            else:
                self.arrived_suspects[nodes[met.tests]] = each
        self.kept = self.kept | {nodes[each.of] for each in cut.sum_exchanges(graph.stage) if not each.events}
        self.tests = cut.test_exchanges(graph.stage)
        if self.came:
            self.times = np.unique(np.concatenate([self.times, *(each.times for each in self.came.values())]))
            self.came = {known: _rank_times(each, self.times) for known, each in self.came.items()}

    def run(self) -> Stepped:
        """Run the step, and sum the rows for later stages.  O(events and updates)."""
        self._settle()
        stepped = super().run()
        self._send(self.of.cut.sum_exchanges(self.of.stage))
        return stepped

    def _settle(self) -> None:
        """Raise the error of an expression unless the rows that it failed for cancel."""
        for node, suspects in self.arrived_suspects.items():
            left = consolidated(suspects, self.of.secret)
            if left.diffs.size:
                self.of.running[node].compute([left], self.since)
                found = "a function failed for a row, and did not when it was called again"
                raise ExpressionError(f"compute {node.verb}", found, "let it depend on the row only")

    def _compute_netted(self, node: Collection, inputs: Sequence[Updates]) -> tuple[Updates, Any]:
        """Compute an operator of net updates; leave out rows that fail and may be cancelled elsewhere, to send them."""
        if node not in self.tests:
            return super()._compute_netted(node, inputs)
        names = self.of.needed[node.inputs[0]].names
        net = consolidated(inputs[0]._replace(rows=inputs[0].rows.select(names)), self.of.secret)
        running, by = self.of.running[node], [name for name in names if name in node.fallible] or names
        made, failing = set_apart(lambda part: running.compute([part], self.since)[0], net, by, self.of.secret)
        if failing.size:
            self.suspects.setdefault(node, []).append(self.buffer.keep(net.picked(failing)))
        return made, None

    def _send(self, sums: Iterable[Exchange]) -> None:
        """Send computed rows to some exchanges, and to others the rows that failed."""
        tests = [each for node, each in self.tests.items() if node in self.suspects]
        self.of.sent = {each.number: self._sum(each) for each in (*sums, *tests)}

    def outputs(self) -> Iterable[tuple[str, Collection]]:
        """Return the outputs of this stage."""
        here = self.of.cut.outputs[self.of.stage]
        return [(name, node) for name, node in self.of.plan.outputs.items() if name in here]

    def arrived(self, node: Collection, by: Sequence[str] | None) -> list[Updates]:
        """Return the updates that other tasks sent for a collection, or else its own updates."""
        came = self.came.get((node, tuple(node.schema.names if by is None else by), False))
        return super().arrived(node, by) if came is None else [came]

    def events(self, node: Collection) -> Updates:
        """Return the events that other tasks sent, if the input belongs to another stage."""
        came = self.came.get((node, (), True))
        return super().events(node) if came is None else came

    def _sum(self, exchange: Exchange) -> pa.Table:
        """Sum the rows that leave for an exchange: one update a row and time."""
        node, schema = self.of.plan.nodes[exchange.of], exchange.schema
        pieces = []
        given = self._pieces(node) if exchange.tests is None else self.suspects[self.of.plan.nodes[exchange.tests]]
        for piece in [self.events(node)] if exchange.events else given:
            carried = [piece.rows.column(name) for name in exchange.carried.names]
            columns = carried or [pa.repeat(True, piece.diffs.size)]
            rows = pa.Table.from_arrays([c.cast(f.type) for c, f in zip(columns, schema, strict=True)], schema=schema)
            made = consolidated(piece._replace(rows=rows), self.of.secret)
            pieces.append(self.buffer.keep(made) if self.many else made)
        return self.buffer.output(pieces, schema, pa.int64())


def as_updates(table: pa.Table, schema: pa.Schema) -> Updates:
    """Build updates from sums, with their own times, in the order of time.  O(n log n) for several times."""
    times, ranks = np.unique(table.column(TIME).to_numpy(), return_inverse=True)
    diffs: Ints = table.column(DIFF).to_numpy()
    rows = table.select(schema.names).cast(schema).combine_chunks()
    updates = Updates(rows, ranks.astype(np.int32), diffs, times if times.size else ints())
    return updates if times.size < 2 else updates.picked(np.argsort(ranks, kind="stable"))


def _rank_times(updates: Updates, times: Ints) -> Updates:
    """Rank updates among more times."""
    places = np.searchsorted(times, updates.times).astype(np.int32)
    return updates._replace(ranks=places[updates.ranks] if updates.times.size else few(), times=times)
