"""Measure how fast sinks write epochs of updates into tables, compared with the targets' own libraries.

Before the timing starts, an engine with a durable state commits all epochs. The timing of ddflow covers three parts:
read the updates of an epoch, net them, and commit them. The commit is a single transaction of the target, which writes
the rows and records the epoch. A peer gets the rows of an epoch as a table in memory, and merges or appends them with
one library call. In an epoch, 50 % of the events change a row, 40 % insert a row and 10 % delete a row. Final tables
are compared. Postgres syncs its log to disk.

>>> sample = delivered("duckdb", "upsert", "ddflow", 400)
>>> sample["checksum"] == expected("upsert", 400), sample["rows"]
(True, 1200)
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from statistics import median
from time import monotonic, perf_counter
from typing import Any

import memory
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from connectors_feeds import flow, postgres, stored
from connectors_work import GONE, SCHEMA, digest, in_csv, last, orders
from operators import Clock

from ddflow.connectors.api import OpenSource, Polled, Source

EPOCHS, HELD = 3, 5
"""The number of timed epochs, which follow one warm-up epoch; and the number of epochs whose rows are loaded first."""
SMALL, SEEN, WARM = 1_000, 30, 3
"""How many changes a small epoch has, how many small epochs are timed, and how many run before the timing."""
NEWEST = "select customer from orders where id = %s"
Sample = dict[str, Any]


def epochs(rows: int, count: int = EPOCHS + 1) -> Iterator[pa.Table]:
    """Yield the rows to load first, then the events of each epoch, with each key at most once."""
    rng, held = np.random.default_rng(rows), HELD * rows
    yield _of(np.arange(held), np.zeros(held, np.bool_), 0)
    for number in range(1, count + 1):
        old = rng.permutation(held)[: rows - 2 * rows // 5]
        new = np.arange(held, held + 2 * rows // 5)
        gone = np.zeros(rows, np.bool_)
        gone[rows // 2 : old.size] = True
        held += new.size
        yield _of(np.concatenate([old, new]), gone, number)


def _of(ids: Any, gone: Any, number: int) -> pa.Table:
    table = orders(ids.size, seed=number)
    table = table.set_column(0, "id", pa.array(ids))
    return table.set_column(table.num_columns - 1, GONE, pa.array(gone))


def expected(mode: str, rows: int) -> str:
    """Return the digest of a target's final rows.

    In a changelog, a row occurs once for its insert and once for its delete.
    """
    every = pa.concat_tables(list(epochs(rows)))
    left, came = last(every), every.filter(pc.invert(every[GONE])).drop_columns(GONE)
    if mode == "upsert":
        return digest(left)
    return digest(pa.concat_tables([came, gone_of(every)]))


def gone_of(every: pa.Table) -> pa.Table:
    """Return the rows that a later event of their key replaces or deletes."""
    ids = every["id"].to_numpy()[::-1]
    ends = len(ids) - 1 - np.unique(ids, return_index=True)[1]
    earlier: Any = np.ones(len(ids), np.bool_)
    earlier[ends] = False
    return every.filter(pc.and_(pa.array(earlier), pc.invert(every[GONE]))).drop_columns(GONE)


def delivered(target: str, mode: str, contender: str, rows: int) -> Sample:
    """Deliver epochs to a table."""
    clock = Clock()
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="ddflow-bench-"))
        place = TARGETS[target](stack, folder)
        engine = stack.enter_context(flow().open(f"{folder}/state"))
        take = _by_run(stack, engine, place.sink(mode)) if contender == "ddflow" else _by_peer(place, mode)
        memory.settled()
        with memory.Watch() as watch:
            for number, events in enumerate(epochs(rows)):
                updates = engine.step({"orders": events}, time=number)["orders"]
                call = take(updates, number)
                if number == 2:
                    memory.settled()
                before = memory.pages().private
                clock.timed(call, counts=number > 1)
        return {**clock.sample(EPOCHS * rows, digest(place.read())), "peak": max(watch.peak.private - before, 0)}


Take = Callable[[pa.Table, int], Callable[[], Any]]


def _by_run(stack: ExitStack, engine: Any, sink: Any) -> Take:
    """Return the calls that `engine.run` makes after a commit."""
    from ddflow.engine.run.delivery import Delivery
    from ddflow.engine.run.kept_epochs import EngineEpochs

    delivery = stack.enter_context(closing(Delivery(EngineEpochs(engine.calls, "bench"), "orders", sink)))

    def pump() -> None:
        if not delivery.deliver_waiting_epochs(monotonic()):
            raise delivery.failing or AssertionError("the epoch was not delivered")

    return lambda updates, number: pump


def _by_peer(place: Any, mode: str) -> Take:
    """Return the library calls of the peer. The net table of each epoch is made before the timing."""
    from ddflow.columns.hashing import Secret
    from ddflow.connectors.modes import merge_upserts_and_deletes, to_table_changes

    secret = Secret.fresh()

    def take(updates: pa.Table, number: int) -> Callable[[], Any]:
        made = to_table_changes(mode, updates, ("id",), number + 1, secret)
        if mode == "changelog" or number == 0:
            rows = made.rows
            return lambda: place.append(rows)
        merged = merge_upserts_and_deletes(made, ("id",), secret)
        return lambda: place.merge(merged)

    return take


class DeltaLake:
    """A table of Delta Lake."""

    def __init__(self, stack: ExitStack, folder: str) -> None:
        self.path = f"{folder}/delta"

    def sink(self, mode: Any) -> Any:
        import ddflow as dd

        return dd.sinks.delta(self.path, mode=mode)

    def append(self, rows: pa.Table) -> None:
        import deltalake

        deltalake.write_deltalake(self.path, rows, mode="append")

    def merge(self, rows: pa.Table) -> None:
        import deltalake

        table = deltalake.DeltaTable(self.path)
        merge = table.merge(rows, "t.id = s.id", source_alias="s", target_alias="t")
        new = {name: f"s.{name}" for name in SCHEMA.names}
        merge = merge.when_matched_delete("s._deleted").when_matched_update(new, "not s._deleted")
        merge.when_not_matched_insert(new, "not s._deleted").execute()

    def read(self) -> pa.Table:
        import polars as pl

        return pl.read_delta(self.path).to_arrow()


class DuckDB:
    """A DuckDB table, whose file is opened for each epoch."""

    def __init__(self, stack: ExitStack, folder: str) -> None:
        self.path = f"{folder}/orders.db"

    def sink(self, mode: Any) -> Any:
        import ddflow as dd

        return dd.sinks.duckdb(self.path, "orders", mode=mode)

    def append(self, rows: pa.Table) -> None:
        import duckdb

        with duckdb.connect(self.path) as connection:
            connection.register("came", rows)
            connection.execute("create table if not exists orders as select * from came limit 0")
            connection.execute("insert into orders select * from came")

    def merge(self, rows: pa.Table) -> None:
        import duckdb

        new, values = ", ".join(SCHEMA.names), ", ".join(f"s.{name}" for name in SCHEMA.names)
        with duckdb.connect(self.path) as connection:
            connection.register("came", rows)
            connection.execute(
                "merge into orders using came s on orders.id = s.id when matched and s._deleted then delete when "
                f"matched then update set {', '.join(f'{name} = s.{name}' for name in SCHEMA.names)} "
                f"when not matched and not s._deleted then insert ({new}) values ({values})"
            )

    def read(self) -> pa.Table:
        import duckdb

        with duckdb.connect(self.path) as connection:
            return connection.sql("select * from orders").to_arrow_table()


class Iceberg:
    """An Iceberg table in a SQLite catalog."""

    def __init__(self, stack: ExitStack, folder: str) -> None:
        self.options = {"type": "sql", "uri": f"sqlite:///{folder}/catalog.db", "warehouse": f"file://{folder}/lake"}

    def sink(self, mode: Any) -> Any:
        import ddflow as dd

        return dd.sinks.iceberg("shop.orders", catalog={"name": "bench", **self.options}, mode=mode)

    @property
    def catalog(self) -> Any:
        from pyiceberg.catalog import load_catalog

        return load_catalog("bench", **self.options)

    @property
    def table(self) -> Any:
        return self.catalog.load_table("shop.orders")

    def append(self, rows: pa.Table) -> None:
        self.catalog.create_namespace_if_not_exists("shop")
        self.catalog.create_table_if_not_exists("shop.orders", rows.schema).append(rows)

    def merge(self, rows: pa.Table) -> None:
        from pyiceberg.expressions import In

        with self.table.transaction() as change:
            if gone := rows.filter(rows["_deleted"])["id"].to_pylist():
                change.delete(In("id", gone))
            change.upsert(rows.filter(pc.invert(rows["_deleted"])).select(SCHEMA.names), join_cols=["id"])

    def read(self) -> pa.Table:
        return self.table.scan().to_arrow()


class Postgres:
    """A Postgres table; the peer copies into a staging table and does not merge.

    ``added``: whether rows are only added.  ``epoch``: the number of copies so far.
    """

    def __init__(self, stack: ExitStack, folder: str) -> None:
        self.server, self.connection = stack.enter_context(postgres(fsync=True))
        self.added, self.epoch = False, 0
        self.connection.execute("create table staging (like orders, _deleted boolean, epoch int)")
        self.connection.execute("drop table orders")

    def sink(self, mode: Any) -> Any:
        import ddflow as dd

        return dd.sinks.postgres(self.server.url, "orders", mode=mode)

    def append(self, rows: pa.Table) -> None:
        self.added = "_change_type" in rows.column_names
        self.merge(rows.append_column("_deleted", pa.array(np.zeros(rows.num_rows, np.bool_))))

    def merge(self, rows: pa.Table) -> None:
        self.epoch += 1
        numbered = rows.select([*SCHEMA.names, "_deleted"])
        numbered = numbered.append_column("epoch", pa.array(np.full(rows.num_rows, self.epoch)))
        with self.connection.cursor().copy("copy staging from stdin (format csv)") as copy:
            copy.write(in_csv(numbered))

    def read(self) -> pa.Table:
        if self.connection.execute("select to_regclass('orders')").fetchone()[0]:
            return stored(self.connection, "orders")
        if self.added:
            return stored(self.connection, "staging")
        newest = "(select distinct on (id) * from staging order by id, epoch desc) s where not _deleted"
        return stored(self.connection, newest)


TARGETS: dict[str, Any] = {"delta": DeltaLake, "duckdb": DuckDB, "iceberg": Iceberg, "postgres": Postgres}


class Watched(Source):
    """A source that gives a few rows at a time. The source records how long each epoch took to become visible."""

    kind = "watched"
    target = "watched"

    def __init__(self, ask: Callable[[int], int], rows: int) -> None:
        self.ask, self.rows, self.waits = ask, rows, list[float]()

    def open(self, inputs: Any, position: Any) -> OpenSource:
        return Watching(self)


class Watching(OpenSource):
    """A source that first returns the rows to load.

    Then the source returns one epoch at a time; it waits until the previous epoch is visible.
    """

    def __init__(self, of: Watched) -> None:
        self.of, self.given, self.marked, self.committed = of, 0, 0, 0.0

    def poll(self, room: int) -> Polled | None:
        if self.given > 1 and self.of.ask(self.marked) != 1 - self.given:
            raise AssertionError(f"epoch {self.given} is not visible after its delivery")
        if self.given > WARM:
            self.of.waits.append((perf_counter() - self.committed) * 1e3)
        if self.given < WARM + SEEN:
            self.given += 1
            return Polled({"orders": self._rows().to_batches()}, self.given)
        self.given = -1
        return None

    def _rows(self) -> pa.Table:
        if self.given == 1:
            return _of(np.arange(self.of.rows), np.zeros(self.of.rows, np.bool_), 0)
        ids = np.random.default_rng(self.given).permutation(self.of.rows)[:SMALL]
        self.marked = int(ids[0])
        some = _of(ids, np.zeros(ids.size, np.bool_), self.given)
        return some.set_column(1, "customer", pa.array(np.full(ids.size, 1 - self.given)))

    def acknowledge(self, position: Any) -> None:
        self.committed = perf_counter()

    @property
    def ended(self) -> bool:
        return self.given < 0

    def lag(self) -> str:
        return ""


def visible(rows: int) -> Sample:
    """Measure milliseconds from the commit of a small epoch until another Postgres connection sees it."""
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="ddflow-bench-"))
        place = Postgres(stack, folder)
        engine = stack.enter_context(flow().open(f"{folder}/state"))
        source = Watched(lambda id: place.connection.execute(NEWEST, [id]).fetchone()[0], rows)
        clock = Clock()
        clock.timed(lambda: engine.run({"orders": source}, {"orders": place.sink("upsert")}, rows=SMALL))
        mine = digest(engine.read("orders"))
        if (there := digest(place.read())) != mine:
            raise AssertionError(f"the table has {there}, but the state has {mine}")
        of = source.waits
        return {**clock.sample(len(of) * SMALL, mine), "step_ms": median(of), "most_ms": max(of)}
