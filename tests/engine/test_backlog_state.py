"""Test states with lagging sinks: bytes of a commit, deletion after sinks catch up, and maintenance tools."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import ddflow as dd
from ddflow.engine.garbage import gc, list_version_blobs
from ddflow.partitions.evolve import evolve
from ddflow.partitions.rescale import rescale
from ddflow.storage import backlog
from ddflow.storage.epochs import AttachedSink
from ddflow.storage.folder.local import LocalStore
from ddflow.storage.manifest import Manifest, load_manifest, load_newest_manifest
from ddflow.storage.memory import MemoryStore
from ddflow.storage.protocol import Blob
from ddflow.tools.fsck import fsck
from ddflow.tools.rollback import rollback


class Counting(MemoryStore):
    """The bytes of inventories, backlogs and manifests that were written."""

    written = 0

    def put(self, ending: str, write: Any) -> Blob:
        blob = super().put(ending, write)
        self.written += blob.length if ending == "json" else 0
        return blob

    def publish(self, number: int, data: bytes) -> bool:
        self.written += len(data)
        return super().publish(number, data)


def flow() -> dd.Flow:
    made = dd.Flow()
    made.output("rows", made.upserts("rows", {"id": int, "n": int}, dd.Upsert(key="id")))
    return made


def lag(engine: dd.Engine, target: Path, epoch: int = 0) -> None:
    """A sink that has an epoch, as the next version says it."""
    assert engine.durable is not None
    place = dd.sinks.sqlite(target, "rows").target
    engine.durable.log.sinks["rows"] = AttachedSink("sqlite", place, "upsert", epoch, 0, "")


def steps(engine: dd.Engine, count: int) -> None:
    for _ in range(count):
        n = engine.epoch + 1
        engine.step({"rows": {"id": [n % 9, n % 7 + 20], "n": [n, n]}})


def newest_of(store: Any) -> Manifest:
    manifest = load_newest_manifest(store)
    assert manifest is not None
    return manifest


def files(state: Path) -> set[str]:
    return {path.name for path in (state / "blobs").iterdir()}


def named(state: Path) -> set[str]:
    """What all versions that are there name."""
    store = LocalStore(state, readonly=True)
    return {
        blob.name
        for number in store.list_manifests()
        for blob in list_version_blobs(store, load_manifest(store, number))
    }


def held(target: Path) -> list[Any]:
    with sqlite3.connect(target) as connection:
        return sorted(connection.execute("select * from rows").fetchall())


@pytest.fixture
def lagging(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A state of 60 epochs, of which the sink has none, with a backlog of three levels."""
    monkeypatch.setattr(backlog, "FAN", 3)
    with flow().open(tmp_path / "state", grace=0) as engine:
        lag(engine, tmp_path / "out.db")
        steps(engine, 60)
        manifest = newest_of(engine.durable.log.manifest_log.store)  # type: ignore[union-attr]
        assert manifest.backlog[0].level == 3 and manifest.oldest_epoch == 1
    return tmp_path


def caught_up(place: Path) -> None:
    """Give the sink what it lacks; what was kept for it goes, and nothing else."""
    sinks = {"rows": dd.sinks.sqlite(place / "out.db", "rows")}
    with flow().open(place / "state", grace=0) as engine:
        done = engine.run({}, sinks)
        assert done.sinks == {"rows": engine.epoch}
        rows = sorted(tuple(row.values()) for row in engine.read("rows").drop_columns(["_diff"]).to_pylist())
        steps(engine, 2)
        manifest = engine.durable.log.manifest_log.manifest  # type: ignore[union-attr]
        assert manifest.backlog == () and len(manifest.receipts) == 8
    assert held(place / "out.db") == rows
    with flow().open(place / "state", grace=0) as engine:
        steps(engine, 2)
    assert fsck(place / "state").ok
    assert files(place / "state") == named(place / "state")


