"""Test a table with a total, which is one row without a key: replacing it, deleting it, and removing foreign rows."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from messages import raises
from test_targets_bad import sink, there

import ddflow as dd
from ddflow.errors import SpecError

STEPS: list[dict[str, list[Any]]] = [
    {"id": [1, 2], "x": [5, 7]},
    {"id": [2, 3], "x": [8, None]},
    {"id": [1], "x": [None]},
]


def flow() -> dd.Flow:
    """Three totals: one that is a row always, as in SQL, one of rows that are there, and one that may go."""
    made = dd.Flow()
    orders = made.upserts("orders", {"id": int, "x": int}, dd.Upsert(key="id"))
    made.output("total", made.sql("select sum(x) s, count(*) n from orders"))
    made.output("of_some", orders.agg(s="sum(x)", n="count(*)"))
    made.output("large", made.sql("select sum(x) s, count(*) n from orders having sum(x) > 8"))
    return made


def is_kept(name: str, to: Any, state: Path, read: Any) -> None:
    """Whether a table holds the row of a total after each step."""
    with flow().open(state) as engine:
        for rows in STEPS:
            engine.step({"orders": rows})
            engine.run(sinks={name: to})
            held = [{"s": row["s"], "n": row["n"]} for row in engine.read(name).to_pylist()]
            assert read() == held
        assert held or name == "large"
        assert engine.sync({name: to}, dry=True)[name][:3] == (0, 0, 0)


@pytest.mark.drawn(8)
@pytest.mark.parametrize("name", ["total", "of_some", "large"])
@pytest.mark.parametrize("kind", ["sqlite", "duckdb", "delta", "iceberg"])
def test_a_total_is_a_table_of_one_row(kind: str, name: str, tmp_path: Path) -> None:
    def read() -> list[dict[str, Any]]:
        if kind != "sqlite":
            return there(kind, tmp_path)
        with closing(sqlite3.connect(tmp_path / "out.db")) as connection:
            return [{"s": s, "n": n} for s, n in connection.execute("select s, n from t")]

    is_kept(name, sink(kind, tmp_path), tmp_path / "state", read)


def test_messages_of_a_total_are_of_one_key(tmp_path: Path) -> None:
    to = sink("sqlite", tmp_path, mode="debezium")
    with flow().open(tmp_path / "state") as engine:
        for rows in STEPS:
            engine.step({"orders": rows})
            engine.run(sinks={"total": to})
        assert engine.sync({"total": to}, dry=True)["total"][:3] == (0, 0, 0)
    with closing(sqlite3.connect(tmp_path / "out.db")) as connection:
        found = connection.execute("select key, value ->> 'op' from t").fetchall()
    assert found == [("{}", "c"), ("{}", "u"), ("{}", "u")]


def test_sync_leaves_the_one_row(tmp_path: Path) -> None:
    to = sink("sqlite", tmp_path)
    with flow().open(tmp_path / "state") as engine:
        engine.step({"orders": STEPS[0]})
        engine.run(sinks={"total": to})
        for change, found in (("insert into t values (1, 1)", (1, 0, 0)), ("update t set s = 1", (0, 1, 0))):
            with closing(sqlite3.connect(tmp_path / "out.db")) as connection:
                connection.execute(change)
                connection.commit()
            assert engine.sync({"total": to})["total"][:3] == found
            with closing(sqlite3.connect(tmp_path / "out.db")) as connection:
                assert connection.execute("select s, n from t").fetchall() == [(12, 2)]


def test_a_total_survives_in_a_plan_that_is_read_back(tmp_path: Path) -> None:
    with flow().open(tmp_path / "state") as engine:
        engine.step({"orders": STEPS[0]})
        engine.evolve({"note": str})
        engine.step({"orders": {"id": [9], "x": [1], "note": ["new"]}})
        engine.run(sinks={"total": sink("duckdb", tmp_path)})
        assert there("duckdb", tmp_path) == [{"s": 13, "n": 3}]


def test_rows_beside_a_total_keep_their_key(tmp_path: Path) -> None:
    made = dd.Flow()
    made.upserts("orders", {"id": int, "x": int}, dd.Upsert(key="id"))
    made.output("share", made.sql("select o.id, o.x, t.s from orders o cross join (select sum(x) s from orders) t"))
    made.output("twice", made.sql("select x from orders"))
    with made.open(tmp_path / "state") as engine:
        engine.step({"orders": STEPS[0]})
        engine.run(sinks={"share": sink("duckdb", tmp_path)})
        assert sorted(row["s"] for row in there("duckdb", tmp_path)) == [12, 12]
        with raises(SpecError):
            engine.run(sinks={"twice": sink("duckdb", tmp_path)})
