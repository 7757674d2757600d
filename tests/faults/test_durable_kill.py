"""Test kills at any changing system call: the state reopens at the last acknowledged epoch or the next.

A forked child runs a scenario (commits, a spill, merges, sweeps, a restart, outputs in a folder) and kills itself with
SIGKILL at the n-th call of ``os`` that writes, syncs, links, renames or removes. The parent reads acknowledged epochs
from a pipe, opens the state, compares it with the twin, and continues. A kill loses only the process, so syncs do not
matter here. `test_durable_power` tests power failures.
"""

from __future__ import annotations

import gc
import os
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import tight
from chance import mid_test, seeded
from doors import plain
from durable_case import SMALL, TIGHT, Case

CALLS = ("write", "fsync", "link", "unlink", "mkdir", "rename", "utime", "rmdir", "open")
KINDS = ("before", "half")
"""Before the call; or, where it writes, after half of its bytes were taken."""


class Deadly:
    """What stands in for the calls of ``os`` in a child: the ``at``-th kills it, or stops it for a while."""

    def __init__(self, at: int, kind: str, number: int = signal.SIGKILL) -> None:
        self.at, self.kind, self.number, self.calls, self.write = at, kind, number, 0, os.write
        for name in CALLS:
            setattr(os, name, self._deadly(name, getattr(os, name)))

    def _deadly(self, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def deadly(*given: Any, **named: Any) -> Any:
            if name == "open" and not given[1] & os.O_CREAT:
                return call(*given, **named)
            if self.kind == "before" or name == "write":
                self.calls += 1
                if self.calls == self.at + 1:
                    if self.kind == "half":
                        call(given[0], memoryview(given[1]).cast("B")[: len(given[1]) // 2])
                    os.kill(os.getpid(), self.number)
            return None if name == "fsync" else call(*given, **named)

        return deadly


def live(case: Case, place: Path, medium: Any, told: Callable[[int], Any]) -> None:
    """The story: some epochs, closed and opened again in between, with merges, and versions swept at once."""
    last = len(case.calls)
    for begin, end in ((1, 2), (3, last)):
        door = case.open(place / "state", medium, grace=0.0, outputs=place / "outputs")
        for epoch in range(begin, end + 1):
            case.go(door, epoch)
            told(epoch)
            tight.merge(door.engine, 2)
        door.close()


def died(work: Callable[[], Any]) -> bool:
    """Whether a child that does this work was killed in it, as by a `Deadly` that it makes."""
    child = os.fork()
    if not child:
        status = 1
        try:
            gc.disable()
            work()
            status = 0
        finally:
            os._exit(status)
    _, status = os.waitpid(child, 0)
    assert os.WIFSIGNALED(status) or os.WEXITSTATUS(status) == 0, "the child failed; do its work here to see how"
    return os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL


def killed(case: Case, place: Path, medium: Any, at: int, kind: str) -> tuple[int, bool]:
    """A child's life until its ``at``-th call: the last epoch that it acknowledged, and whether it was killed."""
    reads, writes = os.pipe()

    def life() -> None:
        deadly = Deadly(at, kind)
        live(case, place, medium, lambda epoch: deadly.write(writes, bytes([epoch])))

    was = died(life)  # what it tells, a byte an epoch, has room in the pipe
    os.close(writes)
    with os.fdopen(reads, "rb") as pipe:
        told = pipe.read()
    return max(told, default=0), was


def recovers(case: Case, place: Path, medium: Any, told: int, forget: bool = False) -> None:
    """Open what is left: an epoch that may be, which is replayed, and the next; all outputs are shown.

    ``forget``: by one who names no folder, and drops all receipts at once.
    """
    if forget:
        door = case.open(place / "state", medium, grace=0.0)
        last = door.engine.epoch
        assert told <= last <= told + 1
        door.engine.compact(forget=True)
        door.close()
    else:
        options = {"medium": medium, "grace": 0.0, "outputs": place / "outputs"}
        found = case.recovered(place / "state", told, told + 1, upto=told + 1, **options)
        last = max(found, min(told + 1, len(case.calls)))
    assert not list((place / "state" / "spill").glob("*/*/*")) and not list((place / "state" / "spill").glob("*"))
    rows: dict[str, int] = {}
    for path in (place / "outputs").glob("*/*.parquet"):
        for row in plain(pq.read_table(path)):
            rows[path.parent.name] = rows.get(path.parent.name, 0) + abs(row[-1])
    told_all = case.results[1 : last + 1]
    names = told_all[0].updates if told_all else ()
    totals = [sum(sum(map(abs, result.updates[name].values())) for result in told_all) for name in names]
    assert sorted(rows.values()) == sorted(filter(None, totals)), "outputs are missing, or told twice"


@pytest.fixture(autouse=True)
def unsynced(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that dies takes nothing with it that it gave to the system: syncs would only take time."""
    monkeypatch.setattr(os, "fsync", lambda file: None)


def every_point(case: Case, tmp_path: Path, medium: Any, kind: str, stride: int = 1, at: int = 0) -> int:
    """Kill at each ``stride``-th call of a story, from ``at`` on, until it comes to its end; how many there were."""
    with tight.tiny() as seen:
        live(case, tmp_path / "whole", medium, lambda _: None)  # so that kernels are compiled before the first fork
        recovers(case, tmp_path / "whole", medium, len(case.calls))
        assert medium is None or seen["a piece of a flush"]
        gc.freeze()
        while True:
            place = tmp_path / str(at)
            place.mkdir()
            told, dead = killed(case, place, medium, at, kind)
            try:
                recovers(case, place, medium, told, forget=at % 2 == 1)
            except BaseException as error:
                raise AssertionError(f"killed at call {at}, {kind}; told {told}: {error}") from error
            if not dead:
                break
            shutil.rmtree(place)
            at += stride
    gc.unfreeze()
    assert told == len(case.calls) and at > 20
    return at


MEDIA = pytest.mark.parametrize("medium", [None, TIGHT], ids=["in memory", "in files"])


@mid_test
def test_killed_at_some_call_it_reopens_at_the_last_epoch_or_the_next(tmp_path: Path) -> None:
    assert every_point(SMALL["epochs"], tmp_path, TIGHT, "before", stride=5, at=seeded(__name__).randrange(5)) > 150


@pytest.mark.drawn(3)
@pytest.mark.parametrize("kind", KINDS)
@MEDIA
@pytest.mark.parametrize("name", SMALL)
def test_killed_at_some_calls_of_every_story(tmp_path: Path, name: str, medium: Any, kind: str) -> None:
    stride = 33 if kind == "before" else 9
    every_point(SMALL[name], tmp_path, medium, kind, stride, at=seeded(__name__, name, medium, kind).randrange(stride))


@pytest.mark.soak
@pytest.mark.parametrize("kind", KINDS)
@MEDIA
@pytest.mark.parametrize("name", SMALL)
def test_killed_at_any_call_of_every_story(tmp_path: Path, name: str, medium: Any, kind: str) -> None:
    every_point(SMALL[name], tmp_path, medium, kind)
