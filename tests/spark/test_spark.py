"""Test flows on real Spark beside the local engine: types, keys, ties, shuffles, settings, actions, and refusals."""

from __future__ import annotations

import datetime
import struct
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from decimal import Decimal
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from chance import long_on_spark, mid_on_spark
from messages import raises
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession, functions as F
from spark_session import assert_same, counted, frame_of, kept, locally, setting

import ddflow as dd
import spark_bridge
from ddflow.columns.declared import to_arrow_schema
from ddflow.errors import MissingExtra, NotArrow, SchemaMismatch, SpecError, WrongMode

pytestmark = pytest.mark.together("spark")

ORDERS = pa.schema({"id": pa.int64(), "city": pa.string(), "at": pa.int64(), "op": pa.string(), "amount": pa.float64()})
DELETES = dd.tombstone("op", "D")


def orders_of(n: int, keys: int = 40, seed: int = 7) -> pa.Table:
    """n events of some keys, with many equal orders, deletes, nulls and NaN; the same for the same arguments."""
    rows, state = [], seed
    for _ in range(n):
        state = (state * 6364136223846793005 + 1442695040888963407) % 2**64
        bits = state >> 20
        city = [None, "Bern", "Basel", "Chur"][bits % 4]
        amount = [0.0, -0.0, float("nan"), None, 1.5, 99.0][bits // 4 % 6]
        rows.append((bits // 24 % keys, city, bits // 1000 % 6, "D" if bits // 6000 % 5 == 0 else "U", amount))
    columns = list(zip(*rows, strict=True)) if rows else [[]] * 5
    return pa.table([pa.array(c, f.type) for c, f in zip(columns, ORDERS, strict=True)], schema=ORDERS)


def halves(table: pa.Table, parts: int = 3) -> list[pa.Table]:
    """A table cut into parts of unequal size, in order."""
    cuts = [table.num_rows * i * i // parts**2 for i in range(parts + 1)]
    return [table.slice(begin, end - begin) for begin, end in pairwise(cuts)]


def city_flow(spec: dd.Upsert | None = None) -> dd.Flow:
    """Every kind of shuffle: none, by group, by the count of another count, by nothing, by whole rows."""
    flow = dd.Flow()
    orders = flow.upserts("orders", ORDERS, spec or dd.Upsert("id", order_by="at", delete=DELETES, stale="mark"))
    paid = flow.output("paid", orders.filter("amount > 1"))
    by_city = flow.output("by_city", paid.project(["city"]).count())
    flow.output("sizes", by_city.count(by=["count"], name="n"))
    flow.output("all", orders.count(by=[]))
    flow.output("diff", orders.project(["city"]).concat(paid.project({"city": "upper(city)"}).negate()))
    return flow


@pytest.fixture(scope="module")
def orders(spark: SparkSession) -> DataFrame:
    return frame_of(spark, *halves(orders_of(400))).cache()


@mid_on_spark
@pytest.mark.parametrize("partitions", [1, 3, pytest.param(8, marks=pytest.mark.soak)])
def test_any_number_of_partitions_gives_the_rows_of_the_local_engine(orders: DataFrame, partitions: int) -> None:
    flow = city_flow()
    frames = spark_bridge.run(flow, {"orders": orders}, partitions=partitions)
    expected = locally(flow, {"orders": orders_of(400)})
    assert list(frames) == list(expected)
    names = frames if partitions == 3 else ["paid", "sizes"]
    assert_same({n: frames[n] for n in names}, {n: expected[n] for n in names})


@pytest.mark.parametrize("tie", ["last", "first", "greatest"])
def test_ties_across_partitions_go_by_arrival_as_they_do_locally(spark: SparkSession, tie: Any) -> None:
    table = orders_of(300, keys=9)
    flow = dd.Flow()
    spec = dd.Upsert("id", order_by="at", tie=tie, delete=DELETES)
    flow.output("out", flow.upserts("orders", ORDERS, spec))
    frames = spark_bridge.run(flow, {"orders": frame_of(spark, *halves(table, 4))}, partitions=2)
    assert_same(frames, locally(flow, {"orders": table}))


def test_without_an_order_the_last_to_arrive_wins(spark: SparkSession) -> None:
    table = orders_of(300, keys=9)
    flow = dd.Flow()
    flow.output("out", flow.upserts("orders", ORDERS, dd.Upsert("id", delete=DELETES)))
    frames = spark_bridge.run(flow, {"orders": frame_of(spark, *halves(table, 4))}, partitions=2)
    assert_same(frames, locally(flow, {"orders": table}))


def test_one_file_arrives_in_its_own_order_however_it_is_split(spark: SparkSession, tmp_path: Path) -> None:
    table = orders_of(3000, keys=9)
    pq.write_table(table, tmp_path / "orders.parquet", row_group_size=100, compression="none")
    flow = dd.Flow()
    flow.output("out", flow.upserts("orders", ORDERS, dd.Upsert("id", delete=DELETES)))
    with (
        setting(spark, "spark.sql.files.maxPartitionBytes", "9000"),
        setting(spark, "spark.sql.files.openCostInBytes", "1"),
    ):
        frame = spark.read.parquet(str(tmp_path / "orders.parquet"))
        assert frame.rdd.getNumPartitions() > 3
        assert_same(spark_bridge.run(flow, {"orders": frame}, partitions=2), locally(flow, {"orders": table}))


def test_one_key_with_nearly_all_events_is_one_key(spark: SparkSession) -> None:
    n = 30_000
    ids = pa.array([i if i % 100 == 0 else 1 for i in range(n)])
    table = pa.table({"id": ids, "v": [i % 7 for i in range(n)]})
    flow = dd.Flow()
    input = flow.upserts("s", table.schema, dd.Upsert("id"))
    flow.output("out", input)
    flow.output("by_v", input.count(by="v"))
    frames = spark_bridge.run(flow, {"s": frame_of(spark, *halves(table))}, partitions=3)
    assert_same(frames, locally(flow, {"s": table}))


# -- types and keys ---------------------------------------------------------------------------------------------------

SQL_TYPES = {
    "bool": "true",
    "byte": "1Y",
    "short": "300S",
    "int": "70000",
    "long": "5000000000L",
    "float": "float('1.5')",
    "double": "double('nan')",
    "decimal": "cast('12345678901234567890.123' as decimal(38,3))",
    "string": "'é'",
    "collated": "'B' collate UTF8_LCASE",
    "binary": "X'00ff'",
    "date": "date'1969-12-31'",
    "timestamp": "timestamp'2024-03-31 02:30:00.123456'",
    "ntz": "timestamp_ntz'1969-12-31 23:59:59.999999'",
    "interval": "interval '1 02:03:04.000005' day to second",
    "time": "time'23:59:59.999999'",
}
NESTED = {
    "array": "array(1, null, 3)",
    "map": "map('a', 1.5D, 'b', null)",
    "struct": "named_struct('x', array(timestamp'2024-01-01', null), 'Y', named_struct('z', if(id > 9, null, -0.0D)))",
}


@mid_on_spark
def test_every_type_that_spark_sends_goes_through_as_payload(spark: SparkSession) -> None:
    columns = [f"if(id % 3 = 0, null, {sql}) as `{name}`" for name, sql in (SQL_TYPES | NESTED).items()]
    frame = spark.range(0, 12, 1, 3).selectExpr("id % 5 as k", *columns)
    flow = dd.Flow()
    input = flow.upserts("s", frame, dd.Upsert("k"))
    flow.output("rows", input)
    flow.output("values", input.project(input.schema.names[1:]))
    frames = spark_bridge.run(flow, {"s": frame}, partitions=3)
    assert [f.dataType.simpleString() for f in frames["rows"].schema][:-2] == [
        "string" if f.name == "collated" else f.dataType.simpleString() for f in frame.schema
    ]
    assert_same(frames, locally(flow, {"s": frame.toArrow()}))


def test_a_column_of_spark_s_void_is_refused_when_the_flow_is_built(spark: SparkSession) -> None:
    frame = spark.range(2).selectExpr("id as k", "null as nothing")
    with raises(SpecError):
        dd.Flow().upserts("s", frame, dd.Upsert("k"))


def test_a_null_struct_has_no_children_whatever_they_are_declared_to_be(spark: SparkSession) -> None:
    sql = "named_struct('x', array(id), 'y', named_struct('at', timestamp'2024-01-01 00:00:00'))"
    frame = spark.range(4).selectExpr("id", f"if(id % 2 = 0, null, {sql}) as st", f"array({sql}) as l")
    assert not frame.schema["st"].dataType["y"].nullable
    at = datetime.datetime(2023, 12, 31, 18, 15, tzinfo=datetime.UTC)  # midnight in the session's zone
    rows = [{"x": [i], "y": {"at": at}} for i in range(4)]
    columns = {"id": range(4), "st": [None, rows[1], None, rows[3]], "l": [[row] for row in rows]}
    flow, schema = dd.Flow(), to_arrow_schema(frame)
    input = flow.upserts("s", schema, dd.Upsert("id"))
    flow.output("rows", input)
    flow.output("values", input.project(["st", "l"]))
    assert_same(spark_bridge.run(flow, {"s": frame}, partitions=2), locally(flow, {"s": pa.table(columns, schema)}))


@long_on_spark
def test_every_flat_type_that_spark_sends_is_a_key(spark: SparkSession) -> None:
    columns = [f"if(id % 2 = 0, null, {sql}) as `{name}`" for name, sql in SQL_TYPES.items()]
    frame = spark.range(0, 8, 1, 1).selectExpr("id", *columns)
    flow, schema = dd.Flow(), to_arrow_schema(frame)
    last = None
    for name in SQL_TYPES:
        input = flow.upserts(name, schema, dd.Upsert(name, null_key="keep"))
        row = input.project({"key": f"'{name}'", "is_null": f"`{name}` is null", "id": "id"})
        last = row if last is None else last.concat(row)
    assert last is not None
    flow.output("rows", last)
    frames = spark_bridge.run(flow, dict.fromkeys(SQL_TYPES, frame), partitions=3)
    assert_same(frames, locally(flow, dict.fromkeys(SQL_TYPES, frame.toArrow())))


@mid_on_spark
def test_types_that_a_flow_has_and_spark_has_not_travel_and_come_back(spark: SparkSession) -> None:
    rows = {
        "k": pa.array([2**64 - 1, 0, 2**64 - 1], pa.uint64()),
        "u8": pa.array([255, None, 0], pa.uint8()),
        "u32": pa.array([2**32 - 1, 1, 2], pa.uint32()),
        "fixed": pa.array([b"ab", b"cd", None], pa.binary(2)),
        "zone": pa.array([-1, 0, None], pa.timestamp("s", "Europe/Zurich")),
        "ns": pa.array([1000, 0, 0], pa.timestamp("ns")),
        "d64": pa.array([datetime.date(1969, 12, 31)] * 3, pa.date64()),
        "t": pa.array([7, 8, 9], pa.time32("s")),
        "large": pa.array(["x", "", None], pa.large_string()),
        "dur": pa.array([1, 2, 3], pa.duration("ms")),
        "dec": pa.array([Decimal("1.50")] * 3, pa.decimal256(20, 2)),
        "l": pa.array([[1], None, [2**64 - 1]], pa.large_list(pa.uint64())),
    }
    table = pa.table(rows)
    flow = dd.Flow()
    input = flow.upserts("s", table.schema, dd.Upsert("k"))
    flow.output("rows", input)
    flow.output("again", input.project([name for name in rows if name != "k"]))  # over a second shuffle
    flow.output("by_fixed", input.count(by=["fixed", "u8"]))
    frames = spark_bridge.run(flow, {"s": frame_of(spark, *halves(table, 2))}, partitions=3)
    assert_same(frames, locally(flow, {"s": table}))


@mid_on_spark
def test_keys_that_are_equal_meet_whatever_their_bits(spark: SparkSession) -> None:
    bits = (0x7FF8 << 48, 0xFFF8000000000123, 0x7FF0 << 48 | 1)
    nans = [struct.unpack("<d", struct.pack("<Q", word))[0] for word in bits]
    values = [0.0, -0.0, None, *nans, 1.5] * 4
    table = pa.table(
        {
            "f": pa.array(values),
            "g": pa.array([values[-1 - i] for i in range(28)], pa.float32()),
            "at": pa.array(range(28)),
        }
    )
    flow = dd.Flow()
    for name, key in (("f", ["f"]), ("g", ["g"]), ("fg", ["f", "g"])):
        input = flow.upserts(name, table.schema, dd.Upsert(key, order_by="at", null_key="keep"))
        flow.output(f"of {name}", input.project(["at"]))
    frame = frame_of(spark, *halves(table, 2))
    frames = spark_bridge.run(flow, {"f": frame, "g": frame, "fg": frame}, partitions=5)
    expected = locally(flow, {"f": table, "g": table, "fg": table})
    assert [expected[name].num_rows for name in expected] == [4, 4, 7]
    assert_same(frames, expected)


def test_events_without_a_key_are_dropped_where_the_spec_says_so(spark: SparkSession) -> None:
    table = pa.table({"a": [1, None, 1, None], "b": ["x", "x", None, None], "v": [1, 2, 3, 4]})
    flow = dd.Flow()
    flow.output("out", flow.upserts("s", table.schema, dd.Upsert(["a", "b"], null_key="drop")))
    assert_same(spark_bridge.run(flow, {"s": frame_of(spark, table)}, partitions=2), locally(flow, {"s": table}))


def test_columns_go_by_name_whatever_they_are_called(spark: SparkSession) -> None:
    table = pa.table({"a": [1, 2], "A": [3, 4], "a.b": [5, 6], "_arrival": [7, 8], "c0": [9, 9], "x`y z": ["p", "q"]})
    flow = dd.Flow()
    input = flow.upserts("s", table.schema, dd.Upsert(["a.b", "A"]))
    flow.output("rows", input)
    flow.output("less", input.project(["x`y z", "A", "a", "_arrival"]))
    turned = frame_of(spark, table.select(list(reversed(table.column_names))))
    assert_same(spark_bridge.run(flow, {"s": turned}, partitions=2), locally(flow, {"s": table}))


def test_a_narrower_column_is_widened_and_a_missing_one_is_null(spark: SparkSession) -> None:
    table = pa.table({"id": pa.array([1, 2], pa.int8()), "city": ["Bern", "Chur"]})
    flow = dd.Flow()
    flow.output("out", flow.upserts("orders", ORDERS, dd.Upsert("id")))
    frames = spark_bridge.run(flow, {"orders": frame_of(spark, table)}, partitions=2)
    assert_same(frames, locally(flow, {"orders": table}))


# -- modes and outputs ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "kind",
    [
        pa.int64(),
        pa.timestamp("s"),
        *(pytest.param(kind, marks=pytest.mark.soak) for kind in (pa.date32(), pa.timestamp("us", "UTC"))),
    ],
)
def test_hold_back_mode_closes_the_input_and_keeps_the_events_times(spark: SparkSession, kind: pa.DataType) -> None:
    events = orders_of(200, keys=8)
    width = pa.int32() if kind == pa.date32() else pa.int64()
    times = events.column("at").cast(width).cast(kind)
    table = events.set_column(2, "at", times).append_column("o", pa.array([i % 3 for i in range(200)]))
    flow = dd.Flow()
    late: dict[str, Any] = {"late": "advance", "stale": "side", "lateness": 1}
    input = flow.upserts(
        "s", table.schema, dd.Upsert("id", time="at", order_by="o", tie="first", delete=DELETES, **late)
    )
    flow.output("rows", input)
    flow.output("by_city", input.project(["city"]).count())
    flow.output("cities", input.project(["city"]))
    frames = spark_bridge.run(flow, {"s": frame_of(spark, *halves(table))}, partitions=2)
    expected = locally(flow, {"s": table})
    assert len(set(expected["by_city"].column("_time").to_pylist())) == 6
    assert_same(frames, expected)


@mid_on_spark
def test_inputs_meet_in_one_count(spark: SparkSession) -> None:
    a, b = orders_of(150, seed=1), orders_of(150, seed=2)
    flow = dd.Flow()
    left, right = (flow.upserts(name, ORDERS, dd.Upsert("id", order_by="at", delete=DELETES)) for name in "ab")
    only = left.project(["city", "amount"]).concat(right.project(["city", "amount"]).negate())
    flow.output("only", only)
    flow.output("n", only.consolidate().filter("city <> 'Chur'").count(by="city"))
    flow.output("twice", left.concat(left, right).count(by=["id"]))
    frames = spark_bridge.run(flow, {"a": frame_of(spark, *halves(a)), "b": frame_of(spark, b)}, partitions=3)
    assert_same(frames, locally(flow, {"a": a, "b": b}))


def test_stale_events_have_an_output_of_their_own(spark: SparkSession) -> None:
    table = orders_of(60, keys=5)
    for stale in ("mark", "side"):
        flow = dd.Flow()
        flow.output("out", flow.upserts("orders", ORDERS, dd.Upsert("id", order_by="at", delete=DELETES, stale=stale)))
        frames = spark_bridge.run(flow, {"orders": frame_of(spark, *halves(table))}, partitions=2)
        assert list(frames) == ["out", "orders.events" if stale == "mark" else "orders.stale"]
        assert_same(frames, locally(flow, {"orders": table}))


def test_expressions_of_all_three_kinds_travel_to_the_workers(spark: SparkSession) -> None:
    table, floor = orders_of(200), 2
    flow = dd.Flow()
    input = flow.upserts("orders", ORDERS, dd.Upsert("id", order_by="at", delete="op = 'D'", where="at > 0"))
    late = input.filter(pa.compute.field("at") >= floor).filter(lambda b: pa.compute.less(b.column("at"), floor + 3))
    flow.output("late", late.project({"city": lambda b: b.column("city").fill_null("none"), "twice": "at * 2"}))
    frames = spark_bridge.run(flow, {"orders": frame_of(spark, *halves(table))}, partitions=2)
    assert_same(frames, locally(flow, {"orders": table}))


# -- empty input, settings, actions -----------------------------------------------------------------------------------


@long_on_spark
def test_empty_partitions_and_empty_frames_give_what_there_is(spark: SparkSession, orders: DataFrame) -> None:
    flow, none, few = city_flow(), orders_of(0), orders_of(3, keys=2)
    expected = locally(flow, {"orders": few})
    assert_same(spark_bridge.run(flow, {"orders": frame_of(spark, none, few, none)}, partitions=5), expected)
    for empty in (orders.filter("id < 0"), orders.limit(0), spark.createDataFrame([], orders.schema)):
        frames = spark_bridge.run(flow, {"orders": empty}, partitions=2)
        assert [frames[name].count() for name in ("paid", "all", "orders.events")] == [0, 0, 0]


ROWS_AT_ONCE = "spark.sql.execution.arrow.maxRecordsPerBatch"
SOME = {"spark.sql.adaptive.enabled": "false", ROWS_AT_ONCE: "7", "spark.sql.caseSensitive": "true"}
OTHERS = {
    ROWS_AT_ONCE: "0",
    "spark.sql.execution.arrow.useLargeVarTypes": "true",
    "spark.sql.timestampType": "TIMESTAMP_NTZ",
}
EACH = [pytest.param({name: value}, marks=pytest.mark.soak) for some in (SOME, OTHERS) for name, value in some.items()]


@pytest.mark.parametrize("settings", [SOME, OTHERS, *EACH], ids=lambda settings: ", ".join(settings))
def test_settings_of_the_session_change_nothing(
    spark: SparkSession, orders: DataFrame, settings: dict[str, str]
) -> None:
    flow, expected = city_flow(), locally(city_flow(), {"orders": orders_of(400)})
    with ExitStack() as stack:
        for name, value in settings.items():
            stack.enter_context(setting(spark, name, value))
        frames = spark_bridge.run(flow, {"orders": orders}, partitions=2)
        few = ("sizes", "diff")
        assert_same({n: frames[n] for n in few}, {n: expected[n] for n in few})


@mid_on_spark
def test_shuffles_have_the_partitions_asked_for_with_adaptive_execution_too(orders: DataFrame) -> None:
    frames = spark_bridge.run(city_flow(), {"orders": orders}, partitions=5)
    where = [set(), set()]  # type: list[set[int]]
    for seen, name in zip(where, ("paid", "by_city"), strict=True):
        assert frames[name].rdd.getNumPartitions() == 5
        seen |= {row[0] for row in frames[name].select(F.spark_partition_id()).distinct().collect()}
    assert len(where[0]) > 2
    default = spark_bridge.run(city_flow(), {"orders": orders})
    assert default["paid"].rdd.getNumPartitions() == 2  # what the session's settings say


@mid_on_spark
def test_a_frame_may_be_read_in_part_and_again(orders: DataFrame) -> None:
    flow = city_flow()
    frames = spark_bridge.run(flow, {"orders": orders}, partitions=2)
    expected = counted(locally(flow, {"orders": orders_of(400)})["paid"])
    assert len(frames["paid"].take(1)) == 1
    assert frames["paid"].limit(2).count() == 2
    for _ in range(2):
        assert counted(frames["paid"].toArrow()) == expected
    ordered = frames["paid"].orderBy("id").toArrow()
    assert counted(ordered) == expected
    frames["paid"].write.format("noop").mode("overwrite").save()


def test_outputs_may_be_joined_and_their_tasks_too(orders: DataFrame) -> None:
    flow = city_flow()
    frames = spark_bridge.run(flow, {"orders": orders}, partitions=3)
    expected = {name: counted(table) for name, table in locally(flow, {"orders": orders_of(400)}).items()}
    assert counted(frames["paid"].coalesce(1).toArrow()) == expected["paid"]
    both = frames["by_city"].union(frames["by_city"])
    assert counted(both.toArrow()) == expected["by_city"] + expected["by_city"]
    with setting(orders.sparkSession, "spark.sql.adaptive.enabled", "false"):
        cities, sizes = (frames[name].selectExpr("_diff as n") for name in ("by_city", "sizes"))
        planned = cities.union(sizes)._jdf.queryExecution().executedPlan().toString()
    assert "ReusedExchange" in planned  # what both depend on is computed once


@mid_on_spark
def test_what_spark_computed_before_and_computes_after_fits(spark: SparkSession, orders: DataFrame) -> None:
    flow = city_flow()
    latest = orders.selectExpr("*", "max(at) over (partition by id) as top").where("at = top").drop("top")
    frames = spark_bridge.run(flow, {"orders": latest.orderBy("amount", "id", "at")}, partitions=2)
    total = frames["by_city"].groupBy("city").agg(F.expr("sum(count * _diff)").alias("n"))
    now = frames["paid"].groupBy("city").agg(F.expr("sum(_diff)").alias("n"))
    assert sorted(total.collect(), key=str) == sorted(now.collect(), key=str)


# -- the raw stage ----------------------------------------------------------------------------------------------------


def test_the_stage_by_hand_is_the_same_as_a_run(spark: SparkSession) -> None:
    table = orders_of(300).append_column("n", pa.array(range(300)))
    flow = dd.Flow()
    input = flow.upserts("orders", table.schema, dd.Upsert("id", order_by="at", seq="n", delete=DELETES))
    flow.output("paid", input.filter("amount > 1").project({"id": "id", "where": "city"}))
    frame = frame_of(spark, *halves(table)).select("n", "amount", "op", "at", "city", "id")
    by_hand = frame.repartition(4, "id").mapInArrow(spark_bridge.stage(flow), schema=spark_bridge.schema(flow))
    expected = locally(flow, {"orders": table})
    assert_same({"paid": by_hand}, expected)
    assert_same(spark_bridge.run(flow, {"orders": frame}, partitions=4), expected)


# -- what is refused --------------------------------------------------------------------------------------------------


@pytest.fixture
def no_jobs(spark: SparkSession) -> Iterator[None]:
    """Fails a test in which a job ran."""
    spark.sparkContext.setJobGroup("refused", "nothing may run here")
    yield
    assert list(spark.sparkContext.statusTracker().getJobIdsForGroup("refused")) == []
    spark.sparkContext.setLocalProperty("spark.jobGroup.id", None)


def refused(flow: dd.Flow, frames: dict[str, Any], error: type[Exception], match: str, partitions: Any = 2) -> None:
    with pytest.raises(error, match=match):
        spark_bridge.run(flow, frames, partitions=partitions)


def test_a_run_without_a_state_runs_no_job_itself(no_jobs: None, orders: DataFrame) -> None:
    assert spark_bridge.run(city_flow(), {"orders": orders}, partitions=2)["paid"].columns[-2:] == ["_time", "_diff"]


def test_a_run_on_one_machine_has_no_more_partitions_than_cores(spark: SparkSession, orders: DataFrame) -> None:
    with kept(spark):
        spark.conf.set("spark.sql.shuffle.partitions", "200")
        frame = spark_bridge.run(city_flow(), {"orders": orders})["paid"]
        assert frame.rdd.getNumPartitions() == spark.sparkContext.defaultParallelism == 2
        spark.conf.set("spark.sql.shuffle.partitions", "1")
        assert spark_bridge.run(city_flow(), {"orders": orders})["paid"].rdd.getNumPartitions() == 1


def test_inputs_and_frames_must_belong_together(no_jobs: None, orders: DataFrame) -> None:
    flow = city_flow()
    refused(flow, {}, SchemaMismatch, "rows for 'orders': there is no DataFrame among")
    refused(flow, {"orders": orders, "order": orders}, SchemaMismatch, "no such input; did you mean 'orders'")
    refused(flow, {"orders": orders_of(1)}, NotArrow, "Table is not a Spark DataFrame")
    flow = dd.Flow()
    flow.upserts("orders", ORDERS, dd.Upsert("id"))
    refused(flow, {"orders": orders}, SpecError, "1 inputs and 0 outputs")


def test_what_is_no_dataframe_is_told_what_to_write(no_jobs: None, spark: SparkSession, tmp_path: Path) -> None:
    flow = city_flow()
    frames: list[tuple[Any, str]] = [
        ("sales.orders", r"rows for 'orders': 'sales.orders' is text; pass spark.table\('sales.orders'\)"),
        (spark.range(3).pandas_api(), r"it is a pandas-on-Spark frame; pass frame.to_spark\(\)"),
        (orders_of(1).to_pandas(), r"DataFrame is not a Spark DataFrame; convert it with spark.createDataFrame\(...\)"),
        (orders_of(1), "Table is not a Spark DataFrame; convert it with spark.createDataFrame"),
        (None, "NoneType is not a Spark DataFrame; pass a DataFrame"),
    ]
    for frame, match in frames:
        refused(flow, {"orders": frame}, NotArrow, match)
        for run in (spark_bridge.run, spark_bridge.stream):
            with pytest.raises(NotArrow, match=match):
                run(flow, {"orders": frame}, state=str(tmp_path / "state"))
    swapped: tuple[Any, Any] = ({}, flow)
    two = city_flow()
    two.upserts("more", ORDERS, dd.Upsert("id"))
    for arguments in (swapped, (two, spark.range(3)), (two, "orders")):
        refused(*arguments, SpecError, "pass the dd.Flow, then {input: DataFrame}")
    refused(two, spark.range(3), SpecError, r"{input: DataFrame}, for its inputs \['orders', 'more'\]")
    refused(flow, "orders", NotArrow, "'orders' is text; pass spark.table")
    assert not (tmp_path / "state").exists()


def test_a_stream_is_not_run_as_a_batch(no_jobs: None, spark: SparkSession) -> None:
    flow = dd.Flow()
    stream = spark.readStream.format("rate").load()
    flow.output("out", flow.upserts("s", stream, dd.Upsert("value")))
    refused(flow, {"s": stream}, WrongMode, "is a stream.*pass it to spark_bridge.stream")


@mid_on_spark
def test_values_are_cast_where_they_fit_and_one_input_needs_no_name(spark: SparkSession, tmp_path: Path) -> None:
    """Whole numbers in a column of doubles, instants in one of seconds; a value that does not fit stops the job."""
    schema = {"id": pa.int32(), "amount": float, "at": pa.timestamp("s", "Europe/Zurich")}
    flow = dd.Flow()
    flow.output("rows", flow.upserts("orders", schema, dd.Upsert("id", tie="greatest", order_by="at")))
    moment = "timestamp'2024-02-29 12:00:00 UTC' + make_dt_interval(0, 0, 0, {})"
    fits = spark.sql(f"select id, id * 2 as amount, {moment.format('id')} as at from range(5)")
    expected = [(i, 2.0 * i) for i in range(5)]
    ran = spark_bridge.run(flow, fits, 2, state=str(tmp_path / "state"))
    for rows in (spark_bridge.run(flow, fits, 2)["rows"], ran["rows"]):
        assert sorted((row["id"], row["amount"]) for row in rows.collect()) == expected
    for column, why in (
        ("id * 1.5d as id, 1 as amount", "1.5 .double., which does not fit int32"),
        ("id, 9007199254740993 as amount", "9007199254740993 .int64., which does not fit double"),
    ):
        odd = spark.sql(f"select {column}, {moment.format(0)} as at from range(1, 3)")
        with pytest.raises(Exception, match=f"row 0 holds {why}"):
            spark_bridge.run(flow, odd, 1)["rows"].collect()


@pytest.mark.parametrize(
    ("columns", "match"),
    [
        ("city, at", r"the column 'id' is missing"),
        ("id, city as town", r"a column 'town' that was not declared"),
        ("id, id as ID", r"a column 'ID' that was not declared; did you mean 'id'"),
        ("id, city, city", r"the column 'city' occurs more than once"),
        ("id, city as amount", r"column 'amount' .* it is string, but double is declared"),
        (
            "cast(id as string)",
            r"column 'id' .* it is string, but int64 is declared .in Spark string, declared bigint.;",
        ),
        ("id, parse_json('1') as city", r"column 'city' of a DataFrame: it is variant"),
        ("id, array(interval '1' month) as at", r"column 'at' of a DataFrame: it is array<interval month>"),
    ],
)
def test_columns_that_do_not_fit_are_named_before_a_job_runs(
    no_jobs: None, orders: DataFrame, columns: str, match: str
) -> None:
    frame = orders.selectExpr(*columns.split(", "))
    refused(city_flow(), {"orders": frame}, SchemaMismatch, match)


def test_an_output_that_spark_has_no_type_for_is_named_before_a_job_runs(no_jobs: None, orders: DataFrame) -> None:
    flow = dd.Flow()
    input = flow.upserts("orders", ORDERS, dd.Upsert("id"))
    flow.output("fine", input)
    flow.output("odd", input.project({"half": lambda batch: batch.column("amount").cast(pa.float16())}).count())
    refused(flow, {"orders": orders}, SpecError, r"column 'half' of output 'odd'.*halffloat")


def test_without_pandas_the_error_says_what_to_install(
    no_jobs: None, orders: DataFrame, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    refused(city_flow(), {"orders": orders}, MissingExtra, r"[Pp]andas.*pip install 'ddflow\[spark\]'")


@pytest.mark.parametrize("partitions", [0, -1, True, 2.0, "8"])
def test_a_number_of_partitions_is_a_whole_number_above_zero(no_jobs: None, orders: DataFrame, partitions: Any) -> None:
    refused(city_flow(), {"orders": orders}, SpecError, "is not a number of partitions", partitions)


@pytest.mark.parametrize(
    ("spec", "match"),
    [
        (dd.Upsert("city", order_by="at"), r"NullKey.*the key \['city'\] is null"),
        (dd.Upsert("id", order_by="at", tie="error"), r"TieRefused.*has two events of order"),
    ],
)
def test_what_only_rows_can_tell_fails_the_job_with_our_message(orders: DataFrame, spec: dd.Upsert, match: str) -> None:
    flow = dd.Flow()
    flow.output("out", flow.upserts("orders", ORDERS, spec))
    frames = spark_bridge.run(flow, {"orders": orders}, partitions=2)
    with pytest.raises(PySparkException, match=match):
        frames["out"].collect()
