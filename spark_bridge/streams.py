"""Stream into a state. Every micro-batch of Spark becomes one epoch, exactly once from the source to the state.

Guarantees: if Spark repeats a batch after a failure, the batch is recognised by its id, and the result is the same. At
most one query may feed a state.

>>> _default_checkpoint("/states/orders")
'/states/orders.checkpoint'
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from copy import copy
from functools import partial
from inspect import signature
from threading import RLock, Thread
from time import sleep
from typing import Any, Final, Literal

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, functions as F
from pyspark.sql.streaming.readwriter import DataStreamWriter

from ddflow.columns.names import did_you_mean
from ddflow.connectors.api import TableSink
from ddflow.engine.engine import Flow
from ddflow.engine.run.delivery import NAP
from ddflow.engine.run.options import RunOptions
from ddflow.errors import SpecError, WrongMode, shorten
from ddflow.metrics import Metrics
from ddflow.partitions.receipt import EpochResult
from ddflow.storage.closing import undo_on_failure
from ddflow.storage.manifest import Feed
from ddflow.time import CLOSED
from spark_bridge.epochs import Ran, find_session
from spark_bridge.errors import attach_error_notes, fail_query, translate_errors
from spark_bridge.job import KEEP, ROWS, Job, StateOptions, check_address, check_columns
from spark_bridge.monitoring import ACCOUNTS, EpochStats, QueryHistory, QueryStats, report_epoch
from spark_bridge.session import get_spark_context, set_batch_sizes
from spark_bridge.types import map_frames_to_inputs

Then = Callable[[Mapping[str, DataFrame], int], Any]
"""A function that receives the outputs of an epoch and the number of the epoch."""
_QUERY: Final = "sql.streaming.queryId"


class BatchFeeder:
    """The function of ``foreachBatch``, which commits each batch as an epoch.

    ``account``: the record of this process's commits. ``fail``: a function that ends the query with an error, if the
    query runs in this process. ``failure``: the sink error that ended the query.

    >>> feeder = BatchFeeder(Flow(), {}, StateOptions("state"), None)
    >>> [name for name, travels in feeder.__getstate__().items() if travels is None]
    ['then', 'fail', 'failure', '_job', '_lock', '_thread']
    """

    def __init__(
        self, flow: Flow, columns: Mapping[str, tuple[str, ...]], options: StateOptions, then: Then | None
    ) -> None:
        self.flow, self.columns, self.options, self.then = flow, columns, options, then
        self.account, self.at = QueryHistory(), dict[str, int]()
        self.fail: Callable[[Exception], Any] | None = None
        self.failure: Exception | None = None
        self._job: Job | None = None
        self._lock: Any = RLock()
        self._thread: Thread | None = None

    def __getstate__(self) -> dict[str, Any]:
        mine = dict.fromkeys(("fail", "_job", "_lock", "_thread"))
        options = self.options._replace(metrics=None)  # metrics= works only in this process
        return {**self.__dict__, **mine, "account": QueryHistory(), "options": options}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._lock = RLock()

    @property
    def name(self) -> str:
        """Name of the query, or the names of its inputs."""
        return self.options.name or ", ".join(self.flow.inputs)

    def __repr__(self) -> str:
        return f"{self.name} into {self.options.state}"

    def __call__(self, packed: DataFrame, batch: int) -> None:
        # After a failure the query ends, and the next query reads the state anew.
        with self._lock, undo_on_failure(self.close_job), attach_error_notes():
            self._commit_batch(packed, int(batch))

    def _commit_batch(self, packed: DataFrame, batch: int) -> None:
        """Commit a batch as an epoch, unless it is committed already."""
        session = packed.sparkSession
        context = get_spark_context(session)
        query = "" if context is None else context.getLocalProperty(_QUERY) or ""
        feed = Feed(query, batch, tuple(sorted(self.columns)))
        if self.failure is not None:
            raise self.failure
        job = self.open_job(session)
        time = job.coordinator.stamp_batch()
        job.sinks.reduce_backlog()
        committed = job.commit_epoch(session, packed, time=time, feed=feed)
        ACCOUNTS.add_query(feed.query, self.account)
        self._report_commit(job, session, committed, feed.batch)

    def write_to_sinks(self, session: Any) -> bool:
        """Write to each sink the epochs that the sink lacks. Return True if all sinks now have all epochs.

        If a sink fails, a thread tries it again. Raises the error of a sink that refuses an epoch, or that has failed
        for too long.
        """
        sinks = self.open_job(session).sinks
        drained = sinks.deliver_waiting_epochs()
        self.at = sinks.delivered_epochs
        sinks.give_up_if_overdue()
        if not drained and self._thread is None:
            self._thread = Thread(target=self._retry_sinks, args=(session,), name="ddflow sinks", daemon=True)
            self._thread.start()
        return drained

    def _retry_sinks(self, session: Any) -> None:
        """Deliver epochs to the sinks, until the sinks have all epochs or the query ends."""
        while self.failure is None:
            sleep(NAP)
            with self._lock:  # while this thread ends, no other call may start the next thread
                try:
                    if self._job is None or self.write_to_sinks(session):
                        self._thread = None
                        return
                except Exception as error:
                    self.failure = error
        if self.fail is not None:
            self.fail(self.failure)

    def drain_sinks(self, session: Any) -> None:
        """Deliver all missing epochs to the sinks, and publish their positions. Raises the errors of sinks."""
        if not self.options.sinks:
            return
        with self._lock:
            if self.failure is not None:
                raise self.failure
            job = self.open_job(session)
            job.drain_sinks()
            self.at = job.sinks.delivered_epochs

    def close_open_times(self, session: Any) -> None:
        """Close all open times, and report the epoch in which they were closed. Raises the errors of an epoch.

        It is possible that an earlier process closed the times, but ended before it reported the epoch. In that case,
        report its epoch again.
        """
        with self._lock:
            job = self.open_job(session)
            manifest = job.coordinator.manifest
            closing = [
                each
                for each in manifest.receipts
                if each.batch is None
                and each.calls[-1:]
                and each.calls[-1].kind == "advance_to"
                and each.calls[-1].frontier == CLOSED
            ]
            if manifest.frontier < CLOSED:
                self._report_commit(job, session, job.commit_epoch(session, None, close=True), None)
            elif closing:
                self._report_commit(job, session, job.replay_epoch(session, None, closing[-1]), None)

    def _report_commit(self, job: Job, session: Any, committed: EpochResult, number: int | None) -> None:
        """Report a commit to the record of the query, the log, the metrics, and the user's function."""
        batch = EpochStats.from_commit(committed, number, job.flow.time_type)
        self.account.add_epoch(batch)
        try:
            self.write_to_sinks(session)
        finally:
            report_epoch(job.name, batch, self.options.metrics, job.sinks.measure_lags())
        if self.then is not None:
            self.then(Ran(job, session, committed), committed.epoch)

    def open_job(self, session: Any) -> Job:
        """Open the state and its sinks if they are not open. Raises the errors of `Job`."""
        if self._job is None:
            self._job = Job(self.flow, self.columns, self.options, session)
        return self._job

    def close_job(self, acknowledge: bool = False) -> None:
        """Close the state until it is needed again. With ``acknowledge``, first publish the positions of the sinks."""
        with self._lock:
            if self._job is not None:
                self._job.close(acknowledge)
                self._job = None


