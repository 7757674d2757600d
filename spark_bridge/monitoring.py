"""Report the epochs of queries as a table, as a log line, as JSON, or inside Spark's progress events.

All reported epochs are committed. If an epoch is replayed, the list has a second entry for it, with a mark. The totals
include a replayed epoch only once. Times of the driver are wall-clock times. Times of tasks are sums over all tasks. A
`Listener` adds the figures to Spark's progress events. Progress events arrive late, so the committing process keeps a
record of each query. On Spark Connect the figures are read from the state. Limits: a query continues before its reports
are delivered. A listener ignores queries that feed no state.

>>> figures = {"rows of orders": 3, "bytes": 900, "take": 1500, "open": 0, "step": 400, "write": 2100, "hit": 2,
...            "miss": 0, "memory": 70}
>>> batch = EpochStats(6, 7, 8, {"orders": 3}, {"applied": 2, "noop": 1}, 0, {"by_city": 4}, 1100, figures, False)
>>> batch.progress()["numInputRows"], batch.progress()["durationMs"]["write"], batch.cached
(3, 2.1, (2, 2))
"""

from __future__ import annotations

import logging
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from threading import Event, Thread
from time import monotonic
from typing import Any, Final, NamedTuple
from uuid import uuid4

import pyarrow as pa
from pyspark.sql.streaming.listener import StreamingQueryListener

from ddflow.dataflow.result import PRINTED, Verdicts
from ddflow.metrics import CallMetrics, Metrics, SinkLag, publish_call_metrics
from ddflow.partitions.receipt import ROWS, EpochResult
from ddflow.plan.text.codec import read_time_type
from ddflow.storage.manifest import Epoch, load_newest_manifest
from ddflow.storage.opening import open_existing_store
from ddflow.terminal import StatusLine, escape_text, format_count, format_size, html_table, text_table
from ddflow.time import INT64, NEVER, format_time
from spark_bridge.session import get_spark_context

LINES: Final = 10
"""Number of epochs that a table shows."""
DRIVER: Final = {"begin": "driver_begin", "job": "driver_tasks", "commit": "driver_commit"}
"""The stages that the driver measures, with the names of their figures.

The stage ``job`` ends with the last receipt of a task.
"""
TASKS: Final = ("take", "open", "step", "write")
"""The stages that tasks measure: take rows from the shuffle, open partitions, run the step, and write files.

The times of all tasks are summed.
"""


