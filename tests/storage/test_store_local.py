"""Test a state in a folder: private, clean, verified; one writer wins a number; foreign files stay untouched."""

from __future__ import annotations

import errno
import os
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from chance import mid_test
from messages import raises
from simdisk import Faulty, SimDisk

from ddflow.errors import (
    CorruptState,
    EngineClosed,
    OutcomeUnknown,
    StateRefused,
    StorageFailed,
)
from ddflow.storage.files.batch_store import BatchStore
from ddflow.storage.folder.disk import Disk
from ddflow.storage.folder.local import MANIFEST, LocalStore
from ddflow.storage.folder.scratch import LOCK
from ddflow.storage.memory import MemoryStore
from ddflow.storage.protocol import Blob, Store

NUMBER = "0000000000000000"


@pytest.fixture
def place(tmp_path: Path) -> Path:
    return tmp_path / "orders"


@pytest.fixture
def umask() -> Iterator[None]:
    old = os.umask(0)
    yield
    os.umask(old)


def put(store: Store, data: bytes = b"four") -> Blob:
    return store.put("arrow", lambda sink: sink.write(data))


def mode(path: Path | str) -> int:
    return stat.S_IMODE(os.lstat(path).st_mode)


def tree(place: Path) -> dict[str, bytes | None]:
    return {str(p.relative_to(place)): p.read_bytes() if p.is_file() else None for p in sorted(place.rglob("*"))}


# What goes in comes out.


@pytest.mark.parametrize("kind", ["local", "memory"])
def test_blobs_and_manifests_come_back_and_a_number_is_given_once(place: Path, kind: str) -> None:
    one: Store = LocalStore(place) if kind == "local" else MemoryStore()
    other = LocalStore(place) if kind == "local" else one.reopen()  # type: ignore[attr-defined]
    assert one.nonce != other.nonce and len(one.nonce) == 16
    kept = [put(one, data) for data in (b"", b"four", bytes(3 << 20))]
    one.fsync_blob_names()
    assert [other.map_blob(blob).to_pybytes() for blob in kept] == [b"", b"four", bytes(3 << 20)]
    assert {(name, length) for name, length, _ in other.list_blobs()} == {(b.name, b.length) for b in kept}
    assert all(0 <= entry.age < 60 for entry in one.list_blobs())
    assert (one.list_manifests(), one.find_last_published(), one.is_published(0)) == ([], -1, False)
    assert one.publish(0, b"one") and not other.publish(0, b"two") and other.publish(1, b"two")
    assert other.list_manifests() == [0, 1] and one.read_manifest(0) == b"one" and one.read_manifest(1) == b"two"
    assert other.is_published(1) and not other.is_published(2)
    one.mark_published(0), other.mark_published(1), other.mark_published(1)
    assert one.find_last_published() == 1
    assert kind == "memory" or os.listdir(place / "marks") == ["0000000000000001"]
    mapped = other.map_blob(kept[1])
    one.delete(kept[1].name), one.delete(kept[1].name)
    one.delete_manifest(0), one.delete_manifest(0)
    assert mapped.to_pybytes() == b"four" and other.list_manifests() == [1]
    for gone in (lambda: other.map_blob(kept[1]), lambda: other.read_manifest(0)):
        with raises(CorruptState):
            gone()
    with raises(CorruptState):
        one.map_blob(kept[0]._replace(length=1))
    for wrong in ("../x", "0-1.arrow", kept[0].name + "/x"):
        with pytest.raises((ValueError, CorruptState)):
            one.map_blob(Blob(wrong, 4, bytes(16)))
    one.close(), one.close()
    with raises(EngineClosed):
        put(one)
    assert other.list_manifests() == [1]


