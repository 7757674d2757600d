"""What Spark has of its own for upserts in, updates out: a window over the whole, a join, and its stateful operators.

Invariant: a peer reads the files the others read, brings keys together by one shuffle into ``PARTITIONS`` partitions,
and leaves its updates as Parquet. ``ceiling`` and ``floor`` do no work at all: the same shuffle and an identity
``mapInArrow``, on everything at once and in an empty ``foreachBatch``; they say what is left to gain. Arrival decides
between events of one time, and ``monotonically_increasing_id`` before the shuffle is what is cheapest; and the slow
peers are slow by their operator, so around it they get what is fastest. Nothing here measures.

>>> sorted(BATCH), sorted(STREAMS)
(['ceiling', 'lag'], ['apply-pandas', 'floor', 'join', 'rows', 'transform-pandas'])
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterable, Iterator

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession, Window
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery

PARTITIONS = 2
ROCKSDB = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"


def identity(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Give back what came."""
    yield from batches


def passed(frame: DataFrame) -> None:
    """Shuffle a frame by key, pass it through Python, and drop it."""
    wide = frame.repartition(PARTITIONS, "key").mapInArrow(identity, frame.schema)
    wide.write.format("noop").mode("overwrite").save()


def ceiling(frame: DataFrame, folder: str) -> None:
    """`passed`, of everything at once."""
    passed(frame)


def lag(frame: DataFrame, folder: str) -> None:
    """The last event of each key and time, and by a window over the whole the value before it."""
    by_key = Window.partitionBy("key").orderBy("time")
    _updates(_last(frame).withColumn("old", F.lag("val").over(by_key))).write.parquet(os.path.join(folder, "out"))


def _last(frame: DataFrame) -> DataFrame:
    """The last event of each key and time: one shuffle, by key; grouping is quicker than a second window."""
    arrived = frame.withColumn("seq", F.monotonically_increasing_id()).repartition(PARTITIONS, "key")
    return arrived.groupBy("key", "time").agg(F.max_by("val", "seq").alias("val"))


def _updates(last: DataFrame) -> DataFrame:
    """Rows of key, old, val and time as updates: a retraction of what was, an assertion of what is."""
    changed = last.where("not (old <=> val)")
    both = changed.selectExpr("key", "time as _time", "stack(2, old, -1L, val, 1L) as (val, _diff)")
    return both.where("val is not null").select("key", "val", "_time", "_diff")


def floor(frame: DataFrame, folder: str, checkpoint: str) -> StreamingQuery:
    """A ``foreachBatch`` that does nothing but `passed`."""
    return _for_each(frame, checkpoint, lambda batch, epoch: passed(batch))


def join(frame: DataFrame, folder: str, checkpoint: str) -> StreamingQuery:
    """A ``foreachBatch`` that joins each batch to the state of the one before, in Parquet, and writes the next.

    The batch is read, shuffled and windowed once, and kept; the state is read twice and written once.
    """
    store = os.path.join(checkpoint, "state")
    by_key = Window.partitionBy("key").orderBy("time")
    places = {"before": F.lag("val"), "next": F.lead("time"), "n": F.row_number()}

    def step(batch: DataFrame, epoch: int) -> None:
        spark = batch.sparkSession
        events = _last(batch).withColumns({name: place.over(by_key) for name, place in places.items()}).persist()
        before = os.path.join(store, str(epoch - 1))
        state = spark.read.parquet(before) if os.path.exists(before) else spark.createDataFrame([], _kept(batch))
        old = F.when(F.col("n") == 1, F.col("held")).otherwise(F.col("before")).alias("old")
        joined = events.join(state, "key", "left").select("key", "time", "val", old)
        _updates(joined).write.mode("append").parquet(os.path.join(folder, "out"))
        now = events.where("next is null").select("key", "val", F.lit(True).alias("new"))
        held = F.when(F.col("new"), F.col("val")).otherwise(F.col("held")).alias("held")
        kept = state.join(now, "key", "full").select("key", held).where("held is not null")
        kept.write.mode("overwrite").parquet(os.path.join(store, str(epoch)))
        events.unpersist()
        shutil.rmtree(os.path.join(store, str(epoch - 2)), ignore_errors=True)

    return _for_each(frame, checkpoint, step)


def _kept(batch: DataFrame) -> str:
    return f"key {batch.schema['key'].dataType.simpleString()}, held {batch.schema['val'].dataType.simpleString()}"


def rows(frame: DataFrame, folder: str, checkpoint: str) -> StreamingQuery:
    """``transformWithState``, the row-based one."""
    from spark_states import UPDATES, ByRows

    grouped = _arrived(frame).groupBy("key")
    return _to_files(grouped.transformWithState(ByRows(), UPDATES, "append", "none"), folder, checkpoint)


def transform_pandas(frame: DataFrame, folder: str, checkpoint: str) -> StreamingQuery:
    """``transformWithStateInPandas``."""
    from spark_states import UPDATES, ByFrames

    grouped = _arrived(frame).groupBy("key")
    return _to_files(grouped.transformWithStateInPandas(ByFrames(), UPDATES, "append", "none"), folder, checkpoint)


def apply_pandas(frame: DataFrame, folder: str, checkpoint: str) -> StreamingQuery:
    """``applyInPandasWithState``."""
    from spark_states import STATE, UPDATES, by_group

    grouped = _arrived(frame).groupBy("key")
    return _to_files(
        grouped.applyInPandasWithState(by_group, UPDATES, STATE, "append", "NoTimeout"), folder, checkpoint
    )


def _arrived(frame: DataFrame) -> DataFrame:
    # A stream refuses monotonically_increasing_id; with one file a batch, the row's number in it is the same.
    return frame.select("*", F.col("_metadata.row_index").alias("seq"))


def _for_each(frame: DataFrame, checkpoint: str, step: Callable[[DataFrame, int], None]) -> StreamingQuery:
    writer = frame.writeStream.foreachBatch(step).option("checkpointLocation", checkpoint)
    return writer.trigger(availableNow=True).start()


def _to_files(frame: DataFrame, folder: str, checkpoint: str) -> StreamingQuery:
    writer = frame.writeStream.format("parquet").outputMode("append").option("checkpointLocation", checkpoint)
    return writer.trigger(availableNow=True).start(os.path.join(folder, "out"))


def configure(spark: SparkSession) -> None:
    """What the peers are run with: state in RocksDB, as many partitions as everybody."""
    spark.conf.set("spark.sql.shuffle.partitions", str(PARTITIONS))
    spark.conf.set("spark.sql.streaming.stateStore.providerClass", ROCKSDB)
    spark.conf.set("spark.sql.streaming.numRecentProgressUpdates", "10000")


BATCH: dict[str, Callable[[DataFrame, str], None]] = {"ceiling": ceiling, "lag": lag}
STREAMS: dict[str, Callable[[DataFrame, str, str], StreamingQuery]] = {
    "floor": floor,
    "join": join,
    "rows": rows,
    "apply-pandas": apply_pandas,
    "transform-pandas": transform_pandas,
}
