"""One old partition of a state that is split or joined: what it gives to each of the new ones.

Invariant: the partitions made, all together, read at every time from ``since`` on as those before did, go on as those
would have, and each holds its own keys (`identity.partition_of`) and no others. A task reads the files of one old
partition, each once, and writes new ones that no manifest names; whoever runs it twice has garbage, and no harm. A new
partition is made of the shares that several tasks give it (``shares``). Versions lie in many runs and in merges half
done, and become one run a share; a count that stands with the keys it was made of lies where *those* are, which its
groups' identities do not say, so its rows are asked; pending events get new arrival numbers, which are below nought, so
that all events to come are after them, and unique, though no task knows how many the others have; and events that were
resolved are accounted for in one share, the first. It publishes nothing (``rescale``).

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
>>> [(each.to, each.inventory.inputs["people"].rows.keys) for moved in made for each in moved.shares]
[(0, 42), (1, 58)]
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from time import perf_counter_ns
from typing import Annotated, Final, TypeVar

import numpy as np
import pyarrow as pa
from msgspec import Meta, structs
from msgspec.json import Decoder

from ddflow.columns.hashing import Ints, RowHashes, Secret, partition_of
from ddflow.columns.widening import filled
from ddflow.dataflow import batcher as pending
from ddflow.dataflow.batcher import Batcher
from ddflow.engine.checkpoint import InputRecord, Inventory, OperatorRecord, StoredInventory
from ddflow.errors import CorruptState
from ddflow.metrics import Look
from ddflow.operators.base import Context, Running
from ddflow.operators.inputs import opened_input
from ddflow.operators.upsert.events import Events
from ddflow.partitions.receipt import AGAIN, STAGES
from ddflow.partitions.rescale_rows import Move, MovedRows, Opened, grouped, without_versions
from ddflow.partitions.stages import Stages, placed, told_by
from ddflow.plan.collection import Collection, Columns
from ddflow.plan.inputs.input import Binding, Input
from ddflow.plan.text.codec import node_ids
from ddflow.storage.fields import MEND, Natural, Strict, decoded, encoded
from ddflow.storage.files.batch_store import BatchStore
from ddflow.storage.manifest import PARTITIONS
from ddflow.storage.protocol import Blob, Store
from ddflow.time import NEVER
from ddflow.trace.cast import cast_rows
from ddflow.trace.records import ArrangementRecord

T = TypeVar("T")
Number = Annotated[int, Meta(ge=0, lt=PARTITIONS)]


class PartShare(Strict, frozen=True):
    """The share of the new partition ``to``.  ``inventory``: the partition's, if it had no other share."""

    to: Number
    inventory: Inventory


class Moved(Strict, frozen=True):
    """The result of sharing out one old partition of a stage.  ``shares``: by new partition.  ``added``: the files that
    they name. ``versions``, ``pending``: how many these hold.  ``figures``: microseconds and bytes."""

    stage: Annotated[int, Meta(ge=0, lt=STAGES)]
    number: Number
    shares: tuple[PartShare, ...]
    added: tuple[Blob, ...]
    versions: Natural
    pending: Natural
    figures: dict[str, Natural]

    def to_json(self) -> bytes:
        """Encode the result as JSON.  O(files)."""
        return encoded(self)

    @classmethod
    def from_json(cls, data: bytes, what: str) -> Moved:
        """Decode a result.  ``what``: its task, for messages.  O(bytes).  Raises `CorruptState`."""
        return decoded(_DECODER, data, what, AGAIN)


_DECODER: Final = Decoder(Moved)


