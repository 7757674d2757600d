"""A store in an object store: S3, or what speaks like it.

Invariant: a number is published by one writer at most, and a blob that `S3Store.map` gives is the one that was put.
Requests over a network end in doubt (``bucket`` tells how that is resolved), and bytes over a network cannot be mapped;
so blobs pass through a cache on the local disk, are verified there every time, and what was put here is mapped from
what was written here. Blobs have names of their own, so a put of one may be repeated; one that failed may still turn
up, as garbage. Keys under the prefix: ``blobs/<name>``, ``manifests/<16 digits>``, ``marks/<16 digits>``, and two
objects in ``probes/``. Uploads in pieces that were broken off are not listed: let the bucket's rules remove those.

>>> S3Store("s3://KEY:SECRET@bucket/orders")
Traceback (most recent call last):
    ...
ddflow.errors.StateRefused: open the state s3://...@bucket/orders: it is not of the form s3://bucket/prefix; ...
"""

import builtins
import contextlib
import os
import re
import time
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

import pyarrow as pa

from ddflow.errors import CorruptState, OutcomeUnknown, StorageFailed
from ddflow.storage.cache import Cache
from ddflow.storage.closing import on_failure
from ddflow.storage.object_store import Bucket
from ddflow.storage.protocol import MANIFEST, NAME, RESTORE, Blob, Entry, Store, Write, lost, numbered
from ddflow.storage.scratch import ScratchStore, sweep

MANY: Final = 2_000
"""Number of blobs above which sizes come from a list of all."""

_OURS = re.compile(r"(?:blobs|manifests|marks|probes)/.*")


