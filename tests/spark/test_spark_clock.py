"""Test flows with a clock on Spark: the times of epochs and batches, replays, and batches without rows."""

from __future__ import annotations

import datetime as dt
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from chance import mid_on_spark
from messages import raises
from pyspark.sql import SparkSession
from spark_session import counted

import ddflow as dd
import spark_bridge
from ddflow.errors import ReplayMismatch, SpecError, TimeWentBack
from ddflow.partitions import commit
from ddflow.storage.manifest import load_newest_manifest
from ddflow.storage.opening import open_store

pytestmark = pytest.mark.together("spark")

SCHEMA = pa.schema({"id": pa.int64(), "at": pa.timestamp("us", "UTC"), "n": pa.int64()})
NOON = dt.datetime(2026, 11, 29, 12, tzinfo=dt.UTC)


def minute(number: int) -> dt.datetime:
    return NOON + dt.timedelta(minutes=number)


def visits(*rows: tuple[int, int, int]) -> pa.Table:
    """Rows (id, minute of ``at``, n)."""
    return pa.Table.from_pylist([{"id": i, "at": minute(at), "n": n} for i, at, n in rows], SCHEMA)


def flow_of() -> dd.Flow:
    flow = dd.Flow()
    rows = flow.upserts("visits", SCHEMA, dd.Upsert(key="id"))
    recent = flow.output("recent", rows.filter("at <= now() and at > now() - interval 10 minutes"))
    flow.output("counted", recent.count(by="n"))
    flow.output("moved", rows.project(["n", "at"]).filter("at <= now()"))
    return flow


@pytest.fixture
def engine() -> Iterator[dd.Engine]:
    with flow_of().open() as opened:
        yield opened


@mid_on_spark
def test_epochs_have_the_time_that_is_passed(spark: SparkSession, engine: dd.Engine, tmp_path: Path) -> None:
    flow, state = flow_of(), str(tmp_path / "state")
    given = [visits((1, 0, 5), (2, 3, 5), (3, 8, 6)), visits((1, 2, 6)), None, None]
    with raises(SpecError):
        spark_bridge.run(flow, spark.createDataFrame(given[0]), state=state, partitions=3)
    for number, (rows, at) in enumerate(zip(given, (1, 4, 9, 30), strict=True), 1):
        frames: Any = {} if rows is None else {"visits": spark.createDataFrame(rows)}
        out = spark_bridge.run(flow, frames, 3 if number == 1 else None, state=state, time=minute(at))
        expected = engine.step({} if rows is None else {"visits": rows}, time=minute(at))
        assert (out.epoch, out.time) == (number, minute(at))
        for name in flow.outputs:
            assert counted(out[name].toArrow()) == counted(expected[name]), (number, name)
            assert counted(dd.read(state, name)) == counted(engine.read(name))
        if number == 2:
            with raises(TimeWentBack):
                spark_bridge.run(flow, {}, state=state, time=minute(4))
            with raises(ReplayMismatch):
                spark_bridge.run(flow, frames, state=state, epoch=2, time=minute(5))
            for again in (None, minute(4)):
                done = spark_bridge.run(flow, frames, state=state, epoch=2, time=again)
                assert done.replayed and done.time == minute(4)
                assert counted(done["recent"].toArrow()) == counted(expected["recent"])
    spark.dataSource.register(spark_bridge.DdflowSource)
    read = spark.read.format("ddflow").option("output", "moved").load(state)
    assert {row["_time"].astimezone(dt.UTC) for row in read.collect()} == {minute(30)}
    assert read.count() == engine.read("moved").num_rows == 3


def test_a_run_without_a_state_is_one_step_at_its_time(spark: SparkSession, engine: dd.Engine) -> None:
    rows = visits((1, 0, 5), (2, 3, 5), (3, 8, 6))
    out = spark_bridge.run(flow_of(), spark.createDataFrame(rows), 2, time=minute(4))
    expected = engine.step({"visits": rows}, time=minute(4))
    for name in ("recent", "counted", "moved"):
        assert counted(out[name].toArrow()) == counted(expected[name])
    query = "select n, count(*) c from visits where at <= now() group by n"
    answer = spark_bridge.sql(query, {"visits": spark.createDataFrame(rows)}, 2, time="2026-11-29 12:04+00:00")
    assert [(row["n"], row["c"]) for row in answer.collect()] == [(5, 2)]
    with raises(SpecError):
        spark_bridge.run(flow_of(), spark.createDataFrame(rows))
    with raises(SpecError):
        flow = dd.Flow()
        flow.output("visits", flow.upserts("visits", SCHEMA, dd.Upsert(key="id")))
        spark_bridge.run(flow, spark.createDataFrame(rows), time=minute(4))
    with raises(SpecError):
        flow = dd.Flow(clock="timestamp")
        flow.output("visits", flow.upserts("visits", SCHEMA, dd.Upsert(key="id")))
        spark_bridge.stage(flow)


