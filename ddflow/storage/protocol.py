"""Where state lives: immutable blobs by name, and numbered manifests of which each number is published once.

Invariant: a blob is never changed once it was put, and a manifest's number is given to at most one writer; so a reader
that has a manifest sees one version exactly, and of two writers one wins. A store may fail with the answer lost, so
every failure says whether the thing *did not happen* (`StorageFull`, `StorageFailed`) or *may have happened*
(`OutcomeUnknown`, only from `Store.publish`). Names are made by the store, of this writer's nonce and a number:
nothing a user wrote becomes a name. A store knows neither what blobs hold nor what manifests say; what no manifest
names is garbage, whose collection is another's.

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
"""The greatest number of a manifest: sixteen digits, and there is a number to follow it."""

MANIFEST: Final = 1 << 28
"""Bytes that a manifest may have at most."""

RESTORE: Final = ErrorText(
    "restore it from a copy, go back with ", CommandFix("rollback"), ", or replay the log into a new state"
)
"""The fix for a damaged file of a state."""

DIGITS: Final = 16
"""Digits in the name of a manifest, or of a mark."""


class Blob(NamedTuple):
    """A blob as a manifest names it: ``name``, ``length`` in bytes, ``digest``: xxh3-128 of them.

    In JSON these are three values in a list, the digest in base64.
    """

    name: FileName
    length: Natural
    digest: Annotated[bytes, Meta(min_length=16, max_length=16)]


class BlobEntry(NamedTuple):
    """A blob as its store lists it.  ``age``: seconds since it was written."""

    name: str
    length: int
    age: float


Write = Callable[[Any], None]
"""Writes a blob's bytes to the sink it is given, which has ``write(buffer) -> int``, ``tell()``, ``flush()``."""


class BlobStore(ABC):
    """Where blobs are, whether they last or are scratch.  ``where``: for messages.  ``nonce``: 16 hex digits, this
    writer's own.  ``remedy``: what to do about a blob that is damaged.

    Every method raises `StorageFailed` when the place cannot be read or written, unless it says otherwise.
    """

    remedy: ClassVar[str] = RESTORE
    prefix: ClassVar[str] = ""

    def __init__(self, where: str, first: int = 0) -> None:
        self.where, self.nonce, self._numbers = where, os.urandom(8).hex(), itertools.count(first)

    @abstractmethod
    def put(self, ending: str, write: Write) -> Blob:
        """Write a new blob with the bytes that ``write`` writes, hashed on the way.  ``ending``: "arrow" or "json".

        Raises `StorageFull`, and whatever ``write`` raises; nothing is left then.
        """

    @abstractmethod
    def map_blob(self, blob: Blob, check: bool = True) -> pa.Buffer:
        """Map the bytes of a blob, or load them; compares length and digest first.

        ``check``: without, the digest need not be, and the caller does it.  O(bytes).  Raises `CorruptState` if the
        blob is missing or has other bytes, naming it.
        """

    @abstractmethod
    def delete(self, name: str) -> None:
        """Delete a blob; a missing one counts as deleted.  A process that has mapped it keeps its bytes."""

    @abstractmethod
    def close(self) -> None:
        """Release what was opened: nothing can be put any more, mapped bytes stay.  Twice is harmless."""

    @abstractmethod
    def _check_writable(self) -> None:
        """Raise unless this store may still change what is there."""

    def _make_blob_name(self, ending: str) -> str:
        """Return a name that no blob has or had."""
        self._check_writable()
        return f"{self.prefix}{self.nonce}-{next(self._numbers)}.{ending}"


class Store(BlobStore):
    """Blobs that last, and the manifests that name them.  One thread at a time.

    The bytes of a blob are durable when `put` returns, its name is after `fsync_blob_names`.  ``readonly``: it changes
    nothing.
    """

    readonly = False
    _closed, _broken = False, ""

    @abstractmethod
    def fsync_blob_names(self) -> None:
        """Make the names of all blobs durable that were put before."""

    def pin_blobs(self, names: Iterable[str]) -> None:
        """Hold blobs that will be mapped, so that deleting them meanwhile does no harm, if the store can.

        O(blobs); no byte is read.  Never fails: `map` does, for one that is gone.
        """

    @abstractmethod
    def list_blobs(self) -> list[BlobEntry]:
        """List all blobs: files named like `NAME`; other files are not ours and are left out.  O(blobs)."""

    def find_blob_sizes(self, names: list[str]) -> dict[str, int]:
        """Return the lengths in bytes of the blobs that exist, by name.  O(names), or O(blobs) if that is cheaper."""
        there = {entry.name: entry.length for entry in self.list_blobs()}
        return {name: there[name] for name in names if name in there}

    def delete_many(self, names: Iterable[str]) -> None:
        """Delete blobs, many at a time if that is faster, and from any thread.  O(names)."""
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
        """Publish a manifest if its number is free, and return whether it was.  It is durable when this returns True.

        ``data`` holds this writer's nonce, so that a store that lost the answer to its own put can read back and tell.
        Raises `StorageFull`, `StorageFailed`: it did not happen; `OutcomeUnknown`: it may have.
        """

    @abstractmethod
    def delete_manifest(self, number: int) -> None:
        """Delete a manifest; a missing one counts as deleted."""

    @abstractmethod
    def mark_published(self, number: int) -> None:
        """Note that a manifest was published and that its writer knows; marks of smaller numbers may go.

        Need not be durable.  A mark whose manifest is missing tells that the newest manifest was lost.
        """

    @abstractmethod
    def find_last_published(self) -> int:
        """Return the greatest number marked, -1 for none."""

    @abstractmethod
    def open_scratch_store(self) -> BlobStore:
        """Open a new scratch store in a private folder on this machine; closing it removes the folder.

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
    """Return the same bytes.  Raises `CorruptState`, naming the blob, unless they are the bytes that were put.
    O(bytes)."""
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
    """Return the same bytes, before their digest is compared.  O(1).  Raises `CorruptState` for another length."""
    return whole if whole.size == blob.length else verify_bytes(whole, blob, where)


def check_blob_name(name: str) -> str:
    """Return the name of a blob unchanged.  Raises `ValueError` for any other, which might be a path."""
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
    """Parse the names of manifests, or of marks, as ascending numbers; leaves out other names.  O(names).

    Raises `CorruptState` for one that no manifest can have.
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
