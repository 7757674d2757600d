"""The key that a plan proves of its rows, which sinks replace rows by: of joins and aggregates, and that it is one."""

from __future__ import annotations

import random
import sqlite3
from pathlib import Path
from typing import Any

import pytest

import ddflow as dd

ORDERS = {"id": int, "customer": int, "amount": int}
CUSTOMERS = {"customer": int, "city": str}
LINES = {"line": int, "id": int, "what": str}
PLANS: dict[str, tuple[str, tuple[str, ...] | None]] = {
    "one meets one": ("select o.id, o.amount, c.city from o join c on o.customer = c.customer", ("id",)),
    "its key by another name": ("select o.id as n, c.city from c join o on o.customer = c.customer", ("n",)),
    "its key is not shown": ("select o.amount, c.city from o join c on o.customer = c.customer", None),
    "three": (
        "select l.line, o.amount, c.city from l join o on l.id = o.id join c on o.customer = c.customer",
        ("line",),
    ),
    "both, since many meet": ("select o.id, l.line from o join l on o.amount = l.id", ("id", "line")),
    "the key that met": ("select c.customer, l.line from l join c on l.id = c.customer", ("line",)),
    "groups, with first and last": (
        "select city, count(*) as n, min(amount) as least, max(amount) as most "
        "from o join c on o.customer = c.customer group by city",
        ("city",),
    ),
    "a group that is not shown": ("select max(amount) as most from o group by customer", None),
}


def flow() -> tuple[dd.Flow, dict[str, Any]]:
    made = dd.Flow()
    o = made.upserts("orders", ORDERS, dd.Upsert(key="id"))
    c = made.upserts("customers", CUSTOMERS, dd.Upsert(key="customer"))
    lines = made.upserts("lines", LINES, dd.Upsert(key="line"))
    return made, {"o": o, "c": c, "l": lines}


@pytest.mark.parametrize("name", PLANS)
def test_what_is_proven_holds(name: str) -> None:
    text, key = PLANS[name]
    made, tables = flow()
    out = made.sql(text, **{each: of for each, of in tables.items() if f" {each} " in f"{text} "})
    made.output("out", out)
    for each, of in tables.items():
        made.output(each, of)
    assert out.identified_by() == key
    draw, most = random.Random(name), 0
    with made.open() as engine:
        for _ in range(20):
            order = {"id": draw.randrange(9), "customer": draw.randrange(4), "amount": draw.randrange(3)}
            customer = {"customer": draw.randrange(4), "city": draw.choice("ab")}
            line = {"line": draw.randrange(9), "id": draw.randrange(4), "what": "x"}
            engine.step({"orders": [order], "customers": [customer], "lines": [line]})
            rows = engine.read("out")
            most = max(most, rows.num_rows)
            if key is not None:
                keys = rows.group_by(list(key)).aggregate([("_diff", "sum")])
                assert keys["_diff_sum"].to_pylist() == [1] * keys.num_rows
    assert most > 1


def test_a_join_replaces_rows_of_a_table(tmp_path: Path) -> None:
    made, tables = flow()
    made.output("out", tables["o"].join(tables["c"], on="customer"))
    sinks = {"out": dd.sinks.sqlite(tmp_path / "out.db", "out")}
    with made.open(tmp_path / "state") as engine:
        for city in ("Bern", "Chur"):
            engine.step(
                {"orders": [{"id": 1, "customer": 7, "amount": 5}], "customers": [{"customer": 7, "city": city}]}
            )
            engine.run(sinks=sinks)
    assert sqlite3.connect(tmp_path / "out.db").execute("select * from out").fetchall() == [(1, 7, 5, "Chur")]
