"""Runs queries beside DuckDB: the same upserts and deletes, step by step, and after each the same answer.

DuckDB recomputes from the accumulated input. Its answer is compared as a multiset, decimals and doubles by ten digits,
because DuckDB's types of sums and quotients are not Spark's.
"""

from __future__ import annotations

import random
from collections import Counter
from decimal import Decimal
from typing import Any

import duckdb
import pyarrow as pa
import sqlglot
from queries import TABLES, drawn

import ddflow as dd

Held = dict[str, dict[Any, dict[str, Any]]]


def flow_of() -> dd.Flow:
    """The three tables as upserts, of which ``gone`` deletes."""
    flow = dd.Flow()
    for name, (columns, keys) in TABLES.items():
        flow.upserts(name, {**columns, "gone": pa.bool_()}, dd.Upsert(key=keys, delete=dd.tombstone("gone", True)))
    return flow


def duck(query: str) -> str:
    """Spark's text as DuckDB's."""
    return str(sqlglot.transpile(query, read="spark", write="duckdb")[0])


def plain(value: Any) -> Any:
    """A value as it is compared."""
    if isinstance(value, int | float | Decimal) and not isinstance(value, bool):
        return f"{float(value):.10g}"
    return value


def answer(held: Held, query: str) -> Counter[Any]:
    """What DuckDB says."""
    with duckdb.connect() as connection:
        for name, rows in held.items():
            table = pa.Table.from_pylist(list(rows.values()), schema=pa.schema(list(TABLES[name][0].items())))
            connection.register(name, table)
        return Counter(tuple(map(plain, row)) for row in connection.execute(query).fetchall())


def step(chance: random.Random, held: Held, size: int = 7, least: int = 0) -> dict[str, pa.Table]:
    """Upserts and deletions of each table; ``held`` follows."""
    out = {}
    for name, (columns, (key,)) in TABLES.items():
        rows = drawn(chance, name, size, least)
        events = [{**row, "gone": chance.random() < 0.3} for row in rows]
        for row, event in zip(rows, events, strict=True):
            held[name].pop(row[key], None)
            if not event["gone"]:
                held[name][row[key]] = row
        out[name] = pa.Table.from_pylist(events, schema=pa.schema([*columns.items(), ("gone", pa.bool_())]))
    return out


def rows_of(table: pa.Table) -> Counter[Any]:
    """A table of updates, or of rows with ``_diff``, added up."""
    out: Counter[Any] = Counter()
    for row in table.to_pylist():
        diff = row.pop("_diff")
        row.pop("_time", None)
        out[tuple(map(plain, row.values()))] += diff
    return Counter({row: n for row, n in out.items() if n})


def same_as_duckdb(query: str, other: str, seed: int, steps: int = 4) -> None:
    """After every step the answer of DuckDB, read and added up; nothing before the first event."""
    chance, flow = random.Random(seed), flow_of()
    flow.output("out", flow.sql(query))
    held: Held = {name: {} for name in TABLES}
    told: Counter[Any] = Counter()
    with flow.open() as engine:
        assert rows_of(engine.read("out")) == Counter()
        for time in range(steps):
            given = step(chance, held, least=int(not time))  # an aggregate without groups waits for its first event
            told.update(rows_of(engine.step(given, time=time)["out"]))
            wanted = answer(held, duck(other))
            assert rows_of(engine.read("out")) == wanted, query
            assert Counter({row: n for row, n in told.items() if n}) == wanted, query
