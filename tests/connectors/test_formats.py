"""Test inputs with a message format: events from messages, and unreadable messages.

The values are examples of the formats' documentation: the same row bare, with Connect's schema, and flattened. A dict
that applies one change after the other gives the expected contents of a feed.
"""

from __future__ import annotations

import base64
import json
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from itertools import pairwise, permutations
from pathlib import Path
from typing import Any
from uuid import UUID

import pyarrow as pa
import pytest
from hypothesis import given, settings, strategies as st
from messages import raises

import ddflow as dd
from ddflow.connectors.formats.cells import CellEncoding, cast_cells

COLUMNS = {"id": pa.int64(), "v": pa.string()}
DEBEZIUM = dd.formats.debezium()
HIDDEN = "__debezium_unavailable_value"


def table(messages: list[Any], **more: Any) -> pa.Table:
    """Messages as a consumer gives them: JSON in bytes, None for a tombstone."""
    texts = [m if m is None or isinstance(m, str) else json.dumps(m) for m in messages]
    return pa.table({"value": pa.array([None if t is None else t.encode() for t in texts], pa.binary()), **more})


def flow_of(columns: Any = COLUMNS, format: Any = DEBEZIUM, **spec: Any) -> dd.Flow:
    flow = dd.Flow()
    flow.output("t", flow.upserts("t", columns, dd.Upsert(**{"key": "id", **spec}), format=format))
    return flow


def held(engine: dd.Engine) -> list[dict[str, Any]]:
    """What is there, by key."""
    rows = engine.read("t").drop_columns(["_diff"]).to_pylist()
    return sorted(rows, key=lambda row: str(row["id"]))


def fed(*messages: Any, columns: Any = COLUMNS, format: Any = DEBEZIUM, **spec: Any) -> list[dict[str, Any]]:
    """What is there after one step of some messages."""
    with flow_of(columns, format, **spec).open() as engine:
        engine.step({"t": table(list(messages))})
        return held(engine)


def change(op: str, after: Any = None, before: Any = None, lsn: int | None = None, table: str = "t") -> dict[str, Any]:
    source = {"connector": "postgresql", "schema": "public", "table": table, "lsn": lsn}
    return {"before": before, "after": after, "source": source, "op": op, "ts_ms": 1}


def schema_of(**fields: Any) -> dict[str, Any]:
    """Connect's schema of an envelope whose rows have some fields."""
    row = [
        {"field": name, "optional": True, **(k if isinstance(k, dict) else {"type": k})} for name, k in fields.items()
    ]
    rows = [{"type": "struct", "fields": row, "field": each} for each in ("before", "after")]
    return {"type": "struct", "fields": [*rows, {"type": "string", "field": "op"}], "name": "shop.public.t.Envelope"}


# What the operations do.


def test_every_operation() -> None:
    with flow_of().open() as engine:
        keys = ['{"id": 1}', '{"id": 2}', '{"id": 1}', '{"id": 3}', '{"id": 3}', '{"id": 3}', None]
        step = engine.step(
            {
                "t": table(
                    [
                        change("r", {"id": 1, "v": "read"}, lsn=1),
                        change("c", {"id": 2, "v": "made"}, lsn=2),
                        change("u", {"id": 1, "v": "changed"}, {"id": 1, "v": "never looked at"}, lsn=3),
                        change("c", {"id": 3, "v": "short"}, lsn=4),
                        change("d", None, {"id": 3, "v": "short"}, lsn=5),
                        None,
                        change("m", lsn=6),
                    ],
                    key=keys,
                )
            }
        )
        assert held(engine) == [{"id": 1, "v": "changed"}, {"id": 2, "v": "made"}]
        assert step.verdicts.resolved == 5  # neither the tombstone behind its delete nor `m` is an event


def test_the_retraction_is_the_stored_row() -> None:
    with flow_of().open() as engine:
        engine.step({"t": table([change("c", {"id": 1, "v": "stored"}, lsn=1)])})
        step = engine.step({"t": table([change("d", None, {"id": 1, "v": "another"}, lsn=2)])})
        assert step["t"].to_pylist() == [{"id": 1, "v": "stored", "_time": 2, "_diff": -1}]


@pytest.mark.parametrize(
    "key", ['{"id": 1}', '{"schema": {"type": "struct", "fields": []}, "payload": {"id": 1}}', "1"]
)
def test_a_tombstone_alone_deletes_by_its_key(key: str) -> None:
    with flow_of().open() as engine:
        engine.step({"t": table([change("c", {"id": 1, "v": "x"}, lsn=1), change("c", {"id": 2, "v": "y"}, lsn=9)])})
        # It has no position of its own, and takes that of the message behind it.
        engine.step({"t": table([None, change("c", {"id": 3, "v": "z"}, lsn=12)], key=[key, '{"id": 3}'])})
        assert [row["id"] for row in held(engine)] == [2, 3]


def test_a_changed_key_as_debezium_says_it() -> None:
    before, after = {"id": 1, "v": "x"}, {"id": 7, "v": "x"}
    moved = [change("d", None, before, lsn=5), None, change("c", after, lsn=5)]
    keys = ['{"id": 1}', '{"id": 1}', '{"id": 1}', '{"id": 7}']
    with flow_of().open() as engine:
        engine.step({"t": table([change("c", before, lsn=1), *moved], key=keys)})
        assert held(engine) == [after]


