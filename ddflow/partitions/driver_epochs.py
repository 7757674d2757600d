"""Read the outputs and epochs of a partitioned state, for sinks and for reads on Spark.

`find_partitioning` finds out whether a collection can be read partition by partition. `read_updates` reads one
partition or all partitions. `DriverEpochs` passes the committed epochs to sinks.

Guarantees: a read sees one version of the state. A read of one partition needs memory for that partition only.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from functools import partial
from itertools import product
from math import prod
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa

from ddflow.columns.hashing import Secret, assign_partitions, compute_identities
from ddflow.columns.names import DIFF
from ddflow.connectors.api import TableSink
from ddflow.dataflow.budget import MemoryBudget
from ddflow.dataflow.dataflow import Dataflow
from ddflow.engine.checkpoint import ROLLBACK_REMEDY, StoredInventory
from ddflow.engine.read.history import compute_net_changes
from ddflow.engine.read.reads import Reading
from ddflow.engine.run.kept_epochs import InParts, RetainedEpochs
from ddflow.engine.run.sync import Synced, detach_connectors, sync_targets
from ddflow.engine.snapshot import Snapshot, restore_version
from ddflow.errors import CorruptState, PlanChanged, SpecError
from ddflow.metrics import Look
from ddflow.operators.updates import build_time_column
from ddflow.partitions.commit import EpochDriver
from ddflow.partitions.epoch_start import StateVersion, find_store_address, snapshot_expired_error
from ddflow.partitions.receipt import OWED
from ddflow.partitions.stages import StageGraph, compute_placements, cut_stages
from ddflow.plan.collection import Collection, walk_inputs
from ddflow.plan.compatibility import resolve_plan
from ddflow.plan.plan import Plan
from ddflow.plan.text.codec import compute_node_ids
from ddflow.storage.epochs import Epoch
from ddflow.storage.files.batch_store import BatchStore
from ddflow.storage.manifest import Manifest
from ddflow.storage.protocol import Blob, Store
from ddflow.time import format_time_argument
from ddflow.trace.joined import find_misplaced_key_partition

KEYS: Final = 1000
"""Above this number of keys, a look-up reads all partitions."""


class Partitioning(NamedTuple):
    """How to read a collection partition by partition.

    ``stage``: the stage whose partitions hold the rows. ``by``: the columns that decide the partition of a row; None
    if no columns of the collection decide it.

    >>> import ddflow as dd
    >>> flow = dd.Flow()
    >>> orders = flow.upserts("orders", {"id": pa.int64(), "city": pa.string()}, dd.Upsert(key="id"))
    >>> cities = flow.output("cities", orders.project(["city"]))
    >>> by_city = flow.output("by_city", cities.count())
    >>> find_partitioning(flow, "orders"), find_partitioning(flow, "by_city"), find_partitioning(flow, "cities")
    (Partitioning(stage=0, by=('id',)), Partitioning(stage=1, by=('city',)), None)
    """

    stage: int
    by: tuple[str, ...] | None


def find_partitioning(flow: Plan, name: str) -> Partitioning | None:
    """Return how an output or an input is partitioned, or None if all partitions must be read together. O(nodes)."""
    try:
        places, stages = compute_placements(flow), cut_stages(flow)
    except SpecError:  # it has no outputs
        return None
    node = flow.outputs.get(name) or flow.inputs[name]
    read = walk_inputs([node], lambda each: () if _has_rows(each) else each.inputs)
    if any(places[each].roots == (each,) for each in read if not _has_rows(each)):
        return None  # a collection without state: its rows are in the partitions of its inputs
    roots, by = places[node]
    at = {root: n for n, root in enumerate(flow.nodes) if root in roots}
    on = {stage for stage, active in enumerate(stages.active) for n in at.values() if n in active}
    return Partitioning(on.pop(), by) if len(on) == 1 and (node.consolidated or by is not None) else None


def _has_rows(node: Collection) -> bool:
    """Return whether the state of an input or operator has the rows of its output."""
    return node.keeps and not node.reads_clock


def find_partitions_of_values(
    by: Sequence[str], values: Mapping[str, Sequence[Any]], manifest: Manifest
) -> list[int] | None:
    """Return the partitions that can have rows with the given values, ascending. Return None if this is unknown.

    O(keys). ``by``: as in `Partitioning`. ``values``: for each column, the Arrow scalars that a row may have there.
    """
    if not by or not set(by) <= set(values) or prod(len(values[name]) for name in by) > KEYS:
        return None
    keys = list(product(*(values[name] for name in by)))
    if not keys:
        return []
    # Keep Arrow scalars, because Python has no dates before the year 1.
    columns = [pa.concat_arrays([pa.repeat(key[i], 1) for key in keys]) for i in range(len(by))]
    high, _ = compute_identities(pa.Table.from_arrays(columns, names=list(by)), Secret(*manifest.secret), len(keys))
    return sorted({int(number) for number in assign_partitions(high, manifest.partitions)})


class PartitionReader(Reading):
    """A reader of one partition of one stage.

    Opening verifies every file, so it is O(bytes of the partition). Raises `CorruptState`, `StorageFailed`.
    """

    def __init__(self, store: Store, manifest: Manifest, flow: Plan, stage: int, number: int) -> None:
        stored = StoredInventory.read(store, manifest.inventories[stage * manifest.partitions + number])
        store.pin_blobs(stored.text.file_names)
        graph = StageGraph(cut_stages(flow), stage, Secret(*manifest.secret))
        super().__init__(Dataflow(flow, graph, MemoryBudget(None, None)))
        ids = compute_node_ids(flow)
        if missing := sorted(ids[node] for node in graph.keeping if ids[node] not in stored.of.operators):
            raise CorruptState(stored.what, f"it lacks the operators {missing}", ROLLBACK_REMEDY)
        restore_version(self.dataflow, manifest, [stored], BatchStore(store))
        for upsert in graph.inputs.values():
            if (
                odd := find_misplaced_key_partition(upsert.output_arrangement, number, manifest.partitions)
            ) is not None:
                raise CorruptState(
                    stored.what,
                    f"partition {number} of {manifest.partitions} has a key of partition {odd}",
                    ROLLBACK_REMEDY,
                )


def read_updates(
    version: StateVersion,
    flow: Plan | None,
    name: str,
    share: tuple[int, int] | None,
    as_of: int | None = None,
    after: int | None = None,
) -> pa.Table:
    """Read an output or an input as updates, in one version of the state. O(bytes of the opened files).

    ``share``: a stage, from `find_partitioning`, and a partition; None for all rows. ``as_of``, ``after``: as in
    `read_contents`. Raises the errors of `StateVersion.open`, `PartitionReader` and `Snapshot`, and `NotReadable`.
    """
    with closing(version.open("read")) as store:
        manifest = version.load_manifest(store)
        plan = resolve_plan(manifest.plan, flow, store.where)
        try:
            reading = (
                Snapshot(store, manifest, plan) if share is None else PartitionReader(store, manifest, plan, *share)
            )
        except CorruptState:
            if version.number not in store.list_manifests():
                raise snapshot_expired_error(store, version.number) from None
            raise
        return read_contents(reading, name, as_of, after)


def read_contents(reading: Reading, name: str, as_of: int | None = None, after: int | None = None) -> pa.Table:
    """Read the consolidated rows of an output or an input, with ``_diff``, and with the same ``_time`` in all rows.

    ``as_of``: a readable time, by default the last closed time. ``after``: read only the changes since this time. For
    an output of upserts the method returns upserts, which have no diffs. O(rows of the inputs that the collection
    depends on). Raises `NotReadable`, `SpecError`.
    """
    node, graph = reading.node(name), reading.dataflow.graph
    kind = reading.flow.time_type
    time = reading.closed(f"read {name!r} as of {format_time_argument(as_of, kind)}", as_of)
    if after is None:
        return graph.read_output(node, time, as_of)
    if DIFF not in node.updates_schema(kind).names:
        raise SpecError(
            f"changes of {name!r}", "it has upserts, not differences", "read the collection that they come from"
        )
    table = compute_net_changes(
        graph, node, reading.closed(f"changes of {name!r} after {format_time_argument(after, kind)}", after), time
    )
    return append_time_column(table, time, node.updates_schema(kind))


def append_time_column(table: pa.Table, time: int, schema: pa.Schema) -> pa.Table:
    """Add a column with the same time for all rows, before ``_diff``. ``schema``: the schema of updates. O(rows)."""
    times = build_time_column(np.full(table.num_rows, time), schema.field(len(schema) - 2).type)
    columns = [table.column(name) for name in schema.names[:-2]]
    return pa.Table.from_arrays([*columns, pa.chunked_array([times]), table.column(DIFF)], schema=schema)


LARGE: Final = 16 << 20
"""If an output has at least this many bytes of updates, it is read in parallel tasks."""

Each = Callable[[Epoch, str, tuple[Blob, ...], Callable[[pa.Table], bytes]], list[bytes]]
"""A function that runs one task for each file that an epoch has for an output, and returns the results."""


class DriverEpochs(RetainedEpochs):
    """The committed epochs of a partitioned state, as sinks read them.

    ``driver``: the driver of the state. ``each``: a function that runs tasks; None if no tasks can run.


    >>> import ddflow as dd, pyarrow as pa
    >>> from ddflow.storage.memory import MemoryStore
    >>> flow, store = dd.Flow(), MemoryStore()
    >>> _ = flow.output("people", flow.upserts("people", {"id": pa.int64()}, dd.Upsert(key="id")))
    >>> with flow.open(store) as engine:
    ...     _ = engine.step({"people": {"id": [7, 8]}})
    >>> epochs = DriverEpochs(EpochDriver.open(flow, store.reopen()))
    >>> gained = epochs.read_updates(next(epochs.list_epochs()), "people")
    >>> epochs.manifest.epoch, epochs.read_output("people").num_rows, gained.num_rows
    (1, 2, 2)
    """

    def __init__(self, driver: EpochDriver, each: Each | None = None) -> None:
        super().__init__(driver.log, BatchStore(driver.log.manifest_log.store))
        self.driver, self.each = driver, each

    @property
    def flow(self) -> Plan:
        """The plan that the driver was opened with."""
        return self.driver.flow

    def read_output(self, name: str) -> pa.Table:
        """Read an output from the newest version. O(bytes). A new output is empty until the next epoch."""
        if self.is_new_output(name):
            return self.output_schema(name).empty_table()
        manifest, log = self.manifest, self.log.manifest_log
        version = StateVersion(find_store_address(log.store), self.driver.options.trust, manifest.number, log.digest)
        parts = find_partitioning(self.flow, name) if manifest.partitions > 1 else None
        if parts is None:
            return read_updates(version, self.flow, name, None)
        shares = [(parts.stage, number) for number in range(manifest.partitions)]
        return pa.concat_tables(read_updates(version, self.flow, name, share) for share in shares)

    def is_new_output(self, name: str) -> bool:
        """Return whether the plan has an output that the state lacks."""
        return name in self.log.change.outputs

    def find_partition_splitter(self, receipt: Epoch, name: str, key: Sequence[str] | None) -> InParts | None:
        """Return a function that splits the rows of an output in an epoch by partition.

        Return None if the rows stay together. Splitting is worthwhile for many rows only. Equal rows must be in one
        partition, and with ``key`` all rows that have the same key.
        """
        each = self.each
        if (
            each is None
            or len(receipt.calls) != 1
            or receipt.count_output_bytes(name) < LARGE
            or OWED in receipt.calls[0].figures
        ):
            return None
        blobs = receipt.calls[0].outputs[name].blobs
        if key != () and len(blobs) > 1:
            found = find_partitioning(self.flow, name) if name in self.flow.outputs else None
            if found is None or (key is not None and not (found.by is not None and set(found.by) <= set(key))):
                return None
        return partial(each, receipt, name, blobs)

    def publish_connector_positions(self) -> None:
        """Publish the positions of sinks and sources.

        If the plan has new columns, this method publishes nothing, and the next epoch publishes the positions.
        """
        self.driver.publish_connector_positions()


def sync_state(
    driver: EpochDriver,
    sinks: Mapping[str, TableSink],
    adopt: bool,
    dry: bool,
    forget: tuple[str, ...] = (),
    look: Look = lambda rows: None,
) -> dict[str, Synced]:
    """Sync the sinks of a partitioned state, then detach connectors, like `Engine.sync` and `Engine.detach`.

    Raises the errors of these methods, and `PlanChanged` if the plan has parts that the state lacks.
    """
    if driver.growing is not None:
        found = f"the plan has parts that the state lacks: {driver.growing.change.description}"
        raise PlanChanged(f"sync {driver.log.manifest_log.store.where}", found, "run an epoch with this plan first")
    epochs = DriverEpochs(driver)
    done = sync_targets(epochs, sinks, adopt, dry, look)
    if forget:
        detach_connectors(epochs, forget)
    return done
