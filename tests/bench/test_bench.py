"""Test the bench on small inputs: contenders give right answers, and wrong answers are detected.

The tests assert counts, checksums, rows, exit codes and files, never time.
"""

from __future__ import annotations

import doctest
import importlib
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

pytestmark = pytest.mark.soak  # of the bench, which users do not have; tests/bench/test_bench_smoke.py runs always

BENCH = Path(__file__).resolve().parents[2] / "bench"
sys.path.insert(0, str(BENCH))  # its files are programs and import each other as such

contenders = importlib.import_module("contenders")
pieces = importlib.import_module("pieces")
runner = importlib.import_module("runner")
startup = importlib.import_module("startup")
upsert = importlib.import_module("upsert")
wide = importlib.import_module("wide")
workloads = importlib.import_module("workloads")

SMALL = ("tiny", "tinyz", "tiny3", "tinyw")
CASES = [
    (name, contender, line)
    for name in SMALL
    for contender in contenders.CONTENDERS
    for line in workloads.lines(name)
    if contenders.CONTENDERS[contender].takes(name, line)
]


@pytest.fixture(autouse=True)
def data(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DDFLOW_BENCH_DATA", str(tmp_path_factory.getbasetemp() / "bench-data"))


def wide_updates(shape: Any) -> pa.Table:
    """The updates that wide rows must give, found from versions alone, without comparing a column."""
    found = pieces.updates(np.full(shape.keys, -1), *wide.events(shape))
    table = wide.rows(found["key"].to_numpy(), found["val"].to_numpy())
    for name in ("_time", "_diff"):
        table = table.append_column(name, found[name])
    return table


def rows(tables: list[pa.Table]) -> list[tuple[Any, ...]]:
    return sorted(tuple(row.values()) for table in tables for row in table.to_pylist())


@pytest.mark.parametrize("name", ["tiny", "tinyz", "tiny3", "tinyw", "w3s", "w1s"])
def test_a_workload_is_the_same_bytes_everywhere_and_is_read_back_as_it_was_made(name: str) -> None:
    assert workloads.fingerprint(workloads.load(name)) == workloads.KNOWN[name, "input"].checksum
    assert workloads.load(name).equals(workloads.build(workloads.SHAPES[name]))


@pytest.mark.parametrize(("name", "contender", "line"), CASES)
def test_a_contender_gives_the_known_updates(name: str, contender: str, line: str) -> None:
    tables = contenders.CONTENDERS[contender](workloads.load(name), line)
    assert workloads.summed(tables) == workloads.answer(name, line)
    names = wide.NAMES if name == "tinyw" else ["val", "count"] if "count" in line else ["key", "val"]
    assert {tuple(table.column_names) for table in tables} == {(*names, "_time", "_diff")}


@pytest.mark.parametrize("name", SMALL)
def test_contenders_agree_row_by_row_and_those_that_say_so_are_in_order(name: str) -> None:
    events = workloads.load(name)
    taking = [contender for contender in contenders.CONTENDERS.values() if contender.takes(name, "upsert")]
    assert len(taking) > 2
    expected = rows([wide_updates(workloads.SHAPES[name])] if name == "tinyw" else taking[-1](events, "upsert"))
    for contender in taking:
        tables = contender(events, "upsert")
        assert rows(tables) == expected, contender.name
        if contender.ordered:
            assert upsert.in_order(tables), contender.name
            assert _retractions_come_first(tables), contender.name


def _retractions_come_first(tables: list[pa.Table]) -> bool:
    asserted = set()
    for table in tables:
        for key, time, diff in zip(*(table[name].to_pylist() for name in ("key", "_time", "_diff")), strict=True):
            if diff < 0 and (key, time) in asserted:
                return False
            if diff > 0:
                asserted.add((key, time))
    return True


def test_the_published_answer_of_a_million_upserts_comes_out() -> None:
    tables = contenders.CONTENDERS["numpy-arrival"](workloads.load("w1s"), "upsert")
    assert sum(table.num_rows for table in tables) == 1_793_799
    assert f"{workloads.checksum(tables):016x}" == "12c6f93100aff722"


def test_ddflow_gives_the_same_updates_when_steps_cut_through_a_time() -> None:
    tables = importlib.import_module("ours").ddflow_steps(workloads.load("tiny"), step=1_234)
    assert f"{workloads.checksum(tables):016x}" == workloads.KNOWN["tiny", "upsert"].checksum


def test_the_checksum_sees_a_swapped_value_but_not_the_order_of_rows() -> None:
    one = pa.table({"key": [1, 2], "val": [3, 4], "_time": [0, 0], "_diff": [1, 1]})
    swapped = one.set_column(1, "val", pa.array([4, 3]))
    assert workloads.checksum([one]) == workloads.checksum([one.slice(1), one.slice(0, 1)])
    assert workloads.checksum([one]) != workloads.checksum([swapped])


def test_a_key_too_wide_to_pack_falls_back_to_a_plain_sort() -> None:
    events = pa.table({"key": [2**62, -(2**62), 2**62], "val": [1, 2, None], "time": [0, 0, 1]})
    names = ("dict", "numpy", "numpy-arrival", "limit", "limit-plain")
    first, *others = (rows(contenders.CONTENDERS[name](events, "upsert")) for name in names)
    assert others == [first] * 4
    assert len(first) == 3


def test_half_of_the_later_wide_events_change_one_column_and_the_others_none() -> None:
    shape = workloads.SHAPES["tinyw"]
    last: dict[int, dict[str, Any]] = {}
    changed = []
    for event in wide.build(shape).to_pylist():
        del event["time"]
        before = last.get(event["key"])
        if before is not None:
            changed.append(sum(before[name] != event[name] for name in wide.NAMES))
        last[event["key"]] = event
    assert set(changed) == {0, 1} and len(changed) == shape.n - shape.keys
    assert abs(sum(changed) / len(changed) - 0.5) < 0.02


def test_the_limit_refuses_the_number_it_keeps_for_itself() -> None:
    events = pa.table({"key": [1], "val": [-(2**63)], "time": [0]})
    for name in ("limit", "limit-plain"):
        with pytest.raises(ValueError, match="that there is none"):
            contenders.CONTENDERS[name](events, "upsert")


def test_the_limit_takes_times_and_tables_larger_than_it_began_with() -> None:
    numbers = range(150_000)
    events = pa.table({"key": [n % 70_000 for n in numbers], "val": list(numbers), "time": [0] * 150_000})
    steps = [events.slice(0, 100_000), events.slice(100_000).set_column(2, "time", pa.array([1] * 50_000))]
    events = pa.concat_tables(steps)
    expected = rows(contenders.CONTENDERS["numpy"](events, "upsert"))
    for name in ("limit", "limit-plain"):
        assert rows(contenders.CONTENDERS[name](events, "upsert")) == expected


def test_a_child_that_fails_or_takes_too_long_says_so() -> None:
    with pytest.raises(runner.ChildFailed, match="KeyError"):
        runner.ask(runner.load("upsert"), "expected", {"workload": "nothing"})
    with pytest.raises(runner.ChildFailed, match=r"no answer within 0\.001 s"):
        runner.ask(runner.load("upsert"), "expected", {"workload": "tiny"}, timeout=0.001)


def test_the_program_prints_json_on_request(tmp_path: Path) -> None:
    chosen = ["--only", "workload=tiny", "contender=numpy", "--rounds", "1", "--json", "--no-save"]
    done = subprocess.run([sys.executable, BENCH, "upsert", *chosen], capture_output=True, text=True, check=True)
    assert json.loads(done.stdout)["results"][0]["checksum"] == "67d1f17ceb2c8e2e"


def test_a_contender_that_does_not_finish_fails_the_run(capsys: pytest.CaptureFixture[str]) -> None:
    chosen = ["--only", "workload=tiny", "contender=numpy", "--timeout", "0.001", "--no-save"]
    assert runner.main(runner.load("upsert"), chosen) == 1
    assert "did not finish" in capsys.readouterr().err


def test_a_start_up_program_that_fails_is_an_error() -> None:
    with pytest.raises(subprocess.CalledProcessError):
        startup.figures("raise SystemExit(3)")


@pytest.mark.parametrize("path", sorted(BENCH.glob("*.py")), ids=lambda path: path.stem)
def test_the_examples_in_a_bench_file_hold(path: Path) -> None:
    tried = doctest.testmod(importlib.import_module(path.stem))
    assert tried.attempted > 0 or path.stem == "__main__"
    assert tried.failed == 0
