"""Define what a store is: immutable blobs by name, and numbered manifests.

A blob never changes after `put`, and at most one writer publishes a manifest under a number. So a reader of a manifest
sees exactly one version, and of two concurrent writers only one succeeds. A store may fail after it lost the answer, so
each failure says whether the write did not happen (`StorageFull`, `StorageFailed`) or may have happened
(`OutcomeUnknown`, raised by `Store.publish` only). The store makes all names from its nonce and a number, never from
user input.

Limits: a store does not know the contents of blobs and manifests. It does not collect unnamed blobs.

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
"""The greatest number of a manifest: it and its successor have sixteen digits."""

MANIFEST: Final = 1 << 28
"""The maximum size of a manifest, in bytes."""

RESTORE: Final = ErrorText(
    "restore it from a copy, go back with ", CommandFix("rollback"), ", or replay the log into a new state"
)
"""The remedy for a damaged file of a state."""

DIGITS: Final = 16
"""The number of digits in the name of a manifest or a mark."""


class Blob(NamedTuple):
    """A blob as a manifest names it: its name, its length in bytes and the xxh3-128 ``digest`` of its bytes.

    In JSON a blob is a list of three values, with the digest in base64.
    """

    name: FileName
    length: Natural
    digest: Annotated[bytes, Meta(min_length=16, max_length=16)]


class BlobEntry(NamedTuple):
    """A blob as its store lists it.  ``age``: the seconds since it was written."""

    name: str
    length: int
    age: float


Write = Callable[[Any], None]
"""A function that writes a blob's bytes to a sink with ``write(buffer) -> int``, ``tell()`` and ``flush()``."""


class BlobStore(ABC):
    """A place for blobs, lasting or scratch.

    ``where``: the place, for messages.  ``nonce``: 16 hex digits, unique to this writer.  ``remedy``: the advice for a
    damaged blob.

    Every method raises `StorageFailed` if the place cannot be read or written, unless it says otherwise.
    """

    remedy: ClassVar[str] = RESTORE
    prefix: ClassVar[str] = ""

    def __init__(self, where: str, first: int = 0) -> None:
        self.where, self.nonce, self._numbers = where, os.urandom(8).hex(), itertools.count(first)

    @abstractmethod
    def put(self, ending: str, write: Write) -> Blob:
        """Write a new blob and hash its bytes on the way.

        ``ending``: "arrow" or "json".  ``write``: writes the bytes.  Raises `StorageFull` and the errors of ``write``;
        no file is left then.
        """

    @abstractmethod
    def map_blob(self, blob: Blob, check: bool = True) -> pa.Buffer:
        """Map or load the bytes of a blob, after a comparison of its length and digest.  O(bytes).

        ``check``: False if the caller compares the digest; the store may still do so.  Raises `CorruptState`, naming
        the blob, if it is missing or has other bytes.
        """

    @abstractmethod
    def delete(self, name: str) -> None:
        """Delete a blob; a missing one counts as deleted.

        A process that has mapped the blob keeps its bytes.
        """

    @abstractmethod
    def close(self) -> None:
        """Release all resources; `put` fails afterwards, and mapped bytes stay valid.

        A second call is harmless.
        """

    @abstractmethod
    def _check_writable(self) -> None:
        """Raise an error if this store may not change its contents any more."""

    def _make_blob_name(self, ending: str) -> str:
        """Return a name that no blob has or ever had."""
        self._check_writable()
        return f"{self.prefix}{self.nonce}-{next(self._numbers)}.{ending}"


