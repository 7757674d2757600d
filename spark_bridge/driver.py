"""A run, as the driver sees it: frames in, frames out, every check made before a job runs.

Invariant: the frames that ``run`` returns hold the rows that the local engine gives for the same input, whatever the
number of partitions. Arrival order does not survive a shuffle, so it is attached before; a key must reach one
partition by an equality that is Arrow's and Spark's at once; and Spark resolves names its own way (case, dots), so that
between here and the workers columns go by position. Frames are lazy: an action computes what its output needs, and
another computes it again. With a state, a run is another thing, see ``running``. What it does not do: make a session
(the frames have one), or read a stream, which ``streaming`` does.

>>> import pyarrow as pa, ddflow as dd
>>> flow = dd.Flow()
>>> people = flow.upserts("people", {"id": pa.int64(), "city": pa.string()}, dd.Upsert(key="id"))
>>> by_city = flow.output("by_city", people.project("city").count())
>>> schema(flow).simpleString()
'struct<city:string,count:bigint,_time:bigint,_diff:bigint>'
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import reduce
from typing import Any, Literal, overload

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from ddflow.columns.hashing import Secret
from ddflow.columns.schema import DIFF, TIME, conform, did_you_mean
from ddflow.engine.flow import Flow
from ddflow.errors import MissingExtra, SchemaMismatch, SpecError, WrongMode
from spark_bridge.columns import loose, restored
from spark_bridge.committed import Ran
from spark_bridge.job import KEEP, Options, check_address
from spark_bridge.plan import Events, Plan, Stage, planned
from spark_bridge.running import run_into
from spark_bridge.schemas import arrow_schema, check_frames, spark_schema
from spark_bridge.task import PARTITION, Body


@overload
def run(flow: Flow, frames: Mapping[str, DataFrame], partitions: int | None = None) -> dict[str, DataFrame]: ...


@overload
def run(
    flow: Flow,
    frames: Mapping[str, DataFrame],
    partitions: int | None = None,
    *,
    state: str,
    epoch: int | None = None,
    outputs: str | None = None,
    close: bool = False,
    memory: str | int | None = None,
    trust: Literal["owner", "group"] = "owner",
    warm: str | int | None = "512MB",
    keep: int = KEEP,
) -> Ran: ...


def run(
    flow: Flow,
    frames: Mapping[str, DataFrame],
    partitions: int | None = None,
    *,
    state: str | None = None,
    epoch: int | None = None,
    outputs: str | None = None,
    close: bool = False,
    memory: str | int | None = None,
    trust: Literal["owner", "group"] = "owner",
    warm: str | int | None = "512MB",
    keep: int = KEEP,
) -> Mapping[str, DataFrame]:
    """Run a flow over batch DataFrames, one for each source; gives a DataFrame for each output.

    With a ``state``, a folder that driver and executors see or ``s3://bucket/prefix``, it runs at once, as one epoch of
    that state, committed when it returns; sources without a DataFrame have no rows.  What it gives is a `Ran`, whose
    frames read the committed files.  ``partitions``: of a new state; one of another number is refused.  ``epoch``: its
    number; one that is committed returns what it returned.  ``outputs``: a folder in which its updates appear as
    Parquet.  ``close``: close all times after it, in hold-back mode.  ``memory``: what a task may take.  ``trust``: as
    in `Flow.open`.  ``warm``: what a worker may keep open of the state.  ``keep``: how many epochs can be told again,
    and be followed.  Raises then also `StateRefused`, `PlanChanged`, `EpochSkipped`, `ReplayMismatch`, `Fenced`,
    `NullKey` and what else a step raises, as `Flow.open` and `Engine.step` do.

    Without one, frames are lazy, and all that follows holds.

    Epoch mode is one step, stamped 0; hold-back mode takes all events in and closes the input.  ``partitions``: of each
    shuffle, by default Spark's ``spark.sql.shuffle.partitions``.  Columns are matched by name.  Where arrival decides
    (``tie="last"`` or ``"first"``), it is by partition of the frame, then by row in the partition.  Runs no job itself.

    Raises `SpecError` for a flow without outputs, an output that Spark has no type for, or a bad ``partitions``;
    `SchemaMismatch` for a source or column that is missing, unknown, or of another type; `NotArrow` for what is
    no DataFrame; `WrongMode` for a stream; `MissingExtra` where pandas is missing, which PySpark asks for.  What only
    rows can tell (null keys, ties) fails the job that reads them, with ddflow's message inside Spark's.
    """
    check_frames(flow, frames)
    if state is not None:
        options = Options(check_address(state, outputs), partitions, outputs, memory, trust, warm, keep=keep)
        return run_into(flow, frames, options, epoch, close)
    for name, given in (("epoch", epoch), ("outputs", outputs), ("memory", memory), ("close", close or None)):
        if given is not None:
            raise SpecError(f"run with {name}=", "there is no state", "give state=, or leave it out")
    plan = planned(flow)
    schemas = [spark_schema(Body(s, plan.time_type, NO_SECRET).schema, _what(s)) for s in plan.stages]
    for name in frames:
        if name not in flow.sources:
            raise SchemaMismatch(f"rows for {name!r}", "there is no such source", did_you_mean(name, flow.sources))
    for name in flow.sources:
        if name not in frames:
            raise SchemaMismatch(
                f"rows for {name!r}",
                f"there is no DataFrame among {list(frames)}",
                "give one for every source; it may be empty",
            )
        _check_frame(flow, name, frames[name])
    wide = _partitions(partitions, next(iter(frames.values())))
    made = _Frames(plan, frames, wide)
    for stage, columns in zip(plan.stages, schemas, strict=True):
        made.add(stage, columns)
    return {name: made.frames[number] for name, number in plan.outputs.items()}


def stage(flow: Flow) -> Body:
    """The one stage of a flow as a function for ``mapInArrow``; the caller has brought each key into one partition.

        df.repartition(8, "id").mapInArrow(spark_bridge.stage(flow), schema=spark_bridge.schema(flow))

    Raises `SpecError` for a flow that takes more than that: several sources or outputs, a second shuffle, or a tie
    that arrival decides, since nothing can carry it through the caller's shuffle.
    """
    only = _only(flow)
    return Body(only, flow.time_type, Secret.fresh())


def schema(flow: Flow) -> StructType:
    """The columns of a flow's one output, as Spark types.  Raises `SpecError` where there is not one, or no type."""
    if len(flow.outputs) != 1:
        raise SpecError(
            "the schema of a flow",
            f"it has the outputs {list(flow.outputs)}",
            "name one output; run(flow, ...) gives frames, which have their schemas",
        )
    plan = planned(flow)
    last = plan.stages[plan.outputs[next(iter(flow.outputs))]]
    return spark_schema(Body(last, plan.time_type, NO_SECRET).schema, _what(last))


