"""Test values and names that are easily confused, in tables of each kind: replaced by key and read back."""

from __future__ import annotations

import math
from datetime import UTC, datetime, time as clock, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from messages import raises
from test_targets_bad import sink

from ddflow.connectors.api import OpenSink, TableChanges, TableShape, TargetRecord
from ddflow.errors import SinkRefused

VALUES: list[tuple[pa.DataType, list[Any]]] = [
    (pa.float64(), [math.nan, None, 0.0, math.inf]),
    (pa.float32(), [math.nan, None, 1.5]),
    (pa.list_(pa.float64()), [[math.nan, 1.5], [], None]),
    (pa.time64("us"), [clock(1, 2, 3, 4), None, clock(0)]),
    (pa.time32("s"), [clock(1, 2, 3), None]),
    (pa.time64("ns"), [1, None, 86_399_999_999_999]),
    (pa.duration("us"), [timedelta(days=-1, microseconds=1), None, timedelta(0)]),
    (pa.duration("ns"), [1, None, -(2**62)]),
    (pa.timestamp("us", "Europe/Zurich"), [datetime(2026, 10, 25, 0, 30, tzinfo=UTC), None, datetime(1700, 1, 1)]),
    (pa.string(), ["", "NULL", "a'\"\\\n\\.\n", None]),
]
REFUSED = {"duckdb": {"duration"}, "delta": {"duration", "time32", "time64"}, "iceberg": {"duration", "time64[ns]"}}


def record(epoch: int) -> TargetRecord:
    return TargetRecord("0" * 32, "t", epoch, "f" * 32)


def give(table: OpenSink, epoch: int, rows: pa.Table, key: str) -> None:
    """Replace rows by their key."""
    before = record(epoch - 1) if epoch > 1 else None
    table.write(TableChanges(rows.select([key]), rows, rows.num_rows), record(epoch), before)


@pytest.mark.drawn(24)
@pytest.mark.parametrize("kind", ["sqlite", "duckdb", "delta", "iceberg"])
@pytest.mark.parametrize(("of", "values"), VALUES, ids=lambda each: str(each) if isinstance(each, pa.DataType) else "")
def test_values_come_back_and_are_told_apart_as_keys(kind: str, of: Any, values: list[Any], tmp_path: Path) -> None:
    rows = pa.table({"k": pa.array(values, of), "n": list(range(len(values)))})
    table = sink(kind, tmp_path).open(TableShape("t", rows.schema, ("k",)))
    if any(str(of).startswith(each) for each in REFUSED.get(kind, ())):
        with raises(SinkRefused):
            table.prepare()
        return
    table.prepare()
    give(table, 1, rows, "k")
    if not pa.types.is_nested(of):
        for number in range(len(values)):
            again = rows.slice(number, 1).set_column(1, "n", pa.array([100 + number]))
            give(table, number + 2, again, "k")
    found = table.read().sort_by("n")
    table.close()
    # Not `equals`, to which NaN is nothing's like.
    assert repr(found.column("k").to_pylist()) == repr(rows.column("k").to_pylist())


@pytest.mark.parametrize("name", ["given", "t", "select", 'a "b"', "'; drop table t; --", "a.b", "?%s{}"])
@pytest.mark.parametrize("kind", ["sqlite", "duckdb"])
def test_a_table_may_have_any_name(kind: str, name: str, tmp_path: Path) -> None:
    rows = pa.table({name: [1, 2], "given": ["a", "b"]} if name != "given" else {name: [1, 2]})
    made = sink(kind, tmp_path)
    table = type(made)(made.path, name).open(TableShape("t", rows.schema, (name,)))
    table.prepare()
    give(table, 1, rows, name)
    give(table, 2, rows.slice(1), name)
    assert table.read().sort_by(name).equals(rows)
    table.close()
