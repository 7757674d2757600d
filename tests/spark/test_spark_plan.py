"""Test flows cut into stages, type conversion to Spark and back, and direct task calls, all without a session."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from chance import mid_on_spark
from doors import TYPES, plain
from messages import raises
from pyspark.sql import SparkSession, types as T
from spark_session import counted, locally
from stages_by_hand import by_hand

import ddflow as dd
import spark_bridge
from ddflow.columns.hashing import Secret
from ddflow.errors import Misrouted, NullKey, SchemaMismatch, SpecError, TieRefused
from ddflow.partitions.stages import cut_stages
from ddflow.partitions.step import compute_stage
from spark_bridge.job import make_partitioner
from spark_bridge.tasks import BATCH_ROWS, SingleStageTask, StatelessStageTask
from spark_bridge.types import arrow_schema, find_transfer_type, from_spark_types, make_nullable, to_spark_types

ORDERS = {"id": pa.int64(), "city": pa.string(), "at": pa.int64(), "paid": pa.bool_()}
ROWS = pa.table(
    {
        "id": [1, 2, 1, 3],
        "city": ["Bern", "Bern", "Basel", None],
        "at": [1, 1, 2, 1],
        "paid": [True, False, True, None],
    },
    pa.schema(list(ORDERS.items())),
)
SECRET = Secret(3, 4)


def flow_of(spec: dd.Upsert | None = None) -> tuple[dd.Flow, dd.Collection]:
    flow = dd.Flow()
    return flow, flow.upserts("orders", ORDERS, spec or dd.Upsert("id", order_by="at"))


def shuffles(flow: dd.Flow) -> list[tuple[str, ...]]:
    """By what rows are brought together after the shuffle by key."""
    return [each.by for each in cut_stages(flow).exchanges]


def batches(table: pa.Table, rows: int = 2) -> list[pa.RecordBatch]:
    return table.to_batches(max_chunksize=rows)


def test_a_filter_of_an_input_is_one_stage() -> None:
    flow, orders = flow_of()
    flow.output("paid", orders.filter("paid"))
    assert (shuffles(flow), cut_stages(flow).stages) == ([], 1)


def test_a_count_by_the_key_needs_no_second_shuffle_whatever_the_key_is_called_by_then() -> None:
    flow, orders = flow_of()
    flow.output("n", orders.project({"order": "id", "city": "city"}).count(by=["city", "order"]).project(["order"]))
    assert shuffles(flow) == []


def test_a_key_that_was_computed_anew_is_no_longer_the_key() -> None:
    flow, orders = flow_of()
    flow.output("n", orders.project({"id": "id + 0"}).count())
    assert shuffles(flow) == [("id",)]


def test_a_projection_that_keeps_the_key_is_summed_where_it_is() -> None:
    flow, orders = flow_of()
    flow.output("ids", orders.project(["id"]))
    assert shuffles(flow) == []


def test_a_projection_that_drops_the_key_meets_again_by_whole_rows() -> None:
    flow, orders = flow_of()
    flow.output("cities", orders.project(["city", "paid"]))
    assert shuffles(flow) == [("city", "paid")]


def test_a_count_of_counts_takes_a_shuffle_each_and_shares_the_first() -> None:
    flow, orders = flow_of()
    cities = flow.output("cities", orders.project(["city"]).count())
    flow.output("sizes", cities.count(by=["count"], name="n"))
    assert shuffles(flow) == [("city",), ("count",)]


def test_a_count_of_everything_brings_one_update_a_time_together() -> None:
    flow, orders = flow_of()
    flow.output("n", orders.count(by=[]))
    assert shuffles(flow) == [()]
    (sums,) = compute_stage(cut_stages(flow), 0, SECRET, {"orders": ROWS}, {}).sent.values()
    assert sums.column("_diff").to_pylist() == [3]
    assert plain(by_hand(flow, {"orders": [ROWS]}, 3)["n"]) == [(3, 0, 1)]


def test_a_column_that_is_called_all_is_not_the_count_of_everything() -> None:
    flow = dd.Flow()
    input = flow.upserts("s", {"k": pa.int64(), "all": pa.string()}, dd.Upsert("k"))
    named = input.project(["all"])
    flow.output("each", named.count(by=["all"]))
    flow.output("n", named.count(by=[]))
    assert [each.schema.field(0).type for each in cut_stages(flow).exchanges] == [pa.string(), pa.bool_()]
    rows = pa.table({"k": [1, 2, 3], "all": ["a", "b", "a"]})
    assert_by_hand(flow, {"s": [rows]})


def test_each_part_of_a_concat_goes_its_own_way_to_the_next_shuffle() -> None:
    flow = dd.Flow()
    a, b = (flow.upserts(name, ORDERS, dd.Upsert("id")) for name in "ab")
    both = a.filter("paid").concat(b.negate(), a).project(["city"]).filter("city <> 'Bern'")
    flow.output("by_city", both.count())
    assert shuffles(flow) == [("city",)]
    assert_by_hand(flow, {"a": [ROWS], "b": [ROWS.slice(2), ROWS.slice(0, 2)]})


def test_parts_that_call_the_key_differently_do_not_count_as_together() -> None:
    flow = dd.Flow()
    input = flow.upserts("s", {"a": pa.int64(), "b": pa.int64()}, dd.Upsert(["a", "b"]))
    turned = input.project({"a": "b", "b": "a"})
    flow.output("n", input.concat(turned).count(by=["a", "b"]))
    assert shuffles(flow) == [("a", "b")]


def test_an_output_alone_takes_no_stage_that_only_others_need() -> None:
    flow, orders = flow_of(dd.Upsert("id", order_by="at", stale="mark"))
    paid = flow.output("paid", orders.filter("paid"))
    cities = flow.output("cities", paid.project(["city"]).count())
    flow.output("sizes", cities.count(by=["count"], name="n"))
    stages = {name: cut_stages(flow, only=name).stages for name in (*flow.outputs, *flow.side_outputs())}
    assert stages == {"paid": 1, "cities": 2, "sizes": 3, "orders.events": 1}
    assert_by_hand(flow, {"orders": [ROWS.slice(0, 1), ROWS.slice(1)]})


def test_a_flow_without_outputs_is_refused() -> None:
    flow, _ = flow_of()
    for only in (None, "out"):
        with raises(SpecError):
            cut_stages(flow, only)


def assert_by_hand(flow: dd.Flow, given: dict[str, list[pa.Table]]) -> None:
    """Three partitions give what the local engine gives."""
    found = by_hand(flow, given, 3)
    expected = locally(flow, {name: pa.concat_tables(tables) for name, tables in given.items()})
    assert list(found) == list(expected)
    for name, table in expected.items():
        assert counted(from_spark_types(found[name], make_nullable(table.schema), name)) == counted(table), name


# -- types ------------------------------------------------------------------------------------------------------------

MORE = {
    "uint16": pa.uint16(),
    "uint32": pa.uint32(),
    "date64": pa.date64(),
    "time32": pa.time32("s"),
    "ns": pa.timestamp("ns"),
    "zone": pa.timestamp("us", "Asia/Kathmandu"),
    "null": pa.null(),
    "large_list": pa.large_list(pa.uint64()),
    "fixed_list": pa.list_(pa.binary(2), 1),
    "map": pa.map_(pa.string(), pa.timestamp("s")),
    "wide": pa.decimal256(38, 3),
    "struct": pa.struct([pa.field("x", pa.uint8(), nullable=False), pa.field("y", pa.list_(pa.date64()))]),
}
VALUES: dict[str, list[Any]] = {
    "uint64": [2**64 - 1, None],
    "uint8": [255, 0],
    "fixed(3)": [b"abc", None],
    "timestamp[s]": [-1, 10**9],
    "large_list": [[2**64 - 1, None], []],
    "fixed_list": [[b"ab"], None],
    "map": [[("a", 1), ("b", None)], []],
    "struct": [{"x": 255, "y": [None]}, {"x": 0, "y": None}],
    "null": [None, None],
    "wide": [None, 10],
    "zone": [0, None],
    "ns": [1000, None],
    "date64": [None, None],
    "time32": [7, None],
    "uint32": [2**32 - 1, 0],
}


@pytest.mark.parametrize("name", [*TYPES, *MORE])
def test_what_travels_comes_back_as_it_was(name: str) -> None:
    kind = (TYPES | MORE)[name]
    values = pa.array(VALUES[name], kind) if name in VALUES else pa.nulls(2, kind)
    there = to_spark_types(pa.record_batch({"x": values}), "a test")
    assert there.schema.field(0).type == find_transfer_type(kind)
    back = from_spark_types(pa.table(there), make_nullable(pa.schema({"x": kind})), "a test")
    assert back.column(0).combine_chunks().cast(kind).equals(values)


@pytest.mark.parametrize(
    "kind", [pa.float16(), pa.decimal256(39, 0), pa.decimal128(3, -2), pa.month_day_nano_interval()]
)
def test_a_type_that_spark_lacks_is_refused_by_its_column(kind: pa.DataType) -> None:
    flow = dd.Flow()
    flow.output("out", flow.upserts("s", {"k": pa.int64(), "odd": kind}, dd.Upsert("k")))
    with raises(SpecError):
        spark_bridge.schema(flow)


def test_a_value_that_does_not_fit_its_column_is_refused_and_never_rounded() -> None:
    with raises(SchemaMismatch):
        to_spark_types(pa.record_batch({"at": pa.array([1], pa.timestamp("ns"))}), "output 'x'")
    table = pa.table({"n": pa.array([300], pa.int16())})
    with raises(SchemaMismatch):
        from_spark_types(table, pa.schema({"n": pa.uint8()}), "rows for 's'")


@mid_on_spark
@pytest.mark.parametrize(
    "kind",
    [
        T.VariantType(),
        T.ArrayType(T.YearMonthIntervalType()),
        T.MapType(T.StringType(), T.CalendarIntervalType()),
        T.StructType([T.StructField("v", T.VariantType())]),
    ],
)
def test_a_column_that_spark_cannot_hand_over_is_named(spark: SparkSession, kind: T.DataType) -> None:
    frame = spark.createDataFrame([], T.StructType([T.StructField("k", T.LongType()), T.StructField("odd", kind)]))
    with raises(SchemaMismatch):
        arrow_schema(frame)


def test_the_schema_of_a_flow_is_in_sparks_types() -> None:
    flow = dd.Flow()
    kinds = {"k": pa.uint64(), "at": pa.timestamp("s", "UTC"), "v": pa.dictionary(pa.int8(), pa.string())}
    flow.output("out", flow.upserts("s", kinds, dd.Upsert("k", time="at")))
    shown = "struct<k:decimal(20,0),v:string,_time:timestamp,_diff:bigint>"
    assert spark_bridge.schema(flow).simpleString() == shown


# -- tasks ------------------------------------------------------------------------------------------------------------


def only_stage(flow: dd.Flow) -> SingleStageTask:
    stages = cut_stages(flow)
    assert stages.stages == 1
    return SingleStageTask(stages, SECRET)


def test_a_stage_gives_what_the_engine_gives_and_gives_it_again() -> None:
    flow, orders = flow_of()
    flow.output("paid", orders.filter("paid"))
    task = only_stage(flow)
    for _ in range(2):
        out = pa.Table.from_batches(task(iter(batches(ROWS))))
        assert counted(out) == counted(locally(flow, {"orders": ROWS})["paid"])


def test_a_partition_without_rows_gives_none() -> None:
    flow, orders = flow_of()
    flow.output("n", orders.count(by="id"))
    empty = ROWS.slice(0, 0).to_batches()
    assert list(only_stage(flow)(iter([]))) == []
    assert list(only_stage(flow)(iter(empty))) == []


def test_a_stage_that_is_not_read_to_its_end_is_harmless() -> None:
    flow, orders = flow_of()
    flow.output("orders", orders)
    many = pa.table({"id": range(3 * BATCH_ROWS)}).append_column("at", pa.array(range(3 * BATCH_ROWS)))
    task = only_stage(flow)
    started = task(iter([many.to_batches()[0]]))
    assert next(started).num_rows == BATCH_ROWS
    started.close()  # type: ignore[attr-defined]
    assert sum(batch.num_rows for batch in task(iter(many.to_batches()))) == 3 * BATCH_ROWS


@mid_on_spark
def test_batches_that_are_yielded_are_bounded_in_bytes_too() -> None:
    flow = dd.Flow()
    flow.output("out", flow.upserts("s", {"k": pa.int64(), "v": pa.string()}, dd.Upsert("k")))
    long = pa.record_batch({"k": range(200), "v": ["x" * 1_000_000] * 200})
    sizes = [batch.num_rows for batch in only_stage(flow)(iter([long]))]
    assert sum(sizes) == 200
    assert max(sizes) <= 40


def test_columns_are_matched_by_name_in_any_order() -> None:
    flow, orders = flow_of()
    flow.output("orders", orders)
    turned = ROWS.select(["paid", "at", "city", "id"])
    out = pa.Table.from_batches(only_stage(flow)(batches(turned)))
    assert out.column_names == ["id", "city", "at", "paid", "_time", "_diff"]
    assert counted(out) == counted(locally(flow, {"orders": ROWS})["orders"])


def test_functions_and_arrow_expressions_are_computed_in_the_task() -> None:
    flow, orders = flow_of()
    late = orders.filter(lambda batch: pc.greater(batch.column("at"), 1)).filter(pc.field("id") < 3)
    flow.output("late", late.project({"twice": lambda batch: pc.multiply(batch.column("id"), 2), "id": "id"}))
    out = pa.Table.from_batches(only_stage(flow)(batches(ROWS)))
    assert plain(out) == [(2, 1, 0, 1)]


@pytest.mark.parametrize(
    ("error", "spec", "rows"),
    [
        (NullKey, dd.Upsert("id"), {"id": [None]}),
        (TieRefused, dd.Upsert("id", order_by="at", tie="error"), {"id": [1, 1], "at": [1, 1], "city": ["a", "b"]}),
        (SchemaMismatch, dd.Upsert("id"), {"id": ["one"]}),
        (SchemaMismatch, dd.Upsert("id"), {"id": [1], "town": ["Bern"]}),
    ],
)
def test_a_stage_refuses_what_a_step_refuses(error: type[Exception], spec: dd.Upsert, rows: dict[str, Any]) -> None:
    flow, orders = flow_of(spec)
    flow.output("orders", orders)
    kinds = {name: ORDERS.get(name) for name in rows if error is not SchemaMismatch}
    table = pa.table(rows, pa.schema(list(kinds.items()))) if kinds else pa.table(rows)
    with pytest.raises(error):
        list(only_stage(flow)(batches(table)))


def test_partial_sums_meet_in_the_partition_of_their_row() -> None:
    flow = dd.Flow()
    input = flow.upserts("s", {"k": pa.int64(), "f": pa.float64()}, dd.Upsert("k", null_key="keep"))
    flow.output("by_f", input.count(by="f"))
    values = [0.0, -0.0, float("nan"), -float("nan"), None, 1.5, 2.5] * 3
    events = pa.table({"k": range(21), "f": values})
    (sums,) = compute_stage(cut_stages(flow), 0, SECRET, {"s": events.slice(0, 7)}, {}).sent.values()
    assert Counter(sums.column("_diff").to_pylist()) == {2: 2, 1: 3}
    expected = pa.table({"f": [0.0, float("nan"), None, 1.5, 2.5], "n": [6, 6, 3, 3, 3], "t": [0] * 5, "d": [1] * 5})
    found = by_hand(flow, {"s": [events.slice(begin, 7) for begin in range(0, 21, 7)]}, 5)["by_f"]
    assert counted(found) == counted(expected)


def test_a_chunk_of_another_partition_is_refused() -> None:
    flow, orders = flow_of()
    flow.output("orders", orders)
    chunks = list(make_partitioner(flow, "orders", 2, SECRET, ("id",))([pa.record_batch({"id": range(99)})], 0))
    assert {to for chunk in chunks for to in chunk.column("to").to_pylist()} == {0, 1}
    with raises(Misrouted):
        list(StatelessStageTask(cut_stages(flow), 0, SECRET, 2, {"orders": ("id",)}, "orders")(iter(chunks)))


# -- the package ------------------------------------------------------------------------------------------------------


def stage_of(spec: dd.Upsert, build: Any = lambda orders: orders) -> Any:
    flow, orders = flow_of(spec)
    flow.output("out", build(orders))
    return spark_bridge.stage(flow)


def test_a_stage_is_refused_where_arrival_would_decide() -> None:
    for spec in (dd.Upsert("id"), dd.Upsert("id", order_by="at"), dd.Upsert("id", order_by="at", tie="first")):
        with raises(SpecError):
            stage_of(spec)
    for spec in (dd.Upsert("id", seq="at"), dd.Upsert("id", order_by="at", tie="greatest")):
        assert callable(stage_of(spec))


def test_a_stage_is_refused_where_rows_must_meet_again() -> None:
    with raises(SpecError):
        stage_of(dd.Upsert("id", seq="at"), lambda orders: orders.project(["city"]).count())


def test_a_stage_has_one_input_and_one_output() -> None:
    flow, orders = flow_of(dd.Upsert("id", seq="at"))
    flow.output("one", orders)
    flow.output("two", orders.filter("paid"))
    with raises(SpecError):
        spark_bridge.stage(flow)
    with raises(SpecError):
        spark_bridge.schema(flow)
    flow, orders = flow_of(dd.Upsert("id", seq="at", stale="side"))
    flow.output("one", orders)
    with raises(SpecError):
        spark_bridge.stage(flow)
    flow, orders = flow_of(dd.Upsert("id", seq="at"))
    flow.output("one", orders.concat(flow.upserts("more", ORDERS, dd.Upsert("id", seq="at"))))
    with raises(SpecError):
        spark_bridge.stage(flow)


def python(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout.strip()


def test_importing_the_bridge_imports_nothing_of_spark() -> None:
    assert python("import sys, spark_bridge; print('pyspark' in sys.modules, 'numba' in sys.modules)") == "False False"


@mid_on_spark
def test_no_session_is_made_behind_the_callers_back() -> None:
    code = """
