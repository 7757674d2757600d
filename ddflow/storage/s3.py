"""Keep a state in S3 or a compatible object store, with a cache of blobs on the local disk.

Guarantees: a manifest is published by a conditional put, so one of two writers fails. The cache names each blob by its
checksum, verifies it at each read, and stays below its size limit.

>>> S3Store("s3://KEY:SECRET@bucket/orders")
Traceback (most recent call last):
    ...
ddflow.errors.StateRefused: open the state s3://...@bucket/orders: it is not of the form s3://bucket/prefix; ...
"""

import os
import re
import stat
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from typing import Any, Final

import pyarrow as pa

from ddflow.errors import CorruptState, OutcomeUnknown, StateRefused, StorageFailed
from ddflow.storage.closing import undo_on_failure
from ddflow.storage.folder.disk import Disk, FileWriter
from ddflow.storage.folder.scratch import ScratchStore, remove_stale_folders
from ddflow.storage.folder.site import ManagedFolder
from ddflow.storage.object_store import Bucket
from ddflow.storage.protocol import (
    MANIFEST,
    NAME,
    RESTORE,
    Blob,
    BlobEntry,
    Content,
    Store,
    check_blob_name,
    missing_file_error,
    parse_manifest_numbers,
    verify_bytes,
)

SIZE: Final = 1 << 30
"""The default maximum size of a cache, in bytes."""

_WHOLE = re.compile(r"[0-9a-f]{32}")
_PART = re.compile(r"[0-9a-f]{16}\.part")
_ABANDONED = 86_400.0
"""The seconds after which ddflow assumes that the process writing a temporary file has crashed."""


