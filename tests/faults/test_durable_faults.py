"""Test failing disks and damaged files: an error that names the file, never a wrong answer.

Every call of an engine's commits fails in turn, in every way: the error is typed, the last state stays readable, the
engine stops if the result is unknown, and the next opener continues correctly. Then bytes are flipped and files cut,
swapped, removed and added; an error names each damage.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import tight
from chance import SOAK, sample
from durable_case import SMALL, TIGHT, Case
from messages import raises
from simdisk import KINDS, Faulty, SimDisk

import ddflow as dd
from ddflow.errors import CorruptState, DdflowError, EngineClosed, OutcomeUnknown, StorageFailed, StorageFull
from ddflow.storage.folder.local import LocalStore
from ddflow.storage.memory import MemoryStore

pytestmark = pytest.mark.sampled

PATH = "/data/orders"
TYPED: dict[str, Any] = {
    "ENOSPC": (StorageFull, OutcomeUnknown),
    "EIO": (StorageFailed, OutcomeUnknown),
    "short": (),
    "fsync": (StorageFailed, OutcomeUnknown),
    "answer": (StorageFailed, OutcomeUnknown),
}
MET = {
    "ENOSPC": {"create", "write", "fsync", "link", "sync_dir"},
    "EIO": {"names", "read", "map_file"},
    "short": {"write"},
    "fsync": {"fsync", "sync_dir"},
    "answer": {"link", "unlink", "write"},
}
"""What must have failed, at least."""
SHARES = {"ENOSPC": 2, "answer": 2}
"""Of so many calls one fails, but for writes, of which there are many; all fail in turn when soaking."""
MEDIA = pytest.mark.parametrize("medium", [None, TIGHT], ids=["in memory", "in files"])
BOTH = pytest.mark.parametrize("name", SMALL)


@pytest.fixture(autouse=True)
def small() -> Iterator[None]:
    with tight.tiny():
        yield


def local(disk: Any, **options: Any) -> LocalStore:
    return LocalStore(PATH, disk=disk, **options)


class Spills:
    """Real folders to spill to, for engines whose state is on a disk in memory."""

    def __init__(self, place: Path) -> None:
        self.place, self.number = place, 0

    def options(self, medium: Any) -> dict[str, Any]:
        """What to open an engine with."""
        if medium is None:
            return {"grace": 0.0}
        self.number += 1
        folder = self.place / str(self.number)
        folder.mkdir()
        return {"medium": medium, "grace": 0.0, "spill": folder}


def begun(case: Case, epochs: int, spills: Spills, medium: Any) -> SimDisk:
    """A state after some epochs."""
    disk = SimDisk()
    door = case.open(local(disk), **spills.options(medium))
    for epoch in range(1, epochs + 1):
        case.go(door, epoch)
    door.close()
    return disk


def copied(disk: SimDisk) -> SimDisk:
    """Another disk with the same names and bytes."""
    out = SimDisk(clock=disk.clock + 1e6)
    out.folders = {node: dict(names) for node, names in disk.folders.items()}
    out.files = {node: bytearray(data) for node, data in disk.files.items()}
    out.last = disk.last
    return out


# A disk that fails.


@pytest.mark.parametrize("forever", [False, True], ids=["once", "for good"])
@pytest.mark.parametrize("kind", KINDS)
@MEDIA
@pytest.mark.drawn(5)
def test_whatever_call_fails_the_commit_fails_and_whoever_opens_next_goes_on(
    kind: str, forever: bool, medium: Any, tmp_path: Path
) -> None:
    case, spills = SMALL["epochs"], Spills(tmp_path)
    before = begun(case, 1, spills, medium)
    names: list[str] = []

    def look(name: str, *_: Any) -> None:
        names.extend([name] if name in KINDS[kind] else [])

    troubled(case, Faulty(copied(before), before=look), spills.options(medium), False)
    met = set()
    chosen: list[int] = []
    for name in sorted(set(names)):  # some of each, or the run would not meet all that it must
        places, share = [at for at, each in enumerate(names) if each == name], SHARES.get(kind, 3)
        share = 38 if name == "write" else share
        chosen += sample(places, -(-len(places) // share), __name__, kind, forever, medium, name)
    for at in sorted(chosen):
        disk = copied(before)
        faulty = Faulty(disk, at, kind, forever)
        won, error = troubled(case, faulty, spills.options(medium), forever)
        where = f"call {at}, {faulty.failed[:1]}: {error!r}"
        met.update(faulty.failed[:1])
        assert faulty.failed, where
        assert error is None or isinstance(error, TYPED[kind]), where
        assert not disk.open, f"{where}: descriptors stay open"
        most = won + isinstance(error, OutcomeUnknown)
        seen = dd.read(local(disk, create=False, readonly=True), "by_s")
        try:
            found = case.recovered(local(disk), won, most, **spills.options(medium))
        except BaseException as other:
            raise AssertionError(f"{where}: {other}") from other
        assert seen.num_rows == len(case.after[found].reads["by_s"]), where
    assert met >= MET[kind]


def troubled(case: Case, faulty: Faulty, options: dict[str, Any], forever: bool) -> tuple[int, DdflowError | None]:
    """Open, and go on to the end: the last epoch acknowledged, and what failed first."""
    won, door = 1, None
    try:
        door = case.open(local(faulty), **options)
        for epoch in range(2, len(case.calls) + 1):
            case.go(door, epoch)
            won = epoch
    except DdflowError as error:
        if door is not None:
            won = max(won, refuses(case, door, forever))
        return won, error
    finally:
        if door is not None:
            door.close()
    return won, None


def refuses(case: Case, door: Any, forever: bool) -> int:
    """Assert that an engine whose call failed goes no further, or that nothing was changed and it can; the epoch."""
    epoch, engine = door.engine.epoch, door.engine
    if engine.dataflow.guard.state == "open":  # it failed while it made room, before anything was taken in
        case.holds(door, epoch)
        if not forever:
            case.go(door, epoch + 1)
            return epoch + 1
        return epoch
    for act in (lambda: case.play(door, epoch + 1), engine.flush, lambda: engine.read("a")):
        with raises(EngineClosed):
            act()
    return epoch


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO])
def test_an_outputs_folder_that_fails_at_any_call_fails_the_commit(tmp_path: Path, number: int) -> None:
    case, failed = SMALL["epochs"], set()
    for at in range(1000):
        store, place = MemoryStore(), tmp_path / str(at)
        door = case.open(store, outputs=place)
        case.go(door, 1)
        calls, error = [], None
        with pytest.MonkeyPatch.context() as patch:
            for name in ("open", "write", "fsync", "mkdir", "rename", "replace"):
                patch.setattr(os, name, failing(name, getattr(os, name), at, number, calls))
            try:
                case.play(door, 2)
            except DdflowError as caught:
                error = caught
        where = f"call {at}, {calls[at : at + 1]}: {error!r}"
        if error is not None:
            failed.add(calls[at])
            assert isinstance(error, (StorageFull if number == errno.ENOSPC else StorageFailed, OutcomeUnknown)), where
            assert refuses(case, door, True) in (1, 2), where
        least = 1 if error is not None else 2
        door.close()
        most = 2 if isinstance(error, OutcomeUnknown) else least
        try:
            case.recovered(store.reopen(), least, most, outputs=place)
        except BaseException as other:
            raise AssertionError(f"{where}: {other}") from other
        shown = sorted(int(path.name[:12]) for path in place.glob("*/[!.]*.parquet"))
        assert set(shown) == {1, 2, 3}, where
        if len(calls) <= at:
            break
    assert failed >= {"open", "write", "fsync"} and at > 5


def failing(name: str, call: Callable[..., Any], at: int, number: int, calls: list[str]) -> Callable[..., Any]:
    """A call of ``os`` that fails if it is the ``at``-th of all such."""

    def made(*given: Any, **named: Any) -> Any:
        calls.append(name)
        if len(calls) == at + 1:
            raise OSError(number, os.strerror(number))
        return call(*given, **named)

    return made


# Files that are not what was written.


def whole(case: Case, disk: Any, **options: Any) -> None:
    """Open a state, read all, and have every epoch replayed."""
    door = case.open(local(disk), **options)
    try:
        assert door.engine.epoch == len(case.calls)
        case.holds(door, len(case.calls))
        for epoch in range(1, len(case.calls) + 1):
            case.go(door, epoch)
    finally:
        door.close()


def named(disk: SimDisk) -> dict[str, tuple[int, int]]:
    """The files that the newest manifest names, and itself: by what errors call them, folder and node."""
    state = disk._node(PATH)
    below = {name: disk.folders[state][name] for name in ("manifests", "blobs")}
    number = max(disk.folders[below["manifests"]])
    found = {f"manifest {int(number)} of {PATH}": (below["manifests"], disk.folders[below["manifests"]][number])}
    texts = [bytes(disk.files[found[f"manifest {int(number)} of {PATH}"][1]])]
    texts += [
        bytes(disk.files[node])
        for name, node in disk.folders[below["blobs"]].items()
        if name.endswith(".json") and name.encode() in texts[0]
    ]
    for name, node in disk.folders[below["blobs"]].items():
        if any(name.encode() in text for text in texts):
            found[f"the file {name} of {PATH}"] = (below["blobs"], node)
    return found


def places(size: int, share: int) -> list[int]:
    """Positions in a file at random; all of them when soaking; always the first and the last."""
    return sorted({0, size - 1, *sample(range(size), size // share, __name__, size)})


@pytest.mark.drawn(2)
@BOTH
@MEDIA
def test_a_flipped_bit_in_any_byte_of_any_file_is_an_error_that_names_the_file(
    name: str, medium: Any, tmp_path: Path
) -> None:
    damaged_everywhere(
        name, medium, tmp_path, lambda data, at: data[:at] + bytes([data[at] ^ 1 << at % 8]) + data[at + 1 :]
    )


@pytest.mark.drawn(2)
@BOTH
@MEDIA
def test_a_file_cut_to_any_length_is_an_error_that_names_the_file(name: str, medium: Any, tmp_path: Path) -> None:
    damaged_everywhere(name, medium, tmp_path, lambda data, at: data[:at])


def damaged_everywhere(name: str, medium: Any, tmp_path: Path, change: Callable[[bytes, int], bytes]) -> None:
    case, spills = SMALL[name], Spills(tmp_path)
    disk = begun(case, len(case.calls), spills, medium)
    whole(case, copied(disk), **spills.options(medium))
    files = named(disk)
    assert len(files) > 5
    for what, (_, node) in files.items():
        for at in places(len(disk.files[node]), 300):
            broken = copied(disk)
            broken.files[node] = bytearray(change(bytes(disk.files[node]), at))
            with pytest.raises(CorruptState) as caught:
                whole(case, broken, **spills.options(medium))
            assert what in str(caught.value), f"byte {at} of {what}: {caught.value}"


@BOTH
@MEDIA
def test_files_that_are_lost_or_swapped_are_named_and_those_of_others_do_not_matter(
    name: str, medium: Any, tmp_path: Path
) -> None:
    case, spills = SMALL[name], Spills(tmp_path)
    disk = begun(case, len(case.calls), spills, medium)
    files = named(disk)
    for what, (folder, node) in files.items():
        lost = copied(disk)
        lost.folders[folder] = {called: each for called, each in lost.folders[folder].items() if each != node}
        with raises(CorruptState) as caught:
            whole(case, lost, **spills.options(medium))
        assert what in str(caught.value)
        for other, (_, second) in files.items():
            swapped = copied(disk)
            swapped.files[node], swapped.files[second] = swapped.files[second], swapped.files[node]
            if bytes(disk.files[node]) != bytes(disk.files[second]):
                with pytest.raises(CorruptState) as caught:
                    whole(case, swapped, **spills.options(medium))
                assert what in str(caught.value) or other in str(caught.value)
            if not SOAK and second > node:
                break
    # All that the newest manifest does not name may be anything.
    rest = copied(disk)
    kept = {node for _, node in files.values()}
    for folder in {folder for folder, _ in files.values()}:
        for called, node in rest.folders[folder].items():
            if node not in kept:
                rest.files[node] = bytearray(b"anything")
                assert called
    whole(case, rest, **spills.options(medium))


@BOTH
@MEDIA
def test_what_is_not_ours_is_left_alone_by_everything_an_engine_does(name: str, medium: Any, tmp_path: Path) -> None:
    case, spills = SMALL[name], Spills(tmp_path)
    disk = begun(case, 1, spills, medium)
    junk = [
        "a",
        ".hidden",
        "blobs/a",
        "blobs/.b",
        "blobs/0123456789abcdef-1.txt",
        "blobs/0123456789ABCDEF-1.arrow",
        "blobs/0123456789abcdef-1.arrow",
        "blobs/0123456789abcdef-2.json",
        "manifests/7",
        "manifests/.a.part",
        "manifests/00000000000000zz",
        "manifests/.0123456789abcdef-9.part",
        "marks/x",
    ]
    for path in junk:
        disk.close(disk.create(f"{PATH}/{path}", 0o644))
    for _ in range(2):
        assert case.recovered(local(disk), 1, len(case.calls), **spills.options(medium))
        dd.read(local(disk, create=False, readonly=True), "by_s")
    there = {path for path in junk if path.rpartition("/")[2] in disk.names(f"{PATH}/{path}".rpartition("/")[0])}
    assert there == set(junk)
