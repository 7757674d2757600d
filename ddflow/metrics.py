"""Report the figures of each engine call to monitoring; this file contains no backend.

ddflow calls the function given as ``metrics=`` of `Flow.open` once for each call that took effect. This happens after
the effect and, with ``commit_every="call"``, after the commit, so an exception in the function cannot undo the call; it
is logged. A refused or repeated call reports nothing.

Limits: the function runs in the caller's thread, within the call, and must not use the engine. `Engine.stats` shows the
size of an engine; ``spark_bridge.monitoring`` reports queries on Spark.
"""

import logging
from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import Final, NamedTuple

from ddflow.errors import mask_secrets
from ddflow.terminal import format_count

LOG: Final = logging.getLogger("ddflow")
NOTHING: Final[Mapping[str, int]] = MappingProxyType({})
Look = Callable[[int], None]
"""A progress callback: called with the number of rows, events or bytes done since its last call."""


def mask_log_record(record: logging.LogRecord) -> bool:
    """Mask secrets in a log record; a filter for ddflow's loggers."""
    record.msg, record.args = mask_secrets(record.getMessage()), ()
    return True


LOG.addFilter(mask_log_record)


class SinkLag(NamedTuple):
    """The lag of a sink of `Engine.run`."""

    epochs: int
    """Committed epochs that the sink does not have yet."""
    bytes: int
    """Bytes of the updates of these epochs."""
    failing: bool = False
    """Whether its last attempt failed."""


class SourceLag(NamedTuple):
    """The lag of a source of `Engine.run`.

    >>> str(SourceLag(1200, "messages")), str(SourceLag(1, "files")), str(SourceLag(81920, "bytes"))
    ('1,200 messages', '1 file', '82 kB')
    >>> str(SourceLag(0, "files")), str(SourceLag(None, "files")), str(SourceLag(3, "files", seconds=200.0))
    ('', '', '3 files (200 s)')
    """

    amount: int | None
    """The lag; None until it is known: before the source is first open, during a first copy, and for a source that
    cannot tell."""
    unit: str
    """The unit of the amount, a plural: "messages", "files", "bytes". A source never changes it."""
    failing: bool = False
    """Whether its last attempt failed."""
    seconds: float | None = None
    """The age of the lag in seconds: the time since the last ingested row was written, by the source's own clock, or
    since the source was last read to its end. 0 while the source is known to have no more. The state stores it, so
    it is known from the start. In a new state it is None until rows arrive or a first copy is complete."""
    gathered: int = 0
    """Rows read from the source and not yet in an epoch; for a first copy, which is one epoch, the rows copied so
    far."""

    def __str__(self) -> str:
        if not self.amount or (self.unit == "bytes" and self.amount < 1000):
            return ""
        there = format_count(self.amount, self.unit.removesuffix("s"))
        if self.unit == "bytes":
            there = f"{self.amount / 1000:,.0f} kB"
        return there if self.seconds is None else f"{there} ({self.seconds:,.0f} s)"


class CallMetrics(NamedTuple):
    """The figures of one call of an engine, or of one epoch of a run or of a query on Spark.

    >>> import pyarrow as pa, ddflow as dd
    >>> flow = dd.Flow()
    >>> _ = flow.output("people", flow.upserts("people", {"id": pa.int64()}, dd.Upsert(key="id")))
    >>> seen = []
    >>> with flow.open(metrics=seen.append) as engine:
    ...     _ = engine.step({"people": pa.table({"id": [1, 2]})}, time=7)
    >>> seen[0].kind, seen[0].time, seen[0].verdicts["applied"], seen[0].updates, seen[0].seconds > 0
    ('step', 7, 2, {'people': 2}, True)
    """

    kind: str
    """"step", "push", "advance_to", "replace" or "restate"; "run" for an epoch of `Engine.run`, "epoch" on Spark."""
    time: int
    """The time of the step, or the requested frontier; 0 for a push."""
    epoch: int
    """The last committed epoch after the call; 0 for state in memory."""
    seconds: float
    """Seconds from the beginning of the call to its end, its commit included."""
    verdicts: Mapping[str, int]
    """Resolved events, by verdict."""
    pending: int
    """Events that wait for their time to close, after the call."""
    updates: Mapping[str, int]
    """Updates by output."""
    rows: Mapping[str, int] = NOTHING
    """Ingested rows, by input."""
    commit: float = 0.0
    """Seconds of the commit within ``seconds``; 0 for a call without a commit."""
    keys: Mapping[str, int] = NOTHING
    """Live keys, by arrangement."""
    bytes: Mapping[str, int] = NOTHING
    """Bytes of index and batches, in memory or mapped, by arrangement."""
    owed: Mapping[str, int] = NOTHING
    """Merge debt: versions that merges in progress have yet to copy, by arrangement."""
    sources: Mapping[str, SourceLag] = MappingProxyType({})
    """The lags of a run's sources, by name."""
    sinks: Mapping[str, SinkLag] = MappingProxyType({})
    """The lags of a run's sinks, by output."""
    at: str = ""
    """``time`` as text, such as ``2026-11-26`` if times are days; "" for a push and for a run."""


Metrics = Callable[[CallMetrics], object]


def publish_call_metrics(listeners: Iterable[Metrics], call: CallMetrics) -> None:
    """Pass the figures of a call to the listeners, and log them at DEBUG; log the exceptions of listeners.

    O(listeners) besides their own work.
    """
    if LOG.isEnabledFor(logging.DEBUG):
        rows = format_count(sum(call.rows.values()), "row")
        LOG.debug("%s: %s in, %.1f ms", call.kind, rows, call.seconds * 1e3, extra=build_log_fields(call))
    for take in listeners:
        try:
            take(call)
        except Exception:
            LOG.exception("metrics= of a ddflow engine failed; %s itself took effect", call.kind)


def build_log_fields(figures: NamedTuple, **more: object) -> dict[str, object]:
    """Convert figures to the fields of a log record: plain values under ``ddflow``, for logs in JSON.

    >>> build_log_fields(SourceLag(3, "files"), source="orders")
    {'ddflow': {'source': 'orders', 'amount': 3, 'unit': 'files', 'failing': False, 'seconds': None, 'gathered': 0}}
    """
    plain = {name: dict(value) if isinstance(value, Mapping) else value for name, value in figures._asdict().items()}
    return {"ddflow": {**more, **plain}}
