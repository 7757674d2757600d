"""Test Postgres as a source on a real server: the state equals the tables, despite failures."""

from __future__ import annotations

import re
import threading
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import pages
import psycopg
import pyarrow as pa
import pytest
from messages import raises
from postgres_server import Server
from tcp_proxy import Proxy
from typer.testing import CliRunner

import ddflow as dd
from ddflow.cli import app
from ddflow.cli.words import ShellSyntax
from ddflow.connectors.address import parse_source
from ddflow.connectors.postgres.source import SlotReader
from ddflow.errors import (
    BadMessage,
    SchemaMismatch,
    SinkRefused,
    SourceChanged,
    SourceFailed,
    SpecError,
    UnreadableInput,
    format_error_text,
)

ORDERS = "create table orders (id bigint primary key, customer int, amount numeric(9, 2), note text)"
COLUMNS = {"id": pa.int64(), "customer": pa.int32(), "amount": pa.decimal128(9, 2), "note": pa.string()}
FORMAT = dd.formats.wal2json(unavailable=True)


def ask(server: Server, *statements: str) -> Any:
    """Each in a transaction of its own; the rows of the last."""
    with psycopg.connect(server.url, autocommit=True) as connection:
        for each in statements:
            found = connection.execute(each)  # type: ignore[call-overload]
        return found.fetchall() if found.description else None


def flow(**more: Any) -> dd.Flow:
    made = dd.Flow()
    orders = made.upserts("orders", COLUMNS | more, dd.Upsert(key="id"), format=FORMAT)
    made.output("rows", orders)
    made.output("by_customer", orders.group_by("customer").agg(n="count(*)", total="sum(amount)"))
    return made


def held(engine: Any) -> list[tuple[Any, ...]]:
    return sorted(tuple(row.values())[:-1] for row in engine.read("rows").to_pylist())


def there(server: Server) -> list[tuple[Any, ...]]:
    return sorted(ask(server, "select id, customer, amount, note from orders"))


def source(server: Server, **more: Any) -> Any:
    return dd.sources.postgres(server.url, "orders", slot="shop", **more)


def until_none(server: Server, query: str) -> None:
    """Wait until a query finds nothing."""
    ends = time.monotonic() + 120
    while (found := ask(server, query)) and time.monotonic() < ends:
        time.sleep(0.02)
    assert found == []


def holding(server: Server) -> Any:
    """A connection that has the slot."""
    made = psycopg.connect(server.url, autocommit=True, replication="database")
    made.pgconn.send_query(b'START_REPLICATION SLOT "shop" LOGICAL 0/0')
    until_none(server, "select 1 where not exists (select from pg_replication_slots where active)")
    return made


def test_what_waits_in_the_log_is_a_figure_before_it_is_read(server: Server, tmp_path: Path) -> None:
    ask(server, ORDERS)
    seen = list[Any]()
    with flow().open(tmp_path / "state") as engine:
        engine.run({"orders": source(server)})
    ask(server, "insert into orders select n, n, n, repeat('x', 100) from generate_series(1, 1000) n")
    with flow().open(tmp_path / "state", metrics=seen.append) as engine:
        engine.run({"orders": source(server)})
    first = seen[0]
    assert first.kind == "run" and first.sources["orders"].amount > 100_000 and not first.sources["orders"].failing
    assert 0 < first.sources["orders"].seconds < 600
    assert [each.sources["orders"].amount for each in seen if each.kind == "run"][-1] < 100_000


def test_the_lag_in_seconds_is_by_the_commit_that_was_read_last(server: Server) -> None:
    """While there is more than was asked for; else by the time of the look."""
    ask(server, ORDERS, "insert into orders values (0)")
    with flow().open() as engine:
        schema = engine.dataflow.admissions["orders"].bound.schema
    opened, came = source(server).open({"orders": schema}, None), None
    began = time.time()
    assert (opened.lag(), opened.reached) == (None, None)
    while came is None or came.position is None:
        came = opened.poll(1 << 20)
    assert opened.reached < began
    opened.acknowledge(came.position)
    rows = "select n, n, n, repeat('x', 100) from generate_series({}) n"
    times = [time.time()]
    for numbers in ("1, 50", "51, 100"):
        ask(server, f"insert into orders {rows.format(numbers)}")
        times.append(time.time())
    for before, after in pairwise(times):
        came = opened.poll(1)
        assert before <= opened.reached <= after and opened.lag() >= 0
        opened.acknowledge(came.position)
    began = time.time()
    opened.poll(1 << 20)
    assert opened.reached >= began
    opened.close()


