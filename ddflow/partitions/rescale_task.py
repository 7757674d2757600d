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

from collections.abc import Callable, Iterable, Iterator, Mapping
from time import perf_counter_ns
from typing import Annotated, Any, Final, NamedTuple, TypeVar

import numpy as np
import pyarrow as pa
from msgspec import Meta, structs
from msgspec.json import Decoder

from ddflow.columns.hashing import Ints, RowHashes, Secret, Words, identities, partition_of
from ddflow.columns.rows import gather
from ddflow.dataflow import batcher as pending
from ddflow.dataflow.batcher import Batcher
from ddflow.dataflow.inflow import add
from ddflow.engine.checkpoint import Inventories
from ddflow.engine.inventory import InputRecord, Inventory, OperatorRecord, StoredInventory
from ddflow.errors import CorruptState
from ddflow.operators.base import Context, Running
from ddflow.operators.upsert.events import Events
from ddflow.operators.upsert.upsert import RunningUpsert
from ddflow.partitions.epoch_start import EpochStart
from ddflow.partitions.key_ranges import first_of, overlapping
from ddflow.partitions.receipt import AGAIN, STAGES
from ddflow.partitions.stages import Stages, placed
from ddflow.plan.codec import node_ids
from ddflow.plan.collection import Collection, Columns
from ddflow.plan.plan import Input
from ddflow.storage.batch_store import BatchStore
from ddflow.storage.fields import MEND, Natural, Strict, decoded, encoded
from ddflow.storage.manifest import PARTITIONS
from ddflow.storage.naming import names_in
from ddflow.storage.protocol import Blob, Store
from ddflow.time import NEVER, Description
from ddflow.trace.arrangement import Arrangement
from ddflow.trace.batch import Batch, same, starts
from ddflow.trace.batch_file import Made, filed, unfiled
from ddflow.trace.checkpoint import Written, restore, take
from ddflow.trace.merge import Picked, by_sorting, useless
from ddflow.trace.records import ArrangementRecord
from ddflow.trace.run import Part, Run

T = TypeVar("T")
CHUNK: Final = 1 << 20
"""Identities that are looked at together."""


