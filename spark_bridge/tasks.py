"""Run tasks on executors.

Tasks route rows to partitions, compute a stage with or without a state, and read committed files.

The files of a task belong to no version until the driver commits. So a task that is retried, repeated or killed changes
no result. With a state, each partition has one task per stage, and the task ends with its receipt. The receipts of a
stage reach the driver through the tasks of the next stage. Without a state, a task depends only on the rows of its
partition. Limits: on an executor, the path of the state may lead to another folder. The task detects a wrong folder
before it does any work.

>>> import ddflow as dd
>>> flow = dd.Flow()
>>> _ = flow.upserts("people", {"id": pa.int64()}, dd.Upsert(key="id"))
>>> route = RouteTask(Partitioner(flow, "people", 1, Secret(1, 2)), None, ("id",))
>>> [chunk.select(["to", "rows"]).to_pylist() for chunk in route([pa.record_batch({"x": [7]})])]
[[{'to': 0, 'rows': 1}]]
"""

import gc
import itertools
import os
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from functools import cache
from time import perf_counter_ns
from typing import Any, Final

import pyarrow as pa
from msgspec.structs import replace
from pyspark import TaskContext

from ddflow.columns.hashing import Secret
from ddflow.columns.widening import conform_to_wider_schema
from ddflow.connectors.parquet.sink import Fragment, open_output_folder
from ddflow.errors import SnapshotExpired
from ddflow.partitions.chunks import ShuffleReader, pack_exchange_sums, pack_receipts
from ddflow.partitions.epoch_start import EpochStart, StateVersion
from ddflow.partitions.partitioner import Partitioner, PastSchemaDigests
from ddflow.partitions.receipt import Receipt
from ddflow.partitions.stages import Stages
from ddflow.partitions.step import TIME, StagePartition, compute_stage, make_idle_receipt
from ddflow.storage.closing import undo_on_failure
from ddflow.storage.files.batch_store import BatchStore
from ddflow.storage.inventory_text import is_state_file
from ddflow.storage.opening import open_store
from ddflow.storage.protocol import Blob
from spark_bridge.errors import attach_error_notes
from spark_bridge.part_cache import PARTS, CacheLimit, close_part, measure_machine_memory
from spark_bridge.types import from_spark_types, make_nullable, to_spark_types

Batches = Iterable[pa.RecordBatch]
BATCH_ROWS, BATCH_BYTES = 65_536, 32 << 20
"""The maximum number of rows and of bytes in one yielded batch. A single row may be larger."""
WAYS: Final = ("hit", "behind", "miss")
"""The three ways in which a task finds its partition: open, open but behind the state, or not open."""
_SEEN: Final = set[StateVersion]()
"""The versions of states that `check_state_visible` has already checked in this process."""


def check_state_visible(version: StateVersion) -> None:
    """Raise `StateRefused` unless this host sees the manifest of this version or of a later version. O(1).

    The error has the name of this host.

    A later manifest may belong to another state, so the task also compares its own files.
    """
    if version not in _SEEN:
        with suppress(SnapshotExpired):
            version.open("open").close()
        _SEEN.add(version)


class Task:
    """A Spark task that maps batches to batches. The ddflow errors of the task reach the driver with all their data."""

    def __call__(self, batches: Batches) -> Iterator[pa.RecordBatch]:
        """Run the task."""
        with attach_error_notes():
            yield from self.run(batches)

    def run(self, batches: Batches) -> Iterator[pa.RecordBatch]:
        """Compute the output of the task."""
        raise NotImplementedError


@dataclass(frozen=True)
class RouteTask(Task):
    """The task that packs the rows of one input for their partitions.

    ``names``: the column names by position. ``version``: a version of the state that this host must be able to see, or
    None. O(rows). Raises `StateRefused`, and the errors of the router.
    """

    router: Partitioner
    version: StateVersion | None
    names: tuple[str, ...]

    def run(self, batches: Batches) -> Iterator[pa.RecordBatch]:
        """Pack the rows."""
        if self.version is not None:
            check_state_visible(self.version)
        return self.router((batch.rename_columns(list(self.names)) for batch in batches), _task_number())