def test_a_copy_and_every_kind_of_change(server: Server, tmp_path: Path) -> None:
    large = "x" * 9000  # kept apart from its row, and not written again where it stays
    rows = f"(1, 7, 1.50, repeat('ab', 9000)), (2, 7, 2, '{large}'), (3, 8, null, null)"
    ask(server, ORDERS, f"insert into orders values {rows}")
    with flow().open(tmp_path / "state") as engine:
        done = engine.run({"orders": source(server)})
        assert (done.epochs, done.rows, held(engine)) == (1, 3, there(server))
        ask(server, "update orders set amount = 9 where id = 1", "update orders set id = 20 where id = 2")
        ask(server, "delete from orders where id = 3", "insert into orders values (4, 8, -1, 'a ''quote'' \"\\ \n')")
        done = engine.run({"orders": source(server)}, interval="1h", until="30min")
        assert done.stopped == "end"  # an epoch does not wait for what cannot come
        assert held(engine) == there(server) and len(held(engine)) == 3
        ask(
            server,
            "begin; insert into orders values (5, 9, 1, ''); truncate orders;"
            " insert into orders values (6, 9, 2, 'z'); commit",
        )
        engine.run({"orders": source(server)})
        assert held(engine) == there(server) == [(6, 9, 2, "z")]
        ask(server, "alter table orders add column more int", "insert into orders values (7, 9, 2, 'z', 5)")
        assert engine.run({"orders": source(server)}).rows == 1
        assert held(engine) == sorted(ask(server, "select * from orders"))
        assert engine.run({"orders": source(server)}).epochs == 0
    assert ask(server, "select slot_name from pg_replication_slots") == [("shop",)]


