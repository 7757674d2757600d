"""A run from files into every target that is a file: tables hold the rows of the files, changelogs each epoch once."""

from __future__ import annotations

import os
import sqlite3
from pathlib import Path
from random import Random
from typing import Any

import duckdb
import polars as pl
import pyarrow.parquet as pq
from lives import Story, replayed
from pyiceberg.catalog import load_catalog
from test_run import manifest_of

import ddflow as dd

Totals = set[tuple[str, int, int]]


class FilesRun(Story):
    """Files of orders, and all targets that are files."""

    flow = """
import ddflow as dd
flow = dd.Flow()
orders = flow.upserts("orders", {"id": int, "city": str, "amount": int}, dd.Upsert(key="id"))
for name in ("orders", "orders_log", "orders_file", "orders_lake", "orders_ice"):
    flow.output(name, orders)
for name in ("cities", "cities_log", "cities_lake", "cities_ice"):
    flow.output(name, orders.group_by("city").agg(n="count(*)", total="sum(amount)"))
"""

    def __init__(self, place: Path) -> None:
        super().__init__(place)
        self.model, self.number = dict[int, tuple[str, int]](), 0
        self.space = place.parent.name
        """The namespace of tables of Iceberg, whose catalog all lives share."""
        (place / "in").mkdir()

    def attached(self) -> list[str]:
        targets = {
            "orders": "duckdb:{}/out.duckdb",
            "orders_log": "sqlite:{}/log.db",
            "orders_file": "parquet:{}/files",
            "orders_lake": "delta:{}/orders_lake",
            "cities": "sqlite:{}/out.db",
            "cities_log": "duckdb:{}/log.duckdb",
            "cities_lake": "delta:{}/cities_lake",
            "orders_ice": f"iceberg:{self.space}.orders",
            "cities_ice": f"iceberg:{self.space}.cities",
        }
        words = ["--from", f"orders=files:{self.place}/in/*.csv"]
        for name, target in targets.items():
            words += ["--to", f"{name}={target.format(self.place)}"]
        for name in ("orders_log", "orders_file", "orders_lake", "orders_ice", "cities_log"):
            words += ["--mode", f"{name}=changelog"]
        return words

    def feed(self, draw: Random) -> None:
        rows = [(draw.randrange(50), draw.choice(["Bern", "Chur", "Basel"]), draw.randrange(9)) for _ in range(20)]
        self.model |= {i: (c, a) for i, c, a in rows}
        part, file = self.place / "in" / "_part", self.place / "in" / f"{self.number:06}.csv"
        part.write_text("id,city,amount\n" + "".join(f"{i},{c},{a}\n" for i, c, a in rows))
        os.utime(part, (1e9, 1e9))  # long ago, so nobody waits for its writer
        part.rename(file)
        self.number += 1

    def lived(self) -> None:
        """Files that the state has are taken away, so that later lives have no more calls than the first."""
        manifest = manifest_of(self.place / "state")
        sources = {} if manifest is None else manifest.sources  # it died before there was one
        for source in sources.values():
            for name in source.position["done"]:
                (self.place / "in" / name).unlink(missing_ok=True)

    def look(self) -> None:
        orders = {(i, *rest) for i, rest in self.model.items()}
        cities: Totals = set()
        for city in {city for city, _ in self.model.values()}:
            amounts = [amount for each, amount in self.model.values() if each == city]
            cities.add((city, len(amounts), sum(amounts)))
        at = self.place
        assert {tuple(row.values())[:3] for row in dd.read(at / "state", "orders").to_pylist()} == orders
        assert same(of_sqlite(at / "out.db", "cities"), cities)
        assert same(of_duckdb(at / "out.duckdb", "orders"), orders)
        assert same(pl.read_delta(at / "cities_lake").to_dicts(), cities)
        assert replayed(of_sqlite(at / "log.db", "orders_log")) == orders
        assert replayed(of_duckdb(at / "log.duckdb", "cities_log")) == cities
        assert replayed(pl.read_delta(at / "orders_lake").to_dicts()) == orders
        assert same(of_iceberg(f"{self.space}.cities"), cities)
        assert replayed(of_iceberg(f"{self.space}.orders")) == orders
        written = sorted(path.stem for path in (at / "files" / "_written").glob("*.json"))
        files = [row for stem in written for row in pq.read_table(at / "files" / f"{stem}.parquet").to_pylist()]
        assert replayed(files) == orders
        assert not dd.fsck(at / "state").problems


def same(rows: list[dict[str, Any]], expected: set[Any]) -> bool:
    """Whether a table has these rows, each once."""
    return len(rows) == len(expected) and {tuple(row.values()) for row in rows} == expected


def of_sqlite(path: Path, table: str) -> list[dict[str, Any]]:
    connection = sqlite3.connect(path)
    connection.row_factory = sqlite3.Row
    try:
        return [dict(row) for row in connection.execute(f"select * from {table}")]
    finally:
        connection.close()


def of_duckdb(path: Path, table: str) -> list[dict[str, Any]]:
    with duckdb.connect(path, read_only=True) as connection:
        return connection.sql(f"from {table}").to_arrow_table().to_pylist()


def of_iceberg(table: str) -> list[dict[str, Any]]:
    prefix = "PYICEBERG_CATALOG__DEFAULT__"
    given = {name.removeprefix(prefix).lower(): os.environ[name] for name in os.environ if name.startswith(prefix)}
    return load_catalog("default", **given).load_table(table).scan().to_arrow().to_pylist()
