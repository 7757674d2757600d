"""Compare sources with bare libraries. A source converts messages to upserts, or a topic or a slot to differences.

All contenders get the same bytes: messages in memory, a mock cluster's topic, or a slot with the same transactions.
Clusters and servers run in their own processes. A peer does only the minimum: it parses messages into columns, counts
the messages of a topic, or writes the changes of a slot to a file. Results are counted and compared after the timing.
Producers compress messages, because the mock cluster keeps at most 5 MB in each partition.

>>> len({debezium(each, 500)["checksum"] for each in ("json.loads", "from_json", "ddflow")})
1
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import machine
import memory
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from connectors_work import BATCH, GONE, SCHEMA, digest, in_csv, messages, orders, upserted
from operators import Clock

sys.path += [str(machine.ROOT / "tests"), str(machine.ROOT / "examples" / "cdc")]  # folders of the servers

TOPIC, SLOT = "orders", "bench"
A_TRANSACTION = 1_000
"""The number of rows that each Postgres transaction changes."""
CHANGES = ('{"action":"I', '{"action":"U', '{"action":"D')
Sample = dict[str, Any]


def flow(format: Any = None) -> Any:
    """Return the flow of orders."""
    import ddflow as dd

    made = dd.Flow()
    schema = SCHEMA if format is not None else SCHEMA.append(pa.field(GONE, pa.bool_()))
    spec = dd.Upsert(key="id", delete=None if format is not None else dd.tombstone(GONE))
    made.output("orders", made.upserts("orders", schema, spec, format=format))
    return made


def _folder() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory(prefix="ddflow-bench-")


def debezium(contender: str, rows: int) -> Sample:
    """Convert messages to upserts, batch by batch, on one thread."""
    events = orders(rows)
    said = messages(events)
    batches, clock = [said.slice(at, BATCH) for at in range(0, rows, BATCH)], Clock()
    read = {"ddflow": _decoder, "from_json": _from_json, "json.loads": lambda: _loads}[contender]()
    read(batches[0].slice(0, 1_000))
    memory.settled()
    before = memory.pages().private
    with memory.Watch() as watch:
        out = [clock.timed(lambda batch=batch: read(batch)) for batch in batches]
    peak, size = watch.peak.private - before, pc.mean(pc.binary_length(said["value"])).as_py()
    found = upserted(pa.concat_tables([_columns(each, batch) for each, batch in zip(out, batches, strict=True)]))
    return {**clock.sample(rows, found), "peak": peak, "bytes": size}


def _decoder() -> Callable[[pa.Table], pa.Table]:
    import ddflow as dd

    engine = flow(dd.formats.debezium(decimals="string")).open()
    return lambda batch: engine.calls.dataflow.admissions["orders"].decode_without_truncates(batch)


def _from_json() -> Callable[[pa.Table], pa.Table]:
    import duckdb

    connection = duckdb.connect(config={"threads": 1})
    shape = {"op": "VARCHAR", "before": {"id": "VARCHAR"}, "source": {"lsn": "VARCHAR"}}
    said = json.dumps({**shape, "after": dict.fromkeys(SCHEMA.names, "VARCHAR")})

    def read(batch: pa.Table) -> pa.Table:
        text = pa.table({"v": batch["value"].cast(pa.string())})
        return connection.from_arrow(text).project(f"from_json(v, '{said}') as v").to_arrow_table()

    return read


def _loads(batch: pa.Table) -> list[tuple[Any, ...]]:
    return [(m["op"], m["before"], m["after"], m["source"]["lsn"]) for m in map(json.loads, batch["value"].to_pylist())]


def _columns(found: Any, batch: pa.Table) -> pa.Table:
    """Convert a contender's result to events."""
    if isinstance(found, list):
        kinds = {"placed": pa.int64(), "amount": pa.string()}
        row = pa.struct([(field.name, kinds.get(field.name, field.type)) for field in SCHEMA])
        after, before = pa.array([each[2] for each in found], row), [(each[1] or {}).get("id") for each in found]
        gone: Any = pa.array([each[0] == "d" for each in found])
    elif "v" in found.column_names:
        whole = found["v"].combine_chunks()
        after, before = pc.struct_field(whole, "after"), pc.struct_field(whole, ["before", "id"]).cast(pa.int64())
        gone = pc.equal(pc.struct_field(whole, "op"), "d")
    else:
        return found.select(SCHEMA.names).append_column(GONE, found["_deleted"])
    cells = {name: pc.struct_field(after, name) for name in SCHEMA.names}
    cells["id"] = pc.coalesce(cells["id"].cast(pa.int64()), before)
    cells["placed"] = cells["placed"].cast(pa.int64()).cast(SCHEMA.field("placed").type)
    cells["paid"] = cells["paid"].cast(pa.bool_())
    return pa.table(cells).cast(SCHEMA).append_column(GONE, gone)


