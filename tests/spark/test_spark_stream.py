"""Test streams on Spark: a batch is committed once as an epoch, also if killed, repeated, lost or mixed up."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from chance import mid_on_spark
from messages import raises
from pyspark.sql import DataFrame, SparkSession, functions as F
from spark_session import counted

import ddflow as dd
import spark_bridge
from ddflow.connectors.parquet.folder import build_folder_name
from ddflow.errors import EpochSkipped, FeedChanged, NullKey, ReplayMismatch, SchemaMismatch, SpecError, WrongMode
from spark_bridge.session import SETTINGS, configure, get_spark_context

pytestmark = pytest.mark.together("spark")

SCHEMA = pa.schema({"id": pa.int64(), "city": pa.string(), "at": pa.int64()})
SQL = "id long, city string, at long"
NOW: dict[str, Any] = {"availableNow": True}


class WatchedStream:
    """Files that a stream reads one by one, and the local engine beside it.  ``outs``: what epochs gave to a function,
    by their numbers, in the order of the calls."""

    def __init__(self, spark: SparkSession, folder: Path, flow: dd.Flow) -> None:
        self.spark, self.folder, self.flow = spark, folder, flow
        self.state, self.outs = str(folder / "state"), list[tuple[int, dict[str, pa.Table]]]()
        self.given: list[pa.Table] = []
        (folder / "in").mkdir()

    def give(self, *tables: pa.Table) -> None:
        for table in tables:
            self.write(len(self.given), table)
            self.given.append(table)

    def write(self, number: int, table: pa.Table) -> None:
        path = self.folder / "in" / f"{number:03}.parquet"
        pq.write_table(table, path)
        os.utime(path, (1_700_000_000 + number,) * 2)  # Spark takes files by their times

    def frame(self) -> DataFrame:
        reader = self.spark.readStream.schema(SQL).option("maxFilesPerTrigger", 1).option("latestFirst", "false")
        return reader.parquet(str(self.folder / "in"))

    def take(self, out: Mapping[str, DataFrame], epoch: int) -> None:
        self.outs.append((epoch, {name: out[name].toArrow() for name in self.flow.outputs}))

    def stream(self, **more: Any) -> Any:
        options = {"state": self.state, "partitions": 2, "trigger": NOW, "outputs": self.take} | more
        return spark_bridge.stream(self.flow, self.frame(), **options)

    def run(self, **more: Any) -> Any:
        query = self.stream(**more).start()
        query.awaitTermination()
        return query

    def commits(self) -> list[Path]:
        return sorted(Path(f"{self.state}.checkpoint/commits").glob("[0-9]*"), key=lambda path: int(path.name))

    def forget_commit(self) -> None:
        """The driver was killed after ddflow's commit and before Spark's."""
        last = self.commits()[-1]
        last.unlink()
        last.with_name(f".{last.name}.crc").unlink(missing_ok=True)

    def check(self) -> None:
        """The outputs of all epochs, each once, are those of the local engine; so is the state."""
        with self.flow.open() as engine:
            for epoch, rows in enumerate(self.given, 1):
                step = engine.step({"orders": rows}, time=epoch)
                found = dict(self.outs)[epoch]
                for name in self.flow.outputs:
                    assert counted(found[name]) == counted(step[name]), (epoch, name)
            for name in self.flow.outputs:
                assert counted(dd.read(self.state, name)) == counted(engine.read(name))


@pytest.fixture
def fed(spark: SparkSession, tmp_path: Path) -> Iterator[WatchedStream]:
    flow = dd.Flow()
    orders = flow.upserts("orders", SCHEMA, dd.Upsert("id", order_by="at"))
    flow.output("rows", orders)
    flow.output("by_city", orders.count("city"))
    yield WatchedStream(spark, tmp_path, flow)
    for query in spark.streams.active:
        query.stop()


def rows_of(*rows: tuple[Any, ...]) -> pa.Table:
    return pa.table([list(column) for column in zip(*rows, strict=True)], schema=SCHEMA)


FIRST = rows_of((1, "Bern", 1), (2, "Basel", 1), (3, "Bern", 1), (1, "Chur", 2))
SECOND = rows_of((2, "Bern", 2), (4, "Chur", 1), (3, "Bern", 1))
THIRD = rows_of((1, "Bern", 0), (4, None, 5), (5, "Basel", 1))


@mid_on_spark
def test_a_batch_is_an_epoch_and_a_stopped_query_goes_on(fed: WatchedStream) -> None:
    fed.give(FIRST, SECOND)
    query = fed.run()
    told = query.ddflow.stats()
    assert [(each.epoch, each.rows, each.replayed) for each in told] == [
        (1, {"orders": 4}, False),
        (2, {"orders": 3}, False),
    ]
    assert query.lastProgress["numInputRows"] == 3
    fed.give(THIRD)
    assert fed.run().ddflow.stats()[0].epoch == 3
    assert fed.run().ddflow.stats() == []  # nothing is there to be read
    fed.check()


@mid_on_spark
def test_a_batch_that_is_given_again_is_told_again(fed: WatchedStream) -> None:
    fed.give(FIRST, SECOND)
    fed.run()
    fed.forget_commit()
    fed.give(THIRD)
    told = fed.run().ddflow.stats()
    assert [(each.epoch, each.replayed, dict(each.rows)) for each in told] == [
        (2, True, {"orders": 3}),
        (3, False, {"orders": 3}),
    ]
    assert [epoch for epoch, _ in fed.outs] == [1, 2, 2, 3]
    assert counted(fed.outs[1][1]["rows"]) == counted(fed.outs[2][1]["rows"])
    fed.check()


@mid_on_spark
def test_a_batch_that_is_given_again_with_other_rows_stops_the_query(fed: WatchedStream) -> None:
    fed.give(FIRST, SECOND)
    fed.run()
    fed.forget_commit()
    fed.write(1, THIRD)
    with raises(ReplayMismatch):
        fed.run()
    fed.write(1, SECOND)
    assert fed.run().ddflow.stats()[0].replayed
    fed.check()


@mid_on_spark
def test_a_checkpoint_and_a_state_belong_together(fed: WatchedStream) -> None:
    fed.give(FIRST, SECOND)
    fed.run()
    shutil.rmtree(f"{fed.state}.checkpoint")
    with raises(FeedChanged):
        fed.run()
    another = str(fed.folder / "another")
    with raises(FeedChanged):  # nor does a second one
        fed.run(checkpoint=another)
    with raises(SpecError):
        fed.run(partitions=7)
    told = fed.run(adopt=True).ddflow.stats()
    assert [each.epoch for each in told] == [3, 4]
    assert all(not table.num_rows for _, tables in fed.outs[2:] for table in tables.values())  # it had them all
    fed.give(THIRD)
    assert fed.run().ddflow.stats()[0].epoch == 5


@mid_on_spark
def test_a_checkpoint_that_is_older_or_newer_than_the_state_is_told(fed: WatchedStream) -> None:
    fed.give(FIRST)
    fed.run()
    shutil.copytree(fed.state, fed.folder / "old state")
    fed.give(SECOND, THIRD)
    fed.run()
    shutil.rmtree(fed.state)
    shutil.copytree(fed.folder / "old state", fed.state)
    fed.give(FIRST)
    with raises(EpochSkipped):
        fed.run()


@mid_on_spark
def test_what_a_step_refuses_ends_the_query_with_the_same_error(fed: WatchedStream) -> None:
    fed.give(FIRST, rows_of((None, "Bern", 1)))
    query = fed.stream(trigger=None).start()
    with raises(NullKey):
        query.processAllAvailable()
    with pytest.raises(NullKey):
        query.awaitTermination()
    fed.write(1, SECOND)
    assert [each.epoch for each in fed.run().ddflow.stats()] == [2]


def test_a_query_that_runs_on_is_stopped_by_hand(fed: WatchedStream) -> None:
    fed.give(FIRST)
    query = fed.stream(trigger={"processingTime": "100 milliseconds"}, name="orders").start()
    query.processAllAvailable()
    fed.give(SECOND)
    query.processAllAvailable()
    assert query.isActive and query.name == query.lastProgress["name"] == "orders" and not query.awaitTermination(1)
    query.stop()
    assert query.awaitTermination() in (None, True) and not query.isActive
    fed.check()


def test_outputs_appear_in_a_folder(fed: WatchedStream) -> None:
    fed.give(FIRST, SECOND)
    fed.run(outputs=str(fed.folder / "outputs"))
    found = fed.frame().sparkSession.read.parquet(str(fed.folder / "outputs" / build_folder_name("rows"))).toArrow()
    with fed.flow.open() as engine:
        steps = [engine.step({"orders": rows}, time=epoch)["rows"] for epoch, rows in enumerate(fed.given, 1)]
    assert counted(found) == counted(pa.concat_tables(steps))


@mid_on_spark
def test_a_stream_with_a_watermark_and_state_of_sparks_own_before_it(fed: WatchedStream) -> None:
    fed.give(FIRST, SECOND)
    marked = fed.frame().withColumn("moment", F.timestamp_seconds("at")).withWatermark("moment", "1 second")
    once = marked.dropDuplicatesWithinWatermark(["id", "city", "at"]).drop("moment")
    for frame, rows in ((marked.drop("moment"), 7), (once, 6)):
        state = str(fed.folder / f"of {rows}")
        query = spark_bridge.stream(fed.flow, {"orders": frame}, state=state, partitions=2, trigger=NOW).start()
        query.awaitTermination()
        told = query.ddflow.stats()
        # Spark may end with a batch without rows, for the watermark's sake.
        assert sum(each.rows.get("orders", 0) for each in told) == rows and len(told) in (2, 3)
        with fed.flow.open() as engine:
            for time, table in enumerate(fed.given):
                engine.step({"orders": table}, time)
            for name in fed.flow.outputs:
                assert counted(dd.read(state, name)) == counted(engine.read(name))


@mid_on_spark
def test_several_inputs_and_times_that_close_at_the_end(spark: SparkSession, tmp_path: Path) -> None:
    flow = dd.Flow()
    spec = dd.Upsert("id", time="at", lateness=3)
    one, two = (flow.upserts(name, SCHEMA, spec) for name in ("one", "two"))
    flow.output("by_city", one.project("city").concat(two.project("city")).count())
    frames, tables = {}, {"one": [FIRST, SECOND], "two": [SECOND, rows_of((9, "Chur", 9))]}
    for name, given in tables.items():
        (tmp_path / name).mkdir()
        for number, table in enumerate(given):
            pq.write_table(table, tmp_path / name / f"{number}.parquet")
        frames[name] = spark.readStream.schema(SQL).option("maxFilesPerTrigger", 1).parquet(str(tmp_path / name))
    outs = []
    query = spark_bridge.stream(
        flow,
        frames,
        state=str(tmp_path / "state"),
        partitions=3,
        trigger=NOW,
        close=True,
        outputs=lambda out, epoch: outs.append(out["by_city"].toArrow()),
    ).start()
    query.awaitTermination()
    told = query.ddflow.stats()
    assert told[-1].frontier == dd.CLOSED and sum(each.rows.get("one", 0) for each in told) == 7
    assert sum(sum(each.counts.values()) for each in told) == 11
    with flow.open() as engine:
        steps = [engine.push({name: pa.concat_tables(given) for name, given in tables.items()})]
        steps.append(engine.advance_to(dd.CLOSED))
        assert counted(pa.concat_tables(outs)) == counted(pa.concat_tables([step["by_city"] for step in steps]))
        assert counted(dd.read(str(tmp_path / "state"), "by_city")) == counted(engine.read("by_city"))
    query.awaitTermination()  # once more closes nothing twice
    assert query.ddflow.stats() == told


def test_what_cannot_be_streamed_is_said_before_it_starts(fed: WatchedStream) -> None:
    stream, frames = spark_bridge.stream, {"orders": fed.frame()}
    batch = fed.spark.createDataFrame([], SQL)
    with raises(WrongMode):
        stream(fed.flow, {"orders": batch}, state=fed.state)
    with raises(SchemaMismatch):
        stream(fed.flow, {"orderz": fed.frame()}, state=fed.state)
    with raises(SchemaMismatch):
        stream(fed.flow, {"orders": fed.frame().drop("id")}, state=fed.state)
    with raises(SpecError):
        stream(fed.flow, {}, state=fed.state)
    with raises(SpecError):
        stream(fed.flow, frames, state="s3://bucket/state")
    with raises(WrongMode):
        stream(fed.flow, frames, state=fed.state, close=True, trigger=NOW)
    triggers: list[tuple[Any, str]] = [
        ("10 seconds", "it is a str; pass one: {'availableNow': True}, or"),
        ({"availablenow": True}, "did you mean 'availableNow'"),
        ({"availableNow": "true"}, "availableNow is 'true'; pass True"),
        ({"processingTime": 10}, "processingTime is 10; pass a duration as text"),
        ({"processingTime": "ten seconds"}, "processingTime is 'ten seconds'; pass a duration as text"),
        ({"continuous": "1 second"}, "it names 'continuous'; the names are"),
        ({"availableNow": True, "once": True}, "it has 2 names; pass one"),
    ]
    for given, says in triggers:
        with pytest.raises(SpecError, match=re.escape(says)):
            stream(fed.flow, frames, state=fed.state, trigger=given)
    held = dd.Flow()
    held.output("o", held.upserts("orders", SCHEMA, dd.Upsert("id", time="at")))
    with raises(SpecError):
        stream(held, frames, state=fed.state, close=True, trigger={"processingTime": "1 second"})
    assert not Path(fed.state).exists()


def test_the_session_is_left_as_it_was(fed: WatchedStream) -> None:
    names = [f"spark.sql.execution.arrow.max{what}PerBatch" for what in ("Records", "Bytes")]
    context = get_spark_context(fed.spark)
    context.setJobDescription("mine")
    before = [fed.spark.conf.get(name) for name in names]
    seen = []
    fed.give(FIRST)
    fed.run(outputs=lambda out, epoch: seen.append([out["rows"].sparkSession.conf.get(name) for name in names]))
    run = spark_bridge.run(fed.flow, {"orders": fed.spark.createDataFrame([], SQL)}, 1, state=f"{fed.state} of a run")
    assert (run.epoch, run.updates("rows")) == (1, 0)
    assert [fed.spark.conf.get(name) for name in names] == before
    assert context.getLocalProperty("spark.job.description") == "mine"
    assert len(seen) == 1


class Builder:
    """What ``SparkSession.builder`` does with settings."""

    def __init__(self, **options: str) -> None:
        self._options = options

    def config(self, name: str, value: str) -> Builder:
        self._options[name] = value
        return self


def test_settings_are_offered_and_explained(capsys: pytest.CaptureFixture[str]) -> None:
    builder = Builder()
    builder.config("spark.sql.execution.arrow.maxRecordsPerBatch", "5")
    assert configure(builder, cache="kernels", explain=True) is builder
    assert builder._options["spark.sql.execution.arrow.maxRecordsPerBatch"] == "5"
    assert builder._options["spark.python.daemon.module"] == "spark_bridge.daemon"
    assert builder._options["spark.executorEnv.DDFLOW_CACHE_DIR"] == "kernels"
    assert len(capsys.readouterr().out.splitlines()) == len(SETTINGS) + 1


@mid_on_spark
def test_the_order_of_frames_does_not_matter_to_a_checkpoint_and_their_names_do(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Spark's checkpoint tells sources by their places: rows of one were read again, those of another passed over."""
    names, flow = ("a", "b"), dd.Flow()
    for name in "abc":
        flow.output(f"n_{name}", flow.updates(name, {"id": int}).count([], name="n"))

    def land(name: str, number: int, count: int) -> None:
        (tmp_path / name).mkdir(exist_ok=True)
        pq.write_table(pa.table({"id": range(count)}), tmp_path / name / f"{number}.parquet")

    def run(order: tuple[str, ...]) -> list[list[int]]:
        reader = spark.readStream.schema("id long")
        frames = {name: reader.parquet(f"{tmp_path}/[{name}]") for name in order}  # two patterns of one folder
        options: dict[str, Any] = {"state": str(tmp_path / "state"), "partitions": 1, "trigger": NOW}
        spark_bridge.stream(flow, frames, **options).start().awaitTermination()
        return [dd.read(options["state"], f"n_{name}").column("n").to_pylist() for name in names]

    land("a", 0, 3)
    land("a", 1, 3)
    land("b", 0, 2)
    assert run(names) == [[6], [2]]
    land("a", 2, 3)
    land("b", 1, 2)
    assert run(names[::-1]) == [[9], [4]]
    land("c", 3, 1)
    with raises(FeedChanged):
        run(("a", "c"))
