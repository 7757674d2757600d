"""Test a feed that Debezium's engine recorded from a real Postgres, against Postgres' final tables.

`recordings/record_debezium.py` makes the recording: every type and every kind of change, under five sets of settings.
"""

from __future__ import annotations

import gzip
import json
import re
from collections.abc import Iterable
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from functools import cache
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from messages import raises

import ddflow as dd

FILE = Path(__file__).parent / "recordings" / "debezium_postgres.jsonl.gz"
PAIRS = {"a": pa.string(), "b": pa.int32(), "v": pa.string()}
EVERYTHING = {
    **{"id": pa.int64(), "b": pa.bool_(), "i2": pa.int16(), "i4": pa.int32(), "f4": pa.float32(), "f8": pa.float64()},
    **{"n": pa.decimal128(12, 2), "nf": pa.decimal128(20, 6), "cash": pa.decimal128(12, 2)},
    **{"t": pa.string(), "vc": pa.string(), "c": pa.string(), "bin": pa.binary(), "d": pa.date32()},
    **{"tm": pa.time64("us"), "tm3": pa.time32("ms"), "ttz": pa.time64("us"), "ts": pa.timestamp("us")},
    **{"ts3": pa.timestamp("ms"), "tstz": pa.timestamp("us", "UTC"), "iv": pa.duration("us"), "u": pa.uuid()},
    **{"j": pa.string(), "jb": pa.string(), "ia": pa.list_(pa.int32()), "ta": pa.list_(pa.string())},
    **{"mood": pa.string(), "net": pa.string(), "big": pa.string()},
}
OPTIONS: dict[str, dict[str, Any]] = {
    "bare": {"unavailable": True},
    "schema": {"unavailable": True},
    "connect": {},
    "iso": {"unavailable": True, "decimals": "string", "binary": "hex"},
    "flat": {"unavailable": True, "decimals": "string", "binary": "base64-url-safe", "flattened": True},
}
# `ExtractNewRecordState` drops truncates, so flattened pairs do not add up to their table.
CASES = [(run, table) for run in OPTIONS for table in ("everything", "pairs") if (run, table) != ("flat", "pairs")]
COARSE = {"connect": 1000}
"""Under `time.precision.mode=connect` times have milliseconds, so what Postgres says is cut there."""


@cache
def lines() -> list[dict[str, Any]]:
    return [json.loads(line) for line in gzip.decompress(FILE.read_bytes()).splitlines()]


def messages(run: str, *topics: str) -> pa.Table:
    found = [each for each in lines() if each["run"] == run and each.get("topic") in topics]
    columns = {name: pa.array([each[name] for each in found], pa.string()) for name in ("key", "value", "topic")}
    return pa.table({**columns, "partition": [0] * len(found), "offset": range(len(found))})


def flow_of(run: str, table: str) -> dd.Flow:
    flow, columns = dd.Flow(), EVERYTHING if table == "everything" else PAIRS
    key = ["id"] if table == "everything" else ["a", "b"]
    format = dd.formats.debezium(table=table if run != "flat" else None, **OPTIONS[run])
    flow.output("t", flow.upserts("t", columns, dd.Upsert(key=key), format=format))
    return flow


def of_postgres(name: str, value: Any, run: str) -> Any:
    """A value of Postgres' own JSON as Python has ours."""
    kind, coarse = EVERYTHING.get(name, pa.string()), COARSE.get(run, 1)
    if value is None or pa.types.is_nested(kind):
        return value
    if pa.types.is_decimal(kind):
        return Decimal(re.sub(r"[$,]", "", str(value)))
    if pa.types.is_floating(kind):
        return float(value)
    if pa.types.is_date(kind):
        return date.fromisoformat(value)
    if pa.types.is_duration(kind):
        return timedelta(days=1, hours=2, minutes=3, seconds=4)
    if name == "ttz":
        return (datetime.fromisoformat(f"2020-01-01T{value}").astimezone(UTC)).time()
    if pa.types.is_time(kind):
        made = time.fromisoformat(value)
        return made.replace(microsecond=made.microsecond // coarse * coarse)
    if pa.types.is_timestamp(kind):
        at = datetime.fromisoformat(value)
        return at if at.tzinfo else at.replace(microsecond=at.microsecond // coarse * coarse)
    if pa.types.is_binary(kind):
        return bytes.fromhex(value.removeprefix("\\x"))
    if name in ("j", "jb"):
        return value
    return str(value) if isinstance(value, str) else value


def shown(name: str, value: Any) -> Any:
    if name in ("j", "jb") and isinstance(value, str):
        return json.loads(value)
    if isinstance(value, float) and value != value:
        return "NaN"
    return str(value) if name == "u" and value is not None else value


def expected(run: str, table: str) -> list[dict[str, Any]]:
    (found,) = (each["rows"] for each in lines() if each["run"] == run and each.get("table") == table)
    return in_order({n: of_postgres(n, value, run) for n, value in row.items()} for row in found)


def in_order(rows: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    shown_rows = [{name: shown(name, value) for name, value in row.items()} for row in rows]
    return sorted(shown_rows, key=lambda row: str([row.get(name) for name in ("id", "a", "b")]))


def held(engine: dd.Engine) -> list[dict[str, Any]]:
    return in_order(engine.read("t").drop_columns(["_diff"]).to_pylist())


@pytest.mark.drawn(9)
@pytest.mark.filterwarnings("ignore:.* no message so far is of")  # the first steps have other tables' messages
@pytest.mark.parametrize("size", [1000, 7, 1])
@pytest.mark.parametrize(("run", "table"), CASES)
def test_the_feed_adds_up_to_the_table(run: str, table: str, size: int) -> None:
    topics = (
        [f"shop.public.{table}"] if run == "flat" else ["shop.public.everything", "shop.public.pairs", "shop.message"]
    )
    feed = messages(run, *topics)
    assert len(feed) > 10
    with flow_of(run, table).open() as engine:
        for begin in range(0, len(feed), size):
            engine.step({"t": feed.slice(begin, size)})
        assert held(engine) == expected(run, table)
        if table == "everything":
            engine.step({"t": feed})
            assert held(engine) == expected(run, table)


def test_every_kind_of_change_was_recorded() -> None:
    values = [json.loads(each["value"]) for each in lines() if each["run"] == "bare" and each.get("value")]
    assert {each["op"] for each in values} == set("rcudtm")
    assert any(each.get("key") and each["value"] is None for each in lines() if "key" in each)
    assert any(each["op"] == "u" and each["after"].get("big") == "__debezium_unavailable_value" for each in values)


def test_without_the_option_an_unavailable_value_is_named() -> None:
    flow = dd.Flow()
    format = dd.formats.debezium(table="everything")
    flow.output("t", flow.upserts("t", EVERYTHING, dd.Upsert(key="id"), format=format))
    with flow.open() as engine, raises(dd.errors.BadMessage):
        engine.step({"t": messages("bare", "shop.public.everything")})
