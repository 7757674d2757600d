"""Test inputs of differences on Spark beside an engine: lazily, into a state in several runs, and in hold-back mode."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from spark_session import frame_of

import ddflow as dd
import spark_bridge

pytestmark = pytest.mark.together("spark")

SCHEMA = pa.schema({"city": pa.string(), "_change_type": pa.string(), "_commit_version": pa.int64()})
KINDS = ["insert", "update_postimage", "update_preimage", "delete", "insert"]


def flow_of(**how: Any) -> dd.Flow:
    flow = dd.Flow()
    log = flow.updates("log", SCHEMA, dd.delta_cdf, keep=True, **how)
    flow.output("rows", log)
    flow.output("by_city", log.count("city"))
    flow.output("without", log.except_(log.filter("city < 'b'"), all=True))
    return flow


def rows(begin: int, end: int) -> pa.Table:
    made = [(["a", "b", "c", None][i % 4], KINDS[i % 5], i // 10) for i in range(begin, end)]
    return pa.Table.from_pylist([dict(zip(SCHEMA.names, row, strict=True)) for row in made], SCHEMA)


def counted(table: pa.Table) -> Counter[Any]:
    return Counter(tuple(row) for row in zip(*(c.to_pylist() for c in table.columns), strict=True))


def test_lazily_as_an_engine(spark: SparkSession) -> None:
    frames = spark_bridge.run(flow_of(), {"log": frame_of(spark, rows(0, 100), rows(100, 200))})
    with flow_of().open() as engine:
        step = engine.step({"log": rows(0, 200)}, time=0)
        for name, frame in frames.items():
            assert counted(frame.toArrow()) == counted(step[name]), name


@pytest.mark.parametrize("how", [{}, {"time": "_commit_version", "lateness": 2, "late": "advance"}])
def test_into_a_state_as_an_engine(spark: SparkSession, tmp_path: Path, how: dict[str, Any]) -> None:
    state = str(tmp_path / "state")
    with flow_of(**how).open() as engine:
        for begin in (0, 100):
            given = rows(begin, begin + 100)
            frames, close = {"log": frame_of(spark, given)}, bool(how and begin)
            spark_bridge.run(flow_of(**how), frames, state=state, partitions=3, close=close)
            engine.push({"log": given}) if how else engine.step({"log": given})
        if how:
            engine.advance_to(dd.CLOSED)
        with dd.Snapshot.open(state, flow=flow_of(**how)) as snapshot:
            for name in ("rows", "by_city", "without", "log"):
                assert counted(snapshot.read(name)) == counted(engine.read(name)), name
    assert dd.fsck(state).ok