class BlobCache:
    """A cache of blobs in a local folder.

    ``path``: the folder, which is created if it is missing; None: `default_cache_folder`. ``size``: the maximum bytes;
    a cache of size 0 keeps nothing.

    Raises `StateRefused` if the folder cannot be created, belongs to another user, or other users may write to it.

    >>> import tempfile, xxhash
    >>> blob = Blob("00ff00ff00ff00ff-1.arrow", 4, xxhash.xxh3_128(b"wxyz").digest())
    >>> with tempfile.TemporaryDirectory() as place:
    ...     cache = BlobCache(place, size=1 << 20)
    ...     before, _ = cache.map_blob(blob), cache.add_blob(blob, [b"wx", b"yz"], "s3://bucket/orders")
    ...     before, cache.map_blob(blob).to_pybytes()
    (None, b'wxyz')
    """

    def __init__(self, path: str | os.PathLike[str] | None = None, size: int = SIZE) -> None:
        self.site = ManagedFolder(
            Disk(), default_cache_folder() if path is None else path, "owner", "the cache", durable=False
        )
        self.path = self.site.path
        self.size = size
        self._held = self._added = 0
        self._create_folder()
        self._evict()

    def map_blob(self, blob: Blob) -> pa.Buffer | None:
        """Map and verify a blob. Return None if the blob is not cached. O(bytes)."""
        path = os.path.join(self.path, blob.digest.hex())
        try:
            if os.stat(path, follow_symlinks=False).st_size != blob.length:
                raise CorruptState(path, "its length is wrong", "it is fetched again")
            whole = verify_bytes(self.site.disk.map_file(path), blob, self.path)
            os.utime(path)
        except FileNotFoundError:
            return None
        except (OSError, CorruptState):
            with suppress(OSError):
                os.unlink(path)
            return None
        return whole

    def add_blob(self, blob: Blob, pieces: Iterable[bytes], where: str) -> pa.Buffer:
        """Write the pieces of a blob to the cache, and map it. O(bytes), with one piece at a time in memory.

        ``where``: the origin of the pieces, for messages. Writes at most one byte more than the blob's length. Raises
        `CorruptState` if the pieces are not the bytes of the blob, and `StorageFull` or `StorageFailed` if the disk of
        the cache fails. Also raises the errors of ``pieces``. After an error no file is left.
        """
        what = f"cache {blob.name} of {where}"

        def fetch(sink: FileWriter) -> None:
            for piece in pieces:
                sink.write(memoryview(piece)[: blob.length - sink.size + 1])
                if sink.size > blob.length:
                    break

        path, _ = self.write_temporary_file(what, fetch)
        with undo_on_failure(self.delete_temporary_file, path):
            with self.site.translate_disk_errors(what):
                whole = verify_bytes(self.site.disk.map_file(path), blob, where)
            self.commit_temporary_file(path, blob)
        return whole

    def write_temporary_file(self, what: str, content: Content) -> tuple[str, FileWriter]:
        """Write a new file that only this user may read. Return its path and its `FileWriter`. O(bytes).

        The caller must call `commit_temporary_file` or `delete_temporary_file` on the path. ``what``: the operation,
        for messages. Raises the errors of `ManagedFolder.write_file`. After an error no file is left.
        """
        self._create_folder()  # Create the folder again, because the user may have deleted the cache.
        path = os.path.join(self.path, f"{os.urandom(8).hex()}.part")
        return path, self.site.write_file(path, what, content)

    def commit_temporary_file(self, path: str, blob: Blob) -> None:
        """Rename a temporary file that holds a blob to the name of the blob in the cache.

        Errors are ignored: if the file cannot be renamed, it is deleted.
        """
        if blob.length > self.size:
            return self.delete_temporary_file(path)
        try:
            os.rename(path, os.path.join(self.path, blob.digest.hex()))
        except OSError:
            return self.delete_temporary_file(path)
        self._held, self._added = self._held + blob.length, self._added + blob.length
        if self._held > self.size or self._added > self.size // 16:
            self._evict()

    def delete_temporary_file(self, path: str) -> None:
        """Unlink a temporary file. A second call has no effect."""
        self.site.try_unlink(path)

    def _create_folder(self) -> None:
        asked = f"cache blobs in {self.path}"
        try:
            os.makedirs(self.path, mode=0o700, exist_ok=True)
            state = os.stat(self.path)
        except OSError as error:
            raise StateRefused(
                asked, f"the folder cannot be created ({error.strerror})", "use another folder for the cache"
            ) from None
        if state.st_uid != os.geteuid():
            raise StateRefused(
                asked,
                f"it belongs to user {state.st_uid}, not to {os.geteuid()}",
                "use a folder that belongs to you for the cache",
            )
        if stat.S_IMODE(state.st_mode) & 0o022:
            raise StateRefused(
                asked,
                f"its mode is {stat.S_IMODE(state.st_mode):o}, so other users may write to it",
                "run chmod 700 on it, or use another folder for the cache",
            )

    def _evict(self) -> None:
        """Unlink temporary files of crashed processes, and unlink blobs until the cache is within its size limit.

        The least recently used blobs are unlinked first. O(files).
        """
        files = []
        with suppress(OSError), os.scandir(self.path) as entries:
            for entry in entries:
                with suppress(FileNotFoundError):
                    state = entry.stat(follow_symlinks=False)
                    if _WHOLE.fullmatch(entry.name):
                        files.append((state.st_mtime_ns, state.st_size, entry.path))
                    elif _PART.fullmatch(entry.name) and time.time() - state.st_mtime > _ABANDONED:
                        self.delete_temporary_file(entry.path)
        self._held, self._added = sum(size for _, size, _ in files), 0
        for _, size, path in sorted(files):
            if self._held <= self.size:
                break
            self.delete_temporary_file(path)
            self._held -= size


def default_cache_folder() -> str:
    """Return the folder ``ddflow/blobs`` in this user's ``$XDG_CACHE_HOME`` or ``~/.cache``."""
    given = os.environ.get("XDG_CACHE_HOME", "")
    home = given if os.path.isabs(given) else os.path.join(os.path.expanduser("~"), ".cache")
    return os.path.join(home, "ddflow", "blobs")


MANY: Final = 2_000
"""If the sizes of more blobs than this are wanted, they are taken from a list of all blobs."""

_OURS = re.compile(r"(?:blobs|manifests|marks|probes)/.*")


