"""Test exporters: Prometheus' page as a scraper reads it, OpenTelemetry's points, and the dashboard."""

from __future__ import annotations

import json
import re
import urllib.request
from itertools import combinations
from pathlib import Path
from urllib.parse import urlsplit

import pyarrow as pa
import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

import ddflow as dd
from ddflow.exporters.figures import FIGURES
from ddflow.metrics import CallMetrics, SinkLag, SourceLag

DASHBOARD = Path(__file__).parents[2] / "examples" / "monitoring" / "grafana.json"


def flow() -> dd.Flow:
    made = dd.Flow()
    orders = made.upserts("orders", {"id": int, "city": str}, dd.Upsert(key="id"))
    made.output("by_city", orders.count("city"))
    return made


def fed(metrics: object, state: Path | None = None) -> None:
    with flow().open(state, metrics=metrics) as engine:
        engine.step({"orders": {"id": [1, 2], "city": ["Bern", "Bern"]}})
        engine.step({"orders": {"id": [2, 3], "city": ["Bern", "Zug"]}})


def samples(page: str) -> dict[tuple[str, ...], float]:
    return {
        (each.name, *sorted(f"{name}={value}" for name, value in each.labels.items() if name != "flow")): each.value
        for family in text_string_to_metric_families(page)
        for each in family.samples
    }


def test_prometheus_reads_rows_verdicts_updates_times_and_sizes(tmp_path: Path) -> None:
    registry = CollectorRegistry()
    fed(dd.exporters.prometheus("shop", registry=registry), tmp_path / "state")
    found = samples(generate_latest(registry).decode())
    assert found["ddflow_rows_total", "input=orders"] == 4
    assert found["ddflow_events_total", "verdict=applied"] == 3 and found["ddflow_events_total", "verdict=noop"] == 1
    assert found["ddflow_updates_total", "output=by_city"] == 2
    assert found["ddflow_call_seconds_count", "kind=step"] == 2 and found[("ddflow_commit_seconds_count",)] == 2
    assert found[("ddflow_epoch",)] == 2
    keys = {
        labels: value
        for (name, *labels), value in [(k, v) for k, v in found.items()]
        if name == "ddflow_keys"
        for labels in [tuple(labels)]
    }
    assert sorted(keys.values()) == [2, 3]
    assert all(value > 0 for (name, *_), value in found.items() if name == "ddflow_state_bytes")


def test_two_flows_share_a_registry_and_a_second_exporter_of_one_goes_on() -> None:
    registry = CollectorRegistry()
    for name in ("a", "b", "a"):
        fed(dd.exporters.prometheus(name, registry=registry))
    rows = [each for each in generate_latest(registry).decode().splitlines() if each.startswith("ddflow_rows_total{")]
    assert rows == ['ddflow_rows_total{flow="a",input="orders"} 8.0', 'ddflow_rows_total{flow="b",input="orders"} 4.0']


def test_the_page_is_served_to_this_machine_and_a_taken_port_is_named() -> None:
    exporter = dd.exporters.prometheus("shop", registry=CollectorRegistry(), serve=0)
    assert exporter.address is not None
    assert repr(exporter) == f"PrometheusExporter('shop', served at {exporter.address})"
    port = urlsplit(exporter.address).port
    assert exporter.address == f"http://127.0.0.1:{port}/metrics"
    fed(exporter)
    with urllib.request.urlopen(exporter.address) as page:
        assert 'ddflow_rows_total{flow="shop",input="orders"} 4.0' in page.read().decode()
    for taken in (str(port), "nowhere", "70000"):
        with pytest.raises(dd.errors.SpecError, match=re.escape(taken)):
            dd.exporters.prometheus("shop", registry=CollectorRegistry(), serve=taken)


