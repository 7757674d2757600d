"""What an output or an input of a state holds, read as updates: partition by partition, where that is exact.

Invariant: the rows of all shares together are what one read of the whole state gives: no row is in two of them, so that
none need be consolidated with another. It holds where what a collection is made of is on one stage and equal rows
stand in one partition, which a projection may undo, or a sum of two inputs; such a collection is read whole. Whoever
reads may sit elsewhere and come later than who asked, so a version is named by its number and its digest, and one that
was swept away meanwhile is `SnapshotExpired`, never another one. Nothing is written.

>>> import ddflow as dd
>>> flow = dd.Flow()
>>> orders = flow.upserts("orders", {"id": pa.int64(), "city": pa.string()}, dd.Upsert(key="id"))
>>> cities = flow.output("cities", orders.project(["city"]))
>>> by_city = flow.output("by_city", cities.count())
>>> shared(flow, "orders"), shared(flow, "by_city"), shared(flow, "cities")
(ByPartition(stage=0, by=('id',)), ByPartition(stage=1, by=('city',)), None)
"""

from collections.abc import Mapping, Sequence
from contextlib import closing
from itertools import product
from math import prod
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa

from ddflow.columns.hashing import Secret, identities, partition_of
from ddflow.columns.names import DIFF
from ddflow.dataflow.budget import Budget
from ddflow.dataflow.dataflow import Dataflow
from ddflow.engine.checkpoint import MEND, StoredInventory
from ddflow.engine.read.history import changes
from ddflow.engine.read.reads import Reading
from ddflow.engine.snapshot import Snapshot, fill_version
from ddflow.errors import CorruptState, SpecError
from ddflow.operators.updates import time_column
from ddflow.partitions.stage_graph import StageGraph
from ddflow.partitions.stages import cut, placed
from ddflow.partitions.version import Version, gone
from ddflow.plan.codec import node_ids
from ddflow.plan.collection import walk_inputs
from ddflow.plan.compatibility import plan_of
from ddflow.plan.plan import Plan
from ddflow.storage.batch_store import BatchStore
from ddflow.storage.manifest import Manifest
from ddflow.storage.protocol import Store
from ddflow.time import as_shown
from ddflow.trace.joined import misplaced

KEYS: Final = 1000
"""Number of keys above which all partitions are read."""


class ByPartition(NamedTuple):
    """That a collection can be read share by share.  ``stage``: whose partitions.  ``by``: the columns that say in
    which partition a row is; None where it no longer tells."""

    stage: int
    by: tuple[str, ...] | None


def shared(flow: Plan, name: str) -> ByPartition | None:
    """Return how an output or an input is split over partitions; None if it must be read whole.  O(nodes)."""
    try:
        places, stages = placed(flow), cut(flow)
    except SpecError:  # it has no outputs
        return None
    node = flow.outputs.get(name) or flow.inputs[name]
    read = walk_inputs([node], lambda each: () if each.keeps else each.inputs)
    if any(places[each].roots == (each,) for each in read if not each.keeps):
        return None  # it keeps nothing: its rows are where those are that it is made of
    roots, by = places[node]
    at = {root: n for n, root in enumerate(flow.nodes) if root in roots}
    on = {stage for stage, active in enumerate(stages.active) for n in at.values() if n in active}
    return ByPartition(on.pop(), by) if len(on) == 1 and (node.consolidated or by is not None) else None


def partitions_with(by: Sequence[str], values: Mapping[str, Sequence[Any]], manifest: Manifest) -> list[int] | None:
    """Return the partitions that can have rows with certain values, ascending; None if that is unknown.  O(keys).

    ``by``: as in `ByPartition`.  ``values``: by column, Arrow scalars of its type; a row has one of them.
    """
    if not by or not set(by) <= set(values) or prod(len(values[name]) for name in by) > KEYS:
        return None
    keys = list(product(*(values[name] for name in by)))
    if not keys:
        return []
    # Scalars as they are: Python has no date before the year 1.
    columns = [pa.concat_arrays([pa.repeat(key[i], 1) for key in keys]) for i in range(len(by))]
    high, _ = identities(pa.Table.from_arrays(columns, names=list(by)), Secret(*manifest.secret), len(keys))
    return sorted({int(number) for number in partition_of(high, manifest.partitions)})


