"""Make the orders and customers of the operators bench, and each line's known final rows.

Tables depend only on sizes and a seed. numpy computes the final rows: it assigns all events to arrays in order, so the
last event of a key remains. Orders have the columns (id, customer, amount), and each customer has ten orders. Customers
have the columns (of, city), with a thousand cities. In a step, 90 % of the events are orders and 10 % are customers.
Keys are random, and each time has a thousand events. This module does not run contenders.

>>> size = Size(keys=1000, rows=4000, step=2000)
>>> [(table.num_rows, table.column_names) for table in changes(size, 0).values()]
[(1800, ['id', 'customer', 'amount', 'time']), (200, ['of', 'city', 'time'])]
>>> joined(size).num_rows, sum(revenue(size)["n"].to_pylist())
(1000, 1000)
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
import workloads

CITIES, VALUES, A_TIME = 1000, 1000, 1000
ORDERS, CUSTOMERS = "orders", "customers"
WARM: Final = 3
"""The number of warm-up steps, which are not timed."""


class Size(NamedTuple):
    """A size.

    The load has ``keys`` orders and a tenth as many customers. Then come ``rows`` events in steps of ``step`` events.
    """

    keys: int
    rows: int
    step: int

    @property
    def customers(self) -> int:
        """Number of customers."""
        return max(self.keys // 10, 1)

    @property
    def steps(self) -> int:
        """Number of steps, including warm-up steps."""
        return self.rows // self.step


Tables = dict[str, pa.Table]


def loaded(size: Size) -> Tables:
    """Return all orders in random order and all customers, for a load before the first step."""
    chance = np.random.default_rng([7, size.keys])
    orders = {"id": chance.permutation(size.keys), **_order(chance, size, size.keys)}
    customers = {"of": chance.permutation(size.customers), "city": chance.integers(0, CITIES, size.customers)}
    return {name: _table(columns, 0, len(columns)) for name, columns in ((ORDERS, orders), (CUSTOMERS, customers))}


def changes(size: Size, number: int) -> Tables:
    """Return the events of a step, one table for each input."""
    chance, of_customers = np.random.default_rng([8, size.keys, size.step, number]), max(size.step // 10, 1)
    n = size.step - of_customers
    orders = {"id": chance.integers(0, size.keys, n), **_order(chance, size, n)}
    customers = {"of": chance.integers(0, size.customers, of_customers)}
    customers["city"] = chance.integers(0, CITIES, of_customers)
    first, times = times_of(size, number)
    named = ((ORDERS, orders), (CUSTOMERS, customers))
    return {name: _table(columns, first, times) for name, columns in named}


def times_of(size: Size, number: int) -> tuple[int, int]:
    """Return the first time of a step, and how many different times the step has."""
    times = max(size.step // A_TIME, 1)
    return 1 + number * times, times


def _order(chance: Any, size: Size, n: int) -> dict[str, Any]:
    return {"customer": chance.integers(0, size.customers, n), "amount": chance.integers(0, VALUES, n)}


def _table(columns: dict[str, Any], first: int, times: int) -> pa.Table:
    """Make a table with a time column that ascends from ``first`` and has ``times`` different values."""
    n = len(next(iter(columns.values())))
    return pa.table({**columns, "time": first + np.arange(n) * times // n if first else np.zeros(n, np.int64)})


def arrays(size: Size) -> tuple[Any, Any, Any]:
    """Return the final arrays: the customer and the amount of each order, and the city of each customer."""
    customer, amount, city = np.empty(size.keys, np.int64), np.empty(size.keys, np.int64), np.empty(0, np.int64)
    city = np.empty(size.customers, np.int64)
    for tables in (loaded(size), *(changes(size, number) for number in range(size.steps))):
        scatter(tables, customer, amount, city)
    return customer, amount, city


def scatter(tables: Tables, customer: Any, amount: Any, city: Any) -> None:
    """Update the arrays of orders and customers."""
    orders, customers = tables[ORDERS], tables[CUSTOMERS]
    at = orders["id"].to_numpy()
    customer[at], amount[at] = orders["customer"].to_numpy(), orders["amount"].to_numpy()
    city[customers["of"].to_numpy()] = customers["city"].to_numpy()


def joined(size: Size) -> pa.Table:
    """Return the orders with the city of their customer."""
    customer, amount, city = arrays(size)
    return pa.table({"id": np.arange(size.keys), "customer": customer, "amount": amount, "city": city[customer]})


def revenue(size: Size) -> pa.Table:
    """Return the number of orders and the sum of amounts by city."""
    customer, amount, city = arrays(size)
    of = city[customer]
    n, s = np.bincount(of, minlength=CITIES), np.bincount(of, amount, CITIES).astype(np.int64)
    there = np.flatnonzero(n)
    return pa.table({"city": there, "n": n[there], "s": s[there]})


# The next lines take the upserts of `workloads`, with rows (key, val). The columns of each line are in the order of
# `grouped`.


def events(size: Size) -> pa.Table:
    """Return the upserts of W1, or of a workload with a similar shape."""
    return workloads.load("w1") if size[:2] == (1_000_000, 10_000_000) else workloads.build(_shape(size))


def _shape(size: Size) -> workloads.Shape:
    return workloads.Shape(size.rows, size.keys)


def grouped(line: str, size: Size) -> pa.Table:
    """Return the rows of a line after all events."""
    table = events(size)
    held = np.full(size.keys, -1, np.int64)
    held[table["key"].to_numpy()] = table["val"].fill_null(-1).to_numpy()
    key = np.flatnonzero(held >= 0)
    return LEFT[line](key, held[key])


def _groups(key: Any, val: Any) -> Iterator[tuple[int, Any]]:
    """Yield each value with its keys, which are in ascending order."""
    order = np.lexsort((key, val))
    key, val = key[order], val[order]
    edges = np.flatnonzero(np.diff(val)) + 1
    for begin, keys in zip((0, *edges), np.split(key, edges), strict=True):
        yield int(val[begin]), keys


def _aggregates(key: Any, val: Any) -> pa.Table:
    rows = [(g, int(keys.sum()), int(keys.sum()) / len(keys), len(keys)) for g, keys in _groups(key, val)]
    return _rows(rows, "g", "s", "a", "n")


def _rows(rows: list[Any], *names: str) -> pa.Table:
    return pa.table(dict(zip(names, map(list, zip(*rows, strict=True)), strict=True)))


def _first(most: int) -> Callable[[Any, Any], pa.Table]:
    def rows(key: Any, val: Any) -> pa.Table:
        return _rows([(int(each), g) for g, keys in _groups(key, val) for each in keys[:most]], "key", "val")

    return rows


LEFT: dict[str, Callable[[Any, Any], pa.Table]] = {
    "upsert": lambda key, val: pa.table({"key": key, "val": val}),
    "count": lambda key, val: _rows([(g, len(keys)) for g, keys in _groups(key, val)], "val", "count"),
    "aggregates": _aggregates,
    "extremes": lambda key, val: _rows(
        [(g, int(keys[0]), int(keys[-1])) for g, keys in _groups(key, val)], "g", "lo", "hi"
    ),
    "floats": lambda key, val: _rows([(g, math.fsum((keys / 7).tolist())) for g, keys in _groups(key, val)], "g", "s"),
    "top-10": _first(10),
    "top-1": _first(1),
}


def contents(tables: Any) -> str:
    """Return the checksum of rows, ignoring times. Updates have the same checksum as the rows to which they add up."""
    total = 0
    for table in tables:
        names = [name for name in table.column_names if name not in ("_time", "_diff")]
        diffs = table["_diff"] if "_diff" in table.column_names else pa.array(np.ones(table.num_rows, np.int64))
        bare = table.select(names).append_column("_time", pa.array(np.zeros(table.num_rows, np.int64)))
        total += workloads.checksum([bare.append_column("_diff", diffs)])
    return f"{total % 2**64:016x}"
