"""Run one epoch of a state as a Spark job: read DataFrames, commit the epoch, and deliver it to the sinks.

    rows --route--> chunks --repartitionById--> stage 0 --repartitionById--> stage 1 ... --> receipts --> commit

Only the driver commits, from the receipts of finished tasks. So an epoch is committed exactly once or not at all, and
always as a whole, even if Spark repeats or kills tasks. Sinks receive an epoch after its commit. The driver writes the
epoch; if the epoch is large, tasks write its files. DataFrames are checked before a task runs, because an error of
Spark would not name the column. Limits: this file does not decide what an epoch contains; `epochs` and `streams` do
that. The rows of a state are never kept in the driver.

>>> ROWS.simpleString(), StateOptions("state").keep, check_address("/mnt/shared/orders")
('struct<to:int,what:int,origin:string,at:bigint,rows:bigint,digest:binary,payload:binary>', 100, '/mnt/shared/orders')
"""

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial, reduce
from time import perf_counter_ns
from typing import Any, Final, Literal, NamedTuple
from uuid import uuid4

import pyarrow as pa
from pyspark.sql import DataFrame, functions as F
from pyspark.sql.types import StructType

from ddflow.columns.hashing import Secret
from ddflow.columns.names import did_you_mean
from ddflow.columns.schema import conform_to_schema
from ddflow.connectors.api import TableSink
from ddflow.connectors.parquet.sink import check_outputs_path
from ddflow.dataflow.budget import parse_size
from ddflow.engine.engine import Flow
from ddflow.engine.run.delivery import Deliveries, Delivery, warn_of_missing_sinks
from ddflow.engine.run.options import RunOptions
from ddflow.errors import DdflowError, ErrorText, MissingExtra, Option, SchemaMismatch, SpecError, WrongMode
from ddflow.errors.base import replace_error_texts
from ddflow.kernels import cache
from ddflow.kernels.compile import cache_directory
from ddflow.metrics import Metrics
from ddflow.partitions.chunks import PACKED, ChunkLimits, add_digests, choose_chunk_limits, select_chunk_schema
from ddflow.partitions.commit import DriverOptions, EpochDriver
from ddflow.partitions.driver_epochs import DriverEpochs
from ddflow.partitions.epoch_start import EpochStart, StateVersion
from ddflow.partitions.messages import SeenMessageColumns
from ddflow.partitions.partitioner import Partitioner, PastSchemaDigests, find_arrival_columns, find_present_columns
from ddflow.partitions.receipt import EpochResult, Receipt
from ddflow.partitions.stages import warn_of_single_partitions
from ddflow.plan.evolve import PastSchemas
from ddflow.plan.plan import Plan
from ddflow.plan.text.codec import describe_plan, fingerprint_plan, rebuild_plan
from ddflow.storage.closing import undo_on_failure
from ddflow.storage.manifest import Epoch
from ddflow.storage.opening import check_state_address
from ddflow.storage.protocol import Blob
from spark_bridge.errors import translate_errors
from spark_bridge.monitoring import LOG, show_job_progress
from spark_bridge.part_cache import AUTO, WATCH, CacheLimit
from spark_bridge.session import describe_jobs, get_spark_context, set_batch_sizes
from spark_bridge.tasks import ConvertFilesTask, EpochStageTask, ReadFilesTask, RedigestTask, RouteTask
from spark_bridge.types import (
    arrow_schema,
    build_output_schemas,
    describe_type_difference,
    from_spark_types,
    make_nullable,
    spark_schema,
)

ROWS: Final = spark_schema(PACKED, "packed rows")
SHUFFLES: Final = "spark.sql.shuffle.partitions"
"""Spark's setting for the number of partitions of a shuffle."""
ATTEMPTS: Final = 4
"""Number of attempts at the job of an epoch. By default, Spark makes the same number of attempts at each task."""
_GIVEN_UP: Final = "with indeterminate "
KEEP: Final = 100
"""Default number of epochs that stay available for replays and for readers that follow the state."""


