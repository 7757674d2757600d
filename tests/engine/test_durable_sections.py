"""Test states with inventories in sections: bytes of a commit, collected files, and refusals."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from pathlib import Path
from statistics import mean
from typing import Any

import pyarrow as pa
import pytest
import tight
from chance import long_test, mid_test
from msgspec.structs import replace

import ddflow as dd
from ddflow.engine.checkpoint import StoredInventory
from ddflow.engine.garbage import collect_file_names, gc
from ddflow.errors import CorruptState
from ddflow.partitions.rescale import rescale
from ddflow.storage.fields import encode_record
from ddflow.storage.folder.local import LocalStore
from ddflow.storage.inventory_text import read_inventory_text
from ddflow.storage.manifest import load_manifest, load_newest_manifest
from ddflow.storage.memory import MemoryStore
from ddflow.storage.protocol import Blob
from ddflow.tools.rollback import rollback
from ddflow.trace import spine

SCHEMA = {"id": pa.int64(), "n": pa.int64()}


class Counting(MemoryStore):
    """The bytes and the number of inventories and sections that were put, and what all of them name."""

    written = puts = 0

    def put(self, ending: str, write: Any) -> Blob:
        blob = super().put(ending, write)
        if ending == "json":
            self.written, self.puts = self.written + blob.length, self.puts + 1
        return blob


def plan() -> dd.Flow:
    flow = dd.Flow()
    rows = flow.upserts("rows", SCHEMA, dd.Upsert(key="id"))
    flow.output("counts", rows.project(["n"]).count())
    return flow


def rows(ids: Any) -> dict[str, pa.Table]:
    ids = list(ids)
    return {"rows": pa.table({"id": ids, "n": [each % 7 for each in ids]}, pa.schema(SCHEMA))}


def of_many_files(store: Any, files: int) -> dd.Engine:
    """An engine whose rows are in so many files, and that merges as usual from then on."""
    engine = plan().open(store, grace=0.0)
    arranged = engine.dataflow.graph.inputs["rows"].output_arrangement
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(spine, "PIECE", 2)
        arranged.spine.fan, arranged.spine.most = 2, 4
        engine.step(rows(range(0, 4 * files, 2)), time=1)
        engine.step(rows(range(1, 4 * files, 2)), time=2)
        tight.merge(engine, None, bite=4)
    arranged.spine.fan, arranged.spine.most = spine.FAN, spine.MOST
    return engine


def commits(engine: dd.Engine, store: Counting, times: int) -> tuple[float, float, int]:
    """Steps of one event: bytes of inventories a commit, on average and at most, and files."""
    sizes = []
    store.puts = 0
    for _ in range(times):
        store.written = 0
        engine.step(rows([10**9 + engine.last]), time=engine.last + 1)
        sizes.append(store.written)
    return mean(sizes), max(sizes), store.puts


def settled(files: int) -> tuple[tuple[float, float, int], int]:
    """What the commits of a state of so many files write once it is cut, and how long its text is."""
    store = Counting()
    with of_many_files(store, files) as engine:
        commits(engine, store, 20 + files // 64)
        found = commits(engine, store, 64)
        manifest = load_newest_manifest(store)
        assert manifest is not None
        assert collect_file_names(store, manifest) == engine.durable.log.manifest_log.names  # type: ignore[union-attr]
        return found, len(read_inventory_text(store, manifest.inventories[0]).data)


@long_test
def test_a_commit_writes_what_changed_and_its_logarithm() -> None:
    small, four, sixteen = settled(256), settled(1024), settled(4096)
    assert sixteen[1] > 700_000 > 3 * four[1] > 6 * small[1]  # their whole text
    for (average, most, puts), _ in (small, four, sixteen):
        assert average < 48_000 and most < 100_000, (small, four, sixteen)  # some 20,000, by the names of files
        assert puts < 64 * 1.5  # few commits write more than one file of it
    # Two levels of the tree, of which each has as many lines as the first.
    assert sixteen[0][0] - small[0][0] < 30_000


def test_a_small_state_is_in_one_inventory() -> None:
    store = Counting()
    with plan().open(store, grace=0.0) as engine:
        for time in range(1, 60):
            store.puts = 0
            engine.step(rows(range(time, time + 3)), time)
            assert store.puts == 1
    manifest = load_newest_manifest(store)
    assert manifest is not None and b"\n" not in store.map_blob(manifest.inventories[0]).to_pybytes()


@pytest.fixture
def tiny() -> Iterator[None]:
    with tight.tiny():
        yield


def in_sections(store: Any, epochs: int = 14, **options: Any) -> None:
    """A state whose inventory is in sections."""
    chance = random.Random(3)
    with plan().open(store, grace=0.0, **options) as engine:
        for time in range(1, epochs + 1):
            engine.step(rows(sorted(chance.sample(range(60), 9))), time)
    manifest = load_newest_manifest(store if not isinstance(store, Path) else LocalStore(store, readonly=True))
    assert manifest is not None and manifest.epoch == epochs


def sections_of(store: Any) -> list[Blob]:
    manifest = load_newest_manifest(store)
    assert manifest is not None
    return [section for part in manifest.inventories for section in read_inventory_text(store, part).sections]


def test_a_collection_keeps_the_sections_that_versions_name_and_no_other(tiny: None) -> None:
    store = MemoryStore()
    in_sections(store)
    assert len(sections_of(store)) > 1
    there = {entry.name for entry in store.list_blobs()}
    named = set[str]().union(
        *(collect_file_names(store, load_manifest(store, number)) for number in store.list_manifests())
    )
    assert there == named and {each.name for each in sections_of(store)} <= named
    lost = store.reopen().put("json", lambda sink: sink.write(b"nobody names it"))
    gc(store.reopen(), grace=0.0, orphans=0.0)
    in_between = {entry.name for entry in store.list_blobs()}
    assert named <= in_between <= named | {lost.name}
    assert dd.fsck(store).ok


def test_a_collection_deletes_nothing_where_an_inventory_is_not_one(tiny: None) -> None:
    """Its checksum is right and its JSON is not: what it would name is not known."""
    store = MemoryStore()
    in_sections(store)
    manifest = load_newest_manifest(store)
    assert manifest is not None
    store = store.reopen()
    orphan = store.put("arrow", lambda sink: sink.write(b"an orphan"))
    for data in (b'{"inputs":{},"operators":{}', b'{"inputs":{},"operators":{},"totals":{},"more":1}', b"\n[]\n"):
        broken = store.put("json", lambda sink, data=data: sink.write(data))
        number = store.list_manifests()[-1] + 1
        assert store.publish(number, replace(manifest, number=number, inventories=(broken,)).encode())
        before = {entry.name for entry in store.list_blobs()}
        with pytest.raises(CorruptState, match=broken.name):
            gc(store.reopen(), grace=0.0, orphans=0.0)
        assert {entry.name for entry in store.list_blobs()} == before >= {orphan.name}
        report = dd.fsck(store)
        assert f"blobs/{broken.name}" in {each.file for each in report.problems} and report.garbage is None


def test_a_bit_flipped_in_any_section_is_named_by_all_who_read(tiny: None) -> None:
    store = MemoryStore()
    in_sections(store)
    for section in sections_of(store):
        data, put = store.shared.blobs[section.name]
        store.shared.blobs[section.name] = bytes([data[0] ^ 1]) + data[1:], put
        for act in (dd.Snapshot.open, plan().open, lambda state: gc(state.reopen()), lambda state: dd.inspect(state)):
            with pytest.raises(CorruptState, match=section.name):
                act(store)
        report = dd.fsck(store)
        assert {each.file for each in report.problems} == {f"blobs/{section.name}"} and report.garbage is None
        store.shared.blobs[section.name] = data, put
    assert dd.fsck(store).ok


def test_two_damaged_sections_are_both_told(tiny: None) -> None:
    store = MemoryStore()
    in_sections(store)
    first, second = [
        section.name for section in sections_of(store) if b"\n" not in store.map_blob(section).to_pybytes()
    ][:2]
    for name in (first, second):
        del store.shared.blobs[name]
    assert {each.file for each in dd.fsck(store).problems} == {f"blobs/{name}" for name in (first, second)}


@mid_test
@pytest.mark.drawn(1)
@pytest.mark.parametrize("memory", [None, "16MB"])
def test_it_is_opened_again_and_again_with_any_budget(tiny: None, memory: str | None, tmp_path: Path) -> None:
    store, held, seen = MemoryStore(), dict[int, int](), 0
    for time in range(1, 30):
        budget = {} if memory is None or time % 5 == 0 else {"memory": memory, "spill": tmp_path / str(time)}
        if budget:
            (tmp_path / str(time)).mkdir()
        with plan().open(store.reopen(), grace=0.0, **budget) as engine:
            if budget:
                tight.tighten(engine, share=0, rows=2**40)
            engine.step(rows(range(time, time + 9)), time)
            held |= {each: each % 7 for each in range(time, time + 9)}
            assert engine.durable is not None
            seen += bool(engine.durable.sections.blobs)
            engine._check_invariants()
        assert {row["id"]: row["n"] for row in dd.read(store.reopen(), "rows").to_pylist()} == held
        assert dd.fsck(store.reopen()).ok
    assert seen > 4


def test_what_rewrites_a_state_takes_and_leaves_sections(tiny: None) -> None:
    store = MemoryStore()
    in_sections(store)
    with dd.Snapshot.open(store) as snapshot:
        expected = sorted(map(json.dumps, snapshot.read("rows").to_pylist()))

    def holds() -> bool:
        with dd.Snapshot.open(store) as snapshot:
            found = sorted(map(json.dumps, snapshot.read("rows").to_pylist()))
        return found == expected and dd.fsck(store).ok

    assert sections_of(store)
    for partitions in (3, 1):
        rescale(store.reopen(), partitions)
        assert holds()
    with plan().open(store.reopen(), grace=1000.0) as engine:
        for time in range(20, 50):
            engine.step(rows([time * 100]), time)
        expected = sorted(map(json.dumps, engine.read("rows").to_pylist()))
        assert engine.durable is not None and engine.durable.sections.blobs
        engine.step(rows([2, 77]), 60)
    done = rollback(store.reopen())
    assert done.manifest.note.startswith("rollback") and holds()
    with plan().open(store.reopen()) as engine:
        engine.step({}, 70)
        engine.compact(forget=True)
    assert holds()


def test_the_files_of_a_section_are_read_as_records(tiny: None) -> None:
    """A section whose checksum is right and whose fields are not."""
    store = MemoryStore()
    in_sections(store)
    manifest = load_newest_manifest(store)
    assert manifest is not None
    store = store.reopen()
    whole = read_inventory_text(store, manifest.inventories[0])
    text = next(data for section in whole.sections if b"\n" not in (data := store.map_blob(section).to_pybytes()))
    for old, new in ((b'"rows":', b'"rowz":'), (b'"rows":', b'"rows":-'), (b'{"file":', b'{{"file":')):
        assert old in text
        lie = store.put("json", lambda sink, old=old, new=new: sink.write(text.replace(old, new, 1)))
        told = whole.data.replace(text, b"\n%b\n" % encode_record(lie))
        part = store.put("json", lambda sink, told=told: sink.write(told))
        with pytest.raises(CorruptState, match=part.name):
            StoredInventory.read(store, part)
