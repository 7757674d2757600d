"""Test garbage collection: deleted files, kept files, and safety for concurrent writers and readers.

The expected files do not come from the collector: they are the files that each manifest names, listed after each
commit.
"""

from __future__ import annotations

import os
import random
import time
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from chance import mid_test
from messages import raises

import ddflow as dd
from ddflow.connectors.parquet.folder import build_folder_name
from ddflow.engine.garbage import DAY, CollectedGarbage, collect_file_names, gc
from ddflow.errors import CorruptState, StateRefused
from ddflow.storage.folder.local import LocalStore
from ddflow.storage.manifest import load_manifest, load_newest_manifest
from ddflow.storage.memory import MemoryStore
from ddflow.storage.protocol import BlobEntry


def plan() -> dd.Flow:
    flow = dd.Flow()
    people = flow.upserts("people", {"id": pa.int64(), "city": pa.string()}, dd.Upsert(key="id"))
    flow.output("people", people)
    flow.output("by_city", people.project(["city"]).count())
    return flow


def rows(n: int, city: str = "Bern") -> dict[str, pa.Table]:
    return {"people": pa.table({"id": range(n), "city": [f"{city} {i % 7}" for i in range(n)]})}


def steps(engine: dd.Engine, times: range) -> None:
    for t in times:
        engine.step(rows(3, str(t)), t)


def whole(store: Any) -> None:
    """Every version that is there can be read."""
    for number in store.list_manifests():
        manifest = load_manifest(store, number)
        assert collect_file_names(store, manifest) <= {entry.name for entry in store.list_blobs()}
        with dd.Snapshot.open(store.reopen(), epoch=manifest.epoch) as snapshot:
            snapshot.read("people")


def age(store: MemoryStore, seconds: float, *names: str) -> None:
    """Make blobs older, all of them by default, and manifests with them."""
    for name in names or list(store.shared.blobs):
        data, put = store.shared.blobs[name]
        store.shared.blobs[name] = data, put - seconds


def test_versions_go_when_their_successor_is_old_enough_and_the_two_newest_stay() -> None:
    store = MemoryStore()
    with plan().open(store) as engine:
        steps(engine, range(5))
    other = store.reopen()
    assert gc(other).manifests == []  # all are within their grace
    told = gc(other, grace=0, dry_run=True)
    assert (told.manifests, told.kept) == ([0, 1, 2, 3], [4, 5]) and other.list_manifests() == [0, 1, 2, 3, 4, 5]
    before = {entry.name: entry.length for entry in other.list_blobs()}
    named = set[str]().union(*(collect_file_names(other, load_manifest(other, number)) for number in (4, 5)))
    done = gc(other, grace=0)
    assert done == told and other.list_manifests() == [4, 5]
    assert {entry.name for entry in other.list_blobs()} == named and done.files == len(before) - len(named) > 0
    assert done.bytes == sum(size for name, size in before.items() if name not in named)
    assert gc(other, grace=0) == CollectedGarbage(kept=[4, 5])
    whole(other)


def test_a_file_that_nobody_named_goes_when_it_is_old_and_older_than_the_newest_version() -> None:
    store = MemoryStore()
    with plan().open(store) as engine:
        steps(engine, range(2))
        orphan = store.put("arrow", lambda sink: sink.write(b"an epoch that was never committed"))
        other = store.reopen()
        age(store, 2 * DAY)
        # It was put after the newest version: whoever put it may still publish.
        done = gc(other)
        assert (done.files, done.waiting, done.bytes_waiting) == (0, 1, orphan.length)
        steps(engine, range(2, 4))
        age(store, 5)
        assert gc(other, orphans=3 * DAY).waiting == 1
        done = gc(other)
        assert (done.files, done.waiting) == (1, 0) and orphan.name not in store.shared.blobs
    whole(other)


def test_a_state_without_a_commit_keeps_what_its_first_epoch_writes() -> None:
    store = MemoryStore()
    with plan().open(store, commit_every=None) as engine:
        steps(engine, range(2))
        early = store.put("arrow", lambda sink: sink.write(b"of the first epoch"))
        age(store, 9 * DAY)
        assert gc(store.reopen(), grace=0, orphans=0).files == 0 and early.name in store.shared.blobs
        engine.flush()


def test_what_is_put_and_published_while_the_collector_looks_is_not_garbage() -> None:
    store = MemoryStore()
    engine = plan().open(store)
    steps(engine, range(3))

    class Late(MemoryStore):
        """A collector that is interrupted by a commit after each thing it looks at."""

        def list_blobs(self) -> list[BlobEntry]:
            found = super().list_blobs()
            steps(engine, range(engine.last + 1, engine.last + 2))
            return found

        def read_manifest(self, number: int) -> bytes:
            data = super().read_manifest(number)
            if random.Random(number).random() < 0.5:
                steps(engine, range(engine.last + 1, engine.last + 2))
            return data

    age(store, 2 * DAY)
    for _ in range(3):
        gc(Late(store.shared), grace=0, orphans=0)
        whole(store.reopen())
    expected = engine.read("people")
    engine.close()
    assert dd.read(store.reopen(), "people").equals(expected)


