"""The manifest log of a state: its manifests, one after the other, and what may be deleted after each.

Invariant: a commit publishes the manifest with the next number or nothing, and whoever is not the one who published the
newest is `Fenced` and never writes again. Every file must be durable before the manifest that names it, and a file may
be deleted only when no manifest that is kept names it: a manifest goes first, then what it alone named. A number whose
manifest is gone is free again, so a writer that slept may find its next number free long after others went on: who
publishes looks whether greater numbers are there, and unless the next one was made from his manifest
(`Manifest.previous`), what he published is void. Manifests are kept for ``grace`` seconds after their successor, so
that readers find the files they are opening: all of the last few, of older ones one a second or so. A manifest log does
not know what partitions hold, but for which files they name.

>>> from ddflow.storage.memory import MemoryStore
>>> store = MemoryStore()
>>> manifest_log = ManifestLog.create(store, {}, "0" * 32, Secret(1, 2))
>>> part = store.put("json", lambda sink: sink.write(b"{}"))
>>> manifest_log.commit(manifest_log.manifest, (part,), set(), note="an example").epoch
0
>>> ManifestLog(store, load_newest_manifest(store), set()).number, manifest_log.number
(1, 1)
"""

import math
import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from threading import Thread
from time import monotonic, time
from typing import Any, Final, NamedTuple, Self

import xxhash
from msgspec.structs import replace

from ddflow.columns.hashing import Secret
from ddflow.errors import CorruptState, DdflowError, Fenced, OutcomeUnknown
from ddflow.storage.backlog import Backlog, BacklogFile
from ddflow.storage.manifest import Epoch, Manifest, load_manifest, load_newest_manifest
from ddflow.storage.protocol import Blob, Store
from ddflow.time import NEVER

__all__ = ["ManifestLog", "load_newest_manifest"]

GRACE: Final = 60.0
"""Seconds for which a manifest, and what it names, outlives its successor."""
LATEST: Final = 64
"""Number of newest manifests that are kept for that long, however fast they follow each other."""


class ReplacedManifest(NamedTuple):
    """A manifest that was replaced: its number, when it was published, and the files that it names, but for those of
    its backlog."""

    number: int
    since: float
    names: set[str]
    backlog: tuple[BacklogFile, ...]


