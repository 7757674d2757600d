"""Test history from a topic: ``flow.updates(..., format=)`` and its ``versions``, beside a twin.

The twin applies one change after the other and closes the version before. Messages come split, in any order, and twice.
"""

from __future__ import annotations

import json
import random
import sqlite3
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from chance import effort
from hypothesis import given, strategies as st
from messages import raises
from test_formats import change, schema_of, table
from test_formats_others import canal, maxwell, one, two
from test_kafka import produced

import ddflow as dd
from ddflow.errors import BadMessage, NullKey, SpecError
from ddflow.plan.text.codec import describe_plan, rebuild_plan

COLUMNS = {"id": int, "city": str, "updated_at": int}
CITIES = {"id": int, "v": str}
OPS = st.lists(st.tuples(st.sampled_from("ccudm"), st.integers(0, 3), st.integers(0, 2)), max_size=14)


def history_of(format: Any, columns: Any = CITIES, key: Any = "id", **more: Any) -> dd.Flow:
    flow = dd.Flow()
    rows = flow.updates("t", columns, key=key, format=format, **more)
    order = [name for name, _ in format.order]
    flow.output("history", rows.versions(key, order_by=order, delete=dd.tombstone("_deleted")))
    return flow


def versions(engine: dd.Engine, *names: str) -> list[tuple[Any, ...]]:
    rows = engine.read("history").select([*names, "valid_from", "valid_to"]).to_pylist()
    return sorted((tuple(row.values()) for row in rows), key=str)


# The smallest input: a move, then the end.

BERN, CHUR = {"id": 1, "city": "Bern", "updated_at": 10}, {"id": 1, "city": "Chur", "updated_at": 20}
MOVE = [change("c", BERN, None, 10), change("u", CHUR, BERN, 20), change("d", None, CHUR, 30)]


@pytest.mark.parametrize("before", [True, False])
def test_an_update_ends_the_version_before_and_takes_none_away(before: bool) -> None:
    moves = [each if before or each["op"] == "d" else each | {"before": None} for each in MOVE]
    with history_of(dd.formats.debezium(), COLUMNS).open() as engine:
        engine.step({"t": table(moves[:2])})
        assert versions(engine, "city", "updated_at") == [("Bern", 10, 10, 20), ("Chur", 20, 20, None)]
        engine.step({"t": table([moves[1], moves[0]])})  # a message read twice is one version
        engine.step({"t": table(moves[2:])})
        assert versions(engine, "city", "updated_at") == [("Bern", 10, 10, 20), ("Chur", 20, 20, 30)]


def test_rows_have_their_columns_and_an_end_row_the_key_and_nulls() -> None:
    flow = dd.Flow()
    rows = flow.updates("t", COLUMNS, keep=True, key="id", format=dd.formats.debezium())
    flow.output("t", rows)
    assert rows.schema.names == [*COLUMNS, "_position", "_row", "_deleted"]
    with flow.open() as engine:
        engine.step({"t": table(MOVE)})
        found = sorted(map(tuple, (row.values() for row in engine.read("t").to_pylist())), key=str)
    assert found[2] == (1, None, None, 30, 0, True, 1)
    assert found[0] == (1, "Bern", 10, 10, 0, False, 1)


def test_the_advice_names_the_way_that_keeps_history() -> None:
    flow = dd.Flow()
    keyed = flow.upserts("t", COLUMNS, dd.Upsert(key="id"), format=dd.formats.debezium())
    for rows in (keyed, keyed.filter("id > 0"), keyed.project(["id", "updated_at"])):
        with raises(SpecError):
            rows.versions("id", order_by="updated_at")
    both = flow.upserts("u", COLUMNS, dd.Upsert(key=["id", "updated_at"]), format=dd.formats.debezium())
    with pytest.warns(UserWarning, match=r"an update deletes the row that it names as the old one.*flow\.updates\('u'"):
        both.versions("id", order_by="updated_at")
    # Messages that are versions themselves: none says what was before.
    plain = flow.upserts("v", COLUMNS, dd.Upsert(key=["id", "updated_at"]), format=dd.formats.plain_json())
    plain.versions("id", order_by="updated_at")