class Share(Reading):
    """One partition of one stage, open for reading.  O(bytes of it): every file is verified.

    Raises `CorruptState`, `StorageFailed`.
    """

    def __init__(self, store: Store, manifest: Manifest, flow: Plan, stage: int, number: int) -> None:
        stored = StoredInventory.read(store, manifest.inventories[stage * manifest.partitions + number])
        store.ahead(stored.text.names)
        graph = StageGraph(cut(flow), stage, Secret(*manifest.secret))
        super().__init__(Dataflow(flow, graph, Budget(None, None)))
        ids = node_ids(flow)
        if missing := sorted(ids[node] for node in graph.keeping if ids[node] not in stored.of.operators):
            raise CorruptState(stored.what, f"it lacks the operators {missing}", MEND)
        fill_version(self.dataflow, manifest, [stored], BatchStore(store))
        for upsert in graph.inputs.values():
            if (odd := misplaced(upsert.arranged, number, manifest.partitions)) is not None:
                raise CorruptState(stored.what, f"partition {number} of {manifest.partitions} has a key of {odd}", MEND)


def read_updates(
    version: Version,
    flow: Plan | None,
    name: str,
    share: tuple[int, int] | None,
    as_of: int | None = None,
    after: int | None = None,
) -> pa.Table:
    """Read an output or an input of a version as updates.  O(bytes opened).

    ``share``: a stage and a partition, as `shared` says; None for all of it.  ``as_of``, ``after``: as in
    `contents`.  Raises as `Version.opened`, `Share` and `Snapshot` do, and `NotReadable`.
    """
    with closing(version.opened("read")) as store:
        manifest = version.manifest(store)
        plan = plan_of(manifest.plan, flow, store.where)
        try:
            reading = Snapshot(store, manifest, plan) if share is None else Share(store, manifest, plan, *share)
        except CorruptState:
            if version.number not in store.numbers():
                raise gone(store, version.number) from None
            raise
        return contents(reading, name, as_of, after)


def contents(reading: Reading, name: str, as_of: int | None = None, after: int | None = None) -> pa.Table:
    """Read the rows of an output or an input, consolidated: its columns, ``_time``, the same in all rows, and
    ``_diff``.

    ``as_of``: a time that can be read, by default the last closed one.  ``after``: give the changes since that time.
    An output of upserts comes as upserts, and has no changes.  O(rows of the inputs it depends on).
    Raises `NotReadable`, `SpecError`.
    """
    node, graph = reading.node(name), reading.dataflow.graph
    kind = reading.flow.time_type
    time = reading.closed(f"read {name!r} as of {as_shown(as_of, kind)}", as_of)
    if after is None:
        return graph.output(node, time, as_of)
    if DIFF not in node.updates_schema(kind).names:
        raise SpecError(f"changes of {name!r}", "it gives upserts", "read the collection that they are made of")
    table = changes(graph, node, reading.closed(f"changes of {name!r} after {as_shown(after, kind)}", after), time)
    return stamped(table, time, node.updates_schema(kind))


def stamped(table: pa.Table, time: int, schema: pa.Schema) -> pa.Table:
    """Add a column of one time to rows and their ``_diff``.  ``schema``: of the updates.  O(rows)."""
    times = time_column(np.full(table.num_rows, time), schema.field(len(schema) - 2).type)
    columns = [table.column(name) for name in schema.names[:-2]]
    return pa.Table.from_arrays([*columns, pa.chunked_array([times]), table.column(DIFF)], schema=schema)
