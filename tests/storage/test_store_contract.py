"""Test the guarantees of every store: in memory, in a local folder, in S3 (moto over HTTP)."""

from __future__ import annotations

import contextlib
import os
import random
import stat
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from messages import raises
from s3_server import Moto, moto, options

from ddflow.errors import CorruptState, EngineClosed
from ddflow.storage.files.batch_store import BatchStore
from ddflow.storage.folder.local import LocalStore
from ddflow.storage.memory import MemoryStore
from ddflow.storage.protocol import NAME, Blob, Store
from ddflow.storage.s3 import S3Store

__all__ = ["moto"]
Opener = Callable[[], Store]


@pytest.fixture(params=["memory", "local", "s3"])
def opener(request: pytest.FixtureRequest, tmp_path: Path) -> Opener:
    """Opens a store of the test's own place, each time as another writer."""
    if request.param == "memory":
        return MemoryStore().reopen
    if request.param == "local":
        return lambda: LocalStore(tmp_path / "state")
    server: Moto = request.getfixturevalue("moto")
    url = f"s3://{server.bucket()}/my states/orders"
    return lambda: S3Store(url, cache=tmp_path / "cache", options=options(server.url))


def test_what_is_put_is_mapped_and_listed(opener: Opener) -> None:
    one, two = opener(), opener()
    blobs = {}
    for size in (0, 1, 4_096, 1_500_001):
        for store, ending in ((one, "arrow"), (two, "json")):
            data = random.Random(size).randbytes(size)
            blob = store.put(ending, lambda sink, data=data: sink.write(data))
            assert NAME.fullmatch(blob.name) and blob.name.endswith(ending) and blob.length == size
            blobs[blob] = data
    one.fsync_blob_names()
    assert len({blob.name for blob in blobs}) == len(blobs)
    for blob, data in blobs.items():
        assert one.map_blob(blob).to_pybytes() == two.map_blob(blob).to_pybytes() == data
    entries = opener().list_blobs()
    assert {(entry.name, entry.length) for entry in entries} == {(blob.name, blob.length) for blob in blobs}
    assert all(0.0 <= entry.age < 60.0 for entry in entries)


def test_sizes_are_of_the_blobs_that_are_there(opener: Opener, monkeypatch: pytest.MonkeyPatch) -> None:
    one, two = opener(), opener()
    blobs = [store.put("arrow", lambda sink, n=n: sink.write(bytes(n))) for n in (0, 1, 70_000) for store in (one, two)]
    one.fsync_blob_names()
    missing = "00ff00ff00ff00ff-7.arrow"
    expected = {blob.name: blob.length for blob in blobs}
    assert two.find_blob_sizes([*expected, missing]) == expected
    assert one.find_blob_sizes([blobs[2].name]) == {blobs[2].name: 1}
    assert one.find_blob_sizes([]) == one.find_blob_sizes([missing]) == {}
    one.delete(blobs[4].name)
    assert set(two.find_blob_sizes([*expected])) == set(expected) - {blobs[4].name}
    monkeypatch.setattr("ddflow.storage.s3.MANY", 2)
    assert set(two.find_blob_sizes([*expected, missing])) == set(expected) - {blobs[4].name}


def test_arrow_writes_straight_to_a_blob(opener: Opener) -> None:
    table = pa.table({"n": range(1000), "city": ["Bern", None] * 500})

    def write(sink: Any) -> None:
        with pa.ipc.new_file(sink, table.schema) as file:
            file.write_table(table)

    whole = opener().map_blob(opener().put("arrow", write))
    assert pa.ipc.open_file(pa.BufferReader(whole)).read_all().equals(table)


def test_a_write_that_raises_leaves_nothing(opener: Opener) -> None:
    store = opener()

    def write(sink: Any) -> None:
        sink.write(b"half")
        raise KeyError("stop")

    with pytest.raises(KeyError, match="stop"):
        store.put("arrow", write)
    assert store.list_blobs() == []
    assert store.map_blob(store.put("json", lambda sink: sink.write(b"{}"))).to_pybytes() == b"{}"