FLAGS: Final = ("availableNow", "once")
"""The triggers with which a query ends by itself. These triggers take only the value True."""
ENDLESS: Final = ("continuous", "realTime")
"""Triggers without batches."""
SPAN: Final = re.compile(
    r"\s*(interval\s+)?([+-]?\s*\d+(\.\d*)?\s*((micro|milli)?second|minute|hour|day|week)s?\s*)+", re.IGNORECASE
)


def check_trigger(trigger: Any) -> None:
    """Raise `SpecError` for an invalid trigger. O(1).

    >>> is_bounded({"availableNow": True}), is_bounded({"processingTime": "1 minute"}), is_bounded(None)
    (True, False, False)
    >>> check_trigger({"availablenow": True})
    Traceback (most recent call last):
        ...
    ddflow.errors.SpecError: stream with trigger={'availablenow': True}: it names 'availablenow'; did you mean \
    'availableNow'? ...
    """
    if trigger is None or trigger == {}:
        return
    asked = shorten(f"stream with trigger={trigger!r}")
    if not isinstance(trigger, Mapping) or len(trigger) != 1:
        found = f"it has {len(trigger)} names" if isinstance(trigger, Mapping) else f"it is a {type(trigger).__name__}"
        raise SpecError(asked, found, "pass one: {'availableNow': True}, or {'processingTime': '10 seconds'}")
    ((name, value),) = trigger.items()
    known = [each for each in signature(DataStreamWriter.trigger).parameters if each not in ("self", *ENDLESS)]
    if name not in known:
        raise SpecError(asked, f"it names {name!r}", did_you_mean(name, known, "names"))
    if name in FLAGS and value is not True:
        raise SpecError(asked, f"{name} is {value!r}", "pass True, or omit trigger=")
    if name not in FLAGS and not (isinstance(value, str) and SPAN.fullmatch(value)):
        raise SpecError(asked, f"{name} is {value!r}", f"pass a duration as text: {{{name!r}: '10 seconds'}}")


