"""Test targets that cannot be written, in a table for each kind: errors name problem and fix; nothing changes.

``test_postgres_faults`` and ``test_kafka_faults`` cover Postgres and Kafka.
"""

from __future__ import annotations

import logging
import shutil
import sqlite3
import subprocess
import sys
import threading
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import deltalake
import duckdb
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from chance import mid_test
from messages import raises
from pyiceberg.catalog import load_catalog
from test_run import FIRST, SECOND, flow, land, landing, of_sqlite, rows_of
from typer.testing import CliRunner

import ddflow as dd
from ddflow.cli import app
from ddflow.connectors.api import TableChanges, TableShape, TargetRecord
from ddflow.errors import DdflowError, SchemaMismatch, SinkAhead, SinkFailed, SinkRefused, SpecError

COUNTED = {"sqlite": "with recursive c(n) as (select 1 union all select n + 1 from c) select count(*) from c"}
"""What lasts, by kind; else a count of a range."""
KINDS = ("sqlite", "duckdb", "delta", "parquet")
LAKES = (*KINDS, "iceberg")
MARKER = "Geheimnis7"
OURS = {"id": [1], "city": ["Genf"], "amount": [5]}


def catalog_at(place: Path) -> dict[str, str]:
    return {"type": "sql", "uri": f"sqlite:///{place}/catalog.db", "warehouse": f"file://{place}/lake"}


def sink(kind: str, place: Path, **more: Any) -> Any:
    """Of a kind; where it has no upserts, a changelog."""
    if kind in ("sqlite", "duckdb"):
        return getattr(dd.sinks, kind)(place / "out.db", "t", **more)
    if kind == "iceberg":
        return dd.sinks.iceberg("shop.t", catalog=catalog_at(place), **more)
    if kind == "parquet":
        more.setdefault("mode", "changelog")
    return getattr(dd.sinks, kind)(place / "out", **more)


def theirs(kind: str, place: Path, rows: pa.Table) -> None:
    """A table that somebody else made."""
    if kind == "duckdb":
        with duckdb.connect(place / "out.db") as connection:
            connection.register("given", rows)
            connection.execute("create table t as select * from given")
    elif kind == "sqlite":
        connection = sqlite3.connect(place / "out.db")
        types = {pa.int64(): "INTEGER", pa.string(): "TEXT", pa.float64(): "REAL"}
        connection.execute(f"create table t ({', '.join(f'{f.name} {types[f.type]}' for f in rows.schema)})")
        marks = ", ".join("?" * rows.num_columns)
        connection.executemany(f"insert into t values ({marks})", [tuple(row.values()) for row in rows.to_pylist()])
        connection.commit()
        connection.close()
    elif kind == "delta":
        deltalake.write_deltalake(place / "out", rows)
    elif kind == "iceberg":
        catalog = load_catalog("default", **catalog_at(place))
        catalog.create_namespace("shop")
        catalog.create_table("shop.t", rows.schema).append(rows)
    else:
        (place / "out").mkdir()
        pq.write_table(rows, place / "out" / "mine.parquet")


def there(kind: str, place: Path) -> list[dict[str, Any]]:
    if kind == "duckdb":
        with duckdb.connect(place / "out.db") as connection:
            return connection.sql("from t").to_arrow_table().to_pylist()
    if kind == "sqlite":
        return [dict(zip(OURS, row, strict=False)) for row in of_sqlite(place / "out.db", "t")]
    if kind == "delta":
        return pl.read_delta(place / "out").to_dicts()
    if kind == "iceberg":
        return load_catalog("default", **catalog_at(place)).load_table("shop.t").scan().to_arrow().to_pylist()
    return pq.read_table(place / "out" / "mine.parquet").to_pylist()


