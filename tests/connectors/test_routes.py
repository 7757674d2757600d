"""Test topics and dumps of several tables: each table feeds one input, and messages of unlisted tables are errors."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from messages import raises
from test_formats_recorded import EVERYTHING, OPTIONS, PAIRS, expected, in_order, messages

import ddflow as dd
from ddflow.connectors.formats.routes import split_messages_by_input
from ddflow.errors import BadMessage, SpecError

BOTH = {"public.everything": "everything", "public.pairs": "pairs"}
COLUMNS = {"id": pa.int64(), "v": pa.string()}


def flow_of(run: str) -> dd.Flow:
    flow = dd.Flow()
    for name, columns, key in (("everything", EVERYTHING, ["id"]), ("pairs", PAIRS, ["a", "b"])):
        format = dd.formats.debezium(**OPTIONS[run])
        flow.output(name, flow.upserts(name, columns, dd.Upsert(key=key), format=format))
    return flow


@pytest.mark.parametrize("run", ["bare", "schema", "connect", "iso"])
def test_a_recorded_feed_of_two_tables_adds_up_to_both(run: str) -> None:
    feed = messages(run, "shop.public.everything", "shop.public.pairs", "shop.message")
    one = feed.set_column(feed.schema.get_field_index("topic"), "topic", pa.array(["shop"] * feed.num_rows))
    with flow_of(run).open() as engine:
        for begin in range(0, one.num_rows, 50):
            (batch,) = one.slice(begin, 50).combine_chunks().to_batches()
            given = split_messages_by_input(batch, BOTH, "error", "read the feed")
            if given:
                engine.step({name: [some] for name, some in given.items()})
        for name in BOTH.values():
            assert in_order(engine.read(name).drop_columns(["_diff"]).to_pylist()) == expected(run, name)


def two() -> dd.Flow:
    flow = dd.Flow()
    for name, bad in (("left", "drop"), ("right", "stop")):
        flow.output(name, flow.upserts(name, COLUMNS, dd.Upsert(key="id"), format=dd.formats.debezium(on_bad=bad)))  # type: ignore[arg-type]
    return flow


def change(table: str, id: int, op: str = "c") -> str:
    row = {"id": id, "v": table}
    source = {"db": "shop", "schema": "public", "table": table, "lsn": id}
    return json.dumps({"op": op, "before": row, "after": None if op == "d" else row, "source": source})


def landed(tmp_path: Path, *lines: str) -> Path:
    (tmp_path / "in.jsonl").write_text("\n".join(lines))
    return tmp_path / "in.jsonl"


def held(engine: Any, name: str) -> list[int]:
    return sorted(row["id"] for row in engine.read(name).to_pylist())


def test_a_dump_by_lines_feeds_an_input_for_each_table(tmp_path: Path) -> None:
    lines = [change("a", 1), change("b", 2), change("a", 3), change("b", 2, "d"), change("c", 9), "no JSON"]
    path, tables = landed(tmp_path, *lines), {"public.a": "left", "shop.public.b": "right"}
    with two().open(tmp_path / "state") as engine:
        with raises(BadMessage):
            engine.run({"dump": dd.sources.files(path, lines=True, tables=tables)})
        assert engine.epoch == 0
    with two().open(tmp_path / "state") as engine:
        done = engine.run({"dump": dd.sources.files(path, lines=True, tables=tables, others="ignore")})
        assert (held(engine, "left"), held(engine, "right")) == ([1, 3], [])
        # What cannot be read goes to the first input, which drops such here.
        assert done.rows == 5 and engine.verdicts.counts["bad"] == 1
        assert engine.run({"dump": dd.sources.files(path, lines=True, tables=tables)}).epochs == 0


def test_a_tombstone_goes_where_its_key_says() -> None:
    key = json.dumps({"id": 1, "__dbz__physicalTableIdentifier": "shop.public.b"})
    columns = {"value": pa.array([None, None], pa.binary()), "key": pa.array([b'{"id": 1}', key.encode()], pa.binary())}
    batch = pa.record_batch({**columns, "partition": np.zeros(2, int), "offset": np.arange(2)})
    given = split_messages_by_input(batch, {"public.a": "left", "public.b": "right"}, "error", "read t")
    assert {name: some.column("offset").to_pylist() for name, some in given.items()} == {"right": [1]}


@pytest.mark.parametrize(
    ("message", "table"),
    [
        ({"database": "shop", "table": "a", "type": "insert", "data": {"id": 1}}, "shop.a"),
        ({"database": "shop", "table": "a", "type": "INSERT", "data": [{"id": "1"}]}, "a"),
        ({"action": "I", "schema": "public", "table": "a", "columns": []}, "public.a"),
        ({"id": 1, "__table": "a", "__op": "c"}, "a"),
        ({"id": 1, "__source_table": "a", "__source_schema": "s"}, "s.a"),
        ({"schema": {"type": "struct"}, "payload": {"op": "c", "source": {"db": "d", "table": "a"}}}, "d.a"),
    ],
)
def test_every_format_names_its_table(message: Any, table: str) -> None:
    batch = pa.record_batch({"value": [json.dumps(message)]})
    assert list(split_messages_by_input(batch, {"other": "x", table: "mine"}, "error", "read t")) == ["mine"]
    with raises(BadMessage):
        split_messages_by_input(batch, {"other": "x"}, "error", "read t")
    assert not split_messages_by_input(batch, {"other": "x"}, "ignore", "read t")


def test_what_is_of_no_table_is_no_error() -> None:
    said = [{"op": "m", "source": {"table": ""}}, {"action": "B"}, {"action": "C"}]
    batch = pa.record_batch({"value": [json.dumps(each) for each in said]})
    assert not split_messages_by_input(batch, {"a": "x"}, "error", "read t")


def test_options_that_are_none_are_refused() -> None:
    with raises(SpecError):
        dd.sources.kafka("broker:9092", "t", others="drop")  # type: ignore[arg-type]
    with raises(SpecError):
        dd.sources.kafka("broker:9092", "t", tables={})
    with raises(SpecError):
        dd.sources.files("in.csv", tables={"a": "x"})
    assert dd.sources.kafka("broker:9092", "t", tables=BOTH).inputs("dump") == ("everything", "pairs")
