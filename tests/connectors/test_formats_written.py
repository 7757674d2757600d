"""Test outputs as messages and as columns of each mode: they fold to the contents and read back exactly.

hypothesis draws the updates, and a dict sums them. ``dd.formats.debezium`` and, as an independent witness, Python's
JSON read the messages.
"""

from __future__ import annotations

import datetime
import json
from collections import Counter
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from chance import effort
from hypothesis import given, strategies as st
from messages import raises

import ddflow as dd
from ddflow.connectors.modes import parse_change_messages, read_rows_with_diff
from ddflow.errors import NotUnique, SinkRefused, SpecError

ROWS = pa.schema({"id": pa.int64(), "city": pa.string(), "n": pa.decimal128(6, 2)})
TYPES: dict[pa.DataType, list[Any]] = {
    pa.bool_(): [True, False],
    pa.int8(): [-128, 127],
    pa.uint64(): [0, 2**64 - 1],
    pa.int64(): [-(2**63), 2**63 - 1],
    pa.float64(): [1.5, float("inf"), float("-inf"), 1e300, 5e-324, -0.0],
    pa.decimal128(38, 5): [Decimal("-123456789012345678901234567890123.45678")],
    pa.string(): ["", "Bern", 'a "quote" \\ \n \x01 ü 𝄞'],
    pa.binary(): [b"", b"\x00\xff", b"abc"],
    pa.binary(3): [b"abc"],
    pa.date32(): [datetime.date(1, 1, 1), datetime.date(2026, 11, 24)],
    pa.time64("us"): [datetime.time(23, 59, 59, 999999)],
    pa.timestamp("us"): [datetime.datetime(1900, 1, 1, 0, 0, 0, 1)],
    pa.timestamp("ms", "UTC"): [datetime.datetime(2026, 1, 2, 3, 4, 5, 6000, datetime.UTC)],
    pa.duration("us"): [datetime.timedelta(microseconds=-5)],
    pa.list_(pa.int64()): [[], [1, None, 3]],
    pa.struct({"x": pa.decimal128(5, 2), "y": pa.list_(pa.string())}): [{"x": Decimal("1.50"), "y": ["a", None]}],
    pa.uuid(): [bytes(range(16))],
}


@st.composite
def epochs(draw: st.DrawFn) -> tuple[dict[Any, Any], pa.Table, dict[Any, Any]]:
    """Rows by key, updates that change them, some of which cancel out, and the rows by key after that."""
    cells = st.tuples(
        st.sampled_from(["Bern", "Chur", None]), st.sampled_from([None, Decimal("1.50"), Decimal("-2.00")])
    )
    keys = st.one_of(st.none(), st.integers(0, 5))
    before, after = draw(st.dictionaries(keys, cells)), draw(st.dictionaries(keys, cells))
    changed = [((key, *row), -1) for key, row in before.items()] + [((key, *row), 1) for key, row in after.items()]
    passing = draw(st.lists(st.tuples(keys, *[st.just(each) for each in ("Thun", None)]), max_size=3))
    changed += [(row, diff) for row in passing for diff in (1, -1)]
    rows = [(*row, draw(st.integers(1, 3)), diff) for row, diff in draw(st.permutations(changed))]
    schema = pa.schema([*ROWS, pa.field("_time", pa.int64()), pa.field("_diff", pa.int64())])
    updates = pa.table(
        [pa.array(column, field.type) for column, field in zip(zip(*rows, strict=True), schema, strict=True)]
        if rows
        else [pa.array([], f.type) for f in schema],
        schema=schema,
    )
    return before, updates, after


@effort(200)
@given(epochs(), st.sampled_from(["debezium", "changelog", "retract"]), st.booleans())
def test_what_is_written_folds_to_what_changed(
    drawn: tuple[dict[Any, Any], pa.Table, dict[Any, Any]], mode: Any, keyed: bool
) -> None:
    before, updates, after = drawn
    made = dd.formats.write(updates, mode, key="id" if keyed else None)
    found = Counter[Any]((key, *row) for key, row in before.items())
    for *row, diff in (tuple(each.values()) for each in read_rows_with_diff(mode, made, updates.schema).to_pylist()):
        found[tuple(row)] += diff
        assert found[tuple(row)] >= 0, "what comes to a key stands behind what goes from it"
    assert +found == Counter((key, *row) for key, row in after.items())
    changed = {key for key in before.keys() | after.keys() if before.get(key) != after.get(key)}
    if mode == "debezium" and keyed:
        ops = {json.loads(each["key"])["id"]: json.loads(each["value"])["op"] for each in made.to_pylist()}
        assert ops == {key: "c" if key not in before else "u" if key in after else "d" for key in changed}