def test_an_update_that_names_another_key_moves_the_row() -> None:
    start = change("c", {"id": 1, "v": "x"}, lsn=1)
    assert fed(start, change("u", {"id": 7, "v": "y"}, {"id": 1, "v": "x"}, lsn=2)) == [{"id": 7, "v": "y"}]
    assert fed(start, change("u", {"id": 1, "v": "y"}, {"id": None}, lsn=2)) == [{"id": 1, "v": "y"}]


def test_keys_of_deletes_come_from_the_message_key_first() -> None:
    with flow_of().open() as engine:
        engine.step({"t": table([change("c", {"id": 1, "v": "x"}, lsn=1)])})
        engine.step({"t": table([change("d", lsn=2)], key=[b'{"id": 1}'])})
        assert held(engine) == []
        with raises(dd.errors.BadMessage):
            engine.step({"t": table([change("d", lsn=3)])})


# Order.


def test_postgres_order_is_the_log_position_then_arrival() -> None:
    late = change("u", {"id": 1, "v": "old"}, lsn=3)
    assert fed(change("c", {"id": 1, "v": "new"}, lsn=5), late) == [{"id": 1, "v": "new"}]
    assert fed(change("r", {"id": 1, "v": "a"}, lsn=5), change("u", {"id": 1, "v": "b"}, lsn=5)) == [
        {"id": 1, "v": "b"}
    ]


def test_mysql_order_is_the_number_of_the_file_then_position_and_row() -> None:
    def at(v: str, file: str, pos: int, row: int) -> dict[str, Any]:
        return {"op": "u", "after": {"id": 1, "v": v}, "source": {"file": file, "pos": pos, "row": row}}

    first, second = (
        at("first", "mysql-bin.000009", 5_000_000_000 % (1 << 32), 0),
        at("second", "mysql-bin.000010", 4, 0),
    )
    third = at("third", "mysql-bin.000010", 4, 1)
    for messages in ([first, second, third], [third, second, first], [second, third, first]):
        assert fed(*messages) == [{"id": 1, "v": "third"}]
    assert fed(second, first) == [{"id": 1, "v": "second"}]


def test_other_connectors_are_ordered_by_offset_or_as_they_come() -> None:
    newest, older = ({"op": "u", "after": {"id": 1, "v": v}, "source": {"change_lsn": "a:b"}} for v in "no")
    with flow_of().open() as engine:
        engine.step({"t": table([newest, older], offset=[9, 8])})
        assert held(engine) == [{"id": 1, "v": "n"}]
    assert fed(newest, older) == [{"id": 1, "v": "o"}]


def test_a_given_order_is_that_of_the_row() -> None:
    columns = {**COLUMNS, "at": pa.int64()}
    rows = [{"id": 1, "v": "new", "at": 9}, {"id": 1, "v": "old", "at": 3}]
    messages = [change("c", row, lsn=n) for n, row in enumerate(rows)]
    assert fed(*messages, columns=columns, order_by="at") == rows[:1]
    gone = change("d", None, {"id": 1, "at": 10}, lsn=1)
    assert fed(messages[0], gone, columns=columns, order_by="at") == []


def test_a_truncate_deletes_what_is_ordered_below_it() -> None:
    with flow_of().open() as engine:
        engine.step({"t": table([change("c", {"id": n, "v": "x"}, lsn=n) for n in (1, 2, 30)])})
        messages = [change("c", {"id": 4, "v": "before"}, lsn=19), change("t", lsn=20)]
        step = engine.step({"t": table([*messages, change("c", {"id": 1, "v": "after"}, lsn=21)])})
        assert held(engine) == [{"id": 1, "v": "after"}, {"id": 30, "v": "x"}]
        assert sorted((row["id"], row["_diff"]) for row in step["t"].to_pylist()) == [(1, -1), (1, 1), (2, -1)]


def test_a_truncate_is_refused_where_it_has_no_time_or_no_order() -> None:
    columns = {**COLUMNS, "at": pa.int64()}
    with flow_of(columns, time="at").open() as engine, raises(dd.errors.WrongMode):
        engine.push({"t": table([change("t", lsn=1)])})
    with raises(dd.errors.BadMessage):
        fed(change("t", lsn=1), columns=columns, order_by="at")


def test_a_truncate_under_a_budget_and_on_durable_state(tmp_path: Path) -> None:
    first = table([change("c", {"id": n, "v": "x" * 50}, lsn=n) for n in range(1, 2000)])
    second = table([change("t", lsn=5000), change("c", {"id": 7, "v": "after"}, lsn=5001)])
    with flow_of().open(tmp_path / "state", memory="16MB") as engine:
        engine.step({"t": first}, epoch=1)
        step = engine.step({"t": second}, epoch=2)
        assert held(engine) == [{"id": 7, "v": "after"}] and step.verdicts["applied"] == 1999
    with flow_of().open(tmp_path / "state") as engine:
        assert engine.step({"t": second}, epoch=2)["t"].num_rows == step["t"].num_rows
        assert held(engine) == [{"id": 7, "v": "after"}]


# Shapes of messages.