class EpochStats(NamedTuple):
    """The figures of one committed epoch.

    - ``batch``: the number of the epoch's batch; None without a query.
    - ``rows``: the number of received rows, by input.
    - ``counts``: the number of events, by verdict.
    - ``pending``: the number of waiting events.
    - ``updates``: the number of updates by output, without empty outputs.
    - ``nbytes``: the bytes of all written files.
    - ``figures``: measured microseconds and bytes, by name.
    - ``replayed``: whether the epoch was committed before.
    - ``time_type``: the type of times, to format them.
    """

    batch: int | None
    epoch: int
    frontier: int
    rows: Mapping[str, int]
    counts: Mapping[str, int]
    pending: int
    updates: Mapping[str, int]
    nbytes: int
    figures: Mapping[str, int]
    replayed: bool
    time_type: pa.DataType = INT64

    @classmethod
    def from_commit(cls, done: EpochResult, batch: int | None, time_type: pa.DataType) -> EpochStats:
        """Build the figures of an epoch that this process committed. O(files)."""
        written = sum(blob.length for output in done.outputs.values() for blob in output.blobs)
        return cls(
            batch,
            done.epoch,
            done.frontier,
            done.rows,
            done.counts,
            done.figures.get("pending", 0),
            {name: output.rows for name, output in done.outputs.items()},
            done.figures.get("bytes", 0) + written,
            done.figures,
            done.replayed,
            time_type,
        )

    @classmethod
    def from_state(cls, epoch: Epoch, time_type: pa.DataType) -> EpochStats:
        """Build the figures of an epoch from a state.

        These figures do not include the times of the driver. O(files).
        """
        each = []
        for call in epoch.calls:
            rows = {name.removeprefix(ROWS): n for name, n in call.figures.items() if name.startswith(ROWS)}
            done = EpochResult(
                epoch.epoch, call.time, call.frontier, call.counts, rows, call.outputs, call.figures, False
            )
            each.append(cls.from_commit(done, epoch.batch, time_type))
        return sum_epoch_stats(each)

    @property
    def cached(self) -> tuple[int, int]:
        """Return two numbers: of partitions that were already open in a worker, and of all needed partitions."""
        hits, behind, misses = (self.figures.get(each, 0) for each in ("hit", "behind", "miss"))
        return hits, hits + behind + misses

    @property
    def stages(self) -> dict[str, int]:
        """Microseconds by stage, for the measured stages. O(1)."""
        names = DRIVER | {name: name for name in TASKS}
        return {stage: self.figures[name] for stage, name in names.items() if name in self.figures}

    def to_call_metrics(self, sinks: Mapping[str, SinkLag]) -> CallMetrics:
        """Convert the figures to the form that ``metrics=`` of `Flow.open` uses.

        ``sinks`` gives the lags of sinks. O(names).
        """
        seconds = {stage: micros / 1e6 for stage, micros in self.stages.items() if stage in DRIVER}
        return CallMetrics(
            "epoch",
            self.frontier,
            self.epoch,
            sum(seconds.values()),
            self.counts,
            self.pending,
            self.updates,
            self.rows,
            seconds.get("commit", 0.0),
            bytes={"all parts": self.figures["memory"]} if "memory" in self.figures else {},
            sinks=sinks,
        )

    def progress(self) -> dict[str, Any]:
        """Convert the figures to the names of Spark's ``StreamingQueryProgress``, for ``json.dumps``. O(names)."""
        hits, parts = self.cached
        return {
            "batchId": self.batch,
            "epoch": self.epoch,
            "replayed": self.replayed,
            "frontier": self.frontier,
            "numInputRows": sum(self.rows.values()),
            "sources": [{"description": name, "numInputRows": n} for name, n in self.rows.items()],
            "durationMs": {stage: micros / 1000 for stage, micros in self.stages.items()},
            "verdicts": dict(self.counts),
            "pending": self.pending,
            "numOutputRows": sum(self.updates.values()),
            "sinks": [{"description": name, "numOutputRows": n} for name, n in self.updates.items()],
            "bytesWritten": self.nbytes,
            "bytesMemory": self.figures.get("memory", 0),
            "partsCached": hits,
            "partsBehind": self.figures.get("behind", 0),
            "partsOpened": parts - hits - self.figures.get("behind", 0),
        }

    def __str__(self) -> str:
        """Return the figures as a log line."""
        batch = "" if self.batch is None else f"batchId {self.batch}: "
        rows, updates = _format_sum(self.rows), _format_sum(self.updates)
        stages = self.stages
        driver = ", ".join(f"{name} {stages[name] / 1000:,.0f}" for name in DRIVER if name in stages)
        tasks = ", ".join(f"{name} {stages[name] / 1000:,.0f}" for name in TASKS if name in stages)
        cached = f"{self.cached[0]} of {self.cached[1]} parts cached"
        return (
            f"{batch}epoch {self.epoch}{', committed before' if self.replayed else ''}; numInputRows {rows}; "
            f"{Verdicts.of(self.counts, self.pending)}; numOutputRows {updates}, {format_size(self.nbytes)}; "
            f"durationMs {driver or '-'} (tasks: {tasks or '-'}); {cached}"
        )


def sum_epoch_stats(batches: Iterable[EpochStats]) -> EpochStats:
    """Sum the figures of several epochs.

    The number, the frontier and the pending events are those of the last epoch. O(names).
    """
    total = NOTHING
    for each in batches:
        most = max(total.figures.get("memory", 0), each.figures.get("memory", 0))
        total = EpochStats(
            each.batch,
            each.epoch,
            each.frontier,
            _add_numbers(total.rows, each.rows),
            _add_numbers(total.counts, each.counts),
            each.pending,
            _add_numbers(total.updates, each.updates),
            total.nbytes + each.nbytes,
            _add_numbers(total.figures, each.figures) | {"memory": most},
            each.replayed,
            each.time_type,
        )
    return total


NOTHING: Final = EpochStats(None, 0, NEVER, {}, {}, 0, {}, 0, {}, False)


