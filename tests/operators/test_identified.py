"""Test the key that a plan proves for its rows, for joins and aggregates; sinks replace rows by this key."""

from __future__ import annotations

import random
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pytest
from every_operator import NARROW, plan

import ddflow as dd
from ddflow.plan.evolve import evolve_plan_to_types
from ddflow.plan.text.codec import describe_plan, rebuild_plan

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
    "the first of each group": (
        "select customer, amount from o qualify row_number() over (partition by customer order by amount desc) = 1",
        ("customer",),
    ),
    "the first of each group, with the input's key": (
        "select customer, id from o qualify row_number() over (partition by customer order by amount) <= 1",
        ("id",),
    ),
    "the first ones, with their places": (
        "select customer, amount, row_number() over (partition by customer order by amount) as place "
        "from o qualify place <= 2",
        ("customer", "place"),
    ),
    "the first ones, with the places of all": (
        "select place, amount from (select amount, row_number() over (order by amount) as place from o where true) x "
        "where place <= 3",
        ("place",),
    ),
    "the first ones without their places": (
        "select customer, amount from o qualify row_number() over (partition by customer order by amount) <= 2",
        None,
    ),
    "the first of a group that is not shown": (
        "select amount from o qualify row_number() over (partition by customer order by amount) = 1",
        None,
    ),
    "one meets the first of a group": (
        "select l.line, x.amount from l join (select customer, amount, row_number() over (partition by customer "
        "order by amount) as place from o where true) x on x.customer = l.id where x.place = 1",
        ("line",),
    ),
    "left, one meets the first of a group": (
        "select c.customer, x.amount from c left join (select customer, amount from o qualify row_number() over "
        "(partition by customer order by amount) = 1) x on x.customer = c.customer",
        ("customer",),
    ),
    "a group that is not shown": ("select max(amount) as most from o group by customer", None),
}


def flow() -> tuple[dd.Flow, dict[str, Any]]:
    made = dd.Flow()
    o = made.upserts("orders", ORDERS, dd.Upsert(key="id"))
    c = made.upserts("customers", CUSTOMERS, dd.Upsert(key="customer"))
    lines = made.upserts("lines", LINES, dd.Upsert(key="line"))
    return made, {"o": o, "c": c, "l": lines}


@pytest.mark.drawn(18)
@pytest.mark.parametrize("name", PLANS)
def test_what_is_proven_holds(name: str) -> None:
    text, key = PLANS[name]
    made, tables = flow()
    out = made.sql(text, **{each: of for each, of in tables.items() if f" {each} " in f"{text} "})
    made.output("out", out)
    for each, of in tables.items():
        made.output(each, of)
    assert out.identified_by() == key
    assert rebuild_plan(describe_plan(made)).outputs["out"].identified_by() == key
    if "more to meet" not in name:  # its rows are compared whole, so a new column is another plan
        wide, _ = evolve_plan_to_types(made, {name: {f"of_{name}": pa.int64()} for name in made.inputs}, "a test")
        assert wide.outputs["out"].identified_by() == key
    draw, most = random.Random(name), 0
    with made.open() as engine:
        for _ in range(20):
            order = {"id": draw.randrange(9), "customer": draw.randrange(4), "amount": draw.choice((0, 1, 2, None))}
            customer = {"customer": draw.randrange(4), "city": draw.choice("ab")}
            line = {"line": draw.randrange(9), "id": draw.randrange(4), "what": "x"}
            engine.step({"orders": [order], "customers": [customer], "lines": [line]})
            rows = engine.read("out")
            most = max(most, rows.num_rows)
            assert [each for each in out.find_never_null_columns() if rows[each].null_count] == []
            if key is not None:
                keys = rows.group_by(list(key)).aggregate([("_diff", "sum")])
                assert keys["_diff_sum"].to_pylist() == [1] * keys.num_rows
    assert most > 1


