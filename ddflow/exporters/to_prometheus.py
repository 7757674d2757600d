"""Export the metrics of an engine to Prometheus, through an object passed as ``metrics=``, and serve a page to scrape.

The exporter receives records of calls and never reads the engine, so a scrape from another thread is safe. Several
flows can share a registry and its metrics; the label ``flow`` distinguishes the flows. The extra ``metrics`` must be
installed.
"""

from functools import partial
from time import monotonic
from typing import Any, Final
from weakref import WeakKeyDictionary

from prometheus_client import REGISTRY, CollectorRegistry, Counter, Gauge, Histogram, start_http_server

from ddflow.errors import SpecError
from ddflow.exporters.figures import FIGURES, SECONDS, add_elapsed_seconds
from ddflow.metrics import CallMetrics

_MADE: Final[WeakKeyDictionary[CollectorRegistry, dict[str, Any]]] = WeakKeyDictionary()
"""Metrics of each registry, by name, because a registry accepts each name once."""


class PrometheusExporter:
    """Exporter to Prometheus, for ``metrics=``.

    ``flow``: the value of the label ``flow``.  ``registry``: None for the global registry of ``prometheus_client``.

    >>> import ddflow as dd
    >>> from prometheus_client import CollectorRegistry, generate_latest
    >>> registry = CollectorRegistry()
    >>> flow = dd.Flow()
    >>> _ = flow.output("people", flow.upserts("people", {"id": int}, dd.Upsert(key="id")))
    >>> with flow.open(metrics=dd.exporters.prometheus("people", registry=registry)) as engine:
    ...     _ = engine.step({"people": {"id": [1, 2]}})
    >>> [line for line in generate_latest(registry).decode().splitlines() if line.startswith("ddflow_rows_total")]
    ['ddflow_rows_total{flow="people",input="people"} 2.0']
    """

    def __init__(self, flow: str, registry: CollectorRegistry | None) -> None:
        self.flow, self.registry = flow, REGISTRY if registry is None else registry
        if self.registry not in _MADE:
            _MADE[self.registry] = {each.name: self._make_collector(each) for each in FIGURES}
        self.metrics = _MADE[self.registry]
        self.address: str | None = None
        """Address of the served page, such as ``http://127.0.0.1:9464/metrics``; None before `serve`."""

    def __repr__(self) -> str:
        at = "" if self.address is None else f", served at {self.address}"
        return f"PrometheusExporter({self.flow!r}{at})"

    def _make_collector(self, figure: Any) -> Any:
        given = (f"ddflow_{figure.name}", figure.text, ("flow", *figure.labels))
        if figure.kind == "counter":
            return Counter(*given, registry=self.registry)
        if figure.kind == "gauge":
            return Gauge(*given, registry=self.registry)
        return Histogram(*given, registry=self.registry, buckets=SECONDS)

    def __call__(self, call: CallMetrics) -> None:
        """Record the metrics of a call.  O(metrics)."""
        for figure in FIGURES:
            metric = self.metrics[figure.name]
            for labels, value in figure.of(call):
                one = metric.labels(self.flow, *labels)
                if figure.kind == "counter":
                    one.inc(value)
                elif figure.kind == "gauge":
                    one.set(value)
                    if figure.grows:
                        one.set_function(partial(add_elapsed_seconds, value, monotonic()))
                else:
                    one.observe(value)

    def serve(self, where: str) -> str:
        """Serve ``/metrics`` from a thread, and return the address.  ``where``: a port, or ``host:port``.

        Without a host, only requests from this machine are answered.  Raises `SpecError` for an invalid or occupied
        port.
        """
        host, _, port = where.rpartition(":")
        try:
            server, _ = start_http_server(int(port), host or "127.0.0.1", registry=self.registry)
        except (ValueError, OverflowError, OSError) as error:
            raise SpecError(
                f"serve metrics at {where!r}", str(error), "use a free port: 9464, or 0.0.0.0:9464"
            ) from None
        self.address = f"http://{host or '127.0.0.1'}:{server.server_port}/metrics"
        return self.address