class Move(NamedTuple):
    """What all tasks of a rescaling start from; it can be pickled, unless its store is in memory.

    ``start``: the state as it is.  ``partitions``: how many there will be.  ``horizons``, ``greatest``: by input, the
    greatest order where keys expire, and event time, of all partitions."""

    start: EpochStart
    partitions: int
    horizons: Mapping[str, int]
    greatest: Mapping[str, int]


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
        self.added: list[Blob] = []
        self.versions = 0
        # What is written is deleted when nobody refers to it, until it is known to be of use.
        self._held: list[Any] = []
        before = move.start.partitions
        self.old = {
            n: StoredInventory.read(store, move.start.inventories[stage][n])
            for n in overlapping(number, move.partitions, before)
        }
        self.inventories = Inventories(list(self.old.values()), len(self.old))
        self.first_share = {n for n in self.old if first_of(n, before, move.partitions) == number}

    def made(self) -> Moved:
        """The partition, written.  O(bytes of those it has keys in common with)."""
        waiting, inputs, totals = 0, dict[str, InputRecord](), dict[str, int]()
        for name, input in self.cut.flow.inputs.items() if self.stage == 0 else ():
            inputs[name], batcher = self._input(name, input)
            waiting += len(batcher)
        for n in sorted(self.first_share) if self.stage == 0 else ():
            add(totals, self.old[n].of.totals)
        ids, places = node_ids(self.cut.flow), placed(self.cut.flow)
        operators = {
            ids[node]: OperatorRecord(self._operator(node, ids[node], places[node].by or ()))
            for node in self.cut.flow.nodes
            if node in self.cut.keeping(self.stage)
        }
        data = encoded(Inventory(inputs, operators, totals))
        self.batch_store.name(names_in(data))
        blob = self.store.put("json", lambda sink: sink.write(data))
        return Moved(self.stage, self.number, blob, tuple(self.added), self.versions, waiting, {})

    def _input(self, name: str, input: Input) -> tuple[InputRecord, Batcher]:
        """An input's rows, pending events and numbers."""
        horizon = self.move.horizons.get(name)

        def fresh() -> tuple[Arrangement, Made]:
            upsert = RunningUpsert(input.bound, self.secret)
            if upsert.expiring is not None:
                upsert.expiring.horizons.greatest = horizon
            return upsert.arranged, upsert.rehashed

        records = dict(zip(self.old, self._found(name, self.inventories.input(name)), strict=True))
        batcher, arrived = self._pending(input, records)
        rows = self._joined([(f"{what}, rows", each.rows) for what, each in records.values()], fresh)
        runs = pending.take(batcher, self.batch_store)
        self.added += [run.file for run in runs]
        self._held.append(batcher)
        expires = input.spec.expiry is not None
        greatest = self.move.greatest.get(name, NEVER)
        return InputRecord(arrived, greatest, rows, runs, horizon if expires else None), batcher

    def _found(self, name: str, found: list[T]) -> list[T]:
        if not found:
            raise CorruptState(self.inventories.stored[0].what, f"it has no {name!r}, which the plan has", MEND)
        return found

    def _pending(self, input: Input, records: Mapping[int, tuple[str, InputRecord]]) -> tuple[Batcher, int]:
        """The pending events of this partition, and how many came: those, and the resolved ones that it stands for."""
        schema, memory = input.bound.event_schema, self.move.start.memory
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
                    out.add(_taken(part, rows, arrived + np.searchsorted(order, part.arrival[rows])))
                    if memory is not None and out.nbytes > memory // 8:
                        out.spill(self.batch_store, memory // 16, memory // 32)
            arrived += order.size
        return out, arrived

    def _mine(self, input: Input, events: Events) -> Ints:
        """The places of the events whose keys are of this partition."""
        high, _ = RowHashes(input.bound.key_schema, self.secret).of(events.rows)
        return self._rows(high)

    def _operator(self, node: Collection, name: str, by: Columns) -> list[ArrangementRecord]:
        """An operator's groups: its own; or, where it stands with the keys it is made of, those beside its own keys."""
        records = [(what, each.arrangements) for what, each in self._found(name, self.inventories.operator(name))]
        context = Context(self.secret, self.cut.flow.time_type, frozenset(node.schema.names))

        def joined(number: int) -> ArrangementRecord:
            def fresh() -> tuple[Arrangement, Made]:
                opened: Running = node.open(context)
                return opened.arrangements[number], opened.rehashed

            schema = fresh()[0].schema
            keys = None if by == node.exchange()[0] else pa.schema([schema.field(each) for each in by])
            return self._joined([(what, each[number]) for what, each in records], fresh, keys)

        count = len(node.open(context).arrangements)
        if odd := [what for what, each in records if len(each) != count]:
            raise CorruptState(odd[0], f"a {node.verb} has {count} arrangements", MEND)
        return [joined(number) for number in range(count)]

    def _joined(
        self,
        records: Iterable[tuple[str, ArrangementRecord]],
        fresh: Callable[[], tuple[Arrangement, Made]],
        keys: pa.Schema | None = None,
    ) -> ArrangementRecord:
        """One arrangement of what several hold of this partition, as an inventory has it.

        ``keys``: the columns whose identities tell what that is, None where the rows' own do."""
        shares, new, descriptions = fresh()[0], fresh()[0], list[Description]()
        for what, given in records:
            old, made = fresh()
            restore(old, given, what, self.batch_store, indexed=False, made=made, sieved=False, home=self.home)
            descriptions += [(each if isinstance(each, Run) else each.output).description for each in old.on_disk.items]
            new.since, new.upper = max(new.since, old.since), max(new.upper, old.upper)
            # Of one key all are in one partition, so only their order within that matters.
            for slot, begin, end in old.on_disk.parts:
                part = shares.slots.put(old.slots[slot])._replace(begin=begin, end=end)
                shares.on_disk.append(Run(Description(NEVER, NEVER, NEVER), [part]))
        shares.since = new.since
        parts = [self._laid(batch, new) for batch in self._pieces(shares, new, keys)]
        if parts:
            lower, upper = min(each.lower for each in descriptions), max(each.upper for each in descriptions)
            since = max(min(new.since, upper - 1), *(each.since for each in descriptions))
            new.on_disk.append(Run(Description(lower, upper, since), parts))
        self._held.append(new)
        return take(new, self.batch_store)

    def _pieces(self, old: Arrangement, new: Arrangement, keys: pa.Schema | None) -> Iterator[Batch]:
        """What is taken of all there is, merged, some identities at a time; counted for the new arrangement."""
        memory, batches, partitions = self.move.start.memory, old.slots.batches, self.move.partitions
        if memory is not None and batches:
            width = max(sum(batch.nbytes for batch in batches) // sum(map(len, batches)), 32)
            old.piece = min(old.piece, max(memory // 4 // (4 * width + 128), 4096))
        if keys is None:
            # What is looked at is more than what is taken, and files should not become smaller for that.
            old.piece *= max(partitions // self.move.start.partitions, 1)
        for parts in old.ranges():
            some = None
            if keys is None:
                some = [self._rows(old.slots[slot].high[begin:end]) for slot, begin, end in parts]
            picked = by_sorting(old.slots, parts, old.since, not old.keeps, some=some)
            if keys is not None and picked.high.size:
                picked = picked.without(~self._belong(picked, old, keys))
            if old.lapse is not None and old.keeps:
                picked = picked.without(useless(picked, old.since, old.lapse))
            n = picked.high.size
            if not n:
                continue
            last = picked.last
            live = picked.live != 0
            live_added = int((live & last).sum())
            new.keys = new.keys + live_added
            new.tombstones_counted += int(last.sum()) - live_added if new.keeps else 0
            latest = int(picked.time.max())
            new.latest = max(new.latest, latest)
            if latest <= old.since:
                # History before since is one, and one time takes no room.
                picked = picked._replace(time=same(latest, n, np.int64))
            if live.all():
                picked = picked._replace(live=same(1, n, np.uint8))
            self.versions += n
            yield picked.batch(old.slots, True)

    def _rows(self, high: Words) -> Ints:
        """Which identities are of this partition, some at a time."""
        found = [
            begin + np.flatnonzero(partition_of(high[begin : begin + CHUNK], self.move.partitions) == self.number)
            for begin in range(0, high.size, CHUNK)
        ]
        return np.concatenate([np.empty(0, np.int64), *found])

    def _belong(self, picked: Picked, old: Arrangement, keys: pa.Schema) -> Any:
        """bool[m]: which versions are of this partition by their rows' ``keys``.

        A deletion's row may be filler, so what a live version of the same key says holds for all."""
        high, _ = identities(gather(old.slots.pool, picked.references, keys), self.secret, picked.high.size)
        mine, first = partition_of(high, self.move.partitions) == self.number, starts(picked.high, picked.low)
        of, live = np.cumsum(first) - 1, picked.live != 0
        decided = mine[first]
        decided[of[live]] = mine[live]
        return decided[of]

    def _laid(self, batch: Batch, new: Arrangement) -> Part:
        """A batch written to a file, as the next part of an arrangement."""
        record, layout = filed(batch)
        kept = self.batch_store.write(record)
        part = new.slots.put(unfiled(kept.batch, layout))
        new.slots.files[part.slot] = Written(kept, layout, batch.rows.table.schema.names)
        self.added.append(kept.blob)
        return part


def _taken(events: Events, rows: Ints, arrival: Ints) -> Events:
    """Some events, with other numbers."""
    times = events.times[rows]
    original = times if events.original is events.times else events.original[rows]
    return Events(events.rows.take(pa.array(rows)), times, original, arrival)
