"""Write the state of one partition as an inventory of files, and restore a dataflow from inventories.

Guarantees: an inventory is a typed record, and unknown fields in it are an error. An inventory lists every file with
its length and checksum. A restore checks the content of each file before using the file.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple, TypeVar

import pyarrow as pa
from msgspec.json import Decoder

from ddflow.columns.hashing import RowHasher, Secret
from ddflow.columns.widening import conform_to_wider_schema
from ddflow.dataflow import batcher as pending
from ddflow.dataflow.batcher import Batcher, PendingRunRecord
from ddflow.dataflow.dataflow import Dataflow
from ddflow.dataflow.inflow import add_to_counts
from ddflow.dataflow.result import GONE, NAMES, count_resolved_events
from ddflow.errors import CommandFix, CorruptState, ErrorText
from ddflow.operators.base import Hashes
from ddflow.plan.collection import Collection
from ddflow.plan.text.codec import compute_node_ids
from ddflow.storage.fields import Instant, Natural, StrictRecord, decode_record
from ddflow.storage.files.batch_store import BatchStore
from ddflow.storage.inventory_text import InventoryText, read_inventory_text
from ddflow.storage.protocol import Blob, Store
from ddflow.time import NEVER
from ddflow.trace import checkpoint as arrangements
from ddflow.trace.arrangement import Arrangement
from ddflow.trace.cast import rekey_arrangement
from ddflow.trace.joined import PartitionedArrangement, advance_times, find_misplaced_key_partition
from ddflow.trace.records import ArrangementRecord
from ddflow.trace.spill import Made


class InputRecord(StrictRecord, frozen=True):
    """The record of an input in an inventory.

    ``arrived``: the number of the input's events. ``greatest``: the greatest time of these events. ``rows``: the held
    rows. ``runs``: the pending events. ``horizon``: the greatest order of all steps, if keys expire and an order is
    known. With a watermark, ``greatest`` is the greatest word of its column, and ``horizon`` is the complement of the
    least word, so that both only grow. ``table``: the name of the table in the input's messages, if known.
    """

    arrived: Natural
    greatest: Instant
    rows: ArrangementRecord
    runs: list[PendingRunRecord]
    horizon: Instant | None = None
    table: str | None = None


class OperatorRecord(StrictRecord, frozen=True):
    """The record of an operator with state in an inventory."""

    arrangements: list[ArrangementRecord]


class Inventory(StrictRecord, frozen=True):
    """The inventory of one partition's state.

    ``inputs``: the inputs, by name. ``operators``: the operators with state, by the ids of their nodes. ``totals``: the
    number of events by verdict, and the number of events in `ddflow.dataflow.result.GONE`.
    """

    inputs: dict[str, InputRecord]
    operators: dict[str, OperatorRecord]
    totals: dict[str, Natural]


_DECODER: Final = Decoder(Inventory)


class StoredInventory(NamedTuple):
    """An inventory that was read from a file.

    ``what``: the name of the file, for error messages. ``of``: the parsed inventory.

    ``text``: its text and sections.

    >>> import pyarrow as pa, ddflow as dd
    >>> from ddflow.storage.manifest import load_newest_manifest
    >>> from ddflow.storage.memory import MemoryStore
    >>> flow, store = dd.Flow(), MemoryStore()
    >>> _ = flow.output("people", flow.upserts("people", {"id": pa.int64()}, dd.Upsert(key="id")))
    >>> with flow.open(store) as engine:
    ...     _ = engine.step({"people": pa.table({"id": [1, 2]})}, time=7)
    >>> stored = StoredInventory.read(store, load_newest_manifest(store).inventories[0])
    >>> stored.of.inputs["people"].arrived, stored.of.totals["applied"]
    (2, 2)
    >>> stored.describe_place("inputs", "people").partition(", ")[2]
    'inputs, people'
    """

    what: str
    of: Inventory
    text: InventoryText

    @classmethod
    def read(cls, store: Store, part: Blob) -> StoredInventory:
        """Read the inventory of a partition from its file. O(bytes). Raises `CorruptState`."""
        return cls.parse(read_inventory_text(store, part), f"the file {part.name} of {store.where}")

    @classmethod
    def parse(cls, text: InventoryText, what: str) -> StoredInventory:
        """Parse an inventory from its text. O(bytes). Raises `CorruptState`."""
        return cls(what, decode_record(_DECODER, text.data, what), text)

    def describe_place(self, kind: str, name: str) -> str:
        """Describe the place of an input or an operator in the inventory, for error messages."""
        return f"{self.what}, {kind}, {name[:80]}"


T = TypeVar("T")

ROLLBACK_REMEDY: Final = ErrorText("restore it from a backup, or go back with ", CommandFix("rollback"))


def make_inventory(dataflow: Dataflow, batch_store: BatchStore) -> Inventory:
    """Write all state that no file contains yet, and return an inventory of the complete state.

    O(bytes written + files). Raises `StorageFull`, `StorageFailed`. After these errors, the engine is unchanged.

    >>> import pyarrow as pa, ddflow as dd
    >>> from ddflow.storage.memory import MemoryStore
    >>> flow = dd.Flow()
    >>> people = flow.upserts("people", {"id": pa.int64(), "city": pa.string()}, dd.Upsert(key="id"))
    >>> _ = flow.output("people", people)
    >>> store = MemoryStore()
    >>> with flow.open(store) as engine:
    ...     _ = engine.step({"people": pa.table({"id": [1, 2], "city": ["Bern", "Bern"]})}, time=1)
    >>> _ = flow.output("by_city", people.project(["city"]).count())
    >>> with flow.open(store.reopen()) as engine:
    ...     engine.step({}, time=2)["by_city"].to_pylist()
    [{'city': 'Bern', 'count': 2, '_time': 1, '_diff': 1}]
    """
    graph, ids = dataflow.graph, dataflow.collection_ids
    inputs = {
        name: InputRecord(
            dataflow.admissions[name].arrived,
            dataflow.admissions[name].greatest,
            arrangements.checkpoint_arrangement(upsert.output_arrangement, batch_store),
            pending.checkpoint_batcher(dataflow.batchers[name], batch_store),
            _find_horizon(dataflow, name),
            dataflow.admissions[name].table,
        )
        for name, upsert in graph.inputs.items()
    }
    operators = {
        ids[node]: OperatorRecord(
            [arrangements.checkpoint_arrangement(arranged, batch_store) for arranged in each.arrangements]
        )
        for node, each in graph.keeping.items()
        if each.arrangements
    }
    return Inventory(inputs, operators, dataflow.totals)


def restore_dataflow(
    dataflow: Dataflow,
    stored: Sequence[StoredInventory],
    batch_store: BatchStore,
    indexed: bool,
    sieved: bool = True,
    partitions: int = 1,
) -> None:
    """Restore the state of a dataflow from inventories. The caller has already set the times of the dataflow.

    O(bytes), plus O(rows) if an operator is new. If the dataflow was already restored from an earlier inventory of the
    same partition, only the new files are read: O(new bytes). ``stored``: the inventories, ordered by stage, with
    ``partitions`` inventories for each stage. If there are several partitions, the dataflow can only be read.
    ``indexed``, ``sieved``: as in `arrangements.restore_arrangement`. Raises `CorruptState`, which names the damaged
    file.
    """
    assert partitions == 1 or not indexed, "what is joined is not searched"
    graph, inventories = dataflow.graph, Inventories(stored, partitions)
    for name, upsert in graph.inputs.items():
        if not (found := inventories.find_input(name)):
            continue
        places, given = [what for what, _ in found], [each for _, each in found]
        admission = dataflow.admissions[name]
        admission.arrived = sum(each.arrived for each in given)
        upsert.unfed = not admission.arrived
        admission.greatest = max(each.greatest for each in given)
        if admission.watermark is not None:
            # Rows from the time before the watermark can have any value.
            known = max(~NEVER if each.horizon is None else each.horizon for each in given)
            admission.least, admission.greatest = ~known, NEVER if known == ~NEVER else admission.greatest
        admission.table = next((each.table for each in given if each.table is not None), None)
        _restore_input(dataflow, upsert, found, batch_store, indexed, sieved)
        for number, each in enumerate(upsert.output_arrangement.partitions):
            if partitions > 1 and (odd := find_misplaced_key_partition(each, number, partitions)) is not None:
                raise CorruptState(
                    places[number], f"partition {number} of {partitions} has a key of partition {odd}", ROLLBACK_REMEDY
                )
        if upsert.expiring is not None:
            upsert.expiring.reset_order_scan()
        home = batch_store if sieved and not indexed else None
        waiting, schema = dataflow.batchers[name], upsert.bound.event_schema
        dataflow.batchers[name] = _restore_pending_events(found, schema, batch_store, not indexed, home, waiting)
    dataflow.totals = inventories.sum_verdict_counts()
    dataflow.update_extents()
    ids = compute_node_ids(dataflow.flow)
    for node, running in graph.keeping.items():
        if parts := inventories.find_operator(ids[node]) if running.arrangements else []:
            _restore_operator(dataflow, node, parts, batch_store, indexed, sieved)
        elif running.arrangements and dataflow.last > NEVER:
            graph.rebuild_state(node, dataflow.last, dataflow.frontier, dataflow.since)
    arrived = sum(admission.arrived for admission in dataflow.admissions.values())
    if stored and arrived != count_resolved_events(dataflow.totals) + sum(map(len, dataflow.batchers.values())):
        raise CorruptState(
            stored[0].what, f"{arrived:,} events arrived, but another number is resolved or pending", ROLLBACK_REMEDY
        )


def restore_lookup_collections(
    dataflow: Dataflow, nodes: Iterable[Collection], stored: StoredInventory, batch_store: BatchStore, indexed: bool
) -> None:
    """Restore the collections in which a later stage looks up rows.

    ``stored``: the inventory of the stage that has their state. If the collections were already restored from an
    earlier inventory, only the new files are read: O(new bytes). Raises `CorruptState`.
    """
    inventories, ids, names = Inventories([stored], 1), compute_node_ids(dataflow.flow), dataflow.graph.names
    for node in nodes:
        if node in names and (found := inventories.find_input(names[node])):
            _restore_input(dataflow, dataflow.graph.opened[node], found, batch_store, indexed, True)
        elif parts := inventories.find_operator(ids[node]):
            _restore_operator(dataflow, node, parts, batch_store, indexed, True)
        else:
            raise CorruptState(
                stored.what, f"it lacks the {node.verb} whose rows a later stage looks up", ROLLBACK_REMEDY
            )


def _restore_input(
    dataflow: Dataflow,
    upsert: Any,
    found: Sequence[tuple[str, InputRecord]],
    batch_store: BatchStore,
    indexed: bool,
    sieved: bool,
) -> None:
    """Restore the arrangement of an input and, if keys of the input expire, the greatest order of the input's steps."""
    rows, keys = [(f"{what}, rows", each.rows) for what, each in found], upsert.identified
    upsert.arrangements = (
        _restore_arrangement(
            dataflow, upsert.output_arrangement, rows, batch_store, indexed, upsert.hash_rows, sieved, keys
        ),
    )
    if upsert.expiring is not None:
        known = [each.horizon for _, each in found if each.horizon is not None]
        upsert.expiring.horizons.greatest = max(known, default=None)


