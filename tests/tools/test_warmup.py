"""Test warming up: afterwards no flow compiles anything, in this process or the next.

Flows are drawn as for the laws, far more varied than the warm-up's. Each kernel must keep a single compiled form.
Everything runs in separate processes, because other tests call kernels in this one with arbitrary types.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from chance import long_test, mid_test
from terminals import on_a_terminal
from test_cli import DDFLOW

import ddflow as dd
from ddflow.columns import rows
from ddflow.columns.threads import WAKING, Threads
from ddflow.dataflow.budget import LEAST
from ddflow.dataflow.spill import spill_to_fit_budget
from ddflow.operators.upsert import resolution
from ddflow.operators.upsert.resolution import EMITTED
from ddflow.storage.memory import MemoryStore

pytestmark = pytest.mark.together("warmup")  # one process compiles for all of these

TESTS = Path(__file__).parent.parent
WARM = """
import json, sys
from ddflow.kernels.compile import list_entry_kernels
from ddflow.tools.warmup import compile_all_kernels
told = []
warmed = compile_all_kernels(lambda *each: told.append(each))
kernels = list_entry_kernels()
forms = {kernel.py_func.__name__: len(getattr(kernel, "signatures", [])) for kernel in kernels}
types = {kernel.py_func.__name__: [str(each) for each in getattr(kernel, "signatures", [])] for kernel in kernels}
print(json.dumps({"kernels": warmed.kernels, "compiled": warmed.compiled, "directory": str(warmed.directory),
                  "told": told, "forms": forms, "types": types}))
"""
ONE = """
import json
from ddflow.tools import warmup
kernels = warmup.list_entry_kernels()[:1]
warmup.list_entry_kernels = lambda: kernels
warmed = warmup.compile_all_kernels()
print(json.dumps([warmed.kernels, warmed.compiled]))
"""
DRAW = """
import json
import chance
from ddflow.kernels.compile import list_entry_kernels
from hypothesis import HealthCheck, given, settings, strategies as st
from doors import EngineDoor
from rules import Refused
from strategies import scenarios, shapes
from test_laws import calls
from tight import tiny

chance.draw_for("warmed")
flows, spilled = [], []
media = st.sampled_from([None, {}, {"share": 500}])

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

with tiny():
    draw()
misses = {kernel.py_func.__name__: sum(kernel.stats.cache_misses.values()) for kernel in list_entry_kernels()}
types = {kernel.py_func.__name__: [str(each) for each in kernel.signatures] for kernel in list_entry_kernels()}
done = {"flows": len(flows), "spilled": sum(spilled)}
print(json.dumps({**done, "misses": misses, "types": types}))
"""

FLOWS = """
import json
from ddflow.kernels.compile import PATIENCE, argument_types, list_entry_kernels
from test_warmup import run_every_kernel
PATIENCE.seconds = 0
run_every_kernel()
kernels = {kernel.py_func.__name__: kernel for kernel in list_entry_kernels()}
called = {name: [str(each) for each in kernel.signatures] for name, kernel in kernels.items()}
annotated = {name: [str(argument_types(kernel.py_func))] for name, kernel in kernels.items()}
print(json.dumps({"called": called, "annotated": annotated}))
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


@mid_test
def test_every_kernel_is_ready_in_one_form_and_those_compiled_are_told_of(first: Any, where: dict[str, str]) -> None:
    assert first["kernels"] == len(first["forms"]) > 20
    assert first["compiled"] == first["kernels"] or not where
    assert set(first["forms"].values()) == {1}
    done = [ready for ready, _, _ in first["told"]]
    assert done == sorted(done) and done[-1] == first["kernels"]
    told = set(first["forms"]) & {doing for _, _, doing in first["told"]}
    assert len(told) == first["compiled"]


def test_a_kernel_that_is_not_kept_is_compiled_once_and_counted_once(tmp_path: Path) -> None:
    assert python(ONE, DDFLOW_CACHE_DIR=str(tmp_path)) == [1, 1]
    assert python(ONE, DDFLOW_CACHE_DIR=str(tmp_path)) == [1, 0]


@mid_test
def test_every_kernel_is_called_with_the_types_that_its_annotations_say(where: dict[str, str]) -> None:
    ran = python(FLOWS, **where)
    assert ran["called"] == ran["annotated"]


