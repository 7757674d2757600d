"""Test many writers of one state: one wins a round, others get an error, and a stopped writer changes nothing.

Eight processes race for every epoch while two others read; the winners' reports are the expected state. Then a writer
is stopped at every changing call, and other writers commit and sweep. After the writer wakes, every byte stays the
same. Old versions are swept at once, unlike in practice, so that the tests find reused numbers and names.
"""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import tight
from chance import mid_test
from doors import SECRET
from durable_case import SMALL, TIGHT, Case, _epochs, perform
from messages import raises
from test_durable_kill import Deadly

import ddflow as dd
from ddflow.engine.run.delivery import Delivery
from ddflow.engine.run.kept_epochs import EngineEpochs
from ddflow.engine.snapshot import Snapshot
from ddflow.errors import DdflowError, EngineClosed, Fenced, SnapshotExpired

WRITERS, READERS = 8, 2
KEYS = pa.schema({"k": pa.int64(), "n": pa.int64()})


def plan() -> dd.Flow:
    """Who won last, by writer; and how many there are of each round."""
    flow = dd.Flow()
    rows = flow.upserts("won", KEYS, dd.Upsert("k"))
    flow.output("rows", rows)
    flow.output("by_n", rows.count(["n"]))
    return flow


class Child:
    """A forked process that answers one line for each that it is told."""

    def __init__(self, act: Callable[[str], str]) -> None:
        inward, outward = os.pipe(), os.pipe()
        self.pid = os.fork()
        if not self.pid:
            status = 1
            try:
                os.close(inward[1])
                os.close(outward[0])
                with os.fdopen(inward[0]) as told, os.fdopen(outward[1], "w") as answer:
                    for line in iter(told.readline, "end\n"):
                        answer.write(act(line.strip()) + "\n")
                        answer.flush()
                status = 0
            finally:
                os._exit(status)
        os.close(inward[0])
        os.close(outward[1])
        self.to, self.of = os.fdopen(inward[1], "w"), os.fdopen(outward[0])

    def tell(self, line: str) -> None:
        self.to.write(line + "\n")
        self.to.flush()

    def hear(self) -> str:
        line = self.of.readline()
        assert line, f"process {self.pid} died"
        return line.strip()

    def end(self) -> None:
        self.tell("end")  # closing would not do: those that were forked later hold this end too
        self.to.close()
        self.of.close()
        assert os.waitpid(self.pid, 0)[1] == 0


def racer(state: Path, me: int) -> Callable[[str], str]:
    """Opens the state; then commits the epoch it is told, if it is the first."""
    engines: list[Any] = []

    def act(line: str) -> str:
        if line == "open":
            engines.append(plan().open(state, grace=0.0))
            return "open"
        epoch, engine = int(line), engines[0]
        if engine.epoch != epoch - 1:
            return f"it is at epoch {engine.epoch}, not at {epoch - 1}"
        rows = pa.table([[me], [epoch]], schema=KEYS)
        try:
            engine.step({"won": rows}, epoch, epoch=epoch)
            return "won"
        except Fenced:
            try:
                engine.step({"won": rows}, epoch, epoch=epoch)
                return "it went on"
            except (Fenced, EngineClosed):
                engine.close()
                engines[:] = [plan().open(state, grace=0.0)]
                return "fenced"

    return act


def onlooker(state: Path) -> Callable[[str], str]:
    """Reads until a version is that of the epoch it is told; each it sees must be whole; how many that were."""

    def act(line: str) -> str:
        seen = 0
        while True:
            with Snapshot.open(state) as snapshot:
                rows, counts = snapshot.read("rows"), snapshot.read("by_n")
                newest = max(rows["n"].to_pylist(), default=0)
                if newest != snapshot.epoch or rows.num_rows != sum(counts["count"].to_pylist()):
                    return f"epoch {snapshot.epoch} has {rows.to_pylist()} and {counts.to_pylist()}"
                epoch = snapshot.epoch
            try:
                older = dd.read(state, "rows", epoch=max(epoch - 1, 0))
                if max(older["n"].to_pylist(), default=0) != max(epoch - 1, 0):
                    return f"epoch {epoch - 1} has {older.to_pylist()}"
            except SnapshotExpired:
                pass
            seen += 1
            if epoch >= int(line):
                return str(seen)

    return act


