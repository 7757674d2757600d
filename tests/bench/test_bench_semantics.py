"""Test the semantics bench on small inputs: every contender is right on every line, and errors are detected.

The tests never assert time. They assert that measurements are complete, and that bars (targets) follow from the
figures.
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

ours = importlib.import_module("semantics_ours")
peers = importlib.import_module("semantics_peers")
runner = importlib.import_module("runner")
semantics = importlib.import_module("semantics")
work = importlib.import_module("semantics_work")

SMALL = work.Size(400, 150, 1, 5)


@pytest.mark.parametrize("line", work.LINES)
def test_ddflow_ends_each_line_with_the_rows_that_were_found_without_it(line: str) -> None:
    found = semantics.BENCH.measure(line, "ddflow", **SMALL._asdict())
    assert found["checksum"] == work.expected(line, SMALL)
    assert found["rows"] >= SMALL.keys and 0 < found["longest_ms"] <= found["seconds"] * 1e3


@pytest.mark.parametrize("line", peers.TAKES)
@pytest.mark.parametrize("peer", peers.PEERS)
def test_a_peer_ends_with_the_same_rows(peer: str, line: str) -> None:
    assert semantics.BENCH.measure(line, peer, **SMALL._asdict())["checksum"] == work.expected(line, SMALL)


def test_a_line_counts_its_steps_and_not_those_that_load() -> None:
    for kind in {line.kind for line in work.LINES.values()}:
        made = work.tables(kind, SMALL)
        if kind not in ("updates", "contents"):
            assert sum(table.num_rows for table in made[: work.loaded(kind, SMALL)]) == SMALL.keys + SMALL.step
            assert len(set(made[0]["id"].to_pylist())) == made[0].num_rows == SMALL.step
        elif kind == "contents":
            assert [table.num_rows for table in made] == [150, 150, 100, 400, 400]


def test_every_line_ends_differently_where_its_rule_differs() -> None:
    rules = {(line.kind, line.rule): work.expected(name, SMALL) for name, line in work.LINES.items()}
    assert len(set(rules.values())) == len(rules)


def test_lists_differ_by_elements_and_by_their_order() -> None:
    def of(*lists: list[int] | None) -> int:
        return int(work.digest(pa.table({"id": [1] * len(lists), "tags": pa.array(lists, pa.list_(pa.int64()))})))

    assert of([1, 2], [3]) == of([3], [1, 2])
    assert len({of(each) for each in ([1, 2], [2, 1], [1], [1, 2, 2], [], None)}) == 6


def test_updates_that_do_not_add_up_are_noticed() -> None:
    made = work.tables("plain", SMALL)
    runner = ours.opened("full", SMALL, made)
    runner.step(made[0])  # and not taken
    with pytest.raises(AssertionError, match="do not add up to the rows"):
        runner.answer()


def run(out: Path, *only: str) -> int:
    sizes = [f"{name}={value}" for name, value in SMALL._asdict().items()]
    return int(runner.main(semantics.BENCH, ["--only", *only, "--set", *sizes, "--rounds", "2", "--out", str(out)]))


@pytest.fixture
def asked_here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner, "ask", lambda bench, method, question, *_: getattr(bench, method)(**question))
    monkeypatch.setattr(runner.machine, "uncommitted", list)


@pytest.mark.usefixtures("asked_here")
def test_a_wrong_answer_fails_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(peers.Peer, "answer", lambda self: "0")
    assert run(tmp_path, "line=full", "contender=dict") == 1
    assert "the rows add up to 0" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.usefixtures("asked_here")
def test_a_run_leaves_json_a_table_and_bars_behind(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(tmp_path, "line=full,overwrite", "contender=ddflow,dict") == 0
    result = json.loads((tmp_path / "semantics-partial.json").read_text())
    named = [(row["line"], row["contender"], row["rows"]) for row in result["results"]]
    assert named == [(line, who, 750) for line in ("full", "overwrite") for who in ("ddflow", "dict")]
    assert all(len(row["seconds"]) == 2 and row["peak_mb"] for row in result["results"])
    assert all(row["over_base"] > 0 for row in result["results"] if row["line"] == "overwrite")
    assert "## Bars" in (tmp_path / "semantics-partial.md").read_text()
    assert "overwrite" in capsys.readouterr().out


def test_a_line_is_held_to_its_part_of_the_base_or_to_its_rate() -> None:
    def row(line: str, rate: float, base: str | None = None) -> dict[str, Any]:
        return {"line": line, "contender": "ddflow", "base": base, "m_per_s": rate}

    results = [row("full", 2.0), row("max", 0.9, "full"), row("sum", 1.0, "full"), row("union", 0.6)]
    results += [row("dfa", 4.0), row("dfa-arrival", 4.9)]
    results += [row("groups", 0.1, "groups-full"), {**row("max", 9.0, "full"), "contender": "dict"}]
    found = {bar.line: bar for bar in semantics.BENCH.bars({"results": results})}
    assert {line: bar.met for line, bar in found.items()} == {
        "max": False,
        "sum": True,
        "union": True,
        "dfa-arrival": False,
    }
    assert found["max"].ratio == pytest.approx(0.45) and found["dfa-arrival"].wanted == "5.0 M/s"


def test_commits_are_held_to_how_much_they_grow() -> None:
    sizes = [{"keys": 10**n, "commit_cpu_ms": ms} for n, ms in ((5, 2.0), (7, 4.1), (6, 3.0))]
    (bar,) = runner.load("durable").bars({"results": sizes})
    assert not bar.met and bar.ours == "2.05 times (2.0 to 4.1 ms)"
