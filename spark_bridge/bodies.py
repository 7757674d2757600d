"""The bodies of an epoch's tasks: route rows to their partitions, run a part on them, read what was committed.

Invariant: whatever a body wrote is seen by nobody until the driver publishes it, so one that is retried, run twice,
killed, or whose rows are thrown away is harmless; a partition is opened whether rows came or not, and its receipt is
the last that a task gives. A task learns its partition from Spark, which promises the place of a row only by the
shuffle, so what came is compared with what the task is; receipts of one level travel to the driver through the tasks of
the next; and an executor may see another folder under the state's name, which must be found before any work is done.
What it does not do: commit (``ddflow.partitions.commit``), make frames (``job``).

>>> import ddflow as dd
>>> flow = dd.Flow()
>>> _ = flow.upserts("people", {"id": pa.int64()}, dd.Upsert(key="id"))
>>> route = Route(Router(flow, "people", 1, Secret(1, 2)), None, ("id",))
>>> [chunk.select(["to", "rows"]).to_pylist() for chunk in route([pa.record_batch({"x": [7]})])]
[[{'to': 0, 'rows': 1}]]
"""

from __future__ import annotations

import gc
import itertools
import os
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from time import perf_counter_ns
from typing import Any, Final

import pyarrow as pa
from msgspec.structs import replace
from pyspark import TaskContext

from ddflow.columns.hashing import Secret
from ddflow.errors import SnapshotExpired
from ddflow.partitions.chunks import packed_receipts, packed_sums
from ddflow.partitions.epoch_start import Base
from ddflow.partitions.partitioner import Router
from ddflow.partitions.receipt import Receipt
from ddflow.partitions.shuffle_reader import Spool
from ddflow.partitions.stage_step import Part, idle
from ddflow.partitions.stages import Cut
from ddflow.partitions.version import Version
from ddflow.storage.batch_store import BatchStore
from ddflow.storage.opening import open_store
from ddflow.storage.outputs import OutputFolder
from ddflow.storage.protocol import Blob
from spark_bridge.columns import carried
from spark_bridge.failures import noted
from spark_bridge.task import sliced
from spark_bridge.warm import PARTS, close

Batches = Iterable[pa.RecordBatch]


_SEEN: Final = set[Version]()
"""What was seen from this process already."""


def look(version: Version) -> None:
    """Raise `StateRefused`, naming this host, unless the state is there: that manifest, or one that followed it.  O(1).

    A manifest that followed may be another state's: what a task goes on from it compares by itself.
    """
    if version not in _SEEN:
        with suppress(SnapshotExpired):
            version.opened("open").close()
        _SEEN.add(version)


@dataclass(frozen=True)
class Route:
    """Rows of one source, packed for their partitions.  ``names``: of the columns that come, by position.  ``version``:
    of the state, which must be seen; None: it is not looked for.  O(rows).  Raises `StateRefused`, and
    what the router raises."""

    router: Router
    version: Version | None
    names: tuple[str, ...]

    def __call__(self, batches: Batches) -> Iterator[pa.RecordBatch]:
        with noted():
            if self.version is not None:
                look(self.version)
            yield from self.router((batch.rename_columns(list(self.names)) for batch in batches), _number())