@long_test
def test_afterwards_no_flow_compiles_anything(first: Any, where: dict[str, str]) -> None:
    drawn = python(DRAW, **where)
    assert drawn["flows"] >= 60
    assert drawn["spilled"] > 0  # mostly a third, but hypothesis may draw what is small
    assert set(drawn["misses"].values()) == {0}
    # A kept cache may hold forms that other tests had compiled, so types are compared, too.
    assert {name: types for name, types in drawn["types"].items() if types not in ([], first["types"][name])} == {}
    assert sum(map(len, drawn["types"].values())) > 20  # the flows did call the kernels


@mid_test
def test_the_verb_says_how_many_and_where_and_finds_them_again(first: Any, where: dict[str, str]) -> None:
    said = subprocess.run([DDFLOW, "warmup"], capture_output=True, text=True, env=os.environ | where, timeout=120)
    assert (said.returncode, said.stderr) == (0, "")
    assert re.fullmatch(rf"{first['kernels']} kernels ready, 0 compiled in [\d.]+ s, in (.*)\n", said.stdout)
    assert said.stdout.rstrip().endswith(first["directory"])
    assert first["directory"].startswith(where.get("DDFLOW_CACHE_DIR", ""))


@mid_test
def test_on_a_terminal_the_verb_shows_how_far_it_is(first: Any) -> None:
    code, shown = on_a_terminal("warmup")
    assert code == 0
    assert re.search(rf"\d+/{first['kernels']} ", shown)


def test_where_nothing_can_be_kept_the_verb_says_so_and_fails(tmp_path: Path) -> None:
    for name in ("chosen", f"ddflow-{os.geteuid()}"):
        (tmp_path / name).write_text("a file, where a folder would be")
    places = {"DDFLOW_CACHE_DIR": str(tmp_path / "chosen"), "TMPDIR": str(tmp_path), "NUMBA_DISABLE_JIT": "1"}
    said = subprocess.run([DDFLOW, "warmup"], capture_output=True, text=True, env=os.environ | places, timeout=120)
    assert (said.returncode, said.stdout) == (1, "")
    assert said.stderr.startswith(
        "ddflow: keep compiled kernels: no directory for them is writable; set DDFLOW_CACHE_DIR"
    )


def test_without_the_compiler_there_is_nothing_to_do(tmp_path: Path) -> None:
    warmed = python(WARM, NUMBA_DISABLE_JIT="1", DDFLOW_CACHE_DIR=str(tmp_path))
    assert (warmed["compiled"], warmed["told"]) == (0, [])
    assert warmed["kernels"] > 20


def run_every_kernel() -> None:
    """Run small flows that lead through every kernel: keys of one word and of many, nulls, ties, late events, files."""
    _run_by_epochs()
    _run_by_time()
    _run_on_disk()
    _run_reopened()
    _run_to_upserts()
    _run_merging()
    _run_ordered()
    _run_aggregates()
    with pytest.MonkeyPatch.context() as patch:
        for place, name in ((rows, "MANY"), (rows, "NEAR"), (resolution, "BULK"), (Threads, "waking")):
            patch.setattr(place, name, 1)
        _run_large()


def _run_by_epochs() -> None:
    """Run wide identities, order columns with nulls, deletes, every operator, merges and an index that grows."""
    columns = {
        "key": pa.string(),
        "part": pa.float64(),
        "city": pa.string(),
        "tags": pa.list_(pa.int64()),
        "paid": pa.bool_(),
        "at": pa.float64(),
        "gone": pa.bool_(),
    }
    flow = dd.Flow()
    orders = flow.upserts("orders", columns, dd.Upsert(["key", "part"], "at", delete=dd.tombstone("gone")))
    cities = orders.project(["city"])
    flow.output("orders", orders)
    flow.output("counts", orders.count(["paid", "tags"]))
    flow.output("pairs", orders.join(orders.project({"city": "city", "other": "key"}), on="city").count("other"))
    flow.output("cities", cities.concat(cities.negate(), cities).consolidate())
    with flow.open(verdicts="rows", retain=1) as engine:
        for time in range(12):
            engine.step({"orders": _orders(3000 if time == 1 else 100, time).cast(pa.schema(columns))}, time=time)
        for name in flow.outputs:
            engine.read(name)
        engine.read("orders", as_of=10)


