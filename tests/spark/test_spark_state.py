"""Test runs into a state on real Spark: epochs beside the local engine, replays, refusals, rescaling, cached parts."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
import test_spark
from chance import long_on_spark, mid_on_spark
from messages import raises
from pyspark.sql import SparkSession
from spark_session import assert_same, counted, frame_of, locally, setting
from test_spark import city_flow, halves, orders_of

import ddflow as dd
import spark_bridge
from ddflow.columns.hashing import Secret
from ddflow.errors import (
    DdflowError,
    EpochSkipped,
    NotArrow,
    NullKey,
    PlanChanged,
    ReplayMismatch,
    SchemaMismatch,
    SpecError,
    StateRefused,
    WrongMode,
)
from ddflow.partitions.chunks import RECEIPT
from ddflow.partitions.commit import DriverOptions, EpochDriver
from ddflow.partitions.epoch_start import StateVersion
from ddflow.partitions.partitioner import Partitioner
from ddflow.partitions.receipt import Receipt
from ddflow.storage.memory import MemoryStore
from spark_bridge import errors, job, part_cache, rewrite
from spark_bridge.job import choose_cache_limit
from spark_bridge.part_cache import PARTS, CacheLimit, MachineMemory, measure_machine_memory
from spark_bridge.tasks import EpochStageTask, RouteTask, check_state_visible

pytestmark = pytest.mark.together("spark")

VERDICTS = ("applied", "superseded", "noop", "stale", "tie_lost", "bad")


@pytest.fixture
def state(tmp_path: Path) -> Iterator[str]:
    yield str(tmp_path / "state")
    PARTS.clear()


def same_epoch(ran: Any, step: dd.Step, *some: str) -> None:
    """An epoch put out what a step did, in all outputs or in some, and resolved its events alike."""
    assert {name: ran.updates(name) for name in ran} == {name: table.num_rows for name, table in step.items()}
    assert_same({name: ran[name] for name in some or ran}, {name: step[name] for name in some or step})
    assert {name: ran.verdicts[name] for name in VERDICTS} == {name: step.verdicts[name] for name in VERDICTS}


def files_of(state: str) -> dict[str, int]:
    """The files of a state and their sizes."""
    return {str(path): path.stat().st_size for path in Path(state).rglob("*") if path.is_file()}


def same_state(state: str, flow: dd.Flow, engine: dd.Engine) -> None:
    """The state holds what the engine does."""
    for name in flow.outputs:
        assert counted(dd.read(state, name)) == counted(engine.read(name)), name


@mid_on_spark
@pytest.mark.parametrize(
    ("partitions", "adaptive"),
    [(3, "false"), *(pytest.param(number, "true", marks=pytest.mark.soak) for number in (1, 8))],
)
def test_epochs_of_a_state_are_steps_of_the_local_engine(
    spark: SparkSession, state: str, partitions: int, adaptive: str
) -> None:
    flow = city_flow()
    inputs = [orders_of(300, seed=1), orders_of(0), orders_of(2, seed=2), orders_of(300, seed=3)]
    inputs, names = (inputs, ()) if partitions == 3 else (inputs[::2], ("paid", "sizes"))
    with flow.open() as engine, setting(spark, "spark.sql.adaptive.enabled", adaptive):
        for epoch, rows in enumerate(inputs, 1):
            ran = spark_bridge.run(flow, {"orders": frame_of(spark, *halves(rows))}, partitions, state=state)
            assert (ran.epoch, ran.time, ran.replayed, ran.rows) == (
                epoch,
                epoch,
                False,
                {"orders": rows.num_rows} if rows.num_rows else {},
            )
            same_epoch(ran, engine.step({"orders": rows}, time=epoch), *names)
        same_state(state, flow, engine)


@mid_on_spark
def test_rows_have_the_times_of_their_epochs(spark: SparkSession, state: str) -> None:
    flow, schema = dd.Flow(), {"id": pa.int64(), "city": pa.string()}
    orders = flow.upserts("orders", schema, dd.Upsert(key="id", ingested="came"))
    flow.output("orders", orders)
    flow.output("by_time", orders.count(by=["came"]))
    with flow.open() as engine:
        for epoch, cities in enumerate(("Bern", "Chur", "Sion"), 1):
            rows = pa.table({"id": range(20), "city": [cities] * 9 + ["Genf"] * 11}, schema=pa.schema(schema))
            ran = spark_bridge.run(flow, {"orders": frame_of(spark, *halves(rows))}, 2, state=state)
            same_epoch(ran, engine.step({"orders": rows}, time=epoch))
        assert counted(engine.read("by_time")) == {(3, 9, 1): 1, (1, 11, 1): 1}
        same_state(state, flow, engine)


def test_an_epoch_is_read_from_its_files_and_computed_once(spark: SparkSession, state: str, tmp_path: Path) -> None:
    flow, rows, calls = city_flow(), orders_of(100), tmp_path / "calls"
    calls.mkdir()

    def watched(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        (calls / os.urandom(8).hex()).touch()
        yield from batches

    frame = frame_of(spark, rows)
    ran = spark_bridge.run(flow, {"orders": frame.mapInArrow(watched, frame.schema)}, 2, state=state)
    made = len(list(calls.iterdir()))
    assert ran["paid"].count() == ran["paid"].count() == ran.updates("paid") > 0
    assert ran["by_city"].limit(1).count() == 1
    assert len(list(calls.iterdir())) == made == 1
    assert "by_city: 4 updates" in repr(ran) and len(ran) == 6


@mid_on_spark
def test_outputs_in_a_folder_are_parquet_of_committed_epochs(spark: SparkSession, state: str, tmp_path: Path) -> None:
    flow, folder = city_flow(), tmp_path / "outputs"
    with flow.open() as engine:
        for epoch in (1, 2):
            rows = orders_of(200, seed=epoch)
            ran = spark_bridge.run(flow, {"orders": frame_of(spark, rows)}, 2, state=state, outputs=str(folder))
            same_epoch(ran, engine.step({"orders": rows}, time=epoch), "paid", "by_city")
    files = list(folder.glob("*/*.parquet"))
    assert {file.name.split("-")[0] for file in files} == {f"{epoch:012}" for epoch in (1, 2)}


@mid_on_spark
def test_an_epoch_that_is_given_again_returns_what_it_did(spark: SparkSession, state: str) -> None:
    flow, rows, later = city_flow(), orders_of(200), orders_of(200, seed=5)
    with flow.open() as engine:
        first = engine.step({"orders": rows}, time=1)
    frame = frame_of(spark, *halves(rows))
    spark_bridge.run(flow, {"orders": frame}, 3, state=state, epoch=1)
    again = spark_bridge.run(flow, {"orders": frame.coalesce(1)}, 3, state=state, epoch=1)
    assert again.replayed and again.epoch == 1
    same_epoch(again, first, "by_city")
    with raises(ReplayMismatch):
        spark_bridge.run(flow, {"orders": frame_of(spark, later)}, 3, state=state, epoch=1)
    with pytest.raises(ReplayMismatch):
        spark_bridge.run(flow, {"orders": frame.union(frame.limit(1))}, state=state, epoch=1)
    with pytest.raises(EpochSkipped):
        spark_bridge.run(flow, {"orders": frame}, 3, state=state, epoch=3)


@mid_on_spark
def test_hold_back_events_wait_until_they_are_closed(spark: SparkSession, state: str) -> None:
    flow = dd.Flow()
    schema = {"id": pa.int64(), "t": pa.int64(), "v": pa.string()}
    input = flow.upserts("s", schema, dd.Upsert("id", time="t", lateness=5, late="drop"))
    flow.output("rows", input)
    flow.output("by_v", input.count("v"))
    batches = [
        {"id": [1, 2], "t": [10, 20], "v": ["a", "a"]},
        {"id": [2, 3], "t": [14, 30], "v": ["b", "c"]},
        {"id": [1], "t": [14], "v": ["late"]},
        {"id": [4], "t": [40], "v": ["a"]},
    ]
    found: dict[str, list[pa.Table]] = {"rows": [], "by_v": []}
    pending = []
    for number, batch in enumerate(batches):
        frame, close = frame_of(spark, pa.table(batch, pa.schema(schema))), number == 3
        ran = spark_bridge.run(flow, {"s": frame}, 3, state=state, close=close)
        pending.append((ran.frontier, ran.verdicts.pending, ran.verdicts["late"]))
        for name, tables in found.items():
            tables.append(ran[name].toArrow())
    # The frontier follows the batches before, so an event of t=14 is in time beside one of t=30.
    assert pending == [(dd.NEVER, 2, 0), (15, 2, 0), (25, 1, 1), (dd.CLOSED, 0, 0)]
    kept = [(1, 10, "a"), (2, 20, "a"), (2, 14, "b"), (3, 30, "c"), (4, 40, "a")]
    with flow.open() as engine:
        pushed = engine.push({"s": pa.table([list(c) for c in zip(*kept, strict=True)], schema=pa.schema(schema))})
        closed = engine.advance_to(dd.CLOSED)
    for name, tables in found.items():
        assert counted(pa.concat_tables(tables)) == counted(pa.concat_tables([pushed[name], closed[name]])), name
    empty = spark_bridge.run(flow, {}, state=state, close=True)
    assert (empty.frontier, empty.updates("rows")) == (dd.CLOSED, 0)


@mid_on_spark
def test_inputs_meet_over_epochs_and_may_be_absent(spark: SparkSession, state: str) -> None:
    flow = dd.Flow()
    one, two = (flow.upserts(n, {"id": pa.int64(), "c": pa.string()}, dd.Upsert("id")) for n in ("one", "two"))
    flow.output("all", one.project("c").concat(two.project("c")).count())
    a, b = pa.table({"id": [1, 2], "c": ["x", "y"]}), pa.table({"id": [1], "c": ["x"]})
    with flow.open() as engine:
        for epoch, given in enumerate([{"one": a}, {"two": b}, {"two": a, "one": b}], 1):
            ran = spark_bridge.run(flow, {n: frame_of(spark, t) for n, t in given.items()}, 3, state=state)
            same_epoch(ran, engine.step(given, time=epoch))


def test_rows_of_a_topic_arrive_as_their_offsets_say(spark: SparkSession, state: str) -> None:
    rows = orders_of(200, keys=9).drop_columns(["at"])
    flow = dd.Flow()
    flow.output("o", flow.upserts("orders", rows.schema, dd.Upsert("id", delete=test_spark.DELETES)))
    told = rows.append_column("partition", pa.array([0] * 200, pa.int32())).append_column(
        "offset", pa.array(range(200))
    )
    told = told.append_column("topic", pa.array(["orders"] * 200)).take(pa.array([i * 77 % 200 for i in range(200)]))
    frames = {"orders": frame_of(spark, *halves(told))}
    ran = spark_bridge.run(flow, frames, 2, state=state)
    with flow.open() as engine:
        same_epoch(ran, engine.step({"orders": rows}, time=1))
    assert_same(spark_bridge.run(flow, frames, 2), locally(flow, {"orders": rows}))


def test_functions_travel_and_are_known_by_their_names(spark: SparkSession, state: str) -> None:
    def longer(batch: pa.RecordBatch) -> pa.Array:
        return pc.add(pc.utf8_length(batch.column("city")), 1)

    flow = dd.Flow()
    orders = flow.upserts("orders", test_spark.ORDERS, dd.Upsert("id", order_by="at"))
    flow.output("n", orders.filter(pc.field("at") > 1).project({"n": longer}).count())
    with flow.open() as engine:
        for epoch in (1, 2):
            rows = orders_of(60, seed=epoch)
            ran = spark_bridge.run(flow, {"orders": frame_of(spark, rows)}, 2, state=state)
            same_epoch(ran, engine.step({"orders": rows}, time=epoch))


def test_a_frame_after_a_window_function_is_as_good_as_any(spark: SparkSession, state: str) -> None:
    flow, rows = city_flow(), orders_of(120)
    frame_of(spark, rows).createOrReplaceTempView("orders")
    sql = "select id, city, row_number() over (partition by id order by at, op, city, amount) as at, op, amount"
    frame = spark.sql(f"{sql} from orders")
    ran = spark_bridge.run(flow, {"orders": frame.selectExpr("*", "1 as n").drop("n")}, 3, state=state)
    with flow.open() as engine:
        given = frame.toArrow()
        step = engine.step({"orders": given.set_column(2, "at", given.column("at").cast(pa.int64()))}, time=1)
    same_epoch(ran, step, "paid")


@mid_on_spark
def test_a_state_is_rescaled_when_that_is_asked_for_and_never_by_opening_it(
    spark: SparkSession, state: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    flow = city_flow()
    with flow.open() as engine:
        for epoch, (partitions, large) in enumerate([(2, 0), (5, 0), (5, 0), (1, 1 << 40)], 1):
            monkeypatch.setattr(rewrite, "LARGE", large)
            rows = orders_of(150, seed=epoch)
            frames = {"orders": frame_of(spark, rows)}
            if epoch > 1:
                before = files_of(state)
                with raises(SpecError):
                    spark_bridge.run(flow, frames, 9, state=state, outputs=f"{state}.outputs")
                assert files_of(state) == before
                assert not os.path.exists(f"{state}.outputs")
                done = spark_bridge.rescale(state, partitions, session=spark if epoch % 2 else None)
                assert (done.before, done.partitions) == ({2: 2, 3: 5, 4: 5}[epoch], partitions)
            ran = spark_bridge.run(flow, frames, partitions if epoch % 2 else None, state=state)
            assert ran.figures["tasks"] == 3 * partitions
            same_epoch(ran, engine.step({"orders": rows}, time=epoch), "sizes")
        with flow.open(state) as on:  # of one partition, it is any engine's
            assert counted(on.read("sizes")) == counted(engine.read("sizes"))


def growing_flow(more: bool) -> dd.Flow:
    flow, columns = dd.Flow(), {"id": int, "city": str, "n": int}
    orders = flow.upserts("orders", columns, dd.Upsert(key="id"))
    flow.output("many", orders.filter("n > 1"))
    flow.output("by_city", orders.count("city"))
    if more:
        cities = flow.upserts("cities", {"city": str, "land": str}, dd.Upsert(key="city"))
        flow.output("few", orders.filter("n <= 1"))
        flow.output("sums", orders.group_by("n").agg(s="sum(id)"))
        flow.output("of land", orders.count("city", name="much").join(cities, on="city", how="left"))
    return flow


@mid_on_spark
def test_outputs_and_inputs_that_are_new_are_made_of_what_the_state_holds(spark: SparkSession, state: str) -> None:
    orders = [
        pa.table({"id": range(n, n + 9), "city": ["Bern", "Chur", "Thun"] * 3, "n": [0, 1, 2] * 3}) for n in (0, 5)
    ]
    cities = pa.table({"city": ["Bern", "Chur"], "land": ["BE", "GR"]})

    def run(more: bool, **tables: pa.Table) -> Any:
        frames = {name: frame_of(spark, table) for name, table in tables.items()}
        return spark_bridge.run(growing_flow(more), frames, state=state, outputs=f"{state}.outputs")

    with growing_flow(False).open(twin := MemoryStore()) as engine:
        spark_bridge.run(growing_flow(False), {"orders": frame_of(spark, orders[0])}, 2, state=state)
        engine.step({"orders": orders[0]}, time=1)
    with pytest.raises(NullKey):  # when what is new was made, before the commit
        run(True, orders=orders[1].set_column(0, "id", pa.nulls(9, pa.int64())))
    assert list(dd.Snapshot.open(state).flow.outputs) == ["many", "by_city"] and dd.fsck(state).ok
    with growing_flow(True).open(twin.reopen()) as engine:
        same_epoch(run(True, orders=orders[1]), engine.step({"orders": orders[1]}, time=2))
        same_epoch(run(True, cities=cities), engine.step({"cities": cities}, time=3), "of land")
        same_state(state, growing_flow(True), engine)
    assert dd.fsck(state).ok


def test_a_budget_is_kept_to_on_a_batch_that_is_larger(spark: SparkSession, state: str) -> None:
    flow = dd.Flow()
    input = flow.upserts("s", {"id": pa.int64(), "v": pa.string()}, dd.Upsert("id"))
    flow.output("by_v", input.count("v"))
    frame = spark.range(0, 200_000, 1, 4).selectExpr("id % 50000 as id", "concat(repeat('x', 200), id % 3) as v")
    ran = spark_bridge.run(flow, {"s": frame}, 2, state=state, memory="32MB")
    assert ran.verdicts["applied"] == 50_000 and ran.verdicts.total == 200_000
    assert ran.figures["memory"] < 32_000_000
    rows = ran["by_v"].toArrow().to_pylist()
    assert sum(row["count"] for row in rows) == 50_000 and len(rows) == 3


NULL = pa.table({"id": pa.array([None, 1], pa.int64()), "city": ["a", "b"]})


def test_what_a_step_refuses_is_refused_with_the_same_words(spark: SparkSession, state: str) -> None:
    flow = dd.Flow()
    flow.output("o", flow.upserts("orders", NULL.schema, dd.Upsert("id")))
    spark_bridge.run(flow, {"orders": frame_of(spark, NULL.slice(1))}, 2, state=state)
    with flow.open() as engine, pytest.raises(NullKey) as local:
        engine.step({"orders": NULL}, time=1)
    with pytest.raises(NullKey) as told:
        spark_bridge.run(flow, {"orders": frame_of(spark, NULL)}, 2, state=state)
    assert (told.value.asked, told.value.fix) == (local.value.asked, local.value.fix)
    found = "the key ['id'] is null in 1 rows, "
    assert local.value.found == f"{found}first in row 0, counted from 0"
    assert told.value.found == f"{found}such as {{'id': None, 'city': 'a'}}"  # a task's number of a row says nothing
    ran = spark_bridge.run(flow, {"orders": frame_of(spark, NULL.slice(1))}, 2, state=state)
    with pytest.raises(KeyError, match="there is no output 'oo'; did you mean 'o'"):
        ran["oo"]
    assert "oo" not in ran and ran.get("oo") is None
    assert ran.epoch == 2 and ran.verdicts["noop"] == 1


def test_what_cannot_be_is_said_before_a_job_runs(spark: SparkSession, state: str, tmp_path: Path) -> None:
    flow, frame = city_flow(), frame_of(spark, orders_of(3))
    run = spark_bridge.run
    for more in ({"epoch": 3}, {"outputs": "x"}, {"memory": "1GB"}, {"close": True}):
        with raises(SpecError):
            run(flow, {"orders": frame}, **more)  # type: ignore[call-overload]
    with raises(SpecError):
        run(flow, {"orders": frame}, state=object())  # type: ignore[call-overload]
    with raises(WrongMode):
        run(flow, {"orders": frame}, state=state, close=True)
    with raises(SchemaMismatch):
        run(flow, {"orderz": frame}, state=state)
    with raises(SchemaMismatch):
        run(flow, {"orders": frame.drop("id")}, state=state)
    with raises(SchemaMismatch):
        run(flow, {"orders": frame.selectExpr("id", "'x' as at")}, state=state)
    with pytest.raises(NotArrow):
        run(flow, {"orders": orders_of(3)}, state=state)  # type: ignore[dict-item]
    stream = spark.readStream.schema(frame.schema).parquet(str(tmp_path))
    with raises(WrongMode):
        run(flow, {"orders": stream}, state=state)
    with raises(SpecError):
        run(flow, {"orders": frame}, 0, state=state)
    assert not os.path.exists(state)
    run(flow, {"orders": frame}, 1, state=state)
    other = dd.Flow()
    other.output("paid", other.upserts("orders", test_spark.ORDERS, dd.Upsert(["id", "city"])))
    with pytest.raises(PlanChanged):
        run(other, {"orders": frame}, state=state)


def test_an_executor_that_sees_another_state_says_so_before_it_works(tmp_path: Path) -> None:
    flow = city_flow()
    here, there = str(tmp_path / "here"), str(tmp_path / "there")
    with flow.open(there) as engine:
        engine.step({"orders": orders_of(3)}, time=1)
    coordinator = EpochDriver.open(flow, here, DriverOptions(partitions=1))
    sight = StateVersion(here, "owner", 0, coordinator.log.manifest_log.digest)
    check_state_visible(sight)
    router = Partitioner(flow, "orders", 1, Secret(1, 2))

    def never() -> Iterator[pa.RecordBatch]:
        raise AssertionError("rows were asked for")
        yield

    for store in (str(tmp_path / "nowhere"), there):
        with raises(StateRefused):
            list(RouteTask(router, sight._replace(store=store), ())(never()))
    coordinator.close()
    with flow.open(here) as engine:
        for time in range(3):
            engine.step({"orders": orders_of(3)}, time=time)
    check_state_visible(sight._replace(trust="group"))  # whose manifest is still there


def receipts_of(batches: list[pa.RecordBatch]) -> list[Receipt]:
    rows = [row for batch in batches for row in batch.to_pylist()]
    return [Receipt.from_json(row["payload"], "a test") for row in rows if row["what"] == RECEIPT]


def test_a_task_that_is_run_twice_or_left_half_way_is_harmless_and_a_cached_part_tells(state: str) -> None:
    flow = dd.Flow()
    flow.output("o", flow.upserts("orders", test_spark.ORDERS, dd.Upsert("id", order_by="at")))
    coordinator = EpochDriver.open(flow, state, DriverOptions(partitions=1))
    columns = {"orders": tuple(test_spark.ORDERS.names)}
    hits = []
    with flow.open() as engine:
        for epoch in range(1, 5):
            rows = orders_of(50, seed=epoch)
            router = Partitioner(flow, "orders", 1, Secret(*coordinator.manifest.secret))
            chunks = list(RouteTask(router, None, columns["orders"])(rows.to_batches()))
            start = coordinator.begin()
            task = EpochStageTask(coordinator.cut, start, 0, columns, "a test", CacheLimit(1 << 30 if epoch < 4 else 0))
            left = task(iter(chunks))
            next(left)
            left.close()  # type: ignore[attr-defined]
            told = receipts_of(list(task(iter(chunks)))) + receipts_of(list(task(iter(chunks))))
            hits.append([each.figures["hit"] for each in told])
            committed = coordinator.finish(start, told)
            step = engine.step({"orders": rows}, time=epoch)
            assert committed.outputs["o"].rows == step["o"].num_rows, epoch
            assert committed.counts == {name: n for name, n in step.verdicts.counts.items() if n}
        assert counted(dd.read(state, "o")) == counted(engine.read("o"))
    # Each epoch a cached part goes to the attempt that is left; those after it open the state anew, as it was.
    assert hits == [[0, 0]] * 4
    start = coordinator.begin()
    task = EpochStageTask(coordinator.cut, start, 0, columns, "a test", CacheLimit(1 << 30))
    chunks = list(RouteTask(router, None, columns["orders"])(orders_of(5, seed=9).to_batches()))
    coordinator.finish(start, receipts_of(list(task(iter(chunks)))))
    start = coordinator.begin()
    task = EpochStageTask(coordinator.cut, start, 0, columns, "a test", CacheLimit(1 << 30))
    assert receipts_of(list(task(iter(chunks))))[0].figures["hit"] == 1 and PARTS.nbytes > 0
    bad = orders_of(5).set_column(0, "id", pa.nulls(5, pa.int64()))
    coordinator.finish(start, receipts_of(list(task(iter(chunks)))))
    task = EpochStageTask(coordinator.cut, coordinator.begin(), 0, columns, "a test", CacheLimit(1 << 30))
    with pytest.raises(NullKey):
        list(task(RouteTask(router, None, columns["orders"])(bad.to_batches())))
    assert PARTS.nbytes == 0  # who failed is not kept
    coordinator.close()


@long_on_spark
def test_a_cache_that_is_too_small_keeps_what_fits_and_says_so_once(
    spark: SparkSession, state: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    flow = dd.Flow()
    flow.output("rows", flow.upserts("rows", {"id": int, "note": str}, dd.Upsert("id")))
    everywhere = spark.range(2000).selectExpr("id", "repeat('x', 100) as note").coalesce(1)
    size = spark_bridge.run(flow, {"rows": everywhere}, 20, state=state).figures["parts"]
    monkeypatch.setattr(part_cache, "SHARE", 0)  # parts of a few rows are opened at once

    def found(limit: str | int, times: int) -> int:
        ran = [spark_bridge.run(flow, {"rows": everywhere}, state=state, part_cache=limit) for _ in range(times)]
        assert all(each.figures["hit"] + each.figures["behind"] + each.figures["miss"] == 20 for each in ran)
        return sum(20 - each.figures["miss"] for each in ran[1:])

    assert found("auto", 3) > 0
    caplog.clear()
    monkeypatch.setattr(job, "WATCH", part_cache.CacheMissMonitor())
    # The scan comes round: the part that was used longest ago is the next that is asked for.
    assert found(size // 5, 7) > 0
    said = [each.getMessage() for each in caplog.records]
    assert len(said) == 1, said
    assert re.search(
        r"^rows: \d+ of 20 parts of the state were opened again in each of the last 3 epochs, \d+ % of the time of "
        r"tasks; "
        rf"they take .*, but a worker keeps only .* open \(part_cache={size // 5}\); pass part_cache='\d+MB' if ",
        said[0],
    )


def test_the_limit_of_a_cache_follows_the_settings_of_spark() -> None:
    def limit(given: str | int | None = "auto", **settings: str) -> CacheLimit:
        known = {f"spark.{name.replace('_', '.')}": value for name, value in settings.items()}
        return choose_cache_limit(given, SimpleNamespace(conf=known, sparkContext=None))

    assert limit("64MB", executor_cores="4") == CacheLimit(64_000_000)
    assert limit(None) == CacheLimit(0)
    assert limit(master="spark://host", executor_cores="4") == CacheLimit(None, 4)
    assert limit(master="yarn", executor_cores="2") == CacheLimit(None, 2, 384 << 20)
    assert limit(master="k8s://host", executor_cores="2", executor_memory="20g") == CacheLimit(None, 2, 2 << 30)
    more = {"master": "yarn", "executor_cores": "2", "executor_memoryOverhead": "1g"}
    assert limit(**more) == CacheLimit(None, 2, 1 << 30)
    assert limit(**more, executor_pyspark_memory="3g") == CacheLimit(None, 2, 3 << 30)
    with pytest.raises(SpecError):
        limit("much")


def test_the_memory_of_a_container_counts(tmp_path: Path) -> None:
    def written(name: str, text: str) -> None:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)

    assert measure_machine_memory().total >= measure_machine_memory().available > 0
    written("proc/meminfo", "MemTotal: 9 kB\nMemAvailable: 2097152 kB\nHugePages_Total: 0\n")
    assert measure_machine_memory(tmp_path).available == 2 << 30
    for folder, names in (
        ("memory/", ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")),
        ("", ("memory.max", "memory.current", "inactive_file")),
    ):
        written(f"sys/fs/cgroup/{folder}{names[0]}", f"{1 << 30}\n")
        written(f"sys/fs/cgroup/{folder}{names[1]}", f"{700 << 20}\n")
        written(f"sys/fs/cgroup/{folder}memory.stat", f"anon 5\n{names[2]} {100 << 20}\n")
        assert measure_machine_memory(tmp_path) == MachineMemory(1 << 30, (1 << 30) - (600 << 20))
    written("sys/fs/cgroup/memory.max", "max\n")
    assert measure_machine_memory(tmp_path) == measure_machine_memory(tmp_path)._replace(available=2 << 30)


def test_errors_come_back_as_what_they_were() -> None:
    with pytest.raises(NullKey) as caught, errors.attach_error_notes(), errors.attach_error_notes():
        raise NullKey('a "step"', "two\nlines", "mend: it; now")
    assert len(caught.value.__notes__) == 1
    found = errors.parse_error(f"nothing\n{caught.value.__notes__[0]}\nmore")
    assert isinstance(found, NullKey) and found.args == ('a "step"', "two\nlines", "mend: it; now")
    for text in (
        "",
        errors.MARK,
        errors.MARK + "[1]",
        errors.MARK + '["print", "", "", ""]',
        errors.MARK + '["DdflowError", 1, "", ""]',
    ):
        assert errors.parse_error(text) is None
    where = '{"input": "", "file": "", "offset": "", "column": "", "row": null}'
    sent = f'["DdflowError", [["a"], ["b ", ["Row", {{"number": 3}}]], ["c"]], {where}]'
    read = errors.parse_error(f"{errors.MARK}{sent} SQLSTATE: 1")
    assert type(read) is DdflowError and (str(read), read.row) == ("a: b row 3, counted from 0; c", 3)
    assert errors.parse_error(errors.MARK + sent.replace("Row", "print")) is None
