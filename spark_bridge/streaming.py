"""A stream: every micro-batch of Spark's becomes one epoch of a state, exactly once from source offset to output.

Invariant: the rows of a batch are in the state, and what they made of it in the outputs, once, whenever the query was
killed and however often Spark gives the batch again. `foreachBatch` promises at least once; so the state itself
remembers which query fed it up to which batch, a batch that is given again is compared by its rows and read from its
files, and one that cannot follow (another query's, a restarted numbering, a gap) stops the query. Rows are packed in
the streaming plan, before the batch, whose frame holds chunks only. What it does not do: choose what a batch is, that
is the input's and the trigger's.

>>> _checkpoint("/states/orders")
'/states/orders.checkpoint'
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from copy import copy
from functools import partial
from typing import Any, Literal

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame

from ddflow.connectors.api import TableSink
from ddflow.engine.flow import Flow
from ddflow.errors import SpecError, WrongMode
from ddflow.metrics import Metrics
from ddflow.storage.closing import on_failure
from spark_bridge.delivering import SinkOptions
from spark_bridge.errors import fail, translated
from spark_bridge.feeder import Feeder, Then
from spark_bridge.job import checked, settings
from spark_bridge.monitoring import ACCOUNTS
from spark_bridge.running import session_of
from spark_bridge.session import context_of
from spark_bridge.state_options import KEEP, StateOptions, check_address
from spark_bridge.stats import EpochStats, QueryStats
from spark_bridge.triggers import check_trigger, until_the_end
from spark_bridge.types import by_input


def stream(
    flow: Flow,
    frames: Mapping[str, DataFrame] | DataFrame,
    *,
    state: str,
    partitions: int | None = None,
    outputs: str | Then | None = None,
    checkpoint: str | None = None,
    trigger: Mapping[str, Any] | None = None,
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
    """Make a query that feeds streaming DataFrames into a state, one epoch a batch.  Call its `Stream.start`.

    Parameters
    ----------
    flow, frames, state, memory, trust, part_cache, keep
        As in `run`, with streaming DataFrames.  Several are read side by side.
    partitions : int, optional
        Of a new state, by default the number of cores, at most ``spark.sql.shuffle.partitions``.  A state of another
        number is refused.
    outputs : str or callable, optional
        A folder in which each epoch's updates appear as Parquet; or a function that is called with the outputs and the
        number of each committed epoch, and again if Spark gives the batch again or the end is reached again.
    checkpoint : str, optional
        Spark's.  By default the state's folder with ``.checkpoint`` behind it.
    trigger : mapping, optional
        What ``writeStream.trigger`` takes.
    close : bool
        Hold-back mode: whether the end of the input closes all times.  It needs a trigger that has an end.
    adopt : bool
        Let this query continue a state that another one has fed.
    name : str, optional
        Of the query, for Spark's pages and the log.  By default its inputs.
    sinks, sink_backlog, give_up_after, metrics
        As in `Engine.run`, and in `Flow.open`: of each new epoch, in the driver; not on Spark Connect.

    Returns
    -------
    Stream
        Not started yet.

    Raises
    ------
    SpecError, SchemaMismatch, NotArrow, WrongMode
        For options that do not fit; a wrong input or column; no DataFrame; no stream, or ``close`` in epoch mode.

    Notes
    -----
    Runs nothing.  O(nodes of the plan).
    """
    check_trigger(trigger)
    place = check_address(state, outputs)
    frames = by_input(flow, frames)
    columns = _check_streams(flow, frames)
    checkpoint = checkpoint or _checkpoint(place)
    _check_close(flow, trigger, close)
    folder, then = (None, outputs) if callable(outputs) else (outputs, None)
    options = StateOptions(place, partitions, folder, memory, trust, part_cache, adopt, name, keep, checkpoint, metrics)
    feeder = Feeder(flow, columns, options, then, SinkOptions.of(sinks, give_up_after, sink_backlog))
    return Stream(feeder, frames, checkpoint, trigger, name, close)


def _check_streams(flow: Flow, frames: Mapping[str, DataFrame]) -> dict[str, tuple[str, ...]]:
    """Check the streams and return the declared columns of each, by input. Raises the errors of `stream`."""
    if not frames:
        raise SpecError("stream into a state", "no DataFrame is given", "give one for an input at least")
    return {input: checked(flow, input, frame, streaming=True) for input, frame in frames.items()}


def _check_close(flow: Flow, trigger: Mapping[str, Any] | None, close: bool) -> None:
    """Raise `WrongMode` or `SpecError` if times are to be closed at an end that there is not."""
    if close and not flow.holds_back:
        raise WrongMode(
            "stream with close=True",
            "the flow is in epoch mode, where every batch closes its own time",
            "leave close= out",
        )
    if close and not until_the_end(trigger):
        raise SpecError(
            "stream with close=True",
            f"trigger={trigger!r} has no end",
            "give trigger={'availableNow': True}, or leave close= out",
        )


def _checkpoint(state: str) -> str:
    """Where Spark's checkpoint goes by default: beside the state."""
    if "://" in state:
        raise SpecError(
            f"stream into {state}",
            "there is no place for Spark's checkpoint beside it",
            "give checkpoint=, a path that Spark can write to",
        )
    return f"{state.rstrip('/')}.checkpoint"