class Clock:
    """The clock of the driver. Each reading is a minute later."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.minutes = 0
        monkeypatch.setattr(commit, "read_clock", self.read)

    def read(self, kind: pa.DataType) -> int:
        self.minutes += 1
        return int(pa.scalar(minute(self.minutes)).cast(kind).value)


def stamps(state: str) -> list[int]:
    """The minutes of the epochs of a state."""
    store = open_store(state)
    try:
        manifest = load_newest_manifest(store)
    finally:
        store.close()
    assert manifest is not None
    first = int(pa.scalar(NOON).value)
    return [(call.time - first) // 60_000_000 for each in manifest.receipts for call in each.calls]


@mid_on_spark
def test_batches_have_the_time_of_their_start(
    spark: SparkSession, engine: dd.Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock, state, folder = Clock(monkeypatch), str(tmp_path / "state"), tmp_path / "in"
    folder.mkdir()
    given = [visits((1, 0, 5), (2, 3, 5)), visits((3, 8, 6), (1, 2, 6)), visits((4, 9, 6))]
    outs: dict[int, dict[str, pa.Table]] = {}

    def take(out: Any, epoch: int) -> None:
        outs[epoch] = {name: out[name].toArrow() for name in out}

    def feed() -> None:
        frame = spark.readStream.schema("id long, at timestamp, n long").parquet(str(folder))
        options: dict[str, Any] = {"state": state, "partitions": 2, "trigger": {"availableNow": True}, "outputs": take}
        spark_bridge.stream(flow_of(), {"visits": frame}, **options).start().awaitTermination()

    for number, rows in enumerate(given):
        pq.write_table(rows, folder / f"{number}.parquet")
        if number == 1:
            with monkeypatch.context() as patch, pytest.raises(Exception, match="the driver stops"):
                patch.setattr(commit.EpochDriver, "finish", stop)
                feed()
            assert stamps(state) == [2]
            clock.minutes = 6
        feed()
    found = stamps(state)
    assert found[0] == 2 and found[1] > 6 and found[2] > found[1], found
    commits = sorted(Path(f"{state}.checkpoint/commits").glob("[0-9]*"), key=lambda path: int(path.name))
    commits[-1].unlink()
    commits[-1].with_name(f".{commits[-1].name}.crc").unlink(missing_ok=True)
    last = outs.pop(3)
    feed()  # Spark repeats the batch, and the epoch keeps its time
    assert stamps(state) == found and counted(outs[3]["recent"]) == counted(last["recent"])
    for epoch, (at, rows) in enumerate(zip(found, given, strict=True), 1):
        expected = engine.step({"visits": rows}, time=minute(at))
        for name in expected:
            assert counted(outs[epoch][name]) == counted(expected[name]), (epoch, name)


def stop(*_: Any, **__: Any) -> Any:
    raise RuntimeError("the driver stops")


@mid_on_spark
def test_a_heartbeat_makes_batches_without_rows(spark: SparkSession, tmp_path: Path) -> None:
    flow, state, folder = flow_of(), str(tmp_path / "state"), tmp_path / "in"
    folder.mkdir()
    due = dt.datetime.now(dt.UTC) + dt.timedelta(seconds=1) - dt.timedelta(minutes=10)
    pq.write_table(pa.Table.from_pylist([{"id": 1, "at": due, "n": 5}], SCHEMA), folder / "0.parquet")
    frame = spark.readStream.schema("id long, at timestamp, n long").parquet(str(folder))
    with raises(SpecError):
        plain = dd.Flow()
        plain.output("visits", plain.upserts("visits", SCHEMA, dd.Upsert(key="id")))
        spark_bridge.stream(plain, frame, state=str(tmp_path / "plain"), heartbeat=True).start()
    query = spark_bridge.stream(flow, frame, state=state, partitions=2, heartbeat=True).start()
    try:
        until = time.monotonic() + 60
        while time.monotonic() < until and len(query.ddflow.recent) < 3:
            assert query.exception() is None
            time.sleep(0.2)
    finally:
        query.stop()
    assert dd.read(state, "recent").num_rows == 0 and dd.read(state, "moved").num_rows == 1
