"""Test fsck: honest states pass, and any damage to a file is reported by name, without a crash."""

from __future__ import annotations

import os
import random
import shutil
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from chance import mid_test, sample
from msgspec.structs import replace
from proof_case import EPOCH, HELD, WIDE, events, feed, files, lie, named, plan, rewritten

import ddflow as dd
from ddflow.engine.checkpoint import StoredInventory
from ddflow.storage import inventory_text
from ddflow.storage.folder.local import LocalStore
from ddflow.storage.manifest import load_manifest
from ddflow.storage.memory import MemoryStore
from ddflow.tools.fsck import FsckReport
from ddflow.trace import spine
from ddflow.trace.spill import BloomFilter

SEED = 20


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with states that have files of every kind in them; of one the outputs are beside it."""
    place = tmp_path_factory.mktemp("whole")
    steps = events(SEED)
    feed(place / "state", steps, retain=1000)
    # With a budget all runs are on disk, and have Bloom filters; a further epoch writes some.
    feed(place / "state", events(SEED + 1, 2, first=6), memory="16MB")
    with pytest.MonkeyPatch.context() as patch:
        for name in ("INLINE", "EDGE", "FEWEST"):
            patch.setattr(inventory_text, name, 2)
        # What is cut where depends on the names of files, and merges leave few of them: until there are some.
        for first in range(0, 100, 10):
            feed(place / "sections", events(SEED + first, 10, first=first), retain=1000)
            if first and len(kinds(place / "sections")["section"]) > 1:
                break
    feed(place / "held", steps, HELD)
    feed(place / "beside", steps, outputs=place / "outputs")
    return place


def problems(state: Path) -> dict[str, str]:
    report = dd.fsck(state)
    assert str(report) and report.to_dict()["ok"] == report.ok
    return {each.file: each.found for each in report.problems}


def kinds(state: Path) -> dict[str, list[Path]]:
    """The files of a state by what they are, newest versions first."""
    told = dd.inspect(state)
    blobs = state / "blobs"
    manifests = sorted((state / "manifests").iterdir(), reverse=True)
    outputs = {file for r in told["receipts"] for c in r["calls"] for f in c["outputs"].values() for file in f["files"]}
    with closing(LocalStore(state, readonly=True)) as store:
        inventories = [load_manifest(store, number).inventories for number in reversed(store.list_manifests())]
        stored = StoredInventory.read(store, inventories[0][0])
    batches = [each for c in stored.of.inputs.values() for each in c.rows.batches]
    batches += [each for c in stored.of.operators.values() for each in c.arrangements[0].batches]
    return {
        "manifest": manifests,
        "inventory": [blobs / each.name for parts in inventories for each in parts],
        "section": [blobs / each.name for each in stored.text.sections],
        "batch": [blobs / each.file.name for each in batches],
        "bloom": [blobs / each.bloom.name for each in batches if each.bloom],
        "pending": [blobs / each.file.name for c in stored.of.inputs.values() for each in c.runs],
        "output": [blobs / name for name in sorted(outputs) if (blobs / name).exists()],
    }


@pytest.mark.drawn(4)
@pytest.mark.parametrize("spec", [EPOCH, HELD, WIDE], ids=["epoch", "held", "wide"])
@pytest.mark.parametrize("memory", [None, "16MB"])
@pytest.mark.parametrize("retain", [0, 1000])
def test_honest_states_are_whole(spec: dd.Upsert, memory: str | None, retain: int) -> None:
    store = MemoryStore()
    feed(store, events(SEED, 12), spec, memory=memory, retain=retain)
    report = dd.fsck(store)
    assert report.ok and not report.garbage and not report.ignored and not report.notes, str(report)
    assert report.epoch == (23 if spec is HELD else 12) and report.manifests == report.epoch + 1
    feed(store.reopen(), events(SEED + 1, 3, first=12), spec)
    assert dd.fsck(store).ok, str(dd.fsck(store))


@pytest.mark.drawn(3)
@pytest.mark.parametrize("seed", range(12))
def test_honest_states_whose_merges_are_half_done_are_whole(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, small in (("PIECE", 4), ("EFFORT", 1), ("MOST", 6)):
        monkeypatch.setattr(spine, name, small)
    rng, store = random.Random(seed), MemoryStore()
    spec = [EPOCH, HELD, WIDE][seed % 3]
    steps = events(seed, rng.randrange(9, 30), rows=rng.randrange(9, 40), keys=rng.choice([9, 60]))
    cut_at = len(steps) if spec.holds_back else len(steps) // 2
    for part in (steps[:cut_at], steps[cut_at:]):
        feed(store.reopen(), part, spec, memory=rng.choice([None, "16MB"]), retain=rng.choice([0, 3, 1000]), grace=0.0)
    report = dd.fsck(store)
    assert report.ok and not report.notes, f"seed {seed}: {report}"
    assert dd.verify(store, {"orders": steps}).ok, f"seed {seed}"


def test_the_kinds_of_files_that_are_damaged_below_are_all_there(whole: Path) -> None:
    assert all(kinds(whole / "state")[kind] for kind in ("manifest", "inventory", "batch", "bloom", "output"))
    assert len(kinds(whole / "sections")["section"]) > 1
    assert kinds(whole / "held")["pending"]
    for state in ("state", "held", "beside", "sections"):
        assert dd.fsck(whole / state).ok, str(dd.fsck(whole / state))


def flip(path: Path, rng: random.Random) -> None:
    data = bytearray(path.read_bytes())
    data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    path.write_bytes(data)


def cut(path: Path, rng: random.Random) -> None:
    path.write_bytes(path.read_bytes()[: rng.randrange(path.stat().st_size)])


def extend(path: Path, rng: random.Random) -> None:
    path.write_bytes(path.read_bytes() + b"\0" * rng.randrange(1, 9))


def zero(path: Path, rng: random.Random) -> None:
    path.write_bytes(b"\0" * path.stat().st_size)


def lose(path: Path, rng: random.Random) -> None:
    path.unlink()


def folder(path: Path, rng: random.Random) -> None:
    path.unlink()
    path.mkdir()


DAMAGE = [flip, cut, extend, zero, lose, folder]


@pytest.mark.drawn(14)
@pytest.mark.parametrize("kind", ["manifest", "inventory", "section", "batch", "bloom", "pending", "output"])
@pytest.mark.parametrize("damage", DAMAGE)
def test_every_damage_to_every_kind_of_file_is_told_with_its_name(
    whole: Path, tmp_path: Path, kind: str, damage: Any
) -> None:
    origin = whole / {"pending": "held", "section": "sections"}.get(kind, "state")
    rng = random.Random(f"{kind}{damage.__name__}")
    for trial, path in enumerate(kinds(origin)[kind][:2]):
        state = tmp_path / f"{trial}"
        shutil.copytree(origin, state)
        hurt = state / path.relative_to(origin)
        damage(hurt, rng)
        found = problems(state)
        if kind == "manifest" and trial and damage in (lose,):
            assert found == {}  # an older version is gone, which no other one names
        else:
            assert set(found) == {named(hurt, state)}, (path, found)


def test_two_files_that_were_swapped_are_both_told(whole: Path, tmp_path: Path) -> None:
    for kind in ("manifest", "inventory", "batch", "output"):
        state = tmp_path / kind
        shutil.copytree(whole / "state", state)
        one, other = (state / path.relative_to(whole / "state") for path in kinds(whole / "state")[kind][:2])
        aside = one.with_name("aside")
        one.rename(aside), other.rename(one), aside.rename(other)
        assert set(problems(state)) == {named(one, state), named(other, state)}, kind


def test_all_that_is_wrong_is_told_at_once(whole: Path, tmp_path: Path) -> None:
    state = tmp_path / "state"
    shutil.copytree(whole / "state", state)
    chosen = [state / paths[0].relative_to(whole / "state") for kind, paths in kinds(whole / "state").items() if paths]
    for path in chosen[1:]:  # without the newest manifest the others could not be known
        cut(path, random.Random(1))
    assert set(problems(state)) >= {named(path, state) for path in chosen[1:]}
    cut(chosen[0], random.Random(1))
    report = dd.fsck(state)
    assert named(chosen[0], state) in {each.file for each in report.problems}
    assert report.garbage is None and "garbage: unknown" in str(report)


@mid_test
@pytest.mark.sampled
def test_flipped_bits_anywhere_are_told(whole: Path, tmp_path: Path) -> None:
    rng, state = random.Random(SEED), tmp_path / "state"
    shutil.copytree(whole / "held", state)
    there = [path for path in files(state) if path.parent.name != "marks"]
    for path in sample(there * 2, 30, __name__):
        data = path.read_bytes()
        flip(path, rng)
        assert set(problems(state)) == {named(path, state)}, path
        path.write_bytes(data)
    assert problems(state) == {}


def test_files_of_epochs_beside_the_state_are_looked_at(whole: Path, tmp_path: Path) -> None:
    shutil.copytree(whole / "beside", tmp_path / "state")
    shown = sorted((whole / "outputs").rglob("*.parquet"))
    assert len(shown) > 5
    for path in shown[:3]:
        data = path.read_bytes()
        for damage in (flip, cut, lose):
            damage(path, random.Random(1))
            assert set(problems(tmp_path / "state")) == {str(path)}, damage
            path.write_bytes(data)
    hidden = shown[0].with_name(f".{shown[0].name.split('-', 1)[1]}.hidden")
    shown[0].rename(hidden)  # a crash before it was shown: the next who opens the state shows it
    assert problems(tmp_path / "state") == {}
    hidden.rename(shown[0])


def test_what_is_not_ours_is_ignored_and_what_nobody_names_is_counted(whole: Path, tmp_path: Path) -> None:
    state = tmp_path / "state"
    shutil.copytree(whole / "state", state)
    for name in ("notes.txt", "blobs/notes.arrow", "manifests/7", "marks/x"):
        (state / name).write_text("mine")
    (state / "blobs" / "00ff00ff00ff00ff-7.arrow").write_bytes(b"12345")
    report = dd.fsck(state)
    assert report.ok and (report.garbage, report.garbage_bytes) == (1, 5)
    assert report.ignored == ["notes.txt", "blobs/notes.arrow", "marks/x", "manifests/7"]


def test_nothing_is_written(whole: Path) -> None:
    before = {path: path.stat().st_mtime_ns for path in files(whole)}
    dd.fsck(whole / "state")
    assert {path: path.stat().st_mtime_ns for path in files(whole)} == before


def test_a_place_without_a_state_is_refused(tmp_path: Path) -> None:
    with pytest.raises(dd.errors.StateRefused):
        dd.fsck(tmp_path / "none")
    (tmp_path / "empty" / "manifests").mkdir(parents=True)
    os.chmod(tmp_path / "empty", 0o700)
    os.chmod(tmp_path / "empty" / "manifests", 0o700)
    report = dd.fsck(tmp_path / "empty")
    assert [each.file for each in report.problems] == ["manifests"]


def _rows(inventory: Any) -> Any:
    return inventory["inputs"]["orders"]["rows"]


def _batch(inventory: Any) -> Any:
    """What it says of the oldest batch."""
    return _rows(inventory)["items"][0]["batches"][0]


def _file(inventory: Any, store: MemoryStore, column: int, change: Any) -> None:
    """Rewrite a column of the oldest batch's file."""
    batch = _batch(inventory)

    def changed(table: pa.Table) -> pa.Table:
        at = column % table.num_columns
        return table.set_column(at, table.schema.field(at), change(table.column(at)))

    batch["file"] = rewritten(store, batch["file"], changed)


