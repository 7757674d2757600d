"""Test the dashboard on a real Prometheus: each panel shows a run's figures, and ``promtool`` finds no error."""

from __future__ import annotations

import json
import math
import re
import subprocess
import time
import urllib.request
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from prometheus_client import CollectorRegistry
from prometheus_server import Prometheus

import ddflow as dd
from ddflow.exporters.to_prometheus import PrometheusExporter

DASHBOARD: dict[str, Any] = json.loads(
    (Path(__file__).parents[2] / "examples" / "monitoring" / "grafana.json").read_text()
)
TARGETS = [
    (target["expr"].replace("$__rate_interval", "2s").replace("$flow", "shop|other"), target["legendFormat"])
    for panel in DASHBOARD["panels"]
    for target in panel["targets"]
]
PATIENCE = 30


def test_every_panel_shows_a_run(tmp_path: Path) -> None:
    """Each expression has finite values, and each label of its legend is one of the series."""
    landing = tmp_path / "landing"
    landing.mkdir()
    flow = dd.Flow()
    orders = flow.upserts("orders", {"id": int, "city": str}, dd.Upsert(key="id"))
    flow.output("by_city", orders.count("city"))
    exporter = PrometheusExporter("shop", CollectorRegistry())
    served = exporter.serve("0")
    at = urlsplit(served).netloc
    sources = {"orders": dd.sources.files(str(landing / "*.csv"))}
    sinks = {"by_city": dd.sinks.sqlite(tmp_path / "shop.db", "by_city")}
    empty, end = dict(TARGETS), time.monotonic() + PATIENCE
    with (
        Prometheus(tmp_path, at) as server,
        flow.open(tmp_path / "state", metrics=exporter) as engine,
    ):
        while empty and time.monotonic() < end:
            (landing / f"{engine.last or 0:03}.csv").write_text(f"id,city\n1,Bern\n{engine.last or 0},Chur\n")
            engine.run(sources, sinks)
            empty = {
                expression: legend for expression, legend in empty.items() if not shown(server, expression, legend)
            }
    assert empty == {}
    with urllib.request.urlopen(served) as page:
        checked = subprocess.run(["promtool", "check", "metrics"], input=page.read(), capture_output=True)
    assert (checked.returncode, checked.stdout, checked.stderr) == (0, b"", b"")


def shown(server: Prometheus, expression: str, legend: str) -> bool:
    """Whether an expression has values that a panel can draw, with the labels of its legend."""
    series, labels = server.query(expression), set(re.findall(r"{{(\w+)}}", legend))
    return bool(series) and all(math.isfinite(value) and labels <= set(each) for each, value in series)