def test_a_blob_that_is_not_what_was_put_is_never_mapped(opener: Opener) -> None:
    store = opener()
    blob = store.put("arrow", lambda sink: sink.write(b"four"))
    wrong = [
        blob._replace(length=3),
        blob._replace(length=1 << 50),
        blob._replace(digest=bytes(16)),
        Blob(f"{'0' * 16}-1.arrow", 4, blob.digest[::-1]),
    ]
    for each in wrong:
        with pytest.raises(CorruptState, match=each.name):
            store.map_blob(each)
    assert store.map_blob(blob).to_pybytes() == b"four"


def test_a_deleted_blob_stays_mapped_and_is_deleted_twice(opener: Opener) -> None:
    store, other = opener(), opener()
    blob = store.put("arrow", lambda sink: sink.write(b"x" * 100_000))
    kept = other.put("arrow", lambda sink: sink.write(b"kept"))
    whole = store.map_blob(blob)
    other.delete(blob.name)
    store.delete(blob.name)
    assert whole.to_pybytes() == b"x" * 100_000
    assert [entry.name for entry in store.list_blobs()] == [kept.name]


def test_a_number_is_published_once(opener: Opener) -> None:
    one, two = opener(), opener()
    assert one.list_manifests() == [] and not one.is_published(3)
    assert one.publish(3, b"one") and not two.publish(3, b"two") and not one.publish(3, b"one again")
    assert two.publish(12, b"") and two.publish(4, b"x" * 300_000)
    late = opener()
    assert late.list_manifests() == [3, 4, 12] and late.is_published(3) and not late.is_published(5)
    assert [late.read_manifest(number) for number in (3, 4, 12)] == [b"one", b"x" * 300_000, b""]


def test_an_expired_manifest_is_missing(opener: Opener) -> None:
    store = opener()
    store.publish(1, b"a")
    store.publish(2, b"b")
    store.delete_manifest(1)
    store.delete_manifest(1)
    assert store.list_manifests() == [2] and not store.is_published(1)
    with raises(CorruptState):
        store.read_manifest(1)


def test_the_greatest_mark_is_kept(opener: Opener) -> None:
    store, other = opener(), opener()
    assert store.find_last_published() == -1
    for number in (0, 7, 8):
        store.mark_published(number)
        assert other.find_last_published() == number
    other.mark_published(8)
    assert opener().find_last_published() == 8


def test_scratch_is_private_and_goes(opener: Opener) -> None:
    store, other = opener(), opener()
    scratches = [store.open_scratch_store(), store.open_scratch_store(), other.open_scratch_store()]
    paths = [scratch.where for scratch in scratches]
    assert len(set(paths)) == 3 and all(stat.S_IMODE(os.stat(path).st_mode) == 0o700 for path in paths)
    kept = [BatchStore(scratch).write(pa.record_batch({"n": [1]})) for scratch in scratches]
    opener().open_scratch_store().close()
    for batch, path in zip(kept, paths, strict=True):
        assert os.path.exists(f"{path}/{batch.blob.name}"), "a third store cleared those of open ones"
    for scratch in scratches:
        scratch.close()
    assert not any(os.path.exists(path) for path in paths)
    assert [batch.batch.num_rows for batch in kept] == [1, 1, 1]


def test_a_closed_store_takes_nothing(opener: Opener) -> None:
    store = opener()
    blob = store.put("arrow", lambda sink: sink.write(b"four"))
    whole = store.map_blob(blob)
    store.close()
    store.close()
    for write in (lambda: store.put("arrow", lambda sink: sink.write(b"")), lambda: store.publish(1, b"")):
        with raises(EngineClosed):
            write()
    assert whole.to_pybytes() == b"four" and opener().list_manifests() == []


def test_one_of_many_writers_wins_each_number(opener: Opener) -> None:
    stores = [opener() for _ in range(4)]
    # That in memory is not for several threads.
    lock = threading.Lock() if isinstance(stores[0], MemoryStore) else contextlib.nullcontext()
    won: list[tuple[int, str]] = []
    barrier, rounds = threading.Barrier(4), 20

    def race(store: Store) -> None:
        for number in range(rounds):
            barrier.wait()
            with lock:
                if store.publish(number, store.nonce.encode()):
                    won.append((number, store.nonce))

    threads = [threading.Thread(target=race, args=(store,)) for store in stores]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(won) == [(number, stores[0].read_manifest(number).decode()) for number in range(rounds)]
