"""One partition of a state that is split or joined: what it takes over from the partitions there were.

Invariant: the partitions made, all together, read at every time from ``since`` on as those before did, go on as those
would have, and each holds its own keys (`identity.partition_of`) and no others. It is a pure task: it reads files that
do not change, and writes new ones that no manifest names; whoever runs it twice has garbage, and no harm. Its versions
lie in many runs and in merges half done, of several partitions, and become one run; a count that stands with the keys
it was made of lies where *those* are, which its groups' identities do not say, so its rows are asked; pending events
get new arrival numbers, of which a partition has its own; and events that were resolved are accounted for in one place,
the first partition with a share. It publishes nothing (``rescale``).

>>> import ddflow as dd
>>> from ddflow.partitions.stages import cut
>>> from ddflow.partitions.rescale import Rescaler
>>> from ddflow.storage.memory import MemoryStore
>>> flow = dd.Flow()
>>> _ = flow.output("people", flow.upserts("people", {"id": pa.int64()}, dd.Upsert(key="id")))
>>> with flow.open(store := MemoryStore(), secret=dd.Secret(1, 2)) as engine:
...     _ = engine.step({"people": pa.table({"id": range(100)})}, time=1)
>>> with Rescaler.open(store.writer(), 2) as rescaler:
...     made = [task(cut(flow), rescaler.move, stage, number) for stage, number in rescaler.tasks]
>>> [(each.number, each.versions) for each in made], sum(each.versions for each in made)
([(0, 42), (1, 58)], 100)
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial
from time import perf_counter_ns
from typing import Annotated, Any, Final, TypeVar

import numpy as np
import pyarrow as pa
from msgspec import Meta, structs
from msgspec.json import Decoder

from ddflow.columns.hashing import Ints, RowHashes, Secret
from ddflow.columns.widening import filled
from ddflow.dataflow import batcher as pending
from ddflow.dataflow.batcher import Batcher
from ddflow.dataflow.inflow import add
from ddflow.engine.checkpoint import Inventories
from ddflow.engine.inventory import InputRecord, Inventory, OperatorRecord, StoredInventory
from ddflow.errors import CorruptState
from ddflow.operators.base import Context, Running
from ddflow.operators.upsert.events import Events
from ddflow.operators.upsert.upsert import RunningUpsert
from ddflow.partitions.key_ranges import first_of, overlapping
from ddflow.partitions.move import Move
from ddflow.partitions.receipt import AGAIN, STAGES
from ddflow.partitions.rescale_rows import MovedRows, Opened
from ddflow.partitions.stages import Stages, placed
from ddflow.plan.bind import Bound
from ddflow.plan.codec import node_ids
from ddflow.plan.collection import Collection, Columns
from ddflow.plan.plan import Input
from ddflow.storage.batch_store import BatchStore
from ddflow.storage.fields import MEND, Natural, Strict, decoded, encoded
from ddflow.storage.manifest import PARTITIONS
from ddflow.storage.naming import names_in
from ddflow.storage.protocol import Blob, Store
from ddflow.time import NEVER
from ddflow.trace.recast import rekeys
from ddflow.trace.records import ArrangementRecord

T = TypeVar("T")


class Moved(Strict, frozen=True):
    """One partition of a stage, made.  ``inventory``: of it.  ``added``: the files that names.  ``versions``,
    ``pending``: how many it holds.  ``figures``: microseconds and bytes."""

    stage: Annotated[int, Meta(ge=0, lt=STAGES)]
    number: Annotated[int, Meta(ge=0, lt=PARTITIONS)]
    inventory: Blob
    added: tuple[Blob, ...]
    versions: Natural
    pending: Natural
    figures: dict[str, Natural]

    def to_json(self) -> bytes:
        """Its bytes.  O(files)."""
        return encoded(self)

    @classmethod
    def from_json(cls, data: bytes, what: str) -> Moved:
        """From those again.  ``what``: whose, for messages.  O(bytes).  Raises `CorruptState`."""
        return decoded(_DECODER, data, what, AGAIN)


_DECODER: Final = Decoder(Moved)


def task(cut: Stages, move: Move, stage: int, number: int, store: Store | None = None) -> Moved:
    """Make one partition of a stage.  O(bytes of the share of it), in memory that of a piece, or of ``start.memory``.

    ``store``: the state's, where it is open here.  Raises `StateRefused` where it cannot be seen, `CorruptState`,
    `StorageFull`, `StorageFailed`; what was written is deleted then.
    """
    began = perf_counter_ns()
    own = move.start.version.opened("rescale", readonly=False) if store is None else store
    try:
        made = _Task(cut, move, stage, number, own).made()
        if store is None:
            own.sync()
    finally:
        if store is None:
            own.close()
    written = made.inventory.length + sum(blob.length for blob in made.added)
    return structs.replace(made, figures={"task": (perf_counter_ns() - began) // 1000, "bytes": written})


class _Task:
    def __init__(self, cut: Stages, move: Move, stage: int, number: int, store: Store) -> None:
        self.cut, self.move, self.stage, self.number = cut, move, stage, number
        self.store, self.batch_store, self.secret = store, BatchStore(store), Secret(*move.start.secret)
        self.home = None if move.start.memory is None else self.batch_store
        self.rows = MovedRows(self.batch_store, self.home, move, number)
        # What is written is deleted when nobody refers to it, until it is known to be of use.
        self._held: list[Any] = []
        before = move.start.partitions
        self.old = self._stored(overlapping(number, move.partitions, before))
        self.inventories = Inventories(list(self.old.values()), len(self.old))
        self.first_share = {n for n in self.old if first_of(n, before, move.partitions) == number}
        self.ids = node_ids(cut.flow)
        self.before: dict[str, Collection] = {}
        """By id, the collections of the plan before; none where it is the same."""
        if move.before is not None:
            self.before = {name: node for node, name in node_ids(move.before).items()}

    def _stored(self, numbers: Iterable[int]) -> dict[int, StoredInventory]:
        """What some partitions of the stage held before."""
        return {n: StoredInventory.read(self.store, self.move.start.inventories[self.stage][n]) for n in numbers}

    def made(self) -> Moved:
        """The partition, written.  O(bytes of those it has keys in common with)."""
        waiting, inputs, totals = 0, dict[str, InputRecord](), dict[str, int]()
        for name, input in self.cut.flow.inputs.items() if self.stage == 0 else ():
            inputs[name], batcher = self._input(name, input)
            waiting += len(batcher)
        for n in sorted(self.first_share) if self.stage == 0 else ():
            add(totals, self.old[n].of.totals)
        ids, alone = self.ids, self.move.partitions == self.move.start.partitions == 1
        places = {} if alone else {node: each.by for node, each in placed(self.cut.flow).items()}
        operators = {
            ids[node]: OperatorRecord(self._operator(node, ids[node], places.get(node, node.exchange()[0]) or ()))
            for node in self.cut.flow.nodes
            if node in self.cut.keeping(self.stage) and node.open(self._context(node)).arrangements
        }
        data = encoded(Inventory(inputs, operators, totals))
        self.batch_store.name(names_in(data))
        blob = self.store.put("json", lambda sink: sink.write(data))
        return Moved(self.stage, self.number, blob, tuple(self.rows.added), self.rows.versions, waiting, {})

    def _input(self, name: str, input: Input) -> tuple[InputRecord, Batcher]:
        """An input's rows, pending events and numbers."""
        horizon = self.move.horizons.get(name)

        def opened(bound: Bound) -> Opened:
            upsert = RunningUpsert(bound, self.secret)
            if upsert.expiring is not None:
                upsert.expiring.horizons.greatest = horizon
            return upsert.arranged, upsert.rehashed, upsert.identified

        was = None if self.move.before is None else self.move.before.inputs[name].bound
        old = None if was is None else partial(opened, was)
        records = dict(zip(self.old, self._found(name, self.inventories.input(name)), strict=True))
        batcher, arrived = self._pending(input, records, was)
        given = [(f"{what}, rows", each.rows) for what, each in records.values()]
        rows = self.rows.joined(given, partial(opened, input.bound), old)
        runs = pending.take(batcher, self.batch_store)
        self.rows.added += [run.file for run in runs]
        self._held.append(batcher)
        expires = input.spec.expiry is not None
        greatest = self.move.greatest.get(name, NEVER)
        return InputRecord(arrived, greatest, rows, runs, horizon if expires else None), batcher

    def _found(self, name: str, found: list[T]) -> list[T]:
        if not found:
            raise CorruptState(self.inventories.stored[0].what, f"it has no {name!r}, which the plan has", MEND)
        return found

    def _pending(
        self, input: Input, records: Mapping[int, tuple[str, InputRecord]], was: Bound | None
    ) -> tuple[Batcher, int]:
        """The pending events of this partition, and how many came: those, and the resolved ones that it stands for.

        ``was``: what the input was before."""
        schema, memory = (was or input.bound).event_schema, self.move.start.memory
        old = {
            n: pending.restore(each.runs, what, schema, self.batch_store, True, self.home)
            for n, (what, each) in records.items()
        }
        arrived = sum(records[n][1].arrived - len(old[n]) for n in self.first_share)
        out = Batcher()
        for each in old.values():
            picked = [(run.waiting, self._mine(input, run.waiting)) for run in each.runs.by_least]
            # Numbers of other partitions' events have nothing to do with these; what counts is their order.
            order = np.sort(np.concatenate([np.empty(0, np.int64), *(part.arrival[rows] for part, rows in picked)]))
            for part, rows in picked:
                if rows.size:
                    taken = _taken(part, rows, arrived + np.searchsorted(order, part.arrival[rows]))
                    out.add(taken._replace(rows=filled(taken.rows, input.bound.event_schema)))
                    if memory is not None and out.nbytes > memory // 8:
                        out.spill(self.batch_store, memory // 16, memory // 32)
            arrived += order.size
        return out, arrived

    def _mine(self, input: Input, events: Events) -> Ints:
        """The places of the events whose keys are of this partition."""
        high, _ = RowHashes(input.bound.key_schema, self.secret).of(events.rows)
        return self.rows.mine(high)

    def _operator(self, node: Collection, name: str, by: Columns) -> list[ArrangementRecord]:
        """An operator's groups: its own; or, where it stands with the keys it is made of, those beside its own keys."""
        context, was = self._context(node), self.before.get(name)
        running: Running = node.open(context)
        before: Running | None = None if was is None else was.open(self._context(was))
        # What moves with its columns may come from any partition, unless it stands with keys, which stay.
        there, with_keys = self.inventories, by != node.exchange()[0]
        if before is not None and rekeys(before.identified, running.identified) and not with_keys:
            every = self._stored(range(self.move.start.partitions))
            there = Inventories(list(every.values()), len(every))
        records = [(what, each.arrangements) for what, each in self._found(name, there.operator(name))]
        if odd := [what for what, each in records if len(each) != len(running.arrangements)]:
            raise CorruptState(odd[0], f"a {node.verb} has {len(running.arrangements)} arrangements", MEND)

        def opened(of: Collection, number: int) -> Opened:
            made: Running = of.open(self._context(of))
            return made.arrangements[number], made.rehashed, made.identified

        def joined(number: int) -> ArrangementRecord:
            schema = running.arrangements[number].schema
            keys = pa.schema([schema.field(each) for each in by]) if with_keys else None
            old = None if was is None else partial(opened, was, number)
            given = [(what, each[number]) for what, each in records]
            return self.rows.joined(given, partial(opened, node, number), old, keys)

        return [joined(number) for number in range(len(running.arrangements))]

    def _context(self, node: Collection) -> Context:
        return Context(self.secret, self.cut.flow.time_type, frozenset(node.schema.names))


def _taken(events: Events, rows: Ints, arrival: Ints) -> Events:
    """Some events, with other numbers."""
    times = events.times[rows]
    original = times if events.original is events.times else events.original[rows]
    return Events(events.rows.take(pa.array(rows)), times, original, arrival)