class S3Store(Store):
    """A store for a state in a bucket.

    ``url``: s3://bucket/prefix. ``cache``: a `BlobCache` or its folder; None: this user's cache. ``options``: the
    configuration of ``obstore.store.S3Store``, in addition to the environment (``AWS_ACCESS_KEY_ID``,
    ``AWS_ENDPOINT_URL``, ...), and its ``retry_config`` and ``client_options``. Plain http is used only if the
    endpoint's URL says so. ``create=False``: the state must exist. ``readonly``: the store writes nothing.

    O(manifests + marks), in a few requests. Raises `MissingExtra` without obstore. Raises `StateRefused` if the bucket
    or state does not exist, or the prefix holds objects that are not ddflow's. Raises `StateRefused` if the bucket lets
    two conditional puts of one key succeed.
    """

    def __init__(
        self,
        url: str,
        *,
        cache: BlobCache | str | os.PathLike[str] | None = None,
        readonly: bool = False,
        create: bool = True,
        options: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(url)
        self.readonly = readonly
        self._bucket = Bucket(url, options)
        self._marks = set[int]()
        self._check_prefix(create and not readonly)
        if not readonly:
            self._bucket.prove_conditional_put("probes/put-if-absent")
        self.cache = cache if isinstance(cache, BlobCache) else BlobCache(cache)

    def put(self, ending: str, content: Content) -> Blob:
        """Write a new blob, as `BlobStore.put` does: first to the disk of the cache, then to the bucket.

        O(bytes), with a few pieces in memory.
        """
        name = self._make_blob_name(ending)
        what = f"write the file {name} of {self.where}"
        path, sink = self.cache.write_temporary_file(what, content)
        with undo_on_failure(self.cache.delete_temporary_file, path):
            blob = Blob(name, sink.size, sink.state.digest())
            with self.cache.site.translate_disk_errors(what):
                self._bucket.upload(f"blobs/{name}", path, blob.length)
        self.cache.commit_temporary_file(path, blob)
        return blob

    def fsync_blob_names(self) -> None:
        """Do nothing, because an object in a bucket becomes durable together with its name."""

    def map_blob(self, blob: Blob, check: bool = True) -> pa.Buffer:
        """Map a blob from the cache. If the blob is not cached, first fetch it to the cache.

        O(bytes), with a few pieces in memory. The digest is always verified.
        """
        found = self.cache.map_blob(blob)
        return found if found is not None else self.fetch(blob)

    def fetch(self, blob: Blob) -> pa.Buffer:
        """Fetch a blob from the bucket even if it is cached. Tools use this to check the bucket."""
        return self.cache.add_blob(blob, self._read_blob_chunks(blob), self.where)

    def list_blobs(self) -> list[BlobEntry]:
        """List all blobs, as `Store.list_blobs` does. O(blobs), with one request for each 1,000 blobs.

        The ages of blobs are computed with the server's clock, and never exceed the true ages. A read-only store uses
        the local clock, because only a write returns the time of the server.
        """
        if self.readonly:
            now = time.time()
        else:
            self._bucket.put_object("probes/clock", b"")
            now = self._bucket.head("probes/clock").written
        found = [(each.key.removeprefix("blobs/"), each) for each in self._bucket.list_objects("blobs")]
        return [
            BlobEntry(name, each.length, max(0.0, now - each.written)) for name, each in found if NAME.fullmatch(name)
        ]

    def find_blob_sizes(self, names: list[str]) -> dict[str, int]:
        """Return the lengths of blobs, as `Store.find_blob_sizes` does.

        Sends one request for each name, many in parallel. For many names, instead lists all blobs of the state, with
        one request for each 1,000 blobs.
        """
        if len(names) > MANY:
            return super().find_blob_sizes(names)
        found = self._bucket.find_object_lengths([_blob_key(name) for name in names])
        return {name: found[_blob_key(name)] for name in names if _blob_key(name) in found}

    def delete(self, name: str) -> None:
        """Delete a blob, as `BlobStore.delete` does. Sends one request."""
        self._check_writable()
        self._bucket.delete(_blob_key(name))

    def delete_many(self, names: Iterable[str]) -> None:
        """Delete blobs, as `Store.delete_many` does. Sends one request for each blob, many in parallel."""
        self._check_writable()
        self._bucket.delete_many([_blob_key(name) for name in names])

    def list_manifests(self, after: int = -1) -> list[int]:
        """List the numbers of all manifests after ``after``, as `Store.list_manifests` does.

        O(manifests), with one request for each 1,000 manifests.
        """
        return [number for number in self._list_numbers("manifests") if number > after]

    def is_published(self, number: int) -> bool:
        """Return whether a manifest has this number. Sends one request."""
        try:
            self._bucket.head(_number_key("manifests", number))
        except FileNotFoundError:
            return False
        return True

    def read_manifest(self, number: int) -> bytes:
        """Read a manifest, as `Store.read_manifest` does."""
        key = _number_key("manifests", number)
        try:
            length, pieces = self._bucket.open_object(key)
            if length > MANIFEST:
                raise CorruptState(
                    f"the file {key} of {self.where}",
                    f"it has {length:,} bytes, but no manifest has more than {MANIFEST:,}",
                    "ddflow did not write it; restore it from a backup",
                )
            return b"".join(pieces)
        except FileNotFoundError:
            raise missing_file_error(key, self.where) from None

    def publish(self, number: int, data: bytes) -> bool:
        """Publish a manifest by a conditional put.

        If the answer to the put is not success, the method reads the object and compares it with ``data``.
        """
        self._check_writable()
        try:
            return self._bucket.put_if_absent(_number_key("manifests", number), data)
        except OutcomeUnknown:
            self._broken = f"it is unknown whether manifest {number} was published"
            raise

    def delete_manifest(self, number: int) -> None:
        """Delete a manifest, as `Store.delete_manifest` does."""
        self._check_writable()
        self._bucket.delete(_number_key("manifests", number))

    def mark_published(self, number: int) -> None:
        """Mark a number, as `Store.mark_published` does. Delete the smaller marks that this writer knows."""
        self._check_writable()
        self._bucket.put_object(_number_key("marks", number), b"")
        for smaller in [each for each in self._marks if each < number]:
            with suppress(StorageFailed):
                self._bucket.delete(_number_key("marks", smaller))
                self._marks.discard(smaller)
        self._marks.add(number)

    def find_last_published(self) -> int:
        """Return the greatest marked number, as `Store.find_last_published` does. O(marks)."""
        self._marks = set(self._list_numbers("marks"))
        return max(self._marks, default=-1)

    def open_scratch_store(self) -> ScratchStore:
        """Open a scratch store below the cache, as `Store.open_scratch_store` does.

        Also raises `StorageFull`, `StorageFailed`.
        """
        self._check_writable()
        with self.cache.site.translate_disk_errors("create a folder to spill to"):
            spill = os.path.join(self.cache.path, "spill")
            os.makedirs(spill, mode=0o700, exist_ok=True)
            remove_stale_folders(spill)
            return ScratchStore.create_below(spill)

    def _check_prefix(self, create: bool) -> None:
        """Check that the prefix has a state, or is empty if ``create`` is True. Raises `StateRefused`."""
        try:
            if self.list_manifests() or self.find_last_published() >= 0:
                return
            first = self._bucket.list_objects(all=False)
        except FileNotFoundError as error:
            raise self._bucket.build_refusal(str(error), "create the bucket, or use another bucket") from None
        if not create:
            raise self._bucket.build_refusal(
                "there is no state", "use the address of a state, or create the state first"
            )
        for each in first:
            if not _OURS.fullmatch(each.key):
                raise self._bucket.build_refusal(f"it has no state and is not empty ({each.key!r})", "use a new prefix")

    def _read_blob_chunks(self, blob: Blob) -> Iterator[bytes]:
        """Check the length of a blob, then yield its pieces. Each piece is requested when it is needed."""
        try:
            length, pieces = self._bucket.open_object(_blob_key(blob.name))
            if length != blob.length:
                raise CorruptState(
                    f"the file {blob.name} of {self.where}",
                    f"it has {length:,} bytes, but the manifest says {blob.length:,}",
                    RESTORE,
                )
            yield from pieces
        except FileNotFoundError:
            raise missing_file_error(blob.name, self.where) from None

    def _list_numbers(self, folder: str) -> list[int]:
        return parse_manifest_numbers(
            folder, (each.key.removeprefix(f"{folder}/") for each in self._bucket.list_objects(folder)), self.where
        )


def _number_key(folder: str, number: int) -> str:
    if not 0 <= number < 10**16:
        raise ValueError(f"{number} is not the number of a manifest")
    return f"{folder}/{number:016d}"


def _blob_key(name: str) -> str:
    return f"blobs/{check_blob_name(name)}"
