"""Where compiled kernels stay between runs: one private directory for one exact set of sources, versions and processor.

Invariant: what is read back is what this user's own process wrote for exactly the code that is running, or it is not
read at all. Numba's own cache looks at one source file, so a kernel that calls a helper in another file keeps running
the old helper; it stops the program when a file is truncated; and it does not notice that bounds checks were asked
for. Here the directory is named by a digest of every source file of this package together with the versions and
switches that shape machine code, so any change is another directory. Every file names that directory and its kernel,
so that one copied from elsewhere is not taken, and carries a checksum of all that; a damaged one costs a compilation,
never a failure: the directory is emptied once, and if damage comes back, caching is off for the rest of the process.
The sources must also still be those that were imported, else nothing is read or written.

A file holds a pickle, for that is how numba serialises its results, and whoever can write a pickle can run code.  It is
acceptable under the conditions checked here at every opening, on the open directory itself and not on its name: the
directory is no symbolic link, belongs to this user, and nobody else may enter it (mode 0700); the one that it is in is
this user's or root's, and nobody else may rename what is in it (not writable by others, or sticky).  Who can plant a
file there can already act as this user.  The checksum guards against damage, not against an adversary.

What it does not do: know anything of numba or of what is inside a file, or lock.  Files appear under their final name
whole (written aside, then renamed), so two processes that compile the same kernel at once both succeed.

>>> import tempfile
>>> with tempfile.TemporaryDirectory() as folder:
...     shelf = Shelf.choose([Path("/dev/null/nowhere"), Path(folder)], "0" * 32)
...     shelf.write("double", b"machine code")
...     shelf.read("double"), shelf.read("triple"), shelf.directory.parent == Path(folder)
(b'machine code', None, True)
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import re
import stat
import sys
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path

LOG = logging.getLogger("ddflow")
KEPT = 4
"""How many directories of other digests stay beside ours: enough for a few branches, environments and switches."""
_MAGIC = "ddflow kernel 2"
_NAME = re.compile(r"kernels-[0-9a-f]{32}")
_OURS = (".kernel", ".tmp")


def stamp(package: Path) -> tuple[tuple[str, int, int], ...]:
    """Name, modification time and size of every source below ``package``: equal stamps mean equal sources.

    A package inside a zip archive is stamped by its archive; without either (only byte code installed) it is empty.
    """
    files = sorted(package.rglob("*.py")) or [parent for parent in package.parents if parent.is_file()][:1]
    states = [(file, file.stat()) for file in files]
    return tuple((str(file), state.st_mtime_ns, state.st_size) for file, state in states)


def digest(files: Iterable[str], facts: Iterable[object]) -> str:
    """32 hexadecimal digits that change when a file's content or one of ``facts`` does.

    >>> digest([], ["numba 1"]) == digest([], ["numba 2"])
    False
    """
    state = hashlib.sha256()
    for file in files:
        content = Path(file).read_bytes()
        state.update(f"{Path(file).name} {len(content)}\n".encode() + content)
    state.update("\n".join(map(str, facts)).encode())
    return state.hexdigest()[:32]


def candidates() -> list[Path]:
    """The directories that may hold the cache, best first; whether they can be written is not yet known.

    ``DDFLOW_CACHE_DIR`` wins, else the platform's directory for caches; then one below the temporary directory.
    """
    places: list[Path] = []
    if chosen := os.environ.get("DDFLOW_CACHE_DIR"):
        places.append(Path(chosen))
    else:
        xdg = os.environ.get("XDG_CACHE_HOME", "")
        with contextlib.suppress(RuntimeError):  # a user without a home
            if sys.platform == "darwin":
                places.append(Path.home() / "Library" / "Caches" / "ddflow")
            else:
                places.append((Path(xdg) if os.path.isabs(xdg) else Path.home() / ".cache") / "ddflow")
    with contextlib.suppress(OSError):  # no temporary directory can be written
        temporary = Path(tempfile.gettempdir())
        if temporary != Path.cwd():  # the last resort of tempfile; nobody wants a cache there
            places.append(temporary / f"ddflow-{os.geteuid()}")
    return places


def refusal(state: os.stat_result, user: int) -> str | None:
    """Why a directory in this state may not hold our files, None if it may: it must be ``user``'s and private."""
    if not stat.S_ISDIR(state.st_mode):
        return "it is not a directory"
    if state.st_uid != user:
        return f"it belongs to user {state.st_uid}, not to {user}"
    if stat.S_IMODE(state.st_mode) & 0o077:
        return f"its mode is {stat.S_IMODE(state.st_mode):o}, so others may enter"
    return None


def exposure(state: os.stat_result, user: int) -> str | None:
    """Why others may replace what is in a directory in this state, None if only ``user`` and root may."""
    if state.st_uid not in (user, 0):
        return f"it belongs to user {state.st_uid}, not to {user}"
    if state.st_mode & 0o022 and not state.st_mode & stat.S_ISVTX:
        return f"its mode is {stat.S_IMODE(state.st_mode):o}, so others may replace what is in it"
    return None