class Stream:
    """A query that is not started yet.  `stream` makes it."""

    def __init__(
        self,
        feeder: Feeder,
        frames: Mapping[str, DataFrame],
        checkpoint: str,
        trigger: Mapping[str, Any] | None,
        name: str | None,
        close: bool,
    ) -> None:
        self.feeder, self.frames, self.checkpoint = feeder, frames, checkpoint
        self.trigger, self.name, self.close = trigger, name, close

    def __repr__(self) -> str:
        return f"Stream({self.feeder}; not started: call .start())"

    def start(self) -> Query:
        """Open the state, and start the query.

        Returns
        -------
        Query
            Spark's ``StreamingQuery``, and ddflow's figures of it.

        Raises
        ------
        DdflowError
            What opening the state raises.
        Exception
            What Spark raises, such as for a span of time that it cannot read.
        """
        # Of this query alone: an earlier one may still be at its end.
        session, feeder = session_of(self.frames), copy(self.feeder)
        feeder.options = self.feeder.options  # with metrics=, which a copy for another process leaves out
        with on_failure(feeder.release):
            job = feeder.job(session)
            feeder.outlets(session)
            if context_of(session) is not None:
                feeder.pump(session)  # before the first batch: a sink may refuse
            packed = job.routed(self.frames)
            writer = packed.writeStream.foreachBatch(feeder).option("checkpointLocation", self.checkpoint)
            if self.trigger:
                writer = writer.trigger(**self.trigger)
            if self.name is not None:
                writer = writer.queryName(self.name)
            if context_of(session) is None:
                feeder.release()
            with settings(session, job.memory):  # a query keeps those that it was started with
                started = writer.start()
        feeder.fail = None if context_of(session) is None else partial(fail, session, started)
        return Query(started, feeder, session, self.close)


class Epochs:
    """The epochs of a query.  ``elsewhere``: whether another process commits them, as on Spark Connect."""

    def __init__(self, feeder: Feeder, elsewhere: bool) -> None:
        self._feeder, self._elsewhere = feeder, elsewhere

    def stats(self) -> QueryStats:
        """Return the last epochs that the query committed since it was started, oldest first, and the total.

        Where another process commits, as on Spark Connect, these are the epochs that the state keeps, of every writer.

        Returns
        -------
        QueryStats
            Rows, verdicts, updates, bytes and times.  It prints as a table.

        Raises
        ------
        StateRefused
            Where another process commits, if the state cannot be seen from here; then also what `QueryStats.read`
            raises.

        Notes
        -----
        O(e), for e kept epochs.
        """
        if not self._elsewhere:
            return self._feeder.account.stats()
        return QueryStats.read(self._feeder.options.state, self._feeder.options.trust)

    def __repr__(self) -> str:
        return f"the epochs of {self._feeder.options.state}: call .stats()" if self._elsewhere else str(self.stats())

    @property
    def sinks(self) -> dict[str, int]:
        """By output, the last epoch that its sink has, as far as this process knows."""
        return dict(self._feeder.at)

    @property
    def recent(self) -> tuple[EpochStats, ...]:
        """The epochs of `stats`, with its errors."""
        return tuple(self.stats())


class Query:
    """A running query: Spark's own ``StreamingQuery``, and ddflow's figures of it.

    `awaitTermination` and `processAllAvailable` raise the ddflow error that ended it.

    Attributes
    ----------
    ddflow : Epochs
        The figures of its epochs.
    """

    def __init__(self, started: Any, feeder: Feeder, session: Any, close: bool) -> None:
        self._query, self._feeder, self._session, self._close = started, feeder, session, close
        self._stopped = False
        self.ddflow = Epochs(feeder, elsewhere=context_of(session) is None)
        ACCOUNTS.put(str(started.id), self.ddflow if context_of(session) is None else feeder.account)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._query, name)

    def __repr__(self) -> str:
        return f"Query({self._feeder}; {self._query.id})"

    @property
    def name(self) -> str:
        """The query's name, or its inputs. Spark has no name then, because two queries may not share one."""
        return self._feeder.name

    def awaitTermination(self, timeout: int | None = None) -> bool | None:
        """Wait for the end of the query, and until its sinks have all epochs.

        With ``close=True``, all times are closed once it has ended by itself.

        Parameters
        ----------
        timeout : int, optional
            At most so many seconds.

        Returns
        -------
        bool or None
            With a ``timeout``, whether the query has ended, as Spark's own.

        Raises
        ------
        DdflowError
            What ended the query.
        """
        with self._as_own():
            ended: bool | None = self._query.awaitTermination(timeout)
        if ended is not False:
            try:
                if self._query.exception() is None:
                    self._finish()
            finally:
                self._feeder.release()
        return ended

    def _finish(self) -> None:
        """Close times that are to be closed, and wait for sinks, unless another process feeds them."""
        if self._close:
            self._close = False
            self._feeder.finish(self._session)
        if context_of(self._session) is not None and not self._stopped:
            self._feeder.drain(self._session)

    def processAllAvailable(self) -> None:
        """Wait until all that the inputs have now is committed.  Raises what ended the query."""
        with self._as_own():
            self._query.processAllAvailable()

    def exception(self) -> Exception | None:
        """Return the error that ended the query, or the sink error that will end it at its next trigger."""
        ended: Exception | None = self._query.exception()
        return self._feeder.failure if ended is None else ended

    @contextmanager
    def _as_own(self) -> Iterator[None]:
        """Raise the original error instead of the Spark error that ended the query."""
        try:
            with translated():
                yield
        except PySparkException as error:
            if self._feeder.failure is None:
                raise
            raise self._feeder.failure from error

    def stop(self) -> None:
        """Stop the query. Spark replays a running batch when a query continues. No time is closed.

        A sink gets its missing epochs when the query, or a run, continues.
        """
        self._close, self._stopped = False, True
        self._query.stop()
        self._feeder.release(acknowledge=True)
