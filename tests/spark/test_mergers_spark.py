"""Test custom mergers and machines on real Spark beside the local engine: their code is sent by value."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from chance import long_on_spark
from pyspark.sql import SparkSession
from spark_session import assert_same, frame_of, locally

import ddflow as dd
import spark_bridge
from ddflow.partitions.stages import cut_stages

pytestmark = pytest.mark.together("spark")

EVENTS = pa.schema({"k": pa.int64(), "at": pa.int64(), "symbol": pa.string(), "n": pa.int64()})


def events(size: int) -> pa.Table:
    rows = [(i * 7 % 23, i * 11 % 40, ["pay", "ship", None][i % 3], i % 5) for i in range(size)]
    return pa.table(
        [pa.array(column, f.type) for column, f in zip(zip(*rows, strict=True), EVENTS, strict=True)], schema=EVENTS
    )


def flow() -> dd.Flow:
    """Every kind of code, and a table.  The functions are of this call, so no executor could import them."""

    def add(held: pa.RecordBatch, given: pa.RecordBatch) -> pa.RecordBatch:
        return given.set_column(given.schema.get_field_index("n"), "n", pc.add(held["n"], given["n"]))

    def largest(held: Any, given: Any, out: Any) -> None:
        out.n = max(held.n, given.n)

    def three(values: pa.RecordBatch, events: pa.RecordBatch) -> pa.RecordBatch:
        both = pa.concat_arrays([values["n"].cast(pa.int64()), events["n"]])
        of = pa.concat_arrays([values["_event"], pa.array(range(events.num_rows), pa.int64())])
        return pa.record_batch({"n": pc.bit_wise_and(both, 3), "_event": of})

    out, spec = dd.Flow(), dd.Upsert("k", order_by="at")
    orders = dd.Machine(
        "status",
        {("new", "pay"): ["paid"], ("paid", "ship"): ["shipped", "at sea"]},
        on="symbol",
        start="new",
        otherwise="stay",
    )
    out.output("sums", out.upserts("a", EVENTS, dd.Upsert("k", order_by="at", merge=dd.Merge(function=add))))
    scalar = dd.Merge(function=largest, scalar=True)
    out.output("most", out.upserts("b", EVENTS, dd.Upsert("k", order_by="at", merge=scalar)).project(["n"]).count())
    out.output("status", out.machine("c", EVENTS, spec, orders))
    out.output("seen", out.machine("d", EVENTS, spec, dd.Machine({"n": pa.int8()}, three)).count(by="n"))
    return out


@long_on_spark
def test_code_of_ones_own_gives_on_spark_what_it_gives_locally(spark: SparkSession) -> None:
    tables = {name: events(200 + 10 * i) for i, name in enumerate("abcd")}
    halves = {name: [table.slice(0, 90), table.slice(90)] for name, table in tables.items()}
    frames = spark_bridge.run(flow(), {name: frame_of(spark, *parts) for name, parts in halves.items()}, partitions=2)
    expected = locally(flow(), tables)
    assert min(table.num_rows for table in expected.values()) > 1
    assert_same(frames, expected)


def test_a_plan_for_spark_says_where_the_values_of_a_machine_become_rows() -> None:
    assert str(cut_stages(flow(), only="status")).splitlines() == ["stage 0: a, b, c, unnest, d; status"]
