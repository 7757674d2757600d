"""A version of a state, named so that whoever opens it elsewhere knows whether it is the one that is meant.

Invariant: what `Version.opened` gives is the state that the version was taken of, and still has it; never another one
under the same address. A task may run on a host where another folder, or none, is mounted under the name, or long
after; so a manifest is named by its number and by the digest of its bytes. Where that number is gone and greater ones
are there it is `SnapshotExpired`: the version is old, or the state another. It reads no rows.

>>> import ddflow as dd, pyarrow as pa
>>> from ddflow.storage.manifest import newest
>>> from ddflow.storage.memory import MemoryStore
>>> flow, store = dd.Flow(), MemoryStore()
>>> _ = flow.output("people", flow.upserts("people", {"id": pa.int64()}, dd.Upsert(key="id")))
>>> flow.open(store).close()
>>> version = Version.of(store, newest(store), "owner")
>>> version.number, version.digest == digest(store.manifest(0))
(0, True)
>>> version._replace(store=store, digest="another").opened("read")
Traceback (most recent call last):
    ...
ddflow.errors.StateRefused: read ... the driver's manifest 0 has digest another, the one there has ...; mount ...
"""

import os
from typing import NamedTuple, Self

from ddflow.errors import CorruptState, Option, Phrase, SnapshotExpired, StateRefused
from ddflow.storage.closing import on_failure
from ddflow.storage.manifest import Manifest
from ddflow.storage.manifest_log import digest
from ddflow.storage.memory import MemoryStore
from ddflow.storage.opening import open_store
from ddflow.storage.protocol import Store

REMEDY = "mount the same folder on the driver and on all executors, or keep the state in s3://bucket/prefix"


class Version(NamedTuple):
    """``store``: the state's address, or the store, where it is in memory.  ``trust``: as in `Flow.open`.  ``number``,
    ``digest``: of its manifest."""

    store: str | MemoryStore
    trust: str
    number: int
    digest: str

    @classmethod
    def of(cls, store: Store, manifest: Manifest, trust: str) -> Self:
        """Build the version of a manifest of a store.  O(bytes of the manifest)."""
        return cls(store.where, trust, manifest.number, digest(store.manifest(manifest.number)))

    def opened(self, what: str, readonly: bool = True) -> Store:
        """Open the store, for the caller to close.  ``what``: the purpose, for messages.  O(bytes of the manifest).

        Raises `StateRefused`, naming this host, if another state, or none, is seen from here; `SnapshotExpired` if
        the version is not kept any more.
        """
        store: Store
        if isinstance(self.store, MemoryStore):
            store = self.store.writer()
        else:
            try:
                store = open_store(self.store, trust=self.trust, create=False, readonly=readonly)
            except StateRefused as error:
                raise StateRefused(self._describe_request(what), error.found, REMEDY) from None
        with on_failure(store.close):
            self._compare(store, what)
        return store

    def manifest(self, store: Store) -> Manifest:
        """Load the manifest from the store that `opened` gave.  Raises `SnapshotExpired` if it was swept away since."""
        try:
            return Manifest.decode(store.manifest(self.number), self.number, store.where)
        except CorruptState:
            if self.number in store.numbers():
                raise
            raise gone(store, self.number) from None

    def _compare(self, store: Store, what: str) -> None:
        try:
            found = digest(store.manifest(self.number))
        except CorruptState:
            if store.numbers()[-1:] > [self.number]:
                raise gone(store, self.number) from None
            raise StateRefused(
                self._describe_request(what), f"its manifest {self.number} is not there", REMEDY
            ) from None
        if found != self.digest:
            raise StateRefused(
                self._describe_request(what),
                f"the driver's manifest {self.number} has digest {self.digest}, the one there has {found}",
                REMEDY,
            )

    def _describe_request(self, what: str) -> str:
        address = self.store.where if isinstance(self.store, MemoryStore) else self.store
        return f"{what} the state {address} on {os.uname().nodename}"


def gone(store: Store, number: int) -> SnapshotExpired:
    """Build the error for a manifest that was swept away after a look at it."""
    return SnapshotExpired(
        f"manifest {number} of {store.where}",
        "it was replaced, and swept away while it was read",
        Phrase("read again, or keep versions longer with ", Option("grace")),
    )
