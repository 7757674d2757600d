"""Test ``commit_every=``: when calls become epochs, which calls wait, and which calls make no commit."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from chance import mid_test, sample
from messages import raises

import ddflow as dd
from ddflow.engine.epoch_log import EpochLog
from ddflow.errors import ConcurrentUse, EngineClosed, Fenced, OutcomeUnknown, SpecError, StorageFull
from ddflow.storage.memory import MemoryStore


def plan() -> dd.Flow:
    flow = dd.Flow()
    flow.output("by_city", flow.upserts("orders", {"id": int, "city": str}, dd.Upsert(key="id")).count("city"))
    return flow


def row(id: int, city: str = "Bern") -> pa.Table:
    return pa.table({"id": [id], "city": [city]})


class Spans:
    """Spans of `commit_every` that begin when a test says so, however slow the machine is."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self._start, self._timers = threading.Timer.start, list[threading.Timer]()
        patch.setattr(threading.Timer, "start", lambda timer: self._timers.append(timer))
        patch.setattr("ddflow.engine.calls.monotonic", lambda: 0.0)

    def begin(self) -> None:
        """Let those that were asked for begin."""
        while self._timers:
            self._start(self._timers.pop())


@pytest.fixture
def spans(monkeypatch: pytest.MonkeyPatch) -> Spans:
    return Spans(monkeypatch)


def test_many_calls_become_one_epoch_without_another_call(tmp_path: Path, spans: Spans) -> None:
    with plan().open(tmp_path / "state", commit_every="200ms") as engine:
        steps = [engine.step(row(i)) for i in range(5)]
        assert engine.epoch == 0
        spans.begin()
        assert [step.committed(120) for step in steps] == [1] * 5 and engine.epoch == 1
        assert dd.read(tmp_path / "state", "by_city").to_pylist() == [{"city": "Bern", "count": 5, "_diff": 1}]
        last = engine.step(row(9))
        spans.begin()
        assert last.committed() == 2
    assert not [each for each in threading.enumerate() if each.name == "ddflow-commit"]


