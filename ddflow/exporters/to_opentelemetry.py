"""Export the metrics of an engine to OpenTelemetry, through an object that is passed as ``metrics=``.

The meter provider decides where the metrics go, so the ``OTEL_*`` variables and a collector work as in any
OpenTelemetry program. The exporter receives records of calls and never reads the engine. The extra ``metrics`` must be
installed.
"""

from collections.abc import Mapping
from functools import partial
from time import monotonic
from typing import Any

from opentelemetry.metrics import CallbackOptions, MeterProvider, Observation, get_meter_provider

from ddflow.exporters.figures import FIGURES, SECONDS, add_elapsed_seconds
from ddflow.metrics import CallMetrics
from ddflow.version import __version__


class OpenTelemetryExporter:
    """Exporter to OpenTelemetry, for ``metrics=``.

    ``flow``: the attribute of every metric.  ``provider``: the meter provider; None for the global provider.

    >>> import ddflow as dd
    >>> from opentelemetry.sdk.metrics import MeterProvider
    >>> from opentelemetry.sdk.metrics.export import InMemoryMetricReader
    >>> reader = InMemoryMetricReader()
    >>> flow = dd.Flow()
    >>> _ = flow.output("people", flow.upserts("people", {"id": int}, dd.Upsert(key="id")))
    >>> exporter = dd.exporters.opentelemetry("people", provider=MeterProvider([reader]))
    >>> with flow.open(metrics=exporter) as engine:
    ...     _ = engine.step({"people": {"id": [1, 2]}})
    >>> shown = reader.get_metrics_data().resource_metrics[0].scope_metrics[0].metrics
    >>> [(each.name, each.data.data_points[0].value) for each in shown if each.name == "ddflow.rows"]
    [('ddflow.rows', 2)]
    """

    def __init__(self, flow: str, provider: MeterProvider | None) -> None:
        self.flow = flow
        self.meter = (get_meter_provider() if provider is None else provider).get_meter("ddflow", __version__)
        self.growing = dict[str, dict[tuple[tuple[str, str], ...], tuple[float, float]]]()
        """For each metric that grows with the clock: the last value and its time, by attributes."""
        self.instruments = {each.name: self._make_instrument(each) for each in FIGURES}

    def __repr__(self) -> str:
        return f"OpenTelemetryExporter({self.flow!r})"

    def _make_instrument(self, figure: Any) -> Any:
        given = {"name": f"ddflow.{figure.name}", "unit": figure.unit or "1", "description": figure.text}
        if figure.kind == "counter":
            return self.meter.create_counter(**given)
        if figure.grows:
            values = self.growing[figure.name] = {}
            return self.meter.create_observable_gauge(callbacks=[partial(_observe_values, values)], **given)
        if figure.kind == "gauge":
            return self.meter.create_gauge(**given)
        return self.meter.create_histogram(**given, explicit_bucket_boundaries_advisory=list(SECONDS))

    def __call__(self, call: CallMetrics) -> None:
        """Record the metrics of a call.  O(metrics)."""
        for figure in FIGURES:
            instrument = self.instruments[figure.name]
            put = {"counter": "add", "gauge": "set", "histogram": "record"}[figure.kind]
            for labels, value in figure.of(call):
                attributes = {"flow": self.flow, **dict(zip(figure.labels, labels, strict=True))}
                if figure.grows:
                    self.growing[figure.name][tuple(attributes.items())] = value, monotonic()
                else:
                    getattr(instrument, put)(value, attributes)


def _observe_values(
    values: Mapping[tuple[tuple[str, str], ...], tuple[float, float]], options: CallbackOptions
) -> list[Observation]:
    del options
    return [Observation(add_elapsed_seconds(*said), dict(attributes)) for attributes, said in list(values.items())]
