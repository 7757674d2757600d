"""Test sinks on real Spark: each epoch once, for runs and streams, staged by tasks or written by the driver."""

from __future__ import annotations

import os
import sqlite3
from collections import Counter
from contextlib import closing
from pathlib import Path
from typing import Any

import deltalake
import polars as pl
import pyarrow as pa
import pytest
from chance import long_on_spark, mid_on_spark
from messages import raises
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from spark_session import frame_of

import ddflow as dd
import spark_bridge
from ddflow.engine.run.delivery import Delivery
from ddflow.errors import SinkAhead, SinkFailed, SpecError
from ddflow.partitions import driver_epochs
from ddflow.storage.manifest import load_newest_manifest
from ddflow.storage.opening import open_existing_store

pytestmark = pytest.mark.together("spark")

COLUMNS = {"id": pa.int64(), "city": pa.string(), "amount": pa.int64()}
DAYS = [
    [(n, ["Bern", "Chur", "Genf"][n % 3], n) for n in range(12)],
    [(1, "Chur", 5), (4, "Basel", 2)],
    [(n, "Bern", 7) for n in range(6, 9)],
]


def flow() -> dd.Flow:
    made = dd.Flow()
    orders = made.upserts("orders", COLUMNS, dd.Upsert(key="id"))
    made.output("orders", orders)
    made.output("by_city", orders.group_by("city").agg(n="count(*)", total="sum(amount)"))
    return made


def table(rows: list[tuple[Any, ...]]) -> pa.Table:
    return pa.table(dict(zip(COLUMNS, map(list, zip(*rows, strict=True)), strict=True)), pa.schema([*COLUMNS.items()]))


def held(state: str, name: str) -> list[tuple[Any, ...]]:
    return sorted(tuple(row.values())[:-1] for row in dd.read(state, name).to_pylist())


def of_sqlite(path: Path, name: str) -> list[tuple[Any, ...]]:
    with closing(sqlite3.connect(path)) as connection:
        return sorted(connection.execute(f"select * from {name}").fetchall())


def of_delta(path: Path) -> list[dict[str, Any]]:
    return list(pl.read_delta(path).to_dicts())


def changed(rows: list[dict[str, Any]]) -> Counter[Any]:
    """What a change log adds up to."""
    found: Counter[Any] = Counter()
    for row in rows:
        values = tuple(value for name, value in row.items() if not name.startswith("_"))
        found[values] += -1 if row["_change_type"] in ("delete", "update_preimage") else 1
    return Counter({row: n for row, n in found.items() if n})


def manifest_of(state: str) -> Any:
    with open_existing_store(state) as store:
        return load_newest_manifest(store)


@mid_on_spark
def test_a_run_gives_its_epoch_to_tables(spark: SparkSession, tmp_path: Path, monkeypatch: Any) -> None:
    """Small epochs by the driver, large ones from files that tasks stage; a log of changes and a table by its key."""
    state = str(tmp_path / "state")
    sinks = {
        "by_city": dd.sinks.delta(tmp_path / "by_city"),
        "orders": dd.sinks.delta(tmp_path / "orders", mode="changelog"),
    }
    for number, rows in enumerate(DAYS, 1):
        monkeypatch.setattr(driver_epochs, "LARGE", 0 if number == 2 else 1 << 20)
        ran = spark_bridge.run(flow(), {"orders": frame_of(spark, table(rows))}, 3, state=state, sinks=sinks)
        assert (ran.epoch, ran.sinks) == (number, {"by_city": number, "orders": number})
        assert sorted(tuple(row.values()) for row in of_delta(tmp_path / "by_city")) == held(state, "by_city")
        assert changed(of_delta(tmp_path / "orders")) == Counter(held(state, "orders"))
    log = of_delta(tmp_path / "orders")
    # What is updated is told as such where tasks made it, as where the driver did.
    kinds = Counter(row["_change_type"] for row in log if row["_commit_version"] == 2)
    assert kinds == {"update_preimage": 2, "update_postimage": 2}
    history = deltalake.DeltaTable(tmp_path / "orders")
    assert history.version() == len(DAYS)
    files = {row["path"]: row["num_records"] for row in pa.table(history.get_add_actions(flatten=True)).to_pylist()}
    assert sum(not path.startswith("part-00000-") for path in files) in (1, 2)  # tasks wrote the second, of two keys
    assert manifest_of(state).sinks["orders"].written == 3