def test_with_connects_schema_around_some() -> None:
    schema = schema_of(id="int64", v="string")
    wrapped = {"schema": schema, "payload": change("c", {"id": 1, "v": "in"}, lsn=1)}
    turned = {"payload": change("c", {"id": 3, "v": "turned"}, lsn=1), "schema": schema}
    bare = change("c", {"id": 2, "v": "out"}, lsn=2)
    for some in permutations([wrapped, bare, turned]):
        assert [row["v"] for row in fed(*some)] == ["in", "out", "turned"]
    flat = {"id": pa.int64(), "schema": pa.string()}
    rows = [{"schema": "a", "id": 1}, {"id": 2, "schema": "b"}]
    assert fed(*rows, columns=flat, format=dd.formats.debezium(flattened=True)) == [{"id": 1, "schema": "a"}, rows[1]]


def test_flattened() -> None:
    flat = dd.formats.debezium(flattened=True)
    rows = [{"id": 1, "v": "a", "__lsn": 4}, {"id": 2, "v": "b", "__op": "c", "__source_lsn": 5}]
    gone = {"id": 1, "v": None, "__deleted": "true", "__lsn": 6}
    assert fed(*rows, format=flat) == [{"id": 1, "v": "a"}, {"id": 2, "v": "b"}]
    assert fed(*rows, gone, format=flat) == [{"id": 2, "v": "b"}]
    assert fed(rows[0] | {"__lsn": 9}, gone, format=flat) == [{"id": 1, "v": "a"}]
    with flow_of(format=flat).open() as engine:
        engine.step({"t": table([*rows, None], key=['{"id": 1}', '{"id": 2}', '{"id": 2}'])})
        assert held(engine) == [{"id": 1, "v": "a"}]


def test_structs_as_other_decoders_give_them() -> None:
    values = [
        change("c", {"id": 1, "v": "x"}, {"id": None, "v": None}, lsn=1),
        change("d", {"id": None, "v": None}, {"id": 1, "v": "x"}, lsn=2),
    ]
    for n, left in ((1, [{"id": 1, "v": "x"}]), (2, [])):
        with flow_of().open() as engine:
            engine.step({"t": pa.table({"value": pa.array(values[:n])})})
            assert held(engine) == left


def test_one_table_of_a_topic_of_several() -> None:
    messages = [change("c", {"id": 1, "v": "mine"}, lsn=1), change("c", {"id": 9, "v": 5}, lsn=2, table="u")]
    for name in ("t", "public.t"):
        assert fed(*messages, format=dd.formats.debezium(table=name)) == [{"id": 1, "v": "mine"}]
    with pytest.warns(UserWarning, match="no message so far is of the table 'other.t'"):
        assert fed(*messages, format=dd.formats.debezium(table="other.t")) == []
    with raises(dd.errors.BadMessage):
        fed(*messages)


# Values.

DECIMAL = {"type": "bytes", "name": "org.apache.kafka.connect.data.Decimal", "parameters": {"scale": "2"}}
VARIABLE = {"type": "struct", "name": "io.debezium.data.VariableScaleDecimal"}


def timed(name: str, kind: str = "int64") -> dict[str, str]:
    return {"type": kind, "name": f"io.debezium.time.{name}"}


CELLS: list[tuple[Any, pa.DataType, Any, Any]] = [
    (True, pa.bool_(), "boolean", True),
    (-32768, pa.int16(), "int16", -32768),
    (9007199254740993, pa.int64(), "int64", 9007199254740993),
    (18446744073709551615, pa.uint64(), "int64", 18446744073709551615),
    (1.5, pa.float64(), "double", 1.5),
    ("NaN", pa.float64(), "double", None),
    (0.1, pa.float32(), "float", pa.scalar(0.1, pa.float32()).as_py()),
    ('text with " and \\ and ü', pa.string(), "string", 'text with " and \\ and ü'),
    ('{"a": 1.10}', pa.string(), {"type": "string", "name": "io.debezium.data.Json"}, '{"a": 1.10}'),
    ("c109eae9-187f-4f3a-b1c7-2a1c3e8e0a55", pa.uuid(), "string", UUID("c109eae9-187f-4f3a-b1c7-2a1c3e8e0a55")),
    (base64.b64encode(b"\x00\xff").decode(), pa.binary(), "bytes", b"\x00\xff"),
    ("ASY=", pa.decimal128(10, 2), DECIMAL, Decimal("2.94")),
    ("/w==", pa.decimal128(10, 2), DECIMAL, Decimal("-0.01")),
    ({"scale": 3, "value": "BNI="}, pa.decimal128(10, 3), VARIABLE, Decimal("1.234")),
    (18262, pa.date32(), timed("Date", "int32"), date(2020, 1, 1)),
    (36_930_123_456, pa.time64("us"), timed("MicroTime"), time(10, 15, 30, 123456)),
    (36_930_123_456_000, pa.time64("ns"), timed("NanoTime"), time(10, 15, 30, 123456)),
    (36_930_123, pa.time32("ms"), timed("Time", "int32"), time(10, 15, 30, 123000)),
    (1577836800123456, pa.timestamp("us"), timed("MicroTimestamp"), datetime(2020, 1, 1, 0, 0, 0, 123456)),
    (1577836800123456000, pa.timestamp("ns"), timed("NanoTimestamp"), datetime(2020, 1, 1, 0, 0, 0, 123456)),
    (1577836800123, pa.timestamp("ms"), timed("Timestamp"), datetime(2020, 1, 1, 0, 0, 0, 123000)),
    (
        "2020-01-01T00:00:00.123456Z",
        pa.timestamp("us", "UTC"),
        timed("ZonedTimestamp", "string"),
        datetime(2020, 1, 1, 0, 0, 0, 123456, UTC),
    ),
    ("10:15:30Z", pa.time64("us"), timed("ZonedTime", "string"), time(10, 15, 30)),
    (90_000_000, pa.duration("us"), timed("MicroDuration"), timedelta(seconds=90)),
    ("P1Y2M3DT4H5M6S", pa.string(), timed("Interval", "string"), "P1Y2M3DT4H5M6S"),
    (["a", None], pa.list_(pa.string()), {"type": "array"}, ["a", None]),
    ({"x": 1, "y": "z"}, pa.struct({"x": pa.int32(), "y": pa.string()}), {"type": "struct"}, {"x": 1, "y": "z"}),
    (2021, pa.int32(), timed("Year", "int32"), 2021),
    (None, pa.decimal128(5, 1), "string", None),
]


