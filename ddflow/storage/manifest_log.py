"""Publish the manifests of a state one after the other, and delete the files that no retained manifest names.

A commit syncs its files, then publishes the manifest with the next number. A number becomes free when its manifest is
deleted, so a slow writer may publish under an old number. Therefore each writer, after it has published a manifest,
looks for manifests with greater numbers. If a manifest has a greater number, the published manifest is void, unless the
next manifest is its successor (`Manifest.previous`).

Guarantees: a writer that did not publish the newest manifest gets `Fenced`, and never writes again. A manifest is
deleted before the files that no other manifest names. For readers, a manifest stays for ``grace`` seconds after its
successor was published. Of manifests older than the newest `LATEST` manifests, only about one per ``grace / LATEST``
seconds stays.
Limits: this module knows only the names of files, not the contents of partitions.
"""

import math
import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from operator import itemgetter
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
"""The default time, in seconds, for which a manifest and its files stay after the next manifest is published."""
LATEST: Final = 64
"""The number of newest manifests that stay for the complete grace, even if they follow each other quickly."""


class ReplacedManifest(NamedTuple):
    """A manifest that is no longer the newest: its number, its backlog, and the other files that it names.

    ``since``: the time when it became the current manifest, on the monotonic clock.
    """

    number: int
    since: float
    names: set[str]
    backlog: tuple[BacklogFile, ...]


