"""Perform the calls of an engine. A committed call is replayed.

A new call is admitted, computed, and recorded for the next epoch. Guarantees: a call is complete only after it was
recorded for the commit. With `commit_every`, a timer commits all calls of a time span together. The thread of the timer
waits until the current call has ended. An error in a commit by the timer ends the engine.

>>> import ddflow as dd, pyarrow as pa
>>> flow = dd.Flow()
>>> _ = flow.output("people", flow.upserts("people", {"id": pa.int64()}, dd.Upsert(key="id")))
>>> with flow.open() as engine:
...     inflows = engine.calls.ingest_inputs(CallRequest("step", 7), {"people": pa.table({"id": [1]})})
...     inflows["people"].rows
1
"""

import os
import threading
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from logging import DEBUG
from time import monotonic, perf_counter
from typing import Any, Final

from ddflow.columns.hashing import RowHasher
from ddflow.connectors.error_location import format_file_names
from ddflow.dataflow.admission import InputValidator, Look
from ddflow.dataflow.call_guard import WHY, CallGuard
from ddflow.dataflow.dataflow import NO_LOOKS, Dataflow
from ddflow.dataflow.inflow import IngestedRows
from ddflow.dataflow.result import Step
from ddflow.engine.commits import CallRequest, EpochCommitter, RowsDigest
from ddflow.engine.stats import ArrangementFigures
from ddflow.errors import CommandFix, EngineClosed, ErrorText, Option, SpecError, TimeWentBack, WrongMode
from ddflow.metrics import LOG, CallMetrics, Metrics, publish_call_metrics
from ddflow.storage.address import mask_address
from ddflow.storage.feeding import EVENTS, FeedMode, record_feed_call
from ddflow.time import CLOSED, format_time, parse_seconds

CALL: Final = "call"
"""The value of `commit_every` that makes each call an epoch of its own."""