class QueryStats(tuple[EpochStats, ...]):
    """The last epochs of a query, with the oldest epoch first.

    ``total`` sums up all committed epochs, and ``epochs`` is their number.

    Printing it shows a table. It compares equal to a tuple with the same epochs.

    >>> figures = {"take": 1500, "open": 0, "step": 400, "write": 2100, "hit": 2}
    >>> batch = EpochStats(6, 7, 8, {"orders": 3}, {"applied": 2, "noop": 1}, 0, {"by_city": 4}, 1100, figures, False)
    >>> print(QueryStats([batch, batch._replace(replayed=True)], batch, 1))
    1 epoch, 3 rows in, 4 updates out, 1.1 KB written; frontier 8
    epoch    batch  rows in  applied  noop  by_city  written  take  open  step  write  cached
    7            6        3        2     1        4   1.1 KB     2     0     0      2     2/2
    7 again      6        3        2     1        4   1.1 KB     2     0     0      2     2/2
    total                 3        2     1        4   1.1 KB     2     0     0      2     2/2
    times in ms: take, open, step, write summed over tasks; cached: open parts of all needed parts
    """

    total: EpochStats
    epochs: int

    def __new__(cls, batches: Iterable[EpochStats], total: EpochStats, epochs: int) -> QueryStats:
        """Create the object from the arguments of the class. O(batches)."""
        made = super().__new__(cls, batches)
        made.total, made.epochs = total, epochs
        return made

    @classmethod
    def read(cls, state: str, trust: str = "owner") -> QueryStats:
        """Read the figures of the last epochs that a state keeps, whichever writer committed them.

        O(files of these epochs) time.

        ``trust``: see `Flow.open`. Raises `StateRefused`, `CorruptState`, and the errors of the store.
        """
        with open_existing_store(state, trust=trust) as store:
            manifest = load_newest_manifest(store)
        if manifest is None:
            return cls([], NOTHING, 0)
        kind = read_time_type(manifest.plan, state)
        batches = [EpochStats.from_state(epoch, kind) for epoch in manifest.receipts]
        return cls(batches, sum_epoch_stats(batches), len(batches))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and tuple.__eq__(self, tuple(other))

    def __hash__(self) -> int:
        return hash(tuple(each.epoch for each in self))

    def to_dict(self) -> dict[str, Any]:
        """Convert the stats to plain values with Spark's names, for ``json.dumps``. O(batches).

        The keys are ``recentProgress``, ``total`` and ``epochs``.
        """
        recent = [each.progress() for each in self]
        return {"recentProgress": recent, "total": self.total.progress(), "epochs": self.epochs}

    def __str__(self) -> str:
        return text_table(self._format_title(), self._build_table(), self._format_footer())

    __repr__ = __str__

    def _repr_html_(self) -> str:
        return html_table(self._format_title(), self._build_table(), self._format_footer())

    def _format_title(self) -> str:
        total = self.total
        return (
            f"{format_count(self.epochs, 'epoch')}, {sum(total.rows.values()):,} rows in, "
            f"{sum(total.updates.values()):,} updates out, {format_size(total.nbytes)} written; "
            f"frontier {format_time(total.frontier, total.time_type)}"
        )

    def _format_footer(self) -> list[str]:
        known = sum_epoch_stats(self).stages
        driver, tasks = ([name for name in names if name in known] for names in (DRIVER, TASKS))
        clock = [f"{', '.join(driver)} by the driver's clock"] if driver else []
        if tasks:
            clock.append(f"{', '.join(tasks)} summed over tasks")
        return [f"times in ms: {'; '.join([*clock, 'cached: open parts of all needed parts'])}"]

    def _build_table(self) -> list[list[str]]:
        """Build one row for each of the last epochs, and then a row with the total.

        Columns for verdicts and outputs are left out if they are empty.
        """
        last = self[-LINES:]
        all_of = sum_epoch_stats((*last, self.total))
        verdicts = [name for name in (*PRINTED, "absent") if all_of.counts.get(name)]
        waits = any(each.pending for each in last)
        outputs, stages = list(all_of.updates), [name for name in (*DRIVER, *TASKS) if name in all_of.stages]

        def format_row(label: str, batch: str, each: EpochStats) -> list[str]:
            times = (each.stages.get(name) for name in stages)
            return [
                label,
                batch,
                f"{sum(each.rows.values()):,}",
                *(f"{each.counts.get(name, 0):,}" for name in verdicts),
                *([f"{each.pending:,}"] if waits else []),
                *(f"{each.updates.get(name, 0):,}" for name in outputs),
                format_size(each.nbytes),
                *("" if micros is None else f"{micros / 1000:,.0f}" for micros in times),
                "/".join(map(str, each.cached)),
            ]

        head = [
            "epoch",
            "batch",
            "rows in",
            *verdicts,
            *(["pending"] if waits else []),
            *map(escape_text, outputs),
            "written",
            *stages,
            "cached",
        ]
        rows = [
            format_row(
                f"{each.epoch}{' again' if each.replayed else ''}", "" if each.batch is None else str(each.batch), each
            )
            for each in last
        ]
        return [head, *rows, format_row("total", "", self.total)]