@dataclass(frozen=True)
class Level:
    """One part's share of an epoch: chunks in, sums for later levels and receipts out.

    ``columns``: by source, those that the rows have.  ``stamp``: what parts have in common that may be kept open for
    each other, beside state and place.  ``warm``: bytes that a worker may keep open.  O(rows and updates).  Raises what
    `Part` raises.
    """

    cut: Cut
    base: Base
    level: int
    columns: Mapping[str, tuple[str, ...]]
    stamp: str
    warm: int

    def __call__(self, batches: Batches) -> Iterator[pa.RecordBatch]:
        with noted():
            settle()
            yield from self._run(batches, _number())

    def _run(self, batches: Batches, number: int) -> Iterator[pa.RecordBatch]:
        base, began = self.base, perf_counter_ns()
        with ExitStack() as stack:
            scratch = None if base.memory is None else stack.enter_context(_scratch())
            spool = stack.enter_context(Spool(self.cut, self.level, number, base.memory, scratch, self.columns))
            for batch in batches:
                spool.take(batch)
            taken = (perf_counter_ns() - began) // 1000
            inputs = {name: reader for name in self.cut.flow.sources if (reader := spool.source(name)) is not None}
            sums = {
                each.number: table
                for each in self.cut.meetings
                if each.level == self.level and (table := spool.sums(each.number)).num_rows
            }
            yield from spool.forwarded
            receipt = None if inputs or sums else idle(self.cut, base, self.level, number)
            if receipt is None:
                part, hit = self._part(number)
                try:
                    done = part.step(base, inputs, sums, spool.rows, spool.digests)
                    figures = {
                        **done.receipt.figures,
                        "take": taken,
                        "hit": int(hit),
                        "miss": int(not hit),
                        "pending": part.dataflow.pending,
                    }
                    yield from packed_sums(done.sums, self.cut, base.partitions, Secret(*base.secret))
                    yield self._receipts(spool, replace(done.receipt, figures=figures), number)
                except BaseException:
                    close(part)  # half way through, or nobody wants the rest
                    raise
                PARTS.put(self._key(number), part, figures["memory"], self.warm)
            else:
                yield self._receipts(spool, receipt, number)

    def _part(self, number: int) -> tuple[Part, bool]:
        """The part, and whether it was open."""
        at = self.base.inventories[self.level][number].name if self.base.inventories else ""
        found = PARTS.take(self._key(number), at)
        return (found, True) if found is not None else (Part(self.cut, self.base, self.level, number), False)

    def _key(self, number: int) -> tuple[Any, ...]:
        base = self.base
        return base.store, self.stamp, base.memory, base.retain, base.partitions, self.level, number

    @staticmethod
    def _receipts(spool: Spool, receipt: Receipt, number: int) -> pa.RecordBatch:
        return packed_receipts([*spool.receipts, receipt.to_json()], number)


@dataclass(frozen=True)
class Files:
    """The rows of committed files of one output: batches of (name, length, digest) in, rows out in types that travel.

    ``folder``: of Parquet files, else None.  O(bytes).  Raises `CorruptState`, and what the store raises.
    """

    store: str
    trust: str
    folder: str | None
    name: str
    epoch: int
    schema: pa.Schema

    def __call__(self, batches: Batches) -> Iterator[pa.RecordBatch]:
        with noted(), ExitStack() as stack:
            batch_store: BatchStore | None = None
            for batch in batches:
                for name, length, digest_ in zip(*(column.to_pylist() for column in batch.columns), strict=True):
                    blob = Blob(name, length, digest_)
                    if self.folder is not None:
                        folder = OutputFolder(self.folder)
                        table = folder.read(self.name, self.epoch, blob, self.schema)
                    else:
                        if batch_store is None:
                            store = open_store(self.store, trust=self.trust, create=False, readonly=True)
                            stack.callback(store.close)
                            batch_store = BatchStore(store)
                        table = batch_store.table(blob, self.schema, None)
                    for part in sliced(table):
                        yield carried(part, f"output {self.name!r}")


def settle() -> None:
    """Spare this worker's garbage collector what will never be garbage: Spark calls it after every task, which took
    0.1 s with all that is imported by then.  Twice in a process: with what the first task loaded, too."""
    if TaskContext.get() is not None and next(_LEVELS) < 2:
        gc.collect()
        gc.freeze()


_LEVELS: Final = itertools.count()
"""Bodies of levels that began in this process."""


def _number() -> int:
    """The task's partition."""
    context = TaskContext.get()
    return 0 if context is None else int(context.partitionId())


def _scratch() -> tempfile.TemporaryDirectory[str]:
    """A folder of the task's own on the executor's disk, where Spark keeps what it spills."""
    places = os.environ.get("SPARK_LOCAL_DIRS", "").split(",")
    return tempfile.TemporaryDirectory(prefix="ddflow-", dir=next((p for p in places if os.path.isdir(p)), None))
