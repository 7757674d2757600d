"""A stream: every micro-batch of Spark's becomes one epoch of a state, exactly once from source offset to output.

Invariant: the rows of a batch are in the state, and what they made of it in the outputs, once, whenever the query was
killed and however often Spark gives the batch again. `foreachBatch` promises at least once; so the state itself
remembers which query fed it up to which batch, a batch that is given again is compared by its rows and read from its
files, and one that cannot follow (another query's, a restarted numbering, a gap) stops the query. Rows are packed in
the streaming plan, before the batch, whose frame holds chunks only. What it does not do: choose what a batch is, that
is the input's and the trigger's.

>>> until_the_end({"availableNow": True}), until_the_end({"processingTime": "1 minute"}), until_the_end(None)
(True, False, False)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from copy import copy
from typing import Any, Final, Literal

from pyspark.sql import DataFrame

from ddflow.engine.flow import Flow
from ddflow.errors import SpecError, WrongMode
from ddflow.partitions.receipt import Committed
from ddflow.storage.closing import on_failure
from ddflow.storage.manifest import Feed
from ddflow.time import CLOSED
from spark_bridge.errors import noted, translated
from spark_bridge.job import KEEP, Job, StateOptions, check_address, checked, context_of, settings
from spark_bridge.monitoring import ACCOUNTS, Account, log
from spark_bridge.running import ran, session_of
from spark_bridge.stats import EpochStats, QueryStats
from spark_bridge.types import check_frames

Then = Callable[[Mapping[str, DataFrame], int], Any]
"""Is called with the outputs of an epoch and its number."""
_QUERY: Final = "sql.streaming.queryId"


def stream(
    flow: Flow,
    frames: Mapping[str, DataFrame],
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
    part_cache: str | int | None = "512MB",
    keep: int = KEEP,
) -> Stream:
    """Make a query that feeds streaming DataFrames into a state, one epoch a batch.  Call its `Stream.start`.

    ``frames``: by input; several are read side by side.  ``state``: a folder that driver and executors see, or
    ``s3://bucket/prefix``; it is made if it does not exist.  ``partitions``: of a new state, by default the number of
    cores, at most ``spark.sql.shuffle.partitions``; a state of another number is refused.  ``outputs``: a folder in
    which each epoch's updates appear as Parquet, or a function that is called with the outputs and the number of each
    epoch once it is committed, and again if the batch is given again or the end is reached again.  ``checkpoint``:
    Spark's, by default the state's folder with ``.checkpoint`` behind it.  ``trigger``: what ``writeStream.trigger``
    takes.  ``close``: whether the end of the input closes all times, in hold-back mode, with a trigger that has an end.
    ``adopt``: let this query continue a state that another one has fed.  ``memory``: what a task may take, such as
    "1GB".  ``name``: of the query, for Spark's pages and the log.  ``trust``: as in `Flow.open`.  ``part_cache``: how
    much of the state, such as "512MB", a worker may keep open between batches.  ``keep``: how many epochs can be
    replayed, and followed by other jobs.

    Runs nothing yet; O(the plan).

    Raises
    ------
    SpecError, SchemaMismatch, NotArrow, WrongMode
        For options that do not fit; columns that do not; no DataFrame; a DataFrame that is no stream, or ``close`` in
        epoch mode.
    """
    place = check_address(state, outputs)
    check_frames(flow, frames)
    if not frames:
        raise SpecError("stream into a state", "no DataFrame is given", "give one for an input at least")
    columns = {input: checked(flow, input, frame, streaming=True) for input, frame in frames.items()}
    if checkpoint is None:
        if "://" in place:
            raise SpecError(
                f"stream into {place}",
                "there is no place for Spark's checkpoint beside it",
                "give checkpoint=, a path that Spark can write to",
            )
        checkpoint = f"{place.rstrip('/')}.checkpoint"
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
    folder, then = (None, outputs) if callable(outputs) else (outputs, None)
    options = StateOptions(place, partitions, folder, memory, trust, part_cache, adopt, name, keep, checkpoint)
    return Stream(Feeder(flow, columns, options, then), frames, checkpoint, trigger, name, close)


def until_the_end(trigger: Mapping[str, Any] | None) -> bool:
    """Whether a query with this trigger ends by itself.  Pure."""
    return bool(trigger) and any((trigger or {}).get(each) for each in ("availableNow", "once"))


class Feeder:
    """What ``foreachBatch`` calls.  It travels to another process on Spark Connect, and opens the state there.

    ``account``: what this process committed."""

    def __init__(
        self, flow: Flow, columns: Mapping[str, tuple[str, ...]], options: StateOptions, then: Then | None
    ) -> None:
        self.flow, self.columns, self.options, self.then = flow, columns, options, then
        self.account = Account()
        self._job: Job | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_job": None, "account": Account()}

    def __call__(self, packed: DataFrame, batch: int) -> None:
        # Where it fails the query ends, and another one reads the state anew.
        with on_failure(self.release), noted():
            self._take(packed, int(batch))

    def _take(self, packed: DataFrame, batch: int) -> None:
        """A batch becomes an epoch, or is recognised as the one that it was."""
        session = packed.sparkSession
        context = context_of(session)
        feed = Feed("" if context is None else context.getLocalProperty(_QUERY) or "", batch)
        job = self.job(session)
        before = job.coordinator.committed(feed=feed, adopt=self.options.adopt)
        if before is not None:
            committed = job.again(session, packed, before)
        else:
            committed = job.epoch(session, packed, feed=feed)
        ACCOUNTS.put(feed.query, self.account)
        self._report(job, session, committed, feed.batch)

    def finish(self, session: Any) -> None:
        """Close all times that are open; or report again how they were closed, since the process that did it may have
        died before its report.  Raises as an epoch does."""
        job = self.job(session)
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
            committed = job.epoch(session, None, close=True)
        elif closing:
            committed = job.again(session, None, closing[-1])
        else:
            return
        self._report(job, session, committed, None)

    def _report(self, job: Job, session: Any, committed: Committed, number: int | None) -> None:
        """Report what was committed: to the account, the log and the caller's function."""
        batch = EpochStats.of(committed, number)
        self.account.add(batch)
        log(job.name, batch)
        if self.then is not None:
            self.then(ran(job, session, committed), committed.epoch)

    def job(self, session: Any) -> Job:
        """The state, opened if it is not.  Raises what `Job` raises."""
        if self._job is None:
            self._job = Job(self.flow, self.columns, self.options, session)
        return self._job

    def release(self) -> None:
        """Close the state; it is opened again when it is needed."""
        if self._job is not None:
            self._job.close()
            self._job = None


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
            What Spark raises, such as for a trigger that it does not know.
        """
        # Of this query alone: an earlier one may still be at its end.
        session, feeder = session_of(self.frames), copy(self.feeder)
        with on_failure(feeder.release):
            job = feeder.job(session)
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
        return Query(started, feeder, session, self.close)


class Epochs:
    """The epochs of a query.  ``elsewhere``: whether another process commits them, as on Spark Connect."""

    def __init__(self, feeder: Feeder, elsewhere: bool) -> None:
        self._feeder, self._elsewhere = feeder, elsewhere

    def stats(self) -> QueryStats:
        """The last epochs that the query committed since it was started, oldest first, and the total.

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

    @property
    def recent(self) -> tuple[EpochStats, ...]:
        """The epochs of `stats`.  Raises as that does."""
        return tuple(self.stats())