def test_an_epoch_that_is_given_again_goes_nowhere_twice(spark: SparkSession, tmp_path: Path, monkeypatch: Any) -> None:
    state, sinks = str(tmp_path / "state"), {"orders": dd.sinks.delta(tmp_path / "orders", mode="updates")}
    monkeypatch.setattr(driver_epochs, "LARGE", 0)
    frame = {"orders": frame_of(spark, table(DAYS[0]))}
    for _ in range(2):
        ran = spark_bridge.run(flow(), frame, 2, state=state, epoch=1, sinks=sinks)
    assert ran.replayed and deltalake.DeltaTable(tmp_path / "orders").version() == 1
    with pytest.warns(UserWarning, match=r"the sinks of \['orders'\] of .* are attached but were not passed"):
        spark_bridge.run(flow(), frame, 2, state=state, epoch=1)
    with raises(SpecError):
        spark_bridge.run(flow(), frame, sinks=sinks)
    with raises(SpecError):
        spark_bridge.run(flow(), frame, 2, state=state, sinks={"by_town": sinks["orders"]})


def test_a_driver_that_dies_before_the_sink_has_it_goes_on_there(
    spark: SparkSession, tmp_path: Path, monkeypatch: Any
) -> None:
    state, sinks = str(tmp_path / "state"), {"by_city": dd.sinks.sqlite(tmp_path / "out.db", "by_city")}
    give = Delivery._write_epoch

    def dies(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Delivery, "_write_epoch", dies)
    with pytest.raises(KeyboardInterrupt):
        spark_bridge.run(flow(), {"orders": frame_of(spark, table(DAYS[0]))}, 2, state=state, sinks=sinks)
    monkeypatch.setattr(Delivery, "_write_epoch", give)
    assert manifest_of(state).epoch == 1 and of_sqlite(tmp_path / "out.db", "by_city") == []
    spark_bridge.run(flow(), {"orders": frame_of(spark, table(DAYS[1]))}, state=state, sinks=sinks)
    assert of_sqlite(tmp_path / "out.db", "by_city") == held(state, "by_city")
    # Rescaled, the sink goes on; rolled back, it is ahead until it is synced.
    spark_bridge.rescale(state, 3, session=spark)
    spark_bridge.run(flow(), {"orders": frame_of(spark, table(DAYS[2]))}, state=state, sinks=sinks)
    assert of_sqlite(tmp_path / "out.db", "by_city") == held(state, "by_city")
    dd.rollback(state, 2)
    with raises(SinkAhead):
        spark_bridge.run(flow(), {"orders": frame_of(spark, table(DAYS[2]))}, state=state, sinks=sinks)
    assert manifest_of(state).epoch == 2  # it was refused before anything was taken in
    spark_bridge.sync(flow(), state, sinks)
    assert of_sqlite(tmp_path / "out.db", "by_city") == held(state, "by_city")


def land(folder: Path, number: int, rows: list[tuple[Any, ...]]) -> None:
    """A file that a stream takes as a batch."""
    import pyarrow.parquet as pq

    folder.mkdir(exist_ok=True)
    path = folder / f"{number}.parquet"
    pq.write_table(table(rows), path)
    os.utime(path, (1_700_000_000 + number,) * 2)  # Spark takes files by their times


def streamed(spark: SparkSession, tmp_path: Path, sinks: Any, **more: Any) -> Any:
    """A query of the files that are there."""
    reader = spark.readStream.schema("id long, city string, amount long").option("maxFilesPerTrigger", 1)
    frame = reader.option("latestFirst", "false").parquet(str(tmp_path / "in"))
    state = str(tmp_path / "state")
    more = {"trigger": {"availableNow": True}, "partitions": 2, **more}
    return spark_bridge.stream(flow(), {"orders": frame}, state=state, sinks=sinks, **more)