def _orders(n: int, seed: int) -> pa.Table:
    """Make n events of orders: all types, with nulls in all but the key."""
    draw = np.random.default_rng(seed)
    key = draw.integers(0, 5000, n)

    def sometimes(values: list[object]) -> pa.Array:
        return pa.array([value if there else None for value, there in zip(values, draw.random(n) < 0.9, strict=True)])

    return pa.table(
        {
            "key": [f"order {k}" * (1 + k % 9) for k in key.tolist()],
            "part": draw.integers(0, 2, n).astype(np.float64),
            "city": sometimes([("Bern", "Basel", "Z" * 99)[c] for c in draw.integers(0, 3, n)]),
            "tags": sometimes([[1, 2]] * n),
            "paid": sometimes((draw.random(n) < 0.5).tolist()),
            "at": sometimes(draw.random(n).tolist()),
            "gone": sometimes((draw.random(n) < 0.2).tolist()),
        }
    )


def _run_by_time() -> None:
    """Run identities of one word, pending events, late ones that are advanced, ties, and a step shared by threads."""
    columns = {"key": pa.int64(), "value": pa.int32(), "at": pa.timestamp("us")}
    flow = dd.Flow()
    readings = flow.upserts("readings", columns, dd.Upsert("key", time="at", late="advance", tie="greatest"))
    flow.output("readings", readings)
    flow.output("counts", readings.project(["value"]).count())
    with flow.open(threads=2) as engine:
        for time in range(0, 120, 10):
            draw, n = np.random.default_rng(time), 400 if time else 6 * WAKING // EMITTED
            at = pa.array(draw.integers(max(time - 5, 0), time + 10, n)).cast(pa.timestamp("us"))
            key, value = draw.integers(0, 2000, n), pa.array(draw.integers(0, 9, n), pa.int32())
            engine.push({"readings": pa.table({"key": key, "value": value, "at": at})})
            engine.advance_to(time + 5)
        engine.advance_to(dd.CLOSED)
        engine.read("counts")


def _run_on_disk() -> None:
    """Search state in files for existing and for missing keys, of one word and of several."""
    flow = dd.Flow()
    flow.output("text", flow.upserts("text", {"key": pa.string(), "at": pa.int64()}, dd.Upsert("key", "at")))
    flow.output("numbers", flow.upserts("numbers", {"key": pa.int64(), "value": pa.int64()}, dd.Upsert("key")))
    with tempfile.TemporaryDirectory() as place, flow.open(memory=4 * LEAST, spill=place) as engine:
        for time in range(3):
            key = np.arange(time * 100, time * 100 + 20_000)
            names = pa.array(key).cast(pa.string())
            engine.step(
                {"text": pa.table({"key": names, "at": key}), "numbers": pa.table({"key": key, "value": key})}, time
            )
            spill_to_fit_budget(engine.dataflow.budget, engine.dataflow.graph, engine.dataflow.batchers, 0)
        engine.read("numbers")


def _run_reopened() -> None:
    """Open a state again after its engine has closed."""
    flow, store = dd.Flow(), MemoryStore()
    flow.output("numbers", flow.upserts("numbers", {"key": pa.int64(), "value": pa.int64()}, dd.Upsert("key")))
    for time in range(2):
        with flow.open(store.reopen()) as engine:
            engine.step({"numbers": pa.table({"key": range(1000), "value": range(1000)})}, time)


def _run_to_upserts() -> None:
    """Turn updates back into upserts, by each rule; keys of one row and of several."""
    key = np.arange(60) // 2
    updates = pa.table({"key": key, "value": np.arange(60), "_time": key * 0, "_diff": key * 0 + 1})
    for rule in ("error", "greatest", "all"):
        dd.to_upserts(updates.take(pa.array(range(0, 60, 2))) if rule == "error" else updates, "key", rule)


