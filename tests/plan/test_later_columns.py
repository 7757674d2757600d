"""Test ``t.*`` in a query: it includes columns that the table gets later, as if the state always had them."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import pyarrow as pa
import pytest
from messages import raises

import ddflow as dd
from ddflow.errors import PlanChanged

FIRST = {
    "o": {"id": [1, 2], "c": [7, 8], "n": [5, 5]},
    "c": {"id": [7, 1], "n": [5, 5], "city": ["B", "C"]},
}
THEN = {
    "o": {"id": [1, 3], "c": [7, 7], "n": [5, 7], "x": [100, 200]},
    "c": {"id": [8, 5], "n": [2, 5], "city": ["B", "D"], "x": [300, 400]},
}
PASSED = [
    ("select o.*, c.city from o join c on o.c = c.id", "o"),
    ("select c.*, o.n as m from o join c on o.c = c.id", "c"),
    ("select c.*, o.c from o join c on o.id = c.id", "c"),
    ("select o.*, c.city from o left join c on o.c = c.id", "o"),
    ("select c.*, o.n as m from o full join c on o.c = c.id", "c"),
    ("select *, n + 1 as m from o", "o"),
    ("select o.*, p.n as m from o join o p on o.c = p.c", "o"),
    ("select * from o join (select id as c, city from c) d using (c)", "o"),
    ("select o.*, (select max(n) from c where c.id = o.c) as most from o", "o"),
    ("select s.* from (select o.*, c.city from o join c on o.c = c.id) s join c d on d.id = s.n", "o"),
    ("with s as (select o.*, city from o, c where o.c = c.id) select s.*, n + 1 as m from s", "o"),
    ("select distinct o.*, c.city from o join c on o.c = c.id", "o"),
    ("select c.* from o join c on o.c = c.id where exists (select 1 from o p where p.n = c.n)", "c"),
    ("select city, count(*) as many from (select o.*, city from o join c on o.c = c.id) group by city", ""),
    ("select c, row_number() over (partition by n order by c) as r from o", ""),
    ("select o.n, lag(o.n) over (order by o.n) as p from o join c on o.c = c.id", ""),
    ("select n, sum(n) over (order by c rows 1 preceding) as s from (select o.*, city from o join c using (id)) s", ""),
    ("select c from (select * from o) s qualify row_number() over (partition by n order by c) <= 1", ""),
]
"""Queries, and whose ``x`` they show."""


def flow(query: str, more: str = "") -> dd.Flow:
    """``more``: the tables that have ``x``."""
    out, columns = dd.Flow(), {"o": {"id": int, "c": int, "n": int}, "c": {"id": int, "n": int, "city": str}}
    for name, each in columns.items():
        out.upserts(name, each | ({"x": int} if name in more else {}), dd.Upsert(key="id"))
    out.output("out", out.sql(query))
    return out


def tables(given: dict[str, Any], more: str) -> dict[str, Any]:
    return {
        name: {column: cells for column, cells in each.items() if column != "x" or name in more}
        for name, each in given.items()
    }


def ended(engine: dd.Engine, more: str) -> tuple[list[str], list[str]]:
    """The columns, and the rows after another step."""
    engine.step(tables(THEN, more), time=2)
    rows = engine.read("out")
    return rows.schema.names, sorted(map(repr, rows.to_pylist()))


@pytest.mark.parametrize(("query", "shown"), PASSED)
@pytest.mark.parametrize("more", ["o", "c", "oc"])
def test_a_star_of_a_table_gets_its_columns(query: str, shown: str, more: str, tmp_path: Path) -> None:
    """Taken in between two calls, or when the state is opened, of either table or of both."""
    first = {name: each | ({"x": [None, None]} if name in more else {}) for name, each in FIRST.items()}
    with flow(query, more).open() as engine:
        engine.step(first, time=1)
        wanted = ended(engine, more)
    assert ("x" in wanted[0]) == (shown != "" and shown in more)
    with flow(query).open() as engine:
        engine.step(FIRST, time=1)
        engine.evolve({name: {"x": pa.int64()} for name in more})
        assert ended(engine, more) == wanted
    with flow(query).open(tmp_path / "state") as engine:
        engine.step(FIRST, time=1)
    with flow(query, more).open(tmp_path / "state") as engine:
        assert ended(engine, more) == wanted


NAMED = [
    ("select id, c, n from o", []),
    ("select o.*, c.id as cid, c.n as m, c.city from o join c on o.c = c.id", ["o"]),
    ("select o.id, o.c, o.n, d.city from o join (select * from c) d on o.n = d.n", []),
    ("select o.id, o.c, o.n, city from o left join c on o.n = c.n and c.id > 1", []),
    ("select c.id, city from c where exists (select 1 from o where o.c = c.id and o.id < 9 and o.n > 1)", []),
    ("select id, c, n from o union all select id, n, 0 as k from c where city < 'Z'", []),
    ("select c, count(id) as many, max(n) as most from o group by c", []),
    ("select id, c, n from o order by n limit 2", []),
    ("select c, id, n from (select * from o) s", []),
    ("select distinct id, c, n from o", []),
    ("select * from o order by id limit 2", ["o"]),
    ("select * from o where n > 1", ["o"]),
]
"""Queries that name all columns of a table, and whose ``x`` they show."""


@pytest.mark.drawn(5)
@pytest.mark.parametrize(("query", "shown"), NAMED)
def test_a_list_of_names_stays_as_it_is_when_it_names_all(query: str, shown: list[str], tmp_path: Path) -> None:
    """Taken in between two calls, or when the state is opened with the columns declared."""
    with flow(query, "oc").open() as engine:
        engine.step({name: each | {"x": [None, None]} for name, each in FIRST.items()}, time=1)
        wanted = ended(engine, "oc")
    assert ("x" in wanted[0]) == bool(shown)
    for evolves in (True, False):
        state = tmp_path / f"state {evolves}"
        with flow(query).open(state) as engine:
            engine.step(FIRST, time=0)
            if evolves:
                engine.evolve({name: {"x": pa.int64()} for name in "oc"})
                engine.step({}, time=1)
        with flow(query, "oc").open(state) as engine:
            assert ended(engine, "oc") == wanted


@pytest.mark.parametrize("first", [0, 1])
def test_a_side_of_a_join_that_names_all_columns_stays_as_it_is(first: int, tmp_path: Path) -> None:
    """Beside a join of the whole side, which may be found where that is."""

    def pairs(*more: str) -> dd.Flow:
        out = dd.Flow()
        left = out.upserts("o", {"id": int, "c": int, "n": int} | dict.fromkeys(more, int), dd.Upsert(key="id"))
        right = out.upserts("c", {"k": int, "n": int, "city": str}, dd.Upsert(key="k"))
        made = {
            "named": lambda: left.project(["id", "c", "n"]).join(right, on="n"),
            "whole": lambda: left.join(right, on="n"),
        }
        for name in sorted(made, reverse=bool(first)):
            out.output(name, made[name]())
        return out

    given = {"o": {"id": [1], "c": [7], "n": [5]}, "c": {"k": [7], "n": [5], "city": ["B"]}}
    with pairs().open(tmp_path / "state") as engine:
        engine.step(given, time=1)
        engine.evolve({"o": {"x": int}})
        engine.step({"o": {"id": [1], "c": [7], "n": [5], "x": [3]}}, time=2)
    with pairs("x").open(tmp_path / "state") as engine:
        row = {"id": 1, "c": 7, "n": 5, "k": 7, "city": "B", "_diff": 1}
        assert engine.read("named").to_pylist() == [row]
        assert engine.read("whole").to_pylist() == [row | {"x": 3}]


def test_a_column_whose_name_is_taken_is_left_out() -> None:
    with flow("select o.*, n + 1 as x from o").open() as engine:
        engine.step(FIRST, time=1)
        engine.evolve({"o": {"x": pa.int64()}})
        columns, rows = ended(engine, "o")
        assert columns == ["id", "c", "n", "x", "_diff"]
        assert rows[0] == "{'id': 1, 'c': 7, 'n': 5, 'x': 6, '_diff': 1}"


def test_sides_of_a_union_keep_their_columns(tmp_path: Path) -> None:
    """One that got a column would have no other side that has it."""
    query = "select o.*, 1 as k from o union all select o.*, 2 as k from o"
    with flow(query).open(tmp_path / "state") as engine:
        engine.step(FIRST, time=1)
        engine.evolve({"o": {"x": pa.int64()}})
        assert ended(engine, "o")[0] == ["id", "c", "n", "k", "_diff"]
    with raises(PlanChanged):
        flow(query, "o").open(tmp_path / "state")


def test_a_plan_that_is_read_back_passes_them_too(tmp_path: Path) -> None:
    """What a state says of its plan is all that an evolution without the flow has."""
    with flow(PASSED[0][0]).open(tmp_path / "state") as engine:
        engine.step(FIRST, time=1)
    dd.evolve(tmp_path / "state", {"o": {"x": "int64"}})
    with flow(PASSED[0][0], "o").open(tmp_path / "state") as engine:
        assert ended(engine, "o")[0] == ["id", "c", "n", "x", "city", "_diff"]


@pytest.mark.parametrize("verb", ["join", "lookup"])
def test_a_column_that_both_sides_get_is_refused_with_the_line_that_works(verb: str, tmp_path: Path) -> None:
    def joined(*outputs: str) -> dd.Flow:
        out = dd.Flow()
        left = out.upserts("o", {"id": int, "c": int}, dd.Upsert(key="id"))
        right = out.upserts("c", {"c": int, "city": str}, dd.Upsert(key="c"))
        for name in outputs:
            out.output(name, getattr(left, verb)(right.project(["c", "city"]) if name == "new" else right, on="c"))
        return out

    first = {"o": {"id": [1], "c": [7]}, "c": {"c": [7], "city": ["B"]}}
    with joined("old").open(tmp_path / "state") as engine:
        engine.step(first)
        with raises(PlanChanged):
            engine.evolve({"o": {"x": int}, "c": {"x": int}})
        assert engine.read("old").to_pylist() == [{"id": 1, "c": 7, "city": "B", "_diff": 1}]
    with joined("old", "new").open(tmp_path / "state") as engine:
        engine.step({})
    dd.evolve(tmp_path / "state", drop_outputs="old")
    with joined("new").open(tmp_path / "state") as engine:
        engine.evolve({"o": {"x": int}, "c": {"x": int}})
        engine.step({"o": {"id": [1], "c": [7], "x": [3]}, "c": {"c": [7], "city": ["B"], "x": [4]}})
        assert engine.read("new").to_pylist() == [{"id": 1, "c": 7, "x": 3, "city": "B", "_diff": 1}]


@pytest.mark.drawn(4)
@pytest.mark.parametrize("named", [True, False])
@pytest.mark.parametrize("how", ["left", "right", "full", "semi", "anti"])
def test_an_outer_join_with_a_condition_gets_the_columns_of_its_sides(how: Any, named: bool, tmp_path: Path) -> None:
    """Unless the sides name theirs; the state is opened with the columns declared, and goes on."""

    def pairs(*more: str) -> dd.Flow:
        out, columns = dd.Flow(), {"o": {"id": int, "c": int, "n": int}, "c": {"k": int, "c": int, "city": str}}
        sides = []
        for (name, each), new in zip(columns.items(), more or ("", ""), strict=True):
            side = out.upserts(name, each | ({new: int} if new else {}), dd.Upsert(key=next(iter(each))))
            sides.append(side.project([*each]) if named else side)
        out.output("out", sides[0].join(sides[1], on="c", how=how, condition="n > 1"))
        return out

    first = {"o": {"id": [1, 2], "c": [7, 8], "n": [5, 5]}, "c": {"k": [1], "c": [7], "city": ["B"]}}
    then = {"o": {"id": [3], "c": [7], "n": [5], "x": [1]}, "c": {"k": [2], "c": [9], "city": ["C"], "y": [2]}}
    with pairs("x", "y").open() as engine:
        engine.step(first | {"o": first["o"] | {"x": [None] * 2}, "c": first["c"] | {"y": [None]}}, time=1)
        engine.step(then, time=2)
        wanted = sorted(map(repr, engine.read("out").to_pylist()))
    with pairs().open(tmp_path / "state") as engine:
        engine.step(first, time=0)
        engine.evolve({"o": {"x": pa.int64()}, "c": {"y": pa.int64()}})
        engine.step({}, time=1)
    with pairs("x", "y").open(tmp_path / "state") as engine:
        engine.step(then, time=2)
        assert sorted(map(repr, engine.read("out").to_pylist())) == wanted


def declared(*columns: str, tie: Literal["last", "greatest"] = "last") -> dd.Flow:
    out = dd.Flow()
    rows = out.upserts("o", dict.fromkeys(columns, int), dd.Upsert(key="id", order_by="at", tie=tie))
    out.output("rows", rows)
    out.output("named", rows.project(["n", "m"]))
    out.output("star", out.sql("select o.*, p.m as other from o join o p on o.n = p.n"))
    return out


def test_columns_may_be_declared_in_any_order(tmp_path: Path) -> None:
    """The state has them in its own, with new ones at the end; a tie is decided in that order."""
    for tie in ("last", "greatest"):
        for names in (("id", "at", "n", "m"), ("m", "id", "n", "at")):
            with declared(*names, tie=tie).open(tmp_path / tie) as engine:
                engine.step({"id": [1, 1], "at": [len(names[0])] * 2, "n": [3, 2], "m": [5, 9]})
                assert engine.read("rows").schema.names == ["id", "at", "n", "m", "_diff"]
                won = (3, 5) if tie == "greatest" else (2, 9)
                assert engine.read("named").to_pylist() == [{"n": won[0], "m": won[1], "_diff": 1}]
    for more in ("xy", "yx"):
        with declared("id", more[0], "at", more[1], "n", "m").open(tmp_path / "last") as engine:
            engine.step({"id": [1], "at": [7], "n": [4], "m": [6], "x": [8], "y": [9]})
            assert engine.read("star").schema.names == ["id", "at", "n", "m", "x", "y", "other", "_diff"]
    assert dd.read(tmp_path / "last", "named", flow=declared("y", "m", "x", "id", "n", "at")).to_pylist() == [
        {"n": 4, "m": 6, "_diff": 1}
    ]


KEPT = [
    "select * from (select *, row_number() over (partition by c order by id) as r from o) where r <= 1",
    "select o.*, c.city from o join c on o.c = c.id order by o.id limit 2",
    "select o.*, c.city from o join c on o.c = c.id union select o.*, c.city from o join c on o.c = c.id",
    "select o.*, c.city as x from o join c on o.c = c.id",
]
"""Queries that keep their columns, so that a flow that declares ``x`` is another plan."""


@pytest.mark.drawn(2)
@pytest.mark.parametrize("query", KEPT)
@pytest.mark.parametrize("way", ["engine", "state"])
def test_a_flow_opens_the_state_again_that_got_columns_it_does_not_declare(
    query: str, way: str, tmp_path: Path
) -> None:
    with flow(query).open(tmp_path / "s") as engine:
        engine.step(FIRST, time=1)
        if way == "engine":
            engine.evolve({"o": {"x": int}})
            engine.step({"o": {"id": [9], "c": [7], "n": [4], "x": [6]}}, time=2)
        before = engine.read("out").schema.names
    if way == "state":
        dd.evolve(tmp_path / "s", {"o": {"x": int}})
    with flow(query).open(tmp_path / "s") as engine:
        engine.step({"o": {"id": [3], "c": [7], "n": [5], "x": [1]}}, time=3)
        assert engine.read("out").schema.names == before
        assert {"id": 3, "x": 1} in engine.read("o").select(["id", "x"]).to_pylist()
