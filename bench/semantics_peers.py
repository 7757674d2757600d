"""Run the peers of the semantics bench: DuckDB by primary key or ``merge into``, Polars, and a dict loop.

The peers compute the same final rows as ddflow. Peers give no differences, do not remember the order values of deleted
keys, and do not compare the order value of an event with the stored order value.

>>> import semantics_work as work
>>> size = work.Size(60, 20, 1, 3)
>>> for name in TAKES:
...     for peer, make in PEERS.items():
...         runner = make(name)
...         for table in work.tables("plain", size):
...             runner.take(runner.step(table))
...         assert runner.answer() == work.expected(name, size), (peer, name)
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pyarrow as pa
from peers_sql import connect
from semantics_work import CELLS, digest

NAMES = ("id", "at", *CELLS)
# For each line, two SQL expressions: one combines the events of a step, and one updates a stored cell with a new cell.
SQL = {
    "full": ('arg_max_null({0}, "at")', "{1}"),
    "overwrite": ('arg_max({0}, "at")', "coalesce({1}, {0})"),
    "ignore": ('arg_min({0}, "at")', "coalesce({0}, {1})"),
    "max": ("max({0})", "greatest({0}, {1})"),
    "sum": ("sum({0})::bigint", "coalesce({0} + {1}, {0}, {1})"),
}
TAKES = tuple(SQL)
"""Lines that the peers run."""


class Peer:
    """A peer, which holds the current rows. ``step`` takes a table of events, and ``rows`` returns the contents."""

    rows: Callable[[], pa.Table]

    def take(self, nothing: None) -> None:
        """Do nothing, because peers give no differences."""

    def answer(self) -> str:
        """Return the checksum of the rows."""
        return f"{digest(self.rows()):016x}"


class Duck(Peer):
    """A DuckDB table with the current rows.

    SQL rejects a statement that touches a row twice, so a step's events are folded first.
    """

    def __init__(self, name: str, merges: bool) -> None:
        self.connection, (among, over) = connect(1), SQL[name]
        columns = ", ".join(f'"{column}" bigint' for column in NAMES[1:])
        key = "bigint" if merges else "bigint primary key"
        self.connection.execute(f"create table state (id {key}, {columns})")
        folded = ", ".join(f"{among.format(column)} as {column}" for column in CELLS)
        events = f'select id, max("at") as "at", {folded} from events group by id'
        of = "new" if merges else "excluded"
        rules = (f"{column} = {over.format(f'state.{column}', f'{of}.{column}')}" for column in CELLS)
        sets = ", ".join([f'"at" = {of}."at"', *rules])
        self.sql = f"insert into state {events} on conflict (id) do update set {sets}"
        if merges:
            given = ", ".join(f'new."{column}"' for column in NAMES)
            self.sql = f"""merge into state using ({events}) as new on state.id = new.id
                when matched then update set {sets} when not matched then insert values ({given})"""

    def step(self, table: pa.Table) -> None:
        """Run one statement."""
        self.connection.register("events", table)
        self.connection.execute(self.sql)

    def rows(self) -> pa.Table:
        """Return the table."""
        return self.connection.sql("select * from state").to_arrow_table()


class Polars(Peer):
    """A Polars frame with the current rows. Each step groups its events and joins them to the frame.

    The join makes a new frame, so a step costs O(state).
    """

    def __init__(self, name: str) -> None:
        import polars as pl

        column, both = pl.col(*CELLS), [(pl.col(cell), pl.col(f"{cell}_right")) for cell in NAMES[1:]]
        among, over = {
            "full": (
                column.last(),
                lambda held, given: pl.when(pl.col("at_right").is_null()).then(held).otherwise(given),
            ),
            "overwrite": (column.drop_nulls().last(), lambda held, given: pl.coalesce(given, held)),
            "ignore": (column.drop_nulls().first(), lambda held, given: pl.coalesce(held, given)),
            "max": (column.max(), pl.max_horizontal),
            "sum": (
                pl.when(column.count() > 0).then(column.sum()),
                lambda held, given: pl.coalesce(held + given, held, given),
            ),
        }[name]
        self.frame: Any = None
        self.among, (held, given) = among, both[0]
        self.over = [pl.coalesce(given, held).alias("at")]
        self.over += [over(*pair).alias(cell) for cell, pair in zip(CELLS, both[1:], strict=True)]

    def step(self, table: pa.Table) -> None:
        """Join the whole frame with the step's events."""
        import polars as pl

        given: Any = pl.from_arrow(table)
        folded = given.group_by("id").agg(pl.col("at").last(), self.among)
        if self.frame is not None:
            joined = self.frame.join(folded, on="id", how="full", coalesce=True)
            folded = joined.select("id", *self.over)
        self.frame = folded

    def rows(self) -> pa.Table:
        """Return the frame."""
        return self.frame.select(NAMES).to_arrow()


def _added(held: Any, given: Any) -> list[Any]:
    pairs = zip(held[1:], given[1:], strict=True)
    return [given[0], *(old if new is None else new if old is None else old + new for old, new in pairs)]


# By line, a function that computes the new row from the stored row and an event. The first value of each row is its
# order.
FOLDS: dict[str, Callable[[Any, Any], Any]] = {
    "full": lambda held, given: given,
    "overwrite": lambda held, given: [o if n is None else n for o, n in zip(held, given, strict=True)],
    "ignore": lambda held, given: [
        given[0],
        *(n if o is None else o for o, n in zip(held[1:], given[1:], strict=True)),
    ],
    "max": lambda held, given: [
        o if n is None or (o is not None and o > n) else n for o, n in zip(held, given, strict=True)
    ],
    "sum": _added,
}


class Dict(Peer):
    """A peer that keeps the current rows in a dict and updates the dict event by event."""

    def __init__(self, name: str) -> None:
        self.held, self.fold = dict[int, Any](), FOLDS[name]

    def step(self, table: pa.Table) -> None:
        """Loop over the events, after converting them to Python numbers."""
        held, fold = self.held, self.fold
        for key, *given in zip(*(table[name].to_pylist() for name in NAMES), strict=True):
            row = held.get(key)
            held[key] = given if row is None else fold(row, given)

    def rows(self) -> pa.Table:
        """Return the rows as a table."""
        cells = zip(*self.held.values(), strict=True)
        columns = [pa.array(column, pa.int64()) for column in (list(self.held), *cells)]
        return pa.table(columns, names=list(NAMES))


PEERS: dict[str, Callable[[str], Any]] = {
    "duckdb-conflict": partial(Duck, merges=False),
    "duckdb-merge": partial(Duck, merges=True),
    "polars": Polars,
    "dict": Dict,
}
