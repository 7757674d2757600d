"""Report the figures of each engine call to monitoring. The exporters for monitoring systems are in other files.

ddflow calls the function ``metrics=`` of `Flow.open` once for each engine call that took effect. With
``commit_every="call"``, the function is called after the commit. An exception in the function ``metrics=`` is logged,
and cannot undo the engine call. A refused or repeated call reports nothing.

Limits: the function ``metrics=`` runs in the caller's thread, within the engine call, and must not use the engine.
`Engine.stats` shows the size of an engine; ``spark_bridge.monitoring`` reports queries on Spark.
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
"""A progress callback. It gets the number of rows, events or bytes that were processed since its last call."""


def mask_log_record(record: logging.LogRecord) -> bool:
    """Mask secrets in a log record. All loggers of ddflow use this function as a filter."""
    record.msg, record.args = mask_secrets(record.getMessage()), ()
    return True


LOG.addFilter(mask_log_record)


class SinkLag(NamedTuple):
    """How far a sink of `Engine.run` is behind the state."""

    epochs: int
    """The number of committed epochs that the sink does not have yet."""
    bytes: int
    """The bytes of updates that the sink does not have yet."""
    failing: bool = False
    """Whether the last attempt to write to the sink failed."""


class SourceLag(NamedTuple):
    """How far ddflow is behind a source of `Engine.run`.

    >>> str(SourceLag(1200, "messages")), str(SourceLag(1, "files")), str(SourceLag(81920, "bytes"))
    ('1,200 messages', '1 file', '82 kB')
    >>> str(SourceLag(0, "files")), str(SourceLag(None, "files")), str(SourceLag(3, "files", seconds=200.0))
    ('', '', '3 files (200 s)')
    """

    amount: int | None
    """The amount of input at the source that ddflow has not read yet.

    The amount is None while it is unknown: before the source is first open, during a first copy, and if the source does
    not report it.
    """
    unit: str
    """The unit of the amount, as a plural noun: "messages", "files", "bytes". A source never changes its unit."""
    failing: bool = False
    """Whether the last attempt to read the source failed."""
    seconds: float | None = None
    """How long ddflow has been behind the source, in seconds: the *age* of the lag.

    It is the time since the last ingested row was written, by the clock of the source, or since the source was last
    read to its end. The age is 0 while the source is known to have no more rows. The state stores the time from which
    the age counts, so the age is known from the start of a run. In a new state the age is None until rows arrive or a
    first copy is complete.
    """
    gathered: int = 0
    """The number of rows that were read from the source and are not in an epoch yet.

    A first copy is one epoch, so during a first copy this is the number of rows copied so far.
    """

    def __str__(self) -> str:
        if not self.amount or (self.unit == "bytes" and self.amount < 1000):
            return ""
        there = format_count(self.amount, self.unit.removesuffix("s"))
        if self.unit == "bytes":
            there = f"{self.amount / 1000:,.0f} kB"
        return there if self.seconds is None else f"{there} ({self.seconds:,.0f} s)"


class CallMetrics(NamedTuple):
    """The figures of one engine call, of one epoch of `Engine.run`, or of one epoch of a query on Spark.

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
    """The kind of call: "step", "push", "advance_to", "replace" or "restate".

    The kind is "run" for an epoch of `Engine.run`, and "epoch" on Spark.
    """
    time: int
    """The time of the step, or the requested frontier; 0 for a push."""
    epoch: int
    """The last committed epoch after the call; 0 for state in memory."""
    seconds: float
    """The duration of the call in seconds, including the commit."""
    verdicts: Mapping[str, int]
    """The number of resolved events for each verdict."""
    pending: int
    """The number of events whose time is not closed yet, after the call."""
    updates: Mapping[str, int]
    """The number of updates for each output."""
    rows: Mapping[str, int] = NOTHING
    """The number of ingested rows for each input."""
    commit: float = 0.0
    """The duration of the commit, which is a part of ``seconds``. 0 for a call without a commit."""
    keys: Mapping[str, int] = NOTHING
    """The number of live keys in each arrangement."""
    bytes: Mapping[str, int] = NOTHING
    """For each arrangement, the bytes of its index and batches, in memory or in mapped files."""
    owed: Mapping[str, int] = NOTHING
    """The number of row versions that unfinished merges still have to copy, for each arrangement."""
    sources: Mapping[str, SourceLag] = MappingProxyType({})
    """The lag of each source of a run, by the name of the source."""
    sinks: Mapping[str, SinkLag] = MappingProxyType({})
    """The lag of each sink of a run, by the name of the output."""
    at: str = ""
    """The field ``time`` as text, such as ``2026-11-26`` if times are days; "" for a push and for a run."""


Metrics = Callable[[CallMetrics], object]


def publish_call_metrics(listeners: Iterable[Metrics], call: CallMetrics) -> None:
    """Pass the figures of a call to the listeners, and log the figures at DEBUG. An exception of a listener is logged.

    O(listeners), without the work of the listeners.
    """
    if LOG.isEnabledFor(logging.DEBUG):
        rows = format_count(sum(call.rows.values()), "row")
        LOG.debug("%s: %s in, %.1f ms", call.kind, rows, call.seconds * 1e3, extra=build_log_fields(call))
    for take in listeners:
        try:
            take(call)
        except Exception:
            LOG.exception("metrics= of a ddflow engine raised an error; the %s took effect", call.kind)


def build_log_fields(figures: NamedTuple, **more: object) -> dict[str, object]:
    """Convert figures to an extra field of a log record, for logs in JSON.

    The field ``ddflow`` is a dict of plain values.

    >>> build_log_fields(SourceLag(3, "files"), source="orders")
    {'ddflow': {'source': 'orders', 'amount': 3, 'unit': 'files', 'failing': False, 'seconds': None, 'gathered': 0}}
    """
    plain = {name: dict(value) if isinstance(value, Mapping) else value for name, value in figures._asdict().items()}
    return {"ddflow": {**more, **plain}}
