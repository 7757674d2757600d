r"""Report on a run: a status line on the terminal, a log record for each epoch, metrics, and the result `RunDone`.

Guarantees: reports do not change the run, and count only committed rows.

>>> import ddflow as dd, tempfile, pathlib
>>> flow = dd.Flow()
>>> _ = flow.output("people", flow.upserts("people", {"id": int}, dd.Upsert(key="id")))
>>> seen = []
>>> with tempfile.TemporaryDirectory() as place, flow.open(metrics=seen.append) as engine:
...     _ = (pathlib.Path(place) / "1.csv").write_text("id\\n1\\n")
...     _ = engine.run({"people": dd.sources.files(f"{place}/*.csv")})
>>> seen[-1].kind, seen[-1].sources
('run', {'people': SourceLag(amount=0, unit='files', failing=False, seconds=0.0, gathered=0)})
"""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from time import monotonic
from typing import Final, Literal, NamedTuple, cast

from ddflow.engine.calls import EngineCalls
from ddflow.engine.run.delivery import Deliveries
from ddflow.engine.run.source_reader import SourceReader
from ddflow.metrics import LOG, CallMetrics, Look, SourceLag, build_log_fields, publish_call_metrics
from ddflow.terminal import StatusLine, format_count
from ddflow.time import format_time

EVERY: Final = 1.0
"""The seconds between two metrics records while no epoch is committed."""
REMIND: Final = 60.0
"""The seconds between two log messages about a first copy."""


class EpochSummary(NamedTuple):
    """The log record for one epoch of a run."""

    epoch: int
    """The number of the epoch."""
    rows: int
    """The number of rows ingested in the epoch."""
    updates: int
    """The number of updates in the outputs of the epoch."""
    seconds: float
    """The seconds from the first call of the epoch until its commit ended."""
    lags: Mapping[str, int | None]
    """The lag of each source in its own unit, such as files."""
    behind: Mapping[str, float | None]
    """The lag of each source in seconds."""
    sinks: Mapping[str, int]
    """For each output, the last epoch that its sink has."""


