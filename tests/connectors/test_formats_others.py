"""Test the formats besides Debezium's, with examples from the documentation of each format, and with other input."""

from __future__ import annotations

import json
from datetime import date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings, strategies as st
from messages import raises

import ddflow as dd

COLUMNS = {"id": pa.int64(), "v": pa.string()}


def flow_of(format: Any, columns: Any = COLUMNS, **spec: Any) -> dd.Flow:
    flow = dd.Flow()
    flow.output("t", flow.upserts("t", columns, dd.Upsert(**{"key": "id", **spec}), format=format))
    return flow


def held(engine: dd.Engine) -> list[dict[str, Any]]:
    return sorted(engine.read("t").drop_columns(["_diff"]).to_pylist(), key=lambda row: row["id"])


def fed(format: Any, *messages: Any, columns: Any = COLUMNS, **more: Any) -> list[dict[str, Any]]:
    with flow_of(format, columns).open() as engine:
        engine.step({"t": pa.table({"value": [json.dumps(each) for each in messages], **more})})
        return held(engine)


# Maxwell.


def maxwell(kind: str, data: Any, old: Any = None, **more: Any) -> dict[str, Any]:
    return {
        "database": "shop",
        "table": "t",
        "type": kind,
        "ts": 1477053217,
        "xid": 1,
        "data": data,
        "old": old,
        **more,
    }


def test_maxwell() -> None:
    format = dd.formats.maxwell()
    start = [maxwell("bootstrap-start", {}), maxwell("bootstrap-insert", {"id": 1, "v": "old"})]
    made = [maxwell("insert", {"id": 2, "v": "x"}), maxwell("update", {"id": 1, "v": "new"}, {"v": "old"})]
    assert fed(format, *start, *made) == [{"id": 1, "v": "new"}, {"id": 2, "v": "x"}]
    assert fed(format, *start, *made, maxwell("delete", {"id": 2, "v": "x"})) == [{"id": 1, "v": "new"}]
    moved = maxwell("update", {"id": 9, "v": "old"}, {"id": 1})
    assert fed(format, *start, moved, maxwell("table-alter", None)) == [{"id": 9, "v": "old"}]


def test_maxwell_keys_of_several_columns_and_its_order() -> None:
    columns, format = {"a": int, "b": int, "id": int}, dd.formats.maxwell()
    flow = dd.Flow()
    flow.output("t", flow.upserts("t", columns, dd.Upsert(key=["a", "b"]), format=format))
    with flow.open() as engine:
        first = maxwell("insert", {"a": 1, "b": 2, "id": 1}, position="master.000006:100")
        second = maxwell("update", {"a": 1, "b": 3, "id": 2}, {"b": 2}, position="master.000006:200")
        engine.step({"t": [{"value": json.dumps(each)} for each in (second, first)]})
        assert held(engine) == [{"a": 1, "b": 3, "id": 2}]


def test_maxwell_values() -> None:
    columns = {"id": int, "d": pa.decimal128(10, 2), "at": pa.timestamp("us"), "day": pa.date32(), "b": bytes}
    row = {"id": 1, "d": 4.25, "at": "2016-10-21 05:33:37.523000", "day": "2016-10-21", "b": "AP8="}
    at, day = datetime(2016, 10, 21, 5, 33, 37, 523000), date(2016, 10, 21)
    expected = {"id": 1, "d": Decimal("4.25"), "at": at, "day": day, "b": b"\x00\xff"}
    assert fed(dd.formats.maxwell(), maxwell("insert", row), columns=columns) == [expected]


# Canal.


def canal(kind: str, data: Any, old: Any = None, **more: Any) -> dict[str, Any]:
    base = {"database": "shop", "table": "t", "pkNames": ["id"], "isDdl": False, "type": kind, "es": 1, "ts": 2}
    return {**base, "data": data, "old": old, "sql": "", **more}


