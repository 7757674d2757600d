"""Delta Lake as a sink, read back by deltalake, DuckDB and Polars; each epoch is one commit, once."""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path
from typing import Any

import deltalake
import duckdb
import polars
import pyarrow as pa
import pytest

import ddflow as dd
from ddflow.connectors.attached import TableChanges, TableShape, TargetRecord
from ddflow.connectors.delta import DeltaLakeTable
from ddflow.connectors.modes import folded
from ddflow.engine.delivery import Delivery
from ddflow.engine.kept_epochs import EngineEpochs
from ddflow.errors import SinkAhead, SinkFailed, SinkRefused

DAYS = [[(1, "Bern", 5), (2, "Bern", 6), (3, None, 1)], [(1, "Chur", 5), (3, None, 2)], [(2, "Chur", 7)]]
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


def there(path: Path) -> list[tuple[Any, ...]]:
    return sorted((tuple(row.values()) for row in deltalake.DeltaTable(path).to_pyarrow_table().to_pylist()), key=str)


def test_a_table_is_what_the_output_holds(tmp_path: Path) -> None:
    sinks = {name: dd.sinks.delta(tmp_path / name) for name in ("orders", "by_city", "all")}
    with flow().open(tmp_path / "state") as engine:
        days(engine, sinks)
        for name in sinks:
            assert there(tmp_path / name) == held(engine, name), name
        # One commit an epoch, behind the one that made the table.
        assert deltalake.DeltaTable(tmp_path / "by_city").version() == len(DAYS)
        assert engine.sync(sinks, dry=True)["orders"][:2] == (0, 0)
    found = polars.read_delta(str(tmp_path / "by_city")).rows()
    assert sorted(found, key=str) == there(tmp_path / "by_city")
    files = deltalake.DeltaTable(tmp_path / "by_city").file_uris()
    assert sorted(duckdb.read_parquet(files).fetchall(), key=str) == there(tmp_path / "by_city")


@pytest.mark.parametrize("mode", ["changelog", "retract", "debezium", "updates"])
def test_logs_fold_to_what_is_held(tmp_path: Path, mode: Any) -> None:
    sink = dd.sinks.delta(tmp_path / "out", mode=mode)
    with flow().open(tmp_path / "state") as engine:
        days(engine, {"by_city": sink})
        delivery = Delivery(EngineEpochs(engine.calls, "a test"), "by_city", sink)
        rows = folded(mode, delivery.table.read(), delivery.epochs.output_schema("by_city"))
        delivery.close()
        found: dict[tuple[Any, ...], int] = {}
        for row in rows.to_pylist():
            diff = row.pop("_diff")
            found[tuple(row.values())] = found.get(tuple(row.values()), 0) + diff
        assert sorted((row for row, n in found.items() if n), key=str) == held(engine, "by_city")
        assert engine.sync({"by_city": sink}, dry=True)["by_city"][:2] == (0, 0)


def test_types_come_back(tmp_path: Path) -> None:
    values: dict[str, tuple[pa.DataType, list[Any]]] = {
        "b": (pa.bool_(), [True]),
        "u8": (pa.uint8(), [255]),
        "u64": (pa.uint64(), [2**64 - 1]),
        "f": (pa.float64(), [1.5]),
        "d": (pa.decimal128(38, 3), [Decimal("1.500")]),
        "s": (pa.large_string(), ["ü"]),
        "x": (pa.binary(2), [b"\x00\xff"]),
        "t": (pa.timestamp("ms", "Europe/Zurich"), [1]),
        "l": (pa.list_(pa.uint32()), [[1, None]]),
        "r": (pa.struct({"a": pa.int32()}), [{"a": 1}]),
    }
    rows = pa.table({name: pa.array([*given, None], kind) for name, (kind, given) in values.items()})
    opened = dd.sinks.delta(tmp_path / "t").open(TableShape("t", rows.schema, ("b",)))
    opened.prepare()
    opened.write(TableChanges(rows.select(["b"]), rows, 2), TargetRecord("0" * 32, "t", 1, "f" * 32), None)
    again = dd.sinks.delta(tmp_path / "t").open(TableShape("t", rows.schema, ("b",)))
    again.prepare()
    assert again.written() == TargetRecord("0" * 32, "t", 1, "f" * 32)
    assert sorted(again.read().to_pylist(), key=str) == sorted(rows.to_pylist(), key=str)
    other = pa.schema({"b": pa.bool_(), "at": pa.timestamp("ns")})
    with pytest.raises(SinkRefused, match="it cannot hold 'at', timestamp"):
        dd.sinks.delta(tmp_path / "u").open(TableShape("t", other, ("b",))).prepare()
    assert not (tmp_path / "u").exists()