def test_a_call_that_comes_after_the_span_commits_all_even_where_the_thread_is_late(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(threading.Timer, "start", lambda self: None)
    now = [0.0]
    monkeypatch.setattr("ddflow.engine.calls.monotonic", lambda: now[0])
    with plan().open(tmp_path / "state", commit_every="20ms") as engine:
        first, second = engine.step(row(1)), engine.step(row(2))
        assert engine.epoch == 0
        now[0] = 0.03
        third = engine.step(row(3))
        assert [step.committed(0) for step in (first, second, third)] == [1, 1, 1]


def test_calls_wait_for_the_thread_that_commits_and_threads_still_may_not_meet(tmp_path: Path) -> None:
    with plan().open(tmp_path / "state", commit_every="1ms") as engine:
        deadline = time.monotonic() + 1
        while time.monotonic() < deadline:
            engine.step(row(1, str(time.monotonic())))  # a ConcurrentUse would end the test
        engine.flush()


@mid_test
def test_the_versions_of_many_small_calls_become_one_file_an_arrangement(tmp_path: Path) -> None:
    def files(engine: dd.Engine) -> int:
        return sum(len(each.slots.batches) for each in engine.dataflow.graph.arrangements.values())

    with plan().open(tmp_path / "state", commit_every=None) as engine:
        engine.step(pa.table({"id": range(50_000), "city": ["Chur"] * 50_000}))
        engine.flush()
        for epoch in range(2, 5):
            before = files(engine)
            for id in range(20):
                engine.step(row(id * epoch, f"{epoch}"))
            assert files(engine) > before + 10 and engine.flush() == epoch
            assert files(engine) == before + 2
            engine._check_invariants()
        counts = engine.read("by_city")
    with plan().open(tmp_path / "state") as engine:
        engine._check_invariants()
        assert engine.read("by_city").sort_by("city").equals(counts.sort_by("city"))
        assert sum(counts["count"].to_pylist()) == 50_000


def test_closing_commits_what_waits_for_its_span_and_loses_what_nobody_asked_for(tmp_path: Path) -> None:
    with plan().open(tmp_path / "span", commit_every="1h") as engine:
        engine.step(row(1))
    with plan().open(tmp_path / "none", commit_every=None) as engine:
        step = engine.step(row(1))
        with raises(SpecError):
            step.committed()
        with pytest.raises(TimeoutError):
            step.committed(0.01)
    with raises(EngineClosed):
        step.committed(1)
    for name, rows in (("span", 1), ("none", 0)):
        with plan().open(tmp_path / name) as engine:
            assert engine.read("by_city").num_rows == rows, name


def test_a_commit_that_fails_is_told_to_whoever_waits_and_ends_the_engine(tmp_path: Path, spans: Spans) -> None:
    engine = plan().open(tmp_path / "state", commit_every="300ms")
    step = engine.step(row(1))
    with plan().open(tmp_path / "state") as other:
        other.step(row(2))
        spans.begin()
        with pytest.raises(Fenced):
            step.committed(120)
    with raises(EngineClosed) as found:
        engine.step(row(3))
    assert isinstance(found.value.__cause__, Fenced)
    engine.close()


def test_every_call_is_committed_when_it_returns_by_default(tmp_path: Path) -> None:
    with plan().open(tmp_path / "state") as engine:
        assert engine.step(row(1), 1).committed(0) == engine.flush() == 1
        assert engine.step(row(2), 2).committed(0) == 2
        assert engine.step(row(1), 1).committed() == 1  # given again
    with plan().open() as engine, raises(SpecError):
        engine.step(row(1)).committed()


def broken(error: BaseException) -> Any:
    """What publishes nothing."""

    def publish(*_: Any, **__: Any) -> None:
        raise error

    return publish


def test_closing_says_what_a_thread_could_not_commit_unless_somebody_was_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    full = StorageFull("commit", "the disk is full", "make room")

    def failed(name: str) -> tuple[dd.Engine, dd.Step]:
        engine = plan().open(tmp_path / name, commit_every="20ms")
        with monkeypatch.context() as patch:
            patch.setattr(EpochLog, "publish_version", broken(full))
            step = engine.step(row(1))
            while engine.dataflow.guard.untold is None:
                time.sleep(0.01)
        return engine, step

    engine, _ = failed("nobody")
    with pytest.raises(StorageFull):
        engine.close()
    engine.close()

    engine, step = failed("who waits")
    for _ in range(2):
        with pytest.raises(StorageFull):
            step.committed()
    engine.close()

    engine, _ = failed("the next call")
    with raises(EngineClosed):
        engine.flush()
    engine.close()


def test_whoever_waits_is_told_of_a_step_that_was_interrupted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, spans: Spans
) -> None:
    with plan().open(tmp_path / "state", commit_every="100ms") as engine:
        step = engine.step(row(1))
        with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
            patch.setattr(engine.dataflow.graph, "apply_computed_step", broken(KeyboardInterrupt()))
            engine.step(row(2))
        spans.begin()
        with raises(EngineClosed):
            step.committed(120)


def test_a_step_waits_for_the_thread_that_commits_and_another_thread_may_not_wait_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    inside, go_on, publish = threading.Event(), threading.Event(), EpochLog.publish_version

    def slow(self: EpochLog, *given: Any, **named: Any) -> None:
        if threading.current_thread().name == "ddflow-commit":
            inside.set()
            assert go_on.wait(120)
        publish(self, *given, **named)

    monkeypatch.setattr(EpochLog, "publish_version", slow)
    with plan().open(tmp_path / "state", commit_every="20ms") as engine:
        first, steps = engine.step(row(1)), list[dd.Step]()
        assert inside.wait(120)
        waits = threading.Thread(target=lambda: steps.append(engine.step(row(2))))
        waits.start()
        while not engine.dataflow.guard._calls.locked():
            time.sleep(0.001)
        with pytest.raises(ConcurrentUse):
            engine.step(row(3))
        assert not steps and engine.epoch == 0
        go_on.set()
        waits.join()
        assert first.committed() == 1 and steps[0].committed() == 2
        assert engine.read("by_city")["count"].to_pylist() == [2]


