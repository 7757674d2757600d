"""Test Postgres as a sink on the tests' own server."""

from __future__ import annotations

import os
import signal
import threading
import time
from datetime import UTC, date, datetime, time as clock
from decimal import Decimal
from pathlib import Path
from typing import Any

import psycopg
import pyarrow as pa
import pytest
from messages import raises
from postgres_server import Server
from test_run import FIRST, SECOND, flow, land, landing, manifest_of, rows_of
from test_targets_bad import keeps_its_mode
from test_totals import is_kept

import ddflow as dd
import ddflow.engine.run.run
from ddflow.connectors.address import parse_sink
from ddflow.connectors.api import TableChanges, TableShape, TargetRecord
from ddflow.connectors.modes import read_rows_with_diff
from ddflow.connectors.postgres.sink import abort_connection
from ddflow.engine.run.delivery import Delivery
from ddflow.engine.run.kept_epochs import EngineEpochs
from ddflow.errors import SinkAhead, SinkFailed, SinkRefused, SpecError


def ask(server: Server, text: str) -> list[tuple[Any, ...]]:
    with psycopg.connect(server.url, autocommit=True) as connection:
        found = connection.execute(text)
        return sorted(found.fetchall()) if found.description else []


def record(epoch: int) -> TargetRecord:
    return TargetRecord("0" * 32, "t", epoch, "f" * 32)


def test_a_moment_of_long_ago_is_the_same_there(server: Server) -> None:
    rows = pa.table({"at": pa.array([datetime(1700, 1, 1, tzinfo=UTC)], pa.timestamp("us", "Europe/Zurich"))})
    table = dd.sinks.postgres(server.url, "t").open(TableShape("t", rows.schema, None))
    table.prepare()
    table.write(TableChanges(None, rows, 1), record(1), None)
    table.close()
    assert ask(server, "select at = '1700-01-01 00:00:00+00' from t") == [(True,)]


def test_a_view_is_kept_in_a_table(server: Server, tmp_path: Path) -> None:
    sinks = {name: dd.sinks.postgres(server.url, name) for name in ("orders", "by_city")}
    with flow().open(tmp_path / "state") as engine:
        for number, rows in enumerate([FIRST, SECOND, [(1, "Chur", 5)]]):
            land(tmp_path / "in", f"{number}.csv", rows)
            engine.run(landing(tmp_path), sinks)
            for name in sinks:
                assert ask(server, f"select * from {name}") == rows_of(engine, name)
        assert engine.sync(sinks, dry=True)["by_city"][:3] == (0, 0, 0)
    assert ask(server, "select table_name, epoch from _ddflow_written") == [("by_city", 2), ("orders", 2)]


@pytest.mark.parametrize(("first", "then"), [("upsert", "changelog"), ("retract", "upsert"), ("debezium", "retract")])
def test_a_table_is_not_written_in_another_mode(server: Server, tmp_path: Path, first: Any, then: Any) -> None:
    def made(mode: Any) -> Any:
        return dd.sinks.postgres(server.url, "orders", mode=mode)

    keeps_its_mode(tmp_path, made, first, then, lambda: ask(server, "select * from orders"))


@pytest.mark.parametrize("name", ["total", "large"])
def test_a_total_is_a_table_of_one_row(server: Server, tmp_path: Path, name: str) -> None:
    def read() -> list[dict[str, Any]]:
        return [{"s": s, "n": n} for s, n in ask(server, f"select s, n from {name}")]

    is_kept(name, dd.sinks.postgres(server.url, name), tmp_path / "state", read)


@pytest.mark.parametrize("mode", ["changelog", "retract", "debezium", "updates"])
def test_logs_fold_to_what_is_held(server: Server, tmp_path: Path, mode: Any) -> None:
    sink = dd.sinks.postgres(server.url, "by_city", mode=mode)
    with flow().open(tmp_path / "state") as engine:
        for number, rows in enumerate([FIRST, SECOND]):
            land(tmp_path / "in", f"{number}.csv", rows)
            engine.run(landing(tmp_path), {"by_city": sink})
        delivery = Delivery(EngineEpochs(engine.calls, "a test"), "by_city", sink)
        there = read_rows_with_diff(mode, delivery.table.read(), delivery.epochs.output_schema("by_city"))
        delivery.close()
        found: dict[tuple[Any, ...], int] = {}
        for row in there.to_pylist():
            diff = row.pop("_diff")
            found[tuple(row.values())] = found.get(tuple(row.values()), 0) + diff
        assert sorted(row for row, n in found.items() if n) == rows_of(engine, "by_city")


