"""Test sessions with a real Postgres: settings of roles and databases have no effect, and no wait is endless."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import psycopg
import pyarrow as pa
import pytest
from chance import mid_test
from messages import raises
from postgres_server import Server
from tcp_proxy import Proxy

import ddflow as dd
from ddflow.connectors.api import TableChanges, TableShape, TargetRecord
from ddflow.errors import SourceChanged, SourceFailed, UnreadableInput

SET = {
    "extra_float_digits": "-15",
    "datestyle": "'German, DMY'",
    "intervalstyle": "'iso_8601'",
    "bytea_output": "'escape'",
    "timezone": "'Asia/Kathmandu'",
    "lc_monetary": "'C.UTF-8'",
    "lc_numeric": "'C.UTF-8'",
    "lc_time": "'C.UTF-8'",
    "client_encoding": "'SQL_ASCII'",
    "standard_conforming_strings": "off",
    "default_transaction_isolation": "'serializable'",
    "search_path": "'elsewhere'",
    "array_nulls": "off",
    "quote_all_identifiers": "on",
    "synchronous_commit": "off",
    "statement_timeout": "200",
    "lock_timeout": "200",
    "idle_in_transaction_session_timeout": "200",
    "idle_session_timeout": "200",
}
"""What a role or a database may have set."""
KINDS = {
    "id": ("bigint primary key", pa.int64()),
    "f": ("double precision", pa.float64()),
    "r": ("real", pa.float32()),
    "d": ("date", pa.date32()),
    "at": ("timestamp", pa.timestamp("us")),
    "tz": ("timestamptz", pa.timestamp("us", "UTC")),
    "b": ("bytea", pa.binary()),
    "i": ("interval", pa.string()),
    "t": ("text", pa.string()),
    "a": ("timestamptz[]", pa.string()),
    "e": ("mood", pa.string()),
}
ROW = (
    "{}, 0.1234567890123456, 0.1234567, '2026-01-02', '2026-01-02 03:04:05', '2026-01-02 03:04:05+00', '\\x00ff', "
    "'1 day 02:00:00', 'é\\', array['2026-01-02 03:04:05+00'::timestamptz], 'Glad'"
)
WANTED = {
    "f": 0.1234567890123456,
    "r": pa.scalar(0.1234567, pa.float32()).as_py(),
    "d": datetime(2026, 1, 2).date(),
    "at": datetime(2026, 1, 2, 3, 4, 5),
    "tz": datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC),
    "b": b"\x00\xff",
    "i": "1 day 02:00:00",
    "t": "é\\",
    "a": '{"2026-01-02 03:04:05+00"}',
    "e": "Glad",
}


AS_USUAL = " ".join(
    f"-c {each}"
    for each in (
        *("standard_conforming_strings=on", "search_path=public", "synchronous_commit=on"),
        *("statement_timeout=0", "idle_in_transaction_session_timeout=0"),
    )
)


def ask(server: Server, *statements: str, database: str = "postgres") -> Any:
    """Each in a transaction of its own; the rows of the last."""
    url = server.url.replace("/postgres?", f"/{database}?")
    with psycopg.connect(url, autocommit=True, client_encoding="utf8", options=AS_USUAL) as connection:
        for each in statements:
            found = connection.execute(each)  # type: ignore[call-overload]
        return found.fetchall() if found.description else None


def database(server: Server, encoding: str = "UTF8") -> str:
    """The address of a fresh database whose settings, and those of its role, are unusual."""
    slots = "select pg_drop_replication_slot(slot_name) from pg_replication_slots where not active"
    ask(server, slots, "drop database if exists odd with (force)", "drop role if exists odd")
    made = f"create database odd encoding '{encoding}' locale 'C' template template0"
    ask(server, made, "create role odd login superuser")
    for name, value in SET.items():
        for whom in ("database", "role"):
            ask(server, f"alter {whom} odd set {name} = {value}")
    return server.url.replace("postgres@/postgres", "odd@/odd")


def test_lists_with_nulls_are_written_the_same_for_any_role(server: Server) -> None:
    rows = pa.table({"k": [["a", None]], "v": [[None, 1]]})
    table = dd.sinks.postgres(database(server), "lists", schema="public").open(TableShape("t", rows.schema, ("k",)))
    table.prepare()
    table.write(TableChanges(rows.select(["k"]), rows, 1), TargetRecord("0" * 32, "t", 1, "f" * 32), None)
    assert table.read().equals(rows)
    assert table.execute("show synchronous_commit") == [("local",)]
    table.close()


def test_a_first_copy_takes_its_time_whatever_the_role_has(server: Server, tmp_path: Path) -> None:
    """Its slot waits for a transaction longer than the role's time for statements, locks and idle sessions."""
    url = database(server)
    ask(server, "create table t (id bigint primary key, n bigint)", database="odd")
    with psycopg.connect(server.url.replace("/postgres?", "/odd?"), options=AS_USUAL) as other:
        other.execute("insert into t values (1, 1)")

        def commit() -> None:
            until(lambda: ask(server, WAITS))
            time.sleep(1)  # five times what the role has
            other.commit()

        thread = threading.Thread(target=commit)
        thread.start()
        with flow(NUMBERS).open(tmp_path / "state") as engine:
            done = engine.run({"t": dd.sources.postgres(url, "t", slot="odd")}, give_up_after="0s")
            thread.join()
            assert done.epochs == 1 and engine.read("rows").num_rows == 1