LIES = {
    "a key more": lambda i, s: _rows(i).update(keys=_rows(i)["keys"] + 1),
    "a tombstone less": lambda i, s: _rows(i).update(tombstones=_rows(i)["tombstones"] - 1),
    "an event more": lambda i, s: i["totals"].update(applied=i["totals"].get("applied", 0) + 1),
    "another value": lambda i, s: _file(i, s, -2, lambda c: pa.chunked_array([pa.array(["X"] * len(c))])),
    "another key": lambda i, s: _file(i, s, -3, lambda c: pc.add(c, 1)),
    "another order of rows": lambda i, s: _file(i, s, 0, lambda c: c.take(list(reversed(range(len(c)))))),
    "a time of the future": lambda i, s: _rows(i).update(upper=99),
    "an input that is not there": lambda i, s: i["inputs"].update(other=i["inputs"]["orders"]),
    "a count that is not there": lambda i, s: i["operators"].clear(),
    "rows that are not there": lambda i, s: _batch(i).update(rows=10**12),
    "a file that is none": lambda i, s: _batch(i).update(file=["x", 1, "y"]),
    "a batch used twice": lambda i, s: _rows(i)["items"].append(_rows(i)["items"][-1]),
    "no totals": lambda i, s: i.pop("totals"),
    "numbers that are none": lambda i, s: i["inputs"]["orders"].update(arrived="many"),
    "a Bloom filter of another": lambda i, s: _batch(i).update(bloom=_sieve(s, _batch(i))),
}


