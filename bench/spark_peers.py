"""Run Spark's own methods to turn upserts into updates: a window over the input, a join, and stateful operators.

A peer shuffles once by key into ``PARTITIONS`` partitions and writes its updates as Parquet. The last event of each key
and time counts, and an event without a change gives no update. ``ceiling`` and ``floor`` only shuffle, so they show how
much faster ddflow could still become. A shuffle loses the order of arrival, so the column ``seq`` is added before. The
slow peers are slow because of their Spark operator; the code around the operator is the fastest we found.

Limits: the stateful operators here support only int64. Workers import this file by its name, because its folder is on
their Python path.

>>> updates(7, None, [(2, 1, None), (0, 0, 5), (1, 1, 6), (3, 2, None)])  # key, value held; seq, time, val
(None, [(7, 5, 0, 1), (7, 5, 1, -1)])
>>> updates(7, 5, [(4, 3, 5), (5, 4, 9)])
(9, [(7, 5, 4, -1), (7, 9, 4, 1)])
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import pandas as pd
import pyarrow as pa
from pyspark.sql import DataFrame, Row, SparkSession, Window, functions as F
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle

PARTITIONS = 2
ROCKSDB = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
UPDATES, STATE = "key long, val long, _time long, _diff long", "val long"
NAMES = ["key", "val", "_time", "_diff"]


def identity(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Return the input."""
    yield from batches


def ceiling(frame: DataFrame, folder: str = "") -> None:
    """Shuffle a frame by key, pass it through Python, and drop it."""
    wide = frame.repartition(PARTITIONS, "key").mapInArrow(identity, frame.schema)
    wide.write.format("noop").mode("overwrite").save()


def lag(frame: DataFrame, folder: str) -> None:
    """Take the last event of each key and time. A window over the whole input gives the old value."""
    by_key = Window.partitionBy("key").orderBy("time")
    _updates(_last(frame).withColumn("old", F.lag("val").over(by_key))).write.parquet(os.path.join(folder, "out"))


def _last(frame: DataFrame) -> DataFrame:
    """Take the last event of each key and time, with one shuffle by key. Grouping is faster than a second window."""
    arrived = frame.withColumn("seq", F.monotonically_increasing_id()).repartition(PARTITIONS, "key")
    return arrived.groupBy("key", "time").agg(F.max_by("val", "seq").alias("val"))


def _updates(last: DataFrame) -> DataFrame:
    """Convert rows of (key, old, val, time) to updates, which retract ``old`` and assert ``val``."""
    changed = last.where("not (old <=> val)")
    both = changed.selectExpr("key", "time as _time", "stack(2, old, -1L, val, 1L) as (val, _diff)")
    return both.where("val is not null").select(*NAMES)


def floor(frame: DataFrame, folder: str, checkpoint: str) -> StreamingQuery:
    """Run only `ceiling` in a ``foreachBatch``."""
    return _for_each(frame, checkpoint, lambda batch, epoch: ceiling(batch))


def join(frame: DataFrame, folder: str, checkpoint: str) -> StreamingQuery:
    """Join each batch to the state of the previous batch in a ``foreachBatch``, and write the next state as Parquet.

    The batch is read, shuffled and windowed once, and then cached. The state is read twice and written once.
    """
    store = os.path.join(checkpoint, "state")
    by_key = Window.partitionBy("key").orderBy("time")
    places = {"before": F.lag("val"), "next": F.lead("time"), "n": F.row_number()}

    def step(batch: DataFrame, epoch: int) -> None:
        spark, types = batch.sparkSession, dict(batch.dtypes)
        events = _last(batch).withColumns({name: place.over(by_key) for name, place in places.items()}).persist()
        before, none = os.path.join(store, str(epoch - 1)), f"key {types['key']}, held {types['val']}"
        state = spark.read.parquet(before) if os.path.exists(before) else spark.createDataFrame([], none)
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


Change = tuple[Any, Any, int, int]


def updates(key: Any, last: Any, rows: Iterable[tuple[int, int, Any]]) -> tuple[Any, list[Change]]:
    """Return the new value of a key with the old value ``last``, and the updates.

    None means that the key is absent. O(rows log rows).
    """
    final = {time: val for _, time, val in sorted(rows)}
    out: list[Change] = []
    for time, val in final.items():
        if val != last:
            if last is not None:
                out.append((key, last, time, -1))
            if val is not None:
                out.append((key, val, time, 1))
            last = val
    return last, out


