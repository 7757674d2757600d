"""Test failing allocations: a typed error, an engine that is unchanged or stopped, and a complete state.

The tests refuse each array that a step requests from numpy, one at a time. In a child process, the system refuses
memory at rising limits until the step succeeds. In all cases a reopened state has the last epoch and continues.
"""

from __future__ import annotations

import ctypes
import gc
import os
import resource
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import tight
from chance import SOAK, long_test, sample
from durable_case import SMALL, TIGHT
from test_durable_faults import Spills, begun, copied, local

import ddflow as dd
from ddflow.errors import EngineClosed, OutOfMemory

pytestmark = pytest.mark.sampled

REFUSED = ("empty", "zeros", "concatenate", "full", "arange", "unique", "flatnonzero", "where")


@contextmanager
def refusing(at: int) -> Iterator[list[str]]:
    """The ``at``-th array that is asked for is refused; yields the names of the functions that were asked."""
    asked: list[str] = []

    def refuse(name: str, make: Callable[..., Any]) -> Callable[..., Any]:
        def made(*given: Any, **named: Any) -> Any:
            asked.append(name)
            if len(asked) == at + 1:
                raise MemoryError(f"Unable to allocate what {name} wants")
            return make(*given, **named)

        return made

    with pytest.MonkeyPatch.context() as patch:
        for name in REFUSED:
            patch.setattr(np, name, refuse(name, getattr(np, name)))
        yield asked


@pytest.mark.drawn(3)
@pytest.mark.parametrize("medium", [None, TIGHT], ids=["in memory", "in files"])
@pytest.mark.parametrize("name", SMALL)
@pytest.mark.parametrize("by_hand", [False, True], ids=["by call", "by hand"])
def test_an_array_that_is_refused_leaves_the_state_whole(name: str, medium: Any, by_hand: bool, tmp_path: Path) -> None:
    with tight.tiny():
        case, spills, at, states = SMALL[name], Spills(tmp_path), 0, set()
        last = 2 if name == "epochs" else 3  # which closes times
        before = begun(case, last - 1, spills, medium)
        while True:
            disk = copied(before)
            door = case.open(local(disk), commit_every=None if by_hand else "call", **spills.options(medium))
            error = None
            with refusing(at) as asked:
                try:
                    step = case.play(door, last)
                    assert door.engine.flush() == last
                except Exception as caught:
                    error = caught
            where = f"array {at}, {asked[at : at + 1]}: {error!r}"
            if error is not None:
                assert isinstance(error, OutOfMemory), where
                states.add(door.engine.dataflow.guard.state)
                goes_on_or_refuses(case, door, last, where)
            elif len(asked) > at:
                case.agrees(door, step, last)  # it was refused what it could do without
            epoch = door.engine.epoch
            door.close()
            try:
                case.recovered(local(disk), epoch, epoch, **spills.options(medium))
            except BaseException as other:
                raise AssertionError(f"{where}: {other}") from other
            if len(asked) <= at:
                break
            at += 1 if SOAK else 5
    assert at > 50 and "open" in states


def goes_on_or_refuses(case: Any, door: Any, last: int, where: str) -> None:
    """Assert that an engine has changed nothing and goes on, or that it goes no further."""
    epoch, engine = door.engine.epoch, door.engine
    assert epoch == last - 1, where
    if engine.dataflow.guard.state != "open":
        for act in (lambda: case.play(door, last), engine.flush, lambda: engine.read("a")):
            with pytest.raises(EngineClosed):
                act()
        return
    door.engine._check_invariants()
    case.holds(door, last - 1)
    case.agrees(door, case.play(door, last), last)
    engine.flush()
    case.holds(door, last)


LARGE = pa.schema({"k": pa.int64(), "s": pa.string()})


def plan() -> dd.Flow:
    flow = dd.Flow()
    rows = flow.upserts("a", LARGE, dd.Upsert("k"))
    flow.output("rows", rows)
    flow.output("by_s", rows.count(["s"]))
    return flow


