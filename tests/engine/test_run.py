"""Test sources and sinks of a run: epochs of arrived rows, positions in the manifest, each epoch once in its target."""

from __future__ import annotations

import datetime as dt
import json
import os
import signal
import sqlite3
import threading
import time
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from messages import raises

import ddflow as dd
from ddflow.connectors.api import OpenSource, Polled
from ddflow.connectors.sources import Source
from ddflow.errors import (
    BadMessage,
    SinkAhead,
    SinkFailed,
    SinkRefused,
    SourceChanged,
    SourceFailed,
    SpecError,
    UnreadableInput,
)
from ddflow.storage.manifest import load_manifest as manifest_at, load_newest_manifest
from ddflow.storage.opening import open_store

COLUMNS = {"id": pa.int64(), "city": pa.string(), "amount": pa.int64()}


def flow(**spec: Any) -> dd.Flow:
    """Orders, and sums of them by city."""
    made = dd.Flow()
    orders = made.upserts("orders", COLUMNS, dd.Upsert(key="id", **spec))
    made.output("orders", orders)
    made.output("by_city", orders.group_by("city").agg(n="count(*)", total="sum(amount)"))
    return made


def land(folder: Path, name: str, rows: list[tuple[int, str, int]]) -> None:
    """A file of orders, put there whole."""
    folder.mkdir(exist_ok=True)
    part = folder / f"_{name}"
    part.write_text("id,city,amount\n" + "".join(f"{i},{c},{a}\n" for i, c, a in rows))
    part.rename(folder / name)


def landing(tmp_path: Path, **options: Any) -> dict[str, Source]:
    """The source of the orders."""
    return {"orders": dd.sources.files(tmp_path / "in" / "*.csv", **options)}


def rows_of(engine: dd.Engine, name: str) -> list[tuple[Any, ...]]:
    """What an output holds, sorted."""
    return sorted(tuple(row.values()) for row in engine.read(name).drop_columns(["_diff"]).to_pylist())


def of_sqlite(path: Path, table: str) -> list[tuple[Any, ...]]:
    """What a table holds, sorted."""
    connection = sqlite3.connect(path)
    try:
        return sorted(connection.execute(f"select * from {table}").fetchall())
    finally:
        connection.close()


def manifest_of(place: Path) -> Any:
    """The newest manifest of a state."""
    store = open_store(place)
    try:
        return load_newest_manifest(store)
    finally:
        store.close()


def past(place: Path) -> list[Any]:
    """All manifests of a state, oldest first."""
    store = open_store(place)
    try:
        return [manifest_at(store, number) for number in store.list_manifests()]
    finally:
        store.close()


FIRST = [(1, "Bern", 5), (2, "Bern", 6), (3, "Chur", 7)]
SECOND = [(1, "Chur", 5), (4, "Basel", 1)]


@pytest.mark.parametrize("kind", ["sqlite", "duckdb"])
def test_files_go_through_a_state_into_a_table(tmp_path: Path, kind: str) -> None:
    land(tmp_path / "in", "1.csv", FIRST)
    sink = getattr(dd.sinks, kind)(tmp_path / "out.db", "by_city")
    with flow().open(tmp_path / "state") as engine:
        done = engine.run(landing(tmp_path), {"by_city": sink})
        assert (done.epochs, done.rows, done.stopped, done.sinks) == (1, 3, "end", {"by_city": 1})
    manifest = manifest_of(tmp_path / "state")
    assert manifest.sources["orders"].kind == "files" and list(manifest.sources["orders"].position["done"]) == ["1.csv"]
    assert manifest.sinks["by_city"].epoch == manifest.sinks["by_city"].written == 1
    land(tmp_path / "in", "0.csv", SECOND)  # late, by its name
    with flow().open(tmp_path / "state") as engine:
        done = engine.run(landing(tmp_path), {"by_city": sink})
        assert (done.rows, engine.epoch) == (2, 2)
        expected = rows_of(engine, "by_city")
        assert engine.run(landing(tmp_path), {"by_city": sink}).epochs == 0
    if kind == "sqlite":
        assert of_sqlite(tmp_path / "out.db", "by_city") == expected
    else:
        with duckdb.connect(tmp_path / "out.db") as connection:
            assert sorted(connection.execute("from by_city").fetchall()) == expected
    assert expected == [("Basel", 1, 1), ("Bern", 1, 6), ("Chur", 2, 12)]


