"""Test changing columns on Spark: a job rewrites a partitioned state, which continues like the local engine's.

A repeated epoch is compared in the columns that the epoch had before the change.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from chance import long_on_spark, mid_on_spark
from messages import raises
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession
from spark_session import counted, frame_of

import ddflow as dd
import spark_bridge
from ddflow.columns.widening import conform_to_wider_schema
from ddflow.errors import FeedChanged, PlanChanged, ReplayMismatch
from spark_bridge import rewrite

pytestmark = pytest.mark.together("spark")

NARROW: dict[str, Any] = {"id": pa.int64(), "city": pa.string(), "n": pa.int32()}


def plan(columns: dict[str, Any], distinct: bool = False) -> dd.Flow:
    flow = dd.Flow()
    rows = flow.output("rows", flow.upserts("a", columns, dd.Upsert(key="id")))
    flow.output("by_n", rows.count("n"))
    flow.output("chosen", rows.project({"m": "n", "many": "n > 2"}).distinct())
    if distinct:
        both = flow.upserts("b", columns, dd.Upsert(key="id"))
        flow.output("either", rows.concat(both).distinct())
    return flow


def rows(begin: int, n: int, columns: dict[str, Any] = NARROW) -> pa.Table:
    given = [{"id": i % 7, "city": f"c{i % 3}", "n": i % 4 or None} for i in range(begin, begin + n)]
    return pa.Table.from_batches(
        [conform_to_wider_schema(pa.Table.from_pylist(given, pa.schema(NARROW)), pa.schema(columns))]
    )


@long_on_spark
def test_a_state_is_rewritten_by_a_job_and_goes_on(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    state, wide = str(tmp_path / "state"), NARROW | {"n": pa.decimal128(12, 2), "new": pa.string()}
    spark_bridge.run(plan(NARROW), {"a": frame_of(spark, rows(0, 9))}, 3, state=state)
    monkeypatch.setattr(rewrite, "LARGE", 0)
    done = spark_bridge.evolve(state, {"n": "decimal(12,2)", "new": "string"})
    assert done.columns["a"] == {"n": ("int32", "decimal128(12, 2)"), "new": (None, "string")}
    assert dd.fsck(state).ok and dd.verify(state, {"a": rows(0, 9)}).ok
    with plan(wide).open() as twin:
        twin.step({"a": rows(0, 9, wide)}, 1)
        for name in plan(wide).outputs:
            assert counted(dd.read(state, name)) == counted(twin.read(name)), name
        again = spark_bridge.run(plan(wide), {"a": frame_of(spark, rows(0, 9, wide))}, state=state, epoch=1)
        assert again.replayed and again["by_n"].count() == 4
        with pytest.raises(ReplayMismatch):
            spark_bridge.run(plan(wide), {"a": frame_of(spark, rows(1, 9, wide))}, state=state, epoch=1)
        spark_bridge.run(plan(wide), {"a": frame_of(spark, rows(4, 6, wide))}, state=state)
        twin.step({"a": rows(4, 6, wide)}, 2)
        for name in plan(wide).outputs:
            assert counted(dd.read(state, name)) == counted(twin.read(name)), name


@mid_on_spark
def test_wider_integers_are_taken_when_a_state_is_opened(spark: SparkSession, tmp_path: Path) -> None:
    state, wide = str(tmp_path / "state"), NARROW | {"n": pa.int64(), "city": pa.large_string()}
    spark_bridge.run(plan(NARROW), {"a": frame_of(spark, rows(0, 9))}, 2, state=state)
    with raises(PlanChanged):
        spark_bridge.run(plan(NARROW | {"n": pa.float64()}), {"a": frame_of(spark, rows(0, 9))}, state=state)
    spark_bridge.run(plan(wide), {"a": frame_of(spark, rows(3, 9, wide))}, state=state)
    with plan(wide).open() as twin:
        for time, begin in ((1, 0), (2, 3)):
            twin.step({"a": rows(begin, 9, wide)}, time)
        for name in plan(wide).outputs:
            assert counted(dd.read(state, name)) == counted(twin.read(name)), name


@mid_on_spark
def test_what_tells_rows_apart_by_a_new_column_moves_them(spark: SparkSession, tmp_path: Path) -> None:
    state, wide = str(tmp_path / "state"), NARROW | {"new": pa.string()}
    frames = {"a": frame_of(spark, rows(0, 9)), "b": frame_of(spark, rows(2, 9))}
    spark_bridge.run(plan(NARROW, True), frames, 2, state=state)
    with raises(PlanChanged):
        spark_bridge.run(plan(wide, True), {"a": frame_of(spark, rows(0, 9, wide))}, state=state)
    both = {name: {"new": "string"} for name in ("a", "b")}
    spark_bridge.evolve(state, both)
    spark_bridge.run(plan(wide, True), {"a": frame_of(spark, rows(5, 9, wide))}, state=state)
    with plan(wide, True).open() as twin:
        twin.step({"a": rows(0, 9, wide), "b": rows(2, 9, wide)}, 1)
        twin.step({"a": rows(5, 9, wide)}, 2)
        for name in plan(wide, True).outputs:
            assert counted(dd.read(state, name)) == counted(twin.read(name)), name


@long_on_spark
def test_a_batch_that_a_query_gives_again_after_a_change_is_the_one_it_was(spark: SparkSession, tmp_path: Path) -> None:
    """The driver dies after our commit and before Spark's; the query that goes on has wider columns and new ones."""
    state, folder = str(tmp_path / "state"), tmp_path / "in"
    folder.mkdir()

    def give(number: int, table: pa.Table) -> None:
        pq.write_table(table, folder / f"{number}.parquet")
        os.utime(folder / f"{number}.parquet", (1_700_000_000 + number,) * 2)

    def run(flow: dd.Flow, columns: str) -> Any:
        reader = spark.readStream.schema(columns).option("maxFilesPerTrigger", 1).parquet(str(folder))
        query = spark_bridge.stream(flow, reader, state=state, partitions=2, trigger={"availableNow": True}).start()
        query.awaitTermination()
        return [(each.epoch, each.replayed) for each in query.ddflow.stats()]

    def forget_commit() -> None:
        last = max(Path(f"{state}.checkpoint/commits").glob("[0-9]*"), key=lambda path: int(path.name))
        last.unlink()
        last.with_name(f".{last.name}.crc").unlink(missing_ok=True)

    give(0, rows(0, 9))
    give(1, rows(4, 9))
    assert run(plan(NARROW), "id long, city string, n int") == [(1, False), (2, False)]
    forget_commit()
    wide = NARROW | {"n": pa.int64(), "new": pa.string()}
    assert run(plan(wide), "id long, city string, n long, new string") == [(2, True)]
    forget_commit()
    give(1, rows(5, 9))
    with raises(ReplayMismatch):
        run(plan(wide), "id long, city string, n long, new string")
    give(1, rows(4, 9))
    give(2, rows(2, 3, wide))
    assert run(plan(wide), "id long, city string, n long, new string") == [(2, True), (3, False)]
    with plan(wide).open() as twin:
        for time, given in enumerate((rows(0, 9, wide), rows(4, 9, wide), rows(2, 3, wide)), 1):
            twin.step({"a": given}, time)
        for name in plan(wide).outputs:
            assert counted(dd.read(state, name)) == counted(twin.read(name)), name


