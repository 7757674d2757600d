"""Run a plan on frames of rows: lazily and without a state, or as one epoch of a state that is committed at once.

Guarantees: the rows are those of the local engine. A frame of an output reads committed files, so a second action
computes nothing again.

>>> import pyarrow as pa, ddflow as dd
>>> flow = dd.Flow()
>>> people = flow.upserts("people", {"id": pa.int64(), "city": pa.string()}, dd.Upsert(key="id"))
>>> by_city = flow.output("by_city", people.project("city").count())
>>> schema(flow).simpleString()
'struct<city:string,count:bigint,_time:bigint,_diff:bigint>'
"""

from collections.abc import Iterator, Mapping
from typing import Any, Literal, NamedTuple, overload

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from ddflow.columns.hashing import Secret
from ddflow.connectors.api import TableSink
from ddflow.dataflow.result import no_output
from ddflow.dataflow.verdicts import Verdicts
from ddflow.engine.flow import Flow
from ddflow.errors import Option, Phrase, SchemaMismatch, SpecError, WrongMode
from ddflow.partitions.receipt import Committed
from ddflow.partitions.stages import Stages, cut
from ddflow.plan.collection import walk_inputs
from ddflow.plan.evolve import PastSchemas
from ddflow.plan.plan import Plan
from spark_bridge.delivery import Outlets, SinkOptions
from spark_bridge.job import ROWS, SHUFFLES, Job, checked, joined, mapped, routed, router
from spark_bridge.monitoring import report
from spark_bridge.session import context_of
from spark_bridge.state_options import KEEP, StateOptions, check_address
from spark_bridge.stats import EpochStats
from spark_bridge.tasks import OnlyStage, ReadFiles, RunStage
from spark_bridge.types import Shape, by_input, shapes

_NAMES = "name string, length bigint, digest binary"


class OutputFiles(NamedTuple):
    """The places of committed files, and the session that reads them.

    ``folder``: of Parquet outputs, else None. ``past``: their columns at the time of writing, if the plan has others
    now.

    >>> Ran.__iter__.__name__, OutputFiles._fields
    ('__iter__', ('session', 'store', 'trust', 'folder', 'past'))
    """

    session: Any
    store: str
    trust: str
    folder: str | None
    past: PastSchemas | None


class Ran(Mapping[str, DataFrame]):
    """The outputs of an epoch: a mapping of each name to a DataFrame of its committed files.

    ``epoch``, ``time``: its number, and the ``_time`` of its updates.  ``frontier``: the least time still open.
    ``replayed``: whether it had been committed before.  ``verdicts``: of its events.  ``rows``: that came, by input.
    ``figures``: microseconds and bytes, over all tasks, and of the driver.  ``sinks``: by output, the last epoch that
    its sink has.
    """

    def __init__(
        self, shapes: Mapping[str, Shape], done: Committed, files: OutputFiles, sinks: Mapping[str, int]
    ) -> None:
        self._shapes, self._done, self._files = shapes, done, files
        self.epoch, self.time, self.frontier, self.replayed = done.epoch, done.time, done.frontier, done.replayed
        self.verdicts = Verdicts.of(done.counts, done.figures.get("pending", 0))
        self.rows, self.figures = done.rows, done.figures
        self.sinks = sinks

    def __getitem__(self, name: str) -> DataFrame:
        if name not in self._shapes:
            return no_output(name, self._shapes)
        shape, place = self._shapes[name], self._files
        output = self._done.outputs.get(name)
        files = [(blob.name, blob.length, blob.digest) for blob in output.blobs] if output is not None else []
        there = None if place.past is None else place.past.outputs[name]
        task = ReadFiles(place.store, place.trust, place.folder, name, self.epoch, shape.arrow, there)
        named: DataFrame = place.session.createDataFrame(files, _NAMES)
        return named.mapInArrow(task, shape.spark)

    def __iter__(self) -> Iterator[str]:
        return iter(self._shapes)

    def __len__(self) -> int:
        return len(self._shapes)

    def __repr__(self) -> str:
        sizes = (f"{name}: {self.updates(name):,} updates" for name in self)
        return f"Ran(epoch {self.epoch}; {', '.join(sizes)}; {self.verdicts})"

    def updates(self, name: str) -> int:
        """How many updates an output gained, an int, without reading them.  O(1)."""
        output = self._done.outputs.get(name)
        return 0 if output is None else output.rows