@pytest.mark.parametrize(("cell", "kind", "told", "value"), CELLS, ids=lambda each: str(each)[:30])
def test_a_value_of_every_type(cell: Any, kind: pa.DataType, told: Any, value: Any) -> None:
    columns = {"id": pa.int64(), "v": kind}
    bare = change("c", {"id": 1, "v": cell}, lsn=1)
    schema = schema_of(id="int64", v=told)
    for message in (bare, {"schema": schema, "payload": bare}):
        (row,) = fed(message, columns=columns)
        assert row["v"] == value or (cell == "NaN" and row["v"] != row["v"])
    (row,) = fed({"id": 1, "v": cell}, columns=columns, format=dd.formats.debezium(flattened=True))
    assert row["v"] == value or (cell == "NaN" and row["v"] != row["v"])


def test_times_of_other_units_and_decimals_of_other_modes() -> None:
    columns = {"id": pa.int64(), "v": pa.timestamp("us")}
    milli = schema_of(id="int64", v={"type": "int64", "name": "org.apache.kafka.connect.data.Timestamp"})
    (row,) = fed({"schema": milli, "payload": change("c", {"id": 1, "v": 1577836800123}, lsn=1)}, columns=columns)
    assert row["v"] == datetime(2020, 1, 1, 0, 0, 0, 123000)
    columns = {"id": pa.int64(), "v": pa.decimal128(12, 2)}
    for mode, cell in (("string", "12.30"), ("double", 12.3), ("precise", "BM4=")):
        rows = fed(change("c", {"id": 1, "v": cell}, lsn=1), columns=columns, format=dd.formats.debezium(decimals=mode))
        assert rows == [{"id": 1, "v": Decimal("12.30")}]
    wide = {"id": pa.int64(), "v": pa.decimal256(60, 0)}
    most = 10**59 - 7
    cell = base64.b64encode(most.to_bytes(26, "big", signed=True)).decode()
    assert fed(change("c", {"id": 1, "v": cell}, lsn=1), columns=wide)[0]["v"] == Decimal(most)
    for mode, cell, value in (("hex", "00ff", b"\x00\xff"), ("base64-url-safe", "-_8=", b"\xfb\xff")):
        columns = {"id": pa.int64(), "v": pa.binary()}
        rows = fed(change("c", {"id": 1, "v": cell}, lsn=1), columns=columns, format=dd.formats.debezium(binary=mode))
        assert rows[0]["v"] == value


