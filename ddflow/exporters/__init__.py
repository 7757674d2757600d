"""Export the metrics of an engine to a monitoring system.  ``dd.exporters`` has the values for ``metrics=``.

An exporter receives the `CallMetrics` of each call and never reads the engine. ``figures.py`` declares all metrics, and
each backend has one file, which is imported when the backend is first used.

>>> import ddflow as dd
>>> from prometheus_client import CollectorRegistry
>>> dd.exporters.prometheus("orders", registry=CollectorRegistry()).flow
'orders'
"""

from typing import TYPE_CHECKING, Final

from ddflow.errors import MissingExtra

if TYPE_CHECKING:
    from opentelemetry.metrics import MeterProvider
    from prometheus_client import CollectorRegistry

    from ddflow.exporters.to_opentelemetry import OpenTelemetryExporter
    from ddflow.exporters.to_prometheus import PrometheusExporter

__all__ = ["opentelemetry", "prometheus"]
FIX: Final = "pip install 'ddflow[metrics]'"


def prometheus(
    flow: str, *, registry: "CollectorRegistry | None" = None, serve: str | int | None = None
) -> "PrometheusExporter":
    """Export metrics to Prometheus.  The extra ``metrics`` must be installed.

    Parameters
    ----------
    flow : str
        The label ``flow`` of every metric.
    registry : prometheus_client.CollectorRegistry, optional
        The registry for the metrics; by default the global registry of ``prometheus_client``.
    serve : str or int, optional
        A port, or ``"host:port"``, to serve ``/metrics`` from a thread; port 0 means any free port.  The attribute
        ``address`` of the exporter has the address: ``http://127.0.0.1:41234/metrics``.

    Returns
    -------
    PrometheusExporter
        For ``flow.open(metrics=...)``.

    Raises
    ------
    MissingExtra
        If ``prometheus_client`` is not installed.
    SpecError
        For an invalid or occupied port.

    Notes
    -----
    O(metrics) for each call.  Several engines can share a registry if their exporters have different values of
    ``flow``.
    """

    try:
        from ddflow.exporters.to_prometheus import PrometheusExporter
    except ImportError as error:
        raise MissingExtra("export metrics to Prometheus", str(error), FIX) from None
    exporter = PrometheusExporter(flow, registry)
    if serve is not None:
        exporter.serve(str(serve))
    return exporter


def opentelemetry(flow: str, *, provider: "MeterProvider | None" = None) -> "OpenTelemetryExporter":
    """Export metrics to OpenTelemetry.  The extra ``metrics`` must be installed.

    Parameters
    ----------
    flow : str
        The attribute ``flow`` of every metric.
    provider : opentelemetry.metrics.MeterProvider, optional
        The provider that receives the metrics; by default the global one, configured by the ``OTEL_*`` variables.

    Returns
    -------
    OpenTelemetryExporter
        For ``flow.open(metrics=...)``.

    Raises
    ------
    MissingExtra
        If OpenTelemetry is not installed.
    """

    try:
        from ddflow.exporters.to_opentelemetry import OpenTelemetryExporter
    except ImportError as error:
        raise MissingExtra("export metrics to OpenTelemetry", str(error), FIX) from None
    return OpenTelemetryExporter(flow, provider)