def ran(job: Job, session: Any, committed: Committed, sinks: Mapping[str, int]) -> Ran:
    """Collect the outputs and the verdicts of an epoch. ``sinks``: by output, the last epoch that each has."""
    folder = job.coordinator.manifest.folder
    past = job.coordinator.log.past(committed.epoch)
    return Ran(job.shapes, committed, OutputFiles(session, job.store, job.options.trust, folder, past), sinks)


@overload
def run(
    flow: Flow, frames: Mapping[str, DataFrame] | DataFrame, partitions: int | None = None
) -> dict[str, DataFrame]: ...


@overload
def run(
    flow: Flow,
    frames: Mapping[str, DataFrame] | DataFrame,
    partitions: int | None = None,
    *,
    state: str,
    epoch: int | None = None,
    outputs: str | None = None,
    close: bool = False,
    memory: str | int | None = None,
    trust: Literal["owner", "group"] = "owner",
    part_cache: str | int | None = "auto",
    keep: int = KEEP,
    sinks: Mapping[str, TableSink] | None = None,
    give_up_after: str | None = "10min",
) -> Ran: ...


def run(
    flow: Flow,
    frames: Mapping[str, DataFrame] | DataFrame,
    partitions: int | None = None,
    *,
    state: str | None = None,
    epoch: int | None = None,
    outputs: str | None = None,
    close: bool = False,
    memory: str | int | None = None,
    trust: Literal["owner", "group"] = "owner",
    part_cache: str | int | None = "auto",
    keep: int = KEEP,
    sinks: Mapping[str, TableSink] | None = None,
    give_up_after: str | None = "10min",
) -> Mapping[str, DataFrame]:
    """Run a flow over batch DataFrames and return a DataFrame of updates for each output.

    Without ``state``, it runs from an empty start and the frames are lazy: no job runs yet.  With ``state``, it runs at
    once, as one epoch, committed when it returns; inputs without a DataFrame have no rows.

    Parameters
    ----------
    flow, frames
        The plan; a DataFrame by input, whose columns are matched by name.  With one input its DataFrame will do.
    partitions : int, optional
        Of each shuffle, by default ``spark.sql.shuffle.partitions``, and no more than the cores of a local master; or
        of a new state.  A state of another number is refused.
    state : str, optional
        A folder that driver and executors see, or ``s3://bucket/prefix``.  All further parameters need it.
    epoch : int, optional
        The epoch's number.  A committed one returns what it returned.
    outputs : str, optional
        A folder in which the updates appear as Parquet.
    close : bool
        Hold-back mode: close all times after the epoch.
    memory : str or int, optional
        What a task may take, such as "1GB".
    trust, part_cache, keep
        As in `Flow.open`; what a worker may keep open of the state; how many epochs you can replay, and follow.
    sinks, give_up_after
        As in `Engine.run`; when this returns, they have the epoch.

    Returns
    -------
    mapping of str to DataFrame
        With ``state`` a `Ran`, whose frames read the committed files.

    Raises
    ------
    SpecError, SchemaMismatch, NotArrow, WrongMode, MissingExtra
        For no output, one without a Spark type, bad ``partitions``; for a missing or wrong input or column; for no
        DataFrame; for a stream; without pandas (for PySpark).
    StateRefused, PlanChanged, EpochSkipped, ReplayMismatch, Fenced, NullKey
        With ``state``, as `Flow.open` and `Engine.step`.
    SinkRefused, SinkAhead, SinkFailed
        As `Engine.run`; after `SinkFailed` the epoch may be committed, and goes to the sink with the next run.

    Notes
    -----
    Epoch mode is one step, stamped 0; hold-back mode takes all events in and closes the input.  Where arrival decides
    (``tie="last"`` or ``"first"``), it is by partition of the frame, then by row.  What only rows show (null keys,
    ties) fails the job that reads them, with ddflow's message inside Spark's.
    """
    frames = by_input(flow, frames)
    if state is not None:
        options = StateOptions(check_address(state, outputs), partitions, outputs, memory, trust, part_cache, keep=keep)
        return run_into(flow, frames, options, epoch, close, SinkOptions.of(sinks, give_up_after))
    _without_state(epoch=epoch, outputs=outputs, memory=memory, close=close or None, sinks=sinks)
    return _lazily(flow, frames, partitions)