class StateOptions(NamedTuple):
    """Options of a state, its tasks and its outputs.

    - ``partitions``: the number of partitions; None for the number that the state has.
    - ``outputs``: a folder of Parquet files, or None.
    - ``memory``: the memory of a task, as a size.
    - ``trust``, ``metrics``: see `Flow.open`.
    - ``part_cache``: the memory for partitions that a worker keeps open, a size or "auto".
    - ``adopt``: whether another query may continue to feed the state.
    - ``name``: the name in Spark's web UI and the log, by default the names of the inputs.
    - ``keep``: the number of epochs that can be replayed and followed.
    - ``checkpoint``: the checkpoint folder of the query, for messages.
    - ``sinks``: the sinks by output, or None.
    - ``delivery``: the limit of the sinks' backlog, and how long failures are retried.
    """

    state: str
    partitions: int | None = None
    outputs: str | None = None
    memory: str | int | None = None
    trust: Literal["owner", "group"] = "owner"
    part_cache: str | int | None = AUTO
    adopt: bool = False
    name: str | None = None
    keep: int = KEEP
    checkpoint: str | None = None
    metrics: Metrics | None = None
    sinks: Mapping[str, TableSink] | None = None
    delivery: RunOptions = RunOptions()


def check_address(state: Any, outputs: Any = None) -> str:
    """Check that both the driver and tasks can open a state; check its output folder. Return the address of the state.

    Raises `SpecError`. Raises `StateRefused` if the scheme of the path is not supported.
    """
    check_outputs_path(outputs)
    if not isinstance(state, str | os.PathLike):
        raise SpecError(
            ErrorText(Option("state"), f" a {type(state).__name__}"),
            "tasks in other processes cannot open that",
            "pass a folder that all processes can see, or s3://bucket/prefix",
        )
    return os.fspath(check_state_address(state))