def _format_sum(numbers: Mapping[str, int]) -> str:
    """Format a sum. If the sum has several parts, format the parts too."""
    parts = ", ".join(f"{escape_text(name)} {n:,}" for name, n in numbers.items())
    return f"{sum(numbers.values()):,}" + (f" ({parts})" if parts else "")


def _add_numbers(one: Mapping[str, int], other: Mapping[str, int]) -> dict[str, int]:
    return {name: one.get(name, 0) + other.get(name, 0) for name in {**one, **other}}


KEPT: Final = 100
"""Number of last epochs to keep for each query."""
QUERIES: Final = 64
"""Number of queries for which a process keeps records for listeners."""
LOG: Final = logging.getLogger("ddflow.spark")
SILENT = 2.0
"""Number of seconds after which a terminal shows the progress of jobs.

`LOOK` is the number of seconds between two updates.
"""
LOOK = 0.5
Callback = Callable[[Any], Any]
"""A function that receives a ``StreamingQueryProgress`` with the added attribute ``ddflow``."""


class Listener(StreamingQueryListener):
    """A listener for ``spark.streams.addListener`` that adds ddflow's figures to Spark's progress.

    Parameters
    ----------
    callback : callable, optional
        Called with each progress of a query that feeds a state: Spark's ``StreamingQueryProgress`` with one more
        attribute, ``ddflow``. This is a `spark_bridge.monitoring.EpochStats`, or None if no epoch is known, such as for
        a trigger that found no rows. Spark logs errors of the callback.

    Attributes
    ----------
    recent : collections.deque
        The last ``RECENT`` progresses of queries that feed a state.
    """

    RECENT: Final = KEPT

    def __init__(self, callback: Callback | None = None) -> None:
        self.callback = callback
        self.recent: deque[Any] = deque(maxlen=self.RECENT)

    def onQueryProgress(self, event: Any) -> None:
        """Add the figures to a progress, keep the progress, and call the callback.

        Parameters
        ----------
        event : QueryProgressEvent
            Spark's event. The listener ignores a query that feeds no state.

        Notes
        -----
        O(e) time, for e kept epochs.
        """
        progress = event.progress
        account = ACCOUNTS.get(str(progress.id))
        if account is None:
            return
        found = [each for each in account.stats() if each.batch == progress.batchId]
        progress.ddflow = found[-1] if found else None
        self.recent.append(progress)
        if self.callback is not None:
            self.callback(progress)

    def onQueryStarted(self, event: Any) -> None:
        """Ignore the event, because a query that feeds a state is registered by its first batch."""

    def onQueryTerminated(self, event: Any) -> None:
        """Ignore the event, because the last progress event of the query may arrive later."""


class QueryHistory:
    """The record of a query's epochs in this process: the last `KEPT` epochs, and the total.

    Only one thread may add epochs; other threads may read.
    """

    def __init__(self) -> None:
        self._batches: deque[EpochStats] = deque(maxlen=KEPT)
        self._total, self._epochs = NOTHING, 0

    def add_epoch(self, batch: EpochStats) -> None:
        """Add a committed epoch. A replayed epoch does not count in the total. O(names)."""
        self._batches.append(batch)
        if not batch.replayed:
            self._total, self._epochs = sum_epoch_stats((self._total, batch)), self._epochs + 1

    def stats(self) -> QueryStats:
        """Return a copy of the current record. O(batches)."""
        return QueryStats(self._batches.copy(), self._total, self._epochs)