def _without_state(**options: Any) -> None:
    """Raise `SpecError` for an option that needs a state."""
    for name, given in options.items():
        if given is not None:
            raise SpecError(
                f"run with {name}=", "there is no state", Phrase("give ", Option("state"), ", or leave it out")
            )


def stage(flow: Flow) -> OnlyStage:
    """Return the one stage of a flow as a function for ``mapInArrow``. You bring each key into one partition.

    Parameters
    ----------
    flow : Flow
        A plan of one input, one output and one stage.

    Returns
    -------
    OnlyStage
        A function from record batches to record batches.

    Raises
    ------
    SpecError
        For several inputs or outputs, for a second shuffle, and for a tie that arrival decides, because nothing can
        carry it through your shuffle.

    Examples
    --------
    Run it on a DataFrame ``df``, partitioned by the key::

        df.repartition(8, "id").mapInArrow(spark_bridge.stage(flow), schema=spark_bridge.schema(flow))
    """
    return OnlyStage(_only(flow.frozen()), Secret.fresh())


def schema(flow: Flow) -> StructType:
    """Return the columns of the one output of ``flow``, as Spark types.

    Returns
    -------
    pyspark.sql.types.StructType
        The row's columns, then ``_time`` and ``_diff``.

    Raises
    ------
    SpecError
        If there is not exactly one output, or no Spark type for a column.
    """
    if len(flow.outputs) != 1:
        raise SpecError(
            "the schema of a flow",
            f"it has the outputs {list(flow.outputs)}",
            "name one output; run(flow, ...) gives frames, which have their schemas",
        )
    return shapes(flow)[next(iter(flow.outputs))].spark


def _only(flow: Plan) -> Stages:
    """Cut a flow that is a single stage. Raises `SpecError`, naming the parts that need more."""
    asked, run_it = "a flow as one stage", "use spark_bridge.run(flow, frames)"
    stages = cut(flow)
    for what, names in (("inputs", [*flow.inputs]), ("outputs", [*flow.outputs, *flow.side_outputs()])):
        if len(names) != 1:
            raise SpecError(asked, f"it has {len(names)} {what}, {names}", f"keep one, or {run_it}")
    if stages.exchanges:
        by = ", ".join(stages.exchanges[-1].by)
        found = f"its output takes another shuffle, since equal rows must meet again by [{by}]"
        raise SpecError(asked, found, f"keep the key in them, or {run_it}")
    spec = next(iter(flow.inputs.values())).spec
    if (spec.tie in ("last", "first") and spec.seq is None) or (spec.merges and not spec.order_free):
        by = "merge= folds in the order of" if spec.merges else f"tie={spec.tie!r} goes by"
        raise SpecError(
            asked,
            f"{by} arrival, which the shuffle before it loses",
            Phrase(
                "name a sequence column with ",
                Option("seq"),
                ", choose ",
                Option("tie", "greatest"),
                f" or 'error', or {run_it}",
            ),
        )
    return stages


class _Frames(dict[str, DataFrame]):
    """A frame for each output.  Raises `NoSuchOutput`, a `KeyError`, for another name."""

    def __missing__(self, name: str) -> DataFrame:
        return no_output(name, self)