def events(size: int, seed: int) -> pa.Table:
    chance = np.random.default_rng(seed)
    return pa.table(
        [chance.integers(0, size, size), [f"text {n}" for n in chance.integers(0, 999, size)]], schema=LARGE
    )


LIMITS = (0, *sample((1, 3, 9, 20, 40, 80), 2, "limits"), 1024)
"""Megabytes that a step may take beyond what its process has."""


@long_test
@pytest.mark.drawn(1)
@pytest.mark.parametrize("memory", [None, "16MB"])
def test_a_system_that_has_no_memory_is_told_and_the_state_stays(tmp_path: Path, memory: str | None) -> None:
    first, second = events(20_000, 1), events(200_000, 2)
    with plan().open(tmp_path / "warm", memory=memory) as engine:
        engine.step({"a": first}, 1)
        shutil.copytree(tmp_path / "warm", tmp_path / "begun", ignore=shutil.ignore_patterns("spill"))
        engine.step({"a": second}, 2)
        expected = {epoch: dd.read(tmp_path / "warm", "by_s", epoch=epoch).sort_by("s") for epoch in (1, 2)}
        out = engine.step({"a": second}, 2, epoch=2)
    for more in LIMITS:
        shutil.copytree(tmp_path / "begun", tmp_path / str(more))
    for more, child in zip(LIMITS, answers := starved(tmp_path, memory), strict=False):
        assert child in ("done", "OutOfMemory"), f"{more} MB more: {child}"
        with plan().open(state := tmp_path / str(more), memory=memory) as engine:
            assert engine.epoch == 2 if child == "done" else engine.epoch in (1, 2)
            assert dd.read(state, "by_s").sort_by("s").equals(expected[engine.epoch])
            again = engine.step({"a": second}, 2, epoch=2)
            assert again.verdicts.counts == out.verdicts.counts
            assert dd.read(state, "by_s").sort_by("s").equals(expected[2])
    assert answers[-1] == "done" and "OutOfMemory" in answers


def starved(folder: Path, memory: str | None) -> list[str]:
    """What becomes of a step in processes that may take ever more bytes than they have, until one is done.

    They are forks of a process that has done little, and none of this one: what many tests have used and given back
    would do for the step.
    """
    code = f"from test_durable_memory import starve; starve({str(folder)!r}, {memory!r})"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=Path(__file__).parent.parent, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr[-1000:]
    return done.stdout.splitlines()


def starve(folder: str, memory: str | None) -> None:
    """The process that is forked; what becomes of its children goes to the standard output, a line each."""
    rows, warm = events(200_000, 2), events(1_000, 3)
    with tempfile.TemporaryDirectory() as place, plan().open(place, memory=memory) as engine:
        for time in (1, 2):  # all code is there before memory is taken away
            engine.step({"a": warm}, time)
    for more in LIMITS:
        ours, theirs = os.pipe()
        if not (child := os.fork()):
            try:
                os.write(theirs, fed(plan().open(Path(folder, str(more)), memory=memory), rows, more * 1_000_000))
            finally:
                os._exit(0)
        os.close(theirs)
        _, code = os.waitpid(child, 0)
        answer = os.read(ours, 1000).decode() or f"it died of {code}"
        os.close(ours)
        print(answer, flush=True)
        if answer == "done":
            break


def fed(engine: dd.Engine, rows: pa.Table, more: int) -> bytes:
    """Give an engine a step when its process may take so many bytes more: the name of the error, or "done"."""
    gc.collect()
    pa.default_memory_pool().release_unused()
    ctypes.CDLL(None).malloc_trim(0)
    with open("/proc/self/status", encoding="ascii") as file:
        now = next(int(line.split()[1]) * 1024 for line in file if line.startswith("VmData"))
    resource.setrlimit(resource.RLIMIT_DATA, (now + more, now + more))
    try:
        engine.step({"a": rows}, 2)
        return b"done"
    except BaseException as error:
        return type(error).__name__.encode()
