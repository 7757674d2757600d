"""Test the Spark bench on small inputs: contenders are right, errors are detected, and results are complete.

The tests never assert time. The contenders share one Spark session; only the test of the program starts a separate
session. These tests run only in soaks, because other tests cover the engine, and the peers are not part of ddflow.
"""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

BENCH = Path(__file__).resolve().parents[2] / "bench"
sys.path.insert(0, str(BENCH))

peers = importlib.import_module("spark_peers")
program = importlib.import_module("spark")
runner = importlib.import_module("runner")
work = importlib.import_module("spark_files")
workloads = importlib.import_module("workloads")

pytestmark = pytest.mark.together("spark")


ROWS = 3000  # in three batches: a key that went from the state in the second is seen in the third
STEP = 1000
STREAMED = [name for name in peers.STREAMS if program.able(name)]


@pytest.fixture(autouse=True)
def data(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DDFLOW_BENCH_DATA", str(tmp_path_factory.getbasetemp() / "bench-data"))


def job(contender: str, step: int = 0, **more: Any) -> Any:
    return work.Task("batch", "tiny", contender, ROWS, step, **more)


def right(asked: Any, sample: Any) -> bool:
    expected = work.expected(asked)
    return expected.updates > STEP // 4 and (sample["updates"], sample["checksum"]) == tuple(expected)


@pytest.mark.soak
@pytest.mark.parametrize("name", [name for name in peers.BATCH if name not in program.IDLE])
def test_what_takes_everything_at_once_gives_the_updates(spark: SparkSession, name: str) -> None:
    sample = program.measured(job(name), spark)
    assert right(job(name), sample)
    assert sample["counted"] == ROWS and sample["seconds"] > 0


@pytest.mark.soak
@pytest.mark.parametrize("name", [name for name in STREAMED if name not in program.IDLE])
def test_what_streams_gives_the_updates_and_keeps_state(spark: SparkSession, name: str) -> None:
    asked = job(name, STEP, skip=1)
    sample = program.measured(asked, spark)
    assert right(asked, sample)
    assert len(sample["batch_ms"]) == 3 and sample["counted"] == 2000 and sample["state"] > sample["live"] > 0


@pytest.mark.soak
@pytest.mark.parametrize(
    ("query", "step"),
    [
        ("upsert", 0),
        ("count", STEP),
        ("revenue", STEP),
        ("revenue", 0),
    ],
)
def test_ddflow_gives_the_updates_at_once_and_streamed(spark: SparkSession, query: str, step: int) -> None:
    asked = job("ddflow", step, query=query, skip=1 if step else 0)
    sample = program.measured(asked, spark)
    assert right(asked, sample)
    assert sample["state"] > sample["live"] > 0 and sample["figures"]["step"] > 0
    assert (len(sample["batch_ms"]), sample["counted"]) == ((3, 2000) if step else (0, ROWS))


@pytest.mark.soak
@pytest.mark.parametrize(("name", "step"), [("ceiling", 0), ("floor", STEP)])
def test_the_idle_pass_every_row_on(spark: SparkSession, name: str, step: int) -> None:
    sample = program.measured(job(name, step), spark)
    assert (sample["updates"], sample["counted"]) == (0, ROWS)
    with pytest.raises(AssertionError, match=r"floor read 3,000 rows of 5,000"):
        program.check_rows(job("floor")._replace(rows=5000), ROWS)


@pytest.mark.soak
def test_the_operators_of_all_kinds_agree_where_rows_come_in_any_order() -> None:
    events = [(at, at // 3, None if at % 7 == 3 else at % 4) for at in range(50)]
    assert peers.updates(1, None, events) == peers.updates(1, None, events[::-1])
    last, out = peers.updates(1, None, events)
    held = [val for _, val, _, diff in out for _ in range(diff)]
    gone = [val for _, val, _, diff in out for _ in range(-diff)]
    assert sorted(held) == sorted([*gone, last])


@pytest.mark.soak
def test_input_is_cut_at_times_and_its_first_batch_may_be_larger() -> None:
    loading = work.Task("small", "small", "floor", 5000, 1000, loaded=3000)
    tables = [pa.parquet.read_table(path) for path in work.files(loading)]
    assert [table.num_rows for table in tables] == [3000, 1000, 1000]
    assert len(set(tables[0]["key"].to_pylist())) == 3000
    assert [set(table["time"].to_pylist()) for table in tables] == [{0}, {1}, {2}]
    assert work.events("small", 4000, 1000, 3000).equals(pa.concat_tables(tables).slice(0, 4000))
    changed = [path.stat().st_mtime for path in work.files(loading)]
    assert changed == sorted(set(changed))


@pytest.mark.soak
def test_a_wrong_answer_is_noticed() -> None:
    asked, known = runner.Job(job("lag")._asdict()), [3, "0a"]
    wrong = program.BENCH.wrong(asked, {"updates": 3, "checksum": "0b"}, known)
    assert wrong == "3 updates with checksum 0b, expected 3 with 0a"
    assert program.BENCH.wrong(asked, {"updates": 3, "checksum": "0a"}, known) is None


@pytest.mark.soak
def test_a_run_checks_answers_and_leaves_figures_of_all_processes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(runner.machine, "uncommitted", list)
    chosen = ["--only", "workload=tiny", "line=batch", "contender=lag", "--rounds", "1", "--out", str(tmp_path)]
    assert runner.main(program.BENCH, chosen) == 0
    assert "batch, tiny" in capsys.readouterr().out
    result = json.loads((tmp_path / "spark-partial-tiny.json").read_text())
    assert {"pyspark", "commit"} <= result["machine"].keys()
    (row,) = result["results"]
    assert row["resident"][0] > row["private"][0] > 200_000_000  # the JVM is among them
    assert row["rows"] == 20_000 and row["updates"] == 27_874
    assert (tmp_path / "spark-partial-tiny.md").read_text().count("| lag | upsert | 20,000 |") == 1


def row(line: str, workload: str, contender: str, rate: float, **more: Any) -> dict[str, Any]:
    return {
        "line": line,
        "workload": workload,
        "contender": contender,
        "query": "upsert",
        "rows": 10**6,
        "m_rows_per_s": rate,
        "median_batch_ms": None,
        "live": [1],
        **more,
    }


@pytest.mark.soak
def test_bars_say_what_the_figures_say() -> None:
    results = [
        row("batch", "w1", "ceiling", 3.0),
        row("batch", "w1", "ddflow", 1.1),
        row("batch", "w1", "lag", 0.9),
        row("stream-100k", "w1s", "ddflow", 0.2),
        row("stream-100k", "w1s", "ddflow", 0.1, rows=300_000, live=[40]),
        row("stream-100k", "w1s", "rows", 0.0074, rows=300_000, live=[100]),
        row("small", "small", "floor", 0.1, median_batch_ms=300.0),
        row("small", "small", "ddflow", 0.1, median_batch_ms=460.0),
        row("stream-1m", "w1", "ddflow", 0.71),
    ]
    found = {(bar.line, bar.peer): bar for bar in program.BENCH.bars({"results": results})}
    assert [(bar.met, None if bar.ratio is None else round(bar.ratio, 2)) for bar in found.values()] == [
        (False, 0.37),
        (True, 1.22),
        (True, 27.03),
        (True, None),
        (False, None),
        (True, None),
    ]
    assert found["state on disk, w1s, 300 k rows", "rows 0.00 MB"].met
    assert found["1 k rows on the state", "floor 300 ms"].ours == "460 ms"