import ddflow as dd, pyarrow as pa, spark_bridge
from pyspark.sql import SparkSession
flow = dd.Flow()
flow.output("out", flow.upserts("s", {"k": pa.int64(), "n": pa.int64()}, dd.Upsert("k", seq="n")))
spark_bridge.stage(flow), spark_bridge.schema(flow), spark_bridge.run
print(SparkSession.getActiveSession())
"""
    assert python(code) == "None"


def test_without_pyspark_the_error_says_what_to_install() -> None:
    code = """
import sys
sys.modules["pyspark"] = None
from ddflow.errors import MissingExtra
import spark_bridge
for name in ("run", "stage", "schema"):
    try:
        getattr(spark_bridge, name)
    except MissingExtra as error:
        print(error.fix)
print(spark_bridge.ensure_java.__name__)
"""
    assert python(code).splitlines() == ["pip install 'ddflow[spark]'"] * 3 + ["ensure_java"]


@mid_on_spark
def test_a_pyspark_that_is_too_old_is_told_by_what_it_lacks() -> None:
    code = """
import pyspark.sql.types
del pyspark.sql.types.TimeType  # what 4.0 has not
from ddflow.errors import MissingExtra
import spark_bridge
try:
    spark_bridge.run
except MissingExtra as error:
    print(error)
"""
    assert "TimeType" in python(code)
