"""Test the single warning for a declared column or table without messages, with the nearest existing name."""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from messages import raises

import ddflow as dd
from ddflow.connectors.formats.base import (
    SAMPLE,
    MessageTarget,
    build_events_schema,
    decode_messages,
    find_undeclared_columns,
)
from ddflow.connectors.formats.messages import find_nearest_table
from ddflow.engine.evolve import evolve_engine

COLUMNS = {"id": pa.int64(), "amout": pa.float64()}
SAYS = "no message so far has the declared column 'amout', so it is null: did you mean 'amount'? "
SAYS += "the columns are ['id', 'amount']"
KINDS = ["plain_json", "debezium", "schema", "flattened", "kcat", "maxwell", "canal", "wal2json", "wal2json 1"]


def format_of(kind: str, **options: Any) -> Any:
    if kind == "kcat":
        return dd.formats.kcat(dd.formats.debezium(**options))
    more = {"flattened": True} if kind == "flattened" else {}
    name = {"schema": "debezium", "flattened": "debezium", "wal2json 1": "wal2json"}.get(kind, kind)
    return getattr(dd.formats, name)(**options, **more)


def message(kind: str, row: dict[str, Any], op: str = "c", table: str = "t") -> str:
    """A message of a kind of format with a row: of an insert, or of a delete, which has all of the row before it."""
    gone, n = op == "d", row["id"]
    change = {"op": op, "before": row if gone else None, "after": None if gone else row, "source": {"table": table}}
    fields = [{"field": name, "type": "double" if name != "id" else "int64"} for name in row]
    after = {"field": "after", "type": "struct", "fields": fields}
    cells = [{"name": name, "value": cell} for name, cell in row.items()]
    keys: dict[str, Any] = {"columnnames": [*row], "columnvalues": [*row.values()]}
    keys |= {"oldkeys": {"keynames": ["id"], "keyvalues": [n]}}
    texts = {name: None if cell is None else str(cell) for name, cell in row.items()}
    made: dict[str, Any] = {
        "plain_json": row,
        "debezium": change,
        "schema": {"schema": {"type": "struct", "fields": [after]}, "payload": change},
        "flattened": row | {"__deleted": str(gone).lower(), "__table": table},
        "kcat": {"topic": "t", "partition": 0, "offset": n, "key": None, "payload": json.dumps(change)},
        "maxwell": {"type": "delete" if gone else "insert", "table": table, "data": row},
        "canal": {"type": "DELETE" if gone else "INSERT", "table": table, "data": [texts]},
        "wal2json": {"action": "D" if gone else "I", "table": table, "columns": cells, "identity": cells[:1]},
        "wal2json 1": {"change": [{"kind": "delete" if gone else "insert", "table": table, **keys}]},
    }
    return json.dumps(made[kind])


def said(format: Any, *steps: Any, columns: Any = None, key: str = "id") -> list[str]:
    """What an engine warns of, given messages step by step."""
    flow = dd.Flow()
    flow.output("t", flow.upserts("t", columns or COLUMNS, dd.Upsert(key=key), format=format))
    with flow.open() as engine:
        return warned(*(lambda given=given: engine.step({"t": given}) for given in steps))


def warned(*calls: Any) -> list[str]:
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        for call in calls:
            call()
    assert {each.category for each in told} <= {UserWarning}
    return [str(each.message) for each in told]


def values(*each: str | None) -> pa.Table:
    return pa.table({"value": pa.array(each, pa.string()), "key": ['{"id": 1}'] * len(each)})


@pytest.mark.parametrize("kind", KINDS)
def test_a_column_that_no_message_has_is_told_once(kind: str) -> None:
    first, second = (values(message(kind, {"id": n, "amount": 2.5})) for n in (1, 2))
    assert said(format_of(kind), first, second) == [f"messages for 't': {SAYS}"]