def test_canal_has_several_rows_a_message() -> None:
    format = dd.formats.canal()
    made = canal("INSERT", [{"id": str(n), "v": f"v{n}"} for n in range(4)])
    moved = canal("UPDATE", [{"id": "0", "v": "new"}, {"id": "7", "v": "v1"}], [{"v": "v0"}, {"id": "1"}])
    gone = canal("DELETE", [{"id": "2", "v": "v2"}])
    assert fed(format, made, moved, gone) == [{"id": 0, "v": "new"}, {"id": 3, "v": "v3"}, {"id": 7, "v": "v1"}]
    altered = canal("ALTER", None, isDdl=True)
    assert [row["id"] for row in fed(format, made, altered, canal("TRUNCATE", None, isDdl=True), made)] == [0, 1, 2, 3]
    assert fed(format, made, canal("TRUNCATE", None, isDdl=True)) == []
    twice = canal("UPDATE", [{"id": "1", "v": "a"}, {"id": "1", "v": "b"}], [{"v": "x"}, {"v": "a"}])
    assert fed(format, twice, offset=[5]) == [{"id": 1, "v": "b"}]


def test_canal_values() -> None:
    columns = {"id": int, "d": pa.decimal128(20, 2), "at": pa.timestamp("s"), "f": float, "n": pa.int16()}
    row = {"id": "1", "d": "123456789012345678.25", "at": "2020-01-02 03:04:05", "f": "1.5", "n": None}
    expected = {
        "id": 1,
        "d": Decimal("123456789012345678.25"),
        "at": datetime(2020, 1, 2, 3, 4, 5),
        "f": 1.5,
        "n": None,
    }
    assert fed(dd.formats.canal(), canal("INSERT", [row]), columns=columns) == [expected]


# wal2json.


def two(action: str, columns: Any = None, identity: Any = None, **more: Any) -> dict[str, Any]:
    def cells(given: Any) -> Any:
        return None if given is None else [{"name": n, "type": "text", "value": v} for n, v in given.items()]

    base = {"action": action, "schema": "public", "table": "t"}
    return {**base, "columns": cells(columns), "identity": cells(identity), **more}


def one(*changes: tuple[str, Any, Any], **more: Any) -> dict[str, Any]:
    def change(kind: str, row: Any, old: Any) -> dict[str, Any]:
        out: dict[str, Any] = {"kind": kind, "schema": "public", "table": "t"}
        if row is not None:
            out |= {"columnnames": [*row], "columntypes": ["text"] * len(row), "columnvalues": [*row.values()]}
        return out if old is None else {**out, "oldkeys": {"keynames": [*old], "keyvalues": [*old.values()]}}

    return {"xid": 5, **more, "change": [change(*each) for each in changes]}


def test_wal2json_of_both_versions() -> None:
    format = dd.formats.wal2json()
    second = [
        {"action": "B"},
        two("I", {"id": 1, "v": 'say "x"'}, lsn="0/A"),
        two("I", {"id": 2, "v": None}, lsn="0/B"),
        two("U", {"id": 2, "v": "new"}, {"id": 2}, lsn="0/C"),
        two("U", {"id": 7, "v": "moved"}, {"id": 1}, lsn="0/D"),
        two("D", None, {"id": 2}, lsn="1/0"),
        two("M", lsn="1/1"),
        {"action": "C"},
    ]
    assert fed(format, *second) == [{"id": 7, "v": "moved"}]
    assert fed(format, *reversed(second[:4])) == [{"id": 1, "v": 'say "x"'}, {"id": 2, "v": "new"}]
    first = one(
        ("insert", {"id": 1, "v": "x"}, None),
        ("insert", {"id": 2, "v": "y"}, None),
        ("update", {"v": "z", "id": 2}, {"id": 2}),
        ("delete", None, {"id": 1}),
        nextlsn="0/F",
    )
    assert fed(format, one(nextlsn="0/E"), first) == [{"id": 2, "v": "z"}]
    assert fed(format, second[1], first) == [{"id": 2, "v": "z"}]


