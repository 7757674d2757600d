"""``commit_every=``: when calls become epochs, who waits, and what becomes of those that a commit does not reach."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pyarrow as pa
import pytest

import ddflow as dd
from ddflow.errors import EngineClosed, Fenced, SpecError


def plan() -> dd.Flow:
    flow = dd.Flow()
    flow.output("by_city", flow.upserts("orders", {"id": int, "city": str}, dd.Upsert(key="id")).count("city"))
    return flow


def row(id: int, city: str = "Bern") -> pa.Table:
    return pa.table({"id": [id], "city": [city]})


def test_many_calls_become_one_epoch_without_another_call(tmp_path: Path) -> None:
    with plan().open(tmp_path / "state", commit_every="200ms") as engine:
        steps = [engine.step(row(i)) for i in range(5)]
        assert engine.epoch == 0
        assert [step.committed(30) for step in steps] == [1] * 5 and engine.epoch == 1
        assert dd.read(tmp_path / "state", "by_city").to_pylist() == [{"city": "Bern", "count": 5, "_diff": 1}]
        assert engine.step(row(9)).committed() == 2
    assert not [each for each in threading.enumerate() if each.name == "ddflow-commit"]


def test_a_call_that_comes_after_the_span_commits_all(tmp_path: Path) -> None:
    with plan().open(tmp_path / "state", commit_every="1ms") as engine:
        with engine.dataflow.guard.use("hold the turn, as a long step does"):
            pass
        for i in range(50):
            engine.step(row(i))
            time.sleep(0.001)
        assert engine.flush() == engine.epoch > 1


def test_calls_wait_for_the_thread_that_commits_and_threads_still_may_not_meet(tmp_path: Path) -> None:
    with plan().open(tmp_path / "state", commit_every="1ms") as engine:
        deadline = time.monotonic() + 2
        while time.monotonic() < deadline:
            engine.step(row(1, str(time.monotonic())))  # a ConcurrentUse would end the test
        engine.flush()


def test_closing_commits_what_waits_for_its_span_and_loses_what_nobody_asked_for(tmp_path: Path) -> None:
    with plan().open(tmp_path / "span", commit_every="1h") as engine:
        engine.step(row(1))
    with plan().open(tmp_path / "none", commit_every=None) as engine:
        step = engine.step(row(1))
        with pytest.raises(SpecError, match="commits when it is asked to; call flush"):
            step.committed()
        with pytest.raises(TimeoutError):
            step.committed(0.01)
    with pytest.raises(EngineClosed, match="the engine was closed"):
        step.committed(1)
    for name, rows in (("span", 1), ("none", 0)):
        with plan().open(tmp_path / name) as engine:
            assert engine.read("by_city").num_rows == rows, name


def test_a_commit_that_fails_is_told_to_whoever_waits_and_ends_the_engine(tmp_path: Path) -> None:
    engine = plan().open(tmp_path / "state", commit_every="300ms")
    step = engine.step(row(1))
    with plan().open(tmp_path / "state") as other:
        other.step(row(2))
        with pytest.raises(Fenced):
            step.committed(30)
    with pytest.raises(EngineClosed, match="a commit failed") as found:
        engine.step(row(3))
    assert isinstance(found.value.__cause__, Fenced)
    engine.close()


def test_every_call_is_committed_when_it_returns_by_default(tmp_path: Path) -> None:
    with plan().open(tmp_path / "state") as engine:
        assert engine.step(row(1), 1).committed(0) == engine.flush() == 1
        assert engine.step(row(2), 2).committed(0) == 2
        assert engine.step(row(1), 1).committed() == 1  # given again
    with plan().open() as engine, pytest.raises(SpecError, match="in memory"):
        engine.step(row(1)).committed()


@pytest.mark.parametrize("every", ["soon", "0s", "-1s"])
def test_what_is_no_span_is_refused(every: str, tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="commit_every="):
        plan().open(tmp_path / "state", commit_every=every)
    assert not (tmp_path / "state").exists()
    with pytest.raises(SpecError, match="commit_every=: it has no effect without a state"):
        plan().open(commit_every="50ms")
