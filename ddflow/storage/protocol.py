"""Define the interface of a store. A store holds immutable blobs, which have names, and manifests, which have numbers.

A blob never changes after `put`, and at most one writer publishes a manifest under a number. So a reader of a manifest
sees exactly one version, and only one of two concurrent writers succeeds. A write may succeed although its answer is
lost. So each error says whether the write did not happen (`StorageFull`, `StorageFailed`) or may have happened
(`OutcomeUnknown`, raised only by `Store.publish`). The names of blobs are made from the nonce of the store and a
number, never from user input.

Limits: a store does not know the contents of blobs and manifests. A store does not delete unused blobs by itself. The
caller must delete the blobs that no manifest names.

>>> Blob("00ff00ff00ff00ff-1.arrow", 4, bytes(16)).length
4
"""

import itertools
import os
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from typing import Annotated, Any, ClassVar, Final, NamedTuple, TypeVar

import pyarrow as pa
import xxhash
from msgspec import Meta

from ddflow.errors import CommandFix, CorruptState, EngineClosed, ErrorText, StateRefused, StorageFailed
from ddflow.storage.fields import FILE, FileName, Natural

NAME: Final = re.compile(FILE)
"""The pattern of a blob's name."""

GREATEST: Final = 10**16 - 2
"""The greatest number of a manifest. This number and its successor have sixteen digits."""

MANIFEST: Final = 1 << 28
"""The maximum size of a manifest, in bytes."""

RESTORE: Final = ErrorText(
    "restore it from a backup, go back with ", CommandFix("rollback"), ", or replay the log into a new state"
)
"""The remedy for a damaged file of a state."""

DIGITS: Final = 16
"""The number of digits in the name of a manifest or a mark."""


class Blob(NamedTuple):
    """A reference to a blob in a manifest: the name, the length in bytes and the xxh3-128 ``digest`` of the bytes.

    In JSON a blob is a list of three values, with the digest in base64.
    """

    name: FileName
    length: Natural
    digest: Annotated[bytes, Meta(min_length=16, max_length=16)]


class BlobEntry(NamedTuple):
    """A blob in a listing of its store. ``age``: the seconds since the blob was written."""

    name: str
    length: int
    age: float


Content = Callable[[Any], None] | bytes | pa.Buffer
"""The bytes of a blob, or a function that writes them to a sink.

A sink has ``write(buffer) -> int``, ``tell()`` and ``flush()``.
"""


class BlobStore(ABC):
    """A store of blobs, which are lasting or scratch.

    ``where``: the place, for messages. ``nonce``: 16 hex digits, unique to this writer. ``remedy``: the advice for a
    damaged blob.

    Every method raises `StorageFailed` if the storage cannot be read or written, unless the docstring of the method
    says otherwise.
    """

    remedy: ClassVar[str] = RESTORE
    prefix: ClassVar[str] = ""

    def __init__(self, where: str, first: int = 0) -> None:
        self.where, self.nonce, self._numbers = where, os.urandom(8).hex(), itertools.count(first)

    @abstractmethod
    def put(self, ending: str, content: Content) -> Blob:
        """Write a new blob. The bytes are hashed while they are written.

        ``ending``: "arrow" or "json". Raises `StorageFull` and the errors of ``content``. After an error no file is
        left.
        """

    @abstractmethod
    def map_blob(self, blob: Blob, check: bool = True) -> pa.Buffer:
        """Map or load the bytes of a blob, and verify their length and digest. O(bytes).

        ``check``: False if the caller compares the digest; the store may still compare it. Raises `CorruptState` with
        the name of the blob if it is missing or has other bytes.
        """

    @abstractmethod
    def delete(self, name: str) -> None:
        """Delete a blob, or do nothing if it is missing. A process that has mapped the blob can still read it."""

    @abstractmethod
    def close(self) -> None:
        """Release all resources. Later calls of `put` fail, and mapped bytes stay valid.

        A second call is harmless.
        """

    @abstractmethod
    def _check_writable(self) -> None:
        """Raise an error if this store may no longer change its contents."""

    def _make_blob_name(self, ending: str) -> str:
        """Return a name that no blob has or ever had."""
        self._check_writable()
        return f"{self.prefix}{self.nonce}-{next(self._numbers)}.{ending}"