@pytest.mark.parametrize("kind", KINDS)
def test_a_column_that_messages_get_and_nobody_declared_is_found_in_a_sample(kind: str) -> None:
    format, columns = format_of(kind, on_bad="drop"), pa.schema({"id": pa.int64()})
    target = MessageTarget("'t'", columns, ("id",), (), True, build_events_schema(format, columns, True))
    given = values(*(message(kind, {"id": n}) for n in range(2 * SAMPLE)), message(kind, {"id": 0, "note": "x"}), "{")
    made = decode_messages(format, given, target)
    assert find_undeclared_columns(format, given, made, ["id"], "'t'") == ["note"]
    assert find_undeclared_columns(format, given, made, ["id", "note"], "'t'") == []
    assert (
        find_undeclared_columns(
            format, given.slice(0, 0), decode_messages(format, given.slice(0, 0), target), [], "'t'"
        )
        == []
    )


@pytest.mark.parametrize("kind", KINDS)
def test_a_column_that_is_null_in_all_messages_is_none_of_them(kind: str) -> None:
    one, other = (message(kind, {"id": 1, "amout": amount}) for amount in (None, 1.5))
    assert said(format_of(kind), values(one), values(one, other), values(one)) == []


@pytest.mark.parametrize("kind", KINDS)
def test_a_column_that_came_before_is_missed_no_more(kind: str) -> None:
    told, lacks = (message(kind, {"id": 1, name: 1.5}) for name in ("amout", "amount"))
    assert said(format_of(kind), values(told), values(lacks)) == []
    assert said(format_of(kind), values(lacks, told), values(lacks)) == []


@pytest.mark.parametrize("kind", KINDS[1:])
def test_deletes_say_nothing_of_columns(kind: str) -> None:
    gone, lacks = message(kind, {"id": 1}, "d"), message(kind, {"id": 1, "amount": 2})
    assert said(format_of(kind), values(gone)) == []
    assert said(format_of(kind), values(gone), values(lacks)) == [f"messages for 't': {SAYS}"]


def test_tombstones_and_what_cannot_be_read_say_nothing() -> None:
    assert said(dd.formats.debezium(on_bad="drop"), values(None), values("{", None), values("{}")) == []
    assert said(dd.formats.plain_json(), values(None)) == []


def test_messages_of_other_tables_say_nothing() -> None:
    mine, other = message("debezium", {"id": 1, "amount": 2}), message("debezium", {"id": 1, "amout": 2}, table="u")
    for format in (dd.formats.debezium(table="t"), dd.formats.debezium(on_bad="drop")):
        assert said(format, values(mine, other)) == [f"messages for 't': {SAYS}"]


def elsewhere(*names: str) -> pa.Table:
    """Messages of some tables, or of one with a schema."""
    return values(*(message("debezium", {"id": n, "amout": 1}, table=name) for n, name in enumerate(names)))


@pytest.mark.parametrize("kind", KINDS[1:])
def test_a_table_that_no_message_is_of_is_told_once_with_the_nearest_that_there_is(kind: str) -> None:
    of = {name: values(message(kind, {"id": 1, "amout": 2}, table=name)) for name in ("people", "parcels")}
    both = pa.concat_tables(of.values())
    says = "messages for 't': no message so far is of the table 'parcel', so no row came"
    told = [f"{says}: did you mean 'parcels'? 2 changes are of ['people', 'parcels']"]
    assert said(format_of(kind, table="parcel"), both, both) == told
    assert said(format_of(kind, table="parcel"), values(), *of.values()) == [f"{says}: 1 change is of ['people']"]
    assert said(format_of(kind, table="people"), of["people"], of["parcels"]) == []
    assert said(format_of(kind, table="people"), both, of["parcels"]) == []


def test_a_table_whose_changes_are_deletes_or_bad_is_there() -> None:
    gone, bad = message("debezium", {"id": 1}, "d"), message("debezium", {"id": 1, "amout": "x"})
    format, others = dd.formats.debezium(table="t", on_bad="drop"), elsewhere("u")
    assert said(format, values(gone), others) == said(format, values(bad), others) == []
    assert said(format, values(None, "{", "7"), values(), others) == [
        "messages for 't': no message so far is of the table 't', so no row came: 1 change is of ['u']"
    ]


def test_a_table_that_was_named_with_its_schema_is_near_one_of_another() -> None:
    assert find_nearest_table("inventori.orders", ["shop.orders", "inventory.orders"]) == "inventory.orders"
    assert (
        find_nearest_table("server1.inventory.orders", ["inventory.people", "inventory.orders"]) == "inventory.orders"
    )
    assert find_nearest_table("Orders", ["a.people", "a.orders"]) == "a.orders"
    assert find_nearest_table("x", ["a.people"]) is None
    many = said(dd.formats.debezium(table="t"), elsewhere(*(f"u{n}" for n in range(12))))
    assert many[0].endswith("so no row came: did you mean 'u0'? 12 changes are of ['u0']") or " and 2 more" in many[0]