def test_a_key_that_changes_beside_a_value_that_is_not_written_again(
    server: Server, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    ask(server, ORDERS, "alter table orders alter note set storage external")
    ask(server, "insert into orders values (1, 7, 1, repeat('a', 9000)), (2, 7, 2, repeat('b', 9000))")
    with flow().open(tmp_path / "state") as engine:
        engine.run({"orders": source(server)})
        ask(server, "alter table orders replica identity full", "update orders set id = 10 where id = 1")
        engine.run({"orders": source(server)})
        assert held(engine) == there(server)
        ask(server, "alter table orders replica identity default", "update orders set amount = 3 where id = 2")
        ask(server, "update orders set id = 20 where id = 2", "insert into orders values (2, 7, 4, 'c')")
        assert engine.run({"orders": source(server)}).epochs == 1
        assert held(engine) == there(server) and len(held(engine)) == 3
        (said,) = (each.message for each in caplog.records)
        assert re.search(
            "orders is copied again: the key of a row changed.*log such values: alter .* replica identity full", said
        )
        ask(server, "delete from orders where id = 20", "update orders set id = 1 where id = 10")
        engine.run({"orders": source(server)})
        assert held(engine) == there(server) and len(held(engine)) == 2


def test_a_table_that_is_copied_again_gives_the_difference(server: Server, tmp_path: Path) -> None:
    """Beside others, whose changes are of the same epoch; a run that dies before it begins it anew."""
    ask(server, ORDERS, "alter table orders alter note set storage external", "create table other (id int primary key)")
    ask(server, "insert into orders select n, n, n, repeat('a', 9000) from generate_series(1, 100) n")
    flows = flow()
    flows.output("others", flows.upserts("other", {"id": int}, dd.Upsert(key="id"), format=FORMAT))
    schemas = {name: flows.inputs[name].bound.schema for name in ("orders", "other")}
    shop = dd.sources.postgres(server.url, {"orders": "orders", "other": "other"}, slot="shop")
    with flows.open(tmp_path / "state") as engine:
        engine.run({"shop": shop})
        ask(
            server,
            "update orders set id = 200 where id = 2",
            "insert into other values (1)",
            "delete from orders where id = 3",
        )
        position = dd.inspect(tmp_path / "state")["sources"]["shop"]["position"]
        dies = shop.open(schemas, position)
        dies.keyed({"orders": ["id"], "other": ["id"]}, ["orders", "other"])
        assert (came := dies.poll(1 << 20)).position["tables"]["public.orders"]["again"]
        dies.close()
        assert list(came.rows) == ["other"]
        done = engine.run({"shop": shop})
        assert held(engine) == there(server) and len(engine.read("others")) == 1
        assert done.updates == 1 + 3 + 1  # of other, of orders, of the customers


def test_columns_that_come_and_go(server: Server, tmp_path: Path) -> None:
    large = "x" * 9000
    ask(server, ORDERS, "alter table orders add column secret int", "insert into orders values (2, 8, 1, 'b', 5)")
    ask(server, f"insert into orders values (1, 7, 1.5, '{large}', 3)")
    sinks = {"rows": dd.sinks.postgres(server.url, "copied"), "by_customer": dd.sinks.sqlite(tmp_path / "o.db", "by_c")}

    def run(**more: Any) -> Any:
        with flow().open(tmp_path / "state") as engine:
            return engine.run({"orders": source(server)}, sinks, **more)

    def same(columns: str) -> bool:
        found = (sorted(ask(server, f"select {columns} from {table}"), key=str) for table in ("orders", "copied"))
        return next(found) == next(found)

    run()
    ask(server, "update orders set secret = 4, amount = 3 where id = 1")
    assert (run().epochs, same("id, customer, amount, note")) == (1, True)
    ask(server, "insert into orders values (4, 9, 4, 'd')")
    ask(server, "alter table orders add column price numeric(10, 2), add column at timestamptz default now()")
    ask(server, "insert into orders values (3, 9, 2, 'c', 1, 7.25, '2024-02-29 12:00+01')")
    ask(server, "update orders set price = 8 where id = 1")
    with raises(SchemaMismatch):
        run(evolve="stop")
    assert ask(server, "select count(*) from copied") == [(2,)]
    assert (run().rows, same("id, customer, amount, note, price, at")) == (4, True)
    assert ask(server, "select note = repeat('x', 9000) from copied where id = 1") == [(True,)]
    ask(server, "alter table orders drop column price", "update orders set amount = 5")
    ask(server, "alter table orders rename column at to moment", "update orders set amount = 6 where id = 1")
    run()
    assert same("id, customer, amount, note, moment")
    assert ask(server, "select distinct price, at from copied") == [(None, None)]


@pytest.mark.parametrize(
    ("kind", "value", "wide", "sql"),
    [("bigint", 3_000_000_000, "int64", "bigint"), ("numeric", 1.5, "double", "double precision")],
)
def test_a_column_that_widens_ends_the_run_until_the_state_is_evolved(
    server: Server, tmp_path: Path, kind: str, value: Any, wide: str, sql: str
) -> None:
    ask(server, ORDERS, "insert into orders values (1, 7, 1, 'a')")
    sinks = {"rows": dd.sinks.postgres(server.url, "copied")}

    def run(of: dd.Flow) -> Any:
        with of.open(tmp_path / "state") as engine:
            engine.run({"orders": source(server)}, sinks)
            return held(engine)

    run(flow())
    ask(server, f"alter table orders alter column customer type {kind}", "update orders set amount = 2")
    assert run(flow()) == there(server)  # its values fit
    ask(server, f"insert into orders values (2, {value}, 3, 'b')", "insert into orders values (3, 9, 3, 'c')")
    for _ in "12":
        with pytest.raises(BadMessage) as error:
            run(flow())
        command = re.search(
            r"ddflow (evolve .*/state) --types (.*)", format_error_text(error.value.message, ShellSyntax({}))
        )
        assert command is not None and command[2] == f"customer={wide}"
        assert not dd.fsck(tmp_path / "state").problems
    evolved = CliRunner().invoke(app, [*command[1].split(), "--types", command[2]])
    assert evolved.exit_code == 0, evolved.output
    wider = flow(customer=pa.type_for_alias(wide))
    with raises(SinkRefused):
        run(wider)
    ask(server, f"alter table copied alter column customer type {sql}")
    assert run(wider) == there(server) == sorted(ask(server, "select * from copied"))
    assert len(there(server)) == 3


def test_tables_of_a_slot_share_their_epochs(server: Server, tmp_path: Path) -> None:
    ask(
        server,
        "create schema side",
        "create table side.a (k int primary key, v int)",
        "create table b (k int primary key, v int)",
    )
    ask(server, "insert into side.a values (1, 1)")
    flow = dd.Flow()
    columns = {"k": pa.int32(), "v": pa.int32()}
    both = [flow.upserts(name, columns, dd.Upsert(key="k"), format=FORMAT) for name in ("left", "right")]
    flow.output("both", both[0].join(both[1].project({"k": "k", "w": "v"}), on="k"))
    tables = {"side.a": "left", "public.b": "right"}
    with flow.open(tmp_path / "state") as engine:
        engine.run({"pg": dd.sources.postgres(server.url, tables, slot="two")})
        ask(
            server,
            "begin; insert into b values (1, 5); update side.a set v = 2; commit",
            "create table c (k int primary key)",
        )
        ask(server, "insert into c values (1)")
        done = engine.run({"pg": dd.sources.postgres(server.url, tables, slot="two")})
        assert (done.epochs, done.rows, done.updates) == (1, 2, 1)
        assert engine.read("both").to_pylist() == [{"k": 1, "v": 2, "w": 5, "_diff": 1}]
    ask(server, "drop schema side cascade")


TYPES: dict[str, tuple[pa.DataType, str]] = {
    "boolean": (pa.bool_(), "true"),
    "smallint": (pa.int16(), "-32768"),
    "bigint": (pa.int64(), "9223372036854775807"),
    "double precision": (pa.float64(), "1.5e300"),
    "numeric(30, 10)": (pa.decimal128(30, 10), "12345678901234567890.0123456789"),
    "text": (pa.string(), "E'ü \\n \\\\ \"'"),
    "bytea": (pa.binary(), "'\\x00ff'"),
    "date": (pa.date32(), "'2026-11-24'"),
    "time": (pa.time64("us"), "'23:59:59.999999'"),
    "timestamp": (pa.timestamp("us"), "'1900-01-02 03:04:05.000006'"),
    "timestamptz": (pa.timestamp("us", "UTC"), "'2026-11-24 10:00:00.5+02'"),
    "uuid": (pa.uuid(), "'00000000-0000-0000-0000-000000000007'"),
    "json": (pa.string(), "'{\"a\":\n [1]}'"),
    "int[]": (pa.string(), "'{1,NULL,3}'"),
}


def test_values_are_the_same_by_copy_and_by_change(server: Server) -> None:
    names = [f"c{n}" for n in range(len(TYPES))]
    columns = ", ".join(f"{name} {kind}" for name, kind in zip(names, TYPES, strict=True))
    values = ", ".join(value for _, value in TYPES.values())
    ask(
        server,
        f"create table t (id int primary key, {columns})",
        f"insert into t values (1, {values})",
        "insert into t values (3)",
    )
    schema = {"id": pa.int32(), **{name: kind for name, (kind, _) in zip(names, TYPES.values(), strict=True)}}
    flow = dd.Flow()
    flow.output("t", flow.upserts("t", schema, dd.Upsert(key="id"), format=dd.formats.wal2json()))
    schemas = {"t": flow.inputs["t"].bound.schema}
    with flow.open() as engine:
        opened = dd.sources.postgres(server.url, "t").open(schemas, None)
        engine.step({"t": taken(opened).rows["t"][0]})
        opened.acknowledge(taken(opened).position)
        ask(server, f"insert into t values (2, {values})", "insert into t values (4)")
        engine.step({"t": taken(opened).rows["t"][0]})
        opened.close()
        rows = {row.pop("id"): row for row in engine.read("t").to_pylist()}
    assert rows[1] == rows[2] and rows[3] == rows[4] and set(rows[3].values()) == {None, 1}
    expected = ask(server, "select * from t where id = 1")[0][1:]
    for (kind, _), found, value in zip(TYPES.values(), rows[1].values(), expected, strict=False):
        if kind == pa.string() and not isinstance(value, str):
            continue  # JSON and arrays are the text that Postgres writes
        assert found == value, kind
    assert [rows[1][names[n]] for n in (12, 13)] == ['{"a":\n [1]}', "{1,NULL,3}"]


def taken(opened: Any) -> Any:
    found = opened.poll(1 << 20)
    assert found is not None
    return found


def test_several_tables_are_spelled_as_an_address() -> None:
    feeds = ("orders", "customers", "cities")
    for kind in ("postgres", "postgresql"):  # libpq takes both
        text = f"{kind}://me:secret@db/shop?slot=s&sslmode=require#orders,crm.people=customers,crm.cities"
        found = parse_source(text, "shop", follow=False, lines=False)
        assert (found.target, found.inputs("shop")) == ("postgresql://db:5432/shop#s", feeds)
        assert "secret" not in repr(found)
    one = parse_source("postgres://me@db/shop#crm.people", "customers", follow=False, lines=False)
    assert (one.target, one.inputs("customers")) == ("postgresql://db:5432/shop#ddflow", ("customers",))


def test_a_server_that_restarts_is_waited_for(server: Server, tmp_path: Path) -> None:
    ask(server, ORDERS)
    with flow().open(tmp_path / "state") as engine:
        opened = source(server).open({"orders": engine.dataflow.admissions["orders"].bound.schema}, None)
        opened.acknowledge(opened.poll(1 << 20).position)
        server.stop()
        with pytest.raises(SourceFailed):
            opened.poll(1 << 20)
        opened.close()
        server.start()
    ask(server, "select pg_drop_replication_slot('shop')")


def test_a_slot_that_cannot_be_made_leaves_no_connection(server: Server) -> None:
    ask(server, ORDERS)
    with pytest.raises(psycopg.errors.ConfigurationLimitExceeded):
        for number in range(100):
            ask(server, f"select pg_create_physical_replication_slot('other_{number}')")
    source = dd.sources.postgres(server.url, "orders")
    with raises(UnreadableInput) as caught:
        source.open({"orders": flow().inputs["orders"].bound.schema}, None)
    until_none(server, "select pid from pg_stat_activity where backend_type = 'walsender'")
    assert caught.value  # which holds what raised it


def test_large_rows_are_given_as_there_is_room(server: Server) -> None:
    ask(server, ORDERS)
    opened = dd.sources.postgres(server.url, "orders").open({"orders": flow().inputs["orders"].bound.schema}, None)
    found = opened.poll(1 << 20)
    while found is None or found.position is None:
        found = opened.poll(1 << 20)
    opened.acknowledge(found.position)
    with psycopg.connect(server.url, autocommit=True) as connection:
        for number in range(1000):
            connection.execute("insert into orders values (%s, 1, 2, %s)", [number, "x" * 10_000])
    sizes = list[int]()
    while sum(sizes) < 10_000_000:
        found = opened.poll(1 << 20)
        assert found is not None
        sizes.append(sum(batch.nbytes for batch in found.rows["orders"]))
        opened.acknowledge(found.position)
    opened.close()
    assert sizes[0] < 4 << 20 and max(sizes[1:]) < 2 << 20, sizes


def test_a_copy_that_dies_begins_again(server: Server) -> None:
    ask(server, ORDERS, "insert into orders values (1, 1, 1, '')")
    with flow().open() as engine:
        schemas = {"orders": engine.dataflow.admissions["orders"].bound.schema}
    opened = source(server).open(schemas, None)
    assert opened.poll(1 << 20).position is None
    assert ask(server, "select slot_name from pg_replication_slots") == [("shop_copying",)]
    for each in (opened._state.snapshot, opened.connection):
        each.close()  # as if the process had died
    again = source(server).open(schemas, None)
    assert again.poll(1 << 20).rows["orders"][0].num_rows == 1
    position = again.poll(1 << 20).position
    for each in (again._state.snapshot, again.connection):
        each.close()  # its epoch was committed, and the slot has not got its name
    ask(server, "insert into orders values (2, 1, 1, '')")
    later = source(server).open(schemas, position)
    assert later.poll(1 << 20).rows["orders"][0].num_rows == 1
    later.close()
    assert ask(server, "select slot_name from pg_replication_slots") == [("shop",)]


def test_what_was_written_while_the_slot_was_made_is_newer_than_the_copy(server: Server, tmp_path: Path) -> None:
    """A transaction that begins behind those that the slot waits for, writes before it begins, and commits later."""
    ask(server, ORDERS, "insert into orders values (1, 1, 1, 'old')")

    def begun() -> tuple[Any, int]:
        made = psycopg.connect(server.url)
        return made, made.execute("select pg_current_xact_id()::text::int").fetchone()[0]  # type: ignore[index]

    def waited_for(number: int) -> None:
        waits = f"select count(*) from pg_locks where not granted and transactionid = '{number}'"
        ends = time.monotonic() + 120
        while ask(server, waits) != [(1,)]:
            assert time.monotonic() < ends
            time.sleep(0.01)

    with flow().open(tmp_path / "state") as engine:
        first, number = begun()
        run = threading.Thread(target=engine.run, args=[{"orders": source(server)}])
        run.start()
        waited_for(number)
        second, number = begun()
        first.close()
        waited_for(number)
        with psycopg.connect(server.url) as late:
            late.execute("update orders set note = 'new'")
            second.close()
            run.join()
            assert held(engine) == [(1, 1, 1, "old")]
        engine.run({"orders": source(server)})
        assert held(engine) == there(server) == [(1, 1, 1, "new")]


def test_a_copy_that_waits_for_open_transactions_says_for_which(
    server: Server, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also one that is made again; a transaction that only reads is none."""
    monkeypatch.setattr("ddflow.connectors.postgres.source.PATIENCE", 0.2)
    ask(server, ORDERS, "insert into orders values (1, 1, 1)", "create table other (id int)")

    def end(*open_: Any) -> None:
        ends = time.monotonic() + 120
        while time.monotonic() < ends and "the slot waits" not in caplog.text:
            time.sleep(0.02)
        for each in open_:
            each.close()

    for _ in range(2):
        caplog.clear()
        writes, reads = (psycopg.connect(server.url) for _ in "12")
        writes.execute("insert into other values (1)")
        reads.execute("select * from other")
        pid, thread = writes.info.backend_pid, threading.Thread(target=end, args=[writes, reads])
        thread.start()
        with flow().open(tmp_path / "state") as engine:
            engine.run({"orders": source(server)})
            thread.join()
            assert held(engine) == there(server)
        said = [each.message for each in caplog.records if "the slot waits" in each.message]
        assert len(said) == 1 and f"waits for open transactions: PID {pid}; the copy begins when they end" in said[0]
        ask(server, "alter table orders set unlogged", "delete from orders", "alter table orders set logged")


def refused(server: Server, engine: Any, kind: type[Exception], says: str, **more: Any) -> None:
    with pytest.raises(kind, match=says):
        engine.run({"orders": source(server, **more)}, give_up_after="0s")


def test_what_cannot_be_read_says_what_to_do(server: Server, tmp_path: Path) -> None:
    with flow().open(tmp_path / "a") as engine:
        refused(server, engine, UnreadableInput, "there is no such table; create it, or check")
        ask(server, "create table orders (id bigint, customer int, amount numeric, note text)")
        refused(server, engine, UnreadableInput, "no replica identity.*add a primary key")
        ask(server, "drop table orders", "create table orders (id bigint primary key, customer int, amount numeric)")
        refused(server, engine, UnreadableInput, "it has no column 'note'")
        ask(server, "drop table orders", ORDERS)
        engine.run({"orders": source(server)})
        ask(server, "select pg_drop_replication_slot('shop')", "insert into orders values (1)")
        refused(server, engine, SourceChanged, "the slot no longer exists; the changes since then are lost")
    with flow().open(tmp_path / "b") as engine:
        engine.run({"orders": source(server)})
        ask(server, "insert into orders values (2)", "select pg_replication_slot_advance('shop', pg_current_wal_lsn())")
        refused(server, engine, SourceChanged, "it was advanced to .*, but the state has read it only up to")
    with flow().open(tmp_path / "c") as engine:
        refused(server, engine, UnreadableInput, "this state has no position in it; pass another name as slot=")
    plain = dd.Flow()
    plain.output("rows", plain.upserts("orders", COLUMNS, dd.Upsert(key="id")))
    with plain.open() as engine:
        refused(server, engine, SpecError, "changes come as messages; set format=dd.formats.wal2json")
    with raises(SpecError):
        dd.sources.postgres(server.url, "orders", slot="My slot")


def test_rights_and_settings_are_told_of(server: Server, tmp_path: Path) -> None:
    ask(server, ORDERS, "drop role if exists reader", "create role reader login", "grant select on orders to reader")
    with flow().open(tmp_path / "a") as engine:
        url = server.url.replace("postgres@", "reader:secret@")
        with raises(UnreadableInput) as told:
            engine.run({"orders": dd.sources.postgres(url, "orders")})
        assert "secret" not in str(told.value)
    ask(server, "drop owned by reader", "drop role reader")


def test_who_is_not_let_in_is_told_at_once(server: Server, tmp_path: Path) -> None:
    ask(server, ORDERS, "drop role if exists reader", "create role reader login", "grant select on orders to reader")
    with Proxy(f"{server.place}/.s.PGSQL.5432", lambda data: data) as proxy, flow().open(tmp_path / "a") as engine:
        to = f"127.0.0.1:{proxy.port}"
        for url in (
            f"postgresql://reader@{to}/postgres",
            f"postgresql://reader@{to}/shpo",
            f"postgresql://nobody@{to}/postgres",
        ):
            with raises(UnreadableInput):
                engine.run({"orders": dd.sources.postgres(url, "orders")}, until="5min")
        with raises(SinkRefused):
            engine.run({}, {"rows": dd.sinks.postgres(f"postgresql://reader@{to}/shpo", "copy")}, until="5min")
    ask(server, "drop owned by reader", "drop role reader")


def test_a_new_output_of_a_quiet_table_is_full_and_the_next_run_goes_on(server: Server, tmp_path: Path) -> None:
    ask(server, ORDERS, "insert into orders values (1, 1, 1), (2, 1, 2)")
    with flow().open(tmp_path / "state") as engine:
        engine.run({"orders": source(server)})
    more = flow()
    more.output("customers", more.sql("select customer, count(*) n from orders group by customer"))
    for _ in range(2):
        with more.open(tmp_path / "state") as engine:
            engine.run({"orders": source(server)}, {"customers": dd.sinks.postgres(server.url, "customers")})
        assert ask(server, "select * from customers") == [(1, 2)]
        ask(server, "create table if not exists others as select generate_series(1, 1000)")


def test_the_slot_is_behind_the_state_also_where_no_row_came(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    moved, at = list[tuple[str, str]](), SlotReader.acknowledge

    def told(slot: SlotReader, position: Any) -> None:
        moved.append((position["lsn"], dd.inspect(tmp_path / "state")["sources"]["orders"]["position"]["lsn"]))
        at(slot, position)

    ask(server, ORDERS, "insert into orders values (1, 1, 1)")
    monkeypatch.setattr(SlotReader, "acknowledge", told)
    for _ in range(2):
        with flow().open(tmp_path / "state") as engine:
            engine.run({"orders": source(server)})
        ask(server, "create table if not exists others as select generate_series(1, 1000)")
    assert len(moved) > 1 and all(slot == state for slot, state in moved)


def test_a_slot_in_use_is_waited_for_and_an_identity_that_changes_is_found(server: Server, tmp_path: Path) -> None:
    ask(server, ORDERS.replace("primary key", "primary key, other int unique not null"))
    with flow().open(tmp_path / "a") as engine:
        engine.run({"orders": source(server)})
        ask(server, "alter table orders replica identity using index orders_other_key")
        ask(server, "insert into orders values (1, 5, 1, 1, '')", "delete from orders")
        refused(server, engine, UnreadableInput, r"identifies a row by \['other'\]")
        ask(server, "alter table orders replica identity default")
    holder = holding(server)
    with flow().open(tmp_path / "a") as engine:
        refused(server, engine, SourceFailed, "is active for PID")
    holder.close()


def test_the_page_runs(server: Server, tmp_path: Path, monkeypatch: Any, capsys: Any) -> None:
    ask(server, *pages.blocks("connectors/postgres.md", "sql"))
    monkeypatch.chdir(tmp_path)
    pages.run("connectors/postgres.md", tmp_path, {"postgresql://me@db/shop": server.url})
    assert capsys.readouterr().out == "[{'city': 'Bern', 'n': 2, 'total': 11.0, '_diff': 1}]\n{'by_city': 1}\n"
    assert ask(server, "select * from by_city") == [("Bern", 2, 11.0)]