def kafka(contender: str, rows: int) -> Sample:
    """Read a topic from beginning to end."""
    from kafka_cluster import Cluster

    said = messages(orders(rows))
    size = pc.sum(pc.binary_length(said["value"])).as_py()
    with Cluster() as servers:
        _produce(servers, said)
        clock = Clock()
        if contender == "ddflow":
            found = _ran(clock, _topic(servers), "debezium", rows)
        else:
            came = clock.timed(lambda: _consume(servers, rows))
            if came != (rows, size):
                raise AssertionError(f"received messages and bytes: {came}; expected {rows} and {size}")
            found = ""
        return {**clock.sample(rows, found), "bytes": size / rows}


def _topic(servers: str) -> Any:
    import ddflow as dd

    return dd.sources.kafka(servers, TOPIC, follow=False)


def _produce(servers: str, said: pa.Table) -> None:
    from confluent_kafka import Producer

    settings = {"bootstrap.servers": servers, "log_level": 0, "compression.type": "zstd", "linger.ms": 20}
    producer = Producer({**settings, "batch.size": 1 << 18, "queue.buffering.max.messages": 1_000_000})
    for batch in said.to_batches(max_chunksize=10_000):
        for key, value in zip(batch["key"].to_pylist(), batch["value"].to_pylist(), strict=True):
            producer.produce(TOPIC, value, key)
        producer.poll(0)
    if left := producer.flush(60):
        raise AssertionError(f"{left} messages were not produced")


def _consume(servers: str, rows: int) -> tuple[int, int]:
    """Consume a topic in a bare loop; return the number of messages and their bytes."""
    from confluent_kafka import OFFSET_BEGINNING, Consumer, TopicPartition

    settings = {"bootstrap.servers": servers, "group.id": "bare", "log_level": 0, "enable.auto.commit": False}
    consumer, count, size = Consumer(settings), 0, 0
    partitions = consumer.list_topics(TOPIC, timeout=10).topics[TOPIC].partitions
    consumer.assign([TopicPartition(TOPIC, each, OFFSET_BEGINNING) for each in partitions])
    while count < rows:
        came = consumer.consume(10_000, timeout=0.1)
        count += len(came)
        size += sum(len(each.value()) for each in came)
    consumer.close()
    return count, size


def _ran(clock: Clock, source: Any, format: str, rows: int, state: str | None = None) -> str:
    """Read a source to its end with a durable engine; return the digest of its rows.

    A slot is polled at short intervals, because each poll ends an epoch.
    """
    import ddflow as dd

    interval = "1s" if format == "debezium" else "10ms"
    how = dd.formats.debezium(decimals="string") if format == "debezium" else dd.formats.wal2json()
    warm = messages(orders(1_000)) if format == "debezium" else pa.table({"value": pa.array([], pa.string())})
    with flow(how).open() as engine:  # load the kernels before the timing
        engine.step({"orders": warm})
    with (
        _folder() as folder,
        flow(how).open(state or f"{folder}/state") as engine,
    ):
        done = clock.timed(lambda: engine.run({"orders": source}, interval=interval))
        if done.rows != rows:
            raise AssertionError(f"received {done.rows} messages of {rows}")
        return digest(engine.read("orders"))