EVERY: dict[str, tuple[pa.DataType, list[Any]]] = {
    "bool": (pa.bool_(), [True, False]),
    "int8": (pa.int8(), [-128, 127]),
    "uint8": (pa.uint8(), [0, 255]),
    "int16": (pa.int16(), [-(2**15), 2**15 - 1]),
    "uint16": (pa.uint16(), [0, 2**16 - 1]),
    "int32": (pa.int32(), [-(2**31), 2**31 - 1]),
    "uint32": (pa.uint32(), [0, 2**32 - 1]),
    "int64": (pa.int64(), [-(2**63), 2**63 - 1]),
    "uint64": (pa.uint64(), [0, 2**64 - 1]),
    "float": (pa.float32(), [0.1, float("inf")]),
    "double": (pa.float64(), [0.1, float("-inf")]),
    "decimal": (pa.decimal128(20, 4), [Decimal("-1234567890123456.7891"), Decimal("0.0001")]),
    "text": (pa.string(), ["", 'ä"\\,;\n\r\t\\N\\.']),
    "large": (pa.large_string(), ["NULL", "\\."]),
    "bytes": (pa.binary(), [b"", b"\x00\\x\xff"]),
    "date": (pa.date32(), [date(1, 1, 1), date(9999, 12, 31)]),
    "local": (pa.timestamp("us"), [datetime(1969, 12, 31, 23, 59, 59, 999999), datetime(2024, 2, 29)]),
    "zoned": (pa.timestamp("us", "UTC"), [datetime(2024, 2, 29, 1, tzinfo=UTC)] * 2),
    "seconds": (pa.timestamp("s"), [datetime(2024, 2, 29), datetime(1900, 1, 1)]),
    "time": (pa.time64("us"), [clock(23, 59, 59, 999999), clock(0)]),
    "numbers": (pa.list_(pa.int64()), [[1, None, -2], []]),
    "texts": (pa.list_(pa.string()), [['a"b\\c,{}', None, "NULL", ""], ["x"]]),
    "blobs": (pa.list_(pa.binary()), [[b"\x00\xff"], [None]]),
    "dates": (pa.large_list(pa.date32()), [[date(2024, 2, 29)], []]),
}


def test_values_of_every_type_come_back_as_they_went(server: Server) -> None:
    schema = pa.schema({"id": pa.int64(), **{name: kind for name, (kind, _) in EVERY.items()}})
    columns = {"id": [1, 2, 3], **{name: [*values, None] for name, (_, values) in EVERY.items()}}
    rows = pa.table(columns, schema)
    opened = dd.sinks.postgres(server.url, 'odd "name" 100%?').open(TableShape("t", schema, ("id",)))
    opened.prepare()
    opened.write(TableChanges(pa.table({"id": [1, 2, 3]}), rows, 3), record(1), None)
    assert opened.read().sort_by("id").to_pylist() == rows.to_pylist()
    opened.prepare()  # it is the table that it made
    assert opened.written() == record(1)
    opened.close()


def test_rows_go_by_keys_of_every_type(server: Server) -> None:
    for number, (kind, values) in enumerate(EVERY.values()):
        schema = pa.schema({"n": pa.int64(), "100%? key": kind})
        rows = pa.table({"n": [0, 1], "100%? key": values}, schema)
        rows = rows if values[0] != values[1] else rows.slice(0, 1)
        for key in (("100%? key",), ("n", "100%? key")):
            opened = dd.sinks.postgres(server.url, f"{number}_{len(key)}").open(TableShape("t", schema, key))
            opened.prepare()
            opened.write(TableChanges(rows.select(list(key)), rows, 2), record(1), None)
            opened.write(TableChanges(rows.slice(0, 1).select(list(key)), rows.slice(0, 0), 1), record(2), record(1))
            assert opened.read().to_pylist() == rows.slice(1).to_pylist()
            opened.close()