def is_bounded(trigger: Mapping[str, Any] | None) -> bool:
    """Return True if a query with this trigger ends by itself. O(1)."""
    return bool(trigger) and any((trigger or {}).get(each) for each in FLAGS)


def stream(
    flow: Flow,
    frames: Mapping[str, DataFrame] | DataFrame,
    *,
    state: str,
    partitions: int | None = None,
    outputs: str | Then | None = None,
    checkpoint: str | None = None,
    trigger: Mapping[str, Any] | None = None,
    heartbeat: bool = False,
    close: bool = False,
    adopt: bool = False,
    memory: str | int | None = None,
    name: str | None = None,
    trust: Literal["owner", "group"] = "owner",
    part_cache: str | int | None = "auto",
    keep: int = KEEP,
    sinks: Mapping[str, TableSink] | None = None,
    sink_backlog: str | int = "1GB",
    give_up_after: str | None = "10min",
    metrics: Metrics | None = None,
) -> Stream:
    """Make a query that feeds streaming DataFrames into a state. The query runs when you call `Stream.start`.

    Parameters
    ----------
    flow, frames, state, memory, trust, part_cache, keep
        See `run`, but with streaming DataFrames. One query reads all of them.
    partitions : int, optional
        The number for a new state: by default the cores, at most ``spark.sql.shuffle.partitions``. An existing state
        with another number is refused.
    outputs : str or callable, optional
        A folder for each epoch's updates as Parquet. Or a function that receives the outputs and the number of each
        committed epoch. If Spark repeats a batch, the function is called again.
    checkpoint : str, optional
        Spark's checkpoint folder. By default the state's folder plus ``.checkpoint``.
    trigger, heartbeat : optional
        The arguments of ``writeStream.trigger``, as a mapping. Whether to commit an epoch at each trigger, even without
        rows, in a flow with a clock. A checkpoint needs the ``heartbeat`` of its first start.
    close : bool
        In hold-back mode, close all times at the end of the input. This requires a trigger that ends.
    adopt : bool
        Let this query continue a state that another query has fed.
    name : str, optional
        The name of the query in Spark's web UI and the log. By default its inputs.
    sinks, sink_backlog, give_up_after, metrics
        See `Engine.run` and `Flow.open`. The driver, or the server of Spark Connect, uses them for each new epoch.

    Returns
    -------
    Stream
        The query, which is not started yet.

    Raises
    ------
    SpecError, SchemaMismatch, NotArrow, WrongMode
        For options that do not fit; a wrong input or column; no DataFrame; no stream; or ``close`` in epoch mode.

    Notes
    -----
    Each batch is one epoch. This call runs no job. O(nodes of the plan).
    """
    _check_close_option(flow, trigger, close)
    place = check_address(state, outputs)
    columns = _check_streams(flow, frames := map_frames_to_inputs(flow, frames))
    checkpoint = checkpoint or _default_checkpoint(place)
    folder, then = (None, outputs) if callable(outputs) else (outputs, None)
    options = StateOptions(place, partitions, folder, memory, trust, part_cache, adopt, name, keep, checkpoint, metrics)
    options = options._replace(sinks=sinks, delivery=RunOptions(sink_backlog=sink_backlog, give_up_after=give_up_after))
    return Stream(BatchFeeder(flow, columns, options, then), frames, trigger, close, heartbeat)