@pytest.mark.parametrize(
    "more",
    [
        {},
        {"key": "idd"},
        {"key": "id", "diff": "id"},
        {"key": "id", "format": dd.formats.debezium(unavailable=True)},
        {"key": "id", "format": "debezium"},
        {"key": "id", "format": None},
    ],
)
def test_what_does_not_fit_is_refused(more: dict[str, Any]) -> None:
    with raises(SpecError):
        dd.Flow().updates("t", COLUMNS, **{"format": dd.formats.debezium(), **more})


def test_an_order_that_end_rows_lack_is_refused() -> None:
    rows = dd.Flow().updates("t", COLUMNS, key="id", format=dd.formats.debezium())
    with raises(SpecError):
        rows.versions("id", order_by="updated_at", delete=dd.tombstone("_deleted"))
    rows.versions("id", order_by="updated_at")


# Every format, beside the twin.


def twin(ops: list[tuple[str, int, int]]) -> tuple[list[Any], list[tuple[Any, ...]]]:
    """Changes that may happen to a table, each by its place, and the history that they make."""
    held, changes, out = dict[int, tuple[str, int]](), list[Any](), list[tuple[Any, ...]]()

    def end(key: int, at: int) -> None:
        if key in held:
            value, begun = held.pop(key)
            out.append((key, value, begun, at))

    for at, (op, key, value) in enumerate(ops, 1):
        row, before = {"id": key, "v": f"v{value}"}, {"id": key, "v": held[key][0]} if key in held else None
        if op == "m" and before is not None:
            row = {"id": key + 10, "v": before["v"]}
            end(key, at)
        elif op == "d":
            end(key, at)
            changes.append((at, "d", None, before or {"id": key, "v": None}))
            continue
        if row["id"] not in held or held[row["id"]][0] != row["v"]:
            end(row["id"], at)
            held[row["id"]] = row["v"], at
        changes.append((at, "c" if before is None else "u", row, before))
    return changes, sorted([*out, *((key, value, begun, None) for key, (value, begun) in held.items())], key=str)


def as_debezium(at: int, op: str, row: Any, before: Any, wrapped: bool = False) -> list[Any]:
    moved = before is not None and row is not None and before["id"] != row["id"]
    said = [change("d", None, before, at), change("c", row, None, at)] if moved else [change(op, row, before, at)]
    kinds = schema_of(id="int64", v="string")
    return [{"schema": kinds, "payload": each} if wrapped else each for each in said]


def as_flat(at: int, op: str, row: Any, before: Any) -> list[Any]:
    gone = before is not None and (row is None or before["id"] != row["id"])
    ended = [{**before, "__deleted": "true", "__lsn": at}] if gone else []
    return [*ended, *([] if row is None else [{**row, "__deleted": "false", "__lsn": at}])]


def as_maxwell(at: int, op: str, row: Any, before: Any) -> list[Any]:
    kind = {"c": "insert", "u": "update", "d": "delete"}[op]
    old = {n: v for n, v in (before or {}).items() if row is not None and v != row[n]}
    return [maxwell(kind, before if row is None else row, old or None, position=f"binlog.000000:{at}")]


def as_canal(at: int, op: str, row: Any, before: Any) -> list[Any]:
    kind = {"c": "INSERT", "u": "UPDATE", "d": "DELETE"}[op]
    data, old = (
        {n: v and str(v) for n, v in (each or {}).items()} for each in (before if row is None else row, before)
    )
    return [canal(kind, [data], [old] if op == "u" else None)]


def as_wal2json(at: int, op: str, row: Any, before: Any) -> list[Any]:
    return [two({"c": "I", "u": "U", "d": "D"}[op], row, None if op == "c" else before, lsn=f"0/{at:X}")]


def as_wal2json_1(at: int, op: str, row: Any, before: Any) -> list[Any]:
    kind = {"c": "insert", "u": "update", "d": "delete"}[op]
    return [one((kind, row, None if op == "c" else before), nextlsn=f"0/{at:X}")]


def as_plain(at: int, op: str, row: Any, before: Any) -> list[Any]:
    gone = before is not None and (row is None or before["id"] != row["id"])
    return [*([(before["id"], None)] if gone else []), *([] if row is None else [(row["id"], row)])]


