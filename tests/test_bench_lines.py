"""The benches of latency, footprint and growth on small inputs, and the bars that are computed from all results.

Time is never asserted here; what is measured must be whole, and a bar must say what its figures say.
"""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

pytestmark = pytest.mark.soak  # of the bench, which users do not have; tests/test_bench_smoke.py runs always

BENCH = Path(__file__).resolve().parent.parent / "bench"
sys.path.insert(0, str(BENCH))  # its files are programs and import each other as such

bars = importlib.import_module("bars")
footprint = importlib.import_module("footprint")
growth = importlib.import_module("growth")
latency = importlib.import_module("latency")
receipts = importlib.import_module("receipts")
upsert = importlib.import_module("upsert")


@pytest.fixture(autouse=True)
def data(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DDFLOW_BENCH_DATA", str(tmp_path_factory.getbasetemp() / "bench-data"))


def test_every_step_of_the_latency_bench_counts() -> None:
    rows = latency.run({"1": 30, "100": 20, "1500": 5}, keys=3_000)
    assert [(row["events"], row["steps"], len(row["us"])) for row in rows] == [(1, 30, 30), (100, 20, 20), (1500, 5, 5)]
    for row in rows:
        assert 0 < row["median_us"] <= row["p99_us"] <= row["max_us"] == pytest.approx(max(row["us"]), abs=0.1)


def test_the_latency_bench_notices_a_row_too_few() -> None:
    given = pa.table({"key": [1, 2, 1], "val": [5, 6, None], "time": [0, 0, 1]})
    latency._check(pa.table({"key": [2], "val": [6]}), [given])
    with pytest.raises(AssertionError, match="not the 1 that the events leave"):
        latency._check(pa.table({"key": [2], "val": [7]}), [given])


def test_the_footprint_is_told_by_both_accounts() -> None:
    found = footprint.run("tiny")
    assert found["keys"] == 1_920
    assert found["bytes_per_key"] == found["bytes_resident"] / 1_920 > 16


def test_growth_counts_the_steps_after_loading_only(tmp_path: Path) -> None:
    row = growth.run(3_000, 40_000, None)
    assert (row["keys"], row["events"], row["spilled"]) == (3_000, 40_000, False)
    assert row["ns_per_event"] * 40_000 / 1e6 >= row["longest_ms"] > 0
    growth.plot([row, row | {"keys": 30_000}, row | {"spilled": True}], tmp_path / "growth.png")
    assert (tmp_path / "growth.png").read_bytes().startswith(b"\x89PNG")


def test_receipts_of_real_parts_are_committed_and_held_to_their_bar() -> None:
    row = receipts.run(20, 3)
    assert (row["partitions"], row["receipts"]) == (20, 40)
    assert len(row["begin_ms"]) == len(row["finish_ms"]) == 2 and min(row["finish_ms"]) > 0
    assert row["files"] >= 3 * 20 and row["files_there"] > row["files"]
    slow = row | {"partitions": 1000, "finish_ms": [900.0, 1001.0, 1002.0]}
    (bar,) = bars.bars_of({"bench": "receipts", "results": [row, slow]})
    assert not bar.met and (bar.ours, bar.wanted) == ("1001 ms", "1,000 ms")


@pytest.mark.parametrize("bench", [latency, footprint, growth])
def test_each_bench_leaves_json_a_table_and_bars_behind(bench: Any, tmp_path: Path) -> None:
    small = {latency: ["--part", "0.01"], footprint: ["--workload", "tiny"], growth: ["--keys", "2000", "--in-memory"]}
    assert bench.main([*small[bench], "--out", str(tmp_path)]) == 0
    (path,) = tmp_path.glob("*-partial.json")
    result = json.loads(path.read_text())
    assert result["bench"] == bench.__name__ and result["results"] and "cpu" in result["machine"]
    assert "## Bars" in path.with_suffix(".md").read_text()


def upserts(**rates: float) -> dict[str, Any]:
    results = []
    for key, rate in rates.items():
        workload, line, contender = key.split("__")
        row = {"workload": workload, "line": line, "contender": contender.replace("_", "-"), "m_upserts_per_s": rate}
        results.append(row)
    return {"bench": "upsert", "results": results}


def test_the_ratio_decides_and_not_the_rate() -> None:
    slow = upserts(w1__upsert__ddflow=4.0, w1__upsert__numpy=0.7, w1__upsert__limit=7.0)
    found = {bar.peer: bar for bar in bars.bars_of(slow)}
    assert found["numpy 0.7"].met and found["numpy 0.7"].wanted == "8.0 M/s"
    assert not found["limit 7.0"].met and found["limit 7.0"].ratio == pytest.approx(4 / 7)


def test_a_line_that_was_not_run_has_no_bar() -> None:
    assert bars.bars_of(upserts(w1__upsert__ddflow=4.0, w1__count__ddflow=9.0)) == []


def test_latency_growth_and_footprint_are_held_to_what_was_asked() -> None:
    steps = [{"events": n, "median_us": us, "p99_us": 9, "max_us": 9} for n, us in ((1, 100), (10, 111))]
    assert [bar.met for bar in bars.bars_of({"bench": "latency", "results": steps})] == [True, False]
    sizes = [{"keys": 10**n, "ns_per_event": ns, "spilled": False} for n, ns in ((4, 100), (6, 999), (7, 175))]
    (bar,) = bars.bars_of({"bench": "growth", "results": sizes})
    assert bar.met and bar.wanted == "1.75 times"
    held = [{"workload": "w1", "bytes_per_key": bytes_, "private_per_key": 150} for bytes_ in (100, 101)]
    assert [bar.met for bar in bars.bars_of({"bench": "footprint", "results": held})] == [True, False]


def test_a_large_run_is_held_to_its_peers_on_the_same_upserts_and_to_its_budget() -> None:
    def row(contender: str, rate: float, events: int, over: int) -> dict[str, Any]:
        named = {"workload": "w1l", "steps": "in steps of 100 k", "contender": contender, "events": events}
        return {**named, "failed": None, "late_m_per_s": rate, "private_over_idle": over, "mapped_over_idle": 0}

    results = [row("ddflow", 0.5, 20, 147_000_000), row("ddflow", 0.4, 50, 148_000_000)]
    results += [row("rocksdict", 0.2, 20, 0), row("duckdb", 0.1, 20, 0)]
    found = bars.bars_of({"bench": "large", "budget": 128_000_000, "results": results})
    assert [(bar.ratio, bar.met) for bar in found if bar.ratio] == [(2.5, False), (5.0, True)]
    assert [bar.met for bar in found if bar.ratio is None] == [True, False]


def test_the_bars_of_stored_results_are_shown_together(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    about = {"cpu": "a processor", "commit": "abc", "date": "a day"}
    path = tmp_path / "upsert-1.json"
    path.write_text(json.dumps({**upserts(w1__upsert__ddflow=9.0, w1__upsert__numpy=1.5), "machine": about}))
    (tmp_path / "latency-1-partial.json").write_text("{}")
    assert bars.newest(tmp_path) == [path]
    assert bars.main([str(path)]) == 0
    assert "W1 upsert" in capsys.readouterr().out
    path.write_text(json.dumps({**upserts(w1__upsert__ddflow=1.0, w1__upsert__numpy=1.5), "machine": about}))
    assert bars.main([str(path)]) == 1
    assert "NO" in capsys.readouterr().out


def test_everybody_asked_for_takes_part_and_on_zipf_keys_only_some_unasked() -> None:
    def chosen(*arguments: str) -> set[tuple[str, str]]:
        return {(job.contender, job.line) for job in upsert.select(upsert.parser().parse_args(arguments))}

    everybody = {contender for contender, _ in chosen("--workload", "w1z", "--all")}
    assert {contender for contender, _ in chosen("--workload", "w1z")} == {"ddflow", "limit", "limit-plain", "numpy"}
    assert {"dict", "polars-2t", "ddflow-2t"} <= everybody
    assert chosen("--workload", "wide") == {
        ("ddflow", "upsert"),
        ("ddflow-2t", "upsert"),
        ("duckdb-wide-1t", "upsert"),
        ("duckdb-wide-2t", "upsert"),
    }
    assert ("ddflow", "backfill") in chosen("--workload", "w1") and ("ddflow", "epoch") in chosen("--workload", "w1")
