"""Test numbers in messages: each format keeps every digit, or the message is bad.

Python is the independent witness: ``json.loads`` with ``parse_float`` reads the numbers, and `decimal` decides which
fit a declared type.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from chance import mid_test
from hypothesis import given, settings, strategies as st
from messages import raises

import ddflow as dd
from ddflow.columns.casts import parse_decimals
from ddflow.connectors.formats.parse import QUOTED, WORDS, parse_objects

F = dd.formats


def connect(cells: str, kind: str) -> str:
    """A message of Debezium with Connect's schema around it, which calls the column ``v`` a ``kind``."""
    names = json.dumps([{"field": "id", "type": "int64"}, {"field": "v", "type": kind}])
    after = f'{{"type": "struct", "field": "after", "fields": {names}}}'
    envelope = f'{{"op": "c", "after": {cells}, "source": {{"lsn": 7}}}}'
    return f'{{"schema": {{"type": "struct", "fields": [{after}]}}, "payload": {envelope}}}'


def two(value: str, kind: str = "") -> str:
    """A change of wal2json's version 2, whose column has a type or none."""
    told = f', "type": "{kind}"' if kind else ""
    cells = f'[{{"name": "id", "value": 1}}, {{"name": "v"{told}, "value": {value}}}]'
    return f'{{"action": "I", "table": "t", "columns": {cells}}}'


def one(value: str) -> str:
    """A transaction of wal2json's version 1."""
    change = f'{{"kind": "insert", "table": "t", "columnnames": ["id", "v"], "columnvalues": [1, {value}]}}'
    return f'{{"change": [{change}]}}'


WRITTEN: dict[str, tuple[Any, Callable[[str], str]]] = {
    "plain_json": (F.plain_json(), lambda v: f'{{"id": 1, "v": {v}, "x": 0.1}}'),
    "plain_json precise": (F.plain_json(decimals="precise"), lambda v: f'{{"id": 1, "v":{v}}}'),
    "kcat": (
        F.kcat(F.plain_json()),
        lambda v: json.dumps({"topic": "t", "offset": 1, "payload": f'{{"id": 1, "v": {v}}}'}),
    ),
    "kcat of members": (F.kcat(F.plain_json()), lambda v: f'{{"offset": 1, "payload": {{"id": 1, "v": {v}}}}}'),
    "debezium": (F.debezium(), lambda v: f'{{"op": "c", "after": {{"id": 1, "v": {v}}}, "source": {{"lsn": 7}}}}'),
    "debezium of doubles": (F.debezium(decimals="double"), lambda v: f'{{"op": "r", "after": {{"id": 1, "v": {v}}}}}'),
    "debezium flattened": (F.debezium(flattened=True), lambda v: f'{{"id": 1, "v": {v}}}'),
    "connect double": (F.debezium(), lambda v: connect(f'{{"id": 1, "v": {v}}}', "double")),
    "connect string": (F.debezium(), lambda v: connect(f'{{"id": 1, "v": {v}}}', "string")),
    "maxwell": (F.maxwell(), lambda v: f'{{"table": "t", "type": "insert", "data": {{"id": 1, "v": {v}}}}}'),
    "canal": (F.canal(), lambda v: f'{{"table": "t", "type": "INSERT", "data": [{{"id": "1", "v": {v}}}]}}'),
    "wal2json typed": (F.wal2json(), lambda v: two(v, "numeric")),
    "wal2json untyped": (F.wal2json(), two),
    "wal2json version 1": (F.wal2json(), one),
}
SHOWN = [
    ("1000000000.00000001", pa.decimal128(20, 8), "1000000000.00000001"),
    ("99999999999.999998", pa.decimal128(18, 6), "99999999999.999998"),
    ("99999999999.999998", pa.decimal128(16, 6), None),
    ("0.99999999999999999", pa.decimal128(19, 17), "0.99999999999999999"),
    ("1.0000000000000000001", pa.decimal128(38, 0), None),
    ("1e-400", pa.decimal128(38, 8), None),
    ("1e-400", pa.decimal128(38, 38), None),
    ("15E-1", pa.decimal128(5, 2), "1.5"),
    ("-0", pa.decimal128(5, 2), "0"),
    ("-4", pa.decimal128(38, 38), None),
    ("123456789012345678901234567890", pa.decimal128(30, 0), "123456789012345678901234567890"),
    ("123456789012345680000.0", pa.decimal128(38, 2), "123456789012345680000"),
    ("18446744073709551616", pa.uint64(), None),
    ("1.0000000000000000001", pa.int64(), None),
    ("1e300", pa.float32(), None),
    ("-1e400", pa.float64(), None),
]


