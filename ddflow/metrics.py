"""Metrics: what an engine tells of each of its calls, for whatever monitors it.  No backend is in here.

Invariant: a function that is given as ``metrics=`` of `Flow.open` is called once for each call that took effect,
after it did and, with ``commit_every="call"``, after its commit; so what it raises cannot undo the call, and is
logged. A call that was refused, or that is given again, tells nothing. It runs in the caller's thread, within the
call: it must not use the engine. What an engine holds is in `Engine.stats`; what a query on Spark does, in
``spark_bridge.monitoring``.

>>> import pyarrow as pa, ddflow as dd
>>> flow = dd.Flow()
>>> _ = flow.output("people", flow.upserts("people", {"id": pa.int64()}, dd.Upsert(key="id")))
>>> seen = []
>>> with flow.open(metrics=seen.append) as engine:
...     _ = engine.step({"people": pa.table({"id": [1, 2]})}, time=7)
>>> seen[0].kind, seen[0].time, seen[0].verdicts["applied"], seen[0].updates, seen[0].seconds > 0
('step', 7, 2, {'people': 2}, True)
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
"""For progress: called with the number of rows, events or bytes that were done since its last call."""


def mask_log_record(record: logging.LogRecord) -> bool:
    """Leave secrets out of a record.  A filter of ddflow's loggers."""
    record.msg, record.args = mask_secrets(record.getMessage()), ()
    return True


LOG.addFilter(mask_log_record)


class SinkLag(NamedTuple):
    """The lag of a sink of `Engine.run`."""

    epochs: int
    """Committed epochs that it has not."""
    bytes: int
    """Of their updates."""
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
    """None until that is known, so before the source is first open and within a first copy, and of one that cannot
    tell."""
    unit: str
    """What the amount counts, a plural: "messages", "files", "bytes". A source never changes it."""
    failing: bool = False
    """Whether its last attempt failed."""
    seconds: float | None = None
    """What was written so long ago or longer was taken: since the last row that was taken was written, by the source's
    own time, or since all was taken that was there; 0 while the source is known to have no more.  A state keeps it, so
    it is known from the start; of a new state None until rows came, or a first copy is whole."""
    gathered: int = 0
    """Rows that it gave and no epoch has yet; of a first copy, which is one epoch, those that were copied so far."""

    def __str__(self) -> str:
        if not self.amount or (self.unit == "bytes" and self.amount < 1000):
            return ""
        there = format_count(self.amount, self.unit.removesuffix("s"))
        if self.unit == "bytes":
            there = f"{self.amount / 1000:,.0f} kB"
        return there if self.seconds is None else f"{there} ({self.seconds:,.0f} s)"


class CallMetrics(NamedTuple):
    """The figures of one call of an engine, or of one epoch of a run or of a query on Spark."""

    kind: str
    """"step", "push", "advance_to", "replace" or "restate"; "run" for an epoch of `Engine.run`, "epoch" on Spark."""
    time: int
    """The step's time, or the frontier asked for; 0 for a push."""
    epoch: int
    """The last committed one, after the call; 0 for state in memory."""
    seconds: float
    """From the beginning of the call, its commit included."""
    verdicts: Mapping[str, int]
    """Events that were resolved, by verdict."""
    pending: int
    """Events that wait for their time to close, after the call."""
    updates: Mapping[str, int]
    """Updates by output."""
    rows: Mapping[str, int] = NOTHING
    """Rows taken in, by input."""
    commit: float = 0.0
    """Seconds of the commit within ``seconds``; 0 where the call made none."""
    keys: Mapping[str, int] = NOTHING
    """Live keys, by arrangement."""
    bytes: Mapping[str, int] = NOTHING
    """Bytes of index and batches, in memory or mapped, by arrangement."""
    owed: Mapping[str, int] = NOTHING
    """Versions that merges in progress have yet to copy, by arrangement: the merge debt."""
    sources: Mapping[str, SourceLag] = MappingProxyType({})
    """The lags of a run's sources, by name."""
    sinks: Mapping[str, SinkLag] = MappingProxyType({})
    """The lags of a run's sinks, by output."""
    at: str = ""
    """``time`` as a person reads it, such as ``2026-11-26`` where times are days; "" for a push and for a run."""


Metrics = Callable[[CallMetrics], object]


def publish_call_metrics(listeners: Iterable[Metrics], call: CallMetrics) -> None:
    """Hand over the figures of a call, and log them at DEBUG; what goes wrong then is logged.

    O(listeners) beside what they do.
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
