"""Add the outputs that a plan has and a state lacks: fill them from what the state holds, and lay inventories out
again.

Guarantees: a new output has the rows that it would have had from the beginning. An output whose rows depend on events
that the state no longer holds is refused.

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

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from itertools import product

import pyarrow as pa
from msgspec.structs import replace

from ddflow.columns.hashing import Secret
from ddflow.dataflow.budget import Budget
from ddflow.dataflow.buffer import UpdateBuffer
from ddflow.dataflow.dataflow import Dataflow
from ddflow.dataflow.graph import Graph, Stepped
from ddflow.dataflow.inflow import add
from ddflow.dataflow.result import GONE
from ddflow.engine.checkpoint import InputRecord, Inventory, OperatorRecord, StoredInventory, take
from ddflow.operators.updates import Updates, compute_netted, few, ints
from ddflow.partitions.epoch_start import Growth
from ddflow.partitions.rescale import Rescaler, moving
from ddflow.partitions.rescale_task import task
from ddflow.partitions.stages import StageComputation, StageGraph, Stages, placed
from ddflow.plan.collection import Collection, walk_inputs
from ddflow.plan.compatibility import PlanChange
from ddflow.plan.evolve import evolved
from ddflow.plan.plan import Plan
from ddflow.plan.text.codec import node_ids
from ddflow.storage.fields import encoded
from ddflow.storage.files.batch_store import BatchStore
from ddflow.storage.folder.disk import FileWriter
from ddflow.storage.manifest_log import ManifestLog
from ddflow.storage.opening import Trust
from ddflow.storage.protocol import Blob
from ddflow.time import NEVER

NOTHING = Inventory({}, {}, {})


def relaid(stages: Stages, stage: int, old: Sequence[StoredInventory], new: Inventory = NOTHING) -> Inventory:
    """Build the inventory of one partition on a stage, from its inventories on all stages.  O(files).

    ``new``: the records of inputs and operators that these lack.  Events of inputs that the plan lacks are
    counted as `GONE`.

    >>> import ddflow as dd
    >>> from ddflow.partitions.stages import cut
    >>> from ddflow.storage.inventory_text import Text
    >>> flow = dd.Flow()
    >>> _ = flow.output("people", flow.upserts("people", {"id": int}, dd.Upsert(key="id")))
    >>> old = Inventory({}, {"of another plan": OperatorRecord([])}, {"applied": 7})
    >>> made = relaid(cut(flow), 0, [StoredInventory("a file", old, Text(b"", ()))])
    >>> made.operators, made.totals
    ({}, {'applied': 7})
    """
    ids, totals = node_ids(stages.flow), dict[str, int]()
    wanted = {ids[node] for node in stages.keeping(stage)}
    operators: dict[str, OperatorRecord] = {**new.operators}
    for each in old:
        operators |= each.of.operators
    operators = {name: found for name, found in operators.items() if name in wanted}
    if stage:
        return Inventory({}, operators, {})
    inputs: dict[str, InputRecord] = {**new.inputs}
    for each in old:
        inputs |= each.of.inputs
        add(totals, each.of.totals)
    if gone := sum(_count_resolved(found) for name, found in inputs.items() if name not in stages.flow.inputs):
        add(totals, {GONE: gone})
    inputs = {name: found for name, found in inputs.items() if name in stages.flow.inputs}
    return Inventory(inputs, operators, totals)


def moved(before: Plan, now: Plan, nodes: Mapping[Collection, Collection]) -> bool:
    """Return whether two plans put rows of some operator into different partitions.  O(nodes).

    ``nodes``: by collection of the first, the same one of the second."""
    was, places = placed(before), placed(now)
    return any(was[old].by != places[new].by for old, new in nodes.items() if new.keeps)


def _count_resolved(record: InputRecord) -> int:
    """Count the events of an input that have a verdict."""
    return record.arrived - sum(run.rows - run.begin for run in record.runs)


class Growing:
    """``cut``: of the new plan.  ``change``: what it has more than the state.  ``log``: of the state.

    ``new``: what tasks must make.  Raises `PlanChanged` for what rows that are not kept would be needed for,
    `CorruptState`.

    >>> import ddflow as dd
    >>> from ddflow.partitions.stages import cut
    >>> from ddflow.storage.manifest import newest
    >>> from ddflow.storage.memory import MemoryStore
    >>> flow = dd.Flow()
    >>> people = flow.output("people", flow.upserts("people", {"id": int, "city": str}, dd.Upsert(key="id")))
    >>> with flow.open(store := MemoryStore()) as engine:
    ...     _ = engine.step({"people": [{"id": 1, "city": "Bern"}]})
    >>> _ = flow.output("by_city", people.count("city"))
    >>> change = PlanChange(outputs=["by_city"])
    >>> growing = Growing(cut(flow), change, ManifestLog(store.writer(), newest(store), set()))
    >>> growing.new.outputs, len(growing.new.operators), len(growing.inventories("owner", None))
    (('by_city',), 1, 2)
    """

    def __init__(self, cut: Stages, change: PlanChange, log: ManifestLog) -> None:
        self.cut, self.change, self.log, flow = cut, change, log, cut.flow
        graph = Graph(flow, Secret(*log.manifest.secret))
        self.old = [StoredInventory.read(log.store, each) for each in log.manifest.inventories]
        self.empty = take(Dataflow(flow, graph, Budget(None, None)), BatchStore(log.store))
        there = {name for each in self.old for name in each.of.operators}
        new = tuple(name for name in self.empty.operators if name not in there)
        self.new = Growth(tuple(change.outputs), new)
        self._check(graph)

    def _check(self, graph: Graph) -> None:
        """Raise `PlanChanged` if a new part of the plan needs rows that are not kept."""
        fed = {name for each in self.old for name, found in each.of.inputs.items() if found.arrived}
        for name in self.new.outputs:
            if lost := fed.intersection(graph.unkept(graph.plan.outputs[name])):
                raise graph.gone(f"output {name!r}", sorted(lost))
        for node, name in node_ids(graph.plan).items():
            if name in self.new.operators and (lost := fed.intersection(graph.unkept(*node.inputs))):
                raise graph.gone(f"{node.verb}({', '.join(node.schema.names)})", sorted(lost))

    def inventories(self, trust: Trust, memory: int | None) -> tuple[Blob, ...]:
        """Write the inventories that tasks start from, stage by stage.  O(files), and O(bytes) if rows must move.

        ``memory``: what that may take.  Raises `StorageFull`, `StorageFailed`."""
        many, store = self.log.manifest.partitions, self.log.store
        made = tuple(
            store.put("json", partial(_write, encoded(relaid(self.cut, stage, self.old[number::many], self.empty))))
            for stage, number in product(range(self.cut.stages), range(many))
        )
        return self._move_rows(made, trust, memory) if many > 1 and self._has_moved_rows() else made

    def _has_moved_rows(self) -> bool:
        """Return whether the new plan partitions the rows of the state differently."""
        flow = self.cut.flow
        schemas = {name: each.bound.schema for name, each in flow.inputs.items() if name not in self.change.inputs}
        was, nodes = evolved(flow, schemas, only=flow.outputs.keys() - {*self.change.outputs})
        return moved(flow, was, nodes)

    def _move_rows(self, parts: tuple[Blob, ...], trust: Trust, memory: int | None) -> tuple[Blob, ...]:
        """Move rows to their new partitions, and return the new inventories."""
        manifest, store, cut = self.log.manifest, self.log.store, self.cut
        move = moving(store, replace(manifest, inventories=parts), cut, manifest.partitions, trust, memory)
        rescaler = Rescaler(store, self.log, cut, move)
        tasks = product(range(cut.stages), range(manifest.partitions))
        return tuple(rescaler.parts([task(cut, move, stage, number, store) for stage, number in tasks]))


def _write(data: bytes, sink: FileWriter) -> None:
    sink.write(data)


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