@contextmanager
def postgres(fsync: bool = False) -> Iterator[Any]:
    """Start a server with a table of orders, and connect to it."""
    import psycopg
    from local_postgres import LocalPostgres

    disk = f"-c fsync={'on' if fsync else 'off'}"
    with LocalPostgres(None, disk) as server, psycopg.connect(server.url, autocommit=True) as connection:
        connection.execute(
            "create table orders (id bigint primary key, customer bigint, city text, status text, "
            "amount numeric(12,2), paid boolean, note text, placed timestamp)"
        )
        yield server, connection


def slot(contender: str, rows: int) -> Sample:
    """Read the changes of a slot up to the end of the log."""
    import ddflow as dd

    with _folder() as folder, postgres() as (server, connection):
        source = dd.sources.postgres(server.url, {"public.orders": "orders"}, slot=SLOT, follow=False)
        with flow(dd.formats.wal2json()).open(f"{folder}/state") as engine:
            engine.run({"orders": source})  # the first copy, which is empty
        changed, clock = _change(connection, orders(rows)), Clock()
        if contender == "ddflow":
            return clock.sample(changed, _ran(clock, source, "wal2json", changed, f"{folder}/state"))
        received = _received(clock, server, connection, f"{folder}/out")
        if received != changed:
            raise AssertionError(f"received {received} changes of {changed}")
        return clock.sample(changed, digest(stored(connection, "orders")))


def stored(connection: Any, table: str) -> pa.Table:
    """Return the rows of a Postgres table."""
    found = connection.execute(f"select {', '.join(SCHEMA.names)} from {table}").fetchall()
    return pa.Table.from_pylist([dict(zip(SCHEMA.names, each, strict=True)) for each in found], SCHEMA)


def _change(connection: Any, events: pa.Table) -> int:
    """Apply events to Postgres.

    A transaction applies only the last event of each key. Return the number of changed rows.
    """
    columns, changed = ", ".join(SCHEMA.names), 0
    new = ", ".join(f"{name} = excluded.{name}" for name in SCHEMA.names[1:])
    upsert = f"insert into orders select {columns} from came where not gone on conflict (id) do update set {new}"
    connection.execute("create temp table came (like orders, gone boolean)")
    for at in range(0, events.num_rows, A_TRANSACTION):
        some = events.slice(at, A_TRANSACTION)
        ids = some["id"].to_numpy()[::-1]
        mine = some.take(pa.array(len(ids) - 1 - np.unique(ids, return_index=True)[1]))
        with connection.transaction(), connection.cursor() as cursor:
            cursor.execute("truncate came")
            with cursor.copy("copy came from stdin (format csv)") as copy:
                copy.write(in_csv(mine))
            changed += cursor.execute(upsert).rowcount
            changed += cursor.execute("delete from orders o using came c where c.gone and o.id = c.id").rowcount
    return changed


def _received(clock: Clock, server: Any, connection: Any, path: str) -> int:
    """Write a slot to a file with pg_recvlogical; return the number of changes."""
    end = connection.execute("select pg_current_wal_lsn()").fetchone()[0]
    connection.execute("select pg_logical_emit_message(true, 'bench', 'end')")
    wanted = {"format-version": "2", "include-lsn": "true", "add-tables": "public.orders"}
    options = [word for name, value in wanted.items() for word in ("-o", f"{name}={value}")]
    command = [str(server.bin / "pg_recvlogical"), "-d", server.url, "-S", SLOT, "--start", "-E", end, "--no-loop"]
    clock.timed(lambda: subprocess.run([*command, *options, "-f", path], check=True))
    with open(path, encoding="utf-8") as lines:
        return sum(line[:12] in CHANGES for line in lines)
