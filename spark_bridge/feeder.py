"""The feeder of a stream: what Spark calls with each micro-batch, and what makes an epoch of it.

Invariant: a batch becomes one epoch. Spark may give a batch again; the state knows which query fed it up to which
batch, so that batch is recognised, and its outputs are given again from the state's files. On Spark Connect a feeder
is pickled and travels to another process; there it opens the state anew.

>>> feeder = Feeder(Flow(), {}, StateOptions("state", None, None, None, "owner", None), None)
>>> [name for name, travels in feeder.__getstate__().items() if travels is None]
['then', '_job']
"""

from collections.abc import Callable, Mapping
from typing import Any, Final

from pyspark.sql import DataFrame

from ddflow.engine.flow import Flow
from ddflow.partitions.receipt import Committed
from ddflow.storage.closing import on_failure
from ddflow.storage.manifest import Feed
from ddflow.time import CLOSED
from spark_bridge.errors import noted
from spark_bridge.job import Job, StateOptions, context_of
from spark_bridge.monitoring import ACCOUNTS, Account, log
from spark_bridge.running import ran
from spark_bridge.stats import EpochStats

Then = Callable[[Mapping[str, DataFrame], int], Any]
"""Is called with the outputs of an epoch and its number."""
_QUERY: Final = "sql.streaming.queryId"


class Feeder:
    """What ``foreachBatch`` calls.  ``account``: what this process committed."""

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
