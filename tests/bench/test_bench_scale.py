"""Test the scale bench: its model follows from its constants, and its constants come from real states."""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path
from typing import Any

import pytest

BENCH = Path(__file__).resolve().parents[2] / "bench"
sys.path.insert(0, str(BENCH))  # its files import each other as such

model = importlib.import_module("scale_model")
scale = importlib.import_module("scale")
report = importlib.import_module("report")


def engine(size: int) -> dict[str, Any]:
    """What an engine would cost of which everything is known."""
    return {
        "part": "engine",
        "size": size,
        "state_bytes": 60 * size,
        "memory_bytes": 90 * size,
        "reopen_seconds": size / 1e7,
        "files": 40,
        "written": 1e6,
        "epoch_cpu_ms": 12.0,
        "puts": 4.0,
        "sync_ms": 0.5,
        "rows": 10_000,
        "written_kb": 1e3,
        "inventory_kb": 9.0,
    }


def driver(size: int) -> dict[str, Any]:
    return {
        "part": "driver",
        "size": size,
        "receipts": 2 * size,
        "finish_ms": 0.1 * size,
        "manifest_bytes": 1000 * size,
        "manifest_kb": size,
        "held_bytes": 10_000 * size,
        "held_kb": 10 * size,
        "told_bytes": 4000 * size,
        "live_files": 100 * size,
        "open_seconds": 1e-4 * size,
        "task_requests": {"put": 3.0, "get": 0.0, "list": 0.0, "delete": 3.0},
        "driver_requests": {"put": 2.0, "get": 0.0, "list": 0.0, "delete": 1.0},
    }


def rows() -> list[dict[str, Any]]:
    return [engine(10**5), engine(10**6), engine(10**7), driver(50), driver(200), driver(600)]


def test_the_model_says_what_its_constants_say() -> None:
    found = scale.BENCH.compared(rows())
    told = {(r["keys"], r["partitions"], r["rate_m"], r["place"]): r for r in found if r["part"] == "model"}
    assert len(told) == 16
    small, large = told[10**9, 10**3, 1.0, "folder"], told[10**10, 10**4, 10.0, "bucket"]
    assert small["core_bytes"] == pytest.approx(90 * 10**6 * 2)
    assert small["commit_s"] == pytest.approx(0.1 + (3 + 2) * 0.5e-3)
    assert small["files"] == 2000 * (50 + 40) and small["cost"] == small["requests_m"] == 0
    puts = 3 * 20_000 + 2
    assert large["cost"] > puts * 8640 * 5e-6 and large["first"] == "writes to the bucket"
    assert large["share"] == pytest.approx(puts / model.EPOCH / model.PUTS)
    # More of anything is never cheaper.
    for (keys, partitions, rate, place), each in told.items():
        if keys == 10**9:
            assert told[10**10, partitions, rate, place]["recovery_s"] > each["recovery_s"]
        if rate == 1.0:
            assert told[keys, partitions, 10.0, place]["tasks_s"] > each["tasks_s"]
        if place == "folder":
            assert told[keys, partitions, rate, "bucket"]["commit_s"] > each["commit_s"]


def test_a_prediction_that_is_off_is_told() -> None:
    good = scale.BENCH.compared(rows())
    assert all(bar.met for bar in scale.BENCH.bars({"results": good}))
    assert len(list(scale.BENCH.bars({"results": good}))) == 10
    bad = rows()
    bad[2]["reopen_seconds"] *= 2
    missed = [bar.line for bar in scale.BENCH.bars({"results": scale.BENCH.compared(bad)}) if not bar.met]
    assert missed == ["reopen_seconds of 10,000,000 keys"]


def test_a_report_has_the_model_and_what_it_assumes() -> None:
    result = {"bench": "scale", "machine": {}, "results": json.loads(json.dumps(scale.BENCH.compared(rows())))}
    text = report.markdown(scale.BENCH, result, head=False)
    assert text.count("| 1e+10 |") == 8 and "Assumed: epochs of 10 s" in text and "first at its limit" in text


def test_without_two_sizes_of_either_there_is_no_model() -> None:
    assert scale.BENCH.compared([engine(5), driver(5)]) == [engine(5), driver(5)]


@pytest.mark.soak
def test_constants_come_of_real_states() -> None:
    found = [
        {"part": part, "size": size, **scale.BENCH.measure(part, size, 3)}
        for part, sizes in (("engine", (20_000, 60_000, 120_000)), ("driver", (4, 8, 16)))
        for size in sizes
    ]
    compared = scale.BENCH.compared(found)
    assert sum(row["part"] == "model" for row in compared) == 16
    assert [row["size"] for row in compared if "predicted" in row] == [120_000, 16]
    asked = found[-1]["task_requests"]
    assert 2 <= asked["put"] <= 5 and asked["list"] == 0