NO_SECRET = Secret(0, 0)
"""For bodies that are asked for their columns only."""


def _only(flow: Flow) -> Stage:
    """The single stage of a flow.  Raises `SpecError`, naming what is too much."""
    asked, run_it = "a flow as one stage", "use spark_bridge.run(flow, frames)"
    plan = planned(flow)
    for what, names in (("sources", list(flow.sources)), ("outputs", list(plan.outputs))):
        if len(names) != 1:
            raise SpecError(asked, f"it has {len(names)} {what}, {names}", f"keep one, or {run_it}")
    if len(plan.stages) != 1:
        found = f"its output takes another shuffle, since equal rows must meet again ({plan.stages[-1].reads})"
        raise SpecError(asked, found, f"keep the key in them, or {run_it}")
    spec = next(iter(flow.sources.values())).spec
    if (spec.tie in ("last", "first") and spec.seq is None) or (spec.merges and not spec.order_free):
        by = "merge= folds in the order of" if spec.merges else f"tie={spec.tie!r} goes by"
        raise SpecError(
            asked,
            f"{by} arrival, which the shuffle before it loses",
            f"name a sequence column with seq=, choose tie='greatest' or 'error', or {run_it}",
        )
    return plan.stages[0]


def _what(stage: Stage) -> str:
    return "a shuffle" if stage.gives == "sums" else f"output {stage.name!r}"


def _check_frame(flow: Flow, name: str, frame: Any) -> None:
    """Everything about a frame that shows without its rows."""
    what = f"rows for {name!r}"
    if frame.isStreaming:
        raise WrongMode(
            what,
            "the DataFrame is a stream, and a run keeps no state from one batch to the next",
            "use spark_bridge.stream, or give a DataFrame of a batch, as foreachBatch gets it",
        )
    bound = flow.sources[name].bound
    empty = arrow_schema(frame).empty_table()
    declared = pa.schema([field.with_nullable(True) for field in loose(bound.schema)])
    conform(restored(empty, declared, what), declared, repr(name), bound.required)


def _partitions(given: int | None, frame: DataFrame) -> int:
    if given is None:
        return int(frame.sparkSession.conf.get("spark.sql.shuffle.partitions") or 0)
    if isinstance(given, bool) or not isinstance(given, int) or given < 1:
        raise SpecError(f"partitions={given!r}", "that is no number of partitions", "give a whole number, 1 or more")
    return given


class _Frames:
    """The frames of a plan's stages, in their order."""

    def __init__(self, plan: Plan, sources: Mapping[str, DataFrame], partitions: int) -> None:
        self.plan, self.sources, self.partitions = plan, sources, partitions
        self.secret = Secret.fresh()
        self.shuffled: dict[str, DataFrame] = {}
        self.frames: list[DataFrame] = []

    def add(self, stage: Stage, columns: StructType) -> None:
        """The frame of the next stage."""
        if isinstance(stage.reads, Events):
            names, frame = tuple(self.sources[stage.reads.source].columns), self._events(stage.reads)
        else:
            names = (*stage.reads.schema.names, TIME, DIFF)
            sums = reduce(lambda one, other: one.union(other), (self.frames[n] for n in stage.reads.stages))
            frame = sums.repartitionById(self.partitions, PARTITION).drop(PARTITION)
        body = Body(stage, self.plan.time_type, self.secret, names, self.partitions)
        try:
            self.frames.append(frame.mapInArrow(body, columns))
        except ImportError as error:
            raise MissingExtra("run a flow on Spark", str(error), "pip install 'ddflow[spark]'") from None

    def _events(self, reads: Events) -> DataFrame:
        """A source's events by key, numbered by arrival before they move; columns by number.  Once for all stages."""
        if reads.source not in self.shuffled:
            given = self.sources[reads.source]
            frame = given.toDF(*(f"c{i}" for i in range(len(given.columns))))
            if reads.arrival:
                frame = frame.withColumn("arrival", F.monotonically_increasing_id())
            keys = [F.col(f"c{given.columns.index(name)}") for name in reads.key]
            self.shuffled[reads.source] = frame.repartition(self.partitions, *keys)
        return self.shuffled[reads.source]
