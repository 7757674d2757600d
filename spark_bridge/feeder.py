"""The feeder of a stream: what Spark calls with each micro-batch, and what makes an epoch of it.

Invariant: a batch becomes one epoch. Spark may give a batch again; the state knows which query fed it up to which
batch, so that batch is recognised, and its outputs are given again from the state's files. Sinks get an epoch after its
commit; what one could not take then it is given again and again, by a thread where no batch comes. One thread at a time
uses the state. On Spark Connect a feeder is pickled and travels to another process; there it opens the state anew.

>>> options = StateOptions("state", None, None, None, "owner", None)
>>> feeder = Feeder(Flow(), {}, options, None, SinkOptions.of({}, "10min"))
>>> [name for name, travels in feeder.__getstate__().items() if travels is None]
['then', 'fail', 'failure', '_job', '_outlets', '_lock', '_thread']
"""

from collections.abc import Callable, Mapping
from threading import RLock, Thread
from time import sleep
from typing import Any, Final

from pyspark.sql import DataFrame

from ddflow.engine.flow import Flow
from ddflow.engine.run.deliveries import NAP
from ddflow.partitions.receipt import Committed
from ddflow.storage.closing import on_failure
from ddflow.storage.manifest import Feed
from ddflow.time import CLOSED
from spark_bridge.delivering import Outlets, SinkOptions
from spark_bridge.errors import noted
from spark_bridge.job import Job
from spark_bridge.monitoring import ACCOUNTS, Account, report
from spark_bridge.ran import ran
from spark_bridge.session import context_of
from spark_bridge.state_options import StateOptions
from spark_bridge.stats import EpochStats

Then = Callable[[Mapping[str, DataFrame], int], Any]
"""Is called with the outputs of an epoch and its number."""
_QUERY: Final = "sql.streaming.queryId"


class Feeder:
    """The function of ``foreachBatch``.

    ``account``: the commits of this process. ``fail``: ends the query with an error, if the query is in this process.
    ``failure``: the sink error that ended it.
    """

    def __init__(
        self,
        flow: Flow,
        columns: Mapping[str, tuple[str, ...]],
        options: StateOptions,
        then: Then | None,
        sinks: SinkOptions,
    ) -> None:
        self.flow, self.columns, self.options, self.then, self.sinks = flow, columns, options, then, sinks
        self.account, self.at = Account(), dict[str, int]()
        self.fail: Callable[[Exception], Any] | None = None
        self.failure: Exception | None = None
        self._job: Job | None = None
        self._outlets: Outlets | None = None
        self._lock: Any = RLock()
        self._thread: Thread | None = None

    def __getstate__(self) -> dict[str, Any]:
        mine = dict.fromkeys(("fail", "_job", "_outlets", "_lock", "_thread"))
        options = self.options._replace(metrics=None)  # which takes figures in this process
        return {**self.__dict__, **mine, "account": Account(), "options": options}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._lock = RLock()

    @property
    def name(self) -> str:
        """The query's name, or its inputs."""
        return self.options.name or ", ".join(self.flow.inputs)

    def __repr__(self) -> str:
        return f"{self.name} into {self.options.state}"

    def __call__(self, packed: DataFrame, batch: int) -> None:
        # Where it fails the query ends, and another one reads the state anew.
        with self._lock, on_failure(self.release), noted():
            self._take(packed, int(batch))

    def _take(self, packed: DataFrame, batch: int) -> None:
        """Commit a batch as an epoch, or recognise it as a committed one."""
        session = packed.sparkSession
        context = context_of(session)
        query = "" if context is None else context.getLocalProperty(_QUERY) or ""
        feed = Feed(query, batch, tuple(sorted(self.columns)))
        job = self.job(session)
        if self.failure is not None:
            raise self.failure
        self.outlets(session).of.make_room()
        before = job.coordinator.committed(feed=feed, adopt=self.options.adopt)
        if before is not None:
            committed = job.again(session, packed, before)
        else:
            committed = job.epoch(session, packed, feed=feed)
        ACCOUNTS.put(feed.query, self.account)
        self._report(job, session, committed, feed.batch)

    def pump(self, session: Any) -> bool:
        """Write waiting epochs to the sinks and return whether nothing waits. A thread retries a sink that fails.

        Raises the error of a sink that is refused, or has failed for too long.
        """
        of = self.outlets(session).of
        drained = of.pump()
        self.at = of.at
        of.give_up()
        if not drained and self._thread is None:
            self._thread = Thread(target=self._again, args=(session,), name="ddflow sinks", daemon=True)
            self._thread.start()
        return drained

    def _again(self, session: Any) -> None:
        """Give sinks what waits, until nothing does, or the query ends."""
        while self.failure is None:
            sleep(NAP)
            with self._lock:  # in which another thread is begun, where this one has ended
                try:
                    if self._job is None or self.pump(session):
                        self._thread = None
                        return
                except Exception as error:
                    self.failure = error
        if self.fail is not None:
            self.fail(self.failure)

    def drain(self, session: Any) -> None:
        """Give sinks all that they lack, and say so in the state.  Raises what a sink raises."""
        if not self.sinks.sinks:
            return
        with self._lock:
            if self.failure is not None:
                raise self.failure
            outlets = self.outlets(session)
            outlets.drain()
            self.at = outlets.of.at

    def finish(self, session: Any) -> None:
        """Close all open times, or report again how they were closed. Raises the errors of an epoch.

        The second case follows a process that died after the close and before its report.
        """
        with self._lock:
            self._finish(session)

    def _finish(self, session: Any) -> None:
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
        batch = EpochStats.of(committed, number, job.flow.time_type)
        self.account.add(batch)
        try:
            self.pump(session)
        finally:
            lags = {} if self._outlets is None else self._outlets.of.lags()
            report(job.name, batch, self.options.metrics, lags)
        if self.then is not None:
            self.then(ran(job, session, committed, self.at), committed.epoch)

    def job(self, session: Any) -> Job:
        """Open the state if it is not open. Raises the errors of `Job`."""
        if self._job is None:
            self._job = Job(self.flow, self.columns, self.options, session)
        return self._job

    def outlets(self, session: Any) -> Outlets:
        """Open the sinks of the open state. Raises the errors of `Outlets`."""
        if self._outlets is None:
            self._outlets = Outlets(self.job(session), session, self.sinks)
        return self._outlets

    def release(self, acknowledge: bool = False) -> None:
        """Close the state; it is opened again when it is needed.  ``acknowledge``: say in it what sinks have."""
        with self._lock:
            if self._outlets is not None:
                self._outlets.close(acknowledge)
                self._outlets = None
            if self._job is not None:
                self._job.close()
                self._job = None
