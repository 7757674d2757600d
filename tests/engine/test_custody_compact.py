"""Test compaction to the present, which must erase every byte of deleted rows of any type.

The tests search the bytes of a state's folder for deleted rows. They read the expected answers before the compaction.
Copies of the folder are also states.
"""

from __future__ import annotations

import decimal
import shutil
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from messages import raises
from typer.testing import CliRunner

import ddflow as dd
from ddflow.cli import app
from ddflow.engine.garbage import collect_file_names
from ddflow.errors import EpochSkipped, Fenced, NotReadable, SpecError
from ddflow.storage.folder.local import LocalStore
from ddflow.storage.manifest import load_manifest
from ddflow.storage.memory import MemoryStore

TEXT, NUMBER = "FORGET-ME-OF-ALL", 0x46524754_4D455F4E
MARKS = (TEXT.encode(), NUMBER.to_bytes(8, "little"))
SCHEMA = pa.schema(
    {
        "id": pa.int64(),
        "email": pa.string(),
        "ref": pa.int64(),
        "at": pa.string(),
        "n": pa.int64(),
        "op": pa.string(),
        "tags": pa.list_(pa.string()),
        "more": pa.struct({"a": pa.string(), "b": pa.int64()}),
        "cash": pa.decimal128(38, 0),
        "blob": pa.binary(),
        "big": pa.large_string(),
        "sure": pa.string(),
    }
).set(11, pa.field("sure", pa.string(), nullable=False))
SPECS: dict[str, dict[str, Any]] = {
    "the last wins": {"key": "id"},
    "by a number": {"key": "id", "order_by": "n"},
    "by a text": {"key": "id", "order_by": "at"},  # which is kept beside the payload
    "by an email": {"key": ["email", "id"], "order_by": "n", "tie": "greatest", "value": ["email", "id", "ref", "n"]},
    "by time": {"key": "id", "time": "n"},
}


def plan(spec: dict[str, Any]) -> dd.Flow:
    flow = dd.Flow()
    people = flow.upserts("people", SCHEMA, dd.Upsert(**spec, delete=dd.tombstone("op", "D")))
    flow.output("people", people)
    flow.output("emails", people.filter("id >= 0").project(["email"]).count())
    return flow


def person(i: int, n: int, marked: bool, op: str = "U") -> dict[str, Any]:
    text, number = (TEXT, NUMBER) if marked else (f"person {i}", i)
    return {
        "id": i,
        "email": text,
        "ref": number,
        "at": f"2024-{n:02}",
        "n": n,
        "op": op,
        "tags": [text, "x"],
        "more": {"a": text, "b": number},
        "cash": decimal.Decimal(number),
        "blob": text.encode(),
        "big": text,
        "sure": text,
    }


def table(*people: dict[str, Any]) -> dict[str, pa.Table]:
    return {"people": pa.Table.from_pylist(list(people), SCHEMA)}


def found(place: Path) -> list[str]:
    """The files that hold a mark."""
    files = [path for path in place.rglob("*") if path.is_file()]
    return [path.name for path in files if any(mark in path.read_bytes() for mark in MARKS)]


def live(engine: dd.Engine, calls: list[dict[str, pa.Table]]) -> None:
    for time, inputs in enumerate(calls, engine.last + 1 if engine.last >= 0 else 1):
        if engine.flow.holds_back:
            engine.push(inputs)
            engine.advance_to(max(inputs["people"].column("n").to_pylist()) + 1)
        else:
            engine.step(inputs, time)


@pytest.mark.parametrize("memory", [None, "16MB"])
@pytest.mark.parametrize("spec", SPECS)
def test_no_byte_of_a_row_that_is_gone_is_in_any_file(tmp_path: Path, spec: str, memory: str | None) -> None:
    flow, state = plan(SPECS[spec]), tmp_path / "state"
    gone = {**person(5, 3, True, "D")}  # a deletion with the whole row in it, as Debezium gives it
    calls = [
        table(*(person(i, 1, i in (5, 6)) for i in range(40))),
        table(gone, person(6, 3, False)),
        table(person(6, 4, False), person(7, 4, False)),
    ]
    if spec == "by an email":
        calls.append(table(person(6, 5, True, "D")))
    with flow.open(state, memory=memory) as engine:
        live(engine, calls)
        rows, counts = engine.read("people"), engine.read("emails")
        assert len(found(state)) > 2
        engine.compact(forget=True)
        engine._check_invariants()
        assert found(state) == []
        assert engine.read("people").equals(rows) and engine.read("emails").equals(counts)
        epoch = engine.epoch
        if not flow.holds_back:
            with pytest.raises(EpochSkipped):  # what it put out was forgotten, too
                engine.step(calls[-1], engine.last, epoch=epoch)
    store = LocalStore(state, readonly=True)
    named = set[str]().union(
        *(collect_file_names(store, load_manifest(store, number)) for number in store.list_manifests())
    )
    assert {entry.name for entry in store.list_blobs()} == named and len(store.list_manifests()) == 2
    with flow.open(state, memory=memory) as engine:
        engine._check_invariants()
        assert engine.epoch == epoch and engine.read("people").equals(rows)
        if "order_by" in SPECS[spec]:  # the order that the key was deleted by is still known
            late = {**person(5, 2, spec == "by an email"), "op": "U"}
            assert engine.step(table(late), engine.last + 1).verdicts["stale"] == 1
        live(engine, [table(person(5, 9, False))])
        assert engine.read("people").num_rows == rows.num_rows + 1