def raced(state: Path, rounds: int, every: int) -> None:
    """So many rounds; readers look for each ``every``-th."""
    with plan().open(state, secret=SECRET) as engine:  # so that kernels are compiled before the first fork
        engine.step({}, 0)
        engine.read("rows")
    with Snapshot.open(state) as snapshot:
        snapshot.read("by_n")
    writers = [Child(racer(state, me)) for me in range(WRITERS)]
    readers = [Child(onlooker(state)) for _ in range(READERS)]
    expected: dict[int, int] = {}
    try:
        for child in writers:  # one by one, before the first of them commits
            child.tell("open")
            assert child.hear() == "open"
        for epoch in range(2, rounds + 2):
            looking = epoch % every == 0
            for child in (*readers, *writers) if looking else writers:
                child.tell(str(epoch))
            answers = [child.hear() for child in writers]
            assert sorted(answers) == ["fenced"] * (WRITERS - 1) + ["won"], f"round {epoch}: {answers}"
            expected[answers.index("won")] = epoch
            for child in readers if looking else ():
                assert int(child.hear()) > 0
    finally:
        for child in (*writers, *readers):
            child.end()
    found = dd.read(state, "rows")
    assert dict(zip(found["k"].to_pylist(), found["n"].to_pylist(), strict=True)) == expected
    with plan().open(state, grace=0.0) as engine:
        assert engine.epoch == rounds + 1
        engine.step({}, rounds + 2)
        engine._check_invariants()


@mid_test
def test_of_eight_writers_one_wins_a_round_and_readers_see_whole_versions(tmp_path: Path) -> None:
    raced(tmp_path / "state", 12, 3)


@pytest.mark.soak
def test_of_eight_writers_one_wins_each_of_a_thousand_rounds(tmp_path: Path) -> None:
    raced(tmp_path / "state", 1000, 10)


# A writer that sleeps.


def bytes_of(place: Path) -> dict[str, bytes]:
    """All that a state is, but for folders to spill to."""
    found = (path for path in place.rglob("*") if path.is_file() and "spill" not in path.parts)
    return {str(path.relative_to(place)): path.read_bytes() for path in found}


def stopped(case: Case, state: Path, medium: Any, at: int) -> tuple[int, bool]:
    """A child that commits epoch 2 and stops at its ``at``-th call; its process, and whether it did stop."""
    child = os.fork()
    if not child:
        status = 1
        try:
            door = case.open(state, medium, grace=0.0)
            Deadly(at, "before", signal.SIGSTOP)
            try:
                case.play(door, 2)
                status = 0
            except Fenced:
                with pytest.raises((Fenced, EngineClosed)):
                    door.engine.step({}, 99)
                status = 3
            except DdflowError:
                status = 4
            door.close()
        finally:
            os._exit(status)
    _, how = os.waitpid(child, os.WUNTRACED)
    return child, os.WIFSTOPPED(how)


@pytest.fixture
def story() -> tuple[Case, Case]:
    """What the sleeper wants, and what others do meanwhile: the same epochs with other rows."""
    case = _epochs(5, rows=5, keys=6, outputs=SMALL["epochs"].scenario["outputs"])
    rows = [call[2] for call in case.calls]
    others = [["step", time, given] for time, given in enumerate([rows[0], *rows[:1:-1], rows[1]], 1)]
    return case, Case(case.scenario, others)


