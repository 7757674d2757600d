"""spark_bridge: a ddflow plan on stock PySpark, partition by partition, with the rows the local engine gives.

    out = spark_bridge.run(flow, {"orders": df}, partitions=8)      # a DataFrame for each output
    out = spark_bridge.run(flow, {"orders": df}, state="orders.state")        # the same, and goes on where it stopped
    spark_bridge.stream(flow, {"orders": stream_df}, state="orders.state").start()
    df.repartition(8, "id").mapInArrow(spark_bridge.stage(flow), schema=spark_bridge.schema(flow))

Rooms: ``plan`` cuts a flow into stages, ``task`` is what workers run, ``columns`` and ``schemas`` know the types on
both sides, ``driver`` makes frames of it all.  With state: ``job`` is an epoch, made by ``bodies``, which keep parts in
``warm`` and tell errors by ``failures``; ``running`` and ``streaming`` say what an epoch is, ``committed`` what it put
out, ``stats`` and ``listener`` what it took; ``rescaling`` changes how many partitions it has.  ``source`` reads a
state back, as ``reading`` and ``following`` do.  ``configuring`` and ``daemon`` make workers start fast; ``java`` finds
a Java, ``local`` starts a session where one is asked for by name: none is ever made behind the caller's back.
Importing this imports nothing of Spark.  docs/spark.md has the rest.

>>> import spark_bridge
>>> sorted(spark_bridge.__all__)
['DdflowSource', 'Listener', 'arrow_schema', 'configure', 'ensure_java', 'rescale', 'run', 'schema', 'stage', 'stream']
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from ddflow.errors import MissingExtra

if TYPE_CHECKING:
    from spark_bridge.configuring import configure
    from spark_bridge.driver import run, schema, stage
    from spark_bridge.java import ensure_java
    from spark_bridge.listener import Listener
    from spark_bridge.rescaling import rescale
    from spark_bridge.schemas import arrow_schema
    from spark_bridge.source import DdflowSource
    from spark_bridge.streaming import stream

_HOMES = {
    "DdflowSource": "source",
    "Listener": "listener",
    "arrow_schema": "schemas",
    "configure": "configuring",
    "ensure_java": "java",
    "rescale": "rescaling",
    "run": "driver",
    "schema": "driver",
    "stage": "driver",
    "stream": "streaming",
}

__all__ = [
    "DdflowSource",
    "Listener",
    "arrow_schema",
    "configure",
    "ensure_java",
    "rescale",
    "run",
    "schema",
    "stage",
    "stream",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'spark_bridge' has no attribute {name!r}")
    try:
        value = getattr(importlib.import_module(f"spark_bridge.{_HOMES[name]}"), name)
    except ImportError as error:  # none at all, or one that is too old for what is imported from it
        if (error.name or "").split(".")[0] not in ("pyspark", "py4j"):
            raise
        raise MissingExtra(f"spark_bridge.{name}", str(error), "pip install 'ddflow[spark]'") from None
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOMES])
