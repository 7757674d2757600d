"""What became of a query's batches: kept in the process that commits, logged, and joined to Spark's own progress.

Invariant: the progress of a query that feeds a state carries the epoch that its batch became, by the query's id and the
batch's number; that of any other query is left alone. Spark sends progress late and from a thread of its own, when the
query may be further, or gone; so accounts are kept by id in the process that commits, for a while longer than the
queries. On Spark Connect, where another process commits, they are read from the state. It changes nothing, and no
query waits for it.

>>> from types import SimpleNamespace
>>> listener = Listener()
>>> listener.onQueryProgress(SimpleNamespace(progress=SimpleNamespace(id="somebody else's", batchId=3)))
>>> list(listener.recent)
[]
"""

import logging
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from threading import Event, Thread
from time import monotonic
from typing import Any, Final, NamedTuple
from uuid import uuid4

from pyspark.sql.streaming.listener import StreamingQueryListener

from ddflow.dataflow.budget import shown_size
from ddflow.metrics import Metrics, SinkLag, publish
from ddflow.terminal import Line
from spark_bridge.session import context_of
from spark_bridge.stats import NOTHING, EpochStats, QueryStats, summed

KEPT: Final = 100
"""How many of the last epochs of a query are kept."""
QUERIES: Final = 64
"""The number of queries whose accounts a process keeps for listeners."""
LOG: Final = logging.getLogger("ddflow.spark")
SILENT = 2.0
"""Seconds that jobs take before a terminal shows how they go, and between two looks at them."""
LOOK = 0.5
Callback = Callable[[Any], Any]
"""Is called with a ``StreamingQueryProgress`` that has ``ddflow`` too."""


class Listener(StreamingQueryListener):
    """A listener for ``spark.streams.addListener`` that adds ddflow's figures to Spark's progress.

    Parameters
    ----------
    callback : callable, optional
        Called with each progress of a query that feeds a state: Spark's ``StreamingQueryProgress`` with one more
        attribute, ``ddflow``: a `spark_bridge.stats.EpochStats`, or None where no epoch is known of it, as for a
        trigger that found no rows.  Spark logs what it raises.

    Attributes
    ----------
    recent : collections.deque
        The last ``RECENT`` of these progresses.
    """

    RECENT: Final = KEPT

    def __init__(self, callback: Callback | None = None) -> None:
        self.callback = callback
        self.recent: deque[Any] = deque(maxlen=self.RECENT)

    def onQueryProgress(self, event: Any) -> None:
        """Add the figures to a progress, keep it, and call back.

        Parameters
        ----------
        event : QueryProgressEvent
            Spark's.  A query that feeds no state is left alone.

        Notes
        -----
        O(e), for e kept epochs.
        """
        progress = event.progress
        account = ACCOUNTS.of(str(progress.id))
        if account is None:
            return
        found = [each for each in account.stats() if each.batch == progress.batchId]
        progress.ddflow = found[-1] if found else None
        self.recent.append(progress)
        if self.callback is not None:
            self.callback(progress)

    def onQueryStarted(self, event: Any) -> None:
        """Do nothing: a query that feeds a state is known by its first batch."""

    def onQueryTerminated(self, event: Any) -> None:
        """Do nothing: the query's last progress may be still to come."""


class Account:
    """A process's record of a query's epochs: the last `KEPT`, and the total. One thread adds, others may read."""

    def __init__(self) -> None:
        self._batches: deque[EpochStats] = deque(maxlen=KEPT)
        self._total, self._epochs = NOTHING, 0

    def add(self, batch: EpochStats) -> None:
        """Take in an epoch that is committed; one that was before counts in no total.  O(names)."""
        self._batches.append(batch)
        if not batch.replayed:
            self._total, self._epochs = summed((self._total, batch)), self._epochs + 1

    def stats(self) -> QueryStats:
        """Return a copy of the current record. O(batches)."""
        return QueryStats(self._batches.copy(), self._total, self._epochs)


class Accounts:
    """Accounts of queries by their ids: the last `QUERIES`.

    >>> accounts = Accounts()
    >>> accounts.put("a", Account())
    >>> accounts.of("a") is not None, accounts.of("b")
    (True, None)
    """

    def __init__(self) -> None:
        self._accounts: OrderedDict[str, Any] = OrderedDict()

    def put(self, query: str, account: Any) -> None:
        """Keep what has ``stats()`` of a query.  O(1).  A query without an id is left out."""
        if query:
            self._accounts.pop(query, None)
            self._accounts[query] = account
            while len(self._accounts) > QUERIES:
                self._accounts.popitem(last=False)

    def of(self, query: str) -> Any:
        """Return the account of a query, which has ``stats()``; None for an unknown query. O(1)."""
        return self._accounts.get(query)


