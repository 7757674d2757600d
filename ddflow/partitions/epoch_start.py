"""Describe the start of tasks: the plain value that all tasks of an epoch, or of a rewrite, start from.

Guarantees: a task on another host can verify that it opens the same version of the state as the driver.

>>> start = EpochStart(version=StateVersion("s3://shop/orders", "owner", number=3, digest="0" * 32), epoch=4,
...     partitions=2,
...             secret=(1, 2), frontier=7, last=6, since=6, time=7, to=7, horizons={}, inventories=(), folder=None,
...             retain=0, memory=None)
>>> start.closes_all_times, start._replace(to=2**63 - 1).closes_all_times
(False, True)
"""

import os
from collections.abc import Mapping
from typing import NamedTuple, Self

from ddflow.engine.checkpoint import Inventory
from ddflow.errors import CorruptState, ErrorText, Option, SnapshotExpired, StateRefused
from ddflow.partitions.stages import Stages
from ddflow.plan.plan import Plan
from ddflow.storage.closing import undo_on_failure
from ddflow.storage.manifest import Manifest
from ddflow.storage.manifest_log import hash_manifest
from ddflow.storage.memory import MemoryStore
from ddflow.storage.opening import open_store
from ddflow.storage.protocol import Blob, Store
from ddflow.time import CLOSED

REMEDY = "mount the same folder on the driver and on all executors, or keep the state in s3://bucket/prefix"


class StateVersion(NamedTuple):
    """A version of a state, which tasks can open.

    ``store``: the address of the state, or the store itself if it is in memory. ``trust``: as in `Flow.open`.
    ``number``, ``digest``: the number and digest of its manifest.

    >>> import ddflow as dd, pyarrow as pa
    >>> from ddflow.storage.manifest import load_newest_manifest
    >>> from ddflow.storage.memory import MemoryStore
    >>> flow, store = dd.Flow(), MemoryStore()
    >>> _ = flow.output("people", flow.upserts("people", {"id": pa.int64()}, dd.Upsert(key="id")))
    >>> flow.open(store).close()
    >>> version = StateVersion.of_manifest(store, load_newest_manifest(store), "owner")
    >>> version.number, version.digest == hash_manifest(store.read_manifest(0))
    (0, True)
    >>> version._replace(digest="another").open("read")
    Traceback (most recent call last):
        ...
    ddflow.errors.StateRefused: read ... the driver's manifest 0 has digest another, the one there has ...; mount ...
    """

    store: str | MemoryStore
    trust: str
    number: int
    digest: str

    @classmethod
    def of_manifest(cls, store: Store, manifest: Manifest, trust: str) -> Self:
        """Build the version of a store's manifest. O(bytes of the manifest)."""
        return cls(
            find_store_address(store), trust, manifest.number, hash_manifest(store.read_manifest(manifest.number))
        )

    def open(self, what: str, readonly: bool = True) -> Store:
        """Open the store; the caller closes it. ``what``: the purpose, for messages. O(bytes of the manifest).

        Raises `StateRefused`, with this host's name, if this host sees no state or another one. Raises
        `SnapshotExpired` if the version is not kept any more.
        """
        store: Store
        if isinstance(self.store, MemoryStore):
            store = self.store.reopen()
        else:
            try:
                store = open_store(self.store, trust=self.trust, create=False, readonly=readonly)
            except StateRefused as error:
                raise StateRefused(self._describe_request(what), error.found, REMEDY) from None
        with undo_on_failure(store.close):
            self._check_digest(store, what)
        return store

    def load_manifest(self, store: Store) -> Manifest:
        """Load the manifest from the store of `open`. Raises `SnapshotExpired` if it was deleted since."""
        try:
            return Manifest.decode(store.read_manifest(self.number), self.number, store.where)
        except CorruptState:
            if self.number in store.list_manifests():
                raise
            raise snapshot_expired_error(store, self.number) from None

    def _check_digest(self, store: Store, what: str) -> None:
        try:
            found = hash_manifest(store.read_manifest(self.number))
        except CorruptState:
            if store.list_manifests()[-1:] > [self.number]:
                raise snapshot_expired_error(store, self.number) from None
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