def test_keys_of_nulls_are_found(server: Server) -> None:
    schema = pa.schema({"a": pa.int64(), "b": pa.string(), "n": pa.int64()})
    opened = dd.sinks.postgres(server.url, "t").open(TableShape("t", schema, ("a", "b")))
    opened.prepare()
    rows = pa.table({"a": [1, None, None, 2], "b": ["x", "x", None, None], "n": [1, 2, 3, 4]}, schema)
    opened.write(TableChanges(None, rows, 4), record(1), None)
    gone = pa.table({"a": [1, None, 2], "b": ["x", None, "z"]}, pa.schema({"a": pa.int64(), "b": pa.string()}))
    opened.write(TableChanges(gone, rows.slice(0, 0), 2), record(2), record(1))
    assert sorted(row["n"] for row in opened.read().to_pylist()) == [2, 4]
    opened.close()


def test_a_table_that_is_made_has_its_key(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a primary key; as a unique index where it may be null; none where rows are only added."""
    definitions = "select indexdef from pg_indexes where tablename = '{}'"

    def run(table: str, output: str = "by_city", mode: Any = "upsert") -> list[Any]:
        sink = dd.sinks.postgres(server.url, table, mode=mode)
        with flow().open(tmp_path / table) as engine:
            engine.run(landing(tmp_path), {output: sink})
            return rows_of(engine, output)

    land(tmp_path / "in", "0.csv", FIRST)
    run("orders", "orders")
    assert ask(server, definitions.format("orders"))[0][0].startswith("CREATE UNIQUE INDEX orders_pkey ")
    run("by_city")
    assert ask(server, definitions.format("by_city"))[0][0].endswith("(city) NULLS NOT DISTINCT")
    for n in (7, 9):
        ask(server, f"insert into by_city values (null, {n}, 0) on conflict (city) do update set n = excluded.n")
    assert ask(server, "delete from by_city where city is null returning n") == [(9,)]
    ask(server, "create table own (city text, n bigint, total bigint)")
    assert ask(server, "select * from own") == [] != run("own")
    run("log", mode="changelog")
    assert ask(server, definitions.format("own")) == ask(server, definitions.format("log")) == []
    monkeypatch.setattr("ddflow.connectors.postgres.sink.NOT_DISTINCT", 10**9)
    run("older")
    land(tmp_path / "in", "1.csv", [(2, "Bern", 5)])
    assert ask(server, definitions.format("older"))[0][0].startswith("CREATE INDEX ")
    for table, output in (("orders", "orders"), ("by_city", "by_city"), ("own", "by_city"), ("older", "by_city")):
        assert run(table, output) == ask(server, f"select * from {table}")


def test_what_cannot_be_held_is_refused_by_name(server: Server) -> None:
    for kind in (pa.struct({"x": pa.int64()}), pa.timestamp("ns"), pa.duration("s"), pa.list_(pa.list_(pa.int64()))):
        opened = dd.sinks.postgres(server.url, "t").open(TableShape("t", pa.schema({"odd": kind}), None))
        with raises(SinkRefused):
            opened.prepare()
        opened.close()


def test_another_shape_is_refused_and_a_new_column_is_added(server: Server) -> None:
    ask(server, "create table t (id bigint, city integer)")
    wide = pa.schema({"id": pa.int64(), "city": pa.string(), "n": pa.int64()})
    opened = dd.sinks.postgres(server.url, "t").open(TableShape("t", wide, ("id",)))
    with raises(SinkRefused):
        opened.prepare()
    ask(server, "alter table t alter column city type text")
    opened.prepare()
    assert list(opened.read_column_types("t")) == ["id", "city", "n"]  # type: ignore[attr-defined]
    ask(server, "alter table t add column more text")
    with raises(SinkRefused):
        opened.prepare()
    opened.close()


def test_a_constraint_of_the_table_ends_the_run_and_changes_nothing(server: Server, tmp_path: Path) -> None:
    ask(server, "create table orders (id bigint primary key, city text check (city <> 'Genf'), amount bigint)")
    land(tmp_path / "in", "1.csv", [*FIRST, (9, "Genf", 1)])
    with flow().open(tmp_path / "state") as engine, raises(SinkRefused):
        engine.run(landing(tmp_path), {"orders": dd.sinks.postgres(server.url, "orders")})
    assert ask(server, "select * from orders") == []


def test_an_epoch_is_taken_once_and_a_second_writer_is_found(server: Server) -> None:
    shape = TableShape("t", pa.schema({"id": pa.int64()}), None)
    one, two = (dd.sinks.postgres(server.url, "t", mode="updates").open(shape) for _ in range(2))
    one.prepare()
    some = TableChanges(None, pa.table({"id": [1]}), 1)
    one.write(some, record(1), None)
    two.write(some, record(1), None)  # its answer was lost
    assert ask(server, "select * from t") == [(1,)]
    with raises(SinkAhead):
        two.write(some, record(2), None)
    assert ask(server, "select * from t") == [(1,)]
    one.close()
    two.close()


def test_a_server_that_dies_is_waited_for(server: Server, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    sinks = {"orders": dd.sinks.postgres(server.url, "orders")}
    land(tmp_path / "in", "1.csv", FIRST)
    with flow().open(tmp_path / "state") as engine:
        engine.run(landing(tmp_path), sinks)
        server.stop()
        try:
            with raises(SinkFailed):
                dd.sinks.postgres(server.url, "orders").open(TableShape("t", pa.schema({"id": pa.int64()}), None))
            land(tmp_path / "in", "2.csv", SECOND)

            def starts() -> None:
                ends = time.monotonic() + 120
                while time.monotonic() < ends and "ddflow retries it" not in caplog.text:
                    time.sleep(0.02)
                server.start()

            again = threading.Thread(target=starts)
            again.start()
            engine.run(landing(tmp_path), sinks)
        finally:
            again.join()
        assert ask(server, "select * from orders") == rows_of(engine, "orders")


def test_a_table_that_others_lock_is_a_sink_that_fails_until_they_do_not(
    server: Server, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    seen, url = list[Any](), f"{server.url}&options=-c%20lock_timeout%3D100"
    land(tmp_path / "in", "1.csv", FIRST)

    def look(call: Any) -> None:
        seen.append(call)
        if call.kind == "run" and call.sinks["orders"].failing:
            engine.stop()

    with flow().open(tmp_path / "state", metrics=look) as engine:
        engine.run(landing(tmp_path), {"orders": dd.sinks.postgres(server.url, "orders")})
        land(tmp_path / "in", "2.csv", SECOND)
        with psycopg.connect(server.url) as other:
            other.execute("lock table orders")
            seen.clear()
            done = engine.run(landing(tmp_path), {"orders": dd.sinks.postgres(url, "orders")}, until="5min")
        assert (done.stopped, done.sinks, engine.epoch) == ("stop", {"orders": 1}, 2)
        lags = [call.sinks["orders"] for call in seen if call.kind == "run"]
        assert (lags[-1].epochs, lags[-1].failing) == (1, True)
        engine.run(landing(tmp_path), {"orders": dd.sinks.postgres(url, "orders")})
        assert ask(server, "select * from orders") == rows_of(engine, "orders")
    assert "LockNotAvailable" in caplog.text and "another session has locked the table" in caplog.text


def test_a_connection_that_is_broken_off_while_it_closes_ends_no_other(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The descriptor of the closed one is the new one's by then."""
    ends, opened, copy = psycopg.connect(server.url), list[Any](), os.dup

    def closed_first(descriptor: int) -> int:
        ends.close()
        opened.append(psycopg.connect(server.url))
        assert opened[0].fileno() == descriptor
        return copy(descriptor)

    monkeypatch.setattr(os, "dup", closed_first)
    abort_connection(ends)
    with opened.pop() as other:
        assert other.execute("select 1").fetchone() == (1,)


def test_a_write_that_lasts_is_cancelled_behind_a_signal_and_done_by_the_next_run(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(ddflow.engine.run.run, "GRACE", (0.2, 0.2))
    sinks = {"orders": dd.sinks.postgres(server.url, "orders")}
    land(tmp_path / "in", "1.csv", FIRST)

    def stop() -> None:
        ends, asked = time.monotonic() + 120, "select 1 from pg_stat_activity where wait_event = 'PgSleep'"
        while time.monotonic() < ends and not ask(server, asked):
            time.sleep(0.02)
        os.kill(os.getpid(), signal.SIGTERM)

    with flow().open(tmp_path / "state") as engine:
        engine.run(landing(tmp_path), sinks)
        ask(
            server,
            "create function lasts() returns trigger language plpgsql as"
            " 'begin perform pg_sleep(600); return new; end';"
            "create trigger lasts before insert on orders for each row execute function lasts()",
        )
        land(tmp_path / "in", "2.csv", SECOND)
        thread = threading.Thread(target=stop)
        thread.start()
        done = engine.run(landing(tmp_path, follow=True, settle="10ms"), sinks)
        thread.join()
        assert (done.stopped, done.sinks, engine.epoch) == ("signal", {"orders": 1}, 2)
        ask(server, "drop trigger lasts on orders")
        engine.run(landing(tmp_path), sinks)
        assert ask(server, "select * from orders") == rows_of(engine, "orders")
    assert caplog.text.count("the sink of 'orders' takes too long and is cancelled") == 1
    assert "ddflow retries it" not in caplog.text


def test_a_lock_is_waited_for_ten_seconds_unless_the_user_says_otherwise(server: Server) -> None:
    for beside, waits in (("", "10s"), ("&options=-c%20lock_timeout%3D2min", "2min")):
        opened: Any = dd.sinks.postgres(server.url + beside, "t").open(TableShape("t", pa.schema({}), None))
        assert opened.execute("show lock_timeout") == [(waits,)]
        opened.close()


def test_a_table_may_be_in_another_schema_which_has_to_be_there(server: Server, tmp_path: Path) -> None:
    land(tmp_path / "in", "1.csv", FIRST)
    sink = parse_sink(f"{server.url}#other.orders", "orders", None)
    with flow().open(tmp_path / "state") as engine:
        with raises(SinkRefused):
            engine.run(landing(tmp_path), {"orders": sink})
        ask(server, "create schema other")
        engine.run(landing(tmp_path), {"orders": sink})
    assert ask(server, "select * from other.orders") == FIRST and sink.target.endswith("#other.orders")


def test_passwords_are_shown_nowhere(server: Server, tmp_path: Path) -> None:
    host = server.url.rpartition("host=")[2]
    sink = dd.sinks.postgres(f"postgresql://postgres:Geheim7@/postgres?host={host}", "orders")
    land(tmp_path / "in", "1.csv", FIRST)
    with flow().open(tmp_path / "state") as engine:
        engine.run(landing(tmp_path), {"orders": sink})
    assert "Geheim7" not in repr(sink) + sink.target + repr(manifest_of(tmp_path / "state"))
    for path in (tmp_path / "state").rglob("*"):
        assert path.is_dir() or b"Geheim7" not in path.read_bytes()
    for address in ("postgresql//me:Geheim7@db", "postgresql://me:Geheim7@db/x?no=1"):
        with raises(SpecError) as refused:
            dd.sinks.postgres(address, "t").target  # noqa: B018
        assert "Geheim7" not in str(refused.value)
    for port in ("1", "none"):
        with pytest.raises(SinkFailed) as failed:
            sink = dd.sinks.postgres(f"postgresql://me:Geheim7@127.0.0.1:{port}/x", "t")
            sink.open(TableShape("t", pa.schema({}), None))
        assert "Geheim7" not in str(failed.value)


def test_it_is_spelled_as_an_address() -> None:
    sink = parse_sink("postgres://me@db:7/shop#t", "by_city", "changelog")
    assert (sink.kind, sink.mode, sink.target) == ("postgres", "changelog", "postgresql://db:7/shop#t")
    assert parse_sink("postgres://me@db/shop", "by_city", None).target == "postgresql://db:5432/shop#by_city"


def test_a_column_that_others_dropped_is_filled_by_sync_alone(server: Server, tmp_path: Path) -> None:
    land(tmp_path / "in", "1.csv", FIRST)
    sinks = {"orders": dd.sinks.postgres(server.url, "orders")}
    with flow().open(tmp_path / "state") as engine:
        engine.run(landing(tmp_path), sinks)
        ask(server, "alter table orders drop column amount")
        land(tmp_path / "in", "2.csv", SECOND)
        with raises(SinkRefused):
            engine.run(landing(tmp_path), sinks)
        engine.sync(sinks)
        assert ask(server, "select id, city, amount from orders") == rows_of(engine, "orders")