@pytest.mark.parametrize("kind", LAKES)
def test_rows_that_we_did_not_write_are_left_alone(kind: str, tmp_path: Path) -> None:
    theirs(kind, tmp_path, pa.table(OURS))
    land(tmp_path / "in", "1.csv", FIRST)
    with flow().open(tmp_path / "state") as engine:
        with raises(SinkRefused):
            engine.run(landing(tmp_path), {"orders": sink(kind, tmp_path)})
        assert engine.epoch == 0 and there(kind, tmp_path)[0]["city"] == "Genf"


@pytest.mark.parametrize("kind", ("sqlite", "duckdb", "delta", "iceberg"))
@pytest.mark.parametrize(
    "columns",
    [
        {"id": ["x"], "city": ["Genf"], "amount": [5]},
        {"city": ["Genf"], "amount": [5]},
        {**OURS, "more": ["x"]},
    ],
)
def test_tables_of_another_shape_are_left_alone(kind: str, tmp_path: Path, columns: Any) -> None:
    theirs(kind, tmp_path, pa.table(columns).slice(0, 0))
    with flow().open(tmp_path / "state") as engine, raises(SinkRefused):
        engine.run({}, {"orders": sink(kind, tmp_path)})


@pytest.mark.parametrize("kind", ("duckdb", "delta", "iceberg"))
def test_a_number_of_another_width_is_refused_with_the_type_to_declare(kind: str, tmp_path: Path) -> None:
    theirs(kind, tmp_path, pa.table({**OURS, "id": pa.array([1], pa.int32())}).slice(0, 0))
    says = r"'id' is .*, but ddflow writes .*; declare 'id' as pa\.int32\(\), or cast to that; or use another table"
    with flow().open(tmp_path / "state") as engine, pytest.raises(SinkRefused, match=says):
        engine.run({}, {"orders": sink(kind, tmp_path)})


def keeps_its_mode(place: Path, made: Any, first: str, then: str, held: Any) -> None:
    """Whether what was written in one mode is refused in another: the state says so, and after `detach` the target.

    ``made``: a sink in a mode.  ``held``: what the target has.
    """
    (place / "in").mkdir(exist_ok=True)
    land(place / "in", "1.csv", FIRST)
    with flow().open(place / f"state-{first}-{then}") as engine:
        engine.run(landing(place), {"orders": made(first)})
        before, epoch = held(), engine.epoch
        land(place / "in", "2.csv", SECOND)
        says = rf"it was written with mode='{first}', but this sink has mode[ =]'{then}'; pass the mode= that"
        with pytest.raises(SinkRefused, match=says):
            engine.run(landing(place), {"orders": made(then)})
        with pytest.raises(SinkRefused, match=says):
            engine.sync({"orders": made(then)}, adopt=True)
        assert (held(), engine.epoch) == (before, epoch)
        engine.detach("sink:orders")
        with raises(SinkRefused):
            engine.run(landing(place), {"orders": made(then)})
        assert held() == before
        engine.run(landing(place), {"orders": made(first)})
        assert held() != before and engine.sync({"orders": made(first)}, dry=True)["orders"][:3] == (0, 0, 0)


@pytest.mark.drawn(5)
@pytest.mark.parametrize("kind", LAKES)
@pytest.mark.parametrize(("first", "then"), [("upsert", "changelog"), ("retract", "upsert"), ("debezium", "retract")])
def test_a_target_is_not_written_in_another_mode(kind: str, first: str, then: str, tmp_path: Path) -> None:
    def held() -> Any:
        if kind == "parquet":
            return sorted(str(each) for each in (tmp_path / "out").rglob("*"))
        return there(kind, tmp_path)

    if kind == "parquet":  # which has no upserts
        first, then = ("updates" if mode == "upsert" else mode for mode in (first, then))
    keeps_its_mode(tmp_path, lambda mode: sink(kind, tmp_path, mode=mode), first, then, held)