@pytest.mark.parametrize(
    "query",
    [
        "select customer, amount from o qualify row_number() over (partition by customer order by amount desc) = 1",
        "select customer, amount, row_number() over (partition by customer order by amount) as place "
        "from o qualify place <= 2",
        "select amount from o order by amount desc limit 1",
    ],
)
def test_a_top_without_the_key_of_its_input_replaces_rows_of_a_table(tmp_path: Path, query: str) -> None:
    made = dd.Flow()
    made.upserts("o", {**ORDERS, "gone": bool}, dd.Upsert(key="id", delete=dd.tombstone("gone")))
    made.output("out", made.sql(query))
    sinks, draw = {"out": dd.sinks.sqlite(tmp_path / "out.db", "out")}, random.Random(query)
    log = list[dict[str, Any]]()
    with made.open(tmp_path / "state") as engine, duckdb.connect() as door:
        for epoch in range(6):
            log += [
                {
                    "id": key,
                    "customer": draw.choice([1, 2, None]),
                    "amount": draw.randrange(4),
                    "gone": draw.random() < 0.3,
                }
                for key in draw.sample(range(9), 5 if epoch else 9)
            ]
            engine.step({"o": log[-5 if epoch else -9 :]})
            engine.run(sinks=sinks)
            with closing(sqlite3.connect(tmp_path / "out.db")) as table:
                found = table.execute("select * from out").fetchall()
            live = {each["id"]: each for each in log}.values()
            schema = pa.schema([*((name, pa.int64()) for name in ORDERS), ("gone", pa.bool_())])
            door.register("o", pa.Table.from_pylist([each for each in live if not each["gone"]], schema))
            assert sorted(found, key=str) == sorted(door.execute(query).fetchall(), key=str)
        shown = engine.read("out").drop_columns(["_diff"]).to_pylist()[0]
        told: Any = engine.why("out", shown)
        assert told.shown.num_rows == 1
        assert shown["amount"] in told.rows["o"].column("amount").to_pylist()
    steps = [pa.Table.from_pylist(part, schema) for part in (log[:9], *(log[at : at + 5] for at in range(9, 34, 5)))]
    assert dd.verify(tmp_path / "state", {"o": steps}).ok


SOLID: dict[str, tuple[str, set[str]]] = {
    "an input's key": ("select * from o", {"id"}),
    "by another name": ("select id as n, amount, id + 1 as m from o where amount > 1", {"n"}),
    "groups": ("select id, amount, count(*) as n from o group by id, amount", {"id", "n"}),
    "what met": ("select o.id, c.customer, c.city from o join c on o.customer = c.customer", {"id", "customer"}),
    "what may lack a partner": (
        "select o.id, c.city, l.line from o full join l on o.id = l.line join c on true",
        set(),
    ),
}


@pytest.mark.parametrize("name", SOLID)
def test_columns_that_are_never_null_are_known(name: str) -> None:
    text, known = SOLID[name]
    made, tables = flow()
    out = made.sql(text, **{each: of for each, of in tables.items() if f" {each} " in f"{text} "})
    assert out.find_never_null_columns() & {"id", "n", "m", "amount", "customer", "line"} == known


def test_columns_that_are_never_null_are_not_of_any_operator() -> None:
    made = plan(dict(NARROW))
    rows = [{"id": n, "city": None, "n": n % 3 or None, "tags": ["a", None][: n % 3], "day": None} for n in range(20)]
    with made.open() as engine:
        engine.step({"a": rows})
        wrong = {
            name: (column, made.outputs[name].verb)
            for name in made.outputs
            for column in made.outputs[name].find_never_null_columns()
            if engine.read(name)[column].null_count
        }
    assert wrong == {}
    kept = dd.Flow().upserts("a", {"id": int, "n": int}, dd.Upsert(key="id", null_key="keep"))
    assert kept.find_never_null_columns() == kept.top(1, by="n").find_never_null_columns() == frozenset()


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
