"""A run from a slot of Postgres into tables of Postgres: both sides agree, and have each epoch once."""

from __future__ import annotations

from pathlib import Path
from random import Random
from typing import Any

import psycopg
from lives import Story, replayed
from postgres_server import Server
from psycopg.rows import dict_row

import ddflow as dd


class PostgresRun(Story):
    """Orders in a table that a slot follows, their sums, and a changelog."""

    flow = """
import pyarrow as pa, ddflow as dd
flow = dd.Flow()
columns = {"id": pa.int64(), "customer": pa.int32(), "amount": pa.decimal128(9, 2), "note": pa.string()}
orders = flow.upserts("orders", columns, dd.Upsert(key="id"), format=dd.formats.wal2json(unavailable=True))
flow.output("moves", orders)
flow.output("by_customer", orders.group_by("customer").agg(n="count(*)", total="sum(amount)"))
"""

    def __init__(self, place: Path, server: Server) -> None:
        super().__init__(place)
        self.url = server.url
        self.connection: Any = psycopg.connect(server.url, autocommit=True, row_factory=dict_row)
        self.ask("create table orders (id bigint primary key, customer int, amount numeric(9, 2), note text)")
        self.ask("insert into orders select n, n % 5, n, null from generate_series(1, 50) n")

    def close(self) -> None:
        self.connection.close()

    def ask(self, text: str) -> list[dict[str, Any]]:
        found = self.connection.execute(text)
        return list(found.fetchall()) if found.description else []

    def attached(self) -> list[str]:
        address = self.url.replace("postgresql:", "postgres:")
        words = ["--from", f"orders={address}#orders", "--to", f"by_customer={address}#by_customer"]
        return [*words, "--to", f"moves={address}#moves", "--mode", "moves=changelog"]

    def feed(self, draw: Random) -> None:
        for _ in range(draw.randrange(1, 4)):
            key, other = draw.randrange(80), draw.randrange(80)
            self.ask(
                f"begin; delete from orders where id = {key};"
                f" insert into orders values ({other}, {draw.randrange(5)}, {key}, 'n')"
                f" on conflict (id) do update set amount = orders.amount + 1; commit"
            )

    def look(self) -> None:
        orders = {tuple(row.values()) for row in self.ask("select * from orders")}
        held = dd.read(self.place / "state", "moves").drop_columns(["_diff"]).to_pylist()
        assert {tuple(row.values()) for row in held} == orders and len(held) == len(orders)
        assert replayed(self.ask("select * from moves")) == orders
        expected = self.ask("select customer, count(*) as n, sum(amount) as total from orders group by 1 order by 1")
        assert self.ask("select * from by_customer order by 1") == expected
        assert [each["slot_name"] for each in self.ask("select slot_name from pg_replication_slots")] == ["ddflow"]


class PostgresColumnsRun(PostgresRun):
    """The same, and with each change but the first the table gets a column, and a row with it; with every second one
    all rows, too, so that it is copied again."""

    changes = -1

    def feed(self, draw: Random) -> None:
        super().feed(draw)
        self.changes += 1
        if self.changes:
            filled = "" if self.changes % 2 else "default 7"
            self.ask(f"alter table orders add column c{self.changes} int {filled}")
            self.ask(f"insert into orders (id, c{self.changes}) values ({100 + self.changes}, {draw.randrange(9)})")

    def look(self) -> None:
        super().look()
        names = [f"c{1 + number}" for number in range(self.changes)]
        assert dd.read(self.place / "state", "moves").schema.names[4:-1] == names


class PostgresUnloggedRun(PostgresRun):
    """The same, and with each change but the first rows change without a change in the log."""

    changes = -1
    acts = (
        ("set unlogged", "set logged"),
        ("replica identity nothing", "replica identity default"),
        ("alter note type varchar using note || 'x'", "alter note type text using note || 'y'"),
        ("drop constraint orders_pkey", "add primary key (id)"),
    )

    def feed(self, draw: Random) -> None:
        super().feed(draw)
        self.changes += 1
        if self.changes:
            before, after = self.acts[self.changes % len(self.acts)]
            self.ask(f"alter table orders {before}")
            self.ask(f"delete from orders where id % 9 = {draw.randrange(9)}")
            self.ask(f"update orders set amount = amount + 1 where id % 5 = {draw.randrange(5)}")
            self.ask(f"alter table orders {after}")


class PostgresTablesRun(PostgresRun):
    """The same, and with each change but the first the source gets a table, which was written to before."""

    changes = -1
    flow = (
        PostgresRun.flow
        + """
for name in ("t1", "t2", "t3"):
    flow.output(f"{name} rows", flow.upserts(name, {"id": int}, dd.Upsert(key="id"), format=dd.formats.wal2json()))
"""
    )

    def tables(self) -> list[str]:
        return [f"t{1 + number}" for number in range(min(self.changes, 3))]

    def attached(self) -> list[str]:
        feeds = ",".join(["orders=orders", *self.tables()])
        return ["--from", f"orders={self.url.replace('postgresql:', 'postgres:')}#{feeds}", *super().attached()[2:]]

    def feed(self, draw: Random) -> None:
        super().feed(draw)
        self.changes += 1
        if 0 < self.changes <= 3:
            self.ask(f"create table t{self.changes} (id int primary key)")
        for name in self.tables():
            rows = f"select 10 * n + {self.changes} from generate_series(1, 50) n"
            self.ask(f"insert into {name} {rows} on conflict do nothing")
            self.ask(f"delete from {name} where id % 10 = {self.changes} and id < {draw.randrange(300)}")

    def look(self) -> None:
        super().look()
        for name in self.tables():
            held = dd.read(self.place / "state", f"{name} rows").column("id").to_pylist()
            assert sorted(held) == [row["id"] for row in self.ask(f"select id from {name} order by 1")]
