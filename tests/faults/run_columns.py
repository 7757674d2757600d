"""A run from files that get a column now and then: state and targets have it, or none of its rows."""

from __future__ import annotations

import os
from pathlib import Path
from random import Random
from typing import Any

import polars as pl
from lives import Story
from run_files import of_duckdb, of_sqlite

import ddflow as dd


class ColumnsRun(Story):
    """Files of orders that get a column now and then."""

    flow = """
import ddflow as dd
flow = dd.Flow()
orders = flow.upserts("orders", {"id": int, "city": str}, dd.Upsert(key="id"))
for name in ("orders", "orders_log", "orders_lake"):
    flow.output(name, orders)
flow.output("cities", orders.count("city"))
"""

    def __init__(self, place: Path) -> None:
        super().__init__(place)
        self.model, self.number, self.columns = dict[int, dict[str, Any]](), 0, 0
        (place / "in").mkdir()

    def attached(self) -> list[str]:
        words = ["--from", f"orders=files:{self.place}/in/*.csv", "--mode", "orders_log=changelog"]
        targets = {"orders": "duckdb:{}/out.duckdb", "cities": "sqlite:{}/out.db", "orders_log": "sqlite:{}/log.db"}
        for name, target in (targets | {"orders_lake": "delta:{}/lake"}).items():
            words += ["--to", f"{name}={target.format(self.place)}"]
        return words

    def feed(self, draw: Random) -> None:
        names = [f"c{n}" for n in range(self.columns)]
        given = {
            draw.randrange(20): [draw.choice(["Bern", "Chur"]), *(draw.randrange(9) for _ in names)] for _ in "123"
        }
        lines = [["id", "city", *names], *([i, *row] for i, row in given.items())]
        part, file = self.place / "in" / "_part", self.place / "in" / f"{self.number:06}.csv"
        part.write_text("".join(",".join(map(str, line)) + "\n" for line in lines))
        os.utime(part, (1e9, 1e9))  # long ago, so nobody waits for its writer
        part.rename(file)
        self.model |= {i: dict(zip(["city", *names], row, strict=True)) for i, row in given.items()}
        self.number += 1
        self.columns += self.number > 1

    def look(self) -> None:
        names = ["id", "city", *(f"c{n}" for n in range(self.columns - 1))]
        orders = sorted(tuple(({"id": i} | row).get(name) for name in names) for i, row in self.model.items())
        at = self.place
        held = dd.read(at / "state", "orders").drop_columns(["_diff"])
        assert held.schema.names == names
        assert sorted(rows(held.to_pylist()), key=str) == sorted(orders, key=str)
        assert sorted(rows(of_duckdb(at / "out.duckdb", "orders")), key=str) == sorted(orders, key=str)
        lake = pl.read_delta(at / "lake").to_dicts()
        assert sorted(rows(lake), key=str) == sorted(orders, key=str)
        assert sum(row["count"] for row in of_sqlite(at / "out.db", "cities")) == len(orders)
        log = [row for row in of_sqlite(at / "log.db", "orders_log") if "pre" not in row["_change_type"]]
        last = {row["id"]: row for row in sorted(log, key=lambda row: row["_commit_version"])}
        assert sorted((tuple(row[name] for name in names) for row in last.values()), key=str) == sorted(orders, key=str)
        assert not dd.fsck(at / "state").problems


def rows(of: list[dict[str, Any]]) -> list[tuple[Any, ...]]:
    return [tuple(row.values()) for row in of]
