"""Test in-place updates of changed rows: triggers and foreign keys see an update."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import psycopg
import pyarrow as pa
import pytest
from messages import raises
from postgres_server import Server

import ddflow as dd
from ddflow.connectors.api import OpenSink, TableChanges, TableShape, TargetRecord
from ddflow.errors import SinkRefused

SCHEMA = pa.schema({"id": pa.int64(), "city": pa.string(), "n": pa.int64()})
Row = tuple[Any, ...]


class Table:
    """One that is written epoch by epoch.  ``made``: what a user did to the database first."""

    def __init__(self, server: Server, made: str, key: Sequence[str] = ("id",), schema: pa.Schema = SCHEMA) -> None:
        self.key, self.schema, self.epoch, self.url = tuple(key), schema, 0, server.url
        self.ask(f"drop schema public cascade; create schema public; {made}")
        self.table: OpenSink = dd.sinks.postgres(server.url, "t").open(TableShape("t", schema, self.key))
        self.table.prepare()

    def ask(self, text: str) -> list[Row]:
        with psycopg.connect(self.url, autocommit=True) as connection:
            found = connection.execute(text)
            return sorted(found.fetchall(), key=str) if found.description else []

    def give(self, rows: Sequence[Row], gone: Sequence[Row] = ()) -> None:
        """An epoch: rows with their keys, and keys that are gone."""
        made = pa.table([pa.array(each) for each in zip(*rows, strict=True)] or [[]] * 3, schema=self.schema)
        keys = made.select(list(self.key))
        if gone:
            others = pa.table([pa.array(each) for each in zip(*gone, strict=True)], schema=keys.schema)
            keys = pa.concat_tables([keys, others])
        before, now = (TargetRecord("0" * 32, "t", self.epoch + each, "f" * 32) for each in (0, 1))
        self.table.write(TableChanges(keys, made, 1), now, before if self.epoch else None)
        self.epoch += 1

    def rows(self) -> list[Row]:
        return self.ask("select * from t")


OWN = "create table t (id bigint primary key, city text{}, n bigint); "
TRIGGER = (
    "create table told (what text); create function tell() returns trigger language plpgsql as "
    "$$begin insert into told values (tg_op); return null; end$$; "
    "create trigger tells after insert or update or delete on t for each row execute function tell()"
)


@pytest.mark.parametrize("rule", ["on delete cascade", "on delete restrict", "on delete set null", ""])
def test_rows_that_point_at_one_that_changes_stay(server: Server, rule: str) -> None:
    table = Table(server, OWN.format("") + f"create table notes (of bigint references t {rule})")
    table.give([(1, "Bern", 5), (2, "Chur", 6), (3, "Genf", 7)])
    table.ask("insert into notes values (1), (2)")
    table.give([(1, "Bern", 50), (2, None, 60), (4, "Thun", 8)], [(3,)])
    assert table.rows() == [(1, "Bern", 50), (2, None, 60), (4, "Thun", 8)]
    assert table.ask("select of from notes") == [(1,), (2,)]


def test_a_trigger_sees_an_update_as_one(server: Server) -> None:
    table = Table(server, OWN.format("") + TRIGGER)
    table.give([(1, "Bern", 5), (2, "Chur", 6)])
    table.ask("truncate told")
    table.give([(1, "Bern", 50), (3, "Genf", 7)], [(2,)])
    assert table.ask("select * from told") == [("DELETE",), ("INSERT",), ("UPDATE",)]


def test_a_trigger_that_keeps_a_row_as_it_is_has_its_way(server: Server) -> None:
    table = Table(server, OWN.format("") + TRIGGER)
    table.ask("create trigger a before update on t for each row execute function suppress_redundant_updates_trigger()")
    table.give([(1, "Bern", 5)])
    table.give([(1, "Bern", 5)])
    assert table.ask("select * from told") == [("INSERT",)] and table.rows() == [(1, "Bern", 5)]


def test_values_that_must_be_unique_change_places(server: Server) -> None:
    first, then = [(1, "Bern", 1), (2, "Chur", 2), (3, "Genf", 3)], [(1, "Chur", 1), (2, "Bern", 2), (4, "Genf", 4)]
    table = Table(server, OWN.format(" unique"))
    table.give(first)
    table.give(then, [(3,)])
    assert table.rows() == then
    pointed = "create table notes (of bigint references t on delete cascade)"
    table = Table(server, OWN.format(" unique") + pointed)
    table.give(first)
    table.ask("insert into notes values (1)")
    with raises(SinkRefused):
        table.give(then, [(3,)])
    assert table.rows() == first and table.ask("select * from notes") == [(1,)]
    table.ask("alter table t drop constraint t_city_key; alter table t add unique (city) deferrable initially deferred")
    table.give(then, [(3,)])
    assert table.rows() == then and table.ask("select * from notes") == [(1,)]


@pytest.mark.parametrize("made", ["", "create table t (id bigint, city text, n bigint)"])
def test_keys_with_nulls_are_updated_and_a_key_that_is_there_twice_becomes_one(server: Server, made: str) -> None:
    table = Table(server, made, ("id", "city"))
    table.give([(1, "a", 1), (1, None, 2), (None, "a", 3), (None, None, 4), (2, None, 5)])
    if made:
        table.ask("insert into t values (1, 'a', 7), (null, 'a', 8)")
    table.give([(1, "a", 10), (1, None, 20), (None, "a", 30), (None, "b", 60)], [(None, None)])
    now = [(1, "a", 10), (1, None, 20), (2, None, 5), (None, "a", 30), (None, "b", 60)]
    assert table.rows() == sorted(now, key=str)


def test_a_table_of_keys_alone_and_one_of_no_key(server: Server) -> None:
    table = Table(server, "", ("id",), pa.schema({"id": pa.int64()}))
    table.give([(1,), (2,)])
    table.give([(2,), (3,)], [(1,)])
    assert table.rows() == [(2,), (3,)]
    table = Table(server, OWN.format("") + TRIGGER, ())
    for n in (5, 6):
        table.give([(1, "Bern", n)])
    assert table.rows() == [(1, "Bern", 6)] and table.ask("select * from told") == [("INSERT",), ("UPDATE",)]
    table.give([])
    assert table.rows() == []


def test_sqlite_updates_in_place_too(tmp_path: Path) -> None:
    with sqlite3.connect(tmp_path / "a.db") as own:
        own.executescript(
            "create table t (id integer, city text unique, n integer); create table told (what text);"
            "create trigger a after update on t begin insert into told values ('update'); end;"
            "create trigger b after delete on t begin insert into told values ('delete'); end;"
        )
    table = dd.sinks.sqlite(str(tmp_path / "a.db"), "t").open(TableShape("t", SCHEMA, ("id",)))
    table.prepare()
    epochs = [[(1, "a", 1), (None, "b", 2)], [(1, "a", 3), (None, "b", 4), (3, "c", 5)], [(1, "b", 3), (None, "a", 4)]]
    before = None
    for number, rows in enumerate(epochs, 1):
        made = pa.table([pa.array(each) for each in zip(*rows, strict=True)], schema=SCHEMA)
        now = TargetRecord("0" * 32, "t", number, "f" * 32)
        table.write(TableChanges(made.select(["id"]), made, 1), now, before)
        before = now
        assert all(row in map(tuple, own.execute("select * from t")) for row in rows)
        if number == 2:
            assert own.execute("select * from told").fetchall() == [("update",)] * 2
    assert own.execute("select count(*) from t").fetchone() == (3,)
    table.close()
    own.close()