def test_bytes_that_are_no_text_are_refused_by_name(server: Server, tmp_path: Path) -> None:
    """SQL_ASCII takes any bytes."""
    url = database(server, "SQL_ASCII")
    bad = r"convert_from('\xe9'::bytea, 'SQL_ASCII')"
    ask(server, "create table t (id bigint primary key, v text)", f"insert into t values (1, {bad})", database="odd")
    given = {"t": dd.sources.postgres(url, "t", slot="odd")}
    made = flow({"id": pa.int64(), "v": pa.string()})
    found = r"invalid byte sequence.*SQL_ASCII"
    with made.open(tmp_path / "state") as engine, pytest.raises(UnreadableInput, match=found):
        engine.run(given, give_up_after="0s")


def flow(kinds: dict[str, pa.DataType]) -> dd.Flow:
    made = dd.Flow()
    rows = made.upserts("t", kinds, dd.Upsert(key="id"), format=dd.formats.wal2json())
    made.output("rows", rows)
    return made


@pytest.mark.parametrize("encoding", ["UTF8", "LATIN1", "SQL_ASCII"])
def test_settings_of_role_and_database_change_neither_copy_nor_changes_nor_what_is_written(
    server: Server, tmp_path: Path, encoding: str
) -> None:
    url = database(server, encoding)
    columns = ", ".join(f"{name} {kind}" for name, (kind, _) in KINDS.items())
    insert = "insert into t values (" + ROW + ")"
    ask(server, "create type mood as enum ('Glad')", f"create table t ({columns})", database="odd")
    ask(server, insert.format(1), database="odd")
    given = {name: kind for name, (_, kind) in KINDS.items()}
    sinks = {"rows": dd.sinks.postgres(url, "copy", schema="public")}
    with flow(given).open(tmp_path / "state") as engine:
        engine.run({"t": dd.sources.postgres(url, "t", slot="odd")}, sinks)
        ask(server, insert.format(2), database="odd")
        engine.run({"t": dd.sources.postgres(url, "t", slot="odd")}, sinks)
        held = engine.read("rows").sort_by("id").to_pylist()
    assert held == [{"id": n, **WANTED, "_diff": 1} for n in (1, 2)]
    same = " and ".join(
        f"c.{name}::{kind.removesuffix(' primary key')} = t.{name}" for name, (kind, _) in KINDS.items()
    )
    assert ask(server, f"select count(*) from t join copy c on {same}", database="odd") == [(2,)]


