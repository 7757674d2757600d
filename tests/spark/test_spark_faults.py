"""Test mismatched states and queries on Spark, settings without effect, and the results of errors."""

from __future__ import annotations

import shutil
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from chance import long_on_spark, mid_on_spark
from messages import raises
from pyspark.sql import DataFrame, SparkSession, functions as F
from spark_faults.driving import flow_of
from spark_session import frame_of, setting
from test_spark import city_flow, halves, orders_of
from test_spark_killed import rows_of
from test_spark_state import same_epoch, same_state
from test_spark_stream import WatchedStream

import ddflow as dd
import spark_bridge
from ddflow.errors import DdflowError, EpochSkipped, FeedChanged, Fenced, PlanChanged, StorageFull
from ddflow.storage.folder.local import LocalStore
from spark_bridge.job import Job
from spark_bridge.part_cache import PARTS

pytestmark = pytest.mark.together("spark")


@pytest.fixture
def fed(spark: SparkSession, tmp_path: Path) -> Iterator[WatchedStream]:
    yield WatchedStream(spark, tmp_path, flow_of())
    for query in spark.streams.active:
        query.stop()
    PARTS.clear()


@long_on_spark
@pytest.mark.drawn(2, of="faults on Spark")
def test_a_checkpoint_of_another_state_is_refused(fed: WatchedStream) -> None:
    fed.give(rows_of(0))
    fed.run()
    checkpoint = f"{fed.state}.checkpoint"
    fed.give(rows_of(1))
    with raises(FeedChanged):
        fed.run(state=str(fed.folder / "another"), checkpoint=checkpoint)
    shutil.rmtree(fed.state)  # the state is gone, and the checkpoint is not
    with raises(FeedChanged):
        fed.run()
    shutil.rmtree(checkpoint)
    assert [each.epoch for each in fed.run().ddflow.stats()] == [1, 2]
    other = dd.Flow()
    other.output("rows", other.upserts("orders", {"id": pa.int64(), "city": pa.string()}, dd.Upsert("id")))
    with other.open(fed.state + "2") as engine:
        engine.step({"orders": pa.table({"id": [1], "city": ["Bern"]})}, time=1)
    with pytest.raises(PlanChanged):
        fed.run(state=fed.state + "2", checkpoint=str(fed.folder / "new"))


@pytest.mark.drawn(2, of="faults on Spark")
def test_batches_that_go_back_are_told_again_as_far_as_they_are_kept(fed: WatchedStream) -> None:
    checkpoint = Path(f"{fed.state}.checkpoint")
    fed.give(rows_of(0))
    fed.run()
    shutil.copytree(checkpoint, fed.folder / "old")
    fed.give(rows_of(1), rows_of(2))
    fed.run()
    shutil.rmtree(checkpoint)
    shutil.copytree(fed.folder / "old", checkpoint)
    fed.give(rows_of(3))
    told = fed.run().ddflow.stats()
    assert [(each.epoch, each.replayed) for each in told] == [(2, True), (3, True), (4, False)]
    fed.check()
    job = Job(fed.flow, {}, fed.stream().feeder.options._replace(keep=3), fed.spark)
    for number in range(1, 4):  # epochs of no rows, until the batches are not kept any more
        assert job.commit_epoch(fed.spark, None).epoch == 4 + number
    job.close()
    shutil.rmtree(checkpoint)
    shutil.copytree(fed.folder / "old", checkpoint)
    with raises(EpochSkipped):
        fed.run()


@pytest.mark.drawn(2, of="faults on Spark")
def test_of_two_queries_on_one_state_one_is_told(fed: WatchedStream, monkeypatch: pytest.MonkeyPatch) -> None:
    both, receipts = threading.Barrier(2), Job._collect_receipts

    def together(self: Job, *given: Any) -> Any:
        told = receipts(self, *given)
        if self.coordinator.epoch == 0:
            both.wait(60)  # each has begun the first epoch, and neither has committed it
        return told

    monkeypatch.setattr(Job, "_collect_receipts", together)
    fed.give(rows_of(0), rows_of(1))
    one, two = (fed.stream(checkpoint=str(fed.folder / name)).start() for name in ("one", "two"))
    ends: list[DdflowError | None] = []
    for query in (one, two):
        try:
            query.awaitTermination()
            ends.append(None)
        except DdflowError as error:
            ends.append(error)
    assert sorted(type(each).__name__ for each in ends) == ["Fenced", "NoneType"]
    fed.check()
    loser = fed.folder / ("one" if isinstance(ends[0], Fenced) else "two")
    with raises(FeedChanged):
        fed.run(checkpoint=str(loser.rename(fed.folder / "loser")))


