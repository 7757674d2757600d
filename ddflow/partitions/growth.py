"""What a stage gives to outputs that are new on a state: one step in which all that they are made of comes anew.

Invariant: what the tasks of all stages and partitions put out, added up, is what a new output holds as of the last
closed time, and what they leave in new operators is what these would hold, had the plan always had them. What the state
holds already does not change: it is read where it lies, and goes through operators without state, through exchanges and
into the new operators as the updates of a step do. Only exchanges that lead to something new are used. In a state that
closed no time nothing is made.

>>> import pyarrow as pa, ddflow as dd
>>> from ddflow.columns.hashing import Secret
>>> from ddflow.partitions.stages import cut
>>> flow = dd.Flow()
>>> people = flow.output("people", flow.upserts("people", {"id": pa.int64(), "city": pa.string()}, dd.Upsert(key="id")))
>>> _ = flow.output("cities", people.project(["city"]))
>>> _ = flow.output("by_city", people.count("city"))
>>> graph = StageGraph(cut(flow), 0, Secret(1, 2))
>>> made = GrowthComputation(graph, Growth(("cities",), ()), last=7, upper=8, since=7, buffer=UpdateBuffer(None, 0))
>>> [each.of for each in made.sending], list(made.run().outputs)
([1], [])
"""

from collections.abc import Iterable, Sequence
from functools import partial

import pyarrow as pa

from ddflow.dataflow.buffer import UpdateBuffer
from ddflow.dataflow.graph import Graph, Stepped
from ddflow.operators.netting import compute_netted
from ddflow.operators.updates import Updates, few, ints
from ddflow.partitions.epoch_start import Growth
from ddflow.partitions.stage_graph import StageComputation, StageGraph
from ddflow.plan.codec import node_ids
from ddflow.plan.collection import Collection, walk_inputs
from ddflow.time import NEVER


class GrowthComputation(StageComputation):
    """``growth``: what is new.  ``last``: the last closed time, which is stamped.  ``upper``: the frontier.  The new
    operators of ``graph`` are filled when it has run; nothing else changes."""

    def __init__(
        self, graph: StageGraph, growth: Growth, last: int, upper: int, since: int, buffer: UpdateBuffer
    ) -> None:
        super().__init__(graph, {}, since, buffer)
        self.growth, self.last, self.upper = growth, last, upper
        self.times, self.many = ints(last), True  # what is held comes in pieces
        self.new = new_operators(graph, growth)
        computed = set(_find_computed(graph, growth))
        shown = set(self._outputs().values())
        read = computed.union(shown, *(node.inputs for node in computed))
        self.nodes = [node for node in self.nodes if node in read]
        known = {
            (of, tuple(by or ()), node.of_events)
            for node in computed & graph.exchange
            for of, by in zip(node.inputs, node.exchange(), strict=True)
        }
        nodes = graph.plan.nodes
        known |= {(node, tuple(node.schema.names), False) for node in shown}
        self.sending = [
            e for e in graph.cut.sum_exchanges(graph.stage) if (nodes[e.of], tuple(e.by), e.events) in known
        ]

    def run(self) -> Stepped:
        """Fill new operators, and return the rows of new outputs.  O(rows that they are made of)."""
        self.of.sent = {}
        if self.last == NEVER:
            return self.out
        self._settle()
        inputs, secret = {each for each in self.graph.names if self.of.stage == 0}, self.graph.secret
        for node in self.nodes:
            if node in self.new:
                self._fill(node)
            if node in inputs or node in self.graph.keeping:
                self._give(node)
            elif node in self.exchange:
                running = self.graph.running[node]
                for given in self._group_inputs(node):
                    self._propagate(node, compute_netted(running.from_nothing, given, secret))
            self._catch_up()
        for name, node in self.outputs():
            pieces = self._pieces(node) if node.consolidated else self.arrived(node, None)
            self.out.outputs[name] = self.buffer.table(self._output_tables(node, pieces))
        self._send(self.sending)
        return self.out

    def outputs(self) -> Iterable[tuple[str, Collection]]:
        """Return the new outputs of this stage."""
        return [(name, node) for name, node in super().outputs() if name in self.growth.outputs]

    def events(self, node: Collection) -> Updates:
        """Return one event of each input on its stage: a state that closed a time has had events."""
        if self.of.stage:
            return super().events(node)
        return Updates(pa.table({}), few(0), ints(1), self.times)

    def _outputs(self) -> dict[str, Collection]:
        return {name: self.of.plan.outputs[name] for name in self.growth.outputs}

    def _output_tables(self, node: Collection, pieces: Sequence[Updates]) -> Iterable[pa.Table]:
        """Yield the rows of an output as its tables."""
        graph, given = self.graph, [node.schema.names]
        for (each,) in self._together([pieces], given):
            yield graph.opened[node].output(each, graph.secret, node.schema, graph.time_type)

    def _fill(self, node: Collection) -> None:
        """Build the state of an operator from the rows of its inputs."""
        running, changes = self.graph.running[node], []
        for inputs in self._group_inputs(node):
            change = compute_netted(partial(running.filling, since=self.since), inputs, self.graph.secret)
            if change is not None:
                changes.append(running.outlives(change, self._store_change))
        running.apply(changes, self.upper, self.since)

    def _give(self, node: Collection) -> None:
        """Send the rows of a collection to all that read it."""
        names = self.graph.needed[node].names
        for piece in self.graph.opened[node].pieces(None):
            self._propagate(node, piece._replace(rows=piece.rows.select(names), times=self.times))


def new_operators(graph: Graph, growth: Growth) -> set[Collection]:
    """Return the operators whose state is in no file.  O(nodes)."""
    return {node for node, name in node_ids(graph.plan).items() if name in growth.operators}


def _find_computed(graph: Graph, growth: Growth) -> Iterable[Collection]:
    """Return the collections to compute for the new parts of a plan: they are new, or hold nothing.  O(nodes)."""
    new = new_operators(graph, growth)

    def is_computed(node: Collection) -> bool:
        return bool(node.inputs) and (node in new or not graph.opened[node].arrangements)

    roots = [*new, *(graph.plan.outputs[name] for name in growth.outputs)]
    found = walk_inputs(roots, lambda node: node.inputs if is_computed(node) else ())
    return {node for node in found if is_computed(node)}
