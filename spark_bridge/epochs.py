"""Run a plan or a query on DataFrames. Without a state it runs lazily; with a state it runs as one committed epoch.

The results equal the results of the local engine. With a state, the DataFrame of an output reads committed files. So a
second action on the DataFrame reads these files, and does not compute the rows again. A query becomes a flow with one
input for each DataFrame and one output. A DataFrame with a key holds upserts. A DataFrame without a key holds appended
rows. All columns are taken as nullable, because in Spark nullability depends on how a DataFrame was made. ddflow checks
the rows themselves.

>>> import pyarrow as pa, ddflow as dd
>>> flow = dd.Flow()
>>> people = flow.upserts("people", {"id": pa.int64(), "city": pa.string()}, dd.Upsert(key="id"))
>>> by_city = flow.output("by_city", people.project("city").count())
>>> schema(flow).simpleString()
'struct<city:string,count:bigint,_time:bigint,_diff:bigint>'
"""

from collections.abc import Iterator, Mapping
from contextlib import closing
from typing import Any, Final, Literal, overload

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from ddflow.columns.hashing import Secret
from ddflow.connectors.api import TableSink
from ddflow.dataflow.result import Verdicts, raise_no_output
from ddflow.engine.engine import Flow
from ddflow.engine.run.options import RunOptions
from ddflow.engine.run.sync import Synced
from ddflow.errors import ErrorText, Option, SchemaMismatch, SpecError, WrongMode
from ddflow.partitions.commit import DriverOptions, EpochDriver
from ddflow.partitions.driver_epochs import sync_state
from ddflow.partitions.epoch_start import convert_epoch_time, find_clock
from ddflow.partitions.receipt import EpochResult
from ddflow.partitions.stages import Stages, cut_stages, warn_of_single_partitions
from ddflow.partitions.step import TIME
from ddflow.plan.collection import walk_inputs
from ddflow.plan.inputs.spec import KeyedFrame
from ddflow.plan.plan import Plan
from ddflow.plan.text.explain import PlanExplanation
from ddflow.time import Time, time_to_value
from spark_bridge.job import (
    KEEP,
    ROWS,
    SHUFFLES,
    Job,
    StateOptions,
    check_address,
    check_columns,
    make_partitioner,
    map_arrow,
    route_rows,
    union_chunks,
)
from spark_bridge.monitoring import EpochStats, report_epoch
from spark_bridge.session import get_spark_context
from spark_bridge.tasks import SingleStageTask, StatelessStageTask
from spark_bridge.types import arrow_schema, build_output_schemas, map_frames_to_inputs

_NAMES = "name string, length bigint, digest binary"
OUT: Final = "out"
"""The name of the output that a query has in its state."""


class Ran(Mapping[str, DataFrame]):
    """The outputs of an epoch, as a mapping.

    The keys are the names of the outputs, and each value is a DataFrame of the output's committed files.

    - ``epoch``, ``time``: the number of the epoch, and the ``_time`` of its updates.
    - ``frontier``: the least time that is still open.
    - ``replayed``: whether the epoch was committed before.
    - ``verdicts``: the verdicts of its events.
    - ``rows``: the number of received rows, by input.
    - ``figures``: measured microseconds and bytes of all tasks and of the driver, by name.
    - ``sinks``: the last epoch of each sink, by output.
    """

    def __init__(self, job: Job, session: Any, done: EpochResult) -> None:
        self._shapes, self._done, self._session = job.shapes, done, session
        self._readers = {
            name: job.make_file_reader(done.epoch, name, shape.arrow) for name, shape in job.shapes.items()
        }
        self.epoch, self.frontier, self.replayed = done.epoch, done.frontier, done.replayed
        clock = find_clock(job.flow)
        self.time = done.time if clock is None else time_to_value(done.time, clock)
        self.verdicts = Verdicts.of(done.counts, done.figures.get("pending", 0))
        self.rows, self.figures, self.sinks = done.rows, done.figures, job.sinks.delivered_epochs

    def __getitem__(self, name: str) -> DataFrame:
        if name not in self._shapes:
            return raise_no_output(name, self._shapes)
        output = self._done.outputs.get(name)
        files = [(blob.name, blob.length, blob.digest) for blob in output.blobs] if output is not None else []
        named: DataFrame = self._session.createDataFrame(files, _NAMES)
        return named.mapInArrow(self._readers[name], self._shapes[name].spark)

    def __iter__(self) -> Iterator[str]:
        return iter(self._shapes)

    def __len__(self) -> int:
        return len(self._shapes)

    def __repr__(self) -> str:
        sizes = (f"{name}: {self.updates(name):,} updates" for name in self)
        return f"Ran(epoch {self.epoch}; {', '.join(sizes)}; {self.verdicts})"

    def updates(self, name: str) -> int:
        """Count the new updates of an output without reading them; return an int. O(1)."""
        output = self._done.outputs.get(name)
        return 0 if output is None else output.rows