@mid_on_spark
@pytest.mark.drawn(2, of="faults on Spark")
def test_a_disk_that_is_full_for_a_while_costs_nothing(fed: WatchedStream, monkeypatch: pytest.MonkeyPatch) -> None:
    fed.give(rows_of(0), rows_of(1))
    publish, left = LocalStore.publish, [2]

    def hindered(self: LocalStore, number: int, data: bytes) -> bool:
        left[0] -= number == 2
        if number == 2 and left[0] >= 0:
            raise StorageFull("publish", "the disk is full", "make room")
        return publish(self, number, data)

    monkeypatch.setattr(LocalStore, "publish", hindered)
    stream = fed.stream()
    with pytest.raises(StorageFull):
        stream.start().awaitTermination()
    query = stream.start()  # as it is, and nobody waits for its end
    while query.isActive:
        time.sleep(0.05)
    stream.start().awaitTermination()
    assert [epoch for epoch, _ in fed.outs] == [1, 2]
    fed.check()


@mid_on_spark
@pytest.mark.drawn(2, of="faults on Spark")
def test_a_query_that_is_started_twice_goes_on_once(fed: WatchedStream) -> None:
    """Spark stops the first one then, by default."""
    stream = fed.stream(trigger={"processingTime": "50 milliseconds"})
    first = stream.start()
    fed.give(rows_of(0))
    first.processAllAvailable()
    second = stream.start()
    first.awaitTermination()
    fed.give(rows_of(1))
    second.processAllAvailable()
    first.stop()
    fed.give(rows_of(2))
    second.processAllAvailable()
    assert not first.isActive and [len(each.ddflow.stats()) for each in (first, second)] == [1, 2]
    second.stop()
    fed.check()


def emptied(frame: DataFrame) -> list[DataFrame]:
    """Frames without rows, as Spark knows before, while or after it runs."""
    return [
        frame.limit(0),
        frame.where("id > 1000000"),
        frame.where("1 = 0"),
        frame.join(frame.where("id < 0").select("id"), "id").select(frame.columns),
    ]


ADAPTIVE = {
    "spark.sql.adaptive.enabled": "true",
    "spark.sql.adaptive.coalescePartitions.parallelismFirst": "false",
    "spark.sql.adaptive.advisoryPartitionSizeInBytes": "1b",
    "spark.sql.adaptive.skewJoin.enabled": "true",
    "spark.sql.adaptive.forceOptimizeSkewedJoin": "true",
    "spark.sql.adaptive.localShuffleReader.enabled": "true",
}


@pytest.mark.drawn(2, of="faults on Spark")
@pytest.mark.parametrize(
    ("partitions", "adaptive"), [(3, True), *(pytest.param(number, False, marks=pytest.mark.soak) for number in (1, 8))]
)
def test_epochs_of_few_rows_or_none_are_steps(
    spark: SparkSession, tmp_path: Path, partitions: int, adaptive: bool
) -> None:
    """With adaptive execution that would join and split what it can, and without."""
    flow, state, none = city_flow(), str(tmp_path / "state"), orders_of(0)
    full = frame_of(spark, *halves(orders_of(90)))
    at = "row_number() over (partition by id order by at, op, city, amount) + 0L as at"
    window = full.selectExpr("id", "city", at, "op", "amount").where("at < 3")
    frames = [
        *emptied(full)[partitions % 4 :][:2],
        full,
        emptied(full)[partitions % 3],
        full.where("id = 3"),
        window,
        full.repartition(7).orderBy("at", F.rand(1)),
    ]
    with ExitStack() as stack, flow.open() as engine:
        for name, value in (ADAPTIVE if adaptive else {"spark.sql.adaptive.enabled": "false"}).items():
            stack.enter_context(setting(spark, name, value))
        for epoch, frame in enumerate(frames, 1):
            ran = spark_bridge.run(flow, {"orders": frame}, partitions, state=state)
            rows = frame.toArrow().cast(none.schema)
            same_epoch(ran, engine.step({"orders": rows}, time=epoch), *(["sizes"] if rows.num_rows else []))
        same_state(state, flow, engine)
