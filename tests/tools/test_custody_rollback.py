"""Test rollback: its targets, the damage it repairs, and its effect on writers, receipts and output files.

Each epoch's contents are kept outside the store, as tables read when it was committed.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from messages import raises
from typer.testing import CliRunner

import ddflow as dd
from ddflow.cli import app
from ddflow.connectors.parquet.folder import build_folder_name
from ddflow.engine.garbage import collect_file_names
from ddflow.errors import CorruptState, Fenced, SnapshotExpired, StateRefused, StorageFailed
from ddflow.storage.folder.local import LocalStore
from ddflow.storage.manifest import load_manifest, load_newest_manifest
from ddflow.storage.memory import MemoryStore
from ddflow.storage.protocol import Blob, Content
from ddflow.tools.rollback import list_versions, rollback


def plan() -> dd.Flow:
    flow = dd.Flow()
    people = flow.upserts("people", {"id": pa.int64(), "city": pa.string()}, dd.Upsert(key="id"))
    flow.output("people", people)
    flow.output("by_city", people.project(["city"]).count())
    return flow


def rows(t: int) -> dict[str, pa.Table]:
    return {"people": pa.table({"id": [t, 0], "city": [f"city {t}"] * 2})}


def lived(store: Any, epochs: int = 4, **options: Any) -> dict[int, pa.Table]:
    """A state of some epochs; what each left."""
    held = {}
    with plan().open(store, **options) as engine:
        for t in range(1, epochs + 1):
            engine.step(rows(t), t * 10)
            held[engine.epoch] = engine.read("people")
    return held


def damage(store: MemoryStore, name: str) -> None:
    data, put = store.shared.blobs[name]
    store.shared.blobs[name] = bytes([data[0] ^ 1]) + data[1:], put


def newest_file(store: MemoryStore, number: int) -> str:
    """A file of rows that this version names and the one before does not."""
    manifest = load_manifest(store, number)
    new = collect_file_names(store, manifest) - collect_file_names(store, load_manifest(store, number - 1))
    return min(new - {blob.name for blob in (*manifest.inventories, *manifest.output_files())})


@pytest.mark.parametrize("epoch", [None, 3, 2, 1, 0])
def test_the_state_is_as_it_was_and_goes_on_from_there(epoch: int | None) -> None:
    store = MemoryStore()
    held = lived(store)
    files = dict(store.shared.blobs)
    done = rollback(store.reopen(), epoch)
    to = 3 if epoch is None else epoch
    assert (done.manifest.epoch, done.manifest.number, done.version) == (to, 5, to)
    assert files.items() <= store.shared.blobs.items() and store.list_manifests() == [0, 1, 2, 3, 4, 5]
    with plan().open(store.reopen()) as engine:
        engine._check_invariants()
        assert engine.epoch == to
        if to:
            assert engine.read("people").equals(held[to])
            again = engine.step(rows(to), to * 10, epoch=to)  # its receipts are there, with their outputs
            assert again["people"].num_rows and engine.epoch == to
        for t in range(to + 1, 5):  # those after can be given again, as other rows, too
            engine.step(rows(t), t * 10, epoch=t)
            assert engine.read("people").equals(held[t])


@pytest.mark.parametrize("what", ["manifest", "lost", "inventory", "file", "output", "two"])
def test_from_any_damage_to_the_newest_version_the_last_whole_one_is_found(what: str) -> None:
    store = MemoryStore()
    held = lived(store)
    to = 3
    if what in ("manifest", "two"):
        store.shared.manifests[4] = store.shared.manifests[4][:-1]
    if what == "lost":
        del store.shared.manifests[4]
    if what == "inventory":
        damage(store, load_manifest(store, 4).inventories[0].name)
    if what == "file":
        damage(store, newest_file(store, 4))
    if what == "output":
        damage(store, [*load_manifest(store, 4).output_files()][-1].name)
    if what == "two":
        damage(store, newest_file(store, 3))
        to = 2
    if what != "output":
        with pytest.raises(CorruptState):
            plan().open(store.reopen())
    wrong = {each.number: each.wrong for each in list_versions(store.reopen())}
    assert bool(wrong[4]) == (what not in ("file", "output"))  # a list reads no file
    done = rollback(store.reopen())
    assert (done.manifest.epoch, done.manifest.number, done.version) == (to, 5, to)
    assert len(done.passed) == 4 - to
    assert dd.read(store.reopen(), "people").equals(held[to])
    if what != "lost":
        assert store.shared.manifests[4]  # it stays to be looked into
    with plan().open(store.reopen()) as engine:
        engine.step(rows(9), 1000)
        assert engine.epoch == to + 1


def test_a_version_of_the_same_epoch_is_gone_back_to_when_the_newest_of_it_is_damaged() -> None:
    store = MemoryStore()
    held = lived(store)
    with plan().open(store.reopen()) as engine:
        engine.compact()
    assert load_newest_manifest(store).number == 5 and load_newest_manifest(store).epoch == 4  # type: ignore[union-attr]
    damage(store, newest_file(store, 5))
    done = rollback(store.reopen())
    assert (done.manifest.epoch, done.version) == (4, 4)
    assert dd.read(store.reopen(), "people").equals(held[4])


def test_to_where_one_is_already_nothing_is_published() -> None:
    store = MemoryStore()
    lived(store)
    rollback(store.reopen(), 2)
    before = dict(store.shared.blobs), dict(store.shared.manifests)
    done = rollback(store.reopen(), 2)
    assert (done.manifest.number, done.version) == (5, 5) and (store.shared.blobs, store.shared.manifests) == before
    assert rollback(store.reopen()).manifest.epoch == 1  # and without a number one goes further


def test_what_cannot_be_gone_back_to_is_refused_and_nothing_is_left() -> None:
    store = MemoryStore()
    lived(store)
    before = dict(store.shared.blobs), dict(store.shared.manifests)
    with raises(SnapshotExpired):
        rollback(store.reopen(), 7)
    for number in range(5):
        for blob in load_manifest(store, number).inventories:
            damage(store, blob.name)
    with raises(CorruptState):
        rollback(store.reopen(), 3)
    assert store.shared.manifests == before[1] and set(store.shared.blobs) == set(before[0])
    with pytest.raises(StateRefused):
        rollback(MemoryStore())


def test_a_writer_is_fenced_and_a_sweep_of_his_takes_nothing_of_the_copies() -> None:
    store = MemoryStore()
    held = lived(store)
    slow = plan().open(store.reopen(), grace=0)
    slow.step(rows(5), 50)
    rollback(store.reopen(), 4)
    with pytest.raises(Fenced):
        slow.step(rows(6), 60)
    slow.durable.log.manifest_log.sweep_old_manifests()  # type: ignore[union-attr]
    for name in slow.durable.log.manifest_log.names:  # type: ignore[union-attr]
        store.reopen().delete(name)  # and were it everything that he ever named
    assert dd.read(store.reopen(), "people").equals(held[4])
    with plan().open(store.reopen()) as engine:
        engine.step(rows(5), 50)
        engine._check_invariants()


def test_of_two_who_write_at_once_one_wins_and_the_copies_of_the_other_are_gone() -> None:
    store = MemoryStore()
    lived(store)
    writer = plan().open(store.reopen())

    class Slow(MemoryStore):
        """Somebody commits while it copies."""

        def publish(self, number: int, data: bytes) -> bool:
            writer.step(rows(5), 50)
            return super().publish(number, data)

    before = set(store.shared.blobs)
    with raises(Fenced):
        rollback(slow := Slow(store.shared))
    assert not [name for name in set(store.shared.blobs) - before if name.startswith(slow.nonce)]
    writer.step(rows(6), 60)
    assert writer.epoch == 6


def test_of_one_who_slept_while_others_went_on_and_tidied_up_nothing_stands() -> None:
    store = MemoryStore()
    lived(store)
    writer = plan().open(store.reopen(), grace=0)

    class Asleep(MemoryStore):
        """The number that it is about to take is taken, passed and free again when it wakes."""

        def publish(self, number: int, data: bytes) -> bool:
            for t in range(5, 9):
                writer.step(rows(t), t * 10)
            assert number not in self.list_manifests()
            return super().publish(number, data)

    with raises(Fenced):
        rollback(slow := Asleep(store.shared))
    assert store.list_manifests() == [7, 8] and not [name for name in store.shared.blobs if name.startswith(slow.nonce)]
    writer.step(rows(9), 90)
    assert writer.epoch == 9


def test_when_a_copy_fails_nothing_has_changed() -> None:
    store = MemoryStore()
    lived(store)

    class Full(MemoryStore):
        """It takes some files, and then no more."""

        room = 2

        def put(self, ending: str, write: Content) -> Blob:
            self.room -= 1
            if self.room < 0:
                raise StorageFailed("put", "the disk is gone", "mend it")
            return super().put(ending, write)

    before = dict(store.shared.blobs), dict(store.shared.manifests)
    with pytest.raises(StorageFailed):
        rollback(Full(store.shared))
    assert (store.shared.blobs, store.shared.manifests) == before


def test_output_files_of_epochs_that_are_no_more_are_hidden_and_named(tmp_path: Path) -> None:
    state, outputs = tmp_path / "state", tmp_path / "outputs"
    lived(state, outputs=outputs)
    there = outputs / build_folder_name("people")
    (there / "000000000009-mine.parquet").write_text("mine")
    last = next(there.glob("000000000004-*"))
    done = rollback(state)
    assert [Path(path).name.partition("-")[0] for path in done.hidden] == ["000000000004"] * 2
    assert str(last) in done.hidden and (there / f".{last.name.partition('-')[2]}.hidden").exists()
    assert dd.fsck(state).ok
    rollback(state, 4)  # and forth again
    with plan().open(state, outputs=outputs):
        assert last.exists()
    assert len(rollback(state, 3).hidden) == 2
    assert (there / "000000000009-mine.parquet").exists()
    with plan().open(state, outputs=outputs) as engine:
        again = engine.step(rows(3), 30, epoch=3)
        engine.step(rows(7), 70)
    shown = sorted(path.name.partition("-")[0] for path in there.glob("0*.parquet") if "mine" not in path.name)
    assert shown == [f"{epoch:012}" for epoch in (1, 2, 3, 4)]
    assert pq.read_table(next(there.glob("000000000003-*"))).equals(again["people"])
    # Whoever ran again after a crash in between hides no file of what was committed since.
    assert rollback(state, 4).hidden == []


def test_the_verb_lists_asks_and_goes_back(tmp_path: Path) -> None:
    state = str(tmp_path / "state")
    lived(state)

    def run(*words: str, code: int = 0) -> str:
        result = CliRunner().invoke(app, ["rollback", state, *words])
        assert result.exit_code == code, (result.output, result.exception)
        return result.output

    assert "pass --yes" in " ".join(run(code=2).split())
    listed = json.loads(run("--list", "--json"))
    assert [each["epoch"] for each in listed] == [4, 3, 2, 1, 0] and {each["wrong"] for each in listed} == {None}
    (tmp_path / "state" / "manifests" / f"{4:016d}").write_bytes(b"cut")
    assert "DAMAGED: manifest 4" in run("--list")
    assert "is at epoch 3 again: manifest 5 has the contents of manifest 3\nskipped: manifest 4" in run("--yes")
    assert json.loads(run("--to-epoch", "1", "--yes", "--json"))["epoch"] == 1
    assert "already at epoch 1" in run("--to-epoch", "1", "--yes")
    assert "epoch 77" in run("--to-epoch", "77", "--yes", code=1)
    assert load_newest_manifest(LocalStore(state, readonly=True)).epoch == 1  # type: ignore[union-attr]