def test_within_a_call_a_read_sees_its_step_and_another_call_is_refused_also_while_the_thread_waits(
    tmp_path: Path,
) -> None:
    refused, read = list[BaseException](), list[Any]()

    def within(_: Any) -> None:
        time.sleep(0.1)  # the thread's time has come, and it waits
        read.append(engine.read("by_city")["count"].to_pylist())
        try:
            engine.step(row(2))
        except ConcurrentUse as error:
            refused.append(error)

    with plan().open(tmp_path / "state", commit_every="10ms", metrics=within) as engine:
        engine.step(row(1))
        assert len(refused) == 1 and read == [[1]]


def test_a_call_given_again_is_looked_up_among_all_that_were_made(tmp_path: Path) -> None:
    with plan().open(tmp_path / "state", commit_every="1h") as engine:
        steps = [engine.step(row(time), time) for time in (1, 2)]
        assert engine.epoch == 0
        again = engine.step(row(2), 2)  # by its time; commits what waits
        assert engine.epoch == 1 and again["by_city"].equals(steps[1]["by_city"])
        engine.step(row(3), 3)
        first = engine.step(row(1), 1, epoch=1)
        assert engine.epoch == 2 and first["by_city"].equals(steps[0]["by_city"])
        with raises(SpecError):
            engine.step(row(4), 4, epoch=3)
        engine.step(row(4), 4)
        engine.compact()
        engine.step(row(5), 5)
        engine.evolve({"country": pa.string()})
        assert engine.epoch == 4 and engine.read("by_city")["count"].to_pylist() == [5]


def test_a_commit_that_happened_and_was_not_acknowledged_counts_once_when_its_calls_come_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, spans: Spans
) -> None:
    publish = EpochLog.publish_version

    def lost(self: EpochLog, *given: Any, **named: Any) -> None:
        publish(self, *given, **named)
        raise OutcomeUnknown("commit", "the answer was lost", "open the state again")

    engine = plan().open(tmp_path / "state", commit_every="20ms")
    with monkeypatch.context() as patch:
        patch.setattr(EpochLog, "publish_version", lost)
        steps = [engine.step(row(id), id) for id in (1, 2)]
        spans.begin()
        with pytest.raises(OutcomeUnknown):
            steps[1].committed(120)
    engine.close()
    with plan().open(tmp_path / "state", commit_every="20ms") as engine:
        assert engine.epoch == 1
        again = [engine.step(row(id), id) for id in (1, 2, 3)]
        assert [step["by_city"] == found["by_city"] for step, found in zip(steps, again, strict=False)] == [True] * 2
        spans.begin()
        assert [step.committed() for step in again] == [1, 1, 2]
        assert engine.read("by_city")["count"].to_pylist() == [3]


def child(life: Callable[[Callable[[int], None]], None]) -> tuple[list[int], int]:
    """What a forked child tells, and how it ended: its signal, or its status below 0."""
    reads, writes = os.pipe()
    process = os.fork()
    if not process:
        status = 1
        try:
            life(lambda number: os.write(writes, bytes([number])) and None)
            status = 0
        finally:
            os._exit(status)
    os.close(writes)
    with os.fdopen(reads, "rb") as pipe:
        told = list(pipe.read())
    return told, os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])