def test_a_commit_costs_the_same_however_much_waits(tmp_path: Path) -> None:
    costs = list[float]()
    with flow().open(store := Counting(), grace=0) as engine:
        lag(engine, tmp_path / "out.db")
        for _ in range(3):
            steps(engine, 40)
            before = store.written
            steps(engine, 160)
            costs.append((store.written - before) / 160)
    assert costs[2] < 1.15 * costs[1]


def test_a_sink_that_catches_up_gets_all_and_lets_all_go(lagging: Path) -> None:
    assert fsck(lagging / "state").ok and files(lagging / "state") == named(lagging / "state")
    caught_up(lagging)


def test_what_is_acknowledged_goes_step_by_step(lagging: Path) -> None:
    with flow().open(lagging / "state", grace=0) as engine:
        counts = list[int]()
        for epoch in (0, 10, 30, 31, 55):
            lag(engine, lagging / "out.db", epoch)
            steps(engine, 2)
            manifest = engine.durable.log.manifest_log.manifest  # type: ignore[union-attr]
            assert epoch + 1 - 3 < (manifest.oldest_epoch or 0) <= epoch + 1 or epoch == 55
            counts.append(len(files(lagging / "state")))
        assert counts == sorted(counts, reverse=True) and counts[0] - counts[-1] > 40
    assert files(lagging / "state") == named(lagging / "state")


def test_garbage_is_told_with_a_backlog(lagging: Path) -> None:
    before = files(lagging / "state")
    assert gc(lagging / "state", grace=0, orphans=0).files == 0 and files(lagging / "state") == before
    with flow().open(lagging / "state", grace=1e9) as engine:
        lag(engine, lagging / "out.db", 50)
        steps(engine, 2)
    assert gc(lagging / "state", grace=0, orphans=0).files > 40
    assert files(lagging / "state") == named(lagging / "state") and fsck(lagging / "state").ok


def test_a_damaged_file_of_the_backlog_is_named(lagging: Path) -> None:
    store = LocalStore(lagging / "state", readonly=True)
    part = newest_of(store).backlog[0]
    path = lagging / "state" / "blobs" / part.file.name
    path.write_bytes(path.read_bytes()[:-1])
    report = fsck(lagging / "state")
    assert [problem.file for problem in report.problems] == [f"blobs/{part.file.name}"] * len(report.problems) != []
    assert report.garbage is None
    with flow().open(lagging / "state", grace=0) as engine, pytest.raises(dd.errors.CorruptState, match=part.file.name):
        engine.run({}, {"rows": dd.sinks.sqlite(lagging / "out.db", "rows")})


def test_a_state_that_went_back_keeps_its_backlog(lagging: Path) -> None:
    with flow().open(lagging / "state", grace=1e9) as engine:
        steps(engine, 3)
    done = rollback(lagging / "state", 61)
    assert done.manifest.oldest_epoch == 1 and done.manifest.epoch == 61
    gc(lagging / "state", grace=0, orphans=0)
    assert fsck(lagging / "state").ok
    caught_up(lagging)


@pytest.mark.parametrize("memory", [None, "16MB"])
def test_a_state_that_was_rescaled_and_evolved_keeps_its_backlog(lagging: Path, memory: str | None) -> None:
    state = lagging / "state"
    rescale(state, 3)
    evolve(state, {"n": "double"})
    assert fsck(state).ok and newest_of(LocalStore(state, readonly=True)).oldest_epoch == 1
    rescale(state, 1)
    gc(state, grace=0, orphans=0)
    made = dd.Flow()
    made.output("rows", made.upserts("rows", {"id": int, "n": pa.float64()}, dd.Upsert(key="id")))
    with made.open(state, grace=0, memory=memory) as engine:
        assert engine.run({}, {"rows": dd.sinks.sqlite(lagging / "out.db", "rows")}).sinks == {"rows": 60}
        rows = sorted(tuple(row.values()) for row in engine.read("rows").drop_columns(["_diff"]).to_pylist())
    assert held(lagging / "out.db") == rows and fsck(state).ok
