"""Run a driver that dies at a given point, in its own process.

The arguments are a folder, a point, a batch, and the number of partitions.

The driver reads the files of the folder ``in`` one by one into ``state``. The driver writes the output of each epoch to
``outs``, with one file for each call.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Mapping
from pathlib import Path
from uuid import uuid4

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from spark_faults.deaths import dies

import ddflow as dd
import spark_bridge
from spark_bridge.session import local_session

SCHEMA = pa.schema({"id": pa.int64(), "city": pa.string(), "at": pa.int64()})


def flow_of() -> dd.Flow:
    """Return the driver's flow, which has two stages."""
    flow = dd.Flow()
    orders = flow.upserts("orders", SCHEMA, dd.Upsert("id", order_by="at"))
    flow.output("rows", orders)
    flow.output("by_city", orders.count("city"))
    return flow


def drive(spark: SparkSession, folder: Path, point: str, batch: int, partitions: int) -> list[tuple[int, bool]]:
    """Run until the input ends or the driver dies. Return each epoch, and whether the epoch was replayed."""

    def take(out: Mapping[str, DataFrame], epoch: int) -> None:
        for name in out:
            pq.write_table(out[name].toArrow(), folder / "outs" / f"{epoch}-{name}-{uuid4().hex}.parquet")

    reader = spark.readStream.schema("id long, city string, at long").option("maxFilesPerTrigger", 1)
    frames = {"orders": reader.parquet(str(folder / "in"))}
    with dies(point, batch, lambda: os.kill(os.getpid(), signal.SIGKILL)):
        query = spark_bridge.stream(
            flow_of(),
            frames,
            state=str(folder / "state"),
            partitions=partitions,
            trigger={"availableNow": True},
            outputs=take,
        ).start()
        query.awaitTermination()
        return [(each.epoch, each.replayed) for each in query.ddflow.stats()]


if __name__ == "__main__":
    with local_session("a driver that dies", 2, "1g") as session:
        drive(session, Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