@pytest.mark.drawn(4)
@pytest.mark.parametrize("mode", ["changelog", "retract", "debezium", "updates"])
@pytest.mark.parametrize("kind", ["sqlite", "duckdb", "parquet"])
def test_logs_fold_to_what_is_held(tmp_path: Path, kind: str, mode: Any) -> None:
    from ddflow.connectors.modes import read_rows_with_diff

    if kind == "parquet":
        sink = dd.sinks.parquet(tmp_path / "out", mode=mode)
    else:
        sink = getattr(dd.sinks, kind)(tmp_path / "out.db", "by_city", mode=mode)
    with flow().open(tmp_path / "state") as engine:
        for number, rows in enumerate([FIRST, SECOND, [(1, "Chur", 5)]]):
            land(tmp_path / "in", f"{number}.csv", rows)
            engine.run(landing(tmp_path), {"by_city": sink})
        from ddflow.engine.run.delivery import Delivery
        from ddflow.engine.run.kept_epochs import EngineEpochs

        delivery = Delivery(EngineEpochs(engine.calls, "a test"), "by_city", sink)
        there = delivery.table.read()
        updates = delivery.epochs.output_schema("by_city")
        delivery.close()
        found: dict[tuple[Any, ...], int] = {}
        for row in read_rows_with_diff(mode, there, updates).to_pylist():
            diff = row.pop("_diff")
            found[tuple(row.values())] = found.get(tuple(row.values()), 0) + diff
        assert sorted(row for row, n in found.items() if n) == rows_of(engine, "by_city")
        assert set(found.values()) <= {0, 1}
        if mode == "changelog":
            kinds = there["_change_type"].to_pylist()
            assert kinds.count("update_preimage") == kinds.count("update_postimage") == 2
            assert set(there["_commit_version"].to_pylist()) == {1, 2}  # the third changed nothing
        # What is synced belongs to the same epoch, again and again.
        engine.sync({"by_city": sink})
        engine.durable.log.sinks.clear()  # type: ignore[union-attr]
        assert engine.sync({"by_city": sink}, dry=True)["by_city"][:3] == (0, 0, 0)
        if kind == "parquet":
            (tmp_path / "out" / "000000000002.parquet").unlink()
            assert engine.sync({"by_city": sink})["by_city"].added > 0
            assert engine.sync({"by_city": sink}, dry=True)["by_city"][:3] == (0, 0, 0)
            (tmp_path / "out" / "000000000004.parquet").rename(tmp_path / "out" / "000000000002.parquet")
            assert sorted(os.listdir(tmp_path / "out")) == ["000000000001.parquet", "000000000002.parquet", "_written"]


def test_a_sink_that_comes_later_gets_what_is_held(tmp_path: Path) -> None:
    land(tmp_path / "in", "1.csv", FIRST)
    sink = dd.sinks.sqlite(tmp_path / "out.db", "orders")
    with flow().open(tmp_path / "state") as engine:
        engine.run(landing(tmp_path))
        engine.run({}, {"orders": sink})
        assert of_sqlite(tmp_path / "out.db", "orders") == rows_of(engine, "orders") == FIRST


def test_epochs_wait_for_a_sink_beyond_those_that_can_be_given_again(tmp_path: Path) -> None:
    sink = dd.sinks.sqlite(tmp_path / "out.db", "orders", mode="updates")
    with flow().open(tmp_path / "state") as engine:
        engine.run({}, {"orders": sink})
        for number in range(20):
            engine.step({"orders": {"id": [number], "city": ["Bern"], "amount": [1]}})
        assert len(manifest_of(tmp_path / "state").receipts) == 20
    with flow().open(tmp_path / "state") as engine:
        engine.run({}, {"orders": sink})
        assert [row[3] for row in of_sqlite(tmp_path / "out.db", "orders")] == list(range(1, 21))
        with pytest.warns(UserWarning, match=r"the sinks of \['orders'\] of .*state are attached but were not passed"):
            engine.run({}, {"by_city": dd.sinks.sqlite(tmp_path / "out.db", "by_city")})
        engine.detach("by_city")
        engine.step({"orders": {"id": [77], "city": ["Bern"], "amount": [1]}})
        assert len(manifest_of(tmp_path / "state").receipts) == 8


def test_a_sink_and_a_source_of_one_name_are_forgotten_apart(tmp_path: Path) -> None:
    land(tmp_path / "in", "1.csv", FIRST)
    with flow().open(tmp_path / "state") as engine:
        engine.run(landing(tmp_path), {"orders": dd.sinks.sqlite(tmp_path / "out.db", "orders")})
        with raises(SpecError):
            engine.detach("orders")
    says = r"engine\.detach\('sink:orders'\), .* --detach sink:orders --yes, or on Spark .*detach=\('sink:orders',\)\)$"
    with pytest.raises(SpecError, match=says):
        dd.evolve(tmp_path / "state", drop_outputs=["orders"])
    with flow().open(tmp_path / "state") as engine:
        engine.detach("sink:orders")
        manifest = manifest_of(tmp_path / "state")
        assert ([*manifest.sinks], [*manifest.sources]) == ([], ["orders"])
        engine.detach("orders")
        assert not manifest_of(tmp_path / "state").sources


def test_an_epoch_without_updates_is_not_written(tmp_path: Path) -> None:
    land(tmp_path / "in", "1.csv", FIRST)
    sink = dd.sinks.sqlite(tmp_path / "out.db", "orders")
    with flow().open(tmp_path / "state") as engine:
        engine.run(landing(tmp_path), {"orders": sink})
        land(tmp_path / "in", "2.csv", FIRST)
        assert engine.run(landing(tmp_path), {"orders": sink}).sinks == {"orders": 2}
    sinks = manifest_of(tmp_path / "state").sinks["orders"]
    assert (sinks.epoch, sinks.written) == (2, 1)
    with flow().open(tmp_path / "state") as engine:
        assert engine.run({}, {"orders": sink}).sinks == {"orders": 2}