@mid_on_spark
def test_an_input_is_taken_out_between_two_runs(spark: SparkSession, tmp_path: Path) -> None:
    state, frame = str(tmp_path / "state"), frame_of(spark, rows(0, 9))
    spark_bridge.run(plan(NARROW, True), {"a": frame, "b": frame}, 3, state=state)
    with raises(PlanChanged):
        spark_bridge.run(plan(NARROW), {"a": frame}, state=state)
    done = spark_bridge.evolve(state, drop_outputs="either", drop_inputs="b")
    assert (done.outputs, done.inputs) == (("either",), ("b",)) and dd.fsck(state).ok
    with plan(NARROW).open() as twin:
        twin.step({"a": rows(0, 9)}, 1)
        with pytest.raises(ReplayMismatch):
            spark_bridge.run(plan(NARROW), {"a": frame}, state=state, epoch=1)
        spark_bridge.run(plan(NARROW), {"a": frame_of(spark, rows(4, 6))}, state=state)
        twin.step({"a": rows(4, 6)}, 2)
        for name in plan(NARROW).outputs:
            assert counted(dd.read(state, name)) == counted(twin.read(name)), name


@mid_on_spark
def test_an_output_is_taken_out_between_two_runs(spark: SparkSession, tmp_path: Path) -> None:
    def fewer() -> dd.Flow:
        flow = plan(NARROW)
        del flow.outputs["by_n"]
        return flow

    state = str(tmp_path / "state")
    spark_bridge.run(plan(NARROW), {"a": frame_of(spark, rows(0, 9))}, 3, state=state)
    with raises(PlanChanged):
        spark_bridge.run(fewer(), {"a": frame_of(spark, rows(0, 9))}, state=state, epoch=1)
    done = spark_bridge.evolve(state, drop_outputs=["by_n"])
    assert (done.outputs, done.epoch, done.versions) == (("by_n",), 1, 0)
    assert dd.fsck(state).ok
    with fewer().open() as twin:
        twin.step({"a": rows(0, 9)}, 1)
        again = spark_bridge.run(fewer(), {"a": frame_of(spark, rows(0, 9))}, state=state, epoch=1)
        assert again.replayed and again["rows"].count() == 7
        spark_bridge.run(fewer(), {"a": frame_of(spark, rows(4, 6))}, state=state)
        twin.step({"a": rows(4, 6)}, 2)
        for name in fewer().outputs:
            assert counted(dd.read(state, name)) == counted(twin.read(name)), name


