"""Test the cache of blobs: it has a maximum size, is private and shared by processes, and is never wrong."""

from __future__ import annotations

import errno
import os
import random
import stat
import subprocess
import sys
import time
from pathlib import Path

import pytest
import xxhash
from messages import raises

from ddflow.errors import CorruptState, StateRefused, StorageFull
from ddflow.storage.protocol import Blob
from ddflow.storage.s3 import BlobCache, default_cache_folder


def made(number: int, size: int = 1000) -> tuple[Blob, bytes]:
    """A blob of its own, and its bytes."""
    data = random.Random(number).randbytes(size)
    return Blob(f"{0:016x}-{number}.arrow", size, xxhash.xxh3_128(data).digest()), data


def fill(cache: BlobCache, number: int, size: int = 1000) -> Blob:
    blob, data = made(number, size)
    assert cache.add_blob(blob, [data[: size // 2], data[size // 2 :]], "there").to_pybytes() == data
    return blob


def held(cache: BlobCache) -> int:
    return sum(entry.stat().st_size for entry in os.scandir(cache.path))


def test_the_least_recently_used_go_first(tmp_path: Path) -> None:
    cache = BlobCache(tmp_path / "cache", size=10_000)
    blobs = []
    for number in range(10):
        blobs.append(fill(cache, number))
        os.utime(tmp_path / "cache" / blobs[-1].digest.hex(), (number, number))
    assert cache.map_blob(blobs[0]) is not None
    fill(cache, 10)
    fill(cache, 11)
    there = [cache.map_blob(blob) is not None for blob in blobs]
    assert there == [True, False, False, *[True] * 7] and held(cache) == 10_000


def test_what_was_there_before_counts(tmp_path: Path) -> None:
    for number in range(10):
        fill(BlobCache(tmp_path, size=10_000), number)
    assert held(BlobCache(tmp_path, size=10_000)) == 10_000
    assert held(BlobCache(tmp_path, size=4_500)) == 4_000
    assert held(BlobCache(tmp_path, size=0)) == 0


def test_what_does_not_fit_is_mapped_and_not_kept(tmp_path: Path) -> None:
    cache = BlobCache(tmp_path, size=5_000)
    small = fill(cache, 1)
    fill(cache, 2, size=5_001)
    assert cache.map_blob(small) is not None and held(cache) == 1_000


def test_every_damage_is_found_and_dropped(tmp_path: Path) -> None:
    cache = BlobCache(tmp_path)
    blob, data = made(1, size=40)
    path = tmp_path / blob.digest.hex()
    damaged = [data[:at] + bytes([data[at] ^ 1 << bit]) + data[at + 1 :] for at in range(40) for bit in range(8)]
    for each in [*damaged, *(data[:length] for length in range(40)), data + b"\0"]:
        path.write_bytes(each)
        assert cache.map_blob(blob) is None and not path.exists()
    path.mkdir()
    assert cache.map_blob(blob) is None


def test_what_arrives_wrong_is_not_kept(tmp_path: Path) -> None:
    cache = BlobCache(tmp_path)
    blob, data = made(1)
    endless = (b"x" * 1000 for _ in iter(int, 1))
    for pieces in ([data[:-1]], [data, b"x"], [data[::-1]], [], endless):
        with raises(CorruptState):
            cache.add_blob(blob, pieces, "there")
    assert os.listdir(tmp_path) == []


def test_a_full_disk_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache = BlobCache(tmp_path)
    blob, data = made(1)

    def write(*_: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "write", write)
    with raises(StorageFull):
        cache.add_blob(blob, [data], "there")
    assert os.listdir(tmp_path) == []


def test_the_folder_is_private(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache = BlobCache(tmp_path / "a" / "b")
    blob = fill(cache, 1)
    assert stat.S_IMODE(os.stat(cache.path).st_mode) == 0o700
    assert stat.S_IMODE(os.stat(tmp_path / "a" / "b" / blob.digest.hex()).st_mode) == 0o600
    os.chmod(cache.path, 0o770)
    with raises(StateRefused):
        BlobCache(cache.path)
    os.chmod(cache.path, 0o700)
    with raises(StateRefused):
        BlobCache(tmp_path / "a" / "b" / blob.digest.hex())
    mine = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: mine + 1)
    with raises(StateRefused):
        BlobCache(cache.path)


def test_the_default_place_is_where_caches_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home-of-ann")
    for given, place in (("", "/home-of-ann/.cache"), ("relative", "/home-of-ann/.cache"), ("/caches", "/caches")):
        monkeypatch.setenv("XDG_CACHE_HOME", given)
        assert default_cache_folder() == f"{place}/ddflow/blobs"


def test_a_folder_that_was_cleared_is_made_again(tmp_path: Path) -> None:
    cache = BlobCache(tmp_path / "cache")
    blob = fill(cache, 1)
    os.unlink(tmp_path / "cache" / blob.digest.hex())
    os.rmdir(cache.path)
    assert cache.map_blob(blob) is None
    assert cache.map_blob(fill(cache, 1)) is not None


def test_what_a_crash_left_goes_after_a_day_and_what_is_not_ours_stays(tmp_path: Path) -> None:
    cache = BlobCache(tmp_path, size=100)
    ages = {f"{1:016x}.part": 90_000, f"{2:016x}.part": 80_000, "notes.txt": 90_000}
    for name, age in ages.items():
        (tmp_path / name).write_bytes(b"x" * 200)
        os.utime(tmp_path / name, (time.time() - age,) * 2)
    fill(cache, 1, size=90)
    assert set(os.listdir(tmp_path)) - set(ages) != set() and set(ages) - set(os.listdir(tmp_path)) == {
        f"{1:016x}.part"
    }


PROCESS = """
import random, sys
sys.path.insert(0, sys.argv[1])
from test_store_cache import made
from ddflow.storage.s3 import BlobCache
cache, seed, hits, kept = BlobCache(sys.argv[2], size=30_000), random.Random(int(sys.argv[3])), 0, []
for _ in range(1500):
    blob, data = made(seed.randrange(60))
    whole = cache.map_blob(blob)
    hits += whole is not None
    whole = cache.add_blob(blob, [data], "there") if whole is None else whole
    kept = [*kept[-20:], (whole, data)]
    assert all(each.to_pybytes() == wanted for each, wanted in kept)
print(hits)
"""


def test_processes_share_it(tmp_path: Path) -> None:
    """Each unlinks what another has mapped or is about to; nobody reads a wrong byte, and the cap holds about."""
    here = str(Path(__file__).parent.parent)
    running = [
        subprocess.Popen([sys.executable, "-c", PROCESS, here, str(tmp_path), str(seed)], stdout=subprocess.PIPE)
        for seed in range(2)
    ]
    hits = [int(process.communicate(timeout=300)[0]) for process in running]
    assert all(process.returncode == 0 for process in running) and min(hits) > 100, hits
    assert sum(entry.stat().st_size for entry in os.scandir(tmp_path)) <= 30_000 + 2 * (30_000 // 16 + 1_000)
