"""Compact a state: drop history before ``since`` and, on request, every byte of deleted rows.

Guarantees: reads at or after ``since`` return the same rows as before. After ``forget=True``, no file of the state
contains a value of a deleted or replaced row, whatever the type of the value. Before a compaction with ``forget=True``,
values of deleted rows can be in older runs, unfinished merges, the payload of tombstones, bytes under nulls, and
pending files with released events. Values of deleted rows can be in stored outputs of the last epochs, and in earlier
versions. So ``forget=True`` rewrites all files. Besides, ``forget=True`` removes the receipts of epochs, and the
recorded scopes and orders of full contents. After ``forget=True``, no earlier epoch can be replayed. With
``forget=True``, `compact` publishes the result twice, because a state always keeps its two newest versions. Limits:
``forget=True`` is refused if a sink lags behind. `compact` does not search output folders, sinks, backups and caches.
The keyed hash of a deleted key stays as long as the order of its deletion is kept.
"""

from collections.abc import Iterable
from dataclasses import replace
from typing import Any, cast

import numpy as np
import pyarrow as pa

from ddflow.columns.rows import Rows
from ddflow.dataflow.batcher import Batcher
from ddflow.dataflow.dataflow import Dataflow
from ddflow.dataflow.graph import ComputedStep
from ddflow.dataflow.pending_runs import PendingRun as Waiting
from ddflow.engine.calls import EngineCalls
from ddflow.engine.commits import EpochCommitter
from ddflow.engine.garbage import gc
from ddflow.errors import SpecError
from ddflow.metrics import Look
from ddflow.storage.files.batch_store import BatchStore
from ddflow.time import format_time
from ddflow.trace.arrangement import Arrangement
from ddflow.trace.batch import Batch, Run
from ddflow.trace.merge import RunMerge, Target
from ddflow.trace.spill import spill_batch


def compact(calls: EngineCalls, forget: bool, look: Look = lambda rows: None) -> None:
    """Merge each arrangement into one run, and publish the state. `Engine.compact` describes the options.

    ``look``: called with the number of rows written since the last call, to report progress.

    >>> import pyarrow as pa, ddflow as dd
    >>> from ddflow.storage.memory import MemoryStore
    >>> flow, store = dd.Flow(), MemoryStore()
    >>> _ = flow.output("people", flow.upserts("people", {"id": pa.int64(), "name": pa.string()}, dd.Upsert(key="id")))
    >>> with flow.open(store) as engine:
    ...     for time, name in enumerate(["Ann Onymous", "Bob"]):
    ...         _ = engine.step({"people": pa.table({"id": [1], "name": [name]})}, time)
    ...     before = any(b"Ann" in data for data, _ in store.shared.blobs.values())
    ...     engine.compact(forget=True)
    ...     before, any(b"Ann" in data for data, _ in store.shared.blobs.values()), engine.read("people").num_rows
    (True, False, 1)
    """
    dataflow, durable = calls.dataflow, calls.durable
    with dataflow.guard.lock_for_write("compact"):
        _check_compactable(calls, forget)
        if forget:
            since = max(dataflow.since, dataflow.last)
            dataflow.graph.apply_computed_step(ComputedStep(since), dataflow.frontier)
            dataflow.since = since
        hidden = {name: each.hidden for name, each in dataflow.graph.inputs.items()}
        for name, arranged in dataflow.graph.arrangements.items():
            merge_all_runs(arranged, dataflow.budget.home, hidden.get(name, ()), look)
        for batcher in dataflow.batchers.values() if forget else ():
            rewrite_pending_runs(batcher, dataflow.budget.home, look)
        if durable is not None:
            _publish_compaction(dataflow, durable, forget)


