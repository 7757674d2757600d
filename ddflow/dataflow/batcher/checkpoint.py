"""An inventory of pending events: runs as plain values and files, for a commit; and the batcher they stand for.

Invariant: `restore` gives a batcher that releases, at every seal, what the one that `take` was asked of would have. A
commit must cost what changed, so a run is written once, when it is new, and what has been released of it since is said
by where it begins; runs that are merged are written anew, each event once a size class.

>>> import numpy as np, pyarrow as pa
>>> from ddflow.operators.upsert.events import Sealed
>>> from ddflow.storage.memory import MemoryStore
>>> vault, batcher, times = Vault(MemoryStore()), Batcher(), np.array([3, 5])
>>> rows = pa.record_batch({"k": ["early", "late"]})
>>> batcher.add(Sealed(rows, times, times, np.array([0, 1])))
>>> batcher.seal(4).events.to_pylist()
[{'k': 'early'}]
>>> again = restore(Record({"runs": take(batcher, vault)}, "an example"), rows.schema, vault, spilled=False)
>>> again.seal(6).events.to_pylist()
[{'k': 'late'}]
"""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from ddflow.dataflow.batcher.batcher import Batcher
from ddflow.dataflow.batcher.run import Run, filed, unfiled
from ddflow.errors import CorruptState
from ddflow.storage.batch_store import Deposit, Vault
from ddflow.storage.record import Record


def take(batcher: Batcher, vault: Vault) -> list[dict[str, Any]]:
    """Write the runs that are in no file yet; all of them as plain values.  O(bytes not written yet + runs).

    Raises `StorageFull`, `StorageFailed`; the batcher is then as before.
    """
    out = []
    for run in batcher.runs.by_least:
        if run.stored is None:
            run.stored = vault.deposit(filed(run.sealed))
        assert isinstance(run.stored, Deposit)
        columns = run.sealed.events.schema.names
        out.append(
            {
                "file": run.stored.blob.to_json(),
                "rows": int(run.sealed.times.size),
                "begin": run.begin,
                "advanced": run.sealed.original is not run.sealed.times,
                "final": run.final,
                "columns": columns,
            }
            | ({"compressed": True} if run.stored.compressed else {})
        )
    return out


def restore(record: Record, schema: pa.Schema, vault: Vault, spilled: bool, home: Vault | None = None) -> Batcher:
    """The batcher that an inventory's ``runs`` stand for.  O(bytes); every file is verified.

    ``schema``: of the events.  ``spilled``: whether runs count as files, and not as memory.  ``home``: where what is
    compressed is written anew, to be read where it lies; None: it is held in memory.  Raises `CorruptState`, and what
    the home raises.
    """
    batcher = Batcher()
    for each in record.records("runs"):
        run = _run(each, schema, vault, spilled)
        if home is not None and run.stored.compressed:
            run = Run.spilled(home, run.waiting)
        batcher.runs.add(run)
        batcher.pending += len(run)
    return batcher


def _run(record: Record, schema: pa.Schema, vault: Vault, spilled: bool) -> Run:
    names, rows, advanced = record.texts("columns"), record.number("rows", 1), record.flag("advanced")
    if not set(names) <= set(schema.names):
        raise _wrong(record, f"its file has the columns {names}, which the plan has not")
    own = ["_time", "_arrival", *(["_original"] if advanced else [])]
    fields = [*(pa.field(name, pa.int64()) for name in own), *(schema.field(name) for name in names)]
    compressed = "compressed" in record and record.flag("compressed")
    kept = vault.open(record.blob("file"), pa.schema(fields), rows, compressed)
    if any(column.null_count for column in kept.batch.columns[: len(own)]):
        raise _wrong(record, "a time is null")
    sealed = unfiled(kept.batch, advanced)
    if not bool((sealed.times[1:] >= sealed.times[:-1]).all()):
        raise _wrong(record, "its times are not in order")
    if names != schema.names:
        columns = [sealed.events.column(f.name) if f.name in names else pa.nulls(rows, f.type) for f in schema]
        sealed = sealed._replace(events=pa.RecordBatch.from_arrays(columns, schema=schema))
    begin = record.number("begin", 0, rows - 1)
    if spilled:
        return Run(sealed, begin, 0, kept, True)
    return Run(sealed, begin, int(sealed.events.nbytes) + sealed.kept, None, record.flag("final"), kept)


def _wrong(record: Record, found: str) -> CorruptState:
    return CorruptState(record.what, found, "restore it from a copy, or go back with ddflow rollback")
