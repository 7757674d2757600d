"""Run a ddflow plan on stock PySpark, partition by partition, with the same results as the local engine.

    out = spark_bridge.run(flow, {"orders": df}, partitions=8)      # a DataFrame for each output
    out = spark_bridge.run(flow, {"orders": df}, state="orders.state")        # continues a state, and commits
    spark_bridge.sql("select count(*) n from orders", {"orders": dd.keyed(df, spec)})
    spark_bridge.stream(flow, {"orders": stream_df}, state="orders.state").start()

Importing this package loads nothing of Spark, and no function creates a session unless you ask for one. See
docs/spark.md for more.

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
    from spark_bridge.epochs import explain, run, schema, sql, stage, sync
    from spark_bridge.java import ensure_java
    from spark_bridge.monitoring import Listener
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
    "explain": "epochs",
    "rescale": "rewrite",
    "run": "epochs",
    "schema": "epochs",
    "sql": "epochs",
    "stage": "epochs",
    "stream": "streams",
    "sync": "epochs",
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
    except ImportError as error:  # PySpark is missing, or is too old for an import in the file
        if (error.name or "").split(".")[0] not in ("pyspark", "py4j"):
            raise
        raise MissingExtra(f"spark_bridge.{name}", str(error), "pip install 'ddflow[spark]'") from None
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOMES])