def fed(format: Any, message: str, kind: pa.DataType) -> Any:
    """The value that one message gives."""
    flow = dd.Flow()
    flow.output("t", flow.upserts("t", {"id": pa.int64(), "v": kind}, dd.Upsert(key="id"), format=format))
    with flow.open() as engine:
        engine.step({"t": {"value": [message]}})
        (row,) = engine.read("t").to_pylist()
        return row["v"]


@mid_test
@pytest.mark.parametrize("name", WRITTEN)
def test_a_number_counts_to_its_last_digit(name: str) -> None:
    format, written = WRITTEN[name]
    for text, kind, expected in SHOWN:
        if expected is None:
            with pytest.raises(dd.errors.BadMessage) as caught:
                fed(format, written(text), kind)
            assert text in caught.value.found, text
        else:
            assert fed(format, written(text), kind) == Decimal(expected), text
    for text in ("1234567890123456.789", "1.10", "1e3", "-0", "-0.0", "0", "123456789012345678901234567890", "1E+2"):
        assert fed(format, written(text), pa.string()) == text


@pytest.mark.parametrize("name", [name for name in WRITTEN if not name.startswith(("wal2json", "connect"))])
def test_numbers_within_lists_and_objects(name: str) -> None:
    format, written = WRITTEN[name]
    long = "1000000000.00000001"
    assert fed(format, written(f'["1", {long}]'), pa.list_(pa.string())) == ["1", long]
    decimals = pa.struct({"a": pa.list_(pa.decimal128(20, 8)), "b": pa.string()})
    assert fed(format, written(f'{{"a": [{long}], "b": 1.10}}'), decimals) == {"a": [Decimal(long)], "b": "1.10"}
    text = fed(format, written(f'{{"a": [{long}, "\\u00e9 1.50"], "b": 1.10}}'), pa.string())
    assert text == f'{{"a":[{long},"é 1.50"],"b":1.10}}'


def test_a_number_that_is_a_key() -> None:
    flow = dd.Flow()
    columns = {"id": pa.decimal128(20, 8), "v": pa.string()}
    flow.output("t", flow.upserts("t", columns, dd.Upsert(key="id"), format=F.plain_json()))
    one, other = "1000000000.00000001", "1000000000.00000002"
    with flow.open() as engine:
        engine.step({"t": {"value": [f'{{"id": {id}, "v": "x"}}' for id in (one, other)]}})
        assert sorted(engine.read("t")["id"].to_pylist()) == [Decimal(one), Decimal(other)]
        engine.step({"t": {"value": [None, None], "key": [one, f'{{"id": {other}}}']}})
        assert engine.read("t").num_rows == 0


def test_a_new_column_is_guessed_from_its_own_digits() -> None:
    flow = dd.Flow()
    flow.output("t", flow.upserts("t", {"id": pa.int64()}, dd.Upsert(key="id"), format=F.plain_json()))
    messages = pa.table({"value": ['{"id": 1, "d": 1000000000.00000001}']})
    from ddflow.connectors.formats.base import wrap_messages

    kinds = F.plain_json().kinds(wrap_messages(F.plain_json(), messages, "'t'"), ["d"])
    assert kinds["d"] not in (pa.float64(), pa.int64())


NUMBERS = st.from_regex(r"-?(0|[1-9][0-9]{0,24})(\.[0-9]{1,24})?([eE][+-]?[0-9]{1,3})?", fullmatch=True)
KINDS = [
    pa.decimal128(38, 0),
    pa.decimal128(20, 8),
    pa.decimal128(19, 17),
    pa.decimal128(38, 38),
    pa.decimal256(76, 30),
]


def is_held(number: Decimal, kind: pa.DataType) -> bool:
    """Whether a decimal type holds a number."""
    _, digits, exponent = number.as_tuple()
    assert isinstance(exponent, int)
    least = exponent + len(digits) - len("".join(map(str, digits)).rstrip("0"))
    return not number or (least >= -kind.scale and number.adjusted() < kind.precision - kind.scale)


@given(st.lists(NUMBERS, min_size=1, max_size=20))
@settings(max_examples=50)
def test_decimals_of_texts_are_those_of_python(texts: list[str]) -> None:
    texts = [*texts, "10e999999999999999999"]  # an exponent beyond what `decimal` itself may have
    for kind in KINDS:
        good = [text for text in texts[:-1] if is_held(Decimal(text), kind)]
        assert parse_decimals(pa.array(good, pa.string()), kind).to_pylist() == [Decimal(text) for text in good]
        for text in set(texts) - set(good):
            with pytest.raises(pa.ArrowInvalid):
                parse_decimals(pa.array([text]), kind)


