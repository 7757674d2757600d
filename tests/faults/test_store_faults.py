"""Test a disk that fails at any call, once or for good: the error names the call, and published data is not lost.

Every call of a commit fails in turn, in every way. Then the disk works again, and the state is reopened. The state must
have the last manifest, or the next manifest if the error left this open. It must also continue and survive a power
failure.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pytest
from messages import raises
from simdisk import KINDS, Faulty, SimDisk
from test_store_power import PATH, Writer, blobs, check
from watched import open_below

from ddflow.errors import OutcomeUnknown, StorageFailed, StorageFull
from ddflow.storage.folder.disk import Disk
from ddflow.storage.folder.local import LocalStore
from ddflow.storage.protocol import Store

TYPED = {
    "ENOSPC": (StorageFull, OutcomeUnknown),
    "EIO": (StorageFailed, OutcomeUnknown),
    "fsync": (StorageFailed, OutcomeUnknown),
    "answer": (StorageFailed, OutcomeUnknown),
}


def begun(make: Callable[[Any], Store], disk: Any, note: Callable[[Any], None]) -> None:
    """A state of two epochs."""
    writer = Writer(make(disk), note)
    assert writer.commit(Random(1)) and writer.commit(Random(2))


def troubled(make: Callable[[Any], Store], disk: Faulty, note: Callable[[Any], None]) -> tuple[int, Exception | None]:
    """Open, read all, commit: the number acknowledged, and the error if there was one."""
    won = 1

    def told(promise: Any) -> None:
        nonlocal won
        won = max(won, promise[1] if promise[0] == "won" else won)
        note(promise)

    try:
        store = make(disk)
        writer = Writer(store, told)
        for blob in writer.blobs:
            store.map_blob(blob)
        store.list_blobs(), store.find_last_published()
        writer.commit(Random(3))
    except (StorageFull, StorageFailed, OutcomeUnknown) as error:
        if isinstance(error, OutcomeUnknown):
            with raises(StorageFailed):
                store.publish(9, b"it refuses to go on")
        return won, error
    return won, None


def held(store: Store) -> dict[int, tuple[bytes, tuple[bytes, ...]]]:
    """Everything that can be read: manifests and what the newest names."""
    numbers = store.list_manifests()
    found = {number: (store.read_manifest(number), ()) for number in numbers}
    data = found[numbers[-1]][0]
    return found | {numbers[-1]: (data, tuple(store.map_blob(blob).to_pybytes() for blob in blobs(data)))}


@pytest.mark.parametrize("forever", [False, True], ids=["once", "for good"])
@pytest.mark.parametrize("kind", KINDS)
def test_whatever_call_fails_the_state_is_the_last_or_the_next(kind: str, forever: bool) -> None:
    def make(disk: Any) -> Store:
        return LocalStore(PATH, disk=disk)

    raised = set[str]()
    for at in range(1000):
        disk = SimDisk()
        begun(make, disk, disk.note)
        before = held(make(disk))
        faulty = Faulty(disk, at, kind, forever)
        won, error = troubled(make, faulty, disk.note)
        if not faulty.failed:
            break
        where = f"call {at}, {faulty.failed[0]}: {error!r}"
        raised.add(faulty.failed[0])
        # A short write is gone on with, and a temporary file that stays is garbage; all else must be told.
        quiet = (
            kind == "short" or faulty.failed[0] in ("unlink", "names") or (kind, faulty.failed[0]) == ("answer", "link")
        )
        assert isinstance(error, TYPED.get(kind, ())) or (error is None and quiet), where
        assert not disk.open, f"{where}: descriptors stay open"
        after = held(make(disk))
        newest = max(after)
        assert newest == won or (newest == 2 and isinstance(error, OutcomeUnknown)), where
        assert newest > 1 or after[1] == before[1], where
        disk.note(("seen", newest))
        for seed in range(10):
            image = disk.image(seed, len(disk.log))
            check(make(image), image.notes)
        check(make(disk), disk.notes)  # which also goes on
    else:
        raise AssertionError("the commit never came to its end")
    assert at > (2 if kind == "short" else 5)
    assert raised == ({"write"} if kind == "short" else raised & set(KINDS[kind])) and raised


@pytest.mark.parametrize("kind", ["ENOSPC", "EIO"])
def test_on_a_real_disk_nothing_stays_open_or_half_written(tmp_path: Path, kind: str) -> None:
    def make(disk: Any) -> Store:
        return LocalStore(tmp_path / str(at), disk=disk)

    for at in range(1000):
        begun(make, Disk(), lambda _: None)
        files, before = open_below(tmp_path), held(make(Disk()))
        faulty = Faulty(Disk(), at, kind)
        won, error = troubled(make, faulty, lambda _: None)
        if not faulty.failed:
            break
        where = f"call {at}, {faulty.failed[0]}: {error!r}"
        assert open_below(tmp_path) == files, where
        store = make(Disk())
        after = held(store)
        assert max(after) == won or (max(after) == 2 and isinstance(error, OutcomeUnknown)), where
        assert max(after) > 1 or after[1] == before[1], where
        named = blobs(store.read_manifest(max(after)))
        assert {blob.name: blob.length for blob in named}.items() <= {
            n: size for n, size, _ in store.list_blobs()
        }.items()
        if faulty.failed[0] != "unlink":
            assert not [name for name in os.listdir(tmp_path / str(at) / "manifests") if name.startswith(".")], where
        assert Writer(store, lambda _: None).commit(Random(4)), where
    assert at > 5


def test_a_folder_half_made_is_made_whole_by_the_next() -> None:
    def make(disk: Any) -> Store:
        return LocalStore(PATH, disk=disk)

    for kind in ("ENOSPC", "EIO", "answer", "fsync"):
        for at in range(1000):
            disk = SimDisk()
            faulty = Faulty(disk, at, kind, forever=True)
            try:
                make(faulty)
            except (StorageFull, StorageFailed) as error:
                assert isinstance(error, TYPED[kind]), (kind, at)
            if not faulty.failed:
                break
            assert Writer(make(disk), disk.note).commit(Random(1)), (kind, at)
            for seed in range(20):
                image = disk.image(seed, len(disk.log))
                check(make(image), image.notes)
        assert at > 3


@pytest.mark.parametrize("error", [OSError(28, "another disk is full"), KeyboardInterrupt()])
def test_a_blob_that_is_given_up_leaves_nothing_and_its_error_is_the_writers_own(error: BaseException) -> None:
    def write(sink: Any) -> None:
        sink.write(b"half")
        raise error

    disk = SimDisk()
    store = LocalStore(PATH, disk=disk)
    with pytest.raises(type(error)) as caught:
        store.put("arrow", write)
    assert caught.value is error
    assert store.list_blobs() == [] and disk.names(f"{PATH}/blobs") == [] and not disk.open


def test_a_full_disk_is_told_through_arrows_code_and_even_when_the_writer_hides_it() -> None:
    batch = pa.record_batch({"n": list(range(1000))})

    def arrow(sink: Any) -> None:
        with pa.ipc.new_file(sink, batch.schema) as writer:
            writer.write_batch(batch)

    def silent(sink: Any) -> None:
        with contextlib.suppress(OSError):
            sink.write(b"four")

    disk = SimDisk()
    store = LocalStore(PATH, disk=Full(disk))
    for write in (arrow, silent):
        with raises(StorageFull):
            store.put("arrow", write)
    assert disk.names(f"{PATH}/blobs") == [] and not disk.open


def test_after_a_failed_sync_of_names_it_takes_no_more() -> None:
    disk = SimDisk()
    store = LocalStore(PATH, disk=disk)
    store.site.disk = Faulty(disk, 0, "fsync")
    with raises(StorageFailed):
        store.fsync_blob_names()
    for call in (store.fsync_blob_names, lambda: store.publish(0, b"names what may be lost")):
        with raises(StorageFailed):
            call()
    assert LocalStore(PATH, disk=disk).list_manifests() == []


class Full(Faulty):
    """A disk with room for names but not for bytes."""

    def _call(self, name: str, *arguments: Any, **options: Any) -> Any:
        if name == "write":
            raise OSError(28, "No space left on device")
        return super()._call(name, *arguments, **options)