def test_a_rolled_back_state_is_behind_its_sink_until_it_is_synced(tmp_path: Path) -> None:
    sinks = {"orders": dd.sinks.sqlite(tmp_path / "out.db", "orders")}
    with flow().open(tmp_path / "state") as engine:
        for number, rows in enumerate([FIRST, SECOND]):
            land(tmp_path / "in", f"{number}.csv", rows)
            engine.run(landing(tmp_path), sinks)
    dd.rollback(tmp_path / "state", 1)
    with flow().open(tmp_path / "state") as engine:
        with raises(SinkAhead):
            engine.run({}, sinks)
        engine.step({"orders": {"id": [9], "city": ["Bern"], "amount": [1]}})  # another epoch 2
        with pytest.raises(SinkAhead):
            engine.run({}, sinks)
        assert engine.sync(sinks, dry=True)["orders"][:3] == engine.sync(sinks)["orders"][:3]
        assert of_sqlite(tmp_path / "out.db", "orders") == rows_of(engine, "orders")
        # The files after the rollback are read again.
        engine.run(landing(tmp_path), sinks)
        assert of_sqlite(tmp_path / "out.db", "orders") == rows_of(engine, "orders")
        assert (4, "Basel", 1) in rows_of(engine, "orders") and (9, "Bern", 1) in rows_of(engine, "orders")


def test_tables_of_others_are_refused_and_adopted(tmp_path: Path) -> None:
    connection = sqlite3.connect(tmp_path / "out.db")
    connection.execute("create table orders (id INTEGER, city TEXT, amount INTEGER)")
    connection.execute("insert into orders values (1, 'Bern', 5), (77, 'Genf', 1)")
    connection.commit()
    sinks = {"orders": dd.sinks.sqlite(tmp_path / "out.db", "orders")}
    with flow().open(tmp_path / "state") as engine:
        engine.step({"orders": {"id": [1, 2], "city": ["Bern", "Chur"], "amount": [5, 6]}})
        for call in (engine.run, lambda _, sinks: engine.sync(sinks)):
            with raises(SinkRefused):
                call({}, sinks)  # type: ignore[operator]
        assert engine.sync(sinks, adopt=True)["orders"][:3] == (1, 0, 1)
        engine.run({}, sinks)
        assert of_sqlite(tmp_path / "out.db", "orders") == rows_of(engine, "orders")
    with flow().open(tmp_path / "other") as engine, raises(SinkRefused):
        engine.run({}, sinks)
    connection.close()


def test_shapes(tmp_path: Path) -> None:
    sink = dd.sinks.sqlite(tmp_path / "out.db", "t")
    connection = sqlite3.connect(tmp_path / "out.db")
    with flow().open(tmp_path / "state") as engine:
        for columns in (
            "id TEXT, city TEXT, amount INTEGER",
            "id INTEGER, city TEXT, amount INTEGER, more TEXT",
            "city TEXT, amount INTEGER",
        ):
            connection.execute("drop table if exists t")
            connection.execute(f"create table t ({columns})")
            connection.commit()
            with raises(SinkRefused):
                engine.run({}, {"orders": sink})
        connection.execute("drop table t")
        connection.execute("create table t (id INTEGER, amount INTEGER)")
        connection.commit()
        land(tmp_path / "in", "1.csv", FIRST)
        engine.run(landing(tmp_path), {"orders": sink})
        assert sorted(connection.execute("select id, city, amount from t").fetchall()) == FIRST
    connection.close()
    with flow().open() as engine, raises(SpecError):
        engine.run({}, {"orders": sink})
    made = flow()
    made.output("cities", made.outputs["orders"].project(["city"]))
    with made.open(tmp_path / "more") as engine:
        with raises(SpecError):
            engine.run({}, {"cities": sink})
        with raises(SpecError):
            engine.run({}, {"citys": sink})
        with raises(SpecError):
            engine.run({}, {"orders": dd.sinks.parquet(tmp_path / "p", mode="upsert")})


def test_every_type_goes_there_and_back(tmp_path: Path) -> None:
    from decimal import Decimal

    values: dict[str, tuple[pa.DataType, Any]] = {
        "id": (pa.int64(), 1),
        "flag": (pa.bool_(), True),
        "small": (pa.int8(), -3),
        "big": (pa.uint64(), 2**64 - 1),
        "real": (pa.float64(), 1.5),
        "money": (pa.decimal128(12, 2), Decimal("1.10")),
        "day": (pa.date32(), dt.date(2026, 11, 24)),
        "at": (pa.timestamp("us"), dt.datetime(2026, 11, 24, 8, 1, 2, 3)),
        "zoned": (pa.timestamp("us", "UTC"), dt.datetime(2026, 11, 24, 8, tzinfo=dt.UTC)),
        "bytes": (pa.binary(), b"\x00\xff"),
        "tags": (pa.list_(pa.string()), ["a", "b"]),
        "text": (pa.string(), 'O"Hara'),
    }
    made = dd.Flow()
    schema = {name: kind for name, (kind, _) in values.items()}
    made.output("rows", made.upserts("rows", schema, dd.Upsert(key="id")))
    given = pa.table(
        {
            name: pa.array([value, None][: 1 + (name != "id")] + ([2] if name == "id" else []), kind)
            for name, (kind, value) in values.items()
        }
    )
    for kind in ("sqlite", "duckdb"):
        sinks = {"rows": getattr(dd.sinks, kind)(tmp_path / f"{kind}.db", "t")}
        with made.open(tmp_path / kind) as engine:
            engine.step({"rows": given})
            engine.run({}, sinks)
            assert engine.sync(sinks, dry=True)["rows"][:3] == (0, 0, 0)
        source = getattr(dd.sources, kind)(tmp_path / f"{kind}.db", "t")
        with made.open() as engine:
            engine.run({"rows": source})
            assert engine.read("rows").drop_columns(["_diff"]).sort_by("id").to_pylist() == given.to_pylist()