class CommitTimer:
    """The timer that commits several calls together.

    ``span``: the seconds that a call may wait for its commit; 0 to commit each call at once, None if only the caller
    commits. ``guard``: the guard of the engine's calls. ``epoch``: the last committed epoch.

    >>> [CommitTimer(every, CallGuard(), epoch=0).span for every in ("call", "50ms", None)]
    [0.0, 0.05, None]
    """

    def __init__(self, every: str | None, guard: CallGuard, epoch: int) -> None:
        self.span = None if every is None else 0.0 if every == CALL else parse_seconds(every, "commit_every=")
        self.epoch, self._guard, self._changed = epoch, guard, threading.Condition()
        self._timer: threading.Timer | None = None
        self._began, self._ended = 0.0, False

    def needs_commit(self, commit: Callable[[], int]) -> bool:
        """Return whether the caller must commit now.

        If no commit is due yet, start a timer that calls ``commit`` at the end of the span.
        """
        if not self.span:
            return self.span is not None
        now = monotonic()
        if self._timer is None:
            self._began = now
            self._timer = threading.Timer(self.span, self._commit_on_timer, (commit,))
            self._timer.name, self._timer.daemon = "ddflow-commit", True
            self._timer.start()
        return now - self._began >= self.span

    def wake_waiters(self, epoch: int, ended: bool = False) -> None:
        """Wake the threads that wait for an epoch. ``ended``: whether no further epoch will be committed."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        with self._changed:
            self.epoch, self._ended = epoch, self._ended or ended
            self._changed.notify_all()

    def _commit_on_timer(self, commit: Callable[[], int]) -> None:
        with self._guard.lock_for_background() as is_open:
            if self._timer is threading.current_thread():
                if is_open:
                    commit()
                else:
                    self.wake_waiters(self.epoch, ended=True)

    def wait_for_commit(self, epoch: int, timeout: float | None) -> int:
        """Wait until an epoch is committed, and return the epoch's number.

        Raises `SpecError`, `TimeoutError`, and the error of a failed commit.
        """
        if self.span is None and timeout is None and self.epoch < epoch and not self._ended:
            found = "this engine commits only on flush()"
            raise SpecError("wait for a commit", found, "call flush(), or open with commit_every='50ms'")
        with self._changed:
            done = self._changed.wait_for(lambda: self.epoch >= epoch or self._ended, timeout)
        if self.epoch >= epoch:
            return epoch
        if not done:
            raise TimeoutError(f"epoch {epoch} was not committed within {timeout:g} s")
        self._guard.untold = None
        if self._guard.failure is not None:
            raise self._guard.failure
        raise EngineClosed(
            f"wait for epoch {epoch}", WHY[self._guard.state], "open the state again, and repeat the call"
        )


class EngineCalls:
    """Performs and commits the calls of one engine.

    ``durable``: the committer that turns calls into epochs; None for a state in memory. ``metrics``: the receiver of
    the figures of each call.
    """

    def __init__(
        self,
        dataflow: Dataflow,
        durable: EpochCommitter | None,
        metrics: Metrics | None = None,
        every: str | None = CALL,
    ) -> None:
        self.dataflow, self.durable = dataflow, durable
        self.listeners: list[Metrics] = [] if metrics is None else [metrics]
        self.before_close: list[Callable[[], None]] = []
        self.timer = CommitTimer(every, dataflow.guard, self.epoch)
        if durable is not None:
            dataflow.taken = "interrupted"
        self.stopping = False
        """Whether the current run must end.

        If no run is active, the value tells whether the next run must end at once.
        """
        self.end_run: Callable[[], None] = lambda: None
        """The function that ends the current run early."""
        self.files: list[str] = []
        self.quiet = False
        """Whether no warning is given for missing columns.

        The value is True during a run, because rows of sources may lack columns.
        """
        self._warned: set[tuple[str, str]] = set()
        self.hashes: dict[str, RowHasher] = {}
        self.choose_row_hashes()

    def choose_row_hashes(self) -> None:
        """Set the row hasher of each input.

        The hashers compute digests of rows with the current columns of the inputs.
        """
        secret, admissions = self.dataflow.secret, self.dataflow.admissions
        self.hashes = {name: RowHasher(each.bound.unstamped_event_schema, secret) for name, each in admissions.items()}

    @property
    def epoch(self) -> int:
        """The number of the last committed epoch.

        The number is 0 before the first commit, and always 0 for state in memory.
        """
        return 0 if self.durable is None else self.durable.log.epoch

    def check_call_mode(self, what: str, holds_back: bool) -> None:
        """Raise `WrongMode` if a call does not fit the mode of the flow.

        ``holds_back``: whether the call needs hold-back mode.
        """
        if self.dataflow.holds_back == holds_back:
            return
        mode, why, instead = (
            ("epoch", "its inputs name no time column", "call step(inputs, time=...)")
            if holds_back
            else ("hold-back", "its inputs name a time column", "call push(inputs), then advance_to(frontier)")
        )
        raise WrongMode(what, f"the flow is in {mode} mode: {why}", instead)

    def perform_call(
        self,
        asked: CallRequest,
        epoch: int | None,
        inputs: Mapping[str, Any],
        compute: Callable[[dict[str, IngestedRows]], Step],
    ) -> Step:
        """Replay a committed call. For a new call, admit its rows, compute its step and record the call.

        Raises the errors of `find_committed_step`, `ingest_inputs`, ``compute`` and `record_call`.
        """
        dataflow = self.dataflow
        back = asked.time < dataflow.frontier and not dataflow.holds_back
        if back or epoch is not None or self.durable is not None:
            again = self.find_committed_step(asked, epoch, inputs)
            if again is not None:
                return again
        inflows = self.ingest_inputs(asked, inputs) if inputs or dataflow.budget.home is not None else {}
        for name in inputs:
            admission = dataflow.admissions[name]
            if len(admission.columns) < len(admission.bound.schema) and not self.quiet:
                # If delete events are possible, rows are allowed to lack all columns except the key columns.
                lacking = admission.missing_columns if admission.bound.spec.delete is None else ()
                self.warn_of_missing_columns(name, lacking, f"rows for {name!r}: they lack", "in all of them")
            if admission.format is not None and admission.unseen.is_searching:
                warn_of_unseen_columns(name, admission)
        return self.record_call(asked, compute(inflows), inflows)

    def find_committed_step(self, asked: CallRequest, epoch: int | None, inputs: Mapping[str, Any]) -> Step | None:
        """Return the step of a committed epoch. Return None for a new epoch.

        O(rows), because the digest of the rows is computed. Raises `TimeWentBack` if the epoch is new and its time is
        before the frontier. Raises `SpecError` if ``epoch`` is the number of a new epoch, but a timer makes the epochs
        or the state is in memory.
        """
        back = asked.time < self.dataflow.frontier and not self.dataflow.holds_back
        if self.durable is not None:
            if self.timer.span and self.durable.calls and (back or epoch is not None):
                self.flush()  # so that a replay does not depend on the timer
            again = self.durable.find_committed_step(asked, epoch, inputs, self.dataflow)
            if again is not None:
                return again
            if self.timer.span and epoch is not None:
                raise SpecError(
                    f"{asked} of epoch {epoch}",
                    "it is not committed, and with commit_every= a timer numbers the epochs",
                    ErrorText(
                        "omit ", Option("epoch"), ", or number epochs yourself with commit_every=None and flush()"
                    ),
                )
        elif epoch is not None:
            raise SpecError(
                f"{asked} of epoch {epoch}",
                "this engine's state is in memory and has no epochs",
                ErrorText("omit ", Option("epoch"), ", or open the flow with a state"),
            )
        if back:
            remedy = ErrorText("use a greater time for every step")
            if asked.kind == "replace":
                remedy += ErrorText(
                    "; replace({name: rows, ...}, ", Option("time"), "...) replaces several inputs at one time"
                )
            if self.durable is not None:
                remedy += ErrorText("; ", CommandFix("rollback"), " undoes an epoch whose time was wrong")
            found = f"the last step was at {format_time(self.dataflow.last, asked.time_type)}"
            raise TimeWentBack(f"cannot {asked}", found, remedy)
        return None

    def ingest_inputs(
        self, asked: CallRequest, inputs: Mapping[str, Any], looks: Mapping[str, Sequence[Look]] = NO_LOOKS
    ) -> dict[str, IngestedRows]:
        """Decode and admit the rows of each input.

        Store the digests of the rows and the names of their files for the next epoch. O(rows).

        ``looks``: for each input, the functions to call with all its rows.
        """
        dataflow, durable = self.dataflow, self.durable
        for name in inputs:
            dataflow.admissions[name].keeps_old_rows = asked.kind in ("replace", "restate")
        time = None if dataflow.holds_back else asked.time
        if durable is None or asked.kind == "advance_to":
            return dataflow.ingest_inputs(inputs, time, looks)
        digests, seen, paths = dict[str, RowsDigest](), dict[str, Sequence[Look]](), self.files
        for name, given in inputs.items():
            digests[name] = digest = RowsDigest(dataflow.secret, self.hashes[name])
            seen[name] = (*looks.get(name, ()), digest.update)
            if not self.files and isinstance(given, str | os.PathLike):
                paths = [*paths, os.fspath(given)]
        inflows = dataflow.ingest_inputs(inputs, time, seen)
        durable.came = asked, digests
        durable.origin = ""
        if paths:
            durable.origin = format_file_names([mask_address(each).encode(errors="replace").decode() for each in paths])
        return inflows

    def warn_of_missing_columns(self, name: str, lacking: Sequence[str], found: str, where: str) -> None:
        """Warn about missing columns.

        Warn only once for each column, because all steps of a stream may lack the same columns.
        """
        if fresh := [each for each in lacking if (name, each) not in self._warned]:
            self._warned |= {(name, each) for each in fresh}
            found = f"{found} the columns {fresh}, which are null {where}"
            warnings.warn(f"{found}; ddflow warns once for each column", stacklevel=4)

    @contextmanager
    def attribute_rows_to_files(self, files: Iterable[str]) -> Iterator[None]:
        """Record ``files`` as the origin of the rows of each call during the block."""
        self.files = list(dict.fromkeys(files))
        try:
            yield
        finally:
            self.files = []

    def flush(self) -> int:
        """Commit the calls since the last commit as one epoch and return its number. Like `Engine.flush`."""
        if self.durable is None:
            raise SpecError(
                "flush", "this engine's state is in memory", "open the flow with a state: flow.open('state/orders')"
            )
        try:
            epoch = self.durable.commit(self.dataflow)
        except BaseException as error:
            self.dataflow.guard.state, self.dataflow.guard.failure = "failed", error
            self.timer.wake_waiters(self.timer.epoch, ended=True)
            raise
        self.timer.wake_waiters(epoch)
        return epoch

    def commit_waiting_calls(self, asked: str) -> None:
        """Commit the calls that were recorded but not yet committed.

        Raises the errors of `flush`. Raises `SpecError` if uncommitted calls exist and the engine has no timer, because
        then only `flush` may commit.
        """
        if self.durable is None or not self.durable.calls:
            return
        if self.timer.span is None:
            found = f"{len(self.durable.calls):,} calls are not committed"
            raise SpecError(asked, found, "commit them first: engine.flush()")
        self.flush()

    def close(self) -> None:
        """Commit the calls that the timer would commit, and release all resources. Raises the errors of `flush`.

        If a background commit failed and no call has raised the error of this commit yet, raises this error.
        """
        for each in self.before_close:
            each()
        self.before_close = []
        guard, waiting = self.dataflow.guard, self.durable is not None and bool(self.durable.calls)
        try:
            if self.timer.span and waiting and guard.state == "open" and guard.is_owner_process:
                self.flush()
        finally:
            self.dataflow.close()
            if self.durable is not None:
                self.durable.close()
            self.timer.wake_waiters(self.timer.epoch, ended=True)
        if guard.untold is not None:
            untold, guard.untold = guard.untold, None
            raise untold

    def record_call(
        self, asked: CallRequest, step: Step, taken: Mapping[str, IngestedRows], way: FeedMode = EVENTS
    ) -> Step:
        """Record a call. Commit the call if a commit is due. ``taken``: the ingested rows of the call, by input."""
        began, dataflow = perf_counter(), self.dataflow
        epoch = 1 if self.durable is None else self.durable.log.manifest_log.manifest.epoch + 1
        if taken:
            dataflow.fed = record_feed_call(dataflow.fed, taken, way, epoch)
        if self.durable is not None:
            with self.dataflow.guard.commit:
                self.durable.record_call(asked, step)
                self.dataflow.guard.state = "open"
                step.waits = self.timer.wait_for_commit, epoch
                if self.timer.needs_commit(self.flush):
                    self.flush()
        if dataflow.before < dataflow.last:
            if dataflow.claimed < CLOSED or dataflow.recent.nbytes:
                dataflow.recent.add(dataflow.before, dataflow.last, step, dataflow.claimed)
            dataflow.before = dataflow.last
        if self.listeners or LOG.isEnabledFor(DEBUG):
            self._publish_call_metrics(asked, step, {name: each.rows for name, each in taken.items()}, began)
        return step

    def _publish_call_metrics(self, asked: CallRequest, step: Step, rows: Mapping[str, int], began: float) -> None:
        """Publish the metrics of a call. O(arrangements). ``began``: the time when recording the call began."""
        now, verdicts = perf_counter(), step.verdicts
        held = {name: ArrangementFigures.of(each) for name, each in self.dataflow.graph.arrangements.items()}
        publish_call_metrics(
            self.listeners,
            CallMetrics(
                asked.kind,
                asked.time,
                self.epoch,
                now - asked.began,
                verdicts.counts,
                verdicts.pending,
                {name: table.num_rows for name, table in step.items()},
                rows,
                0.0 if self.durable is None else now - began,
                {name: each.keys for name, each in held.items()},
                {name: each.bytes_resident + each.bytes_mapped for name, each in held.items()},
                {name: each.owed for name, each in held.items()},
                at="" if asked.kind == "push" else format_time(asked.time, asked.time_type),
            ),
        )


def warn_of_unseen_columns(name: str, admission: InputValidator) -> None:
    """Warn once if no message of an input contained the table's name, or if no message contained a declared column."""
    for found in admission.unseen.pop_warnings():
        warnings.warn(f"messages for {name!r}: {found}", stacklevel=4)