def private(place: Path, name: str) -> Path:
    """The directory ``name`` in ``place``, made if need be, this user's and closed to others; OSError if that fails."""
    directory = Path(os.path.abspath(os.path.expanduser(place))) / name
    directory.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    directory.mkdir(mode=0o700, exist_ok=True)
    with _opened(directory):
        return directory


@contextlib.contextmanager
def _opened(directory: Path) -> Iterator[int]:
    """A descriptor of ``directory``, checked by ``refusal``, and found in a parent checked by ``exposure``: files
    opened through it are in the directory checked."""
    above = os.open(directory.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        if reason := exposure(os.fstat(above), os.geteuid()):
            raise PermissionError(f"{directory.parent} is refused: {reason}")
        flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
        descriptor = os.open(directory.name, flags, dir_fd=above)
    finally:
        os.close(above)
    try:
        if reason := refusal(os.fstat(descriptor), os.geteuid()):
            raise PermissionError(f"{directory} is refused: {reason}")
        yield descriptor
    finally:
        os.close(descriptor)


def _empty(directory: Path) -> None:
    """Remove our files from ``directory``, and nothing else."""
    with contextlib.suppress(OSError), _opened(directory) as here:
        for name in os.listdir(here):
            if name.endswith(_OURS):
                with contextlib.suppress(OSError):
                    os.unlink(name, dir_fd=here)


def _forget_old(directory: Path) -> None:
    """Remove what other digests left beside ``directory``, but for the ``KEPT`` most recently used."""
    with contextlib.suppress(OSError):
        others = [entry for entry in os.scandir(directory.parent) if _NAME.fullmatch(entry.name)]
        others = [entry for entry in others if entry.name != directory.name]
        others.sort(key=lambda entry: entry.stat(follow_symlinks=False).st_mtime_ns, reverse=True)
        for entry in others[KEPT:]:
            _empty(Path(entry.path))
            with contextlib.suppress(OSError):
                os.rmdir(entry.path)


class Shelf:
    """The files of one digest in one directory; ``directory`` is None when caching is off."""

    def __init__(self, directory: Path | None) -> None:
        self.directory = directory
        self._healed = False

    @classmethod
    def choose(cls, places: Iterable[Path], name: str) -> Shelf:
        """The shelf called ``name`` (a digest) in the first of ``places`` that takes files; off if none does."""
        for place in places:
            try:
                shelf = cls(private(place, f"kernels-{name}"))
                shelf._put("probe", b"")
                shelf._used()
            except OSError as error:
                LOG.debug("kernels cannot be cached in %s: %s", place, error)
                continue
            return shelf
        return cls(None)

    def read(self, name: str) -> bytes | None:
        """The bytes written as ``name``; None if there are none, or if they were damaged and have been cleared away."""
        if self.directory is None:
            return None
        try:
            with _opened(self.directory) as here:
                opened = os.open(f"{name}.kernel", os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=here)
                with open(opened, "rb") as file:
                    content = file.read()
        except OSError:
            return None
        size = len(self._head(name, b""))
        head, payload = content[:size], content[size:]
        if head != self._head(name, payload):
            self.heal(f"{name}.kernel fails its checksum, or is of another kernel")
            return None
        return payload

    def write(self, name: str, payload: bytes) -> None:
        """Keep ``payload`` as ``name``.  A directory that has gone is made again; a full or lost disk is no error."""
        if self.directory is None:
            return
        try:
            self.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._put(name, payload)
        except OSError as error:
            LOG.debug("kernel %s was not cached: %s", name, error)

    def heal(self, reason: str) -> None:
        """Something read back was not what was written: empty the directory the first time, then stop caching."""
        LOG.warning("the kernel cache %s is damaged (%s); kernels are compiled again", self.directory, reason)
        if self.directory is not None:
            _empty(self.directory)
        if self._healed:
            self.directory = None
        self._healed = True

    def _head(self, name: str, payload: bytes) -> bytes:
        """What a file begins with: what it is, of which digest, which kernel, and the checksum of all of it."""
        assert self.directory is not None
        label = f"{_MAGIC}\n{self.directory.name}/{name}\n".encode()
        return label + hashlib.sha256(label + payload).digest()

    def _used(self) -> None:
        """Remove the probe, mark this directory as the most recently used, and forget the least."""
        assert self.directory is not None
        with _opened(self.directory) as here:
            with contextlib.suppress(FileNotFoundError):  # another process probed at the same time
                os.unlink("probe.kernel", dir_fd=here)
            os.utime(here)
        _forget_old(self.directory)

    def _put(self, name: str, payload: bytes) -> None:
        assert self.directory is not None
        aside = f"{name}.{os.getpid()}.{os.urandom(4).hex()}.tmp"
        with _opened(self.directory) as here:
            try:
                opened = os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600, dir_fd=here)
                with open(opened, "wb") as file:
                    file.write(self._head(name, payload) + payload)
                os.rename(aside, f"{name}.kernel", src_dir_fd=here, dst_dir_fd=here)
            except OSError:
                with contextlib.suppress(OSError):
                    os.unlink(aside, dir_fd=here)
                raise
