"""Settings for a session that runs ddflow often: how much Spark hands over together, and workers that start ready.

Invariant: nothing here changes an answer, and a session without it works; a setting that the builder has already is
left to it. Spark's Python workers are forked from a daemon, which Spark starts by a module's name; one that has
ddflow's kernels loaded gives that to all its children, but must be importable where executors run, or no worker starts
at all. It sets, and starts nothing.

>>> for setting in SETTINGS:
...     print(setting.name)
spark.sql.execution.arrow.maxRecordsPerBatch
spark.sql.execution.arrow.maxBytesPerBatch
spark.python.daemon.module
spark.python.worker.reuse
"""

from __future__ import annotations

import os
from typing import Any, Final, NamedTuple

CACHE: Final = "DDFLOW_CACHE_DIR"


class Setting(NamedTuple):
    """A setting of Spark's, its value, and what it is good for."""

    name: str
    value: str
    why: str


SETTINGS: Final = (
    Setting(
        "spark.sql.execution.arrow.maxRecordsPerBatch",
        "100000",
        "rows reach Python in batches of 100,000, not 10,000: half the time for narrow rows",
    ),
    Setting("spark.sql.execution.arrow.maxBytesPerBatch", str(64 << 20), "and of 64 MB at most, however wide they are"),
    Setting(
        "spark.python.daemon.module",
        "spark_bridge.daemon",
        "workers are forked from a process that has ddflow and its kernels loaded: a fresh one starts in "
        "milliseconds, not half a second; ddflow must be installed on the executors",
    ),
    Setting("spark.python.worker.reuse", "true", "a worker serves many tasks, and keeps open what it has of a state"),
)


def configure(builder: Any, *, cache: str | None = None, explain: bool = False) -> Any:
    """A ``SparkSession.builder`` with what ddflow profits from; to be called before the session is made.

    ``cache``: a folder on each machine where compiled kernels are kept, private to the user; by default that of the
    platform.  ``explain``: print every setting, and why.
    """
    chosen = list(SETTINGS)
    place = cache or os.environ.get(CACHE)
    if place:
        why = "kernels are compiled once a machine, and kept there"
        chosen.append(Setting(f"spark.executorEnv.{CACHE}", place, why))
    known = getattr(builder, "_options", {})
    for setting in chosen:
        if setting.name not in known:
            builder = builder.config(setting.name, setting.value)
        if explain:
            print(f"{setting.name} = {known.get(setting.name, setting.value)}: {setting.why}")
    return builder