def test_a_database_is_read_again_when_it_changed(tmp_path: Path) -> None:
    connection = sqlite3.connect(tmp_path / "in.db")
    connection.execute("create table orders (id int, city text, amount int)")
    connection.executemany("insert into orders values (?, ?, ?)", FIRST)
    connection.commit()
    source = {"orders": dd.sources.sqlite(tmp_path / "in.db", "orders")}
    with flow().open(tmp_path / "state") as engine:
        assert engine.run(source).rows == 3
        assert engine.run(source).rows == 0
        connection.execute("delete from orders where id = 1")
        connection.commit()
        assert engine.run(source).rows == 2
        assert rows_of(engine, "orders") == FIRST[1:]
    connection.close()
    for odd in ("in#1.db", "in?mode=rwc", "in%41.db"):
        (tmp_path / "in.db").rename(tmp_path / odd)
        with flow().open() as engine:
            assert engine.run({"orders": dd.sources.sqlite(tmp_path / odd, "orders")}).rows == 2
        (tmp_path / odd).rename(tmp_path / "in.db")
    duckdb.connect(tmp_path / "in.duckdb").close()
    for kind, file in (("sqlite", "in.db"), ("duckdb", "in.duckdb")):
        with flow().open() as engine, raises(UnreadableInput):
            engine.run({"orders": getattr(dd.sources, kind)(tmp_path / file, "nothing")})
    with flow().open() as engine, raises(SourceFailed):
        engine.run({"orders": dd.sources.sqlite(tmp_path / "none.db", "nothing")}, give_up_after="0s")


@pytest.mark.parametrize("kind", ["sqlite", "duckdb"])
def test_another_table_of_the_same_file_is_not_passed_over(tmp_path: Path, kind: str) -> None:
    library: Any = {"sqlite": sqlite3, "duckdb": duckdb}[kind]
    with closing(library.connect(str(tmp_path / "in.db"))) as connection:
        for table, city in (("orders", "Bern"), ("orders_new", "Chur")):
            connection.execute(f"create table {table} (id int, city text, amount int)")
            connection.execute(f"insert into {table} values (1, '{city}', 5)")
        connection.commit()
    made = getattr(dd.sources, kind)
    with flow().open(tmp_path / "state") as engine:
        engine.run({"orders": made(tmp_path / "in.db", "orders")})
        for other in ("orders_new", "nothing"):
            with raises(SpecError):
                engine.run({"orders": made(tmp_path / "in.db", other)})
        engine.run({"orders": made(tmp_path / "in.db", "Orders")})
        assert rows_of(engine, "orders") == [(1, "Bern", 5)]
        engine.run({"orders": made(tmp_path / "in.db", "(select * from orders_new)")})
        assert rows_of(engine, "orders") == [(1, "Chur", 5)]
        engine.run({"orders": made(tmp_path / "in.db", "(select * from orders)")})
        assert rows_of(engine, "orders") == [(1, "Bern", 5)]


@pytest.mark.parametrize("kind", ["sqlite", "duckdb"])
def test_a_constraint_of_the_table_is_no_failure_that_passes(tmp_path: Path, kind: str) -> None:
    land(tmp_path / "in", "1.csv", FIRST)
    library: Any = {"sqlite": sqlite3, "duckdb": duckdb}[kind]
    columns = {"sqlite": "id INTEGER, city TEXT, amount INTEGER", "duckdb": "id BIGINT, city VARCHAR, amount BIGINT"}
    connection = library.connect(tmp_path / "out.db")
    connection.execute(f"create table orders ({columns[kind]} check (amount < 6))")
    connection.commit()
    connection.close()
    with flow().open(tmp_path / "state") as engine, raises(SinkRefused):
        engine.run(landing(tmp_path), {"orders": getattr(dd.sinks, kind)(tmp_path / "out.db", "orders")})


def test_a_finished_file_that_changed_is_an_error(tmp_path: Path) -> None:
    land(tmp_path / "in", "1.csv", FIRST)
    with flow().open(tmp_path / "state") as engine:
        engine.run(landing(tmp_path))
    land(tmp_path / "in", "1.csv", SECOND)
    with flow().open(tmp_path / "state") as engine:
        with raises(SourceChanged):
            engine.run(landing(tmp_path))
        (tmp_path / "in" / "1.csv").unlink()
        land(tmp_path / "in", "2.csv", SECOND)
        assert engine.run(landing(tmp_path)).rows == 2  # one that is gone is forgotten


