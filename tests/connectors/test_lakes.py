"""Test Delta Lake and Iceberg as sinks: each epoch is one commit, and several libraries read the tables."""

from __future__ import annotations

import datetime as dt
import json
import struct
from decimal import Decimal
from pathlib import Path
from typing import Any

import deltalake
import duckdb
import polars
import pyarrow as pa
import pytest
from messages import raises
from pyiceberg.catalog import Catalog, load_catalog

import ddflow as dd
from ddflow.connectors.api import TableChanges, TableShape, TableSink, TargetRecord
from ddflow.connectors.modes import read_rows_with_diff
from ddflow.engine.run.delivery import Delivery
from ddflow.engine.run.kept_epochs import EngineEpochs
from ddflow.errors import SinkAhead, SinkFailed, SinkRefused, SpecError

DAYS = [[(1, "Bern", 5), (2, "Bern", 6), (3, None, 1)], [(1, "Chur", 5), (3, None, 2)], [(2, "Chur", 7)]]
FIRST = TargetRecord("0" * 32, "t", 1, "f" * 32)
COLUMNS = {"id": pa.int64(), "city": pa.string(), "amount": pa.int64()}


def flow() -> dd.Flow:
    made = dd.Flow()
    orders = made.upserts("orders", COLUMNS, dd.Upsert(key="id"))
    made.output("orders", orders)
    made.output("by_city", orders.group_by("city").agg(n="count(*)", total="sum(amount)"))
    made.output("all", orders.agg(n="count(*)"))
    return made


def days(engine: Any, sinks: Any, given: Any = DAYS) -> None:
    for rows in given:
        engine.step({"orders": pa.table(dict(zip(COLUMNS, map(list, zip(*rows, strict=True)), strict=True)))})
        engine.run(sinks=sinks)


def held(engine: Any, name: str) -> list[tuple[Any, ...]]:
    return sorted((tuple(row.values())[:-1] for row in engine.read(name).to_pylist()), key=str)


def properties(path: Path) -> dict[str, str]:
    return {"type": "sql", "uri": f"sqlite:///{path}/catalog.db", "warehouse": f"file://{path}/warehouse"}


def catalog(path: Path) -> Catalog:
    return load_catalog("default", **properties(path))


def sink(kind: str, path: Path, name: str, **options: Any) -> TableSink:
    """A sink of a table by its name, in a lake of a kind."""
    if kind == "delta":
        return dd.sinks.delta(path / name, **options)
    return dd.sinks.iceberg(f"shop.{name}", catalog=properties(path), **options)


def files(kind: str, path: Path, name: str) -> list[str]:
    """The Parquet files that the newest version of a table has."""
    if kind == "delta":
        return deltalake.DeltaTable(path / name).file_uris()
    tasks = catalog(path).load_table(f"shop.{name}").scan().plan_files()
    return [task.file.file_path.removeprefix("file://") for task in tasks]


def versions(kind: str, path: Path, name: str) -> int:
    """How many commits a table had, behind the one that made it."""
    if kind == "delta":
        return deltalake.DeltaTable(path / name).version()
    return len(catalog(path).load_table(f"shop.{name}").snapshots())


def there(kind: str, path: Path, name: str) -> list[tuple[Any, ...]]:
    """The rows of a table, as its library reads them."""
    if kind == "delta":
        table = polars.read_delta(path / name).to_arrow()
    else:
        table = catalog(path).load_table(f"shop.{name}").scan().to_arrow()
    return sorted((tuple(row.values()) for row in table.to_pylist()), key=str)


def other(kind: str, path: Path, name: str, rows: pa.Table) -> None:
    """Rows of somebody else, in a table that is made or not."""
    if kind == "delta":
        deltalake.write_deltalake(path / name, rows, mode="append")
        return
    catalog(path).create_namespace_if_not_exists("shop")
    catalog(path).create_table_if_not_exists(f"shop.{name}", rows.schema).append(rows)


KINDS = pytest.mark.parametrize("kind", ["delta", "iceberg"])


