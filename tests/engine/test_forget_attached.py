"""Test forgetting in states with sources and sinks: no file has a byte of a deleted row.

Files are searched as bytes, and compressed files buffer by buffer as Arrow reads them. The tests also search for a
number's hash, because the state's secret recovers the number from it.
"""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from messages import raises
from typer.testing import CliRunner

import ddflow as dd
from ddflow.cli import app
from ddflow.columns.hashing import RowHasher, Secret
from ddflow.engine.garbage import gc
from ddflow.errors import SpecError
from ddflow.partitions.rescale import rescale
from ddflow.storage import backlog
from ddflow.storage.manifest import load_newest_manifest
from ddflow.storage.opening import open_store
from ddflow.tools.fsck import fsck

TEXT, NUMBER = "FORGET-ME-OF-ALL", 0x46524754_4D455F4E
COLUMNS: dict[str, Any] = {
    "id": pa.int64(),
    "at": pa.int64(),
    "name": pa.string(),
    "ref": pa.int64(),
    "blob": pa.binary(),
    "tags": pa.list_(pa.string()),
    "more": pa.struct({"a": pa.string(), "b": pa.int64()}),
    "op": pa.string(),
}


def plan(held_back: bool) -> dd.Flow:
    """All that keeps rows: an upsert, groups of texts and of numbers, a column by itself, what could not be read."""
    flow = dd.Flow()
    time: dict[str, Any] = {"time": "at", "lateness": 0} if held_back else {}
    spec = dd.Upsert(key="id", delete="op = 'D'", **time)
    people = flow.upserts("people", COLUMNS, spec, format=dd.formats.plain_json(on_bad="drop"))
    flow.output("people", people)
    flow.output("names", people.project(["name"]).count())
    flow.output("refs", people.project(["ref"]).count())
    flow.output("tops", people.project(["id", "ref", "name"]).top(3, by=["ref desc"]))
    flow.output("by_name", people.group_by("name").agg(last="last(blob order by id)", least="min(ref)"))
    return flow


def person(number: int, at: int, marked: bool, op: str = "U") -> str:
    """A message; a deletion has the whole row in it."""
    text, ref = (TEXT, NUMBER) if marked else (f"person {number}", number)
    more = {"a": text, "b": ref}
    blob = base64.b64encode(text.encode()).decode()
    row = {"id": number, "at": at, "name": text, "ref": ref, "blob": blob, "tags": [text, "x"], "more": more, "op": op}
    return json.dumps(row)


def marks(state: Path) -> list[bytes]:
    """What must not be there."""
    store = open_store(state)
    manifest = load_newest_manifest(store)
    store.close()
    assert manifest is not None
    secret = Secret(*manifest.secret)
    column, one = pa.array([NUMBER]), pa.schema({"ref": pa.int64()})
    hashes = RowHasher(one, secret)
    numbers = [
        int(hashes.compute_value_hashes([column], 1)[0]),
        int(hashes.compute_identities([column], 1)[0][0]),
        NUMBER,
    ]
    texts = [TEXT.encode(), TEXT.encode("utf-16-le")]
    return [
        *texts,
        *(number.to_bytes(8, order) for number in numbers for order in ("little", "big")),
        str(NUMBER).encode(),
    ]


def found(state: Path, sought: list[bytes] | None = None) -> set[str]:
    """The files that hold one."""
    sought, out = marks(state) if sought is None else sought, set[str]()
    for path in (each for each in state.rglob("*") if each.is_file()):
        texts = [path.read_bytes()]
        if path.suffix == ".arrow":
            columns = pa.ipc.open_file(path).read_all().columns
            texts += [bytes(b) for c in columns for chunk in c.chunks for b in chunk.buffers() if b is not None]
        if any(mark in text for mark in sought for text in texts):
            out.add(path.name)
    return out


class Case:
    """A state that is fed from files and feeds sinks."""

    def __init__(self, place: Path, held_back: bool, options: dict[str, Any], compressed: bool) -> None:
        self.place, self.state, self.flow, self.options = place, place / "state", plan(held_back), options
        self.source = {"people": dd.sources.files(place / "in" / "*.jsonl", lines=True)}
        names = ("people", "names", "people.bad")
        self.sinks = {name: dd.sinks.sqlite(place / f"{name}.db", "t", mode="updates") for name in names}
        self.compressed, self.files = compressed, 0
        (place / "in").mkdir()

    def open(self) -> dd.Engine:
        engine = self.flow.open(self.state, **self.options)
        assert engine.durable is not None
        engine.durable.batch_store.compresses = self.compressed
        return engine

    def land(self, *lines: str) -> None:
        self.files += 1
        (self.place / "in" / f"{self.files:03}.jsonl").write_text("\n".join(lines))

    def live(self) -> None:
        """Rows that come, change and go, and a message that cannot be read, while sinks have nothing yet."""
        with self.open() as engine:
            engine.run({}, self.sinks)
            self.land(*(person(i, 1, i in (5, 6, 7)) for i in range(30)))
            engine.run(self.source)
            self.land(f"{{{TEXT} {NUMBER} ", person(5, 2, True, "D"), person(6, 2, False))
            engine.run(self.source)
            for at in range(3, 12):
                self.land(person(7, at, True, "U" if at < 9 else "D"), person(8, at, False))
                engine.run(self.source)
            self.land(person(9, 20, False))
            engine.run(self.source)
            assert engine.verdicts["bad"] == 1 and engine.read("people").num_rows > 25


