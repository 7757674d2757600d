"""Declare the types that checkers and editors infer for a flow.

mypy (``make lint``) and pyright (``test_user_types``) read the file; it is never run. `assert_type` fails for another
type, and an ignore comment without an error fails too.
"""

from __future__ import annotations

from typing import assert_type

import pyarrow as pa

import ddflow as dd
from ddflow.dataflow.result import Verdicts
from ddflow.engine.run.report import RunDone
from ddflow.engine.run.sync import Synced
from ddflow.plan.inputs.input import Input
from ddflow.plan.text.explain import PlanDiagram, PlanExplanation

flow = dd.Flow()
orders = flow.upserts("orders", {"id": int, "city": str, "amount": int}, dd.Upsert(key="id", order_by="id"))
assert_type(orders, Input)
log = flow.updates("log", pa.schema({"id": pa.int64()}), diff="1")
assert_type(log, Input)
by_city = orders.filter("amount > 1").group_by("city").agg(n="count(*)", total="sum(amount)")
assert_type(flow.output("by_city", by_city), dd.Collection)
assert_type(flow.sql("select city from orders"), dd.Collection)
assert_type(orders.join(log, on="id", how="anti"), dd.Collection)
assert_type(orders.top(3, by=["amount desc"], partition_by="city"), dd.Collection)
assert_type(flow.explain(), PlanExplanation)
assert_type(flow.explain(format="svg"), PlanDiagram)

with flow.open("state", memory="1GB", commit_every="50ms", metrics=dd.exporters.prometheus("shop")) as engine:
    assert_type(engine, dd.Engine)
    step = engine.step({"orders": pa.table({"id": [1]})}, time=1)
    assert_type(step, dd.Step)
    assert_type(step["by_city"], pa.Table)
    assert_type(step.verdicts, Verdicts)
    assert_type(step.verdicts["applied"], int)
    assert_type(step.committed(), int)
    assert_type(engine.read("by_city"), pa.Table)
    assert_type(engine.changes("by_city", 1, 2), pa.Table)
    assert_type(engine.replace("orders", pa.table({"id": [1]})), dd.Step)
    assert_type(engine.explain(format="svg"), PlanDiagram)
    assert_type(engine.stats(), dd.Stats)
    sinks = {"by_city": dd.sinks.sqlite("shop.db", "by_city", mode="changelog")}
    assert_type(engine.run({"orders": dd.sources.files("landing/*.csv")}, sinks), RunDone)
    assert_type(engine.sync(sinks), dict[str, Synced])

assert_type(dd.read("state", "by_city"), pa.Table)
assert_type(dd.compare({"id": [1]}, {"id": [2]}, key="id"), pa.Table)
assert_type(dd.formats.write(pa.table({}), "upsert"), pa.Table)
assert_type(dd.Snapshot.open("state").read("by_city"), pa.Table)
assert_type(dd.errors.NullKey("a", "b", "c"), dd.errors.NullKey)

flow.open(memori="1GB")  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
dd.sinks.sqlite("a", "b", mode="upsrt")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
dd.Upsert(key="id", tie="newest")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
orders.join(log, on="id", how="outer")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
flow.explain(format="png")  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue, reportArgumentType]
orders.fliter("amount > 1")  # type: ignore[attr-defined]  # pyright: ignore[reportAttributeAccessIssue]