class S3Store(Store):
    """``url``: s3://bucket/prefix.  ``cache``: a `Cache`, or its folder; None: the user's own.

    ``options``: what ``obstore.store.S3Store`` is configured with, beside what it takes from the environment
    (``AWS_ACCESS_KEY_ID``, ``AWS_ENDPOINT_URL``, ...); also its ``retry_config`` and ``client_options``.  Plain http is
    used only when the endpoint says so.  ``create=False``: there must be a state.  ``readonly``: nothing is written.

    O(manifests + marks); a handful of requests.  Raises `MissingExtra` without obstore; `StateRefused` when there is no
    such bucket or state, when something else has the prefix, or when two conditional puts of one key both succeed.
    """

    def __init__(
        self,
        url: str,
        *,
        cache: Cache | str | os.PathLike[str] | None = None,
        readonly: bool = False,
        create: bool = True,
        options: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(url)
        self.readonly = readonly
        self._bucket = Bucket(url, options)
        self._marks = set[int]()
        self._look(create and not readonly)
        if not readonly:
            self._bucket.prove("probes/put-if-absent")
        self.cache = cache if isinstance(cache, Cache) else Cache(cache)

    def put(self, ending: str, write: Write) -> Blob:
        """Write a blob to the cache's disk, then upload it, as `Store.put`.  O(bytes); memory for a few pieces."""
        name = self._new_name(ending)
        what = f"write the file {name} of {self.where}"
        path, sink = self.cache.written(what, write)
        with on_failure(self.cache.drop, path):
            blob = Blob(name, sink.size, sink.state.digest())
            with self.cache.site.guarded(what):
                self._bucket.upload(f"blobs/{name}", path, blob.length)
        self.cache.keep(path, blob)
        return blob

    def sync(self) -> None:
        """Do nothing: a name is as durable as its bytes."""

    def map(self, blob: Blob, check: bool = True) -> pa.Buffer:
        """Map a blob from the cache, or fetch it to the cache; always compares the digest.  O(bytes); memory for a few
        pieces."""
        found = self.cache.map(blob)
        return found if found is not None else self.fetch(blob)

    def fetch(self, blob: Blob) -> pa.Buffer:
        """Fetch a blob from the bucket even if the cache has it, for checks of the bucket."""
        return self.cache.fill(blob, self._pieces(blob), self.where)

    def list(self) -> builtins.list[Entry]:
        """List all blobs, as `Store.list`; O(blobs), a request for each 1,000.

        Ages are at most the true ones, by the server's clock; a reader, which may not write, uses its own clock.
        """
        if self.readonly:
            now = time.time()
        else:
            self._bucket.put("probes/clock", b"")
            now = self._bucket.look("probes/clock").written
        found = [(each.key.removeprefix("blobs/"), each) for each in self._bucket.list("blobs")]
        return [Entry(name, each.length, max(0.0, now - each.written)) for name, each in found if NAME.fullmatch(name)]

    def sizes(self, names: builtins.list[str]) -> dict[str, int]:
        """Return lengths as `Store.sizes` does; a request for each name, many at a time, or for each 1,000 blobs."""
        if len(names) > MANY:
            return super().sizes(names)
        found = self._bucket.lengths([_blob(name) for name in names])
        return {name: found[_blob(name)] for name in names if _blob(name) in found}

    def delete(self, name: str) -> None:
        """Delete a blob, as `Store.delete`; one request."""
        self._must_write()
        self._bucket.delete(_blob(name))

    def discard(self, names: Iterable[str]) -> None:
        """Delete blobs, as `Store.discard`; a request for each, many at a time."""
        self._must_write()
        self._bucket.drop([_blob(name) for name in names])

    def numbers(self) -> builtins.list[int]:
        """List numbers as `Store.numbers` does; O(manifests), a request for each 1,000."""
        return self._list_numbers("manifests")

    def published(self, number: int) -> bool:
        """Return whether a manifest has this number; one request."""
        try:
            self._bucket.look(_key("manifests", number))
        except FileNotFoundError:
            return False
        return True

    def manifest(self, number: int) -> bytes:
        """Read a manifest, as `Store.manifest` does."""
        key = _key("manifests", number)
        try:
            length, pieces = self._bucket.open(key)
            if length > MANIFEST:
                raise CorruptState(
                    f"the file {key} of {self.where}",
                    f"it has {length:,} bytes, and none has more than {MANIFEST:,}",
                    "it was not written by ddflow; restore it from a copy",
                )
            return b"".join(pieces)
        except FileNotFoundError:
            raise lost(key, self.where) from None

    def publish(self, number: int, data: bytes) -> bool:
        """Publish a manifest by a conditional put; compares the object there after any answer but a plain yes."""
        self._must_write()
        try:
            return self._bucket.create(_key("manifests", number), data)
        except OutcomeUnknown:
            self._broken = f"it is unknown whether manifest {number} was published"
            raise

    def expire(self, number: int) -> None:
        """Delete a manifest, as `Store.expire` does."""
        self._must_write()
        self._bucket.delete(_key("manifests", number))

    def mark(self, number: int) -> None:
        """Mark a number, as `Store.mark` does; removes smaller marks that this writer knows of."""
        self._must_write()
        self._bucket.put(_key("marks", number), b"")
        for smaller in [each for each in self._marks if each < number]:
            with contextlib.suppress(StorageFailed):
                self._bucket.delete(_key("marks", smaller))
                self._marks.discard(smaller)
        self._marks.add(number)

    def marked(self) -> int:
        """Return the greatest number marked, as `Store.marked` does; O(marks)."""
        self._marks = set(self._list_numbers("marks"))
        return max(self._marks, default=-1)

    def scratch(self) -> ScratchStore:
        """Open a scratch store below the cache, as `Store.scratch` does.  Raises `StorageFull`, `StorageFailed` too."""
        self._must_write()
        with self.cache.site.guarded("make a folder to spill to"):
            spill = os.path.join(self.cache.path, "spill")
            os.makedirs(spill, mode=0o700, exist_ok=True)
            sweep(spill)
            return ScratchStore.within(spill)

    def _look(self, create: bool) -> None:
        """Raise `StateRefused` unless the prefix has a state, or, to create one, is empty."""
        try:
            if self.numbers() or self.marked() >= 0:
                return
            first = self._bucket.list(all=False)
        except FileNotFoundError as error:
            raise self._bucket.refused(str(error), "make the bucket, or give another") from None
        if not create:
            raise self._bucket.refused("there is no state", "give the place of one, or open it to be written first")
        for each in first:
            if not _OURS.fullmatch(each.key):
                raise self._bucket.refused(f"it has no state and is not empty ({each.key!r})", "give a new prefix")

    def _pieces(self, blob: Blob) -> Iterator[bytes]:
        """Yield the pieces of a blob whose length is right, each requested when it is needed."""
        try:
            length, pieces = self._bucket.open(_blob(blob.name))
            if length != blob.length:
                raise CorruptState(
                    f"the file {blob.name} of {self.where}",
                    f"it has {length:,} bytes, the manifest says {blob.length:,}",
                    RESTORE,
                )
            yield from pieces
        except FileNotFoundError:
            raise lost(blob.name, self.where) from None

    def _list_numbers(self, folder: str) -> builtins.list[int]:
        return numbered(folder, (each.key.removeprefix(f"{folder}/") for each in self._bucket.list(folder)), self.where)


def _key(folder: str, number: int) -> str:
    if not 0 <= number < 10**16:
        raise ValueError(f"{number} is no number of a manifest")
    return f"{folder}/{number:016d}"


def _blob(name: str) -> str:
    if not NAME.fullmatch(name):
        raise ValueError(f"{name!r} is no name of a blob")
    return f"blobs/{name}"
