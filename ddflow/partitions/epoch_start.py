"""Define the values that the driver sends to all tasks of an epoch or of a rewrite.

Guarantees: a task on another host can verify that it opens the same version of the state as the driver.

>>> start = EpochStart(version=StateVersion("s3://shop/orders", "owner", number=3, digest="0" * 32), epoch=4,
...     partitions=2,
...             secret=(1, 2), frontier=7, last=6, since=6, time=7, to=7, horizons={}, greatest={}, inventories=(),
...             folder=None, retain=0, memory=None)
>>> start.closes_all_times, start._replace(to=2**63 - 1).closes_all_times
(False, True)
"""

import os
from collections.abc import Mapping
from typing import NamedTuple, Self

import pyarrow as pa

from ddflow.engine.checkpoint import Inventory
from ddflow.engine.replace import is_same_time_type
from ddflow.errors import CorruptState, ErrorText, Option, SchemaMismatch, SnapshotExpired, SpecError, StateRefused
from ddflow.partitions.stages import Stages
from ddflow.plan.plan import Plan
from ddflow.storage.closing import undo_on_failure
from ddflow.storage.manifest import Manifest
from ddflow.storage.manifest_log import hash_manifest
from ddflow.storage.memory import MemoryStore
from ddflow.storage.opening import open_store
from ddflow.storage.protocol import Blob, Store
from ddflow.time import CLOSED, INT64, Time, find_time_type, format_time, format_time_argument, time_to_int64

REMEDY = "mount the same folder on the driver and on all executors, or keep the state in s3://bucket/prefix"


class StateVersion(NamedTuple):
    """The address of a version of a state. Tasks on any host can open the version.

    ``store``: the address of the state, or the store itself if it is in memory. ``trust``: as in `Flow.open`.
    ``number``, ``digest``: the number and the digest of the version's manifest.

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
    ddflow.errors.StateRefused: read ... the driver's manifest 0 has digest another, but the manifest here has ...
    """

    store: str | MemoryStore
    trust: str
    number: int
    digest: str

    @classmethod
    def of_manifest(cls, store: Store, manifest: Manifest, trust: str) -> Self:
        """Build the version that a manifest of a store describes. O(bytes of the manifest)."""
        return cls(
            find_store_address(store), trust, manifest.number, hash_manifest(store.read_manifest(manifest.number))
        )

    def open(self, what: str, readonly: bool = True) -> Store:
        """Open the store. The caller must close the store. ``what``: the purpose, for messages.

        O(bytes of the manifest). Raises `StateRefused` if this host finds no state at the address, or finds another
        state there. The error message contains the name of the host. Raises `SnapshotExpired` if the version is no
        longer retained.
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
        """Load the version's manifest from an open store. Raises `SnapshotExpired` if the manifest was deleted."""
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
            raise StateRefused(self._describe_request(what), f"its manifest {self.number} is missing", REMEDY) from None
        if found != self.digest:
            raise StateRefused(
                self._describe_request(what),
                f"the driver's manifest {self.number} has digest {self.digest}, but the manifest here has {found}",
                REMEDY,
            )

    def _describe_request(self, what: str) -> str:
        address = self.store.where if isinstance(self.store, MemoryStore) else self.store
        return f"{what} the state {address} on {os.uname().nodename}"


def find_store_address(store: Store) -> str | MemoryStore:
    """Return the address of a store, or the store itself if it is in memory."""
    return store if isinstance(store, MemoryStore) else store.where


def snapshot_expired_error(store: Store, number: int) -> SnapshotExpired:
    """Build the error for a manifest that was deleted while a reader used it."""
    return SnapshotExpired(
        f"manifest {number} of {store.where}",
        "it was replaced, and deleted while it was read",
        ErrorText("read again, or keep versions longer with ", Option("grace")),
    )