@pytest.mark.drawn(2)
@pytest.mark.parametrize(
    ("held_back", "options", "compressed"),
    [
        (False, {}, False),
        (False, {"memory": "16MB", "retain": 5}, False),
        (True, {"retain": 3}, False),
        (True, {"memory": "16MB"}, False),
        (False, {"retain": 2, "grace": 0}, True),
    ],
)
def test_no_byte_of_a_deleted_row_is_left_once_the_sinks_have_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, held_back: bool, options: dict[str, Any], compressed: bool
) -> None:
    monkeypatch.setattr(backlog, "FAN", 2)
    case = Case(tmp_path, held_back, options, compressed)
    case.live()
    manifest = load_newest_manifest(open_store(case.state))
    assert manifest is not None and manifest.backlog and len(found(case.state)) > 5
    assert compressed or all(found(case.state, [mark]) for mark in marks(case.state)[2:6:2])  # by its hashes, too
    with case.open() as engine:
        rows = {name: engine.read(name) for name in engine.flow.outputs}
        before = found(case.state)
        with raises(SpecError):
            engine.compact(forget=True)
        assert found(case.state) == before
        engine.run({}, {"people": case.sinks["people"]})
        with raises(SpecError):
            engine.compact(forget=True)
        engine.run({}, case.sinks)
        engine.compact(forget=True)
        engine._check_invariants()
        assert found(case.state) == set()
        assert {name: engine.read(name) for name in rows} == rows
    gc(case.state, grace=0, orphans=0)
    assert found(case.state) == set() and fsck(case.state).ok
    with case.open() as engine:  # and it goes on, source and sinks included
        case.land(person(5, 30, False), person(9, 31, True))
        done = engine.run(case.source, case.sinks)
        assert (done.rows, done.sinks["people"]) == (2, engine.epoch)
        assert engine.read("people").num_rows >= rows["people"].num_rows
    assert found(case.state) != set()


def test_what_waits_in_hold_back_is_left_and_what_was_released_is_not(tmp_path: Path) -> None:
    case = Case(tmp_path, True, {"memory": "16MB"}, False)
    with case.open() as engine:
        engine.run({}, case.sinks)
        case.land(person(1, 1, True), person(2, 5, False))
        engine.run(case.source, case.sinks)
        case.land(person(1, 6, False, "D"), person(3, 7, False), person(4, 9, False))
        engine.run(case.source, case.sinks)
        assert engine.verdicts.pending == 1
        engine.compact(forget=True)
        assert found(case.state) == set()
    with case.open() as engine:
        case.land(person(6, 20, False), person(7, 21, False))
        engine.run(case.source, case.sinks)
        assert sorted(engine.read("people").column("id").to_pylist()) == [2, 3, 4, 6]


def test_a_sink_that_was_detached_holds_up_nothing(tmp_path: Path) -> None:
    case = Case(tmp_path, False, {}, False)
    case.live()
    result = CliRunner().invoke(app, ["gc", str(case.state), "--forget"])
    assert result.exit_code == 1 and "'people' has epoch 0" in result.output
    with case.open() as engine:
        engine.detach(*(f"sink:{name}" for name in case.sinks))
    result = CliRunner().invoke(app, ["gc", str(case.state), "--forget"])
    assert result.exit_code == 0, result.output
    assert found(case.state) == set()


def test_a_state_of_many_partitions_forgets_as_one_and_is_cut_again(tmp_path: Path) -> None:
    case = Case(tmp_path, False, {}, True)
    case.live()
    with case.open() as engine:
        engine.run({}, case.sinks)
    rescale(case.state, 3)
    refused = CliRunner().invoke(app, ["gc", str(case.state), "--forget"])
    assert refused.exit_code == 1 and "ddflow rescale" in refused.output and found(case.state)
    rescale(case.state, 1)
    assert CliRunner().invoke(app, ["gc", str(case.state), "--forget"]).exit_code == 0
    rescale(case.state, 3)
    assert found(case.state) == set() and fsck(case.state).ok
