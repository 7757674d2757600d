"""Test the S3 store: a faulty network, its proof of the conditional put, its refusals, its local cache."""

from __future__ import annotations

import contextlib
import os
import random
import sys
import threading
import time
from pathlib import Path
from typing import Any

import obstore
import pytest
from chance import long_test, sample
from messages import raises
from s3_model import Model
from s3_server import Moto, Proxy, moto, options, proxy

from ddflow.errors import (
    CorruptState,
    EngineClosed,
    MissingExtra,
    OutcomeUnknown,
    StateRefused,
    StorageFailed,
)
from ddflow.storage import object_store as bucket
from ddflow.storage.protocol import Blob
from ddflow.storage.s3 import S3Store

__all__ = ["moto", "proxy"]


@pytest.fixture
def store(moto: Moto, proxy: Proxy, tmp_path: Path) -> S3Store:
    """A store over the proxy, which is calm."""
    return S3Store(f"s3://{moto.bucket()}/state", cache=tmp_path / "cache", options=options(proxy.url))


def beside(store: S3Store, moto: Moto, tmp_path: Path, **more: Any) -> S3Store:
    """Another writer of the same state, past the proxy."""
    return S3Store(store.where, cache=tmp_path / "beside", options=options(moto.url), **more)


def put(store: S3Store, data: bytes) -> Blob:
    return store.put("arrow", lambda sink: sink.write(data))


def drive(moto: Moto, proxy: Proxy, folder: Path, seed: int, steps: int) -> Model:
    model = Model(moto, proxy, folder, seed)
    proxy.fail(seed, rate=0.3)
    try:
        for _ in range(steps):
            model.step()
        model.finish()
    except BaseException:
        print(f"seed {seed}, after {sum(model.seen.values())} steps: {dict(model.seen)}, {dict(proxy.seen)}")
        raise
    return model


@long_test
@pytest.mark.sampled
@pytest.mark.parametrize("seed", sample(range(5), 1, __name__))
def test_a_faulty_network_breaks_no_promise(moto: Moto, proxy: Proxy, tmp_path: Path, seed: int) -> None:
    model = drive(moto, proxy, tmp_path, seed, steps=100)
    assert model.seen["publish won"] > 3 and model.seen["publish lost"] and model.seen["map right"]
    # Which faults there are is drawn, so one of the four may be missing.
    seen = proxy.seen
    assert sum(seen.values()) > 50 and len({"denied", "late", "hidden", "403"} & seen.keys()) > 2, seen


@pytest.mark.soak
def test_a_faulty_network_breaks_no_promise_for_long(moto: Moto, proxy: Proxy, tmp_path: Path) -> None:
    first = random.SystemRandom().randrange(1 << 32)
    for seed in range(first, first + 50):
        drive(moto, proxy, tmp_path / str(seed), seed, steps=200)


@pytest.mark.parametrize(
    ("fault", "there"),
    [
        ("denied", True),
        ("hidden", True),
        ("silent", True),
        ("lost", False),
        ("late", True),
        ("500", False),
        ("503", False),
        ("conflict", False),
        ("cut", True),
    ],
)
def test_a_publication_whose_answer_is_lost(
    moto: Moto, proxy: Proxy, store: S3Store, tmp_path: Path, fault: str, there: bool
) -> None:
    """Where reading back fails as well nothing is claimed; where only the put is hit, the truth is found."""
    proxy.fail(1, 1.0, fault)
    if fault in ("denied", "cut"):  # of these two the reading back is spared
        assert store.publish(1, b"mine")
    else:
        with raises(OutcomeUnknown):
            store.publish(1, b"mine")
        with raises(StorageFailed):
            store.publish(2, b"more")
    proxy.calm()
    other = beside(store, moto, tmp_path)
    assert other.publish(1, b"others'") is not there
    assert other.read_manifest(1) == (b"mine" if there else b"others'")


