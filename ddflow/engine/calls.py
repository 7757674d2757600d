"""Perform the calls of an engine: replay a committed call, or admit, compute and record a new one for the next epoch.

Guarantees: a call counts as made when it is recorded for the commit. With `commit_every`, a timer commits calls
together after a span of time. Its thread waits for a call in progress, and an error in it ends the engine.

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
from ddflow.connectors.error_location import format_file_names, is_path
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
"""The value of `commit_every` that makes every call an epoch."""


class CommitTimer:
    """The timer of group commits.

    ``span``: seconds that a call may wait for its commit, 0 for none, None if only the caller commits. ``guard``: the
    guard of the engine's calls. ``epoch``: the last committed epoch.

    >>> [CommitTimer(every, CallGuard(), epoch=0).span for every in ("call", "50ms", None)]
    [0.0, 0.05, None]
    """

    def __init__(self, every: str | None, guard: CallGuard, epoch: int) -> None:
        self.span = None if every is None else 0.0 if every == CALL else parse_seconds(every, "commit_every=")
        self.epoch, self._guard, self._changed = epoch, guard, threading.Condition()
        self._timer: threading.Timer | None = None
        self._began, self._ended = 0.0, False

    def needs_commit(self, commit: Callable[[], int]) -> bool:
        """Whether a call must be committed now. Otherwise a timer calls ``commit`` when the span ends."""
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
        """Wake the threads that wait for an epoch, because it is committed or, with ``ended``, never will be."""
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
        """Wait until an epoch is committed and return its number.

        Raises the error of its commit, `SpecError` and `TimeoutError`.
        """
        if self.span is None and timeout is None and self.epoch < epoch and not self._ended:
            found = "this engine commits when it is asked to"
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
        raise EngineClosed(f"wait for epoch {epoch}", WHY[self._guard.state], "open the state again, and give it again")


class EngineCalls:
    """The calls of one engine.

    ``durable``: commits calls as epochs, None for a state in memory. ``metrics``: gets the figures of each call.
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
        """Whether the current run, or else the next one, must end."""
        self.end_run: Callable[[], None] = lambda: None
        """Tells the current run to end."""
        self.files: list[str] = []
        self.quiet = False
        """Whether missing columns cause no warning, because the rows of sources may lack some."""
        self._warned: set[tuple[str, str]] = set()
        self.hashes: dict[str, RowHasher] = {}
        self.choose_row_hashes()

    def choose_row_hashes(self) -> None:
        """Choose how rows of the inputs are hashed for digests, by their columns."""
        secret, admissions = self.dataflow.secret, self.dataflow.admissions
        self.hashes = {name: RowHasher(each.bound.event_schema, secret) for name, each in admissions.items()}

    @property
    def epoch(self) -> int:
        """The last committed epoch; 0 before the first, and for state in memory."""
        return 0 if self.durable is None else self.durable.log.epoch

    def check_call_mode(self, what: str, holds_back: bool) -> None:
        """Raise `WrongMode` for a call that belongs to the other mode."""
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
        """Replay a committed call, or admit the rows of a new one, compute it and record it.

        Raises the errors of `find_committed_step`, `ingest_inputs`, ``compute`` and `record_call`.
        """
        if (again := self.find_committed_step(asked, epoch, inputs)) is not None:
            return again
        inflows = self.ingest_inputs(asked, inputs)
        for name in inputs:
            admission = self.dataflow.admissions[name]
            if len(admission.columns) < len(admission.bound.schema) and not self.quiet:
                # A delete event needs only its key.
                lacking = admission.missing_columns if admission.bound.spec.delete is None else ()
                self.warn_of_missing_columns(name, lacking, f"rows for {name!r}: they lack", "in all of them")
            if admission.unseen.is_searching:
                warn_of_unseen_columns(name, admission)
        return self.record_call(asked, compute(inflows), inflows)

    def find_committed_step(self, asked: CallRequest, epoch: int | None, inputs: Mapping[str, Any]) -> Step | None:
        """Return the step of a committed epoch; None for a new one. O(rows) for their digest.

        Raises `TimeWentBack` for a new epoch with a time before the frontier. Raises `SpecError` for a new epoch with a
        number, if the timer makes epochs or the state is in memory.
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
                    "it is not committed, and commit_every= makes epochs by the clock",
                    ErrorText(
                        "leave ", Option("epoch"), " out, or number epochs yourself: commit_every=None and flush()"
                    ),
                )
        elif epoch is not None:
            raise SpecError(
                f"{asked} of epoch {epoch}",
                "this engine's state is in memory and has no epochs",
                ErrorText("leave ", Option("epoch"), " out, or open the flow with a state"),
            )
        if back:
            remedy = ErrorText("give every step a greater time")
            if asked.kind == "replace":
                remedy += ErrorText(
                    "; replace({name: rows, ...}, ", Option("time"), "...) takes several inputs at one time"
                )
            if self.durable is not None:
                remedy += ErrorText("; ", CommandFix("rollback"), " takes back an epoch whose time was wrong")
            found = f"the last step was at {format_time(self.dataflow.last, asked.time_type)}"
            raise TimeWentBack(f"cannot {asked}", found, remedy)
        return None

    def ingest_inputs(
        self, asked: CallRequest, inputs: Mapping[str, Any], looks: Mapping[str, Sequence[Look]] = NO_LOOKS
    ) -> dict[str, IngestedRows]:
        """Admit the rows of each input, and keep their digests and their files for the next epoch. O(rows).

        ``looks``: by input, functions that get all its rows.
        """
        dataflow, durable = self.dataflow, self.durable
        time = None if dataflow.holds_back else asked.time
        if durable is None or asked.kind == "advance_to":
            return dataflow.ingest_inputs(inputs, time, looks)
        digests = {name: RowsDigest(dataflow.secret, self.hashes[name]) for name in inputs}
        seen = {name: (*looks.get(name, ()), digest.update) for name, digest in digests.items()}
        inflows = dataflow.ingest_inputs(inputs, time, seen)
        paths = self.files or [os.fspath(each) for each in inputs.values() if is_path(each)]
        durable.came = asked, digests
        durable.origin = ""
        if paths:
            durable.origin = format_file_names([mask_address(each).encode(errors="replace").decode() for each in paths])
        return inflows

    def warn_of_missing_columns(self, name: str, lacking: Sequence[str], found: str, where: str) -> None:
        """Warn of missing columns, once for each, because a stream of small steps lacks them every time."""
        if fresh := [each for each in lacking if (name, each) not in self._warned]:
            self._warned |= {(name, each) for each in fresh}
            found = f"{found} the columns {fresh}, which are null {where}"
            warnings.warn(f"{found}; later ones that lack the same are not named", stacklevel=4)

    @contextmanager
    def attribute_rows_to_files(self, files: Iterable[str]) -> Iterator[None]:
        """Attribute the rows of calls in this block to these files."""
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
            with self.dataflow.guard.commit:
                self.durable.commit(self.dataflow)
        finally:
            failed = self.dataflow.guard.state != "open"
            self.timer.wake_waiters(self.timer.epoch if failed else self.epoch, ended=failed)
        return self.epoch

    def commit_waiting_calls(self, asked: str) -> None:
        """Commit the calls that wait for their span to end.

        Raises the errors of `flush`, and `SpecError` for calls that wait for a flush.
        """
        if self.durable is None or not self.durable.calls:
            return
        if self.timer.span is None:
            found = f"{len(self.durable.calls):,} calls are not committed"
            raise SpecError(asked, found, "commit them first: engine.flush()")
        self.flush()

    def close(self) -> None:
        """Commit the waiting calls and release everything. Raises the errors of `flush`.

        Also raises the error of a background commit that no call has raised yet.
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
        """Record a call whose rows were ``taken``, by input, and commit it if a commit is due."""
        epoch, began, dataflow = self.epoch + 1, perf_counter(), self.dataflow
        self.dataflow.fed = record_feed_call(self.dataflow.fed, taken, way, epoch)
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
        """Publish the figures of a call. O(arrangements). ``began``: when its recording began."""
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
    """Warn once of a table and of declared columns that no message of an input has had."""
    for found in admission.unseen.pop_warnings():
        warnings.warn(f"messages for {name!r}: {found}", stacklevel=4)