def read_lines(messages: pa.Table) -> pa.Table:
    """Rows of messages that say ``place|id|v``; without v it is a delete."""
    parts = [value.split("|") for value in messages["value"].cast(pa.string()).to_pylist()]
    named = {"_position": [int(at) for at, _, _ in parts], "id": [int(key) for _, key, _ in parts]}
    return pa.table({**named, "v": [v or None for _, _, v in parts], "_deleted": [not v for _, _, v in parts]})


def as_lines(at: int, op: str, row: Any, before: Any) -> list[Any]:
    return [
        f"{at}|{each['id']}|{each['v'] if value else ''}"
        for _, value in as_plain(at, op, row, before)
        for each in [value or before]
    ]


FORMATS: dict[str, Any] = {
    "debezium": (dd.formats.debezium(), as_debezium),
    "with a schema": (dd.formats.debezium(), lambda *each: as_debezium(*each, wrapped=True)),
    "flattened": (dd.formats.debezium(flattened=True), as_flat),
    "maxwell": (dd.formats.maxwell(), as_maxwell),
    "canal": (dd.formats.canal(), as_canal),
    "wal2json": (dd.formats.wal2json(), as_wal2json),
    "wal2json 1": (dd.formats.wal2json(), as_wal2json_1),
    "plain_json": (dd.formats.plain_json(), as_plain),
    "custom": (dd.formats.custom(read_lines), as_lines),
    "kcat": (dd.formats.kcat(dd.formats.debezium()), as_debezium),
}


def messages_of(changes: list[Any], name: str) -> list[dict[str, Any]]:
    """Messages as a topic has them: of one key in one partition, at the offset that is their place."""
    out = list[dict[str, Any]]()
    for at, op, row, before in changes:
        for each in FORMATS[name][1](at, op, row, before):
            key, value = each if isinstance(each, tuple) else ((row or before)["id"], each)
            text = value if value is None or isinstance(value, str) else json.dumps(value)
            where = {"topic": "t", "partition": 0, "offset": at}
            if name == "kcat":
                out.append({"value": json.dumps({**where, "key": None, "payload": text})})
            else:
                out.append(
                    {"value": text, **({"key": json.dumps({"id": key})} if name == "plain_json" else {}), **where}
                )
    return out