def compute_usable_memory(memory: int) -> int:
    """Compute the bytes that a partition may use of its task's memory. Pure.

    The rows from Spark, the shuffle reader and the allocators each need an eighth of the task's memory.
    """
    return memory - 3 * (memory // 8)


def find_clock(flow: Plan) -> pa.DataType | None:
    """Return the type of the times of epochs. Return None if epochs have numbers, or if events have the times.

    The steps of a state can have given it this type, although the flow declares no clock. O(inputs).
    """
    kind = flow.time_type if flow.clock is None else flow.clock
    return None if flow.holds_back or kind == INT64 else kind


def convert_epoch_time(flow: Plan, time: Time | None, required: bool = False) -> int | None:
    """Convert the time of an epoch to an int64, in the unit of the flow's clock. Return None if there is no time.

    O(inputs). Raises `SpecError` for a time if the flow has no clock. Raises `SpecError` for a flow with a clock if a
    time is ``required`` and missing. Raises `SchemaMismatch` for a time of another type.

    >>> convert_epoch_time(Plan(clock="date"), "2026-11-29"), convert_epoch_time(Plan(), None, required=True)
    (20786, None)
    """
    clock = find_clock(flow)
    if time is None:
        if required and clock is not None:
            raise missing_time_error(clock)
        return None
    asked = f"run with time={format_time_argument(time)}"
    if clock is None:
        if flow.holds_back:
            raise SpecError(asked, "the times of the flow are those of its events", "omit time=")
        found = "the flow has no clock, so its epochs have numbers"
        raise SpecError(asked, found, 'omit time=, or declare dd.Flow(clock="timestamp")')
    if (kind := find_time_type(time)) is not None and not is_same_time_type(kind, clock):
        found = f"that time has type {kind}, but the clock of the flow is {clock}"
        raise SchemaMismatch(asked, found, f"pass a time like {format_time(0, clock)}")
    return time_to_int64(asked, time, CLOSED - 1, clock)


def missing_time_error(clock: pa.DataType) -> SpecError:
    """Build the error for an epoch of a flow with a clock that gets no time."""
    found = f"its clock is {clock}, and its epochs do not read the clock of a machine"
    return SpecError(
        "run a flow without a time", found, ErrorText("pass ", Option("time"), f", such as {format_time(0, clock)}")
    )


class Backfill(NamedTuple):
    """The new parts of a plan, which tasks fill from the state.

    ``outputs``: the names of the new outputs. ``operators``: the ids of operators that have no state in files yet.
    """

    outputs: tuple[str, ...]
    operators: tuple[str, ...]


class EpochStart(NamedTuple):
    """The values that the driver sends to all tasks of an epoch.

    The values can be serialized unless the store is in memory.

    - ``version``, ``secret``: the version and the secret of the state.
    - ``partitions``: the number of partitions.
    - ``epoch``: the number of this epoch.
    - ``frontier``, ``last``, ``since``: the times of the state before the epoch.
    - ``time``: in epoch mode, the time of the epoch's updates: the next number, or a time in the unit of the flow's
      clock.
    - ``to``: in hold-back mode, the frontier after the epoch's rows.
    - ``horizons``, ``greatest``: the numbers of the manifest of the last commit, by input.
    - ``inventories``: the inventories by stage and partition; empty for a state without a commit.
    - ``folder``: the folder of Parquet outputs; None if outputs are files of the state.
    - ``retain``: as in `Flow.open`.
    - ``memory``: the bytes that a task may use, or None for no limit.
    - ``past``: the names of each partition's earlier inventories that the driver knows. A partition that is open with
      an inventory in ``past`` can load the newest inventory.
    - ``backfill``: the new parts of the plan, if the tasks fill these from the state instead of taking rows.
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
    greatest: Mapping[str, int]
    inventories: tuple[tuple[Blob, ...], ...]
    folder: str | None
    retain: int
    memory: int | None
    past: tuple[tuple[tuple[str, ...], ...], ...] = ()
    backfill: Backfill | None = None

    def inventory_name(self, stage: int, number: int) -> str:
        """Return the name of a partition's inventory; "" if the state has no inventories yet."""
        return self.inventories[stage][number].name if self.inventories else ""

    def list_past_inventories(self, stage: int, number: int) -> tuple[str, ...]:
        """Return the names of a partition's earlier inventories, newest first."""
        return self.past[stage][number] if self.past else ()

    @property
    def closes_all_times(self) -> bool:
        """Whether the step of the epoch closes all times."""
        return self.to == CLOSED > self.frontier


class RewriteStart(NamedTuple):
    """The values that the driver sends to all tasks of a rewrite.

    The values can be serialized unless the store is in memory.

    - ``cut``: the stages of the new plan.
    - ``version``: the old version of the state.
    - ``secret``: the secret of both versions.
    - ``before``, ``partitions``: the old and the new number of partitions.
    - ``inventories``: the inventories that a task reads, by stage of the new plan and old partition.
    - ``horizons``: the greatest order in all partitions, by input whose keys expire.
    - ``greatest``: the greatest event time in all partitions, by input.
    - ``cast``: the old plan, if the new plan has wider or more columns.
    - ``new``: empty records of the inputs and operators that the state may lack.
    - ``memory``: the bytes that a task may use, or None for no limit.
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