@dataclass(frozen=True)
class RedigestTask(Task):
    """The task that computes digests of the chunks of a replayed epoch.

    The digests cover the columns that the epoch had when it was committed.
    """

    digests: PastSchemaDigests

    def run(self, batches: Batches) -> Iterator[pa.RecordBatch]:
        """Compute the digests of the chunks. O(rows)."""
        return map(self.digests, batches)


@dataclass(frozen=True)
class EpochStageTask(Task):
    """The task that runs an epoch in one partition of a stage.

    The task turns chunks into receipts and into sums for later stages.

    ``columns``: the columns of the rows, by input. ``stamp``: the fingerprint of the flow; flows with the same stamp
    may share open partitions. ``most``: the limit on open partitions in a worker. O(rows and updates). Raises the
    errors of `StagePartition`.
    """

    cut: Stages
    start: EpochStart
    stage: int
    columns: Mapping[str, tuple[str, ...]]
    stamp: str
    most: CacheLimit

    def run(self, batches: Batches) -> Iterator[pa.RecordBatch]:
        """Run the epoch in the partition."""
        freeze_gc_objects()
        start, number, began = self.start, _task_number(), perf_counter_ns()
        with ExitStack() as stack:
            scratch = None if start.memory is None else stack.enter_context(_make_scratch_folder())
            shuffle = stack.enter_context(
                ShuffleReader(self.cut, self.stage, number, start.memory, scratch, self.columns)
            )
            inputs, sums = _read_chunks(shuffle, batches)
            taken = (perf_counter_ns() - began) // 1000
            yield from shuffle.later_stage_chunks
            receipt = None if inputs or sums else make_idle_receipt(self.cut, start, self.stage, number)
            if receipt is None:
                part, way = self._open_part(number)
                with undo_on_failure(close_part, part):  # after an error or if Spark drops the rest of the iterator
                    done = part.step(start, inputs, sums, shuffle.rows, shuffle.digests, shuffle.said)
                    size = done.receipt.figures["memory"]
                    most = self.most.compute_bytes(
                        measure_machine_memory(), PARTS.nbytes + (size if way != "miss" else 0)
                    )
                    figures = {
                        **done.receipt.figures,
                        "take": taken,
                        "parts": size,
                        "part_cache": most,
                        **{each: int(each == way) for each in WAYS},
                        "pending": part.dataflow.pending_count,
                    }
                    yield from pack_exchange_sums(done.sums, self.cut, start.partitions, Secret(*start.secret))
                    yield self._pack_receipts(shuffle, replace(done.receipt, figures=figures), number)
                PARTS.put(self._part_key(number), part, size, most, start.epoch)
            else:
                yield self._pack_receipts(shuffle, receipt, number)

    def _open_part(self, number: int) -> tuple[StagePartition, str]:
        """Return the partition, and in which of the `WAYS` the task found it."""
        start, stage = self.start, self.stage
        at = start.inventory_name(stage, number)
        found = PARTS.take(self._part_key(number), (at, *start.list_past_inventories(stage, number)))
        if found is None:
            return StagePartition(self.cut, start, stage, number), "miss"
        if found.at == at:
            return found, "hit"
        with undo_on_failure(close_part, found):
            found.catch_up(start)
        return found, "behind"

    def _part_key(self, number: int) -> tuple[Any, ...]:
        start = self.start
        return start.version.store, self.stamp, start.memory, start.retain, start.partitions, self.stage, number

    @staticmethod
    def _pack_receipts(shuffle: ShuffleReader, receipt: Receipt, number: int) -> pa.RecordBatch:
        return pack_receipts([*shuffle.receipts, replace(receipt, said=shuffle.said).to_json()], number)