def task(
    cut: Stages, move: Move, stage: int, number: int, store: Store | None = None, look: Look = lambda rows: None
) -> Moved:
    """Share out one old partition of a stage.  O(bytes of it); memory for a piece and the rows that wait for files, or
    ``start.memory``.

    ``store``: the state's, if it is open here.  ``look``: called with the number of rows written since its last
    call.  Raises `StateRefused` if it cannot be seen, `CorruptState`,
    `StorageFull`, `StorageFailed`; what was written is deleted then.
    """
    began = perf_counter_ns()
    own = move.start.version.opened("rescale", readonly=False) if store is None else store
    try:
        made = _Task(cut, move, stage, number, own, look).made()
        if store is None:
            own.sync()
    finally:
        if store is None:
            own.close()
    written = sum(blob.length for blob in made.added)
    return structs.replace(made, figures={"task": (perf_counter_ns() - began) // 1000, "bytes": written})


class _Task:
    def __init__(self, cut: Stages, move: Move, stage: int, number: int, store: Store, look: Look) -> None:
        self.cut, self.move, self.stage, self.number = cut, move, stage, number
        self.batch_store, self.secret = BatchStore(store), Secret(*move.start.secret)
        self.home = None if move.start.memory is None else self.batch_store
        self.rows = MovedRows(self.batch_store, self.home, move, number, look)
        self.old = StoredInventory.read(store, move.start.inventories[stage][number])
        self.ids = node_ids(cut.flow)
        self.before: dict[str, Collection] = {}
        """The collections of the plan before, by id; empty if the plan is the same."""
        if move.before is not None:
            self.before = {name: node for node, name in node_ids(move.before).items()}

    def made(self) -> Moved:
        """Write all shares.  O(bytes of the partition)."""
        waiting = 0
        inputs = {to: dict[str, InputRecord]() for to in self.rows.targets}
        operators = {to: dict[str, OperatorRecord]() for to in self.rows.targets}
        for name, input in self.cut.flow.inputs.items() if self.stage == 0 else ():
            for to, rows, events in self._input(name, input):
                inputs.setdefault(to, {})[name] = rows
                waiting += events
        alone = self.move.partitions == self.move.start.partitions == 1
        places = {} if alone else placed(self.cut.flow)
        for node in self.cut.flow.nodes:
            if node in self.cut.keeping(self.stage) and node.open(self._context(node)).arrangements:
                told = told_by(node, places[node]) if node in places else None
                for to, groups in self._operator(node, self.ids[node], told).items():
                    operators.setdefault(to, {})[self.ids[node]] = groups
        # What is written is deleted when nobody refers to it, until it is known to be of use.
        self.batch_store.name(blob.name for blob in self.rows.added)
        first, totals = self.rows.targets[0], self.old.of.totals if self.stage == 0 else {}
        shares = (
            PartShare(to, Inventory(inputs.get(to, {}), operators.get(to, {}), totals if to == first else {}))
            for to in sorted({*operators, *inputs})
        )
        return Moved(self.stage, self.number, tuple(shares), tuple(self.rows.added), self.rows.versions, waiting, {})

    def _input(self, name: str, input: Input) -> Iterator[tuple[int, InputRecord, int]]:
        """Yield an input's rows, pending events and numbers for each new partition, and how many of its events wait."""
        horizon = self.move.horizons.get(name)

        def opened(bound: Binding) -> Opened:
            upsert = opened_input(bound, self.secret)
            if upsert.expiring is not None:
                upsert.expiring.horizons.greatest = horizon
            return upsert.arranged, upsert.rehashed, upsert.identified

        was = None if self.move.before is None else self.move.before.inputs[name].bound
        old = None if was is None else partial(opened, was)
        given, what = self._require_record("inputs", name, self.old.of.inputs.get(name))
        resolved, batchers = self._pending(input, what, given, was)
        rows = self.rows.shared(f"{what}, rows", given.rows, partial(opened, input.bound), old)
        nothing = without_versions(next(iter(rows.values())))
        for to in sorted({*rows, *batchers}):
            batcher = batchers.get(to, Batcher())
            runs = pending.take(batcher, self.batch_store)
            self.rows.added += [run.file for run in runs]
            self.rows.held.append(batcher)
            yield (
                to,
                InputRecord(
                    arrived=len(batcher) + (resolved if to == self.rows.targets[0] else 0),
                    greatest=self.move.greatest.get(name, NEVER),
                    rows=rows.get(to, nothing),
                    runs=runs,
                    horizon=horizon if input.spec.expiry is not None else None,
                    table=given.table,
                ),
                len(batcher),
            )

    def _require_record(self, kind: str, name: str, found: T | None) -> tuple[T, str]:
        """Return a record of the inventory with its place, for messages; raises `CorruptState` if it is missing."""
        if found is None:
            raise CorruptState(self.old.what, f"it has no {name!r}, which the plan has", MEND)
        return found, self.old.at(kind, name)

    def _pending(
        self, input: Input, what: str, given: InputRecord, was: Binding | None
    ) -> tuple[int, dict[int, Batcher]]:
        """Count the resolved events, and split the others by new partition.

        ``was``: what the input was before."""
        schema, memory = (was or input.bound).event_schema, self.move.start.memory
        old = pending.restore(given.runs, what, schema, self.batch_store, True, self.home)
        after = input.bound.event_schema
        every = [run.waiting._replace(rows=filled(run.waiting.rows, after)) for run in old.runs.by_least]
        picked = [(part, self._by_target(input, part)) for part in every]
        out: dict[int, Batcher] = {to: Batcher() for _, places in picked for to in places}
        order = {
            to: np.sort(np.concatenate([part.arrival[places[to]] for part, places in picked if to in places]))
            for to in out
        }
        for part, places in picked:
            for to, rows in places.items():
                # Numbers of other partitions' events have nothing to do with these; what counts is their order.
                at = np.searchsorted(order[to], part.arrival[rows]) - order[to].size
                out[to].add(_take_events(part, rows, at * self.move.start.partitions + self.number))
            if memory is not None and sum(batcher.nbytes for batcher in out.values()) > memory // 8:
                for batcher in out.values():
                    batcher.spill(self.batch_store, memory // 16 // len(out), memory // 32)
        return given.arrived - len(old), out

    def _by_target(self, input: Input, events: Events) -> dict[int, Ints]:
        """Group the positions of events by the new partition of their keys."""
        high, _ = RowHashes(input.bound.key_schema, self.secret).of(events.rows)
        return grouped(partition_of(high, self.move.partitions))

    def _operator(self, node: Collection, name: str, told: Columns | None) -> dict[int, OperatorRecord]:
        """Split an operator's groups by the new partition of each, or of the keys that they are kept with.

        ``told``: the columns that say which, if identities do not."""
        was = self.before.get(name)
        given, what = self._require_record("operators", name, self.old.of.operators.get(name))
        empty: Running = node.open(self._context(node))
        if len(given.arrangements) != len(empty.arrangements):
            raise CorruptState(what, f"a {node.verb} has {len(empty.arrangements)} arrangements", MEND)

        cast = cast_rows if was is None else partial(empty.recast, was.open(self._context(was)))

        def opened(of: Collection, number: int) -> Opened:
            made: Running = of.open(self._context(of))
            return made.arrangements[number], made.rehashed, made.identified

        def shared(number: int) -> dict[int, ArrangementRecord]:
            schema = empty.arrangements[number].schema
            keys = None if told is None else pa.schema([schema.field(each) for each in told])
            old: Callable[[], Opened] | None = None if was is None else partial(opened, was, number)
            record, where = given.arrangements[number], f"{what}, arrangements[{number}]"
            return self.rows.shared(where, record, partial(opened, node, number), old, keys, cast)

        each = [shared(number) for number in range(len(empty.arrangements))]
        nothing = [without_versions(next(iter(shares.values()))) for shares in each]
        return {
            to: OperatorRecord([shares.get(to, none) for shares, none in zip(each, nothing, strict=True)])
            for to in sorted({to for shares in each for to in shares})
        }

    def _context(self, node: Collection) -> Context:
        return Context(self.secret, self.cut.flow.time_type, frozenset(node.schema.names))


def _take_events(events: Events, rows: Ints, arrival: Ints) -> Events:
    """Take some events, with other arrival numbers."""
    times = events.times[rows]
    original = times if events.original is events.times else events.original[rows]
    return Events(events.rows.take(pa.array(rows)), times, original, arrival)