def _lazily(flow: Plan, frames: Mapping[str, DataFrame], partitions: int | None) -> dict[str, DataFrame]:
    """Make a frame for each output from an empty start; outputs share the frames of common stages."""
    cut(flow)
    flow, known = flow.frozen(), shapes(flow)
    columns = {name: checked(flow, name, frame, streaming=False) for name, frame in frames.items()}
    for name in flow.inputs:
        if name not in frames:
            raise SchemaMismatch(
                f"rows for {name!r}",
                f"there is no DataFrame among {list(frames)}",
                "give one for every input; it may be empty",
                input=name,
            )
    wide, secret = _partitions(partitions, next(iter(frames.values()))), Secret.fresh()
    chunks = {name: routed(frames[name], router(flow, name, wide, secret, columns[name]), None) for name in flow.inputs}
    made: dict[tuple[Any, ...], DataFrame] = {}
    out = _Frames()
    for name, shape in known.items():
        stages, key = cut(flow, only=name), _read_by(flow, name)
        frame = made.setdefault(key, joined(chunks[each] for each in key))
        for stage in range(stages.stages):
            last = stage == stages.stages - 1
            key = (*key, stages.active[stage], *([name] if last else stages.sent(stage)))
            if key not in made:
                task = RunStage(stages, stage, secret, wide, columns, name if last else None)
                made[key] = mapped(frame.repartitionById(wide, "to"), task, shape.spark if last else ROWS)
            frame = made[key]
        out[name] = frame
    return out


def _read_by(flow: Plan, name: str) -> tuple[Any, ...]:
    """List the names of the inputs that an output depends on."""
    read = walk_inputs([flow.outputs[name] if name in flow.outputs else flow.side_outputs()[name][0]])
    return tuple(name for name, input in flow.inputs.items() if input in read)


def _partitions(given: int | None, frame: DataFrame) -> int:
    if given is None:
        most, context = int(frame.sparkSession.conf.get(SHUFFLES) or 0), context_of(frame.sparkSession)
        local = context is not None and str(context.master).startswith("local")
        return min(most, max(int(context.defaultParallelism), 1)) if local else most
    if isinstance(given, bool) or not isinstance(given, int) or given < 1:
        raise SpecError(
            Option("partitions", given), "that is no number of partitions", "give a whole number, 1 or more"
        )
    return given


def run_into(
    flow: Flow,
    frames: Mapping[str, DataFrame],
    options: StateOptions,
    epoch: int | None,
    close: bool,
    sinks: SinkOptions,
) -> Ran:
    """Run and commit one epoch of rows of some inputs.  ``close``: all times after it, in hold-back mode.

    Raises what `spark_bridge.run` says.
    """
    if close and not flow.holds_back:
        raise WrongMode(
            "run with close=True",
            "the flow is in epoch mode, where every epoch closes its own time",
            "leave close= out",
        )
    columns = {name: checked(flow, name, frame, streaming=False) for name, frame in frames.items()}
    session = session_of(frames)
    job, outlets = Job(flow, columns, options, session), None
    try:
        outlets = Outlets(job, session, sinks)
        outlets.of.pump()  # before the epoch: a sink may refuse
        outlets.of.make_room()
        before = job.coordinator.committed(epoch=epoch) if epoch is not None else None
        packed = job.routed(frames) if frames else None
        if before is None:
            committed = job.epoch(session, packed, close=close, epoch=epoch)
        else:
            committed = job.again(session, packed, before)
        try:
            outlets.drain()
        finally:
            report(job.name, EpochStats.of(committed, None, flow.time_type), options.metrics, outlets.of.lags())
        return ran(job, session, committed, outlets.of.at)
    finally:
        if outlets is not None:
            outlets.close(acknowledge=False)
        job.close()


def session_of(frames: Mapping[str, DataFrame]) -> Any:
    """Return the session of some frames; without any, the active one. Raises `SpecError` if there is none."""
    for frame in frames.values():
        return frame.sparkSession
    session = SparkSession.getActiveSession()
    if session is None:
        raise SpecError(
            "run without rows",
            "no DataFrame is given, and there is no active session",
            "give a DataFrame, which may be empty",
        )
    return session