@mid_on_spark
def test_a_stream_gives_each_batch_to_its_sinks_once(spark: SparkSession, tmp_path: Path, monkeypatch: Any) -> None:
    sinks = {
        "by_city": dd.sinks.sqlite(tmp_path / "out.db", "by_city"),
        "orders": dd.sinks.delta(tmp_path / "orders", mode="changelog"),
    }
    monkeypatch.setattr(driver_epochs, "LARGE", 0)
    for number, rows in enumerate(DAYS[:2]):
        land(tmp_path / "in", number, rows)
    query = streamed(spark, tmp_path, sinks).start()
    query.awaitTermination()
    assert query.ddflow.sinks == {"by_city": 2, "orders": 2}
    assert query.name == "orders" and repr(query.ddflow) == str(query.ddflow.stats())
    assert repr(query) == f"Query(orders into {tmp_path / 'state'}; {query.id})"
    state = str(tmp_path / "state")
    assert {name: each.epoch for name, each in manifest_of(state).sinks.items()} == {"by_city": 2, "orders": 2}
    # A query dies when its sink has the epoch and Spark has no commit of the batch.
    land(tmp_path / "in", 2, DAYS[2])
    write, died = Delivery._write_epoch, []

    def dies(self: Any, receipt: Any) -> None:
        write(self, receipt)
        if self.name == "orders" and receipt.epoch == 3:
            died.append(receipt.epoch)
            raise RuntimeError("dies here")

    monkeypatch.setattr(Delivery, "_write_epoch", dies)
    with pytest.raises(PySparkException, match="dies here"):
        streamed(spark, tmp_path, sinks).start().awaitTermination()
    monkeypatch.setattr(Delivery, "_write_epoch", write)
    query = streamed(spark, tmp_path, sinks).start()
    query.awaitTermination()
    assert died == [3] and [(each.epoch, each.replayed) for each in query.ddflow.stats()] == [(3, True)]
    assert of_sqlite(tmp_path / "out.db", "by_city") == held(state, "by_city")
    assert changed(of_delta(tmp_path / "orders")) == Counter(held(state, "orders"))
    assert deltalake.DeltaTable(tmp_path / "orders").version() == 3


@long_on_spark
def test_a_sink_that_is_away_gets_its_epochs_when_it_is_back(
    spark: SparkSession, tmp_path: Path, monkeypatch: Any
) -> None:
    from ddflow.connectors.sqlite import SQLiteTable

    write, fails = SQLiteTable.write, [3]

    def away(self: Any, *given: Any) -> None:
        if fails[0]:
            fails[0] -= 1
            raise SinkFailed("write", "it is away", "wait")
        write(self, *given)

    monkeypatch.setattr(SQLiteTable, "write", away)
    sinks = {"by_city": dd.sinks.sqlite(tmp_path / "out.db", "by_city")}
    for number, rows in enumerate(DAYS[:2]):
        land(tmp_path / "in", number, rows)
    query = streamed(spark, tmp_path, sinks).start()
    query.awaitTermination()
    state = str(tmp_path / "state")
    assert fails == [0] and query.ddflow.sinks == {"by_city": 2}
    assert of_sqlite(tmp_path / "out.db", "by_city") == held(state, "by_city")
    # For too long: the query ends with the sink's error though no batch comes, and the state is whole.
    land(tmp_path / "in", 2, DAYS[2])
    fails[0] = 1 << 30
    spark.streams.resetTerminated()
    query = streamed(spark, tmp_path, sinks, trigger={"processingTime": "0 seconds"}, give_up_after="2s").start()
    with pytest.raises(PySparkException, match="SinkFailed: write: it is away"):
        spark.streams.awaitAnyTermination()
    spark.streams.resetTerminated()
    assert not query.isActive and "it is away" in str(query.exception())
    with raises(SinkFailed):
        query.awaitTermination()
    assert manifest_of(state).epoch == 3 and dd.fsck(state).ok
    fails[0] = 0
    streamed(spark, tmp_path, sinks).start().awaitTermination()
    assert of_sqlite(tmp_path / "out.db", "by_city") == held(state, "by_city")


def test_what_goes_wrong_between_batches_ends_the_query(spark: SparkSession, tmp_path: Path, monkeypatch: Any) -> None:
    from ddflow.connectors.sqlite import SQLiteTable

    raised: list[Exception] = [RuntimeError("out of order"), SinkFailed("write", "it is away", "wait")]

    def wrong(self: Any, *given: Any) -> None:
        raise raised.pop() if len(raised) > 1 else raised[0]

    monkeypatch.setattr(SQLiteTable, "write", wrong)
    land(tmp_path / "in", 0, DAYS[0])
    sinks = {"by_city": dd.sinks.sqlite(tmp_path / "out.db", "by_city")}
    query = streamed(spark, tmp_path, sinks, trigger={"processingTime": "0 seconds"}).start()
    try:
        with pytest.raises(RuntimeError, match="out of order"):
            assert query.awaitTermination(30), "it goes on without its sink"
    finally:
        query.stop()