ACCOUNTS: Final = Accounts()
"""Of this process."""


def report(name: str, batch: EpochStats, metrics: Metrics | None, sinks: Mapping[str, SinkLag]) -> None:
    """One line to the log ``ddflow.spark``, at INFO; the record's ``ddflow`` has it in Spark's words.  O(names).

    ``metrics``: takes the figures of an epoch that is new.  ``sinks``: what they lack.
    """
    if metrics is not None and not batch.replayed:
        publish([metrics], batch.call(sinks))
    if LOG.isEnabledFor(logging.INFO):
        LOG.info("%s: %s", name, batch, extra={"ddflow": {"name": name, **batch.progress()}})


class StageProgress(NamedTuple):
    """A stage of Spark's: its tasks, its finished tasks, and the rows or bytes that it read from a source."""

    tasks: int
    done: int
    rows: int
    nbytes: int = 0


def progress_text(what: str, stages: Iterable[StageProgress], seconds: float) -> str:
    """Return one line for a terminal.  Pure.

    >>> stages = [StageProgress(12, 12, 900_000), StageProgress(20, 3, 0), StageProgress(20, 0, 0)]
    >>> progress_text("ddflow orders: epoch 1", stages, 75.2)
    'ddflow orders: epoch 1; 1 of 3 stages, 15 of 52 tasks, 900,000 rows read, 75 s'
    >>> progress_text("ddflow orders: epoch 1", [], 75.2)
    'ddflow orders: epoch 1; 75 s'
    """
    known = list(stages)
    tasks, done, rows, nbytes = (sum(each[at] for each in known) for at in range(4))
    ended = sum(each.done >= each.tasks for each in known)
    parts = [f"{ended} of {len(known)} stages", f"{done:,} of {tasks:,} tasks"] if known else []
    parts += [f"{rows:,} rows read"] if rows else [f"{shown_size(nbytes)} read"] if nbytes else []
    return f"{what}; {', '.join([*parts, f'{seconds:,.0f} s'])}"


@contextmanager
def watching(session: Any, what: str) -> Iterator[None]:
    """Show how the jobs of a block go, on a terminal only, once they take longer than `SILENT`.

    It leaves the line to Spark if that shows its own.  On Spark Connect the server says what it knows.
    """
    line, began, ended = Line(True), monotonic(), Event()
    of_spark = context_of(session) is not None and session.conf.get("spark.ui.showConsoleProgress", "false") == "true"
    if not line.shows or of_spark:
        yield
        return

    def look(stages: Callable[[], list[StageProgress]]) -> None:
        last = False
        while not last:
            last = ended.wait(LOOK)
            if monotonic() - began >= SILENT:
                with suppress(Exception):  # of the session, which may be gone with the job
                    line.show(progress_text(what, stages(), monotonic() - began))

    with _stages(session) as stages:
        thread = Thread(target=look, args=(stages,), name="ddflow progress", daemon=True)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join(5)
            line.close()


@contextmanager
def _stages(session: Any) -> Iterator[Callable[[], list[StageProgress]]]:
    """Yield a function that lists the stages of the jobs that this thread runs in the block."""
    context, seen, tag = context_of(session), list[StageProgress](), f"ddflow-{uuid4().hex}"
    if context is None:

        def handle(stages: Any, inflight_tasks: int, operation_id: Any, done: bool) -> None:
            told = (StageProgress(each.num_tasks, each.num_completed_tasks, 0, each.num_bytes_read) for each in stages)
            seen[:] = list(told) or seen

        session.registerProgressHandler(handle)
        try:
            yield seen.copy
        finally:
            session.removeProgressHandler(handle)
        return
    spark = context._jsc.sc()

    def find_stages() -> list[StageProgress]:
        jobs = (spark.statusTracker().getJobInfo(each) for each in spark.statusTracker().getJobIdsForTag(tag))
        found = list[StageProgress]()
        for stage in sorted({stage for job in jobs if job.isDefined() for stage in job.get().stageIds()}):
            with suppress(Exception):  # of Spark, which forgets old ones
                of = spark.statusStore().lastStageAttempt(stage)
                if of.status().name() != "SKIPPED":  # its rows are those of a job before
                    found.append(StageProgress(of.numTasks(), of.numCompleteTasks(), of.inputRecords()))
        return found

    context.addJobTag(tag)
    try:
        yield find_stages
    finally:
        context.removeJobTag(tag)