def test_wal2json_cells_that_were_not_written() -> None:
    made, kept = two("I", {"id": 1, "v": "long"}, lsn="0/A"), two("U", {"id": 1}, {"id": 1}, lsn="0/B")
    with raises(dd.errors.BadMessage):
        fed(dd.formats.wal2json(), made, kept)
    assert fed(dd.formats.wal2json(unavailable=True), made, kept) == [{"id": 1, "v": "long"}]
    moved = two("U", {"id": 2}, {"id": 1}, lsn="0/B")
    with raises(dd.errors.BadMessage):
        fed(dd.formats.wal2json(unavailable=True), made, moved)
    for all_of_it in ({"id": 1, "v": "long"}, {"v": "long", "id": 1}):  # as replica identity full has it
        for row in ({"id": 2}, {"id": 1}):
            for format in (dd.formats.wal2json(unavailable=True), dd.formats.wal2json()):
                assert fed(format, made, two("U", row, all_of_it, lsn="0/B")) == [row | {"v": "long"}]
                version_1 = one(("update", row, all_of_it), nextlsn="0/B")
                assert fed(format, made, version_1) == [row | {"v": "long"}]
    gone = two("D", None, {"v": "x"}, lsn="0/C")
    with raises(dd.errors.BadMessage):
        fed(dd.formats.wal2json(), gone)


def test_wal2json_values() -> None:
    columns = {"id": int, "n": pa.decimal128(12, 4), "t": pa.timestamp("us", "UTC"), "b": bytes, "a": pa.string()}
    row = {"id": 1, "n": 1.25, "t": "2020-01-01 02:00:00.5+02", "b": "00ff", "a": "{1,2}"}
    (made,) = fed(dd.formats.wal2json(), two("I", row), columns=columns)
    assert made["n"] == Decimal("1.25") and made["b"] == b"\x00\xff" and made["a"] == "{1,2}"
    assert made["t"].isoformat() == "2020-01-01T00:00:00.500000+00:00"


# kcat and Delta.


def test_kcat_wraps_any_format() -> None:
    format = dd.formats.kcat(dd.formats.debezium(on_bad="drop"))

    def line(offset: int, payload: Any, key: Any = None) -> dict[str, Any]:
        return {"topic": "shop", "partition": 1, "offset": offset, "ts": 1, "key": key, "payload": payload}

    created = json.dumps({"op": "c", "after": {"id": 1, "v": "x"}, "source": {}})
    lines = [line(7, created), line(6, created.replace("x", "older")), line(8, "{"), line(9, None, '{"id": 2}')]
    with flow_of(format).open() as engine:
        step = engine.step({"t": pa.table({"value": [*map(json.dumps, lines), "no line", "{}"]})})
        assert held(engine) == [{"id": 1, "v": "x"}]
        reasons = [(row["position"], row["reason"]) for row in step["t.bad"].to_pylist()]
        assert reasons == [
            ("row 2", "offset 8 of shop/1: it is not valid JSON"),
            ("row 4", "it is not valid JSON"),
            ("row 5", "it is not a line of kcat -J: it has no 'offset'"),
        ]
    assert str(flow_of(format).explain()).count("format=dd.formats.kcat(dd.formats.debezium(on_bad='drop'))") == 1


def test_deltas_change_feed_as_upserts() -> None:
    rows = [
        {"id": 1, "v": "a", "_change_type": "insert", "_commit_version": 1},
        {"id": 2, "v": "b", "_change_type": "insert", "_commit_version": 1},
        {"id": 9, "v": "moved", "_change_type": "update_postimage", "_commit_version": 2},
        {"id": 1, "v": "a", "_change_type": "update_preimage", "_commit_version": 2},
        {"id": 2, "v": "c", "_change_type": "update_postimage", "_commit_version": 2},
        {"id": 2, "v": "b", "_change_type": "update_preimage", "_commit_version": 2},
    ]
    for given_rows in (rows, rows[::-1]):
        with flow_of(dd.formats.delta_cdf()).open() as engine:
            engine.step({"t": pa.Table.from_pylist(given_rows)})
            assert held(engine) == [{"id": 2, "v": "c"}, {"id": 9, "v": "moved"}]
    with flow_of(dd.formats.delta_cdf()).open() as engine:
        for row in rows:
            engine.step({"t": [row]})
        engine.step({"t": [{"id": 2, "v": "c", "_change_type": "delete", "_commit_version": 3}]})
        assert held(engine) == [{"id": 9, "v": "moved"}]
        with raises(dd.errors.SchemaMismatch):
            engine.step({"t": [{"id": 1, "v": "x"}]})
        with raises(dd.errors.BadMessage):
            engine.step({"t": [{"id": 1, "v": "x", "_change_type": "?", "_commit_version": 4}]})


