"""The tables of TPC-H as steps of upserts and deletes by primary key, of any scale.

``tpchgen-cli`` makes the tables. A `Feed` gives them in steps: the first brings most rows, and each later one inserts,
changes and deletes some, rows that were deleted before among them. A changed row has the values of another row of its
table, in all columns or in some, so that they are distributed as TPC-H says. Everything is drawn by a seed.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sysconfig
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from tpch_queries import KEYS, QUERIES, TYPES, text

import ddflow as dd

Step = dict[str, pa.Table]
FEW = 25


def files(folder: Path, scale: float) -> Path:
    """Where the tables of a scale are as Parquet files, made on first use."""
    made = folder / f"tpch-{scale:g}"
    if not made.exists():
        places = os.pathsep.join((sysconfig.get_path("scripts"), os.environ.get("PATH", "")))
        command = shutil.which("tpchgen-cli", path=places)
        assert command, "tpchgen-cli is not installed: it is among the dependencies for development"
        folder.mkdir(parents=True, exist_ok=True)
        scratch = tempfile.mkdtemp(dir=folder)
        subprocess.run([command, "parquet", "-s", f"{scale:g}", "-o", scratch], check=True, capture_output=True)
        os.replace(scratch, made)
    return made


def with_gone(columns: dict[str, pa.DataType]) -> pa.Schema:
    """The columns of a table's events."""
    return pa.schema([*columns.items(), ("gone", pa.bool_())])


def asked(number: int) -> list[str]:
    """The tables of a query."""
    return [name for name in TYPES if re.search(rf"\b{name}\b", QUERIES[number])]


def flow_with(numbers: Sequence[int], scale: float) -> tuple[dd.Flow, list[str]]:
    """The queries as outputs ``q1`` and so on, over upserts of which ``gone`` deletes; and the names of these."""
    flow, names = dd.Flow(), [name for name in TYPES if any(name in asked(number) for number in numbers)]
    for name in names:
        flow.upserts(name, with_gone(TYPES[name]), dd.Upsert(key=KEYS[name], delete=dd.tombstone("gone", True)))
    for number in numbers:
        flow.output(f"q{number}", flow.sql(text(number, scale)))
    return flow, names


class Feed:
    """The steps; ``fixed`` names tables that do not change after the first one.

    ``count`` rows change in a step after the first, in each table as many as its size says, and one at least. A table
    of few rows is whole in the first step; then by turns a row of it changes and all are as they were, because a query
    that asks for a nation would find nothing after many changes.
    """

    def __init__(self, folder: Path, count: int, fixed: Sequence[str] = (), names: Sequence[str] = tuple(TYPES)):
        self.tables = {
            name: pq.read_table(folder / f"{name}.parquet").cast(pa.schema(list(TYPES[name].items()))).combine_chunks()
            for name in names
        }
        self.chance, self.turn = np.random.default_rng(20), False
        size = sum(table.num_rows for table in self.tables.values())
        self.counts = {
            name: 0 if name in fixed else -(-count * table.num_rows // size) for name, table in self.tables.items()
        }
        self.present = {name: np.ones(table.num_rows, bool) for name, table in self.tables.items()}

    def first(self) -> Step:
        """Most rows of every table, and all of those that are fixed."""
        out = {}
        for name, table in self.tables.items():
            if self.counts[name] and table.num_rows > FEW:
                self.present[name] = self.chance.random(table.num_rows) < 0.9
            out[name] = self._events(table.take(np.flatnonzero(self.present[name])))
        return out

    def later(self) -> Step:
        """Insertions, changes and deletions, by turns of three and a rest of changes."""
        self.turn = not self.turn
        return {name: self._changed(name, count) for name, count in self.counts.items() if count}

    def steps(self, number: int) -> Iterator[Step]:
        """The first step and those after it."""
        yield self.first()
        for _ in range(number - 1):
            yield self.later()

    def _changed(self, name: str, count: int) -> pa.Table:
        table, present, chance = self.tables[name], self.present[name], self.chance
        if table.num_rows <= FEW:
            return self._events(
                self._mixed(name, chance.permutation(len(present))[:1], TYPES[name]) if self.turn else table
            )
        absent, held = np.flatnonzero(~present), np.flatnonzero(present)
        come = chance.choice(absent, min(len(absent), (count + 1) // 4), replace=False)
        met = chance.choice(held, min(len(held), count - len(come)), replace=False)
        gone, changed = met[: count // 4], met[count // 4 :]
        present[come], present[gone] = True, False
        half = len(changed) // 2
        parts = [
            self._events(table.take(come)),
            self._events(table.take(gone), gone=True),
            self._events(self._mixed(name, changed[:half], TYPES[name])),
            self._events(self._mixed(name, changed[half:], self._some(name))),
        ]
        events = pa.concat_tables(parts)
        return events.take(chance.permutation(events.num_rows)).combine_chunks()

    def _mixed(self, name: str, rows: Any, taken: Any) -> pa.Table:
        """Rows that have the values of others in the columns that are taken."""
        table = self.tables[name]
        others = self.chance.integers(0, table.num_rows, len(rows))
        columns = {c: table[c].take(others if c in taken and c not in KEYS[name] else rows) for c in table.column_names}
        return pa.table(columns, schema=table.schema)

    def _some(self, name: str) -> set[str]:
        """Half of the columns that refer to no other table."""
        return {c for c in TYPES[name] if not c.endswith("key") and self.chance.random() < 0.5}

    @staticmethod
    def _events(rows: pa.Table, gone: bool = False) -> pa.Table:
        return rows.append_column("gone", pa.array(np.full(rows.num_rows, gone)))
