"""Growing: what a plan has more than a state of many partitions, before the first epoch with it.

Invariant: nothing is published here, so what fails leaves the state as it was. The inventories are written again as the
stages of the new plan have them, with nothing in what is new; tasks then make that of what the state holds
(``growth``), and the next epoch goes on from there, and publishes all of it with what new outputs held. Where an
operator that there was is partitioned otherwise by the new plan, a rescaling to as many partitions comes between, by
the driver. What would need rows that nobody kept is refused.

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

from functools import partial
from itertools import product

from msgspec.structs import replace

from ddflow.columns.hashing import Secret
from ddflow.dataflow.budget import Budget
from ddflow.dataflow.dataflow import Dataflow
from ddflow.dataflow.graph import Graph
from ddflow.engine.checkpoint import StoredInventory, take
from ddflow.partitions.epoch_start import Growth
from ddflow.partitions.relaid import moved, relaid
from ddflow.partitions.rescale import Rescaler, moving
from ddflow.partitions.rescale_task import task
from ddflow.partitions.stages import Stages
from ddflow.plan.codec import node_ids
from ddflow.plan.compatibility import PlanChange
from ddflow.plan.evolve import evolved
from ddflow.storage.batch_store import BatchStore
from ddflow.storage.fields import encoded
from ddflow.storage.file_writer import FileWriter
from ddflow.storage.manifest_log import ManifestLog
from ddflow.storage.opening import Trust
from ddflow.storage.protocol import Blob


class Growing:
    """``cut``: of the new plan.  ``change``: what it has more than the state.  ``log``: of the state.

    ``new``: what tasks must make.  Raises `PlanChanged` for what rows that are not kept would be needed for,
    `CorruptState`."""

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
