"""Test lake files that many tasks stage and one process commits: invisible before the commit, and counted once."""

from __future__ import annotations

from copy import deepcopy
from pathlib import Path

import deltalake
import pyarrow as pa
import pytest
from pyiceberg.catalog import load_catalog

import ddflow as dd
from ddflow.connectors.api import TableChanges, TableShape, TargetRecord
from ddflow.errors import SinkAhead


def test_many_stage_and_one_commits(tmp_path: Path) -> None:
    columns = {"id": pa.int64(), "city": pa.string(), "at": pa.timestamp("us", "UTC"), "u": pa.uint32()}
    shape = TableShape("t", pa.schema([*columns.items()]), None)
    opened = dd.sinks.delta(tmp_path / "t", mode="changelog").open(shape)
    opened.prepare()
    staging = opened.staging()
    assert staging is not None
    given = [pa.table({"id": [n, None], "city": ["ü", None], "at": [n, 0], "u": [2**32 - 1, 0]}) for n in range(3)]
    rows = [each.cast(shape.schema) for each in given]
    fragments = [deepcopy(staging.stage)(each) for each in rows]
    staging.stage(rows[0])  # in vain
    assert opened.read().num_rows == 0
    first = TargetRecord("0" * 32, "t", 1, "f" * 32)
    for _ in range(2):  # the answer was lost
        staging.append(fragments, first, None)
    assert opened.written() == first and deltalake.DeltaTable(tmp_path / "t").version() == 1
    assert sorted(opened.read().to_pylist(), key=str) == sorted(pa.concat_tables(rows).to_pylist(), key=str)
    table = deltalake.DeltaTable(tmp_path / "t")
    stats = pa.table(table.get_add_actions(flatten=True)).to_pylist()
    assert sorted((each["num_records"], each["min.id"], each["null_count.id"]) for each in stats) == [
        (2, n, 1) for n in range(3)
    ]
    with pytest.raises(SinkAhead):
        staging.append(fragments, first._replace(epoch=3), first._replace(epoch=2))
    assert len(table.vacuum(0, enforce_retention_duration=False, dry_run=True, full=True)) == 1


def test_a_staged_file_says_how_many_nulls_all_of_it_has(tmp_path: Path) -> None:
    shape = TableShape("t", pa.schema({"id": pa.int64()}), None)
    opened = dd.sinks.delta(tmp_path / "t", mode="changelog").open(shape)
    opened.prepare()
    staging = opened.staging()
    assert staging is not None
    ids = pa.chunked_array([pa.array(range(1 << 20)), pa.nulls(7, pa.int64())])  # a row group of nulls alone
    staging.append([staging.stage(pa.table({"id": ids}))], TargetRecord("0" * 32, "t", 1, "f" * 32), None)
    table = deltalake.DeltaTable(tmp_path / "t")
    lake = deltalake.QueryBuilder().register("t", table)
    assert pa.table(lake.execute("select id from t where id is null").read_all()).num_rows == 7
    (said,) = pa.table(table.get_add_actions(flatten=True)).to_pylist()
    assert (said["null_count.id"], said["min.id"], said["max.id"]) == (7, 0, (1 << 20) - 1)


def test_a_table_of_others_options_is_given_whole_epochs(tmp_path: Path) -> None:
    deltalake.write_deltalake(tmp_path / "t", pa.table({"id": [1], "city": ["Bern"]}), partition_by=["city"])
    shape = TableShape("t", pa.schema([("id", pa.int64()), ("city", pa.string())]), None)
    opened = dd.sinks.delta(tmp_path / "t", mode="changelog").open(shape)
    opened.prepare()
    assert opened.staging() is None


def test_files_of_iceberg_are_one_snapshot(tmp_path: Path) -> None:
    given = {"type": "sql", "uri": f"sqlite:///{tmp_path}/catalog.db", "warehouse": f"file://{tmp_path}/warehouse"}
    sink = dd.sinks.iceberg("shop.t", catalog=given, mode="changelog")
    shape = TableShape("t", pa.schema({"id": pa.int64(), "city": pa.string(), "u": pa.uint32()}), None)
    opened = sink.open(shape)
    opened.prepare()
    staging = opened.staging()
    assert staging is not None and "warehouse" not in repr(staging.stage).split("metadata=")[0]
    rows = [pa.table({"id": [n, None], "city": ["ü", None], "u": [2**32 - 1, 0]}).cast(shape.schema) for n in range(3)]
    fragments = [deepcopy(staging.stage)(each) for each in rows]
    staging.stage(rows[0])  # in vain
    assert opened.read().num_rows == 0
    first = TargetRecord("0" * 32, "t", 1, "f" * 32)
    for _ in range(2):  # the answer was lost
        staging.append(fragments, first, None)
    table = load_catalog("default", **given).load_table("shop.t")
    assert opened.written() == first and len(table.snapshots()) == 1
    assert sorted(opened.read().to_pylist(), key=str) == sorted(pa.concat_tables(rows).to_pylist(), key=str)
    # Its statistics are those of files that the library writes itself.
    found = table.scan(row_filter="id = 2").plan_files()
    assert [each.file.record_count for each in found] == [2]
    with pytest.raises(SinkAhead):
        staging.append(fragments, first._replace(epoch=3), first._replace(epoch=2))
    opened.write(TableChanges(None, rows[0], 2), first._replace(epoch=2), first)
    assert opened.read().num_rows == 8