@dataclass(frozen=True)
class StatelessStageTask(Task):
    """The task that runs one partition of a stage without a state.

    The task turns chunks into updates, or into sums for later stages.

    ``output``: the output of the last stage, whose updates get Spark's types; None for earlier stages. ``columns``: see
    `EpochStageTask`. ``time``: the time of the step in epoch mode. O(rows and updates). Raises the same errors as
    `compute_stage`. Raises `SchemaMismatch` for values that Spark's types cannot hold.
    """

    cut: Stages
    stage: int
    secret: Secret
    partitions: int
    columns: Mapping[str, tuple[str, ...]]
    output: str | None
    time: int = TIME

    def run(self, batches: Batches) -> Iterator[pa.RecordBatch]:
        """Run the stage in the partition."""
        freeze_gc_objects()
        batches = (batch for batch in batches if batch.num_rows)
        for first in batches:
            # The number of the partition is read from its rows. The number of the Spark task may differ, because users
            # can add or merge tasks.
            yield from self._run_stage(itertools.chain([first], batches), first.column("to")[0].as_py())

    def _run_stage(self, batches: Batches, number: int) -> Iterator[pa.RecordBatch]:
        with ShuffleReader(self.cut, self.stage, number, columns=self.columns) as shuffle:
            inputs, sums = _read_chunks(shuffle, batches)
            rows = {name: reader.read_all() for name, reader in inputs.items()}
            yield from shuffle.later_stage_chunks
        if not rows and not sums:
            return
        done = compute_stage(self.cut, self.stage, self.secret, rows, sums, self.time)
        if self.output is None:
            yield from pack_exchange_sums(done.sent, self.cut, self.partitions, self.secret)
        else:
            yield from to_spark_batches(done.outputs[self.output], self.output)


@dataclass(frozen=True)
class SingleStageTask(Task):
    """The task of a flow with one input, one output and a single stage. The task turns rows into updates.

    All rows of a key must be in one partition, and the columns must have the names of the input. O(rows) expected.
    Raises the errors of `StatelessStageTask`.
    """

    cut: Stages
    secret: Secret

    def run(self, batches: Batches) -> Iterator[pa.RecordBatch]:
        """Compute the updates of the rows."""
        flow, parts = self.cut.flow, [batch for batch in batches if batch.num_rows]
        (name,), (output,) = flow.inputs, flow.outputs
        if not parts:
            return
        bound, table = flow.inputs[name].bound, pa.Table.from_batches(parts)
        if bound.format is None:
            table = from_spark_types(table, make_nullable(bound.schema), f"rows for {name!r}")
        rows = {name: table}
        del parts
        yield from to_spark_batches(compute_stage(self.cut, 0, self.secret, rows, {}).outputs[output], output)


@dataclass(frozen=True)
class UpdatesFile:
    """A committed file of updates.

    ``folder``: the folder of outputs for a Parquet file, else None. ``columns``: the columns of the file, if the output
    has other columns now, else None.
    """

    epoch: int
    blob: Blob
    folder: str | None
    columns: pa.Schema | None

    def read(self, output: str, schema: pa.Schema, store: Callable[[], BatchStore]) -> pa.Table:
        """Read the rows of the file in the columns of ``schema``. O(bytes).

        ``store``: a function that opens the store with the file; not called for a file in ``folder``. Raises
        `CorruptState`, and the errors of the store.
        """
        there = schema if self.columns is None else self.columns
        if self.folder is None:
            table = store().read_table(self.blob, there, None)
        else:
            table = open_output_folder(self.folder).read_fragment(self.epoch, Fragment(output, self.blob), there)
        return table if self.columns is None else pa.Table.from_batches([conform_to_wider_schema(table, schema)])


