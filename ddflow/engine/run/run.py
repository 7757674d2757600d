"""Run an engine: follow its sources, commit epochs with the positions of the sources, and deliver the epochs to sinks.

A run retries a failing source or sink with growing pauses, while the other sources and sinks continue. `Engine.stop`
ends the run after the current epoch. On the main thread, the first SIGTERM or SIGINT ends the run like `Engine.stop`.
If a write to a sink is still running some seconds after `stop` or the signal, the write is cancelled if possible.

Guarantees: rows of an epoch and the source positions after these rows are in one commit. A sink gets an epoch after its
commit. So after any crash, a source resumes at its committed position, and a sink resumes after the last epoch in its
target. Limits: a failure outside sources and sinks ends the engine if it happens while there are uncommitted calls.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from time import monotonic, sleep
from typing import Any, Final, Literal

import pyarrow as pa

from ddflow.connectors.api import Source, TableSink
from ddflow.connectors.error_location import add_file_to_errors
from ddflow.dataflow.result import Step
from ddflow.engine.calls import CommitTimer
from ddflow.engine.evolve import evolve_engine
from ddflow.engine.full_contents import list_order_columns
from ddflow.engine.replace import check_time_is_numeric
from ddflow.engine.run.delivery import NAP, Deliveries, Delivery, warn_of_missing_sinks
from ddflow.engine.run.kept_epochs import EngineEpochs
from ddflow.engine.run.options import (
    RunLoopEngine,
    RunOptions,
    StepClock,
    check_sources,
    compute_input_lateness,
)
from ddflow.engine.run.report import RunDone, RunReport
from ddflow.engine.run.retry import LASTS
from ddflow.engine.run.signals import call_on_signal, call_repeatedly
from ddflow.engine.run.source_reader import CallRows, SourceReader, describe_new_columns, find_source_record
from ddflow.errors import DdflowError, ErrorText, Option, SchemaMismatch
from ddflow.errors.base import set_error_input, set_error_state
from ddflow.metrics import LOG
from ddflow.time import NEVER

GRACE: Final = (2.0, 7.0)
"""The seconds from a signal until requests to sources are cancelled, and until writes to sinks are cancelled.