# What all of them do.

ALL = [dd.formats.maxwell, dd.formats.canal, dd.formats.wal2json]


@pytest.mark.parametrize("format", ALL, ids=lambda each: each.__name__)
@pytest.mark.parametrize("value", ["{", "[]", "5", "{}", '{"type": "?", "action": "?"}', '"x"'])
def test_what_is_no_event_is_named_or_dropped(format: Any, value: str) -> None:
    came = pa.table({"value": [value], "offset": [3]})
    with flow_of(format()).open() as engine, raises(dd.errors.BadMessage):
        engine.step({"t": came})
    with flow_of(format(on_bad="drop")).open() as engine:
        assert engine.step({"t": came})["t.bad"]["message"].to_pylist() == [value.encode()]


@pytest.mark.parametrize("format", ALL, ids=lambda each: each.__name__)
def test_other_tables_are_left_out(format: Any) -> None:
    row = {"id": 1, "v": "mine"}
    of = {
        "maxwell": maxwell("insert", row),
        "canal": canal("INSERT", [{"id": "1", "v": "mine"}]),
        "wal2json": two("I", row),
    }
    mine = of[format.__name__]
    other = json.loads(json.dumps(mine).replace("mine", "other")) | {"table": "u"}
    schema = "public" if format is dd.formats.wal2json else "shop"
    for name in ("t", f"{schema}.t"):
        assert fed(format(table=name), mine, other) == [row]
    with raises(dd.errors.BadMessage):
        fed(format(), mine, other)


OPS = st.lists(st.tuples(st.sampled_from("cudm"), st.integers(0, 3), st.integers(0, 2)), max_size=12)


@given(OPS, st.integers(1, 5), st.sampled_from(ALL))
@settings(max_examples=40, deadline=None)
def test_a_feed_adds_up_to_its_table(ops: Any, size: int, format: Any) -> None:
    table: dict[int, str] = {}
    messages = list[Any]()
    for lsn, (op, key, value) in enumerate(ops, 1):
        row, old = {"id": key, "v": f"v{value}"}, {"id": key}
        if op == "m" and key in table:
            row, old = {"id": key + 10, "v": table.pop(key)}, {"id": key}
        if op == "d":
            table.pop(key, None)
        else:
            table[row["id"]] = row["v"]
        kind = {"c": "insert", "u": "update", "m": "update", "d": "delete"}[op]
        texts = {"id": str(row["id"]), "v": row["v"]}
        before = old if op == "m" and old != {"id": row["id"]} else {}
        messages.append(
            {
                "maxwell": maxwell(kind, row, before),
                "canal": canal(kind.upper(), [texts], [{n: str(v) for n, v in before.items()}]),
                "wal2json": two(
                    kind[0].upper(), None if op == "d" else row, None if op == "c" else old, lsn=f"0/{lsn:X}"
                ),
            }[format.__name__]
        )
    with flow_of(format()).open() as engine:
        for begin in range(0, len(messages), size):
            some = [json.dumps(each) for each in messages[begin : begin + size]]
            offsets = list(range(begin, begin + len(some)))
            engine.step({"t": pa.table({"value": pa.array(some, pa.string()), "offset": offsets})})
        assert held(engine) == [{"id": key, "v": value} for key, value in sorted(table.items())]
