"""Test that kernels give the same results interpreted and compiled.

Compiled kernels stay compiled in a process, so each run here has its own process.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from chance import long_test, mid_test
from test_cli import program_on_a_terminal

from ddflow.kernels import cache
from ddflow.kernels.compile import SMALL, InterpreterBudget, cache_directory

TESTS = Path(__file__).parent.parent
DRAW = """
import hashlib, json, sys
import pyarrow as pa
from hypothesis import HealthCheck, given, settings, strategies as st
from ddflow.kernels import compile
from doors import EngineDoor
from rules import Refused
from strategies import scenarios, shapes
from test_laws import calls

compile.PATIENCE.seconds, compile.PATIENCE.most = float(sys.argv[1]), 1 << 60
ran, said = [0], []
real = compile.interpret
def interpreted(function):
    ran[0] += 1
    return real(function)
compile.interpret = interpreted

def told(tables):
    for name in sorted(tables):
        table, sink = tables[name].combine_chunks(), pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, table.schema) as stream:
            stream.write_table(table)
        said.append(hashlib.sha256(sink.getvalue()).hexdigest()[:16])

class Door(EngineDoor):
    def _call(self, act, *given, **named):
        def kept(*given, **named):
            out = act(*given, **named)
            told(dict(out))
            return out
        return super()._call(kept, *given, **named)

@settings(max_examples=6, deadline=None, derandomize=True, database=None, suppress_health_check=list(HealthCheck))
@given(st.data(), shapes())
def draw(data, shape):
    scenario = data.draw(scenarios())
    door = Door(scenario, shape)
    for verb, *arguments in data.draw(calls(scenario)):
        try:
            if verb == "step":
                door.step(arguments[1], arguments[0])
            else:
                door.push(*arguments) if verb == "push" else door.advance_to(*arguments)
        except Refused:
            said.append("refused")
    told({name: door.engine.read(name) for name in scenario["outputs"]})
    door.close()

draw()
print(json.dumps({"interpreted": ran[0], "said": said}))
"""


def run(program: str, *arguments: str, **changes: str) -> Any:
    """What a program prints as JSON, run in a process of its own."""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join((str(TESTS), *sys.path))} | changes
    command = [sys.executable, "-c", program, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=600)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@long_test
def test_interpreted_steps_give_the_same_bytes_as_compiled_ones(tmp_path: Path) -> None:
    compiled = run(DRAW, "0")
    interpreted = run(DRAW, "1e9", DDFLOW_CACHE_DIR=str(tmp_path), DDFLOW_BACKGROUND="0")
    assert compiled["said"] == interpreted["said"]
    assert len(set(compiled["said"])) > 20
    assert (compiled["interpreted"], interpreted["interpreted"] > 200) == (0, True)
    assert [*tmp_path.rglob("*.kernel")] == []


ONE = "ddflow.kernels.emit.mark_times_and_deletes-*.kernel"
FIRST = """
import json, sys, time
import pyarrow as pa
import ddflow as dd
import ddflow.engine.engine
flow = dd.Flow()
schema = pa.schema({"key": pa.int64(), "city": pa.string()})
orders = flow.upserts("orders", schema, dd.Upsert("key"))
flow.output("orders", orders)
began = time.process_time()
with flow.open() as engine:
    rows = int(sys.argv[1])
    table = pa.table({"key": range(rows), "city": ["Bern"] * rows}).cast(schema)
    out = engine.step({"orders": table}, 1)["orders"].num_rows
from numba.core import event
from ddflow.kernels.compile import list_kernels
from ddflow.kernels import cache
from ddflow.kernels.compile import SMALL, InterpreterBudget, cache_directory
compiled = sum(bool(each.signatures) for each in list_kernels())
helpers = [each.pid for each in cache.list_fill_processes()]
print(json.dumps({"out": out, "compiled": compiled, "helpers": helpers}), flush=True)
if len(sys.argv) > 2:
    time.sleep(600)
"""


def test_a_first_small_step_compiles_nothing_and_a_large_one_does(tmp_path: Path) -> None:
    small = run(FIRST, "2", DDFLOW_CACHE_DIR=str(tmp_path / "none"), DDFLOW_BACKGROUND="0")
    assert small == {"out": 2, "compiled": 0, "helpers": []}
    kept = cache_directory()
    assert kept is not None
    place = shutil.copytree(kept, tmp_path / "kept" / kept.name)
    for file in place.glob(ONE):  # to compile all of them takes ten seconds
        file.unlink()
    large = run(FIRST, "40000", DDFLOW_CACHE_DIR=str(tmp_path / "kept"), DDFLOW_BACKGROUND="0")
    assert large["out"] == 40000 and large["compiled"] > 4
    assert len([*place.glob(ONE)]) == 1


def test_patience_ends() -> None:
    patience = InterpreterBudget(1.0, calls=2)
    assert not patience.allows("large", ((np.zeros(SMALL // 2), np.zeros(SMALL)), 1))
    assert [patience.allows("small", (np.zeros(SMALL), 1)) for _ in range(3)] == [True, True, False]
    assert patience.allows("other", ())
    patience.seconds -= 1.5
    assert not patience.allows("other", ())


def alive(pid: int) -> bool:
    """Whether a process runs, and is no zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@mid_test
def test_the_process_that_fills_the_cache_is_niced_and_ends_with_its_parent_however_that_ends(tmp_path: Path) -> None:
    environment = os.environ | {"DDFLOW_CACHE_DIR": str(tmp_path), "DDFLOW_BACKGROUND": "1"}
    command = [sys.executable, "-c", FIRST, "2", "and wait"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as parent:
        assert parent.stdout is not None
        (helper,) = json.loads(parent.stdout.readline())["helpers"]
        until = time.monotonic() + 120
        while not [*tmp_path.rglob("*.kernel")]:
            assert alive(helper) and time.monotonic() < until
            time.sleep(0.1)
        assert os.getpriority(os.PRIO_PROCESS, helper) == 19
        parent.send_signal(signal.SIGKILL)
    while alive(helper):
        assert time.monotonic() < until
        time.sleep(0.1)
    assert not [*tmp_path.rglob("filled")]


def test_one_process_fills_a_cache_and_a_filled_one_is_left_alone(tmp_path: Path) -> None:
    with cache.hold_fill_lock(tmp_path) as first, cache.hold_fill_lock(tmp_path) as second:
        assert (first, second) == (True, False)
        cache.mark_cache_filled(tmp_path)
    with cache.hold_fill_lock(tmp_path) as third:
        assert not third
    assert not cache.start_fill_process(tmp_path)
    assert not cache.start_fill_process(None)


def test_who_waits_at_a_terminal_is_told_that_kernels_are_compiled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = tmp_path / "two.csv"
    table.write_text("id,v\n1,a\n2,b\n")
    monkeypatch.setenv("DDFLOW_CACHE_DIR", str(tmp_path / "kernels"))
    monkeypatch.setenv("DDFLOW_BACKGROUND", "1")
    code, said = program_on_a_terminal("diff", str(table), "--key", "id")
    assert code == 0
    assert "ddflow compiles its kernels in the background, once on this machine" in said
