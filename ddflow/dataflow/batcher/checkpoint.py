"""An inventory of pending events: runs as plain values and files, for a commit; and a batcher made of them again.

Invariant: the batcher that `restore` gives releases at every seal what the one given to `take` would have. A commit
must cost what changed. So a run is written once, when it is new, and the inventory says from which event on it still
waits. Merged runs are written anew, so each event is written once a size class.

>>> import numpy as np, pyarrow as pa
>>> from ddflow.operators.upsert.events import Events
>>> from ddflow.storage.memory import MemoryStore
>>> batch_store, batcher, times = BatchStore(MemoryStore()), Batcher(), np.array([3, 5])
>>> rows = pa.record_batch({"k": ["early", "late"]})
>>> batcher.add(Events(rows, times, times, np.array([0, 1])))
>>> batcher.seal(4).rows.to_pylist()
[{'k': 'early'}]
>>> again = restore(take(batcher, batch_store), "an example", rows.schema, batch_store, spilled=False)
>>> again.seal(6).rows.to_pylist()
[{'k': 'late'}]
"""

import pyarrow as pa

from ddflow.dataflow.batcher.batcher import Batcher
from ddflow.dataflow.batcher.run import PendingRun, filed, unfiled
from ddflow.errors import CorruptState, cut
from ddflow.storage.fields import MEND, Natural, Positive, Strict
from ddflow.storage.files.batch_store import BatchStore
from ddflow.storage.protocol import Blob


class PendingRecord(Strict, frozen=True):
    """A run of pending events.

    ``rows``: of its file; those from ``begin`` on are pending. ``advanced``: whether events have later times than they
    came with. ``final``: whether later merges skip it. ``columns``: of its events.
    """

    file: Blob
    rows: Positive
    begin: Natural
    advanced: bool
    final: bool
    columns: list[str]
    compressed: bool

    def __post_init__(self) -> None:
        if self.begin >= self.rows:
            raise ValueError(f"it begins at row {self.begin:,} of {self.rows:,}")


def take(batcher: Batcher, batch_store: BatchStore) -> list[PendingRecord]:
    """Write the runs that are in no file yet; all of them as records.  O(bytes not written yet + runs).

    Raises `StorageFull`, `StorageFailed`; the batcher is then as before.
    """
    out = []
    for run in batcher.runs.by_least:
        run.stored = stored = run.stored or batch_store.save(filed(run.events))
        advanced, columns = run.events.original is not run.events.times, run.events.rows.schema.names
        rows = int(run.events.times.size)
        out.append(PendingRecord(stored.blob, rows, int(run.begin), advanced, run.final, columns, stored.compressed))
    return out


def restore(
    records: list[PendingRecord],
    what: str,
    schema: pa.Schema,
    batch_store: BatchStore,
    spilled: bool,
    home: BatchStore | None = None,
    held: Batcher | None = None,
) -> Batcher:
    """Restore a batcher from the runs of an inventory. O(bytes); every file is verified.

    ``what``: the place of the records, for messages. ``schema``: of the events. ``spilled``: whether runs count as
    files, and not as memory. ``home``: the store to which compressed files are written again, so that they can be
    mapped; None: their events are held in memory. ``held``: a batcher of an earlier inventory, whose runs are not read
    again. Raises `CorruptState`, and the errors of the home.
    """
    batcher, runs = Batcher(), [] if held is None else held.runs.by_least
    known = {run.stored.blob: run for run in runs if run.stored and spilled == (run.file is not None)}
    for each in records:
        if (run := known.get(each.file)) is not None and not run.wasteful:
            run = PendingRun(run.events, each.begin, run.bytes_resident, run.file, each.final, run.stored)
            batcher.runs.add(run)
            batcher.pending += len(run)
            continue
        run = _restore_run(each, schema, batch_store, spilled, what)
        if home is not None and each.compressed:
            run = PendingRun.spilled(home, run.waiting)
        batcher.runs.add(run)
        batcher.pending += len(run)
    return batcher


def _restore_run(
    record: PendingRecord, schema: pa.Schema, batch_store: BatchStore, spilled: bool, what: str
) -> PendingRun:
    names, rows = record.columns, record.rows
    if not set(names) <= set(schema.names):
        raise CorruptState(what, f"its file has the columns {cut(str(names))}, which the plan has not", MEND)
    own = ["_time", "_arrival", *(["_original"] if record.advanced else [])]
    fields = [*(pa.field(name, pa.int64()) for name in own), *(schema.field(name) for name in names)]
    kept = batch_store.open(record.file, pa.schema(fields), rows, record.compressed)
    if any(column.null_count for column in kept.batch.columns[: len(own)]):
        raise CorruptState(what, f"a time of {record.file.name} is null", MEND)
    events = unfiled(kept.batch, record.advanced)
    if not bool((events.times[1:] >= events.times[:-1]).all()):
        raise CorruptState(what, f"the times of {record.file.name} are not in order", MEND)
    if names != schema.names:
        columns = [events.rows.column(f.name) if f.name in names else pa.nulls(rows, f.type) for f in schema]
        events = events._replace(rows=pa.RecordBatch.from_arrays(columns, schema=schema))
    if spilled:
        return PendingRun(events, record.begin, 0, kept, True)
    return PendingRun(events, record.begin, int(events.rows.nbytes) + events.kept, None, record.final, kept)