def test_a_state_in_which_a_table_came_looks_for_it_no_more(tmp_path: Path) -> None:
    flow, mine, other = dd.Flow(), elsewhere("t"), elsewhere("u")
    flow.output("t", flow.upserts("t", COLUMNS, dd.Upsert(key="id"), format=dd.formats.debezium(table="t")))
    says = ["messages for 't': no message so far is of the table 't', so no row came: 1 change is of ['u']"]
    for given, told in ((other, says), (other, says), (mine, []), (other, [])):
        with flow.open(tmp_path / "state") as engine:
            assert warned(lambda given=given: engine.step({"t": given})) == told
    with flow.open() as engine:
        assert warned(lambda: engine.replace("t", other), lambda: engine.replace("t", other)) == says
        engine.evolve({"t": {"more": "double"}})
        assert warned(lambda: engine.step({"t": other})) == []


@pytest.mark.parametrize("kind", ["debezium", "wal2json"])
def test_a_cell_that_was_left_out_says_nothing_of_its_column(kind: str) -> None:
    hidden = json.loads(message(kind, {"id": 1, "amout": "__debezium_unavailable_value"}))
    hidden |= {"op": "u"} if kind == "debezium" else {"action": "U", "columns": [{"name": "id", "value": 1}]}
    columns = {"id": pa.int64(), "amout": pa.string()}
    assert said(format_of(kind, unavailable=True), values(json.dumps(hidden)), columns=columns) == []


def test_a_column_that_may_not_be_null_and_rows_of_a_change_feed() -> None:
    columns = pa.schema([pa.field("id", pa.int64()), pa.field("amout", pa.float64(), nullable=False)])
    assert said(dd.formats.plain_json(), values('{"id": 1, "amount": 2}'), columns=columns) == [
        f"messages for 't': {SAYS}"
    ]
    feed = pa.table({"id": [1], "amount": [2.5], "_change_type": ["insert"], "_commit_version": [1]})
    assert said(dd.formats.delta_cdf(), feed, feed) == [f"messages for 't': {SAYS}"]
    assert said(dd.formats.custom(lambda messages: {"id": [1]}), values("x")) == []


def test_a_key_that_no_message_has_is_refused_by_its_nearest_name() -> None:
    with raises(dd.errors.NullKey):
        columns = {"idd": int, "v": int}
        said(dd.formats.plain_json(), pa.table({"value": ['{"id": 1, "v": 2}']}), columns=columns, key="idd")


def test_in_pieces_full_contents_columns_that_come_later_and_a_run(tmp_path: Path) -> None:
    lacks, told = '{"id": %d, "amount": 1}', '{"id": %d, "amout": 1}'
    flow = dd.Flow()
    flow.output("t", flow.upserts("t", COLUMNS, dd.Upsert(key="id"), format=dd.formats.plain_json()))
    with flow.open(memory="16MB", spill=tmp_path) as engine:  # a call in pieces, of which the last has the column
        every = values(*[lacks % n for n in range(200_000)], told % 1)
        assert warned(lambda: engine.step({"t": every})) == []
    with flow.open() as engine:
        given = pa.table({"value": [lacks % 1]})
        assert warned(lambda: engine.replace("t", given), lambda: engine.replace("t", given)) == [
            f"messages for 't': {SAYS}"
        ]
        evolve_engine(engine.calls, {"t": {"amount": "double", "more": "double"}}, found=True)  # as a run does
        assert len(told_of := warned(lambda: engine.step({"t": given}), lambda: engine.step({"t": given}))) == 1
        assert "the declared column 'more'" in told_of[0]
    (tmp_path / "in.jsonl").write_text(lacks % 1)
    with flow.open(tmp_path / "state") as engine:
        source = dd.sources.files(tmp_path / "in.jsonl", lines=True)
        assert warned(lambda: engine.run({"t": source})) == [f"messages for 't': {SAYS}"]