class Job:
    """A flow on a state and its sinks, opened by the driver.

    ``columns``: the columns of each input, from `check_columns`. Raises `SpecError` if the flow cannot run, for example
    because the state has a different number of partitions. Raises `SpecError` also for a sink without an output. Raises
    the errors of `EpochDriver.open`.
    """

    def __init__(self, flow: Flow, columns: Mapping[str, tuple[str, ...]], options: StateOptions, session: Any) -> None:
        self.flow, self.options, self.shapes, self.columns = flow.frozen(), options, build_output_schemas(flow), columns
        warn_of_single_partitions(flow)
        self.memory, self.part_cache = parse_size(options.memory), choose_cache_limit(options.part_cache, session)
        self.stamp = _compute_flow_fingerprint(flow)
        self.name = options.name or ", ".join(flow.inputs)
        self.coordinator = EpochDriver.open(
            self.flow,
            options.state,
            DriverOptions(
                partitions=options.partitions,
                outputs=options.outputs,
                trust=options.trust,
                default_partitions=_choose_default_partitions(session),
                memory=self.memory,
                keep=options.keep,
                checkpoint=options.checkpoint,
            ),
        )
        if (
            self.flow.time_type != self.coordinator.flow.time_type
        ):  # the state has a clock that the flow does not declare
            self.shapes = build_output_schemas(self.coordinator.flow)
        self.flow = self.coordinator.flow
        self.store = self.coordinator.log.manifest_log.store.where

        with undo_on_failure(self.coordinator.close):
            self.session, self.epochs = session, DriverEpochs(self.coordinator, self._make_sink_files)
            sinks = options.sinks or {}
            each = {name: Delivery(self.epochs, name, sink) for name, sink in sinks.items()}
            self.sinks = Deliveries(each, options.delivery.backlog_bytes, options.delivery.retry_seconds)
            warn_of_missing_sinks(self.coordinator.log.sinks, sinks, self.store)

    def close(self, acknowledge: bool = False) -> None:
        """Close the sinks and the state.

        A second call does nothing. With ``acknowledge``, first publish the positions of the sinks.
        """
        with suppress(DdflowError):
            if acknowledge:
                self.epochs.publish_connector_positions()
        self.sinks.close()
        self.coordinator.close()

    def drain_sinks(self) -> None:
        """Deliver all missing epochs to the sinks, and publish their positions. Raises the errors of the sinks."""
        self.sinks.drain()
        self.epochs.publish_connector_positions()

    def make_file_reader(self, epoch: int, name: str, schema: pa.Schema) -> ReadFilesTask:
        """Make a reader for the files that an epoch wrote for an output."""
        past, folder = self.coordinator.log.find_past_schemas(epoch), self.coordinator.manifest.folder
        there = None if past is None else past.outputs.get(name)
        return ReadFilesTask(self.store, self.options.trust, folder, name, epoch, schema, there)

    def _make_sink_files(
        self, receipt: Epoch, name: str, blobs: tuple[Blob, ...], make: Callable[[pa.Table], bytes]
    ) -> list[bytes]:
        """Convert each file of an output's updates with ``make``, in a Spark job with one task for each file."""
        task = ConvertFilesTask(
            self.make_file_reader(receipt.epoch, name, self.epochs.output_schema(name)), blobs, make
        )
        numbers = self.session.range(0, len(blobs), 1, len(blobs))
        with self.job_context(self.session, f"epoch {receipt.epoch}, files for the sink of {name}"):
            collected = numbers.mapInArrow(task, "made binary").collect()
        return [bytes(each) for (each,) in collected]

    def route_frames(self, frames: Mapping[str, DataFrame]) -> DataFrame:
        """Combine DataFrames into a single DataFrame of chunks. No job runs.

        Raises `MissingExtra` if pandas is missing or has an unsuitable version.
        """
        manifest, partitions = self.coordinator.manifest, self.coordinator.partitions
        secret = Secret(*manifest.secret)
        version = StateVersion(
            self.store, self.options.trust, manifest.number, self.coordinator.log.manifest_log.digest
        )
        limits = choose_chunk_limits(partitions)
        if self.memory is not None:
            limits = limits._replace(bytes=min(limits.bytes, max(self.memory // 16, 1 << 20)))
        how = {name: (self.columns[name], limits, self.coordinator.heard.get(name)) for name in frames}
        routers = (make_partitioner(self.flow, name, partitions, secret, *each) for name, each in how.items())
        return union_chunks(route_rows(frames[each.input], each, version) for each in routers)

    def commit_epoch(
        self,
        session: Any,
        packed: DataFrame | None,
        *,
        time: int | None = None,
        close: bool = False,
        feed: Any = None,
        epoch: int | None = None,
    ) -> EpochResult:
        """Commit an epoch that has the rows of these chunks, or no rows.

        If the epoch is already committed, compare its rows. ``time``: the time of the epoch, if the flow has a clock.

        Raises the errors of the tasks and of the driver.
        """
        before = self.coordinator.committed(epoch=epoch, feed=feed, adopt=self.options.adopt)
        if before is not None:
            return self.replay_epoch(session, packed, before, None if feed else time)
        began = perf_counter_ns()
        self.coordinator.choose_time(time)  # a wrong time is refused before the backfill
        if self.coordinator.growing is not None:
            self._backfill_plan_additions(session)
        start = self.coordinator.begin(time=time, epoch=epoch, feed=feed, close=close, adopt=self.options.adopt)
        ready = perf_counter_ns()
        stages = "stage 0" if self.coordinator.cut.stages == 1 else f"stages 0 to {self.coordinator.cut.stages - 1}"
        batch = "" if feed is None else f"batch {feed.batch}, "
        with self.job_context(session, f"{batch}epoch {start.epoch}, {stages}"):
            receipts = self._run_stages(session, packed, start)
        ran = perf_counter_ns()
        committed = self.coordinator.finish(start, receipts, feed=feed)
        driver = {"begin": ready - began, "tasks": ran - ready, "commit": perf_counter_ns() - ran}
        more = {f"driver_{name}": each // 1000 for name, each in driver.items()}
        if (said := WATCH(self.store, committed.figures, self.options.part_cache)) is not None:
            LOG.warning("%s: %s", self.name, said)
        return committed._replace(figures={**committed.figures, **more})

    def _backfill_plan_additions(self, session: Any) -> None:
        """Run all stages once, to fill the outputs that were added to the plan."""
        start = self.coordinator.begin_backfill()
        with self.job_context(session, f"backfill of new outputs, before epoch {start.epoch}"):
            self.coordinator.finish_backfill(start, self._run_stages(session, None, start))

    def replay_epoch(
        self, session: Any, packed: DataFrame | None, epoch: Epoch, time: int | None = None
    ) -> EpochResult:
        """Return the result of an epoch that is already committed, if its rows are the same as the given rows.

        Raises `ReplayMismatch` if its rows differ, or if it has another time than ``time``.
        """
        chunks: list[Any] = []
        past = self.coordinator.log.find_past_schemas(epoch.epoch)
        if packed is not None and past is not None:
            packed = map_arrow(packed, RedigestTask(self._build_past_schema_digests(past)))
        if packed is not None:
            with self.job_context(session, f"epoch {epoch.epoch}, repeated"):
                chunks = packed.select("what", "rows", "digest").collect()
        rows, digests = dict[str, int](), dict[str, bytes]()
        names = list(self.flow.inputs)
        for what, count, digest in chunks:
            name = names[what]
            rows[name] = rows.get(name, 0) + count
            digests[name] = add_digests(digests.get(name, bytes(16)), bytes(digest))
        return self.coordinator.replayed(epoch, rows, {name: digest.hex() for name, digest in digests.items()}, time)

    def _build_past_schema_digests(self, past: PastSchemas) -> PastSchemaDigests:
        """Make a function that computes digests of chunks.

        The digests cover only the columns that an earlier epoch had.
        """
        now = {
            name: select_chunk_schema(each.bound.schema, self.columns.get(name))
            for name, each in self.flow.inputs.items()
        }
        then = {name: select_chunk_schema(past.inputs.get(name, schema), schema.names) for name, schema in now.items()}
        return PastSchemaDigests(tuple(now.values()), tuple(then.values()), Secret(*self.coordinator.manifest.secret))

    def _run_stages(self, session: Any, packed: DataFrame | None, start: EpochStart) -> list[Receipt]:
        """Run all stages for every partition. If Spark gives up the job, rerun it, up to `ATTEMPTS` runs.

        Receipts contain the names of files, so the receipts of two attempts at a task differ. If an executor is lost
        during the last stage, Spark (from 4.2 on) reruns an earlier stage, finds that its result is indeterminate, and
        stops.
        """
        for left in reversed(range(ATTEMPTS)):
            try:
                receipts = [] if packed is None else self._collect_receipts(packed, start)
                # Spark runs no tasks for a relation that is known to be empty.
                return receipts or self._collect_receipts(self._make_empty_chunks(session), start)
            except Exception as error:  # of py4j or of Spark
                if not left or _GIVEN_UP not in str(error):
                    raise
        raise AssertionError

    def _collect_receipts(self, packed: DataFrame, start: EpochStart) -> list[Receipt]:
        """Run all stages, and collect the receipts of the tasks."""
        frame = packed
        for stage in range(self.coordinator.cut.stages):
            task = EpochStageTask(self.coordinator.cut, start, stage, self.columns, self.stamp, self.part_cache)
            frame = map_arrow(frame.repartitionById(start.partitions, "to"), task)
        collected = frame.select("payload").collect()
        return [Receipt.from_json(bytes(row[0]), "the receipt of a task") for row in collected]

    def _make_empty_chunks(self, session: Any) -> DataFrame:
        """Make one empty row for each partition, so that the task of the partition runs."""
        to = F.col("id").cast("int").alias("to")
        nothing = [F.lit(None).cast(field.dataType).alias(field.name) for field in ROWS.fields[1:]]
        called: DataFrame = session.range(self.coordinator.partitions).select(to, *nothing)
        return called

    @contextmanager
    def job_context(self, session: Any, what: str) -> Iterator[None]:
        """Set the settings and the description of a ddflow job, show its progress, and translate its errors."""
        text = f"ddflow {self.name}: {what}"
        watched = show_job_progress(
            session, text.partition(", stage")[0]
        )  # Spark numbers its stages differently, so leave out the plan's stage
        with set_batch_sizes(session, self.memory), describe_jobs(session, text), watched, translate_errors():
            yield


def make_partitioner(
    flow: Plan,
    name: str,
    partitions: int,
    secret: Secret,
    columns: tuple[str, ...],
    limits: ChunkLimits | None = None,
    heard: SeenMessageColumns | None = None,
) -> Partitioner:
    """Make the partitioner of an input's rows, in Spark's types."""
    came = make_nullable(flow.inputs[name].bound.schema)
    restore: Any = partial(from_spark_types, schema=came, what=f"rows for {name!r}")
    return Partitioner(flow, name, partitions, secret, columns, limits, restore, heard)


def route_rows(frame: DataFrame, by: Partitioner, version: StateVersion | None) -> DataFrame:
    """Pack the rows of an input into chunks. Raises `MissingExtra`.

    ``version``: a version of the state that every task must be able to see, or None.
    """
    numbered = frame.toDF(*(f"c{i}" for i in range(len(frame.columns))))  # Spark interprets case, dots and quotes
    return map_arrow(numbered, RouteTask(by, version, tuple(frame.columns)))


def union_chunks(frames: Iterable[DataFrame]) -> DataFrame:
    """Union the chunks of several inputs."""
    return reduce(lambda one, other: one.union(other), frames)


def map_arrow(frame: DataFrame, task: Any, schema: StructType = ROWS) -> DataFrame:
    """Map a DataFrame through a task. The task returns chunks, or rows of a ``schema``.

    The driver also starts a process that compiles missing kernels, because tasks start no processes. Raises
    `MissingExtra` if PySpark cannot run the task, because pandas is missing or has an unsuitable version.
    """
    cache.start_fill_process(cache_directory())
    try:
        return frame.mapInArrow(task, schema)
    except ImportError as error:
        raise MissingExtra("run a flow on Spark", str(error), "pip install 'ddflow[spark]'") from None


def check_columns(flow: Plan, name: str, frame: Any, streaming: bool) -> tuple[str, ...]:
    """Check the columns of a DataFrame, but not its rows. Return those declared columns that the DataFrame has.

    Raises `SchemaMismatch`. Raises `WrongMode` for a stream instead of a batch, or for a batch instead of a stream.
    """
    what = f"rows for {name!r}"
    if name not in flow.inputs:
        raise SchemaMismatch(what, "there is no such input", did_you_mean(name, flow.inputs, "inputs"))
    if frame.isStreaming != streaming:
        if streaming:
            remedy = "pass a DataFrame of spark.readStream, or use spark_bridge.run"
            raise WrongMode(what, "the DataFrame is not a stream", remedy)
        raise WrongMode(what, "the DataFrame is a stream", "pass it to spark_bridge.stream")
    bound, given = flow.inputs[name].bound, arrow_schema(frame)
    there = find_present_columns(bound, given)
    if bound.format is not None:
        return there
    own = given.empty_table().drop_columns(find_arrival_columns(given, bound.schema))
    declared = pa.schema([field.with_nullable(True) for field in make_nullable(bound.schema)])
    try:
        conform_to_schema(from_spark_types(own, declared, what), declared, repr(name), bound.required_columns)
    except SchemaMismatch as error:
        for field in declared:
            if error.asked == f"column {field.name!r} of {what}":
                replace_error_texts(
                    error, found=error.found + describe_type_difference(frame.schema[field.name].dataType, field)
                )
        raise
    return there


def choose_cache_limit(given: str | int | None, session: Any) -> CacheLimit:
    """Return the limit on the partitions that a worker keeps open.

    The limit is ``given``, or by default the limit in Spark's settings.

    Raises `SpecError`.
    """
    if given != AUTO:
        return CacheLimit(parse_size(given, "part_cache=") or 0)
    master, context = str(session.conf.get("spark.master", "local")), get_spark_context(session)
    local = context is not None and master.startswith("local")
    workers = context.defaultParallelism if local else session.conf.get("spark.executor.cores", None)
    names = ("spark.executor.pyspark.memory", "spark.executor.memoryOverhead")
    granted = next((size for name in names if (size := session.conf.get(name, None))), None)
    if granted is None and master.startswith(("yarn", "k8s")):
        granted = f"{max(_parse_mebibytes(session.conf.get('spark.executor.memory', '1g')) // 10, 384)}m"
    bytes = None if granted is None or local else _parse_mebibytes(granted) << 20
    return CacheLimit(None, max(int(workers or os.cpu_count() or 1), 1), bytes)


def _parse_mebibytes(size: str) -> int:
    """Parse a size from Spark's settings, and return it in MiB. A number without a unit is in MiB.

    >>> [_parse_mebibytes(each) for each in ("384", "512m", "4g", "2GB", "1048576k")]
    [384, 512, 4096, 2048, 1024]
    """
    number = size.strip().lower().removesuffix("b")
    return (int(number.rstrip("kmgt")) << {"k": 10, "g": 30, "t": 40}.get(number[-1], 20)) >> 20


def _choose_default_partitions(session: Any) -> int:
    """Choose the number of partitions of a new state.

    If Spark knows the number of cores of the cluster, the result is this number.

    The result is at most the number of partitions of a Spark shuffle.
    """
    context, most = get_spark_context(session), int(session.conf.get(SHUFFLES) or 1)
    return most if context is None else max(min(int(context.defaultParallelism), most), 1)


def _compute_flow_fingerprint(flow: Flow) -> str:
    """Compute a fingerprint of a flow.

    Flows with the same plan have the same fingerprint. A flow with Python functions has a unique fingerprint.
    """
    description = describe_plan(flow)
    try:
        rebuild_plan(description)
    except DdflowError:
        return uuid4().hex
    return fingerprint_plan(description)
