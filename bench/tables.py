"""Compare two tables by key: `dd.compare` beside DuckDB's full outer join.

The rows of the table *after* have the same keys as the rows before, in another order. A fiftieth of the rows has a new
value in one of three columns: an int64, a double and a text. A two-hundredth of the rows was removed, and as many rows
were added. The tables are Parquet files, or Arrow tables in memory. The answer must equal the changes that the
generator made: the key, the kind of change, and every other column before and after. Limits: one thread. The memory is
the growth of the process in the first comparison after a warm-up; the time is that of the second comparison.

>>> BENCH.measure("text", "Parquet", "duckdb", 2000)["checksum"] == BENCH.expected("text", 2000)
True
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Iterator, Sequence
from statistics import median
from typing import Any

import memory
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import xxhash
from report import Bar, Row, within
from runner import Bench, Job

KEYS, SOURCES, CONTENDERS = ("int64", "text"), ("Parquet", "Arrow"), ("ddflow", "duckdb")
MOST_CPU, MOST_MEMORY = 1.0, 1.5
NAMES = ("id", "_change", *(f"{name}_{side}" for name in ("n", "price", "city") for side in ("before", "after")))
QUERY = """
select coalesce(b.id, a.id) as id,
    case when a.id is null then 'removed' when b.id is null then 'added' else 'changed' end as _change,
    b.n as n_before, a.n as n_after, b.price as price_before, a.price as price_after,
    b.city as city_before, a.city as city_after
from {} b full outer join {} a on b.id = a.id
where b.id is null or a.id is null or b.n is distinct from a.n or b.price is distinct from a.price
    or b.city is distinct from a.city
order by 1
"""


class Tables(Bench):
    """The bench, with one job for each type of key, source and contender."""

    name = "tables"
    about = "Two tables compared by key: dd.compare beside a full outer join."
    sampled = ("seconds", "cpu_seconds", "peak_mb")
    quick = ({}, {"n": "100000"})
    columns = (
        "key {key} | source {source} | contender {contender} | rows {rows:,} | differences {differences:,} | "
        "M/s {m_per_s:.2f} | seconds {median_seconds:.2f} | CPU s {cpu_seconds!m:.2f} | x peer {of_cpu:.2f} | "
        "peak MB {peak_mb!m:,.0f} | x peer {of_memory:.2f}"
    )

    def jobs(self) -> list[Job]:
        return [
            Job({"key": key, "source": source, "contender": contender, "n": 3_000_000}, rounds=3)
            for key in KEYS
            for source in SOURCES
            for contender in CONTENDERS
        ]

    def question(self, job: Job) -> dict[str, Any]:
        return {"key": job.what["key"], "n": job.what["n"]}

    def expected(self, key: str, n: int) -> str:
        """Return the checksum of the differences that the generator made."""
        return digest(differences(key, n))

    def measure(self, key: str, source: str, contender: str, n: int) -> dict[str, Any]:
        """Compare two smaller tables, which loads the kernels, then the tables of the job twice."""
        pa.set_cpu_count(1)
        compare = {"ddflow": _compare, "duckdb": _join}[contender]
        with tempfile.TemporaryDirectory(prefix="ddflow-bench-") as folder:
            compare(*_given(sides(key, min(n, 50_000)), source, folder))
            given = _given(sides(key, n), source, folder)
            memory.settled()
            memory.forget_peak()
            before = memory.peak()
            compare(*given)
            peak, cpu, began = memory.peak() - before, time.process_time(), time.perf_counter()
            found = compare(*given)
            took, cpu = time.perf_counter() - began, time.process_time() - cpu
        figures = {"seconds": took, "cpu_seconds": cpu, "peak_mb": peak / 2**20, "checksum": digest(found)}
        return {"rows": 2 * n, "differences": found.num_rows, **figures}

    def compared(self, rows: list[Row]) -> list[Row]:
        """Add the ratios of CPU time and of memory to those of the peer in the same run."""
        for row in rows:
            peer = {(each["key"], each["source"]): each for each in rows if each["contender"] == "duckdb"}
            base = peer.get((row["key"], row["source"]))
            for field, name in (("cpu_seconds", "of_cpu"), ("peak_mb", "of_memory")):
                row[name] = None if base is None else median(row[field]) / max(median(base[field]), 1e-9)
        return rows

    def bars(self, result: Row) -> Iterator[Bar]:
        """Yield the bars: a multiple of the peer's CPU time and of its memory."""
        for row in result["results"]:
            if row["contender"] == "ddflow" and row["of_cpu"] is not None:
                line = f"{row['key']} keys, {row['source']}"
                for what, ratio, most in (("CPU", row["of_cpu"], MOST_CPU), ("memory", row["of_memory"], MOST_MEMORY)):
                    yield within(f"{line}: {what}", f"{ratio:.2f} x", f"at most {most} x", ratio <= most, "duckdb")


