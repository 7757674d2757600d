"""Start-up: what a program pays before its first update, each figure in a fresh process.

Invariant: the caches that a process finds are said: *warm* is after an unmeasured run, *cold* is an empty cache
directory made for the purpose. A lazy import looks free until the first step, so the time to the first answer stands
beside it. Limits: the interpreter's own start is not in the figures.

>>> seconds("import json") < 5
True
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from typing import Any

import ours
from runner import Bench, Job, environment

FIRST_ANSWER = """
import ddflow as dd, pyarrow as pa
events = pa.table({"key": [1, 1], "val": [5, None], "time": [0, 1]})
flow = dd.Flow()
flow.output("out", flow.upserts("events", events.schema, dd.Upsert(key="key", time="time", delete="val is null")))
with flow.open() as engine:
    engine.push({"events": events})
    assert engine.advance_to(dd.CLOSED)["out"].num_rows == 2
"""
COMPILE = "from ddflow.tools.warmup import warm; warm(None)"
PROGRAMS = {
    "import ddflow": "import ddflow",
    "first answer": FIRST_ANSWER,
    "cold compilation": COMPILE,
}


def seconds(program: str, cache: str | None = None) -> float:
    """How long ``program`` takes in a fresh process, its interpreter already up; CalledProcessError when it fails."""
    timed = f"import time\nbegun = time.perf_counter()\n{program}\nprint(time.perf_counter() - begun)"
    variables = environment(threads=1) | ({} if cache is None else {"DDFLOW_CACHE_DIR": cache})
    done = subprocess.run([sys.executable, "-c", timed], stdout=subprocess.PIPE, text=True, env=variables, check=True)
    return float(done.stdout.splitlines()[-1])


class Startup(Bench):
    """The jobs: a program each, warm ones in several rounds, the cold compilation in one."""

    name = "startup"
    about = "Start-up: import, the first answer (import, open, push, advance), every kernel compiled from nothing."
    sampled = ("seconds",)
    columns = "what {program} | seconds {seconds!m:.3f} | min-max {seconds!l:.3f}-{seconds!g:.3f}"

    def jobs(self) -> list[Job]:
        return [Job({"program": name}, rounds=1 if PROGRAMS[name] == COMPILE else 5) for name in PROGRAMS]

    def measure(self, program: str) -> dict[str, Any]:
        """Run a program, once before where caches are to be warm."""
        if PROGRAMS[program] == COMPILE:
            with tempfile.TemporaryDirectory() as cache:
                return {"rows": 1, "seconds": seconds(COMPILE, cache)}
        seconds(PROGRAMS[program])
        return {"rows": 1, "seconds": seconds(PROGRAMS[program])}

    def compile_kernels(self) -> None:
        """Fill the cache of compiled kernels."""
        ours.warm()


BENCH = Startup()
