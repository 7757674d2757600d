"""Declare the metrics of all exporters: name, kind, labels and text.

Every exporter exports the metrics in `FIGURES`, and no other metrics. A counter adds the values of each record. A gauge
shows the value of the newest record. For a gauge that ``grows``, the time since the newest record is added to the
value. A histogram counts seconds. Names follow the rules of Prometheus: a name ends with its unit, and the name of a
counter ends with ``_total``. All values come from the `CallMetrics` published after a call, so exporters never read an
engine.

>>> from ddflow.metrics import CallMetrics
>>> call = CallMetrics("step", 7, 1, 0.5, {"applied": 2}, 0, {"by_city": 3}, {"orders": 2})
>>> [(each.name, list(each.of(call))) for each in FIGURES if each.name in ("rows", "updates", "epoch")]
[('rows', [(('orders',), 2)]), ('updates', [(('by_city',), 3)]), ('epoch', [((), 1)])]
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from time import monotonic
from typing import Final, Literal, NamedTuple

from ddflow.metrics import CallMetrics

Labelled = tuple[tuple[str, ...], float]
"""Label values of a metric, and the value of the metric for these label values."""
SECONDS: Final = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
"""Upper bounds of the buckets of a histogram."""


class MetricDefinition(NamedTuple):
    """The definition of a metric.

    ``name``: the name, without prefix and ``_total``.  ``labels``: the labels besides ``flow``.  ``of``: a function
    that reads the values from the record of a call.
    """

    name: str
    kind: Literal["counter", "gauge", "histogram"]
    unit: str
    labels: tuple[str, ...]
    text: str
    of: Callable[[CallMetrics], Iterable[Labelled]]
    grows: bool = False
    """Whether the value grows with the clock until the next record.  A blocked run sends no record."""


def add_elapsed_seconds(value: float, since: float) -> float:
    """Add the time that has passed since ``since`` to a value that grows with the clock."""
    return value + monotonic() - since


def _label_values(values: Mapping[str, float]) -> Iterator[Labelled]:
    return (((name,), value) for name, value in values.items())


def _make_unlabelled_value(value: float) -> list[Labelled]:
    return [((), value)]


FIGURES: Final = (
    MetricDefinition("rows", "counter", "", ("input",), "Rows ingested.", lambda call: _label_values(call.rows)),
    MetricDefinition(
        "events", "counter", "", ("verdict",), "Events resolved, by verdict.", lambda call: _label_values(call.verdicts)
    ),
    MetricDefinition(
        "updates", "counter", "", ("output",), "Updates emitted.", lambda call: _label_values(call.updates)
    ),
    MetricDefinition(
        "call_seconds",
        "histogram",
        "s",
        ("kind",),
        "Seconds of a call, its commit included.",
        lambda call: [((call.kind,), call.seconds)] if call.kind != "run" else (),  # a run's record repeats its calls
    ),
    MetricDefinition(
        "commit_seconds",
        "histogram",
        "s",
        (),
        "Seconds of the commit within a call.",
        lambda call: _make_unlabelled_value(call.commit) if call.commit else (),
    ),
    MetricDefinition(
        "epoch", "gauge", "", (), "The last committed epoch.", lambda call: _make_unlabelled_value(call.epoch)
    ),
    MetricDefinition(
        "pending_events",
        "gauge",
        "",
        (),
        "Events whose time is open.",
        lambda call: _make_unlabelled_value(call.pending),
    ),
    MetricDefinition("keys", "gauge", "", ("arrangement",), "Live keys.", lambda call: _label_values(call.keys)),
    MetricDefinition(
        "state_bytes",
        "gauge",
        "By",
        ("arrangement",),
        "Bytes of index and batches.",
        lambda call: _label_values(call.bytes),
    ),
    MetricDefinition(
        "merge_debt_versions",
        "gauge",
        "",
        ("arrangement",),
        "Versions that merges in progress have yet to copy.",
        lambda call: _label_values(call.owed),
    ),
    MetricDefinition(
        "source_lag",
        "gauge",
        "",
        ("source", "unit"),
        "Amount that a source has and the state lacks.",
        lambda call: [((name, of.unit), of.amount) for name, of in call.sources.items() if of.amount is not None],
    ),
    MetricDefinition(
        "source_lag_seconds",
        "gauge",
        "s",
        ("source",),
        "Seconds since the last ingested row was written.",
        lambda call: [((name,), of.seconds) for name, of in call.sources.items() if of.seconds is not None],
        grows=True,
    ),
    MetricDefinition(
        "source_gathered_rows",
        "gauge",
        "",
        ("source",),
        "Rows of a source that no epoch has yet, and those of a first copy so far.",
        lambda call: [((name,), of.gathered) for name, of in call.sources.items()],
    ),
    MetricDefinition(
        "source_failing",
        "gauge",
        "",
        ("source",),
        "1 while the last attempt to read a source failed.",
        lambda call: [((name,), float(each.failing)) for name, each in call.sources.items()],
    ),
    MetricDefinition(
        "sink_lag_epochs",
        "gauge",
        "",
        ("output",),
        "Committed epochs that are not in the sink yet.",
        lambda call: [((name,), each.epochs) for name, each in call.sinks.items()],
    ),
    MetricDefinition(
        "sink_lag_bytes",
        "gauge",
        "By",
        ("output",),
        "Bytes of updates that are not in the sink yet.",
        lambda call: [((name,), each.bytes) for name, each in call.sinks.items()],
    ),
    MetricDefinition(
        "sink_failing",
        "gauge",
        "",
        ("output",),
        "1 while the last attempt to write to a sink failed.",
        lambda call: [((name,), float(each.failing)) for name, each in call.sinks.items()],
    ),
)