def _sieve(store: MemoryStore, batch: Any) -> list[Any]:
    """Zeros, as many as a Bloom filter would have: it would say of every key that it is not there."""
    with pa.ipc.open_file(store.shared.blobs[batch["file"][0]][0]) as file:
        high = file.read_all().column(0).to_numpy()
    words = BloomFilter.compute_size(int(high[0]), int(high[-1]), high.size)[2]
    table = pa.table({"words": pa.array([0] * words, pa.uint64())})
    return rewritten(store, batch["file"], lambda _: table)


@pytest.mark.parametrize("what", LIES)
def test_a_lie_with_the_right_checksum_is_told_too(what: str) -> None:
    store = MemoryStore()
    feed(store, events(SEED), retain=1000)
    assert dd.fsck(store).ok
    lie(store, lambda inventory: LIES[what](inventory, store))
    report = dd.fsck(store)
    assert not report.ok, what
    assert all(each.manifest == 7 and each.file.startswith("blobs/") for each in report.problems), str(report)


def test_a_plan_with_functions_is_looked_at_as_far_as_it_can_be() -> None:
    def flow() -> dd.Flow:
        made = dd.Flow()
        orders = made.upserts("orders", {"id": pa.int64(), "city": pa.string()}, dd.Upsert(key="id"))
        made.output("long", orders.filter(lambda t: pc.greater(pc.utf8_length(t["city"]), 4)).count(["city"]))
        return made

    store = MemoryStore()
    with flow().open(store) as engine:
        engine.step({"orders": pa.table({"id": [1, 2], "city": ["Basel", "Bern"]})}, time=1)
    report = dd.fsck(store)
    assert report.ok and len(report.notes) == 1 and "formula that is not SQL" in report.notes[0]
    report = dd.fsck(store, flow=flow())
    assert report.ok and not report.notes
    lie(store, lambda inventory: next(iter(inventory["operators"].values()))["arrangements"][0].update(keys=2))
    assert dd.fsck(store).ok and not dd.fsck(store, flow=flow()).ok
    lie(store, lambda inventory: _rows(inventory).update(keys=3))
    assert not dd.fsck(store).ok