@pytest.mark.parametrize("kind", LAKES)
def test_tables_of_another_state_or_output_are_left_alone(kind: str, tmp_path: Path) -> None:
    land(tmp_path / "in", "1.csv", FIRST)
    with flow().open(tmp_path / "state") as engine:
        engine.run(landing(tmp_path), {"orders": sink(kind, tmp_path)})
        with raises(SinkRefused):
            engine.run({}, {"by_city": sink(kind, tmp_path)})
    refused = raises(SinkRefused)
    with flow().open(tmp_path / "other") as engine, refused:
        engine.run(landing(tmp_path), {"orders": sink(kind, tmp_path)})


def drop(kind: str, place: Path) -> None:
    if kind == "duckdb":
        with duckdb.connect(place / "out.db") as connection:
            connection.execute("drop table t")
    elif kind == "sqlite":
        with closing(sqlite3.connect(place / "out.db")) as connection:
            connection.execute("drop table t")
    elif kind == "iceberg":
        load_catalog("default", **catalog_at(place)).drop_table("shop.t")
    else:
        shutil.rmtree(place / "out")


@mid_test
@pytest.mark.parametrize("kind", LAKES)
def test_a_table_that_was_dropped_is_made_anew_by_sync_alone(kind: str, tmp_path: Path) -> None:
    gone = r"it no longer exists, but epoch \d+ was written to it; ddflow sync creates it again"
    to = sink(kind, tmp_path)
    land(tmp_path / "in", "1.csv", FIRST)
    with flow().open(tmp_path / "state") as engine:
        engine.run(landing(tmp_path), {"orders": to})
        opened = to.open(TableShape("orders", engine.read("orders").drop_columns(["_diff"]).schema, ("id",)))
        had = opened.written()
        assert had is not None and not opened.missing()
        drop(kind, tmp_path)
        with pytest.raises(SinkRefused, match=gone):  # while it is followed
            opened.write(TableChanges(None, opened.shape.schema.empty_table(), 1), had._replace(epoch=2), had)
        opened.close()
        land(tmp_path / "in", "2.csv", SECOND)
        for _ in range(2):
            with pytest.raises(SinkRefused, match=gone):
                engine.run(landing(tmp_path), {"orders": to})
            assert engine.sync({"orders": to}, dry=True)["orders"].added  # which makes no table
    with flow().open(tmp_path / "other") as engine:
        engine.run(landing(tmp_path), {"orders": to})  # to another state it is new, though a record is beside the table
        assert engine.sync({"orders": to}, dry=True)["orders"][:3] == (0, 0, 0)
    drop(kind, tmp_path)
    with flow().open(tmp_path / "state") as engine:
        engine.sync({"orders": to})
        engine.run(landing(tmp_path), {"orders": to})
        assert engine.sync({"orders": to}, dry=True)["orders"][:3] == (0, 0, 0)
        assert kind == "parquet" or len(there(kind, tmp_path)) >= engine.read("orders").num_rows > 1


@pytest.mark.parametrize("kind", ["sqlite", "duckdb"])
def test_a_null_that_somebody_put_where_the_plan_knows_of_none_goes_with_sync(kind: str, tmp_path: Path) -> None:
    made, to = dd.Flow(), sink(kind, tmp_path)
    orders = made.upserts("orders", {"id": int, "city": str, "amount": int}, dd.Upsert(key="id"))
    made.output("counts", orders.group_by("id").agg(n="count(*)", m="count(city)"))
    assert not made.outputs["counts"].schema.field("m").nullable
    land(tmp_path / "in", "1.csv", FIRST)
    with made.open(tmp_path / "state") as engine:
        engine.run(landing(tmp_path), {"counts": to})
        for values in ("77, 1, null", "78, null, 1"):
            with closing((sqlite3 if kind == "sqlite" else duckdb).connect(tmp_path / "out.db")) as connection:
                connection.execute(f"insert into t values ({values})")
                connection.execute("update t set n = null where id = 1")
                connection.commit()
            assert engine.sync({"counts": to})["counts"][:3] == (1, 1, 0)
            assert engine.sync({"counts": to}, dry=True)["counts"][:3] == (0, 0, 0)


