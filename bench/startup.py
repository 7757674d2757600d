"""Measure the wall time and the CPU time until a program's first answer, each in a fresh process.

Each row shows the kernel cache of its program: *warm* is filled, and *cold* is empty. A lazy import costs nothing until
the first step, so the table also has the time to the first answer. The CPU time of background compilation has its own
column.

Limits: *import* and *first answer* exclude the start of the interpreter; *ddflow diff* includes it. On Spark, the
session has already run another query. The first batch of ddflow is compared with the first batch of a ``mapInArrow``
that does nothing.

>>> figures("import json")["seconds"] < 5
True
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import Any, Final

import ours
from report import Bar, Row, within
from runner import Bench, Job, environment

FIRST_ANSWER = """
import ddflow as dd, pyarrow as pa
schema = pa.schema({"id": pa.int64(), "city": pa.string(), "status": pa.string(), "amount": pa.int64(),
                    "at": pa.int64(), "op": pa.string()})
flow = dd.Flow()
orders = flow.upserts("orders", schema, dd.Upsert(key="id", order_by=["at"], delete=dd.tombstone("op", "D")))
paid = orders.filter("status = 'paid' and amount > 100")
flow.output("paid", paid), flow.output("by_city", paid.project(["city"]).count())
def batch(*rows):
    return pa.Table.from_pylist([dict(zip(schema.names, row)) for row in rows], schema)
dd.Upsert, dd.tombstone, dd.Engine
begun = start()
with flow.open() as engine:
    engine.step({"orders": batch((1, "Bern", "paid", 150, 10, "I"), (2, "Bern", "paid", 300, 11, "I"))}, time=1)
    step = engine.step({"orders": batch((2, "Bern", "paid", 300, 20, "D"), (1, "Zug", "paid", 150, 5, "U"))}, time=2)
    assert step["by_city"].num_rows == 2
"""
SPARK = """
from spark_bridge.session import local_session
with local_session("startup") as spark:
    spark.sparkContext.setLogLevel("OFF")
    frame = spark.createDataFrame([(i, "Bern", 10 * i) for i in range(20)], "id long, city string, amount long")
    frame.count()
    begun = start()
    assert FIRST(frame) > 0
    told = stop(begun)
"""
IDENTITY = """
def FIRST(frame):
    return len(frame.repartition(2, "id").mapInArrow(lambda batches: batches, frame.schema).collect())
"""
BATCH = """
def FIRST(frame):
    import ddflow as dd, pyarrow as pa, spark_bridge
    flow = dd.Flow()
    orders = flow.upserts("orders", {"id": pa.int64(), "city": pa.string(), "amount": pa.int64()}, dd.Upsert(key="id"))
    flow.output("by_city", orders.filter("amount > 20").count("city"))
    return len(spark_bridge.run(flow, {"orders": frame}, partitions=2)["by_city"].collect())
