"""Sessions with a real Postgres: settings of roles and databases change nothing, and nothing waits for ever."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import psycopg
import pyarrow as pa
import pytest
from postgres_server import Server

import ddflow as dd

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
}
ROW = (
    "{}, 0.1234567890123456, 0.1234567, '2026-01-02', '2026-01-02 03:04:05', '2026-01-02 03:04:05+00', '\\x00ff', "
    "'1 day 02:00:00', 'é\\', array['2026-01-02 03:04:05+00'::timestamptz]"
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
}


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    made = Server()
    yield made
    made.close()


AS_USUAL = "-c standard_conforming_strings=on -c search_path=public -c statement_timeout=0"


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
    ask(server, f"create table t ({columns})", database="odd")
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