@given(st.lists(st.integers(-(10**38) + 1, 10**38 - 1)))
@settings(max_examples=30)
def test_decimals_as_bytes_are_exact(values: list[int]) -> None:
    coded = [v.to_bytes(max((v.bit_length() + 8) // 8, 1), "big", signed=True) for v in values]
    texts = pa.array([base64.b64encode(each).decode() for each in coded], pa.string())
    made, wrong = cast_cells(texts, pa.decimal128(38, 3), CellEncoding())
    assert wrong is None and made.to_pylist() == [Decimal(f"{v}e-3") for v in values]


BAD: list[tuple[Any, pa.DataType, str]] = [
    ("x", pa.int64(), "column 'v' is 'x', which is not a valid int64"),
    (1.5, pa.int64(), "column 'v' is '1.5', which is not a valid int64"),
    (300, pa.int8(), "column 'v' is '300', which is not a valid int8"),
    ("12.345", pa.decimal128(5, 2), "column 'v' is '12.345', which is not a valid decimal128"),
    (base64.b64encode(b"\x7f" * 9).decode(), pa.decimal128(5, 2), "3115487927.03, it is too wide for decimal128(5, 2)"),
    ("2020-13-01", pa.date32(), "which is not a valid date32"),
    ("2020-01-01T00:00:00", pa.timestamp("us", "UTC"), "which is not a valid timestamp"),
    ("2020-01-01T00:00:00.1234567Z", pa.timestamp("us"), "which is not a valid timestamp"),
    ("?", pa.binary(), "which is not a valid binary"),
    ([1, "x"], pa.list_(pa.int64()), "which is not a valid list"),
    (HIDDEN, pa.string(), "column 'v' is unavailable"),
]


@pytest.mark.parametrize(("cell", "kind", "said"), BAD, ids=lambda each: str(each)[:30])
def test_a_value_that_does_not_fit_names_itself_and_its_place(cell: Any, kind: pa.DataType, said: str) -> None:
    good, columns = change("c", {"id": 1, "v": None}, lsn=1), {"id": pa.int64(), "v": kind}
    messages = [good, change("c", {"id": 2, "v": cell}, lsn=2), good]
    with flow_of(columns).open() as engine:
        with pytest.raises(dd.errors.BadMessage) as caught:
            engine.step({"t": table(messages, offset=[7, 8, 9], topic=["shop"] * 3, partition=[0, 3, 0])})
        assert "offset 8 of shop/3: " in str(caught.value) and said in str(caught.value)
        assert held(engine) == []
    dropping = dd.formats.debezium(on_bad="drop")
    with flow_of(columns, dropping).open() as engine:
        step = engine.step({"t": table(messages, offset=[7, 8, 9])})
        assert step.verdicts["bad"] == 1 and held(engine) == [{"id": 1, "v": None}]
        (row,) = step["t.bad"].to_pylist()
        assert row["position"] == "offset 8" and said in row["reason"]
        assert json.loads(row["message"])["after"]["id"] == 2 and (row["_time"], row["_diff"]) == (1, 1)


@pytest.mark.parametrize(
    "message",
    [
        "{",
        "[1]",
        '{"op": "x", "after": {"id": 1}}',
        '{"op": "c", "after": null}',
        '{"status": "BEGIN", "id": "7"}',
    ],
)
def test_what_is_no_event(message: str) -> None:
    with raises(dd.errors.BadMessage):
        fed(change("c", {"id": 1, "v": "x"}, lsn=1), message)
    with flow_of(format=dd.formats.debezium(on_bad="drop")).open() as engine:
        given = table([message, change("c", {"id": 1, "v": "x"}, lsn=1), message])
        step = engine.step({"t": given})
        assert str(step.verdicts) == "applied 1, bad 2"
        assert step["t.bad"]["message"].to_pylist() == [message.encode()] * 2
        with raises(dd.errors.NotReadable):
            engine.read("t.bad")


def test_bytes_that_are_no_text() -> None:
    given = pa.table({"value": [b'{"op": "c", "after": {"id": 1, "v": "x"}}', b"\xff{", b""]})
    with flow_of(format=dd.formats.debezium(on_bad="drop")).open() as engine:
        step = engine.step({"t": given})
        assert step["t.bad"]["reason"].to_pylist() == ["it is not valid UTF-8", "it is not valid JSON"]
        assert step["t.bad"]["message"].to_pylist() == [b"\xff{", b""]


def test_unavailable_values_keep_what_is_stored() -> None:
    columns = {**COLUMNS, "b": pa.binary(), "n": pa.int64()}
    format = dd.formats.debezium(unavailable=True)
    coded = base64.b64encode(HIDDEN.encode()).decode()
    with flow_of(columns, format).open() as engine:
        engine.step({"t": table([change("c", {"id": 1, "v": "long", "b": "AA==", "n": 1}, lsn=1)])})
        hidden = {"v": HIDDEN, "b": coded}
        engine.step({"t": table([change("u", {"id": 1, "n": 2, **hidden}, lsn=2)])})
        assert held(engine) == [{"id": 1, "v": "long", "b": b"\0", "n": 2}]
        engine.step({"t": table([change("u", {"id": 1, "v": None, "b": coded, "n": 2}, lsn=3)])})
        engine.step({"t": table([change("u", {"id": 2, "n": 5, **hidden}, lsn=4)])})
        assert held(engine) == [{"id": 1, "v": None, "b": b"\0", "n": 2}, {"id": 2, "v": None, "b": None, "n": 5}]
        for moved in (change("c", {"id": 9, **hidden}), change("u", {"id": 9, **hidden}, {"id": 1})):
            with raises(dd.errors.BadMessage):
                engine.step({"t": table([change("d", None, {"id": 1}), moved])})
    other = dd.formats.debezium(unavailable=True, placeholder="?")
    rows = [change("c", {"id": 1, "v": "kept"}, lsn=1), change("u", {"id": 1, "v": "?"}, lsn=2)]
    assert fed(*rows, format=other) == [{"id": 1, "v": "kept"}]


# What batches are, and how plans hold formats.


def test_what_messages_may_be() -> None:
    text = json.dumps(change("c", {"id": 1, "v": "x"}, lsn=1))
    for came in (
        [{"value": text}],
        {"value": [text]},
        pa.table({"value": pa.array([text], pa.large_string()), "timestampType": [0]}),
        pa.table({"value": pa.array([text.encode()], pa.binary_view()), "key": pa.array([None], pa.null())}),
        pa.table({"value": pa.array([text]).dictionary_encode()}).to_reader(),
    ):
        with flow_of().open() as engine:
            assert engine.step({"t": came}).verdicts["applied"] == 1
    with flow_of().open() as engine:
        assert engine.step([{"value": text}]).verdicts["applied"] == 1
        assert engine.step({"t": pa.table({"value": pa.array([], pa.binary())})}).verdicts.resolved == 0
        for wrong in ({"values": [text]}, {"value": [1]}):
            with raises(dd.errors.SchemaMismatch):
                engine.step({"t": pa.table(wrong)})
        with raises(dd.errors.SchemaMismatch):
            engine.step({"t": pa.table({"value": [text], "more": [1]})})


@pytest.mark.parametrize(
    "more",
    [
        {"columns": {"id": pa.int64(), "_deleted": pa.bool_()}},
        {"columns": {"id": pa.int64(), "a": pa.int64(), "A": pa.int64()}},
        {"delete": dd.tombstone("v", "D")},
        {"format": "debezium"},
    ],
)
def test_what_a_format_does_not_go_with(more: dict[str, Any]) -> None:
    with raises(dd.errors.SpecError):
        flow_of(**more)


def test_options_that_are_none() -> None:
    for wrong in ({"decimals": "float"}, {"binary": "raw"}, {"on_bad": "ignore"}, {"placeholder": ""}):
        with raises(dd.errors.SpecError):
            dd.formats.debezium(**wrong)
    with raises(dd.errors.SpecError):
        dd.formats.custom("x")  # type: ignore[arg-type]


def test_many_values_that_do_not_fit_are_found_together_and_shown_as_numbers() -> None:
    def coded(number: int) -> str:
        return base64.b64encode(number.to_bytes(4, "big", signed=True)).decode()

    numbers = [99_999, 100_000, -99_999, -100_000] * 500
    rows = [change("c", {"id": n, "v": "!" if n == 8 else coded(each)}, lsn=n) for n, each in enumerate(numbers)]
    with flow_of({"id": int, "v": pa.decimal128(5, 3)}, dd.formats.debezium(on_bad="drop")).open() as engine:
        step = engine.step({"t": table(rows)})
    reasons = step["t.bad"]["reason"].to_pylist()
    assert reasons[:2] == [f"column 'v' is {n}100.000, it is too wide for decimal128(5, 3)" for n in ("", "-")]
    assert (step.verdicts.bad, sum("'!'" not in each for each in reasons)) == (1001, 1000)
    assert "column 'v' is '!', which is not a valid decimal128(5, 3)" in reasons


def test_a_number_that_is_no_time_in_the_declared_unit_is_bad() -> None:
    columns = {"id": int, "v": pa.timestamp("ms")}
    rows = [
        change("c", {"id": n, "v": each}, lsn=n) for n, each in enumerate((1_700_000_000_000, 1_700_000_000_000_000))
    ]
    with flow_of(columns, dd.formats.debezium(on_bad="drop")).open() as engine:
        step = engine.step({"t": table(rows)})
    assert (step.verdicts.applied, step.verdicts.bad) == (1, 1)


def test_fractions_of_many_digits() -> None:
    columns, format = {"id": int, "v": pa.decimal128(30, 12)}, dd.formats.plain_json()
    assert fed('{"id": 1, "v": "123456789012345678.25"}', columns=columns, format=format)[0]["v"] == Decimal(
        "123456789012345678.25"
    )
    assert fed('{"id": 1, "v": 123456789012345678}', columns=columns, format=format)[0]["v"] == 123456789012345678
    assert fed('{"id": 1, "v": 1.5}', columns=columns, format=format)[0]["v"] == Decimal("1.5")
    with raises(dd.errors.BadMessage):
        fed('{"id": 1, "v": 1.2345678901234567890}', columns=columns, format=format)


def test_a_condition_of_ones_own_deletes_as_well() -> None:
    columns = {**COLUMNS, "gone": pa.bool_()}
    rows = [change("c", {"id": n, "v": "x", "gone": gone}, lsn=n) for n, gone in enumerate((True, False, None))]
    assert [row["id"] for row in fed(*rows, columns=columns, delete="gone")] == [1, 2]


def test_a_plan_holds_its_formats(tmp_path: Path) -> None:
    format = dd.formats.debezium(table="t", on_bad="drop", unavailable=True)
    flow = flow_of(format=format)
    assert "format=dd.formats.debezium(on_bad='drop', table='t', unavailable=True)" in str(flow.explain())
    with flow.open(tmp_path / "state") as engine:
        engine.step({"t": table(["{", change("c", {"id": 1, "v": "x"}, lsn=1)])}, epoch=1)
    assert dd.read(tmp_path / "state", "t").num_rows == 1
    with flow_of(format=format).open(tmp_path / "state") as engine:
        again = engine.step({"t": table(["{", change("c", {"id": 1, "v": "x"}, lsn=1)])}, epoch=1)
        assert again["t.bad"].num_rows == 1 and again.verdicts["bad"] == 1
        with pytest.raises(dd.errors.ReplayMismatch):
            engine.step({"t": table([change("c", {"id": 1, "v": "y"}, lsn=1)])}, epoch=1)
    with raises(dd.errors.PlanChanged):
        flow_of(format=dd.formats.debezium(table="u", on_bad="drop", unavailable=True)).open(tmp_path / "state")


def test_a_column_is_added(tmp_path: Path) -> None:
    with flow_of().open(tmp_path / "state") as engine:
        engine.step({"t": table([change("c", {"id": 1, "v": "x", "more": 5}, lsn=1)])})
    with flow_of({**COLUMNS, "more": pa.int64()}).open(tmp_path / "state") as engine:
        engine.step({"t": table([change("c", {"id": 2, "v": "y", "more": 6}, lsn=2)])})
        assert held(engine) == [{"id": 1, "v": "x", "more": None}, {"id": 2, "v": "y", "more": 6}]
        engine.evolve({"later": pa.string()})
        engine.step({"t": table([change("c", {"id": 3, "v": "z", "later": "l"}, lsn=3)])})
        assert held(engine)[2] == {"id": 3, "v": "z", "more": None, "later": "l"}


def test_full_contents_as_messages() -> None:
    with flow_of().open() as engine:
        engine.step({"t": table([change("c", {"id": n, "v": "x"}, lsn=n) for n in (1, 2)])})
        engine.replace("t", table([change("r", {"id": n, "v": "x"}, lsn=9) for n in (2, 3)]))
        assert [row["id"] for row in held(engine)] == [2, 3]


def test_a_log_of_messages_is_verified(tmp_path: Path) -> None:
    log = table([change("c", {"id": n % 3, "v": f"v{n}"}, lsn=n) for n in range(9)])
    with flow_of().open(tmp_path / "state") as engine:
        engine.step({"t": log})
    assert dd.verify(tmp_path / "state", {"t": log}).ok


# Plain JSON, and functions.


def test_plain_json_upserts_rows_and_deletes_by_key() -> None:
    format = dd.formats.plain_json()
    keys = ["1", b"2".decode(), '{"id": 1}', None]
    values = ['{"v": "by key"}', '{"id": 2, "v": "x"}', None, '{"id": 4}']
    with flow_of(format=format).open() as engine:
        engine.step({"t": pa.table({"value": values, "key": keys, "offset": [1, 2, 3, 4]})})
        assert held(engine) == [{"id": 2, "v": "x"}, {"id": 4, "v": None}]
        engine.step({"t": pa.table({"value": ['{"id": 2, "v": "older"}'], "offset": [0]})})
        assert held(engine)[0] == {"id": 2, "v": "x"}
        for wrong in ("5", "{", None):
            with raises(dd.errors.BadMessage):
                engine.step({"t": pa.table({"value": pa.array([wrong], pa.string())})})


def test_a_function_reads_messages() -> None:
    def read(messages: pa.Table) -> pa.Table:
        parts = [line.split("|") for line in messages["value"].to_pylist()]
        made = {"id": [int(p[0]) for p in parts], "v": [p[1] for p in parts], "_deleted": [p[1] == "" for p in parts]}
        return pa.table(made)

    with flow_of(format=dd.formats.custom(read)).open() as engine:
        engine.step({"t": pa.table({"value": ["1|a", "2|b", "1|"], "offset": [5, 6, 7]})})
        assert held(engine) == [{"id": 2, "v": "b"}]
        with raises(dd.errors.BadMessage):
            engine.step({"t": pa.table({"value": ["x|a"]})})
    for wrong in ({"no": [1]}, {"id": ["x"]}):
        flow = flow_of(format=dd.formats.custom(lambda _, wrong=wrong: wrong))
        with flow.open() as engine, raises(dd.errors.BadMessage):
            engine.step({"t": pa.table({"value": ["1|a"]})})


# The law: however a feed is cut, and however often parts of it come again.

OPS = st.lists(st.tuples(st.sampled_from("cudt"), st.integers(0, 4), st.integers(0, 2)), max_size=14)


@given(OPS, st.lists(st.integers(0, 14), max_size=3), st.sampled_from(["bare", "schema", "mixed"]), st.booleans())
@settings(max_examples=40, deadline=None)
def test_a_feed_adds_up_to_its_table(ops: Any, cuts: list[int], shape: str, again: bool) -> None:
    expected: dict[int, str] = {}
    messages, keys = list[Any](), list[Any]()
    for lsn, (op, key, value) in enumerate(ops, 1):
        if op == "t":
            expected.clear()
        elif op == "d":
            expected.pop(key, None)
        else:
            expected[key] = f"v{value}"
        row = {"id": key, "v": f"v{value}"}
        message = change(op, row if op in "cu" else None, {"id": key} if op == "d" else None, lsn)
        if shape == "schema" or (shape == "mixed" and lsn % 2):
            message = {"schema": schema_of(id="int64", v="string"), "payload": message}
        messages += [message, None] if op == "d" else [message]
        keys += [json.dumps({"id": key})] * (2 if op == "d" else 1)
    whole = table(messages, key=pa.array(keys, pa.string()))
    with flow_of().open() as engine:
        ends = sorted({0, len(whole), *(min(cut, len(whole)) for cut in cuts)})
        for begin, end in pairwise(ends):
            engine.step({"t": whole.slice(begin, end - begin)})
        if again and len(whole) and not any(op == "t" for op, _, _ in ops):
            engine.step({"t": whole})
        assert held(engine) == [{"id": key, "v": value} for key, value in sorted(expected.items())]


def test_numbers_that_wal2json_writes_as_text() -> None:
    """As wal2json 2.6 writes them with numeric-data-types-as-string, in both versions: NaN and infinities are there."""
    names, types = ["id", "v", "n"], ["integer", "double precision", "numeric"]
    rows = [
        ["1", "Infinity", "1.10"],
        ["2", "NaN", "12345678901234567.8"],
        ["3", "-Infinity", None],
        ["4", "1e-07", "5"],
    ]
    two = [
        {
            "action": "I",
            "table": "t",
            "columns": [{"name": n, "type": t, "value": v} for n, t, v in zip(names, types, row, strict=True)],
        }
        for row in rows
    ]
    one = [
        {"kind": "insert", "table": "t", "columnnames": names, "columntypes": types, "columnvalues": row}
        for row in rows
    ]
    for messages in (two, [{"change": one}]):
        flow, columns = dd.Flow(), {"id": int, "v": float, "n": pa.decimal128(20, 2)}
        flow.output("t", flow.upserts("t", columns, dd.Upsert(key="id"), format=dd.formats.wal2json()))
        with flow.open() as engine:
            engine.step({"t": {"value": [json.dumps(each) for each in messages]}})
            held = [str(tuple(row.values())[:3]) for row in engine.read("t").sort_by("id").to_pylist()]
        assert held == [
            "(1, inf, Decimal('1.10'))",
            "(2, nan, Decimal('12345678901234567.80'))",
            "(3, -inf, None)",
            "(4, 1e-07, Decimal('5.00'))",
        ]


PLACEHOLDERS: list[tuple[str, pa.DataType, Any]] = [
    ("bytes as a list", pa.list_(pa.int32()), list(HIDDEN.encode())),
    ("bytes as text", pa.string(), list(HIDDEN.encode())),
    ("doubles", pa.list_(pa.float64()), [float(each) for each in HIDDEN.encode()]),
    ("booleans", pa.list_(pa.bool_()), [True] * len(HIDDEN)),
    ("days", pa.list_(pa.date32()), list(HIDDEN.encode())),
    ("decimals", pa.list_(pa.decimal128(9, 0)), [base64.b64encode(bytes([each])).decode() for each in HIDDEN.encode()]),
    (
        "decimals with a scale",
        pa.list_(pa.decimal128(9, 0)),
        [{"scale": 0, "value": base64.b64encode(bytes([each])).decode()} for each in HIDDEN.encode()],
    ),
    ("texts", pa.list_(pa.string()), [HIDDEN]),
    ("texts as text", pa.string(), [HIDDEN]),
    ("bytes within a list", pa.list_(pa.binary()), [base64.b64encode(HIDDEN.encode()).decode()]),
    ("uuids", pa.list_(pa.uuid()), ["b68a35a7-17ad-35b3-af2a-ae46edb4545a"]),
    ("uuids as text", pa.string(), ["b68a35a7-17ad-35b3-af2a-ae46edb4545a"]),
    ("uuids as texts", pa.list_(pa.string()), ["b68a35a7-17ad-35b3-af2a-ae46edb4545a"]),
    ("hstore", pa.struct({"a": pa.string()}), {HIDDEN: HIDDEN}),
    ("hstore as text", pa.string(), {HIDDEN: HIDDEN}),
    ("hstore as JSON", pa.string(), json.dumps({HIDDEN: HIDDEN}, separators=(",", ":"))),
    ("hexadecimal", pa.binary(), HIDDEN.encode().hex()),
]


@pytest.mark.parametrize("name", [name for name, _, _ in PLACEHOLDERS])
def test_placeholders_of_every_type(name: str) -> None:
    kind, cell = next((kind, cell) for each, kind, cell in PLACEHOLDERS if each == name)
    columns, stored = {"id": pa.int64(), "v": kind}, None
    binary = "hex" if name == "hexadecimal" else "base64"
    hidden = change("u", {"id": 1, "v": cell}, lsn=2)
    with raises(dd.errors.BadMessage):
        fed(hidden, columns=columns, format=dd.formats.debezium(binary=binary))
    with raises(dd.errors.BadMessage):
        fed({"id": 1, "v": cell}, columns=columns, format=dd.formats.debezium(flattened=True, binary=binary))
    rows = fed(hidden, columns=columns, format=dd.formats.debezium(unavailable=True, binary=binary))
    assert rows == [{"id": 1, "v": stored}]


def test_lists_of_the_length_of_a_placeholder_are_lists() -> None:
    values = [*HIDDEN.encode()[:-1], 7]
    rows = fed(change("c", {"id": 1, "v": values}, lsn=1), columns={"id": pa.int64(), "v": pa.list_(pa.int64())})
    assert rows == [{"id": 1, "v": values}]


ONE, TWO = (UUID(int=n) for n in (1, 2))


def test_a_key_that_is_a_uuid_is_deleted() -> None:
    columns = {"id": pa.uuid(), "v": pa.string()}
    made = [change("c", {"id": str(id), "v": "x"}, lsn=1) for id in (ONE, TWO)]
    key = json.dumps({"id": str(ONE)})
    for message, keys in (
        (change("d", None, {"id": str(ONE)}, lsn=2), None),
        (change("d", None, {"id": str(ONE)}, lsn=2), key),
        (None, key),
        (None, str(ONE)),
        (change("u", {"id": str(UUID(int=3)), "v": "x"}, {"id": str(ONE)}, lsn=2), None),
    ):
        with flow_of(columns).open() as engine:
            engine.step({"t": table(made)})
            more = {} if keys is None else {"key": [keys], "offset": [9]}
            engine.step({"t": table([message], **more)})
            assert str(ONE) not in {str(row["id"]) for row in held(engine)} and len(held(engine)) in (1, 2)
    flat = [{"id": str(ONE), "v": "x"}, {"id": str(ONE), "v": None, "__deleted": "true"}]
    assert fed(*flat, columns=columns, format=dd.formats.debezium(flattened=True)) == []
    cells = {"id": str(ONE), "v": "x"}
    for format, one, other in (
        (dd.formats.maxwell(), {"type": "insert", "data": cells}, {"type": "delete", "data": cells}),
        (dd.formats.canal(), {"type": "INSERT", "data": [cells]}, {"type": "DELETE", "data": [cells]}),
        (
            dd.formats.wal2json(),
            {"action": "I", "columns": [{"name": n, "value": v} for n, v in cells.items()]},
            {"action": "D", "identity": [{"name": "id", "value": str(ONE)}]},
        ),
    ):
        assert fed({"table": "t", **one}, {"table": "t", **other}, columns=columns, format=format) == []
    with flow_of(columns, dd.formats.plain_json()).open() as engine:
        engine.step({"t": table([cells, None], key=[None, str(ONE)])})
        assert held(engine) == []