def test_a_state_whose_plan_has_grown_is_whole() -> None:
    store = MemoryStore()
    feed(store, events(SEED, 3))
    more = plan(EPOCH, rating=pa.float64())
    more.output("all", more.inputs["orders"].count([]))
    with more.open(store.reopen()) as engine:
        engine.step({"orders": events(SEED + 1, 1)[0]}, time=9)
    report = dd.fsck(store)
    assert report.ok and not report.notes, str(report)


def test_a_writer_that_goes_on_and_sweeps_is_no_damage() -> None:
    class Busy(MemoryStore):
        """Its writer commits, and what is old is swept, between any two manifests that are read."""

        def read_manifest(self, number: int) -> bytes:
            data = super().read_manifest(number)
            if len(steps):
                engine.step({"orders": steps.pop()}, time=engine.last + 1)
            return data

    steps, writer = events(SEED, 8), MemoryStore()
    with plan().open(writer, grace=0.0) as engine:
        for time in (1, 2, 3):
            engine.step({"orders": steps.pop()}, time=time)
        report: FsckReport = dd.fsck(Busy(writer.shared))
    assert report.ok, str(report)
    assert len(steps) < 5


def test_a_version_that_the_next_was_not_made_from_is_noted() -> None:
    store = MemoryStore()
    feed(store, events(SEED, 4))
    for number in (2, 3):  # a writer that slept found its number free again, and died before it took this back
        manifest = load_manifest(store, number)
        store.shared.manifests[number] = replace(manifest, note="late").encode()
    report = dd.fsck(store)
    assert report.ok and [note[:26] for note in report.notes] == [f"manifests/{number:016d}" for number in (3, 2)]


def test_what_a_report_says(whole: Path, tmp_path: Path) -> None:
    shutil.copytree(whole / "state", tmp_path / "state")
    report = dd.fsck(tmp_path / "state")
    assert str(report).startswith(f"{tmp_path / 'state'}, epoch 8: no problems; ")
    hurt = kinds(tmp_path / "state")["batch"][0]
    hurt.unlink()
    said = str(dd.fsck(tmp_path / "state"))
    assert "1 PROBLEMS" in said and f"blobs/{hurt.name}: it is missing, but the manifest names it" in said