def test_a_file_that_is_moved_away_before_it_is_read_was_never_there(tmp_path: Path) -> None:
    for number in range(3):
        land(tmp_path / "in", f"{number}.csv", FIRST[number : number + 1])
    source = landing(tmp_path)["orders"].open({"orders": flow().inputs["orders"].bound.schema}, None)
    assert source.poll(1) is not None
    (tmp_path / "in" / "1.csv").unlink()
    found = [source.poll(1 << 20), source.poll(1 << 20)]
    assert [list(each.position["done"]) for each in found if each is not None] == [["0.csv", "2.csv"]]
    assert source.ended


def test_a_large_file_is_read_over_several_epochs(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    table = pa.table({"id": range(200_000), "city": ["Bern"] * 200_000, "amount": range(200_000)})
    pq.write_table(table, tmp_path / "in" / "1.parquet", row_group_size=20_000)
    source = {"orders": dd.sources.files(tmp_path / "in")}
    with flow().open(tmp_path / "state") as engine:
        engine.run(source, until="0s")
        seen = []
        while sum(seen) < 200_000:
            done = engine.run(source, interval="1ms", room="1MB", on_epoch=lambda step, engine=engine: engine.stop())
            assert done.epochs == 1
            seen.append(done.rows)
            engine.close()
            engine = flow().open(tmp_path / "state")
        assert sum(seen) + engine.verdicts.counts.get("", 0) == 200_000 and len(seen) > 2
        assert engine.read("by_city").to_pylist() == [
            {"city": "Bern", "n": 200_000, "total": sum(range(200_000)), "_diff": 1}
        ]
        engine.close()


def test_followed_files_and_a_signal(tmp_path: Path) -> None:
    land(tmp_path / "in", "1.csv", FIRST)
    sinks = {"orders": dd.sinks.sqlite(tmp_path / "out.db", "orders")}

    def written(rows: int) -> None:
        deadline = time.monotonic() + 120
        while time.monotonic() < deadline:
            with suppress(sqlite3.OperationalError):  # there is no table yet
                if len(of_sqlite(tmp_path / "out.db", "orders")) >= rows:
                    return
            time.sleep(0.05)

    def later() -> None:
        written(3)
        land(tmp_path / "in", "0.csv", SECOND)
        written(4)
        os.kill(os.getpid(), signal.SIGTERM)

    before = signal.getsignal(signal.SIGTERM)
    with flow().open(tmp_path / "state") as engine:
        thread = threading.Thread(target=later)
        thread.start()
        done = engine.run(landing(tmp_path, follow=True, settle="100ms"), sinks, interval="50ms")
        thread.join()
        assert (done.stopped, done.rows, done.sinks["orders"]) == ("signal", 5, engine.epoch)
        assert of_sqlite(tmp_path / "out.db", "orders") == rows_of(engine, "orders")
    assert signal.getsignal(signal.SIGTERM) == before


def test_hold_back_needs_lateness_and_a_silent_source_is_left_out(tmp_path: Path) -> None:
    made = dd.Flow()
    for name in ("a", "b"):
        made.output(name, made.upserts(name, {"id": pa.int64(), "at": pa.int64()}, dd.Upsert(key="id", time="at")))
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
    (tmp_path / "a" / "1.csv").write_text("id,at\n1,10\n2,20\n")
    sources = {name: dd.sources.files(tmp_path / name / "*.csv", follow=True, settle="0s") for name in ("a", "b")}
    with made.open(tmp_path / "state") as engine:
        with raises(SpecError):
            engine.run(sources)
        with raises(SpecError):
            engine.run(sources, lateness="1s")
        engine.run(sources, lateness=5, until="300ms", interval="10ms")
        assert engine.frontier == dd.NEVER  # b was never heard of

        def stop(step: dd.Step) -> None:
            if engine.frontier == 15:
                engine.stop()

        done = engine.run(sources, lateness=5, until="2min", interval="10ms", idle="100ms", on_epoch=stop)
        assert done.stopped == "stop"
        assert engine.frontier == 15 and engine.read("a").num_rows == 1


class Failing(Source, OpenSource):
    """A source that fails so many times before its rows."""

    kind = "failing"
    ended = waits = False

    def __init__(self, times: int) -> None:
        self.times = times

    @property
    def target(self) -> str:
        """Nowhere."""
        return "nowhere"

    def open(self, inputs: Any, position: Any) -> Any:
        """Fail, or itself."""
        if self.times:
            self.times -= 1
            raise SourceFailed("read nowhere", "it does not answer", "wait")
        self.position, self.acknowledged, self.ended = position or 0, [], False
        return self

    def keyed(self, keys: Any, whole: Any) -> None:
        """Keys are all alike to it."""

    def declared(self, columns: Any) -> None:
        """It has them all."""

    def poll(self, room: int) -> Any:
        """A transaction in two parts, behind the first of which no epoch may end."""
        self.position += 1
        batch = pa.record_batch({"id": [self.position], "city": ["Bern"], "amount": [1]})
        self.ended = self.position >= 4
        return Polled({"orders": [batch]}, None if self.position % 2 else self.position)

    def lag(self) -> int:
        """None."""
        return 0

    def acknowledge(self, position: Any) -> None:
        """Note it."""
        self.acknowledged.append(position)

    def close(self) -> None:
        """Nothing."""


def test_sources_are_tried_again_and_epochs_end_where_they_may(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with flow().open(tmp_path / "state") as engine:
        with pytest.raises(SourceFailed):
            engine.run({"orders": Failing(100)}, give_up_after="100ms")
        source = Failing(2)
        done = engine.run({"orders": source}, rows=1)
        assert (done.rows, done.epochs, source.acknowledged) == (4, 2, [2, 4])
        said = "the source 'orders' fails, and ddflow retries it: read nowhere: it does not answer; wait"
        assert [each.message for each in caplog.records if each.levelname == "WARNING"] == [
            *([said] * 2),  # once a failure
            "the source 'orders' answers again after 0 s",
        ]
        with raises(SpecError):
            engine.run(landing(tmp_path))
        with raises(SpecError):
            engine.run({"order": Failing(0)})


def test_a_failing_sink_is_tried_again_and_stops_the_input_when_too_much_waits(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    land(tmp_path / "in", "1.csv", FIRST)
    sinks = {"orders": dd.sinks.sqlite(tmp_path / "out.db", "orders")}
    with flow().open(tmp_path / "state") as engine:
        engine.run({}, sinks)
        lock = sqlite3.connect(tmp_path / "out.db", isolation_level=None, timeout=0)
        import ddflow.connectors.sqlite as connector

        real = connector.sqlite3.connect
        try:
            connector.sqlite3.connect = lambda *a, **k: real(*a, **{**k, "timeout": 0.01})  # type: ignore[attr-defined]
            lock.execute("begin immediate")
            with raises(SinkFailed):
                engine.run(landing(tmp_path), sinks, give_up_after="300ms", interval="10ms")
            assert engine.epoch == 1  # the state is whole, and its epoch is kept
            land(tmp_path / "in", "2.csv", SECOND)
            with pytest.raises(SinkFailed):
                engine.run(landing(tmp_path), sinks, give_up_after="300ms", interval="10ms", sink_backlog="1")
            assert engine.epoch == 1  # nothing was taken in
            assert caplog.text.count("the sink of 'orders' fails, and ddflow retries it") == 2
        finally:
            connector.sqlite3.connect = real  # type: ignore[attr-defined]
        lock.execute("rollback")
        engine.run(landing(tmp_path), sinks)
        assert of_sqlite(tmp_path / "out.db", "orders") == rows_of(engine, "orders")
        lock.close()


def test_a_commit_whose_answer_was_lost_is_found(tmp_path: Path) -> None:
    from ddflow.connectors.sql_table import SqlTable

    sinks = {"orders": dd.sinks.sqlite(tmp_path / "out.db", "orders", mode="changelog")}
    land(tmp_path / "in", "1.csv", FIRST)
    real, lost = SqlTable.write, [True]

    def write(self: Any, *given: Any) -> None:
        real(self, *given)
        if lost and lost.pop():
            raise SinkFailed("write", "the answer was lost", "ask again")

    with flow().open(tmp_path / "state") as engine:
        SqlTable.write = write  # type: ignore[method-assign]
        try:
            engine.run(landing(tmp_path), sinks)
        finally:
            SqlTable.write = real  # type: ignore[method-assign]
        assert not lost and len(of_sqlite(tmp_path / "out.db", "orders")) == 3


def test_a_changelog_says_when_an_epoch_was_committed_whenever_it_is_written(tmp_path: Path) -> None:
    sinks = {name: dd.sinks.sqlite(tmp_path / f"{name}.db", "log", mode="changelog") for name in ("orders", "by_city")}
    with flow().open(tmp_path / "state") as engine:
        engine.run({}, sinks)
        at = dict[int, int]()
        for number, rows in enumerate([FIRST, SECOND], 1):
            land(tmp_path / "in", f"{number}.csv", rows)
            engine.run(landing(tmp_path), {"orders": sinks["orders"]})
            at[number] = next(each.written for each in past(tmp_path / "state") if each.epoch == number)
    time.sleep(0.01)
    with flow().open(tmp_path / "state") as engine:
        engine.step({"orders": {"id": [9], "city": ["Bern"], "amount": [1]}})
        engine.run({}, {"by_city": sinks["by_city"]})  # two epochs long after they were committed
        at[3] = next(each.written for each in past(tmp_path / "state") if each.epoch == 3)
        engine.run({}, {"orders": sinks["orders"]})
    for name in sinks:
        said = {row[-2]: row[-1] for row in of_sqlite(tmp_path / f"{name}.db", "log")}
        times = {epoch: dt.datetime.fromisoformat(text.replace("Z", "+00:00")) for epoch, text in said.items()}
        assert {epoch: round(each.timestamp() * 1000) for epoch, each in times.items()} == at


def test_a_step_that_is_refused_leaves_nothing_behind(tmp_path: Path) -> None:
    land(tmp_path / "in", "1.csv", FIRST)
    (tmp_path / "in" / "2.csv").write_text("id,amount\n,5\n")  # no key
    with flow().open(tmp_path / "state") as engine, pytest.raises(dd.DdflowError):
        engine.run(landing(tmp_path))
    with flow().open(tmp_path / "state") as engine:
        assert engine.epoch == 0
        (tmp_path / "in" / "2.csv").unlink()
        assert engine.run(landing(tmp_path)).rows == 3


def test_messages_by_line(tmp_path: Path) -> None:
    made = dd.Flow()
    made.output("lines", made.upserts("lines", {"value": pa.binary(), "offset": pa.int64()}, dd.Upsert(key="offset")))
    (tmp_path / "in.jsonl").write_bytes(b'{"a": 1}\n\n{"a": 2}')
    with made.open() as engine:
        engine.run({"lines": dd.sources.files(tmp_path / "in.jsonl", lines=True)})
        values = [json.loads(value) for value in engine.read("lines")["value"].to_pylist()]
        assert sorted(values, key=str) == [{"a": 1}, {"a": 2}]


def test_a_column_that_the_source_gets_comes_to_the_sink(tmp_path: Path) -> None:
    land(tmp_path / "in", "1.csv", FIRST)
    sinks = {"orders": dd.sinks.sqlite(tmp_path / "out.db", "orders")}
    with flow().open(tmp_path / "state") as engine:
        engine.run(landing(tmp_path), sinks)
    (tmp_path / "in" / "2.csv").write_text("id,city,amount,note\n3,Chur,7,x\n")
    more = dd.Flow()
    orders = more.upserts("orders", COLUMNS | {"note": pa.string()}, dd.Upsert(key="id"))
    more.output("orders", orders)
    more.output("by_city", orders.group_by("city").agg(n="count(*)", total="sum(amount)"))
    with more.open(tmp_path / "state") as engine:
        engine.run(landing(tmp_path), sinks)
        assert of_sqlite(tmp_path / "out.db", "orders") == [(*FIRST[0], None), (*FIRST[1], None), (*FIRST[2], "x")]


def test_rescaling_and_compacting_keep_what_is_attached(tmp_path: Path) -> None:
    from ddflow.partitions.rescale import rescale

    land(tmp_path / "in", "1.csv", FIRST)
    sinks = {"orders": dd.sinks.sqlite(tmp_path / "out.db", "orders")}
    with flow().open(tmp_path / "state") as engine:
        engine.run(landing(tmp_path), sinks)
        engine.compact()
        engine.step({"orders": {"id": [9], "city": ["Bern"], "amount": [1]}})
        with raises(SpecError):
            engine.compact(forget=True)
        engine.run({}, sinks)
        engine.compact(forget=True)
    before = manifest_of(tmp_path / "state")
    for partitions in (3, 1):
        rescale(tmp_path / "state", partitions)
    after = manifest_of(tmp_path / "state")
    assert (after.sources, after.sinks) == (before.sources, before.sinks)
    land(tmp_path / "in", "2.csv", SECOND)
    with flow().open(tmp_path / "state") as engine:
        assert engine.run(landing(tmp_path), sinks).rows == 2
        assert of_sqlite(tmp_path / "out.db", "orders") == rows_of(engine, "orders")
    assert not dd.fsck(tmp_path / "state").problems


def test_a_sink_that_cannot_be_reached_at_the_beginning_gets_what_is_held_then(tmp_path: Path) -> None:
    land(tmp_path / "in", "1.csv", FIRST)
    place = tmp_path / "there" / "out.db"
    sinks = {"orders": dd.sinks.sqlite(place, "orders")}
    with flow().open(tmp_path / "state") as engine:
        with raises(SinkFailed):
            engine.run(landing(tmp_path), sinks, give_up_after="100ms", interval="10ms")
        assert engine.epoch == 1
        place.parent.mkdir()
        engine.run(landing(tmp_path), sinks)
        assert of_sqlite(place, "orders") == FIRST


def test_messages_of_debezium_by_line(tmp_path: Path) -> None:
    made = dd.Flow()
    orders = made.upserts("orders", COLUMNS, dd.Upsert(key="id"), format=dd.formats.debezium(on_bad="drop"))
    made.output("orders", orders)
    sinks = {
        "orders": dd.sinks.sqlite(tmp_path / "out.db", "orders"),
        "orders.bad": dd.sinks.sqlite(tmp_path / "out.db", "bad", mode="updates"),
    }

    def message(op: str, row: tuple[int, str, int] | None, gone: int | None = None) -> str:
        after = None if row is None else dict(zip(COLUMNS, row, strict=True))
        before = None if gone is None else {"id": gone}
        return json.dumps({"op": op, "before": before, "after": after, "source": {"file": "b.1", "pos": 4, "row": 0}})

    files = [
        [message("c", row) for row in FIRST],
        ["no message", message("u", (1, "Chur", 5)), message("d", None, 2)],
        [message("t", None), message("c", SECOND[1])],
    ]
    (tmp_path / "in").mkdir()
    source = {"orders": dd.sources.files(tmp_path / "in" / "*.jsonl", lines=True)}
    expected = [FIRST, [(1, "Chur", 5), FIRST[2]], [SECOND[1]]]
    for number, lines in enumerate(files):
        (tmp_path / "in" / f"{number}.jsonl").write_text("\n".join(lines))
        with made.open(tmp_path / "state") as engine:
            engine.run(source, sinks)
            assert of_sqlite(tmp_path / "out.db", "orders") == rows_of(engine, "orders") == expected[number]
    assert [row[0] for row in of_sqlite(tmp_path / "out.db", "bad")] == [b"no message"]


GOOD = '{"id": %d, "city": null, "amount": null}'


@pytest.mark.parametrize("mode", ["changelog", "retract", "debezium", "updates", "upsert"])
@pytest.mark.parametrize("kind", ["sqlite", "parquet"])
def test_messages_that_cannot_be_read_have_a_sink_in_every_mode_without_a_key(
    tmp_path: Path, kind: str, mode: Any
) -> None:
    made = dd.Flow()
    orders = made.upserts("orders", COLUMNS, dd.Upsert(key="id"), format=dd.formats.plain_json(on_bad="drop"))
    made.output("orders", orders)
    place = (tmp_path / "out",) if kind == "parquet" else (tmp_path / "out.db", "bad")
    if (kind, mode) == ("parquet", "upsert"):
        mode = "changelog"
    sinks = {"orders.bad": getattr(dd.sinks, kind)(*place, mode=mode)}
    source = {"orders": dd.sources.files(tmp_path / "in" / "*.jsonl", lines=True)}
    (tmp_path / "in").mkdir()
    with made.open(tmp_path / "state") as engine:
        if mode == "upsert" and kind == "sqlite":
            with raises(SpecError):
                engine.run(source, sinks)
            return
        engine.run(source, sinks)
        for number, lines in enumerate([[GOOD % 1, "no", "no"], [GOOD % 2], ["nay", GOOD % 3]]):
            (tmp_path / "in" / f"{number}.jsonl").write_text("\n".join(lines))
            engine.run(source, sinks)
        done = engine.sync(sinks)
        assert engine.read("orders").num_rows == 3
        assert [each[:3] for each in done.values()] == [(0, 0, 0)]
    if kind == "sqlite":
        connection = sqlite3.connect(tmp_path / "out.db")
        names = [row[1] for row in connection.execute("pragma table_info(bad)")]
        rows = [dict(zip(names, row, strict=True)) for row in connection.execute("select * from bad")]
        connection.close()
    else:
        files = sorted((tmp_path / "out").rglob("*.parquet"))
        rows = [row for path in files for row in pq.read_table(path).to_pylist()]
    if mode == "debezium":
        rows = [json.loads(row["value"])["after"] | json.loads(row["value"])["source"] for row in rows]
        assert len(rows) == 3
        return
    assert [row["message"] for row in rows] == [b"no", b"no", b"nay"]
    assert all(row["position"] for row in rows) and {row["reason"] for row in rows} == {"it is not valid JSON"}
    more = {"changelog": ("_change_type", "insert"), "retract": ("_retract", 0)}.get(mode)
    assert more is None or {row[more[0]] for row in rows} == {more[1]}


def test_a_message_that_cannot_be_read_stops_a_run_and_changes_nothing(tmp_path: Path) -> None:
    made = dd.Flow()
    made.output("orders", made.upserts("orders", COLUMNS, dd.Upsert(key="id"), format=dd.formats.plain_json()))
    source = {"orders": dd.sources.files(tmp_path / "in" / "*.jsonl", lines=True)}
    sinks = {"orders": dd.sinks.sqlite(tmp_path / "out.db", "orders")}
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "1.jsonl").write_text(GOOD % 1)
    with made.open(tmp_path / "state") as engine:
        engine.run(source, sinks)
    (tmp_path / "in" / "2.jsonl").write_text(f"{GOOD % 2}\nno message")
    before = manifest_of(tmp_path / "state")
    for _ in range(2):
        with made.open(tmp_path / "state") as engine, raises(BadMessage):
            engine.run(source, sinks)
        assert manifest_of(tmp_path / "state") == before
    (tmp_path / "in" / "2.jsonl").write_text(GOOD % 2)
    with made.open(tmp_path / "state") as engine:
        assert engine.run(source, sinks).epochs == 1 and engine.read("orders").num_rows == 2


@pytest.mark.parametrize("spec", [{}, {"time": "amount", "lateness": 0}], ids=["epochs", "held back"])
def test_what_a_new_output_held_goes_to_its_sink_though_no_row_comes(tmp_path: Path, spec: dict[str, Any]) -> None:
    """The run makes the call that gives it."""

    def made(counts: bool) -> dd.Flow:
        made = dd.Flow()
        orders = made.upserts("orders", COLUMNS, dd.Upsert(key="id", **spec))
        made.output("orders", orders)
        if counts:
            made.output("by_city", orders.project(["city"]).count())
        return made

    land(tmp_path / "in", "1.csv", FIRST)
    with made(False).open(tmp_path / "state") as engine:
        engine.run(landing(tmp_path))
    sinks = {"by_city": dd.sinks.sqlite(tmp_path / "out.db", "by_city")}
    with made(True).open(tmp_path / "state") as engine:
        assert engine.run(landing(tmp_path), sinks).epochs == 1
        assert of_sqlite(tmp_path / "out.db", "by_city") == rows_of(engine, "by_city") != []
    land(tmp_path / "in", "2.csv", [(1, "Bern", 99)])  # Chur stays as it was
    with made(True).open(tmp_path / "state") as engine:
        engine.run(landing(tmp_path), sinks)
        assert of_sqlite(tmp_path / "out.db", "by_city") == rows_of(engine, "by_city")
