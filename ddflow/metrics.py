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
from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

LOG: Final = logging.getLogger("ddflow")


class CallMetrics(NamedTuple):
    """The figures of one call of an engine."""

    kind: str
    """"step", "push", "advance_to", "replace" or "restate"."""
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


Metrics = Callable[[CallMetrics], object]


def publish(metrics: Metrics, call: CallMetrics) -> None:
    """Hand over the figures of a call; what goes wrong then is logged.  O(1) beside ``metrics`` itself."""
    try:
        metrics(call)
    except Exception:
        LOG.exception("metrics= of a ddflow engine failed; %s itself took effect", call.kind)