def _restore_operator(
    dataflow: Dataflow,
    node: Collection,
    parts: Sequence[tuple[str, OperatorRecord]],
    batch_store: BatchStore,
    indexed: bool,
    sieved: bool,
) -> None:
    """Restore the arrangements of an operator."""
    running = dataflow.graph.opened[node]
    if wrong := [what for what, each in parts if len(each.arrangements) != len(running.arrangements)]:
        raise CorruptState(
            wrong[0],
            f"a {node.verb} has {len(running.arrangements)} arrangements, but it has another number",
            ROLLBACK_REMEDY,
        )
    running.arrangements = tuple(
        _restore_arrangement(
            dataflow,
            empty,
            [(f"{what}, arrangements[{n}]", each.arrangements[n]) for what, each in parts],
            batch_store,
            indexed,
            running.hash_rows,
            sieved,
            running.identified,
        )
        for n, empty in enumerate(running.arrangements)
    )


class Inventories:
    """All inventories of a state.

    ``stored``: the inventories, ordered by stage, with ``partitions`` inventories for each stage.
    """

    def __init__(self, stored: Sequence[StoredInventory], partitions: int) -> None:
        self.stored, self.partitions = stored, partitions

    def find_input(self, name: str) -> list[tuple[str, InputRecord]]:
        """Return the record of an input in each partition, with a text that tells where the record is.

        Return an empty list if no partition has the input. O(inventories).

        Raises `CorruptState` unless exactly one stage has the input, and has it in all partitions.
        """
        return self._find_records("inputs", name, [each.of.inputs for each in self.stored])

    def find_operator(self, name: str) -> list[tuple[str, OperatorRecord]]:
        """Return the record of an operator in each partition, like `find_input`.

        ``name``: the id of the operator's node.
        """
        return self._find_records("operators", name, [each.of.operators for each in self.stored])

    def _find_records(self, kind: str, name: str, within: Sequence[Mapping[str, T]]) -> list[tuple[str, T]]:
        places = [n for n, each in enumerate(within) if name in each]
        stage = places[0] // self.partitions if places else 0
        if places and places != list(range(stage * self.partitions, (stage + 1) * self.partitions)):
            raise CorruptState(
                self.stored[places[0]].what,
                f"the {kind[:-1]} {name!r} is in the inventories {places} of the state, but it must be in all "
                f"{self.partitions} of one stage",
                ROLLBACK_REMEDY,
            )
        return [(self.stored[n].describe_place(kind, name), within[n][name]) for n in places]

    def sum_verdict_counts(self) -> dict[str, int]:
        """Add up the number of events of each verdict and of `GONE` over all partitions. O(inventories)."""
        out: dict[str, int] = {}
        for each in self.stored:
            add_to_counts(out, {name: n for name, n in each.of.totals.items() if name in (*NAMES, GONE)})
        return out


