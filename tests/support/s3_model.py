"""Drive two writers of one S3 state over a faulty connection, and compare with a model.

The model consists of dicts and never calls the stores; it reads the server directly. If the answer to a request is
lost, the model keeps all possible results. When the model later reads the contents of the server, it drops the results
that are no longer possible.
"""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path

import obstore
from obstore.store import S3Store as Direct
from s3_server import Moto, Proxy, options

from ddflow.errors import CorruptState, OutcomeUnknown, StorageFailed
from ddflow.storage.protocol import Blob
from ddflow.storage.s3 import S3Store

STEPS = (
    "put",
    "put",
    "map",
    "map",
    "list",
    "delete",
    "publish",
    "publish",
    "publish",
    "numbers",
    "manifest",
    "expire",
    "mark",
)


class Model:
    """A model of the state.

    ``seen`` counts the outcomes of all steps. `step` raises AssertionError at the first violation.
    """

    def __init__(self, moto: Moto, proxy: Proxy, folder: Path, seed: int) -> None:
        self.moto, self.proxy, self.folder, self.seed = moto, proxy, folder, seed
        self.random, self.seen = random.Random(seed), Counter[str]()
        self.url = f"s3://{moto.bucket()}/state"
        self.direct = Direct.from_url(self.url, client_options={"allow_http": True}, **options(moto.url))
        self.blobs: dict[Blob, bytes] = {}
        self.deleted: dict[Blob, bytes] = {}
        self.doubtful: set[str] = set()  # nonces of writers with a failed put
        self.tried: dict[int, set[bytes]] = {}
        self.decided: dict[int, bytes] = {}
        self.never: dict[int, set[bytes]] = {}
        self.expired, self.marked, self.perhaps_marked = -1, -1, -1
        self.stores = [self.open(0), self.open(1)]

    def open(self, which: int) -> S3Store:
        """Replace one of the two stores by a newly opened store; opening has no faults."""
        rate, self.proxy.rate = self.proxy.rate, 0.0
        store = S3Store(self.url, cache=self.folder / f"cache-{which}", options=options(self.proxy.url))
        self.proxy.rate = rate
        return store

    def step(self) -> None:
        """Do an operation of one of the writers, and check the result."""
        name, which = self.random.choice(STEPS), self.random.randrange(2)
        try:
            outcome = getattr(self, name)(self.stores[which])
        except OutcomeUnknown:
            assert name == "publish"
            outcome = "unknown"
            self.stores[which] = self.open(which)
        except StorageFailed:
            outcome = "failed"
        self.seen[f"{name} {outcome}"] += 1
        self.check_manifests()

    def put(self, store: S3Store) -> str:
        """Put a blob. If the put fails, the blob may still appear later."""
        data = self.random.randbytes(self.random.choice((0, 10, 3_000, 100_000)))
        try:
            blob = store.put("arrow", lambda sink: sink.write(data))
        except StorageFailed:
            self.doubtful.add(store.nonce)
            raise
        assert bytes(obstore.get(self.direct, f"blobs/{blob.name}").bytes()) == data
        self.blobs[blob] = data
        return "done"

    def map(self, store: S3Store) -> str:
        """Read a live blob or a deleted blob. The result must be the right content, or nothing."""
        some = self.random.choice((self.blobs, self.blobs, self.deleted))
        if not some:
            return "nothing"
        blob, data = self.random.choice(list(some.items()))
        try:
            whole = (store.map_blob if self.random.random() < 0.3 else store.fetch)(blob)
        except CorruptState:
            assert blob in self.deleted, f"{blob.name} is there"
            return "missing"
        assert whole.to_pybytes() == data
        return "right"

    def list(self, store: S3Store) -> str:
        """List the blobs.

        All live blobs must be listed. Any other listed blob must be a deleted blob, or a blob of a writer with a failed
        put.
        """
        listed = {entry.name: entry.length for entry in store.list_blobs()}
        for blob in self.blobs:
            assert listed.pop(blob.name, None) == blob.length, f"{blob.name} is not listed"
        possible = {blob.name for blob in self.deleted}
        assert all(name in possible or name[:16] in self.doubtful for name in listed), listed
        return "done"

    def delete(self, store: S3Store) -> str:
        """Delete a blob. A late put may create the blob again as garbage."""
        if not self.blobs:
            return "nothing"
        blob = self.random.choice(list(self.blobs))
        self.deleted[blob] = self.blobs.pop(blob)
        store.delete(blob.name)
        return "done"

    def publish(self, store: S3Store) -> str:
        """Publish under the next number, or under a number that is taken.

        The other writer may have published this number first.
        """
        greatest = max([*self.decided, *self.tried, self.expired])
        number = max(self.expired + 1, greatest + self.random.choice((-1, 0, 1, 1, 1)), 0)
        data = f"{store.nonce} {self.random.random()}".encode() * self.random.choice((1, 100))
        others = self.tried.setdefault(number, set()).copy()
        try:
            self.tried[number].add(data)
            won = store.publish(number, data)
        except OutcomeUnknown:
            raise
        except StorageFailed:
            self.tried[number].discard(data)
            self.never.setdefault(number, set()).add(data)
            raise
        there = self.there(number)
        assert there is not None and (there == data) is won, f"{number} has {there!r}, and {won} was said"
        assert there == self.decided.get(number, there) and (won or there in others)
        self.decided[number] = there
        return "won" if won else "lost"

    def numbers(self, store: S3Store) -> str:
        """List the numbers of manifests.

        The list must contain all numbers that are surely published, and no number that was never tried.
        """
        found = set(store.list_manifests())
        assert self.decided.keys() <= found <= self.tried.keys(), f"{found} of {self.decided.keys()}"
        return "done"

    def manifest(self, store: S3Store) -> str:
        """Read a manifest that is surely published."""
        if not self.decided:
            return "nothing"
        number = self.random.choice(list(self.decided))
        assert store.is_published(number) and store.read_manifest(number) == self.decided[number]
        return "right"

    def expire(self, store: S3Store) -> str:
        """Expire the oldest of many manifests. A late put may create this manifest again."""
        if len(self.decided) < 6:
            return "nothing"
        self.expired = min(self.decided)
        del self.decided[self.expired]
        store.delete_manifest(self.expired)
        return "done"

    def mark(self, store: S3Store) -> str:
        """Mark the greatest manifest, and check that the mark is kept."""
        number = max(self.decided, default=-1)
        if number >= 0:
            self.perhaps_marked = max(self.perhaps_marked, number)
            store.mark_published(number)
            self.marked = max(self.marked, number)
        assert self.marked <= store.find_last_published() <= self.perhaps_marked
        return "done"

    def there(self, number: int) -> bytes | None:
        """Return the server's manifest."""
        try:
            return bytes(obstore.get(self.direct, f"manifests/{number:016d}").bytes())
        except FileNotFoundError:
            return None

    def check_manifests(self) -> None:
        """Check the manifests on the server.

        Every published manifest still exists. A manifest never appears if its put was not tried or has surely failed.
        """
        for number in range(self.expired + 1, max(self.tried, default=-1) + 1):
            there = self.there(number)
            assert there == self.decided.get(number, there), f"{number} changed"
            assert there is None or there in self.tried[number] - self.never.get(number, set())
            if there is not None:
                self.decided[number] = there

    def finish(self) -> None:
        """Let all late requests arrive, and then check everything."""
        self.proxy.calm()
        self.check_manifests()
        store = self.open(0)
        for step in ("list", "numbers", "mark"):
            getattr(self, step)(store)
        for blob, data in self.blobs.items():
            assert store.fetch(blob).to_pybytes() == data