@pytest.mark.parametrize("kind", LAKES)
def test_what_fails_before_the_first_epoch_leaves_no_table_of_another_shape(kind: str, tmp_path: Path) -> None:
    def run(city: Any) -> Any:
        made, to = dd.Flow(), sink(kind, tmp_path)
        made.output("orders", made.upserts("orders", {"id": int, "city": city, "amount": int}, dd.Upsert(key="id")))
        with made.open(tmp_path / "state") as engine:
            engine.run({"orders": dd.sources.files(tmp_path / "in" / "*.csv")}, {"orders": to})
            return engine.sync({"orders": to}, dry=True)["orders"][:3]

    land(tmp_path / "in", "1.csv", FIRST)
    with pytest.raises(SchemaMismatch) as refused:
        run(int)
    found = "'Bern' is not a valid int64; fix it, or declare another type: {'city': 'string'}"
    assert str(refused.value).endswith(found)
    assert run(str) == (0, 0, 0)
    with raises(SchemaMismatch):
        land(tmp_path / "in", "2.csv", [(9, "Bern", "x")])
        run(str)


@pytest.mark.parametrize("kind", ("sqlite", "duckdb"))
def test_a_table_that_is_made_has_no_record_of_the_one_before(kind: str, tmp_path: Path) -> None:
    shape, had = TableShape("t", pa.schema({"id": pa.int64()}), ("id",)), TargetRecord("0" * 32, "t", 1, "f" * 32)
    opened = sink(kind, tmp_path).open(shape)
    opened.prepare()
    opened.write(TableChanges(None, pa.table({"id": [7]}), 1), had, None)
    opened.close()
    drop(kind, tmp_path)
    opened = sink(kind, tmp_path).open(shape)
    opened.prepare()  # a writer that dies here leaves an empty table that nobody takes for a full one
    assert opened.written() is None and not opened.occupied()
    opened.close()


@pytest.mark.parametrize("kind", KINDS)
def test_a_rollback_is_found_and_mended_on_the_shell(kind: str, tmp_path: Path) -> None:
    script = tmp_path / "flow.py"
    script.write_text("from test_run import flow as made\nflow = made()\n")
    where = "out.db#t" if kind in ("sqlite", "duckdb") else "out"
    to = ["--to", f"orders={kind}:{tmp_path}/{where}", "--mode", "orders=changelog"]
    words = [str(script), "--state", str(tmp_path / "state"), *to]
    run = ["run", *words, "--from", f"orders=files:{tmp_path}/in/*.csv"]
    for number, rows in enumerate([FIRST, SECOND]):
        land(tmp_path / "in", f"{number}.csv", rows)
        assert shell(run) == ""
    dd.rollback(tmp_path / "state", 1)
    assert "epoch 2, which is not in the history of this state, at epoch 1; after a rollback" in shell(run, 1)
    with flow().open(tmp_path / "state") as engine, pytest.raises(SinkAhead):
        engine.run({}, {"orders": sink(kind, tmp_path, mode="changelog")})
    shell(["sync", *words, "--yes"])
    assert shell(run) == ""
    with flow().open(tmp_path / "state") as engine:
        made = sink(kind, tmp_path, mode="changelog")
        assert engine.sync({"orders": made}, dry=True)["orders"][:3] == (0, 0, 0)
        assert (4, "Basel", 1) in rows_of(engine, "orders")


def shell(words: list[str], code: int = 0) -> str:
    """What a command says that is an error."""
    done = CliRunner().invoke(app, words)
    assert done.exit_code == code, done.output
    return done.output if code else ""