class Query:
    """A running query: Spark's own ``StreamingQuery``, and ddflow's figures of it.

    `awaitTermination` and `processAllAvailable` raise an error of ddflow's that ended it as that error.

    Attributes
    ----------
    ddflow : Epochs
        The figures of its epochs.
    """

    def __init__(self, started: Any, feeder: Feeder, session: Any, close: bool) -> None:
        self._query, self._feeder, self._session, self._close = started, feeder, session, close
        self.ddflow = Epochs(feeder, elsewhere=context_of(session) is None)
        ACCOUNTS.put(str(started.id), self.ddflow if context_of(session) is None else feeder.account)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._query, name)

    def awaitTermination(self, timeout: int | None = None) -> bool | None:
        """Wait for the end of the query.  With ``close=True``, all times are closed once it has ended by itself.

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
        with translated():
            ended: bool | None = self._query.awaitTermination(timeout)
        if ended is not False:
            try:
                if self._close and self._query.exception() is None:
                    self._close = False
                    self._feeder.finish(self._session)
            finally:
                self._feeder.release()
        return ended

    def processAllAvailable(self) -> None:
        """Wait until all that the inputs have now is committed.  Raises what ended the query."""
        with translated():
            self._query.processAllAvailable()

    def stop(self) -> None:
        """Stop the query.  Spark gives a running batch again when a query goes on.  No time is closed."""
        self._close = False
        self._query.stop()
        self._feeder.release()