@KINDS
def test_a_table_is_what_the_output_holds(tmp_path: Path, kind: str) -> None:
    sinks = {name: sink(kind, tmp_path, name) for name in ("orders", "by_city", "all")}
    with flow().open(tmp_path / "state") as engine:
        days(engine, sinks)
        for name in sinks:
            assert there(kind, tmp_path, name) == held(engine, name), name
            found = duckdb.read_parquet(files(kind, tmp_path, name)).fetchall()
            assert sorted(found, key=str) == held(engine, name)
        assert versions(kind, tmp_path, "by_city") == len(DAYS)
        assert engine.sync(sinks, dry=True)["orders"][:3] == (0, 0, 0)
    if kind == "delta":
        assert sorted(polars.read_delta(str(tmp_path / "by_city")).rows(), key=str) == there(kind, tmp_path, "by_city")


@KINDS
@pytest.mark.parametrize("mode", ["changelog", "retract", "debezium", "updates"])
def test_logs_fold_to_what_is_held(tmp_path: Path, kind: str, mode: Any) -> None:
    out = sink(kind, tmp_path, "out", mode=mode)
    with flow().open(tmp_path / "state") as engine:
        days(engine, {"by_city": out})
        delivery = Delivery(EngineEpochs(engine.calls, "a test"), "by_city", out)
        rows = read_rows_with_diff(mode, delivery.table.read(), delivery.epochs.output_schema("by_city"))
        delivery.close()
        found: dict[tuple[Any, ...], int] = {}
        for row in rows.to_pylist():
            diff = row.pop("_diff")
            found[tuple(row.values())] = found.get(tuple(row.values()), 0) + diff
        assert sorted((row for row, n in found.items() if n), key=str) == held(engine, "by_city")
        assert engine.sync({"by_city": out}, dry=True)["by_city"][:3] == (0, 0, 0)


@KINDS
def test_types_come_back(tmp_path: Path, kind: str) -> None:
    values: dict[str, tuple[pa.DataType, list[Any]]] = {
        "b": (pa.bool_(), [True]),
        "u8": (pa.uint8(), [255]),
        "u32": (pa.uint32(), [2**32 - 1]),
        "u64": (pa.uint64(), [2**64 - 1]),
        "f": (pa.float64(), [1.5]),
        "d": (pa.decimal128(38, 3), [Decimal("1.500")]),
        "s": (pa.large_string(), ["ü"]),
        "x": (pa.binary(2), [b"\x00\xff"]),
        "t": (pa.timestamp("ms", "Europe/Zurich"), [1]),
        "l": (pa.list_(pa.uint32()), [[1, None]]),
        "r": (pa.struct({"a": pa.int32()}), [{"a": 1}]),
    }
    if kind == "iceberg":
        values |= {"h": (pa.time32("s"), [7]), "i": (pa.uuid(), [b"0123456789abcdef"])}
    rows = pa.table({name: pa.array([*given, None], each) for name, (each, given) in values.items()})
    opened = sink(kind, tmp_path, "t").open(TableShape("t", rows.schema, ("b",)))
    opened.prepare()
    opened.write(TableChanges(rows.select(["b"]), rows, 2), FIRST, None)
    again = sink(kind, tmp_path, "t").open(TableShape("t", rows.schema, ("b",)))
    again.prepare()
    assert again.written() == FIRST
    assert sorted(again.read().to_pylist(), key=str) == sorted(rows.to_pylist(), key=str)
    at = pa.schema({"b": pa.bool_(), "at": pa.timestamp("ns"), "by": pa.time64("ns")})
    with raises(SinkRefused):
        sink(kind, tmp_path, "u").open(TableShape("t", at, ("b",))).prepare()


@KINDS
def test_keys_of_any_type_are_replaced(tmp_path: Path, kind: str) -> None:
    day = [dt.date(2026, 11, n) for n in (1, 2, 3)]
    keys: list[tuple[pa.DataType, list[Any]]] = [
        (pa.string(), ["a", None, "c"]),
        (pa.uint64(), [1, None, 2**64 - 1]),
        (pa.date32(), [*day[:2], None]),
        (pa.timestamp("us", "UTC"), [1, None, 3]),
        (pa.binary(), [b"", None, b"c"]),
        (pa.bool_(), [True, False, None]),
    ]
    for number, (each, given) in enumerate(keys):
        shape = TableShape("t", pa.schema({"k": each, "n": pa.int64(), "v": pa.int64()}), ("k", "n"))
        opened = sink(kind, tmp_path, f"t{number}").open(shape)
        opened.prepare()
        rows = pa.table({"k": pa.array(given * 2, each), "n": [1, 1, 1, None, 2, 2], "v": range(6)}, shape.schema)
        opened.write(TableChanges(rows.select(["k", "n"]), rows, 6), FIRST, None)
        changed = rows.slice(1, 3)
        more = changed.slice(0, 2).set_column(2, "v", pa.array([10, 20]))
        opened.write(TableChanges(changed.select(["k", "n"]), more, 3), FIRST._replace(epoch=2), FIRST)
        left = {tuple(row.values()) for row in rows.to_pylist()} - {tuple(row.values()) for row in changed.to_pylist()}
        expected = left | {tuple(row.values()) for row in more.to_pylist()}
        assert {tuple(row.values()) for row in opened.read().to_pylist()} == expected