def test_events_that_were_released_are_not_left_beside_those_that_wait(tmp_path: Path) -> None:
    flow = plan(SPECS["by time"])
    for memory in (None, "16MB"):
        state = tmp_path / f"state {memory}"
        with flow.open(state, memory=memory) as engine:
            engine.push(table(person(1, 1, True), person(2, 9, False)))
            engine.push(table(person(1, 3, False), person(3, 8, False)))
            engine.advance_to(5)
            engine.compact(forget=True)
            engine._check_invariants()
            assert found(state) == [], memory
        with flow.open(state, memory=memory) as engine:
            assert engine.verdicts.pending == 2
            engine.advance_to(10)
            assert engine.read("people").num_rows == 3


def test_without_forgetting_history_stays_and_epochs_can_be_given_again() -> None:
    flow, store = plan(SPECS["the last wins"]), MemoryStore()
    calls = [table(*(person(i, n, False) for i in range(n))) for n in range(1, 6)]
    with flow.open(store, retain=3) as engine:
        live(engine, calls)
        then = engine.read("people", as_of=3)
        runs = len(store.list_blobs())
        engine.compact()
        engine._check_invariants()
        assert engine.read("people", as_of=3).equals(then) and len(store.list_blobs()) > runs
        again = engine.step(calls[-1], 5, epoch=5)
        assert again["people"].num_rows and engine.epoch == 5
        slow = engine.reader("people", at=4)
        with raises(SpecError):
            engine.compact(forget=True)
        slow.close()
        engine.compact(forget=True)
        with pytest.raises(NotReadable):
            engine.read("people", as_of=4)
        engine.step(calls[0], 6)
    with flow.open(store.reopen()) as engine:
        engine._check_invariants()


def test_what_is_not_committed_or_not_told_yet_must_be_first(tmp_path: Path) -> None:
    flow, state = plan(SPECS["the last wins"]), tmp_path / "state"
    with flow.open(state, commit_every=None) as engine:
        engine.step(table(person(1, 1, False)), 1)
        with raises(SpecError):
            engine.compact()
        engine.flush()
        engine.compact()
    flow.output("ids", flow.inputs["people"].project(["id"]))
    with flow.open(state) as engine:
        with raises(SpecError):
            engine.compact()
        assert engine.step({}, 2)["ids"].num_rows == 1
        engine.compact()


def test_in_memory_it_is_a_merge(tmp_path: Path) -> None:
    flow = plan(SPECS["by a number"])
    for options in ({}, {"memory": "16MB", "spill": tmp_path}):
        with flow.open(**options) as engine:
            engine.compact()  # of nothing
            live(engine, [table(*(person(i, n, False) for i in range(n * 9))) for n in range(1, 6)])
            rows = engine.read("people")
            engine.compact(forget=True)
            engine._check_invariants()
            assert engine.read("people").equals(rows)
            assert len(engine.dataflow.graph.inputs["people"].output_arrangement.slots.batches) == 1


def test_the_verb_forgets_and_fences(tmp_path: Path) -> None:
    flow, state = plan(SPECS["by a number"]), tmp_path / "state"
    with flow.open(state) as engine:
        live(engine, [table(person(1, 1, True), person(2, 1, False)), table(person(1, 2, False, "D"))])
        result = CliRunner().invoke(app, ["gc", str(state), "--forget"])
        assert result.exit_code == 0 and "no longer contains deleted or replaced rows" in result.output, result.output
        assert found(state) == []
        with pytest.raises(Fenced):
            engine.step(table(person(3, 3, False)), 9)
    assert dd.read(state, "people").num_rows == 1
    assert CliRunner().invoke(app, ["gc", str(state), "--forget", "--dry-run"]).exit_code == 2


@pytest.mark.parametrize("memory", [None, "16MB"])
def test_a_copy_of_the_folder_between_commits_is_a_state(tmp_path: Path, memory: str | None) -> None:
    flow, state, copy = plan(SPECS["by a number"]), tmp_path / "state", tmp_path / "copy"
    calls = [table(*(person(i, n, False) for i in range(n * 5))) for n in range(1, 9)]
    with flow.open(state, memory=memory) as engine:
        live(engine, calls[:5])
        shutil.copytree(state, copy)  # the engine is open, and between commits
        live(engine, calls[5:])
        expected = engine.read("people")
    assert dd.fsck(copy).ok and dd.verify(copy, {"people": calls_of(calls[:5])}).ok
    with flow.open(copy, memory=memory) as engine:
        engine._check_invariants()
        again = engine.step(calls[4], 5, epoch=5)
        assert again["people"].num_rows
        live(engine, calls[5:])
        assert engine.read("people").num_rows == expected.num_rows
        assert sorted(engine.read("people").column("id").to_pylist()) == sorted(expected.column("id").to_pylist())
    assert dd.verify(copy, {"people": calls_of(calls)}).ok
    assert dd.read(copy, "people").equals(dd.read(state, "people"))  # it has the same secret


def calls_of(calls: list[dict[str, pa.Table]]) -> list[pa.Table]:
    return [call["people"] for call in calls]