def test_a_lost_answer_writes_nothing_twice(tmp_path: Path, monkeypatch: Any) -> None:
    write, failed = DeltaLakeTable.write, []

    def lost(self: Any, *given: Any) -> None:
        write(self, *given)
        if not failed:
            failed.append(1)
            raise SinkFailed("write", "the answer was lost", "wait")

    monkeypatch.setattr(DeltaLakeTable, "write", lost)
    sinks = {"by_city": dd.sinks.delta(tmp_path / "out", mode="updates")}
    with flow().open(tmp_path / "state") as engine:
        days(engine, sinks, DAYS[:1])
        assert failed and deltalake.DeltaTable(tmp_path / "out").count() == 2


def test_of_two_writers_one_commits(tmp_path: Path) -> None:
    schema = pa.schema({"id": pa.int64()})
    rows, first = pa.table({"id": [1]}), TargetRecord("0" * 32, "t", 1, "f" * 32)
    one, two = (dd.sinks.delta(tmp_path / "t").open(TableShape("t", schema, ("id",))) for _ in range(2))
    one.prepare()
    stale = deltalake.DeltaTable(tmp_path / "t")
    one.write(TableChanges(rows, rows, 1), first, None)
    two._table = lambda: stale  # type: ignore[attr-defined]  # it looked before the other wrote
    with pytest.raises(SinkFailed):
        two.write(TableChanges(rows, rows, 1), first._replace(state="1" * 32), None)
    del two._table  # type: ignore[attr-defined]
    with pytest.raises(SinkAhead, match="another process writes there"):
        two.write(TableChanges(rows, rows, 1), first._replace(state="1" * 32), None)
    assert there(tmp_path / "t") == [(1,)]


def test_what_is_not_ours_is_refused_and_adopted(tmp_path: Path) -> None:
    deltalake.write_deltalake(tmp_path / "out", pa.table({"city": ["Genf"], "n": [1], "total": [1]}))
    sinks = {"by_city": dd.sinks.delta(tmp_path / "out")}
    with flow().open(tmp_path / "state") as engine:
        with pytest.raises(SinkRefused, match="adopt"):
            days(engine, sinks, DAYS[:1])
        engine.sync(sinks, adopt=True)
        assert there(tmp_path / "out") == held(engine, "by_city")
    with (
        flow().open(tmp_path / "other") as engine,
        pytest.raises(SinkRefused, match="it is written by the state with the id"),
    ):
        days(engine, sinks, DAYS[:1])
    for columns, says in (({"city": [1]}, "'city' is int64, we write string"), ({"more": ["x"]}, "columns that we do")):
        deltalake.write_deltalake(tmp_path / says, pa.table(columns))
        with flow().open(tmp_path / f"{says} state") as engine, pytest.raises(SinkRefused, match=says):
            days(engine, {"by_city": dd.sinks.delta(tmp_path / says)}, DAYS[:1])


def test_a_new_column_is_added(tmp_path: Path) -> None:
    def opened(*names: str) -> Any:
        shape = TableShape("t", pa.schema([(name, pa.int64()) for name in names]), ("id",))
        return dd.sinks.delta(tmp_path / "t", storage_options={"secret": "hush"}).open(shape)

    first = TargetRecord("0" * 32, "t", 1, "f" * 32)
    one = opened("id")
    one.prepare()
    one.write(TableChanges(pa.table({"id": [1]}), pa.table({"id": [1]}), 1), first, None)
    two, rows = opened("id", "n"), pa.table({"id": [2], "n": [5]})
    two.prepare()
    two.write(TableChanges(rows.select(["id"]), rows, 1), first._replace(epoch=2), first)
    assert there(tmp_path / "t") == [(1, None), (2, 5)]
    assert "hush" not in repr(dd.sinks.delta("t", storage_options={"secret": "hush"}))