@KINDS
def test_a_lost_answer_writes_nothing_twice(tmp_path: Path, kind: str, monkeypatch: Any) -> None:
    sinks = {"by_city": sink(kind, tmp_path, "out", mode="updates")}
    of: Any = type(sinks["by_city"].open(TableShape("t", pa.schema({}), None)))
    write, failed = of.write, []

    def lost(self: Any, *given: Any) -> None:
        write(self, *given)
        if not failed:
            failed.append(1)
            raise SinkFailed("write", "the answer was lost", "wait")

    monkeypatch.setattr(of, "write", lost)
    with flow().open(tmp_path / "state") as engine:
        days(engine, sinks, DAYS[:1])
        assert failed and len(there(kind, tmp_path, "out")) == 2 and versions(kind, tmp_path, "out") == 1


@KINDS
@pytest.mark.parametrize("added", [False, True])
def test_of_two_writers_one_commits(tmp_path: Path, kind: str, added: bool) -> None:
    schema = pa.schema({"id": pa.int64()})
    rows, shape = pa.table({"id": [1]}), TableShape("t", schema, None if added else ("id",))
    one, two = (sink(kind, tmp_path, "t").open(shape) for _ in range(2))
    taken = TableChanges(None if added else rows, rows, 1)
    one.prepare()
    stale: Any = two
    seen = stale._load()
    one.write(taken, FIRST, None)
    stale._load = lambda: seen  # it looked before the other wrote
    with pytest.raises(SinkFailed):
        two.write(taken, FIRST._replace(state="1" * 32), None)
    del stale._load
    with raises(SinkAhead):
        two.write(taken, FIRST._replace(state="1" * 32), None)
    assert there(kind, tmp_path, "t") == [(1,)]


@KINDS
def test_what_is_not_ours_is_refused_and_adopted(tmp_path: Path, kind: str) -> None:
    other(kind, tmp_path, "out", pa.table({"city": ["Genf"], "n": [1], "total": [1]}))
    sinks = {"by_city": sink(kind, tmp_path, "out")}
    with flow().open(tmp_path / "state") as engine:
        with raises(SinkRefused):
            days(engine, sinks, DAYS[:1])
        engine.sync(sinks, adopt=True)
        assert there(kind, tmp_path, "out") == held(engine, "by_city")
    with (
        flow().open(tmp_path / "other") as engine,
        raises(SinkRefused),
    ):
        days(engine, sinks, DAYS[:1])
    types = "'city' is int64, but ddflow writes string"
    wrong = {"one": ({"city": [1]}, types), "two": ({"more": ["x"]}, "that ddflow does not")}
    for name, (columns, says) in wrong.items():
        other(kind, tmp_path, name, pa.table(columns).slice(1))
        with flow().open(tmp_path / f"{name} state") as engine, pytest.raises(SinkRefused, match=says):
            days(engine, {"by_city": sink(kind, tmp_path, name)}, DAYS[:1])


@KINDS
def test_a_new_column_is_added(tmp_path: Path, kind: str) -> None:
    def opened(*names: str) -> Any:
        return sink(kind, tmp_path, "t").open(
            TableShape("t", pa.schema([(name, pa.int64()) for name in names]), ("id",))
        )

    one = opened("id")
    one.prepare()
    one.write(TableChanges(pa.table({"id": [1]}), pa.table({"id": [1]}), 1), FIRST, None)
    two, rows = opened("id", "n"), pa.table({"id": [2], "n": [5]})
    two.prepare()
    two.write(TableChanges(rows.select(["id"]), rows, 1), FIRST._replace(epoch=2), FIRST)
    assert there(kind, tmp_path, "t") == [(1, None), (2, 5)]