def test_a_collector_that_was_stopped_and_woken_takes_nothing_of_later_versions() -> None:
    store = MemoryStore()
    engine = plan().open(store)
    steps(engine, range(3))

    class Asleep(MemoryStore):
        """A collector that sleeps, while others commit, go back and compact, before each deletion."""

        def _others(self) -> None:
            nonlocal engine
            steps(engine, range(engine.last + 1, engine.last + 4))
            dd.rollback(self.reopen())
            engine.close()
            engine = plan().open(self.reopen(), grace=0)
            engine.compact()

        def delete_manifest(self, number: int) -> None:
            self._others()
            super().delete_manifest(number)

        def delete(self, name: str) -> None:
            self._others()
            super().delete(name)

    store.put("arrow", lambda sink: sink.write(b"garbage"))
    age(store, 2 * DAY)
    steps(engine, range(3, 5))
    done = gc(Asleep(store.shared), grace=0)
    assert done.files >= 4 and len(done.manifests) == 4
    whole(store.reopen())
    steps(engine, range(engine.last + 1, engine.last + 3))
    engine._check_invariants()
    engine.close()


@pytest.mark.parametrize("what", ["newest", "second", "inventory"])
def test_nothing_is_deleted_when_something_cannot_be_accounted_for(what: str) -> None:
    store = MemoryStore()
    with plan().open(store) as engine:
        steps(engine, range(4))
    number = store.list_manifests()[-1] - (what == "second")
    if what == "inventory":
        name = load_manifest(store, number).inventories[0].name
        data, put = store.shared.blobs[name]
        store.shared.blobs[name] = data[:-1] + b"?", put
    else:
        store.shared.manifests[number] = store.shared.manifests[number][:-1]
        name = f"manifest {number}"
    before = dict(store.shared.blobs), dict(store.shared.manifests)
    with pytest.raises(CorruptState, match=name):
        gc(store.reopen(), grace=0)
    assert (store.shared.blobs, store.shared.manifests) == before


def test_a_damaged_manifest_that_was_passed_over_goes_in_its_time() -> None:
    store = MemoryStore()
    with plan().open(store) as engine:
        steps(engine, range(4))
    store.shared.manifests[4] = b"damaged"
    dd.rollback(store.reopen())
    with raises(CorruptState):
        gc(store.reopen(), grace=0)
    done = gc(store.reopen(), grace=0, orphans=0)
    assert 4 in done.manifests and done.kept == [3, 5]
    whole(store.reopen())


def test_where_there_is_nothing_there_is_nothing_to_collect(tmp_path: Path) -> None:
    with pytest.raises(StateRefused):
        gc(tmp_path / "nothing")
    assert gc(MemoryStore()) == CollectedGarbage()
    assert not (tmp_path / "nothing").exists()


def test_junk_is_left_and_hidden_outputs_of_failed_commits_go(tmp_path: Path) -> None:
    state, outputs = tmp_path / "state", tmp_path / "outputs"
    with plan().open(state, outputs=outputs) as engine:
        steps(engine, range(3))
    there = outputs / build_folder_name("people")
    old, new, junk = (there / name for name in (*(f".00ff00ff00ff00ff-{n}.parquet.hidden" for n in (1, 2)), ".mine"))
    (state / "blobs" / "notes.txt").write_text("mine")
    for path in (old, new, junk):
        path.write_text("x")
    for path in (old, junk):
        os.utime(path, (time.time() - 2 * DAY,) * 2)
    shown = sorted(there.glob("0*.parquet"))
    assert gc(state, grace=0).outputs == [str(old)]
    assert (old.exists(), new.exists(), junk.exists()) == (False, True, True)
    assert sorted(there.glob("0*.parquet")) == shown and (state / "blobs" / "notes.txt").read_text() == "mine"
    assert load_newest_manifest(LocalStore(state, readonly=True)).epoch == 3  # type: ignore[union-attr]


@mid_test
def test_random_lives_of_a_state_lose_nothing(seed: int = 7) -> None:
    """Commits, crashes, collections with any grace, rollbacks, compactions: every version stays whole."""
    choice = random.Random(seed)
    store = MemoryStore()
    engine, held = plan().open(store, grace=0), dict[int, pa.Table]()
    for turn in range(60):
        what = choice.choice(["step"] * 4 + ["crash", "collect", "collect", "back", "compact"])
        if what == "step":
            engine.step(rows(choice.randrange(1, 9), str(turn)), max(engine.last, -1) + 1)
        elif what == "crash":
            engine.durable.batch_store.write_table(rows(3)["people"].to_batches(), rows(3)["people"].schema)  # type: ignore
            engine = plan().open(store := store.reopen(), grace=choice.choice([0, 60]))
        elif what == "collect":
            age(store, choice.choice([0, 3, DAY]))
            gc(store.reopen(), grace=choice.choice([0, 60]), orphans=choice.choice([0, DAY]))
        elif what == "back" and len(store.list_manifests()) > 1 and engine.epoch > 1:
            dd.rollback(store.reopen(), load_manifest(store, store.list_manifests()[-2]).epoch)
            engine = plan().open(store := store.reopen(), grace=0)
        elif what == "compact":
            engine.compact(forget=choice.random() < 0.5)
        number = store.list_manifests()[-1]
        table = engine.read("people")
        assert held.setdefault(number, table).equals(table), (seed, turn, what)
        whole(store.reopen())
    engine._check_invariants()