"""
DIFF = """
import subprocess, sys, tempfile
with tempfile.TemporaryDirectory() as folder:
    with open(folder + "/two.csv", "w") as file:
        file.write("id,v\\n1,a\\n1,b\\n")
    verb = "from ddflow.cli import main; main()"
    subprocess.run([sys.executable, "-c", verb, "diff", folder + "/two.csv", "--key", "id"], check=True,
                   stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
"""
IDENTITY_LINE, BATCH_LINE = "mapInArrow that does nothing", "first batch on Spark"
PROGRAMS: Final = {
    "import ddflow": "import ddflow, ddflow.engine.engine",
    "first answer": FIRST_ANSWER,
    "ddflow diff of two rows": DIFF,
    IDENTITY_LINE: IDENTITY + SPARK,
    BATCH_LINE: BATCH + SPARK,
    "all kernels": "from ddflow.tools.warmup import compile_all_kernels; compile_all_kernels(None)",
}
TIMED: Final = """
import json, resource, time
def spent(who):
    used = resource.getrusage(who)
    return used.ru_utime + used.ru_stime
def start():
    return time.perf_counter(), time.process_time(), spent(resource.RUSAGE_CHILDREN)
def stop(begun):
    own = time.process_time() - begun[1]
    return {"seconds": time.perf_counter() - begun[0], "cpu": own, "children": begun[2]}
told, begun = None, start()
%s
told = told or stop(begun)
from ddflow.kernels import cache
before = spent(resource.RUSAGE_CHILDREN)
told["children"] = before - told["children"]
for helper in cache.list_fill_processes():
    helper.stdin.close()
    helper.wait()
told["helper"] = spent(resource.RUSAGE_CHILDREN) - before
print(json.dumps(told))
"""
BARS: Final = {"first answer": ("cpu", 2.0), "ddflow diff of two rows": ("children", 3.0), "all kernels": ("cpu", 15.0)}
"""Maximum CPU seconds of each program with an empty cache."""
OVER: Final = 5.0
"""How many seconds longer the first batch on Spark may take than a ``mapInArrow`` that does nothing."""


def figures(program: str, cache: str | None = None) -> dict[str, float]:
    """Return seconds and CPU seconds of a program in a fresh interpreter; raise CalledProcessError if it fails.

    The start of the interpreter is not included. ``children``: CPU time of the child processes that have ended.
    ``helper``: CPU time of the process that fills the cache.
    """
    variables = environment(threads=1) | ({} if cache is None else {"DDFLOW_CACHE_DIR": cache})
    variables.pop("DDFLOW_BACKGROUND", None)
    done = subprocess.run(
        [sys.executable, "-c", TIMED % program], stdout=subprocess.PIPE, text=True, env=variables, check=True
    )
    told: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return told


class Startup(Bench):
    """The bench of each program, on a warm and on an empty cache."""

    name = "startup"
    about = "Start-up: import, first answer in Python, on the shell and on Spark, compilation of all kernels."
    sampled = ("seconds", "cpu", "children", "helper")
    columns = (
        "what {program} | cache {cache} | seconds {seconds!m:.2f} | min-max {seconds!l:.2f}-{seconds!g:.2f} | "
        "CPU s {cpu!m:.2f} | of children {children!m:.2f} | of the helper {helper!m:.2f}"
    )

    def jobs(self) -> list[Job]:
        return [
            Job({"program": name, "cache": cache}, rounds=3)
            for name in PROGRAMS
            for cache in ("warm", "cold")
            if not (name == "all kernels" and cache == "warm")
        ]

    def measure(self, program: str, cache: str) -> dict[str, Any]:
        """Run a program on an empty cache, or on a warm cache after one run that is not timed."""
        if cache == "cold":
            with tempfile.TemporaryDirectory() as folder:
                return {"rows": 1, **figures(PROGRAMS[program], str(Path(folder, "cache")))}
        figures(PROGRAMS[program])
        return {"rows": 1, **figures(PROGRAMS[program])}

    def compile_kernels(self) -> None:
        """Fill the cache of compiled kernels."""
        ours.warm()

    def bars(self, result: Row) -> Iterator[Bar]:
        """Yield the bars.

        The bars limit the CPU time of first answers with an empty cache, and the first batch on Spark.

        The batch on Spark is compared with a ``mapInArrow`` that does nothing.
        """
        cold = {row["program"]: row for row in result["results"] if row["cache"] == "cold"}
        for program, (figure, most) in BARS.items():
            if program in cold:
                took = median(cold[program][figure])
                yield within(f"{program}, cold", f"{took:.2f} s of CPU", f"{most:.0f} s", took <= most)
        if {BATCH_LINE, IDENTITY_LINE} <= cold.keys():
            over = median(cold[BATCH_LINE]["seconds"]) - median(cold[IDENTITY_LINE]["seconds"])
            yield within(f"{BATCH_LINE}, cold", f"{over:.2f} s more than nothing", f"{OVER:.0f} s", over <= OVER)


BENCH = Startup()