def test_a_publication_is_tried_again_and_read_back(moto: Moto, proxy: Proxy, store: S3Store, tmp_path: Path) -> None:
    """One fault, then a calm network: the answer is always the true one."""
    other, number = beside(store, moto, tmp_path), 0
    for fault in ("denied", "hidden", "silent", "lost", "late", "500", "503", "conflict", "cut"):
        for taken in (False, True):
            number += 1
            if taken:
                other.publish(number, b"others'")
            proxy.fail(1, 1.0, fault, times=1)
            assert store.publish(number, b"mine") is not taken, fault
            proxy.calm()
            assert other.read_manifest(number) == (b"others'" if taken else b"mine"), fault


def test_a_refusal_is_known_not_to_have_happened(moto: Moto, proxy: Proxy, store: S3Store, tmp_path: Path) -> None:
    proxy.fail(1, 1.0, "403")
    with raises(StorageFailed):
        store.publish(1, b"mine")
    with raises(StorageFailed):
        put(store, b"four")
    with raises(StorageFailed):
        S3Store(store.where, cache=tmp_path, options=options(proxy.url))
    proxy.calm()
    assert store.publish(1, b"mine") and store.list_blobs() == []


def test_an_answer_that_takes_too_long_is_a_lost_one(moto: Moto, proxy: Proxy, tmp_path: Path) -> None:
    patient = options(proxy.url, client_options={"timeout": "2s"})
    store = S3Store(f"s3://{moto.bucket()}", cache=tmp_path, options=patient)
    proxy.fail(1, 1.0, "slow", times=1)
    began = time.monotonic()
    assert store.publish(1, b"mine") and time.monotonic() - began < 50


