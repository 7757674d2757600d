"""Test Postgres failures (crashes, lost logs, late answers, missing objects): each has a result without loss.

Publications have no test, because wal2json gets the names of tables and needs no publication.
"""

from __future__ import annotations

import logging
import os
import signal
import threading
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psycopg
import pyarrow as pa
import pytest
from chance import mid_test
from lives import replayed
from messages import raises
from postgres_server import Server
from psycopg.rows import dict_row
from tcp_proxy import Proxy
from test_postgres_source import COLUMNS, FORMAT, ORDERS, ask, flow, held, holding, source, there

import ddflow as dd
from ddflow.connectors.postgres.changes import OPTION
from ddflow.errors import (
    BadMessage,
    DdflowError,
    SinkAhead,
    SinkFailed,
    SinkRefused,
    SourceChanged,
    SourceFailed,
    SpecError,
    UnreadableInput,
)

MARKER = "Geheimnis7"


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
        ends = time.monotonic() + 120
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
    with flow().open(state) as engine:
        thread = beside(
            *(waited_for(state, 50), written(100), server.stop, lambda: time.sleep(0.3), server.start),
            *(written(200), waited_for(state, 70), server.stop, server.start, written(300)),
            *(waited_for(state, 80), engine.stop),
        )
        done = engine.run({"orders": source(server, follow=True)}, sinks, interval="20ms", until="5min")
        thread.join()
        assert done.stopped == "stop"
        engine.run({"orders": source(server)}, sinks)
        assert held(engine) == there(server) and len(held(engine)) == 80
        assert engine.sync(sinks, dry=True)["by_customer"][:3] == (0, 0, 0)
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
        assert engine.sync({"by_customer": sink}, dry=True)["by_customer"][:3] == (0, 0, 0)


def test_a_sink_that_fails_for_too_long_ends_the_run_and_the_state_is_whole(server: Server, tmp_path: Path) -> None:
    ask(server, "insert into orders values (1, 1, 1)")
    with Proxy(f"{server.place}/.s.PGSQL.5432") as proxy, flow().open(tmp_path / "state") as engine:
        sinks = {"rows": dd.sinks.postgres(f"postgresql://postgres@127.0.0.1:{proxy.port}/postgres", "copy")}
        engine.run({"orders": source(server)}, sinks)
        ask(server, "insert into orders values (2, 1, 1)")
        proxy.refuses = True
        proxy.hang_up()
        with raises(SinkFailed):
            engine.run({"orders": source(server)}, sinks, give_up_after="300ms", interval="10ms")
        assert held(engine) == there(server) and engine.epoch == 2
        proxy.refuses = False
        engine.run({"orders": source(server)}, sinks)
        assert sorted(ask(server, "select * from copy")) == there(server)
    assert not dd.fsck(tmp_path / "state").problems


def test_a_slot_in_use_says_by_whom_and_is_waited_for(server: Server, tmp_path: Path) -> None:
    with flow().open(tmp_path / "state") as engine:
        engine.run({"orders": source(server)})
        holder = holding(server)
        ask(server, "insert into orders values (1, 1, 1)")
        with raises(SourceFailed):
            engine.run({"orders": source(server)}, give_up_after="0s", interval="1ms")
        thread = beside(lambda: time.sleep(0.3), holder.close)
        engine.run({"orders": source(server)}, give_up_after="5min")
        thread.join()
        assert held(engine) == there(server)