class Store(BlobStore):
    """A store of lasting blobs and of the manifests that name them, for one thread at a time.

    The bytes of a blob are durable when `put` returns, and its name when `fsync_blob_names` returns.  ``readonly``:
    whether the store refuses all changes.
    """

    readonly = False
    _closed, _broken = False, ""

    @abstractmethod
    def fsync_blob_names(self) -> None:
        """Make the names of all earlier blobs durable."""

    def pin_blobs(self, names: Iterable[str]) -> None:
        """Hold blobs that will be mapped, if the store can; then a deletion meanwhile does no harm.  O(blobs).

        Reads no bytes and never fails: `map_blob` raises the error for a blob that is missing.
        """

    @abstractmethod
    def list_blobs(self) -> list[BlobEntry]:
        """List all blobs: the files with names like `NAME`.  O(blobs).

        Files with other names do not belong to ddflow and are left out.
        """

    def find_blob_sizes(self, names: list[str]) -> dict[str, int]:
        """Return the lengths in bytes of the blobs that exist, by name.  O(names), or O(blobs) if that is cheaper."""
        there = {entry.name: entry.length for entry in self.list_blobs()}
        return {name: there[name] for name in names if name in there}

    def delete_many(self, names: Iterable[str]) -> None:
        """Delete blobs from any thread, many at a time if that is faster.  O(names)."""
        for name in names:
            self.delete(name)

    @abstractmethod
    def list_manifests(self) -> list[int]:
        """List the numbers of all manifests, ascending."""

    def is_published(self, number: int) -> bool:
        """Return whether a manifest has this number."""
        return number in self.list_manifests()

    @abstractmethod
    def read_manifest(self, number: int) -> bytes:
        """Read the bytes of a manifest, at most `MANIFEST`.  Raises `CorruptState` if it is missing or larger."""

    @abstractmethod
    def publish(self, number: int, data: bytes) -> bool:
        """Publish a manifest if its number is free, and return whether it was; True means that it is durable.

        ``data`` contains this writer's nonce. So a store that lost the answer to its own put can read the manifest back
        and compare.

        Raises `StorageFull` or `StorageFailed` if it did not happen, `OutcomeUnknown` if it may have happened.
        """

    @abstractmethod
    def delete_manifest(self, number: int) -> None:
        """Delete a manifest; a missing one counts as deleted."""

    @abstractmethod
    def mark_published(self, number: int) -> None:
        """Mark a number as published; the store may delete marks of smaller numbers.

        A mark need not be durable. If its manifest is missing, the newest manifest was lost.
        """

    @abstractmethod
    def find_last_published(self) -> int:
        """Return the greatest marked number, -1 for none."""

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
    """Return the same bytes if they match the blob's length and digest.  O(bytes).

    Raises `CorruptState`, naming the blob, if they do not.
    """
    size = len(whole) if isinstance(whole, bytes) else whole.size
    found = xxhash.xxh3_128(whole).digest()
    if size != blob.length or found != blob.digest:
        raise CorruptState(
            f"the file {blob.name} of {where}",
            f"it has {size:,} bytes with checksum {found.hex()}, and {blob.length:,} with {blob.digest.hex()} were "
            "written",
            f"it was changed or cut; {remedy}",
        )
    return whole


def check_length(whole: pa.Buffer, blob: Blob, where: str) -> pa.Buffer:
    """Return the same bytes if their length is right, without a look at their digest.  O(1).  Raises `CorruptState`."""
    return whole if whole.size == blob.length else verify_bytes(whole, blob, where)


def check_blob_name(name: str) -> str:
    """Return the name of a blob unchanged.  Raises `ValueError` for any other text, which might be a path."""
    if not NAME.fullmatch(name):
        raise ValueError(f"{name!r} is no name of a blob")
    return name


def missing_file_error(name: str, where: str) -> CorruptState:
    """Build the error for a missing file that a manifest names."""
    return CorruptState(
        f"the file {name} of {where}",
        "it is missing, and the manifest names it",
        RESTORE,
    )


def parse_manifest_numbers(folder: str, names: Iterable[str], where: str) -> list[int]:
    """Parse the names of manifests or marks, and return their numbers, ascending; other names are left out.  O(names).

    Raises `CorruptState` for a number that no manifest can have.
    """
    found = [int(name) for name in names if len(name) == DIGITS and name.isascii() and name.isdigit()]
    found.sort()
    if found and found[-1] > GREATEST:
        raise CorruptState(
            f"{folder}/{found[-1]} of {where}",
            f"no version has that number: {GREATEST} is the greatest, and ddflow counts from 0",
            "it was not written by ddflow: remove it",
        )
    return found