def _check_streams(flow: Flow, frames: Mapping[str, DataFrame]) -> dict[str, tuple[str, ...]]:
    """Check the streams.

    For each input, return the declared columns that its stream has. Raises the errors of `stream`.
    """
    if not frames:
        raise SpecError("stream into a state", "there is no DataFrame", "pass a DataFrame for at least one input")
    return {input: check_columns(flow, input, frame, streaming=True) for input, frame in frames.items()}


def _check_close_option(flow: Flow, trigger: Mapping[str, Any] | None, close: bool) -> None:
    """Raise `SpecError` for a wrong trigger, and `WrongMode` or `SpecError` if ``close`` does not fit."""
    check_trigger(trigger)
    if close and not flow.holds_back:
        raise WrongMode(
            "stream with close=True",
            "the flow is in epoch mode, where every batch closes its own time",
            "omit close=",
        )
    if close and not is_bounded(trigger):
        raise SpecError(
            "stream with close=True",
            f"a query with trigger={trigger!r} does not end",
            "pass trigger={'availableNow': True}, or omit close=",
        )


def _default_checkpoint(state: str) -> str:
    """Return the default folder of Spark's checkpoint, next to the state."""
    if "://" in state:
        raise SpecError(
            f"stream into {state}",
            "Spark's checkpoint has no default folder next to this state",
            "pass checkpoint=, a path that Spark can write to",
        )
    return f"{state.rstrip('/')}.checkpoint"


class Stream:
    """A query that is not started yet. `stream` returns it."""

    def __init__(
        self,
        feeder: BatchFeeder,
        frames: Mapping[str, DataFrame],
        trigger: Mapping[str, Any] | None,
        close: bool,
        heartbeat: bool = False,
    ) -> None:
        self.feeder, self.frames, self.trigger, self.close, self.heartbeat = feeder, frames, trigger, close, heartbeat

    def __repr__(self) -> str:
        return f"Stream({self.feeder}; not started: call .start())"

    def start(self) -> Query:
        """Open the state, and start the query.

        Returns
        -------
        Query
            Spark's ``StreamingQuery``, with ddflow's figures.

        Raises
        ------
        DdflowError
            The errors of opening the state.
        Exception
            The errors of Spark, such as for an invalid duration.
        """
        # Each query has its own feeder, because an earlier query may not have ended completely.
        session, feeder = find_session(self.frames), copy(self.feeder)
        feeder.options = self.feeder.options  # with metrics=, which a copy drops
        with undo_on_failure(feeder.close_job):
            job, elsewhere = feeder.open_job(session), get_spark_context(session) is None
            if job.coordinator.stamp_batch() is None and self.heartbeat:
                found = "the flow has no clock, so nothing changes without rows"
                raise SpecError("stream with heartbeat=True", found, "omit heartbeat=")
            if not elsewhere:
                feeder.write_to_sinks(session)  # before the first batch: a sink may refuse
            packed = job.route_frames(self.frames)
            if self.heartbeat:
                packed = packed.union(make_heartbeat(session))
            writer = packed.writeStream.foreachBatch(feeder)
            writer = writer.option("checkpointLocation", feeder.options.checkpoint)
            if self.trigger:
                writer = writer.trigger(**self.trigger)
            if feeder.options.name is not None:
                writer = writer.queryName(feeder.options.name)
            if elsewhere:
                feeder.close_job()
            with set_batch_sizes(session, job.memory):  # a query keeps the settings of its start
                started = writer.start()
        feeder.fail = None if elsewhere else partial(fail_query, session, started)
        return Query(started, feeder, session, self.close)


def make_heartbeat(session: Any) -> DataFrame:
    """Make a stream of chunks that has no rows, but a new offset every second, so that each trigger makes a batch."""
    ticks = session.readStream.format("rate").option("rowsPerSecond", 1).load()
    nothing = [F.lit(None).cast(field.dataType).alias(field.name) for field in ROWS.fields]
    out: DataFrame = ticks.where("false").select(*nothing)
    return out


