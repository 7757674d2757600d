"""Test a driver killed at each of its points and restarted: every diff is delivered, and every epoch is committed once.

One test uses SIGKILL, in consecutive processes on one state. Another ends the query with an exception, which leaves the
same files as a kill, and tests more ways to receive outputs.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from chance import long_on_spark
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from spark_faults.deaths import POINTS, Killed, dies
from spark_faults.driving import SCHEMA, drive, flow_of
from spark_session import counted
from test_spark_stream import WatchedStream

import ddflow as dd
import spark_bridge
from ddflow.connectors.parquet.folder import build_folder_name

pytestmark = pytest.mark.together("spark")


def rows_of(number: int) -> pa.Table:
    """The rows of a file: keys meet again, orders go up and down."""
    ids = [(number * 7 + i * 5) % 23 for i in range(40)]
    cities = [["Bern", "Basel", None][(number + i) % 3] for i in range(40)]
    return pa.table([ids, cities, [(number * 3 + i) % 11 for i in range(40)]], schema=SCHEMA)


def driven(folder: Path, point: str, batch: int, partitions: int) -> subprocess.CompletedProcess[str]:
    given = [sys.executable, "-m", "spark_faults.driving", str(folder), point, str(batch), str(partitions)]
    return subprocess.run(given, capture_output=True, text=True, timeout=240)


def whole_outputs(folder: Path, epoch: int) -> dict[str, list[pa.Table]]:
    """What was told of an epoch, each time that all outputs were."""
    told = defaultdict(list)
    for path in sorted((folder / "outs").glob(f"{epoch}-*.parquet")):
        told[path.name.split("-")[1]].append(pq.read_table(path))
    return told


def killed_at(points: tuple[str, ...], spark: SparkSession, tmp_path: Path) -> None:
    """Drivers of which each dies at a point of its own batch, and the last comes to its end; then all is looked at."""
    for name in ("in", "outs"):
        (tmp_path / name).mkdir()
    for batch, point in enumerate([*points, ""]):
        path = tmp_path / "in" / f"{batch}.parquet"
        pq.write_table(rows_of(batch), path)
        os.utime(path, (1_700_000_000 + batch,) * 2)  # Spark takes files by their times
        if point:
            done = driven(tmp_path, point, batch, 2)
            assert done.returncode == -9, done.stderr[-3000:]
    last = len(points)
    # The last one is told the batch of which Spark knows nothing, of a state rescaled since, and then makes its own.
    assert spark_bridge.rescale(str(tmp_path / "state"), 3, session=spark).before == 2
    assert drive(spark, tmp_path, "", last, 3) == [(last, True), (last + 1, False)]
    flow = flow_of()
    with flow.open() as engine:
        for batch in range(last + 1):
            step = engine.step({"orders": rows_of(batch)}, time=batch + 1)
            told = whole_outputs(tmp_path, batch + 1)
            again = points[batch : batch + 1] == ("before Spark's commit",)
            assert len(told["rows"]) == len(told["by_city"]) == 1 + again, batch
            for name in flow.outputs:
                for table in told[name]:
                    assert counted(table) == counted(step[name]), (batch, name)
        for name in flow.outputs:
            assert counted(dd.read(str(tmp_path / "state"), name)) == counted(engine.read(name))
    assert dd.fsck(str(tmp_path / "state")).ok


@long_on_spark
@pytest.mark.drawn(2, of="deployments of Spark")
def test_a_driver_killed_when_its_outputs_were_told_goes_on_where_it_was(spark: SparkSession, tmp_path: Path) -> None:
    killed_at(POINTS[-1:], spark, tmp_path)


@pytest.mark.soak
def test_a_driver_killed_anywhere_goes_on_where_it_was(spark: SparkSession, tmp_path: Path) -> None:
    killed_at(POINTS, spark, tmp_path)


def died(fed: WatchedStream, point: str, batch: int, **more: Any) -> None:
    """A query that an exception ends at a point of a batch."""
    with dies(point, batch, fail), pytest.raises(PySparkException, match="dies here"):
        fed.run(**more)


def fail() -> None:
    raise Killed("dies here")


@pytest.mark.drawn(2, of="deployments of Spark")
@pytest.mark.parametrize(
    "folder", [pytest.param(False, marks=pytest.mark.soak, id="function"), pytest.param(True, id="folder")]
)
def test_a_query_that_ends_anywhere_goes_on_where_it_was(spark: SparkSession, tmp_path: Path, folder: bool) -> None:
    fed = WatchedStream(spark, tmp_path, flow_of())
    outputs = tmp_path / "outputs"
    more = {"outputs": str(outputs)} if folder else {}
    for batch, point in enumerate(POINTS):
        fed.give(rows_of(batch))
        died(fed, point, batch, **more)
    fed.give(rows_of(len(POINTS)))
    told = [(each.epoch, each.replayed) for each in fed.run(**more).ddflow.stats()]
    assert told == [(5, True), (6, False)]
    if not folder:
        assert [epoch for epoch, _ in fed.outs] == [1, 2, 3, 4, 5, 5, 6]
        fed.check()
        return
    with fed.flow.open() as engine:
        for epoch, rows in enumerate(fed.given, 1):
            step = engine.step({"orders": rows}, time=epoch)
            for name, table in step.items():
                files = list(outputs.glob(f"{build_folder_name(name)}/{epoch:012}-*.parquet"))
                found = pa.concat_tables([table.slice(0, 0), *map(pq.read_table, files)])
                assert counted(found) == counted(table), (epoch, name)


def test_times_that_closed_when_a_driver_died_are_told_when_it_goes_on(spark: SparkSession, tmp_path: Path) -> None:
    flow = dd.Flow()
    flow.output("rows", flow.upserts("orders", SCHEMA, dd.Upsert("id", time="at", lateness=100)))
    fed = WatchedStream(spark, tmp_path, flow)
    fed.give(rows_of(0), rows_of(1))
    for point in ("before tasks", "after publish"):
        with dies(point, -1, fail), pytest.raises(Killed):
            fed.run(close=True)
        assert [epoch for epoch, _ in fed.outs] == [1, 2]
    query = fed.run(close=True)
    assert [(each.epoch, each.frontier, each.replayed) for each in query.ddflow.stats()] == [(3, dd.CLOSED, True)]
    with flow.open() as engine:
        steps = [engine.push({"orders": pa.concat_tables(fed.given)}), engine.advance_to(dd.CLOSED)]
    assert counted(pa.concat_tables([out["rows"] for _, out in fed.outs])) == counted(
        pa.concat_tables([step["rows"] for step in steps])
    )