def as_of_spark(table: deltalake.DeltaTable) -> None:
    """Let the log have the last restore as Spark writes it: a moment in the time zone of its session."""
    log = Path(table.table_uri.removeprefix("file://")) / "_delta_log" / f"{table.version():020}.json"
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    for line in lines:
        if "commitInfo" in line:
            assert line["commitInfo"]["operation"] == "RESTORE"
            line["commitInfo"]["operationParameters"] = {"version": None, "timestamp": "2024-01-01 12:00:00.0"}
    log.write_text("\n".join(map(json.dumps, lines)))


ALPHABET = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#"
"""The digits of Z85, in which the log of a table of Delta Lake writes a small deletion vector."""


def deletion_vector(row: int) -> dict[str, Any]:
    """A vector that deletes one row of a file: a roaring bitmap, as Delta Lake's protocol lays it out."""
    bitmap = struct.pack("<IIHHIH", 12346, 1, 0, 0, 16, row)
    data = struct.pack("<IqI", 1681511377, 1, 0) + bitmap
    data += bytes(-len(data) % 4)
    words = [word for (word,) in struct.iter_unpack(">I", data)]
    text = "".join(ALPHABET[word // 85**power % 85] for word in words for power in (4, 3, 2, 1, 0))
    return {"storageType": "i", "pathOrInlineDv": text, "sizeInBytes": len(data), "cardinality": 1}


def test_a_table_of_delta_lake_with_deletion_vectors_is_read_for_a_sync(tmp_path: Path) -> None:
    empty = pa.schema(COLUMNS).empty_table()
    deltalake.write_deltalake(tmp_path / "out", empty, configuration={"delta.enableDeletionVectors": "true"})
    sinks = {"orders": sink("delta", tmp_path, "out")}
    with flow().open(tmp_path / "state") as engine:
        days(engine, sinks, [[(1, "Bern", 5), (2, "Bern", 6), (3, None, 1)]])
        assert engine.sync(sinks)["orders"].added == 0  # deletion vectors are enabled, and none is there
        log = tmp_path / "out" / "_delta_log"
        version = deltalake.DeltaTable(tmp_path / "out").version()
        actions = [json.loads(line) for path in sorted(log.glob("*.json")) for line in path.read_text().splitlines()]
        (add,) = (each["add"] for each in actions if "add" in each)
        remove = {"path": add["path"], "deletionTimestamp": 1, "dataChange": True}
        changes = [{"remove": remove}, {"add": {**add, "deletionVector": deletion_vector(1)}}]
        (log / f"{version + 1:020}.json").write_text("\n".join(map(json.dumps, changes)))
        assert engine.sync(sinks)["orders"].added == 1
        assert there("delta", tmp_path, "out") == held(engine, "orders")


def test_a_row_that_breaks_a_constraint_of_a_table_of_delta_lake_is_refused(tmp_path: Path) -> None:
    deltalake.write_deltalake(tmp_path / "out", pa.schema(COLUMNS).empty_table())
    deltalake.DeltaTable(tmp_path / "out").alter.add_constraint({"positive": "amount > 0"})
    with flow().open(tmp_path / "state") as engine:
        days(engine, {"orders": sink("delta", tmp_path, "out")}, [[(1, "Bern", 5)]])
        with raises(SinkRefused):  # at once: no second try would succeed
            days(engine, {"orders": sink("delta", tmp_path, "out")}, [[(2, "Bern", 0)]])
        assert there("delta", tmp_path, "out") == [(1, "Bern", 5)]


@pytest.mark.parametrize("by", ["version", "time", "time of Spark"])
def test_a_table_of_delta_lake_that_was_restored_says_so(tmp_path: Path, by: str) -> None:
    sinks = {"by_city": sink("delta", tmp_path, "out")}
    with flow().open(tmp_path / "state") as engine:
        days(engine, sinks)
        table = deltalake.DeltaTable(tmp_path / "out")
        first, second, *_ = (each for each in table.history()[::-1] if "ddflow" in each)
        # A version is as old as its file, which is some time after what its commit says.
        moment = dt.datetime.fromtimestamp(second["timestamp"] / 1000 - 0.0005, dt.UTC)
        table.restore(first["version"] if by == "version" else moment)
        if by == "time of Spark":
            as_of_spark(deltalake.DeltaTable(tmp_path / "out"))
        table.optimize.compact()
        engine.step({"orders": {"id": [50], "city": ["Genf"], "amount": [1]}})
        for _ in range(2):
            with pytest.raises(SinkRefused, match=r"has epoch \d, but this state wrote epoch \d to it; .* ddflow sync"):
                engine.run(sinks=sinks)
        engine.sync(sinks)
        assert there("delta", tmp_path, "out") == held(engine, "by_city")
        table = deltalake.DeltaTable(tmp_path / "out")
        table.restore(0)  # when it was made
    with flow().open(tmp_path / "state") as engine:
        with raises(SinkRefused):
            engine.run(sinks=sinks)
        engine.sync(sinks)
        days(engine, sinks, [[(7, "Genf", 1)]])
        assert there("delta", tmp_path, "out") == held(engine, "by_city")


def test_a_table_of_iceberg_that_was_rolled_back_says_so(tmp_path: Path) -> None:
    sinks = {"by_city": sink("iceberg", tmp_path, "out")}
    with flow().open(tmp_path / "state") as engine:
        days(engine, sinks)
        table = catalog(tmp_path).load_table("shop.out")
        # A snapshot of others has no record; that of the one before counts.
        table.append(pa.table({"city": ["Genf"], "n": [1], "total": [1]}))
        days(engine, sinks, [[(7, "Genf", 1)]])
        table.refresh()
        with table.maintenance.expire_snapshots() as expired:
            expired.by_ids([each.snapshot_id for each in table.snapshots()[:3]])
        table.append(pa.table({"city": ["Genf"], "n": [1], "total": [1]}))
        last = table.refresh().snapshots()[-2].snapshot_id
        with table.maintenance.expire_snapshots() as expired:
            expired.by_id(last)
        days(engine, sinks, [[(8, "Genf", 1)], [(9, "Genf", 1)]])  # by the property of the table
        before = table.refresh().snapshots()[-2].snapshot_id
        with table.manage_snapshots() as managed:
            managed.rollback_to_snapshot(before)
    with flow().open(tmp_path / "state") as engine:
        with raises(SinkRefused):
            engine.run(sinks=sinks)
        engine.sync(sinks)
        assert there("iceberg", tmp_path, "out") == held(engine, "by_city")


def test_files_of_iceberg_without_the_keys_stay(tmp_path: Path) -> None:
    shape = TableShape("t", pa.schema({"id": pa.int64(), "v": pa.string()}), ("id",))
    opened, records = sink("iceberg", tmp_path, "t").open(shape), [None, *(FIRST._replace(epoch=n) for n in (1, 2, 3))]
    opened.prepare()
    for number in range(3):
        rows = pa.table({"id": range(1000 * number, 1000 * number + 1000), "v": ["x"] * 1000})
        opened.write(TableChanges(rows.select(["id"]), rows, 1), FIRST._replace(epoch=number + 1), records[number])
    expected = dict.fromkeys(range(3000), "x")
    before = set(files("iceberg", tmp_path, "t"))
    rows = pa.table({"id": range(1500, 1800), "v": ["y"] * 300})
    opened.write(TableChanges(rows.select(["id"]), rows, 1), FIRST._replace(epoch=4), records[3])
    after = set(files("iceberg", tmp_path, "t"))
    assert len(before) == 3 and len(before & after) == 2 and len(after) == 3
    expected |= dict.fromkeys(range(1500, 1800), "y")
    assert dict(there("iceberg", tmp_path, "t")) == expected


def test_no_secret_is_shown(tmp_path: Path) -> None:
    assert "hush" not in repr(dd.sinks.delta("t", storage_options={"secret": "hush"}))
    given = {"type": "rest", "uri": "http://me:hush-hush@127.0.0.1:9/?token=very-hush", "token": "hush"}
    of = dd.sinks.iceberg("shop.t", catalog=given)
    assert "hush" not in repr(of) + of.target
    opened = of.open(TableShape("t", pa.schema({"id": pa.int64()}), ("id",)))
    with raises(SinkFailed) as failed:
        opened.written()
    assert "hush" not in str(failed.value)
    for wrong in ({"type": "very-hush"}, {"type": "rest", "token": "hush"}):
        opened = dd.sinks.iceberg("shop.t", catalog=wrong).open(TableShape("t", pa.schema({"id": pa.int64()}), None))
        with raises(SinkRefused) as refused:
            opened.written()
        assert "hush" not in str(refused.value)
    with raises(SpecError):
        dd.sinks.iceberg("t")
