"""The key that a plan proves of its rows, which sinks replace rows by: of joins and aggregates, and that it is one."""

from __future__ import annotations

import random
import sqlite3
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import ddflow as dd
from ddflow.plan.codec import describe
from ddflow.plan.evolve import evolved_to
from ddflow.plan.rebuild import rebuild

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
    "left, one meets one": ("select o.id, o.amount, c.city from o left join c on o.customer = c.customer", ("id",)),
    "left, with more to meet": (
        "select o.id, c.city from o left join c on o.customer = c.customer and o.amount > 1 and c.city = 'a'",
        ("id",),
    ),
    "left, many meet": ("select o.id, l.line from o left join l on o.amount = l.id", ("id", "line")),
    "left, many meet its key": (
        "select c.customer, l.line from c left join l on l.id = c.customer",
        ("customer", "line"),
    ),
    "left, and its key is not shown": ("select c.city, l.line from c left join l on l.id = c.customer", None),
    "left, of what has no key": (
        "select l.line, x.city from l left join (select city, customer % 2 as part from c where true) x "
        "on x.part = l.id",
        None,
    ),
    "right": ("select o.id, c.city from c right join o on o.customer = c.customer", ("id",)),
    "full": ("select o.id, c.city from o full join c on o.customer = c.customer", None),
    "left, of a left join": (
        "select l.line, o.amount, c.city from l left join o on l.id = o.id left join c on o.customer = c.customer",
        ("line",),
    ),
    "semi": ("select o.amount, o.id from o left semi join c on o.customer = c.customer", ("id",)),
    "semi, of a key": ("select c.customer, c.city from c left semi join l on l.id = c.customer", ("customer",)),
    "semi, with more to meet": (
        "select o.id, o.amount from o left semi join l on o.amount = l.id and l.line > o.customer",
        ("id",),
    ),
    "anti": ("select o.id, o.amount from o left anti join l on o.amount = l.id", ("id",)),
    "anti, and its key is not shown": ("select o.amount, o.customer from o left anti join l on o.amount = l.id", None),
    "each once": ("select distinct amount, customer % 2 as part from o", ("amount", "part")),
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
    assert rebuild(describe(made)).outputs["out"].identified_by() == key
    if "more to meet" not in name:  # its rows are compared whole, so a new column is another plan
        wide, _ = evolved_to(made, {name: {f"of_{name}": pa.int64()} for name in made.inputs}, "a test")
        assert wide.outputs["out"].identified_by() == key
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