class Store(BlobStore):
    """A store of lasting blobs, and of the manifests that name these blobs.

    Only one thread at a time may use the store. The bytes of a blob are durable when `put` returns, and its name is
    durable when `fsync_blob_names` returns. ``readonly``: whether the store refuses all changes.
    """

    readonly = False
    _closed, _broken = False, ""

    @abstractmethod
    def fsync_blob_names(self) -> None:
        """Make the names of all existing blobs durable."""

    def pin_blobs(self, names: Iterable[str]) -> None:
        """Let a later `map_blob` read these blobs even after their deletion, if the store supports this.

        O(blobs).

        The method reads no bytes and never fails. For a missing blob, `map_blob` raises the error later.
        """

    @abstractmethod
    def list_blobs(self) -> list[BlobEntry]:
        """List all blobs: the files with names that match `NAME`. O(blobs).

        Files with other names do not belong to ddflow and are skipped.
        """

    def find_blob_sizes(self, names: list[str]) -> dict[str, int]:
        """Return the length in bytes of each blob that exists, by name. O(names), or O(blobs) if that is cheaper."""
        there = {entry.name: entry.length for entry in self.list_blobs()}
        return {name: there[name] for name in names if name in there}

    def delete_many(self, names: Iterable[str]) -> None:
        """Delete blobs, many at a time if that is faster. May be called from any thread. O(names)."""
        for name in names:
            self.delete(name)

    @abstractmethod
    def list_manifests(self, after: int = -1) -> list[int]:
        """List the numbers of all manifests after the number ``after``, ascending."""

    def is_published(self, number: int) -> bool:
        """Return whether a manifest has this number."""
        return number in self.list_manifests()

    @abstractmethod
    def read_manifest(self, number: int) -> bytes:
        """Read the bytes of a manifest. Raises `CorruptState` if they are missing or more than `MANIFEST` bytes."""

    @abstractmethod
    def publish(self, number: int, data: bytes) -> bool:
        """Publish a manifest if its number is free, and return whether the number was free.

        If the result is True, the manifest is durable.

        ``data`` contains this writer's nonce. If the answer to a put is lost, the store can therefore read the manifest
        and compare it with ``data``.

        Raises `StorageFull` or `StorageFailed` if the manifest was not published, `OutcomeUnknown` if it may have been
        published.
        """

    @abstractmethod
    def delete_manifest(self, number: int) -> None:
        """Delete a manifest, or do nothing if it is missing."""

    @abstractmethod
    def mark_published(self, number: int) -> None:
        """Mark a number as published. The store may delete the marks of smaller numbers.

        A mark need not be durable. If the manifest with the greatest marked number is missing, the newest manifest was
        lost.
        """

    @abstractmethod
    def find_last_published(self) -> int:
        """Return the greatest marked number, or -1 if no number is marked."""

    @abstractmethod
    def open_scratch_store(self) -> BlobStore:
        """Open a new scratch store in a private local folder, which is removed when the store closes.

        Raises `SpillFull`, `SpillFailed`.
        """

    def close(self) -> None:
        """Close the store, as `BlobStore.close` does."""
        self._closed = True

    def _check_writable(self) -> None:
        asked = f"write to the state {self.where}"
        if self.readonly:
            raise StateRefused(asked, "it was opened for reading", "open it without readonly=True")
        if self._closed:
            raise EngineClosed(asked, "it was closed", "open it again")
        if self._broken:
            raise StorageFailed(asked, self._broken, "open the state again")


Bytes = TypeVar("Bytes", pa.Buffer, bytes)


def verify_bytes(whole: Bytes, blob: Blob, where: str, remedy: str = RESTORE) -> Bytes:
    """Check that bytes have the length and the digest of a blob, and return them. O(bytes).

    Raises `CorruptState`, with the name of the blob, if the bytes do not match.
    """
    size = len(whole) if isinstance(whole, bytes) else whole.size
    found = xxhash.xxh3_128(whole).digest()
    if size != blob.length or found != blob.digest:
        raise CorruptState(
            f"the file {blob.name} of {where}",
            f"it has {size:,} bytes with checksum {found.hex()}, but {blob.length:,} with {blob.digest.hex()} were "
            "written",
            f"it was changed or truncated; {remedy}",
        )
    return whole


def check_length(whole: pa.Buffer, blob: Blob, where: str) -> pa.Buffer:
    """Check that bytes have the length of a blob, and return them. The digest is not checked. O(1).

    Raises `CorruptState`.
    """
    return whole if whole.size == blob.length else verify_bytes(whole, blob, where)


def check_blob_name(name: str) -> str:
    """Check that a text is the name of a blob, and return it.

    Raises `ValueError` for a text that is not such a name, because the text might be a path.
    """
    if not NAME.fullmatch(name):
        raise ValueError(f"{name!r} is not the name of a blob")
    return name


def missing_file_error(name: str, where: str) -> CorruptState:
    """Build the error for a missing file that a manifest names."""
    return CorruptState(
        f"the file {name} of {where}",
        "it is missing, but the manifest names it",
        RESTORE,
    )


def parse_manifest_numbers(folder: str, names: Iterable[str], where: str) -> list[int]:
    """Parse the names of manifests or marks, and return their numbers, ascending. Other names are skipped. O(names).

    Raises `CorruptState` for a number that no manifest can have.
    """
    found = [int(name) for name in names if len(name) == DIGITS and name.isascii() and name.isdigit()]
    found.sort()
    if found and found[-1] > GREATEST:
        raise CorruptState(
            f"{folder}/{found[-1]} of {where}",
            f"no version can have that number: ddflow counts from 0, and stops at {GREATEST}",
            "ddflow did not write it: remove it",
        )
    return found