@effort(150)
@given(OPS, st.sampled_from(sorted(FORMATS)), st.integers(1, 6), st.randoms(use_true_random=False), st.booleans())
def test_the_history_of_a_feed_is_the_twins_in_any_order_and_again(
    ops: Any, name: str, size: int, draw: random.Random, keep: bool
) -> None:
    changes, expected = twin(ops)
    messages = messages_of(changes, name)
    messages += draw.sample(messages, len(messages) // 2)
    draw.shuffle(messages)
    with history_of(FORMATS[name][0], keep=keep).open() as engine:
        for begin in range(0, len(messages), size):
            some = messages[begin : begin + size]
            engine.step({"t": pa.Table.from_pylist(some, pa.schema({n: kind(n) for n in some[0]}))})
        assert versions(engine, "id", "v") == expected
        engine._check_invariants()


def kind(name: str) -> pa.DataType:
    return pa.int64() if name in ("partition", "offset") else pa.string()


def test_changes_within_a_transaction_are_in_their_order() -> None:
    """Of wal2json's version 1, and of canal: several changes of a key in one message have one position."""
    row = {"id": 1, "v": "a"}
    changes = [("insert", row, None), ("update", row | {"v": "b"}, row), ("update", row | {"v": "c"}, row)]
    with history_of(dd.formats.wal2json()).open() as engine:
        engine.step({"t": table([one(*changes, nextlsn="0/A"), one(("delete", None, row), nextlsn="0/B")])})
        assert versions(engine, "v") == [("a", 10, 10), ("b", 10, 10), ("c", 10, 11)]
        assert engine.read("history").sort_by("_row")["_row"].to_pylist() == [0, 1, 2]


def test_the_change_feed_of_a_lake() -> None:
    rows = [
        {"id": 1, "v": "a", "_change_type": "insert", "_commit_version": 1},
        {"id": 1, "v": "b", "_change_type": "update_postimage", "_commit_version": 2},
        {"id": 1, "v": "a", "_change_type": "update_preimage", "_commit_version": 2},
        {"id": 7, "v": "b", "_change_type": "update_postimage", "_commit_version": 3},
        {"id": 1, "v": "b", "_change_type": "update_preimage", "_commit_version": 3},
        {"id": 7, "v": "b", "_change_type": "delete", "_commit_version": 4},
    ]
    for came in (rows, rows[::-1], rows * 2):
        with history_of(dd.formats.delta_cdf()).open() as engine:
            engine.step({"t": pa.Table.from_pylist(came)})
            assert versions(engine, "id", "v") == [(1, "a", 1, 2), (1, "b", 2, 3), (7, "b", 3, 4)]


# What is bad, tombstones, truncates, keys.


def test_a_truncate_is_bad_because_it_does_not_say_whose_versions_end() -> None:
    cut = table([MOVE[0], change("t", None, None, 40)], offset=[1, 2])
    with (
        history_of(dd.formats.debezium(), COLUMNS).open() as engine,
        raises(BadMessage),
    ):
        engine.step({"t": cut})
    with history_of(dd.formats.debezium(on_bad="drop"), COLUMNS).open() as engine:
        step = engine.step({"t": cut})
        assert str(step.verdicts) == "applied 1, bad 1"
        reason = "it is a truncate, which does not name the keys whose versions end"
        assert step["t.bad"]["reason"].to_pylist() == [reason]
        assert versions(engine, "city") == [("Bern", 10, None)]


def test_bad_messages_have_an_output_and_a_key_that_is_null_is_refused_or_dropped() -> None:
    keyless = change("c", {"id": None, "city": "x"}, None, 11)
    came = table([MOVE[0], keyless, "no json"])
    with history_of(dd.formats.debezium(on_bad="drop"), COLUMNS).open() as engine:
        step = engine.step({"t": came})
        assert sorted(step["t.bad"]["reason"].to_pylist()) == ["it is not valid JSON", "its key 'id' is null"]
    with history_of(dd.formats.debezium(), COLUMNS).open() as engine, raises(NullKey):
        engine.step({"t": came.slice(0, 2)})
    with history_of(dd.formats.debezium(), COLUMNS, null_key="drop").open() as engine:
        assert str(engine.step({"t": came.slice(0, 2)}).verdicts) == "applied 1, bad 1"


@pytest.mark.parametrize("apart", [False, True])
def test_a_tombstone_behind_its_delete_changes_nothing_and_alone_it_ends_by_its_key(apart: bool) -> None:
    key, positions = ['{"id": 1}'] * 4, [7, 8, 9, 10]
    came = table([*MOVE, None], key=key, offset=positions)
    with history_of(dd.formats.debezium(), COLUMNS).open() as engine:
        for part in (came.slice(0, 3), came.slice(3)) if apart else (came,):
            engine.step({"t": part})
        assert versions(engine, "city") == [("Bern", 10, 20), ("Chur", 20, 30)]
    with history_of(dd.formats.plain_json(), COLUMNS).open() as engine:
        engine.step({"t": table([BERN, None], key=key[:2], offset=[1, 2])})
        assert versions(engine, "city") == [("Bern", 1, 2)]


def test_messages_without_a_place_are_refused_where_it_orders_versions() -> None:
    came = table([change("c", BERN), change("u", CHUR, BERN)])
    flow = history_of(dd.formats.debezium(), COLUMNS)
    with flow.open() as engine:
        with raises(BadMessage):
            engine.step({"t": came})
        engine.step({"t": came.append_column("offset", [[5, 6]])})
        assert versions(engine, "city") == [("Bern", 5, 6), ("Chur", 6, None)]
    flow = dd.Flow()
    rows = flow.updates("t", COLUMNS, key="id", format=dd.formats.debezium())
    flow.output("history", rows.versions("id", order_by="updated_at"))
    with flow.open() as engine:
        engine.step({"t": came})
        assert versions(engine, "city") == [("Bern", 10, 20), ("Chur", 20, None)]


def test_in_hold_back_mode_the_time_is_in_before() -> None:
    flow = history_of(dd.formats.debezium(), COLUMNS, time="updated_at")
    with flow.open() as engine:
        engine.push({"t": table(MOVE[:2])})
        first = engine.advance_to(15)["history"].select(["city", "valid_to", "_time", "_diff"]).to_pylist()
        assert [tuple(row.values()) for row in first] == [("Bern", None, 10, 1)]
        engine.advance_to(21)
        assert versions(engine, "city") == [("Bern", 10, 20), ("Chur", 20, None)]


# Durable states, runs, plans.


def test_a_state_goes_on_is_replayed_gets_columns_and_is_verified(tmp_path: Path) -> None:
    state, flow = tmp_path / "state", history_of(dd.formats.debezium(), COLUMNS, keep=True)
    with flow.open(state) as engine:
        engine.step({"t": table(MOVE[:1])}, epoch=1)
        second = engine.step({"t": table(MOVE[1:2])}, epoch=2)
    with flow.open(state) as engine:
        again = engine.step({"t": table(MOVE[1:2])}, epoch=2)
        assert again["history"].to_pylist() == second["history"].to_pylist()
        engine.step({"t": table(MOVE[2:])}, epoch=3)
        assert versions(engine, "city") == [("Bern", 10, 20), ("Chur", 20, 30)]
    again = rebuild_plan(describe_plan(flow))
    assert again.inputs["t"].spec == flow.inputs["t"].spec and describe_plan(again) == describe_plan(flow)
    assert dd.verify(state, {"t": table(MOVE)}).ok
    with history_of(dd.formats.debezium(), {**COLUMNS, "zip": str}, keep=True).open(state) as engine:
        engine.step({"t": table([change("c", BERN | {"zip": "3000"}, None, 50)])})
        assert versions(engine, "city", "zip")[0] == ("Bern", "3000", 50, None)
    with raises(dd.errors.PlanChanged):
        history_of(dd.formats.debezium(), COLUMNS, key=["id", "city"], keep=True).open(state)
    with raises(dd.errors.PlanChanged):
        history_of(dd.formats.debezium(flattened=True), COLUMNS, keep=True).open(state)


def test_a_run_reads_files_of_messages_and_a_sink_takes_the_dimension(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    source = {"t": dd.sources.files(tmp_path / "in" / "*.jsonl", lines=True)}
    sinks = {"history": dd.sinks.sqlite(tmp_path / "out.db", "cities")}
    for number, each in enumerate(MOVE):
        (tmp_path / "in" / f"{number}.jsonl").write_text(json.dumps(each))
        with history_of(dd.formats.debezium(), COLUMNS).open(tmp_path / "state") as engine:
            engine.run(source, sinks)
            expected = versions(engine, "city")
        with sqlite3.connect(tmp_path / "out.db") as db:
            assert sorted(db.execute("select city, valid_from, valid_to from cities"), key=str) == expected
    assert expected == [("Bern", 10, 20), ("Chur", 20, 30)]


def test_a_run_takes_new_columns_of_messages(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    source = {"t": dd.sources.files(tmp_path / "in" / "*.jsonl", lines=True)}
    for number, more in enumerate([{}, {"zip": "7000"}]):
        each = MOVE[number] | {"after": MOVE[number]["after"] | more}
        (tmp_path / "in" / f"{number}.jsonl").write_text(json.dumps(each))
        with history_of(dd.formats.debezium(), COLUMNS).open(tmp_path / "state") as engine:
            engine.run(source)
    with history_of(dd.formats.debezium(), {**COLUMNS, "zip": str}).open(tmp_path / "state") as engine:
        assert versions(engine, "city", "zip") == [("Bern", None, 10, 20), ("Chur", "7000", 20, None)]


def test_a_run_reads_a_topic(servers: str, tmp_path: Path) -> None:
    produced(servers, "history", *({"id": 1} | each for each in MOVE), partition=0)
    with history_of(dd.formats.debezium(), COLUMNS).open(tmp_path / "state") as engine:
        done = engine.run({"t": dd.sources.kafka(servers, "history")})
        assert done.rows == 3
        assert versions(engine, "city") == [("Bern", 10, 20), ("Chur", 20, 30)]


def test_a_time_is_in_one_version_whatever_its_order_is() -> None:
    """The rule of versions, of the first order column: valid_from <= t < valid_to."""
    changes, _ = twin([("c", 1, n % 3) for n in range(9)])
    with history_of(dd.formats.maxwell()).open() as engine:
        engine.step({"t": pa.Table.from_pylist(messages_of(changes, "maxwell"))})
        found = engine.read("history")
        for t in range(1, 12):
            holds = pc.and_(pc.less_equal(found["valid_from"], t), pc.fill_null(pc.greater(found["valid_to"], t), True))
            assert pc.sum(holds.cast(pa.int64())).as_py() == 1
