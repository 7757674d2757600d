"""Test that an input accepts only one table's messages: messages of other tables, or without a table name, are bad."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from messages import raises

import ddflow as dd

COLUMNS = {"id": pa.int64(), "v": pa.string()}


def flow_of(on_bad: Any = "stop", table: str | None = None, **spec: Any) -> dd.Flow:
    flow = dd.Flow()
    format = dd.formats.debezium(on_bad=on_bad, table=table)
    flow.output("t", flow.upserts("t", COLUMNS, dd.Upsert(key="id", **spec), format=format))
    return flow


def change(n: int, op: str = "c", **source: Any) -> dict[str, Any]:
    """A message of the table ``t``, or as ``source`` says; the row of another table has a column of another name."""
    source = {"schema": "public", "table": "t", "lsn": 10 + n} | source
    row = {"id": n, "v" if source["table"] == "t" else "w": "x"}
    return {"op": op, "before": row if op == "d" else None, "after": None if op == "d" else row, "source": source}


def messages(*each: Any) -> pa.Table:
    return pa.table({"value": [m if isinstance(m, str) else json.dumps(m) for m in each]})


MIXED = messages(
    change(1),
    change(2, table="u"),
    change(1, lsn=30, table="u"),
    change(3),
    change(1, "t", lsn=40, table="u"),
    change(3, "d", lsn=50, table="u"),
)


def test_messages_of_other_tables_than_that_of_the_first_are_bad() -> None:
    found = r"row 1.*: its table is 'public.u', but other messages are of 'public.t': "
    found += r"split the messages by table, or .*\(table='public.t'\) \(4 of 6"
    with flow_of().open() as engine:
        with pytest.raises(dd.errors.BadMessage, match=found):
            engine.step({"t": MIXED})
        assert engine.read("t").num_rows == 0
    with flow_of("drop").open() as engine:
        step = engine.step({"t": MIXED})
        assert str(step.verdicts) == "applied 2, bad 4"
        assert step["t.bad"]["position"].to_pylist() == ["row 1", "row 2", "row 4", "row 5"]
        assert sorted(engine.read("t")["id"].to_pylist()) == [1, 3]


@pytest.mark.parametrize("memory", [None, "64MB"])
def test_the_table_is_remembered_in_the_state(tmp_path: Path, memory: str | None) -> None:
    first, other = messages(change(1), change(2)), messages(change(1, lsn=30, table="u"), change(4))
    budget: dict[str, Any] = {} if memory is None else {"memory": memory, "spill": tmp_path}
    with flow_of().open(tmp_path / "stop", **budget) as engine:
        engine.step({"t": messages(change(0, "m"))})
        engine.step({"t": first})
    for _ in range(2):
        with flow_of().open(tmp_path / "stop", **budget) as engine:
            with raises(dd.errors.BadMessage):
                engine.step({"t": other})
            engine.step({"t": messages(change(3))})
    with flow_of("drop").open(tmp_path / "drop", **budget) as engine:
        engine.step({"t": first}, epoch=1)
    with flow_of("drop").open(tmp_path / "drop", **budget) as engine:
        assert str(engine.step({"t": other}, epoch=2).verdicts) == "applied 1, bad 1"
        assert engine.step({"t": other}, epoch=2)["t.bad"].num_rows == 1  # given again
        assert sorted(engine.read("t")["id"].to_pylist()) == [1, 2, 4]
    assert dd.verify(tmp_path / "drop", {"t": [first, other]}).ok
    assert dd.verify(tmp_path / "drop", {"t": [first, messages("{")]}).ok is False


def test_what_was_refused_is_not_remembered() -> None:
    with flow_of().open() as engine:
        with pytest.raises(dd.errors.BadMessage):
            engine.step({"t": messages(change(1, table="u"), "{")})
        engine.step({"t": messages(change(1))})


def test_a_message_without_its_key_is_bad_unless_such_rows_are_kept() -> None:
    lacks = change(1)
    lacks["after"] = {"v": "x"}
    for null_key, said in (("error", "applied 1, bad 1"), ("drop", "applied 1, bad 1"), ("keep", "applied 2")):
        with flow_of("drop", null_key=null_key).open() as engine:
            step = engine.step({"t": messages(lacks, change(2))})
            assert str(step.verdicts) == said
            if null_key == "error":
                assert step["t.bad"]["reason"].to_pylist() == ["its key 'id' is null"]


@pytest.mark.parametrize(
    ("name", "source"),
    [
        ("public.t", {"schema": None}),
        ("shop.public.t", {"db": None}),
        ("t", {"table": None}),
        ("public.t", {"table": None}),
    ],
)
def test_with_a_table_named_a_message_that_does_not_say_its_own_is_bad(name: str, source: dict[str, Any]) -> None:
    silent, other = change(1, **source), change(2, table="u", schema=None)
    with flow_of(table=name).open() as engine:
        with raises(dd.errors.BadMessage):
            engine.step({"t": messages(silent)})
        engine.step({"t": messages(change(3, db="shop"), other, change(4, table="u", schema="other", db="shop"))})
        assert engine.read("t")["id"].to_pylist() == [3]


def of_schema(n: int, schema: str | None, kind: str, table: str = "t") -> str:
    """A message of a kind of format, of a table of a schema: of a database, where MySQL has that alone."""
    row = {"id": n, "v": schema}
    where: Any = {"database": schema, "table": table}
    names, cells = ["id", "v"], [{"name": "id", "value": n}, {"name": "v", "value": schema}]
    one = {"kind": "insert", "schema": schema, "table": table, "columnnames": names, "columnvalues": [n, schema]}
    return json.dumps(
        {
            "debezium": {"op": "c", "after": row, "source": {"db": "d", "schema": schema, "table": table}},
            "mysql": {"op": "c", "after": row, "source": {"db": schema, "table": table}},
            "flattened": row | {"__op": "c", "__source_schema": schema, "__source_table": table},
            "maxwell": {"type": "insert", "data": row, **where},
            "canal": {"type": "INSERT", "data": [{"id": str(n), "v": schema}], **where},
            "wal2json": {"action": "I", "schema": schema, "table": table, "columns": cells},
            "wal2json 1": {"change": [one]},
        }[kind]
    )


def format_of(kind: str, **options: Any) -> Any:
    more = {"flattened": True} if kind == "flattened" else {}
    name = {"mysql": "debezium", "flattened": "debezium", "wal2json 1": "wal2json"}.get(kind, kind)
    return getattr(dd.formats, name)(**options, **more)


KINDS = ["debezium", "mysql", "flattened", "maxwell", "canal", "wal2json", "wal2json 1"]


def fed(kind: str, path: Path, *given: Any, **options: Any) -> tuple[list[Any], str]:
    """The rows that messages leave, (number, schema, table) each and step by step, and the reasons of bad ones."""
    flow = dd.Flow()
    format = format_of(kind, on_bad="drop", **options)
    flow.output("t", flow.upserts("t", COLUMNS, dd.Upsert(key="id"), format=format))
    reasons = list[str]()
    for batch in given:
        with flow.open(path) as engine:
            step = engine.step({"t": messages(*(of_schema(n, schema, kind, table) for n, schema, table in batch))})
            reasons += step["t.bad"]["reason"].to_pylist()
    with flow.open(path) as engine:
        return sorted(tuple(row.values())[:2] for row in engine.read("t").to_pylist()), "; ".join(reasons)


@pytest.mark.parametrize("kind", KINDS)
def test_tables_of_one_name_in_two_schemas_are_two(kind: str, tmp_path: Path) -> None:
    own, other = ("d.a.t", "d.b.t") if kind == "debezium" else ("a.t", "b.t")
    for number, batches in enumerate(
        ([[(1, "a", "t"), (2, "b", "t"), (3, "a", "t")]], [[(1, "a", "t")], [(2, "b", "t"), (3, "a", "t")]])
    ):
        for name in (None, "t"):
            rows, reasons = fed(kind, tmp_path / f"{number}-{name}", *batches, table=name)
            assert rows == [(1, "a"), (3, "a")]
            found = f"its table is '{other}', but other messages are of '{own}': split the messages by table, or "
            found += "select one in a flow: dd.formats."
            assert reasons.startswith(found)
            assert reasons.endswith(f"(table='{own}')")
        for name in ("a.t", own):
            assert fed(kind, tmp_path / f"{number}-{name}", *batches, table=name) == ([(1, "a"), (3, "a")], "")


@pytest.mark.parametrize("kind", KINDS[1:])
def test_a_table_is_the_same_whether_its_schema_is_said_or_not(kind: str, tmp_path: Path) -> None:
    rows, reasons = fed(kind, tmp_path, [(1, None, "t"), (2, "a", "t")], [(3, None, "t"), (4, "b", "t")])
    assert rows == [(1, None), (2, "a"), (3, None)]
    assert reasons.startswith("its table is 'b.t', but other messages are of 'a.t': split the messages by table")


@pytest.mark.parametrize("kind", KINDS)
def test_with_a_table_named_json_that_is_no_event_is_bad_as_without(kind: str) -> None:
    values = ["[1,2,3]", "17", '"x"', "{}", '{"op":"c"}', '{"payload":5}', '{"type":"insert"}', '{"action":"I"}']
    for table in (None, "a.t"):
        flow = dd.Flow()
        flow.output("t", flow.upserts("t", COLUMNS, dd.Upsert(key="id"), format=format_of(kind, table=table)))
        with flow.open() as engine:
            for value in values:
                with pytest.raises((dd.errors.BadMessage, dd.errors.NullKey)):
                    engine.step({"t": messages(value)})
    flow = dd.Flow()
    format = format_of(kind, table="a.t", on_bad="drop")
    flow.output("t", flow.upserts("t", COLUMNS, dd.Upsert(key="id"), format=format))
    with flow.open() as engine:
        step = engine.step({"t": messages(*values, of_schema(1, "a", kind), of_schema(2, "a", kind, "u"))})
        assert (step.verdicts.bad, step.verdicts.applied) == (len(values), 1)


def test_a_name_alone_leaves_out_tables_of_other_names(tmp_path: Path) -> None:
    every = [(1, "a", "t"), (2, "a", "u"), (3, "b", "u")]
    assert fed("debezium", tmp_path, every, table="t") == ([(1, "a")], "")


def test_a_log_with_bad_messages_is_verified_as_the_steps_took_it(tmp_path: Path) -> None:
    log = messages(change(1), "{", change(2))
    with flow_of("drop").open(tmp_path / "state") as engine:
        engine.step({"t": log})
    found = dd.verify(tmp_path / "state", {"t": log})
    assert found.ok and (found.inputs["t"].bad, found.inputs["t"].events) == (1, 3)
    assert "1 messages of the log cannot be read, and are skipped because of on_bad='drop'" in str(found)
    assert not dd.verify(tmp_path / "state", {"t": messages(change(1), "{")}).ok