class Epochs:
    """The epochs of a query. ``elsewhere`` is True if another process commits them, as on Spark Connect."""

    def __init__(self, feeder: BatchFeeder, elsewhere: bool) -> None:
        self._feeder, self._elsewhere = feeder, elsewhere

    def stats(self) -> QueryStats:
        """Return the last epochs that the query has committed since its start, oldest epoch first, and the total.

        If another process commits, as on Spark Connect, return all epochs that the state keeps, whichever writer
        committed them.

        Returns
        -------
        QueryStats
            Rows, verdicts, updates, bytes and times. It prints as a table.

        Raises
        ------
        StateRefused
            If another process commits and this process cannot see the state. Also the errors of `QueryStats.read`.

        Notes
        -----
        O(e) time, for e kept epochs.
        """
        if not self._elsewhere:
            return self._feeder.account.stats()
        return QueryStats.read(self._feeder.options.state, self._feeder.options.trust)

    def __repr__(self) -> str:
        return f"the epochs of {self._feeder.options.state}: call .stats()" if self._elsewhere else str(self.stats())

    @property
    def sinks(self) -> dict[str, int]:
        """For each output with a sink, the last epoch that the sink has received, as far as this process knows."""
        return dict(self._feeder.at)

    @property
    def recent(self) -> tuple[EpochStats, ...]:
        """Return the same epochs as `stats`, and raise the same errors."""
        return tuple(self.stats())


class Query:
    """A running query. A ``StreamingQuery`` of Spark that has the figures of ddflow in addition.

    `awaitTermination` and `processAllAvailable` raise the ddflow error that ended the query.

    Attributes
    ----------
    ddflow : Epochs
        The figures of the query's epochs.
    """

    def __init__(self, started: Any, feeder: BatchFeeder, session: Any, close: bool) -> None:
        self._query, self._feeder, self._session, self._close = started, feeder, session, close
        self._stopped = False
        self.ddflow = Epochs(feeder, elsewhere=get_spark_context(session) is None)
        ACCOUNTS.add_query(str(started.id), self.ddflow if get_spark_context(session) is None else feeder.account)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._query, name)

    def __repr__(self) -> str:
        return f"Query({self._feeder}; {self._query.id})"

    @property
    def name(self) -> str:
        """The name of the query, or the names of its inputs if it has none."""
        return self._feeder.name

    def awaitTermination(self, timeout: int | None = None) -> bool | None:
        """Wait until the query has ended and its sinks have all epochs.

        With ``close=True``, all times are closed after the query has ended by itself.

        Parameters
        ----------
        timeout : int, optional
            The maximum number of seconds.

        Returns
        -------
        bool or None
            With a ``timeout``, True if the query has ended, like in Spark.

        Raises
        ------
        DdflowError
            The error that ended the query.
        """
        with self._translate_errors():
            ended: bool | None = self._query.awaitTermination(timeout)
        if ended is not False:
            try:
                if self._query.exception() is None:
                    self._finish()
            finally:
                self._feeder.close_job()
        return ended

    def _finish(self) -> None:
        """With ``close=True``, close all open times. Deliver all epochs to those sinks that this process feeds."""
        if self._close:
            self._close = False
            self._feeder.close_open_times(self._session)
        if get_spark_context(self._session) is not None and not self._stopped:
            self._feeder.drain_sinks(self._session)

    def processAllAvailable(self) -> None:
        """Wait until all input that is present now is committed. Raises the error that ended the query."""
        with self._translate_errors():
            self._query.processAllAvailable()

    def exception(self) -> Exception | None:
        """Return the error that ended the query, or the sink error that will end it at its next trigger."""
        ended: Exception | None = self._query.exception()
        return self._feeder.failure if ended is None else ended

    @contextmanager
    def _translate_errors(self) -> Iterator[None]:
        """Raise the original error instead of the Spark error that ended the query."""
        try:
            with translate_errors():
                yield
        except PySparkException as error:
            if self._feeder.failure is None:
                raise
            raise self._feeder.failure from error

    def stop(self) -> None:
        """Stop the query, but do not close any time.

        When the query starts again, Spark repeats the batch that was running, and the sinks get the epochs that they
        lack.
        """
        self._close, self._stopped = False, True
        self._query.stop()
        self._feeder.close_job(acknowledge=True)
