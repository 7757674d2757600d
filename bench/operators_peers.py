"""Run ddflow and the recomputing peers DuckDB and Polars on orders and customers.

>>> from operators_work import changes, loaded, revenue
>>> size = Size(keys=100, rows=40, step=20)
>>> found = []
>>> for contender in CONTENDERS.values():
...     runner = contender("revenue", size, None)
...     for number, tables in enumerate((loaded(size), *(changes(size, each) for each in range(2)))):
...         runner.ready(tables)
...         runner.take(runner.step(tables, number))
...     found.append(runner.answer())
>>> len(set(found)), found[0] == contents([revenue(size)])
(1, True)
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from operators_work import CUSTOMERS, ORDERS, Size, Tables, contents, times_of
from peers_sql import connect

if TYPE_CHECKING:
    import ddflow as dd

THREADS = 2
"""The number of threads of peers that recompute."""
QUERY = f"select city, count(*) n, sum(amount) s from {ORDERS} join {CUSTOMERS} on customer = of group by city"


def plan(line: str, clock: bool) -> dd.Flow:
    """Return the flow that joins each order with the city of its customer.

    For ``revenue``, the flow then counts the orders and sums the amounts by city.
    """
    import ddflow as dd

    flow, time = dd.Flow(), {"time": "time"} if clock else {}
    orders = flow.upserts(ORDERS, dict.fromkeys(["id", "customer", "amount", *time], int), dd.Upsert("id", **time))
    customers = flow.upserts(CUSTOMERS, dict.fromkeys(["of", "city", *time], int), dd.Upsert("of", **time))
    rows = orders.join(customers, on={"customer": "of"}).project(["id", "customer", "amount", "city"])
    if line.startswith("revenue"):
        rows = rows.group_by("city").agg(n="count(*)", s="sum(amount)")
    flow.output("out", rows)
    return flow


class Incremental:
    """The contender ddflow, which takes each step as an epoch.

    In the line ``join``, the rows of a step have a hundred different times, as in W1.
    """

    def __init__(self, line: str, size: Size, memory: str | None, threads: int = 1) -> None:
        self._clock, self._size = line == "join", size
        self._folder = tempfile.TemporaryDirectory(prefix="ddflow-bench-")
        options: dict[str, Any] = {} if memory is None else {"memory": memory, "spill": self._folder.name}
        self._engine, self._sum = plan(line, self._clock).open(threads=threads, **options), 0

    def ready(self, tables: Tables) -> None:
        """Do nothing."""

    def step(self, tables: Tables, number: int) -> pa.Table:
        """Run a step and return its updates."""
        if not self._clock:
            bare = {name: table.drop_columns("time") for name, table in tables.items()}
            return self._engine.step(bare, time=number)["out"]
        self._engine.push(tables)
        return self._engine.advance_to(times_of(self._size, number)[0])["out"]

    def take(self, out: pa.Table) -> None:
        """Add the updates to the checksum."""
        self._sum += int(contents([out]), 16)

    def answer(self) -> str:
        """Return the checksum of the final rows; raise AssertionError if customers are arranged more than once."""
        held = list(self._engine.stats()["arrangements"])
        if sum(name == CUSTOMERS or "'of'" in name for name in held) != 1:
            raise AssertionError(f"customers are not arranged exactly once: {held}")
        return f"{self._sum % 2**64:016x}"

    def bytes(self) -> int:
        """Return the engine's bytes, in memory and in mapped files."""
        stats = self._engine.stats()
        return int(stats["bytes_resident"] + stats["bytes_mapped"])


class Recomputed:
    """A peer that recomputes the query at each step and keeps only the newest answer.

    A step has two calls: `ready` is not timed, and `step` is timed. Most peers update their tables in `ready`. So only
    the query of these peers is timed, which makes them look faster. The peer ``polars-upkeep`` updates its tables in
    `step`. ddflow does nothing in `ready`.
    """

    def __init__(self, line: str, size: Size, memory: str | None) -> None:
        self._last = pa.table({})

    def ready(self, tables: Tables) -> None:
        """Update the tables."""

    def step(self, tables: Tables, number: int) -> pa.Table:
        """Return the query's answer."""
        raise NotImplementedError

    def take(self, out: pa.Table) -> None:
        """Keep the answer."""
        self._last = out

    def answer(self) -> str:
        """Return the answer's checksum."""
        return contents([self._last.select(["city", "n", "s"])])

    def bytes(self) -> int:
        """Return 0, because the bytes of peers are not counted."""
        return 0


class Duck(Recomputed):
    """DuckDB on two threads. DuckDB merges the rows of a step into its own tables, and then queries these tables."""

    def __init__(self, line: str, size: Size, memory: str | None) -> None:
        super().__init__(line, size, memory)
        self._connection, self._first = connect(THREADS), True

    def ready(self, tables: Tables) -> None:
        """Merge the last row of each key into the tables."""
        for (name, table), key in zip(tables.items(), ("id", "of"), strict=True):
            self._connection.register("events", _last(table, key))
            self._connection.execute(
                f"create table {name} as select * from events"
                if self._first
                else f"merge into {name} using events on {name}.{key} = events.{key} "
                "when matched then update when not matched then insert"
            )
        self._first = False

    def step(self, tables: Tables, number: int) -> pa.Table:
        """Return the query's answer."""
        return self._connection.sql(QUERY).to_arrow_table()


class Polars(Recomputed):
    """Polars. The rows of a step replace the rows with the same keys, and then a query runs over the frames."""

    def __init__(self, line: str, size: Size, memory: str | None) -> None:
        super().__init__(line, size, memory)
        self._frames = dict[str, Any]()

    def ready(self, tables: Tables) -> None:
        """Replace rows in the frames."""
        import polars as pl

        for (name, table), key in zip(tables.items(), ("id", "of"), strict=True):
            last = pl.DataFrame(table.drop_columns("time")).unique(subset=key, keep="last")
            held = self._frames.get(name, last.clear())
            self._frames[name] = pl.concat([held.join(last, on=key, how="anti"), last])

    def step(self, tables: Tables, number: int) -> pa.Table:
        """Return the query's answer."""
        import polars as pl

        orders, customers = (self._frames[name].lazy() for name in (ORDERS, CUSTOMERS))
        both = orders.join(customers, left_on="customer", right_on="of")
        counted = both.group_by("city").agg(n=pl.len().cast(pl.Int64), s=pl.col("amount").sum())
        return counted.collect().to_arrow()


class Upkeep(Recomputed):
    """A peer with the update of its tables included in the time."""

    def ready(self, tables: Tables) -> None:
        """Do nothing."""

    def step(self, tables: Tables, number: int) -> pa.Table:
        """Update the tables and return the query's answer."""
        super().ready(tables)
        return super().step(tables, number)


class DuckUpkeep(Upkeep, Duck):
    """DuckDB, with its merges."""


class PolarsUpkeep(Upkeep, Polars):
    """Polars, with the replacement of its rows."""


def _last(table: pa.Table, key: str) -> pa.Table:
    """Return the last row of each key, without its time.  O(n log n)."""
    keys = table[key].to_numpy()
    _, at = np.unique(keys[::-1], return_index=True)
    return table.drop_columns("time").take(pa.array(len(keys) - 1 - at))


CONTENDERS: dict[str, Callable[[str, Size, str | None], Any]] = {
    "ddflow": Incremental,
    "duckdb": Duck,
    "duckdb-upkeep": DuckUpkeep,
    "polars": Polars,
    "polars-upkeep": PolarsUpkeep,
}