def through(server: Server, proxy: Proxy) -> str:
    """The address of a server behind a proxy."""
    return f"postgresql://postgres@127.0.0.1:{proxy.port}/postgres?sslmode=disable"


def until(holds: Callable[[], Any]) -> None:
    ends = time.monotonic() + 120
    while not holds():
        assert time.monotonic() < ends
        time.sleep(0.02)


WAITS = "select 1 from pg_locks where not granted and locktype = 'transactionid'"
"""Rows while a slot that is made waits for a transaction."""


@contextmanager
def ended(begun: Callable[[], Any]) -> Iterator[None]:
    """Send SIGTERM once something holds, and see that the block ends."""
    sent = list[float]()

    def stop() -> None:
        try:
            until(begun)
        finally:
            sent.append(time.monotonic())
            os.kill(os.getpid(), signal.SIGTERM)

    before = signal.signal(signal.SIGTERM, lambda *_: None)  # where the run is over by then
    thread = threading.Thread(target=stop)
    thread.start()
    try:
        yield
    finally:
        thread.join()
        signal.signal(signal.SIGTERM, before)
    assert time.monotonic() - sent[0] < 120  # some 9 of a quiet machine, and all the time otherwise


@pytest.fixture
def emptied(server: Server, monkeypatch: pytest.MonkeyPatch) -> Server:
    """One with a table without rows; a run that is stopped cancels soon what lasts."""
    monkeypatch.setattr("ddflow.engine.run.run.GRACE", (0.5, 1.0))
    ask(server, "create table t (id int primary key, n int)")
    return server


NUMBERS = {"id": pa.int64(), "n": pa.int64()}


@mid_test
def test_a_source_behind_a_network_that_went_silent_is_warned_of_and_lets_a_run_end(
    emptied: Server, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in ("retry", "run"):
        monkeypatch.setattr(f"ddflow.engine.run.{module}.LASTS", 0.3)
    ask(emptied, "insert into t values (1, 1)")
    with Proxy(f"{emptied.place}/.s.PGSQL.5432") as proxy, flow(NUMBERS).open(tmp_path / "state") as engine:
        given = {"t": dd.sources.postgres(through(emptied, proxy), "t", slot="silent", follow=True)}

        def silent() -> bool:
            proxy.frozen = proxy.frozen or engine.read("rows").num_rows == 1
            return "the source 't' has not answered for" in caplog.text

        with ended(silent):
            assert engine.run(given).stopped == "signal"
        assert "the source 't' has not answered for" in caplog.text
        assert "the source 't' takes too long and is cancelled" in caplog.text
        proxy.frozen = False
        proxy.hang_up()
        ask(emptied, "insert into t values (2, 2)")
        given = {"t": dd.sources.postgres(emptied.url, "t", slot="silent")}
        engine.run(given)
        assert engine.read("rows").num_rows == 2


def test_a_first_copy_that_waits_for_open_transactions_lets_a_run_end(emptied: Server, tmp_path: Path) -> None:
    with psycopg.connect(emptied.url) as other, flow(NUMBERS).open(tmp_path / "state") as engine:
        other.execute("insert into t values (1, 1)")
        with ended(lambda: ask(emptied, WAITS)):
            done = engine.run({"t": dd.sources.postgres(emptied.url, "t", slot="waits")})
            assert (done.stopped, done.epochs) == ("signal", 0)
    assert ask(emptied, "select slot_name from pg_replication_slots") == []


@mid_test
@pytest.mark.drawn(1)
@pytest.mark.parametrize("when", ["connecting", "asking", "writing"])
def test_a_sink_behind_a_network_that_went_silent_lets_a_run_end(emptied: Server, tmp_path: Path, when: str) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "1.csv").write_text("id,n\n1,1\n")
    made = dd.Flow()
    made.output("rows", made.upserts("t", {"id": int, "n": int}, dd.Upsert(key="id")))

    words = {"connecting": b"S", "asking": b"set_config", "writing": b"COPY"}

    def seen(data: bytes) -> bytes:
        proxy.frozen = words[when] in data
        return data

    with Proxy(f"{emptied.place}/.s.PGSQL.5432", seen) as proxy, made.open(tmp_path / "state") as engine:
        files = dd.sources.files(tmp_path / "in" / "*.csv", follow=True, settle="10ms")
        with ended(lambda: proxy.frozen):
            done = engine.run({"t": files}, {"rows": dd.sinks.postgres(through(emptied, proxy), "copy")})
            assert done.stopped == "signal"
        proxy.frozen, proxy.seen = False, lambda data: data
        proxy.hang_up()
        files = dd.sources.files(tmp_path / "in" / "*.csv")
        engine.run({"t": files}, {"rows": dd.sinks.postgres(emptied.url, "copy")})
    assert ask(emptied, "select id, n from copy") == [(1, 1)]


