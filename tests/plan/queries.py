"""Queries over three small tables, such that each rule of ``ddflow.plan.sql`` is met; DuckDB says what they give.

They stand in ``queries.sql``, a line each, in sections: ``rowwise`` needs filter and project, ``distinct`` that too,
``groups``, ``joins``, ``subqueries``, ``sets``, ``tops`` and ``windows`` more, and ``odd`` ones have any answer or are
refused.
Where DuckDB writes one in another way than Spark, its text stands behind ``||``. Columns may be null but for keys.
"""

from __future__ import annotations

import datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa

TABLES: dict[str, tuple[dict[str, pa.DataType], list[str]]] = {
    "o": (
        {
            "id": pa.int64(),
            "c": pa.int32(),
            "status": pa.string(),
            "amount": pa.decimal128(10, 2),
            "d": pa.date32(),
            "n": pa.int64(),
        },
        ["id"],
    ),
    "c": ({"id": pa.int32(), "name": pa.string(), "city": pa.string(), "n": pa.int64()}, ["id"]),
    "t": ({"k": pa.int64(), "a": pa.int64(), "b": pa.string(), "f": pa.float64()}, ["k"]),
}
"""Their columns and keys."""


def listed(*sections: str) -> list[tuple[str, str]]:
    """The queries of some sections, each with what DuckDB is asked."""
    out, here = list[tuple[str, str]](), False
    for line in (Path(__file__).parent / "queries.sql").read_text().splitlines():
        if line.startswith("-- "):
            here = line[3:] in sections
        elif line and here:
            query, _, other = line.partition(" || ")
            out.append((query, other or query))
    return out


def drawn(chance: Any, name: str, size: int, least: int = 0) -> list[dict[str, Any]]:
    """``least`` to ``size`` rows of a table, by a ``random.Random``: few values, many nulls."""
    values: dict[str, list[Any]] = {
        "c": [None, 1, 2, 3, 4, 9],
        "status": [None, "paid", "open", "Bern"],
        "amount": [None, *map(Decimal, ("1.50", "2.00", "7.25"))],
        "d": [None, *(datetime.date(2024, 1, day) for day in range(1, 6))],
        "n": [None, 0, 1, 1, 2, 3],
        "name": ["a", "b", None],
        "city": [None, "Bern", "Basel"],
        "a": [None, 0, 1, 2, 3],
        "b": [None, "paid", "Bern"],
        "f": [None, 1.0, 2.0, 2.5],
    }
    columns, (key,) = TABLES[name]
    keys = sorted(chance.sample(range(1, 10), chance.randint(least, size)))
    return [{key: each} | {c: chance.choice(values[c]) for c in columns if c != key} for each in keys]