The run ends about 3 s after the second limit, because a server may not notice that its request was cancelled.
"""
MANY: Final = 1 << 17
"""If a step has at least this number of rows, the status line announces the step before it begins."""


class RunLoop:
    """A run of an ``engine``. ``shows``: whether to show a status line on the terminal.

    >>> import ddflow as dd, pathlib, tempfile
    >>> flow = dd.Flow()
    >>> people = flow.upserts("people", {"id": int, "city": str}, dd.Upsert(key="id"))
    >>> _ = flow.output("by_city", people.project(["city"]).count())
    >>> with tempfile.TemporaryDirectory() as place, flow.open(f"{place}/state") as engine:
    ...     _ = (pathlib.Path(place) / "1.csv").write_text("id,city\\n1,Bern\\n2,Bern\\n")
    ...     done = engine.run({"people": dd.sources.files(f"{place}/*.csv")})
    ...     done.epochs, done.rows, done.stopped, engine.read("by_city").to_pylist()
    (1, 2, 'end', [{'city': 'Bern', 'count': 2, '_diff': 1}])
    """

    def __init__(
        self,
        engine: RunLoopEngine,
        sources: Mapping[str, Source],
        sinks: Mapping[str, TableSink],
        how: RunOptions,
        shows: bool,
        on_epoch: Callable[[Step], object] | None = None,
    ) -> None:
        self.engine, self.calls, self.dataflow, self.how = engine, engine.calls, engine.calls.dataflow, how
        self.done, self._began = RunDone(), monotonic()
        self.log = None if self.calls.durable is None else self.calls.durable.log
        plan = self.dataflow.flow
        check_sources(plan, sources)
        how.check_clock(plan)
        self.clock = StepClock(self.dataflow, how)
        if sources and not (plan.holds_back or self.clock.ticks):
            remedy = ErrorText(
                "ingest the rows yourself, by step or replace with ",
                Option("time"),
                ", or run a state whose steps are numbered",
            )
            check_time_is_numeric(self.calls, "run with sources, whose steps are numbered", remedy)
        self.readers = [self._make_reader(name, source) for name, source in sources.items()]
        self.late = compute_input_lateness(plan, how)
        each = {name: Delivery(EngineEpochs(self.calls, f"the sink of {name!r}"), name, s) for name, s in sinks.items()}
        self.outlets = Deliveries(each, how.backlog_bytes, how.retry_seconds)
        if self.log is not None:
            warn_of_missing_sinks(self.log.sinks, sinks, self.log.manifest_log.store.where)
        self.report = RunReport(self.calls, self.readers, self.outlets, shows)
        for name, delivery in each.items():
            delivery.look = self.report.make_write_observer(name)
        self._stop: Literal["signal", "stop", "time"] | None = None
        self._on_epoch, self._steps = on_epoch, list[Step]()
        """The function to call after each commit, and the current epoch's steps, which the function gets."""
        self._called = 0
        """The number of calls made to the engine so far."""
        self._evolved = False
        """Whether the next commit publishes new columns of an input."""

    def _make_reader(self, name: str, source: Source) -> SourceReader:
        known = self.dataflow.admissions
        before, new = None, dict[str, list[str]]()
        if self.log is not None:
            new = self.log.change.columns
            before = find_source_record(self.log.sources, name, source, known, self.log.manifest_log.store.where)
        return SourceReader(name, source, {each: known[each].bound for each in source.inputs(name)}, before, new)

    def run(self) -> RunDone:
        """Run until all sources have ended, until `stop` or a signal, or until the ``until`` time."""
        began, ends = monotonic(), self.how.compute_seconds_left()
        self._began = began
        with ExitStack() as stack:
            stack.enter_context(self.dataflow.guard.lock_for_run())
            stack.enter_context(self._defer_commits())
            cancels = zip((self._cancel_sources, self.outlets.cancel_writes), GRACE, strict=True)
            cancel = [stack.enter_context(call_repeatedly(*each)) for each in cancels]
            stack.enter_context(call_repeatedly(self._log_long_calls, LASTS / 6, LASTS / 6))()
            stack.enter_context(self._accept_stop_requests(cancel))
            stack.enter_context(call_on_signal(lambda number: self._end_run("signal", cancel)))
            for close in (*(each.close for each in self.readers), self.outlets.close):
                stack.callback(close)
            stack.callback(self.report.line.close)
            self.outlets.deliver_waiting_epochs()  # before the first epoch, because a sink may refuse its table
            while True:
                if ends is not None and monotonic() - began >= ends:
                    self._stop = self._stop or "time"
                full = self.outlets.is_backlog_full()
                if not full:
                    self._gather_rows(began, ends)
                    self._commit_epoch()
                    self._add_new_columns()
                self.report.show_status(
                    self._find_frontier_holder()
                )  # before the delivery to sinks, which may take long
                # Deliver new columns only after their commit, because the state may still lose them.
                drained = not self._evolved and self.outlets.deliver_waiting_epochs()
                self.report.show_status(self._find_frontier_holder())
                self._give_up_if_overdue()
                over = all(each.state == "ended" and not each.has_uncommitted_polls for each in self.readers)
                if self._stop is not None or (over and drained and (self.readers or not self.how.clock)):
                    break
                if full or over:
                    sleep(NAP)
            self._publish_connector_positions()
            self.report.publish_lags()
            self.done.behind = {each.name: each.measure_lag().seconds for each in self.readers}
        self.done.stopped, self.done.seconds = self._stop or "end", monotonic() - began
        self.done.sinks = self.outlets.delivered_epochs
        return self.done

    @contextmanager
    def _defer_commits(self) -> Iterator[None]:
        """Turn off the engine's commit timer during the block, so that the run decides when to commit."""
        self.calls.commit_waiting_calls("run")
        timer, guard = self.calls.timer, self.dataflow.guard
        if self.calls.durable is not None:
            self.calls.timer = CommitTimer(None, guard, self.calls.epoch)
        try:
            yield
        except BaseException as error:
            if self.calls.durable is not None and self.calls.durable.calls and guard.state == "open":
                guard.state, guard.failure = "failed", error  # the positions of these calls would be lost
            raise
        finally:
            timer.wake_waiters(self.calls.epoch)
            self.calls.timer = timer

    @contextmanager
    def _add_context_to_errors(self, reader: SourceReader) -> Iterator[None]:
        """Add the state, and the input if the flow has several inputs, to the commands that an error suggests."""
        try:
            yield
        except DdflowError as error:
            if self.log is not None and not self.log.manifest_log.manifest.number:
                set_error_state(error, None)
            elif self.log is not None:
                several = reader.bounds if len(self.dataflow.admissions) > 1 else ()
                name = next((name for name in several if len(several) == 1 or repr(name) in error.asked), "")
                fixed = {
                    each
                    for bound in reader.bounds.values()
                    for each in bound.fixed_type_columns
                    if name in ("", bound.name)
                }
                set_error_state(set_error_input(error, name, bool(name)), self.log.manifest_log.store.where, fixed)
            raise

    @contextmanager
    def _accept_stop_requests(self, cancel: Sequence[Callable[[], None]]) -> Iterator[None]:
        """Let `Engine.stop` end the run, even if `stop` was called before the run began."""
        self.calls.end_run = lambda: self._end_run("stop", cancel)
        try:
            if self.calls.stopping:
                self.calls.end_run()
            yield
        finally:
            self.calls.end_run, self.calls.stopping = lambda: None, False

    def _end_run(self, why: Literal["signal", "stop"], cancel: Sequence[Callable[[], None]]) -> None:
        """End the run after its current epoch."""
        if self._stop not in ("signal", "stop"):
            self._stop = why
            with suppress(RuntimeError):  # already cancelled
                for each in cancel:
                    each()

    def _cancel_sources(self) -> None:
        """Cancel requests to sources that take too long. The next run reads the rows of these requests."""
        for each in self.readers:
            each.retry.cancel_call()

    def _log_long_calls(self) -> None:
        """Log each source that has not answered for a long time."""
        for each in self.readers:
            each.retry.log_long_call()

    def _gather_rows(self, began: float, ends: float | None) -> None:
        """Gather rows for an interval or up to a limit.

        Continue after the limit until each source is at a position where an epoch may end.
        """
        start, size, rows = monotonic(), 0, 0
        until = start + min(self.how.interval_seconds, self.how.clock_seconds if self.clock.ticks else LASTS)
        while True:
            now = monotonic()
            full = size >= self.how.max_epoch_bytes or rows >= (self.how.rows or 1 << 62)
            over = full or self._stop is not None or now >= until or any(each.new_columns for each in self.readers)
            # A first copy can run for hours before it reaches a position where an epoch may end. After a stop or a
            # signal, the rows of an unfinished first copy are dropped. The next run reads these rows again.
            finishes = self._stop not in ("signal", "stop")
            polled = [each for each in self.readers if not over or (each.has_unfinished_rows and finishes)]
            if not polled:
                return
            came = False
            for each in polled:
                if rows or each.state == "closed":
                    self.report.show_progress(f"reading {each.name}", rows, start)
                with self._add_context_to_errors(each):
                    found = each.poll(max(self.how.max_epoch_bytes - size, 1 << 16))
                if found is not None:
                    batches = [batch for given in found.rows.values() for batch in given]
                    size, rows = size + sum(b.nbytes for b in batches), rows + sum(b.num_rows for b in batches)
                    came = True
            if all(each.state in ("ended", "waiting") for each in self.readers):
                return
            self.report.show_status(self._find_frontier_holder())
            if not came:
                if ends is not None and now - began >= ends:
                    self._stop = self._stop or "time"
                sleep(NAP)
                if self.outlets.has_waiting_epochs and not any(each.has_uncommitted_polls for each in self.readers):
                    return

    def _commit_epoch(self) -> None:
        """Ingest the gathered rows. Commit these rows together with the positions of their sources."""
        moved, calls, began = [each for each in self.readers if each.has_uncommitted_polls], self._called, monotonic()
        rows, updates = self.done.rows, self.done.updates
        for reader in moved:
            with self._add_context_to_errors(reader):
                self._feed_source_rows(reader)
        advanced = self._advance_frontier()
        if self.dataflow.owed:  # existing rows of new outputs must not wait for input
            call = (
                self.engine.push
                if self.dataflow.holds_back
                else partial(self.engine.step, time=self.clock.choose_time())
            )
            self._record_step(call({}), ())
        elif not moved and not advanced:
            if (now := self.clock.find_due_time()) is None:
                return
            self._record_step(self.engine.step({}, now), ())
        for reader in moved:
            self.dataflow.sources[reader.name] = reader.make_record()
        if self.log is not None:
            self._flush()
            self._publish_connector_positions()  # positions without rows are not in an epoch
        for reader in moved:
            reader.acknowledge_commit()
        if self._evolved:
            self._evolved = False
            for delivery in self.outlets.each.values():
                delivery.update_table_shape()
        if self._called == calls:
            self.done.moved += 1
            LOG.info("epoch %d: no rows, only positions of %s moved", self.calls.epoch, [each.name for each in moved])
            return
        self.done.epochs += 1
        self.report.log_epoch(moved, self.done.rows - rows, self.done.updates - updates, monotonic() - began)
        steps, self._steps = self._steps, []
        if self._on_epoch is not None:
            self._on_epoch(Step.join(steps))
            if self.calls.durable is not None and self.calls.durable.calls:  # `on_epoch` made calls
                self._flush()

    def _flush(self) -> None:
        """Commit all calls since the last commit as one epoch."""
        with self.dataflow.guard.lock_for_write("run"):
            self.calls.flush()

    def _add_new_columns(self) -> None:
        """Add the new columns of sources to the plan, after the earlier rows of these sources were committed.

        Raises `SchemaMismatch`.
        """
        news = {name: columns for reader in self.readers for name, columns in reader.new_columns.items()}
        if not news:
            return
        self.outlets.deliver_waiting_epochs()
        if self.how.evolve == "stop":
            name, columns = next(iter(news.items()))
            raise SchemaMismatch(
                f"read the source of {name!r}",
                f"there is {describe_new_columns(columns)}, which is new",
                "declare it in the flow to read it from now on, or run with evolve='add'; the state is complete",
            )
        types = {name: {column: each.kind for column, each in columns.items()} for name, columns in news.items()}
        evolve_engine(self.calls, types, found=True)
        for name, columns in news.items():
            LOG.info("epoch %d: %r gets %s", self.calls.epoch + 1, name, describe_new_columns(columns))
        bounds = {name: admission.bound for name, admission in self.dataflow.admissions.items()}
        for reader in self.readers:
            reader.update_bindings(bounds)
        self._evolved = True

    def _feed_source_rows(self, reader: SourceReader) -> None:
        """Ingest the gathered rows of a source.

        If a row causes an error, the error names the file of the row and the position in the file.
        """
        for given in reader.group_rows_into_calls():
            with (
                add_file_to_errors(given.spots),
                self.calls.attribute_rows_to_files(spot.file for spot, _ in given.spots),
            ):
                step = self._replace_rows(given) if given.whole else self._step_rows(given)
            self._record_step(step, [batch for batches in given.rows.values() for batch in batches])

    def _replace_rows(self, given: CallRows) -> Step:
        ((name, batches),) = given.rows.items()
        bound = self.dataflow.admissions[name].bound
        table = pa.Table.from_batches(batches, batches[0].schema if batches else bound.schema)
        order = given.order if {*list_order_columns(bound.spec)} == {*(given.order or ())} else None
        how: dict[str, Any] = {"max_absent": self.how.max_absent, "allow_empty": True, "time": self.clock.choose_time()}
        return self.engine.replace(name, table, order=order, **how)

    def _step_rows(self, given: CallRows) -> Step:
        call = (
            self.engine.push if self.dataflow.holds_back else partial(self.engine.step, time=self.clock.choose_time())
        )
        rows = sum(batch.num_rows for batches in given.rows.values() for batch in batches)
        if rows >= MANY:
            self.report.show_activity(f"ingesting {rows:,} rows")
        self.calls.quiet = True
        try:
            return call(given.rows)
        finally:
            self.calls.quiet = False

    def _record_step(self, step: Step, batches: Iterable[pa.RecordBatch]) -> None:
        self._called += 1
        if self._on_epoch is not None:
            self._steps.append(step)
        self.done.rows += sum(batch.num_rows for batch in batches)
        self.report.rows = self.done.rows
        self.done.updates += sum(table.num_rows for table in step.values())

    def _advance_frontier(self) -> bool:
        """Close the times that no input can still receive, according to the lateness. Hold-back mode only."""
        holder = self._find_frontier_holder()
        if holder is None or holder[1] <= self.dataflow.frontier:
            return False
        self._record_step(self.engine.advance_to(holder[1]), [])
        return True

    def _find_frontier_holder(self) -> tuple[str, int] | None:
        """Return the input that holds the frontier back, with its time. Return None in epoch mode.

        If no input has had rows for the ``idle`` time, return the input with the latest time.
        """
        left_out, now = self.how.idle_seconds, monotonic()
        heard = {name: each.last_rows for each in self.readers for name in each.bounds}
        at = dict[str, int]()
        for name, late in self.late.items():
            seen = self.dataflow.admissions[name].greatest
            at[name] = NEVER if seen == NEVER else max(seen - late, NEVER)
        loud = [name for name in at if left_out is None or now - heard.get(name, self._began) < left_out]
        if loud:
            return min(((name, at[name]) for name in loud), key=lambda each: each[1])
        return max(at.items(), key=lambda each: each[1], default=None)

    def _give_up_if_overdue(self) -> None:
        """Raise the error of a source or a sink that has failed for too long."""
        for each in self.readers:
            each.retry.give_up_if_overdue(monotonic(), self.how.retry_seconds)
        self.outlets.give_up_if_overdue()

    def _publish_connector_positions(self) -> None:
        """Publish the current positions of sources and sinks in the state."""
        if self.calls.durable is not None:
            self.calls.durable.publish_connector_positions(self.dataflow)
