"""Simulate a disk in memory that can show each possible result of a power loss. Simulate also a disk whose calls fail.

>>> disk = SimDisk()
>>> file = disk.create("/a", 0o600)
>>> disk.write(file, b"abc"), disk.note("written")
(3, None)
>>> sorted({tuple(disk.image(seed).names("/")) for seed in range(50)})
[(), ('a',)]
>>> disk.sync_dir("/"), disk.fsync(file)
(None, None)
>>> image = disk.image(7, cut=len(disk.log))
>>> image.read("/a", 9), image.notes
(b'abc', ['written'])
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator
from random import Random
from typing import Any, NamedTuple

import pyarrow as pa

from ddflow.storage.folder.disk import Disk, FileStatus

SECTOR = 512
EVERY = 32  # number of operations between stored states; other states are computed from stored ones


class Pending(NamedTuple):
    """A change of a folder that is not synced yet: a name was added (with a ``node``) or removed (None).

    Both halves of a rename have the same ``twin``.
    """

    name: str
    node: int | None
    twin: int = 0


class State(NamedTuple):
    """The state of the disk after some number of operations. The state records what is durable and what is not durable.

    Values in the state are never modified, only replaced by new values.
    """

    folders: dict[int, tuple[dict[str, int], tuple[Pending, ...]]]
    files: dict[int, tuple[bytes, tuple[tuple[int, bytes], ...], tuple[tuple[int, bytes], ...]]]  # durable, not, never
    notes: tuple[Any, ...]

    def copy(self) -> State:
        return State(dict(self.folders), dict(self.files), self.notes)


def error(number: int, path: str = "") -> OSError:
    return OSError(number, os.strerror(number), path)  # OSError chooses its subclass by the error number


class SimDisk(Disk):
    """A simulated disk that logs every call. A call with more than ``most`` bytes writes only a part of them.

    Until a file is synced, a power loss may lose, tear or keep each of its sectors, and the length of the file varies.
    Until a folder is synced, a power loss may undo any creation or removal of a name in the folder. A sync of a folder
    does not make the bytes of its files durable. A sync of a file does not make the name of the file durable. If a sync
    fails, later syncs do not write the data of the failed sync either.
    """

    def __init__(self, most: int | None = None, clock: float = 1e9) -> None:
        self.most, self.clock = most, clock
        self.folders: dict[int, dict[str, int]] = {0: {}}
        self.files: dict[int, bytes | bytearray] = {}
        self.open: dict[int, int] = {}
        self.changed: dict[int, float] = {}
        self.last, self.descriptor = 0, 1000
        self.log: list[tuple[Any, ...]] = []
        self.kept = [State({0: ({}, ())}, {}, ())]

    # Calls that the store makes

    def resolve_path(self, path: str) -> str:
        return os.path.normpath(path)

    def status(self, path: str, follow: bool = False) -> FileStatus:
        node = self._node(path)
        kind = "folder" if node in self.folders else "file"
        size = 0 if kind == "folder" else len(self.files[node])
        return FileStatus(kind, 0o700 if kind == "folder" else 0o600, os.geteuid(), size, self.changed.get(node, 0.0))

    def mkdir(self, path: str, mode: int) -> None:
        folder, name = self._free(path)
        node = self._new(folder, name)
        self.folders[node] = {}
        self._did("mkdir", folder, name, node)

    def names(self, path: str) -> list[str]:
        return list(self._folder(path))

    def scan(self, path: str) -> list[tuple[str, int, float]]:
        found = self._folder(path).items()
        return [
            (name, len(self.files[node]), self.changed.get(node, 0.0)) for name, node in found if node in self.files
        ]

    def create(self, path: str, mode: int) -> int:
        folder, name = self._free(path)
        node = self._new(folder, name)
        self.files[node] = bytearray()
        self._did("create", folder, name, node)
        return self._opened(node)

    def write(self, file: int, data: Any) -> int:
        node = self._of(file)
        taken = bytes(memoryview(data)[: self.most])
        self._did("write", node, len(self.files[node]), taken)
        self.files[node] += taken  # an image's bytes are replaced, a live file's array grows
        return len(taken)

    def fsync(self, file: int) -> None:
        self._did("fsync", self._of(file))

    def close(self, file: int) -> None:
        self._of(file)
        del self.open[file]

    def link(self, source: str, target: str) -> None:
        node = self._node(source)
        folder, name = self._free(target)
        self.folders[folder][name] = node
        self._did("link", folder, name, node)

    def rename(self, source: str, target: str) -> None:
        node, (folder, name), (other, to) = self._node(source), self._parent(source), self._parent(target)
        assert folder == other
        del self.folders[folder][name]
        self.folders[folder][to] = node
        self._did("rename", folder, name, to, node)

    def touch(self, path: str) -> None:
        self.changed[self._node(path)] = self.read_clock()

    def unlink(self, path: str) -> None:
        folder, name = self._parent(path)
        if self._node(path) in self.folders:
            raise error(errno.EISDIR, path)
        del self.folders[folder][name]
        self._did("unlink", folder, name)

    def sync_dir(self, path: str) -> None:
        self._folder(path)
        self._did("sync_dir", self._node(path))

    def read(self, path: str, most: int) -> bytes:
        found = self._bytes(path)
        if len(found) > most:
            raise error(errno.EFBIG, path)
        return bytes(found)

    def map_file(self, path: str) -> pa.Buffer:
        return pa.py_buffer(bytes(self._bytes(path)))

    def count_free_bytes(self, path: str) -> int:
        return 0

    def read_clock(self) -> float:
        return self.clock + len(self.log)

    # Calls that only incorrect stores make

    def reopen(self, path: str) -> int:
        """Open an existing file for appending."""
        return self._opened(self._node(path))

    # Calls of tests

    def note(self, text: Any) -> None:
        """Record a promise. The promise is in the ``notes`` of each image whose power loss comes after this call."""
        self._did("note", text)

    def doom(self, file: int) -> None:
        """Make a sync of this file fail. Later syncs do not write the data of the failed sync."""
        self._did("doom", self._of(file))

    @property
    def notes(self) -> list[Any]:
        return list(self._at(len(self.log)).notes)

    def image(self, seed: int, cut: int | None = None) -> SimDisk:
        """Return a possible result of a power loss after ``cut`` operations.

        By default, the number of operations is random. O(cut / 32).

        ``seed`` alone decides all choices of an image, so (scenario, seed) is reproducible. The model loses more than
        any real file system.
        """
        random = Random(seed)
        chosen = random.randrange(len(self.log) + 1)
        state = self._at(chosen if cut is None else cut)
        image = SimDisk(clock=self.clock + 1e6)
        image.last = self.last
        keep = random.choice((0.0, 0.15, 0.5, 0.85, 1.0))  # extremes break rules
        folders, files = {}, {}
        waiting = [0]
        while waiting:
            node = waiting.pop()
            if node in state.folders:
                folders[node] = names = _names(random, keep, *state.folders[node])
                waiting += names.values()
            elif node not in files:
                durable, pending, never = state.files[node]
                files[node] = _survivors(random, keep, durable, never + pending)
        image.folders, image.files = folders, files
        image.kept = [
            State(
                {n: (dict(names), ()) for n, names in folders.items()},
                {n: (data, (), ()) for n, data in files.items()},
                state.notes,
            )
        ]
        return image

    def images(self, seeds: range) -> Iterator[tuple[int, SimDisk]]:
        """Yield an image for each seed."""
        for seed in seeds:
            yield seed, self.image(seed)

    def content(self) -> tuple[Any, ...]:
        """Return all contents for comparison: the names of folders and files, and the bytes of files."""
        found: list[Any] = []
        waiting = [("", 0)]
        while waiting:
            path, node = waiting.pop()
            if node in self.folders:
                found.append(path)
                waiting += [(f"{path}/{name}", below) for name, below in self.folders[node].items()]
            else:
                found.append((path, bytes(self.files[node])))
        return tuple(found)

    # Implementation

    def _did(self, *operation: Any) -> None:
        self.log.append(operation)

    def _new(self, folder: int, name: str) -> int:
        self.last += 1
        self.folders[folder][name] = self.last
        self.changed[self.last] = self.read_clock()
        return self.last

    def _opened(self, node: int) -> int:
        self.descriptor += 1
        self.open[self.descriptor] = node
        return self.descriptor

    def _of(self, file: int) -> int:
        assert file in self.open, f"the descriptor {file} was closed, and may be another's by now"
        return self.open[file]

    def _node(self, path: str) -> int:
        node = 0
        for part in path.split("/"):
            if part:
                if node not in self.folders:
                    raise error(errno.ENOTDIR, path)
                if part not in self.folders[node]:
                    raise error(errno.ENOENT, path)
                node = self.folders[node][part]
        return node

    def _parent(self, path: str) -> tuple[int, str]:
        above, _, name = path.rpartition("/")
        node = self._node(above)
        if node not in self.folders:
            raise error(errno.ENOTDIR, path)
        return node, name

    def _free(self, path: str) -> tuple[int, str]:
        folder, name = self._parent(path)
        if name in self.folders[folder]:
            raise error(errno.EEXIST, path)
        return folder, name

    def _folder(self, path: str) -> dict[str, int]:
        node = self._node(path)
        if node not in self.folders:
            raise error(errno.ENOTDIR, path)
        return self.folders[node]

    def _bytes(self, path: str) -> bytes | bytearray:
        node = self._node(path)
        if node not in self.files:
            raise error(errno.EISDIR, path)
        return self.files[node]

    def _at(self, cut: int) -> State:
        """Return the state after ``cut`` operations."""
        while len(self.kept) <= cut // EVERY:
            begin = (len(self.kept) - 1) * EVERY
            self.kept.append(_after(self.kept[-1], self.log[begin : begin + EVERY]))
        begin = cut // EVERY * EVERY
        return _after(self.kept[cut // EVERY], self.log[begin:cut])


def _after(state: State, operations: list[tuple[Any, ...]]) -> State:
    """Apply further operations to a state, and return the resulting state."""
    folders, files, notes = state.copy()
    for index, (kind, *values) in enumerate(operations):
        if kind in ("create", "link", "mkdir", "unlink", "rename"):
            folder, name = values[:2]
            durable, pending = folders[folder]
            if kind == "unlink":
                pending += (Pending(name, None),)
            elif kind == "rename":
                pending += (Pending(name, None, index + 1), Pending(values[2], values[3], index + 1))
            else:
                pending += (Pending(name, values[2]),)
            folders[folder] = durable, pending
            if kind == "create":
                files[values[2]] = b"", (), ()
            elif kind == "mkdir":
                folders[values[2]] = {}, ()
        elif kind == "sync_dir":
            durable, pending = folders[values[0]]
            folders[values[0]] = _applied(durable, pending), ()
        elif kind == "note":
            notes += (values[0],)
        else:
            durable, pending, never = files[values[0]]
            if kind == "write":
                files[values[0]] = durable, (*pending, (values[1], values[2])), never
            elif kind == "fsync":
                files[values[0]] = bytes(_over(durable, pending)), (), never
            else:
                files[values[0]] = durable, (), never + pending
    return State(folders, files, notes)


def _applied(durable: dict[str, int], pending: Any) -> dict[str, int]:
    names: dict[str, int | None] = dict(durable)
    for each in pending:
        names[each.name] = each.node
    return {name: node for name, node in names.items() if node is not None}


def _names(random: Random, keep: float, durable: dict[str, int], pending: tuple[Pending, ...]) -> dict[str, int]:
    """Choose a random subset of a folder's changes, and apply it in order.

    If a name has changed several times, only the last change matters.
    """
    chosen = {i for i in range(len(pending)) if random.random() < keep}
    gone = {pending[i].twin for i in chosen if pending[i].node is None}
    return _applied(
        durable, [each for i, each in enumerate(pending) if i in chosen or (each.twin and each.twin in gone)]
    )


def _over(durable: bytes, writes: tuple[tuple[int, bytes], ...]) -> bytes | bytearray:
    if not writes:
        return durable
    whole = bytearray(durable)
    for offset, data in writes:
        if len(whole) < offset:
            whole += bytes(offset - len(whole))
        whole[offset : offset + len(data)] = data
    return whole


def _survivors(random: Random, keep: float, durable: bytes, writes: tuple[tuple[int, bytes], ...]) -> bytes:
    """Return the content of a file after a power loss.

    Each written sector is kept, torn or unchanged. An unchanged sector after the old end of the file contains zeros.
    """
    if not writes:
        return durable
    whole = bytes(_over(durable, writes))
    if random.random() < 0.2:
        return random.choice((durable, whole, durable.ljust(len(whole), b"\0")))
    found = bytearray(durable.ljust(len(whole), b"\0"))
    begin = min(offset for offset, _ in writes)
    step = max(SECTOR, (len(whole) - begin) // 64 // SECTOR * SECTOR)
    for sector in range(begin // step * step, len(whole), step):
        if random.random() < keep:
            end = sector + (step if random.random() < 0.9 else random.randrange(step))
            found[sector:end] = whole[sector:end]
    length = random.choice((len(durable), len(whole), len(whole), random.randint(len(durable), len(whole))))
    return bytes(found[:length])


# Failing disk

CALLS = (
    "status",
    "mkdir",
    "names",
    "scan",
    "create",
    "write",
    "fsync",
    "close",
    "link",
    "rename",
    "touch",
    "unlink",
    "sync_dir",
    "read",
    "map_file",
)
SYNCS = ("fsync", "sync_dir")
KINDS = {
    "ENOSPC": ("mkdir", "create", "write", "fsync", "link", "rename", "sync_dir"),
    "EIO": CALLS,
    "short": ("write",),
    "fsync": SYNCS,
    # the call succeeds, but is reported as failed
    "answer": ("mkdir", "link", "rename", "unlink", "fsync", "sync_dir", "close", "write"),
}


class Faulty(Disk):
    """A disk whose ``at``-th call of a given kind fails, counted from 0. With ``forever``, all later calls fail too.

    ``calls``: the number of calls of this kind.  ``failed``: the names of failed calls.  ``before``: called before
    every call with its name and arguments, to observe or to raise.
    """

    def __init__(
        self,
        disk: Disk,
        at: int = -1,
        kind: str = "EIO",
        forever: bool = False,
        before: Callable[..., Any] | None = None,
    ) -> None:
        self.disk, self.at, self.kind, self.forever, self.before = disk, at, kind, forever, before
        self.calls, self.failed = 0, list[str]()

    def resolve_path(self, path: str) -> str:
        return self.disk.resolve_path(path)

    def count_free_bytes(self, path: str) -> int:
        return self.disk.count_free_bytes(path)

    def read_clock(self) -> float:
        return self.disk.read_clock()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.disk, name)

    def _call(self, name: str, *arguments: Any, **options: Any) -> Any:
        if self.before is not None:
            self.before(name, *arguments)
        call = getattr(self.disk, name)
        if name not in KINDS[self.kind]:
            return call(*arguments, **options)
        due = self.at >= 0 and (self.calls == self.at or (self.forever and self.calls > self.at))
        self.calls += 1
        if not due:
            return call(*arguments, **options)
        self.failed.append(name)
        if self.kind == "short":
            file, data = arguments
            return call(file, memoryview(data)[: max(1, len(data) // 2)])
        if self.kind == "answer" or name == "close":
            call(*arguments, **options)
        elif name == "fsync" and isinstance(self.disk, SimDisk):
            self.disk.doom(*arguments)
        raise error(errno.ENOSPC if self.kind == "ENOSPC" else errno.EIO)


def _by_call(name: str) -> Callable[..., Any]:
    return lambda self, *arguments, **options: self._call(name, *arguments, **options)


for _name in CALLS:
    setattr(Faulty, _name, _by_call(_name))


# Scenarios on a disk, and the promises that hold in every image


class Killed(BaseException):
    """The death of a process. The process makes no more calls."""


def killing(name: str, ending: str, nth: int = 0) -> Callable[..., Any]:
    """Return a function for the parameter ``before`` of `Faulty`.

    Kill the process at a call with this name on a path with this ending. ``nth`` is the number of this
    call, from 0.
    """
    seen = [0, 0]

    def before(called: str, *arguments: Any) -> None:
        if called == name and any(str(each).endswith(ending) for each in arguments):
            seen[0] += 1
        if seen[0] > nth:
            raise Killed(f"{name} {ending}")

    return before


class Story(NamedTuple):
    """A scenario, and the check that each image of its disk must pass.

    ``scenario(open, note)``: the actions; ``open(before=None)`` gives a new process's store, ``note`` records a
    promise. ``check(store, notes)``: raises unless a store keeps these promises.  ``make(disk)``: a store on a disk.
    """

    scenario: Callable[[Callable[..., Any], Callable[[Any], None]], Any]
    check: Callable[[Any, list[Any]], Any]
    make: Callable[[Any], Any]

    def told(self, disk: SimDisk) -> SimDisk:
        """Run the scenario and return the disk."""
        self.scenario(lambda before=None: self.make(Faulty(disk, before=before) if before else disk), disk.note)
        return disk

    def violation(self, disk: SimDisk, seeds: range) -> str | None:
        """Return the first image that breaks a promise, or None. Equal images are checked only once."""
        seen: set[int] = set()
        for seed, image in disk.images(seeds):
            notes = image.notes
            key = hash((image.content(), len(notes)))
            if key not in seen:
                seen.add(key)
                try:
                    self.check(self.make(image), notes)
                except Exception as error:
                    return f"image {seed}: {type(error).__name__}: {error}"
        return None
