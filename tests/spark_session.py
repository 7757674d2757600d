"""What tests on Spark share: a local session for a module (the fixture ``spark``), frames of tables, the comparison.

Arrow schemas are validated here, as they are not by default, so that a wrong type out of ``mapInArrow`` fails a test;
and the session's zone is none that anybody would assume.  A session belongs to one module, since a process has one at a
time and the demo starts its own.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import pyarrow as pa
from doors import plain
from pyspark.sql import DataFrame, SparkSession

import ddflow as dd
from spark_bridge.columns import carried, carried_schema, loose, restored
from spark_bridge.local import local_session
from spark_bridge.schemas import spark_schema

SETTINGS = {
    "spark.sql.execution.arrow.pyspark.validateSchema.enabled": "true",
    "spark.sql.session.timeZone": "Asia/Kathmandu",
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.timeType.enabled": "true",
}


@contextmanager
def session() -> Iterator[SparkSession]:
    """A session on two threads, as the fixture gives it."""
    with local_session("tests", cores=2, memory="1g") as spark:
        spark.sparkContext.setLogLevel("OFF")
        for name, value in SETTINGS.items():
            spark.conf.set(name, value)
        yield spark


@contextmanager
def setting(spark: SparkSession, name: str, value: str) -> Iterator[None]:
    """A setting of the session for the length of a block."""
    before = spark.conf.get(name)
    spark.conf.set(name, value)
    try:
        yield
    finally:
        spark.conf.set(name, str(before))


def frame_of(spark: SparkSession, *parts: pa.Table) -> DataFrame:
    """A frame with one partition for each table, in their order; the rows keep theirs.  Types become Spark's."""
    frames = []
    for part in parts:
        schema = carried_schema(part.schema, "a test")
        batches = [carried(batch, "a test") for batch in part.combine_chunks().to_batches()]
        table = pa.Table.from_batches(batches or [pa.RecordBatch.from_pylist([], schema)])
        frames.append(spark.createDataFrame(table, spark_schema(schema, "a test")).coalesce(1))
    whole = frames[0]
    for frame in frames[1:]:
        whole = whole.union(frame)
    return whole


def locally(flow: dd.Flow, inputs: Mapping[str, pa.Table]) -> dict[str, pa.Table]:
    """What the local engine puts out: one step at 0, or all pushed and closed."""
    with flow.open() as engine:
        if not flow.holds_back:
            return dict(engine.step(inputs, time=0))
        pushed, closed = engine.push(inputs), engine.advance_to(dd.CLOSED)
        return {name: pa.concat_tables([pushed[name], closed[name]]) for name in closed}


def counted(table: pa.Table) -> Counter[tuple[Any, ...]]:
    """How often each row is there, in plain values."""
    return Counter(plain(table))


def assert_same(frames: Mapping[str, DataFrame], expected: Mapping[str, pa.Table]) -> None:
    """The frames hold the rows of the tables, no more, no fewer, in the columns of the same names."""
    assert list(frames) == list(expected)
    for name, table in expected.items():
        found = frames[name].toArrow()
        assert found.column_names == table.column_names, name
        assert counted(restored(found, loose(table.schema), name)) == counted(table), name
