"""The bench of state on disk, on inputs small enough for a test: is every contender right at every mark?

Time is never asserted here.  Memory is, where what is taken is the test's own.
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

child = importlib.import_module("child")
large = importlib.import_module("large")
large_run = importlib.import_module("large_run")
memory = importlib.import_module("memory")
peers = importlib.import_module("peers")
pieces = importlib.import_module("pieces")

TINY = ("tinyl", "tinyl3")


def job(workload: str, contender: str, step: int, folder: Path) -> Any:
    return large_run.LargeJob(workload, contender, step, 60_000, "128MB", str(folder))


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
@pytest.mark.parametrize("contender", [name for name in large_run.CONTENDERS if name != "ddflow-epoch"])
@pytest.mark.parametrize("name", TINY)
def test_a_contender_on_disk_gives_the_known_updates_at_every_mark(
    name: str, contender: str, step: int, tmp_path: Path
) -> None:
    asked = job(name, contender, step, tmp_path)
    sample = large_run.run(asked)
    marks, epoch = large_run.answer(name, 60_000)
    assert large.wrong(asked, sample, marks, epoch) is None
    assert sample.seconds >= sample.late_seconds > 0
    assert sample.late_events == (step or 60_000)


@pytest.mark.parametrize("name", TINY)
def test_one_epoch_gives_the_live_rows(name: str, tmp_path: Path) -> None:
    asked = job(name, "ddflow-epoch", 0, tmp_path)
    assert large.wrong(asked, large_run.run(asked), *large_run.answer(name, 60_000)) is None


def test_a_wrong_mark_a_missing_end_and_a_wrong_epoch_are_noticed(tmp_path: Path) -> None:
    asked = job("tinyl", "rocksdict", 20_000, tmp_path)
    sample = large_run.run(asked)
    marks, epoch = large_run.answer("tinyl", 60_000)
    wrong = [[*mark[:2], "0" * 16] if mark[0] == 40_000 else mark for mark in marks]
    assert "after 40,000 upserts" in large.wrong(asked, sample, wrong, epoch)
    assert "60,000 of 70,000" in large.wrong(asked._replace(events=70_000), sample, marks, epoch)
    assert "expected" in large.wrong(asked._replace(contender="ddflow-epoch"), sample, marks, [1, "0"])


def test_everybody_takes_the_prefix_and_ddflow_the_rest_too() -> None:
    jobs = large.plan(large.parser().parse_args(["--workload", "w1l", "--events", "5000000"]))
    taken = {(each.contender, each.step, each.events) for each in jobs}
    for contender in ("ddflow", "rocksdict", "rocksdict-mapped", "duckdb"):
        assert {(contender, 100_000, 5_000_000), (contender, 1_000_000, 5_000_000)} <= taken
    beyond = {(contender, step) for contender, step, events in taken if events == 50_000_000}
    assert beyond == {("ddflow", 100_000), ("ddflow", 1_000_000), ("ddflow", 0), ("ddflow-epoch", 0)}
    assert all(each.memory == "128MB" for each in jobs)


def test_a_step_that_cuts_a_piece_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        large.main(["--workload", "tinyl", "--steps", "15000"])
    assert "give a multiple of 10000" in capsys.readouterr().err


def test_a_run_of_the_large_bench_keeps_tables_and_paces(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    chosen = ["--workload", "tinyl", "--contender", "rocksdict", "duckdb", "--steps", "20000", "--out", str(tmp_path)]
    assert large.main(chosen) == 0
    assert "tinyl in steps of 20 k" in capsys.readouterr().out
    (path,) = tmp_path.glob("large-*-partial.json")
    rows = json.loads(path.read_text())["results"]
    assert [row["contender"] for row in rows] == ["rocksdict", "duckdb"]
    assert all(row["pace"][-1][0] == 60_000 and row["failed"] is None for row in rows)
    assert all(row["late_m_per_s"] > 0 and row["private_over_idle"] >= 0 for row in rows)
    assert path.with_suffix(".md").read_text().count("| duckdb |") == 1


def test_a_peer_that_does_not_finish_is_reported_and_the_others_go_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    chosen = ["--workload", "tinyl", "--contender", "duckdb", "--steps", "20000", "--out", str(tmp_path)]
    assert large.main([*chosen, "--timeout", "0.001"]) == 0
    assert "no answer within 0.001 s" in capsys.readouterr().out
    (path,) = tmp_path.glob("*.json")
    assert [bool(row["failed"]) for row in json.loads(path.read_text())["results"]] == [True]
    path.unlink()
    assert large.main([*chosen[:3], "ddflow", *chosen[4:], "--timeout", "0.001"]) == 1
    assert not list(tmp_path.glob("*.json"))


def test_a_child_that_fails_says_why() -> None:
    with pytest.raises(child.Broken, match="KeyError"):
        child.ask(large_run.__file__, {"what": "nothing"})


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
