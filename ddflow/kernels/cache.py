"""Cache compiled kernels on disk, in a private folder for each set of sources, versions and processor.

The folder's name is a digest of all kernel sources, versions and numba switches. Each file has a checksum. If a file is
damaged, its kernel is compiled again. A low-priority process fills the cache in the background, and ends when the
process that started it ends. Only one process fills a cache at a time, and Spark tasks never start such a process.

Guarantees: a file is loaded only if this user wrote it for exactly the running code. Files appear under their final
name only when they are complete, so several processes can write at the same time. Callers never wait for the process
that fills the cache.
Limits: loading a file can run code, because the file contains Python objects. Therefore each opening checks that only
this user can write to the folder. The checksum detects damage, not an attacker.
``docs/decisions/001-kernel-cache.md`` compares this cache with numba's own cache.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import logging
import os
import stat
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import IO, Any, Final

LOG = logging.getLogger("ddflow")
KEPT = 4
"""Number of folders with other digests that are kept.

This number of folders is enough for a few branches, environments and settings of the numba switches.
"""


def list_source_stamps(package: Path) -> tuple[tuple[str, int, int], ...]:
    """List the name, modification time and size of every source file below ``package``.

    Equal lists mean equal sources. For a package in a zip archive, the list describes the archive. The list is empty if
    only byte code is installed, because the sources cannot be read then.
    """
    files = sorted(package.rglob("*.py")) or [parent for parent in package.parents if parent.is_file()][:1]
    states = [(file, file.stat()) for file in files]
    return tuple((str(file), state.st_mtime_ns, state.st_size) for file, state in states)


def compute_digest(files: Iterable[str], facts: Iterable[object]) -> str:
    """Compute a digest of 32 hexadecimal digits from the contents of files and from ``facts``.

    >>> compute_digest([], ["numba 1"]) == compute_digest([], ["numba 2"])
    False
    """
    state = hashlib.sha256()
    for file in files:
        content = Path(file).read_bytes()
        state.update(f"{Path(file).name} {len(content)}\n".encode() + content)
    state.update("\n".join(map(str, facts)).encode())
    return state.hexdigest()[:32]


def list_cache_directories() -> list[Path]:
    """List the directories that can hold the cache, in order of preference.

    The directories are not checked for write access. The first directory is ``DDFLOW_CACHE_DIR`` if it is set, and
    otherwise the cache directory of the platform. The second directory is a folder in the temporary directory.
    """
    places: list[Path] = []
    if chosen := os.environ.get("DDFLOW_CACHE_DIR"):
        places.append(Path(chosen))
    else:
        xdg = os.environ.get("XDG_CACHE_HOME", "")
        with contextlib.suppress(RuntimeError):  # the user has no home directory
            if sys.platform == "darwin":
                places.append(Path.home() / "Library" / "Caches" / "ddflow")
            else:
                places.append((Path(xdg) if os.path.isabs(xdg) else Path.home() / ".cache") / "ddflow")
    with contextlib.suppress(OSError):  # no temporary directory is writable
        temporary = Path(tempfile.gettempdir())
        if temporary != Path.cwd():  # tempfile falls back to the working directory, which is no place for a cache
            places.append(temporary / f"ddflow-{os.geteuid()}")
    return places


def find_privacy_fault(state: os.stat_result, user: int) -> str | None:
    """Explain why a folder in this state cannot hold the cache.

    Return None if the folder is private and belongs to ``user``.
    """
    if state.st_uid != user:
        return f"it belongs to user {state.st_uid}, not to {user}"
    if stat.S_IMODE(state.st_mode) & 0o077:
        return f"its mode is {stat.S_IMODE(state.st_mode):o}, so other users may open it"
    return None


def find_replacement_risk(state: os.stat_result, user: int) -> str | None:
    """Explain why other users can replace the content of a folder in this state.

    Return None if only ``user`` and root can replace the content.
    """
    if state.st_uid not in (user, 0):
        return f"it belongs to user {state.st_uid}, not to {user}"
    if state.st_mode & 0o022 and not state.st_mode & stat.S_ISVTX:
        return f"its mode is {stat.S_IMODE(state.st_mode):o}, so other users may replace its content"
    return None


def make_private_folder(place: Path, name: str) -> Path:
    """Open or create the folder ``name`` in ``place``, private to this user. Raises OSError on failure."""
    directory = Path(os.path.abspath(os.path.expanduser(place))) / name
    directory.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    directory.mkdir(mode=0o700, exist_ok=True)
    with _open_checked_folder(directory):
        return directory


@contextlib.contextmanager
def _open_checked_folder(directory: Path) -> Iterator[int]:
    """Open a folder that other users can neither read nor replace, and yield its descriptor.

    `find_privacy_fault` checks the folder, and `find_replacement_risk` checks its parent. A file that is opened through
    the descriptor is certainly in the folder that was checked. Raises PermissionError.
    """
    with contextlib.ExitStack() as stack:

        def checked(name: str, flags: int, why: Callable[[os.stat_result, int], str | None], above: int | None) -> int:
            opened = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | flags, dir_fd=above)
            stack.callback(os.close, opened)
            if reason := why(os.fstat(opened), os.geteuid()):
                raise PermissionError(f"compiled kernels cannot be stored in {name}: {reason}")
            return opened

        above = checked(str(directory.parent), 0, find_replacement_risk, None)
        yield checked(directory.name, os.O_NOFOLLOW, find_privacy_fault, above)


def _remove_old_folders(directory: Path) -> None:
    """Remove the folders of other digests beside ``directory``. Keep the ``KEPT`` folders that were used last."""
    with contextlib.suppress(OSError):
        others = [folder for folder in directory.parent.glob("kernels-*") if folder != directory]
        others.sort(key=lambda folder: folder.lstat().st_mtime_ns, reverse=True)
        for old in others[KEPT:]:
            with contextlib.suppress(OSError), _open_checked_folder(old) as here:
                for name in os.listdir(here):
                    if name.endswith((".kernel", ".tmp")):
                        os.unlink(name, dir_fd=here)
                old.rmdir()


class KernelFolder:
    """The cached kernels of one digest.

    ``directory`` is the folder of these kernels, or None if no folder is writable.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     kept = KernelFolder.choose([Path("/dev/null/nowhere"), Path(folder)], "0" * 32)
    ...     kept.write_kernel("double", b"machine code")
    ...     kept.read_kernel("double"), kept.read_kernel("triple"), kept.directory.parent == Path(folder)
    (b'machine code', None, True)
    """

    def __init__(self, directory: Path | None) -> None:
        self.directory = directory

    @classmethod
    def choose(cls, places: Iterable[Path], name: str) -> KernelFolder:
        """Create the folder ``name`` in the first writable place. If no place is writable, ``directory`` is None."""
        for place in places:
            try:
                directory = make_private_folder(place, f"kernels-{name}")
                _write_file(directory, "probe", b"some bytes")
                with contextlib.suppress(FileNotFoundError):  # another process probed at the same time
                    (directory / "probe.kernel").unlink()
                os.utime(directory)  # now the most recently used folder
            except OSError as error:
                LOG.debug("cannot cache kernels in %s: %s", place, error)
                continue
            _remove_old_folders(directory)
            return cls(directory)
        return cls(None)

    def read_kernel(self, name: str) -> bytes | None:
        """Return the bytes of the kernel file ``name``, or None if the file is missing or damaged."""
        if self.directory is None:
            return None
        try:
            with (
                _open_checked_folder(self.directory) as here,
                open(f"{name}.kernel", "rb", opener=_build_opener(here)) as file,
            ):
                content = file.read()
        except OSError:
            return None
        payload = content[len(_build_header(self.directory, name, b"")) :]
        if content != _build_header(self.directory, name, payload) + payload:
            self.warn_of_damage(f"{name}.kernel fails its checksum, or belongs to another kernel")
            return None
        return payload

    def has_kernel(self, name: str) -> bool:
        """Return whether a kernel file of this name exists, without reading it."""
        return self.directory is not None and (self.directory / f"{name}.kernel").exists()

    def write_kernel(self, name: str, payload: bytes) -> None:
        """Write ``payload`` to the kernel file ``name``. Create a missing folder. Ignore a full or missing disk."""
        if self.directory is None:
            return
        try:
            self.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            _write_file(self.directory, name, payload)
        except OSError as error:
            LOG.debug("cannot cache the kernel %s: %s", name, error)

    def warn_of_damage(self, reason: str) -> None:
        """Warn that a kernel file cannot be used. A newly compiled kernel will replace the file."""
        LOG.warning("the kernel cache %s is damaged (%s); ddflow compiles the kernel again", self.directory, reason)


def _build_header(directory: Path, name: str, payload: bytes) -> bytes:
    """Build the header of a kernel file.

    The header has the file type, the digest, the kernel's name, and the checksum of header and payload.
    """
    label = f"ddflow kernel\n{directory.name}/{name}\n".encode()
    return label + hashlib.sha256(label + payload).digest()


def _build_opener(here: int) -> Callable[[str, int], int]:
    """Return an opener for files in the folder ``here`` that uses mode 0600 and follows no symbolic link."""
    return lambda name, flags: os.open(name, flags | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600, dir_fd=here)


def _write_file(directory: Path, name: str, payload: bytes) -> None:
    aside = f"{name}.{os.getpid()}.{os.urandom(4).hex()}.tmp"
    with _open_checked_folder(directory) as here:
        try:
            with open(aside, "xb", opener=_build_opener(here)) as file:
                file.write(_build_header(directory, name, payload) + payload)
            os.rename(aside, f"{name}.kernel", src_dir_fd=here, dst_dir_fd=here)
        except OSError:
            with contextlib.suppress(OSError):
                os.unlink(aside, dir_fd=here)
            raise


FILLED: Final = "filled"
LOCK: Final = "filling.lock"
_started: list[subprocess.Popen[bytes]] = []


def start_fill_process(directory: Path | None) -> bool:
    """Start the process that fills a cache, once and only if needed.

    Return whether this process has started the fill process.

    >>> import os
    >>> os.environ["DDFLOW_BACKGROUND"] = "0"
    >>> start_fill_process(Path("/nowhere"))
    False
    >>> del os.environ["DDFLOW_BACKGROUND"]
    """
    if _started or directory is None or os.environ.get("DDFLOW_BACKGROUND") == "0" or is_spark_task():
        return False
    if is_cache_filled(directory):
        return False
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    with contextlib.suppress(OSError):  # if no process can start, this one compiles as needed
        _started.append(
            subprocess.Popen(
                [sys.executable, "-m", "ddflow.tools.fill_cache"],
                env=environment,
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
        )
        show_notice(
            "ddflow compiles its kernels in the background, once on this machine. This takes a minute of one core; "
            "until then, small steps are interpreted. `ddflow warmup` compiles them in advance."
        )
    return bool(_started)


def list_fill_processes() -> list[subprocess.Popen[bytes]]:
    """List the fill processes that this process started. To end a fill process, close its ``stdin``."""
    return list(_started)


def is_cache_filled(directory: Path | None) -> bool:
    """Return whether all kernels of a cache have been compiled."""
    return directory is not None and (directory / FILLED).exists()


def mark_cache_filled(directory: Path | None) -> None:
    """Record that a cache holds all kernels. Ignore a missing or read-only folder."""
    if directory is not None:
        with contextlib.suppress(OSError):
            (directory / FILLED).touch(mode=0o600)


@contextlib.contextmanager
def hold_fill_lock(directory: Path) -> Iterator[bool]:
    """Lock a cache for one fill process. Yield False if a different process fills the cache or has filled it."""
    with open(directory / LOCK, "wb") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
            return
        if is_cache_filled(directory):
            yield False
            return
        yield True


def exit_with_parent(parent: IO[Any]) -> None:
    """End this process as soon as the process at the other end of a pipe closes this pipe."""

    def watch() -> None:
        while os.read(parent.fileno(), 1):
            pass
        os._exit(1)

    threading.Thread(target=watch, daemon=True, name="ddflow-parent").start()


def show_notice(text: str) -> None:
    """Show a notice on the stderr of a terminal or notebook, or in the log of a Spark task.

    In all other processes, log the notice at the level INFO.
    """
    if sys.stderr.isatty() or "ipykernel" in sys.modules or is_spark_task():
        print(text, file=sys.stderr, flush=True)
    else:
        logging.getLogger("ddflow").info("%s", text)


def is_spark_task() -> bool:
    """Return whether this process runs Spark tasks.

    A process that runs Spark tasks is a daemon of Python workers, or was forked from a daemon.
    """
    spec = getattr(sys.modules.get("__main__"), "__spec__", None)
    return "pyspark.daemon" in sys.modules or getattr(spec, "name", "") == "pyspark.worker"
