"""What a program pays before its first update: ``import ddflow``, the first answer, and a compilation from nothing.

Invariant: every figure is of a fresh process, and the caches it finds are said: *warm* is after one unmeasured run,
*cold* is an empty cache directory made for the purpose. A lazy import looks free until the first step, so the time to
the first answer stands beside it. The interpreter's own start is not included.

>>> seconds("import json") < 5
True
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import tempfile

from child import environment as environment_of

FIRST_ANSWER = """
import ddflow as dd, pyarrow as pa
events = pa.table({"key": [1, 1], "val": [5, None], "time": [0, 1]})
flow = dd.Flow()
flow.output("out", flow.upserts("events", events.schema, dd.Upsert(key="key", time="time", delete="val is null")))
with flow.open() as engine:
    engine.push({"events": events})
    assert engine.advance_to(dd.CLOSED)["out"].num_rows == 2
"""

COLD_COMPILE = """
from ddflow.tools.warmup import warm
warm(None)
"""


def seconds(program: str, cache: str | None = None) -> float:
    """How long ``program`` takes in a fresh process, its interpreter already up; CalledProcessError when it fails."""
    timed = f"import time\nbegun = time.perf_counter()\n{program}\nprint(time.perf_counter() - begun)"
    environment = environment_of(threads=1) | ({} if cache is None else {"DDFLOW_CACHE_DIR": cache})
    done = subprocess.run([sys.executable, "-c", timed], stdout=subprocess.PIPE, text=True, env=environment, check=True)
    return float(done.stdout.splitlines()[-1])


def fill_cache() -> None:
    """Have every kernel compiled by a process that measures nothing: what a compiler leaves in memory is not ours."""
    seconds(COLD_COMPILE)


def startup(rounds: int = 5) -> dict[str, float]:
    """Seconds, medians of ``rounds`` where caches are warm; the cold compilation is run once."""
    with tempfile.TemporaryDirectory() as cache:
        cold = seconds(COLD_COMPILE, cache)
    fill_cache()
    seconds(FIRST_ANSWER)
    return {
        "import_s": statistics.median(seconds("import ddflow") for _ in range(rounds)),
        "first_answer_s": statistics.median(seconds(FIRST_ANSWER) for _ in range(rounds)),
        "cold_compile_s": cold,
    }