def test_a_role_that_may_not_log_in_any_more_is_an_outage(
    server: Server, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Behind an answer; at the start of a run it is an error, whatever the patience."""
    ask(server, *(f"create role {each} superuser login" for each in ("reader", "writer")))
    ask(server, "insert into orders values (1, 1, 1)")

    def shut_out(role: str, *also: str) -> Callable[[], Any]:
        ends = f"select pg_terminate_backend(pid) from pg_stat_activity where usename = '{role}'"
        return lambda: ask(server, f"alter role {role} nologin", *also, ends)

    def said(text: str, times: int) -> Callable[[], None]:
        def wait() -> None:
            ends = time.monotonic() + 120
            while time.monotonic() < ends and sum(text in each.message for each in caplog.records) < times:
                time.sleep(0.02)

        return wait

    with Proxy(f"{server.place}/.s.PGSQL.5432") as proxy, flow().open(tmp_path / "state") as engine:
        to = f"127.0.0.1:{proxy.port}/postgres"
        sources = {"orders": dd.sources.postgres(f"postgresql://reader@{to}", "orders", slot="shop", follow=True)}
        sinks = {"rows": dd.sinks.postgres(f"postgresql://writer@{to}", "copy")}
        thread = beside(
            *(waited_for(tmp_path / "state", 1), shut_out("writer", "insert into orders values (2, 1, 1)")),
            *(said("ddflow retries it", 1), shut_out("reader"), said("ddflow retries it", 2)),
            lambda: time.sleep(0.3),  # so that each was tried again
            lambda: ask(server, "alter role writer login", "alter role reader login"),
            said("answers again", 2),
            lambda: os.kill(os.getpid(), signal.SIGTERM),
        )
        assert engine.run(sources, sinks, interval="10ms", give_up_after=None, until="10min").stopped == "signal"
        thread.join()
        shut_out("reader")()
        with raises(UnreadableInput):
            engine.run(sources, give_up_after=None)
        shut_out("writer")()
        with raises(SinkRefused):
            engine.run({}, sinks, give_up_after=None)
    assert sorted(ask(server, "select * from copy")) == there(server)
    ask(server, *(f"drop owned by {each} cascade; drop role {each}" for each in ("reader", "writer")))


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
        "typed": "'id' is text, but ddflow writes bigint; use another table",
        "keyless": r"it lacks the key \['id'\]; use another table",
        "full_": "it has rows, but no record .*; choose another table; or take it over: ddflow sync --adopt",
    }
    with flow().open(tmp_path / "state") as engine:
        engine.run({"orders": source(server)})
        for table, message in says.items():
            with pytest.raises(SinkRefused, match=message):
                engine.run({}, {"rows": dd.sinks.postgres(server.url, table)})
        with raises(SinkRefused):
            engine.run({}, {"rows": dd.sinks.postgres(server.url.replace("postgres@", "poor@"), "fresh")})
        engine.run({}, {"rows": dd.sinks.postgres(server.url, "ours")})
        with raises(SinkRefused):
            engine.run({}, {"by_customer": dd.sinks.postgres(server.url, "ours")})
    ask(server, "select pg_drop_replication_slot('shop')")
    with flow().open(tmp_path / "other") as engine:
        engine.run({"orders": source(server)})
        with raises(SinkRefused):
            engine.run({}, {"rows": dd.sinks.postgres(server.url, "ours")})
    ask(server, "drop owned by poor", "drop role poor")


@mid_test
def test_a_table_that_was_dropped_is_made_anew_by_sync_alone(server: Server, tmp_path: Path) -> None:
    sinks, gone = {"rows": dd.sinks.postgres(server.url, "copy")}, "it no longer exists, but epoch . was written to it"
    ask(server, "insert into orders select n, 1, n, null from generate_series(1, 100) n")

    def dropped() -> None:
        ask(server, "drop table copy", "update orders set amount = amount + 1 where id = 1")

    with flow().open(tmp_path / "state") as engine:
        engine.run({"orders": source(server)}, sinks)
        dropped()
        for _ in range(2):
            with pytest.raises(SinkRefused, match=gone):
                engine.run({"orders": source(server)}, sinks)
        engine.sync(sinks)
        engine.run({"orders": source(server)}, sinks)
        assert ask(server, "select sum(amount) from copy") == [(5051,)]
        beside(lambda: time.sleep(1), dropped)
        with pytest.raises(SinkRefused, match=gone):
            engine.run({"orders": source(server, follow=True)}, sinks, until="5min")


def test_a_rollback_is_found_and_mended(server: Server, tmp_path: Path) -> None:
    sinks = {"rows": dd.sinks.postgres(server.url, "copy", mode="changelog")}
    with flow().open(tmp_path / "state") as engine:
        for number in range(3):
            ask(server, f"insert into orders values ({number}, 1, 1)")
            engine.run({"orders": source(server)}, sinks)
    dd.rollback(tmp_path / "state", 2)
    with flow().open(tmp_path / "state") as engine:
        # What the slot moved on behind is gone: the message says so.
        with raises(SinkAhead):
            engine.run({}, sinks)
        with raises(SourceChanged):
            engine.run({"orders": source(server)})
        engine.sync(sinks)
        engine.run({}, sinks)
        assert engine.sync(sinks, dry=True)["rows"][:3] == (0, 0, 0)


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
    with made.open(tmp_path / "keyless") as engine, raises(DdflowError):
        engine.run({"orders": source(server)})
    with flow().open(tmp_path / "state") as engine:
        engine.run({"orders": source(server)})
        ask(server, "drop table orders")
        with raises(DdflowError):
            engine.run({"orders": source(server)})


def keyed(server: Server, state: Path, key: Any, table: str = "t", **more: Any) -> Any:
    """A run of a table t with columns a, b and v, and what is held."""
    made = dd.Flow()
    columns = {"a": int, "b": int, "v": str}
    made.output("rows", made.upserts("orders", columns, dd.Upsert(key=key, **more), format=FORMAT))
    with made.open(state) as engine:
        engine.run({"orders": dd.sources.postgres(server.url, table, slot="shop")})
        return held(engine)


def test_a_key_is_what_tells_rows_apart(server: Server, tmp_path: Path) -> None:
    def refused(key: Any, says: str) -> None:
        with pytest.raises(UnreadableInput, match=says):
            keyed(server, tmp_path / "refused", key)
        assert ask(server, "select count(*) from pg_replication_slots where slot_name like 'shop%'") == [(0,)]

    ask(
        server,
        "create table t (a int, b int, v text, primary key (a, b))",
        "insert into t values (1, 1, ''), (1, 2, '')",
    )
    refused("a", r"identifies a row by \['a', 'b'\]; use key=\['a', 'b'\]$")
    refused(
        ["a", "b", "v"], r"identifies a row by \['a', 'b'\]; use key=\['a', 'b'\], or: alter .* replica identity full"
    )
    assert keyed(server, tmp_path / "whole", ["b", "a"]) == [(1, 1, ""), (1, 2, "")]
    ask(server, "delete from t where b = 2")
    assert keyed(server, tmp_path / "whole", ["b", "a"]) == [(1, 1, "")]
    ask(server, "select pg_drop_replication_slot('shop')", "alter table t replica identity full")
    refused(
        "a",
        r"no unique index guarantees .* use key=\['a', 'b'\], or: create unique index on \"public\".\"t\" \(\"a\"\)",
    )
    assert keyed(server, tmp_path / "full", ["a", "b", "v"]) == [(1, 1, "")]
    ask(server, "update t set v = 'x', b = 3")
    assert keyed(server, tmp_path / "full", ["a", "b", "v"]) == [(1, 3, "x")]
    ask(server, "select pg_drop_replication_slot('shop')")


def test_a_unique_column_is_a_key_where_the_identity_gives_it(server: Server, tmp_path: Path) -> None:
    ask(server, "create table t (a int primary key, b int not null unique, v text)", "insert into t values (1, 1)")
    with raises(UnreadableInput):
        keyed(server, tmp_path / "state", "b")
    ask(server, "alter table t replica identity using index t_b_key")
    with raises(UnreadableInput):
        keyed(server, tmp_path / "state", "a")
    assert keyed(server, tmp_path / "state", "b") == [(1, 1, None)]
    ask(server, "update t set b = 2")
    assert keyed(server, tmp_path / "state", "b") == [(1, 2, None)]
    ask(server, "alter table t replica identity full", "update t set b = 3")
    assert keyed(server, tmp_path / "state", "b") == [(1, 3, None)]
    ask(server, "alter table t replica identity default")
    with raises(UnreadableInput):
        keyed(server, tmp_path / "state", "b")


def test_rows_that_are_folded_have_a_key_of_their_own(server: Server, tmp_path: Path) -> None:
    ask(server, "create table t (a int primary key, b int, v text)", "insert into t values (1, 1, 'x'), (2, 1, null)")
    assert keyed(server, tmp_path / "state", "b", merge=dd.Merge({"a": dd.sum()})) == [(3, 1, "x")]


def test_tables_whose_changes_come_elsewhere_are_refused(server: Server, tmp_path: Path) -> None:
    ask(
        server,
        "create table t (a int, b int, v text, primary key (a, b)) partition by list (b)",
        "create table t1 partition of t for values in (1)",
        "create unlogged table u (a int, b int, v text, primary key (a, b))",
    )
    made = dd.Flow()
    columns = {"a": int, "b": int, "v": str}
    made.output("rows", made.upserts("t", columns, dd.Upsert(key=["a", "b"]), format=FORMAT))
    with made.open(tmp_path / "state") as engine:
        for table in (
            "t",
            "u",
        ):
            with raises(UnreadableInput):
                engine.run({"t": dd.sources.postgres(server.url, table, slot="shop")})
        ask(server, "insert into t values (1, 1)")
        engine.run({"t": dd.sources.postgres(server.url, "t1", slot="shop")})
        ask(server, "insert into t values (2, 1)")
        engine.run({"t": dd.sources.postgres(server.url, "t1", slot="shop")})
        assert held(engine) == [(1, 1, None), (2, 1, None)]


def test_a_table_of_another_name_is_proposed(server: Server, tmp_path: Path) -> None:
    ask(server, "create schema ops", 'create table ops."Deliveries" (id int primary key)')
    for name in ("ops.deliveries", "ops.Deliverys", 'ops."deliveries"', "Deliveries"):
        with raises(UnreadableInput):
            keyed(server, tmp_path / "state", "a", table=name)
    with raises(UnreadableInput):
        keyed(server, tmp_path / "state", "a", table="ops.Deliveries")
    ask(server, "drop schema ops cascade")
    with raises(SpecError):
        dd.sources.postgres("postgresql://me:secret@db/shop?slott=x", "orders").target  # noqa: B018


def test_what_does_not_fit_is_proposed_in_the_type_of_its_column(server: Server, tmp_path: Path) -> None:
    ask(server, "alter table orders add column at timestamptz")
    timed = flow(at=pa.timestamp("us", "UTC"))
    with timed.open(tmp_path / "state") as engine:
        engine.run({"orders": source(server)})
        ask(
            server,
            "insert into orders values (1, 1, 1, '', now())",
            "alter table orders alter amount type numeric(14, 4)",
        )
        ask(server, "insert into orders values (2, 1, 123456.789, '')")
        with raises(BadMessage):
            engine.run({"orders": source(server)})
    ask(server, "select pg_drop_replication_slot('shop')", "update orders set amount = 1, at = 'infinity'")
    with (
        timed.open(tmp_path / "other") as engine,
        raises(BadMessage),
    ):
        engine.run({"orders": source(server)})


def test_a_column_that_is_filled_is_copied_and_one_that_is_gone_is_warned_of_once(
    server: Server, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def run(*gone: str, **more: Any) -> tuple[list[str], list[str]]:
        """What is warned of, and why the table was copied again; what is held is what it holds."""
        caplog.clear()
        with warnings.catch_warnings(record=True) as told, flow(**more).open(tmp_path / "state") as engine:
            warnings.simplefilter("always")
            engine.run({"orders": source(server)})
            rows = engine.read("rows").drop_columns(["_diff", *gone])
        names = ", ".join(rows.schema.names)
        assert sorted(map(repr, rows.to_pylist())) == sorted(
            repr(dict(zip(rows.schema.names, row, strict=True))) for row in ask(server, f"select {names} from orders")
        )
        copies = [each.message.partition("copied again: ")[2] for each in caplog.records]
        return [str(each.message)[:40] for each in told], copies

    ask(server, "alter table orders add secret int default 4", "insert into orders values (0, 1, 1, 'a')")
    assert run() == ([], [])
    ask(server, "alter table orders rename column note to remark", "insert into orders values (1, 1, 1, 'a')")
    assert run("note") == (["public.orders has no column 'note' any mo"[:40]], ["'remark' existed, but was not read"])
    ask(server, "insert into orders values (2, 1, 1, 'a')")
    assert run("note") == ([], [])
    ask(server, "alter table orders add sold_out boolean not null default false, add plain int, add at int default 7")
    ask(server, "insert into orders values (3, 1, 1, 'a', 6, true, 5)")
    assert run("note") == ([], ["'sold_out' has default false; 'at' has default 7"])
    ask(server, "alter table orders drop plain, add plain int default 3", "update orders set at = 9 where id = 2")
    found = "'secret' existed, but was not read; 'plain' is not the same column as before"
    assert run("note", secret=pa.int32()) == ([], [found])
    ask(server, "alter table orders rename remark to note", "insert into orders values (5, 1, 1, 'a')")
    assert run("remark", secret=pa.int32()) == (
        ["public.orders has no column 'remark' any "[:40]],
        ["'note' existed, but was not read"],
    )
    ask(server, "alter table orders add even int", "insert into orders (id, even) values (6, 1)")
    assert run("remark", secret=pa.int32()) == ([], [])


@pytest.mark.parametrize("more", [{"merge": dd.Merge({"b": dd.sum()})}, {"time": "b", "lateness": 0}])
def test_a_column_that_is_filled_is_warned_of_where_rows_are_folded(server: Server, tmp_path: Path, more: Any) -> None:
    """Or are of a time of their own: nothing replaces these at once."""
    ask(server, "create table t (a int primary key, b int, v text)", "insert into t values (1, 1, 'x')")
    keyed(server, tmp_path / "state", "a", **more)
    ask(server, "alter table t add w int default 5", "insert into t values (2, 1, 'y', 6)")
    with pytest.warns(UserWarning, match=r'public.t.w has default 5: .* update "public"."t" set "w" = "w"$'):
        held = keyed(server, tmp_path / "state", "a", **more)
    assert held == ([] if "time" in more else [(1, 1, "x", None), (2, 1, "y", 6)])  # a time that is not closed


def test_one_free_slot_is_enough(server: Server, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    def slots() -> list[str]:
        return sorted(
            name for (name,) in ask(server, "select slot_name from pg_replication_slots") if "fill" not in name
        )

    most = int(ask(server, "show max_replication_slots")[0][0])
    ask(server, *(f"select pg_create_physical_replication_slot('fill{n}')" for n in range(most - 1)))
    for number in range(3):
        ask(server, f"insert into orders values ({number}, 1, 1)")
        with flow().open(tmp_path / "state") as engine:
            engine.run({"orders": source(server)})
            assert held(engine) == there(server)
        assert slots() == ["shop_copying"]
    assert [record.message for record in caplog.records if "no slot is free to rename shop_copying" in record.message]
    ask(server, "select pg_drop_replication_slot('fill0')", "insert into orders values (9, 1, 1)")
    with flow().open(tmp_path / "state") as engine:
        engine.run({"orders": source(server)})
        assert held(engine) == there(server)
    assert slots() == ["shop"]


def keeps_numbers(server: Server) -> bool:
    """Whether wal2json of the server writes numbers as text: since 2.6."""
    try:
        ask(server, f"select * from pg_logical_slot_peek_changes('shop', null, 1, '{OPTION}', 'true')")
    except psycopg.errors.InvalidParameterValue:
        return False
    return True


def test_a_value_that_wal2json_loses_is_no_null(server: Server, tmp_path: Path) -> None:
    ask(
        server,
        "create table t (id int primary key, v double precision not null, w float generated always as (v) stored)",
        "alter table t add column told text generated always as (v::text) stored",
        "insert into t values (1, 'NaN')",
    )

    def run(state: str, slot: str, **columns: Any) -> Any:
        made = dd.Flow()
        made.output("rows", made.upserts("t", {"id": int, **columns}, dd.Upsert(key="id"), format=FORMAT))
        with made.open(tmp_path / state) as engine:
            engine.run({"t": dd.sources.postgres(server.url, "t", slot=slot)})
            return [str(row) for row in held(engine)]

    assert run("lost", "shop", v=float) == ["(1, nan)"]
    assert run("kept", "kept", told=str) == ["(1, 'NaN')"]
    ask(server, "alter table t replica identity full", "update t set v = 5", "update t set v = 6")
    assert run("lost", "shop", v=float) == ["(1, 6.0)"]
    ask(server, "update t set v = 'NaN'")
    ask(server, "insert into t values (2, '-Infinity')")
    if keeps_numbers(server):
        assert run("lost", "shop", v=float) == ["(1, nan)", "(2, -inf)"]
    else:
        says = r"wrote null for 'v', which is declared not null: it is NaN or infinite in the row \{'id': 1\}; install "
        says += r'wal2json 2\.6 .*; or to accept null: alter table "public"\."t" alter "v" drop not null, until'
        for _ in range(2):
            with pytest.raises(UnreadableInput, match=says):
                run("lost", "shop", v=float)
        ask(server, "alter table t alter v drop not null")
        with pytest.warns(UserWarning, match=r"'v' is NaN in the row \{'id': 1\}, but null in this state, because wal"):
            assert run("lost", "shop", v=float) == ["(1, None)", "(2, None)"]
        ask(server, "alter table t alter v set not null", "update t set v = 7 where id = 1")
        assert run("lost", "shop", v=float) == ["(1, 7.0)", "(2, None)"]
    told = "7" if not keeps_numbers(server) else "NaN"
    assert run("kept", "kept", told=str) == [f"(1, '{told}')", "(2, '-Infinity')"]


def test_a_null_of_a_time_when_a_column_had_nulls_is_one(server: Server, tmp_path: Path) -> None:
    ask(server, "create table t (id int primary key, v double precision)")
    made = dd.Flow()
    made.output("rows", made.upserts("t", {"id": int, "v": float}, dd.Upsert(key="id"), format=FORMAT))
    for rows in ([], [(1, 2.0)]):
        with made.open(tmp_path / "state") as engine:
            engine.run({"t": dd.sources.postgres(server.url, "t", slot="shop")})
            assert held(engine) == rows
        ask(server, "insert into t values (1, null)" if not rows else "select 1", "update t set v = 2")
        ask(server, "alter table t alter v set not null")


def test_a_null_that_is_nan_in_the_table_is_warned_of(server: Server, tmp_path: Path) -> None:
    """Of wal2json before 2.6, which is asked for numbers as text once, and then without."""
    ask(server, "create table t (id int primary key, v double precision, n numeric, s text)")
    made = dd.Flow()
    columns = {"id": int, "v": float, "s": str}
    made.output("rows", made.upserts("t", columns, dd.Upsert(key="id"), format=FORMAT))
    with made.open(tmp_path / "state") as engine:
        engine.run({"t": dd.sources.postgres(server.url, "t", slot="shop")})
        ask(server, "insert into t values (1, 1.5, null, null)", "insert into t values (2, 'NaN', 1, 'x')")
        ask(server, "insert into t values (3, null, 1, 'y')")
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always", UserWarning)
            engine.run({"t": dd.sources.postgres(server.url, "t", slot="shop")})
        kept = keeps_numbers(server)
        assert str(held(engine)) == f"[(1, 1.5, None), (2, {'nan' if kept else None}, 'x'), (3, None, 'y')]"
    says = "public.t: 'v' is NaN in the row {'id': 2}, but null in this state, because wal2json wrote null: install "
    says += "wal2json 2.6 or later on the server, which writes such values unchanged"
    assert [str(each.message) for each in told if each.category is UserWarning] == ([] if kept else [says])


@pytest.mark.filterwarnings("ignore:.*'v' is NaN in the row")  # said again before each error
def test_what_a_decimal_cannot_hold_is_null_in_changes_and_in_copies(server: Server, tmp_path: Path) -> None:
    """And of a column that is never null it ends the run, in both, until the column may be null."""
    ask(server, "create table t (id int primary key, v numeric, w numeric not null)")
    ask(server, "insert into t values (1, 1.5, 1), (2, '-Infinity', 1)")
    source = {"t": dd.sources.postgres(server.url, "t", slot="shop")}

    def run(**more: Any) -> list[Any]:
        made, v = dd.Flow(), pa.decimal128(8, 2)
        made.output("rows", made.upserts("t", {"id": int, "v": v, "w": v, **more}, dd.Upsert(key="id"), format=FORMAT))
        with made.open(tmp_path / "state") as engine:
            engine.run(source)
            return [(row[0], None if row[1] is None else float(row[1]), float(row[2] or -1)) for row in held(engine)]

    def null(value: str, row: int) -> Any:
        return pytest.warns(
            UserWarning, match=rf"'v' is {value} in the row .*'{row}'.*, but null in this state, because decimal128"
        )

    with null("-Infinity", 2):
        assert run() == [(1, 1.5, 1), (2, None, 1)]
    ask(server, "alter table t replica identity full", "insert into t values (3, 'NaN', 1)")
    with pytest.warns(
        UserWarning, match=r"'v' is NaN in the row .*3.*, but null in this state, because decimal128\(8, 2\) cannot"
    ):
        assert run() == [(1, 1.5, 1), (2, None, 1), (3, None, 1)]
    ask(server, "alter table t add unit text default 'mg'", "delete from t where id = 2")
    with null("NaN", 3):
        assert run(unit=str) == [(1, 1.5, 1), (3, None, 1)]
    ask(server, "insert into t values (4, 1, 'NaN')", "alter table t add more text default 'x'")
    for more in ({}, {"more": str}):  # a change, and a copy
        with raises(UnreadableInput):
            run(unit=str, **more)
    ask(server, "alter table t alter w drop not null")
    with pytest.warns(UserWarning, match=r"'w' is NaN in the row .*4"):
        assert run(unit=str, more=str) == [(1, 1.5, 1), (3, None, 1), (4, 1, -1)]


def test_numbers_as_text_are_what_postgres_writes(server: Server, tmp_path: Path) -> None:
    ask(server, "create table t (id int primary key, n numeric, d double precision, b bytea, v numeric(4, 2))")
    row = "1.10, 1e300, '\\xdead', 2.50"
    columns = dict.fromkeys(("n", "d", "b", "v"), str)
    made = dd.Flow()
    made.output("rows", made.upserts("t", {"id": int, **columns}, dd.Upsert(key="id"), format=FORMAT))
    for number in (1, 2):
        ask(server, f"insert into t values ({number}, {row})")
        with made.open(tmp_path / "state") as engine:
            engine.run({"t": dd.sources.postgres(server.url, "t", slot="shop")})
            assert held(engine) == [(at, "1.10", "1e+300", "dead", "2.50") for at in range(1, number + 1)]