def test_a_slot_that_lost_its_log_is_a_source_that_changed(tmp_path: Path) -> None:
    with Server() as server, flow(NUMBERS).open(tmp_path / "state") as engine:
        ask(server, "create table t (id int primary key, n int)", "insert into t values (1, 1)")
        given = {"t": dd.sources.postgres(server.url, "t", slot="lost")}
        engine.run(given)
        ask(server, "alter system set max_slot_wal_keep_size = '1MB'", "select pg_reload_conf()")
        for _ in range(4):
            ask(server, "create table x as select 1", "drop table x", "select pg_switch_wal()", "checkpoint")
        assert ask(server, "select wal_status from pg_replication_slots") == [("lost",)]
        with raises(SourceChanged):
            engine.run(given)


def test_a_slot_that_loses_its_log_within_a_run_ends_it(tmp_path: Path) -> None:
    with Server() as server, flow(NUMBERS).open(tmp_path / "state") as engine:
        ask(server, "create table t (id int primary key, n int)", "insert into t values (1, 1)")
        ask(server, "alter system set max_slot_wal_keep_size = '1MB'", "select pg_reload_conf()")
        opened = dd.sources.postgres(server.url, "t", slot="lost", follow=True)
        schema = engine.dataflow.admissions["t"].bound.schema
        source, came = opened.open({"t": schema}, None), None
        while came is None or came.position is None:
            came = source.poll(1 << 20)
        source.acknowledge(came.position)
        for _ in range(4):
            ask(server, "create table x as select 1", "drop table x", "select pg_switch_wal()", "checkpoint")
        with pytest.raises(SourceFailed):  # after which it is opened again
            source.poll(1 << 20)
        source.close()
        with raises(SourceChanged):
            opened.open({"t": schema}, came.position)


@mid_test
def test_a_first_copy_that_fails_half_way_each_time_is_given_up_in_time(
    emptied: Server, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Each attempt gives rows before it fails, so that each is an answer."""
    ask(emptied, "create table wide (id int primary key, v text)")
    ask(emptied, "insert into wide select n, repeat('x', 1000) from generate_series(1, 12000) n")
    passed = 0

    def seen(data: bytes) -> bytes | None:
        nonlocal passed
        passed += len(data)
        return None if passed > 9 << 20 else data

    made, cuts = flow({"id": pa.int64(), "v": pa.string()}), 0
    with Proxy(f"{emptied.place}/.s.PGSQL.5432", seen) as proxy, made.open(tmp_path / "state") as engine:

        def attempt() -> None:
            nonlocal passed, cuts
            if proxy.cuts > cuts:
                passed, cuts = 0, proxy.cuts

        source = dd.sources.postgres(through(emptied, proxy), "wide", slot="half")
        opened = type(source).open
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(type(source), "open", lambda *given: (attempt(), opened(*given))[1])
            with pytest.raises(SourceFailed):
                engine.run({"t": source}, give_up_after="2s")
        assert proxy.cuts > 2 and "answers again" not in caplog.text
