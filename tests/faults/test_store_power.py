"""Test power failures at any moment of a store: the last acknowledged state or the next one stays complete.

Several writers, some of them killed, run a small commit protocol over `LocalStore` on a disk in memory. The tests open
images of the disk after a crash, and compare them with the promises. Planted bugs show that the tests find errors. Each
bug is one line that is missing or in the wrong place.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from random import Random
from typing import Any

import pytest
from chance import mid_test, sample, seeded
from msgspec import Struct
from msgspec.json import Decoder
from simdisk import Faulty, Killed, SimDisk, Story, killing

from ddflow.errors import DdflowError
from ddflow.storage.fields import decode_record, encode_record
from ddflow.storage.folder.local import LocalStore
from ddflow.storage.protocol import Blob, Store

PATH = "/data/orders"
CHUNK, CHUNKS = 2500, 5
STORIES = range(1000, 2000)


class Named(Struct):
    """A manifest, as far as a store is concerned."""

    nonce: str
    number: int
    blobs: list[Blob]


def blobs(data: bytes) -> list[Blob]:
    return decode_record(Decoder(Named), data, "manifest").blobs


class Writer:
    """A process that opened a store: it relies on what it finds, and commits."""

    def __init__(self, store: Store, note: Callable[[Any], None]) -> None:
        self.store, self.note = store, note
        self.number = max(store.list_manifests(), default=-1)
        self.blobs = blobs(store.read_manifest(self.number)) if self.number >= 0 else []
        self.garbage: list[str] = []
        self.note(("seen", self.number))

    def commit(self, random: Random) -> bool:
        keep = [blob for blob in self.blobs if random.random() < 0.6]
        self.garbage = [blob.name for blob in self.blobs if blob not in keep]
        new = keep + [self.put(random) for _ in range(random.randint(1, 4))]
        number = self.number + 1
        data = encode_record(Named(self.store.nonce, number, new))
        self.store.fsync_blob_names()
        if self.publish(number, data):
            self.number, self.blobs = number, new
            self.finish()
            return True
        return False

    def put(self, random: Random) -> Blob:
        pieces = [random.randbytes(random.choice((0, 9, 300, 700, 2000))) for _ in range(random.randint(1, 3))]
        return self.store.put("arrow", lambda sink: [sink.write(piece) for piece in pieces])

    def publish(self, number: int, data: bytes) -> bool:
        self.note(("tried", number, data))
        won = self.store.publish(number, data)
        if won:
            self.note(("won", number, data))
        return won

    def finish(self) -> None:
        self.store.mark_published(self.number)
        self.clean()

    def clean(self) -> None:
        for name in self.garbage:
            self.store.delete(name)
        if self.number > 0:
            self.store.delete_manifest(self.number - 1)


def scenario(seed: int, writer: type[Writer] = Writer) -> Callable[..., None]:
    """Eight epochs by six processes: one dies while it makes the folder, one loses, two die while they publish."""

    def run(open: Callable[..., Store], note: Callable[[Any], None]) -> None:
        random = Random(seed)
        with contextlib.suppress(Killed):
            open(before=killing(*random.choice((("sync_dir", PATH), ("sync_dir", "/data"), ("mkdir", "/manifests")))))
        first = writer(open(), note)
        for _ in range(2):
            assert first.commit(random)

        def half(sink: Any) -> None:
            sink.write(b"half" * 200)
            raise KeyError("given up")

        with contextlib.suppress(KeyError):
            first.store.put("arrow", half)
        second = writer(open(), note)
        assert second.commit(random)
        first.commit(random)  # which must not win; whether it did is in the notes
        with contextlib.suppress(Killed):
            writer(open(before=killing("unlink", ".part", 3)), note).commit(random)
        third = writer(open(), note)
        assert third.commit(random)
        with contextlib.suppress(Killed):
            writer(open(before=killing("unlink", ".arrow")), note).commit(random)
        last = writer(open(), note)
        for _ in range(2):
            assert last.commit(random)

    return run


def check(store: Store, notes: list[Any]) -> None:
    """The newest manifest is that acknowledged or the next, as it was written; all it names is whole; one may go on."""
    tried: dict[int, list[bytes]] = {}
    won: dict[int, bytes] = {}
    acknowledged = -1
    for kind, number, *data in notes:
        if kind == "tried":
            tried.setdefault(number, []).append(data[0])
        else:
            acknowledged = max(acknowledged, number)
        if kind == "won":
            assert won.setdefault(number, data[0]) == data[0], f"two writers won number {number}"
    newest = max(store.list_manifests(), default=-1)
    assert acknowledged <= newest <= acknowledged + 1, f"{newest} is the newest, {acknowledged} was acknowledged"
    if newest >= 0:
        found = store.read_manifest(newest)
        assert found in tried.get(newest, []), f"manifest {newest} is not what was written"
        assert found == won.get(newest, found), f"manifest {newest} is another's"
        for blob in blobs(found):
            store.map_blob(blob)
    assert store.find_last_published() <= newest, f"{store.find_last_published()} is marked, {newest} is the newest"
    again = Writer(store, lambda _: None)
    assert again.commit(Random(newest))
    for blob in blobs(store.read_manifest(newest + 1)):
        store.map_blob(blob)


def story(seed: int, make: Callable[[Any], Store], writer: type[Writer] = Writer) -> tuple[Story, SimDisk]:
    whole = Story(scenario(seed, writer), check, make)
    return whole, whole.told(SimDisk(most=700))  # so that longer writes are short


def local(disk: Any) -> Store:
    return LocalStore(PATH, disk=disk)


@pytest.mark.drawn(2)
@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_every_image_holds_the_last_epoch_or_the_next(chunk: int) -> None:
    seed = seeded(__name__, chunk).choice(STORIES)
    whole, disk = story(seed, local)
    found = whole.violation(disk, range(seed * CHUNK, (seed + 1) * CHUNK))
    assert found is None, f"scenario {seed}, {found}"


@pytest.mark.soak
@pytest.mark.parametrize("chunk", range(100))
def test_every_image_of_a_million_holds_the_last_epoch_or_the_next(chunk: int) -> None:
    for seed in STORIES[chunk::100]:
        whole, disk = story(seed, local)
        found = whole.violation(disk, range(seed * 1000, (seed + 1) * 1000))
        assert found is None, f"scenario {seed}, {found}"


@pytest.mark.sampled
def test_power_may_fail_again_while_one_goes_on() -> None:
    for seed in sample(range(300), 75, __name__):
        whole, disk = story(seed % 10, local)
        image = disk.image(seed)
        Writer(local(image), image.note).commit(Random(seed))
        found = whole.violation(image, range(10))
        assert found is None, f"scenario {seed % 10}, image {seed}, then {found}"


def test_an_image_is_told_by_its_number() -> None:
    _, disk = story(1, local)
    assert all(disk.image(seed).content() == disk.image(seed).content() for seed in range(50))
    assert len({disk.image(seed).content() for seed in range(200)}) > 100


# Planted bugs.


class Deaf(Faulty):
    """A disk that does not do what ``deaf(name, path, disk)`` tells; ``done``: what a process did."""

    def __init__(self, disk: SimDisk, deaf: Callable[[str, str, Deaf], bool]) -> None:
        super().__init__(disk)
        self.deaf, self.paths, self.done = deaf, dict[int, str](), list[tuple[str, str]]()

    def _call(self, name: str, *arguments: Any, **options: Any) -> Any:
        path = self.paths.get(arguments[0], arguments[0])
        deaf = self.deaf(name, path, self)
        self.done.append((name, path))
        if deaf:
            return None
        found = super()._call(name, *arguments, **options)
        if name == "create":
            self.paths[found] = path
        return found


def deaf(unheard: Callable[[str, str, Deaf], bool]) -> Callable[[Any], Store]:
    return lambda disk: LocalStore(PATH, disk=Deaf(disk, unheard))


class Boastful(Faulty):
    """A disk whose short writes are said to be whole: who calls does not look."""

    def _call(self, name: str, *arguments: Any, **options: Any) -> Any:
        found = super()._call(name, *arguments, **options)
        return len(arguments[1]) if name == "write" else found


class Stubborn(Faulty):
    """Every sync of a file fails, is tried again, and is then believed."""

    def _call(self, name: str, *arguments: Any, **options: Any) -> Any:
        if name == "fsync":
            self.disk.doom(*arguments)
        return super()._call(name, *arguments, **options)


class Forgetful(Faulty):
    """A file whose name is taken is written anew."""

    def _call(self, name: str, *arguments: Any, **options: Any) -> Any:
        if name == "create":
            with contextlib.suppress(FileNotFoundError):
                self.disk.unlink(arguments[0])
        return super()._call(name, *arguments, **options)


class SameNames(LocalStore):
    """All processes give the same names."""

    def __init__(self, disk: Any) -> None:
        super().__init__(PATH, disk=Forgetful(disk))
        self.nonce = "0" * 16


class Renames(LocalStore):
    """A manifest gets its number by renaming, which takes it away from another."""

    def _link_manifest(self, temporary: str, target: str, data: bytes) -> bool:
        disk: Any = self.disk
        disk.rename(temporary, target)
        return True


class Replaces(LocalStore):
    """A number that is taken is taken over."""

    def _link_manifest(self, temporary: str, target: str, data: bytes) -> bool:
        self.site.try_unlink(target)
        return super()._link_manifest(temporary, target, data)


class LinksFirst(LocalStore):
    """A manifest has its number before its bytes."""

    def publish(self, number: int, data: bytes) -> bool:
        temporary, target = (
            self.site.child_path("manifests", f".{self.nonce}-1.part"),
            self._number_path("manifests", number),
        )
        file = self.disk.create(temporary, 0o600)
        won = self._link_manifest(temporary, target, data)
        if won:
            self.disk.write(file, data)
            self.disk.fsync(file)
            self.disk.sync_dir(self.site.child_path("manifests"))
        self.disk.unlink(temporary)
        return won


class InPlace(LocalStore):
    """A manifest is written under its number."""

    def publish(self, number: int, data: bytes) -> bool:
        try:
            file = self.disk.create(self._number_path("manifests", number), 0o600)
        except FileExistsError:
            return False
        for begin in range(0, len(data), 500):
            self.disk.write(file, data[begin : begin + 500])
        self.disk.fsync(file)
        self.disk.sync_dir(self.site.child_path("manifests"))
        return True


class CleansFirst(Writer):
    def publish(self, number: int, data: bytes) -> bool:
        for name in self.garbage:
            self.store.delete(name)
        return super().publish(number, data)


class ExpiresFirst(Writer):
    def publish(self, number: int, data: bytes) -> bool:
        self.store.delete_manifest(number - 1) if number else None
        return super().publish(number, data)


class MarksFirst(Writer):
    def publish(self, number: int, data: bytes) -> bool:
        self.store.mark_published(number)
        return super().publish(number, data)


class TellsFirst(Writer):
    def publish(self, number: int, data: bytes) -> bool:
        self.note(("seen", number))
        return super().publish(number, data)


class SyncsLast(Writer):
    def commit(self, random: Random) -> bool:
        sync, self.store.fsync_blob_names = self.store.fsync_blob_names, lambda: None
        won = super().commit(random)
        self.store.fsync_blob_names = sync
        sync()
        return won


def without(name: str, ending: str) -> Callable[[Any], Store]:
    return deaf(lambda called, path, _: called == name and path.endswith(ending))


PLANTED: dict[str, tuple[Callable[[Any], Store], type[Writer]]] = {
    "a blob is not synced": (without("fsync", ".arrow"), Writer),
    "a manifest is not synced": (without("fsync", ".part"), Writer),
    "the folder of blobs is not synced": (without("sync_dir", "/blobs"), Writer),
    "the folder of manifests is not synced": (without("sync_dir", "/manifests"), Writer),
    "a manifest found at opening is not made durable": (
        deaf(lambda *call: call[:2] == ("sync_dir", f"{PATH}/manifests") and call[:2] not in call[2].done),
        Writer,
    ),
    "the state's folder is not synced": (without("sync_dir", PATH), Writer),
    "the folder above is not synced": (without("sync_dir", "/data"), Writer),
    "what a dead process made is not synced": (
        deaf(lambda name, path, disk: (name, path) == ("sync_dir", PATH) and "mkdir" not in dict(disk.done)),
        Writer,
    ),
    "a manifest is linked before its bytes are there": (lambda disk: LinksFirst(PATH, disk=disk), Writer),
    "a manifest is written under its number": (lambda disk: InPlace(PATH, disk=disk), Writer),
    "a manifest is renamed, not linked": (lambda disk: Renames(PATH, disk=disk), Writer),
    "a manifest takes another's place": (lambda disk: Replaces(PATH, disk=disk), Writer),
    "a short write is taken for whole": (lambda disk: LocalStore(PATH, disk=Boastful(disk)), Writer),
    "a failed sync is tried again": (lambda disk: LocalStore(PATH, disk=Stubborn(disk)), Writer),
    "names are used again": (SameNames, Writer),
    "old blobs are deleted before the commit": (local, CleansFirst),
    "the old manifest is deleted before the commit": (local, ExpiresFirst),
    "a manifest is marked before it is published": (local, MarksFirst),
    "an epoch is told before it is published": (local, TellsFirst),
    "blobs' names are synced after the manifest": (local, SyncsLast),
}


@mid_test
@pytest.mark.sampled
@pytest.mark.parametrize("bug", sample(list(PLANTED), 7, __name__))
def test_a_planted_bug_is_found(bug: str) -> None:
    make, writer = PLANTED[bug]
    found = None
    for seed in range(3):
        try:
            whole, disk = story(seed, make, writer)
        except (AssertionError, DdflowError) as error:  # nobody needs to cut the power to see this one
            found = str(error)
        else:
            # Whoever opens an image is right: what it does is not to hide or to make what is looked for.
            found = whole._replace(make=local).violation(disk, range(CHUNK))
        if found is not None:
            break
    assert found is not None