class RunReport:
    """Reports on a run. ``calls``: the calls of the engine. ``shows``: whether to show a status line on the terminal.

    The status line is updated at most five times a second. While sinks lack committed epochs, metrics are published at
    least once a second.
    """

    def __init__(self, calls: EngineCalls, readers: Sequence[SourceReader], outlets: Deliveries, shows: bool) -> None:
        self.calls, self.readers, self.outlets = calls, readers, outlets
        self.line, self._began = StatusLine(shows), monotonic()
        self._published, self._epoch, self._taken = self._began, -1, dict[str, int]()
        self._said = self._began
        self._sources = dict[str, SourceLag]()
        self._holder = cast(tuple[str, int] | None, None)
        self.rows = 0
        """The number of rows ingested so far."""
        for each in readers:
            each.on_open = self.publish_lags

    def show_status(self, holder: tuple[str, int] | None) -> None:
        """Show the status line and publish metrics, if enough time has passed.

        ``holder``: the input that holds the frontier, and its time.
        """
        due = self.calls.epoch != self._epoch or monotonic() - self._published >= EVERY
        if due or any(each.last_lag is None and each.measure_lag().amount is not None for each in self.readers):
            self.publish_lags()
        elif self.outlets.delivered_epochs != self._taken:
            self._publish_sink_lags()
        if monotonic() - self._said >= REMIND:
            self._said = monotonic()
            for each in (reader for reader in self.readers if reader.is_reading_first_copy):
                LOG.info("the first copy of %r has %d rows so far", each.name, each.gathered)
        self._holder = holder
        if self.line.is_due:
            self.line.show(self._format_status_line())

    def show_progress(self, what: str, rows: int, began: float) -> None:
        """Show the progress of an epoch, if enough time has passed.

        ``rows``: the number of rows processed since ``began``.
        """
        if self.line.is_due:
            rate = rows / max(monotonic() - began, 1e-3)
            self.line.show(self._format_status_line(f"{what}: {rows:,} rows, {rate:,.0f} rows/s"))

    def show_activity(self, what: str) -> None:
        """Show the name of a task before it begins, because the task may take long."""
        if self.line.shows:
            self.line.show(self._format_status_line(what))

    def make_write_observer(self, name: str) -> Look:
        """Make a function that shows how many rows were written to the sink of an output.

        A call of this function with 0 starts the count for a new epoch.
        """
        written, began = 0, 0.0

        def look(rows: int) -> None:
            nonlocal written, began
            written, began = (written + rows, began) if rows else (0, monotonic())
            self.show_progress(f"writing {name}", written, began)

        return look

    def log_epoch(self, moved: Sequence[SourceReader], rows: int, updates: int, seconds: float) -> None:
        """Log one line about a committed epoch. ``moved``: the sources whose rows are in the epoch."""
        if not LOG.isEnabledFor(logging.INFO):
            return
        lags = {each.name: each.measure_lag() for each in self.readers}
        amounts, behind = ({name: getattr(lag, of) for name, lag in lags.items()} for of in ("amount", "seconds"))
        done = EpochSummary(self.calls.epoch, rows, updates, seconds, amounts, behind, self.outlets.delivered_epochs)
        parts = [f"{format_count(rows, 'row')} of {[each.name for each in moved]}", format_count(updates, "update")]
        parts += [f"{seconds * 1e3:,.0f} ms", *(f"{name} is {lag} behind" for name, lag in lags.items() if str(lag))]
        parts += [f"the sink of {name} has {at:,}" for name, at in done.sinks.items()]
        LOG.info("epoch %d: %s", done.epoch, ", ".join(parts), extra=build_log_fields(done))

    def publish_lags(self) -> None:
        """Publish the lags of sources and sinks to the listeners of the engine."""
        if self.calls.listeners:
            self._sources = {each.name: each.measure_lag() for each in self.readers}
        self._publish_sink_lags()

    def _publish_sink_lags(self) -> None:
        """Publish the lags of sinks, together with the last known lags of sources."""
        now, self._epoch, self._taken = monotonic(), self.calls.epoch, self.outlets.delivered_epochs
        seconds, self._published = now - self._published, now
        if not self.calls.listeners:
            return
        dataflow = self.calls.dataflow
        call = CallMetrics("run", dataflow.frontier, self._epoch, seconds, {}, dataflow.pending_count, {})
        publish_call_metrics(
            self.calls.listeners, call._replace(sources=self._sources, sinks=self.outlets.measure_lags())
        )

    def _format_status_line(self, doing: str = "") -> str:
        """Format the text of the status line."""
        holder = self._holder
        took = max(monotonic() - self._began, 1e-3)
        parts = [f"epoch {self.calls.epoch:,}", f"{self.rows:,} rows, {self.rows / took:,.0f} rows/s"]
        parts += [doing] if doing else []
        for each in self.readers:
            lag = f"first copy, {each.gathered:,} rows" if each.is_reading_first_copy else str(each.measure_lag())
            lag = each.retry.describe_failure(monotonic()) or lag
            parts += [f"{each.name}: {lag}"] if lag else []
        if holder is not None:
            dataflow = self.calls.dataflow
            parts.append(f"frontier {format_time(dataflow.frontier, dataflow.time_type)}, held by {holder[0]}")
        for name, outlet in self.outlets.each.items():
            failing = outlet.retry.describe_failure(monotonic())
            parts.append(f"{name} has {outlet.at:,}" + (f" ({failing})" if failing else ""))
        return ", ".join(parts)


@dataclass
class RunDone:
    """The result of a run: its counts, and the reason for its end.

    Attributes
    ----------
    epochs, rows, updates : int
        The numbers of committed epochs, of ingested rows, and of updates in the outputs. Full contents that are read
        together are one epoch, but each of them has a separate time.
    moved : int
        How often only positions were committed, because no rows had arrived.
    stopped : {"end", "signal", "stop", "time"}
        The reason for the end of the run.
    seconds : float
        The duration of the run.
    sinks : dict of str to int
        By output, the last epoch that its sink has.
    behind : dict of str to float
        For each source, the lag at the end of the run in seconds, as in `metrics.SourceLag`. None if unknown.

    >>> done = RunDone(epochs=2, rows=30, stopped="signal")
    >>> done.epochs, done.rows, done.moved, done.stopped, done.sinks
    (2, 30, 0, 'signal', {})
    """

    epochs: int = 0
    rows: int = 0
    updates: int = 0
    moved: int = 0
    stopped: Literal["end", "signal", "stop", "time"] = "end"
    seconds: float = 0.0
    sinks: dict[str, int] = field(default_factory=dict)
    behind: dict[str, float | None] = field(default_factory=dict)
