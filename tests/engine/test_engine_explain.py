"""Test `engine.explain`: the plan with its arrangements, the operators that use each arrangement, and the costs."""

from __future__ import annotations

import re

import pyarrow as pa
from messages import raises

import ddflow as dd
from ddflow.plan.text.explain import explain_plan


def opened() -> dd.Engine:
    flow = dd.Flow()
    orders = flow.upserts("orders", {"id": int, "customer": int, "amount": int}, dd.Upsert("id"))
    customers = flow.upserts("customers", {"customer": int, "city": str}, dd.Upsert("customer"))
    pairs = orders.join(customers, on="customer")
    flow.output("by_city", pairs.filter("amount > 0").group_by("city").agg(n="count(*)", revenue="sum(amount)"))
    flow.output("largest", pairs.top(2, by=["amount desc"], partition_by="city"))
    flow.output("served", customers.join(orders, on="customer", how="semi"))
    engine = flow.open()
    customer = [i % 3 for i in range(30)]
    given = {"orders": pa.table({"id": range(30), "customer": customer, "amount": range(30)})}
    engine.step({**given, "customers": pa.table({"customer": range(4), "city": ["Bern", "Zug"] * 2})}, 1)
    return engine


def line(text: str, start: str) -> str:
    (found,) = [each for each in text.splitlines() if each.lstrip("└├─│ ").startswith(start) and "above" not in each]
    return found


def test_it_says_what_is_kept_once_and_who_shares_it() -> None:
    with opened() as engine:
        text, kept = engine.explain(), engine.stats()["arrangements"]
    orders, customers = line(text, "input orders"), line(text, "input customers")
    assert "30 rows, " in orders and "shared by by_city, largest, served" in orders
    assert "4 rows, " in customers and "2 operators look up rows in it" in customers
    assert "2 rows, " in line(text, "agg(") and "30 rows, " in line(text, "top(")
    # Customers are arranged by their key already: only orders are arranged for the join, and once for two outputs.
    assert "30 rows, " in line(text, "arrange(by=['customer'])    rows move")
    assert [name for name in kept if name.startswith("arrange")] == [
        "arrange 0 by ['customer']",
        "arrange 1 by ['customer']",
    ]
    sizes = re.findall(r"rows, ([\d.,]+) K?B", text)
    assert len(sizes) == len(kept)


def test_every_operator_that_ran_has_its_time() -> None:
    with opened() as engine:
        first, before = engine.explain("by_city"), dict(engine.dataflow.graph.spent)
        engine.step({"orders": pa.table({"id": [1], "customer": [1], "amount": [99]})}, 2)
        after = engine.dataflow.graph.spent
    for start in ("agg(", "filter(", "join(", "arrange(", "input orders"):
        assert re.search(r"; \d[\d.,]* (us|ms|s)$|    \d[\d.,]* (us|ms|s)$", line(first, start)), start
    assert all(after[node] >= spent for node, spent in before.items()) and sum(after.values()) > sum(before.values())


def test_a_flow_says_nothing_of_it_and_an_unknown_name_is_refused() -> None:
    with opened() as engine:
        assert "KB" not in explain_plan(engine.flow) and "KB" in engine.explain("largest")
        with raises(dd.errors.SpecError):
            engine.explain("larges")