@dataclass(frozen=True)
class ReadFilesTask(Task):
    """The task that reads committed files of one output.

    The task gets (name, length, digest) and returns rows in Spark's types.

    ``folder``: the folder of Parquet files, else None. ``there``: the columns of the files, if they differ from
    ``schema``. O(bytes). Raises `CorruptState`, and the errors of the store.
    """

    store: str
    trust: str
    folder: str | None
    name: str
    epoch: int
    schema: pa.Schema
    there: pa.Schema | None = None

    def run(self, batches: Batches) -> Iterator[pa.RecordBatch]:
        """Read the files."""
        named = (zip(*(column.to_pylist() for column in batch.columns), strict=True) for batch in batches)
        for table in self.read_tables(Blob(*each) for batch in named for each in batch):
            yield from to_spark_batches(table, self.name)

    def read_tables(self, blobs: Iterable[Blob]) -> Iterator[pa.Table]:
        """Read the rows of files one after the other."""
        with ExitStack() as stack:

            @cache
            def open_batches() -> BatchStore:
                store = open_store(self.store, trust=self.trust, create=False, readonly=True)
                stack.callback(store.close)
                return BatchStore(store)

            for blob in blobs:
                file = UpdatesFile(self.epoch, blob, None if is_state_file(blob) else self.folder, self.there)
                yield file.read(self.name, self.schema, open_batches)


@dataclass(frozen=True)
class ConvertFilesTask(Task):
    """The task that converts committed files with ``make``.

    The task gets indexes of files in ``blobs``, and returns bytes.

    Raises the errors of ``make``.
    """

    read: ReadFilesTask
    blobs: tuple[Blob, ...]
    make: Callable[[pa.Table], bytes]

    def run(self, batches: Batches) -> Iterator[pa.RecordBatch]:
        """Convert the files."""
        freeze_gc_objects()
        numbers = (number for batch in batches for number in batch.column(0).to_pylist())
        for table in self.read.read_tables(self.blobs[number] for number in numbers):
            made = pa.array([self.make(table)], pa.binary())
            yield pa.RecordBatch.from_arrays([made], names=["made"])


def _read_chunks(
    shuffle: ShuffleReader, batches: Batches
) -> tuple[dict[str, pa.RecordBatchReader], dict[int, pa.Table]]:
    """Combine all chunks.

    Return what this stage reads: the rows of each input and the sums of each exchange.
    """
    for batch in batches:
        shuffle.add_chunks(batch)
    inputs = {name: reader for name in shuffle.cut.flow.inputs if (reader := shuffle.read_input(name)) is not None}
    here = [each.number for each in shuffle.cut.exchanges if each.stage == shuffle.stage]
    return inputs, {number: table for number in here if (table := shuffle.read_exchange_sums(number)).num_rows}


def to_spark_batches(table: pa.Table, output: str) -> Iterator[pa.RecordBatch]:
    """Convert updates to Spark's types, in batches of bounded size.

    If there are no rows, there is no batch. O(rows to cast).
    """
    width = max(table.nbytes // max(table.num_rows, 1), 1)
    for batch in table.to_batches(max_chunksize=max(min(BATCH_ROWS, BATCH_BYTES // width), 1)):
        yield to_spark_types(batch, f"output {output!r}")


def freeze_gc_objects() -> None:
    """Exempt permanent objects from the garbage collection of this worker, which Spark starts after every task.

    Only the first two calls in a process exempt objects. The second call exempts the objects that the first task
    created.
    """
    if TaskContext.get() is not None and next(_BEGUN) < 2:
        gc.collect()
        gc.freeze()


_BEGUN: Final = itertools.count()
"""The number of calls of `freeze_gc_objects` in Spark tasks of this process."""


def _task_number() -> int:
    """Return the number of the Spark partition that this task processes."""
    context = TaskContext.get()
    return 0 if context is None else int(context.partitionId())


def _make_scratch_folder() -> tempfile.TemporaryDirectory[str]:
    """Create a folder for the task on the executor's disk, in Spark's folder for spilled data."""
    places = os.environ.get("SPARK_LOCAL_DIRS", "").split(",")
    return tempfile.TemporaryDirectory(prefix="ddflow-", dir=next((p for p in places if os.path.isdir(p)), None))
