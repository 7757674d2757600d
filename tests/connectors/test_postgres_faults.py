"""Postgres dies, forgets, answers too late, or is asked for what it has not: each with its end, and nothing lost.

There is no test of a publication: wal2json is given the names of tables, and needs none.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psycopg
import pytest
from lives import replayed
from postgres_server import Server
from psycopg.rows import dict_row
from tcp_proxy import Proxy
from test_postgres_source import COLUMNS, FORMAT, ORDERS, ask, cluster, flow, held, server, source, there

import ddflow as dd
from ddflow.errors import BadMessage, DdflowError, SinkAhead, SinkFailed, SinkRefused, SourceChanged, SourceFailed

MARKER = "Geheimnis7"


__all__ = ["cluster", "server"]


@pytest.fixture(autouse=True)
def emptied(server: Server) -> None:
    """A table without rows."""
    ask(server, ORDERS)


def beside(*acts: Callable[[], Any]) -> threading.Thread:
    """A thread that does something while a run goes on."""

    def run() -> None:
        for act in acts:
            act()

    thread = threading.Thread(target=run)
    thread.start()
    return thread


def waited_for(state: Path, rows: int) -> Callable[[], None]:
    """Wait until a state has so many rows."""

    def wait() -> None:
        ends = time.monotonic() + 30
        while time.monotonic() < ends:
            try:
                if dd.read(state, "rows").num_rows >= rows:
                    return
            except DdflowError:
                pass  # it is being made
            time.sleep(0.05)

    return wait


def test_a_server_that_dies_under_a_run_is_waited_for_on_both_sides(server: Server, tmp_path: Path) -> None:
    ask(server, "insert into orders select n, n % 5, n, null from generate_series(1, 50) n")
    sinks = {
        "by_customer": dd.sinks.postgres(server.url, "by_customer"),
        "rows": dd.sinks.postgres(server.url, "moves", mode="changelog"),
    }

    def written(first: int) -> Callable[[], Any]:
        return lambda: ask(server, f"insert into orders select n, 1, n from generate_series({first}, {first + 9}) n")

    state = tmp_path / "state"
    thread = beside(
        *(waited_for(state, 50), written(100), server.stop, lambda: time.sleep(0.3), server.start),
        *(written(200), waited_for(state, 70), server.stop, server.start, written(300)),
    )
    with flow().open(state) as engine:
        engine.run({"orders": source(server, follow=True)}, sinks, interval="20ms", until="3s")
        thread.join()
        engine.run({"orders": source(server)}, sinks)
        assert held(engine) == there(server) and len(held(engine)) == 80
        assert engine.sync(sinks, dry=True)["by_customer"][:2] == (0, 0)
    with psycopg.connect(server.url, row_factory=dict_row) as connection:
        moves = connection.execute("select * from moves").fetchall()
    assert sorted(replayed(moves)) == there(server)


@pytest.mark.parametrize("mode", ["upsert", "changelog"])
def test_an_answer_to_commit_that_is_lost_writes_nothing_twice(server: Server, tmp_path: Path, mode: Any) -> None:
    losing = [True]

    def seen(data: bytes) -> bytes | None:
        if losing and b"COMMIT\0" in data and ask(server, "select count(*) from by_customer") != [(0,)]:
            losing.pop()
            return None
        return data

    ask(server, "insert into orders values (1, 1, 1), (2, 1, 2), (3, 2, 3)")
    with Proxy(f"{server.place}/.s.PGSQL.5432", seen) as proxy, flow().open(tmp_path / "state") as engine:
        sink = dd.sinks.postgres(f"postgresql://postgres@127.0.0.1:{proxy.port}/postgres", "by_customer", mode=mode)
        done = engine.run({"orders": source(server)}, {"by_customer": sink})
        assert proxy.cuts == 1 and done.sinks == {"by_customer": 1}
        assert ask(server, "select count(*) from by_customer") == [(2,)]
        assert engine.sync({"by_customer": sink}, dry=True)["by_customer"][:2] == (0, 0)


def test_a_sink_that_fails_for_too_long_ends_the_run_and_the_state_is_whole(server: Server, tmp_path: Path) -> None:
    ask(server, "insert into orders values (1, 1, 1)")
    with Proxy(f"{server.place}/.s.PGSQL.5432") as proxy, flow().open(tmp_path / "state") as engine:
        sinks = {"rows": dd.sinks.postgres(f"postgresql://postgres@127.0.0.1:{proxy.port}/postgres", "copy")}
        engine.run({"orders": source(server)}, sinks)
        ask(server, "insert into orders values (2, 1, 1)")
        proxy.refuses = True
        proxy.hang_up()
        with pytest.raises(SinkFailed, match="see to the server"):
            engine.run({"orders": source(server)}, sinks, give_up_after="300ms", interval="10ms")
        assert held(engine) == there(server) and engine.epoch == 2
        proxy.refuses = False
        engine.run({"orders": source(server)}, sinks)
        assert sorted(ask(server, "select * from copy")) == there(server)
    assert not dd.fsck(tmp_path / "state").problems


def test_a_slot_in_use_says_by_whom_and_is_waited_for(server: Server, tmp_path: Path) -> None:
    with flow().open(tmp_path / "state") as engine:
        engine.run({"orders": source(server)})
        holder = psycopg.connect(server.url, autocommit=True, replication="database")
        holder.pgconn.send_query(b'START_REPLICATION SLOT "shop" LOGICAL 0/0')
        time.sleep(0.3)
        ask(server, "insert into orders values (1, 1, 1)")
        with pytest.raises(SourceFailed, match=r"is active for PID \d+; .*pg_terminate_backend"):
            engine.run({"orders": source(server)}, give_up_after="0s", interval="1ms")
        thread = beside(lambda: time.sleep(0.3), holder.close)
        engine.run({"orders": source(server)}, give_up_after="20s")
        thread.join()
        assert held(engine) == there(server)


def test_changes_that_are_delivered_again_say_nothing(server: Server, tmp_path: Path) -> None:
    with flow().open(tmp_path / "state") as engine:
        engine.run({"orders": source(server)})
        ask(server, "insert into orders values (1, 1, 1), (2, 1, 1)", "delete from orders where id = 2")
        opened = source(server).open({"orders": engine.dataflow.admissions["orders"].bound.schema}, position(tmp_path))
        first = opened.poll(1 << 20)
        opened.close()
        again = source(server).open({"orders": engine.dataflow.admissions["orders"].bound.schema}, position(tmp_path))
        assert again.poll(1 << 20) == first
        again.close()
        assert first is not None
        for _ in range(2):
            engine.step(first.rows)
        assert held(engine) == there(server) == [(1, 1, 1, None)]


def position(tmp_path: Path) -> Any:
    from test_run import manifest_of

    return manifest_of(tmp_path / "state").sources["orders"].position


def test_a_key_that_the_identity_does_not_give_is_named(server: Server, tmp_path: Path) -> None:
    ask(server, "alter table orders add column other int unique not null default 1")
    ask(server, "alter table orders replica identity using index orders_other_key")
    with flow().open(tmp_path / "state") as engine:
        engine.run({"orders": source(server)})
        ask(server, "insert into orders values (1, 5, 1, '')", "delete from orders")
        with pytest.raises(BadMessage, match=r"says 'id' neither .*: the replica identity of its table") as told:
            engine.run({"orders": source(server)})
        assert "offset" in told.value.found or "row" in told.value.found


def test_tables_that_cannot_be_written(server: Server, tmp_path: Path) -> None:
    ask(server, "insert into orders values (1, 1, 1)")
    ask(server, "create table typed (id text, customer int, amount numeric(9, 2), note text)")
    ask(server, "create table keyless (customer int, amount numeric(9, 2), note text)")
    ask(
        server,
        "create table full_ as select * from orders",
        "create role poor login",
        "grant usage on schema public to poor",
    )
    says = {
        "typed": "'id' is text, we write bigint; give another table",
        "keyless": r"it lacks the key \['id'\]; give another table",
        "full_": "it has rows and no record .*; give another table; or take it over: ddflow sync --adopt",
    }
    with flow().open(tmp_path / "state") as engine:
        engine.run({"orders": source(server)})
        for table, message in says.items():
            with pytest.raises(SinkRefused, match=message):
                engine.run({}, {"rows": dd.sinks.postgres(server.url, table)})
        with pytest.raises(SinkRefused, match=r"permission denied[^\n]*; let the role: grant"):
            engine.run({}, {"rows": dd.sinks.postgres(server.url.replace("postgres@", "poor@"), "fresh")})
        engine.run({}, {"rows": dd.sinks.postgres(server.url, "ours")})
        with pytest.raises(SinkRefused, match=r"it has the output 'rows'; give each output a table"):
            engine.run({}, {"by_customer": dd.sinks.postgres(server.url, "ours")})
    ask(server, "select pg_drop_replication_slot('shop')")
    with flow().open(tmp_path / "other") as engine:
        engine.run({"orders": source(server)})
        with pytest.raises(SinkRefused, match=r"written by the state with the id .*; give each a table"):
            engine.run({}, {"rows": dd.sinks.postgres(server.url, "ours")})
    ask(server, "drop owned by poor", "drop role poor")


def test_a_rollback_is_found_and_mended(server: Server, tmp_path: Path) -> None:
    sinks = {"rows": dd.sinks.postgres(server.url, "copy", mode="changelog")}
    with flow().open(tmp_path / "state") as engine:
        for number in range(3):
            ask(server, f"insert into orders values ({number}, 1, 1)")
            engine.run({"orders": source(server)}, sinks)
    dd.rollback(tmp_path / "state", 2)
    with flow().open(tmp_path / "state") as engine:
        # What the slot moved on behind is gone: the message says so.
        with pytest.raises(SinkAhead, match=r"epoch 3, which is not in the history .*ddflow sync"):
            engine.run({}, sinks)
        with pytest.raises(SourceChanged, match=r"it was moved on to .*; what changed since then is lost here: begin"):
            engine.run({"orders": source(server)})
        engine.sync(sinks)
        engine.run({}, sinks)
        assert engine.sync(sinks, dry=True)["rows"][:2] == (0, 0)


def test_a_password_is_shown_nowhere_whatever_fails(
    server: Server, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    ask(server, "insert into orders values (1, 1, 1)")
    told = list[str]()

    def noted(call: Callable[[], Any]) -> None:
        with pytest.raises(DdflowError) as failed:
            call()
        told.append(f"{failed.value} {failed.value!r} {failed.value.args} {failed.getrepr(style='short')}")

    where = f"host={server.place}&password={MARKER}"
    urls = [f"postgresql://postgres:{MARKER}@/postgres?host={server.place}", f"postgresql://postgres@/postgres?{where}"]
    with flow().open(tmp_path / "state") as engine:
        for url in urls:
            for bad in (
                dd.sources.postgres(url.replace("/postgres?", "/none?"), "orders", slot="shop"),
                dd.sources.postgres(url, "nowhere", slot="shop"),
                dd.sources.postgres(f"postgresql://me:{MARKER}@127.0.0.1:1/x", "orders", slot="shop"),
                dd.sources.postgres(f"postgresql://me:{MARKER}@127.0.0.1:x/x", "orders", slot="shop"),
            ):
                told.append(repr(bad) + bad.target)
                noted(lambda bad=bad: engine.run({"orders": bad}, give_up_after="0s", interval="1ms"))  # type: ignore[misc]
            good = dd.sources.postgres(url, "orders", slot="shop")
            sink = dd.sinks.postgres(url, "copy")
            told.append(repr(good) + repr(sink) + good.target + sink.target)
            engine.run({"orders": good}, {"rows": sink})
            noted(lambda url=url: engine.run({}, {"rows": dd.sinks.postgres(url, "orders")}))  # type: ignore[misc]
        ask(server, "select pg_drop_replication_slot('shop')")
        noted(lambda: engine.run({"orders": good}))
    told += [record.getMessage() + str(record.__dict__) for record in caplog.records]
    assert len(told) > 20 and not [each for each in told if MARKER in each]
    for path in tmp_path.rglob("*"):
        assert path.is_dir() or MARKER.encode() not in path.read_bytes(), path


def test_tables_and_slots_that_are_not_there_say_what_to_do(server: Server, tmp_path: Path) -> None:
    made = dd.Flow()
    made.output("rows", made.upserts("orders", {"key": int} | COLUMNS, dd.Upsert(key="key"), format=FORMAT))
    with made.open(tmp_path / "keyless") as engine, pytest.raises(DdflowError, match=r"it has no column 'key'; .*"):
        engine.run({"orders": source(server)})
    with flow().open(tmp_path / "state") as engine:
        engine.run({"orders": source(server)})
        ask(server, "drop table orders")
        with pytest.raises(DdflowError, match="there is no such table; write its schema in front"):
            engine.run({"orders": source(server)})