def _check_compactable(calls: EngineCalls, forget: bool) -> None:
    """Raise `SpecError` if the state cannot be compacted at the moment."""
    dataflow = calls.dataflow
    least = dataflow.holds.find_least_time()
    if forget and least < dataflow.last:
        found = f"a reader holds history from {format_time(least, dataflow.time_type)} on"
        raise SpecError("compact(forget=True)", found, "close the readers")
    calls.commit_waiting_calls("compact")
    if forget and calls.durable is not None:
        log = calls.durable.log
        behind = [f"{name!r} has epoch {at.epoch}" for name, at in log.sinks.items() if at.epoch < log.epoch]
        if behind:
            found = f"the state has epoch {log.epoch} and keeps updates for sinks that lag: {', '.join(behind)}"
            remedy = "deliver them with engine.run({}, sinks) or ddflow run, or forget the sink: engine.detach(name)"
            raise SpecError("compact(forget=True)", found, remedy)
    if dataflow.owed:
        raise SpecError(
            "compact",
            f"no step has returned the contents of the new outputs {list(dataflow.owed)} yet",
            "take a step first, which returns them",
        )


def merge_all_runs(
    arranged: Arrangement, home: BatchStore | None, hidden: Iterable[str] = (), look: Look = lambda rows: None
) -> None:
    """Merge all versions into one run, except those that no read at or after ``since`` needs. O(versions).

    ``home``: the store of runs on disk, None if all runs are in memory. ``hidden``: columns that tombstones need.
    ``look``: as in `compact`. Raises `StorageFull`, `StorageFailed`, `SpillFull`, `SpillFailed`. After an error, reads
    return the same rows as before the call, and a later call continues the merge.
    """
    slots = arranged.slots
    spine, index, target = arranged.spine, arranged.merged_index, cast(Target | None, None)
    if home is not None:
        arranged.spill(home, 0)
        spine, index = arranged.on_disk, None

        def target(batch: Batch) -> Batch:
            look(len(batch))
            return spill_batch(clear_deleted_values(batch, hidden), home)

    settled = arranged.latest <= arranged.since
    spine.advance_merges(None, slots, index, arranged.since, settled)
    arranged.settle_dropped_rows()
    runs = [item for item in spine.items if isinstance(item, Run)]
    if not runs:
        return
    spine.items[:] = [RunMerge(runs, True, target)]
    spine.advance_merges(None, slots, index, arranged.since, settled)
    arranged.settle_dropped_rows()
    if home is None:
        for part in spine.parts:
            look(part.end - part.begin)
            slots.replace_batch(part.slot, clear_deleted_values(slots[part.slot], hidden))


def clear_deleted_values(batch: Batch, hidden: Iterable[str]) -> Batch:
    """Clear the values of deleted rows, and the bytes that are stored in the place of nulls.

    Values in ``hidden`` columns stay.

    O(n) for each column.
    """
    dead, table = batch.live == 0, batch.rows.table
    some, kept = bool(dead.any()), set(hidden)
    every = np.arange(len(batch))
    columns: list[Any] = []
    for field, column in zip(table.schema, batch.rows.columns, strict=True):
        gone = some and field.name not in kept
        # `take` writes zero bytes for a null index, and for a null value.
        if gone or column.null_count:
            column = column.take(pa.array(every, mask=dead) if gone else pa.array(every))
        columns.append(column)
    return replace(batch, rows=Rows(pa.RecordBatch.from_arrays(columns, schema=table.schema)))


def rewrite_pending_runs(batcher: Batcher, home: BatchStore | None, look: Look = lambda rows: None) -> None:
    """Replace each run that has both released and pending events by a new run with copies of the pending events.

    O(bytes of the copied events).
    """
    for run in [each for each in batcher.runs.by_least if each.begin]:
        if run.file is None or home is None:
            new = Waiting.from_events(run.pending_events.copy(), run.final)
        else:
            new = Waiting.spill_events(home, run.pending_events)
        look(len(run.pending_events))
        batcher.runs.replace_runs([run], [new])


def _publish_compaction(dataflow: Dataflow, durable: EpochCommitter, forget: bool) -> None:
    receipts = () if forget else durable.log.manifest_log.manifest.receipts
    note = "compaction that forgets" if forget else "compaction"
    if forget:
        dataflow.fed = {name: fed.remove_runs_naming_values() for name, fed in dataflow.fed.items()}
    try:
        for _ in range(1 + forget):
            durable.publish_version(dataflow, receipts, note)
    except BaseException:
        dataflow.guard.state = "failed"
        raise
    if forget:
        gc(durable.log.manifest_log.store, grace=0, orphans=0)
    else:
        durable.log.manifest_log.sweep_old_manifests()