def find_store_address(store: Store) -> str | MemoryStore:
    """Return the address of a store; a store in memory is its own address."""
    return store if isinstance(store, MemoryStore) else store.where


def snapshot_expired_error(store: Store, number: int) -> SnapshotExpired:
    """Build the error for a manifest that was deleted while it was read."""
    return SnapshotExpired(
        f"manifest {number} of {store.where}",
        "it was replaced, and swept away while it was read",
        ErrorText("read again, or keep versions longer with ", Option("grace")),
    )


def compute_usable_memory(memory: int) -> int:
    """Compute the bytes that a partition may use of its task's memory. Pure.

    An eighth each is reserved for rows from Spark, the shuffle reader and allocators.
    """
    return memory - 3 * (memory // 8)


class Backfill(NamedTuple):
    """The new parts of a plan. ``outputs``: their names. ``operators``: the ids of operators without state in files."""

    outputs: tuple[str, ...]
    operators: tuple[str, ...]


class EpochStart(NamedTuple):
    """The start of an epoch's tasks. It is serializable unless its store is in memory.

    - ``version``, ``secret``: of the state. ``partitions``: their number.
    - ``epoch``: the number of this epoch.
    - ``frontier``, ``last``, ``since``: the times of the state before the epoch.
    - ``time``: the time of its updates, in epoch mode.
    - ``to``: the frontier after its rows, in hold-back mode.
    - ``horizons``: the greatest order in all partitions at the last commit, by input whose keys expire.
    - ``inventories``: by stage and partition; empty for a state without a commit.
    - ``folder``: the folder of Parquet outputs; None if outputs are files of the state.
    - ``retain``: as in `Flow.open`.
    - ``memory``: the bytes that a task may use, or None.
    - ``past``: the names of each partition's earlier inventories, as far as the driver knows. A partition can catch up
      from each of these.
    - ``backfill``: set if the tasks take no rows and fill the new parts of a plan from the state.
    """

    version: StateVersion
    epoch: int
    partitions: int
    secret: tuple[int, int]
    frontier: int
    last: int
    since: int
    time: int
    to: int
    horizons: Mapping[str, int]
    inventories: tuple[tuple[Blob, ...], ...]
    folder: str | None
    retain: int
    memory: int | None
    past: tuple[tuple[tuple[str, ...], ...], ...] = ()
    backfill: Backfill | None = None

    def inventory_name(self, stage: int, number: int) -> str:
        """Return the name of a partition's inventory; "" for none."""
        return self.inventories[stage][number].name if self.inventories else ""

    def list_past_inventories(self, stage: int, number: int) -> tuple[str, ...]:
        """Return the names of a partition's earlier inventories, newest first."""
        return self.past[stage][number] if self.past else ()

    @property
    def closes_all_times(self) -> bool:
        """Whether the step closes all times."""
        return self.to == CLOSED > self.frontier


class RewriteStart(NamedTuple):
    """The start of all tasks of a rewrite. It is serializable unless its store is in memory.

    - ``cut``: the stages of the new plan.
    - ``version``: the old version of the state.
    - ``secret``: the secret of both versions.
    - ``before``, ``partitions``: the old and the new number of partitions.
    - ``inventories``: the inventories with the records of a task, by stage of the new plan and old partition.
    - ``horizons``, ``greatest``: by input, the greatest order (if keys expire) and event time in all partitions.
    - ``cast``: the old plan, if the new one has wider or more columns.
    - ``new``: the records of inputs and operators that the state may lack.
    - ``memory``: the bytes that a task may use, or None.
    """

    cut: Stages
    version: StateVersion
    secret: tuple[int, int]
    before: int
    partitions: int
    inventories: Mapping[tuple[int, int], tuple[Blob, ...]]
    horizons: Mapping[str, int]
    greatest: Mapping[str, int]
    cast: Plan | None
    new: Inventory
    memory: int | None