def test_writers_on_a_faulty_network_never_both_win(moto: Moto, proxy: Proxy, store: S3Store, tmp_path: Path) -> None:
    stores = [S3Store(store.where, cache=tmp_path, options=options(proxy.url)) for _ in range(4)]
    claims: list[tuple[int, str]] = []
    barrier = threading.Barrier(4)

    def race(which: int) -> None:
        for number in range(25):
            barrier.wait()
            try:
                if stores[which].publish(number, stores[which].nonce.encode()):
                    claims.append((number, stores[which].nonce))
            except OutcomeUnknown:
                stores[which]._broken = ""  # it goes on all the same, with another number
            except StorageFailed:
                continue

    proxy.fail(7, 0.3)
    threads = [threading.Thread(target=race, args=(which,)) for which in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    proxy.calm()
    calm = beside(store, moto, tmp_path)
    assert len(claims) > 10 and len({number for number, _ in claims}) == len(claims)
    assert all(calm.read_manifest(number) == winner.encode() for number, winner in claims)


def test_large_blobs_travel_in_pieces(proxy: Proxy, store: S3Store) -> None:
    data = random.Random(5).randbytes(2 * bucket.PIECE + 12_345)
    proxy.fail(5, 0.15, "lost", "silent", "500", "hidden", "cut")
    blob = put(store, data)
    assert store.map_blob(blob).to_pybytes() == data
    assert store.fetch(blob).to_pybytes() == data
    assert sum(proxy.seen.values()) > 0


def test_an_upload_that_failed_leaves_nothing(moto: Moto, proxy: Proxy, store: S3Store, tmp_path: Path) -> None:
    proxy.fail(1, 1.0, "503")
    for size in (10, bucket.PIECE + 1):
        with raises(StorageFailed):
            put(store, bytes(size))
    proxy.calm()
    for _ in range(8):  # connections that uploads gave up may be in the client's pool, and one request fails on each
        with contextlib.suppress(StorageFailed):
            store.list_blobs()
    assert store.list_blobs() == [] and os.listdir(tmp_path / "cache") == []


def test_an_upload_whose_answers_are_all_lost_is_found(proxy: Proxy, store: S3Store) -> None:
    proxy.fail(1, 1.0, "silent", times=3)
    blob = put(store, b"four")
    assert proxy.seen["silent"] == 3 and store.fetch(blob).to_pybytes() == b"four"


def test_what_changed_in_the_bucket_is_found(store: S3Store) -> None:
    blobs = [put(store, b"x" * size) for size in (100, 100, 100)]
    client = store._bucket._many
    for blob, there in zip(blobs, (b"x" * 99 + b"y", b"x" * 99, b"x" * 101), strict=True):
        obstore.put(client, f"blobs/{blob.name}", there)
        with raises(CorruptState):
            store.fetch(blob)
    obstore.put(client, "blobs/notes.txt", b"mine")
    obstore.put(client, "manifests/notes", b"mine")
    assert len(store.list_blobs()) == 3 and store.list_manifests() == []
    for name in ("notes.txt", "../manifests/0000000000000001"):
        with pytest.raises(ValueError, match="not the name of a blob"):
            store.delete(name)


def test_ages_are_told_by_the_servers_clock(
    moto: Moto, store: S3Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(store, b"four")
    real = time.time
    monkeypatch.setattr(time, "time", lambda: real() + 86_400.0)
    assert store.list_blobs()[0].age < 60.0


def test_a_store_that_ignores_conditions_is_refused(moto: Moto, proxy: Proxy, tmp_path: Path) -> None:
    url, proxy.conditions = f"s3://{moto.bucket()}/state", False
    with raises(StateRefused):
        S3Store(url, cache=tmp_path, options=options(proxy.url))
    with raises(StateRefused):
        S3Store(url, cache=tmp_path, options=options(moto.url, conditional_put="disabled"))
    proxy.conditions = True
    proxy.fail(1, 1.0, "conflict")
    with raises(StorageFailed):
        S3Store(url, cache=tmp_path, options=options(proxy.url))


def test_a_reader_writes_nothing(moto: Moto, store: S3Store, tmp_path: Path) -> None:
    with raises(StateRefused):
        beside(store, moto, tmp_path, readonly=True)
    with raises(StateRefused):
        beside(store, moto, tmp_path, create=False)
    blob = put(store, b"four")
    store.publish(0, b"zero")
    before = obstore.list(store._bucket._many).collect()
    reader = beside(store, moto, tmp_path, readonly=True)
    assert (
        reader.map_blob(blob).to_pybytes() == b"four"
        and reader.read_manifest(0) == b"zero"
        and len(reader.list_blobs()) == 1
    )
    for write in (
        lambda: put(reader, b""),
        lambda: reader.publish(1, b""),
        lambda: reader.delete(blob.name),
        lambda: reader.delete_manifest(0),
        lambda: reader.mark_published(0),
        reader.open_scratch_store,
    ):
        with raises(StateRefused):
            write()
    assert obstore.list(store._bucket._many).collect() == before


def test_what_cannot_be_opened_says_why(moto: Moto, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def opened(url: str, **more: Any) -> S3Store:
        return S3Store(url, cache=tmp_path, options=options(moto.url) | more)

    for url in ("s3://", "s3://Bucket", "gs://bucket/a", "s3://bucket/a/../b", "s3://bucket/a?b", "bucket"):
        with raises(StateRefused):
            opened(url)
    with raises(StateRefused):
        opened("s3://no-such-bucket/state")
    with raises(StateRefused):
        opened("s3://bucket/state", nonsense=1)
    name = moto.bucket()
    with raises(StorageFailed):
        opened(f"s3://{name}/state", endpoint="http://127.0.0.1:9")
    with raises(StorageFailed):
        opened(f"s3://{name}", client_options={"allow_http": False})
    obstore.put(opened(f"s3://{name}/full")._bucket._many, "other/file.csv", b"x")
    with raises(StateRefused):
        opened(f"s3://{name}/full")
    monkeypatch.setitem(sys.modules, "obstore.store", None)
    with raises(MissingExtra):
        opened(f"s3://{name}/state")


def test_the_environment_says_where_and_who(moto: Moto, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("AWS_ENDPOINT_URL", moto.url), ("AWS_ACCESS_KEY_ID", "id"), ("AWS_SECRET_ACCESS_KEY", "key")):
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    store = S3Store(f"s3://{moto.bucket()}")
    assert store.publish(1, b"one") and store.cache.path == str(tmp_path / "ddflow" / "blobs")


def test_a_forked_child_is_told_instead_of_waiting_for_ever(store: S3Store) -> None:
    child = os.fork()
    if child == 0:
        told = 0
        for use in (
            store.list_manifests,
            lambda: store.publish(1, b""),
            lambda: put(store, b""),
            lambda: S3Store(store.where),
        ):
            try:
                use()
            except EngineClosed:
                told += 1
        os._exit(told)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 4
