"""Exporters of an engine's figures: ``dd.exporters``, for ``metrics=``.

Invariant: what is made here takes the `CallMetrics` of calls and asks no engine. Which figures there are stands in
``figures``, each backend in a file of its own, imported when it is asked for.

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
    """Export figures to Prometheus. Needs the extra ``metrics``.

    Parameters
    ----------
    flow : str
        The label ``flow`` of every figure.
    registry : prometheus_client.CollectorRegistry, optional
        Where metrics are registered; by default the one that ``prometheus_client`` serves.
    serve : str or int, optional
        A port, or ``"host:port"``, at which ``/metrics`` is served from a thread; 0 takes any free port,
        which ``.address`` of the exporter says: ``http://127.0.0.1:41234/metrics``.

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
    O(figures) a call. Several engines may share an exporter; each flow has another name.
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
    """Figures for OpenTelemetry.  Needs the extra ``metrics``.

    Parameters
    ----------
    flow : str
        The attribute ``flow`` of every figure.
    provider : opentelemetry.metrics.MeterProvider, optional
        Where they go; by default the global provider, which ``OTEL_*`` variables configure.

    Returns
    -------
    OpenTelemetryExporter
        For ``flow.open(metrics=...)``.

    Raises
    ------
    MissingExtra
        Where OpenTelemetry is not installed.
    """

    try:
        from ddflow.exporters.to_opentelemetry import OpenTelemetryExporter
    except ImportError as error:
        raise MissingExtra("export metrics to OpenTelemetry", str(error), FIX) from None
    return OpenTelemetryExporter(flow, provider)
