"""Test the benches latency, footprint and growth on small inputs, and the bars (targets) of all results.

The tests never assert time. They assert that measurements are complete, and that bars follow from the figures.
"""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

pytestmark = pytest.mark.soak  # of the bench, which users do not have; tests/bench/test_bench_smoke.py runs always

BENCH = Path(__file__).resolve().parents[2] / "bench"
sys.path.insert(0, str(BENCH))  # its files are programs and import each other as such

footprint = importlib.import_module("footprint")
growth = importlib.import_module("growth")
latency = importlib.import_module("latency")
receipts = importlib.import_module("receipts")
report = importlib.import_module("report")
runner = importlib.import_module("runner")
upsert = importlib.import_module("upsert")


def bars_of(name: str, results: list[dict[str, Any]]) -> list[Any]:
    return list(runner.load(name).bars({"results": results}))


@pytest.fixture(autouse=True)
def data(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DDFLOW_BENCH_DATA", str(tmp_path_factory.getbasetemp() / "bench-data"))


def test_every_step_of_the_latency_bench_counts() -> None:
    for events, steps in ((1, 30), (100, 20), (1500, 5)):
        row = latency.BENCH.measure("upsert", events, steps, keys=3_000)
        assert len(row["us"]) == steps
        assert 0 < row["median_us"] <= row["p99_us"] <= row["max_us"] == pytest.approx(max(row["us"]), abs=0.1)


def test_the_latency_bench_notices_a_row_too_few() -> None:
    given = pa.table({"key": [1, 2, 1], "val": [5, 6, None], "time": [0, 0, 1]})
    latency.check(pa.table({"key": [2], "val": [6]}), [given])
    with pytest.raises(AssertionError, match="not the 1 that the events leave"):
        latency.check(pa.table({"key": [2], "val": [7]}), [given])


def test_the_footprint_is_found_by_both_accounts() -> None:
    found = footprint.BENCH.measure("tiny")
    assert found["keys"] == 1_920
    assert found["bytes_per_key"] == found["bytes_resident"] / 1_920 > 16


def test_growth_counts_the_steps_after_loading_only(tmp_path: Path) -> None:
    row = {"keys": 3_000, **growth.BENCH.measure(3_000, None, 40_000)}
    assert (row["events"], row["spilled"]) == (40_000, False)
    assert row["ns_per_event"] * 40_000 / 1e6 >= row["longest_ms"] > 0
    result = {"results": [row, row | {"keys": 30_000}, row | {"spilled": True}]}
    report.draw(growth.BENCH.panels(result), tmp_path / "growth.png")
    assert (tmp_path / "growth.png").read_bytes().startswith(b"\x89PNG")


def test_receipts_of_real_tasks_are_committed_and_held_to_their_bar() -> None:
    row = {"partitions": 20, **receipts.BENCH.measure(20, 3)}
    assert row["receipts"] == 40
    assert len(row["begin_ms"]) == len(row["finish_ms"]) == 2 and min(row["finish_ms"]) > 0
    assert row["files"] >= 3 * 20 and row["files_there"] > row["files"]
    slow = row | {"partitions": 1000, "finish_ms": [900.0, 1001.0, 1002.0]}
    (bar,) = bars_of("receipts", [row, slow])
    assert not bar.met and (bar.ours, bar.wanted) == ("1001 ms", "1,000 ms")


SMALL = {
    "latency": ["--set", "keys=3000", "steps=10"],
    "get": ["--only", "line=input,top", "state=durable,duckdb", "--set", "keys=3000", "gets=20"],
    "footprint": ["--only", "workload=tiny"],
    "growth": ["--only", "keys=10000", "--set", "keys=2000"],
    "scaling": ["--only", "step=100000", "line=upsert", "budget=None", "--set", "n=20000", "turns=1"],
    "durable": ["--only", "keys=100000", "--set", "keys=5000", "epochs=3"],
    "receipts": ["--only", "partitions=10", "--set", "partitions=3", "epochs=2"],
    "noops": ["--set", "commits=3"],
    "tables": ["--only", "key=int64", "--set", "n=1000"],
    "operators": ["--only", "line=count,revenue", "--quick", "--set", "rows=30000"],
}


@pytest.mark.parametrize("name", SMALL)
def test_each_bench_leaves_json_and_a_table_behind(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner.machine, "uncommitted", list)
    assert runner.main(runner.load(name), [*SMALL[name], "--out", str(tmp_path)]) == 0
    (path,) = tmp_path.glob("*-partial*.json")
    result = json.loads(path.read_text())
    assert result["bench"] == name and result["results"] and "cpu" in result["machine"]
    assert path.with_suffix(".md").read_text().count("\n| ") > len(result["results"])


def upserts(**rates: float) -> list[dict[str, Any]]:
    results = []
    for key, rate in rates.items():
        workload, line, contender = key.split("__")
        row = {"workload": workload, "line": line, "contender": contender.replace("_", "-"), "m_upserts_per_s": rate}
        results.append(row)
    return results


def test_the_ratio_decides_and_not_the_rate() -> None:
    slow = upserts(w1__upsert__ddflow=4.0, w1__upsert__numpy=0.7, w1__upsert__limit=7.0)
    found = {bar.peer: bar for bar in bars_of("upsert", slow)}
    assert found["numpy 0.7"].met and found["numpy 0.7"].wanted == "8.0 M/s"
    assert not found["limit 7.0"].met and found["limit 7.0"].ratio == pytest.approx(4 / 7)


def test_a_line_that_was_not_run_has_no_bar() -> None:
    assert bars_of("upsert", upserts(w1__upsert__ddflow=4.0, w1__count__ddflow=9.0)) == []


def test_latency_growth_and_footprint_are_held_to_what_was_asked() -> None:
    steps = [{"events": n, "median_us": us, "p99_us": 9, "max_us": 9} for n, us in ((1, 100), (10, 111))]
    assert [bar.met for bar in bars_of("latency", steps)] == [True, False]
    sizes = [{"keys": 10**n, "ns_per_event": ns, "spilled": False} for n, ns in ((4, 100), (6, 999), (7, 175))]
    (bar,) = bars_of("growth", sizes)
    assert bar.met and bar.wanted == "1.75 times"
    held = [{"workload": "w1", "bytes_per_key": bytes_, "private_per_key": 150} for bytes_ in (100, 101)]
    assert [bar.met for bar in bars_of("footprint", held)] == [True, False]


def test_threads_are_held_to_bare_loops_and_never_slower_than_one() -> None:
    row = {"line": "upsert", "step": 100_000, "budget": None, "gain": 1.5, "bare_gain": 1.6, "of_bare": 1.5 / 1.6}
    rows = [row, row | {"step": 10_000, "gain": 0.94}, row | {"budget": "128MB", "of_bare": 0.7}]
    rows += [row | {"line": "join"}, row | {"line": "join", "gain": 1.6, "of_bare": 0.8}]
    met = [True, True, False, False, True, False, True, True, True]
    assert [bar.met for bar in bars_of("scaling", rows)] == met


def test_a_large_run_is_held_to_its_peers_on_the_same_upserts_and_to_its_budget() -> None:
    def row(contender: str, rate: float, events: int, over: int) -> dict[str, Any]:
        named = {"workload": "w1l", "steps": "in steps of 100 k", "contender": contender, "events": events}
        named["memory"] = "128MB"
        return {**named, "failed": None, "late_m_per_s": rate, "private_over_idle": over, "mapped_over_idle": 0}

    results = [row("ddflow", 0.5, 20, 147_000_000), row("ddflow", 0.4, 50, 148_000_000)]
    results += [row("rocksdict", 0.2, 20, 0), row("duckdb", 0.1, 20, 0)]
    found = bars_of("large", results)
    assert [(bar.ratio, bar.met) for bar in found if bar.ratio] == [(2.5, False), (5.0, True)]
    assert [bar.met for bar in found if bar.ratio is None] == [True, False]


def test_the_bars_of_stored_results_are_shown_together(tmp_path: Path) -> None:
    about = {"cpu": "a processor", "commit": "abc", "date": "a day"}
    path = tmp_path / "upsert.json"
    for rate, code, said in ((9.0, 0, "│ yes │"), (1.0, 1, "│  no │")):
        results = upserts(w1__upsert__ddflow=rate, w1__upsert__numpy=1.5)
        path.write_text(json.dumps({"bench": "upsert", "results": results, "machine": about}))
        done = subprocess.run([sys.executable, BENCH, "bars", path], capture_output=True, text=True)
        assert done.returncode == code and "W1 upsert" in done.stdout and said in done.stdout


def test_everybody_asked_for_takes_part_and_on_zipf_keys_only_some_unasked() -> None:
    def chosen(*only: str) -> set[tuple[str, str]]:
        options = runner.parser(upsert.BENCH).parse_args(["--only", *only])
        return {(job.what["contender"], job.what["line"]) for job in runner.choose(upsert.BENCH, options)}

    everybody = {who for who, _ in chosen("workload=w1z", "contender=dict,polars-2t,ddflow-2t,numpy")}
    assert {who for who, _ in chosen("workload=w1z")} == {"ddflow", "limit", "limit-plain", "numpy"}
    assert everybody == {"dict", "polars-2t", "ddflow-2t", "numpy"}
    wide = {("ddflow", "upsert"), ("ddflow-2t", "upsert"), ("duckdb-wide-1t", "upsert"), ("duckdb-wide-2t", "upsert")}
    assert chosen("workload=wide") == wide
    assert {("ddflow", "backfill"), ("ddflow", "epoch")} <= chosen("workload=w1")
    assert ("dict", "count") in chosen("workload=w1s") and ("dict", "count") not in chosen("workload=w1")