def sides(key: str, n: int) -> list[pa.Table]:
    """Return the tables before and after, n rows each."""
    ids, columns, later, _ = _draw(n)
    order = np.random.default_rng(1).permutation(np.arange(n // 200, ids.size))
    rows = (np.arange(n), columns), (order, later)
    return [_table(key, ids[at], [column[at] for column in values]) for at, values in rows]


def differences(key: str, n: int) -> pa.Table:
    """Return the rows that `sides` makes different, in any order."""
    ids, columns, later, changed = _draw(n)
    at = np.arange(ids.size)
    removed, added = at < n // 200, at >= n
    found = np.flatnonzero(removed | added | changed)
    one, other = (_table(key, ids[found], [each[found] for each in values]) for values in (columns, later))
    kind = np.where(removed, "removed", np.where(added, "added", "changed"))[found]
    made = {"id": one.column("id"), "_change": pa.array(kind)}
    for name in one.column_names[1:]:
        for side, values, missing in (("before", one, added), ("after", other, removed)):
            made[f"{name}_{side}"] = values.column(name).take(pa.array(np.arange(found.size), mask=missing[found]))
    return pa.table(made)


def digest(table: pa.Table) -> str:
    """Return a checksum of differences in any order."""
    rows = zip(*(table.column(name).to_pylist() for name in NAMES), strict=True)
    return xxhash.xxh3_64("\n".join(sorted(map(str, rows))).encode()).hexdigest()


def _draw(n: int) -> tuple[Any, list[Any], list[Any], Any]:
    """Draw keys, the columns before, the columns after, and the marks of changed rows.

    The first two-hundredth of the rows is removed, and the rows after the first n are added.
    """
    rng = np.random.default_rng(0)
    ids = rng.permutation(n + n // 200)
    columns = [rng.integers(0, most, ids.size) for most in (1_000_000, 1_000_000, 100_000)]
    at = np.arange(ids.size)
    changed, which = (rng.random(ids.size) < 0.02) & (at >= n // 200) & (at < n), rng.integers(0, 3, ids.size)
    return ids, columns, [column + (changed & (which == i)) for i, column in enumerate(columns)], changed


def _table(key: str, ids: Any, columns: Sequence[Any]) -> pa.Table:
    n, price, city = columns
    keys = ids if key == "int64" else np.char.add("customer-", ids.astype(str))
    cities = np.char.add("city-", city.astype(str))
    return pa.table({"id": pa.array(keys), "n": n, "price": price / 8, "city": pa.array(cities)})


def _given(tables: Sequence[pa.Table], source: str, folder: str) -> list[Any]:
    """Return what a contender compares: the tables, or the paths of Parquet files with their rows."""
    if source == "Arrow":
        return list(tables)
    paths = [os.path.join(folder, f"{side}.parquet") for side in ("before", "after")]
    for table, path in zip(tables, paths, strict=True):
        pq.write_table(table, path)
    return paths


def _compare(before: Any, after: Any) -> pa.Table:
    import ddflow as dd

    return dd.compare(before, after, key="id")


def _join(before: Any, after: Any) -> pa.Table:
    import duckdb

    with duckdb.connect(config={"threads": 1}) as connection:
        names = []
        for name, given in (("before", before), ("after", after)):
            if isinstance(given, pa.Table):
                connection.register(name, given)
            names.append(name if isinstance(given, pa.Table) else f"'{given}'")
        return connection.sql(QUERY.format(*names)).to_arrow_table()


BENCH = Tables()