def _restore_arrangement(
    dataflow: Dataflow,
    empty: Arrangement,
    given: Sequence[tuple[str, ArrangementRecord]],
    batch_store: BatchStore,
    indexed: bool,
    made: Made,
    sieved: bool,
    identified: pa.Schema | None = None,
) -> Arrangement:
    """Fill an empty arrangement from its records, one for each partition.

    Several records become one joined arrangement. ``identified``: the columns that now identify a version. The caller
    passes them only if new columns can be among them.
    """
    every = [empty, *(empty.make_empty() for _ in given[1:])]
    home = batch_store if sieved and not indexed else None
    for each, (what, record) in zip(every, given, strict=True):
        if empty.lapse is not None and each is not empty:
            each.set_tombstone_expiry(empty.lapse.of)
        if identified is not None and any(not set(identified.names) <= set(names) for names in record.shapes):
            _restore_rekeyed_arrangement(
                each, record, what, batch_store, indexed, made, identified, dataflow.secret, home
            )
            continue
        arrangements.restore_arrangement(each, record, what, batch_store, indexed, made, sieved, home)
    if len(every) > 1:
        return PartitionedArrangement(every, dataflow.since, dataflow.frontier)
    advance_times(empty, dataflow.since, dataflow.frontier)
    return empty


def _restore_rekeyed_arrangement(
    empty: Arrangement,
    record: ArrangementRecord,
    what: str,
    batch_store: BatchStore,
    indexed: bool,
    made: Made,
    identified: pa.Schema,
    secret: Secret,
    home: BatchStore | None,
) -> None:
    """Fill an arrangement from stored versions that lack a column which now identifies versions.

    The missing column is null in the stored versions.

    Because the new column changes all identities, all versions are sorted again. O(versions), in memory.
    """
    there = {name for names in record.shapes for name in names}
    schema = pa.schema([field for field in empty.schema if field.name in there])
    old = empty.make_empty(schema, next((batch.layout.words for batch in record.batches), None))
    keys = RowHasher(pa.schema([field for field in identified if field.name in there]), secret)

    def hash_regrown(rows: pa.Table | pa.RecordBatch) -> Hashes:
        return *keys.identify_rows(rows), made(conform_to_wider_schema(rows, empty.schema))[2]

    # Differences are grouped only by columns that it already had when it was written.
    arrangements.restore_arrangement(
        old, record, what, batch_store, False, made if empty.slots.summed else hash_regrown, False
    )
    rekey_arrangement(old, empty, made, indexed, home)


