"""Test that Postgres tables with any name are read and written completely or refused: rights, children, long names."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from messages import raises
from postgres_server import Server
from test_postgres_source import FORMAT, ask

import ddflow as dd
from ddflow.connectors.address import parse_sink, parse_source
from ddflow.errors import SinkRefused, UnreadableInput


def flow(*names: str) -> dd.Flow:
    made = dd.Flow()
    for name in names:
        made.output(f"{name} rows", made.upserts(name, {"id": int}, dd.Upsert(key="id"), format=FORMAT))
    return made


def ids(engine: Any, name: str = "t") -> list[int]:
    return sorted(engine.read(f"{name} rows").column("id").to_pylist())


def test_rows_that_row_level_security_hides_are_refused(server: Server, tmp_path: Path) -> None:
    """In the first copy, and when a table is copied again; the log has all."""
    ask(
        server,
        *("create table t (id int primary key)", "insert into t select generate_series(1, 20)"),
        *("drop role if exists reader", "create role reader login replication", "grant select on t to reader"),
        "grant usage on schema public to reader",
        *("create policy odd on t using (id % 2 = 1)", "alter table t enable row level security"),
    )
    reads = {"t": dd.sources.postgres(server.url.replace("postgres@", "reader@"), "t", slot="shop")}
    says = r"read the table public\.t for 't': row level security hides rows of it from this role; .* bypassrls"
    with flow("t").open(tmp_path / "state") as engine:
        with pytest.raises(UnreadableInput, match=says):
            engine.run(reads)
        assert ask(server, "select slot_name from pg_replication_slots") == []
        ask(server, "alter table t disable row level security")
        engine.run(reads)
        ask(
            server, "alter table t enable row level security", "delete from t where id = 2", "insert into t values (22)"
        )
        engine.run(reads)
        assert ids(engine) == [1, *range(3, 21), 22]
        ask(server, "alter table t set unlogged", "delete from t where id = 4", "alter table t set logged")
        with raises(UnreadableInput):
            engine.run(reads)
        ask(server, "alter role reader bypassrls")
        engine.run(reads)
        assert ids(engine) == [1, 3, *range(5, 21), 22]
    ask(server, "drop owned by reader", "drop role reader")


def test_a_table_with_hidden_rows_is_not_written(server: Server, tmp_path: Path) -> None:
    ask(server, "create table t (id int primary key)", "insert into t values (1), (2)")
    sinks = {"t rows": dd.sinks.postgres(server.url, "copied")}
    with flow("t").open(tmp_path / "state") as engine:
        engine.run({"t": dd.sources.postgres(server.url, "t", slot="shop")}, sinks)
        ask(
            server,
            *("drop role if exists writer", "create role writer login", "grant all on schema public to writer"),
            "insert into t values (3)",
            *("grant all on all tables in schema public to writer", "delete from t where id = 2"),
            *("alter table copied enable row level security", "create policy odd on copied using (id % 2 = 1)"),
        )
        writer = {"t rows": dd.sinks.postgres(server.url, "copied")}
        poor = {"t rows": dd.sinks.postgres(server.url.replace("postgres@", "writer@"), "copied")}
        source = {"t": dd.sources.postgres(server.url, "t", slot="shop")}
        with raises(SinkRefused):
            engine.run(source, poor)
        engine.run(source, writer)
    assert sorted(ask(server, "select * from copied")) == [(1,), (3,)]
    ask(server, "drop owned by writer", "drop role writer")


def test_a_parent_is_read_beside_its_children_or_not_at_all(server: Server, tmp_path: Path) -> None:
    ask(
        server,
        *(
            "create table t (id int primary key)",
            "create table c () inherits (t)",
            "alter table c add primary key (id)",
        ),
        *("insert into t values (1)", "insert into c values (2)"),
    )
    says = r"public\.t for 't': public\.c inherit from it, .*; read these tables, too, each for a separate input"
    with flow("t", "c").open(tmp_path / "state") as engine:
        with pytest.raises(UnreadableInput, match=says):
            engine.run({"t": dd.sources.postgres(server.url, "t", slot="shop")})
        assert ask(server, "select slot_name from pg_replication_slots") == []
        both = {"shop": dd.sources.postgres(server.url, {"t": "t", "c": "c"}, slot="shop")}
        engine.run(both)
        ask(server, "update t set id = id + 10", "insert into c values (3)")
        engine.run(both)
        assert (ids(engine), ids(engine, "c")) == ([11], [3, 12])
        ask(server, "create temp table d () inherits (t)")  # it is of another session, and gone
        engine.run(both)
        ask(server, "create table d () inherits (c)")
        with raises(UnreadableInput):
            engine.run(both)
        ask(server, "drop table d")
        engine.run(both)


@pytest.mark.parametrize(
    ("schema", "table", "written"),
    [
        ("my.shop", "orders", "my.shop.orders"),
        ("my.shop", "orders", '"my.shop".orders'),
        ("my", "shop.orders", 'my."shop.orders"'),
        ('a"b', 'c"."d', '"a""b"."c"".""d"'),
        ("a,b", "c=d,e", '"a,b"."c=d,e"'),
        ("Ops", "Deliveries", '"Ops"."Deliveries"'),
    ],
)
def test_a_name_may_have_dots(server: Server, tmp_path: Path, schema: str, table: str, written: str) -> None:
    """And quotes and commas; the source and the sink, in Python and on a command line."""
    sql = ".".join('"' + each.replace('"', '""') + '"' for each in (schema, table))
    own = '"' + schema.replace('"', '""') + '"'
    ask(
        server,
        f"drop schema if exists {own} cascade",
        f"create schema {own}",
        f"create table {sql} (id int primary key)",
    )
    ask(server, f"insert into {sql} values (1)")
    address = server.url.replace("postgresql:", "postgres:")
    sink = parse_sink(f'{address}#{own}."co.py"', "t rows", None)
    with flow("t").open(tmp_path / "state") as engine:
        for source in (
            dd.sources.postgres(server.url, written, slot="shop"),
            parse_source(f"{address}&slot=shop#{written}", "t", follow=False, lines=False),
            dd.sources.postgres(server.url, {sql: "t"}, slot="shop"),
        ):
            engine.run({"t": source}, {"t rows": sink})
            assert ids(engine) == sorted(each for (each,) in ask(server, f"select id from {sql}"))
            ask(server, f"insert into {sql} select max(id) + 1 from {sql}")
        assert ask(server, f'select count(*) from {own}."co.py"') == [(3,)]
        two = parse_source(f"{address}#{written},{own}.x=y", "shop", follow=False, lines=False)
        assert two.inputs("shop") == (table, "y")
    ask(server, f"drop schema {own} cascade")


def test_a_name_that_postgres_cuts_is_refused_at_once(server: Server, tmp_path: Path) -> None:
    """Of a column and a table of a sink, in bytes, and of a table that is read; one byte less is kept."""
    ask(server, "create table t (id int primary key)", "insert into t values (1), (2)")
    source, long = {"t": dd.sources.postgres(server.url, "t", slot="shop")}, "é" * 32
    made = flow("t")
    made.output("wide", made.sql(f'select id, id as "{long}" from t'))
    made.output("kept", made.sql(f'select id % 2 as "{long[:-1]}x", count(*) n from t group by id % 2'))
    made.output("short", made.sql("select id % 2 as k, count(*) n from t group by id % 2"))
    with made.open(tmp_path / "state") as engine:
        for name, table in (("wide", "wide"), ("short", f"{long}z")):
            for mode in ("upsert", "changelog"):
                with raises(SinkRefused):
                    engine.run(source, {name: dd.sinks.postgres(server.url, table, mode=mode)})
        assert engine.epoch == 0 and ask(server, "select count(*) from pg_tables where tablename like 'w%'") == [(0,)]
        sinks = {
            "kept": dd.sinks.postgres(server.url, "x" * 63),
            "short": dd.sinks.postgres(server.url, f"{long[:-1]}y"),
        }
        for number in (3, 4):
            engine.run(source, sinks)
            ask(server, f"insert into t values ({number})")
        engine.run(source, sinks)
        with raises(SinkRefused):
            engine.run(source, {"wide": dd.sinks.postgres(server.url, "wide")})
        assert sorted(ask(server, f'select * from "{"x" * 63}"')) == [(0, 2), (1, 2)]
    ask(server, f"create table {'y' * 63} (id int primary key)", "select pg_drop_replication_slot('shop')")
    with flow("t").open(tmp_path / "other") as engine, raises(UnreadableInput):
        engine.run({"t": dd.sources.postgres(server.url, "y" * 64, slot="shop")})
