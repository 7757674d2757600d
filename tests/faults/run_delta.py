"""A run from a followed table of Delta Lake, whose rows come, change and go: each version is taken once."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import deltalake
import polars as pl
import pyarrow as pa
from lives import Story, replayed
from run_files import of_sqlite

import ddflow as dd

FIRST = pa.schema({"id": pa.int64(), "city": pa.string()})


class DeltaRun(Story):
    """A table that is followed by key, and as differences."""

    flow = """
import ddflow as dd
flow = dd.Flow()
people = flow.upserts("people", {"id": int, "city": str}, dd.Upsert(key="id"), format=dd.formats.delta_cdf())
feed = {"id": int, "city": str, "_change_type": str, "_commit_version": int}
rows = flow.updates("rows", feed, diff=dd.delta_cdf)
flow.output("people", people)
flow.output("lake", people)
flow.output("log", people)
flow.output("cities", rows.count("city"))
"""

    def __init__(self, place: Path) -> None:
        super().__init__(place)
        self.table, self.number, self.columns = place / "in", 0, list[str]()
        feed = {"delta.enableChangeDataFeed": "true"}
        deltalake.DeltaTable.create(self.table, deltalake.Schema.from_arrow(FIRST), configuration=feed)

    def attached(self) -> list[str]:
        words = [
            "--from",
            f"people=delta:{self.table}",
            "--from",
            f"rows=delta:{self.table}",
            "--mode",
            "log=changelog",
        ]
        targets = {"people": "sqlite:{}/out.db", "cities": "sqlite:{}/out.db", "log": "sqlite:{}/log.db"}
        for name, target in (targets | {"lake": "delta:{}/lake"}).items():
            words += ["--to", f"{name}={target.format(self.place)}"]
        return words

    def feed(self, draw: Random) -> None:
        self.number += 1
        of, ids = deltalake.DeltaTable(self.table), sorted(draw.sample(range(30), 5))
        if self.number % 5 == 4:
            self.columns.append(f"c{len(self.columns)}")
        rows = {"id": ids, "city": [draw.choice(["Bern", "Chur", "Genf"]) for _ in ids]}
        rows |= {name: [draw.randrange(9) for _ in ids] for name in self.columns}
        merge = of.merge(pa.table(rows), "t.id = s.id", source_alias="s", target_alias="t", merge_schema=True)
        merge.when_matched_delete("s.id % 3 = 0").when_matched_update_all().when_not_matched_insert_all().execute()
        if self.number % 7 == 6:
            deltalake.DeltaTable(self.table).optimize.compact()

    def look(self) -> None:
        there = pl.read_delta(self.table).to_dicts()
        assert there
        rows, at = {row["id"]: row for row in there}, self.place
        for held in (
            dd.read(at / "state", "people").drop_columns(["_diff"]).to_pylist(),
            of_sqlite(at / "out.db", "people"),
            pl.read_delta(at / "lake").to_dicts(),
        ):
            assert {row["id"]: row for row in held} == rows and len(held) == len(rows)
        counts = {row["city"]: row["count"] for row in of_sqlite(at / "out.db", "cities")}
        cities = [row["city"] for row in there]
        assert counts == {city: cities.count(city) for city in cities}
        assert len(replayed(_alike(of_sqlite(at / "log.db", "log")))) == len(rows)
        assert not dd.fsck(at / "state").problems


def _alike(rows: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Rows of a changelog without the columns that came while it was written: rows before them have none."""
    for row in rows:
        yield {name: value for name, value in row.items() if name in ("id", "city") or name.startswith("_")}
