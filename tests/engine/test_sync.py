"""Test `Engine.sync`: its counts, and the check of all targets before the first change."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any

import pytest
from messages import raises

import ddflow as dd
from ddflow.engine.engine import Engine
from ddflow.errors import SinkFailed, SinkRefused

NAMES = ("a", "b", "c")


@pytest.fixture
def engine(tmp_path: Path) -> Any:
    """Of three outputs with the keys 1 to 5."""
    made = dd.Flow()
    held = made.upserts("k", {"id": int, "f": int}, dd.Upsert(key="id"))
    for name in NAMES:
        made.output(name, held)
    with made.open(tmp_path / "state") as opened:
        opened.step({"k": {"id": [1, 2, 3, 4, 5], "f": [1, 2, 3, 4, 5]}})
        yield opened


def sql(file: Path, *statements: str) -> list[Any]:
    connection = sqlite3.connect(file)
    try:
        for each in statements:
            found = connection.execute(each).fetchall()
        connection.commit()
        return sorted(found)
    finally:
        connection.close()


def test_the_rows_of_the_table_are_counted(engine: Engine, tmp_path: Path) -> None:
    out = tmp_path / "out.db"
    sql(out, "create table a (id integer, f integer)", "insert into a values (1, 1), (2, 99), (7, 7), (8, 8)")
    sinks = {"a": dd.sinks.sqlite(out, "a")}
    for dry in (True, False):
        found = engine.sync(sinks, adopt=True, dry=dry)["a"]
        assert (found.deleted, found.changed, found.added) == (2, 1, 3)
        assert found.keys is not None
        keys = found.keys["id"].to_pylist()
        assert sorted(keys[:2]) == [7, 8] and keys[2:] == [2]
    assert sql(out, "select * from a") == [(n, n) for n in range(1, 6)]
    assert engine.sync(sinks)["a"][:3] == (0, 0, 0)


def test_a_key_that_a_table_has_twice_is_there_once_then(engine: Engine, tmp_path: Path) -> None:
    out = tmp_path / "out.db"
    sql(out, "create table a (id integer, f integer)", "insert into a values (1, 1), (2, 2), (2, 98), (3, 3), (3, 3)")
    found = engine.sync({"a": dd.sinks.sqlite(out, "a")}, adopt=True)["a"]
    assert (found.deleted, found.changed, found.added) == (2, 0, 2)
    assert sql(out, "select * from a") == [(n, n) for n in range(1, 6)]


def test_a_view_of_one_row_is_counted_too(tmp_path: Path) -> None:
    flow = dd.Flow()
    flow.output("n", flow.upserts("k", {"id": int}, dd.Upsert(key="id")).count(by=[]))
    sinks = {"n": dd.sinks.sqlite(tmp_path / "out.db", "n")}
    with flow.open(tmp_path / "state") as engine:
        engine.step({"k": {"id": [1, 2]}})
        assert engine.sync(sinks)["n"][:3] == (0, 0, 1)
        engine.step({"k": {"id": [3]}})
        assert engine.sync(sinks)["n"][:3] == (0, 1, 0)
        assert sql(tmp_path / "out.db", "select * from n") == [(3,)]


@pytest.mark.parametrize("bad", ["other rows", "other columns"])
def test_nothing_is_changed_where_one_is_refused(bad: str, engine: Engine, tmp_path: Path) -> None:
    out = tmp_path / "out.db"
    sinks = {name: dd.sinks.sqlite(out, name) for name in NAMES}
    engine.sync({"a": sinks["a"]})
    sql(out, "update a set f = 99")
    before = sql(out, "select * from a")
    column = "f integer" if bad == "other rows" else "g text"
    sql(out, f"create table b (id integer, {column})", "insert into b values (9, 9)")
    with pytest.raises(SinkRefused):
        engine.sync(sinks, adopt=bad != "other rows")
    assert sql(out, "select * from a") == before
    assert not sql(out, "select 1 from sqlite_master where name = 'c'") or not sql(out, "select * from c")


def test_a_failure_in_the_middle_says_what_was_changed(engine: Engine, tmp_path: Path) -> None:
    out = tmp_path / "out.db"
    sinks = {name: dd.sinks.sqlite(out, name) for name in NAMES}
    sql(out, "create table c (id integer, f integer)")
    sql(out, "create trigger full before insert on c begin select raise(abort, 'it is full'); end")
    with raises((SinkFailed, SinkRefused)):
        engine.sync(sinks)
    assert sql(out, "select * from a") == sql(out, "select * from b") == [(n, n) for n in range(1, 6)]
    assert sql(out, "select * from c") == []
    sql(out, "drop trigger full")
    assert [each[:3] for each in engine.sync(sinks).values()] == [(0, 0, 0), (0, 0, 0), (0, 0, 5)]


def test_a_new_output_that_was_not_given_yet_holds_up_neither_sync_nor_detach(tmp_path: Path) -> None:
    """They are in the state, for which the output is as new as before."""

    def flow(*outputs: str) -> dd.Flow:
        made = dd.Flow()
        held = made.upserts("k", {"id": int, "f": int}, dd.Upsert(key="id"))
        for name in outputs:
            made.output(name, held)
        return made

    state, sinks = tmp_path / "state", {"a": dd.sinks.sqlite(tmp_path / "out.db", "a")}
    with flow("a").open(state) as engine:
        engine.step({"k": {"id": [1], "f": [1]}})
    with flow("a", "b").open(state) as engine:
        engine.sync(sinks | {"b": dd.sinks.sqlite(tmp_path / "out.db", "b")})
    assert [*dd.inspect(state)["sinks"]] == ["a"]
    with flow("a").open(state) as engine:
        for number in range(2, 22):
            engine.step({"k": {"id": [number], "f": [1]}})
    with flow("a", "b").open(state) as engine:
        engine.detach("a")
    assert not dd.inspect(state)["sinks"]
    assert dd.fsck(state).ok
    with flow("a", "b").open(state) as engine:
        assert engine.step({})["b"].num_rows == 21
    assert dd.fsck(state).ok


def test_a_sync_that_died_before_it_filled_a_column_is_not_taken_for_whole(engine: Engine, tmp_path: Path) -> None:
    """The column is back then, without its values, so only the state knows that they are missing."""
    out = tmp_path / "out.db"
    sinks = {"a": dd.sinks.sqlite(out, "a")}
    engine.run({}, sinks)
    sql(out, "alter table a drop column f")

    def die(rows: int) -> None:
        if ("f",) in sql(out, "select name from pragma_table_info('a')"):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        engine.sync(sinks, look=die)
    assert sql(out, "select id, f from a") == [(n, None) for n in range(1, 6)]
    with raises(SinkRefused):
        engine.run({}, sinks)
    assert engine.sync(sinks)["a"][:3] == (0, 5, 0)
    engine.run({}, sinks)
    assert sql(out, "select id, f from a") == [(n, n) for n in range(1, 6)]
