"""Test the connectors bench on few rows: the rows of each line equal numpy's, and bars compare ddflow with peers."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "bench"))  # its files import each other as such

connectors = importlib.import_module("connectors")
runner = importlib.import_module("runner")

LINES = [
    *[("debezium", each) for each in ("ddflow", "from_json", "json.loads")],
    *[("kafka", each) for each in ("ddflow", "consume")],
    *[("duckdb changelog", each) for each in ("ddflow", "append")],
    *[("delta upsert", each) for each in ("ddflow", "merge")],
]


@pytest.mark.parametrize(("line", "contender"), LINES)
def test_a_line_of_connectors_leaves_what_numpy_finds(line: str, contender: str) -> None:
    job = runner.Job({"line": line, "contender": contender, "rows": 300})
    sample, question = connectors.BENCH.measure(**job.what), connectors.BENCH.question(job)
    expected = None if question is None else connectors.BENCH.expected(**question)
    assert connectors.BENCH.wrong(job, sample, expected) is None
    assert connectors.BENCH.row(job, [sample])["rows"] in (300, 900)
    other = {**sample, "checksum": "299"}
    assert (question is None) == (connectors.BENCH.wrong(job, other, expected) is None)


def test_the_bars_of_connectors_are_of_their_peers() -> None:
    def row(line: str, contender: str, seconds: float, **more: Any) -> dict[str, Any]:
        rate = {"rows": 60_000, "seconds": [seconds], "cpu_seconds": [seconds], "thousands": 60 / seconds}
        return {"line": line, "contender": contender, **rate, **more}

    rows = [row("debezium", "ddflow", 1.0), row("debezium", "from_json", 0.9), row("debezium", "json.loads", 4.0)]
    rows += [row("postgres upsert", "ddflow", 1.0), row("postgres upsert", "copy", 0.1)]
    rows += [row("delta upsert", "ddflow", 1.1), row("delta upsert", "merge", 1.0)]
    rows += [row("duckdb upsert", "ddflow", 1.3), row("duckdb upsert", "merge", 1.0)]
    compared = connectors.BENCH.compared([*rows, row("visible", "ddflow", 1.0, step_ms=60.0)])
    assert [round(each["over_peer"], 2) for each in compared if "over_peer" in each] == [0.9, 0.1, 0.91, 0.77]
    met = [(bar.line, bar.met) for bar in connectors.BENCH.bars({"results": compared})]
    assert met == [
        *[("debezium", True), ("debezium", False), ("delta upsert", True), ("duckdb upsert", False)],
        *[("postgres upsert", True), ("visible", False)],
    ]