@overload
def run(
    flow: Flow,
    frames: Mapping[str, DataFrame] | DataFrame,
    partitions: int | None = None,
    *,
    time: Time | None = None,
) -> dict[str, DataFrame]: ...


@overload
def run(
    flow: Flow,
    frames: Mapping[str, DataFrame] | DataFrame,
    partitions: int | None = None,
    *,
    time: Time | None = None,
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
    time: Time | None = None,
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

    Without ``state``, the DataFrames are lazy. With it, the call commits one epoch, and you may leave out some inputs.

    Parameters
    ----------
    flow, frames
        The plan, and a DataFrame for each input, with columns matched by name; or one DataFrame for the only input.
    partitions : int, optional
        The number of partitions of each shuffle. By default ``spark.sql.shuffle.partitions``, but at most the cores of
        a local master. For a new state, by default the cores, at most that setting; later runs need the same number.
    time : date, datetime or str, optional
        In a flow with a clock, the ``_time`` of the epoch. You may omit it only to repeat a committed ``epoch``.
    state : str, optional
        A folder that driver and executors see, or ``s3://bucket/prefix``. All further parameters require it.
    epoch : int, optional
        The number of the epoch. A committed epoch returns its result again.
    outputs, close : optional
        A folder for the updates as Parquet. Whether to close all times after the epoch, in hold-back mode.
    memory, trust : optional
        The memory of a task, such as "1GB". For ``trust`` see `Flow.open`.
    part_cache, keep
        The memory for partitions that a worker keeps open, and the number of epochs that you can replay and follow.
    sinks, give_up_after
        See `Engine.run`. The sinks have the epoch when the call returns.

    Returns
    -------
    mapping of str to DataFrame
        With ``state`` a `Ran`, whose DataFrames read the committed files.

    Raises
    ------
    SpecError, SchemaMismatch, NotArrow, WrongMode, MissingExtra
        For a flow without outputs, a type that Spark lacks, a wrong input, column, time or number, and no DataFrame.
    StateRefused, PlanChanged, EpochSkipped, ReplayMismatch, TimeWentBack, Fenced, NullKey
        With ``state``, the errors of `Flow.open` and `Engine.step`.
    SinkRefused, SinkAhead, SinkFailed
        The errors of `Engine.run`. After `SinkFailed` the epoch may be committed; the next run delivers it to the sink.

    Notes
    -----
    Without a state, epoch mode makes one step at time 0 or ``time``, and hold-back mode ingests all events and closes
    all times. For ``tie="last"`` or ``"first"``, rows arrive in the order of the DataFrame's partitions, and within a
    partition in the order of its rows. Null keys and ties fail the job.
    """
    frames = map_frames_to_inputs(flow, frames)
    if state is None:
        given = {"epoch": epoch, "outputs": outputs, "memory": memory, "close": close or None, "sinks": sinks}
        return _run_lazily(flow, frames, partitions, given, convert_epoch_time(flow, time, required=True))
    options = StateOptions(check_address(state, outputs), partitions, outputs, memory, trust, part_cache, keep=keep)
    options = options._replace(sinks=sinks, delivery=RunOptions(give_up_after=give_up_after))
    return _run_epoch(flow, frames, options, epoch, close, time)


def stage(flow: Flow) -> SingleStageTask:
    """Return a function for ``mapInArrow`` that computes a flow with a single stage.

    The caller must bring all rows of a key into one partition.

    Parameters
    ----------
    flow : Flow
        A plan of one input, one output and one stage.

    Returns
    -------
    SingleStageTask
        A function from record batches to record batches.

    Raises
    ------
    SpecError
        For several inputs or outputs, for a second shuffle, and for a tie that arrival decides, because your shuffle
        does not keep the order of arrival.

    Examples
    --------
    Run it on a DataFrame ``df``, partitioned by the key::

        df.repartition(8, "id").mapInArrow(spark_bridge.stage(flow), schema=spark_bridge.schema(flow))
    """
    return SingleStageTask(_cut_single_stage(flow.frozen()), Secret.fresh())


def schema(flow: Flow) -> StructType:
    """Return the columns of the only output of ``flow``, as Spark types.

    Returns
    -------
    pyspark.sql.types.StructType
        The row's columns, then ``_time`` and ``_diff``.

    Raises
    ------
    SpecError
        If there is not exactly one output, or a column has no Spark type.
    """
    if len(flow.outputs) != 1:
        raise SpecError(
            "the schema of a flow",
            f"it has the outputs {list(flow.outputs)}",
            "declare one output; or read the schemas of the DataFrames that run(flow, ...) returns",
        )
    return build_output_schemas(flow)[next(iter(flow.outputs))].spark


def _cut_single_stage(flow: Plan) -> Stages:
    """Return the only stage of a flow as `Stages`.

    Raises `SpecError` if the flow has several stages. The error names the parts of the flow that need several stages.
    """
    asked, run_it = "a flow as one stage", "use spark_bridge.run(flow, frames)"
    stages = cut_stages(flow)
    if find_clock(flow) is not None:
        found = "it has a clock, but a stage by itself has no time"
        raise SpecError(asked, found, ErrorText("use spark_bridge.run(flow, frames) with ", Option("time")))
    for what, names in (("inputs", [*flow.inputs]), ("outputs", [*flow.outputs, *flow.side_outputs()])):
        if len(names) != 1:
            raise SpecError(asked, f"it has {len(names)} {what}, {names}", f"keep one, or {run_it}")
    if stages.exchanges:
        by = ", ".join(stages.exchanges[-1].by)
        found = f"its output needs another shuffle, because equal rows must meet by [{by}]"
        raise SpecError(asked, found, f"keep the key in the rows, or {run_it}")
    spec = next(iter(flow.inputs.values())).spec
    if (spec.tie in ("last", "first") and spec.seq is None) or (spec.merges and not spec.order_free):
        by = "merge= folds" if spec.merges else f"tie={spec.tie!r} decides"
        raise SpecError(
            asked,
            f"{by} by the order of arrival, which the shuffle before the stage loses",
            ErrorText(
                "declare a sequence column with ",
                Option("seq"),
                ", choose ",
                Option("tie", "greatest"),
                f" or 'error', or {run_it}",
            ),
        )
    return stages


class _OutputFrames(dict[str, DataFrame]):
    """A DataFrame for each output. An unknown name raises `NoSuchOutput`, which is a `KeyError`."""

    def __missing__(self, name: str) -> DataFrame:
        return raise_no_output(name, self)


def _run_lazily(
    flow: Plan,
    frames: Mapping[str, DataFrame],
    partitions: int | None,
    given: Mapping[str, Any],
    time: int | None,
) -> dict[str, DataFrame]:
    """Make a DataFrame for each output without a state. Outputs share the DataFrames of common stages.

    ``given``: options that need a state. ``time``: the time of the step, if the flow has a clock. Raises `SpecError` if
    one of the options is not None.
    """
    for name in (name for name, value in given.items() if value is not None):
        raise SpecError(
            f"run with {name}=", "there is no state", ErrorText("pass ", Option("state"), f", or omit {name}=")
        )
    cut_stages(flow)
    warn_of_single_partitions(flow)
    flow, outputs = flow.frozen(), build_output_schemas(flow)
    columns = {name: check_columns(flow, name, frame, streaming=False) for name, frame in frames.items()}
    for name in flow.inputs:
        if name not in frames:
            raise SchemaMismatch(
                f"rows for {name!r}",
                f"there is no DataFrame among {list(frames)}",
                "pass a DataFrame for every input; it may be empty",
                input=name,
            )
    wide, secret = _choose_partitions(partitions, next(iter(frames.values()))), Secret.fresh()
    routers = (make_partitioner(flow, name, wide, secret, columns[name]) for name in flow.inputs)
    chunks = {each.input: route_rows(frames[each.input], each, None) for each in routers}
    known: dict[tuple[Any, ...], DataFrame] = {}
    out = _OutputFrames()
    for name, shape in outputs.items():
        stages, key = cut_stages(flow, only=name), _list_inputs(flow, name)
        frame = known.setdefault(key, union_chunks(chunks[each] for each in key))
        for stage in range(stages.stages):
            last = stage == stages.stages - 1
            key = (*key, stages.active[stage], *([name] if last else stages.list_exchanges(stage)))
            if key not in known:
                task = StatelessStageTask(stages, stage, secret, wide, columns, name if last else None, time or TIME)
                known[key] = map_arrow(frame.repartitionById(wide, "to"), task, shape.spark if last else ROWS)
            frame = known[key]
        out[name] = frame
    return out


def _list_inputs(flow: Plan, name: str) -> tuple[Any, ...]:
    """List the names of the inputs that an output depends on."""
    read = walk_inputs([flow.outputs[name] if name in flow.outputs else flow.side_outputs()[name][0]])
    return tuple(name for name, input in flow.inputs.items() if input in read)


def _choose_partitions(given: int | None, frame: DataFrame) -> int:
    """Return the number of partitions of a shuffle.

    Return ``given``, or by default the number of partitions in Spark's settings. Raises `SpecError`.
    """
    if given is None:
        most, context = int(frame.sparkSession.conf.get(SHUFFLES) or 0), get_spark_context(frame.sparkSession)
        local = context is not None and str(context.master).startswith("local")
        return min(most, max(int(context.defaultParallelism), 1)) if local else most
    if isinstance(given, bool) or not isinstance(given, int) or given < 1:
        raise SpecError(
            Option("partitions", given), "that is not a number of partitions", "use a whole number, 1 or more"
        )
    return given


def _run_epoch(
    flow: Flow,
    frames: Mapping[str, DataFrame],
    options: StateOptions,
    epoch: int | None,
    close: bool,
    time: Time | None,
) -> Ran:
    """Run and commit one epoch. In hold-back mode, ``close`` closes all times after the epoch.

    Raises the errors of `run`.
    """
    if close and not flow.holds_back:
        raise WrongMode(
            "run with close=True",
            "the flow is in epoch mode, where every epoch closes its own time",
            "omit close=",
        )
    columns = {name: check_columns(flow, name, frame, streaming=False) for name, frame in frames.items()}
    session = find_session(frames)
    with closing(Job(flow, columns, options, session)) as job:
        at = convert_epoch_time(job.flow, time, required=epoch is None)
        job.sinks.deliver_waiting_epochs()  # before the epoch: a sink may refuse
        job.sinks.reduce_backlog()
        packed = job.route_frames(frames) if frames else None
        committed = job.commit_epoch(session, packed, time=at, close=close, epoch=epoch)
        try:
            job.drain_sinks()
        finally:
            stats = EpochStats.from_commit(committed, None, flow.time_type)
            report_epoch(job.name, stats, options.metrics, job.sinks.measure_lags())
        return Ran(job, session, committed)


def find_session(frames: Mapping[str, DataFrame]) -> Any:
    """Return the session of the DataFrames.

    If there are no DataFrames, return the active session. Raises `SpecError`.
    """
    for frame in frames.values():
        return frame.sparkSession
    session = SparkSession.getActiveSession()
    if session is None:
        raise SpecError(
            "run without rows",
            "no DataFrame is given, and there is no active session",
            "pass a DataFrame, which may be empty",
        )
    return session


def sql(
    query: str,
    frames: Mapping[str, KeyedFrame | DataFrame],
    partitions: int | None = None,
    *,
    time: Time | None = None,
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
) -> DataFrame:
    """Run a query over batch DataFrames and return a DataFrame of the updates of its answer.

    Without ``state``, the DataFrame is lazy, and its updates add up to the complete answer. With ``state``, the rows
    are the next epoch of the state, which is committed when the call returns. The DataFrame then has the updates of
    this epoch.

    Parameters
    ----------
    query : str
        A query in Spark SQL; see `Flow.sql`.
    frames : mapping of str to KeyedFrame or DataFrame
        The tables of the query: ``dd.keyed(df, dd.Upsert(key=...))`` for upserts, a bare DataFrame for appended rows.
        Pass all tables each time; pass an empty DataFrame for a table without new rows.
    partitions, time, state, epoch, outputs, close, memory, trust, part_cache, keep, sinks, give_up_after
        See `run`. In a state the output is called "out".

    Returns
    -------
    pyspark.sql.DataFrame
        The columns of the query, ``_time`` and ``_diff``.

    Raises
    ------
    ExpressionError
        For a query that cannot be maintained, and for a table without a DataFrame, with the position in the query.
    SpecError
        If ``frames`` is not a mapping, if the query does not use a DataFrame, or if a spec does not fit its DataFrame.
    NotArrow, SchemaMismatch
        For a value that is not a DataFrame; for a column whose type does not survive the way to Python and back.
    DdflowError
        The errors of `run`.

    Examples
    --------
    ::

        tables = {"orders": dd.keyed(orders, dd.Upsert(key="id")), "clicks": clicks}
        query = "select o.city, count(*) n from orders o join clicks c on c.order = o.id group by o.city"
        spark_bridge.sql(query, tables, state="by_city.state").show()
    """
    flow, given = plan_query(query, frames)
    options: dict[str, Any] = {"state": state, "time": time, "epoch": epoch, "outputs": outputs, "close": close}
    options |= {
        "memory": memory,
        "trust": trust,
        "part_cache": part_cache,
        "keep": keep,
        "sinks": sinks,
        "give_up_after": give_up_after,
    }
    out: DataFrame = run(flow, given, partitions, **options)[OUT]
    return out


def explain(flow: Flow | str, frames: Mapping[str, KeyedFrame | DataFrame] | None = None) -> PlanExplanation:
    """Describe the operators of a flow like `Flow.explain`, and then the stages that run the operators.

    Parameters
    ----------
    flow : Flow or str
        A flow, or a query over ``frames``.
    frames : mapping of str to KeyedFrame or DataFrame, optional
        The tables of a query; see `sql`.

    Returns
    -------
    str
        A text of several lines. A prompt and a notebook show it with line breaks.

    Raises
    ------
    SpecError, ExpressionError, NotArrow, SchemaMismatch
        The errors of `sql`; `SpecError` also for a flow without outputs.

    Notes
    -----
    No job runs. Between two adjacent stages there is one shuffle.

    Examples
    --------
    >>> from ddflow.plan.inputs.spec import Upsert
    >>> flow = Flow()
    >>> people = flow.upserts("people", {"id": pa.int64(), "city": pa.string()}, Upsert(key="id"))
    >>> _ = flow.output("by_city", flow.sql("select city, count(*) n from people group by city"))
    >>> print(explain(flow))
    output by_city: city string, n int64
    └─ count(by=['city'], name='n')    rows move to their [city]; kept by [city]
       └─ project(['city'])
          └─ input people    rows move to their [id]; kept by [id]
                id int64, city string
                key=['id']
    <BLANKLINE>
    stage 0: people, project; sums 0 by [city] of project
    stage 1: sums 0 by [city] of project; count; by_city
    """
    of = plan_query(flow, frames)[0] if isinstance(flow, str) else flow
    stages = cut_stages(of)
    return PlanExplanation(f"{of.explain()}\n\n{stages}")


def plan_query(query: str, frames: Any) -> tuple[Flow, dict[str, Any]]:
    """Plan a query.

    Return the flow of the query, and the DataFrame of each input. No job runs. Raises the errors of `sql`.
    """
    if not isinstance(frames, Mapping):
        found = f"the frames are a {type(frames).__name__}"
        raise SpecError("a query on Spark", found, "pass {table: DataFrame, or dd.keyed(DataFrame, dd.Upsert(...))}")
    flow, given = Flow(), dict[str, Any]()
    for name, each in frames.items():
        frame = given[name] = each.rows if isinstance(each, KeyedFrame) else each
        schema = pa.schema([field.with_nullable(True) for field in arrow_schema(frame)])
        if isinstance(each, KeyedFrame):
            flow.upserts(name, schema, each.spec)
        else:
            flow.updates(name, schema)
    answer = flow.sql(query)
    asked = walk_inputs([answer])
    unasked = [name for name, input in flow.inputs.items() if input not in asked]
    if unasked:
        raise SpecError("a query on Spark", f"it does not use {unasked}", "omit these DataFrames")
    flow.output(OUT, answer)
    return flow, given


def sync(
    flow: Flow,
    state: str,
    sinks: Mapping[str, TableSink],
    *,
    adopt: bool = False,
    dry: bool = False,
    detach: tuple[str, ...] = (),
    trust: Literal["owner", "group"] = "owner",
) -> dict[str, Synced]:
    """Bring the targets of a state's outputs up to date, like ``ddflow sync``.

    Only the difference between an output and its target is written.

    Stop the writer of the state first; otherwise it is `Fenced`.

    Parameters
    ----------
    flow : Flow
        The state's plan.
    state : str
        The folder of the state, or ``s3://bucket/prefix``.
    sinks : mapping of str to TableSink
        The sinks by output.
    adopt, dry
        See `Engine.sync`.
    detach : tuple of str
        Sinks to detach afterwards, so that the state stops keeping updates for these sinks. See `Engine.detach`.
    trust : {"owner", "group"}
        See `Flow.open`.

    Returns
    -------
    dict of str to Synced
        By output, the number of deleted, changed and added rows of the table.

    Raises
    ------
    SinkRefused, SinkFailed, SpecError
        The errors of `Engine.sync`.
    DdflowError
        The errors of opening the state.

    Notes
    -----
    O(rows of the output and the table) time, in this process. No Spark job runs.
    """
    with closing(EpochDriver.open(flow, check_address(state), DriverOptions(trust=trust))) as driver:
        return sync_state(driver, sinks, adopt, dry, detach)