def test_opentelemetry_has_the_same_figures(tmp_path: Path) -> None:
    reader, registry = InMemoryMetricReader(), CollectorRegistry()
    exporters = [
        dd.exporters.opentelemetry("shop", provider=MeterProvider([reader])),
        dd.exporters.prometheus("shop", registry=registry),
    ]
    fed(lambda call: [each(call) for each in exporters], tmp_path / "state")
    data = reader.get_metrics_data()
    assert data is not None
    there = {}
    for metric in data.resource_metrics[0].scope_metrics[0].metrics:
        for point in metric.data.data_points:
            labels = sorted(f"{name}={value}" for name, value in (point.attributes or {}).items() if name != "flow")
            name = metric.name.replace(".", "_")
            if hasattr(point, "count"):
                there[f"{name}_count", *labels] = point.count
            else:
                there[name, *labels] = point.value
    page = samples(generate_latest(registry).decode())
    for (name, *labels), value in there.items():
        known = page.get((name, *labels), page.get((f"{name}_total", *labels)))
        assert known == value, name
    assert len(there) > 10


def test_a_run_s_lags_are_shown_and_count_no_call() -> None:
    registry = CollectorRegistry()
    lags = {"orders": SourceLag(7, "messages", True, 12.5)}, {"by_city": SinkLag(2, 500)}
    call = CallMetrics("run", 1, 3, 0.1, {}, 0, {}, sources=lags[0], sinks=lags[1])
    dd.exporters.prometheus("shop", registry=registry)(call)
    found = samples(generate_latest(registry).decode())
    assert found["ddflow_source_lag", "source=orders", "unit=messages"] == 7
    first = found["ddflow_source_lag_seconds", "source=orders"]
    assert first >= 12.5
    found = samples(generate_latest(registry).decode())
    assert found["ddflow_source_lag_seconds", "source=orders"] > first  # no record came: the run may be held up
    assert found["ddflow_source_failing", "source=orders"] == 1
    assert (
        found["ddflow_sink_lag_epochs", "output=by_city"] == 2
        and found["ddflow_sink_lag_bytes", "output=by_city"] == 500
    )
    assert ("ddflow_call_seconds_count", "kind=run") not in found


def test_a_figure_has_as_many_values_as_labels() -> None:
    seen = list[CallMetrics]()
    fed(seen.append)
    call = seen[-1]._replace(commit=0.1, sources={"a": SourceLag(1, "files", seconds=2.5)}, sinks={"b": SinkLag(1, 2)})
    for figure in FIGURES:
        values = list(figure.of(call))
        assert values, figure.name
        assert all(len(labels) == len(figure.labels) for labels, _ in values)


def test_the_dashboard_shows_every_figure_and_none_that_is_not() -> None:
    text = json.dumps(json.loads(DASHBOARD.read_text()))
    shown = set(re.findall(r"ddflow_([a-z_]+?)(?:_total|_bucket)?(?=[^a-z_])", text))
    assert shown == {each.name for each in FIGURES}


def test_panels_lie_beside_each_other_and_ask_the_chosen_source() -> None:
    """As Grafana reads a dashboard: 24 columns, numbered panels, and variables that are declared."""
    dashboard = json.loads(DASHBOARD.read_text())
    places = [panel["gridPos"] for panel in dashboard["panels"]]
    assert all(place["x"] >= 0 and place["x"] + place["w"] <= 24 for place in places)
    for a, b in combinations(places, 2):
        assert any(a[at] + a[size] <= b[at] or b[at] + b[size] <= a[at] for at, size in (("x", "w"), ("y", "h")))
    assert len({panel["id"] for panel in dashboard["panels"]}) == len(places) > 10
    declared = {each["name"] for each in dashboard["templating"]["list"]} | {"__rate_interval"}
    assert set(re.findall(r"\$\{?(\w+)", json.dumps(dashboard))) <= declared
    assert {json.dumps(panel["datasource"]) for panel in dashboard["panels"]} == {
        json.dumps({"type": "prometheus", "uid": "${datasource}"})
    }


def test_calls_are_logged_with_their_figures(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("DEBUG", "ddflow")
    with flow().open() as engine:
        engine.step(pa.table({"id": [1], "city": ["Bern"]}))
    record = next(each for each in caplog.records if each.message.startswith("step: 1 row in"))
    assert vars(record)["ddflow"]["updates"] == {"by_city": 1}
    json.dumps(vars(record)["ddflow"])
