"""Test the bench in a few seconds: imports, reference checks, and failure on a wrong answer.

A soak runs the other tests of the bench.
"""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

BENCH = Path(__file__).resolve().parents[2] / "bench"
sys.path.insert(0, str(BENCH))  # its files import each other as such

contenders = importlib.import_module("contenders")
machine = importlib.import_module("machine")
operators = importlib.import_module("operators")
ours = importlib.import_module("ours")
report = importlib.import_module("report")
runner = importlib.import_module("runner")
workloads = importlib.import_module("workloads")


@pytest.fixture(autouse=True)
def quick(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Inputs in a folder of the test, children's questions answered here, a calibration and kernels that take no time:
    those for so few rows are interpreted where they are not kept."""
    monkeypatch.setenv("DDFLOW_BENCH_DATA", str(tmp_path / "data"))
    monkeypatch.setattr(runner, "ask", lambda bench, method, question, *_: getattr(bench, method)(**question))
    monkeypatch.setattr(machine, "calibration", lambda: {"loop_ns": 1.0})
    monkeypatch.setattr(machine, "uncommitted", list)
    monkeypatch.setattr(ours, "warm", lambda: None)


def upsert(out: Path, *arguments: str) -> int:
    chosen = ["--only", "workload=tiny", "contender=numpy,dict", "line=upsert", "--rounds", "2", "--out", str(out)]
    return int(runner.main(runner.load("upsert"), [*chosen, *arguments]))


def test_every_file_can_be_imported() -> None:
    for path in sorted(BENCH.glob("*.py")):
        if "spark" not in path.stem:  # those import Spark; its tests do
            importlib.import_module(path.stem)
    assert "ours" in sys.modules


@pytest.mark.parametrize("contender", ["ddflow", "numpy-arrival"])
def test_a_contender_gives_the_known_updates(contender: str) -> None:
    tables = contenders.CONTENDERS[contender](workloads.load("tiny"), "upsert")
    assert workloads.summed(tables) == workloads.answer("tiny", "upsert")


LINES = {(job.what["line"], job.what["contender"], job.what.get("budget")) for job in operators.BENCH.jobs()}


@pytest.mark.drawn(6)
@pytest.mark.parametrize(("line", "contender", "budget"), sorted(LINES, key=str))
def test_a_line_of_operators_leaves_what_numpy_finds(line: str, contender: str, budget: str | None) -> None:
    size = {"keys": 400, "rows": 800, "step": 200}
    sample = operators.BENCH.measure(line, contender, budget, **size)
    asked = runner.Job({"line": line, "contender": contender, "budget": budget, **size})
    assert operators.BENCH.wrong(asked, sample, operators.BENCH.expected(**operators.BENCH.question(asked))) is None
    assert operators.BENCH.row(asked, [sample])["m_per_s"] > 0


def test_the_bars_of_operators_are_of_their_bases() -> None:
    def row(line: str, rate: float, contender: str = "ddflow", **more: Any) -> dict[str, Any]:
        return {"line": line, "contender": contender, "budget": None, "m_per_s": rate, "cpu_m_per_s": rate, **more}

    rows = [row("upsert", 10.0), row("count", 5.0), row("aggregates", 4.0), row("join", 3.0), row("top-10", 1.0)]
    rows += [row("revenue-few", 50.0), row("revenue-few", 1.0, "duckdb"), row("revenue", 1.0, "polars")]
    rows += [row("join-large", 1.0, held=10**9), row("join-large", 0.4, budget="128MB")]
    compared = operators.BENCH.compared(rows)
    assert [each["over_base"] for each in compared[:5]] == [2.0, 1.0, 0.8, 0.3, 0.2]
    found = {bar.line: bar.met for bar in operators.BENCH.bars({"results": compared})}
    assert found == {
        "aggregates": True,
        "top-10": False,
        "join": True,
        "revenue-few": True,
        "join-large within 128MB": True,
        "join-large: what is held": False,
    }


def test_a_run_leaves_every_sample_the_machine_and_a_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert upsert(tmp_path) == 0
    assert "tiny, upsert" in capsys.readouterr().out
    result = json.loads((tmp_path / "upsert-partial-tiny.json").read_text())
    assert {"cpu", "cores", "numpy", "commit", "date", "calibration"} <= result["machine"].keys()
    found = {row["contender"]: row for row in result["results"]}
    assert all(len(row["seconds"]) == 2 and row["updates"] == 27_874 for row in found.values())
    assert found["numpy"]["over_base"] == 1.0 and found.keys() == {"numpy", "dict"}
    assert (tmp_path / "upsert-partial-tiny.md").read_text().count("| dict |") == 1
    assert (tmp_path / "upsert-partial-tiny.png").read_bytes().startswith(b"\x89PNG")


def test_a_wrong_answer_fails_the_run_and_stores_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(workloads.KNOWN, ("tiny", "upsert"), workloads.Answer(27_874, "0" * 16))
    assert upsert(tmp_path) == 1
    assert "expected 27,874 with 0000000000000000" in capsys.readouterr().err
    assert not list(tmp_path.glob("upsert*"))


def test_updates_out_of_order_are_wrong_unless_order_was_never_promised() -> None:
    sample = {**workloads.KNOWN["tiny", "upsert"]._asdict(), "in_order": False}
    expected = {"upsert": workloads.KNOWN["tiny", "upsert"]}
    for contender, wrong in (("numpy", "the updates are not ordered by _time"), ("polars-unordered-1t", None)):
        job = runner.Job({"workload": "tiny", "contender": contender, "line": "upsert"})
        assert runner.load("upsert").wrong(job, sample, expected) == wrong


def test_an_input_that_is_another_one_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(workloads.KNOWN, ("tiny", "input"), workloads.Answer(0, "0" * 16))
    with pytest.raises(AssertionError, match="the input has fingerprint 9264972868bcbf83, expected 0000"):
        runner.load("upsert").expected("tiny")


def test_a_run_without_a_known_answer_stores_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def ask(bench: Any, method: str, *_: Any) -> Any:
        if method == "expected":
            raise runner.ChildFailed("out of memory")

    monkeypatch.setattr(runner, "ask", ask)
    assert upsert(tmp_path) == 1
    assert "cannot compute the expected answer: out of memory" in capsys.readouterr().err
    assert not list(tmp_path.glob("upsert*"))


def test_results_of_code_that_is_not_committed_are_printed_and_not_stored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(machine, "uncommitted", lambda: ["M ddflow/time.py"])
    assert upsert(tmp_path) == 0
    said = capsys.readouterr()
    assert "tiny, upsert" in said.out and "not stored" in said.err and "ddflow/time.py" in said.err
    assert not list(tmp_path.glob("upsert*"))


def test_what_is_uncommitted_counts_where_it_is_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    monkeypatch.setattr(machine, "ROOT", tmp_path)
    assert machine.uncommitted() == ["no commit is known here"]
    (tmp_path / "bench" / "results").mkdir(parents=True)
    (tmp_path / "bench" / "bars.py").write_text("1")
    for words in (["init", "-q"], ["add", "-A"], ["-c", "user.name=a", "-c", "user.email=a@b", "commit", "-qm", "one"]):
        subprocess.run(["git", "-C", tmp_path, *words], check=True)
    (tmp_path / "bench" / "results" / "upsert.json").write_text("{}")
    (tmp_path / "README.md").write_text("text")
    assert machine.uncommitted() == []
    (tmp_path / "bench" / "new.py").write_text("1")
    assert machine.uncommitted() == ["?? bench/new.py"]


def test_a_choice_that_no_job_has_is_refused() -> None:
    for arguments in (["--only", "workload=nothing"], ["--set", "size=3"]):
        with pytest.raises(SystemExit, match="no job"):
            runner.main(runner.load("upsert"), [*arguments, "--no-save"])


@pytest.mark.parametrize("path", sorted((BENCH / "results").glob("*.json")), ids=lambda path: path.stem)
def test_a_stored_result_can_be_rendered_again(path: Path) -> None:
    for result in report.read(path):
        bench = runner.load(result["bench"])
        text = report.markdown(bench, result)
        assert result["machine"]["commit"] in text and text.count("\n| ") > len(result["results"])
        assert all(map(callable, bench.panels(result)))