@pytest.mark.parametrize(
    "to",
    [
        *(
            f"{kind}:out.db#{table}"
            for kind in ("sqlite", "duckdb")
            for table in ("_ddflow_written", "_DDFLOW_Written")
        ),
        "postgres://me@db/shop#_ddflow_written",
        "postgres://me@db/shop#crm._ddflow_written",
        "kafka://broker:9092/by_city.ddflow",
    ],
)
def test_where_records_are_no_output_goes(to: str, tmp_path: Path) -> None:
    script = tmp_path / "flow.py"
    script.write_text("from test_run import flow as made\nflow = made()\n")
    words = [str(script), "--state", str(tmp_path / "state"), "--to", f"orders={to}"]
    for verb in ("run", "sync"):
        assert "the epochs of" in (said := shell([verb, *words], 1)) and "adopt" not in said
    assert not (tmp_path / "state").exists()


def test_an_address_is_no_folder() -> None:
    with raises(SpecError):
        dd.sinks.parquet(f"s3://me:{MARKER}@lake/t")


def test_a_file_of_duckdb_that_another_process_has_open_is_waited_for(tmp_path: Path) -> None:
    land(tmp_path / "in", "1.csv", FIRST)
    sinks = {"orders": sink("duckdb", tmp_path)}
    holding = "import duckdb, sys; c = duckdb.connect(sys.argv[1]); print('held', flush=True); sys.stdin.read()"
    with flow().open(tmp_path / "state") as engine:
        engine.run({}, sinks)
        holder = subprocess.Popen(
            [sys.executable, "-c", holding, tmp_path / "out.db"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        assert holder.stdout is not None and holder.stdout.readline() == b"held\n"
        with raises(SinkFailed):
            engine.run(landing(tmp_path), sinks, give_up_after="100ms", interval="10ms")
        assert engine.epoch == 1  # it is in the state, and waits
        thread = threading.Thread(target=lambda: (time.sleep(0.4), holder.communicate()))
        thread.start()
        land(tmp_path / "in", "2.csv", SECOND)
        assert engine.run(landing(tmp_path), sinks).sinks == {"orders": 2}
        thread.join()
        assert sorted(tuple(row.values()) for row in there("duckdb", tmp_path)) == rows_of(engine, "orders")


def test_a_secret_of_an_object_store_is_shown_nowhere(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    options = {
        **{"AWS_ACCESS_KEY_ID": "me", "AWS_SECRET_ACCESS_KEY": MARKER, "AWS_ENDPOINT_URL": "http://127.0.0.1:1"},
        **{"AWS_ALLOW_HTTP": "true", "AWS_REGION": "nowhere", "max_retries": "0", "retry_timeout": "0s"},
    }
    land(tmp_path / "in", "1.csv", FIRST)
    made = dd.sinks.delta("s3://bucket/orders", storage_options=options)
    with flow().open(tmp_path / "state") as engine:
        with pytest.raises(DdflowError) as failed:
            engine.run(landing(tmp_path), {"orders": made}, give_up_after="0s", interval="1ms")
        engine.run({}, {"orders": sink("delta", tmp_path, storage_options=options)})
    for address in (f"s3://me:{MARKER}@bucket/orders", f"az://box/orders?sig={MARKER}"):
        for attached in (dd.sinks.delta, dd.sources.delta):
            found = r"to (s3|az)://(\.\.\.@)?b[a-z]+/orders.*: .*the credentials .*storage_options="
            with pytest.raises(SpecError, match=found) as refused:
                attached(address)
            assert MARKER not in str(refused.value)
    told = [repr(made), made.target, repr(failed.value), str(failed.getrepr(style="short"))]
    told += [record.getMessage() + str(record.__dict__) for record in caplog.records]
    assert not [each for each in told if MARKER in each]
    for path in tmp_path.rglob("*"):
        assert path.is_dir() or MARKER.encode() not in path.read_bytes(), path
    for text in (f"oracle://me:{MARKER}@db/x", f"me:{MARKER}@db", f"postgres://me:{MARKER}@127.0.0.1:1/x"):
        for words in (["--from", f"orders={text}"], ["--to", f"orders={text}"]):
            script = tmp_path / "flow.py"
            script.write_text("from test_run import flow as made\nflow = made()\n")
            more = ["--state", str(tmp_path / "state"), "--give-up-after", "0s", "--interval", "1ms", "--debug"]
            done = CliRunner().invoke(app, ["run", str(script), *more, *words])
            assert done.exit_code and MARKER not in done.output


@pytest.mark.parametrize("kind", ["sqlite", "duckdb"])
def test_what_lasts_can_be_cancelled(kind: str, tmp_path: Path) -> None:
    table: Any = sink(kind, tmp_path).open(TableShape("t", pa.schema({"id": pa.int64()}), ("id",)))
    table.prepare()
    timer = threading.Timer(0.2, table.cancel)
    timer.start()
    with raises(SinkFailed), table.translate_errors("write"), table.transaction():
        table.execute(COUNTED.get(kind, "select count(*) from range(1000000000000) t(n) where n % 7 = 3"))
    timer.join()
    table.write(TableChanges(None, pa.table({"id": [7]}), 1), TargetRecord("0" * 32, "t", 1, "f" * 32), None)
    assert table.read().to_pylist() == [{"id": 7}]
    table.close()


def drop_column(kind: str, place: Path, column: str) -> None:
    """A column of the table, by somebody else."""
    if kind == "duckdb":
        with duckdb.connect(place / "out.db") as connection:
            connection.execute(f"alter table t drop column {column}")
    elif kind == "sqlite":
        with closing(sqlite3.connect(place / "out.db")) as connection:
            connection.execute(f"alter table t drop column {column}")
    elif kind == "delta":
        rows = pl.read_delta(place / "out").to_arrow().drop_columns([column])
        deltalake.write_deltalake(place / "out", rows, mode="overwrite", schema_mode="overwrite")
    else:
        with load_catalog("default", **catalog_at(place)).load_table("shop.t").update_schema() as update:
            update.delete_column(column)


@pytest.mark.parametrize("kind", ("sqlite", "duckdb", "delta", "iceberg"))
def test_a_column_that_others_dropped_is_filled_by_sync_alone(kind: str, tmp_path: Path) -> None:
    land(tmp_path / "in", "1.csv", FIRST)
    sinks = {"orders": sink(kind, tmp_path)}
    found = (
        r"no longer has the column 'amount', which earlier epochs wrote; ddflow sync --yes adds it again and fills it"
    )
    with flow().open(tmp_path / "state") as engine:
        engine.run(landing(tmp_path), sinks)
        drop_column(kind, tmp_path, "amount")
        land(tmp_path / "in", "2.csv", SECOND)
        for _ in range(2):
            with pytest.raises(SinkRefused, match=found):
                engine.run(landing(tmp_path), sinks)
        with pytest.raises(SinkRefused, match=found):
            engine.sync(sinks, dry=True)
        assert "amount" not in there(kind, tmp_path)[0] or kind == "sqlite"
        engine.sync(sinks)
        rows = [tuple(row[name] for name in OURS) for row in there(kind, tmp_path)]
        assert sorted(rows) == rows_of(engine, "orders")


@pytest.mark.parametrize("kind", ("sqlite", "duckdb", "delta", "iceberg"))
def test_a_column_that_others_drop_within_a_run_ends_it(kind: str, tmp_path: Path) -> None:
    opened = sink(kind, tmp_path).open(TableShape("t", pa.table(OURS).schema, ("id",)))
    opened.prepare()
    first, then = (TargetRecord("0" * 32, "t", epoch, "f" * 32) for epoch in (1, 2))
    opened.write(TableChanges(pa.table({"id": [1]}), pa.table(OURS), 1), first, None)
    drop_column(kind, tmp_path, "amount")
    with raises((SinkRefused, SinkFailed)):
        opened.write(TableChanges(pa.table({"id": [1]}), pa.table(OURS), 1), then, first)
    opened.close()