@pytest.mark.drawn(2)
@pytest.mark.parametrize("at", range(0, 60, 16))
def test_killed_at_any_moment_it_holds_the_calls_that_were_acknowledged_and_none_halfway(
    at: int, tmp_path: Path
) -> None:
    state, outputs = tmp_path / "state", tmp_path / "outputs"
    with plan().open(state, outputs=outputs):
        pass

    def life(told: Callable[[int], None]) -> None:
        threading.Timer(0.05 + at / 1000, os.kill, (os.getpid(), signal.SIGKILL)).start()
        steps = list[dd.Step]()
        with plan().open(state, outputs=outputs, commit_every="5ms") as engine:
            for id in range(1, 250):
                steps.append(engine.step(row(id), id))
                with suppress(TimeoutError):
                    for number in range(max(id - 20, 1), id + 1):
                        steps[number - 1].committed(0)
                        told(number)
            time.sleep(60)

    told, status = child(life)
    assert status == -signal.SIGKILL
    with plan().open(state, outputs=outputs) as engine:
        held = engine.read("by_city")["count"].to_pylist()
        assert (held or [0])[0] == max(engine.last, 0) >= max(told, default=0)
        for id in range(max(engine.last - 8, 1), 252):  # what was committed is known by its time
            engine.step(row(id), id)
        assert engine.read("by_city")["count"].to_pylist() == [251]
    assert total(outputs) == {"Bern": 251}


def total(outputs: Path) -> dict[str, int]:
    """What the counts in a folder of outputs add up to."""
    found: dict[str, int] = {}
    for path in outputs.glob("*/*.parquet"):
        for each in pq.read_table(path).to_pylist():
            found[each["city"]] = found.get(each["city"], 0) + each["count"] * each["_diff"]
    return found


def test_a_forked_child_commits_nothing_of_what_waits(tmp_path: Path) -> None:
    with plan().open(tmp_path / "state", commit_every="1h") as engine:
        engine.step(row(1))
        inside = engine.dataflow.guard.lock_for_background()
        assert inside.__enter__()  # as if the thread were in its commit when the child is made
        _, status = child(lambda _: engine.close())
        inside.__exit__(None, None, None)
        assert status == 0 and dd.read(tmp_path / "state", "by_city").num_rows == 0
        assert engine.step(row(2)) and engine.flush() == 1


@pytest.mark.sampled
def test_interrupted_anywhere_no_call_is_half_recorded() -> None:
    """An interrupt at lines of the files that make calls epochs: state and stored outputs agree."""
    lines = interrupted_at(-1)
    assert lines > 100
    for at in sample(range(lines), 60, "interrupts"):
        assert interrupted_at(at) > at


def interrupted_at(at: int) -> int:
    """Interrupt calls at one of the lines, -1 for none, and check their state; return how many lines there were."""
    files = {"calls.py", "engine.py", "commits.py", "commit_timer.py", "call_guard.py", "result.py"}
    store, lines = MemoryStore(), 0

    def trace(frame: Any, event: str, _: Any) -> Any:
        nonlocal lines
        if os.path.basename(frame.f_code.co_filename) not in files or "ddflow" not in frame.f_code.co_filename:
            return None
        if event == "line":
            lines += 1
            if lines == at + 1:
                raise KeyboardInterrupt
        return trace

    engine = plan().open(store, commit_every="1h")
    engine.step(row(1), 1)
    sys.settrace(trace)
    try:
        for id in (2, 3):
            engine.step(row(id), id)
        engine.flush()
    except (KeyboardInterrupt, EngineClosed):
        pass
    finally:
        sys.settrace(None)
    with suppress(ConcurrentUse):  # it came between taking the turn and the call
        engine.close()
    with plan().open(store.reopen()) as engine:
        held = (engine.read("by_city")["count"].to_pylist() or [0])[0]
        told = [engine.step(row(id), id)["by_city"].to_pylist() for id in range(1, held + 1)]
        assert engine.epoch <= 1 and engine.last == (held or engine.last), f"line {at}"
        assert sum(each["count"] * each["_diff"] for rows in told for each in rows) == held, f"line {at}"
    return lines


@pytest.mark.parametrize("every", ["soon", "0s", "-1s"])
def test_what_is_no_span_is_refused(every: str, tmp_path: Path) -> None:
    with raises(SpecError):
        plan().open(tmp_path / "state", commit_every=every)
    assert not (tmp_path / "state").exists()
    with raises(SpecError):
        plan().open(commit_every="50ms")