def _restore_pending_events(
    given: Sequence[tuple[str, InputRecord]],
    schema: pa.Schema,
    batch_store: BatchStore,
    spilled: bool,
    home: BatchStore | None,
    held: Batcher,
) -> Batcher:
    """Restore the pending events of an input from all partitions.

    ``held``: the events that were restored from an earlier inventory.
    """
    first, *others = (
        pending.restore_batcher(each.runs, what, schema, batch_store, spilled, home, held) for what, each in given
    )
    for other in others:
        for run in other.runs.by_least:
            first.runs.add(run)
        first.pending += len(other)
    return first


def find_max_times_and_orders(dataflow: Dataflow) -> tuple[dict[str, int], dict[str, int]]:
    """Return the greatest event time of each input. Also return the greatest order of each input whose keys expire.

    O(inputs). An inventory has these values for a single partition. A state with several partitions needs the values
    over all its partitions.
    """
    known = dataflow.admissions if dataflow.holds_back else dataflow.graph.horizons.marks
    times = {name: dataflow.admissions[name].greatest for name in known}
    orders = {name: found for name in dataflow.graph.inputs if (found := _find_horizon(dataflow, name)) is not None}
    return times, orders


def _find_horizon(dataflow: Dataflow, name: str) -> int | None:
    """Return the number that a state keeps as the horizon of an input; see `InputRecord`."""
    if name in dataflow.graph.horizons.marks:
        return ~dataflow.admissions[name].least
    expiring = dataflow.graph.inputs[name].expiring
    return None if expiring is None else expiring.horizons.greatest