def test_arrow_files_are_mapped_and_thousands_need_no_descriptors(place: Path) -> None:
    store, batch = LocalStore(place), pa.record_batch({"n": list(range(1000))})

    def write(sink: Any) -> None:
        with pa.ipc.new_file(sink, batch.schema) as writer:
            writer.write_batch(batch)

    blob = store.put("arrow", write)
    allocated = pa.total_allocated_bytes()
    mapped = [store.map_blob(blob) for _ in range(3000)]
    assert pa.total_allocated_bytes() == allocated
    assert pa.ipc.open_file(pa.BufferReader(mapped[-1])).read_all().to_batches() == [batch]


@pytest.mark.parametrize("change", ["flip", "cut", "more", "empty"])
def test_a_changed_file_is_never_given(place: Path, change: str) -> None:
    store = LocalStore(place)
    blob = put(store, b"four")
    wrong = {"flip": b"fouR", "cut": b"fou", "more": b"four!", "empty": b""}[change]
    (place / "blobs" / blob.name).write_bytes(wrong)
    with pytest.raises(CorruptState, match=blob.name):
        store.map_blob(blob)


# Whose it is.


def test_only_the_owner_may_look_whatever_the_umask(place: Path, umask: None) -> None:
    for trust, folder, file in (("owner", 0o700, 0o600), ("group", 0o770, 0o660)):
        for mask in (0, 0o77, 0o277):
            os.umask(mask)
            root = place.parent / f"{trust}{mask}" / "orders"
            store = LocalStore(root, trust=trust)
            blob = put(store)
            store.publish(0, b"m"), store.mark_published(0)
            store.open_scratch_store().close()
            folders = [root.parent, root, root / "blobs", root / "manifests", root / "marks", root / "spill"]
            files = [root / "blobs" / blob.name, root / "manifests" / NUMBER, root / "marks" / NUMBER]
            assert [mode(path) for path in folders] == [folder] * 6
            assert [mode(path) for path in files] == [file] * 3
            store.close()


@pytest.mark.parametrize("which", ["", "blobs", "manifests", "marks"])
def test_a_folder_that_others_may_write_to_is_refused_unless_they_are_trusted(place: Path, which: str) -> None:
    LocalStore(place).publish(0, b"m")
    for bits in (0o720, 0o702, 0o777):
        (place / which).chmod(bits)
        for readonly in (False, True):
            with raises(StateRefused):
                LocalStore(place, readonly=readonly)
        assert LocalStore(place, trust="group").list_manifests() == [0]
    (place / which).chmod(0o755)
    assert LocalStore(place).list_manifests() == [0]


def test_another_users_folder_is_refused_unless_they_are_trusted(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    LocalStore(place)
    user = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: user + 1)
    with raises(StateRefused):
        LocalStore(place)
    LocalStore(place, trust="group")
    with raises(StateRefused):
        LocalStore(place, trust="all")


# What is no state.