@effort(100)
@given(epochs())
def test_upserts_say_what_each_changed_key_has_now(drawn: tuple[dict[Any, Any], pa.Table, dict[Any, Any]]) -> None:
    before, updates, after = drawn
    found = {row.pop("id"): row for row in dd.formats.write(updates, "upsert", key=["id"]).to_pylist()}
    changed = {key for key in before.keys() | after.keys() if before.get(key) != after.get(key)}
    none = {"city": None, "n": None, "_deleted": True}
    now = {
        key: dict(zip(("city", "n"), after[key], strict=True)) | {"_deleted": False} for key in changed & after.keys()
    }
    assert found == {key: now.get(key, none) for key in changed}


@pytest.mark.parametrize("kind", TYPES, ids=str)
def test_values_read_back_exactly(kind: pa.DataType) -> None:
    values = [None, *TYPES[kind]]
    flow = dd.Flow()
    schema = {"id": pa.int64(), "v": kind}
    of = flow.upserts("rows", schema, dd.Upsert(key="id"), format=dd.formats.debezium(decimals="string"))
    flow.output("rows", of)
    column = pa.array(values, pa.binary(16)) if kind == pa.uuid() else pa.array(values, kind)
    column = pa.ExtensionArray.from_storage(kind, column) if kind == pa.uuid() else column
    ids, ones = pa.array(range(len(values))), pa.array([1] * len(values))
    updates = pa.table({"id": ids, "v": column, "_time": ones, "_diff": ones})
    messages = dd.formats.write(updates, "debezium", key="id", output="rows")
    with flow.open() as engine:
        made = engine.step({"rows": messages}, time=1)["rows"]
    assert made.sort_by("id").select(["id", "v"]).equals(updates.select(["id", "v"]))
    assert (
        parse_change_messages(messages, updates.select(["id", "v"]).schema).column("v").combine_chunks().equals(column)
    )


def test_a_row_that_is_there_several_times_is_written_so_often() -> None:
    updates = pa.table({"id": [1, 2], "_time": [5, 5], "_diff": [3, -2]})
    made = [json.loads(text) for text in dd.formats.write(updates, "debezium", output="ids")["value"].to_pylist()]
    assert [(each["op"], each["before"], each["after"]) for each in made] == [
        *[("c", None, {"id": 1})] * 3,
        *[("d", {"id": 2}, None)] * 2,
    ]
    source = {"connector": "ddflow", "name": "ids", "db": "", "schema": "", "table": "ids", "epoch": 5}
    assert made[0]["source"] == source
    assert dd.formats.write(updates, "retract")["_retract"].to_pylist() == [True, True, False, False, False]
    assert dd.formats.write(updates, "changelog", epoch=9)["_commit_version"].to_pylist() == [9] * 5
    for at in (None, datetime.datetime(2026, 11, 25, 22, tzinfo=datetime.UTC)):
        rows = dd.formats.write(updates, "changelog", committed=at)
        assert rows["_commit_timestamp"].to_pylist() == [at] * 5


def test_several_rows_of_a_key_are_no_update() -> None:
    updates = pa.table({"id": [1, 1, 1], "n": [1, 2, 3], "_time": [1, 1, 1], "_diff": [-1, 1, 1]})
    ops = [json.loads(text)["op"] for text in dd.formats.write(updates, "debezium", key="id")["value"].to_pylist()]
    assert ops == ["d", "c", "c"]
    with raises(NotUnique):
        dd.formats.write(updates, "upsert", key="id")


def test_more_messages_than_one_chunk() -> None:
    n = 150_000
    ids = pa.array(range(n))
    updates = pa.table({"id": ids, "_time": pa.array([1] * n), "_diff": pa.array([1] * n)})
    made = dd.formats.write(updates, "debezium", key="id")
    assert made.column("key").to_pylist()[::50_000] == ['{"id":0}', '{"id":50000}', '{"id":100000}']
    assert made.num_rows == n and dd.formats.write(updates.slice(0, 0), "debezium", key="id").num_rows == 0


@pytest.mark.parametrize(
    ("mode", "options"),
    [
        ("upsert", {}),
        ("updates", {}),
        ("debezium", {"key": "ids"}),
    ],
)
def test_what_cannot_be_written_is_refused(mode: Any, options: dict[str, Any]) -> None:
    with raises(SpecError):
        dd.formats.write(pa.table({"id": [1], "_time": [1], "_diff": [1]}), mode, **options)


def test_messages_of_others_are_not_read_back() -> None:
    with raises(SinkRefused):
        parse_change_messages(pa.table({"value": ["{"]}), ROWS)
    with raises(SinkRefused):
        parse_change_messages(pa.table({"value": ['{"before":null,"after":{"id":"x"}}']}), ROWS)