def _run_merging() -> None:
    """Run partial rows, merged by row, by groups and by cells; expiring keys; machines of one state and of several."""
    columns = pa.schema(
        {
            "key": pa.int64(),
            "at": pa.int64(),
            "by": pa.int64(),
            "n": pa.int64(),
            "u": pa.uint64(),
            "f": pa.float64(),
            "tags": pa.list_(pa.int64()),
        }
    )
    added = dd.Merge({"n": dd.sum(), "u": dd.sum(), "f": dd.sum(), "tags": dd.union()})
    specs = [
        dd.Upsert("key", "at", merge=added, expiry=dd.Expiry(ttl=1)),
        dd.Upsert("key", "at", groups={"by": ["n", "u"]}, merge=dd.Merge({"f": dd.max(), "tags": dd.append()})),
        dd.Upsert("key", "at", versions="cell"),
        dd.Upsert("key", "at", versions="cell", tie="greatest", value=["n", "f"]),
    ]
    for spec in specs:
        flow = dd.Flow()
        flow.output("rows", flow.upserts("rows", columns, spec))
        with flow.open() as engine:
            for time in range(4):
                n = np.arange(6)
                rows = {
                    "key": n // 2,
                    "at": n + 4 * time if time else [5, None, 4, 3, 2, 1],
                    "by": n,
                    "n": n,
                    "u": n,
                    "f": n / 2,
                    "tags": [[1, 2, 2]] * 6,
                }
                engine.step({"rows": pa.table(rows).cast(columns)}, time)
    for table in ({("a", "x"): "b", ("b", "x"): "a"}, {("a", "x"): ["a", "b"], ("b", "x"): "b"}):
        flow = dd.Flow()
        machine, schema = dd.Machine("state", table, on="symbol", start="a"), {"key": pa.int64(), "symbol": pa.string()}
        flow.output("states", flow.machine("events", schema, dd.Upsert("key"), machine))
        with flow.open() as engine:
            for time in range(2):
                engine.step({"events": pa.table({"key": [1, 1, 2], "symbol": ["x"] * 3})}, time)


def _run_aggregates() -> None:
    """Run sums of integers, floats and decimals, and of squares."""
    columns = {"id": pa.int64(), "city": pa.string(), "n": pa.int64(), "f": pa.float64(), "d": pa.decimal128(9, 2)}
    texts = {"rows": "count(f)", "i": "sum(n)", "mean": "avg(f)", "d": "sum(d + d)", "v": "var_pop(f)"}
    texts |= {"whole": "avg(n)", "exact": "avg(d)"}
    flow = dd.Flow()
    flow.output("cities", flow.upserts("orders", columns, dd.Upsert("id")).group_by("city").agg(**texts))
    with flow.open() as engine:
        for time in range(2):
            n = np.arange(60)
            rows = {"id": n, "city": (n % 3).astype(str), "n": n, "f": n / 3 + time, "d": n / 4}
            engine.step({"orders": pa.table(rows).cast(pa.schema(columns))}, time)
        engine.read("cities")


def _run_large() -> None:
    """Run a first step that counts as large, and a join that threads share. The caller makes large steps small."""
    flow, columns = dd.Flow(), {"id": int, "name": str}
    people = flow.upserts("people", columns, dd.Upsert("id"))
    flow.output("pairs", people.join(people.project({"other": "id", "name": "name"}), on="name"))
    n = np.random.default_rng(1).permutation(5000)
    with flow.open(threads=2) as engine:
        for time in range(3):
            engine.step({"people": {"id": n, "name": [f"name {each % 900 + time}" for each in n]}}, time)
        engine.read("people")


def _run_ordered() -> None:
    """Run operators that keep rows by group."""
    schema = pa.schema({"n": pa.int64()})
    flow = dd.Flow()
    few, names = flow.updates("rows", schema), flow.upserts("names", {"n": int, "name": str}, dd.Upsert("n"))
    flow.output("named", few.lookup(names, "n"))
    flow.output("near", few.asof(names, on=[], at="n >= n"))
    flow.output("top", few.top(1, by="n"))
    flow.output("ends", few.agg(lo="min(n)", hi="max(n)"))
    flow.output("versions", few.versions([], "n"))
    flow.output("windows", few.over(order_by="n", least="min(n)", different="count(distinct n)"))
    times = few.project({"at": "cast(n as timestamp)"})
    flow.output("sessions", times.over(order_by="at", session="session_window(at, '1 day')"))
    with flow.open() as engine:
        engine.step({"rows": {"n": [2, 1]}, "names": {"n": [1], "name": ["one"]}}, 0)