@pytest.mark.soak
def test_a_query_whose_input_was_dropped_goes_on_with_another_checkpoint(spark: SparkSession, tmp_path: Path) -> None:
    """What came before is read again, and changes nothing where events have an order."""
    state = str(tmp_path / "state")

    def run(*names: str, **options: Any) -> None:
        flow, frames = dd.Flow(), {}
        for name in names:
            flow.output(f"{name} rows", flow.upserts(name, {"id": int, "at": int}, dd.Upsert(key="id", order_by="at")))
            frames[name] = spark.readStream.schema("id long, at long").parquet(str(tmp_path / name))
        query = spark_bridge.stream(flow, frames, state=state, trigger={"availableNow": True}, **options).start()
        query.awaitTermination()

    for name in "ab":
        (tmp_path / name).mkdir()
        pq.write_table(pa.table({"id": [1], "at": [1]}), tmp_path / name / "1.parquet")
    run("a", "b")
    spark_bridge.evolve(state, drop_outputs=["b rows"], drop_inputs=["b"])
    pq.write_table(pa.table({"id": [1, 2], "at": [2, 2]}), tmp_path / "a" / "2.parquet")
    with pytest.raises(StreamingQueryException, match=r"There are \[2\] sources in the checkpoint"):
        run("a")
    other = str(tmp_path / "other")
    with raises(FeedChanged):
        run("a", checkpoint=other)
    shutil.rmtree(other)
    run("a", checkpoint=other, adopt=True)
    assert sorted(row["at"] for row in dd.read(state, "a rows").to_pylist()) == [2, 2]
    pq.write_table(pa.table({"id": [3], "at": [3]}), tmp_path / "a" / "3.parquet")
    run("a", checkpoint=other)
    assert sorted(row["at"] for row in dd.read(state, "a rows").to_pylist()) == [2, 2, 3]
