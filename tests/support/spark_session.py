"""Share one local Spark session per process (fixture ``spark``), make DataFrames from tables, and compare DataFrames.

The session validates Arrow schemas, which is off by default, so a wrong type out of ``mapInArrow`` fails a test. The
time zone of the session is an unusual one. The session starts with the first test that needs it. The Python workers of
the session keep running from one test module to the next. A process has one session at a time. So a test with another
session (a cluster, the demo) uses the fixture ``alone``, which stops the shared session.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

import pyarrow as pa
from doors import plain
from pyspark.sql import DataFrame, SparkSession

import ddflow as dd
from spark_bridge.session import local_session
from spark_bridge.types import build_transfer_schema, from_spark_types, make_nullable, spark_schema, to_spark_types

SETTINGS = {
    "spark.sql.execution.arrow.pyspark.validateSchema.enabled": "true",
    "spark.sql.session.timeZone": "Asia/Kathmandu",
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.timeType.enabled": "true",
}


_shared = ExitStack()
_session: SparkSession | None = None


def shared() -> SparkSession:
    """Return the session of this process, which has two threads. Start a session if there is none."""
    global _session
    if _session is None:
        _session = _shared.enter_context(local_session("tests", cores=2, memory="1g"))
        _session.sparkContext.setLogLevel("OFF")
        for name, value in SETTINGS.items():
            _session.conf.set(name, value)
    return _session


def stop_shared() -> None:
    """Stop the session of this process, if there is one."""
    global _session
    _session = None
    _shared.close()


@contextmanager
def kept(spark: SparkSession) -> Iterator[SparkSession]:
    """Yield the session.

    After the test, restore the settings of the session, the environment of its workers, and the cache.
    """
    before, environment = spark.conf.getAll, dict(spark.sparkContext.environment)
    try:
        yield spark
    finally:
        spark.catalog.clearCache()
        spark.sparkContext.environment.clear()
        spark.sparkContext.environment.update(environment)
        after = spark.conf.getAll
        for name in after.keys() - before.keys():
            spark.conf.unset(name)
        for name, value in before.items():
            if after.get(name) != value:
                spark.conf.set(name, value)


@contextmanager
def setting(spark: SparkSession, name: str, value: str) -> Iterator[None]:
    """Change a setting of the session for a block."""
    before = spark.conf.get(name)
    spark.conf.set(name, value)
    try:
        yield
    finally:
        spark.conf.set(name, str(before))


def frame_of(spark: SparkSession, *parts: pa.Table) -> DataFrame:
    """Make a DataFrame with Spark's types.

    The DataFrame has one partition for each table, in the order of the tables.
    """
    frames = []
    for part in parts:
        schema = build_transfer_schema(part.schema, "a test")
        batches = [to_spark_types(batch, "a test") for batch in part.combine_chunks().to_batches()]
        table = pa.Table.from_batches(batches or [pa.RecordBatch.from_pylist([], schema)])
        frames.append(spark.createDataFrame(table, spark_schema(schema, "a test")).coalesce(1))
    whole = frames[0]
    for frame in frames[1:]:
        whole = whole.union(frame)
    return whole


def locally(flow: dd.Flow, inputs: Mapping[str, pa.Table]) -> dict[str, pa.Table]:
    """Return the output of the local engine.

    The engine either makes one step at time 0, or gets all events in one push and then closes the input.
    """
    with flow.open() as engine:
        if not flow.holds_back:
            return dict(engine.step(inputs, time=0))
        pushed, closed = engine.push(inputs), engine.advance_to(dd.CLOSED)
        return {name: pa.concat_tables([pushed[name], closed[name]]) for name in closed}


def counted(table: pa.Table) -> Counter[tuple[Any, ...]]:
    """Count how often each row occurs, as plain Python values."""
    return Counter(plain(table))


def assert_same(frames: Mapping[str, DataFrame], expected: Mapping[str, pa.Table]) -> None:
    """Assert that the DataFrames have exactly the rows of the tables, in columns with the same names."""
    assert list(frames) == list(expected)
    for name, table in expected.items():
        found = frames[name].toArrow()
        assert found.column_names == table.column_names, name
        assert counted(from_spark_types(found, make_nullable(table.schema), name)) == counted(table), name