def test_nothing_is_made_where_there_is_no_state_and_none_is_wanted(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    for options in ({"create": False}, {"readonly": True}, {"create": False, "readonly": True}):
        for name in ("missing", "empty", "missing/below"):
            with raises(StateRefused):
                LocalStore(tmp_path / name, **options)
    assert tree(tmp_path) == {"empty": None}


def test_a_folder_with_other_things_in_it_is_not_littered(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("years of work")
    with raises(StateRefused):
        LocalStore(tmp_path)
    assert tree(tmp_path) == {"thesis.txt": b"years of work"}


def test_a_state_that_lost_its_manifests_is_not_taken_for_a_new_one(place: Path) -> None:
    store = LocalStore(place)
    put(store)
    (place / "manifests").rmdir()
    with raises(StateRefused):
        LocalStore(place)


@pytest.mark.parametrize("what", [3, None, "nul\0", b"\xff\0"])
def test_what_is_no_path_is_refused(what: Any) -> None:
    with raises(StateRefused):
        LocalStore(what)


def test_a_file_in_its_place_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    for path in (tmp_path / "file", tmp_path / "file" / "below"):
        with raises(StateRefused):
            LocalStore(path)


def test_links_are_followed_to_a_state_and_nowhere_inside(tmp_path: Path) -> None:
    real, link, secret = tmp_path / "real", tmp_path / "link", tmp_path / "secret"
    link.symlink_to(real)
    store = LocalStore(link)
    blob = put(store)
    store.publish(0, b"m")
    assert store.where == str(real) and LocalStore(link, readonly=True).list_manifests() == [0]
    secret.write_bytes(b"four")
    (real / "blobs" / blob.name).unlink()
    (real / "blobs" / blob.name).symlink_to(secret)
    (real / "manifests" / "0000000000000001").symlink_to(secret)
    os.mkfifo(real / "manifests" / "0000000000000002")  # to open it would wait for ever
    (real / "manifests" / "0000000000000003").mkdir()
    assert store.list_blobs() == []
    for read in (lambda: store.map_blob(blob), *(lambda n=n: store.read_manifest(n) for n in (1, 2, 3))):
        with raises(CorruptState):
            read()
    (real / "marks").rmdir()
    (real / "marks").symlink_to(tmp_path)
    with raises(StateRefused):
        LocalStore(real)


def test_junk_is_neither_listed_nor_deleted(place: Path) -> None:
    store = LocalStore(place)
    blob = put(store)
    store.publish(3, b"m"), store.mark_published(3)
    junk = [
        "blobs/.DS_Store",
        "blobs/x.arrow",
        f"blobs/{blob.name}.bak",
        "manifests/README",
        "manifests/3",
        "marks/.x",
        "manifests/00000000000000004",
        f"blobs/{blob.name.upper()}",
        "marks/7",
        ".git",
    ]
    for name in junk:
        (place / name).write_bytes(b"junk")
    os.utime(place / "manifests" / "README", (0, 0))
    (place / "spill").mkdir()
    (place / "spill" / "mine").mkdir()
    again = LocalStore(place)
    assert ([e.name for e in again.list_blobs()], again.list_manifests(), again.find_last_published()) == (
        [blob.name],
        [3],
        3,
    )
    again.mark_published(4), again.publish(4, b"n"), again.close()
    assert set(junk) | {"spill/mine"} <= set(tree(place))


def test_temporary_files_go_when_they_are_old(place: Path) -> None:
    LocalStore(place)
    young, old = (place / "manifests" / f".{16 * digit}-3.part" for digit in "01")
    for path in (young, old):
        path.write_bytes(b"half")
    os.utime(old, (time.time() - 7200,) * 2)
    store = LocalStore(place)
    assert young.exists() and not old.exists() and store.list_manifests() == []


def test_a_manifest_that_is_too_large_is_not_read(place: Path) -> None:
    store = LocalStore(place)
    with open(place / "manifests" / NUMBER, "wb") as file:
        file.truncate(MANIFEST + 1)
    with raises(CorruptState):
        store.read_manifest(0)
    assert not store.publish(0, b"mine")
    for number in (-1, 10**16):
        with pytest.raises(ValueError, match="not the number of a manifest"):
            store.publish(number, b"x")


# One writer wins.


class Linking(Faulty):
    """A disk whose ``link`` is another's."""

    def __init__(self, disk: Disk, link: Any) -> None:
        super().__init__(disk)
        self.do = link

    def _call(self, name: str, *arguments: Any, **options: Any) -> Any:
        return self.do(self.disk, *arguments) if name == "link" else super()._call(name, *arguments, **options)


def overwriting(disk: Any, source: str, target: str) -> None:
    if target.rpartition("/")[2] in disk.names(target.rpartition("/")[0]):
        disk.unlink(target)
    disk.link(source, target)


def failing(number: int) -> Any:
    def link(disk: Any, source: str, target: str) -> None:
        raise OSError(number, os.strerror(number))

    return link


def test_a_disk_that_lets_two_writers_win_or_cannot_link_is_refused() -> None:
    with raises(StateRefused):
        LocalStore("/s", disk=Linking(SimDisk(), overwriting))
    for number in (errno.EPERM, errno.ENOTSUP, errno.ENOSYS, errno.EMLINK):
        disk = SimDisk()
        with raises(StateRefused):
            LocalStore("/s", disk=Linking(disk, failing(number)))
        assert disk.names("/s/manifests") == []
    with raises(StorageFailed):
        LocalStore("/s", disk=Linking(SimDisk(), failing(errno.EIO)))


def test_a_link_whose_answer_was_lost_is_known_by_its_bytes() -> None:
    """A file server that forgets that it has answered tries again, and says that the name is taken."""

    def twice(disk: Any, source: str, target: str) -> None:
        disk.link(source, target)
        if not source.endswith("-0.part"):  # not while it is proved
            disk.link(source, target)

    disk = SimDisk()
    one, other = LocalStore("/s", disk=Linking(disk, twice)), LocalStore("/s", disk=disk)
    begin = len(disk.log)
    assert one.publish(0, b"by one")
    assert "sync_dir" in [kind for kind, *_ in disk.log[begin:]]
    assert not other.publish(0, b"by other") and not one.publish(0, b"by one, anew")


def test_after_an_unknown_outcome_it_takes_no_more() -> None:
    disk = SimDisk()
    store = LocalStore("/s", disk=disk)
    store.site.disk = Linking(disk, failing(errno.EIO))
    with raises(OutcomeUnknown):
        store.publish(4, b"m")
    for call in (lambda: put(store), lambda: store.publish(5, b"m"), store.fsync_blob_names, lambda: store.delete("x")):
        with raises(StorageFailed):
            call()
    assert store.list_manifests() == [] and disk.names("/s/manifests") == []


RACE = """
import os, sys, time
from ddflow.storage.folder.disk import Disk
from ddflow.storage.folder.local import LocalStore

class Quick(Disk):
    fsync = sync_dir = lambda self, _: None

place, rounds = sys.argv[1], int(sys.argv[2])
start, go = os.pipe()
for writer in range(8):
    if not os.fork():
        os.close(go)
        store, won = LocalStore(place, disk=Quick()), []
        os.read(start, 1)  # until the parent closes its end, which all others have done
        for number in range(rounds):
            os.sched_yield()
            if store.publish(number, f"{store.nonce} {number}".encode()):
                won.append(f"{number} {store.nonce}")
                time.sleep(0.001)  # else who is first may stay ahead of all others to the end
        with open(f"{place}.{writer}", "w") as out:
            print(*won, sep="\\n", file=out)
        os._exit(0)
os.close(go)
for writer in range(8):
    assert os.wait()[1] == 0
"""


@mid_test
def test_of_eight_writers_one_wins_each_of_a_thousand_rounds(place: Path) -> None:
    subprocess.run([sys.executable, "-c", RACE, place, "1000"], check=True, timeout=120)
    told = [(place.parent / f"orders.{i}").read_text() for i in range(8)]
    claims = [[line.split() for line in each.split("\n") if line] for each in told]
    won = sorted((int(number), nonce) for each in claims for number, nonce in each)
    assert [number for number, _ in won] == list(range(1000))
    store = LocalStore(place, readonly=True)
    assert store.list_manifests() == list(range(1000))
    assert all(store.read_manifest(number) == f"{nonce} {number}".encode() for number, nonce in won)
    assert sum(1 for each in claims if each) > 1, "there was no race"
    assert len(os.listdir(place / "manifests")) == 1000


# Reading, forking, spilling.


def test_a_reader_changes_nothing_and_needs_no_right_to(place: Path) -> None:
    store = LocalStore(place)
    blob = put(store)
    store.publish(0, b"m"), store.mark_published(0)
    before = {path: os.lstat(path).st_mtime_ns for path in [place, *place.rglob("*")]}
    calls: list[str] = []
    watched = Faulty(Disk(), before=lambda *call: calls.append(call[0]))
    reader = LocalStore(place, create=False, readonly=True, disk=watched)
    assert (reader.map_blob(blob).to_pybytes(), reader.read_manifest(0)) == (b"four", b"m")
    assert (reader.list_manifests(), reader.find_last_published()) == ([0], 0)
    for change in (
        lambda: put(reader),
        lambda: reader.publish(1, b"n"),
        lambda: reader.delete(blob.name),
        reader.fsync_blob_names,
        lambda: reader.mark_published(1),
        lambda: reader.delete_manifest(0),
        reader.open_scratch_store,
    ):
        with raises(StateRefused):
            change()
    reader.close()
    assert set(calls) <= {"status", "names", "read", "map_file"}
    assert before == {path: os.lstat(path).st_mtime_ns for path in [place, *place.rglob("*")]}


def test_opening_makes_few_calls(place: Path) -> None:
    LocalStore(place).publish(0, b"m")
    calls: list[str] = []
    LocalStore(place, disk=Faulty(Disk(), before=lambda *call: calls.append(call[0])))
    assert len(calls) < 30 and calls.count("sync_dir") == 1 and "fsync" not in calls


def test_a_forked_child_changes_nothing(place: Path) -> None:
    code = """
import os, sys
from ddflow.errors import EngineClosed
from ddflow.storage.folder.local import LocalStore

store = LocalStore(sys.argv[1])
scratch = store.open_scratch_store()
if not os.fork():
    try:
        store.put("arrow", lambda sink: sink.write(b"child"))
    except EngineClosed as error:
        assert "forked" in str(error)
        sys.exit()
    os._exit(1)
assert os.wait()[1] == 0
assert os.path.isdir(scratch.where)
store.put("arrow", lambda sink: sink.write(b"parent"))
"""
    subprocess.run([sys.executable, "-c", code, place], check=True, timeout=300)
    assert len(os.listdir(place / "blobs")) == 1 and os.listdir(place / "spill") == []


def test_folders_to_spill_to_are_fresh_private_and_gone_at_the_end(place: Path) -> None:
    one, other = LocalStore(place), LocalStore(place)
    scratches = [one.open_scratch_store(), one.open_scratch_store(), other.open_scratch_store()]
    paths = [scratch.where for scratch in scratches]
    assert len(set(paths)) == 3 and all(mode(path) == 0o700 and os.listdir(path) == [LOCK] for path in paths)
    mapped = BatchStore(scratches[0]).write(pa.record_batch({"n": [1]}))
    one.close()
    LocalStore(place).close()  # which leaves alone what is held
    assert os.path.exists(f"{paths[0]}/{mapped.blob.name}") and all(map(os.path.isdir, paths))
    scratches[1].close()
    assert [os.path.exists(path) for path in paths] == [True, False, True]
    scratches[0].close()
    scratches[2].close()
    assert os.listdir(place / "spill") == []


def test_a_killed_writers_spill_is_removed_by_the_next(place: Path) -> None:
    code = """
import sys, time
import pyarrow as pa
from ddflow.storage.files.batch_store import BatchStore
from ddflow.storage.folder.local import LocalStore

store = LocalStore(sys.argv[1])
scratch = store.open_scratch_store()
mapped = BatchStore(scratch).write(pa.record_batch({"n": [1]}))
other = store.open_scratch_store()
print("ready", flush=True)
time.sleep(600)
"""
    with subprocess.Popen([sys.executable, "-c", code, place], stdout=subprocess.PIPE, text=True) as child:
        try:
            assert child.stdout is not None and child.stdout.readline() == "ready\n"
            LocalStore(place).close()
            assert len([path for path in (place / "spill").rglob("*") if path.suffix == ".arrow"]) == 1
        finally:
            child.send_signal(signal.SIGKILL)
    LocalStore(place).close()
    assert os.listdir(place / "spill") == []


def test_a_forgotten_scratch_store_leaves_no_folder(place: Path) -> None:
    scratch = LocalStore(place).open_scratch_store()
    scratch.put("arrow", lambda sink: sink.write(b"four"))
    assert len(os.listdir(place / "spill")) == 1
    del scratch
    assert os.listdir(place / "spill") == []