def slept(story: tuple[Case, Case], place: Path, medium: Any, stride: int) -> int:
    """Stop a writer at each ``stride``-th call of a commit until it comes to its end; how many calls there were."""
    (case, others), at = story, 0
    case.recovered(place / "warm", 0, 0, medium=medium)
    while True:
        state = place / str(at)
        door = case.open(state, medium, grace=0.0)
        case.go(door, 1)
        door.close()
        child, still = stopped(case, state, medium, at)
        if not still:
            break
        door = case.open(state, medium, grace=0.0)
        found = door.engine.epoch
        going = case if found == 2 else others  # it had published before it fell asleep, or not
        going.holds(door, found)
        for epoch in range(found + 1, 6):
            going.go(door, epoch)
        before = bytes_of(state)
        os.kill(child, signal.SIGCONT)
        _, how = os.waitpid(child, 0)
        # If it had published, it may learn that too late: what tells that others built on it was swept.
        assert os.WIFEXITED(how) and os.WEXITSTATUS(how) in ((0, 3) if found == 2 else (3,)), (at, found, how)
        after = bytes_of(state)
        kept = named_by(door)  # what nobody names may be the sleeper's own, half written
        assert {name: after.get(name) for name in kept} == {name: before[name] for name in kept}, at
        manifests = [
            sorted(name for name in each if re.fullmatch(r"manifests/\d{16}", name)) for each in (before, after)
        ]
        assert manifests[0] == manifests[1], f"call {at}: {manifests}"
        marks = [max(name for name in each if name.startswith("marks/")) for each in (before, after)]
        assert marks[0] == marks[1], f"call {at}: {marks}"
        going.holds(door, 5)
        perform(door, ["step", 6, {"a": []}], 6)
        door.close()
        with going.open(state, medium).engine as engine:
            assert engine.epoch == 6
        at += stride
    assert at > 20
    return at


def named_by(door: Any) -> set[str]:
    """The two newest manifests, and the files that they name."""
    manifest_log = door.engine.durable.log.manifest_log
    names = manifest_log.names | manifest_log._past[-1].names
    return {f"blobs/{name}" for name in names} | {f"manifests/{manifest_log.number - back:016d}" for back in (0, 1)}


@pytest.mark.parametrize("medium", [None, TIGHT], ids=["in memory", "in files"])
def test_a_writer_that_was_stopped_and_wakes_later_changes_nothing(
    tmp_path: Path, story: tuple[Case, Case], medium: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "fsync", lambda file: None)
    with tight.tiny():
        slept(story, tmp_path, medium, 7)


@pytest.mark.soak
@pytest.mark.parametrize("medium", [None, TIGHT], ids=["in memory", "in files"])
def test_a_writer_that_was_stopped_at_any_call_and_wakes_later_changes_nothing(
    tmp_path: Path, story: tuple[Case, Case], medium: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "fsync", lambda file: None)
    with tight.tiny():
        slept(story, tmp_path, medium, 1)


def test_a_second_writer_is_told(tmp_path: Path) -> None:
    flow = dd.Flow()
    orders = flow.upserts("orders", {"id": int, "city": str}, dd.Upsert(key="id"))
    flow.output("by_city", orders.count("city", name="n"))
    sink = dd.sinks.sqlite(tmp_path / "out.db", "by_city")
    with flow.open(tmp_path / "state") as engine:
        first = Delivery(EngineEpochs(engine.calls, "a test"), "by_city", sink)
        second = Delivery(EngineEpochs(engine.calls, "a test"), "by_city", sink)
        assert first.deliver_waiting_epochs(0.0) and second.deliver_waiting_epochs(0.0)
        engine.step({"orders": {"id": [77], "city": ["Genf"]}})
        engine.step({"orders": {"id": [78], "city": ["Genf"]}})
        assert first.deliver_waiting_epochs(0.0)
        with raises(DdflowError):
            second.deliver_waiting_epochs(0.0)
        first.close()
        second.close()
