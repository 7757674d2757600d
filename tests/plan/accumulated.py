"""DuckDB as a witness: it keeps the accumulated input of upserts and deletes, and recomputes queries over it.

Answers are compared as multisets. Columns that DuckDB has as doubles where Spark has decimals or exact averages
(quotients, averages) are compared to the last digit of our decimal, or to twelve digits; all others exactly.

>>> ours = pa.table({"city": ["Bern", "Bern"], "mean": [0.1 + 0.2, 7.0], "_diff": [1, 2]})
>>> same(ours, pa.table({"city": ["Bern"] * 3, "mean": [7.0, 0.3, 7.0]}))
''
>>> same(ours, pa.table({"city": ["Bern"] * 3, "mean": [7.0, 0.3, 7.1]}))
"('Bern',): (7.0,), and (7.1,) by DuckDB"
>>> same(ours, pa.table({"city": ["Bern"] * 2, "mean": [0.3, 7.0]}))
"('Bern',): 3 times, and 2 times by DuckDB"
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import Any

import duckdb
import pyarrow as pa
import sqlglot


def duck(query: str) -> str:
    """Spark's text as DuckDB's."""
    return str(sqlglot.transpile(query, read="spark", write="duckdb")[0])


class Accumulated:
    """Tables by name, each with its key; ``threads`` of DuckDB."""

    def __init__(self, types: Mapping[str, Mapping[str, pa.DataType]], keys: Mapping[str, Sequence[str]], threads: int):
        self.connection = duckdb.connect(config={"threads": threads})
        self.keys = keys
        for name, columns in types.items():
            empty = pa.schema(list(columns.items())).empty_table()
            self.connection.register("step", empty)
            self.connection.execute(f"create table {name} as select * from step")

    def apply(self, step: Mapping[str, pa.Table]) -> None:
        """Take upserts, and deletes where ``gone``; a key occurs once in a step."""
        for name, events in step.items():
            self.connection.register("step", events)
            same = " and ".join(f"{name}.{key} = step.{key}" for key in self.keys[name])
            self.connection.execute(f"delete from {name} using step where {same}")
            self.connection.execute(f"insert into {name} select * exclude (gone) from step where not gone")

    def answer(self, query: str) -> pa.Table:
        """What a query in DuckDB's dialect gives."""
        return self.connection.sql(query).to_arrow_table()

    def close(self) -> None:
        """Let go of the tables."""
        self.connection.close()


def rows_of(table: pa.Table) -> dict[tuple[Any, ...], int]:
    """A table of updates, or of rows with ``_diff``, added up: each row's multiplicity where it is not 0."""
    out: dict[tuple[Any, ...], int] = defaultdict(int)
    columns = [table[name].to_pylist() for name in table.column_names if name not in ("_time", "_diff")]
    for row, diff in zip(zip(*columns, strict=True), table["_diff"].to_pylist(), strict=True):
        out[row] += diff
    return {row: diff for row, diff in out.items() if diff}


def same(ours: pa.Table, theirs: pa.Table) -> str:
    """How an answer of ours differs from DuckDB's, nothing where it does not; columns are matched by place."""
    names = [name for name in ours.column_names if name != "_diff"]
    if len(names) != theirs.num_columns:
        return f"{names} are not {theirs.column_names}"
    near = [
        10.0**-kind.scale if pa.types.is_decimal(kind := ours.schema.field(name).type) else 0.0
        for name, told in zip(names, theirs.schema, strict=True)
        if pa.types.is_floating(told.type)
    ]
    rough = [pa.types.is_floating(told.type) for told in theirs.schema]
    mine = [row for row, many in rows_of(ours).items() for _ in range(many)]
    told = list(zip(*(column.to_pylist() for column in theirs.columns), strict=True))
    one, other = _apart(mine, rough), _apart(told, rough)
    for exact in one.keys() | other.keys():
        if len(one[exact]) != len(other[exact]):
            return f"{exact}: {len(one[exact])} times, and {len(other[exact])} times by DuckDB"
        for a, b in zip(sorted(one[exact]), sorted(other[exact]), strict=True):
            if not all(_close(x, y, least) for x, y, least in zip(a, b, near, strict=True)):
                return f"{exact}: {a}, and {b} by DuckDB"
    return ""


def _apart(rows: list[tuple[Any, ...]], rough: list[bool]) -> dict[Any, list[Any]]:
    """Rows by their exact columns; the others as numbers, a null as minus infinity."""
    out: dict[Any, list[Any]] = defaultdict(list)
    for row in rows:
        exact = tuple(_plain(value) for value, loose in zip(row, rough, strict=True) if not loose)
        out[exact].append(
            tuple(float("-inf") if v is None else float(v) for v, loose in zip(row, rough, strict=True) if loose)
        )
    return out


def _plain(value: Any) -> Any:
    return value.normalize() if isinstance(value, Decimal) else value


def _close(one: float, other: float, least: float) -> bool:
    return one == other or abs(one - other) <= least + 1e-12 * abs(other)
