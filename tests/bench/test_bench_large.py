"""Test the bench of state on disk on small inputs: every contender is right at every mark.

The tests never assert time. They assert memory only for memory that the test itself allocates.
"""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

pytestmark = pytest.mark.soak  # of the bench, which users do not have; tests/bench/test_bench_smoke.py runs always

BENCH = Path(__file__).resolve().parents[2] / "bench"
sys.path.insert(0, str(BENCH))  # its files are programs and import each other as such

large = importlib.import_module("large")
memory = importlib.import_module("memory")
peers = importlib.import_module("peers")
pieces = importlib.import_module("pieces")
runner = importlib.import_module("runner")

TINY = ("tinyl", "tinyl3")


def job(workload: str, contender: str, step: int) -> Any:
    what = {"workload": workload, "contender": contender, "step": step, "events": 60_000, "memory": "128MB"}
    return runner.Job(what)


def checked(asked: Any) -> dict[str, Any]:
    """The sample of a job, which must be right."""
    sample = large.BENCH.measure(**asked.what)
    assert large.BENCH.wrong(asked, sample, large.BENCH.expected(asked.what["workload"], 60_000)) is None
    return sample


@pytest.fixture(autouse=True)
def committed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner.machine, "uncommitted", list)


@pytest.mark.parametrize("name", TINY)
def test_the_reference_agrees_with_a_dict_loop_and_with_what_is_known(name: str) -> None:
    shape = pieces.LARGE[name]
    marks, epoch = pieces.reference(shape, 60_000, 10_000)
    counted = pieces.Marks(60_000)
    counted.add(peers.dict_loop(pa.Table.from_batches(pieces.pieces(shape, 0, 60_000))), 60_000)
    assert counted.seen == marks[-1:]
    assert tuple(marks[-1][1:]) == pieces.KNOWN[name, 60_000]
    assert [mark.events for mark in marks] == list(range(10_000, 60_001, 10_000))
    assert 0 < epoch.updates < shape.keys


def test_a_prefix_is_the_same_upserts_in_whatever_steps() -> None:
    shape = pieces.LARGE["tinyl"]
    whole = pa.Table.from_batches(pieces.pieces(shape, 0, 25_000))
    steps = [*pieces.pieces(shape, 0, 20_000), *pieces.pieces(shape, 20_000, 25_000)]
    assert whole.equals(pa.Table.from_batches(steps)) and whole.num_rows == 25_000
    times = whole["time"].to_pylist()
    assert times == sorted(times) and times.count(times[0]) == shape.per_time


@pytest.mark.parametrize("step", [20_000, 0])
@pytest.mark.parametrize("contender", [name for name in large.CONTENDERS if name != "ddflow-epoch"])
@pytest.mark.parametrize("name", TINY)
def test_a_contender_on_disk_gives_the_known_updates_at_every_mark(name: str, contender: str, step: int) -> None:
    sample = checked(job(name, contender, step))
    assert sample["seconds"] >= sample["late_seconds"] > 0
    assert sample["late_events"] == (step or 60_000)


@pytest.mark.parametrize("name", TINY)
def test_one_epoch_gives_the_live_rows(name: str) -> None:
    checked(job(name, "ddflow-epoch", 0))


def test_a_wrong_mark_a_missing_end_and_a_wrong_epoch_are_noticed() -> None:
    asked = job("tinyl", "rocksdict", 20_000)
    sample, wrong = checked(asked), large.BENCH.wrong
    marks, epoch = large.BENCH.expected("tinyl", 60_000)
    other = [[*mark[:2], "0" * 16] if mark[0] == 40_000 else mark for mark in marks]
    assert "after 40,000 upserts" in wrong(asked, sample, [other, epoch])
    assert "60,000 of 70,000" in wrong(runner.Job({**asked.what, "events": 70_000}), sample, [marks, epoch])
    assert "expected" in wrong(runner.Job({**asked.what, "contender": "ddflow-epoch"}), sample, [marks, [1, "0"]])


def test_everybody_takes_the_prefix_and_ddflow_the_rest_too() -> None:
    options = runner.parser(large.BENCH).parse_args(["--only", "workload=w1l", "--set", "events=5000000"])
    jobs = [each.what for each in runner.choose(large.BENCH, options)]
    taken = {(each["contender"], each["step"], each["events"]) for each in jobs}
    for contender in ("ddflow", "rocksdict", "rocksdict-mapped", "duckdb"):
        assert {(contender, 100_000, 5_000_000), (contender, 1_000_000, 5_000_000)} <= taken
    beyond = {(contender, step) for contender, step, events in taken if events is None}
    assert beyond == {("ddflow", 100_000), ("ddflow", 1_000_000), ("ddflow", 0), ("ddflow-epoch", 0)}
    assert all(each["memory"] == "128MB" for each in jobs)


def test_a_step_that_cuts_a_piece_is_refused() -> None:
    with pytest.raises(ValueError, match="give a multiple of 10000"):
        large.BENCH.measure(**job("tinyl", "duckdb", 15_000).what)


def run(out: Path, contenders: str, *arguments: str) -> int:
    chosen = ["--only", "workload=tinyl", f"contender={contenders}", "step=100000", "--set", "step=20000"]
    return int(runner.main(large.BENCH, [*chosen, "--out", str(out), *arguments]))


def test_a_run_of_the_large_bench_keeps_tables_and_paces(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(tmp_path, "rocksdict,duckdb") == 0
    assert "tinyl in steps of 20 k" in capsys.readouterr().out
    rows = json.loads((tmp_path / "large-partial-tinyl.json").read_text())["results"]
    assert [row["contender"] for row in rows] == ["rocksdict", "duckdb"]
    assert all(row["pace"][-1][0] == 60_000 and row["failed"] is None for row in rows)
    assert all(row["late_m_per_s"] > 0 and row["private_over_idle"] >= 0 for row in rows)
    assert (tmp_path / "large-partial-tinyl.md").read_text().count("| duckdb |") == 1


def test_a_peer_that_does_not_finish_is_reported_and_the_others_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def ask(bench: Any, method: str, question: dict[str, Any], *_: Any) -> Any:
        if method == "measure":
            raise runner.ChildFailed("no answer within 0.001 s")
        return getattr(bench, method)(**question)

    monkeypatch.setattr(runner, "ask", ask)
    assert run(tmp_path, "duckdb") == 0
    assert "duckdb tinyl in steps of 20 k failed: no answer within 0.001 s" in capsys.readouterr().out
    (path,) = tmp_path.glob("*.json")
    assert [bool(row["failed"]) for row in json.loads(path.read_text())["results"]] == [True]
    path.unlink()
    assert run(tmp_path, "ddflow") == 1
    assert not list(tmp_path.glob("*.json"))


def test_a_watch_sees_private_memory_that_is_gone_again() -> None:
    before = memory.pages().private
    with memory.Watch(every=0.001) as watch:
        block = bytearray(60_000_000)
        while memory.pages().private < before + 50_000_000:
            pass
        samples = watch.samples
        while watch.samples < samples + 2:
            pass
        del block
    assert watch.peak.private >= before + 50_000_000
