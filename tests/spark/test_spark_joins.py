"""Test joins on real Spark with a state: streams and runs give a single engine's output."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from chance import long_on_spark
from pyspark.sql import DataFrame, SparkSession
from spark_session import counted, frame_of

import ddflow as dd
import spark_bridge

pytestmark = pytest.mark.together("spark")

ORDERS = pa.schema({"id": pa.int64(), "customer": pa.int64(), "amount": pa.int64()})
CUSTOMERS = pa.schema({"of": pa.int64(), "city": pa.string()})


def flow_of() -> dd.Flow:
    flow = dd.Flow()
    orders = flow.upserts("orders", ORDERS, dd.Upsert("id"))
    customers = flow.upserts("customers", CUSTOMERS, dd.Upsert("of"))
    joined = flow.output("joined", orders.join(customers, on={"customer": "of"}))
    flow.output("by_city", joined.group_by("city").agg(total="sum(amount)"))
    flow.output("itself", orders.join(orders.project({"other": "id", "customer": "customer"}), on="customer"))
    flow.output("alone", customers.join(orders.count("customer"), on={"of": "customer"}, how="anti"))
    before = orders.project({"before": "id", "customer": "customer"})
    flow.output("latest", orders.asof(before, on="customer", at="id > before", how="left"))
    flow.output("near", customers.asof(orders.count("customer"), on=[], at="of >= customer"))
    flow.output("all", flow.sql("select count(*) n, sum(amount) s from orders"))
    return flow


def orders(*rows: tuple[int, int | None, int]) -> pa.Table:
    return pa.table([list(column) for column in zip(*rows, strict=True)], schema=ORDERS)


def customers(*rows: tuple[int, str]) -> pa.Table:
    return pa.table([list(column) for column in zip(*rows, strict=True)], schema=CUSTOMERS)


EPOCHS: list[dict[str, pa.Table]] = [
    {"orders": ORDERS.empty_table(), "customers": CUSTOMERS.empty_table()},
    {"orders": orders(*((n, n % 7, n) for n in range(40)))},
    {"customers": customers((1, "Bern"), (2, "Chur"), (9, "Thun"))},
    {"customers": customers((1, "Chur"), (3, "Bern"))},
    {"orders": orders((3, 1, 5), (4, None, 7), (41, 9, 1)), "customers": customers((9, "Bern"))},
]


@long_on_spark
def test_epochs_of_a_state_give_what_one_engine_gives(spark: SparkSession, tmp_path: Path) -> None:
    state = str(tmp_path / "state")
    with flow_of().open() as engine:
        for epoch, tables in enumerate(EPOCHS, 1):
            frames = {name: frame_of(spark, table) for name, table in tables.items()}
            out = spark_bridge.run(flow_of(), frames, state=state, partitions=3)
            step = engine.step(tables, time=epoch)
            for name in flow_of().outputs:
                assert counted(out[name].toArrow()) == counted(step[name]), (epoch, name)
        for name in flow_of().outputs:
            assert counted(dd.read(state, name)) == counted(engine.read(name)), name
    assert dd.fsck(state).ok


@long_on_spark
def test_a_stream_of_parts_that_stay_open_gives_the_same(spark: SparkSession, tmp_path: Path) -> None:
    outs: dict[int, dict[str, pa.Table]] = {}

    def take(out: dict[str, DataFrame], epoch: int) -> None:
        outs[epoch] = {name: out[name].toArrow() for name in flow_of().outputs}

    folder = tmp_path / "in"
    folder.mkdir()
    batches = [each["orders"] for each in EPOCHS[1:] if "orders" in each]
    batches += [orders((50 + n, n, n)) for n in range(3)]
    # One input is streamed; the other was given before.
    state = str(tmp_path / "state")
    known = customers((0, "Bern"), (1, "Chur"), (2, "Bern"))
    with flow_of().open() as engine:
        spark_bridge.run(flow_of(), {"customers": frame_of(spark, known)}, state=state, partitions=2)
        engine.step({"customers": known}, time=1)
        for number, table in enumerate(batches):
            pq.write_table(table, folder / f"{number}.parquet")
            frame = spark.readStream.schema("id long, customer long, amount long").parquet(str(folder))
            options = {"state": state, "partitions": 2, "trigger": {"availableNow": True}, "outputs": take}
            query = spark_bridge.stream(flow_of(), {"orders": frame}, **options).start()
            query.awaitTermination()
            step = engine.step({"orders": table}, time=number + 2)
            for name in flow_of().outputs:
                assert counted(outs[number + 2][name]) == counted(step[name]), (number, name)