TEXTS = st.text(st.sampled_from('ab"\\:,[ -1.5e0é\n{}'), max_size=8)
VALUES = st.recursive(
    NUMBERS | TEXTS.map(json.dumps) | TEXTS.map(lambda text: json.dumps(text, ensure_ascii=False)),
    lambda inner: (
        st.lists(inner, max_size=3).map(lambda each: f"[{', '.join(each)}]")
        | st.lists(st.tuples(TEXTS, inner), max_size=3, unique_by=lambda each: each[0]).map(
            lambda each: f"{{{','.join(f'{json.dumps(n)}:{v}' for n, v in each)}}}"
        )
    ),
    max_leaves=8,
)


class Number(str):
    """A number of JSON, as it is written."""


@mid_test
@given(st.lists(st.tuples(VALUES, TEXTS), min_size=1, max_size=10))
@settings(max_examples=100)
def test_members_of_json_are_those_of_python(values: list[tuple[str, str]]) -> None:
    messages = [f'{{"s": {json.dumps(text)}, "w": {value}, "q" : {value}}}' for value, text in values]
    made, wrong = parse_objects(pa.array(messages), {"s": WORDS, "w": WORDS, "q": QUOTED})
    assert not wrong.any()
    for message, row in zip(messages, made.to_pylist(), strict=True):
        own = json.loads(message, parse_float=Number, parse_int=Number)
        assert row["s"] == own["s"]
        if isinstance(own["w"], str):
            assert row["w"] == own["w"]
            if isinstance(own["q"], Number):
                assert Decimal(row["q"]) == Decimal(own["q"])
            else:
                assert json.loads(row["q"]) == own["q"]
        else:
            assert json.loads(row["w"], parse_float=Number, parse_int=Number) == own["w"]


def test_what_a_function_gives_is_not_rounded() -> None:
    def given(values: pa.Array, kind: pa.DataType) -> Any:
        return fed(F.custom(lambda _: pa.table({"id": [1], "v": values})), "", kind)

    kind = pa.decimal128(20, 8)
    assert given(pa.array(["1000000000.00000001"]), kind) == Decimal("1000000000.00000001")
    assert given(pa.array([1.5]), kind) == Decimal("1.5")
    assert given(pa.array([7]), kind) == 7
    bad = [
        (pa.array([0.1]), kind, "0.1"),
        (pa.array([1e300]), pa.float32(), "1e"),
        (pa.array(["1.000000001"]), kind, "1.000000001"),
        (pa.array([1.5]), pa.int64(), "1.5"),
        (pa.array([-1]).view(pa.time64("us")), pa.time64("us"), "not a valid time"),
    ]
    for values, to, said in bad:
        with pytest.raises(dd.errors.BadMessage) as caught:
            given(values, to)
        assert said in caught.value.found


@pytest.mark.parametrize("name", [name for name in WRITTEN if not name.startswith("connect")])
def test_a_time_outside_a_day_and_a_date_outside_the_calendar(name: str) -> None:
    format, written = WRITTEN[name]
    hour = 3600 * 10**6
    for kind, cells in (
        (pa.time64("us"), (f"{25 * hour}", f"{-hour}", f"{24 * hour}", '"25:00:00"', '"-01:00:00"', '"24:00:00"')),
        (pa.time32("s"), ("86400", "-1")),
        (pa.date32(), ("2932897", "-719163", '"10000-01-01"', '"0000-12-31"')),
        (pa.timestamp("us"), ("253402300800000000", '"0000-12-31T00:00:00"')),
    ):
        for cell in cells:
            with raises(dd.errors.BadMessage):
                fed(format, written(cell), kind)
    assert fed(format, written("2932896"), pa.date32()).year == 9999


def test_a_time_of_a_schema_outside_its_day() -> None:
    """MySQL's TIME goes to 838 hours, and Postgres' infinity is a timestamp far away."""
    for name, kind, number in (
        ("io.debezium.time.MicroTime", pa.time64("us"), 90_000_000_000),
        ("io.debezium.time.MicroTimestamp", pa.timestamp("us"), 9_223_372_036_825_200_000),
        ("io.debezium.time.Date", pa.date32(), 2_932_897),
    ):
        message = connect(f'{{"id": 1, "v": {number}}}', "int64").replace(
            '"v", "type"', f'"v", "name": "{name}", "type"'
        )
        with raises(dd.errors.BadMessage):
            fed(F.debezium(), message, kind)