class ManifestLog:
    """``manifest``: the one that this engine's state is.  ``digest``: 32 hex digits of its bytes.  ``names``: of
    all files that it names, but for those of its ``backlog``.

    ``grace``: see the header.
    """

    def __init__(self, store: Store, manifest: Manifest, names: set[str], grace: float = GRACE) -> None:
        self.store, self.manifest, self.names, self.grace = store, manifest, names, grace
        self.digest, self._since = hash_manifest(store.read_manifest(manifest.number)), monotonic()
        self.backlog = Backlog(store)
        self._past: list[ReplacedManifest] = []
        self._sweeping: Thread | None = None

    @classmethod
    def create(
        cls,
        store: Store,
        plan: Mapping[str, Any],
        fingerprint: str,
        secret: Secret,
        folder: str | None = None,
        grace: float = GRACE,
        partitions: int = 1,
    ) -> Self:
        """Create the manifest log of a new state with its manifest 0.  If another process creates it at the same time,
        both get the one that is published.

        ``partitions``: how many.  Raises as `Store.publish` does.
        """
        first = Manifest(
            id=os.urandom(16).hex(),
            number=0,
            epoch=0,
            nonce=store.nonce,
            written=int(time() * 1000),
            secret=(secret.k0, secret.k1),
            plan=dict(plan),
            fingerprint=fingerprint,
            frontier=NEVER,
            last=NEVER,
            since=NEVER,
            inventories=(),
            backlog=(),
            receipts=(),
            folder=folder,
            note="created",
            previous="",
            partitions=partitions,
            horizons={},
            greatest={},
            feed=None,
            fed={},
            past=(),
            sources={},
            sinks={},
            added={},
            dropped={},
            retain=0,
        )
        if store.publish(0, first.encode()):
            store.mark_published(0)
            return cls(store, first, set(), grace)
        found = load_newest_manifest(store)
        assert found is not None, "a manifest was published and is not there"
        return cls(store, found, set(), grace)

    @property
    def number(self) -> int:
        """The number of the manifest."""
        return self.manifest.number

    def check_still_newest(self) -> None:
        """Raise `Fenced` if another writer has committed since.  O(manifests)."""
        if self.store.is_published(self.number + 1):
            raise self._fenced_error()

    def commit(self, manifest: Manifest, inventories: tuple[Blob, ...], names: set[str], note: str) -> Manifest:
        """Publish a manifest as the next one, with a new number, writer and date.  O(files that changed).

        ``names``: of the files that ``inventories`` and the manifest name.  All of them were put before.  Raises
        `Fenced`, and what `Store.fsync_blob_names` and `Store.publish` raise; after `OutcomeUnknown` it may have
        happened.
        """
        names = names | {blob.name for blob in inventories}
        self.store.fsync_blob_names()
        new = replace(
            manifest,
            number=self.number + 1,
            nonce=self.store.nonce,
            written=int(time() * 1000),
            inventories=inventories,
            note=note,
            previous=self.digest,
            receipts=self.add_digest_to_receipts(manifest.receipts),
        )
        mine = publish_manifest(self.store, new)
        if mine is None:
            raise self._fenced_error()
        self._past.append(ReplacedManifest(self.number, self._since, self.names, self.manifest.backlog))
        self.manifest, self.names, self.digest, self._since = new, names, mine, monotonic()
        with suppress(DdflowError):  # it has happened, with a mark or without
            self.store.mark_published(new.number)
        return new

    def add_digest_to_receipts(self, receipts: tuple[Epoch, ...]) -> tuple[Epoch, ...]:
        """Add digest and date of the current manifest to the receipt of its epoch."""
        signed, epoch = {"digest": self.digest, "written": self.manifest.written}, self.manifest.epoch
        every = [replace(each, **signed) if each.epoch == epoch and not each.digest else each for each in receipts]
        return tuple(every)

    def load_past_manifests(self, names_of: Callable[[Store, Manifest], set[str]]) -> None:
        """Take over the manifests that others left, to sweep them when their time is over.  O(manifests).

        ``names_of``: returns the files that a manifest names, without its backlog.  Raises `CorruptState` for one that
        cannot be read; none is swept then.
        """
        now, past = time(), list[ReplacedManifest]()
        for number in self.store.list_manifests():
            if number < self.number:
                manifest = load_manifest(self.store, number)
                age = max(now - manifest.written / 1000, 0.0)
                past.append(
                    ReplacedManifest(number, monotonic() - age, names_of(self.store, manifest), manifest.backlog)
                )
        self._past = [*past, *self._past]

    def sweep_old_manifests(self, apart: float = math.inf) -> None:
        """Delete manifests whose time is over, and then the files that only they named.  O(files deleted), amortised.

        ``apart``: a thread deletes more files than that; `settle` waits for it.  Never fails: what stays is
        garbage that a later collection finds.
        """
        self.wait_for_sweep()
        now, over = monotonic(), list[tuple[int, set[str]]]()
        while len(self._past) > 1 and now - self._past[1].since >= self.grace:
            over.append(self._drop_manifest(0))
        # Of those that leave the latest, one for each sixty-fourth of the grace is enough.
        at = len(self._past) - LATEST
        if at > 0 and self._past[at].since - self._past[at - 1].since < self.grace / LATEST:
            over.append(self._drop_manifest(at))
        if sum(len(names) for _, names in over) <= apart:
            self._delete_manifests(over)
        else:
            self._sweeping = Thread(target=self._delete_manifests, args=(over,), name="ddflow sweep", daemon=True)
            self._sweeping.start()

    def wait_for_sweep(self) -> None:
        """Wait for the thread that deletes, if there is one."""
        if self._sweeping is not None:
            self._sweeping.join()
            self._sweeping = None

    def _drop_manifest(self, at: int) -> tuple[int, set[str]]:
        """Remove a manifest from the past; return its number and the files that neither of its neighbours names."""
        number, _, gone, backlog = self._past.pop(at)
        now = ReplacedManifest(self.number, self._since, self.names, self.manifest.backlog)
        beside = [*self._past[max(at - 1, 0) : at], self._past[at] if at < len(self._past) else now]
        gone = gone.difference(*(each.names for each in beside))
        try:
            mine, theirs = self.backlog.find_different_files(
                backlog, [part for each in beside for part in each.backlog]
            )
        except DdflowError:  # then they are garbage that a later collection finds
            return number, set()
        return number, (gone | mine).difference(theirs, *(each.names for each in beside))

    def _delete_manifests(self, over: list[tuple[int, set[str]]]) -> None:
        with suppress(DdflowError):
            for number, names in over:
                self.store.delete_manifest(number)
                self.store.delete_many(names)

    def _fenced_error(self) -> Fenced:
        return Fenced(
            f"write to {self.store.where}",
            f"another writer has committed since this engine read manifest {self.number}",
            "open the state again: it has what that one wrote; this engine writes no more",
        )


def hash_manifest(data: bytes) -> str:
    """Hash the bytes of a manifest, as 32 hex digits."""
    return xxhash.xxh3_128_hexdigest(data)


def publish_manifest(store: Store, new: Manifest) -> str | None:
    """Publish a manifest under its number, and return its digest; None if another writer was first.  O(bytes).

    All that it names was synced before.  Raises what `Store.publish` raises; after `OutcomeUnknown` it may have
    happened.
    """
    data = new.encode()
    if not store.publish(new.number, data):
        return None
    mine = hash_manifest(data)
    try:
        # The number may have been free again since others had gone on: what is there is void then.
        void = max(store.list_manifests(), default=-1) > new.number and not _has_successor(store, new.number, mine)
    except DdflowError as error:
        raise OutcomeUnknown(
            f"publish manifest {new.number}, in the state {store.where}",
            error.found,
            "it has happened, unless another writer was first: open the state again, which tells",
        ) from error
    if void:
        with suppress(DdflowError):
            store.delete_manifest(new.number)
    return None if void else mine


def _has_successor(store: Store, number: int, mine: str) -> bool:
    """Return whether the next manifest was made from the one with this digest.  If it is gone, it was published long
    ago: no."""
    try:
        return load_manifest(store, number + 1).previous == mine
    except CorruptState:
        return False
