"""Warming up: afterwards nothing compiles, here or in the next process, whatever flow is run.

Flows are drawn as for the laws, far more varied than those that warm up; each kernel must keep its one compiled form.
Everything runs in processes of its own: in this one other tests call kernels with whatever types they like.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from test_cli import DDFLOW, program_on_a_terminal

pytestmark = pytest.mark.together("warmup")  # one process compiles for all of these

TESTS = Path(__file__).parent.parent
WARM = """
import json, sys
from ddflow.kernels.compile import list_entry_kernels
from ddflow.tools.warmup import warm
told = []
warmed = warm(lambda *each: told.append(each))
kernels = list_entry_kernels()
forms = {kernel.py_func.__name__: len(getattr(kernel, "signatures", [])) for kernel in kernels}
types = {kernel.py_func.__name__: [str(each) for each in getattr(kernel, "signatures", [])] for kernel in kernels}
print(json.dumps({"kernels": warmed.kernels, "compiled": warmed.compiled, "directory": str(warmed.directory),
                  "told": told, "forms": forms, "types": types}))
"""
DRAW = """
import json
import chance
from ddflow.kernels.compile import list_entry_kernels, watch_compilations
from hypothesis import HealthCheck, given, settings, strategies as st
from doors import EngineDoor
from rules import Refused
from strategies import scenarios, shapes
from test_laws import calls
from tight import tiny

chance.draw_for("warmed")
compiled, flows, spilled = [], [], []
media = st.sampled_from([None, None, {}, {"share": 500}])

@settings(max_examples=60, deadline=None, database=None, suppress_health_check=list(HealthCheck))
@given(st.data(), shapes(), st.sampled_from([{}, {"retain": 0}, {"retain": 2}]), media, st.integers(1, 2))
def draw(data, shape, options, medium, threads):
    scenario = data.draw(scenarios())
    door = EngineDoor(scenario, shape, medium, threads=threads, **options)
    for verb, *arguments in data.draw(calls(scenario)):
        try:
            if verb == "step":
                door.step(arguments[1], arguments[0])
            else:
                door.push(*arguments) if verb == "push" else door.advance_to(*arguments)
        except Refused:
            pass
    for name in scenario["outputs"]:
        door.read(name)
    flows.append(scenario)
    spilled.append(bool(door.engine.stats()["bytes_mapped"]))
    door.close()

with watch_compilations(compiled.append), tiny():
    draw()
misses = {kernel.py_func.__name__: sum(kernel.stats.cache_misses.values()) for kernel in list_entry_kernels()}
forms = {kernel.py_func.__name__: len(kernel.signatures) for kernel in list_entry_kernels()}
types = {kernel.py_func.__name__: [str(each) for each in kernel.signatures] for kernel in list_entry_kernels()}
done = {"flows": len(flows), "spilled": sum(spilled), "compiled": compiled}
print(json.dumps({**done, "misses": misses, "types": types}))
"""


def python(program: str, **changes: str) -> Any:
    """What a program prints as JSON, run in a process of its own."""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join((str(TESTS), *sys.path))} | changes
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=environment, timeout=600)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.fixture(scope="module", params=["kept", pytest.param("cold", marks=pytest.mark.soak)])
def where(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Where kernels are kept: the cache that all tests use, or one that is empty.  Compiling all takes a minute."""
    return {} if request.param == "kept" else {"DDFLOW_CACHE_DIR": str(tmp_path_factory.mktemp("kernels"))}


@pytest.fixture(scope="module")
def first(where: dict[str, str]) -> Any:
    """What warming up there did."""
    return python(WARM, **where)


def test_every_kernel_is_ready_in_one_form_and_those_compiled_are_told_of(first: Any, where: dict[str, str]) -> None:
    assert first["kernels"] == len(first["forms"]) > 20
    assert first["compiled"] == first["kernels"] or not where
    assert set(first["forms"].values()) == {1}
    done = [ready for ready, _, _ in first["told"]]
    assert done == sorted(done) and done[-1] == first["kernels"]
    told = set(first["forms"]) & {doing for _, _, doing in first["told"]}
    assert len(told) == first["compiled"]


def test_afterwards_no_flow_compiles_anything(first: Any, where: dict[str, str]) -> None:
    drawn = python(DRAW, **where)
    assert drawn["flows"] >= 60
    assert drawn["spilled"] > 4
    assert drawn["compiled"] == []
    assert set(drawn["misses"].values()) == {0}
    # A kept cache may hold forms that other tests had compiled, so types are compared, too.
    assert {name: types for name, types in drawn["types"].items() if types not in ([], first["types"][name])} == {}
    assert sum(map(len, drawn["types"].values())) > 20  # the flows did call the kernels


def test_the_verb_says_how_many_and_where_and_finds_them_again(first: Any, where: dict[str, str]) -> None:
    said = subprocess.run([DDFLOW, "warmup"], capture_output=True, text=True, env=os.environ | where, timeout=120)
    assert (said.returncode, said.stderr) == (0, "")
    assert re.fullmatch(rf"{first['kernels']} kernels ready, 0 compiled in [\d.]+ s, in (.*)\n", said.stdout)
    assert said.stdout.rstrip().endswith(first["directory"])
    assert first["directory"].startswith(where.get("DDFLOW_CACHE_DIR", ""))


def test_on_a_terminal_the_verb_shows_how_far_it_is(first: Any) -> None:
    code, shown = program_on_a_terminal("warmup")
    assert code == 0
    assert re.search(rf"\d+/{first['kernels']} ", shown)


def test_where_nothing_can_be_kept_the_verb_says_so_and_fails(tmp_path: Path) -> None:
    for name in ("chosen", f"ddflow-{os.geteuid()}"):
        (tmp_path / name).write_text("a file, where a folder would be")
    places = {"DDFLOW_CACHE_DIR": str(tmp_path / "chosen"), "TMPDIR": str(tmp_path), "NUMBA_DISABLE_JIT": "1"}
    said = subprocess.run([DDFLOW, "warmup"], capture_output=True, text=True, env=os.environ | places, timeout=120)
    assert (said.returncode, said.stdout) == (1, "")
    assert said.stderr.startswith("ddflow: keep compiled kernels: no directory for them can be written; name one")


def test_without_the_compiler_there_is_nothing_to_do(tmp_path: Path) -> None:
    warmed = python(WARM, NUMBA_DISABLE_JIT="1", DDFLOW_CACHE_DIR=str(tmp_path))
    assert (warmed["compiled"], warmed["told"]) == (0, [])
    assert warmed["kernels"] > 20