class ManifestLog:
    """The manifests of one state, as one writer publishes them.

    ``manifest``: the current version of this engine. ``digest``: the digest of its bytes, 32 hex digits. ``names``: all
    files that the manifest names, except files of its ``backlog``. ``grace``: see the header of this module.

    >>> from ddflow.storage.memory import MemoryStore
    >>> store = MemoryStore()
    >>> manifest_log = ManifestLog.create(store, {}, "0" * 32, Secret(1, 2))
    >>> part = store.put("json", b"{}")
    >>> manifest_log.commit(manifest_log.manifest, (part,), set(), note="an example").epoch
    0
    >>> ManifestLog(store, load_newest_manifest(store), set()).number, manifest_log.number
    (1, 1)
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
        """Create the manifest log of a new state with its manifest 0.

        If another process creates the state at the same time, both processes get the same manifest. ``partitions``: the
        number of partitions. Raises the errors of `Store.publish`.
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
        """The number of the current manifest."""
        return self.manifest.number

    def check_still_newest(self) -> None:
        """Raise `Fenced` if another writer has committed since this writer's last commit. O(manifests)."""
        if self.store.is_published(self.manifest.number + 1):
            raise self._fenced_error()

    def commit(self, manifest: Manifest, inventories: tuple[Blob, ...], names: set[str], note: str) -> Manifest:
        """Publish a manifest with the next number, this writer's nonce and the current date. O(files that changed).

        ``names``: the files that ``inventories`` and the manifest name, which were put before. Raises `Fenced` and the
        errors of `Store.fsync_blob_names` and `Store.publish`. If this method raises `OutcomeUnknown`, the commit may
        have happened.
        """
        names = names.union(map(itemgetter(0), inventories))
        self.store.fsync_blob_names()
        new = replace(
            manifest,
            number=self.manifest.number + 1,
            nonce=self.store.nonce,
            written=int(time() * 1000),
            inventories=inventories,
            note=note,
            previous=self.digest,
            receipts=self.add_digest_to_receipts(manifest.receipts),
        )
        mine = publish_manifest(self.store, new, self.manifest)
        if mine is None:
            raise self._fenced_error()
        self._past.append(ReplacedManifest(self.manifest.number, self._since, self.names, self.manifest.backlog))
        self.manifest, self.names, self.digest, self._since = new, names, mine, monotonic()
        with suppress(DdflowError):  # the commit has happened, even if its mark fails
            self.store.mark_published(new.number)
        return new

    def add_digest_to_receipts(self, receipts: tuple[Epoch, ...]) -> tuple[Epoch, ...]:
        """Add the digest and date of the current manifest to the receipt of its epoch."""
        signed, epoch = {"digest": self.digest, "written": self.manifest.written}, self.manifest.epoch
        every = [replace(each, **signed) if each.epoch == epoch and not each.digest else each for each in receipts]
        return tuple(every)

    def load_past_manifests(self, names_of: Callable[[Store, Manifest], set[str]]) -> None:
        """Load the manifests of earlier writers, so that `sweep_old_manifests` can delete them later. O(manifests).

        ``names_of``: a function that returns the files that a manifest names, without its backlog. Raises
        `CorruptState` for a manifest that cannot be read. If `CorruptState` is raised, no manifest of an earlier writer
        will be deleted.
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
        """Delete the manifests whose grace is over, then the files that only these manifests named.

        O(files deleted), amortised. ``apart``: the number of files above which a thread deletes them; `wait_for_sweep`
        waits for the thread. Errors are ignored, because a later garbage collection deletes remaining files.
        """
        self.wait_for_sweep()
        now, over = monotonic(), list[tuple[int, set[str]]]()
        while len(self._past) > 1 and now - self._past[1].since >= self.grace:
            over.append(self._drop_manifest(0))
        # Of the manifests before the newest `LATEST` manifests, keep only one in each interval of ``grace / LATEST``
        # seconds.
        at = len(self._past) - LATEST
        if at > 0 and self._past[at].since - self._past[at - 1].since < self.grace / LATEST:
            over.append(self._drop_manifest(at))
        if apart == math.inf or sum(len(names) for _, names in over) <= apart:
            self._delete_manifests(over)
        else:
            self._sweeping = Thread(target=self._delete_manifests, args=(over,), name="ddflow sweep", daemon=True)
            self._sweeping.start()

    def wait_for_sweep(self) -> None:
        """Wait for the thread that deletes files, if there is one."""
        if self._sweeping is not None:
            self._sweeping.join()
            self._sweeping = None

    def _drop_manifest(self, at: int) -> tuple[int, set[str]]:
        """Remove a manifest from the list of past manifests.

        Return the number of the removed manifest, and the files that neither its predecessor nor its successor names.
        """
        number, _, gone, backlog = self._past.pop(at)
        now = ReplacedManifest(self.number, self._since, self.names, self.manifest.backlog)
        beside = [*self._past[max(at - 1, 0) : at], self._past[at] if at < len(self._past) else now]
        gone = gone.difference(*(each.names for each in beside))
        try:
            mine, theirs = self.backlog.find_different_files(
                backlog, [part for each in beside for part in each.backlog]
            )
        except DdflowError:  # a later garbage collection finds the files
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
            "open the state again to read its commits; this engine writes no more",
        )


def hash_manifest(data: bytes) -> str:
    """Hash the bytes of a manifest, as 32 hex digits."""
    return xxhash.xxh3_128_hexdigest(data)


def publish_manifest(store: Store, new: Manifest, before: Manifest | None = None) -> str | None:
    """Publish a manifest under its number, and return its digest. Return None if another writer was first. O(bytes).

    ``before``: as for `Manifest.encode`. The caller must have synced all files that the manifest names. Raises the
    errors of `Store.publish`. If this function raises `OutcomeUnknown`, the manifest may have been published.
    """
    data = new.encode(before)
    if not store.publish(new.number, data):
        return None
    mine = hash_manifest(data)
    try:
        # The number may have become free again after later manifests were published. If the number became free again,
        # this manifest is void.
        void = bool(store.list_manifests(new.number)) and not _has_successor(store, new.number, mine)
    except DdflowError as error:
        raise OutcomeUnknown(
            f"publish manifest {new.number}, in the state {store.where}",
            error.found,
            "it has happened, unless another writer was first: open the state again to see it",
        ) from error
    if void:
        with suppress(DdflowError):
            store.delete_manifest(new.number)
    return None if void else mine


def _has_successor(store: Store, number: int, mine: str) -> bool:
    """Return whether the manifest after ``number`` is a successor of the manifest with the digest ``mine``.

    Return False if the next manifest is missing: it was published long ago and then deleted.
    """
    try:
        return load_manifest(store, number + 1).previous == mine
    except CorruptState:
        return False
