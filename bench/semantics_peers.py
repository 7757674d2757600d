"""The peers of the semantics bench: DuckDB with a primary key or by ``merge into``, Polars, and a loop over a dict.

Invariant: they end with the same rows in the same steps, and that is all they do: none gives differences, keeps a
deleted key's order, or looks at the orders of what it holds (events come in order). SQL refuses a statement that
touches a row twice, so the events of a step are first folded among themselves; Polars holds a frame that it joins with
each step and makes anew, which costs what the state is, and not what the step is. Nothing here measures.

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
from typing import Any

import pyarrow as pa
from peers_sql import connect
from semantics_work import CELLS, digest

TAKES = ("full", "overwrite", "ignore", "max", "sum")
"""The lines that the peers run."""
NAMES = ("id", "at", *CELLS)
AMONG = {
    "full": 'arg_max_null({0}, "at")',
    "overwrite": 'arg_max({0}, "at")',
    "ignore": 'arg_min({0}, "at")',
    "max": "max({0})",
    "sum": "sum({0})::bigint",
}
OVER = {
    "full": "{1}",
    "overwrite": "coalesce({1}, {0})",
    "ignore": "coalesce({0}, {1})",
    "max": "greatest({0}, {1})",
    "sum": "coalesce({0} + {1}, {0}, {1})",
}


class Duck:
    """DuckDB with a table of what is held."""

    def __init__(self, name: str, merges: bool) -> None:
        self.connection = connect(1)
        columns = ", ".join(f'"{column}" bigint' for column in NAMES[1:])
        key = "bigint" if merges else "bigint primary key"
        self.connection.execute(f"create table state (id {key}, {columns})")
        folded = ", ".join(f"{AMONG[name].format(column)} as {column}" for column in CELLS)
        events = f'select id, max("at") as "at", {folded} from events group by id'
        of = "new" if merges else "excluded"
        rules = (f"{column} = {OVER[name].format(f'state.{column}', f'{of}.{column}')}" for column in CELLS)
        sets = ", ".join([f'"at" = {of}."at"', *rules])
        if merges:
            given = ", ".join(f'new."{column}"' for column in NAMES)
            self.sql = f"""merge into state using ({events}) as new on state.id = new.id
                when matched then update set {sets} when not matched then insert values ({given})"""
        else:
            self.sql = f"insert into state {events} on conflict (id) do update set {sets}"

    def step(self, table: pa.Table) -> None:
        """One statement."""
        self.connection.register("events", table)
        self.connection.execute(self.sql)

    def take(self, nothing: None) -> None:
        """There are no differences to add up."""

    def answer(self) -> str:
        """The checksum of the rows held."""
        rows = self.connection.sql("select * from state").to_arrow_table()
        self.connection.close()
        return f"{digest(rows):016x}"


class Polars:
    """Polars: the events of a step, grouped, joined to what is held."""

    def __init__(self, name: str) -> None:
        import polars as pl

        column = pl.col(*CELLS)
        self.rule = {
            "full": column.last(),
            "overwrite": column.drop_nulls().last(),
            "ignore": column.drop_nulls().first(),
            "max": column.max(),
            "sum": pl.when(column.count() > 0).then(column.sum()),
        }[name]
        self.frame: Any = None
        self.over = [self._over(name, pl.col(cell), pl.col(f"{cell}_right")).alias(cell) for cell in NAMES[1:]]

    def _over(self, name: str, held: Any, given: Any) -> Any:
        """What becomes of a cell that is held and one that is given, either of them null."""
        import polars as pl

        if name == "full":
            return pl.when(pl.col("at_right").is_null()).then(held).otherwise(given)
        if held.meta.output_name() == "at" or name == "overwrite":
            return pl.coalesce(given, held)
        many = {"ignore": pl.coalesce(held, given), "max": pl.max_horizontal(held, given)}
        return many.get(name, pl.coalesce(held + given, held, given))

    def step(self, table: pa.Table) -> None:
        """One join of all that is held with what is given."""
        import polars as pl

        given: Any = pl.from_arrow(table)
        folded = given.group_by("id").agg(pl.col("at").last(), self.rule)
        if self.frame is not None:
            joined = self.frame.join(folded, on="id", how="full", coalesce=True)
            folded = joined.select("id", *self.over)
        self.frame = folded

    def take(self, nothing: None) -> None:
        """There are no differences to add up."""

    def answer(self) -> str:
        """The checksum of the rows held."""
        return f"{digest(self.frame.select(NAMES).to_arrow()):016x}"


def _replaced(held: list[Any], given: tuple[Any, ...]) -> None:
    held[:] = given


def _overwritten(held: list[Any], given: tuple[Any, ...]) -> None:
    for place, value in enumerate(given):
        if value is not None:
            held[place] = value


def _kept(held: list[Any], given: tuple[Any, ...]) -> None:
    held[0] = given[0]
    for place, value in enumerate(given):
        if held[place] is None:
            held[place] = value


def _greater(held: list[Any], given: tuple[Any, ...]) -> None:
    for place, value in enumerate(given):
        if value is not None and (held[place] is None or value > held[place]):
            held[place] = value


def _added(held: list[Any], given: tuple[Any, ...]) -> None:
    held[0] = given[0]
    for place, value in enumerate(given[1:], 1):
        if value is not None:
            held[place] = value if held[place] is None else held[place] + value


FOLDS = {"full": _replaced, "overwrite": _overwritten, "ignore": _kept, "max": _greater, "sum": _added}


class Dict:
    """A dict of lists, event after event."""

    def __init__(self, name: str) -> None:
        self.held: dict[int, list[Any]] = {}
        self.fold = FOLDS[name]

    def step(self, table: pa.Table) -> None:
        """A loop over the rows, made into Python's numbers first."""
        held, fold = self.held, self.fold
        for key, *given in zip(*(table[name].to_pylist() for name in NAMES), strict=True):
            row = held.get(key)
            if row is None:
                held[key] = given
            else:
                fold(row, tuple(given))

    def take(self, nothing: None) -> None:
        """There are no differences to add up."""

    def answer(self) -> str:
        """The checksum of the rows held."""
        cells = zip(*self.held.values(), strict=True)
        columns = [pa.array(column, pa.int64()) for column in (list(self.held), *cells)]
        return f"{digest(pa.table(columns, names=list(NAMES))):016x}"


PEERS: dict[str, Callable[[str], Any]] = {
    "duckdb-conflict": lambda name: Duck(name, False),
    "duckdb-merge": lambda name: Duck(name, True),
    "polars": Polars,
    "dict": Dict,
}