class ByRows(StatefulProcessor):
    """A processor for ``transformWithState``: rows in, rows out."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        """Name the state."""
        self.last = handle.getValueState("last", STATE)

    def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Iterator[Any]:
        """Process the rows of one key in a batch, which may be several pandas frames."""
        before = self.last.get()
        old = None if before is None else before[0]
        new, out = updates(key[0], old, self.read(rows))
        if new is None and old is not None:
            self.last.clear()
        elif new is not None and new != old:
            self.last.update((new,))
        yield from self.given(out)

    def read(self, rows: Iterator[Any]) -> Iterator[tuple[int, int, Any]]:
        """Return rows as Python numbers."""
        return ((row.seq, row.time, row.val) for row in rows)

    def given(self, out: list[Change]) -> Iterator[Any]:
        """Return updates as rows."""
        return (Row(**dict(zip(NAMES, update, strict=True))) for update in out)

    def close(self) -> None:
        """Close nothing."""


class ByFrames(ByRows):
    """A processor for ``transformWithStateInPandas``: pandas frames in, pandas frames out."""

    def read(self, rows: Iterator[Any]) -> Iterator[tuple[int, int, Any]]:
        """Yield rows as Python numbers; pandas stores a column with nulls as floats."""
        for frame in rows:
            for seq, time, val in zip(*(frame[name].tolist() for name in ("seq", "time", "val")), strict=True):
                yield seq, time, None if val is None or val != val else int(val)

    def given(self, out: list[Change]) -> Iterator[Any]:
        """Return updates as a frame."""
        return iter([pd.DataFrame(out, columns=NAMES)] if out else [])


def by_group(key: Any, frames: Iterator[pd.DataFrame], state: Any) -> Iterator[pd.DataFrame]:
    """Process a key for ``applyInPandasWithState``, which has an older API for state."""
    ways = ByFrames()
    new, out = updates(key[0], state.get[0] if state.exists else None, ways.read(frames))
    if new is not None:
        state.update((new,))
    elif state.exists:
        state.remove()
    yield from ways.given(out)


def rows(frame: DataFrame, folder: str, checkpoint: str) -> StreamingQuery:
    """Start ``transformWithState``, the row-based operator."""
    return _to_files(_by_key(frame).transformWithState(ByRows(), UPDATES, "append", "none"), folder, checkpoint)


def transform_pandas(frame: DataFrame, folder: str, checkpoint: str) -> StreamingQuery:
    """Start ``transformWithStateInPandas``."""
    made = _by_key(frame).transformWithStateInPandas(ByFrames(), UPDATES, "append", "none")
    return _to_files(made, folder, checkpoint)


def apply_pandas(frame: DataFrame, folder: str, checkpoint: str) -> StreamingQuery:
    """Start ``applyInPandasWithState``."""
    made = _by_key(frame).applyInPandasWithState(by_group, UPDATES, STATE, "append", "NoTimeout")
    return _to_files(made, folder, checkpoint)


def _by_key(frame: DataFrame) -> Any:
    # A stream rejects monotonically_increasing_id. If each batch has one file, the index of a row in the file shows the
    # order of arrival.
    return frame.select("*", F.col("_metadata.row_index").alias("seq")).groupBy("key")


def _for_each(frame: DataFrame, checkpoint: str, step: Callable[[DataFrame, int], None]) -> StreamingQuery:
    writer = frame.writeStream.foreachBatch(step).option("checkpointLocation", checkpoint)
    return writer.trigger(availableNow=True).start()


def _to_files(frame: DataFrame, folder: str, checkpoint: str) -> StreamingQuery:
    writer = frame.writeStream.format("parquet").outputMode("append").option("checkpointLocation", checkpoint)
    return writer.trigger(availableNow=True).start(os.path.join(folder, "out"))


def configure(spark: SparkSession) -> None:
    """Set the same options for all contenders.

    The options set the number of partitions, RocksDB for the state of peers, and a progress event for every batch.
    """
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
