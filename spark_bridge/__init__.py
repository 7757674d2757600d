"""spark_bridge: a ddflow plan on stock PySpark, partition by partition, with the rows the local engine gives.

    out = spark_bridge.run(flow, {"orders": df}, partitions=8)      # a DataFrame for each output
    out = spark_bridge.run(flow, {"orders": df}, state="orders.state")        # the same, and goes on where it stopped
    spark_bridge.sql("select count(*) n from orders", {"orders": dd.keyed(df, spec)})      # the same of a query
    spark_bridge.stream(flow, {"orders": stream_df}, state="orders.state").start()
    df.repartition(8, "id").mapInArrow(spark_bridge.stage(flow), schema=spark_bridge.schema(flow))

A plan is cut into stages by ``ddflow.partitions``; ``tasks`` is what workers run of them, ``types`` which type
carries which.  ``running`` makes frames of a plan and a batch, which ``ran`` gives back, ``querying`` of a query,
``streaming`` of a plan and streams; with a state, each epoch is a ``job``, whose tasks keep parts of the state open in
a ``part_cache`` and tell ``errors`` to the driver, whose ``delivering`` gives epochs to sinks; ``stats`` and
``monitoring`` say what it took.  ``rescaling`` changes how many partitions a state has, and widens its columns.
``source`` reads a state back, as ``reading`` and ``following`` do; ``kafka`` reads topics where Spark has no jar for
it, and ``decoding`` makes rows of messages.  ``session`` has settings, and starts a local session where one is asked
for by name: none is ever made behind the caller's back; ``daemon`` makes workers start fast, ``java`` finds a Java.
Importing this imports nothing of Spark.  docs/spark.md has the rest.

>>> import spark_bridge
>>> sorted(spark_bridge.__all__)
['DdflowSource', 'KafkaSource', 'Listener', 'configure', 'decode', 'ensure_java', 'evolve', \
'explain', 'rescale', 'run', 'schema', 'sql', 'stage', 'stream', 'sync']
"""

import importlib
from typing import TYPE_CHECKING, Any

from ddflow.errors import MissingExtra

if TYPE_CHECKING:
    from spark_bridge.decoding import decode
    from spark_bridge.delivery import sync
    from spark_bridge.epochs import run, schema, stage
    from spark_bridge.java import ensure_java
    from spark_bridge.monitoring import Listener
    from spark_bridge.queries import explain, sql
    from spark_bridge.rewrite import evolve, rescale
    from spark_bridge.session import configure
    from spark_bridge.sources.kafka import KafkaSource
    from spark_bridge.sources.state import DdflowSource
    from spark_bridge.streams import stream

_HOMES = {
    "DdflowSource": "sources.state",
    "KafkaSource": "sources.kafka",
    "Listener": "monitoring",
    "configure": "session",
    "decode": "decoding",
    "ensure_java": "java",
    "evolve": "rewrite",
    "explain": "queries",
    "rescale": "rewrite",
    "run": "epochs",
    "schema": "epochs",
    "sql": "queries",
    "stage": "epochs",
    "stream": "streams",
    "sync": "delivery",
}

__all__ = [
    "DdflowSource",
    "KafkaSource",
    "Listener",
    "configure",
    "decode",
    "ensure_java",
    "evolve",
    "explain",
    "rescale",
    "run",
    "schema",
    "sql",
    "stage",
    "stream",
    "sync",
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