class QueryHistories(OrderedDict[str, Any]):
    """The records of the last `QUERIES` queries by their ids. Each record has a method ``stats()``.

    >>> accounts = QueryHistories()
    >>> accounts.add_query("a", QueryHistory())
    >>> accounts.get("a") is not None, accounts.get("b")
    (True, None)
    """

    def add_query(self, query: str, account: Any) -> None:
        """Keep the record of a query. A query without an id is ignored. O(1)."""
        if query:
            self[query] = account
            self.move_to_end(query)
            while len(self) > QUERIES:
                self.popitem(last=False)


ACCOUNTS: Final = QueryHistories()
"""The records of the queries of this process."""


def report_epoch(name: str, batch: EpochStats, metrics: Metrics | None, sinks: Mapping[str, SinkLag]) -> None:
    """Report an epoch to the metrics, and to the logger ``ddflow.spark`` at the level INFO. O(names).

    The log record has an attribute ``ddflow`` with the figures under Spark's names. ``metrics``: the function that
    receives the figures of a new epoch. ``sinks``: the lags of sinks.
    """
    if metrics is not None and not batch.replayed:
        publish_call_metrics([metrics], batch.to_call_metrics(sinks))
    if LOG.isEnabledFor(logging.INFO):
        LOG.info("%s: %s", name, batch, extra={"ddflow": {"name": name, **batch.progress()}})


class StageProgress(NamedTuple):
    """A stage of Spark: the numbers of its tasks, of its finished tasks, and of rows or bytes read from a source."""

    tasks: int
    done: int
    rows: int
    nbytes: int = 0


def format_progress(what: str, stages: Iterable[StageProgress], seconds: float) -> str:
    """Format the progress of some stages as one line for a terminal. Pure.

    >>> stages = [StageProgress(12, 12, 900_000), StageProgress(20, 3, 0), StageProgress(20, 0, 0)]
    >>> format_progress("ddflow orders: epoch 1", stages, 75.2)
    'ddflow orders: epoch 1; 1 of 3 stages, 15 of 52 tasks, 900,000 rows read, 75 s'
    >>> format_progress("ddflow orders: epoch 1", [], 75.2)
    'ddflow orders: epoch 1; 75 s'
    """
    known = list(stages)
    tasks, done, rows, nbytes = (sum(each[at] for each in known) for at in range(4))
    ended = sum(each.done >= each.tasks for each in known)
    parts = [f"{ended} of {len(known)} stages", f"{done:,} of {tasks:,} tasks"] if known else []
    parts += [f"{rows:,} rows read"] if rows else [f"{format_size(nbytes)} read"] if nbytes else []
    return f"{what}; {', '.join([*parts, f'{seconds:,.0f} s'])}"


@contextmanager
def show_job_progress(session: Any, what: str) -> Iterator[None]:
    """Show on a terminal the progress of the jobs of a block, if they take longer than `SILENT` seconds.

    Nothing is shown if Spark shows its own progress. On Spark Connect the server reports the progress.
    """
    line, began, ended = StatusLine(True), monotonic(), Event()
    of_spark = (
        get_spark_context(session) is not None and session.conf.get("spark.ui.showConsoleProgress", "false") == "true"
    )
    if not line.shows or of_spark:
        yield
        return

    def show_progress(stages: Callable[[], list[StageProgress]]) -> None:
        last = False
        while not last:
            last = ended.wait(LOOK)
            if monotonic() - began >= SILENT:
                with suppress(Exception):  # the session may end with the job
                    line.show(format_progress(what, stages(), monotonic() - began))

    with _watch_stages(session) as stages:
        thread = Thread(target=show_progress, args=(stages,), name="ddflow progress", daemon=True)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join(5)
            line.close()


@contextmanager
def _watch_stages(session: Any) -> Iterator[Callable[[], list[StageProgress]]]:
    """Yield a function that lists the stages of those jobs that this thread started in the block."""
    context, seen, tag = get_spark_context(session), list[StageProgress](), f"ddflow-{uuid4().hex}"
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
            with suppress(Exception):  # Spark forgets old stages
                of = spark.statusStore().lastStageAttempt(stage)
                if of.status().name() != "SKIPPED":  # its rows belong to an earlier job
                    found.append(StageProgress(of.numTasks(), of.numCompleteTasks(), of.inputRecords()))
        return found

    context.addJobTag(tag)
    try:
        yield find_stages
    finally:
        context.removeJobTag(tag)
